"""Every sentence that ``report.json`` holds beside the kinds and numbers it is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytest_int8acc.report.causes import advice, cause_text
from pytest_int8acc.report.fits import fit_note
from pytest_int8acc.report.plain import to_plain
from pytest_int8acc.report.repairs import repair_text
from pytest_int8acc.report.search import alone_text, reason, remarks
from pytest_int8acc.report.stages import stage_text
from pytest_int8acc.report.summary import summary
from pytest_int8acc.results import CaseResult, Culprit, LineFit, Repair, SearchOutcome, StageLine
from pytest_int8acc.results.causes import Cause

#: By class, the key of each sentence and what makes it.
SENTENCES: Mapping[type, Mapping[str, Callable[[Any], str]]] = {
    Cause: {"text": cause_text, "advice": advice},
    LineFit: {"note": fit_note},
    Repair: {"text": repair_text},
    StageLine: {"text": stage_text},
    Culprit: {"alone": alone_text},
    SearchOutcome: {"reason": reason},
}


def told(result: CaseResult) -> dict[str, Any]:
    """``result`` as plain types, with the sentences."""
    plain: dict[str, Any] = to_plain(result, SENTENCES)
    if plain["diagnosis"] is not None:
        plain["diagnosis"]["summary"] = summary(result)
    if result.search is not None:
        repairs = result.diagnosis.repairs if result.diagnosis else ()
        plain["search"]["remarks"] = remarks(result.search, repairs)
        plain["search"]["interrupted"] = result.search.ending.kind == "interrupted"
    return plain
