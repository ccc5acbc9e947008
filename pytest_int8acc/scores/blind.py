"""Criteria tried on dead candidates: outputs that no working model gives, made of the baseline's own.

A criterion that such outputs keep cannot fail, so a pass by it says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from pytest_int8acc.errors import CriterionError
from pytest_int8acc.results import OutputResult, Score
from pytest_int8acc.results.scores import (
    DEFAULT_SQNR_DB,
    BlindSpots,
    ChanceMetric,
    DeadCandidate,
    DeadKind,
)
from pytest_int8acc.scores.criteria import OutputLimits, kind_of, limits_for
from pytest_int8acc.scores.judge import Comparison, Judge
from pytest_int8acc.scores.metrics import METRICS
from pytest_int8acc.scores.user_metric import MetricRun, metric_scores
from pytest_int8acc.tensors import Array, Feed, Part

#: Outputs cut into samples: by name, an array per sample.
_Samples = Mapping[str, list[Array]]
#: Minimum number of distinct samples to try criteria on. With two samples, one class may be right for both.
_MIN_SAMPLES = 8
#: Greatest number of samples that are kept, and of elements of all outputs in them: criteria are tried on
#: them several times, which must stay a small part of the case's time.
_MAX_SAMPLES, _MAX_ELEMENTS = 64, 1 << 20
#: Reserve of a proposed limit above the SQNR that useless outputs reach, in dB.
_ABOVE_DB = 6.0
#: How often outputs are dealt to other samples, to see what a metric gives by chance.
_DEALS = 5


@dataclass(eq=False)
class Spread:
    """Samples of the baseline's outputs, evenly spread over the data, kept while batches pass.

    Every ``stride``-th sample is kept. Where they become too many, every second one goes and the stride is
    doubled. So data that are sorted by class do not leave one class alone.
    """

    indices: list[int] = field(default_factory=list)
    """Which samples are kept, by their place in the data."""
    splits: bool = True
    """Whether each output has the same number of rows for each sample; else nothing is kept."""
    _kept: dict[str, list[Array]] = field(default_factory=dict)
    _stride: int = 1
    _seen: int = 0

    def add(self, outputs: Mapping[str, Array], rows: int) -> None:
        """Keep some samples of a batch.

        Args:
            outputs: Arrays whose first axis is a multiple of ``rows``, or that are one sample each.
            rows: How many samples the batch holds.
        """
        if not self.splits or not rows:
            return
        if any(array.ndim == 0 or len(array) % rows for array in outputs.values()):
            self.splits = False
            self._kept.clear()
            return
        for row in range(rows):
            if (self._seen + row) % self._stride == 0:
                self._keep(outputs, rows, row)
        self._seen += rows

    def _keep(self, outputs: Mapping[str, Array], rows: int, row: int) -> None:
        self.indices.append(self._seen + row)
        for name, array in outputs.items():
            each = len(array) // rows
            self._kept.setdefault(name, []).append(array[row * each : (row + 1) * each].copy())
        elements = sum(arrays[0].size for arrays in self._kept.values())
        most = min(_MAX_SAMPLES, max(_MAX_ELEMENTS // max(elements, 1), _MIN_SAMPLES))
        if len(self.indices) > most:
            self._stride *= 2
            self.indices = self.indices[::2]
            self._kept = {name: arrays[::2] for name, arrays in self._kept.items()}

    @property
    def samples(self) -> _Samples | None:
        """The samples that were kept, in the order of ``indices``; None where too few are distinct."""
        if not self._kept or len(self.indices) < _MIN_SAMPLES:
            return None
        kept = zip(*self._kept.values(), strict=True)
        distinct = {tuple((array.shape, array.tobytes()) for array in arrays) for arrays in kept}
        return self._kept if len(distinct) >= _MIN_SAMPLES else None


def try_criteria(judge: Judge, spread: Spread, outputs: Sequence[OutputResult]) -> BlindSpots | None:
    """Tries the criteria of a case that passes on outputs of no use.

    Args:
        judge: The case's criteria, with the labels of all samples.
        spread: Some samples of the baseline's outputs.
        outputs: How the case's own candidate was judged.

    Returns:
        The dead candidates that keep all criteria, and the metrics whose baseline is at chance; None where
        there are neither, or too few distinct samples to tell.
    """
    samples = spread.samples
    if samples is None:
        return None
    trial = _Trial(judge.of_rows(spread.indices), samples)
    limited, unlimited = dict[str, Part | None](), dict[str, Part | None]()
    for output in outputs:
        part = judge.splitter.part(output.name)
        if any(score.limit is not None for score in output.scores):
            limited[output.name] = part
        elif judge.metrics:
            unlimited[output.name] = part
    undetected: list[DeadCandidate] = []
    for kind, name, candidate in _dead_candidates(samples, limited, trial.class_axes(limited), unlimited):
        known = kind == "shifted" and DeadCandidate("replaced", name) in undetected
        if not known and _differ(samples, candidate) and trial.keeps(candidate):
            undetected.append(DeadCandidate(kind, name))
    chance = tuple(trial.at_chance())
    if not undetected and not chance:
        return None
    remedies = []
    if any(dead.kind in ("zeros", "shuffled") for dead in undetected):
        remedies = trial.limits_that_catch(outputs)
    remedy = next((score for score in remedies if score.passed), None)
    too_near = remedies[0] if remedies and remedy is None else None
    return BlindSpots(tuple(undetected), chance, remedy, too_near)


def _dead_candidates(
    baseline: _Samples,
    limited: Mapping[str, Part | None],
    axes: Mapping[str, int],
    unlimited: Mapping[str, Part | None],
) -> Iterator[tuple[DeadKind, str, _Samples]]:
    """Yields each dead candidate: its kind, the output that was changed, and all outputs sample by sample.

    Args:
        baseline: At least two samples.
        limited: Outputs with limits of their own; the name of an output, or of a part of one, to the part.
        axes: The class axis of each of them that has one.
        unlimited: Outputs without limits of their own, which only metrics of labels may look at.
    """

    def one_changed(
        kind: DeadKind, name: str, part: Part | None, change: Callable[[Array], Array]
    ) -> tuple[DeadKind, str, _Samples]:
        output = name if part is None else part.output
        changed = [_changed(array, part, change) for array in baseline[output]]
        return kind, name, {**baseline, output: changed}

    yield "zeros", "", {name: [_zeros(array) for array in arrays] for name, arrays in baseline.items()}
    yield "shuffled", "", _dealt(baseline, seed=0)
    means = {name: _mean(arrays) for name, arrays in baseline.items()}
    if all(arrays is not None for arrays in means.values()):
        yield "mean", "", {name: arrays for name, arrays in means.items() if arrays is not None}
    several = len(baseline) > 1
    for name, part in limited.items():
        if several or part is not None:
            yield one_changed("replaced", name, part, _zeros)
        if name in axes:
            yield one_changed("shifted", name, part, partial(np.roll, shift=1, axis=axes[name]))
    if unlimited:
        yield "greatest", "", {name: list(map(_greatest, arrays)) for name, arrays in baseline.items()}
    for name, part in unlimited.items():
        if several or part is not None:
            yield one_changed("replaced", name, part, _zeros)
            yield one_changed("greatest", name, part, _greatest)


def _changed(array: Array, part: Part | None, change: Callable[[Array], Array]) -> Array:
    """A copy of an array of which a part is changed; None: all of it."""
    if part is None:
        return change(array)
    copied = array.copy()
    copied[part.index] = change(part.of(array))
    return copied


def _dealt(baseline: _Samples, seed: int) -> _Samples:
    """The outputs in a random order in which no sample keeps its own."""
    count = len(next(iter(baseline.values())))
    cycle = np.random.default_rng(seed).permutation(count)
    order = np.empty(count, np.int64)
    order[cycle] = np.roll(cycle, -1)  # each sample gets the output of the one that follows it in the cycle
    return {name: [arrays[i] for i in order.tolist()] for name, arrays in baseline.items()}


def _differ(baseline: _Samples, candidate: _Samples) -> bool:
    """Whether a candidate's values are others than the baseline's in any output."""
    return any(
        not np.array_equal(ours, theirs, equal_nan=kind_of(ours) == "floats")
        for name, arrays in baseline.items()
        for ours, theirs in zip(arrays, candidate[name], strict=True)
    )


def _zeros(array: Array) -> Array:
    """Zeros, False or empty texts in place of every value."""
    return np.full_like(array, "") if array.dtype.kind == "O" else np.zeros_like(array)


def _greatest(array: Array) -> Array:
    """A sample's greatest value in place of every value; empty texts in place of texts."""
    if array.dtype.kind not in "fiub" or not array.size:
        return _zeros(array)
    return np.full_like(array, np.nan_to_num(array).max())


