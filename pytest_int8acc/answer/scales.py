"""Chooses scales of activations by the error of the model's outputs, and of weights by that of their layer.

The candidates for an activation are the ranges that the calibration methods choose from its histogram. First
all activations get the range of the same method. Then activations are changed one at a time, as long as the
outputs get better. A trial runs a few of the samples, the screening subset.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import onnx

from pytest_int8acc.clock import Budget
from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.formats import FP16, INT8, INT32
from pytest_int8acc.graph.index import Index
from pytest_int8acc.graph.layout import COMMUTING, by_input, by_weight, find_groups, quantize_weight
from pytest_int8acc.graph.model import unload
from pytest_int8acc.graph.network import Edge, Network, Plan, Precision, Quantization, TensorScale, symmetric
from pytest_int8acc.graph.plan import fresh_weights, weight_axis
from pytest_int8acc.lab.simulator import Simulator
from pytest_int8acc.observers.edges import Measurement
from pytest_int8acc.observers.methods import CANDIDATES, FEW_BINS
from pytest_int8acc.observers.values import TensorValues
from pytest_int8acc.tensors import Array

#: The ranges of two datasets count as equal if they differ by less than this factor.
_LIKE = 1.4
#: The calibration methods by which the ranges of two datasets are compared.
_SPREAD = ("minmax", "percentile 99.9", "percentile 99")
#: Scales that differ by less than this share are tried only once.
_ALIKE = 0.03
#: Minimum share by which a new scale must lower the error to be kept.
_WORTH = 0.005
#: The choice of scales ends at this normalized loss; 1 is the limit of the criteria.
ENOUGH = 0.5
#: The choice of scales for some layers also ends if the loss is at most this many times the loss with these
#: layers in high precision.
NO_MORE = 1.05
#: A plan with a greater normalized loss than this on the samples ``Simulator.few`` counts as failing, and is
#: not tried on all samples.
NEAR = 1.6
#: Maximum number of rounds in which the scales of all tensors are changed one by one.
_SWEEPS = 2
#: Maximum number of units for which slow calibration methods are tried. ``Chooser.prune`` halves a larger set
#: of units that needs some of its scales; in a set of at most this size it tries each unit by itself.
_MANY = 8
#: A chosen scale counts as the tensor's own scale if their relative difference is at most this number.
_SAME = 1e-6
#: SQNR in dB above which differences between scales are ignored.
_SILENT_DB = 300.0
#: The name under which the range without the values of a mask is tried, as if it were a calibration method.
UNMASKED = "without the mask"
#: If a tensor with a mask goes to a Softmax, its range is chosen without the mask, and extends this far
#: beyond all other values. The Softmax then gives a masked position at most exp(-8) of the weight of any
#: other position.
MASK_ROOM = 8.0
#: The lowest values of a tensor count as a mask if their magnitude is at least this many times the magnitude
#: of all other values.
_MASK_RATIO = 8.0
#: Maximum number of nodes through which a mask may pass from a quantized input to a Softmax.
_STEPS_TO_SOFTMAX = 4
#: Operators through which a mask may pass to a Softmax.
_TO_SOFTMAX = COMMUTING | {"Add", "Where", "Mul", "Div", "Cast"}
#: The name under which the range of only those channels that matter for the next nodes is tried, as if it
#: were a calibration method.
IN_USE = "channels in use"
#: A channel of an activation matters for a node if its greatest product with a weight of the node is more
#: than this share of the greatest product of all channels.
_COUNTS = 1 / 256
#: A range with a margin is this many times the greatest magnitude, because other samples may have greater
#: values.
MARGIN = 1.25
#: The name of a range of ``MARGIN`` times the greatest magnitude, in place of a calibration method's name.
WITH_MARGIN = "with a margin"
#: A weight gets new scales only if its SQNR gains at least this many dB.
_FRESH_DB = 1.0
#: A weight gets scales that clip it only if the SQNR of its products gains at least this many dB.
_CUT_DB = 3.0
#: Operators whose constant weights show which channels of their input matter.
_READERS = frozenset({"Conv", "Gemm", "MatMul"})
#: Maps each operator whose weights may be clipped to the index of the input that is the weight.
_WEIGHTS = {
    **dict.fromkeys(("Conv", "Gemm", "MatMul", "ConvTranspose", "LSTM", "GRU", "RNN"), 1),
    "Gather": 0,
}
#: The shares of a weight's range that are tried as its clipping range.
_SHARES = 2.0 ** -np.arange(0.25, 8, 0.25)


class Ranges:
    """The ranges that calibration methods choose for tensors; each is computed when it is first needed."""

    def __init__(
        self,
        held: Mapping[str, TensorValues],
        entropy_bins: int = FEW_BINS,
        unmasked: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Keep the tensors that have a histogram; tensors with inf, nan or nothing but zeros have none.

        Args:
            held: Maps a tensor to its values in the float model, from ``Lab.values``.
            entropy_bins: Number of bins of the entropy method, a multiple of 128.
            unmasked: Maps a tensor that holds a mask to its scale without the values of the mask.
        """
        self.unmasked = unmasked
        self.held = {tensor: values for tensor, values in held.items() if values.is_counted}
        self._known: dict[tuple[str, str], float] = {}
        self._bins = entropy_bins

    def __contains__(self, tensor: str) -> bool:
        return tensor in self.held

    def scale(self, tensor: str, method: str) -> float:
        """The scale that one of ``CANDIDATES`` gives a tensor with a histogram, rounded to float32."""
        key = tensor, method
        if key not in self._known:
            held = self.held[tensor]
            way, options = CANDIDATES[method]
            amax = way.amax(held, replace(options, entropy_bins=self._bins))
            self._known[key] = float(np.float32(amax / held.low.levels))
        return self._known[key]

    def like(self, other: Ranges) -> bool:
        """Whether both objects have ranges for the same tensors, and the ranges are about equal."""
        return self.held.keys() == other.held.keys() and all(
            1 / _LIKE < self.scale(tensor, method) / other.scale(tensor, method) < _LIKE
            for tensor in self.held
            for method in _SPREAD
        )

    def reaches(self, others: Mapping[str, TensorValues]) -> bool:
        """Whether the greatest magnitudes of all tensors are about equal to those in another dataset."""
        return all(1 / _LIKE < others[tensor].amax / held.amax < _LIKE for tensor, held in self.held.items())

    def loss_db(self, tensor: str, scale: float) -> float:
        """The SQNR, in dB, that a tensor loses with this scale in comparison with the best scale."""
        held = self.held.get(tensor)
        if held is None:
            return 0.0
        best, now = (
            min(held.sqnr_db(reach), _SILENT_DB) for reach in (held.best_reach(), scale * held.low.levels)
        )
        return best - now


