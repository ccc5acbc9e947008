"""A case's criteria tried on dead candidates: a pass says something only where these fail."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pytest_int8acc.errors import CriterionError
from pytest_int8acc.results import OutputResult, Score
from pytest_int8acc.results.scores import DEFAULT_SQNR_DB, BlindSpots, ChanceMetric, DeadCandidate
from pytest_int8acc.scores.criteria import MetricLimit, OutputLimits, limits_for
from pytest_int8acc.scores.dead import FEWEST, Spread, dead_candidates, derangement, differs, distinct
from pytest_int8acc.scores.judge import Comparison, Judge
from pytest_int8acc.scores.metrics import METRICS
from pytest_int8acc.scores.user_metric import MetricRun, metric_scores
from pytest_int8acc.tensors import Array, Feed, Part

_Samples = Mapping[str, list[Array]]
#: A limit that is proposed lies this far above what the dead candidates reach, in dB.
_ABOVE_DB = 6.0
#: How often outputs are dealt to other samples, to see what a metric gives by chance.
_DEALS = 5


def try_criteria(judge: Judge, spread: Spread, outputs: Sequence[OutputResult]) -> BlindSpots | None:
    """Tries the criteria of a case that passes on outputs of no use.

    Args:
        judge: The case's criteria, with the labels of all samples.
        spread: Some samples of the baseline's outputs.
        outputs: How the case's own candidate was judged.

    Returns:
        What keeps all criteria though it is dead, and metrics whose baseline is at chance; None where there
        are too few distinct samples to tell.
    """
    kept = spread.samples()
    if not kept or len(spread.indices) < FEWEST or distinct(kept) < FEWEST:
        return None
    trial = _Trial(judge.of_rows(spread.indices), kept)
    parts = {output.name: judge.splitter.part(output.name) for output in outputs}
    limited = {output.name for output in outputs if any(score.limit is not None for score in output.scores)}
    judged = {name: part for name, part in parts.items() if name in limited}
    by_metrics = {name: part for name, part in parts.items() if name not in limited and judge.metrics}
    undetected = []
    for kind, about, candidate in dead_candidates(kept, judged, trial.class_axes(judged), by_metrics):
        known = kind == "shifted" and DeadCandidate("replaced", about) in undetected
        if not known and differs(kept, candidate) and trial.keeps(candidate):
            undetected.append(DeadCandidate(kind, about))
    chance = tuple(trial.at_chance())
    weighty = [dead for dead in undetected if dead.is_fatal]
    catching = trial.limits_that_catch(outputs) if weighty else []
    remedy = next((score for score in catching if score.passed), None)
    too_near = catching[0] if catching and remedy is None else None
    return BlindSpots(tuple(undetected), chance, remedy, too_near) if undetected or chance else None


@dataclass(frozen=True, eq=False)
class _Trial:
    """Criteria and some samples of the baseline that they are tried on."""

    judge: Judge
    baseline: _Samples

    def keeps(self, candidate: _Samples) -> bool:
        """Whether a candidate keeps all criteria; a function that fails on it has caught it."""
        try:
            if not all(output.passed for output in self._compared(self.judge.limits, candidate)):
                return False
            return all(score.passed for index in self._metrics for score in self._scores(index, candidate))
        except CriterionError:
            return False

    def _batches(self, candidate: _Samples) -> Iterator[tuple[range, Feed, Feed]]:
        """Which samples, and both forms' outputs of them: all at once, or one by one where shapes differ."""
        whole, count = self._whole, len(next(iter(self.baseline.values())))
        if whole is not None and all(len(_shapes(arrays)) == 1 for arrays in candidate.values()):
            changed = {n: arrays for n, arrays in candidate.items() if arrays is not self.baseline[n]}
            yield range(count), whole, {**whole, **{n: np.concatenate(a) for n, a in changed.items()}}
            return
        for place in range(count):
            ours, theirs = (
                {name: arrays[place] for name, arrays in form.items()} for form in (self.baseline, candidate)
            )
            yield range(place, place + 1), ours, theirs

    @cached_property
    def _whole(self) -> Feed | None:
        """The baseline's samples together; None where their shapes differ."""
        if any(len(_shapes(arrays)) != 1 for arrays in self.baseline.values()):
            return None
        return {name: np.concatenate(arrays) for name, arrays in self.baseline.items()}

    def _compared(self, limits: Sequence[OutputLimits], candidate: _Samples) -> Sequence[OutputResult]:
        found = Comparison(replace(self.judge, limits=limits), judged_only=True, metrics=False)
        for _, ours, theirs in self._batches(candidate):
            found.add(ours, theirs)
        return found.results()

    @property
    def _metrics(self) -> range:
        return range(len(self.judge.metrics))

    def _fed(self, index: int, candidate: _Samples) -> MetricRun:
        limit, function = self.judge.metrics[index]
        run = MetricRun(limit, function, self.judge.labels)
        for samples, ours, theirs in self._batches(candidate):
            run.add(ours, theirs, samples)
        return run

    @cached_property
    def _references(self) -> list[float]:
        """What each metric gives for the baseline of these samples."""
        runs = [self._fed(index, self.baseline) for index in self._metrics]
        return [run.reference("the baseline's outputs") for run in runs]

    def _scores(self, index: int, candidate: _Samples) -> tuple[Score, ...]:
        limit: MetricLimit = self.judge.metrics[index][0]
        return metric_scores(limit, self._references[index], self._fed(index, candidate))

    def class_axes(self, judged: Mapping[str, Part | None]) -> dict[str, int]:
        """The axis of classes of each output that is judged by its greatest class, or looks like classes."""
        axes = {}
        for name, part in judged.items():
            first = self._arrays(name, part)[0]
            by_class = [
                limits.axis
                for limits in limits_for(name if part is None else part.output, self.judge.limits)
                if any(METRICS[metric].measure.by_axis for metric in limits.limits)
            ]
            if by_class:
                axes[name] = by_class[0]
            elif first.ndim == 2 and first.shape[1] > 1 and first.dtype.kind == "f":
                axes[name] = 1
        return axes

    def _arrays(self, name: str, part: Part | None) -> list[Array]:
        """The baseline's samples of an output, or of a part of one."""
        return self.baseline[name] if part is None else [part.of(a) for a in self.baseline[part.output]]

    def at_chance(self) -> Iterator[ChanceMetric]:
        """Metrics of labels whose baseline is no better than outputs dealt to other samples, or dead ones."""
        if self.judge.labels is None:
            return
        for index in self._metrics:
            limit, function = self.judge.metrics[index]
            if MetricRun(limit, function, self.judge.labels).labelled:
                yield from self._chance(index, lower_is_better=limit.lower_is_better)

    def _chance(self, index: int, *, lower_is_better: bool) -> Iterator[ChanceMetric]:
        sign = -1.0 if lower_is_better else 1.0
        reference = sign * self._references[index]
        zeros = {name: [np.zeros_like(array) for array in arrays] for name, arrays in self.baseline.items()}
        dealt = [sign * self._value(index, self._dealt(deal)) for deal in range(_DEALS)]
        dealt = [value for value in dealt if math.isfinite(value)]
        if not dealt:
            return
        chance, dead = float(np.mean(dealt)), sign * self._value(index, zeros)
        as_well = reference <= max(chance, dead if math.isfinite(dead) else -math.inf)
        if as_well or reference <= chance + 3 * float(np.std(dealt)):
            yield ChanceMetric(
                self.judge.metrics[index][0].ref, sign * reference, sign * chance, as_well=as_well
            )

    def _value(self, index: int, candidate: _Samples) -> float:
        """A metric of a dead candidate; nan where it fails."""
        try:
            return self._fed(index, candidate).int8_value()[0]
        except CriterionError:
            return math.nan

    def _dealt(self, deal: int) -> _Samples:
        order = derangement(len(next(iter(self.baseline.values()))), deal)
        return {name: [arrays[i] for i in order] for name, arrays in self.baseline.items()}

    def limits_that_catch(self, outputs: Sequence[OutputResult]) -> list[Score]:
        """Limits that dead candidates miss, as scores of the case's own candidate, which may miss them, too.

        They were tried: zeros and outputs of other samples miss them on these samples.
        """
        found = []
        for output in outputs:
            own = next((score for score in output.scores if score.metric == "sqnr_db"), None)
            if own is None or output.problem:
                continue
            limit = self._above_dead(output.name)
            if math.isfinite(limit):
                found.append(replace(own, limit=limit, interval=None, noise=None, note=""))
        return found

    def _above_dead(self, name: str) -> float:
        """A limit on the SQNR in dB above what dead outputs reach; nan where that is not finite."""
        kept = {name: self._arrays(name, self.judge.splitter.part(name))}
        dead = []
        for kind, _, candidate in dead_candidates(kept, {}, {}):
            if kind in ("zeros", "shuffled"):
                limits = [OutputLimits(name, limits={"sqnr_db": 0.0})]
                results = _Trial(Judge(limits), kept)._compared(limits, candidate)
                dead.append(results[0].scores[0].value)
        if not all(map(math.isfinite, dead)):
            return math.nan
        return max(DEFAULT_SQNR_DB, math.ceil(max(dead) + _ABOVE_DB))


def _shapes(arrays: Sequence[Array]) -> set[tuple[int, ...]]:
    """Shapes of samples, without the axis that counts them."""
    return {array.shape[1:] for array in arrays}
