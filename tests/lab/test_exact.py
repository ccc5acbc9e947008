"""Graph surgery changes what it says and nothing else, bit for bit."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graphs import feed_of, float_models
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_model import conv2d_int, matmul_int
from onnx import TensorProto, helper, numpy_helper
from zoo import ZOO, sample_feed
from zoo_networks import all_high, assert_same, network_of, zoo_model, zoo_network

from pytest_int8acc.graph.layout import find_groups, quantize
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.graph.network import Network, Plan
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.graph.qdq import read_qdq
from pytest_int8acc.runtime.onnxruntime import OrtEngine


@pytest.mark.parametrize("name", ZOO)
def test_zoo_all_high_runs_as_the_float_model(name: str) -> None:
    model, network = zoo_model(name), zoo_network(name)
    high = apply(network, all_high(network))
    assert not any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in high.graph.node)
    assert_same(model, high, sample_feed(ZOO[name](), 0, 2))


@pytest.mark.parametrize("name", ZOO)
def test_zoo_read_back_runs_as_written(name: str) -> None:
    network = zoo_network(name)
    written = apply(network)
    onnx.checker.check_model(onnx.load_from_string(written.serialize()), full_check=True)
    back = read_qdq(written)
    assert [g.name for g in back.groups] == [g.name for g in network.groups]
    assert_same(written, apply(back), sample_feed(ZOO[name](), 0, 2))


@settings(max_examples=40, deadline=None)
@given(float_models(), st.integers(0, 99))
def test_random_graph_all_high_runs_as_the_float_model(model: Model, seed: int) -> None:
    network = network_of(model)
    assert_same(model, apply(network, all_high(network)), feed_of(seed))


@settings(max_examples=40, deadline=None)
@given(float_models(), st.data())
def test_random_plan_read_back_runs_as_written(model: Model, data: st.DataObject) -> None:
    network = network_of(model)
    high = data.draw(st.sets(st.sampled_from([g.name for g in network.groups])))
    written = apply(network, Plan(dict.fromkeys(high, "fp16")))
    left = [g.name for g in network.groups if g.name not in high]
    if left:
        back = read_qdq(written)
        assert [g.name for g in back.groups] == left
        assert_same(written, apply(back), feed_of(1))
    else:
        assert_same(model, written, feed_of(1))


@settings(max_examples=40, deadline=None)
@given(float_models(), st.data())
def test_freeing_a_group_touches_no_other_reader(model: Model, data: st.DataObject) -> None:
    """Apart from the freed group's nodes, every node reads the very tensors it read before."""
    network = network_of(model)
    freed = data.draw(st.sampled_from(network.groups))
    before, after = apply(network), apply(network, Plan({freed.name: "fp16"}))
    original = {node.name: list(node.input) for node in model.graph.node}
    left = {node.name: list(node.input) for node in after.graph.node}
    for node in before.graph.node:
        if node.name not in original:
            continue
        expected = original[node.name] if node.name in freed.nodes else list(node.input)
        assert left[node.name] == expected, node.name


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_convolution_is_integer_arithmetic(data: st.DataObject) -> None:
    """Exact mode equals scale products times an integer convolution, to float32 rounding."""
    groups = data.draw(st.sampled_from([1, 1, 2, 4]))
    c_in, c_out = (groups * data.draw(st.sampled_from([4, 8])) for _ in range(2))
    kernel = data.draw(st.integers(1, 3))
    stride, dilation, pad = (data.draw(st.integers(low, 2)) for low in (1, 1, 0))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    x = rng.normal(size=(2, c_in, 9, 8)).astype(np.float32)
    w = (
        rng.normal(size=(c_out, c_in // groups, kernel, kernel)) * rng.uniform(0.01, 3, (c_out, 1, 1, 1))
    ).astype(np.float32)
    scale = np.float32(data.draw(st.floats(1e-3, 0.2)))
    node = helper.make_node(
        "Conv",
        ["x", "w"],
        ["y"],
        "conv",
        group=groups,
        strides=[stride] * 2,
        dilations=[dilation] * 2,
        pads=[pad] * 4,
    )
    network, result = run_one(node, x, w, {"x": float(scale)})
    quantization = network.groups[0].edges[1].quantization
    codes = np.clip(np.rint(x / scale), -128, 127).astype(np.int8)
    sums = conv2d_int(codes, quantization.values, (stride,) * 2, (pad,) * 4, (dilation,) * 2, groups)
    expected = sums * (np.float64(scale) * quantization.scale.astype(np.float64))[:, None, None]
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_matrix_product_is_integer_arithmetic(data: st.DataObject) -> None:
    rows, inner, columns = (data.draw(st.integers(1, 40)) for _ in range(3))
    transposed = data.draw(st.booleans())
    op_type = data.draw(st.sampled_from(["MatMul", "Gemm"]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    x = rng.normal(size=(rows, inner)).astype(np.float32)
    w = (rng.normal(size=(inner, columns)) * rng.uniform(0.01, 3, columns)).astype(np.float32)
    scale = np.float32(data.draw(st.floats(1e-3, 0.2)))
    attributes = {"transB": 1} if op_type == "Gemm" and transposed else {}
    stored = np.ascontiguousarray(w.T) if attributes else w
    node = helper.make_node(op_type, ["x", "w"], ["y"], "product", **attributes)
    network, result = run_one(node, x, stored, {"x": float(scale)})
    quantization = network.groups[0].edges[1].quantization
    values = quantization.values.T if attributes else quantization.values
    codes = np.clip(np.rint(x / scale), -128, 127).astype(np.int8)
    expected = matmul_int(codes, values) * (np.float64(scale) * quantization.scale.astype(np.float64))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def run_one(
    node: onnx.NodeProto, x: np.ndarray, w: np.ndarray, scales: dict[str, float]
) -> tuple[Network, np.ndarray]:
    """The Network of a model of ``node`` alone, and what exact mode makes of ``x``."""
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = normalize(make_model(proto))
    network = quantize(model, find_groups(model), scales)
    return network, OrtEngine(apply(network))({"x": x})["y"]
