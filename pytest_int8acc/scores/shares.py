"""How much of a limit each sample uses up, and error vectors: what a search reads besides the scores.

A share of 1 is what the limit allows a sample on average. For a limit on the worst sample, 1 is the limit.
Verdicts come from the scores alone. A search rejects a plan by the shares of some of the samples, so shares
never overstate: samples that did not run count as perfect, and sums are multiplied by a number just below 1,
so that rounding rejects nothing.

In this module ``b`` is an array of the baseline and ``c`` the same array of the candidate. Both hold
``samples`` samples along their first axis, or are one sample.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.scores.rows import (
    AT,
    COUNTED,
    F64,
    FLIP1,
    FLIP5,
    Measure,
    Options,
    Sums,
    class_gains,
    class_rows,
    difference,
    log_softmax,
    ratio,
)
from pytest_int8acc.tensors import Array

#: How the shares of the samples make the normalized loss of a criterion. ``mean`` takes their mean. ``rank``
#: takes the greatest share after those that the criterion allows to be above 1. ``whole``: all samples
#: together give a number, as for mAP and a user's metric, and no sample has a share.
Pool = Literal["mean", "rank", "whole"]
#: The least positive float64 of full precision. It replaces a divisor of 0.
TINY = float(np.finfo(np.float64).tiny)
#: The factor of shares that are summed: just below 1, so that rounding does not reject a plan.
_SAFE = 1 - 1e-9
#: The greatest magnitude of an element of an error vector. Squared lengths then stay finite in float32.
_MAX_ELEMENT = 1e15
#: An output may shrink by this ratio before the direction of its error counts. Cosine similarity ignores a
#: factor, but an output that vanishes has no direction.
_MAX_SHRINKAGE = 0.5
#: The least margin between two classes by which an error is divided, as a ratio to the mean margin.
_MIN_MARGIN = 0.01


class Whole(NamedTuple):
    """The baseline in all samples that a search runs, compared with itself."""

    samples: int
    elements: int
    sums: Sums
    rows: F64
    """The rows of the limited metric, [samples, columns]."""


class Share(ABC):
    """What each sample uses up of one limit, from the rows of the limit's metric."""

    power: int = 1
    """The loss grows with this power of the length of the error vector (see ``search.types.Target``)."""
    pool: Pool = "mean"
    measure: Measure | None = None
    """Makes the rows that shares are computed from; None: the metric's own measure does."""
    allowed: int = 0
    """How many samples may have a share above 1, for the pool ``rank``."""

    def __init__(self, limit: float, options: Options, whole: Whole) -> None:
        self.limit, self.options, self.whole = limit, options, whole
        self.budget = self._budget()
        """The value of ``_used``, as a mean over all samples, with which the limit is met exactly."""

    def of(self, rows: F64) -> F64:
        """Returns the shares of samples, [samples], from their rows.

        A share is inf if it cannot be computed, and nan if the pool is ``whole``.
        """
        if self.pool == "whole":
            return np.full(len(rows), np.nan)
        with np.errstate(all="ignore"):  # inf and nan are results here
            return np.nan_to_num(self._shares(rows), nan=np.inf, posinf=np.inf)

    def vectors(self, b: Array, c: Array, samples: int) -> NDArray[np.float32]:
        """Returns vectors that are linear in the error, and longer the worse it is, [samples, elements].

        ``c`` must be finite wherever ``b`` is.
        """
        with np.errstate(all="ignore"):
            vectors = np.clip(self._vectors(b, c, samples), -_MAX_ELEMENT, _MAX_ELEMENT)
        return np.asarray(vectors, np.float32)

    @abstractmethod
    def _budget(self) -> float: ...

    @abstractmethod
    def _used(self, rows: F64) -> F64:
        """Returns what the samples add to the loss, [samples]."""

    @abstractmethod
    def _vectors(self, b: Array, c: Array, samples: int) -> F64: ...

    def _shares(self, rows: F64) -> F64:
        shares = ratio(self._used(rows), self.budget)
        return shares if self.pool == "rank" else _SAFE * shares


class MeanSquare(Share):
    """Shares of the mean squared error."""

    power = 2

    def _budget(self) -> float:
        return max(self._allowed_energy() / self.whole.samples, TINY)

    def _allowed_energy(self) -> float:
        return self.limit * self.whole.sums.elements

    def _used(self, rows: F64) -> F64:
        return rows[:, AT["ee"]]

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        return error(b, c, samples) / math.sqrt(self.budget)


class Decibels(MeanSquare):
    """Shares of the SQNR: the squared error against the baseline's energy."""

    def _allowed_energy(self) -> float:
        return self.whole.sums.bb / 10 ** (self.limit / 10)


class PeakDecibels(MeanSquare):
    """Shares of the PSNR: the squared error against the energy that all elements have at the peak."""

    def _allowed_energy(self) -> float:
        return self.whole.sums.peak**2 * self.whole.sums.elements / 10 ** (self.limit / 10)


