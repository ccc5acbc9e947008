"""The precision contract on real engines: what ran in another format than the one asked for is red.

Run on a machine with an NVIDIA GPU and TensorRT:

    pip install -e '.[cpu,tensorrt,dev]' && pytest -m gpu -s
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from gpu_support import UNTRAINED, cases, needs_gpu_below_11, outcome, pytest_run, tactics, wide
from onnx import TensorProto, helper, numpy_helper

from benchmarks.builder import Builder
from benchmarks.greens import quantize
from pytest_int8acc.graph.model import Model, save_model

pytestmark = needs_gpu_below_11

#: By what a tensor inside the broken networks is larger, and its reader's weights are smaller.
BEYOND_FP16 = 1e7
OBEY = "tensorrt: {tactic_sources: [], optimization_level: 1, obey: true}\n"


def convolutions(factor: float = 1.0) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Three convolutions of 64 channels; what the second gives is ``factor`` times as large."""
    rng, nodes, weights, name = np.random.default_rng(0), [], [], "x"
    for place, (cin, size) in enumerate([(3, 1.0), (64, factor), (64, 1 / factor)]):
        weight = rng.normal(size=(64, cin, 3, 3)) * (size * (2 / (9 * cin)) ** 0.5)
        weights.append(numpy_helper.from_array(weight.astype(np.float32), f"w{place}"))
        nodes.append(
            helper.make_node("Conv", [name, f"w{place}"], [f"c{place}"], f"conv{place}", pads=[1] * 4)
        )
        nodes.append(helper.make_node("Relu", [f"c{place}"], [f"r{place}"], f"relu{place}"))
        name = f"r{place}"
    return _model(nodes, weights, [3, 32, 32], name, [64, 32, 32]), {"x": _normal(64, 3, 32, 32)}


def attention(factor: float = 1.0) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """One head over 32 tokens, whose values are ``factor`` times as large."""
    rng, nodes = np.random.default_rng(1), list[onnx.NodeProto]()
    sizes = {"query": 1.0, "key": 1.0, "value": factor, "out": 1 / factor}
    weights = [
        numpy_helper.from_array((rng.normal(size=(64, 64)) / 8 * size).astype(np.float32), f"{name}.weight")
        for name, size in sizes.items()
    ]
    for name in ("query", "key", "value"):
        nodes.append(helper.make_node("MatMul", ["x", f"{name}.weight"], [name], f"{name}/MatMul"))
    nodes.append(helper.make_node("Transpose", ["key"], ["turned"], "turn", perm=[0, 2, 1]))
    nodes.append(helper.make_node("MatMul", ["query", "turned"], ["scores"], "scores/MatMul"))
    nodes.append(helper.make_node("Softmax", ["scores"], ["shares"], "softmax", axis=-1))
    nodes.append(helper.make_node("MatMul", ["shares", "value"], ["mixed"], "mixed/MatMul"))
    nodes.append(helper.make_node("MatMul", ["mixed", "out.weight"], ["y"], "out/MatMul"))
    return _model(nodes, weights, [32, 64], "y", [32, 64]), {"x": _normal(64, 32, 64)}


