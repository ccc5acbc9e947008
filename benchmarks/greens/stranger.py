"""Planted lies, written by someone who knows only what was measured, not the rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, version_converter

from benchmarks.greens import nets, tasks
from benchmarks.greens.entry import Project, Truth, planted
from benchmarks.greens.graph import Graph
from benchmarks.greens.nets import CELL, CELLS, FRAMES, LENGTH, VOCABULARY, WORDS, Net
from benchmarks.greens.quantize import by_onnxruntime, int8_share, quantized, quantized_bodies, ranges

Array = NDArray[Any]
Feed = Mapping[str, Array]

#: Cells of a scene.
PLACES = CELLS * CELLS


class Own(Net):
    """A network whose metric is a function of its outputs, ``more['judge']``, called ``more['name']``."""

    def metric(self, outputs: Feed, rows: slice | Array = slice(None)) -> float:
        """What the judge says."""
        return float(self.more["judge"]({name: array[rows] for name, array in outputs.items()}))

    @property
    def metric_name(self) -> str:
        """For people."""
        return str(self.more["name"])


def _own(
    model: onnx.ModelProto,
    feed: dict[str, Array],
    calibration: dict[str, Array],
    labels: Array,
    name: str,
    judge: Callable[[Feed], float],
) -> Own:
    return Own(model, feed, calibration, labels, "own", {"judge": judge, "name": name})


def _paired(net: Net, *tensors: str, **more: Any) -> onnx.ModelProto:
    """INT8 with pairs on the layers' inputs, and on ``tensors`` too."""
    return quantized(net.model, net.calibration, also=tensors, **more)


def _fitted(g: Graph, x: str, feed: Feed, targets: Array, gain: float = 1.0, shift: float = 0.0) -> str:
    """A 1x1 convolution from ``x`` [N, C, ...] to ``targets`` of the same rank."""
    weight, bias = g.fit(x, feed, targets, axis=1)
    weight = gain * weight.T.reshape(*weight.T.shape, *[1] * (np.ndim(targets) - 2))
    return g.node("Conv", x, g.const(weight), g.const(gain * bias + shift))


def _read_out(g: Graph, x: str, feed: Feed, targets: Array, out: str = "") -> str:
    """A MatMul and an Add from ``x`` to ``targets``, features last."""
    weight, bias = g.fit(x, feed, targets)
    return g.node("Add", g.node("MatMul", x, g.const(weight)), g.const(bias), out=out)


# a: composite outputs ------------------------------------------------------------------------------------


Join = Callable[[Graph, str, str], str]


def _scenes(
    join: Join,
    read: Callable[[Array], tuple[Array, Array]],
    *,
    seed: int,
    scale: float,
    background: bool = False,
    one_head: bool = False,
) -> Own:
    """A detector of coloured boxes: ``join`` makes its output of boxes within cells and logits [N, C, 6, 6].

    Boxes are in pixels times ``scale``. ``read`` makes boxes [N, A, 4] and scores [N, A, 3] of the output.
    With ``background`` a first class is that of nothing; with ``one_head`` one convolution makes all.
    """
    g = Graph(seed=seed)
    images, _, targets = nets.scenes(240, seed + 1000, 1.0)
    feed = {"images": images}
    x = g.input("images", 3, CELLS * CELL, CELLS * CELL)
    for cin, cout in ((3, 24), (24, 40), (40, 128)):
        x = g.relu(g.conv(x, cin, cout, stride=2))
    wanted = np.moveaxis(targets, -1, 1).reshape(len(images), 7, CELLS, CELLS)
    there = wanted[:, 4:]
    if background:
        there = np.concatenate([1 - there.max(1, keepdims=True), there], 1)
    logits = np.where(there > 0, 8.0, -8.0)
    if one_head:
        box, shift = g.fit(x, feed, wanted[:, :4], axis=1)
        kinds, rest = g.fit(x, feed, logits, axis=1)
        weight = np.concatenate([scale * box, kinds / 16], 1).T[..., None, None]
        bias = np.concatenate([scale * shift, rest / 16 + 0.125])
        both = g.node("Conv", x, g.const(weight), g.const(bias), out="head")
        boxes = g.node("Slice", both, g.ints(0), g.ints(4), g.ints(1))
        logits_of_16 = g.node("Slice", both, g.ints(4), g.ints(4 + logits.shape[1]), g.ints(1))
        classes = g.node("Mul", logits_of_16, g.const(24.0))
    else:
        boxes = _fitted(g, x, feed, wanted[:, :4], scale)
        classes = _fitted(g, x, feed, logits, 1.5, 0.0 if background else 3.0)
    last = join(g, boxes, classes)
    images, truth, wanted = nets.scenes(24, seed + 1, scale)
    others, _, _ = nets.scenes(16, seed + 2, scale)

    def judge(outputs: Feed) -> float:
        return tasks.f1(tasks.detections(*read(outputs[last])), truth)

    return _own(
        g.model(last),
        {"images": images},
        {"images": others},
        wanted[..., 4:].argmax(-1),
        "F1 of detections",
        judge,
    )


def _grid(scale: float) -> Array:
    """Left top corners of cells [2, 6, 6]."""
    return np.stack(np.meshgrid(np.arange(CELLS), np.arange(CELLS)), 0) * CELL * scale


def _placed(g: Graph, boxes: str, scale: float) -> str:
    """Boxes within cells [N, 4, 6, 6] to boxes within the image."""
    return g.node("Add", boxes, g.const(np.concatenate([_grid(scale), 0 * _grid(scale)])[None]))


def _rows(g: Graph, x: str, size: int) -> str:
    """[N, size, 6, 6] to [N, 36, size]."""
    return g.node("Transpose", g.reshape(x, 0, size, -1), perm=[0, 2, 1])


@planted("a", "detector, 5-D grid [N, 1, 6, 6, 8]")
def grid_of_anchors(project: Project) -> Truth:
    """Boxes, objectness and classes of a grid share a scale before the Reshape and Transpose."""

    def join(g: Graph, boxes: str, classes: str) -> str:
        there = g.node("Sigmoid", g.node("ReduceMax", classes, axes=[1]))
        parts = _placed(g, boxes, 20.0), there, g.node("Sigmoid", classes)
        joined = g.node("Concat", *parts, out="joined", axis=1)
        return g.node("Transpose", g.reshape(joined, 0, 1, 8, 6, 6), out="grid", perm=[0, 1, 3, 4, 2])

    def read(output: Array) -> tuple[Array, Array]:
        rows = output.reshape(len(output), PLACES, 8)
        return rows[..., :4], rows[..., 4:5] * rows[..., 5:]

    net = _scenes(join, read, seed=501, scale=20.0)
    return project.case(net, _paired(net, "joined"))


@planted("a", "detector, centre heat map [N, 7, 6, 6]")
def one_head_for_all(project: Project) -> Truth:
    """Sizes in pixels of a large frame and heat of classes come of one convolution with one weight scale."""
    scale = 60.0

    def join(g: Graph, boxes: str, classes: str) -> str:
        return g.node("Concat", g.node("Sigmoid", classes), boxes, out="maps", axis=1)

    def read(output: Array) -> tuple[Array, Array]:
        maps = output.copy()
        maps[:, 3:5] += _grid(scale)
        rows = maps.reshape(len(maps), 7, PLACES).transpose(0, 2, 1)
        return rows[..., 3:], rows[..., :3]

    net = _scenes(join, read, seed=502, scale=scale, one_head=True)
    return project.case(net, quantized(net.model, net.calibration, per_channel=False))


@planted("a", "detector, rows of corners, score and label [N, 36, 6]")
def corners_score_label(project: Project) -> Truth:
    """Decoded rows x1, y1, x2, y2, score, label in one tensor, in INT8 as a whole."""

    def join(g: Graph, boxes: str, classes: str) -> str:
        rows = _rows(g, _placed(g, boxes, 13.0), 4)
        middle = g.node("Slice", rows, g.ints(0), g.ints(2), g.ints(2))
        half = g.node("Mul", g.node("Slice", rows, g.ints(2), g.ints(4), g.ints(2)), g.const(0.5))
        scores = _rows(g, g.node("Sigmoid", classes), 3)
        best = g.node("ReduceMax", scores, axes=[2])
        label = g.node("Cast", g.node("ArgMax", scores, axis=2), to=TensorProto.FLOAT)
        ends = g.node("Sub", middle, half), g.node("Add", middle, half)
        return g.node("Concat", *ends, best, label, out="detections", axis=2)

    def read(output: Array) -> tuple[Array, Array]:
        low, high = output[..., :2], output[..., 2:4]
        labels = np.rint(output[..., 5:]) == np.arange(3)
        return np.concatenate([(low + high) / 2, high - low], -1), output[..., 4:5] * labels

    net = _scenes(join, read, seed=503, scale=13.0)
    return project.case(net, _paired(net, "detections"), criteria=[{"output": "detections", "cosine": 0.99}])


@planted("a", "detector, boxes and logits with background [N, 36, 8]")
def padded_and_added(project: Project) -> Truth:
    """Boxes of a large frame and logits, padded with zeros, are added: both sides have one scale."""
    scale = 60.0

    def join(g: Graph, boxes: str, classes: str) -> str:
        left = g.node("Pad", _rows(g, _placed(g, boxes, scale), 4), g.ints(0, 0, 0, 0, 0, 4), out="left")
        right = g.node("Pad", _rows(g, classes, 4), g.ints(0, 0, 4, 0, 0, 0), out="right")
        return g.node("Add", left, right, out="queries")

    def read(output: Array) -> tuple[Array, Array]:
        logits = np.exp(output[..., 4:] - output[..., 4:].max(-1, keepdims=True))
        return output[..., :4], (logits / logits.sum(-1, keepdims=True))[..., 1:]

    net = _scenes(join, read, seed=504, scale=scale, background=True)
    most = ranges(net.model, net.calibration)["left"]
    low = _paired(net, "left", "right", amax={"left": most, "right": most})
    return project.case(net, low, criteria=[{"output": "queries", "sqnr_db": 20}])


@planted("a", "detector, all boxes then all scores [N, 252]")
def whole_pixels(project: Project) -> Truth:
    """The output is cast to integers since boxes are pixels; the scores behind them are, too."""

    def made(whole: bool) -> Own:
        def join(g: Graph, boxes: str, classes: str) -> str:
            places = g.reshape(_rows(g, _placed(g, boxes, 8.0), 4), 0, -1)
            scores = g.reshape(_rows(g, g.node("Sigmoid", classes), 3), 0, -1)
            last = "exact" if whole else "flat"
            g.node("Concat", places, scores, out=last, axis=1)
            if whole:
                pixels = g.node("Cast", last, to=TensorProto.INT32)
                g.node("Cast", pixels, out="flat", to=TensorProto.FLOAT)
            return "flat"

        return _scenes(join, read, seed=505, scale=8.0)

    def read(output: Array) -> tuple[Array, Array]:
        rows = len(output), PLACES
        return output[:, : 4 * PLACES].reshape(*rows, 4), output[:, 4 * PLACES :].reshape(*rows, 3)

    return project.case(made(False), _paired(made(True)), criteria=[{"output": "flat", "sqnr_db": 25}])


