"""Multiply-accumulates of each group: what it costs to keep one out of INT8."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx

from pytest_int8acc.graph.groups import WEIGHTED
from pytest_int8acc.graph.index import attribute
from pytest_int8acc.graph.network import Network
from pytest_int8acc.graph.types import value_types

_Shape = tuple[int, ...]
_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
_COUNTED = WEIGHTED | _RECURRENT


def macs(network: Network, shapes: Mapping[str, _Shape]) -> dict[str, float]:
    """Group name to multiply-accumulates of one run.

    Counted are Conv, ConvTranspose, Gemm, MatMul, GRU, LSTM and RNN; whatever else a group holds counts 0.

    Args:
        network: Its float model and its groups.
        shapes: Of the tensors of ``sized_tensors``, as they run; those of constants are known.

    Raises:
        KeyError: A shape is missing.
    """
    known = {**shapes, **{name: array.shape for name, array in network.model.constants().items()}}
    nodes = network.model.index.nodes
    return {
        group.name: float(sum(_of_node(nodes[name], known) for name in group.nodes))
        for group in network.groups
    }


def sized_tensors(network: Network) -> list[str]:
    """Tensors whose shapes ``macs`` wants, constants aside, and those of ``leading_outputs``."""
    index = network.model.index
    nodes = [index.nodes[name] for group in network.groups for name in group.nodes]
    counted = [name for node in nodes if node.op_type in _COUNTED for name in _factors(node)]
    wanted = dict.fromkeys([*counted, *leading_outputs(network).values()])
    return [name for name in wanted if name not in index.constants]


def leading_outputs(network: Network) -> dict[str, str]:
    """Group name to the first output of its leading node, where that is a tensor."""
    types, nodes = value_types(network.model), network.model.index.nodes
    first = {group.name: nodes[group.name].output[0] for group in network.groups}
    return {group: tensor for group, tensor in first.items() if tensor in types}


def _factors(node: onnx.NodeProto) -> tuple[str, str, str]:
    """The tensors whose shapes tell what ``node`` costs."""
    return node.input[0], node.input[1], node.input[2] if node.op_type in _RECURRENT else node.output[0]


def _of_node(node: onnx.NodeProto, shapes: Mapping[str, _Shape]) -> int:
    if node.op_type not in _COUNTED:
        return 0
    first, second, third = (shapes[name] for name in _factors(node))
    if node.op_type == "Conv":
        return math.prod(third) * math.prod(second[1:])
    if node.op_type == "ConvTranspose":
        return math.prod(first) * math.prod(second[1:])
    if node.op_type == "MatMul":
        return math.prod(third) * first[-1]
    if node.op_type == "Gemm":
        return math.prod(third) * first[0 if attribute(node, "transA", 0) else 1]
    # Each step of each sample meets all weights of input and state, of all gates and directions.
    return math.prod(first[:2]) * (math.prod(second) + math.prod(third))
