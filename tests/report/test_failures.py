"""How twelve failing cases read, kept word for word; ``REWRITE_GOLDEN=1`` keeps what is told now."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.regressions.corpus import corpus
from benchmarks.regressions.entry import write
from pytest_int8acc.check import conclude
from pytest_int8acc.errors import Int8accError
from pytest_int8acc.lab import simulator
from pytest_int8acc.measure.measured import measure
from pytest_int8acc.report.answer import LINES
from pytest_int8acc.report.plain import for_people
from pytest_int8acc.report.text import failure
from pytest_int8acc.report.words import WIDTH
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec

EXAMPLES = Path(__file__).parents[2] / "example_project"
KEPT = Path(__file__).with_name("failures.txt")
#: Models of real size, and entries of the corpus; the last two are refused, under ``auto``.
ENTRIES = (
    "detector/detector_clipped",
    "transformer/transformer_not_scaled",
    "by_hand_cnn_50",
    "wide_resnet_x30",
    "mixed_inception",
    "data_black_cnn",
    "outlier_cnn_x60",
    "accumulated_cnn",
    "weight_dead_mlp_x20",
    "unequal_pair_cnn",
    "asymmetric_cnn",
    "fp16_overflow_cnn",
)


def spec_of(name: str, folder: Path) -> Path:
    """The spec of an entry, or of a case of the example project, in ``folder``."""
    kind, _, case = name.rpartition("/")
    if kind:
        shutil.copytree(EXAMPLES / kind, folder, dirs_exist_ok=True)
        return folder / f"{case}.int8acc.yaml"
    return write(corpus()[name], corpus()[name].plant(), folder)


def told(name: str, folder: Path) -> str:
    """What pytest shows of an entry without ``-v``, its folder left out."""
    (case,) = load_spec(spec_of(name, folder))
    try:
        measured = measure(case, Settings())
    except Int8accError as error:
        return str(error).replace(f"{folder}/", "")
    try:
        result = for_people(conclude(measured, folder / "report"))
    finally:
        measured.close()
    return failure(replace(result, written=tuple(path.replace(f"{folder}/", "") for path in result.written)))


def kept() -> Iterator[tuple[str, str]]:
    """Name and text of each entry kept."""
    for part in KEPT.read_text(encoding="utf-8").split("=== ")[1:]:
        name, _, text = part.partition("\n")
        yield name.strip(), text.strip("\n")


#: Where noise adds up, what a reserve takes, and which tensor of a layer is noisiest, hang on the last bits.
_CHANCE = re.compile(
    r", \d+ of them for a reserve| on ONNX Runtime [\d.]+$| alone(?= on)|(?<= its )(?:in|w)\w+(?= keeps)"
)


def steady(text: str) -> str:
    """``text`` without its numbers' digits, and other things that differ from machine to machine."""
    return re.sub(r"\d[\d.e+-]*", "#", _CHANCE.sub("", text))


@pytest.mark.parametrize("name", ENTRIES)
def test_a_failure_reads_as_it_did(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is cut off by what it costs: where that falls hangs on the last bits, too."""
    monkeypatch.setattr(simulator, "_LITTLE", 1e15)
    text = told(name, tmp_path)
    lines = text.split("\n")
    assert len(lines) <= LINES
    if "REWRITE_GOLDEN" in os.environ:
        texts = (dict(kept()) if KEPT.exists() else {}) | {name: text}
        KEPT.write_text("\n".join(f"=== {n}\n{texts[n]}\n" for n in ENTRIES if n in texts), encoding="utf-8")
    assert [steady(line) for line in lines] == [steady(line) for line in dict(kept())[name].split("\n")]
    if lines[0].startswith("INT8 accuracy: "):
        assert max(map(len, lines)) <= WIDTH