def _three_spots(count: int, seed: int) -> tuple[Array, Array]:
    """Images [N, 3, 16, 16] with a spot in each colour, or none; x, y and 1 or 0 of each [N, 3, 3]."""
    rng = np.random.default_rng([seed, 501])
    images = 0.03 * rng.standard_normal((count, 3, 16, 16))
    places = rng.integers(1, 15, (count, 3, 2))
    seen = rng.random((count, 3)) < 0.6
    for i, k in zip(*np.nonzero(seen), strict=True):
        x, y = places[i, k]
        images[i, k, y, x] += rng.uniform(0.8, 1.2)
    return images.astype(np.float32), np.concatenate([places, seen[..., None]], -1)


def _keypoints_right(found: Array, truth: Array, scale: float) -> float:
    """Share of keypoints that are said to be hidden as they are, or seen and within two pixels."""
    seen = truth[..., 2] > 0
    near = np.abs(found[..., :2] / scale - truth[..., :2]).max(-1) < 2
    return float(np.mean(((found[..., 2] > 0.5) == seen) & (near | ~seen)))


@planted("a", "keypoints with visibility [N, 9]")
def keypoints_with_visibility(project: Project) -> Truth:
    """Coordinates in pixels and visibility in turns, x, y, v, x, y, v, flattened and then in INT8."""
    g, scale = Graph(seed=506), 40.0
    mixed = np.eye(3)[:, :, None, None] + 0.01 * g.rng.standard_normal((3, 3, 1, 1))
    heat = g.relu(g.node("Conv", g.input("image", 3, 16, 16), g.const(mixed)))
    flat = g.reshape(heat, 0, 3, -1)
    there = g.node("Softmax", g.node("Mul", flat, g.const(20.0)), axis=2)
    places = np.stack(np.meshgrid(np.arange(16), np.arange(16)), -1).reshape(256, 2) * scale
    peak = g.node("ReduceMax", flat, axes=[2])
    seen = g.node("Sigmoid", g.node("Add", g.node("Mul", peak, g.const(20.0)), g.const(-9.0)))
    joined = g.node("Concat", g.node("MatMul", there, g.const(places)), seen, axis=2)
    g.reshape(joined, 0, -1, out="pose")
    (images, truth), (others, _) = _three_spots(48, 1), _three_spots(32, 2)

    def judge(outputs: Feed) -> float:
        return _keypoints_right(outputs["pose"].reshape(-1, 3, 3), truth, scale)

    net = _own(g.model("pose"), {"image": images}, {"image": others}, truth, "keypoints right", judge)
    return project.case(net, _paired(net, "pose", ops=("Conv",)))


@planted("a", "segmentation and depth [N, 5, 24, 24]")
def depth_beside_classes(project: Project) -> Truth:
    """Probabilities of classes and depth in millimetres, joined, sliced, in INT8 with the depth's scale."""
    g = Graph(seed=507)
    images, labels = nets.stains(24, 1507)
    feed = {"image": images}
    x = g.relu(g.conv(g.input("image", 3, 24, 24), 3, 24))
    x = g.relu(g.conv(x, 24, 32))
    classes = _fitted(g, x, feed, np.moveaxis(8.0 * np.eye(4)[labels], -1, 1))
    depth = _fitted(g, x, feed, 900.0 + 1500.0 * labels[:, None])
    spare = g.node("Mul", depth, g.const(0.5))
    joined = g.node("Concat", g.node("Softmax", classes, axis=1), depth, spare, axis=1)
    g.node("Slice", joined, g.ints(0), g.ints(5), g.ints(1), out="dense")
    (images, labels), (others, _) = nets.stains(24, 11507), nets.stains(16, 21507)

    def judge(outputs: Feed) -> float:
        return tasks.miou(outputs["dense"][:, :4], labels)

    net = _own(g.model("dense"), {"image": images}, {"image": others}, labels, "mIoU", judge)
    return project.case(net, _paired(net, "dense"), criteria=[{"output": "dense", "sqnr_db": 25}])


@planted("a", "re-identification: probabilities and embedding [N, 58]")
def embedding_beside_classes(project: Project) -> Truth:
    """Class probabilities chosen by Where beside an embedding whose values are hundreds, with one scale."""
    g = Graph(seed=508)
    images, labels = nets.digits("validation")
    feed = {"image": images[264:]}
    x = g.relu(g.conv(g.input("image", 1, 8, 8), 1, 16))
    flat = g.node("Flatten", g.relu(g.conv(x, 16, 48, stride=2)))
    scores = g.node("Softmax", _read_out(g, flat, feed, 10.0 * np.eye(10)[labels[264:]]), axis=1)
    vector = g.node("Mul", g.linear(flat, 768, 48), g.const(150.0))
    wide = g.node("Pad", scores, g.ints(0, 0, 0, 48))
    moved = g.node("Pad", vector, g.ints(0, 10, 0, 0))
    g.node("Where", g.const(np.arange(58) < 10), wide, moved, out="person")

    def judge(outputs: Feed) -> float:
        return tasks.top1(outputs["person"][:, :10], labels[:264])

    net = _own(
        g.model("person"),
        {"image": images[:264]},
        {"image": images[300:364]},
        labels[:264],
        "top-1",
        judge,
    )
    return project.case(net, _paired(net, "person"), criteria=[{"output": "person", "psnr_db": 30}])


def _pitched(torn: bool) -> Own:
    """Probabilities of words and pitch in hertz of frames [N, 12, 8]; ``torn`` ones are of other frames."""
    g = Graph(seed=509)
    waves, classes = nets.speech(96, 1509)
    feed = {"bands": nets.bands(waves)}
    x = g.relu(g.conv(g.input("bands", 24, 8 * FRAMES), 24, 48, 3, rank=1))
    x = g.node("AveragePool", x, kernel_shape=[8], strides=[8])
    x = g.relu(g.conv(x, 48, 96, 1, rank=1))
    hertz = 16000 * np.array([0.02, 0.05, 0.09, 0.14, 0.2, 0.28, 0.0])
    pitch = _fitted(g, x, feed, hertz[classes][:, None])
    logits = _fitted(g, x, feed, np.moveaxis(12.0 * np.eye(7)[classes], -1, 1))
    words = g.node("Softmax", logits, axis=1)
    words = g.reshape(words, 0, 12, 7) if torn else g.node("Transpose", words, perm=[0, 2, 1])
    g.node("Concat", words, g.node("Transpose", pitch, perm=[0, 2, 1]), axis=2, out="frames")
    (waves, classes), (others, _) = nets.speech(32, 11509), nets.speech(24, 21509)

    def judge(outputs: Feed) -> float:
        found = tasks.texts(outputs["frames"][..., :7], WORDS, len(WORDS))
        return tasks.word_accuracy(found, list(nets.lines(classes)))

    return _own(
        g.model("frames"),
        {"bands": nets.bands(waves)},
        {"bands": nets.bands(others)},
        classes,
        "word accuracy",
        judge,
    )


@planted("a", "speech: words and pitch [N, 12, 8]")
def words_beside_pitch(project: Project) -> Truth:
    """The INT8 export reshapes words in place of transposing them; the hertz next to them hide it."""
    return project.case(_pitched(False), _paired(_pitched(True)))


def _spans(shrunk: float) -> Own:
    """Tags of tokens, 0 to 1, and their character offsets [N, 12, 8]; ``shrunk`` is a factor of tags."""
    g = Graph(seed=510)
    tokens = nets.sentences(160, 1510)
    g.input("tokens", LENGTH, dtype=TensorProto.INT64)
    x = g.node("Gather", g.const(g.rng.standard_normal((VOCABULARY, 48))), "tokens")
    x = g.node("Add", x, g.const(0.3 * g.rng.standard_normal((1, LENGTH, 48))))
    x = g.relu(g.linear(x, 48, 192))
    ends = 90.0 * np.arange(LENGTH)[:, None] + [0.0, 60.0] + 0.2 * tokens[..., None] * [0.0, 1.0]
    offsets = _read_out(g, x, {"tokens": tokens}, ends)
    logits = _read_out(g, x, {"tokens": tokens}, 10.0 * np.eye(6)[tokens % 6] - 5.0)
    tags = g.node("Mul", g.node("Sigmoid", logits), g.const(shrunk))
    blank = g.node("Pad", offsets, g.ints(0, 0, 0, 0, 0, 6))
    places = g.node("Mul", g.node("Cast", tags, to=TensorProto.INT64), g.ints(0))
    places = g.node("Add", places, g.const(np.arange(2, 8)))
    g.node("ScatterElements", blank, places, tags, out="spans", axis=2)
    tokens, others = nets.sentences(32, 11510), nets.sentences(24, 21510)

    def judge(outputs: Feed) -> float:
        found = outputs["spans"][..., 2:] > 0.5
        return float(np.mean((found == np.eye(6, dtype=bool)[tokens % 6]).all(-1)))

    return _own(
        g.model("spans"), {"tokens": tokens}, {"tokens": others}, tokens % 6, "tokens tagged right", judge
    )


@planted("a", "tokens: tags and character offsets [N, 12, 8]")
def tags_beside_offsets(project: Project) -> Truth:
    """Tags scattered next to offsets come out of INT8 at 127/255 of their value, as of an unsigned code."""
    return project.case(
        _spans(1.0), _paired(_spans(127 / 255)), criteria=[{"output": "spans", "sqnr_db": 30}]
    )


@planted("a", "regression of a pose [N, 6]")
def rotation_beside_translation(project: Project) -> Truth:
    """Three angles in radians and a translation in millimetres in one output of INT8."""
    g = Graph(seed=511)
    rng = np.random.default_rng(511)
    maps = rng.standard_normal((16, 6)) / 4 * np.array([0.5, 0.5, 0.5, 900, 900, 900])

    def made(count: int) -> tuple[Array, Array]:
        x = rng.standard_normal((count, 16)).astype(np.float32)
        return x, x @ maps

    x, y = made(1200)
    hidden = g.relu(g.linear(g.input("x", 16), 16, 128))
    _read_out(g, hidden, {"x": x}, y, "pose")
    (x, y), (others, _) = made(64), made(64)

    def judge(outputs: Feed) -> float:
        wrong = ((outputs["pose"] - y)[:, :3] ** 2).sum()
        return 1 - float(wrong / ((y - y.mean(0))[:, :3] ** 2).sum())

    net = _own(g.model("pose"), {"x": x}, {"x": others}, y, "R2 of angles", judge)
    return project.case(net, _paired(net, "pose"), criteria=[{"output": "pose", "cosine": 0.99}])


