"""One laboratory: any plan is one inference, what was made is kept, and trials are what building gives."""

from __future__ import annotations

import weakref
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from faulty_digits import faulty
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from judged import compare_outputs
from labs import Counted, lab_of
from plans import plans, takes_in
from zoo import OLD_RUNTIME, ZOO
from zoo_networks import dataset_for, zoo_network

from pytest_int8acc import ModelError
from pytest_int8acc.case.forms import Int8Form
from pytest_int8acc.case.records import Records
from pytest_int8acc.clock import Clock
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.macs import macs
from pytest_int8acc.graph.migrate import sites
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Network, Plan, TensorScale, symmetric
from pytest_int8acc.graph.plan import activation_scales, fresh_weights, quantized_tensors
from pytest_int8acc.lab.board import Board
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.observers.edges import EdgeMeter, FirstSamples
from pytest_int8acc.observers.methods import calibrate
from pytest_int8acc.results import Role
from pytest_int8acc.runtime.onnxruntime import CPU, OrtEngine, Sessions
from pytest_int8acc.runtime.run import run_together
from pytest_int8acc.scores.criteria import OutputLimits
from pytest_int8acc.scores.judge import Judge

LIMITS = (OutputLimits("*", limits={"sqnr_db": 20, "cosine": 0.98, "mean_abs": 0.5}),)


@cache
def bench(name: str, rest: str, folder: Path) -> tuple[Lab, Any]:
    """A lab of a network of the zoo, and the baseline."""
    network, data = zoo_network(name), dataset_for(name, folder)
    model = to_fp16(network.model).model if rest == "fp16" else network.model
    baseline = run(model, data)
    measured: Any = SimpleNamespace(
        sessions=CPU,
        clock=Clock(),
        inputs=data,
        baseline=baseline,
        judge=Judge(LIMITS),
        keep="fp16",
        model=network.model,
        backend=SimpleNamespace(layer_times=lambda role, inputs: (), needs_simulation=False),
        case=SimpleNamespace(name=name),
        result=SimpleNamespace(scores=()),
        records=Records(),
        runs=SimpleNamespace(
            comparisons={(Role.BASELINE, Role.INT8): SimpleNamespace(outputs={})}, kept={Role.INT8: {}}
        ),
    )
    return Lab(measured, Int8Form(network, "by hand", rest)), baseline


def run(model: Model, data: Any) -> Any:
    return run_together({"it": OrtEngine(model)}, data)["it"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lab")


@pytest.mark.parametrize("rest", ["fp32", "fp16"])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(ZOO.keys() - ({"opset23"} if OLD_RUNTIME else set()))), st.data())
def test_a_trial_is_the_model_built_from_the_plan(
    folder: Path, rest: str, name: str, data: st.DataObject
) -> None:
    """Groups high, scales of activations and weights, and moves, to float rounding."""
    place = folder / name
    place.mkdir(exist_ok=True)
    lab, baseline = bench(name, rest, place)
    plan = near(lab.network, data.draw(plans(lab.network, zero_points=False)))
    trial = lab.simulator.trial(plan)
    built = run(lab.int8.under(plan).model, lab.measured.inputs)
    expected = compare_outputs(baseline, built, LIMITS)
    scores = [s for output in expected for s in output.scores if s.limit is not None]
    np.testing.assert_allclose(trial.losses, [s.normalized_loss for s in scores], rtol=1e-2, atol=1e-4)
    near_limit = any(abs(s.normalized_loss - 1) < 0.01 for s in scores)
    assert near_limit or trial.passed == all(output.passed for output in expected)
    assert trial.high == frozenset(i for i, g in enumerate(lab.groups) if g.name in plan.high)


def near(network: Network, plan: Plan) -> Plan:
    """The plan with scales near the network's own: where few codes are left, rounding that moves one shows.

    High is FP16: beside FP16, a board runs nothing in FP32.
    """
    own = {t: q for t, q in quantized_tensors(network).items() if q.values is None and q.scale.ndim == 0}
    scales = {
        t: symmetric(float(own[t].scale) * float(np.clip(s.scale, 0.5, 3))) if t in own else s
        for t, s in plan.scales.items()
    }
    return replace(plan, high=dict.fromkeys(plan.high, "fp16"), scales=scales)


def test_plans_that_differ_in_scales_of_activations_share_a_board(tmp_path: Path) -> None:
    lab, _ = bench("residual", "fp16", tmp_path)
    own = activation_scales(lab.network)
    first, second = list(own)[:2]
    group = lab.groups[0].name
    plain = lab.simulator.board(Plan())
    for plan in (
        Plan({group: "fp16"}),
        Plan(scales={first: symmetric(0.1)}),
        Plan(scales={first: symmetric(0.2), second: symmetric(0.3)}),
    ):
        assert lab.simulator.board(plan) is plain
    scores = {lab.simulator.trial(Plan(scales={first: symmetric(own[first] * f)})).scores for f in (1, 2, 9)}
    assert len(scores) == 3
    assert lab.simulator.trial(Plan(scales={first: symmetric(own[first])})).scores == (
        lab.simulator.trial(Plan()).scores
    )


