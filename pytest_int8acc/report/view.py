"""A report as a page shows it: every text written out, every bar placed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from pytest_int8acc.report.charts import Bar, HistogramChart, histogram, layer_bars, score_place
from pytest_int8acc.report.diagnosis import cheaper_fix, repair_line, worst_findings
from pytest_int8acc.report.engines import int8_layers, speedup
from pytest_int8acc.report.json import BAD, RANK
from pytest_int8acc.report.plain import restore_entry
from pytest_int8acc.report.search import alone_text, cost_line, fix_line, remarks
from pytest_int8acc.report.summary import summary
from pytest_int8acc.report.terminal import said_of
from pytest_int8acc.report.text import headline, most_critical, notes_of, warnings_of
from pytest_int8acc.report.words import number, value_and_limit, worst_first
from pytest_int8acc.results import CaseResult, Culprit, EngineInfo, Finding, Score


@dataclass(frozen=True)
class ScoreRow:
    """A score and where it lies against its limit."""

    subject: str
    metric: str
    value: str
    limit: str
    noise: str
    baseline: str
    fixed: str
    passed: bool
    place: float | None
    """0 to 100, the limit at 50; None without a limit."""
    fixed_place: float | None


@dataclass(frozen=True)
class CulpritCard:
    """A culprit and the values behind its cause."""

    culprit: Culprit
    alone: str
    price: str
    chart: HistogramChart | None
    numbers: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Snippet:
    """Text to be copied."""

    title: str
    text: str


@dataclass(frozen=True)
class FileLink:
    """A file of the report folder; no ``href`` where it lies elsewhere."""

    name: str
    href: str


@dataclass(frozen=True)
class CaseView:
    """One case of the page; of one that was not measured ``result`` is None."""

    anchor: str
    nodeid: str
    verdict: str
    said: str
    message: str
    seconds: float
    settings: str
    strain: float
    """Of its worst score: 1 at the limit; -1 where nothing was judged."""
    place: float | None
    result: CaseResult | None = None
    why: str = ""
    headline: str = ""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    scores: tuple[ScoreRow, ...] = ()
    culprits: tuple[CulpritCard, ...] = ()
    bars: tuple[Bar, ...] = ()
    findings: tuple[Finding, ...] = ()
    engines: tuple[tuple[EngineInfo, str, str], ...] = ()
    """Each with its median time and its size."""
    speedup: float | None = None
    int8: str = ""
    fix: str = ""
    cheaper: str = ""
    repairs: tuple[str, ...] = ()
    """The other ways to meet the criteria."""
    cost: str = ""
    snippets: tuple[Snippet, ...] = ()
    files: tuple[FileLink, ...] = ()

    @property
    def bad(self) -> bool:
        """The case makes the run fail."""
        return self.verdict in BAD


def case_views(report: Mapping[str, Any], texts: Mapping[str, str]) -> list[CaseView]:
    """The cases of a report.

    Args:
        report: As read from ``report.json``.
        texts: Of the files that cases have written, by name.

    Raises:
        Int8accError: An entry is none of ours.
    """
    return [_case(f"case-{i}", entry, texts) for i, entry in enumerate(report["cases"], 1)]


def measured_view(result: CaseResult) -> CaseView:
    """A result by itself."""
    frame: dict[str, Any] = {"nodeid": result.name, "verdict": "passed" if result.passed else "failed"}
    frame |= {"anchor": "", "said": "", "message": "", "seconds": result.seconds, "settings": ""}
    return CaseView(**frame, **_measured(result, {}))


def tallies(report: Mapping[str, Any]) -> list[tuple[str, int]]:
    """How many cases have each verdict, the worst first."""
    verdicts = [entry["verdict"] for entry in report["cases"]]
    return [(verdict, n) for verdict in reversed(RANK) if (n := verdicts.count(verdict))]


def _case(anchor: str, entry: Mapping[str, Any], texts: Mapping[str, str]) -> CaseView:
    result = restore_entry(entry)
    said = said_of(entry, most_critical)
    message = str(entry.get("message", ""))
    frame: dict[str, Any] = {
        "anchor": anchor,
        "nodeid": entry["nodeid"],
        "verdict": entry["verdict"],
        "said": said,
        "message": message if message.strip() != said and _tells(message, result) else "",
        "seconds": entry["seconds"],
        "settings": str(entry.get("settings", "")),
        "strain": -1.0,
        "place": None,
    }
    return CaseView(**frame) if result is None else CaseView(**frame | _measured(result, texts))


def _tells(message: str, result: CaseResult | None) -> bool:
    """A message says something that the result does not."""
    return result is None or not message.startswith("INT8 accuracy")


def _measured(result: CaseResult, texts: Mapping[str, str]) -> dict[str, Any]:
    """What a view holds of a case that was measured."""
    judged = worst_first(result.scores)
    search, diagnosis = result.search, result.diagnosis
    culprits = search.culprits if search else ()
    cheaper = cheaper_fix(result)
    worst = max((score.strain for score in judged), default=-1.0)
    return {
        "result": result,
        "strain": worst if math.isfinite(worst) else 1e308,
        "place": max((place for s in judged if (place := score_place(s)) is not None), default=None),
        "why": summary(result),
        "headline": headline(result),
        "warnings": tuple(warnings_of(result)),
        "notes": (*notes_of(result, 2), *_search_notes(result), *_diagnosis_notes(result)),
        "scores": _rows(result),
        "culprits": tuple(map(_card, culprits)),
        "bars": tuple(layer_bars(diagnosis.layers, [c.layer for c in culprits])) if diagnosis else (),
        "findings": tuple(worst_findings(result.findings)),
        "engines": tuple((engine, _time(engine), _size(engine.nbytes)) for engine in result.engines),
        "speedup": speedup(result.engines),
        "int8": int8_layers(result.engines),
        "fix": fix_line(search) if search else "",
        "cheaper": repair_line(cheaper) if cheaper else "",
        "repairs": tuple(repair_line(r) for r in diagnosis.repairs if r is not cheaper) if diagnosis else (),
        "cost": cost_line(search) if search else "",
        "snippets": tuple(_snippets(result, texts)),
        "files": tuple(map(_link, result.written)),
    }


def _rows(result: CaseResult) -> tuple[ScoreRow, ...]:
    """Missed limits first, then those kept, then what is reported only."""
    fixed = {(s.subject, s.metric): s for s in result.fixed}
    scores = worst_first(result.scores) + [s for s in result.scores if s.limit is None]
    return tuple(_row(score, fixed.get((score.subject, score.metric))) for score in scores)


def _row(score: Score, fixed: Score | None) -> ScoreRow:
    value, limit = number(score.value), ""
    if score.limit is not None:
        value, limit = value_and_limit(score, score.limit)
        limit = ("≥ " if score.bound == "min" else "≤ ") + limit
    return ScoreRow(
        subject=score.subject,
        metric=score.metric,
        value=value,
        limit=limit,
        noise="" if score.noise is None else number(score.noise, 2),
        baseline="" if score.baseline is None else number(score.baseline),
        fixed="" if fixed is None else number(fixed.value),
        passed=score.passed,
        place=score_place(score),
        fixed_place=None if fixed is None else score_place(fixed),
    )


def _card(culprit: Culprit) -> CulpritCard:
    cause = culprit.cause
    numbers = cause.numbers if cause else {}
    return CulpritCard(
        culprit=culprit,
        alone=alone_text(culprit),
        price=f"{culprit.price:.1%}",
        chart=histogram(cause) if cause else None,
        numbers=tuple((name, number(value)) for name, value in numbers.items()),
    )


def _snippets(result: CaseResult, texts: Mapping[str, str]) -> list[Snippet]:
    """The fix as text: the files written, and what can be said without them."""
    written = [Snippet(PurePosixPath(name).name, texts[name]) for name in result.written if name in texts]
    search = result.search
    if search is None or not search.culprits:
        return written
    titles = {snippet.title for snippet in written}
    made = []
    if "exclude_nodes.txt" not in titles:
        nodes = [node for culprit in search.culprits for node in culprit.nodes]
        made.append(Snippet("nodes to exclude from quantization", "\n".join(nodes) + "\n"))
    if "plan.yaml" not in titles:
        high = [f"  {json.dumps(c.layer, ensure_ascii=False)}: {search.precision}" for c in search.culprits]
        made.append(Snippet("plan.yaml", "\n".join(["high:", *high, "scales: {}"]) + "\n"))
    return made + written


def _link(name: str) -> FileLink:
    """A link from the page's own folder on; ``./`` keeps a name from being read as an address."""
    path = PurePosixPath(name)
    outside = path.is_absolute() or ".." in path.parts or "\\" in name
    return FileLink(name, "" if outside else f"./{quote(name, errors='backslashreplace')}")


def _search_notes(result: CaseResult) -> Sequence[str]:
    if result.search is None:
        return ()
    return *result.search.notes, *remarks(result.search, result.diagnosis.repairs if result.diagnosis else ())


def _diagnosis_notes(result: CaseResult) -> Sequence[str]:
    return result.diagnosis.notes if result.diagnosis else ()


def _time(engine: EngineInfo) -> str:
    latency = engine.latency
    if latency is None:
        return ""
    low, high = number(latency.low_ms, 3), number(latency.high_ms, 3)
    return f"{number(latency.median_ms, 3)} ms ({low} to {high})"


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:.0f} KiB"
