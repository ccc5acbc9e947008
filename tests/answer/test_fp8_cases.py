"""Cases in FP8: judged, searched, explained and mended as in INT8, and guarded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from case_files import facts, run
from narrow import ACTIVATIONS, conv_act_conv, images, planted
from onnx.reference import ReferenceEvaluator
from projects import Project

from pytest_int8acc import EngineError, Settings, load_spec
from pytest_int8acc.case.measured import measure as measured_of
from pytest_int8acc.graph.network import Plan, symmetric
from pytest_int8acc.graph.plan import activation_scales
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.runtime.trt.backend import TrtBackend
from pytest_int8acc.runtime.trt.platform import Platform

LIMIT = "criteria: [{sqnr_db: 15}]\n"


def measured(project: Project, spec: str, settings: Settings | None = None) -> Any:
    file = project.folder / "case.int8acc.yaml"
    file.write_text("model: model.onnx\ninputs: data.npz\n" + spec)
    (case,) = load_spec(file)
    return measured_of(case, settings or Settings())


@pytest.mark.parametrize("baseline", ["fp32", "fp16"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_model_in_fp8_is_judged_as_the_reference_evaluator_has_it(
    pytester: pytest.Pytester, activation: str, baseline: str
) -> None:
    before, after = conv_act_conv(activation), conv_act_conv(activation, "fp8", "fp8")
    onnx.save(before, "model.onnx")
    onnx.save(after, "q.onnx")
    x = images(16)
    np.savez("data.npz", x=x)
    criteria = [{"sqnr_db": 15}]
    entry = run(pytester, {"spec": {"fp8": {"model": "q.onnx"}, "baseline": baseline, "criteria": criteria}})
    truth, made = (ReferenceEvaluator(m).run(None, {"x": x})[0] for m in (before, after))
    error = np.square((made - truth).astype(np.float64)).sum()
    expected = 10 * np.log10(np.square(truth.astype(np.float64)).sum() / error)
    assert facts(entry)["scores"]["y sqnr_db"] == pytest.approx(expected, abs=0.1)
    assert entry["candidate"].startswith("FP8 in 2 of 2 groups")
    assert entry["low"] == "fp8"


@pytest.mark.parametrize("network", ["residual", "vit_gelu", "inception"])
def test_a_trial_is_the_model_that_would_be_built(tmp_path: Path, network: str) -> None:
    project, _ = planted(tmp_path, {1: 1 / 8}, network)
    case = measured(project, f"fp8: {{scales: ranges.json}}\nbaseline: fp32\n{LIMIT}")
    try:
        assert case.int8 is not None
        lab = Lab(case, case.int8)
        names, tensor = [g.name for g in lab.network.groups], next(iter(activation_scales(lab.network)))
        for high in ([], names[:1], names[:-1]):
            plan = Plan(dict.fromkeys(high, "fp32"), {tensor: symmetric(0.01)})
            trial, built = lab.simulator.trial(plan), lab.judged(lab.int8.under(plan)).verdict
            assert trial.loss == pytest.approx(max(s.normalized_loss for s in built.scores), rel=1e-3)
    finally:
        case.close()


def test_a_gpu_before_ada_is_an_error_at_its_place(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.data(project.model())
    case = measured(project, "fp8: {calibrate: {}}\n")
    try:
        assert case.int8 is not None
        backend = TrtBackend(Platform("tensorrt", (10, 3, 0), "NVIDIA T4", (7, 5)), case.case, Settings())
        with pytest.raises(EngineError, match=r"on NVIDIA T4 has no FP8: .*compute capability 8.9"):
            backend.check(case.int8.under())
        assert case.candidate.place.endswith("yaml:3:6")
        backend.close()
    finally:
        case.close()
