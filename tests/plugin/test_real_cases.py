"""From `pytest --int8acc` down to ONNX Runtime and back, on a model of two layers."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from plugin_support import LOAD

pytestmark = pytest.mark.usefixtures("quick_processes")


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["plain", "n2"])
def test_verdicts_of_real_models_and_the_report_folder(digits, workers):
    command = (*LOAD, *workers, "--int8acc", "-v", "--junitxml=junit.xml", "--int8acc-report", "out")
    result = digits.runpytest(*command)
    result.assert_outcomes(passed=1, failed=1, errors=1, xfailed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "*modle.onnx: no such *",
            "INT8 accuracy: 'metrics.py:top1' 0.* < 0.98 (*+1 more missed: *)",
            "PASSED *::calibrated - *, simulated by ONNX Runtime *; 100 % of the MACs in INT8",
            "    *INT8* against FP16; 100 % of the MACs in INT8; 64 samples: inputs.npz; simulated by * CPU",
            "FAILED digits.int8acc.yaml::by-hand - *",
            "XFAILED digits.int8acc.yaml::by-hand-known - *",
            "ERROR digits.int8acc.yaml::no-model - *modle.onnx: no such *",
            "SKIPPED digits.int8acc.yaml::skipped - not public",
        ]
    )
    result.stdout.no_fnmatch_line("E *Error*")
    suite = ElementTree.parse(digits.path / "junit.xml").getroot()[0]
    names = {prop.get("name") for prop in suite.find("testcase[@name='calibrated']").iter("property")}
    assert {"int8acc.logits.sqnr_db", "int8acc.metrics.py:top1.top1", "int8acc.summary"} <= names
    result.stdout.fnmatch_lines(["int8acc: report in *out*report.json"])
    report = json.loads((digits.path / "out" / "report.json").read_text())
    verdicts = {case["nodeid"].partition("::")[2]: case["verdict"] for case in report["cases"]}
    assert verdicts == {
        "calibrated": "passed",
        "by-hand": "failed",
        "by-hand-known": "xfailed",
        "no-model": "error",
        "skipped": "skipped",
    }
    (failed,) = [case for case in report["cases"] if case["verdict"] == "failed"]
    assert {culprit["layer"] for culprit in failed["culprits"]} == set(failed["plan"])
    assert failed["builds"] >= 1
    assert failed["search"]["verified"]
    folder = digits.path / "out" / "digits" / "by-hand"
    assert (folder / "fixed.onnx").is_file()
    assert (folder / "plan.yaml").is_file()


def test_fewer_samples_and_the_other_mode(digits):
    args = ("--int8acc-samples=8", "--int8acc-mode=native", "--int8acc", "-k", "calibrated", "-v")
    result = digits.runpytest(*LOAD, *args)
    result.stdout.fnmatch_lines(["*; 8 samples: inputs.npz, its first 8; ONNX Runtime *, native"])


def test_fixtures_of_every_scope_work_on_specs(digits):
    digits.makeconftest(
        """
        import pytest

        @pytest.fixture(autouse=True, scope="module")
        def of_module(request):
            assert request.node.path.name.endswith(".yaml")

        @pytest.fixture(autouse=True, scope="session")
        def of_session():
            return 1
        """
    )
    result = digits.runpytest(*LOAD, "--int8acc", "-k", "calibrated")
    result.assert_outcomes(passed=1, deselected=4)


def test_a_missing_backend_skips_the_spec_s_own_line(pytester: pytest.Pytester) -> None:
    """An engine that is built already runs in TensorRT only."""
    (pytester.path / "n.engine").write_bytes(b"")
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Relu", ["x"], ["y"], "relu")],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(model, pytester.path / "n.onnx")
    spec = "model: n.onnx\ninputs: {random: {samples: 4}}\nint8: {engine: n.engine}\nbackend: onnxruntime\n"
    (pytester.path / "n.int8acc.yaml").write_text(spec)
    skipped = pytester.runpytest_subprocess(*LOAD, "--int8acc", "-rs")
    skipped.assert_outcomes(skipped=1)
    skipped.stdout.fnmatch_lines(["SKIPPED * n.int8acc.yaml:1: *n.engine: a TensorRT engine, and backend*"])
    failed = pytester.runpytest_subprocess(*LOAD, "--int8acc", "--int8acc-missing", "fail")
    failed.assert_outcomes(errors=1)


@pytest.mark.rtx
def test_without_a_gpu_tensorrt_rtx_still_parses_and_builds(digits: pytest.Pytester) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX: pip install tensorrt-rtx")
    model = onnx.load(digits.path / "model.onnx")
    values = {
        "s": np.array(0.02, np.float32),
        "z": np.array(3, np.int8),
    }  # a zero point that TensorRT refuses
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    model.graph.node[0].input[0] = "dequantized"
    for i, (op, here, there) in enumerate(
        [("QuantizeLinear", "x", "quantized"), ("DequantizeLinear", "quantized", "dequantized")]
    ):
        model.graph.node.insert(i, helper.make_node(op, [here, "s", "z"], [there], op))
    onnx.save(model, digits.path / "shifted.onnx")
    for name, int8 in (("good", "{scales: ranges.json}"), ("shifted", "{model: shifted.onnx}")):
        spec = f"model: model.onnx\ninputs: inputs.npz\nint8: {int8}\nbackend: tensorrt\n"
        (digits.path / f"{name}.int8acc.yaml").write_text(spec)
    arguments = ("good.int8acc.yaml", "shifted.int8acc.yaml", "--int8acc-no-cache", "-rs")
    result = digits.runpytest_subprocess(*LOAD, "shifted.int8acc.yaml")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*shifted.onnx: TensorRT would refuse this model: nonzero-zero-point (1 node)*"]
    )
    arguments += ("--int8acc-lint=warn",)  # ask the builder
    result = digits.runpytest_subprocess(*LOAD, *arguments)
    result.assert_outcomes(skipped=1, errors=1)
    result.stdout.fnmatch_lines(["*TensorRT-RTX * parses and builds baseline and candidate (* layers)*"])
    result.stdout.fnmatch_lines(["*shifted.onnx (INT8)*built no engine*"])
