"""Faults planted by somebody who knew only the list of operators, and neither the tool nor what it finds.

Each entry is a random network whose readers are rare elsewhere in the corpus. An honest INT8 form is known,
the faulty one differs from it by one fault, and the limit lies 6 dB below what the honest form reaches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from benchmarks.regressions.entry import Entry, Planted, Truth
from benchmarks.regressions.ground import Ground, Place, Writer, edited
from benchmarks.regressions.plant import NARROW, Change, coarser, constant_scale
from pytest_int8acc.graph.layout import quantize_weight
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.graph.network import Quantization
from pytest_int8acc.tensors import Array, Feed

_AXIS = frozenset({"wrong-axis"})
_BIAS = frozenset({"int8-bias"})
_CONSTANT = frozenset({"weight-scale"})
_IDLE = frozenset({"weight-outliers"})
_IGNORED = frozenset({"ignored-channel"})
_SHARED = frozenset({"mismatched-scales", "scale-too-wide"})
_HEALTHY = Truth("healthy", int8_fix=None)
_SAMPLES = 128
_FLOAT = TensorProto.FLOAT


def entries() -> Iterator[Entry]:
    """All of this module."""
    for name, network, plant in (
        ("lstm_gates", "bidirectional LSTM", _lstm_gates),
        ("gru_state", "GRU with a state", _gru_state),
        ("rnn_biases", "RNN", _rnn_biases),
        ("pooled_masks", "attention pooling", _pooled_masks),
        ("sharp_attention", "attention", _sharp_attention),
        ("rare_words", "embedding", _rare_words),
        ("norm_beta", "LayerNormalization", _norm_beta),
        ("prelu_slopes", "PRelu", _prelu_slopes),
        ("positions_concat", "features and positions", _positions_concat),
        ("spare_slice", "two heads in one", _spare_slice),
        ("padded_pool", "padded MaxPool", _padded_pool),
        ("depthwise_floor", "depthwise 1-D convolution", _depthwise_floor),
        ("grouped_upsampler", "grouped ConvTranspose", _grouped_upsampler),
        ("equalized", "equalized perceptron", _equalized),
        ("norm_means", "BatchNormalization", _norm_means),
        ("gated_clip", "gated convolution", _gated_clip),
    ):
        yield Entry(f"strange1_{name}", "written by a stranger", network, plant)
    yield Entry("strange1_healthy_table", "healthy", "embedding", _healthy_table)
    yield Entry("strange1_healthy_clip", "healthy", "grouped 1-D convolution", _healthy_clip)


def _noise(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal((_SAMPLES, *shape)).astype(np.float32)


def _feeds(seed: int, *shape: int, times: Array | float = 1.0) -> tuple[Feed, Feed]:
    """Calibration and validation samples of an input called ``x``."""
    first, second = ({"x": (_noise(seed + part, *shape) * times).astype(np.float32)} for part in (1, 2))
    return first, second


def _truth(group: str, kinds: frozenset[str], tensor: str) -> Truth:
    return Truth(causes={group: kinds}, tensors={group: frozenset({tensor})})


def _at(known: Ground, node: str, index: int, change: Change, kinds: frozenset[str]) -> Planted:
    """One input of one node quantized otherwise."""
    tensor = str(known.model.index.nodes[node].input[index])
    faulty = edited(known.network(), (node, index), change)
    return known.planted(_truth(node, kinds, tensor), faulty=faulty)


def _anew(weight: Array, scale: Array | float, axis: int | None = None) -> Quantization:
    """A constant with this scale; what lies outside its range is cut off."""
    array = np.array(scale, np.float32)
    fresh = Quantization(array, np.zeros(array.shape, np.int8), axis)
    return replace(fresh, values=fresh.quantize(weight))


def _conv1(
    w: Writer,
    name: str,
    x: str,
    inputs: int,
    outputs: int,
    *,
    group: int = 1,
    weight: Array | None = None,
    bias: bool = True,
    dilation: int = 1,
) -> str:
    """A one-dimensional convolution with three taps."""
    if weight is None:
        weight = w.rng.standard_normal((outputs, inputs // group, 3)) * (group / (3 * inputs)) ** 0.5
    names = [w.const(f"{name}.weight", weight.astype(np.float32))]
    if bias:
        names.append(w.random(f"{name}.bias", outputs))
    pads = [dilation, dilation]
    return w.node("Conv", f"{name}/Conv", x, *names, pads=pads, dilations=[dilation], group=group)


def _pooled_head(w: Writer, x: str, width: int) -> str:
    """The mean over the last axis, and a Gemm."""
    x = w.node("ReduceMean", "mean/ReduceMean", x, axes=[2], keepdims=0)
    return w.head(x, width)


def _axes(w: Writer, name: str, *values: int) -> str:
    return w.const(name, np.array(values, np.int64))


def _normed(w: Writer, name: str, x: str, channels: int, groups: int | None = None) -> str:
    """InstanceNormalization; with ``groups``, the two Reshapes around it that make a GroupNormalization."""
    parts = groups or channels
    ones = w.const(f"{name}.scale", np.ones(parts, np.float32))
    zeros = w.const(f"{name}.bias", np.zeros(parts, np.float32))
    if groups is None:
        return w.node("InstanceNormalization", f"{name}/InstanceNormalization", x, ones, zeros)
    x = w.node("Reshape", f"{name}/Reshape", x, _axes(w, f"{name}.parts", 0, groups, -1))
    x = w.node("InstanceNormalization", f"{name}/InstanceNormalization", x, ones, zeros)
    return w.node("Reshape", f"{name}/Reshape_1", x, _axes(w, f"{name}.channels", 0, channels, -1))


def _lstm_gates() -> Planted:
    """The output gate's weights are 40 times those of the other gates, and all share one scale.

    The honest form has a scale for each row of a gate, so that no gate knows how large another is.
    """
    w, width, hidden = Writer(101), 20, 16
    x = w.node("Transpose", "x/Transpose", "x", perm=[1, 0, 2])
    weight = w.rng.standard_normal((2, 4 * hidden, width)) / width**0.5
    weight[:, hidden : 2 * hidden] *= 40
    names = [w.const("W", weight.astype(np.float32))]
    names += [w.random("R", 2, 4 * hidden, hidden, std=hidden**-0.5), w.random("B", 2, 8 * hidden)]
    w.node("LSTM", "steps/LSTM", x, *names, outputs=3, hidden_size=hidden, direction="bidirectional")
    y = w.node("Transpose", "last/Transpose", "steps/LSTM:1", perm=[1, 0, 2])
    y = w.node("Reshape", "last/Reshape", y, _axes(w, "flat", 0, 2 * hidden))
    model = w.model({"x": (_FLOAT, ["n", 12, width])}, w.head(y, 2 * hidden))
    places = (Place("steps/LSTM", 0), Place("steps/LSTM", 1, 1), Place("steps/LSTM", 2, 1))
    known = Ground("lstm_gates", model, *_feeds(101, 12, width), places)
    kinds = frozenset({"mismatched-scales", "weight-outliers"})
    return _at(known, "steps/LSTM", 1, lambda old: quantize_weight(old.dequantize(), None), kinds)


def _gru_state() -> Planted:
    """The initial state of a GRU, between -1 and 1, has the scale of its steps, which are raw readings.

    The honest form has a scale for each of the two.
    """
    w, width, hidden = Writer(102), 16, 24
    state = w.node("Tanh", "state/Tanh", w.linear("state", "about", 12, hidden))
    state = w.node("Unsqueeze", "state/Unsqueeze", state, _axes(w, "front", 0))
    x = w.node("Transpose", "x/Transpose", "x", perm=[1, 0, 2])
    names = [w.random("W", 1, 3 * hidden, width, std=width**-0.5 / 12)]
    names.append(w.random("R", 1, 3 * hidden, hidden, std=hidden**-0.5))
    bias = 0.1 * w.rng.standard_normal((1, 6 * hidden))
    bias[:, :hidden] += 1.5  # the state fades slowly
    names.append(w.const("B", bias.astype(np.float32)))
    w.node("GRU", "steps/GRU", x, *names, "", state, outputs=2, hidden_size=hidden)
    y = w.node("Squeeze", "last/Squeeze", "steps/GRU:1", "front")
    model = w.model({"x": (_FLOAT, ["n", 4, width]), "about": (_FLOAT, ["n", 12])}, w.head(y, hidden))
    steps = _feeds(102, 4, width, times=12.0)
    feeds = [{**feed, "about": _noise(112 + i, 12)} for i, feed in enumerate(steps)]
    places = tuple(Place("steps/GRU", index, axis) for index, axis in ((0, None), (1, 1), (2, 1), (5, None)))
    known = Ground("gru_state", model, feeds[0], feeds[1], places)
    mistaken = constant_scale(known.amax("x/Transpose:0") / 127)
    return _at(known, "steps/GRU", 5, mistaken, _SHARED)


def _rnn_biases() -> Planted:
    """The two biases of an RNN, for inputs and state, are large and nearly cancel; they share one scale.

    The honest form has a scale for each number.
    """
    w, width, hidden = Writer(103), 16, 32
    x = w.node("Transpose", "x/Transpose", "x", perm=[1, 0, 2])
    large = w.rng.uniform(15, 45, (1, hidden)) * w.rng.choice([-1, 1], (1, hidden))
    bias = np.concatenate([large + 0.2 * w.rng.standard_normal((1, hidden)), -large], 1)
    names = [w.random("W", 1, hidden, width, std=width**-0.5)]
    names += [w.random("R", 1, hidden, hidden, std=0.7 * hidden**-0.5), w.const("B", bias.astype(np.float32))]
    w.node("RNN", "steps/RNN", x, *names, outputs=2, hidden_size=hidden)
    y = w.node("Squeeze", "last/Squeeze", "steps/RNN:1", _axes(w, "front", 0))
    model = w.model({"x": (_FLOAT, ["n", 10, width])}, w.head(y, hidden))
    places = tuple(Place("steps/RNN", index, axis) for index, axis in ((0, None), (1, 1), (2, 1), (3, 1)))
    known = Ground("rnn_biases", model, *_feeds(103, 10, width), places)
    return _at(known, "steps/RNN", 3, lambda _: quantize_weight(bias.astype(np.float32), None), _BIAS)


def _pooled_masks() -> Planted:
    """Features are pooled by masks between 0 and 1; the masks have the scale of the features.

    The honest form has a scale for each side of the MatMul.
    """
    w, width, masks = Writer(104), 24, 6
    x = w.node("Relu", "features/Relu", w.linear("features", "x", width, width))
    x = w.node("Mul", "features/Mul", x, w.const("gain", np.array(9.0, np.float32)))
    m = w.node("Sigmoid", "masks/Sigmoid", w.linear("masks", "x", width, masks))
    m = w.node("Transpose", "masks/Transpose", m, perm=[0, 2, 1])
    y = w.node("MatMul", "pool/MatMul", m, x)
    y = w.node("Reshape", "flat/Reshape", y, _axes(w, "flat", 0, masks * width))
    model = w.model({"x": (_FLOAT, ["n", 10, width])}, w.head(y, masks * width))
    places = (Place("pool/MatMul", 0), Place("pool/MatMul", 1))
    known = _with_places(Ground("pooled_masks", model, *_feeds(104, 10, width)), places)
    return _at(known, "pool/MatMul", 0, constant_scale(known.amax("features/Mul:0") / 127), _SHARED)


def _with_places(known: Ground, places: tuple[Place, ...]) -> Ground:
    """With those of the places that the plain form does not quantize."""
    have = {(edge.node, edge.index) for edge in known.network(()).edges}
    return replace(known, places=tuple(p for p in places if (p.node, p.index) not in have))


def _sharp_attention() -> Planted:
    """Probabilities have the scale of codes from 0 to 255, but codes end at 127: the zero point was lost.

    The honest form has a scale of 1 / 127.
    """
    w, width, tokens = Writer(105), 24, 10
    q, k, v = (w.linear(name, "x", width, width) for name in ("query", "key", "value"))
    scores = w.node("MatMul", "scores/MatMul", q, w.node("Transpose", "key/Transpose", k, perm=[0, 2, 1]))
    scores = w.node("Mul", "scores/Mul", scores, w.const("sharp", np.array(0.8, np.float32)))
    mixed = w.node("MatMul", "mixed/MatMul", w.node("Softmax", "scores/Softmax", scores, axis=-1), v)
    x = w.node("Relu", "out/Relu", w.linear("out", mixed, width, width))
    x = w.node("ReduceMean", "mean/ReduceMean", x, axes=[1], keepdims=0)
    model = w.model({"x": (_FLOAT, ["n", tokens, width])}, w.head(x, width))
    places = tuple(Place(f"{name}/MatMul", i) for name in ("scores", "mixed") for i in (0, 1))
    known = _with_places(Ground("sharp_attention", model, *_feeds(105, tokens, width)), places)
    kinds = frozenset({"zero-point", "saturation"})
    return _at(known, "mixed/MatMul", 0, constant_scale(1 / 255), kinds)


def _rare_words() -> Planted:
    """Rows of rare words are up to 50 times smaller than others, a norm evens that; scales lie on columns.

    The honest form has a scale for each row.
    """
    w, rows, width = Writer(106), 80, 24
    sizes = 10.0 ** -w.rng.uniform(0, 1.7, (rows, 1))
    table = (w.rng.standard_normal((rows, width)) * sizes).astype(np.float32)
    x = w.node("Gather", "words/Gather", w.const("words.weight", table), "tokens")
    ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
    norm = (w.const("norm.scale", ones), w.const("norm.bias", zeros))
    x = w.node("LayerNormalization", "norm/LayerNormalization", x, *norm, axis=-1)
    x = w.node("Relu", "up/Relu", w.linear("up", x, width, 2 * width))
    x = w.node("ReduceMax", "max/ReduceMax", x, axes=[1], keepdims=0)
    model = w.model({"tokens": (TensorProto.INT64, ["n", 8])}, w.head(x, 2 * width))
    feeds = [{"tokens": np.random.default_rng(106 + i).integers(0, rows, (_SAMPLES, 8))} for i in (1, 2)]
    known = Ground("rare_words", model, feeds[0], feeds[1], (Place("words/Gather", 0, 0),))
    return _at(known, "words/Gather", 0, lambda _: quantize_weight(table, 1), _AXIS)


def _norm_beta() -> Planted:
    """The bias of a LayerNormalization has a step of a half, as a fixed-point format would give all biases.

    The honest form takes the step from the bias.
    """
    w, width = Writer(107), 32
    x = w.node("Add", "sum/Add", "x", w.linear("first", "x", width, width))
    norm = (
        w.const("norm.scale", w.rng.uniform(0.5, 1.5, width).astype(np.float32)),
        w.random("norm.bias", width, std=0.4),
    )
    x = w.node("LayerNormalization", "norm/LayerNormalization", x, *norm, axis=-1)
    x = w.node("Relu", "second/Relu", w.linear("second", x, width, width))
    model = w.model({"x": (_FLOAT, ["n", width])}, w.linear("end", x, width, 10))
    places = (Place("norm/LayerNormalization", 1), Place("norm/LayerNormalization", 2))
    known = Ground("norm_beta", model, *_feeds(107, width), places)
    scale = float(np.abs(known.model.constants()["norm.bias"]).max()) / 127
    return _at(known, "norm/LayerNormalization", 2, coarser(0.5 / scale), _BIAS)


def _prelu_slopes() -> Planted:
    """Three channels in front of a PRelu are never negative, and their slopes are 40 instead of about 0.3.

    The honest form has the scale of the slopes in use; what cannot be seen is cut off.
    """
    w, width = Writer(108), 16
    x = w.node("Relu", "first/Relu", _conv1(w, "first", "x", 8, width))
    weight = w.rng.standard_normal((width, width, 3)) * (2 / (3 * width)) ** 0.5
    weight[:3] = 0.3 * np.abs(weight[:3])
    x = _conv1(w, "second", x, width, width, weight=weight, bias=False)
    slopes = w.rng.uniform(0.05, 0.6, (width, 1)).astype(np.float32)
    slopes[:3] = 40.0
    x = w.node("PRelu", "second/PRelu", x, w.const("slopes", slopes))
    x = w.node("Relu", "third/Relu", _conv1(w, "third", x, width, width))
    model = w.model({"x": (_FLOAT, ["n", 8, 24])}, _pooled_head(w, x, width))
    known = Ground("prelu_slopes", model, *_feeds(108, 8, 24), (Place("second/PRelu", 1),))
    used = _anew(slopes, slopes[3:].max() / 127)
    honest = edited(known.network(), ("second/PRelu", 1), lambda _: used)
    truth = _truth("second/PRelu", _IDLE, "slopes")
    return known.planted(truth, honest=honest, faulty=known.network())


def _positions_concat() -> Planted:
    """Features of about 1 and positions of up to 500 come together in a Concat, and share one scale.

    The honest form has a scale for each part. The BatchNormalization behind brings both to one size.
    """
    w, width, length = Writer(109), 14, 24
    features = w.node("Relu", "first/Relu", _conv1(w, "first", "x", 6, width))
    x = w.node("Concat", "join/Concat", features, "positions", axis=1)
    mean = np.r_[np.full(width, 0.4), np.full(2, 250.0)]
    variance = np.r_[np.full(width, 0.35), np.full(2, 150.0**2)]
    norm = [w.const("norm.scale", np.ones(width + 2, np.float32)), w.random("norm.bias", width + 2)]
    norm += [w.const(f"norm.{n}", a.astype(np.float32)) for n, a in (("mean", mean), ("variance", variance))]
    x = w.node("BatchNormalization", "norm/BatchNormalization", x, *norm)
    x = w.node("Relu", "second/Relu", _conv1(w, "second", x, width + 2, 20))
    model = w.model(
        {"x": (_FLOAT, ["n", 6, length]), "positions": (_FLOAT, ["n", 2, length])}, _pooled_head(w, x, 20)
    )
    feeds = []
    for i, feed in enumerate(_feeds(109, 6, length)):
        places = np.random.default_rng(119 + i).uniform(0, 500, (_SAMPLES, 2, length)).astype(np.float32)
        feeds.append({**feed, "positions": places})
    joined = (Place("join/Concat", 0), Place("join/Concat", 1))
    known = Ground("positions_concat", model, feeds[0], feeds[1], joined)
    return _at(known, "join/Concat", 0, constant_scale(known.amax("positions") / 127), _SHARED)


def _spare_slice() -> Planted:
    """A convolution also makes eight channels for a head that was taken away; a Slice drops them.

    They are 60 times as large as the rest and take the range of what the Slice reads. The honest form has the
    range of the channels that are kept.
    """
    w, width = Writer(110), 24
    weight = w.rng.standard_normal((width, 4, 3)) * 12**-0.5
    weight[16:] *= 60
    x = _conv1(w, "first", "x", 8, width, group=2, weight=weight)
    x = w.node("Slice", "cut/Slice", x, *(_axes(w, n, v) for n, v in (("from", 0), ("to", 16), ("on", 1))))
    x = w.node("LeakyRelu", "cut/LeakyRelu", x, alpha=0.1)
    x = w.node("Relu", "second/Relu", _conv1(w, "second", x, 16, 24, dilation=2))
    model = w.model({"x": (_FLOAT, ["n", 8, 24])}, _pooled_head(w, x, 24))
    known = Ground("spare_slice", model, *_feeds(110, 8, 24))
    reach = float(np.abs(known.values["first/Conv:0"][:, :16]).max())
    place = Place("cut/Slice", 0, reach=reach)
    honest, faulty = known.network([place]), known.network([replace(place, reach=None)])
    return known.planted(_truth("cut/Slice", _IGNORED, "first/Conv:0"), honest=honest, faulty=faulty)


def _padded_pool() -> Planted:
    """A Pad fills with -10000 for the MaxPool behind it, and this value takes the range.

    The honest form has the range of the other values: the fill is cut off and still loses every comparison.
    """
    w, width = Writer(111), 16
    x = _conv1(w, "first", "x", 8, width)
    fill = w.const("fill", np.array(-1e4, np.float32))
    x = w.node("Pad", "pad/Pad", x, _axes(w, "pads", 0, 0, 1, 0, 0, 1), fill)
    x = w.node("MaxPool", "pool/MaxPool", x, kernel_shape=[3], strides=[2])
    x = w.node("Relu", "second/Relu", _conv1(w, "second", x, width, 24, group=2))
    model = w.model({"x": (_FLOAT, ["n", 8, 24])}, _pooled_head(w, x, 24))
    known = Ground("padded_pool", model, *_feeds(111, 8, 24))
    place = Place("pool/MaxPool", 0, reach=known.amax("first/Conv:0"))
    honest, faulty = known.network([place]), known.network([replace(place, reach=None)])
    kinds = frozenset({"masked-range", "activation-outliers"})
    return known.planted(_truth("pool/MaxPool", kinds, "pad/Pad:0"), honest=honest, faulty=faulty)


def _depthwise_floor() -> Planted:
    """No scale of a depthwise convolution may be below 0.05, and most of its channels round to 0 by that.

    The honest form has no floor. A norm behind brings all channels to one size.
    """
    w, width = Writer(112), 16
    x = w.node("Relu", "first/Relu", _conv1(w, "first", "x", 8, width))
    sizes = np.where(np.arange(width) % 3 == 0, 4.0, 0.01)[:, None, None]
    weight = (w.rng.standard_normal((width, 1, 3)) * sizes).astype(np.float32)
    x = _conv1(w, "depth", x, width, width, group=width, weight=weight, bias=False)
    x = w.node("Relu", "norm/Relu", _normed(w, "norm", x, width))
    x = w.node("Relu", "last/Relu", _conv1(w, "last", x, width, 24))
    model = w.model({"x": (_FLOAT, ["n", 8, 24])}, _pooled_head(w, x, 24))
    known = Ground("depthwise_floor", model, *_feeds(112, 8, 24))
    return _at(
        known, "depth/Conv", 1, lambda old: _anew(weight, np.maximum(old.scale, 0.05), old.axis), _CONSTANT
    )


def _grouped_upsampler() -> Planted:
    """Four groups of a ConvTranspose differ in size by up to 100; axis 1 of the weights mixes the groups.

    The honest form has scales along axis 0, where each channel belongs to one group. A GroupNormalization
    behind brings the groups to one size.
    """
    w, width, groups = Writer(113), 16, 4
    x = w.node("Relu", "first/Relu", _conv1(w, "first", "x", 8, width))
    sizes = np.repeat([1.0, 0.2, 0.04, 0.01], width // groups)[:, None, None]
    weight = (w.rng.standard_normal((width, width // groups, 2)) * sizes).astype(np.float32)
    up = w.const("up.weight", weight)
    x = w.node("ConvTranspose", "up/ConvTranspose", x, up, group=groups, strides=[2], kernel_shape=[2])
    x = w.node("Relu", "norm/Relu", _normed(w, "norm", x, width, groups))
    x = w.node("Relu", "last/Relu", _conv1(w, "last", x, width, 24))
    model = w.model({"x": (_FLOAT, ["n", 8, 16])}, _pooled_head(w, x, 24))
    node = "up/ConvTranspose"
    known = Ground("grouped_upsampler", model, *_feeds(113, 8, 16))
    known = _with_places(known, (Place(node, 0), Place(node, 1, 0)))
    honest = edited(known.network(), (node, 1), lambda _: quantize_weight(weight, 0))
    faulty = edited(known.network(), (node, 1), lambda _: quantize_weight(weight, 1))
    kinds = frozenset({"wrong-axis", "mismatched-scales"})
    return known.planted(_truth(node, kinds, "up.weight"), honest=honest, faulty=faulty)


def _equalized() -> Planted:
    """A quantizer divided channels by their size and multiplied the weights that read them.

    It kept the range of before for the activation between, which is now ten times as large. The honest form
    has the range of the network as rewritten.
    """
    w, hidden = Writer(114), 32
    x = "x"
    sizes = (10.0 ** w.rng.uniform(-2.5, -0.8, hidden)).astype(np.float32)
    for name, rows, columns in (("first", 24, hidden), ("second", hidden, hidden)):
        weight = w.rng.standard_normal((columns, rows)).astype(np.float32) / np.float32(rows**0.5)
        if name == "first":
            weight *= sizes[:, None]
            bias = 0.1 * w.rng.standard_normal(columns).astype(np.float32) * sizes
        else:
            weight /= sizes
            bias = 0.1 * w.rng.standard_normal(columns).astype(np.float32)
        names = (w.const(f"{name}.weight", weight), w.const(f"{name}.bias", bias))
        x = w.node("Relu", f"{name}/Relu", w.node("Gemm", f"{name}/Gemm", x, *names, transB=1))
    model = w.model({"x": (_FLOAT, ["n", 24])}, w.head(x, hidden))
    plain = Ground("equalized", model, *_feeds(114, 24))
    changes: dict[str, Array] = {
        "first.weight": 1 / sizes[:, None],
        "first.bias": 1 / sizes,
        "second.weight": sizes,
    }
    known = replace(plain, model=_multiplied(model, changes))
    faulty = edited(known.network(), ("second/Gemm", 0), constant_scale(plain.amax("first/Relu:0") / 127))
    truth = _truth("second/Gemm", NARROW, "first/Relu:0")
    return known.planted(truth, faulty=faulty, model=model)


def _multiplied(model: Model, factors: dict[str, Array]) -> Model:
    """The model with these constants multiplied."""
    proto = onnx.ModelProto.FromString(model.serialize())
    for tensor in proto.graph.initializer:
        if tensor.name in factors:
            array = (numpy_helper.to_array(tensor) * factors[tensor.name]).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return normalize(make_model(proto))


def _norm_means() -> Planted:
    """The means of a BatchNormalization were quantized with a zero point of 10, and read with one of 0.

    All means are too large by ten steps. The honest form has no zero point.
    """
    w, width = Writer(115), 16
    x = w.conv("first", "x", 3, width)
    names = ("scale", "shift", "mean", "variance")
    arrays = (
        w.rng.uniform(0.5, 1.5, width),
        0.2 * w.rng.standard_normal(width),
        1.5 * w.rng.standard_normal(width),
        w.rng.uniform(0.5, 2.0, width),
    )
    norm = [w.const(f"norm.{n}", a.astype(np.float32)) for n, a in zip(names, arrays, strict=True)]
    x = w.node("BatchNormalization", "norm/BatchNormalization", x, *norm)
    x = w.node("HardSwish", "norm/HardSwish", x)
    x = w.node("Relu", "last/Relu", w.conv("last", x, width, 24))
    x = w.node("Flatten", "flat/Flatten", w.node("GlobalAveragePool", "pool/GlobalAveragePool", x))
    model = w.model({"x": (_FLOAT, ["n", 3, 8, 8])}, w.head(x, 24))
    place = Place("norm/BatchNormalization", 3)
    known = Ground("norm_means", model, *_feeds(115, 3, 8, 8), (place,))

    def raised(old: Quantization) -> Quantization:
        assert old.values is not None
        codes = old.values.astype(np.int16) + 10
        return replace(old, values=np.clip(codes, -128, 127).astype(np.int8))

    kinds = frozenset({"bias-shift", "zero-point"})
    return _at(known, "norm/BatchNormalization", 3, raised, kinds)


def _gated_clip() -> Planted:
    """A method cut the range of what a gate multiplies to a sixth; its values have long tails.

    The honest form has the whole range, since the large values carry the signal.
    """
    w, width = Writer(116), 16
    value = _conv1(w, "value", "x", 8, width)
    gate = w.node("Sigmoid", "gate/Sigmoid", _conv1(w, "gate", "x", 8, width))
    x = w.node("Mul", "gate/Mul", value, gate)
    x = w.node("Relu", "last/Relu", _conv1(w, "last", x, width, 24))
    x = w.node("ReduceMax", "max/ReduceMax", x, axes=[2], keepdims=0)
    model = w.model({"x": (_FLOAT, ["n", 8, 24])}, w.head(x, 24))
    sizes = np.exp(0.8 * _noise(126, 1, 1))
    places = (Place("gate/Mul", 0), Place("gate/Mul", 1))
    known = Ground("gated_clip", model, *_feeds(116, 8, 24, times=sizes), places)
    return _at(known, "gate/Mul", 0, constant_scale(known.amax("value/Conv:0") / 6 / 127), NARROW)


def _healthy_table() -> Planted:
    """Five rows that no token names are 80 times as large, and the scale cuts them off: rightly so."""
    w, rows, width, spare = Writer(117), 60, 24, 5
    table = w.rng.standard_normal((rows, width)).astype(np.float32)
    table[:spare] *= 80
    x = w.node("Gather", "words/Gather", w.const("words.weight", table), "tokens")
    x = w.node("Add", "place/Add", x, w.random("place.weight", 10, width, std=0.5))
    x = w.node("Relu", "up/Relu", w.linear("up", x, width, 2 * width))
    x = w.node("ReduceMax", "max/ReduceMax", x, axes=[1], keepdims=0)
    model = w.model({"tokens": (TensorProto.INT64, ["n", 10])}, w.head(x, 2 * width))
    feeds = [{"tokens": np.random.default_rng(117 + i).integers(spare, rows, (_SAMPLES, 10))} for i in (1, 2)]
    places = (Place("words/Gather", 0, 0), Place("place/Add", 1))
    known = Ground("healthy_table", model, feeds[0], feeds[1], places)
    cut = _anew(table, np.abs(table[spare:]).max() / 127)
    return known.planted(_HEALTHY, faulty=edited(known.network(), ("words/Gather", 0), lambda _: cut))


def _healthy_clip() -> Planted:
    """A range ends at 6 where values reach far more, but the reader is a Clip that ends at 6, too."""
    w, width = Writer(118), 16
    x = _conv1(w, "first", "x", 8, width)
    x = w.node("Mul", "first/Mul", x, w.const("gain", np.array(8.0, np.float32)))
    limits = [w.const(n, np.array(v, np.float32)) for n, v in (("least", 0.0), ("most", 6.0))]
    x = w.node("Clip", "cap/Clip", x, *limits)
    x = w.node("Relu", "last/Relu", _conv1(w, "last", x, width, 32, group=4))
    model = w.model({"x": (_FLOAT, ["n", 8, 24])}, _pooled_head(w, x, 32))
    known = Ground("healthy_clip", model, *_feeds(118, 8, 24))
    place = Place("cap/Clip", 0, reach=6.0)
    return known.planted(_HEALTHY, honest=known.network([]), faulty=known.network([place]))
