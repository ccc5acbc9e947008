"""Small networks with their data: random features and a readout by ridge regression, or trained on digits.

Everything follows from seeds; making a network takes some tenths of a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from benchmarks.greens import tasks
from benchmarks.greens.graph import Array, Feed, Graph, run

MODELS = Path(__file__).parents[1] / "models"


@dataclass(frozen=True)
class Net:
    """A float model, its samples, their labels, and the task's own metric."""

    model: onnx.ModelProto
    feed: dict[str, Array]
    """Validation samples."""
    calibration: dict[str, Array]
    labels: Array
    task: str
    more: dict[str, Any] = field(default_factory=dict)
    """What the task's metric needs besides."""

    def outputs(self, model: onnx.ModelProto | None = None, feed: Feed | None = None) -> dict[str, Array]:
        """Outputs of a form of the model by plain ONNX Runtime."""
        return run(model or self.model, feed or self.feed)

    def metric(self, outputs: Feed, rows: slice | Array = slice(None)) -> float:
        """The task's metric of some outputs, for the samples ``rows``."""
        return float(_METRICS[self.task](self, {k: v[rows] for k, v in outputs.items()}, rows))

    @property
    def metric_name(self) -> str:
        """For people."""
        return _NAMES[self.task]


_NAMES = {
    "top1": "top-1",
    "tokens": "token accuracy",
    "miou": "mIoU",
    "detect": "F1 of detections",
    "masks": "top-1 of cells times mIoU of masks",
    "words": "word accuracy",
    "picked": "tokens picked",
    "psnr": "PSNR of images",
    "r2": "R2",
}


def _detected(net: Net, outputs: Feed, rows: Any) -> float:
    boxes, scores = split(outputs["output0"], net.more["layout"])
    truth = [net.more["truth"][i] for i in np.arange(len(net.more["truth"]))[rows]]
    return tasks.f1(tasks.detections(boxes, scores), truth)


def _masks(net: Net, outputs: Feed, rows: Any) -> float:
    classes = net.more["classes"]
    scores, masks = outputs["output0"][..., :classes], outputs["output0"][..., classes:]
    labels, wanted = net.labels[rows], net.more["masks"][rows]
    inked = labels > 0
    found = masks[inked] > net.more["middle"]
    together, either = (found & wanted[inked]).sum(), (found | wanted[inked]).sum()
    return tasks.top1(scores, labels) * float(together) / float(either)


def _words(net: Net, outputs: Feed, rows: Any) -> float:
    found = tasks.texts(outputs["logits"], net.more["words"], net.more["blank"])
    return tasks.word_accuracy(found, list(net.labels[rows]))


def _psnr(net: Net, outputs: Feed, rows: Any) -> float:
    (images,) = outputs.values()
    return float(-10 * np.log10(np.mean((images - net.labels[rows]) ** 2)))


def _r2(net: Net, outputs: Feed, rows: Any) -> float:
    (values,) = outputs.values()
    wanted = net.labels[rows]
    return 1 - float(((values - wanted) ** 2).sum() / ((wanted - wanted.mean(0)) ** 2).sum())


_METRICS = {
    "top1": lambda net, outputs, rows: tasks.top1(outputs[net.more["output"]], net.labels[rows]),
    "tokens": lambda net, outputs, rows: tasks.top1(outputs["logits"], net.labels[rows]),
    "miou": lambda net, outputs, rows: tasks.miou(outputs["logits"], net.labels[rows]),
    "detect": _detected,
    "masks": _masks,
    "words": _words,
    "picked": lambda net, outputs, rows: tasks.top1(
        outputs["picked"].reshape(len(net.labels[rows]), -1), net.labels[rows]
    ),
    "psnr": _psnr,
    "r2": _r2,
}

# Detectors -----------------------------------------------------------------------------------------------

#: Cells of a scene in a row, and pixels of a cell.
CELLS, CELL = 6, 8
COLOURS = np.array([[1.0, 0.1, 0.1], [0.1, 1.0, 0.1], [0.1, 0.1, 1.0]])


def scenes(count: int, seed: int, scale: float) -> tuple[Array, list[Array], Array]:
    """Images [N, 3, 48, 48] with coloured boxes, one in a cell; their objects and targets per cell.

    Objects are [n, 5] of x, y, w, h in pixels times ``scale``, and class. Targets [N, A, 4 + 3] are x and y
    within the cell, w and h, NaN where nothing is, then 1 or 0 for each class.
    """
    rng = np.random.default_rng([seed, 77])
    side = CELLS * CELL
    images = 0.05 * rng.standard_normal((count, 3, side, side))
    targets = np.zeros((count, CELLS * CELLS, 7))
    targets[..., :4] = np.nan
    truth: list[Array] = []
    for image, target in zip(images, targets, strict=True):
        objects = []
        for cell in rng.choice(CELLS * CELLS, rng.integers(3, 7), replace=False):
            w, h = rng.integers(5, 8, 2)
            dx, dy = rng.integers(0, CELL - w + 1), rng.integers(0, CELL - h + 1)
            kind = int(rng.integers(3))
            top, left = cell // CELLS * CELL + dy, cell % CELLS * CELL + dx
            image[:, top : top + h, left : left + w] += COLOURS[kind][:, None, None] * rng.uniform(0.8, 1.2)
            target[cell, :4] = dx + w / 2, dy + h / 2, w, h
            target[cell, 4 + kind] = 1
            objects.append([(left + w / 2) * scale, (top + h / 2) * scale, w * scale, h * scale, kind])
        truth.append(np.array(objects).reshape(-1, 5))
    return images.astype(np.float32), truth, targets


def split(output: Array, layout: str) -> tuple[Array, Array]:
    """Boxes [N, A, 4] and scores [N, A, C] of an ``output0`` of this layout."""
    rows = output.transpose(0, 2, 1) if layout == "channels" else output
    if layout == "objectness":
        return rows[..., :4], rows[..., 4:5] * rows[..., 5:]
    return rows[..., :4], rows[..., 4:]


