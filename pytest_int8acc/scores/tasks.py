"""The built-in metrics of labels: top1, top5, f1, miou, coco_map, wer, ssim and psnr.

Each metric makes one record for each sample, batch by batch. Its value over any set of samples is computed
from the records of these samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.data.scripts import UserFunction, run_user
from pytest_int8acc.errors import CriterionError, DataError, blaming, error_text, listed
from pytest_int8acc.scores import boxes
from pytest_int8acc.scores.rows import F64
from pytest_int8acc.spec.criteria import TaskName
from pytest_int8acc.tensors import Array, Dim, Feed, TensorInfo, did_you_mean

Integers = NDArray[np.integer[Any]]
#: The numbers that a metric of labels stores for one sample, such as counts of right labels, or boxes. Each
#: metric has a form of its own.
Record = Any
#: Labels are one array, or several by name. Axis 0 counts the samples.
Labels = Array | Mapping[str, Array] | None


@dataclass(frozen=True)
class Task:
    """A metric of labels with the options that a spec gives it."""

    name: TaskName
    output: str | None = None
    """The name of the output that the metric reads. None if the model has only one output, or if a user's
    decode function gets all outputs."""
    decode: UserFunction | str | None = None
    """Turns outputs into predictions: a user's function, or the name of a layout of boxes. None if the output
    holds the predictions."""
    label: str | None = None
    """The name of the array of labels that the metric reads; None if there is only one array."""
    axis: int | None = None
    """The axis of the classes, or for ``ssim`` the axis of the channels. With None, the class axis is the one
    that the labels lack."""
    ignore: int | None = None
    """A class id. The metric leaves out the labels of this class."""
    average: str = "macro"
    """How ``f1`` is averaged over classes: macro, micro, weighted or binary, as in scikit-learn."""
    data_range: float | None = None
    """For ``ssim`` and ``psnr``: the greatest possible value of an image minus the least. None means 255 for
    labels in uint8, otherwise 1."""
    place: str = ""
    """The place in the spec that names the labels, as ``file:line:col``, for error messages."""

    def records(self, outputs: Feed, labels: Array, samples: Sequence[int]) -> list[Record]:
        """Returns one record for each sample of a batch, from which ``value`` computes the metric.

        Args:
            outputs: The outputs of the batch.
            labels: The labels of the batch.
            samples: The indices of the batch's samples.

        Raises:
            CriterionError: The predictions do not fit the metric, or the user's decode function fails.
            DataError: A label is none of the classes.
        """
        given = self._predictions(outputs)
        try:
            if len(given) != len(labels):
                raise CriterionError(
                    f"{len(given)} predictions for {len(labels)} samples; expected one each, in their order"
                )
            if not isinstance(given, list):
                self._check_classes(labels, samples, self._fit(given.shape, given.dtype, labels.shape))
            with np.errstate(all="ignore"):  # inf and nan are valid results here
                return list(TASKS[self.name].records(self, given, labels))
        except CriterionError as error:
            raise CriterionError(f"metric {self.name}: {error}") from error

    def value(self, records: Sequence[Record]) -> float:
        """Returns the metric's value over the samples whose records are given; it may be nan or inf."""
        with np.errstate(all="ignore"):  # inf and nan are valid results here
            return float(TASKS[self.name].value(self, records))

    def check(self, outputs: Sequence[TensorInfo], labels: Labels) -> None:
        """Checks the metric against the model's outputs and the labels, before the model runs.

        Dimensions that the model does not fix are not checked.

        Raises:
            CriterionError: The metric's library is not installed; the model lacks the named output; the model
                has several outputs, and none is named; or the output does not fit the labels.
            DataError: The labels are not of the kind that the metric needs.
        """
        needed, names = TASKS[self.name].library, [tensor.name for tensor in outputs]
        if needed is not None and find_spec(needed[0]) is None:
            raise CriterionError(
                f"metric {self.name} needs {needed[0]}, which is not installed: pip install {needed[1]}"
            )
        array = self.labels_of(labels)
        if isinstance(self.decode, UserFunction):
            return self._check_classes(array)
        if self.output is not None and self.output not in names:
            raise CriterionError(
                f"metric {self.name}: the model has no output '{self.output}'"
                f"{did_you_mean(self.output, names)}; outputs: {listed(names)}"
            )
        if self.output is None and len(names) > 1:
            raise CriterionError(
                f"metric {self.name}: the model has the outputs {listed(names)}: add `output:`"
            )
        tensor = outputs[names.index(self.output) if self.output else 0]
        if self.name == "wer" and tensor.dtype.kind not in "OSU":
            raise CriterionError(
                f"metric wer needs texts, and '{tensor.name}' holds {tensor.dtype}: add `decode:`"
            )
        known = tensor.shape is not None
        self._check_classes(
            array, count=self._fit(tensor.shape or (), tensor.dtype, array.shape) if known else None
        )

    def labels_of(self, labels: Labels) -> Array:
        """Returns the array of labels that the metric reads: ``labels``, or one of them if there are several.

        Raises:
            CriterionError: There are no labels.
            DataError: The labels are not of the kind that the metric needs.
        """
        if labels is None:
            raise CriterionError(f"metric {self.name} needs labels: give `labels:` in the spec")
        with blaming(self.place):
            if isinstance(labels, Mapping):
                name = next(iter(labels)) if self.label is None else self.label
                if self.label is None and len(labels) > 1:
                    raise DataError(f"labels: {self.name} takes one of {listed(labels)}: name it by `label:`")
                if name not in labels:
                    raise DataError(f"labels: no '{name}'{did_you_mean(name, labels)} in {listed(labels)}")
                labels = labels[name]
            array, (kinds, axes, expected_text) = np.asarray(labels), TASKS[self.name].labels
            if array.dtype.kind not in kinds or array.ndim not in axes:
                raise DataError(
                    f"labels: {self.name} needs {expected_text}; found {array.dtype} of shape {array.shape}"
                )
            if self.name == "coco_map":
                boxes.check_labels(array)
        return array

    def _check_classes(self, labels: Array, samples: Sequence[int] = (), count: int | None = None) -> None:
        """Raises DataError if a label is not the id of one of the classes.

        Args:
            labels: The labels of some samples.
            samples: The indices of these samples; empty if they are the first ones.
            count: The number of classes; None if it is not known.
        """
        if not TASKS[self.name].of_classes:
            return
        ids = labels[..., 4] if self.name == "coco_map" else labels
        wrong = ids >= (np.inf if count is None else count)
        if self.name != "coco_map":  # a box with a class below 0 is padding
            wrong = (wrong | (ids < 0)) & (True if self.ignore is None else ids != self.ignore)
        if wrong.any():
            row = int(np.argwhere(wrong)[0][0])
            row, first = samples[row] if samples else row, ids[wrong].flat[0]
            known = "from 0 on" if count is None else f"from 0 to {count - 1}"
            remedy = "" if self.name == "coco_map" else "; what does not count is left out with `ignore: ID`"
            with blaming(self.place):
                raise DataError(
                    f"labels: class {first:g} of sample {row} is out of range: "
                    f"{self.name} knows classes {known}{remedy}"
                )

    def _fit(self, shape: Sequence[Dim], dtype: np.dtype[Any], labels: Sequence[int]) -> int | None:
        """Checks that the shape of an output fits the shape of the labels.

        Args:
            shape: The shape of the output.
            dtype: The dtype of the output.
            labels: The shape of the labels.

        Returns:
            The number of classes; None if it is not known, or if the metric does not compare classes.

        Raises:
            CriterionError: The output does not fit.
        """
        found: Dim = None
        if self.name == "coco_map":
            axis, offset = {"yolov8": (1, 4), "yolov5": (-1, 5)}.get(str(self.decode), (0, 0))
            found = shape[axis] if len(shape) == 3 and axis else None
            return found - offset if isinstance(found, int) else None
        if TASKS[self.name].of_classes:
            if dtype.kind in "iu" and len(shape) == len(labels):
                return None
            axes = _class_axes(shape, labels, self.axis)
            found = shape[axes[0]] if len(axes) == 1 else None
            return found if isinstance(found, int) else None
        alike = len(shape) == len(labels) and all(map(_fits, shape[1:], labels[1:]))
        if self.name != "wer" and not alike:
            raise CriterionError(
                f"images of shape {tuple(shape)} for labels of shape {tuple(labels)}: they must be alike"
            )
        return None

    def _predictions(self, outputs: Feed) -> Any:
        if not isinstance(self.decode, UserFunction):
            given = outputs[self.output] if self.output is not None else next(iter(outputs.values()))
            return given if self.decode is None else boxes.decoded(self.decode, given)
        # The user's function gets copies, because it may change them.
        own = {name: np.array(array) for name, array in outputs.items()}
        found = run_user(self.decode.ref, self.decode, own, error=CriterionError)
        if self.name in ("wer", "coco_map") and isinstance(found, Sequence | np.ndarray):
            return run_user(self.decode.ref, list, found, error=CriterionError)
        try:
            array: Array = run_user(self.decode.ref, np.asarray, found, error=CriterionError)
        except CriterionError as error:
            raise CriterionError(f"{self.decode.ref} returned what is no array: {error}") from error
        if array.dtype.kind not in "fiub" or not array.ndim:
            raise CriterionError(
                f"{self.decode.ref} returned {type(found).__name__}; expected one prediction per sample"
            )
        return array


