"""Sums in FP16, against loops that round after every sixteenth product."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_int8acc.data import open_dataset
from pytest_int8acc.engines.onnxruntime import CPU, OrtEngine
from pytest_int8acc.graph.model import make_model
from pytest_int8acc.lab import sums
from pytest_int8acc.lab.sums import sums_of

HEAD = '<ir_version: 8, opset_import: ["": 17]> g '


def model_of(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(HEAD + text)
    for name, array in weights.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    for node in proto.graph.node:
        node.name = node.output[0]
    return proto


def by_loops(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """One sum at a time."""
    left, right = left.astype(np.float16), right.astype(np.float16)
    made = np.zeros((len(left), right.shape[1]))
    for i in range(len(left)):
        for j in range(right.shape[1]):
            total = np.float16(0)
            for start in range(0, left.shape[1], 16):
                part = math.fsum(
                    float(a) * float(b)
                    for a, b in zip(left[i, start : start + 16], right[start : start + 16, j], strict=True)
                )
                total = np.float16(float(total) + part)
            made[i, j] = total
    return made


@given(st.integers(1, 80), st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_sums_are_rounded_after_sixteen_products(length: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    left, right = rng.normal(1, 1, (3, length)), rng.normal(1, 1, (length, 2))
    assert np.array_equal(sums._summed(left, right, 16), by_loops(left, right))


@pytest.mark.parametrize(
    "text",
    [
        "(float[2, 5, 40] x) => (float[2, 5, 3] y) { y = MatMul(x, w) }",
        "(float[40, 5] x) => (float[5, 3] y) { y = Gemm <transA = 1> (x, w) }",
        "(float[5, 40] x) => (float[5, 3] y) { y = Gemm <transB = 1> (x, w) }",
        "(float[2, 4, 3, 40] x) => (float[2, 4, 3, 3] y) { t = Transpose <perm = [0, 1, 3, 2]> (x) "
        "y = MatMul(x, t) }",
        "(float[2, 4, 7, 6] x) => (float[n, m, h, k] y) { y = Conv <strides = [2, 1], pads = [1, 0, 2, 1]> "
        "(x, w) }",
        "(float[1, 4, 9] x) => (float[n, m, h] y) { y = Conv <dilations = [2], group = 2> (x, w) }",
    ],
)
def test_the_products_are_those_of_the_node(text: str) -> None:
    rng = np.random.default_rng(0)
    node_type = "Conv" if "Conv" in text else "Gemm"
    shape = {"Gemm": (3, 40) if "transB" in text else (40, 3)}.get(node_type) or (
        (6, 2, 3) if "group" in text else (5, 4, 3, 2)
    )
    w = rng.standard_normal(shape).astype(np.float32)
    proto = model_of(text, **({} if "Transpose" in text else {"w": w}))
    model = make_model(proto)
    x = rng.standard_normal([d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim])
    made = OrtEngine(model)({"x": x.astype(np.float32)})["y"]
    right = np.swapaxes(x, -1, -2) if "Transpose" in text else w
    node = model.index.nodes["y"]
    pairs = list(sums._products(node, x.astype(np.float32), right.astype(np.float32)))
    got = [left @ right for left, right in pairs]
    if node_type == "Conv":
        flat = np.moveaxis(made, 1, -1).reshape(-1, made.shape[1])
        assert np.allclose(np.concatenate(got, axis=1), flat, atol=1e-4)
    else:
        assert np.allclose(np.concatenate(got).ravel(), made.ravel(), atol=1e-4)


@pytest.mark.parametrize(
    ("length", "mean", "costs"), [(2048, 1.0, True), (2048, 0.0, True), (16, 1.0, False)]
)
def test_long_sums_lose_and_short_ones_do_not(tmp_path: Path, length: int, mean: float, costs: bool) -> None:
    rng = np.random.default_rng(1)
    text = f"(float[n, {length}] x) => (float[n, 4] y) {{ a = Relu(x) y = MatMul(a, w) }}"
    model = make_model(model_of(text, w=rng.normal(mean, 1, (length, 4))))
    np.save(tmp_path / "x.npy", rng.normal(mean, 1, (8, length)).astype(np.float32))
    inputs = open_dataset("x.npy", model.inputs, base=tmp_path)
    found = sums_of(model, "y", inputs, CPU)
    assert found is not None
    assert found.products == length
    assert (found.in_fp16 < found.in_fp32 - 6) == costs
    assert sums_of(model, "a", inputs, CPU) is None
