"""Makes the texts on a verdict: its line, its worst score, cautions, and facts for other tools.

The report on a passing case needs no other texts. So that such a report is made fast, this module does not
import the modules on causes and fixes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pytest_int8acc.report.catalogue import PHASES
from pytest_int8acc.report.cautions import cautions, precision_text, problems, warnings
from pytest_int8acc.report.plain import to_plain
from pytest_int8acc.report.words import (
    NAME,
    WIDTH,
    count,
    fitted,
    name_of,
    number,
    quoted,
    relation,
    worst_first,
)
from pytest_int8acc.results import CaseResult, Doing, Latency, Role, Score
from pytest_int8acc.results.scores import score_name

#: The first line on a failed case consists of its low format, this text, and the worst missed limit.
FAILURE = " accuracy: "


@dataclass(frozen=True)
class VerdictView:
    """All sentences about the verdict on one case: the missed limits, and reasons to doubt the verdict."""

    result: CaseResult

    @property
    def low_format(self) -> str:
        """The format that the case is about, like ``INT8``."""
        return self.result.low_format

    @cached_property
    def precision(self) -> str:
        """A text on the share of the multiply-accumulates in each format, as requested and as run.

        Empty if the shares are not known.
        """
        return "" if self.result.precision is None else precision_text(self.result.precision)

    def misses(self, most: int | None = None) -> list[str]:
        """Returns a text on each reason why the case fails: problems, then missed limits, the worst first.

        Names in the texts have at most ``most`` characters.
        """
        texts = problems(self.result)
        for output in self.result.outputs:
            if output.problem:
                texts.append(f"{quoted(output.name, most)}: {output.problem}")
        return texts + [relation(score, most) for score in self.judged if not score.passed]

    @cached_property
    def judged(self) -> list[Score]:
        """The scores that have a limit, the worst first."""
        return worst_first(self.result.scores)

    @cached_property
    def failure_line(self) -> str:
        """The first line on a failed case: the worst missed limit, and the number of other missed limits."""
        note = self.judged[0].note if self.judged else ""
        if note and self.misses(NAME)[0] == relation(self.judged[0], NAME):
            line = self.low_format + FAILURE + self._worst_miss(note)
            if len(line) <= WIDTH:
                return line
        return self.low_format + FAILURE + self._worst_miss()

    def _worst_miss(self, note: str = "") -> str:
        misses = self.misses(NAME)
        more = [note] if note else []
        if len(misses) > 1:
            also = [score.metric for score in self.judged[1:] if not score.passed]
            name = f": {also[0]}" if len(misses) == 2 and len(also) == 1 else ""
            more.append(f"+{len(misses) - 1} more missed{name}")
        end = f" ({'; '.join(more)})" if more else ""
        if note:
            return misses[0] + end
        return fitted(misses[0], WIDTH - len(FAILURE) - 4 - len(end)) + end

    def brief_misses(self) -> Iterator[str]:
        """Yields shorter and shorter variants of the first line on a failed case.

        The last one consists of the worst score and its limit.
        """
        yield self.failure_line
        yield self._worst_miss()
        yield from (self.misses(most)[0] for most in (NAME, 24, 12))
        for score in self.judged[:1]:
            brief = relation(score, 12)
            if self.misses(12)[0] == brief:
                yield brief.removeprefix(name_of(score, 12)).strip()

    @cached_property
    def most_critical(self) -> str:
        """A text on the worst missed limit, with the number of other missed limits.

        For a passing case: a text on the score that is nearest to its limit, with its margin.
        """
        if not self.result.passed:
            return self._worst_miss()
        if not self.judged:
            return "no limits"
        score = self.judged[0]
        return f"{relation(score, NAME)} (margin {number(score.margin or 0.0, 2)})"

    @cached_property
    def status(self) -> str:
        """One line with the worst score, the backend, the formats that ran, and the worst caution."""
        parts = [f"{self.most_critical}, {self.result.backend}"]
        if self.result.precision is not None:
            parts.append(self.precision)
        if self.cautions:
            worst = fitted(self.cautions[0], 2 * WIDTH)
            many = len(self.cautions)
            parts.append(
                f"{many} warnings (-v tells all), the worst: {worst}" if many > 1 else f"warning: {worst}"
            )
        return "; ".join(parts)

    @cached_property
    def warnings(self) -> list[str]:
        """Texts on those reasons to doubt the verdict that were known before the search for causes.

        A text on layers that ran in another format than requested comes first.
        """
        return warnings(self.result)

    @cached_property
    def cautions(self) -> list[str]:
        """Texts on all reasons to doubt the verdict, the worst first."""
        return cautions(self.result)

    def latency(self, role: Role) -> Latency | None:
        """Returns the latency of the engine with the role ``role`` in the case; None if it was not timed."""
        return next((engine.latency for engine in self.result.engines if engine.role == role), None)

    @property
    def speedup(self) -> float | None:
        """The baseline's median latency divided by that of the candidate's engine; None if not timed."""
        return latency_ratio(self.latency(Role.BASELINE), self.latency(Role.INT8))

    @property
    def int8_layers(self) -> str:
        """Text like ``45 of 54``: how many of the engine's layers with weights run in the low format.

        Empty if this is not known.
        """
        for engine in self.result.engines:
            if engine.role == Role.INT8 and engine.weighted:
                untold = f", {engine.untold} untold" if engine.untold else ""
                return f"{engine.int8} of {engine.weighted}{untold}"
        return ""

    @property
    def acceptances(self) -> list[str]:
        """A line on each score that this run wrote into the golden, a file of accepted scores.

        An example is ``accepted y cosine: 0.99 -> 0.98``.
        """
        lines = []
        for accepted in self.result.recorded or ():
            before, now = ("none" if v is None else f"{v:.6g}" for v in (accepted.before, accepted.now))
            lines.append(f"accepted {score_name(accepted.subject, accepted.metric)}: {before} -> {now}")
        return lines


def latency_ratio(baseline: Latency | None, latency: Latency | None) -> float | None:
    """Returns how many times as fast as the baseline an engine with ``latency`` is; None if not timed."""
    if baseline is None or latency is None or latency.median_ms <= 0:
        return None
    return baseline.median_ms / latency.median_ms


def properties(view: VerdictView) -> list[tuple[str, object]]:
    """Returns entries of ``user_properties`` for pytest's report: scores, a summary line, and the result."""
    result = view.result
    scores = [(f"int8acc.{score.subject}.{score.metric}", to_plain(score.value)) for score in result.scores]
    facts: list[tuple[str, object]] = [("int8acc.passed", result.passed)]
    if view.int8_layers:
        facts.append(("int8acc.int8_layers", view.int8_layers))
    if view.speedup is not None:
        facts.append(("int8acc.speedup", round(view.speedup, 4)))
    details = json.dumps(to_plain(result), allow_nan=False)
    return [*scores, *facts, ("int8acc.summary", view.status), ("int8acc.details", details)]


def status_line(nodeid: str, properties: Mapping[str, Any], message: str) -> str:
    """Returns one line on a case: its node id, and its summary or the message on why it was not measured.

    ``properties`` are the ``user_properties`` of the case's report, which may have a summary.
    """
    said = properties.get("int8acc.summary", message)
    return f"{nodeid} - {said}" if said else nodeid


def progress_line(name: str, doing: Doing, seconds: float, result: CaseResult | None) -> str:
    """Returns what a case is doing, like ``net: FAILED so far, 'y' cosine 0.9 < 0.99; calibrating, 8 s``.

    Args:
        name: The name of the case.
        doing: The phase of the case, and its progress.
        seconds: The time since the case began, in seconds.
        result: The result so far; None before the verdict.
    """
    parts = []
    if result is not None:
        verdict = "PASSED" if result.passed else "FAILED so far"
        parts.append(f"{verdict}, {VerdictView(result).most_critical}; ")
    parts.append(PHASES[doing.phase])
    if doing.total is not None:
        parts.append(f", {doing.done} of {count(doing.total, doing.thing)}")
    elif doing.thing:
        parts.append(f", {count(doing.done, doing.thing)}")
    return f"{name}: {''.join(parts)}, {seconds:.0f} s"
