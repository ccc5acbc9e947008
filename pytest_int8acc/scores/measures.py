"""Measures: each makes a row of float64 for every sample of two arrays; metrics are made of such rows.

Below, b is an element of the baseline, c the same element of the candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.scores.sums import (
    F64,
    GREATEST,
    PIECE,
    difference,
    errors,
    pool_errors,
    same_non_finite,
    samples_in,
)
from pytest_int8acc.tensors import Array

REL_FLOOR = 1e-3
#: The column of ``divergence``, ``top_k`` and ``within`` that counts the class rows or elements compared.
COUNTED = 1


class Tolerance(NamedTuple):
    """Polygraphy's tolerance with its defaults: an error passes that is within ``abs`` or within ``rel``."""

    abs: float = 1e-5
    """Greatest |b - c|."""
    rel: float = 1e-5
    """Greatest |b - c| / |b|."""
    check: str = "elemwise"
    """``elemwise``: each element is checked. ``max``, ``mean``, ``median``, ``quantile``: this statistic of
    the absolute errors and of the relative errors."""
    quantile: float = 0.99
    """The quantile of the check ``quantile``, 0 to 1."""


class Options(NamedTuple):
    """How a criterion wants an output compared."""

    axis: int = -1
    """The class axis."""
    rel_floor: float = REL_FLOOR
    """Least denominator of relative errors, as a ratio to the baseline's greatest magnitude."""
    tolerance: Tolerance = Tolerance()


#: Makes a row for each sample, [samples, columns], of the baseline's array and the candidate's, which hold so
#: many samples, with the greatest magnitude of the whole baseline.
RowsFunction = Callable[[Array, Array, int, Options, float], F64]


class Measure(NamedTuple):
    """A kind of rows, the options that it reads, and how rows of several samples become one."""

    name: str
    rows: RowsFunction
    pool: Callable[[F64], F64]
    """Returns the row of several samples together, [columns], of their rows, [samples, columns]."""
    greatest: tuple[int, ...] | None = None
    """The columns of which metrics read the maximum over samples, where they read the sum of all other
    columns. None: metrics read more than maxima and sums."""
    by_axis: bool = False
    """Whether it reads the class axis."""
    needs_peak: bool = False
    """Whether it reads ``rel_floor``, and needs the greatest magnitude of the baseline in all samples."""
    by_tolerance: bool = False
    """Whether it reads the tolerance."""

    def key(self, options: Options) -> tuple[Measure, Options]:
        """Returns the measure with the options that it reads; all other options have their defaults.

        Criteria with equal keys share the rows.
        """
        usual = Options()
        axis = options.axis if self.by_axis else usual.axis
        floor = options.rel_floor if self.needs_peak else usual.rel_floor
        return self, Options(axis, floor, options.tolerance if self.by_tolerance else usual.tolerance)


def relative(b: Array, c: Array, samples: int, options: Options, peak: float) -> F64:
    """Maximum and sum of |b - c| / max(|b|, floor), and number of elements, [samples, 3].

    The relative error is 0 where b equals c, also where both are 0.
    """
    rows, floor = [], options.rel_floor * peak
    for x, y, n in pieces(b, c, samples):
        x, y = x.reshape(n, -1), y.reshape(n, -1)
        x64, y64 = x.astype(np.float64), y.astype(np.float64)
        same = same_non_finite(x64, y64)
        x64[same] = y64[same] = 0.0
        e = np.abs(difference(x, y, x64, y64))
        off = np.where(e == 0, 0.0, e / np.maximum(np.abs(x64), floor))
        count = x.shape[1] - same.sum(axis=1)
        rows.append(np.stack([off.max(axis=1, initial=0.0), off.sum(axis=1), count], axis=1))
    return np.concatenate(rows)


def _pool_relative(rows: F64) -> F64:
    return np.append(rows[:, :1].max(axis=0, initial=0.0), rows[:, 1:].sum(axis=0))


def divergence(b: Array, c: Array, samples: int, options: Options, peak: float) -> F64:
    """Sum of KL(softmax(b) || softmax(c)) over class rows, and two counts of them, [samples, 3].

    The counts are of all class rows, and of those that are probabilities.
    A class row whose greatest baseline value is not finite is left out. A class row counts as probabilities
    where the baseline is nowhere negative and sums to 1.
    """
    rows = []
    for x, y, n in pieces(b, c, samples):
        x64, y64 = class_rows(x, options.axis, n), class_rows(y, options.axis, n)
        log_x, log_y = log_softmax(x64), log_softmax(y64)
        terms = np.where(np.isneginf(log_x), 0.0, np.exp(log_x) * (log_x - log_y)).sum(axis=-1)
        counted = np.isfinite(x64.max(axis=-1))
        sure = (x64 >= 0).all(axis=-1) & (np.abs(x64.sum(axis=-1) - 1.0) <= 1e-2)
        terms = np.where(counted, terms, 0.0)
        rows.append(np.stack([a.sum(axis=1) for a in (terms, counted, sure & counted)], axis=1))
    return np.concatenate(rows).astype(np.float64)


