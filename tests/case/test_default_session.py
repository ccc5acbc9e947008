"""Other results of a default session of ONNX Runtime are told, with the optimizer that makes them."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from plugin_support import LOAD
from written_networks import network

from benchmarks.optimizers import PLANTED, default_sqnr_db, kernels_kept, tried
from benchmarks.unseen import judged
from pytest_int8acc import Settings, load_spec
from pytest_int8acc.case.measured import measure
from pytest_int8acc.lab.lab import surviving_form
from pytest_int8acc.runtime.children import Workers
from pytest_int8acc.runtime.forms import ModelForm
from pytest_int8acc.runtime.onnxruntime import CPU, saturation

pytestmark = pytest.mark.usefixtures("quick_processes")

#: A project in FP16 whose fix of a second fault fails in a default session, unless it has another form.
HALF = "bias of a Conv in FP16"
#: A project whose optimizer changes a part that no plan changes.
INT4 = "INT4 weights behind a large channel"
FAILING = {"two pairs in series", "three pairs in series"}
#: The package writes this candidate without the attribute of the file that the optimizer stumbles over.
OF_THE_FILE = "output type of a QuantizeLinear, opset 21"


def run(pytester: pytest.Pytester, *options: str) -> tuple[dict[str, Any], str]:
    """The case of report.json, and what pytest printed."""
    result = pytester.runpytest(*LOAD, "--int8acc", "--int8acc-report=out", "--int8acc-search=off", *options)
    (case,) = json.loads((pytester.path / "out/report.json").read_text(encoding="utf-8"))["cases"]
    return case, result.stdout.str()


@pytest.mark.parametrize("name", PLANTED)
def test_the_optimizer_is_named(pytester: pytest.Pytester, name: str) -> None:
    planted = PLANTED[name]
    planted.write(pytester.path)
    with kernels_kept(planted):
        case, text = run(pytester, "-v", "--int8acc-lint=warn")
    found = case["default_session"]
    assert found["optimizers"] == [planted.optimizer]
    assert planted.optimizer in found["text"]
    assert found["text"] in " ".join(text.split())
    assert case["verdict"] == ("failed" if name in FAILING else "passed")
    if found["kind"] != "refused":
        assert found["kind"] == ("passes" if name in FAILING else "fails")
        assert found["exact"]["value"] == pytest.approx(case["scores"][0]["value"])


@pytest.mark.parametrize("name", [name for name in PLANTED if name != OF_THE_FILE])
def test_another_form_of_the_plan_survives_the_optimizer(tmp_path: Path, name: str) -> None:
    (case,) = load_spec(PLANTED[name].write(tmp_path))
    with kernels_kept(PLANTED[name]):
        measured = measure(case, Settings(backend="onnxruntime", lint="warn"))
        found, candidate = measured.result.default_session, measured.candidate
        assert found is not None
        assert isinstance(candidate, ModelForm)
        assert measured.default_session(candidate) == found
        other = surviving_form(candidate, found.optimizers)
        assert other is not None
        assert measured.default_session(other) is None
    feed = next(measured.inputs.batches()).feed
    before, after = (CPU.exact(form.model)(feed)["y"] for form in (candidate, other))
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)
    measured.close()


@pytest.mark.parametrize("name", [HALF, INT4, OF_THE_FILE, "two pairs in series"])
def test_a_fix_holds_in_both_sessions(name: str) -> None:
    """The fix of a second fault is written in another form where the optimizer breaks it."""
    found, planted = tried(name), PLANTED[name]
    assert found.word == "verified"
    assert found.rewritten_for in ((), (planted.optimizer,))
    assert found.sqnr_db > planted.limits["sqnr_db"]


def fixed(pytester: pytest.Pytester, name: str, backend: str) -> tuple[dict[str, Any], str]:
    """The case and the text of a project with a second fault. Its fix leaves what the optimizer changes."""
    spec = PLANTED[name].write(pytester.path, faulty=True, backend=backend)
    result = pytester.runpytest(*LOAD, "-v", "--int8acc", "--int8acc-report=out", spec)
    (case,) = json.loads((pytester.path / "out/report.json").read_text(encoding="utf-8"))["cases"]
    return case, " ".join(result.stdout.str().split())


def test_a_fix_that_fails_by_default_is_written_in_a_form_that_holds(pytester: pytest.Pytester) -> None:
    case, text = fixed(pytester, HALF, "onnxruntime")
    assert case["fixed_session"] is None
    assert case["diagnosis"]["repairs"][0]["verified"]
    assert f"written in another form, which ONNX Runtime's optimizer '{PLANTED[HALF].optimizer}'" in text
    assert default_sqnr_db(pytester.path, pytester.path / "out/case/fixed.onnx") > 25


def test_where_tensorrt_is_the_target_the_default_session_is_a_note(pytester: pytest.Pytester) -> None:
    case, text = fixed(pytester, HALF, "auto")
    found, optimizer = case["fixed_session"], PLANTED[HALF].optimizer
    assert (found["kind"], found["optimizers"]) == ("fails", [optimizer])
    assert f"the fix fails without disabled_optimizers=['{optimizer}']" in text
    assert case["diagnosis"]["repairs"][0]["verified"]
    assert default_sqnr_db(pytester.path, pytester.path / "out/case/fixed.onnx") < 25


def test_a_fix_without_another_form_is_not_verified_where_it_is_shipped(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_int8acc.graph.surviving._SURVIVORS", {})
    planted = PLANTED[INT4]
    with kernels_kept(planted):
        case, text = fixed(pytester, INT4, "onnxruntime")
    found, optimizer = case["fixed_session"], planted.optimizer
    assert (found["kind"], found["optimizers"]) == ("fails", [optimizer])
    assert not any(repair["verified"] for repair in case["diagnosis"]["repairs"])
    assert not case["search"]["verified"]
    assert "not verified" in text
    assert f"the fix fails without disabled_optimizers=['{optimizer}']" in text


def test_a_fix_in_fp8_keeps_its_relu_in_a_default_session() -> None:
    """ONNX Runtime drops a Relu in front of a QuantizeLinear to FP8; the fix has Max in its place."""
    found = judged("fp8_gone_mlp", 96, 0)
    assert found is not None
    assert (found.word, found.exact, found.default) == ("verified", True, True)


def test_a_target_elsewhere_gets_a_note(pytester: pytest.Pytester) -> None:
    planted = PLANTED["bias of a Conv in FP16"]
    planted.write(pytester.path, backend="auto")
    case, text = run(pytester)
    assert not case["default_session"]["is_target"]
    assert "WeightBiasQuantization" not in text
    planted.write(pytester.path)
    case, text = run(pytester)
    assert case["default_session"]["is_target"]
    assert "the worst: open ONNX Runtime with disabled_optimizers=['WeightBiasQuantization']" in text


def test_equal_results_are_not_mentioned(pytester: pytest.Pytester) -> None:
    PLANTED["bias of a Conv in FP16"].write(pytester.path, baseline="fp32")
    case, _ = run(pytester)
    assert case["verdict"] == "passed"
    assert case["default_session"] is None


@pytest.mark.parametrize(
    "change",
    [{"onnxruntime": {"mode": "native"}}, {"int8": None, "candidate": "fp16", "baseline": "fp32"}],
)
def test_what_no_default_session_is_compared_with(pytester: pytest.Pytester, change: dict[str, Any]) -> None:
    PLANTED["bias of a Conv in FP16"].write(pytester.path, **change)
    path = pytester.path / "case.int8acc.yaml"
    path.write_text(path.read_text().replace("int8: null\n", ""))
    case, _ = run(pytester)
    assert case["default_session"] is None


def test_a_processor_that_saturates_is_told_and_does_not_decide(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = dataclasses.replace(saturation(), measured=2.016)
    monkeypatch.setattr("pytest_int8acc.case.default_session.saturation", lambda: wrong)
    PLANTED[INT4].write(pytester.path)  # its kernel stands for one of INT8
    case, text = run(pytester, "-v")
    assert case["default_session"]["kind"] == "saturates"
    assert "note: INT8 kernels of this CPU saturate" in text
    PLANTED["bias of a faint channel of a Conv"].write(pytester.path)
    case, _ = run(pytester)
    assert case["default_session"]["kind"] == "fails"
    assert case["default_session"]["without_kernels"]
    assert case["default_session"]["optimizers"] == ["WeightBiasQuantization"]


@pytest.mark.parametrize("program", ["raise SystemExit(1)", "input(); input()"], ids=["ends", "hangs"])
def test_without_a_log_the_level_is_named(
    program: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pytester.path / "some_worker.py").write_text(program)
    monkeypatch.syspath_prepend(pytester.path)
    workers = Workers("some_worker")
    monkeypatch.setattr("pytest_int8acc.runtime.onnxruntime.shared_workers", lambda process: workers)
    monkeypatch.setattr("pytest_int8acc.runtime.onnxruntime._MAX_LOAD_SECONDS", 0.5)
    PLANTED["bias of a Conv in FP16"].write(pytester.path)
    case, _ = run(pytester)
    assert case["default_session"]["level"] == "basic"
    assert case["default_session"]["optimizers"] == []
    assert "from optimization level 'basic' on" in case["default_session"]["text"]


@pytest.mark.parametrize("backend", ["onnxruntime", "auto"])
def test_a_default_session_that_crashes_is_told_and_takes_nothing_down(
    pytester: pytest.Pytester, backend: str
) -> None:
    """ONNX Runtime 1.32 dies of a Transpose in front of a MatMul in FP16 (microsoft/onnxruntime#28392)."""
    pair = "xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)"
    rest = "r = Reshape(a, shape) t = Transpose <perm = [1, 0, 2]> (r) y = MatMul(t, v)"
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(4, 4)).astype(np.float32) for name in "wv"}
    codes = {"s": np.float32(0.03), "z": np.int8(0), "wq": np.rint(weights["w"] / 0.03).astype(np.int8)}
    codes["shape"] = np.array([0, 0, 4])
    for file, nodes in {
        "model.onnx": f"a = MatMul(x, w) {rest}",
        "int8.onnx": f"{pair} wd = DequantizeLinear(wq, s, z) a = MatMul(xd, wd) {rest}",
    }.items():
        head = '<ir_version: 10, opset_import: ["": 19]> net (float[N, 5, 4] x) => (float[5, N, 4] y)'
        read = set(re.findall(r"\w+", nodes))
        arrays = {name: array for name, array in {**weights, **codes}.items() if name in read}
        onnx.save(network(f"{head} {{ {nodes} }}", arrays, named=False), pytester.path / file)
    np.savez(pytester.path / "inputs.npz", x=rng.normal(size=(1, 5, 4)).astype(np.float32))
    (pytester.path / "case.int8acc.yaml").write_text(
        "model: model.onnx\ninputs: inputs.npz\nint8: {model: int8.onnx}\ncriteria: [{sqnr_db: 20}]\n"
        f"backend: {backend}\naccept_blind: random\n"
    )
    result = pytester.runpytest_subprocess(*LOAD, "--int8acc", "--int8acc-report=out", "-v")
    result.assert_outcomes(passed=1)
    (case,) = json.loads((pytester.path / "out/report.json").read_text(encoding="utf-8"))["cases"]
    if backend == "onnxruntime" and a_transpose_crashes(pytester.path):
        assert case["default_session"]["kind"] == "refused"
        assert "disabled_optimizers=['NchwcTransformer']" in " ".join(result.stdout.str().split())
    else:
        assert case["default_session"] is None


def a_transpose_crashes(folder: Path) -> bool:
    """Whether this ONNX Runtime dies of the pattern on this processor; a process of its own finds out."""
    head = '<ir_version: 10, opset_import: ["": 19]> net (float16[N, 5, 4] x) => (float16[5, N, 4] y)'
    text = f"{head} {{ t = Transpose <perm = [1, 0, 2]> (x) y = MatMul(t, v) }}"
    onnx.save(network(text, {"v": np.ones((4, 4), np.float16)}), folder / "transpose.onnx")
    load = "import onnxruntime, sys; onnxruntime.InferenceSession(sys.argv[1], providers=[sys.argv[2]])"
    command = [sys.executable, "-c", load, str(folder / "transpose.onnx"), "CPUExecutionProvider"]
    return subprocess.run(command, check=False, capture_output=True).returncode < 0
