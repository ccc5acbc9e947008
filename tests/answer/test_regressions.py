"""The corpus of regressions is what it says: its faults are in, its truth is true, its figures add up."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from judged import compare_outputs  # noqa: E402

from benchmarks.regressions import judge, record  # noqa: E402
from benchmarks.regressions.__main__ import main  # noqa: E402
from benchmarks.regressions.corpus import corpus  # noqa: E402
from benchmarks.regressions.entry import Truth, write  # noqa: E402
from benchmarks.regressions.networks import LIMITS  # noqa: E402
from benchmarks.regressions.record import Record, measure  # noqa: E402
from benchmarks.regressions.tables import by_entry, by_kind, summary  # noqa: E402
from benchmarks.regressions.truth import Prover, by_weight, prove  # noqa: E402
from pytest_int8acc import Settings, load_spec  # noqa: E402
from pytest_int8acc.api import check  # noqa: E402
from pytest_int8acc.report.plain import restore, to_plain  # noqa: E402
from pytest_int8acc.scores.criteria import OutputLimits  # noqa: E402


def margin(planted) -> float:
    before, after = (judge.run(m, planted.inputs) for m in (planted.model, planted.candidate))
    return judge.margin(judge.scores(before, after, planted.limits), planted.limits)


def test_corpus_is_as_large_as_promised():
    entries = corpus().values()
    faults = [e.network for e in entries if e.kind != "healthy"]
    assert len(faults) >= 300
    transformers = ("vit", "encoder", "decoder", "swin", "recognizer", "attention")
    assert sum(network in transformers for network in faults) >= 0.3 * len(faults)
    assert sum(e.kind == "healthy" for e in entries) >= 30
    assert {e.network for e in entries} >= set(LIMITS)
    assert len(LIMITS) >= 14


@pytest.mark.parametrize(
    ("name", "moved"),
    [
        ("narrow_tcn_by100", True),
        ("outlier_mlp_x100", True),
        ("axis_mlp", True),
        ("zero_weight_zero_cnn", True),
        ("join_detector_decoded", True),
        ("stale_retrained_unet", True),
        ("sum_decoder_blocks.0_add_8_0", True),
        ("chosen_wide", True),
        ("wide_tcn_x2", False),
        ("axis_consistent_mlp", False),
        ("healthy_cache_cnn", False),
    ],
)
def test_second_opinion_sees_what_was_planted(name, moved):
    assert (margin(corpus()[name].plant()) < -1) == moved


@given(seed=st.integers(0, 1000), noise=st.sampled_from([1e-3, 0.1, 1.0]))
def test_second_opinion_computes_as_the_plugin_does(seed, noise):
    rng = np.random.default_rng(seed)
    baseline = {"y": rng.standard_normal((16, 10)).astype(np.float32)}
    candidate = {"y": baseline["y"] + noise * rng.standard_normal((16, 10)).astype(np.float32)}
    limits = {"cosine": 0.99, "sqnr_db": 20.0, "psnr_db": 30.0, "top1_agreement": 0.9, "mean_abs": 0.1}
    ours = judge.scores(baseline, candidate, {"y": limits})
    (result,) = compare_outputs(
        {"y": [baseline["y"]]}, {"y": [candidate["y"]]}, [OutputLimits("y", limits=limits)]
    )
    theirs = {("y", score.metric): score.value for score in result.scores if score.metric in limits}
    assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-7)
    assert (judge.margin(ours, {"y": limits}) >= 0) == result.passed


def test_nan_misses_every_limit():
    assert judge.margin({("y", "cosine"): np.nan}, {"y": {"cosine": 0.9}}) == -np.inf


def test_sets_come_by_weight_and_none_is_missing():
    class Weights:
        def weigh(self, names):
            return sum({"a": 3.0, "b": 1.0, "c": 1.5, "d": 0.2}[n] for n in names)

    sets = list(by_weight("abcd", Weights()))
    assert len(sets) == len(set(sets)) == 15
    weights = [Weights().weigh(s) for s in sets]
    assert weights == sorted(weights)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A prover of two faults in a network of eleven groups."""
    planted = corpus()["several_cnn_pair"].plant()
    return planted, Prover(planted, tmp_path_factory.mktemp("pair"))


def test_least_set_is_proven_and_answers_are_measured_by_it(pair):
    planted, prover = pair
    right = tuple(planted.truth.causes)
    verdict = prove(prover, right, planted.truth.causes)
    assert verdict.proven
    assert verdict.minimal
    assert set(verdict.least) == set(verdict.certain) == set(right) == {"/3/conv/Conv", "/8/conv/Conv"}
    assert (verdict.precision, verdict.recall) == (1, 1)
    more = prove(prover, [*right, "/5/conv/Conv"], planted.truth.causes)
    assert more.sufficient
    assert not more.minimal
    assert (more.precision, more.recall) == (pytest.approx(2 / 3), 1)
    less = prove(prover, right[:1], planted.truth.causes)
    assert not less.sufficient
    assert (less.precision, less.recall) == (1, 0.5)
    assert prove(prover, [], planted.truth.causes).recall == 0


def test_spec_folder_is_what_check_reads(tmp_path):
    entry = corpus()["data_swapped_inception"]
    (case,) = load_spec(write(entry, entry.plant(), tmp_path))
    with np.load(tmp_path / "calibration.npz") as swapped, np.load(tmp_path / "inputs.npz") as inputs:
        assert swapped["image"].mean((0, 2, 3)).argmax() != inputs["image"].mean((0, 2, 3)).argmax()
        assert case.samples == len(inputs["image"])


