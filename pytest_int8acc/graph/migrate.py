"""Migration: evens out the channels of an activation against the weights or activation that read them.

Migration divides each channel of an activation by a factor and multiplies the weights that read it by the
same one, so the float function stays (SmoothQuant, arXiv:2211.10438, section 4; between two convolutions it
is cross-layer equalization, arXiv:1906.04721, section 4.1). In the product of a query and a key the key is
multiplied. The division is folded into the node that makes the activation:

    LayerNorm, Conv, Gemm, MatMul, Mul, Div ──→ Relu, pools, Reshape, Transpose, Split ──→ activation

Where no node can take the division, or others read the activation too, a Mul is inserted before the readers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.formats import INT32, along
from pytest_int8acc.graph.index import attribute
from pytest_int8acc.graph.layout import by_input, by_weight, input_channels, output_axis, quantize_weight
from pytest_int8acc.graph.model import Editor, Model
from pytest_int8acc.graph.network import Edge, Network, Quantization, with_edges
from pytest_int8acc.tensors import Array


@dataclass(frozen=True)
class Site:
    """An activation whose channels can be evened out against its readers."""

    tensor: str
    axis: int
    """The axis of its channels: 1 for convolutions, -1 for products."""
    rank: int
    """The rank of the activation, for convolutions only."""
    channels: int
    readers: tuple[str, ...]
    """Nodes that read it at input 0 and constant weights at input 1; the one product of two activations."""
    partner: str = ""
    """The activation at input 1 of a product, summed over along its second to last axis; empty for
    weights."""
    heads: int = 1
    """Number of blocks of channels along the third to last axis, as the heads of attention are."""
    seen: tuple[str, ...] = ()
    """Tensors that have all of its channels, and all of its partner's, along one axis: for statistics."""

    def shape(self, side: int) -> tuple[int, ...]:
        """The shape in which factors broadcast with the activation (side 0) or its partner (side 1)."""
        if not self.partner:
            return (-1, *[1] * (self.rank - 2)) if self.axis == 1 else (-1,)
        blocks = (self.heads,) if self.heads > 1 else ()
        return (*blocks, -1, 1) if side else (*blocks, 1, -1) if blocks else (-1,)


@dataclass(frozen=True, eq=False)
class Migrated:
    """A network after migration. The tensors of ``touched`` have other values, so they need new scales."""

    network: Network
    touched: tuple[str, ...]
    """Quantized activations whose values changed."""
    folded: tuple[str, ...]
    """Nodes whose constants were divided by the factors."""
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
        split = by_input(constants[node.input[1]], node)
        others = tuple(i for i in range(split.ndim) if i not in (0, 2))
        found = np.maximum(found, np.abs(split).max(axis=others).reshape(-1))
    return found


