"""Every symptom, cause and trial has a row in the register of answer/; cases reach each remedy and trial."""

from __future__ import annotations

from report_cases import SCHEMA

from pytest_int8acc.answer.causes import DIAGNOSTICS


def enumerated(of: str, key: str) -> set[str]:
    """The values that report.json may have."""
    return set(SCHEMA["definitions"][of]["properties"][key]["enum"])


def test_every_symptom_and_every_cause_has_a_row() -> None:
    assert {row.symptom for row in DIAGNOSTICS} == enumerated("Cause", "symptom")
    assert {row.kind for row in DIAGNOSTICS} == enumerated("Cause", "kind")


def test_every_trial_is_reached() -> None:
    assert {row.trial for row in DIAGNOSTICS} - {None} == enumerated("Ablation", "kind") - {"activation"}
