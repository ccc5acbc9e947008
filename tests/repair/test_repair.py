"""Failing cases are mended at the least price: faults in trained networks, every repair built and judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from planted_repairs import measured
from repair_support import KINDS, NORM, READER, SAMPLES, WIDE, planted

from benchmarks.case import assemble, dataset
from benchmarks.faults import outlier_channel
from benchmarks.nets import digits, trained
from pytest_int8acc.case.forms import Form
from pytest_int8acc.engines.onnxruntime import OrtEngine
from pytest_int8acc.graph.groups import find_groups
from pytest_int8acc.graph.network import Edge, Quantization
from pytest_int8acc.graph.quantize import quantize
from pytest_int8acc.measure.measured import Measured
from pytest_int8acc.repair import rescale
from pytest_int8acc.repair.precision import investigate
from pytest_int8acc.repair.repair import Repaired, repair
from pytest_int8acc.report.diagnosis import repair_line
from pytest_int8acc.results import Ending, Latency, SearchOutcome
from pytest_int8acc.scales.calibrate import calibrate


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without candidates by entropy: they take most of the time, and are seen to in test_rescale.py."""
    monkeypatch.setattr(rescale, "METHODS", tuple(m for m in rescale.METHODS if m != "entropy"))


def measured_kind(folder: Path, kind: str) -> Measured:
    network, limits = KINDS[kind]
    return measured(folder, network(), limits)


def mended(case: Measured, **options: object) -> tuple[SearchOutcome, Repaired]:
    assert not case.result.passed
    outcome, _ = investigate(case)
    return outcome, repair(case, outcome, **options)  # type: ignore[arg-type]


def judged(case: Measured, form: Form) -> bool:
    """Whether a form passes: built anew, not through the repair."""
    engine, found = OrtEngine(form.model), {name: [] for name in case.baseline}
    for batch in case.inputs.batches():
        for name, array in engine(batch.feed).items():
            found[name].append(array[: batch.rows])
    return all(output.passed for output in case.judge(case.baseline, found)[0])


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Measured, SearchOutcome]:
    """A case of which one range is 50 times too wide, searched."""
    network = planted("cnn", factors={WIDE: 50})
    case = measured(tmp_path_factory.mktemp("wide"), network, {"sqnr_db": 20}, "scales")
    return case, investigate(case)[0]


@pytest.mark.parametrize("form", ["model", "scales"])
def test_a_wide_scale_is_recalibrated_and_no_layer_leaves_int8(
    tmp_path: Path, wide: tuple[Measured, SearchOutcome], form: str
) -> None:
    case, outcome = wide
    if form == "model":
        case = measured_kind(tmp_path, "recalibrate")
    repaired = repair(case, outcome)
    first, last = repaired.repairs
    assert (first.kind, first.layers, first.price, first.verified) == ("recalibrate", (), 0.0, True)
    assert first.text.startswith("no layer needs FP16: other scales for 1 tensor (")
    assert "the compared inputs themselves" in first.text
    (change,) = first.rescales
    assert 40 < change.old / change.new < 70
    assert (last.kind, last.layers) == ("high", tuple(c.layer for c in outcome.culprits))
    best = repaired.best
    assert best is not None
    assert not best.plan.high
    assert judged(case, best.form)
    assert judged(case, best.int8.under(best.plan))
    assert all(score.passed for score in first.scores)


def test_ranges_come_from_the_calibration_data_where_there_is_some(tmp_path: Path) -> None:
    case = measured(tmp_path, planted("cnn"), {"sqnr_db": 25}, "calibrate")
    repaired = mended(case)[1]
    assert repaired.repairs[0].kind == "recalibrate"
    assert "the calibration data, calibration.npz" in repaired.repairs[0].text


def test_outlier_channels_of_a_transformer_are_migrated_into_the_norm_before(tmp_path: Path) -> None:
    case = measured_kind(tmp_path, "migrate")
    outcome, repaired = mended(case)
    assert [culprit.layer for culprit in outcome.culprits] == [READER]
    first, best = repaired.repairs[0], repaired.best
    assert (first.kind, first.layers, first.verified) == ("migrate", (), True)
    assert f"folded into '{NORM}'" in first.text
    assert "Mul" not in first.text
    assert best is not None
    assert judged(case, best.int8.under(best.plan))
    assert len(best.int8.network.model.graph.node) == len(case.model.graph.node)


def test_weights_with_one_scale_for_all_channels_get_scales_of_their_own(tmp_path: Path) -> None:
    model = outlier_channel(trained("resnet"), "/2/first/conv/Conv", ["/2/second/conv/Conv"], 4, 60)
    calibration = digits("calibration", SAMPLES)
    network = assemble(model, calibration, {"sqnr_db": 20}, per_tensor=["/2/first/conv/Conv"]).network
    case = measured(tmp_path, network, {"cosine": 0.9995})
    first = mended(case)[1].repairs[0]
    assert (first.kind, first.layers, first.verified) == ("migrate", (), True)
    assert "scales of 1 weight taken anew" in first.text


