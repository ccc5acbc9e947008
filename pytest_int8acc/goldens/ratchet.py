"""The ratchet: a case may not become worse than what was accepted, by more than the spec allows."""

from __future__ import annotations

import glob
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_int8acc.errors import CriterionError, listed
from pytest_int8acc.goldens.record import Accepted, GoldenError, Record
from pytest_int8acc.results import Bound, CaseResult, Score
from pytest_int8acc.scores.criteria import MetricLimit, OutputLimits, limits_for
from pytest_int8acc.scores.judge import Judge
from pytest_int8acc.scores.metrics import METRICS
from pytest_int8acc.scores.user_metric import UserMetric
from pytest_int8acc.spec.criteria import MetricCriterion, RegressionCriterion
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Array, Outputs, did_you_mean


def regressions(case: Case) -> dict[str, float]:
    """Metric name to how much worse than accepted it may become; the strictest where several speak of one.

    Raises:
        CriterionError: There is no such metric.
    """
    functions = [c.ref for c in case.criteria if isinstance(c, MetricCriterion)]
    known = [*METRICS, *(_function(ref) for ref in functions), *functions]
    found: dict[str, float] = {}
    for index, criterion in enumerate(case.criteria):
        if isinstance(criterion, RegressionCriterion):
            for name, amount in criterion.regression.items():
                found[name] = min(amount, found.get(name, math.inf))
                if name in known:
                    continue
                with case.at(f"criteria.{index}.regression.{name}"):
                    raise CriterionError(
                        f"regression: unknown metric '{name}'{did_you_mean(name, known)}; metrics: "
                        f"{', '.join(METRICS)}; your own function needs a criterion "
                        "{metric: file.py:function}"
                    )
    return found


def accepted_scores(
    judge: Judge, baseline: Outputs, candidate: Outputs, metrics: Sequence[Score]
) -> Iterator[Accepted]:
    """Every metric that fits an output, limited or not, and users' metrics; none that bounds nothing.

    ``judge``, the case's own criteria, says along which axes; ``metrics`` are the scores of users' metrics.
    """
    for name, ours, theirs in _compared(judge, baseline, candidate):
        for score in _all_scores(name, ours, theirs, _own_limits(judge, name)):
            if _bounds(score.value, score.bound):
                yield Accepted(subject=name, metric=score.metric, value=score.value, bound=score.bound)
    values = {score.subject: score.value for score in metrics}
    for limit, _ in {limit.ref: (limit, function) for limit, function in judge.metrics}.values():
        bound = _bound(limit)
        if _bounds(value := values.get(limit.ref, math.nan), bound):
            yield Accepted(subject=limit.ref, metric=_function(limit.ref), value=value, bound=bound)


def _compared(
    judge: Judge, baseline: Outputs, candidate: Outputs
) -> Iterator[tuple[str, Sequence[Array], Sequence[Array]]]:
    """Each output, or each of its parts, with both forms' arrays."""
    for name, arrays in baseline.items():
        parts = judge.splitter.parts(name, arrays[0]) if arrays else ()
        unjudged = any(limits.unjudged for limits in limits_for(name, judge.limits))
        if unjudged or not parts:
            yield name, arrays, candidate[name]
            small = judge.splitter.small_channels(name)
            parts = () if unjudged or small is None else (small,)
        for part in parts:
            yield part.name, [part.of(a) for a in arrays], [part.of(a) for a in candidate[name]]


def _own_limits(judge: Judge, subject: str) -> list[OutputLimits]:
    """The case's own criteria for an output, or for a part of one."""
    return limits_for(judge.splitter.whole_of(subject), judge.limits)


def tighten(judge: Judge, regressions_allowed: Mapping[str, float], record: Record | None) -> Judge:
    """``judge`` with the accepted scores as further limits, those on users' metrics last.

    Args:
        judge: The case's own criteria.
        regressions_allowed: From :func:`regressions`.
        record: The golden; None sets no limits, and keeps the default ones away all the same.

    Raises:
        GoldenError: No score was accepted for one of the metrics, or one that any value keeps.
    """
    if not regressions_allowed:
        return judge
    if record is None:
        # An output that only has a regression gets no default limit: a limit without metrics stands for it.
        return replace(judge, limits=(*judge.limits, OutputLimits("*")))
    limits: list[OutputLimits] = []
    metrics: list[tuple[MetricLimit, UserMetric]] = []
    for name, amount in regressions_allowed.items():
        of_outputs = list(_output_limits(judge, name, amount, record))
        of_users = list(_metric_limits(judge, name, amount, record))
        if not of_outputs and not of_users:
            raise GoldenError(
                f"regression: no score of '{name}' was accepted; it fits no output, or the golden is older"
            )
        limits += of_outputs
        metrics += of_users
    return replace(judge, limits=(*judge.limits, *limits), metrics=(*judge.metrics, *metrics))


