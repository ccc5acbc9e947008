"""What the graph is said to tell of activations is so when it runs."""

from __future__ import annotations

import numpy as np
import pytest
from written_networks import model
from zoo import ZOO, sample_feed
from zoo_networks import zoo_model

from pytest_int8acc.graph.flow import not_negative, shown_at
from pytest_int8acc.graph.layout import channel_axes, mixing
from pytest_int8acc.graph.model import Model
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.tensors import Array, Feed


def model_of(body: str, shape: str = "N, 4, 6, 6") -> Model:
    constants = (
        "<float zero = {0}, float six = {6}, float minus = {-1}, float[4, 4, 1, 1] one = {"
        + ", ".join(["1"] * 16)
        + "}>"
    )
    return model(f"g (float[{shape}] x) => (float[{shape}] y) {constants} {{ {body} }}")


def showing(model: Model, feed: Feed) -> dict[str, Array]:
    """Every float tensor of the main graph in one run."""
    edit, values = model.edit(), model.values()
    infos = {v.name: v for v in model.edit().graph.value_info}
    own = {v.name for v in edit.graph.output}
    edit.graph.output.extend(
        infos[n] for n in model.index.producer if n in infos and n not in own and values[n].dtype == np.single
    )
    return OrtEngine(edit.done())(feed)


@pytest.mark.parametrize("name", sorted(ZOO))
def test_what_is_never_negative_is_not(name: str) -> None:
    model = zoo_model(name)
    found, floored = showing(model, sample_feed(model)), not_negative(model)
    assert all((found[tensor] >= 0).all() for tensor in floored & found.keys())


@pytest.mark.parametrize(
    ("body", "floored"),
    [
        ("y = Relu(x)", True),
        ("y = Clip(x, zero, six)", True),
        ("y = Clip(x, minus, six)", False),
        ("y = Clip(x)", False),
        ("a = Relu(x)\n y = Add(a, a)", True),
        ("a = Relu(x)\n y = Add(a, x)", False),
        ("a = Relu(x)\n y = Sub(a, a)", False),
        ("y = MaxPool<kernel_shape = [1, 1]>(x)", False),
    ],
)
def test_signs(body: str, floored: bool) -> None:
    assert ("y" in not_negative(model_of(body))) is floored


def floats(model: Model) -> list[str]:
    return [info.name for info in model.outputs if info.dtype == np.float32]


@pytest.mark.parametrize("name", sorted(ZOO))
def test_nan_in_what_shows_at_outputs_shows_there(name: str) -> None:
    """At every place of the inputs, a few of them tried."""
    model = zoo_model(name)
    shown, engine = shown_at(model, floats(model)), OrtEngine(model)
    feed, rng = sample_feed(model), np.random.default_rng(0)
    for info in model.inputs:
        if info.name not in shown or info.dtype != np.float32:
            continue
        for place in rng.integers(feed[info.name].size, size=8):
            broken = feed[info.name].copy()
            broken.flat[place] = np.nan
            outputs = engine({**feed, info.name: broken})
            assert any(np.isnan(array).any() for array in outputs.values() if array.dtype.kind == "f")


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("y = Conv(x, one)", True),
        ("y = Conv<strides = [2, 2]>(x, one)", False),
        ("y = Conv<strides = [2, 2], kernel_shape = [1, 1], pads = [1, 1, 1, 1]>(x, one)", False),
        ("y = MaxPool<kernel_shape = [2, 2]>(x)", False),
        ("a = Conv(x, one)\n b = MaxPool<kernel_shape = [2, 2]>(a)\n y = Add(x, zero)", True),
    ],
)
def test_where_nan_may_be_passed_over(body: str, shown: bool) -> None:
    assert ("x" in shown_at(model_of(body), ["y"])) is shown


def test_channels_are_those_of_the_reader_with_weights() -> None:
    model = model_of("a = Relu(x)\n b = Sigmoid(a)\n c = Conv(a, one)\n y = Add(b, c)")
    assert channel_axes(model, ["x", "a", "y"]) == {"x": (1, 4), "a": (1, 4)}


def test_channels_behind_a_computed_shape_and_of_attentions_values() -> None:
    """As PyTorch exports unflatten."""
    reshaped = model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[n, 6, 8] x) => (float[n, 6, 8] y)
        <int64[1] at = {5}, int64[1] rank = {3}, int64[1] zero = {0}, int64[2] parts = {2, 4}> {
            shape = Shape(x)
            place = Mod(at, rank)
            first = Slice(shape, zero, place)
            wide = Concat<axis = 0>(first, parts)
            split = Reshape(x, wide)
            heads = Transpose<perm = [0, 2, 1, 3]>(split)
            keys = Transpose<perm = [0, 2, 3, 1]>(split)
            scores = MatMul(heads, keys)
            weights = Softmax<axis = -1>(scores)
            mixed = MatMul(weights, heads)
            back = Transpose<perm = [0, 2, 1, 3]>(mixed)
            y = Reshape(back, shape)
        }""",
        named=True,
    )
    assert mixing(reshaped) == {"mixed"}
    assert channel_axes(reshaped, ["keys", "weights"]) == {"keys": (2, 4), "weights": (3, 4)}
    values = model_of("a = Softmax(x)\n b = Relu(x)\n y = MatMul(a, b)")
    assert channel_axes(values, ["b"]) == {"b": (3, 4)}
    scores = model_of("a = Relu(x)\n b = Relu(x)\n y = MatMul(a, b)")
    assert channel_axes(scores, ["b"]) == {"b": (2, 4)}
