"""Computes metrics of a model's outputs: a user's function or class, or a built-in metric of labels."""

from __future__ import annotations

import copy
import inspect
import math
import numbers
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from pytest_int8acc.data.scripts import UserFunction, looking_at, run_user
from pytest_int8acc.errors import CriterionError
from pytest_int8acc.results import Bound, Interval, Score
from pytest_int8acc.scores.criteria import MetricLimit, kind_of
from pytest_int8acc.scores.statistics import Groups, in_samples, of_drop, of_labels, of_wrong
from pytest_int8acc.scores.tasks import Labels, Task, TaskRun
from pytest_int8acc.tensors import Array, Feed

_Function = Callable[..., object]
UserMetric = _Function | Task


def metric_scores(
    candidate: MetricRun,
    baseline: MetricRun,
    again: MetricRun | None = None,
    *,
    steady: bool = False,
    intervals: bool = False,
    groups: Groups | None = None,
) -> tuple[Score, ...]:
    """Returns one score for each limit of a metric, or one score without a limit if the metric has none.

    All limits are on the candidate's value. A ``max_drop`` is turned into such a limit: the baseline's value
    minus the drop, or plus the drop if lower is better. If the candidate's value is inf, it becomes nan,
    which meets no limit.

    Args:
        candidate: The metric of the candidate's outputs.
        baseline: The metric of the baseline's outputs.
        again: The metric of the outputs of a second run of the baseline. The noise is the difference of the
            values of both runs. With None, the noise is not known.
        steady: Whether a second run of the baseline is known to give the same outputs. The noise is then 0.
        intervals: Whether intervals are computed. This is done only for a metric that is computed fast.
        groups: The group of each sample, [samples]; None if no samples belong together.
    """
    limit, reference = candidate.limit, baseline.reference("the baseline's outputs")
    value, notes = candidate.int8_value()
    noise = 0.0 if steady else None
    if again is not None:
        noise = abs(reference - again.reference("the baseline's second run"))
    score = Score(limit.ref, limit.ref.rpartition(":")[2], value, noise=noise, baseline=reference)
    scores = []
    for bar, bound, text in _bars(limit, reference):
        one = replace(score, limit=bar, bound=bound, note="; ".join(filter(None, [text, *notes])))
        if intervals:
            relative = baseline if text else None
            one = replace(one, interval=_interval(one, candidate, relative, groups))
        scores.append(one)
    return tuple(scores)


def _interval(
    score: Score, candidate: MetricRun, baseline: MetricRun | None, groups: Groups | None
) -> Interval | None:
    """Returns the confidence interval of a score of a metric; None if it cannot be computed.

    Args:
        score: The score of all samples.
        candidate: The metric of the candidate's outputs.
        baseline: The metric of the baseline's outputs if the limit is relative to the baseline's value;
            otherwise None.
        groups: The group of each sample, [samples]; None if no samples belong together.
    """
    own, confidence = candidate.drawable, candidate.limit.confidence
    if own is None:
        return None
    other = None if baseline is None else baseline.drawable
    if score.bound == "min" and own.right is not None:
        right = own.right[~np.isnan(own.right)]
        lost, gained = (int((right == 0).sum()), 0) if other is None else flips(own, other)
        units = len(right) if groups is None else len(np.unique(groups))
        # If both models are right on the same samples, the exact interval is also valid for groups. Each
        # group is then one sample.
        if groups is None or not lost + gained:
            found = of_drop(score, lost, gained, units, confidence)
            if other is None:
                found = of_wrong(score, lost, units, confidence)
            return in_samples(found, own.samples / units) if units else None

    def value(samples: Sequence[int]) -> float:
        drop = 0.0 if other is None else other.value(samples) - (score.baseline or 0.0)
        return own.value(samples) - drop

    return of_labels(score, own.samples, value, confidence, groups)


