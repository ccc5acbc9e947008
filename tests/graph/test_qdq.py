"""Q/DQ models that other tools made are read, run bit for bit as before, and can be freed group by group."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from narrow import standard_fp8_block, trt_fp8_block
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.quantization import QuantType
from quantize_static import TENSORRT
from quantize_static import by_onnxruntime as written
from written_networks import model as written_model
from zoo import ZOO, sample_feed
from zoo_networks import all_high, assert_same, network_of, zoo_model

from pytest_int8acc import ModelError
from pytest_int8acc.graph.formats import FORMATS
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.lint import lint
from pytest_int8acc.graph.load import load_model, normalize
from pytest_int8acc.graph.model import Model, make_model, put_constant
from pytest_int8acc.graph.network import LeftHigh, Plan, symmetric
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.graph.qdq import read_qdq
from pytest_int8acc.runtime.onnxruntime import OrtEngine

#: Of weights the integers alone are in the model.
CODES = {"per_channel": True, "extra_options": {**TENSORRT, "AddQDQPairToWeight": False}}


def by_onnxruntime(name: str, tmp_path: Path, **options: object) -> Model:
    return load_model(written(name, tmp_path, **options))


OPTIONS: dict[str, dict[str, object]] = {
    "defaults": {},
    "uint8": {"activation_type": QuantType.QUInt8},
    "per_channel": {"per_channel": True},
    "tensorrt": {"per_channel": True, "extra_options": TENSORRT},
    "int16": {"activation_type": QuantType.QInt16, "extra_options": {"UseQDQContribOps": False}},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", ["residual", "inception", "yolo", "opset23"])
def test_onnxruntimes_model_runs_as_before(name: str, options: str, tmp_path: Path) -> None:
    if options == "int16" and ZOO[name]().opset_import[0].version < 21:
        options = "defaults"  # INT16 Q/DQ begins at opset 21
    model = by_onnxruntime(name, tmp_path, **OPTIONS[options])
    network = read_qdq(model, zoo_model(name))
    assert_same(model, apply(network), sample_feed(ZOO[name](), 9, 2))
    left = [n for n in apply(network, all_high(network)).graph.node if n.op_type.endswith("quantizeLinear")]
    assert not left, "every pair belongs to some group"


@pytest.mark.parametrize("name", ["plain", "inception"])
def test_float_weights_come_back_where_the_original_is_given(name: str, tmp_path: Path) -> None:
    model = by_onnxruntime(name, tmp_path, **CODES)
    original = zoo_model(name)
    feed = sample_feed(ZOO[name](), 9, 2)
    restored = read_qdq(model, original)
    assert_same(original, apply(restored, all_high(restored)), feed)
    dequantized = read_qdq(model)
    reference = OrtEngine(original)(feed)
    freed = OrtEngine(apply(dequantized, all_high(dequantized)))(feed)
    assert any((reference[o] != freed[o]).any() for o in reference), "without it the weights stay rounded"


def test_weights_of_another_training_are_not_taken(tmp_path: Path) -> None:
    model = by_onnxruntime("plain", tmp_path, per_channel=True, extra_options=TENSORRT)
    other = ZOO["plain"]()
    for tensor in other.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.ndim > 1:
            tensor.CopyFrom(numpy_helper.from_array(array[::-1].copy(), tensor.name))
    network = read_qdq(model, normalize(make_model(other)))
    assert network.notes[-1].startswith("0 of 3 quantized weights")


def with_codes(model: Model, change: Callable[[np.ndarray], np.ndarray], first: int) -> Model:
    """The Q/DQ model with other codes in its weights but the first few."""
    editor = model.edit()
    made = {node.output[0] for node in editor.graph.node}
    codes = [
        node.input[0]
        for node in editor.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] not in made
    ]
    for tensor in editor.graph.initializer:
        if tensor.name in codes[first:]:
            array = model.constants()[tensor.name]
            put_constant(tensor, tensor.name, np.ascontiguousarray(change(array)), editor.weights)
    return editor.done()


def test_a_weight_quantized_wrongly_among_right_ones_is_restored(tmp_path: Path) -> None:
    model = by_onnxruntime("plain", tmp_path, **CODES)
    original = zoo_model("plain")
    network = read_qdq(with_codes(model, lambda codes: codes // 4, 2), original)
    assert network.notes[-1].startswith("1 quantized weights are not those of ")
    feed = sample_feed(ZOO["plain"](), 9, 2)
    assert_same(original, apply(network, all_high(network)), feed)


def test_weights_of_which_most_were_trained_on_stay_as_they_are(tmp_path: Path) -> None:
    model = by_onnxruntime("plain", tmp_path, **CODES)
    trained = with_codes(model, lambda codes: codes[::-1], 1)
    network = read_qdq(trained, zoo_model("plain"))
    assert network.notes == ("1 of 3 quantized weights have their float originals",)
    alone, feed = read_qdq(trained), sample_feed(ZOO["plain"](), 9, 2)
    ours, theirs = (OrtEngine(apply(n, all_high(n)))(feed) for n in (network, alone))
    for name in ours:  # one weight of three is exact now
        assert np.abs(ours[name] - theirs[name]).max() < 0.05 * np.abs(theirs[name]).max()


@pytest.mark.parametrize("options", ["defaults", "uint8", "per_channel"])
@pytest.mark.parametrize("name", ["residual", "mobilenet"])
def test_activations_folded_into_ranges_come_back(name: str, options: str, tmp_path: Path) -> None:
    model = by_onnxruntime(name, tmp_path, **OPTIONS[options])
    original = zoo_model(name)
    count = [sum(n.op_type in ("Relu", "Clip") for n in m.graph.node) for m in (original, model)]
    assert count[1] < count[0]
    network = read_qdq(model, original)
    assert f"{count[0] - count[1]} activations that the quantizer folded" in " ".join(network.notes)
    assert sum(n.op_type in ("Relu", "Clip") for n in network.model.graph.node) == count[0]
    assert_same(model, apply(network), sample_feed(ZOO[name](), 9, 2))
    freed, plain = (
        OrtEngine(m)(sample_feed(ZOO[name](), 9, 2)) for m in (apply(network, all_high(network)), original)
    )
    for output, array in plain.items():  # biases stay rounded where they were quantized
        assert np.abs(freed[output] - array).max() < 0.02 * np.abs(array).max()


@pytest.mark.parametrize(("scale", "back"), [(6 / 255, True), (3 / 255, True), (8 / 255, False)])
def test_an_activation_comes_back_only_where_the_range_cuts_off_as_it_does(scale: float, back: bool) -> None:
    original = folding("c = MatMul(x, w) a = Clip(c, low, high) y = MatMul(a, v)")
    model = folding(
        "a = MatMul(x, w) q = QuantizeLinear(a, s, z) d = DequantizeLinear(q, s, z) y = MatMul(d, v)", scale
    )
    network = read_qdq(model, original)
    feed = {"x": 4 * np.random.default_rng(1).normal(size=(2, 4)).astype(np.float32)}
    assert_same(model, apply(network), feed)
    high = apply(network, all_high(network))
    assert any(n.op_type == "Clip" for n in high.graph.node) is back
    if back:
        assert_same(original, high, feed)
    else:
        assert "1 activations of" in network.notes[-1]
        assert "are gone and cannot be put back" in network.notes[-1]


def test_an_activation_that_somebody_reads_unquantized_stays_away() -> None:
    original = folding("c = MatMul(x, w) a = Clip(c, low, high) y = MatMul(a, v)")
    pair = "q = QuantizeLinear(a, s, z) d = DequantizeLinear(q, s, z) "
    model = folding(f"a = MatMul(x, w) {pair} e = Add(d, a) y = MatMul(e, v)", 6 / 255)
    network = read_qdq(model, original)
    feed = {"x": np.random.default_rng(1).normal(size=(2, 4)).astype(np.float32)}
    assert_same(model, apply(network), feed)
    assert "cannot be put back" in network.notes[-1]


def folding(body: str, scale: float = 1.0) -> Model:
    text = f"""g (float[2, 4] x) => (float[2, 3] y)
        <float s = {{{scale}}}, int8 z = {{-128}}, float low = {{0}}, float high = {{6}}> {{ {body} }}"""
    return written_model(text, {"w": {"shape": [4, 5]}, "v": {"shape": [5, 3]}})


@pytest.mark.parametrize("name", ["residual", "mobilenet", "vit_erf"])
def test_fp16_qdq_as_modelopt_writes_it(name: str) -> None:
    """Q/DQ with FP16 scales on an FP16 model is read and written back bit for bit."""
    half = to_fp16(apply(network_of(zoo_model(name), 4 / 127))).model
    network = read_qdq(half)
    assert all(e.quantization.scale.dtype == np.float16 for g in network.groups for e in g.edges)
    assert_same(half, apply(network), sample_feed(ZOO[name](), 9, 2))


PAIRED = """g (float[2, 4] x) => (float[2, 3] {output})
<float s = {{0.02}}, float t = {{0.05}}, int8 z = {{0}}>
{{ {body} }}"""


def qdq_of(body: str, output: str = "y") -> Model:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.normal(size=(4, 3)).astype(np.float32),
        "codes": rng.integers(-127, 128, (3, 4), np.int8),
        "scales": rng.uniform(0.01, 0.1, 3).astype(np.float32),
        "zeros": np.zeros(3, np.int8),
    }
    return written_model(PAIRED.format(body=body, output=output), weights)


INPUT = "a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z) "
SHAPES = {
    "quantized output": (
        INPUT + "c = MatMul(b, w) d = QuantizeLinear(c, t, z) y = DequantizeLinear(d, t, z)",
        1,
    ),
    "two pairs in a row": (
        INPUT + "d = QuantizeLinear(b, t, z) e = DequantizeLinear(d, t, z) y = MatMul(e, w)",
        2,
    ),
    "quantized float weight": (
        INPUT + "q = QuantizeLinear(w, t, z) d = DequantizeLinear(q, t, z) y = MatMul(b, d)",
        1,
    ),
    "transposed codes": (
        INPUT + "d = DequantizeLinear<axis=0>(codes, scales, zeros) e = Transpose(d) y = MatMul(b, e)",
        1,
    ),
    "no zero point": ("a = QuantizeLinear(x, s) b = DequantizeLinear(a, s) y = MatMul(b, w)", 1),
    "one quantizer, two dequantizers": (
        INPUT + "c = DequantizeLinear(a, s, z) d = MatMul(b, w) e = MatMul(c, w) y = Add(d, e)",
        2,
    ),
    "read plain and quantized": (INPUT + "d = MatMul(b, w) e = MatMul(x, w) y = Add(d, e)", 1),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_arrangements_of_pairs(shape: str) -> None:
    body, groups = SHAPES[shape]
    model = qdq_of(body)
    network = read_qdq(model)
    feed = {"x": np.random.default_rng(1).normal(size=(2, 4)).astype(np.float32)}
    assert_same(model, apply(network), feed)
    assert len(network.groups) == groups
    assert not any(n.op_type.endswith("Linear") for n in apply(network, all_high(network)).graph.node)


def test_weights_moved_by_a_transpose_belong_to_the_matrix_product() -> None:
    body, _ = SHAPES["transposed codes"]
    (group,) = read_qdq(qdq_of(body)).groups
    assert group.op_type == "MatMul"
    assert len(group.edges) == 2


def test_unlike_pairs_stay_and_are_named() -> None:
    body = "a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, t, z) c = QuantizeLinear(b, s, z) "
    model = qdq_of(body + "d = DequantizeLinear(c, s, z) y = MatMul(d, w)")
    network = read_qdq(model)
    assert "1 Q/DQ nodes stay as they are" in network.notes[0]
    assert "node_of_b" in network.notes[0]
    assert network.fixed_pairs == ("node_of_b",)
    feed = {"x": np.random.default_rng(1).normal(size=(2, 4)).astype(np.float32)}
    assert_same(model, apply(network), feed)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y = MatMul(x, w)", "no QuantizeLinear or DequantizeLinear in it: this is the float model"),
        (
            "a, p, q = DynamicQuantizeLinear(x) b = DequantizeLinear(a, p, q) y = MatMul(b, w)",
            "operator format",
        ),
    ],
)
def test_models_that_are_no_qdq_models(body: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_qdq(qdq_of(body))


def test_exclude_frees_groups_and_refuses_what_matches_nothing() -> None:
    body, _ = SHAPES["one quantizer, two dequantizers"]
    network = read_qdq(qdq_of(body), exclude=["node_of_d"])
    assert [g.name for g in network.groups] == ["node_of_e"]
    assert network.left_high == {"node_of_d": LeftHigh("excluded", ("node_of_d",))}
    with pytest.raises(ModelError, match="matches no node"):
        read_qdq(qdq_of(body), exclude=["head/*"])


def test_plan_with_another_scale_changes_every_reader_of_the_tensor() -> None:
    model = qdq_of(SHAPES["one quantizer, two dequantizers"][0])
    rescaled = apply(read_qdq(model), Plan(scales={"x": symmetric(0.5)}))
    constants = rescaled.constants()
    used = {float(constants[n.input[1]]) for n in rescaled.graph.node if n.op_type == "QuantizeLinear"}
    assert used == {0.5}


def test_what_is_beyond_fp32_in_units_of_the_scale_saturates_without_a_warning() -> None:
    values = np.array([3e38, -3e38, 0], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        codes = FORMATS["int8"].quantize(values, 1e-30)
    assert codes.tolist() == [127, -128, 0]


# --- TensorRT's own FP8 operators, as ModelOpt and Transformer Engine export them


def test_tensorrts_own_fp8_operators_are_the_standard_ones() -> None:
    standard = standard_fp8_block()
    read, expected = normalize(make_model(trt_fp8_block(17))), normalize(make_model(standard))
    network, wanted = (read_qdq(model, low=FORMATS["fp8"]) for model in (read, expected))
    assert {node.domain for node in network.model.graph.node} == {""}
    assert [entry.domain for entry in read.proto.opset_import] == [""]
    assert [(g.name, len(g.edges)) for g in network.groups] == [(g.name, len(g.edges)) for g in wanted.groups]
    x = np.random.default_rng(1).normal(size=(8, 16)).astype(np.float32)
    (truth,) = ReferenceEvaluator(standard).run(None, {"x": x})
    made = OrtEngine(apply(network, Plan()))({"x": x})["y"]
    np.testing.assert_allclose(made, truth, rtol=1e-5, atol=1e-6)
    assert not lint(make_model(trt_fp8_block(17)))


def test_an_fp8_operator_without_a_scale_is_an_error(tmp_path: Path) -> None:
    proto = trt_fp8_block(17)
    del proto.graph.node[0].input[1]
    onnx.save(proto, tmp_path / "q.onnx")
    with pytest.raises(ModelError, match=r"q.onnx: node 'quantize_x' .* needs a tensor and a scale"):
        load_model(tmp_path / "q.onnx")
