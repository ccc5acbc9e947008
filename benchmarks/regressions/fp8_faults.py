"""FP8: scales and weights that are so wrong that FP8 shows it, and what would be wrong in INT8 alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from benchmarks.faults import misscale
from benchmarks.regressions.entry import Entry, Planted, Truth
from benchmarks.regressions.networks import FP8_LIMITS, Net, net
from benchmarks.regressions.plant import (
    NARROW,
    Change,
    causes_of,
    changed,
    coarser,
    from_qdq,
    from_scales,
    mislabelled,
)
from pytest_int8acc.graph.formats import FP8, INT8

_WEIGHT_SCALE = frozenset({"weight-scale"})
#: From here on most values lie below the least that FP8 holds.
_FAR = 2.0**18
#: What becomes of activations: where in the network, and the factor of their scale.
_SCALES: Mapping[str, tuple[str, Mapping[float, float]]] = {
    "narrow": ("activation cut off", {0.5: 1 / 30}),
    "early": ("activation cut off", {0.2: 1 / 8}),
    "vanishing": ("activation vanishes", {0.7: _FAR}),
    "two": ("two activations", {0.3: 1 / 20, 0.8: 1 / 20}),
    "both": ("two activations", {0.4: 1 / 12, 0.7: _FAR}),
}
#: What becomes of a weight: where in the network, how, its causes.
_WEIGHTS: Mapping[str, tuple[float, Change, frozenset[str]]] = {
    "clipped": (0.6, coarser(1 / 8), _WEIGHT_SCALE | NARROW),
    "gone": (0.5, coarser(_FAR), _WEIGHT_SCALE),
    "mislabelled": (0.4, mislabelled(3), _WEIGHT_SCALE),
}
#: Factors of all scales that FP8 does not mind: amax / 127, 8 times too wide, amax itself.
_HARMLESS = {"int8_scales": FP8.levels / INT8.levels, "x8": 8.0, "amax": FP8.levels}


def entries() -> Iterator[Entry]:
    """All of this module."""
    for network in FP8_LIMITS:
        for name, (kind, factors) in _SCALES.items():
            yield Entry(
                f"fp8_{name}_{network}", f"FP8: {kind}", network, partial(_misscaled, network, factors)
            )
        for name in _WEIGHTS:
            yield Entry(f"fp8_{name}_{network}", "FP8: weight", network, partial(_weight, network, name))
        for name, factor in {"honest": 1.0, **_HARMLESS}.items():
            yield Entry(
                f"fp8_healthy_{name}_{network}", "healthy", network, partial(_healthy, network, factor)
            )


def _at(known: Net, place: float) -> str:
    """The group at a part of the way through the network."""
    return known.weighted[int(place * len(known.weighted))]


def _misscaled(network: str, factors: Mapping[float, float]) -> Planted:
    known = net(network, FP8)
    scales, _ = misscale(known.layout, known.scales, {_at(known, p): f for p, f in factors.items()})
    return from_scales(known, scales, Truth(causes=causes_of(known, scales)), as_json=True)


def _weight(network: str, name: str) -> Planted:
    known, (place, change, causes) = net(network, FP8), _WEIGHTS[name]
    group = _at(known, place)
    return from_qdq(
        known, changed(known.network(), group, change, weight=True), Truth(causes={group: causes})
    )


def _healthy(network: str, factor: float) -> Planted:
    known = net(network, FP8)
    scales = {tensor: scale * factor for tensor, scale in known.scales.items()}
    return from_scales(known, scales, Truth("healthy", int8_fix=None), as_json=True)
