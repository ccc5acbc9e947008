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


@pytest.fixture(scope="module")
def built() -> dict[str, str | None]:
    """Error (or None) of each zoo model: Q/DQ in FP32, the same in FP16, and mixed FP16, FP32 and INT8."""
    models = {}
    for name, make in ZOO.items():
        model = normalize(make_model(make()))
        layout = find_groups(model)
        network = quantize(model, layout, dict.fromkeys(layout.activations, 4 / 127))
        names = [group.name for group in network.groups]
        plan = Plan({names[0]: "fp16"} | ({names[-1]: "fp32"} if len(names) > 1 else {}))
        models[f"{name}-int8-fp32"] = apply(network).serialize()
        models[f"{name}-int8-fp16"] = to_fp16(apply(network)).model.serialize()
        mixed = to_fp16(apply(network, plan), fp32_nodes(network, plan))
        models[f"{name}-mixed"] = mixed.model.serialize()
    return build_all(models)


@pytest.mark.rtx
@pytest.mark.parametrize("form", ["int8-fp32", "int8-fp16", "mixed"])
@pytest.mark.parametrize("name", ZOO)
def test_tensorrt_builds(built: dict[str, str | None], name: str, form: str) -> None:
    assert built[f"{name}-{form}"] is None


@pytest.fixture(scope="module")
def built_in_fp8() -> dict[tuple[str, str], str | None]:
    """Error (or None) of each zoo model in FP8 and FP16, by GPU and name."""
    models = {}
    for name, make in ZOO.items():
        model = normalize(raise_opset(normalize(make_model(make())), QDQ_OPSET))
        layout = find_groups(model, low=FP8)
        network = quantize(model, layout, dict.fromkeys(layout.activations, 4 / 448), FP8)
        models[name] = to_fp16(apply(network)).model.serialize()
    gpus = ("SM75", "SM89", "SM120")
    wanted = {gpu: models if gpu != "SM75" else {"plain": models["plain"]} for gpu in gpus}
    found = {gpu: build_all(models, capability=gpu) for gpu, models in wanted.items()}
    return {(gpu, name): error for gpu, errors in found.items() for name, error in errors.items()}


@pytest.mark.rtx
@pytest.mark.parametrize("gpu", ["SM89", "SM120"])
@pytest.mark.parametrize("name", ZOO)
def test_tensorrt_builds_fp8(built_in_fp8: dict[tuple[str, str], str | None], name: str, gpu: str) -> None:
    assert built_in_fp8[gpu, name] is None


@pytest.mark.rtx
def test_a_gpu_before_ada_is_refused(built_in_fp8: dict[tuple[str, str], str | None]) -> None:
    assert "fp8" in str(built_in_fp8["SM75", "plain"]).lower()
