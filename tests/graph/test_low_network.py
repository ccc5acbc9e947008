"""Groups of a model in FP16 or BF16, what each loses by itself, and the Casts between them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto
from written_networks import model
from zoo import ZOO, sample_feed
from zoo_networks import zoo_model

from pytest_int8acc import ModelError
from pytest_int8acc.graph.formats import FORMATS
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.half_network import fewer_casts, low_network
from pytest_int8acc.graph.instrument import MEASUREMENTS, with_rounded_twins
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network, Plan
from pytest_int8acc.graph.plan import fp32_nodes
from pytest_int8acc.runtime.onnxruntime import OrtEngine

HALVES = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}

FP16, BF16 = FORMATS["fp16"], FORMATS["bf16"]


def model_of(body: str, constants: str = "") -> Model:
    return model(f"g (float[n, 4] x) => (float[n, 4] y) {constants} {{ {body} }}")


def casts(network: Network, high: tuple[str, ...]) -> int:
    kept = fp32_nodes(network, Plan(dict.fromkeys(high, "fp32")))
    return sum(node.op_type == "Cast" for node in to_fp16(network.model, kept).model.graph.node)


CHAIN = " ".join(f"t{i} = Tanh({f't{i - 1}' if i else 'x'})" for i in range(16)) + " y = Exp(t15)"


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("low", HALVES)
def test_with_all_groups_high_nothing_is_cast(name: str, low: str) -> None:
    network = low_network(zoo_model(name), FORMATS[low])
    names = [node for group in network.groups for node in group.nodes]
    assert len(set(names)) == len(names)
    made = to_fp16(network.model, names, FORMATS[low]).model
    assert not [n for n in made.graph.node if n.op_type == "Cast" and n.attribute[0].i == HALVES[low]]


@pytest.mark.parametrize("name", ["residual", "mobilenet", "attention", "vit_erf", "unet", "shape_math"])
def test_bf16_loses_three_bits_more_than_fp16(name: str) -> None:
    model, feed = zoo_model(name), sample_feed(ZOO[name](), 0)
    (truth, *_) = OrtEngine(model)(feed).values()
    errors = []
    for low in (FP16, BF16):
        (found, *_) = OrtEngine(to_fp16(low_network(model, low).model, (), low).model)(feed).values()
        errors.append(float(np.square(found.astype(np.float64) - truth).mean()) ** 0.5)
    assert 4 < errors[1] / errors[0] < 16


def test_bf16_holds_what_fp16_does_not() -> None:
    model = model_of("a = Mul(x, big) y = Div(a, big)", "<float big = {100000.0}>")
    x = np.linspace(-4, 4, 16, dtype=np.float32).reshape(4, 4)
    fp16, bf16 = (
        OrtEngine(to_fp16(low_network(model, f).model, (), f).model)({"x": x})["y"] for f in (FP16, BF16)
    )
    assert not np.isfinite(fp16).all()
    np.testing.assert_allclose(bf16, x, rtol=2e-2)


def test_what_moves_values_goes_with_what_makes_them() -> None:
    network = low_network(
        model_of("a = Exp(x) b = Relu(a) c = Transpose(b) d = Transpose(c) y = Add(d, x)"), FP16
    )
    assert [group.nodes for group in network.groups] == [
        ("node_of_a", "node_of_b", "node_of_c", "node_of_d"),
        ("node_of_y",),
    ]


def test_what_lies_between_two_groups_joins_them_where_that_saves_casts() -> None:
    network = low_network(model_of(CHAIN), FP16)
    ends = ("node_of_t5", "node_of_t7")
    assert fewer_casts(network, ends) == ("node_of_t6",)
    assert casts(network, (*ends, "node_of_t6")) == casts(network, ends) - 2


def test_a_run_of_three_is_bridged_and_one_of_four_is_not() -> None:
    network = low_network(model_of(CHAIN), FP16)
    kept = ("node_of_t4", "node_of_t8", "node_of_t13")
    # t14, t15 and y lie between t13 and the model's end, which is in FP32, too
    between = {"node_of_t5", "node_of_t6", "node_of_t7", "node_of_t14", "node_of_t15", "node_of_y"}
    assert set(fewer_casts(network, kept)) == between


def test_no_product_joins() -> None:
    model = zoo_model("mlp")
    network = low_network(model, FP16)
    products = {n.name for n in model.graph.node if n.op_type in ("Gemm", "MatMul")}
    assert products.isdisjoint(
        fewer_casts(network, [g.name for g in network.groups if g.name not in products])
    )


def test_a_model_without_floats_is_refused() -> None:
    with pytest.raises(ModelError, match="no node of it computes in floating point"):
        low_network(model("g (int64[n] x) => (int64[n] y) { y = Add(x, x) }"), FP16)


@pytest.mark.parametrize("low", [FP16, BF16], ids=lambda f: f.name)
def test_what_each_node_loses_alone_is_what_rounding_its_operands_and_result_changes(low) -> None:
    model = model_of("a = Exp(x) b = Mul(a, a) y = Sub(b, x)")
    x = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32) * 3
    twins_of, measurements = with_rounded_twins(model, ["node_of_b", "node_of_y"], low)
    outputs = OrtEngine(twins_of)({"x": x})
    a = np.exp(x.astype(np.float64)).astype(np.float32)
    exact = {"b": a * a, "y": a * a - x}
    rounded = [np.asarray(low.round(v), np.float32) for v in (a, x, exact["b"])]
    twins = {"b": rounded[0] * rounded[0], "y": rounded[2] - rounded[1]}
    for tensor, names in measurements.items():
        found = dict(zip(MEASUREMENTS, (float(outputs[n]) for n in names), strict=True))
        twin = np.asarray(low.round(twins[tensor]), np.float32)
        assert found["signal"] == pytest.approx(np.square(exact[tensor]).sum(), rel=1e-4)
        assert found["noise"] == pytest.approx(np.square(twin - exact[tensor]).sum(), rel=2e-2)
        assert found["peak"] == pytest.approx(np.abs(exact[tensor]).max(), rel=1e-5)
        assert found["lost"] == ((twin == 0) & (exact[tensor] != 0)).sum()


def test_infinities_that_are_there_in_fp32_are_no_loss() -> None:
    model = model_of("a = Log(x) y = Tanh(a)")
    twins_of, measurements = with_rounded_twins(model, ["node_of_a", "node_of_y"], FP16)
    outputs = OrtEngine(twins_of)({"x": np.array([[0.0, 1.0, 2.0, 0.0]], np.float32)})
    noise = {tensor: float(outputs[names[0]]) for tensor, names in measurements.items()}
    assert 0 <= noise["a"] < 1e-6
    assert 0 <= noise["y"] < 1e-6