def flips(candidate: TaskRun, baseline: TaskRun) -> tuple[int, int]:
    """Returns how many samples only the baseline gets right, and how many only the candidate gets right."""
    after, before = candidate.right, baseline.right
    if after is None or before is None:
        return 0, 0
    return int((before > after).sum()), int((before < after).sum())


class MetricRun:
    """Computes one metric for the outputs of one model, baseline or candidate, which come batch by batch."""

    def __init__(self, limit: MetricLimit, function: UserMetric, labels: Labels) -> None:
        """Starts without outputs.

        Raises:
            CriterionError: Labels are missing, or a user's function does not have the expected parameters.
        """
        self.limit = limit
        self._finite = True
        """Whether all outputs so far are finite."""
        self._failure: CriterionError | None = None
        """The error that the metric raised after an output had held NaN or infinity; None without one."""
        self._reference: float | None = None
        self._metric: TaskRun | _UserRun
        if isinstance(function, Task):
            self._metric = TaskRun(function, labels)
        else:
            with looking_at(limit.ref, CriterionError):
                self._metric = _UserRun(limit, function, labels)

    def add(self, baseline: Feed, outputs: Feed, samples: Sequence[int]) -> None:
        """Adds the outputs of some samples.

        Args:
            baseline: The baseline's outputs.
            outputs: The outputs that the metric is computed for: the baseline's or the candidate's.
            samples: The indices of the samples.

        Raises:
            CriterionError: The metric fails on finite outputs. If an output is not finite, the error is kept,
                and ``value`` raises it.
        """
        baseline, outputs = self._visible(baseline), self._visible(outputs)
        floats = [array for array in outputs.values() if kind_of(array) == "floats"]
        self._finite = self._finite and all(np.isfinite(array).all() for array in floats)
        if self._failure is not None:
            return
        try:
            with looking_at(self.limit.ref, CriterionError):
                self._metric.add(baseline, outputs, samples)
        except CriterionError as error:
            if self._finite:
                raise
            self._failure = error

    def _visible(self, outputs: Feed) -> Feed:
        return {name: array for name, array in outputs.items() if name not in self.limit.blind}

    def value(self, whose: str) -> float:
        """Returns the metric's value, which may be nan or inf.

        Args:
            whose: A description of the outputs, for messages, such as "the candidate's outputs".

        Raises:
            CriterionError: The metric fails, or returns no number.
        """
        if self._failure is not None:
            raise self._failure
        if isinstance(self._metric, TaskRun):
            return self._metric.value()
        with looking_at(self.limit.ref, CriterionError):
            return _number(self.limit.ref, self._metric.value(), whose)

    @property
    def labelled(self) -> bool:
        """Whether the metric reads the labels. A user's metric may read the outputs alone."""
        return self._metric.labelled

    @property
    def joins(self) -> bool:
        """Whether ``add`` may get the samples in other batches than those in which the models ran."""
        return self._metric.joins

    @property
    def drawable(self) -> TaskRun | None:
        """The metric, if it can be computed for subsets of the samples, as a confidence interval needs.

        None for a user's own metric, for a metric that is too slow, and after an error.
        """
        return self._metric.drawable if self._failure is None else None

    def reference(self, whose: str) -> float:
        """Returns the metric's value for a run of the baseline, in which all outputs have been added.

        ``whose`` describes the outputs in messages. The value is computed only once.

        Raises:
            CriterionError: The metric fails, or its value is not finite.
        """
        if self._reference is None:
            self._reference = self.value(whose)
        if not math.isfinite(self._reference):
            raise CriterionError(
                f"metric {self.limit.ref} returned {self._reference} on {whose}, expected a finite number; "
                f"the candidate cannot be judged against it"
            )
        return self._reference

    def int8_value(self) -> tuple[float, list[str]]:
        """Returns the metric's value for the candidate, and notes for the report.

        The value is nan if it is not finite, or if the metric failed on outputs with NaN or infinity.
        """
        try:
            value = self.value("the candidate's outputs")
        except CriterionError as error:
            if self._finite:
                raise
            return math.nan, [f"failed on outputs of the candidate with NaN or inf: {error}"]
        if math.isfinite(value):
            return value, []
        return math.nan, [f"returned {value} on the candidate's outputs"]


