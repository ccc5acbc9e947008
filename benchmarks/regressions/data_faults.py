"""Faults of calibration data, FP16 overflow, noise without a culprit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from benchmarks.faults import outlier_channel
from benchmarks.regressions import judge
from benchmarks.regressions.data import denormalized, samples
from benchmarks.regressions.entry import Entry, Planted, Truth
from benchmarks.regressions.networks import CALIBRATION, calibrated, net, scales_of
from benchmarks.regressions.plant import NARROW, WIDE, from_scales, planted
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.tensors import Array

Slip = Callable[[Array], Array]
_FACTOR = ("data-factor", "data-normalization")
_SHIFT = ("data-offset", "data-normalization")


def _copies(images: Array) -> Array:
    return np.repeat(images[:1], len(images), axis=0)


def _reordered(images: Array) -> Array:
    """Channels last, reshaped to channels first instead of transposed."""
    return images.transpose(0, 2, 3, 1).reshape(images.shape)


def _noise(images: Array) -> Array:
    return np.random.default_rng(0).uniform(0, 0.05, images.shape).astype(np.float32)


#: Name to networks, what becomes of the samples, the rules that name it, and the causes that show it.
SLIPS: dict[str, tuple[tuple[str, ...], Slip, tuple[str, ...], frozenset[str]]] = {
    "times255": (("cnn", "mobilenet", "mlp", "unet", "recognizer"), lambda x: 255 * x, _FACTOR, WIDE),
    "over255": (("resnet", "tcn", "recognizer"), lambda x: x / 255, _FACTOR, NARROW),
    "times16": (("vit", "mixer", "swin"), lambda x: 16 * x, _FACTOR, WIDE),
    "not_normalized": (("inception", "detector", "efficient"), denormalized, (*_FACTOR, *_SHIFT), NARROW),
    "pixels": (("inception", "detector", "convnext"), lambda x: 255 * denormalized(x), _FACTOR, WIDE),
    "swapped": (("inception", "detector", "convnext"), lambda x: x[:, ::-1], ("data-channel-order",), NARROW),
    "layout": (("inception", "detector"), _reordered, ("data-layout",), WIDE | NARROW),
    "offset": (("cnn", "unet"), lambda x: x - 4, _SHIFT, WIDE | NARROW),
    "one_copy": (("resnet", "mixer", "recognizer"), _copies, ("data-duplicates", "data-uniform"), NARROW),
    "black": (("cnn",), lambda x: 0 * x, ("data-uniform",), NARROW),
    "noise": (("tcn", "resnet"), _noise, (*_FACTOR, *_SHIFT, "data-uniform"), NARROW),
    "two_samples": (("inception", "vit", "swin"), lambda x: x[:2], ("data-few-samples",), NARROW),
}
#: More networks, and how many dB their limit lies above what all layers together reach.
_NOISY = tuple((network, 3.0) for network in ("encoder", "decoder", "recognizer", "swin", "efficient"))


def entries() -> Iterator[Entry]:
    """All of this module."""
    for name, (networks, preprocessing_mismatch, rules, kinds) in SLIPS.items():
        for network in networks:
            plant = partial(_slipped, network, preprocessing_mismatch, rules, kinds)
            yield Entry(f"data_{name}_{network}", "calibration data", network, plant)
    for network, producer, consumer in (
        ("cnn", "/4/conv/Conv", "/5/conv/Conv"),
        ("resnet", "/3/first/conv/Conv", "/3/second/conv/Conv"),
        ("mlp", "/3/Gemm", "/5/Gemm"),
        ("vit", "/blocks/blocks.1/norm2/LayerNormalization", "/blocks/blocks.1/fc1/MatMul"),
        ("swin", "/stage2/norm2/LayerNormalization", "/stage2/fc1/MatMul"),
        ("decoder", "/blocks.1/norm2/Mul_1", "/blocks.1/gate/MatMul"),
    ):
        plant = partial(_overflow, network, producer, consumer)
        yield Entry(f"fp16_overflow_{network}", "FP16 overflow", network, plant)
    for network, extra in (("cnn", 3.0), ("mlp", 3.0), ("vit", 3.0), ("unet", 2.5), ("tcn", 3.0), *_NOISY):
        yield Entry(
            f"accumulated_{network}", "noise of all layers", network, partial(_accumulated, network, extra)
        )


def _slipped(
    network: str, preprocessing_mismatch: Slip, rules: tuple[str, ...], kinds: frozenset[str]
) -> Planted:
    known = net(network)
    feed = {
        k: preprocessing_mismatch(x).astype(np.float32)
        for k, x in samples(network, "calibration", CALIBRATION).items()
    }
    candidate = apply(known.network(scales_of(known.model, known.layout, feed)))
    int8 = {"calibrate": {"data": "calibration.npz", "method": "minmax"}}
    truth = Truth(anywhere=kinds, rules=rules)
    return planted(known, int8, truth, candidate, files={"calibration.npz": feed})


def _overflow(network: str, producer: str, consumer: str) -> Planted:
    """A channel beyond what FP16 holds, divided again by its reader."""
    model = outlier_channel(net(network).model, producer, [consumer], 3, 3e5)
    known = calibrated(network, model)
    made = from_scales(known, known.scales, Truth("refused", words=("overflow", "65504"), int8_fix=None))
    return Planted(made.model, made.inputs, made.int8, made.limits, made.truth, None, made.files)


def _accumulated(network: str, extra: float) -> Planted:
    """A limit ``extra`` dB above what all layers together reach: no layer is at fault."""
    known = net(network)
    feed, candidate = samples(network, "validation", 128), apply(known.network())
    ((output, _),) = known.limits.items()
    wanted = {output: {"sqnr_db": 0.0}}
    (reached,) = judge.scores(judge.run(known.model, feed), judge.run(candidate, feed), wanted).values()
    truth = Truth(anywhere=frozenset({"accumulated-noise"}), int8_fix=None)
    made = from_scales(known, known.scales, truth)
    limits = {output: {"sqnr_db": round(reached + extra, 1)}}
    return Planted(made.model, made.inputs, made.int8, limits, truth, candidate, made.files)
