"""Migration keeps the float function and evens out channels: on all architectures and on random graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import feed_of, float_models
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import parser
from zoo import ZOO, sample_feed
from zoo_networks import network_of, zoo_model, zoo_network

from benchmarks.nets import MODELS
from benchmarks.regressions.data import samples
from pytest_int8acc import ModelError
from pytest_int8acc.graph.load import load_model, normalize
from pytest_int8acc.graph.migrate import migrate, sites, weight_maxima
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.graph.network import Network
from pytest_int8acc.graph.plan import apply, with_outputs
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.tensors import Array, Feed


def by_chance(network: Network, seed: int = 0) -> Any:
    """Everything migrated by random factors, most of them between 1/8 and 8."""
    rng = np.random.default_rng(seed)
    wanted = sites(network)
    return migrate(network, {t: np.exp(rng.normal(size=s.channels)) for t, s in wanted.items()})


def assert_same_function(model: Model, moved: Network, feed: Feed) -> None:
    expected, found = OrtEngine(model)(feed), OrtEngine(moved.model)(feed)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        scale = float(np.abs(array).max()) or 1.0
        np.testing.assert_allclose(found[name] / scale, array / scale, atol=3e-5)


def assert_quantized_as_read(moved: Network) -> None:
    """Edges stand where their nodes read, and constants' integers are those of the new weights."""
    nodes = {node.name: node for node in moved.model.graph.node}
    constants = moved.model.constants()
    for group in moved.groups:
        for edge in group.edges:
            assert nodes[edge.node].input[edge.index] == edge.tensor
            if edge.quantization.values is not None:
                error = np.abs(edge.quantization.dequantize() - constants[edge.tensor])
                assert float(error.max()) <= float(edge.quantization.scale.max()) * 0.51


@pytest.mark.parametrize("name", ZOO)
def test_the_float_function_stays(name: str) -> None:
    model, network, feed = zoo_model(name), zoo_network(name), sample_feed(ZOO[name]())
    moved = by_chance(network)
    assert_same_function(model, moved.network, feed)
    assert_quantized_as_read(moved.network)
    assert [g.name for g in moved.network.groups] == [g.name for g in network.groups]
    assert len(moved.network.model.graph.node) == len(model.graph.node) + len(moved.inserted)
    OrtEngine(apply(moved.network))(feed)


@pytest.mark.parametrize(
    ("name", "count"), [("decoder", 11), ("encoder", 17), ("recognizer", 16), ("swin", 18)]
)
def test_the_float_function_of_exports_that_compute_shapes_stays(name: str, count: int) -> None:
    model = load_model(MODELS / f"{name}.onnx")
    network = network_of(model)
    assert len(sites(network)) == count
    moved = by_chance(network)
    assert_same_function(model, moved.network, samples(name, "calibration", 4))
    assert_quantized_as_read(moved.network)


