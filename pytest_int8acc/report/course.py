"""Where a case's time went, and which steps it left out, as text."""

from __future__ import annotations

from pytest_int8acc.report.catalogue import PARTS
from pytest_int8acc.report.words import number
from pytest_int8acc.results import CaseResult, Phase, Stop


def stop_text(stop: Stop, low_format: str) -> str:
    """Returns what ended the case after its verdict, and what was left out."""
    names = [PARTS[part].clause.format(format=low_format) for part in stop.left_out]
    left = ", ".join(names) or "nothing"
    if stop.kind == "interrupted":
        return f"interrupted (Ctrl-C) after the verdict; left out, in whole or in part: {left}"
    return (
        f"the {number(stop.max_seconds)} s that max-seconds allows after a verdict are spent; left out, in "
        f"whole or in part: {left}"
    )


def phases_text(result: CaseResult) -> str:
    """Returns where the time went, like ``12 s: setup 1.2, runs 0.4, search 10``; empty without phases."""
    spent = ", ".join(f"{phase.name} {_seconds(phase)}" for phase in result.phases)
    return f"{number(result.seconds, 3)} s: {spent}" if spent else ""


def _seconds(phase: Phase) -> str:
    return number(round(phase.seconds, 2), 3)
