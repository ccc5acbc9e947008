"""The terminal section: one line per case, and what -v and -vv add."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_int8acc.names import wrapped
from pytest_int8acc.report.catalogue import PHASES
from pytest_int8acc.report.json import BAD, RANK, Report
from pytest_int8acc.report.plain import restore
from pytest_int8acc.report.text import details, remedies
from pytest_int8acc.report.view import FAILURE, CaseView
from pytest_int8acc.report.words import count
from pytest_int8acc.results import CaseResult, Doing


def status_line(nodeid: str, properties: Mapping[str, Any], message: str) -> str:
    """Returns a case in one line: the summary that its test report carries, else why it was not measured."""
    said = properties.get("int8acc.summary", message)
    return f"{nodeid} - {said}" if said else nodeid


def progress_line(name: str, doing: Doing, seconds: float, result: CaseResult | None) -> str:
    """Returns what a case is doing, like ``net: FAILED so far, 'y' cosine 0.9 < 0.99; calibrating, 8 s``.

    Args:
        name: Of the case.
        doing: What, and how far it is.
        seconds: Since the case began.
        result: What is known of it.
    """
    parts = []
    if result is not None:
        verdict = "PASSED" if result.passed else "FAILED so far"
        parts.append(f"{verdict}, {CaseView(result).most_critical}; ")
    parts.append(PHASES[doing.phase].clause)
    if doing.total is not None:
        parts.append(f", {doing.done} of {count(doing.total, doing.thing)}")
    elif doing.thing:
        parts.append(f", {count(doing.done, doing.thing)}")
    return f"{name}: {''.join(parts)}, {seconds:.0f} s"


def detail_lines(properties: Mapping[str, Any], verbosity: int, width: int, *, failed: bool) -> list[str]:
    """With -v what was compared, every judged score, notes, search and settings; with -vv everything.

    Of a case that ``failed`` the settings alone, since its failure has said the rest. Lines have at most
    ``width`` characters.
    """
    if verbosity < 1 or "int8acc.details" not in properties:
        return []
    settings = f"settings: {properties['int8acc.settings']}"
    if failed:
        return wrapped(settings, width)
    view = CaseView(restore(json.loads(properties["int8acc.details"])))
    lines = [view.headline, *details(view, verbosity, width), *remedies(view, verbosity, width)]
    sentences = [*filter(None, lines), settings]
    return [part for line in sentences for part in wrapped(line, width)]


def merged_lines(report: Report) -> list[str]:
    """Returns the outcome of a merge: each failed case, each file that could not be read, and the counts."""
    lines = []
    for entry in report.cases:
        if entry["verdict"] in BAD:
            text = status_line(entry["nodeid"], {}, entry_text(entry, report.view(entry)))
            lines.append(f"{entry['verdict'].upper()} {text}")
    for error in report.errors:
        message = error["message"].partition("\n")[0]
        lines.append(f"ERROR {error['nodeid']} - {message}")
    total = f"{count(len(report.cases), 'case')} of {count(len(report.plain['merged']), 'report')}"
    return [*lines, f"int8acc: {total}: {counts_text(report)}"]


def is_failure(message: str, view: CaseView) -> bool:
    """Returns whether a message tells of a missed limit, and not of an error."""
    return message.startswith(view.low_format + FAILURE)


def entry_text(entry: Mapping[str, Any], view: CaseView | None, *, brief: bool = False) -> str:
    """Returns a case of the report in a line: its most critical score and more, or why there is no result.

    Args:
        entry: What ``report.json`` holds of it.
        view: Of its result; None where it was not measured.
        brief: The score alone, without backend, formats and cautions.
    """
    message = str(entry.get("message", ""))
    if view is None or (entry["verdict"] in BAD and not is_failure(message, view)):
        return message.strip().partition("\n")[0]
    return view.most_critical if brief else view.status


def counts_text(report: Report) -> str:
    """Returns text like ``1 failed, 1 error, 20 passed``. Files that could not be read count as errors."""
    unread = ["error"] * len(report.errors)
    return ", ".join(f"{n} {verdict}" for verdict, n in tallies(report, unread)) or "nothing ran"


def tallies(report: Report, more: Sequence[str] = ()) -> list[tuple[str, int]]:
    """Returns the number of cases of each verdict, the worst first; ``more`` are further verdicts."""
    verdicts = [*(entry["verdict"] for entry in report.cases), *more]
    return [(verdict, n) for verdict in reversed(RANK) if (n := verdicts.count(verdict))]