@given(float_models(), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
def test_the_float_function_of_any_graph_stays(model: Model, seed: int) -> None:
    moved = by_chance(network_of(model), seed)
    assert_same_function(model, moved.network, feed_of(seed))
    assert_quantized_as_read(moved.network)


def model_of(body: str, constants: str, width: int = 4) -> Model:
    graph = f"g (float[N, {width}] x) => (float[N, {width}] y) <{constants}> {{ {body} }}"
    return normalize(make_model(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{graph}')))


SQUARE = "float[4, 4] {} = {{1,2,3,4, 5,6,7,8, 9,10,11,12, 13,14,15,17}}"
ROW = "float[4] {} = {{1,2,3,4}}"
ROWS = {"x": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)}
TWO = ", ".join([SQUARE.format("w"), SQUARE.format("v"), ROW.format("b")])


@pytest.mark.parametrize(
    ("body", "folded"),
    [
        ("t = MatMul(x, v) u = Add(t, b) r = Relu(u) y = MatMul(r, w)", "MatMul"),
        ("t = Gemm<transB = 1>(x, v, b) r = LeakyRelu(t) y = Gemm(r, w, b)", "Gemm"),
        ("t = Gemm(x, v, b) n = BatchNormalization(t, b, b, b, b) y = Gemm(n, w)", "BatchNormalization"),
        ("n = LayerNormalization(x, b, b) y = MatMul(n, w)", "LayerNormalization"),
        ("t = Mul(x, b) y = MatMul(t, w)", "Mul"),
        ("t = Div(x, b) y = MatMul(t, w)", "Div"),
        (
            "n = LayerNormalization(x, b) p = MatMul(n, w) q = MatMul(n, v) y = Add(p, q)",
            "LayerNormalization",
        ),
    ],
)
def test_factors_are_folded_into_what_makes_the_activation(body: str, folded: str) -> None:
    model = model_of(body, TWO)
    network = network_of(model)
    tensor = [g for g in network.groups if g.edges][-1].edges[0].tensor
    moved = migrate(network, {tensor: np.array([8, 1, 0.25, 3])})
    nodes = {node.name: node.op_type for node in moved.network.model.graph.node}
    assert [nodes[name] for name in moved.folded] == [folded]
    assert moved.inserted == ()
    assert tensor in moved.touched
    assert_same_function(model, moved.network, ROWS)


@pytest.mark.parametrize(
    "body",
    [
        "y = MatMul(x, w)",  # nothing makes it
        "t = Sigmoid(x) y = MatMul(t, w)",  # does not commute with factors
        "t = Mul(x, b) u = MatMul(t, w) y = Add(t, u)",  # another reader
        "t = Add(x, x) y = MatMul(t, w)",  # no constant in it
    ],
)
def test_a_mul_is_inserted_where_nothing_takes_the_factors(body: str) -> None:
    model = model_of(body, TWO)
    network = network_of(model)
    tensor = network.groups[-1].edges[0].tensor
    moved = migrate(network, {tensor: np.array([8, 1, 0.25, 3])})
    assert len(moved.inserted) == 1
    assert moved.folded == ()
    assert_same_function(model, moved.network, ROWS)


def test_a_constant_that_others_read_is_not_changed_for_them() -> None:
    model = model_of("t = MatMul(x, w) r = Relu(t) u = MatMul(r, w) y = MatMul(u, w)", SQUARE.format("w"))
    moved = by_chance(network_of(model))
    assert_same_function(model, moved.network, {"x": np.eye(4, dtype=np.float32)})


HEADS = "int64[4] heads = {0, -1, 2, 2}, int64[3] flat = {0, -1, 4}, float h = {0.5}"
ATTENTION = """
    q = MatMul(x, w) qb = Add(q, b) qh = Reshape(qb, heads) qt = Transpose<perm = [0, 2, 1, 3]>(qh)
    k = MatMul(x, v) kh = Reshape(k, heads) kt = Transpose<perm = [0, 2, 3, 1]>(kh)
    n = MatMul(x, v) nh = Reshape(n, heads) nt = Transpose<perm = [0, 2, 1, 3]>(nh)
    s = MatMul(qt, kt) m = Mul(s, h) p = Softmax(m) a = MatMul(p, nt)
    at = Transpose<perm = [0, 2, 1, 3]>(a) o = Reshape(at, flat) y = MatMul(o, w)
"""
TOKENS = {"x": np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)}


def tokens(body: str, constants: str = "") -> Model:
    held = ", ".join(filter(None, [TWO, HEADS, constants]))
    graph = f"g (float[N, 3, 4] x) => (float[N, 3, 4] y) <{held}> {{ {body} }}"
    return normalize(make_model(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{graph}')))


def test_a_query_is_evened_out_against_its_key_and_both_projections_take_it() -> None:
    model = tokens(ATTENTION)
    network = network_of(model)
    site = sites(network)["qt"]
    assert (site.partner, site.channels, site.heads, site.seen) == ("kt", 4, 2, ("qb", "k"))
    factors = np.array([8, 0.25, 2, 1])
    moved = migrate(network, {"qt": factors})
    makers = [next(n.output[0] for n in model.graph.node if n.name == name) for name in moved.folded]
    assert (makers, moved.inserted) == (["q", "k"], ())
    assert set(moved.touched) == {"qt", "kt"}
    assert_same_function(model, moved.network, TOKENS)
    run = OrtEngine(with_outputs(moved.network.model, ["qt", "kt"]))(TOKENS)
    own = OrtEngine(with_outputs(model, ["qt", "kt"]))(TOKENS)
    np.testing.assert_allclose(run["qt"] * factors.reshape(2, 1, 2), own["qt"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run["kt"] / factors.reshape(2, 2, 1), own["kt"], rtol=1e-5, atol=1e-6)


def test_what_a_projection_reads_behind_attention_is_taken_by_the_values() -> None:
    model = tokens(ATTENTION)
    moved = migrate(network_of(model), {"o": np.array([8, 1, 0.25, 3])})
    (maker,) = moved.folded
    assert next(n.output[0] for n in model.graph.node if n.name == maker) == "n"
    assert moved.inserted == ()
    assert {"o", "nt"} <= set(moved.touched)
    assert_same_function(model, moved.network, TOKENS)


def test_a_query_that_others_read_too_gets_a_mul() -> None:
    model = tokens(
        ATTENTION.replace("s = MatMul", "u = Sigmoid(qt) ut = Transpose<perm = [0, 2, 1, 3]>(u) s = MatMul")
        .replace("o = Reshape(at, flat)", "au = Add(at, ut) o = Reshape(au, flat)")
    )  # fmt: skip
    network = network_of(model)
    site = sites(network)["qt"]
    assert (site.heads, site.channels) == (1, 2), "what a head holds is not seen"
    moved = migrate(network, {"qt": np.array([8, 0.25])})
    assert len(moved.inserted) == 1, "the key's projection takes its part"
    assert_same_function(model, moved.network, TOKENS)


#: Query, key and value by one product, taken apart as timm's and PyTorch's layers are exported.
FUSED = """f = MatMul(x, qkv) fb = Add(f, qkvb) {} kt = Transpose<perm = [0, 1, 3, 2]>(kh)
    s = MatMul(qh, kt) p = Softmax(s) a = MatMul(p, nh) at = Transpose<perm = [0, 2, 1, 3]>(a)
    o = Reshape(at, flat) y = MatMul(o, w)"""
FIVE = "r = Reshape(fb, five) t = Transpose<perm = [2, 0, 3, 1, 4]>(r)"
SQUEEZED = " qh = Squeeze(q, i0) kh = Squeeze(k, i0) nh = Squeeze(n, i0)"
PARTS = {
    "split": f"{FIVE} q, k, n = Split<axis = 0>(t, ones) {SQUEEZED}",
    "slice": f"{FIVE} q = Slice(t, i0, i1, i0) k = Slice(t, i1, i2, i0) n = Slice(t, i2, i9, i0) {SQUEEZED}",
    "gather": f"{FIVE} qh = Gather(t, c0) kh = Gather(t, c1) nh = Gather(t, c2)",
    "unsqueezed": """r = Reshape(fb, thirds) u = Unsqueeze(r, i0) z = Transpose<perm = [3, 1, 2, 0, 4]>(u)
        t = Squeeze(z, i3) q = Gather(t, c0) k = Gather(t, c1) n = Gather(t, c2)
        qr = Reshape(q, heads) kr = Reshape(k, heads) vr = Reshape(n, heads)
        qh = Transpose<perm = [0, 2, 1, 3]>(qr) kh = Transpose<perm = [0, 2, 1, 3]>(kr)
        nh = Transpose<perm = [0, 2, 1, 3]>(vr)""",
    "chunk": """q, k, n = Split<axis = -1>(fb, fours)
        qr = Reshape(q, heads) kr = Reshape(k, heads) vr = Reshape(n, heads)
        qh = Transpose<perm = [0, 2, 1, 3]>(qr) kh = Transpose<perm = [0, 2, 1, 3]>(kr)
        nh = Transpose<perm = [0, 2, 1, 3]>(vr)""",
}
NUMBERS = {
    "five": [-1, 3, 3, 2, 2],
    "thirds": [-1, 3, 3, 4],
    "ones": [1, 1, 1],
    "fours": [4, 4, 4],
    **{f"i{number}": [number] for number in (0, 1, 2, 3, 9)},
}


def constants_of_fused() -> str:
    rng = np.random.default_rng(3)
    floats = [
        f"float[{shape}] {name} = {{{', '.join(f'{x:.3f}' for x in rng.normal(size=size))}}}"
        for name, shape, size in (("qkv", "4, 12", 48), ("qkvb", "12", 12))
    ]
    lists = [f"int64[{len(held)}] {name} = {{{', '.join(map(str, held))}}}" for name, held in NUMBERS.items()]
    scalars = [f"int64 c{number} = {{{number}}}" for number in range(3)]
    return ", ".join([*floats, *lists, *scalars])


def fused(form: str) -> Model:
    return tokens(FUSED.format(PARTS[form]), constants_of_fused())


@pytest.mark.parametrize("form", PARTS)
def test_query_key_and_value_of_one_product_take_their_own_factors(form: str) -> None:
    model = fused(form)
    network = network_of(model)
    found = sites(network)
    moved = migrate(network, {"qh": by_place(found["qh"].channels), "o": np.array([8, 1, 0.25, 3])})
    assert moved.inserted == ()
    assert {"qh", "kt", "nh", "o"} <= set(moved.touched)
    assert_same_function(model, moved.network, TOKENS)
    assert_quantized_as_read(moved.network)
    seen = ["qh", "kt", "nh"]
    run, own = (OrtEngine(with_outputs(m, seen))(TOKENS) for m in (moved.network.model, model))
    assert all(not np.allclose(run[name], own[name]) for name in seen)


def by_place(count: int) -> Array:
    return 2.0 ** np.arange(1, count + 1)


@pytest.mark.parametrize(
    "more", ["Sigmoid(t)", "Slice(t, i1, i9, i0)", "Gather(t, i1)"], ids=["whole", "twice", "many"]
)
def test_parts_that_others_read_too_get_a_mul(more: str) -> None:
    """What reads all of it, a part of it again, or more than one place, would see the factors."""
    body = f"{PARTS['gather']} e = {more} ee = ReduceSum<keepdims = 0>(e)"
    model = tokens(
        FUSED.format(body).replace("y = MatMul(o, w)", "yy = MatMul(o, w) y = Add(yy, ee)"),
        constants_of_fused(),
    )
    network = network_of(model)
    moved = migrate(network, {"qh": by_place(sites(network)["qh"].channels)})
    assert moved.inserted
    assert_same_function(model, moved.network, TOKENS)


@pytest.mark.parametrize(
    "body",
    [
        "t = MatMul(x, v) s = Sigmoid(x) g = Mul(t, s) y = MatMul(g, w)",  # gated
        "t = MatMul(x, v) e = Erf(t) m = Mul(t, e) g = Mul(m, h) y = MatMul(g, w)",  # as of GELU
        "t = MatMul(x, v) r = Reshape(t, flat) y = MatMul(r, w)",  # the last axis stays
    ],
)
def test_factors_pass_products_and_shapes(body: str) -> None:
    model = tokens(body)
    network = network_of(model)
    tensor = network.groups[-1].edges[0].tensor
    moved = migrate(network, {tensor: np.array([8, 1, 0.25, 3])})
    assert moved.inserted == ()
    assert_same_function(model, moved.network, TOKENS)


def test_what_no_weights_read_has_no_site() -> None:
    model = model_of(
        "t = MatMul(x, w) s = Transpose(t) u = MatMul(s, t) y = MatMul(x, u)", SQUARE.format("w")
    )
    network = network_of(model)
    assert "t" not in sites(network), "it is only the second operand of a product"
    with pytest.raises(ModelError, match="nothing reads 't' that its channels can be moved to"):
        migrate(network, {"t": np.ones(4)})


def test_depthwise_and_grouped_weights_are_read_by_their_channels() -> None:
    for name in ("mobilenet", "grouped"):
        network = zoo_network(name)
        constants = network.model.constants()
        nodes = {node.name: node for node in network.model.graph.node}
        for site in sites(network).values():
            node = nodes[site.readers[0]]
            weight = constants[node.input[1]]
            if node.op_type != "Conv" or len(site.readers) > 1:
                continue
            groups = site.channels // weight.shape[1]
            per = weight.shape[0] // groups
            expected = [
                np.abs(weight[g * per : (g + 1) * per, i]).max()
                for g in range(groups)
                for i in range(weight.shape[1])
            ]
            np.testing.assert_array_equal(weight_maxima(network, site), np.array(expected, np.float32))
