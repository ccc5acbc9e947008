"""Channels of an activation evened out against what reads them: weights, or another activation.

Migration divides each channel of an activation by a factor and multiplies the weights that read it by the
same one, so the float function stays (SmoothQuant, arXiv:2211.10438, section 4; between two convolutions it
is cross-layer equalization, arXiv:1906.04721, section 4.1). In the product of a query and a key the key is
multiplied. The division is folded into what makes the activation, see ``channels``. Where nothing can take
it, or others read the activation too, a Mul is inserted before the readers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.channels import Channels, Way, divided
from pytest_int8acc.graph.formats import INT32, along
from pytest_int8acc.graph.index import attribute
from pytest_int8acc.graph.model import Editor
from pytest_int8acc.graph.network import Edge, Network, Quantization, with_edges
from pytest_int8acc.graph.quantize import quantize_weight
from pytest_int8acc.tensors import Array


@dataclass(frozen=True)
class Site:
    """An activation whose channels can be evened out against what reads them."""

    tensor: str
    axis: int
    """Where its channels lie: 1 for convolutions, -1 for products."""
    rank: int
    """Of the activation for convolutions; of no meaning for products."""
    channels: int
    readers: tuple[str, ...]
    """Nodes that read it at input 0, and constant weights at input 1, quantized or not; one of a product."""
    partner: str = ""
    """Of a product, the activation at input 1, summed over along the second to last axis; else empty."""
    heads: int = 1
    """Of a product, how many blocks the channels are made of, along the third to last axis."""
    seen: tuple[str, ...] = ()
    """Where its channels, and its partner's, lie along the last axis, or as its reader has them."""

    def shape(self, side: int) -> tuple[int, ...]:
        """Of its factors, or its partner's (1), as they broadcast with the activation."""
        if not self.partner:
            return (-1, *[1] * (self.rank - 2)) if self.axis == 1 else (-1,)
        blocks = (self.heads,) if self.heads > 1 else ()
        return (*blocks, -1, 1) if side else (*blocks, 1, -1) if blocks else (-1,)


@dataclass(frozen=True, eq=False)
class Migrated:
    """A network after migration; the tensors of ``touched`` hold other values, so their scales are stale."""

    network: Network
    touched: tuple[str, ...]
    """Activations that are quantized and whose values changed."""
    folded: tuple[str, ...]
    """Nodes that took factors."""
    inserted: tuple[str, ...]
    """Mul nodes that had to be inserted."""


def sites(network: Network) -> dict[str, Site]:
    """Activation to its site, in topological order of the first reader."""
    graph = _Graph(network)
    found: dict[str, Site] = {}
    for edge in network.edges:
        if edge.tensor not in found and edge.index == 0 and edge.quantization.values is None:
            site = graph.site(edge.tensor)
            if site is not None:
                found[edge.tensor] = site
    return found


def find_site(network: Network, tensor: str) -> Site | None:
    """The site of one tensor; None where its channels cannot be evened out."""
    return _Graph(network).site(tensor)


def weight_maxima(network: Network, site: Site) -> Array:
    """Greatest magnitude of the weights that read each channel, float32 [channels]; of no partner."""
    constants, nodes = network.model.constants(), network.model.index.nodes
    found = np.zeros(site.channels, np.float32)
    for reader in site.readers:
        node = nodes[reader]
        split = _by_input(constants[node.input[1]], node, site.channels)
        others = tuple(i for i in range(split.ndim) if i not in (0, 2))
        found = np.maximum(found, np.abs(split).max(axis=others).reshape(-1))
    return found