class TaskRun:
    """Computes a metric of labels for the outputs of one model. It keeps a record of each sample."""

    labelled = joins = True

    def __init__(self, task: Task, labels: Labels) -> None:
        """Starts without outputs.

        Raises:
            CriterionError: There are no labels.
            DataError: The labels are not of the kind that the metric needs.
        """
        self._task, self._labels = task, task.labels_of(labels)
        self._records: dict[int, Record] = {}

    def add(self, baseline: Feed, outputs: Feed, samples: Sequence[int]) -> None:
        """Adds the outputs of some samples; ``samples`` are their indices, and ``baseline`` is not used.

        Raises:
            CriterionError: The outputs do not fit the metric, or the user's decode function fails.
            DataError: A label is not the id of one of the classes.
        """
        found = self._task.records(outputs, self._labels[list(samples)], samples)
        self._records.update(zip(samples, found, strict=True))

    @property
    def samples(self) -> int:
        """The number of samples that were added so far."""
        return len(self._records)

    @property
    def drawable(self) -> TaskRun | None:
        """This object, if its metric is fast enough for dozens of subsets of the samples; otherwise None."""
        return None if TASKS[self._task.name].slow else self

    @property
    def right(self) -> F64 | None:
        """For each sample 1 if it is right, 0 if it is wrong, and nan if its label is left out, [samples].

        None if the metric is not a ratio of right samples, or if a sample has several labels.
        """
        if not TASKS[self._task.name].is_share:
            return None
        counts = np.array([self._records[sample] for sample in sorted(self._records)])
        if not len(counts) or (counts[:, 1] > 1).any():
            return None
        return np.where(counts[:, 1] == 1, counts[:, 0], np.nan)

    def value(self, samples: Sequence[int] | None = None) -> float:
        """Returns the metric's value over some samples.

        Args:
            samples: Indices of the samples. A sample whose index occurs twice is used twice. None: all
                samples.
        """
        order = sorted(self._records) if samples is None else samples
        return self._task.value([self._records[sample] for sample in order])


