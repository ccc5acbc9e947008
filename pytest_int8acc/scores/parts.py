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
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.scores.criteria import Criterion, OutputLimits, Pool
from pytest_int8acc.scores.measures import COUNTED, Tolerance, log_softmax, rows_of
from pytest_int8acc.scores.metrics import METRICS
from pytest_int8acc.scores.statistics import OutputStatistics
from pytest_int8acc.scores.sums import AT, F64, difference
from pytest_int8acc.tensors import Array

#: The least positive number, so that nothing is divided by zero.
TINY = float(np.finfo(np.float64).tiny)
_SAFE = 1 - 1e-9
#: Bound of the elements of error vectors: their squared lengths stay finite in float32.
_LONG = 1e15
#: By how much of its length an output may shrink for its cosine to be told by what is across the baseline.
_MOST_SHRUNK = 0.5
#: The least margin between two classes that error vectors are weighted by, as a share of the mean margin.
_CLOSE = 0.01


class Demand(ABC):
    """One limit on one output."""

    power: int = 1
    """Of the error's length, that the loss grows with (see ``Target``)."""
    pool: Pool = "mean"
    separate = False
    """Whether parts are made of what ``measure`` gives, not of the metric's own sums."""

    def __init__(self, metric: str, limits: OutputLimits, whole: OutputStatistics) -> None:
        """Find the budget.

        Args:
            metric: What is limited.
            limits: Holds the limit, and how to look at the output.
            whole: All that a search sees of the output's baseline, compared with itself.
        """
        self.output, self.metric, self.limit = whole.name, METRICS[metric], limits.limits[metric]
        self.source, self.cut = whole.output, whole.cut
        """The model's output, and what is compared of its arrays."""
        self.limits, self.samples = limits, whole.samples
        self.budget = self._budget(whole)
        """How much of what is measured meets the limit exactly, as a mean over all samples."""
        bound, allowed = self.metric.bound, self._spared(whole)
        self.criterion = Criterion(self.output, metric, self.limit, bound, self.pool, allowed)

    def measure(self, b: Array, c: Array, samples: int) -> F64:
        """What parts are made of where they are measured apart, [samples, n]."""
        raise NotImplementedError

    def parts(self, rows: F64) -> F64:
        """Parts of the samples seen, [seen], from the metric's row for each; nan counts as inf."""
        with np.errstate(all="ignore"):  # inf and nan are answers here
            return np.nan_to_num(self._parts(rows), nan=np.inf, posinf=np.inf)

    def vectors(self, b: Array, c: Array, samples: int) -> NDArray[np.float32]:
        """Vectors linear in the error, the longer the worse, [samples, elements].

        ``c`` must be finite wherever ``b`` is.
        """
        with np.errstate(all="ignore"):
            vectors = np.clip(self._vectors(b, c, samples), -_LONG, _LONG)
        return np.asarray(vectors, np.float32)

    @abstractmethod
    def _vectors(self, b: Array, c: Array, samples: int) -> F64: ...

    @abstractmethod
    def _budget(self, whole: OutputStatistics) -> float: ...

    @abstractmethod
    def _measured(self, rows: F64) -> F64:
        """What adds up to a loss, [seen]."""

    def _parts(self, rows: F64) -> F64:
        return _SAFE * ratio(self._measured(rows), self.budget)

    def _spared(self, whole: OutputStatistics) -> int:
        """Samples that may have a part above 1."""
        return 0


class Squares(Demand):
    """SQNR, PSNR and MSE: the squared error against what the limit allows a sample on average."""

    power = 2

    def _budget(self, whole: OutputStatistics) -> float:
        sums = whole.sums
        if self.metric.name == "mse":
            return max(self.limit * sums.elements / whole.samples, TINY)
        signal = sums.bb if self.metric.name == "sqnr_db" else sums.peak**2 * sums.elements
        return max(signal / 10 ** (self.limit / 10) / whole.samples, TINY)

    def _measured(self, rows: F64) -> F64:
        return rows[:, AT["ee"]]

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        return error(b, c, samples) / math.sqrt(self.budget)


class Cosine(Demand):
    """Cosine over all samples as one vector; the budget is the mean energy of a baseline sample.

    By Cauchy and Schwarz the best that samples not yet seen can do is to be the baseline, times any factor.
    That leaves ``1 - cos^2 >= u / |b|^2``, where ``u = (|b|^2 |e|^2 - (b.e)^2) / |c|^2`` over the samples
    seen: their baseline's energy that the candidate does not explain.
    """

    power = 2

    def _budget(self, whole: OutputStatistics) -> float:
        return max(whole.sums.bb / whole.samples, TINY)

    def _measured(self, rows: F64) -> F64:
        each = [rows[:, AT[field]] for field in ("bb", "be", "ee")]
        yy, ye, ee = (column.sum() for column in each)
        if yy + ye <= 0:  # at a right angle or worse: nothing is explained
            unexplained, across = yy, each[0]
        else:
            unexplained = max(yy * ee - ye * ye, 0.0) / max(yy + 2 * ye + ee, TINY)
            tilt = ye / yy
            across = each[2] - 2 * tilt * each[1] + tilt**2 * each[0]
        best = math.sqrt(max(1 - unexplained / (self.budget * self.samples), 0.0))
        across = np.maximum(across, 0.0)
        return np.asarray(across / max(across.sum(), TINY) * (1 - best))

    def _parts(self, rows: F64) -> F64:
        return _SAFE * self.samples * ratio(self._measured(rows), 1 - self.limit)

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        y, e = flat(b, samples), error(b, c, samples)
        # A factor is no error; but what is left of an output that vanishes has no direction to speak of.
        along = max(np.sum(y * e) / max(np.sum(y * y), TINY), -_MOST_SHRUNK)
        across = e - y * along
        return across / math.sqrt(max(2 * self.budget * (1 - self.limit), TINY))


