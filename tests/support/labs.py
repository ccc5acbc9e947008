"""Labs of measured cases."""

from __future__ import annotations

from pytest_int8acc.case.measured import Measured
from pytest_int8acc.lab.lab import Lab


def lab_of(case: Measured) -> Lab:
    """A fresh lab, which has built and tried nothing yet."""
    assert case.int8 is not None
    return Lab(case, case.int8)
