"""What lint calls an error, TensorRT-RTX refuses; what lint calls clean, it builds."""

from __future__ import annotations

import pytest
from lint_cases import CASES
from rtx import build_all

from pytest_int8acc.graph.lint.rules import RULES

#: Wrong by the documentation of TensorRT or of ONNX; TensorRT-RTX 1.7 builds them all the same.
SILENT = {"nonpositive-scale inf", "scalar-qdq input", "runtime-scale unfused"}
ERRORS = [c for c in CASES if RULES[c.split()[0]].severity == "error" and c not in SILENT]


@pytest.fixture(scope="module")
def built() -> dict[str, str | None]:
    """Error (or None) of each model that breaks an error rule, and of every healthy twin."""
    models = {f"{case}, broken": CASES[case][0].SerializeToString() for case in ERRORS}
    models |= {f"{case}, healthy": CASES[case][1].SerializeToString() for case in CASES}
    names = {model: name for name, model in models.items()}
    results = build_all({name: model for model, name in names.items()})
    return {name: results[names[model]] for name, model in models.items()}


@pytest.mark.rtx
@pytest.mark.parametrize("case", ERRORS)
def test_tensorrt_refuses_what_lint_calls_an_error(built: dict[str, str | None], case: str) -> None:
    assert built[f"{case}, broken"] is not None


@pytest.mark.rtx
@pytest.mark.parametrize("case", CASES)
def test_tensorrt_builds_the_healthy_twin(built: dict[str, str | None], case: str) -> None:
    assert built[f"{case}, healthy"] is None