@dataclass(frozen=True)
class Choice:
    """Scales that were chosen for some activations, with the loss of the model."""

    scales: Mapping[str, float] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)
    normalized_loss: float = np.inf
    """The loss of the model on the samples ``Simulator.few``; inf if it was not measured."""

    def plus(self, other: Choice) -> Choice:
        """Both choices merged. The loss, and scales of tensors that are in both, come from ``other``."""
        return Choice(
            {**self.scales, **other.scales}, {**self.methods, **other.methods}, other.normalized_loss
        )

    def only(self, tensors: Collection[str]) -> Choice:
        """The choice for some of the tensors; its loss is not measured yet."""
        scales = {tensor: scale for tensor, scale in self.scales.items() if tensor in tensors}
        return Choice(scales, {tensor: self.methods[tensor] for tensor in scales})


@dataclass(frozen=True, eq=False)
class Unit:
    """Activations that share a scale: a single one, or several that meet in a Concat."""

    tensors: tuple[str, ...]
    ranges: Ranges
    own: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Maps a method that applies only to some tensors, like ``IN_USE``, to the scales of these tensors."""

    @property
    def methods(self) -> Iterator[str]:
        """The calibration methods, and names such as ``IN_USE``, that give these activations a scale."""
        if any(tensor in self.ranges for tensor in self.tensors):
            yield from CANDIDATES
        yield from self.own

    def scale(self, method: str) -> float:
        """The scale that a calibration method gives the activations: the greatest of their scales."""
        known = [tensor for tensor in self.tensors if tensor in self.ranges]
        own = self.own.get(method, {})
        usual = "minmax" if own else method
        return max([*own.values(), *(self.ranges.scale(t, usual) for t in known if t not in own)])

    @property
    def scale_with_margin(self) -> float:
        """The scale for ``MARGIN`` times the greatest magnitude, without a mask or unused channels."""
        return min(map(self.scale, self.own)) if self.own else MARGIN * self.scale("minmax")

    def choice(self, method: str) -> Choice:
        """The choice that gives the unit's tensors the scale of a method; empty if the method gives none."""
        if method not in self.methods:
            return Choice()
        return Choice(dict.fromkeys(self.tensors, self.scale(method)), dict.fromkeys(self.tensors, method))


