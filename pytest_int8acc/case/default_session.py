"""Compares a default session of ONNX Runtime with an exact one, and finds the optimizer that changes results.

An exact session computes Q/DQ nodes as they stand. A default session optimizes the graph, fuses Q/DQ into
INT8 kernels and quantizes biases. If a model gives other results in a default session, the optimization level
is lowered first. Then the optimizers that changed the graph are switched off one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pytest_int8acc.errors import CriterionError, EngineError
from pytest_int8acc.graph.model import Model
from pytest_int8acc.results import DefaultSession, Difference, Level, Score
from pytest_int8acc.runtime.onnxruntime import CRASH, CRASHING, QUANTIZER_RULES, Sessions, saturation
from pytest_int8acc.scores.judge import Comparison, Judge, Verdict
from pytest_int8acc.tensors import Feed

#: The optimizers that fuse Q/DQ into INT8 kernels, which saturate on a processor without VNNI.
INT8_KERNELS = ("QDQSelectorActionTransformer", "QDQS8ToU8Transformer")
#: Maximum time, in seconds, to find the optimizer that causes a difference. A trial runs one batch in a new
#: session.
_MAX_SECONDS = 60.0
#: Optimization levels with fewer optimizers than a default session has, in ascending order.
_LOWER_LEVELS: tuple[Level, ...] = ("none", "basic", "extended")
#: An optimizer whose name ends like this applies several rules. Each rule has a name and can be switched off.
_RULES = "_RuleBasedTransformer"


@dataclass(frozen=True, eq=False)
class FirstBatch:
    """The first batch of a case's inputs, with the outputs of the baseline and of an exact session."""

    feed: Feed
    samples: int
    baseline: Feed
    exact: Feed
    cut: Callable[[Feed], Feed]
    """Removes from outputs the rows of padding, which only fill the batch."""


@dataclass(frozen=True, eq=False)
class _Found:
    """How the results of a default session differ, and the scores that show the difference."""

    kind: Difference
    exact: Score | None = None
    default: Score | None = None
    problem: str = ""


def compare_default(
    model: Model, batch: FirstBatch, judge: Judge, sessions: Sessions, *, is_target: bool
) -> DefaultSession | None:
    """How a default session differs from the exact session; None if both agree within the criteria.

    Args:
        model: The candidate or a fix.
        batch: The first batch, and the outputs of the baseline and of the exact session.
        judge: Applies the criteria of the case.
        sessions: Opens the model.
        is_target: Whether users deploy the model in a default session.
    """
    if is_target and sessions.crashes(model):
        return DefaultSession(
            "refused", is_target, batch.samples, problem=CRASH, level="all", optimizers=(CRASHING,)
        )
    trial = _Trial(model, batch, judge.of_rows(range(batch.samples)), sessions)
    found = trial()
    if found is None:
        return None
    # If a session refuses a model, this does not depend on the processor's kernels.
    kernels = saturating_kernels() if found.kind != "refused" else ()
    without = trial(disabled=kernels) if kernels else found
    shown = without or found
    result = DefaultSession(
        kind=without.kind if without else "saturates",
        is_target=is_target,
        samples=batch.samples,
        exact=shown.exact,
        default=shown.default,
        problem=shown.problem,
        without_kernels=bool(kernels and without),
    )
    if without is None:
        return result

    def same(*, level: Level = "all", disabled: Collection[str] = ()) -> bool:
        return trial(level=level, disabled=(*kernels, *disabled)) is None

    return _located(result, model, sessions, same, kernels)


def refused_file(model: Model, samples: int, sessions: Sessions) -> DefaultSession | None:
    """How a default session fails to open the user's own file; None if it opens the file.

    The result is also None if no optimizer is found without which the file opens.

    Args:
        model: The user's file, unchanged. The candidate is made of this file, but may have another graph.
        samples: The number of samples in the first batch.
        sessions: Opens the model.
    """

    def loads(*, level: Level = "all", disabled: Collection[str] = ()) -> bool:
        try:
            sessions.default(model, level=level, disabled=disabled)
        except EngineError:
            return False
        return True

    try:
        sessions.default(model)
    except EngineError as error:
        result = DefaultSession(
            "refused", is_target=True, samples=samples, problem=_without_name(error, model)
        )
        found = _located(result, model, sessions, loads)
        return found if found is not None and found.optimizers else None
    return None


def _located(
    result: DefaultSession,
    model: Model,
    sessions: Sessions,
    same: Callable[..., bool],
    kernels: Collection[str] = (),
) -> DefaultSession | None:
    """Returns ``result`` with the optimization level and the optimizers that cause the difference.

    If the sessions differ even without optimizers, the kernels cause the difference. The result is then None,
    unless the default session refuses the model, or misses limits that the exact session meets.

    Args:
        result: How a default session differs.
        model: The model.
        sessions: Opens the model.
        same: Returns whether a session with this optimization level and without these optimizers agrees with
            the exact one.
        kernels: The optimizers that are switched off in each session, because they fuse saturating kernels.
    """
    agrees = _Agreement(same)
    level: Level = next((level for level in _LOWER_LEVELS if not agrees(level=level)), "all")
    if level == "none":  # the kernels differ, for example because a CPU computes FP16 in FP32
        return replace(result, level="none") if result.kind in ("refused", "fails") else None
    changed = [name for where, name in sessions.optimizers(model) if where == level and name not in kernels]
    return replace(result, level=level, optimizers=_culprits(changed, agrees))


