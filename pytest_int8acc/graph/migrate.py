"""Range migration: moves range between the channels of an activation and the weights that multiply them.

Migration divides each channel of an activation by a factor, and multiplies the weights of the channel by the
same factor. The float model computes the same. This is SmoothQuant (arXiv:2211.10438, section 4). Between two
convolutions, it is cross-layer equalization (arXiv:1906.04721, section 4.1). In the product of a query and a
key, the key takes the place of the weights. The division is folded into the node that makes the activation:

    LayerNorm, Conv, Gemm, MatMul, Mul, Div ──→ Relu, pools, Reshape, Transpose, Split ──→ activation

If the division cannot be folded into a node, or if other nodes read the activation, a Mul is inserted after
the activation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.formats import INT32, along
from pytest_int8acc.graph.index import all_nodes, attribute
from pytest_int8acc.graph.layout import (
    MADE_CHANNELS,
    ChannelTracer,
    by_input,
    by_weight,
    channel_parameters,
    mixing,
    quantize_weight,
)
from pytest_int8acc.graph.model import Editor, unload
from pytest_int8acc.graph.network import Edge, Network, Quantization, in_floats, with_edges
from pytest_int8acc.tensors import Array


@dataclass(frozen=True)
class Site:
    """An activation whose channels can be divided by factors, because other values can be multiplied by them.

    The factors multiply the constant weights of the nodes that read the activation. In a product of two
    activations, they multiply the other activation (``partner``).
    """

    tensor: str
    axis: int
    """Channel axis of the activation: 1 for convolutions, -1 for products."""
    rank: int
    """The rank of the weights, and of a convolution's activation; 0 if there is a ``partner``."""
    channels: int
    readers: tuple[str, ...]
    """Names of the nodes that multiply the activation by constant weights, or of one product of two
    activations."""
    partner: str = ""
    """The second activation of a product, such as the key of attention; empty for weights."""
    heads: int = 1
    """Number of attention heads, which lie on the third to last axis. Each head has channels of its own."""
    seen: tuple[str, ...] = ()
    """A tensor in which all channels of the activation lie on one axis, and such a tensor for ``partner``.
    Statistics of the channels are collected from these tensors."""

    def shape(self, side: int) -> tuple[int, ...]:
        """The shape in which factors multiply the activation (side 0) or its partner (side 1)."""
        if not self.partner:
            return (-1, *[1] * (self.rank - 2)) if self.axis == 1 else (-1,)
        blocks = (self.heads,) if self.heads > 1 else ()
        return (*blocks, -1, 1) if side else (*blocks, 1, -1) if blocks else (-1,)


@dataclass(frozen=True, eq=False)
class Migrated:
    """A network after migration."""

    network: Network
    touched: tuple[str, ...]
    """Names of quantized activations whose values changed, so that they need new scales."""
    folded: tuple[str, ...]
    """Names of the nodes whose constants were divided by the factors."""
    inserted: tuple[str, ...]
    """Names of the Mul nodes that were inserted."""


def sites(network: Network) -> dict[str, Site]:
    """The activations of a network whose channels can be divided by factors (migration sites), by name."""
    search = _Search(network)
    found: dict[str, Site] = {}
    for edge in network.edges:
        if edge.tensor not in found and edge.index == 0 and edge.quantization.values is None:
            site = search.site(edge.tensor)
            if site is not None:
                found[edge.tensor] = site
    return found


def find_site(network: Network, tensor: str) -> Site | None:
    """How channels of an activation can be divided by factors; None if nothing can be multiplied by them."""
    return _Search(network).site(tensor)


def weight_maxima(network: Network, site: Site) -> Array:
    """The greatest magnitude of the weights that multiply each channel of ``site.tensor``, float32."""
    constants, nodes = network.model.constants(), network.model.everywhere.nodes
    found = np.zeros(site.channels, np.float32)
    for reader in site.readers:
        node = nodes[reader]
        weight = constants[node.input[1]]
        split = by_input(weight, node)
        others = tuple(i for i in range(split.ndim) if i not in (0, 2))
        # abs() is avoided, because it would copy the weight.
        greatest = np.maximum(split.max(axis=others), -split.min(axis=others))
        found = np.maximum(found, greatest.reshape(-1))
        unload(weight)
    return found


