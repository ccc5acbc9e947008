"""Faults planted by somebody who knew only the list of operators, not the tool that looks for them.

The networks are small forms of deployed ones: detection heads, segmentation, speech, text encoders and
recommenders. The limit of each lies 6 dB below what an honest INT8 form reaches, so that full INT8 exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from onnx import TensorProto, numpy_helper

from benchmarks.regressions.entry import Entry, Planted, Truth
from benchmarks.regressions.ground import Ground, Place, Writer, edited, trained
from benchmarks.regressions.plant import Change, coarser, emptied, scaled, shifted, unsigned
from benchmarks.regressions.reader_faults import folded
from pytest_int8acc.graph.layout import quantize_weight
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Edge, Network, Quantization
from pytest_int8acc.tensors import Array, Feed

_SAMPLES = 128
_HEALTHY = Truth("healthy", int8_fix=None)


def entries() -> Iterator[Entry]:
    """All of this module."""
    for name, kind, network, plant in (*_ACTIVATIONS, *_CONSTANTS, *_SOUND):
        yield Entry(f"strange3_{name}", kind, network, plant)


def _input(model: Model, node: str, index: int) -> str:
    return str(model.index.nodes[node].input[index])


def _truth(known: Ground, node: str, index: int, *kinds: str) -> Truth:
    tensor = _input(known.model, node, index)
    return Truth(causes={node: frozenset(kinds)}, tensors={node: frozenset({tensor})})


def _changed(
    known: Ground, node: str, index: int, change: Change, *kinds: str, honest: Network | None = None
) -> Planted:
    """One quantized input of the honest form quantized otherwise."""
    honest = honest or known.network()
    truth = _truth(known, node, index, *kinds)
    return known.planted(truth, honest=honest, faulty=edited(honest, (node, index), change))


def _rescale(scale: float) -> Change:
    return lambda old: replace(old, scale=np.array(scale, np.float32))


def _renewed(change: Callable[[Array], Array]) -> Change:
    """A constant's scale changed, and its values rounded anew."""

    def renew(old: Quantization) -> Quantization:
        fresh = replace(old, scale=change(old.scale).astype(np.float32))
        return replace(fresh, values=fresh.quantize(old.dequantize()))

    return renew


def _along(weight: Array, axis: int | None) -> Change:
    """A constant quantized anew with a scale for each channel of an axis, or one for all."""
    return lambda old: quantize_weight(weight, axis)


def _noise(seed: int, part: int, *shape: int) -> Array:
    return np.random.default_rng([seed, part]).standard_normal((_SAMPLES, *shape)).astype(np.float32)


def _indices(seed: int, part: int, most: int, *shape: int) -> Array:
    return np.random.default_rng([seed, part]).integers(0, most, (_SAMPLES, *shape))


def _images(seed: int, *shape: int) -> tuple[Feed, Feed]:
    return {"x": _noise(seed, 1, *shape)}, {"x": _noise(seed, 2, *shape)}


def _uneven(count: int, decades: float) -> Array:
    """Factors from ``10 ** -decades`` to 1."""
    return (10.0 ** np.linspace(-decades, 0, count)).astype(np.float32)


# Activations


def _gate() -> Planted:
    """The gate of a squeeze-and-excitation, the second input of a Mul, is cut off at half of its range."""
    known, node = trained("efficient"), "/blocks/blocks.1/Mul_3"
    known = replace(known, places=(Place(node, 0), Place(node, 1)))
    return _changed(known, node, 1, scaled(1 / 2), "saturation")


def _probabilities() -> Planted:
    """Attention weights, at most 1, are quantized over a range of 48, as if they were scores."""
    known = trained("recognizer")
    node = "/blocks/blocks.0/MatMul_1"
    return _changed(known, node, 0, _rescale(48 / 127), "scale-too-wide")


def _hard_swish() -> Planted:
    """What comes out of a HardSwish is quantized as if it were of a Relu: uint8 from 0 on."""
    known = trained("recognizer")
    node = "/depthwise2/depthwise2.0/conv/Conv"
    return _changed(known, node, 0, unsigned(127 / 255, 0), "zero-point", "saturation")


