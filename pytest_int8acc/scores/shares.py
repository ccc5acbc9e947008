"""How much of a limit each sample uses up, and error vectors: what a search reads of the metrics' rows.

A share of 1 is exactly what the limit allows a sample on average; for a limit on the worst sample, exactly
the limit. Verdicts come from the metrics' values alone. A search rejects a plan by the shares of a part of
the samples, so shares never overstate: samples that were not run count as perfect, and sums are multiplied by
a number just below 1, so that rounding proves nothing.

Below, b is the baseline, c the candidate, e = c - b. Arrays hold one sample in each row of their first axis,
or are one sample.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.scores.measures import (
    COUNTED,
    FLIP1,
    FLIP5,
    Measure,
    Options,
    class_gains,
    class_rows,
    log_softmax,
    ratio,
)
from pytest_int8acc.scores.sums import AT, F64, Sums, difference
from pytest_int8acc.tensors import Array

#: How the shares of the samples make a criterion's loss. ``mean``: their mean. ``rank``: the greatest after
#: as many as are allowed above 1, so that the criterion fails where more samples than allowed have a share
#: above 1. ``whole``: all samples together give a number, and no sample has a share (mAP, a user's metric).
Pool = Literal["mean", "rank", "whole"]
#: The least positive float64: a least divisor.
TINY = float(np.finfo(np.float64).tiny)
#: What a sum of shares is multiplied by.
_SAFE = 1 - 1e-9
#: Greatest magnitude of an element of an error vector: squared lengths stay finite in float32.
_MAX_ELEMENT = 1e15
#: Greatest ratio by which an output may shrink for its cosine to be told by the error across the baseline.
_MAX_SHRINKAGE = 0.5
#: Error vectors are divided by the margin between two classes. This is the minimum margin, as a ratio to the
#: mean margin.
_MIN_MARGIN = 0.01


class Whole(NamedTuple):
    """The baseline in all samples that a search sees, compared with itself."""

    samples: int
    elements: int
    sums: Sums
    rows: F64
    """The metric's own, [samples, columns]."""


class Share(ABC):
    """What each sample uses up of one limit, from the rows of the limit's metric."""

    power: int = 1
    """The power of the error's length that the loss grows with (see ``search.types.Target``)."""
    pool: Pool = "mean"
    measure: Measure | None = None
    """Makes the rows that shares are made of, where these are not the metric's own."""

    def __init__(self, limit: float, options: Options, whole: Whole) -> None:
        self.limit, self.options, self.samples = limit, options, whole.samples
        self.budget = self._budget(whole)
        """How much of what is summed up meets the limit exactly, as a mean over all samples."""
        self.allowed = self._allowed(whole)
        """How many samples may have a share above 1."""

    def of(self, rows: F64) -> F64:
        """The shares of samples, [samples], from a row for each; inf where a share is nan."""
        with np.errstate(all="ignore"):  # inf and nan are answers here
            return np.nan_to_num(self._shares(rows), nan=np.inf, posinf=np.inf)

    def vectors(self, b: Array, c: Array, samples: int) -> NDArray[np.float32]:
        """Vectors that are linear in the error, and longer the worse it is, [samples, elements].

        ``c`` must be finite wherever ``b`` is.
        """
        with np.errstate(all="ignore"):
            vectors = np.clip(self._vectors(b, c, samples), -_MAX_ELEMENT, _MAX_ELEMENT)
        return np.asarray(vectors, np.float32)

    @abstractmethod
    def _budget(self, whole: Whole) -> float: ...

    @abstractmethod
    def _used(self, rows: F64) -> F64:
        """What is summed up for the loss, [samples]."""

    @abstractmethod
    def _vectors(self, b: Array, c: Array, samples: int) -> F64: ...

    def _shares(self, rows: F64) -> F64:
        return _SAFE * ratio(self._used(rows), self.budget)

    def _allowed(self, whole: Whole) -> int:
        return 0


