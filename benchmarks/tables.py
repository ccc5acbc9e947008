"""The suite's results as plain-text tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from benchmarks.growth import Growth
from benchmarks.measure import CaseReport, Row


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; floats with three significant digits."""
    lines = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    text = ["| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in lines]
    return "\n".join([text[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *text[1:]])


def by_case(reports: Sequence[CaseReport]) -> str:
    """One line per case and strategy."""
    header = [
        "case",
        "groups",
        "strategy",
        "kept",
        "best",
        "MACs",
        "trials",
        "cost",
        "s",
        "passes",
        "minimal",
    ]
    rows = [
        [
            row.case,
            row.groups,
            row.strategy,
            len(row.high),
            f"{len(report.best)}{'' if report.proven else '?'}",
            f"{row.macs:.1%}",
            row.trials,
            row.cost,
            row.seconds,
            _yes(row.passes) + ("" if row.agrees else " (search says otherwise)"),
            _yes(row.minimal),
        ]
        for report in reports
        for row in report.rows
    ]
    return table(header, rows)


def by_strategy(reports: Sequence[CaseReport]) -> str:
    """Sums over all cases; a saving in one case offsets no excess in another."""
    header = [
        "strategy",
        "trials",
        "cost",
        "seconds",
        "passes",
        "1-minimal",
        "excess groups",
        "excess MACs",
        "cost / bisect",
    ]
    groups: dict[str, list[Row]] = {}
    for row in (row for report in reports for row in report.rows):
        groups.setdefault(row.strategy, []).append(row)
    bisect = sum(row.cost for row in groups.get("bisect", []))
    rows = [
        [
            strategy,
            sum(row.trials for row in found),
            sum(row.cost for row in found),
            sum(row.seconds for row in found),
            f"{sum(row.passes for row in found)} of {len(found)}",
            f"{sum(row.minimal for row in found)} of {len(found)}",
            sum(max(row.excess_groups, 0) for row in found),
            f"{sum(max(row.excess_macs, 0.0) for row in found):.3f}",
            sum(row.cost for row in found) / bisect if bisect else "-",
        ]
        for strategy, found in groups.items()
    ]
    return table(header, rows)


def by_network(reports: Sequence[CaseReport]) -> str:
    """What a trial costs, beside the float model."""
    header = [
        "case",
        "trouble",
        "groups",
        "samples",
        "planted",
        "best set",
        "trial / float",
        "size / float",
        "memory / float",
    ]
    rows = [
        [
            report.name,
            report.trouble,
            report.groups,
            report.samples,
            "-" if report.planted is None else len(report.planted),
            len(report.best),
            report.trial_ratio,
            report.size_ratio,
            report.memory_ratio,
        ]
        for report in reports
    ]
    ratios = ("trial_ratio", "size_ratio", "memory_ratio")
    medians = [statistics.median(getattr(r, name) for r in reports) for name in ratios]
    return table(header, [*rows, ["median", "", "", "", "", "", *medians]])


def by_size(rows: Sequence[Growth]) -> str:
    """Growth with the number of groups."""
    header = ["strategy", "groups", "kept", "trials", "cost", "seconds", "log2 of possible sets"]
    cells = [[r.strategy, r.groups, r.kept, r.trials, r.cost, r.seconds, r.sets] for r in rows]
    return table(header, cells)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