def _detections(seed: int) -> Ground:
    """A head that joins boxes in pixels with scores, and divides the boxes by the size of the image."""
    w = Writer(seed)
    x = w.node("Relu", "trunk/Relu", w.conv("trunk", "x", 3, 16))
    stride = w.const("stride", np.array(32, np.float32))
    boxes = w.node("Mul", "boxes/Mul", w.conv("boxes", x, 16, 4), stride)
    scores = w.node("Sigmoid", "scores/Sigmoid", w.conv("scores", x, 16, 8))
    x = w.node("Concat", "all/Concat", boxes, scores, axis=1)
    sizes = np.array([1 / 64] * 4 + [1] * 8, np.float32).reshape(1, 12, 1, 1)
    x = w.node("Mul", "sizes/Mul", x, w.const("sizes", sizes))
    model = w.model({"x": (TensorProto.FLOAT, ["n", 3, 8, 8])}, x)
    return Ground(
        "detections", model, *_images(seed, 3, 8, 8), (Place("all/Concat", 0), Place("all/Concat", 1))
    )


def _boxes_and_scores() -> Planted:
    """Scores have the scale of the boxes that they are joined with; the honest form has one for each part."""
    known = _detections(301)
    boxes = known.amax(_input(known.model, "all/Concat", 0))
    kinds = ("mismatched-scales", "scale-too-wide")
    return _changed(known, "all/Concat", 1, _rescale(boxes / 127), *kinds)


def _box_sizes() -> Planted:
    """Sizes of boxes are powers of e; a percentile cuts the exponents, so that large boxes are too small."""
    w = Writer(302)
    x = w.node("Relu", "trunk/Relu", w.conv("trunk", "x", 3, 16))
    x = w.node("Exp", "sizes/Exp", w.conv("sizes", x, 16, 4))
    anchors = w.const("anchors", np.array([1, 1.5, 2, 3], np.float32).reshape(1, 4, 1, 1))
    x = w.node("Mul", "anchors/Mul", x, anchors)
    model = w.model({"x": (TensorProto.FLOAT, ["n", 3, 8, 8])}, x)
    known = Ground("boxes", model, *_images(302, 3, 8, 8), (Place("sizes/Exp", 0),))
    exponents = np.abs(known.values[_input(model, "sizes/Exp", 0)])
    cut = float(np.percentile(exponents, 99))
    return _changed(known, "sizes/Exp", 0, _rescale(cut / 127), "saturation")


def _initial_state() -> Planted:
    """The state that a streaming RNN starts from is cut off at a quarter of its range."""
    w, width, hidden = Writer(303), 16, 24
    axes = w.const("axes", np.array([0], np.int64))
    x = w.node("Transpose", "x/Transpose", "x", perm=[1, 0, 2])
    state = w.node("Unsqueeze", "state/Unsqueeze", "state", axes)
    names = [w.random("W", 1, hidden, width, std=width**-0.5), w.random("R", 1, hidden, hidden, std=0.2)]
    names += [w.random("B", 1, 2 * hidden), ""]
    w.node("RNN", "steps/RNN", x, *names, state, outputs=2, hidden_size=hidden)
    y = w.node("Squeeze", "last/Squeeze", "steps/RNN:1", axes)
    inputs = {"x": (TensorProto.FLOAT, ["n", 2, width]), "state": (TensorProto.FLOAT, ["n", hidden])}
    model = w.model(inputs, w.head(y, hidden))
    feeds = [{"x": _noise(303, part, 2, width), "state": _noise(403, part, hidden)} for part in (1, 2)]
    node = "steps/RNN"
    places = (Place(node, 0), Place(node, 1, 1), Place(node, 2, 1), Place(node, 5))
    known = Ground("stream", model, *feeds, places)
    return _changed(known, node, 5, scaled(1 / 4), "saturation")


