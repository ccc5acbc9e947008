"""Norms in parts, however they are written, and what looks like one and is none."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
from onnx import parser
from zoo import need_opset_23

from pytest_int8acc import ModelError
from pytest_int8acc.graph.formats import FORMATS
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.half_network import fused, low_network
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.graph.norms import find_norms, fuse_norms
from pytest_int8acc.graph.plan import fp32_nodes
from pytest_int8acc.lab.board import Board
from pytest_int8acc.runtime.onnxruntime import CPU, OrtEngine

CONSTANTS = (
    "<float e = {0.00001}, float two = {2.0}, float one = {1.0}, float half = {0.5}, float minus = {-0.5},"
    " float[8] s = {1,2,3,4,5,6,7,8}, float[1,1,8] t = {1,2,3,4,5,6,7,8}, float[8] b = {8,7,6,5,4,3,2,1},"
    " float[4,1] column = {1,2,3,4}, int64[1] last = {-1}, int64[1] third = {2}, int64[2] both = {1,2}>"
)
AXES = {"[-1]": "last", "[2]": "third", "[-2, -1]": "both"}
MEAN = "m = ReduceMean<axes=[-1]>(x) c = Sub(x, m) "
SPREAD = "q = Pow(c, two) v = ReduceMean<axes=[-1]>(q) w = Add(v, e) r = Sqrt(w) "
RMS = SPREAD.replace("Pow(c, two)", "Mul(x, x)")
TAIL = " z = Mul(n, s) y = Add(z, b)"
NORMS = {
    "as PyTorch writes it": MEAN + SPREAD + "n = Div(c, r)" + TAIL,
    "without scale and bias": MEAN + SPREAD + "y = Div(c, r)",
    "a scale alone, of more axes": MEAN + SPREAD + "n = Div(c, r) y = Mul(t, n)",
    "a bias alone": MEAN + SPREAD + "n = Div(c, r) y = Add(b, n)",
    "squares as products": MEAN + SPREAD.replace("Pow(c, two)", "Mul(c, c)") + "n = Div(c, r)" + TAIL,
    "a reciprocal": MEAN + SPREAD + "i = Reciprocal(r) n = Mul(c, i)" + TAIL,
    "one over the root": MEAN + SPREAD + "i = Div(one, r) n = Mul(i, c)" + TAIL,
    "powers for roots": MEAN + SPREAD.replace("Sqrt(w)", "Pow(w, half)") + "n = Div(c, r)" + TAIL,
    "one power": MEAN + SPREAD.replace("Sqrt(w)", "Pow(w, minus)") + "n = Mul(c, r)" + TAIL,
    "epsilon first": MEAN + SPREAD.replace("Add(v, e)", "Add(e, v)") + "n = Div(c, r)" + TAIL,
    "centred twice": MEAN + SPREAD + "d = Sub(x, m) n = Div(d, r)" + TAIL,
    "axes from the front": (MEAN + SPREAD).replace("[-1]", "[2]") + "n = Div(c, r)" + TAIL,
    "two axes": (MEAN + SPREAD).replace("[-1]", "[-2, -1]") + "y = Div(c, r)",
    "a scale of other axes stays": MEAN + SPREAD + "n = Div(c, r) y = Mul(n, column)",
    "RMSNorm": RMS + "n = Div(x, r) y = Mul(n, s)",
    "RMSNorm as T5 has it": RMS + "i = Reciprocal(r) n = Mul(x, i) y = Mul(s, n)",
    "RMSNorm, and a bias that stays": RMS + "n = Div(x, r)" + TAIL,
}
OTHERS = {
    "over the first axes": (MEAN + SPREAD).replace("[-1]", "[1]") + "y = Div(c, r)",
    "another mean is taken off": MEAN.replace("[-1]", "[1]") + SPREAD + "n = Div(x, r)" + TAIL,
    "the spread of something else": MEAN + SPREAD + "y = Div(x, r)",
    "epsilon is computed": MEAN + SPREAD.replace("(v, e)", "(v, m)") + "y = Div(c, r)",
    "no epsilon": MEAN + SPREAD.replace("w = Add(v, e) r = Sqrt(w)", "r = Sqrt(v)") + "y = Div(c, r)",
    "a cube": MEAN + SPREAD.replace("Pow(c, two)", "Pow(c, e)") + "y = Div(c, r)",
    "upside down": MEAN + SPREAD + "y = Div(r, c)",
}


def model_of(body: str, opset: int = 17, result: str = "y", width: str = "8") -> Model:
    for axes, name in AXES.items() if opset >= 18 else ():
        body = re.sub(rf"<axes={re.escape(axes)}>\((\w)\)", rf"(\1, {name})", body)
    head = f'<ir_version: 8, opset_import: ["": {opset}]>'
    text = f"{head} g (float[2, 4, {width}] x) => (float[2, 4, {width}] {result}) {CONSTANTS} {{ {body} }}"
    return normalize(make_model(parser.parse_model(text)))


def feed(size: float = 1.0) -> dict[str, np.ndarray]:
    return {"x": (np.random.default_rng(0).normal(0.3, size, (2, 4, 8))).astype(np.float32)}


@pytest.mark.parametrize("opset", [13, 17, 18])
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_in_parts_becomes_one_node_of_the_same_values(name: str, opset: int) -> None:
    model = model_of(NORMS[name], opset)
    (norm,) = find_norms(model)
    made = fuse_norms(model, [norm])
    kinds = Counter(node.op_type for node in made.graph.node)
    rms = "RMS" in name
    if rms:
        need_opset_23()
    assert kinds.pop("RMSNormalization" if rms else "LayerNormalization") == 1
    assert kinds.total() == ("stays" in name)
    assert made.opset >= (23 if rms else 17)
    (one,) = (node for node in made.graph.node if node.op_type.endswith("Normalization"))
    assert one.name == norm
    np.testing.assert_allclose(OrtEngine(made)(feed())["y"], OrtEngine(model)(feed())["y"], atol=1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_looks_like_one_is_left(name: str) -> None:
    assert not find_norms(model_of(OTHERS[name]))


def test_a_size_that_nobody_tells_is_left() -> None:
    body = MEAN + SPREAD + "y = Div(c, r)"
    assert not find_norms(model_of(body, width="n"))
    assert find_norms(model_of(MEAN + SPREAD + "n = Div(c, r) y = Mul(n, s)", width="n"))


def test_what_others_read_of_it_stays() -> None:
    body = MEAN + SPREAD + "n = Div(c, r) z = Mul(n, s) o = Add(z, b) y = Add(o, v)"
    model = model_of(body)
    made = fuse_norms(model, find_norms(model))
    left = [node.op_type for node in made.graph.node]
    assert Counter(left) == Counter(["ReduceMean", "Sub", "Pow", "ReduceMean", "LayerNormalization", "Add"])
    np.testing.assert_allclose(OrtEngine(made)(feed())["y"], OrtEngine(model)(feed())["y"], atol=1e-5)


def test_two_norms_are_fused_one_by_one() -> None:
    need_opset_23()
    second = NORMS["RMSNorm"].replace("(x", "(y").replace(" x)", " y)")
    for name in "qvwrn":
        second = second.replace(f"{name} =", f"{name}2 =").replace(f"({name}", f"({name}2")
    second = second.replace(", r)", ", r2)").replace("y = Mul", "o = Mul").replace("Mul(y, x)", "Mul(y, y)")
    model = model_of(NORMS["as PyTorch writes it"] + " " + second, result="o")
    first, last = find_norms(model)
    assert [n.op_type for n in fuse_norms(model, [first]).graph.node].count("LayerNormalization") == 1
    both = fuse_norms(model, [first, last])
    assert [n.op_type for n in both.graph.node] == ["LayerNormalization", "RMSNormalization"]
    np.testing.assert_allclose(OrtEngine(both)(feed())["o"], OrtEngine(model)(feed())["o"], atol=1e-4)


def test_a_name_that_ends_no_norm_is_told() -> None:
    with pytest.raises(ModelError, match="'node_of_z' ends no norm that could be one node"):
        fuse_norms(model_of(NORMS["as PyTorch writes it"]), ["node_of_z"])


@pytest.mark.parametrize("name", ["as PyTorch writes it", "RMSNorm, and a bias that stays"])
@pytest.mark.parametrize("low", [FORMATS["fp16"], FORMATS["bf16"]])
def test_the_board_computes_what_the_typed_model_does(name: str, low) -> None:
    if "RMS" in name:
        need_opset_23()
    network = low_network(model_of(NORMS[name] + " o = Mul(y, x)", result="o"), low)
    made = fused(network, find_norms(network.model))
    board = Board(made, "fp32", CPU)
    names = [group.name for group in made.groups]
    for kept in ((), names[:1], names[1:], names):
        typed = to_fp16(made.model, fp32_nodes(made, Plan(dict.fromkeys(kept, "fp32"))), low).model
        for size in (1.0, 500.0):  # squares that FP16 does not hold
            (switched,) = board.run(feed(size), board.setting(kept)).values()
            np.testing.assert_array_equal(switched, OrtEngine(typed)(feed(size))["o"])
            assert np.isfinite(switched).all()