def test_moves_and_scales_of_weights_make_a_board_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, _ = bench("residual", "fp32", tmp_path)
    made: list[Network] = []

    def board(network: Network, *rest: Any) -> Any:
        made.append(network)
        return Board(network, *rest)

    monkeypatch.setattr("pytest_int8acc.lab.simulator.Board", board)
    tensor, site = next(iter(sites(lab.network).items()))
    weight = next(t for t, q in quantized_tensors(lab.network).items() if q.values is not None)
    activation = list(activation_scales(lab.network))[-1]
    moves = {tensor: np.linspace(0.5, 2, site.channels, dtype=np.float32)}
    bases = [Plan(), Plan(moves=moves), Plan(scales=dict(fresh_weights(lab.network, [weight])))]
    boards = [lab.simulator.board(plan) for plan in bases]
    assert len({id(b) for b in boards}) == len(made) == 3
    for plan, found in zip(bases, boards, strict=True):
        more = replace(plan, scales={**plan.scales, activation: symmetric(0.1)}, high={})
        again = replace(plan, moves={t: f.copy() for t, f in plan.moves.items()})
        assert lab.simulator.board(more) is lab.simulator.board(again) is found
        lab.simulator.trial(plan)
        lab.simulator.normalized_loss(more)
    assert len(made) == 3
    other = replace(bases[1], moves={tensor: moves[tensor] * 2})
    assert lab.simulator.board(other) not in boards


def test_weights_after_moves_are_held_once_until_the_moves_are_forgotten(tmp_path: Path) -> None:
    lab, _ = bench("residual", "fp32", tmp_path)
    tensor, site = next(iter(sites(lab.network).items()))
    weight = next(t for t, q in quantized_tensors(lab.network).items() if q.values is not None)
    moves = {tensor: np.linspace(0.5, 2, site.channels, dtype=np.float32)}
    plan = Plan(moves=moves, scales=dict(fresh_weights(lab.network, [weight])))
    assert lab.values(lab.inputs, plan).of([tensor])
    known = lab.simulator.trial(plan)
    lab.simulator.normalized_loss(Plan(moves=moves))
    (held,) = {id(lab.simulator.board(each).network.model) for each in (plan, Plan(moves=moves))}
    model, plain = weakref.ref(lab.simulator.moved(moves).model), lab.simulator.board(Plan())
    assert id(model()) == held
    lab.forget(plan)
    assert model() is None
    assert lab.simulator.board(Plan()) is plain
    assert lab.simulator.trial(Plan({lab.groups[0].name: "fp32"}, plan.scales, moves)).scores
    lab.close()
    assert lab.simulator.board(Plan()) is not plain
    lab.simulator._known.clear()
    assert lab.simulator.trial(plan).scores == known.scores


def test_readers_that_are_moved_away_inherit_the_scale(tmp_path: Path) -> None:
    """Clip's output is read by a Conv, before which a Mul is inserted, and by an Add."""
    lab, baseline = bench("mobilenet", "fp32", tmp_path)
    tensor, site = next((t, s) for t, s in sites(lab.network).items() if t == "clip1_out")
    moves = {tensor: np.linspace(0.5, 2, site.channels, dtype=np.float32)}
    plan = Plan(scales={tensor: symmetric(activation_scales(lab.network)[tensor] * 3)}, moves=moves)
    assert len([e for g in lab.network.groups for e in g.edges if e.tensor == tensor]) == 2
    assert (
        len([e for g in lab.simulator.board(plan).network.groups for e in g.edges if e.tensor == tensor]) == 1
    )
    board = lab.simulator.board(Plan(moves=moves))
    (reader_tensor,) = activation_scales(board.network).keys() - activation_scales(lab.network).keys()
    apart = replace(plan, scales={**plan.scales, reader_tensor: symmetric(0.02)})
    scores = set()
    for each in (plan, apart):
        assert lab.simulator.board(each) is board
        built = compare_outputs(baseline, run(lab.int8.under(each).model, lab.measured.inputs), LIMITS)
        expected = [s.value for output in built for s in output.scores if s.limit is not None]
        found = lab.simulator.trial(each).scores
        np.testing.assert_allclose(found, expected, rtol=1e-3)
        scores.add(found)
    assert len(scores) == 2


