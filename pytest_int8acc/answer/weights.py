"""What is wrong with the integers of a weight: its scales against those that its channels need."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray

from pytest_int8acc.graph.formats import FP32, along
from pytest_int8acc.graph.groups import WEIGHTED, channel_axis
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Edge, Quantization
from pytest_int8acc.graph.quantize import quantize_weight
from pytest_int8acc.observers.edges import CEILING_DB, LOST_DB, WIDE, reach, sound_db
from pytest_int8acc.observers.observer import decibels
from pytest_int8acc.results.causes import Cause, Histogram
from pytest_int8acc.tensors import Array

#: Scales made for another axis agree with its channels' amax / levels up to rounding.
_EQUAL = 0.02
#: Where the float weights are gone: codes of a weight that stay below this are of a scale too wide.
_FEW_CODES = 0.4
_BINS = 64


def inspect_weight(
    edge: Edge,
    node: onnx.NodeProto,
    network: Model,
    model: Model,
    energy: NDArray[np.float64] | None = None,
) -> Cause:
    """A quantized constant against its float original; noise that adds up where nothing is wrong with it.

    Args:
        edge: An edge whose quantization holds integers.
        node: Its reader, as the network has it.
        network: The network's model; its constant is what the Q/DQ model gives where the original is gone.
        model: The case's float model, which may have the original.
        energy: Sum of squares of each input channel's activations, shape (channels,): an error counts by what
            it is multiplied with. None: all count alike.
    """
    quantization = edge.quantization
    given = quantization.dequantize().astype(np.float64)
    name, original = _original(edge, network, model, given.shape)
    weight, axis = original.astype(np.float64), quantization.axis
    if node.op_type in WEIGHTED:
        axis = channel_axis(node, edge.index, weight.ndim)
    best = quantize_weight(weight.astype(np.float32), axis, quantization.format.symmetric).dequantize()
    shares = _shares(energy, axis, weight)
    signal = float((shares * weight**2).sum())
    sqnr, best_db = (decibels(signal, float((shares * (weight - w) ** 2).sum())) for w in (given, best))
    best_db = min(best_db, CEILING_DB)
    numbers = {"sqnr_db": sqnr, "best_sqnr_db": best_db, "lost_db": max(best_db - sqnr, 0.0)}
    factors = _factors(quantization, weight)
    numbers |= {
        "factor_least": float(factors.min(initial=np.inf)),
        "factor_most": float(factors.max(initial=0)),
    }
    numbers["channel_ratio"] = _spread(weight, axis)
    amax = float(np.abs(weight).max())
    counts, edges = np.histogram(np.abs(weight), _BINS, (0.0, amax or 1.0))
    values = Histogram(tuple(map(float, edges)), tuple(map(int, counts)))
    cause = Cause("accumulated-noise", "noise-adds-up", name, numbers, values, amax, reach(quantization))
    return _fault(cause, quantization, weight, shares, axis)


def _fault(
    cause: Cause,
    quantization: Quantization,
    weight: NDArray[np.float64],
    shares: NDArray[np.float64],
    axis: int | None,
) -> Cause:
    """What is wrong with the weight; ``cause`` where nothing is."""
    factors = _factors(quantization, weight)
    least = float(quantization.scale.min())
    sqnr, best_db = cause.numbers["sqnr_db"], cause.numbers["best_sqnr_db"]
    if not np.isfinite(quantization.scale).all() or least < FP32.normal:
        return cause.showing("zero-scale", "vanishing-weight-scale", {"scale": least})
    if np.isinf(sqnr) and weight.any():
        used = float(_steps(quantization).max()) / quantization.format.symmetric.levels
        if used < _FEW_CODES:
            return cause.showing("weight-scale", "few-codes", {"codes_used": used})
    if best_db - sqnr >= LOST_DB:
        other = _other_axis(quantization, weight, axis)
        if other is not None and axis is not None:
            return cause.showing(
                "wrong-axis", "scales-of-other-axis", {"axis": axis, "axis_of_scales": other}
            )
        if quantization.axis is None and axis is not None and 1 / WIDE < factors.max() < WIDE:
            return cause.showing("weight-outliers", "one-scale-for-channels")
        return cause.showing("weight-scale", "weight-scales-off", _scales_off(factors))
    return _large_values(cause, weight, shares) if best_db < sound_db(quantization.format) else cause


def _shares(
    energy: NDArray[np.float64] | None, axis: int | None, weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """``energy`` shaped to multiply the weight; ones where the input channels cannot be told."""
    inputs = None if axis is None else 1 - axis % weight.ndim
    known = energy is not None and energy.any() and inputs in (0, 1) and weight.ndim > 1
    if energy is None or inputs is None or not known or weight.shape[inputs] != energy.size:
        return np.ones(1)
    return energy.reshape([-1 if i == inputs else 1 for i in range(weight.ndim)])


def _original(edge: Edge, network: Model, model: Model, shape: tuple[int, ...]) -> tuple[str, Array]:
    """Name and values of the weight that the same node of the float model reads; else the network's own."""
    for source in (model, network):
        node = next((n for n in source.graph.node if n.name == edge.node), None)
        if node is None or edge.index >= len(node.input):
            continue
        name = node.input[edge.index]
        weight = source.constants().get(name)
        if weight is not None and weight.shape == shape and weight.dtype.kind == "f":
            return name, weight
    return edge.tensor, edge.quantization.dequantize()


