"""FP16 spelled out: what an engine with FP16 tensors and FP32 accumulators computes, on any CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from graphs import feed_of, float_models
from hypothesis import given, settings
from written_networks import model as text_model
from zoo import ZOO, sample_feed
from zoo_networks import network_of, zoo_model

from pytest_int8acc.graph.emulate import emulate_half
from pytest_int8acc.graph.formats import FORMATS
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.half_network import low_network
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.runtime.onnxruntime import OrtEngine


def half_of(name: str, *, int8: bool) -> Model:
    model = zoo_model(name)
    return to_fp16(apply(network_of(model, 4 / 127)) if int8 else model).model


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("name", ZOO)
def test_zoo_stays_valid_and_close(name: str, int8: bool) -> None:
    half = half_of(name, int8=int8)
    spelled = emulate_half(half)
    onnx.checker.check_model(onnx.load_from_string(spelled.serialize()), full_check=True)
    assert [str(v) for v in spelled.inputs + spelled.outputs] == [str(v) for v in half.inputs + half.outputs]
    assert emulate_half(spelled) is spelled
    feed = sample_feed(ZOO[name](), 0, 2)
    mild, honest = OrtEngine(half, "native")(feed), OrtEngine(half)(feed)
    if not int8:  # Q/DQ would turn a last bit into a step
        for output in mild:
            np.testing.assert_allclose(honest[output], mild[output], rtol=0.05, atol=0.02)


def test_every_result_is_rounded_to_fp16() -> None:
    rng = np.random.default_rng(0)
    w = rng.normal(size=(16, 16)).astype(np.float32)
    model = text_model(
        """g (float[4, 16] x) => (float[4, 16] y) {
            a = MatMul(x, w) b = Relu(a) c = Mul(b, b) y = Exp(c)
        }""",
        {"w": w / 40},
    )
    x = rng.normal(size=(4, 16)).astype(np.float32)
    h = np.float16
    a = (x.astype(h).astype(np.float32) @ (w / 40).astype(h).astype(np.float32)).astype(h)
    b = np.maximum(a, 0).astype(np.float32)
    c = (b * b).astype(h).astype(np.float32)
    expected = np.exp(c).astype(h).astype(np.float32)
    found = OrtEngine(to_fp16(model).model)({"x": x})["y"]
    # One FP16 step is allowed: sums and exp differ in the last bit of FP32 between libraries.
    np.testing.assert_allclose(found, expected, rtol=2**-10)
    np.testing.assert_array_equal(found, found.astype(h).astype(np.float32))
    assert (found == expected).mean() > 0.95


def test_overflow_inside_the_model_shows() -> None:
    model = text_model("g (float[2] x) => (float[2] y) { s = Mul(x, x) y = Sqrt(s) }")
    half = to_fp16(model).model
    feed = {"x": np.array([300, 200], np.float32)}
    np.testing.assert_array_equal(OrtEngine(half)(feed)["y"], [np.inf, 200])
    assert np.isfinite(OrtEngine(half, "native")(feed)["y"]).all(), "which is why it is spelled out"


def test_a_convolution_and_its_relu_are_rounded_once_after_both() -> None:
    spelled = emulate_half(half_of("plain", int8=False))
    readers = {name: node for node in spelled.graph.node for name in node.input}
    convolutions = [node for node in spelled.graph.node if node.op_type == "Conv"]
    assert convolutions
    assert {readers[node.output[0]].op_type for node in convolutions} == {"Relu"}


NORMS = {
    "layer": "c = Sub(a, m) q = Pow(c, two) v = ReduceMean<axes = [-1]>(q) e = Add(v, eps) r = Sqrt(e)"
    " d = Div(c, r) g = Mul(d, scale) n = Add(g, bias)",
    "rms": "q = Pow(a, two) v = ReduceMean<axes = [-1]>(q) e = Add(v, eps) r = Sqrt(e) d = Div(a, r)"
    " n = Mul(d, scale)",
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("low", [FORMATS["fp16"], FORMATS["bf16"]], ids=lambda low: low.name)
def test_a_norm_in_fp32_between_half_layers_is_not_fused_into_one_of_fp16(norm: str, low: Any) -> None:
    head = "g (float[n, 8] x) => (float[n, 8] y) <float two = {2}, float eps = {1e-5}>"
    body = f"a = Exp(x) m = ReduceMean<axes = [-1]>(a) {NORMS[norm]} y = Tanh(n)"
    ones = np.ones(8, np.float32)
    model = text_model(f"{head} {{ {body} }}", {"scale": ones, "bias": 0.1 * ones})
    model = low_network(model, low).model
    kept = [n.name for n in model.graph.node if n.op_type not in ("Exp", "Tanh")]
    half, feed = (
        to_fp16(model, kept, low).model,
        {"x": np.linspace(-2, 2, 32, dtype=np.float32).reshape(4, 8)},
    )
    plain = OrtEngine(half, level="none")(feed)["y"]
    np.testing.assert_allclose(OrtEngine(half)(feed)["y"], plain, atol=1e-2)


def test_dequantized_values_are_not_rounded() -> None:
    spelled = emulate_half(half_of("residual", int8=True))
    readers = {name: node.op_type for node in spelled.graph.node for name in node.input}
    found = {readers[n.output[0]] for n in spelled.graph.node if n.op_type == "DequantizeLinear"}
    assert "Cast" not in found


def test_inputs_and_outputs_in_fp16_stay_so() -> None:
    model = text_model("g (float16[2] x) => (float16[2] y) { s = Mul(x, x) y = Sqrt(s) }")
    spelled = emulate_half(model)
    assert [v.dtype for v in spelled.inputs + spelled.outputs] == [np.float16, np.float16]
    found = OrtEngine(model)({"x": np.array([300, 3], np.float16)})["y"]
    np.testing.assert_array_equal(found, np.array([np.inf, 3], np.float16))


def test_a_model_without_fp16_is_returned_as_it_is() -> None:
    model = zoo_model("residual")
    assert emulate_half(model) is model


@settings(max_examples=15, deadline=None)
@given(float_models())
def test_random_graphs_give_fp16_numbers_near_the_float_ones(model: Model) -> None:
    feed = feed_of(3)
    exact, found = OrtEngine(model)(feed), OrtEngine(to_fp16(model).model)(feed)
    for name, array in exact.items():
        if np.abs(array).max() < 1e3:
            scale = np.abs(array).max()
            np.testing.assert_allclose(found[name], array, atol=0.05 * scale)
        finite = found[name][np.isfinite(found[name])]
        np.testing.assert_array_equal(finite, finite.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize(
    "body",
    [
        "g (float16[4] x) => (float16[4] y) { y = Exp(x) }",
        "g (float[4] x) => (float[4] y) { h = Cast<to=10>(x) e = Exp(h) y = Cast<to=1>(e) }",
        "g (float[2, 2] x) => (float[2, 2] y) { h = EyeLike<dtype=10>(x) e = Exp(h) y = Cast<to=1>(e) }",
        "g (float[4] x) => (float16[4] y) { y = Cast<to=10>(x) }",
    ],
)
def test_fp16_that_is_computed_in_is_not_taken_for_spelled_out(body: str) -> None:
    model = text_model(body)
    assert emulate_half(model) is not model
