"""Models in older opsets, and with float weights, compute what they did."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graphs import feed_of, float_models
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, parser
from qdq_everywhere import everywhere
from zoo import OLD_RUNTIME
from zoo_networks import assert_same, network_of, zoo_model

from pytest_int8acc import ModelError
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.graph.opsets import float_weights, lower_opset, raise_opset
from pytest_int8acc.graph.plan import apply


def quantized(model: Model) -> Model:
    """``model`` with Q/DQ everywhere."""
    return apply(network_of(model))


NEWER = [18, 19, 21] if OLD_RUNTIME else [18, 19, 21, 23]


@settings(deadline=None, max_examples=15)
@given(model=float_models(), opset=st.sampled_from(NEWER), seed=st.integers(0, 100))
def test_quantized_models_of_newer_opsets_are_lowered(model: Model, opset: int, seed: int) -> None:
    newer = quantized(raise_opset(model, opset))
    lowered = lower_opset(newer, 17)
    assert (lowered.opset, {o.domain for o in lowered.proto.opset_import}) == (17, {""})
    onnx.checker.check_model(onnx.load_from_string(lowered.serialize()), full_check=True)
    assert_same(newer, lowered, feed_of(seed))
    assert lower_opset(lowered, 17) is lowered


NEWER = {
    "pad": ("x, p", "Pad", {}),
    "resize": ("x, , s", "Resize", {"antialias": 0, "keep_aspect_ratio_policy": "stretch"}),
    "cast": ("x", "Cast", {"to": TensorProto.FLOAT, "saturate": 1}),
    "mean": ("x, a", "ReduceMean", {"keepdims": 1}),
    "mean of all": ("x", "ReduceMean", {"keepdims": 1, "noop_with_empty_axes": 0}),
    "max": ("x, a", "ReduceMax", {"keepdims": 1, "noop_with_empty_axes": 1}),
    "sum of squares": ("x, a", "ReduceSumSquare", {"keepdims": 1}),
}


def one_node(inputs: str, operator: str, attributes: dict[str, object], opset: int) -> Model:
    names = [name.strip() for name in inputs.split(",")]
    constants = {
        "p": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        "s": np.array([1, 1, 2, 2], np.float32),
        "a": np.array([2, 3]),
        "few": np.array([2, 3]),
        "c": np.array(0, np.float32),
        "q": np.array([1, 1, 1, 1]),
    }
    graph = helper.make_graph(
        [helper.make_node(operator, names, ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, list("nchw"))],
        [numpy_helper.from_array(array, name) for name, array in constants.items() if name in names],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return make_model(proto, name="one")


@pytest.mark.parametrize("opset", [18, 19, 21])
@pytest.mark.parametrize("name", NEWER)
def test_nodes_that_use_nothing_new_are_lowered(name: str, opset: int) -> None:
    inputs, operator, attributes = NEWER[name]
    if opset == 18:
        attributes = {key: value for key, value in attributes.items() if key != "saturate"}
    model = one_node(inputs, operator, attributes, opset)
    lowered = lower_opset(model, 17)
    onnx.checker.check_model(lowered.proto, full_check=True)
    assert_same(model, lowered, {"x": np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32)})


@pytest.mark.parametrize(
    ("inputs", "operator", "attributes"),
    [
        ("x, q, c, few", "Pad", {}),
        ("x, , s", "Resize", {"antialias": 1, "mode": "linear"}),
        ("x", "Gelu", {}),
    ],
)
def test_nodes_that_use_something_new_are_refused(
    inputs: str, operator: str, attributes: dict[str, object]
) -> None:
    with pytest.raises(ModelError, match=rf"^(No .*)?{operator}\b"):
        lower_opset(one_node(inputs, operator, attributes, 20), 17)


def test_axes_that_are_computed_are_refused() -> None:
    text = """
        <ir_version: 8, opset_import: ["": 18]>
        g (float[2, 3] x, int64[1] a) => (float[n, m] y) { [mean] y = ReduceMean(x, a) }
    """
    with pytest.raises(ModelError, match="ReduceMean 'mean' computes its axes"):
        lower_opset(make_model(parser.parse_model(text)), 17)


def test_a_reduction_of_nothing_is_refused() -> None:
    model = one_node("x", "ReduceMean", {"noop_with_empty_axes": 1}, 18)
    with pytest.raises(ModelError, match="reduces nothing"):
        lower_opset(model, 17)


@settings(deadline=None, max_examples=15)
@given(model=float_models(), seed=st.integers(0, 100))
def test_float_weights_give_the_same_integers(model: Model, seed: int) -> None:
    integers = quantized(model)
    spelled = float_weights(integers)
    constants = {t.name for t in spelled.graph.initializer}
    read = [n for n in spelled.graph.node if n.op_type == "DequantizeLinear" and n.input[0] in constants]
    assert not read
    assert_same(integers, spelled, feed_of(seed))
    assert float_weights(spelled) is spelled


def test_weights_that_two_nodes_read_are_quantized_once() -> None:
    integers = quantized(zoo_model("tied"))
    spelled = float_weights(integers)
    before = sum(node.op_type == "QuantizeLinear" for node in integers.graph.node)
    after = sum(node.op_type == "QuantizeLinear" for node in spelled.graph.node)
    weights = {
        node.input[0]
        for node in integers.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in integers.constants()
    }
    assert after - before == len(weights)


def test_uint8_zero_points_and_int32_biases_are_kept() -> None:
    network = everywhere()
    integers = apply(network)
    spelled = float_weights(integers)
    rng = np.random.default_rng(1)
    assert_same(integers, spelled, {"x": rng.normal(size=(2, 4, 8, 8)).astype(np.float32)})


def test_a_weight_without_a_zero_point_is_left() -> None:
    text = """
        <ir_version: 8, opset_import: ["": 17]>
        g (float[2, 3] x) => (float[2, 3] y) <float s = {0.5}, int8[3] w = {1, 2, 3}>
        { d = DequantizeLinear(w, s)  y = Mul(x, d) }
    """
    model = make_model(parser.parse_model(text))
    assert float_weights(model) is model
