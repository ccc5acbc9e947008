"""What users wrote of, checked from end to end: the report says in a sentence what was wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from pytest_int8acc.check import check
from pytest_int8acc.diagnose.case import write_pieces
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import put_constant, save_model
from pytest_int8acc.measure.measured import measure
from pytest_int8acc.report.summary import summary
from pytest_int8acc.report.text import failure
from pytest_int8acc.results import CaseResult
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec

DIGITS = Path(__file__).parents[2] / "example_project"


def checked(folder: Path, int8: dict[str, object], criteria: dict[str, float], **more: object) -> CaseResult:
    """The verdict on ``model.onnx`` and ``images.npz`` of a folder."""
    spec = {"model": "model.onnx", "inputs": "images.npz", "int8": int8, "criteria": [criteria], **more}
    (folder / "case.int8acc.yaml").write_text(yaml.safe_dump(spec))
    return check(load_spec(folder / "case.int8acc.yaml")[0], Settings())


def sentence(result: CaseResult) -> str:
    """What the report says first of a failing case."""
    assert not result.passed
    assert result.diagnosis is not None
    said = summary(result)
    assert "\n" not in said
    assert said in " ".join(failure(result, 2).split())
    return said


def images(count: int = 96, part: str = "validation") -> np.ndarray:
    return np.load(DIGITS / "data" / f"{part}.npz")["image"][:count]


def test_ranges_set_by_hand_after_a_look_at_histograms() -> None:
    """Ranges of 10 and 50 read off histograms: proportions stay, but all is scaled and shifted."""
    (case,) = load_spec(DIGITS / "digits_by_hand.int8acc.yaml")
    result = check(case, Settings())
    said = sentence(result)
    assert said.startswith("all 9 ranges are ")
    assert "times what the data reaches: the tensors share a few dynamic ranges (10, 50), too wide" in said
    assert re.search(r"'logits' comes out 0\.7\d* times what the baseline gives and shifted by", said)
    assert result.diagnosis is not None
    first = result.diagnosis.repairs[0]
    assert (first.kind, first.layers, first.verified) == ("recalibrate", (), True)
    assert {score.metric for score in first.scores if score.limit is not None} >= {"top1"}
    (spent,) = [note for note in result.diagnosis.notes if "trials of other scales" in note]
    assert int(spent.split()[0]) < 20


def enlarge(factor: float, folder: Path) -> None:
    """The same network for inputs ``factor`` times as large: weights stay, biases grow along."""
    model = load_model(DIGITS / "digits.onnx")
    edit, constants = model.edit(), model.constants()
    for tensor in edit.graph.initializer:
        if tensor.name.endswith("bias"):
            put_constant(tensor, tensor.name, constants[tensor.name] * np.float32(factor), edit.weights)
    save_model(edit.done(), folder / "model.onnx")
    np.savez(folder / "images.npz", image=images() * np.float32(factor))


@pytest.mark.parametrize(
    ("width", "cosine", "said"),
    [
        (50, 0.98, r"^all 9 ranges cut values off .* the tensors share one dynamic range \(50\), too narrow"),
        (200, 0.98, ""),
    ],
)
def test_one_dynamic_range_for_all_tensors(tmp_path: Path, width: float, cosine: float, said: str) -> None:
    """Activations reach 400: with 50 the network fails, with 200 it passes."""
    enlarge(120, tmp_path)
    (tmp_path / "ranges.json").write_text(json.dumps({"*": width}))
    result = checked(tmp_path, {"scales": "ranges.json"}, {"cosine": cosine})
    assert [f.rule for f in result.findings] == ["equal-scales"]
    if not said:
        assert result.passed
        return
    assert re.search(said, sentence(result)), sentence(result)
    assert result.diagnosis is not None
    assert result.diagnosis.repairs[0].kind == "recalibrate"


def test_calibration_samples_from_0_to_255(tmp_path: Path) -> None:
    save_model(load_model(DIGITS / "digits.onnx"), tmp_path / "model.onnx")
    np.savez(tmp_path / "images.npz", image=images())
    np.savez(tmp_path / "calibration.npz", image=images(part="calibration") * np.float32(255))
    calibrate = {"data": "calibration.npz", "method": "minmax"}
    result = checked(tmp_path, {"calibrate": calibrate}, {"cosine": 0.999})
    said = sentence(result)
    assert said.startswith("calibration samples of 'image' have mean")
    assert "times the inputs (0 to 255 against 0 to 1); all 9 ranges are" in said
    assert result.diagnosis is not None
    assert (result.answer and result.answer.data) == ""  # ranges of the compared inputs


def test_a_reproducer_names_its_sample_in_the_cases_data(tmp_path: Path) -> None:
    (case,) = load_spec(DIGITS / "digits_by_hand.int8acc.yaml")
    measured = measure(case, Settings())
    try:
        assert measured.int8 is not None
        (folder,) = write_pieces(measured, [measured.int8.network.groups[0].name], tmp_path)
    finally:
        measured.close()
    worst = measured.result.outputs[0].worst_sample
    assert worst
    assert (
        f"for sample {worst} of the case's data,\nrun at once with samples "
        in Path(folder, "README.md").read_text()
    )
