"""Every kind of remedy has a row, and words in a report."""

from __future__ import annotations

from typing import get_args

from pytest_int8acc.answer.remedies import REMEDIES
from pytest_int8acc.results.causes import RemedyKind


def test_every_kind_of_remedy_has_a_row() -> None:
    assert {remedy.kind for remedy in REMEDIES} == set(get_args(RemedyKind))
