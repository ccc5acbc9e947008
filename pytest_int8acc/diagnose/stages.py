"""A failing case on the line from the framework to the INT8 engine: the first step that leaves its limit.

    framework → FP32 ONNX → FP16 ─┬→ Q/DQ in ONNX Runtime ─→ engine INT8
                                  └→ engine FP16 ─→ engine INT8 by implicit quantization

Each stage is compared with the one that it should equal, by the case's own criteria. An engine's INT8 is
compared with the same Q/DQ model run exactly, so what is left there is TensorRT's own doing. Under implicit
quantization there is no such model: the builder chooses what runs in INT8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pytest_int8acc.case.judge import Judge
from pytest_int8acc.measure.runs import Runs
from pytest_int8acc.results import StageLine
from pytest_int8acc.results.causes import Stage
from pytest_int8acc.scores.criteria import limits_for
from pytest_int8acc.tensors import Outputs

FRAMEWORK: Stage = "framework"
FP32: Stage = "FP32 ONNX"
FP16: Stage = "FP16"
QDQ: Stage = "Q/DQ in ONNX Runtime"
ENGINE_INT8: Stage = "engine INT8"
ENGINE_FP16: Stage = "engine FP16"
ENGINE_FP32: Stage = "engine FP32"
IMPLICIT: Stage = "implicit INT8"

#: The line, in order: each stage with what it should equal, the first of these that is there.
STAGES: Mapping[Stage, tuple[Stage, ...]] = {
    FRAMEWORK: (),
    FP32: (FRAMEWORK,),
    FP16: (FP32, FRAMEWORK),
    QDQ: (FP16, FP32, FRAMEWORK),
    ENGINE_FP16: (FP16, FP32, FRAMEWORK),
    ENGINE_FP32: (FP32, FRAMEWORK),
    ENGINE_INT8: (QDQ, ENGINE_FP16, ENGINE_FP32, FP16, FP32),
    IMPLICIT: (ENGINE_FP16, ENGINE_FP32, FP16, FP32),
}


def place(outputs: Mapping[Stage, Outputs], judge: Judge) -> tuple[tuple[StageLine, ...], Stage | None]:
    """Compare each stage with the one before it, by the case's criteria.

    Args:
        outputs: By stage; all for the same samples and in the same batches. Stages that are missing are left
            out.
        judge: The case's criteria.

    Returns:
        A line for each stage that has one before it, and the first that fails; None where none does. Where no
        step fails alone but all together do, that is the last stage, and its line names what it leaves.

    Raises:
        CriterionError: A criterion does not fit the outputs.
    """
    lines: list[StageLine] = []
    for name, preceding in STAGES.items():
        before = [stage for stage in preceding if stage in outputs]
        if name in outputs and before:
            lines.append(_line(name, before, outputs, judge))
    first = next((line.name for line in lines if not line.passed), None)
    return (tuple(lines), first) if first or not lines else _together(lines, outputs, judge)


def stage_outputs(
    runs: Runs,
    fp32: Outputs,
    simulated: Outputs | None = None,
    *,
    engines: bool,
    half: bool,
    implicit: bool = False,
    framework: Outputs | None = None,
) -> dict[Stage, Outputs]:
    """The stages that a case's runs hold, for ``place``.

    Args:
        runs: The case's.
        fp32: FP32 on the same inputs; the baseline's own outputs where it is not known.
        simulated: The model that an INT8 engine is built from, run exactly; None where there is none.
        engines: Baseline and candidate are built, not run as models.
        half: The baseline computes in FP16, not in FP32.
        implicit: TensorRT quantizes by itself.
        framework: The training framework's outputs, where they are known.
    """
    found: dict[Stage, Outputs] = {FRAMEWORK: framework} if framework else {}
    if fp32 is not runs.baseline or not (engines or half):
        found[FP32] = fp32
    if engines:
        found |= {ENGINE_FP16 if half else ENGINE_FP32: runs.baseline}
        found |= {IMPLICIT if implicit else ENGINE_INT8: runs.candidate}
        return found if simulated is None else found | {QDQ: simulated}
    return found | ({FP16: runs.baseline} if half else {}) | {QDQ: runs.candidate}


def _line(name: Stage, before: Sequence[Stage], outputs: Mapping[Stage, Outputs], judge: Judge) -> StageLine:
    """One stage compared with the first of ``before`` that is finite."""
    against = next((stage for stage in before if _finite(outputs[stage])), before[0])
    common = {key: value for key, value in outputs[against].items() if key in outputs[name]}
    if len(common) < len(outputs[name]):  # the framework gave some of the outputs only
        limits = tuple(limit for limit in judge.limits if any(limits_for(key, [limit]) for key in common))
        judge = replace(judge, limits=limits, metrics=())
    verdict = judge(common, outputs[name])
    judged, metrics = verdict
    scores = (*(s for o in judged for s in o.scores if s.limit is not None), *metrics)
    if verdict.passed:
        return StageLine(name, True, scores, against)
    problems = {o.name: o.problem for o in judged if o.problem}
    fits = {o.name: o.fit for o in judged if o.fit is not None and o.fit.meanings}
    return StageLine(name, False, scores, against, problems, fits)


def _together(
    lines: Sequence[StageLine], outputs: Mapping[Stage, Outputs], judge: Judge
) -> tuple[tuple[StageLine, ...], Stage | None]:
    """Where no step fails alone: the last INT8 stage against what the case compares it with."""
    last = next((s for s in (IMPLICIT, ENGINE_INT8, QDQ) if s in outputs), None)
    order = (FP16, FP32) if last == QDQ else (ENGINE_FP16, ENGINE_FP32, FP16, FP32)
    against = next((s for s in order if s in outputs), None)
    if last is None or against is None or _line(last, [against], outputs, judge).passed:
        return tuple(lines), None
    return tuple(replace(line, together=against) if line.name == last else line for line in lines), last


def _finite(outputs: Outputs) -> bool:
    return all(
        bool(np.isfinite(a).all()) for arrays in outputs.values() for a in arrays if a.dtype.kind == "f"
    )
