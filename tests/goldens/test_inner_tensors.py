"""Goldens and the ratchet where criteria name tensors inside the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from detectors import project

from pytest_int8acc.goldens import Goldens
from pytest_int8acc.goldens.record import GoldenError
from pytest_int8acc.measure.measured import measure
from pytest_int8acc.results import CaseResult
from pytest_int8acc.settings import Settings

SCORES = {"tensor": "scores", "sqnr_db": 20}
HEADS = {"tensor": "heads", "cosine": 0.9}


def run(folder: Path, *criteria: dict[str, object], update: str = "off", **said: object) -> CaseResult:
    case = project(folder, criteria=list(criteria), **said)
    measured = measure(case, Settings(search="off"), Goldens(None, update))
    measured.close()
    return measured.result


@pytest.mark.parametrize("kept", [{"golden": True}, {"baseline": "golden"}], ids=["live", "standing"])
def test_the_baseline_s_tensor_is_kept_and_compared(tmp_path: Path, kept: dict[str, object]) -> None:
    plain = run(tmp_path, SCORES)
    run(tmp_path, SCORES, update="missing", **kept)
    (file,) = (tmp_path / "__int8acc__").rglob("*.npz")
    with np.load(file) as arrays:
        assert set(arrays) == {"placed", "scores"}
    again = run(tmp_path, SCORES, **kept)
    assert again.passed
    assert [s.value for s in again.outputs[1].scores] == [s.value for s in plain.outputs[1].scores]


def test_a_golden_that_lacks_the_tensor_says_so_and_what_to_type(tmp_path: Path) -> None:
    run(tmp_path, SCORES, update="missing", baseline="golden")
    with pytest.raises(GoldenError, match=r"holds no output 'heads'; .*--int8acc-update=all"):
        run(tmp_path, SCORES, HEADS, baseline="golden")


def test_a_golden_of_more_tensors_serves(tmp_path: Path) -> None:
    run(tmp_path, SCORES, HEADS, update="missing", baseline="golden")
    assert [o.name for o in run(tmp_path, SCORES, baseline="golden").outputs] == ["placed", "scores"]


def test_the_ratchet_holds_a_tensor_to_what_was_accepted(tmp_path: Path) -> None:
    ratchet = {"regression": {"sqnr_db": 0.5}}
    run(tmp_path, SCORES, ratchet, update="missing")
    assert run(tmp_path, SCORES, ratchet).passed
    narrow = {"calibrate": {"data": "images.npz", "method": "percentile", "percentile": 90}}
    worse = run(tmp_path, SCORES, ratchet, int8=narrow)
    assert "scores sqnr_db" in {s.name for s in worse.scores if not s.passed}
