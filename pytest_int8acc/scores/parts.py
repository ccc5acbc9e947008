"""Criteria on outputs, taken apart into samples: parts that make up a loss, and error vectors.

Verdicts come from ``scores`` alone. What stands here says how much each sample adds to them, so that a plan
can be rejected on a part of the samples. For that, parts are never overrated: samples not yet seen count as
perfect, and each part is taken a little smaller, so that rounding proves nothing.

Below, b is the baseline, c the candidate, e = c - b. Arrays hold one sample per row of their first axis,
or all of them are one sample.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.scores.criteria import Criterion, OutputLimits, Pool, limits_on
from pytest_int8acc.scores.metrics import F64, METRICS, Pair, log_softmax
from pytest_int8acc.tensors import Array, Outputs

#: The least positive number, so that nothing is divided by zero.
TINY = float(np.finfo(np.float64).tiny)
_SAFE = 1 - 1e-9
#: Bound of the elements of error vectors: their squared lengths stay finite in float32.
_LONG = 1e15
#: The least margin between two classes that error vectors are weighted by, as a share of the mean margin.
_CLOSE = 0.01


@dataclass(frozen=True, eq=False)
class Whole:
    """All that a search sees of one output's baseline."""

    arrays: Sequence[Array]
    samples: int
    limits: OutputLimits

    @property
    def pair(self) -> Pair:
        """The baseline beside itself."""
        return Pair(self.arrays, self.arrays, self.limits.axis, self.limits.rel_floor)

    @property
    def rows(self) -> int:
        """Rows along the class axis that count."""
        return sum(len(rows) for rows, _ in self.pair.rows())


class Demand(ABC):
    """One limit on one output."""

    power: int = 1
    """Of the error's length, that the loss grows with (see ``Target``)."""
    pool: Pool = "mean"

    def __init__(self, output: str, metric: str, limit: float, whole: Whole) -> None:
        self.output, self.metric, self.limit, self.axis = output, metric, limit, whole.limits.axis
        self.samples = whole.samples
        self.budget = self._budget(whole)
        """How much of what ``measure`` gives meets the limit exactly, as a mean over all samples."""
        bound, allowed = METRICS[metric].bound, self._spared(whole)
        self.criterion = Criterion(output, metric, limit, bound, self.pool, allowed)

    def measure(self, b: Array, c: Array, samples: int) -> F64:
        """What parts are made of, [samples, n]."""
        with np.errstate(all="ignore"):  # inf and nan are answers here
            return self._measure(b, c, samples)

    def parts(self, measured: F64) -> F64:
        """Parts of the samples seen, [seen], from what was measured of them, [seen, n]; nan counts as inf."""
        with np.errstate(all="ignore"):
            return np.nan_to_num(self._parts(measured), nan=np.inf, posinf=np.inf)

    def vectors(self, b: Array, c: Array, samples: int) -> NDArray[np.float32]:
        """Vectors linear in the error, the longer the worse, [samples, elements].

        ``c`` must be finite wherever ``b`` is.
        """
        with np.errstate(all="ignore"):
            vectors = np.clip(self._vectors(b, c, samples), -_LONG, _LONG)
        return np.asarray(vectors, np.float32)

    @abstractmethod
    def _measure(self, b: Array, c: Array, samples: int) -> F64: ...

    @abstractmethod
    def _vectors(self, b: Array, c: Array, samples: int) -> F64: ...

    @abstractmethod
    def _budget(self, whole: Whole) -> float: ...

    def _parts(self, measured: F64) -> F64:
        return _SAFE * ratio(measured[:, 0], self.budget)

    def _spared(self, whole: Whole) -> int:
        """Samples that may have a part above 1."""
        return 0


class Squares(Demand):
    """SQNR and PSNR: the squared error against what the limit allows a sample on average."""

    power = 2

    def _budget(self, whole: Whole) -> float:
        sums = whole.pair.sums
        signal = sums.bb if self.metric == "sqnr_db" else sums.peak**2 * sums.count
        return max(signal / 10 ** (self.limit / 10) / whole.samples, TINY)

    def _measure(self, b: Array, c: Array, samples: int) -> F64:
        e = error(b, c, samples)
        return dots(e, e)[:, None]

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        return error(b, c, samples) / math.sqrt(self.budget)


class Cosine(Demand):
    """Cosine over all samples as one vector; the budget is the mean energy of a baseline sample.

    By Cauchy and Schwarz the best that samples not yet seen can do is to be the baseline, times any factor.
    That leaves ``1 - cos^2 >= u / |b|^2``, where ``u = (|b|^2 |e|^2 - (b.e)^2) / |c|^2`` over the samples
    seen: their baseline's energy that the candidate does not explain.
    """

    power = 2

    def _budget(self, whole: Whole) -> float:
        return max(whole.pair.sums.bb / whole.samples, TINY)

    def _measure(self, b: Array, c: Array, samples: int) -> F64:
        y, e = flat(b, samples), error(b, c, samples)
        return np.stack([dots(y, y), dots(y, e), dots(e, e)], axis=1)

    def _parts(self, measured: F64) -> F64:
        yy, ye, ee = measured.sum(axis=0)
        if yy + ye <= 0:  # at a right angle or worse: nothing is explained
            unexplained, across = yy, measured[:, 0]
        else:
            unexplained = max(yy * ee - ye * ye, 0.0) / max(yy + 2 * ye + ee, TINY)
            tilt = ye / yy
            across = measured[:, 2] - 2 * tilt * measured[:, 1] + tilt**2 * measured[:, 0]
        best = math.sqrt(max(1 - unexplained / (self.budget * self.samples), 0.0))
        across = np.maximum(across, 0.0)
        share = across / max(across.sum(), TINY)
        return _SAFE * self.samples * ratio(share * (1 - best), 1 - self.limit)

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        y, e = flat(b, samples), error(b, c, samples)
        across = e - y * (np.sum(y * e) / max(np.sum(y * y), TINY))
        return across / math.sqrt(max(2 * self.budget * (1 - self.limit), TINY))


