"""One case as text: every line of it is read by a person in a hurry."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_int8acc.report.order import strain, worst_first
from pytest_int8acc.report.plain import restore
from pytest_int8acc.report.table import number, number_pair, table
from pytest_int8acc.report.terminal import detail_lines, status_line
from pytest_int8acc.report.text import details, failure, failure_line, relation, status
from pytest_int8acc.results import CaseResult, LineFit, OutputResult, Score, to_plain

ANY = st.floats(allow_nan=True, allow_infinity=True)
FINITE = st.floats(-1e9, 1e9)
SCORES = st.builds(
    Score,
    st.sampled_from(["logits", "file.py:top1"]),
    st.sampled_from(["cosine", "sqnr_db", "max_abs"]),
    ANY,
    limit=st.none() | FINITE,
    bound=st.sampled_from(["min", "max"]),
    noise=st.none() | ANY,
    baseline=st.none() | ANY,
    note=st.text(max_size=5),
)
FITS = st.builds(LineFit, ANY, ANY, ANY, st.text(max_size=5))
OUTPUTS = st.builds(
    OutputResult,
    st.just("logits"),
    st.just("float32"),
    st.just("(2, 10)"),
    st.lists(SCORES, max_size=4).map(tuple),
    st.none() | FITS,
    st.none() | st.integers(0, 9),
    st.sampled_from(["", "INT8 is NaN in 3 of 20 elements"]),
)
RESULTS = st.builds(
    CaseResult,
    name=st.just("digits"),
    spec=st.just("digits.int8acc.yaml"),
    samples=st.integers(1, 9),
    data=st.just("val.npz"),
    baseline=st.just("FP16"),
    candidate=st.just("INT8"),
    backend=st.just("ONNX Runtime 1.31.1, CPU, exact"),
    outputs=st.lists(OUTPUTS, min_size=1, max_size=3).map(tuple),
    metrics=st.lists(SCORES, max_size=2).map(tuple),
    notes=st.lists(st.text(max_size=9), max_size=2).map(tuple),
)


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
TOP1 = Score("metrics.py:top1", "top1", 0.97, limit=0.98, noise=0.0, baseline=0.985)


def test_failure_reads_like_this():
    result = case(
        dataclasses.replace(COSINE, value=0.99975),
        SQNR,
        ERROR,
        metrics=(TOP1,),
        notes=("scales: 21 of 22 tensors found in calibration.cache",),
    )
    assert failure(result).splitlines() == [
        "INT8 accuracy: 'metrics.py:top1' 0.97 < 0.98 (+1 more)",
        "",
        "INT8 against FP16; 397 samples: val.npz; ONNX Runtime 1.31.1, CPU, exact",
        "     output           metric   INT8     limit     noise  baseline",
        "  >  metrics.py:top1  top1     0.97     >= 0.98   0      0.985",
        "  >  logits           sqnr_db  19.96    >= 20     85",
        "     logits           cosine   0.99975  >= 0.999  1",
        "  note: scales: 21 of 22 tensors found in calibration.cache",
    ]


def test_reported_scores_and_the_fit_come_with_vv():
    result = case(dataclasses.replace(COSINE, value=0.9995), ERROR)
    output = dataclasses.replace(result.outputs[0], fit=LineFit(0.5, 0.001, 0.97), worst_sample=17)
    result = dataclasses.replace(result, outputs=(output,))
    assert not any("max_abs" in line or "INT8 =" in line for line in details(result, 1))
    text = "\n".join(details(result, 2))
    assert "max_abs  0.0625" in text
    assert "note: 'logits': INT8 = 0.5 * baseline + 0.001 (correlation 0.97)" in text


def test_a_telling_fit_the_worst_sample_and_notes_of_scores_come_without_v():
    result = case(dataclasses.replace(COSINE, note="default limit"))
    fit = LineFit(0.5, 0.0, 0.97, "a scale is wrong throughout")
    output = dataclasses.replace(result.outputs[0], fit=fit, worst_sample=17, note="2 elements left out")
    lines = failure(dataclasses.replace(result, outputs=(output,))).splitlines()
    assert "  note: 'logits' cosine: default limit" in lines
    assert "  note: 'logits': 2 elements left out" in lines
    assert (
        "  note: 'logits': INT8 = 0.5 * baseline + 0 (correlation 0.97): a scale is wrong throughout" in lines
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
    broken = OutputResult("boxes", "float32", "(397, 4)", (), problem="INT8 is NaN in 3 of 1588 elements")
    result = dataclasses.replace(result, outputs=(*result.outputs, broken))
    assert failure_line(result) == "INT8 accuracy: 'boxes': INT8 is NaN in 3 of 1588 elements (+1 more)"
    assert "  'boxes': INT8 is NaN in 3 of 1588 elements" in failure(result).splitlines()


def test_a_failure_of_problems_alone_has_no_empty_table():
    result = case(outputs=(OutputResult("boxes", "float32", "?", (), problem="shapes differ"),))
    assert failure(result).splitlines()[3:] == ["  'boxes': shapes differ"]


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
        ((COSINE, SQNR), "'logits' cosine 0.8741 < 0.999 (+1 more), ONNX Runtime 1.31.1, CPU, exact"),
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
        assert strain(score) <= 1 + 1e-6
    else:
        assert strain(score) >= 1 - 1e-6


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (Score("y", "cosine", 0.9995, limit=0.999), 0.5),
        (Score("y", "sqnr_db", 40.0, limit=20.0), 0.1),
        (Score("y", "max_abs", 0.1, limit=0.4, bound="max"), 0.25),
        (Score("f", "max_drop", 0.97, limit=0.95, baseline=0.99), 0.5),
        (Score("f", "max", 12.0, limit=14.0, bound="max", baseline=10.0), 0.5),
        (Score("y", "cosine", 0.5), 0.0),
    ],
)
def test_strain_is_the_share_of_the_allowance_used(score, expected):
    assert strain(score) == pytest.approx(expected)


@given(st.lists(SCORES))
def test_worst_first_keeps_the_judged_scores_misses_first(scores):
    ordered = worst_first(scores)
    assert len(ordered) == sum(score.limit is not None for score in scores)
    verdicts = [score.passed for score in ordered]
    assert verdicts == sorted(verdicts)


@given(RESULTS)
def test_every_result_has_its_text_and_survives_json(result):
    back = restore(json.loads(json.dumps(to_plain(result), allow_nan=False)))
    assert repr(back) == repr(result)  # nan is not equal to itself
    assert back.passed == result.passed
    assert "\n" not in status(result).replace(result.backend, "")
    details(result, 2)
    if not result.passed:
        assert failure(result).splitlines()[0] == failure_line(result)
