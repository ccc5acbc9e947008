"""Why a group loses accuracy in INT8: one cause of a fixed set, told by what its own tensors hold.

Every edge of a group is quantized by itself, on values of the float model, and compared with the best scale
for the same values. The guilty edge is the noisiest that has a fault, among those whose noise counts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.diagnose.surroundings import Surroundings
from pytest_int8acc.diagnose.weights import inspect_weight
from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.formats import FP16, FP32, INT8, UINT8
from pytest_int8acc.graph.network import Edge, Group, LeftHigh, Precision
from pytest_int8acc.lab.statistics import (
    CEILING_DB,
    LOST_DB,
    SOUND_DB,
    WIDE,
    EdgeStats,
    lost_db,
    reach,
)
from pytest_int8acc.lab.sweep import SAMPLES, EdgeMeter
from pytest_int8acc.lab.values import TensorValues
from pytest_int8acc.results.causes import Cause
from pytest_int8acc.tensors import did_you_mean

logger = logging.getLogger("pytest_int8acc")

#: An edge with less than a tenth of the noise of the noisiest is not the reason.
RELEVANT_DB = 10.0
#: Channels are outliers where the greatest is so many times the usual one, which is left three bits fewer: 16
#: codes of 127. Healthy networks stay below 6.
OUTLIER_RATIO = 8.0


def explain(
    meter: EdgeMeter,
    groups: Sequence[str],
    *,
    rest: Precision = "fp16",
    samples: int = SAMPLES,
    engine_only: bool = False,
    unstable: bool = False,
) -> dict[str, Cause]:
    """The cause of each culprit, measured on the first samples of the inputs.

    Args:
        meter: Of the INT8 side of the case, no plan applied.
        groups: Names of the culprits; one that was left out of INT8 for want of a scale may be among them.
        rest: What runs beside INT8: scales vanish in FP16 that FP32 holds.
        samples: How many are looked at.
        engine_only: The same Q/DQ model meets the criteria in ONNX Runtime, so no scale can be the cause.
        unstable: The limit missed lies within the noise between two runs of the baseline.

    Returns:
        By group; one that is high for another reason than a missing scale is left out.

    Raises:
        Int8accError: A name is no group, the float model does not run, or the inputs cannot be read.
    """
    network = meter.network
    known = {group.name: group for group in network.groups}
    for name in groups:
        if name not in known and name not in network.left_high:
            raise ModelError(f"{network.model.name}: no group '{name}'{did_you_mean(name, list(known))}")
    found = {n: _missing(network.left_high[n]) for n in groups if n in network.left_high}
    logger.info("diagnosis: causes of %d groups", len(groups))
    wanted = [known[name] for name in groups if name in known]
    explainer = _Explainer(meter, wanted, rest, samples)
    found |= {group.name: explainer.cause(group, engine_only, unstable) for group in wanted}
    return {name: cause for name in groups if (cause := found[name]) is not None}


def _missing(why: LeftHigh) -> Cause | None:
    if why.kind != "no-scale":
        return None
    return Cause("missing-scale", "no-scale", others=why.facts)


class _Explainer:
    def __init__(self, meter: EdgeMeter, wanted: Sequence[Group], rest: Precision, samples: int) -> None:
        self.rest = rest
        self.graph = Surroundings(meter.network)
        self.weights = (meter.network.model, meter.model)
        edges = [edge for group in wanted for edge in group.edges]
        edges += self.graph.partner_edges({e.tensor for e in edges if e.quantization.values is None})
        self.measured = meter.measure(edges, samples)

    def cause(self, group: Group, engine_only: bool, unstable: bool) -> Cause:
        """The cause of one group."""
        edges = sorted((self._edge(edge, group) for edge in group.edges), key=_rank_db)
        worst = edges[0]
        if engine_only:
            return replace(worst, kind="engine-only", symptom="engine-differs")
        relevant = [edge for edge in edges if _rank_db(edge) <= _rank_db(worst) + RELEVANT_DB]
        at_fault = [edge for edge in relevant if edge.kind != "accumulated-noise"]
        first = next((e for e in edges if e.kind == "zero-scale"), at_fault[0] if at_fault else None)
        if unstable and first is None:
            return replace(worst, kind="non-determinism", symptom="within-noise")
        if first is None or first.kind == "activation-outliers":
            first = self.graph.sensitive(group, worst, [edge.tensor for edge in relevant]) or first
        return first or worst

    def _edge(self, edge: Edge, group: Group) -> Cause:
        """What one edge shows; noise that adds up where nothing is wrong with it."""
        if edge.quantization.values is not None:
            return inspect_weight(
                edge, self.graph.index.nodes[edge.node], *self.weights, self._energy(edge, group)
            )
        stats, quantizations = self.measured[edge.tensor]
        measured = quantizations[id(edge.quantization)]
        cause = Cause(
            "accumulated-noise",
            "noise-adds-up",
            edge.tensor,
            _numbers(stats, measured),
            stats.report(),
            stats.amax,
            reach(edge.quantization),
        )
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
        if joint is not None and stats.channel_ratio(0.25) >= OUTLIER_RATIO:
            facts = {"node": joint.name, "op_type": joint.op_type}
            return cause.showing("mismatched-scales", "uneven-parts", _uneven(stats), **facts)
        if stats.channel_ratio() >= OUTLIER_RATIO:
            return _large_channels(cause, stats)
        if stats.counts.any() and stats.sqnr_db(stats.best_reach()) < SOUND_DB:
            return cause.showing("activation-outliers", "large-values")
        return cause

    def _wrong_range(self, cause: Cause, edge: Edge, stats: TensorValues, measured: EdgeStats) -> Cause:
        quantization, extent = edge.quantization, reach(edge.quantization)
        clipping = measured.clips
        if clipping and (quantization.zero_point != 0).any() | (quantization.format is UINT8):
            symmetric = min(stats.sqnr_db(float(quantization.scale.max()) * INT8.levels), CEILING_DB)
            if symmetric - measured.sqnr_db >= LOST_DB:
                kept, dtype = _one_sided(edge), quantization.format.name
                return cause.showing("zero-point", "one-sided", kept, format=dtype)
        if clipping:
            return cause.showing("saturation", "cut-off")
        partner = self.graph.shares_with(edge, self.measured)
        if partner:
            node, other, amax = partner
            return cause.showing(
                "mismatched-scales",
                "range-of-partner",
                {"partner_amax": amax},
                others=(other,),
                node=node.name,
                op_type=node.op_type,
            )
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


def _large_channels(cause: Cause, stats: TensorValues) -> Cause:
    assert stats.channel_amax is not None
    amax = stats.channel_amax
    usual, most = float(np.median(amax[amax > 0])), float(amax.max())
    bound = max(usual * OUTLIER_RATIO / 2, most / 4)
    large = {int(i): float(amax[i]) for i in np.argsort(-amax) if amax[i] > bound}
    numbers = {"channel_amax": most, "codes_left": max(1, round(INT8.levels * usual / most))}
    return cause.showing("activation-outliers", "large-channels", numbers, channels=large)


def _uneven(stats: TensorValues) -> dict[str, float]:
    """What the greatest channel reaches, and what a quarter of the channels do not pass."""
    assert stats.channel_amax is not None
    amax = stats.channel_amax[stats.channel_amax > 0]
    return {"channel_amax": float(amax.max()), "quarter_amax": float(np.quantile(amax, 0.25))}


def _one_sided(edge: Edge) -> dict[str, float]:
    """The zero point, and the least and greatest values that can be held."""
    quantization = edge.quantization
    codes = quantization.format
    scale, zero = float(quantization.scale.max()), int(quantization.zero_point.ravel()[0])
    return {"zero_point": zero, "low": (codes.lowest - zero) * scale, "high": (codes.highest - zero) * scale}
