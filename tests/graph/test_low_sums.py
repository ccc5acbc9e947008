"""Products summed in FP16, against loops that round after every sixteenth."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_int8acc.engines.onnxruntime import OrtEngine
from pytest_int8acc.graph.formats import BF16, FP16, Format
from pytest_int8acc.graph.low_sums import can_sum_low, summing_model
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.tensors import Array

HEAD = '<ir_version: 8, opset_import: ["": 17]> g '


def model_of(text: str, **weights: Array) -> Model:
    proto = onnx.parser.parse_model(HEAD + text)
    for name, array in weights.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    for node in proto.graph.node:
        node.name = node.output[0]
    return make_model(proto)


def by_loops(pairs: list[tuple[Array, Array]], low: Format = FP16) -> Array:
    """One sum at a time; pairs of [rows, products] and [products, columns] are summed one after the other."""
    made = np.zeros((len(pairs[0][0]), pairs[0][1].shape[1]), np.float32)
    for left, right in pairs:
        for i, j in np.ndindex(made.shape):
            for at in range(0, left.shape[1], 16):
                both = zip(left[i, at : at + 16], right[at : at + 16, j], strict=True)
                part = np.float32(math.fsum(float(a) * float(b) for a, b in both))
                made[i, j] = low.round(np.float32(made[i, j] + part))
    return made


def outputs(model: Model, low: Format, **feed: Array) -> tuple[Array, Array]:
    """The output ``y`` with the sums of ``y`` in the format, and as it is."""
    assert can_sum_low(model, model.index.nodes["y"])
    summing = summing_model(model, ["y"], low)
    engine = OrtEngine(summing.model)
    on, off = (engine({**feed, summing.switch: np.array([which])})["y"] for which in (True, False))
    np.testing.assert_array_equal(off, OrtEngine(model)(feed)["y"])
    return on, off


def halves(rng: np.random.Generator, *shape: int, mean: float = 0.0) -> Array:
    return rng.normal(mean, 1, shape).astype(np.float16).astype(np.float32)


@given(st.integers(1, 80), st.integers(0, 2**32 - 1), st.sampled_from([FP16, BF16]))
@settings(max_examples=20, deadline=None)
def test_sums_of_a_matrix_product(length: int, seed: int, low: Format) -> None:
    rng = np.random.default_rng(seed)
    x, w = halves(rng, 3, length, mean=1), halves(rng, length, 2, mean=1)
    model = model_of(f"(float[n, {length}] x) => (float[n, 2] y) {{ y = MatMul(x, w) }}", w=w)
    on, _ = outputs(model, low, x=x)
    step = 2**-10 if low is FP16 else 2**-7  # FP32 sums of sixteen in another order may tip a rounding
    np.testing.assert_allclose(on, by_loops([(x, w)], low), rtol=2 * step)
    assert np.mean(on == by_loops([(x, w)], low)) > 0.5
    np.testing.assert_array_equal(on, low.round(on))


@pytest.mark.parametrize(
    ("text", "left", "right"),
    [
        ("(float[40, 5] x) => (float[5, 3] y) { y = Gemm <transA = 1> (x, w, b) }", (40, 5), (40, 3)),
        ("(float[5, 40] x) => (float[5, 3] y) { y = Gemm <transB = 1> (x, w, b) }", (5, 40), (3, 40)),
    ],
)
def test_sums_of_a_gemm(text: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, w, b = halves(rng, *left, mean=1), halves(rng, *right, mean=1), halves(rng, 3)
    on, _ = outputs(model_of(text, w=w, b=b), FP16, x=x)
    pair = (x.T if "transA" in text else x, w.T if "transB" in text else w)
    np.testing.assert_allclose(on, by_loops([pair]) + b, rtol=2e-3)


def test_sums_of_products_of_activations_of_any_length() -> None:
    rng = np.random.default_rng(0)
    text = "(float[a, b, c, d] x, float[a, b, d, c] z) => (float[a, b, c, c] y) { y = MatMul(x, z) }"
    model = model_of(text)
    for length in (7, 40):
        x, z = halves(rng, 2, 2, 3, length, mean=1), halves(rng, 2, 2, length, 3, mean=1)
        on, _ = outputs(model, FP16, x=x, z=z)
        for at in np.ndindex(2, 2):
            np.testing.assert_allclose(on[at], by_loops([(x[at], z[at])]), rtol=2e-3)


@pytest.mark.parametrize(
    "said", ["strides = [2, 1], pads = [1, 0, 2, 1]", "dilations = [1, 2]", "pads = [1, 1, 1, 1]"]
)
def test_sums_of_a_convolution(said: str) -> None:
    rng = np.random.default_rng(0)
    x, w, b = halves(rng, 2, 40, 7, 6, mean=1), halves(rng, 5, 40, 3, 2, mean=1), halves(rng, 5)
    text = f"(float[n, 40, 7, 6] x) => (float[n, 5, h, k] y) {{ y = Conv <{said}> (x, w, b) }}"
    on, off = outputs(model_of(text, w=w, b=b), FP16, x=x)
    taps = []
    for tap in np.ndindex(3, 2):  # where each tap of the kernel looks, as a convolution of its own
        mask = np.zeros((1, 1, 3, 2))
        mask[0, 0][tap] = 1
        look = OrtEngine(
            model_of(text.replace("40", "1").replace("5, h", "1, h").replace(", b)", ")"), w=mask)
        )
        met = np.stack([look({"x": x[:, c : c + 1]})["y"][:, 0] for c in range(40)], axis=-1)
        taps.append((met.reshape(-1, 40), w[:, :, tap[0], tap[1]].T))
    expected = np.moveaxis(by_loops(taps).reshape(2, *off.shape[2:], 5), -1, 1) + b.reshape(-1, 1, 1)
    np.testing.assert_allclose(on, expected, rtol=2e-3, atol=0.3)
    assert np.mean(on == expected) > 0.5


@pytest.mark.parametrize("length", [2048, 16])
def test_long_sums_lose_and_short_ones_do_not(length: int) -> None:
    rng = np.random.default_rng(1)
    x, w = halves(rng, 8, length, mean=1), halves(rng, length, 4, mean=1)
    on, off = outputs(
        model_of(f"(float[n, {length}] x) => (float[n, 4] y) {{ y = MatMul(x, w) }}", w=w), FP16, x=x
    )
    lost, rounded = (np.square(made - off).sum() for made in (on, FP16.round(off)))
    assert (lost > 4 * rounded) == (length == 2048)


@pytest.mark.parametrize(
    "text",
    [
        "(float[1, 32, 9] x) => (float[n, m, h] y) { y = Conv <group = 2> (x, w) }",
        '(float[1, 16, 9] x) => (float[n, m, h] y) { y = Conv <auto_pad = "SAME_UPPER"> (x, w) }',
        "(float[40] x) => (float[m] y) { y = MatMul(x, w) }",
        "(float[2, 40] x) => (float[n, m] y) { y = Gemm <alpha = 2.0> (x, w) }",
        "(float[2, 40] x) => (float[2, 40] y) { y = Relu(x) }",
    ],
)
def test_other_nodes_are_left(text: str) -> None:
    model = model_of(text, w=np.ones((6, 16, 3) if "Conv" in text else (40, 3)))
    assert not can_sum_low(model, model.index.nodes["y"])