def _frames() -> Planted:
    """Absent frames are filled with -500 before the maximum over time, and that takes its range."""
    w, width, frames = Writer(304), 24, 20
    x = w.node("Transpose", "x/Transpose", w.linear("up", "x", width, 32), perm=[0, 2, 1])
    absent = w.node("Greater", "absent/Greater", "absent", w.const("half", np.array(0.5, np.float32)))
    x = w.node("Where", "fill/Where", absent, w.const("fill", np.array(-500, np.float32)), x)
    x = w.node("ReduceMax", "most/ReduceMax", x, axes=[2], keepdims=0)
    inputs = {
        "x": (TensorProto.FLOAT, ["n", frames, width]),
        "absent": (TensorProto.FLOAT, ["n", 1, frames]),
    }
    model = w.model(inputs, w.head(x, 32))
    feeds = []
    for part in (1, 2):
        absent_from = _indices(304, part, frames - 8, 1, 1) + 8
        late = (np.arange(frames)[None, None] >= absent_from).astype(np.float32)
        feeds.append({"x": _noise(404, part, frames, width), "absent": late})
    known = Ground("frames", model, *feeds)
    values = known.values[_input(model, "most/ReduceMax", 0)]
    reach = float(np.abs(values[values > -250]).max())
    known = replace(known, places=(Place("most/ReduceMax", 0, reach=reach),))
    return _changed(known, "most/ReduceMax", 0, _rescale(500 / 127), "masked-range")


def _event_columns(seed: int, *, equalized: bool) -> Ground:
    """Features, and columns behind them that a Slice drops, times of events; then a perceptron.

    Equalized: what the first layer makes is divided by factors, and the second layer multiplied by them.
    """
    w = Writer(seed)
    bounds = [w.const(n, np.array([v], np.int64)) for n, v in (("from", 0), ("to", 16), ("axis", 1))]
    x = w.node("Slice", "features/Slice", "x", *bounds)
    x = w.node("Relu", "up/Relu", w.linear("up", x, 16, 48))
    y = w.head(x, 48)
    factors = w.rng.uniform(0.5, 2, 48).astype(np.float32)
    if equalized:
        for constant in w.constants:
            factor = {"up.weight": 1 / factors, "up.bias": 1 / factors, "head.weight": factors}
            if constant.name in factor:
                array = numpy_helper.to_array(constant) * factor[constant.name]
                constant.CopyFrom(numpy_helper.from_array(array, constant.name))
    model = w.model({"x": (TensorProto.FLOAT, ["n", 20])}, y)
    feeds = []
    for part in (1, 2):
        times = np.random.default_rng([seed, part, 1]).uniform(1000, 3000, (_SAMPLES, 4))
        feeds.append({"x": np.concatenate([_noise(seed, part, 16), times.astype(np.float32)], 1)})
    reach = float(np.abs(feeds[0]["x"][:, :16]).max())
    return Ground("columns", model, *feeds, (Place("features/Slice", 0, reach=reach),))


def _columns() -> Planted:
    """Times of events, which a Slice drops, are quantized with the features.

    The quantizer wrote the weights anew: it equalized the channels between the two layers.
    """
    plain, known = (_event_columns(305, equalized=equalized) for equalized in (False, True))
    node, honest = "features/Slice", known.network()
    faulty = edited(honest, (node, 0), _rescale(known.amax("x") / 127))
    truth = _truth(known, node, 0, "ignored-channel")
    return known.planted(truth, honest=honest, faulty=faulty, model=plain.model)


def _gated_unit() -> Planted:
    """Values 60 times as large as their gates share one scale at the Split of a gated linear unit.

    The honest form quantizes each part behind the Split.
    """
    w, width = Writer(306), 24
    weight = (w.rng.standard_normal((2 * width, width, 3)) * (3 * width) ** -0.5).astype(np.float32)
    weight[:width] *= 60
    x = w.node("Conv", "up/Conv", "x", w.const("up.weight", weight), pads=[1, 1])
    x = w.node("Split", "parts/Split", x, outputs=2, axis=1)
    x = w.node("Mul", "unit/Mul", x, w.node("Sigmoid", "gate/Sigmoid", "parts/Split:1"))
    x = w.node("ReduceMean", "mean/ReduceMean", x, axes=[2], keepdims=0)
    model = w.model({"x": (TensorProto.FLOAT, ["n", width, 16])}, w.head(x, width))
    known = Ground("gated", model, *_images(306, width, 16))
    honest = known.network((Place("unit/Mul", 0), Place("gate/Sigmoid", 0)))
    truth = _truth(known, "parts/Split", 0, "mismatched-scales")
    return known.planted(truth, honest=honest, faulty=known.network((Place("parts/Split", 0),)))


