"""Counts multiply-accumulates (MACs) of nodes and groups of nodes in one run of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx

from pytest_int8acc.graph.index import all_graphs, attribute, subgraphs
from pytest_int8acc.graph.layout import WEIGHTED, moves_values
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network
from pytest_int8acc.graph.types import value_types
from pytest_int8acc.tensors import Array

_Shape = tuple[int, ...]
_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
#: Operators whose multiply-accumulates are counted. All other operators have a count of 0.
_COUNTED = WEIGHTED | _RECURRENT


def macs(network: Network, shapes: Mapping[str, _Shape], rows: int = 1) -> dict[str, float]:
    """The multiply-accumulates of each group's nodes in one run, as :func:`work` counts them.

    Args:
        network: The network. The nodes of its float model are counted.
        shapes: Tensor to its shape in the run. It should have all tensors that ``sized_tensors`` returns.
        rows: The number of samples in the run.
    """
    counts = work(network.model, shapes, rows)
    return {group.name: float(sum(counts[name] for name in group.nodes)) for group in network.groups}


def sized_tensors(model: Model) -> list[str]:
    """Tensors of the main graph, except constants, whose shapes ``work`` needs for an exact count."""
    counted = (node for node in model.graph.node if node.op_type in _COUNTED)
    needed = dict.fromkeys(name for node in counted for name in _factors(node))
    return [name for name in needed if name not in model.index.constants]


def work(model: Model, shapes: Mapping[str, _Shape], rows: int = 1) -> dict[str, float]:
    """The multiply-accumulates of each node in one run; nodes inside Loop, Scan and If are included.

    Conv, ConvTranspose, Gemm, MatMul, GRU, LSTM and RNN are counted. All other operators have a count of 0. A
    Loop of unknown length is taken for one step. The count of an If is that of its most expensive branch.
    This count is divided among the nodes of all branches. If shapes of a node are not known, its count is one
    per weight and sample.

    Args:
        model: A float model in normal form, so that names of nodes are unique in the whole model.
        shapes: Tensor to its shape in the run, as far as shapes are known.
        rows: The number of samples in the run.
    """
    constants = model.constants()
    known = {**shapes, **{name: array.shape for name, array in constants.items()}}
    return _of_body(model.graph, known, constants, rows)


def inferred_shapes(model: Model, inputs: Mapping[str, Sequence[int]]) -> dict[str, _Shape]:
    """The shapes of tensors that ONNX's shape inference finds from the shapes of the model's inputs.

    Tensors inside Loop, Scan and If are included. Tensors with a size that is not known are left out.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for value in proto.graph.input:
        dims = value.type.tensor_type.shape.dim
        for dim, size in zip(dims, inputs.get(value.name, ()), strict=False):
            dim.dim_value = size
    found = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    values = [v for graph in all_graphs(found) for v in (*graph.value_info, *graph.input, *graph.output)]
    sized = ((v.name, v.type.tensor_type.shape.dim) for v in values if v.type.tensor_type.HasField("shape"))
    return {name: tuple(d.dim_value for d in dims) for name, dims in sized if all(d.dim_value for d in dims)}


def _of_bodies(
    node: onnx.NodeProto, shapes: Mapping[str, _Shape], constants: Mapping[str, Array], rows: int
) -> dict[str, float]:
    """The multiply-accumulates of each node inside ``node``, such as an If, in one run of ``rows`` samples.

    Only one branch of an If runs. So the count of the most expensive branch is divided among the nodes of all
    branches.
    """
    each = [_of_body(graph, shapes, constants, rows) for graph in subgraphs(node)]
    sums = [sum(found.values()) for found in each]
    part = max(sums) / sum(sums) if any(sums) else 0.0
    times = part * _steps(node, shapes, constants) if part else 0.0
    return {name: times * count for found in each for name, count in found.items()}


def _of_body(
    body: onnx.GraphProto, shapes: Mapping[str, _Shape], constants: Mapping[str, Array], rows: int
) -> dict[str, float]:
    """The multiply-accumulates of each node in ``body``, at any depth, in one run of ``rows`` samples."""
    own = {**shapes, **{tensor.name: tuple(tensor.dims) for tensor in body.initializer}}
    found: dict[str, float] = {}
    for node in body.node:
        found[node.name] = _of_node(node, own, rows)
        found |= _of_bodies(node, own, constants, rows)
    return found


