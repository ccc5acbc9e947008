"""Metrics of labels that a spec names: top1, f1, miou, coco_map, wer, ssim and so on.

Each makes one record of every sample, batch by batch, and one number of the records of any samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from pytest_int8acc.data.scripts import UserFunction, run_user
from pytest_int8acc.errors import CriterionError, DataError, blaming, error_text, listed
from pytest_int8acc.scores import boxes, classes
from pytest_int8acc.scores.sums import F64
from pytest_int8acc.spec.criteria import TaskName
from pytest_int8acc.tensors import Array, Dim, Feed, TensorInfo, did_you_mean

#: What a metric keeps of a sample, such as hits or boxes; only the metric itself reads it.
Record = Any
#: Labels: one array, or several by name; axis 0 counts the samples.
Labels = Array | Mapping[str, Array] | None


@dataclass(frozen=True)
class Task:
    """A named metric as a spec sets it up."""

    name: TaskName
    output: str | None = None
    """The output that it judges; None: the only one, or the decode function chooses."""
    decode: UserFunction | str | None = None
    """Makes predictions of outputs: a user's function, or a layout of boxes."""
    label: str | None = None
    """Which array of the labels it takes; None: there is one."""
    axis: int | None = None
    """The axis of classes, for ssim of channels; None: it is found by the shapes."""
    ignore: int | None = None
    """A class id whose labels do not count."""
    average: str = "macro"
    """How F1 is averaged over classes, as in scikit-learn."""
    data_range: float | None = None
    """The difference between the greatest and the least possible value of an image; None: the usual one."""
    place: str = ""
    """Where the spec names the labels, as ``file:line:col``."""

    def records(self, outputs: Feed, labels: Array, samples: Sequence[int]) -> list[Record]:
        """The records of a batch, one per sample.

        Args:
            outputs: The batch.
            labels: Its labels.
            samples: Which samples it holds.

        Raises:
            CriterionError: The predictions have another form than the metric needs, or the user's decode
                function fails.
            DataError: A label is none of the classes.
        """
        given = self._predictions(outputs)
        try:
            if len(given) != len(labels):
                raise CriterionError(
                    f"{len(given)} predictions for {len(labels)} samples; expected one each, in their order"
                )
            if TASKS[self.name].of_classes and not isinstance(given, list):
                count = self.classes_in(given.shape, given.dtype, labels.shape)
                self.check_classes(labels, samples, count)
            with np.errstate(all="ignore"):  # inf and nan are answers here
                return list(TASKS[self.name].records(self, given, labels))
        except CriterionError as error:
            raise CriterionError(f"metric {self.name}: {error}") from error

    def value(self, records: Sequence[Record]) -> float:
        """The metric's value over the samples of these records; may be nan or inf."""
        with np.errstate(all="ignore"):  # inf and nan are answers here
            return float(TASKS[self.name].value(self, records))

    def check(self, outputs: Sequence[TensorInfo], labels: Labels) -> None:
        """Check the metric against the model's outputs and the labels, before anything runs.

        What the model leaves open, such as a dimension, is not checked.

        Raises:
            CriterionError: The metric's library is not installed, the model lacks the output or has several
                and none is named, or the output does not fit the labels.
            DataError: The labels hold something else than the metric needs.
        """
        kind, needed, names = (
            TASKS[self.name],
            TASKS[self.name].library,
            [tensor.name for tensor in outputs],
        )
        if needed is not None and find_spec(needed[0]) is None:
            raise CriterionError(
                f"metric {self.name} needs {needed[0]}, which is not installed: pip install {needed[1]}"
            )
        array = self.labels_of(labels)
        if isinstance(self.decode, UserFunction):
            return self.check_classes(array)
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
        if tensor.shape is None:
            return self.check_classes(array)
        if kind.of_classes:
            return self.check_classes(array, count=self.classes_in(tensor.shape, tensor.dtype, array.shape))
        if self.name != "wer":
            _check_alike(tensor.shape, array.shape)

    def labels_of(self, labels: Labels) -> Array:
        """The array of the labels that the metric takes.

        Raises:
            CriterionError: There are no labels.
            DataError: They hold something else than the metric needs.
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

    def check_classes(self, labels: Array, samples: Sequence[int] = (), count: int | None = None) -> None:
        """Raise DataError for a label that is none of the classes.

        Args:
            labels: Some samples' labels.
            samples: Which samples; those from 0 on by default.
            count: How many classes there are; None: any number.
        """
        if not TASKS[self.name].of_classes:
            return
        ids = labels[..., 4] if self.name == "coco_map" else labels
        wrong = ids >= (np.inf if count is None else count)
        if self.name != "coco_map":  # where classes below 0 fill up
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

    def classes_in(self, shape: Sequence[Dim], dtype: np.dtype[Any], labels: Sequence[int]) -> int | None:
        """The number of classes of an output; None where it is not known.

        Raises CriterionError where it does not fit labels of this shape.
        """
        found: Dim = None
        if self.name == "coco_map":
            place, offset = {"yolov8": (1, 4), "yolov5": (-1, 5)}.get(str(self.decode), (0, 0))
            found = shape[place] if len(shape) == 3 and place else None
            return found - offset if isinstance(found, int) else None
        if dtype.kind in "iu" and len(shape) == len(labels):
            return None
        axes = classes.class_axes(shape, labels, self.axis)
        found = shape[axes[0]] if len(axes) == 1 else None
        return found if isinstance(found, int) else None

    def _predictions(self, outputs: Feed) -> Any:
        if not isinstance(self.decode, UserFunction):
            given = outputs[self.output] if self.output is not None else next(iter(outputs.values()))
            return given if self.decode is None else boxes.decoded(self.decode, given)
        own = {name: np.array(array) for name, array in outputs.items()}  # which may be written into
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
    """A named metric fed with the outputs of one form batch by batch; it keeps a record of each sample."""

    def __init__(self, task: Task, labels: Labels) -> None:
        """Nothing is fed yet. Raises the errors of ``Task.labels_of``."""
        self._task, self._labels = task, task.labels_of(labels)
        self._records: dict[int, Record] = {}

    def add(self, outputs: Feed, samples: Sequence[int]) -> None:
        """Feed the outputs of these samples. Raises the errors of ``Task.records``."""
        found = self._task.records(outputs, self._labels[list(samples)], samples)
        self._records.update(zip(samples, found, strict=True))

    @property
    def samples(self) -> int:
        """The number of samples fed so far."""
        return len(self._records)

    @property
    def is_quick(self) -> bool:
        """Whether the value is computed fast enough for hundreds of resamples."""
        return not TASKS[self._task.name].slow

    def value(self, samples: Sequence[int] | None = None) -> float:
        """The metric of some samples, by index and as often as they are named; None: of all."""
        order = sorted(self._records) if samples is None else samples
        return self._task.value([self._records[sample] for sample in order])


class Kind(NamedTuple):
    """All that is known of a named metric."""

    records: Callable[[Task, Any, Array], Sequence[Record]]
    value: Callable[[Task, Sequence[Record]], float]
    labels: tuple[str, Sequence[int], str]
    """What labels must be: NumPy's kinds of dtype, possible numbers of axes, and both in words."""
    doc: str
    """One line for users, with the unit."""
    lower_is_better: bool = False
    of_classes: bool = False
    library: tuple[str, str] | None = None
    """The module that the metric needs, and the package that installs it."""
    slow: bool = False
    """Whether a value costs too much time to be computed for hundreds of resamples."""


