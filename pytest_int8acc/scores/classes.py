"""Metrics of classes: counts per sample against labels, from which accuracy, F1 and mean IoU follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.errors import CriterionError
from pytest_int8acc.scores.sums import F64
from pytest_int8acc.tensors import Array, Dim

Integers = NDArray[np.integer[Any]]


def class_axes(shape: Sequence[Dim], labels: Sequence[int], axis: int | None) -> list[int]:
    """The axes of scores that may hold the classes: taking one of them away leaves the shape of the labels.

    The sizes of the first axis, and of dimensions that are not known, are not compared.

    Raises:
        CriterionError: There is none.
    """
    rank = len(shape)
    if axis is not None and (not -rank <= axis < rank or axis % rank == 0):
        raise CriterionError(f"'axis: {axis}' is no class axis of {shape}: axis 0 counts samples")
    fitting = [
        a
        for a in (range(1, rank) if axis is None else [axis % rank])
        if rank == len(labels) + 1 and all(map(fits, (*shape[1:a], *shape[a + 1 :]), labels[1:]))
    ]
    if not fitting:
        raise CriterionError(
            f"predictions of shape {tuple(shape)} do not fit labels of shape {tuple(labels)}: labels are "
            "class ids, and predictions have one axis more, that of the classes; name another `output:` or "
            "`axis:`, or a `decode:` function"
        )
    return fitting


def fits(dim: Dim, size: int) -> bool:
    """Whether a dimension may have this size."""
    return not isinstance(dim, int) or dim == size


def _classes_last(given: Array, labels: Array, axis: int | None) -> Array:
    fitting = class_axes(given.shape, labels.shape, axis)
    if len(fitting) > 1:
        raise CriterionError(
            f"any of the axes {fitting} of shape {given.shape} may hold classes: set `axis:`"
        )
    return np.moveaxis(given, fitting[0], -1)


def hits(given: Array, labels: Integers, axis: int | None, ignore: int | None, k: int) -> F64:
    """For each sample, how many labels are among the k greatest classes, and how many count, [samples, 2].

    A label whose score another class equals comes after that class: a tie is no hit, so that outputs of zeros
    are right about nothing. Scores with NaN or +inf miss. Predictions that are class ids already hit where
    they are equal.
    """
    counted = np.ones(labels.shape, np.bool_) if ignore is None else labels != ignore
    if are_ids(given, labels):
        if k > 1:
            raise CriterionError(f"top{k} needs a score for each class; the predictions are class ids")
        found = given == labels
    else:
        scores = _classes_last(given, labels, axis)
        if scores.shape[-1] <= k:
            raise CriterionError(f"top{k} of {scores.shape[-1]} classes is always right")
        ids = np.where(counted, labels, 0)[..., None]
        own = np.take_along_axis(scores, ids, axis=-1)
        as_high = np.count_nonzero(scores >= own, axis=-1)  # the label itself is one of them
        found = (as_high <= k) & np.isfinite(scores.max(axis=-1))
    per_sample = ((found & counted), counted)
    return np.stack([a.reshape(len(labels), -1).sum(axis=1) for a in per_sample], axis=1).astype(np.float64)


def share_of_hits(records: Sequence[F64]) -> float:
    """Hits among all labels that count, 0 to 1: accuracy, as ``sklearn.metrics.top_k_accuracy_score``."""
    found, counted = np.sum(records, axis=0)
    return float(found / counted) if counted else float("nan")


def confusions(given: Array, labels: Integers, axis: int | None, ignore: int | None) -> list[Integers]:
    """For each sample, the pairs of label and prediction that occur and how often they do, [pairs, 3].

    A prediction with NaN or +inf, or with several greatest classes, is of class -1, which is none.
    """
    if are_ids(given, labels):
        predicted = given.astype(np.int64)
    else:
        scores = _classes_last(given, labels, axis)
        greatest = scores.max(axis=-1, keepdims=True)
        clear = np.isfinite(greatest[..., 0]) & (np.count_nonzero(scores == greatest, axis=-1) == 1)
        predicted = np.where(clear, scores.argmax(axis=-1), -1)
    found = []
    for truth, guess in zip(labels.astype(np.int64), predicted, strict=True):
        counted = np.ones(np.shape(truth), np.bool_) if ignore is None else truth != ignore
        truth, guess = (np.atleast_1d(a)[np.atleast_1d(counted)] for a in (truth, guess))
        classes = int(max(truth.max(initial=0), guess.max(initial=0))) + 2
        codes, counts = _counts(truth * classes + guess + 1, classes**2)
        found.append(np.stack([codes // classes, codes % classes - 1, counts], axis=1))
    return found


def _counts(codes: Integers, most: int) -> tuple[Integers, Integers]:
    """The distinct codes, all below ``most``, and how often each of them occurs."""
    if most > 4 * codes.size:
        return np.unique(codes, return_counts=True)
    counts = np.bincount(codes.ravel(), minlength=most)
    return counts.nonzero()[0], counts[counts.nonzero()[0]]


def _of_classes(records: Sequence[Integers]) -> tuple[F64, F64, F64]:
    """True positives, false positives and false negatives of each class that occurs."""
    truth, guess, count = np.concatenate(records).T if len(records) else np.zeros((3, 0), np.int64)
    classes = int(max(truth.max(initial=-1), guess.max(initial=-1))) + 1
    right, wrong = truth == guess, (truth != guess) & (guess >= 0)
    found = ((truth, right), (guess, wrong), (truth, ~right))
    tp, fp, fn = (np.bincount(ids[mask], count[mask], classes).astype(np.float64) for ids, mask in found)
    return tp, fp, fn


def f1(records: Sequence[Integers], average: str) -> float:
    """2 tp / (2 tp + fp + fn), 0 to 1, averaged as ``sklearn.metrics.f1_score`` does."""
    tp, fp, fn = _of_classes(records)
    if average == "micro":
        tp, fp, fn = (np.array([a.sum()]) for a in (tp, fp, fn))
    elif average == "binary":
        tp, fp, fn = (a[1:2] for a in (tp, fp, fn))
    occurs = 2 * tp + fp + fn > 0
    each, support = (2 * tp[occurs]) / (2 * tp + fp + fn)[occurs], (tp + fn)[occurs]
    if average == "weighted":
        return float(np.average(each, weights=support)) if support.any() else float("nan")
    return float(each.mean()) if len(each) else 0.0 if average == "binary" else float("nan")


def mean_iou(records: Sequence[Integers]) -> float:
    """Mean of tp / (tp + fp + fn) over the classes that occur, 0 to 1: ``sklearn.metrics.jaccard_score``."""
    tp, fp, fn = _of_classes(records)
    union = tp + fp + fn
    return float((tp[union > 0] / union[union > 0]).mean()) if union.any() else float("nan")


def are_ids(given: Array, labels: Array) -> bool:
    """Whether predictions are class ids already."""
    return given.dtype.kind in "iub" and given.shape == labels.shape