class Kind(NamedTuple):
    """The definition of one built-in metric of labels: its functions, its properties, and its labels."""

    records: Callable[[Task, Any, Array], Sequence[Record]]
    value: Callable[[Task, Sequence[Record]], float]
    labels: tuple[str, Sequence[int], str]
    """The labels that the metric accepts: characters of NumPy's ``dtype.kind``, numbers of axes, and a text
    on both for messages."""
    doc: str
    """The definition of the metric in one line, with its unit or range, for docs/reference.md."""
    lower_is_better: bool = False
    of_classes: bool = False
    """Whether the labels are class ids, or boxes that have a class id."""
    library: tuple[str, str] | None = None
    """The name of the Python module that the metric imports, and of the package that installs it; None if it
    needs none."""
    slow: bool = False
    """Whether computing the value for dozens of subsets of the samples would take too long."""
    is_share: bool = False
    """Whether the value is the ratio of right predictions among all labels that are not left out."""


def _class_axes(shape: Sequence[Dim], labels: Sequence[int], axis: int | None) -> list[int]:
    """Returns the axes of the predictions that may be the class axis.

    If the class axis is removed from the shape of the predictions, the shape of the labels remains. Axis 0,
    which counts the samples, and dimensions that are not known are not compared.

    Args:
        shape: The shape of the predictions.
        labels: The shape of the labels.
        axis: The class axis that the spec gives; None if it gives none.

    Raises:
        CriterionError: No axis can be the class axis.
    """
    rank = len(shape)
    if axis is not None and (not -rank <= axis < rank or axis % rank == 0):
        raise CriterionError(f"'axis: {axis}' is no class axis of {shape}: axis 0 counts samples")
    fitting = [
        a
        for a in (range(1, rank) if axis is None else [axis % rank])
        if rank == len(labels) + 1 and all(map(_fits, (*shape[1:a], *shape[a + 1 :]), labels[1:]))
    ]
    if not fitting:
        raise CriterionError(
            f"predictions of shape {tuple(shape)} do not fit labels of shape {tuple(labels)}: labels are "
            "class ids, and predictions have one axis more, that of the classes; name another `output:` or "
            "`axis:`, or a `decode:` function"
        )
    return fitting