class Means(Demand):
    """Mean absolute and relative error."""

    def __init__(self, metric: str, limits: OutputLimits, whole: OutputStatistics) -> None:
        self.floor = limits.rel_floor * (whole.peak or 0.0) if metric.endswith("_rel") else None
        super().__init__(metric, limits, whole)

    def _budget(self, whole: OutputStatistics) -> float:
        return self.limit * self._count(whole)

    def _count(self, whole: OutputStatistics) -> float:
        return whole.sums.elements / whole.samples

    def _measured(self, rows: F64) -> F64:
        return rows[:, AT["absolute"]] if self.floor is None else rows[:, 1]

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        e = error(b, c, samples)
        if self.floor is not None:
            e = ratio(e, np.maximum(np.abs(flat(b, samples)), self.floor))
        return e / max(self.budget, TINY)


class Largest(Means):
    """Greatest absolute and relative error: the worst sample decides."""

    pool = "rank"

    def _count(self, whole: OutputStatistics) -> float:
        return 1.0

    def _measured(self, rows: F64) -> F64:
        return rows[:, AT["max_error"]] if self.floor is None else rows[:, 0]

    def _parts(self, rows: F64) -> F64:
        return ratio(self._measured(rows), self.budget)


class Tolerated(Demand):
    """Polygraphy's tolerance; a median or a quantile only all samples tell."""

    def __init__(self, metric: str, limits: OutputLimits, whole: OutputStatistics) -> None:
        self.wish = limits.tolerance or Tolerance()
        self.mean = self.wish.check == "mean"
        if not self.mean:
            self.pool = "rank" if self.wish.check in ("elemwise", "max") else "whole"
        super().__init__(metric, limits, whole)

    def _budget(self, whole: OutputStatistics) -> float:
        elements = whole.rows(self.metric, self.limits)[:, COUNTED].sum()
        return float(self.limit * elements / whole.samples) if self.pool != "rank" else self.limit

    def parts(self, rows: F64) -> F64:
        """As of any demand; nan where only all samples tell."""
        return np.full(len(rows), np.nan) if self.pool == "whole" else super().parts(rows)

    def _measured(self, rows: F64) -> F64:
        return np.asarray(rows[:, 2:].min(axis=1))  # of two sums, no more than either

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        allowed = np.maximum(self.wish.abs, self.wish.rel * np.abs(flat(b, samples)))
        return ratio(error(b, c, samples), np.maximum(allowed * self.budget, TINY))


class Unequal(Demand):
    """Agreement of integers, booleans and strings, element by element."""

    def _budget(self, whole: OutputStatistics) -> float:
        return (1 - self.limit) * whole.elements / whole.samples

    def _measured(self, rows: F64) -> F64:
        return rows[:, 0]

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        return np.asarray(b != c, np.float64).reshape(samples, -1) / max(self.budget, TINY)


def flat(array: Array, samples: int) -> F64:
    """[samples, elements] in float64; NaN and infinities become 0."""
    wide = array.astype(np.float64).reshape(samples, -1)
    finite = np.isfinite(wide)
    return wide if finite.all() else np.where(finite, wide, 0.0)


def error(b: Array, c: Array, samples: int) -> F64:
    """Candidate minus baseline, [samples, elements]; 0 where the baseline is not finite."""
    e = difference(b, c, b.astype(np.float64), c.astype(np.float64)).reshape(samples, -1)
    finite = np.isfinite(b)
    return e if finite.all() else np.where(finite.reshape(samples, -1), e, 0.0)


def ratio(value: F64, limit: F64 | float) -> F64:
    """``value / limit``, 0 where the value is 0 whatever the limit."""
    return np.where(value == 0, 0.0, value / np.asarray(limit, np.float64))


