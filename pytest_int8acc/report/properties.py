"""What the report of a case carries: to the controller of pytest-xdist, and as properties to JUnit."""

from __future__ import annotations

import json

from pytest_int8acc.report.diagnosis import cheaper_fix
from pytest_int8acc.report.engines import int8_layers, speedup
from pytest_int8acc.report.plain import to_plain
from pytest_int8acc.report.repairs import repair_text
from pytest_int8acc.report.summary import summary
from pytest_int8acc.report.text import status
from pytest_int8acc.results import CaseResult, SearchOutcome


def properties(result: CaseResult) -> list[tuple[str, object]]:
    """Every score, the facts of the verdict, the case in a line, and the whole result; plain types only."""
    scores = [(f"int8acc.{score.subject}.{score.metric}", to_plain(score.value)) for score in result.scores]
    details = json.dumps(to_plain(result), allow_nan=False, ensure_ascii=False)
    return [*scores, *facts(result), ("int8acc.summary", status(result)), ("int8acc.details", details)]


def facts(result: CaseResult) -> list[tuple[str, object]]:
    """What can be filtered and plotted without reading the details; only what is known."""
    found: list[tuple[str, object]] = [("int8acc.passed", result.passed)]
    if result.search is not None:
        found += _of_search(result.search)
    if result.diagnosis is not None:
        found += [("int8acc.why", summary(result)), ("int8acc.stage", result.diagnosis.first_stage or "")]
    cheaper = cheaper_fix(result)
    if cheaper is not None:
        found.append(("int8acc.cheaper_fix", repair_text(cheaper)))
    found.append(("int8acc.int8_layers", int8_layers(result.engines)))
    ratio = speedup(result.engines)
    if ratio is not None:
        found.append(("int8acc.speedup", round(ratio, 4)))
    return [(name, value) for name, value in found if value != ""]


def _of_search(search: SearchOutcome) -> list[tuple[str, object]]:
    fix = "none" if not search.found else "verified" if search.verified else "not verified"
    return [
        ("int8acc.culprits", " ".join(culprit.layer for culprit in search.culprits)),
        ("int8acc.fix", fix),
        ("int8acc.int8_share", round(search.int8_share, 6)),
    ]
