"""Other scales, chosen by the error of the model's outputs, or of the products of a weight.

The candidates for an activation are the ranges that each calibration method takes from one histogram. The
first trials give all tensors the same method. Then tensors are changed one at a time, as long as the outputs
get better. A trial is one inference on a few samples.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pytest_int8acc.clock import Budget
from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.formats import FP16, INT8, INT32
from pytest_int8acc.graph.layout import by_weight, find_groups, quantize_weight
from pytest_int8acc.graph.network import Edge, Network, Plan, Precision, Quantization, TensorScale, symmetric
from pytest_int8acc.graph.plan import fresh_weights, weight_axis
from pytest_int8acc.lab.simulator import Simulator
from pytest_int8acc.observers.methods import CANDIDATES, FEW_BINS
from pytest_int8acc.observers.values import TensorValues
from pytest_int8acc.tensors import Array

#: Ranges of two datasets are alike where they differ by less than this factor, by each of these methods.
_LIKE, _SPREAD = 1.4, ("minmax", "percentile 99.9", "percentile 99")
#: Scales that differ by less than this share count as one candidate.
_ALIKE = 0.03
#: Minimum share by which a change of a scale must lower the error to be kept.
_WORTH = 0.005
#: Outputs with at most this normalized loss need no better scales; 1 is the limit of the criteria.
ENOUGH = 0.5
#: Neither do outputs with at most this many times the loss that is left with none of the tensors in INT8.
NO_MORE = 1.05
#: Outputs with a greater normalized loss than this on a few samples do not meet the criteria on all samples.
NEAR = 1.6
#: How many rounds of changing one tensor at a time there are.
_SWEEPS = 2
#: Maximum number of tensors for which slow methods are tried.
_MANY = 8
#: Scales that differ by at most this share are the same.
_SAME = 1e-6
#: An SQNR above this counts as this.
_SILENT_DB = 300.0
#: Minimum gain, in dB, for new scales of a weight, and for scales that clip it.
_FRESH_DB, _CUT_DB = 1.0, 3.0
_READERS = frozenset({"Conv", "Gemm", "MatMul"})
#: The shares of a weight's range that are tried as its clipping range.
_SHARES = 2.0 ** -np.arange(0.25, 8, 0.25)


class Ranges:
    """The ranges that each calibration method gives tensors; a method runs when its range is asked for."""

    def __init__(self, held: Mapping[str, TensorValues], entropy_bins: int = FEW_BINS) -> None:
        """Keep the tensors that have a histogram: tensors of inf, nan or zeros alone get no candidates.

        Args:
            held: By tensor, from ``Lab.values``.
            entropy_bins: Of the entropy search; a multiple of 128, far fewer than ``values.BINS``.
        """
        self.held = {tensor: values for tensor, values in held.items() if values.is_counted}
        self._known: dict[tuple[str, str], float] = {}
        self._bins = entropy_bins

    def __contains__(self, tensor: str) -> bool:
        return tensor in self.held

    def scale(self, tensor: str, method: str) -> float:
        """The scale of a tensor that has a histogram, by one of ``CANDIDATES``; exact in float32."""
        key = tensor, method
        if key not in self._known:
            held = self.held[tensor]
            way, options = CANDIDATES[method]
            amax = way.amax(held, replace(options, entropy_bins=self._bins))
            self._known[key] = float(np.float32(amax / held.low.levels))
        return self._known[key]

    def like(self, other: Ranges) -> bool:
        """Whether both hold the same tensors, with values that spread over about the same range."""
        return self.held.keys() == other.held.keys() and all(
            1 / _LIKE < self.scale(tensor, method) / other.scale(tensor, method) < _LIKE
            for tensor in self.held
            for method in _SPREAD
        )

    def reaches(self, others: Mapping[str, TensorValues]) -> bool:
        """True where the greatest magnitudes of the same tensors are about the same elsewhere."""
        return all(1 / _LIKE < others[tensor].amax / held.amax < _LIKE for tensor, held in self.held.items())

    def loss_db(self, tensor: str, scale: float) -> float:
        """By how much the tensor's own error at ``scale`` exceeds the least possible, in dB."""
        held = self.held.get(tensor)
        if held is None:
            return 0.0
        best, now = (
            min(held.sqnr_db(reach), _SILENT_DB) for reach in (held.best_reach(), scale * held.low.levels)
        )
        return best - now


