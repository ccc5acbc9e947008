"""TensorRT's own parser and builder take our Q/DQ and FP16 models, on a machine without a GPU."""

from __future__ import annotations

import pytest
from rtx import build_all
from zoo import ZOO

from pytest_int8acc.graph.formats import FP8
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.layout import find_groups, quantize
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import make_model
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.graph.opsets import QDQ_OPSET, raise_opset
from pytest_int8acc.graph.plan import apply, fp32_nodes


@pytest.mark.rtx
@pytest.mark.parametrize("form", ["int8-fp32", "int8-fp16", "mixed"])
def test_tensorrt_builds(form: str) -> None:
    """Each model of the zoo with Q/DQ in FP32, the same in FP16, and mixed FP16, FP32 and INT8."""
    models = {}
    for name, make in ZOO.items():
        model = normalize(make_model(make()))
        layout = find_groups(model)
        network = quantize(model, layout, dict.fromkeys(layout.activations, 4 / 127))
        names = [group.name for group in network.groups]
        plan = Plan({names[0]: "fp16"} | ({names[-1]: "fp32"} if len(names) > 1 else {}))
        if form == "int8-fp32":
            made = apply(network)
        elif form == "int8-fp16":
            made = to_fp16(apply(network)).model
        else:
            made = to_fp16(apply(network, plan), fp32_nodes(network, plan)).model
        models[name] = made.serialize()
    assert {name: error for name, error in build_all(models).items() if error is not None} == {}


def in_fp8(name: str) -> bytes:
    """A model of the zoo with Q/DQ in FP8, the rest in FP16."""
    model = normalize(raise_opset(normalize(make_model(ZOO[name]())), QDQ_OPSET))
    layout = find_groups(model, low=FP8)
    network = quantize(model, layout, dict.fromkeys(layout.activations, 4 / 448), FP8)
    return to_fp16(apply(network)).model.serialize()


@pytest.mark.rtx
@pytest.mark.parametrize("gpu", ["SM89", "SM120"])
def test_tensorrt_builds_fp8(gpu: str) -> None:
    found = build_all({name: in_fp8(name) for name in ZOO}, capability=gpu)
    assert {name: error for name, error in found.items() if error is not None} == {}


@pytest.mark.rtx
def test_a_gpu_before_ada_is_refused() -> None:
    found = build_all({"plain": in_fp8("plain")}, capability="SM75")
    assert "fp8" in str(found["plain"]).lower()
