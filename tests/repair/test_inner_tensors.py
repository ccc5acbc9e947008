"""A fault before a choice, judged by a tensor inside: found, its cause right, mended, and the fix guarded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from detectors import TOP, detector, project

from pytest_int8acc.check import check, conclude
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.measure.measured import measure
from pytest_int8acc.report.summary import summary
from pytest_int8acc.results import CaseResult
from pytest_int8acc.settings import Settings

#: What fails in each form: the case, and the factor of a channel.
FAULTS = {
    "int8": ({}, 25, 300.0),
    "fp8": ({"int8": None, "fp8": {"calibrate": {"data": "images.npz"}}}, 28, 1.0),
    "fp16": ({"int8": None, "candidate": "fp16"}, 50, 1e4),
    "bf16": ({"int8": None, "candidate": "bf16"}, 51, 1.0),
}


Mended = tuple[Path, dict[str, Any], CaseResult]


def concluded(folder: Path, **said: object) -> CaseResult:
    measured = measure(project(folder, **said), Settings())
    try:
        return conclude(measured, folder / "fix")
    finally:
        measured.close()


def test_a_healthy_detector_passes(tmp_path: Path) -> None:
    assert check(project(tmp_path), Settings()).passed


@pytest.fixture(scope="module", params=FAULTS)
def mended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mended:
    folder = tmp_path_factory.mktemp("mended")
    form, limit, channel = FAULTS[request.param]
    said = {"criteria": [{"tensor": "scores", "sqnr_db": limit}], **form}
    return folder, {"channel": channel, **said}, concluded(folder, channel=channel, **said)


def test_the_fault_is_found_as_where_the_tensor_is_an_output(mended: Mended, tmp_path: Path) -> None:
    _, said, result = mended
    assert [score.name for score in result.scores if not score.passed] == ["scores sqnr_db"]
    assert result.diagnosis is not None
    assert result.diagnosis.jumps == ()
    exported = detector(TOP, "float[N, K] placed, float[N, 256] scores", float(said["channel"]))
    limits = [{"output": "scores", **criterion} for criterion in said["criteria"]]
    for criterion in limits:
        del criterion["tensor"]
    outside = concluded(tmp_path, **{**said, "model": exported, "criteria": limits})
    assert result.search is not None
    assert outside.search is not None
    assert result.search.culprits == outside.search.culprits
    assert result.search.fixed == outside.search.fixed
    assert summary(result) == summary(outside)
    assert outside.diagnosis is not None
    assert [str(repair) for repair in result.diagnosis.repairs] == [str(r) for r in outside.diagnosis.repairs]


def test_the_fix_is_verified_by_it_and_its_files_are_of_the_user_s_model(
    mended: Mended,
) -> None:
    folder, _, result = mended
    assert result.search is not None
    proved = result.answer or result.search
    assert proved.verified
    scores = result.search.fixed if result.answer is None else result.answer.scores
    assert [score.passed for score in scores if score.name == "scores sqnr_db"] == [True]
    fixed = load_model(folder / "fix" / "fixed.onnx")
    assert [output.name for output in fixed.outputs] == ["placed"]
    for path in (folder / "fix").rglob("*"):
        assert not path.is_file() or path.suffix == ".onnx" or "'scores'" not in path.read_text()


def test_the_plan_guards_the_model_whatever_tensors_are_judged(mended: Mended) -> None:
    folder, said, _ = mended
    for criteria in (said["criteria"], [{"tensor": "heads", "cosine": 0.9}], []):
        case = project(folder, **{**said, "criteria": criteria, "plan": "fix/plan.yaml"})
        guarded = measure(case, Settings(search="off"))
        guarded.close()
        assert guarded.result.passed
