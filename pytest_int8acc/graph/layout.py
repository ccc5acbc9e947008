"""Where TensorRT wants Q/DQ, where tensors have their channels, and which nodes change precision together.

The rules are those of TensorRT's developer guide, 'Q/DQ layer-placement recommendations':

- Every input of a weighted node (Conv, ConvTranspose, Gemm, MatMul) is quantized: activations per tensor,
  constant weights per channel. The bias stays float, and the output is not quantized.
- Where an Add joins a convolution with a residual, the residual is quantized too, so that the convolution
  and the Add fuse into one INT8 kernel.
- A grouped convolution needs a multiple of 4 channels per group, unless it is depthwise.

FP8 goes to the same places, but for ConvTranspose and large filters, which NVIDIA's ModelOpt leaves out.

Each weighted node, and each residual Add, is one group.
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
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Edge, Group, LeftHigh, Network, Quantization
from pytest_int8acc.tensors import Array, Dim, did_you_mean

#: Operators with weights, which have INT8 kernels.
WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
#: Operators that only move values: TensorRT moves Q backward through them, and DQ forward.
COMMUTING = frozenset(
    {"Identity", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "MaxPool", "Slice", "Split"}
    | {"Dropout", "Gather", "DepthToSpace", "SpaceToDepth", "Expand", "Tile"}
)
#: Operators that keep the shape of their first input and treat all of its elements alike.
ALIKE = frozenset(
    {"Identity", "Cast", "Dropout", "Relu", "Clip", "Neg", "QuantizeLinear", "DequantizeLinear"}
)
#: Operators that keep the order of elements and change the shape.
RESHAPING = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
#: Operators of two inputs that scale or shift their elements where one input is a constant.
AFFINE = frozenset({"Mul", "Add", "Sub", "Div"})
#: Operators that make channels of their own, and the axis of these.
MADE_CHANNELS = {
    **dict.fromkeys(("Conv", "ConvTranspose", "BatchNormalization", "InstanceNormalization"), 1),
    **dict.fromkeys(("Gemm", "MatMul", "LayerNormalization", "RMSNormalization"), -1),
}
#: Nodes on one path that a graph is followed back at most.
MAX_STEPS = 64


@dataclass(frozen=True)
class Slot:
    """One input of one node that is to be quantized.

    ``axis`` is the channel axis of a constant; None: per tensor.
    """

    node: str
    index: int
    tensor: str
    constant: bool
    axis: int | None = None


@dataclass(frozen=True)
class Layout:
    """Where Q/DQ goes in a float model, before scales are known."""

    slots: Mapping[str, tuple[Slot, ...]]
    """Group name to its slots, in topological order."""
    left_high: Mapping[str, LeftHigh]
    """Weighted nodes that stay in high precision, with the reason."""
    shared: tuple[frozenset[str], ...]
    """Sets of activations that must have one scale, because they meet in a Concat."""

    @property
    def activations(self) -> tuple[str, ...]:
        """Activations that need a scale, each once, in topological order, with those of ``shared``."""
        used = [s.tensor for slots in self.slots.values() for s in slots if not s.constant]
        joined = [t for tensors in self.shared for t in sorted(tensors)]
        return tuple(dict.fromkeys([*used, *joined]))


def find_groups(model: Model, exclude: Sequence[str] = (), low: Format = INT8) -> Layout:
    """Lay out Q/DQ for ``model`` by TensorRT's rules.

    Args:
        model: A float32 model in normal form.
        exclude: fnmatch patterns of node names that stay in high precision.
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
    """Finds the quantized inputs of one node after the other."""

    def __init__(self, model: Model, exclude: Sequence[str], low: Format) -> None:
        self.low = low
        self.index = model.index
        self.constants = model.constants()
        self.values = model.values()
        self.left_high: dict[str, LeftHigh] = {}
        self.excluded = match_nodes(model, exclude)
        self.in_int8: set[str] = set()

    def slots_of(self, node: onnx.NodeProto) -> tuple[Slot, ...]:
        if node.domain not in ("", "ai.onnx"):
            return ()
        if node.op_type in WEIGHTED:
            reason = self.excluded.get(node.name) or self._unfit(node)
            if reason is not None:
                self.left_high[node.name] = reason
                return ()
            self.in_int8.add(node.name)
            return tuple(self._slot(node, index) for index in (0, 1))
        residual = self._residual_input(node) if node.op_type == "Add" else None
        if residual is not None and node.name not in self.excluded:
            return (Slot(node.name, residual, node.input[residual], constant=False),)
        return ()

    def _unfit(self, node: onnx.NodeProto) -> LeftHigh | None:
        """The reason why a weighted node cannot be quantized; None where it can."""
        for name in node.input[:2]:
            info = self.values.get(name)
            array = self.constants.get(name)
            dtype = array.dtype if array is not None else (info.dtype if info else np.dtype("f4"))
            if dtype != np.float32:
                return LeftHigh("wrong-dtype", (name, str(dtype)))
            shape = array.shape if array is not None else (info.shape if info else None)
            if shape == ():
                return LeftHigh("scalar", (name,))
        if all(name in self.constants for name in node.input[:2]):
            return LeftHigh("constant")
        if node.op_type.startswith("Conv"):
            if node.input[1] not in self.constants:
                return LeftHigh("computed-weights")
            kind = _without_kernel(node, self.constants[node.input[1]], self.low)
            if kind:
                return LeftHigh("no-kernel", (kind, self.low.name.upper()))
            return unfit_groups(node, self.constants[node.input[1]])
        return None

    def _slot(self, node: onnx.NodeProto, index: int) -> Slot:
        array = self.constants.get(node.input[index])
        axis = None if array is None else scales_axis(node, index, array.ndim)
        return Slot(node.name, index, node.input[index], array is not None, axis)

    def _residual_input(self, node: onnx.NodeProto) -> int | None:
        """Index of the Add's residual where its other input is a convolution in INT8; None for other Adds."""
        if len(node.input) != 2 or any(name in self.constants for name in node.input):
            return None
        shapes = [info.shape if (info := self.values.get(name)) else None for name in node.input]
        if None not in shapes and shapes[0] != shapes[1]:
            return None  # a broadcast, not a residual
        order = self.index.order
        made = [fusable_convolution(self.index, name, self._is_int8) for name in node.input]
        fused = [(order[conv.name], i) for i, conv in enumerate(made) if conv is not None]
        return 1 - max(fused)[1] if fused else None

    def _is_int8(self, node: onnx.NodeProto) -> bool:
        return node.name in self.in_int8


