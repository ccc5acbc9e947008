"""Number formats: what ONNX Runtime and NumPy make of the same numbers, bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from onnx import TensorProto, helper
from zoo import ZOO, sample_feed
from zoo_networks import zoo_model

from pytest_int8acc.graph.formats import FORMATS, along, format_of
from pytest_int8acc.graph.instrument import build_instrument
from pytest_int8acc.graph.layout import find_groups, quantize
from pytest_int8acc.graph.lint import lint
from pytest_int8acc.graph.load import lift
from pytest_int8acc.graph.network import Quantization
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.graph.qdq import read_qdq
from pytest_int8acc.runtime.onnxruntime import OrtEngine

ONNX_TYPES = {
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int16": TensorProto.INT16,
    "uint16": TensorProto.UINT16,
    "fp8": TensorProto.FLOAT8E4M3FN,
}
QUANTIZED = [FORMATS[name] for name in ONNX_TYPES]
#: Formats that a case may quantize to.
TARGETS = [known for known in FORMATS.values() if known.is_target]

numbers = st.floats(-1e6, 1e6, width=32)
arrays = npst.arrays(np.float32, npst.array_shapes(min_dims=1, max_dims=3, max_side=5), elements=numbers)
scales = st.floats(2.0**-20, 2.0**10, width=32)


def pair(format_: Any, axis: int | None) -> Callable[..., np.ndarray]:
    """ONNX Runtime's QuantizeLinear and DequantizeLinear; the scale and zero point are inputs."""
    kind, attributes = ONNX_TYPES[format_.name], {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["codes"], **attributes),
        helper.make_node("DequantizeLinear", ["codes", "scale", "zero"], ["y"], **attributes),
        helper.make_node("Cast", ["codes"], ["z"], to=TensorProto.FLOAT),
    ]
    shape = [] if axis is None else ["channels"]
    taken = [("x", TensorProto.FLOAT, None), ("scale", TensorProto.FLOAT, shape), ("zero", kind, shape)]
    made = [(name, TensorProto.FLOAT, None) for name in "yz"]
    graph = helper.make_graph(
        nodes, "pair", *([helper.make_tensor_value_info(*value) for value in v] for v in (taken, made))
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)

    def run(x: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> list[np.ndarray]:
        if format_.name == "fp8":
            zero = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(zero.view(np.uint8), kind)
        feed = {"x": x, "scale": scale, "zero": zero}
        values = {
            name: value
            if isinstance(value, onnxruntime.OrtValue)
            else onnxruntime.OrtValue.ortvalue_from_numpy(value)
            for name, value in feed.items()
        }
        return [value.numpy() for value in session.run_with_ort_values(["y", "z"], values)]

    return run


@pytest.mark.parametrize("format_", QUANTIZED, ids=lambda f: f.name)
def test_a_tensor_is_quantized_as_onnxruntime_does(format_: Any) -> None:
    run = pair(format_, None)

    @given(arrays, scales, st.data())
    @settings(max_examples=40, deadline=None)
    def check(x: np.ndarray, scale: float, data: st.DataObject) -> None:
        ends = (0, 0) if format_.name == "fp8" else (int(format_.lowest), int(format_.highest))
        quantization = Quantization(
            np.array(scale, np.float32), np.array(data.draw(st.integers(*ends)), format_.dtype)
        )
        steps = np.array([0.5, 1.5, 2.5, -0.5, -1.5], np.float32) * quantization.scale  # half to even
        x = np.concatenate([x.ravel(), steps])
        result, codes = run(x, quantization.scale, quantization.zero_point)
        found = format_.quantize(x, quantization.scale, quantization.zero_point)
        assert found.dtype == format_.dtype
        np.testing.assert_array_equal(found.astype(np.float32), codes)
        fake = format_.fake_quantize(x, quantization.scale, quantization.zero_point)
        assert fake.dtype == np.float32
        np.testing.assert_array_equal(fake, result)
        if format_.name != "fp8":
            constant = dataclasses.replace(quantization, values=quantization.quantize(x))
            np.testing.assert_array_equal(constant.dequantize(), result)

    check()


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("format_", [FORMATS["int8"], FORMATS["uint8"]], ids=lambda f: f.name)
def test_channels_are_quantized_as_onnxruntime_does(format_: Any, axis: int) -> None:
    run, rng = pair(format_, axis), np.random.default_rng(0)
    x = rng.normal(size=(3, 4, 5)).astype(np.float32)
    scale = rng.uniform(0.001, 0.1, x.shape[axis]).astype(np.float32)
    zero = rng.integers(int(format_.lowest), int(format_.highest), scale.shape).astype(format_.dtype)
    result, codes = run(x, scale, zero)
    np.testing.assert_array_equal(format_.quantize(x, scale, zero, axis), codes)
    np.testing.assert_array_equal(format_.fake_quantize(x, scale, zero, axis), result)


@settings(deadline=None)
@given(npst.arrays(np.float32, (50,), elements=st.floats(width=32)))
def test_floats_are_rounded_as_numpy_does(values: np.ndarray) -> None:
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(FORMATS["fp16"].round(values), values.astype(np.float16))
    np.testing.assert_array_equal(FORMATS["fp32"].round(values), values)


@pytest.mark.parametrize(
    "format_", [FORMATS[name] for name in ("fp32", "fp16", "bf16", "fp8")], ids=lambda f: f.name
)
def test_what_a_float_format_holds(format_: Any) -> None:
    facts = ml_dtypes.finfo(format_.dtype)
    assert (format_.lowest, format_.highest) == (float(facts.min), float(facts.max))
    assert format_.normal == float(facts.smallest_normal)
    assert format_.smallest == float(facts.smallest_subnormal)
    assert format_.levels == format_.highest
    ends = np.array([format_.smallest, 0.5 * format_.smallest, 1.5 * format_.smallest, format_.highest])
    assert format_.round(ends).astype(np.float64).tolist() == [
        *(format_.smallest, 0, 2 * format_.smallest, format_.highest)
    ]


def test_bf16_rounds_half_to_even() -> None:
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8)], np.float32)
    assert FORMATS["bf16"].round(ties).astype(float).tolist() == [1, 1 + 2**-6, -1]