def _fits(dim: Dim, size: int) -> bool:
    return not isinstance(dim, int) or dim == size


def _classes_last(given: Array, labels: Array, axis: int | None) -> Array:
    fitting = _class_axes(given.shape, labels.shape, axis)
    if len(fitting) > 1:
        raise CriterionError(
            f"any of the axes {fitting} of shape {given.shape} may hold classes: set `axis:`"
        )
    return np.moveaxis(given, fitting[0], -1)


def _are_ids(given: Array, labels: Array) -> bool:
    """Whether the predictions are class ids, like the labels, and not scores of classes."""
    return given.dtype.kind in "iub" and given.shape == labels.shape


def _top(k: int) -> Kind:
    """Returns the metric of top-k accuracy, as in ``sklearn.metrics.top_k_accuracy_score``."""

    def records(task: Task, given: Array, labels: Integers) -> Sequence[F64]:
        """Returns for each sample two counts: of the right labels, and of the labels that are not left out.

        A label is right if the score of its class is among the k greatest. A class with an equal score ranks
        above the label's class, so outputs of zeros are never right. Scores with NaN or +inf are never right.
        """
        counted = np.ones(labels.shape, np.bool_) if task.ignore is None else labels != task.ignore
        if _are_ids(given, labels):
            if k > 1:
                raise CriterionError(f"top{k} needs a score for each class; the predictions are class ids")
            found = given == labels
        else:
            scores = _classes_last(given, labels, task.axis)
            if scores.shape[-1] <= k:
                raise CriterionError(f"top{k} of {scores.shape[-1]} classes is always right")
            ids = np.where(counted, labels, 0)[..., None]
            own = np.take_along_axis(scores, ids, axis=-1)
            as_high = np.count_nonzero(scores >= own, axis=-1)  # The label's class itself is included.
            found = (as_high <= k) & np.isfinite(scores.max(axis=-1))
        columns = (found & counted), counted
        counts = [column.reshape(len(labels), -1).sum(axis=1) for column in columns]
        return list(np.stack(counts, axis=1).astype(np.float64))

    doc = f"share of labels that are {'the greatest class' if k == 1 else f'among the {k} greatest'}, 0 to 1"
    return Kind(records, _ratio_of_sums, _IDS, doc, of_classes=True, is_share=True)


def _ratio_of_sums(task: Task, records: Sequence[Any]) -> float:
    """Returns the sum of the first numbers of all records, divided by the sum of the second numbers.

    A record has two numbers. The result is nan if the second sum is 0.
    """
    part, whole = np.sum(records, axis=0)
    return float(part / whole) if whole else float("nan")


