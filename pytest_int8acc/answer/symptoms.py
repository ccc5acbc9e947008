"""Recognises symptoms in activations, in weights, in the nodes around a layer, and in layers in FP16.

Each recogniser takes measurements and returns the fields of a ``Cause`` that its symptom fills in, or None
if the symptom is absent. ``answer/causes.py`` has the tables of symptoms. Each tensor was quantized by
itself, with the values of the float model, and compared with the best scale for these values.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypedDict

import numpy as np
import onnx
from numpy.typing import NDArray

from pytest_int8acc.answer.ablations import OUTLIER_RATIO
from pytest_int8acc.answer.scales import MARGIN
from pytest_int8acc.graph.formats import FP16, FP32, INT8, UINT8, Format, along
from pytest_int8acc.graph.layout import BIASES, WEIGHTED, by_weight, origins, quantize_weight, scales_axis
from pytest_int8acc.graph.model import Model, unload
from pytest_int8acc.graph.network import Edge, Group, Network, Precision, Quantization, TensorScale, symmetric
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.lab.losses import TensorLoss
from pytest_int8acc.observers.edges import (
    CEILING_DB,
    LOST_DB,
    WIDE,
    EdgeStats,
    Measurement,
    lost_db,
    reach,
)
from pytest_int8acc.observers.values import TensorValues, decibels
from pytest_int8acc.results import Culprit
from pytest_int8acc.results.causes import Cause, Histogram, NumberName
from pytest_int8acc.scores.split import UNLIKE
from pytest_int8acc.tensors import Array


class Shown(TypedDict, total=False):
    """The fields of a ``Cause`` that a symptom sets; ``numbers`` are added to earlier numbers."""

    tensor: str
    numbers: Mapping[NumberName, float]
    channels: Mapping[int, float]
    amax: float
    reach: float
    others: tuple[str, ...]
    node: str
    op_type: str
    format: str
    masked: bool


#: Operators that lose accuracy in INT8 in every network, because small inputs decide their outputs.
_SENSITIVE = frozenset(
    {"Softmax", "LogSoftmax", "LayerNormalization", "GroupNormalization", "InstanceNormalization", "Gelu"}
    | {"SimplifiedLayerNormalization", "RMSNormalization", "Erf", "Exp", "Log", "Pow", "Sqrt", "ReduceMean"}
)
#: Values count as a mask if their SQNR in INT8 is at least this many dB, because a mask has only a few
#: distinct values. Other values have at most about 50 dB.
_MASKED_DB = 60.0
#: Operators after a Concat that do not mix the tensors that the Concat joins.
_AFTER_CONCAT = frozenset({"Slice", "Split", "Mul", "Div", "Add", "Sub", "Cast", "Reshape", "Transpose"})
#: Operators that detectors use to decode boxes and classes.
_DECODING = frozenset({"Mul", "Add", "Sub", "Div", "Concat", "Sigmoid", "Tanh", "Clip", "Split", "Slice"})
#: The greatest usual value of a tensor is this quantile of its magnitudes. Values of at least the second
#: number times the greatest usual value may have no effect on the nodes that read the tensor.
_USUAL, _FAR_BEYOND = 0.9, 64.0
#: A scale counts as computed from the greatest magnitude of a channel if its range differs from this
#: magnitude by at most this share.
_EQUAL = 0.02
#: If the float weights are not known, and a weight uses less than this share of the INT8 codes, its scale
#: counts as too wide.
_FEW_CODES = 0.4
#: Number of bins of the histogram of a weight in a report.
_HISTOGRAM_BINS = 64
#: Rounding errors count as a shift of the results if the squared mean error is at least this share of the
#: mean squared error.
_MOSTLY = 0.5
#: The slices of a constant along an axis are compared with each other if there are at most this many. The
#: number of comparisons grows with the square of their number.
_MAX_SLICES = 1024
#: A sum or difference counts as cancelling if the relative error of its result is more than this many times
#: the relative error of rounding a number to the low format.
_CANCELS = 16.0
#: Approximate number of values of a weight that are copied at a time to sum them by channel.
_BLOCK = 1 << 20


@dataclass(frozen=True, eq=False)
class ActivationFacts:
    """Measurements of one quantized activation."""

    edge: Edge
    values: TensorValues
    """The values of the activation."""
    stats: EdgeStats
    """The quantization error of the activation."""
    rest: Precision
    """The precision of nodes that are not quantized. FP16 cannot hold some scales that FP32 can."""
    graph: Surroundings
    measured: Mapping[str, Measurement]
    """Maps the name of each activation to its measurement."""
    weights_use: float | None = None
    """The scale for the channels that matter to the nodes that read the activation; see ``scales_in_use``.

    None if no other channel is larger, or if the channels that matter are not known.
    """
    unmasked: float | None = None
    """The scale without the values of an attention mask; None if the activation seems to hold no mask."""

    @cached_property
    def numbers(self) -> dict[NumberName, float]:
        """The measured numbers that reports show for the activation."""
        values, stats = self.values, self.stats
        extent, best = reach(stats.quantization), values.best_reach()
        return {
            "sqnr_db": stats.sqnr_db,
            "best_sqnr_db": min(values.sqnr_db(best), CEILING_DB),
            "lost_db": lost_db(values, stats),
            "codes_used": stats.codes_used,
            "clipped": stats.clipped / max(stats.values, 1),
            "clipped_energy": stats.clip_noise / stats.signal if stats.signal else 0.0,
            "factor": extent / values.amax if values.amax else float("inf"),
            "best_factor": extent / best if best else float("inf"),
            "channel_gain_db": values.channel_gain_db,
            "channel_ratio": values.channel_ratio(),
            "usual_channel_db": stats.usual_db,
            "p99": values.quantile(0.99),
            "p99.9": values.quantile(0.999),
            "p99.99": values.quantile(0.9999),
        }

    def cause(self) -> Cause:
        """The cause ``accumulated-noise``, which an activation without a symptom has."""
        return Cause(
            "accumulated-noise",
            "noise-adds-up",
            tensor=self.edge.tensor,
            numbers=dict(self.numbers.items()),
            histogram=self.values.report(),
            amax=self.values.amax,
            reach=reach(self.edge.quantization),
        )

    @cached_property
    def uneven(self) -> tuple[Array, Array]:
        """The greatest magnitudes of all nonzero channels, and those of the small channels alone.

        Small channels are far below the largest channel. Both arrays are empty if the channels are not known.
        """
        known = self.values.channel_amax
        amax: Array = np.zeros(0) if known is None else known[known > 0].astype(np.float64)
        return amax, amax[amax * OUTLIER_RATIO <= amax.max(initial=0)]

    @property
    def has_weights(self) -> bool:
        """Whether the node that reads the activation multiplies it by weights."""
        return self.graph.index.nodes[self.edge.node].op_type in WEIGHTED

    @cached_property
    def large(self) -> dict[int, float]:
        """The channels far larger than the median channel, with their greatest values, the largest first."""
        amax = self.values.channel_amax
        if amax is None or self.values.channel_ratio() < OUTLIER_RATIO:
            return {}
        bound = max(float(np.median(amax[amax > 0])) * OUTLIER_RATIO / 2, float(amax.max()) / 4)
        return {int(i): float(amax[i]) for i in np.argsort(-amax) if amax[i] > bound}

    def scale(self, cause: Cause) -> TensorScale | None:
        """A scale for a trial that shows whether ``cause`` is right; None if no such scale is known."""
        if "amax_in_use" in cause.numbers:
            return symmetric(cause.numbers["amax_in_use"] / self.values.low.levels)
        return None if self.unmasked is None else symmetric(self.unmasked)

    @property
    def has_wrong_range(self) -> bool:
        """Whether another range would lose far less accuracy, and the calibration did not clip on purpose."""
        return self.numbers["lost_db"] >= LOST_DB and not self.stats.clips_wisely


def vanishing_scale(facts: ActivationFacts) -> Shown | None:
    """Recognises a scale that the precision of unquantized nodes, for instance FP16, cannot hold."""
    scale = facts.edge.quantization.scale
    least = FP32.normal if facts.rest == "fp32" else FP16.smallest
    if np.isfinite(scale).all() and float(scale.min()) >= least:
        return None
    return {"numbers": {"scale": float(scale.min()), "least_scale": least}, "format": facts.rest}


def one_sided(facts: ActivationFacts) -> Shown | None:
    """Recognises a zero point or unsigned type that clips values that a symmetric range would keep."""
    quantization, values = facts.edge.quantization, facts.values
    is_asymmetric = bool((quantization.zero_point != 0).any()) or quantization.format is UINT8
    if not (facts.has_wrong_range and facts.stats.clips and is_asymmetric):
        return None
    scale, codes = float(quantization.scale.max()), quantization.format
    symmetric_db = min(values.sqnr_db(scale * values.low.levels), CEILING_DB)
    if symmetric_db - facts.stats.sqnr_db < LOST_DB:
        return None
    zero = int(quantization.zero_point.ravel()[0])
    numbers: Mapping[NumberName, float] = {
        "zero_point": zero,
        "low": (codes.lowest - zero) * scale,
        "high": (codes.highest - zero) * scale,
    }
    return {"numbers": numbers, "format": codes.name}


def masked_values(facts: ActivationFacts) -> Shown | None:
    """Recognises a range that includes a mask, whose values lie far beyond all others on one side."""
    if facts.unmasked is None or facts.values.unmasked * OUTLIER_RATIO > reach(facts.edge.quantization):
        return None
    return {"numbers": {"unmasked_amax": facts.values.unmasked}}


def ignored_channels(facts: ActivationFacts) -> Shown | None:
    """Recognises channels that widen the range, but seem to have no effect on the nodes that read them."""
    amax, extent = facts.values.channel_amax, reach(facts.edge.quantization)
    if amax is None:
        return None
    in_use = None if facts.weights_use is None else facts.weights_use * facts.values.low.levels
    if in_use is None and facts.large and not facts.has_weights:
        in_use = MARGIN * float(np.delete(amax, list(facts.large)).max(initial=0))
    if not in_use or not in_use < extent <= float(amax.max()) ** 2 / in_use:
        return None
    beyond = {int(i): float(amax[i]) for i in np.argsort(-amax) if amax[i] > in_use}
    return {"numbers": {"amax_in_use": in_use, "channel_amax": float(amax.max())}, "channels": beyond}


def needless_values(facts: ActivationFacts) -> Shown | None:
    """Recognises values far beyond nearly all others, which perhaps saturate the node that reads them."""
    usual = facts.values.quantile(_USUAL)
    if facts.has_weights or not 0 < usual * _FAR_BEYOND <= facts.values.amax:
        return None
    return {"numbers": {"amax_in_use": 2 * usual}}


def cut_off(facts: ActivationFacts) -> Shown | None:
    """Recognises values beyond the clipping range, whose clipping causes most of the error."""
    return {} if facts.has_wrong_range and facts.stats.clips else None


def range_of_partner(facts: ActivationFacts) -> Shown | None:
    """Recognises a range that fits another tensor, which meets this tensor in an Add or a Concat."""
    partner = facts.graph.shares_with(facts.edge, facts.measured) if facts.has_wrong_range else None
    if partner is None:
        return None
    node, other, amax = partner
    return {
        "numbers": {"partner_amax": amax},
        "others": (other,),
        "node": node.name,
        "op_type": node.op_type,
    }


def range_too_wide(facts: ActivationFacts) -> Shown | None:
    """Recognises a range far beyond the greatest magnitude of the tensor."""
    is_wide = reach(facts.edge.quantization) >= WIDE * facts.values.amax
    return {} if facts.has_wrong_range and is_wide else None


def stretched_range(facts: ActivationFacts) -> Shown | None:
    """Recognises any other wrong range. Usually a few large values make such a range too wide."""
    return {} if facts.has_wrong_range else None


def uneven_parts(facts: ActivationFacts) -> Shown | None:
    """Recognises tensors of very different ranges that a Concat joins with one scale."""
    joint, (amax, below) = facts.graph.concat_before(facts.edge.tensor), facts.uneven
    if joint is None or not below.size:
        return None
    if below.size * 4 < amax.size and below.max() * UNLIKE > amax.max():
        return None  # only a few channels are small, and not by much
    return {**_ends_of(amax, below), "node": joint.name, "op_type": joint.op_type}


def uneven_channels(facts: ActivationFacts) -> Shown | None:
    """Recognises channels of very different ranges in a tensor with one scale."""
    amax, below = facts.uneven
    return _ends_of(amax, below) if below.size and facts.edge.quantization.axis is None else None


def _ends_of(amax: Array, below: Array) -> Shown:
    return {"numbers": {"channel_amax": float(amax.max()), "other_amax": float(below.max())}}


def large_channels(facts: ActivationFacts) -> Shown | None:
    """Recognises a few channels with far larger values than the median channel."""
    values, most = facts.values, max(facts.large.values(), default=0.0)
    if not most:
        return None
    codes_left = max(1, round(values.low.levels / values.channel_ratio()))
    return {"numbers": {"channel_amax": most, "codes_left": codes_left}, "channels": facts.large}


def large_values(facts: ActivationFacts) -> Shown | None:
    """Recognises values so large that even the best range keeps too few codes for other values."""
    values = facts.values
    is_unsound = values.counts.any() and values.sqnr_db(values.best_reach()) < values.low.symmetric.sound_db
    return {} if is_unsound else None


@dataclass(frozen=True, eq=False)
class WeightFacts:
    """Measurements of one quantized constant and its float original."""

    name: str
    """The name of the float constant."""
    quantization: Quantization
    weight: NDArray[np.float64]
    """The values of the float constant."""
    axis: int | None
    """The axis of output channels of the constant; None if it is not known."""
    shares: NDArray[np.float64]
    """How errors in each input channel are weighted: by the energy, the sum of squares, of the inputs.

    The array broadcasts with ``weight``.
    """
    sqnr_db: float
    best_db: float
    """The SQNR, in dB, with scales computed from the constant's own values."""
    channels_db: NDArray[np.float64]
    """The SQNR, in dB, of each output channel that is not all zeros, [channels]; empty without an axis."""
    best_channels_db: NDArray[np.float64]
    """Like ``channels_db``, but with scales computed from the constant's own values, [channels]."""
    shift_share: float = 0.0
    """The share of the error of the products that is a shift of each output channel, from 0 to 1."""
    is_bias: bool = False
    """Whether the constant is added to the products of a layer."""
    axes: tuple[int, ...] = ()
    """The axes along which the constant may have scales."""
    room: float = 0.0
    """The minimum distance of a mask below all other values; 0 for constants that do not go to a Softmax."""

    @cached_property
    def factors(self) -> NDArray[np.float64]:
        """For each scale, its range divided by the greatest magnitude of its channel.

        Channels of zeros are left out.
        """
        amax = _amax(self.weight, self.quantization.axis)
        extent = self.quantization.scale.astype(np.float64) * self.quantization.format.symmetric.levels
        return np.asarray(extent[amax > 0] / amax[amax > 0])

    @cached_property
    def nearest_db(self) -> float:
        """The SQNR, in dB, with the given scales and each value rounded to the nearest code."""
        nearest = replace(self.quantization, values=self.quantization.quantize(self.weight)).dequantize()
        signal, noise = (float(_energy(v, self.shares).sum()) for v in (self.weight, self.weight - nearest))
        return min(decibels(signal, noise), CEILING_DB)

    @cached_property
    def refitted_db(self) -> float:
        """The SQNR, in dB, of the given codes with the scales that fit the float values best."""
        given, axis = self.quantization.dequantize().astype(np.float64), self.quantization.axis
        products, squares = _by_channel(given * self.weight, axis), _by_channel(given**2, axis)
        left = _by_channel(self.weight**2, axis) - products**2 / np.where(squares > 0, squares, 1.0)
        return min(decibels(float((self.weight**2).sum()), max(float(left.sum()), 0.0)), CEILING_DB)

    @property
    def has_wrong_scales(self) -> bool:
        """Whether scales computed from the constant's own values would lose far less accuracy."""
        return self.best_db - self.sqnr_db >= LOST_DB

    @property
    def has_large_values(self) -> bool:
        """Whether even the best scales lose much accuracy."""
        return self.best_db < self.quantization.format.symmetric.sound_db

    @cached_property
    def along_better_axis(self) -> dict[NumberName, float] | None:
        """Numbers on the axis along which scales would fit the median slice far better; None if none would.

        The result is also None if new scales along the present axis would fit far better than the present
        scales, because then the axis is not at fault.
        """
        own, weight = self.quantization.axis, self.weight
        fresh = self._fresh(own)
        noise, given = (
            float(((other - weight) ** 2).sum()) for other in (fresh, self.quantization.dequantize())
        )
        if given > noise * 10 ** (LOST_DB / 10):
            return None
        others = [axis for axis in self.axes if own is None or axis != own % weight.ndim]
        found = [self.compared(fresh, axis) for axis in others]
        best = max(found, key=lambda numbers: numbers["gain_db"], default=None)
        return None if best is None or best["gain_db"] < LOST_DB else best

    def compared(self, quantized: Array, axis: int) -> dict[NumberName, float]:
        """Numbers on slices along an axis: the median SQNR in ``quantized``, and with one scale per slice."""
        before, after = (self._usual_db(form, axis) for form in (quantized, self._fresh(axis)))
        amax, own = _amax(self.weight, axis), self.quantization.axis
        usual = float(np.median(amax[amax > 0])) if amax.any() else 1.0
        return {
            "axis": axis,
            "axis_of_scales": -1 if own is None else own % self.weight.ndim,
            "usual_channel_db": before,
            "best_channel_db": after,
            "gain_db": after - before,
            "channel_ratio": float(amax.max()) / usual,
        }

    def _fresh(self, axis: int | None) -> Array:
        """The constant quantized with scales from its own values along ``axis``, then dequantized."""
        low = self.quantization.format.symmetric
        return quantize_weight(self.weight.astype(np.float32), axis, low).dequantize()

    def _usual_db(self, quantized: Array, axis: int) -> float:
        """The SQNR, in dB, of the median slice of ``quantized`` along an axis."""
        signal, noise = (_by_channel(v**2, axis) for v in (self.weight, self.weight - quantized))
        ratios = noise[signal > 0] / signal[signal > 0]
        return min(decibels(1.0, float(np.median(ratios))), CEILING_DB) if ratios.size else CEILING_DB

    def scale(self, cause: Cause) -> TensorScale | None:
        """The scales for a trial that shows whether ``cause`` is right."""
        numbers, own = cause.numbers, self.quantization
        if "axis" in numbers:
            axis = int(numbers["axis"])
            low = own.format.symmetric
            return TensorScale(quantize_weight(self.weight.astype(np.float32), axis, low).scale, axis)
        most = np.float32((numbers["amax_in_use"] + self.room) / own.format.symmetric.levels)
        return TensorScale(np.minimum(own.scale, most).astype(np.float32), own.axis)

    @cached_property
    def amax_in_use(self) -> float:
        """The greatest magnitude of weights whose inputs are not nearly 0."""
        used = np.broadcast_to(self.shares > 0.01 * self.shares.mean(), self.weight.shape)
        return float(np.abs(self.weight[used]).max(initial=0))

    def cause(self) -> Cause:
        """The cause ``accumulated-noise``, which a weight without a symptom has."""
        weight, factors = self.weight, self.factors
        amax = float(np.abs(weight).max())
        counts, edges = np.histogram(np.abs(weight), _HISTOGRAM_BINS, (0.0, amax or 1.0))
        channels = _amax(weight, self.axis).ravel()
        present = channels[channels > 0]
        numbers = {
            "sqnr_db": self.sqnr_db,
            "best_sqnr_db": self.best_db,
            "lost_db": max(self.best_db - self.sqnr_db, 0.0),
            "factor_least": float(factors.min(initial=np.inf)),
            "factor_most": float(factors.max(initial=0)),
            "channel_ratio": float(present.max() / np.median(present)) if present.size else 1.0,
        }
        if self.is_bias:
            error = self.quantization.dequantize().astype(np.float64) - weight
            usual = decibels(float(np.median(weight**2)), float((error**2).mean()))
            numbers["usual_channel_db"] = usual
        return Cause(
            "accumulated-noise",
            "noise-adds-up",
            tensor=self.name,
            numbers=numbers,
            histogram=Histogram(tuple(map(float, edges)), tuple(map(int, counts))),
            amax=amax,
            reach=reach(self.quantization),
        )


