"""Where the time went, what was left out, and what a case is doing, in words."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from pytest_int8acc.report import course
from pytest_int8acc.report.course import course_lines, stop_text
from pytest_int8acc.report.json import case_entry
from pytest_int8acc.report.terminal import progress_line
from pytest_int8acc.results import CaseResult, Doing, OutputResult, Part, Phase, Score, Stop

FAILED = CaseResult(
    *("digits", "digits.int8acc.yaml", 9, "val.npz", "FP16", "INT8", "ONNX Runtime"),
    outputs=(OutputResult("y", "float32", "(9, 2)", (Score("y", "cosine", 0.93, limit=0.998),)),),
    seconds=12.345,
    phases=(Phase("setup", 0.345), Phase("search", 12.0)),
)


def test_every_part_has_a_name() -> None:
    assert course._PARTS.keys() == set(get_args(Part))


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        (
            Stop("seconds-spent", 20, ("search", "repair")),
            "the 20 s that max-seconds allows after a verdict are spent; left out, in whole or in part: the "
            "rest of the search, cheaper fixes",
        ),
        (
            Stop("interrupted", 300, ()),
            "interrupted (Ctrl-C) after the verdict; left out, in whole or in part: nothing",
        ),
    ],
)
def test_what_was_left_out_is_told(stop: Stop, said: str) -> None:
    result = replace(FAILED, stopped=stop)
    assert stop_text(stop) == said
    assert course_lines(result) == [f"Stopped early: {said}"]
    entry = case_entry("n", "failed", 1.0, result)
    assert entry["stopped"]["text"] == said
    assert entry["stopped"]["left_out"] == list(stop.left_out)


def test_the_time_is_the_cases_own_by_phase() -> None:
    assert course_lines(FAILED) == []
    assert course_lines(FAILED, 1) == ["Time: 12.3 s: setup 0.34, search 12"]
    entry = case_entry("n", "failed", 1.0, FAILED)
    assert entry["seconds"] == 12.345
    assert entry["phases"][1] == {"name": "search", "seconds": 12.0}


@pytest.mark.parametrize(
    ("doing", "result", "said"),
    [
        (Doing("setup"), None, "digits: reading model and data, 8 s"),
        (Doing("calibration", "sample", 3, 64), None, "digits: calibrating, 3 of 64 samples, 8 s"),
        (
            Doing("search", "trial", 12),
            FAILED,
            "digits: FAILED so far, 'y' cosine 0.93 < 0.998; searching the layers at fault, 12 trials, 8 s",
        ),
    ],
)
def test_what_a_case_does_is_told_in_a_line(doing: Doing, result: CaseResult | None, said: str) -> None:
    assert progress_line("digits", doing, 8.2, result) == said
