"""Computes rows. A row holds, for one sample, the numbers from which metrics are computed.

The numbers compare the outputs of two models, the float baseline and the low-precision candidate. Each column
of a row holds a sum or a maximum over the elements of one sample. To get the row of several samples, sum
columns are added, and the maximum is taken of maximum columns.

In this module ``b`` is an array of the baseline, and ``c`` is the same array of the candidate. Both arrays
hold ``samples`` samples along their first axis, or they are one sample. All arithmetic is in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.tensors import Array

F64 = NDArray[np.float64]
#: Number of elements that are converted to float64 at a time. They take 0.25 MB, which fits the cache of a
#: CPU core.
PIECE = 2**15
#: If the greatest magnitude of an output is outside of these bounds, its squares are not summed. Within the
#: bounds the product of two sums of squares stays within float64, whatever the number of elements. All
#: float32 numbers are within them.
SQUARED = (1e-70, 1e70)
#: The default of ``rel_floor``, the minimum denominator of relative errors, as a ratio to the greatest
#: magnitude of the baseline.
REL_FLOOR = 1e-3
#: The index of the column that counts what was compared, for three kinds of rows: ``DIVERGENCE`` and top-k
#: agreement count class rows (vectors of class scores), and ``UNEQUAL`` counts elements.
COUNTED = 1
#: The number that stands for a class that is not known, in arrays of class ids.
NO_CLASS = -1


class Tolerance(NamedTuple):
    """Polygraphy's tolerance with its defaults: an error passes if it is within ``abs`` or within ``rel``."""

    abs: float = 1e-5
    """The greatest absolute error that passes, in the unit of the output."""
    rel: float = 1e-5
    """The greatest relative error that passes, a ratio to the baseline's value."""
    check: str = "elemwise"
    """What must be within the tolerance. ``elemwise``: each element. ``max``, ``mean``, ``median`` and
    ``quantile``: this statistic, either of the absolute errors or of the relative errors."""
    quantile: float = 0.99
    """Which quantile the check ``quantile`` computes, 0 to 1. Other checks do not use it."""


class Options(NamedTuple):
    """The options of a criterion that change how the outputs of two models are compared."""

    axis: int = -1
    """The axis of the output along which the classes lie."""
    rel_floor: float = REL_FLOOR
    """The minimum denominator of relative errors, as a ratio to the baseline's greatest magnitude."""
    tolerance: Tolerance = Tolerance()


#: The type of a function that returns one row for each sample, [samples, columns]. Its arguments are the
#: baseline's array, the candidate's array, the number of samples, the options, and the greatest magnitude of
#: the baseline over all batches.
RowsFunction = Callable[[Array, Array, int, Options, float], F64]


class Measure(NamedTuple):
    """Computes one kind of rows, and says what their columns mean. A row holds the numbers of one sample."""

    name: str
    rows: RowsFunction
    greatest: tuple[int, ...]
    """The indices of the columns that hold a maximum over elements. All other columns hold a sum."""
    counted: int
    """The index of the column that counts the compared elements or class rows (vectors of class scores). The
    count is 0 for a sample that has nothing to compare."""
    reads: frozenset[str] = frozenset()
    """The names of the fields of ``Options`` that affect the rows."""

    def key(self, options: Options) -> Key:
        """Returns the key under which rows are kept: this measure, and the options that it reads.

        All other options get their defaults. Criteria with equal keys share their rows.
        """
        return self, Options(**{name: getattr(options, name) for name in self.reads})

    @property
    def needs_peak(self) -> bool:
        """Whether the baseline's greatest magnitude over all samples must be known to compute the rows."""
        return "rel_floor" in self.reads

    def compared(self, rows: F64) -> NDArray[np.bool_]:
        """Returns whether each sample has something to compare, [samples]."""
        return np.asarray(rows[:, self.counted] > 0)

    def pool(self, rows: F64) -> F64:
        """Returns one row, [columns], for several samples together.

        ``rows`` has a row for each sample, [samples, columns].
        """
        with np.errstate(all="ignore"):  # inf and nan are valid results here
            pooled = np.asarray(rows.sum(axis=0))
            for column in self.greatest if len(rows) else ():
                pooled[column] = rows[:, column].max()
        return pooled

    def pool_each(self, rows: F64, order: NDArray[np.intp], starts: NDArray[np.intp]) -> F64:
        """Returns one row for each group of samples, [groups, columns], from a row for each sample.

        Args:
            rows: A row for each sample, [samples, columns].
            order: The indices of the samples, sorted by group.
            starts: The position in ``order`` where each group starts.
        """
        pooled = np.add.reduceat(rows[order], starts, axis=0)
        for column in self.greatest:
            pooled[:, column] = np.maximum.reduceat(rows[order, column], starts)
        return np.asarray(pooled)

    def pool_up_to(self, rows: F64) -> F64:
        """Returns cumulative rows: row i stands for the first i + 1 samples together, [samples, columns].

        ``rows`` has a row for each sample.
        """
        pooled = np.cumsum(rows, axis=0)
        for column in self.greatest:
            pooled[:, column] = np.maximum.accumulate(rows[:, column])
        return pooled


