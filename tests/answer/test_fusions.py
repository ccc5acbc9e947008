"""Outputs that break a fusion: the search for them, their times and their safety margins."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from fake_backends import measured_wrong, weighted
from hypothesis import given
from hypothesis import strategies as st
from labs import lab_of
from repair_support import planted, write_case

from pytest_int8acc.answer.fusions import fewest_that
from pytest_int8acc.answer.precision import find_precision
from pytest_int8acc.answer.remedies import find_remedies
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.results import Latency


@given(st.integers(1, 40), st.data())
def test_the_fewest_are_what_is_needed(count: int, data: st.DataObject) -> None:
    names = tuple(map(str, range(count)))
    needed = data.draw(st.sets(st.sampled_from(names), min_size=1, max_size=4))
    trials = 0

    def passes(outputs: tuple[str, ...]) -> bool:
        nonlocal trials
        trials += 1
        assert sorted(outputs, key=int) == list(outputs)
        return needed <= set(outputs)

    assert set(fewest_that(passes, names)) == needed
    assert trials <= len(needed) * (math.ceil(math.log2(count)) + 1)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A case that passes where nothing is fused wrong."""
    return write_case(tmp_path, planted("cnn"), {"sqnr_db": 20})


def test_the_only_way_is_timed_and_an_engine_that_is_a_little_off_has_no_fusion_at_fault(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = weighted(load_model(tmp_path / "model.onnx"))[2]
    lab = lab_of(measured_wrong(spec, [wrong], monkeypatch))
    outcome, found = find_precision(lab)
    time = Latency(1.0, 0.9, 1.1, 50)
    with monkeypatch.context() as patch:
        patch.setattr(Lab, "latency", lambda lab, form: time)
        (only,) = find_remedies(lab, outcome, replace(found, proof=None)).repairs
    assert (only.kind, only.holds, only.latency) == ("unfuse", True, time)
    assert lab.refuted
    monkeypatch.setattr("pytest_int8acc.lab.lab.ENGINE_ROUNDING", 1e9)
    assert not lab.refuted
    repaired = find_remedies(lab, outcome, found)
    assert all(way.kind != "unfuse" for way in repaired.repairs)
    assert not any("fuses" in note for note in repaired.notes)


def test_another_level_is_said_to_have_a_safety_margin_only_if_it_has(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the score that the level reaches, the limit close below it."""
    model = load_model(tmp_path / "model.onnx")
    last = model.index.producer[model.outputs[0].name].name
    reached = measured_wrong(spec, [], monkeypatch).result.scores[0].value
    spec.write_text(spec.read_text().replace("sqnr_db: 20", f"sqnr_db: {reached - 0.02:.4f}"))
    lab = lab_of(measured_wrong(spec, [last], monkeypatch, right_at=0))
    repaired = find_remedies(lab, *find_precision(lab))
    (note,) = (note for note in repaired.notes if "optimization_level: 0" in note)
    assert "in the spec mends it (without a safety margin)" in note
