"""Why a group loses accuracy in INT8: one cause of a fixed set, proposed by what its own tensors hold.

Every edge of a group is quantized by itself, on values of the float model, and compared with the best scale
for the same values. The suspect is the noisiest edge that has a fault, among those whose noise counts. Trials
in the lab, where there are some, decide: see ``ablation``.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from pytest_int8acc.answer.ablations import OUTLIER_RATIO, Suspect, established
from pytest_int8acc.answer.weights import inspect_weight
from pytest_int8acc.clock import current
from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.formats import FP16, FP32, UINT8
from pytest_int8acc.graph.groups import WEIGHTED, origins
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Edge, Group, Network, Precision
from pytest_int8acc.lab.interventions import Interventions
from pytest_int8acc.observers.edges import (
    CEILING_DB,
    LOST_DB,
    WIDE,
    EdgeMeter,
    EdgeStats,
    lost_db,
    reach,
    sound_db,
)
from pytest_int8acc.observers.observer import TensorValues
from pytest_int8acc.results.causes import Cause
from pytest_int8acc.scores.split import UNLIKE
from pytest_int8acc.tensors import did_you_mean

logger = logging.getLogger("pytest_int8acc")

#: An edge with less than a tenth of the noise of the noisiest is not the reason.
RELEVANT_DB = 10.0
_SENSITIVE = frozenset(
    {"Softmax", "LogSoftmax", "LayerNormalization", "GroupNormalization", "InstanceNormalization", "Gelu"}
    | {"SimplifiedLayerNormalization", "RMSNormalization", "Erf", "Exp", "Log", "Pow", "Sqrt", "ReduceMean"}
)
#: INT8 leaves no more than some 50 dB of values that are spread; above this they sit at a few exact codes.
_MASKED_DB = 60.0
#: Keep parts that were joined apart.
_AFTER_CONCAT = frozenset({"Slice", "Split", "Mul", "Div", "Add", "Sub", "Cast", "Reshape", "Transpose"})
_DECODING = frozenset({"Mul", "Add", "Sub", "Div", "Concat", "Sigmoid", "Tanh", "Clip", "Split", "Slice"})


def explain(
    meter: EdgeMeter,
    groups: Sequence[str],
    *,
    rest: Precision = "fp16",
    engine_only: bool = False,
    unstable: bool = False,
    trials: Interventions | None = None,
) -> dict[str, Cause]:
    """The cause of each culprit, measured on the first samples of the inputs.

    Args:
        meter: Of the INT8 side of the case, no plan applied.
        groups: Names of the culprits; one that was left out of INT8 for want of a scale may be among them.
        rest: What runs beside INT8: scales vanish in FP16 that FP32 holds.
        engine_only: The same Q/DQ model meets the criteria in ONNX Runtime, so no scale can be the cause.
        unstable: The limit missed lies within the noise between two runs of the baseline.
        trials: Take back one thing at a time; None: causes are what tensors hold.

    Returns:
        By group; one that is high for another reason than a missing scale, or lies in a body, is left out.

    Raises:
        Int8accError: A name is no group, the float model does not run, or the inputs cannot be read.
    """
    network = meter.network
    known = {group.name: group for group in network.groups}
    for name in groups:
        if name not in known and name not in network.left_high:
            raise ModelError(f"{network.model.name}: no group '{name}'{did_you_mean(name, list(known))}")
    left = {n: network.left_high[n] for n in groups if n in network.left_high}
    missing = {name: why.facts for name, why in left.items() if why.kind == "no-scale"}
    found = {n: Cause("missing-scale", "no-scale", others=facts) for n, facts in missing.items()}
    logger.info("diagnosis: causes of %d groups", len(groups))
    groups_with_edges = [known[name] for name in groups if name in known and known[name].edges]
    explainer = _Explainer(meter, rest)
    clock = current()
    for done, group in enumerate(groups_with_edges):
        if clock.over:
            clock.leave("causes")
            break
        clock.count("layer", done, len(groups_with_edges))
        found[group.name] = explainer.cause(group, engine_only, unstable, trials)
    return {name: found[name] for name in groups if name in found}


class _Explainer:
    def __init__(self, meter: EdgeMeter, rest: Precision) -> None:
        self.rest = rest
        self.graph = Surroundings(meter.network)
        self.weights = (meter.network.model, meter.model)
        self.measured = meter.measured

    def cause(self, group: Group, engine_only: bool, unstable: bool, trials: Interventions | None) -> Cause:
        """The cause of one group."""
        suspects = sorted(
            (self._suspect(edge, group) for edge in group.edges), key=lambda s: _rank_db(s.cause)
        )
        edges = [suspect.cause for suspect in suspects]
        worst = edges[0]
        if engine_only:
            return replace(worst, kind="engine-only", symptom="engine-differs")
        relevant = [edge for edge in edges if _rank_db(edge) <= _rank_db(worst) + RELEVANT_DB]
        at_fault = [edge for edge in relevant if edge.kind != "accumulated-noise"]
        first = next((e for e in edges if e.kind == "zero-scale"), at_fault[0] if at_fault else None)
        if unstable and first is None:
            return replace(worst, kind="non-determinism", symptom="within-noise")

        def placed(cause: Cause, tensors: Sequence[str]) -> Cause | None:
            return self.graph.sensitive(group, cause, tensors)

        if trials is not None:
            tested = established(trials, group.name, suspects, first or worst, placed)
            if tested is not None:
                return tested
        if first is None or first.kind == "activation-outliers":
            first = placed(worst, [edge.tensor for edge in relevant]) or first
        return first or worst

    def _suspect(self, edge: Edge, group: Group) -> Suspect:
        """An edge, what it shows, and what its tensor holds."""
        held = None if edge.quantization.values is not None else self.measured[edge.tensor][0]
        return Suspect(edge.tensor, self._edge(edge, group), held)

    def _edge(self, edge: Edge, group: Group) -> Cause:
        """What one edge shows; noise that adds up where nothing is wrong with it."""
        if edge.quantization.values is not None:
            return inspect_weight(
                edge, self.graph.index.nodes[edge.node], *self.weights, self._energy(edge, group)
            )
        stats, quantizations = self.measured[edge.tensor]
        measured = quantizations[id(edge.quantization)]
        seen = stats.report(), stats.amax, reach(edge.quantization)
        cause = Cause("accumulated-noise", "noise-adds-up", edge.tensor, _numbers(stats, measured), *seen)
        return self._fault(cause, edge, stats, measured)

    def _energy(self, weight: Edge, group: Group) -> NDArray[np.float64] | None:
        """Sum of squares per channel of the activation that a weight is multiplied with."""
        for edge in group.edges:
            if edge.node == weight.node and edge.quantization.values is None:
                channels = self.measured[edge.tensor][1][id(edge.quantization)].channels
                return None if channels is None else channels[0]
        return None

    def _fault(self, cause: Cause, edge: Edge, stats: TensorValues, measured: EdgeStats) -> Cause:
        """What is wrong with an activation's edge; ``cause`` where nothing is."""
        scale = edge.quantization.scale
        least = FP32.normal if self.rest == "fp32" else FP16.smallest
        if not np.isfinite(scale).all() or float(scale.min()) < least:
            numbers = {"scale": float(scale.min()), "least_scale": least}
            return cause.showing("zero-scale", "vanishing-scale", numbers, format=self.rest)
        if cause.numbers["lost_db"] >= LOST_DB and not measured.clips_wisely:
            return self._wrong_range(cause, edge, stats, measured)
        joint = self.graph.concat_before(edge.tensor)
        if joint is not None and (uneven := _uneven(stats)):
            facts = {"node": joint.name, "op_type": joint.op_type}
            return cause.showing("mismatched-scales", "uneven-parts", uneven, **facts)
        if stats.channel_ratio() >= OUTLIER_RATIO:
            return _large_channels(cause, stats)
        if stats.counts.any() and stats.sqnr_db(stats.best_reach()) < sound_db(stats.low):
            return cause.showing("activation-outliers", "large-values")
        return cause

    def _wrong_range(self, cause: Cause, edge: Edge, stats: TensorValues, measured: EdgeStats) -> Cause:
        quantization, extent = edge.quantization, reach(edge.quantization)
        clipping = measured.clips
        if clipping and (quantization.zero_point != 0).any() | (quantization.format is UINT8):
            symmetric = min(stats.sqnr_db(float(quantization.scale.max()) * stats.low.levels), CEILING_DB)
            if symmetric - measured.sqnr_db >= LOST_DB:
                kept, dtype = _one_sided(edge), quantization.format.name
                return cause.showing("zero-point", "one-sided", kept, format=dtype)
        if clipping:
            return cause.showing("saturation", "cut-off")
        partner = self.graph.shares_with(edge, self.measured)
        if partner:
            node, other, amax = partner
            facts = {"others": (other,), "node": node.name, "op_type": node.op_type}
            return cause.showing("mismatched-scales", "range-of-partner", {"partner_amax": amax}, **facts)
        if extent >= WIDE * stats.amax:
            return cause.showing("scale-too-wide", "range-too-wide")
        return cause.showing("activation-outliers", "stretched-range")


