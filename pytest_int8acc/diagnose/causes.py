"""Why a group loses accuracy in INT8: one cause of a fixed set, told by what its own tensors hold.

Every edge of a group is quantized by itself, on values of the float model, and compared with the best scale
for the same values. The guilty edge is the noisiest that has a fault, among those whose noise counts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.data import Dataset
from pytest_int8acc.diagnose.surroundings import Surroundings
from pytest_int8acc.diagnose.weights import inspect_weight
from pytest_int8acc.engines.onnxruntime import Provider
from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.formats import FP16, FP32, INT8, UINT8
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Edge, Group, LeftHigh, Network, Precision
from pytest_int8acc.lab.statistics import (
    CEILING_DB,
    LOST_DB,
    SOUND_DB,
    WIDE,
    EdgeFinding,
    EdgeStats,
    lost_db,
    percent,
    reach,
)
from pytest_int8acc.lab.sweep import SAMPLES, FirstSamples, measure_network
from pytest_int8acc.lab.values import TensorValues
from pytest_int8acc.results import Cause
from pytest_int8acc.tensors import did_you_mean

logger = logging.getLogger("pytest_int8acc")

#: INT8 leaves no more than some 50 dB of values that are spread; above this they sit at a few exact codes.
_MASKED_DB = 60.0

#: Every kind of cause, with what to do.
CAUSES: Mapping[str, str] = {
    "scale-too-wide": "calibrate this tensor anew: its range should end where its values do",
    "saturation": "widen the range: calibrate by minmax or a higher percentile, on data like the real inputs",
    "zero-point": "quantize to int8 with zero point 0; TensorRT takes nothing else",
    "zero-scale": "give the tensor a scale above 0: its greatest magnitude divided by 127",
    "missing-scale": "calibrate the tensor, or add it to the scale file; until then the layer is not in INT8",
    "activation-outliers": "move the range of the large channels into the weights (as SmoothQuant does), "
    "clip the outliers by percentile, or keep the layer in FP16",
    "weight-outliers": "give each output channel its own scale; where it has one, keep the layer in FP16",
    "weight-scale": "make the scale anew from the weights: max |w| of each channel divided by 127",
    "wrong-axis": "put the scales along the output channels: axis 0 of a Conv, axis 1 of a MatMul's right",
    "mismatched-scales": "scale the tensors alike before they meet, or keep what joins them in FP16",
    "sensitive-op": "keep it in FP16: TensorRT's guide advises against INT8 here",
    "accumulated-noise": "no other scale will help: keep the layer in FP16, or train with quantization (QAT)",
    "engine-only": "try another TensorRT version or other tactics, and report it with the minimal reproducer",
    "non-determinism": "loosen the limit above the noise, or make the runs deterministic",
}
#: An edge with less than a tenth of the noise of the noisiest is not the reason.
RELEVANT_DB = 10.0
#: Channels are outliers where the greatest is so many times the usual one, which is left three bits fewer: 16
#: codes of 127. Healthy networks stay below 6.
OUTLIER_RATIO = 8.0


def explain(
    network: Network,
    groups: Sequence[str],
    inputs: Dataset,
    model: Model,
    provider: Provider = "cpu",
    *,
    rest: Precision = "fp16",
    samples: int = SAMPLES,
    engine_only: bool = False,
    unstable: bool = False,
) -> dict[str, Cause]:
    """The cause of each culprit, measured on the first samples of the inputs.

    Args:
        network: The INT8 side of the case, no plan applied.
        groups: Names of the culprits; one that was left out of INT8 for want of a scale may be among them.
        inputs: What the case is judged on.
        model: The case's float model.
        provider: Where that runs.
        rest: What runs beside INT8: scales vanish in FP16 that FP32 holds.
        samples: How many are looked at.
        engine_only: The same Q/DQ model meets the criteria in ONNX Runtime, so no scale can be the cause.
        unstable: The limit missed lies within the noise between two runs of the baseline.

    Returns:
        By group; one that is high for another reason than a missing scale is left out.

    Raises:
        Int8accError: A name is no group, the float model does not run, or the inputs cannot be read.
    """
    known = {group.name: group for group in network.groups}
    for name in groups:
        if name not in known and name not in network.left_high:
            raise ModelError(f"{network.model.name}: no group '{name}'{did_you_mean(name, list(known))}")
    found = {n: _missing(network.left_high[n]) for n in groups if n in network.left_high}
    logger.info("diagnosis: causes of %d groups", len(groups))
    wanted = [known[name] for name in groups if name in known]
    explainer = _Explainer(network, wanted, inputs, model, provider, rest, samples)
    found |= {group.name: explainer.cause(group, engine_only, unstable) for group in wanted}
    return {name: cause for name in groups if (cause := found[name]) is not None}


def _missing(why: LeftHigh) -> Cause | None:
    if why.kind != "no-scale":
        return None
    return Cause("missing-scale", f"{why.text}: the layer is not in INT8", CAUSES["missing-scale"])


class _Explainer:
    def __init__(
        self,
        network: Network,
        wanted: Sequence[Group],
        inputs: Dataset,
        model: Model,
        provider: Provider,
        rest: Precision,
        samples: int,
    ) -> None:
        self.rest = rest
        self.graph = Surroundings(network)
        self.weights = (network.model, model)
        edges = [edge for group in wanted for edge in group.edges]
        edges += self.graph.partner_edges({e.tensor for e in edges if e.quantization.values is None})
        few = FirstSamples(inputs, model, samples)
        self.measured = measure_network(network, edges, model, few, provider, {})

    def cause(self, group: Group, engine_only: bool, unstable: bool) -> Cause:
        """The cause of one group."""
        findings = sorted((self._finding(edge, group) for edge in group.edges), key=lambda f: f.rank_db)
        worst = findings[0]
        if engine_only:
            text = (
                "the same Q/DQ model meets the criteria in ONNX Runtime's exact INT8, the engine does not; "
                f"its noisiest edge '{worst.tensor}' keeps {worst.sqnr_db:.3g} dB"
            )
            return _cause(worst, "engine-only", text)
        relevant = [f for f in findings if f.rank_db <= worst.rank_db + RELEVANT_DB]
        at_fault = [f for f in relevant if f.kind]
        first = next((f for f in findings if f.kind == "zero-scale"), at_fault[0] if at_fault else None)
        if unstable and first is None:
            text = (
                "the limit lies within the noise between two runs of the baseline, and no scale is at fault"
            )
            return _cause(worst, "non-determinism", text)
        sensitive = self.graph.sensitive(group, [f.tensor for f in relevant])
        if sensitive and (first is None or first.kind == "activation-outliers"):
            return _cause(worst, "sensitive-op", f"{sensitive}; {_left(worst)}")
        return _cause(first) if first else _accumulated(worst)

    def _finding(self, edge: Edge, group: Group) -> EdgeFinding:
        if edge.quantization.values is not None:
            return inspect_weight(
                edge, self.graph.index.nodes[edge.node], *self.weights, self._energy(edge, group)
            )
        stats, quantizations = self.measured[edge.tensor]
        measured = quantizations[id(edge.quantization)]
        kind, text = self._fault(edge, stats, measured)
        return EdgeFinding(
            edge.tensor,
            measured.sqnr_db,
            min(stats.sqnr_db(stats.best_reach()), CEILING_DB),
            kind,
            text,
            _numbers(stats, measured),
            stats.report(),
            stats.amax,
            reach(edge.quantization),
            min(measured.sqnr_db, measured.usual_db),
        )

    def _energy(self, weight: Edge, group: Group) -> NDArray[np.float64] | None:
        """Sum of squares per channel of the activation that a weight is multiplied with."""
        for edge in group.edges:
            if edge.node == weight.node and edge.quantization.values is None:
                channels = self.measured[edge.tensor][1][id(edge.quantization)].channels
                return None if channels is None else channels[0]
        return None

    def _fault(self, edge: Edge, stats: TensorValues, measured: EdgeStats) -> tuple[str, str]:
        """Kind and text; empty where nothing is wrong with the edge."""
        scale = edge.quantization.scale
        least = FP32.normal if self.rest == "fp32" else FP16.smallest
        if not np.isfinite(scale).all() or float(scale.min()) < least:
            return "zero-scale", (
                f"'{edge.tensor}' has the scale {float(scale.min()):.3g}, below {least:.3g}, the least that "
                f"{self.rest.upper()} holds"
            )
        lost = lost_db(stats, measured)
        if lost >= LOST_DB and not measured.clips_wisely:
            return self._wrong_range(edge, stats, measured, lost)
        joint = self.graph.concat_before(edge.tensor)
        if joint and stats.channel_ratio(0.25) >= OUTLIER_RATIO:
            return "mismatched-scales", _uneven_parts(edge.tensor, joint, stats)
        if stats.channel_ratio() >= OUTLIER_RATIO:
            return "activation-outliers", _outlier_channels(edge.tensor, stats)
        if stats.counts.any() and stats.sqnr_db(stats.best_reach()) < SOUND_DB:
            return "activation-outliers", _outlier_values(edge.tensor, stats)
        return "", ""

    def _wrong_range(
        self, edge: Edge, stats: TensorValues, measured: EdgeStats, lost: float
    ) -> tuple[str, str]:
        quantization, extent = edge.quantization, reach(edge.quantization)
        cost = f"keeps {measured.sqnr_db:.3g} dB, the best scale {measured.sqnr_db + lost:.3g}"
        clipping = measured.clips
        if clipping and (quantization.zero_point != 0).any() | (quantization.format is UINT8):
            symmetric = min(stats.sqnr_db(float(quantization.scale.max()) * INT8.levels), CEILING_DB)
            if symmetric - measured.sqnr_db >= LOST_DB:
                return "zero-point", _one_sided(edge, measured, cost)
        if clipping:
            return "saturation", (
                f"'{edge.tensor}' is cut off at {extent:.3g} while it reaches {stats.amax:.3g}: "
                f"{percent(measured.clipped / measured.values)} of the values, with "
                f"{percent(measured.clip_noise / measured.signal)} of the energy lost; {cost}"
            )
        partner = self.graph.shares_with(edge, self.measured)
        if partner:
            node, other, amax = partner
            return "mismatched-scales", (
                f"'{edge.tensor}' reaches {stats.amax:.3g} but has the scale of '{other}', which reaches "
                f"{amax:.3g} and meets it at {node}; {cost}"
            )
        if extent >= WIDE * stats.amax:
            return "scale-too-wide", (
                f"scale {extent / stats.amax:.3g}x too wide: '{edge.tensor}' reaches {stats.amax:.3g}, its "
                f"range {extent:.3g}, so {percent(1 - measured.codes_used)} of the INT8 codes are unused; "
                f"{cost}"
            )
        return "activation-outliers", f"{_outlier_values(edge.tensor, stats)}; {cost}"


def _cause(finding: EdgeFinding, kind: str = "", text: str = "") -> Cause:
    """The cause that an edge shows, of this kind or its own."""
    kind = kind or finding.kind
    numbers = {"sqnr_db": finding.sqnr_db, "best_sqnr_db": finding.best_db, **finding.numbers}
    text = text or finding.text
    return Cause(
        kind, text, CAUSES[kind], finding.tensor, numbers, finding.histogram, finding.amax, finding.reach
    )


def _numbers(stats: TensorValues, measured: EdgeStats) -> dict[str, float]:
    extent, best = reach(measured.quantization), stats.best_reach()
    numbers = {
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


def _left(edge: EdgeFinding) -> str:
    """What INT8 leaves of an edge's values; of those beside a mask, hardly anything."""
    if edge.sqnr_db > _MASKED_DB and edge.amax is not None:
        return (
            f"'{edge.tensor}' reaches {edge.amax:.3g}, as a mask does, and what is small beside that shares "
            "a few codes"
        )
    return f"'{edge.tensor}' keeps {edge.sqnr_db:.3g} dB"


