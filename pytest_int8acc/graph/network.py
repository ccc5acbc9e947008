"""A model as the search sees it: the float graph, and groups of edges that can be INT8."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pytest_int8acc.graph.model import Model
from pytest_int8acc.tensors import Array

Precision = Literal["fp16", "fp32"]
LeftHighKind = Literal[
    "no-scale",
    "excluded",
    "planned",
    "nested",
    "wrong-dtype",
    "scalar",
    "constant",
    "computed-weights",
    "odd-channels",
]


@dataclass(frozen=True, eq=False)
class Quantization:
    """How one tensor goes to an integer type and back: ``q = saturate(round(x / scale) + zero_point)``.

    The operators are ONNX QuantizeLinear and DequantizeLinear; rounding is half to even.
    """

    scale: Array
    """float32 (float16 where read so); shape () per tensor, (channels,) per channel."""
    zero_point: Array
    """Same shape as ``scale``; its dtype is the quantized type (int8; uint8 and others only when read)."""
    axis: int | None = None
    """The channel axis; None per tensor."""
    values: Array | None = None
    """A constant's integers, where the tensor is a constant."""


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


#: Why a node stays in high precision, and what is said of it; braces stand for the facts.
_LEFT_HIGH = {
    "no-scale": "no scale for {tensors}",
    "excluded": "excluded by '{0}'",
    "planned": "kept in {0} by the plan",
    "nested": "lies inside an If, Loop or Scan",
    "wrong-dtype": "input '{0}' is {1}, not float32",
    "scalar": "input '{0}' is a scalar",
    "constant": "both inputs are constants",
    "computed-weights": "its weights are computed at run time",
    "odd-channels": "{0} to {1} channels per group; INT8 needs multiples of 4, or depthwise",
}


@dataclass(frozen=True)
class LeftHigh:
    """Why a node stays in high precision."""

    kind: LeftHighKind
    facts: tuple[str, ...] = ()
    """Tensors without a scale; the pattern of ``exclude``; the plan's precision; an input, and its dtype;
    channels per group, in and out; otherwise empty."""

    @property
    def text(self) -> str:
        """In words, for people."""
        return _LEFT_HIGH[self.kind].format(*self.facts, tensors=", ".join(map(repr, self.facts)))


@dataclass(frozen=True, eq=False)
class Network:
    """A float model and its groups in topological order."""

    model: Model
    groups: tuple[Group, ...]
    left_high: Mapping[str, LeftHigh] = field(default_factory=dict)
    """Weighted nodes that are in no group, with the reason."""
    notes: tuple[str, ...] = ()
    fixed_pairs: tuple[str, ...] = ()
    """DequantizeLinear nodes that no plan takes off: blocked, FP8, INT4, or no pair."""


@dataclass(frozen=True)
class Plan:
    """Which groups leave INT8, and which tensors get another scale."""

    high: Mapping[str, Precision] = field(default_factory=dict)
    """Group name to the precision it runs in instead."""
    scales: Mapping[str, float] = field(default_factory=dict)
    """Activation tensor to the scale that replaces its own, wherever it is quantized per tensor."""
