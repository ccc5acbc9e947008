"""ViT-S/16 with channels as large as trained transformers have them: FP16 overflows in its norms."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.architectures import attention, gelu
from benchmarks.builder import Builder
from pytest_int8acc.graph.model import Model
from pytest_int8acc.tensors import Array

HEADS, PATCH = 6, 16
SAMPLES = 16
#: Block to the size of two channels, of either sign, from its end on. Trained ViTs and language models have
#: such, hundreds to thousands of times the others (Sun et al., Massive Activations, 2024).
MASSIVE: Mapping[int, float] = {2: 400.0, 9: 4000.0}
#: The standard deviation of the other channels there.
_USUAL = 1.7


def vit(
    image: int = 224, width: int = 384, blocks: int = 12, massive: Mapping[int, float] = MASSIVE
) -> Model:
    """Pre-norm blocks on patches, norms in parts as PyTorch exports them below opset 17."""
    b = Builder("vit_s16", (3, image, image), seed=16)
    x = b.conv("x", 3, width, PATCH, stride=PATCH, pad=0, label="patches")
    x = b.node("Transpose", b.node("Reshape", x, b.ints(0, width, -1)), perm=[0, 2, 1])
    x = b.node("Add", x, b.random(1, (image // PATCH) ** 2, width, std=0.3), label="positions")
    held = np.zeros(width, np.float32)
    for block in range(blocks):
        b.scope = f"block{block}"
        x = b.node("Add", x, attention(b, _norm(b, x, held, "norm1"), width, HEADS), label="add1")
        y = gelu(b, b.linear(_norm(b, x, held, "norm2"), width, 4 * width, label="fc1"))
        bias = b.rng.normal(0, 0.1, width).astype(np.float32)
        if block in massive:
            bias[[block, block + width // 2]] = massive[block], -massive[block]
            held = np.where(np.abs(bias) > 1, bias, held)
        y = b.node("MatMul", y, b.random(4 * width, width, std=0.35 * (2 * width) ** -0.5), label="fc2")
        x = b.node("Add", x, b.node("Add", y, b.const(bias), label="fc2_bias"), label="add2")
    b.scope = ""
    pooled = b.node("ReduceMean", _norm(b, x, held, "norm"), axes=[1], keepdims=0, label="pool")
    return b.model(b.linear(pooled, width, 1000, label="head"))


def _norm(b: Builder, x: str, held: Array, label: str) -> str:
    """LayerNormalization whose scale makes up for what a few channels hold, as training does."""
    scale = b.rng.uniform(0.8, 1.2, held.size) * np.sqrt(1 + np.square(held / _USUAL).mean())
    scale /= np.maximum(np.abs(held / _USUAL), 1)
    gain = b.const(scale.astype(np.float32))
    mean = b.node("ReduceMean", x, label=f"{label}/mean", axes=[-1], keepdims=1)
    centred = b.node("Sub", x, mean, label=f"{label}/centre")
    square = b.node("Pow", centred, b.const(2.0), label=f"{label}/square")
    variance = b.node("ReduceMean", square, label=f"{label}/variance", axes=[-1], keepdims=1)
    root = b.node(
        "Sqrt", b.node("Add", variance, b.const(1e-6), label=f"{label}/epsilon"), label=f"{label}/root"
    )
    normed = b.node(
        "Mul", b.node("Div", centred, root, label=f"{label}/normed"), gain, label=f"{label}/scale"
    )
    return b.node("Add", normed, b.random(held.size, std=0.1), label=f"{label}/bias")


def inputs(image: int = 224) -> Array:
    """Its samples, [SAMPLES, 3, image, image] float32."""
    return np.random.default_rng(7).normal(size=(SAMPLES, 3, image, image)).astype(np.float32)
