"""The cases of the suite: which network, which trouble, which limits.

Limits were set by hand, once, between what the planted network reaches and what it reaches without its
culprits; nothing about a search went into them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import architectures
from benchmarks.case import Case, Limits, assemble
from benchmarks.faults import outlier_channel
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import Model
from pytest_int8acc.scores.criteria import OutputLimits
from pytest_int8acc.tensors import Feed

MODELS = Path(__file__).parent / "models"
CASES: dict[str, Callable[[], Case]] = {}


def case(trouble: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Register what is decorated under its own name."""

    def register(build: Callable[[], Case]) -> Callable[[], Case]:
        CASES[build.__name__] = lambda: replace(build(), name=build.__name__, trouble=trouble)
        return build

    return register


def trained(name: str) -> Model:
    """One of the networks that train.py made: cnn, resnet, mobilenet or vit."""
    return load_model(MODELS / f"{name}.onnx")


def digits(part: str, count: int) -> Feed:
    """The first ``count`` images of ``calibration`` or ``validation``, [count, 1, 8, 8] in 0 to 1."""
    with np.load(MODELS / "digits.npz") as data:
        return {"image": data[part][:count].astype(np.float32) / 16}


def noise(count: int, seed: int = 0) -> Feed:
    """Random images whose contrast varies from sample to sample."""
    rng = np.random.default_rng(seed)
    contrast = np.exp(0.3 * rng.standard_normal((count, 1, 1, 1)))
    return {"x": (contrast * rng.standard_normal((count, *architectures.IMAGE))).astype(np.float32)}


def small(model: Model, limits: dict[str, float], **planted: Any) -> Case:
    """A trained network judged on 128 digits, its scales from others."""
    calibration = digits("calibration", 128)
    return assemble(model, digits("validation", 128), limits, calibration=calibration, **planted)


def large(model: Model, limits: Limits, count: int = 32, **planted: Any) -> Case:
    """A random network judged on noise, its scales from other noise."""
    return assemble(model, noise(count), limits, calibration=noise(16, seed=1), **planted)


@case("1 scale x50")
def cnn_misscaled() -> Case:
    """One of eleven layers reads its input in steps 50 times too wide."""
    return small(trained("cnn"), {"sqnr_db": 20}, factors={"/5/conv/Conv": 50})


@case("interacting pair")
def cnn_interacting() -> Case:
    """Two layers, each of which passes alone."""
    factors = {"/3/conv/Conv": 12, "/8/conv/Conv": 10}
    return small(trained("cnn"), {"sqnr_db": 28.5}, factors=factors)


@case("2 inputs saturated (/8)")
def cnn_saturated() -> Case:
    """Two inputs are cut at an eighth of their range."""
    factors = {"/2/conv/Conv": 1 / 8, "/4/conv/Conv": 1 / 8}
    return small(trained("cnn"), {"top1_agreement": 0.99}, factors=factors)


@case("weights per tensor, outlier channel")
def resnet_per_tensor() -> Case:
    """A channel sticks out of one layer's weights, which have one scale, and of the next one's input."""
    first, second = "/2/first/conv/Conv", "/2/second/conv/Conv"
    model = outlier_channel(trained("resnet"), first, [second], 4, 60)
    return small(model, {"cosine": 0.9995}, per_tensor=[first], outliers=[second])


@case("2 culprits masked by a third")
def resnet_masked() -> Case:
    """The first layer reads zeros only, so nothing shows of two later faults."""
    factors = {"/0/conv/Conv": 1000, "/2/second/conv/Conv": 60, "/3/second/conv/Conv": 60}
    limits = {"top1_agreement": 0.99, "sqnr_db": 20}
    return small(trained("resnet"), limits, factors=factors)


@case("3 scales x50, x1000, /8")
def mobilenet_misscaled() -> Case:
    """x50, x1000 and /8."""
    factors = {"/2/depthwise/conv/Conv": 50, "/4/project/conv/Conv": 1000, "/6/depthwise/conv/Conv": 1 / 8}
    return small(trained("mobilenet"), {"sqnr_db": 20}, factors=factors)


@case("6 scales x30 to x80")
def mobilenet_six() -> Case:
    """Six layers of 23."""
    factors = {f"/{i}/project/conv/Conv": 20.0 + 10 * i for i in range(1, 7)}
    return small(trained("mobilenet"), {"cosine": 0.998}, factors=factors)


