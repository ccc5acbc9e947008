"""A network halved once equals every plan halved on its own, bit for bit."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graphs import feed_of, float_models
from hypothesis import given, settings
from hypothesis import strategies as st
from qdq_everywhere import everywhere, everywhere_feed
from zoo import ZOO, sample_feed
from zoo_networks import network_of, read_back, zoo_network

from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.half_network import emulate_network, network_to_fp16
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network, Plan
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.graph.qdq import read_qdq
from pytest_int8acc.graph.types import value_types
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.tensors import Feed


def plans(network: Network, count: int, seed: int = 0) -> list[Plan]:
    """Nothing high, all high, and some in between."""
    rng = np.random.default_rng(seed)
    names = [group.name for group in network.groups]
    some = [[n for n in names if rng.random() < 0.5] for _ in range(count - 2)]
    return [Plan(dict.fromkeys(high, "fp16")) for high in ([], names, *some)]


def assert_halves_alike(network: Network, plan: Plan, feed: Feed) -> None:
    once, each = apply(network_to_fp16(network), plan), to_fp16(apply(network, plan)).model
    onnx.checker.check_model(onnx.load_from_string(once.serialize()), full_check=True)
    found, expected = OrtEngine(once)(feed), OrtEngine(each)(feed)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def assert_spelled_out_alike(network: Network, plan: Plan, feed: Feed) -> None:
    halved = network_to_fp16(network)
    before, after = apply(halved, plan), apply(emulate_network(halved), plan)
    assert after.opset == before.opset
    found, expected = OrtEngine(after)(feed), OrtEngine(before)(feed)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize("name", ZOO)
def test_zoo_halved_once_is_every_plan_halved(name: str) -> None:
    network, feed = zoo_network(name), sample_feed(ZOO[name]())
    for plan in plans(network, 3):
        assert_halves_alike(network, plan, feed)
        assert_spelled_out_alike(network, plan, feed)


@pytest.mark.parametrize("name", ["weight_path", "inception", "tied", "conditional"])
def test_networks_that_were_read_halve_alike(name: str) -> None:
    network = read_back(zoo_network(name))
    for plan in plans(network, 3):
        assert_halves_alike(network, plan, sample_feed(ZOO[name]()))
        assert_spelled_out_alike(network, plan, sample_feed(ZOO[name]()))


@settings(max_examples=15, deadline=None)
@given(float_models(), st.data())
def test_random_graphs_halve_alike(model: Model, data: st.DataObject) -> None:
    network = network_of(model)
    high = data.draw(st.sets(st.sampled_from([group.name for group in network.groups])))
    plan = Plan(dict.fromkeys(high, "fp16"))
    assert_halves_alike(network, plan, feed_of(1))
    assert_spelled_out_alike(network, plan, feed_of(1))


def test_pairs_in_unusual_places_halve_alike() -> None:
    """Deferred rounding, int32 biases, a moved weight, an output, and a reader that FP16 does not reach."""
    network = everywhere()
    for plan in plans(network, 6):
        assert_halves_alike(network, plan, everywhere_feed())
        assert_spelled_out_alike(network, plan, everywhere_feed())


def test_types_of_scales_and_places_of_edges() -> None:
    halved = network_to_fp16(everywhere())
    edges = {(group.name, edge.tensor): edge for group in halved.groups for edge in group.edges}
    types = value_types(halved.model)
    for edge in edges.values():
        assert edge.quantization.scale.dtype == (
            np.float16 if types[edge.tensor] == onnx.TensorProto.FLOAT16 else np.float32
        )
    bias, boxes = edges["node_of_c", "bd_float"], edges["node_of_picked", "boxes"]
    assert bias.node.startswith("Cast_")
    assert bias.quantization.scale.dtype == np.float32
    assert boxes.node.startswith("Cast_")
    assert boxes.quantization.scale.dtype == np.float16
    groups = {group.name: group for group in halved.groups}
    assert {bias.node, "node_of_c"} == set(groups["node_of_c"].nodes)


def test_arrays_that_are_shared_stay_shared() -> None:
    network = network_to_fp16(zoo_network("tied"))
    weights = [e.quantization for g in network.groups for e in g.edges if e.quantization.values is not None]
    assert len({id(q) for q in weights}) < len(weights)
    before = [e.quantization.values for g in zoo_network("tied").groups for e in g.edges]
    assert {id(q.values) for q in weights} <= {id(values) for values in before}


def test_a_network_in_fp16_keeps_its_own_types() -> None:
    once = network_to_fp16(zoo_network("residual"))
    twice = network_to_fp16(once)
    assert twice.model.proto == once.model.proto
    wide = zoo_network("residual")
    assert emulate_network(wide).model is wide.model


def test_a_network_that_was_read_in_fp16_halves_alike() -> None:
    network = read_qdq(to_fp16(apply(zoo_network("residual"))).model)
    for plan in plans(network, 4):
        assert_halves_alike(network, plan, sample_feed(ZOO["residual"]()))
        assert_spelled_out_alike(network, plan, sample_feed(ZOO["residual"]()))
