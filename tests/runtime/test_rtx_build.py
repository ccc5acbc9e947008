"""TensorRT's own parser and builder take our Q/DQ and FP16 models, on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from rtx import build_all
from zoo import ZOO

from pytest_int8acc.graph.formats import FORMATS
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.layout import find_groups, quantize
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import make_model
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.graph.opsets import raise_opset
from pytest_int8acc.graph.plan import apply, fp32_nodes


@pytest.mark.rtx
def test_tensorrt_builds() -> None:
    """Each model of the zoo with Q/DQ in FP16, and in turn FP16 alone, Q/DQ in FP32, or all three."""
    models = {}
    for number, (name, make) in enumerate(ZOO.items()):
        model = normalize(make_model(make()))
        layout = find_groups(model)
        network = quantize(model, layout, dict.fromkeys(layout.activations, 4 / 127))
        names = [group.name for group in network.groups]
        plan = Plan({names[0]: "fp16"} | ({names[-1]: "fp32"} if len(names) > 1 else {}))
        models[f"{name} in INT8 and FP16"] = to_fp16(apply(network)).model.serialize()
        mixed = to_fp16(apply(network, plan), fp32_nodes(network, plan)).model
        others = to_fp16(model).model, apply(network), mixed
        models[f"{name}, another"] = others[number % 3].serialize()
    assert {name: error for name, error in build_all(models).items() if error is not None} == {}


def in_fp8(name: str) -> bytes:
    """A model of the zoo with Q/DQ in FP8, the rest in FP16."""
    model = normalize(raise_opset(normalize(make_model(ZOO[name]())), 19))
    layout = find_groups(model, low=FORMATS["fp8"])
    network = quantize(model, layout, dict.fromkeys(layout.activations, 4 / 448), FORMATS["fp8"])
    return to_fp16(apply(network)).model.serialize()


@pytest.mark.rtx
@pytest.mark.parametrize(("gpu", "names"), [("SM89", ZOO), ("SM120", ["residual", "mobilenet", "vit_erf"])])
def test_tensorrt_builds_fp8(gpu: str, names: Iterable[str]) -> None:
    found = build_all({name: in_fp8(name) for name in names}, capability=gpu)
    assert {name: error for name, error in found.items() if error is not None} == {}


@pytest.mark.rtx
def test_a_gpu_before_ada_is_refused() -> None:
    found = build_all({"plain": in_fp8("plain")}, capability="SM75")
    assert "fp8" in str(found["plain"]).lower()