class Angle(Share):
    """Shares of the cosine similarity. All samples are one vector, and the budget is a sample's mean energy.

    Samples that did not run can at best be the baseline times any factor. By Cauchy and Schwarz
    ``1 - cos^2 >= u / |b|^2``, where ``u = (|b|^2 |e|^2 - (b.e)^2) / |c|^2`` is taken over the samples that
    ran, with e = c - b. ``u`` is the energy of their baseline that the candidate does not explain.
    """

    power = 2

    def _budget(self) -> float:
        return max(self.whole.sums.bb / self.whole.samples, TINY)

    def _used(self, rows: F64) -> F64:
        bb, be, ee = (rows[:, AT[field]] for field in ("bb", "be", "ee"))
        yy, ye, total = bb.sum(), be.sum(), ee.sum()
        if yy + ye <= 0:  # at a right angle or worse, nothing is explained
            unexplained, across = yy, bb
        else:
            unexplained = max(yy * total - ye * ye, 0.0) / max(yy + 2 * ye + total, TINY)
            tilt = ye / yy
            across = ee - 2 * tilt * be + tilt**2 * bb
        best = math.sqrt(max(1 - unexplained / (self.budget * self.whole.samples), 0.0))
        across = np.maximum(across, 0.0)
        return np.asarray(across / max(across.sum(), TINY) * (1 - best))

    def _shares(self, rows: F64) -> F64:
        return _SAFE * self.whole.samples * ratio(self._used(rows), 1 - self.limit)

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        y, e = flat(b, samples), error(b, c, samples)
        along = max(np.sum(y * e) / max(np.sum(y * y), TINY), -_MAX_SHRINKAGE)
        across = e - y * along
        return across / math.sqrt(max(2 * self.budget * (1 - self.limit), TINY))


class AbsoluteError(Share):
    """Shares of the mean absolute error."""

    column = AT["absolute"]
    """The column of the metric's rows that holds the error of a sample."""
    relative = False
    """Whether errors are divided by the baseline's magnitude."""

    def _budget(self) -> float:
        if self.pool == "rank":
            return self.limit
        return self.limit * (self.whole.sums.elements / self.whole.samples)

    def _used(self, rows: F64) -> F64:
        return rows[:, self.column]

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        errors = error(b, c, samples)
        if self.relative:
            floor = self.options.rel_floor * self.whole.sums.peak
            errors = ratio(errors, np.maximum(np.abs(flat(b, samples)), floor))
        return errors / max(self.budget, TINY)


class GreatestAbsoluteError(AbsoluteError):
    """Shares of the greatest absolute error: the worst sample decides."""

    pool, column = "rank", AT["max_error"]


class RelativeError(AbsoluteError):
    """Shares of the mean relative error."""

    relative, column = True, 1


class GreatestRelativeError(RelativeError):
    """Shares of the greatest relative error: the worst sample decides."""

    pool, column = "rank", 0


class Differing(Share):
    """Shares of the agreement of integers, booleans and strings, element by element."""

    def _budget(self) -> float:
        return (1 - self.limit) * self.whole.elements / self.whole.samples

    def _used(self, rows: F64) -> F64:
        return rows[:, 0]

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        return np.asarray(b != c, np.float64).reshape(samples, -1) / max(self.budget, TINY)


class Divergence(Share):
    """Shares of the KL divergence.

    To second order it is half the variance of the logits' error under the baseline's softmax.
    """

    power = 2

    def _budget(self) -> float:
        return self.limit * float(self.whole.rows[:, COUNTED].sum()) / self.whole.samples

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
    """Shares of the agreement of the top class.

    If each sample is one class row, its share is the distance of the top class from losing its place (see
    ``rows.flip_distance``). Otherwise shares count the class rows whose top class has changed.
    """

    distance = FLIP1

    def __init__(self, limit: float, options: Options, whole: Whole) -> None:
        self.class_rows = int(whole.rows[:, COUNTED].sum())
        if (whole.rows[:, COUNTED:] == 1).all():  # each sample has one class row, and it counts
            self.pool, self.measure, self.allowed = "rank", self.distance, self._may_flip(limit)
        super().__init__(limit, options, whole)

    def _may_flip(self, limit: float) -> int:
        """Returns how many class rows may flip, by the very division that makes the score."""
        allowed = min(int((1 - limit) * self.class_rows) + 1, self.class_rows)
        while allowed > 0 and (self.class_rows - allowed) / self.class_rows < limit:
            allowed -= 1
        return allowed

    def _budget(self) -> float:
        return (1 - self.limit) * self.class_rows / self.whole.samples

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
    """Shares of the agreement of the top five classes."""

    distance = FLIP5


def flat(array: Array, samples: int) -> F64:
    """Returns an array as [samples, elements] in float64. NaN and infinities become 0."""
    wide = array.astype(np.float64).reshape(samples, -1)
    finite = np.isfinite(wide)
    return wide if finite.all() else np.where(finite, wide, 0.0)


def error(b: Array, c: Array, samples: int) -> F64:
    """Returns candidate minus baseline, [samples, elements]; 0 where the baseline is not finite."""
    e = difference(b, c, b.astype(np.float64), c.astype(np.float64)).reshape(samples, -1)
    finite = np.isfinite(b)
    return e if finite.all() else np.where(finite.reshape(samples, -1), e, 0.0)


def _finite(error: F64) -> F64:
    return np.nan_to_num(error, nan=0.0, posinf=0.0, neginf=0.0)
