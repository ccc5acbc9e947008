"""A report as a page shows it: every text written out, every bar placed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from pytest_int8acc.report.answer import FAILURES
from pytest_int8acc.report.course import phases_text, stop_text
from pytest_int8acc.report.diagnosis import cheaper_fix, repair_line, worst_layers
from pytest_int8acc.report.engines import int8_layers, speedup
from pytest_int8acc.report.json import BAD
from pytest_int8acc.report.plain import restore_entry
from pytest_int8acc.report.search import cost_line, fix_line, remarks
from pytest_int8acc.report.summary import summary
from pytest_int8acc.report.terminal import said_of
from pytest_int8acc.report.text import headline, most_critical, notes_of, warnings_of
from pytest_int8acc.report.words import all_in_low, number, score_cells, worst_first
from pytest_int8acc.results import CaseResult, Latency, LayerError, Score
from pytest_int8acc.results.causes import Cause

#: Width and height of a histogram in its own units; the axis lies below.
WIDTH, HEIGHT = 480.0, 96.0
_LAYERS = 40
#: How many times the greatest value the axis may reach, to show a scale that is too wide.
_BEYOND = 4.0
#: What of a view holds no sentences of ours.
_AS_IT_IS = frozenset({"result", "snippets", "files", "bars"})


def case_views(report: Mapping[str, Any], texts: Mapping[str, str]) -> list[dict[str, Any]]:
    """The cases of a report, each as what its section says beside the result; templates know the keys.

    ``texts`` are those of the files that cases have written, by name.

    Raises:
        Int8accError: An entry is none of ours.
    """
    return [_case(f"case-{i}", entry, texts) for i, entry in enumerate(report["cases"], 1)]


def _case(anchor: str, entry: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    result = restore_entry(entry)
    said, message = said_of(entry, most_critical), str(entry.get("message", ""))
    repeats = result is not None and message.startswith(FAILURES)
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
        "phases": "",
        **({} if result is None else measured_view(result, texts)),
    }


def measured_view(result: CaseResult, texts: Mapping[str, str]) -> dict[str, Any]:
    """What a page says of a case that was measured; ``texts`` are of the files it has written, by name."""
    said = _said_of_measured(result, texts)
    return {key: value if key in _AS_IT_IS else all_in_low(value, result.low) for key, value in said.items()}


def _said_of_measured(result: CaseResult, texts: Mapping[str, str]) -> dict[str, Any]:
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
        "stopped": stop_text(result.stopped) if result.stopped else "",
        "phases": phases_text(result),
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
        made.append(("plan.yaml", "\n".join(["version: 2", "high:", *high]) + "\n"))
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


@dataclass(frozen=True)
class Bar:
    """A bar of a chart of layers."""

    label: str
    kind: str
    width: float
    """In percent."""
    rest: float
    """In percent: the error with everything in INT8."""
    text: str
    marked: bool
    """A culprit."""


@dataclass(frozen=True)
class Mark:
    """A vertical line on a histogram; ``beyond``: it lies off the right edge."""

    x: float
    text: str
    beyond: bool = False

    @property
    def anchor(self) -> str:
        """Which end of the text stands at the line."""
        return "end" if self.x > WIDTH / 2 else "start"


@dataclass(frozen=True)
class Bin:
    """A bar of a histogram."""

    x: float
    y: float
    width: float
    height: float
    clipped: bool
    """Its values lie beyond what the scale can express."""


@dataclass(frozen=True)
class HistogramChart:
    """The absolute values of one tensor, and how far its scale reaches."""

    title: str
    bins: tuple[Bin, ...]
    amax: Mark | None
    reach: Mark | None
    right: str
    """The value at the right edge."""
    used: float | None
    """Share of the scale's reach that the values take, in percent; None where they go beyond it."""


def score_place(score: Score) -> float | None:
    """Where a judged score lies between 0 (perfect), 50 (its limit) and 100 (infinitely off)."""
    if score.limit is None:
        return None
    used = score.strain
    if used <= 1:
        return 50 * used
    return 100 - 50 / used if math.isfinite(used) else 100.0


def layer_bars(layers: Sequence[LayerError], culprits: Sequence[str]) -> list[Bar]:
    """The worst layers by the error that each makes alone, as a share of the signal."""
    ranked = worst_layers(layers)[:_LAYERS]
    shares = [(_share(layer.alone_sqnr_db), _share(layer.sqnr_db)) for layer in ranked]
    longest = max((value for pair in shares for value in pair if math.isfinite(value)), default=0.0) or 1.0
    between = "; {} dB between engines, all in INT8"
    return [
        Bar(
            label=layer.layer,
            kind=layer.op_type,
            width=_percent(alone / longest),
            rest=_percent(rest / longest),
            text=f"{number(100 * alone, 3)}% ({number(layer.alone_sqnr_db, 3)} dB"
            + ("" if layer.engine_sqnr_db is None else between.format(number(layer.engine_sqnr_db, 3)))
            + ")",
            marked=layer.layer in culprits,
        )
        for layer, (alone, rest) in zip(ranked, shares, strict=True)
    ]


def histogram(cause: Cause) -> HistogramChart | None:
    """The values behind a cause, heights in logarithms; None where there are none."""
    values = cause.histogram
    if values is None or not values.counts or len(values.edges) != len(values.counts) + 1:
        return None
    amax = cause.amax if cause.amax is not None else values.edges[-1]
    reach = cause.reach
    right = max(values.edges[-1], min(reach or 0.0, _BEYOND * amax))
    if not (math.isfinite(right) and right > 0):
        return None
    tallest = math.log1p(max(values.counts)) or 1.0
    bins = []
    for low, high, n in zip(values.edges, values.edges[1:], values.counts, strict=False):
        tall = HEIGHT * math.log1p(n) / tallest
        x, width = WIDTH * low / right, max(WIDTH * (high - low) / right - 0.5, 0.5)
        bins.append(Bin(x, HEIGHT - tall, width, tall, reach is not None and low >= reach))
    return HistogramChart(
        title=cause.tensor,
        bins=tuple(bins),
        amax=_mark(amax, right, "largest value"),
        reach=None if reach is None else _mark(reach, right, "scale reaches"),
        right=number(right, 3),
        used=_percent(amax / reach) if reach and amax <= reach else None,
    )


def _mark(value: float, right: float, what: str) -> Mark | None:
    if not math.isfinite(value):
        return None
    text = f"{what} {number(value, 3)}"
    return Mark(WIDTH * min(value / right, 1.0), text, beyond=value > right)


def _share(sqnr_db: float) -> float:
    """Root of the noise's share of the signal; inf where it cannot be computed."""
    if math.isnan(sqnr_db):
        return math.inf
    return float(10 ** min(-sqnr_db / 20, 300))


def _percent(share: float) -> float:
    return round(100 * min(max(share, 0.0), 1.0), 2) if not math.isnan(share) else 0.0