def _loudness(seed: int) -> Ground:
    """A layer whose output is multiplied by a gain, 200 in one of 20 samples, and goes into a Tanh."""
    w, width = Writer(seed), 32
    x = w.node("Mul", "gain/Mul", w.linear("up", "x", 16, width), "gain")
    x = w.node("Tanh", "squash/Tanh", x)
    inputs = {"x": (TensorProto.FLOAT, ["n", 16]), "gain": (TensorProto.FLOAT, ["n", 1])}
    model = w.model(inputs, w.head(x, width))
    feeds = []
    for part in (1, 2):
        gain = np.where(_indices(seed, part, 20, 1) == 0, 200, 1).astype(np.float32)
        feeds.append({"x": _noise(seed + 100, part, 16), "gain": gain})
    return Ground("loudness", model, *feeds, (Place("squash/Tanh", 0, reach=4.0),))


def _loud() -> Planted:
    """Few loud samples take the range of what goes into a Tanh, which makes 1 of all above 4 anyway."""
    known = _loudness(307)
    most = known.amax(_input(known.model, "squash/Tanh", 0))
    return _changed(known, "squash/Tanh", 0, _rescale(most / 127), "activation-outliers")


# Constants


def _segments() -> Planted:
    """The bias of a ConvTranspose in INT8 at a scale 60 times as wide as it needs.

    The quantizer folded the BatchNormalization of the float model into the convolution before it.
    """
    w, width = Writer(308), 16
    x = w.conv("down", "x", 3, width, bias=False)
    parts = [w.const("norm.scale", w.rng.uniform(0.5, 1.5, width).astype(np.float32))]
    parts += [w.random("norm.shift", width, std=0.2), w.random("norm.mean", width, std=0.2)]
    parts += [w.const("norm.variance", w.rng.uniform(1, 3, width).astype(np.float32))]
    x = w.node("Relu", "down/Relu", w.node("BatchNormalization", "norm/BatchNormalization", x, *parts))
    names = [w.random("up.weight", width, 12, 2, 2, std=0.25), w.random("up.bias", 12, std=0.4)]
    x = w.node("ConvTranspose", "up/ConvTranspose", x, *names, strides=[2, 2], kernel_shape=[2, 2])
    x = w.conv("classes", w.node("Relu", "up/Relu", x), 12, 5)
    model = w.model({"x": (TensorProto.FLOAT, ["n", 3, 8, 8])}, x)
    plain = Ground("segments", model, *_images(308, 3, 8, 8), (Place("up/ConvTranspose", 2),))
    known, node = folded(plain), "up/ConvTranspose"
    honest = known.network()
    faulty = edited(honest, (node, 2), coarser(60))
    return known.planted(_truth(known, node, 2, "int8-bias"), honest=honest, faulty=faulty, model=model)


def _speech_bias() -> Planted:
    """A bias at the scale of the products, as for INT32, but in INT8: nearly all codes are cut off."""
    w, mels = Writer(309), 40
    names = [w.random("first.weight", 32, mels, 3, std=(3 * mels) ** -0.5), w.random("first.bias", 32)]
    x = w.node("Relu", "first/Relu", w.node("Conv", "first/Conv", "x", *names, pads=[1, 1]))
    names = [w.random("second.weight", 32, 32, 3, std=0.12), w.random("second.bias", 32, std=0.3)]
    x = w.node("Conv", "second/Conv", x, *names, pads=[2, 2], dilations=[2])
    x = w.node("ReduceMean", "mean/ReduceMean", w.node("Relu", "second/Relu", x), axes=[2], keepdims=0)
    model = w.model({"x": (TensorProto.FLOAT, ["n", mels, 24])}, w.head(x, 32))
    known = Ground("speech", model, *_images(309, mels, 24))
    node, plain = "second/Conv", known.network()
    group = next(group for group in plain.groups if group.name == node)
    first, second = group.edges
    scale = (first.quantization.scale * second.quantization.scale).astype(np.float32)
    codes = np.rint(model.constants()["second.bias"] / scale).astype(np.int32)
    bias = Quantization(scale, np.zeros(scale.shape, np.int32), 0, codes)
    wide = replace(group, edges=(first, second, Edge(node, 2, "second.bias", bias)))
    honest = replace(plain, groups=tuple(wide if group.name == node else group for group in plain.groups))

    def narrow(old: Quantization) -> Quantization:
        return Quantization(
            old.scale, np.zeros(old.scale.shape, np.int8), 0, np.clip(codes, -128, 127).astype(np.int8)
        )

    return _changed(known, node, 2, narrow, "int8-bias", "bias-shift", honest=honest)