@dataclass(frozen=True)
class Choice:
    """Scales chosen for some activations."""

    scales: Mapping[str, float] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)
    normalized_loss: float = np.inf
    """Of the outputs, on the samples looked at."""

    def plus(self, other: Choice) -> Choice:
        """Both choices in one; the other counts where they differ."""
        return Choice(
            {**self.scales, **other.scales}, {**self.methods, **other.methods}, other.normalized_loss
        )

    def only(self, tensors: Collection[str]) -> Choice:
        """The choice for some of the tensors; its loss is not measured yet."""
        scales = {tensor: scale for tensor, scale in self.scales.items() if tensor in tensors}
        return Choice(scales, {tensor: self.methods[tensor] for tensor in scales})


@dataclass(frozen=True, eq=False)
class Unit:
    """Activations with one scale: a single one, or several that meet in a Concat."""

    tensors: tuple[str, ...]
    ranges: Ranges

    def scale(self, method: str) -> float:
        """Its scale by one of ``CANDIDATES``: the greatest of its tensors'."""
        return max(self.ranges.scale(tensor, method) for tensor in self.tensors if tensor in self.ranges)

    def choice(self, method: str) -> Choice:
        """Its scales by one method."""
        return Choice(dict.fromkeys(self.tensors, self.scale(method)), dict.fromkeys(self.tensors, method))


class Chooser:
    """Looks for scales over a plan, by trials on a few samples that a budget pays for."""

    def __init__(self, simulator: Simulator, base: Plan, own: Mapping[str, float], budget: Budget) -> None:
        """Keep what is needed.

        Args:
            simulator: Tries the plans.
            base: What every plan does beside.
            own: Scale of each activation under ``base``.
            budget: Pays for the trials.
        """
        self.own, self.base, self.budget = own, base, budget
        self._simulator = simulator

    def plan(self, choice: Choice, high: Mapping[str, Precision] | None = None) -> Plan:
        """The base with those scales of the choice that differ from its own, and groups high."""
        news = {
            tensor: symmetric(scale)
            for tensor, scale in choice.scales.items()
            if tensor in self.own and abs(scale - self.own[tensor]) > _SAME * self.own[tensor]
        }
        return replace(self.base, scales={**self.base.scales, **news}, high=dict(high or {}))

    def weighed(self, choice: Choice, high: Mapping[str, Precision]) -> Choice:
        """The choice with its normalized loss measured."""
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
        """Choose scales for ``chosen_units`` such that the outputs err least, on a few samples.

        Args:
            chosen_units: The units whose scales may change.
            start: Scales of other tensors, kept as they are, and of these, improved on.
            high: Groups that do not run in INT8 meanwhile, and what they run in.
            enough: The normalized loss at which tensors are no longer changed one by one.
            least: The normalized loss with none of ``chosen_units`` in INT8, which no scales fall below.
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
                    or _foretold(before, best, done, len(chosen_units)) > enough
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
        """The best of the scales as they are, and of one method for all of ``chosen_units``; see ``rescale``.

        Slow methods are tried for ``most`` units at most.
        """
        if self.budget.empty:
            return replace(start, normalized_loss=np.inf)
        best = self.weighed(start, high or {})  # it may have been measured with other groups high
        tried = [dict(start.scales)]
        for method in (
            name for name, (m, _) in CANDIDATES.items() if not m.is_slow or len(chosen_units) <= most
        ):
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
        """The choice without those scales that do no more good than the network's own."""
        if len(chosen_units) < 2 or self.budget.empty:
            return choice
        least = choice = self.weighed(choice, high)  # it may have been measured with other groups high
        for unit in chosen_units:
            if self.budget.empty:
                break
            tried = self.weighed(least.only(set(least.scales).difference(unit.tensors)), high)
            if tried.normalized_loss <= choice.normalized_loss * (1 + _WORTH):
                least = tried
        return least

    def _others(self, unit: Unit, best: Choice) -> Iterator[Choice]:
        """A unit's candidates that differ from each other and from what it has."""
        seen = [best.scales.get(unit.tensors[0], self.own.get(unit.tensors[0], math.inf))]
        for method in CANDIDATES:
            scale = unit.scale(method)
            if all(abs(scale - other) > _ALIKE * other for other in seen):
                seen.append(scale)
                yield unit.choice(method)

    def _loss_db(self, unit: Unit, best: Choice) -> float:
        """What the worst of a unit's scales loses; everything where none has a scale per tensor."""
        scales = {t: best.scales.get(t, self.own.get(t)) for t in unit.tensors}
        losses = (unit.ranges.loss_db(t, scale) for t, scale in scales.items() if scale is not None)
        return max(losses, default=math.inf)


def units(network: Network, tensors: Iterable[str], ranges: Ranges) -> list[Unit]:
    """``tensors`` with those that must share a scale with them; those without a histogram are left out."""
    shared = _shared(network)
    found: dict[frozenset[str], Unit] = {}
    for tensor in tensors:
        together = next((s for s in shared if tensor in s), frozenset({tensor}))
        if together not in found and any(t in ranges for t in together):
            found[together] = Unit(tuple(sorted(together)), ranges)
    return list(found.values())


