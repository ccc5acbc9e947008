"""A network in FP16: halved once, after which any plan applied to it is the halved plan.

``apply(network_to_fp16(network), plan)`` computes what ``to_fp16(apply(network, plan).model)`` computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper

from pytest_int8acc.graph.emulate import emulate_half
from pytest_int8acc.graph.formats import INT32
from pytest_int8acc.graph.load import QDQ_OPSET, lift
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Edge, Network, Quantization, by_node
from pytest_int8acc.graph.to_fp16 import scale_in, to_fp16
from pytest_int8acc.graph.types import FLOAT16, computes_in_half, value_types

_Place = tuple[str, int]
"""A node's name and the position of an input."""


def network_to_fp16(network: Network) -> Network:
    """The network with its model in FP16 (see ``to_fp16``) and the edges' scales in their tensors' type.

    Where an edge's reader stays in FP32, and before biases quantized to int32, a Cast of its own stands
    before the reader and bears the edge. A network that computes in FP16 already keeps its own types.
    Bodies of If, Loop and Scan stay as they are.

    Raises:
        ModelError: The opset cannot be lifted to 19, where FP16 Q/DQ begins.
    """
    edges = list(network.edges)
    marked, markers = _mark(network.model, edges)
    if not computes_in_half(network.model, value_types(network.model)):
        marked = lift(marked, QDQ_OPSET)
    # Int32 constants are biases: their scale is a product of two, often below what FP16 holds.
    biases = (e for e in edges if e.quantization.values is not None and e.quantization.format is INT32)
    wide = [markers[edge.node, edge.index] for edge in biases]
    halved, places = _unmark(to_fp16(marked, wide).model, markers)
    return _rewired(network, halved, places)


def emulate_network(network: Network) -> Network:
    """The network with FP16 spelled out in FP32 (see ``emulate_half``), as an exact run computes it."""
    places = {(edge.node, edge.index): (edge.node, edge.index) for edge in network.edges}
    return _rewired(network, emulate_half(network.model, {node for node, _ in places}), places)


def _mark(model: Model, edges: list[Edge]) -> tuple[Model, dict[_Place, str]]:
    """``model`` with a node in the place of each pair, so that types are decided around it; their names.

    Any operator that keeps types and is never folded will do: the marked model is not run.
    """
    editor = model.edit()
    places = by_node(edges)
    markers: dict[_Place, str] = {}
    nodes: list[onnx.NodeProto] = []
    for node in editor.graph.node:
        for index in (edge.index for edge in places[node.name]):
            name = markers[node.name, index] = editor.unique(f"{node.name}_input{index}_edge")
            nodes.append(helper.make_node("Neg", [node.input[index]], [f"{name}/out"], name=name))
            node.input[index] = f"{name}/out"
        nodes.append(node)
    editor.set_nodes(nodes)
    return editor.done(), markers


def _unmark(model: Model, markers: Mapping[_Place, str]) -> tuple[Model, dict[_Place, _Place]]:
    """``model`` without the markers; each edge's place is its one reader: the node, or a Cast before it."""
    editor = model.edit()
    marked = {name: place for place, name in markers.items()}
    source: dict[str, tuple[str, _Place]] = {}
    places: dict[_Place, _Place] = {}
    nodes: list[onnx.NodeProto] = []
    for node in editor.graph.node:
        if node.name in marked:
            source[node.output[0]] = node.input[0], marked[node.name]
            continue
        for index, name in enumerate(node.input):
            if name in source:
                node.input[index], place = source[name]
                places[place] = node.name, index
        nodes.append(node)
    editor.set_nodes(nodes)
    return editor.done(), places


def _rewired(network: Network, model: Model, places: Mapping[_Place, _Place]) -> Network:
    """The groups with their edges at new places of ``model``, scales in the type of the tensors there."""
    nodes, types = model.index.nodes, value_types(model)
    known: dict[tuple[int, bool], Quantization] = {}

    def moved(edge: Edge) -> Edge:
        node, index = places[edge.node, edge.index]
        tensor = nodes[node].input[index]
        half = types.get(tensor) == FLOAT16
        key = id(edge.quantization), half
        if key not in known:  # shared arrays stay shared
            scale = edge.quantization.scale
            own = np.dtype(np.float32) if scale.dtype == np.float16 else scale.dtype
            scale = scale_in(scale, np.float16 if half else own)
            known[key] = replace(edge.quantization, scale=scale)
        return Edge(node, index, tensor, known[key])

    groups = []
    for group in network.groups:
        edges = tuple(map(moved, group.edges))
        members = dict.fromkeys([*group.nodes, *(edge.node for edge in edges)])
        groups.append(replace(group, nodes=tuple(members), edges=edges))
    return replace(network, model=model, groups=tuple(groups))
