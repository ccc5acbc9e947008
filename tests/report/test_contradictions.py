"""The comparison of sentences with trials finds what it is for; tests/test_cases.py runs it on every case."""

from __future__ import annotations

from typing import Any

import pytest
from contradictions import contradictions

RANGE = {"kind": "range", "tensor": "t", "share": 0.9}
FREED = {"kind": "activation", "tensor": "t", "share": 0.95}
LITTLE = {"kind": "channels", "tensor": "t", "share": 0.1}


def entry(symptom: str, *tried: dict[str, Any], **diagnosis: Any) -> dict[str, Any]:
    cause = {"symptom": symptom, "tensor": "t", "ablation": tried[-1], "tried": tried}
    said = {"summary": "", "repairs": [], "jumps": [], "ranges": None, "scales": None, **diagnosis}
    search = {"ending": {"kind": "proven"}}
    culprits = [{"layer": "conv", "cause": cause}]
    return {"verdict": "failed", "culprits": culprits, "diagnosis": said, "search": search}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (entry("noise-adds-up", RANGE, FREED), "'range' of t gave back 90%"),
        (entry("large-channels", LITTLE, FREED), "the trial that undoes it gave back 10%"),
        (entry("range-too-wide", FREED, LITTLE), "another trial gave back 95%"),
        (entry("after-softmax", LITTLE, FREED, ranges={"count": 3}), "the ranges are wrong"),
        (
            entry("after-softmax", FREED, summary="INT8 is not the cause", repairs=[{"verified": True}]),
            "a plan meets the criteria",
        ),
        (
            entry(
                "after-softmax", FREED, summary="TopK 'n' chooses; conv is at fault", jumps=[{"node": "n"}]
            ),
            "a layer is at fault",
        ),
    ],
)
def test_a_sentence_against_a_trial_is_found(said: dict[str, Any], words: str) -> None:
    assert any(words in text for text in contradictions(said))


def test_a_sentence_that_its_trial_shows_is_none() -> None:
    assert contradictions(entry("range-too-wide", RANGE)) == []
    assert contradictions(entry("noise-adds-up", {**RANGE, "share": 0.2}, FREED)) == []
