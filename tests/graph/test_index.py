"""The index says who makes and reads a tensor, inside branches too."""

from __future__ import annotations

from builder import Builder
from zoo_networks import zoo_network

from pytest_int8acc.graph.model import Model, make_model


def forked() -> Model:
    """``x`` is read at two positions of one node, ``a`` by one node, ``y`` as an output and by a node."""
    b = Builder()
    x = b.input("x", ["N", 4])
    b.node("Mul", x, x, outputs=["a"])
    b.node("Relu", "a", outputs=["y"])
    b.node("Abs", "y", outputs=["z"])
    return make_model(b.model({"y": ["N", 4], "z": ["N", 4]}))


def test_readers_come_with_their_positions() -> None:
    index = forked().index
    assert [(node.op_type, position) for node, position in index.readers("x")] == [("Mul", 0), ("Mul", 1)]
    assert index.readers("z") == index.readers("nothing") == ()
    assert index.producer["y"].op_type == "Relu"
    assert [index.order[name] for name in index.nodes] == [0, 1, 2]


def test_the_only_reader_is_the_only_way_to_a_tensor() -> None:
    index = forked().index
    only = index.only_reader("a")
    assert only is not None
    assert only.op_type == "Relu"
    assert index.only_reader("x") is None, "two positions"
    assert index.only_reader("y") is None, "an output"
    assert index.public == {"y", "z"}


def test_what_branches_read_is_public() -> None:
    model = zoo_network("conditional").model
    index = model.index
    assert model.index is index
    assert index.captured
    for name in index.captured & index.producer.keys():
        assert index.only_reader(name) is None
    assert index.constants == model.constants().keys()
