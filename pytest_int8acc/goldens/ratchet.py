"""Limits from accepted scores: scores may become worse than accepted only by as much as the spec allows."""

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
    """Returns a mapping of metric name to how much worse than accepted it may become, in its own unit.

    If several criteria name a metric, the smallest number is used.

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
    """Yields the scores that a golden accepts: every metric that fits an output, and users' metrics.

    A score that would reject nothing as a limit, such as nan, is left out.

    Args:
        judge: The case's own criteria, which say along which axes metrics are computed.
        baseline: The baseline's outputs.
        candidate: The outputs of the low-precision candidate.
        metrics: The scores of users' metrics.
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
    """Yields the name, the baseline's arrays and the candidate's arrays of each output.

    An output that is judged by its parts is replaced by its parts. For an output whose channels with small
    values are also judged by themselves, these channels follow as one more item.
    """
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
    """Returns the limits of ``judge`` on the output ``subject``, or on the output that it is a part of."""
    return limits_for(judge.splitter.whole_of(subject), judge.limits)


def tighten(judge: Judge, regressions_allowed: Mapping[str, float], record: Record | None) -> Judge:
    """Returns a copy of ``judge`` with limits from the accepted scores; limits on users' metrics come last.

    Args:
        judge: The case's own criteria.
        regressions_allowed: The result of :func:`regressions`.
        record: The golden. With None no limits are added, but outputs without a limit get no default limit.

    Raises:
        GoldenError: For one of the metrics, no score was accepted, or the accepted score rejects nothing as a
            limit.
    """
    if not regressions_allowed:
        return judge
    if record is None:
        # An output that only has a regression criterion gets no default limit. This entry without metrics
        # prevents the default.
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
    """Returns the scores of users' metrics with notes that name the accepted scores which serve as limits.

    Args:
        metrics: The scores that ``judge`` gave. Those with a limit from an accepted score come last.
        own: The case's own criteria.
        judge: The case's own criteria, and limits from accepted scores.
        record: The golden.
    """
    start = len(metrics) - len(judge.metrics) + len(own.metrics)
    values = {score.subject: f"accepted {score.value:.6g}" for score in record.scores}
    notes = ["; ".join(filter(None, (s.note, values[s.subject]))) for s in metrics[start:]]
    return *metrics[:start], *(replace(s, note=n) for s, n in zip(metrics[start:], notes, strict=True))


def improvements(
    result: CaseResult, regressions_allowed: Mapping[str, float], record: Record, update: str
) -> list[str]:
    """Returns one note on the scores that have improved on their accepted scores; empty if there are none.

    A score is named if it is better by more than ``regressions_allowed`` lets it become worse. The note
    quotes ``update``, the command that accepts the better scores.
    """
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
    """Returns one note on outputs that are judged by parts, but were accepted as a whole; empty without any.

    The note quotes ``update``, the command that accepts the scores of the parts.
    """
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
    """Yields one score, without a limit that could fail, for each metric that fits the output ``name``.

    ``own`` are the case's own criteria on the output. They give the class axis and other options.
    """
    for metric in METRICS.values():
        like = next((c for c in own if metric.name in c.limits), own[0] if own else OutputLimits(name))
        if metric.name == "tolerance" and metric.name not in like.limits:
            continue  # this metric needs a criterion that says which errors are tolerated
        unlimited = -math.inf if metric.bound == "min" else math.inf
        wish = OutputLimits(name, {metric.name: unlimited}, like.options)
        try:
            comparison = Judge([wish]).compare({name: [*baseline]}, {name: [*candidate]}, judged_only=True)
            yield from comparison.results()[0].scores
        except CriterionError:  # the metric does not fit, or the baseline is not finite
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
    """Returns the limit on a score, like 0.7 if the score 0.8 was accepted and ``amount`` is 0.1.

    Raises:
        GoldenError: The accepted score is nan, or so bad that the limit would reject nothing.
    """
    if not _bounds(score.value, score.bound):
        raise GoldenError(
            f"regression: the accepted {score.subject} {score.metric} is {score.value:g}, which any value "
            "keeps"
        )
    loss = amount
    if amount > 0 and math.isfinite(score.value):  # allows for the rounding of the subtraction
        loss += 4 * sys.float_info.epsilon * abs(score.value)
    return score.value - loss if score.bound == "min" else score.value + loss


def _bounds(value: float, bound: Bound) -> bool:
    """Returns whether the limit ``value`` rejects some scores. NaN and the worst infinity reject none."""
    return not math.isnan(value) and value != (-math.inf if bound == "min" else math.inf)


def _bound(limit: MetricLimit) -> Bound:
    return "max" if limit.lower_is_better else "min"


def _function(ref: str) -> str:
    return ref.rpartition(":")[2]