def _rank_db(edge: Cause) -> float:
    """SQNR by which the noisiest edge is found: large channels do not hide the others."""
    return min(edge.numbers["sqnr_db"], edge.numbers.get("usual_channel_db", math.inf))


def _numbers(stats: TensorValues, measured: EdgeStats) -> dict[str, float]:
    extent, best = reach(measured.quantization), stats.best_reach()
    numbers = {
        "sqnr_db": measured.sqnr_db,
        "best_sqnr_db": min(stats.sqnr_db(best), CEILING_DB),
        "lost_db": lost_db(stats, measured),
        "codes_used": measured.codes_used,
        "clipped": measured.clipped / max(measured.values, 1),
        "clipped_energy": measured.clip_noise / measured.signal if measured.signal else 0.0,
        "factor": extent / stats.amax if stats.amax else float("inf"),
        "best_factor": extent / best if best else float("inf"),
        "channel_gain_db": stats.channel_gain_db,
        "channel_ratio": stats.channel_ratio(),
        "usual_channel_db": measured.usual_db,
    }
    return numbers | {f"p{100 * share:g}": stats.quantile(share) for share in (0.99, 0.999, 0.9999)}


def _uneven(stats: TensorValues) -> dict[str, float]:
    """What the greatest channel reaches, and those far below it; empty where these are few and not far."""
    if stats.channel_amax is None or not stats.channel_amax.any():
        return {}
    amax = stats.channel_amax[stats.channel_amax > 0]
    below = amax[amax * OUTLIER_RATIO <= amax.max()]
    if not below.size or (below.size * 4 < amax.size and below.max() * UNLIKE > amax.max()):
        return {}
    return {"channel_amax": float(amax.max()), "other_amax": float(below.max())}


