"""Network and plan: a float model with groups of quantizable edges, and the changes that a plan makes."""

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
    """Parameters that quantize one tensor to INT8 or FP8: ``q = saturate(round(x / scale) + zero_point)``.

    The operators are ONNX QuantizeLinear and DequantizeLinear; rounding is half to even.
    """

    scale: Array
    """float32, or float16 where the model read has that; shape () per tensor, (channels,) per channel."""
    zero_point: Array
    """Same shape as ``scale``. Its dtype is that of the format; models that are read may have others than
    INT8."""
    axis: int | None = None
    """The channel axis; None per tensor."""
    values: Array | None = None
    """A constant's codes, where the tensor is a constant."""

    @property
    def format(self) -> Format:
        """The number format of the codes."""
        return format_of(self.zero_point.dtype)

    @property
    def is_plain(self) -> bool:
        """Whether it is per tensor and symmetric, in INT8 or FP8."""
        return self.axis is None and self.is_symmetric

    @property
    def is_symmetric(self) -> bool:
        """Whether it is symmetric: INT8 or FP8 with all zero points 0."""
        return self.format is self.format.symmetric and not self.zero_point.any()

    def quantize(self, values: Array) -> Array:
        """The codes of ``values``, of any shape that has the channels; see ``Format.quantize``."""
        return self.format.quantize(values, self.scale, self.zero_point, self.axis)

    def dequantize(self) -> Array:
        """The dequantized values of the constant: in the dtype of the scale, computed in float32."""
        assert self.values is not None
        wide = self.format.dequantize(self.values, self.scale, self.zero_point, self.axis)
        return wide.astype(self.scale.dtype, copy=False)


@dataclass(frozen=True, eq=False)
class Edge:
    """One quantized input of one node. Other readers of the tensor are not affected."""

    node: str
    index: int
    """Position among the node's inputs."""
    tensor: str
    quantization: Quantization


@dataclass(frozen=True, eq=False)
class Group:
    """Nodes that change precision together. A group has the name of its leading node.

    In a body of an If, Loop or Scan, that name follows the names of the nodes around the body, as in
    ``loop/linear``.
    """

    name: str
    op_type: str
    nodes: tuple[str, ...]
    edges: tuple[Edge, ...]
    """Edges at nodes of the main graph."""
    body_edges: tuple[Edge, ...] = ()
    """Edges at nodes in a body; such a group has no ``edges``. A plan can only keep it in high precision."""


#: The reasons why a node stays in high precision, each with its text; braces stand for the facts.
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
    """The reason why a node stays in high precision."""

    kind: LeftHighKind
    facts: tuple[str, ...] = ()
    """The values for the braces in the text of ``kind``, such as the tensors that have no scale."""

    @property
    def text(self) -> str:
        """The reason in words."""
        return _LEFT_HIGH[self.kind].format(*self.facts, tensors=", ".join(map(repr, self.facts)))


@dataclass(frozen=True, eq=False)
class Network:
    """A float model and its groups in topological order."""

    model: Model
    groups: tuple[Group, ...]
    left_high: Mapping[str, LeftHigh] = field(default_factory=dict)
    """Weighted nodes that are in no group, each with the reason."""
    notes: tuple[str, ...] = ()
    fixed_pairs: tuple[str, ...] = ()
    """Q/DQ nodes that no plan can remove, because they are blocked, in INT4, or no pair. The name of one in a
    body follows the names of the nodes around the body."""
    low: Format = INT8
    """The format of its groups where no plan keeps them in high precision: INT8, FP8, FP16 or BF16."""

    @property
    def edges(self) -> Iterator[Edge]:
        """The edges of all groups in the main graph, in the order of the groups."""
        return (edge for group in self.groups for edge in group.edges)


@dataclass(frozen=True, eq=False)
class TensorScale:
    """The scale that a plan gives one tensor, for all its readers.

    Codes of a constant are made by rounding.
    """

    scale: Array
    """float32, above 0; shape () per tensor, (channels,) per channel."""
    axis: int | None = None
    """The channel axis; None per tensor."""
    zero_point: Array | None = None
    """Same shape as ``scale``; its dtype is the quantized type. None: symmetric, in the format of the
    network."""

    @property
    def is_plain(self) -> bool:
        """Whether it is per tensor and symmetric, in INT8 or FP8."""
        zero_point = np.zeros((), INT8.dtype) if self.zero_point is None else self.zero_point
        return Quantization(self.scale, zero_point, self.axis).is_plain


def symmetric(scale: float) -> TensorScale:
    """A per-tensor scale with zero point 0."""
    return TensorScale(np.array(scale, np.float32))


#: Marks a field of a plan whose entries mean the same in any order.
ANY_ORDER = MappingProxyType({"any_order": True})


@dataclass(frozen=True, eq=False)
class Plan:
    """All changes that a remedy makes to a network; ``graph.plan.apply`` builds the model."""

    high: Mapping[str, Precision] = field(default_factory=dict, metadata=ANY_ORDER)
    """Group name to the high precision that the group runs in."""
    scales: Mapping[str, TensorScale] = field(default_factory=dict, metadata=ANY_ORDER)
    """Quantized tensor to its new scale. The tensor may be one that a move makes."""
    moves: Mapping[str, Array] = field(default_factory=dict)
    """Activation to factors above 0, float32 [channels]. Its channels are divided by the factors, and the
    weights that read it are multiplied by them. The moves are made in this order."""
    outputs: tuple[str, ...] = ()
    """Tensors that become extra outputs of the engine, because TensorRT fuses no layers across an output."""
    fused: tuple[str, ...] = ()
    """Norms spelled out in several nodes that are fused to one node each, before all other changes. They
    exist in FP16 and BF16 networks only."""


def by_node(edges: Iterable[Edge]) -> dict[str, list[Edge]]:
    """Node to the edges at its inputs; an empty list for nodes without edges."""
    found: dict[str, list[Edge]] = defaultdict(list)
    for edge in edges:
        found[edge.node].append(edge)
    return found


def with_edges(network: Network, change: Callable[[Edge], Edge]) -> Network:
    """The network with each edge replaced by ``change(edge)``."""
    groups = (replace(group, edges=tuple(map(change, group.edges))) for group in network.groups)
    return replace(network, groups=tuple(groups))
