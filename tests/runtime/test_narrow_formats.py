"""FP8 and INT4 in exact sessions: what ONNX's reference evaluator computes."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from narrow import ACTIVATIONS, conv_act_conv, images
from onnx.reference import ReferenceEvaluator

import pytest_int8acc.runtime.onnxruntime as engines
from pytest_int8acc import EngineError
from pytest_int8acc.graph.emulate import emulate_half
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import make_model
from pytest_int8acc.runtime.onnxruntime import OrtEngine, keeps_relu


def sqnr_db(reference: np.ndarray, got: np.ndarray) -> float:
    error = got.astype(np.float64) - reference
    return float(10 * np.log10(np.square(reference.astype(np.float64)).sum() / np.square(error).sum()))


@pytest.mark.parametrize("rest", ["fp32", "fp16"])
@pytest.mark.parametrize("narrow", ["fp8", "int4"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_exact_session_computes_what_the_reference_does(activation: str, narrow: str, rest: str) -> None:
    x = images(4)
    plain, quantized = (normalize(make_model(conv_act_conv(activation, kind, kind))) for kind in ("", narrow))
    model = to_fp16(quantized).model if rest == "fp16" else quantized
    truth = OrtEngine(plain)({"x": x})["y"]
    spelled_out = onnx.ModelProto.FromString(emulate_half(model).serialize())  # its sums in FP32
    expected = sqnr_db(truth, ReferenceEvaluator(spelled_out).run(None, {"x": x})[0])
    assert sqnr_db(truth, OrtEngine(model)({"x": x})["y"]) == pytest.approx(expected, abs=0.1)
    assert expected > (20 if narrow == "fp8" else 8)


def test_a_runtime_that_drops_the_relu_all_the_same_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    original = onnxruntime.InferenceSession

    def deaf(*rest: object, disabled_optimizers: object, **named: object) -> object:
        return original(*rest, **named)

    keeps_relu.cache_clear()
    monkeypatch.setattr(onnxruntime, "InferenceSession", deaf)
    OrtEngine(make_model(conv_act_conv("Relu", "int8", "int8")))
    with pytest.raises(EngineError, match=r"drops a Relu in front of such a QuantizeLinear.*another version"):
        OrtEngine(make_model(conv_act_conv("Relu", "int4", "int8")))
    keeps_relu.cache_clear()


def test_the_answer_is_known_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert keeps_relu()
    monkeypatch.setattr(engines, "_loaded", None)
    assert keeps_relu()
