"""Splits the samples of a case: some choose layers, scales and plans, and the others prove the result.

A plan scores too well on the samples by which it was chosen. So a proof needs other samples (Hastie,
Tibshirani and Friedman, The Elements of Statistical Learning, 2009, section 7.10.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pytest_int8acc.scores.rows import F64
from pytest_int8acc.scores.statistics import Groups
from pytest_int8acc.tensors import Array, Outputs

#: Minimum number of samples for a split. With fewer samples, all of them choose plans, and no plan is proved.
LEAST = 24
#: One of this many samples proves plans; the others choose them.
_ONE_IN = 3
#: Minimum number of samples that prove a plan, also if a user names these samples under ``prove``.
LEAST_HELD_OUT = LEAST // _ONE_IN
#: Samples are sorted into this number of classes by their margin (the difference between the two greatest
#: class scores). Each class is split in the same ratio into samples that choose plans and samples that prove
#: them.
_CLASSES = 3


class Split(NamedTuple):
    """The indices of the samples that choose plans and of the samples that prove plans, each in order.

    Both are empty if all samples choose and none proves.
    """

    choosing: tuple[int, ...]
    held_out: tuple[int, ...]


def split(errors: F64, margins: F64, seed: int = 0, groups: Groups | None = None) -> Split:
    """Split samples into those that choose plans and those that prove them, with similar margins and errors.

    Samples are sorted by the class of their margin, and within a class by their error. Of every three
    neighbours in this order, one is drawn at random and proves plans. So both parts have easy and hard
    samples. With fewer than ``LEAST`` samples, both parts are empty.

    Args:
        errors: The error of the candidate on each sample, [samples]; any measure that orders samples.
        margins: The difference between the two greatest class scores of the baseline, [samples]; equal
            numbers if no output has classes.
        seed: The seed of the random choice.
        groups: The group of each sample, [samples]. A group is not split: it counts as one sample, with its
            greatest error and its least margin. None if no samples belong together.
    """
    if groups is not None:
        numbers = np.unique(groups, return_inverse=True)[1]
        members = [np.flatnonzero(numbers == number) for number in range(int(numbers.max(initial=-1)) + 1)]
        largest = np.array([errors[group].max() for group in members])
        least = np.array([margins[group].min() for group in members])
        units = split(largest, least, seed)
        choosing, held_out = (np.flatnonzero(np.isin(numbers, part)).tolist() for part in units)
        return Split(tuple(choosing), tuple(held_out))
    samples = len(errors)
    if samples < LEAST:
        return Split((), ())
    ranks = np.argsort(np.argsort(margins, kind="stable"), kind="stable")
    classes = ranks * _CLASSES // samples if np.ptp(margins) else np.zeros(samples, np.int64)
    order = np.lexsort((np.nan_to_num(errors, nan=np.inf), classes))
    rng = np.random.default_rng(seed)
    blocks = range(0, samples - _ONE_IN + 1, _ONE_IN)
    held_out = sorted(int(order[start + rng.integers(_ONE_IN)]) for start in blocks)
    return Split(tuple(sorted(set(range(samples)).difference(held_out))), tuple(held_out))


def has_rows(outputs: Outputs, samples: int) -> bool:
    """Whether outputs can be cut into samples: by rows, or because each batch is one sample."""
    if all(len(arrays) == samples for arrays in outputs.values()):
        return True
    sizes = {tuple(len(array) if array.ndim else 0 for array in arrays) for arrays in outputs.values()}
    return len(sizes) == 1 and sum(sizes.pop()) == samples


def margins(outputs: Outputs, samples: int) -> F64:
    """The difference between the two greatest class scores of each sample, [samples].

    If several outputs have classes, the result is the least of their differences.

    An output has classes if its arrays have the shape [rows, classes]. Without such an output all differences
    are 0.

    Args:
        outputs: Outputs, batch by batch. Outputs without a row for each sample are ignored.
        samples: The number of samples.
    """
    least = np.full(samples, np.inf)
    for arrays in outputs.values():
        is_of_classes = all(
            array.ndim == 2 and array.shape[1] >= 2 and array.dtype.kind == "f" for array in arrays
        )
        if is_of_classes and sum(map(len, arrays)) == samples:
            top = np.sort(np.concatenate(arrays).astype(np.float64), axis=1)
            least = np.minimum(least, top[:, -1] - top[:, -2])
    return np.where(np.isfinite(least), least, 0.0)


def chosen_rows(arrays: Sequence[Array], rows: Sequence[int], samples: int) -> list[Array]:
    """The chosen rows of one output, each as an array of its own. No data is copied.

    Args:
        arrays: One array for each batch, with a row for each sample; or one array for each sample.
        rows: The indices of the samples over all batches, in order.
        samples: The number of samples.
    """
    every = list(arrays)
    if len(every) != samples:
        every = [array[row : row + 1] for array in arrays for row in range(len(array))]
    return [every[row] for row in rows]