#: The key under which the rows of an output are kept: a measure, and the options that the measure reads.
Key = tuple[Measure, Options]


class Sums(NamedTuple):
    """Sums and maxima over elements of the baseline, b, and of the candidate, c.

    They are the columns of the measure ``ERRORS``. An element is left out if both models hold the same NaN or
    infinity.
    """

    elements: float = 0.0
    """The number of elements that are compared."""
    same: float = 0.0
    """The number of elements that are left out: both models hold the same NaN or infinity."""
    nan: float = 0.0
    """The number of elements that are NaN in both baseline and candidate."""
    lost: float = 0.0
    """The number of elements that are NaN or infinite in the candidate only."""
    bad: float = 0.0
    """The number of elements that are NaN or infinite in the baseline, and different in the candidate."""
    bb: float = 0.0
    """The sum of b^2."""
    cc: float = 0.0
    """The sum of c^2."""
    be: float = 0.0
    """The sum of b (c - b)."""
    ee: float = 0.0
    """The sum of (c - b)^2."""
    absolute: float = 0.0
    """The sum of |c - b|."""
    max_error: float = 0.0
    """The maximum of |c - b|; nan if any error is nan."""
    peak: float = 0.0
    """The maximum of |b|."""
    b: float = 0.0
    """The sum of b."""
    c: float = 0.0
    """The sum of c."""


#: The name of a field of ``Sums``, to the index of the column that holds this field in a row of ``ERRORS``.
AT = {field: column for column, field in enumerate(Sums._fields)}
#: The indices of the columns of ``ERRORS`` that hold a maximum. All other columns hold a sum.
_GREATEST = [AT["max_error"], AT["peak"]]


def samples_in(array: Array) -> int:
    """Returns the number of samples in one batch: the size of the first axis, or 1 without axes."""
    return array.shape[0] if array.ndim else 1