class MeanSquare(Share):
    """Mean squared error."""

    power = 2

    def _budget(self, whole: Whole) -> float:
        return max(self.limit * whole.sums.elements / whole.samples, TINY)

    def _used(self, rows: F64) -> F64:
        return rows[:, AT["ee"]]

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        return error(b, c, samples) / math.sqrt(self.budget)


class Decibels(MeanSquare):
    """SQNR: the squared error against the baseline's energy."""

    def _signal(self, sums: Sums) -> float:
        return sums.bb

    def _budget(self, whole: Whole) -> float:
        return max(self._signal(whole.sums) / 10 ** (self.limit / 10) / whole.samples, TINY)


class PeakDecibels(Decibels):
    """PSNR: the squared error against the energy that all elements had at the baseline's peak."""

    def _signal(self, sums: Sums) -> float:
        return sums.peak**2 * sums.elements


class Angle(Share):
    """Cosine over all samples as one vector; the budget is the mean energy of a baseline sample.

    By Cauchy and Schwarz the best that samples not yet run can do is to be the baseline times any factor.
    Then ``1 - cos^2 >= u / |b|^2``, with ``u = (|b|^2 |e|^2 - (b.e)^2) / |c|^2`` over the samples that were
    run: the energy of their baseline that the candidate does not explain.
    """

    power = 2

    def _budget(self, whole: Whole) -> float:
        return max(whole.sums.bb / whole.samples, TINY)

    def _used(self, rows: F64) -> F64:
        bb, be, ee = (rows[:, AT[field]] for field in ("bb", "be", "ee"))
        yy, ye, total = bb.sum(), be.sum(), ee.sum()
        if yy + ye <= 0:  # at a right angle or worse: nothing is explained
            unexplained, across = yy, bb
        else:
            unexplained = max(yy * total - ye * ye, 0.0) / max(yy + 2 * ye + total, TINY)
            tilt = ye / yy
            across = ee - 2 * tilt * be + tilt**2 * bb
        best = math.sqrt(max(1 - unexplained / (self.budget * self.samples), 0.0))
        across = np.maximum(across, 0.0)
        return np.asarray(across / max(across.sum(), TINY) * (1 - best))

    def _shares(self, rows: F64) -> F64:
        return _SAFE * self.samples * ratio(self._used(rows), 1 - self.limit)

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        y, e = flat(b, samples), error(b, c, samples)
        # A factor is no error; but what is left of an output that vanishes has no direction to speak of.
        along = max(np.sum(y * e) / max(np.sum(y * y), TINY), -_MAX_SHRINKAGE)
        across = e - y * along
        return across / math.sqrt(max(2 * self.budget * (1 - self.limit), TINY))


class AbsoluteMean(Share):
    """Mean absolute error."""

    column = AT["absolute"]

    def _budget(self, whole: Whole) -> float:
        return self.limit * (whole.sums.elements / whole.samples)

    def _used(self, rows: F64) -> F64:
        return rows[:, self.column]

    def _errors(self, b: Array, c: Array, samples: int) -> F64:
        return error(b, c, samples)

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        return self._errors(b, c, samples) / max(self.budget, TINY)


class RelativeMean(AbsoluteMean):
    """Mean relative error."""

    column = 1

    def __init__(self, limit: float, options: Options, whole: Whole) -> None:
        self.floor = options.rel_floor * whole.sums.peak
        super().__init__(limit, options, whole)

    def _errors(self, b: Array, c: Array, samples: int) -> F64:
        return ratio(error(b, c, samples), np.maximum(np.abs(flat(b, samples)), self.floor))


class _Greatest(AbsoluteMean):
    """The greatest error: the worst sample decides."""

    pool = "rank"

    def _budget(self, whole: Whole) -> float:
        return self.limit

    def _shares(self, rows: F64) -> F64:
        return ratio(self._used(rows), self.budget)


class AbsoluteGreatest(_Greatest):
    """Greatest absolute error."""

    column = AT["max_error"]


class RelativeGreatest(_Greatest, RelativeMean):
    """Greatest relative error."""

    column = 0


