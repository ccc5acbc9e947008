"""Where noise adds up, a few plans between all of INT8 and none are tried, each keeping more layers high."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from labs import lab_of, measured
from repair_support import planted

from pytest_int8acc.answer import conclude, steps
from pytest_int8acc.answer import precision as room
from pytest_int8acc.answer.precision import find_precision, tradeoff
from pytest_int8acc.clock import Clock
from pytest_int8acc.graph.network import Plan

MOST = 10


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A case that misses its limit by the noise of all layers."""
    return measured(tmp_path_factory.mktemp("noisy"), planted("mobilenet"), {"sqnr_db": 36})


def test_plans_are_nested_and_their_scores_are_those_of_trials(noisy: Any) -> None:
    lab = lab_of(noisy)
    _, found = find_precision(lab)
    offer = tradeoff(lab, found)
    assert offer is not None
    assert 3 <= len(offer.points) <= MOST
    assert offer.samples == min(32, len(lab.simulator.inputs))
    counts = [point.layers for point in offer.points]
    assert counts == sorted(set(counts))
    assert (counts[0], counts[-1]) == (0, len(offer.layers))
    assert not offer.points[0].score.passed
    assert offer.points[-1].score.passed
    assert offer.points[-1].score.value > offer.points[0].score.value + 2
    seen = lab.simulator.seen(lab.simulator.few)
    for point in offer.points:
        high = offer.layers[: point.layers]
        assert point.share == pytest.approx(lab.share(high))
        trial = lab.simulator.trial(Plan(high=dict.fromkeys(high, "fp16")), seen)
        assert point.score.value == pytest.approx(trial.scores[0])


def test_where_runs_take_time_few_samples_tell(noisy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All plans together cost two runs over all samples; a sample each at least."""
    lab = lab_of(noisy)
    _, found = find_precision(lab)
    monkeypatch.setattr("pytest_int8acc.lab.simulator._LITTLE", 0.0)
    before = lab.simulator.meter.runs
    offer = tradeoff(lab, found)
    assert offer is not None
    assert 1 <= offer.samples < len(lab.simulator.few)
    assert lab.simulator.meter.runs - before <= 2 + len(offer.points) / len(lab.simulator.inputs)


def test_it_is_left_out_where_time_is_up(noisy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(noisy, clock=Clock())
    own = room.tradeoff

    def late(*facts: object) -> object:
        case.clock.interrupt()
        return own(*facts)  # type: ignore[arg-type]

    monkeypatch.setattr(steps, "tradeoff", late)
    result = conclude(case)
    assert result.search is not None
    assert result.search.tradeoff is None
    assert result.stopped is not None
    assert "tradeoff" in result.stopped.left_out
    assert result.diagnosis is not None
    assert result.diagnosis.repairs
