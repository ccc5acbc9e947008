"""The bound on what follows a verdict, and Ctrl-C, at every phase: what was known by then stands."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty_digits import faulty

from pytest_int8acc import CaseResult, Settings
from pytest_int8acc.answer import conclude, precision, steps
from pytest_int8acc.answer import diagnosis as diagnosis
from pytest_int8acc.answer.scales import Chooser
from pytest_int8acc.clock import Clock, OutOfTime, current
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.lab.simulator import Simulator
from pytest_int8acc.runtime.run import run_together


@dataclass(frozen=True)
class Place:
    """Where a case is stopped: a call of a function, the first by default, and what that costs."""

    owner: Any
    name: str
    left: str
    """What the call belongs to."""
    call: int = 1
    verified: bool = True
    """The search has proved its plan by then."""


PLACES = {
    "search": Place(Simulator, "trial", "search", verified=False),
    "late in the search": Place(Simulator, "trial", "search", call=3, verified=False),
    "probes": Place(Simulator, "probe", "search", verified=False),
    "proof": Place(Lab, "prove", "proof", verified=False),
    "certification": Place(precision, "certify", "certification"),
    "alone": Place(precision, "_worst_alone", "alone"),
    "stages": Place(diagnosis, "place", "stages"),
    "causes": Place(diagnosis, "explain", "causes"),
    "layers": Place(diagnosis, "layer_errors", "layers"),
    "ranges": Place(diagnosis, "survey", "ranges"),
    "calibrations": Place(Lab, "judged_here", "calibrations", call=3),
    "repair": Place(Chooser, "weighed", "repair"),
    "fix": Place(steps, "write_fix", "fix"),
    "reproducer": Place(diagnosis, "reduce", "reproducer"),
    "worst-samples": Place(steps, "worst_samples", "worst-samples"),
}
WANTED = Settings(certify=True, reduce=True, calibrations=True)


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return faulty(tmp_path_factory.mktemp("case"), "residual", 60, 2, 22)


@pytest.fixture(scope="module")
def whole(failing: Any, tmp_path_factory: pytest.TempPathFactory) -> CaseResult:
    return conclude(fresh(failing), tmp_path_factory.mktemp("whole"))


def fresh(measured: Any, **changes: object) -> Any:
    return replace(measured, settings=WANTED.but(**changes), clock=Clock())


def at(patch: pytest.MonkeyPatch, place: Place, happens: Callable[[], None]) -> list[int]:
    """Let something happen before a call; counts the calls, as the one number of the list."""
    real, calls = getattr(place.owner, place.name), [0]

    def called(*args: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == place.call:
            happens()
        return real(*args, **named)

    patch.setattr(place.owner, place.name, called)
    return calls


def counted(patch: pytest.MonkeyPatch) -> tuple[list[int], list[int]]:
    """Calls of trials and of builds."""
    trial, build = Place(Simulator, "trial", "search", call=-1), Place(Lab, "_form", "proof", call=-1)
    return at(patch, trial, pytest.fail), at(patch, build, pytest.fail)


def stands(result: CaseResult, whole: CaseResult, place: Place) -> None:
    """What the steps before have found is there."""
    assert (result.outputs, result.metrics, result.passed) == (whole.outputs, whole.metrics, False)
    assert whole.search is not None
    assert whole.diagnosis is not None
    if not place.verified:
        return
    assert result.search is not None
    assert result.search.verified
    assert [c.layer for c in result.search.culprits] == [c.layer for c in whole.search.culprits]
    assert result.diagnosis is not None
    assert result.diagnosis.repairs
    assert result.diagnosis.repairs[-1].kind == "high"
    order = list(PLACES.values())
    if order.index(place) > order.index(PLACES["stages"]):
        assert result.diagnosis.stages == whole.diagnosis.stages
    if order.index(place) > order.index(PLACES["causes"]):
        assert result.search.culprits == whole.search.culprits
    if order.index(place) > order.index(PLACES["repair"]):
        assert result.diagnosis.repairs == whole.diagnosis.repairs


def test_nothing_is_left_out_where_there_is_time(whole: CaseResult) -> None:
    assert whole.stopped is None
    assert whole.search is not None
    assert whole.search.certificate is not None
    assert [p.name for p in whole.phases] == ["search", "proof", "causes", "repair", "files"]
    assert whole.seconds == pytest.approx(sum(phase.seconds for phase in whole.phases))
    assert all(phase.seconds > 0 and phase.cpu_seconds > 0 for phase in whole.phases)
    # Trials that another test recorded do not run again.
    assert sum(phase.passes for phase in whole.phases) > 1
    assert all(phase.peak_bytes > 10 << 20 for phase in whole.phases)
    assert any("reduced" in name for name in whole.written)
    assert whole.diagnosis is not None
    assert whole.diagnosis.worst


@pytest.mark.parametrize("name", PLACES)
def test_ctrl_c_ends_what_follows_and_takes_nothing_away(
    failing: Any, whole: CaseResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    place, measured = PLACES[name], fresh(failing, calibrations=name == "calibrations")
    trials, builds = counted(monkeypatch)
    before: list[int] = []

    def ctrl_c() -> None:
        before.extend([trials[0], builds[0]])
        raise KeyboardInterrupt

    at(monkeypatch, place, ctrl_c)
    result = conclude(measured, tmp_path)
    assert [trials[0], builds[0]] == before
    assert result.stopped is not None
    assert result.stopped.kind == "interrupted"
    assert place.left in result.stopped.left_out
    stands(result, whole, place)
    fixed = [written for written in result.written if written.endswith("fixed.onnx")]
    assert bool(fixed) is (place.verified and name != "fix")
    assert all(Path(written).exists() for written in result.written)
    assert "worst-samples" in result.stopped.left_out
    if place.left not in ("reproducer", "fix", "worst-samples"):
        assert {"repair", "reproducer"} <= set(result.stopped.left_out) or not place.verified


@pytest.mark.parametrize(
    "name",
    ["search", "probes", "proof", "certification", "stages", "calibrations", "repair", "fix"],
)
def test_time_that_is_up_lets_one_trial_and_one_build_end(
    failing: Any, whole: CaseResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    place, measured = PLACES[name], fresh(failing, calibrations=name == "calibrations")
    trials, builds = counted(monkeypatch)
    before: list[int] = []

    def up() -> None:
        monkeypatch.setattr(measured.clock, "_end", 0.0)
        before.extend([trials[0], builds[0]])

    at(monkeypatch, place, up)
    result = conclude(measured, tmp_path)
    assert trials[0] - before[0] <= 1
    assert builds[0] - before[1] <= 1
    if name in ("fix", "reproducer", "worst-samples"):  # one piece may end, and there may be no other
        assert result.stopped is None or result.stopped.kind == "seconds-spent"
    else:
        assert result.stopped is not None
        assert result.stopped.kind == "seconds-spent"
        assert {"repair", "reproducer"} & set(result.stopped.left_out)
    stands(result, whole, place)


def test_the_best_plan_so_far_is_proved_after_time_is_up(
    failing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = fresh(failing, strategy="bisect-reverse")
    place = replace(PLACES["search"], call=4)
    at(monkeypatch, place, lambda: monkeypatch.setattr(measured.clock, "_end", 0.0))
    result = conclude(measured, tmp_path)
    assert result.search is not None
    assert result.search.ending.kind == "seconds-spent"
    assert result.search.verified
    assert not result.search.minimal
    assert any(name.endswith("fixed.onnx") for name in result.written)
    assert result.stopped is not None
    assert (result.stopped.kind, result.stopped.max_seconds) == ("seconds-spent", 300)
    assert result.stopped.left_out[0] == "search"


def test_a_single_pass_that_outlasts_the_bound_ends_between_batches(failing: Any) -> None:
    clock = Clock()
    clock.limit(-1)
    with clock.running(), pytest.raises(OutOfTime):
        run_together({}, failing.inputs)
    clock.limit(100)
    with clock.running():
        assert run_together({}, failing.inputs) == {}


def test_phases_within_phases_count_once() -> None:
    clock = Clock()
    with clock.phase("search"):
        with clock.phase("proof"):
            clock.count("sample", 3, 4)
        assert clock.doing is not None
        assert (clock.doing.phase, clock.doing.thing) == ("search", "")
    assert clock.doing is None
    assert [phase.name for phase in clock.phases(1)] == ["search", "proof"]


def test_a_wait_takes_no_cpu_time_and_runs_are_told_in_passes() -> None:
    clock = Clock()
    with clock.phase("runs"):
        time.sleep(0.05)
        clock.ran(6)
        clock.ran(3)
    (phase,) = clock.phases(4)
    assert phase.seconds >= 0.05
    assert phase.cpu_seconds < 0.04
    assert phase.passes == 2.25


def test_one_clock_does_not_reach_another_case() -> None:
    clock = Clock()
    with clock.running():
        assert current() is clock
    assert current() is not clock
    assert np.isfinite(sum(phase.seconds for phase in clock.phases(1)))


def test_time_in_which_others_use_the_gpu_counts_for_no_phase_and_no_limit() -> None:
    clock = Clock()
    clock.limit(0.03)
    with clock.phase("proof"):
        time.sleep(0.04)
        assert clock.over
        clock.waited(0.04)
        assert not clock.over
    spent = {phase.name: phase.seconds for phase in clock.phases(1)}
    assert spent["waiting"] == 0.04
    assert spent["proof"] < 0.03
