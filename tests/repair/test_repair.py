"""Failing cases are mended at the least price: faults in trained networks, every repair built and judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from labs import lab_of
from planted_repairs import measured
from repair_support import KINDS, NORM, READER, SAMPLES, WIDE, planted

from benchmarks.case import assemble, dataset
from benchmarks.faults import outlier_channel
from benchmarks.nets import digits, trained
from pytest_int8acc.case.forms import Form
from pytest_int8acc.engines.onnxruntime import OrtEngine
from pytest_int8acc.graph.groups import find_groups
from pytest_int8acc.graph.network import Edge, Plan, Quantization
from pytest_int8acc.graph.plan import moved
from pytest_int8acc.graph.quantize import quantize
from pytest_int8acc.lab import simulator
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.measure.measured import Measured
from pytest_int8acc.repair import repair as repairing
from pytest_int8acc.repair import scales
from pytest_int8acc.repair.precision import Found, find_precision
from pytest_int8acc.repair.repair import Repaired, repair
from pytest_int8acc.report.diagnosis import repair_text
from pytest_int8acc.report.view import repair_detail
from pytest_int8acc.results import Ending, Latency, SearchOutcome
from pytest_int8acc.scales.calibrate import calibrate
from pytest_int8acc.settings import Settings
from tests.support.judged import judged as verdict


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without candidates by entropy: they take most of the time, and are seen to in test_scales.py."""
    monkeypatch.setattr(scales, "METHODS", {k: m for k, m in scales.METHODS.items() if k != "entropy"})


def measured_kind(folder: Path, kind: str) -> Measured:
    network, limits = KINDS[kind]
    return measured(folder, network(), limits)


def mended(case: Measured) -> tuple[SearchOutcome, Repaired]:
    assert not case.result.passed
    lab = lab_of(case)
    outcome, found = find_precision(lab)
    return outcome, repair(lab, outcome, found)


def built_anew(case: Measured, plan: Plan) -> Form:
    """The case's form under a plan, made by nobody else."""
    assert case.int8 is not None
    return case.int8.under(plan)


def judged(case: Measured, form: Form) -> bool:
    """Whether a form passes: built anew, not through the repair."""
    engine, found = OrtEngine(form.model), {name: [] for name in case.baseline}
    for batch in case.inputs.batches():
        for name, array in engine(batch.feed).items():
            found[name].append(array[: batch.rows])
    return all(output.passed for output in verdict(case.judge, case.baseline, found).outputs)


Searched = tuple[Lab, SearchOutcome, Found]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Searched:
    """A case of which one range is 50 times too wide, searched."""
    network = planted("cnn", factors={WIDE: 50})
    case = measured(tmp_path_factory.mktemp("wide"), network, {"sqnr_db": 20}, "scales")
    lab = lab_of(case)
    return lab, *find_precision(lab)


@pytest.mark.parametrize("form", ["model", "scales"])
def test_a_wide_scale_is_recalibrated_and_no_layer_leaves_int8(
    tmp_path: Path, wide: Searched, form: str
) -> None:
    lab, outcome, found = wide
    if form == "model":
        lab = lab_of(measured_kind(tmp_path, "recalibrate"))
    case, repaired = lab.measured, repair(lab, outcome, found)
    first, last = repaired.repairs
    assert (first.kind, first.layers, first.price, first.verified) == ("recalibrate", (), 0.0, True)
    assert repair_text(first).startswith("no layer needs FP16: other scales for 1 tensor (")
    assert "the compared inputs themselves" in repair_text(first)
    (change,) = first.rescales
    assert 40 < change.old / change.new < 70
    assert (last.kind, last.layers) == ("high", tuple(c.layer for c in outcome.culprits))
    assert repaired.proofs[1] is found.fix
    best = repaired.proofs[0]
    assert not best.plan.high
    assert judged(case, best.form)
    assert judged(case, built_anew(case, best.plan))
    assert all(score.passed for score in first.scores)


def test_ranges_come_from_the_calibration_data_where_there_is_some(tmp_path: Path) -> None:
    case = measured(tmp_path, planted("cnn"), {"sqnr_db": 25}, "calibrate")
    repaired = mended(case)[1]
    assert repaired.repairs[0].kind == "recalibrate"
    assert "the calibration data, calibration.npz" in repair_text(repaired.repairs[0])


