"""The training framework's outputs: read before anything is built, and cut like the model's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from projects import CALIBRATED, Project

import pytest_int8acc.measure.measured
import pytest_int8acc.repair.precision
from pytest_int8acc.errors import DataError
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.measure.runs import Reference, read_reference
from pytest_int8acc.spec.load import load_spec

FAILING = CALIBRATED + "criteria: [{sqnr_db: 90}]\nreference: torch.npz\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.data(made.model("plain"))
    return made


def read(project: Project, name: str = "torch.npz") -> Reference:
    spec = project.folder / "case.int8acc.yaml"
    spec.write_text(f"model: model.onnx\ninputs: data.npz\n{CALIBRATED}reference: {name}\n")
    (case,) = load_spec(spec)
    found = read_reference(case, load_model(project.folder / "model.onnx"))
    assert found is not None
    return found


def forbidden(*_: object, **__: object) -> None:
    raise AssertionError("the reference is read first")


@pytest.mark.parametrize("name", ["torch.npy", "torch.npz"])
def test_an_array_of_the_only_output_may_have_any_name(project: Project, name: str) -> None:
    logits = np.arange(24, dtype=np.float64).reshape(6, 4)
    if name.endswith(".npz"):
        np.savez(project.folder / name, whatever=logits)
    else:
        np.save(project.folder / name, logits)
    output = load_model(project.folder / "model.onnx").outputs[0].name
    like = [{output: np.zeros((rows, 4), np.float32)} for rows in (4, 2)]
    reference = read(project, name)
    found = [reference.next(feed)[output] for feed in like]
    reference.end()
    assert [(a.shape, a.dtype) for a in found] == [((4, 4), np.float32), ((2, 4), np.float32)]
    np.testing.assert_array_equal(np.concatenate(found), logits)
    short = read(project, name)
    short.next(like[0])
    wrong = rf"reference: {name}: '{output}' has shape .*samples first"
    with pytest.raises(DataError, match=wrong):
        short.end()
    with pytest.raises(DataError, match=wrong):
        short.next({output: np.zeros((4, 5), np.float32)})


def test_an_array_that_is_no_output_is_named(tmp_path: Path) -> None:
    made = Project(tmp_path)
    made.data(made.model("yolo"))
    outputs = [output.name for output in load_model(tmp_path / "model.onnx").outputs]
    arrays = {name: np.zeros((12, 4), np.float32) for name in (outputs[0] + "x", *outputs[1:])}
    np.savez(tmp_path / "torch.npz", **arrays)
    with pytest.raises(DataError, match=rf"torch.npz: '{outputs[0]}x' is no output .*did you mean"):
        read(made)


def test_a_misspelt_reference_ends_the_case_before_anything_is_built_or_searched(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(project.folder / "torhc.npz", y=np.zeros((12, 4), np.float32))
    monkeypatch.setattr(pytest_int8acc.measure.measured, "preflight", forbidden)
    monkeypatch.setattr(pytest_int8acc.repair.precision, "search", forbidden)
    wanted = r"reference: torch.npz: no such file .*did you mean 'torhc.npz'.*save the framework's outputs"
    with pytest.raises(DataError, match=wanted):
        project.check(FAILING)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("labels: lables.npy", r"labels: lables.npy: no such file"),
        ("criteria: [{metric: 'scores.py:top1', min: 0.9}]", r"scores.py:top1: no such file"),
    ],
)
def test_labels_and_metrics_are_opened_before_anything_is_built(
    project: Project, monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    monkeypatch.setattr(pytest_int8acc.measure.measured, "preflight", forbidden)
    with pytest.raises(Exception, match=said):
        project.check(f"{CALIBRATED}{line}\n")


def test_a_reference_of_another_shape_ends_the_case_before_the_search(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(project.folder / "torch.npz", y=np.zeros((1, 4), np.float32))
    monkeypatch.setattr(pytest_int8acc.repair.precision, "search", forbidden)
    with pytest.raises(DataError, match=r"torch.npz: .* has shape \(1, 4\), the model gives"):
        project.check(FAILING)
