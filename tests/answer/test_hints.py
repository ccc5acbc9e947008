"""What is said of a layer for which no trial is left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from labs import lab_of, measured
from repair_support import SAMPLES, WIDE, planted

from benchmarks.case import assemble
from benchmarks.faults import stretched
from benchmarks.nets import digits, trained
from pytest_int8acc.answer.causes import explain
from pytest_int8acc.clock import Budget
from pytest_int8acc.graph.network import Network
from pytest_int8acc.lab.interventions import Interventions
from pytest_int8acc.results.causes import Cause

#: A channel between these layers is made large, and has almost no effect on the second one.
MAKER, READER, CHANNEL = "/4/conv/Conv", "/5/conv/Conv", 3


def causes(folder: Path, network: Network, layer: str) -> tuple[Mapping[str, Cause], Mapping[str, Cause]]:
    """The causes by symptoms alone, and those if the budget is spent before the first trial."""
    lab = lab_of(measured(folder, network, {"sqnr_db": 40}))
    spent = Interventions(lab, [layer], Budget(lab.clock, max_trials=0))
    rest = lab.int8.rest
    return explain(lab.meter, [layer], rest=rest), explain(lab.meter, [layer], rest=rest, trials=spent)


def with_idle_channel(factor: float) -> Network:
    """A large channel that its reader ignores; the range is ``factor`` times as wide as that channel."""
    model = stretched(trained("cnn"), [(MAKER, "out", CHANNEL, 100), (READER, "in", CHANNEL, 1e-6)])
    calibration = digits("calibration", SAMPLES)
    return assemble(model, calibration, {"sqnr_db": 20}, factors={READER: factor}).network


def test_a_symptom_that_a_common_trial_supports_is_a_hint(tmp_path: Path) -> None:
    _, found = causes(tmp_path, planted("cnn", factors={WIDE: 50}), WIDE)
    assert found[WIDE].symptom == "range-too-wide"
    assert found[WIDE].evidence is None


def test_values_that_are_cut_off_and_that_nothing_needs_are_no_cause(tmp_path: Path) -> None:
    """The range that fits the tensor best is far worse for the outputs than one that cuts the values off."""
    seen, found = causes(tmp_path, with_idle_channel(0.05), READER)
    assert seen[READER].symptom == "cut-off"
    assert not found
