"""What is wrong with the integers of a weight: its scales against those that its channels need."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
from numpy.typing import NDArray

from pytest_int8acc.graph.formats import FP32, INT8, along
from pytest_int8acc.graph.groups import WEIGHTED, channel_axis
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Edge, Quantization
from pytest_int8acc.graph.quantize import quantize_weight
from pytest_int8acc.lab.statistics import (
    CEILING_DB,
    LOST_DB,
    SOUND_DB,
    WIDE,
    EdgeFinding,
    percent,
    reach,
)
from pytest_int8acc.lab.values import decibels
from pytest_int8acc.results import Histogram
from pytest_int8acc.tensors import Array

#: Scales made for another axis agree with its channels' amax / 127 up to rounding.
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
) -> EdgeFinding:
    """A quantized constant against its float original.

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
    edge, weight, axis = replace(edge, tensor=name), original.astype(np.float64), quantization.axis
    if node.op_type in WEIGHTED:
        axis = channel_axis(node, edge.index, weight.ndim)
    best = quantize_weight(weight.astype(np.float32), axis).dequantize()
    shares = _shares(energy, axis, weight)
    signal = float((shares * weight**2).sum())
    sqnr, best_db = (decibels(signal, float((shares * (weight - w) ** 2).sum())) for w in (given, best))
    best_db = min(best_db, CEILING_DB)
    kind, text = _fault(edge, weight, shares, axis, sqnr, best_db)
    numbers = {"lost_db": max(best_db - sqnr, 0.0), "channel_ratio": _spread(weight, axis)}
    numbers |= _range_of_factors(quantization, weight)
    histogram, amax = _histogram(weight)
    return EdgeFinding(name, sqnr, best_db, kind, text, numbers, histogram, amax, reach(quantization))


def _histogram(weight: NDArray[np.float64]) -> tuple[Histogram, float]:
    """Of the magnitudes, and the greatest."""
    amax = float(np.abs(weight).max())
    counts, edges = np.histogram(np.abs(weight), _BINS, (0.0, amax or 1.0))
    return Histogram(tuple(map(float, edges)), tuple(map(int, counts))), amax


def _range_of_factors(quantization: Quantization, weight: NDArray[np.float64]) -> dict[str, float]:
    factors = _factors(quantization, weight)
    return {
        "factor_least": float(factors.min(initial=np.inf)),
        "factor_most": float(factors.max(initial=0.0)),
    }


def _fault(
    edge: Edge,
    weight: NDArray[np.float64],
    shares: NDArray[np.float64],
    axis: int | None,
    sqnr: float,
    best_db: float,
) -> tuple[str, str]:
    """Kind and text; empty where nothing is wrong with the edge."""
    quantization = edge.quantization
    factors = _factors(quantization, weight)
    if not np.isfinite(quantization.scale).all() or float(quantization.scale.min()) < FP32.normal:
        return "zero-scale", f"weight '{edge.tensor}' has the scale {float(quantization.scale.min()):.3g}"
    cost = f"it keeps {sqnr:.3g} dB, scales from its channels {best_db:.3g}"
    if np.isinf(sqnr) and weight.any():
        used = float(_steps(quantization).max()) / INT8.levels
        if used < _FEW_CODES:
            return "weight-scale", f"weight '{edge.tensor}' uses {percent(used)} of its INT8 codes"
    if best_db - sqnr >= LOST_DB:
        other = _other_axis(quantization, weight, axis)
        if other is not None:
            return "wrong-axis", (
                f"the scales of weight '{edge.tensor}' are those of axis {other}, its channels lie along "
                f"axis {axis}: {cost}"
            )
        if quantization.axis is None and axis is not None and 1 / WIDE < factors.max() < WIDE:
            return "weight-outliers", (
                f"weight '{edge.tensor}' has one scale for all channels, of which the greatest reaches "
                f"{_spread(weight, axis):.3g}x the usual one: {cost}"
            )
        return "weight-scale", f"{_in_words(edge.tensor, factors)}: {cost}"
    if best_db < SOUND_DB:
        return "weight-outliers", (
            f"{_large_values(edge.tensor, weight, shares)}: even scales from its channels keep "
            f"{best_db:.3g} dB only"
        )
    return "", ""


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
    return np.asarray((scale * INT8.levels)[amax > 0] / amax[amax > 0])


def _steps(quantization: Quantization) -> NDArray[np.int64]:
    """Distance of each code from its zero point."""
    assert quantization.values is not None
    zero = along(quantization.zero_point, quantization.axis, quantization.values.ndim)
    return np.abs(quantization.values.astype(np.int64) - zero.astype(np.int64))


def _other_axis(quantization: Quantization, weight: NDArray[np.float64], axis: int | None) -> int | None:
    """The axis that the scales belong to, where that is not the axis of the channels."""
    given = quantization.axis
    if given is None or axis is None:
        return None
    if given % weight.ndim != axis % weight.ndim:
        return given % weight.ndim
    scale = quantization.scale.astype(np.float64) * INT8.levels
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


def _large_values(tensor: str, weight: NDArray[np.float64], shares: NDArray[np.float64]) -> str:
    """What values make the range of a weight, in words."""
    amax, rest = float(np.abs(weight).max()), float(np.quantile(np.abs(weight), 0.999))
    used = float(np.abs(weight[np.broadcast_to(shares > 0.01 * shares.mean(), weight.shape)]).max(initial=0))
    if used < amax / 2:
        return f"weight '{tensor}' reaches {amax:.3g} where its inputs are next to 0, {used:.3g} elsewhere"
    times = f", {amax / rest:.3g}x the 99.9th percentile" if rest else ""
    return f"a few values of weight '{tensor}' reach {amax:.3g}{times}"


def _in_words(tensor: str, factors: NDArray[np.float64]) -> str:
    wide, narrow = float(factors.max()), float(factors.min())
    most = wide if wide * narrow >= 1 else narrow
    count = int((factors > WIDE).sum() if most == wide else (factors < 1 / WIDE).sum())
    many = f"{count} of {factors.size} scales" if factors.size > 1 else "the scale"
    fault = f"up to {wide:.3g}x too wide" if most == wide else f"down to {narrow:.3g} of what they must reach"
    return f"{many} of weight '{tensor}' {'are' if factors.size > 1 else 'is'} {fault}"