def _recommender(seed: int, idle: float = 1.0) -> Ground:
    """A history of items is looked up, each row is normalized, and their mean goes through a perceptron.

    Rows are of very unlike size; the last five, which are never looked up, are ``idle`` times as large.
    """
    w, items, width = Writer(seed), 80, 24
    rows = w.rng.standard_normal((items, width)).astype(np.float32)
    rows *= w.rng.permutation(_uneven(items, 3))[:, None]
    rows[-5:] *= np.float32(idle)
    x = w.node("Gather", "items/Gather", w.const("items.weight", rows), "items")
    names = (w.const("norm.scale", np.ones(width, np.float32)), w.random("norm.bias", width))
    x = w.node("LayerNormalization", "norm/LayerNormalization", x, *names, axis=-1, epsilon=1e-12)
    x = w.node("ReduceMean", "mean/ReduceMean", x, axes=[1], keepdims=0)
    x = w.node("Relu", "up/Relu", w.linear("up", x, width, 48))
    model = w.model({"items": (TensorProto.INT64, ["n", 6])}, w.head(x, 48))
    feeds = ({"items": _indices(seed, part, items - 5, 6)} for part in (1, 2))
    return Ground("recommender", model, *feeds, (Place("items/Gather", 0, 0),))


def _item_columns() -> Planted:
    """Rows of popular items are long, others short; scales for columns make 0 of the short ones."""
    known = _recommender(310)
    rows = known.model.constants()["items.weight"]
    made = _changed(known, "items/Gather", 0, _along(rows, 1), "wrong-axis")
    return replace(made, baseline="fp32")  # squares of the shortest rows are too small for FP16


def _late_positions() -> Planted:
    """Positions that no calibration text reached have the scale 0; longer texts find rows of zeros."""
    w, width, most = Writer(311), 24, 16
    words = w.node("Gather", "words/Gather", w.random("words.weight", 60, width, std=1), "words")
    places = w.node("Gather", "places/Gather", w.random("places.weight", most, width, std=1), "positions")
    x = w.node("Add", "sum/Add", words, places)
    names = (w.const("norm.scale", np.ones(width, np.float32)), w.random("norm.bias", width))
    x = w.node("LayerNormalization", "norm/LayerNormalization", x, *names, axis=-1)
    x = w.node("Relu", "up/Relu", w.linear("up", x, width, 48))
    x = w.node("ReduceMean", "mean/ReduceMean", x, axes=[1], keepdims=0)
    inputs = {"words": (TensorProto.INT64, ["n", 8]), "positions": (TensorProto.INT64, ["n", 8])}
    model = w.model(inputs, w.head(x, 48))
    feeds = []
    for part, starts in ((1, 1), (2, 9)):
        positions = _indices(311, part, starts, 1) + np.arange(8)[None]
        feeds.append({"words": _indices(411, part, 60, 8), "positions": positions})
    known = Ground("positions", model, *feeds, (Place("places/Gather", 0, 0), Place("words/Gather", 0, 0)))
    return _changed(known, "places/Gather", 0, emptied(range(8, most), 0.0), "zero-scale", "weight-scale")


