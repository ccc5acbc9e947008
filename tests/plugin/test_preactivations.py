"""Noise that a Softmax or Sigmoid hides is told, with the criterion that judges it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from fake_backends import WrongBackend
from onnx import TensorProto, helper, numpy_helper
from plugin_support import LOAD
from written_networks import network

HEAD = '<ir_version: 8, opset_import: ["": 17]> net (float[N, 16] x) => (float[N, 8] probs)'
LAYERS = "h = MatMul(x, w1)  r = Relu(h)  m = MatMul(r, w2)  logits = Add(m, bias)"
#: Operators at the end that hide errors of 'logits'.
ENDS = {
    "sigmoid": "probs = Sigmoid(logits)",
    "softmax": "probs = Softmax<axis = -1>(logits)",
    "logsoftmax": "probs = LogSoftmax<axis = -1>(logits)",
    "reshaped": "s = Sigmoid(logits)  t = Reshape(s, flat)  u = Transpose<perm = [1, 0]>(t)  "
    "v = Transpose<perm = [1, 0]>(u)  probs = Identity(v)",
}


def project(
    folder: Path, end: str, *, noise: float = 1.0, bias: float = 0.0, gain: float = 0.15, **said: Any
) -> None:
    """Two layers and an operator that hides errors.

    One hidden channel is ``noise`` times as large as the others, and contributes no more than they do. So
    with one scale for all channels the others get a step that is ``noise`` times as coarse.
    """
    rng = np.random.default_rng(0)
    wide, narrow = rng.normal(size=(16, 32)), rng.normal(size=(32, 8)) * gain
    wide[:, 0] *= noise
    narrow[0] /= noise
    weights = {"w1": wide, "w2": narrow, "bias": np.full(8, bias)}
    arrays = {name: array.astype(np.float32) for name, array in weights.items()}
    if "flat" in end:
        arrays["flat"] = np.array([-1, 8])
    proto = network(f"{HEAD} {{ {LAYERS} {end} }}", arrays, named=False)
    for place, node in enumerate(proto.graph.node):
        node.name = f"{node.op_type}_{place}"
    onnx.save(proto, folder / "model.onnx")
    np.savez(folder / "x.npz", x=rng.normal(size=(64, 16)).astype(np.float32))
    spec = {
        "model": "model.onnx",
        "inputs": "x.npz",
        "accept_blind": "an untrained network and random inputs",
        **({} if "candidate" in said else {"int8": {"calibrate": {"data": "x.npz"}}}),
        **said,
    }
    (folder / "case.int8acc.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))


def run_all(pytester: pytest.Pytester, *options: str) -> tuple[dict[str, dict[str, Any]], str]:
    """Cases of report.json by the folder of their spec, and what pytest printed, in one line."""
    args = (*LOAD, "--int8acc", "--int8acc-search=off", "--int8acc-report=out", *options)
    text = pytester.runpytest(*args).stdout.str()
    cases = json.loads((pytester.path / "out/report.json").read_text(encoding="utf-8"))["cases"]
    return {case["nodeid"].rpartition("/")[0]: case for case in cases}, " ".join(text.split())


def run(pytester: pytest.Pytester, *options: str) -> tuple[dict[str, Any], str]:
    """The only case of report.json, and what pytest printed, in one line."""
    cases, text = run_all(pytester, *options)
    return cases[""], text


#: For each end a spec that passes, and options of a project in which 'logits' has less than 20 dB.
HIDDEN: dict[str, dict[str, Any]] = {
    "sigmoid": {"noise": 300, "bias": -3.0, "criteria": [{"output": "probs", "max_abs": 0.5}]},
    "softmax": {"noise": 300, "criteria": [{"output": "probs", "kl": 1.0}]},
    "logsoftmax": {"noise": 300, "criteria": [{"output": "probs", "max_abs": 9}]},
    "reshaped": {"noise": 300, "bias": -3.0, "criteria": [{"output": "probs", "max_abs": 0.5}]},
}


def test_noise_that_the_last_operator_hides_is_told(pytester: pytest.Pytester) -> None:
    for end, body in ENDS.items():
        project(pytester.mkdir(end), body, **HIDDEN[end])
    cases, text = run_all(pytester, "-vv")
    values = {}
    for end, case in cases.items():
        assert case["verdict"] == "passed"
        (output,) = case["outputs"]
        found = output["preactivation"]
        (score,) = found["scores"]
        assert (found["tensor"], found["fails"]) == ("logits", "tensor")
        assert (score["metric"], score["limit"]) == ("sqnr_db", 20)
        assert score["value"] < 20
        hides = f"the {found['operator']} that gives 'probs' may hide errors of its input"
        assert f"{hides}: 'logits' sqnr_db" in text
        values[end] = score["value"]
    assert len(re.findall(r"logits sqnr_db \d", text)) >= len(ENDS)
    criterion, *_ = re.findall(r"add to 'criteria:' (\{.*?\})", text)
    for end in ENDS:
        path = pytester.path / end / "case.int8acc.yaml"
        spec = yaml.safe_load(path.read_text())
        spec["criteria"].append(yaml.safe_load(criterion))
        path.write_text(yaml.safe_dump(spec, sort_keys=False))
    cases, text = run_all(pytester)
    for end, case in cases.items():
        assert case["verdict"] == "failed"
        (missed,) = [s for s in case["scores"] if s["limit"] is not None and s["margin"] < 0]
        assert missed["value"] == pytest.approx(values[end])
    assert "hides errors" not in text


def test_a_good_model_has_no_caution(pytester: pytest.Pytester) -> None:
    for end, body in ENDS.items():
        project(pytester.mkdir(end), body, bias=-3.0)
        project(pytester.mkdir(f"{end}16"), body, bias=-3.0, candidate="fp16", baseline="fp32")
    project(pytester.mkdir("quantized"), ENDS["sigmoid"], bias=-3.0, int8={"model": "int8.onnx"})
    quantized(pytester.path / "quantized", logits=12.0)
    cases, text = run_all(pytester)
    assert len(cases) == 9
    for case in cases.values():
        assert case["verdict"] == "passed"
        assert case["outputs"][0]["preactivation"]["fails"] == ""
        assert case["outputs"][0]["preactivation"]["scores"][0]["value"] > 20
    assert "hides errors" not in text


def test_a_saturated_softmax_hides_what_its_input_shows(pytester: pytest.Pytester) -> None:
    """The logits are so far apart that all probabilities are 0 or 1. The output sets the limit."""
    criteria = [{"output": "probs", "sqnr_db": 40}]
    project(pytester.path, ENDS["softmax"], noise=10, gain=300.0, criteria=criteria)
    case, text = run(pytester, "-v")
    assert case["verdict"] == "passed"
    assert float(case["scores"][0]["value"]) > 100
    assert 20 < case["outputs"][0]["preactivation"]["scores"][0]["value"] < 40
    assert "add to 'criteria:' {tensor: 'logits', sqnr_db: 40}" in text
    project(pytester.path, ENDS["softmax"], noise=10, gain=300.0)
    case, text = run(pytester)
    assert case["verdict"] == "passed"
    assert "hides errors" not in text


NOT_TOLD: dict[str, dict[str, Any]] = {
    "order of classes": {"criteria": [{"output": "probs", "top1_agreement": 0.1}]},
    "unjudged": {"unjudged": ["probs"]},
    "metric": {"criteria": [{"metric": "../metric.py:zero", "min": 0}]},
    "native": {"criteria": [{"output": "probs", "max_abs": 1}], "onnxruntime": {"mode": "native"}},
    "bf16": {"candidate": "bf16", "baseline": "fp32"},
}


def test_where_nothing_is_told(pytester: pytest.Pytester) -> None:
    (pytester.path / "metric.py").write_text("def zero(outputs):\n    return 0.0\n")
    for name, said in NOT_TOLD.items():
        project(pytester.mkdir(name), ENDS["sigmoid"], noise=300, bias=-3.0, **said)
    cases, text = run_all(pytester)
    assert cases.keys() == NOT_TOLD.keys()
    for case in cases.values():
        assert case["outputs"][0]["preactivation"] is None
    assert "hides errors" not in text


def test_an_output_that_fails_hides_nothing(pytester: pytest.Pytester) -> None:
    project(pytester.path, ENDS["sigmoid"], noise=3000, bias=-3.0)
    case, text = run(pytester)
    assert case["verdict"] == "failed"
    assert case["outputs"][0]["preactivation"]["fails"] == "tensor"
    assert "hides errors" not in text


# --- models that are quantized already

NOISY_FILE = HIDDEN["sigmoid"] | {"noise": 60, "int8": {"model": "int8.onnx"}}


def quantized(folder: Path, *, logits: float, name: str = "logits") -> None:
    """The model of ``folder`` with Q/DQ in front of the operator at its end; the pair has amax ``logits``."""
    model = onnx.load(folder / "model.onnx")
    graph = model.graph
    data = np.load(folder / "x.npz")["x"]
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    hidden = np.maximum(data @ weights["w1"], 0)
    amax = {"x": np.abs(data).max(), "r": hidden.max(), "logits": logits}
    amax |= {name: np.abs(weights[name]).max() for name in ("w1", "w2")}
    pairs: dict[str, list[onnx.NodeProto]] = {}
    for tensor, most in amax.items():
        scale = numpy_helper.from_array(np.array(most / 127, np.float32), f"{tensor}_scale")
        zero = helper.make_tensor(f"{tensor}_zero", TensorProto.INT8, [], [0])
        graph.initializer.extend([scale, zero])
        ends = [f"{tensor}_scale", f"{tensor}_zero"]
        pairs[tensor] = [
            helper.make_node("QuantizeLinear", [tensor, *ends], [f"{tensor}_q"], f"{tensor}_Q"),
            helper.make_node("DequantizeLinear", [f"{tensor}_q", *ends], [f"{tensor}_dq"], f"{tensor}_DQ"),
        ]
    nodes = [*pairs["x"], *pairs["w1"], *pairs["w2"]]
    for node in graph.node:
        node.input[:] = [f"{tensor}_dq" if tensor in pairs else tensor for tensor in node.input]
        nodes.append(node)
        for tensor in node.output:
            nodes += pairs.get(tensor, [])
    for node in nodes:
        for names in (node.input, node.output):
            names[:] = [name if tensor == "logits" else tensor for tensor in names]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, folder / "int8.onnx")


def test_noise_before_a_pair_is_told(pytester: pytest.Pytester) -> None:
    """The Sigmoid reads a DequantizeLinear."""
    project(pytester.path, ENDS["sigmoid"], **NOISY_FILE)
    quantized(pytester.path, logits=12.0)
    case, text = run(pytester, "-v")
    assert case["verdict"] == "passed"
    assert case["outputs"][0]["preactivation"]["fails"] == "tensor"
    assert "add to 'criteria:' {tensor: 'logits', sqnr_db: 20}" in text


def test_what_the_pair_alone_does_is_told(pytester: pytest.Pytester) -> None:
    """The pair cuts logits off at -4, so that probabilities of 0.0003 become 0.02. No criterion sees that."""
    said = {"int8": {"model": "int8.onnx"}, "criteria": [{"output": "probs", "max_abs": 0.1}]}
    project(pytester.path, ENDS["sigmoid"], bias=-8.0, gain=0.02, **said)
    quantized(pytester.path, logits=4.0)
    case, text = run(pytester)
    assert case["verdict"] == "passed"
    assert case["outputs"][0]["preactivation"]["fails"] == "pair"
    assert "leave the input of node 'Sigmoid_4' unquantized" in text
    assert "add to 'criteria:'" not in text


def test_a_candidate_with_other_names_gets_no_criterion(pytester: pytest.Pytester) -> None:
    project(pytester.path, ENDS["sigmoid"], **NOISY_FILE)
    quantized(pytester.path, logits=12.0, name="/head/Add_output_0")
    case, text = run(pytester, "-v")
    assert case["outputs"][0]["preactivation"]["fails"] == "tensor"
    assert "the candidate has no tensor of this name" in text
    assert "add to 'criteria:'" not in text


# --- elsewhere


def test_on_engines_the_simulation_is_compared(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engines get no further outputs."""
    opened = []

    class Engines(WrongBackend):
        def open(self, form: Any, role: Any, inputs: Any) -> Any:
            opened.append([output.name for output in form.model.outputs])
            return super().open(form, role, inputs)

    monkeypatch.setattr(
        "pytest_int8acc.case.measured.open_backend", lambda case, settings, *_: Engines(settings)
    )
    project(pytester.path, ENDS["sigmoid"], **HIDDEN["sigmoid"])
    case, text = run(pytester, "-v")
    assert case["outputs"][0]["preactivation"]["fails"] == "tensor"
    assert re.search(r"hide errors of its input: 'logits' \w+ [\d.]+ < 20 in the engine's simulation;", text)
    assert opened == [["probs"], ["probs"]]