class Chooser:
    """Chooses scales that are added to a plan, by trials on a few samples. A budget limits the trials."""

    def __init__(self, simulator: Simulator, base: Plan, own: Mapping[str, float], budget: Budget) -> None:
        """Create a chooser. Nothing is run yet.

        Args:
            simulator: Tries the plans.
            base: The plan that every plan includes.
            own: The scale of each activation under ``base``.
            budget: Limits the number of trials.
        """
        self.own, self.base, self.budget = own, base, budget
        self._simulator = simulator

    def plan(self, choice: Choice, high: Mapping[str, Precision] | None = None) -> Plan:
        """The base plan with the chosen scales that differ from its own, and ``high`` in high precision."""
        news = {
            tensor: symmetric(scale)
            for tensor, scale in choice.scales.items()
            if tensor in self.own and abs(scale - self.own[tensor]) > _SAME * self.own[tensor]
        }
        return replace(self.base, scales={**self.base.scales, **news}, high=dict(high or {}))

    def weighed(self, choice: Choice, high: Mapping[str, Precision]) -> Choice:
        """``choice`` with its normalized loss, from a trial with the groups ``high`` in high precision."""
        self.budget.pay()
        return replace(choice, normalized_loss=self._simulator.normalized_loss(self.plan(choice, high)))

    def rescale(
        self,
        chosen_units: Sequence[Unit],
        *,
        start: Choice | None = None,
        high: Mapping[str, Precision] | None = None,
        enough: float = ENOUGH,
        least: float = 0.0,
    ) -> Choice:
        """Choose the scales of units such that the model has the least loss on the samples ``Simulator.few``.

        Args:
            chosen_units: The units whose scales may change.
            start: The scales to start from. Scales of other tensors stay as they are.
            high: The groups that are in high precision during the trials, and their precision.
            enough: The normalized loss at which the choice ends.
            least: The normalized loss with none of ``chosen_units`` in INT8; no scales can do better.
        """
        high = high or {}
        enough = max(enough, NO_MORE * least)
        best = self.uniform(chosen_units, start or Choice(), high, least)
        if best.normalized_loss <= enough:
            return best
        worst_first = sorted(chosen_units, key=lambda unit: -self._loss_db(unit, best))
        for _ in range(_SWEEPS):
            before = best
            for done, unit in enumerate(worst_first):
                if (
                    best.normalized_loss <= enough
                    or _predicted(before, best, done, len(chosen_units)) > enough
                ):
                    return best
                for choice in self._others(unit, best):
                    if self.budget.empty:
                        return best
                    best = _better(best, self.weighed(best.plus(choice), high))
            if best is before:
                break
        return best

    def uniform(
        self,
        chosen_units: Sequence[Unit],
        start: Choice,
        high: Mapping[str, Precision] | None = None,
        least: float = 0.0,
        most: int = _MANY,
    ) -> Choice:
        """The best choice that gives all units the range of one method, or leaves all scales as they are.

        Slow methods are tried only for at most ``most`` units. ``rescale`` explains the other arguments.
        """
        if self.budget.empty:
            return replace(start, normalized_loss=np.inf)
        best = self.weighed(start, high or {})  # measured again, because ``high`` may have changed
        tried = [dict(start.scales)]
        usual = (name for name, (m, _) in CANDIDATES.items() if not m.is_slow or len(chosen_units) <= most)
        for method in (UNMASKED, IN_USE, *usual):
            if best.normalized_loss <= max(ENOUGH, NO_MORE * least) or self.budget.empty:
                break
            choice = start
            for unit in chosen_units:
                choice = choice.plus(unit.choice(method))
            if choice.scales not in tried:
                tried.append(dict(choice.scales))
                best = _better(best, self.weighed(choice, high or {}))
        return best

    def prune(self, chosen_units: Sequence[Unit], choice: Choice, high: Mapping[str, Precision]) -> Choice:
        """The choice without scales that are no better than the network's own.

        First the scales of all units are left out together. If some scales are needed, the units are divided
        into sets, and the sets that seem to gain least by their scales are left out first.
        """
        if len(chosen_units) < 2 or self.budget.empty:
            return choice
        least = choice = self.weighed(choice, high)  # measured again, because ``high`` may have changed

        def lost_db(unit: Unit) -> float:
            return self._loss_db(unit, choice) - self._loss_db(unit, Choice())

        parts = [sorted(chosen_units, key=lost_db)]
        while parts and not self.budget.empty:
            part = parts.pop()
            tensors = {tensor for unit in part for tensor in unit.tensors}
            tried = self.weighed(least.only(least.scales.keys() - tensors), high)
            if tried.normalized_loss <= choice.normalized_loss * (1 + _WORTH):
                least = tried
            elif len(part) > 1:
                size = len(part) // 2 if len(part) > _MANY else 1
                parts += [part[start : start + size] for start in range(0, len(part), size)]
        return least

    def _others(self, unit: Unit, best: Choice) -> Iterator[Choice]:
        """The scales to try for a unit, activations that share a scale: each differs from the present one."""
        seen = [best.scales.get(unit.tensors[0], self.own.get(unit.tensors[0], math.inf))]
        for method in unit.methods:
            scale = unit.scale(method)
            if all(abs(scale - other) > _ALIKE * other for other in seen):
                seen.append(scale)
                yield unit.choice(method)

    def _loss_db(self, unit: Unit, best: Choice) -> float:
        """The greatest loss in dB of a unit's tensors with their present scales; inf if none has a scale."""
        scales = {t: best.scales.get(t, self.own.get(t)) for t in unit.tensors}
        losses = (unit.ranges.loss_db(t, scale) for t, scale in scales.items() if scale is not None)
        return max(losses, default=math.inf)


