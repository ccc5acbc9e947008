"""Q/DQ goes where TensorRT wants it: one test per rule."""

from __future__ import annotations

import numpy as np
import pytest
from written_networks import model
from zoo_networks import zoo_model

from pytest_int8acc import ModelError
from pytest_int8acc.graph.layout import find_groups, quantize, quantize_weight
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import LeftHigh
from pytest_int8acc.graph.plan import apply


def model_of(body: str, opset: int = 17, **weights: tuple[int, ...]) -> Model:
    """A model from ONNX text; ``weights`` are random initializers by shape."""
    text = f'<ir_version: 8, opset_import: ["": {opset}]>\n{body}'
    return model(text, {name: {"shape": shape} for name, shape in weights.items()})


RESIDUAL = """
    g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
        a = Conv<pads=[1, 1, 1, 1]>(x, w1, b1)
        r = Relu(a)
        c = Conv<pads=[1, 1, 1, 1]>(r, w2)
        s = Add(x, c)
        y = Relu(s)
    }
"""


def slots(model: Model, exclude: tuple[str, ...] = ()) -> dict[str, list[tuple[int, str]]]:
    layout = find_groups(model, exclude)
    return {name: [(s.index, s.tensor) for s in group] for name, group in layout.slots.items()}


def test_both_inputs_of_a_convolution_but_not_its_bias_nor_its_output() -> None:
    found = slots(model_of(RESIDUAL, w1=(4, 4, 3, 3), w2=(4, 4, 3, 3), b1=(4,)))
    assert found["node_of_a"] == [(0, "x"), (1, "w1")]
    assert found["node_of_s"] == [(0, "x")], "the residual input of the Add"
    quantized = {tensor for group in found.values() for _, tensor in group}
    assert "b1" not in quantized
    assert "c" not in quantized, "the convolution before the Add keeps a float output, so that both fuse"


def test_of_two_convolutions_into_an_add_the_later_one_fuses() -> None:
    model = model_of(
        """g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
            short = Conv(x, w1)
            main = Conv(x, w2)
            y = Add(main, short)
        }""",
        w1=(4, 4, 1, 1),
        w2=(4, 4, 1, 1),
    )
    assert slots(model)["node_of_y"] == [(1, "short")]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("a = Conv(x, w)  y = Add(a, bias)", "a constant is no residual"),
        ("a = Conv(x, w)  t = ReduceMean<axes=[2, 3]>(x)  y = Add(a, t)", "a broadcast is no residual"),
        ("r = Relu(x)  y = Add(r, x)", "no convolution fuses with it"),
        ("a = Conv(x, w)  r = Relu(a)  y = Add(r, x)", "the Relu stands between"),
        (
            "a = Conv(x, w)  r = Relu(a)  s = Add(a, x)  y = Mul(s, r)",
            "the convolution's result is read elsewhere",
        ),
    ],
)
def test_adds_left_alone(body: str, why: str) -> None:
    text = f"g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {{ {body} z = Conv(x, w) }}"
    found = slots(model_of(text, w=(4, 4, 1, 1), bias=(1, 4, 8, 8)))
    assert not any(name.startswith("node_of_y") or name.endswith("_s") for name in found), why


@pytest.mark.parametrize(
    ("node", "shape", "axis"),
    [
        ("Conv(x, w)", (8, 4, 1, 1), 0),
        ("ConvTranspose(x, w)", (4, 8, 1, 1), 1),
        ("ConvTranspose<group=2>(x, w)", (8, 4, 1, 1), None),
        ("MatMul(x, w)", (8, 6), 1),
        ("MatMul(w, x)", (6, 8), 0),
        ("MatMul(x, w)", (1, 1, 8, 6), None),
    ],
)
def test_channel_axis_of_weights(node: str, shape: tuple[int, ...], axis: int | None) -> None:
    channels = 8 if "group" in node else 4
    model = model_of(f"g (float[1, {channels}, 8, 8] x) => (float[a, b, c, d] y) {{ y = {node} }}", w=shape)
    (group,) = find_groups(model).slots.values()
    assert [s.axis for s in group if s.constant] == [axis]


@pytest.mark.parametrize(("transposed", "axis"), [(0, 1), (1, 0)])
def test_channel_axis_of_gemm(transposed: int, axis: int) -> None:
    shape = (5, 8) if transposed else (8, 5)
    text = f"g (float[2, 8] x) => (float[2, 5] y) {{ y = Gemm<transB={transposed}>(x, w) }}"
    (group,) = find_groups(model_of(text, w=shape)).slots.values()
    assert [s.axis for s in group if s.constant] == [axis]


