"""The error made in a layer is told from the error passed on to it, on networks of every kind."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from zoo import ZOO, sample_feed

from pytest_int8acc.data import Dataset, open_dataset
from pytest_int8acc.diagnose import layers
from pytest_int8acc.diagnose.layers import layer_errors
from pytest_int8acc.engines.onnxruntime import OrtEngine
from pytest_int8acc.graph.groups import find_groups
from pytest_int8acc.graph.load import load_model, normalize
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.graph.network import Network, Plan
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.graph.qdq import read_qdq
from pytest_int8acc.graph.quantize import quantize
from pytest_int8acc.graph.to_fp16 import to_fp16
from pytest_int8acc.lab.board import as_it_runs
from pytest_int8acc.scales.calibrate import calibrate
from pytest_int8acc.scores.metrics import sqnr_db
from pytest_int8acc.scores.sums import errors
from pytest_int8acc.tensors import Feed

DIGITS = Path(__file__).parents[2] / "example_project"


def sqnr_of(baseline: np.ndarray, candidate: np.ndarray) -> float:
    return sqnr_db(errors(baseline, candidate, len(baseline), full=False))


def digits(factor: float, tensor: str) -> tuple[Network, Dataset]:
    model = load_model(DIGITS / "digits.onnx")
    layout = find_groups(model)
    data = open_dataset("calibration.npz", model.inputs, base=DIGITS / "data", samples=64)
    scales = dict(calibrate(model, layout.activations, data, method="minmax").values)
    scales[tensor] *= factor
    return quantize(model, layout, scales), data


def test_error_made_and_error_passed_on() -> None:
    network, data = digits(60, "/block1/relu1/Relu_output_0")
    errors = {line.layer: line for line in layer_errors(as_it_runs(network, "fp16")[1], data)}
    assert list(errors) == [group.name for group in network.groups]
    guilty = errors["/block1/conv2/Conv"]
    assert guilty.alone_sqnr_db < 15
    assert guilty.sqnr_db < 15
    after = errors["/block1/Add"]
    assert after.sqnr_db < 20
    assert after.alone_sqnr_db > 30
    before = errors["/block1/conv1/Conv"]
    assert before.sqnr_db > 30
    assert min(errors.values(), key=lambda line: line.alone_sqnr_db) is guilty
    assert all(line.alone_sqnr_db >= line.sqnr_db - 3 for line in errors.values())


@pytest.mark.parametrize("rest", ["fp16", "fp32"])
def test_numbers_are_those_of_models_built_one_by_one(rest: str) -> None:
    network, data = digits(20, "/block2/relu1/Relu_output_0")
    errors = {line.layer: line for line in layer_errors(as_it_runs(network, rest)[1], data)}  # type: ignore[arg-type]
    names = [group.name for group in network.groups]
    feed = {"image": next(iter(data.batches())).feed["image"][:8]}

    def run(plan: Plan, tensor: str) -> np.ndarray:
        model = apply(network, plan)
        if rest == "fp16":
            model = to_fp16(model).model
        edit = model.edit()
        edit.graph.node.append(helper.make_node("Cast", [tensor], ["watched"], to=TensorProto.FLOAT))
        edit.graph.output.append(helper.make_tensor_value_info("watched", TensorProto.FLOAT, None))
        return OrtEngine(edit.done())(feed)["watched"]

    for name in ("/block2/conv2/Conv", "/head/Gemm"):
        tensor = next(n.output[0] for n in network.model.graph.node if n.name == name)
        high = run(Plan(dict.fromkeys(names, "fp16")), tensor)
        everything = run(Plan(), tensor)
        alone = run(Plan(dict.fromkeys([n for n in names if n != name], "fp16")), tensor)
        line = errors[name]
        assert line.sqnr_db == pytest.approx(sqnr_of(high, everything), abs=0.2)
        assert line.alone_sqnr_db == pytest.approx(sqnr_of(high, alone), abs=0.2)


@pytest.mark.parametrize(
    "name", ["residual", "mobilenet", "inception", "yolo", "vit_erf", "silu", "weight_path"]
)
def test_every_group_of_the_zoo_has_its_line(name: str, tmp_path: Path) -> None:
    proto = ZOO[name]()
    model = normalize(make_model(proto))
    feeds = [sample_feed(proto, seed, 2) for seed in range(4)]
    np.savez(tmp_path / "data.npz", **{k: np.concatenate([f[k] for f in feeds]) for k in feeds[0]})
    data = open_dataset("data.npz", model.inputs, base=tmp_path)
    layout = find_groups(model)
    network = quantize(model, layout, calibrate(model, layout.activations, data, method="minmax").values)
    lines = layer_errors(as_it_runs(network, "fp16")[1], data, samples=4)
    assert [line.layer for line in lines] == [group.name for group in network.groups]
    assert [line.op_type for line in lines] == [group.op_type for group in network.groups]
    for line in lines:
        assert 10 < line.sqnr_db < 80
        assert 15 < line.alone_sqnr_db < 80
        assert 0.9 < line.cosine <= 1
        assert 0.99 < line.alone_cosine <= 1
    assert sum(line.alone_sqnr_db - line.sqnr_db for line in lines) > 0


def test_large_layers_are_compared_one_sample_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    network, data = digits(1, "image")
    seen, run, rows = as_it_runs(network, "fp16")[1], OrtEngine.__call__, list[int]()
    whole = layer_errors(seen, data, samples=4)

    def noting(engine: OrtEngine, feed: Feed) -> Feed:
        rows.append(len(feed["image"]))
        return run(engine, feed)

    monkeypatch.setattr(OrtEngine, "__call__", noting)
    monkeypatch.setattr(layers, "CHUNK_BYTES", 1)
    monkeypatch.setattr(layers, "_BYTES", 1)
    for line, other in zip(layer_errors(seen, data), whole, strict=True):
        assert (line.sqnr_db, line.alone_sqnr_db) == pytest.approx((other.sqnr_db, other.alone_sqnr_db))
    assert rows == [1] * 8  # four samples, by two models


def test_groups_of_a_qdq_model() -> None:
    model = load_model(DIGITS / "digits.onnx")
    network = read_qdq(load_model(DIGITS / "digits.qdq.onnx"), model)
    data = open_dataset("validation.npz", model.inputs, base=DIGITS / "data")
    lines = layer_errors(as_it_runs(network, "fp16")[1], data)
    assert len(lines) == len(network.groups)
    assert all(math.isfinite(line.sqnr_db) or line.sqnr_db == math.inf for line in lines)
    assert sum(line.alone_sqnr_db < 60 for line in lines) > len(lines) // 2


def test_nothing_of_the_model_is_changed() -> None:
    network, data = digits(1, "image")
    before = network.model.proto.SerializeToString()
    layer_errors(as_it_runs(network, "fp16")[1], data, samples=2)
    assert network.model.proto.SerializeToString() == before
    assert isinstance(network.model, Model)
    onnx.checker.check_model(onnx.load(DIGITS / "digits.onnx"))