def test_a_golden_in_place_of_the_baseline_is_no_obstacle(pytester: pytest.Pytester) -> None:
    project(pytester.path, ENDS["sigmoid"], **HIDDEN["sigmoid"], baseline="golden")
    pytester.runpytest(*LOAD, "--int8acc", "--int8acc-update=all").assert_outcomes(passed=1)
    case, text = run(pytester, "-v")
    assert case["verdict"] == "passed"
    assert case["outputs"][0]["preactivation"]["fails"] == "tensor"
    assert "add to 'criteria:' {tensor: 'logits', sqnr_db: 20}" in text


def test_a_first_spec_judges_the_input(pytester: pytest.Pytester) -> None:
    for end, body in ENDS.items():
        folder = pytester.mkdir(end)
        project(folder, body)
        (folder / "case.int8acc.yaml").unlink()
        (folder / "model.onnx").rename(pytester.path / f"{end}.onnx")
    written = ("--int8acc-init", *(f"{end}.onnx" for end in ENDS))
    assert pytester.runpytest(*LOAD, *written, f"--int8acc-data={end}/x.npz").ret == 0
    for end in ENDS:
        path = pytester.path / f"{end}.int8acc.yaml"
        judges = r"- tensor: logits +# the \w+ of 'probs' hides its errors\n +cosine: 0.99\n +sqnr"
        assert re.search(judges, path.read_text())
    run_all(pytester)
    for case in json.loads((pytester.path / "out/report.json").read_text(encoding="utf-8"))["cases"]:
        limited = {score["subject"] for score in case["scores"] if score["limit"] is not None}
        assert limited == {"probs", "logits"}
        assert case["outputs"][0]["preactivation"] is None
