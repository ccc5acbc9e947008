"""FP8 in plain operators: what ml_dtypes, ONNX Runtime's kernels and ONNX's reference evaluator compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from zoo import ZOO, sample_feed
from zoo_networks import zoo_model

from pytest_int8acc import EngineError
from pytest_int8acc.graph.emulate import spell_out_fp8
from pytest_int8acc.graph.formats import FORMATS
from pytest_int8acc.graph.layout import find_groups, quantize
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.graph.network import Network
from pytest_int8acc.graph.opsets import raise_opset
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.graph.qdq import read_qdq
from pytest_int8acc.runtime.onnxruntime import OrtEngine

Run = Callable[[np.ndarray, np.float32], np.ndarray]
scales = st.floats(2.0**-30, 2.0**20, width=32).map(np.float32)


def pair(nodes: Sequence[onnx.NodeProto] | None = None, outputs: Sequence[str] = ("y",)) -> Model:
    """x to FP8 and back by a scale that is an input; other nodes in place of the usual ones."""
    nodes = nodes or [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], "Q"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], "D"),
    ]
    taken = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", ["n"]), ("scale", []))]
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    zero = helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, [], [0.0])
    graph = helper.make_graph(nodes, "pair", taken, made, [zero])
    return make_model(helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 19)]))


def session(model: Model) -> Run:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    opened = onnxruntime.InferenceSession(model.serialize(), options, ["CPUExecutionProvider"])
    return lambda x, scale: opened.run(None, {"x": x, "scale": np.array(scale)})[0]


KERNELS, PLAIN = session(pair()), session(spell_out_fp8(pair()))


def by_ml_dtypes(x: np.ndarray, scale: np.float32) -> np.ndarray:
    with np.errstate(over="ignore", under="ignore"):
        codes = np.clip(x / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn)
        return codes.astype(np.float32) * scale


@given(x=npst.arrays(np.float32, st.integers(1, 40), elements=st.floats(width=32)), scale=scales)
def test_every_float_goes_where_kernels_and_ml_dtypes_take_it(x: np.ndarray, scale: np.float32) -> None:
    expected = by_ml_dtypes(x, scale)
    np.testing.assert_array_equal(PLAIN(x, scale), expected)
    np.testing.assert_array_equal(KERNELS(x, scale), expected)


@pytest.mark.parametrize("scale", [1.0, 0.0123, 3.0])
def test_every_code_every_tie_and_its_neighbours_round_alike(scale: float) -> None:
    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    codes = np.unique(codes[np.isfinite(codes)])
    ties = ((codes[1:] + codes[:-1]) / 2).astype(np.float32)
    near = [np.nextafter(ties, np.float32(end)) for end in (-np.inf, np.inf)]
    x = np.concatenate([codes, ties, *near]) * np.float32(scale)
    np.testing.assert_array_equal(PLAIN(x, np.float32(scale)), by_ml_dtypes(x, np.float32(scale)))


def kinds(model: Model) -> set[str]:
    """The operators of a model, of branches too."""
    graphs = [model.graph, *(a.g for node in model.graph.node for a in node.attribute if a.HasField("g"))]
    return {node.op_type for graph in graphs for node in graph.node}


def test_codes_that_are_read_otherwise_stay_codes() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], "Q"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], "D"),
        helper.make_node("Cast", ["q"], ["codes"], "C", to=TensorProto.FLOAT),
    ]
    found = spell_out_fp8(pair(nodes, ["y", "codes"]))
    assert kinds(found) == {"QuantizeLinear", "DequantizeLinear", "Cast"}


def network_of(name: str) -> Network:
    """A zoo model in FP8, its ranges those of one batch."""
    model = normalize(raise_opset(zoo_model(name), 19))
    layout = find_groups(model, low=FORMATS["fp8"])
    return quantize(model, layout, dict.fromkeys(layout.activations, 3 / 448), FORMATS["fp8"])


@pytest.mark.parametrize("name", ZOO)
def test_networks_compute_what_the_reference_evaluator_does(name: str) -> None:
    written = apply(network_of(name))
    feed = sample_feed(ZOO[name](), 5, 2)
    found = OrtEngine(written)(feed)
    expected = ReferenceEvaluator(onnx.ModelProto.FromString(written.serialize())).run(None, feed)
    plain = OrtEngine(network_of(name).model)(feed)
    for values, (output, array) in zip(expected, found.items(), strict=True):
        if values.dtype == np.float32:
            noise = np.square(plain[output].astype(np.float64) - values).sum()
            apart = np.square(array.astype(np.float64) - values).sum()
            assert apart <= 0.02 * noise, output  # 0.1 dB
    assert kinds(spell_out_fp8(written)).isdisjoint({"QuantizeLinear", "DequantizeLinear"})


@pytest.mark.parametrize("name", ZOO)
def test_what_is_written_is_read_back(name: str) -> None:
    written = apply(network_of(name))
    network = read_qdq(written, network_of(name).model, low=FORMATS["fp8"])
    assert network.low is FORMATS["fp8"]
    assert not network.fixed_pairs
    feed = sample_feed(ZOO[name](), 5, 2)
    for output, array in OrtEngine(apply(network))(feed).items():
        np.testing.assert_array_equal(array, OrtEngine(written)(feed)[output])


def test_a_native_session_is_refused() -> None:
    """It may drop a Relu in front of such a QuantizeLinear."""
    with pytest.raises(EngineError, match="holds FP8, in which ONNX Runtime computes nothing: leave out"):
        OrtEngine(pair(), "native")
