"""Scales tried as inputs are those of a model built with them; candidates, weights and their choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labs import lab_of, measured
from repair_support import WIDE, planted
from zoo import ZOO, sample_feed

from benchmarks.case import dataset
from pytest_int8acc.answer.scales import Choice, Chooser, Ranges, activations, units
from pytest_int8acc.clock import Budget, Clock
from pytest_int8acc.graph.layout import find_groups, quantize
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import make_model
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.graph.plan import activation_scales
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.observers.methods import CANDIDATES, Options, calibrate
from pytest_int8acc.observers.observer import Observer
from pytest_int8acc.observers.ranges import ENTROPY_BINS
from pytest_int8acc.observers.values import BINS, Bins, TensorValues

#: Percentiles among the methods.
LADDER = [float(name.split()[1]) for name in CANDIDATES if name.startswith("percentile ")]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A case of which one range is 50 times too wide."""
    folder = tmp_path_factory.mktemp("wide")
    return lab_of(measured(folder, planted("cnn", factors={WIDE: 50}), {"sqnr_db": 20}))


def ranges_of(lab: Lab, bins: int = 512) -> Ranges:
    return Ranges(lab.values(lab.measured.inputs).of(activations(lab.network)), bins)


def chooser_of(lab: Lab, trials: int = 200) -> Chooser:
    return Chooser(lab.simulator, Plan(), activation_scales(lab.network), Budget(Clock(), max_trials=trials))


def culprit_of(lab: Lab) -> str:
    return next(e.tensor for g in lab.network.groups if g.name == WIDE for e in g.edges)


def test_badness_is_one_where_the_limit_is(wide: Lab) -> None:
    (score,) = wide.simulator.trial(Plan()).scores
    assert wide.simulator.normalized_loss(Plan()) == pytest.approx(10 ** ((20 - score) / 10), rel=0.05)


def test_badness_is_one_where_a_limit_is_of_which_only_all_samples_tell(tmp_path: Path) -> None:
    """As for a user's metric: error vectors alone do not say how much of the error is too much."""
    limits = {"tolerance": {"abs": 0.02, "rel": 0.0, "check": "median"}}
    simulator = lab_of(measured(tmp_path, planted("cnn", factors={WIDE: 50}), limits)).simulator
    loss = simulator.trial(Plan()).loss
    assert loss > 2
    assert simulator.normalized_loss(Plan()) == pytest.approx(loss**2, rel=0.05)


@pytest.mark.parametrize("method", ["minmax", "mse", "topk", "entropy", "percentile"])
def test_candidates_are_what_calibration_would_choose(wide: Lab, method: Any) -> None:
    ranges, tensors = ranges_of(wide, ENTROPY_BINS), activations(wide.network)[1:2]

    for percentile in LADDER if method == "percentile" else (99.9,):
        model, inputs = wide.network.model, wide.measured.inputs
        scales = calibrate(model, tensors, inputs, method=method, options=Options(percentile)).values
        name = {"topk": "topk 5", "percentile": f"percentile {percentile:g}"}.get(method, method)
        for tensor in tensors:
            assert ranges.scale(tensor, name) == pytest.approx(scales[tensor], rel=1e-6)


def test_the_loss_of_a_scale_is_against_the_best(wide: Lab) -> None:
    ranges = ranges_of(wide)
    tensor = activations(wide.network)[2]
    best = ranges.scale(tensor, "mse")
    assert ranges.loss_db(tensor, best) == pytest.approx(0, abs=0.1)
    # Noise grows with the square of the step as long as nothing is clipped.
    wider = ranges.loss_db(tensor, best * 40) - ranges.loss_db(tensor, best * 4)
    assert wider == pytest.approx(20, abs=3)
    assert ranges.loss_db(tensor, best / 50) > 20


def test_only_the_scale_at_fault_is_changed(wide: Lab) -> None:
    chooser, ranges = chooser_of(wide), ranges_of(wide)
    wanted = units(wide.network, activations(wide.network), ranges)
    choice = chooser.prune(wanted, chooser.rescale(wanted), {})
    culprit = culprit_of(wide)
    assert culprit in choice.scales
    assert chooser.own[culprit] / choice.scales[culprit] > 30
    assert wide.simulator.trial(chooser.plan(choice)).passed
    without = choice.only(set(choice.scales) - {culprit})
    assert not wide.simulator.trial(chooser.plan(without)).passed


def test_where_one_tensor_gains_nothing_the_others_are_not_tried(tmp_path: Path) -> None:
    """Every weight of every layer is rounded far too coarsely: no scale of an activation helps."""
    lab = lab_of(measured(tmp_path, planted("cnn"), {"sqnr_db": 60}))
    chooser, ranges = chooser_of(lab), ranges_of(lab)
    wanted = units(lab.network, activations(lab.network), ranges)
    choice = chooser.rescale(wanted)
    assert choice.normalized_loss > 1.6
    assert chooser.budget.trials <= 2 * len(CANDIDATES)  # each method for all tensors, and for one of them


