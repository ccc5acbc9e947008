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
from pytest_int8acc.graph.fp16_constants import to_half
from pytest_int8acc.graph.load import normalize, raise_opset
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Edge, Group, Network, Quantization
from pytest_int8acc.graph.to_fp16 import QDQ_OPSET, computes_in_half, to_fp16
from pytest_int8acc.graph.types import FLOAT16, value_types
from pytest_int8acc.tensors import Array

_Place = tuple[str, int]
"""A node's name and the position of an input."""


def network_to_fp16(network: Network) -> Network:
    """The network with its model in FP16 (see ``to_fp16``) and the edges' scales in their tensors' type.

    Where an edge's reader stays in FP32, and before biases quantized to int32, a Cast of its own stands
    before the reader and bears the edge. A network that computes in FP16 already keeps its own types.

    Raises:
        ModelError: The opset cannot be lifted to 19, where FP16 Q/DQ begins.
    """
    edges = [edge for group in network.groups for edge in group.edges]
    marked, markers = _mark(network.model, edges)
    if marked.opset < QDQ_OPSET and not computes_in_half(marked, value_types(marked)):
        marked = normalize(raise_opset(marked, QDQ_OPSET))
    wide = [markers[edge.node, edge.index] for edge in edges if _is_bias(edge)]
    halved, places = _unmark(to_fp16(marked, wide).model, markers)
    return _rewired(network, halved, places)


def emulate_network(network: Network) -> Network:
    """The network with FP16 spelled out in FP32 (see ``emulate_half``), as an exact run computes it."""
    readers = {edge.node for group in network.groups for edge in group.edges}
    model = emulate_half(network.model, readers)
    places = {(e.node, e.index): (e.node, e.index) for group in network.groups for e in group.edges}
    return _rewired(network, model, places)


def _mark(model: Model, edges: list[Edge]) -> tuple[Model, dict[_Place, str]]:
    """``model`` with a node in the place of each pair, so that types are decided around it; their names.

    Any operator that keeps types and is never folded will do: the marked model is not run.
    """
    editor = model.edit()
    places: dict[str, list[int]] = {}
    for edge in edges:
        places.setdefault(edge.node, []).append(edge.index)
    markers: dict[_Place, str] = {}
    nodes: list[onnx.NodeProto] = []
    for node in editor.graph.node:
        for index in places.get(node.name, ()):
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
            known[key] = _with_scale(edge, half)
        return Edge(node, index, tensor, known[key])

    groups = []
    for group in network.groups:
        edges = tuple(map(moved, group.edges))
        members = dict.fromkeys([*group.nodes, *(edge.node for edge in edges)])
        groups.append(Group(group.name, group.op_type, tuple(members), edges))
    return replace(network, model=model, groups=tuple(groups))


def _with_scale(edge: Edge, half: bool) -> Quantization:
    scale: Array = edge.quantization.scale
    if half and scale.dtype == np.float32:
        scale = to_half(edge.tensor, scale, (), is_scale=True).values
    elif not half and scale.dtype == np.float16:
        scale = scale.astype(np.float32)
    return replace(edge.quantization, scale=scale)


def _is_bias(edge: Edge) -> bool:
    """True for int32 constants: their scale is a product of two, often below what FP16 holds."""
    return edge.quantization.values is not None and edge.quantization.format is INT32