def migrate(network: Network, factors: Mapping[str, Array]) -> Migrated:
    """Divide channels of activations by factors, and multiply their weights by the same factors.

    In a product of two activations, the other activation takes the place of the weights. The float model
    computes the same, up to float rounding. Weights that change get new scales.

    Args:
        network: Any network.
        factors: Activation to its factors, above 0, float32 [channels].

    Raises:
        ModelError: A tensor has no migration site (:class:`Site`), or its factors are not one number above 0
            per channel.
    """
    touched: dict[str, None] = {}
    folded: dict[str, None] = {}
    inserted: list[str] = []
    for tensor, factor in factors.items():
        factor, search = np.asarray(factor, np.float32), _Search(network)
        site = search.site(tensor)
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
            ways = search.ways(site, side)
            if ways is None:
                name, result = edit.insert_mul(site, side, 1 / by)
                inserted.append(name)
                touched[result] = None
            else:
                makers = [search.index.producer[way.tensor].name for way in ways]
                for maker, way in zip(makers, ways, strict=True):
                    if way is ways[-1] or edit.nodes[maker].op_type == "Add":
                        edit.divide(maker, way, by)
                touched.update(dict.fromkeys(way.tensor for way in ways))
                folded[makers[-1]] = None
        network = edit.done()
    quantized = {edge.tensor for edge in network.edges}
    return Migrated(network, tuple(t for t in touched if t in quantized), tuple(folded), tuple(inserted))


#: Operators whose output element is multiplied by a positive factor if the input element is multiplied by
#: this factor.
_HOMOGENEOUS = frozenset({"Relu", "LeakyRelu", "Identity", "Dropout"})
#: Operators whose output channels are multiplied by positive factors if the input channels are multiplied by
#: these factors. The channels must be on axis 1.
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})


@dataclass(frozen=True, eq=False)
class Way:
    """A tensor between an activation and the earlier node into whose constants the factors are folded."""

    tensor: str
    which: Array
    """The index of the factor of each element; -1 for no factor. The integers broadcast with the tensor.

    There is a dimension for each axis of the tensor, or a single one if the rank of the tensor is not known.
    """

    def lies_on(self, axis: int) -> bool:
        """Whether the factors differ only along ``axis``."""
        return axis < self.which.ndim and self.which.shape[axis] == self.which.size

    def spread(self, factors: Array) -> Array:
        """The factors in the shape of ``which``, 1 for elements without a factor."""
        return np.append(factors, np.ones_like(factors[:1]))[self.which]


