"""Applies criteria to useless outputs, such as zeros, made from the baseline's outputs.

A criterion that accepts useless outputs cannot fail, so the verdict "passed" by this criterion says nothing.
"""

from __future__ import annotations

import math
import random
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
from pytest_int8acc.scores.criteria import kind_of, limits_for
from pytest_int8acc.scores.judge import Comparison, Judge
from pytest_int8acc.scores.metrics import METRICS
from pytest_int8acc.scores.rows import errors
from pytest_int8acc.tensors import Array, Outputs, Part

#: Minimum number of different samples with which criteria are tried on useless outputs. Fewer samples may all
#: be of one class, so that outputs shuffled between samples would be right.
_MIN_SAMPLES = 8
#: Maximum number of samples on which criteria are tried, and maximum total number of elements of their
#: outputs. The criteria are applied to these samples several times, which must take only a small part of a
#: case's time.
_MAX_SAMPLES, _MAX_ELEMENTS = 64, 1 << 20
#: A proposed limit on the SQNR is this many dB above the SQNR of useless outputs.
_ABOVE_DB = 6.0
#: Maximum number of scores in the result for each kind of useless outputs, such as zeros, that meets the
#: criteria. The scores show by how much the limits are met.
_MAX_SCORES = 3
#: Number of times that outputs are shuffled between samples, to estimate the value that a metric has by
#: chance.
_SHUFFLES = 5