class _UserRun:
    """Calls a user's metric for the outputs of one model, baseline or candidate.

    The metric gets copies of the outputs. It also gets the labels if it has a parameter for them. There are
    three kinds of metrics:

    - A function is called once, with all samples along the first axis of each array. If shapes differ between
      batches, an output is a list of arrays, one per batch. All outputs are kept for this call.
    - A function whose limit says ``streaming`` is called batch by batch. The metric's value is the mean of
      the returned values, weighted by the number of samples in each batch.
    - A class gets one object for the baseline and one for the candidate. The method ``update`` is called
      batch by batch, then ``compute`` once.

    The last two kinds may take ``baseline`` and ``candidate`` as their first two parameters, in place of the
    outputs. The first one must have the name ``baseline``. For the metric's value on the baseline, both
    arguments are the baseline's outputs.
    """

    joins = False
    drawable = None

    def __init__(self, limit: MetricLimit, function: _Function, labels: Labels) -> None:
        self._ref, self._labels, self._function = limit.ref, labels, function
        self._active: Callable[[], AbstractContextManager[None]] = nullcontext
        made: Any = function
        if isinstance(function, UserFunction):
            made, self._active = function.function, function.active
            # ``_call`` restores the state of the process that the user's script has set up, such as the
            # working folder. A call of ``function`` also does this, and undoes it at its end. Each call thus
            # begins in the same folder.
        self._kept: list[tuple[int, Feed]] = []
        """For a function that is called once, at the end: the outputs of all batches, each with the index of
        the batch's first sample."""
        self._total, self._rows = 0.0, 0
        self._object: Any = None
        if inspect.isclass(made) and all(callable(getattr(made, n, None)) for n in ("update", "compute")):
            self._object = self._call(made)
            self._function = made = self._object.update
        self._streams = limit.streaming or self._object is not None
        """Whether the metric is called batch by batch, so that no outputs are kept."""
        self._pair, self.labelled = _parameters(limit.ref, made, labels is not None, self._streams)

    def _call(self, function: _Function, *given: object) -> object:
        def called() -> object:
            with self._active():
                return function(*given)

        return run_user(self._ref, called, error=CriterionError)

    def _labels_of(self, samples: Sequence[int] | None) -> list[object]:
        """Returns the argument for the labels as a list: a copy of the labels, or nothing if it gets none.

        Args:
            samples: The indices of the samples; None: all samples.
        """
        if not self.labelled:
            return []
        return [copy.deepcopy(self._labels if samples is None else of_samples(self._labels, samples))]

    def add(self, baseline: Feed, outputs: Feed, samples: Sequence[int]) -> None:
        if not self._streams:
            self._kept.append((samples[0] if samples else len(self._kept), outputs))
            return
        feeds = (baseline, outputs) if self._pair else (outputs,)
        given = [{name: np.array(array) for name, array in feed.items()} for feed in feeds]
        result = self._call(self._function, *given, *self._labels_of(samples))
        if self._object is None:
            self._total += len(samples) * _number(self._ref, result, "a batch")
            self._rows += len(samples)

    def value(self) -> object:
        if self._object is not None:
            return self._call(self._object.compute)
        if self._streams:
            return self._total / self._rows
        batches = [outputs for _, outputs in sorted(self._kept, key=lambda batch: batch[0])]
        joined = {name: _joined([outputs[name] for outputs in batches]) for name in batches[0]}
        return self._call(self._function, joined, *self._labels_of(None))


def of_samples(labels: Labels, samples: Sequence[int]) -> Labels:
    """Returns the labels of some samples; ``samples`` are the indices of these samples."""
    if labels is None:
        return None
    if isinstance(labels, Mapping):
        return {name: array[list(samples)] for name, array in labels.items()}
    return np.asarray(labels)[list(samples)]


