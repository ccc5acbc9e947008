"""Measures the errors of plans on a few samples as vectors, one array of vectors for each criterion."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.case.trials import (
    JudgedLimit,
    SampleBaseline,
    SampleComparison,
    SampleOutputs,
    concatenated,
)
from pytest_int8acc.scores.criteria import kind_of
from pytest_int8acc.scores.shares import TINY, error
from pytest_int8acc.search.types import Probe, Target
from pytest_int8acc.tensors import Array

#: Maximum length of the error vector of one sample. Longer vectors are subsampled.
ELEMENTS = 4096
#: Approximate number of output elements that are held in memory at a time.
_TOGETHER = 1 << 20
#: Factor for values that are nan or infinite in the candidate's output, and finite in the baseline's output.
#: Such a value is replaced by minus this factor times the greatest magnitude in the baseline's output.
_FAR = 10.0

Vectors = NDArray[np.float32]
_Measure = Callable[[Array, Array, int], Vectors]


class Prober:
    """Measures error vectors: the weighted differences between a plan's outputs and the baseline's."""

    def __init__(self, baseline: SampleBaseline) -> None:
        self._baseline = baseline
        powers = [limit.share.power for limit in baseline.limits]
        powers += [1] * (len(baseline.criteria) - len(powers))
        self.targets = tuple(Target(index, power) for index, power in enumerate(powers))
        numbers = {n: a for n, a in baseline.outputs.items() if kind_of(a[0]) in ("floats", "integers")}
        self._peaks = {name: max(map(_peak, arrays)) for name, arrays in numbers.items()}
        self._energies = {name: float(np.mean([*map(_energy, a)])) for name, a in numbers.items()}

    def probe(self, samples: Sequence[int], runs: Iterable[tuple[Sequence[int], SampleOutputs]]) -> Probe:
        """The error vectors of a plan, and the part of the loss that each sample causes.

        Args:
            samples: The samples to measure, by index.
            runs: The outputs of the plan, run by run, each with the samples in it.
        """
        comparison = SampleComparison(self._baseline)
        vectors = self.vectors(samples, runs, comparison.add_samples)
        return Probe(vectors, comparison.parts()[:, list(samples)])

    def vectors(
        self,
        samples: Sequence[int],
        runs: Iterable[tuple[Sequence[int], SampleOutputs]],
        also: Callable[[Sequence[int], SampleOutputs], None] | None = None,
    ) -> list[Vectors]:
        """The error vectors of a plan: for each criterion an array [samples, elements].

        Args:
            samples: The samples to measure, by index.
            runs: The outputs of the plan, run by run, each with the samples in it.
            also: Called with the samples and the outputs of each run, before error vectors are measured.
        """
        found = dict[int, list[Vectors]]()
        for some, outputs in _pooled(runs):
            if also is not None:
                also(some, outputs)
            vectors = self._all_vectors(samples, some, outputs)
            found |= {sample: [rows[i] for rows in vectors] for i, sample in enumerate(some)}
        return [np.stack([found[i][target] for i in samples]) for target in range(len(self.targets))]

    def _all_vectors(
        self, samples: Sequence[int], some: Sequence[int], outputs: SampleOutputs
    ) -> list[Vectors]:
        """The error vectors of the samples ``some``, which one run computed, one array for each criterion."""
        vectors = []
        for limit in self._baseline.limits:
            output, cut = limit.output.output, limit.output.cut
            longest = max(cut(self._baseline.outputs[output][i]).size for i in samples)
            if limit.share.is_elementwise and longest > ELEMENTS:
                picked = self._of_picked(limit, some, outputs)
                if picked is not None:
                    vectors.append(picked)
                    continue

            def measure(b: Array, c: Array, count: int, limit: JudgedLimit = limit) -> Vectors:
                return limit.share.vectors(limit.output.cut(b), limit.output.cut(c), count)

            vectors.append(self._vectors(output, some, outputs, measure, longest))
        own = len(self.targets) - len(vectors)
        return vectors + [self._of_outputs(samples, some, outputs)] * own if own else vectors

    def _of_picked(self, limit: JudgedLimit, some: Sequence[int], outputs: SampleOutputs) -> Vectors | None:
        """The error vectors of the elements that ``sampled`` picks, computed from these elements alone.

        None if shapes differ between baseline and candidate, or a sample has no elements.
        """
        name, cut = limit.output.output, limit.output.cut
        baseline = [cut(self._baseline.outputs[name][i]) for i in some]
        candidate = [cut(array) for array in outputs[name]]
        if any(b.shape != c.shape or not b.size for b, c in zip(baseline, candidate, strict=True)):
            return None
        b, c = (
            np.stack([_picked(array.reshape(-1)) for array in arrays]) for arrays in (baseline, candidate)
        )
        vectors = limit.share.vectors(b, self._tamed(name, b, c), len(some))
        return vectors * np.stack([[_stretch(array.size)] for array in baseline])

    def _vectors(
        self, name: str, some: Sequence[int], outputs: SampleOutputs, measure: _Measure, longest: int
    ) -> Vectors:
        baseline, candidate = [self._baseline.outputs[name][i] for i in some], outputs[name]
        if len({array.shape for array in (*baseline, *candidate)}) > 1:
            candidate = [self._tamed(name, b, c) for b, c in zip(baseline, candidate, strict=True)]
        if len({array.shape for array in baseline}) == 1:
            b, c = concatenated(baseline), concatenated(candidate)
            return sampled(measure(b, self._tamed(name, b, c), len(some)), longest)
        return sampled([measure(b, c, 1)[0] for b, c in zip(baseline, candidate, strict=True)], longest)

    def _of_outputs(self, samples: Sequence[int], some: Sequence[int], outputs: SampleOutputs) -> Vectors:
        """The errors of all numeric outputs, divided by their root mean energy; used for users' metrics."""
        vectors = [np.zeros((len(some), 1), np.float32)]
        for name, energy in self._energies.items():

            def measure(b: Array, c: Array, count: int, energy: float = energy) -> Vectors:
                return np.asarray(error(b, c, count) / max(energy, TINY) ** 0.5, np.float32)

            longest = max(self._baseline.outputs[name][i].size for i in samples)
            vectors.append(self._vectors(name, some, outputs, measure, longest))
        return np.concatenate(vectors, axis=1)

    def _tamed(self, name: str, b: Array, c: Array) -> Array:
        """The candidate's output ``c`` with nan and infinity replaced where the baseline is finite.

        The result is zeros if the shape or the kind of values differs from the baseline's.
        """
        if c.shape != b.shape or kind_of(c) != kind_of(b):
            return np.zeros_like(b)
        if kind_of(b) != "floats" or np.isfinite(c).all():
            return c
        return np.where(np.isfinite(b) & ~np.isfinite(c), -_FAR * self._peaks[name], c)


