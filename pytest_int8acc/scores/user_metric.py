"""A metric of all outputs and the labels: a user's function or class, or one that a spec names."""

from __future__ import annotations

import copy
import inspect
import math
import numbers
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from pytest_int8acc.data.scripts import UserFunction, looking_at, run_user
from pytest_int8acc.errors import CriterionError
from pytest_int8acc.results import Bound, Interval, Score
from pytest_int8acc.scores.bootstrap import interval_of_labels
from pytest_int8acc.scores.criteria import MetricLimit, kind_of
from pytest_int8acc.scores.tasks import Labels, Task, TaskRun
from pytest_int8acc.tensors import Array, Feed, Outputs

_Function = Callable[..., object]
_Held = TypeVar("_Held")
UserMetric = _Function | Task


def metric_scores(
    limit: MetricLimit,
    reference: float,
    candidate: MetricRun,
    noise: MetricRun | None = None,
    *,
    steady: bool = False,
    paired: MetricRun | None = None,
) -> tuple[Score, ...]:
    """One score per limit of ``limit``, or one without a limit where it has none.

    All limits bind the candidate's value; ``max_drop`` sets that limit below the baseline's value, or above
    it where lower is better. A candidate's value of nan or inf becomes nan, which never passes.

    Args:
        limit: The limits.
        reference: The baseline's value.
        candidate: Fed with INT8's outputs.
        noise: Fed with a second run of the baseline: how far the two values lie apart is the score's noise.
        steady: Whether that is known to be the first one again.
        paired: Fed with the baseline's outputs, to draw samples again, of both forms the same.
    """
    value, notes = candidate.int8_value()
    spread = 0.0 if steady else None
    if noise is not None:
        spread = abs(reference - noise.reference("the baseline's second run"))
    score = Score(limit.ref, limit.ref.rpartition(":")[2], value, noise=spread, baseline=reference)
    scores = []
    for bar, bound, text in _bars(limit, reference):
        one = replace(score, limit=bar, bound=bound, note="; ".join(filter(None, [text, *notes])))
        found = None if paired is None else _interval(one, candidate, paired if text else None)
        scores.append(replace(one, interval=found))
    return tuple(scores)


def _interval(score: Score, candidate: MetricRun, moving: MetricRun | None) -> Interval | None:
    """The interval of the score over resamples.

    Args:
        score: Of all samples.
        candidate: Fed with the candidate's outputs.
        moving: Fed with the baseline's outputs, where the limit is relative to its value; None: it is not.
    """
    own = candidate.drawable
    if own is None:
        return None
    other = None if moving is None else moving.drawable

    def value(samples: Sequence[int]) -> float:
        return own.value(samples) - (0.0 if other is None else other.value(samples) - (score.baseline or 0.0))

    return interval_of_labels(score, own.samples, value)


