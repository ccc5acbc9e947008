"""Small float ONNX models of many architectures, with seeded weights; activations stay of order one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
from builder import Builder, sample_feed
from onnx import TensorProto, numpy_helper

__all__ = ["OLD_RUNTIME", "ZOO", "need_opset_23", "sample_feed"]

#: Q/DQ of opset 23 runs from ONNX Runtime 1.24 on, which wants Python 3.11.
OLD_RUNTIME = [int(part) for part in onnxruntime.__version__.split(".")[:2]] < [1, 24]


def need_opset_23() -> None:
    """Skip the test where ONNX Runtime is too old."""
    if OLD_RUNTIME:
        pytest.skip("this ONNX Runtime does not run opset 23: pip install 'onnxruntime>=1.24'")


ZOO: dict[str, Callable[[], onnx.ModelProto]] = {}


def zoo(build: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    """Register ``build`` under its own name."""
    ZOO[build.__name__] = build
    return build


@zoo
def plain() -> onnx.ModelProto:
    """Conv, Relu, MaxPool, Gemm; opset 13."""
    b = Builder(13)
    x = b.relu(b.conv(b.input("x", [2, 3, 16, 16]), 3, 8))
    x = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.relu(b.conv(x, 8, 16, stride=2))
    flat = b.node("Flatten", x)
    weight = b.weight(10, 256, fan_in=256)
    y = b.node("Gemm", flat, weight, b.const(b.random(10, std=0.1)), transB=1, outputs=["logits"])
    return b.model({y: [2, 10]})


@zoo
def residual() -> onnx.ModelProto:
    """Two residual blocks with BatchNormalization and identity shortcuts."""
    b = Builder(17)
    x = b.relu(b.batchnorm(b.conv(b.input("x", [2, 3, 16, 16]), 3, 16, bias=False), 16))
    for _ in range(2):
        y = b.relu(b.batchnorm(b.conv(x, 16, 16, bias=False), 16))
        y = b.batchnorm(b.conv(y, 16, 16, bias=False, gain=0.4), 16)
        x = b.relu(b.node("Add", y, x))
    return b.model({b.head(x, 16): [2, 10]})


@zoo
def residual_downsample() -> onnx.ModelProto:
    """A residual block whose shortcut is a strided 1x1 Conv: both inputs of the Add are Convs."""
    b = Builder(17)
    x = b.relu(b.conv(b.input("x", [2, 3, 16, 16]), 3, 8))
    y = b.conv(b.relu(b.conv(x, 8, 16, stride=2)), 16, 16, gain=0.5)
    x = b.relu(b.node("Add", y, b.conv(x, 8, 16, 1, stride=2, gain=0.7)))
    return b.model({b.head(x, 16): [2, 10]})


@zoo
def mobilenet() -> onnx.ModelProto:
    """Inverted residual: 1x1 expansion, depthwise 3x3, 1x1 projection, Clip at 6."""
    b = Builder(13)
    low, high = b.const(np.zeros((), np.float32)), b.const(np.full((), 6, np.float32))
    x = b.node("Clip", b.conv(b.input("x", [2, 3, 16, 16]), 3, 16, stride=2), low, high)
    for _ in range(2):
        y = b.node("Clip", b.conv(x, 16, 32, 1), low, high)
        y = b.node("Clip", b.conv(y, 32, 32, group=32), low, high)
        x = b.node("Add", x, b.conv(y, 32, 16, 1, gain=0.4))
    return b.model({b.head(x, 16): [2, 10]})


@zoo
def grouped() -> onnx.ModelProto:
    """Grouped Conv, 4 channels per group, dilated."""
    b = Builder(17)
    x = b.relu(b.conv(b.input("x", [2, 3, 16, 16]), 3, 16))
    x = b.relu(b.conv(x, 16, 32, group=4, dilation=2))
    return b.model({b.head(x, 32): [2, 10]})


@zoo
def grouped3() -> onnx.ModelProto:
    """Grouped Conv, 3 channels per group: TensorRT has no INT8 kernel for it."""
    b = Builder(17)
    x = b.relu(b.conv(b.input("x", [2, 3, 16, 16]), 3, 12))
    x = b.relu(b.conv(x, 12, 12, group=4))
    return b.model({b.head(x, 12): [2, 10]})


@zoo
def inception() -> onnx.ModelProto:
    """Branches joined by Concat; one branch's result is also read by another Conv."""
    b = Builder(17)
    x = b.relu(b.conv(b.input("x", [2, 3, 16, 16]), 3, 8))
    one = b.relu(b.conv(x, 8, 8, 1))
    three = b.relu(b.conv(one, 8, 8))
    pool = b.node("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    joined = b.node("Concat", one, three, pool, axis=1)
    x = b.relu(b.conv(joined, 24, 16))
    return b.model({b.head(x, 16): [2, 10]})


@zoo
def spp() -> onnx.ModelProto:
    """Spatial pyramid pooling: a chain of MaxPools, all joined by Concat."""
    b = Builder(13)
    x = b.relu(b.conv(b.input("x", [2, 3, 16, 16]), 3, 8))
    levels = [x]
    for _ in range(3):
        levels.append(b.node("MaxPool", levels[-1], kernel_shape=[5, 5], pads=[2] * 4, strides=[1, 1]))
    x = b.relu(b.conv(b.node("Concat", *levels, axis=1), 32, 16, 1))
    return b.model({b.head(x, 16): [2, 10]})


@zoo
def unet() -> onnx.ModelProto:
    """Encoder, ConvTranspose decoder, Concat skip connection."""
    b = Builder(17)
    skip = b.relu(b.conv(b.input("x", [2, 3, 16, 16]), 3, 8))
    deep = b.relu(b.conv(skip, 8, 16, stride=2))
    weight, bias = b.weight(16, 8, 2, 2, fan_in=16), b.const(b.random(8, std=0.1))
    up = b.node("ConvTranspose", deep, weight, bias, kernel_shape=[2, 2], strides=[2, 2])
    x = b.relu(b.conv(b.node("Concat", b.relu(up), skip, axis=1), 16, 8))
    return b.model({b.conv(x, 8, 4, 1): [2, 4, 16, 16]})


@zoo
def yolo() -> onnx.ModelProto:
    """Feature pyramid with nearest Resize and two outputs of different size."""
    b = Builder(17)
    fine = b.relu(b.conv(b.input("images", [2, 3, 32, 32]), 3, 8, stride=2))
    coarse = b.relu(b.conv(fine, 8, 16, stride=2))
    scales = b.const(np.array([1, 1, 2, 2], np.float32))
    lateral = b.conv(coarse, 16, 8, 1)
    up = b.node(
        "Resize",
        lateral,
        "",
        scales,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    merged = b.relu(b.conv(b.node("Add", up, fine), 8, 8))
    small = b.node("Sigmoid", b.conv(merged, 8, 6, 1), outputs=["small"])
    large = b.node("Sigmoid", b.conv(coarse, 16, 6, 1), outputs=["large"])
    return b.model({small: [2, 6, 16, 16], large: [2, 6, 8, 8]})


def attend(b: Builder, x: str, batch: int, length: int, width: int, heads: int) -> str:
    """Multi-head self-attention on [batch, length, width], without its residual."""
    split = b.ints(batch, length, heads, width // heads)
    query, key, value = (b.node("Reshape", b.linear(x, width, width), split) for _ in range(3))
    query, value = (b.node("Transpose", t, perm=[0, 2, 1, 3]) for t in (query, value))
    key = b.node("Transpose", key, perm=[0, 2, 3, 1])
    scale = b.const(np.full((), (width // heads) ** -0.5, np.float32))
    weights = b.node("Softmax", b.node("Mul", b.node("MatMul", query, key), scale), axis=-1)
    mixed = b.node("Transpose", b.node("MatMul", weights, value), perm=[0, 2, 1, 3])
    return b.linear(b.node("Reshape", mixed, b.ints(batch, length, width)), width, width)


def gelu(b: Builder, x: str) -> str:
    """GELU as exporters wrote it before opset 20."""
    root, one, half = (b.const(np.full((), v, np.float32)) for v in (2**0.5, 1.0, 0.5))
    gate = b.node("Add", b.node("Erf", b.node("Div", x, root)), one)
    return b.node("Mul", b.node("Mul", x, gate), half)


def vit(opset: int, activation: Callable[[Builder, str], str]) -> onnx.ModelProto:
    """Patch embedding, position, one transformer block, head."""
    b = Builder(opset)
    patches = b.conv(b.input("x", [2, 3, 16, 16]), 3, 32, 5, stride=4)
    x = b.node("Transpose", b.node("Reshape", patches, b.ints(2, 32, 16)), perm=[0, 2, 1])
    x = b.node("Add", x, b.const(b.random(1, 16, 32, std=0.2)))
    x = b.node("Add", x, attend(b, b.layernorm(x, 32), 2, 16, 32, 4))
    hidden = activation(b, b.linear(b.layernorm(x, 32), 32, 64))
    x = b.layernorm(b.node("Add", x, b.linear(hidden, 64, 32)), 32)
    first = b.node("Gather", x, b.const(np.array(0, np.int64)), axis=1)
    return b.model({b.node("Gemm", first, b.weight(32, 10, fan_in=32), outputs=["logits"]): [2, 10]})


@zoo
def attention() -> onnx.ModelProto:
    """Self-attention after LayerNormalization, opset 17."""
    b = Builder(17)
    x = b.input("x", [2, 16, 32])
    y = b.node("Add", x, attend(b, b.layernorm(x, 32), 2, 16, 32, 4), outputs=["y"])
    return b.model({y: [2, 16, 32]})


@zoo
def vit_erf() -> onnx.ModelProto:
    """A vision transformer with GELU spelled with Erf, opset 17."""
    return vit(17, gelu)


@zoo
def vit_gelu() -> onnx.ModelProto:
    """A vision transformer with the Gelu operator, opset 20."""
    return vit(20, lambda b, x: b.node("Gelu", x))


@zoo
def mlp() -> onnx.ModelProto:
    """Gemm with transB, then MatMul whose constant is on the left."""
    b = Builder(13)
    x = b.input("x", [16, 32])
    bias = b.const(b.random(24, std=0.1))
    x = b.relu(b.node("Gemm", x, b.weight(24, 32, fan_in=32), bias, transB=1, alpha=0.9, beta=1.1))
    return b.model({b.node("MatMul", b.weight(8, 16, fan_in=16), x, outputs=["y"]): [8, 24]})


@zoo
def dynamic() -> onnx.ModelProto:
    """Batch, height and width are symbolic; a Resize to a size computed from Shape."""
    b = Builder(17)
    x = b.relu(b.conv(b.input("x", ["N", 3, "H", "W"]), 3, 8))
    low = b.relu(b.conv(x, 8, 8, stride=2))
    size = b.node("Shape", x)
    up = b.node("Resize", low, "", "", size, mode="linear", coordinate_transformation_mode="half_pixel")
    y = b.conv(b.node("Add", up, x), 8, 4, 1)
    return b.model({y: ["N", 4, "H", "W"]})


@zoo
def conv1d() -> onnx.ModelProto:
    """Conv over one axis."""
    b = Builder(17)
    x = b.relu(b.conv(b.input("x", [2, 4, 32]), 4, 8, rank=1, stride=2))
    return b.model({b.conv(x, 8, 8, rank=1): [2, 8, 16]})


@zoo
def conv3d() -> onnx.ModelProto:
    """Conv over three axes."""
    b = Builder(17)
    x = b.relu(b.conv(b.input("x", [2, 4, 8, 8, 8]), 4, 8, rank=3, stride=2))
    return b.model({b.conv(x, 8, 8, rank=3): [2, 8, 4, 4, 4]})


@zoo
def tied() -> onnx.ModelProto:
    """One weight tensor read by two Convs, and one bias."""
    b = Builder(17)
    x = b.relu(b.conv(b.input("x", [2, 3, 16, 16]), 3, 8))
    weight, bias = b.weight(8, 8, 3, 3, fan_in=72), b.const(b.random(8, std=0.1))
    for _ in range(2):
        x = b.relu(b.node("Conv", x, weight, bias, pads=[1, 1, 1, 1]))
    return b.model({b.head(x, 8): [2, 10]})


@zoo
def opset21() -> onnx.ModelProto:
    """Residual block and GroupNormalization, opset 21."""
    b = Builder(21)
    x = b.conv(b.input("x", [2, 3, 16, 16]), 3, 16)
    scale = b.const(b.rng.uniform(0.8, 1.2, 16).astype(np.float32))
    x = b.relu(b.node("GroupNormalization", x, scale, b.const(b.random(16, std=0.1)), num_groups=4))
    x = b.relu(b.node("Add", b.conv(x, 16, 16, gain=0.5), x))
    return b.model({b.head(x, 16): [2, 10]})


@zoo
def opset23() -> onnx.ModelProto:
    """Convs and an MLP head with Gelu, opset 23."""
    b = Builder(23)
    x = b.node("Gelu", b.conv(b.input("x", [2, 3, 16, 16]), 3, 16, stride=2), approximate="tanh")
    x = b.node("HardSwish", b.conv(x, 16, 16, stride=2))
    return b.model({b.head(x, 16): [2, 10]})


@zoo
def conditional() -> onnx.ModelProto:
    """An If whose branches capture a tensor of the outer graph and hold a Conv each."""
    b = Builder(17)
    x = b.relu(b.conv(b.input("x", [2, 3, 16, 16]), 3, 8))
    flag = b.input("flag", [], TensorProto.BOOL)
    branches = {}
    for branch in ("then", "else"):
        inner = Builder(17, prefix=f"{branch}_")
        branches[f"{branch}_branch"] = inner.graph({inner.conv(x, 8, 8): [2, 8, 16, 16]}, branch)
    x = b.relu(b.node("If", flag, **branches))
    return b.model({b.head(x, 8): [2, 10]})


@zoo
def weight_path() -> onnx.ModelProto:
    """Weights that reach their readers through Constant, Transpose and Identity."""
    b = Builder(17)
    value = numpy_helper.from_array(b.random(8, 3, 3, 3, std=0.27), "value")
    first = b.node("Constant", value=value)
    x = b.relu(b.node("Conv", b.input("x", [2, 3, 16, 16]), first, pads=[1, 1, 1, 1]))
    second = b.node("Identity", b.weight(8, 8, 3, 3, fan_in=72))
    x = b.relu(b.node("Conv", x, second, pads=[1, 1, 1, 1]))
    pooled = b.node("Flatten", b.node("GlobalAveragePool", x))
    third = b.node("Transpose", b.weight(10, 8, fan_in=8), perm=[1, 0])
    return b.model({b.node("MatMul", pooled, third, outputs=["logits"]): [2, 10]})


@zoo
def silu() -> onnx.ModelProto:
    """Conv followed by Sigmoid times itself."""
    b = Builder(17)
    x = b.input("x", [2, 3, 16, 16])
    for cin, cout in ((3, 8), (8, 16)):
        x = b.conv(x, cin, cout, stride=2)
        x = b.node("Mul", x, b.node("Sigmoid", x))
    return b.model({b.head(x, 16): [2, 10]})


@zoo
def unnamed() -> onnx.ModelProto:
    """No node has a name."""
    b = Builder(17, named=False)
    x = b.relu(b.conv(b.input("x", [2, 3, 16, 16]), 3, 8))
    x = b.relu(b.node("Add", b.conv(x, 8, 8, gain=0.5), x))
    return b.model({b.head(x, 8): [2, 10]})


@zoo
def embedding() -> onnx.ModelProto:
    """Integer input, Gather from a table, MatMul with the table's transpose."""
    b = Builder(17)
    table = b.weight(8, 16, fan_in=2)
    x = b.node("Gather", table, b.input("tokens", [2, 6], TensorProto.INT64))
    x = b.layernorm(b.linear(x, 16, 16), 16)
    logits = b.node("MatMul", x, b.node("Transpose", table, perm=[1, 0]), outputs=["logits"])
    return b.model({logits: [2, 6, 8]})


@zoo
def layernorm_parts() -> onnx.ModelProto:
    """LayerNormalization as written before opset 17, a gated linear unit by Split, a Pad; opset 13."""
    b = Builder(13)
    x = b.linear(b.input("x", [2, 6, 16]), 16, 16)
    centered = b.node("Sub", x, b.node("ReduceMean", x, axes=[-1]))
    two, epsilon = b.const(np.full((), 2, np.float32)), b.const(np.full((), 1e-5, np.float32))
    variance = b.node("ReduceMean", b.node("Pow", centered, two), axes=[-1])
    x = b.node("Div", centered, b.node("Sqrt", b.node("Add", variance, epsilon)))
    x = b.linear(x, 16, 32)
    value = b.node("Split", x, outputs=["value", "gate"], axis=-1)
    x = b.node("Mul", value, b.node("Sigmoid", "gate"))
    x = b.node("Pad", x, b.ints(0, 1, 0, 0, 1, 0), b.const(np.zeros((), np.float32)))
    return b.model({b.linear(x, 16, 8): [2, 8, 8]})


@zoo
def shape_math() -> onnx.ModelProto:
    """Dynamic length; the attention's scale and the positions are computed from Shape."""
    b = Builder(17)
    x = b.input("x", ["N", "L", 16])
    length = b.node("Gather", b.node("Shape", x), b.const(np.array(1, np.int64)))
    zero, one = b.const(np.array(0, np.int64)), b.const(np.array(1, np.int64))
    steps = b.node("Cast", b.node("Range", zero, length, one), to=TensorProto.FLOAT)
    position = b.node("Sin", b.node("Mul", steps, b.const(np.full((), 0.3, np.float32))))
    x = b.node("Add", x, b.node("Unsqueeze", position, b.ints(0, 2)))
    width = b.node("Gather", b.node("Shape", x), b.const(np.array(2, np.int64)))
    root = b.node("Sqrt", b.node("Cast", width, to=TensorProto.FLOAT))
    key = b.node("Transpose", b.linear(x, 16, 16), perm=[0, 2, 1])
    scores = b.node("Softmax", b.node("Div", b.node("MatMul", b.linear(x, 16, 16), key), root), axis=-1)
    return b.model({b.node("MatMul", scores, b.linear(x, 16, 16), outputs=["y"]): ["N", "L", 16]})
