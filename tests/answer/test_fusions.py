"""An engine that computes wrong what its model computes right is mended by outputs that break the fusion."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from fake_backends import measured_wrong, weighted
from hypothesis import given
from hypothesis import strategies as st
from labs import lab_of
from repair_support import planted, write_case

from pytest_int8acc import Settings
from pytest_int8acc.answer import conclude
from pytest_int8acc.answer.fusions import fewest_that
from pytest_int8acc.answer.precision import find_precision
from pytest_int8acc.answer.remedies import find_remedies
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.report.fixes import repair_text
from pytest_int8acc.results import Latency
from pytest_int8acc.runtime.onnxruntime import OrtEngine


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


def test_the_fusion_at_fault_is_broken_up_by_one_output(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = load_model(tmp_path / "model.onnx")
    wrong = weighted(network)[2]
    case = measured_wrong(spec, [wrong], monkeypatch)
    assert not case.result.passed
    result = conclude(case, tmp_path / "fix")
    assert result.diagnosis is not None
    first = result.diagnosis.repairs[0]
    tensor = network.index.nodes[wrong].output[0]
    assert (first.kind, first.outputs, first.layers, first.price) == ("unfuse", (tensor,), (), 0.0)
    assert first.verified
    assert repair_text(first, "INT8").startswith(
        f"no layer needs FP16: 1 more output of the engine, to be left unread ('{tensor}')"
    )
    assert any(f"fuses across '{tensor}' (its layers 'a + b')" in note for note in result.diagnosis.notes)
    fixed = onnx.load(tmp_path / "fix" / "fixed.onnx")
    onnx.checker.check_model(fixed, full_check=True)
    assert [output.name for output in fixed.graph.output] == [network.outputs[0].name, tensor]
    assert f"leave them unread:\n  {tensor}\n" in (tmp_path / "fix" / "commands.txt").read_text()
    for batch in case.inputs.batches():
        assert set(OrtEngine(load_model(tmp_path / "fix" / "fixed.onnx"))(batch.feed)) > {tensor}
    spec.write_text(spec.read_text() + "plan: fix/plan.yaml\n")
    assert measured_wrong(spec, [wrong], monkeypatch).result.passed


def test_two_fusions_take_two_outputs(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(tmp_path / "model.onnx")
    wrong = [weighted(model)[i] for i in (0, -2)]
    case = measured_wrong(spec, wrong, monkeypatch, Settings(max_builds=40))
    result = conclude(case)
    tensors = tuple(model.index.nodes[name].output[0] for name in wrong)
    assert result.diagnosis.repairs[0].outputs == tensors


def test_within_few_builds_what_mends_is_kept_and_said_to_be_more_than_needed(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = weighted(load_model(tmp_path / "model.onnx"))[2]
    lab = lab_of(measured_wrong(spec, [wrong], monkeypatch, Settings(max_builds=3)))
    outcome, found = find_precision(lab)
    before = lab.builds
    repaired = find_remedies(lab, outcome, found)
    assert lab.builds - before <= 3
    first = repaired.repairs[0]
    assert (first.kind, first.holds) == ("unfuse", True)
    assert any("stopped early: the budget of builds or time is spent" in note for note in repaired.notes)


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


@pytest.mark.parametrize(
    ("right_at", "said"),
    [
        (-1, "do not mend it: 3 engines built; nor do the optimization levels 1 and 0"),
        (0, "'tensorrt: {optimization_level: 0}' in the spec mends it (with a reserve)"),
    ],
)
def test_where_no_output_helps_that_is_said(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right_at: int, said: str
) -> None:
    """The last node's result is an output already, and the engine is wrong all the same."""
    model = load_model(tmp_path / "model.onnx")
    last = model.index.producer[model.outputs[0].name].name
    lab = lab_of(measured_wrong(spec, [last], monkeypatch, right_at=right_at))
    repaired = find_remedies(lab, *find_precision(lab))
    assert all(way.kind != "unfuse" for way in repaired.repairs)
    (note,) = (note for note in repaired.notes if "do not mend it" in note)
    assert said in note


def test_another_level_is_said_to_have_a_reserve_only_if_it_has(
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
    assert "in the spec mends it (without a reserve)" in note
