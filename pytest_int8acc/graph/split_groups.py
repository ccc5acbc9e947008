"""Some groups taken apart: each tensor that one quantizes can leave INT8, or take other scales, alone.

    x → Identity (as given) → Identity (other scales) → reader

Each Identity is a group of its own. With the first in INT8 and the second out of it, the network computes
what it did; with both out, the reader sees the tensor as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper

from pytest_int8acc.graph.flow import channel_axis, mixing
from pytest_int8acc.graph.groups import WEIGHTED
from pytest_int8acc.graph.model import Editor
from pytest_int8acc.graph.network import Edge, Group, Network, Quantization, by_node
from pytest_int8acc.graph.parts import made_channels


@dataclass(frozen=True)
class Piece:
    """An activation that one group quantizes, or all of its constants."""

    tensors: tuple[str, ...]
    """The activation, or the constants."""
    given: str
    """The group that quantizes as before."""
    other: str = ""
    """The group that quantizes an activation otherwise; empty for constants."""
    scaled: str = ""
    """What a plan gives scales to for ``other``."""
    axis: int | None = None
    """Of those scales, the channels of the activation; None: one for all."""
    channels: int = 0
    """Along that axis."""


def split_groups(
    network: Network, groups: Collection[str], shapes: Mapping[str, Sequence[int]]
) -> tuple[Network, Mapping[str, tuple[Piece, ...]]]:
    """The network with some groups taken apart, and their pieces by group; those in bodies stay whole.

    Args:
        network: In FP32.
        groups: Names of those to take apart; the others stay whole.
        shapes: Of the activations that they quantize, in a run.
    """
    editor = network.model.edit()
    mixes = mixing(network.model)
    splittable = [group for group in network.groups if group.name in groups and not group.body_edges]
    axes = _axes(network, splittable, mixes)
    fixed = _fixed_channels(network, splittable, axes)
    splits = {group.name: _SplitGroup(group, editor, axes) for group in splittable}
    edges = {name: by_node(parts.activations) for name, parts in splits.items()}
    owner = {node: name for name, by in edges.items() for node in by}
    nodes: list[onnx.NodeProto] = []
    for node in editor.graph.node:
        if node.name in owner:
            parts = splits[owner[node.name]]
            for edge in edges[owner[node.name]][node.name]:
                shape = shapes.get(edge.tensor, ()) if (edge.node, edge.index) in fixed else ()
                nodes += parts.add(node, edge, shape)
        nodes.append(node)
    editor.set_nodes(nodes)
    left = [
        made
        for group in network.groups
        for made in (splits[group.name].groups if group.name in splits else (group,))
    ]
    pieces = {name: tuple(parts.pieces) for name, parts in splits.items()}
    return replace(network, model=editor.done(), groups=tuple(left)), pieces


class _SplitGroup:
    """One group under way."""

    def __init__(self, group: Group, editor: Editor, axes: Mapping[tuple[str, int], int]) -> None:
        self.editor, self.axes = editor, axes
        self.activations = [e for e in group.edges if e.quantization.values is None]
        constants = tuple(e for e in group.edges if e.quantization.values is not None)
        self.groups: list[Group] = []
        self.pieces: list[Piece] = []
        self._made: dict[tuple[str, int], str] = {}
        if constants:
            self.groups.append(replace(group, edges=constants))
            tensors = dict.fromkeys(edge.tensor for edge in constants)
            self.pieces.append(Piece(tuple(tensors), group.name))

    def add(self, node: onnx.NodeProto, edge: Edge, shape: Sequence[int]) -> list[onnx.NodeProto]:
        """Have ``node`` read an activation through the nodes made here, new where no edge was alike."""
        key, made = (edge.tensor, id(edge.quantization)), list[onnx.NodeProto]()
        if key not in self._made:
            axis = self.axes.get((edge.node, edge.index)) if shape else None
            channels = 0 if axis is None else shape[axis]
            first = self._identity(edge.tensor, edge.quantization)
            second = self._identity(first.output[0], _even(channels, axis, edge.quantization))
            found = Piece((edge.tensor,), first.name, second.name, first.output[0], axis, channels)
            self.pieces.append(found)
            self._made[key] = second.output[0]
            made = [first, second]
        node.input[edge.index] = self._made[key]
        return made

    def _identity(self, tensor: str, quantization: Quantization) -> onnx.NodeProto:
        name = self.editor.unique(f"{tensor}/apart")
        node = helper.make_node("Identity", [tensor], [self.editor.unique(f"{name}/out")], name)
        self.groups.append(Group(name, "Identity", (name,), (Edge(name, 0, tensor, quantization),)))
        return node


def _axes(network: Network, groups: Sequence[Group], mixes: Collection[str]) -> dict[tuple[str, int], int]:
    """Node and input of each activation to the axis of its channels, as ``channel_axes`` has it."""
    model, found = network.model, dict[tuple[str, int], int]()
    values, edges = model.values(), [edge for group in groups for edge in group.edges]
    made = made_channels(model, [edge.tensor for edge in edges])
    for edge in edges:
        node, info = model.index.nodes[edge.node], values.get(edge.tensor)
        rank = len(info.shape) if info is not None and info.shape is not None else 0
        axis = None if node.op_type in WEIGHTED else made.get(edge.tensor)
        if axis is None:
            axis = channel_axis(node.op_type, edge.index, rank, node.name in mixes)
        if axis is not None:
            found[edge.node, edge.index] = axis
    return found


def _fixed_channels(
    network: Network, groups: Sequence[Group], axes: Mapping[tuple[str, int], int]
) -> set[tuple[str, int]]:
    """Node and input of each activation whose channels are as many in every run.

    Where the inputs' sizes are fixed but for the batch, those of activations are taken to be.
    """
    model, found = network.model, set[tuple[str, int]]()
    values, index = model.values(), model.index
    sized = all(info.shape and all(isinstance(n, int) for n in info.shape[1:]) for info in model.inputs)
    for edge in (edge for group in groups for edge in group.edges):
        node, info = index.nodes[edge.node], values.get(edge.tensor)
        shape = info.shape if info is not None and info.shape is not None else ()
        axis = axes.get((edge.node, edge.index)) if shape else None
        others = set(node.input[:2]) - {edge.tensor}
        weighted = node.op_type in WEIGHTED and bool(others & index.constants)
        if sized or weighted or (axis is not None and isinstance(shape[axis], int)):
            found.add((edge.node, edge.index))
    return found


def _even(channels: int, axis: int | None, given: Quantization) -> Quantization:
    """A place for other scales than those given: symmetric, per channel where there is an axis."""
    scale = np.ones(() if axis is None else channels, given.scale.dtype)
    return Quantization(scale, given.format.symmetric.zeros(scale), axis)