def units(network: Network, tensors: Iterable[str], ranges: Ranges) -> list[Unit]:
    """The units, that is sets of activations with one scale, that contain these tensors.

    Units without a histogram are left out.
    """
    shared = _shared(network)
    special = {IN_USE: scales_in_use(network, ranges.held), UNMASKED: ranges.unmasked}
    found: dict[frozenset[str], Unit] = {}
    for tensor in tensors:
        together = next((s for s in shared if tensor in s), frozenset({tensor}))
        own = {name: {t: scales[t] for t in together if t in scales} for name, scales in special.items()}
        own = {name: scales for name, scales in own.items() if scales}
        if together not in found and (own or any(t in ranges for t in together)):
            found[together] = Unit(tuple(sorted(together)), ranges, own)
    return list(found.values())


def scales_in_use(network: Network, held: Mapping[str, TensorValues]) -> dict[str, float]:
    """Maps activations to the scale for the channels that matter, if other channels have larger values.

    A channel matters if its products with the weights of a node that reads it are large enough. Activations
    are left out if such a node has no constant weights.
    """
    counting, unknown, constants = dict[str, Array](), set[str](), network.model.constants()
    for edge in network.edges:
        if edge.quantization.values is not None:
            continue
        node, channels = network.model.everywhere.nodes.get(edge.node), None
        if node is not None and node.op_type in _READERS and not edge.index and edge.tensor in held:
            weight = constants.get(node.input[1])
            channels = None if weight is None else _counting(held[edge.tensor], node, weight)
        if channels is None:
            unknown.add(edge.tensor)
        else:
            counting[edge.tensor] = counting.get(edge.tensor, False) | channels
    found = {}
    for tensor in counting.keys() - unknown:
        maxima, channels = held[tensor].channel_amax, counting[tensor]
        if maxima is None or not channels.any():
            continue
        amax = MARGIN * float(maxima[channels].max())
        if 0 < amax * _LIKE < float(maxima.max()):
            found[tensor] = float(np.float32(amax / held[tensor].low.levels))
    return found


