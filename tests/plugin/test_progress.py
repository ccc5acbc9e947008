"""What is told while cases are at work, and what Ctrl-C leaves, in processes of their own."""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from terminals import ENDLESS_TRIALS, SLOW_SETUP, SLOW_TRIALS, run

pytestmark = pytest.mark.usefixtures("quick_processes")

WORKERS = [pytest.param((), id="plain"), pytest.param(("-n2",), id="n2")]
_KNOWN = r"FAILED so far, 'metrics.py:top1' \S+ < 0.98 \(\+1 more missed: \S+\)"
_MOVING = _KNOWN + r"; searching the layers at fault, \d+ trials?, \d+ s"


@pytest.fixture
def slow(digits: pytest.Pytester) -> Path:
    """Digits with two cases that fail, whose searches take some seconds."""
    if not hasattr(os, "openpty"):
        pytest.skip("no pseudo-terminals here")
    path = digits.path
    spec = (path / "digits.int8acc.yaml").read_text().partition("cases:")[0]
    cases = [f"  - name: {name}\n    int8: {{scales: ranges.json}}\n" for name in ("one", "two")]
    (path / "digits.int8acc.yaml").write_text(f"{spec}cases:\n{''.join(cases)}")
    (path / "conftest.py").write_text(SLOW_TRIALS)
    return path


def screen(written: str) -> list[str]:
    """The lines that a terminal shows in the end."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", written):
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part.startswith("\x1b["):
            count = int(re.sub(r"\D", "", part.split(";")[0]) or 1)
            if part.endswith("A"):
                row -= count
            elif part.endswith("C"):
                column += count
            elif part.endswith("K"):
                lines[row] = lines[row][:column]
        else:
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines]


def read(folder: Path) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((folder / "report.json").read_text(encoding="utf-8"))["cases"]
    return cases


@pytest.mark.parametrize("more", [pytest.param(("-s",), id="s"), WORKERS[1]])
def test_on_a_terminal_a_line_moves_and_leaves_no_trace(slow: Path, more: tuple[str, ...]) -> None:
    code, written = run(slow, *more, terminal=True)
    assert code == 1
    lead = r"gw\d " if "-n2" in more else ""
    told = re.findall(f"{lead}(?:one|two): {_MOVING}", written)
    assert len(set(told)) > 1, written  # on a busy machine two workers have few moments to tell
    shown = screen(written)
    assert not [line for line in shown if "so far" in line]
    assert any(re.fullmatch(r"digits.int8acc.yaml +FF +\[100%\]|FF +\[100%\]|F", line) for line in shown)


@pytest.mark.parametrize("more", WORKERS)
def test_elsewhere_a_plain_line_comes_now_and_then(slow: Path, more: tuple[str, ...]) -> None:
    code, written = run(slow, *more, terminal=False)
    assert code == 1
    assert "\x1b" not in written
    lead = r"gw\d " if "-n2" in more else ""
    told = re.compile(f"int8acc: {lead}(one|two): {_MOVING}")
    assert sum(told.fullmatch(line) is not None for line in written.splitlines()) > 1, written


def test_very_quiet_runs_tell_nothing(slow: Path) -> None:
    _, written = run(slow, "-q", "-q", terminal=True)
    assert "so far" not in written


@pytest.mark.parametrize(("more", "ctrl_c"), [((), "group"), (("-n2",), "terminate"), (("-n2",), "first")])
def test_ctrl_c_after_a_verdict_loses_nothing(slow: Path, more: tuple[str, ...], ctrl_c: str) -> None:
    (slow / "conftest.py").write_text(ENDLESS_TRIALS)
    args = ("--int8acc-report", "out", "--junitxml", "junit.xml", *more)
    code, written = run(slow, *args, terminal=True, ctrl_c=ctrl_c)
    assert code == pytest.ExitCode.INTERRUPTED
    cases = read(slow / "out")
    assert cases
    for case in cases:
        assert case["verdict"] == "failed"
        assert case["stopped"]["kind"] == "interrupted"
        assert case["stopped"]["left_out"][0] == "search"
        assert case["search"] is None or case["search"]["interrupted"]  # None: not begun by this worker
    assert "Caution: interrupted (Ctrl-C or SIGTERM) after the verdict; left out" in written
    assert (
        "interrupted (Ctrl-C or SIGTERM) after the verdict; left out"
        in (slow / "out" / "report.html").read_text()
    )
    suite = ElementTree.parse(slow / "junit.xml").getroot()[0]
    assert suite.get("failures") == str(len(cases))


def test_ctrl_c_before_a_verdict_is_pytests_own(slow: Path) -> None:
    (slow / "conftest.py").write_text(SLOW_SETUP)
    code, written = run(slow, "--int8acc-report", "out", terminal=True, ctrl_c="group")
    assert code == pytest.ExitCode.INTERRUPTED
    assert "KeyboardInterrupt" in written
    assert re.search(
        r"(one|two): (reading model and data|calibrating|running both forms)\b[^\n]*, \d+ s", written
    )
    assert read(slow / "out") == []
