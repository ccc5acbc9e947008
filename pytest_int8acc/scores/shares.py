"""Computes shares. A share says how much of a criterion's limit one sample uses up.

For a limit on a mean, a share of 1 is what the limit allows for an average sample. For a limit on the worst
sample, a share of 1 is the limit. The search for a fix reads scores, shares and error vectors. Verdicts
depend on the scores alone.

The search tries plans: a plan assigns a precision to each layer. It may reject a plan after some of the
samples have run, by the shares of these samples. Shares must therefore never overstate the loss, and samples
that did not run are assumed to be perfect. Sums are multiplied by a number just below 1, so that rounding
rejects no plan.

In this module ``b`` is an array of the float baseline, and ``c`` is the same array of the low-precision
candidate. Both arrays hold ``samples`` samples along their first axis, or they are one sample.
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

#: How the normalized loss of a criterion is computed from the shares of the samples. ``mean``: the loss is
#: the mean of the shares. ``rank``: the loss is the greatest share, after leaving out as many samples as may
#: exceed the limit. ``whole``: samples have no shares, because the criterion can only be computed for all
#: samples together, like mAP and a user's metric.
Pool = Literal["mean", "rank", "whole"]
#: The smallest positive float64 of full precision. Divisors are at least this, so that none is 0.
TINY = float(np.finfo(np.float64).tiny)
#: Shares that are summed are multiplied by this factor just below 1. Otherwise a rounding error could make a
#: sum exceed the limit.
_SAFE = 1 - 1e-9
#: Maximum magnitude of an element of an error vector. Greater elements are clipped, so that the squared
#: length of the vector stays finite in float32.
_MAX_ELEMENT = 1e15
#: Cosine similarity ignores a change of scale, but an output that shrinks to 0 has no direction. If an output
#: shrinks by more than this ratio of its size, the part beyond the ratio is treated as an error.
_MAX_SHRINKAGE = 0.5
#: The error of a class is divided by the margin between its score and that of the top class. The divisor is
#: at least this ratio of the mean margin.
_MIN_MARGIN = 0.01


class Whole(NamedTuple):
    """Sums of the float baseline over all samples of a search. They decide how much error a limit allows."""

    samples: int
    elements: int
    sums: Sums
    rows: F64
    """A row for each sample, [samples, columns], as the limit's metric computes it if the baseline is
    compared with itself. The rows count the elements or class rows that are compared."""


class Share(ABC):
    """Computes which share of one limit each sample uses up, from a row of numbers for each sample.

    For a limit on a mean, a share of 1 is what the limit allows for an average sample. For a limit on the
    worst sample, a share of 1 is the limit.
    """

    power: int = 1
    """The loss is proportional to this power of the error vector's length: 1, or 2 for a squared error."""
    pool: Pool = "mean"
    measure: Measure | None = None
    """The measure that computes the rows which ``of`` reads; None means the measure of the limit's metric."""
    allowed: int = 0
    """Maximum number of samples whose share may exceed 1. It is used only if ``pool`` is ``rank``."""
    is_elementwise = False
    """Whether an element of an error vector depends on the same element of the two arrays alone."""
    by_energy = False
    """Whether the length of error vectors is relative to the baseline: they are divided by the square root of
    the baseline's mean energy per sample."""

    def __init__(self, limit: float, options: Options, whole: Whole) -> None:
        self.limit, self.options, self.whole = limit, options, whole
        self.budget = self._budget()
        """The loss that the limit allows for an average sample or, if ``pool`` is ``rank``, for each sample.
        In the class ``Angle``, it is the baseline's mean energy per sample."""

    def of(self, rows: F64) -> F64:
        """Returns which share of the limit each sample uses up, [samples], from the samples' rows.

        The share is inf if it cannot be computed. It is nan if the criterion can only be computed for all
        samples together (``pool`` is ``whole``).
        """
        if self.pool == "whole":
            return np.full(len(rows), np.nan)
        with np.errstate(all="ignore"):  # inf and nan are valid results here
            return np.nan_to_num(self._shares(rows), nan=np.inf, posinf=np.inf)

    def vectors(self, b: Array, c: Array, samples: int) -> NDArray[np.float32]:
        """Returns the error vector of each sample, [samples, elements]. A greater loss has a longer vector.

        The vectors are linear in the error. ``b`` is the baseline, and ``c`` the candidate, which must be
        finite wherever ``b`` is.
        """
        with np.errstate(all="ignore"):
            vectors = np.clip(self._vectors(b, c, samples), -_MAX_ELEMENT, _MAX_ELEMENT)
        return np.asarray(vectors, np.float32)

    @abstractmethod
    def _budget(self) -> float: ...

    @abstractmethod
    def _used(self, rows: F64) -> F64:
        """Returns the loss of each sample, [samples], in the unit of ``budget``, from the samples' rows."""

    @abstractmethod
    def _vectors(self, b: Array, c: Array, samples: int) -> F64: ...

    def _shares(self, rows: F64) -> F64:
        shares = ratio(self._used(rows), self.budget)
        return shares if self.pool == "rank" else _SAFE * shares


