"""Large networks in the shape of well-known ones, with seeded random weights.

Widths are cut so that one sample takes 5 to 100 ms on a laptop's CPU; depth and layout are those of the
originals, since the search sees layers, not widths.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.builder import Builder
from pytest_int8acc.graph.model import Model

Shape = tuple[int, int, int]
IMAGE: Shape = (3, 96, 96)


def resnet18() -> Model:
    """Four stages of two basic blocks; strided 1x1 shortcuts; 21 weighted layers."""
    b = Builder("resnet18", IMAGE, seed=18)
    x, cin = b.conv_relu("x", 3, 48, 5, stride=2, label="stem"), 48
    for stage, width in enumerate((48, 96, 144, 192)):
        for block in range(2):
            b.scope = f"stage{stage}.{block}"
            stride = 2 if block == 0 and stage > 0 else 1
            y = b.conv_relu(x, cin, width, stride=stride, label="conv1")
            y = b.conv(y, width, width, gain=0.5, label="conv2")
            short = b.conv(x, cin, width, 1, stride=stride, gain=0.7, label="short") if stride > 1 else x
            x, cin = b.relu(b.node("Add", y, short, label="add")), width
    b.scope = ""
    return b.model(b.head(x, cin))


def resnet50(
    image: Shape = IMAGE, widths: Sequence[int] = (32, 56, 88, 128), stem: int = 32, stem_stride: int = 2
) -> Model:
    """Stages of 3, 4, 6 and 3 bottlenecks; 54 weighted layers."""
    b = Builder("resnet50", image, seed=50)
    x, cin = b.conv_relu("x", 3, stem, 5, stride=stem_stride, label="stem"), stem
    for stage, (blocks, width) in enumerate(zip((3, 4, 6, 3), widths, strict=True)):
        for block in range(blocks):
            b.scope = f"stage{stage}.{block}"
            stride = 2 if block == 0 and stage > 0 else 1
            y = b.conv_relu(x, cin, width, 1, label="reduce")
            y = b.conv_relu(y, width, width, stride=stride, label="conv")
            y = b.conv(y, width, 4 * width, 1, gain=0.4, label="expand")
            if block == 0:
                x = b.conv(x, cin, 4 * width, 1, stride=stride, gain=0.7, label="short")
            x, cin = b.relu(b.node("Add", y, x, label="add")), 4 * width
    b.scope = ""
    return b.model(b.head(x, cin))


def mobilenetv2(image: Shape = IMAGE) -> Model:
    """Inverted residuals in the table of the paper, Clip at 6; 53 weighted layers."""
    b = Builder("mobilenetv2", image, seed=2)
    low, high = b.const(0.0), b.const(6.0)
    x, cin = b.node("Clip", b.conv("x", 3, 24, stride=2, label="stem"), low, high), 24
    table = [(1, 24, 1, 1), (6, 32, 2, 1), (6, 40, 3, 2), (6, 64, 4, 2), (6, 80, 3, 1), (6, 128, 3, 2)]
    for stage, (expansion, cout, blocks, first_stride) in enumerate([*table, (6, 160, 1, 1)]):
        for block in range(blocks):
            b.scope = f"stage{stage}.{block}"
            stride, wide, y = first_stride if block == 0 else 1, cin * expansion, x
            if expansion > 1:
                y = b.node("Clip", b.conv(y, cin, wide, 1, label="expand"), low, high)
            y = b.conv(y, wide, wide, stride=stride, group=wide, label="depthwise")
            y = b.conv(b.node("Clip", y, low, high), wide, cout, 1, gain=0.6, label="project")
            x = b.node("Add", x, y, label="add") if stride == 1 and cin == cout else y
            cin = cout
    b.scope = ""
    x = b.node("Clip", b.conv(x, cin, 256, 1, label="last"), low, high)
    return b.model(b.head(x, 256))


def vit(name: str, blocks: int, width: int, heads: int, patch: int, seed: int, image: Shape = IMAGE) -> Model:
    """Pre-norm transformer on patches, mean over them: eight groups per block and two more."""
    b = Builder(name, image, seed=seed)
    length = (image[1] // patch) ** 2
    x = b.conv("x", 3, width, patch, stride=patch, pad=0, label="patches")
    x = b.node("Reshape", x, b.ints(0, width, -1))
    x = b.node("Transpose", x, perm=[0, 2, 1])
    x = b.node("Add", x, b.random(1, length, width, std=0.3))
    for block in range(blocks):
        b.scope = f"block{block}"
        x = b.node("Add", x, attention(b, b.norm(x, width, label="norm1"), width, heads))
        y = b.linear(b.norm(x, width, label="norm2"), width, 4 * width, label="fc1")
        x = b.node("Add", x, b.linear(gelu(b, y), 4 * width, width, gain=0.5, label="fc2"))
    b.scope = ""
    pooled = b.node("ReduceMean", b.norm(x, width, label="norm"), axes=[1], keepdims=0)
    return b.model(b.linear(pooled, width, 100, label="head"))


def attention(b: Builder, x: str, width: int, heads: int) -> str:
    """Self-attention, with the projection behind it."""
    split = b.ints(0, 0, heads, width // heads)
    parts = [b.linear(x, width, width, label=label) for label in ("query", "key", "value")]
    query, key, value = (b.node("Reshape", part, split) for part in parts)
    query, value = (b.node("Transpose", t, perm=[0, 2, 1, 3]) for t in (query, value))
    key = b.node("Transpose", key, perm=[0, 2, 3, 1])
    scores = b.node("Mul", b.node("MatMul", query, key, label="qk"), b.const((width // heads) ** -0.5))
    mixed = b.node("MatMul", b.node("Softmax", scores, axis=-1), value, label="av")
    joined = b.node("Reshape", b.node("Transpose", mixed, perm=[0, 2, 1, 3]), b.ints(0, 0, width))
    return b.linear(joined, width, width, gain=0.5, label="out")


def gelu(b: Builder, x: str) -> str:
    """GELU by Erf."""
    gate = b.node("Add", b.node("Erf", b.node("Div", x, b.const(2**0.5))), b.const(1.0))
    return b.node("Mul", b.node("Mul", x, gate), b.const(0.5))


def yolo() -> Model:
    """Backbone of three levels, feature pyramid up and down, a box and a class head per level: 6 outputs."""
    b = Builder("yolo", IMAGE, seed=5)
    x, cin, levels = b.conv_relu("x", 3, 16, stride=2, label="stem"), 16, []
    for stage, width in enumerate((32, 64, 96)):
        b.scope = f"backbone{stage}"
        x = b.conv_relu(x, cin, width, stride=2 if stage else 1, label="down")
        x, cin = _csp(b, x, width, 2), width
        levels.append((x, width))
    (fine, n0), (middle, n1), (coarse, n2) = levels
    b.scope = "up1"
    up1 = _joined(b, _upsampled(b, b.conv_relu(coarse, n2, n1, 1, label="lateral")), middle, n1)
    b.scope = "up0"
    up0 = _joined(b, _upsampled(b, b.conv_relu(up1, n1, n0, 1, label="lateral")), fine, n0)
    b.scope = "down1"
    down1 = _joined(b, b.conv_relu(up0, n0, n1, stride=2, label="stride"), up1, n1)
    b.scope = "down2"
    down2 = _joined(b, b.conv_relu(down1, n1, n2, stride=2, label="stride"), coarse, n2)
    outputs = []
    for level, (features, width) in enumerate([(up0, n0), (down1, n1), (down2, n2)]):
        for kind, channels in (("box", 16), ("class", 20)):
            b.scope = f"{kind}{level}"
            y = b.conv_relu(features, width, 32, label="conv1")
            outputs.append(b.conv(b.conv_relu(y, 32, 32, label="conv2"), 32, channels, 1, label="conv3"))
    return b.model(*outputs)


def _csp(b: Builder, x: str, width: int, depth: int) -> str:
    """Half of the channels through residual blocks, then all joined by a 1x1 convolution."""
    half, scope = width // 2, b.scope
    side = b.conv_relu(x, width, half, 1, label="side")
    y = b.conv_relu(x, width, half, 1, label="main")
    for block in range(depth):
        b.scope = f"{scope}.{block}"
        z = b.conv(b.conv_relu(y, half, half, label="conv1"), half, half, gain=0.5, label="conv2")
        y = b.node("Add", y, z, label="add")
    b.scope = scope
    return b.conv_relu(b.node("Concat", y, side, axis=1), 2 * half, width, 1, label="join")


def _joined(b: Builder, x: str, y: str, width: int) -> str:
    """Two tensors of ``width`` channels in one, through one block."""
    return _csp(b, b.conv_relu(b.node("Concat", x, y, axis=1), 2 * width, width, 1, label="fuse"), width, 1)


def _upsampled(b: Builder, x: str) -> str:
    scales = b.const(np.array([1, 1, 2, 2], np.float32))
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return b.node("Resize", x, "", scales, **how)


def unet() -> Model:
    """Four levels of two convolutions down and up again, joined by Concat; an image comes out."""
    b = Builder("unet", IMAGE, seed=7)
    x, cin, skips = "x", 3, []
    for level, width in enumerate((16, 32, 48, 64)):
        b.scope = f"down{level}"
        x = b.conv_relu(x, cin, width, label="conv1")
        x, cin = b.conv_relu(x, width, width, label="conv2"), width
        skips.append((x, width))
        if level < 3:
            x = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    for level in (2, 1, 0):
        b.scope, (skip, width) = f"up{level}", skips[level]
        weight = b.random(cin, width, 2, 2, std=(2 / cin) ** 0.5)
        bias = b.random(width, std=0.1)
        x = b.relu(b.node("ConvTranspose", x, weight, bias, label="up", strides=[2, 2]))
        x = b.conv_relu(b.node("Concat", x, skip, axis=1), 2 * width, width, label="conv1")
        x, cin = b.conv_relu(x, width, width, label="conv2"), width
    b.scope = ""
    x = b.conv_relu(x, cin, 16, label="last")
    return b.model(b.conv(x, 16, 4, 1, label="mask"))


def cancelling() -> Model:
    """Two convolutions of one tensor with nearly opposite weights, added: their errors cancel."""
    b = Builder("cancelling", IMAGE, seed=11)
    x = b.conv_relu("x", 3, 24, stride=2, label="stem")
    x = b.conv_relu(x, 24, 24, stride=2, label="conv1")
    weight = (b.rng.standard_normal((24, 24, 3, 3)) * (2 / 216) ** 0.5).astype(np.float32)
    other = (-weight + 0.2 * weight.std() * b.rng.standard_normal(weight.shape)).astype(np.float32)
    pads = {"pads": [1, 1, 1, 1]}
    y = b.node("Conv", x, b.const(weight), label="left", **pads)
    z = b.node("Conv", x, b.const(other), label="right", **pads)
    x = b.relu(b.node("Add", b.node("Add", y, z, label="difference"), x, label="add"))
    x = b.conv_relu(x, 24, 48, stride=2, label="conv2")
    x = b.conv_relu(x, 48, 48, label="conv3")
    x = b.conv_relu(x, 48, 48, label="conv4")
    return b.model(b.head(x, 48))


def vit_s() -> Model:
    """A transformer of nine blocks; 74 groups."""
    return vit("vit_s", blocks=9, width=192, heads=6, patch=8, seed=3)


def vit_tiny(blocks: int) -> Model:
    """A narrow transformer for growth tables; 2 + 8 groups per block."""
    return vit(f"vit_tiny{blocks}", blocks=blocks, width=64, heads=4, patch=12, seed=blocks)


def csp_tiny(blocks: int) -> Model:
    """A narrow convolutional network for growth tables: SiLU, Add and Concat; 1 + 8 groups per block."""
    b = Builder(f"csp_tiny{blocks}", IMAGE, seed=blocks)
    width = 8
    x = b.conv_relu("x", 3, width, 3, stride=8, label="stem")
    for block in range(blocks):
        b.scope = f"block{block}"
        side = _silu(b, b.conv(x, width, width, 1, label="side"))
        y = _silu(b, b.conv(x, width, width, 1, label="main"))
        for part in range(2):
            z = _silu(b, b.conv(y, width, width, label=f"conv{part}1"))
            z = b.conv(z, width, width, gain=0.5, label=f"conv{part}2")
            y = b.relu(b.node("Add", y, z, label=f"add{part}"))
        x = b.conv_relu(b.node("Concat", y, side, axis=1), 2 * width, width, 1, label="join")
    b.scope = ""
    return b.model(b.head(x, width))


def _silu(b: Builder, x: str) -> str:
    return b.node("Mul", x, b.node("Sigmoid", x))