class MetricRun:
    """A metric fed with the outputs of one form batch by batch.

    One that a spec names, or one of three kinds of a user's, which get ``outputs``, a dict of arrays of their
    own, and ``labels`` where they take them:

    - a function: once, with all samples along the first axis of each array (a list of arrays, one per batch,
      where shapes differ); all outputs are kept for it;
    - a function whose limit says ``streaming``: batch by batch; its value is the mean of what it returns,
      weighted by samples;
    - a class: ``update`` batch by batch, then ``compute`` once; an object of its own for each form.

    Those fed batch by batch may take ``baseline`` and ``candidate`` (in this order, the first by that name)
    in place of ``outputs``; for the baseline's own value they get it twice.
    """

    def __init__(self, limit: MetricLimit, function: UserMetric, labels: Labels) -> None:
        """Nothing is fed yet. Raises CriterionError for wrong arguments of the metric, or missing labels."""
        self.limit, self._labels = limit, labels
        self._kept: list[tuple[int, Feed]] = []
        """The index of the first sample of each batch, and the batch."""
        self._total, self._rows, self._finite = 0.0, 0, True
        self._failure: CriterionError | None = None
        self._task: TaskRun | None = None
        if isinstance(function, Task):
            self._task, self.streams = TaskRun(function, labels), True
            return
        self._function = function
        made = function.function if isinstance(function, UserFunction) else function
        self._object: Any = None
        with looking_at(limit.ref, CriterionError):
            if inspect.isclass(made) and all(callable(getattr(made, n, None)) for n in ("update", "compute")):
                self._object = run_user(limit.ref, function, error=CriterionError)
                made = self._object.update
        self.streams = limit.streaming or self._object is not None
        """Whether it is fed batch by batch, so that no outputs are kept."""
        with looking_at(limit.ref, CriterionError):
            self._pair, self._labelled = _parameters(limit.ref, made, labels is not None, self.streams)

    def add(self, baseline: Feed, outputs: Feed, samples: Sequence[int]) -> None:
        """Feed the outputs of these samples.

        Raises CriterionError where the metric fails on finite outputs; else ``value`` does.
        """
        baseline, outputs = self._seen(baseline), self._seen(outputs)
        if not self.streams:
            self._kept.append((samples[0] if samples else len(self._kept), outputs))
            return
        self._finite = self._finite and _finite({name: [array] for name, array in outputs.items()})
        try:
            if self._task is not None and self._failure is None:
                self._task.add(outputs, samples)
            elif self._failure is None:
                with looking_at(self.limit.ref, CriterionError):
                    self._feed(baseline, outputs, samples)
        except CriterionError as error:
            if self._finite:
                raise
            self._failure = error

    def _seen(self, outputs: Mapping[str, _Held]) -> dict[str, _Held]:
        """The outputs without those that the metric does not get."""
        return {name: array for name, array in outputs.items() if name not in self.limit.blind}

    def _all_kept(self) -> Outputs:
        """All outputs that were kept, batches in the order of their samples."""
        batches = [outputs for _, outputs in sorted(self._kept, key=lambda batch: batch[0])]
        return {name: [outputs[name] for outputs in batches] for name in batches[0]} if batches else {}

    def _feed(self, baseline: Feed, outputs: Feed, samples: Sequence[int]) -> None:
        feeds = (baseline, outputs) if self._pair else (outputs,)
        given = [{name: np.array(array) for name, array in feed.items()} for feed in feeds]
        labels = of_samples(self._labels, samples)
        if self._object is not None:
            self._call(self._object.update, *given, labels=labels)
            return
        value = _number(self.limit.ref, self._call(self._function, *given, labels=labels), "a batch")
        self._total, self._rows = self._total + len(samples) * value, self._rows + len(samples)

    def _call(self, function: _Function, *given: object, labels: Labels) -> object:
        arguments = (*given, copy.deepcopy(labels)) if self._labelled else given  # which may be written into
        with self._function.active() if isinstance(self._function, UserFunction) else nullcontext():
            return run_user(self.limit.ref, function, *arguments, error=CriterionError)

    def value(self, whose: str) -> float:
        """The metric's value, possibly nan or inf; CriterionError where it fails or returns no number."""
        if self._failure is not None:
            raise self._failure
        if self._task is not None:
            return self._task.value()
        with looking_at(self.limit.ref, CriterionError):
            if self._object is not None:
                with self._function.active() if isinstance(self._function, UserFunction) else nullcontext():
                    result = run_user(self.limit.ref, self._object.compute, error=CriterionError)
            elif self.streams:
                result = self._total / self._rows
            else:
                result = self._call(self._function, _joined(self._all_kept()), labels=self._labels)
            return _number(self.limit.ref, result, whose)

    @property
    def labelled(self) -> bool:
        """Whether the metric reads the labels."""
        return self._task is not None or self._labelled

    @property
    def joins(self) -> bool:
        """Whether samples may be fed in other batches than those they ran in."""
        return self._task is not None

    @property
    def drawable(self) -> TaskRun | None:
        """The named metric that gives the value of any resample; None for slow ones and users' own."""
        return (
            self._task if self._task is not None and self._failure is None and self._task.is_quick else None
        )

    def reference(self, whose: str) -> float:
        """The metric's value for a run of the baseline; CriterionError unless it is finite."""
        value = self.value(whose)
        if not math.isfinite(value):
            raise CriterionError(
                f"metric {self.limit.ref} returned {value} on {whose}, expected a finite number; "
                f"the candidate cannot be judged against it"
            )
        return value

    def int8_value(self) -> tuple[float, list[str]]:
        """The candidate's value and notes; nan where it is not finite, or the metric failed on NaN or inf."""
        try:
            value = self.value("the candidate's outputs")
        except CriterionError as error:
            if self._finite and _finite(self._all_kept()):
                raise
            return math.nan, [f"failed on outputs of the candidate with NaN or inf: {error}"]
        if math.isfinite(value):
            return value, []
        return math.nan, [f"returned {value} on the candidate's outputs"]


