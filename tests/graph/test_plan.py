"""A plan with scales and moves: what it makes of a network, and two plans in one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plans import plans
from zoo import ZOO, sample_feed
from zoo_networks import read_back, zoo_network

from pytest_int8acc import ModelError
from pytest_int8acc.case.forms import Int8Form
from pytest_int8acc.graph.formats import along
from pytest_int8acc.graph.migrate import sites
from pytest_int8acc.graph.network import Network, Plan, TensorScale, symmetric
from pytest_int8acc.graph.plan import (
    apply,
    computed_floats,
    fresh_weights,
    guard,
    merge,
    moved,
    quantized_tensors,
    with_outputs,
)
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.runtime.trt.build import fit_model
from pytest_int8acc.runtime.trt.platform import Platform

NAMES = [name for name in ZOO if len(zoo_network(name).groups) > 1]
#: Networks with operators that opset 17 lacks.
TOO_NEW = ("vit_gelu", "opset21", "opset23")
ANY = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@ANY
@given(st.sampled_from(NAMES), st.data())
def test_scales_hold_before_the_moves_and_after_them(name: str, data: st.DataObject) -> None:
    network = zoo_network(name)
    plan = data.draw(plans(network))
    result = moved(network, plan)
    assert [g.name for g in result.groups] == [g.name for g in network.groups]
    constants = result.model.constants()
    for tensor, own in quantized_tensors(result).items():
        if own.values is not None:
            steps = constants[tensor] / along(own.scale, own.axis, constants[tensor].ndim)
            assert np.abs(np.clip(steps, -128, 127) - own.values).max() <= 0.51
        if tensor in plan.scales:
            wanted = plan.scales[tensor]
            np.testing.assert_array_equal(own.scale, wanted.scale)
            assert own.axis == wanted.axis
            assert own.zero_point.dtype == (np.int8 if wanted.zero_point is None else np.uint8)


@ANY
@given(st.sampled_from(NAMES), st.data())
def test_a_guarded_network_is_the_plan_applied(name: str, data: st.DataObject) -> None:
    network = zoo_network(name)
    plan = data.draw(plans(network))
    left = guard(network, plan)
    assert apply(left).serialize() == apply(network, plan).serialize()
    assert plan.high.keys() <= left.left_high.keys()


@ANY
@given(st.sampled_from(NAMES), st.data())
def test_a_plan_found_under_another_is_merged_over_it(name: str, data: st.DataObject) -> None:
    network = zoo_network(name)
    plan = data.draw(plans(network))
    left = guard(network, plan)
    tensors = list(quantized_tensors(left))
    moves = {
        tensor: np.linspace(0.5, 2, site.channels, dtype=np.float32)
        for tensor, site in sites(left).items()
        if tensor not in plan.moves
    }
    some = data.draw(st.lists(st.sampled_from(list(moves)), max_size=1)) if moves else []
    scaled = data.draw(st.lists(st.sampled_from(tensors), max_size=3)) if tensors else []
    high = [group.name for group in left.groups[:1]]
    more = Plan(
        dict.fromkeys(high, "fp16"), {t: symmetric(0.25) for t in scaled}, {t: moves[t] for t in some}
    )
    assert apply(left, more).serialize() == apply(network, merge(network, plan, more)).serialize()


@pytest.mark.parametrize("name", ["residual", "mobilenet", "opset21"])
def test_the_scale_of_a_moved_tensor_reaches_only_its_unmoved_readers(name: str) -> None:
    network = zoo_network(name)
    changed = 0
    for tensor, site in sites(network).items():
        move = Plan(moves={tensor: np.linspace(0.5, 2, site.channels, dtype=np.float32)})
        left = guard(network, move)
        if tensor in quantized_tensors(left):
            scale = Plan(scales={tensor: symmetric(0.25)})
            expected = apply(left, scale).serialize()
            assert expected == apply(network, merge(network, move, scale)).serialize()
            changed += expected != apply(network, Plan(scales=scale.scales, moves=move.moves)).serialize()
    assert changed, "one of the tensors has readers that are not moved"


def test_weights_keep_their_scales_where_these_are_taken_anew() -> None:
    network = zoo_network("plain")
    weights = [t for t, own in quantized_tensors(network).items() if own.values is not None]
    fresh = fresh_weights(network, weights)
    assert apply(network, Plan(scales=fresh)).serialize() == apply(network).serialize()
    with pytest.raises(ModelError, match="'x' is no quantized constant"):
        fresh_weights(network, ["x"])


def test_a_scale_makes_any_quantization_symmetric() -> None:
    plan = Plan(scales={"x": TensorScale(np.float32([0.5] * 3), 1, np.full(3, 128, np.uint8))})
    network = read_back(moved(zoo_network("plain"), plan))
    assert quantized_tensors(network)["x"].zero_point.dtype == np.uint8
    own = quantized_tensors(moved(network, Plan(scales={"x": symmetric(0.25)})))["x"]
    assert (own.axis, own.zero_point.dtype, own.zero_point.any()) == (None, np.int8, False)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan({"nowhere": "fp16"}), "'nowhere', which is no group"),
        (Plan(scales={"nowhere": symmetric(1)}), "'nowhere', which is no quantized tensor"),
        (Plan(scales={"x": symmetric(0)}), "'x': it must be greater than 0"),
        (
            Plan(scales={"x": TensorScale(np.ones(3, np.float32))}),
            "'x': one per tensor, or a list and an axis",
        ),
        (
            Plan(scales={"x": TensorScale(np.float32(1), None, np.ones(2, np.int8))}),
            "2 zero points for 1 scales",
        ),
        (Plan(scales={"w": TensorScale(np.ones(3, np.float32), 7)}), "axis 7 of a tensor with 4 dimensions"),
        (Plan(scales={"w": TensorScale(np.ones(2, np.float32), 0)}), "2 numbers along axis 0, which has"),
        (Plan(moves={"nowhere": np.ones(1, np.float32)}), "nothing reads 'nowhere' that"),
        (Plan(moves={"x": np.ones(1, np.float32)}), "moving 'x' takes 3 factors greater than 0"),
        (Plan(moves={"x": np.zeros(3, np.float32)}), "moving 'x' takes 3 factors greater than 0"),
    ],
)
def test_what_a_network_cannot_do_is_one_error(plan: Plan, message: str) -> None:
    network = zoo_network("plain")
    weight = next(e.tensor for e in network.groups[0].edges if e.quantization.values is not None)
    activation = next(e.tensor for e in network.groups[0].edges if e.quantization.values is None)
    names = {"w": weight, "x": activation}
    plan = Plan(
        plan.high,
        {names.get(t, t): s for t, s in plan.scales.items()},
        {names.get(t, t): f for t, f in plan.moves.items()},
    )
    with pytest.raises(ModelError, match=message.replace("'x'", f"'{activation}'")):
        apply(network, plan)


def test_a_tensor_moved_by_two_plans_is_one_error() -> None:
    network = zoo_network("plain")
    tensor, site = next(iter(sites(network).items()))
    plan = Plan(moves={tensor: np.ones(site.channels, np.float32)})
    with pytest.raises(ModelError, match=f"'{tensor}' is moved by the case's plan already"):
        merge(network, plan, plan)


def test_what_a_plan_moves_does_not_hang_on_what_is_in_int8() -> None:
    """Moved under a plan that keeps one of two readers high, and with that plan merged in."""
    network = two_readers()
    high = Plan({network.groups[-1].name: "fp16"})
    tensor, site = next((t, s) for t, s in sites(network).items() if len(s.readers) > 1)
    move = Plan(moves={tensor: np.linspace(0.5, 2, site.channels, dtype=np.float32)})
    expected = apply(guard(network, high), move).serialize()
    assert expected == apply(network, merge(network, high, move)).serialize()


def two_readers() -> Network:
    names = [n for n in NAMES if any(len(s.readers) > 1 for s in sites(zoo_network(n)).values())]
    for name in names:
        network = zoo_network(name)
        last = network.groups[-1].name
        if any(last in s.readers and len(s.readers) > 1 for s in sites(network).values()):
            return network
    raise AssertionError


@pytest.mark.parametrize("name", ZOO)
def test_every_float_can_be_an_output_of_the_model_that_is_built(name: str) -> None:
    """Of the Q/DQ model in FP16, and of the one that TensorRT 8.6 reads."""
    network = zoo_network(name)
    tensors = tuple(computed_floats(network.model))
    form = Int8Form(network, "by hand", "fp16").under(Plan(outputs=tensors))
    models = [form.showing(form.model)]
    if name not in TOO_NEW:
        old = Platform("tensorrt", (8, 6, 0), "NVIDIA H100", (9, 0))
        models.append(form.showing(fit_model(form.original, old)))
    for model in models:
        found = OrtEngine(model)(sample_feed(ZOO[name]()))
        assert set(found) == {*(o.name for o in network.model.outputs), *tensors}
    assert {o.name for o in form.model.outputs} == {o.name for o in network.model.outputs}


def test_what_no_node_computes_in_floats_is_refused_as_an_output() -> None:
    model = zoo_network("plain").model
    with pytest.raises(ModelError, match="'nowhere' cannot be an output"):
        with_outputs(model, ["nowhere"])
    own = [output.name for output in model.outputs]
    assert with_outputs(model, own) is model


def test_outputs_of_two_plans_are_all_kept_once() -> None:
    first, second = Plan(outputs=("a", "b")), Plan(outputs=("b", "c"))
    assert merge(zoo_network("plain"), first, second).outputs == ("a", "b", "c")
