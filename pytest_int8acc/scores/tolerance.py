"""Polygraphy's tolerance as a metric, whose value is the ratio of the errors to the tolerance.

The verdict is the same as that of ``polygraphy.comparator.CompareFunc.simple(candidate, baseline)`` with all
samples in one iteration. An error passes if it is within the absolute or the relative tolerance. Errors are
computed as Polygraphy computes them, in the precision of the output, but at least in float32. Relative errors
are relative to |b|, or to 2.2e-16 if b is 0.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.scores.rows import (
    F64,
    Measure,
    Options,
    Tolerance,
    difference,
    pieces,
    ratio,
    same_non_finite,
)
from pytest_int8acc.scores.shares import TINY, Share, Whole, error, flat
from pytest_int8acc.tensors import Array

#: The names of Polygraphy's checks. Rows of numbers contain the index of a name in this tuple.
CHECKS = ("elemwise", "max", "mean", "median", "quantile")
#: Relative errors are divided by this where the baseline is 0, as in Polygraphy.
_EPSILON = 2.0**-52
#: The smallest ratio of an error to its tolerance that is outside the tolerance: the next float64 above 1.
_ABOVE_1 = math.nextafter(1.0, 2.0)
#: The size of the histograms of ratios of errors to the tolerance. The bins are logarithmic: 8 for each
#: factor of 2 (octave), over 16 octaves below and 16 above the ratio 1.
_BINS_PER_OCTAVE, _OCTAVES = 8, 16
_BINS = 2 * _BINS_PER_OCTAVE * _OCTAVES + 1
#: The indices of the columns in the row of numbers of one sample. Column ``_CHECK`` holds the index of the
#: check in ``CHECKS``, column ``_QUANTILE`` the checked quantile, and ``_COUNT`` the number of elements. Each
#: other name stands for two neighbouring columns, the first for absolute and the second for relative errors.
#: The row of several samples has the maximum of each column before ``_COUNT``, and the sum of each other
#: column. If a median or a quantile is checked, two histograms of ``_BINS`` columns each follow.
_CHECK, _QUANTILE, _GREATEST, _GREATEST_INSIDE, _LEAST_OUTSIDE = 0, 1, 2, 4, 6
_COUNT, _SUM, _INSIDE = 8, 9, 11
_COLUMNS = 13


def tolerance(row: F64) -> float:
    """Ratio of the errors to Polygraphy's tolerance: up to 1 is within the tolerance; nan without elements.

    For the check ``elemwise`` this is the greatest |b - c| / max(abs, rel |b|) of any element. The other
    checks compute their statistic of absolute errors / abs, and of relative errors / rel. The value is then
    the lower of the two results. For a median or a quantile the value is within 5 % of the exact one, and
    always on the same side of 1.
    """
    if not row[_COUNT]:
        return math.nan
    check = CHECKS[int(row[_CHECK])]
    if check in ("elemwise", "max"):
        return float(row[_GREATEST : _GREATEST + 2].min())
    if check == "mean":
        return float(row[_SUM : _SUM + 2].min() / row[_COUNT])
    return float(min(_quantile(row, kind) for kind in range(2)))


def is_of_worst(row: F64) -> bool:
    """Whether the worst element decides the check that ``row`` was computed for: ``elemwise`` or ``max``."""
    return CHECKS[int(row[_CHECK])] in ("elemwise", "max")


def within(b: Array, c: Array, samples: int, options: Options, peak: float) -> F64:
    """Returns a row of numbers for each sample, [samples, columns], from which ``tolerance`` is computed.

    If a median or a quantile is checked, each row ends with two histograms.

    Args:
        b: The baseline.
        c: The candidate.
        samples: How many samples the arrays hold.
        options: The options, with the tolerance.
        peak: Not used.
    """
    wish, found = options.tolerance, []
    for x, y, n in pieces(b, c, samples):
        x, y = x.reshape(n, -1), y.reshape(n, -1)
        counted = ~same_non_finite(x.astype(np.float64), y.astype(np.float64))
        kinds = [np.where(counted, used, 0.0) for used in _used(x, y, wish)]
        if wish.check == "elemwise":
            kinds = [np.minimum(*kinds)] * 2
        rows = np.zeros((n, _COLUMNS))
        rows[:, _CHECK], rows[:, _COUNT] = CHECKS.index(wish.check), counted.sum(axis=1)
        for kind, used in enumerate(kinds):
            rows[:, _GREATEST + kind] = used.max(axis=1, initial=0.0)
            rows[:, _SUM + kind] = used.sum(axis=1)
        if wish.check in ("median", "quantile"):
            rows[:, _QUANTILE] = 0.5 if wish.check == "median" else wish.quantile
            rows = np.concatenate([rows, *(_counted(rows, i, kinds[i], counted) for i in range(2))], axis=1)
        found.append(rows)
    return np.concatenate(found)


def _used(b: Array, c: Array, wish: Tolerance) -> tuple[F64, F64]:
    """Returns the absolute and the relative errors as ratios to the tolerance ``wish``, [samples, elements].

    An error that is NaN becomes inf.
    """
    if b.dtype.kind == "f":
        up = np.promote_types(b.dtype, np.float32)
        e, size = np.abs(b.astype(up) - c.astype(up)), np.abs(b.astype(up))
    else:
        x, y = b.astype(np.float64), c.astype(np.float64)
        e, size = np.abs(difference(b, c, x, y)), np.abs(x)
    relative = e / np.where(size == 0, size.dtype.type(_EPSILON), size)
    return _share(e, wish.abs), _share(relative, wish.rel)


def _share(e: NDArray[np.floating], limit: float) -> F64:
    """Returns ``e / limit``. In spite of rounding, it is above 1 exactly where ``e`` is above ``limit``."""
    wide = e.astype(np.float64)
    share = np.where(wide == 0, 0.0, wide / limit if limit else np.inf)
    share = np.where(wide > limit, np.maximum(share, _ABOVE_1), np.minimum(share, 1.0))
    return np.where(np.isnan(wide), np.inf, share)


def _counted(rows: F64, kind: int, used: F64, counted: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Fills in the columns of ``rows`` that a median or quantile needs, and returns a histogram per sample.

    Args:
        rows: The rows to fill in.
        kind: 0 for absolute errors, 1 for relative errors.
        used: The ratios of the errors to the tolerance, [samples, elements].
        counted: Whether each element is compared, [samples, elements].

    Returns:
        The number of elements in each bin, [samples, bins].
    """
    inside = counted & (used <= 1)
    outside = np.where(counted & ~inside, used, np.inf)
    rows[:, _INSIDE + kind] = inside.sum(axis=1)
    rows[:, _GREATEST_INSIDE + kind] = np.where(inside, used, 0.0).max(axis=1, initial=0.0)
    # The minimum is stored with a changed sign, because the row of several samples has the maximum.
    rows[:, _LEAST_OUTSIDE + kind] = -outside.min(axis=1, initial=np.inf)
    with np.errstate(divide="ignore"):
        place = np.floor(_BINS_PER_OCTAVE * np.log2(used)) + _BINS_PER_OCTAVE * _OCTAVES
    place = np.clip(place, 0, _BINS - 1).astype(np.intp) + _BINS * np.arange(len(used))[:, None]
    return np.bincount(place[counted], minlength=_BINS * len(used)).reshape(len(used), _BINS)