def _confusions(task: Task, given: Array, labels: Integers) -> list[Integers]:
    """Returns for each sample the pairs of label and predicted class that occur, and how often, [pairs, 3].

    The predicted class is -1, which is always wrong, if several classes have the greatest score, or if the
    greatest score is NaN or infinite.
    """
    if _are_ids(given, labels):
        predicted = given.astype(np.int64)
    else:
        scores = _classes_last(given, labels, task.axis)
        greatest = scores.max(axis=-1, keepdims=True)
        clear = np.isfinite(greatest[..., 0]) & (np.count_nonzero(scores == greatest, axis=-1) == 1)
        predicted = np.where(clear, scores.argmax(axis=-1), -1)
    found = []
    for truth, guess in zip(labels.astype(np.int64), predicted, strict=True):
        counted = np.ones(np.shape(truth), np.bool_) if task.ignore is None else truth != task.ignore
        truth, guess = (np.atleast_1d(a)[np.atleast_1d(counted)] for a in (truth, guess))
        classes = int(max(truth.max(initial=0), guess.max(initial=0))) + 2
        codes, counts = _counts(truth * classes + guess + 1, classes**2)
        found.append(np.stack([codes // classes, codes % classes - 1, counts], axis=1))
    return found


def _counts(codes: Integers, most: int) -> tuple[Integers, Integers]:
    """Returns the distinct numbers in ``codes``, and how often each occurs. All are below ``most``."""
    if most > 4 * codes.size:
        return np.unique(codes, return_counts=True)
    counts = np.bincount(codes.ravel(), minlength=most)
    return counts.nonzero()[0], counts[counts.nonzero()[0]]


def _by_class(records: Sequence[Integers]) -> tuple[F64, F64, F64]:
    """Returns the numbers of true positives, false positives and false negatives of each class, [classes].

    ``records`` are the results of ``_confusions``.
    """
    truth, guess, count = np.concatenate(records).T if len(records) else np.zeros((3, 0), np.int64)
    classes = int(max(truth.max(initial=-1), guess.max(initial=-1))) + 1
    right, wrong = truth == guess, (truth != guess) & (guess >= 0)
    found = ((truth, right), (guess, wrong), (truth, ~right))
    tp, fp, fn = (np.bincount(ids[mask], count[mask], classes).astype(np.float64) for ids, mask in found)
    return tp, fp, fn


def _f1(task: Task, records: Sequence[Integers]) -> float:
    """Returns the F1 score, as ``sklearn.metrics.f1_score`` computes it; nan if no class occurs."""
    tp, fp, fn = _by_class(records)
    if task.average == "micro":
        tp, fp, fn = (np.array([a.sum()]) for a in (tp, fp, fn))
    elif task.average == "binary":
        tp, fp, fn = (a[1:2] for a in (tp, fp, fn))
    occurs = 2 * tp + fp + fn > 0
    each, support = (2 * tp[occurs]) / (2 * tp + fp + fn)[occurs], (tp + fn)[occurs]
    if task.average == "weighted":
        return float(np.average(each, weights=support)) if support.any() else float("nan")
    if len(each):
        return float(each.mean())
    return 0.0 if task.average == "binary" else float("nan")


def _mean_iou(task: Task, records: Sequence[Integers]) -> float:
    """Returns the mean IoU of the classes that occur, as ``sklearn.metrics.jaccard_score`` computes it.

    The result is nan if no class occurs.
    """
    tp, fp, fn = _by_class(records)
    union = tp + fp + fn
    return float((tp[union > 0] / union[union > 0]).mean()) if union.any() else float("nan")


def _boxes(task: Task, given: Any, labels: Array) -> Sequence[Record]:
    """Returns for each sample the predicted boxes and the labelled boxes, without rows that are padding.

    ``given`` are the predicted boxes, one array [boxes, 6] per sample.
    """
    found, expected_text = [], "expected [boxes, 6]: x1, y1, x2, y2, score, class"
    for each, truth in zip(given, labels, strict=True):
        try:
            rows = np.asarray(each, np.float64)
        except (TypeError, ValueError) as error:
            raise CriterionError(
                f"boxes are no array of numbers: {error_text(error)}; {expected_text}"
            ) from error
        if rows.size and (rows.ndim != 2 or rows.shape[1] != 6):
            raise CriterionError(f"boxes of shape {rows.shape}; {expected_text}")
        rows = rows.reshape(-1, 6)
        found.append((boxes.finite(rows), truth[truth[:, 4] >= 0]))
    return found


def _words(task: Task, given: Any, labels: Array) -> Sequence[tuple[int, int]]:
    """Returns for each sample the number of wrong words, and the number of words in its label.

    ``given`` are the predicted texts. A word is wrong if it is substituted, deleted or inserted.
    """
    jiwer, found = import_module("jiwer"), []
    for text, truth in zip(given, labels.tolist(), strict=True):
        text = text.item() if isinstance(text, np.ndarray) and text.size == 1 else text
        text = text.decode(errors="replace") if isinstance(text, bytes) else text
        if not isinstance(text, str):
            raise CriterionError(
                f"a prediction is {type(text).__name__}, expected text; name a `decode:` function"
            )
        if not truth.split():
            found.append((len(text.split()), 0))
            continue
        made = jiwer.process_words(truth, text)
        wrong = made.substitutions + made.deletions
        found.append((wrong + made.insertions, wrong + made.hits))
    return found


def _images(
    measure: Callable[[Task, F64, F64, float], float], doc: str, library: tuple[str, str] | None = None
) -> Kind:
    def records(task: Task, given: Array, labels: Array) -> Sequence[float]:
        span = task.data_range or (255.0 if labels.dtype == np.uint8 else 1.0)
        pairs = zip(labels.astype(np.float64), given.astype(np.float64), strict=True)
        return [measure(task, truth, image, span) for truth, image in pairs]

    labels = ("fiu", range(3, 9), "images, in the shape of the output")
    return Kind(records, lambda _, records: float(np.mean(records)), labels, doc, library=library)


def _psnr(task: Task, truth: F64, image: F64, span: float) -> float:
    """Returns 10 log10(span^2 / mean squared error), in dB, as ``skimage.metrics.peak_signal_noise_ratio``.

    ``truth`` is the labelled image, and ``span`` its greatest possible value minus its least.
    """
    return float(10 * np.log10(span**2 / np.mean((truth - image) ** 2)))


def _ssim(task: Task, truth: F64, image: F64, span: float) -> float:
    """Returns the structural similarity (Wang et al., 2004), by scikit-image with windows of 7 pixels.

    ``truth`` is the labelled image, and ``span`` its greatest possible value minus its least.
    """
    channels = 0 if task.axis is None and truth.ndim == 3 else None
    if task.axis is not None:
        # The array of one sample has no axis of samples, so a positive axis number decreases by 1.
        channels = task.axis - (task.axis > 0)
    compare = import_module("skimage.metrics").structural_similarity
    try:
        return float(compare(truth, image, data_range=span, channel_axis=channels))
    except (ValueError, IndexError) as error:
        raise CriterionError(f"images of shape {truth.shape}: {error}") from error


_IDS = ("iu", range(1, 9), "class ids, as integers")
#: The name of each built-in metric of labels in a spec, to its definition.
TASKS: Mapping[TaskName, Kind] = {
    "top1": _top(1),
    "top5": _top(5),
    "f1": Kind(
        _confusions,
        _f1,
        _IDS,
        "2 tp / (2 tp + fp + fn), averaged over classes, 0 to 1",
        of_classes=True,
    ),
    "miou": Kind(
        _confusions,
        _mean_iou,
        _IDS,
        "mean of tp / (tp + fp + fn) over the classes that occur, 0 to 1",
        of_classes=True,
    ),
    "coco_map": Kind(
        _boxes,
        lambda _, records: boxes.coco_map(records),
        ("fiu", (3,), "boxes [samples, boxes, 5 to 7] of x1, y1, x2, y2, class, iscrowd, area"),
        "COCO's AP: mean average precision over IoU 0.5 to 0.95 and classes, 0 to 1",
        of_classes=True,
        library=("faster_coco_eval", "faster-coco-eval"),
        slow=True,
    ),
    "wer": Kind(
        _words,
        _ratio_of_sums,
        ("U", (1,), "texts, [samples]"),
        "words substituted, deleted or inserted / words of the labels, from 0",
        lower_is_better=True,
        library=("jiwer", "jiwer"),
    ),
    "ssim": _images(
        _ssim, "mean over images of the structural similarity, -1 to 1", ("skimage", "scikit-image")
    ),
    "psnr": _images(_psnr, "mean over images of 10 log10(data_range^2 / mean squared error), dB"),
}
#: The names of the built-in metrics of labels for which a lower value is better.
LOWER_IS_BETTER = frozenset(name for name, kind in TASKS.items() if kind.lower_is_better)