@pytest.mark.parametrize(
    "name",
    [
        "zero_activation_zero_mlp",
        "strange1_rare_words",  # a table with scales along the wrong axis
        "strange1_rnn_biases",
        "strange1_spare_slice",  # channels that are sliced off take the range
        "strange1_equalized",  # the quantizer moved range between layers
        "strange2_mean",  # codes of a BatchNormalization's mean are all too high
        "strange2_relative",  # a mask in a constant takes its range
        "strange3_loud",  # values that saturate a Tanh take the range
    ],
)
def test_fault_is_detected_and_its_layers_named(name):
    found = measure(name)
    assert found.verdict == "failed"
    assert found.detected
    assert found.named
    assert found.proof is not None
    assert (found.proof.precision, found.proof.recall) == (1, 1)
    assert found.fix


def test_a_fix_where_one_sample_has_most_of_the_error_is_proved_with_wider_ranges():
    found = measure("weight_dead_mlp_x20")
    assert (found.verdict, found.named, found.fix) == ("failed", True, "INT8")


@pytest.mark.parametrize("name", ["fp16_overflow_mlp", "dynamic_mlp", "stale_other_cnn"])
def test_what_cannot_be_judged_is_refused_by_its_name(name):
    found = measure(name)
    assert found.verdict == "refused"
    assert found.named
    assert found.moves


def test_pairs_that_no_plan_takes_off_are_told():
    found = measure("unequal_pair_cnn", prove_culprits=False)
    assert found.verdict == "failed"
    assert found.message.startswith("Q and DQ disagree at '/6/conv/Conv_input0_DequantizeLinear': ")
    assert "the search cannot change this pair" in found.message
    assert not found.fix
    assert found.reason.startswith("with all groups in high precision the criteria fail too")


def test_healthy_models_raise_no_alarm_and_missing_scales_a_warning():
    for name in ("healthy_minmax_tcn", "healthy_ort_mlp", "healthy_qdq_unet"):
        assert measure(name).verdict == "passed"
    missing = measure("missing_detector")
    assert (missing.verdict, missing.detected, missing.named) == ("passed", True, True)


def test_causes_findings_and_repairs_are_counted(tmp_path):
    entry = corpus()["wide_resnet_x30"]
    planted = entry.plant()
    (case,) = load_spec(write(entry, planted, tmp_path))
    result = check(case, Settings(backend="onnxruntime"))
    (culprit,) = to_plain(result)["search"]["culprits"]

    def of(kind="", repairs=(), findings=(), truth=planted.truth) -> Record:
        told = to_plain(result)
        cause = {"kind": kind, "symptom": "noise-adds-up"} if kind else None
        told["search"]["culprits"] = [{**culprit, "cause": cause}]
        told |= {"findings": findings, "diagnosis": {"repairs": repairs}}
        return record._of_result(entry, replace(planted, truth=truth), restore(told), None, 0.0)

    assert of("scale-too-wide").named
    assert not of("saturation").named
    assert not of().named
    assert of("saturation").causes_judged == 1
    finding = {"rule": "data-factor", "subject": "image", "text": "", "remedy": "", "severity": "warning"}
    everywhere = Truth(anywhere=frozenset({"scale-too-wide"}), rules=("*factor*",))
    assert of(findings=[{**finding, "source": "data"}], truth=everywhere).named
    assert not of(truth=everywhere).named
    empty = {"layers": [], "rescales": [], "scores": [], "price": 0.0}
    evidence = {"subject": "plan", "place": "exact", "proved_on": {"count": 8}}
    mended = {"kind": "recalibrate", **empty, "verified": True, "evidence": evidence}
    assert of(repairs=[mended]).fix == "INT8"
    assert of(repairs=[{**mended, "verified": False}]).fix == "FP16"
    assert of(repairs=[{**mended, "kind": "mixed", "layers": ["a"]}]).fix == "mixed"


def test_figures_tell_harmless_missed_and_false_alarms():
    fault = Record("a", "kind", "cnn", "criteria", -3.0, "failed", "", True, True, fix="INT8", int8_fix=True)
    missed = replace(fault, name="missed", verdict="passed", detected=False, named=False, fix="")
    harmless = replace(missed, name="harmless", margin=2.0)
    near = replace(missed, name="near", margin=-0.1)
    alarm = replace(missed, name="alarm", shows="healthy", margin=5.0, verdict="failed")
    records = [fault, missed, harmless, near, alarm]
    text = summary(records)
    assert "faults: 4, of them harmless 2, to be found 2" in text
    assert "detected: 1 of 2 (1 of 2 that move a criterion): missed" in text
    assert "false alarms 1: alarm" in text
    assert "in INT8 1 of 1" in text
    assert "| kind    | 4       | 2        | 1 of 2" in by_kind(records)
    assert by_entry(records).count("\n") == len(records) + 1


def test_command_line_writes_json_and_knows_its_entries(tmp_path, capsys):
    out = tmp_path / "results.json"
    main(["--only", "narrow_mlp_by*", "--entries", "--json", str(out)])
    assert "| scale too narrow | 2 " in capsys.readouterr().out
    plain = json.loads(out.read_text())
    assert [record["proof"]["precision"] for record in plain] == [1.0, 1.0]
    main(["--only", "*_mlp_*", "--list"])
    assert "narrow_mlp_by30: scale too narrow\n" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="--only nothing: no entry is called so"):
        main(["--only", "nothing"])
