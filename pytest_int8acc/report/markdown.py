"""The Markdown of GitHub's step summary: a table of cases, then culprits and fix of those that failed.

https://docs.github.com/actions/reference/workflow-commands-for-github-actions#adding-a-job-summary
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_int8acc.names import in_markdown
from pytest_int8acc.report.answer import alternatives, fix_lines
from pytest_int8acc.report.causes import cause_brief, cause_text
from pytest_int8acc.report.course import course_lines
from pytest_int8acc.report.diagnosis import finding_lines
from pytest_int8acc.report.engines import engine_lines
from pytest_int8acc.report.json import BAD
from pytest_int8acc.report.plain import restore_entry
from pytest_int8acc.report.search import alone_text, fix_line
from pytest_int8acc.report.summary import stage_lines
from pytest_int8acc.report.summary import summary as why
from pytest_int8acc.report.terminal import counts_text, said_of
from pytest_int8acc.report.text import headline
from pytest_int8acc.report.words import count, first_fitting, formats, shorten
from pytest_int8acc.results import CaseResult

#: What GitHub takes of one step; more than that and nothing of it is shown.
LIMIT = 1 << 20
_SIGNS = {"passed": "✅", "failed": "❌", "error": "💥", "skipped": "⏭️"}
_CULPRITS = 20
_CELL = 300


def append_summary(path: Path, report: Mapping[str, Any]) -> None:
    """Append the report to the step's file; what does not fit in GitHub's limit is counted.

    Raises:
        OSError: The file cannot be written.
    """
    if not report["cases"] and not report["errors"]:
        return
    used = path.stat().st_size if path.exists() else 0
    text = summary(report, LIMIT - used)
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)


def summary(report: Mapping[str, Any], limit: int = LIMIT) -> str:
    """The report as Markdown, of at most ``limit`` bytes."""
    cases = report["cases"]
    # Where room is scarce, those that are not well are told first.
    ordered = [c for c in cases if c["verdict"] in BAD] + [c for c in cases if c["verdict"] not in BAD]
    parts = [f"## {formats(cases)} accuracy: {in_markdown(counts_text(report))}\n\n"]
    parts += [_error(error) for error in report["errors"]]
    table = ["| | case | said | seconds |\n|---|---|---|---|\n", *map(_row, ordered)]
    sections = [_section(entry) for entry in ordered if entry["verdict"] in BAD]
    return _fitting([*parts, *table, "\n", *sections], limit)


def _fitting(parts: list[str], limit: int) -> str:
    """As many whole parts as ``limit`` bytes hold, and how many more there are."""
    sizes = [len(part.encode("utf-8", "backslashreplace")) for part in parts]
    if sum(sizes) <= limit:
        return "".join(parts)
    room = limit - 100
    kept = 0
    while kept < len(parts) and sizes[kept] <= room:
        room -= sizes[kept]
        kept += 1
    more = f"\n\n... and {count(len(parts) - kept, 'line')} more than GitHub shows; see report.json\n"
    return "".join(parts[:kept]) + more if limit > 200 else ""


def _row(entry: Mapping[str, Any]) -> str:
    sign = _SIGNS.get(entry["verdict"], "⚠️")
    cells = (
        f"{sign} {entry['verdict']}",
        in_markdown(shorten(entry["nodeid"], _CELL)),
        in_markdown(shorten(said_of(entry), _CELL)),
        f"{entry['seconds']:.1f}",
    )
    return f"| {' | '.join(cells)} |\n"


def _error(error: Mapping[str, str]) -> str:
    return f"💥 {in_markdown(error['nodeid'])}: {in_markdown(shorten(error['message'], _CELL))}\n\n"


def _section(entry: Mapping[str, Any]) -> str:
    result = restore_entry(entry)
    lines = list(_story(result)) if result is not None else []
    title = f"### {in_markdown(shorten(entry['nodeid'], _CELL))}\n\n"
    return title + "".join(f"{line}\n" for line in lines) + "\n" if lines else ""


def _story(result: CaseResult) -> Iterator[str]:
    """Why, where and what mends it."""
    stages = stage_lines(result.diagnosis, result.low_format) if result.diagnosis is not None else []
    yield f"{in_markdown(headline(result))}\n"
    sentences = [*([why(result)] if result.diagnosis is not None else []), *fix_lines(result)]
    findings = map(str.strip, finding_lines(result.findings))
    for line in (
        *sentences,
        *map(str.strip, stages),
        *findings,
        *engine_lines(result.engines, result.low_format),
    ):
        yield f"{in_markdown(line)}\n"
    search = result.search
    if search is not None and search.culprits:
        yield f"| culprit | type | alone in {result.low_format} | cause | price |\n|---|---|---|---|---|"
        for culprit in search.culprits[:_CULPRITS]:
            causes = (
                [say(c, result.low_format) for say in (cause_text, cause_brief)]
                if (c := culprit.cause) is not None
                else [""]
            )
            cause = first_fitting(causes, _CELL)  # no number is cut off
            cells = (culprit.layer, culprit.op_type, alone_text(culprit), cause, f"{culprit.price:.1%}")
            yield f"| {' | '.join(in_markdown(shorten(cell, _CELL)) for cell in cells)} |"
        more = len(search.culprits) - _CULPRITS
        yield f"\n... and {more} more\n" if more > 0 else ""
    if search is not None:
        yield f"{in_markdown(fix_line(search))}\n"
    for line in course_lines(result):
        yield f"{in_markdown(line)}\n"
    for way in alternatives(result):
        yield f"Another way: {in_markdown(way)}\n"
