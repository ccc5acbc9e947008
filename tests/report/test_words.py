"""Numbers, tables and the lines of a failure: whatever a case holds, they are few, and no number is cut."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import get_args

import pytest
import report_cases
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from report_results import FINITE, RESULTS, SCORES

from pytest_int8acc.report.answer import LINES, answer, failure_line
from pytest_int8acc.report.causes import cause_clause
from pytest_int8acc.report.plain import for_people, restore, to_plain
from pytest_int8acc.report.terminal import progress_line, status_line
from pytest_int8acc.report.text import details, failure, status
from pytest_int8acc.report.words import (
    WIDTH,
    fitted,
    middle,
    number,
    number_pair,
    shorten,
    table,
    worst_first,
)
from pytest_int8acc.results import CaseResult, Culprit, Doing, Finding, Stop
from pytest_int8acc.results.causes import Cause, Symptom

NUMBERS = {
    **dict.fromkeys(
        ("sqnr_db", "best_sqnr_db", "factor", "codes_used", "clipped", "clipped_energy"), 12.3456
    ),
    **dict.fromkeys(("zero_point", "low", "high", "scale", "least_scale", "channel_amax"), 1.2345e-5),
    **dict.fromkeys(("channel_ratio", "codes_left", "p99.9", "quarter_amax", "partner_amax"), 98765.4),
    **dict.fromkeys(("lost", "smallest", "share"), 0.012345),
    **dict.fromkeys(("scales", "scales_off", "axis", "axis_of_scales", "amax_in_use"), 120.0),
}
LONG = "/" + "a very long name of a block/" * 2500
NAMES = st.sampled_from([LONG, "x" * 65536, "/conv1/Conv", "", "naïve ✓ " * 9000]) | st.text(max_size=300)
SYMPTOMS = st.sampled_from(get_args(Symptom))


@st.composite
def causes(draw: st.DrawFn) -> Cause:
    name = draw(NAMES)
    return Cause(
        "saturation",
        draw(SYMPTOMS),
        name,
        NUMBERS,
        amax=123456.7,
        reach=1.5,
        channels=dict.fromkeys(range(200), 3.0),
        others=(name,) * 50,
        node=name,
        op_type=name,
        format="int8",
        masked=draw(st.booleans()),
    )


@st.composite
def results(draw: st.DrawFn) -> CaseResult:
    """A case that fails, with hundreds of everything under names of up to 64 KiB."""
    name, many = draw(NAMES), draw(st.sampled_from([1, 2, 5, 6, 300]))
    base = report_cases.case()
    culprits = [Culprit(name, name, (name,), None, 0.1, draw(causes())) for _ in range(min(many, 8))]
    culprits = (culprits * 60)[:many]
    output = dataclasses.replace(base.outputs[0], name=name, problem=draw(st.sampled_from(["", name])))
    scores = tuple(dataclasses.replace(s, subject=name, metric=name[:50] or "m") for s in output.scores)
    outputs = (dataclasses.replace(output, scores=scores),) * draw(st.sampled_from([1, 70]))
    repair = draw(st.sampled_from([None, *base.diagnosis.repairs]))
    repairs = () if repair is None else (dataclasses.replace(repair, layers=(name,) * many, scores=scores),)
    slip = draw(st.sampled_from(["", "range-255"]))
    first = draw(st.sampled_from([stage.name for stage in base.diagnosis.stages]))
    diagnosis = dataclasses.replace(base.diagnosis, repairs=repairs, slip=slip, first_stage=first)
    search = dataclasses.replace(base.search, culprits=tuple(culprits), found=draw(st.booleans()))
    finding = st.builds(
        Finding,
        st.just("range-255"),
        NAMES,
        NAMES,
        NAMES,
        st.just("error"),
        st.sampled_from(["lint", "data"]),
    )
    return dataclasses.replace(
        base,
        outputs=outputs,
        search=draw(st.sampled_from([None, search])),
        diagnosis=draw(st.sampled_from([None, diagnosis])),
        findings=tuple(draw(st.lists(finding, max_size=3))) * 100,
        warnings=(name,) * many,
        stopped=draw(st.sampled_from([None, Stop("seconds-spent", 300, ("repair", "fix"))])),
        written=draw(st.sampled_from([(), ("out/a/fixed.onnx",), (f"/out/{name}/fixed.onnx", "/b")])),
        backend=f"{name}, CPU",
    )


def keeps_its_bounds(result: CaseResult) -> None:
    lines = failure(for_people(result)).split("\n")  # as all that report it do
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= WIDTH
    assert all(line.strip() for line in lines)
    assert len(set(lines[:2])) == 2


@settings(max_examples=200, deadline=None)
@given(results())
def test_a_failure_of_whatever_has_few_short_lines(result: CaseResult) -> None:
    keeps_its_bounds(result)


@given(RESULTS.filter(lambda result: not result.passed))
def test_so_has_one_without_search_and_diagnosis(result: CaseResult) -> None:
    keeps_its_bounds(result)
    assert failure_line(result) == answer(result)[0]


@pytest.mark.parametrize("name", ["/conv1/Conv", LONG, "x" * 65536])
@pytest.mark.parametrize("symptom", get_args(Symptom))
def test_a_culprit_s_line_holds_its_cause_to_the_end(symptom: str, name: str) -> None:
    cause = Cause(
        "saturation", symptom, name, NUMBERS, None, 123456.7, 1.5, {3: 5.0}, (name,), name, name, "int8"
    )
    result = report_cases.case()
    culprits = tuple(Culprit(name, "ConvTranspose", (name,), None, 0.1, cause) for _ in range(2))
    search = dataclasses.replace(result.search, culprits=culprits)
    lines = failure(dataclasses.replace(result, search=search, diagnosis=None)).split("\n")
    (line, _) = [line for line in lines if line.startswith("  ")]
    assert line.endswith(cause_clause(cause))
    assert len(line) <= WIDTH


@given(st.text(max_size=400), st.integers(60, 120))
def test_what_is_made_to_fit_fits(text: str, most: int) -> None:
    assert len(fitted(text, most)) <= most
    assert len(middle(text, most)) <= most
    assert fitted(text[:most], most) == text[:most]


def test_status_line_falls_back_on_the_message():
    assert status_line("a.int8acc.yaml::a", {}, "a.onnx: no such file") == (
        "a.int8acc.yaml::a - a.onnx: no such file"
    )
    assert status_line("a.int8acc.yaml::a", {}, "") == "a.int8acc.yaml::a"
    assert status_line("a", {"int8acc.summary": "said"}, "message") == "a - said"


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


@given(st.text("ab ,"), st.integers(4, 60))
def test_shortened_text_is_no_longer_than_asked(text, most):
    short = shorten(text, most)
    assert len(short) <= most
    assert short == text or (short.endswith("...") and text.startswith(short[:-3]))


@pytest.mark.parametrize(
    ("doing", "said"),
    [
        (Doing("setup"), "net: reading model and data, 8 s"),
        (Doing("calibration", "sample", 3, 64), "net: calibrating, 3 of 64 samples, 8 s"),
        (Doing("search", "trial", 12), "net: searching the layers at fault, 12 trials, 8 s"),
    ],
)
def test_what_a_case_does_is_told_in_a_line(doing: Doing, said: str) -> None:
    assert progress_line("net", doing, 8.2, None) == said
    for result, verdict in (
        (report_cases.case(), "FAILED so far, 'logits' cosine 0.8741 < 0.999 (+1 more missed)"),
        (report_cases.case("net", 0.9995), "PASSED, 'logits' cosine 0.9995 >= 0.999 (margin 0.0005)"),
    ):
        line = progress_line("net", doing, 8.2, result)
        assert line == said.replace("net: ", f"net: {verdict}; ")