class EachSample(Demand):
    """A limit that each sample must keep by itself, but for those that are spared."""

    pool = "rank"

    def __init__(self, metric: str, limits: OutputLimits, whole: OutputStatistics) -> None:
        self.together = _KINDS[metric](metric, replace(limits, spared=None), whole)
        self.power = self.together.power
        super().__init__(metric, limits, whole)
        self.metric = limits.metric(metric)
        self.criterion = replace(self.criterion, metric=self.metric.name)

    def _budget(self, whole: OutputStatistics) -> float:
        return 1.0

    def _spared(self, whole: OutputStatistics) -> int:
        return int((self.limits.spared or 0.0) * whole.samples)

    def _measured(self, rows: F64) -> F64:
        """How much of the limit each sample uses up, [seen]."""
        values = self.metric.each(rows)
        return np.array([self.criterion.score(value).normalized_loss for value in values], np.float64)

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        return self.together._vectors(b, c, samples)


class Divergence(Demand):
    """KL; to second order a row's is half the variance of the logits' error under the baseline's softmax."""

    power = 2

    def _budget(self, whole: OutputStatistics) -> float:
        return self.limit * float(whole.rows(self.metric, self.limits)[:, COUNTED].sum()) / whole.samples

    def _measured(self, rows: F64) -> F64:
        return np.maximum(rows[:, 0], 0.0)

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        y, z = (rows_of(a, self.limits.axis, samples) for a in (b, c))
        p = np.exp(log_softmax(y))
        e = _finite(z - y)
        e = np.sqrt(p) * (e - (p * e).sum(axis=-1, keepdims=True))
        return flat(np.where(_counted(y)[..., None], e, 0.0), samples) / math.sqrt(max(2 * self.budget, TINY))


class Flips(Demand):
    """Agreement of the top class, or of the top five.

    Where each sample is one row, its part says how far it is on the way to another class; otherwise parts
    count the rows that have flipped.
    """

    def __init__(self, metric: str, limits: OutputLimits, whole: OutputStatistics) -> None:
        self.k = 5 if metric.startswith("top5") else 1
        rows = whole.rows(METRICS[metric], limits)
        self.rows = int(rows[:, COUNTED].sum())
        if (rows[:, COUNTED:] == 1).all():  # those that count, and all
            self.pool, self.separate = "rank", True
        super().__init__(metric, limits, whole)

    def _budget(self, whole: OutputStatistics) -> float:
        return (1 - self.limit) * self.rows / whole.samples

    def _spared(self, whole: OutputStatistics) -> int:
        if not self.separate:
            return 0
        spared = min(int((1 - self.limit) * self.rows) + 1, self.rows)
        while spared > 0 and (self.rows - spared) / self.rows < self.limit:
            spared -= 1
        return spared

    def measure(self, b: Array, c: Array, samples: int) -> F64:
        """How far each sample is on the way to another class, above 1 where it has flipped, [samples, 1]."""
        with np.errstate(all="ignore"):
            y, z = (rows_of(a, self.limits.axis, samples)[:, 0] for a in (b, c))
            top = y.argmax(axis=-1)[..., None]
            own = np.take_along_axis(z, top, axis=-1)
            rivals = y < np.take_along_axis(y, top, axis=-1)
            flipped = ((z > own) | ((z == own) & rivals)).sum(axis=-1) >= self.k
            way = np.partition(self._ways(y, z - y, 0.0), -self.k, axis=-1)[..., -self.k]
        return np.where(flipped, np.maximum(way, math.nextafter(1.0, 2.0)), np.clip(way, 0.0, 1.0))[:, None]

    def _measured(self, rows: F64) -> F64:
        return rows[:, 0] if self.separate else rows[:, COUNTED] - rows[:, 0]

    def _parts(self, rows: F64) -> F64:
        return self._measured(rows) if self.separate else super()._parts(rows)

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        y, z = (rows_of(a, self.limits.axis, samples) for a in (b, c))
        margin = y.max(axis=-1, keepdims=True) - y
        floor = _CLOSE * float(np.mean(margin[np.isfinite(margin)])) if margin.size else 0.0
        e = _finite(z - y)
        return flat(np.where(_counted(y)[..., None], self._ways(y, e, max(floor, TINY)), 0.0), samples)

    @staticmethod
    def _ways(y: F64, e: F64, floor: float) -> F64:
        """How far each class is on the way to the top class: (e_j - e_top) / (y_top - y_j), 0 for itself."""
        top = y.argmax(axis=-1)[..., None]
        gain = e - np.take_along_axis(e, top, axis=-1)
        margin = np.take_along_axis(y, top, axis=-1) - y
        return np.nan_to_num(ratio(gain, np.maximum(margin, floor)), nan=0.0, posinf=np.inf, neginf=0.0)


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
    "mse": Squares,
    "max_rel": Largest,
    "mean_rel": Means,
    "kl": Divergence,
    "top1_agreement": Flips,
    "top5_agreement": Flips,
    "tolerance": Tolerated,
    "agreement": Unequal,
}


def demands_on(whole: Mapping[str, OutputStatistics]) -> list[Demand]:
    """One demand per limit, in the order in which ``compare_outputs`` gives the scores that have one.

    ``whole``: all that a search sees of each output's baseline, compared with itself.
    """
    return [
        (_KINDS[metric] if limits.spared is None else EachSample)(metric, limits, stats)
        for stats in whole.values()
        for limits in stats.limits
        for metric in limits.limits
    ]