def test_what_is_beyond_the_range_saturates_or_becomes_inf() -> None:
    far = np.array([1e30, -1e30], np.float64)
    assert FORMATS["int8"].round(far).tolist() == [127, -128]
    assert FORMATS["fp8"].round(far).astype(float).tolist() == [448, -448]
    assert FORMATS["fp16"].round(far).tolist() == [np.inf, -np.inf]


def test_a_bias_beyond_int32_keeps_its_sign() -> None:
    codes = FORMATS["int32"].quantize(np.array([3.0, -3.0], np.float32), 1e-9)
    assert codes.tolist() == [2**31 - 1, -(2**31)]


@pytest.mark.parametrize(("name", "levels"), [("int8", 127), ("uint8", 127), ("int16", 32767), ("fp8", 448)])
def test_a_symmetric_scale_reaches_amax_with_its_last_level(name: str, levels: float) -> None:
    format_ = FORMATS[name]
    assert format_.levels == levels
    if format_.lowest < 0:
        amax = np.array(3.0, np.float32)
        scale = (amax / np.float32(format_.levels)).astype(np.float32)
        assert format_.quantize(amax, scale, format_.zeros(scale)).astype(float) == levels


def test_a_format_is_found_by_its_name_and_its_dtype() -> None:
    assert all(FORMATS[known.name] is known for known in FORMATS.values())
    assert all(format_of(known.dtype) is known for known in FORMATS.values())
    assert all(known.sound_db > 0 for known in TARGETS)
    assert format_of(np.int8) is FORMATS["int8"]
    assert (
        Quantization(np.float32([0.1]), FORMATS["int8"].zeros(np.float32([0.1])), 0).format is FORMATS["int8"]
    )
    with pytest.raises(KeyError):
        format_of(np.complex64)


def test_channels_lie_along_their_axis() -> None:
    assert along(np.arange(3), 1, 4).shape == (1, 3, 1, 1)
    assert along(np.arange(3), -1, 2).shape == (1, 3)
    assert along(0.5, 1, 4).shape == along(np.arange(1), None, 4).shape == ()


@pytest.mark.parametrize("low", TARGETS, ids=lambda low: low.name)
def test_each_target_is_quantized_to_read_back_and_tried(low: Any) -> None:
    """A new target that a module does not know fails here."""
    model = lift(zoo_model("residual"), low.opset)
    layout = find_groups(model, low=low)
    network = quantize(model, layout, dict.fromkeys(layout.activations, 0.02), low)
    written = apply(network)
    again = read_qdq(written, low=low)
    assert [edge.quantization.format for edge in again.edges] == [low] * len(list(network.edges))
    assert not [finding for finding in lint(written) if finding.severity == "error"]
    instrument, feed = build_instrument(again), sample_feed(ZOO["residual"]())
    expected = OrtEngine(written)(feed)
    for name, array in OrtEngine(instrument.model)(
        {**feed, **instrument.controls.setting([]).inputs}
    ).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-3, atol=1e-3)