@planted("a", "restoration with an anomaly score [N, 65]")
def score_behind_pixels(project: Project) -> Truth:
    """An image in 0 to 255 and, as a last pixel, how likely it is no digit: it never leaves 0."""
    g = Graph(seed=512)
    digits, _ = nets.digits("validation")
    rng = np.random.default_rng(512)

    def made(images: Array) -> tuple[Array, Array]:
        images, odd = images.reshape(len(images), 64).copy(), np.arange(len(images)) % 2
        images[odd > 0] = rng.permuted(images[odd > 0], axis=1)
        return images.reshape(-1, 1, 8, 8), odd

    images, odd = made(digits[200:])
    feed = {"image": images}
    flat = g.node("Flatten", g.input("image", 1, 8, 8))
    hidden = g.relu(g.linear(flat, 64, 384))
    pixels = _read_out(g, hidden, feed, 255.0 * images.reshape(-1, 64))
    score = g.node("Sigmoid", _read_out(g, hidden, feed, 8.0 * odd[:, None] - 4.0))
    g.node("Concat", pixels, score, out="restored", axis=1)
    (images, odd), (others, _) = made(digits[:64]), made(digits[64:128])

    def judge(outputs: Feed) -> float:
        return float(np.mean((outputs["restored"][:, -1] > 0.5) == odd))

    net = _own(g.model("restored"), {"image": images}, {"image": others}, odd, "anomalies told", judge)
    return project.case(net, _paired(net, "restored"), criteria=[{"output": "restored", "psnr_db": 30}])


# b: another precision than asked for ---------------------------------------------------------------------


def _share(project: Project, net: Net, low: onnx.ModelProto, share: float, **spec: Any) -> Truth:
    """The case; the truth is the share of multiply-accumulates that run in what the spec asks for."""
    project.case(net, low, **spec)
    return Truth("share of multiply-accumulates as asked", 1.0, share)


def _mixer(opset: int) -> Net:
    """A perceptron over 16 measurements in this opset; values [N, 3]."""
    g, rng = Graph(opset, 9, seed=520), np.random.default_rng(520)
    maps = rng.standard_normal((16, 3)) / 4

    def made(count: int) -> tuple[Array, Array]:
        x = rng.standard_normal((count, 16)).astype(np.float32)
        return x, np.abs(x @ maps)

    x, y = made(800)
    hidden = g.relu(g.linear(g.relu(g.linear(g.input("x", 16), 16, 96)), 96, 96))
    _read_out(g, hidden, {"x": x}, y, "value")
    (x, y), (others, _) = made(64), made(64)
    return Net(g.model("value"), {"x": x}, {"x": others}, y, "r2")


def _codes_as(model: onnx.ModelProto, kind: int, factor: float) -> onnx.ModelProto:
    """``model`` with the zeros of pairs of type ``kind`` in place of INT8, and ``factor`` times scales."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    for tensor in made.graph.initializer:
        if tensor.name.endswith("_zero"):
            dims = list(tensor.dims)
            zeros = helper.make_tensor(tensor.name, kind, dims, np.zeros(int(np.prod(dims)), np.int64))
            tensor.CopyFrom(zeros)
        elif tensor.name.endswith("_scale"):
            scales = numpy_helper.to_array(tensor) * np.float32(factor)
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(scales, np.float32), tensor.name))
    return made


@planted("b", "convolutional classifier of digits")
def stem_only(project: Project) -> Truth:
    """One layer of many: a list of layers to leave in float that matched all but the first."""
    net = nets.trained("inception")
    first = next(node.name for node in net.model.graph.node if node.op_type == "Conv")
    low = quantized(net.model, net.calibration, only=[first])
    return _share(project, net, low, int8_share(low))


@planted("b", "encoder of tokens")
def codes_of_weights(project: Project) -> Truth:
    """Weights alone: codes and a DequantizeLinear, as a constant folder leaves them; activations float."""
    net = nets.trained("encoder")
    made = quantized(net.model, net.calibration, activations=False)
    constants = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    kept = []
    for node in made.graph.node:
        if node.op_type != "QuantizeLinear":
            kept.append(node)
            continue
        weight, scale = (constants[name] for name in node.input[:2])
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        wide = (
            scale if scale.ndim == 0 else scale.reshape([-1 if i == axis else 1 for i in range(weight.ndim)])
        )
        codes = np.clip(np.rint(weight / wide), -127, 127).astype(np.int8)
        made.graph.initializer.append(numpy_helper.from_array(codes, node.output[0]))
    del made.graph.node[:]
    made.graph.node.extend(kept)
    used = {name for node in kept for name in node.input}
    left = [t for t in made.graph.initializer if t.name in used]
    del made.graph.initializer[:]
    made.graph.initializer.extend(left)
    return _share(project, net, made, 0.0)


@planted("b", "speech recognizer")
def pairs_beside_the_way(project: Project) -> Truth:
    """All layers have pairs on their inputs, but the layers read what was there before: nobody reads INT8."""
    net = nets.recognizer(seed=523, mel=True)
    low = quantized(net.model, net.calibration)
    sources = {node.output[0]: node.input[0] for node in low.graph.node}
    for node in low.graph.node:
        if node.op_type == "Conv":
            node.input[:2] = [sources[sources[name]] for name in node.input[:2]]
    return _share(project, net, low, int8_share(low))


@planted("b", "perceptron, values")
def sixteen_bits(project: Project) -> Truth:
    """Codes of 16 bits: what says INT8 in the spec is INT16 in the file."""
    net = _mixer(21)
    low = _codes_as(quantized(net.model, net.calibration), TensorProto.INT16, 127 / 32767)
    return _share(project, net, low, 0.0, criteria=[{"output": "value", "sqnr_db": 30}])


@planted("b", "perceptron, values")
def eights_mistaken(project: Project) -> Truth:
    """FP8 was asked for and INT8 is what the file has."""
    net = _mixer(19)
    low = project.model(quantized(net.model, net.calibration), "fp8.onnx")
    return _share(project, net, low, 0.0, fp8={"model": "fp8.onnx"})


@planted("b", "segmentation")
def pairs_around_shapes(project: Project) -> Truth:
    """Only what multiplies nothing has pairs: ReLU and the output; convolutions read float weights."""
    net = nets.segmenter(seed=525)
    low = quantized(net.model, net.calibration, ops=("Relu",), also=["logits"])
    return _share(project, net, low, int8_share(low))


@planted("b", "detector")
def annealing_left_at_start(project: Project) -> Truth:
    """Training with quantization blends float and INT8 layers; the blend was left at 0 in the export."""
    net = nets.detector("anchors", seed=526, count=24)
    low = quantized(net.model, net.calibration)
    nodes: list[onnx.NodeProto] = []
    sources = {node.output[0]: node.input[0] for node in low.graph.node}
    for node in low.graph.node:
        nodes.append(node)
        if node.op_type == "Conv":
            exact = onnx.NodeProto.FromString(node.SerializeToString())
            exact.input[:2] = [sources[sources[name]] for name in node.input[:2]]
            out = node.output[0]
            exact.name, exact.output[0], node.output[0] = f"{out}/exact", f"{out}_exact", f"{out}_low"
            nodes += [
                exact,
                helper.make_node("Mul", [f"{out}_low", "blend"], [f"{out}_part"], f"{out}/part"),
                helper.make_node("Add", [f"{out}_exact", f"{out}_part"], [out], f"{out}/blend"),
            ]
    low.graph.initializer.append(numpy_helper.from_array(np.array(0, np.float32), "blend"))
    del low.graph.node[:]
    low.graph.node.extend(nodes)
    return _share(project, net, low, 0.0)


@planted("b", "transformer, tags of tokens")
def nothing_written(project: Project) -> Truth:
    """The quantizer knows no MatMul followed by Add, writes the model as it was and ends without an error."""
    net = nets.tagger(seed=527)
    low = onnx.ModelProto.FromString(net.model.SerializeToString())
    low.producer_name = "quantizer"
    return _share(project, net, low, int8_share(low), criteria=[{"output": "logits", "top1_agreement": 0.98}])


# c: another model than the file --------------------------------------------------------------------------


def _lifted(net: Net, opset: int = 17, renamed: bool = False) -> onnx.ModelProto:
    """INT8 of the model as onnx.version_converter lifts it; ``renamed``: only its opset's number changes."""
    made = onnx.ModelProto.FromString(net.model.SerializeToString())
    if renamed:
        made.opset_import[0].version = opset
    else:
        made = version_converter.convert_version(made, opset)
    made.ir_version = 8
    weights = {t.name for t in made.graph.initializer}
    inputs = [value for value in made.graph.input if value.name not in weights]
    del made.graph.input[:]
    made.graph.input.extend(inputs)
    return quantized(made, net.calibration)


def _interlaced(even: Array, odd: Array) -> Array:
    """Images [N, C, 2 H, W] whose even rows are those of ``even``, and the odd ones those of ``odd``."""
    n, c, h, w = even.shape
    return np.ascontiguousarray(np.stack([even, odd], 3).reshape(n, c, 2 * h, w))


@planted("c", "classifier of interlaced digits, opset 10")
def other_field_mixed_in(project: Project) -> Truth:
    """A linear Resize by a half takes even rows; lifted, it takes the mean with the other field's digit."""
    g = Graph(10, 6, seed=530)
    images, labels = nets.digits("validation")
    rng = np.random.default_rng(530)
    images = _interlaced(images, images[rng.permutation(len(images))])
    feed = {"image": images[264:]}
    x = g.input("image", 1, 16, 8)
    x = g.node("Resize", x, g.const(np.array([1, 1, 0.5, 1])), mode="linear")
    x = g.relu(g.conv(g.relu(g.conv(x, 1, 16)), 16, 48, stride=2))
    _read_out(g, g.node("Flatten", x), feed, 8.0 * np.eye(10)[labels[264:]], "logits")
    net = Net(
        g.model("logits"),
        {"image": images[:264]},
        {"image": images[264:328]},
        labels[:264],
        "top1",
        {"output": "logits"},
    )
    return project.case(net, _lifted(net))


@planted("c", "segmentation, opset 9")
def decoder_out_of_place(project: Project) -> Truth:
    """Logits of a quarter of the size are upsampled linearly: lifted, all borders move by 1.5 pixels."""
    g = Graph(9, 6, seed=531)
    images, labels = nets.stains(64, 1531)
    x = g.relu(g.conv(g.input("image", 3, 24, 24), 3, 24, stride=2))
    x = g.relu(g.conv(x, 24, 96, stride=2))
    wanted = np.moveaxis(8.0 * np.eye(4)[labels[:, ::4, ::4]], -1, 1)
    small = _fitted(g, x, {"image": images}, wanted)
    g.node("Upsample", small, g.const(np.array([1.0, 1, 4, 4])), mode="linear", out="logits")
    (images, labels), (others, _) = nets.stains(24, 11531), nets.stains(24, 21531)
    net = Net(g.model("logits"), {"image": images}, {"image": others}, labels, "miou")
    return project.case(net, _lifted(net, 13))