def saturating_kernels() -> tuple[str, ...]:
    """The optimizers that fuse kernels which saturate on this processor; empty if its kernels are exact."""
    return INT8_KERNELS if saturation().saturates else ()


def _culprits(changed: Sequence[str], agrees: Callable[..., bool]) -> tuple[str, ...]:
    """The optimizers in ``changed`` without which the sessions agree; empty if unknown or time is up.

    The optimizers are tried from the last one that changed the graph to the first. If the absence of one
    helps, only the last such optimizer is named, because an earlier one may merely have prepared the graph
    for it. Otherwise all are switched off, and then each one that is not needed is switched on again.
    """
    # If the log names no optimizer, one of ``QUANTIZER_RULES`` may have raised an error, which is not logged.
    names = list(dict.fromkeys(reversed(changed))) or list(QUANTIZER_RULES)
    for name in names:
        if agrees(disabled=(name,)):
            rules = QUANTIZER_RULES if name.endswith(_RULES) else ()
            return next(((rule,) for rule in rules if agrees(disabled=(rule,))), (name,))
    if not names or not agrees(disabled=tuple(names)):
        return ()
    needed = list(names)
    for name in names:
        fewer = [other for other in needed if other != name]
        if agrees(disabled=tuple(fewer)):
            needed = fewer
    return tuple(reversed(needed))


class _Agreement:
    """Returns whether a default session agrees with the exact one; always False after the time limit."""

    def __init__(self, same: Callable[..., bool]) -> None:
        self._same = same
        self._end = time.monotonic() + _MAX_SECONDS

    def __call__(self, *, level: Level = "all", disabled: Sequence[str] = ()) -> bool:
        if time.monotonic() > self._end:
            return False
        return self._same(level=level, disabled=disabled)


@dataclass(frozen=True, eq=False)
class _Trial:
    """Runs the first batch in a default session, and compares the outputs with those of the exact session."""

    model: Model
    batch: FirstBatch
    judge: Judge
    """Applies the criteria with the labels of the batch."""
    sessions: Sessions

    def __call__(self, *, level: Level = "all", disabled: Collection[str] = ()) -> _Found | None:
        """How the results differ at this ``level`` and without ``disabled``; None if they agree."""
        try:
            engine = self.sessions.default(self.model, level=level, disabled=disabled)
            outputs = self.batch.cut(engine(self.batch.feed))
        except EngineError as error:
            return _Found("refused", problem=_without_name(error, self.model))
        exact = self.batch.exact
        if all(np.array_equal(exact[name], outputs[name], equal_nan=True) for name in exact):
            return None
        judged = partial(_verdict, self.judge, rows=self.batch.samples)
        between = judged(exact, outputs, metrics=False)
        if between is not None and between.passed:
            return None
        before, after = judged(self.batch.baseline, exact), judged(self.batch.baseline, outputs)
        if before is None or after is None:
            return None
        if before.passed == after.passed:
            between = judged(exact, outputs)
            if between is None or between.passed:
                return None
            return _Found("differs", default=_worst(between), problem=_problem(between))
        shown = _worst(after if before.passed else before)
        kind: Difference = "fails" if before.passed else "passes"
        problem = _problem(after)
        if shown is None or problem:
            return _Found(kind, problem=problem)
        return _Found(kind, _same(before, shown), _same(after, shown))


def _verdict(judge: Judge, before: Feed, after: Feed, *, rows: int, metrics: bool = True) -> Verdict | None:
    """The verdict on one batch; None if a criterion cannot be computed from it.

    Args:
        judge: Applies the criteria.
        before: The outputs that are the reference.
        after: The outputs that are judged.
        rows: The number of samples.
        metrics: Whether metrics of labels and users' metrics are computed. If they are not, and if no
            criterion limits an output, the default limit is applied.
    """
    if not metrics:
        judge = replace(judge, metrics=())
    try:
        comparison = Comparison(judge, judged_only=True)
        comparison.add(before, after, rows)
        return comparison.verdict()
    except CriterionError:
        return None


def _worst(verdict: Verdict) -> Score | None:
    """The score that misses its limit by most; None if all limits are met."""
    missed = [score for score in verdict.scores if not score.passed]
    return max(missed, key=lambda score: score.normalized_loss, default=None)


def _without_name(error: EngineError, model: Model) -> str:
    """The text of an error without the model's file, which the report names elsewhere."""
    return str(error).removeprefix(f"{model.name}: ")


def _problem(verdict: Verdict) -> str:
    return next((output.problem for output in verdict.outputs if output.problem), "")


def _same(verdict: Verdict, score: Score) -> Score | None:
    """The score in ``verdict`` with the output, metric and limit of ``score``; None if there is none."""
    key = score.subject, score.metric, score.limit
    return next(
        (other for other in verdict.scores if (other.subject, other.metric, other.limit) == key), None
    )
