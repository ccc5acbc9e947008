"""Faults planted by somebody who knew only the list of operators, not what the plugin can find.

Detectors and decoders, attention, gated blocks, sums of unlike branches. Each entry has a Q/DQ model that
differs from an honest INT8 form of the same network by one fault, and the limit lies 6 dB below what the
honest form reaches, so that full INT8 exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from benchmarks.regressions.entry import Entry, Planted, Truth
from benchmarks.regressions.ground import Ground, Place, Writer, edited, trained
from benchmarks.regressions.plant import Change, constant_scale, shifted, unsigned
from pytest_int8acc.graph.network import Network, Quantization
from pytest_int8acc.tensors import Array

_WIDE = frozenset({"scale-too-wide"})
_NARROW = frozenset({"saturation"})
_ZERO_POINT = frozenset({"zero-point"})
_CONSTANT = frozenset({"weight-scale"})
_AXIS = frozenset({"wrong-axis"})
_UNLIKE = frozenset({"mismatched-scales"})
_IDLE = frozenset({"weight-outliers"})
_BIAS = frozenset({"int8-bias", "weight-scale"})
_SHIFT = frozenset({"bias-shift"})
_MASKED = frozenset({"masked-range", "weight-outliers"})
_UNREAD = frozenset({"activation-outliers", "ignored-channel"})
_HEALTHY = Truth("healthy", int8_fix=None)


def entries() -> Iterator[Entry]:
    """All of this module."""
    for name, kind, network, plant in (
        ("anchors", "constant along the wrong axis", "boxes", _anchors),
        ("resize", "range clipped by a method", "segmenter", _resize),
        ("pyramid", "unlike parts of a Concat", "pyramid", _pyramid),
        ("relative", "mask value in a constant", "relative attention", _relative),
        ("excite", "scale set by a rule", "squeeze and excitation", _excite),
        ("silu", "zero point", "efficient", _silu),
        ("upscale", "floor on scales", "decoder of images", _upscale),
        ("mixing", "weights of inputs that are 0", "token mixer", _mixing),
        ("linear", "scale of another input", "linear attention", _linear),
        ("branches", "zero point", "branches", _branches),
        ("boxbias", "bias in INT8", "detector", _box_bias),
        ("mean", "bias shift", "normed convolutions", _mean),
        ("register", "token that readers ignore", "tokens", _register),
        ("diffused", "weights written anew", "unet", _diffused),
        ("flat", "scale set by a rule", "flat attention", _flat),
        ("slopes", "constant with a stale scale", "leaky convolutions", _slopes),
        ("healthy_register", "healthy", "tokens", _healthy_register),
        ("healthy_unet", "healthy", "unet", _healthy_unet),
    ):
        yield Entry(f"strange2_{name}", kind, network, plant)


def _noise(seed: int, *shape: int) -> Array:
    return np.random.default_rng([seed, 2]).standard_normal(shape).astype(np.float32)


def _grounded(
    name: str, w: Writer, result: str, shape: tuple[int, ...], places: Iterable[Place] = ()
) -> Ground:
    """The network of a writer, with one input ``x`` that is normally distributed."""
    model = w.model({"x": (TensorProto.FLOAT, ["n", *shape])}, result)
    feeds = [{"x": _noise(10 * w.seed + part, 128, *shape)} for part in (1, 2)]
    return Ground(name, model, feeds[0], feeds[1], tuple(places))


def _input(known: Ground, node: str, index: int) -> str:
    return str(known.model.index.nodes[node].input[index])


def _truth(known: Ground, node: str, index: int, kinds: frozenset[str]) -> Truth:
    return Truth(causes={node: kinds}, tensors={node: frozenset({_input(known, node, index)})})


def _percentile(known: Ground, tensor: str, percent: float) -> float:
    """The magnitude that so many percent of the calibration values do not exceed."""
    return float(np.percentile(np.abs(known.values[tensor]), percent))


def _rounded(values: Array, scale: Array | float, axis: int | None = None) -> Change:
    """A constant quantized to these scales, whatever it was before."""
    scales = np.asarray(scale, np.float32)
    fresh = Quantization(scales, np.zeros(scales.shape, np.int8), axis)
    return _given(replace(fresh, values=fresh.quantize(values)))


def _given(made: Quantization) -> Change:
    return lambda old: made


def _largest(values: Array, axis: int) -> Array:
    """Scales along an axis, from the greatest magnitude."""
    others = tuple(i for i in range(values.ndim) if i != axis)
    return np.asarray(np.abs(values).max(others) / 127, np.float32)


def _convolution(w: Writer, name: str, x: str, inputs: int, outputs: int, gain: float = 1.0) -> str:
    """A 1x1 convolution."""
    std = gain * inputs**-0.5
    names = (w.random(f"{name}.weight", outputs, inputs, 1, 1, std=std), w.random(f"{name}.bias", outputs))
    return w.node("Conv", f"{name}/Conv", x, *names)


def _anchors() -> Planted:
    """A detector multiplies exponents by the widths and heights of anchors from 4 to 320 pixels.

    Planted: the anchors have one scale for widths and one for heights, so that small anchors get codes of 2
    to 4. The honest form has a scale for each anchor, whose width and height are alike.
    """
    w = Writer(201)
    x = w.node("Relu", "stem/Relu", w.conv("stem", "x", 3, 16))
    x = w.node("Relu", "neck/Relu", w.conv("neck", x, 16, 24))
    x = _convolution(w, "sizes", x, 24, 12, gain=0.3)
    shape = w.const("shape", np.array([0, 6, 2, 8, 8], np.int64))
    x = w.node("Exp", "sizes/Exp", w.node("Reshape", "sizes/Reshape", x, shape))
    sizes = [(4, 6), (9, 7), (14, 20), (43, 30), (90, 121), (320, 250)]
    anchors = np.array(sizes, np.float32).reshape(1, 6, 2, 1, 1)
    x = w.node("Mul", "anchors/Mul", x, w.const("anchors", anchors))
    x = w.node("Log", "sizes/Log", x)
    known = _grounded("boxes", w, x, (3, 8, 8), [Place("anchors/Mul", 1, 1)])
    faulty = edited(known.network(), ("anchors/Mul", 1), _rounded(anchors, _largest(anchors, 2), 2))
    return known.planted(_truth(known, "anchors/Mul", 1, _AXIS), faulty=faulty)


def _resize() -> Planted:
    """A segmentation head whose coarse logits are made larger by a linear Resize.

    Planted: the range of the logits is their 92nd percentile, as a method for ranges of weights would have
    it. The honest form has the greatest logit.
    """
    w = Writer(202)
    x = w.node("Relu", "stem/Relu", w.conv("stem", "x", 3, 16))
    x = w.node("MaxPool", "stem/MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = w.node("LeakyRelu", "body/LeakyRelu", w.conv("body", x, 16, 32), alpha=0.1)
    x = _convolution(w, "classes", x, 32, 8)
    scales = w.const("scales", np.array([1, 1, 2, 2], np.float32))
    x = w.node("Resize", "fine/Resize", x, "", scales, mode="linear")
    known = _grounded("segmenter", w, x, (3, 16, 16), [Place("fine/Resize", 0)])
    reach = _percentile(known, _input(known, "fine/Resize", 0), 92)
    faulty = edited(known.network(), ("fine/Resize", 0), constant_scale(reach / 127))
    return known.planted(_truth(known, "fine/Resize", 0, _NARROW), faulty=faulty)


def _pyramid() -> Planted:
    """Deep features, repeated by a Resize, and fine ones meet at a Concat with a group normalization behind.

    Planted: both parts have the scale of the deep ones, which are sixty times as large; the fine ones
    get codes of at most 2. The honest form has a scale for each; the normalization makes them alike.
    """
    w = Writer(203)
    x = w.node("Relu", "stem/Relu", w.conv("stem", "x", 3, 16))
    fine = _convolution(w, "lateral", x, 16, 16, gain=0.3)
    deep = w.node("AveragePool", "deep/AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    deep = _convolution(w, "deep", deep, 16, 16, gain=40.0)
    scales = w.const("scales", np.array([1, 1, 2, 2], np.float32))
    deep = w.node("Resize", "deep/Resize", deep, "", scales, mode="nearest")
    x = w.node("Concat", "joined/Concat", deep, fine, axis=1)
    x = w.node("Reshape", "groups/Reshape", x, w.const("groups", np.array([0, 4, -1], np.int64)))
    ones, zeros = w.const("ones", np.ones(4, np.float32)), w.const("zeros", np.zeros(4, np.float32))
    x = w.node("InstanceNormalization", "groups/InstanceNormalization", x, ones, zeros)
    x = w.node("Reshape", "back/Reshape", x, w.const("back", np.array([0, 32, 8, 8], np.int64)))
    x = w.conv("out", x, 32, 8)
    places = [Place("joined/Concat", 0), Place("joined/Concat", 1)]
    known = _grounded("pyramid", w, x, (3, 8, 8), places)
    scale = known.amax(deep) / 127
    faulty = edited(known.network(), ("joined/Concat", 1), constant_scale(scale))
    return known.planted(_truth(known, "joined/Concat", 1, _UNLIKE | _WIDE), faulty=faulty)


def _attention(
    w: Writer, tokens: int, width: int, constant: Array | None = None, sharpness: float = 1.0
) -> str:
    """One head of attention; ``constant`` is added to the scores."""
    q, k, v = (w.linear(name, "x", width, width) for name in ("query", "key", "value"))
    keys = w.node("Transpose", "key/Transpose", k, perm=[0, 2, 1])
    scores = w.node("MatMul", "scores/MatMul", q, keys)
    root = np.array(sharpness * width**-0.5, np.float32)
    scores = w.node("Mul", "scores/Mul", scores, w.const("root", root))
    if constant is not None:
        scores = w.node("Add", "scores/Add", scores, w.const("relative", constant))
    scores = w.node("Softmax", "scores/Softmax", scores, axis=-1)
    return w.linear("out", w.node("MatMul", "mixed/MatMul", scores, v), width, width)


def _relative() -> Planted:
    """Causal attention whose mask and biases of relative positions were folded to one constant of an Add.

    Planted: the constant has the range of the mask value, so that all biases become 0. The honest form has
    a range of 18: the mask value saturates, and after the Softmax this is as good as 0.
    """
    w, tokens = Writer(204), 12
    biases = w.rng.uniform(-3, 3, 2 * tokens).astype(np.float32)
    distance = np.arange(tokens)[:, None] - np.arange(tokens)[None]
    constant = np.where(distance < 0, np.float32(-1e4), biases[distance])[None].astype(np.float32)
    x = _attention(w, tokens, 24, constant)
    known = _grounded("relative attention", w, x, (tokens, 24), [Place("scores/Add", 1)])
    honest = edited(known.network(), ("scores/Add", 1), _rounded(constant, 18 / 127))
    truth = _truth(known, "scores/Add", 1, _MASKED)
    return known.planted(truth, honest=honest, faulty=known.network())


def _excite() -> Planted:
    """The gates of squeeze-and-excitation, between 0 and 1, and what they multiply are both quantized.

    Planted: the gates have the scale 1/255 of uint8 at codes of int8, so that those above a half saturate.
    The honest form has their own.
    """
    w = Writer(205)
    x = w.conv("stem", "x", 3, 16)
    x = w.node("Mul", "stem/Mul", x, w.node("Sigmoid", "stem/Sigmoid", x))
    x = w.conv("body", x, 16, 32)
    gates = w.node("ReduceMean", "squeeze/ReduceMean", x, axes=[2, 3], keepdims=1)
    gates = w.node("Relu", "squeeze/Relu", _convolution(w, "squeeze", gates, 32, 8, gain=5.0))
    gates = w.node("Sigmoid", "excite/Sigmoid", _convolution(w, "excite", gates, 8, 32, gain=2.0))
    x = w.node("Mul", "gated/Mul", x, gates)
    x = _convolution(w, "project", x, 32, 12)
    places = [Place("gated/Mul", 0), Place("gated/Mul", 1)]
    known = _grounded("squeeze and excitation", w, x, (3, 8, 8), places)
    faulty = edited(known.network(), ("gated/Mul", 1), constant_scale(1 / 255))
    return known.planted(_truth(known, "gated/Mul", 1, _NARROW), faulty=faulty)


def _silu() -> Planted:
    """A depthwise convolution reads what a SiLU gives, of which some is a little below 0.

    Planted: it is quantized as if a Relu gave it, as uint8 from 0 on. The honest form is symmetric.
    """
    node = "/blocks/blocks.1/depthwise/conv/Conv"
    known = trained("efficient")
    faulty = edited(known.network(), (node, 0), unsigned(127 / 255, 0))
    return known.planted(_truth(known, node, 0, _ZERO_POINT), faulty=faulty)


def _upscale() -> Planted:
    """A ConvTranspose whose output channels differ a hundredfold; instance normalization makes them alike.

    Planted: a floor on its scales, so that weights of small channels become 0 or keep a code or two. The
    honest form has the scale of each output channel.
    """
    w, width = Writer(207), 16
    x = w.node("Relu", "stem/Relu", w.conv("stem", "x", 3, width))
    weight = (w.rng.standard_normal((width, width, 2, 2)) / width**0.5).astype(np.float32)
    weight *= (10.0 ** np.linspace(-2, 0, width)).astype(np.float32)[:, None, None]
    x = w.node(
        "ConvTranspose",
        "up/ConvTranspose",
        x,
        w.const("up.weight", weight),
        kernel_shape=[2, 2],
        strides=[2, 2],
    )
    gamma = w.const("gamma", w.rng.uniform(0.5, 1.5, width).astype(np.float32))
    x = w.node("InstanceNormalization", "up/InstanceNormalization", x, gamma, w.random("beta", width))
    x = w.conv("last", w.node("Relu", "up/Relu", x), width, 4)
    known = _grounded("decoder of images", w, x, (3, 8, 8))
    floor = np.maximum(_largest(weight, 1), np.float32(2**-6))
    faulty = edited(known.network(), ("up/ConvTranspose", 1), _rounded(weight, floor, 1))
    return known.planted(_truth(known, "up/ConvTranspose", 1, _CONSTANT), faulty=faulty)


def _mixing() -> Planted:
    """Weights on the left of a MatMul mix 16 tokens, the last four of which are padding and always 0.

    Planted: the columns for padding, which nothing uses, are far larger and take the scale of each row. The
    honest form has the scale of the other columns.
    """
    w, tokens, width = Writer(208), 16, 24
    present = (np.arange(tokens) < 12).astype(np.float32)[None, :, None]
    x = w.node("Mul", "present/Mul", "x", w.const("present", present))
    weight = (w.rng.standard_normal((tokens, tokens)) / tokens**0.5).astype(np.float32)
    weight[:, 12:] *= 70
    mixed = w.node("MatMul", "tokens/MatMul", w.const("tokens.weight", weight), x)
    mixed = w.node("Tanh", "tokens/Tanh", mixed)
    x = w.node("Add", "sum/Add", x, mixed)
    x = w.node("Relu", "channels/Relu", w.linear("channels", x, width, width))
    x = w.head(w.node("ReduceMean", "mean/ReduceMean", x, axes=[1], keepdims=0), width)
    known = _grounded("token mixer", w, x, (tokens, width))
    used = _rounded(weight, _largest(weight[:, :12], 0), 0)
    honest = edited(known.network(), ("tokens/MatMul", 0), used)
    truth = _truth(known, "tokens/MatMul", 0, _IDLE)
    return known.planted(truth, honest=honest, faulty=known.network())


def _linear() -> Planted:
    """Attention without Softmax: a product of three is divided by the sum of its weights.

    Planted: the divisor has the scale of the dividend, which is far smaller, and saturates. The honest form
    has a scale for each.
    """
    w, tokens, width = Writer(209), 16, 24
    little = w.const("little", np.array(0.1, np.float32))
    parts = {}
    for name in ("query", "key"):
        positive = w.node("Relu", f"{name}/Relu", w.linear(name, "x", width, width))
        parts[name] = w.node("Add", f"{name}/positive", positive, little)
    tenth = w.const("tenth", np.array(0.1, np.float32))
    v = w.node("Mul", "value/Mul", w.linear("value", "x", width, width), tenth)
    keys = w.node("Transpose", "key/Transpose", parts["key"], perm=[0, 2, 1])
    pairs = w.node("MatMul", "pairs/MatMul", keys, v)
    above = w.node("MatMul", "above/MatMul", parts["query"], pairs)
    mean = w.node("ReduceMean", "key/ReduceMean", keys, axes=[2], keepdims=1)
    total = w.node("Mul", "key/total", mean, w.const("count", np.array(tokens, np.float32)))
    below = w.node("MatMul", "below/MatMul", parts["query"], total)
    x = w.node("Div", "ratio/Div", above, below)
    x = w.linear("out", x, width, width)
    known = _grounded(
        "linear attention", w, x, (tokens, width), [Place("ratio/Div", 0), Place("ratio/Div", 1)]
    )
    faulty = edited(known.network(), ("ratio/Div", 1), constant_scale(known.amax(above) / 127))
    return known.planted(_truth(known, "ratio/Div", 1, _NARROW | _UNLIKE), faulty=faulty)


def _branches() -> Planted:
    """A sum of a HardSwish, which is mostly above 0, and a Tanh; both are quantized.

    Planted: the HardSwish has a range from its least to its greatest value, and the zero point of uint8 at
    codes of int8, so that the upper half is cut off. The honest form is symmetric.
    """
    w = Writer(210)
    x = w.node("Relu", "stem/Relu", w.conv("stem", "x", 3, 16))
    left = w.node("HardSwish", "left/HardSwish", w.conv("left", x, 16, 16))
    right = w.node("Tanh", "right/Tanh", w.conv("right", x, 16, 16))
    x = w.node("Add", "branches/Add", left, right)
    x = w.node("Flatten", "flat/Flatten", w.node("GlobalAveragePool", "pool/GlobalAveragePool", x))
    places = [Place("branches/Add", 0), Place("branches/Add", 1)]
    known = _grounded("branches", w, w.head(x, 16), (3, 8, 8), places)
    values = known.values[left]
    scale = float(values.max() - values.min()) / 255
    zero_point = round(-float(values.min()) / scale)
    faulty = edited(known.network(), ("branches/Add", 0), constant_scale(scale))
    faulty = edited(faulty, ("branches/Add", 0), shifted(zero_point))
    return known.planted(_truth(known, "branches/Add", 0, _ZERO_POINT | _NARROW), faulty=faulty)


def _product_bias(known: Ground, network: Network, node: str, dtype: type[np.signedinteger]) -> Change:
    """A bias at the scales of the products of inputs and weights, in codes of ``dtype``."""
    first, second = (
        next(e.quantization for e in network.edges if (e.node, e.index) == (node, i)) for i in (0, 1)
    )
    scale = (first.scale * second.scale).astype(np.float32)
    bias = known.model.constants()[_input(known, node, 2)]
    limits = np.iinfo(dtype)
    codes = np.clip(np.rint(bias / scale), -limits.max, limits.max).astype(dtype)
    return _given(Quantization(scale, np.zeros(scale.shape, dtype), 0 if scale.ndim else None, codes))


def _box_bias() -> Planted:
    """A head of a trained detector has its bias in Q/DQ, at the scales of the products.

    Planted: the codes are int8 where they ought to be int32, so that nearly all saturate. The honest form has
    them in int32.
    """
    node = "/boxes/boxes.0/conv/Conv"
    known = replace(trained("detector"), places=(Place("/boxes/boxes.0/conv/Conv", 2),))
    network = known.network()
    honest, faulty = (
        edited(network, (node, 2), _product_bias(known, network, node, dtype))
        for dtype in (np.int32, np.int8)
    )
    return known.planted(_truth(known, node, 2, _BIAS), honest=honest, faulty=faulty)


def _mean() -> Planted:
    """Convolutions with BatchNormalization, the mean of which is quantized.

    Planted: all codes of one mean are too high by 20, as by a zero point that was forgotten. The honest form
    has the right codes.
    """
    w, width = Writer(212), 16
    x, inputs = "x", 3
    for i in range(2):
        x = w.conv(f"block{i}", x, inputs, width, bias=False)
        parts = [
            w.const(f"block{i}.{name}", array.astype(np.float32))
            for name, array in (
                ("scale", w.rng.uniform(0.5, 1.5, width)),
                ("shift", 0.2 * w.rng.standard_normal(width)),
                ("mean", 0.7 * w.rng.standard_normal(width)),
                ("variance", w.rng.uniform(0.5, 2.0, width)),
            )
        ]
        x = w.node("BatchNormalization", f"block{i}/BatchNormalization", x, *parts)
        x, inputs = w.node("HardSwish", f"block{i}/HardSwish", x), width
    x = w.node("Flatten", "flat/Flatten", w.node("GlobalAveragePool", "pool/GlobalAveragePool", x))
    norms = [f"block{i}/BatchNormalization" for i in range(2)]
    places = [Place(norm, 3) for norm in norms]
    known = _grounded("normed convolutions", w, w.head(x, width), (3, 8, 8), places)

    def higher(old: Quantization) -> Quantization:
        assert old.values is not None
        return replace(old, values=np.clip(old.values.astype(np.int16) + 20, -128, 127).astype(np.int8))

    faulty = edited(known.network(), (norms[1], 3), higher)
    return known.planted(_truth(known, norms[1], 3, _SHIFT), faulty=faulty)


def _tokens() -> tuple[Ground, Network]:
    """Patches and a register token 60 times as large; a Slice takes the patches, another one the register.

    Returned with the form in which the Slice of the patches has the range of the patches.
    """
    w, tokens, width = Writer(213), 15, 24
    patches = w.linear("patches", "x", width, width)
    mean = w.node("ReduceMean", "register/ReduceMean", "x", axes=[1], keepdims=1)
    weight = w.random("register.weight", width, width, std=60 * (tokens / width) ** 0.5)
    register = w.node("MatMul", "register/MatMul", mean, weight)
    x = w.node("Concat", "tokens/Concat", register, patches, axis=1)
    zero, one, end = (w.const(f"at{i}", np.array([i], np.int64)) for i in (0, 1, tokens + 1))
    register = w.node("Slice", "register/Slice", x, zero, one, one)
    register = w.node(
        "LayerNormalization",
        "register/LayerNormalization",
        register,
        w.const("gamma", np.full(width, 0.3, np.float32)),
        w.random("beta", width),
        axis=-1,
    )
    patches = w.node("Slice", "patches/Slice", x, one, end, one)
    patches = w.node("Relu", "up/Relu", w.linear("up", patches, width, 2 * width))
    patches = w.linear("down", patches, 2 * width, width)
    x = w.node("Add", "sum/Add", patches, register)
    places = [Place("patches/Slice", 0), Place("register/Slice", 0)]
    known = _grounded("tokens", w, w.linear("end", x, width, 10), (tokens, width), places)
    read = known.values["patches/Slice:0"]
    scale = float(np.abs(read).max()) / 127
    return known, edited(known.network(), ("patches/Slice", 0), constant_scale(scale))


def _register() -> Planted:
    """Planted: the Slice of the patches has the range of all tokens, which the register takes.

    The honest form has the range of what the Slice lets through.
    """
    known, honest = _tokens()
    truth = _truth(known, "patches/Slice", 0, _UNREAD)
    return known.planted(truth, honest=honest, faulty=known.network())


def _healthy_register() -> Planted:
    """A range far narrower than the tensor's values, all of which that are cut off nobody reads."""
    known, honest = _tokens()
    return known.planted(_HEALTHY, honest=honest, faulty=honest)


