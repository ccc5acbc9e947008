"""Places Q/DQ where TensorRT needs it, and finds the channel axes of weights and activations.

Q/DQ is placed as TensorRT's developer guide says in 'Q/DQ layer-placement recommendations':

- Every input of a weighted node (Conv, ConvTranspose, Gemm, MatMul) is quantized: activations per tensor,
  constant weights per channel. The bias stays float, and the output is not quantized.
- If an Add joins a convolution with a residual, the residual is also quantized, so that the convolution and
  the Add fuse into one INT8 kernel.
- A grouped convolution needs a multiple of 4 channels per group, unless it is depthwise.

FP8 Q/DQ has the same places, except ConvTranspose and large filters, which NVIDIA's ModelOpt leaves out.

Each weighted node, and each Add of a residual, is a group: the inputs of the node change precision together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

import numpy as np
import onnx

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.formats import FP16, INT8, Format, along
from pytest_int8acc.graph.index import Index, all_nodes, attribute
from pytest_int8acc.graph.model import Model, unload
from pytest_int8acc.graph.network import Edge, Group, LeftHigh, Network, Quantization
from pytest_int8acc.tensors import Array, Dim, TensorInfo, did_you_mean

#: Weighted operators: operators that multiply by weights, and for which TensorRT has INT8 kernels.
WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
#: Operators that only move values. TensorRT can move a QuantizeLinear before them, and a DequantizeLinear
#: after them.
COMMUTING = frozenset(
    {"Identity", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "MaxPool", "Slice", "Split"}
    | {"Dropout", "Gather", "DepthToSpace", "SpaceToDepth", "Expand", "Tile"}
)
#: Operators whose output has the shape of their first input, and that apply one function to all elements.
ALIKE = frozenset(
    {"Identity", "Cast", "Dropout", "Relu", "Clip", "Neg", "QuantizeLinear", "DequantizeLinear"}
)
#: Operators that change the shape of a tensor, but not the order of its elements.
RESHAPING = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
#: Operators that scale or shift the elements of one input if the other input is a constant.
AFFINE = frozenset({"Mul", "Add", "Sub", "Div"})
#: Key: an operator whose output has one channel for each of its filters or scales. Value: the channel axis of
#: the output.
MADE_CHANNELS = {
    **dict.fromkeys(("Conv", "ConvTranspose", "BatchNormalization", "InstanceNormalization"), 1),
    **dict.fromkeys(("Gemm", "MatMul", "LayerNormalization", "RMSNormalization"), -1),
}
#: Operator to the positions of its inputs that are biases: they shift all values of a channel alike.
BIASES: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "InstanceNormalization", "LayerNormalization"), (2,)),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), (3,)),
    "GroupNormalization": (2,),
    "BatchNormalization": (2, 3),
}
#: Operator to the axis of its weight that has the input channels.
_INPUT_AXES = {"MatMul": -2, "ConvTranspose": 0, "LSTM": 2, "GRU": 2, "RNN": 2}
#: Maximum number of nodes that are followed from an output back towards the inputs. Beyond this number, the
#: search ends.
MAX_STEPS = 64


@dataclass(frozen=True)
class Slot:
    """One input of one node that is to be quantized."""

    node: str
    index: int
    """The position among the node's inputs."""
    tensor: str
    constant: bool
    axis: int | None = None
    """The channel axis of a constant with a scale per channel; None for one scale for the tensor."""


@dataclass(frozen=True)
class Layout:
    """The inputs of a float model that are to be quantized, before scales are known."""

    slots: Mapping[str, tuple[Slot, ...]]
    """For each group, in topological order, the inputs of its node that are to be quantized. The key is the
    name of the node, which is also the name of the group."""
    left_high: Mapping[str, LeftHigh]
    """The reason why a convolution or matrix product stays in high precision, by node name."""
    shared: tuple[frozenset[str], ...]
    """Sets of activations that must share one scale, because a Concat joins them."""

    @property
    def activations(self) -> tuple[str, ...]:
        """The names of all activations that need a scale, without repetition."""
        used = [s.tensor for slots in self.slots.values() for s in slots if not s.constant]
        joined = [t for tensors in self.shared for t in sorted(tensors)]
        return tuple(dict.fromkeys([*used, *joined]))