class Means(Demand):
    """Mean absolute and relative error."""

    def __init__(self, output: str, metric: str, limit: float, whole: Whole) -> None:
        relative = metric.endswith("_rel")
        self.floor = whole.limits.rel_floor * whole.pair.sums.peak if relative else None
        super().__init__(output, metric, limit, whole)

    def _budget(self, whole: Whole) -> float:
        return self.limit * whole.pair.sums.count / whole.samples

    def _measure(self, b: Array, c: Array, samples: int) -> F64:
        return total(np.abs(self._weighted(b, c, samples)))

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        return self._weighted(b, c, samples) / max(self.budget, TINY)

    def _weighted(self, b: Array, c: Array, samples: int) -> F64:
        e = error(b, c, samples)
        if self.floor is None:
            return e
        return ratio(e, np.maximum(np.abs(flat(b, samples)), self.floor))


class Largest(Means):
    """Greatest absolute and relative error: the worst sample decides."""

    pool = "rank"

    def _budget(self, whole: Whole) -> float:
        return self.limit

    def _measure(self, b: Array, c: Array, samples: int) -> F64:
        return np.asarray(np.abs(self._weighted(b, c, samples)).max(axis=1, initial=0.0)[:, None])

    def _parts(self, measured: F64) -> F64:
        return ratio(measured[:, 0], self.budget)


class Unequal(Demand):
    """Agreement of integers, booleans and strings, element by element."""

    def _budget(self, whole: Whole) -> float:
        return (1 - self.limit) * sum(array.size for array in whole.arrays) / whole.samples

    def _measure(self, b: Array, c: Array, samples: int) -> F64:
        return total(np.asarray(b != c, np.bool_).reshape(samples, -1))

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        return np.asarray(b != c, np.float64).reshape(samples, -1) / max(self.budget, TINY)


def flat(array: Array, samples: int) -> F64:
    """[samples, elements] in float64; NaN and infinities become 0."""
    wide = array.astype(np.float64).reshape(samples, -1)
    finite = np.isfinite(wide)
    return wide if finite.all() else np.where(finite, wide, 0.0)


def error(b: Array, c: Array, samples: int) -> F64:
    """Candidate minus baseline, [samples, elements]; 0 where the baseline is not finite."""
    e = np.subtract(c, b, dtype=np.float64).reshape(samples, -1)
    finite = np.isfinite(b)
    return e if finite.all() else np.where(finite.reshape(samples, -1), e, 0.0)


def dots(x: F64, y: F64) -> F64:
    """Scalar product of each sample's elements, [samples]."""
    return np.asarray(np.einsum("ij,ij->i", x, y))


def total(values: NDArray[np.generic]) -> F64:
    """Sum over all but the samples, [samples, 1]."""
    return np.asarray(values.reshape(len(values), -1).sum(axis=1, dtype=np.float64)[:, None])


def ratio(value: F64, limit: F64 | float) -> F64:
    """``value / limit``, 0 where the value is 0 whatever the limit."""
    return np.where(value == 0, 0.0, value / np.asarray(limit, np.float64))


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
        if self.rows == whole.samples and all(
            a.size == len(a) * a.shape[whole.limits.axis] for a in whole.arrays
        ):
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


def _finite(error: F64) -> F64:
    return np.nan_to_num(error, nan=0.0, posinf=0.0, neginf=0.0)


_KINDS: dict[str, type[Demand]] = {
    "cosine": Cosine,
    "sqnr_db": Squares,
    "psnr_db": Squares,
    "max_abs": Largest,
    "mean_abs": Means,
    "max_rel": Largest,
    "mean_rel": Means,
    "kl": Divergence,
    "top1_agreement": Flips,
    "top5_agreement": Flips,
    "agreement": Unequal,
}


def demands_on(
    baseline: Outputs, samples: int, criteria: Sequence[OutputLimits], *, metrics_given: bool
) -> list[Demand]:
    """One demand per limit, in the order in which ``compare_outputs`` gives the scores that have one.

    Args:
        baseline: All that a search sees of the outputs, one array or several each.
        samples: How many samples those hold.
        criteria: As for ``compare_outputs``.
        metrics_given: As for ``compare_outputs``.
    """
    return [
        _KINDS[metric](name, metric, limit, Whole(arrays, samples, limits))
        for name, arrays in baseline.items()
        for limits in limits_on(name, arrays, criteria, metrics_given=metrics_given)
        for metric, limit in limits.limits.items()
    ]