def _bars(limit: MetricLimit, reference: float) -> list[tuple[float | None, Bound, str]]:
    """Returns the limits on the candidate's value: for each its number, its bound, and a text.

    The text says how a ``max_drop`` from ``reference``, the baseline's value, was turned into the limit. It
    is empty for other limits. If the metric has no limit, the result is one entry whose limit is None.
    """
    bars: list[tuple[float | None, Bound, str]] = [(limit.min, "min", ""), (limit.max, "max", "")]
    bound: Bound = "max" if limit.lower_is_better else "min"
    share = limit.max_drop_relative
    # This allows for rounding errors: if 0.8 may drop by 0.1, 0.7 must pass.
    rounding = 4 * sys.float_info.epsilon * abs(reference)
    for drop, written in (
        (limit.max_drop, f"{limit.max_drop or 0:g}"),
        (None if share is None else share * abs(reference), f"{100 * (share or 0):g}%"),
    ):
        if drop is not None:
            bar = reference + drop + rounding if limit.lower_is_better else reference - drop - rounding
            bars.append((bar, bound, f"max_drop {written} from the baseline's {reference:.6g}"))
    return [bar for bar in bars if bar[0] is not None] or [(None, bound, "")]


def _joined(arrays: Sequence[Array]) -> Array | list[Array]:
    """Returns the arrays of all batches joined along axis 0; copies in a list if shapes or kinds differ."""
    batches = [np.atleast_1d(array) for array in arrays]
    if len({(batch.dtype.kind, batch.shape[1:]) for batch in batches}) == 1:
        return np.concatenate(batches)
    return [array.copy() for array in arrays]


def _parameters(ref: str, function: _Function, has_labels: bool, streams: bool) -> tuple[bool, bool]:
    """Returns whether to pass baseline and candidate in place of the outputs, and whether to pass labels.

    Labels are passed after the outputs, if there is a parameter for them: it has no default value, or its
    name is ``labels``.

    Args:
        ref: The name of the metric, for messages.
        function: The user's function, or the method ``update`` of the user's class.
        has_labels: Whether the case has labels.
        streams: Whether the metric is called batch by batch.

    Raises:
        CriterionError: The function has other parameters than expected, or needs labels that are missing.
    """
    expected = "expected `def f(outputs)` or `def f(outputs, labels)`"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise CriterionError(f"metric {ref}: {error}; wrap it in a function; {expected}") from error
    parameters = signature.parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p.name for p in positional if p.default is p.empty]
    keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    pair = streams and bool(positional) and positional[0].name == "baseline"
    own = 2 if pair else 1
    if len(positional) < own or len(required) > own + 1 or keywords:
        raise CriterionError(f"metric {ref} takes {signature}; {expected}")
    needs_labels = len(required) == own + 1
    if needs_labels and not has_labels:
        raise CriterionError(
            f"metric {ref} takes '{required[own]}' as its {'third' if pair else 'second'} argument, but the "
            f"case has no labels; give `labels:` in the spec"
        )
    takes_labels = needs_labels or [p.name for p in positional[own : own + 1]] == ["labels"]
    return pair, has_labels and takes_labels


def _number(ref: str, value: object, whose: str) -> float:
    """Returns ``value``, which the metric ``ref`` returned for the outputs ``whose``, as a float.

    Raises:
        CriterionError: The value is no real number.
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_):
        try:
            return float(value)
        except OverflowError:
            raise CriterionError(
                f"metric {ref} returned a number beyond 1e308 on {whose}; return float(...) of a smaller one"
            ) from None
    if isinstance(value, np.ndarray):
        shown = f"an array of shape {value.shape}"
    else:
        shown = run_user(ref, repr, value, error=CriterionError)[:80]
    raise CriterionError(
        f"metric {ref} returned {shown} ({type(value).__name__}) on {whose}, expected one number; "
        f"return float(...)"
    )