def named(metrics: Sequence[Score], own: Judge, judge: Judge, record: Record) -> tuple[Score, ...]:
    """Users' metrics as ``judge``, ``own`` tightened, gave them; those added say what was accepted."""
    start = len(metrics) - len(judge.metrics) + len(own.metrics)
    values = {score.subject: f"accepted {score.value:.6g}" for score in record.scores}
    notes = ["; ".join(filter(None, (s.note, values[s.subject]))) for s in metrics[start:]]
    return *metrics[:start], *(replace(s, note=n) for s, n in zip(metrics[start:], notes, strict=True))


def improvements(
    result: CaseResult, regressions_allowed: Mapping[str, float], record: Record, update: str
) -> list[str]:
    """A note where scores are better than accepted by more than their tolerance."""
    now = {(score.subject, score.metric): score.value for score in result.scores}
    better = []
    for score in record.scores:
        amount = regressions_allowed.get(score.metric, regressions_allowed.get(score.subject))
        value = now.get(score.key)
        if amount is None or value is None:
            continue
        gain = value - score.value if score.bound == "min" else score.value - value
        if gain > amount:
            better.append(f"{score.subject} {score.metric} {score.value:.6g} -> {value:.6g}")
    return [f"better than accepted: {', '.join(better)}; to hold on to it: {update}"] if better else []


def unaccepted_parts(
    result: CaseResult, regressions_allowed: Mapping[str, float], record: Record, update: str
) -> list[str]:
    """A note on outputs that are judged by their parts, where the golden accepts them as a whole."""
    accepted = {score.subject for score in record.scores}
    new = [o for o in result.outputs if o.part_of and o.name not in accepted and o.part_of in accepted]
    wholes = list(dict.fromkeys(output.part_of for output in new))
    if not new or not regressions_allowed:
        return []
    return [
        f"the golden accepts {listed(wholes)} as a whole, which is judged by its parts now "
        f"({', '.join(repr(output.name) for output in new)}); to accept the scores of the parts: {update}"
    ]


def _all_scores(
    name: str, baseline: Sequence[Array], candidate: Sequence[Array], own: Sequence[OutputLimits]
) -> Iterator[Score]:
    """One score for each metric that fits, along the axes of the case's own criteria."""
    for metric in METRICS.values():
        like = next((c for c in own if metric.name in c.limits), own[0] if own else OutputLimits(name))
        if metric.name == "tolerance" and like.tolerance is None:
            continue  # of which tolerance nobody says
        unlimited = -math.inf if metric.bound == "min" else math.inf
        wish = OutputLimits(
            name, like.axis, {metric.name: unlimited}, like.rel_floor, tolerance=like.tolerance
        )
        try:
            comparison = Judge([wish]).compare({name: [*baseline]}, {name: [*candidate]}, judged_only=True)
            yield from comparison.results()[0].scores
        except CriterionError:  # it does not fit, or the baseline is not finite and nothing asks for it
            continue


def _output_limits(judge: Judge, name: str, amount: float, record: Record) -> Iterator[OutputLimits]:
    references = {limit.ref for limit, _ in judge.metrics}
    for score in record.scores:
        if score.metric != name or name not in METRICS or score.subject in references:
            continue
        own = _own_limits(judge, score.subject)
        like = next((c for c in own if name in c.limits), own[0] if own else OutputLimits(score.subject))
        note = f"accepted {score.value:.6g}, may lose {amount:g}"
        limit = {name: _limit(score, amount)}
        yield replace(like, output=glob.escape(score.subject), limits=limit, note=note, accepted=True)


def _metric_limits(
    judge: Judge, name: str, amount: float, record: Record
) -> Iterator[tuple[MetricLimit, UserMetric]]:
    accepted = {score.subject: score for score in record.scores}
    for limit, function in {limit.ref: (limit, function) for limit, function in judge.metrics}.values():
        score = accepted.get(limit.ref)
        if score is None or name not in (limit.ref, _function(limit.ref)):
            continue
        bar, least = _limit(score, amount), _bound(limit) == "min"
        low, high = (bar, None) if least else (None, bar)
        yield replace(limit, min=low, max=high, max_drop=None, max_drop_relative=None), function


def _limit(score: Accepted, amount: float) -> float:
    """The limit on a score: 0.7 where 0.8 was accepted and 0.1 may be lost.

    Raises GoldenError where any value would be kept.
    """
    if not _bounds(score.value, score.bound):
        raise GoldenError(
            f"regression: the accepted {score.subject} {score.metric} is {score.value:g}, which any value "
            "keeps"
        )
    loss = amount
    if amount > 0 and math.isfinite(score.value):  # the subtraction rounds
        loss += 4 * sys.float_info.epsilon * abs(score.value)
    return score.value - loss if score.bound == "min" else score.value + loss


def _bounds(value: float, bound: Bound) -> bool:
    """Whether a score as a limit excludes anything: nan and the worst infinity do not."""
    return not math.isnan(value) and value != (-math.inf if bound == "min" else math.inf)


def _bound(limit: MetricLimit) -> Bound:
    return "max" if limit.lower_is_better else "min"


def _function(ref: str) -> str:
    return ref.rpartition(":")[2]
