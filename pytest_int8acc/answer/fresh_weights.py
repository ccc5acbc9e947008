"""Other scales for weights: taken anew from their values, or by what their inputs let through."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from pytest_int8acc.graph.formats import FP16, INT8, INT32
from pytest_int8acc.graph.migrate import by_weight
from pytest_int8acc.graph.network import Edge, Network, Quantization, TensorScale
from pytest_int8acc.graph.plan import fresh_weights, weight_axis
from pytest_int8acc.graph.quantize import quantize_weight
from pytest_int8acc.observers.observer import TensorValues
from pytest_int8acc.tensors import Array

#: Scales are taken anew where that gains this much, in dB, and cut where that gains so much more.
_FRESH_DB, _CUT_DB = 1.0, 3.0
_READERS = frozenset({"Conv", "Gemm", "MatMul"})
#: The shares of a weight's range that are tried.
_SHARES = 2.0 ** -np.arange(0.25, 8, 0.25)


def weight_scales(
    network: Network, groups: Iterable[str] | None, held: Mapping[str, TensorValues]
) -> dict[str, TensorScale]:
    """Scales for constants of groups (None: of all) that lose less than those they have.

    Args:
        network: Any.
        groups: Names.
        held: What activations hold; where weights read none of these, all of their inputs count alike.
    """
    return {**fresh_weights(network, worse_weights(network, groups)), **_cut(network, groups, held)}


def worse_weights(network: Network, groups: Iterable[str] | None = None) -> tuple[str, ...]:
    """Constants of groups (None: of all) that scales taken from their values would round better, by 1 dB."""
    nodes, found = network.model.index.nodes, dict[str, None]()
    for edge, weight in _weights(network, groups):
        old = edge.quantization
        if old.values is None or old.format is INT32:
            continue
        axis = weight_axis(nodes[edge.node], edge, weight.ndim)
        fresh = quantize_weight(weight, axis, old.format.symmetric)
        if _error(old, weight) > 10 ** (_FRESH_DB / 10) * _error(fresh, weight):
            found[edge.tensor] = None
    return tuple(found)


def _weights(network: Network, groups: Iterable[str] | None) -> Iterator[tuple[Edge, Array]]:
    """Edges of groups (None: of all) on constants, with their float values."""
    constants, selected = network.model.constants(), None if groups is None else set(groups)
    for group in network.groups:
        for edge in group.edges if selected is None or group.name in selected else ():
            if edge.tensor in constants:
                yield edge, constants[edge.tensor]


def _error(quantization: Quantization, weight: Array) -> float:
    """Squared error of a constant's integers, relative to its own square."""
    values = weight.astype(np.float64)
    return float(((quantization.dequantize() - values) ** 2).sum() / max((values**2).sum(), 1e-30))


def _cut(
    network: Network, groups: Iterable[str] | None, held: Mapping[str, TensorValues]
) -> dict[str, TensorScale]:
    """Scales that cut off weights which need the range and meet inputs that are next to 0."""
    nodes, found = network.model.index.nodes, dict[str, TensorScale]()
    for edge, weight in _weights(network, groups):
        node = nodes[edge.node]
        maxima = held[node.input[0]].channel_amax if node.input[0] in held else None
        if maxima is None or edge.index != 1 or node.op_type not in _READERS:
            continue
        alone = len(network.model.index.readers(edge.tensor)) == 1
        if alone and edge.quantization.format is INT8 and np.isfinite(maxima).all():
            power = by_weight(maxima.astype(np.float64), weight, node) ** 2
            cut = _least(weight, power, weight_axis(node, edge, weight.ndim), edge.quantization)
            found.update({edge.tensor: cut} if cut is not None else {})
    return found


def _least(weight: Array, power: Array, axis: int | None, own: Quantization) -> TensorScale | None:
    """Of each channel's ranges the one with the least error of its products; None where none is far better.

    As SeqMSE does (AIMET), with one number for all that an input channel holds: ``power``, which broadcasts
    with the weight.
    """
    others = tuple(i for i in range(weight.ndim) if i != axis)

    def errors(quantization: Quantization) -> Array:
        return np.asarray(
            (((quantization.dequantize() - weight.astype(np.float64)) ** 2) * power).sum(others)
        )

    fresh = quantize_weight(weight, axis)
    scale, least = fresh.scale, errors(fresh)
    most = min(float(least.sum()), float(errors(own).sum()))
    for share in _SHARES:
        tried = np.maximum(fresh.scale * np.float32(share), np.float32(FP16.normal))
        codes = INT8.quantize(weight, tried, axis=axis)
        now = errors(replace(fresh, scale=tried, values=codes))
        scale, least = np.where(now < least, tried, scale), np.minimum(now, least)
    return TensorScale(scale, axis) if least.sum() * 10 ** (_CUT_DB / 10) < most else None
