"""A failing case on the line from the framework to the INT8 engine: the first step that leaves its limit.

    framework → FP32 ONNX → FP16 ─┬→ Q/DQ in ONNX Runtime ─→ engine INT8
                                  └→ engine FP16 ─→ engine INT8 by implicit quantization

Each stage is compared with the one that it should equal, by the case's own criteria. An engine's INT8 is
compared with the same Q/DQ model run exactly, so what is left there is TensorRT's own doing. Under implicit
quantization there is no such model: the builder chooses what runs in INT8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_int8acc.case.judge import Judge
from pytest_int8acc.errors import CriterionError
from pytest_int8acc.measure.runs import Runs
from pytest_int8acc.results import LineFit, OutputResult, StageLine
from pytest_int8acc.scores.criteria import limits_for
from pytest_int8acc.scores.fit import FAR, MIN_CORRELATION
from pytest_int8acc.tensors import Outputs, did_you_mean

FRAMEWORK, FP32, FP16 = "framework", "FP32 ONNX", "FP16"
QDQ, ENGINE_INT8 = "Q/DQ in ONNX Runtime", "engine INT8"
ENGINE_FP16, ENGINE_FP32 = "engine FP16", "engine FP32"
IMPLICIT = "implicit INT8"


@dataclass(frozen=True)
class _Stage:
    before: tuple[str, ...]
    """What it should equal: the first of these that is there."""
    meaning: str
    """What it means where this is the first that fails."""


#: The line, in order.
STAGES: Mapping[str, _Stage] = {
    FRAMEWORK: _Stage((), ""),
    FP32: _Stage(
        (FRAMEWORK,), "the export to ONNX changed the model, or inputs are prepared otherwise there"
    ),
    FP16: _Stage((FP32, FRAMEWORK), "FP16 is off already: INT8 is not the problem"),
    QDQ: _Stage((FP16, FP32, FRAMEWORK), "quantization loses it: scales, or layers that INT8 does not suit"),
    ENGINE_FP16: _Stage(
        (FP16, FP32, FRAMEWORK), "the FP16 engine differs from its model: TensorRT's own doing"
    ),
    ENGINE_FP32: _Stage((FP32, FRAMEWORK), "the FP32 engine differs from its model: TensorRT's own doing"),
    ENGINE_INT8: _Stage(
        (QDQ, ENGINE_FP16, ENGINE_FP32, FP16, FP32),
        "the Q/DQ model is fine, the engine made of it is not: TensorRT's own doing",
    ),
    IMPLICIT: _Stage(
        (ENGINE_FP16, ENGINE_FP32, FP16, FP32),
        "quantization loses it: ranges of TensorRT's calibration, or layers that INT8 does not suit",
    ),
}


def place(
    outputs: Mapping[str, Outputs], judge: Judge, overflows: Sequence[str] = ()
) -> tuple[tuple[StageLine, ...], str]:
    """Compare each stage with the one before it, by the case's criteria.

    Args:
        outputs: By stage, names of ``STAGES``; all for the same samples and in the same batches.
            Stages that are missing are left out.
        judge: The case's criteria.
        overflows: Sentences naming tensors that overflow in FP16.

    Returns:
        A line for each stage that has one before it, and the name of the first that fails; empty where none
        does. Where no step fails alone but all together do, that is the last stage, and its text says so.

    Raises:
        CriterionError: A stage's name is unknown, or a criterion does not fit the outputs.
    """
    for name in outputs:
        if name not in STAGES:
            raise CriterionError(f"unknown stage '{name}'{did_you_mean(name, STAGES)}: {', '.join(STAGES)}")
    lines: list[StageLine] = []
    for name, stage in STAGES.items():
        before = [b for b in stage.before if b in outputs]
        if name in outputs and before:
            lines.append(_line(name, before, outputs, judge, overflows))
    first = next((line.name for line in lines if not line.passed), "")
    return (tuple(lines), first) if first or not lines else _together(lines, outputs, judge)


def stage_outputs(
    runs: Runs, *, engines: bool, half: bool, implicit: bool = False, framework: Outputs | None = None
) -> dict[str, Outputs]:
    """The stages that a case's runs hold, for ``place``.

    Args:
        runs: The case's.
        engines: Baseline and candidate are built, not run as models.
        half: The baseline computes in FP16, not in FP32.
        implicit: TensorRT quantizes by itself.
        framework: The training framework's outputs, where they are known.
    """
    found: dict[str, Outputs] = {FRAMEWORK: framework} if framework else {}
    if runs.reference is not runs.baseline or not (engines or half):
        found[FP32] = runs.reference
    if engines:
        found |= {ENGINE_FP16 if half else ENGINE_FP32: runs.baseline}
        found |= {IMPLICIT if implicit else ENGINE_INT8: runs.candidate}
        return found if runs.simulated is None else found | {QDQ: runs.simulated}
    return found | ({FP16: runs.baseline} if half else {}) | {QDQ: runs.candidate}


def _line(
    name: str, before: Sequence[str], outputs: Mapping[str, Outputs], judge: Judge, overflows: Sequence[str]
) -> StageLine:
    """One stage compared with the first of ``before`` that is finite."""
    whole = [b for b in before if _finite(outputs[b])] or list(before[:1])
    common = {key: value for key, value in outputs[whole[0]].items() if key in outputs[name]}
    if len(common) < len(outputs[name]):  # the framework gave some of the outputs only
        limits = tuple(limit for limit in judge.limits if any(limits_for(key, [limit]) for key in common))
        judge = replace(judge, limits=limits, metrics=())
    verdict = judge(common, outputs[name])
    judged, metrics = verdict
    scores = (*(s for o in judged for s in o.scores if s.limit is not None), *metrics)
    text = ""
    if not verdict.passed:
        parts = [STAGES[name].meaning, *(overflows[:3] if name == FP16 else ())]
        parts += [f"'{o.name}': {o.problem}" for o in judged if o.problem]
        parts += [said for o in judged if (said := fit_in_words(o, whole[0]))]
        text = "; ".join(parts)
    return StageLine(name, verdict.passed, scores, text)


def _together(
    lines: Sequence[StageLine], outputs: Mapping[str, Outputs], judge: Judge
) -> tuple[tuple[StageLine, ...], str]:
    """Where no step fails alone: the last INT8 stage against what the case compares it with."""
    last = next((s for s in (IMPLICIT, ENGINE_INT8, QDQ) if s in outputs), None)
    order = (FP16, FP32) if last == QDQ else (ENGINE_FP16, ENGINE_FP32, FP16, FP32)
    against = next((s for s in order if s in outputs), None)
    if last is None or against is None or _line(last, [against], outputs, judge, ()).passed:
        return tuple(lines), ""
    text = f"no step leaves its limit alone; together they do, against {against}"
    changed = (
        StageLine(line.name, line.passed, line.scores, text) if line.name == last else line for line in lines
    )
    return tuple(changed), last


def _finite(outputs: Outputs) -> bool:
    return all(
        bool(np.isfinite(a).all()) for arrays in outputs.values() for a in arrays if a.dtype.kind == "f"
    )


def fit_in_words(output: OutputResult, before: str) -> str:
    """Slope and shift of an output against a stage before; empty where it lies near that, or on no line."""
    fit: LineFit | None = output.fit
    if fit is None or not fit.note:
        return ""
    if not fit.correlation:
        return f"'{output.name}' comes out as one value throughout"
    if abs(fit.correlation) <= MIN_CORRELATION:
        return ""
    how = [f"{fit.slope:.3g} times what {before} gives"] if abs(fit.slope - 1) > FAR else []
    how += [f"shifted by {fit.offset:.3g}"] if "shifted" in fit.note else []
    return f"'{output.name}' comes out {' and '.join(how)}" if how else ""
