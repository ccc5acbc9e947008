from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from builder import Builder, sample_feed
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from written_networks import model as written_model
from zoo import OLD_RUNTIME, ZOO
from zoo_networks import network_of, zoo_model

from pytest_int8acc import ModelError
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.layout import quantize_weight
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.graph.opsets import raise_opset
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.graph.types import value_types
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.tensors import Feed

QDQ = ("QuantizeLinear", "DequantizeLinear")
FLOAT, FLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16
WEIGHTED = ("Conv", "ConvTranspose", "MatMul", "Gemm")


@cache
def qdq_model(name: str) -> Model:
    return apply(network_of(zoo_model(name), 4 / 127))


@cache
def outputs_of(name: str) -> Feed:
    return OrtEngine(zoo_model(name))(sample_feed(ZOO[name]()))


def sqnr(expected: Feed, got: Feed) -> float:
    """The worst output's signal to noise ratio in dB."""
    ratios = []
    for name, wanted in expected.items():
        noise = np.square(wanted.astype(np.float64) - got[name].astype(np.float64)).sum()
        ratios.append(10 * np.log10(np.square(wanted.astype(np.float64)).sum() / max(noise, 1e-30)))
    return float(min(ratios))


def check_valid(model: Model) -> None:
    proto = onnx.load_from_string(model.serialize())
    onnx.checker.check_model(proto, full_check=True)
    onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)


def node_types(model: Model, name: str) -> tuple[list[int | None], list[int | None]]:
    """Element types of what a node reads and makes."""
    types = value_types(model)
    node = next(n for n in model.graph.node if n.name == name)
    return [types.get(i) for i in node.input], [types.get(o) for o in node.output]


def casts(model: Model) -> int:
    return sum(node.op_type == "Cast" for node in model.graph.node)


def halved(b: Builder, outputs: dict[str, list[int | str]], keep: tuple[str, ...] = ()) -> Any:
    """``b``'s model in FP16, found valid and close to itself in FP32."""
    model = normalize(make_model(b.model(outputs)))
    result = to_fp16(model, keep)
    check_valid(result.model)
    feed = sample_feed(model.proto)
    assert sqnr(OrtEngine(model)(feed), OrtEngine(result.model)(feed)) > 40
    return result


@pytest.mark.parametrize("name", ZOO)
def test_zoo_in_fp16_is_typed_and_close(name: str) -> None:
    model = zoo_model(name)
    result = to_fp16(model)
    check_valid(result.model)
    assert (result.model.inputs, result.model.outputs) == (model.inputs, model.outputs)
    assert result.overflows == ()
    types = value_types(result.model)
    for node in result.model.graph.node:
        if node.op_type in WEIGHTED:
            assert {types[i] for i in node.input if i} == {FLOAT16}, node.name
    assert {n.name for n in model.graph.node} <= {n.name for n in result.model.graph.node}
    assert sqnr(outputs_of(name), OrtEngine(result.model)(sample_feed(ZOO[name]()))) > 40


@pytest.mark.parametrize("name", ZOO)
def test_zoo_with_qdq_in_fp16_is_typed_and_close(name: str) -> None:
    model = qdq_model(name)
    result = to_fp16(model)
    check_valid(result.model)
    assert result.model.opset == max(model.opset, 19)
    types = value_types(result.model)
    for node in result.model.graph.node:
        if node.op_type in QDQ:
            assert types[node.input[1]] == FLOAT16
            assert TensorProto.INT8 in (types[node.input[0]], types[node.output[0]])
        if node.op_type in WEIGHTED:
            assert {types[i] for i in node.input if i} == {FLOAT16}, node.name
    feed = sample_feed(ZOO[name]())
    assert sqnr(OrtEngine(model)(feed), OrtEngine(result.model)(feed)) > 25  # codes at .5 flip


