"""Networks and plans: a float model with groups of quantizable edges, and the changes that a plan makes."""

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
    """The parameters of a QuantizeLinear or DequantizeLinear, and the codes of a constant.

    ``code = saturate(round(x / scale) + zero_point)``, where rounding is half to even.
    """

    scale: Array
    """float32, or float16 if the quantized model that was read has float16 scales. The shape is () per tensor
    and (channels,) per channel."""
    zero_point: Array
    """Same shape as ``scale``. Its dtype is that of the codes, such as int8 or uint8."""
    axis: int | None = None
    """The channel axis; None: per tensor."""
    values: Array | None = None
    """The codes of a constant; None for an activation."""

    @property
    def format(self) -> Format:
        """The number format of the codes."""
        return format_of(self.zero_point.dtype)

    @property
    def is_plain(self) -> bool:
        """Whether the quantization is per tensor and symmetric, in INT8 or FP8."""
        return self.axis is None and self.is_symmetric

    @property
    def is_symmetric(self) -> bool:
        """Whether the format is INT8 or FP8, and all zero points are 0."""
        return self.format is self.format.symmetric and not self.zero_point.any()

    def quantize(self, values: Array) -> Array:
        """The codes of ``values``, which may have any shape with as many channels along the axis."""
        return self.format.quantize(values, self.scale, self.zero_point, self.axis)

    def dequantize(self) -> Array:
        """The dequantized values of the constant, computed in float32 and returned in the scale's dtype."""
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
    """Nodes that change precision together."""

    name: str
    """Name of the leading node. In a body of an If, Loop or Scan, the names of the nodes around the body come
    before it, as in ``loop/linear``."""
    op_type: str
    """Operator of the leading node."""
    nodes: tuple[str, ...]
    edges: tuple[Edge, ...]
    """Quantized inputs of nodes in the main graph."""
    body_edges: tuple[Edge, ...] = ()
    """Quantized inputs of nodes in a body. A group with such edges has no others. A plan can only keep it in
    high precision."""


#: The text of each reason why a node stays in high precision. Braces stand for the facts.
_LEFT_HIGH: Mapping[LeftHighKind, str] = {
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
    """The values of the braces in the text, such as the names of tensors without a scale."""

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
    """Name of each weighted node that is in no group, with the reason."""
    notes: tuple[str, ...] = ()
    """Sentences about how the quantized model was read."""
    fixed_pairs: tuple[str, ...] = ()
    """Names of Q/DQ nodes that no plan can remove, because they are blocked, in INT4, or no pair. In a body,
    the names of the nodes around the body come before the name."""
    low: Format = INT8
    """The format of the groups that no plan keeps in high precision: INT8, FP8, FP16 or BF16."""

    @property
    def edges(self) -> Iterator[Edge]:
        """The edges of all groups in the main graph, in the order of the groups."""
        return (edge for group in self.groups for edge in group.edges)


@dataclass(frozen=True, eq=False)
class TensorScale:
    """The scale that a plan gives one tensor, for all its readers."""

    scale: Array
    """float32, above 0; shape () per tensor, (channels,) per channel."""
    axis: int | None = None
    """The channel axis; None: per tensor."""
    zero_point: Array | None = None
    """Same shape as ``scale``. Its dtype is that of the codes. None: all 0, in the format of the network."""

    @property
    def is_plain(self) -> bool:
        """Whether the scale is per tensor and symmetric, in INT8 or FP8."""
        zero_point = np.zeros((), INT8.dtype) if self.zero_point is None else self.zero_point
        return Quantization(self.scale, zero_point, self.axis).is_plain


def symmetric(scale: float) -> TensorScale:
    """A per-tensor scale with zero point 0."""
    return TensorScale(np.array(scale, np.float32))


#: Metadata of a field of ``Plan`` whose entries may be in any order.
ANY_ORDER = MappingProxyType({"any_order": True})


@dataclass(frozen=True, eq=False)
class Plan:
    """All changes that a remedy makes to a network. ``graph.plan.apply`` builds the changed model."""

    high: Mapping[str, Precision] = field(default_factory=dict, metadata=ANY_ORDER)
    """Name of each group that leaves the low format, with its high precision."""
    scales: Mapping[str, TensorScale] = field(default_factory=dict, metadata=ANY_ORDER)
    """Quantized tensor to its new scale. The tensor may be new, made by a move."""
    moves: Mapping[str, Array] = field(default_factory=dict)
    """Activation to factors above 0, float32 [channels]. Its channels are divided by the factors, and the
    weights that multiply it are multiplied by them. The order of the entries is the order of the moves."""
    outputs: tuple[str, ...] = ()
    """Tensors that become extra outputs of the engine, because TensorRT fuses no layers across an output."""
    fused: tuple[str, ...] = ()
    """Names of norms that are spelled out in several nodes. Each is fused to one node before other changes.
    Only plans of FP16 and BF16 networks have them."""


def by_node(edges: Iterable[Edge]) -> dict[str, list[Edge]]:
    """Node to the edges at its inputs. For a node without edges, the list is empty."""
    found: dict[str, list[Edge]] = defaultdict(list)
    for edge in edges:
        found[edge.node].append(edge)
    return found


def with_edges(network: Network, change: Callable[[Edge], Edge]) -> Network:
    """The network with each edge replaced by ``change(edge)``."""
    groups = (replace(group, edges=tuple(map(change, group.edges))) for group in network.groups)
    return replace(network, groups=tuple(groups))
