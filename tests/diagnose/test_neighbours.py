"""The graph around a group: who makes what it reads, who reads what it makes, and how."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import parser

from pytest_int8acc.diagnose.neighbours import neighbours
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import make_model
from pytest_int8acc.graph.network import Edge, Group, Network, Quantization
from pytest_int8acc.measure.measured import measure
from pytest_int8acc.results import Wire
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec

DIGITS = Path(__file__).parents[2] / "example_project" / "digits_by_hand.int8acc.yaml"


@pytest.fixture(scope="module")
def network() -> Network:
    return measure(load_spec(DIGITS)[0], Settings()).int8.network


def test_each_wire_has_the_format_and_scale_of_its_edge(network: Network) -> None:
    around = neighbours(network, {group.name for group in network.groups}, "fp16")
    assert list(around) == [group.name for group in network.groups]
    for group in network.groups:
        scales = {edge.tensor: edge.quantization.scale for edge in group.edges}
        wires = {wire.tensor: wire for wire in around[group.name].inputs}
        assert scales.keys() <= wires.keys()
        for tensor, scale in scales.items():
            wire = wires[tensor]
            assert (wire.format, wire.scales) == ("int8", scale.size)
            assert wire.scale == pytest.approx(float(scale.max()))
            constant = tensor in network.model.index.constants
            assert (wire.kind == "constant") == constant
            producer = network.model.index.producer.get(tensor)
            assert wire.node == ("" if producer is None else producer.name)


def test_the_first_reads_the_input_and_the_last_gives_the_output(network: Network) -> None:
    first, last = network.groups[0].name, network.groups[-1].name
    around = neighbours(network, {first, last}, "fp32")
    assert list(around) == [first, last]
    assert around[first].inputs[0].kind == "input"
    assert Wire(network.model.outputs[0].name, "output", format="fp32") in around[last].outputs


def test_a_node_of_many_readers_shows_five() -> None:
    readers = "".join(f"r{i} = Relu(y)\n" for i in range(9))
    given = ", ".join(f"float[1, 4] r{i}" for i in range(9))
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[1, 4] x, float[4, 4] w) => ({given}) {{
        y = MatMul(x, w)
        {readers} }}"""
    model = normalize(make_model(parser.parse_model(text)))
    name = model.graph.node[0].name
    edge = Edge(name, 0, "x", Quantization(np.float32(0.5), np.int8(0)))
    around = neighbours(Network(model, (Group(name, "MatMul", (name,), (edge,)),)), {name}, "fp16")[name]
    assert [wire.op_type for wire in around.outputs] == ["Relu"] * 5
    assert around.more == 4
    assert around.inputs == (Wire("x", "input", "", "", "int8", 0.5, 1), Wire("w", "input", format="fp16"))