@pytest.mark.parametrize("name", ZOO)
def test_keeping_every_node_changes_nothing(name: str) -> None:
    model = zoo_model(name)
    kept = to_fp16(model, model.everywhere.nodes).model
    assert kept.graph.node == model.graph.node
    assert kept.graph.initializer == model.graph.initializer


@pytest.mark.parametrize("form", [zoo_model, qdq_model])
@pytest.mark.parametrize("name", ["plain", "conditional", "vit_gelu", "opset23", "shape_math"])
def test_halving_again_changes_nothing(name: str, form: Callable[[str], Model]) -> None:
    once = to_fp16(form(name)).model
    twice = to_fp16(once)
    assert twice.model.proto == once.proto
    assert twice.notes == (f"{name} computes in FP16 already: its own types are kept",)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_nodes_can_stay_in_fp32(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(ZOO.keys() - ({"opset23"} if OLD_RUNTIME else set()))))
    form = data.draw(st.sampled_from([zoo_model, qdq_model]))
    model = form(name)
    nodes = [node.name for node in model.graph.node]
    keep = data.draw(st.sets(st.sampled_from(nodes)))
    result = to_fp16(model, keep).model
    check_valid(result)
    types = value_types(result)
    for node in result.graph.node:
        if node.name in keep and node.op_type not in ("Cast", "Shape"):  # these read any type
            assert FLOAT16 not in [types.get(i) for i in (*node.input, *node.output)], node.name
        elif node.op_type in WEIGHTED:
            assert {types[i] for i in node.input if i} == {FLOAT16}, node.name
    pairs = [(n.input[0], n.attribute[0].i) for n in result.graph.node if n.name.startswith("Cast_")]
    assert len(pairs) == len(set(pairs)), "a tensor is cast once per type"
    feed = sample_feed(ZOO[name]())
    expected = outputs_of(name) if form is zoo_model else OrtEngine(model)(feed)
    assert sqnr(expected, OrtEngine(result)(feed)) > (40 if form is zoo_model else 20)


@pytest.mark.parametrize("name", ["plain", "vit_erf", "unet"])
def test_keeping_weighted_nodes_of_a_halved_model(name: str) -> None:
    """Of a model that its author made FP16, a kept node computes in FP32 on widened tensors."""
    once = to_fp16(zoo_model(name)).model
    keep = next(n.name for n in once.graph.node if n.op_type in WEIGHTED)
    result = to_fp16(once, [keep]).model
    check_valid(result)
    reads, makes = node_types(result, keep)
    assert {*reads, *makes} == {FLOAT}
    assert sqnr(outputs_of(name), OrtEngine(result)(sample_feed(ZOO[name]()))) > 40


def test_unknown_name_is_an_error() -> None:
    with pytest.raises(ModelError, match=r"no node is named 'conv_0' \(did you mean 'conv0'\?\)"):
        to_fp16(zoo_model("plain"), ["conv_0"])


def test_output_that_is_read_inside_keeps_its_name_and_type() -> None:
    b = Builder()
    hidden = b.relu(b.linear(b.input("x", [2, 4]), 4, 4))
    y = b.linear(hidden, 4, 4)
    model = halved(b, {hidden: [2, 4], y: [2, 4]}).model
    types = value_types(model)
    assert types[hidden] == types[y] == FLOAT


def test_constant_with_readers_of_both_types_exists_in_both() -> None:
    b = Builder()
    weight = b.weight(4, 4, fan_in=4, name="w")
    x = b.node("MatMul", b.input("x", [2, 4]), weight)
    y = b.node("MatMul", x, weight)
    model = halved(b, {y: [2, 4]}, keep=(b.nodes[1].name,)).model
    types = value_types(model)
    assert (types["w"], types["w_fp16"]) == (FLOAT, FLOAT16)


def test_inputs_without_float16_in_their_schema_stay_fp32() -> None:
    model = to_fp16(zoo_model("yolo")).model
    name = next(n.name for n in model.graph.node if n.op_type == "Resize")
    assert node_types(model, name) == ([FLOAT16, None, FLOAT], [FLOAT16])


