"""Faults of weights, of outlier channels, and of Q/DQ pairs that ONNX Runtime runs as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.faults import outlier_channel, per_tensor_weights
from benchmarks.regressions.decoded import decoded
from benchmarks.regressions.entry import Entry, Planted, Truth
from benchmarks.regressions.networks import calibrated, net
from benchmarks.regressions.plant import (
    NARROW,
    WIDE,
    Change,
    changed,
    coarser,
    constant_scale,
    emptied,
    from_qdq,
    mislabelled,
    scaled,
    shifted,
    turned,
    unequal_pair,
    wild_dead_input,
)
from benchmarks.regressions.scale_faults import outliers
from pytest_int8acc.graph.network import Edge, Group

_FEEDS = "activation-outliers"
_WEIGHT_SCALE = frozenset({"weight-scale"})
#: Name to network, producer, its readers, channel and factor.
_CHANNELS: dict[str, tuple[str, str, list[str], int, float]] = {
    "cnn_x60": ("cnn", "/3/conv/Conv", ["/4/conv/Conv"], 5, 60),
    "cnn_x400": ("cnn", "/6/conv/Conv", ["/7/conv/Conv"], 9, 400),
    "resnet_x100": ("resnet", "/2/first/conv/Conv", ["/2/second/conv/Conv"], 4, 100),
    "tcn_x80": ("tcn", "/3/first/Conv", ["/3/second/Conv"], 7, 80),
    "mlp_x100": ("mlp", "/1/Gemm", ["/3/Gemm"], 11, 100),
    "mlp_x30": ("mlp", "/3/Gemm", ["/5/Gemm"], 20, 30),
    "inception_x150": ("inception", "/1/five/five.0/conv/Conv", ["/1/five/five.1/conv/Conv"], 3, 150),
    "unet_x60": ("unet", "/join0/conv/Conv", ["/last/Conv"], 2, 60),
    "detector_x100": ("detector", "/heat/heat.0/conv/Conv", ["/heat/heat.1/Conv"], 6, 100),
    "mixer_x100": (
        "mixer",
        "/blocks/blocks.1/norm2/LayerNormalization",
        ["/blocks/blocks.1/channel1/MatMul"],
        7,
        100,
    ),
    "vit_x80": ("vit", "/blocks/blocks.0/norm2/LayerNormalization", ["/blocks/blocks.0/fc1/MatMul"], 7, 80),
    "vit_x300": ("vit", "/blocks/blocks.2/norm2/LayerNormalization", ["/blocks/blocks.2/fc1/MatMul"], 9, 300),
}
#: Group to what becomes of its weight, its cause.
_WEIGHTS: dict[str, tuple[str, str, Change, frozenset[str]]] = {
    "cnn_x40": ("cnn", "/4/conv/Conv", coarser(40), _WEIGHT_SCALE),
    "resnet_x100": ("resnet", "/3/first/conv/Conv", coarser(100), _WEIGHT_SCALE),
    "mobilenet_x60": ("mobilenet", "/4/project/conv/Conv", coarser(60), _WEIGHT_SCALE),
    "vit_x50": ("vit", "/blocks/blocks.1/fc1/MatMul", coarser(50), _WEIGHT_SCALE),
    "unet_x30": ("unet", "/down2/conv/Conv", coarser(30), _WEIGHT_SCALE),
    "mlp_by6": ("mlp", "/3/Gemm", coarser(1 / 6), _WEIGHT_SCALE | NARROW),
    "inception_by8": ("inception", "/2/conv/Conv", coarser(1 / 8), _WEIGHT_SCALE | NARROW),
    "tcn_by4": ("tcn", "/3/second/Conv", coarser(1 / 4), _WEIGHT_SCALE | NARROW),
    "encoder_x60": ("encoder", "/pooler/Gemm", coarser(60), _WEIGHT_SCALE),
    "efficient_x60": ("efficient", "/blocks/blocks.2/depthwise/conv/Conv", coarser(60), _WEIGHT_SCALE),
    "decoder_by6": ("decoder", "/blocks.1/down/MatMul", coarser(1 / 6), _WEIGHT_SCALE | NARROW),
    "convnext_by8": ("convnext", "/stage1/stage1.0/fc2/MatMul", coarser(1 / 8), _WEIGHT_SCALE | NARROW),
    "swin_mislabelled": ("swin", "/merge/MatMul", mislabelled(2), _WEIGHT_SCALE),
    "recognizer_mislabelled": ("recognizer", "/head/MatMul", mislabelled(1.5), _WEIGHT_SCALE),
    "cnn_mislabelled": ("cnn", "/7/conv/Conv", mislabelled(1.6), _WEIGHT_SCALE),
    "mixer_mislabelled": ("mixer", "/blocks/blocks.1/channel2/MatMul", mislabelled(3), _WEIGHT_SCALE),
    "detector_mislabelled": ("detector", "/backbone/backbone.2/conv/Conv", mislabelled(0.4), _WEIGHT_SCALE),
}
#: Weights of as many input as output channels, whose scales are put along the wrong ones.
_TURNED = {
    "cnn": "/5/conv/Conv",
    "resnet": "/1/second/conv/Conv",
    "tcn": "/3/first/Conv",
    "mlp": "/3/Gemm",
    "vit": "/blocks/blocks.1/out/MatMul",
    "detector": "/classes/classes.0/conv/Conv",
    "encoder": "/layers.1/self_attn/Gemm",
    "decoder": "/blocks.0/out/MatMul",
    "recognizer": "/blocks/blocks.0/proj/MatMul",
    "swin": "/stage2/proj/MatMul",
}
_ZERO = frozenset({"zero-scale"})
_AXIS = frozenset({"wrong-axis", "weight-scale"})
#: What is changed, in its weight or its activation, and the causes that name it.
_Changed = tuple[str, Change, bool, frozenset[str]]
#: Faults of several kinds in one network.
_MIXED: Mapping[str, list[_Changed]] = {
    "cnn": [
        ("/3/conv/Conv", coarser(40), True, _WEIGHT_SCALE),
        ("/7/conv/Conv", scaled(50), False, WIDE),
    ],
    "vit": [
        ("/blocks/blocks.0/fc1/MatMul", scaled(1 / 12), False, NARROW),
        ("/blocks/blocks.2/out/MatMul", coarser(60), True, _WEIGHT_SCALE),
    ],
    "inception": [
        ("/2/conv/Conv", scaled(60), False, WIDE),
        ("/3/three/three.1/conv/Conv", turned, True, _AXIS),
        ("/1/five/five.1/conv/Conv", scaled(1 / 10), False, NARROW),
    ],
    "encoder": [
        ("/layers.0/linear2/MatMul", coarser(60), True, _WEIGHT_SCALE),
        ("/layers.1/self_attn/MatMul_2", scaled(1 / 12), False, NARROW),
    ],
    "decoder": [
        ("/blocks.0/down/MatMul", scaled(60), False, WIDE),
        ("/blocks.1/value/MatMul", coarser(1 / 8), True, _WEIGHT_SCALE | NARROW),
    ],
    "mobilenet": [
        ("/3/expand/conv/Conv", coarser(50), True, _WEIGHT_SCALE),
        ("/5/depthwise/conv/Conv", scaled(80), False, WIDE),
        ("/7/conv/Conv", scaled(1 / 10), False, NARROW),
    ],
}


def entries() -> Iterator[Entry]:
    """All of this module."""
    for name, arguments in _CHANNELS.items():
        yield Entry(
            f"outlier_{name}", "activation outlier channel", arguments[0], partial(outliers, *arguments)
        )
    for name, (network, group, change, kinds) in _WEIGHTS.items():
        yield Entry(
            f"weight_{name}", "weight scale", network, partial(_weight, network, group, change, kinds)
        )
    for name in ("cnn_x60", "resnet_x100", "inception_x150", "unet_x60", "detector_x100"):
        yield Entry(
            f"per_tensor_{name}", "weights per tensor", _CHANNELS[name][0], partial(_per_tensor, name)
        )
    for factor in (20.0, 100.0):
        plant = partial(_dead_input, factor)
        yield Entry(f"weight_dead_mlp_x{factor:.0f}", "weight outliers", "mlp", plant)
    for network, group in _TURNED.items():
        yield Entry(f"axis_{network}", "scales on the wrong axis", network, partial(_turned, network, group))
    yield from _zeros()
    yield from _zero_points()
    yield from _joins()
    yield from _mixed()
    for network, group, factor in (("cnn", "/6/conv/Conv", 1.5), ("vit", "/blocks/blocks.1/fc2/MatMul", 3.0)):
        plant = partial(_unequal, network, group, factor)
        yield Entry(f"unequal_pair_{network}", "Q and DQ disagree", network, plant)


def _weight(network: str, group: str, change: Change, kinds: frozenset[str]) -> Planted:
    known = net(network)
    return from_qdq(known, changed(known.network(), group, change, weight=True), Truth(causes={group: kinds}))


def _per_tensor(name: str) -> Planted:
    """One scale for weights of which a channel sticks out, in the layer that makes the outlier."""
    network, producer, consumers, channel, factor = _CHANNELS[name]
    known = calibrated(network, outlier_channel(net(network).model, producer, consumers, channel, factor))
    causes = {producer: frozenset({"weight-outliers"}), **dict.fromkeys(consumers, frozenset({_FEEDS}))}
    return from_qdq(known, per_tensor_weights(known.network(), [producer]), Truth(causes=causes))


def _dead_input(factor: float) -> Planted:
    """Columns of pixels that are 0 in every image carry the greatest weights."""
    known = net("mlp")
    model = wild_dead_input(known.model, "/1/Gemm", [0, 32, 39], factor)
    other = calibrated("mlp", model)
    return from_qdq(other, other.network(), Truth(causes={"/1/Gemm": frozenset({"weight-outliers"})}))


def _turned(network: str, group: str) -> Planted:
    known = net(network)
    truth = Truth(causes={group: _AXIS}, rules=("wrong-channel-axis",))
    return from_qdq(known, changed(known.network(), group, turned, weight=True), truth)


def _zeros() -> Iterator[Entry]:
    """Scales of 0 and next to it."""
    cases: Mapping[str, tuple[str, str, Change, bool]] = {
        "weight_zero_cnn": ("cnn", "/5/conv/Conv", emptied(range(6), 0.0), True),
        "weight_tiny_resnet": ("resnet", "/2/first/conv/Conv", emptied(range(8), 1e-40), True),
        "activation_zero_mlp": ("mlp", "/5/Gemm", constant_scale(0.0), False),
        "activation_tiny_tcn": ("tcn", "/3/first/Conv", constant_scale(1e-40), False),
        "weight_zero_swin": ("swin", "/stage2/fc1/MatMul", emptied(range(20), 0.0), True),
        "activation_tiny_recognizer": (
            "recognizer",
            "/blocks/blocks.1/fc1/MatMul",
            constant_scale(1e-40),
            False,
        ),
        "activation_half_underflow_vit": ("vit", "/blocks/blocks.0/fc1/MatMul", constant_scale(2e-8), False),
    }
    for name, (network, group, change, weight) in cases.items():
        yield Entry(
            f"zero_{name}", "zero or tiny scale", network, partial(_zero, network, group, change, weight)
        )


def _zero(network: str, group: str, change: Change, weight: bool) -> Planted:
    known = net(network)
    truth = Truth(
        causes={group: _ZERO | NARROW | _WEIGHT_SCALE}, rules=("nonpositive-scale", "fp16-scale-range")
    )
    return from_qdq(known, changed(known.network(), group, change, weight=weight), truth)


def _zero_points() -> Iterator[Entry]:
    for network, group, zero_point in (
        ("cnn", "/4/conv/Conv", 64),
        ("resnet", "/2/second/conv/Conv", 100),
        ("unet", "/join1/conv/Conv", 90),
        ("detector", "/heat/heat.0/conv/Conv", 120),
        ("mlp", "/5/Gemm", -60),
    ):
        plant = partial(_shifted, network, group, zero_point)
        yield Entry(f"zero_point_{network}", "shifted zero point", network, plant)


def _shifted(network: str, group: str, zero_point: int) -> Planted:
    known = net(network)
    truth = Truth("lint", causes={group: NARROW | {"zero-point"}}, rules=("nonzero-zero-point",))
    return from_qdq(known, changed(known.network(), group, shifted(zero_point)), truth)


def _joins() -> Iterator[Entry]:
    """Tensors that meet in an Add or a Concat with scales of their own."""
    for network, group, factor in (
        ("tcn", "/3/Add", 40.0),
        ("resnet", "/1/Add", 60.0),
        ("mobilenet", "/3/Add", 1 / 20),
    ):
        plant = partial(_residual, network, group, factor)
        yield Entry(f"join_{network}_add", "unequal scales at Add or Concat", network, plant)
    for group, factor in (("/Concat", 30.0), ("/Concat_1", 1 / 15)):
        plant = partial(_concat, group, factor)
        yield Entry(
            f"join_unet{group.replace('/', '_').lower()}", "unequal scales at Add or Concat", "unet", plant
        )
    yield Entry("join_detector_decoded", "unequal scales at Add or Concat", "detector", _decoded)


def _residual(network: str, group: str, factor: float) -> Planted:
    known = net(network)
    kinds = frozenset({"mismatched-scales", "scale-too-wide" if factor > 1 else "saturation"})
    return from_qdq(known, changed(known.network(), group, scaled(factor)), Truth(causes={group: kinds}))


def _concat(name: str, factor: float) -> Planted:
    """The inputs of a Concat quantized apart, one of them wrongly."""
    known = net("unet")
    network = known.network()
    node = next(n for n in known.model.graph.node if n.name == name)
    quantization = next(e.quantization for g in network.groups for e in g.edges if e.tensor == node.output[0])
    wrong = replace(quantization, scale=np.array(quantization.scale * factor, np.float32))
    edges = (Edge(name, 0, node.input[0], quantization), Edge(name, 1, node.input[1], wrong))
    groups = (*network.groups, Group(name, "Concat", (name,), edges))
    kinds = frozenset({"mismatched-scales", "scale-too-wide" if factor > 1 else "saturation"})
    truth = Truth(causes={name: kinds}, rules=("unequal-concat-scales",))
    return from_qdq(known, replace(network, groups=groups), truth)


def _decoded() -> Planted:
    """Boxes in pixels and probabilities joined and quantized by one scale."""
    return decoded(net("detector"))


def _mixed() -> Iterator[Entry]:
    """Faults of several kinds in one model."""
    for network, changes in _MIXED.items():
        plant = partial(_changes, network, changes)
        yield Entry(f"mixed_{network}", "faults of several kinds", network, plant)


def _changes(network: str, changes: list[_Changed]) -> Planted:
    known = net(network)
    faulty = known.network()
    for group, change, weight, _ in changes:
        faulty = changed(faulty, group, change, weight=weight)
    return from_qdq(known, faulty, Truth(causes={group: kinds for group, _, _, kinds in changes}))


def _unequal(network: str, group: str, factor: float) -> Planted:
    known = net(network)
    truth = Truth(causes={group: frozenset({"mismatched-scales"})}, rules=("unequal-pair",), int8_fix=None)
    return from_qdq(known, unequal_pair(known.network(), group, factor), truth)
