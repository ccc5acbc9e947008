"""Look-ups in graphs: the node that computes a tensor, the nodes that read the tensor, graphs inside nodes.

With these look-ups, the time of a pass over a graph is proportional to the number of the graph's nodes.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import onnx
from onnx import TensorProto, helper

#: A node that reads a tensor, and the position of the tensor among the node's inputs.
Reader = tuple[onnx.NodeProto, int]
#: Types of attributes that hold graphs.
GRAPHS = frozenset({onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS})
#: Operators of ONNX that hold graphs.
_HOLDERS = frozenset({"If", "Loop", "Scan", "SequenceMap"})


class Index:
    """Look-ups in one graph, or in a main graph and all graphs inside its nodes.

    A look-up is built at its first use. The graph must not change afterwards.
    """

    def __init__(self, graph: onnx.GraphProto, *, inner: bool = False) -> None:
        """Create an index.

        Args:
            graph: A graph of a model in normal form; see ``graph.load``. With ``inner`` the main graph.
            inner: Whether all look-ups include nodes and constants inside If, Loop and Scan. If so,
                ``public`` has only the outputs of all graphs.
        """
        self._graphs = [graph, *(body.graph for body in bodies(graph))] if inner else [graph]
        self._nodes = list(all_nodes(graph)) if inner else graph.node
        self._inner = inner

    @cached_property
    def nodes(self) -> dict[str, onnx.NodeProto]:
        """Name to node, in topological order."""
        return {node.name: node for node in self._nodes}

    @cached_property
    def order(self) -> dict[str, int]:
        """The position of each node in topological order, by node name."""
        return {name: position for position, name in enumerate(self.nodes)}

    @cached_property
    def producer(self) -> dict[str, onnx.NodeProto]:
        """The node that computes each tensor.

        Inputs and constants of the graph are not among the tensors.
        """
        return {name: node for node in self._nodes for name in node.output if name}

    @cached_property
    def constants(self) -> frozenset[str]:
        """Names of the initializers."""
        return frozenset(tensor.name for graph in self._graphs for tensor in graph.initializer)

    @cached_property
    def captured(self) -> frozenset[str]:
        """Names of tensors that graphs inside If, Loop and Scan nodes read; some may be defined inside.

        If the look-ups include the nodes inside, the result is empty, because ``readers`` finds these nodes.
        """
        if self._inner:
            return frozenset()
        return frozenset(name for node in self._nodes for name in captured(node))

    @cached_property
    def public(self) -> frozenset[str]:
        """Names of the main graph's outputs, and of tensors that graphs inside its nodes read."""
        return self.captured.union(value.name for graph in self._graphs for value in graph.output)

    def readers(self, tensor: str) -> Sequence[Reader]:
        """The nodes that read ``tensor``, in topological order, each with the position of the input."""
        return self._readers.get(tensor, ())

    def only_reader(self, tensor: str) -> onnx.NodeProto | None:
        """The only node that reads ``tensor``.

        None if there are no or several readers, or if ``tensor`` is in ``public``.
        """
        readers = self.readers(tensor)
        return readers[0][0] if len(readers) == 1 and tensor not in self.public else None

    @cached_property
    def _readers(self) -> dict[str, list[Reader]]:
        readers: dict[str, list[Reader]] = defaultdict(list)
        for node in self._nodes:
            for position, name in enumerate(node.input):
                if name:
                    readers[name].append((node, position))
        return dict(readers)


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """``graph`` and the graphs inside its nodes (If, Loop, Scan), at any depth."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from all_graphs(inner)


@dataclass(frozen=True, eq=False)
class Body:
    """A graph inside a node (If, Loop, Scan) of a main graph, at any depth."""

    graph: onnx.GraphProto
    holder: str
    """The name of the main graph's node that contains the graph."""
    path: str
    """The names of the nodes that contain the graph, outermost first, each followed by a slash."""


