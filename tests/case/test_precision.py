"""What engines that were recorded ran in; tests/cases/engines has engines that are written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from told_engines import DUMPS, Told

from pytest_int8acc import Settings, load_spec
from pytest_int8acc.api import check
from pytest_int8acc.case.precision import node_formats
from pytest_int8acc.runtime.trt.inspector import read_layers

EXAMPLE = Path(__file__).parents[2] / "example_project"


@pytest.mark.parametrize(
    ("name", "passed"), [("trt86_h200_digits", True), ("trt86_h200_digits_fixed", False)]
)
def test_recorded_engines_of_the_digits(tmp_path: Path, told: Told, name: str, passed: bool) -> None:
    """Of the second some layers were held in FP16, and one ran in FP32; here all are asked for in INT8."""
    told.text = (DUMPS / f"{name}.json").read_text(encoding="utf-8")
    shutil.copytree(EXAMPLE, tmp_path / "p", ignore=shutil.ignore_patterns("detector", "transformer"))
    (case,) = load_spec(tmp_path / "p" / "digits.int8acc.yaml")
    result = check(case, Settings(backend="onnxruntime", samples=64))
    contract = result.precision
    assert contract is not None
    assert contract.untold == pytest.approx(0, abs=1e-9)
    assert (contract.refuted == 0) == passed
    assert result.passed == passed
    if not passed:
        assert {layer.name: layer.ran for layer in contract.misplaced} == {
            "/block1/conv1/Conv": "fp16",
            "/block2/conv1/Conv": "fp32",
        }


def test_regions_and_contradictions_prove_nothing() -> None:
    def tensors(*types: str) -> list[dict[str, object]]:
        return [{"Name": str(i), "Dimensions": [8, 8], "Format/Datatype": t} for i, t in enumerate(types)]

    layers = [
        {"Name": "one_myl0_1", "LayerType": "kgen", "Inputs": tensors("Half", "Half"),
         "TacticName": "sm80_xmma_gemm_f16f16_f16f32", "Metadata": "[ONNX Layer: one][ONNX Layer: relu]"},
        {"Name": "attention", "LayerType": "kgen", "Inputs": tensors("Half", "Half"),
         "TacticName": "fused_gemm_f16f16", "Metadata": "[ONNX Layer: qk][ONNX Layer: av]"},
        {"Name": "quantizes", "LayerType": "gemm", "Inputs": tensors("Half", "Half"),
         "TacticName": "sm80_xmma_gemm_i8i8_i8i32", "Metadata": "[ONNX Layer: inside]"},
        {"Name": "split_1", "LayerType": "gemm", "Inputs": tensors("Half", "Half"),
         "TacticName": "gemm_f16f16", "Metadata": "[ONNX Layer: split]"},
        {"Name": "split_2", "LayerType": "gemm", "Inputs": tensors("Float", "Float"),
         "TacticName": "gemm_f32f32", "Metadata": "[ONNX Layer: split]"},
        {"Name": "q || k", "LayerType": "CaskConvolution", "Inputs": tensors("Int8"),
         "Weights": {"Type": "Int8", "Count": 64}, "TacticName": "i8i8", "Metadata": ""},
    ]  # fmt: skip
    nodes = ["one", "relu", "qk", "av", "inside", "split", "q", "k", "absent"]
    found = node_formats(read_layers(json.dumps({"Layers": layers}), nodes), set(nodes) - {"relu"})
    assert found == {"one": "fp16", "q": "int8", "k": "int8"}
