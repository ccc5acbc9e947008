"""One model in which every group's precision is chosen at run time, so that a trial is one inference.

Each quantized node becomes an ``If`` on its group's switch: one branch reads quantized edges, the other
the float tensors, and only the chosen branch runs. Weights are constants in both (those of the INT8
branch are dequantized beforehand), so runtimes can pack them once. Activation functions and
BatchNormalization that follow the node alone move into the branches with it, where they still fuse.

Measured against ``Where`` per tensor and against two branches joined by ``Where`` on nine networks,
``If`` per node costs least nearly everywhere (docs/benchmarks.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from pytest_int8acc.graph.model import Editor, Model, captured
from pytest_int8acc.graph.network import Edge, Network, Quantization
from pytest_int8acc.graph.quantize import dequantize_array
from pytest_int8acc.tensors import Array

#: Elementwise nodes that ORT fuses into the convolution or matrix product before them.
_TAIL = frozenset({"Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "HardSigmoid", "BatchNormalization"})


@dataclass(frozen=True, eq=False)
class Switchboard:
    """A model with one more input, ``switch``: bool [groups], True where the group runs in INT8."""

    model: Model
    switch: str
    groups: tuple[str, ...]
    """Group names in the order of the switch's elements."""


def build_switchboard(network: Network) -> Switchboard:
    """The network with a switch per group.

    With every switch off it computes what the float model does, with all on what ``apply`` with the empty
    plan gives.
    """
    editor = network.model.edit()
    switch = editor.unique("int8acc_switch")
    writer = _BranchWriter(editor, network)
    edges: dict[str, list[Edge]] = defaultdict(list)
    conditions: dict[str, str] = {}
    names = [editor.unique(f"{group.name}_switch") for group in network.groups]
    for group, condition in zip(network.groups, names, strict=True):
        for edge in group.edges:
            edges[edge.node].append(edge)
            conditions[edge.node] = condition
    ones = editor.add_constant("int8acc_split", np.ones(len(names), np.int64))
    nodes = [helper.make_node("Split", [switch, ones], names, "int8acc_switches", axis=0)]
    moved: set[str] = set()
    for node in network.model.graph.node:
        if node.name in moved:
            continue
        if node.name not in edges:
            nodes.append(node)
            continue
        tail = writer.tail(node, edges)
        moved.update(n.name for n in tail)
        nodes.append(writer.branches(node, tail, edges[node.name], conditions[node.name]))
    editor.set_nodes(nodes)
    shape = [len(names)]
    editor.graph.input.append(helper.make_tensor_value_info(switch, TensorProto.BOOL, shape))
    return Switchboard(editor.done(), switch, tuple(group.name for group in network.groups))


class _BranchWriter:
    """Writes nodes as If nodes, with scales, zero points and dequantized weights shared between them."""

    def __init__(self, editor: Editor, network: Network) -> None:
        self.editor = editor
        self.types = {name: info.dtype for name, info in network.model.values().items()}
        self.outputs = {value.name for value in network.model.graph.output}
        self.readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        self.captured: set[str] = set()
        for node in network.model.graph.node:
            self.captured |= captured(node)
            for name in node.input:
                self.readers[name].append(node)
        self.names: dict[int, str] = {}

    def tail(self, node: onnx.NodeProto, edges: Mapping[str, list[Edge]]) -> list[onnx.NodeProto]:
        """Nodes after ``node`` that read nothing else that is computed and are read through it alone."""
        tail: list[onnx.NodeProto] = []
        last = node
        while len(last.output) == 1:
            result = last.output[0]
            readers = self.readers[result]
            if result in self.outputs or result in self.captured or len(readers) != 1:
                break
            following = readers[0]
            if following.op_type not in _TAIL or following.name in edges or following.input[0] != result:
                break
            tail.append(following)
            last = following
        return tail

    def branches(
        self, node: onnx.NodeProto, tail: list[onnx.NodeProto], edges: list[Edge], condition: str
    ) -> onnx.NodeProto:
        """An If that gives the outputs of ``tail``'s end (of ``node`` without a tail)."""
        outputs = [name for name in (tail[-1] if tail else node).output if name]
        graphs = {}
        for branch, chosen in (("then", edges), ("else", [])):
            inner = list(self._branch([node, *tail], chosen, branch))
            results = [
                helper.make_tensor_value_info(f"{name}/{branch}", self._type(name), None) for name in outputs
            ]
            graphs[f"{branch}_branch"] = helper.make_graph(inner, f"{node.name}/{branch}", [], results)
        return helper.make_node("If", [condition], outputs, f"{node.name}/If", **graphs)

    def _branch(
        self, nodes: list[onnx.NodeProto], edges: list[Edge], branch: str
    ) -> Iterator[onnx.NodeProto]:
        """Copies of ``nodes`` that write to names of their own, the first one reading ``edges`` quantized."""
        made: dict[str, str] = {}
        for position, original in enumerate(nodes):
            node = onnx.NodeProto()
            node.CopyFrom(original)
            node.name = f"{original.name}/{branch}"
            node.input[:] = [made.get(name, name) for name in original.input]
            for edge in edges if position == 0 else ():
                if edge.quantization.values is not None:
                    node.input[edge.index] = self._constant(f"{edge.tensor}/int8", edge.quantization)
                else:
                    yield from self._pair(edge, node)
            made.update({name: f"{name}/{branch}" for name in original.output if name})
            node.output[:] = [made.get(name, name) for name in original.output]
            yield node

    def _pair(self, edge: Edge, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        base = f"{edge.node}_input{edge.index}"
        quantization = edge.quantization
        parameters = [
            self._array(f"{edge.tensor}_scale", quantization.scale),
            self._array(f"{edge.tensor}_zero_point", quantization.zero_point),
        ]
        axis: dict[str, Any] = {} if quantization.axis is None else {"axis": quantization.axis}
        codes, result = self.editor.unique(f"{base}_quantized"), self.editor.unique(f"{base}_dequantized")
        yield helper.make_node("QuantizeLinear", [edge.tensor, *parameters], [codes], f"{base}_Q", **axis)
        yield helper.make_node("DequantizeLinear", [codes, *parameters], [result], f"{base}_DQ", **axis)
        node.input[edge.index] = result

    def _constant(self, wanted: str, quantization: Quantization) -> str:
        key = id(quantization)
        if key not in self.names:
            self.names[key] = self.editor.add_constant(wanted, dequantize_array(quantization))
        return self.names[key]

    def _array(self, wanted: str, array: Array) -> str:
        if id(array) not in self.names:
            self.names[id(array)] = self.editor.add_constant(wanted, array)
        return self.names[id(array)]

    def _type(self, name: str) -> int:
        return int(helper.np_dtype_to_tensor_dtype(self.types.get(name, np.dtype(np.float32))))