def test_operator_without_float16_stays_fp32() -> None:
    b = Builder()
    boxes = b.relu(b.input("boxes", [1, 6, 4]))
    scores = b.relu(b.input("scores", [1, 2, 6]))
    picked = b.node("NonMaxSuppression", boxes, scores, b.ints(3))
    y = b.node("Cast", picked, to=TensorProto.FLOAT)
    model = halved(b, {y: ["n", 3]}).model
    name = next(n.name for n in model.graph.node if n.op_type == "NonMaxSuppression")
    assert node_types(model, name)[0][:2] == [FLOAT, FLOAT]


def test_generators_keep_their_type_and_are_cast() -> None:
    b = Builder()
    x = b.relu(b.input("x", [3, 3]))
    one = numpy_helper.from_array(np.ones(1, np.float32))
    filled = b.node("ConstantOfShape", b.ints(3, 3), value=one)
    y = b.node("Add", b.node("Add", x, filled), b.node("EyeLike", x))
    noise = b.node("RandomNormal", shape=[3, 3], scale=1e-6)
    model = halved(b, {b.node("Add", y, noise): [3, 3]}).model
    types = value_types(model)
    assert {types[n.output[0]] for n in b.nodes if n.op_type not in ("Relu", "Add")} == {FLOAT}
    assert casts(model) == 6  # the input in FP16 and back for EyeLike, three generators, the output


@pytest.mark.parametrize(("keep", "made", "count"), [((), FLOAT16, 2), (("cast0",), FLOAT, 3)])
def test_cast_to_fp32_goes_straight_to_fp16_where_it_is_read_so(
    keep: tuple[str, ...], made: int, count: int
) -> None:
    b = Builder()
    x = b.node("Cast", b.input("x", [2, 4], TensorProto.INT64), to=TensorProto.FLOAT)
    model = halved(b, {b.linear(x, 4, 4): [2, 4]}, keep).model
    assert node_types(model, "cast0")[1] == [made]
    assert casts(model) == count


def test_shape_arithmetic_stays_fp32() -> None:
    """FP16 would make 4100 of 4099 rows; what begins with a table or a product is no longer arithmetic."""
    b = Builder()
    x = b.relu(b.input("x", ["N", 2]))
    count = b.node("Gather", b.node("Shape", x), b.ints(0))
    rows = b.node("Mul", b.node("Cast", count, to=FLOAT), b.const([1.0]), outputs=["rows"])
    picked = b.node("Gather", b.weight(4, 2, fan_in=2), b.ints(1, 3), outputs=["table"])
    place = b.node("Gather", b.weight(4, 2, fan_in=2), b.node("Min", count, b.ints(3)), outputs=["place"])
    product = b.node("MatMul", rows, b.weight(1, 2, fan_in=400), outputs=["product"])
    total = b.node("Sum", x, place, product, b.node("ReduceMean", picked, axes=[0]))
    target = b.node("Concat", b.ints(2), b.node("Cast", rows, to=TensorProto.INT64), axis=0)
    model = halved(b, {b.node("Reshape", total, target): [2, "M"]}).model
    types = value_types(model)
    assert types["rows"] == FLOAT
    assert types["table"] == types["place"] == types["product"] == FLOAT16


def test_region_of_interest_stays_fp32() -> None:
    b = Builder()
    x = b.relu(b.input("x", [1, 1, 8, 8]))
    region, scales = b.const([0, 0, 0.1, 0.2, 1, 1, 0.7, 0.9]), b.const([1, 1, 1, 1])
    mode = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
    y = b.node("Resize", x, region, scales, **mode)
    model = halved(b, {y: [1, 1, "H", "W"]}).model
    assert node_types(model, b.nodes[1].name) == ([FLOAT16, FLOAT, FLOAT], [FLOAT16])