def migrate(network: Network, factors: Mapping[str, Array]) -> Migrated:
    """Divide channels of activations by factors and multiply what reads them: SmoothQuant.

    The float model's function stays, up to float rounding. Weights that change are quantized anew, along the
    axis that they have; the scales of ``touched`` must be found anew.

    Args:
        network: Any.
        factors: Activation with a site to its factors, above 0, float32 [channels].

    Raises:
        ModelError: There is no site for a tensor, or its factors are not one number above 0 per channel.
    """
    touched: dict[str, None] = {}
    folded: dict[str, None] = {}
    inserted: list[str] = []
    for tensor, factor in factors.items():
        factor, graph = np.asarray(factor, np.float32), _Graph(network)
        site = graph.site(tensor)
        if site is None:
            raise ModelError(
                f"{network.model.name}: nothing reads '{tensor}' that its channels can be moved to"
            )
        if factor.shape != (site.channels,) or not (np.isfinite(factor) & (factor > 0)).all():
            expected = f"{site.channels} factors greater than 0"
            raise ModelError(f"{network.model.name}: moving '{tensor}' takes {expected}")
        edit = _Edit(network)
        edit.scale_weights(site, factor)
        sides = [(0, factor), (1, 1 / factor)] if site.partner else [(0, factor)]
        for side, by in sides:
            ways = graph.ways(site, side)
            if ways is None:
                name, result = edit.insert_mul(site, side, 1 / by)
                inserted.append(name)
                touched[result] = None
            else:
                makers = [graph.index.producer[way.tensor].name for way in ways]
                for maker, way in zip(makers, ways, strict=True):
                    if way is ways[-1] or edit.nodes[maker].op_type == "Add":
                        edit.divide(maker, way, by)
                touched.update(dict.fromkeys(way.tensor for way in ways))
                folded[makers[-1]] = None
        network = edit.done()
    quantized = {edge.tensor for edge in network.edges}
    return Migrated(network, tuple(t for t in touched if t in quantized), tuple(folded), tuple(inserted))


class _Graph:
    """A network's graph, to be asked what can be evened out against what."""

    def __init__(self, network: Network) -> None:
        self.channels = Channels(network.model)
        self.constants, self.index = self.channels.constants, network.model.index
        self.nodes = self.index.nodes

    def site(self, tensor: str) -> Site | None:
        """The site of ``tensor``; None where no weights read it, or they do not agree on its channels."""
        reading = self.index.readers(tensor)
        readers = [node.name for node, position in reading if position == 0 and self._weighs(node.name)]
        if not readers:
            return self._product(tensor)
        first = self.nodes[readers[0]]
        axis = 1 if first.op_type == "Conv" else -1
        channels = self._channels(first)
        alike = all(
            (self.nodes[r].op_type == "Conv") == (axis == 1) and self._channels(self.nodes[r]) == channels
            for r in readers
        )
        if not alike:
            return None
        rank = self.constants[first.input[1]].ndim
        return Site(tensor, axis, rank, channels, tuple(readers), seen=(tensor,))

    def _product(self, tensor: str) -> Site | None:
        """The site of a query whose channels are summed over with those of a key."""
        reading = self.index.readers(tensor)
        products = [node for node, position in reading if node.op_type == "MatMul" and position == 0]
        if len(products) != 1:
            return None
        node = products[0]
        query, key = self.channels.shape(tensor), self.channels.shape(node.input[1])
        if not query or len(key) < 2 or query[-1] is None or query[-1] != key[-2]:
            return None
        found = Site(tensor, -1, 0, query[-1], (node.name,), partner=node.input[1])
        if len(query) > 2 < len(key) and query[-3] is not None and query[-3] == key[-3]:
            each = replace(found, channels=query[-3] * query[-1], heads=query[-3])
            seen = [_in_a_row(self.ways(each, side) or (), each.channels) for side in (0, 1)]
            if all(seen):
                return replace(each, seen=tuple(seen))
        return replace(found, seen=(tensor, node.input[1]))

    def ways(self, site: Site, side: int) -> list[Way] | None:
        """From the site's tensor, or its partner (1), up to the one whose node takes the factors; or None."""
        which = np.arange(site.channels)
        if site.partner:
            start = Way((site.tensor, site.partner)[side], which.reshape(site.shape(side)), front=False)
            return self.channels.ways(start.tensor, [(site.readers[0], side)], [start])
        flat = all(self.nodes[reader].op_type == "Gemm" for reader in site.readers)
        starts = [
            Way(site.tensor, which, front) for front in (False, True) if flat or front == (site.axis == 1)
        ]
        return self.channels.ways(site.tensor, [(name, 0) for name in site.readers], starts)

    def _weighs(self, name: str) -> bool:
        node = self.nodes[name]
        if node.op_type not in ("Conv", "Gemm", "MatMul") or node.input[1] not in self.constants:
            return False
        if node.input[1] == node.input[0] or attribute(node, "transA", 0):
            return False
        return node.op_type == "Conv" or self.constants[node.input[1]].ndim == 2

    def _channels(self, node: onnx.NodeProto) -> int:
        weight = self.constants[node.input[1]]
        if node.op_type == "Conv":
            return int(weight.shape[1] * attribute(node, "group", 1))
        return int(weight.shape[1 if attribute(node, "transB", 0) else 0])