def errors(b: Array, c: Array, samples: int, options: Options | None = None, peak: float = 0.0) -> F64:
    """Returns a row for each sample with the sums and maxima of ``Sums``, [samples, fields].

    Args:
        b: The baseline.
        c: The candidate.
        samples: How many samples each array holds.
        options: Not used. All functions of the type ``RowsFunction`` have this argument.
        peak: Not used, like ``options``.
    """
    flat_b, flat_c = b.reshape(samples, -1), c.reshape(samples, -1)
    size = flat_b.shape[1]
    rows = np.zeros((samples, len(AT)))
    step = max(1, PIECE // max(size, 1))
    with np.errstate(all="ignore"):
        for start in range(0, samples, step):
            some = rows[start : start + step]
            for left in range(0, size, PIECE):
                cut = slice(start, start + step), slice(left, left + PIECE)
                piece = _errors_of_piece(flat_b[cut], flat_c[cut])
                greatest = np.maximum(some[:, _GREATEST], piece[:, _GREATEST])
                some += piece
                some[:, _GREATEST] = greatest
    return rows


def _errors_of_piece(b: Array, c: Array) -> F64:
    """Returns a row for each sample with the sums and maxima of ``Sums``, [samples, fields].

    The arrays of baseline and candidate are [samples, elements], with at least one element.
    """
    rows = np.zeros((len(b), len(AT)))
    x, y = b.astype(np.float64), c.astype(np.float64)
    bad_b, bad_c = ~np.isfinite(x), ~np.isfinite(y)
    rows[:, AT["elements"]] = x.shape[1]
    if bad_b.any() or bad_c.any():
        same = same_non_finite(x, y)
        counted = {"same": same, "nan": np.isnan(x) & same, "lost": bad_c & ~bad_b, "bad": bad_b & ~same}
        for field, which in counted.items():
            rows[:, AT[field]] = which.sum(axis=1)
        rows[:, AT["elements"]] -= rows[:, AT["same"]]
        x[same] = y[same] = 0.0
    e = difference(b, c, x, y)
    for field, one, other in (("bb", x, x), ("cc", y, y), ("be", x, e), ("ee", e, e)):
        rows[:, AT[field]] = np.einsum("ij,ij->i", one, other)
    rows[:, AT["b"]], rows[:, AT["c"]] = x.sum(axis=1), y.sum(axis=1)
    rows[:, AT["peak"]] = np.maximum(x.max(axis=1), -x.min(axis=1))
    np.abs(e, out=e)
    rows[:, AT["absolute"]], rows[:, AT["max_error"]] = e.sum(axis=1), e.max(axis=1)
    return rows


def difference(b: Array, c: Array, x: F64, y: F64) -> F64:
    """Returns c - b in float64, exact for 64-bit integers. ``x`` and ``y`` are b and c in float64."""
    e = y - x
    if b.dtype.kind in "iu" and max(b.dtype.itemsize, c.dtype.itemsize) == 8:
        # The subtraction and both conversions to uint64 wrap around modulo 2**64, so the difference is exact.
        exact = c.astype(np.uint64) - b.astype(np.uint64)
        return np.where(np.abs(e) < 2.0**62, exact.view(np.int64).astype(np.float64), e)
    return e


def same_non_finite(b: F64, c: F64) -> NDArray[np.bool_]:
    """Returns which elements are the same NaN or infinity in both arrays."""
    bad = np.asarray(~np.isfinite(b))
    return bad & ((b == c) | (np.isnan(b) & np.isnan(c))) if bad.any() else bad


def greatest_magnitude(array: Array) -> float:
    """Returns the greatest finite magnitude of an array; 0 if it has none."""
    return float(np.max(np.abs(array), where=np.isfinite(array), initial=0.0))


def pieces(b: Array, c: Array, samples: int) -> Iterator[tuple[Array, Array, int]]:
    """Yields slices of both arrays that hold a few samples each, and the number of these samples."""
    each = samples_in(b) // max(samples, 1)
    step = max(1, PIECE * samples // max(b.size, 1))
    if step >= samples:
        yield b, c, samples
        return
    for start in range(0, samples, step):
        cut = slice(start * each, (start + step) * each)
        yield b[cut], c[cut], min(step, samples - start)


def relative(b: Array, c: Array, samples: int, options: Options, peak: float) -> F64:
    """Returns maximum and sum of the relative errors, and the number of compared elements, [samples, 3].

    A relative error is |b - c| / max(|b|, floor), with floor = ``options.rel_floor`` times ``peak``, the
    greatest magnitude of the baseline. It is 0 if b equals c, even if both are 0.
    """
    rows, floor = [], options.rel_floor * peak
    for x, y, n in pieces(b, c, samples):
        x, y = x.reshape(n, -1), y.reshape(n, -1)
        x64, y64 = x.astype(np.float64), y.astype(np.float64)
        same = same_non_finite(x64, y64)
        x64[same] = y64[same] = 0.0
        off = ratio(np.abs(difference(x, y, x64, y64)), np.maximum(np.abs(x64), floor))
        count = x.shape[1] - same.sum(axis=1)
        rows.append(np.stack([off.max(axis=1, initial=0.0), off.sum(axis=1), count], axis=1))
    return np.concatenate(rows)


def divergence(b: Array, c: Array, samples: int, options: Options, peak: float) -> F64:
    """Returns the sum of KL(softmax(b) || softmax(c)), and two counts of class rows, [samples, 3].

    A class row is one vector of class scores. The first count is of all class rows that are compared. A class
    row is left out if its greatest baseline value is not finite. The second count is of the compared class
    rows that hold probabilities in the baseline: no value is negative, and their sum is 1. ``peak`` is not
    used.
    """
    rows = []
    for x, y, n in pieces(b, c, samples):
        x64, y64 = class_rows(x, options.axis, n), class_rows(y, options.axis, n)
        log_x, log_y = log_softmax(x64), log_softmax(y64)
        terms = np.where(np.isneginf(log_x), 0.0, np.exp(log_x) * (log_x - log_y)).sum(axis=-1)
        counted = np.isfinite(x64.max(axis=-1))
        probabilities = (x64 >= 0).all(axis=-1) & (np.abs(x64.sum(axis=-1) - 1.0) <= 1e-2)
        columns = np.where(counted, terms, 0.0), counted, probabilities & counted
        rows.append(np.stack([column.sum(axis=1) for column in columns], axis=1))
    return np.concatenate(rows).astype(np.float64)


def top_k(k: int) -> RowsFunction:
    """Returns a function that computes three counts of class rows for each sample, [samples, 3].

    A class row is one vector of class scores. The first count is of the class rows whose greatest class in
    ``b`` is among the top k classes of ``c``. The second count is of the class rows that are compared. The
    third count is of all class rows.
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
    """Returns how many classes rank above the greatest class of ``b`` if classes are ranked by ``c``.

    A class that ties in c with the greatest class of b also ranks above it, if its score in b is lower. So
    outputs of zeros never agree.
    """
    top = b.argmax(axis=-1)[..., None]
    own = np.take_along_axis(c, top, axis=-1)
    rivals = b < np.take_along_axis(b, top, axis=-1)
    return np.asarray(np.count_nonzero((c > own) | ((c == own) & rivals), axis=-1))


def changed_classes(b: Array, c: Array, axis: int) -> F64:
    """Returns a row for each sample whose class in ``c`` differs from that in ``b``, [changed samples, 4].

    The samples are those that lower the top-1 agreement.

    The columns are the index of the sample, its class in ``b``, its class in ``c``, and the margin: the
    difference of the scores of these two classes in ``b``. If the greatest value of ``c`` is not finite, its
    class is ``NO_CLASS`` and the margin is inf. If the arrays hold class ids, the margin is nan.

    Args:
        b: Scores of classes, one class row for each sample, or class ids, [samples].
        c: The candidate's array, of the same kind.
        axis: The axis of the classes.
    """
    if b.dtype.kind in "iu":
        rows = (b != c).nonzero()[0]
        return np.column_stack([rows, b[rows], c[rows], np.full(len(rows), np.nan)]).astype(np.float64)
    x, y = (class_rows(array, axis, len(array))[:, 0] for array in (b, c))
    finite = np.isfinite(y.max(axis=-1))
    changed = np.isfinite(x.max(axis=-1)) & ~(finite & (_classes_before(x, y) < 1))
    rows = changed.nonzero()[0]
    x, y, top, each = x[rows], y[rows], x[rows].argmax(axis=-1), np.arange(len(rows))
    y[each, top] = -np.inf  # If several classes tie in c, the class of b is never taken.
    other = y.argmax(axis=-1)
    margin = np.where(finite[rows], x[each, top] - x[each, other], np.inf)
    return np.column_stack([rows, top, np.where(finite[rows], other, NO_CLASS), margin])


def flip_distance(k: int) -> RowsFunction:
    """Returns a function that computes how close the baseline's top class is to leaving the top k.

    The function returns one number for each sample, [samples, 1]: the k-th greatest of ``class_gains`` in the
    sample's first class row, a vector of class scores. If the baseline's greatest class has left the top k of
    the candidate, the number is raised to above 1; otherwise it is clipped to 0 to 1.
    """

    def rows(b: Array, c: Array, samples: int, options: Options, peak: float) -> F64:
        y, z = (class_rows(a, options.axis, samples)[:, 0] for a in (b, c))
        gains = class_gains(y, z - y, 0.0)
        distance = np.partition(gains, -k, axis=-1)[..., -k]
        above_1 = np.maximum(distance, np.nextafter(1.0, 2.0))
        return np.where(_classes_before(y, z) >= k, above_1, np.clip(distance, 0.0, 1.0))[:, None]

    return rows


def class_gains(y: F64, e: F64, floor: float) -> F64:
    """Returns how much of its distance to the top class each class gains by the error; 1 is a tie.

    The result is (e_j - e_top) / (y_top - y_j) for class j, and 0 for the top class itself, [..., classes].

    Args:
        y: The baseline, [..., classes].
        e: The candidate minus the baseline, [..., classes].
        floor: The minimum of the divisor y_top - y_j, in the unit of the output.
    """
    top = y.argmax(axis=-1)[..., None]
    gain = e - np.take_along_axis(e, top, axis=-1)
    margin = np.take_along_axis(y, top, axis=-1) - y
    return np.nan_to_num(ratio(gain, np.maximum(margin, floor)), nan=0.0, posinf=np.inf, neginf=0.0)


def ratio(value: F64, limit: F64 | float) -> F64:
    """Returns ``value / limit``. The result is 0 where the value is 0, even if the limit is 0."""
    return np.where(value == 0, 0.0, value / np.asarray(limit, np.float64))


def unequal(b: Array, c: Array, samples: int, options: Options, peak: float) -> F64:
    """Returns the number of elements that differ, and the number of all elements, [samples, 2]."""
    differ = np.asarray(b != c, np.bool_).reshape(samples, -1)
    return np.stack([differ.sum(axis=1), np.full(samples, differ.shape[1])], axis=1).astype(np.float64)


def class_rows(array: Array, axis: int, samples: int) -> F64:
    """Returns an array as [samples, class rows, classes] in float64; ``axis`` is the axis of the classes.

    A class row is one vector of class scores.
    """
    return _classes_last(array, axis, samples).astype(np.float64)


def _classes_last(array: Array, axis: int, samples: int) -> Array:
    moved = np.moveaxis(array, axis, -1)
    return moved.reshape(samples, -1, moved.shape[-1])


def log_softmax(rows: F64) -> F64:
    """Returns the logarithm of the softmax over the last axis, which holds logits."""
    shifted = rows - rows.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


ERRORS = Measure("errors", errors, greatest=tuple(_GREATEST), counted=AT["elements"])
RELATIVE = Measure("relative", relative, greatest=(0,), counted=2, reads=frozenset({"rel_floor"}))
_CLASSES = frozenset({"axis"})
DIVERGENCE = Measure("divergence", divergence, greatest=(), counted=COUNTED, reads=_CLASSES)
TOP1 = Measure("top1", top_k(1), greatest=(), counted=COUNTED, reads=_CLASSES)
TOP5 = Measure("top5", top_k(5), greatest=(), counted=COUNTED, reads=_CLASSES)
UNEQUAL = Measure("unequal", unequal, greatest=(), counted=COUNTED)
#: Two measures of how close the baseline's top class of a sample is to leaving the candidate's top 1, or its
#: top 5; see ``flip_distance``. Only the search for a fix reads these rows. It reads them sample by sample,
#: so rows of several samples are never combined.
FLIP1 = Measure("flip1", flip_distance(1), greatest=(0,), counted=0, reads=_CLASSES)
FLIP5 = Measure("flip5", flip_distance(5), greatest=(0,), counted=0, reads=_CLASSES)
