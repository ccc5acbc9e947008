"""A failing case is searched, its fix built and judged: on models of the zoo with faults planted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from faulty_digits import faulty
from labs import lab_of

from pytest_int8acc import Settings
from pytest_int8acc.answer import conclude
from pytest_int8acc.answer.precision import find_precision
from pytest_int8acc.errors import EngineError
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.lab.lab import Lab


@pytest.mark.parametrize("certify", [False, True])
def test_a_search_that_has_cost_enough_says_that_its_set_may_be_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certify: bool
) -> None:
    measured = faulty(tmp_path, "residual", 60, 4, 22)
    measured = replace(measured, settings=Settings(certify=certify, max_builds=40))
    monkeypatch.setattr("pytest_int8acc.answer.precision.REFINES", 1.0)
    monkeypatch.setattr("pytest_int8acc.lab.simulator._LITTLE", 0.0)
    outcome, _ = find_precision(lab_of(measured))
    assert outcome.holds
    assert outcome.minimal == certify
    assert outcome.ending.kind == ("proven" if certify else "cut-short")


@pytest.mark.parametrize("of_the_search", [False, True])
def test_a_plan_that_does_not_build_costs_that_plan_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_the_search: bool
) -> None:
    prove, refused = Lab.prove, list[Plan]()

    def refusing(lab: Lab, plan: Plan) -> Any:
        if bool(plan.high) == of_the_search and not refused:
            refused.append(plan)
            raise EngineError("Assertion: mergeScales")
        return prove(lab, plan)

    monkeypatch.setattr(Lab, "prove", refusing)
    result = conclude(faulty(tmp_path, "residual", 60, 2, 22), None)
    assert refused
    assert result.search is not None
    assert result.search.culprits
    assert result.search.holds != of_the_search
    assert result.diagnosis is not None
    notes = (*result.search.notes, *result.diagnosis.notes)
    assert any("does not build or run: Assertion: mergeScales" in note for note in notes)
    assert not any("ended with an error" in note for note in notes)
    assert any(repair.holds for repair in result.diagnosis.repairs)


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
    assert outcome.holds is found.passed is (found.fix is not None)