@dataclass(frozen=True, eq=False)
class InputFacts:
    """Statistics of the inputs that a weight multiplies, or of the look-ups in a table."""

    energy: Array
    """The sum of squares of each input channel, [channels]; for a table, how often each row is read."""
    mean: Array | None = None
    """The mean of each input channel, [channels]; None if it is not known."""
    count: float = 1.0
    """The number of values in each input channel."""


def weight_facts(
    edge: Edge,
    node: onnx.NodeProto,
    sources: tuple[Model, Model],
    inputs: InputFacts | None,
    *,
    is_bias: bool = False,
    room: float = 0.0,
) -> WeightFacts:
    """A quantized constant, compared with its float original.

    Args:
        edge: An edge that quantizes a constant.
        node: The node that reads it.
        sources: The case's float model, and the network's model. The original is taken from the first that
            has it. If none has it, the dequantized values are taken.
        inputs: Statistics of the inputs that the constant multiplies; None if they are not known, so that all
            errors count alike.
        is_bias: Whether the constant is added to the products of a layer.
        room: The minimum distance of a mask below all other values; 0 for constants that do not go to a
            Softmax.
    """
    quantization = edge.quantization
    assert quantization.values is not None
    name, original = _original(edge, sources, quantization.values.shape)
    weight, axis = original.astype(np.float64), quantization.axis
    unload(original)
    if node.op_type in WEIGHTED:
        axis = scales_axis(node, edge.index, weight.ndim)
    energy = None if inputs is None or not inputs.energy.any() else inputs.energy.astype(np.float64)
    known = None if energy is None else by_weight(energy, weight, node)
    shares = np.ones(1) if known is None else known
    best = quantize_weight(weight.astype(np.float32), axis, quantization.format.symmetric).dequantize()
    fresh_noise = _energy(weight - best, shares, axis)
    del best  # a copy of the weight is large
    error = quantization.dequantize() - weight
    signal, noises = _energy(weight, shares, axis), (_energy(error, shares, axis), fresh_noise)
    sqnr, best_db = (decibels(float(signal.sum()), float(noise.sum())) for noise in noises)
    used = signal > 0 if axis is not None else np.zeros(1, np.bool_)
    by_channel = [
        np.array([min(decibels(a, b), CEILING_DB) for a, b in zip(signal[used], noise[used], strict=True)])
        for noise in noises
    ]
    shift = 0.0 if inputs is None or axis is None else _shift_share(error, axis, inputs, node)
    best_db = min(best_db, CEILING_DB)
    own, fresh = by_channel
    axes = tuple(range(weight.ndim))
    if axis is not None and node.op_type in WEIGHTED and edge.index < 2:
        axes = (axis % weight.ndim,)
    return WeightFacts(
        name, quantization, weight, axis, shares, sqnr, best_db, own, fresh, shift, is_bias, axes, room
    )


