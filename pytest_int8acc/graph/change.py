"""A network with other scales: what is mended while all of it stays in INT8."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.formats import INT8
from pytest_int8acc.graph.groups import WEIGHTED, channel_axis
from pytest_int8acc.graph.network import Edge, Network, Quantization
from pytest_int8acc.graph.quantize import quantize_weight


@dataclass(frozen=True)
class Change:
    """Other scales for a network."""

    scales: Mapping[str, float] = field(default_factory=dict)
    """Activation tensor to its new scale: symmetric INT8, per tensor, for all its readers."""
    weights: tuple[str, ...] = ()
    """Constants whose scales are taken from their values anew, per channel where TensorRT takes that."""


def changed(network: Network, change: Change) -> Network:
    """The network with other scales; groups, edges and the model stay.

    Raises:
        ModelError: A tensor of ``change`` is quantized nowhere.
    """
    known = {edge.tensor for group in network.groups for edge in group.edges}
    for name in (*change.scales, *change.weights):
        if name not in known:
            raise ModelError(f"{network.model.name}: '{name}' is no quantized tensor")
    nodes = {node.name: node for node in network.model.graph.node}
    constants = network.model.constants()
    made: dict[tuple[str, int | None, str], Quantization] = {}

    def mended(edge: Edge) -> Edge:
        old = edge.quantization
        constant = old.values is not None
        if edge.tensor not in (change.weights if constant else change.scales):
            return edge
        axis = weight_axis(nodes[edge.node], edge, constants[edge.tensor].ndim) if constant else None
        key = (edge.tensor, axis, str(old.scale.dtype))
        if key not in made:  # shared arrays become one initializer
            if constant:
                fresh = quantize_weight(constants[edge.tensor], axis)
            else:
                scale = np.array(change.scales[edge.tensor])
                fresh = Quantization(scale, INT8.zeros(scale))
            made[key] = replace(fresh, scale=fresh.scale.astype(old.scale.dtype))
        return replace(edge, quantization=made[key])

    return with_edges(network, mended)


def weight_axis(node: onnx.NodeProto, edge: Edge, rank: int) -> int | None:
    """The axis of a constant's scales: as its reader wants it, or the present one where that moves values."""
    if node.op_type in WEIGHTED and edge.index < 2:
        return channel_axis(node, edge.index, rank)
    return edge.quantization.axis


def with_edges(network: Network, change: Callable[[Edge], Edge]) -> Network:
    """The network with each of its edges changed."""
    groups = (replace(group, edges=tuple(map(change, group.edges))) for group in network.groups)
    return replace(network, groups=tuple(groups))
