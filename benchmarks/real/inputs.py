"""How the inputs of each model are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from benchmarks.real import pictures, sounds, texts
from benchmarks.real.stored import Stored

#: Takes the folder of unpacked wheels, and how many samples there are to be.
Maker = Callable[[Path, int], Mapping[str, Stored]]

#: Name of a model to what makes its inputs.
INPUTS: Mapping[str, Maker] = {
    "text direction": lambda _, n: {"x": pictures.symmetric(pictures.lines(n, 192, turned=True))},
    "text recognition": lambda _, n: {"x": pictures.symmetric(pictures.lines(n, 160, turned=False))},
    "text detection": lambda _, n: {"x": pictures.symmetric(pictures.pages(n, 160, turned=False))},
    "page orientation": lambda _, n: {"x": pictures.standardized(pictures.pages(n, 224, turned=True))},
    "voice activity": sounds.frames,
    "wake word": sounds.wake_words,
    "speech embedding": sounds.spectra,
    "pitch": sounds.tones,
    "captcha": lambda _, n: {"input": pictures.captchas(n)},
    "file type": texts.contents,
    "Thai words, deepcut": texts.thai_windows,
    "Thai words, attacut": texts.thai_lines,
    "face landmarks": lambda wheels, n: {"input": pictures.faces(wheels, n, 48)},
    "face windows": lambda wheels, n: {"input": pictures.faces(wheels, n, 24)},
}


def made(name: str, wheels: Path, count: int) -> dict[str, Stored]:
    """The inputs of a model in random order."""
    order = np.random.default_rng(0).permutation(count)
    return {
        key: Stored(stored.values[order], stored.scale, stored.offset, stored.dtype)
        for key, stored in INPUTS[name](wheels, count).items()
    }
