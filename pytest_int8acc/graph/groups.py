"""Which inputs of which nodes TensorRT wants quantized, and which nodes change precision together.

The rules are those of TensorRT's developer guide, 'Q/DQ layer-placement recommendations':

- every input of a weighted node (Conv, ConvTranspose, Gemm, MatMul) is quantized: activations per
  tensor, constant weights per channel; the bias stays float, the output is left alone;
- where an Add joins a convolution with a residual, the residual is quantized too, so that the
  convolution and the Add fuse into one INT8 kernel;
- a grouped convolution needs a multiple of 4 channels per group, unless it is depthwise.

FP8 goes to the same places, but for ConvTranspose and large filters, which NVIDIA's ModelOpt leaves out.

Each weighted node, and each residual Add, is one group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import onnx

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.formats import FP8, INT8, Format
from pytest_int8acc.graph.index import Index, all_nodes, attribute
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import LeftHigh
from pytest_int8acc.tensors import Array, did_you_mean

#: Nodes with INT8 kernels of their own.
WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
#: A convolution of FP8 has fewer weights per channel.
_FP8_FILTER = 32
#: Nodes that only move values: Q propagates backward through them and DQ forward.
COMMUTING = frozenset(
    {"Identity", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "MaxPool", "Slice", "Split"}
    | {"Dropout", "Gather", "DepthToSpace", "SpaceToDepth", "Expand", "Tile"}
)


@dataclass(frozen=True)
class Slot:
    """One input of one node to be quantized; ``axis`` is a constant's channel axis, None per tensor."""

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
    """Sets of activation tensors that must have one scale: what meets in a Concat."""

    @property
    def activations(self) -> tuple[str, ...]:
        """Tensors that need a scale, each once, in topological order; those of ``shared`` sets included."""
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
    """Looks at one node at a time, with the model's tensors at hand."""

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
        """Why a weighted node cannot be quantized; None where it can."""
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
            if self.low is FP8 and (kind := _without_fp8(node, self.constants[node.input[1]])):
                return LeftHigh("no-kernel", (kind, "FP8"))
            return unfit_groups(node, self.constants[node.input[1]])
        return None

    def _slot(self, node: onnx.NodeProto, index: int) -> Slot:
        array = self.constants.get(node.input[index])
        axis = None if array is None else channel_axis(node, index, array.ndim)
        return Slot(node.name, index, node.input[index], array is not None, axis)

    def _residual_input(self, node: onnx.NodeProto) -> int | None:
        """Index of the Add's residual where its other input is a convolution in INT8; None for other Adds."""
        if len(node.input) != 2 or any(name in self.constants for name in node.input):
            return None
        shapes = [info.shape if (info := self.values.get(name)) else None for name in node.input]
        if None not in shapes and shapes[0] != shapes[1]:
            return None  # a broadcast, not a residual
        order = self.index.order
        fused = [(order[conv], i) for i, name in enumerate(node.input) if (conv := self._fusable(name))]
        return 1 - max(fused)[1] if fused else None

    def _fusable(self, tensor: str) -> str | None:
        """The INT8 convolution, BatchNormalization allowed for, whose one reader reads ``tensor``."""
        producer = self.index.producer.get(tensor)
        if producer is None or self.index.only_reader(tensor) is None:
            return None
        if producer.op_type == "BatchNormalization":
            return self._fusable(producer.input[0])
        is_convolution = producer.op_type in ("Conv", "ConvTranspose") and producer.name in self.in_int8
        return producer.name if is_convolution else None


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


def channel_axis(node: onnx.NodeProto, index: int, rank: int) -> int | None:
    """The output-channel axis of the constant at input ``index`` of a weighted node; None: per tensor.

    TensorRT takes per-channel scales along K of a convolution's KCRS weights, along the second axis of a
    deconvolution's CKRS weights, and along the output columns (rows for a left operand) of a matrix.
    """
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1 if attribute(node, "group", 1) == 1 else None
    if rank != 2:
        return None
    if node.op_type == "MatMul":
        return 1 if index == 1 else 0
    transposed = bool(attribute(node, "transB" if index == 1 else "transA", 0))
    return int(transposed != (index == 1))


def unfit_groups(node: onnx.NodeProto, weight: Array) -> LeftHigh | None:
    """Why a grouped convolution cannot run in INT8; None where it can."""
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


def _without_fp8(node: onnx.NodeProto, weight: Array) -> str:
    """What a convolution is that ModelOpt does not put into FP8; empty for others."""
    if node.op_type != "Conv":
        return node.op_type
    size = math.prod(weight.shape[2:])
    return f"a filter of {size} weights" if size >= _FP8_FILTER else ""


def _shared_scales(model: Model, slots: Mapping[str, tuple[Slot, ...]]) -> Iterator[frozenset[str]]:
    """Tensors that meet in a Concat whose result is quantized: equal scales let Q move through the Concat.

    Only tensors that are quantized somewhere else as well bind the scale; one that feeds the Concat alone
    takes the Concat's scale by itself.
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
    """``tensor`` and the tensors it is moved from without a change of values."""
    yield tensor
    while (node := index.producer.get(tensor)) is not None and moves_values(node):
        tensor = node.input[0]
        yield tensor


def _forward(index: Index, tensor: str) -> Iterator[str]:
    """``tensor`` and the tensors that it is moved to without a change of values."""
    reached = [tensor]
    for name in reached:
        yield name
        moving = (node for node, position in index.readers(name) if position == 0 and moves_values(node))
        reached.extend(made for node in moving for made in node.output)


def origins(model: Model) -> dict[str, str]:
    """Tensor to the tensor it is moved from without a change of values."""
    return {name: node.input[0] for node in model.graph.node if moves_values(node) for name in node.output}


def moves_values(node: onnx.NodeProto) -> bool:
    """True for nodes whose output holds input values only, so that both can share a scale."""
    if node.op_type == "Resize":
        return bool(attribute(node, "mode", b"nearest") == b"nearest")
    return node.op_type in COMMUTING and node.domain in ("", "ai.onnx")
