"""One model in which every group's precision is chosen at run time, so that a trial is one inference.

Each node with quantized inputs becomes an ``If`` on its group's switch: one branch reads quantized tensors,
the other the plain ones, and only the chosen branch runs. Weights are constants, those of the INT8 branch
dequantized beforehand. A convolution's lie inside the branches: only there does ONNX Runtime bring them into
its blocked layout (NCHWc), which makes most of the speed. Activations, pools and BatchNormalization that
read the node alone move into the branches with it, where they still fuse.

Costs are measured in docs/benchmarks.md.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from pytest_int8acc.graph.index import Index, all_graphs, refill, subgraphs
from pytest_int8acc.graph.model import APART_BYTES, Editor, Model, put_constant
from pytest_int8acc.graph.network import Edge, Network, by_node
from pytest_int8acc.graph.plan import QdqWriter
from pytest_int8acc.graph.types import value_types
from pytest_int8acc.tensors import Array

#: Nodes that ONNX Runtime fuses into the convolution or product before them, or runs in its blocked layout.
_TAIL = frozenset(
    {"Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "HardSigmoid", "BatchNormalization"}
    | {"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"}
)
#: Nodes whose weights stay outside: packed weights of products take the place of the plain ones only there.
_PRODUCTS = frozenset({"MatMul", "Gemm"})


@dataclass(frozen=True, eq=False)
class Switchboard:
    """A model with one more input, ``switch``: bool [groups], True where the group runs in INT8."""

    model: Model
    switch: str
    groups: tuple[str, ...]
    """Group names in the order of the switch's elements."""


def build_switchboard(network: Network) -> Switchboard:
    """The network with a switch per group; no group is left out.

    With every switch off it computes what the network's model does, with all on what ``apply`` with the
    empty plan gives. Inputs and outputs keep their names and types. For FP16 give ``emulate_network`` of a
    halved network: ``emulate_half`` does not look into branches.
    """
    editor = network.model.edit()
    switch, names, split = open_switch(editor, [group.name for group in network.groups])
    writer = _Writer(editor, _Finder(network, names))
    editor.set_nodes([split, *writer.nodes()])
    return Switchboard(editor.done(), switch, tuple(group.name for group in network.groups))


def open_switch(editor: Editor, of: Sequence[str]) -> tuple[str, list[str], onnx.NodeProto]:
    """Add the input of all switches; its name, that of each one's switch, and the node that makes these."""
    switch = editor.unique("int8acc_switch")
    names = [editor.unique(f"{name}_switch") for name in of]
    ones = editor.add_constant("int8acc_ones", np.ones(len(names), np.int64))
    split = helper.make_node("Split", [switch, ones], names, editor.unique("int8acc_switches"), axis=0)
    editor.graph.input.append(helper.make_tensor_value_info(switch, TensorProto.BOOL, [len(names)]))
    return switch, names, split


def is_movable(name: str, array: Array | None, index: Index) -> bool:
    """True for a constant that may lie in branches: small, or what one node that is no product reads."""
    reader = index.only_reader(name)
    if array is None or name in index.public:
        return False
    return array.nbytes <= APART_BYTES or (reader is not None and reader.op_type not in _PRODUCTS)


@dataclass(frozen=True, eq=False)
class _Region:
    """Nodes that go into the branches of one If."""

    nodes: list[onnx.NodeProto]
    """What makes constants for the node, the node itself, its tail; in topological order."""
    results: dict[str, int]
    """Tensors that others read, and their element types."""


@dataclass(eq=False)
class Branch:
    """A graph under construction, and the names that it has for tensors of the graph around it."""

    label: str
    quantized: bool
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    pairs: QdqWriter | None = None
    """Adds Q/DQ to it."""

    def constant(self, editor: Editor, preferred: str, array: Array) -> str:
        """Add a constant; its name."""
        return _add_constant(editor, self.constants, preferred, array)

    def graph(self, name: str, results: Mapping[str, int]) -> onnx.GraphProto:
        """The graph that gives ``results``, tensor to element type, which have names of their own inside."""
        infos = [helper.make_tensor_value_info(self.names[r], results[r], None) for r in results]
        return helper.make_graph(self.nodes, f"{name}/{self.label}", [], infos, self.constants)