def _top(k: int) -> Kind:
    def records(task: Task, given: Array, labels: Array) -> Sequence[F64]:
        return list(classes.hits(given, labels, task.axis, task.ignore, k))

    doc = f"share of labels that are {'the greatest class' if k == 1 else f'among the {k} greatest'}, 0 to 1"
    return Kind(records, lambda _, records: classes.share_of_hits(records), _IDS, doc, of_classes=True)


def _confusions(task: Task, given: Array, labels: Array) -> Sequence[Record]:
    return classes.confusions(given, labels, task.axis, task.ignore)


def _boxes(task: Task, given: Any, labels: Array) -> Sequence[Record]:
    """For each sample, the predicted boxes and the labelled boxes, without rows that fill up the labels."""
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
    """For each text, the number of wrong words (substituted, deleted, inserted) and of words in the label."""
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


def _word_error_rate(task: Task, records: Sequence[tuple[int, int]]) -> float:
    wrong, words = np.sum(records, axis=0)
    return float(wrong / words) if words else float("nan")


def _images(
    measure: Callable[[Task, F64, F64, float], float], doc: str, library: tuple[str, str] | None = None
) -> Kind:
    def records(task: Task, given: Array, labels: Array) -> Sequence[float]:
        _check_alike(given.shape, labels.shape)
        span = task.data_range or (255.0 if labels.dtype == np.uint8 else 1.0)
        pairs = zip(labels.astype(np.float64), given.astype(np.float64), strict=True)
        return [measure(task, truth, image, span) for truth, image in pairs]

    labels = ("fiu", range(3, 9), "images, in the shape of the output")
    return Kind(records, lambda _, records: float(np.mean(records)), labels, doc, library=library)


def _check_alike(shape: Sequence[Dim], labels: Sequence[int]) -> None:
    if len(shape) != len(labels) or not all(map(classes.fits, shape[1:], labels[1:])):
        raise CriterionError(
            f"images of shape {tuple(shape)} for labels of shape {tuple(labels)}: they must be alike"
        )


def _psnr(task: Task, truth: F64, image: F64, span: float) -> float:
    """10 log10(span^2 / mean squared error), in dB: ``skimage.metrics.peak_signal_noise_ratio``."""
    return float(10 * np.log10(span**2 / np.mean((truth - image) ** 2)))


def _ssim(task: Task, truth: F64, image: F64, span: float) -> float:
    """Structural similarity (Wang et al., 2004), -1 to 1, by scikit-image: windows of 7 pixels."""
    channels = 0 if task.axis is None and truth.ndim == 3 else None
    if task.axis is not None:
        channels = task.axis - (task.axis > 0)  # of one sample
    compare = import_module("skimage.metrics").structural_similarity
    try:
        return float(compare(truth, image, data_range=span, channel_axis=channels))
    except (ValueError, IndexError) as error:
        raise CriterionError(f"images of shape {truth.shape}: {error}") from error


_IDS = ("iu", range(1, 9), "class ids, as integers")
#: Every metric of labels that a criterion may name.
TASKS: Mapping[TaskName, Kind] = {
    "top1": _top(1),
    "top5": _top(5),
    "f1": Kind(
        _confusions,
        lambda task, records: classes.f1(records, task.average),
        _IDS,
        "2 tp / (2 tp + fp + fn), averaged over classes, 0 to 1",
        of_classes=True,
    ),
    "miou": Kind(
        _confusions,
        lambda _, records: classes.mean_iou(records),
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
        _word_error_rate,
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
#: Metrics of which a lower value is better.
LOWER_IS_BETTER = frozenset(name for name, kind in TASKS.items() if kind.lower_is_better)