def test_graph_inside_computes_in_fp16_and_keeps_the_types_of_what_it_takes_and_gives() -> None:
    """A Loop multiplies by an outer weight and adds an outer activation, which the main graph reads, too."""
    b = Builder()
    x = b.relu(b.input("x", [2, 4]))
    weight = b.weight(4, 4, fan_in=4, name="w")
    inner = Builder(prefix="in_")
    inner.inputs = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("carried", FLOAT, [2, 4]),
    ]
    go_on = inner.node("Identity", "go")
    total = inner.node("Add", inner.node("MatMul", "carried", weight), x)
    body = inner.graph({go_on: [], total: [2, 4]}, "body")
    body.output[0].type.tensor_type.elem_type = TensorProto.BOOL
    y = b.node("Loop", b.const(np.array(2, np.int64)), "", b.node("MatMul", x, weight), body=body)
    result = halved(b, {b.relu(y): [2, 4]})
    assert result.notes == ()
    model = result.model
    (loop,) = (node for node in model.graph.node if node.op_type == "Loop")
    (body,) = (attribute.g for attribute in loop.attribute)
    types = value_types(model)
    assert {value.type.tensor_type.elem_type for value in (*body.input[2:], *body.output[1:])} == {FLOAT}
    (product,) = (node for node in body.node if node.op_type == "MatMul")
    assert [types[name] for name in (*product.input, *product.output)] == [FLOAT16] * 3
    assert product.input[1] == "w"
    feed = {model.inputs[0].name: np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)}
    assert sqnr(OrtEngine(result.wide)(feed), OrtEngine(model)(feed)) > 50


def test_sequences_stay_as_they_are() -> None:
    b = Builder()
    x = b.relu(b.input("x", [2, 4]))
    both = b.node("SequenceConstruct", x, b.linear(x, 4, 4))
    y = b.node("ConcatFromSequence", both, axis=0)
    assert casts(halved(b, {b.relu(y): [4, 4]}).model) >= 4


def test_operator_of_another_domain_is_fed_and_read_in_fp32() -> None:
    b = Builder()
    x = b.linear(b.input("x", [2, 4]), 4, 4)
    x = b.node("Mystery", x, domain="custom")
    y = b.node("MatMul", x, b.weight(4, 4, fan_in=4))
    proto = b.model({y: [2, 4]})
    proto.opset_import.append(helper.make_opsetid("custom", 1))
    both = to_fp16(normalize(make_model(proto)))
    assert both.notes == ("operators that stay in FP32: custom.Mystery",)
    result = both.model
    check_valid(result)
    mystery, matmul = (next(n for n in b.nodes[::-1] if n.op_type == op).name for op in ("Mystery", "MatMul"))
    assert node_types(result, mystery)[0] == [FLOAT]
    assert node_types(result, matmul)[0] == [FLOAT16, FLOAT16]


def test_qdq_at_a_low_opset_is_lifted() -> None:
    result = to_fp16(qdq_model("layernorm_parts"))
    assert result.model.opset == 19
    assert not result.notes
    names = {node.name for node in qdq_model("layernorm_parts").graph.node}
    assert names <= {node.name for node in result.model.graph.node}


@pytest.mark.skipif(OLD_RUNTIME, reason="this ONNX Runtime does not run opset 23")
@pytest.mark.parametrize("output_dtype", [None, FLOAT])
def test_output_type_attribute_follows_the_scale(output_dtype: int | None) -> None:
    b = Builder(23)
    scale, zero = b.const(np.float32(0.05).reshape(())), b.const(np.zeros((), np.int8))
    codes = b.node("QuantizeLinear", b.input("x", [2, 4]), scale, zero)
    attributes = {} if output_dtype is None else {"output_dtype": output_dtype}
    x = b.node("DequantizeLinear", codes, scale, zero, **attributes)
    model = halved(b, {b.node("Gemm", x, b.weight(4, 3, fan_in=4)): [2, 3]}).model
    assert node_types(model, b.nodes[1].name)[1] == [FLOAT16]


