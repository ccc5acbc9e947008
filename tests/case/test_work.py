"""The share of a model's work that runs in INT8, in every result; hardly any is a warning."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper, parser

from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.macs import inferred_shapes, unsized, work
from pytest_int8acc.graph.model import Model, make_model

GRU = """
<ir_version: 8, opset_import: ["" : 14]>
voice (float[N, {length}, 8] audio) => (float[N, L, 4] out) {{
    wide = MatMul(audio, first)
    turned = Transpose<perm = [1, 0, 2]>(wide)
    states, last = GRU<hidden_size = 64>(turned, w, r)
    one = Squeeze(states, axes)
    back = Transpose<perm = [1, 0, 2]>(one)
    out = MatMul(back, second)
}}
"""
LOOP = """
<ir_version: 8, opset_import: ["" : 13]>
looped (float[N, 4, 8] x) => (float[N, 4, 8] y) {{
    start = MatMul(x, first)
    y = {node}
}}
"""
BODY = (
    "(int64 i, bool go, float[1, 4, 8] s) => (bool on, float[1, 4, 8] t) "
    "{ t = MatMul(s, w) on = Identity(go) }"
)


def model(text: str, **shapes: tuple[int, ...]) -> Model:
    proto = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        weight = (rng.normal(size=shape) / shape[-1] ** 0.5).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(weight, name))
    for name, value in (("axes", np.array([1])), ("five", np.array(5)), ("yes", np.array(True))):
        proto.graph.initializer.append(numpy_helper.from_array(value, name))
    for place, node in enumerate(proto.graph.node):
        node.name = f"{node.op_type}_{place}"
    return normalize(make_model(proto))


@pytest.mark.parametrize(
    ("node", "inside"),
    [
        (f"Loop(five, yes, start) <body = body {BODY}>", 5 * 4 * 8 * 8),
        (f"Loop(, yes, start) <body = body {BODY}>", 4 * 8 * 8),
        (
            "If(yes) <then_branch = a () => (float[1, 4, 8] p) { p = MatMul(start, w) }, "
            "else_branch = b () => (float[1, 4, 8] q) { q = Identity(start) }>",
            4 * 8 * 8,
        ),
    ],
)
def test_bodies_count(node: str, inside: int) -> None:
    looped = model(LOOP.format(node=node), first=(8, 8), w=(8, 8))
    shapes = inferred_shapes(looped, {"x": (1, 4, 8)})
    assert unsized(looped, shapes) == []
    assert sum(work(looped, shapes).values()) == 4 * 8 * 8 + inside


def test_what_a_body_hides_counts_its_weights_once() -> None:
    body = BODY.replace("float[1, 4, 8]", "float[A, B, C]")
    looped = model(LOOP.format(node=f"Loop(five, yes, start) <body = body {body}>"), first=(8, 8), w=(8, 8))
    shapes = {name: shape for name, shape in inferred_shapes(looped, {"x": (1, 4, 8)}).items() if name != "t"}
    assert sum(work(looped, shapes).values()) == 4 * 8 * 8 + 5 * 8 * 8