def _accumulated(worst: EdgeFinding) -> Cause:
    lost = max(worst.best_db - worst.sqnr_db, 0.0)
    text = (
        f"nothing stands out: its noisiest edge '{worst.tensor}' keeps {worst.sqnr_db:.3g} dB, {lost:.2g} dB "
        "from the best that INT8 can do; the noise of several layers adds up"
    )
    return _cause(worst, "accumulated-noise", text)


def _outlier_channels(tensor: str, stats: TensorValues) -> str:
    assert stats.channel_amax is not None
    amax = stats.channel_amax
    usual = float(np.median(amax[amax > 0]))
    bound = max(usual * OUTLIER_RATIO / 2, float(amax.max()) / 4)
    large = [int(i) for i in np.argsort(-amax) if amax[i] > bound]
    named = ", ".join(map(str, large[:5])) + (f" and {len(large) - 5} more" if len(large) > 5 else "")
    return (
        f"channel{'s' * (len(large) > 1)} {named} of '{tensor}' reach{'es' * (len(large) == 1)} "
        f"{float(amax.max()):.3g}, {float(amax.max()) / usual:.3g}x the usual channel: the others share "
        f"{max(1, round(INT8.levels * usual / float(amax.max())))} of 127 codes"
    )


def _uneven_parts(tensor: str, joint: str, stats: TensorValues) -> str:
    assert stats.channel_amax is not None
    amax = stats.channel_amax[stats.channel_amax > 0]
    return (
        f"{joint} joins channels that reach {float(amax.max()):.3g} with others that reach "
        f"{float(np.quantile(amax, 0.25)):.3g} or less, and '{tensor}' has one scale for all"
    )


def _outlier_values(tensor: str, stats: TensorValues) -> str:
    usual = stats.quantile(0.999)
    share = f", {stats.amax / usual:.3g}x the 99.9th percentile" if usual else ""
    return f"a few values of '{tensor}' reach {stats.amax:.3g}{share}, and the range with them"


def _one_sided(edge: Edge, measured: EdgeStats, cost: str) -> str:
    quantization = edge.quantization
    codes = quantization.format
    scale, zero = float(quantization.scale.max()), int(quantization.zero_point.ravel()[0])
    return (
        f"'{edge.tensor}' is {codes.name} with zero point {zero}, which holds only "
        f"{(codes.lowest - zero) * scale:.3g} to {(codes.highest - zero) * scale:.3g}: "
        f"{percent(measured.clipped / measured.values)} of the values are cut off on one side; {cost}"
    )
