"""Other results of a default session of ONNX Runtime are told, with the optimizer that makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from optimizers import PLANTED
from plugin_support import LOAD

from pytest_int8acc import Settings, load_spec
from pytest_int8acc.case.default_session import surviving_form
from pytest_int8acc.case.measured import measure
from pytest_int8acc.runtime.forms import ModelForm
from pytest_int8acc.runtime.onnxruntime import CPU, Saturation

#: A project whose fix of another fault fails in a default session, and the scale that gets that fault.
FAULTY, WIDE = "bias of a Conv in FP16", "sa"
FAILING = {"two pairs in series", "three pairs in series"}


def run(pytester: pytest.Pytester, *options: str) -> tuple[dict[str, Any], str]:
    """The case of report.json, and what pytest printed."""
    result = pytester.runpytest(*LOAD, "--int8acc", "--int8acc-report=out", "--int8acc-search=off", *options)
    (case,) = json.loads((pytester.path / "out/report.json").read_text(encoding="utf-8"))["cases"]
    return case, result.stdout.str()


@pytest.mark.parametrize("name", PLANTED)
def test_the_optimizer_is_named(pytester: pytest.Pytester, name: str) -> None:
    planted = PLANTED[name]
    planted.write(pytester.path)
    case, text = run(pytester, "-v")
    found = case["default_session"]
    assert found["optimizers"] == [planted.optimizer]
    assert planted.optimizer in found["text"]
    assert found["text"] in " ".join(text.split())
    assert case["verdict"] == ("failed" if name in FAILING else "passed")
    assert found["kind"] == ("passes" if name in FAILING else "fails")
    assert found["exact"]["value"] == pytest.approx(case["scores"][0]["value"])


@pytest.mark.parametrize("name", PLANTED)
def test_another_form_of_the_plan_survives_the_optimizer(tmp_path: Path, name: str) -> None:
    (case,) = load_spec(PLANTED[name].write(tmp_path))
    measured = measure(case, Settings(backend="onnxruntime", lint="warn"))
    found, candidate = measured.result.default_session, measured.candidate
    assert found is not None
    assert isinstance(candidate, ModelForm)
    assert measured.default_session(candidate) == found
    other = surviving_form(candidate, found)
    assert other is not None
    assert measured.default_session(other) is None
    feed = next(measured.inputs.batches()).feed
    before, after = (CPU.exact(form.model)(feed)["y"] for form in (candidate, other))
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)
    measured.close()


@pytest.mark.parametrize(("backend", "verified"), [("onnxruntime", False), ("auto", True)])
def test_a_fix_that_fails_by_default_is_verified_only_where_that_is_not_shipped(
    pytester: pytest.Pytester, backend: str, verified: bool
) -> None:
    """A scale 60 times too wide fails the case; the fix mends it, and leaves what the optimizer breaks."""
    planted = PLANTED[FAULTY]
    spec = planted.write(pytester.path, backend=backend)
    model = onnx.load(pytester.path / "int8.onnx")
    (scale,) = (tensor for tensor in model.graph.initializer if tensor.name == WIDE)
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(60), WIDE))
    onnx.save(model, pytester.path / "int8.onnx")
    result = pytester.runpytest(*LOAD, "--int8acc", "--int8acc-report=out", spec)
    (case,) = json.loads((pytester.path / "out/report.json").read_text(encoding="utf-8"))["cases"]
    found, text = case["fixed_session"], " ".join(result.stdout.str().split())
    assert (found["kind"], found["optimizers"]) == ("fails", [planted.optimizer])
    assert f"the fix fails without disabled_optimizers=['{planted.optimizer}']" in text
    assert case["diagnosis"]["repairs"][0]["verified"] is verified
    assert ("not verified" in text) is not verified


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
    wrong = Saturation(expected=256.0, measured=2.016)
    monkeypatch.setattr("pytest_int8acc.case.default_session.saturation", lambda: wrong)
    PLANTED["INT4 weights behind a large channel"].write(pytester.path)  # its kernel stands for one of INT8
    case, text = run(pytester, "-v")
    assert case["default_session"]["kind"] == "saturates"
    assert "note: INT8 kernels of this CPU saturate" in text
    PLANTED["bias of a faint channel of a Conv"].write(pytester.path)
    case, _ = run(pytester)
    assert case["default_session"]["kind"] == "fails"
    assert case["default_session"]["without_kernels"]
    assert case["default_session"]["optimizers"] == ["WeightBiasQuantization"]


def test_without_a_log_the_level_is_named(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_int8acc.runtime.onnxruntime._LOGGED_SESSION", "raise SystemExit(1)")
    PLANTED["bias of a Conv in FP16"].write(pytester.path)
    case, _ = run(pytester)
    assert case["default_session"]["level"] == "basic"
    assert case["default_session"]["optimizers"] == []
    assert "from optimization level 'basic' on" in case["default_session"]["text"]
