"""The graph around a group, as a drawing needs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx

from pytest_int8acc.graph.network import Edge, Group, Network, Precision
from pytest_int8acc.results import Neighbours, Wire

#: Wires of a side that are kept: a drawing of more shows nothing.
_MOST = 5


def neighbours(network: Network, layers: set[str], rest: Precision) -> dict[str, Neighbours]:
    """What each of ``layers`` reads and who reads it, with the formats that a network in INT8 has there.

    Args:
        network: The case's own.
        layers: Names of its groups.
        rest: What is not quantized runs in this.

    Returns:
        By group. Constants that are not quantized, as a bias, are left out.
    """
    edges = {(edge.node, edge.index): edge for edge in network.edges}
    found = {}
    for group in network.groups:
        if group.name in layers:
            inputs = list(_inputs(network, group, edges, rest))
            outputs = list(_outputs(network, group, edges, rest))
            more = max(len(inputs) - _MOST, 0) + max(len(outputs) - _MOST, 0)
            found[group.name] = Neighbours(tuple(inputs[:_MOST]), tuple(outputs[:_MOST]), more)
    return found


_Edges = dict[tuple[str, int], Edge]


def _inputs(network: Network, group: Group, edges: _Edges, rest: Precision) -> Iterator[Wire]:
    index = network.model.index
    for name in group.nodes:
        for position, tensor in enumerate(index.nodes[name].input if name in index.nodes else ()):
            edge, producer = edges.get((name, position)), index.producer.get(tensor)
            if producer is not None and producer.name not in group.nodes:
                yield _wire(tensor, producer, edge, rest)
            elif producer is None and tensor and (edge is not None or tensor not in index.constants):
                yield Wire(
                    tensor, "constant" if tensor in index.constants else "input", **_format(edge, rest)
                )


def _outputs(network: Network, group: Group, edges: _Edges, rest: Precision) -> Iterator[Wire]:
    index = network.model.index
    given = {output.name for output in network.model.outputs}
    for name in group.nodes:
        for tensor in index.nodes[name].output if name in index.nodes else ():
            for node, position in index.readers(tensor):
                if node.name not in group.nodes:
                    yield _wire(tensor, node, edges.get((node.name, position)), rest)
            if tensor in given:
                yield Wire(tensor, "output", format=rest)


def _wire(tensor: str, node: onnx.NodeProto, edge: Edge | None, rest: Precision) -> Wire:
    return Wire(tensor, "node", node.name, node.op_type, **_format(edge, rest))


def _format(edge: Edge | None, rest: Precision) -> dict[str, Any]:
    """How a tensor is read there."""
    if edge is None:
        return {"format": rest}
    scale = edge.quantization.scale
    return {"format": edge.quantization.format.name, "scale": float(scale.max()), "scales": int(scale.size)}
