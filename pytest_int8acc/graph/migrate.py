"""Channels of an activation evened out against the weights that read them.

Migration divides each channel of an activation by a factor and multiplies the weights that read it by the
same one, so the float function stays (SmoothQuant, arXiv:2211.10438, section 4). The division is folded into
what makes the activation: a normalization's scale and bias, a convolution's or product's weights and bias, a
Mul or Div by a constant; between them may lie what commutes with positive factors per channel (ReLU, pools,
Transpose, the addition of a constant). Where nothing can take it, or others read the activation too, a Mul is
inserted before the readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.formats import INT32, along
from pytest_int8acc.graph.index import attribute
from pytest_int8acc.graph.model import Editor
from pytest_int8acc.graph.network import Edge, Network, Quantization, with_edges
from pytest_int8acc.graph.quantize import quantize_weight
from pytest_int8acc.tensors import Array

#: Nodes that commute with a positive factor per channel, whichever axis the channels lie on.
_HOMOGENEOUS = frozenset({"Relu", "LeakyRelu", "Identity", "Dropout"})
#: The same, for channels on axis 1.
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})
_GLOBAL = frozenset({"GlobalAveragePool", "GlobalMaxPool"})
#: Nodes with a scale and a bias per channel (inputs 1 and 2), and the axis of the channels.
_NORMS = {"LayerNormalization": -1, "BatchNormalization": 1, "InstanceNormalization": 1}


@dataclass(frozen=True)
class Site:
    """An activation whose channels can be evened out against the weights that read it."""

    tensor: str
    axis: int
    """Where its channels lie: 1 for convolutions, -1 for products."""
    rank: int
    """Of the activation for convolutions; of no meaning for products."""
    channels: int
    readers: tuple[str, ...]
    """Nodes with constant weights at input 1 that read it at input 0, quantized or not."""
    absorbed: bool
    """Something can take the factors; otherwise a Mul is inserted."""


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
    """Greatest magnitude of the weights that read each channel, float32 [channels]."""
    constants, nodes = network.model.constants(), network.model.index.nodes
    found = np.zeros(site.channels, np.float32)
    for reader in site.readers:
        node = nodes[reader]
        split = _by_input(constants[node.input[1]], node, site.channels)
        others = tuple(i for i in range(split.ndim) if i not in (0, 2))
        found = np.maximum(found, np.abs(split).max(axis=others).reshape(-1))
    return found


def migrate(network: Network, factors: Mapping[str, Array]) -> Migrated:
    """Divide channels of activations by factors and multiply the weights that read them: SmoothQuant.

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
        factor, graph = (
            np.asarray(factor, np.float32),
            _Graph(network),
        )  # which the one before may have changed
        site = graph.site(tensor)
        if site is None:
            raise ModelError(f"{network.model.name}: no constant weights read '{tensor}' alone")
        if factor.shape != (site.channels,) or not (np.isfinite(factor) & (factor > 0)).all():
            wanted = f"{site.channels} factors greater than 0"
            raise ModelError(f"{network.model.name}: moving '{tensor}' takes {wanted}")
        edit, steps = _Edit(network), graph.path(site)
        edit.scale_weights(site, factor)
        if steps is None:
            name, result = edit.insert_mul(tensor, site, 1 / factor)
            inserted.append(name)
            touched[result] = None
        else:
            makers = [graph.index.producer[step].name for step in steps]
            for maker in makers:
                edit.divide(maker, factor)
            touched.update(dict.fromkeys(steps))
            folded[makers[-1]] = None
        network = edit.done()
    quantized = {edge.tensor for edge in network.edges}
    return Migrated(network, tuple(t for t in touched if t in quantized), tuple(folded), tuple(inserted))