def _steps(node: onnx.NodeProto, shapes: Mapping[str, _Shape], constants: Mapping[str, Array]) -> int:
    """How often the graph inside a Loop or Scan runs; 1 if the number is not known, and for an If."""
    if node.op_type == "Loop" and node.input[0] in constants:
        return max(int(constants[node.input[0]].item()), 0)
    if node.op_type == "Scan":
        scanned = shapes.get(node.input[-1], ())
        axes = attribute(node, "scan_input_axes", [0])
        return int(scanned[axes[-1]]) if scanned else 1
    return 1


def leading_outputs(network: Network) -> dict[str, str]:
    """The first output of the main node, such as a convolution, of each group, by group name.

    Groups inside Loop, Scan and If are left out.
    """
    types, nodes = value_types(network.model), network.model.index.nodes
    first = {group.name: nodes[group.name].output[0] for group in network.groups if group.name in nodes}
    return {group: tensor for group, tensor in first.items() if tensor in types}


def _factors(node: onnx.NodeProto) -> tuple[str, str, str]:
    """The names of the three tensors whose shapes determine the multiply-accumulates of ``node``."""
    return node.input[0], node.input[1], node.input[2] if node.op_type in _RECURRENT else node.output[0]


def _of_node(node: onnx.NodeProto, shapes: Mapping[str, _Shape], rows: int) -> float:
    """The multiply-accumulates of ``node`` for ``rows`` samples.

    If a shape is not known, the result is one per weight and sample.
    """
    if node.op_type not in _COUNTED:
        return 0.0
    if not all(name in shapes for name in _factors(node)):
        return float(rows * math.prod(shapes.get(_factors(node)[1], ())))
    first, second, third = (shapes[name] for name in _factors(node))
    if node.op_type == "Conv":
        return math.prod(third) * math.prod(second[1:])
    if node.op_type == "ConvTranspose":
        return math.prod(first) * math.prod(second[1:])
    if node.op_type == "MatMul":
        return math.prod(third) * first[-1]
    if node.op_type == "Gemm":
        return math.prod(third) * first[0 if attribute(node, "transA", 0) else 1]
    # A recurrent node multiplies all its weights, for the input and the state, in each step of each sample.
    return math.prod(first[:2]) * (math.prod(second) + math.prod(third))


def low_products(network: Network) -> frozenset[str]:
    """Names of nodes that should compute in the network's low format, also inside If, Loop and Scan.

    In INT8 and FP8, these are the Conv, ConvTranspose, Gemm and MatMul nodes whose two operands are both
    dequantized, because no kernel multiplies INT8 codes with floats. Nodes that only move values may lie
    between Q/DQ and operand. In FP16 and BF16, these are all nodes of the groups.
    """
    if not network.low.takes_scales:
        return frozenset(name for group in network.groups for name in group.nodes)
    known = {(edge.node, edge.index): True for edge in network.edges}
    index = network.model.everywhere
    return frozenset(
        node.name
        for node in index.nodes.values()
        if node.op_type in WEIGHTED
        and all(_is_dequantized(node, place, index.producer, known) for place in (0, 1))
    )


def _is_dequantized(
    node: onnx.NodeProto,
    place: int,
    producer: Mapping[str, onnx.NodeProto],
    known: dict[tuple[str, int], bool],
) -> bool:
    """Whether the tensor at input position ``place`` of ``node`` is dequantized.

    Nodes that only move values may lie between the DequantizeLinear and ``node``. ``producer`` maps each
    tensor to the node that computes it. Each result is added to ``known``, which has the quantized inputs, by
    node name and input position, from the start. This is not a nested function, because a recursive nested
    function is a reference cycle, which would keep the model in memory.
    """
    if (node.name, place) in known:
        return known[node.name, place]
    maker = producer.get(node.input[place])
    found = False
    if maker is not None and maker.op_type == "Concat":
        found = all(_is_dequantized(maker, i, producer, known) for i in range(len(maker.input)))
    elif maker is not None and moves_values(maker):
        found = _is_dequantized(maker, 0, producer, known)
    known[node.name, place] = found
    return found
