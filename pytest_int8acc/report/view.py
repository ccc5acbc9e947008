"""A report as a page shows it: every text written out, every bar placed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from pytest_int8acc.report.answer import alternatives, cautions, fix_lines, is_failure, own_inputs
from pytest_int8acc.report.catalogue import FILES
from pytest_int8acc.report.course import phases_text
from pytest_int8acc.report.diagnosis import repair_text, rule_line
from pytest_int8acc.report.engines import int8_layers, speedup
from pytest_int8acc.report.json import BAD
from pytest_int8acc.report.labels import metric_label
from pytest_int8acc.report.plain import restore_entry
from pytest_int8acc.report.precision import precision_why
from pytest_int8acc.report.search import cost_line, fix_line, remarks
from pytest_int8acc.report.summary import summary
from pytest_int8acc.report.terminal import said_of
from pytest_int8acc.report.text import headline, most_critical, notes_of
from pytest_int8acc.report.words import drawn_again, number, score_cells, worst_first
from pytest_int8acc.results import CaseResult, Latency, LayerError, Repair, Score, by_rule
from pytest_int8acc.results.causes import Cause
from pytest_int8acc.results.search import PLAN_VERSION

#: Width and height of a histogram in its own units; the axis lies below.
WIDTH, HEIGHT = 480.0, 96.0
_LAYERS = 40
#: How many times the greatest value the axis may reach, to show a scale that is too wide.
_BEYOND = 4.0


def case_views(report: Mapping[str, Any], texts: Mapping[str, str]) -> list[dict[str, Any]]:
    """The cases of a report, bad ones first, each as what its section says; templates know the keys.

    ``texts`` are those of the files that cases have written, by name.
    """
    cases = [_case(f"case-{i}", entry, texts) for i, entry in enumerate(report["cases"], 1)]
    return sorted(cases, key=lambda case: not case["bad"])


def _case(anchor: str, entry: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    result = restore_entry(entry)
    said, message = said_of(entry, most_critical), str(entry.get("message", ""))
    repeats = result is not None and is_failure(message, result)
    return {
        "anchor": anchor,
        "nodeid": entry["nodeid"],
        "verdict": entry["verdict"],
        "bad": entry["verdict"] in BAD,
        "said": said,
        "message": "" if repeats or message.strip() == said else message,
        "seconds": entry["seconds"],
        "settings": str(entry.get("settings", "")),
        "normalized_loss": -1.0,
        "place": None,
        "result": None,
        "why": "",
        "todo": (),
        "alerts": (),
        "int8": "",
        "speedup": None,
        "phases": "",
        "low_format": "",
        **({} if result is None else measured_view(result, texts)),
    }


def measured_view(result: CaseResult, texts: Mapping[str, str]) -> dict[str, Any]:
    """What a page says of a case that was measured; ``texts`` are of the files it has written, by name."""
    judged, search, diagnosis = worst_first(result.scores), result.search, result.diagnosis
    repairs = diagnosis.repairs if diagnosis else ()
    # how much of its limit the worst score uses up, 1 at the limit; -1 where nothing was judged
    worst = max((score.normalized_loss for score in judged), default=-1.0)
    layers = [culprit.layer for culprit in search.culprits] if search else []
    notes = (*search.notes, *remarks(search, repairs)) if search else ()
    fixes = [] if result.passed else fix_lines(result)
    return {
        "result": result,
        "normalized_loss": worst if math.isfinite(worst) else 1e308,
        "place": max((place for s in judged if (place := score_place(s)) is not None), default=None),
        "low_format": result.low_format,
        "why": _why(result),
        "headline": headline(result),
        "todo": [line.partition(": ")[::2] for line in fixes],
        "detail": "" if result.answer is None else repair_detail(result.answer, result.low_format),
        "verified": result.answer.verified if result.answer else bool(search and search.verified),
        "cautions": [*cautions(result), *([] if result.passed else own_inputs(result))],
        "alerts": alerts(result),
        "notes": (*notes_of(result, 2), *notes, *(diagnosis.notes if diagnosis else ())),
        "scores": _rows(result, judged),
        "unjudged": _rows(result, [score for score in result.scores if score.limit is None]),
        "bars": layer_bars(diagnosis.layers, layers) if diagnosis else (),
        "layers": layers,
        "speedup": speedup(result.engines),
        "int8": int8_layers(result.engines),
        "plan": fix_line(search) if search else "",
        "alternatives": alternatives(result),
        "cost": cost_line(search) if search else "",
        "phases": phases_text(result),
        "snippets": _snippets(result),
        **files_by_use(result.written, texts, result.low_format),
    }


def _why(result: CaseResult) -> str:
    """Why the case fails: an engine in another format first."""
    if result.is_misbuilt and result.precision is not None:
        return precision_why(result.precision)
    return summary(result)


def repair_detail(repair: Repair, low_format: str) -> str:
    """What a repair does, and how long its engine takes where that was timed."""
    time = [] if repair.latency is None else [f"takes {time_text(repair.latency)}"]
    return "; ".join([repair_text(repair, low_format), *time])


def alerts(result: CaseResult) -> list[str]:
    """What a case that passes must not hide: its cautions, and what lint warns of."""
    groups = by_rule(f for f in result.findings if f.source == "lint" and f.severity == "warning")
    return [*cautions(result), *map(rule_line, groups)]


def _rows(result: CaseResult, scores: Iterable[Score]) -> list[dict[str, Any]]:
    """A row for each score, with its place against the limit."""
    fixed = {(s.subject, s.metric): s for s in result.fixed}
    rows = []
    for score in scores:
        after = fixed.get((score.subject, score.metric))
        places = {"place": score_place(score), "fixed_place": None if after is None else score_place(after)}
        cells = score_cells(score, after, ("≥ ", "≤ "))
        more = {
            "label": metric_label(score, result.low_format),
            "passed": score.passed,
            "interval": drawn_again(score),
        }
        more |= {"noise": "none"} if score.noise == math.inf and score.bound == "min" else {}
        rows.append(cells | places | more)
    return rows


def _snippets(result: CaseResult) -> list[tuple[str, str]]:
    """The plan of the search as text, each with its title, where no files hold it."""
    search = result.search
    if search is None or not search.culprits or result.written:
        return []
    nodes = [node for culprit in search.culprits for node in culprit.nodes]
    high = [f"  {json.dumps(c.layer, ensure_ascii=False)}: {search.precision}" for c in search.culprits]
    plan = "\n".join([f"version: {PLAN_VERSION}", "high:", *high]) + "\n"
    return [("nodes to exclude from quantization", "\n".join(nodes) + "\n"), ("plan.yaml", plan)]


def files_by_use(
    written: Sequence[str], texts: Mapping[str, str], low_format: str
) -> dict[str, list[dict[str, str]]]:
    """The files of the fix, of the plan of the search, of reproducers, and others, with their texts."""
    uses: dict[str, list[dict[str, str]]] = {"fix": [], "high": [], "reduced": [], "others": []}
    base = next((PurePosixPath(name).parent for name in written if name.endswith("fixed.onnx")), None)
    order = {name: place for place, name in enumerate(FILES)}
    for name in sorted(written, key=lambda name: order.get(PurePosixPath(name).name, len(order))):
        path = PurePosixPath(name)
        inside = base is not None and path.is_relative_to(base)
        short = path.relative_to(base) if inside and base is not None else path
        first = "fix" if inside and len(short.parts) == 1 else short.parts[0] if inside else "others"
        known = {"about": FILES.get(path.name, "").format(format=low_format), "text": texts.get(name, "")}
        file = {"name": str(short), "href": _href(name), **known}
        uses[first if first in uses else "others"].append(file)
    return {f"{use}_files": files for use, files in uses.items()}


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
    engine: str = ""
    """With all in INT8, between engines; empty where they do not show it."""
    skipped: int = 0
    """Layers before it that are left out."""


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
    used = score.normalized_loss
    if used <= 1:
        return 50 * used
    return 100 - 50 / used if math.isfinite(used) else 100.0


def layer_bars(layers: Sequence[LayerError], culprits: Sequence[str]) -> list[Bar]:
    """The layers in the graph's order by the error that each makes alone, as a share of the signal.

    Of many, the culprits and the worst.
    """
    places = sorted(range(len(layers)), key=lambda i: (layers[i].layer not in culprits, _rank(layers[i])))
    kept = sorted(places[:_LAYERS])
    shares = [(_share(layers[i].alone_sqnr_db), _share(layers[i].sqnr_db)) for i in kept]
    longest = max((value for pair in shares for value in pair if math.isfinite(value)), default=0.0) or 1.0
    return [
        Bar(
            label=layer.layer,
            kind=layer.op_type,
            width=_percent(alone / longest),
            rest=_percent(rest / longest),
            text=f"{number(100 * alone, 3)} % ({number(layer.alone_sqnr_db, 3)} dB)",
            engine="" if layer.engine_sqnr_db is None else f"{number(layer.engine_sqnr_db, 3)} dB",
            marked=layer.layer in culprits,
            skipped=i - before - 1,
        )
        for i, before, (alone, rest) in zip(kept, [-1, *kept], shares, strict=False)
        for layer in [layers[i]]
    ]


def _rank(layer: LayerError) -> tuple[bool, float]:
    return not math.isnan(layer.alone_sqnr_db), layer.alone_sqnr_db


def histogram(cause: Cause) -> HistogramChart | None:
    """The values behind a cause, heights in logarithms; None where there are none."""
    values = cause.histogram
    if values is None or not values.counts or len(values.edges) != len(values.counts) + 1:
        return None
    if min(values.counts) < 0:  # in a report that somebody changed
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