class _Search:
    """Finds migration sites, and the earlier nodes into whose constants factors can be folded."""

    def __init__(self, network: Network) -> None:
        self.constants, self.index = network.model.constants(), network.model.everywhere
        self.nodes, self.tracer = self.index.nodes, ChannelTracer(network.model)
        self._mixing = mixing(network.model)

    def site(self, tensor: str) -> Site | None:
        """How the channels of the activation ``tensor`` can be divided by factors.

        The result is None if neither weights nor another activation can be multiplied by the factors.
        """
        reading = self.index.readers(tensor)
        readers = [node.name for node, position in reading if position == 0 and self._weighs(node.name)]
        if not readers:
            return self._product(tensor)
        first = self.nodes[readers[0]]
        axis = 1 if first.op_type == "Conv" else -1
        channels = self._input_channels(first)
        for reader in readers:
            node = self.nodes[reader]
            if (node.op_type == "Conv") != (axis == 1) or self._input_channels(node) != channels:
                return None
        rank = self.constants[first.input[1]].ndim
        return Site(tensor, axis, rank, channels, tuple(readers), seen=(tensor,))

    def _weighs(self, name: str) -> bool:
        """Whether a node multiplies its first input by constant weights along the channels."""
        node = self.nodes[name]
        if node.op_type not in ("Conv", "Gemm", "MatMul") or node.input[1] not in self.constants:
            return False
        if node.input[1] == node.input[0] or attribute(node, "transA", 0):
            return False
        return node.op_type == "Conv" or self.constants[node.input[1]].ndim == 2

    def _input_channels(self, node: onnx.NodeProto) -> int:
        weight = by_input(self.constants[node.input[1]], node)
        return int(weight.shape[0] * weight.shape[2])

    def _product(self, tensor: str) -> Site | None:
        """How the channels of ``tensor`` can be divided by factors that multiply another activation.

        The result is None if ``tensor``, such as a query, is not the first factor of one product of two
        activations, or if the sizes of its channels are not known.
        """
        reading = self.index.readers(tensor)
        products = [node for node, position in reading if node.op_type == "MatMul" and position == 0]
        if len(products) != 1 or products[0].name in self._mixing:
            return None
        node = products[0]
        query, key = self.tracer.shape(tensor) or (), self.tracer.shape(node.input[1]) or ()
        channels = query[-1] if query else None
        if not isinstance(channels, int) or len(key) < 2 or key[-2] != channels:
            return None
        found = Site(tensor, -1, 0, channels, (node.name,), partner=node.input[1])
        if len(query) > 2 < len(key) and isinstance(query[-3], int) and query[-3] == key[-3]:
            each = replace(found, channels=query[-3] * channels, heads=query[-3])
            seen = tuple(self._in_a_row(each, side) for side in (0, 1))
            if all(seen):
                return replace(each, seen=seen)
        return replace(found, seen=(tensor, node.input[1]))

    def _in_a_row(self, site: Site, side: int) -> str:
        """Name of the first tensor in ``ways(site, side)`` with all channels on its last axis; else empty."""
        for way in self.ways(site, side) or ():
            if way.which.size == site.channels and way.lies_on(-1):
                return way.tensor
        return ""

    def ways(self, site: Site, side: int) -> list[Way] | None:
        """The tensors from the site's activation (side 0) or its partner (side 1) back to an earlier node.

        The factors can be folded into the constants of this node. None if there is no such node.
        """
        tensor = site.partner if side else site.tensor
        reading = [(node.name, position) for node, position in self.index.readers(tensor)]
        if tensor in self.index.public or reading != [(name, side) for name in site.readers]:
            return None
        which = np.arange(site.channels).reshape(site.shape(side))
        rank = site.rank if site.axis == 1 else len(self.tracer.shape(tensor) or ())
        return self._up(Way(tensor, _of_rank(which, max(rank, which.ndim))))

    def _up(self, way: Way) -> list[Way] | None:
        """``way`` and the tensors before it, back to a node into whose constants factors can be folded.

        None if there is no such node.
        """
        node = self.index.producer.get(way.tensor)
        if node is None or node.domain:
            return None
        if len([o for o in node.output if o]) > 1 and node.op_type != "Split":
            return None
        takes = self._takes(node, way)
        if takes and not self._is_number(node):
            return [way]
        for before in self._before(node, way):
            if self.index.only_reader(before.tensor) is not None or self._is_parted(before.tensor):
                rest = self._up(before)
                if rest is not None:
                    return [way, *rest]
        return [way] if takes else None

    def _takes(self, node: onnx.NodeProto, way: Way) -> bool:
        """Whether dividing constants of ``node`` can divide its output, the tensor of ``way``, by factors."""
        if node.op_type in ("Mul", "Div"):
            is_factor = node.op_type == "Mul" or node.input[1] in self.constants
            return is_factor and self._constant_fits(node, way.which)
        axes, rest = channel_parameters(node), [name for name in node.input[1:] if name]
        if not axes or not rest or any(name not in self.constants for name in rest):
            return False
        weight = self.constants[rest[0]]
        is_known = node.op_type not in ("Gemm", "MatMul") or weight.ndim == 2
        on_axis = way.lies_on(MADE_CHANNELS[node.op_type])
        return is_known and on_axis and weight.shape[axes[1]] == way.which.size

    def _is_number(self, node: onnx.NodeProto) -> bool:
        """Whether the node multiplies or divides by one number.

        If so, the factors may be folded into a node before it.
        """
        given = [self.constants[name] for name in node.input if name in self.constants]
        return node.op_type in ("Mul", "Div") and [array.size for array in given] == [1]

    def _constant_fits(self, node: onnx.NodeProto, which: Array) -> bool:
        """Whether one of two inputs is a constant whose shape fits ``which``, the index of each factor."""
        shapes = [self.constants[name].shape for name in node.input if name in self.constants]
        if len(node.input) != 2 or len(shapes) != 1:
            return False
        sizes = zip(shapes[0][::-1], which.shape[::-1], strict=False)
        return all(have == count or 1 in (have, count) for have, count in sizes)

    def _before(self, node: onnx.NodeProto, way: Way) -> Iterator[Way]:
        """The inputs of ``node`` that can be divided instead of its output, the tensor of ``way``."""
        source, which = node.input[0], way.which
        varying = [name for name in node.input if name not in self.constants]
        if node.op_type in _HOMOGENEOUS or (node.op_type in _POOLS and way.lies_on(1)):
            yield Way(source, which)
        elif node.op_type == "MatMul" and len(varying) == 2:
            # A column of the output depends on only one column of the second input.
            if which.ndim == 1 or which.shape[-2] == 1:
                yield from self._way(varying[1], which)
        elif self._is_number(node) or (node.op_type == "Add" and self._constant_fits(node, which)):
            yield from self._way(varying[0], which)
        elif node.op_type == "Mul" and len(varying) == 2:
            for name in dict.fromkeys(varying):
                yield from self._way(name, which)
        else:
            before = self.tracer.before(node, way.tensor, which)
            if before is not None:
                yield Way(source, before)

    def _way(self, tensor: str, which: Array) -> Iterator[Way]:
        """A :class:`Way` for the operand ``tensor`` of a node whose output has the factors ``which``.

        Nothing is yielded if factors differ along an axis that the operand lacks.
        """
        rank = len(self.tracer.shape(tensor) or which.shape)
        if max(which.shape[: which.ndim - rank], default=1) == 1:
            yield Way(tensor, _of_rank(which, rank))

    def _is_parted(self, tensor: str) -> bool:
        """Whether all nodes that read a tensor read parts of it along one axis, and no parts overlap."""
        reading = self.index.readers(tensor)
        if tensor in self.index.public or any(position for _, position in reading):
            return False
        parts = [self.tracer.parts(node, output) or {} for node, _ in reading for output in node.output]
        axes = {axis for part in parts for axis in part}
        if len(axes) != 1 or not all(parts):
            return False
        (axis,) = axes
        size = self.tracer.size(tensor, axis) or 0
        taken = [place for part in parts for place in range(size)[part[axis]]]
        return len(set(taken)) == len(taken)


