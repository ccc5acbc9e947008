"""Groups taken apart compute what they did, and what each piece leaves INT8 for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builder import Builder
from zoo import ZOO, sample_feed
from zoo_networks import network_of, zoo_network

from pytest_int8acc.graph.instrument import split_groups
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import make_model
from pytest_int8acc.graph.network import Network, Plan, TensorScale
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.tensors import Feed

NETWORKS = ("residual", "mobilenet", "vit_erf")


def run(name: str, network: Network, plan: Plan) -> Feed:
    return OrtEngine(apply(network, plan))(sample_feed(ZOO[name](), 0))


def taken(name: str) -> tuple[Network, dict[str, tuple[Any, ...]]]:
    """Every other group taken apart, with scales per channel where shapes tell them."""
    network = zoo_network(name)
    shapes = {n: info.shape for n, info in network.model.values().items() if info.shape is not None}
    known = {n: shape for n, shape in shapes.items() if all(isinstance(size, int) for size in shape)}
    found, pieces = split_groups(network, {g.name for g in network.groups[::2]}, known)  # type: ignore[arg-type]
    return found, dict(pieces)


@pytest.mark.parametrize("name", NETWORKS)
def test_pieces_as_given_are_the_group(name: str) -> None:
    network, pieces = taken(name)
    others = {piece.other: "fp16" for of_one in pieces.values() for piece in of_one if piece.other}
    assert others
    expected = run(name, zoo_network(name), Plan())
    for output, array in run(name, network, Plan(others)).items():  # type: ignore[arg-type]
        np.testing.assert_array_equal(array, expected[output])


@pytest.mark.parametrize("name", NETWORKS)
def test_pieces_left_out_are_the_float_group(name: str) -> None:
    network, pieces = taken(name)
    every = {
        part: "fp16" for of_one in pieces.values() for p in of_one for part in (p.given, p.other) if part
    }
    expected = run(name, zoo_network(name), Plan(dict.fromkeys(pieces, "fp16")))
    for output, array in run(name, network, Plan(every)).items():  # type: ignore[arg-type]
        np.testing.assert_array_equal(array, expected[output])


def test_other_scales_are_one_tensors_of_one_group() -> None:
    """Equal to the plan that gives the tensor that scale, where the group is its only reader."""
    network, pieces = taken("mobilenet")
    own = zoo_network("mobilenet")
    readers = [edge.tensor for edge in own.edges]
    group, piece = next(
        (group, piece)
        for group, of_one in pieces.items()
        for piece in of_one
        if piece.axis is not None and readers.count(piece.tensor) == 1
    )
    scale = np.full(piece.channels, 0.25, np.float32)
    left = {p.other for of_one in pieces.values() for p in of_one if p.other} - {piece.other}
    high = dict.fromkeys((*left, piece.given), "fp16")
    found = run("mobilenet", network, Plan(high, {piece.scaled: TensorScale(scale, piece.axis)}))  # type: ignore[arg-type]
    expected = run("mobilenet", own, Plan(scales={piece.tensor: TensorScale(scale[0])}))
    for output, array in found.items():
        np.testing.assert_array_equal(array, expected[output])
    assert group in {known.name for known in own.groups}


def test_channels_that_differ_from_run_to_run_have_one_scale() -> None:
    """Of a product of two activations, over a length that is open; a weight's channels are always as many."""
    b = Builder()
    x = b.input("x", ["N", "L", 8])
    scores = b.node("MatMul", x, b.node("Transpose", x, perm=[0, 2, 1]))
    mixed = b.node("MatMul", scores, x)
    y = b.node("MatMul", mixed, b.weight(8, 4, fan_in=8))
    network = network_of(normalize(make_model(b.model({y: ["N", "L", 4]}))))
    shapes = {"x": (1, 5, 8), scores: (1, 5, 5), mixed: (1, 5, 8)}
    _, second, third = (group.name for group in network.groups)
    _, pieces = split_groups(network, [second, third], shapes)
    assert [(piece.tensor, piece.axis) for piece in pieces[second]] == [(scores, None), ("x", None)]
    assert [(p.tensor, p.axis, p.channels) for p in pieces[third] if p.other] == [(mixed, 2, 8)]
