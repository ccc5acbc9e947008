"""What a group costs: multiply-accumulates, from shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx
import onnx.shape_inference

from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network

Shape = tuple[int, ...]


def macs(network: Network, inputs: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Multiply-accumulates of each group for one run.

    Weighted nodes count by their definition; other nodes, and those whose shapes cannot be inferred, as 0.

    Args:
        network: Groups of a model.
        inputs: The run's input shapes, all dimensions known.
    """
    shapes = _shapes(network.model, inputs)
    nodes = {node.name: node for node in network.model.graph.node}
    return {
        group.name: float(sum(_macs_of(nodes[name], shapes) for name in group.nodes))
        for group in network.groups
    }


def _shapes(model: Model, inputs: Mapping[str, Sequence[int]]) -> dict[str, Shape]:
    """Shapes of all tensors that follow from those of the inputs."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for value in proto.graph.input:
        dims = value.type.tensor_type.shape.dim
        for dim, size in zip(dims, inputs.get(value.name, ()), strict=False):
            dim.dim_value = size
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    graph = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    found: dict[str, Shape] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims):
            found[value.name] = tuple(d.dim_value for d in dims)
    return found


def _macs_of(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> int:
    if node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        return 0
    known = [shapes.get(name) for name in (*node.input[:2], node.output[0])]
    if any(shape is None for shape in known):
        return 0
    a, b, out = (shape or () for shape in known)
    if node.op_type == "Conv":  # each output element sums over one group's channels and the kernel
        return math.prod(out) * math.prod(b[1:])
    if node.op_type == "ConvTranspose":  # each input element reaches one group's channels and the kernel
        return math.prod(a) * math.prod(b[1:])
    transposed = any(x.name == "transA" and x.i for x in node.attribute)
    return math.prod(out) * (a[0] if transposed else a[-1])
