"""Finds the times of an engine's layers, and the work of the groups that the layers compute."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_int8acc.case.measured import Measured
from pytest_int8acc.errors import EngineError
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network
from pytest_int8acc.results import Role
from pytest_int8acc.results.engines import LayerTime
from pytest_int8acc.search.speed import GroupWork

logger = logging.getLogger("pytest_int8acc")
_QDQ = ("QuantizeLinear", "DequantizeLinear")


def engine_layers(measured: Measured, role: Role) -> Sequence[LayerTime]:
    """The layers of the engine of a role with their times; empty if they are not known.

    If the latency of the whole engine is known, the times are scaled so that they add up to this latency,
    because the profiler itself adds time to each layer.
    """
    layers: Sequence[LayerTime] = ()
    try:
        layers = measured.backend.layer_times(role, measured.inputs)
    except EngineError as error:  # the times are only a hint
        logger.warning("%s: the layers of its engine are not timed: %s", measured.case.name, error)
    total = math.fsum(layer.milliseconds for layer in layers)
    if not total:
        return ()
    latencies = {info.role: info.latency for info in measured.result.engines}
    latency = latencies.get(role)
    scale = 1.0 if latency is None else latency.median_ms / total
    return [replace(layer, milliseconds=layer.milliseconds * scale) for layer in layers]


def group_works(
    network: Network,
    candidate: Model,
    macs: Mapping[str, float],
    shapes: Mapping[str, Sequence[int]],
) -> tuple[GroupWork, ...]:
    """The work of each group of a network, and its neighbours, in topological order.

    Args:
        network: The network.
        candidate: The same model with Q/DQ nodes.
        macs: The multiply-accumulates of each group, in any unit.
        shapes: Maps a tensor to its shape, as far as shapes are known.
    """
    own = {node: group.name for group in network.groups for node in group.nodes}
    before = _before(network.model, own)
    around = {**_readers(network, own), **_pairs(candidate, own)}
    found = []
    for group in network.groups:
        read = {edge.tensor for edge in group.edges if edge.quantization.values is None}
        found.append(
            GroupWork(
                group.name,
                frozenset(group.nodes),
                macs[group.name],
                float(sum(math.prod(shapes[tensor]) for tensor in read & shapes.keys())),
                frozenset(before[group.name]),
                frozenset(node for node, name in around.items() if name == group.name),
            )
        )
    return tuple(found)


def _before(model: Model, own: Mapping[str, str]) -> Mapping[str, set[str]]:
    """For each group, the groups whose results it reads, also through nodes in no group.

    ``own`` maps the name of a node to the name of its group.

    A node in no group that joins the results of several groups, such as an Add, computes in high precision.
    So a group that reads the result of such a node does not count as reading those groups.
    """
    found: dict[str, set[str]] = defaultdict(set)
    sources: dict[str, set[str]] = {}
    for node in model.graph.node:
        read = {name for tensor in node.input for name in sources.get(tensor, ())}
        group = own.get(node.name)
        if group is not None:
            found[group] |= read - {group}
            read = {group}
        for tensor in node.output:
            sources[tensor] = read if len(read) == 1 else set()
    return found


def _readers(network: Network, own: Mapping[str, str]) -> Mapping[str, str]:
    """For each node in no group, the last group whose result it reads, also through nodes in no group.

    ``own`` maps the name of a node to the name of its group.
    """
    places = {group.name: place for place, group in enumerate(network.groups)}
    sources: dict[str, int] = {}
    found: dict[str, str] = {}
    for node in network.model.graph.node:
        last = max((sources.get(tensor, -1) for tensor in node.input), default=-1)
        if node.name in own:
            last = places[own[node.name]]
        elif last >= 0:
            found[node.name] = network.groups[last].name
        sources.update(dict.fromkeys(node.output, last))
    return found


def _pairs(candidate: Model, own: Mapping[str, str]) -> Mapping[str, str]:
    """Maps the name of each Q/DQ node of the candidate to the group that reads the converted tensor.

    ``own`` maps the name of a node to the name of its group.
    """
    found: dict[str, str] = {}
    for node in reversed(candidate.graph.node):
        if node.op_type in _QDQ:
            readers = [reader.name for reader, _ in candidate.index.readers(node.output[0])]
            groups = [own.get(name) or found.get(name) for name in readers]
            if groups and groups[0] is not None:
                found[node.name] = groups[0]
    return found
