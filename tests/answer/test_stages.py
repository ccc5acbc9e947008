"""Stages of failing cases that no case file shows; the others are in tests/cases/engines/stages.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judged import Outputs, judged

from pytest_int8acc.answer.stages import place, stages_of
from pytest_int8acc.data import Dataset, open_dataset
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.layout import find_groups, quantize
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.observers.methods import calibrate
from pytest_int8acc.results import Evidence, Role, SampleSet
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.runtime.run import run_together
from pytest_int8acc.scores.criteria import OutputLimits
from pytest_int8acc.scores.judge import Judge

DIGITS = Path(__file__).parents[2] / "example_project"
#: Stages by the names that reports give them.
FRAMEWORK, FP32, FP16, QDQ = "framework", "FP32 ONNX", "FP16", "Q/DQ in ONNX Runtime"
ENGINE_FP16, ENGINE_INT8, IMPLICIT = "engine FP16", "engine INT8", "implicit INT8"
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


def placed(outputs: dict[str, Outputs], judge: Judge) -> tuple[tuple[Any, ...], str | None]:
    def compare(against: str, stage: str) -> Any:
        before, after = outputs[against], outputs[stage]
        return judged(judge if before.keys() >= after.keys() else judge.on(before), before, after)

    broken = [s for s, found in outputs.items() if not np.isfinite(np.concatenate(found["logits"])).all()]
    return place(outputs, compare, lambda stage: Evidence("form", "exact", SampleSet(96)), broken)


def test_fp16_overflow_fails_there_and_nothing_after_it_is_blamed(good: dict[str, Outputs]) -> None:
    lost = {"logits": [np.full_like(a, np.inf) for a in good[FP16]["logits"]]}
    outputs = {name: arrays for name, arrays in good.items() if name != ENGINE_FP16} | {FP16: lost}
    lines, first = placed(outputs, JUDGE)
    assert first == FP16
    (problems,) = [line.problems for line in lines if line.problems]
    assert list(problems) == ["logits"]
    assert all(line.passed for line in lines if line.name != FP16)
    assert {line.against for line in lines if line.name == QDQ} == {FP32}


def test_a_reference_of_some_outputs(good: dict[str, Outputs]) -> None:
    both = {"logits": good[FP32]["logits"], "boxes": good[FP32]["logits"]}
    judge = Judge((*JUDGE.limits, OutputLimits("boxes", limits={"cosine": 0.9})), (), None)
    lines, first = placed({FRAMEWORK: good[FRAMEWORK], FP32: both, QDQ: both}, judge)
    assert first is None
    assert [len(line.scores) for line in lines] == [2, 3]


def test_stages_of_runs() -> None:
    ours = {Role.BASELINE, Role.BASELINE_AGAIN, Role.INT8}
    cpu = stages_of(ours | {Role.FP32}, engines=False, half=True)
    assert cpu == {FP32: Role.FP32, FP16: Role.BASELINE, QDQ: Role.INT8}
    assert stages_of(ours, engines=False, half=False) == {FP32: Role.BASELINE, QDQ: Role.INT8}
    all_ = ours | {Role.FP32, Role.SIMULATED, Role.FRAMEWORK}
    assert set(stages_of(all_, engines=True, half=True)) == {FRAMEWORK, FP32, ENGINE_FP16, ENGINE_INT8, QDQ}
    implicit = stages_of(ours | {Role.FP32}, engines=True, half=True, implicit=True)
    assert set(implicit) == {FP32, ENGINE_FP16, IMPLICIT}
    assert set(stages_of(ours, engines=True, half=True)) == {ENGINE_FP16, ENGINE_INT8}


def test_implicit_quantization_is_not_blamed_on_the_engine(good: dict[str, Outputs]) -> None:
    """There is no Q/DQ model that would be fine: its layers are what is at fault."""
    outputs = {FP32: good[FP32], ENGINE_FP16: good[ENGINE_FP16], IMPLICIT: changed(good[QDQ], 0.5)}
    lines, first = placed(outputs, JUDGE)
    assert first == IMPLICIT
    assert (lines[-1].against, lines[-1].fits["logits"].meanings) == (ENGINE_FP16, ("small",))


def test_an_engine_that_misses_by_rounding_is_not_blamed(good: dict[str, Outputs]) -> None:
    judge = Judge((OutputLimits("logits", limits={"sqnr_db": 28}),), (), None)
    outputs = good | {ENGINE_INT8: changed(good[ENGINE_FP16], 0.96), QDQ: changed(good[FP16], 0.957, 0.03)}
    lines, first = placed(outputs, judge)
    assert first != ENGINE_INT8
    assert next(line for line in lines if line.name == ENGINE_INT8).passed