@dataclass(eq=False)
class Spread:
    """Collects some samples of the baseline's outputs, evenly spread over the data set.

    At first every sample is kept. Whenever too many are kept, every second of them is dropped, and only half
    as many of the later samples are kept. The kept samples are thus of all classes, even if the data are
    sorted by class.
    """

    indices: list[int] = field(default_factory=list)
    """The indices of the kept samples in the data set."""
    splits: bool = True
    """Whether the outputs can be split into samples: in each batch, the size of axis 0 of each output is a
    multiple of the number of samples. If not, no sample is kept."""
    _kept: Outputs = field(default_factory=dict)
    """Output name to a list of one array for each kept sample."""
    _stride: int = 1
    _seen: int = 0

    def add(self, outputs: Mapping[str, Array], rows: int) -> None:
        """Keeps some samples of a batch.

        Args:
            outputs: The outputs of the batch, by name.
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
    def samples(self) -> Outputs | None:
        """The outputs of the kept samples: output name to one array per sample, in the order of ``indices``.

        None if fewer than ``_MIN_SAMPLES`` of the samples differ from each other.
        """
        if not self._kept or len(self.indices) < _MIN_SAMPLES:
            return None
        kept = zip(*self._kept.values(), strict=True)
        distinct = {tuple((array.shape, array.tobytes()) for array in arrays) for arrays in kept}
        return self._kept if len(distinct) >= _MIN_SAMPLES else None


def try_criteria(judge: Judge, spread: Spread, outputs: Sequence[OutputResult]) -> BlindSpots | None:
    """Tries the criteria of a passing case on useless outputs.

    Args:
        judge: The case's criteria, with the labels of all samples.
        spread: Some samples of the baseline's outputs.
        outputs: The results of the outputs of the case's own candidate.

    Returns:
        The useless outputs that meet all criteria, and the metrics of labels whose value for the baseline is
            no better than chance. None if there are neither, or too few different samples.
    """
    samples = spread.samples
    if samples is None:
        return None
    trial = _Trial(judge.of_rows(spread.indices), samples)
    undetected: list[DeadCandidate] = []
    for kind, name, candidate in trial.candidates(outputs):
        known = kind == "shifted" and any(
            dead.kind == "replaced" and dead.output == name for dead in undetected
        )
        if known or not _differ(samples, candidate):
            continue
        scores = trial.accepted(candidate)
        if scores is not None:
            undetected.append(DeadCandidate(kind, name, scores))
    chance = tuple(trial.at_chance())
    if not undetected and not chance:
        return None
    remedies: list[Score] = []
    if any(dead.kind in ("zeros", "shuffled") for dead in undetected):
        remedies = trial.limits_that_catch(outputs)
    remedy = next((score for score in remedies if score.passed), None)
    too_near = remedies[0] if remedies and remedy is None else None
    return BlindSpots(tuple(undetected), chance, remedy, too_near, len(spread.indices))


@dataclass(frozen=True, eq=False)
class _Trial:
    """A test of criteria on useless outputs: the criteria, and samples of the baseline's outputs.

    Each output is a list of one array per sample.
    """

    judge: Judge
    baseline: Outputs

    def candidates(self, results: Sequence[OutputResult]) -> Iterator[tuple[DeadKind, str, Outputs]]:
        """Yields useless outputs: their kind, the name of the changed output, and one array per sample.

        The name is empty if all outputs are changed.

        Args:
            results: The results of the case's own candidate. Each output with a limit is changed alone. If
                there are metrics of labels or users' metrics, each output without a limit is also changed
                alone.
        """
        baseline = self.baseline
        yield "zeros", "", {name: [_zeros(array) for array in arrays] for name, arrays in baseline.items()}
        yield "shuffled", "", {name: _shuffled(arrays, seed=0) for name, arrays in baseline.items()}
        means = {name: mean for name, arrays in baseline.items() if (mean := _mean(arrays)) is not None}
        if means.keys() == baseline.keys():
            yield "mean", "", means
        unlimited = []
        for output in results:
            if all(score.limit is None for score in output.scores):
                unlimited.append(output.name)
                continue
            if self._is_one_of_several(output.name):
                yield "replaced", output.name, self._changed(output.name, _zeros)
            axis = self._class_axis(output.name)
            if axis is not None:
                shift = partial(np.roll, shift=1, axis=axis)
                yield "shifted", output.name, self._changed(output.name, shift)
        if not unlimited or not self.judge.metrics:
            return
        yield "greatest", "", {name: list(map(_greatest, arrays)) for name, arrays in baseline.items()}
        for name in unlimited:
            if self._is_one_of_several(name):
                yield "replaced", name, self._changed(name, _zeros)
                yield "greatest", name, self._changed(name, _greatest)

    def _is_one_of_several(self, name: str) -> bool:
        return len(self.baseline) > 1 or self._part(name) is not None

    def _part(self, name: str) -> Part | None:
        """Returns the part of an output that has this name; None if the name is that of a whole output."""
        return self.judge.splitter.part(name)

    def _changed(self, name: str, change: Callable[[Array], Array]) -> Outputs:
        """Returns the baseline's outputs with one output, or one part of an output, changed by ``change``."""
        part = self._part(name)
        if part is None:
            return {**self.baseline, name: list(map(change, self.baseline[name]))}
        changed = [array.copy() for array in self.baseline[part.output]]
        for array in changed:
            array[part.index] = change(part.of(array))
        return {**self.baseline, part.output: changed}

    def _class_axis(self, name: str) -> int | None:
        """Returns the class axis of an output; None if the output does not hold classes.

        It holds classes if it has a limit on a metric of classes, such as top-1 agreement, or if its shape
        looks like [samples, classes].
        """
        part = self._part(name)
        for limits in limits_for(name if part is None else part.output, self.judge.limits):
            if any(METRICS[metric].min_classes for metric in limits.limits):
                return limits.options.axis
        first = self._arrays(name)[0]
        return 1 if first.ndim == 2 and first.shape[1] > 1 and first.dtype.kind == "f" else None

    def _arrays(self, name: str) -> list[Array]:
        """Returns the baseline's arrays of the output, or of the part of an output, with this name.

        There is one array per sample.
        """
        part = self._part(name)
        return self.baseline[name] if part is None else [part.of(a) for a in self.baseline[part.output]]

    def accepted(self, candidate: Outputs) -> tuple[Score, ...] | None:
        """Returns up to 3 scores of a candidate that meets all criteria, the nearest to its limit first.

        The result is None if the candidate misses a criterion, or if a metric raises an error on it.
        """
        try:
            outputs = self._compared(self.judge, candidate, metrics=False).results()
            if not all(output.passed for output in outputs):
                return None
            scores = [score for output in outputs for score in output.scores]
            if self.judge.metrics:
                verdict = self._compared(self.judge, candidate).verdict()
                if not verdict.passed:
                    return None
                scores = list(verdict.scores)
        except CriterionError:
            return None
        limited = [score for score in scores if score.limit is not None]
        return tuple(sorted(limited, key=lambda score: -score.normalized_loss)[:_MAX_SCORES])

    def _compared(self, judge: Judge, candidate: Outputs, *, metrics: bool = True) -> Comparison:
        """Compares a candidate with the baseline by the criteria of ``judge``.

        All samples are compared in one batch, or one by one if their shapes differ. Without ``metrics``, no
        metric of labels and no user's metric is computed.
        """
        ours, theirs, samples = self.baseline, candidate, 1
        if all(len({array.shape[1:] for array in a}) == 1 for a in (*ours.values(), *theirs.values())):
            samples = len(next(iter(ours.values())))
            ours, theirs = (
                {name: [np.concatenate(arrays)] for name, arrays in form.items()} for form in (ours, theirs)
            )
        like = self._own if metrics and candidate is not self.baseline else None
        return judge.compare(ours, theirs, like=like, judged_only=True, metrics=metrics, samples=samples)

    @cached_property
    def _own(self) -> Comparison:
        """The comparison of the baseline with itself, which has the metrics' values for the baseline."""
        return self._compared(self.judge, self.baseline)

    def at_chance(self) -> Iterator[ChanceMetric]:
        """Yields the metrics of labels whose value for the baseline is no better than for useless outputs.

        Useless outputs are shuffled outputs and zeros. A value within 3 standard deviations of the shuffled
        outputs' mean counts as no better.
        """
        if self.judge.labels is None:
            return
        zeros = {name: [np.zeros_like(array) for array in arrays] for name, arrays in self.baseline.items()}
        shuffled = [
            {name: _shuffled(arrays, seed) for name, arrays in self.baseline.items()}
            for seed in range(_SHUFFLES)
        ]
        for (limit, function), run in zip(self.judge.metrics, self._own.baseline_metrics, strict=True):
            if not run.labelled:
                continue
            sign = -1.0 if limit.lower_is_better else 1.0
            reference = sign * run.reference("the baseline's outputs")
            judge = replace(self.judge, limits=(), metrics=[(limit, function)])
            values = [sign * self._value(judge, candidate) for candidate in shuffled]
            values = [value for value in values if math.isfinite(value)]
            if not values:
                continue
            chance, dead = float(np.mean(values)), sign * self._value(judge, zeros)
            as_well = reference <= max(chance, dead if math.isfinite(dead) else -math.inf)
            if as_well or reference <= chance + 3 * float(np.std(values)):
                yield ChanceMetric(limit.ref, sign * reference, sign * chance, as_well=as_well)

    def _value(self, judge: Judge, candidate: Outputs) -> float:
        """Returns the value of the only metric of ``judge`` for the outputs ``candidate``.

        The result is nan if the metric raises an error for these outputs.
        """
        try:
            return self._compared(judge, candidate).metrics[0].int8_value()[0]
        except CriterionError:
            return math.nan

    def limits_that_catch(self, outputs: Sequence[OutputResult]) -> list[Score]:
        """Returns the candidate's SQNR for each output, with a limit that rejects useless outputs.

        The useless outputs are zeros and shuffled outputs. Zeros have an SQNR of 0 dB, so a limit above the
        SQNR of shuffled outputs, and not below the default limit, rejects both. The candidate may also miss
        the limit. ``outputs`` are the results of the candidate.
        """
        scores = []
        for output in outputs:
            own = next((score for score in output.scores if score.metric == "sqnr_db"), None)
            if own is None or output.problem:
                continue
            arrays = self._arrays(output.name)
            pairs = list(zip(arrays, _shuffled(arrays, seed=0), strict=True))
            if any(one.shape != other.shape for one, other in pairs):
                continue
            reached = METRICS["sqnr_db"](np.concatenate([errors(b, c, 1) for b, c in pairs]))
            if math.isfinite(reached):
                limit = max(DEFAULT_SQNR_DB, math.ceil(max(reached, 0.0) + _ABOVE_DB))
                scores.append(replace(own, limit=limit, interval=None, noise=None, note=""))
        return scores


