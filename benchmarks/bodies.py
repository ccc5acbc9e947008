"""Moves a whole network into the body of a Loop, If or Scan, where it computes the same for each sample."""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Holder = Literal["Loop", "If", "Scan"]
#: The name of the node that holds the body. Layers inside are called ``body/LAYER``.
HOLDER = "body"


def wrapped(proto: onnx.ModelProto, holder: Holder) -> onnx.ModelProto:
    """The model with all of its nodes and constants in a body.

    A Loop and a Scan take one sample in each step. An If computes the whole batch in its first branch.
    """
    graph = proto.graph
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    body = onnx.GraphProto(name=HOLDER)
    body.node.extend(graph.node)
    body.initializer.extend(graph.initializer)
    body.initializer.append(numpy_helper.from_array(np.array([0], np.int64), "body_batch_axis"))
    constants = {
        "body_always": np.array(True),
        "body_first": np.array(0, np.int64),
        "body_least": np.array(-1e30, np.float32),
    }
    for field in (made.graph.node, made.graph.initializer, made.graph.value_info):
        del field[:]
    made.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in constants.items())
    given = [value.name for value in graph.input]
    results = [value.name for value in graph.output]
    if holder == "If":
        made.graph.node.extend(_if(body, given, results, graph))
    else:
        made.graph.node.extend(_steps(body, given, results, graph, holder))
    onnx.checker.check_model(made)
    return made


def _if(
    body: onnx.GraphProto, given: list[str], results: list[str], graph: onnx.GraphProto
) -> list[onnx.NodeProto]:
    """An If whose condition holds for all data; its other branch returns zeros."""
    inside = {name: f"{name}_inside" for name in results}
    _rename(body, inside)
    body.output.extend(_unknown(inside[value.name], value) for value in graph.output)
    zeros = onnx.GraphProto(name="zeros")
    for value in graph.output:
        rank = len(value.type.tensor_type.shape.dim)
        name = f"{value.name}_zeros"
        zeros.initializer.append(numpy_helper.from_array(np.zeros([1] * rank, np.float32), f"{name}_value"))
        zeros.node.append(helper.make_node("Identity", [f"{name}_value"], [name]))
        zeros.output.append(_unknown(name, value))
    floats = helper.make_node("Cast", [given[0]], ["body_floats"], "body_floats", to=TensorProto.FLOAT)
    greatest = helper.make_node("ReduceMax", ["body_floats"], ["body_greatest"], "body_greatest", keepdims=0)
    test = helper.make_node("Greater", ["body_greatest", "body_least"], ["body_test"], "body_test")
    branches = {"then_branch": body, "else_branch": zeros}
    return [floats, greatest, test, helper.make_node("If", ["body_test"], results, HOLDER, **branches)]


def _steps(
    body: onnx.GraphProto, given: list[str], results: list[str], graph: onnx.GraphProto, holder: Holder
) -> list[onnx.NodeProto]:
    """A Loop or Scan over the samples of a batch."""
    inside = {name: f"{name}_inside" for name in [*given, *results]}
    _rename(body, inside)
    first, last = list[onnx.NodeProto](), list[onnx.NodeProto]()
    for name in given:
        one = f"{name}_sample"
        if holder == "Loop":
            first.append(helper.make_node("Gather", [name, "body_step"], [one], one, axis=0))
        first.append(helper.make_node("Unsqueeze", [one, "body_batch_axis"], [inside[name]], inside[name]))
    for value in graph.output:
        one = f"{value.name}_sample"
        last.append(helper.make_node("Squeeze", [inside[value.name], "body_batch_axis"], [one], one))
        body.output.append(_unknown(one, value))
    nodes = [*first, *body.node, *last]
    del body.node[:]
    body.node.extend(nodes)
    if holder == "Scan":
        body.input.extend(_unknown(f"{value.name}_sample", value) for value in graph.input)
        return [helper.make_node("Scan", given, results, HOLDER, body=body, num_scan_inputs=len(given))]
    body.node.append(helper.make_node("Identity", ["body_go"], ["body_still"], "body_still"))
    body.input.append(helper.make_tensor_value_info("body_step", TensorProto.INT64, []))
    body.input.append(helper.make_tensor_value_info("body_go", TensorProto.BOOL, []))
    outputs = [helper.make_tensor_value_info("body_still", TensorProto.BOOL, []), *body.output]
    del body.output[:]
    body.output.extend(outputs)
    sizes = helper.make_node("Shape", [given[0]], ["body_sizes"], "body_sizes")
    trips = helper.make_node("Gather", ["body_sizes", "body_first"], ["body_trips"], "body_trips")
    return [sizes, trips, helper.make_node("Loop", ["body_trips", "body_always"], results, HOLDER, body=body)]


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Rename tensors of a flat graph, in place."""
    for node in graph.node:
        for field in (node.input, node.output):
            field[:] = [names.get(name, name) for name in field]


def _unknown(name: str, like: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """A tensor of the element type of ``like`` and of unknown shape."""
    return helper.make_tensor_value_info(name, like.type.tensor_type.elem_type, None)
