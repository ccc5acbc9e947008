"""Multiply-accumulates of each group: what it costs to keep one out of INT8."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx

from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network

_Shape = tuple[int, ...]


def macs(network: Network, shapes: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Group name to multiply-accumulates of one run.

    Counted are Conv, ConvTranspose, Gemm and MatMul; whatever else a group holds counts 0. Where ONNX's
    shape inference cannot tell a shape, a node counts the elements of its constants: those of one position.

    Args:
        network: Its float model and its groups.
        shapes: Shape of each model input, as it runs.
    """
    known = known_shapes(network.model, shapes)
    constants = {name: tuple(array.shape) for name, array in network.model.constants().items()}
    nodes = {node.name: node for node in network.model.graph.node}
    return {
        group.name: float(sum(_of_node(nodes[name], known | constants, constants) for name in group.nodes))
        for group in network.groups
    }


def known_shapes(model: Model, inputs: Mapping[str, Sequence[int]]) -> dict[str, _Shape]:
    """Every shape that can be told once those of the inputs are."""
    proto = model.edit().proto
    for value in proto.graph.input:
        shape = value.type.tensor_type.shape
        del shape.dim[:]
        for size in inputs[value.name]:
            shape.dim.add().dim_value = size
    for value in proto.graph.output:  # their symbols may say less than the inputs
        value.type.tensor_type.ClearField("shape")
    graph = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    found = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims):
            found[value.name] = tuple(d.dim_value for d in dims)
    return found


def _of_node(node: onnx.NodeProto, shapes: Mapping[str, _Shape], constants: Mapping[str, _Shape]) -> int:
    if node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        return 0
    first, second, result = (shapes.get(name) for name in (*node.input[:2], node.output[0]))
    if node.op_type == "Conv" and second and result:
        return math.prod(result) * math.prod(second[1:])
    if node.op_type == "ConvTranspose" and first and second:
        return math.prod(first) * math.prod(second[1:])
    if node.op_type == "Gemm" and first and result:
        transposed = any(a.name == "transA" and a.i for a in node.attribute)
        return math.prod(result) * first[0 if transposed else 1]
    if node.op_type == "MatMul" and first and result is not None:
        return math.prod(result) * first[-1]
    return sum(math.prod(constants[name]) for name in node.input[:2] if name in constants)