def _shift_share(error: Array, axis: int, inputs: InputFacts, node: onnx.NodeProto) -> float:
    """The share of the products' squared error that is a shift, from 0 to 1; 0 if it is not known.

    The products of the errors and the mean inputs are a shift. The products of the errors and the deviations
    from the mean add up as noise. Inputs are taken as independent of each other.
    """
    mean = None if inputs.mean is None else by_weight(inputs.mean, error, node)
    square = by_weight(inputs.energy / inputs.count, error, node)
    if mean is None or square is None:
        return 0.0
    shift = float((_by_channel(error * mean, axis) ** 2).sum())
    noise = float(_energy(error, np.maximum(square - mean**2, 0.0)).sum())
    return shift / (shift + noise) if shift else 0.0


def vanishing_weight_scale(facts: WeightFacts) -> Shown | None:
    """Recognises a scale of a weight that is not finite, or too small for FP32."""
    scale = facts.quantization.scale
    if np.isfinite(scale).all() and float(scale.min()) >= FP32.normal:
        return None
    return {"numbers": {"scale": float(scale.min())}}


def corrected_bias(facts: WeightFacts) -> Shown | None:
    """Recognises a bias whose float values the quantizer changed, for instance by a bias correction."""
    if not facts.quantization.is_float:
        return None
    change = facts.quantization.dequantize() - facts.weight
    usual = float(np.sqrt((facts.weight**2).mean()))
    return {"numbers": {"share": float(np.sqrt((change**2).mean())) / usual if usual else 1.0}}