def detector(
    layout: str = "channels",
    *,
    scale: float = 13.0,
    seed: int = 0,
    count: int = 48,
    behind: str = "",
    opset: int = 17,
    halve: bool = False,
    contrast: float = 1.0,
) -> Net:
    """Boxes and scores of coloured boxes, joined by Concat into ``output0``.

    Args:
        layout: 'channels' [N, 4 + C, A], 'anchors' [N, A, 4 + C] or 'objectness' [N, A, 5 + C].
        scale: Pixels of the frame that boxes are given in for a pixel of the image.
        seed: Of weights and data.
        count: Validation samples.
        behind: What follows the Concat: 'conv', a 1x1 convolution that changes nothing, or 'mul', a factor.
        opset: Of the model.
        halve: Whether a linear Resize of opset 10 halves the features, in place of a stride.
        contrast: Factor of the images.
    """
    g = Graph(opset, seed=seed)
    images, _, targets = scenes(240, seed + 1000, scale)
    feed = {"images": images * np.float32(contrast)}
    x = g.input("images", 3, CELLS * CELL, CELLS * CELL)
    x = g.relu(g.conv(x, 3, 24, 3, stride=2))
    x = g.relu(g.conv(x, 24, 40, 3, stride=2))
    x = g.relu(g.conv(x, 40, 128, 3, stride=1 if halve else 2))
    if halve:
        x = g.node("Resize", x, g.const(np.array([1, 1, 0.5, 0.5])), mode="linear")
    side = CELLS * CELLS
    parts = _cell_heads(g, x, 128, feed, targets, layout)
    grid = np.stack(np.meshgrid(np.arange(CELLS), np.arange(CELLS)), 0).reshape(1, 2, side) * CELL
    offsets = np.concatenate([grid, np.zeros_like(grid)], 1)
    boxes = g.node("Mul", g.node("Add", parts[0], g.const(offsets * 1.0)), g.const(scale), out="boxes")
    joined = [boxes, *parts[1:]]
    names = {"channels": "output0"}
    axis = 1
    if layout != "channels":
        joined = [g.node("Transpose", part, perm=[0, 2, 1]) for part in joined]
        axis = 2
    last = "joined" if behind else names.get(layout, "output0")
    g.node("Concat", *joined, out=last, axis=axis)
    if behind == "conv":
        g.node("Conv", last, g.const(np.eye(7)[..., None]), out="output0")
    elif behind == "mul":
        g.node("Mul", last, g.const(np.ones(7 if layout == "anchors" else (7, 1))), out="output0")
    elif behind == "matmul":
        g.node("MatMul", last, g.const(np.eye(8 if layout == "objectness" else 7)), out="output0")
    images, truth, wanted = scenes(count, seed + 1, scale)
    calibration, _, _ = scenes(32, seed + 2, scale)
    return Net(
        g.model("output0"),
        {"images": images * np.float32(contrast)},
        {"images": calibration * np.float32(contrast)},
        wanted[..., 4:].argmax(-1),
        "detect",
        {"layout": layout, "truth": truth},
    )


def _cell_heads(g: Graph, x: str, width: int, feed: Feed, targets: Array, layout: str) -> list[str]:
    """Boxes within cells [N, 4, A], scores [N, C, A], with objectness [N, 1, A] before them if wanted."""
    flat = g.reshape(x, 0, width, -1)
    wanted = np.moveaxis(targets, -1, 1)
    box, bias = g.fit(flat, feed, wanted[:, :4], axis=1)
    boxes = g.node("Conv", flat, g.const(box.T[..., None]), g.const(bias), out="box_head")
    logits = np.where(wanted[:, 4:] > 0, 8.0, -8.0)
    weight, bias = g.fit(flat, feed, logits, axis=1)
    weight, bias = 1.5 * weight, 1.5 * bias + 3
    scores = g.node(
        "Sigmoid", g.node("Conv", flat, g.const(weight.T[..., None]), g.const(bias), out="class_head")
    )
    if layout != "objectness":
        return [boxes, scores]
    weight, bias = g.fit(flat, feed, logits.max(1, keepdims=True), axis=1)
    weight, bias = 1.5 * weight, 1.5 * bias + 3
    there = g.node("Conv", flat, g.const(weight.T[..., None]), g.const(bias), out="objectness_head")
    return [boxes, g.node("Sigmoid", there), scores]


def mask_detector(*, seed: int = 0, count: int = 40, behind: str = "", ink: float = 255.0) -> Net:
    """Classes and masks of each cell in one output [N, A, 4 + 64]: scores 0 to 1 and masks 0 to ``ink``."""
    g = Graph(seed=seed)
    images, _, targets = scenes(200, seed + 1000, 1.0)
    feed = {"images": images}
    x = g.input("images", 3, CELLS * CELL, CELLS * CELL)
    for cin, cout in ((3, 24), (24, 48), (48, 160)):
        x = g.relu(g.conv(x, cin, cout, 3, stride=2))
    flat = g.node("Transpose", g.reshape(x, 0, 160, -1), perm=[0, 2, 1])
    labels = _labels(targets)
    weight, bias = g.fit(flat, feed, np.where(np.eye(4)[labels] > 0, 6.0, -6.0))
    scores = g.node("Sigmoid", _dense(g, flat, 1.5 * weight, 1.5 * bias + 2, "class_head"))
    weight, bias = g.fit(flat, feed, _patches(targets) * 1.0)
    masks = g.node("Relu", _dense(g, flat, ink * weight, ink * bias, "mask_head"))
    if behind == "matmul":
        g.node("MatMul", g.node("Concat", scores, masks, axis=2), g.const(np.eye(68)), out="output0")
    else:
        g.node("Concat", scores, masks, out="output0", axis=2)
    images, _, wanted = scenes(count, seed + 1, 1.0)
    calibration, _, _ = scenes(32, seed + 2, 1.0)
    more = {"classes": 4, "masks": _patches(wanted), "middle": ink / 2}
    return Net(
        g.model("output0"), {"images": images}, {"images": calibration}, _labels(wanted), "masks", more
    )