def test_outlier_channels_of_a_transformer_are_migrated_into_the_norm_before(tmp_path: Path) -> None:
    case = measured_kind(tmp_path, "migrate")
    outcome, repaired = mended(case)
    assert [culprit.layer for culprit in outcome.culprits] == [READER]
    first, best = repaired.repairs[0], repaired.proofs[0]
    assert (first.kind, first.layers, first.verified) == ("migrate", (), True)
    assert f"folded into '{NORM}'" in repair_text(first)
    assert "Mul" not in repair_text(first)
    assert best.plan.moves
    assert judged(case, built_anew(case, best.plan))
    assert case.int8 is not None
    assert len(moved(case.int8.network, best.plan).model.graph.node) == len(case.model.graph.node)


def test_weights_with_one_scale_for_all_channels_get_scales_of_their_own(tmp_path: Path) -> None:
    model = outlier_channel(trained("resnet"), "/2/first/conv/Conv", ["/2/second/conv/Conv"], 4, 60)
    calibration = digits("calibration", SAMPLES)
    network = assemble(model, calibration, {"sqnr_db": 20}, per_tensor=["/2/first/conv/Conv"]).network
    case = measured(tmp_path, network, {"cosine": 0.9995})
    first = mended(case)[1].repairs[0]
    assert (first.kind, first.layers, first.verified) == ("migrate", (), True)
    assert "scales of 1 weight taken anew" in repair_text(first)


def test_what_no_scale_mends_stays_high(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repairing, "MOST_TRIALS", 2)
    case = measured_kind(tmp_path, "high")
    outcome, repaired = mended(case)
    first, bare = repaired.repairs
    assert (first.kind, first.verified) == (bare.kind, not bare.verified) == ("high", True)
    assert first.layers == tuple(repaired.proofs[0].plan.high) == outcome.kept
    assert first.scores == outcome.fixed
    assert first.price == pytest.approx(1 - outcome.int8_share)
    assert bare.layers == tuple(c.layer for c in outcome.culprits)
    assert repaired.trials <= 13
    assert repaired.builds == 0  # the simulation knew


@pytest.mark.parametrize("certify", [False, True])
def test_where_runs_take_time_a_repair_costs_no_more_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certify: bool
) -> None:
    """All that it runs counts, trials or not; with ``certify`` nothing but trials does."""
    monkeypatch.setattr(simulator, "_LITTLE", 0.0)
    case = replace(measured_kind(tmp_path, "high"), settings=Settings(certify=certify))
    lab = lab_of(case)
    outcome, found = find_precision(lab)
    before = lab.simulator.meter.runs
    notes = repair(lab, outcome, found).notes
    cost = lab.simulator.meter.runs - before
    whole = 1 + len(lab.simulator.few) / len(lab.simulator.inputs)  # what may be under way when it is spent
    assert cost > repairing.RUNS if certify else cost <= repairing.RUNS + whole
    bounded = [note for note in notes if note.endswith(" trials of other scales, all that a repair may cost")]
    assert bool(bounded) == (not certify)


