"""Collects the samples whose class differs between baseline and candidate, for outputs with class scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from pytest_int8acc.results import OutputResult
from pytest_int8acc.results.samples import ChangedDecisions, Decision
from pytest_int8acc.scores.criteria import limits_for
from pytest_int8acc.scores.judge import Judge
from pytest_int8acc.scores.metrics import METRICS
from pytest_int8acc.scores.rows import F64, NO_CLASS, TOP1, TOP5, changed_classes
from pytest_int8acc.scores.tasks import TASKS, Task
from pytest_int8acc.tensors import Array, Feed

#: Maximum number of rows that are kept for an output, one row for each sample whose class differs. Of further
#: samples only the number is kept.
_MAX_KEPT = 100
#: The indices of the columns in the row of float64 numbers that is kept for a sample whose class differs. A
#: class that is not known is ``NO_CLASS``.
_SAMPLE, _BASELINE, _CANDIDATE, _MARGIN, _LABEL = range(5)


@dataclass(eq=False)
class _Output:
    """The samples of one output whose class in the candidate differs from the baseline's, so far."""

    axis: int
    """The axis of the output along which the classes lie."""
    labels: Array | None
    """The labelled class of each sample, integers [samples]; None if there are no such labels.

    A sample without a class has ``NO_CLASS``.
    """
    kept: F64
    """A row for each of the samples whose class differs and whose margins are largest, [samples, 5], the
    largest margin first. The margin is by how much the baseline prefers its class to the candidate's."""
    changed: int = 0
    broken: int = 0
    mended: int = 0

    def add(self, b: Array, c: Array, first: int) -> None:
        """Adds the samples of the next batch whose class differs.

        Args:
            b: The baseline's array, samples along the first axis.
            c: The candidate's array, of the same shape.
            first: The index in the data set of the batch's first sample.
        """
        found = changed_classes(b, c, self.axis)
        samples = first + found[:, 0].astype(np.int64)
        labels = np.full(len(found), NO_CLASS) if self.labels is None else self.labels[samples]
        is_known = labels != NO_CLASS
        self.changed += len(found)
        self.broken += int((is_known & (labels == found[:, _BASELINE])).sum())
        self.mended += int((is_known & (labels == found[:, _CANDIDATE])).sum())
        rows = np.concatenate([self.kept, np.column_stack([samples, found[:, 1:], labels])])
        self.kept = rows[np.argsort(-rows[:, _MARGIN], kind="stable")[:_MAX_KEPT]]


class Decisions:
    """Collects the samples whose class differs, for each output that is judged by class.

    An output is judged by class if it has a limit on top-k agreement, or if a metric of labels reads classes.

    An output is left out if it has several vectors of class scores for each sample, as in segmentation.
    """

    def __init__(self, judge: Judge) -> None:
        """Starts without samples. ``judge`` has the criteria and the labels of the case."""
        self._judge = judge
        self._outputs: dict[str, _Output | None] = {}
        self._samples = 0

    def add(self, baseline: Feed, candidate: Feed, rows: int) -> None:
        """Adds the outputs of the next batch, which has ``rows`` samples."""
        for name, b in baseline.items():
            if name not in self._outputs:
                self._outputs[name] = self._opened(name, next(iter(baseline)))
            output, c = self._outputs[name], candidate[name]
            if output is None or b.shape != c.shape or not rows:
                continue
            if _is_one_decision(b, output.axis, rows):
                output.add(b, c, self._samples)
            else:
                self._outputs[name] = None
        self._samples += rows

    def added_to(self, output: OutputResult, file_of: Callable[[int], str]) -> OutputResult:
        """Returns a copy of an output's result that also holds the samples whose class differs.

        If the output is not judged by class, the result is returned unchanged.

        Args:
            output: The result.
            file_of: Returns the name of a sample's file by the sample's index; empty if it has none.
        """
        found = self._outputs.get(output.name)
        if found is None:
            return output
        rows = found.kept
        largest = tuple(
            Decision(
                sample=int(row[_SAMPLE]),
                file=file_of(int(row[_SAMPLE])),
                baseline=int(row[_BASELINE]),
                candidate=_class(row[_CANDIDATE]),
                margin=float(row[_MARGIN]) if np.isfinite(row[_MARGIN]) else None,
                label=_class(row[_LABEL]),
            )
            for row in rows
        )
        has_labels = found.labels is not None
        changed = ChangedDecisions(
            count=found.changed,
            samples=self._samples,
            largest=largest,
            broken=found.broken if has_labels else None,
            mended=found.mended if has_labels else None,
        )
        return replace(output, decisions=changed)

    def _opened(self, name: str, first_output: str) -> _Output | None:
        """Returns an empty record for the output ``name``; None if the output is not judged by class.

        ``first_output`` is the output that a metric of labels reads if it names none.
        """
        task = next((t for t in self._tasks() if (t.output or first_output) == name), None)
        axes = [
            limits.options.axis
            for limits in limits_for(name, self._judge.limits)
            if any(METRICS[metric].measure in (TOP1, TOP5) for metric in limits.limits)
        ]
        if task is not None:
            axes.append(1 if task.axis is None else task.axis)
        if not axes:
            return None
        return _Output(axes[0], self._labels(task), np.zeros((0, 5)))

    def _tasks(self) -> list[Task]:
        """The metrics of labels that read classes directly from an output, without a decode function."""
        tasks = [function for _, function in self._judge.metrics if isinstance(function, Task)]
        return [t for t in tasks if TASKS[t.name].of_classes and t.decode is None]

    def _labels(self, task: Task | None) -> Array | None:
        labels = self._judge.labels
        if task is not None:
            labels = task.labels_of(labels)
        elif isinstance(labels, Mapping):
            labels = next(iter(labels.values())) if len(labels) == 1 else None
        if labels is None or labels.ndim != 1 or labels.dtype.kind not in "iu":
            return None
        labels = labels.astype(np.int64)
        if task is not None and task.ignore is not None:
            labels[labels == task.ignore] = NO_CLASS
        return labels


def _is_one_decision(array: Array, axis: int, rows: int) -> bool:
    """Whether an array holds one class id, or one vector of class scores, for each of ``rows`` samples.

    ``axis`` is the axis of the classes.
    """
    if array.dtype.kind in "iu":
        return array.shape == (rows,)
    if array.dtype.kind != "f" or not -array.ndim <= axis < array.ndim or array.shape[0] != rows:
        return False
    return axis % array.ndim > 0 and array.shape[axis] >= 2 and array.size == rows * array.shape[axis]


def _class(value: float) -> int | None:
    return None if value == NO_CLASS else int(value)