def _shuffled(arrays: list[Array], seed: int) -> list[Array]:
    """Returns the arrays in a random order in which no array keeps its place.

    ``arrays`` has one array per sample. Equal seeds give equal orders.
    """
    cycle = random.Random(seed).sample(range(len(arrays)), len(arrays))
    # Each sample gets the output of the next sample in a random cycle.
    following = dict(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    return [arrays[following[place]] for place in range(len(arrays))]


def _differ(baseline: Outputs, candidate: Outputs) -> bool:
    """Whether any element of the candidate's outputs differs from the baseline's. NaN equals NaN."""
    return any(
        not np.array_equal(ours, theirs, equal_nan=kind_of(ours) == "floats")
        for name, arrays in baseline.items()
        for ours, theirs in zip(arrays, candidate[name], strict=True)
    )


def _zeros(array: Array) -> Array:
    """Returns an array of the same shape and dtype that holds only zeros, False or empty texts."""
    return np.full_like(array, "") if array.dtype.kind == "O" else np.zeros_like(array)


def _greatest(array: Array) -> Array:
    """Returns a copy of an array in which all elements have its greatest value; texts become empty."""
    if array.dtype.kind not in "fiub" or not array.size:
        return _zeros(array)
    return np.full_like(array, np.nan_to_num(array).max())


def _mean(arrays: list[Array]) -> list[Array] | None:
    """Returns a list that holds, for each of ``arrays``, the mean of all arrays.

    The result is None if the arrays have different shapes or hold no numbers.
    """
    if len({array.shape for array in arrays}) > 1 or arrays[0].dtype.kind not in "fiu":
        return None
    with np.errstate(all="ignore"):
        mean = np.asarray(np.mean(np.stack(arrays), axis=0, dtype=np.float64), arrays[0].dtype)
    return [mean] * len(arrays)