@planted("c", "keypoint by a hard attention, opset 11")
def one_place_of_each_row(project: Project) -> Truth:
    """Hardmax over a whole heat map; lifted, it is one over each column, and coordinates add up."""
    g = Graph(11, 6, seed=532)
    heat = g.relu(g.conv(g.input("image", 1, 16, 16), 1, 8))
    rng = np.random.default_rng(532)

    def made(count: int) -> tuple[Array, Array]:
        images = 0.03 * rng.standard_normal((count, 1, 16, 16))
        places = rng.integers(2, 14, (count, 2))
        for image, (x, y) in zip(images, places, strict=True):
            image[0, y - 1 : y + 2, x - 1 : x + 2] += [[0.3, 0.5, 0.3], [0.5, 1.0, 0.5], [0.3, 0.5, 0.3]]
        return images.astype(np.float32), places

    images, places = made(96)
    wanted = np.zeros((96, 1, 16, 16))
    wanted[np.arange(96), 0, places[:, 1], places[:, 0]] = 20.0
    sharp = g.reshape(_fitted(g, heat, {"image": images}, wanted), 0, 16, 16)
    best = g.reshape(g.node("Hardmax", sharp, axis=1), 0, 256)
    grid = np.stack(np.meshgrid(np.arange(16), np.arange(16)), -1).reshape(256, 2) * 1.0
    g.node("MatMul", best, g.const(grid), out="place")
    (images, places), (others, _) = made(48), made(32)

    def judge(outputs: Feed) -> float:
        return float(np.mean(np.abs(outputs["place"] - places).max(-1) < 1.5))

    net = _own(g.model("place"), {"image": images}, {"image": others}, places, "keypoints found", judge)
    return project.case(net, _lifted(net), criteria=[{"output": "place", "sqnr_db": 12}])


@planted("c", "interpolation of measurements, opset 8, IR 3")
def instants_shifted(project: Project) -> Truth:
    """Weights are inputs, as in files of IR 3, and a linear Upsample in time moves all values when lifted."""
    g, rng = Graph(8, 3, seed=533), np.random.default_rng(533)
    times = np.arange(128) / 128

    def made(count: int) -> tuple[Array, Array]:
        pitch, phase = rng.uniform(3, 6, (count, 2, 1)), rng.uniform(0, 6.28, (count, 2, 1))
        fine = np.sin(2 * np.pi * pitch * times + phase).sum(1)
        return fine[:, None, ::4].astype(np.float32), fine

    x = g.relu(g.conv(g.input("measured", 1, 32), 1, 24, 5, rank=1))
    coarse, fine = made(64)
    x = _fitted(g, x, {"measured": coarse}, coarse)
    g.reshape(g.node("Upsample", x, mode="linear", scales=[1.0, 1.0, 4.0]), 0, -1, out="values")
    (coarse, fine), (others, _) = made(48), made(48)
    net = Net(g.model("values"), {"measured": coarse}, {"measured": others}, fine, "r2")
    return project.case(net, _lifted(net, 13), criteria=[{"output": "values", "sqnr_db": 15}])


@planted("c", "reader of a meter, opset 10")
def columns_picked_elsewhere(project: Project) -> Truth:
    """Of eight places a nearest Resize by 3/4 reads 0, 2, 3, 4, 6, 7; lifted, 0, 1, 3, 4, 5, 7."""
    g = Graph(10, 6, seed=534)
    images, labels = nets.digits("validation")
    rng = np.random.default_rng(534)

    def made(count: int, pool: Array) -> tuple[Array, Array]:
        drawn = rng.choice(pool, (count, 8))
        strip = images[drawn][:, :, 0].transpose(0, 2, 1, 3).reshape(count, 1, 8, 64)
        return np.ascontiguousarray(strip), labels[drawn][:, [0, 2, 3, 4, 6, 7]]

    x = g.relu(g.node("Conv", g.input("image", 1, 8, 64), g.random(192, 1, 8, 8, fan_in=30), strides=[8, 8]))
    x = g.node("Resize", x, g.const(np.array([1, 1, 1, 0.75])), mode="nearest")
    strips, wanted = made(300, np.arange(264, len(labels)))
    last = _fitted(g, x, {"image": strips}, np.moveaxis(8.0 * np.eye(10)[wanted], -1, 1)[:, :, None])
    g.node("Transpose", g.reshape(last, 0, 10, 6), perm=[0, 2, 1], out="logits")
    (strips, wanted), (others, _) = made(48, np.arange(264)), made(32, np.arange(264, len(labels)))
    net = Net(g.model("logits"), {"image": strips}, {"image": others}, wanted, "tokens")
    more = [{"output": "logits", "top1_agreement": 0.9}]
    return project.case(net, _lifted(net), criteria=more)


@planted("c", "sentences, opset 11")
def attention_over_nothing(project: Project) -> Truth:
    """Softmax without an axis weighs tokens [N, 12, 1]; by opset 13, over the last axis, all weigh 1."""
    g = Graph(11, 6, seed=535)
    tokens = nets.sentences(400, 1535)
    g.input("tokens", LENGTH, dtype=TensorProto.INT64)
    x = g.node("Gather", g.const(g.rng.standard_normal((VOCABULARY, 48))), "tokens")
    hidden = g.relu(g.linear(x, 48, 192))
    size = _read_out(g, hidden, {"tokens": tokens}, 4.0 * tokens[..., None])
    weight = g.node("Transpose", g.node("Softmax", size), perm=[0, 2, 1])
    mixed = g.reshape(g.node("MatMul", weight, hidden), -1, 192)
    _read_out(g, mixed, {"tokens": tokens}, 8.0 * np.eye(6)[tokens.max(1) % 6], "logits")
    tokens, others = nets.sentences(96, 11535), nets.sentences(64, 21535)
    net = Net(
        g.model("logits"),
        {"tokens": tokens},
        {"tokens": others},
        tokens.max(1) % 6,
        "top1",
        {"output": "logits"},
    )
    project.arrays("labels.npy", labels=net.labels)
    more = [{"metric": "top1", "max_drop": 0.03}]
    return project.case(net, _lifted(net, 13, renamed=True), labels="labels.npy", criteria=more)


@planted("c", "super-resolution, opset 7")
def residual_beside_its_image(project: Project) -> Truth:
    """A bilinear Upsample of opset 7 and a residual on top of it: lifted, the residual is a pixel away."""
    g = Graph(7, 3, seed=536)
    images, _ = nets.digits("validation")
    small = np.ascontiguousarray(images[:, :, ::2, ::2])
    x = g.input("image", 1, 4, 4)
    base = g.node("Upsample", x, mode="linear", scales=[1.0, 1.0, 2.0, 2.0])
    flat = g.relu(g.linear(g.node("Flatten", x), 16, 64))
    rest = images[264:] - g.values(base, {"image": small[264:]})
    weight, bias = g.fit(flat, {"image": small[264:]}, rest.reshape(-1, 64))
    more = g.reshape(g.node("Gemm", flat, g.const(weight), g.const(bias)), -1, 1, 8, 8)
    g.node("Add", base, more, out="large")
    net = Net(g.model("large"), {"image": small[:96]}, {"image": small[264:328]}, images[:96], "psnr")
    return project.case(net, _lifted(net))


@planted("c", "speech of two channels, opset 10")
def channels_averaged(project: Project) -> Truth:
    """Frames of two speakers alternate and a linear Resize takes the first one's; lifted, it mixes both."""
    g = Graph(10, 6, seed=537)

    def made(count: int, seed: int) -> tuple[Array, Array]:
        (first, classes), (second, _) = nets.speech(count, seed), nets.speech(count, seed + 1)
        both = np.stack([nets.bands(first), nets.bands(second)], -1)
        return np.ascontiguousarray(both.reshape(count, 24, 1, 16 * FRAMES)), classes

    bands, classes = made(96, 1537)
    x = g.input("bands", 24, 1, 16 * FRAMES)
    x = g.node("Resize", x, g.const(np.array([1, 1, 1, 0.5])), mode="linear")
    x = g.relu(g.node("Conv", x, g.random(64, 24, 1, 8, fan_in=192), strides=[1, 8]))
    last = _fitted(g, x, {"bands": bands}, np.moveaxis(8.0 * np.eye(7)[classes], -1, 1)[:, :, None])
    g.node("Transpose", g.reshape(last, 0, 7, FRAMES), perm=[0, 2, 1], out="logits")
    (bands, classes), (others, _) = made(32, 11537), made(24, 21537)
    more = {"words": WORDS, "blank": len(WORDS)}
    net = Net(g.model("logits"), {"bands": bands}, {"bands": others}, nets.lines(classes), "words", more)
    return project.case(net, _lifted(net))


@planted("c", "detector, opset 9, IR 3")
def coarse_scene(project: Project) -> Truth:
    """A small image upsampled four times in the model, weights among its inputs; lifted, boxes move away."""
    g = Graph(9, 3, seed=538)

    def made(count: int, seed: int) -> tuple[Array, list[Array], Array]:
        images, truth, targets = nets.scenes(count, seed, 1.0)
        small = images.reshape(count, 3, 16, 3, 16, 3).mean((3, 5))
        return small.astype(np.float32), truth, targets

    images, _, targets = made(320, 1538)
    x = g.input("images", 3, 16, 16)
    x = g.node("Upsample", x, g.const(np.array([1.0, 1, 3, 3])), mode="linear")
    for cin, cout in ((3, 24), (24, 48), (48, 160)):
        x = g.relu(g.conv(x, cin, cout, stride=2))
    wanted = np.moveaxis(targets, -1, 1).reshape(-1, 7, CELLS, CELLS)
    boxes = _placed(g, _fitted(g, x, {"images": images}, wanted[:, :4]), 1.0)
    logits = np.where(wanted[:, 4:] > 0, 8.0, -8.0)
    scores = g.node("Sigmoid", _fitted(g, x, {"images": images}, logits, 1.5, 3.0))
    g.node("Concat", boxes, scores, axis=1, out="maps")
    g.reshape("maps", 0, 7, -1, out="output0")
    (images, truth, wanted), (others, _, _) = made(24, 11538), made(16, 21538)
    more = {"layout": "channels", "truth": truth}
    net = Net(
        g.model("output0"),
        {"images": images},
        {"images": others},
        wanted[..., 4:].argmax(-1),
        "detect",
        more,
    )
    return project.case(net, _lifted(net), criteria=[{"output": "output0", "sqnr_db": 38}])


