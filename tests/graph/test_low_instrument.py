"""Every choice of groups in one model of FP16 or BF16 computes what the typed model of that choice does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser
from zoo import ZOO, sample_feed
from zoo_networks import zoo_model

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks.half.networks import NETWORKS, inputs  # noqa: E402
from benchmarks.half.networks import build as network_of  # noqa: E402
from benchmarks.half.parts import FAULTS, HEALTHY  # noqa: E402
from pytest_int8acc.graph.formats import FORMATS  # noqa: E402
from pytest_int8acc.graph.half import to_fp16  # noqa: E402
from pytest_int8acc.graph.half_network import low_network  # noqa: E402
from pytest_int8acc.graph.instrument import build_instrument  # noqa: E402
from pytest_int8acc.graph.load import normalize  # noqa: E402
from pytest_int8acc.graph.model import Model, make_model  # noqa: E402
from pytest_int8acc.graph.network import Plan  # noqa: E402
from pytest_int8acc.graph.plan import fp32_nodes  # noqa: E402
from pytest_int8acc.runtime.onnxruntime import OrtEngine  # noqa: E402
from pytest_int8acc.tensors import Feed  # noqa: E402

LOW = pytest.mark.parametrize("low", [FORMATS["fp16"], FORMATS["bf16"]], ids=lambda low: low.name)


def both(model: Model, low: Any, feed: Feed, plans: int = 4) -> Iterator[tuple[Feed, Feed]]:
    """Outputs of the switched and of the typed model: all in the format, none, and some by chance."""
    network = low_network(model, low)
    instrument = build_instrument(network)
    switched, rng = OrtEngine(instrument.model, level="none"), np.random.default_rng(0)
    for i in range(plans):
        narrow = rng.random(len(instrument.controls.groups)) < (1.0, 0.0, 0.5, 0.1, 0.9)[min(i, 4)]
        high = {name: "fp32" for name, on in zip(instrument.controls.groups, narrow, strict=True) if not on}
        typed = to_fp16(network.model, fp32_nodes(network, Plan(high)), low).model
        yield (
            switched({**feed, **instrument.controls.setting(high).inputs}),
            OrtEngine(typed, level="none")(feed),
        )


def assert_equal(model: Model, low: Any, feed: Feed, plans: int = 4) -> None:
    for switched, typed in both(model, low, feed, plans):
        assert list(switched) == list(typed)
        for name, values in typed.items():
            np.testing.assert_array_equal(switched[name], values)


@LOW
@pytest.mark.parametrize("name", ZOO)
def test_each_choice_is_the_typed_model(name: str, low: Any) -> None:
    assert_equal(zoo_model(name), low, sample_feed(ZOO[name](), 0))


@LOW
@pytest.mark.parametrize("part", [*FAULTS, *HEALTHY])
def test_what_overflows_or_vanishes_does_so_in_both(part: str, low: Any) -> None:
    parts = {**FAULTS, **HEALTHY}
    network = list(NETWORKS)[list(parts).index(part) % len(NETWORKS)]
    assert_equal(network_of(network, parts[part]), low, {"x": inputs(network)}, plans=5)


def test_bounds_shared_constants_and_what_reads_its_own_group_through_another() -> None:
    body = """
        a = Exp(x) b = Clip(a, low, high) c = Tanh(b) d = Concat<axis = 1>(b, c)
        f = MatMul(d, table) g = MatMul(x, table_top) h = Add(f, g)
        i, j = Split<axis = 1>(h, sizes) y = Mul(i, j)
    """
    constants = (
        "<float low = {0.3333333}, float high = {7.77777}, int64[2] sizes = {2, 2},"
        f" float[8, 4] table = {{{', '.join(str(0.1 * i) for i in range(32))}}},"
        f" float[4, 4] table_top = {{{', '.join(str(0.3 * i) for i in range(16))}}}>"
    )
    head = '<ir_version: 8, opset_import: ["": 18]> g (float[n, 4] x) => (float[n, 2] y)'
    text = f"{head} {constants} {{ {body} }}"
    feed = {"x": np.linspace(-3, 3, 16, dtype=np.float32).reshape(4, 4)}
    for low in (FORMATS["fp16"], FORMATS["bf16"]):
        assert_equal(normalize(make_model(parser.parse_model(text))), low, feed, plans=12)
