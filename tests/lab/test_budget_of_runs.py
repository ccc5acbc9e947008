"""What pays for inference: runs over all samples, trials, and time."""

from __future__ import annotations

import pytest
from labs import lab_of, measured
from repair_support import KINDS

from pytest_int8acc.clock import Budget, Clock, Meter
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.lab.lab import Lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """One activation with a scale far too wide."""
    network, limits = KINDS["recalibrate"]
    return lab_of(measured(tmp_path_factory.mktemp("wide"), network(), limits))


def test_it_is_empty_once_so_much_was_run() -> None:
    meter = Meter(3.0)
    budget = Budget(Clock(), max_runs=2.0, meter=meter)
    meter.runs += 1.5
    assert not budget.empty
    assert budget.left == 0.5
    meter.runs += 0.5
    assert budget.empty


def test_a_part_can_be_kept_for_later() -> None:
    meter = Meter()
    budget = Budget(Clock(), max_runs=10.0, max_trials=5, meter=meter)
    budget.kept, meter.runs = 0.4, 6.0
    assert budget.empty
    budget.kept = 0.0
    assert budget.left == 4.0
    for _ in range(3):
        assert not budget.empty
        budget.pay()
    assert not budget.empty
    budget.kept, meter.runs = 0.4, 0.0
    assert budget.empty


def test_it_is_empty_after_so_many_trials_and_when_time_is_up() -> None:
    budget = Budget(Clock(), max_trials=1)
    assert not budget.empty
    budget.pay()
    assert budget.empty
    clock = Clock()
    late = Budget(clock)
    clock.interrupt()
    assert late.empty


def test_all_that_a_lab_runs_is_counted(lab: Lab) -> None:
    """On other networks, too; what is remembered costs nothing, as does what the case has run already."""
    plans, meter = lab.simulator, lab.simulator.meter
    before, few = meter.runs, len(plans.few) / len(plans.inputs)
    plans.trial(Plan())
    plans.normalized_loss(Plan())
    assert meter.runs == before
    others = Plan(dict.fromkeys([lab.network.groups[0].name], "fp16"))
    plans.trial(others)
    assert meter.runs - before == pytest.approx(1)
    plans.trial(others)
    plans.on(lab.network, "fp32").normalized_loss(Plan())
    assert meter.runs - before == pytest.approx(1 + few)
    seen = plans.seen()
    first = plans.probe(others, seen, [0])
    again = plans.probe(others, seen, [0])
    assert not first.known
    assert again.known
    least, most = 1 + few, 1 + few + 1 / len(plans.inputs)
    assert least <= round(meter.runs - before, 6) <= round(most, 6)


def test_what_takes_next_to_no_time_is_not_bounded_so(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lab.simulator.allowance(5) > 100
    assert lab.budget(5, most=7).left == 7
    monkeypatch.setattr("pytest_int8acc.lab.simulator._LITTLE", 0.0)
    assert lab.simulator.allowance(5) == 5
    assert lab.budget(5, most=7).left == 5
    budget = lab.budget(5, trials=(2, 9))
    budget.pay()
    budget.pay()
    assert budget.empty


def test_error_vectors_are_not_remembered_without_end(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_int8acc.lab.simulator._REMEMBERED", 0)
    other = lab_of(lab.measured).simulator
    seen = other.seen()
    assert not any(other.probe(Plan(), seen, [0]).known for _ in range(2))