def top_k(k: int) -> RowsFunction:
    """Returns a function that counts rows of classes; ``b`` is the baseline, ``c`` the candidate.

    Its columns: rows whose greatest class in ``b`` is among the top k of ``c``, rows compared, all rows.
    """

    def rows(b: Array, c: Array, samples: int, options: Options, peak: float) -> F64:
        counts = []
        for x, y, n in pieces(b, c, samples):
            x, y = (_classes_last(a, options.axis, n) for a in (x, y))
            counted = np.isfinite(x.max(axis=-1))
            ranked = (_classes_before(x, y) < k) & np.isfinite(y.max(axis=-1)) & counted
            total = np.full(len(x), counted[0].size)
            counts.append(np.stack([ranked.sum(axis=1), counted.sum(axis=1), total], axis=1))
        return np.concatenate(counts).astype(np.float64)

    return rows


def _classes_before(b: Array, c: Array) -> NDArray[np.intp]:
    """How many classes of c come before b's greatest class; a class that ties with it in c alone does.

    So a tie that the candidate alone has is no agreement: outputs of zeros agree with nothing.
    """
    top = b.argmax(axis=-1)[..., None]
    own = np.take_along_axis(c, top, axis=-1)
    rivals = b < np.take_along_axis(b, top, axis=-1)
    return np.asarray(np.count_nonzero((c > own) | ((c == own) & rivals), axis=-1))


def flip_distance(k: int) -> RowsFunction:
    """Returns a function that tells how far each sample's first class row is on the way out of the top k.

    The distance is from 0 to 1; it is above 1 where the class row has left the top k, [samples, 1]. For k = 1
    it is the greatest of :func:`class_gains`, for greater k the k-th greatest.
    """

    def rows(b: Array, c: Array, samples: int, options: Options, peak: float) -> F64:
        y, z = (class_rows(a, options.axis, samples)[:, 0] for a in (b, c))
        gains = class_gains(y, z - y, 0.0)
        distance = np.partition(gains, -k, axis=-1)[..., -k]
        out = _classes_before(y, z) >= k
        above_1 = np.maximum(distance, np.nextafter(1.0, 2.0))
        return np.where(out, above_1, np.clip(distance, 0.0, 1.0))[:, None]

    return rows


def class_gains(y: F64, e: F64, floor: float) -> F64:
    """How far the error takes each class towards the top class, as a ratio to the margin between them.

    (e_j - e_top) / (y_top - y_j), and 0 for the top class itself.

    Args:
        y: The baseline, [..., classes].
        e: Candidate minus baseline.
        floor: Least margin.
    """
    top = y.argmax(axis=-1)[..., None]
    gain = e - np.take_along_axis(e, top, axis=-1)
    margin = np.take_along_axis(y, top, axis=-1) - y
    return np.nan_to_num(ratio(gain, np.maximum(margin, floor)), nan=0.0, posinf=np.inf, neginf=0.0)


def ratio(value: F64, limit: F64 | float) -> F64:
    """``value / limit``, and 0 where the value is 0, whatever the limit."""
    return np.where(value == 0, 0.0, value / np.asarray(limit, np.float64))


def unequal(b: Array, c: Array, samples: int, options: Options, peak: float) -> F64:
    """Number of elements that differ, and of all elements, [samples, 2]."""
    differ = np.asarray(b != c, np.bool_).reshape(samples, -1)
    return np.stack([differ.sum(axis=1), np.full(samples, differ.shape[1])], axis=1).astype(np.float64)


def class_rows(array: Array, axis: int, samples: int) -> F64:
    """[samples, class rows, classes] in float64."""
    return _classes_last(array, axis, samples).astype(np.float64)


def _classes_last(array: Array, axis: int, samples: int) -> Array:
    moved = np.moveaxis(array, axis, -1)
    return moved.reshape(samples, -1, moved.shape[-1])


def pieces(b: Array, c: Array, samples: int) -> Iterator[tuple[Array, Array, int]]:
    """Yields a few samples of both arrays at a time, with their number."""
    each = samples_in(b) // max(samples, 1)
    step = max(1, PIECE * samples // max(b.size, 1))
    if step >= samples:
        yield b, c, samples
        return
    for start in range(0, samples, step):
        cut = slice(start * each, (start + step) * each)
        yield b[cut], c[cut], min(step, samples - start)


def log_softmax(rows: F64) -> F64:
    """The logarithms of the probabilities that each class row of logits stands for."""
    shifted = rows - rows.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _add(rows: F64) -> F64:
    return np.asarray(rows.sum(axis=0))


#: Rows of ``Sums`` without the columns from ``absolute`` on.
SQUARES = Measure(
    "squares", lambda b, c, n, options, peak: errors(b, c, n, full=False), pool_errors, GREATEST
)
#: Rows of ``Sums``.
ERRORS = Measure("errors", lambda b, c, n, options, peak: errors(b, c, n, full=True), pool_errors, GREATEST)
RELATIVE = Measure("relative", relative, _pool_relative, (0,), needs_peak=True)
DIVERGENCE = Measure("divergence", divergence, _add, (), by_axis=True)
TOP1 = Measure("top1", top_k(1), _add, (), by_axis=True)
TOP5 = Measure("top5", top_k(5), _add, (), by_axis=True)
UNEQUAL = Measure("unequal", unequal, _add, ())
#: These two are read by searches alone.
FLIP1 = Measure("flip1", flip_distance(1), _add, by_axis=True)
FLIP5 = Measure("flip5", flip_distance(5), _add, by_axis=True)
