"""Trouble to plant: wrong scales, weights with one scale for all channels, channels that stick out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from pytest_int8acc.graph.groups import Layout
from pytest_int8acc.graph.model import Editor, Model, put_constant
from pytest_int8acc.graph.network import Edge, Network
from pytest_int8acc.graph.quantize import quantize_weight

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
    may be a convolution, a matrix product with its bias in an Add, or a LayerNormalization.
    """
    editor = model.edit()
    nodes = {node.name: node for node in editor.graph.node}
    source = nodes[producer]
    if source.op_type == "LayerNormalization":
        for name in source.input[1:]:
            _multiply(editor, name, 0, channel, factor)
    else:
        _multiply(editor, source.input[1], _OUT_AXIS[source.op_type], channel, factor)
        _multiply(editor, _bias(editor, source.name), 0, channel, factor)
    for consumer in consumers:
        node = nodes[consumer]
        _multiply(editor, node.input[1], _IN_AXIS[node.op_type], channel, 1 / factor)
    return editor.done()


def _bias(editor: Editor, name: str) -> str:
    node = next(n for n in editor.graph.node if n.name == name)
    if node.op_type != "MatMul":
        return str(node.input[2])
    add = next(n for n in editor.graph.node if n.op_type == "Add" and node.output[0] in n.input)
    return next(str(i) for i in add.input if i != node.output[0])


def _multiply(editor: Editor, name: str, axis: int, index: int, factor: float) -> None:
    """Multiply one slice of the initializer ``name``, which must have one reader."""
    tensor = next(t for t in editor.graph.initializer if t.name == name)
    array = Model(editor.proto, editor.weights).constants()[name].copy()
    np.moveaxis(array, axis, 0)[index] *= np.float32(factor)
    put_constant(tensor, name, array, editor.weights)
