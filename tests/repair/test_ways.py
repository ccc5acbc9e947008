"""Each way of mending proposes what it says, and leaves to the next what it learned."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from labs import lab_of
from planted_repairs import measured
from repair_support import KINDS, NORM, READER, WIDE, attention_outlier, planted

from pytest_int8acc.graph.network import Edge, Plan, Quantization, with_edges
from pytest_int8acc.graph.plan import activation_scales
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.lab.purse import Purse
from pytest_int8acc.lab.sweep import FirstSamples
from pytest_int8acc.lab.values import Values
from pytest_int8acc.repair import scales
from pytest_int8acc.repair.migration import ALPHAS
from pytest_int8acc.repair.scales import ENOUGH
from pytest_int8acc.repair.ways import WAYS, Work, migrate_ranges, mix, recalibrate, rescale_all, unfuse
from pytest_int8acc.scales import observed


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without candidates by entropy: they take most of the time, and are seen to in test_scales.py."""
    monkeypatch.setattr(scales, "METHODS", {k: m for k, m in scales.METHODS.items() if k != "entropy"})


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A case of which one range is 50 times too wide."""
    folder = tmp_path_factory.mktemp("wide")
    return lab_of(measured(folder, planted("cnn", factors={WIDE: 50}), {"sqnr_db": 20}))


@pytest.fixture(scope="module")
def outlying(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A case of which channels of one activation stick out."""
    network, limits = KINDS["migrate"]
    return lab_of(measured(tmp_path_factory.mktemp("outlying"), network(), limits))


def work_of(lab: Lab, *culprits: str, trials: int = 100) -> Work:
    return Work(lab, culprits, Purse(lab.clock, trials=trials))


def read_by(lab: Lab, group: str) -> str:
    return next(e.tensor for g in lab.network.groups if g.name == group for e in g.edges)


def test_the_cheapest_comes_first() -> None:
    assert (unfuse, recalibrate, migrate_ranges, rescale_all, mix) == WAYS


def test_recalibration_changes_what_the_culprits_read_and_nothing_else(wide: Lab) -> None:
    work = work_of(wide, WIDE)
    candidates = list(recalibrate(work))
    tensor = read_by(wide, WIDE)
    for candidate in candidates:
        assert (candidate.plan.high, candidate.plan.moves) == ({}, {})
        assert set(candidate.plan.scales) == {tensor}
    assert wide.simulator.trial(candidates[0].plan).passed
    assert len(work.bases) == len(wide.sources) == 1
    assert work.best.choice == candidates[-1].choice
    assert work.best.own == activation_scales(wide.network)
    assert work.best.choice.badness < wide.simulator.badness(Plan())


