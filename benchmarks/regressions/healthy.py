"""Entries without a fault: every network, every calibration method, other quantizers, other limits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.regressions.data import samples
from benchmarks.regressions.entry import Entry, Planted, Truth
from benchmarks.regressions.networks import CALIBRATION, LIMITS, net
from benchmarks.regressions.plant import from_qdq, from_scales, planted
from benchmarks.regressions.quantizer import LEGAL, quantized

_HEALTHY = Truth("healthy", int8_fix=None)


def entries() -> Iterator[Entry]:
    """All of this module."""
    for i, network in enumerate(LIMITS):
        for method in ("minmax", "percentile", "mse", "topk")[i % 2 :: 2]:
            yield _entry(f"{method}_{network}", network, partial(_calibrated, network, {"method": method}))
    for network in ("mlp", "detector"):
        yield _entry(f"entropy_{network}", network, partial(_calibrated, network, {"method": "entropy"}))
    for network in ("cnn", "mixer"):
        yield _entry(f"cache_{network}", network, partial(_file, network, as_json=False))
    yield _entry("ranges_vit", "vit", partial(_file, "vit", as_json=True))
    for network in ("cnn", "resnet", "mobilenet", "mlp", "tcn"):
        yield _entry(f"ort_{network}", network, partial(_quantizer, network, "MinMax"))
    for network in ("resnet", "mixer"):
        yield _entry(f"ort_percentile_{network}", network, partial(_quantizer, network, "Percentile"))
    for network in ("inception", "unet"):
        yield _entry(f"qdq_{network}", network, partial(_own, network))
    for network, seed in (("cnn", 1), ("inception", 2), ("detector", 3), ("vit", 4)):
        plant = partial(_calibrated, network, {"method": "minmax"}, seed=seed)
        yield _entry(f"half_{network}", network, plant)
    for network in ("resnet", "unet"):
        plant = partial(_calibrated, network, {"method": "minmax"}, baseline="fp32")
        yield _entry(f"fp32_{network}", network, plant)


def _entry(name: str, network: str, plant: Any) -> Entry:
    return Entry(f"healthy_{name}", "healthy", network, plant)


def _calibrated(network: str, how: dict[str, Any], seed: int | None = None, **more: Any) -> Planted:
    """Calibrated by the plugin; with a seed, on a random half of the samples."""
    feed = samples(network, "calibration", CALIBRATION)
    if seed is not None:
        chosen = np.random.default_rng(seed).permutation(CALIBRATION)[: CALIBRATION // 2]
        feed = {name: array[chosen] for name, array in feed.items()}
    int8 = {"calibrate": {"data": "calibration.npz", **how}}
    return planted(net(network), int8, _HEALTHY, None, files={"calibration.npz": feed}, **more)


def _file(network: str, as_json: bool) -> Planted:
    return from_scales(net(network), net(network).scales, _HEALTHY, as_json=as_json)


def _quantizer(network: str, method: str) -> Planted:
    return from_qdq(net(network), quantized(net(network), method, **LEGAL), _HEALTHY)


def _own(network: str) -> Planted:
    return from_qdq(net(network), net(network).network(), _HEALTHY)