def _large_channels(cause: Cause, stats: TensorValues) -> Cause:
    assert stats.channel_amax is not None
    amax = stats.channel_amax
    usual, most = float(np.median(amax[amax > 0])), float(amax.max())
    bound = max(usual * OUTLIER_RATIO / 2, most / 4)
    large = {int(i): float(amax[i]) for i in np.argsort(-amax) if amax[i] > bound}
    numbers = {"channel_amax": most, "codes_left": max(1, round(stats.low.levels * usual / most))}
    return cause.showing("activation-outliers", "large-channels", numbers, channels=large)


def _one_sided(edge: Edge) -> dict[str, float]:
    """The zero point, and the least and greatest values that can be held."""
    quantization = edge.quantization
    codes = quantization.format
    scale, zero = float(quantization.scale.max()), int(quantization.zero_point.ravel()[0])
    return {"zero_point": zero, "low": (codes.lowest - zero) * scale, "high": (codes.highest - zero) * scale}


class Surroundings:
    """The network's graph, asked which ops are sensitive and which tensors meet."""

    def __init__(self, network: Network) -> None:
        self.index = network.model.index
        self._origin = origins(network.model)
        self._quantized: dict[str, set[str]] = defaultdict(set)
        """Root to the quantized tensors that hold its values."""
        for edge in (e for e in network.edges if e.quantization.values is None):
            self._quantized[self.root(edge.tensor)].add(edge.tensor)
        self._joins: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        """Root to each Concat and Add that its values go into."""
        for node in self.index.nodes.values():
            if node.op_type in ("Concat", "Add", "Sum"):
                for root in {self.root(name) for name in node.input}:
                    self._joins[root].append(node)
        self._before_weighted = _before_weighted(network.model)

    def root(self, tensor: str) -> str:
        """The tensor that this one holds values of."""
        while tensor in self._origin:
            tensor = self._origin[tensor]
        return tensor

    def _meetings(self, tensor: str) -> Iterator[tuple[onnx.NodeProto, set[str]]]:
        """Each Concat and Add that ``tensor`` goes into, with the other quantized tensors there."""
        root = self.root(tensor)
        for node in self._joins.get(root, ()):
            roots = {self.root(name) for name in node.input} - {root}
            roots |= {node.output[0]} if node.op_type == "Concat" else set()
            yield node, {other for name in roots for other in self._quantized.get(name, ())}

    def shares_with(
        self, edge: Edge, measured: Mapping[str, tuple[TensorValues, dict[int, EdgeStats]]]
    ) -> tuple[onnx.NodeProto, str, float] | None:
        """Where they meet, the tensor and its amax, whose right range is that of ``edge`` as well."""
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
        """The Concat that made ``tensor`` of several; one that only turns a tensor around joins nothing.

        What it makes may be moved, cut or scaled by a constant before it is quantized.
        """
        node = self.index.producer.get(self.root(tensor))
        while node is not None and node.op_type in _AFTER_CONCAT:
            varying = [name for name in node.input if name not in self.index.constants]
            node = self.index.producer.get(self.root(varying[0])) if len(varying) == 1 else None
        if node is None or node.op_type != "Concat":
            return None
        return node if len({self.root(name) for name in node.input}) > 1 else None

    def sensitive(self, group: Group, worst: Cause, tensors: Sequence[str]) -> Cause | None:
        """Why TensorRT's guide advises against INT8 here; None where not, or where inputs keep what is usual.

        ``worst`` is what the culprit's noisiest edge shows, ``tensors`` are of edges whose noise counts.
        """
        leader = self.index.nodes[group.name]
        masked = worst.numbers["sqnr_db"] > _MASKED_DB
        if leader.op_type in _SENSITIVE:
            return worst.showing("sensitive-op", "quantized-inputs", op_type=leader.op_type, masked=masked)
        if worst.numbers["sqnr_db"] >= sound_db(group.edges[0].quantization.format) and not masked:
            return None
        for tensor in tensors:
            node = self.index.producer.get(self.root(tensor))
            if node is None:
                continue
            facts: dict[str, Any] = {"others": (tensor,), "node": node.name, "op_type": node.op_type}
            facts["masked"] = masked
            if node.op_type in ("Softmax", "LogSoftmax"):
                return worst.showing("sensitive-op", "after-softmax", **facts)
            if self._is_gelu(node):
                return worst.showing("sensitive-op", "after-gelu", **facts)
        if leader.op_type == "MatMul" and self.index.constants.isdisjoint(leader.input):
            return worst.showing("sensitive-op", "product-of-activations", masked=masked)
        if leader.op_type in _DECODING and leader.name not in self._before_weighted:
            return worst.showing("sensitive-op", "decoding", op_type=leader.op_type, masked=masked)
        return None

    def _is_gelu(self, node: onnx.NodeProto, steps: int = 4) -> bool:
        if node.op_type in ("Gelu", "Erf"):
            return True
        producer = self.index.producer
        before = [producer[name] for name in node.input if name in producer]
        follows = node.op_type in ("Mul", "Add", "Div") and steps > 0
        return follows and any(self._is_gelu(n, steps - 1) for n in before)


def _before_weighted(model: Model) -> set[str]:
    """Nodes with a weighted node somewhere behind them."""
    before: set[str] = set()
    for node in reversed(model.graph.node):
        readers = (reader for name in node.output for reader, _ in model.index.readers(name))
        if any(reader.op_type in WEIGHTED or reader.name in before for reader in readers):
            before.add(node.name)
    return before
