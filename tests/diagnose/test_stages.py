"""A failing case is placed on the line from the framework to the engine, and told in one sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pytest_int8acc.case.judge import Judge
from pytest_int8acc.data import Dataset, open_dataset
from pytest_int8acc.diagnose.ranges import Range
from pytest_int8acc.diagnose.stages import (
    ENGINE_FP16,
    ENGINE_FP32,
    ENGINE_INT8,
    FP16,
    FP32,
    FRAMEWORK,
    IMPLICIT,
    QDQ,
    STAGES,
    place,
    stage_outputs,
)
from pytest_int8acc.diagnose.summary import summarize
from pytest_int8acc.engines.onnxruntime import OrtEngine
from pytest_int8acc.engines.run import run_together
from pytest_int8acc.errors import CriterionError
from pytest_int8acc.graph.groups import find_groups
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.graph.quantize import quantize
from pytest_int8acc.graph.to_fp16 import to_fp16
from pytest_int8acc.measure.runs import Runs
from pytest_int8acc.results import Cause, Culprit, Finding
from pytest_int8acc.scales.calibrate import calibrate
from pytest_int8acc.scores.criteria import OutputLimits
from pytest_int8acc.tensors import Outputs

DIGITS = Path(__file__).parents[2] / "example_project"
JUDGE = Judge((OutputLimits("logits", limits={"cosine": 0.999, "sqnr_db": 25}),), (), None)


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(DIGITS / "digits.onnx")


@pytest.fixture(scope="module")
def data(model: Model) -> Dataset:
    return open_dataset("validation.npz", model.inputs, base=DIGITS / "data", samples=96)


@pytest.fixture(scope="module")
def good(model: Model, data: Dataset) -> dict[str, Outputs]:
    """All stages of a healthy case; an engine is stood in for by what it should equal."""
    layout = find_groups(model)
    scales = calibrate(model, layout.activations, data, method="minmax").values
    int8 = to_fp16(apply(quantize(model, layout, scales))).model
    engines = {FP32: OrtEngine(model), FP16: OrtEngine(to_fp16(model).model), QDQ: OrtEngine(int8)}
    found = run_together(engines, data)
    return {FRAMEWORK: found[FP32], **found, ENGINE_FP16: found[FP16], ENGINE_INT8: found[QDQ]}


def changed(outputs: Outputs, factor: float, shift: float = 0.0) -> Outputs:
    return {
        name: [a * np.float32(factor) + np.float32(shift) for a in arrays] for name, arrays in outputs.items()
    }


def test_a_healthy_case_fails_nowhere(good: dict[str, Outputs]) -> None:
    lines, first = place(good, JUDGE)
    assert first == ""
    assert [line.name for line in lines] == [FP32, FP16, QDQ, ENGINE_FP16, ENGINE_INT8]
    assert all(line.passed and line.scores and not line.text for line in lines)


@pytest.mark.parametrize(
    ("stages", "first", "said"),
    [
        ((FP32, FP16, QDQ, ENGINE_FP16, ENGINE_INT8), FP32, "export"),
        ((FP16, QDQ, ENGINE_FP16, ENGINE_INT8), FP16, "INT8 is not the problem"),
        ((QDQ, ENGINE_INT8), QDQ, "quantization"),
        ((ENGINE_FP16,), ENGINE_FP16, "TensorRT's own doing"),
        ((ENGINE_INT8,), ENGINE_INT8, "the Q/DQ model is fine"),
    ],
)
def test_the_first_stage_that_leaves_its_limit_is_named(
    good: dict[str, Outputs], stages: tuple[str, ...], first: str, said: str
) -> None:
    outputs = good | {name: changed(good[name], 0.7, 0.5) for name in stages}
    lines, found = place(outputs, JUDGE)
    assert found == first
    failing = [line for line in lines if not line.passed]
    assert [line.name for line in failing] == [first]
    assert said in failing[0].text
    assert "comes out 0.7 times what" in failing[0].text
    assert summarize(lines, found, ()).startswith(first if first != QDQ else "quantization")


def test_stages_that_are_missing_are_left_out(good: dict[str, Outputs]) -> None:
    lines, first = place({FP32: good[FP32], QDQ: changed(good[QDQ], 3)}, JUDGE)
    assert [line.name for line in lines] == [QDQ]
    assert first == QDQ
    assert place({}, JUDGE) == ((), "")
    assert place({QDQ: good[QDQ]}, JUDGE) == ((), "")


def test_fp16_overflow_is_named_with_its_node_and_nothing_after_it_is_blamed(
    good: dict[str, Outputs],
) -> None:
    lost = {"logits": [np.full_like(a, np.inf) for a in good[FP16]["logits"]]}
    outputs = {name: arrays for name, arrays in good.items() if name != ENGINE_FP16} | {FP16: lost}
    lines, first = place(outputs, JUDGE, ["'big' of Mul 'scale' reaches 7e+04, FP16 ends at 65504"])
    assert first == FP16
    assert "'big' of Mul 'scale'" in next(line.text for line in lines if line.name == FP16)
    assert all(line.passed for line in lines if line.name != FP16)


def test_steps_that_fail_only_together(good: dict[str, Outputs]) -> None:
    judge = Judge((OutputLimits("logits", limits={"sqnr_db": 24}),), (), None)
    baseline = good[FP32]
    outputs = {FP32: baseline, FP16: changed(baseline, 1.05), QDQ: changed(baseline, 1.1)}
    lines, first = place(outputs | {ENGINE_INT8: changed(baseline, 1.15)}, judge)
    assert all(line.passed for line in lines)
    assert first == ENGINE_INT8
    assert "together they do" in lines[-1].text


def test_unknown_stage_is_one_message(good: dict[str, Outputs]) -> None:
    with pytest.raises(CriterionError, match="unknown stage 'FP 16'"):
        place({"FP 16": good[FP16]}, JUDGE)
    assert set(STAGES) == {FRAMEWORK, FP32, FP16, QDQ, ENGINE_FP16, ENGINE_FP32, ENGINE_INT8, IMPLICIT}


def test_a_reference_of_some_outputs(good: dict[str, Outputs]) -> None:
    both = {"logits": good[FP32]["logits"], "boxes": good[FP32]["logits"]}
    judge = Judge((*JUDGE.limits, OutputLimits("boxes", limits={"cosine": 0.9})), (), None)
    lines, first = place({FRAMEWORK: good[FRAMEWORK], FP32: both, QDQ: both}, judge)
    assert first == ""
    assert [len(line.scores) for line in lines] == [2, 3]


def test_stages_of_runs(good: dict[str, Outputs]) -> None:
    fp32, fp16, int8 = good[FP32], good[FP16], good[QDQ]
    cpu = Runs(fp32, fp16, fp16, int8, None, "")
    assert list(stage_outputs(cpu, engines=False, half=True)) == [FP32, FP16, QDQ]
    full = Runs(fp32, fp32, fp32, int8, None, "")
    assert list(stage_outputs(full, engines=False, half=False)) == [FP32, QDQ]
    engines = Runs(fp32, fp16, fp16, int8, int8, "")
    found = stage_outputs(engines, engines=True, half=True, framework=fp32)
    assert set(found) == {FRAMEWORK, FP32, ENGINE_FP16, ENGINE_INT8, QDQ}
    implicit = stage_outputs(replace(engines, simulated=None), engines=True, half=True, implicit=True)
    assert set(implicit) == {FP32, ENGINE_FP16, IMPLICIT}
    blind = Runs(fp16, fp16, fp16, int8, None, "")
    assert set(stage_outputs(blind, engines=True, half=True)) == {ENGINE_FP16, ENGINE_INT8}


def culprit(layer: str, kind: str, text: str) -> Culprit:
    return Culprit(layer, "Conv", (layer,), "", 0.1, Cause(kind, text, ""))


def test_sentences_of_culprits() -> None:
    one = [culprit("conv5", "scale-too-wide", "scale 60x too wide")]
    assert summarize((), QDQ, one) == "conv5: scale 60x too wide"
    two = [*one, culprit("conv6", "scale-too-wide", "scale 58x too wide")]
    assert summarize((), QDQ, two) == "conv5: scale 60x too wide (and 1 more layer alike)"
    mixed = [*two, culprit("fc", "saturation", "cut off")]
    assert summarize((), QDQ, mixed) == "3 layers at fault: scale-too-wide in conv5, conv6; saturation in fc"
    assert summarize((), "", ()) == "no single cause was found"


def slip(rule: str, text: str) -> Finding:
    return Finding(rule, "image", text, "", "warning", "data")


def test_slips_of_the_data_come_first_and_weak_ones_only_where_values_are_cut_off() -> None:
    strong, weak = slip("data-factor", "255 times the inputs"), slip("data-few-samples", "2 samples")
    wide, narrow = culprit("conv5", "scale-too-wide", "60x too wide"), culprit("fc", "saturation", "cut off")
    assert summarize((), QDQ, [wide], findings=[weak, strong]) == "255 times the inputs; conv5: 60x too wide"
    assert summarize((), QDQ, [wide], findings=[weak]) == "conv5: 60x too wide"
    assert summarize((), QDQ, [narrow], findings=[weak]) == "2 samples; fc: cut off"
    note = Finding("data-overlap", "image", "12 % are alike", "", "note", "data")
    lint = Finding("one-sided", "conv5", "not quantized", "", "warning")
    assert summarize((), QDQ, [wide], findings=[note, lint]) == "conv5: 60x too wide"


def test_pairs_that_stay_are_named_where_no_layer_is() -> None:
    unequal = Finding("unequal-pair", "conv5_DQ", "scale 1 and scale 2", "", "warning")
    fixed = "1 DequantizeLinear nodes stay as they are: conv5_DQ"
    said = summarize((), QDQ, (), findings=[unequal], fixed=fixed)
    assert said == "Q and DQ disagree at conv5_DQ: scale 1 and scale 2; no plan takes that off"
    assert summarize((), QDQ, (), fixed=fixed) == f"{fixed}: no plan takes them off"
    one = culprit("conv5", "scale-too-wide", "60x too wide")
    assert summarize((), QDQ, [one], findings=[unequal], fixed=fixed) == "conv5: 60x too wide"


def test_a_range_of_0_is_no_division() -> None:
    ranges = [Range("a", 0.0, 1.0, 40.0, 1.0), Range("b", 9.0, 1.0, 9.0, 0.0)]
    one = [culprit("conv5", "zero-scale", "'a' has the scale 0")]
    assert summarize((), QDQ, one, ranges=ranges) == "conv5: 'a' has the scale 0"


def test_implicit_quantization_is_not_blamed_on_the_engine(good: dict[str, Outputs]) -> None:
    """There is no Q/DQ model that would be fine: its layers are what is at fault."""
    outputs = {FP32: good[FP32], ENGINE_FP16: good[ENGINE_FP16], IMPLICIT: changed(good[QDQ], 0.5)}
    lines, first = place(outputs, JUDGE)
    assert first == IMPLICIT
    assert "quantization loses it: ranges of TensorRT's calibration" in lines[-1].text
    assert (
        summarize(lines, first, [culprit("/stem/conv/Conv", "scale-too-wide", "scale 60x too wide")])
        == "/stem/conv/Conv: scale 60x too wide"
    )
