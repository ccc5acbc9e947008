"""Faults of scales: too wide, too narrow, several at once, ranges set by hand, caches of another model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from benchmarks.faults import outlier_channel
from benchmarks.regressions.data import samples
from benchmarks.regressions.entry import Entry, Planted, Truth
from benchmarks.regressions.networks import CALIBRATION, LIMITS, calibrated, net, scales_of
from benchmarks.regressions.plant import (
    NARROW,
    WIDE,
    cache_text,
    causes_of,
    from_scales,
    misscaled,
    planted,
    rescaled,
)

_WIDE = (1000.0, 30.0, 5.0, 100.0, 10.0, 300.0, 2.0)
_NARROW = (2.0, 8.0, 1000.0, 3.0, 30.0, 5.0, 100.0)
#: A part of the fault's depth in the network for each network, so that first and last layers are met too.
_DEPTHS = (0.5, 0.2, 0.8, 0.35, 0.65, 0.05, 0.95)
#: Several faults in one network: group to factor.
SEVERAL: dict[str, tuple[str, Mapping[str, float]]] = {
    "cnn_pair": ("cnn", {"/3/conv/Conv": 40, "/8/conv/Conv": 40}),
    "cnn_wide_and_narrow": ("cnn", {"/2/conv/Conv": 60, "/6/conv/Conv": 1 / 10}),
    "cnn_interacting": ("cnn", {"/3/conv/Conv": 12, "/8/conv/Conv": 10}),
    "resnet_masked": ("resnet", {"/0/conv/Conv": 1000, "/2/second/conv/Conv": 60, "/3/second/conv/Conv": 60}),
    "resnet_pair": ("resnet", {"/1/second/conv/Conv": 50, "/3/second/conv/Conv": 1 / 10}),
    "mobilenet_three": (
        "mobilenet",
        {"/2/depthwise/conv/Conv": 50, "/4/project/conv/Conv": 1000, "/6/depthwise/conv/Conv": 1 / 8},
    ),
    "mobilenet_six": ("mobilenet", {f"/{i}/project/conv/Conv": 20.0 + 10 * i for i in range(1, 7)}),
    "vit_three": (
        "vit",
        {
            "/blocks/blocks.0/fc2/MatMul": 60,
            "/blocks/blocks.1/out/MatMul": 100,
            "/blocks/blocks.2/fc2/MatMul": 1 / 10,
        },
    ),
    "inception_two": ("inception", {"/1/three/three.1/conv/Conv": 60, "/3/five/five.1/conv/Conv": 1 / 10}),
    "detector_heads": ("detector", {"/boxes/boxes.2/Gemm": 50, "/heat/heat.1/Conv": 60}),
    "tcn_two": ("tcn", {"/2/second/Conv": 60, "/4/second/Conv": 1 / 20}),
    "encoder_two": ("encoder", {"/layers.0/linear1/MatMul": 60, "/layers.2/self_attn/Gemm": 1 / 12}),
    "decoder_three": (
        "decoder",
        {"/blocks.0/gate/MatMul": 40, "/blocks.1/out/MatMul": 1 / 10, "/MatMul": 60},
    ),
    "recognizer_two": (
        "recognizer",
        {"/depthwise2/depthwise2.0/conv/Conv": 60, "/blocks/blocks.1/fc2/MatMul": 100},
    ),
    "swin_three": (
        "swin",
        {"/stage1/stage1.0/fc2/MatMul": 80, "/merge/MatMul": 1 / 12, "/stage2/proj/MatMul": 100},
    ),
    "efficient_two": (
        "efficient",
        {"/blocks/blocks.1/depthwise/conv/Conv": 60, "/blocks/blocks.2/project/conv/Conv": 1 / 12},
    ),
    "mixer_two": ("mixer", {"/blocks/blocks.0/token2/MatMul": 60, "/blocks/blocks.2/channel2/MatMul": 80}),
}
#: Networks to layers whose output a new training made larger or smaller: producer, its readers, factor.
_RETRAINED: dict[str, list[tuple[str, list[str], float]]] = {
    "cnn": [("/2/conv/Conv", ["/3/conv/Conv"], 20), ("/5/conv/Conv", ["/6/conv/Conv"], 1 / 40)],
    "resnet": [
        ("/1/first/conv/Conv", ["/1/second/conv/Conv"], 15),
        ("/3/first/conv/Conv", ["/3/second/conv/Conv"], 1 / 30),
    ],
    "inception": [("/1/five/five.0/conv/Conv", ["/1/five/five.1/conv/Conv"], 12)],
    "mlp": [("/1/Gemm", ["/3/Gemm"], 1 / 25), ("/3/Gemm", ["/5/Gemm"], 6)],
    "tcn": [("/3/first/Conv", ["/3/second/Conv"], 1 / 50)],
    "unet": [("/join0/conv/Conv", ["/last/Conv"], 8)],
    "decoder": [("/blocks.0/up/MatMul", ["/blocks.0/down/MatMul"], 20)],
    "convnext": [("/stage2/stage2.0/norm/LayerNormalization", ["/stage2/stage2.0/fc1/MatMul"], 1 / 20)],
}


def entries() -> Iterator[Entry]:
    """All of this module."""
    yield from _single()
    for name, (network, factors) in SEVERAL.items():
        yield Entry(f"several_{name}", "several scales at once", network, partial(_several, network, factors))
    for network in ("cnn", "mobilenet", "vit", "unet", "mixer", "encoder", "swin"):
        for reach in (50.0, 200.0):
            plant = partial(_by_hand, network, reach)
            yield Entry(f"by_hand_{network}_{reach:.0f}", "one range for all tensors", network, plant)
    for network in _RETRAINED:
        yield Entry(f"stale_retrained_{network}", "stale cache", network, partial(_retrained, network))
    for network in ("resnet", "mlp", "detector", "recognizer"):
        yield Entry(f"stale_pixels_{network}", "stale cache", network, partial(_other_pixels, network))
    for network, seed in (("cnn", 1), ("vit", 2), ("tcn", 3), ("encoder", 4), ("swin", 5)):
        yield Entry(f"stale_mixed_{network}", "stale cache", network, partial(_mixed_up, network, seed))
    for network, other in (("cnn", "resnet"), ("mixer", "mobilenet")):
        yield Entry(
            f"stale_other_{network}", "cache of another model", network, partial(_other_model, network, other)
        )
    for network, count in (("cnn", 3), ("vit", 9), ("detector", 4)):
        yield Entry(
            f"missing_{network}", "tensors without a scale", network, partial(_missing, network, count)
        )


def _single() -> Iterator[Entry]:
    """One tensor of each network too wide, and one too narrow, twice."""
    for turn in range(2):
        for i, network in enumerate(LIMITS):
            factor = _WIDE[(i + 3 * turn) % 7]
            depth = _DEPTHS[(i + 2 * turn) % 7]
            plant = partial(_one, network, depth, factor, as_json=bool(i % 2))
            yield Entry(f"wide_{network}_x{factor:.0f}", "scale too wide", network, plant)
            factor = _NARROW[(i + 3 * turn) % 7]
            plant = partial(_one, network, depth, 1 / factor, as_json=not i % 2)
            yield Entry(f"narrow_{network}_by{factor:.0f}", "scale too narrow", network, plant)


def _one(network: str, depth: float, factor: float, as_json: bool) -> Planted:
    known = net(network)
    group = known.weighted[round(depth * (len(known.weighted) - 1))]
    return misscaled(known, {group: factor}, as_json=as_json)


def _several(network: str, factors: Mapping[str, float]) -> Planted:
    return misscaled(net(network), factors)


def _by_hand(network: str, reach: float) -> Planted:
    known = net(network)
    scales = dict.fromkeys(known.scales, reach / 127)
    return from_scales(known, scales, Truth(anywhere=WIDE | NARROW), as_json=True)


def _retrained(network: str) -> Planted:
    """The cache of the model before its layers changed."""
    old, model = net(network), net(network).model
    for producer, consumers, factor in _RETRAINED[network]:
        model = rescaled(model, producer, consumers, factor)
    new = calibrated(network, model)
    truth = Truth(causes=causes_of(new, old.scales, new.scales), rules=("*stale*", "*cache*"))
    return from_scales(new, old.scales, truth)


def _other_pixels(network: str) -> Planted:
    """The cache of inputs that went from 0 to 255."""
    known = net(network)
    feed = {name: 255 * array for name, array in samples(network, "calibration", CALIBRATION).items()}
    scales = scales_of(known.model, known.layout, feed)
    truth = Truth(anywhere=WIDE, rules=("*stale*", "*cache*", "*factor*", "*scale*"))
    return from_scales(known, scales, truth)


def _mixed_up(network: str, seed: int) -> Planted:
    """The names match, the values are those of other tensors."""
    known = net(network)
    names = list(known.scales)
    values = np.random.default_rng(seed).permutation(list(known.scales.values())).tolist()
    scales = dict(zip(names, values, strict=True))
    return from_scales(known, scales, Truth(causes=causes_of(known, scales), rules=("*stale*", "*cache*")))


def _other_model(network: str, other: str) -> Planted:
    """None of the names match."""
    scales = {f"other/{name}": scale for name, scale in net(other).scales.items()}
    truth = Truth("refused", words=("another model",), int8_fix=None)
    files = {"calibration.cache": cache_text(scales)}
    return planted(net(network), {"scales": "calibration.cache"}, truth, None, files=files)


def _missing(network: str, count: int) -> Planted:
    """Every so-many-th tensor has no entry: its layers stay high, and INT8 is less than it seems."""
    known = net(network)
    scales = {name: s for i, (name, s) in enumerate(known.scales.items()) if i % (len(known.scales) // count)}
    truth = Truth("warning", words=("no scale",), rules=("missing-scale",), int8_fix=None)
    return from_scales(known, scales, truth)


def outliers(network: str, producer: str, consumers: list[str], channel: int, factor: float) -> Planted:
    """A channel that sticks out between two layers, calibrated honestly."""
    model = outlier_channel(net(network).model, producer, consumers, channel, factor)
    known = calibrated(network, model)
    kinds = frozenset({"activation-outliers"})
    return from_scales(known, known.scales, Truth(causes=dict.fromkeys(consumers, kinds)))
