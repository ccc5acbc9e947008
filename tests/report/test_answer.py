"""The few lines of a failure: whatever the case holds, they are few, and no number is cut."""

from __future__ import annotations

import dataclasses

import pytest
import report_cases
from hypothesis import given, settings
from hypothesis import strategies as st
from report_results import RESULTS

from pytest_int8acc.report.answer import LINES, answer, failure_line
from pytest_int8acc.report.causes import _CLAUSES, cause_clause
from pytest_int8acc.report.diagnosis import changes
from pytest_int8acc.report.plain import for_people
from pytest_int8acc.report.text import failure, status
from pytest_int8acc.report.words import WIDTH, fitted, middle
from pytest_int8acc.results import CaseResult, Culprit, Finding, Repair, Stop
from pytest_int8acc.results.causes import Cause

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
SYMPTOMS = st.sampled_from(sorted(_CLAUSES))


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
@pytest.mark.parametrize("symptom", sorted(_CLAUSES))
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


def test_a_failure_asks_for_its_data_first_where_these_are_wrong() -> None:
    result = report_cases.case()
    diagnosis = dataclasses.replace(result.diagnosis, slip="range-255")
    lines = failure(dataclasses.replace(result, diagnosis=diagnosis)).splitlines()
    assert "Fix: divide by 255, and run again" in lines
    assert lines[lines.index("Fix: divide by 255, and run again") + 1].startswith(
        "Or: other scales for 1 tensor"
    )
    assert not any(line.startswith("Caution: 'images'") for line in lines)


@pytest.mark.parametrize("stage", ["FP32 ONNX", "FP16", "engine FP16", "engine FP32"])
def test_no_layer_is_blamed_where_int8_is_not_the_problem(stage: str) -> None:
    result = report_cases.case()
    stages = tuple(dataclasses.replace(s, name=stage, passed=False) for s in result.diagnosis.stages[:1])
    diagnosis = dataclasses.replace(result.diagnosis, stages=stages, first_stage=stage)
    text = failure(dataclasses.replace(result, diagnosis=diagnosis))
    assert "Layers" not in text
    assert "other scales" not in text
    assert text.count("Fix: ") == 1


def test_a_repair_is_told_with_all_that_it_changes() -> None:
    result = report_cases.case()
    first: Repair = dataclasses.replace(result.diagnosis.repairs[0], weights=("w", "v"), layers=("a",))
    diagnosis = dataclasses.replace(result.diagnosis, repairs=(first,))
    text = failure(dataclasses.replace(result, diagnosis=diagnosis))
    assert "Fix: other scales for 1 tensor and 2 weights, 1 layer in FP16; 'logits' cosine" in text
    assert all("1 layer in FP16" in said for said in changes(first))  # however narrow the line


def test_a_passing_case_s_line_ends() -> None:
    result = report_cases.case("net", 0.9995, warnings=(LONG, "more"))
    assert len(status(result)) < 3 * WIDTH


@given(st.text(max_size=400), st.integers(60, 120))
def test_what_is_made_to_fit_fits(text: str, most: int) -> None:
    assert len(fitted(text, most)) <= most
    assert len(middle(text, most)) <= most
    assert fitted(text[:most], most) == text[:most]