def test_scales_that_are_not_plain_make_a_board_of_their_own(tmp_path: Path) -> None:
    lab, baseline = bench("plain", "fp32", tmp_path)
    tensor, own = next(iter(activation_scales(lab.network).items()))
    odd = TensorScale(np.array(own / 2, np.float32), zero_point=np.array(90, np.uint8))
    plan = Plan(scales={tensor: odd})
    assert lab.simulator.board(plan) is not lab.simulator.board(Plan())
    built = compare_outputs(baseline, run(lab.int8.under(plan).model, lab.measured.inputs), LIMITS)
    expected = [s.value for output in built for s in output.scores if s.limit is not None]
    np.testing.assert_allclose(lab.simulator.trial(plan).scores, expected, rtol=1e-3)


@pytest.mark.parametrize(
    "plan", [Plan(scales={"nowhere": symmetric(1)}), Plan(moves={"nowhere": np.ones(3)})]
)
def test_plans_of_what_is_not_there_are_refused(tmp_path: Path, plan: Plan) -> None:
    lab, _ = bench("plain", "fp32", tmp_path)
    with pytest.raises(ModelError, match="nowhere"):
        lab.simulator.trial(plan)


def test_many_boards_let_go_of_the_oldest_but_the_first(tmp_path: Path) -> None:
    lab, _ = bench("residual", "fp32", tmp_path)
    first = lab.simulator.board(Plan())
    tensor, site = next(iter(sites(lab.network).items()))
    for factor in range(1, 8):
        lab.simulator.board(Plan(moves={tensor: np.full(site.channels, factor, np.float32)}))
        assert len(lab.simulator._boards) <= 4
    assert lab.simulator.board(Plan()) is first


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return faulty(tmp_path_factory.mktemp("case"), "residual", 60, 2, 22)


def values(verdict: Any) -> dict[str, float]:
    """The values of the scores; what perturbed inputs do to a fix is in their intervals alone."""
    return {score.name: score.value for score in verdict.scores}


def test_a_plan_is_built_once_however_often_it_is_proved(case: Any) -> None:
    lab = lab_of(case)
    names = [group.name for group in lab.groups]
    tensor, own = next(iter(activation_scales(lab.network).items()))
    plans_ = [
        Plan(),
        Plan({names[0]: "fp16"}),
        Plan({names[0]: "fp32"}),
        Plan(scales={tensor: symmetric(own / 2)}),
    ]
    before = lab.cost
    proofs = [lab.prove(plan) for plan in plans_]
    spent = lab.cost - before
    assert spent.builds + spent.runs == 4
    again = [
        lab.prove(Plan(dict(reversed(plan.high.items())), dict(plan.scales), dict(plan.moves)))
        for plan in plans_
    ]
    assert all(a is b for a, b in zip(proofs, again, strict=True))
    assert lab.cost - before == spent
    assert [score.value for score in proofs[0].verdict.scores] == [s.value for s in case.result.scores]
    two = Plan(dict.fromkeys(names[:2], "fp16")), Plan(dict.fromkeys(reversed(names[:2]), "fp16"))
    assert lab.prove(two[0]) is lab.prove(two[1])
    for proof in proofs:
        alone = case.judged(case.run(case.int8.under(proof.plan)))  # type: ignore[union-attr]
        assert values(proof.verdict) == values(alone)


def test_a_plan_judged_here_is_the_plan_built_where_ort_is_the_backend(case: Any) -> None:
    lab = lab_of(case)
    for plan in (Plan(), Plan({lab.groups[0].name: "fp16"})):
        assert values(lab.judged_here(plan)) == values(lab.prove(plan).verdict)


def test_the_trial_of_a_case_is_its_verdict(case: Any) -> None:
    lab = lab_of(case)
    scores = [s.value for s in case.result.scores if s.limit is not None]
    np.testing.assert_allclose(lab.simulator.trial(Plan()).scores, scores, atol=0.02)
    assert lab.share(group.name for group in lab.groups) == pytest.approx(1)
    assert lab.latency(case.candidate) is None


class Opened(Sessions):
    """Counts sessions."""

    count = 0

    def exact(self, model: Model, *, optimized: bool = True) -> OrtEngine:
        Opened.count += 1
        return super().exact(model, optimized=optimized)


def test_tensors_are_measured_once_and_together(case: Any) -> None:
    data, network = Counted(case.inputs), lab_of(case).network
    meter = EdgeMeter(network, case.model, data)
    activations = {e.tensor for e in network.edges if e.quantization.values is None}
    assert data.passes == 0
    assert meter.measured.keys() == activations
    assert meter.measured is meter.measured
    assert data.passes == 1
    assert {held.maxima.size for held, _ in meter.measured.values()} == {40}


