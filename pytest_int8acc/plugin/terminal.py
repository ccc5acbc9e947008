"""Changes the failures of cases while pytest prints its summary, so that their lines fit the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_int8acc.names import wrapped
from pytest_int8acc.plugin.reporting import first_line, judged_reports, missed, nodeid_of, terminal_width
from pytest_int8acc.settings import SUFFIXES

#: The beginning of the title of each section that this plugin adds to the report of a user's own test. Such a
#: section shows one case that failed in the test.
SECTION = "int8acc: "


@dataclass(frozen=True)
class Fitted:
    """A message for pytest's reports: wrapped lines for the terminal, and the original text for files."""

    text: str
    lines: Sequence[str]
    color: str = ""

    def __str__(self) -> str:
        """Returns the original text, without colours and without the line breaks for the terminal."""
        return self.text

    def toterminal(self, writer: Any) -> None:
        """Writes the wrapped lines to pytest's terminal."""
        markup = {self.color: True} if self.color else {}
        for line in self.lines:
            writer.line(line, **markup)


@dataclass(frozen=True)
class Crash:
    """The short message of a failure, which pytest prints in its short summary and with ``--tb=line``."""

    message: str

    def __str__(self) -> str:
        """Returns the message, which pytest prints in its summary."""
        return self.message


@dataclass(frozen=True, kw_only=True)
class Failure(Fitted):
    """The failure of a case, with the methods and attributes that pytest expects of an ``ExceptionRepr``.

    It is not a ``str``, because pytest's short summary prints all lines of a ``str`` with -vv.
    """

    reprcrash: Crash


@contextmanager
def summed_up(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Returns a context in which pytest's reports hold failures of cases as lines that fit the terminal.

    Texts of this plugin in reports of other tests are wrapped, too. The context is open only while the
    terminal reporter writes its summary. Other plugins and report files therefore get the original texts.
    """
    config, width = terminalreporter.config, terminal_width(terminalreporter)
    kept = []
    for _, report in judged_reports(terminalreporter):
        kept.append((report, report.longrepr, report.sections))
        report.sections = [(title, _section(title, text, width)) for title, text in report.sections]
        longrepr: Any = report.longrepr
        if isinstance(report, pytest.CollectReport):
            longrepr = _collected(report, width)
        elif report.location[0].endswith(SUFFIXES) and isinstance(longrepr, str):
            longrepr = _failure(report, longrepr, config, width)
        report.longrepr = longrepr
    try:
        yield
    finally:
        for report, longrepr, sections in kept:
            report.longrepr, report.sections = longrepr, sections


def _failure(report: pytest.TestReport, text: str, config: pytest.Config, width: int) -> Failure:
    """Return the failure of a case in lines of at most ``width`` characters, from its original ``text``."""
    verbosity = config.get_verbosity()
    if not missed(report):
        return Failure(text, _wrapped_lines(text, width), reprcrash=Crash(first_line(report)))
    from pytest_int8acc.report.text import failure
    from pytest_int8acc.report.view import view_of

    view = view_of(dict(report.user_properties))
    assert view is not None  # a case that misses limits was measured
    room = width - len(f"FAILED {_from_here(nodeid_of(report), config)} - ")
    messages = list(view.brief_misses())
    message = next((m for m in messages if len(m) <= room), messages[0])
    lines = failure(view, verbosity, width).split("\n")
    return Failure(text, lines, reprcrash=Crash(messages[0] if verbosity >= 2 else message))


def _from_here(nodeid: str, config: pytest.Config) -> str:
    """Return a node id with the path relative to the folder where pytest was started, as pytest shows it."""
    path, separator, name = nodeid.partition("::")
    try:
        path = os.path.relpath(config.rootpath / path, config.invocation_params.dir)
    except ValueError:  # on another drive of Windows
        return nodeid
    return path + separator + name


def _collected(report: pytest.CollectReport, width: int) -> Any:
    """Return the text of a collection report: the mistakes in a spec in red, wrapped to ``width``.

    The text of any other collection report is returned unchanged.
    """
    if not report.nodeid.endswith(SUFFIXES) or hasattr(report.longrepr, "reprcrash"):
        return report.longrepr
    text = str(report.longrepr)
    return Fitted(text, _wrapped_lines(text, width), "red")


def _section(title: str, text: str, width: int) -> str:
    if not title.startswith(SECTION):
        return text
    return "\n".join(_wrapped_lines(text, width))


def _wrapped_lines(text: str, width: int) -> list[str]:
    return [part for line in text.split("\n") for part in wrapped(line, width)]
