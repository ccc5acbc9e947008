"""How twenty failing cases and two refused ones read; ``REWRITE_GOLDEN=1`` keeps what is told now."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import case_files  # noqa: F401  # imports all of the package, which no run inside a test then imports anew
import pytest
from failing_cases import CASES
from plugin_support import LOAD

KEPT = Path(__file__).with_name("failures.txt")
#: Lines of a failure without -v, and characters of each.
LINES, WIDTH = 15, 110


def told(name: str, pytester: pytest.Pytester) -> list[str]:
    """What pytest shows of a case without ``-v``, its folder left out."""
    path = CASES[name](pytester.path)
    done = pytester.runpytest(*LOAD, "--int8acc", "--runxfail", "--int8acc-report=report", path)
    lines = [line.replace(f"{pytester.path}/", "") for line in done.stdout.lines]
    start = next(
        i for i, line in enumerate(lines) if re.fullmatch(r"_+ (ERROR at setup of )?int8acc: .*_", line)
    )
    end = next(i for i, line in enumerate(lines) if line.startswith("=") and i > start)
    return lines[start + 1 : end]


def kept() -> Iterator[tuple[str, str]]:
    """Name and text of each case kept."""
    for part in KEPT.read_text(encoding="utf-8").split("=== ")[1:]:
        name, _, text = part.partition("\n")
        yield name.strip(), text.strip("\n")


#: Where noise adds up, what a reserve takes, and which tensor of a layer is noisiest, hang on the last bits.
_CHANCE = re.compile(
    r", \d+ of them as a safety margin| on ONNX Runtime [\d.]+$| alone(?= on)|(?<= its )(?:in|w)\w+(?= keeps)"
)


def steady(text: str) -> str:
    """``text`` without its numbers' digits, and other things that differ from machine to machine."""
    text = re.sub(r"(?<= more) in \S+(; -v shows .*)?$", "", text)  # a folder's name may be long
    return re.sub(r"\d[\d.e+-]*", "#", _CHANCE.sub("", text))


@pytest.mark.parametrize("name", CASES)
def test_a_failure_reads_as_it_did(
    name: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is cut off by what it costs: where that falls hangs on the last bits, too."""
    monkeypatch.setattr("pytest_int8acc.lab.simulator._LITTLE", 1e15)
    lines = told(name, pytester)
    assert len(lines) <= LINES
    if "REWRITE_GOLDEN" in os.environ:
        plain = re.sub(r"(?<= more in )\S*(?=report/)", "", "\n".join(lines))  # no folder of this machine
        texts = (dict(kept()) if KEPT.exists() else {}) | {name: plain}
        KEPT.write_text("\n".join(f"=== {n}\n{texts[n]}\n" for n in CASES if n in texts), encoding="utf-8")
    assert [steady(line) for line in lines] == [steady(line) for line in dict(kept())[name].split("\n")]
    if lines[0].startswith("INT8 accuracy: "):
        assert max(map(len, lines)) <= WIDTH