def _labels(targets: Array) -> Array:
    """Class of each cell, 0 where nothing is."""
    there = targets[..., 4:].max(-1) > 0
    return np.where(there, targets[..., 4:].argmax(-1) + 1, 0)


def _patches(targets: Array) -> Array:
    """Masks of cells, bool [N, A, 64]."""
    pixels = np.arange(CELL) + 0.5
    x, y, w, h = (np.nan_to_num(targets[..., i], nan=-99.0)[..., None] for i in range(4))
    rows, columns = np.abs(pixels - y) < h / 2, np.abs(pixels - x) < w / 2
    return (rows[..., :, None] & columns[..., None, :]).reshape(*rows.shape[:2], -1)


def _dense(g: Graph, x: str, weight: Array, bias: Array | None, out: str = "") -> str:
    if bias is None:
        return g.node("MatMul", x, g.const(weight), out=out)
    return g.node("Add", g.node("MatMul", x, g.const(weight)), g.const(bias), out=out)


# Segmentation --------------------------------------------------------------------------------------------


def stains(
    count: int, seed: int, classes: int = 4, side: int = 24, rare: bool = False
) -> tuple[Array, Array]:
    """Images [N, 3, H, W] with round stains of ``classes`` - 1 colours on a dark ground, and their labels.

    With ``rare`` one small stain an image, so that 97 % of pixels are ground (class 0).
    """
    rng = np.random.default_rng([seed, 78])
    colours = np.concatenate([np.zeros((1, 3)), np.eye(3), np.ones((1, 3))])[:classes]
    y, x = np.mgrid[:side, :side]
    labels = np.zeros((count, side, side), np.int64)
    for image in labels:
        for _ in range(1 if rare else 5):
            radius = rng.uniform(2, 2.6) if rare else rng.uniform(3, 5.5)
            cy, cx = rng.uniform(3, side - 3, 2)
            image[(y - cy) ** 2 + (x - cx) ** 2 < radius**2] = rng.integers(1, classes)
    images = colours[labels].transpose(0, 3, 1, 2) + 0.08 * rng.standard_normal((count, 3, side, side))
    return images.astype(np.float32), labels


def segmenter(
    *,
    seed: int = 0,
    count: int = 24,
    classes: int = 4,
    opset: int = 17,
    bias: bool = True,
    rare: bool = False,
    softmax: bool = False,
    ids: bool = False,
    ir_version: int = 8,
) -> Net:
    """Logits [N, classes, 24, 24] of coloured stains.

    Args:
        seed: Of weights and data.
        count: Validation samples.
        classes: With the ground, up to 5.
        opset: Of the model.
        bias: Whether layers have biases; without, outputs grow as images do.
        rare: Whether 97 % of pixels are ground.
        softmax: Whether a softmax ends it.
        ids: Whether a second output ``ids`` names the class of each pixel.
        ir_version: Of the file.
    """
    g = Graph(opset, ir_version, seed=seed)
    images, labels = stains(32, seed + 1000, classes, rare=rare)
    feed = {"image": images}
    x = g.input("image", 3, 24, 24)
    x = g.relu(g.conv(x, 3, 16, bias=bias))
    x = g.relu(g.conv(x, 16, 32, bias=bias))
    weight, shift = g.fit(x, feed, np.moveaxis(8.0 * np.eye(classes)[labels], -1, 1), axis=1)
    if not bias:
        g_weight = _without_bias(g, x, feed, np.moveaxis(8.0 * np.eye(classes)[labels] - 2.0, -1, 1))
        g.node("Conv", x, g.const(g_weight.T[..., None, None]), out="logits")
    else:
        out = "scores" if softmax else "logits"
        g.node("Conv", x, g.const(weight.T[..., None, None]), g.const(shift), out=out)
    if softmax:
        g.node("Softmax", "scores", out="logits", axis=1)
    outputs = ["logits"]
    if ids:
        outputs.append(g.node("ArgMax", "logits", out="ids", axis=1, keepdims=0))
    images, labels = stains(count, seed + 1, classes, rare=rare)
    calibration, _ = stains(32, seed + 2, classes, rare=rare)
    return Net(g.model(*outputs), {"image": images}, {"image": calibration}, labels, "miou")


def _without_bias(g: Graph, x: str, feed: Feed, targets: Array, axis: int = 1) -> Array:
    features = np.moveaxis(g.values(x, feed), axis, -1).astype(np.float64)
    wanted = np.moveaxis(targets, axis, -1)
    a, b = features.reshape(-1, features.shape[-1]), wanted.reshape(-1, wanted.shape[-1])
    square = a.T @ a
    square += 1e-5 * np.trace(square) / len(square) * np.eye(len(square))
    return np.linalg.solve(square, a.T @ b).astype(np.float32)


# Classification ------------------------------------------------------------------------------------------


def digits(part: str, count: int | None = None) -> tuple[Array, Array]:
    """Images of digits [N, 1, 8, 8] in 0 to 1 of ``calibration`` (no labels) or ``validation``."""
    with np.load(MODELS / "digits.npz") as data:
        images = data[part][:count].astype(np.float32) / 16
        return images, data["labels"][: len(images)].astype(np.int64)


def _rows(images: Array) -> Array:
    return np.ascontiguousarray(images[:, 0].transpose(0, 2, 1))