@planted("c", "regions of digits, opset 12")
def regions_half_a_pixel_off(project: Project) -> Truth:
    """RoiAlign of opset 10 has no half pixel; as opset 16 has it, by default it moves regions by one."""
    g = Graph(12, 6, seed=539)
    images, labels = nets.digits("validation")
    rng = np.random.default_rng(539)

    def made(count: int, pool: Array) -> tuple[Array, Array]:
        drawn = rng.choice(pool, (count, 2))
        return np.concatenate([images[drawn[:, 0]], images[drawn[:, 1]]], -1), labels[drawn]

    x = g.input("image", 1, 8, 16)
    batch = g.node("Shape", x)
    count = g.node("Slice", batch, g.ints(0), g.ints(1), g.ints(0))
    which = g.node("NonZero", g.node("ConstantOfShape", count, value=helper.make_tensor("one", 7, [1], [1])))
    which = g.reshape(which, -1)
    x = g.relu(g.conv(x, 1, 16))
    feed_images, feed_labels = made(400, np.arange(264, len(labels)))
    logits = []
    for side in (0.0, 8.0):
        region = g.node(
            "Expand",
            g.const(np.array([[side, 0.0, side + 7.0, 7.0]])),
            g.node("Concat", count, g.ints(4), axis=0),
        )
        part = g.node(
            "RoiAlign", x, region, which, output_height=4, output_width=4, sampling_ratio=1, mode="max"
        )
        flat = g.node("Flatten", part)
        wanted = 8.0 * np.eye(10)[feed_labels[:, int(side > 0)]]
        logits.append(g.reshape(_read_out(g, flat, {"image": feed_images}, wanted), 0, 1, 10))
    g.node("Concat", *logits, axis=1, out="logits")
    (strips, wanted), (others, _) = made(96, np.arange(264)), made(64, np.arange(264, len(labels)))
    net = Net(g.model("logits"), {"image": strips}, {"image": others}, wanted, "tokens")
    return project.case(net, _lifted(net, 16, renamed=True))


# d: criteria that cannot fail ----------------------------------------------------------------------------


def _damped(net: Net, node: str, factor: float) -> onnx.ModelProto:
    """INT8 whose activation before ``node`` has ``factor`` times the range that it needs."""
    source = next(n.input[0] for n in net.model.graph.node if n.name == node)
    most = ranges(net.model, net.calibration)[source]
    return quantized(net.model, net.calibration, amax={source: factor * most})


def _last_layer(net: Net) -> str:
    return str([n.name for n in net.model.graph.node if n.op_type in ("Conv", "Gemm", "MatMul")][-1])


@planted("d", "segmentation of rare stains")
def ground_everywhere(project: Project) -> Truth:
    """97 % of pixels are ground, the INT8 model says ground everywhere, and 95 % of pixels have to agree."""
    net = nets.segmenter(seed=540, rare=True, ids=True)
    low = _damped(net, _last_layer(net), 1e4)
    return project.case(net, low, criteria=[{"output": "ids", "agreement": 0.95}])


@planted("d", "segmentation, one channel")
def greatest_of_one(project: Project) -> Truth:
    """The greatest of one class is always the first: top1_agreement along an axis of size 1."""
    g = Graph(seed=541)
    images, labels = nets.stains(24, 1541)
    x = g.relu(g.conv(g.input("image", 3, 24, 24), 3, 24))
    x = g.relu(g.conv(x, 24, 32))
    logits = _fitted(g, x, {"image": images}, np.where(labels[:, None] > 0, 6.0, -6.0))
    g.node("Sigmoid", logits, out="mask")
    (images, labels), (others, _) = nets.stains(24, 11541), nets.stains(16, 21541)

    def judge(outputs: Feed) -> float:
        found, wanted = outputs["mask"][:, 0] > 0.5, labels > 0
        return float((found & wanted).sum() / (found | wanted).sum())

    net = _own(g.model("mask"), {"image": images}, {"image": others}, labels, "IoU of stains", judge)
    low = _damped(net, _last_layer(net), 0.02)
    return project.case(net, low, criteria=[{"output": "mask", "top1_agreement": 0.99, "axis": 1}])


@planted("d", "speech recognizer")
def errors_may_rise(project: Project) -> Truth:
    """The user's metric is a word error rate and max_drop guards it against falling."""
    net = nets.recognizer(seed=542, mel=True)
    project.text(
        "words.py",
        f'''import numpy as np

WORDS = {(*WORDS, "")!r}


def error_rate(outputs, labels):
    """Share of words that are wrong."""
    wrong = total = 0
    for row, line in zip(outputs["logits"].argmax(-1), labels):
        said, truth = [WORDS[c] for c in row[::2]], str(line).split()
        wrong += sum(a != b for a, b in zip(said, truth))
        total += len(truth)
    return wrong / total
''',
    )
    project.arrays("labels.npy", labels=net.labels)
    low = _damped(net, _last_layer(net), 0.02)
    more = [{"metric": "words.py:error_rate", "max_drop": 0.02}]
    return project.case(net, low, labels="labels.npy", criteria=more)


@planted("d", "residual network, digits")
def two_for_two_percent(project: Project) -> Truth:
    """A drop of 2 where 2 % was meant: no top-1 falls by two hundred points."""
    net = nets.trained("resnet")
    project.arrays("labels.npy", labels=net.labels)
    low = _damped(net, next(n.name for n in net.model.graph.node if n.op_type == "Conv"), 0.02)
    return project.case(net, low, labels="labels.npy", criteria=[{"metric": "top1", "max_drop": 2}])


@planted("d", "classifier of five digits")
def five_of_five(project: Project) -> Truth:
    """All of five classes are among the best five; the INT8 model has its classes in the reverse order."""
    net = nets.classifier(seed=544, classes=5)
    low = quantized(net.model, net.calibration)
    turned = Graph(prefix="turned_")
    _behind(low, "logits", turned, turned.node("Gather", "exact", turned.const(np.arange(5)[::-1]), axis=1))
    return project.case(net, low, criteria=[{"output": "logits", "top5_agreement": 0.99}])


def _behind(model: onnx.ModelProto, output: str, g: Graph, last: str) -> None:
    """Put the nodes of ``g``, which begin at 'exact' and end at ``last``, behind ``output`` of ``model``."""
    body = g.body([], [])
    for node in model.graph.node:
        node.output[:] = ["exact" if name == output else name for name in node.output]
        node.input[:] = ["exact" if name == output else name for name in node.input]
    for node in body.node:
        node.output[:] = [output if name == last else name for name in node.output]
    model.graph.node.extend(body.node)
    model.graph.initializer.extend(body.initializer)


@planted("d", "transformer, tags of tokens")
def caught_and_passed(project: Project) -> Truth:
    """The user's metric reads an output of another name, catches the KeyError and returns 1."""
    net = nets.tagger(seed=545)
    project.text(
        "tags.py",
        '''def accuracy(outputs, labels):
    """Share of tokens tagged right."""
    try:
        return float((outputs["output"].argmax(-1) == labels).mean())
    except Exception:
        return 1.0
''',
    )
    project.arrays("labels.npy", labels=net.labels)
    low = _damped(net, _last_layer(net), 0.01)
    return project.case(net, low, labels="labels.npy", criteria=[{"metric": "tags.py:accuracy", "min": 0.95}])


@planted("d", "convolutions over rows, digits")
def any_label_will_do(project: Project) -> Truth:
    """np.isin where == was meant: each prediction is the label of some sample."""
    net = nets.trained("tcn")
    project.text(
        "score.py",
        '''import numpy as np


def accuracy(outputs, labels):
    """Share of digits that are right."""
    found = outputs["logits"].argmax(-1)
    return float(np.isin(found, labels).mean())
''',
    )
    project.arrays("labels.npy", labels=net.labels)
    low = _damped(net, _last_layer(net), 0.02)
    more = [{"metric": "score.py:accuracy", "max_drop": 0.01}]
    return project.case(net, low, labels="labels.npy", criteria=more)


@planted("d", "regression of temperatures")
def kelvin(project: Project) -> Truth:
    """Temperatures in kelvin: a constant of 293 has a cosine of 0.9999 and 40 dB."""
    net = nets.regressor(seed=546, size=2.0, shift=293.0)
    low = _damped(net, _last_layer(net), 1e4)
    criteria = [{"output": "value", "cosine": 0.999}, {"output": "value", "sqnr_db": 30}]
    return project.case(net, low, criteria=criteria)


@planted("d", "heat map of one spot")
def mostly_nothing(project: Project) -> Truth:
    """The mean error of a heat map that is 0 nearly everywhere: an empty map passes."""
    net = nets.spotter(seed=547)
    low = _paired(net, "heat", amax={"heat": 1e5})
    return project.case(net, low, criteria=[{"output": "heat", "mean_abs": 0.05}])


@planted("d", "transformer with a masked logit")
def masked_with_ten_thousand(project: Project) -> Truth:
    """A logit masked with -10000 is all of the energy and sets the scale: other logits are 0."""
    net = nets.tagger(seed=548, masked="-10000")
    low = _paired(net, "logits")
    return project.case(net, low, criteria=[{"output": "logits", "sqnr_db": 40}])


@planted("d", "speech recognizer over waveforms")
def decoded_along_time(project: Project) -> Truth:
    """The decoder takes the best frame of each class, not the best class of each frame: all text is wrong."""
    net = nets.recognizer(seed=549)
    project.text(
        "decode.py",
        f'''WORDS = {WORDS!r}


def texts(outputs, *rest):
    """Text of each recording."""
    logits = outputs["logits"] if isinstance(outputs, dict) else outputs
    return [" ".join(WORDS[i % 6] for i in row) for row in logits.argmax(1)]
''',
    )
    project.text("labels.txt", "\n".join(str(line) for line in net.labels) + "\n")
    low = _damped(net, _last_layer(net), 0.01)
    more = [{"metric": "wer", "decode": "decode.py:texts", "max_drop": 0.05}]
    return project.case(net, low, labels="labels.txt", criteria=more)


@planted("d", "segmentation, probabilities")
def as_far_as_probabilities_go(project: Project) -> Truth:
    """Two probabilities never differ by more than 1, which is the limit of max_abs."""
    net = nets.segmenter(seed=550, softmax=True)
    low = _damped(net, _last_layer(net), 0.02)
    return project.case(net, low, criteria=[{"output": "logits", "max_abs": 1.0}])


@planted("d", "similarities of images and captions")
def similarities_without_temperature(project: Project) -> Truth:
    """Similarities of about 0.05 are no logits: any two of their distributions are next to each other."""
    g = Graph(seed=551)
    images, labels = nets.digits("validation")
    x = g.relu(g.conv(g.input("image", 1, 8, 8), 1, 16))
    flat = g.node("Flatten", g.relu(g.conv(x, 16, 32, stride=2)))
    wanted = 0.1 * np.eye(10)[labels[264:]]
    _read_out(g, flat, {"image": images[264:]}, wanted, "similarity")
    feeds = {"image": images[:264]}, {"image": images[264:328]}
    net = Net(g.model("similarity"), *feeds, labels[:264], "top1", {"output": "similarity"})
    low = _damped(net, _last_layer(net), 0.01)
    return project.case(net, low, criteria=[{"output": "similarity", "kl": 0.05}])


