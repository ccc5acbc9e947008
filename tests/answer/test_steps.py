"""One case from spec to result, on models of the zoo, without pytest around it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from faulty_digits import faulty

from pytest_int8acc import CaseResult, DataError, EngineError, Int8accError
from pytest_int8acc.answer import conclude, steps
from pytest_int8acc.clock import Clock
from pytest_int8acc.graph.load import load_model


def broken(*_: object, **__: object) -> None:
    raise EngineError("out of memory")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return faulty(tmp_path_factory.mktemp("case"), "residual", 60, 2, 22)


@pytest.fixture
def failing(measured: Any) -> Any:
    return replace(measured, clock=Clock())


@pytest.fixture(scope="module")
def whole(measured: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[CaseResult, Path]:
    """The result where every step succeeds, and the folder of its files."""
    folder = tmp_path_factory.mktemp("report") / "whole"
    return conclude(replace(measured, clock=Clock()), folder), folder


@pytest.mark.parametrize(
    ("function", "step"),
    [("diagnose", "diagnosis"), ("find_remedies", "repair"), ("write_fix", "fix as files")],
)
def test_a_step_that_fails_takes_nothing_away(
    failing: Any,
    whole: tuple[CaseResult, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    step: str,
) -> None:
    full, folder = whole
    monkeypatch.setattr(steps, function, broken)
    result = conclude(failing, tmp_path / "part")
    assert result.warnings == (*full.warnings, f"no {step}: out of memory")
    assert result.search is not None
    assert full.search is not None
    assert result.search.verified
    assert [c.layer for c in result.search.culprits] == [c.layer for c in full.search.culprits]
    assert result.search.fixed == full.search.fixed
    assert (result.outputs, result.passed) == (full.outputs, False)
    assert (result.diagnosis is None or result.diagnosis.met is None) is (function == "diagnose")
    repairs = result.diagnosis.repairs if result.diagnosis else ()
    assert [r.kind for r in repairs] == ([] if function == "find_remedies" else ["recalibrate", "high"])
    assert bool(result.written) is (function != "write_fix")
    if function == "find_remedies":
        fix = load_model(tmp_path / "part" / "fixed.onnx")  # what the search found is written all the same
        assert fix.serialize() == load_model(folder / "high" / "fixed.onnx").serialize()


def test_a_folder_that_cannot_be_written_takes_nothing_away(failing: Any, tmp_path: Path) -> None:
    (tmp_path / "report").write_text("a file where the folder should be")
    result = conclude(failing, tmp_path / "report" / "case")
    (warning,) = [w for w in result.warnings if w.startswith("no ")]
    assert warning.startswith(f"no fix as files: {tmp_path / 'report' / 'case'}: cannot be written: ")
    assert result.search is not None
    assert result.search.verified
    assert result.diagnosis is not None
    assert result.diagnosis.repairs[0].verified
    assert result.written == ()


def test_ctrl_c_before_the_first_step_leaves_the_search_out(
    failing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(steps, "open_lab", interrupted)
    result = conclude(failing)
    assert result.stopped is not None
    assert (result.stopped.kind, result.stopped.left_out) == ("interrupted", ("search",))
    assert (result.outputs, result.passed, result.search) == (failing.result.outputs, False, None)


def test_a_search_that_fails_leaves_the_verdict_and_the_diagnosis(
    failing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "find_precision", broken)
    result = conclude(failing)
    assert result.warnings == (*failing.result.warnings, "no search: out of memory")
    assert result.search is None
    assert result.diagnosis is not None
    assert result.diagnosis.met is False
    assert result.diagnosis.stages
    assert result.outputs == failing.result.outputs


def test_data_that_differ_on_each_reading_are_no_warning(
    failing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(*_: object) -> None:
        raise DataError("yields different data on each call")

    monkeypatch.setattr(steps, "find_remedies", changed)
    with pytest.raises(DataError, match="different data"):
        conclude(failing)
    assert issubclass(DataError, Int8accError)
