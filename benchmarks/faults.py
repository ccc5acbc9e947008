"""Trouble to plant: wrong scales, weights with one scale for all channels, channels that stick out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import onnx

from pytest_int8acc.graph.layout import Layout, quantize_weight
from pytest_int8acc.graph.model import Editor, Model, put_constant
from pytest_int8acc.graph.network import Edge, Network

#: Per node type, the axis of the weight (input 1) along which outputs and inputs lie.
_OUT_AXIS = {"Conv": 0, "MatMul": 1, "Gemm": 0}
_IN_AXIS = {"Conv": 1, "MatMul": 0, "Gemm": 1}


def readers(layout: Layout, tensors: Iterable[str]) -> frozenset[str]:
    """Groups that quantize one of ``tensors``."""
    wanted = set(tensors)
    return frozenset(name for name, slots in layout.slots.items() if wanted & {s.tensor for s in slots})


def activation(layout: Layout, group: str) -> str:
    """The first activation that ``group`` quantizes."""
    return next(slot.tensor for slot in layout.slots[group] if not slot.constant)


def misscale(
    layout: Layout, scales: Mapping[str, float], factors: Mapping[str, float]
) -> tuple[dict[str, float], frozenset[str]]:
    """Multiply the scale of these groups' activations; returns the scales and all groups that read them."""
    wrong = dict(scales)
    tensors = {activation(layout, group): factor for group, factor in factors.items()}
    for tensor, factor in tensors.items():
        wrong[tensor] = scales[tensor] * factor
    return wrong, readers(layout, tensors)


def per_tensor_weights(network: Network, names: Iterable[str]) -> Network:
    """The network with one scale for the whole weight in these groups."""
    chosen = set(names)
    groups = [
        replace(group, edges=tuple(map(_one_scale, group.edges))) if group.name in chosen else group
        for group in network.groups
    ]
    return replace(network, groups=tuple(groups))


def _one_scale(edge: Edge) -> Edge:
    if edge.quantization.values is None:
        return edge
    return replace(edge, quantization=quantize_weight(edge.quantization.dequantize(), None))


def outlier_channel(
    model: Model, producer: str, consumers: Iterable[str], channel: int, factor: float
) -> Model:
    """Enlarge one channel between layers, and make its readers divide it again: the function stays.

    Only what is positively homogeneous (ReLU, pooling, moving of values) may lie between them. A producer
    may be a convolution, a matrix product with or without its bias in an Add, a LayerNormalization, or a Mul.
    """
    down = [(name, "in", channel, 1 / factor) for name in consumers]
    return stretched(model, [(producer, "out", channel, factor), *down])


def stretched(model: Model, changes: Iterable[tuple[str, str, int, float]]) -> Model:
    """Multiply what nodes make of a channel (``out``), or how they weigh one (``in``).

    ``changes``: node, side, channel, factor.
    """
    editor = model.edit()
    nodes = {node.name: node for node in editor.graph.node}
    for name, side, channel, factor in changes:
        node = nodes[name]
        if side == "in":
            _multiply(editor, node.input[1], in_axis(node), channel, factor)
            continue
        first = 0 if node.op_type == "Mul" else 1
        _multiply(editor, node.input[first], _OUT_AXIS.get(node.op_type, 0), channel, factor)
        for bias in _biases(editor, node) if node.op_type != "Mul" else ():
            _multiply(editor, bias, 0, channel, factor)
    return editor.done()


def in_axis(node: onnx.NodeProto) -> int:
    """The axis of a node's weight (input 1) along which its inputs lie; 0 of a depthwise convolution."""
    grouped = any(a.name == "group" and a.i > 1 for a in node.attribute)
    return 0 if grouped else _IN_AXIS[node.op_type]


def _biases(editor: Editor, node: onnx.NodeProto) -> list[str]:
    """The constants that a node, or the Add that reads a matrix product, adds."""
    if node.op_type != "MatMul":
        return list(node.input[2:])
    constants = {t.name for t in editor.graph.initializer}
    adds = [n for n in editor.graph.node if n.op_type == "Add" and node.output[0] in n.input]
    return [name for add in adds for name in add.input if name in constants]


def _multiply(editor: Editor, name: str, axis: int, index: int, factor: float) -> None:
    """Multiply one slice of the initializer ``name``, which must have one reader."""
    tensor = next(t for t in editor.graph.initializer if t.name == name)
    array = Model(editor.proto, editor.weights).constants()[name].copy()
    np.moveaxis(array, axis, 0)[index] *= np.float32(factor)
    put_constant(tensor, name, array, editor.weights)
