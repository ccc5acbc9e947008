"""Error vectors of a plan on a few samples, one array per target."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.case.judge import Gathered, SampleJudge, SampleOutputs, concatenated
from pytest_int8acc.scores.criteria import kind_of
from pytest_int8acc.scores.parts import TINY, error
from pytest_int8acc.search.types import Probe, Target
from pytest_int8acc.tensors import Array

#: Elements per sample that error vectors have at most.
ELEMENTS = 4096
#: What stands in for NaN and infinity, in units of the baseline's greatest magnitude.
_FAR = 10.0

Vectors = NDArray[np.float32]
_Measure = Callable[[Array, Array, int], Vectors]


class Prober:
    """Measures what plans do to a few samples."""

    def __init__(self, judge: SampleJudge) -> None:
        self._judge = judge
        powers = [demand.power for demand in judge.demands]
        powers += [1] * (len(judge.criteria) - len(powers))
        self.targets = tuple(Target(index, power) for index, power in enumerate(powers))
        numbers = {n: a for n, a in judge.baseline.items() if kind_of(a[0]) in ("floats", "integers")}
        self._peaks = {name: max(map(_peak, arrays)) for name, arrays in numbers.items()}
        self._energies = {name: float(np.mean([*map(_energy, a)])) for name, a in numbers.items()}

    def probe(self, samples: Sequence[int], outputs: SampleOutputs) -> Probe:
        """Vectors and parts of a plan whose outputs on ``samples`` are these."""
        gathered = Gathered(self._judge)
        gathered.add(samples, outputs)
        vectors = [
            self._vectors(demand.output, samples, outputs, demand.vectors) for demand in self._judge.demands
        ]
        own = len(self.targets) - len(vectors)
        if own:
            vectors += [self._all_outputs(samples, outputs)] * own
        return Probe(vectors, gathered.parts()[:, list(samples)])

    def _vectors(
        self, name: str, samples: Sequence[int], outputs: SampleOutputs, measure: _Measure
    ) -> Vectors:
        baseline = [self._judge.baseline[name][i] for i in samples]
        candidate = [self._tamed(name, b, c) for b, c in zip(baseline, outputs[name], strict=True)]
        if len({array.shape for array in baseline}) == 1:
            return sampled(measure(concatenated(baseline), concatenated(candidate), len(samples)))
        return sampled([measure(b, c, 1)[0] for b, c in zip(baseline, candidate, strict=True)])

    def _all_outputs(self, samples: Sequence[int], outputs: SampleOutputs) -> Vectors:
        """Errors of all outputs of numbers, each in units of its mean energy: for users' metrics."""
        vectors = [np.zeros((len(samples), 1), np.float32)]
        for name, energy in self._energies.items():

            def measure(b: Array, c: Array, count: int, energy: float = energy) -> Vectors:
                return np.asarray(error(b, c, count) / max(energy, TINY) ** 0.5, np.float32)

            vectors.append(self._vectors(name, samples, outputs, measure))
        return np.concatenate(vectors, axis=1)

    def _tamed(self, name: str, b: Array, c: Array) -> Array:
        """A candidate that vectors can be made of: of the baseline's shape and kind, finite where that is."""
        if c.shape != b.shape or kind_of(c) != kind_of(b):
            return np.zeros_like(b)
        if kind_of(b) != "floats" or np.isfinite(c).all():
            return c
        return np.where(np.isfinite(b) & ~np.isfinite(c), -_FAR * self._peaks[name], c)


def sampled(rows: Sequence[Vectors] | Vectors) -> Vectors:
    """[samples, elements] of at most ``ELEMENTS`` elements, evenly spread, always the same ones.

    Longer rows are scaled so that squared lengths stay on average; shorter ones among longer are stretched.
    """
    longest = max(map(len, rows))
    if longest <= ELEMENTS and all(len(row) == longest for row in rows):
        return np.asarray(rows)
    count = min(longest, ELEMENTS)
    places = (np.arange(count) + np.random.default_rng(0).random(count)) / count
    picked = [
        row[(places * len(row)).astype(np.intp)] * np.float32(np.sqrt(len(row) / count))
        if len(row)
        else np.zeros(count, np.float32)
        for row in rows
    ]
    return np.stack(picked).astype(np.float32)


def _peak(array: Array) -> float:
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))


def _energy(array: Array) -> float:
    return float(np.square(array[np.isfinite(array)], dtype=np.float64).sum())