def norm(factor: float = 1.0) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Products around a norm in parts, whose squares are ``factor`` times as large."""
    rng, root = np.random.default_rng(2), factor**0.5
    weights = [
        numpy_helper.from_array((rng.normal(size=shape) / 8 * size).astype(np.float32), name)
        for name, shape, size in (("w", (64, 256), root), ("v", (256, 64), 1.0))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        helper.make_node("Mul", ["h", "h"], ["squares"], "squares"),
        helper.make_node("ReduceMean", ["squares"], ["mean"], "mean", axes=[1], keepdims=1),
        helper.make_node("Sqrt", ["mean"], ["root"], "root"),
        helper.make_node("Div", ["h", "root"], ["normed"], "normed"),
        helper.make_node("MatMul", ["normed", "v"], ["y"], "second"),
    ]
    return _model(nodes, weights, [64], "y", [64]), {"x": _normal(64, 64)}


def _model(
    nodes: list[onnx.NodeProto],
    weights: list[onnx.TensorProto],
    given: list[int],
    output: str,
    made: list[int],
) -> onnx.ModelProto:
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", *shape])
        for name, shape in (("x", given), (output, made))
    ]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


NETWORKS = {"convolutions": convolutions, "attention": attention, "norm": norm}


def put(
    folder: Path, name: str, made: tuple[onnx.ModelProto | Model, dict[str, np.ndarray]], *specs: str
) -> None:
    """Write a model, its data and a spec of it for each of ``specs``, which bear its name and a number."""
    model, feed = made
    if isinstance(model, Model):
        save_model(model, folder / f"{name}.onnx")
    else:
        onnx.save(model, folder / f"{name}.onnx")
    np.savez(folder / f"{name}.npz", **feed)
    head = f"model: {name}.onnx\ninputs: {name}.npz\nbatch: 32\ncriteria: [{{sqnr_db: 20}}]\n{UNTRAINED}"
    for place, spec in enumerate(specs):
        (folder / f"{name}-{place}.int8acc.yaml").write_text(head + spec, encoding="utf-8")


def said(case: dict[str, Any]) -> str:
    """The case's contract, in a line for the log."""
    contract = case["precision"]
    shares = {key: round(contract[key], 3) for key in ("proven", "refuted", "untold")}
    return (
        f"{case['name']}: {case['verdict']}; {contract['text']}; {shares}; identical {contract['identical']}"
    )


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """Healthy and broken networks in FP16, by flags at level 0 and 1, and with precisions obeyed."""
    folder = tmp_path_factory.mktemp("halves")
    for name, make in NETWORKS.items():
        specs = [f"candidate: fp16\n{end}" for end in (tactics(0), tactics(1), OBEY)]
        put(folder, f"{name}-broken", make(BEYOND_FP16), *specs)
        put(folder, f"{name}-healthy", make(), *specs)
    options = ("-vv", "--int8acc-report", "out", "--int8acc-search", "off")
    printed = pytest_run(folder, *options, store=folder / "store")
    found = cases(folder)
    print(*map(said, found.values()), sep="\n")
    return printed, found


def test_fp16_that_ran_in_fp32_is_red_and_says_so(halves: tuple[str, dict[str, Any]]) -> None:
    """Whatever tactics were taken: no broken network passes in silence, and what is refuted is red."""
    printed, found = halves
    for name, case in found.items():
        contract = case["precision"]
        assert contract["asked"] == {"fp16": pytest.approx(1)}, name
        assert contract["proven"] + contract["refuted"] + contract["untold"] == pytest.approx(1), name
        if contract["refuted"] > 0.15:
            assert case["verdict"] == "failed", name
            assert "of the MACs asked for in FP16" in case["message"], name
        if "broken" in name and case["verdict"] == "passed":
            assert contract["untold"] > 0.5, name
            assert f"PASSED {name}.int8acc.yaml::{name} - " in printed
            line = next(line for line in printed.splitlines() if f"::{name} - " in line)
            assert "the engine does not tell the format of" in line
    refuted = [case for case in found.values() if case["precision"]["refuted"] > 0.15]
    assert refuted, "on an H100, TensorRT 8.6 took FP32 for the norm in parts"
    assert "tensorrt: {obey: true}" in printed


def test_with_obey_what_fp16_breaks_fails_by_its_scores(halves: tuple[str, dict[str, Any]]) -> None:
    _, found = halves
    for name in NETWORKS:
        broken, healthy = found[f"{name}-broken-2"], found[f"{name}-healthy-2"]
        assert broken["verdict"] == "failed", name
        assert broken["precision"]["refuted"] <= 0.15, name
        values = [float(score["value"]) for score in broken["scores"] if score["metric"] == "sqnr_db"]
        assert all(math.isnan(value) or value < 20 for value in values), name
        assert healthy["verdict"] == "passed", name
        assert not healthy["precision"]["identical"], name