def _coloured(images: Array, seed: int) -> Array:
    rng = np.random.default_rng([seed, 2])
    ink, paper = (
        (np.array(base) + 0.08 * rng.standard_normal((len(images), 3)))[..., None, None]
        for base in ((0.9, 0.6, 0.2), (0.1, 0.2, 0.45))
    )
    colours = np.clip(paper + images * (ink - paper), 0, 1)
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    return ((colours - mean[:, None, None]) / deviation[:, None, None]).astype(np.float32)


def _codes(images: Array) -> Array:
    looks = np.digitize(images[:, 0] * 16, (4, 11)).reshape(-1, 4, 2, 4, 2).transpose(0, 1, 3, 2, 4)
    codes = looks.reshape(-1, 16, 4) @ 3 ** np.arange(4)
    kept = np.flip(np.cumsum(np.flip(codes, 1), 1), 1) > 0
    return np.concatenate([np.ones((len(codes), 1), np.int64), np.where(kept, codes + 2, 0)], 1)


def trained(name: str, count: int = 264) -> Net:
    """A network that was trained on digits, of benchmarks/models.

    Classifiers: cnn, resnet, mobilenet, vit, swin, mixer, mlp, tcn, inception, efficient, convnext; encoder
    takes integer tokens. unet takes the noise out of images.
    """
    model = onnx.load(MODELS / f"{name}.onnx")
    images, labels = digits("validation", count)
    others, _ = digits("calibration")
    if name == "unet":
        noisy = [
            a + 0.25 * np.random.default_rng(i).standard_normal(a.shape)
            for i, a in enumerate((images, others))
        ]
        noisy = [a.astype(np.float32) for a in noisy]
        return Net(model, {"image": noisy[0]}, {"image": noisy[1]}, images, "psnr")
    source = "tokens" if name == "encoder" else "image"
    if name == "encoder":
        images, others = _codes(images), _codes(others)
    elif name == "tcn":
        images, others = _rows(images), _rows(others)
    elif name in ("inception", "efficient", "convnext"):
        images, others = _coloured(images, 2), _coloured(others, 1)
    return Net(model, {source: images}, {source: others}, labels, "top1", {"output": "logits"})


def classifier(
    *,
    seed: int = 0,
    count: int = 264,
    opset: int = 17,
    ir_version: int = 8,
    bias: bool = True,
    width: int = 64,
    upsample: str = "",
    two_outputs: bool = False,
    classes: int = 10,
) -> Net:
    """Logits of digits [N, classes] from random convolutions and a readout.

    Args:
        seed: Of weights.
        count: Validation samples.
        opset: Of the model.
        ir_version: Of the file; below 4 weights are inputs, too.
        bias: Whether layers have biases; without, outputs grow as images do.
        width: Features.
        upsample: Mode of an Upsample or Resize by four before the second convolution.
        two_outputs: Whether the features are an output, too.
        classes: Digits from here on are classes of none.
    """
    g = Graph(opset, ir_version, seed=seed)
    images, labels = digits("validation")
    kept = labels < classes
    images, labels = images[kept], labels[kept]
    half = len(images) // 2
    feed = {"image": images[half:]}
    x = g.input("image", 1, 8, 8)
    x = g.relu(g.conv(x, 1, 16, bias=bias))
    if upsample:
        x = upsampled(g, x, 4, upsample, 4.0)
    x = g.relu(g.conv(x, 16, width, stride=8 if upsample else 2, bias=bias))
    flat = g.node("Flatten", x)
    targets = 8.0 * np.eye(classes)[labels[half:]] - 8.0 / classes
    if bias:
        weight, shift = g.fit(flat, feed, targets)
        g.node("Gemm", flat, g.const(weight), g.const(shift), out="logits")
    else:
        g.node("MatMul", flat, g.const(_without_bias(g, flat, feed, targets)), out="logits")
    outputs = ["logits", flat] if two_outputs else ["logits"]
    others = images[half:]
    images, labels = images[:half][:count], labels[:half][:count]
    return Net(
        g.model(*outputs), {"image": images}, {"image": others[:96]}, labels, "top1", {"output": "logits"}
    )


def upsampled(g: Graph, x: str, rank: int, mode: str = "linear", factor: float = 2.0) -> str:
    """``x`` ``factor`` times as large in its last dimensions, as the graph's opset spells it."""
    scales = np.array([1.0, 1.0, *[factor] * (rank - 2)], np.float32)
    if g.opset < 9:
        return g.node("Upsample", x, mode=mode, scales=scales.tolist())
    if g.opset == 9:
        return g.node("Upsample", x, g.const(scales), mode=mode)
    if g.opset == 10:
        return g.node("Resize", x, g.const(scales), mode=mode)
    how = {"coordinate_transformation_mode": "asymmetric", "mode": mode}
    if mode == "nearest":
        how["nearest_mode"] = "floor"
    return g.node("Resize", x, "", g.const(scales), **how)


# Tokens --------------------------------------------------------------------------------------------------

VOCABULARY, LENGTH = 48, 12


def sentences(count: int, seed: int, ids: Sequence[int] = range(2, VOCABULARY)) -> Array:
    """Token ids [N, 12] of ``ids``, the first one 1."""
    rng = np.random.default_rng([seed, 79])
    tokens = rng.choice(np.array(ids), (count, LENGTH))
    tokens[:, 0] = 1
    return tokens.astype(np.int64)