def activations(network: Network, groups: Iterable[str] | None = None) -> list[str]:
    """Activations that groups quantize, each once, in topological order; None: of all groups."""
    chosen_units = None if groups is None else set(groups)
    edges = (e for g in network.groups if chosen_units is None or g.name in chosen_units for e in g.edges)
    return list(dict.fromkeys(e.tensor for e in edges if e.quantization.values is None))


def with_tied(network: Network, tensors: Iterable[str]) -> list[str]:
    """``tensors`` and those that must share a scale with one of them, each once."""
    shared = _shared(network)
    sets = ((t, *sorted(s for tied in shared if t in tied for s in tied)) for t in tensors)
    return list(dict.fromkeys(t for together in sets for t in together))


def _shared(network: Network) -> list[frozenset[str]]:
    """Sets of quantized activations that TensorRT wants at one scale."""
    quantized = set(activations(network))
    try:
        return [tied for s in find_groups(network.model).shared if len(tied := s & quantized) > 1]
    except ModelError:  # a Q/DQ model of operators that are quantized by its author alone
        return []


def _foretold(before: Choice, best: Choice, done: int, units: int) -> float:
    """The normalized loss after a sweep over all units, if the others gain what those done have gained."""
    return (
        before.normalized_loss - (before.normalized_loss - best.normalized_loss) * units / done
        if done
        else 0.0
    )


def _better(best: Choice, tried: Choice) -> Choice:
    return tried if tried.normalized_loss < best.normalized_loss * (1 - _WORTH) else best


def weight_scales(
    network: Network, groups: Iterable[str] | None, held: Mapping[str, TensorValues]
) -> dict[str, TensorScale]:
    """Scales for constants of groups (None: of all groups) that lose less than their own scales.

    Args:
        network: Any.
        groups: Names.
        held: The values of activations. For weights whose input is not among them, all inputs count alike.
    """
    return {**fresh_weights(network, worse_weights(network, groups)), **_cut_scales(network, groups, held)}


def worse_weights(network: Network, groups: Iterable[str] | None = None) -> tuple[str, ...]:
    """Constants of groups (None: of all) that gain at least 1 dB by scales from their own values."""
    nodes, found = network.model.index.nodes, dict[str, None]()
    for edge, weight in _weights(network, groups):
        old = edge.quantization
        if old.values is None or old.format is INT32:
            continue
        axis = weight_axis(nodes[edge.node], edge, weight.ndim)
        fresh = quantize_weight(weight, axis, old.format.symmetric)
        if _relative_error(old, weight) > 10 ** (_FRESH_DB / 10) * _relative_error(fresh, weight):
            found[edge.tensor] = None
    return tuple(found)


def _weights(network: Network, groups: Iterable[str] | None) -> Iterator[tuple[Edge, Array]]:
    """Edges of groups (None: of all) on constants, with their float values."""
    constants, selected = network.model.constants(), None if groups is None else set(groups)
    for group in network.groups:
        for edge in group.edges if selected is None or group.name in selected else ():
            if edge.tensor in constants:
                yield edge, constants[edge.tensor]


def _relative_error(quantization: Quantization, weight: Array) -> float:
    """Squared error of a constant's integers, relative to its own square."""
    values = weight.astype(np.float64)
    return float(((quantization.dequantize() - values) ** 2).sum() / max((values**2).sum(), 1e-30))


def _cut_scales(
    network: Network, groups: Iterable[str] | None, held: Mapping[str, TensorValues]
) -> dict[str, TensorScale]:
    """Scales that clip large weights whose inputs are next to 0."""
    nodes, found = network.model.index.nodes, dict[str, TensorScale]()
    for edge, weight in _weights(network, groups):
        node = nodes[edge.node]
        maxima = held[node.input[0]].channel_amax if node.input[0] in held else None
        if maxima is None or edge.index != 1 or node.op_type not in _READERS:
            continue
        alone = len(network.model.index.readers(edge.tensor)) == 1
        if alone and edge.quantization.format is INT8 and np.isfinite(maxima).all():
            power = by_weight(maxima.astype(np.float64), weight, node) ** 2
            cut = _least_error(weight, power, weight_axis(node, edge, weight.ndim), edge.quantization)
            found.update({edge.tensor: cut} if cut is not None else {})
    return found


def _least_error(weight: Array, power: Array, axis: int | None, own: Quantization) -> TensorScale | None:
    """The clipping range of each channel with the least error of products; None where none is far better.

    As SeqMSE does (AIMET), but with one number for each input channel: ``power``, the mean square of its
    values, which broadcasts with the weight.
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
