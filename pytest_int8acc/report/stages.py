"""The way from the framework to the INT8 engine as text: each stage, and what the first bad one means."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_int8acc.report.fits import fit_phrase
from pytest_int8acc.report.ranking import worst_first
from pytest_int8acc.report.words import relation, shorten
from pytest_int8acc.results import Diagnosis, StageLine
from pytest_int8acc.results.causes import Stage

_OWN = "TensorRT's own doing"
#: What it means where a stage is the first that fails.
_MEANINGS: Mapping[Stage, str] = {
    "framework": "",
    "FP32 ONNX": "the export to ONNX changed the model, or inputs are prepared otherwise there",
    "FP16": "FP16 is off already: INT8 is not the problem",
    "Q/DQ in ONNX Runtime": "quantization loses it: scales, or layers that INT8 does not suit",
    "engine FP16": f"the FP16 engine differs from its model: {_OWN}",
    "engine FP32": f"the FP32 engine differs from its model: {_OWN}",
    "engine INT8": f"the Q/DQ model is fine, the engine made of it is not: {_OWN}",
    "implicit INT8": "quantization loses it: ranges of TensorRT's calibration, or layers that INT8 does not "
    "suit",
}


def stage_text(line: StageLine) -> str:
    """What it means where this is the first stage that fails; empty where it passes."""
    if line.told or (line.passed and line.together is None):
        return line.told
    if line.together is not None:
        return f"no step leaves its limit alone; together they do, against {line.together}"
    parts = [_MEANINGS[line.name], *(f"'{name}': {problem}" for name, problem in line.problems.items())]
    parts += [fit_phrase(name, fit, line.against or "") for name, fit in line.fits.items()]
    return "; ".join(filter(None, parts))


def stage_lines(diagnosis: Diagnosis) -> list[str]:
    """The way from the framework to the engine in one line, and what the first bad stage means."""
    if not diagnosis.stages:
        return []
    lines = ["Stages: " + " > ".join(_stage(stage) for stage in diagnosis.stages)]
    first = first_line(diagnosis)
    if first is not None and (text := stage_text(first)):
        lines.append(f"  {first.name}: {text}")
    return lines


def first_line(diagnosis: Diagnosis) -> StageLine | None:
    """The line of the first stage that leaves its limit."""
    return next((stage for stage in diagnosis.stages if stage.name == diagnosis.first_stage), None)


def _stage(stage: StageLine) -> str:
    if stage.passed:
        return f"{stage.name} ok"
    missed = next((score for score in worst_first(stage.scores) if not score.passed), None)
    return f"{stage.name} off" + (f" ({shorten(relation(missed), 60)})" if missed else "")
