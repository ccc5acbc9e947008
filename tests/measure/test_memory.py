"""What a case's memory grows by with its outputs, measured from outside, process against process."""

from __future__ import annotations

import sys

import pytest

from benchmarks.memory import LIMITS, outputs_ratio


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("case", LIMITS)
def test_a_case_holds_little_more_than_the_outputs_of_one_form(case: str) -> None:
    assert 0.6 < outputs_ratio(LIMITS[case]) < 1.3