def quantized(name: str) -> tuple[onnx.ModelProto, onnx.ModelProto, dict[str, np.ndarray]]:
    """A network, its Q/DQ model of which TensorRT cannot run a layer in INT8, and inputs."""
    feed = {"x": _normal(64, 3, 32, 32)}
    b = Builder(name, (3, 32, 32), seed=7)
    x = b.conv_relu("x", 3, 96, label="first")
    if name == "grouped":  # three channels a group
        model = b.model(b.head(b.conv_relu(x, 96, 96, group=32, label="second"), 96))
        return _proto(model), quantize.quantized(_proto(model), feed), feed
    y = b.node("Mul", x, b.const(np.array(37.0, np.float32)), label="louder")
    joined = b.node("Concat", x, y, label="join", axis=1)  # of two scales: no code stands for both
    model = b.model(b.conv_relu(joined, 192, 96, label="second"))
    low = quantize.quantized(_proto(model), feed, ops=["Concat"])
    return _proto(model), quantize.quantized(low, feed, only=["second"], activations=False), feed


def _proto(model: Model) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(model.serialize())


def test_int8_that_was_built_in_fp16_is_red(tmp_path: Path) -> None:
    """Q/DQ where TensorRT has no INT8 kernel; implicit INT8, whose tactics are TensorRT's own choice."""
    implicit = "int8: {implicit: {calibrate: {algorithm: minmax}}}\n" + tactics(0)
    feed = {"x": _normal(64, 3, 32, 32)}
    put(tmp_path, "implicit", (wide(3), feed), implicit, f"{implicit}realized: require\n")
    for name in ("grouped", "joined"):
        model, low, feed = quantized(name)
        put(tmp_path, name, (model, feed), f"int8: {{model: {name}.qdq.onnx}}\n" + tactics(1))
        onnx.save(low, tmp_path / f"{name}.qdq.onnx")
    options = ("-vv", "--int8acc-report", "out", "--int8acc-search", "off", "-o", "int8acc_lint=warn")
    printed = pytest_run(tmp_path, *options, store=tmp_path / "store")
    found = cases(tmp_path)
    print(*map(said, found.values()), sep="\n")
    assert found["implicit-0"]["verdict"] == "passed"
    required = found["implicit-1"]
    assert (required["verdict"] == "failed") == (required["precision"]["refuted"] > 0.15)
    assert "'realized: warn'" in printed
    for case in found.values():
        if case["precision"]["refuted"] > 0.15 and case["name"] != "implicit-0":
            assert case["verdict"] == "failed"
            assert "of the MACs asked for in INT8" in case["message"]
    explicit = {name: found[f"{name}-0"] for name in ("grouped", "joined") if f"{name}-0" in found}
    assert any(case["verdict"] == "failed" for case in explicit.values()), explicit.keys()


@pytest.mark.parametrize("name", ["convolutions", "wide"])
def test_five_rebuilds_have_one_verdict(tmp_path: Path, name: str) -> None:
    """Nothing is kept, so that each engine is built and timed anew."""
    made = convolutions() if name == "convolutions" else (wide(3), {"x": _normal(64, 3, 32, 32)})
    half, int8 = "candidate: fp16\n" + tactics(1), "int8: {calibrate: {method: minmax}}\n" + tactics(1)
    put(tmp_path, name, made, *[half, int8] * 5)
    options = ("-vv", "--int8acc-report", "out", "--int8acc-search", "off")
    printed = pytest_run(tmp_path, *options)
    found = cases(tmp_path)
    print(*map(said, found.values()), sep="\n")
    assert sum(outcome(printed).values()) == 10
    verdicts = {case["name"]: case["verdict"] for case in found.values()}
    assert len({verdicts[f"{name}-{place}"] for place in range(0, 10, 2)}) == 1, verdicts
    assert {verdicts[f"{name}-{place}"] for place in range(1, 10, 2)} == {"passed"}, verdicts
    assert not any(engine["stored"] for case in found.values() for engine in case["engines"])
