"""An instrument computes what the applied plan computes, whatever its switches say."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest
from builder import Builder
from graphs import feed_of, float_models
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from qdq_everywhere import everywhere, everywhere_feed
from zoo import ZOO, sample_feed
from zoo_networks import network_of, read_back, zoo_network

import pytest_int8acc.graph.model
import pytest_int8acc.runtime.onnxruntime
from pytest_int8acc.graph.half_network import emulate_network, network_to_fp16
from pytest_int8acc.graph.instrument import build_instrument
from pytest_int8acc.graph.layout import quantize_weight
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.graph.network import Edge, Group, Network, Plan
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.tensors import Feed


def unfused(model: Model, feed: Feed) -> Feed:
    """Every node by its own kernel, in the graph's order: bit for bit the same for the same arithmetic."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.serialize(), options, ["CPUExecutionProvider"])
    names = [output.name for output in model.outputs]
    return dict(zip(names, session.run(names, feed), strict=True))


def some_plans(network: Network, count: int, seed: int = 0) -> list[list[str]]:
    """Nothing high, all high, and some in between."""
    rng = np.random.default_rng(seed)
    names = [group.name for group in network.groups]
    return [[], names, *([n for n in names if rng.random() < 0.5] for _ in range(count - 2))]


def assert_switches(network: Network, plans: list[list[str]], feed: Feed) -> None:
    """Every plan, bit for bit."""
    instrument = build_instrument(network)
    assert instrument.controls.groups == tuple(group.name for group in network.groups)
    onnx.checker.check_model(onnx.load_from_string(instrument.model.serialize()))
    assert [str(v) for v in instrument.model.inputs[: len(network.model.inputs)]] == [
        str(v) for v in network.model.inputs
    ]
    assert [str(v) for v in instrument.model.outputs] == [str(v) for v in network.model.outputs]
    for high in plans:
        expected = unfused(apply(network, Plan(dict.fromkeys(high, "fp16"))), feed)
        found = unfused(instrument.model, {**feed, **instrument.controls.setting(high).inputs})
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=f"{name} with {high} high")


def assert_runs_alike(network: Network, high: Collection[str], feed: Feed) -> None:
    """As OrtEngine runs it, with fused kernels: equal to float32 rounding, save that a code may flip."""
    instrument = build_instrument(network)
    expected = OrtEngine(apply(network, Plan(dict.fromkeys(high, "fp16"))))(feed)
    found = OrtEngine(instrument.model)({**feed, **instrument.controls.setting(high).inputs})
    for name, array in expected.items():
        if array.dtype.kind != "f":
            continue
        noise = np.linalg.norm((found[name] - array).astype(np.float64))
        assert noise <= 1e-3 * np.linalg.norm(array.astype(np.float64)), name


@cache
def half_network(name: str) -> Network:
    return emulate_network(network_to_fp16(zoo_network(name)))


@pytest.mark.parametrize("form", [zoo_network, half_network])
@pytest.mark.parametrize("name", ZOO)
def test_zoo_is_switched_bit_for_bit(name: str, form: object) -> None:
    network: Network = form(name)  # type: ignore[operator]
    feed = sample_feed(ZOO[name]())
    plans = some_plans(network, 3)
    assert_switches(network, plans, feed)
    for high in plans:
        assert_runs_alike(network, high, feed)


@pytest.mark.parametrize("form", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ["weight_path", "inception", "tied", "conditional"])
def test_networks_that_were_read_are_switched(name: str, form: str) -> None:
    network = read_back(zoo_network(name))
    if form == "fp16":
        network = emulate_network(network_to_fp16(network))
    assert_switches(network, some_plans(network, 4), sample_feed(ZOO[name]()))


@pytest.mark.parametrize("form", ["fp32", "fp16"])
def test_pairs_in_unusual_places_are_switched(form: str) -> None:
    network = everywhere()
    if form == "fp16":
        network = emulate_network(network_to_fp16(network))
    assert_switches(network, some_plans(network, 6), everywhere_feed())


@settings(max_examples=15, deadline=None)
@given(float_models(), st.data())
def test_random_graphs_are_switched(model: Model, data: st.DataObject) -> None:
    network = network_of(model)
    if data.draw(st.booleans()):
        network = emulate_network(network_to_fp16(network))
    high = data.draw(st.sets(st.sampled_from([group.name for group in network.groups])))
    assert_switches(network, [sorted(high)], feed_of(1))


@pytest.mark.parametrize("shape", [(1, 3, 8, 12), (3, 3, 20, 16)])
def test_dynamic_shapes_stay_dynamic(shape: tuple[int, ...]) -> None:
    network = zoo_network("dynamic")
    feed = {"x": np.random.default_rng(0).normal(size=shape).astype(np.float32)}
    assert_switches(network, some_plans(network, 3), feed)


def one_edge(b: Builder, outputs: dict[str, list[int | str]], node: str, index: int = 0) -> Network:
    """``b``'s model with one INT8 edge at ``node``."""
    model = normalize(make_model(b.model(outputs)))
    (proto,) = (n for n in model.graph.node if n.name == node)
    tensor = proto.input[index]
    constant = model.constants().get(tensor)
    per_tensor = quantize_weight(np.ones(1, np.float32) * 3 if constant is None else constant, None)
    if constant is None:
        per_tensor = type(per_tensor)(per_tensor.scale, per_tensor.zero_point)
    return Network(model, (Group(node, proto.op_type, (node,), (Edge(node, index, tensor, per_tensor),)),))


def op_types(model: Model) -> list[str]:
    return [node.op_type for node in model.graph.node]