def _of_rank(which: Array, rank: int) -> Array:
    """``which`` with ``rank`` dimensions: dimensions of size 1 are added or removed at the front."""
    kept = which.shape[max(which.ndim - rank, 0) :]
    return which.reshape([1] * (rank - len(kept)) + list(kept))


class _Edit:
    """One edit of a network: it replaces constants, inserts Mul nodes, and updates the edges."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.editor: Editor = network.model.edit()
        self.nodes = {node.name: node for node in all_nodes(self.editor.graph)}
        self.constants = network.model.constants()
        self.arrays: dict[tuple[str, int], Array] = {}
        self.moved: dict[tuple[str, int], str] = {}

    def scale_weights(self, site: Site, factors: Array) -> None:
        """Multiply by ``factors`` the constant weights of the nodes that read the site's activation.

        If the activation is a factor of a product of two activations, there are no weights, and nothing is
        changed.
        """
        for reader in () if site.partner else site.readers:
            node = self.nodes[reader]
            weight = self.constants[node.input[1]]
            by = by_weight(factors, weight, node)
            assert by is not None
            self.replace_constant(reader, 1, weight * by)
            unload(weight)

    def replace_constant(self, node: str, index: int, array: Array) -> None:
        """Change input ``index`` of a node, a constant, to ``array``. Other nodes keep the old constant."""
        old = self.nodes[node].input[index]
        array = np.ascontiguousarray(array, self.constants[old].dtype)
        name = self.editor.add_constant(f"{old}_migrated", array)
        self.nodes[node].input[index] = name
        self.constants[name] = self.arrays[node, index] = array
        self.moved[node, index] = name

    def divide(self, name: str, way: Way, factors: Array) -> None:
        """Divide constants of node ``name`` to divide its output, the tensor of ``way``, by ``factors``."""
        for index, array in divided(self.nodes[name], way, factors, self.constants).items():
            self.replace_constant(name, index, array)

    def insert_mul(self, site: Site, side: int, factors: Array) -> tuple[str, str]:
        """Insert a Mul by ``factors`` after the site's activation (side 0) or its partner (side 1).

        Returns:
            The names of the Mul and of its output.
        """
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

        def after(node: onnx.NodeProto) -> list[onnx.NodeProto]:
            return [node, mul] if tensor in node.output else [node]

        def first(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
            return [mul] if any(value.name == tensor for value in graph.input) else []

        self.editor.rewrite(after, first)
        self.nodes = {node.name: node for node in all_nodes(self.editor.graph)}  # the editor copies nodes
        return name, result

    def done(self) -> Network:
        """The edited network.

        Quantized inputs refer to new tensors, and changed constants have new scales.
        """
        network, before = replace(self.network, model=self.editor.done()), self.network.model.constants()

        def followed(edge: Edge) -> Edge:
            place = (edge.node, edge.index)
            tensor, array = self.moved.get(place, edge.tensor), self.arrays.get(place)
            if array is None:
                return replace(edge, tensor=tensor)
            if edge.quantization.is_float:
                return replace(edge, tensor=tensor, quantization=_rescaled(edge, before[edge.tensor], array))
            return replace(edge, tensor=tensor, quantization=_requantized(edge.quantization, array))

        return with_edges(network, followed)


def _rescaled(edge: Edge, before: Array, after: Array) -> Quantization:
    """The float values that the constant at ``edge`` has in low precision, multiplied by ``after / before``.

    ``before`` and ``after`` are its values in the float model before and after the migration.
    """
    factors = np.divide(after, before, where=before != 0, out=np.ones_like(after))
    return in_floats(edge.quantization.dequantize() * factors)


def _requantized(old: Quantization, array: Array) -> Quantization:
    """The quantization of a constant after it changed to ``array``; the scale of an int32 bias is kept."""
    if old.format is INT32:
        return replace(old, values=old.quantize(array))
    fresh = quantize_weight(array, old.axis, old.format.symmetric)
    return replace(fresh, scale=fresh.scale.astype(old.scale.dtype, copy=False))


def divided(node: onnx.NodeProto, way: Way, factors: Array, constants: dict[str, Array]) -> dict[int, Array]:
    """The new constants of ``node``, by input position, with which its output is divided by the factors.

    ``node`` is the node into which the factors are folded, or an Add after this node. Its output is the
    tensor of ``way``, which has the index of each element's factor.
    """
    spread, found = way.spread(factors), {}
    if node.op_type in ("Mul", "Div", "Add"):
        while spread.ndim > 1 and len(spread) == 1:  # the constant needs no leading axes of size 1
            spread = spread[0]
        for index, name in enumerate(node.input):
            if name in constants:
                array = constants[name]
                found[index] = array * spread if node.op_type == "Div" else array / spread
        return found
    for index, axis in channel_parameters(node).items():
        if index < len(node.input) and node.input[index]:
            array = constants[node.input[index]]
            found[index] = array / along(spread.reshape(-1), axis, max(array.ndim, 1))
    return found
