"""One model in which each group's precision, FP32 or a narrower one, is chosen at run time.

A node's result is rounded by a pair of Casts, and computed in FP32, as ``emulate_half`` has it of the typed
model. What a group of the narrow format reads of others is rounded once more, which changes nothing where its
maker rounded it. Constants are rounded beforehand, so that both branches of a product keep theirs packed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from pytest_int8acc.graph.emulate import keeps_values
from pytest_int8acc.graph.formats import BF16, Format
from pytest_int8acc.graph.model import Editor
from pytest_int8acc.graph.network import Network
from pytest_int8acc.graph.switchboard import Branch, Switchboard, is_movable, open_switch
from pytest_int8acc.graph.to_fp16 import narrow_nodes
from pytest_int8acc.graph.types import BFLOAT16, FLOAT, FLOAT16, value_types


def build_low_switchboard(network: Network, low: Format) -> Switchboard:
    """The network with a switch per group: True where it runs in ``low``, FP16 or BF16; False: in FP32.

    With each choice it computes what ``emulate_half`` of ``to_fp16`` with the other groups' nodes kept does,
    as far as FP32 sums in another order do. Inputs and outputs keep their names and types.
    """
    editor = network.model.edit()
    switch, names, split = open_switch(editor, [group.name for group in network.groups])
    writer = _Writer(editor, network, low, names)
    editor.set_nodes([split, *writer.nodes()])
    return Switchboard(editor.done(), switch, tuple(group.name for group in network.groups))


class _Writer:
    """Writes the network's nodes: an If for each that rounds, or for a chain that only it and they read."""

    def __init__(self, editor: Editor, network: Network, low: Format, switches: Sequence[str]) -> None:
        self.editor, self.index = editor, network.model.index
        self.low, self.kind = low, BFLOAT16 if low is BF16 else FLOAT16
        self.narrow, constants = narrow_nodes(network.model, low)
        self.constants = {**network.model.constants(), **constants}
        self.graph, self.types = network.model.graph, value_types(network.model)
        self.switches: dict[str, str] = {}
        """Switch of each node that belongs to a group."""
        self.made: dict[str, str] = {}
        """Tensor that a group makes in the narrow format to the switch of that group."""
        for group, switch in zip(network.groups, switches, strict=True):
            for name in group.nodes:
                self.switches[name] = switch
                self.made.update(dict.fromkeys(self.narrow[name].outputs, switch))
        self.rounded: dict[str, str] = {}
        """Constant to its rounded self around the branches."""

    def nodes(self) -> Iterator[onnx.NodeProto]:
        """All nodes in topological order, each once, in branches or as it was."""
        inside: set[str] = set()
        for node in self.graph.node:
            if node.name not in self.switches or (node.name not in inside and self._follows(node)):
                yield node
            elif node.name not in inside:
                region = list(self._region(node))
                inside.update(member.name for member in region)
                yield self._if(region)

    def _follows(self, node: onnx.NodeProto) -> bool:
        """Whether a node is the same in both: it keeps values that its own group has rounded."""
        own = self.switches[node.name]
        return keeps_values(node) and all(
            self.made.get(node.input[i]) == own or self._same(node.input[i])
            for i in self.narrow[node.name].inputs
        )

    def _same(self, name: str) -> bool:
        """Whether a tensor is a constant that rounding does not change."""
        array = self.constants.get(name)
        return array is not None and bool((np.asarray(self.low.round(array), np.float32) == array).all())

    def _region(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """A node, and what follows it and alone reads what is before; rounding may as well come last."""
        yield node
        while len(node.output) == 1:
            reader = self.index.only_reader(node.output[0])
            if reader is None or self.switches.get(reader.name) != self.switches[node.name]:
                return
            others = (reader.input[i] for i in self.narrow[reader.name].inputs)
            if not keeps_values(reader) or not all(n == node.output[0] or self._same(n) for n in others):
                return
            node = reader
            yield node

    def _if(self, region: Sequence[onnx.NodeProto]) -> onnx.NodeProto:
        first, last = region[0], region[-1]
        results = {name: self.types[name] for name in last.output if name}
        graphs: dict[str, Any] = {}
        for branch in (Branch("then", True), Branch("else", False)):
            for node in region:
                self._copy(node, branch)
            for name in sorted(self.narrow[last.name].outputs) if branch.quantized else ():
                if not keeps_values(first):
                    branch.names[name] = self._round(branch.names[name], branch)
            graphs[f"{branch.label}_branch"] = branch.graph(first.name, results)
        name = self.editor.unique(f"{first.name}/If")
        return helper.make_node("If", [self.switches[first.name]], list(results), name, **graphs)

    def _copy(self, original: onnx.NodeProto, branch: Branch) -> None:
        """Add a node to a branch under names of its own; in the narrow format it reads rounded values."""
        narrow = self.narrow[original.name]
        node = copy.deepcopy(narrow.node if branch.quantized else original)
        own = self.switches[original.name]
        for i, name in enumerate(node.input):
            rounds = branch.quantized and i in narrow.inputs
            if name in self.constants:
                node.input[i] = self._constant(name, branch, rounds=rounds)
            elif rounds and name not in branch.names and self.made.get(name) != own:
                node.input[i] = branch.names[name] = self._round(name, branch)
            else:
                node.input[i] = branch.names.get(name, name)
        node.name = self.editor.unique(f"{original.name}/{branch.label}")
        for i, name in enumerate(original.output):
            if name:
                node.output[i] = branch.names[name] = self.editor.unique(f"{name}/{branch.label}")
        branch.nodes.append(node)

    def _round(self, tensor: str, branch: Branch) -> str:
        """Have a branch round a tensor to the narrow format; the name of the result."""
        for kind in (self.kind, FLOAT):
            made = self.editor.unique(f"{tensor}/Cast")
            branch.nodes.append(helper.make_node("Cast", [tensor], [made], self.editor.unique(made), to=kind))
            tensor = made
        return tensor

    def _constant(self, name: str, branch: Branch, *, rounds: bool) -> str:
        """The name by which a branch reads a constant, rounded or not; it lies inside where it may."""
        array = self.constants[name]
        rounds = rounds and not self._same(name)
        rounded = np.asarray(self.low.round(array), np.float32) if rounds else array
        if name not in self.index.constants or is_movable(name, array, self.index):
            return branch.constant(self.editor, f"{name}/{branch.label}", rounded)
        if not rounds:
            return name
        if name not in self.rounded:
            self.rounded[name] = self.editor.add_constant(f"{name}/{self.low.name}", rounded)
        return self.rounded[name]