def unmasked_scales(network: Network, measured: Mapping[str, Measurement]) -> dict[str, float]:
    """Maps each activation that seems to hold an attention mask to its scale without the mask's values."""
    found, index = {}, network.model.everywhere
    for edge in network.edges:
        if edge.tensor not in measured or edge.quantization.values is not None:
            continue
        values, _ = measured[edge.tensor]
        if 0 < values.unmasked * _MASK_RATIO <= values.amax:
            soft = goes_to_softmax(index.nodes[edge.node], index)
            amax = values.unmasked + MASK_ROOM if soft else values.unmasked * MARGIN
            found[edge.tensor] = amax / values.low.levels
    return found


def goes_to_softmax(node: onnx.NodeProto, index: Index, steps: int = _STEPS_TO_SOFTMAX) -> bool:
    """Whether a node is a Softmax, or its result goes to one through nodes that keep or add masks."""
    if node.op_type in ("Softmax", "LogSoftmax"):
        return True
    after = index.only_reader(node.output[0]) if steps and node.op_type in _TO_SOFTMAX else None
    return after is not None and goes_to_softmax(after, index, steps - 1)


def _counting(held: TensorValues, node: onnx.NodeProto, weight: Array) -> Array | None:
    """Which input channels matter for a node's products, bool [channels]; None if it is not known."""
    maxima = held.channel_amax
    if maxima is None or (node.op_type != "Conv" and weight.ndim != 2):
        return None
    ordered = by_input(weight, node)  # [groups, outputs, inputs, ...]
    others = (1, *range(3, ordered.ndim))
    # abs() is avoided, because it would copy the weight.
    most = np.maximum(ordered.max(axis=others), -ordered.min(axis=others)).ravel()
    unload(weight)
    if most.size != maxima.size:
        return None  # the maxima were measured along another axis
    parts = most.astype(np.float64) * maxima
    return np.asarray(parts > _COUNTS * parts.max(initial=0.0))


def activations(network: Network, groups: Iterable[str] | None = None) -> list[str]:
    """The activations that groups quantize, each once, in topological order; None for all groups."""
    chosen_units = None if groups is None else set(groups)
    edges = (e for g in network.groups if chosen_units is None or g.name in chosen_units for e in g.edges)
    return list(dict.fromkeys(e.tensor for e in edges if e.quantization.values is None))


def with_tied(network: Network, tensors: Iterable[str]) -> list[str]:
    """The given tensors, and all tensors that must share a scale with one of them, each once."""
    shared = _shared(network)
    sets = ((t, *sorted(s for tied in shared if t in tied for s in tied)) for t in tensors)
    return list(dict.fromkeys(t for together in sets for t in together))


def _shared(network: Network) -> list[frozenset[str]]:
    """Sets of quantized activations that must share a scale in TensorRT."""
    quantized = set(activations(network))
    try:
        return [tied for s in find_groups(network.model).shared if len(tied := s & quantized) > 1]
    except ModelError:  # the author of a Q/DQ model may have quantized other operators
        return []


def _predicted(before: Choice, best: Choice, done: int, units: int) -> float:
    """The predicted loss after all units were tried, if the remaining ones gain as much as those so far.

    ``before`` is the choice before the first unit, ``best`` the one after ``done`` of the units.
    """
    if not done:
        return 0.0
    return before.normalized_loss - (before.normalized_loss - best.normalized_loss) * units / done


