"""What lint calls an error, TensorRT-RTX refuses; what lint calls clean, it builds."""

from __future__ import annotations

import pytest
from lint_cases import CASES
from rtx import build_all

from pytest_int8acc.graph.lint.rules import RULES

#: Wrong by the documentation of TensorRT or of ONNX; TensorRT-RTX 1.7 builds them all the same.
SILENT = {"nonpositive-scale inf", "scalar-qdq input", "runtime-scale unfused"}
ERRORS = [c for c in CASES if RULES[c.split()[0]].severity == "error" and c not in SILENT]


@pytest.mark.rtx
def test_tensorrt_refuses_what_lint_calls_an_error_and_builds_the_healthy_twins() -> None:
    broken = {case: CASES[case][0].SerializeToString() for case in ERRORS}
    healthy = {case: CASES[case][1].SerializeToString() for case in CASES}
    models = list({*broken.values(), *healthy.values()})  # cases share models: each is built once
    results = build_all({str(number): model for number, model in enumerate(models)})
    errors = {model: results[str(number)] for number, model in enumerate(models)}
    assert [case for case, model in broken.items() if errors[model] is None] == []
    assert {case: errors[model] for case, model in healthy.items() if errors[model] is not None} == {}