def test_what_no_scale_mends_stays_high(tmp_path: Path) -> None:
    case = measured_kind(tmp_path, "high")
    outcome, repaired = mended(case, trials=30)
    assert [r.kind for r in repaired.repairs] == ["high"]
    assert repaired.best is None
    assert repaired.builds == 0  # the simulation knew
    assert repaired.repairs[0].layers == tuple(c.layer for c in outcome.culprits)
    assert repaired.repairs[0].scores == outcome.fixed
    assert repaired.repairs[0].price == pytest.approx(1 - outcome.int8_share)


def test_of_two_kinds_of_faults_one_is_mended_and_one_stays_high(tmp_path: Path) -> None:
    case = measured_kind(tmp_path, "mixed")
    outcome, repaired = mended(case)
    culprits = {culprit.layer for culprit in outcome.culprits}
    first, last = repaired.repairs
    assert WIDE in culprits
    assert (first.kind, first.verified) == ("mixed", True)
    assert set(first.layers) < culprits
    assert WIDE not in first.layers
    assert 0 < first.price < last.price
    assert first.text.startswith(f"{len(first.layers)} of {len(culprits)} layers in FP16: other scales for")
    assert repaired.best is not None
    assert judged(case, repaired.best.int8.under(repaired.best.plan))
    for layer in first.layers:  # each of them must
        rest = {name: p for name, p in repaired.best.plan.high.items() if name != layer}
        assert not judged(case, repaired.best.int8.under(replace(repaired.best.plan, high=rest)))


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
    assert repaired.best is not None
    types = {t.data_type for t in repaired.best.form.model.graph.initializer if "zero_point" in t.name}
    assert types == {3}  # INT8


def test_a_plan_that_the_case_has_already_stays(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("version: 1\nhigh: {/0/conv/Conv: fp16}\nscales: {}\n")
    case = measured(tmp_path, planted("cnn", factors={WIDE: 50}), {"sqnr_db": 20}, "scales", plan="own.yaml")
    repaired = mended(case)[1]
    assert repaired.repairs[0].kind == "recalibrate"
    assert repaired.best is not None
    form = repaired.best.int8.under(repaired.best.plan)
    assert judged(case, form)
    quantized = [n.name for n in form.model.graph.node if n.op_type == "DequantizeLinear"]
    assert not any(name.startswith("/0/conv/Conv") for name in quantized)


@pytest.mark.parametrize(
    ("spread", "first"),
    [(0.4, "high"), (40.0, "recalibrate")],  # FP16 is faster here; beyond doubt or not
)
def test_a_time_measured_by_the_caller_orders_the_repairs(
    wide: tuple[Measured, SearchOutcome], spread: float, first: str
) -> None:
    def price(form: Form) -> Latency:
        ms = float(len(form.model.graph.node))  # the pairs of a layer in FP16 are gone
        return Latency(ms, ms - spread, ms + spread, 100)

    case, outcome = wide
    repairs = repair(case, outcome, price=price).repairs
    times = {r.kind: r.latency.median_ms for r in repairs if r.latency is not None}
    assert times["high"] <= times["recalibrate"] - 1
    assert repairs[0].kind == first
    assert repair_line(repairs[0]).endswith(" ms)")


def test_without_times_the_work_that_leaves_int8_orders_the_repairs(
    wide: tuple[Measured, SearchOutcome],
) -> None:
    assert [r.kind for r in repair(*wide, price=lambda _: None).repairs] == ["recalibrate", "high"]


def test_no_trials_leave_the_plan_of_the_search(wide: tuple[Measured, SearchOutcome]) -> None:
    assert [r.kind for r in repair(*wide, trials=0).repairs] == ["high"]


def test_nothing_is_mended_where_int8_is_not_the_cause(tmp_path: Path) -> None:
    case = measured(tmp_path, planted("cnn"), {"sqnr_db": 46})
    broken = {name: [a + 1 for a in arrays] for name, arrays in case.baseline.items()}
    case = replace(case, runs=replace(case.runs, baseline=broken))
    repaired = mended(case)[1]
    assert repaired.repairs == ()
    assert repaired.trials == 0


def test_what_no_search_found_is_looked_for_in_all_groups(
    wide: tuple[Measured, SearchOutcome],
) -> None:
    case, outcome = wide
    lost = replace(outcome, found=False, culprits=(), ending=Ending("seconds-spent", max_seconds=1))
    repaired = repair(case, lost)
    assert [r.kind for r in repaired.repairs] == ["recalibrate"]
    assert any(abs(r.old / r.new) > 40 for r in repaired.repairs[0].rescales)


def test_healthy_ranges_need_no_repair_of_their_own(tmp_path: Path) -> None:
    model = trained("cnn")
    layout = find_groups(model)
    opened = dataset(model, digits("calibration", SAMPLES), tmp_path)
    network = quantize(model, layout, calibrate(model, layout.activations, opened, method="minmax").values)
    case = measured(tmp_path, network, {"sqnr_db": 20})
    assert repair(case, investigate(case)[0]).repairs == ()
