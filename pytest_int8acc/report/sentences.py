"""Every sentence that ``report.json`` holds beside the kinds and numbers it is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytest_int8acc.report.causes import advice, cause_text
from pytest_int8acc.report.fits import fit_note
from pytest_int8acc.report.plain import to_plain
from pytest_int8acc.report.stages import stage_text
from pytest_int8acc.report.summary import summary
from pytest_int8acc.results import CaseResult, LineFit, StageLine
from pytest_int8acc.results.causes import Cause

#: By class, the key of each sentence and what makes it.
SENTENCES: Mapping[type, Mapping[str, Callable[[Any], str]]] = {
    Cause: {"text": cause_text, "advice": advice},
    LineFit: {"note": fit_note},
    StageLine: {"text": stage_text},
}


def told(result: CaseResult) -> dict[str, Any]:
    """``result`` as plain types, with the sentences."""
    plain: dict[str, Any] = to_plain(result, SENTENCES)
    if plain["diagnosis"] is not None:
        plain["diagnosis"]["summary"] = summary(result)
    return plain
