"""Shapes that constant sizes decide are constants in normal form; what inputs decide stays open."""

from __future__ import annotations

import numpy as np
import pytest
from written_networks import network

from benchmarks.nets import MODELS
from benchmarks.regressions.data import samples
from pytest_int8acc.graph.load import load_model, normalize
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.tensors import Feed

#: Exports of PyTorch with an open batch.
EXPORTS = ("decoder", "encoder", "recognizer", "swin")


def model_of(body: str, given: str = "float[n, 6, 8] x") -> Model:
    proto = network(
        f"""<ir_version: 8, opset_import: ["" : 17]> g ({given}) => (float y)
        <int64[1] i0 = {{0}}, int64[1] i1 = {{1}}, int64[1] i2 = {{2}}, int64[1] i3 = {{3}},
        int64[1] i9 = {{9}}, int64[1] open = {{-1}}, float half = {{-0.5}}> {{ {body} }}""",
        {},
    )
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return normalize(make_model(proto))


def kinds(model: Model) -> list[str]:
    return [node.op_type for node in model.graph.node]


def run(model: Model, feed: Feed) -> Feed:
    return OrtEngine(model, level="none")(feed)


@pytest.mark.parametrize("name", EXPORTS)
def test_exports_compute_the_same_bits_by_nodes_of_the_same_names(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folded = load_model(MODELS / f"{name}.onnx")
    monkeypatch.setattr("pytest_int8acc.graph.load.fold_sizes", lambda model: model)
    plain = load_model(MODELS / f"{name}.onnx")
    assert set(folded.index.nodes) < set(plain.index.nodes)
    for batch in (1, 3):
        feed = samples(name, "calibration", batch)
        found, expected = run(folded, feed), run(plain, feed)
        assert all(np.array_equal(found[output], expected[output]) for output in expected)


def test_what_the_batch_decides_stays_open() -> None:
    model = model_of(
        "s = Shape(x) n = Slice(s, i0, i1) w = Concat<axis = 0>(n, i3, i2, open) y = Reshape(x, w)"
    )
    assert kinds(model) == ["Reshape"]
    assert model.constants()["y_shape"].tolist() == [-1, 3, 2, 8]
    assert run(model, {"x": np.zeros((5, 6, 8), np.float32)})["y"].shape == (5, 3, 2, 8)


def test_two_open_sizes_are_computed_on() -> None:
    body = "s = Shape(x) n = Slice(s, i0, i2) w = Concat<axis = 0>(n, i2, open) y = Reshape(x, w)"
    model = model_of(body, "float[n, t, 8] x")
    assert kinds(model) == ["Shape", "Slice", "Concat", "Reshape"]
    assert run(model, {"x": np.zeros((5, 6, 8), np.float32)})["y"].shape == (5, 6, 2, 4)


def test_sizes_that_bodies_read_stay() -> None:
    model = model_of(
        """s = Shape(x) last = Gather(s, i2) c = Equal(last, i9) d = Squeeze(c)
        y = If(d) <then_branch = one () => (float[1] a) { a = Cast<to = 1>(i1) },
                   else_branch = two () => (float[1] b) { b = Cast<to = 1>(last) }>"""
    )
    assert run(model, {"x": np.zeros((5, 6, 8), np.float32)})["y"].tolist() == [8]


@pytest.mark.parametrize("size", [12, 16], ids=["rounded", "exact"])
def test_a_factor_of_a_constant_size_is_a_constant(size: int) -> None:
    body = "s = Shape(x) d = Gather(s, i2) f = Cast<to = 1>(d) p = Pow(f, half) y = Mul(x, p)"
    model = model_of(body, f"float[n, 6, {size}] x")
    assert kinds(model) == ["Mul"]
    x = np.ones((1, 6, size), np.float32)
    assert run(model, {"x": x})["y"][0, 0, 0] == np.float32(size**-0.5)


def test_a_size_that_nothing_tells_is_none() -> None:
    """A product of sizes is not mistaken for a number."""
    body = "s = Shape(x) n = Gather(s, i0) m = Mul(n, i3) w = Concat<axis = 0>(m, open) y = Reshape(x, w)"
    model = model_of(body)
    assert run(model, {"x": np.zeros((5, 6, 8), np.float32)})["y"].shape == (15, 16)
