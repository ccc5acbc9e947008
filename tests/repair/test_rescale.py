"""Scales tried as inputs are those of a model built with them; candidates, weights and their choice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from planted_repairs import measured
from pytest_int8acc.repair.rescale import (
    LADDER,
    METHODS,
    Choice,
    Purse,
    Ranges,
    activations,
    prune,
    rescale,
    units,
    worse_weights,
)
from repair_support import WIDE, planted
from zoo import ZOO, sample_feed

from benchmarks.case import dataset
from benchmarks.faults import outlier_channel, per_tensor_weights
from benchmarks.nets import digits, trained
from pytest_int8acc.engines.calibrators import ENTROPY_BINS
from pytest_int8acc.engines.onnxruntime import OrtEngine
from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.change import Change, changed
from pytest_int8acc.graph.groups import find_groups
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import make_model
from pytest_int8acc.graph.network import Network, Plan, Quantization, symmetric
from pytest_int8acc.graph.plan import activation_scales, apply
from pytest_int8acc.graph.quantize import quantize
from pytest_int8acc.lab.board import Board
from pytest_int8acc.measure.measured import Measured
from pytest_int8acc.scales.calibrate import Method, calibrate
from pytest_int8acc.tensors import Outputs


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """A case of which one range is 50 times too wide."""
    return measured(tmp_path_factory.mktemp("wide"), planted("cnn", factors={WIDE: 50}), {"sqnr_db": 20})


def network(case: Measured) -> Network:
    assert case.int8 is not None
    return case.int8.network


def ranges_of(case: Measured, bins: int = 512) -> Ranges:
    return Ranges(network(case), activations(network(case)), case.inputs, "cpu", bins)


def run(case: Measured, plan: Plan) -> Outputs:
    assert case.int8 is not None
    engine = OrtEngine(case.int8.under(plan).model)
    found: Outputs = {name: [] for name in case.baseline}
    for batch in case.inputs.batches():
        for name, array in engine(batch.feed).items():
            found[name].append(array[: batch.rows])
    return found


@pytest.mark.parametrize(("name", "seed"), [("cnn", 0), ("cnn", 1), ("mobilenet", 0), ("vit", 1)])
def test_a_trial_is_the_model_built_with_these_scales(tmp_path: Path, name: str, seed: int) -> None:
    case = measured(tmp_path, planted(name), {"sqnr_db": 20})
    board, rng = Board(case, network(case)), np.random.default_rng(seed)
    own = activation_scales(network(case))
    assert board.own == pytest.approx(own)
    scales = {t: s * float(np.exp(rng.normal())) for t, s in own.items() if rng.random() < 0.5}
    names = [g.name for g in board.groups if rng.random() < 0.3]
    trial = board.trial(scales, board.indices(names))
    built, _ = case.judge(
        case.baseline,
        run(case, Plan(dict.fromkeys(names, "fp16"), {t: symmetric(s) for t, s in scales.items()})),
    )
    (score,) = [s for output in built for s in output.scores if s.limit is not None]
    assert trial.scores == pytest.approx((score.value,), abs=0.02)
    assert trial.passed is score.passed


def test_badness_is_one_where_the_limit_is(wide: Measured) -> None:
    board = Board(wide, network(wide))
    (score,) = board.trial({}).scores
    assert board.badness({}) == pytest.approx(10 ** ((20 - score) / 10), rel=0.05)


@pytest.mark.parametrize("method", ["minmax", "mse", "topk", "entropy", "percentile"])
def test_candidates_are_what_calibration_would_choose(wide: Measured, method: Method) -> None:
    ranges, tensors = ranges_of(wide, ENTROPY_BINS), activations(network(wide))[1:2]
    for percentile in LADDER if method == "percentile" else (99.9,):
        scales = calibrate(
            network(wide).model, tensors, wide.inputs, method=method, percentile=percentile, top_k=5
        ).values
        name = {"topk": "topk 5", "percentile": f"percentile {percentile:g}"}.get(method, method)
        for tensor in tensors:
            # The zeros that entropy leaves out are estimated here, not counted.
            close = 0.05 if method == "entropy" else 1e-3
            assert ranges.scale(tensor, name) == pytest.approx(scales[tensor], rel=close)


def test_the_loss_of_a_scale_is_against_the_best(wide: Measured) -> None:
    ranges = ranges_of(wide)
    tensor = activations(network(wide))[2]
    best = ranges.scale(tensor, "mse")
    assert ranges.loss_db(tensor, best) == pytest.approx(0, abs=0.1)
    # Noise grows with the square of the step as long as nothing is clipped.
    wider = ranges.loss_db(tensor, best * 40) - ranges.loss_db(tensor, best * 4)
    assert wider == pytest.approx(20, abs=3)
    assert ranges.loss_db(tensor, best / 50) > 20


def test_only_the_scale_at_fault_is_changed(wide: Measured) -> None:
    board, ranges, purse = Board(wide, network(wide)), ranges_of(wide), Purse(200, None)
    wanted = units(network(wide), activations(network(wide)), ranges)
    choice = prune(board, wanted, purse, rescale(board, wanted, ranges, purse))
    culprit = next(e.tensor for g in network(wide).groups if g.name == WIDE for e in g.edges)
    assert culprit in choice.scales
    assert board.own[culprit] / choice.scales[culprit] > 30
    assert board.trial(choice.scales).passed
    without = {t: s for t, s in choice.scales.items() if t != culprit}
    assert not board.trial(without).passed


def test_scales_that_do_no_good_are_taken_back(wide: Measured) -> None:
    board, ranges, purse = Board(wide, network(wide)), ranges_of(wide), Purse(200, None)
    culprit = next(e.tensor for g in network(wide).groups if g.name == WIDE for e in g.edges)
    scales = {**board.own, culprit: board.own[culprit] / 50}
    choice = Choice(scales, dict.fromkeys(scales, "given"), board.badness(scales))
    wanted = units(network(wide), scales, ranges)
    assert set(prune(board, wanted, purse, choice).scales) == {culprit}


def test_one_tensor_at_a_time_mends_faults_that_no_method_for_all_does(tmp_path: Path) -> None:
    """With so few candidates left that only a mixture of methods can be good."""
    case = measured(tmp_path, planted("cnn"), {"sqnr_db": 35})
    board, ranges = Board(case, network(case)), ranges_of(case)
    tensors = activations(network(case))[1:4]
    for number, method in enumerate(METHODS):  # each method is right for one tensor in turn, else far off
        for index, tensor in enumerate(tensors):
            good = number % 3 == index
            ranges._known[tensor, method] = board.own[tensor] * (1 if good else 30)
    start = Choice({t: board.own[t] * 20 for t in tensors}, dict.fromkeys(tensors, "given"))
    wanted = units(network(case), tensors, ranges)
    choice = rescale(board, wanted, ranges, Purse(100, None), start=start)
    assert dict(choice.scales) == pytest.approx({t: board.own[t] for t in tensors})
    assert board.trial(choice.scales).passed


def test_an_empty_purse_changes_nothing(wide: Measured) -> None:
    board, ranges, purse = Board(wide, network(wide)), ranges_of(wide), Purse(0, None)
    wanted = units(network(wide), activations(network(wide)), ranges)
    assert rescale(board, wanted, ranges, purse).scales == {}
    assert purse.trials == 0
    assert Purse(10, 0.0).empty


def test_tensors_of_a_concat_get_one_scale(tmp_path: Path) -> None:
    proto = ZOO["inception"]()
    model = normalize(make_model(proto))
    layout = find_groups(model)
    assert layout.shared
    network = quantize(model, layout, dict.fromkeys(layout.activations, 0.05))
    quantized = set(activations(network))
    tied = next(s & quantized for s in layout.shared if len(s & quantized) > 1)
    feed = {name: np.concatenate([array] * 2) for name, array in sample_feed(proto).items()}
    ranges = Ranges(network, quantized, dataset(model, feed, tmp_path, batch=2), "cpu")
    (unit,) = units(network, [min(tied)], ranges)
    assert set(unit.tensors) == tied
    assert unit.scale("minmax") == max(ranges.scale(t, "minmax") for t in tied)
    assert set(unit.choice("mse").scales) == tied


def test_weights_with_scales_of_the_wrong_kind_are_found_and_mended() -> None:
    first = "/2/first/conv/Conv"
    model = outlier_channel(trained("resnet"), first, (), 4, 60)
    layout = find_groups(model)
    healthy = quantize(model, layout, dict.fromkeys(layout.activations, 0.05))
    assert worse_weights(healthy) == ()
    bad = per_tensor_weights(healthy, [first])
    (weight,) = worse_weights(bad)
    assert worse_weights(bad, ["/3/first/conv/Conv"]) == ()
    assert_mended(healthy, changed(bad, Change(weights=(weight,))), weight)


@pytest.mark.parametrize("factor", [0.1, 4.0])
def test_weight_scales_off_by_a_factor_are_mended(factor: float) -> None:
    model = trained("cnn")
    layout = find_groups(model)
    healthy = quantize(model, layout, dict.fromkeys(layout.activations, 0.05))
    weight = next(e.tensor for g in healthy.groups if g.name == WIDE for e in g.edges if e.index == 1)

    def off(old: Quantization) -> Quantization:
        wide = replace(old, scale=(old.scale * factor).astype(np.float32))
        return replace(wide, values=wide.quantize(model.constants()[weight]))

    groups = tuple(
        replace(
            g,
            edges=tuple(
                replace(e, quantization=off(e.quantization)) if e.tensor == weight else e for e in g.edges
            ),
        )
        for g in healthy.groups
    )
    bad = replace(healthy, groups=groups)
    assert worse_weights(bad) == (weight,)
    assert_mended(healthy, changed(bad, Change(weights=(weight,))), weight)


def assert_mended(healthy: Network, mended: Network, weight: str) -> None:
    for ours, theirs in zip(healthy.groups, mended.groups, strict=True):
        for a, b in zip(ours.edges, theirs.edges, strict=True):
            np.testing.assert_array_equal(a.quantization.scale, b.quantization.scale)
            if a.tensor == weight:
                np.testing.assert_array_equal(a.quantization.values, b.quantization.values)


def test_a_change_is_the_plan_with_these_scales() -> None:
    network = planted("cnn")
    scales = {t: s * 3 for t, s in list(activation_scales(network).items())[:4]}
    feed = digits("validation", 4)
    ours = OrtEngine(apply(changed(network, Change(scales))))(feed)
    theirs = OrtEngine(apply(network, Plan(scales={t: symmetric(s) for t, s in scales.items()})))(feed)
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name])


def test_a_change_of_what_is_not_there_is_refused() -> None:
    network = planted("cnn")
    with pytest.raises(ModelError, match="'nowhere' is no quantized tensor"):
        changed(network, Change({"nowhere": 1.0}))
