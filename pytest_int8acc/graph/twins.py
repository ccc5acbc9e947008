"""Models that hold nodes a second time in a low format, on the float network's own tensors.

One run of such a model gives the error that every group makes by itself. Otherwise it takes a run for each.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from pytest_int8acc.graph.extra_outputs import end_with
from pytest_int8acc.graph.formats import Format
from pytest_int8acc.graph.index import Index
from pytest_int8acc.graph.model import Editor, Model
from pytest_int8acc.graph.network import Edge, Network, by_node
from pytest_int8acc.graph.plan import QdqWriter
from pytest_int8acc.graph.types import FLOAT, value_types

#: Measurements of a tensor: the sums of squares of its rounding error and of its values, its greatest
#: magnitude, and how many of its values are rounded to 0 although they are not 0.
MEASUREMENTS = ("noise", "signal", "peak", "lost")


def with_quantized_twins(network: Network, watched: Mapping[str, str]) -> tuple[Model, dict[str, str]]:
    """The network's float model, and a quantized twin of the nodes of each watched group.

    Args:
        network: Its types are those that are run; no plan applied.
        watched: Group to a tensor that its nodes, or nodes behind them, make.

    Returns:
        The model, with the twins of the watched tensors among its outputs; group to its twin tensor's name.
    """
    writer, types = QdqWriter(network.model.edit()), value_types(network.model)
    twins = [_Twin(group.name, by_node(group.edges)) for group in network.groups if group.name in watched]
    copied: dict[str, list[_Twin]] = defaultdict(list)
    for twin in twins:
        for name in _between(twin.edges, watched[twin.group], network.model.index):
            copied[name].append(twin)
    nodes: list[onnx.NodeProto] = []
    for node in writer.editor.graph.node:
        nodes.append(node)
        for twin in copied[node.name]:
            nodes.extend(twin.of(node, writer))
    writer.editor.set_nodes(nodes)
    made = {twin.group: twin.names.get(watched[twin.group], watched[twin.group]) for twin in twins}
    outputs = writer.editor.graph.output
    known = {value.name for value in outputs}
    for group, tensor in watched.items():
        if made[group] not in known:
            outputs.append(helper.make_tensor_value_info(made[group], types.get(tensor, FLOAT), None))
    return writer.editor.done(), made


@dataclass(eq=False)
class _Twin:
    """The nodes of one group once more, from its quantized edges to its watched tensor."""

    group: str
    edges: Mapping[str, list[Edge]]
    """Node to its edges of this group."""
    names: dict[str, str] = field(default_factory=dict)
    """Tensor to its twin."""

    def of(self, node: onnx.NodeProto, writer: QdqWriter) -> Iterator[onnx.NodeProto]:
        """The twin of ``node``, with its Q/DQ before it."""
        twin = copy.deepcopy(node)
        twin.name = writer.editor.unique(f"{node.name}/twin")
        twin.input[:] = [self.names.get(name, name) for name in twin.input]
        for edge in self.edges.get(node.name, []):
            yield from writer.write(twin, replace(edge, tensor=self.names.get(edge.tensor, edge.tensor)))
        for i, name in enumerate(node.output):
            if name:
                twin.output[i] = self.names[name] = writer.editor.unique(f"{name}/twin")
        yield twin


def _between(starts: Collection[str], tensor: str, index: Index) -> set[str]:
    """The nodes on all paths from the nodes ``starts`` to ``tensor``.

    Nodes behind the producer of ``tensor`` are not visited.
    """
    end = index.producer.get(tensor)
    if end is None:
        return set()
    last = index.order[end.name]

    def following(name: str) -> list[str]:
        readers = (node.name for made in index.nodes[name].output for node, _ in index.readers(made))
        return [reader for reader in readers if index.order[reader] <= last]

    after = _reachable((name for name in starts if index.order[name] <= last), following)

    def preceding(name: str) -> list[str]:
        makers = (index.producer.get(read) for read in index.nodes[name].input)
        return [maker.name for maker in makers if maker is not None and maker.name in after]

    return _reachable({end.name} & after, preceding)


def _reachable(starts: Iterable[str], neighbours: Callable[[str], Iterable[str]]) -> set[str]:
    """The nodes that are reached from ``starts``, with these."""
    found = set(starts)
    left = list(found)
    while left:
        for name in neighbours(left.pop()):
            if name not in found:
                found.add(name)
                left.append(name)
    return found


@dataclass(frozen=True, eq=False)
class RoundedTwins:
    """A model whose outputs are measurements of rounding errors."""

    model: Model
    measurements: Mapping[str, tuple[str, ...]]
    """Tensor that a node makes to its outputs, one for each of ``MEASUREMENTS``, float32 []."""


def with_rounded_twins(model: Model, nodes: Collection[str], low: Format) -> RoundedTwins:
    """``model`` with a twin of each of ``nodes`` that reads rounded values, and whose results are rounded.

    Args:
        model: In FP32 and normal form; its own outputs are left out.
        nodes: Names of nodes of the main graph without graphs inside.
        low: FP16 or BF16, to which values are rounded.
    """
    writer = _RoundingWriter(model, low)
    for node in model.graph.node:
        writer.nodes.append(copy.deepcopy(node))
        if node.name in nodes:
            writer.add_twin(node)
    writer.editor.set_nodes(writer.nodes)
    outputs = (name for names in writer.measurements.values() for name in names)
    end_with(writer.editor, dict.fromkeys(outputs, FLOAT))
    return RoundedTwins(writer.editor.done(), writer.measurements)


class _RoundingWriter:
    def __init__(self, model: Model, low: Format) -> None:
        self.editor: Editor = model.edit()
        self.low, self.types = low, value_types(model)
        self.nodes: list[onnx.NodeProto] = []
        self.zero = self.editor.add_constant("int8acc_zero", np.zeros((), np.float32))
        self.rounded: dict[str, str] = {}
        """Tensor to its rounded self."""
        self.measurements: dict[str, tuple[str, ...]] = {}

    def add_twin(self, node: onnx.NodeProto) -> None:
        """Add the twin of a node that makes floats, and the measurements of its outputs."""
        if all(self.types.get(name) != FLOAT for name in node.output):
            return
        twin = copy.deepcopy(node)
        twin.name = self.editor.unique(f"{node.name}/twin")
        for i, name in enumerate(node.input):
            if self.types.get(name) == FLOAT:
                if name not in self.rounded:
                    self.rounded[name] = self._round(name)
                twin.input[i] = self.rounded[name]
        for i, name in enumerate(node.output):
            twin.output[i] = self.editor.unique(f"{name}/twin") if name else ""
        self.nodes.append(twin)
        for name, own in zip(node.output, twin.output, strict=True):
            if self.types.get(name) == FLOAT:
                self.measurements[name] = self._measure(name, self._round(own))

    def _add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; the name of its output."""
        result = self.editor.unique(f"{inputs[0]}/{op_type}")
        name = self.editor.unique(result)
        self.nodes.append(helper.make_node(op_type, inputs, [result], name, **attributes))
        return result

    def _round(self, tensor: str) -> str:
        return self._add("Cast", self._add("Cast", tensor, to=self.low.element_type), to=FLOAT)

    def _measure(self, tensor: str, rounded: str) -> tuple[str, str, str, str]:
        """The outputs that compare two tensors; infinities of one sign are equal."""
        is_same, error = self._add("Equal", tensor, rounded), self._add("Sub", rounded, tensor)
        noise = self._add("ReduceSumSquare", self._add("Where", is_same, self.zero, error), keepdims=0)
        signal = self._add("ReduceSumSquare", tensor, keepdims=0)
        peak = self._add("ReduceMax", self._add("Abs", tensor), keepdims=0)
        was_not_zero = self._add("Not", self._add("Equal", tensor, self.zero))
        is_lost = self._add("And", self._add("Equal", rounded, self.zero), was_not_zero)
        lost = self._add("ReduceSum", self._add("Cast", is_lost, to=FLOAT), keepdims=0)
        return noise, signal, peak, lost