def _pooled(
    runs: Iterable[tuple[Sequence[int], SampleOutputs]],
) -> Iterator[tuple[Sequence[int], SampleOutputs]]:
    """Yield the runs joined into larger runs of about ``_TOGETHER`` output elements."""
    some, outputs, size = list[int](), defaultdict[str, list[Array]](list), 0
    for samples, found in runs:
        for place, sample in enumerate(samples):
            some.append(sample)
            for name, arrays in found.items():
                outputs[name].append(arrays[place])
                size += arrays[place].size
            if size >= _TOGETHER:
                yield some, outputs
                some, outputs, size = [], defaultdict(list), 0
    if some:
        yield some, outputs


def sampled(rows: Sequence[Vectors] | Vectors, longest: int) -> Vectors:
    """Error vectors subsampled to at most ``ELEMENTS`` elements, [samples, elements].

    The elements are spread evenly, and are always the same. Vectors are scaled so that squared lengths stay
    the same on average. Vectors shorter than the longest are stretched.

    Args:
        rows: The error vector of each sample.
        longest: The length of the longest error vector among all samples of the measurement.
    """
    if longest <= ELEMENTS and all(len(row) == longest for row in rows):
        return np.asarray(rows)
    count = min(longest, ELEMENTS)
    picked = [
        _picked(row, count) * _stretch(len(row), count) if len(row) else np.zeros(count, np.float32)
        for row in rows
    ]
    return np.stack(picked).astype(np.float32)


def _picked(row: Array, count: int = ELEMENTS) -> Array:
    """``count`` elements of a row, spread evenly; always the same ones for rows of equal length."""
    places = (np.arange(count) + np.random.default_rng(0).random(count)) / count
    return row[(places * len(row)).astype(np.intp)]


def _stretch(size: int, count: int = ELEMENTS) -> np.float32:
    """The factor that keeps the squared length of a vector when ``count`` of ``size`` elements are picked."""
    return np.float32(np.sqrt(size / count))


def _peak(array: Array) -> float:
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))


def _energy(array: Array) -> float:
    return float(np.square(array[np.isfinite(array)], dtype=np.float64).sum())
