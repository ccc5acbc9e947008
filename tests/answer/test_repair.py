"""Failing cases are mended at the least price: faults in trained networks, every repair built and judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from labs import lab_of, measured
from repair_support import KINDS, WIDE, planted

from pytest_int8acc import Settings
from pytest_int8acc.answer import remedies as repairing
from pytest_int8acc.answer.precision import find_precision
from pytest_int8acc.answer.proposals import recalibrate
from pytest_int8acc.answer.remedies import find_remedies
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.observers.methods import CANDIDATES
from pytest_int8acc.results import Ending, Latency


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without candidates by entropy: they take most of the time, and are seen to in test_scales.py."""
    monkeypatch.delitem(CANDIDATES, "entropy")


def measured_kind(folder: Path, kind: str) -> Any:
    network, limits = KINDS[kind]
    return measured(folder, network(), limits)


def mended(case: Any) -> tuple[Any, Any]:
    assert not case.result.passed
    lab = lab_of(case)
    outcome, found = find_precision(lab)
    return outcome, find_remedies(lab, outcome, found)


Searched = tuple[Lab, Any, Any]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Searched:
    """A case of which one range is 50 times too wide, searched."""
    network = planted("cnn", factors={WIDE: 50})
    case = measured(tmp_path_factory.mktemp("wide"), network, {"sqnr_db": 20}, "scales")
    lab = lab_of(case)
    return lab, *find_precision(lab)


@pytest.mark.parametrize("certify", [False, True])
def test_where_runs_take_time_a_repair_costs_no_more_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certify: bool
) -> None:
    """All that it runs counts, trials or not; with ``certify`` nothing but trials does."""
    monkeypatch.setattr("pytest_int8acc.lab.simulator._LITTLE", 0.0)
    case = replace(measured_kind(tmp_path, "high"), settings=Settings(certify=certify))
    lab = lab_of(case)
    outcome, found = find_precision(lab)
    before = lab.simulator.meter.runs
    notes = find_remedies(lab, outcome, found).notes
    cost = lab.simulator.meter.runs - before
    whole = 1 + len(lab.simulator.few) / len(lab.simulator.inputs)  # what may be under way when it is spent
    assert cost > repairing.RUNS if certify else cost <= repairing.RUNS + whole
    bounded = [note for note in notes if note.endswith(" trials of other scales, all that a repair may cost")]
    assert bool(bounded) == (not certify)


def test_a_plan_without_reserve_is_not_called_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fewest layers just keep the limit on these samples; the fix keeps more, and says why."""
    monkeypatch.setattr(repairing, "MAX_TRIALS", 12)
    outcome, repaired = mended(measured_kind(tmp_path, "high"))
    first, bare = repaired.repairs[0], repaired.repairs[-1]
    assert all(score.holds_at() and score.interval is not None for score in first.scores if score.limit)
    assert all(score.passed and not score.holds_at() for score in bare.scores if score.limit)
    assert outcome.holds
    assert not outcome.verified  # all samples chose it
    assert set(first.layers) <= set(outcome.with_reserve)
    assert bare.price < first.price


@pytest.mark.parametrize(
    ("spread", "first"),
    [(0.4, "high"), (40.0, "recalibrate")],  # FP16 is faster here; beyond doubt or not
)
def test_times_measured_order_the_repairs(
    wide: Searched, monkeypatch: pytest.MonkeyPatch, spread: float, first: str
) -> None:
    def price(lab: Lab, form: Any) -> Latency:
        ms = float(len(form.model.graph.node))  # the pairs of a layer in FP16 are gone
        return Latency(ms, ms - spread, ms + spread, 100)

    monkeypatch.setattr(Lab, "latency", price)
    repaired = find_remedies(*wide)
    repairs = repaired.repairs
    times = {r.kind: r.latency.median_ms for r in repairs if r.latency is not None}
    assert times["high"] <= times["recalibrate"] - 1
    assert repairs[0].kind == first
    assert [sorted(proof.plan.high) for proof in repaired.proofs] == [sorted(r.layers) for r in repairs]


def test_no_trials_leave_the_plan_of_the_search(wide: Searched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repairing, "MAX_TRIALS", 0)
    assert [r.kind for r in find_remedies(*wide).repairs] == ["high"]


def test_what_no_search_found_is_looked_for_in_all_groups(wide: Searched) -> None:
    lab, outcome, found = wide
    lost = replace(outcome, found=False, culprits=(), ending=Ending("seconds-spent", max_seconds=1))
    repaired = find_remedies(lab, lost, replace(found, proof=None))
    assert [r.kind for r in repaired.repairs] == ["recalibrate"]
    assert any(abs(r.old / r.new) > 40 for r in repaired.repairs[0].rescales)


def test_what_starts_from_other_scales_waits_until_some_were_looked_for(
    wide: Searched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget may be spent before the first scales are looked for."""
    rows = tuple(remedy for remedy in repairing.REMEDIES if remedy.propose is not recalibrate)
    assert len(rows) == len(repairing.REMEDIES) - 1
    monkeypatch.setattr(repairing, "REMEDIES", tuple(replace(row, applies=lambda _: True) for row in rows))
    assert "high" in [repair.kind for repair in find_remedies(*wide).repairs]