def _unit_off() -> Planted:
    """The bias of an LSTM in INT8: the output gate of one unit is shut by -80, which takes the scale."""
    w, width, hidden = Writer(312), 16, 24
    bias = (0.4 * w.rng.standard_normal((1, 8 * hidden))).astype(np.float32)
    bias[0, hidden + 3] = -80
    x = w.node("Transpose", "x/Transpose", "x", perm=[1, 0, 2])
    names = [w.random("W", 1, 4 * hidden, width, std=width**-0.5)]
    names += [w.random("R", 1, 4 * hidden, hidden, std=hidden**-0.5), w.const("B", bias)]
    w.node("LSTM", "steps/LSTM", x, *names, outputs=3, hidden_size=hidden)
    y = w.node("Squeeze", "last/Squeeze", "steps/LSTM:1", w.const("axes", np.array([0], np.int64)))
    model = w.model({"x": (TensorProto.FLOAT, ["n", 8, width])}, w.head(y, hidden))
    node = "steps/LSTM"
    places = (Place(node, 0), Place(node, 1, 1), Place(node, 2, 1))
    known = Ground("steps", model, *_images(312, 8, width), places)
    truth = _truth(known, node, 3, "int8-bias", "weight-outliers")
    return known.planted(truth, faulty=known.network((*places, Place(node, 3))))


def _norm_bias() -> Planted:
    """The zero point of a LayerNormalization's bias is 12, while its codes were made with 0."""
    w, width = Writer(313), 32
    x = w.node("Gather", "words/Gather", w.random("words.weight", 60, width, std=1), "words")
    scale = w.const("norm.scale", w.rng.uniform(0.5, 1.5, width).astype(np.float32))
    names = (scale, w.random("norm.bias", width, std=0.4))
    x = w.node("LayerNormalization", "norm/LayerNormalization", x, *names, axis=-1)
    x = w.linear("up", x, width, 64)
    root = w.node("Div", "gelu/Div", x, w.const("root", np.array(2**0.5, np.float32)))
    one = w.const("one", np.array(1, np.float32))
    x = w.node("Mul", "gelu/Mul", x, w.node("Add", "gelu/Add", w.node("Erf", "gelu/Erf", root), one))
    x = w.node("ReduceMean", "mean/ReduceMean", x, axes=[1], keepdims=0)
    model = w.model({"words": (TensorProto.INT64, ["n", 10])}, w.head(x, 64))
    feeds = ({"words": _indices(313, part, 60, 10)} for part in (1, 2))
    node = "norm/LayerNormalization"
    known = Ground("text", model, *feeds, (Place("words/Gather", 0, 0), Place(node, 2)))
    return _changed(known, node, 2, shifted(12), "bias-shift", "zero-point")


def _swapped_means() -> Planted:
    """The means that are subtracted from red, green and blue are written in the order of blue, green, red."""
    w = Writer(314)
    means = np.array([150, 116, 80], np.float32).reshape(1, 3, 1, 1)
    x = w.node("Sub", "normal/Sub", "x", w.const("means", means))
    x = w.node("Mul", "normal/Mul", x, w.const("steps", np.array(1 / 58, np.float32)))
    x = w.node("Relu", "first/Relu", w.conv("first", x, 3, 24))
    x = w.node("Relu", "second/Relu", w.conv("second", x, 24, 24))
    x = w.node("Flatten", "flat/Flatten", w.node("GlobalAveragePool", "pool/GlobalAveragePool", x))
    model = w.model({"x": (TensorProto.FLOAT, ["n", 3, 8, 8])}, w.head(x, 24))
    feeds = ({"x": np.clip(means + 58 * _noise(314, part, 3, 8, 8), 0, 255)} for part in (1, 2))
    known = Ground("colours", model, *feeds, (Place("normal/Sub", 1, 1),))

    def swap(old: Quantization) -> Quantization:
        assert old.values is not None
        return replace(old, scale=old.scale[::-1].copy(), values=old.values[:, ::-1].copy())

    return _changed(known, "normal/Sub", 1, swap, "bias-shift", "other-values")


