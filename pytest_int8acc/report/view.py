"""A report as a page shows it: every text written out, every bar placed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from pytest_int8acc.report.charts import layer_bars, score_place
from pytest_int8acc.report.diagnosis import cheaper_fix, repair_line
from pytest_int8acc.report.engines import int8_layers, speedup
from pytest_int8acc.report.json import BAD, RANK
from pytest_int8acc.report.plain import restore_entry
from pytest_int8acc.report.search import cost_line, fix_line, remarks
from pytest_int8acc.report.summary import summary
from pytest_int8acc.report.terminal import said_of
from pytest_int8acc.report.text import FAILURE, headline, most_critical, notes_of, warnings_of
from pytest_int8acc.report.words import number, score_cells, worst_first
from pytest_int8acc.results import CaseResult, Latency


def case_views(report: Mapping[str, Any], texts: Mapping[str, str]) -> list[dict[str, Any]]:
    """The cases of a report, each as what its section says beside the result; templates know the keys.

    Args:
        report: As read from ``report.json``.
        texts: Of the files that cases have written, by name.

    Raises:
        Int8accError: An entry is none of ours.
    """
    return [_case(f"case-{i}", entry, texts) for i, entry in enumerate(report["cases"], 1)]


def tallies(report: Mapping[str, Any]) -> list[tuple[str, int]]:
    """How many cases have each verdict, the worst first."""
    verdicts = [entry["verdict"] for entry in report["cases"]]
    return [(verdict, n) for verdict in reversed(RANK) if (n := verdicts.count(verdict))]


def _case(anchor: str, entry: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    result = restore_entry(entry)
    said, message = said_of(entry, most_critical), str(entry.get("message", ""))
    repeats = result is not None and message.startswith(FAILURE)
    return {
        "anchor": anchor,
        "nodeid": entry["nodeid"],
        "verdict": entry["verdict"],
        "bad": entry["verdict"] in BAD,
        "said": said,
        "message": "" if repeats or message.strip() == said else message,
        "seconds": entry["seconds"],
        "settings": str(entry.get("settings", "")),
        "strain": -1.0,
        "place": None,
        "result": None,
        "warnings": (),
        "int8": "",
        "speedup": None,
        **({} if result is None else measured_view(result, texts)),
    }


def measured_view(result: CaseResult, texts: Mapping[str, str]) -> dict[str, Any]:
    """What a page says of a case that was measured.

    Args:
        result: The case's.
        texts: Of the files that it has written, by name.
    """
    judged, cheaper = worst_first(result.scores), cheaper_fix(result)
    search, diagnosis = result.search, result.diagnosis
    repairs = diagnosis.repairs if diagnosis else ()
    # how much of its limit the worst score uses up, 1 at the limit; -1 where nothing was judged
    worst = max((score.strain for score in judged), default=-1.0)
    layers = [culprit.layer for culprit in search.culprits] if search else []
    notes = (*search.notes, *remarks(search, repairs)) if search else ()
    return {
        "result": result,
        "strain": worst if math.isfinite(worst) else 1e308,
        "place": max((place for s in judged if (place := score_place(s)) is not None), default=None),
        "why": summary(result),
        "headline": headline(result),
        "warnings": warnings_of(result),
        "notes": (*notes_of(result, 2), *notes, *(diagnosis.notes if diagnosis else ())),
        "scores": _rows(result),
        "bars": layer_bars(diagnosis.layers, layers) if diagnosis else (),
        "speedup": speedup(result.engines),
        "int8": int8_layers(result.engines),
        "fix": fix_line(search) if search else "",
        "cheaper": repair_line(cheaper) if cheaper else "",
        "repairs": [repair_line(repair) for repair in repairs if repair is not cheaper],
        "cost": cost_line(search) if search else "",
        "snippets": _snippets(result, texts),
        "files": [(name, _href(name)) for name in result.written],
    }


def _rows(result: CaseResult) -> list[dict[str, Any]]:
    """Missed limits first, then those kept, then what is reported only; with places against the limit."""
    fixed = {(s.subject, s.metric): s for s in result.fixed}
    scores = worst_first(result.scores) + [s for s in result.scores if s.limit is None]
    rows = []
    for score in scores:
        after = fixed.get((score.subject, score.metric))
        places = {"place": score_place(score), "fixed_place": None if after is None else score_place(after)}
        rows.append(score_cells(score, after, ("≥ ", "≤ ")) | places | {"passed": score.passed})
    return rows


def _snippets(result: CaseResult, texts: Mapping[str, str]) -> list[tuple[str, str]]:
    """The fix as text, each with its title: what can be said without files, and the files written."""
    written = [(PurePosixPath(name).name, texts[name]) for name in result.written if name in texts]
    search = result.search
    if search is None or not search.culprits:
        return written
    titles, made = dict(written), []
    if "exclude_nodes.txt" not in titles:
        nodes = [node for culprit in search.culprits for node in culprit.nodes]
        made.append(("nodes to exclude from quantization", "\n".join(nodes) + "\n"))
    if "plan.yaml" not in titles:
        high = [f"  {json.dumps(c.layer, ensure_ascii=False)}: {search.precision}" for c in search.culprits]
        made.append(("plan.yaml", "\n".join(["high:", *high, "scales: {}"]) + "\n"))
    return made + written


def _href(name: str) -> str:
    """A link from the page's own folder on, empty where the file lies elsewhere; ``./``: no address."""
    path = PurePosixPath(name)
    outside = path.is_absolute() or ".." in path.parts or "\\" in name
    return "" if outside else f"./{quote(name, errors='backslashreplace')}"


def time_text(latency: Latency | None) -> str:
    """Like ``1.2 ms (1.1 to 1.4)``; empty where nothing was timed."""
    if latency is None:
        return ""
    low, high = number(latency.low_ms, 3), number(latency.high_ms, 3)
    return f"{number(latency.median_ms, 3)} ms ({low} to {high})"


def size_text(nbytes: int) -> str:
    """Bytes in KiB or MiB."""
    return f"{nbytes / 2**20:.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:.0f} KiB"
