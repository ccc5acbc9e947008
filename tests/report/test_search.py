"""How a search reads: culprits, fix, cost; in the failure text and in report.json."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_int8acc.report.json import case_entry, report_of, write_json
from pytest_int8acc.report.plain import restore, to_plain
from pytest_int8acc.report.search import alone_text, fix_line, reason, remarks, search_lines
from pytest_int8acc.report.text import failure
from pytest_int8acc.results import (
    CaseResult,
    Certificate,
    Culprit,
    Ending,
    LayerLine,
    OutputResult,
    Repair,
    Score,
    SearchOutcome,
    Tradeoff,
    TradeoffPoint,
    TrialLine,
)

MISSED = Score("logits", "cosine", 0.8741, limit=0.999, noise=1.0)
FOUND = SearchOutcome(
    strategy="minimal",
    precision="fp16",
    culprits=(
        Culprit("/conv5/Conv", "Conv", ("/conv5/Conv",), replace(MISSED, value=0.9312), 0.125),
        Culprit("/fc/Gemm", "Gemm", ("/fc/Gemm",), None, 0.01),
    ),
    found=True,
    minimal=True,
    verified=True,
    fixed=(replace(MISSED, value=0.9996),),
    ending=Ending("proven", 2, 20),
    trials=(
        TrialLine((), False, 126.0, 1.0, "nothing kept high"),
        TrialLine(("a", "b"), True, 0.4, 0.5, "drop"),
    ),
    probes=18,
    cost=2.75,
    builds=1,
    seconds=1.234,
    int8_share=0.865,
    held_out=51,
)


def case(search: SearchOutcome) -> CaseResult:
    output = OutputResult("logits", "float32", "(256, 10)", (MISSED,))
    return CaseResult(
        "digits",
        "digits.int8acc.yaml",
        256,
        "val.npz",
        "FP16",
        "INT8",
        "ONNX Runtime",
        (output,),
        search=search,
    )


def test_failure_with_a_verified_fix_reads_like_this() -> None:
    assert failure(case(FOUND)).splitlines() == [
        "INT8 accuracy: 'logits' cosine 0.8741 < 0.999",
        "Fix: keep 2 layers in FP16, 86% of the multiply-accumulates stay in INT8; cosine 0.9996 >= 0.999, "
        "verified",
        "Layers at fault (put any one of them back into INT8, and the criteria fail):",
        "  /conv5/Conv (Conv): alone in INT8: 'logits' cosine 0.9312 < 0.999",
        "  /fc/Gemm (Gemm)",
        "More: -v shows scores, stages and other ways; --int8acc-report DIR writes fixed.onnx and a report",
    ]
    assert search_lines(FOUND, 2)[:6] == [
        "Culprits (minimal: leave any one in INT8 and the criteria fail)",
        "  layer        type  alone in INT8         price",
        "  /conv5/Conv  Conv  logits cosine 0.9312  12.5% of MACs",
        "  /fc/Gemm     Gemm                        1.0% of MACs",
        "Plan of the search, verified (built and run on all samples, 51 of them not seen by the search): "
        "these 2 groups in FP16, 86% of the MACs stay in INT8",
        "Search 'minimal': 2 trials and 18 probes (as much as 2.75 runs over all samples), 1 model built, in "
        "1.23 s; proven minimal: each of the 2 groups kept high was sent back to INT8 alone, and fails",
    ]


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (("/conv5/Conv", "/fc/Gemm", "/pool"), "these 2 groups and /pool (for a reserve) in FP16, 86% of"),
        (("/fc/Gemm", "/pool"), "/fc/Gemm, /pool (in place of these, for a reserve) in FP16, 86% of"),
    ],
)
def test_a_plan_that_keeps_others_than_the_culprits_names_them(kept: tuple[str, ...], said: str) -> None:
    assert said in fix_line(replace(FOUND, with_reserve=kept))


@pytest.mark.parametrize(
    ("outcome", "said", "unsaid"),
    [
        (replace(FOUND, verified=False), "; not verified", ", verified"),
        (replace(FOUND, culprits=FOUND.culprits[:1]), "keep 1 layer in FP16", "Layers at fault"),
        (replace(FOUND, minimal=False), "kept out of INT8 (some may be innocent):", "at fault"),
        (replace(FOUND, found=False, culprits=()), "Fix: none found", "verified"),
    ],
)
def test_a_failure_never_claims_more_than_was_proved(outcome: SearchOutcome, said: str, unsaid: str) -> None:
    text = failure(case(outcome))
    assert said in text
    assert unsaid not in text


def test_a_search_that_was_stopped_does_not_claim_minimality() -> None:
    lines = search_lines(replace(FOUND, minimal=False, ending=Ending("trials-spent", max_trials=8)), 2)
    assert lines[0] == "Layers to keep high (not shown to be minimal)"
    assert any(line.endswith("; stopped early: the budget of 8 trials is spent") for line in lines)


def test_no_fix_says_why() -> None:
    outcome = replace(FOUND, found=False, verified=False, culprits=(), ending=Ending("high-fails", 20, 20))
    begin = "No fix: with all groups in high precision the criteria fail too: "
    assert f"{begin}INT8 is not the cause" in search_lines(outcome, 2)
    fixed = search_lines(replace(outcome, fixed_pairs=("a_DQ", "b_DQ")), 2)
    text = "2 DequantizeLinear nodes stay as they are (blocked, FP8, INT4, or no pair): a_DQ, b_DQ"
    assert f"{begin}{text}; no plan takes them off" in fixed


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        (Ending("int8-passes"), "with all groups in INT8 the criteria are met: nothing has to leave INT8"),
        (Ending("plan-fails", 1, 20), "the plan to certify fails"),
        (
            Ending("first", 13, 20),
            "the first 13 of 20 groups: no shorter one was found, and groups within",
        ),
        (Ending("last", 13, 20), "the last 13 of 20 groups: no shorter one was found, and groups within it"),
        (Ending("worst", 3, 20), "the 3 of 20 groups that add most error: groups among them may be innocent"),
        (Ending("visited", 2, 20), "all groups were visited, 2 chosen: some may be innocent once later ones"),
        (Ending("seconds-spent", max_seconds=0.5), "stopped early: the budget of 0.5 s is spent"),
        (
            Ending("cut-short", 9, 20),
            "stopped with 9 of 20 groups high, as trials of shorter lists had cost",
        ),
        (Ending("interrupted"), "stopped early: interrupted (Ctrl-C)"),
    ],
)
def test_every_ending_reads_as_a_sentence(ending: Ending, text: str) -> None:
    assert reason(replace(FOUND, ending=ending)).startswith(text)


def test_what_building_alone_shows_is_a_remark() -> None:
    passed = replace(FOUND, certificate=Certificate(3, True, Ending("proven", 2, 2)))
    assert remarks(passed) == ["certified: 3 built models show that each culprit must leave INT8"]
    spent = replace(FOUND, certificate=Certificate(2, False, Ending("trials-spent", max_trials=2)))
    assert remarks(spent) == [
        "not certified by 2 built models: stopped early: the budget of 2 trials is spent"
    ]


def test_training_is_advised_where_most_would_leave_int8_and_nothing_else_helps() -> None:
    outcome = replace(FOUND, int8_share=0.3)
    advice = "quantization-aware training (QAT) is the better way"
    said = f"70% of the multiply-accumulates would leave INT8: {advice}"
    high = Repair("high", "2 layers in FP16", ("a", "b"), (), (), True, 0.7)
    assert remarks(outcome) == remarks(outcome, (high,)) == [said]
    assert not remarks(outcome, (replace(high, kind="recalibrate", layers=()), high))
    assert not remarks(replace(outcome, found=False)) + remarks(FOUND)


def test_vv_lists_the_trials_and_the_analyzers_table() -> None:
    row = LayerLine(1, "conv1", "[1, 10]", 0.9797, True, "Choose layer [1]")
    lines = search_lines(replace(FOUND, table=(row,)), 2)
    assert any(line.startswith("1      conv1  [1, 10]  0.9797") for line in lines)
    assert "Choose layer [1]" in lines
    assert any("nothing kept high" in line and "fails" in line for line in lines)


def test_result_with_a_search_survives_plain_types() -> None:
    result = case(FOUND)
    assert restore(json.loads(json.dumps(to_plain(result)))) == result


def test_report_json(tmp_path: Path) -> None:
    entry = case_entry("a.int8acc.yaml::digits", "failed", 1.5, case(FOUND))
    cases = [entry, case_entry("b.int8acc.yaml::b", "error", 0.1, None)]
    path = write_json(tmp_path / "out", report_of(cases))
    report = json.loads(path.read_text())
    assert report["version"] == 2
    first, second = report["cases"]
    assert first["verdict"] == "failed"
    assert first["scores"][0]["margin"] == pytest.approx(-0.1249)
    assert [c["layer"] for c in first["culprits"]] == ["/conv5/Conv", "/fc/Gemm"]
    assert first["plan"] == {"/conv5/Conv": "fp16", "/fc/Gemm": "fp16"}
    assert (first["trials"], first["builds"]) == (2, 1)
    assert second == {"nodeid": "b.int8acc.yaml::b", "verdict": "error", "seconds": 0.1}


def test_the_price_of_a_fix_in_milliseconds_is_told_where_it_is_known() -> None:
    assert fix_line(replace(FOUND, price_ms=0.0204)).endswith("86% of the MACs stay in INT8, +0.02 ms")


def test_a_score_within_its_limit_is_called_so() -> None:
    culprit = FOUND.culprits[0]
    assert culprit.worst_alone is not None
    kept = replace(culprit, worst_alone=replace(culprit.worst_alone, value=0.9995, limit=0.999))
    assert alone_text(kept) == "logits cosine 0.9995 (within its limit)"
    assert alone_text(replace(culprit, worst_alone=None)) == ""


def test_a_trade_off_is_told_under_v_with_the_layers_of_each_step() -> None:
    points = (TradeoffPoint(0, 0.0, MISSED), TradeoffPoint(2, 0.25, replace(MISSED, value=0.9995)))
    outcome = replace(FOUND, tradeoff=Tradeoff(("/fc/Gemm", "/conv5/Conv"), points, 32))
    assert not any("Noise adds up" in line for line in search_lines(outcome))
    lines = search_lines(outcome, 1)
    first = lines.index("Noise adds up: logits cosine by the MACs in FP16, each tried on 32 samples")
    assert [line.split() for line in lines[first + 2 : first + 4]] == [
        ["0.0%", "0.8741", "fails"],
        ["25.0%", "0.9995", "passes", "/fc/Gemm,", "/conv5/Conv"],
    ]