def _variance() -> Planted:
    """One scale for the variances of a BatchNormalization, of which one is 3600 times as large.

    The others become 0, and what is divided by them explodes; a scale for each keeps them all.
    """
    w, width = Writer(315), 16
    weight = (w.rng.standard_normal((width, 3, 3, 3)) * 0.27).astype(np.float32)
    weight[5] *= 60
    x = w.node("Conv", "first/Conv", "x", w.const("first.weight", weight), pads=[1] * 4)
    parts = [w.const("norm.scale", w.rng.uniform(0.5, 1.5, width).astype(np.float32))]
    parts += [w.random("norm.shift", width, std=0.2), w.random("norm.mean", width, std=0.1)]
    parts += [w.const("norm.variance", np.square(weight).sum((1, 2, 3)))]
    x = w.node("Relu", "norm/Relu", w.node("BatchNormalization", "norm/BatchNormalization", x, *parts))
    x = w.node("Relu", "second/Relu", w.conv("second", x, width, 24))
    x = w.node("Flatten", "flat/Flatten", w.node("GlobalAveragePool", "pool/GlobalAveragePool", x))
    model = w.model({"x": (TensorProto.FLOAT, ["n", 3, 8, 8])}, w.head(x, 24))
    node = "norm/BatchNormalization"
    known = Ground("variance", model, *_images(315, 3, 8, 8), (Place(node, 4, 0),))
    variance = model.constants()["norm.variance"]
    kinds = ("weight-outliers", "weight-scale")
    return _changed(known, node, 4, _along(variance, None), *kinds)


def _floor() -> Planted:
    """A floor on the scales of a grouped convolution: small output channels vanish.

    A BatchNormalization behind it makes all channels equally large.
    """
    w, width = Writer(316), 32
    x = w.node("Relu", "first/Relu", w.conv("first", "x", 3, width))
    weight = (w.rng.standard_normal((width, 4, 3, 3)) / 6).astype(np.float32)
    sizes = w.rng.permutation(_uneven(width, 2))
    weight *= sizes[:, None, None, None]
    x = w.node("Conv", "grouped/Conv", x, w.const("grouped.weight", weight), pads=[1] * 4, group=8)
    parts = [w.const("norm.scale", w.rng.uniform(0.5, 1.5, width).astype(np.float32))]
    parts += [w.random("norm.shift", width, std=0.2), w.const("norm.mean", np.zeros(width, np.float32))]
    parts += [w.const("norm.variance", np.square(sizes))]
    x = w.node("BatchNormalization", "norm/BatchNormalization", x, *parts, epsilon=1e-9)
    x = w.node("Relu", "norm/Relu", x)
    x = w.node("Flatten", "flat/Flatten", w.node("GlobalAveragePool", "pool/GlobalAveragePool", x))
    model = w.model({"x": (TensorProto.FLOAT, ["n", 3, 8, 8])}, w.head(x, width))
    known = Ground("grouped", model, *_images(316, 3, 8, 8))
    change = _renewed(lambda scale: np.maximum(scale, scale.max()))
    made = _changed(known, "grouped/Conv", 1, change, "weight-scale")
    return replace(made, baseline="fp32")  # the epsilon of the norm is too small for FP16


def _mixed_tokens() -> Planted:
    """A weight on the left mixes tokens; its rows are of unlike size, but its scales are for columns."""
    w, tokens, width = Writer(317), 16, 24
    weight = (w.rng.standard_normal((tokens, tokens)) / 4).astype(np.float32)
    weight *= w.rng.permutation(_uneven(tokens, 2.5))[:, None]
    x = w.node("MatMul", "mix/MatMul", w.const("mix.weight", weight), "x")
    names = (w.const("norm.scale", np.ones(width, np.float32)), w.random("norm.bias", width))
    x = w.node("LayerNormalization", "norm/LayerNormalization", x, *names, axis=-1, epsilon=1e-12)
    x = w.node("Relu", "up/Relu", w.linear("up", x, width, 48))
    x = w.node("ReduceMean", "mean/ReduceMean", x, axes=[1], keepdims=0)
    model = w.model({"x": (TensorProto.FLOAT, ["n", tokens, width])}, w.head(x, 48))
    known = Ground("mixed", model, *_images(317, tokens, width))
    honest = edited(known.network(), ("mix/MatMul", 0), _along(weight, 0))
    change = _along(weight, 1)
    made = _changed(known, "mix/MatMul", 0, change, "wrong-axis", honest=honest)
    return replace(made, baseline="fp32")  # squares of the smallest tokens are too small for FP16


