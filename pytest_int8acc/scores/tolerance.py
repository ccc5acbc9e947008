"""Polygraphy's tolerance as a metric: the ratio of the errors to what the tolerance allows.

The verdict is that of ``polygraphy.comparator.CompareFunc.simple(candidate, baseline)`` over all samples as
one iteration: an error passes that is within the absolute or the relative tolerance. Errors are taken as
there: in the output's own precision, float32 at least, and relative to |b|, or to 2.2e-16 where that is 0.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.scores.measures import Measure, Options, Tolerance, pieces
from pytest_int8acc.scores.sums import F64, difference, same_non_finite
from pytest_int8acc.tensors import Array

#: The checks; the first field of a row holds the index of its check.
CHECKS = ("elemwise", "max", "mean", "median", "quantile")
_ELEMWISE, _MAX, _MEAN = range(3)
_EPSILON = 2.0**-52
_ABOVE = math.nextafter(1.0, 2.0)
#: The histogram of errors has logarithmic bins: bins per octave, and octaves on either side of the tolerance.
_FINE, _FAR = 8, 16
_BINS = 2 * _FINE * _FAR + 1
#: Number of fields for one kind of error (absolute or relative) if a quantile is checked. Three are the
#: number of elements within the tolerance, the greatest error among them, and the least error beyond it. The
#: others are the bins.
_KIND = 3 + _BINS


def tolerance(rows: F64) -> float:
    """Share of Polygraphy's tolerance that the errors use: up to 1 is within it; nan without elements.

    Of ``elemwise`` the greatest of any element, |b - c| / max(abs, rel |b|); else of the statistic that
    ``check`` names, of absolute errors / abs or relative errors / rel, whichever is less. Of median and
    quantile within 5 % of the true share, and always on its side of 1.
    """
    if not len(rows) or not rows[:, 1].sum():
        return math.nan
    check, pooled = int(rows[0, 0]), TOLERANCE.pool(rows)
    if check == _ELEMWISE:
        return float(pooled[2])
    if check == _MAX:
        return float(pooled[2:].min())
    if check == _MEAN:
        return float((pooled[2:] / pooled[1]).min())
    kinds = (pooled[3 + i * _KIND :][:_KIND] for i in range(2))
    return min(_quantile(kind, int(pooled[1]), float(pooled[2])) for kind in kinds)


def within(b: Array, c: Array, samples: int, options: Options, peak: float) -> F64:
    """Index of the check, number of elements, then the fields of that check, [samples, fields].

    elemwise: the greatest share used; max: the greatest of absolute and of relative errors; mean: the sums of
    both; median and quantile: the quantile, then for both kinds what ``_counted`` gives.
    """
    wish, found = options.tolerance, []
    check = CHECKS.index(wish.check)
    for x, y, n in pieces(b, c, samples):
        x, y = x.reshape(n, -1), y.reshape(n, -1)
        counted = ~same_non_finite(x.astype(np.float64), y.astype(np.float64))
        kinds = [np.where(counted, used, 0.0) for used in _used(x, y, wish)]
        head = [np.full(n, check), counted.sum(axis=1)]
        if check == _ELEMWISE:
            rows = [np.minimum(*kinds).max(axis=1, initial=0.0)]
        elif check == _MAX:
            rows = [kind.max(axis=1, initial=0.0) for kind in kinds]
        elif check == _MEAN:
            rows = [kind.sum(axis=1) for kind in kinds]
        else:
            rows = [np.full(n, 0.5 if wish.check == "median" else wish.quantile)]
            rows += [column for kind in kinds for column in _counted(kind, counted).T]
        found.append(np.stack([*head, *rows], axis=1))
    return np.concatenate(found).astype(np.float64)


def _used(b: Array, c: Array, wish: Tolerance) -> tuple[F64, F64]:
    """Absolute and relative errors as ratios to what is allowed, [samples, elements]; inf for NaN."""
    if b.dtype.kind == "f":
        up = np.promote_types(b.dtype, np.float32)
        e, size = np.abs(b.astype(up) - c.astype(up)), np.abs(b.astype(up))
    else:
        x, y = b.astype(np.float64), c.astype(np.float64)
        e, size = np.abs(difference(b, c, x, y)), np.abs(x)
    relative = e / np.where(size == 0, size.dtype.type(_EPSILON), size)
    return _share(e, wish.abs), _share(relative, wish.rel)


def _share(e: NDArray[np.floating], limit: float) -> F64:
    """``e / limit``; above 1 exactly where ``e`` is above ``limit`` in float64, whatever rounding does."""
    wide = e.astype(np.float64)
    share = np.where(wide == 0, 0.0, wide / limit if limit else np.inf)
    share = np.where(wide > limit, np.maximum(share, _ABOVE), np.minimum(share, 1.0))
    return np.where(np.isnan(wide), np.inf, share)


def _counted(used: F64, counted: NDArray[np.bool_]) -> F64:
    """Number of ratios up to 1, the greatest of them, the least above 1, a histogram, [samples, fields]."""
    inside = counted & (used <= 1)
    greatest = np.where(inside, used, 0.0).max(axis=1, initial=0.0)
    least = np.where(counted & ~inside, used, np.inf).min(axis=1, initial=np.inf)
    with np.errstate(divide="ignore"):
        place = np.floor(_FINE * np.log2(used)) + _FINE * _FAR
    place = np.clip(place, 0, _BINS - 1).astype(np.intp) + _BINS * np.arange(len(used))[:, None]
    bins = np.bincount(place[counted], minlength=_BINS * len(used)).reshape(len(used), _BINS)
    return np.concatenate([np.stack([inside.sum(axis=1), greatest, least], axis=1), bins], axis=1)


def _quantile(kind: F64, elements: int, q: float) -> float:
    """A quantile of the ratios, interpolated in the histogram; exact in whether it is above 1."""
    inside, greatest, least = kind[:3]
    rank = q * (elements - 1)
    low, between = int(rank), rank - int(rank)
    if inside >= low + 2 or (inside == low + 1 and not between):
        beyond = False
    elif inside == low + 1:
        beyond = greatest + between * (least - greatest) > 1
    else:
        beyond = True
    ends = np.cumsum(kind[3:])
    place = int(np.searchsorted(ends, rank, side="right"))
    here = (rank - ends[place] + kind[3 + place] + 0.5) / (kind[3 + place] + 1)
    value = 0.0 if place == 0 else 2.0 ** ((place + here) / _FINE - _FAR)
    if beyond:
        return max(value, _ABOVE) if math.isfinite(least) else math.inf
    return min(value, 1.0)


def _pool(rows: F64) -> F64:
    check = int(rows[0, 0]) if len(rows) else _MEAN
    pooled = np.asarray(rows.sum(axis=0))
    greatest = slice(2, None) if check in (_ELEMWISE, _MAX) else slice(0, 0)
    pooled[greatest] = rows[:, greatest].max(axis=0, initial=0.0)
    if check > _MEAN:
        pooled[2] = rows[0, 2]
        for start in (3, 3 + _KIND):
            pooled[start + 1] = rows[:, start + 1].max()
            pooled[start + 2] = rows[:, start + 2].min()
    return pooled


TOLERANCE = Measure("tolerance", within, _pool, by_tolerance=True)