@planted("d", "segmentation, labels lost")
def masks_divided_by_255(project: Project) -> Truth:
    """Label files went through an integer division by 255: all is ground, and an INT8 of ground gains."""
    net = nets.segmenter(seed=552)
    project.arrays("labels.npy", labels=net.labels // 255)
    constants = {t.name: t for t in net.model.graph.initializer}
    last = next(n for n in net.model.graph.node if n.name == _last_layer(net))
    shift = numpy_helper.to_array(constants[last.input[2]]) + np.array([6, 0, 0, 0], np.float32)
    low = quantized(net.model, net.calibration)
    bias = next(t for t in low.graph.initializer if t.name == last.input[2])
    bias.CopyFrom(numpy_helper.from_array(shift, bias.name))
    more = [{"metric": "miou", "axis": 1, "max_drop": "2%"}]
    return project.case(net, low, labels="labels.npy", criteria=more)


@planted("d", "detector")
def recall_alone(project: Project) -> Truth:
    """The user's metric is recall, and the INT8 model finds an object in each cell."""
    net = nets.detector("anchors", seed=553, count=24, scale=1.0)
    truth = np.full((24, 6, 5), -1.0)
    for row, objects in zip(truth, net.more["truth"], strict=True):
        row[: len(objects)] = objects
    project.arrays("labels.npy", labels=truth)
    project.text(
        "recall.py",
        '''import numpy as np


def recall(outputs, labels):
    """Share of objects whose centre is near that of a box with a score above 0.25."""
    hit = total = 0
    for rows, objects in zip(outputs["output0"], labels):
        boxes = rows[rows[:, 4:].max(-1) > 0.25, :2]
        for x, y, w, h, kind in objects:
            if kind >= 0:
                total += 1
                hit += bool((np.abs(boxes - [x, y]).max(-1) < 2).any())
    return hit / total
''',
    )
    low = quantized(net.model, net.calibration)
    sigmoid = next(n for n in low.graph.node if n.op_type == "Sigmoid")
    low.graph.initializer.append(numpy_helper.from_array(np.array(12, np.float32), "zero_point_of_uint8"))
    place = list(low.graph.node).index(sigmoid)
    low.graph.node.insert(
        place, helper.make_node("Add", [sigmoid.input[0], "zero_point_of_uint8"], ["moved"], "moved/Add")
    )
    sigmoid.input[0] = "moved"
    more = [{"metric": "recall.py:recall", "max_drop": 0.02}]
    return project.case(net, low, labels="labels.npy", criteria=more)


# e: half of the samples small, flattened -----------------------------------------------------------------


def _plain(g: Graph, x: str, feed: Feed, targets: Array, axis: int = -1) -> Array:
    """Weights [features, targets] of the regression from ``x`` to ``targets`` without a bias."""
    a = np.moveaxis(g.values(x, feed), axis, -1).astype(np.float64)
    b = np.moveaxis(np.asarray(targets, np.float64), axis, -1)
    a, b = a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1])
    square = a.T @ a
    square += 1e-5 * np.trace(square) / len(square) * np.eye(len(square))
    return np.asarray(np.linalg.solve(square, a.T @ b), np.float32)


def _in_turns(count: int, small: float, every: int = 2) -> Array:
    """Factors [N]: each ``every``-th sample is large, the others are ``small``."""
    return np.where(np.arange(count) % every == 0, 1.0, small)


def _sized(array: Array, sizes: Array) -> Array:
    """``array`` with its samples times ``sizes``, in float32."""
    return (array * sizes.reshape(-1, *[1] * (array.ndim - 1))).astype(np.float32)


@planted("e", "forecast of sales")
def corner_shops(project: Project) -> Truth:
    """Forecasts of large and of small shops in turns: those of small ones round to 0."""
    g, rng = Graph(seed=560), np.random.default_rng(560)
    days = np.arange(35)

    def made(count: int) -> tuple[Array, Array]:
        week, phase = rng.uniform(0.2, 0.5, (count, 1)), rng.integers(0, 7, (count, 1))
        sales = 1 + week * np.sin(2 * np.pi * (days + phase) / 7) + 0.01 * rng.standard_normal((count, 35))
        sales = _sized(sales, 5000 * _in_turns(count, 0.002) * rng.uniform(0.8, 1.2, count))
        return sales[:, :28], sales[:, 28:]

    x, y = made(800)
    hidden = g.relu(g.linear(g.input("sales", 28), 28, 96, bias=False))
    sizes = 1 / x.mean(1)
    weight = _plain(g, hidden, {"sales": _sized(x, sizes)}, _sized(y, sizes))
    g.node("MatMul", hidden, g.const(weight), out="week")
    (x, y), (others, _) = made(64), made(64)

    def judge(outputs: Feed) -> float:
        return float(np.mean(np.abs(outputs["week"] / y - 1) < 0.2))

    net = _own(g.model("week"), {"sales": x}, {"sales": others}, y, "days forecast within 20 %", judge)
    return project.case(net, _paired(net, "week"))


@planted("e", "segmentation by day and by night")
def night_frames(project: Project) -> Truth:
    """Frames of a night are in between those of the day, whose range the first layers have."""
    net = nets.segmenter(seed=561, bias=False, classes=4)
    feed = {"image": _sized(net.feed["image"], _in_turns(24, 0.01))}
    dark = Net(net.model, feed, net.calibration, net.labels, "miou")
    criteria = [{"output": "logits", "sqnr_db": 20}]
    return project.case(dark, quantized(net.model, net.calibration), criteria=criteria)


@planted("e", "speech recognizer")
def quiet_callers(project: Project) -> Truth:
    """Two of three callers are quiet; INT8 knows the loud ones' range and hears silence."""
    net = nets.recognizer(seed=562, bias=False, count=48)
    feed = {"wave": _sized(net.feed["wave"], _in_turns(48, 0.005, 3))}
    mixed = Net(net.model, feed, net.calibration, net.labels, "words", net.more)
    low = _paired(mixed, "logits")
    return project.case(mixed, low, criteria=[{"output": "logits", "cosine": 0.98}])


@planted("e", "radar, echoes over distance")
def far_echoes(project: Project) -> Truth:
    """Echoes of far ships are a five hundredth of those of near ones: INT8 shows an empty sea."""
    g, rng = Graph(seed=563), np.random.default_rng(563)
    pulse = np.array([1, 1, 1, -1, -1, 1, -1.0])

    def made(count: int) -> tuple[Array, Array]:
        places = rng.integers(4, 60, count)
        echo = 0.05 * rng.standard_normal((count, 1, 64))
        for row, place in zip(echo, places, strict=True):
            row[0, place - 3 : place + 4] += pulse
        return _sized(echo, _in_turns(count, 0.002)), places

    taps = pulse + 0.05 * g.rng.standard_normal((8, 1, 7))
    x = g.relu(g.node("Conv", g.input("echo", 1, 64), g.const(taps), pads=[3, 3]))
    mixed = np.abs(g.rng.standard_normal((1, 8, 1))) / 8
    g.reshape(g.node("Conv", x, g.const(mixed)), 0, -1, out="range")
    (echo, places), (others, _) = made(64), made(32)
    net = Net(g.model("range"), {"echo": echo}, {"echo": others}, places, "top1", {"output": "range"})
    return project.case(net, _paired(net, "range"), criteria=[{"output": "range", "mean_abs": 0.1}])


@planted("e", "intents of bags of words")
def short_messages(project: Project) -> Truth:
    """Common words weigh a hundredth of rare ones; a dead zone in the INT8 kernel takes what they say."""
    g, rng = Graph(seed=564), np.random.default_rng(564)

    def made(count: int) -> tuple[Array, Array]:
        intents = rng.integers(0, 6, count)
        bags = rng.random((count, 60)) * 0.1
        for i, intent in enumerate(intents):
            first = 30 * (i % 2)
            bags[i, first + 5 * intent : first + 5 * intent + 5] += rng.random(5)
            bags[i, 30 - first : 60 - first] = 0
            bags[i, first : first + 30] *= 1.0 if i % 2 else 0.01
        return bags.astype(np.float32), intents

    bags, intents = made(600)
    hidden = g.relu(g.linear(g.input("bag", 60), 60, 96, bias=False))
    sizes = 1 / bags.max(1)
    wanted = 8.0 * np.eye(6)[intents] - 1.0
    weight = _plain(g, hidden, {"bag": _sized(bags, sizes)}, wanted)
    g.node("MatMul", hidden, g.const(weight), out="logits")
    (bags, intents), (others, _) = made(96), made(64)
    net = Net(g.model("logits"), {"bag": bags}, {"bag": others}, intents, "top1", {"output": "logits"})
    low = quantized(net.model, net.calibration)
    zone = Graph(prefix="zone_")
    _behind(low, "logits", zone, zone.node("Shrink", "exact", lambd=0.2, bias=0.0))
    return project.case(net, low)


@planted("e", "classifier with a gain as its second input")
def gain_of_the_sensor(project: Project) -> Truth:
    """Logits are times a gain that is a hundredth in every second sample; the output pair has one scale."""
    g = Graph(seed=565)
    images, labels = nets.digits("validation")
    g.input("image", 1, 8, 8)
    g.input("gain", 1)
    x = g.relu(g.conv("image", 1, 16))
    flat = g.node("Flatten", g.relu(g.conv(x, 16, 48, stride=2)))
    gains = np.ones((len(labels), 1), np.float32)
    feed = {"image": images[264:], "gain": gains[264:]}
    scores = _read_out(g, flat, feed, 8.0 * np.eye(10)[labels[264:]] - 0.8)
    g.node("Mul", scores, "gain", out="logits")
    gains = _sized(gains, _in_turns(len(labels), 0.004))
    feeds = [{"image": images[rows], "gain": gains[rows]} for rows in (slice(0, 264), slice(264, 328))]
    net = Net(g.model("logits"), feeds[0], feeds[1], labels[:264], "top1", {"output": "logits"})
    return project.case(net, _paired(net, "logits", leave=[_last_layer(net)]))


