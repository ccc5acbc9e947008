"""Writes the report as Markdown for GitHub's step summary: all cases, then details of each failed case.

https://docs.github.com/actions/reference/workflow-commands-for-github-actions#adding-a-job-summary
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_int8acc.names import in_markdown
from pytest_int8acc.report.catalogue import MISSING
from pytest_int8acc.report.json import BAD, Report, Verdict
from pytest_int8acc.report.text import counts_text, entry_text, finding_lines, stage_lines
from pytest_int8acc.report.view import CaseView
from pytest_int8acc.report.words import count, first_fitting, shorten

#: The maximum size of a step summary in bytes. GitHub does not show a larger one at all.
LIMIT = 1 << 20
_SIGNS: Mapping[Verdict, str] = {
    "passed": "✅",
    "failed": "❌",
    "error": "💥",
    "skipped": "⏭️",
    "xfailed": "⚠️",
    "xpassed": "⚠️",
}
#: The maximum number of layers at fault that the table of a failed case lists.
_CULPRITS = 20
#: The maximum number of characters of a table's cell, and of an error message.
_CELL = 300


def append_summary(path: Path, report: Report) -> None:
    """Appends the report to the file at ``path``. What would exceed GitHub's size limit is left out.

    Raises:
        OSError: The file cannot be written.
    """
    if not (report.cases or report.errors or report.missing):
        return
    used = path.stat().st_size if path.exists() else 0
    text = summary(report, LIMIT - used)
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)


def summary(report: Report, limit: int = LIMIT) -> str:
    """Returns the report as Markdown of at most ``limit`` bytes."""
    cases = report.cases
    # Failed cases come first, because the end is left out if the text exceeds the limit.
    ordered = [c for c in cases if c["verdict"] in BAD] + [c for c in cases if c["verdict"] not in BAD]
    parts = [f"## {report.formats} accuracy: {in_markdown(counts_text(report))}\n\n"]
    parts += [_error(error) for error in report.errors]
    parts += [_error({"nodeid": nodeid, "message": MISSING}) for nodeid in report.missing]
    table = [
        "| | case | said | seconds |\n|---|---|---|---|\n",
        *(_row(entry, report.view(entry)) for entry in ordered),
    ]
    sections = [_section(entry, report.view(entry)) for entry in ordered if entry["verdict"] in BAD]
    return _fitting([*parts, *table, "\n", *sections], limit)


def _fitting(parts: list[str], limit: int) -> str:
    """Returns the first ``parts`` joined, as many as fit into ``limit`` bytes without cutting a part.

    If parts are left out, the text ends with their number.
    """
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


def _row(entry: Mapping[str, Any], view: CaseView | None) -> str:
    cells = (
        f"{_SIGNS[entry['verdict']]} {entry['verdict']}",
        in_markdown(shorten(entry["nodeid"], _CELL)),
        in_markdown(shorten(entry_text(entry, view), _CELL)),
        f"{entry['seconds']:.1f}",
    )
    return f"| {' | '.join(cells)} |\n"


def _error(error: Mapping[str, str]) -> str:
    return f"💥 {in_markdown(error['nodeid'])}: {in_markdown(shorten(error['message'], _CELL))}\n\n"


def _section(entry: Mapping[str, Any], view: CaseView | None) -> str:
    lines = list(_story(view)) if view is not None else []
    title = f"### {in_markdown(shorten(entry['nodeid'], _CELL))}\n\n"
    return title + "".join(f"{line}\n" for line in lines) + "\n" if lines else ""


def _story(view: CaseView) -> Iterator[str]:
    """Yields lines of Markdown on a failed case: why it failed, what to do, and the layers at fault."""
    lines = [view.headline, view.why, *map(str, view.fixes), *stage_lines(view)]
    lines += finding_lines(view.findings)
    lines += [engine.line for engine in view.engines if not engine.is_baseline]
    yield from (f"{in_markdown(line.strip())}\n" for line in lines if line)
    if view.guilty:
        yield f"| culprit | type | alone in {view.low_format} | cause | price |\n|---|---|---|---|---|"
        for row in view.guilty[:_CULPRITS]:
            # the short text is used if the long one does not fit, because cutting could drop a number
            cause = first_fitting([row.sentence, row.brief], _CELL)
            cells = (row.culprit.layer, row.op_type, row.alone, cause, row.price)
            yield f"| {' | '.join(in_markdown(shorten(cell, _CELL)) for cell in cells)} |"
        more = len(view.guilty) - _CULPRITS
        yield f"\n... and {more} more\n" if more > 0 else ""
    lines = [view.plan, f"Stopped early: {view.stopped}" if view.stopped else ""]
    lines += [f"Another way: {way}" for way in view.alternatives]
    yield from (f"{in_markdown(line)}\n" for line in lines if line)
