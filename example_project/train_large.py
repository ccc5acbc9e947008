"""Trains the detector and the transformer on scikit-learn's digits and writes them with their data.

pip install jax scikit-learn onnx
python train_large.py [detector] [transformer]

Two to three minutes of CPU time each.

A network is written once, as a function of what computes it: ``Train`` (JAX) or ``Export`` (ONNX).
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

HERE = Path(__file__).parent
SIDE, CELLS = 64, {"small": 8, "large": 4}


class Train:
    """Computes with JAX; weights that are not there yet are drawn."""

    def __init__(self, weights, rng=None):
        self.weights, self.rng = weights, rng

    def _weight(self, name, shape, std):
        if self.rng is not None and name not in self.weights:
            self.weights[name] = jnp.asarray(self.rng.standard_normal(shape) * std, jnp.float32)
        return self.weights[name]

    def conv(self, name, x, channels, kernel=3, stride=1, gain=1.0):
        fan_in = x.shape[1] * kernel**2
        w = self._weight(f"{name}.weight", (channels, x.shape[1], kernel, kernel), gain * (2 / fan_in) ** 0.5)
        pad = [(kernel // 2, kernel // 2)] * 2 if kernel != stride else [(0, 0)] * 2
        y = jax.lax.conv_general_dilated(x, w, (stride, stride), pad)
        return y + self._weight(f"{name}.bias", (channels,), 0)[:, None, None]

    def linear(self, name, x, width, gain=1.0):
        w = self._weight(f"{name}.weight", (x.shape[-1], width), gain * x.shape[-1] ** -0.5)
        return x @ w + self._weight(f"{name}.bias", (width,), 0)

    def norm(self, name, x):
        x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
        width = x.shape[-1]
        return x * (1 + self._weight(f"{name}.scale", (width,), 0)) + self._weight(
            f"{name}.bias", (width,), 0
        )

    def table(self, name, x, rows):
        return x + self._weight(name, (1, rows, x.shape[-1]), 0.02)

    def silu(self, name, x):
        return jax.nn.silu(x)

    def gelu(self, name, x):
        return jax.nn.gelu(x, approximate=False)

    def softmax(self, name, x):
        return jax.nn.softmax(x, -1)

    def add(self, name, x, y):
        return x + y

    def matmul(self, name, x, y):
        return x @ y

    def scale(self, name, x, by):
        return x * by

    def concat(self, name, x, y):
        return jnp.concatenate([x, y], 1)

    def double(self, name, x):
        return x.repeat(2, 2).repeat(2, 3)

    def reshape(self, name, x, *shape):
        return x.reshape(x.shape[0], *shape)

    def transpose(self, name, x, *axes):
        return x.transpose(axes)

    def mean(self, name, x, axis):
        return x.mean(axis)


class Export:
    """Writes ONNX nodes named like the calls."""

    def __init__(self, weights):
        self.weights, self.nodes, self.constants = weights, [], []

    def _node(self, op, name, *inputs, **attributes):
        self.nodes.append(helper.make_node(op, inputs, [f"{name}_out"], name, **attributes))
        return f"{name}_out"

    def _const(self, name, value):
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def _weight(self, name):
        return self._const(name, np.asarray(self.weights[name], np.float32))

    def conv(self, name, x, channels, kernel=3, stride=1, gain=1.0):
        pad = kernel // 2 if kernel != stride else 0
        w, b = self._weight(f"{name}.weight"), self._weight(f"{name}.bias")
        return self._node("Conv", name, x, w, b, strides=[stride] * 2, pads=[pad] * 4)

    def linear(self, name, x, width, gain=1.0):
        y = self._node("MatMul", name, x, self._weight(f"{name}.weight"))
        return self._node("Add", f"{name}/bias", y, self._weight(f"{name}.bias"))

    def norm(self, name, x):
        scale = self._const(f"{name}.scale", 1 + np.asarray(self.weights[f"{name}.scale"], np.float32))
        return self._node("LayerNormalization", name, x, scale, self._weight(f"{name}.bias"), axis=-1)

    def table(self, name, x, rows):
        return self._node("Add", name, x, self._weight(name))

    def silu(self, name, x):
        return self._node("Mul", name, x, self._node("Sigmoid", f"{name}/sigmoid", x))

    def gelu(self, name, x):
        root, one, half = (self._const(f"{name}.{i}", np.float32(v)) for i, v in enumerate((2**0.5, 1, 0.5)))
        erf = self._node("Erf", f"{name}/erf", self._node("Div", f"{name}/div", x, root))
        gate = self._node("Add", f"{name}/add", erf, one)
        return self._node("Mul", name, self._node("Mul", f"{name}/mul", x, gate), half)

    def softmax(self, name, x):
        return self._node("Softmax", name, x, axis=-1)

    def add(self, name, x, y):
        return self._node("Add", name, x, y)

    def matmul(self, name, x, y):
        return self._node("MatMul", name, x, y)

    def scale(self, name, x, by):
        return self._node("Mul", name, x, self._const(f"{name}.by", np.float32(by)))

    def concat(self, name, x, y):
        return self._node("Concat", name, x, y, axis=1)

    def double(self, name, x):
        scales = self._const(f"{name}.scales", np.array([1, 1, 2, 2], np.float32))
        how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self._node("Resize", name, x, "", scales, **how)

    def reshape(self, name, x, *shape):
        return self._node("Reshape", name, x, self._const(f"{name}.shape", np.array([0, *shape], np.int64)))

    def transpose(self, name, x, *axes):
        return self._node("Transpose", name, x, perm=axes)

    def mean(self, name, x, axis):
        return self._node("ReduceMean", name, x, axes=[axis], keepdims=0)

    def save(self, path, shape, outputs):
        named = {x: name for name, x in outputs.items()}
        for node in self.nodes:
            node.output[:] = [named.get(x, x) for x in node.output]
        given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        taken = [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", *shape])]
        graph = helper.make_graph(self.nodes, path.stem, taken, given, self.constants)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        proto = onnx.shape_inference.infer_shapes(proto)
        onnx.checker.check_model(proto, full_check=True)
        onnx.save(proto, path)


def unit(b, name, x, channels, kernel=3, stride=1):
    return b.silu(f"{name}/silu", b.conv(name, x, channels, kernel, stride))


def residual(b, name, x, channels):
    y = b.conv(f"{name}/conv2", unit(b, f"{name}/conv1", x, channels), channels, gain=0.4)
    return b.add(f"{name}/add", x, y)


def detector(b, x):
    """Backbone of four strides, a feature pyramid of two levels, a head of 15 channels per level."""
    x = unit(b, "stem", x, 16, stride=2)
    x = residual(b, "stage1/block1", unit(b, "stage1/down", x, 32, stride=2), 32)
    fine = residual(b, "stage2/block1", unit(b, "stage2/down", x, 64, stride=2), 64)
    fine = residual(b, "stage2/block2", fine, 64)
    coarse = residual(b, "stage3/block1", unit(b, "stage3/down", fine, 80, stride=2), 80)
    coarse = residual(b, "stage3/block2", coarse, 80)
    up = b.double("neck/up", unit(b, "neck/lateral", coarse, 64, 1))
    up = unit(b, "neck/join", b.concat("neck/concat", up, fine), 64, 1)
    up = unit(b, "small/conv", up, 64)
    down = unit(b, "large/conv", coarse, 80)
    return {"small": b.conv("small/head", up, 15, 1), "large": b.conv("large/head", down, 15, 1)}


def transformer(b, x, width=96, heads=4, blocks=4):
    """2x2 patches, pre-norm blocks with separate query, key and value, mean over the patches."""
    x = b.reshape("tokens", b.conv("patches", x, width, 2, 2), width, 16)
    x = b.table("position", b.transpose("tokens/transpose", x, 0, 2, 1), 16)
    for block in range(blocks):
        at = f"block{block}"
        y, parts = b.norm(f"{at}/norm1", x), {}
        for part in ("query", "key", "value"):
            z = b.reshape(f"{at}/{part}/split", b.linear(f"{at}/{part}", y, width), 16, heads, width // heads)
            axes = (0, 2, 3, 1) if part == "key" else (0, 2, 1, 3)
            parts[part] = b.transpose(f"{at}/{part}/heads", z, *axes)
        scores = b.matmul(f"{at}/scores", parts["query"], parts["key"])
        scores = b.scale(f"{at}/scale", scores, (width // heads) ** -0.5)
        mixed = b.matmul(f"{at}/mix", b.softmax(f"{at}/softmax", scores), parts["value"])
        joined = b.reshape(f"{at}/join", b.transpose(f"{at}/order", mixed, 0, 2, 1, 3), 16, width)
        x = b.add(f"{at}/add1", x, b.linear(f"{at}/out", joined, width, gain=0.4))
        y = b.gelu(f"{at}/gelu", b.linear(f"{at}/fc1", b.norm(f"{at}/norm2", x), 4 * width))
        x = b.add(f"{at}/add2", x, b.linear(f"{at}/fc2", y, width, gain=0.4))
    return {"logits": b.linear("head", b.mean("pool", b.norm("norm", x), 1), 10)}


def scenes(images, digits, count, rng):
    """Pixels uint8 [n, 1, 64, 64], and x, y, side and class of up to three digits [n, 3, 4], -1 if none."""
    pixels = np.zeros((count, SIDE, SIDE), np.uint8)
    truth = np.full((count, 3, 4), -1, np.float32)
    for scene, labels in zip(pixels, truth, strict=True):
        scene += (np.linspace(0, rng.integers(0, 60), SIDE)[:, None].astype(np.uint8) // 4) * 4
        taken = np.zeros((2, 2), bool)
        for slot in range(rng.integers(1, 4)):
            zoom, place = rng.integers(2, 4), rng.integers(0, 4)
            if taken.flat[place]:
                continue
            taken.flat[place] = True
            side = 8 * zoom
            top, left = 32 * np.array(divmod(place, 2)) + rng.integers(0, 33 - side, 2)
            which = rng.integers(len(images))
            digit = images[which].astype(np.float32).repeat(zoom, 0).repeat(zoom, 1) * 15
            window = scene[top : top + side, left : left + side]
            window[:] = np.maximum(window, digit)
            labels[slot] = left + side / 2, top + side / 2, side, digits[which]
    return pixels[:, None], truth


def targets(truth):
    """Per level [n, 5, cells, cells]: objectness, x and y within the cell, log2(side / 16), class."""
    found = {name: np.zeros((len(truth), 5, cells, cells), np.float32) for name, cells in CELLS.items()}
    for i, labels in enumerate(truth):
        for x, y, side, digit in labels[labels[:, 3] >= 0]:
            level = "small" if side < 20 else "large"
            step = SIDE / CELLS[level]
            column, row = int(x // step), int(y // step)
            found[level][i, :, row, column] = 1, x / step - column, y / step - row, np.log2(side / 16), digit
    return found


def detector_loss(outputs, wanted):
    total = 0.0
    for level, y in outputs.items():
        t = wanted[level]
        there = t[:, 0]
        objectness = jax.nn.softplus(y[:, 0]) - there * y[:, 0]
        total += (objectness * (1 + 4 * there)).mean() * 8
        boxes = jnp.abs(y[:, 1:4] - t[:, 1:4]).sum(1)
        logs = jax.nn.log_softmax(y[:, 5:15], 1)
        classes = -jnp.take_along_axis(logs, t[:, 4].astype(int)[:, None], 1)[:, 0]
        total += ((2 * boxes + classes) * there).sum() / jnp.maximum(there.sum(), 1)
    return total


def transformer_loss(outputs, wanted):
    log = jax.nn.log_softmax(outputs["logits"])
    return -(0.95 * log[jnp.arange(len(wanted)), wanted] + 0.005 * log.sum(-1)).mean()


def fit(network, loss, batches, shape, steps):
    """Adam with weight decay over one cosine cycle."""
    weights = {}
    network(Train(weights, np.random.default_rng(0)), jnp.zeros((1, *shape)))

    @jax.jit
    def step(weights, m, v, i, images, wanted):
        g = jax.grad(lambda w: loss(network(Train(w), images), wanted))(weights)
        rate = 2e-3 * jnp.minimum(1, i / 20) * 0.5 * (1 + jnp.cos(jnp.pi * i / steps))
        m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)
        v = jax.tree.map(lambda a, b: 0.99 * a + 0.01 * b * b, v, g)

        def move(w, a, b):
            return w - rate * (a / (1 - 0.9**i) / (jnp.sqrt(b / (1 - 0.99**i)) + 1e-8) + 0.02 * w)

        return jax.tree.map(move, weights, m, v), m, v

    m = v = jax.tree.map(jnp.zeros_like, weights)
    for i, (images, wanted) in zip(range(1, steps + 1), batches, strict=False):
        weights, m, v = step(weights, m, v, float(i), images, wanted)
    return weights


def split():
    """Training and validation digits, uint8 (N, 8, 8) in 0..16, and their labels."""
    digits = load_digits()
    pixels = digits.images.astype(np.uint8)
    return train_test_split(pixels, digits.target, test_size=360, stratify=digits.target, random_state=0)


def train_transformer(folder):
    images, held, labels, truth = split()
    rng = np.random.default_rng(1)

    def batches():
        while True:
            at = rng.integers(0, len(images), 64)
            shift = rng.integers(-1, 2, 2)
            yield np.roll(images[at], shift, (1, 2))[:, None].astype(np.float32) / 16, labels[at]

    weights = fit(transformer, transformer_loss, batches(), (1, 8, 8), 1800)
    export = Export(weights)
    export.save(folder / "transformer.onnx", (1, 8, 8), transformer(export, "image"))
    logits = transformer(Train(weights), jnp.asarray(held[:, None].astype(np.float32) / 16))["logits"]
    print(f"transformer, validation top-1: {np.mean(np.asarray(logits).argmax(1) == truth):.4f}")
    np.savez_compressed(
        folder / "data" / "digits.npz",
        calibration=images[:128, None],
        validation=held[:200, None],
        labels=truth[:200].astype(np.int64),
    )


def train_detector(folder):
    images, held, labels, truth = split()
    rng = np.random.default_rng(1)

    def batches():
        while True:
            pixels, found = scenes(images, labels, 48, rng)
            yield pixels.astype(np.float32) / 255, targets(found)

    weights = fit(detector, detector_loss, batches(), (1, SIDE, SIDE), 1200)
    export = Export(weights)
    export.save(folder / "detector.onnx", (1, SIDE, SIDE), detector(export, "image"))
    rng = np.random.default_rng(2)
    calibration, _ = scenes(images, labels, 64, rng)
    validation, boxes = scenes(held, truth, 128, rng)
    np.savez_compressed(
        folder / "data" / "scenes.npz", calibration=calibration, validation=validation, labels=boxes
    )


if __name__ == "__main__":
    for name in sys.argv[1:] or ["detector", "transformer"]:
        (HERE / name / "data").mkdir(parents=True, exist_ok=True)
        {"detector": train_detector, "transformer": train_transformer}[name](HERE / name)