def shifted_bias(facts: WeightFacts) -> Shown | None:
    """Recognises a bias whose codes are on average too high or too low, so that results are shifted."""
    error = facts.quantization.dequantize() - facts.weight
    power = float((error**2).mean())
    share = float(error.mean()) ** 2 / power if power else 0.0
    if not facts.is_bias or error.size < 2 or share < _MOSTLY or facts.sqnr_db > CEILING_DB - LOST_DB:
        return None
    return {"numbers": {"shift_share": share}}


def coarse_bias(facts: WeightFacts) -> Shown | None:
    """Recognises a bias in 8 bits whose usual values have a low SQNR."""
    is_coarse = bias_of_eight_bits(facts) is not None
    return {} if is_coarse and facts.cause().numbers["usual_channel_db"] < CEILING_DB else None


def bias_of_eight_bits(facts: WeightFacts) -> Shown | None:
    """Recognises a bias in 8 bits, which adds the same error to all results of a channel."""
    return {} if facts.is_bias and facts.quantization.format.levels <= INT8.levels else None


def shifted_mean(facts: WeightFacts) -> Shown | None:
    """Recognises weights with fitting scales, but not the nearest codes, whose errors shift the results."""
    factors = facts.factors
    fits = bool(factors.size and factors.min() > 1 / WIDE and factors.max() < WIDE)
    if not fits or facts.shift_share < _MOSTLY or facts.nearest_db - facts.sqnr_db < LOST_DB:
        return None
    return {"numbers": {"shift_share": facts.shift_share, "best_sqnr_db": facts.nearest_db}}


