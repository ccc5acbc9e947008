"""Networks and plans: a float model with groups of layers that can be quantized, and changes to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

import numpy as np

from pytest_int8acc.graph.formats import FP32, INT8, Format, format_of
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


def float_constant_name(node: str, index: int) -> str:
    """The name of a float constant that replaces a constant of the float model, such as a corrected bias.

    Input ``index`` of the node ``node`` reads the constant.
    """
    return f"{node}_input{index}_float"


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
    """The channel axis; None if there is one scale for the tensor."""
    values: Array | None = None
    """The codes of a constant, or its FP32 values if ``is_float``; None for an activation."""

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

    @property
    def is_float(self) -> bool:
        """Whether ``values`` are FP32 numbers that replace a constant, rather than codes with a scale."""
        return self.format is FP32

    def quantize(self, values: Array) -> Array:
        """The codes of ``values``. Along ``axis`` they must have one channel for each scale."""
        return self.format.quantize(values, self.scale, self.zero_point, self.axis)

    def dequantize(self) -> Array:
        """The dequantized values of the constant, computed in float32 and returned in the scale's dtype."""
        assert self.values is not None
        wide = self.format.dequantize(self.values, self.scale, self.zero_point, self.axis)
        return wide.astype(self.scale.dtype, copy=False)


def in_floats(values: Array) -> Quantization:
    """The quantization of a constant that has ``values``, in FP32, while its group is in low precision.

    Such a constant has no Q/DQ pair.
    """
    return Quantization(np.ones((), np.float32), np.zeros((), FP32.dtype), values=values.astype(FP32.dtype))


@dataclass(frozen=True, eq=False)
class Edge:
    """One quantized input of one node. Other nodes may read the same tensor without quantization."""

    node: str
    index: int
    """The position among the node's inputs."""
    tensor: str
    quantization: Quantization


@dataclass(frozen=True, eq=False)
class Group:
    """Nodes that change precision together, such as a convolution and the Relu after it."""

    name: str
    """The name of the group's main node, such as a convolution. If the node lies inside an If, Loop or Scan,
    the names of the containing nodes come before it, as in ``loop/linear``."""
    op_type: str
    """The operator of the group's main node."""
    nodes: tuple[str, ...]
    edges: tuple[Edge, ...]
    """Quantized inputs of the nodes."""
    is_inner: bool = False
    """Whether the nodes lie inside an If, Loop or Scan."""


#: The texts of the reasons why a node stays in high precision. ``LeftHigh.facts`` fill the braces.
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
    "odd-channels": "{0} to {1} channels per group; a quantized Conv needs multiples of 4, or depthwise",
}


@dataclass(frozen=True)
class LeftHigh:
    """The reason why a node stays in high precision."""

    kind: LeftHighKind
    facts: tuple[str, ...] = ()
    """The values that the text of the reason contains, such as the names of tensors without a scale."""

    @property
    def text(self) -> str:
        """The reason as text for messages."""
        return _LEFT_HIGH[self.kind].format(*self.facts, tensors=", ".join(map(repr, self.facts)))


@dataclass(frozen=True, eq=False)
class Network:
    """A float model and its groups: sets of nodes that change precision together, in topological order."""

    model: Model
    groups: tuple[Group, ...]
    left_high: Mapping[str, LeftHigh] = field(default_factory=dict)
    """The reason why a convolution or matrix product is in no group, by node name."""
    notes: tuple[str, ...] = ()
    """Sentences for the report about how the user's Q/DQ model was read."""
    fixed_pairs: tuple[str, ...] = ()
    """Names of Q/DQ nodes that no plan can remove: those with a scale per block, in INT4, or without
    the other node of a pair. If a node lies inside an If, Loop or Scan, the names of the containing nodes
    come before its name."""
    low: Format = INT8
    """The low-precision format: INT8, FP8, FP16 or BF16. A plan can keep groups in high precision instead."""

    @property
    def edges(self) -> Iterator[Edge]:
        """The edges (quantized inputs) of all groups, in the order of the groups."""
        return (edge for group in self.groups for edge in group.edges)


@dataclass(frozen=True, eq=False)
class TensorScale:
    """The scale that a plan gives one tensor, for all nodes that read the tensor."""

    scale: Array
    """float32, above 0; shape () per tensor, (channels,) per channel."""
    axis: int | None = None
    """The channel axis; None if there is one scale for the tensor."""
    zero_point: Array | None = None
    """Same shape as ``scale``, in the dtype of the codes. None means 0, in the low format of the network."""

    @property
    def is_plain(self) -> bool:
        """Whether the scale is per tensor and symmetric, in INT8 or FP8."""
        zero_point = np.zeros((), INT8.dtype) if self.zero_point is None else self.zero_point
        return Quantization(self.scale, zero_point, self.axis).is_plain


def symmetric(scale: float) -> TensorScale:
    """The per-tensor scale ``scale`` with the zero point 0."""
    return TensorScale(np.array(scale, np.float32))


#: Metadata that marks fields of ``Plan`` whose entries have no order.
ANY_ORDER = MappingProxyType({"any_order": True})


@dataclass(frozen=True, eq=False)
class Plan:
    """All changes that a remedy, such as mixed precision, makes to a network; see ``graph.plan.apply``."""

    high: Mapping[str, Precision] = field(default_factory=dict, metadata=ANY_ORDER)
    """The precision of each group that stays in high precision, by group name."""
    scales: Mapping[str, TensorScale] = field(default_factory=dict, metadata=ANY_ORDER)
    """The new scales of quantized tensors, by name. Entries of ``moves`` may create some of the tensors."""
    moves: Mapping[str, Array] = field(default_factory=dict)
    """Activation to factors above 0, float32 [channels]. The channels of the activation are divided by the
    factors, and the weights that multiply the activation are multiplied by the factors. The entries are
    applied in their order."""
    outputs: tuple[str, ...] = ()
    """Tensors that become extra outputs of the engine, because TensorRT fuses no layers across an output."""
    fused: tuple[str, ...] = ()
    """Names of normalizations, such as a LayerNorm, that consist of several nodes. Each is fused to one node
    before all other changes. Only plans of FP16 and BF16 networks have such names."""
    floats: Mapping[str, Array] = field(default_factory=dict, metadata=ANY_ORDER)
    """The float values that constants, such as biases, have in groups in low precision, by constant name. The
    values are float32, in the shape of the constant, and get no Q/DQ pair."""


def by_node(edges: Iterable[Edge]) -> dict[str, list[Edge]]:
    """The quantized inputs of each node, by node name; an empty list for a node without quantized inputs."""
    found: dict[str, list[Edge]] = defaultdict(list)
    for edge in edges:
        found[edge.node].append(edge)
    return found


def with_edges(network: Network, change: Callable[[Edge], Edge]) -> Network:
    """The network with each edge (quantized input of a node) replaced by ``change(edge)``."""
    groups = (replace(group, edges=tuple(map(change, group.edges))) for group in network.groups)
    return replace(network, groups=tuple(groups))