@case("masked culprits")
def mobilenet_masked() -> Case:
    """The third block's expansion reads zeros only; two later faults hide behind it."""
    factors = {"/3/expand/conv/Conv": 1000, "/5/depthwise/conv/Conv": 150, "/7/conv/Conv": 300}
    limits = {"top1_agreement": 0.99}
    return small(trained("mobilenet"), limits, factors=factors)


@case("2 activation outlier channels")
def vit_outliers() -> Case:
    """Outlier channels behind two LayerNormalizations."""
    model = trained("vit")
    readers = [f"/blocks/blocks.{i}/fc1/MatMul" for i in (0, 2)]
    for i, reader in zip((0, 2), readers, strict=True):
        model = outlier_channel(model, f"/blocks/blocks.{i}/norm2/LayerNormalization", [reader], 7 + i, 80)
    return small(model, {"cosine": 0.9995}, outliers=readers)


@case("accumulated noise")
def vit_accumulated() -> Case:
    """No layer at fault: the noise of all adds up."""
    return small(trained("vit"), {"sqnr_db": 40})


@case("cancelling branches")
def cancelling() -> Case:
    """Freeing one of two parallel convolutions makes it worse."""
    factors = {"left": 100, "conv3": 60}
    return large(architectures.cancelling(), {"sqnr_db": 20}, 64, factors=factors, blame=False)


@case("3 scales x50, /8, x1000")
def resnet18_misscaled() -> Case:
    """x50, x1000 and /8."""
    factors = {"stage0.1/conv2": 50, "stage1.1/conv2": 1 / 8, "stage3.0/conv2": 1000}
    return large(architectures.resnet18(), {"sqnr_db": 25}, factors=factors)


@case("6 scales")
def resnet50_misscaled() -> Case:
    """Six layers of 70."""
    wide = {"stage0.1/conv": 80, "stage1.2/expand": 50, "stage2.1/conv": 80}
    factors = wide | {"stage2.4/expand": 1 / 8, "stage3.0/conv": 100, "stage3.2/conv": 1 / 8}
    return large(architectures.resnet50(), {"sqnr_db": 27}, factors=factors)


@case("accumulated noise")
def resnet50_accumulated() -> Case:
    """No layer at fault: the noise of all adds up."""
    return large(architectures.resnet50(), {"sqnr_db": 37})


@case("3 weights per tensor, outlier channel")
def mobilenetv2_per_tensor() -> Case:
    """Three depthwise convolutions with one scale for all channels, one of which sticks out."""
    groups = ["stage1.1/depthwise", "stage3.2/depthwise", "stage4.1/depthwise"]
    model = architectures.mobilenetv2()
    for channel, group in enumerate(groups):
        model = outlier_channel(model, group, (), 7 * channel, 40)
    return large(model, {"sqnr_db": 26}, per_tensor=groups)


@case("3 activation outlier channels")
def vit_s_outliers() -> Case:
    """Outlier channels before two fc1 and before one block's query, key and value."""
    model = architectures.vit_s()
    qkv = [f"block4/{name}" for name in ("query", "key", "value")]
    model = outlier_channel(model, "block2/norm2", ["block2/fc1"], 5, 80)
    model = outlier_channel(model, "block6/norm2", ["block6/fc1"], 9, 80)
    model = outlier_channel(model, "block4/norm1", qkv, 3, 80)
    outliers = ["block2/fc1", "block6/fc1", *qkv]
    return large(model, {"cosine": 0.9993}, outliers=outliers)


@case("parallel heads, 6 outputs")
def yolo_heads() -> Case:
    """Parallel heads: trouble in two of six, and in the neck."""
    factors = {"class0/conv2": 50, "box2/conv3": 40, "up1.0/conv2": 50}
    limits = [OutputLimits("box*", limits={"sqnr_db": 20}), OutputLimits("class*", limits={"cosine": 0.99})]
    return large(architectures.yolo(), limits, factors=factors)


@case("interacting pair")
def unet_interacting() -> Case:
    """Two layers, each of which passes alone."""
    factors = {"down3/conv2": 20, "up1/conv2": 5}
    return large(architectures.unet(), {"sqnr_db": 23.8}, factors=factors)


@case("3 scales of 298")
def vit300_misscaled() -> Case:
    """Three layers of 298."""
    factors = {"block5/fc2": 60, "block17/out": 100, "block30/fc2": 1 / 8}
    return large(architectures.vit_tiny(37), {"cosine": 0.9988}, factors=factors)