def other_order(facts: WeightFacts) -> Shown | None:
    """Recognises values that are those of the float constant with the slices along an axis reordered."""
    weight = facts.weight
    if not facts.has_wrong_scales:
        return None
    given = facts.quantization.dequantize().astype(np.float64)
    for axis in range(weight.ndim):
        if not 1 < weight.shape[axis] <= _MAX_SLICES:
            continue
        order = _nearest_slices(given, weight, axis)
        if np.unique(order).size < order.size:
            continue  # not every slice occurs once
        found = weight.take(order, axis)
        signal, noise = (
            float((facts.shares * found**2).sum()),
            float((facts.shares * (given - found) ** 2).sum()),
        )
        found_db = min(decibels(signal, noise), CEILING_DB)
        if found_db > facts.best_db - LOST_DB and found_db >= facts.sqnr_db + LOST_DB:
            return {"numbers": {"axis": axis, "best_sqnr_db": found_db}}
    return None


def _nearest_slices(given: NDArray[np.float64], weight: NDArray[np.float64], axis: int) -> NDArray[np.intp]:
    """For each slice of ``given`` along ``axis``, the nearest slice of ``weight``, [slices]."""
    ours, theirs = (np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1) for array in (given, weight))
    distances = (theirs**2).sum(1) - 2 * ours @ theirs.T
    return np.asarray(distances.argmin(1))


def other_codes(facts: WeightFacts) -> Shown | None:
    """Recognises codes that hold other values than the float constant, whatever their scales are.

    Scales that are too wide or too narrow do not explain such an error. With these scales, the nearest codes
    would lose far less, and with scales that fit the codes, the codes would still lose much.
    """
    if not facts.has_wrong_scales or facts.nearest_db - facts.sqnr_db < LOST_DB:
        return None
    if facts.refitted_db >= facts.quantization.format.symmetric.sound_db:
        return None
    return {"numbers": {"best_sqnr_db": facts.nearest_db}}


def few_codes(facts: WeightFacts) -> Shown | None:
    """Recognises weights that use few of the INT8 codes. Applies only if the float weights are not known."""
    if not (np.isinf(facts.sqnr_db) and facts.weight.any()):
        return None
    quantization = facts.quantization
    assert quantization.values is not None
    zero = along(quantization.zero_point, quantization.axis, quantization.values.ndim)
    steps = np.abs(quantization.values.astype(np.float64) - zero.astype(np.float64))
    used = float(steps.max()) / quantization.format.symmetric.levels
    return {"numbers": {"codes_used": used}} if used < _FEW_CODES else None


def one_scale_for_channels(facts: WeightFacts) -> Shown | None:
    """Recognises one scale for a whole constant whose slices along an axis differ much in size."""
    numbers = facts.along_better_axis if facts.quantization.axis is None else None
    return None if numbers is None else {"numbers": numbers}


def scales_of_other_axis(facts: WeightFacts) -> Shown | None:
    """Recognises scales along one axis of a constant whose slices differ in size along another axis."""
    given = facts.quantization.axis
    numbers = None if given is None else facts.along_better_axis
    return None if numbers is None else {"numbers": numbers}


def mislabelled_axis(facts: WeightFacts) -> Shown | None:
    """Recognises scales along the output channels that were computed along another axis."""
    axis = facts.axis
    other = _axis_of_scales(facts) if facts.has_wrong_scales and axis is not None else None
    if other is None or axis is None:
        return None
    numbers = facts.compared(facts.quantization.dequantize(), axis % facts.weight.ndim)
    return {"numbers": {**numbers, "axis_of_scales": other}}