def _add_constant(editor: Editor, constants: list[TensorProto], preferred: str, array: Array) -> str:
    """Append a constant to ``constants`` under a unique name like ``preferred``; returns the name."""
    tensor = TensorProto()
    put_constant(tensor, editor.unique(preferred), array, editor.weights)
    constants.append(tensor)
    return tensor.name


class _Finder:
    """Finds what goes into branches together."""

    def __init__(self, network: Network, conditions: Sequence[str]) -> None:
        self.graph, self.index = network.model.graph, network.model.index
        self.types = value_types(network.model)
        self.constants = network.model.constants()
        self.edges = by_node(network.edges)
        self.conditions: dict[str, str] = {}
        """Switch of each node that belongs to a group."""
        for group, condition in zip(network.groups, conditions, strict=True):
            self.conditions.update(dict.fromkeys(group.nodes, condition))
        self.in_bodies = by_node(edge for group in network.groups for edge in group.body_edges)
        self.made_of_constants: set[str] = set()
        for node in self.graph.node:
            names = [name for name in node.input if name]
            constant = (n in self.constants or n in self.made_of_constants for n in names)
            if names and not subgraphs(node) and all(constant):
                self.made_of_constants.update(node.output)

    def regions(self) -> dict[str, _Region]:
        """Regions by the name of the node at whose place their If stands."""
        regions: dict[str, _Region] = {}
        inside: set[str] = set()
        for node in reversed(self.graph.node):
            if node.name in self.conditions and node.name not in inside:
                region = self._region(node)
                if region is not None:
                    regions[node.name] = region
                    inside.update(n.name for n in region.nodes)
        return regions

    def is_movable(self, name: str) -> bool:
        """Whether a tensor is a constant that may lie in branches."""
        return is_movable(name, self.constants.get(name), self.index)

    def _region(self, node: onnx.NodeProto) -> _Region | None:
        """What goes into branches with ``node``; None where nothing is quantized or no branch can hold it."""
        nodes = [*self._before(node, node), node, *self._tail(node)]
        results = {name: self.types.get(name, 0) for name in nodes[-1].output if name}
        fits = all(results.values()) and not subgraphs(node)
        return _Region(nodes, results) if fits and any(n.name in self.edges for n in nodes) else None

    def _before(self, node: onnx.NodeProto, leader: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Nodes that make, of constants, what ``node`` alone reads: a weight's Transpose, a bias's Cast."""
        for name in dict.fromkeys(node.input):
            made_by = self.index.producer.get(name)
            if made_by is None or self._follower(made_by) is None:
                continue
            condition = self.conditions.get(made_by.name)
            if name in self.made_of_constants and condition in (None, self.conditions[leader.name]):
                yield from self._before(made_by, leader)
                yield made_by

    def _tail(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Nodes after ``node`` that read nothing else that is computed and are read through it alone."""
        last = node
        while (following := self._follower(last)) is not None:
            fits = following.op_type in _TAIL and following.name not in self.conditions
            if not fits or any(name and name not in self.constants for name in following.input[1:]):
                return
            yield following
            last = following

    def _follower(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """The node that alone reads all that ``node`` makes, one tensor."""
        return self.index.only_reader(node.output[0]) if len(node.output) == 1 else None


class _Writer:
    """Writes the network's nodes, those with edges as Ifs."""

    def __init__(self, editor: Editor, finder: _Finder) -> None:
        self.editor = editor
        self.finder = finder
        self.outside: dict[int, str] = {}
        """Dequantized weights around the branches, by id of the quantization."""

    def nodes(self) -> Iterator[onnx.NodeProto]:
        """The network's nodes in topological order, each once, in a branch or as it was."""
        regions = self.finder.regions()
        inside = {node.name for region in regions.values() for node in region.nodes}
        for node in self.finder.graph.node:
            if node.name in regions:
                yield self._if(node, regions[node.name])
            elif node.name not in inside:
                yield from self._outside(node)

    def _if(self, node: onnx.NodeProto, region: _Region) -> onnx.NodeProto:
        graphs: dict[str, Any] = {}
        for branch in (Branch("then", True), Branch("else", False)):
            for original in region.nodes:
                self._copy(original, branch)
            graphs[f"{branch.label}_branch"] = branch.graph(node.name, region.results)
        name = self.editor.unique(f"{node.name}/If")
        results = list(region.results)
        return helper.make_node("If", [self.finder.conditions[node.name]], results, name, **graphs)

    def _copy(self, original: onnx.NodeProto, branch: Branch) -> None:
        """Add ``original`` to ``branch`` under names of its own, with quantized inputs where it is so."""
        node = copy.deepcopy(original)
        node.name = self.editor.unique(f"{original.name}/{branch.label}")
        quantized = {e.index: e for e in self.finder.edges.get(original.name, ()) if branch.quantized}
        for index, name in enumerate(original.input):
            if index in quantized:
                self._quantize(node, quantized[index], branch)
            elif name:
                node.input[index] = self._local(name, branch)
        for index, name in enumerate(original.output):
            if name:
                node.output[index] = branch.names[name] = self.editor.unique(f"{name}/{branch.label}")
        branch.nodes.append(node)

    def _outside(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """``node`` with each quantized input chosen by an If of its own, in its bodies, too.

        Weights that a body reads are chosen once, before ``node``.
        """
        outside = copy.deepcopy(node)
        for edge in self.finder.edges.get(node.name, ()):
            yield self._chosen(outside, edge)
        for graph in reversed([each for inner in subgraphs(outside) for each in all_graphs(inner)]):
            nodes: list[onnx.NodeProto] = []
            for inner_node in graph.node:
                for edge in self.finder.in_bodies.get(inner_node.name, ()):
                    chosen = self._chosen(inner_node, edge)
                    if edge.quantization.values is None:
                        nodes.append(chosen)
                    else:
                        yield chosen
                nodes.append(inner_node)
            refill(graph.node, nodes)
        yield outside

    def _chosen(self, node: onnx.NodeProto, edge: Edge) -> onnx.NodeProto:
        """An If that gives ``edge`` in INT8 or as it is, and that ``node`` is made to read."""
        base = f"{edge.node}_input{edge.index}"
        result = node.input[edge.index] = self.editor.unique(f"{base}_chosen")
        results = {result: int(helper.np_dtype_to_tensor_dtype(edge.quantization.scale.dtype))}
        graphs: dict[str, Any] = {}
        for branch in (Branch("then", True), Branch("else", False)):
            given = branch.names[result] = self.editor.unique(f"{result}/{branch.label}")
            name = self.editor.unique(f"{base}/{branch.label}")
            chosen = helper.make_node("Identity", [self._local(edge.tensor, branch)], [given], name)
            if branch.quantized:
                self._quantize(chosen, replace(edge, index=0), branch)
            branch.nodes.append(chosen)
            graphs[f"{branch.label}_branch"] = branch.graph(base, results)
        name = self.editor.unique(f"{base}/If")
        return helper.make_node("If", [self.finder.conditions[edge.node]], [result], name, **graphs)

    def _quantize(self, node: onnx.NodeProto, edge: Edge, branch: Branch) -> None:
        """Have ``node`` read ``edge`` in INT8: a pair added to ``branch``, or a constant."""
        if edge.quantization.values is not None:
            node.input[edge.index] = self._weight(edge, branch)
            return
        if branch.pairs is None:
            # It refers to the branch's list and not to the branch, which refers to it: a circle of references
            # would keep the weights in memory after the case has ended.
            branch.pairs = QdqWriter(self.editor, partial(_add_constant, self.editor, branch.constants))
        branch.nodes.extend(branch.pairs.write(node, replace(edge, tensor=self._local(edge.tensor, branch))))

    def _weight(self, edge: Edge, branch: Branch) -> str:
        key, name = id(edge.quantization), f"{edge.tensor}/int8"
        if self.finder.is_movable(edge.tensor):
            return branch.constant(self.editor, name, edge.quantization.dequantize())
        if key not in self.outside:
            self.outside[key] = self.editor.add_constant(name, edge.quantization.dequantize())
        return self.outside[key]

    def _local(self, name: str, branch: Branch) -> str:
        """The branch's name for a tensor; a constant moves inside where it may."""
        if name not in branch.names:
            local = name
            if self.finder.is_movable(name):
                local = branch.constant(self.editor, f"{name}/{branch.label}", self.finder.constants[name])
            branch.names[name] = local
        return branch.names[name]
