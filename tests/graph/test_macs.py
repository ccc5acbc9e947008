"""What it costs to keep a group out of INT8; share_of_operators.yaml in tests/cases has each operator."""

from __future__ import annotations

import numpy as np
import pytest
from zoo import ZOO, sample_feed
from zoo_networks import zoo_network

from pytest_int8acc.case.shapes import group_shapes, tensor_shapes
from pytest_int8acc.graph.macs import macs, sized_tensors
from pytest_int8acc.graph.network import Network
from pytest_int8acc.tensors import Feed


def run_macs(network: Network, feed: Feed) -> dict[str, float]:
    return macs(network, tensor_shapes(network.model, feed, sized_tensors(network)))


def test_an_add_costs_nothing() -> None:
    found = run_macs(zoo_network("residual"), {"x": np.ones((2, 3, 16, 16), np.float32)})
    adds = [group.name for group in zoo_network("residual").groups if group.op_type == "Add"]
    assert adds
    assert {found[name] for name in adds} == {0.0}


def test_more_samples_cost_in_proportion() -> None:
    feeds = ({"x": np.ones((n, 3, 12, 20), np.float32)} for n in (1, 4))
    one, four = (run_macs(zoo_network("dynamic"), feed) for feed in feeds)
    assert {name: 4 * value for name, value in one.items()} == four


@pytest.mark.parametrize("name", ZOO)
def test_every_weighted_group_of_the_zoo_is_counted(name: str) -> None:
    network = zoo_network(name)
    found = run_macs(network, sample_feed(ZOO[name]()))
    for group in network.groups:
        sizes = [e.quantization.values.size for e in group.edges if e.quantization.values is not None]
        assert found[group.name] >= max(sizes, default=0), group.name
        assert (found[group.name] > 0) == (group.op_type != "Add")


def test_shapes_are_told_in_words() -> None:
    network = zoo_network("residual")
    feed = {"x": np.ones((2, 3, 16, 16), np.float32)}
    shapes = tensor_shapes(network.model, feed, sized_tensors(network))
    texts = group_shapes(network, shapes)
    assert list(texts) == [group.name for group in network.groups]
    first = network.model.index.nodes[network.groups[0].name]
    assert texts[network.groups[0].name] == str(list(shapes[first.output[0]]))
    assert set(group_shapes(network, {}).values()) == {""}