def test_large_runs_are_cut_and_share_a_session(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    network = lab_of(case).network
    whole = EdgeMeter(network, case.model, case.inputs).measured
    row = sum(held.bins.counts.sum() + held.zeros for held, _ in whole.values()) // 40 * 4
    monkeypatch.setattr("pytest_int8acc.observers.collect.CHUNK_BYTES", 3 * int(row))
    Opened.count = 0
    parts = EdgeMeter(network, case.model, case.inputs, Opened()).measured
    assert Opened.count == 2  # maxima, and values
    for tensor, (held, stats) in parts.items():
        np.testing.assert_array_equal(held.counts, whole[tensor][0].counts)
        for known, own in zip(whole[tensor][1].values(), stats.values(), strict=True):
            assert (own.values, own.clipped, own.top_code) == (known.values, known.clipped, known.top_code)
            assert own.sqnr_db == pytest.approx(known.sqnr_db, rel=1e-6)


def test_of_large_tensors_the_first_samples_are_counted(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_int8acc.observers.edges._COUNTED_BYTES", 1)
    network = lab_of(case).network
    few = EdgeMeter(network, case.model, FirstSamples(case.inputs, case.model, 16)).measured
    for tensor, (held, stats) in EdgeMeter(network, case.model, case.inputs).measured.items():
        assert held.maxima.size == 40
        known = few[tensor][1].values()
        assert [own.values for own in stats.values()] == [own.values for own in known]


def test_small_tensors_are_counted_on_all_samples(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    network = lab_of(case).network
    measured = EdgeMeter(network, case.model, case.inputs).measured
    sizes = {tensor: held.run_bytes // held.run_rows for tensor, (held, _) in measured.items()}
    tensor = min(sizes, key=lambda name: sizes[name])
    assert sizes[tensor] < max(sizes.values())
    monkeypatch.setattr("pytest_int8acc.observers.edges._COUNTED_BYTES", 40 * sizes[tensor])
    few = EdgeMeter(network, case.model, case.inputs).measured
    counts = {n: sum(s.values for s in stats.values()) for n, (_, stats) in measured.items()}
    found = {n: sum(s.values for s in stats.values()) / counts[n] for n, (_, stats) in few.items()}
    assert found[tensor] == 1
    assert min(found.values()) < 0.5


def test_what_calibration_measured_on_the_same_samples_is_not_measured_again(case: Any) -> None:
    assert case.int8 is not None
    network = case.int8.network
    tensors = list(dict.fromkeys(e.tensor for e in network.edges if e.quantization.values is None))
    observed = calibrate(network.model, tensors, case.inputs, method="mse").observed
    data = Counted(case.inputs)
    lab = Lab(replace(case, inputs=data), replace(case.int8, observed=observed))
    found = lab.values(data).of(tensors)
    assert data.passes == 0
    alone = Lab(case, replace(case.int8, observed=None)).values(case.inputs).of(tensors)
    assert all((found[tensor].counts == alone[tensor].counts).all() for tensor in tensors)
    other = FirstSamples(case.inputs, network.model, 8)
    other.digest = "of other samples"
    lab.values(other).of(tensors)
    assert found[tensors[0]].maxima.size > lab.values(other).of(tensors)[tensors[0]].maxima.size


def test_values_are_measured_once_per_moves(case: Any) -> None:
    data = Counted(case.inputs)
    lab = lab_of(replace(case, inputs=data))
    tensor, site = next((t, s) for t, s in sites(lab.network).items() if takes_in(lab.network, s))
    assert lab.simulator  # which reads them
    before = data.passes
    values = lab.values(data)
    own = values.of([tensor])[tensor]
    assert data.passes == before + 2
    same = lab.values(data, Plan({lab.groups[0].name: "fp16"}, {tensor: symmetric(1)}))
    assert same is values
    assert same.of([tensor])[tensor] is own
    assert data.passes == before + 2
    moves = {tensor: np.full(site.channels, 2, np.float32)}
    after = lab.values(data, Plan(moves=moves))
    assert after is lab.values(data, Plan(scales={tensor: symmetric(3)}, moves=dict(moves)))
    assert after.of([tensor])[tensor].amax == pytest.approx(own.amax / 2, rel=1e-4)
    after.of([tensor])
    assert data.passes == before + 4


@pytest.mark.parametrize(("of_samples", "few"), [(1000.0, 32), (20.0, 20), (0.1, 8)])
def test_scales_of_large_networks_are_told_by_fewer_samples(
    of_samples: float, few: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = lab_of(faulty(tmp_path, "plain", 50, 1, 20))
    rows = lab.shapes["x"][0]
    monkeypatch.setattr(
        "pytest_int8acc.lab.simulator._WORK", of_samples * sum(macs(lab.network, lab.shapes).values()) / rows
    )
    assert len(lab.simulator.inputs) == 40
    assert len(lab.simulator.few) == few
