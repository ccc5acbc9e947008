"""Which nodes are asked to compute in a low format."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping

import onnx

from pytest_int8acc.graph.formats import FP16
from pytest_int8acc.graph.groups import WEIGHTED, moves_values
from pytest_int8acc.graph.index import Index, bodies
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network
from pytest_int8acc.graph.qdq import is_qdq
from pytest_int8acc.graph.to_fp16 import narrow_nodes


def low_products(network: Network) -> frozenset[str]:
    """Nodes that are asked to compute in the network's low format, those in bodies included.

    In INT8 and FP8 these are Conv, ConvTranspose, Gemm and MatMul both of whose operands are dequantized,
    directly or before nodes that only move values: with one operand in floating point no kernel multiplies
    codes. In FP16 and BF16 these are all nodes of the groups.
    """
    if not network.low.takes_scales:
        return frozenset(name for group in network.groups for name in group.nodes)
    known = {(e.node, e.index): True for group in network.groups for e in (*group.edges, *group.body_edges)}
    graph, producer = network.model.graph, network.model.index.producer
    found = _products(graph, producer, known)
    for body in bodies(graph):
        around = (Index(each).producer for each in reversed(body.graphs))
        found += _products(body.graph, ChainMap(*around, producer), known)
    return frozenset(found)


def _products(
    graph: onnx.GraphProto, producer: Mapping[str, onnx.NodeProto], known: dict[tuple[str, int], bool]
) -> list[str]:
    """Weighted nodes of one graph whose operands are both dequantized; ``producer``: of what it can read."""
    weighted = (node for node in graph.node if node.op_type in WEIGHTED)
    return [n.name for n in weighted if all(_is_dequantized(n, place, producer, known) for place in (0, 1))]


def _is_dequantized(
    node: onnx.NodeProto,
    place: int,
    producer: Mapping[str, onnx.NodeProto],
    known: dict[tuple[str, int], bool],
) -> bool:
    """Whether an input is dequantized, directly or before nodes that only move values; kept in ``known``.

    A function of the module, since a recursive one inside another would keep the model until it is collected.
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


def half_nodes(model: Model) -> tuple[str, ...]:
    """Nodes of an FP32 model that a builder is to hold in FP16 where the model is to run in FP16.

    Where the model has Q/DQ, these are the products that read nothing dequantized: a precision set on what
    TensorRT fuses with Q/DQ would break up its INT8 kernels.
    """
    narrow, _ = narrow_nodes(model, FP16)
    nodes = [node for node in model.graph.node if node.name in narrow]
    if not is_qdq(model):
        return tuple(node.name for node in nodes)
    dequantized = {node.output[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    return tuple(
        node.name for node in nodes if node.op_type in WEIGHTED and dequantized.isdisjoint(node.input)
    )