class _Graph:
    """A network's graph, to be asked who makes and who reads what."""

    def __init__(self, network: Network) -> None:
        self.constants = network.model.constants()
        self.index = network.model.index
        self.nodes = self.index.nodes

    def site(self, tensor: str) -> Site | None:
        """The site of ``tensor``; None where no weights read it, or they do not agree on its channels."""
        reading = self.index.readers(tensor)
        readers = [node.name for node, position in reading if position == 0 and self._weighs(node.name)]
        if not readers:
            return None
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
        found = Site(tensor, axis, rank, channels, tuple(readers), absorbed=False)
        return replace(found, absorbed=self.path(found) is not None)

    def path(self, site: Site) -> list[str] | None:
        """From the site's tensor up to the one whose node takes its factors; None where there is none."""
        flat = all(self.nodes[reader].op_type == "Gemm" for reader in site.readers)
        axes = (-1, 1) if flat else (site.axis,)  # of a matrix these are one
        return next(filter(None, (self._path(site, axis) for axis in axes)), None)

    def _path(self, site: Site, axis: int) -> list[str] | None:
        tensor, readers = site.tensor, site.readers
        reading = [(node.name, position) for node, position in self.index.readers(tensor)]
        if tensor in self.index.public or reading != [(name, 0) for name in readers]:
            return None
        steps: list[str] = []
        while True:
            node = self.index.producer.get(tensor)
            if node is None or node.domain not in ("", "ai.onnx") or len([o for o in node.output if o]) > 1:
                return None
            steps.append(tensor)
            if self._takes(node, axis, site.channels):
                return steps
            passed = self._passes(node, axis, site.channels)
            if passed is None:
                return None
            tensor, axis = passed
            if self.index.only_reader(tensor) is None:
                return None

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

    def _takes(self, node: onnx.NodeProto, axis: int, channels: int) -> bool:
        constants = self.constants
        rest = [name for name in node.input[1:] if name]
        if node.op_type in _NORMS:
            right = axis == _NORMS[node.op_type] and (axis == 1 or attribute(node, "axis", -1) == -1)
            return right and all(name in constants and constants[name].shape == (channels,) for name in rest)
        if node.op_type in ("Conv", "Gemm", "MatMul"):
            if not rest or any(name not in constants for name in rest):
                return False
            weight = constants[rest[0]]
            if node.op_type == "Conv":
                return axis == 1 and weight.shape[0] == channels
            makes = weight.ndim == 2 and weight.shape[0 if attribute(node, "transB", 0) else 1] == channels
            return makes and (node.op_type == "Gemm" or axis == -1)
        is_factor = node.op_type == "Mul" or (node.op_type == "Div" and node.input[1] in constants)
        return is_factor and axis == -1 and self._constant_input(node, channels)

    def _constant_input(self, node: onnx.NodeProto, channels: int) -> bool:
        """Whether one of two inputs is a constant that has the channels last, or one value for all."""
        shapes = [self.constants[name].shape for name in node.input if name in self.constants]
        return len(node.input) == 2 and len(shapes) == 1 and shapes[0][-1:] in ((), (1,), (channels,))

    def _passes(self, node: onnx.NodeProto, axis: int, channels: int) -> tuple[str, int] | None:
        """The tensor and axis where factors of the node's output come from; None where none get through."""
        if node.op_type in _HOMOGENEOUS or (node.op_type in _POOLS and axis == 1):
            return node.input[0], axis
        if node.op_type == "Flatten":
            before = self.index.producer.get(node.input[0])
            pooled = before is not None and before.op_type in _GLOBAL
            return (node.input[0], 1) if pooled and attribute(node, "axis", 1) == 1 else None
        if node.op_type == "Transpose":
            perm = attribute(node, "perm", [])
            last = len(perm) - 1
            return (node.input[0], -1 if perm[axis] == last else perm[axis]) if perm else None
        if node.op_type == "Add" and axis == -1 and self._constant_input(node, channels):
            return next(name for name in node.input if name not in self.constants), axis
        return None


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
        """Multiply by ``factors`` the weights that read the site."""
        for reader in site.readers:
            node = self.nodes[reader]
            weight = self.constants[node.input[1]]
            self.replace_constant(reader, 1, weight * _spread(factors, weight, node))

    def replace_constant(self, node: str, index: int, array: Array) -> None:
        """Let one node read ``array`` in place of its constant, which others may go on reading."""
        old = self.nodes[node].input[index]
        array = np.ascontiguousarray(array, self.constants[old].dtype)
        name = self.editor.add_constant(f"{old}_migrated", array)
        self.nodes[node].input[index] = name
        self.constants[name] = self.arrays[node, index] = array
        self.moved[node, index] = name

    def divide(self, name: str, factors: Array) -> None:
        """Divide by ``factors`` what a node adds to, or makes of, its output's channels."""
        node = self.nodes[name]
        if node.op_type in _NORMS:
            places = [(i, 0) for i in (1, 2)]
        elif node.op_type == "Conv":
            places = [(1, 0), (2, 0)]
        elif node.op_type == "Gemm":
            places = [(1, 0 if attribute(node, "transB", 0) else 1), (2, -1)]
        elif node.op_type in ("MatMul", "Mul", "Div", "Add"):
            places = [(i, -1) for i, read in enumerate(node.input) if read in self.constants]
        else:
            return
        for index, axis in places:
            if index >= len(node.input) or not node.input[index]:
                continue
            array = self.constants[node.input[index]]
            by = along(factors, axis, max(array.ndim, 1))
            self.replace_constant(name, index, array * by if node.op_type == "Div" else array / by)

    def insert_mul(self, tensor: str, site: Site, factors: Array) -> tuple[str, str]:
        """A Mul between ``tensor`` and the site's readers; its name and its output."""
        dtype = self.constants[self.nodes[site.readers[0]].input[1]].dtype
        shaped = factors.reshape(-1, *[1] * (site.rank - 2)) if site.axis == 1 else factors
        constant = self.editor.add_constant(f"{tensor}_factors", shaped.astype(dtype))
        name, result = self.editor.unique(f"{tensor}_migrate"), self.editor.unique(f"{tensor}_migrated")
        mul = helper.make_node("Mul", [tensor, constant], [result], name)
        for reader in site.readers:
            self.nodes[reader].input[0] = result
            self.moved[reader, 0] = result
        nodes = list(self.editor.graph.node)
        first = next(i for i, node in enumerate(nodes) if node.name in site.readers)
        self.editor.set_nodes([*nodes[:first], mul, *nodes[first:]])
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


def _spread(factors: Array, weight: Array, node: onnx.NodeProto) -> Array:
    """Factors of input channels, shaped to multiply ``weight``."""
    if node.op_type != "Conv":
        return along(factors, 1 if attribute(node, "transB", 0) else 0, 2)
    groups = factors.size // weight.shape[1]
    rows = factors.reshape(groups, -1).repeat(weight.shape[0] // groups, axis=0)
    return rows.reshape(*weight.shape[:2], *[1] * (weight.ndim - 2))
