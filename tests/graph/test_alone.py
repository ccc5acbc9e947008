"""Copies of groups beside the float network err as the network does with that group alone in INT8."""

from __future__ import annotations

import numpy as np
from graphs import feed_of, float_models
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from qdq_everywhere import everywhere, everywhere_feed
from zoo_networks import network_of

from pytest_int8acc.answer.layers import outputs_of_groups
from pytest_int8acc.graph.instrument import with_quantized_twins
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network, Plan
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.tensors import Feed


def with_output(model: Model, tensor: str) -> Model:
    editor = model.edit()
    if tensor not in {value.name for value in editor.graph.output}:
        editor.graph.output.append(helper.make_tensor_value_info(tensor, TensorProto.FLOAT, None))
    return editor.done()


def assert_each_group_errs_alone(network: Network, feed: Feed) -> None:
    watched = outputs_of_groups(network)
    model, made = with_quantized_twins(network, watched)
    found = OrtEngine(model, "exact")(feed)
    for group, tensor in watched.items():
        others = Plan({g.name: "fp32" for g in network.groups if g.name != group})
        alone = OrtEngine(with_output(apply(network, others), tensor), "exact")(feed)
        np.testing.assert_array_equal(found[made[group]], alone[tensor], err_msg=group)
    plain = OrtEngine(network.model, "exact")(feed)
    for value in network.model.outputs:  # with more readers of a tensor, ONNX Runtime fuses less
        np.testing.assert_allclose(found[value.name], plain[value.name], rtol=1e-5, atol=1e-6)


@settings(deadline=None, max_examples=12)
@given(model=float_models(), seed=st.integers(0, 100))
def test_groups_of_one_node(model: Model, seed: int) -> None:
    assert_each_group_errs_alone(network_of(model, seed=seed), feed_of(seed))


def test_groups_of_several_nodes_and_of_integers() -> None:
    assert_each_group_errs_alone(everywhere(), everywhere_feed(2))


def test_the_watched_tensor_may_lie_behind_its_group() -> None:
    """What lies between is copied, too, and what does not lead there is not."""
    network = everywhere()
    name = next(group.name for group in network.groups if "MaxPool" in group.op_type)
    watched = outputs_of_groups(network) | {name: "logits"}
    model, made = with_quantized_twins(network, watched)
    assert made[name] != "logits"
    alone = apply(network, Plan({g.name: "fp32" for g in network.groups if g.name != name}))
    feed = everywhere_feed(3)
    expected = OrtEngine(alone, "exact")(feed)["logits"]
    np.testing.assert_array_equal(OrtEngine(model, "exact")(feed)[made[name]], expected)
    copies = {node.op_type for node in model.graph.node if node.name.endswith("/twin")}
    assert "Flatten" in copies
    assert "ReduceMax" not in copies
