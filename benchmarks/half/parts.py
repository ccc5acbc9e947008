"""Parts that FP16 computes wrong, and such as look so and are right; their nodes are named ``part/...``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from benchmarks.builder import Builder
from benchmarks.half.networks import Part


def _mean(b: Builder, x: str, label: str) -> str:
    return b.node("ReduceMean", x, label=label, axes=[-1], keepdims=1)


def _sum(b: Builder, x: str, label: str) -> str:
    return b.node("ReduceSum", x, b.ints(-1), label=label, keepdims=1)


def _scaled(b: Builder, x: str, factor: float, label: str = "grow") -> str:
    return b.node("Mul", x, b.const(factor), label=label)


def layer_norm(b: Builder, x: str, width: int, size: float) -> str:
    """LayerNorm in parts of values of this size: the squares overflow, from 300 on their mean, too."""
    h = _scaled(b, x, size)
    centred = b.node("Sub", h, _mean(b, h, "mean"), label="centre")
    variance = _mean(b, b.node("Pow", centred, b.const(2.0), label="square"), "variance")
    root = b.node("Sqrt", b.node("Add", variance, b.const(1e-5), label="epsilon"), label="root")
    return b.node("Div", centred, root, label="normed")


def rms_norm(b: Builder, x: str, width: int, size: float) -> str:
    """RMSNorm in parts, with a reciprocal."""
    h = _scaled(b, x, size)
    mean = _mean(b, b.node("Mul", h, h, label="square"), "mean")
    root = b.node("Sqrt", b.node("Add", mean, b.const(1e-5), label="epsilon"), label="root")
    return b.node("Mul", h, b.node("Reciprocal", root, label="inverse"), label="normed")


def fourth_power(b: Builder, x: str, width: int) -> str:
    """A norm by fourth powers."""
    h = _scaled(b, x, 30.0)
    mean = _mean(b, b.node("Pow", h, b.const(4.0), label="power"), "mean")
    root = b.node("Pow", b.node("Add", mean, b.const(1.0), label="epsilon"), b.const(0.25), label="root")
    return b.node("Div", h, root, label="normed")


def masked_softmax(b: Builder, x: str, width: int) -> str:
    """A mask of -1e9 that hides a whole row: -inf less -inf is no number."""
    hidden = np.zeros(width, np.float32) - 1e9
    shares = b.node("Softmax", b.node("Add", x, b.const(hidden), label="mask"), label="shares", axis=-1)
    return b.node("Add", x, _scaled(b, shares, float(width), "spread"), label="residual")


def computed_mask(b: Builder, x: str, width: int) -> str:
    """(1 - m) * -1e9: 0 times -inf is no number."""
    seen = (np.arange(width) % 4 > 0).astype(np.float32)
    hidden = _scaled(
        b,
        b.node(
            "Sub",
            b.const(1.0),
            b.node(
                "Mul",
                b.node("Ceil", b.node("Sigmoid", x, label="gate"), label="ones"),
                b.const(seen),
                label="seen",
            ),
            label="hidden",
        ),
        -1e9,
        "penalty",
    )
    shares = b.node("Softmax", b.node("Add", x, hidden, label="mask"), label="shares", axis=-1)
    return b.node("Add", x, _scaled(b, shares, float(width), "spread"), label="residual")


def exponentials(b: Builder, x: str, width: int) -> str:
    """A softmax without its maximum taken off."""
    power = b.node("Exp", b.node("Add", _scaled(b, x, 0.5), b.const(12.0), label="shift"), label="exp")
    shares = b.node("Div", power, _sum(b, power, "sum"), label="shares")
    return _scaled(b, shares, float(width), "spread")


def log_sum_exp(b: Builder, x: str, width: int) -> str:
    """The log of a sum of exponentials, taken off."""
    total = _sum(b, b.node("Exp", b.node("Add", x, b.const(11.0), label="shift"), label="exp"), "sum")
    return b.node(
        "Sub", b.node("Add", x, b.const(11.0), label="back"), b.node("Log", total, label="log"), label="off"
    )


def softplus(b: Builder, x: str, width: int) -> str:
    """log(1 + exp(x)) spelled out, of large values."""
    h = b.node("Add", _scaled(b, x, 2.0), b.const(11.0), label="shift")
    grown = b.node("Add", b.node("Exp", h, label="exp"), b.const(1.0), label="one")
    return b.node("Sub", b.node("Log", grown, label="log"), b.const(11.0), label="back")


def long_sum(b: Builder, x: str, width: int) -> str:
    """A mean as a sum of many, scaled afterwards."""
    h = b.node("Abs", _scaled(b, x, 9000.0), label="sizes")
    mean = _scaled(b, _sum(b, h, "sum"), 1 / width, "mean")
    return b.node(
        "Div", _scaled(b, x, 9000.0, "values"), b.node("Add", mean, b.const(1.0), label="one"), label="normed"
    )


def running_sum(b: Builder, x: str, width: int) -> str:
    """A running sum, scaled afterwards."""
    h = b.node(
        "CumSum", b.node("Abs", _scaled(b, x, 1.2e4), label="sizes"), b.const(np.array(-1)), label="sum"
    )
    return b.node("Add", x, _scaled(b, h, 1e-4 / width, "shrink"), label="residual")


def sum_of_products(b: Builder, x: str, width: int) -> str:
    """A product with large weights, scaled afterwards."""
    h = b.node("MatMul", x, b.random(width, width, std=4e4), label="product")
    return b.node("Add", x, _scaled(b, h, 1e-5 / width**0.5, "shrink"), label="residual")


def large_constant(b: Builder, x: str, width: int) -> str:
    """Divided by a number beyond FP16, and multiplied again."""
    return _scaled(b, b.node("Div", x, b.const(1e6), label="shrink"), 1e6, "grow")


def large_offset(b: Builder, x: str, width: int) -> str:
    """An offset beyond FP16, taken off again."""
    h = b.node("Add", _scaled(b, x, 1e4), b.const(1e5), label="offset")
    return _scaled(b, b.node("Sub", h, b.const(1e5), label="back"), 1e-4, "shrink")


def denormal(b: Builder, x: str, width: int) -> str:
    """Scaled to where FP16 has few digits, and back."""
    return b.node("Div", _scaled(b, x, 1e-6, "shrink"), b.const(1e-6), label="back")


def small_squares(b: Builder, x: str, width: int) -> str:
    """An RMSNorm of small values, whose squares vanish."""
    h = _scaled(b, x, 2e-4, "shrink")
    mean = _mean(b, b.node("Mul", h, h, label="square"), "mean")
    root = b.node("Sqrt", b.node("Add", mean, b.const(1e-12), label="epsilon"), label="root")
    return b.node("Div", h, root, label="normed")


def vanishing_epsilon(b: Builder, x: str, width: int) -> str:
    """An epsilon that is 0 in FP16, and a row of zeros to divide."""
    rows = b.node("Relu", b.node("Sub", x, b.const(100.0), label="below"), label="zeros")
    square = _sum(b, b.node("Mul", rows, rows, label="square"), "sum")
    root = b.node("Sqrt", b.node("Add", square, b.const(1e-12), label="epsilon"), label="root")
    return b.node("Add", x, b.node("Div", rows, root, label="unit"), label="residual")


def cancelled_variance(b: Builder, x: str, width: int) -> str:
    """A variance as a difference of large squares."""
    h = b.node("Add", x, b.const(60.0), label="offset")
    mean = _mean(b, h, "mean")
    squares = _mean(b, b.node("Mul", h, h, label="square"), "squares")
    variance = b.node("Sub", squares, b.node("Mul", mean, mean, label="squared_mean"), label="variance")
    root = b.node("Sqrt", b.node("Add", variance, b.const(0.1), label="epsilon"), label="root")
    return b.node("Div", b.node("Sub", h, mean, label="centre"), root, label="normed")


FAULTS: Mapping[str, Part] = {
    "layernorm_100": partial(layer_norm, size=100.0),
    "layernorm_1000": partial(layer_norm, size=1000.0),
    "rmsnorm_150": partial(rms_norm, size=150.0),
    "rmsnorm_1000": partial(rms_norm, size=1000.0),
    "fourth_power": fourth_power,
    "masked_softmax": masked_softmax,
    "computed_mask": computed_mask,
    "exponentials": exponentials,
    "log_sum_exp": log_sum_exp,
    "softplus": softplus,
    "long_sum": long_sum,
    "running_sum": running_sum,
    "sum_of_products": sum_of_products,
    "large_constant": large_constant,
    "large_offset": large_offset,
    "denormal": denormal,
    "small_squares": small_squares,
    "vanishing_epsilon": vanishing_epsilon,
    "cancelled_variance": cancelled_variance,
}


def plain(b: Builder, x: str, width: int) -> str:
    """Nothing."""
    return x


def gelu(b: Builder, x: str, width: int) -> str:
    """GELU by tanh of large values: the cube overflows, and tanh of inf is 1."""
    h = _scaled(b, x, 40.0)
    cube = _scaled(b, b.node("Pow", h, b.const(3.0), label="cube"), 0.044715, "weigh")
    inner = b.node("Tanh", _scaled(b, b.node("Add", h, cube, label="inner"), 0.79788, "size"), label="tanh")
    return b.node(
        "Mul",
        b.node("Mul", h, b.node("Add", inner, b.const(1.0), label="one"), label="gate"),
        b.const(0.0125),
        label="half",
    )


def clipped(b: Builder, x: str, width: int) -> str:
    """An overflow that a Clip bounds, then limits beyond FP16 that bound nothing."""
    h = _scaled(b, x, 300.0)
    bounded = b.node("Clip", b.node("Mul", h, h, label="square"), b.const(0.0), b.const(6e4), label="bounded")
    h = b.node("Add", x, _scaled(b, bounded, 1e-4, "shrink"), label="residual")
    return b.node("Clip", h, b.const(-1e9), b.const(1e9), label="open")


def partly_masked(b: Builder, x: str, width: int) -> str:
    """A mask of -1e9 that leaves something of every row."""
    hidden = np.where(np.arange(width) % 3 == 0, -1e9, 0.0).astype(np.float32)
    shares = b.node("Softmax", b.node("Add", x, b.const(hidden), label="mask"), label="shares", axis=-1)
    return b.node("Add", x, _scaled(b, shares, float(width), "spread"), label="residual")


HEALTHY: Mapping[str, Part] = {
    "plain": plain,
    "gelu": gelu,
    "clipped": clipped,
    "partly_masked": partly_masked,
}
