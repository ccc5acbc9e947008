"""Each group once more beside the float network, in INT8 on the float network's tensors.

One run of such a model gives the error that every group makes by itself; otherwise it takes a run for each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace

import onnx
from onnx import helper

from pytest_int8acc.graph.index import Index
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Edge, Network, by_node
from pytest_int8acc.graph.plan import QdqWriter
from pytest_int8acc.graph.types import FLOAT, value_types


def with_quantized_copies(network: Network, watched: Mapping[str, str]) -> tuple[Model, dict[str, str]]:
    """The network's model with nothing in INT8, and a copy of each watched group's nodes that is.

    Args:
        network: Its types are those that are run; no plan applied.
        watched: Group to a tensor that its nodes, or nodes behind them, make.

    Returns:
        The model, with the copies of the watched tensors among its outputs; group to its copy's name.
    """
    writer, types = QdqWriter(network.model.edit()), value_types(network.model)
    copies = [_Copy(group.name, by_node(group.edges)) for group in network.groups if group.name in watched]
    copied: dict[str, list[_Copy]] = defaultdict(list)
    for copy in copies:
        for name in _between(copy.edges, watched[copy.group], network.model.index):
            copied[name].append(copy)
    nodes: list[onnx.NodeProto] = []
    for node in writer.editor.graph.node:
        nodes.append(node)
        for copy in copied[node.name]:
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
    names: dict[str, str] = field(default_factory=dict)
    """Tensor to its copy."""

    def of(self, node: onnx.NodeProto, writer: QdqWriter) -> Iterator[onnx.NodeProto]:
        """The copy of ``node``, which has a part in the watched tensor's error, with its Q/DQ."""
        copy = deepcopy(node)
        copy.name = writer.editor.unique(f"{node.name}/alone")
        copy.input[:] = [self.names.get(name, name) for name in copy.input]
        for edge in self.edges.get(node.name, []):
            yield from writer.write(copy, replace(edge, tensor=self.names.get(edge.tensor, edge.tensor)))
        for i, name in enumerate(node.output):
            if name:
                copy.output[i] = self.names[name] = writer.editor.unique(f"{name}/alone")
        yield copy


def _between(starts: Collection[str], tensor: str, index: Index) -> set[str]:
    """The nodes on the ways from ``starts`` to ``tensor``; looks at nothing that stands behind its node."""
    end = index.producer.get(tensor)
    if end is None:
        return set()
    last = index.order[end.name]
    after = {name for name in starts if index.order[name] <= last}
    left = list(after)
    while left:
        for made in index.nodes[left.pop()].output:
            for node, _ in index.readers(made):
                if node.name not in after and index.order[node.name] <= last:
                    after.add(node.name)
                    left.append(node.name)
    between = {end.name} & after
    left = list(between)
    while left:
        for read in index.nodes[left.pop()].input:
            before = index.producer.get(read)
            if before is not None and before.name in after and before.name not in between:
                between.add(before.name)
                left.append(before.name)
    return between
