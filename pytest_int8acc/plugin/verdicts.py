"""The reports of a pytest run, each with its verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

#: What the report of a case carries whose scores miss their limits.
MISSED = "int8acc.missed"
#: The words under which pytest's terminal reporter keeps reports.
VERDICTS = ("passed", "failed", "error", "xfailed", "xpassed", "skipped")


def judged_reports(
    terminalreporter: pytest.TerminalReporter,
) -> Iterator[tuple[str, pytest.TestReport | pytest.CollectReport]]:
    """Verdict and report of every test and every collector that has one."""
    for verdict in VERDICTS:
        for report in terminalreporter.getreports(verdict):
            yield verdict, report


def missed(report: pytest.TestReport) -> bool:
    """Whether a case failed for its scores, and not in a teardown, or as a strict xfail that passes."""
    return report.when == "call" and MISSED in dict(report.user_properties)