def migrate(network: Network, factors: Mapping[str, Array]) -> Migrated:
    """Divide channels of activations by factors and multiply what reads them: SmoothQuant.

    The function of the float model stays the same, up to float rounding. Weights that change are quantized
    anew along their axis. The activations of ``touched`` must be calibrated anew.

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
    """Finds migration sites in the graph of a network."""

    def __init__(self, network: Network) -> None:
        self.channels = Channels(network.model)
        self.constants, self.index = self.channels.constants, network.model.index
        self.nodes = self.index.nodes

    def site(self, tensor: str) -> Site | None:
        """The site of ``tensor``; None where no weights read it, or they differ in the number of channels."""
        reading = self.index.readers(tensor)
        readers = [node.name for node, position in reading if position == 0 and self._weighs(node.name)]
        if not readers:
            return self._product(tensor)
        first = self.nodes[readers[0]]
        axis = 1 if first.op_type == "Conv" else -1
        channels = self._input_channels(first)
        for node in (self.nodes[reader] for reader in readers):
            is_convolution = node.op_type == "Conv"
            if is_convolution != (axis == 1) or self._input_channels(node) != channels:
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
        """Tensors from the site's tensor (side 0) or partner (side 1) up to the node that takes the factors.

        None where no node can take them.
        """
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

    def _input_channels(self, node: onnx.NodeProto) -> int:
        return input_channels(node, self.constants[node.input[1]])


def _in_a_row(ways: Sequence[Way], channels: int) -> str:
    """The first tensor of ``ways`` with exactly these channels along its last axis.

    Empty if there is none.
    """
    shape = (channels,)
    return next((way.tensor for way in ways if way.which.shape == shape and not way.front), "")


class _Edit:
    """One edit of a network: replaces constants, inserts a Mul, and updates the edges."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.editor: Editor = network.model.edit()
        self.nodes = {node.name: node for node in self.editor.graph.node}
        self.constants = network.model.constants()
        self.arrays: dict[tuple[str, int], Array] = {}
        self.moved: dict[tuple[str, int], str] = {}

    def scale_weights(self, site: Site, factors: Array) -> None:
        """Multiply the weights that read the site by ``factors``; a site with a partner has none."""
        for reader in () if site.partner else site.readers:
            node = self.nodes[reader]
            weight = self.constants[node.input[1]]
            self.replace_constant(reader, 1, weight * by_weight(factors, weight, node))

    def replace_constant(self, node: str, index: int, array: Array) -> None:
        """Let one node read ``array`` in place of its constant. Other readers keep the old constant."""
        old = self.nodes[node].input[index]
        array = np.ascontiguousarray(array, self.constants[old].dtype)
        name = self.editor.add_constant(f"{old}_migrated", array)
        self.nodes[node].input[index] = name
        self.constants[name] = self.arrays[node, index] = array
        self.moved[node, index] = name

    def divide(self, name: str, way: Way, factors: Array) -> None:
        """Divide the constants of a node so that its output is divided by the factors of a way."""
        for index, array in divided(self.nodes[name], way, factors, self.constants).items():
            self.replace_constant(name, index, array)

    def insert_mul(self, site: Site, side: int, factors: Array) -> tuple[str, str]:
        """Insert a Mul between the site's tensor (side 0) or partner (side 1) and the readers.

        Its name and output.
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
        nodes = list(self.editor.graph.node)
        first = next(i for i, node in enumerate(nodes) if node.name in site.readers)
        self.editor.set_nodes([*nodes[:first], mul, *nodes[first:]])
        self.nodes = {node.name: node for node in self.editor.graph.node}  # which are copies now
        return name, result

    def done(self) -> Network:
        """The network with edges at their new tensors, and with changed constants quantized anew."""
        network = replace(self.network, model=self.editor.done())

        def followed(edge: Edge) -> Edge:
            place = (edge.node, edge.index)
            tensor, array = self.moved.get(place, edge.tensor), self.arrays.get(place)
            if array is None:
                return replace(edge, tensor=tensor)
            return replace(edge, tensor=tensor, quantization=_requantized(edge.quantization, array))

        return with_edges(network, followed)


def _requantized(old: Quantization, array: Array) -> Quantization:
    """The quantization of a changed constant: with a new scale, but for int32, which keeps its scale."""
    if old.format is INT32:
        return replace(old, values=old.quantize(array))
    fresh = quantize_weight(array, old.axis, old.format.symmetric)
    return replace(fresh, scale=fresh.scale.astype(old.scale.dtype, copy=False))


#: Nodes that commute with a positive factor per channel, whichever axis the channels lie on.
_HOMOGENEOUS = frozenset({"Relu", "LeakyRelu", "Identity", "Dropout"})
#: Nodes that commute with a positive factor per channel, for channels on axis 1 only.
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})
_GLOBAL = frozenset({"GlobalAveragePool", "GlobalMaxPool"})
#: Nodes that give a part of their input along one axis.
_PARTS = frozenset({"Slice", "Gather", "Split"})
#: Operators that keep the shape of their input if the other input is a constant that is not larger.
_ELEMENTWISE = frozenset({"Add", "Mul", "Div"})
#: Nodes with a scale and a bias per channel (inputs 1 and 2).
NORMS = frozenset({"LayerNormalization", "BatchNormalization", "InstanceNormalization"})


@dataclass(frozen=True, eq=False)
class Way:
    """A tensor on the path of factors, and which factor each of its channels takes.

    Paths are found before the factors are known.
    """

    tensor: str
    which: Array
    """Integers: index of the factor of each channel, -1 for none. The channels are on axis 1, or aligned with
    the last axes as in broadcasting."""
    front: bool
    """Whether the channels are on axis 1; ``which`` has one dimension then."""

    def spread(self, factors: Array) -> Array:
        """The factors of the tensor's channels, 1 for channels without a factor."""
        return np.append(factors, np.ones_like(factors[:1]))[self.which]


