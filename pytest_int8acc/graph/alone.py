"""Each group once more beside the float network, in INT8 on the float network's tensors.

One run of such a model gives the error that every group makes by itself; otherwise it takes a run for each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import onnx
from onnx import helper

from pytest_int8acc.graph.model import Model, captured
from pytest_int8acc.graph.network import Edge, Group, Network
from pytest_int8acc.graph.plan import QdqWriter
from pytest_int8acc.graph.types import FLOAT, value_types


def beside(network: Network, watched: Mapping[str, str]) -> tuple[Model, dict[str, str]]:
    """The network's model with nothing in INT8, and a copy of each group's nodes that is.

    Args:
        network: Its types are those that are run; no plan applied.
        watched: Group to a tensor that its nodes, or nodes behind them, make.

    Returns:
        The model, with the copies of the watched tensors among its outputs; group to its copy's name.
    """
    writer, types = QdqWriter(network.model.edit()), value_types(network.model)
    copies = _copies(network, watched)
    nodes: list[onnx.NodeProto] = []
    for node in writer.editor.graph.node:
        nodes.append(node)
        for copy in copies:
            nodes.extend(copy.of(node, writer))
    writer.editor.set_nodes(nodes)
    made = {copy.group: copy.names.get(watched[copy.group], watched[copy.group]) for copy in copies}
    outputs = writer.editor.graph.output
    known = {value.name for value in outputs}
    for group, tensor in watched.items():
        if made[group] not in known:
            outputs.append(helper.make_tensor_value_info(made[group], types.get(tensor, FLOAT), None))
    return writer.editor.done(), made


@dataclass(eq=False)
class _Copy:
    """The nodes of one group once more, from its quantized edges to its watched tensor."""

    group: str
    edges: Mapping[str, list[Edge]]
    """Node to its edges of this group."""
    wanted: frozenset[str]
    """Nodes that the watched tensor is made from."""
    names: dict[str, str] = field(default_factory=dict)
    """Tensor to its copy."""

    def of(self, node: onnx.NodeProto, writer: QdqWriter) -> Iterator[onnx.NodeProto]:
        """The copy of ``node`` with its Q/DQ, where it has a part in the watched tensor's error."""
        own = self.edges.get(node.name, [])
        if node.name not in self.wanted or not (own or not self.names.keys().isdisjoint(node.input)):
            return
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = writer.editor.unique(f"{node.name}/alone")
        copy.input[:] = [self.names.get(name, name) for name in copy.input]
        for edge in own:
            yield from writer.write(copy, replace(edge, tensor=self.names.get(edge.tensor, edge.tensor)))
        for i, name in enumerate(node.output):
            if name:
                copy.output[i] = self.names[name] = writer.editor.unique(f"{name}/alone")
        yield copy


def _copies(network: Network, watched: Mapping[str, str]) -> list[_Copy]:
    makers = {name: node for node in network.model.graph.node for name in node.output if name}
    return [_Copy(g.name, _edges(g), _ancestors(watched[g.name], makers)) for g in network.groups]


def _edges(group: Group) -> dict[str, list[Edge]]:
    found: dict[str, list[Edge]] = defaultdict(list)
    for edge in group.edges:
        found[edge.node].append(edge)
    return found


def _ancestors(tensor: str, makers: Mapping[str, onnx.NodeProto]) -> frozenset[str]:
    """The nodes that a tensor is made from."""
    found: set[str] = set()
    left = [tensor]
    while left:
        node = makers.get(left.pop())
        if node is not None and node.name not in found:
            found.add(node.name)
            left.extend((*node.input, *captured(node)))
    return frozenset(found)