def _rounded_down() -> Planted:
    """The codes of a Gemm are rounded down, not to the nearest; what it reads is never below 0."""
    known = trained("detector")
    node = "/boxes/boxes.2/Gemm"
    weight = known.model.constants()[_input(known.model, node, 1)]

    def down(old: Quantization) -> Quantization:
        assert old.axis is not None
        scale = old.scale.reshape([-1 if i == old.axis else 1 for i in range(2)])
        return replace(old, values=np.clip(np.floor(weight / scale), -127, 127).astype(np.int8))

    return _changed(known, node, 1, down, "bias-shift")


def _hidden_patches() -> Planted:
    """The learnt token that stands for hidden patches is cut off at a third of its range."""
    w, tokens, width = Writer(318), 12, 24
    hidden = w.node("Greater", "hidden/Greater", "hidden", w.const("half", np.array(0.5, np.float32)))
    x = w.node("Where", "hidden/Where", hidden, w.random("token", 1, 1, width, std=1), "x")
    x = w.node("Relu", "up/Relu", w.linear("up", x, width, 48))
    x = w.node("ReduceMean", "mean/ReduceMean", x, axes=[1], keepdims=0)
    inputs = {
        "x": (TensorProto.FLOAT, ["n", tokens, width]),
        "hidden": (TensorProto.FLOAT, ["n", tokens, 1]),
    }
    model = w.model(inputs, w.head(x, 48))
    feeds = []
    for part in (1, 2):
        which = (_indices(318, part, 2, tokens, 1) == 0).astype(np.float32)
        feeds.append({"x": _noise(418, part, tokens, width), "hidden": which})
    known = Ground("patches", model, *feeds, (Place("hidden/Where", 1),))
    change = _renewed(lambda scale: scale / 3)
    return _changed(known, "hidden/Where", 1, change, "weight-scale", "saturation")


# Healthy ones


def _healthy_tanh() -> Planted:
    """What goes into a Tanh is cut off at a fraction of its greatest value; nothing is lost."""
    known = _loudness(319)
    return known.planted(_HEALTHY, faulty=known.network())


def _healthy_rows() -> Planted:
    """Rows from tiny to huge, some of them idle; each has a scale of its own."""
    known = _recommender(320, idle=500.0)
    return replace(known.planted(_HEALTHY, faulty=known.network()), baseline="fp32")


_ACTIVATIONS = (
    ("gate", "second input", "efficient", _gate),
    ("probabilities", "second input", "recognizer", _probabilities),
    ("hard_swish", "zero point", "recognizer", _hard_swish),
    ("boxes_scores", "parts of unlike size", "detections", _boxes_and_scores),
    ("box_sizes", "range clipped", "boxes", _box_sizes),
    ("initial_state", "second input", "stream", _initial_state),
    ("frames", "mask value in a range", "frames", _frames),
    ("columns", "channel that readers ignore", "columns", _columns),
    ("gated_unit", "parts of unlike size", "gated", _gated_unit),
    ("loud", "outliers", "loudness", _loud),
)
_CONSTANTS = (
    ("segments", "bias in INT8", "segments", _segments),
    ("speech_bias", "bias in INT8", "speech", _speech_bias),
    ("item_columns", "scales along the wrong axis", "recommender", _item_columns),
    ("late_positions", "scales of 0", "positions", _late_positions),
    ("unit_off", "bias in INT8", "steps", _unit_off),
    ("norm_bias", "bias shift", "text", _norm_bias),
    ("swapped_means", "bias shift", "colours", _swapped_means),
    ("variance", "one scale for a constant", "variance", _variance),
    ("floor", "floor on scales", "grouped", _floor),
    ("mixed_tokens", "scales along the wrong axis", "mixed", _mixed_tokens),
    ("rounded_down", "bias shift", "detector", _rounded_down),
    ("hidden_patches", "constant clipped", "patches", _hidden_patches),
)
_SOUND = (
    ("healthy_tanh", "healthy", "loudness", _healthy_tanh),
    ("healthy_rows", "healthy", "recommender", _healthy_rows),
)