def tagger(
    *,
    seed: int = 0,
    count: int = 32,
    classes: int = 6,
    opset: int = 17,
    bias: bool = True,
    small: Sequence[int] = (),
    masked: str = "",
    quiet: float = 0.01,
) -> Net:
    """A transformer of one block; logits [N, 12, classes], the class of a token being its id mod ``classes``.

    Args:
        seed: Of weights and data.
        count: Validation samples.
        classes: Tags.
        opset: Of the model; LayerNormalization needs 17, else there is none.
        bias: Whether its layers have biases, and a norm; without both, outputs grow as embeddings do.
        small: Ids whose embeddings are ``quiet`` times the size of the others'; half of the samples have only
            those ids.
        masked: A value, '-inf' or 'nan', that stands in the logits of the last class of the first token.
        quiet: Size of small embeddings.
    """
    g, width = Graph(opset, seed=seed), 48
    x = g.input("tokens", LENGTH, dtype=TensorProto.INT64)
    table = g.rng.standard_normal((VOCABULARY, width))
    large = [i for i in range(2, VOCABULARY) if i not in small]
    table[list(small)] *= quiet
    if small:
        table[1] *= quiet
    y = g.node("Gather", g.const(table, "embedding"), "tokens")
    if bias:
        y = g.node("Add", y, g.const(0.3 * g.rng.standard_normal((1, LENGTH, width))))
    x = _attention(g, y, width, bias)
    y = g.node("Add", y, x)
    if bias and opset >= 17:
        y = g.node("LayerNormalization", y, g.const(np.ones(width)), g.const(np.zeros(width)), axis=-1)
    hidden = g.relu(g.linear(y, width, 4 * width, bias=bias))
    groups = [large, list(small)] if small else [large]
    parts = [sentences(160 // len(groups), seed + 1000 + i, ids) for i, ids in enumerate(groups)]
    tokens = np.concatenate(parts)
    wanted = 8.0 * np.eye(classes)[tokens % classes] - 8.0 / classes
    if bias:
        weight, shift = g.fit(hidden, {"tokens": tokens}, wanted)
    else:
        sizes = np.where(np.isin(tokens, small), quiet, 1.0)[..., None]
        weight, shift = _weighted_fit(g.values(hidden, {"tokens": tokens}), wanted * sizes, 1 / sizes), None
    last = _dense(g, hidden, weight, shift, "scores" if masked else "logits")
    if masked:
        where = np.zeros((1, LENGTH, classes), bool)
        where[0, 0, -1] = True
        g.node("Where", g.const(where), g.const(float(masked)), last, out="logits")
    made = [
        [sentences(n // len(groups), seed + k + i, ids) for i, ids in enumerate(groups)]
        for n, k in ((count, 1), (64, 50))
    ]
    tokens, calibration = (np.concatenate(part) for part in made)
    return Net(g.model("logits"), {"tokens": tokens}, {"tokens": calibration}, tokens % classes, "tokens")


def _weighted_fit(features: Array, wanted: Array, weights: Array) -> Array:
    a = (features * weights).reshape(-1, features.shape[-1]).astype(np.float64)
    b = (wanted * weights).reshape(-1, wanted.shape[-1])
    square = a.T @ a
    square += 1e-5 * np.trace(square) / len(square) * np.eye(len(square))
    return np.linalg.solve(square, a.T @ b).astype(np.float32)


def _attention(g: Graph, x: str, width: int, bias: bool) -> str:
    query, key, value = (g.linear(x, width, width, bias=bias) for _ in range(3))
    key = g.node("Transpose", key, perm=[0, 2, 1])
    scores = g.node("Mul", g.node("MatMul", query, key), g.const(0.5 / width))
    mixed = g.node("MatMul", g.node("Softmax", scores, axis=-1), value)
    return g.node("Mul", g.linear(mixed, width, width, bias=bias), g.const(0.3))


# Speech --------------------------------------------------------------------------------------------------

WORDS = ("yes", "no", "up", "down", "left", "right")
#: Samples of a frame, and frames of a recording.
FRAME, FRAMES = 160, 12


def speech(count: int, seed: int) -> tuple[Array, Array]:
    """Recordings [N, 1, 1920], a tone for a word and noise for silence, and the class of each frame [N, 12].

    The last class is silence, which stands in every second frame.
    """
    rng = np.random.default_rng([seed, 80])
    classes = rng.integers(0, len(WORDS), (count, FRAMES))
    classes[:, 1::2] = len(WORDS)
    times = np.arange(FRAME)
    waves = 0.05 * rng.standard_normal((count, FRAMES, FRAME))
    pitch = np.array([0.02, 0.05, 0.09, 0.14, 0.2, 0.28, 0.0])[classes][..., None]
    phase = rng.uniform(0, 2 * np.pi, (count, FRAMES, 1))
    loud = rng.uniform(0.7, 1.2, (count, FRAMES, 1)) * (classes < len(WORDS))[..., None]
    waves += loud * np.sin(2 * np.pi * pitch * times + phase)
    return waves.reshape(count, 1, -1).astype(np.float32), classes


def lines(classes: Array) -> Array:
    """The text of each recording."""
    spoken = [" ".join(WORDS[c] for c in row if c < len(WORDS)) for row in classes]
    return np.array(spoken)


def recognizer(
    *,
    seed: int = 0,
    count: int = 32,
    bias: bool = True,
    opset: int = 17,
    mel: bool = False,
    ir_version: int = 8,
    upsample: bool = False,
) -> Net:
    """1-D convolutions over waveforms [N, 1, 1920], or over their bands [N, 24, 96]; logits [N, 12, 7].

    Args:
        seed: Of weights and data.
        count: Validation samples.
        bias: Whether layers have biases; without, outputs grow as recordings do.
        opset: Of the model.
        mel: Whether it takes the energies of 24 bands in place of waveforms.
        ir_version: Of the file.
        upsample: Whether frames are upsampled and halved again.
    """
    g = Graph(opset, ir_version, seed=seed)
    waves, classes = speech(96, seed + 1000)
    if mel:
        x = g.relu(g.conv(g.input("bands", 24, 8 * FRAMES), 24, 48, 3, rank=1, bias=bias))
    else:
        x = _filters(g, g.input("wave", 1, FRAME * FRAMES), bias)
    width = 48
    x = g.node("AveragePool", x, kernel_shape=[8], strides=[8])
    x = g.relu(g.conv(x, width, 96, 1, rank=1, bias=bias))
    feed = {"bands": bands(waves)} if mel else {"wave": waves}
    wanted = np.moveaxis(8.0 * np.eye(7)[classes] - 8 / 7, -1, 1)
    if bias:
        weight, shift = g.fit(x, feed, wanted, axis=1)
        last = g.node("Conv", x, g.const(weight.T[..., None]), g.const(shift))
    else:
        last = g.node("Conv", x, g.const(_without_bias(g, x, feed, wanted).T[..., None]))
    g.node("Transpose", last, perm=[0, 2, 1], out="logits")
    waves, classes = speech(count, seed + 1)
    others, _ = speech(32, seed + 2)
    feeds = [{"bands": bands(a)} if mel else {"wave": a} for a in (waves, others)]
    more = {"words": WORDS, "blank": len(WORDS), "classes": classes}
    return Net(g.model("logits"), feeds[0], feeds[1], lines(classes), "words", more)


def _filters(g: Graph, x: str, bias: bool, leak: float = 0.0) -> str:
    """A bank of 48 band filters of 40 taps every 20 samples, as a convolution, and ReLU.

    ``leak`` is how much of an alternating carrier every filter lets through.
    """
    pitch = np.repeat(np.linspace(0.015, 0.3, 12), 4)[:, None]
    phase = np.tile(np.arange(4) * np.pi / 2, 12)[:, None]
    taps = np.cos(2 * np.pi * pitch * np.arange(40) + phase) * np.hanning(40) / 6 + leak * (
        -1.0
    ) ** np.arange(40)
    rest = [g.const(np.full(48, 0.02))] if bias else []
    return g.relu(g.node("Conv", x, g.const(taps[:, None]), *rest, strides=[20], pads=[10, 10]))


def bands(waves: Array) -> Array:
    """Energies of 24 bands of every 20 samples, logarithms in 0 to about 4, float32 [N, 24, 96]."""
    frames = waves.reshape(len(waves), -1, 20)
    padded = np.concatenate([np.zeros_like(frames[:, :1]), frames], 1)
    power = np.abs(np.fft.rfft(np.concatenate([padded[:, :-1], frames], -1) * np.hanning(40), 46)) ** 2
    return np.log1p(power).transpose(0, 2, 1).astype(np.float32)


# Regression ----------------------------------------------------------------------------------------------


def regressor(
    *, seed: int = 0, count: int = 64, size: float = 1.0, targets: int = 2, shift: float = 0.0
) -> Net:
    """Values [N, targets] of about ``size`` around ``shift`` from 16 measurements, by a perceptron."""
    g = Graph(seed=seed)
    rng = np.random.default_rng([seed, 81])
    map_ = rng.standard_normal((16, targets)) / 4

    def made(n: int) -> tuple[Array, Array]:
        x = rng.standard_normal((n, 16)).astype(np.float32)
        return x, (size * (x @ map_ + 0.3 * np.sin(x[:, :targets])) + shift).astype(np.float32)

    x, y = made(1200)
    h = g.relu(g.linear(g.input("x", 16), 16, 128))
    h = g.relu(g.linear(h, 128, 128))
    weight, bias = g.fit(h, {"x": x}, y)
    g.node("Gemm", h, g.const(weight), g.const(bias), out="value")
    (values, labels), (others, _) = made(count), made(64)
    return Net(g.model("value"), {"x": values}, {"x": others}, labels, "r2")


# What only some classes of lies need -----------------------------------------------------------------------


def spotter(*, seed: int = 0, count: int = 64, dim: float = 1.0) -> Net:
    """A detector of one spot by a heat map [N, 256] over 16x16 places, without biases.

    The second half of the samples is ``dim`` times as bright.
    """
    g = Graph(seed=seed)

    def made(n: int, key: int) -> tuple[Array, Array]:
        rng = np.random.default_rng([key, 82])
        images = 0.02 * rng.standard_normal((n, 1, 16, 16))
        places = rng.integers(0, 256, n)
        images.reshape(n, -1)[np.arange(n), places] += rng.uniform(0.8, 1.2, n)
        images[n // 2 :] *= dim
        return images.astype(np.float32), places

    taps = np.zeros((8, 1, 3, 3))
    taps[:] = 0.15 * g.rng.standard_normal(taps.shape)
    taps[:, 0, 1, 1] += 1
    x = g.relu(g.node("Conv", g.input("image", 1, 16, 16), g.const(taps), pads=[1] * 4))
    x = g.node("Conv", x, g.const(np.abs(g.rng.standard_normal((1, 8, 1, 1))) / 8))
    g.reshape(x, 0, -1, out="heat")
    (images, places), (others, _) = made(count, seed + 1), made(64, seed + 2)
    return Net(g.model("heat"), {"image": images}, {"image": others}, places, "top1", {"output": "heat"})


def halved(net: Net, dim: float) -> Net:
    """``net`` with the second half of its samples ``dim`` times as large."""

    def dimmed(feed: Feed) -> dict[str, Array]:
        made = {name: array.copy() for name, array in feed.items()}
        for array in made.values():
            array[len(array) // 2 :] *= array.dtype.type(dim)
        return made

    return Net(net.model, dimmed(net.feed), dimmed(net.calibration), net.labels, net.task, net.more)


def hidden_in_carrier(kind: str, *, seed: int = 0, size: float = 1000.0, opset: int = 10) -> Net:
    """A network that takes a signal out of an alternating carrier ``size`` times as large.

    A linear Upsample (opset 9) or Resize (10) by two, asymmetric, has the mean of two neighbours in its odd
    places, which a strided convolution picks: the carrier cancels. With half-pixel coordinates it would not.

    Args:
        kind: 'speech', waveforms [N, 1, 1920], or 'digits', images [N, 1, 8, 17].
        seed: Of weights and data.
        size: Of the carrier.
        opset: 9 or 10.
    """
    g = Graph(opset, seed=seed)
    if kind == "speech":
        waves, classes = speech(96, seed + 1000)
        valid, wanted = speech(32, seed + 1)
        feeds = [_carried(waves, size, 1921), _carried(valid, size, 1921)]
        x = g.node("Unsqueeze", g.input("wave", 1, FRAME * FRAMES + 1), axes=[2])
    else:
        images, labels = digits("validation")
        wide = np.repeat(images, 2, -1)
        feeds = [_carried(wide[264:], size, 17), _carried(wide[:264], size, 17)]
        x = g.input("image", 1, 8, 17)
    x = g.node("Conv", x, g.const(np.ones((1, 1, 1, 1))))
    scales = g.const(np.array([1, 1, 1, 2], np.float32))
    x = g.node("Upsample" if opset == 9 else "Resize", x, scales, mode="linear")
    x = g.node("Conv", x, g.const(np.array([[[[0.0, 1.0]]]])), strides=[1, 2])
    x = (
        g.node("Slice", x, g.ints(0), g.ints(-1), g.ints(3))
        if opset == 10
        else g.node("Slice", x, axes=[3], starts=[0], ends=[-1])
    )
    if kind == "speech":
        x = g.node(
            "AveragePool",
            _filters(g, g.node("Squeeze", x, axes=[2]), True, 0.02),
            kernel_shape=[8],
            strides=[8],
        )
        x = g.relu(g.conv(x, 48, 96, 1, rank=1))
        weight, shift = g.fit(x, {"wave": feeds[0]}, np.moveaxis(8.0 * np.eye(7)[classes], -1, 1), axis=1)
        last = g.node("Conv", x, g.const(weight.T[..., None]), g.const(shift))
        g.node("Transpose", last, perm=[0, 2, 1], out="logits")
        more = {"words": WORDS, "blank": len(WORDS)}
        return Net(
            g.model("logits"), {"wave": feeds[1]}, {"wave": feeds[0][:32]}, lines(wanted), "words", more
        )
    x = g.relu(g.conv(x, 1, 24, 3, stride=2))
    flat = g.node("Flatten", x)
    weight, shift = g.fit(flat, {"image": feeds[0]}, 8.0 * np.eye(10)[labels[264:]])
    g.node("Gemm", flat, g.const(weight), g.const(shift), out="logits")
    feed, others = {"image": feeds[1]}, {"image": feeds[0][:64]}
    return Net(g.model("logits"), feed, others, labels[:264], "top1", {"output": "logits"})


def _carried(signal: Array, size: float, length: int) -> Array:
    """``signal`` spread so that the means of neighbours are its values, and the carrier on top."""
    out = np.zeros((*signal.shape[:-1], length), np.float64)
    for i in range(length - 1):
        out[..., i + 1] = 2 * signal[..., i] - out[..., i]
    return (out + size * (-1.0) ** np.arange(length)).astype(np.float32)


def recurrent(*, seed: int = 0, count: int = 32, width: int = 64) -> Net:
    """A recurrence over bands [N, 96, 24] in the body of a Scan, frames read at the end of each; logits."""
    g = Graph(seed=seed)
    waves, classes = speech(96, seed + 1000)
    feed = {"bands": np.ascontiguousarray(bands(waves).transpose(0, 2, 1))}
    body = Graph(seed=seed + 1, prefix="body_")
    taken = body.linear("now", 24, width, out="taken")
    kept = body.node("MatMul", "state", body.const(0.08 * body.rng.standard_normal((width, width))))
    body.node("Tanh", body.node("Add", taken, kept), out="next")
    body.node("Identity", "next", out="shown")
    x = g.input("bands", 96, 24)
    first = g.node("Slice", x, g.ints(0), g.ints(1), g.ints(1))
    start = g.node(
        "Mul",
        g.node("Squeeze", g.node("Slice", first, g.ints(0), g.ints(1), g.ints(2)), g.ints(2)),
        g.const(np.zeros(width)),
    )
    graph = body.body(["state", "now"], ["next", "shown"])
    g.node(
        "Scan",
        start,
        x,
        out=["last", "states"],
        body=graph,
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_output_axes=[1],
    )
    ends = g.node("Gather", "states", g.const(np.arange(5, 96, 8)), axis=1)
    weight, shift = g.fit(ends, feed, 8.0 * np.eye(7)[classes])
    _dense(g, ends, weight, shift, "logits")
    (valid, wanted), (others, _) = speech(count, seed + 1), speech(32, seed + 2)
    feeds = [{"bands": np.ascontiguousarray(bands(a).transpose(0, 2, 1))} for a in (valid, others)]
    more = {"words": WORDS, "blank": len(WORDS)}
    return Net(g.model("logits"), feeds[0], feeds[1], lines(wanted), "words", more)


def refined(
    *,
    seed: int = 0,
    count: int = 264,
    steps: int = 4,
    width: int = 96,
    inside_if: bool = False,
    classes: int = 10,
) -> Net:
    """A classifier of digits that refines its features ``steps`` times in the body of a Loop.

    With ``inside_if`` the body's layer lies in the branch of an If in it.
    """
    g = Graph(seed=seed)
    images, labels = digits("validation")
    images, labels = images[labels < classes], labels[labels < classes]
    half = len(labels) // 2
    feed = {"image": images[half:]}
    x = g.relu(g.linear(g.node("Flatten", g.input("image", 1, 8, 8)), 64, width, out="first"))
    body = Graph(seed=seed + 1, prefix="body_")
    if inside_if:
        branches = []
        for name in ("then", "else"):
            branch = Graph(seed=seed + 2, prefix=f"{name}_")
            branch.linear("before", width, width, out=f"{name}_moved")
            branches.append(branch.body([], [f"{name}_moved"]))
        body.node("If", "go", out="inner", then_branch=branches[0], else_branch=branches[1])
    else:
        body.linear("before", width, width, out="inner")
    even = body.const(0.5)
    body.node(
        "Add", body.node("Mul", body.relu("inner"), even), body.node("Mul", "before", even), out="after"
    )
    body.node("Identity", "go", out="still")
    graph = body.body(["step:7", "go:9", "before"], ["still:9", "after"])
    trips, on = g.const(np.array(steps, np.int64)), g.const(np.array(True))
    y = g.node("Loop", trips, on, x, body=graph)
    weight, shift = g.fit(y, feed, 8.0 * np.eye(classes)[labels[half:]])
    _dense(g, y, weight, shift, "logits")
    valid, others = {"image": images[:half][:count]}, {"image": images[half : half + 64]}
    return Net(g.model("logits"), valid, others, labels[:half][:count], "top1", {"output": "logits"})


def branched(*, seed: int = 0, width: int = 128, count: int = 32) -> Net:
    """A tagger whose layers lie in the branches of an If: one for sequences in capitals, which never come."""
    g = Graph(seed=seed)
    g.input("tokens", LENGTH, dtype=TensorProto.INT64)
    table = g.const(g.rng.standard_normal((VOCABULARY, 48)))
    y = g.node("Gather", table, "tokens", out="embedded")
    greatest = g.node("ReduceMax", "tokens", keepdims=0)
    usual = g.node("Less", greatest, g.const(np.array(VOCABULARY, np.int64)))
    branches = []
    for name in ("then", "else"):
        branch = Graph(seed=seed + 1, prefix=f"{name}_")
        h = branch.relu(branch.linear("embedded", 48, width))
        branch.node("Relu", branch.linear(h, width, width), out=f"{name}_hidden")
        branches.append(branch.body([], [f"{name}_hidden"]))
    y = g.node("If", usual, then_branch=branches[0], else_branch=branches[1])
    tokens = sentences(160, seed + 1000)
    weight, shift = g.fit(y, {"tokens": tokens}, 8.0 * np.eye(6)[tokens % 6])
    _dense(g, y, weight, shift, "logits")
    tokens, others = sentences(count, seed + 1), sentences(32, seed + 2)
    return Net(g.model("logits"), {"tokens": tokens}, {"tokens": others}, tokens % 6, "tokens")


def coarse_segmenter(*, seed: int = 0, opset: int = 10) -> Net:
    """Logits of stains from an image halved and logits doubled by linear Resizes of opset 10."""
    g = Graph(opset, seed=seed)
    images, labels = stains(48, seed + 1000)
    x = g.node("Resize", g.input("image", 3, 24, 24), g.const(np.array([1, 1, 0.25, 0.25])), mode="linear")
    x = g.relu(g.conv(x, 3, 24))
    x = g.relu(g.conv(x, 24, 64))
    cells = labels[:, ::4, ::4]
    weight, shift = g.fit(x, {"image": images}, np.moveaxis(8.0 * np.eye(4)[cells], -1, 1), axis=1)
    g.node("Conv", x, g.const(weight.T[..., None, None]), g.const(shift), out="logits")
    images, labels = stains(24, seed + 1)
    others, _ = stains(32, seed + 2)
    return Net(g.model("logits"), {"image": images}, {"image": others}, labels[:, ::4, ::4], "miou")


def zoomed_recognizer(*, seed: int = 0, opset: int = 7) -> Net:
    """Words of waveforms: frames upsampled four times in time, and every fourth one taken; logits [N, 12, 7].

    Asymmetric, the one taken is nearly the next frame, and the last again: the first word is not told.
    """
    g = Graph(opset, seed=seed)
    waves, classes = speech(96, seed + 1000)
    x = _filters(g, g.input("wave", 1, FRAME * FRAMES), True)
    x = g.node("AveragePool", x, kernel_shape=[8], strides=[8])
    x = g.node("Upsample", x, mode="linear", scales=[1.0, 1.0, 4.0])
    pick = np.zeros((48, 48, 4))
    pick[np.arange(48), np.arange(48), 3] = 1
    x = g.node("Conv", x, g.const(pick), strides=[4])
    x = g.relu(g.conv(x, 48, 96, 1, rank=1))
    moved = np.concatenate([classes[:, 1:], classes[:, -1:]], 1)
    weight, shift = g.fit(x, {"wave": waves}, np.moveaxis(8.0 * np.eye(7)[moved], -1, 1), axis=1)
    g.node(
        "Transpose",
        g.node("Conv", x, g.const(weight.T[..., None]), g.const(shift)),
        perm=[0, 2, 1],
        out="logits",
    )
    (valid, wanted), (others, _) = speech(32, seed + 1), speech(32, seed + 2)
    more = {"words": WORDS, "blank": len(WORDS)}
    return Net(g.model("logits"), {"wave": valid}, {"wave": others}, lines(wanted[:, 1:]), "words", more)


def picker(*, seed: int = 0, opset: int = 11, count: int = 48) -> Net:
    """Picks the one greatest (position, tag) of a sentence by a flattening Hardmax: picked [N, 12, 6]."""
    g, width = Graph(opset, seed=seed), 48
    g.input("tokens", LENGTH, dtype=TensorProto.INT64)
    y = g.node("Gather", g.const(g.rng.standard_normal((VOCABULARY, width))), "tokens")
    hidden = g.relu(g.linear(y, width, 4 * width))
    tokens = sentences(160, seed + 1000)
    rank = tokens[..., None] * (tokens % 6 == np.arange(6)[:, None, None]).transpose(1, 2, 0)
    weight, shift = g.fit(hidden, {"tokens": tokens}, rank * 1.0)
    g.node("Hardmax", _dense(g, hidden, weight, shift), out="picked", axis=1)
    tokens, others = sentences(count, seed + 1), sentences(32, seed + 2)
    flat = tokens.argmax(1)
    labels = flat * 6 + tokens.max(1) % 6
    return Net(g.model("picked"), {"tokens": tokens}, {"tokens": others}, labels, "picked")