class MeanSquare(Share):
    """Computes which share of a limit on the mean squared error each sample uses up."""

    power, is_elementwise = 2, True

    def _budget(self) -> float:
        return max(self._allowed_energy() / self.whole.samples, TINY)

    def _allowed_energy(self) -> float:
        return self.limit * self.whole.sums.elements

    def _used(self, rows: F64) -> F64:
        return rows[:, AT["ee"]]

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        return error(b, c, samples) / math.sqrt(self.budget)


class Decibels(MeanSquare):
    """Computes which share of a limit on the SQNR each sample uses up.

    The squared error is divided by the energy of the baseline.
    """

    by_energy = True

    def _allowed_energy(self) -> float:
        return self.whole.sums.bb / 10 ** (self.limit / 10)


class PeakDecibels(MeanSquare):
    """Computes which share of a limit on the PSNR each sample uses up.

    The squared error is divided by the squared peak times the number of elements.
    """

    def _allowed_energy(self) -> float:
        return self.whole.sums.peak**2 * self.whole.sums.elements / 10 ** (self.limit / 10)


class Angle(Share):
    """Computes which share of a limit on the cosine similarity each sample uses up.

    All samples are taken as one vector. In samples that did not run, the candidate is assumed to be a
    multiple of the baseline, which is the best case. In the samples that ran, u is the part of the baseline's
    energy that the candidate does not explain. With e = c - b over these samples,
    ``u = (|b|^2 |e|^2 - (b.e)^2) / |c|^2``. By Cauchy and Schwarz, ``1 - cos^2 >= u / |b|^2``, where
    ``|b|^2`` is over all samples.
    """

    power = 2
    by_energy = True

    def _budget(self) -> float:
        return max(self.whole.sums.bb / self.whole.samples, TINY)

    def _used(self, rows: F64) -> F64:
        bb, be, ee = (rows[:, AT[field]] for field in ("bb", "be", "ee"))
        yy, ye, total = bb.sum(), be.sum(), ee.sum()
        if yy + ye <= 0:  # The candidate is at 90 degrees or more to the baseline and explains nothing of it.
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
    """Computes which share of a limit on the mean absolute error each sample uses up."""

    is_elementwise = True
    column = AT["absolute"]
    """The index of the column that holds the error of a sample in the rows of the metric."""
    relative = False
    """Whether the error of each element is divided by the magnitude of the baseline's element."""

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
    """Computes which share of a limit on the greatest absolute error each sample uses up.

    The worst sample decides.
    """

    pool, column = "rank", AT["max_error"]


class RelativeError(AbsoluteError):
    """Computes which share of a limit on the mean relative error each sample uses up."""

    relative, column = True, 1


class GreatestRelativeError(RelativeError):
    """Computes which share of a limit on the greatest relative error each sample uses up.

    The worst sample decides.
    """

    pool, column = "rank", 0