def _quantile(row: F64, kind: int) -> float:
    """Returns a quantile of the ratios of errors to the tolerance, interpolated in a histogram of ``row``.

    ``kind`` is 0 for absolute errors, 1 for relative errors. The result is above 1 exactly if the true
    quantile is.
    """
    inside, greatest, least = (row[at + kind] for at in (_INSIDE, _GREATEST_INSIDE, _LEAST_OUTSIDE))
    bins = row[_COLUMNS + kind * _BINS :][:_BINS]
    rank = row[_QUANTILE] * (row[_COUNT] - 1)
    low, between = int(rank), rank - int(rank)
    if inside >= low + 2 or (inside == low + 1 and not between):
        beyond = False
    elif inside == low + 1:
        beyond = greatest + between * (-least - greatest) > 1
    else:
        beyond = True
    ends = np.cumsum(bins)
    place = int(np.searchsorted(ends, rank, side="right"))
    here = (rank - ends[place] + bins[place] + 0.5) / (bins[place] + 1)
    value = 0.0 if place == 0 else 2.0 ** ((place + here) / _BINS_PER_OCTAVE - _OCTAVES)
    if beyond:
        return max(value, _ABOVE_1) if math.isfinite(least) else math.inf
    return min(value, 1.0)


class Tolerated(Share):
    """Computes which share of a limit on the metric ``tolerance`` each sample uses up.

    If a median or a quantile is checked, single samples have no share, because it is computed over all
    samples together.
    """

    def __init__(self, limit: float, options: Options, whole: Whole) -> None:
        check = options.tolerance.check
        if check != "mean":
            self.pool = "rank" if check in ("elemwise", "max") else "whole"
        super().__init__(limit, options, whole)

    def _budget(self) -> float:
        if self.pool == "rank":
            return self.limit
        return float(self.limit * self.whole.rows[:, _COUNT].sum() / self.whole.samples)

    def _used(self, rows: F64) -> F64:
        column = _GREATEST if self.pool == "rank" else _SUM
        return np.minimum(rows[:, column], rows[:, column + 1])

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        wish = self.options.tolerance
        allowed = np.maximum(wish.abs, wish.rel * np.abs(flat(b, samples)))
        return ratio(error(b, c, samples), np.maximum(allowed * self.budget, TINY))


TOLERANCE = Measure(
    "tolerance",
    within,
    greatest=tuple(range(_COUNT)),
    counted=_COUNT,
    reads=frozenset({"tolerance"}),
)
