"""Every kind of remedy, every symptom and every cause has a row in the registers of answer/."""

from __future__ import annotations

from report_cases import SCHEMA

from pytest_int8acc.answer.ablations import TRIALS
from pytest_int8acc.answer.causes import DIAGNOSTICS
from pytest_int8acc.answer.remedies import REMEDIES


def enumerated(of: str, key: str) -> set[str]:
    """The values that report.json may have."""
    return set(SCHEMA["definitions"][of]["properties"][key]["enum"])


def test_every_kind_of_remedy_has_a_row() -> None:
    """But for a faster plan, which mends no accuracy and is searched by answer/latency.py."""
    assert {remedy.kind for remedy in REMEDIES} == enumerated("Repair", "kind") - {"faster"}


def test_every_symptom_and_every_cause_has_a_row() -> None:
    assert {row.symptom for row in DIAGNOSTICS} == enumerated("Cause", "symptom")
    assert {row.kind for row in DIAGNOSTICS} == enumerated("Cause", "kind")


def test_every_trial_is_run_and_is_reached() -> None:
    kinds = enumerated("Ablation", "kind")
    assert set(TRIALS) == kinds
    assert {row.trial for row in DIAGNOSTICS} - {None} == kinds - {"activation"}