def _mean(arrays: list[Array]) -> list[Array] | None:
    """The mean over samples in place of each; None where they do not have one shape, or hold no numbers."""
    if len({array.shape for array in arrays}) > 1 or arrays[0].dtype.kind not in "fiu":
        return None
    with np.errstate(all="ignore"):
        mean = np.asarray(np.mean(np.stack(arrays), axis=0, dtype=np.float64), arrays[0].dtype)
    return [mean] * len(arrays)


@dataclass(frozen=True, eq=False)
class _Trial:
    """Criteria, and some samples of the baseline that they are tried on."""

    judge: Judge
    baseline: _Samples

    def keeps(self, candidate: _Samples) -> bool:
        """Whether a candidate keeps all criteria; a function that fails on it has detected it."""
        try:
            if not all(output.passed for output in self._compared(candidate)):
                return False
            return all(score.passed for index in self._metrics for score in self._scores(index, candidate))
        except CriterionError:
            return False

    def _compared(self, candidate: _Samples) -> Sequence[OutputResult]:
        comparison = Comparison(self.judge, judged_only=True, metrics=False)
        for _, ours, theirs in self._batches(candidate):
            comparison.add(ours, theirs)
        return comparison.results()

    def _batches(self, candidate: _Samples) -> Iterator[tuple[range, Feed, Feed]]:
        """Yields samples with both forms' outputs: all at once, or one by one where shapes differ."""
        whole, count = self._whole, len(next(iter(self.baseline.values())))
        if whole is not None and _joins(candidate):
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
        if not _joins(self.baseline):
            return None
        return {name: np.concatenate(arrays) for name, arrays in self.baseline.items()}

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
        run = self._fed(index, candidate)
        return metric_scores(run.limit, self._references[index], run)

    def class_axes(self, limited: Mapping[str, Part | None]) -> dict[str, int]:
        """The class axis of each output that is judged by its greatest class, or looks like classes."""
        axes = {}
        for name, part in limited.items():
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
        """Yields metrics of labels that rate the baseline no higher than shuffled or dead outputs."""
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
        values = [sign * self._value(index, _dealt(self.baseline, deal)) for deal in range(_DEALS)]
        values = [value for value in values if math.isfinite(value)]
        if not values:
            return
        chance, dead = float(np.mean(values)), sign * self._value(index, zeros)
        as_well = reference <= max(chance, dead if math.isfinite(dead) else -math.inf)
        if as_well or reference <= chance + 3 * float(np.std(values)):
            name = self.judge.metrics[index][0].ref
            yield ChanceMetric(name, sign * reference, sign * chance, as_well=as_well)

    def _value(self, index: int, candidate: _Samples) -> float:
        """A metric of a dead candidate; nan where it fails."""
        try:
            return self._fed(index, candidate).int8_value()[0]
        except CriterionError:
            return math.nan

    def limits_that_catch(self, outputs: Sequence[OutputResult]) -> list[Score]:
        """Limits on the SQNR that zeros and shuffled outputs miss, by trial, with the candidate's own values.

        The case's candidate may miss them, too.
        """
        scores = []
        for output in outputs:
            own = next((score for score in output.scores if score.metric == "sqnr_db"), None)
            if own is None or output.problem:
                continue
            limit = self._above_dead(output.name)
            if math.isfinite(limit):
                scores.append(replace(own, limit=limit, interval=None, noise=None, note=""))
        return scores

    def _above_dead(self, name: str) -> float:
        """A limit on the SQNR in dB above that of dead outputs; nan where that is not finite."""
        alone = {name: self._arrays(name, self.judge.splitter.part(name))}
        trial = _Trial(Judge([OutputLimits(name, limits={"sqnr_db": 0.0})]), alone)
        dead = [
            trial._compared(candidate)[0].scores[0].value
            for kind, _, candidate in _dead_candidates(alone, {}, {}, {})
            if kind in ("zeros", "shuffled")
        ]
        if not all(map(math.isfinite, dead)):
            return math.nan
        return max(DEFAULT_SQNR_DB, math.ceil(max(dead) + _ABOVE_DB))


def _joins(samples: _Samples) -> bool:
    """Whether the samples of each output have one shape, the axis that counts them left out."""
    return all(len({array.shape[1:] for array in arrays}) == 1 for arrays in samples.values())
