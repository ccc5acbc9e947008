"""A model as the search sees it: the float graph, and groups of edges that can be INT8."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pytest_int8acc.graph.formats import Format, format_of
from pytest_int8acc.graph.model import Model
from pytest_int8acc.tensors import Array

Precision = Literal["fp16", "fp32"]


@dataclass(frozen=True, eq=False)
class Quantization:
    """How one tensor goes to an integer type and back: ``q = saturate(round(x / scale) + zero_point)``.

    The operators are ONNX QuantizeLinear and DequantizeLinear; rounding is half to even.
    """

    scale: Array
    """float32 (float16 where read so); shape () per tensor, (channels,) per channel."""
    zero_point: Array
    """Same shape as ``scale``; its dtype is the format's (other than INT8's only when read)."""
    axis: int | None = None
    """The channel axis; None per tensor."""
    values: Array | None = None
    """A constant's integers, where the tensor is a constant."""

    @property
    def format(self) -> Format:
        """What the codes are numbers of."""
        return format_of(self.zero_point.dtype)

    def quantize(self, values: Array) -> Array:
        """The codes of ``values``, of any shape that has the channels; see ``Format.quantize``."""
        return self.format.quantize(values, self.scale, self.zero_point, self.axis)

    def dequantize(self) -> Array:
        """What the constant's codes stand for: of their shape and the scale's dtype, computed in float32."""
        assert self.values is not None
        wide = self.format.dequantize(self.values, self.scale, self.zero_point, self.axis)
        return wide.astype(self.scale.dtype, copy=False)


@dataclass(frozen=True, eq=False)
class Edge:
    """One input of one node that is quantized, for that reader alone."""

    node: str
    index: int
    """Position among the node's inputs."""
    tensor: str
    quantization: Quantization


@dataclass(frozen=True, eq=False)
class Group:
    """Nodes that change precision together; bears the name of its leading node."""

    name: str
    op_type: str
    nodes: tuple[str, ...]
    edges: tuple[Edge, ...]


@dataclass(frozen=True, eq=False)
class Network:
    """A float model and its groups in topological order."""

    model: Model
    groups: tuple[Group, ...]
    left_high: Mapping[str, str] = field(default_factory=dict)
    """Weighted nodes that are in no group, with the reason."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Which groups leave INT8, and which tensors get another scale."""

    high: Mapping[str, Precision] = field(default_factory=dict)
    """Group name to the precision it runs in instead."""
    scales: Mapping[str, float] = field(default_factory=dict)
    """Activation tensor to the scale that replaces its own, wherever it is quantized per tensor."""
