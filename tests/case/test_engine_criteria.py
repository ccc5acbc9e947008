"""Criteria of engines, judged on what a backend tells of its engines."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from projects import CALIBRATED, Project
from report_cases import case

import pytest_int8acc.case.measured
from pytest_int8acc import CaseResult, Score, Settings
from pytest_int8acc.report.plain import restore
from pytest_int8acc.report.view import CaseView
from pytest_int8acc.results import EngineInfo, EngineLayer, Latency, Role
from pytest_int8acc.runtime.open import OrtBackend


def engine(role: Role, ms: float | None, *precisions: str) -> EngineInfo:
    layers = tuple(
        EngineLayer(str(i), (), "weighted", precision)  # type: ignore[arg-type]
        for i, precision in enumerate(precisions)
    )
    latency = None if ms is None else Latency(ms, 0.9 * ms, 1.1 * ms, 20)
    return EngineInfo(role, role, 0.0, False, 1, layers, latency)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.data(made.model("plain"))
    return made


def judged(monkeypatch: pytest.MonkeyPatch, project: Project, criteria: str, *told: EngineInfo) -> CaseResult:
    """A case on ONNX Runtime whose backend tells of these engines, as TensorRT's does."""

    class Telling(OrtBackend):
        builds_engines = bool(told)

        @property
        def engines(self) -> tuple[EngineInfo, ...]:
            return told

    def backend(case: object, settings: Settings, *_: object) -> OrtBackend:
        return Telling(settings)

    monkeypatch.setattr(pytest_int8acc.case.measured, "open_backend", backend)
    return project.check(f"{CALIBRATED}criteria: [{{sqnr_db: 10}}, {criteria}]\n")


def score(result: CaseResult, metric: str) -> Score:
    (found,) = (s for s in result.scores if (s.subject, s.metric) == ("engine", metric))
    return found


def test_the_share_of_layers_in_int8_is_a_gate(monkeypatch, project):
    engines = engine(Role.BASELINE, 2.0, "fp16"), engine(Role.INT8, 1.0, "int8", "int8", "fp16", "int8")
    result = judged(monkeypatch, project, "{int8_layers: 0.75}", *engines)
    assert result.passed
    assert score(result, "int8_layers").value == 0.75
    assert not judged(monkeypatch, project, "{int8_layers: 0.76}", *engines).passed


@pytest.mark.parametrize(
    ("limit", "value", "passed"), [(0.25, 0.25, True), (0.5, math.nan, False), (0.8, 0.75, False)]
)
def test_layers_that_are_not_told_pass_no_limit(monkeypatch, project, limit, value, passed):
    """Of four layers one is in INT8, one is not, and two are in a fused region."""
    int8 = replace(engine(Role.INT8, 1.0, "int8", "fp16"), untold=2)
    result = judged(
        monkeypatch, project, f"{{int8_layers: {limit}}}", engine(Role.BASELINE, 2.0, "fp16"), int8
    )
    found = score(result, "int8_layers")
    assert found.value == pytest.approx(value, nan_ok=True)
    assert result.passed == passed
    assert "of 2 of 4 layers, in fused regions, TensorRT does not tell the precision" in found.note
    view = CaseView(result)
    assert "1 of 2 weighted layers in INT8, 2 more in fused regions" in view.engines[-1].line
    assert view.int8_layers == "1 of 2, 2 untold"


def test_none_in_int8_is_no_warning_where_not_all_is_told():
    result, int8 = restore(case()), engine(Role.INT8, 1.0, "fp16")
    assert CaseView(replace(result, engines=(int8,))).warnings
    assert not CaseView(replace(result, engines=(replace(int8, untold=2),))).warnings


def test_the_speedup_is_a_gate_and_starts_no_search(monkeypatch, project):
    engines = engine(Role.BASELINE, 2.0, "fp16"), engine(Role.INT8, 1.6, "int8")
    assert judged(monkeypatch, project, "{speedup: 1.25}", *engines).passed
    result = judged(monkeypatch, project, "{speedup: 1.3}", *engines)
    assert not result.passed
    assert score(result, "speedup").value == pytest.approx(1.25)
    assert result.search is None  # no layer that leaves INT8 makes it faster
    assert result.diagnosis is None


def test_a_latency_that_is_not_known_passes_no_limit(monkeypatch, project):
    engines = engine(Role.BASELINE, None, "fp16"), engine(Role.INT8, None)
    result = judged(monkeypatch, project, "{speedup: 1.1, int8_layers: 0}", *engines)
    assert math.isnan(score(result, "speedup").value)
    assert math.isnan(score(result, "int8_layers").value)
    assert not result.passed


def test_onnx_runtime_says_that_it_cannot_judge_engines(monkeypatch, project):
    result = judged(monkeypatch, project, "{speedup: 1.3, int8_layers: 0.9}")
    assert result.passed
    assert any(w.startswith("int8_layers, speedup not judged: ONNX Runtime") for w in result.warnings)