def _diffuse(known: Ground, network: Network) -> Network:
    """All weights rounded so that errors of rounding do not add up along a filter."""
    for edge in network.edges:
        old = edge.quantization
        if old.values is None or old.axis is None or edge.index != 1:
            continue
        weight = known.model.constants()[edge.tensor]
        rows = np.moveaxis(weight, old.axis, 0).reshape(len(old.scale), -1) / old.scale[:, None]
        codes, left = np.zeros(rows.shape, np.int8), np.zeros(len(rows), np.float32)
        for i in range(rows.shape[1]):
            codes[:, i] = np.clip(np.rint(rows[:, i] + left), -127, 127)
            left += rows[:, i] - codes[:, i]
        shape = [len(rows), *np.delete(weight.shape, old.axis)]
        made = replace(old, values=np.moveaxis(codes.reshape(shape), 0, old.axis).copy())
        network = edited(network, (edge.node, edge.index), _given(made))
    return network


def _diffused() -> Planted:
    """A trained network that repairs images; a quantizer wrote its weights anew, not to the nearest codes.

    Planted: it clips what a convolution behind a Concat reads to the 90th percentile. The honest form has
    the same weights and the whole range.
    """
    known, node = trained("unet"), "/join1/conv/Conv"
    honest = _diffuse(known, known.network())
    reach = _percentile(known, _input(known, node, 0), 90)
    faulty = edited(honest, (node, 0), constant_scale(reach / 127))
    return known.planted(_truth(known, node, 0, _NARROW), honest=honest, faulty=faulty)