def _in_a_row(ways: Sequence[Way], channels: int) -> str:
    """The first tensor on the way up that has just the channels along its last axis; empty where none has."""
    shape = (channels,)
    return next((way.tensor for way in ways if way.which.shape == shape and not way.front), "")


class _Edit:
    """One edit of a network: constants replaced, a Mul inserted; edges follow."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.editor: Editor = network.model.edit()
        self.nodes = {node.name: node for node in self.editor.graph.node}
        self.constants = network.model.constants()
        self.arrays: dict[tuple[str, int], Array] = {}
        self.moved: dict[tuple[str, int], str] = {}

    def scale_weights(self, site: Site, factors: Array) -> None:
        """Multiply by ``factors`` the weights that read the site, where they are weights."""
        for reader in () if site.partner else site.readers:
            node = self.nodes[reader]
            weight = self.constants[node.input[1]]
            self.replace_constant(reader, 1, weight * by_weight(factors, weight, node))

    def replace_constant(self, node: str, index: int, array: Array) -> None:
        """Let one node read ``array`` in place of its constant, which others may go on reading."""
        old = self.nodes[node].input[index]
        array = np.ascontiguousarray(array, self.constants[old].dtype)
        name = self.editor.add_constant(f"{old}_migrated", array)
        self.nodes[node].input[index] = name
        self.constants[name] = self.arrays[node, index] = array
        self.moved[node, index] = name

    def divide(self, name: str, way: Way, factors: Array) -> None:
        """Divide by a way's factors what a node adds to, or makes of, its output's channels."""
        for index, array in divided(self.nodes[name], way, factors, self.constants).items():
            self.replace_constant(name, index, array)

    def insert_mul(self, site: Site, side: int, factors: Array) -> tuple[str, str]:
        """A Mul between the site's tensor, or its partner (1), and the readers; its name and its output."""
        tensor = site.partner if side else site.tensor
        dtype = np.float32 if site.partner else self.constants[self.nodes[site.readers[0]].input[1]].dtype
        constant = self.editor.add_constant(
            f"{tensor}_factors", factors.reshape(site.shape(side)).astype(dtype)
        )
        name, result = self.editor.unique(f"{tensor}_migrate"), self.editor.unique(f"{tensor}_migrated")
        mul = helper.make_node("Mul", [tensor, constant], [result], name)
        for reader in site.readers:
            self.nodes[reader].input[side] = result
            self.moved[reader, side] = result
        nodes = list(self.editor.graph.node)
        first = next(i for i, node in enumerate(nodes) if node.name in site.readers)
        self.editor.set_nodes([*nodes[:first], mul, *nodes[first:]])
        self.nodes = {node.name: node for node in self.editor.graph.node}  # which are copies now
        return name, result

    def done(self) -> Network:
        """The network with its edges where their tensors are now, changed constants quantized anew."""
        network = replace(self.network, model=self.editor.done())

        def followed(edge: Edge) -> Edge:
            place = (edge.node, edge.index)
            tensor, array = self.moved.get(place, edge.tensor), self.arrays.get(place)
            if array is None:
                return replace(edge, tensor=tensor)
            return replace(edge, tensor=tensor, quantization=_requantized(edge.quantization, array))

        return with_edges(network, followed)


def _requantized(old: Quantization, array: Array) -> Quantization:
    """How a changed constant is quantized: as before, its scale found anew for INT8; int32 keeps its own."""
    if old.format is INT32:
        return replace(old, values=old.quantize(array))
    fresh = quantize_weight(array, old.axis, old.format.symmetric)
    return replace(fresh, scale=fresh.scale.astype(old.scale.dtype, copy=False))


def _by_input(weight: Array, node: onnx.NodeProto, channels: int) -> Array:
    """A weight as [groups, outputs, inputs per group, ...]; a matrix as [1, outputs, inputs]."""
    if node.op_type == "Conv":
        groups = channels // weight.shape[1]
        return weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    return np.asarray(weight if attribute(node, "transB", 0) else weight.T)[None]


def by_weight(factors: Array, weight: Array, node: onnx.NodeProto) -> Array:
    """Numbers of input channels, [channels], shaped to multiply the weight of a Conv, Gemm or MatMul."""
    if node.op_type != "Conv":
        return along(factors, 1 if attribute(node, "transB", 0) else 0, 2)
    groups = factors.size // weight.shape[1]
    rows = factors.reshape(groups, -1).repeat(weight.shape[0] // groups, axis=0)
    return rows.reshape(*weight.shape[:2], *[1] * (weight.ndim - 2))
