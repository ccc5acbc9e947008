"""What metrics are sums of: each measure makes of two arrays a row of float64 per sample.

Words as in ``sums``.
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
#: The column of ``divergence`` and ``top_k`` that holds how many rows count.
COUNTED = 1


class Tolerance(NamedTuple):
    """Polygraphy's tolerance, with its defaults: what passes is within ``abs`` or within ``rel``."""

    abs: float = 1e-5
    """Greatest |b - c|."""
    rel: float = 1e-5
    """Greatest |b - c| / |b|."""
    check: str = "elemwise"
    """Each element by itself, or the max, mean, median or quantile of both errors."""
    quantile: float = 0.99
    """Of the check by that name, 0 to 1."""


class How(NamedTuple):
    """How a measure looks at an output."""

    axis: int = -1
    """The class axis."""
    rel_floor: float = REL_FLOOR
    """Least denominator of relative errors, as a share of the baseline's greatest magnitude."""
    tolerance: Tolerance = Tolerance()


class Measure(NamedTuple):
    """One kind of sums."""

    name: str
    rows: Callable[[Array, Array, int, How, float], F64]
    """Of two arrays that hold so many samples, with the baseline's greatest magnitude: a row each."""
    pool: Callable[[F64], F64]
    """The row of several samples together."""
    greatest: tuple[int, ...] | None = None
    """Columns of which metrics read the greatest, where they read sums of all others; None: ``pool`` alone
    makes what they read."""
    by_axis: bool = False
    """Whether it looks along the class axis."""
    needs_peak: bool = False
    """Whether it needs the greatest magnitude of all samples."""
    by_tolerance: bool = False
    """Whether it looks at the tolerance."""


def relative(b: Array, c: Array, samples: int, how: How, peak: float) -> F64:
    """Greatest and sum of |b - c| / max(|b|, floor), and elements, [samples, 3]; 0 where nothing differs."""
    found, floor = [], how.rel_floor * peak
    for x, y, n in pieces(b, c, samples):
        x, y = x.reshape(n, -1), y.reshape(n, -1)
        x64, y64 = x.astype(np.float64), y.astype(np.float64)
        same = same_non_finite(x64, y64)
        x64[same] = y64[same] = 0.0
        e = np.abs(difference(x, y, x64, y64))
        off = np.where(e == 0, 0.0, e / np.maximum(np.abs(x64), floor))
        count = x.shape[1] - same.sum(axis=1)
        found.append(np.stack([off.max(axis=1, initial=0.0), off.sum(axis=1), count], axis=1))
    return np.concatenate(found)


def _pool_relative(rows: F64) -> F64:
    return np.append(rows[:, :1].max(axis=0, initial=0.0), rows[:, 1:].sum(axis=0))


def divergence(b: Array, c: Array, samples: int, how: How, peak: float) -> F64:
    """Sum of KL(softmax(b) || softmax(c)), rows that count, and such that sum to 1, [samples, 3]."""
    found = []
    for x, y, n in pieces(b, c, samples):
        x64, y64 = rows_of(x, how.axis, n), rows_of(y, how.axis, n)
        log_x, log_y = log_softmax(x64), log_softmax(y64)
        terms = np.where(np.isneginf(log_x), 0.0, np.exp(log_x) * (log_x - log_y)).sum(axis=-1)
        counted = np.isfinite(x64.max(axis=-1))
        sure = (x64 >= 0).all(axis=-1) & (np.abs(x64.sum(axis=-1) - 1.0) <= 1e-2)
        terms = np.where(counted, terms, 0.0)
        found.append(np.stack([a.sum(axis=1) for a in (terms, counted, sure & counted)], axis=1))
    return np.concatenate(found).astype(np.float64)


def top_k(k: int) -> Callable[[Array, Array, int, How, float], F64]:
    """Rows whose greatest baseline class is in the candidate's top k, rows that count, and all rows."""

    def rows(b: Array, c: Array, samples: int, how: How, peak: float) -> F64:
        found = []
        for x, y, n in pieces(b, c, samples):
            x, y = (_classes_last(a, how.axis, n) for a in (x, y))
            counted = np.isfinite(x.max(axis=-1))
            ranked = _among(x, y, k) & np.isfinite(y.max(axis=-1)) & counted
            total = np.full(len(x), counted[0].size)
            found.append(np.stack([ranked.sum(axis=1), counted.sum(axis=1), total], axis=1))
        return np.concatenate(found).astype(np.float64)

    return rows


def _among(b: Array, c: Array, k: int) -> NDArray[np.bool_]:
    """Whether b's greatest class is among c's k greatest; a class that equals it in c alone comes first.

    So a tie that the candidate alone has is no agreement: outputs of zeros agree with nothing.
    """
    top = b.argmax(axis=-1)[..., None]
    own = np.take_along_axis(c, top, axis=-1)
    rivals = b < np.take_along_axis(b, top, axis=-1)
    before = (c > own) | ((c == own) & rivals)
    return np.asarray(np.count_nonzero(before, axis=-1) < k)


def unequal(b: Array, c: Array, samples: int, how: How, peak: float) -> F64:
    """Elements that differ, and all elements, [samples, 2]."""
    differ = np.asarray(b != c, np.bool_).reshape(samples, -1)
    return np.stack([differ.sum(axis=1), np.full(samples, differ.shape[1])], axis=1).astype(np.float64)


def rows_of(array: Array, axis: int, samples: int) -> F64:
    """[samples, rows, classes] in float64."""
    return _classes_last(array, axis, samples).astype(np.float64)


def _classes_last(array: Array, axis: int, samples: int) -> Array:
    moved = np.moveaxis(array, axis, -1)
    return moved.reshape(samples, -1, moved.shape[-1])


def pieces(b: Array, c: Array, samples: int) -> Iterator[tuple[Array, Array, int]]:
    """A few samples at a time, which keep their axes, and how many they are; all where there is one."""
    each = samples_in(b) // max(samples, 1)
    step = max(1, PIECE * samples // max(b.size, 1))
    if step >= samples:
        yield b, c, samples
        return
    for start in range(0, samples, step):
        cut = slice(start * each, (start + step) * each)
        yield b[cut], c[cut], min(step, samples - start)


def log_softmax(rows: F64) -> F64:
    """The logarithms of the probabilities that each row of logits stands for."""
    shifted = rows - rows.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _add(rows: F64) -> F64:
    return np.asarray(rows.sum(axis=0))


SQUARES = Measure("squares", lambda b, c, n, how, peak: errors(b, c, n, full=False), pool_errors, GREATEST)
ERRORS = Measure("errors", lambda b, c, n, how, peak: errors(b, c, n, full=True), pool_errors, GREATEST)
RELATIVE = Measure("relative", relative, _pool_relative, (0,), needs_peak=True)
DIVERGENCE = Measure("divergence", divergence, _add, (), by_axis=True)
TOP1 = Measure("top1", top_k(1), _add, (), by_axis=True)
TOP5 = Measure("top5", top_k(5), _add, (), by_axis=True)
UNEQUAL = Measure("unequal", unequal, _add, ())