def match_nodes(model: Model, patterns: Sequence[str], groups: Sequence[str] = ()) -> dict[str, LeftHigh]:
    """Nodes and groups whose name one of the fnmatch ``patterns`` matches, with the pattern as the reason.

    Args:
        model: Its main graph's nodes are matched.
        patterns: Of names.
        groups: More names, those of groups in bodies.

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
    """The reason why a grouped convolution cannot run in INT8; None where it can."""
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


def _without_kernel(node: onnx.NodeProto, weight: Array, low: Format) -> str:
    """A description of a convolution that has no kernel in ``low``; empty for others."""
    if node.op_type != "Conv":
        return "" if low.has_deconvolutions else node.op_type
    size = math.prod(weight.shape[2:])
    return f"a filter of {size} weights" if size >= low.max_filter else ""


def _shared_scales(model: Model, slots: Mapping[str, tuple[Slot, ...]]) -> Iterator[frozenset[str]]:
    """Tensors that meet in a Concat whose result is quantized: equal scales let Q move through the Concat.

    Only tensors that are quantized elsewhere, too, bind the scale. A tensor that only the Concat reads is
    quantized with the scale of its result anyway.
    """
    quantized = {s.tensor for group in slots.values() for s in group if not s.constant}
    joined: dict[str, set[str]] = {}
    for node in model.graph.node:
        if node.op_type != "Concat":
            continue
        after = quantized.intersection(_forward(model.index, node.output[0]))
        before = quantized.intersection(t for name in node.input for t in _backward(model.index, name))
        together = after | before
        if not after or len(together) < 2:
            continue
        parts = [together, *(joined[tensor] for tensor in together & joined.keys())]
        whole = max(parts, key=len)
        for part in parts:  # the smaller into the greatest, so that a tensor moves few times
            joined.update(dict.fromkeys(part if part is not whole else together, whole))
            whole |= part
    yield from {id(tensors): frozenset(tensors) for tensors in joined.values()}.values()


def _backward(index: Index, tensor: str) -> Iterator[str]:
    """``tensor``, and the tensors before it from which nodes only moved its values."""
    yield tensor
    while (node := index.producer.get(tensor)) is not None and moves_values(node):
        tensor = node.input[0]
        yield tensor


def _forward(index: Index, tensor: str) -> Iterator[str]:
    """``tensor``, and the tensors behind it to which nodes only moved its values."""
    reached = [tensor]
    for name in reached:
        yield name
        moving = (node for node, position in index.readers(name) if position == 0 and moves_values(node))
        reached.extend(made for node in moving for made in node.output)


def origins(model: Model) -> dict[str, str]:
    """Output of each node that only moves values to the input that it comes from."""
    return {name: node.input[0] for node in model.graph.node if moves_values(node) for name in node.output}


def moves_values(node: onnx.NodeProto) -> bool:
    """Whether the output of a node holds values of its first input only, so that both can share a scale."""
    if node.op_type == "Resize":
        return bool(attribute(node, "mode", b"nearest") == b"nearest")
    return node.op_type in COMMUTING and node.domain in ("", "ai.onnx")


def quantize(model: Model, layout: Layout, scales: Mapping[str, float], low: Format = INT8) -> Network:
    """The Network of ``model`` with every slot of ``layout`` quantized symmetrically.

    A group without a scale stays in high precision, with an entry in ``left_high``.

    Args:
        model: The float model that ``layout`` was made for; for FP8 of opset 19 or later.
        layout: From ``find_groups``.
        scales: Activation tensor to scale (amax / ``low.levels``); may miss some.
        low: INT8 or FP8.

    Raises:
        ModelError: No group is left to quantize, or a weight holds nan or inf.
    """
    known = _joined(layout, scales)
    constants = model.constants()
    made: dict[tuple[str, int | None], Quantization] = {}

    def edge(slot: Slot) -> Edge:
        key = slot.tensor, slot.axis
        if key not in made:  # readers of one tensor share its scale, and its codes
            if slot.constant:
                made[key] = _of_weight(slot, constants[slot.tensor], model.name, low)
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
    """A constant quantized symmetrically: scale = max|w| / levels, per slice of ``axis`` or for the whole.

    The codes of INT8 are -127 to 127, as those of TensorRT's own quantizers. A scale below 2**-14, where FP16
    has few digits, is raised to the next number that FP16 holds: in FP16 the codes would stand for other
    values.

    Args:
        weight: Any shape, finite.
        axis: The channel axis, or None for one scale.
        low: INT8 or FP8.
    """
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)
    # Two passes instead of abs(): a mapped weight is never copied whole.
    amax = np.maximum(weight.max(axis=others), -weight.min(axis=others)).astype(np.float32)
    scale, step = amax / np.float32(low.levels), np.float32(FP16.smallest)
    scale = np.where(scale < np.float32(FP16.normal), np.ceil(scale / step) * step, scale)
    # A channel that is all zeros is zeros at any scale above 0.
    scale = np.where(amax > 0, scale, 1 / low.levels).astype(np.float32)
    codes = low.quantize(weight, scale, axis=axis)
    return Quantization(scale, low.zeros(scale), axis, codes)


def _of_weight(slot: Slot, weight: Array, model: str, low: Format) -> Quantization:
    if not np.isfinite(weight).all():
        raise ModelError(f"{model}: weight '{slot.tensor}' of '{slot.node}' holds nan or inf")
    return quantize_weight(weight, slot.axis, low)


def _joined(layout: Layout, scales: Mapping[str, float]) -> dict[str, float]:
    """``scales`` with the greatest scale of each set of tensors that must have one scale."""
    joined = dict(scales)
    for tensors in layout.shared:
        present = [t for t in tensors if t in scales]
        joined.update(dict.fromkeys(present, max((scales[t] for t in present), default=0.0)))
    return joined


def fusable_convolution(
    index: Index, tensor: str, is_quantized: Callable[[onnx.NodeProto], bool]
) -> onnx.NodeProto | None:
    """The quantized convolution that makes ``tensor``, with a BatchNormalization behind it or not.

    None where another node makes the tensor, or where it has several readers.
    """
    node = index.producer.get(tensor)
    if node is None or index.only_reader(tensor) is None:
        return None
    if node.op_type == "BatchNormalization":
        return fusable_convolution(index, node.input[0], is_quantized)
    return node if node.op_type in ("Conv", "ConvTranspose") and is_quantized(node) else None


# Channels of weights


def output_axis(node: onnx.NodeProto, index: int, rank: int) -> int | None:
    """The axis of output channels at input ``index`` of a weighted node; None for an input without any.

    That is K of a convolution's KCRS weights, the second axis of a deconvolution's CKRS weights, and the
    output columns (rows for a left operand) of a matrix.
    """
    if node.op_type.startswith("Conv"):
        return int(node.op_type == "ConvTranspose") if index == 1 else None
    is_transposed = node.op_type == "Gemm" and bool(attribute(node, "transB" if index else "transA", 0))
    return rank - 1 if is_transposed != (index == 1) else rank - 2


def channel_parameters(node: onnx.NodeProto) -> dict[int, int]:
    """Inputs that scale or shift each output channel of a node, and the axis of the channels in each.

    These are the weights and the bias of a Conv, Gemm or MatMul, and the scale and the bias of a norm. Of
    other nodes there are none.
    """
    if node.op_type in ("Gemm", "MatMul"):
        is_transposed = bool(attribute(node, "transB", 0))
        return {1: 0 if is_transposed else 1, 2: -1}
    if node.op_type in MADE_CHANNELS and node.op_type != "ConvTranspose":
        return {1: 0, 2: 0}
    return {}


def scales_axis(node: onnx.NodeProto, index: int, rank: int) -> int | None:
    """The axis of per-channel scales that TensorRT takes for a weighted node's constant; None: per tensor."""
    if node.op_type == "ConvTranspose" and attribute(node, "group", 1) != 1:
        return None
    if not node.op_type.startswith("Conv") and rank != 2:
        return None
    return output_axis(node, index, rank)


