"""A failing case is searched, its fix built and judged: on models of the zoo with faults planted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from faulty_digits import faulty
from labs import lab_of

from pytest_int8acc.case.plan_reader import read_plan
from pytest_int8acc.check import check, conclude
from pytest_int8acc.engines.onnxruntime import OrtEngine
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.lab import simulator
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.measure.measured import Measured
from pytest_int8acc.repair import precision
from pytest_int8acc.repair.precision import _worst_alone, find_precision
from pytest_int8acc.report.text import failure
from pytest_int8acc.results import CaseResult
from pytest_int8acc.scores.criteria import Criterion
from pytest_int8acc.settings import Settings
from tests.support.judged import judged as verdict


def judged(measured: Measured, high: tuple[str, ...]) -> bool:
    """Whether the case passes with those groups high: built anew, not through the search."""
    form = measured.int8.under(Plan(dict.fromkeys(high, "fp16")))
    engine = OrtEngine(form.model)
    found: dict[str, list[np.ndarray]] = {}
    for batch in measured.inputs.batches():
        for name, array in engine(batch.feed).items():
            found.setdefault(name, []).append(array[: batch.rows])
    outputs, _ = verdict(measured.judge, measured.baseline, found)
    return all(output.passed for output in outputs)


@pytest.mark.parametrize(
    ("name", "limit"), [("residual", 22), ("mobilenet", 15), ("inception", 20), ("yolo", 18), ("vit_erf", 18)]
)
def test_fix_is_verified_and_minimal(tmp_path: Path, name: str, limit: float) -> None:
    measured = faulty(tmp_path, name, 60, 2, limit)
    assert not measured.result.passed
    outcome, found = find_precision(lab_of(measured))
    fix = found.fix
    assert outcome.found
    assert outcome.verified
    assert outcome.minimal
    assert fix is not None
    high = tuple(culprit.layer for culprit in outcome.culprits)
    assert judged(measured, high)
    assert all(score.passed for score in outcome.fixed)
    for layer in high:
        rest = tuple(other for other in high if other != layer)
        if not judged(measured, rest):
            continue
        # The search saw four fifths of the samples; on all of them the limit may be met by a hair.
        (score,) = [s for o in _scores(measured, rest) for s in o.scores if s.limit is not None][:1]
        assert score.value == pytest.approx(limit, abs=0.5)


def _scores(measured: Measured, high: tuple[str, ...]) -> tuple[object, ...]:
    form = measured.int8.under(Plan(dict.fromkeys(high, "fp16")))
    engine = OrtEngine(form.model)
    found: dict[str, list[np.ndarray]] = {}
    for batch in measured.inputs.batches():
        for name, array in engine(batch.feed).items():
            found.setdefault(name, []).append(array[: batch.rows])
    return verdict(measured.judge, measured.baseline, found).outputs


@pytest.mark.parametrize(
    "strategy", ["bisect", "bisect-reverse", "linear", "linear-reverse", "worst-first", "forward"]
)
def test_every_strategy_returns_what_was_verified(tmp_path: Path, strategy: str) -> None:
    measured = faulty(tmp_path, "residual", 60, 2, 22)
    measured = replace(measured, settings=Settings(strategy=strategy))  # type: ignore[arg-type]
    outcome, _ = find_precision(lab_of(measured))
    assert outcome.strategy == strategy
    assert outcome.verified
    assert judged(measured, tuple(c.layer for c in outcome.culprits))
    assert bool(outcome.table) is (strategy == "forward")
    assert all(row.shape.startswith("[") for row in outcome.table)


def test_int8_that_is_not_the_cause_is_said_after_one_trial(tmp_path: Path) -> None:
    measured = faulty(
        tmp_path, "residual", 1, 0, 200
    )  # not even FP16 against itself with Q/DQ gone reaches it
    broken = {name: [a + 1 for a in arrays] for name, arrays in measured.baseline.items()}
    lab = lab_of(replace(measured, runs=replace(measured.runs, baseline=broken)))
    outcome, found = find_precision(lab)
    assert not outcome.found
    assert (found.proof, found.fix) == (None, None)
    assert outcome.ending.kind == "high-fails"
    assert len(outcome.trials) == 1


def test_certify_builds_a_model_for_each_culprit(tmp_path: Path) -> None:
    measured = faulty(tmp_path, "residual", 60, 2, 22)
    measured = replace(measured, settings=Settings(certify=True, max_builds=20))
    outcome, _ = find_precision(lab_of(measured))
    assert outcome.certificate
    assert outcome.certificate.passed
    assert outcome.certificate.ending.kind == "proven"
    assert outcome.builds >= 2 + len(outcome.culprits)


@pytest.mark.parametrize("certify", [False, True])
def test_a_search_that_has_cost_enough_says_that_its_set_may_be_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certify: bool
) -> None:
    measured = faulty(tmp_path, "vit_erf", 60, 4, 22)
    measured = replace(measured, settings=Settings(certify=certify, max_builds=40))
    monkeypatch.setattr(precision, "REFINES", 1.0)
    monkeypatch.setattr(simulator, "_LITTLE", 0.0)
    outcome, _ = find_precision(lab_of(measured))
    assert outcome.verified
    assert outcome.minimal == certify
    assert outcome.ending.kind == ("proven" if certify else "cut-short")
    if not certify:
        assert "Layers kept out of INT8 (some may be innocent)" in failure(conclude(measured, None))


def test_certify_without_enough_builds_says_so(tmp_path: Path) -> None:
    measured = faulty(tmp_path, "residual", 60, 2, 22)
    measured = replace(measured, settings=Settings(certify=True, max_builds=2))
    outcome, _ = find_precision(lab_of(measured))
    assert outcome.verified
    assert outcome.certificate
    assert not outcome.certificate.passed
    assert outcome.certificate.ending.kind == "trials-spent"


def test_keep_fp32_runs_the_culprits_in_fp32(tmp_path: Path) -> None:
    measured = faulty(tmp_path, "residual", 60, 2, 22, "search: {keep: fp32}\n")
    outcome, found = find_precision(lab_of(measured))
    fix = found.fix
    assert outcome.precision == "fp32"
    assert outcome.verified
    assert fix is not None
    types = {v.name: v.dtype for v in fix.form.model.values().values()}
    nodes = {node.name: node for node in fix.form.model.graph.node}
    assert {str(types[nodes[c.layer].output[0]]) for c in outcome.culprits} == {"float32"}


def test_native_kernels_that_disagree_with_the_simulation_are_said(tmp_path: Path) -> None:
    """The built model is made worse than its simulation: as an engine with a fault of its own would be."""
    measured = faulty(tmp_path, "residual", 60, 2, 22)

    class Worse:
        def __init__(self, inner: object) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

        def under(self, plan: Plan | None = None) -> object:
            kept = dict(plan.high) if plan else {}
            for name in sorted(kept)[:1]:  # builds one culprit in INT8 all the same
                kept.pop(name)
            return self.inner.under(Plan(kept))  # type: ignore[attr-defined]

    outcome, found = find_precision(Lab(measured, Worse(measured.int8)))  # type: ignore[arg-type]
    assert any("the simulation and the built model disagree" in note for note in outcome.notes)
    assert outcome.builds <= measured.settings.max_builds + 2
    assert outcome.verified is found.verified is (found.fix is not None)


def test_files_of_the_fix_are_the_fix(tmp_path: Path) -> None:
    measured = faulty(tmp_path, "residual", 60, 2, 22)
    result = conclude(measured, tmp_path / "report" / "case")
    assert result.search is not None
    assert result.diagnosis is not None
    best = result.diagnosis.repairs[0]
    plans = {"": ({}, {r.tensor for r in best.rescales})}
    plans["high"] = ({c.layer: "fp16" for c in result.search.culprits}, set())
    for name, (high, scales) in plans.items():
        folder = tmp_path / "report" / "case" / name
        plan = yaml.safe_load((folder / "plan.yaml").read_text())
        assert plan["high"] == high
        assert set(plan["scales"]) == scales
        fixed = OrtEngine(load_model(folder / "fixed.onnx"))
        feed = next(iter(measured.inputs.batches())).feed
        assert measured.int8 is not None
        read = read_plan(folder / "plan.yaml", measured.int8.every)
        expected = OrtEngine(measured.int8.under(read).model)(feed)
        for output, array in fixed(feed).items():
            np.testing.assert_allclose(array, expected[output], rtol=1e-6)


@pytest.mark.parametrize(("when", "searched"), [("auto", False), ("always", True), ("off", False)])
def test_search_of_a_passing_case_only_when_asked(tmp_path: Path, when: str, searched: bool) -> None:
    measured = faulty(tmp_path, "residual", 1, 0, 10)
    result = conclude(replace(measured, settings=Settings(search=when)))  # type: ignore[arg-type]
    assert (result.search is not None) is searched
    if result.search is not None:
        assert not result.search.culprits
        assert result.search.ending.kind == "int8-passes"


def test_search_off_leaves_a_failing_case_alone(tmp_path: Path) -> None:
    measured = faulty(tmp_path, "residual", 60, 2, 22)
    assert conclude(replace(measured, settings=Settings(search="off"))) == measured.result


def test_check_is_measure_and_conclude(tmp_path: Path) -> None:
    measured = faulty(tmp_path, "residual", 60, 2, 22)
    result: CaseResult = check(measured.case, Settings())
    assert result.search is not None
    assert result.search.verified


class Alone:
    """A culprit alone in INT8, with these losses."""

    samples = 4
    criteria = (Criterion("logits", "top1", 0.9, "min"), Criterion("logits", "cosine", 0.99, "min"))

    def __init__(self, losses: tuple[float, float], scores: tuple[float, float]) -> None:
        self.given = losses, scores

    def trial(self, high: frozenset[int], order: range, enough: None) -> SimpleNamespace:
        return SimpleNamespace(losses=self.given[0], scores=self.given[1])


@pytest.mark.parametrize(
    ("losses", "scores", "shown"),
    [
        ((0.0, 1.8), (1.0, 0.982), ("cosine", 0.982)),
        ((5.0, 1.8), (0.5, 0.982), ("top1", 0.5)),
        ((0.0, 0.4), (1.0, 0.996), ("cosine", 0.996)),
        ((0.0, 0.0), (1.0, 1.0), None),  # no evidence of anything
    ],
)
def test_alone_in_int8_shows_what_suffers(
    losses: tuple[float, float], scores: tuple[float, float], shown: tuple[str, float] | None
) -> None:
    score = _worst_alone(Alone(losses, scores), frozenset())  # type: ignore[arg-type]
    assert (None if score is None else (score.metric, score.value)) == shown