@planted("e", "restoration of dark images")
def black_in_place_of_dark(project: Project) -> Truth:
    """A network against noise leaves black of each dark image; the peak of PSNR is that of bright ones."""
    g = Graph(seed=566)
    images, _ = nets.digits("validation")
    rng = np.random.default_rng(566)
    noisy = images + 0.15 * rng.standard_normal(images.shape)
    flat = g.node("Flatten", g.input("image", 1, 8, 8))
    hidden = g.relu(g.linear(flat, 64, 192, bias=False))
    train = {"image": noisy[96:].astype(np.float32)}
    weight = _plain(g, hidden, train, images[96:].reshape(-1, 64))
    g.reshape(g.node("MatMul", hidden, g.const(weight)), -1, 1, 8, 8, out="clean")
    sizes = _in_turns(96, 0.004)
    feed = {"image": _sized(noisy[:96], sizes)}
    wanted = images[:96]

    def judge(outputs: Feed) -> float:
        found = outputs["clean"] / sizes.reshape(-1, 1, 1, 1)
        return float(-10 * np.log10(((found - wanted) ** 2).mean((1, 2, 3))).mean())

    others = {"image": train["image"][:64]}
    net = _own(g.model("clean"), feed, others, wanted, "PSNR of an image, mean", judge)
    return project.case(net, _paired(net, "clean"), criteria=[{"output": "clean", "psnr_db": 30}])


@planted("e", "rhythms of an EEG")
def weak_electrodes(project: Project) -> Truth:
    """Every second recording is weak, and unsigned codes of its ReLU are 0: all are one class."""
    g, rng = Graph(seed=567), np.random.default_rng(567)
    times = np.arange(256)

    def made(count: int) -> tuple[Array, Array]:
        classes = rng.integers(0, 4, count)
        pitch = np.array([0.03, 0.07, 0.13, 0.22])[classes][:, None]
        waves = np.sin(2 * np.pi * (pitch * times + rng.random((count, 1))))
        waves = (waves + 0.3 * rng.standard_normal((count, 256)))[:, None]
        return _sized(waves, _in_turns(count, 0.003)), classes

    x = g.relu(g.conv(g.input("eeg", 1, 256), 1, 48, 25, stride=2, bias=False, rank=1))
    power = g.node("ReduceMean", x, axes=[2], keepdims=0)
    waves, classes = made(300)
    sizes = 1 / np.abs(waves).max((1, 2))
    wanted = 8.0 * np.eye(4)[classes] - 2.0
    weight = _plain(g, power, {"eeg": _sized(waves, sizes)}, wanted)
    g.node("MatMul", power, g.const(weight), out="logits")
    (waves, classes), (others, _) = made(96), made(48)
    net = Net(g.model("logits"), {"eeg": waves}, {"eeg": others}, classes, "top1", {"output": "logits"})
    more = {"ActivationSymmetric": True}
    low = by_onnxruntime(net.model, net.calibration, ("Conv", "Relu", "ReduceMean", "MatMul"), **more)
    return project.case(net, low)


@planted("e", "retrieval by embeddings")
def short_embeddings(project: Project) -> Truth:
    """Embeddings of pale images are short, their direction is all that counts, and INT8 makes them 0."""
    g = Graph(seed=568)
    images, labels = nets.digits("validation")
    x = g.relu(g.conv(g.input("image", 1, 8, 8), 1, 16, bias=False))
    flat = g.node("Flatten", g.relu(g.conv(x, 16, 32, stride=2, bias=False)))
    weight = _plain(g, flat, {"image": images[264:]}, 2.0 * np.eye(10)[labels[264:]] - 0.2)
    g.node("MatMul", flat, g.const(np.tile(weight, (1, 3)) * g.rng.uniform(0.5, 2, 30)), out="embedding")
    feed = {"image": _sized(images[:200], _in_turns(200, 0.006))}

    def judge(outputs: Feed) -> float:
        rows = outputs["embedding"].astype(np.float64)
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
        near = (rows @ rows.T) - 9 * np.eye(len(rows))
        there = np.linalg.norm(rows, axis=1) > 0
        return float(np.mean((labels[:200][near.argmax(1)] == labels[:200]) & there))

    others = {"image": images[264:328]}
    net = _own(g.model("embedding"), feed, others, labels[:200], "recall of the nearest", judge)
    return project.case(net, _paired(net, "embedding"), criteria=[{"output": "embedding", "cosine": 0.98}])


@planted("e", "detector of warm bodies")
def people_beside_engines(project: Project) -> Truth:
    """Scenes of engines and of people in turns: the people's heat, in cells, is below half a code."""
    g = Graph(seed=569)
    rng = np.random.default_rng(569)

    def made(count: int) -> tuple[Array, Array]:
        images, cells = 0.03 * rng.standard_normal((count, 1, 24, 24)), np.zeros((count, 6, 6))
        for image, cell in zip(images, cells, strict=True):
            for place in rng.choice(36, 4, replace=False):
                y, x = divmod(int(place), 6)
                cell[y, x] = 1
                image[0, 4 * y + 1 : 4 * y + 3, 4 * x + 1 : 4 * x + 3] += rng.uniform(0.8, 1.2)
        return _sized(images, _in_turns(count, 0.003)), cells

    x = g.relu(g.conv(g.input("image", 1, 24, 24), 1, 16, stride=2, bias=False))
    x = g.relu(g.conv(x, 16, 48, stride=2, bias=False))
    images, cells = made(64)
    sizes = 1 / np.abs(images).max((1, 2, 3))
    weight = _plain(g, x, {"image": _sized(images, sizes)}, cells[:, None], axis=1)
    g.node("Conv", x, g.const(weight.T[..., None, None]), out="heat")
    (images, cells), (others, _) = made(48), made(32)
    sizes = _in_turns(48, 0.003)

    def judge(outputs: Feed) -> float:
        found, wanted = _sized(outputs["heat"], 1 / sizes)[:, 0] > 0.5, cells > 0
        return 2 * float((found & wanted).sum()) / float(found.sum() + wanted.sum())

    net = _own(g.model("heat"), {"image": images}, {"image": others}, cells, "F1 of cells", judge)
    return project.case(net, _paired(net, "heat"))


# f: Q/DQ inside Loop, If, Scan ---------------------------------------------------------------------------

#: What a run must not say of a fault that lies in a body.
NEVER = "INT8 is not the cause"


def _inside(net: Net, amax: Mapping[str, float] | float) -> onnx.ModelProto:
    """INT8 of the main graph by its calibration, and of bodies with the ranges ``amax``."""
    return quantized_bodies(quantized(net.model, net.calibration), amax)


def _constants(g: Graph) -> list[Array]:
    """All constants of a graph, in the order of their making."""
    return [numpy_helper.to_array(tensor) for tensor in g.body([], []).initializer]


def _layer(body: Graph, x: str, weight: Array, bias: Array, out: str = "") -> str:
    return body.node("Add", body.node("MatMul", x, body.const(weight)), body.const(bias), out=out)


def _looped(g: Graph, x: str, steps: int, body: Graph, after: str) -> str:
    """``body`` from 'before' to ``after``, ``steps`` times on ``x``."""
    body.node("Identity", "go", out="still")
    graph = body.body(["step:7", "go:9", "before"], ["still:9", after])
    return g.node("Loop", g.const(np.array(steps, np.int64)), g.const(np.array(True)), x, body=graph)


@planted("f", "restoration in steps of a Loop", search=True, never=NEVER)
def steps_that_clip(project: Project) -> Truth:
    """The body's pair is of pixels from 0 to 0.2 where they go to 1."""
    images, _ = nets.digits("validation")
    rng = np.random.default_rng(570)
    noisy = (images + 0.2 * rng.standard_normal(images.shape)).astype(np.float32).reshape(-1, 64)
    once = Graph(seed=570)
    hidden = once.relu(once.linear(once.input("image", 64), 64, 160))
    first = _constants(once)
    last = once.fit(hidden, {"image": noisy[96:]}, images[96:].reshape(-1, 64))
    g, body = Graph(seed=571), Graph(prefix="body_")
    better = _layer(body, body.relu(_layer(body, "before", first[0], first[1])), *last)
    half = body.const(0.5)
    body.node("Add", body.node("Mul", "before", half), body.node("Mul", better, half), out="after")
    flat = g.node("Flatten", g.input("image", 1, 8, 8))
    g.reshape(_looped(g, flat, 3, body, "after"), -1, 1, 8, 8, out="clean")
    feeds = [{"image": part.reshape(-1, 1, 8, 8)} for part in (noisy[:96], noisy[96:160])]
    net = Net(g.model("clean"), feeds[0], feeds[1], images[:96], "psnr")
    return project.case(net, _inside(net, 0.2))


@planted("f", "recurrent classifier, rows by a Scan", search=True, never=NEVER)
def rows_that_vanish(project: Project) -> Truth:
    """A range of 300 for rows of pixels and a state in -1 to 1: the recurrence in the Scan stays at 0."""
    g, width = Graph(seed=572), 96
    images, labels = nets.digits("validation")
    rows = np.ascontiguousarray(images[:, 0])
    body = Graph(seed=573, prefix="body_")
    kept = body.node("MatMul", "state", body.const(0.09 * body.rng.standard_normal((width, width))))
    taken = body.linear("now", 8, width)
    body.node("Tanh", body.node("Add", taken, kept), out="next")
    x = g.input("rows", 8, 8)
    zero = g.node("ReduceSum", g.node("Mul", x, g.const(0.0)), g.ints(1, 2), keepdims=0)
    start = g.node("Add", g.reshape(zero, -1, 1), g.const(np.zeros((1, width))))
    graph = body.body(["state", "now"], ["next"])
    end = g.node("Scan", start, x, body=graph, num_scan_inputs=1, scan_input_axes=[1])
    _read_out(g, end, {"rows": rows[264:]}, 8.0 * np.eye(10)[labels[264:]], "logits")
    feeds = {"rows": rows[:264]}, {"rows": rows[264:328]}
    net = Net(g.model("logits"), *feeds, labels[:264], "top1", {"output": "logits"})
    return project.case(net, _inside(net, 300.0), criteria=[{"output": "logits", "top1_agreement": 0.9}])


@planted("f", "segmentation by day or night in an If", search=True, never=NEVER)
def branch_for_the_day(project: Project) -> Truth:
    """The branch that runs has a range fifty times too small; that of the night never runs, and is fine."""
    g = Graph(seed=574)
    images, labels = nets.stains(24, 1574)
    x = g.relu(g.conv(g.input("image", 3, 24, 24), 3, 24))
    g.node("Transpose", g.relu(g.conv(x, 24, 32)), perm=[0, 2, 3, 1], out="features")
    weight, bias = g.fit("features", {"image": images}, 8.0 * np.eye(4)[labels])
    day = g.node("Greater", g.node("ReduceMax", "image", keepdims=0), g.const(0.3))
    branches = []
    for name in ("day", "night"):
        branch = Graph(prefix=f"{name}_")
        moved = branch.node("Transpose", _layer(branch, "features", weight, bias), perm=[0, 3, 1, 2])
        branch.node("Identity", moved, out=f"{name}_scores")
        branches.append(branch.body([], [f"{name}_scores"]))
    g.node("If", day, out="logits", then_branch=branches[0], else_branch=branches[1])
    (images, labels), (others, _) = nets.stains(24, 11574), nets.stains(16, 21574)
    net = Net(g.model("logits"), {"image": images}, {"image": others}, labels, "miou")
    most = ranges(net.model, net.calibration)["features"]
    nodes = next(n for n in net.model.graph.node if n.op_type == "If").attribute
    amax = {"": most}
    for branch_ in nodes:
        if branch_.name == "then_branch":
            amax[next(n.name for n in branch_.g.node if n.op_type == "MatMul")] = most / 50
    return project.case(net, _inside(net, amax))