class Channels:
    """Finds the nodes of a model that can take the factors of an activation."""

    def __init__(self, model: Model) -> None:
        """Keep the model; the search starts in ``ways``."""
        self.constants, self.index = model.constants(), model.index

    def ways(
        self, tensor: str, readers: Collection[tuple[str, int]], starts: Sequence[Way]
    ) -> list[Way] | None:
        """Tensors from ``tensor`` up to the one whose node takes its factors; None where no node does.

        Args:
            tensor: An activation.
            readers: Nodes that are multiplied in return, with the positions at which they read the tensor.
            starts: Places of its channels that are tried one after the other.
        """
        reading = [(node.name, position) for node, position in self.index.readers(tensor)]
        if tensor in self.index.public or reading != list(readers):
            return None
        return next(filter(None, map(self._up, starts)), None)

    def _up(self, way: Way) -> list[Way] | None:
        node = self.index.producer.get(way.tensor)
        if node is None or node.domain not in ("", "ai.onnx"):
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

    def _is_number(self, node: onnx.NodeProto) -> bool:
        """Whether the node multiplies or divides by one number: nodes before it may take the factors."""
        given = [self.constants[name] for name in node.input if name in self.constants]
        return node.op_type in ("Mul", "Div") and [array.size for array in given] == [1]

    def _takes(self, node: onnx.NodeProto, way: Way) -> bool:
        """Whether dividing constants of the node by the factors divides its output by them."""
        constants, count = self.constants, way.which.size
        rest = [name for name in node.input[1:] if name]
        last = way.which.ndim == 1 and not way.front
        if node.op_type in NORMS:
            layer = node.op_type == "LayerNormalization"
            right = last and attribute(node, "axis", -1) == -1 if layer else way.front
            return right and all(name in constants and constants[name].shape == (count,) for name in rest)
        if node.op_type in ("Conv", "Gemm", "MatMul"):
            if not rest or any(name not in constants for name in rest):
                return False
            weight = constants[rest[0]]
            axis = output_axis(node, 1, weight.ndim)
            if axis is None or weight.shape[axis] != count:
                return False
            if node.op_type == "Conv":
                return way.front
            return weight.ndim == 2 and (last or (node.op_type == "Gemm" and way.front))
        is_factor = node.op_type == "Mul" or (node.op_type == "Div" and node.input[1] in constants)
        return is_factor and not way.front and self._constant_fits(node, way)

    def _constant_fits(self, node: onnx.NodeProto, way: Way) -> bool:
        """Whether one of two inputs is a constant with a value per channel, or with one value."""
        shapes = [self.constants[name].shape for name in node.input if name in self.constants]
        if len(node.input) != 2 or len(shapes) != 1:
            return False
        tail = shapes[0][-way.which.ndim :]
        return all(have in (1, want) for have, want in zip(tail[::-1], way.which.shape[::-1], strict=False))

    def _before(self, node: onnx.NodeProto, way: Way) -> Iterator[Way]:
        """Inputs of a node that may have the factors of its output, each with the places of its channels."""
        source, which, front = node.input[0], way.which, way.front
        if node.op_type in _HOMOGENEOUS or (node.op_type in _POOLS and front):
            yield Way(source, which, front)
        elif self._flattens(node) and which.ndim == 1:
            yield Way(source, which, front=True)
        elif node.op_type == "Transpose" and attribute(node, "perm", []):
            yield _before_transpose(source, attribute(node, "perm", []), way)
        elif node.op_type in _PARTS and not front:
            yield from self._before_part(node, way)
        elif node.op_type in ("Squeeze", "Unsqueeze") and not front:
            yield from self._before_squeeze(node, which)
        elif node.op_type == "Reshape" and node.input[1] in self.constants and not front:
            yield from self._before_reshape(source, self.constants[node.input[1]].tolist(), which)
        elif self._is_number(node) or (
            node.op_type == "Add" and not front and self._constant_fits(node, way)
        ):
            yield Way(next(name for name in node.input if name not in self.constants), which, front)
        elif node.op_type == "Mul" and not self.constants.keys() & set(node.input):
            yield from (Way(name, which, front) for name in dict.fromkeys(node.input))
        elif node.op_type == "MatMul" and not front and self._columns(node, which):
            yield Way(node.input[1], which, front)

    def _flattens(self, node: onnx.NodeProto) -> bool:
        """Whether the node flattens the result of a global pooling, which has one value per channel."""
        before = self.index.producer.get(node.input[0])
        flat = node.op_type == "Reshape" or (node.op_type == "Flatten" and attribute(node, "axis", 1) == 1)
        return flat and before is not None and before.op_type in _GLOBAL

    def _columns(self, node: onnx.NodeProto, which: Array) -> bool:
        """Whether the factors belong to columns of the product, which come from its second activation."""
        if self.constants.keys() & set(node.input) or (which.ndim > 1 and which.shape[-2] != 1):
            return False
        return which.ndim <= 2 or len(self.shape(node.input[1])) >= which.ndim

    def _before_reshape(self, source: str, target: list[int], which: Array) -> Iterator[Way]:
        """Places before a Reshape: the last axis kept, split, or merged.

        The node that takes the factors decides.
        """
        tail = [size for size in self.shape(source)[-2:] if size is not None]
        if which.ndim == 1 and len(tail) == 2 and tail[0] * tail[1] == which.size:
            yield Way(source, which.reshape(tail), front=False)
        if which.ndim == 1 and target[-1] in (-1, which.size):
            yield Way(source, which, front=False)
        count = max(which.ndim, 2)
        fits = all(have in (1, want) for have, want in zip(which.shape[::-1], target[::-1], strict=False))
        if len(target) > count and min(target[-count:]) > 0 and fits:
            yield Way(source, np.broadcast_to(which, target[-count:]).reshape(-1), front=False)

    def _before_part(self, node: onnx.NodeProto, way: Way) -> Iterator[Way]:
        """The tensor from which a part is taken; channels of the other parts take no factors."""
        part, shape = self._part(node, way.tensor), self.shape(node.input[0])
        if part is None:
            return
        axis, chosen, kept = part
        size = shape[axis] or 0
        which = _in_full(way.which, len(shape) - (not kept))
        which = which if kept else np.expand_dims(which, axis)
        if which.shape[axis] not in (1, chosen.size):
            return
        whole = np.full([*which.shape[:axis], size, *which.shape[axis + 1 :]], -1)
        whole[(slice(None),) * axis + (chosen,)] = which
        yield Way(node.input[0], _tail(whole), front=False)

    def _before_squeeze(self, node: onnx.NodeProto, which: Array) -> Iterator[Way]:
        """The places before a Squeeze or Unsqueeze, which removes or adds axes of size 1."""
        before, after = self.shape(node.input[0]), self.shape(node.output[0])
        if not before or not after:
            return
        axes, whole = self._axes(node, max(len(before), len(after))), _in_full(which, len(after))
        squeezed = node.op_type == "Squeeze"
        whole = np.expand_dims(whole, axes) if squeezed else np.squeeze(whole, axes)
        yield Way(node.input[0], _tail(whole), front=False)

    def _axes(self, node: onnx.NodeProto, rank: int) -> tuple[int, ...]:
        """The axes of a Squeeze or Unsqueeze, counted from the front; none where they are not known."""
        given = attribute(node, "axes", [])
        if len(node.input) > 1 and node.input[1] in self.constants:
            given = self.constants[node.input[1]].reshape(-1).tolist()
        return tuple(sorted(axis % rank for axis in given))

    def _part(self, node: onnx.NodeProto, output: str) -> tuple[int, Array, bool] | None:
        """The axis of a part, its indices along the axis, and whether it keeps the axis; None: not known."""
        shape, given = self.shape(node.input[0]), [name for name in node.input[1:] if name]
        if not shape or any(name not in self.constants for name in given):
            return None
        numbers = [self.constants[name].reshape(-1).tolist() for name in given]
        axis, step = attribute(node, "axis", 0), 1
        if node.op_type == "Slice":
            (axis, *more), step = (*numbers[2:3], [0])[0], (*numbers[3:4], [1])[0][0]
            if more or len(numbers[0]) > 1:
                return None
        axis %= len(shape)
        if (size := shape[axis]) is None:
            return None
        places = np.arange(size)
        if node.op_type == "Slice":
            return axis, places[numbers[0][0] : numbers[1][0] : step], True
        if node.op_type == "Gather":
            return (axis, places[numbers[0]], False) if self.constants[given[0]].ndim == 0 else None
        count, place = len(node.output), list(node.output).index(output)
        sizes = numbers[0] if numbers else attribute(node, "split", []) or [-(-size // count)] * count
        return axis, places[sum(sizes[:place]) : sum(sizes[: place + 1])], True

    def _is_parted(self, tensor: str) -> bool:
        """Whether all readers of a tensor take disjoint parts of it along one axis."""
        reading = [(node, position) for node, position in self.index.readers(tensor)]
        if tensor in self.index.public or any(n.op_type not in _PARTS or p for n, p in reading):
            return False
        parts = [self._part(node, output) for node, _ in reading for output in node.output]
        axes = {part[0] for part in parts if part is not None}
        taken = [place for part in parts if part is not None for place in part[1].tolist()]
        return None not in parts and len(axes) == 1 and len(set(taken)) == len(taken)

    def shape(self, tensor: str) -> list[int | None]:
        """The last sizes of a tensor as far as Reshapes and weights decide them; None for sizes of inputs."""
        node = self.index.producer.get(tensor)
        if node is None:
            return []
        if node.op_type == "Reshape" and node.input[1] in self.constants:
            return [size if size > 0 else None for size in self.constants[node.input[1]].tolist()]
        if node.op_type in ("MatMul", "Gemm"):
            weight = self.constants.get(node.input[1])
            if weight is not None:
                return [None, weight.shape[0 if attribute(node, "transB", 0) else -1]]
            shape = self.shape(node.input[1])
            return [*shape[:-2], None, shape[-1]] if len(shape) > 1 else []
        if node.op_type == "Transpose":
            shape, perm = self.shape(node.input[0]), attribute(node, "perm", [])
            return [shape[axis] for axis in perm] if len(perm) == len(shape) else []
        if node.op_type in _HOMOGENEOUS:
            return self.shape(node.input[0])
        if node.op_type in _PARTS:
            return self._shape_of_part(node, tensor)
        if node.op_type in ("Squeeze", "Unsqueeze"):
            return self._shape_of_squeezed(node)
        rest = [name for name in node.input if name not in self.constants]
        if node.op_type not in _ELEMENTWISE or len(rest) != 1:
            return []
        shape, other = self.shape(rest[0]), next(n for n in node.input if n in self.constants)
        sizes = zip(shape[::-1], self.constants[other].shape[::-1], strict=False)
        return shape if all(more in (1, size) for size, more in sizes) else []

    def _shape_of_part(self, node: onnx.NodeProto, tensor: str) -> list[int | None]:
        part, shape = self._part(node, tensor), self.shape(node.input[0])
        if part is None:
            return []
        axis, chosen, kept = part
        return [*shape[:axis], *[chosen.size] * kept, *shape[axis + 1 :]]

    def _shape_of_squeezed(self, node: onnx.NodeProto) -> list[int | None]:
        shape = self.shape(node.input[0])
        added = len(self._axes(node, 1)) * (node.op_type == "Unsqueeze")
        axes = self._axes(node, len(shape) + added) if shape else ()
        if not axes:
            return []
        if not added:
            return [size for axis, size in enumerate(shape) if axis not in axes]
        sizes = iter(shape)
        return [1 if axis in axes else next(sizes) for axis in range(len(shape) + added)]


def _in_full(which: Array, rank: int) -> Array:
    """``which`` with a dimension for each axis of the tensor."""
    return which.reshape([1] * (rank - which.ndim) + list(which.shape))


def _tail(which: Array) -> Array:
    """``which`` without leading dimensions of size 1."""
    while which.ndim > 1 and which.shape[0] == 1:
        which = which[0]
    return which


def _before_transpose(source: str, perm: Sequence[int], way: Way) -> Way:
    which = along(way.which, 1, len(perm)) if way.front else way.which
    before = _in_full(which, len(perm)).transpose(np.argsort(perm))
    if len(perm) > 1 and before.shape[1] == before.size > 1:
        at_front = Way(source, before.reshape(-1), front=True)
        return at_front if len(perm) > 2 else Way(source, before.reshape(-1), front=False)
    return Way(source, _tail(before), front=False)


def divided(node: onnx.NodeProto, way: Way, factors: Array, constants: dict[str, Array]) -> dict[int, Array]:
    """New constants of a node, by position, that divide its output by the factors of a way.

    The node takes the factors, or is an Add on the way there.
    """
    spread, last = way.spread(factors), 0 if attribute(node, "transB", 0) else 1
    places: list[tuple[int, int]] = []
    if node.op_type in NORMS or node.op_type == "Conv":
        places = [(1, 0), (2, 0)]
    elif node.op_type == "Gemm":
        places = [(1, last), (2, -1)]
    elif node.op_type in ("MatMul", "Mul", "Div", "Add"):
        places = [(i, -1) for i, read in enumerate(node.input) if read in constants]
    found = {}
    for index, axis in places:
        if index < len(node.input) and node.input[index]:
            array = constants[node.input[index]]
            by = spread if axis == -1 else along(spread, axis, max(array.ndim, 1))
            found[index] = array * by if node.op_type == "Div" else array / by
    return found
