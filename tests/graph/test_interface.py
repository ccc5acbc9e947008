"""Inputs and outputs of a model converted to the float types of another model's, and back."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from case_networks import convs
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from qdq_by_hand import quantized

from pytest_int8acc.graph.interface import with_interface_of, with_own_interface
from pytest_int8acc.graph.model import Model, make_model


def branching() -> onnx.ModelProto:
    """An input in FP16 that a node, an output and both branches of an If read."""
    text = """<ir_version: 9, opset_import: ["" : 19]>
        net (float16[n, 4] x, bool c) => (float16[n, 4] y, float16[n, 4] z, int64[2] sizes) {
            z = Relu(x)
            y = If(c) <
                then_branch = a () => (float16[n, 4] t) { t = Mul(x, z) },
                else_branch = b () => (float16[n, 4] e) { e = Add(x, z) }
            >
            sizes = Shape(x)
        }"""
    return onnx.parser.parse_model(text)


def halved_convs() -> onnx.ModelProto:
    ranges = {"x": 3.0, "relu1": 3.0, "relu2": 3.0, "flat": 3.0}
    return quantized(convs(), ranges, half=True)


def widened(proto: onnx.ModelProto) -> Model:
    """The interface in FP32, on a model that computes something else."""
    nodes = [helper.make_node("Identity", [proto.graph.input[0].name], ["inner"], "id")]
    values = []
    for value in (*proto.graph.input, *proto.graph.output):
        copy = onnx.ValueInfoProto.FromString(value.SerializeToString())
        if copy.type.tensor_type.elem_type == TensorProto.FLOAT16:
            copy.type.tensor_type.elem_type = TensorProto.FLOAT
        values.append(copy)
    count = len(proto.graph.input)
    graph = helper.make_graph(nodes, "other", values[:count], values[count:])
    return make_model(helper.make_model(graph))


def stored(proto: onnx.ModelProto) -> Model:
    return make_model(onnx.ModelProto.FromString(proto.SerializeToString()))


def whole(model: Model) -> onnx.ModelProto:
    return onnx.load_model_from_string(model.serialize())


def types(model: Model) -> dict[str, int]:
    values = (*model.graph.input, *model.graph.output)
    return {value.name: value.type.tensor_type.elem_type for value in values}


@pytest.mark.parametrize("make", [branching, halved_convs])
def test_the_same_is_computed_of_converted_data(make: object) -> None:
    proto = make()  # type: ignore[operator]
    own, other = stored(proto), widened(proto)
    cast = with_interface_of(own, other)
    assert types(cast) == types(other)
    onnx.checker.check_model(whole(cast), full_check=True)
    rng = np.random.default_rng(0)
    first, *more = proto.graph.input
    sizes = [d.dim_value or 3 for d in first.type.tensor_type.shape.dim]
    data = rng.normal(size=sizes).astype(np.float16)
    for choice in (True, False) if more else (None,):
        chosen = {} if choice is None else {"c": np.array(choice)}
        expected = ReferenceEvaluator(proto).run(None, {first.name: data} | chosen)
        found = ReferenceEvaluator(whole(cast)).run(None, {first.name: data.astype(np.float32)} | chosen)
        for name, a, b in zip(types(cast), expected, found, strict=False):
            np.testing.assert_array_equal(a.astype(b.dtype), b, err_msg=name)


@pytest.mark.parametrize("make", [branching, halved_convs])
def test_and_back(make: object) -> None:
    proto = make()  # type: ignore[operator]
    own = stored(proto)
    back = with_own_interface(with_interface_of(own, widened(proto)), own)
    assert types(back) == types(own)
    onnx.checker.check_model(whole(back), full_check=True)
    assert [n.name for n in back.graph.node] == [n.name for n in own.graph.node]
    first, *more = proto.graph.input
    data = np.ones([d.dim_value or 3 for d in first.type.tensor_type.shape.dim], np.float16)
    feed = {first.name: data} | ({"c": np.array(True)} if more else {})
    expected = ReferenceEvaluator(proto).run(None, feed)
    for one, other in zip(expected, ReferenceEvaluator(whole(back)).run(None, feed), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_model_with_equal_types_is_the_same_object() -> None:
    model = make_model(convs())
    assert with_interface_of(model, model) is model
    assert with_own_interface(model, model) is model