def input_channels(node: onnx.NodeProto, weight: Array) -> int:
    """How many input channels the weight of a Conv, Gemm or MatMul has, those of all groups together."""
    if node.op_type == "Conv":
        return int(weight.shape[1] * attribute(node, "group", 1))
    return int(weight.shape[1 if attribute(node, "transB", 0) else 0])


def by_input(weight: Array, node: onnx.NodeProto) -> Array:
    """A weight as [groups, outputs, inputs per group, ...]; a matrix as [1, outputs, inputs]."""
    if node.op_type == "Conv":
        groups = attribute(node, "group", 1)
        return weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    return np.asarray(weight if attribute(node, "transB", 0) else weight.T)[None]


def by_weight(factors: Array, weight: Array, node: onnx.NodeProto) -> Array:
    """Numbers per input channel, [channels], shaped to multiply the weight of a Conv, Gemm or MatMul."""
    if node.op_type != "Conv":
        return along(factors, 1 if attribute(node, "transB", 0) else 0, 2)
    groups = factors.size // weight.shape[1]
    rows = factors.reshape(groups, -1).repeat(weight.shape[0] // groups, axis=0)
    return rows.reshape(*weight.shape[:2], *[1] * (weight.ndim - 2))


# Channels of activations


def summed_axis(op_type: str, index: int, rank: int, mixes: bool = False) -> int | None:
    """The axis of channels that a node sums over at input ``index``, or takes for channels; None: no axis.

    ``mixes`` says that the node is one of :func:`mixing`, which sums over the rows of its input 1.
    """
    if rank < 2:
        return None
    if mixes and index == 1:
        return rank - 1
    if op_type in ("MatMul", "Gemm"):
        return rank - 1 if index == 0 else rank - 2
    return 1 if rank != 3 or op_type.startswith("Conv") else 2


def mixing(model: Model) -> frozenset[str]:
    """Names of products behind a Softmax, which take weighted means of rows, as attention does."""
    found = set[str]()
    for node in model.graph.node:
        before = model.index.producer.get(node.input[0]) if node.op_type == "MatMul" else None
        while before is not None and moves_values(before):
            before = model.index.producer.get(before.input[0])
        if before is not None and before.op_type == "Softmax":
            found.add(node.name)
    return frozenset(found)


class ChannelAxes:
    """Finds the axes along which activations have their channels."""

    def __init__(self, model: Model) -> None:
        self.tracer, self._mixing = ChannelTracer(model), mixing(model)

    def of(self, tensor: str, reader: tuple[onnx.NodeProto, int] | None) -> int | None:
        """The axis of a tensor's channels for a reader, given as a node and the index of its input.

        A weighted reader decides by itself. For other readers the node that makes the channels decides, and
        the reader only where the graph does not tell. None: no axis, or the rank is not known.
        """
        axis = None
        if reader is None or reader[0].op_type not in WEIGHTED:
            axis = self.tracer.channels(tensor)
        if axis is None and reader is not None:
            node, index = reader
            rank = len(self.tracer.shape(tensor) or ())
            axis = summed_axis(node.op_type, index, rank, node.name in self._mixing)
        return axis


def channel_axes(model: Model, tensors: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Tensor to the axis of its channels and its rank; for the first weighted reader, else for the first one.

    Tensors are left out whose rank is not known, or whose channels lie on the first axis.
    """
    axes, found = ChannelAxes(model), dict[str, tuple[int, int]]()
    for tensor in tensors:
        readers = model.index.readers(tensor)
        weighted = [reader for reader in readers if reader[0].op_type in WEIGHTED]
        axis = axes.of(tensor, next(iter(weighted or readers), None))
        if axis:
            found[tensor] = axis, len(axes.tracer.shape(tensor) or ())
    return found


def output_channel_axis(model: Model, output: str) -> int | None:
    """The axis of a model output's channels: where they were made, else the last of two or three axes."""
    tracer = ChannelTracer(model)
    rank = len(tracer.shape(output) or ())
    if rank < 2:
        return None
    return tracer.channels(output) or (rank - 1 if rank <= 3 else None)


def moved_axis(axis: int, rank: int, moves: Iterable[onnx.NodeProto]) -> int | None:
    """The axis that ``axis`` of a tensor of ``rank`` becomes behind ``moves``; None where nodes mix axes."""
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
    """Follows tensors backwards through nodes that move, pick or scale their elements."""

    def __init__(self, model: Model) -> None:
        self._model, self._constants = model, model.constants()
        self._made = model.index.producer

    @cached_property
    def _shapes(self) -> dict[str, tuple[Dim, ...] | None]:
        return {name: info.shape for name, info in self._model.values().items()}

    def shape(self, tensor: str) -> tuple[Dim, ...] | None:
        """The shape of a tensor as far as it is known."""
        return self._shapes.get(tensor)

    def size(self, tensor: str, axis: int) -> int | None:
        """The size of a tensor along an axis, where it is known."""
        shape = self.shape(tensor) or ()
        size = shape[axis] if axis < len(shape) else None
        return size if isinstance(size, int) else None

    def source(self, node: onnx.NodeProto) -> str | None:
        """The input whose elements a node gives, moved, picked or scaled; None where it computes others."""
        if node.op_type in ALIKE | RESHAPING or node.op_type in ("Transpose", "Slice", "Split"):
            return str(node.input[0])
        if node.op_type in AFFINE:
            varying = [name for name in node.input if name not in self._model.index.constants]
            return varying[0] if len(varying) == 1 else None
        return None

    def before(self, node: onnx.NodeProto, output: str, labels: Array) -> Array | None:
        """The labels of a node's first input, from those of an output that has some of its elements.

        Args:
            node: It moves elements, or takes a part of them.
            output: Of the node.
            labels: Integers of at least 0, shaped to broadcast with the output, a dimension for each axis.

        Returns:
            Labels shaped to broadcast with the input, -1 for elements that are not in the output. None where
            the node does anything else, or sizes that are needed are not known.
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
        """Each axis along which an output is a part of the node's first input, and the part.

        None where the node is no Slice, Split or Gather of one index, or the part is not known.
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
        """The axis of the channels that a node made; None where the graph does not tell, or axis 0."""
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
        if node.op_type == "Transpose":
            return moved_axis(axis, rank, [node]) or None
        if node.op_type not in RESHAPING:
            return axis if len(self.shape(before) or ()) == rank else None
        kept = [place for place in range(1, rank) if reshaped_axis(self.shape(before), shape, place) == axis]
        return kept[0] if kept else None


def reshaped_axis(before: tuple[Dim, ...] | None, after: tuple[Dim, ...] | None, axis: int) -> int | None:
    """The axis of a tensor that a reshape keeps as ``axis``; None where it splits or merges it."""
    if before is None or after is None or axis >= len(after):
        return None
    for place, size in enumerate(before):
        if not isinstance(size, int) or size != after[axis]:
            continue
        if _product(before[place + 1 :]) == _product(after[axis + 1 :]) is not None:
            return place
        is_first = before[:place] == after[:axis] or place == axis == 1  # behind the axis of samples alone
        if is_first and axis:
            return place
    return None


def _reshaped(labels: Array, after: tuple[Dim, ...], before: tuple[Dim, ...]) -> Array | None:
    """The labels of a tensor of shape ``before``, from those of the tensor reshaped to ``after``.

    None where labels differ along an axis whose size is not known in both shapes.
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
    """Shortest runs of axes of two shapes of a tensor that hold the same elements, the last axes first."""
    end, other_end = len(one), len(other)
    while end and other_end:
        runs = ((i, j) for i in reversed(range(end)) for j in reversed(range(other_end)))
        same = ((i, j) for i, j in runs if _are_as_many(one[i:end], other[j:other_end]))
        start, other_start = next(same, (0, 0))
        yield slice(start, end), slice(other_start, other_end)
        end, other_end = start, other_start
    yield slice(0, end), slice(0, other_end)


def _are_as_many(one: tuple[Dim, ...], other: tuple[Dim, ...]) -> bool:
    """Whether axes of these sizes surely hold the same number of elements."""
    return (one == other and None not in one) or _product(one) == _product(other) is not None


def _product(dims: tuple[Dim, ...]) -> int | None:
    sizes = [dim for dim in dims if isinstance(dim, int)]
    return math.prod(sizes) if len(sizes) == len(dims) else None