def find_groups(model: Model, exclude: Sequence[str] = (), low: Format = INT8) -> Layout:
    """Find the inputs of nodes to quantize, by TensorRT's rules for the places of Q/DQ.

    Args:
        model: A float32 model in normal form; see ``graph.load``.
        exclude: fnmatch patterns of the names of nodes that stay in high precision.
        low: INT8 or FP8.

    Raises:
        ModelError: A pattern of ``exclude`` matches no node, or the model has nothing to quantize.
    """
    finder = _Finder(model, exclude, low)
    slots = {node.name: found for node in model.graph.node if (found := finder.slots_of(node))}
    for node in all_nodes(model.graph):
        if node.op_type in WEIGHTED and node.name not in model.index.nodes:
            finder.left_high[node.name or node.output[0]] = LeftHigh("nested")
    if not slots:
        reasons = "; ".join(f"{n}: {why.text}" for n, why in list(finder.left_high.items())[:5])
        raise ModelError(f"{model.name}: nothing to quantize ({reasons or 'no Conv, Gemm or MatMul in it'})")
    return Layout(slots, finder.left_high, tuple(_shared_scales(model, slots)))


class _Finder:
    """Finds the inputs to quantize, node by node in topological order."""

    def __init__(self, model: Model, exclude: Sequence[str], low: Format) -> None:
        self.low = low
        self.index = model.index
        self.constants = model.constants()
        arrays = self.constants.items()
        self.values = model.values() | {n: TensorInfo(n, array.dtype, array.shape) for n, array in arrays}
        self.left_high: dict[str, LeftHigh] = {}
        self.excluded = match_nodes(model, exclude)
        self.in_low: set[str] = set()
        """The names of the weighted nodes whose inputs will be quantized, among the nodes visited so far."""

    def slots_of(self, node: onnx.NodeProto) -> tuple[Slot, ...]:
        """The inputs of a node that are to be quantized.

        A weighted node that cannot be quantized gets an entry in ``left_high``.
        """
        if node.domain:
            return ()
        if node.op_type in WEIGHTED:
            reason = self.excluded.get(node.name) or self._unfit(node)
            if reason is not None:
                self.left_high[node.name] = reason
                return ()
            self.in_low.add(node.name)
            return tuple(self._slot(node, index) for index in (0, 1))
        residual = self._residual_input(node) if node.op_type == "Add" else None
        if residual is not None and node.name not in self.excluded:
            return (Slot(node.name, residual, node.input[residual], constant=False),)
        return ()

    def _unfit(self, node: onnx.NodeProto) -> LeftHigh | None:
        """The reason why a weighted node cannot be quantized; None if it can."""
        for name in node.input[:2]:
            info = self.values.get(name)
            if info is not None and info.dtype != np.float32:
                return LeftHigh("wrong-dtype", (name, str(info.dtype)))
            if info is not None and info.shape == ():
                return LeftHigh("scalar", (name,))
        if all(name in self.constants for name in node.input[:2]):
            return LeftHigh("constant")
        if node.op_type.startswith("Conv"):
            if node.input[1] not in self.constants:
                return LeftHigh("computed-weights")
            weight, low = self.constants[node.input[1]], self.low.name.upper()
            if node.op_type == "ConvTranspose" and not self.low.has_deconvolutions:
                return LeftHigh("no-kernel", (node.op_type, low))
            size = math.prod(weight.shape[2:])
            if node.op_type == "Conv" and size >= self.low.max_filter:
                return LeftHigh("no-kernel", (f"a filter of {size} weights", low))
            return unfit_groups(node, weight)
        return None

    def _slot(self, node: onnx.NodeProto, index: int) -> Slot:
        array = self.constants.get(node.input[index])
        axis = None if array is None else scales_axis(node, index, array.ndim)
        return Slot(node.name, index, node.input[index], array is not None, axis)

    def _residual_input(self, node: onnx.NodeProto) -> int | None:
        """The input position of the residual if an Add adds it to a quantized convolution; else None."""
        if len(node.input) != 2 or any(name in self.constants for name in node.input):
            return None
        shapes = [info.shape if (info := self.values.get(name)) else None for name in node.input]
        if None not in shapes and shapes[0] != shapes[1]:
            return None  # An Add that broadcasts adds no residual.
        order = self.index.order
        made = [
            fusable_convolution(self.index, name, lambda found: found.name in self.in_low)
            for name in node.input
        ]
        fused = [(order[conv.name], i) for i, conv in enumerate(made) if conv is not None]
        return 1 - max(fused)[1] if fused else None


