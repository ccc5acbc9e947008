"""The sums that most metrics are made of: two arrays in, one row of float64 per sample out.

Below, b is an element of the baseline, c the same element of the candidate. Elements that are the same NaN
or infinity in both are left out. A few samples, or a part of one, are taken at a time, so that float64
copies stay in a core's cache; all sums are float64, within 1e-12 of those of Python's exact ``math.fsum``.
Squares of very small and very large doubles leave float64: see ``SQUARED``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.tensors import Array

F64 = NDArray[np.float64]
#: Elements per piece: 0.25 MB in float64.
PIECE = 2**15
#: Greatest length of vectors whose scalar product BLAS computes on one thread. On several threads it is slow
#: where other processes keep the cores busy.
_ONE_THREAD = 2**13
#: Samples with fewer elements than this are laid out elements first, which NumPy sums faster.
_NARROW = 64
#: The least and the greatest magnitude of an output of which squares are summed. Products of two squares stay
#: in float64 with room for any number of elements. All of float32 lies within.
SQUARED = (1e-70, 1e70)
#: Where the square of the mean is above this ratio to the mean square, moments are computed about the mean:
#: about 0 they would cancel.
_OFF_CENTRE = 0.9


class Sums(NamedTuple):
    """Sums over elements, of one sample or of several."""

    elements: float = 0.0
    """Number of elements that are compared."""
    same: float = 0.0
    """Number of elements that are left out: the same NaN or infinity in both."""
    nan: float = 0.0
    """Number of elements that are left out because they are NaN in both."""
    lost: float = 0.0
    """Number of elements that are NaN or infinite in the candidate only."""
    bad: float = 0.0
    """Number of elements that are NaN or infinite in the baseline, and something else in the candidate."""
    bb: float = 0.0
    cc: float = 0.0
    be: float = 0.0
    """Sum of b (c - b)."""
    ee: float = 0.0
    """Sum of (c - b)^2."""
    absolute: float = 0.0
    """Sum of |c - b|. This field and all that follow are nan in rows of the measure ``SQUARES``."""
    max_error: float = 0.0
    """Greatest |c - b|; nan if any is nan."""
    peak: float = 0.0
    """Greatest |b|."""
    b: float = 0.0
    c: float = 0.0
    var_b: float = 0.0
    """Sum of (b - mean)^2."""
    cov: float = 0.0
    """Sum of (b - mean b) (c - mean c)."""
    var_c: float = 0.0


#: Field of ``Sums`` to its place in a row.
AT = {field: place for place, field in enumerate(Sums._fields)}
#: Columns that hold a maximum over elements, so that pooling takes the maximum over samples.
GREATEST = (AT["max_error"], AT["peak"])


def samples_in(array: Array) -> int:
    """Number of samples in one batch: the size of the first axis, 1 without axes."""
    return array.shape[0] if array.ndim else 1


def sums_of(rows: F64) -> Sums:
    """The sums of several samples together, from rows of ``ERRORS`` or ``SQUARES``."""
    return Sums(*(rows[0] if len(rows) == 1 else pool_errors(rows)).tolist())


def pool_errors(rows: F64) -> F64:
    """Several rows as one; moments about the means are merged as by Chan, Golub and LeVeque (1979)."""
    with np.errstate(all="ignore"):  # inf and nan are answers here
        pooled = np.asarray(rows.sum(axis=0))
        pooled[[*GREATEST]] = rows[:, GREATEST].max(axis=0, initial=0.0)
        weights = rows[:, AT["elements"]]
        if not pooled[AT["elements"]]:
            return pooled
        b, c = (
            np.divide(rows[:, i], weights, out=np.zeros_like(weights), where=weights > 0)
            - pooled[i] / pooled[AT["elements"]]
            for i in (AT["b"], AT["c"])
        )
        pooled[[AT["var_b"], AT["cov"], AT["var_c"]]] += [
            np.sum(weights * x * y) for x, y in ((b, b), (b, c), (c, c))
        ]
    return pooled


def errors(b: Array, c: Array, samples: int, *, full: bool) -> F64:
    """Rows of ``Sums``, [samples, fields]; all fields where ``full``, else those made of squares."""
    rows = np.empty((samples, len(AT)))
    if not samples:
        return rows
    with np.errstate(all="ignore"):
        flat_b, flat_c = b.reshape(samples, -1), c.reshape(samples, -1)
        size = flat_b.shape[1]
        if size > PIECE:
            for i in range(samples):
                cuts = (slice(start, start + PIECE) for start in range(0, size, PIECE))
                parts = [_errors(flat_b[i : i + 1, cut], flat_c[i : i + 1, cut], full) for cut in cuts]
                rows[i] = pool_errors(np.concatenate(parts))
            return rows
        step = max(1, PIECE // max(size, 1))
        for start in range(0, samples, step):
            cut = slice(start, start + step)
            rows[cut] = _errors(flat_b[cut], flat_c[cut], full)
    return rows


def _errors(b: Array, c: Array, full: bool) -> F64:
    """Rows of one piece of both arrays, [samples, elements]; a piece that is not finite is summed anew."""
    if not b.shape[1]:
        return np.zeros((len(b), len(AT)))
    x = _wide(b)
    y = x if _equal(b, c) else _wide(c)
    rows = _sums(x, y, None if y is x else difference(b, c, x, y), full)
    squares = rows[:, [AT["bb"], AT["cc"], AT["ee"]]]
    if not np.isfinite(squares).all():
        return _errors_anew(b, c, full)
    return rows


def _equal(b: Array, c: Array) -> bool:
    """Whether both arrays are equal; a few elements are compared first, which mostly decides."""
    few = 16
    if {b.dtype.kind, c.dtype.kind} == {"i", "u"}:
        return False  # NumPy before 1.25 compares them as float64
    return np.array_equal(b[:1, :few], c[:1, :few]) and np.array_equal(b, c)


def _wide(array: Array) -> F64:
    """In float64, [samples, elements], laid out so that rows are summed fast."""
    if array.shape[1] < _NARROW:
        return array.T.astype(np.float64, order="C").T
    return array.astype(np.float64)


def greatest_magnitude(array: Array) -> float:
    """The greatest finite magnitude; 0 where there is none."""
    return float(np.max(np.abs(array), where=np.isfinite(array), initial=0.0))


def _errors_anew(b: Array, c: Array, full: bool) -> F64:
    """Rows of a piece that has values, or squares of values, that are not finite."""
    x, y = b.astype(np.float64), c.astype(np.float64)
    bad_b, bad_c = ~np.isfinite(x), ~np.isfinite(y)
    same = same_non_finite(x, y)
    x[same] = y[same] = 0.0
    rows = _sums(x, y, difference(b, c, x, y), full, ~same)
    nan = np.isnan(b) & np.isnan(c)
    found = {"same": same, "nan": nan, "lost": bad_c & ~bad_b, "bad": bad_b & ~same}
    for column, which in ((AT[field], which) for field, which in found.items()):
        rows[:, column] = which.sum(axis=1)
    return rows


def difference(b: Array, c: Array, x: F64, y: F64) -> F64:
    """C - b in float64, given both arrays and their float64 copies x and y; exact for 64-bit integers."""
    e = y - x
    if b.dtype.kind in "iu" and max(b.dtype.itemsize, c.dtype.itemsize) == 8:
        exact = c.astype(np.uint64) - b.astype(np.uint64)  # modulo 2**64, as all below
        return np.where(np.abs(e) < 2.0**62, exact.view(np.int64).astype(np.float64), e)
    return e


def same_non_finite(b: F64, c: F64) -> NDArray[np.bool_]:
    """The elements at which both arrays hold the same NaN or infinity."""
    bad = np.asarray(~np.isfinite(b))
    return bad & ((b == c) | (np.isnan(b) & np.isnan(c))) if bad.any() else bad


def _sums(b: F64, c: F64, e: F64 | None, full: bool, counted: NDArray[np.bool_] | None = None) -> F64:
    """The sums of a piece, [samples, fields].

    Args:
        b: The baseline, [samples, elements].
        c: The candidate.
        e: Their difference; overwritten. None: there is none.
        full: Whether all sums are wanted, or squares alone.
        counted: Elements that are not left out, which are 0; None: all.
    """
    rows = np.zeros((len(b), len(AT)))
    rows[:, AT["elements"]] = b.shape[1] if counted is None else counted.sum(axis=1)
    rows[:, AT["bb"]] = _dots(b, b)
    rows[:, AT["cc"]] = rows[:, AT["bb"]] if e is None else _dots(c, c)
    if e is not None:
        rows[:, AT["be"]], rows[:, AT["ee"]] = _dots(b, e), _dots(e, e)
    if not full:
        rows[:, AT["absolute"] :] = np.nan
        return rows
    rows[:, AT["b"]] = b.sum(axis=1)
    rows[:, AT["c"]] = rows[:, AT["b"]] if e is None else c.sum(axis=1)
    _moments(rows, b, c, counted)
    rows[:, AT["peak"]] = np.maximum(b.max(axis=1), -b.min(axis=1))
    if e is not None:
        np.abs(e, out=e)
        rows[:, AT["absolute"]], rows[:, AT["max_error"]] = e.sum(axis=1), e.max(axis=1)
    return rows


def _moments(rows: F64, b: F64, c: F64, counted: NDArray[np.bool_] | None) -> None:
    """Fill in the moments about the means, from those about 0 where the means are small enough for that."""
    count = np.maximum(rows[:, AT["elements"]], 1.0)
    bb, cc, be = (rows[:, i] for i in (AT["bb"], AT["cc"], AT["be"]))
    mean_b, mean_c = rows[:, AT["b"]] / count, rows[:, AT["c"]] / count
    far = (mean_b**2 * count > _OFF_CENTRE * bb) | (mean_c**2 * count > _OFF_CENTRE * cc)
    if far.any():
        b, c = b - mean_b[:, None], c - mean_c[:, None]
        if counted is not None:
            b, c = np.where(counted, b, 0.0), np.where(counted, c, 0.0)
        moments = _dots(b, b), _dots(b, c), _dots(c, c)
    else:
        moments = bb - mean_b**2 * count, bb + be - mean_b * mean_c * count, cc - mean_c**2 * count
    rows[:, AT["var_b"]], rows[:, AT["cov"]], rows[:, AT["var_c"]] = moments


def _dots(x: F64, y: F64) -> F64:
    """Scalar product of each sample's elements, [samples]."""
    samples, size = x.shape
    if size < _NARROW:
        return np.asarray(np.einsum("ij,ij->j", x.T, y.T))
    if samples == 1 and size % _ONE_THREAD == 0:
        x, y = x.reshape(-1, _ONE_THREAD), y.reshape(-1, _ONE_THREAD)
    elif size > _ONE_THREAD:
        return np.asarray(np.einsum("ij,ij->i", x, y))
    products = np.matmul(x[:, None, :], y[:, :, None]).reshape(-1)
    return np.asarray(products if len(products) == samples else products.sum(keepdims=True))
