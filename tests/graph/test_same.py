"""Two models of the same operators are known as such, whatever their names; anything else is not."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from zoo import ZOO, sample_feed
from zoo_networks import zoo_model, zoo_network

from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.graph.same import Computations, unrounded
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.tensors import Feed

#: Halved with Q/DQ they are lifted to opset 19 by ONNX's converter, which writes other nodes.
CONVERTED = {"layernorm_parts"}
#: Their bodies have Casts of FP16, so that they are known to be the same by a run alone.
WITH_BODIES = {"conditional"}


def same(one: Model, other: Model, *references: Model) -> bool:
    computations = Computations()
    first, second = computations.of(one), computations.of(other, references)
    return all(first[output.name] == second[output.name] for output in one.outputs)


def assert_computes(one: Model, other: Model, feed: Feed) -> None:
    expected = OrtEngine(other)(feed)
    for name, array in OrtEngine(one)(feed).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", sorted(ZOO))
def test_a_form_without_its_rounding_is_the_float_model(name: str) -> None:
    model = zoo_model(name)
    quantized = apply(zoo_network(name))
    for form in (model, quantized):
        half = to_fp16(form)
        if name in WITH_BODIES:
            assert_computes(unrounded(half.model, (half.wide, model)), model, sample_feed(ZOO[name]()))
        elif form is model or name not in CONVERTED:
            assert same(model, half.model, half.wide, model)
            assert same(model, unrounded(half.model, (half.wide, model)))
        assert not same(model, half.model)
    assert same(model, quantized, model)
    assert same(model, unrounded(quantized, (model,)))


def renamed(proto: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The same with other names inside, and nodes in another order that is topological too."""
    draw = random.Random(seed)
    outer = {value.name for value in (*proto.graph.input, *proto.graph.output)}
    names = {t.name: f"w{draw.random()}" for t in proto.graph.initializer if t.name not in outer}
    for node in proto.graph.node:
        node.name = f"node{draw.random()}"
        names |= {name: f"t{draw.random()}" for name in node.output if name and name not in outer}
    for tensor in proto.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    made = {t.name for t in proto.graph.initializer} | {value.name for value in proto.graph.input} | {""}
    waiting, nodes = list(proto.graph.node), []
    for node in waiting:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    while waiting:
        ready = [node for node in waiting if made.issuperset(node.input)]
        node = draw.choice(ready)
        waiting.remove(node)
        made.update(node.output)
        nodes.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(copies)
    del proto.graph.value_info[:]
    return proto


FLAT = sorted(set(ZOO) - {"conditional"})


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(FLAT), st.integers(0, 1 << 16))
def test_names_and_order_do_not_count(name: str, seed: int) -> None:
    assert same(make_model(ZOO[name]()), make_model(renamed(ZOO[name](), seed)))


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(FLAT), st.integers(0, 1 << 16), st.sampled_from(["operator", "weight", "input"]))
def test_another_operator_weight_or_input_counts(name: str, seed: int, what: str) -> None:
    draw, proto = random.Random(seed), ZOO[name]()
    graph = proto.graph
    read = {name for node in graph.node for name in node.input}
    if what == "operator":
        node = draw.choice([n for n in graph.node if n.op_type not in ("Identity", "Constant")])
        node.op_type = "Another"
    elif what == "weight":
        tensor = draw.choice([t for t in graph.initializer if t.name in read])
        array = numpy_helper.to_array(tensor).copy()
        array.reshape(-1)[draw.randrange(array.size)] += 1
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    else:
        node = draw.choice([n for n in graph.node if n.input])
        node.input[0] = "another"
    changed = Computations()
    before, after = changed.of(make_model(ZOO[name]())), changed.of(make_model(proto))
    outputs = [value.name for value in graph.output]
    assert any(before[output] != after[output] for output in outputs)


def test_a_batch_normalization_is_its_scale_and_offset() -> None:
    model = zoo_model("residual")
    half = to_fp16(model)
    assert same(model, half.wide)
    (old, new) = (next(n for n in m.graph.node if n.op_type.startswith("Batch")) for m in (model, half.wide))
    mean, none = model.constants()[old.input[3]], half.wide.constants()[new.input[3]]
    assert mean.any()
    assert not none.any()
