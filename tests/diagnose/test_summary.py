"""What is wrong with a case as a whole: most of its ranges, or the data they were made from."""

from __future__ import annotations

import pytest

from pytest_int8acc.diagnose.ranges import Range, odd_ranges, telling_slip
from pytest_int8acc.results import Culprit, Finding
from pytest_int8acc.results.causes import Cause, CauseKind, OddRanges


def culprit(kind: CauseKind) -> Culprit:
    return Culprit("conv5", "Conv", ("conv5",), "", 0.1, Cause(kind, "noise-adds-up"))


def slip(rule: str) -> Finding:
    return Finding(rule, "image", "", "", "warning", "data")


WIDE, NARROW = [culprit("scale-too-wide")], [culprit("saturation")]


def test_weak_slips_count_only_where_values_are_cut_off() -> None:
    strong, weak = slip("data-factor"), slip("data-few-samples")
    assert telling_slip([weak, strong], WIDE, None) == "data-factor"
    assert telling_slip([weak], WIDE, None) == ""
    assert telling_slip([weak], NARROW, None) == "data-few-samples"
    assert telling_slip([weak], WIDE, OddRanges(3, narrow=(2.0, 3.0))) == "data-few-samples"
    note = Finding("data-overlap", "image", "", "", "note", "data")
    lint = Finding("one-sided", "conv5", "", "", "warning")
    assert telling_slip([note, lint], NARROW, None) == ""


def test_ranges_too_wide_and_too_narrow() -> None:
    ranges = [
        Range("a", 60.0, 3.0, 12.0),
        Range("b", 1.0, 4.0, 20.0),
        Range("c", 2.0, 2.0, 0.0),
    ]
    assert odd_ranges(ranges) == OddRanges(3, (20.0,), (4.0,))
    assert odd_ranges(ranges[1:]) is None


@pytest.mark.parametrize(("reach", "by_hand"), [(50.0, (50.0,)), (51.0, ())])
def test_few_values_were_set_by_hand(reach: float, by_hand: tuple[float, ...]) -> None:
    ranges = [Range(name, 50.0, 5.0, 12.0) for name in "abcde"] + [Range("f", reach, 5.0, 12.0)]
    found = odd_ranges(ranges if by_hand else ranges[3:])
    assert found is not None
    assert found.by_hand == by_hand


def test_a_range_of_0_is_no_division() -> None:
    assert odd_ranges([Range("a", 0.0, 1.0, 40.0), Range("b", 9.0, 1.0, 9.0)]) is None