class Tolerated(Share):
    """Polygraphy's tolerance; a median or a quantile is known of all samples together only."""

    def __init__(self, limit: float, options: Options, whole: Whole) -> None:
        check = options.tolerance.check
        if check != "mean":
            self.pool = "rank" if check in ("elemwise", "max") else "whole"
        super().__init__(limit, options, whole)

    def _budget(self, whole: Whole) -> float:
        if self.pool == "rank":
            return self.limit
        return float(self.limit * whole.rows[:, COUNTED].sum() / whole.samples)

    def of(self, rows: F64) -> F64:
        """As of any share; nan where only all samples together tell."""
        return np.full(len(rows), np.nan) if self.pool == "whole" else super().of(rows)

    def _used(self, rows: F64) -> F64:
        return np.asarray(rows[:, 2:].min(axis=1))  # of two sums, no more than either

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        tolerance = self.options.tolerance
        allowed = np.maximum(tolerance.abs, tolerance.rel * np.abs(flat(b, samples)))
        return ratio(error(b, c, samples), np.maximum(allowed * self.budget, TINY))


class Differing(Share):
    """Agreement of integers, booleans and strings, element by element."""

    def _budget(self, whole: Whole) -> float:
        return (1 - self.limit) * whole.elements / whole.samples

    def _used(self, rows: F64) -> F64:
        return rows[:, 0]

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        return np.asarray(b != c, np.float64).reshape(samples, -1) / max(self.budget, TINY)


class Divergence(Share):
    """KL divergence; to second order half the variance of the logits' error under the baseline's softmax."""

    power = 2

    def _budget(self, whole: Whole) -> float:
        return self.limit * float(whole.rows[:, COUNTED].sum()) / whole.samples

    def _used(self, rows: F64) -> F64:
        return np.maximum(rows[:, 0], 0.0)

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        y, z = (class_rows(a, self.options.axis, samples) for a in (b, c))
        p = np.exp(log_softmax(y))
        e = _finite(z - y)
        e = np.sqrt(p) * (e - (p * e).sum(axis=-1, keepdims=True))
        counted = np.isfinite(y.max(axis=-1))[..., None]
        return flat(np.where(counted, e, 0.0), samples) / math.sqrt(max(2 * self.budget, TINY))


class Flips(Share):
    """Agreement of the top class.

    Where each sample is one class row, its share is how far the top class is on the way out (see
    ``measures.flip_distance``). Otherwise shares count the class rows that have flipped.
    """

    distance = FLIP1

    def __init__(self, limit: float, options: Options, whole: Whole) -> None:
        self.rows = int(whole.rows[:, COUNTED].sum())
        if (whole.rows[:, COUNTED:] == 1).all():  # the class rows that count, and all
            self.pool, self.measure = "rank", self.distance
        super().__init__(limit, options, whole)

    def _budget(self, whole: Whole) -> float:
        return (1 - self.limit) * self.rows / whole.samples

    def _allowed(self, whole: Whole) -> int:
        if self.pool != "rank":
            return 0
        allowed = min(int((1 - self.limit) * self.rows) + 1, self.rows)
        while allowed > 0 and (self.rows - allowed) / self.rows < self.limit:
            allowed -= 1
        return allowed

    def _used(self, rows: F64) -> F64:
        return rows[:, COUNTED] - rows[:, 0]

    def _shares(self, rows: F64) -> F64:
        return rows[:, 0] if self.pool == "rank" else super()._shares(rows)

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        y, z = (class_rows(a, self.options.axis, samples) for a in (b, c))
        margin = y.max(axis=-1, keepdims=True) - y
        floor = _MIN_MARGIN * float(np.mean(margin[np.isfinite(margin)])) if margin.size else 0.0
        gains = class_gains(y, _finite(z - y), max(floor, TINY))
        counted = np.isfinite(y.max(axis=-1))[..., None]
        return flat(np.where(counted, gains, 0.0), samples)


class Flips5(Flips):
    """Agreement of the top five classes."""

    distance = FLIP5


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


def _finite(error: F64) -> F64:
    return np.nan_to_num(error, nan=0.0, posinf=0.0, neginf=0.0)
