"""Criteria on rows of classes, taken apart into samples: KL, and agreement of the top classes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.scores.metrics import log_softmax
from pytest_int8acc.scores.pairs import F64
from pytest_int8acc.scores.parts import TINY, Demand, Whole, flat, ratio, total
from pytest_int8acc.tensors import Array

#: The least margin between two classes that error vectors are weighted by, as a share of the mean margin.
_CLOSE = 0.01


class Divergence(Demand):
    """KL; to second order a row's is half the variance of the logits' error under the baseline's softmax."""

    power = 2

    def _budget(self, whole: Whole) -> float:
        return self.limit * whole.rows / whole.samples

    def _measure(self, b: Array, c: Array, samples: int) -> F64:
        y, z = log_softmax(_rows(b, self.axis, samples)), log_softmax(_rows(c, self.axis, samples))
        terms = np.where(np.isneginf(y), 0.0, np.exp(y) * (y - z)).sum(axis=-1)
        return total(np.where(_counted(y), np.maximum(terms, 0.0), 0.0))

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        y = _rows(b, self.axis, samples)
        p = np.exp(log_softmax(y))
        e = _finite(_rows(c, self.axis, samples) - y)
        e = np.sqrt(p) * (e - (p * e).sum(axis=-1, keepdims=True))
        return flat(np.where(_counted(y)[..., None], e, 0.0), samples) / math.sqrt(max(2 * self.budget, TINY))


class Flips(Demand):
    """Agreement of the top class, or of the top five.

    Where each sample is one row, its part says how far it is on the way to another class; otherwise parts
    count the rows that have flipped.
    """

    def __init__(self, output: str, metric: str, limit: float, whole: Whole) -> None:
        self.k = 5 if metric.startswith("top5") else 1
        self.rows = whole.rows
        if self.rows == whole.samples and all(_one_row(a, whole) for a in whole.arrays):
            self.pool = "rank"
        super().__init__(output, metric, limit, whole)

    def _budget(self, whole: Whole) -> float:
        return (1 - self.limit) * self.rows / whole.samples

    def _spared(self, whole: Whole) -> int:
        if self.pool != "rank":
            return 0
        spared = min(int((1 - self.limit) * self.rows) + 1, self.rows)
        while spared > 0 and (self.rows - spared) / self.rows < self.limit:
            spared -= 1
        return spared

    def _measure(self, b: Array, c: Array, samples: int) -> F64:
        y, z = _rows(b, self.axis, samples), _rows(c, self.axis, samples)
        top = y.argmax(axis=-1)[..., None]
        own = np.take_along_axis(z, top, axis=-1)
        earlier = np.arange(y.shape[-1]) < top
        flipped = ((z > own) | ((z == own) & earlier)).sum(axis=-1) >= self.k
        flipped &= _counted(y)
        if self.pool != "rank":
            return total(flipped)
        way = np.partition(self._ways(y, z - y, 0.0), -self.k, axis=-1)[..., -self.k]
        above = np.where(flipped, np.maximum(way, math.nextafter(1.0, 2.0)), np.clip(way, 0.0, 1.0))
        return np.asarray(above.reshape(samples, 1))

    def _parts(self, measured: F64) -> F64:
        return measured[:, 0] if self.pool == "rank" else super()._parts(measured)

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        y = _rows(b, self.axis, samples)
        margin = y.max(axis=-1, keepdims=True) - y
        floor = _CLOSE * float(np.mean(margin[np.isfinite(margin)])) if margin.size else 0.0
        e = _finite(_rows(c, self.axis, samples) - y)
        return flat(np.where(_counted(y)[..., None], self._ways(y, e, max(floor, TINY)), 0.0), samples)

    @staticmethod
    def _ways(y: F64, e: F64, floor: float) -> F64:
        """How far each class is on the way to the top class: (e_j - e_top) / (y_top - y_j), 0 for itself."""
        top = y.argmax(axis=-1)[..., None]
        gain = e - np.take_along_axis(e, top, axis=-1)
        margin = np.take_along_axis(y, top, axis=-1) - y
        return np.nan_to_num(ratio(gain, np.maximum(margin, floor)), nan=0.0, posinf=np.inf, neginf=0.0)


def _rows(array: Array, axis: int, samples: int) -> F64:
    """[samples, rows, classes] in float64."""
    moved = np.moveaxis(array, axis, -1).astype(np.float64)
    return moved.reshape(samples, -1, moved.shape[-1])


def _counted(y: F64) -> NDArray[np.bool_]:
    """Which rows count: those whose greatest baseline value is finite, [samples, rows]."""
    return np.asarray(np.isfinite(y.max(axis=-1)))


def _one_row(array: Array, whole: Whole) -> bool:
    return bool(array.size == len(array) * array.shape[whole.limits.axis])


def _finite(error: F64) -> F64:
    return np.nan_to_num(error, nan=0.0, posinf=0.0, neginf=0.0)