def test_matmul_of_two_activations_quantizes_both() -> None:
    model = model_of(
        "g (float[1, 8, 8] x) => (float[1, 8, 8] y) { t = Transpose<perm=[0, 2, 1]>(x) y = MatMul(x, t) }"
    )
    assert slots(model) == {"node_of_y": [(0, "x"), (1, "t")]}


@pytest.mark.parametrize(
    ("group", "shape", "fits"),
    [(4, (4, 1, 3, 3), True), (2, (8, 4, 3, 3), True), (2, (6, 3, 3, 3), False), (4, (8, 1, 3, 3), True)],
)
def test_grouped_convolution_needs_multiples_of_four(group: int, shape: tuple[int, ...], fits: bool) -> None:
    channels = shape[1] * group
    text = f"""g (float[1, {channels}, 8, 8] x) => (float[a, b, c, d] y) {{
        t = Conv<group={group}, pads=[1, 1, 1, 1]>(x, w)
        y = Conv(t, v)
    }}"""
    layout = find_groups(model_of(text, w=shape, v=(4, shape[0], 1, 1)))
    assert ("node_of_t" in layout.slots) is fits
    if not fits:
        assert layout.left_high["node_of_t"].kind == "odd-channels"


def test_concat_shares_the_scale_of_what_is_quantized_around_it() -> None:
    model = zoo_model("inception")
    layout = find_groups(model)
    (shared,) = layout.shared
    scales = {tensor: 0.01 * (i + 1) for i, tensor in enumerate(layout.activations)}
    network = quantize(model, layout, scales)
    used = {float(e.quantization.scale) for g in network.groups for e in g.edges if e.tensor in shared}
    assert len(shared) > 1
    assert used == {np.float32(max(scales[t] for t in shared))}


def test_group_without_a_scale_stays_high_and_says_so() -> None:
    model = model_of(RESIDUAL, w1=(4, 4, 3, 3), w2=(4, 4, 3, 3), b1=(4,))
    network = quantize(model, find_groups(model), {"x": 0.1})
    assert [g.name for g in network.groups] == ["node_of_a", "node_of_s"]
    assert network.left_high == {"node_of_c": LeftHigh("no-scale", ("r",))}


def test_exclude_takes_patterns_and_refuses_what_matches_nothing() -> None:
    model = model_of(RESIDUAL, w1=(4, 4, 3, 3), w2=(4, 4, 3, 3), b1=(4,))
    assert "node_of_a" not in slots(model, ("*_of_a",))
    assert find_groups(model, ("*_of_a",)).left_high["node_of_a"].text == "excluded by '*_of_a'"
    with pytest.raises(ModelError, match=r"'exclude' pattern 'node_of_d' matches no node \(did you mean"):
        find_groups(model, ("node_of_d",))


def test_weight_scales_are_positive_for_empty_channels_and_exact_at_the_extremes() -> None:
    weight = np.array([[0.0, 0.0], [-2.0, 1.0], [1e-40, 0.0]], np.float32)
    found = quantize_weight(weight, 0)
    assert (found.scale > 0).all()
    assert found.values is not None
    np.testing.assert_array_equal(found.values[1], [-127, 64])
    np.testing.assert_array_equal(found.values[0], [0, 0])


def test_nan_in_a_weight_names_it() -> None:
    model = model_of("g (float[2, 4] x) => (float[2, 3] y) { y = MatMul(x, w) }", w=(4, 3))
    weight = model.constants()["w"].copy()
    weight[0, 0] = np.nan
    editor = model.edit()
    del editor.graph.initializer[:]
    from pytest_int8acc.graph.model import put_constant

    put_constant(editor.graph.initializer.add(), "w", weight, editor.weights)
    broken = editor.done()
    with pytest.raises(ModelError, match="weight 'w' of 'node_of_y' holds nan or inf"):
        quantize(broken, find_groups(broken), {"x": 0.1})


def test_every_reader_has_a_pair_of_its_own() -> None:
    model = model_of(RESIDUAL, w1=(4, 4, 3, 3), w2=(4, 4, 3, 3), b1=(4,))
    written = apply(quantize(model, find_groups(model), {"x": 0.1, "r": 0.1}))
    quantizers = [n for n in written.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == "x"]
    assert len(quantizers) == 2  # the convolution's and the Add's
    for node in written.graph.node:
        if node.op_type == "DequantizeLinear":
            assert sum(node.output[0] in n.input for n in written.graph.node) == 1