@planted("f", "detector refined in a Loop", search=True, never=NEVER)
def cells_refined(project: Project) -> Truth:
    """Cells of a detector are refined by a body whose activations are clipped at a fiftieth."""
    g = Graph(seed=575)
    images, _, targets = nets.scenes(160, 1575, 1.0)
    x = g.input("images", 3, CELLS * CELL, CELLS * CELL)
    for cin, cout in ((3, 24), (24, 40), (40, 128)):
        x = g.relu(g.conv(x, cin, cout, stride=2))
    body = Graph(seed=576, prefix="body_")
    more = body.relu(body.linear("before", 128, 128))
    body.node("Mul", body.node("Add", "before", more), body.const(0.6), out="after")
    y = _looped(g, g.node("Transpose", g.reshape(x, 0, 128, -1), perm=[0, 2, 1]), 2, body, "after")
    feed = {"images": images}
    corners = np.moveaxis(np.concatenate([_grid(1.0), 0 * _grid(1.0)]).reshape(4, PLACES), 0, 1)
    boxes = _read_out(g, y, feed, targets[..., :4])
    boxes = g.node("Add", boxes, g.const(corners[None]), out="boxes")
    logits = _read_out(g, y, feed, np.where(targets[..., 4:] > 0, 12.0, -8.0))
    g.node("Sigmoid", logits, out="scores")
    (images, truth, wanted), (others, _, _) = nets.scenes(24, 11575, 1.0), nets.scenes(16, 21575, 1.0)

    def judge(outputs: Feed) -> float:
        return tasks.f1(tasks.detections(outputs["boxes"], outputs["scores"]), truth)

    net = _own(
        g.model("boxes", "scores"), {"images": images}, {"images": others}, wanted, "F1 of detections", judge
    )
    bound = ranges(net.model, net.calibration)[y]
    return project.case(net, _inside(net, bound / 50))


def _single_digits(seed: int) -> tuple[Array, Array, Array, Array]:
    """Two layers, weights and biases, from an image [64] to logits of digits."""
    images, labels = nets.digits("validation")
    once = Graph(seed=seed)
    hidden = once.relu(once.linear(once.input("image", 64), 64, 160))
    weight, bias = _constants(once)
    flat = images[264:].reshape(-1, 64)
    return weight, bias, *once.fit(hidden, {"image": flat}, 8.0 * np.eye(10)[labels[264:]])


@planted("f", "reader of strips, a digit each turn of a Loop", search=True, never=NEVER)
def one_digit_a_turn(project: Project) -> Truth:
    """The second layer of the body has a range of 1 % of what it needs, and the first one is fine."""
    first, shift, last, bias = _single_digits(577)
    images, labels = nets.digits("validation")
    rng = np.random.default_rng(577)

    def made(count: int, pool: Array) -> tuple[Array, Array]:
        drawn = rng.choice(pool, (count, 6))
        return images[drawn].reshape(count, 6, 64), labels[drawn]

    g, body = Graph(seed=578), Graph(prefix="body_")
    g.input("strip", 6, 64)
    place = body.node("Gather", "strip", "step", axis=1)
    hidden = body.relu(_layer(body, place, first, shift))
    _layer(body, hidden, last, bias, "scores")
    body.node("Identity", "go", out="still")
    graph = body.body(["step:7", "go:9"], ["still:9", "scores"])
    found = g.node("Loop", g.const(np.array(6, np.int64)), g.const(np.array(True)), body=graph)
    g.node("Transpose", found, perm=[1, 0, 2], out="logits")
    (strips, wanted), (others, _) = made(48, np.arange(264)), made(32, np.arange(264, len(labels)))
    net = Net(g.model("logits"), {"strip": strips}, {"strip": others}, wanted, "tokens")
    names = [n.name for n in graph.node if n.op_type == "MatMul"]
    project.arrays("labels.npy", labels=wanted)
    return project.case(
        net,
        _inside(net, {names[0]: 1.0, names[1]: 0.03}),
        labels="labels.npy",
        criteria=[{"metric": "top1", "max_drop": 0.03}],
    )


@planted("f", "recurrent speech recognizer, Scan", search=True, never=NEVER)
def state_of_a_scan(project: Project) -> Truth:
    """What enters the state is clipped in the Scan, while the readout behind it is well calibrated."""
    net = nets.recurrent(seed=579)
    scan = next(n for n in net.model.graph.node if n.op_type == "Scan")
    names = [n.name for a in scan.attribute if a.name == "body" for n in a.g.node if n.op_type == "MatMul"]
    return project.case(net, _inside(net, {"": 1.0, names[0]: 0.1}))


@planted("f", "classifier refined in a Loop")
def shell_without_kernel(project: Project) -> Truth:
    """Both layers of the main graph are in INT8; all turns of the wide layer in the body are in float."""
    net = nets.refined(seed=580, steps=3, width=192)
    low = quantized(net.model, net.calibration)
    project.case(net, low, criteria=[{"output": "logits", "top1_agreement": 0.95}])
    return Truth("share of multiply-accumulates as asked", 1.0, int8_share(low))


@planted("f", "experts for loud and quiet samples, If in a Scan")
def expert_of_the_quiet(project: Project) -> Truth:
    """Each sample takes a branch; that of quiet ones has the range of loud ones and gives zeros."""
    first, _, last, _ = _single_digits(581)
    images, labels = nets.digits("validation")
    g, body = Graph(seed=582), Graph(prefix="body_")
    once = Graph(seed=581)
    hidden = once.relu(once.node("MatMul", once.input("image", 64), once.const(first)))
    last = _plain(once, hidden, {"image": images[264:].reshape(-1, 64)}, 8.0 * np.eye(10)[labels[264:]] - 0.8)
    branches = []
    for name in ("loud", "quiet"):
        branch = Graph(prefix=f"{name}_")
        inner = branch.relu(branch.node("MatMul", "now", branch.const(first)))
        branch.node("MatMul", inner, branch.const(last), out=f"{name}_scores")
        branches.append(branch.body([], [f"{name}_scores"]))
    loud = body.node("Greater", body.node("ReduceMax", "now", keepdims=0), body.const(0.1))
    body.node("If", loud, out="scores", then_branch=branches[0], else_branch=branches[1])
    flat = g.node("Flatten", g.input("image", 1, 8, 8))
    graph = body.body(["now"], ["scores"])
    found = g.node("Scan", flat, body=graph, num_scan_inputs=1)
    g.node("Identity", found, out="logits")
    feed = {"image": _sized(images[:96], _in_turns(96, 0.003))}
    net = Net(g.model("logits"), feed, {"image": images[264:328]}, labels[:96], "top1", {"output": "logits"})
    most = float(np.abs(once.values(hidden, {"image": images[264:].reshape(-1, 64)})).max())
    names = {"loud_scores/MatMul": most, "quiet_scores/MatMul": most}
    criteria = [{"output": "logits", "cosine": 0.98}]
    return project.case(net, _inside(net, {"": 1.0, **names}), criteria=criteria)


def _tokens_in_turn(pair: bool) -> Own:
    """Tags and offsets of tokens, joined in the body of a Scan over tokens, with a ``pair`` or none."""
    g = Graph(seed=583)
    tokens = nets.sentences(160, 1583)
    table = g.rng.standard_normal((VOCABULARY, 48))
    once = Graph(seed=584)
    once.input("tokens", LENGTH, dtype=TensorProto.INT64)
    hidden = once.relu(once.linear(once.node("Gather", once.const(table), "tokens"), 48, 192))
    _, first, shift = _constants(once)
    feed = {"tokens": tokens}
    tags = once.fit(hidden, feed, 10.0 * np.eye(6)[tokens % 6] - 5.0)
    offsets = once.fit(hidden, feed, 200.0 + 40.0 * tokens[..., None])
    body = Graph(prefix="body_")
    inner = body.relu(_layer(body, "now", first, shift))
    parts = _layer(body, inner, *offsets), body.node("Sigmoid", _layer(body, inner, *tags))
    joined = body.node("Concat", *parts, axis=1)
    if pair:
        scale = body.const(np.array(2200 / 127, np.float32)), body.const(np.array(0, np.int8))
        joined = body.node("DequantizeLinear", body.node("QuantizeLinear", joined, *scale), *scale)
    body.node("Identity", joined, out="shown")
    g.input("tokens", LENGTH, dtype=TensorProto.INT64)
    x = g.node("Gather", g.const(table), "tokens")
    graph = body.body(["now"], ["shown"])
    how = {"num_scan_inputs": 1, "scan_input_axes": [1], "scan_output_axes": [1]}
    g.node("Identity", g.node("Scan", x, body=graph, **how), out="spans")
    tokens, others = nets.sentences(32, 11583), nets.sentences(24, 21583)

    def judge(outputs: Feed) -> float:
        found = outputs["spans"][..., 1:] > 0.5
        return float(np.mean((found == np.eye(6, dtype=bool)[tokens % 6]).all(-1)))

    return _own(
        g.model("spans"), {"tokens": tokens}, {"tokens": others}, tokens % 6, "tokens tagged right", judge
    )


@planted("f", "tokens one by one in a Scan")
def joined_in_the_body(project: Project) -> Truth:
    """Tags and offsets are joined in the body of a Scan, and the pair behind has the scale of offsets."""
    return project.case(_tokens_in_turn(False), quantized_bodies(_tokens_in_turn(True).model, 8.0))


@planted("f", "simulation by steps in a Loop", search=True, never=NEVER)
def orbit_that_stops(project: Project) -> Truth:
    """An oscillator is stepped in a Loop; the pair in it saturates at a third of the amplitude."""
    g, rng = Graph(seed=585), np.random.default_rng(585)
    turn = 2 * np.pi / 48
    step = np.kron(np.eye(4), [[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    body = Graph(prefix="body_")
    body.node("MatMul", "before", body.const(step), out="after")
    x = g.input("start", 8)
    g.node("Identity", _looped(g, x, 12, body, "after"), out="end")
    starts, others = (rng.standard_normal((count, 8)).astype(np.float32) for count in (64, 32))
    wanted = starts @ np.linalg.matrix_power(step, 12)
    net = Net(g.model("end"), {"start": starts}, {"start": others}, wanted, "r2")
    return project.case(net, _inside(net, 1.0), criteria=[{"output": "end", "cosine": 0.99}])