def of_samples(labels: Labels, samples: Sequence[int]) -> Labels:
    """The labels of some samples, by index."""
    if labels is None:
        return None
    if isinstance(labels, Mapping):
        return {name: array[list(samples)] for name, array in labels.items()}
    return np.asarray(labels)[list(samples)]


def _bars(limit: MetricLimit, reference: float) -> list[tuple[float | None, Bound, str]]:
    """Each limit on the candidate's value, its bound, and for a drop what it is relative to, in words."""
    bars: list[tuple[float | None, Bound, str]] = [(limit.min, "min", ""), (limit.max, "max", "")]
    bound: Bound = "max" if limit.lower_is_better else "min"
    share = limit.max_drop_relative
    rounding = 4 * sys.float_info.epsilon * abs(reference)  # 0.7 keeps a drop of 0.1 from 0.8
    for drop, written in (
        (limit.max_drop, f"{limit.max_drop or 0:g}"),
        (None if share is None else share * abs(reference), f"{100 * (share or 0):g}%"),
    ):
        if drop is not None:
            bar = reference + drop + rounding if limit.lower_is_better else reference - drop - rounding
            bars.append((bar, bound, f"max_drop {written} from the baseline's {reference:.6g}"))
    return [bar for bar in bars if bar[0] is not None] or [(None, bound, "")]


def _joined(outputs: Outputs) -> dict[str, Array | list[Array]]:
    """Each output as one new array of all samples; a list of new arrays where shapes or types differ."""
    joined: dict[str, Array | list[Array]] = {}
    for name, arrays in outputs.items():
        batches = [np.atleast_1d(array) for array in arrays]
        if len({(batch.dtype.kind, batch.shape[1:]) for batch in batches}) == 1:
            joined[name] = np.concatenate(batches)
        else:
            joined[name] = [array.copy() for array in arrays]
    return joined


def _finite(outputs: Outputs) -> bool:
    floats = (array for arrays in outputs.values() for array in arrays if kind_of(array) == "floats")
    return all(np.isfinite(array).all() for array in floats)


def _parameters(ref: str, function: _Function, given: bool, streams: bool) -> tuple[bool, bool]:
    """Whether to pass baseline and candidate in place of outputs, and whether to pass labels.

    Labels go where the parameter after those has no default, or is called ``labels``.
    """
    expected = "expected `def f(outputs)` or `def f(outputs, labels)`"
    try:
        signature = inspect.signature(function.function if isinstance(function, UserFunction) else function)
    except (TypeError, ValueError) as error:
        raise CriterionError(f"metric {ref}: {error}; wrap it in a function; {expected}") from error
    parameters = signature.parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    pair = streams and bool(positional) and positional[0].name == "baseline"
    own = 2 if pair else 1
    if len(positional) < own or len(required) > own + 1 or keywords:
        raise CriterionError(f"metric {ref} takes {signature}; {expected}")
    if len(required) == own + 1 and not given:
        place = "third" if pair else "second"
        raise CriterionError(
            f"metric {ref} takes '{required[own].name}' as its {place} argument, but the case has no labels; "
            f"give `labels:` in the spec"
        )
    labelled = len(required) == own + 1 or any(p.name == "labels" for p in positional[own : own + 1])
    return pair, given and labelled


def _number(ref: str, value: object, whose: str) -> float:
    """``value`` as a float; CriterionError unless it is a real number."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        shown = (
            f"an array of shape {value.shape}"
            if isinstance(value, np.ndarray)
            else run_user(ref, repr, value, error=CriterionError)[:80]
        )
        raise CriterionError(
            f"metric {ref} returned {shown} ({type(value).__name__}) on {whose}, expected one number; "
            f"return float(...)"
        )
    try:
        return float(value)
    except OverflowError:
        raise CriterionError(
            f"metric {ref} returned a number beyond 1e308 on {whose}; return float(...) of a smaller one"
        ) from None