def _healthy_unet() -> Planted:
    """Weights that are not the nearest codes, ranges that are powers of two, unlike inputs of a Concat."""
    places = [Place(node, i) for node in ("/Concat", "/Concat_1") for i in (0, 1)]
    known = replace(trained("unet"), places=tuple(places))
    network = _diffuse(known, known.network())
    for edge in network.edges:
        if edge.quantization.values is None:
            power = constant_scale(float(2.0 ** np.ceil(np.log2(edge.quantization.scale))))
            network = edited(network, (edge.node, edge.index), power)
    return known.planted(_HEALTHY, honest=network, faulty=network)


def _flat() -> Planted:
    """Attention over 64 tokens that is nearly flat: no probability is above a tenth.

    Planted: the probabilities have a range of 1, by the rule that a Softmax gives at most 1. The honest form
    has their own range.
    """
    w, tokens, width = Writer(215), 64, 16
    x = _attention(w, tokens, width, sharpness=0.25)
    known = _grounded("flat attention", w, x, (tokens, width))
    faulty = edited(known.network(), ("mixed/MatMul", 0), constant_scale(1 / 127))
    return known.planted(_truth(known, "mixed/MatMul", 0, _WIDE), faulty=faulty)


def _slopes() -> Planted:
    """Convolutions with PRelu, the slopes of which are quantized.

    Planted: the scale of one layer's slopes is that of the value from which training starts, 0.25, and all
    larger ones saturate. The honest form has the scale of the slopes as they are.
    """
    w = Writer(216)
    x, inputs = "x", 3
    for i, width in enumerate((16, 16, 24)):
        slopes = w.rng.uniform(-0.6, 1.2, (width, 1, 1)).astype(np.float32)
        x = w.conv(f"block{i}", x, inputs, width)
        x, inputs = w.node("PRelu", f"block{i}/PRelu", x, w.const(f"block{i}.slope", slopes)), width
    known = _grounded(
        "leaky convolutions",
        w,
        _convolution(w, "last", x, 24, 4),
        (3, 8, 8),
        [Place(f"block{i}/PRelu", 1) for i in range(3)],
    )
    slopes = known.model.constants()["block1.slope"]
    faulty = edited(known.network(), ("block1/PRelu", 1), _rounded(slopes, 0.25 / 127))
    return known.planted(_truth(known, "block1/PRelu", 1, _CONSTANT), faulty=faulty)
