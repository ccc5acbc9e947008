"""A model as the search sees it: the float graph, and groups of edges that can be INT8."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

import numpy as np

from pytest_int8acc.graph.formats import INT8, Format, format_of
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
    "no-kernel",
]


@dataclass(frozen=True, eq=False)
class Quantization:
    """How one tensor goes to INT8 or FP8 and back: ``q = saturate(round(x / scale) + zero_point)``.

    The operators are ONNX QuantizeLinear and DequantizeLinear; rounding is half to even.
    """

    scale: Array
    """float32 (float16 where read so); shape () per tensor, (channels,) per channel."""
    zero_point: Array
    """Same shape as ``scale``; its dtype is the format's (other than INT8's only when read)."""
    axis: int | None = None
    """The channel axis; None per tensor."""
    values: Array | None = None
    """A constant's codes, where the tensor is a constant."""

    @property
    def format(self) -> Format:
        """What the codes are numbers of."""
        return format_of(self.zero_point.dtype)

    @property
    def is_plain(self) -> bool:
        """Whether it is one scale of INT8 or FP8 with its zero at 0."""
        return self.axis is None and self.is_symmetric

    @property
    def is_symmetric(self) -> bool:
        """Whether it is INT8 or FP8 with its zero at 0."""
        return self.format is self.format.symmetric and not self.zero_point.any()

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
    """Nodes that change precision together; bears the name of its leading node.

    Where the nodes lie in a body of an If, Loop or Scan, the names of the nodes around stand before it, as in
    ``loop/linear``.
    """

    name: str
    op_type: str
    nodes: tuple[str, ...]
    edges: tuple[Edge, ...]
    """Of nodes of the main graph."""
    body_edges: tuple[Edge, ...] = ()
    """Of nodes in a body, whose group has no others: a plan can keep it high, and change nothing else."""


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
    "no-kernel": "by ModelOpt's rules, {1} does not take {0}",
    "odd-channels": "{0} to {1} channels per group; INT8 needs multiples of 4, or depthwise",
}


@dataclass(frozen=True)
class LeftHigh:
    """Why a node stays in high precision."""

    kind: LeftHighKind
    facts: tuple[str, ...] = ()
    """Tensors without a scale; the pattern of ``exclude``; the plan's precision; an input, and its dtype;
    channels per group, in and out; what has no kernel, and the format; otherwise empty."""

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
    """Q/DQ nodes that no plan takes off: blocked, INT4, or no pair. Before the name of one in a body stand
    those of the nodes around it."""
    low: Format = INT8
    """What its groups run in: INT8 or FP8, which they are quantized to, FP16 or BF16."""

    @property
    def edges(self) -> Iterator[Edge]:
        """Those of all groups in the main graph, in their order."""
        return (edge for group in self.groups for edge in group.edges)


@dataclass(frozen=True, eq=False)
class TensorScale:
    """How a plan quantizes one tensor, for all its readers; the codes of a constant follow by rounding."""

    scale: Array
    """float32, above 0; shape () per tensor, (channels,) per channel."""
    axis: int | None = None
    """The channel axis; None per tensor."""
    zero_point: Array | None = None
    """Same shape as ``scale``; its dtype is the quantized type. None: symmetric, in what the network has."""

    @property
    def is_plain(self) -> bool:
        """Whether it is one scale of INT8 or FP8 with its zero at 0."""
        zero_point = np.zeros((), INT8.dtype) if self.zero_point is None else self.zero_point
        return Quantization(self.scale, zero_point, self.axis).is_plain


def symmetric(scale: float) -> TensorScale:
    """One scale for the whole tensor, zero points of 0."""
    return TensorScale(np.array(scale, np.float32))


#: Marks a field of a plan whose entries mean the same in any order.
ANY_ORDER = MappingProxyType({"any_order": True})


@dataclass(frozen=True, eq=False)
class Plan:
    """All that a repair does to a network; ``graph.plan.apply`` makes the model of both."""

    high: Mapping[str, Precision] = field(default_factory=dict, metadata=ANY_ORDER)
    """Group name to the precision it runs in instead of INT8."""
    scales: Mapping[str, TensorScale] = field(default_factory=dict, metadata=ANY_ORDER)
    """Activation or constant that is quantized, before the moves or after one, to how it is instead."""
    moves: Mapping[str, Array] = field(default_factory=dict)
    """Activation to factors above 0, float32 [channels]: its channels are divided by them, and the weights
    that read it multiplied; in order."""
    outputs: tuple[str, ...] = ()
    """Tensors that an engine gives beside the model's outputs: TensorRT fuses nothing across them."""
    fused: tuple[str, ...] = ()
    """Norms in parts that become one node each, before all else; in FP16 and BF16 only."""


def by_node(edges: Iterable[Edge]) -> dict[str, list[Edge]]:
    """Node to those of ``edges`` that are its inputs; empty for nodes without."""
    found: dict[str, list[Edge]] = defaultdict(list)
    for edge in edges:
        found[edge.node].append(edge)
    return found


def with_edges(network: Network, change: Callable[[Edge], Edge]) -> Network:
    """The network with each of its edges changed."""
    groups = (replace(group, edges=tuple(map(change, group.edges))) for group in network.groups)
    return replace(network, groups=tuple(groups))