def weights_without_input(facts: WeightFacts) -> Shown | None:
    """Recognises large weights whose inputs are nearly 0, and rows of a table that are not looked up."""
    is_idle = facts.amax_in_use < float(np.abs(facts.weight).max()) / 2
    return {"numbers": {"amax_in_use": facts.amax_in_use}} if is_idle and facts.amax_in_use else None


def large_idle_weights(facts: WeightFacts) -> Shown | None:
    """Recognises weights far beyond all others, which perhaps have no effect on the outputs.

    They widen the range of all weights that share a scale with them.
    """
    weight = facts.weight
    if (facts.best_channels_db - facts.channels_db >= LOST_DB).any():
        return None  # scales that fit the channels are the better explanation
    below = [_below_gap(np.abs(weight).ravel()), *(_below_gap(_amax(weight, a)) for a in range(weight.ndim))]
    in_use = min(filter(None, below), default=0.0)
    return {"numbers": {"amax_in_use": in_use}} if in_use else None


def _below_gap(amax: NDArray[np.float64]) -> float:
    """In the upper half of the sorted values, the greatest one below the widest gap; 0 without a wide gap."""
    ordered = amax[amax > 0]
    ordered.sort()
    upper = ordered[(ordered.size - 1) // 2 :]
    ratios = upper[1:] / upper[:-1]
    if not ratios.size or ratios.max() < OUTLIER_RATIO / 2:
        return 0.0
    return float(upper[int(ratios.argmax())])


def weight_scales_off(facts: WeightFacts) -> Shown | None:
    """Recognises weight scales that are too wide or too narrow; the numbers describe the worse case."""
    factors = facts.factors
    if not (facts.has_wrong_scales and factors.size):
        return None
    wide, narrow = float(factors.max()), float(factors.min())
    most = wide if wide * narrow >= 1 else narrow
    off = (factors > WIDE).sum() if most == wide else (factors < 1 / WIDE).sum()
    return {"numbers": {"scales": factors.size, "scales_off": int(off), "factor": most}}


def coarse_channels(facts: WeightFacts) -> Shown | None:
    """Recognises output channels with a low SQNR, in a weight whose SQNR as a whole is high."""
    lost = facts.best_channels_db - facts.channels_db >= LOST_DB
    coarse = lost & (facts.channels_db < facts.quantization.format.symmetric.sound_db)
    if not coarse.any():
        return None
    worst = int(np.argmin(np.where(coarse, facts.channels_db, np.inf)))
    numbers: Mapping[NumberName, float] = {
        "scales": facts.channels_db.size,
        "scales_off": int(coarse.sum()),
        "channel_db": float(facts.channels_db[worst]),
        "best_channel_db": float(facts.best_channels_db[worst]),
    }
    return {"numbers": numbers}


def large_weights(facts: WeightFacts) -> Shown | None:
    """Recognises weights so large that even the best scale keeps too few codes for other weights."""
    usual = float(np.quantile(np.abs(facts.weight), 0.999))
    return {"numbers": {"p99.9": usual}} if facts.has_large_values else None


def _energy(
    values: NDArray[np.float64], shares: NDArray[np.float64], axis: int | None = None
) -> NDArray[np.float64]:
    """The sum of ``shares * values**2`` over each channel along ``axis``, as ``_by_channel`` gives it."""
    squares = values**2
    squares *= shares  # in place, because the array may be large
    return _by_channel(squares, axis)


def _by_channel(squares: NDArray[np.float64], axis: int | None) -> NDArray[np.float64]:
    """The sum over each channel along ``axis``, [channels]; over all elements, [1], without an axis."""
    if axis is None:
        return np.array([squares.sum()])
    channels = np.moveaxis(squares, axis, 0)
    step = max(1, _BLOCK * len(channels) // max(squares.size, 1))
    blocks = (channels[i : i + step] for i in range(0, len(channels), step))
    return np.concatenate([block.reshape(len(block), -1).sum(1) for block in blocks])


def _original(edge: Edge, sources: Iterable[Model], shape: tuple[int, ...]) -> tuple[str, Array]:
    """The name and values of the float weight that an edge quantizes, from the first model that has it."""
    for source in sources:
        node = source.everywhere.nodes.get(edge.node)
        if node is None or edge.index >= len(node.input):
            continue
        name = node.input[edge.index]
        weight = source.constants().get(name)
        if weight is not None and weight.shape == shape and weight.dtype.kind == "f":
            return name, weight
    return edge.tensor, edge.quantization.dequantize()


def _amax(weight: NDArray[np.float64], axis: int | None) -> NDArray[np.float64]:
    """The greatest magnitude of each channel, [channels]; of the whole weight, [], without an axis."""
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis % weight.ndim)
    return np.asarray(np.abs(weight).max(axis=others))


def _axis_of_scales(facts: WeightFacts) -> int | None:
    """The axis along which the scales were computed if it is not the axis of output channels; else None."""
    given, weight = facts.quantization.axis, facts.weight
    if given is None or facts.axis is None:
        return None
    if given % weight.ndim != facts.axis % weight.ndim:
        return given % weight.ndim
    extent = facts.quantization.scale.astype(np.float64) * facts.quantization.format.symmetric.levels
    for other in range(weight.ndim):
        if other != facts.axis % weight.ndim and weight.shape[other] == extent.size:
            amax = _amax(weight, other)
            if np.abs(extent[amax > 0] / amax[amax > 0] - 1).max(initial=0) < _EQUAL:
                return other
    return None


class Surroundings:
    """Answers questions about the graph: which tensors meet in a node, and which operators compute them."""

    def __init__(self, network: Network) -> None:
        self.index = network.model.everywhere
        self._origin = origins(network.model)
        self._quantized: dict[str, set[str]] = defaultdict(set)
        """For each tensor, the quantized tensors that hold the same values, for instance after a Reshape."""
        for edge in (e for e in network.edges if e.quantization.values is None):
            self._quantized[self.root(edge.tensor)].add(edge.tensor)
        self._joins: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        """For each tensor, the Concat, Add and Sum nodes that read its values, perhaps after a Reshape."""
        for node in self.index.nodes.values():
            if node.op_type in ("Concat", "Add", "Sum"):
                for root in {self.root(name) for name in node.input}:
                    self._joins[root].append(node)
        self.before_weighted = _before_weighted(network.model)

    def root(self, tensor: str) -> str:
        """The first tensor with the same values as ``tensor``, for instance the input of a Reshape."""
        while tensor in self._origin:
            tensor = self._origin[tensor]
        return tensor

    def maker(self, tensor: str) -> onnx.NodeProto | None:
        """The node that computes the values of a tensor; None for values of an input or a constant."""
        return self.index.producer.get(self.root(tensor))

    def _meetings(self, tensor: str) -> Iterator[tuple[onnx.NodeProto, set[str]]]:
        """Each Concat and Add that reads a tensor, with the other quantized tensors that meet there."""
        root = self.root(tensor)
        for node in self._joins.get(root, ()):
            roots = {self.root(name) for name in node.input} - {root}
            roots |= {node.output[0]} if node.op_type == "Concat" else set()
            yield node, {other for name in roots for other in self._quantized.get(name, ())}

    def shares_with(
        self, edge: Edge, measured: Mapping[str, Measurement]
    ) -> tuple[onnx.NodeProto, str, float] | None:
        """A node that joins the tensor with another tensor of the same range, whose values fit this range.

        The result is the node, and the name and the greatest magnitude of the other tensor. It is None if
        there is no such tensor.
        """
        extent = reach(edge.quantization)
        for node, others in self._meetings(edge.tensor):
            for other in sorted(others & measured.keys()):
                stats, quantizations = measured[other]
                for known in quantizations.values():
                    equal = abs(reach(known.quantization) / extent - 1) < 0.01
                    if equal and stats.amax <= WIDE * extent and extent <= WIDE * stats.amax:
                        return node, other, stats.amax
        return None

    def concat_before(self, tensor: str) -> onnx.NodeProto | None:
        """The Concat whose result a tensor holds, perhaps reshaped, sliced, or scaled by a constant.

        None if there is no such Concat. A Concat of parts of one tensor, as in rotary embeddings, does not
        count.
        """
        node = self.maker(tensor)
        while node is not None and node.op_type in _AFTER_CONCAT:
            varying = [name for name in node.input if name not in self.index.constants]
            node = self.maker(varying[0]) if len(varying) == 1 else None
        if node is None or node.op_type != "Concat":
            return None
        return node if len({self.root(name) for name in node.input}) > 1 else None

    def is_bias(self, edge: Edge) -> bool:
        """Whether an edge quantizes a constant that is added to the products of a layer."""
        node = self.index.nodes[edge.node]
        if node.op_type != "Add":
            return edge.index in BIASES.get(node.op_type, ())
        makers = (self.index.producer.get(name) for name in node.input)
        return any(maker is not None and maker.op_type in WEIGHTED for maker in makers)

    def is_gelu(self, node: onnx.NodeProto, steps: int = 4) -> bool:
        """Whether a node is a GELU, or the last node of a GELU that consists of several nodes."""
        if node.op_type in ("Gelu", "Erf"):
            return True
        producer = self.index.producer
        before = [producer[name] for name in node.input if name in producer]
        follows = node.op_type in ("Mul", "Add", "Div") and steps > 0
        return follows and any(self.is_gelu(n, steps - 1) for n in before)


@dataclass(frozen=True, eq=False)
class PlaceFacts:
    """A layer and the operators around it. TensorRT's guide advises against INT8 for some operators."""

    graph: Surroundings
    group: Group
    cause: Cause
    """The cause that the layer's noisiest tensor shows."""
    tensors: Sequence[str]
    """The layer's quantized tensors that cause most noise, the noisiest first."""

    @property
    def leader(self) -> onnx.NodeProto:
        """The first node of the layer, which gives the layer its name."""
        return self.graph.index.nodes[self.group.nodes[0]]

    @property
    def is_masked(self) -> bool:
        """Whether the greatest values are a mask, as in attention, so that INT8 keeps only the mask."""
        return self.cause.numbers["sqnr_db"] > _MASKED_DB

    @cached_property
    def is_noisy(self) -> bool:
        """Whether the layer's noisiest tensor has a lower SQNR than usual in INT8, or is a mask."""
        sound = self.group.edges[0].quantization.format.symmetric.sound_db
        return self.cause.numbers["sqnr_db"] < sound or self.is_masked

    @cached_property
    def source(self) -> tuple[str, onnx.NodeProto] | None:
        """The noisiest input that a Softmax or a GELU computes, with this node; None if there is none."""
        for tensor in self.tensors:
            node = self.graph.maker(tensor)
            if node is not None and (_is_softmax(node) or self.graph.is_gelu(node)):
                return tensor, node
        return None

    def from_source(self, *, softmax: bool) -> Shown | None:
        """The fields of the cause for an input from a Softmax; if ``softmax`` is False, from a GELU.

        The result is None if the layer is not noisy, or if ``source`` is another operator or None.
        """
        if not self.is_noisy or self.source is None or _is_softmax(self.source[1]) != softmax:
            return None
        tensor, node = self.source
        return {
            "masked": self.is_masked,
            "others": (tensor,),
            "node": node.name,
            "op_type": node.op_type,
        }


def quantized_inputs(facts: PlaceFacts) -> Shown | None:
    """Recognises an operator that loses accuracy if its inputs are quantized."""
    op_type = facts.leader.op_type
    return {"op_type": op_type, "masked": facts.is_masked} if op_type in _SENSITIVE else None


def after_softmax(facts: PlaceFacts) -> Shown | None:
    """Recognises a layer whose input comes from a Softmax."""
    return facts.from_source(softmax=True)


def after_gelu(facts: PlaceFacts) -> Shown | None:
    """Recognises a layer whose input comes from a GELU."""
    return facts.from_source(softmax=False)


def product_of_activations(facts: PlaceFacts) -> Shown | None:
    """Recognises a MatMul of two activations."""
    is_product = facts.leader.op_type == "MatMul" and facts.graph.index.constants.isdisjoint(
        facts.leader.input
    )
    return {"masked": facts.is_masked} if facts.is_noisy and is_product else None


def decoding(facts: PlaceFacts) -> Shown | None:
    """Recognises arithmetic after the last layer with weights, like the decoding of boxes in a detector."""
    leader = facts.leader
    decodes = leader.op_type in _DECODING and leader.name not in facts.graph.before_weighted
    return {"op_type": leader.op_type, "masked": facts.is_masked} if facts.is_noisy and decodes else None


def _is_softmax(node: onnx.NodeProto) -> bool:
    return node.op_type in ("Softmax", "LogSoftmax")


def _before_weighted(model: Model) -> set[str]:
    """The names of nodes on whose results a node with weights depends."""
    before: set[str] = set()
    index = model.everywhere
    for node in reversed(index.nodes.values()):
        readers = (reader for name in node.output for reader, _ in index.readers(name))
        if any(reader.op_type in WEIGHTED or reader.name in before for reader in readers):
            before.add(node.name)
    return before


@dataclass(frozen=True, eq=False)
class NarrowFacts:
    """A culprit, a layer at fault, in FP16 or BF16, with the losses of its tensors from ``Lab.losses``."""

    lab: Lab
    culprit: Culprit

    @property
    def low(self) -> Format:
        """FP16 or BF16."""
        return self.lab.int8.low

    @property
    def made(self) -> tuple[TensorLoss, ...]:
        """The losses of the tensors that the layer computes."""
        return self.lab.losses[self.culprit.layer]

    @property
    def worst(self) -> TensorLoss:
        """The loss of the tensor that rounding to the low format changes most."""
        return self.made[0] if self.made else TensorLoss("", "")

    @cached_property
    def _read(self) -> tuple[str, ...]:
        """All tensors that the layer's nodes read, constants included."""
        nodes = self.lab.network.model.everywhere.nodes
        return tuple(dict.fromkeys(name for node in self.culprit.nodes for name in nodes[node].input))

    @property
    def constants(self) -> Iterator[tuple[str, Array]]:
        """Yield the float constants that the layer reads."""
        constants = self.lab.network.model.constants()
        for name in self._read:
            if name in constants and constants[name].dtype == np.float32:
                yield name, constants[name]

    @property
    def read(self) -> Iterator[TensorLoss]:
        """Yield the losses of the tensors that the layer reads and other layers compute."""
        made = {loss.tensor for loss in self.made}
        known = {loss.tensor: loss for group in self.lab.losses.values() for loss in group}
        return (known[name] for name in self._read if name in known and name not in made)

    def shown(self, tensor: str, amax: float, loss: TensorLoss | None = None) -> Shown:
        """The fields of the cause for a tensor whose values the low format cannot hold."""
        return {
            "tensor": tensor,
            "numbers": {"smallest": self.low.smallest, "lost": loss.lost if loss else 0.0},
            "amax": amax,
            "reach": float(self.low.highest),
            "node": loss.node if loss else "",
        }

    def beyond(self, losses: Iterable[TensorLoss]) -> Shown | None:
        """The fields of the cause for the tensor that exceeds the range of the low format most.

        The result is None if no tensor exceeds the range.
        """
        beyond = [loss for loss in losses if self.low.highest < loss.peak < np.inf]
        worst = max(beyond, key=lambda loss: loss.peak, default=None)
        return None if worst is None else self.shown(worst.tensor, worst.peak, worst)

    def is_cancelled(self, loss: TensorLoss) -> bool:
        """Whether a tensor loses far more than the rounding of its operands explains."""
        return loss.share > _CANCELS * self.low.smallest / self.low.normal

    def of_worst(self) -> Shown:
        """The fields of the cause for the tensor that rounding to the low format changes most."""
        worst = self.worst
        return {
            "tensor": worst.tensor,
            "numbers": {"share": min(worst.share, 1.0)},
            "node": worst.node,
        }


def constant_beyond_range(facts: NarrowFacts) -> Shown | None:
    """Recognises a constant beyond the range of the low format, FP16 or BF16."""
    for name, array in facts.constants:
        amax = float(np.abs(array).max(initial=0))
        if facts.low.highest < amax < np.inf:
            return facts.shown(name, amax)
    return None


def beyond_range(facts: NarrowFacts) -> Shown | None:
    """Recognises a result of the layer beyond the range of the low format, FP16 or BF16."""
    return facts.beyond(facts.made)


def reads_beyond_range(facts: NarrowFacts) -> Shown | None:
    """Recognises an input of the layer beyond the range of the low format, FP16 or BF16."""
    return facts.beyond(facts.read)


def vanishing_constant(facts: NarrowFacts) -> Shown | None:
    """Recognises a constant that becomes 0 in the low format, FP16 or BF16."""
    for name, array in facts.constants:
        if array.any() and not facts.low.round(array).any():
            return facts.shown(name, float(np.abs(array).max()))
    return None


def vanishing_values(facts: NarrowFacts) -> Shown | None:
    """Recognises values that become 0 in the low format, in a tensor with more error than rounding makes."""
    worst = max((loss for loss in facts.made if loss.lost), key=lambda loss: loss.lost, default=None)
    if worst is None or not facts.is_cancelled(worst):
        return None
    return facts.shown(worst.tensor, worst.peak, worst)


def cancelling(facts: NarrowFacts) -> Shown | None:
    """Recognises a sum or difference that loses digits, because it is far smaller than its operands."""
    node = facts.lab.network.model.everywhere.nodes.get(facts.worst.node)
    is_sum = node is not None and node.op_type in ("Sub", "Add", "Sum")
    return facts.of_worst() if is_sum and facts.is_cancelled(facts.worst) else None


def needs_digits(facts: NarrowFacts) -> Shown | None:
    """Recognises a tensor that needs more digits than the low format has; this symptom always applies."""
    return facts.of_worst()


def rank_db(cause: Cause) -> float:
    """The SQNR, in dB, of the tensor or of its median channel, whichever is lower. It ranks tensors."""
    return min(cause.numbers["sqnr_db"], cause.numbers.get("usual_channel_db", math.inf))