def _amax(weight: NDArray[np.float64], axis: int | None) -> NDArray[np.float64]:
    """Greatest magnitude per channel, of shape (channels,); () without an axis."""
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis % weight.ndim)
    return np.asarray(np.abs(weight).max(axis=others))


def _factors(quantization: Quantization, weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Range of each scale over what its channel holds; channels that are all zeros left out."""
    amax = _amax(weight, quantization.axis)
    scale = quantization.scale.astype(np.float64)
    return np.asarray((scale * quantization.format.symmetric.levels)[amax > 0] / amax[amax > 0])


def _steps(quantization: Quantization) -> NDArray[np.float64]:
    """Distance of each code from its zero point."""
    assert quantization.values is not None
    zero = along(quantization.zero_point, quantization.axis, quantization.values.ndim)
    return np.abs(quantization.values.astype(np.float64) - zero.astype(np.float64))


def _other_axis(quantization: Quantization, weight: NDArray[np.float64], axis: int | None) -> int | None:
    """The axis that the scales belong to, where that is not the axis of the channels."""
    given = quantization.axis
    if given is None or axis is None:
        return None
    if given % weight.ndim != axis % weight.ndim:
        return given % weight.ndim
    scale = quantization.scale.astype(np.float64) * quantization.format.symmetric.levels
    for other in range(weight.ndim):
        if other != axis % weight.ndim and weight.shape[other] == scale.size:
            amax = _amax(weight, other)
            if np.abs(scale[amax > 0] / amax[amax > 0] - 1).max(initial=0) < _EQUAL:
                return other
    return None


def _spread(weight: NDArray[np.float64], axis: int | None) -> float:
    """The greatest channel's range over the usual one's."""
    amax = _amax(weight, axis).ravel()
    present = amax[amax > 0]
    return float(present.max() / np.median(present)) if present.size else 1.0


def _large_values(cause: Cause, weight: NDArray[np.float64], shares: NDArray[np.float64]) -> Cause:
    """What values make the range of a weight."""
    amax, rest = float(np.abs(weight).max()), float(np.quantile(np.abs(weight), 0.999))
    used = float(np.abs(weight[np.broadcast_to(shares > 0.01 * shares.mean(), weight.shape)]).max(initial=0))
    if used < amax / 2:
        return cause.showing("weight-outliers", "large-idle-weights", {"amax_in_use": used})
    return cause.showing("weight-outliers", "large-weights", {"p99.9": rest})


def _scales_off(factors: NDArray[np.float64]) -> dict[str, float]:
    """How many scales are off in the direction of the one that is most, and by how much that is."""
    wide, narrow = float(factors.max()), float(factors.min())
    most = wide if wide * narrow >= 1 else narrow
    off = (factors > WIDE).sum() if most == wide else (factors < 1 / WIDE).sum()
    return {"scales": factors.size, "scales_off": int(off), "factor": most}