def test_a_plan_without_reserve_is_not_called_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fewest layers just keep the limit on these samples; the fix keeps more, and says why."""
    monkeypatch.setattr(repairing, "MOST_TRIALS", 12)
    outcome, repaired = mended(measured_kind(tmp_path, "high"))
    first, bare = repaired.repairs[0], repaired.repairs[-1]
    assert all(score.likely and score.interval is not None for score in first.scores if score.limit)
    assert all(score.passed and not score.likely for score in bare.scores if score.limit)
    assert outcome.verified
    assert set(outcome.with_reserve) == set(first.layers)
    assert bare.price < first.price


def test_other_scales_are_part_of_a_verified_fix_where_they_cannot_mend_all(tmp_path: Path) -> None:
    """Which layers stay in FP16 is not asserted: it depends on sums that CPUs round differently."""
    case = measured_kind(tmp_path, "mixed")
    outcome, repaired = mended(case)
    assert WIDE in {culprit.layer for culprit in outcome.culprits}
    first, last = repaired.repairs[0], repaired.repairs[-1]
    assert first.verified
    assert first.rescales
    assert last.kind == "high"
    plan = repaired.proofs[0].plan
    assert case.proved(built_anew(case, plan)).holds


def test_asymmetric_uint8_becomes_symmetric_int8(tmp_path: Path) -> None:
    network = planted("cnn", factors={WIDE: 50})

    def unsigned(edge: Edge) -> Edge:
        if edge.quantization.values is not None:
            return edge
        return replace(edge, quantization=Quantization(edge.quantization.scale, np.array(128, np.uint8)))

    groups = tuple(replace(g, edges=tuple(map(unsigned, g.edges))) for g in network.groups)
    case = measured(tmp_path, replace(network, groups=groups), {"sqnr_db": 20})
    repaired = mended(case)[1]
    assert repaired.repairs[0].kind == "recalibrate"
    types = {t.data_type for t in repaired.proofs[0].form.model.graph.initializer if "zero_point" in t.name}
    assert types == {3}  # INT8


def test_a_plan_that_the_case_has_already_stays(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("version: 4\nhigh: {/0/conv/Conv: fp16}\nscales: {}\n")
    case = measured(tmp_path, planted("cnn", factors={WIDE: 50}), {"sqnr_db": 20}, "scales", plan="own.yaml")
    repaired = mended(case)[1]
    assert repaired.repairs[0].kind == "recalibrate"
    form = built_anew(case, repaired.proofs[0].plan)
    assert judged(case, form)
    quantized = [n.name for n in form.model.graph.node if n.op_type == "DequantizeLinear"]
    assert not any(name.startswith("/0/conv/Conv") for name in quantized)


@pytest.mark.parametrize(
    ("spread", "first"),
    [(0.4, "high"), (40.0, "recalibrate")],  # FP16 is faster here; beyond doubt or not
)
def test_times_measured_order_the_repairs(
    wide: Searched, monkeypatch: pytest.MonkeyPatch, spread: float, first: str
) -> None:
    def price(lab: Lab, form: Form) -> Latency:
        ms = float(len(form.model.graph.node))  # the pairs of a layer in FP16 are gone
        return Latency(ms, ms - spread, ms + spread, 100)

    monkeypatch.setattr(Lab, "latency", price)
    repaired = repair(*wide)
    repairs = repaired.repairs
    times = {r.kind: r.latency.median_ms for r in repairs if r.latency is not None}
    assert times["high"] <= times["recalibrate"] - 1
    assert repairs[0].kind == first
    assert [sorted(proof.plan.high) for proof in repaired.proofs] == [sorted(r.layers) for r in repairs]
    assert "; takes " in repair_detail(repairs[0])


def test_without_times_the_work_that_leaves_int8_orders_the_repairs(wide: Searched) -> None:
    repairs = repair(*wide).repairs
    assert [(r.kind, r.latency) for r in repairs] == [("recalibrate", None), ("high", None)]


def test_no_trials_leave_the_plan_of_the_search(wide: Searched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repairing, "MOST_TRIALS", 0)
    assert [r.kind for r in repair(*wide).repairs] == ["high"]


def test_nothing_is_mended_where_int8_is_not_the_cause(tmp_path: Path) -> None:
    case = measured(tmp_path, planted("cnn"), {"sqnr_db": 46})
    broken = {name: [a + 1 for a in arrays] for name, arrays in case.baseline.items()}
    case = replace(case, runs=replace(case.runs, baseline=broken))
    repaired = mended(case)[1]
    assert repaired.repairs == ()
    assert repaired.trials == 0


def test_what_no_search_found_is_looked_for_in_all_groups(
    wide: Searched,
) -> None:
    lab, outcome, found = wide
    lost = replace(outcome, found=False, culprits=(), ending=Ending("seconds-spent", max_seconds=1))
    repaired = repair(lab, lost, replace(found, proof=None))
    assert [r.kind for r in repaired.repairs] == ["recalibrate"]
    assert any(abs(r.old / r.new) > 40 for r in repaired.repairs[0].rescales)


def test_healthy_ranges_need_no_repair_of_their_own(tmp_path: Path) -> None:
    model = trained("cnn")
    layout = find_groups(model)
    opened = dataset(model, digits("calibration", SAMPLES), tmp_path)
    network = quantize(model, layout, calibrate(model, layout.activations, opened, method="minmax").values)
    case = measured(tmp_path, network, {"sqnr_db": 20})
    lab = lab_of(case)
    assert repair(lab, *find_precision(lab)).repairs == ()
