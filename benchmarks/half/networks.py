"""Small networks with a place in their middle where a part that FP16 computes wrong, or right, is put in."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.bodies import Holder
from benchmarks.builder import Builder
from pytest_int8acc.graph.model import Model

#: Takes a builder and a tensor of the given width along its last axis; gives one of the same shape and size.
Part = Callable[[Builder, str, int], str]
_Network = Callable[[Builder, Part], str]


def mlp(b: Builder, part: Part) -> str:
    """Three layers."""
    h = b.relu(b.linear("x", 16, 32, label="first"))
    h = b.relu(b.linear(part(b, h, 32), 32, 32, label="second"))
    return b.linear(h, 32, 10, label="head")


def cnn(b: Builder, part: Part) -> str:
    """Convolutions and a head."""
    h = b.conv_relu("x", 3, 8, label="conv1")
    h = b.conv_relu(part(b, h, 8), 8, 16, label="conv2", stride=2)
    return b.head(h, 16, 10)


def resnet(b: Builder, part: Part) -> str:
    """Two residual blocks."""
    h = b.conv_relu("x", 3, 8, label="stem")
    for block in ("block1", "block2"):
        inner = b.conv(b.conv_relu(h, 8, 8, label=f"{block}/conv1"), 8, 8, label=f"{block}/conv2", gain=0.5)
        h = b.relu(b.node("Add", h, inner, label=f"{block}/add"))
        h = part(b, h, 8) if block == "block1" else h
    return b.head(h, 8, 10)


def mobilenet(b: Builder, part: Part) -> str:
    """Depthwise convolutions with ReLU6."""
    low, high = b.const(0.0), b.const(6.0)
    h = b.node("Clip", b.conv("x", 3, 8, label="stem"), low, high)
    h = b.node("Clip", b.conv(h, 8, 8, label="depthwise", group=8), low, high)
    h = b.conv(part(b, h, 8), 8, 16, 1, label="project")
    return b.head(h, 16, 10)


def unet(b: Builder, part: Part) -> str:
    """Down, up, and a skip."""
    skip = b.conv_relu("x", 3, 8, label="down1")
    h = b.conv_relu(part(b, skip, 8), 8, 8, label="down2")
    h = b.node("Concat", h, skip, label="skip", axis=1)
    return b.conv(b.conv_relu(h, 16, 8, label="up"), 8, 2, label="out")


def transformer(b: Builder, part: Part) -> str:
    """Attention and a feed-forward part, with norms before them."""
    h = b.linear("x", 16, 32, label="embed")
    n = b.norm(h, 32, label="norm1")
    q, k, v = (b.linear(n, 32, 32, label=name, gain=0.5) for name in ("query", "key", "value"))
    scores = b.node("MatMul", q, b.node("Transpose", k, perm=[0, 2, 1]), label="scores")
    weights = b.node("Softmax", b.node("Mul", scores, b.const(32**-0.5)), label="softmax", axis=-1)
    h = b.node("Add", h, b.node("MatMul", weights, v, label="mix"), label="residual")
    h = part(b, h, 32)
    n = b.norm(h, 32, label="norm2")
    return b.linear(b.relu(b.linear(n, 32, 64, label="expand")), 64, 10, label="head")


def inception(b: Builder, part: Part) -> str:
    """Two branches that meet."""
    h = b.conv_relu("x", 3, 8, label="stem")
    wide = b.conv_relu(part(b, h, 8), 8, 8, label="wide")
    h = b.node("Concat", wide, b.conv_relu(h, 8, 8, 1, label="narrow"), label="join", axis=1)
    return b.head(h, 16, 10)


def mixer(b: Builder, part: Part) -> str:
    """Products along both axes."""
    h = b.linear("x", 16, 32, label="embed")
    t = b.node(
        "Transpose", b.linear(b.node("Transpose", h, perm=[0, 2, 1]), 8, 8, label="tokens"), perm=[0, 2, 1]
    )
    h = part(b, b.node("Add", h, t, label="residual"), 32)
    return b.linear(b.relu(b.linear(h, 32, 32, label="channels")), 32, 10, label="head")


#: Name to the network and the shape of one sample.
NETWORKS: Mapping[str, tuple[_Network, tuple[int, ...]]] = {
    "mlp": (mlp, (16,)),
    "cnn": (cnn, (3, 8, 8)),
    "resnet": (resnet, (3, 8, 8)),
    "mobilenet": (mobilenet, (3, 8, 8)),
    "unet": (unet, (3, 8, 8)),
    "transformer": (transformer, (8, 16)),
    "inception": (inception, (3, 8, 8)),
    "mixer": (mixer, (8, 16)),
}
#: Name to a network and the node whose body it is moved into as a whole.
IN_BODIES: Mapping[str, tuple[str, Holder]] = {
    "mlp in a Loop": ("mlp", "Loop"),
    "cnn in an If": ("cnn", "If"),
    "transformer in a Scan": ("transformer", "Scan"),
}
#: From 24 samples on, a third of them proves a fix.
SAMPLES = 36


def build(name: str, part: Part) -> Model:
    """A network with a part in its middle."""
    network, shape = NETWORKS[name]
    b = Builder(name, shape, seed=list(NETWORKS).index(name))

    def scoped(b: Builder, x: str, width: int) -> str:
        b.scope = "part"
        y = part(b, x, width)
        b.scope = ""
        return y

    return b.model(network(b, scoped))


def inputs(name: str) -> np.ndarray:
    """Its samples, [SAMPLES, ...] float32."""
    rng = np.random.default_rng(7)
    return rng.normal(size=(SAMPLES, *NETWORKS[name][1])).astype(np.float32)