def test_int32_bias_keeps_its_tiny_scale() -> None:
    b = Builder(19)
    codes = b.const(np.array([10**7, -(10**7), 5 * 10**6], np.int32))
    bias = b.node("DequantizeLinear", codes, b.const(np.full((), 1e-7, np.float32)))
    y = b.node("Gemm", b.input("x", [2, 4]), b.weight(4, 3, fan_in=4), bias)
    model = halved(b, {y: [2, 3]}).model
    assert node_types(model, b.nodes[0].name) == ([TensorProto.INT32, FLOAT], [FLOAT])


@pytest.mark.parametrize("bound", [np.inf, 1e9])
def test_infinite_bounds_and_masks_are_no_overflow(bound: float) -> None:
    b = Builder()
    top = b.const(np.full((), bound, np.float32))
    x = b.node("Clip", b.input("x", [2, 4]), "", top)
    y = b.node("Max", x, b.const([-np.inf]))
    assert halved(b, {y: [2, 4]}).overflows == ()


def test_weights_are_never_put_into_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The converter and type inference see placeholders only."""
    model = qdq_model("vit_erf")
    monkeypatch.setattr(Model, "serialize", lambda self: pytest.fail("serialized"))
    assert raise_opset(model, 19).proto.ByteSize() < 2 * model.proto.ByteSize()
    result = to_fp16(model).model
    assert model.weights.keys() >= result.weights.keys() > set()


@pytest.mark.parametrize("variance", [1e6, 1e-9, 1.0])
def test_statistics_beyond_fp16_are_worked_into_scale_and_bias(variance: float) -> None:
    """As TensorRT's parser does, in FP32: a variance of 1e6 is inf in FP16, one of 1e-9 is 0."""
    rng = np.random.default_rng(0)
    text = """g (float[2, 3, 4, 4] x) => (float[2, 3, 4, 4] y)
        { [norm] y = BatchNormalization <epsilon = 1e-12> (x, s, b, m, v) }"""
    std = np.float32(np.sqrt(variance))
    arrays = {
        "s": rng.uniform(0.5, 2, 3),
        "b": rng.normal(size=3),
        "m": rng.normal(size=3) * std,
        "v": rng.uniform(0.5, 2, 3) * variance,
    }
    model = written_model(text, {name: array.astype(np.float32) for name, array in arrays.items()})
    feed = {"x": (rng.normal(size=(2, 3, 4, 4)) * min(std, 1e4)).astype(np.float32)}
    expected, halved = OrtEngine(model)(feed)["y"], to_fp16(model)
    assert not halved.overflows
    np.testing.assert_allclose(OrtEngine(halved.model)(feed)["y"], expected, rtol=0.01, atol=0.02)
    kept = to_fp16(model, ["norm"]).model
    np.testing.assert_allclose(OrtEngine(kept)(feed)["y"], expected, rtol=0.01, atol=0.02)
    assert set(arrays) <= {t.name for t in kept.graph.initializer}


@settings(deadline=None, max_examples=50)
@given(amax=st.lists(st.floats(1e-9, 1e-2), min_size=1, max_size=5), seed=st.integers(0, 9))
def test_small_weights_stand_for_the_same_values_in_fp16(amax: list[float], seed: int) -> None:
    """Their scales are numbers that FP16 holds, so the integers fit them."""
    rng = np.random.default_rng(seed)
    weight = (rng.uniform(-1, 1, (len(amax), 16)) * np.array(amax)[:, None]).astype(np.float32)
    quantization = quantize_weight(weight, 0)
    small = quantization.scale < 2**-14
    assert (quantization.scale.astype(np.float16) == quantization.scale)[small].all()
    error = np.abs(quantization.dequantize() - weight)
    assert (error <= 0.5001 * quantization.scale[:, None]).all()
    assert (quantization.scale <= np.abs(weight).max(axis=1) / 127 + 2**-24).all()