class Differing(Share):
    """Computes which share of a limit on the agreement of integers, booleans or strings each sample uses up.

    The loss is the number of elements that differ.
    """

    is_elementwise = True

    def _budget(self) -> float:
        return (1 - self.limit) * self.whole.elements / self.whole.samples

    def _used(self, rows: F64) -> F64:
        return rows[:, 0]

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        return np.asarray(b != c, np.float64).reshape(samples, -1) / max(self.budget, TINY)


class _OfClasses(Share):
    """Base class for limits on metrics that compare class rows, which are vectors of class scores."""

    def _class_errors(self, b: Array, c: Array, samples: int) -> tuple[F64, F64]:
        """Returns the baseline, and the error of the candidate with 0 in place of NaN and infinity.

        Both are [samples, class rows, classes].
        """
        y, z = (class_rows(a, self.options.axis, samples) for a in (b, c))
        return y, np.nan_to_num(z - y, nan=0.0, posinf=0.0, neginf=0.0)

    def _of_compared(self, y: F64, vectors: F64) -> F64:
        """Returns ``vectors`` as [samples, elements], with 0 for class rows that are not compared.

        A class row is not compared if its greatest value in the baseline ``y`` is not finite.
        """
        compared = np.isfinite(y.max(axis=-1))[..., None]
        return flat(np.where(compared, vectors, 0.0), len(y))


class Divergence(_OfClasses):
    """Computes which share of a limit on the KL divergence each sample uses up.

    To second order, the KL divergence is half the variance of the logits' error under the softmax of the
    baseline. Error vectors use this approximation.
    """

    power = 2

    def _budget(self) -> float:
        return self.limit * float(self.whole.rows[:, COUNTED].sum()) / self.whole.samples

    def _used(self, rows: F64) -> F64:
        return np.maximum(rows[:, 0], 0.0)

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        y, e = self._class_errors(b, c, samples)
        p = np.exp(log_softmax(y))
        vectors = np.sqrt(p) * (e - (p * e).sum(axis=-1, keepdims=True))
        return self._of_compared(y, vectors) / math.sqrt(max(2 * self.budget, TINY))


class Flips(_OfClasses):
    """Computes which share of a limit on top-1 agreement each sample uses up.

    A class row is one vector of class scores. If each sample is one class row, its share measures how near
    its top class is to losing its place (see ``rows.flip_distance``). Otherwise its share is the number of
    its class rows whose top class has changed, divided by the number that the limit allows.
    """

    distance = FLIP1

    def __init__(self, limit: float, options: Options, whole: Whole) -> None:
        self.class_rows = int(whole.rows[:, COUNTED].sum())
        if (whole.rows[:, COUNTED:] == 1).all():  # Each sample has exactly one class row, and it is compared.
            self.pool, self.measure, self.allowed = "rank", self.distance, self._may_flip(limit)
        super().__init__(limit, options, whole)

    def _may_flip(self, limit: float) -> int:
        """Returns how many class rows may change their top class without missing the limit.

        For each number the score is computed as usual, so that rounding has the same effect as in scores.
        """
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
        y, e = self._class_errors(b, c, samples)
        margin = y.max(axis=-1, keepdims=True) - y
        floor = _MIN_MARGIN * float(np.mean(margin[np.isfinite(margin)])) if margin.size else 0.0
        return self._of_compared(y, class_gains(y, e, max(floor, TINY)))


class Flips5(Flips):
    """Computes which share of a limit on top-5 agreement each sample uses up."""

    distance = FLIP5


def flat(array: Array, samples: int) -> F64:
    """Returns an array of ``samples`` samples as [samples, elements], float64; NaN and infinity become 0."""
    wide = array.astype(np.float64).reshape(samples, -1)
    finite = np.isfinite(wide)
    return wide if finite.all() else np.where(finite, wide, 0.0)


def error(b: Array, c: Array, samples: int) -> F64:
    """Returns candidate minus baseline, [samples, elements]; 0 where the baseline is not finite."""
    e = difference(b, c, b.astype(np.float64), c.astype(np.float64)).reshape(samples, -1)
    finite = np.isfinite(b)
    return e if finite.all() else np.where(finite.reshape(samples, -1), e, 0.0)
