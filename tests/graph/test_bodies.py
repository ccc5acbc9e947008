"""A network in the body of a Loop, If or Scan is quantized, converted and edited as it is outside."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import body_models
import numpy as np
import onnx
import pytest
import rtx
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks.bodies import Holder, wrapped  # noqa: E402
from benchmarks.case import dataset  # noqa: E402
from benchmarks.half.networks import build, inputs  # noqa: E402
from benchmarks.half.parts import FAULTS, HEALTHY  # noqa: E402
from pytest_int8acc.graph.formats import FORMATS  # noqa: E402
from pytest_int8acc.graph.half import to_fp16  # noqa: E402
from pytest_int8acc.graph.half_network import low_network, network_to_fp16  # noqa: E402
from pytest_int8acc.graph.instrument import build_instrument  # noqa: E402
from pytest_int8acc.graph.layout import find_groups, quantize  # noqa: E402
from pytest_int8acc.graph.load import normalize  # noqa: E402
from pytest_int8acc.graph.migrate import migrate, sites  # noqa: E402
from pytest_int8acc.graph.model import Model, make_model  # noqa: E402
from pytest_int8acc.graph.network import Network, Plan, symmetric  # noqa: E402
from pytest_int8acc.graph.plan import apply, fp32_nodes  # noqa: E402
from pytest_int8acc.graph.qdq import read_qdq  # noqa: E402
from pytest_int8acc.lab.biases import biases_of, corrections  # noqa: E402
from pytest_int8acc.observers.edges import EdgeMeter  # noqa: E402
from pytest_int8acc.runtime.onnxruntime import CPU, OrtEngine  # noqa: E402
from pytest_int8acc.tensors import Array, Feed  # noqa: E402

HOLDERS: tuple[Holder, ...] = ("Loop", "If", "Scan")
NETWORKS = ("mlp", "cnn", "transformer", "resnet")
FP16 = FORMATS["fp16"]
EVERY = pytest.mark.parametrize("holder", HOLDERS)
EACH = pytest.mark.parametrize("name", NETWORKS)


def in_body(model: Model, holder: Holder) -> Model:
    return normalize(make_model(wrapped(onnx.ModelProto.FromString(model.serialize()), holder)))


@cache
def flat(name: str, part: str = "plain") -> Model:
    return build(name, {**FAULTS, **HEALTHY}[part])


@cache
def quantized(name: str) -> Network:
    model = flat(name)
    layout = find_groups(model)
    return quantize(model, layout, dict.fromkeys(layout.activations, 0.05))


@cache
def quantized_in_body(name: str, holder: Holder) -> Network:
    return read_qdq(in_body(apply(quantized(name)), holder), original=in_body(flat(name), holder))


def feed(name: str) -> Feed:
    return {"x": inputs(name)[:6]}


def output(model: Model, given: Feed) -> Array:
    (found,) = OrtEngine(model, level="none")(given).values()
    return np.asarray(found)


def assert_close(one: Array, other: Array) -> None:
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-4 * np.abs(one).max())


@EVERY
@EACH
@pytest.mark.parametrize("low", [FP16, FORMATS["bf16"]], ids=lambda low: low.name)
def test_a_body_computes_in_sixteen_bits_what_its_network_does(name: str, holder: Holder, low: Any) -> None:
    for part in ("plain", "long_sum"):
        model = flat(name, part)
        one, other = (output(to_fp16(m, low=low).model, feed(name)) for m in (model, in_body(model, holder)))
        np.testing.assert_allclose(one, other, rtol=0, atol=2 * low.smallest / low.normal * np.abs(one).max())


@EVERY
@EACH
@given(seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=5)
def test_each_choice_of_groups_is_the_typed_model(name: str, holder: Holder, seed: int) -> None:
    """Another order of FP32 sums may round another way; values that overflow tell one choice from another."""
    network = low_network(in_body(flat(name, "long_sum"), holder), FP16)
    plain = [group.name for group in low_network(flat(name, "long_sum"), FP16).groups]
    assert {f"body/{group}" for group in plain} <= {group.name for group in network.groups}
    instrument, rng = build_instrument(network), np.random.default_rng(seed)
    high = {group: "fp32" for group in instrument.controls.groups if rng.random() < 0.5}
    typed = to_fp16(network.model, fp32_nodes(network, Plan(high))).model
    switched = {**feed(name), **instrument.controls.setting(high).inputs}
    one, other = output(instrument.model, switched), output(typed, feed(name))
    np.testing.assert_allclose(one, other, rtol=0, atol=2 * FP16.smallest / FP16.normal * np.abs(other).max())


@EVERY
@EACH
def test_int8_beside_fp16_is_one_model_in_either_order(name: str, holder: Holder) -> None:
    network = quantized_in_body(name, holder)
    high = {network.groups[0].name: "fp16"}
    one = apply(network_to_fp16(network), Plan(high))
    other = to_fp16(apply(network, Plan(high))).model
    np.testing.assert_array_equal(output(one, feed(name)), output(other, feed(name)))
    instrument = build_instrument(network, "fp16")
    switched = {**feed(name), **instrument.controls.setting(high).inputs}
    np.testing.assert_array_equal(output(instrument.model, switched), output(one, feed(name)))


@EVERY
@EACH
@given(seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=5)
def test_range_moves_as_outside(name: str, holder: Holder, seed: int) -> None:
    network, rng = quantized_in_body(name, holder), np.random.default_rng(seed)
    theirs = {site.tensor: site for site in sites(quantized(name)).values() if not site.partner}
    ours = {site.tensor: site for site in sites(network).values() if not site.partner}
    own = "x" if holder == "If" else "x_inside"
    assert {own if tensor == "x" else tensor for tensor in theirs} == ours.keys()
    high = Plan(dict.fromkeys((group.name for group in network.groups), "fp32"))
    for tensor, site in ours.items():
        factors = np.exp(rng.uniform(-2, 2, site.channels)).astype(np.float32)
        moved = migrate(network, {tensor: factors})
        folded = migrate(quantized(name), {"x" if tensor == own else tensor: factors}).folded
        assert moved.folded == folded
        assert_close(output(apply(network, high), feed(name)), output(apply(moved.network, high), feed(name)))


@EVERY
@EACH
def test_biases_are_corrected_as_outside(name: str, holder: Holder, tmp_path: Path) -> None:
    pairs = [(quantized(name), flat(name)), (quantized_in_body(name, holder), in_body(flat(name), holder))]
    found = []
    for network, model in pairs:
        groups = [group.name for group in network.groups]
        floats = corrections(network, groups, dataset(model, feed(name), tmp_path, 3), CPU)
        assert floats.keys() == set(biases_of(network).values())
        found.append(floats)
    assert found[0].keys() == found[1].keys()
    for tensor, values in found[0].items():
        np.testing.assert_allclose(values, found[1][tensor], rtol=0, atol=1e-5)


@EVERY
def test_other_scales_reach_a_body(holder: Holder) -> None:
    tensor = quantized("cnn").groups[1].edges[0].tensor
    plan = Plan(scales={tensor: symmetric(0.3)})
    one, other = (apply(network, plan) for network in (quantized("cnn"), quantized_in_body("cnn", holder)))
    assert_close(output(one, feed("cnn")), output(other, feed("cnn")))


@pytest.mark.rtx
def test_tensorrt_builds_bodies_in_fp16() -> None:
    """A Scan without a state is left out: TensorRT refuses it in FP32, too."""
    models = {
        f"{name} in {holder}": in_body(flat(name), holder)
        for name in ("mlp", "cnn")
        for holder in HOLDERS[:2]
    }
    models |= {name: normalize(make_model(body_models.Models(name).model())) for name in body_models.NETWORKS}
    errors = rtx.build_all({name: to_fp16(model).model.serialize() for name, model in models.items()})
    assert not any(errors.values()), errors


def test_sizes_in_a_body_stay_in_fp32() -> None:
    """As TorchScript exports them: the index of a size is a Constant node of the body. FP16 has no 5003."""
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1, n] x, bool flag) => (float[m] y) <float factor = {2.0}, float[1] one = {1.0}> {
        y = If (flag) <
            then_branch = then () => (float[m] a) {
                place = Constant <value_ints = [1]> ()
                sizes = Shape (x)
                width = Gather (sizes, place)
                number = Cast <to = 1> (width)
                wider = Mul (number, factor)
                size = Cast <to = 7> (wider)
                a = Expand (one, size)
            },
            else_branch = other () => (float[m] b) { b = Identity (one) }
        >
    }"""
    half = to_fp16(normalize(make_model(onnx.parser.parse_model(text)))).model
    feed = {"x": np.zeros((1, 5003), np.float32), "flag": np.array(True)}
    assert OrtEngine(half)(feed)["y"].shape == (10006,)


def test_a_table_read_at_a_constant_place_in_a_body_has_no_counted_rows() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1, 2] x, bool flag) => (float[1, 2] y)
    <int8[3, 2] codes = {1, 2, 3, 4, 5, 6}, float scale = {0.1}, int8 zero = {0}> {
        y = If (flag) <
            then_branch = then () => (float[1, 2] a) <int64[1] place = {2}> {
                table = DequantizeLinear (codes, scale, zero)
                row = Gather (table, place)
                a = Add (x, row)
            },
            else_branch = other () => (float[1, 2] b) { b = Identity (x) }
        >
    }"""
    network = read_qdq(normalize(make_model(onnx.parser.parse_model(text))))
    assert [group.op_type for group in network.groups] == ["Gather"]
    no_inputs: Any = None
    assert EdgeMeter(network, network.model, no_inputs).lookups == {}
