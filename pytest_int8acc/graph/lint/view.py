"""A Q/DQ model as lint needs it: Q/DQ nodes with their parameters, and look-ups in the graph."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import onnx

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.formats import FORMATS, UINT8
from pytest_int8acc.graph.index import attribute, captured
from pytest_int8acc.graph.layout import moves_values
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model, dtype_of
from pytest_int8acc.graph.opsets import QDQ_OPSET, holds_trt_fp8
from pytest_int8acc.tensors import Array

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
#: Operator domains whose QuantizeLinear and DequantizeLinear are defined as in ONNX.
_DOMAINS = frozenset({"", "com.microsoft"})
#: Names of the one-byte types that quantized values have in models for TensorRT, such as ``int8``.
_BYTES = frozenset(str(known.dtype) for known in FORMATS.values() if known.is_narrow)


@dataclass(frozen=True, eq=False)
class Half:
    """A QuantizeLinear or DequantizeLinear node, which is one half of a Q/DQ pair."""

    node: onnx.NodeProto
    scale: Array | None
    """The scale; None if it is computed at run time."""
    zero_point: Array | None
    """The zero point; None if there is none, or if it is computed at run time."""
    kind: str
    """The type of the quantized values, such as ``int8``; empty if it is not known."""
    axis: int | None
    """The channel axis; None for a single scale, and for one scale per block."""
    constant: Array | None
    """The values of the tensor that the node reads; None if they are not constant."""
    rooted: bool
    """Whether the tensor that the node reads depends on constants only."""

    @property
    def is_byte(self) -> bool:
        """Whether the quantized values have one of the one-byte types that models for TensorRT have."""
        return self.kind in _BYTES

    @property
    def source(self) -> str:
        """The name of the tensor that the node quantizes or dequantizes."""
        return str(self.node.input[0])

    @property
    def result(self) -> str:
        """The name of the node's output tensor."""
        return str(self.node.output[0])


class View:
    """The main graph of a model in normal form (see ``graph.load``), with look-ups of Q/DQ nodes."""

    def __init__(self, model: Model) -> None:
        self.opset = max(model.opset, QDQ_OPSET if holds_trt_fp8(model) else 0)
        """The opset of the file, but at least 19 if the file has TensorRT's own FP8 operators."""
        self.model = model = _tidied(model)
        self.constants = model.constants()
        self.index = model.index
        self.rooted = self._rooted()
        self.halves = {half.result: half for half in self._halves()}

    @cached_property
    def shapes(self) -> dict[str, tuple[object, ...] | None]:
        """The shape of each tensor, as far as ONNX's shape inference finds it."""
        try:
            values = self.model.values()
        except ModelError:
            values = {}
        shapes: dict[str, tuple[object, ...] | None] = {name: info.shape for name, info in values.items()}
        return shapes | {name: array.shape for name, array in self.constants.items()}

    @cached_property
    def dequantized(self) -> dict[str, list[Half]]:
        """For each float tensor, the DequantizeLinear nodes of the Q/DQ pairs that read it."""
        found: dict[str, list[Half]] = defaultdict(list)
        for half in self.halves.values():
            if half.node.op_type == DEQUANTIZE:
                found[self.quantized(half.result)].append(half)
        return dict(found)

    def dequantizer(self, tensor: str) -> Half | None:
        """The DequantizeLinear whose output is ``tensor``; None if another node computes ``tensor``."""
        half = self.halves.get(tensor)
        return half if half is not None and half.node.op_type == DEQUANTIZE else None

    def quantizer(self, half: Half) -> Half | None:
        """The QuantizeLinear whose output the DequantizeLinear ``half`` reads; None if there is none."""
        before = self.halves.get(half.source)
        return before if before is not None and before.node.op_type == QUANTIZE else None

    def quantized(self, tensor: str) -> str:
        """The float tensor before the Q/DQ pair that computes ``tensor``; without a pair, ``tensor``."""
        half = self.dequantizer(tensor)
        before = self.quantizer(half) if half is not None else None
        return tensor if before is None else before.source

    def behind(self, tensor: str) -> tuple[Half | None, list[onnx.NodeProto]]:
        """The DequantizeLinear before ``tensor``, and the nodes between, in topological order.

        The nodes between only move values, such as Transpose. The first result is None if there is no such
        DequantizeLinear.
        """
        moved: list[onnx.NodeProto] = []
        while True:
            half = self.dequantizer(tensor)
            node = self.index.producer.get(tensor)
            if half is not None or node is None or not moves_values(node):
                return half, moved[::-1]
            moved.append(node)
            tensor = node.input[0]

    def quantizers(self, tensor: str, through: frozenset[str] = frozenset()) -> Iterator[Half]:
        """The QuantizeLinear nodes that read ``tensor``, directly or after other nodes.

        The other nodes only move values, such as Transpose, or have an operator in ``through``.
        """
        for node, position in self.index.readers(tensor):
            if position:
                continue
            if node.op_type == QUANTIZE:
                yield self.halves[node.output[0]]
            elif moves_values(node) or node.op_type in through:
                for name in node.output:
                    yield from self.quantizers(name, through)

    def _rooted(self) -> set[str]:
        """Names of tensors that depend on constants only."""
        rooted = set(self.constants)
        for node in self.model.graph.node:
            if all(name in rooted for name in (*node.input, *captured(node)) if name):
                rooted.update(node.output)
        return rooted

    def _halves(self) -> Iterator[Half]:
        kinds: dict[str, str] = {}
        for node in self.model.graph.node:
            is_half = node.op_type in (QUANTIZE, DEQUANTIZE) and node.domain in _DOMAINS
            if not is_half or len(node.input) < 2:
                continue
            scale = self.constants.get(node.input[1])
            zero_point = self.constants.get(node.input[2]) if len(node.input) > 2 else None
            constant = self.constants.get(node.input[0])
            kind = _kind(node, zero_point, constant, kinds.get(node.input[0], ""))
            if node.op_type == QUANTIZE:
                kinds[node.output[0]] = kind
            axis = _axis(node) if scale is not None and scale.ndim == 1 and scale.size > 1 else None
            yield Half(node, scale, zero_point, kind, axis, constant, node.input[0] in self.rooted)


def _tidied(model: Model) -> Model:
    """A copy of the model in normal form (see ``graph.load``); the model itself if that fails."""
    try:
        return normalize(Model(copy.deepcopy(model.proto), dict(model.weights), model.name))
    except ModelError:
        return model


def _kind(node: onnx.NodeProto, zero_point: Array | None, constant: Array | None, before: str) -> str:
    """The type of the quantized values of a QuantizeLinear or DequantizeLinear; empty if it is not known.

    It is the type of the zero point. Without a zero point, a DequantizeLinear has the type of the constant
    that it reads, or ``before``, the type of the QuantizeLinear before it. A QuantizeLinear has the type in
    its attribute ``output_dtype``, or uint8 by the standard.
    """
    if zero_point is not None:
        return str(zero_point.dtype)
    if node.op_type == DEQUANTIZE:
        return before if constant is None else str(constant.dtype)
    if len(node.input) > 2 and node.input[2]:
        return ""
    given = attribute(node, "output_dtype", 0)
    return str(dtype_of(given)) if given else UINT8.name


def _axis(node: onnx.NodeProto) -> int | None:
    return None if attribute(node, "block_size", 0) else attribute(node, "axis", 1)
