"""What stands around a group: the tensors that meet its own, and operators that INT8 does not suit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx

from pytest_int8acc.graph.groups import WEIGHTED, origins
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Edge, Group, Network
from pytest_int8acc.lab.statistics import WIDE, EdgeStats, reach
from pytest_int8acc.lab.values import TensorValues
from pytest_int8acc.results.causes import Cause

_SENSITIVE = frozenset(
    {"Softmax", "LogSoftmax", "LayerNormalization", "GroupNormalization", "InstanceNormalization", "Gelu"}
    | {"SimplifiedLayerNormalization", "RMSNormalization", "Erf", "Exp", "Log", "Pow", "Sqrt", "ReduceMean"}
)
#: INT8 leaves no more than some 50 dB of values that are spread; above this they sit at a few exact codes.
_MASKED_DB = 60.0
_DECODING = frozenset({"Mul", "Add", "Sub", "Div", "Concat", "Sigmoid", "Tanh", "Clip", "Split", "Slice"})


class Surroundings:
    """The network's graph, asked which ops are sensitive and which tensors meet."""

    def __init__(self, network: Network) -> None:
        self.index = network.model.index
        self._origin = origins(network.model)
        self._edges: dict[str, list[Edge]] = defaultdict(list)
        """Tensor to the edges that quantize it."""
        for edge in (e for g in network.groups for e in g.edges if e.quantization.values is None):
            self._edges[edge.tensor].append(edge)
        self._quantized: dict[str, set[str]] = defaultdict(set)
        """Root to the quantized tensors that hold its values."""
        for tensor in self._edges:
            self._quantized[self.root(tensor)].add(tensor)
        self._joins: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        """Root to each Concat and Add that its values go into."""
        for node in self.index.nodes.values():
            if node.op_type in ("Concat", "Add", "Sum"):
                for root in {self.root(name) for name in node.input}:
                    self._joins[root].append(node)
        self._before_weighted = _before_weighted(network.model)

    def root(self, tensor: str) -> str:
        """The tensor that this one holds values of."""
        while tensor in self._origin:
            tensor = self._origin[tensor]
        return tensor

    def partner_edges(self, tensors: set[str]) -> list[Edge]:
        """Edges of tensors that meet one of ``tensors``."""
        meeting = {other for tensor in tensors for _, others in self._meetings(tensor) for other in others}
        return [edge for tensor in sorted(meeting) for edge in self._edges[tensor]]

    def _meetings(self, tensor: str) -> Iterator[tuple[onnx.NodeProto, set[str]]]:
        """Each Concat and Add that ``tensor`` goes into, with the other quantized tensors there."""
        root = self.root(tensor)
        for node in self._joins.get(root, ()):
            roots = {self.root(name) for name in node.input} - {root}
            roots |= {node.output[0]} if node.op_type == "Concat" else set()
            yield node, {other for name in roots for other in self._quantized.get(name, ())}

    def shares_with(
        self, edge: Edge, measured: Mapping[str, tuple[TensorValues, dict[int, EdgeStats]]]
    ) -> tuple[onnx.NodeProto, str, float] | None:
        """Where they meet, the tensor and its amax, whose right range is that of ``edge`` as well."""
        extent = reach(edge.quantization)
        for node, others in self._meetings(edge.tensor):
            for other in sorted(others & measured.keys()):
                stats, quantizations = measured[other]
                for known in quantizations.values():
                    equal = abs(reach(known.quantization) / extent - 1) < 0.01
                    if equal and stats.amax <= WIDE * extent and extent <= WIDE * stats.amax:
                        return node, other, stats.amax
        return None

    def concat_before(self, tensor: str) -> onnx.NodeProto | None:
        """The Concat that made ``tensor``."""
        node = self.index.producer.get(self.root(tensor))
        return node if node is not None and node.op_type == "Concat" else None

    def sensitive(self, group: Group, worst: Cause, tensors: Sequence[str]) -> Cause | None:
        """Why TensorRT's guide advises against INT8 here; None where it does not.

        Args:
            group: The culprit.
            worst: What its noisiest edge shows.
            tensors: Of the edges whose noise counts.
        """
        leader = self.index.nodes[group.name]
        masked = worst.numbers["sqnr_db"] > _MASKED_DB
        if leader.op_type in _SENSITIVE:
            return worst.showing("sensitive-op", "quantized-inputs", op_type=leader.op_type, masked=masked)
        for tensor in tensors:
            node = self.index.producer.get(self.root(tensor))
            if node is None:
                continue
            facts: dict[str, Any] = {
                "others": (tensor,),
                "node": node.name,
                "op_type": node.op_type,
                "masked": masked,
            }
            if node.op_type in ("Softmax", "LogSoftmax"):
                return worst.showing("sensitive-op", "after-softmax", **facts)
            if self._is_gelu(node):
                return worst.showing("sensitive-op", "after-gelu", **facts)
        if leader.op_type == "MatMul" and self.index.constants.isdisjoint(leader.input):
            return worst.showing("sensitive-op", "product-of-activations", masked=masked)
        if leader.op_type in _DECODING and leader.name not in self._before_weighted:
            return worst.showing("sensitive-op", "decoding", op_type=leader.op_type, masked=masked)
        return None

    def _is_gelu(self, node: onnx.NodeProto, steps: int = 4) -> bool:
        if node.op_type in ("Gelu", "Erf"):
            return True
        producer = self.index.producer
        before = [producer[name] for name in node.input if name in producer]
        follows = node.op_type in ("Mul", "Add", "Div") and steps > 0
        return follows and any(self._is_gelu(n, steps - 1) for n in before)


def _before_weighted(model: Model) -> set[str]:
    """Nodes with a weighted node somewhere behind them."""
    before: set[str] = set()
    for node in reversed(model.graph.node):
        readers = (reader for name in node.output for reader, _ in model.index.readers(name))
        if any(reader.op_type in WEIGHTED or reader.name in before for reader in readers):
            before.add(node.name)
    return before