def match_nodes(model: Model, patterns: Sequence[str], groups: Sequence[str] = ()) -> dict[str, LeftHigh]:
    """For each node or group that a pattern matches, by name: the reason why it stays in high precision.

    Args:
        model: The model. The names of its main graph's nodes are matched.
        patterns: fnmatch patterns.
        groups: The names of groups inside If, Loop and Scan, which are matched as well.

    Raises:
        ModelError: A pattern matches no node.
    """
    nodes = list(dict.fromkeys([*model.index.nodes, *groups]))
    matched: dict[str, LeftHigh] = {}
    for pattern in patterns:
        found = [name for name in nodes if name == pattern or fnmatchcase(name, pattern)]
        if not found:
            hint = did_you_mean(pattern, nodes)
            raise ModelError(f"{model.name}: 'exclude' pattern '{pattern}' matches no node{hint}")
        matched.update(dict.fromkeys(found, LeftHigh("excluded", (pattern,))))
    return matched


def unfit_groups(node: onnx.NodeProto, weight: Array) -> LeftHigh | None:
    """The reason why a convolution with a ``group`` attribute cannot be quantized; None if it can."""
    groups = attribute(node, "group", 1)
    if groups == 1:
        return None
    if node.op_type == "Conv":
        per_group = (weight.shape[1], weight.shape[0] // groups)
    else:
        per_group = (weight.shape[0] // groups, weight.shape[1])
    if per_group[0] == 1 or all(n % 4 == 0 for n in per_group):
        return None
    return LeftHigh("odd-channels", (str(per_group[0]), str(per_group[1])))


def _shared_scales(model: Model, slots: Mapping[str, tuple[Slot, ...]]) -> list[frozenset[str]]:
    """Sets of tensors that must have the same scale: those that a Concat joins, and the Concat's output.

    If the scales are equal, TensorRT can move a QuantizeLinear before the Concat. Only quantized tensors are
    in the sets: the moved QuantizeLinear also quantizes all other inputs, with the scale of the output.
    """
    quantized = {s.tensor for group in slots.values() for s in group if not s.constant}
    found: list[frozenset[str]] = []
    for node in model.graph.node:
        if node.op_type == "Concat":
            after = quantized.intersection(_forward(model.index, node.output[0]))
            before = quantized.intersection(t for name in node.input for t in _backward(model.index, name))
            together = after | before
            if after and len(together) > 1:
                others = [tensors for tensors in found if tensors.isdisjoint(together)]
                joined = [tensors for tensors in found if not tensors.isdisjoint(together)]
                found = [*others, frozenset(together.union(*joined))]
    return found


def _backward(index: Index, tensor: str) -> Iterator[str]:
    """``tensor``, and the tensors before it from which it is made by nodes that only move values."""
    yield tensor
    while (node := index.producer.get(tensor)) is not None and moves_values(node):
        tensor = node.input[0]
        yield tensor


def _forward(index: Index, tensor: str) -> Iterator[str]:
    """``tensor``, and the tensors after it that are made from it by nodes that only move values."""
    reached = [tensor]
    for name in reached:
        yield name
        moving = (node for node, position in index.readers(name) if position == 0 and moves_values(node))
        reached.extend(made for node in moving for made in node.output)


def origins(model: Model) -> dict[str, str]:
    """For nodes that only move values, such as Reshape: the name of each output to the name of the input."""
    return {name: node.input[0] for node in model.graph.node if moves_values(node) for name in node.output}


def moves_values(node: onnx.NodeProto) -> bool:
    """Whether a node's output holds only values of its first input, so that both can have one scale."""
    if node.op_type == "Resize":
        return bool(attribute(node, "mode", b"nearest") == b"nearest")
    return node.op_type in COMMUTING and not node.domain


def quantize(model: Model, layout: Layout, scales: Mapping[str, float], low: Format = INT8) -> Network:
    """The network of ``model`` with every input in ``layout`` quantized symmetrically.

    A group with an activation that has no scale stays in high precision, with an entry in ``left_high``.

    Args:
        model: The float model that ``layout`` was made for. FP8 needs opset 19.
        layout: The result of ``find_groups``.
        scales: Activation to its scale, amax / ``low.levels``. Activations may be missing.
        low: INT8 or FP8.

    Raises:
        ModelError: No group can be quantized, or a weight holds nan or inf.
    """
    known = _joined(layout, scales)
    constants = model.constants()
    made: dict[tuple[str, int | None], Quantization] = {}

    def edge(slot: Slot) -> Edge:
        key = slot.tensor, slot.axis
        if key not in made:  # Nodes that read the same tensor share its scale and its codes.
            if slot.constant:
                weight = constants[slot.tensor]
                if not np.isfinite(weight).all():
                    raise ModelError(
                        f"{model.name}: weight '{slot.tensor}' of '{slot.node}' holds nan or inf"
                    )
                made[key] = quantize_weight(weight, slot.axis, low)
                unload(weight)
            else:
                scale = np.array(known[slot.tensor], np.float32)
                made[key] = Quantization(scale, low.zeros(scale))
        return Edge(slot.node, slot.index, slot.tensor, made[key])

    groups, left_high = [], dict(layout.left_high)
    for name, slots in layout.slots.items():
        missing = tuple(s.tensor for s in slots if not s.constant and s.tensor not in known)
        if missing:
            left_high[name] = LeftHigh("no-scale", missing)
            continue
        groups.append(Group(name, model.index.nodes[name].op_type, (name,), tuple(map(edge, slots))))
    if not groups:
        raise ModelError(f"{model.name}: nothing to quantize: the scales cover none of the tensors needed")
    return Network(model, tuple(groups), left_high, low=low)


def quantize_weight(weight: Array, axis: int | None, low: Format = INT8) -> Quantization:
    """A constant quantized symmetrically, with the scale max|w| / ``low.levels``.

    The codes of INT8 are -127 to 127, as in TensorRT. FP16 has few digits below 2**-14. A scale below 2**-14
    is raised to the next FP16 number, so that it does not change when the model runs in FP16.

    Args:
        weight: Finite numbers, of any shape.
        axis: The channel axis, or None for one scale for the tensor.
        low: INT8 or FP8.
    """
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)
    # abs() is avoided, because it would copy a weight that is mapped from a file.
    amax = np.maximum(weight.max(axis=others), -weight.min(axis=others)).astype(np.float32)
    scale, step = amax / np.float32(low.levels), np.float32(FP16.smallest)
    scale = np.where(scale < np.float32(FP16.normal), np.ceil(scale / step) * step, scale)
    # A channel of zeros may have any scale above 0.
    scale = np.where(amax > 0, scale, 1 / low.levels).astype(np.float32)
    codes = low.quantize(weight, scale, axis=axis)
    return Quantization(scale, low.zeros(scale), axis, codes)


def _joined(layout: Layout, scales: Mapping[str, float]) -> dict[str, float]:
    """``scales``, but all tensors of a set in ``layout.shared`` get the greatest scale of the set."""
    joined = dict(scales)
    for tensors in layout.shared:
        present = [t for t in tensors if t in scales]
        joined.update(dict.fromkeys(present, max((scales[t] for t in present), default=0.0)))
    return joined


def fusable_convolution(
    index: Index, tensor: str, is_quantized: Callable[[onnx.NodeProto], bool]
) -> onnx.NodeProto | None:
    """The convolution that computes ``tensor``; None if ``is_quantized(convolution)`` is false.

    A BatchNormalization may lie between the convolution and ``tensor``. The result is also None if another
    node computes ``tensor``, or if the convolution or the BatchNormalization has not exactly one reader.
    """
    node = index.producer.get(tensor)
    if node is None or index.only_reader(tensor) is None:
        return None
    if node.op_type == "BatchNormalization":
        return fusable_convolution(index, node.input[0], is_quantized)
    return node if node.op_type in ("Conv", "ConvTranspose") and is_quantized(node) else None


def output_axis(node: onnx.NodeProto, index: int, rank: int) -> int | None:
    """The axis of input ``index`` of a weighted node that becomes an axis of the output; None if none does.

    For the weights of a convolution, it is the axis of the output channels: K in the layout KCRS, or in CKRS
    for a ConvTranspose. For the right operand of a matrix product, it is the axis of columns. For the left
    operand, it is the axis of rows.
    """
    if node.op_type.startswith("Conv"):
        return int(node.op_type == "ConvTranspose") if index == 1 else None
    is_transposed = node.op_type == "Gemm" and bool(attribute(node, "transB" if index else "transA", 0))
    return rank - 1 if is_transposed != (index == 1) else rank - 2


def channel_parameters(node: onnx.NodeProto) -> dict[int, int]:
    """The inputs that scale or shift the output channels: position to the channel axis of the input.

    These inputs are the weights and the bias of a Conv, Gemm or MatMul, and the scale and the bias of a
    normalization. The result is empty for other nodes.
    """
    if node.op_type in ("Gemm", "MatMul"):
        return {1: 0 if attribute(node, "transB", 0) else 1, 2: -1}
    if node.op_type in MADE_CHANNELS and node.op_type != "ConvTranspose":
        return {1: 0, 2: 0}
    return {}


def scales_axis(node: onnx.NodeProto, index: int, rank: int) -> int | None:
    """The axis along which TensorRT needs scales for a constant input of a weighted node; None for one scale.

    ``index`` is the position of the input, and ``rank`` its number of axes.
    """
    if node.op_type == "ConvTranspose" and attribute(node, "group", 1) != 1:
        return None
    if not node.op_type.startswith("Conv") and rank != 2:
        return None
    return output_axis(node, index, rank)


def folded_norm(norm: onnx.NodeProto, parameters: Sequence[Array]) -> tuple[Array, Array]:
    """A BatchNormalization as a product and a sum: the factor and the offset, float64 [channels].

    ``parameters`` are its scale, bias, mean and variance.
    """
    scale, bias, mean, variance = (array.astype(np.float64) for array in parameters)
    factor = scale / np.sqrt(variance + attribute(norm, "epsilon", 1e-5))
    return factor, bias - mean * factor


def by_input(weight: Array, node: onnx.NodeProto) -> Array:
    """The weight of a node, with the output channels on axis 1 and the input channels on axis 2.

    For a Conv the shape is [groups, outputs per group, inputs per group, ...]; for a product [1, outputs,
    inputs].
    """
    if node.op_type == "Conv":
        groups = attribute(node, "group", 1)
        return weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    return np.asarray(weight if attribute(node, "transB", 0) else weight.T)[None]


def by_weight(factors: Array, weight: Array, node: onnx.NodeProto) -> Array | None:
    """Factors of input channels, shape [channels], reshaped to multiply the weight of a node.

    For a Gather, the rows of its table are the input channels. None if the factors do not fit the weight.
    """
    axis = {**_INPUT_AXES, "Gemm": attribute(node, "transB", 0), "Gather": attribute(node, "axis", 0)}.get(
        node.op_type
    )
    if axis is not None:
        fits = -weight.ndim <= axis < weight.ndim and weight.shape[axis] == factors.size
        return along(factors, axis, weight.ndim) if fits else None
    groups = factors.size // weight.shape[1] if node.op_type == "Conv" else 0
    if not groups or groups * weight.shape[1] != factors.size or weight.shape[0] % groups:
        return None
    rows = factors.reshape(groups, -1).repeat(weight.shape[0] // groups, axis=0)
    return rows.reshape(*weight.shape[:2], *[1] * (weight.ndim - 2))


def summed_axis(op_type: str, index: int, rank: int, mixes: bool = False) -> int | None:
    """The channel axis of an activation, judged by the node that reads the activation; None below rank 2.

    A convolution or matrix product sums over the channels. For other nodes, the channel axis is taken to be
    the last axis at rank 3, and axis 1 otherwise.

    Args:
        op_type: The operator of the node that reads the activation.
        index: The input position at which the node reads the activation.
        rank: The number of axes of the activation.
        mixes: Whether the node is a MatMul after a Softmax; see :func:`mixing`. If so, the channels of its
            second input are on the last axis.
    """
    if rank < 2:
        return None
    if mixes and index == 1:
        return rank - 1
    if op_type in ("MatMul", "Gemm"):
        return rank - 1 if index == 0 else rank - 2
    return 1 if rank != 3 or op_type.startswith("Conv") else 2


def mixing(model: Model) -> frozenset[str]:
    """Names of the MatMul nodes whose first input is a Softmax, as in attention."""
    found = set[str]()
    producer = model.everywhere.producer
    for node in model.everywhere.nodes.values():
        before = producer.get(node.input[0]) if node.op_type == "MatMul" else None
        while before is not None and moves_values(before):
            before = producer.get(before.input[0])
        if before is not None and before.op_type == "Softmax":
            found.add(node.name)
    return frozenset(found)


class ChannelAxes:
    """Finds the axes along which activations have their channels."""

    def __init__(self, model: Model) -> None:
        self.tracer, self._mixing = ChannelTracer(model), mixing(model)

    def of(self, tensor: str, reader: tuple[onnx.NodeProto, int] | None) -> int | None:
        """The channel axis of a tensor that ``reader`` reads; None if there is none, or for unknown rank.

        If the reader is a convolution or matrix product, it alone decides the axis. For other readers, and
        for an output, the node before the tensor that made the channels decides, if it is found. If not,
        ``summed_axis`` decides for other readers, and an output of rank 2 or 3 gets its last axis.

        Args:
            tensor: An activation.
            reader: A node and the input position at which it reads the tensor; None for an output of the
                model.
        """
        is_weighted = reader is not None and reader[0].op_type in WEIGHTED
        axis = None if is_weighted else self.tracer.channels(tensor)
        if axis is not None:
            return axis
        rank = len(self.tracer.shape(tensor) or ())
        if reader is None:
            return rank - 1 if rank in (2, 3) else None
        node, index = reader
        return summed_axis(node.op_type, index, rank, node.name in self._mixing)


def channel_axes(model: Model, tensors: Iterable[str]) -> dict[str, tuple[int, int]]:
    """The channel axis and the rank of each tensor.

    The first convolution or matrix product that reads the tensor decides the axis. If there is none, the
    first node that reads the tensor does; see ``ChannelAxes.of``. Tensors of unknown rank, and tensors with
    channels on axis 0, are left out.
    """
    axes, found = ChannelAxes(model), dict[str, tuple[int, int]]()
    for tensor in tensors:
        readers = model.everywhere.readers(tensor)
        weighted = [reader for reader in readers if reader[0].op_type in WEIGHTED]
        axis = axes.of(tensor, next(iter(weighted or readers), None))
        if axis:
            found[tensor] = axis, len(axes.tracer.shape(tensor) or ())
    return found


def moved_axis(axis: int, rank: int, moves: Iterable[onnx.NodeProto]) -> int | None:
    """The position of ``axis`` of a tensor with ``rank`` axes after the nodes ``moves`` moved its elements.

    None if one of these nodes is not a Transpose, Identity or Dropout.
    """
    axis %= rank
    for node in moves:
        if node.op_type == "Transpose":
            order = attribute(node, "perm", list(range(rank))[::-1])
            if sorted(order) != list(range(rank)):
                return None
            axis = order.index(axis)
        elif node.op_type not in ("Identity", "Dropout"):
            return None
    return axis


class ChannelTracer:
    """Follows axes and elements of a tensor back through nodes that only move, pick or scale elements."""

    def __init__(self, model: Model) -> None:
        self._model, self._constants = model, model.constants()
        self._made = model.everywhere.producer

    @cached_property
    def _shapes(self) -> dict[str, tuple[Dim, ...] | None]:
        return {name: info.shape for name, info in self._model.values().items()}

    def shape(self, tensor: str) -> tuple[Dim, ...] | None:
        """The shape of a tensor; None if the rank is not known."""
        return self._shapes.get(tensor)

    def size(self, tensor: str, axis: int) -> int | None:
        """The size of a tensor along an axis; None if it is not known."""
        shape = self.shape(tensor) or ()
        size = shape[axis] if axis < len(shape) else None
        return size if isinstance(size, int) else None

    def source(self, node: onnx.NodeProto) -> str | None:
        """The input whose elements a node only moves, picks or scales; None for nodes that do more."""
        if node.op_type in ALIKE | RESHAPING or node.op_type in ("Transpose", "Slice", "Split"):
            return str(node.input[0])
        if node.op_type in AFFINE:
            varying = [name for name in node.input if name not in self._model.everywhere.constants]
            return varying[0] if len(varying) == 1 else None
        return None

    def before(self, node: onnx.NodeProto, output: str, labels: Array) -> Array | None:
        """Labels of the elements of a node's first input, from labels of the elements of its output.

        Args:
            node: A node that only moves or picks elements of its first input.
            output: The name of the node's output.
            labels: Integers of at least 0, with a dimension for each axis, that broadcast with the output.

        Returns:
            Labels that broadcast with the input; -1 for elements that are not in the output. None if the node
            does not only move or pick elements, or if sizes that are needed are not known.
        """
        shape, source = self.shape(output), self.shape(node.input[0])
        if shape is None or source is None or labels.ndim != len(shape):
            return None
        if node.op_type == "Transpose":
            return labels.transpose(np.argsort(attribute(node, "perm", range(labels.ndim)[::-1])))
        if node.op_type in RESHAPING:
            return _reshaped(labels, shape, source)
        parts = self.parts(node, output)
        if parts is None:
            return None
        if node.op_type == "Gather":
            labels = np.expand_dims(labels, tuple(parts))
        for axis, part in parts.items():
            size = self.size(node.input[0], axis)
            if size is None:
                return None
            whole = np.full([*labels.shape[:axis], size, *labels.shape[axis + 1 :]], -1)
            whole[(slice(None),) * axis + (part,)] = labels
            labels = whole
        return labels

    def parts(self, node: onnx.NodeProto, output: str) -> dict[int, slice] | None:
        """Which part of a node's first input an output holds: axis to its range of indices.

        None if the node is not a Slice, a Split or a Gather of one index, or if the range is not known.
        """
        names = [name for name in node.input[1:] if name]
        rank = len(self.shape(node.input[0]) or ())
        if not rank or any(name not in self._constants for name in names):
            return None
        axis = attribute(node, "axis", 0) % rank
        if node.op_type == "Split":
            start = 0
            for name in node.output:
                size = self.size(name, axis)
                if size is None:
                    return None
                if name == output:
                    return {axis: slice(start, start + size)}
                start += size
        numbers = [self._constants[name].reshape(-1).tolist() for name in names]
        if node.op_type == "Gather" and self._constants[names[0]].ndim == 0:
            (index,) = numbers[0]
            return {axis: slice(index, index + 1 or None)}
        if node.op_type != "Slice":
            return None
        starts, ends, *more = numbers
        axes = more[0] if more else range(len(starts))
        steps = more[1] if len(more) > 1 else [1] * len(starts)
        cuts = zip(axes, starts, ends, steps, strict=True)
        return {axis % rank: slice(start, end, step) for axis, start, end, step in cuts}

    def channels(self, tensor: str, steps: int = 0) -> int | None:
        """The channel axis of a tensor, from the node before it that made the channels, such as a Conv.

        None if no such node is found, or if the channels are on axis 0. ``steps`` is the number of nodes that
        were followed to this tensor; the search ends after ``MAX_STEPS``.
        """
        node, shape = self._made.get(tensor), self.shape(tensor)
        if node is None or not shape or steps > MAX_STEPS:
            return None
        rank = len(shape)
        if node.op_type == "Concat":
            return int(attribute(node, "axis", 0)) % rank or None
        if node.op_type in MADE_CHANNELS:
            return MADE_CHANNELS[node.op_type] % rank or None
        before = self.source(node)
        if before is None and node.op_type in AFFINE:
            before = str(node.input[0])
        axis = None if before is None else self.channels(before, steps + 1)
        if before is None or axis is None:
            return None
        kept = [place for place in range(1, rank) if self.axis_before(node, before, tensor, place) == axis]
        return kept[0] if kept else None

    def axis_before(self, node: onnx.NodeProto, source: str, output: str, axis: int) -> int | None:
        """The axis of a node's input ``source`` that becomes ``axis`` of its output; None if none does."""
        before, after = self.shape(source), self.shape(output)
        if node.op_type == "Transpose":
            return int(attribute(node, "perm", range(len(after or ()))[::-1])[axis])
        if node.op_type in RESHAPING:
            return _reshaped_axis(before, after, axis)
        return axis if len(before or ()) == len(after or ()) else None


def _reshaped_axis(before: tuple[Dim, ...] | None, after: tuple[Dim, ...] | None, axis: int) -> int | None:
    """The axis of the shape ``before`` that a Reshape keeps as ``axis``; None if it is split or merged."""
    if before is None or after is None or axis >= len(after):
        return None
    for place, size in enumerate(before):
        if not isinstance(size, int) or size != after[axis]:
            continue
        if _product(before[place + 1 :]) == _product(after[axis + 1 :]) is not None:
            return place
        # An axis 1 that stays axis 1 is also kept: only axis 0, which counts samples, is before it.
        is_first = before[:place] == after[:axis] or place == axis == 1
        if is_first and axis:
            return place
    return None


def _reshaped(labels: Array, after: tuple[Dim, ...], before: tuple[Dim, ...]) -> Array | None:
    """Labels for the input of a Reshape, shape ``before``, from labels of its output, shape ``after``.

    None if labels differ along an axis whose size is not known.
    """
    spread, shape = list(labels.shape), [1] * len(before)
    for axes, axes_before in _same_elements(after, before):
        if max(labels.shape[axes], default=1) > 1:
            sizes = [size for size in after[axes] if isinstance(size, int)]
            sizes_before = [size for size in before[axes_before] if isinstance(size, int)]
            if len(sizes) < len(after[axes]) or math.prod(sizes) != math.prod(sizes_before):
                return None
            spread[axes], shape[axes_before] = sizes, sizes_before
    return np.broadcast_to(labels, spread).reshape(shape)


def _same_elements(one: tuple[Dim, ...], other: tuple[Dim, ...]) -> Iterator[tuple[slice, slice]]:
    """Pairs of ranges of axes, one of each shape, with equally many elements; the last axes come first."""
    end, other_end = len(one), len(other)
    while end and other_end:
        runs = ((i, j) for i in reversed(range(end)) for j in reversed(range(other_end)))
        same = ((i, j) for i, j in runs if _are_as_many(one[i:end], other[j:other_end]))
        start, other_start = next(same, (0, 0))
        yield slice(start, end), slice(other_start, other_end)
        end, other_end = start, other_start
    yield slice(0, end), slice(0, other_end)


def _are_as_many(one: tuple[Dim, ...], other: tuple[Dim, ...]) -> bool:
    """Whether the products of two lists of sizes are surely equal."""
    return (one == other and None not in one) or _product(one) == _product(other) is not None


def _product(dims: tuple[Dim, ...]) -> int | None:
    sizes = [dim for dim in dims if isinstance(dim, int)]
    return math.prod(sizes) if len(sizes) == len(dims) else None
