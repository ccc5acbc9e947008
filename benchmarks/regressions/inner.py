"""Q/DQ where the plugin puts none and other quantizers do: at norms, GELU and SiLU, sums, embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx

from benchmarks.regressions import judge
from benchmarks.regressions.data import samples
from benchmarks.regressions.entry import Planted, Truth
from benchmarks.regressions.networks import CALIBRATION, Net
from benchmarks.regressions.plant import Change, from_qdq
from pytest_int8acc.graph.layout import quantize_weight
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Edge, Group, Network, Quantization

#: Node and its input, and what becomes of how it is quantized; None: nothing.
Places = Mapping[tuple[str, int], Change | None]


def inner(net: Net, places: Places, kinds: frozenset[str], int8_fix: bool | None = True) -> Planted:
    """Further inputs quantized, some of them wrongly; each node is a group, in the order of the graph."""
    wrong = {name: kinds for (name, _), change in places.items() if change is not None}
    return from_qdq(net, _quantized(net, places), Truth(causes=wrong, int8_fix=int8_fix))


def _quantized(net: Net, places: Places) -> Network:
    network, constants = net.network(), net.model.constants()
    nodes = {node.name: node for node in net.model.graph.node}
    tensors = {nodes[name].input[index] for name, index in places} - constants.keys()
    reaches = _reaches(net, sorted(tensors))
    groups = {group.name: group for group in network.groups}
    for (name, index), change in places.items():
        node, tensor = nodes[name], nodes[name].input[index]
        honest = (
            quantize_weight(constants[tensor], None)
            if tensor in constants
            else Quantization(np.array(reaches[tensor] / 127, np.float32), np.zeros((), np.int8))
        )
        edge = Edge(name, index, tensor, honest if change is None else change(honest))
        group = groups.get(name, Group(name, node.op_type, (name,), ()))
        groups[name] = replace(group, edges=(*group.edges, edge))
    return replace(network, groups=tuple(groups[name] for name in nodes if name in groups))


def _reaches(net: Net, tensors: list[str]) -> dict[str, float]:
    """Greatest absolute value of each tensor on the calibration samples."""
    if not tensors:
        return {}
    proto = onnx.ModelProto()
    proto.CopyFrom(net.model.edit().done().proto)
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors)
    model: Model = replace(net.model, proto=proto)
    found = judge.run(model, samples(net.name, "calibration", CALIBRATION))
    return {name: float(np.abs(found[name]).max()) for name in tensors}
