"""What was wrong, in one sentence: data, ranges, layers, pairs, stages and lines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
import report_cases

from pytest_int8acc.report.summary import fit_note, fit_phrase, stage_text, summary
from pytest_int8acc.results import CaseResult, Culprit, Diagnosis, Finding, LineFit, StageLine
from pytest_int8acc.results.causes import Cause, CauseKind, OddRanges, Stage

LARGE = LineFit(3.0, 0.25, 0.99, ("large", "shifted"), 0.5, 2.0)


def culprit(layer: str, kind: CauseKind) -> Culprit:
    cause = Cause(kind, "vanishing-weight-scale", f"{layer}.w", {"scale": 0.5})
    return replace(report_cases.CULPRITS[0], layer=layer, cause=cause)


def failing(*culprits: Culprit, findings: tuple[Finding, ...] = (), **facts: Any) -> CaseResult:
    search = replace(report_cases.SEARCH, culprits=culprits)
    result = report_cases.case(
        search=search, findings=findings, diagnosis=Diagnosis(**{"met": False, **facts})
    )
    return replace(result, outputs=(replace(result.outputs[0], fit=None),))


WIDE, WIDE_TOO = (culprit(f"conv{i}", "scale-too-wide") for i in (60, 58))
CUT = culprit("fc", "saturation")
CONV60 = "conv60: weight 'conv60.w' has the scale 0.5"


def test_culprits_alike_are_told_by_the_first_others_by_kind() -> None:
    assert summary(failing(WIDE)) == CONV60
    assert summary(failing(WIDE, WIDE_TOO)) == f"{CONV60} (and 1 more layer alike)"
    assert summary(failing(WIDE, WIDE_TOO, CUT)) == (
        "3 layers at fault: scales too wide in conv60, conv58; scales that cut values off in fc"
    )
    assert summary(failing()) == "no single cause was found"


def test_the_slip_that_counts_comes_first() -> None:
    findings = tuple(
        Finding(rule, "image", text, "", "warning", "data")
        for rule, text in (("data-same", "all alike"), ("data-factor", "255 times the inputs"))
    )
    told = failing(WIDE, findings=findings, slip="data-factor")
    assert summary(told) == f"255 times the inputs; {CONV60}"
    assert summary(failing(WIDE, findings=findings)) == CONV60


def test_ranges_come_before_layers() -> None:
    ranges = OddRanges(9, (3.0,) * 6 + (250.0,), (4.0, 4.1))
    assert summary(failing(WIDE, ranges=ranges)) == (
        "7 of 9 ranges are 3 to 250 times what the data reaches, 2 of 9 ranges cut values off that reach 4 "
        "times as far: the dynamic ranges are too wide and too narrow, as from other data or another model"
    )
    by_hand = OddRanges(3, (20.0, 22.0, 21.0), by_hand=(10.0, 50.0))
    assert summary(failing(WIDE, ranges=by_hand)) == (
        "all 3 ranges are 20 to 22 times what the data reaches: the tensors share a few dynamic ranges "
        "(10, 50), too wide"
    )


def test_pairs_that_stay_are_named_where_no_layer_is() -> None:
    unequal = Finding("unequal-pair", "conv5_DQ", "scale 1 and scale 2", "", "warning")
    fixed = ("conv5_DQ",)
    stay = "1 DequantizeLinear node stays as it is (blocked, FP8, INT4, or no pair): conv5_DQ"
    assert summary(failing(findings=(unequal, unequal), fixed_pairs=fixed)) == (
        "Q and DQ disagree at 'conv5_DQ': scale 1 and scale 2 (and 1 more alike); no plan takes that off"
    )
    assert summary(failing(fixed_pairs=fixed)) == f"{stay}: no plan takes them off"
    assert summary(failing(WIDE, findings=(unequal,), fixed_pairs=fixed)) == CONV60


def test_a_line_through_the_outputs_comes_last() -> None:
    result = failing(WIDE)
    result = replace(result, outputs=(replace(result.outputs[0], fit=LARGE),))
    said = "'logits' comes out 3 times what the baseline gives and shifted by 0.25"
    assert summary(result) == f"{CONV60}; {said}"


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ("FP32 ONNX", "FP32 ONNX: the export to ONNX changed the model, or inputs are prepared otherwise"),
        ("FP16", "FP16: FP16 is off already: INT8 is not the problem"),
        ("engine FP16", "engine FP16: the FP16 engine differs from its model: TensorRT's own doing"),
        ("engine INT8", "engine INT8: the Q/DQ model is fine, the engine made of it is not: TensorRT's own"),
        ("Q/DQ in ONNX Runtime", CONV60),
        ("implicit INT8", CONV60),
    ],
)
def test_layers_are_told_where_quantization_is_at_fault(stage: Stage, said: str) -> None:
    line = StageLine(stage, False, (), "FP32 ONNX")
    assert summary(failing(WIDE, stages=(line,), first_stage=stage)).startswith(said)


def test_without_a_layer_the_stage_is_told() -> None:
    line = StageLine("Q/DQ in ONNX Runtime", False, (), "FP16")
    said = "quantization loses it: scales, or layers that INT8 does not suit"
    assert summary(failing(stages=(line,), first_stage=line.name)) == said


def test_a_case_that_is_met() -> None:
    assert summary(failing(met=True)) == "INT8 meets its criteria"
    assert summary(failing(met=True, first_stage="FP16")) == "INT8 meets its criteria; FP16 alone does not"
    assert summary(replace(failing(WIDE), diagnosis=None)) == summary(failing(WIDE, met=None)) == ""


def test_stages_tell_problems_and_lines() -> None:
    line = StageLine("FP16", False, (), "FP32 ONNX", {"boxes": "shapes differ"}, {"logits": LARGE})
    assert stage_text(line) == (
        "FP16 is off already: INT8 is not the problem; 'boxes': shapes differ; 'logits' comes out 3 times "
        "what FP32 ONNX gives and shifted by 0.25"
    )
    assert stage_text(replace(line, passed=True)) == ""
    together = replace(line, passed=True, together="FP16")
    assert stage_text(together) == "no step leaves its limit alone; together they do, against FP16"
    stages = [StageLine(stage, False, (), "framework") for stage in get_args(Stage) if stage != "framework"]
    assert all(map(stage_text, stages))


def test_what_a_line_suggests() -> None:
    assert fit_note(LARGE) == (
        "INT8 values are 3 times the baseline's throughout: a scale is wrong for all samples, look for a "
        "dynamic range far from what its tensor holds; INT8 values are shifted by 0.5 on average (0.25 of "
        "the baseline's standard deviation): values cut off on one side only, or a wrong bias or zero point"
    )
    small = LineFit(0.52, 0.0, 0.99, ("small",), 0.0, 1.0)
    assert "0.52 of the baseline's throughout: a scale is wrong for all samples" in fit_note(small)
    assert "a dynamic range too narrow" in fit_note(small)
    assert fit_phrase("y", small, "FP16") == "'y' comes out 0.52 times what FP16 gives"
    near = LineFit(1.0, 0.0, 1.0)
    assert fit_note(near) == fit_phrase("y", near, "FP16") == fit_phrase("y", None, "FP16") == ""
    constant = LineFit(0.0, 0.1, 0.0, ("constant",))
    assert fit_note(constant).startswith("INT8 is 0.1 everywhere while the baseline varies: ")
    assert fit_phrase("y", constant, "FP16") == "'y' comes out as one value throughout"
