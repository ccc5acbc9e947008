"""Finds the first form of the model, on the way from the framework to the INT8 engine, that misses a limit.

    framework → FP32 ONNX → FP16 ─┬→ Q/DQ in ONNX Runtime ─→ engine INT8
                                  └→ engine FP16 ─→ engine INT8 by implicit quantization

Each form is called a stage. A stage is compared, by the case's own criteria, with a stage that should give
equal outputs. An INT8 engine is compared with the same Q/DQ model in ONNX Runtime, so that only TensorRT can
cause a difference. The difference is a fault only if the Q/DQ model meets the limits and the engine does not.
Under implicit quantization there is no Q/DQ model, because TensorRT chooses the layers that run in INT8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from pytest_int8acc.lab.lab import ENGINE_ROUNDING
from pytest_int8acc.results import Evidence, Role, StageLine
from pytest_int8acc.results.causes import Stage
from pytest_int8acc.scores.judge import Verdict

FRAMEWORK: Stage = "framework"
FP32: Stage = "FP32 ONNX"
FP16: Stage = "FP16"
QDQ: Stage = "Q/DQ in ONNX Runtime"
ENGINE_INT8: Stage = "engine INT8"
ENGINE_FP16: Stage = "engine FP16"
ENGINE_FP32: Stage = "engine FP32"
IMPLICIT: Stage = "implicit INT8"

#: For each stage, the earlier stages with which it may be compared. The first of them that was run is used.
#: Stages without quantization stand before INT8 stages, which are compared with them: an error of a baseline
#: must be found first.
STAGES: Mapping[Stage, tuple[Stage, ...]] = {
    FRAMEWORK: (),
    FP32: (FRAMEWORK,),
    FP16: (FP32, FRAMEWORK),
    ENGINE_FP16: (FP16, FP32, FRAMEWORK),
    ENGINE_FP32: (FP32, FRAMEWORK),
    QDQ: (FP16, FP32, FRAMEWORK),
    ENGINE_INT8: (QDQ, ENGINE_FP16, ENGINE_FP32, FP16, FP32),
    IMPLICIT: (ENGINE_FP16, ENGINE_FP32, FP16, FP32),
}


def place(
    stages: Collection[Stage],
    compare: Callable[[Stage, Stage], Verdict],
    evidence: Callable[[Stage], Evidence],
    broken: Collection[Stage] = (),
) -> tuple[tuple[StageLine, ...], Stage | None]:
    """Compare each stage, a form of the model, with an earlier stage, by the case's criteria.

    Args:
        stages: The stages that were run.
        compare: Returns the verdict on the second stage against the first.
        evidence: Returns the evidence for a stage: which model ran and where, without scores.
        broken: Stages whose outputs are not finite.

    Returns:
        A line for each stage that was compared, and the first stage that fails, or None. If each stage passes
        in its own comparison, but all differences together miss a limit, the last stage counts as failing.
        Its line then names the stage from which it differs too much.

    Raises:
        CriterionError: A criterion does not fit the outputs.
    """
    lines: list[StageLine] = []
    for name, preceding in STAGES.items():
        before = [stage for stage in preceding if stage in stages]
        if name in stages and before:
            against = next((stage for stage in before if stage not in broken), before[0])
            line = _line(name, against, compare(against, name), evidence(name))
            if (name, against) == (ENGINE_INT8, QDQ) and not line.passed:
                line = replace(line, passed=not _matters(set(stages) - set(broken), compare))
            lines.append(line)
    first = next((line.name for line in lines if not line.passed), None)
    return (tuple(lines), first) if first or not lines else _together(lines, stages, compare)


def is_own_doing(engine: Verdict, model: Verdict) -> bool:
    """Whether an engine misses limits that its ONNX model meets, by more than rounding can explain."""
    own, given = normalized_loss(engine), normalized_loss(model)
    return not engine.passed and given <= ENGINE_ROUNDING and own > ENGINE_ROUNDING * given


def normalized_loss(verdict: Verdict) -> float:
    """The normalized loss of the worst score; inf if an output cannot be compared."""
    if any(output.problem for output in verdict.outputs):
        return math.inf
    return max((score.normalized_loss for score in verdict.scores), default=0.0)


def _matters(stages: Collection[Stage], compare: Callable[[Stage, Stage], Verdict]) -> bool:
    """Whether the difference between the INT8 engine and its ONNX model makes the case miss its limits."""
    against = next((s for s in (ENGINE_FP16, ENGINE_FP32, FP16, FP32) if s in stages), None)
    return against is None or is_own_doing(compare(against, ENGINE_INT8), compare(against, QDQ))


def stages_of(
    roles: Collection[Role], *, engines: bool, half: bool, implicit: bool = False, narrow: bool = False
) -> dict[Stage, Role]:
    """Maps each stage (form of the model) that a case has run to the role of its model, for ``place``.

    Args:
        roles: The roles of the models and engines that were run.
        engines: Whether baseline and candidate are engines, not models.
        half: Whether the baseline computes in FP16, not in FP32.
        implicit: Whether TensorRT quantizes by itself.
        narrow: Whether the candidate is in FP16 or BF16. The last stage then is FP32.
    """
    found: dict[Stage, Role] = {FRAMEWORK: Role.FRAMEWORK} if Role.FRAMEWORK in roles else {}
    if Role.FP32 in roles:
        found[FP32] = Role.FP32
    elif not (engines or half):
        found[FP32] = Role.BASELINE
    if narrow:
        return found
    if engines:
        found[ENGINE_FP16 if half else ENGINE_FP32] = Role.BASELINE
        found[IMPLICIT if implicit else ENGINE_INT8] = Role.INT8
        return found | ({QDQ: Role.SIMULATED} if Role.SIMULATED in roles else {})
    return found | ({FP16: Role.BASELINE} if half else {}) | {QDQ: Role.INT8}


def _line(name: Stage, against: Stage, verdict: Verdict, evidence: Evidence) -> StageLine:
    """The line on the comparison of stage ``name`` with stage ``against``, whose result is ``verdict``."""
    judged, metrics = verdict
    scores = (*(s for o in judged for s in o.scores if s.limit is not None), *metrics)
    evidence = replace(evidence, scores=scores)
    if verdict.passed:
        return StageLine(name, True, evidence, against)
    problems = {o.name: o.problem for o in judged if o.problem}
    fits = {o.name: o.fit for o in judged if o.fit is not None and o.fit.meanings}
    return StageLine(name, False, evidence, against, problems, fits)


def _together(
    lines: Sequence[StageLine], stages: Collection[Stage], compare: Callable[[Stage, Stage], Verdict]
) -> tuple[tuple[StageLine, ...], Stage | None]:
    """Return ``lines``, and the last INT8 stage if the errors of all stages add up to a failure, else None.

    This function is called only if each stage passed in its own comparison.

    The last INT8 stage fails if it misses a limit against the baseline, because the errors of all stages add
    up. Its line then names the baseline's stage.
    """
    last = next((s for s in (IMPLICIT, ENGINE_INT8, QDQ) if s in stages), None)
    order = (FP16, FP32) if last == QDQ else (ENGINE_FP16, ENGINE_FP32, FP16, FP32)
    against = next((s for s in order if s in stages), None)
    if last is None or against is None or compare(against, last).passed:
        return tuple(lines), None
    return tuple(replace(line, together=against) if line.name == last else line for line in lines), last