def bodies(graph: onnx.GraphProto) -> Iterator[Body]:
    """The graphs inside the nodes of a main graph, at any depth.

    A graph is yielded before the graphs that it contains.
    """
    for node in graph.node:
        yield from _bodies(node, node.name, "")


def _bodies(node: onnx.NodeProto, holder: str, path: str) -> Iterator[Body]:
    path = f"{path}{node.name}/"
    for graph in subgraphs(node):
        yield Body(graph, holder, path)
        for inner in graph.node:
            yield from _bodies(inner, holder, path)


def body_names(graph: onnx.GraphProto) -> dict[str, str]:
    """The path of each node inside If, Loop or Scan: the containing nodes' names, then its own name."""
    return {node.name: body.path + node.name for body in bodies(graph) for node in body.graph.node}


def holders(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """For each node inside If, Loop or Scan, by name, the node of the main graph that contains it."""
    nodes = {node.name: node for node in graph.node}
    return {node.name: nodes[body.holder] for body in bodies(graph) for node in body.graph.node}


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Every node of ``graph`` and of the graphs inside its nodes (If, Loop, Scan)."""
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from all_nodes(inner)


def all_initializers(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    """Every initializer of ``graph`` and of the graphs inside its nodes."""
    return (tensor for each in all_graphs(graph) for tensor in each.initializer)


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """The value of an attribute of ``node`` as a Python object, or ``default``. Strings are bytes."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


@functools.cache
def schema_of(op_type: str, opset: int, domain: str = "") -> onnx.defs.OpSchema | None:
    """ONNX's schema of an operator in version ``opset`` of its domain; None for an unknown operator."""
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except (onnx.defs.SchemaError, TypeError):  # TypeError: the version has more than 32 bits
        return None


def needed_nodes(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> Iterable[onnx.NodeProto]:
    """The nodes on which ``outputs`` depend, in the order of ``nodes``."""
    read = set(outputs)
    kept = []
    for node in reversed(nodes):
        if not read.isdisjoint(node.output):
            read.update(node.input, captured(node))
            kept.append(node)
    return reversed(kept)


def take_name(preferred: str, taken: set[str]) -> str:
    """A name that is not yet in ``taken``: ``preferred``, or ``preferred_2`` and so on.

    The name is added to ``taken``.
    """
    numbered = (f"{preferred}_{n}" for n in itertools.count(2))
    name = next(name for name in itertools.chain([preferred], numbered) if name not in taken)
    taken.add(name)
    return name


def rename_inside(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename tensors, from keys of ``names`` to its values, in ``graph`` and in graphs inside its nodes."""
    for each in all_graphs(graph) if names else ():
        for value in (*each.input, *each.output, *each.value_info, *each.initializer):
            value.name = names.get(value.name, value.name)
        for node in each.node:
            for field in (node.input, node.output):
                field[:] = [names.get(name, name) for name in field]


def refill(field: Any, messages: Iterable[Any]) -> None:
    """Replace the elements of a protobuf field. ``messages`` may contain elements of the field itself."""
    kept = list(messages)  # Protobuf keeps deleted elements alive as long as Python refers to them.
    del field[:]
    field.extend(kept)


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs in attributes of ``node``, such as the branches of an If."""
    if node.op_type not in _HOLDERS and not node.domain:
        return []
    return [graph for a in node.attribute if a.type in GRAPHS for graph in (a.graphs or [a.g])]


def captured(node: onnx.NodeProto) -> set[str]:
    """Names of tensors that graphs inside ``node`` read. The graphs may define some of them themselves."""
    graphs = subgraphs(node)
    read = {name for graph in graphs for inner in all_nodes(graph) for name in inner.input if name}
    return read.union(value.name for graph in graphs for value in graph.output)


def inner_names(node: onnx.NodeProto) -> set[str]:
    """Names of the tensors that the graphs inside ``node`` define, at any depth."""
    graphs = [each for graph in subgraphs(node) for each in all_graphs(graph)]
    names = {value.name for graph in graphs for value in (*graph.input, *graph.initializer)}
    return names.union(name for graph in graphs for inner in graph.node for name in inner.output)