def _better(best: Choice, tried: Choice) -> Choice:
    return tried if tried.normalized_loss < best.normalized_loss * (1 - _WORTH) else best


def weight_scales(
    network: Network,
    groups: Iterable[str] | None,
    held: Mapping[str, TensorValues],
    lookups: Mapping[str, Array],
) -> dict[str, TensorScale]:
    """Scales for constants, with which the constants lose less accuracy than with their present scales.

    Args:
        network: The network.
        groups: The names of the groups whose constants are examined; None for all groups.
        held: The values of activations. Weights whose input is missing are not clipped.
        lookups: Maps the name of a Gather to how often each row of its table is read; see
            ``EdgeMeter.lookups``.
    """
    fresh = fresh_weights(network, worse_weights(network, groups))
    return {**fresh, **_cut_scales(network, groups, held, lookups)}


def worse_weights(network: Network, groups: Iterable[str] | None = None) -> tuple[str, ...]:
    """The constants of groups (None for all) that gain at least 1 dB by scales from their own values."""
    nodes, found = network.model.everywhere.nodes, dict[str, None]()
    for edge, weight in _weights(network, groups):
        old = edge.quantization
        if old.values is None or old.format is INT32 or old.is_float:
            continue
        axis = weight_axis(nodes[edge.node], edge, weight.ndim)
        fresh = quantize_weight(weight, axis, old.format.symmetric)
        if _relative_error(old, weight) > 10 ** (_FRESH_DB / 10) * _relative_error(fresh, weight):
            found[edge.tensor] = None
    return tuple(found)


def _weights(network: Network, groups: Iterable[str] | None) -> Iterator[tuple[Edge, Array]]:
    """The edges of groups (None for all) that quantize constants, with the constants' float values."""
    constants, selected = network.model.constants(), None if groups is None else set(groups)
    for group in network.groups:
        for edge in group.edges if selected is None or group.name in selected else ():
            if edge.tensor in constants:
                yield edge, constants[edge.tensor]


def _relative_error(quantization: Quantization, weight: Array) -> float:
    """The sum of the squared errors of a quantized constant, divided by the sum of its squared values."""
    values = weight.astype(np.float64)
    return float(((quantization.dequantize() - values) ** 2).sum() / max((values**2).sum(), 1e-30))


def _cut_scales(
    network: Network,
    groups: Iterable[str] | None,
    held: Mapping[str, TensorValues],
    lookups: Mapping[str, Array],
) -> dict[str, TensorScale]:
    """Scales that clip large weights, if their inputs are nearly 0, or a Gather does not read their rows.

    The arguments are those of ``weight_scales``.
    """
    index, found = network.model.everywhere, dict[str, TensorScale]()
    for edge, weight in _weights(network, groups):
        node = index.nodes[edge.node]
        maxima = held[node.input[0]].channel_amax if node.input[0] in held else lookups.get(edge.node)
        if maxima is None or edge.index != _WEIGHTS.get(node.op_type) or not np.isfinite(maxima).all():
            continue
        alone = len(index.readers(edge.tensor)) == 1
        power = by_weight(maxima.astype(np.float64), weight, node)
        if node.op_type != "Gather" and power is not None:
            power = power**2
        if alone and edge.quantization.format is INT8 and power is not None:
            cut = _least_error(weight, power, weight_axis(node, edge, weight.ndim), edge.quantization)
            found.update({edge.tensor: cut} if cut is not None else {})
    return found


def _least_error(weight: Array, power: Array, axis: int | None, own: Quantization) -> TensorScale | None:
    """The scales, one for each channel, with the least error of products; None if they gain too little.

    As in AIMET's SeqMSE, the clipping range is chosen by the error of the layer's products. Here the error is
    computed from ``power``, the mean square of each input channel, which broadcasts with the weight. ``own``
    is the present quantization.
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
