"""Failures of cases as pytest prints them at the end of a session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_int8acc.plugin.reporting import case_reports, first_line


@dataclass(frozen=True)
class Crash:
    """What pytest's short summary and ``--tb=line`` say of a failure."""

    message: str

    def __str__(self) -> str:
        """The message alone."""
        return self.message


@dataclass(frozen=True)
class CaseText:
    """A failure as text; in place of a ``str``, of which pytest's short summary prints all lines with -vv.

    pytest uses the methods and attributes of its own ``ExceptionRepr``, as far as they are here.
    """

    text: str
    reprcrash: Crash
    """The first line."""

    def __str__(self) -> str:
        """The whole text, for files."""
        return self.text

    def toterminal(self, writer: Any) -> None:
        """Writes the text."""
        writer.line(self.text)


@contextmanager
def summed_up(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Within it, reports of cases hold a ``CaseText`` where they held a ``str``.

    That is while the terminal reporter writes its summary: other plugins and files get a ``str``.
    """
    kept = []
    for _, report in case_reports(terminalreporter):
        text: Any = report.longrepr
        if isinstance(text, str):
            kept.append((report, text))
            replacement: Any = CaseText(text, Crash(first_line(report)))
            report.longrepr = replacement
    try:
        yield
    finally:
        for report, text in kept:
            report.longrepr = text