def test_a_reader_that_holds_graphs_has_its_input_switched() -> None:
    b = Builder()
    x = b.relu(b.input("x", [2, 4]))
    inner = Builder(prefix="in_")
    inner.inputs = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("carried", TensorProto.FLOAT, [2, 4]),
    ]
    outputs = {inner.node("Identity", "go"): [], inner.node("Add", "carried", x): [2, 4]}
    body = inner.graph(outputs, "body")
    body.output[0].type.tensor_type.elem_type = TensorProto.BOOL
    y = b.node("Loop", b.const(np.array(2, np.int64)), "", x, body=body)
    network = one_edge(b, {b.relu(y): [2, 4]}, b.nodes[1].name, 2)
    assert op_types(build_instrument(network).model) == ["Split", "Relu", "If", "Loop", "Relu"]
    assert_switches(network, [[], [b.nodes[1].name]], sample_feed(network.model.proto))


def test_a_reader_of_unknown_type_has_its_input_switched() -> None:
    """SequenceConstruct makes no tensor, so no branch can give it out by its type."""
    b = Builder()
    both = b.node("SequenceConstruct", b.input("x", [2, 4]), b.weight(2, 4, fan_in=1))
    y = b.node("ConcatFromSequence", both, axis=0)
    for index in (0, 1):
        network = one_edge(b, {y: [4, 4]}, b.nodes[0].name, index)
        assert "SequenceConstruct" in op_types(build_instrument(network).model)
        assert_switches(network, [[], [b.nodes[0].name]], sample_feed(network.model.proto))


def test_tail_stays_outside_where_it_reads_what_is_computed_later() -> None:
    b = Builder()
    x = b.input("x", [2, 4])
    low = b.node("ReduceMin", b.node("Relu", x), keepdims=0)
    y = b.node("Clip", b.node("MatMul", x, b.weight(4, 4, fan_in=4)), low)
    network = network_of(normalize(make_model(b.model({y: [2, 4]}))))
    assert op_types(build_instrument(network).model)[-1] == "Clip"
    assert_switches(network, some_plans(network, 2), sample_feed(network.model.proto))


def test_a_weight_made_by_another_group_keeps_its_own_switch() -> None:
    b = Builder()
    weight = b.node("Tanh", b.weight(4, 4, fan_in=4))  # no arithmetic, which would be folded
    y = b.node("MatMul", b.input("x", [2, 4]), weight)
    first, second = (one_edge(b, {y: [2, 4]}, node.name) for node in b.nodes)
    network = Network(first.model, (*first.groups, *second.groups))
    assert_switches(network, some_plans(network, 6), sample_feed(network.model.proto))


@pytest.mark.parametrize(("shared", "inside"), [(False, 2), (True, 1)])
def test_tail_is_read_through_one_node_alone(shared: bool, inside: int) -> None:
    b = Builder()
    x = b.input("x", [2, 3, 8, 8])
    y = b.relu(b.conv(x, 3, 4))
    z = b.node("MaxPool", y, kernel_shape=[2, 2])
    outputs = {z: [2, 4, 7, 7], **({y: [2, 4, 8, 8]} if shared else {})}
    network = network_of(normalize(make_model(b.model(outputs))))
    (choice,) = (n for n in build_instrument(network).model.graph.node if n.op_type == "If")
    moved = [node.op_type for node in choice.attribute[0].g.node][-inside:]
    assert moved == (["Conv", "Relu"] if shared else ["Relu", "MaxPool"])[-inside:]
    assert_switches(network, some_plans(network, 2), sample_feed(network.model.proto))


def test_weights_lie_inside_their_branch_and_shared_ones_outside() -> None:
    for name, outside in (("residual", 0), ("tied", 2)):
        instrument = build_instrument(zoo_network(name))
        large = [t.name for t in instrument.model.graph.initializer if t.name in instrument.model.weights]
        assert len(large) == outside, large  # the float weight and the dequantized one


@pytest.mark.parametrize("name", ["plain", "residual", "mobilenet", "vit_erf", "unet", "tied"])
def test_size_is_at_most_two_and_a_half_times_the_models(name: str) -> None:
    network = zoo_network(name)
    instrument = build_instrument(network)
    weights = sum(array.nbytes for array in network.model.weights.values())
    assert sum(array.nbytes for array in instrument.model.weights.values()) <= 2.5 * weights


def test_a_large_instrument_runs_from_files(monkeypatch: pytest.MonkeyPatch) -> None:
    network, feed = zoo_network("residual"), sample_feed(ZOO["residual"]())
    instrument = build_instrument(network)
    feed.update(instrument.controls.setting([network.groups[1].name]).inputs)
    expected = OrtEngine(instrument.model)(feed)
    for module in (pytest_int8acc.graph.model, pytest_int8acc.runtime.onnxruntime):
        monkeypatch.setattr(module, "INLINE_BYTES", 1000)
    for name, array in OrtEngine(instrument.model)(feed).items():
        np.testing.assert_array_equal(array, expected[name])


def test_many_groups_run_from_files_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of sizes takes more than the 1024 bytes that are kept beside the graph."""
    monkeypatch.setattr(pytest_int8acc.runtime.onnxruntime, "INLINE_BYTES", 0)
    b = Builder()
    x = b.input("x", (1, 4))
    for _ in range(140):
        x = b.node("MatMul", x, b.const(np.eye(4, dtype=np.float32)))
    network = network_of(normalize(make_model(b.model({x: (1, 4)}))))
    instrument = build_instrument(network)
    assert len(instrument.controls.groups) * 8 > 1024
    feed = {"x": np.ones((1, 4), np.float32)}
    OrtEngine(instrument.model)({**feed, **instrument.controls.setting([]).inputs})