def test_ranges_of_the_inputs_are_left_out_where_they_are_those_of_the_calibration_data(
    outlying: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = outlying.sources[0]
    monkeypatch.setattr(outlying, "sources", (replace(source, description="calibration"), source))
    work = work_of(outlying, READER)
    assert list(recalibrate(work)) == []
    assert [base.source.description for base in work.bases] == ["calibration"]


@pytest.mark.parametrize("beyond", [1.0, 2.0])
def test_few_samples_and_all_maxima_tell_that_ranges_are_alike(
    outlying: Lab, monkeypatch: pytest.MonkeyPatch, beyond: float
) -> None:
    (inputs,) = outlying.sources
    few = FirstSamples(inputs.data, outlying.network.model, 48)
    monkeypatch.setattr(outlying, "sources", (replace(inputs, data=few), inputs))
    monkeypatch.setattr(outlying, "_values", {})
    counted, maxima = [], Values.maxima
    histograms = observed.collect_histograms
    monkeypatch.setattr(
        observed, "collect_histograms", lambda *a, **k: counted.append(a[2]) or histograms(*a, **k)
    )
    monkeypatch.setattr(Values, "maxima", lambda self, t: {k: beyond * v for k, v in maxima(self, t).items()})
    work = work_of(outlying, READER)
    assert list(recalibrate(work)) == []
    looked_at = [few] if beyond == 1.0 else [few, inputs.data]
    assert counted == looked_at
    assert [base.source.data for base in work.bases] == looked_at


def test_the_first_alpha_that_does_is_taken(outlying: Lab) -> None:
    work = work_of(outlying, READER)
    list(recalibrate(work))
    candidate = next(migrate_ranges(work))
    assert candidate.base.migration is not None
    assert (candidate.base.migration.alpha, candidate.choice.badness <= ENOUGH) == (ALPHAS[0], True)


@pytest.mark.parametrize(
    ("makes", "takes", "culprits", "folded"),
    [
        ("query", "key", ("MatMul",), {"query/MatMul", "key/MatMul"}),
        ("key", "query", ("MatMul",), {"query/MatMul", "key/MatMul"}),
        ("value", "out", ("MatMul_1", "out/MatMul"), {"value/MatMul"}),
    ],
)
def test_range_is_moved_within_attention(
    tmp_path: Path, makes: str, takes: str, culprits: tuple[str, ...], folded: set[str]
) -> None:
    lab = lab_of(measured(tmp_path, attention_outlier(makes, takes), {"cosine": 0.999}))
    work = work_of(lab, *(f"/blocks/blocks.1/{name}" for name in culprits))
    list(recalibrate(work))
    candidates = list(migrate_ranges(work))
    assert any(lab.simulator.trial(candidate.plan).passed for candidate in candidates)
    migration = candidates[0].base.migration
    assert migration is not None
    assert {name.removeprefix("/blocks/blocks.1/") for name in migration.folded} == folded
    assert migration.inserted == ()


def test_without_trials_the_case_itself_is_proposed(wide: Lab) -> None:
    work = work_of(wide, WIDE, trials=0)
    (candidate,) = recalibrate(work)
    assert (candidate.plan.scales, candidate.plan.high, candidate.plan.moves) == ({}, {}, {})
    assert work.purse.trials == 0
    assert list(mix(work)) == []


def test_without_culprits_all_groups_are_looked_at_once(wide: Lab) -> None:
    work = work_of(wide)
    first = next(recalibrate(work))
    assert read_by(wide, WIDE) in first.plan.scales
    assert list(rescale_all(work)) == [], "they were"
    assert list(mix(work)) == []


def test_one_culprit_cannot_be_mixed(wide: Lab) -> None:
    work = work_of(wide, WIDE)
    next(recalibrate(work))
    assert list(mix(work)) == []


def test_mixed_plans_meet_the_criteria_with_fewer_layers_high(tmp_path: Path) -> None:
    network, limits = KINDS["mixed"]
    lab = lab_of(measured(tmp_path, network(), limits))
    names = [group.name for group in lab.groups]
    culprits = (WIDE, *(name for name in names if name != WIDE))
    work = work_of(lab, *culprits, trials=200)
    next(recalibrate(work))
    candidate, *stricter = mix(work)
    assert 0 < len(candidate.high) < len(culprits)
    for before, other in pairwise([candidate, *stricter]):  # for engines that compute worse than foretold
        assert lab.simulator.badness(other.plan) < lab.simulator.badness(before.plan)
    assert stricter
    assert WIDE not in candidate.high
    assert lab.simulator.trial(candidate.plan).passed
    assert not lab.simulator.trial(replace(candidate.plan, high={})).passed
    assert lab.builds == 0


def test_channels_are_moved_where_they_stick_out(outlying: Lab) -> None:
    work = work_of(outlying, READER, trials=60)
    for _ in recalibrate(work):
        pass
    before = work.best
    candidates = list(migrate_ranges(work))
    tensor = read_by(outlying, READER)
    assert candidates
    for candidate in candidates:
        assert set(candidate.plan.moves) == {tensor}
        migration = candidate.base.migration
        assert migration is not None
        assert (migration.folded, migration.inserted) == ((NORM,), ())
        assert tensor in candidate.base.touched
    assert work.best.choice.badness < before.choice.badness
    assert outlying.simulator.trial(candidates[0].plan).passed


def test_what_the_cases_own_plan_moves_is_not_moved_again(outlying: Lab) -> None:
    given = Plan(moves={read_by(outlying, READER): np.ones(3, np.float32)})
    lab = Lab(outlying.measured, replace(outlying.int8, given=given))
    work = work_of(lab, READER, trials=3)
    list(recalibrate(work))
    assert list(migrate_ranges(work)) == []
    assert len(work.bases) == 1


def test_asymmetric_activations_start_from_symmetric_ones(tmp_path: Path) -> None:
    def unsigned(edge: Edge) -> Edge:
        if edge.quantization.values is not None:
            return edge
        return replace(edge, quantization=Quantization(edge.quantization.scale, np.array(128, np.uint8)))

    lab = lab_of(measured(tmp_path, with_edges(planted("cnn"), unsigned), {"sqnr_db": 20}))
    work = work_of(lab, WIDE, trials=2)
    candidate = next(recalibrate(work))
    every = activation_scales(lab.network)
    assert set(candidate.plan.scales) == set(every)
    assert all(scale.zero_point is None for scale in candidate.plan.scales.values())
    values = lab.values(lab.sources[0].data).of(every)
    for tensor, scale in candidate.base.plan.scales.items():
        assert float(scale.scale) == pytest.approx(values[tensor].amax / 127, rel=1e-6)
