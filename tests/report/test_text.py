"""One case as text: every line of it is read by a person in a hurry."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import report_cases
from hypothesis import assume, given
from hypothesis import strategies as st
from report_results import FINITE, RESULTS, SCORES

from pytest_int8acc.report.answer import failure_line
from pytest_int8acc.report.plain import for_people, restore, to_plain
from pytest_int8acc.report.terminal import detail_lines, status_line
from pytest_int8acc.report.text import details, failure, status
from pytest_int8acc.report.words import number, number_pair, relation, shorten, table, worst_first
from pytest_int8acc.results import CaseResult, LineFit, OutputResult, Role, Score


def case(*scores: Score, **changes: object) -> CaseResult:
    """A case with one output 'logits' that has ``scores``."""
    result = CaseResult(
        name="digits",
        spec="digits.int8acc.yaml",
        samples=397,
        data="val.npz",
        baseline="FP16",
        candidate="INT8",
        backend="ONNX Runtime 1.31.1, CPU, exact",
        outputs=(OutputResult("logits", "float32", "(397, 10)", scores),),
    )
    return dataclasses.replace(result, **changes)


COSINE = Score("logits", "cosine", 0.8741, limit=0.999, noise=1.0)
SQNR = Score("logits", "sqnr_db", 19.96, limit=20.0, noise=85.25)
ERROR = Score("logits", "max_abs", 0.0625)
SMALL = (
    "a scale is wrong for all samples, either a dynamic range too narrow, which cuts values off, or one far "
    "too wide, which rounds small values to 0"
)
TOP1 = Score("metrics.py:top1", "top1", 0.97, limit=0.98, noise=0.0, baseline=0.985)


def test_failure_reads_like_this():
    result = case(
        dataclasses.replace(COSINE, value=0.99975),
        SQNR,
        ERROR,
        metrics=(TOP1,),
        int8_groups=9,
        notes=("scales: 21 of 22 tensors found in calibration.cache",),
    )
    assert failure(result).splitlines() == [
        "INT8 accuracy: 'metrics.py:top1' 0.97 < 0.98 (+1 more missed)",
        "Fix: none looked for; --int8acc-search=always names the layers at fault, and mends them",
        "More: -v shows scores, stages and other ways; --int8acc-report DIR writes a report",
    ]
    assert failure(result, 1).splitlines()[3:] == [
        "",
        "INT8 against FP16; 397 samples: val.npz; ONNX Runtime 1.31.1, CPU, exact",
        "     output           metric   INT8     limit     noise  baseline",
        "  >  metrics.py:top1  top1     0.97     >= 0.98   0      0.985",
        "  >  logits           sqnr_db  19.96    >= 20     85",
        "     logits           cosine   0.99975  >= 0.999  1",
        "  note: scales: 21 of 22 tensors found in calibration.cache",
    ]


def test_reported_scores_come_with_vv_and_the_fit_only_where_an_output_fails():
    result = case(dataclasses.replace(COSINE, value=0.9995), ERROR)
    output = dataclasses.replace(result.outputs[0], fit=LineFit(0.5, 0.001, 0.97), worst_sample=17)
    result = dataclasses.replace(result, outputs=(output,))
    assert not any("max_abs" in line for line in details(result, 1))
    assert any("max_abs  0.0625" in line for line in details(result, 2))
    line = "note: 'logits': INT8 = 0.5 * baseline + 0.001 (correlation 0.97)"
    assert line not in details(result, 2)
    missed = dataclasses.replace(output, scores=(COSINE,))
    assert line in details(dataclasses.replace(result, outputs=(missed,)), 2)


def test_a_telling_fit_the_worst_sample_and_notes_of_scores_come_with_v():
    result = case(dataclasses.replace(COSINE, note="default limit"))
    fit = LineFit(0.5, 0.0, 0.97, ("small",))
    output = dataclasses.replace(result.outputs[0], fit=fit, worst_sample=17, note="2 elements left out")
    lines = failure(dataclasses.replace(result, outputs=(output,)), 1).splitlines()
    assert "  note: 'logits' cosine: default limit" in lines
    assert "  note: 'logits': 2 elements left out" in lines
    assert (
        "  note: 'logits': INT8 = 0.5 * baseline + 0 (correlation 0.97): INT8 values are 0.5 of the "
        f"baseline's throughout: {SMALL}" in lines
    )
    assert "  note: 'logits': sample 17 has the lowest SQNR" in lines


def test_a_note_of_many_scores_is_said_once():
    scores = [Score(f"out{i}", "sqnr_db", 9.0, limit=20.0, note="default limit") for i in range(5)]
    notes = [line for line in details(case(*scores)) if line.startswith("note:")]
    assert notes == ["note: 'out0' sqnr_db, 'out1' sqnr_db, 'out2' sqnr_db and 2 more: default limit"]


def test_a_limit_kept_to_the_last_digit_is_not_shown_with_all_its_digits():
    assert relation(Score("logits", "top1_agreement", 0.7, limit=0.6999999999999997)).endswith("0.7 >= 0.7")
    assert relation(Score("logits", "top1_agreement", 0.6999999999999997, limit=0.7)).endswith(
        "0.6999999999999997 < 0.7"
    )


def test_a_problem_comes_before_every_score():
    result = case(COSINE)
    broken = OutputResult("boxes", "float32", "(397, 4)", (), problem="NaN in 3 of 1588 elements")
    result = dataclasses.replace(result, outputs=(*result.outputs, broken))
    assert failure_line(result) == "INT8 accuracy: 'boxes': NaN in 3 of 1588 elements (+1 more missed)"
    assert "  'boxes': NaN in 3 of 1588 elements" in failure(result, 1).splitlines()


def test_a_failure_of_problems_alone_has_no_empty_table():
    result = case(outputs=(OutputResult("boxes", "float32", "?", (), problem="shapes differ"),))
    assert failure(result, 1).splitlines()[-1] == "  'boxes': shapes differ"


def test_nan_is_not_called_smaller():
    assert failure_line(case(dataclasses.replace(COSINE, value=math.nan))) == (
        "INT8 accuracy: 'logits' cosine is nan, limit 0.999"
    )


def test_a_long_table_is_cut_and_says_so():
    scores = [Score(f"out{i}", "cosine", 0.9, limit=0.999) for i in range(25)]
    assert details(case(*scores))[-1] == "... and 5 scores more (all with -vv)"
    assert sum("cosine" in line for line in details(case(*scores))) == 20
    assert sum("cosine" in line for line in details(case(*scores), 2)) == 25


@pytest.mark.parametrize(
    ("scores", "line"),
    [
        ((COSINE, SQNR), "'logits' cosine 0.8741 < 0.999 (+1 more missed), ONNX Runtime 1.31.1, CPU, exact"),
        ((ERROR,), "no limits, ONNX Runtime 1.31.1, CPU, exact"),
        (
            (
                Score("logits", "sqnr_db", 60.0, limit=20.0),
                Score("logits", "cosine", 0.9992, limit=0.999),
                Score("logits", "max_abs", 0.01, limit=0.5, bound="max"),
            ),
            "'logits' cosine 0.9992 >= 0.999 (margin 0.0002), ONNX Runtime 1.31.1, CPU, exact",
        ),
    ],
)
def test_status_names_the_most_critical_score(scores, line):
    assert status(case(*scores)) == line


def test_status_line_falls_back_on_the_message():
    assert status_line("a.int8acc.yaml::a", {}, "a.onnx: no such file") == (
        "a.int8acc.yaml::a - a.onnx: no such file"
    )
    assert status_line("a.int8acc.yaml::a", {}, "") == "a.int8acc.yaml::a"
    assert status_line("a", {"int8acc.summary": "said"}, "message") == "a - said"


def test_detail_lines_by_verbosity():
    properties = {
        "int8acc.details": json.dumps(to_plain(case(COSINE, ERROR))),
        "int8acc.settings": "mode exact",
    }
    assert detail_lines(properties, 0, failed=False) == []
    assert detail_lines({}, 2, failed=False) == []
    assert detail_lines(properties, 2, failed=True) == ["settings: mode exact"]
    lines = detail_lines(properties, 1, failed=False)
    assert lines[0].startswith("INT8 against FP16; 397 samples: ")
    assert lines[-1] == "settings: mode exact"
    assert not any("max_abs" in line for line in lines)
    assert any("max_abs" in line for line in detail_lines(properties, 2, failed=False))


@pytest.mark.parametrize(
    ("value", "limit", "texts"),
    [
        (0.8741, 0.999, ("0.8741", "0.999")),
        (0.99899999, 0.999, ("0.99899999", "0.999")),
        (19.99999, 20.0, ("19.99999", "20")),
        (1e-7, 0.0, ("1e-7", "0")),
        (math.inf, 20.0, ("inf", "20")),
        (0.999, 0.999, ("0.999", "0.999")),
    ],
)
def test_number_pair(value, limit, texts):
    assert number_pair(value, limit) == texts


@given(FINITE, FINITE)
def test_different_numbers_print_differently(value, limit):
    assume(value != limit)
    first, second = number_pair(value, limit)
    assert first != second
    assert float(first) == pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (12.0, "12"), (1234567.0, "1.235e6"), (1e-12, "1e-12"), (math.nan, "nan")]
)
def test_number(value, text):
    assert number(value) == text


def test_table_aligns_and_leaves_out_empty_columns():
    assert table(("", "name", "empty", "n"), [("", "a", "", "1"), ("", "long", "", "")]) == [
        "name  n",
        "a     1",
        "long",
    ]


@given(SCORES)
def test_strain_is_beyond_one_just_where_the_limit_is_missed(score):
    assume(score.limit is not None)
    if score.passed:
        assert score.strain <= 1 + 1e-6
    else:
        assert score.strain >= 1 - 1e-6


@given(st.lists(SCORES))
def test_worst_first_keeps_the_judged_scores_misses_first(scores):
    ordered = worst_first(scores)
    assert len(ordered) == sum(score.limit is not None for score in scores)
    verdicts = [score.passed for score in ordered]
    assert verdicts == sorted(verdicts)


@given(RESULTS)
def test_every_result_has_its_text_and_survives_json(result):
    back = restore(json.loads(json.dumps(to_plain(result), allow_nan=False)))
    assert to_plain(back) == to_plain(result)
    assert back.passed == result.passed
    assert "\n" not in status(result).replace(result.backend, "")
    details(result, 2)
    if not result.passed:
        told = for_people(result)  # as all that report it do
        assert failure(told).splitlines()[0] == failure_line(told)


def test_a_failure_of_everything_reads_like_this():
    result = report_cases.case(written=("out/fixed.onnx",))
    assert failure(result).splitlines() == [
        "INT8 accuracy: 'logits' cosine 0.8741 < 0.999 (+1 more missed)",
        "Why: scales too wide in 1 layer; scales that cut values off in 1 layer; 'logits' comes out 0.75 "
        "times what the",
        "  baseline gives and shifted by -0.5",
        "Fix: use fixed.onnx: other scales for 1 tensor, all in INT8; 'logits' cosine 0.9993 >= 0.999, "
        "verified",
        "Layers at fault (put any one of them back into INT8, and the criteria fail):",
        "  /layer2/0/conv1/Conv (Conv): scale 61.2x too wide, SQNR 9.5 dB where 40.5 is possible",
        "  /layer4/1/conv2/Conv (Conv): values up to 11.8 are cut off at 5.1, 8.1 % of them",
        "Caution: TensorRT refuses this model: nonzero-zero-point (1 node)",
        "Caution: 'images': values reach 255 (and 1 more caution)",
        "More: fixed.onnx in out; -v shows scores, stages and other ways",
    ]
    assert failure(result, -1) == failure(result)


def test_v_adds_scores_findings_stages_other_ways_and_vv_all_there_is():
    result = report_cases.case(written=("out/fixed.onnx",))
    more = failure(result, 1).splitlines()
    start = more.index("")
    assert more[start + 1 :] == [
        "INT8 in 54 of 54 groups, entropy over 500 samples, rest FP16 against FP16; 256 samples: "
        "data/val.npz; TensorRT 10.4, NVIDIA L4",
        "     output           metric   INT8    limit     noise  baseline  fixed",
        "  >  logits           cosine   0.8741  >= 0.999  1                0.9993",
        "  >  metrics.py:top1  top1     0.921   >= 0.98   0      0.985     0.984",
        "     logits           sqnr_db  24.5    >= 20     inf              33.1",
        "  error: '/stem/QuantizeLinear': zero point 3 on 'images'; TensorRT rejects the model "
        "[nonzero-zero-point]",
        "      quantize symmetrically: ActivationSymmetric=True",
        "  warning: '/fc/Q': uint8 with zero point 0 is read as int8 [uint8-zero]",
        "      use int8",
        "  data warning: 'images': values reach 255 [range-255]",
        "      divide by 255",
        "  ... and notes of 1 rule (all with -vv)",
        "  INT8 engine: 45 of 54 weighted layers in INT8, 3 standalone Q/DQ, 7 reformats; 0.61 ms against "
        "0.82 ms: 1.34x",
        "  fixed engine: 43 of 54 weighted layers in INT8, 3 standalone Q/DQ, 7 reformats; 0.63 ms against "
        "0.82 ms: 1.3x",
        "  golden: the INT8 scores are 0.1 below those accepted",
        "  note: 'logits': INT8 = 0.75 * baseline - 0.5 (correlation 0.89): INT8 values are 0.75 of the "
        f"baseline's throughout: {SMALL}; INT8 values are shifted by -0.4 on average (0.25 of the "
        "baseline's standard deviation): values cut off on one side only, or a wrong bias or zero point",
        "  note: 'logits': sample 182 has the lowest SQNR",
        "  note: 21 of 22 tensors have a scale",
        "",
        "Stages: FP32 ONNX ok > FP16 ok > Q/DQ in ONNX Runtime off ('logits' cosine 0.8741 < 0.999) > "
        "engine INT8 ok",
        "  Q/DQ in ONNX Runtime: quantization loses it: scales, or layers that INT8 does not suit; 'logits' "
        "comes out 0.75 times what FP16 gives and shifted by -0.5",
        "note: the causes are told by what tensors hold: no trial was left, or showed a loss",
        "Noise adds up: logits cosine by the MACs in FP16, each tried on 32 samples",
        "  MACs   cosine          these layers and those above",
        "  0.0%   0.8741  fails",
        f"  6.0%   0.997   fails   {report_cases.WIDE}",
        f"  10.4%  0.9996  passes  {report_cases.NARROW}",
        "Another way: keep 2 layers in FP16, 90% of the multiply-accumulates stay in INT8; 'logits' cosine "
        "0.9996 >= 0.999; verified",
        "Calibration methods",
        "  method   verdict  most critical",
        "  minmax   fails    'logits' cosine 0.91 < 0.999",
        "  entropy  passes   'logits' cosine 0.9994 >= 0.999",
        "note: calibration data covers 3 of 10 classes",
        "Written: out/fixed.onnx",
    ]
    most = failure(result, 2)
    for line in more[start + 1 :]:
        assert line in most or line.startswith("  ... and notes of")
    for line in (
        "Culprits (minimal: leave any one in INT8 and the criteria fail)",
        "Plan of the search, verified (built and run on all samples, 51 of them not seen by the search): "
        "these 2 groups in FP16, 90% of the MACs stay in INT8",
        "Search 'minimal': 2 trials and 18 probes (as much as 2.75 runs over all samples), 1 model built, in "
        "3.2 s; proven minimal: each of the 2 groups kept high was sent back to INT8 alone, and fails",
    ):
        assert line in most.splitlines()


def test_files_of_one_folder_are_written_together():
    paths = ("out/a/fixed.onnx", "out/a/plan.yaml", "out/x.txt", "bare")
    last = failure(report_cases.case(written=paths), 1).splitlines()[-1]
    assert last == "Written: out/a/{fixed.onnx, plan.yaml}, out/x.txt, bare"


def test_vv_tells_all_findings_all_engines_and_the_layers():
    text = failure(report_cases.case(), 2)
    assert "note: '/x': a Q/DQ pair that nobody reads [unread-pair]" in text
    assert "  baseline engine: 54 weighted layers; 0.82 ms\n" in text
    assert "so 97 % of the INT8 codes are unused; keeps 9.5 dB, the best scale 40.5 " in text
    lines = text.splitlines()
    start = lines.index("Layers (error against the baseline, the worst alone first)")
    assert lines[start + 1].split("  ")[1:3] == ["layer", ""]
    assert lines[start + 2].split() == ["/layer2/0/conv1/Conv", "Conv", "9.5", "0.995", "5.5", "0.99"]
    assert "Layers (error" not in failure(report_cases.case(), 1)


def test_an_engine_without_int8_is_warned_of_even_where_the_case_passes():
    engines = (report_cases.engine(Role.BASELINE, 3, 0, None), report_cases.engine(Role.INT8, 54, 0, None))
    result = case(dataclasses.replace(COSINE, value=0.9995), engines=engines)
    warning = "You asked for INT8 and 0 of 54 layers run in it"
    assert status(result).endswith(f"exact; warning: {warning}")
    assert f"warning: {warning}" in details(result)
    assert "INT8 engine: 0 of 54 weighted layers in INT8, 3 standalone Q/DQ, 7 reformats" in details(result)
    result = dataclasses.replace(result, warnings=(warning,))
    assert details(result).count(f"warning: {warning}") == 1


def test_an_engine_that_tells_nothing_is_not_said_to_be_without_int8():
    engines = (dataclasses.replace(report_cases.engine(Role.INT8, 1, 0, 2.0), layers=()),)
    result = case(COSINE, engines=engines)
    assert "INT8 engine: does not tell its layers; 2 ms" in details(result)
    assert "You asked" not in status(result)


def test_findings_are_told_by_rule_errors_first():
    result = case(COSINE, findings=(*report_cases.FINDINGS[1:2] * 7, report_cases.FINDINGS[0]))
    lines = [line for line in details(result) if line.startswith(("error:", "warning:"))]
    assert lines[0].startswith("error: '/stem/QuantizeLinear'")
    assert lines[1].endswith("is read as int8 (and 6 more like it) [uint8-zero]")
    assert len(lines) == 2
    assert sum("'/fc/Q': uint8" in line for line in details(result, 2)) == 7


def test_a_passing_case_is_one_line_with_its_worst_warning_and_their_number():
    good = dataclasses.replace(COSINE, value=0.9995)
    told = "'logits' cosine 0.9995 >= 0.999 (margin 0.0005), ONNX Runtime 1.31.1, CPU, exact"
    assert status(case(good)) == told
    assert status(case(good, warnings=("the data are random",))) == f"{told}; warning: the data are random"
    result = case(good, warnings=("the data are random",), findings=report_cases.FINDINGS)
    worst = "TensorRT refuses this model: nonzero-zero-point (1 node)"
    assert status(result) == f"{told}; 3 warnings, the worst: {worst}"


@given(st.text("ab ,"), st.integers(4, 60))
def test_shortened_text_is_no_longer_than_asked(text, most):
    short = shorten(text, most)
    assert len(short) <= most
    assert short == text or (short.endswith("...") and text.startswith(short[:-3]))