def test_scales_are_not_tried_where_what_is_left_is_not_of_their_tensors(wide: Lab) -> None:
    """The least that any scales could reach is what the outputs err with the tensors out of INT8."""
    ranges = ranges_of(wide)
    wanted = units(wide.network, activations(wide.network, [wide.groups[-1].name]), ranges)
    chooser = chooser_of(wide)
    start = chooser.weighed(Choice(), {wide.groups[-1].name: "fp16"}).normalized_loss
    assert start > 1
    assert chooser.rescale(wanted, least=start).scales == {}
    assert chooser.budget.trials == 2
    chooser.rescale(wanted)
    assert chooser.budget.trials > 5


def test_scales_are_pruned_by_what_they_do_beside_the_groups_kept_high(wide: Lab) -> None:
    """What was measured with other groups high is no measure."""
    chooser, ranges = chooser_of(wide), ranges_of(wide)
    scale = chooser.own[culprit_of(wide)] / 50
    tensors = activations(wide.network)[-2:]
    scales = {culprit_of(wide): scale, tensors[-1]: chooser.own[tensors[-1]]}
    choice = Choice(scales, dict.fromkeys(scales, "given"), normalized_loss=1e9)
    assert set(chooser.prune(units(wide.network, scales, ranges), choice, {}).scales) == {culprit_of(wide)}


@pytest.mark.parametrize(("factor", "alike"), [(1.0, True), (1.2, True), (0.5, False), (30.0, False)])
def test_ranges_are_alike_where_values_spread_alike(wide: Lab, factor: float, alike: bool) -> None:
    ranges, tensor = ranges_of(wide), activations(wide.network)[1]
    values = [next(iter(batch.feed.values())) for batch in wide.measured.inputs.batches()]
    own, other = (
        TensorValues(tensor, Bins(amax, BINS), np.array([amax], np.float32))
        for amax in (float(max(np.abs(array).max() for array in values)) * f for f in (1.0, factor))
    )
    for array in values:
        own.bins.add(array)
        other.bins.add(np.float32(factor) * array)
    assert Ranges({tensor: own}).like(Ranges({tensor: other})) is alike
    assert not Ranges({tensor: own}).like(ranges), "other tensors"


def test_scales_that_do_no_good_are_taken_back(wide: Lab) -> None:
    chooser, ranges = chooser_of(wide), ranges_of(wide)
    culprit = culprit_of(wide)
    scales = {**chooser.own, culprit: chooser.own[culprit] / 50}
    choice = chooser.weighed(Choice(scales, dict.fromkeys(scales, "given")), {})
    wanted = units(wide.network, scales, ranges)
    assert set(chooser.prune(wanted, choice, {}).scales) == {culprit}


def test_one_tensor_at_a_time_mends_faults_that_no_method_for_all_does(tmp_path: Path) -> None:
    """With so few candidates left that only a mixture of methods can be good."""
    lab = lab_of(measured(tmp_path, planted("cnn"), {"sqnr_db": 35}))
    chooser, ranges = chooser_of(lab, 100), ranges_of(lab)
    tensors = activations(lab.network)[1:4]
    for number, method in enumerate(CANDIDATES):  # each method is right for one tensor in turn, else far off
        for index, tensor in enumerate(tensors):
            good = number % 3 == index
            ranges._known[tensor, method] = chooser.own[tensor] * (1 if good else 30)
    start = Choice({t: chooser.own[t] * 20 for t in tensors}, dict.fromkeys(tensors, "given"))
    wanted = units(lab.network, tensors, ranges)
    choice = chooser.rescale(wanted, start=start)
    assert dict(choice.scales) == pytest.approx({t: chooser.own[t] for t in tensors})
    assert lab.simulator.trial(chooser.plan(choice)).passed


def test_tensors_of_a_concat_get_one_scale(tmp_path: Path) -> None:
    proto = ZOO["inception"]()
    model = normalize(make_model(proto))
    layout = find_groups(model)
    assert layout.shared
    network = quantize(model, layout, dict.fromkeys(layout.activations, 0.05))
    quantized = set(activations(network))
    tied = next(s & quantized for s in layout.shared if len(s & quantized) > 1)
    feed = {name: np.concatenate([array] * 2) for name, array in sample_feed(proto).items()}
    data = dataset(model, feed, tmp_path, batch=2)
    ranges = Ranges(Observer(model, data).of(quantized))
    (unit,) = units(network, [min(tied)], ranges)
    assert set(unit.tensors) == tied
    assert unit.scale("minmax") == max(ranges.scale(t, "minmax") for t in tied)
    assert set(unit.choice("mse").scales) == tied


def test_tensors_without_a_histogram_get_no_candidates(wide: Lab) -> None:
    held = {
        name: TensorValues(name, maxima=np.array([amax], np.float32))
        for name, amax in (("zero", 0.0), ("inf", np.inf), ("one", 1.0))
    }
    held["one"].bins.add(np.ones(3, np.float32))
    ranges = Ranges(held)
    assert [name in ranges for name in held] == [False, False, True]
    assert [unit.tensors for unit in units(wide.network, held, ranges)] == [("one",)]
    assert ranges.loss_db("inf", 1.0) == 0
