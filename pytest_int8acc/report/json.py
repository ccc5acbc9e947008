"""``report.json``: all cases of a run, for machines; ``schema.json`` says what is in it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Literal, get_args

from pytest_int8acc.files import replace_file
from pytest_int8acc.report.causes import advice, cause_text
from pytest_int8acc.report.course import stop_text
from pytest_int8acc.report.diagnosis import repair_text
from pytest_int8acc.report.plain import to_plain
from pytest_int8acc.report.precision import precision_text
from pytest_int8acc.report.search import alone_text, reason, remarks
from pytest_int8acc.report.summary import fit_note, stage_text, summary
from pytest_int8acc.report.words import in_low
from pytest_int8acc.results import (
    CaseResult,
    Culprit,
    LineFit,
    PrecisionContract,
    Repair,
    SearchOutcome,
    StageLine,
    Stop,
)
from pytest_int8acc.results.causes import Cause

#: Raised when a key changes its meaning or goes away; new keys may come at any time.
VERSION = 2
NAME = "report.json"
#: Of several verdicts on one case, the later one in this list counts.
Verdict = Literal["skipped", "passed", "xpassed", "xfailed", "error", "failed"]
RANK = get_args(Verdict)
BAD = ("failed", "error")
#: What an entry holds of the result as it is, beside what scripts ask for most.
_AS_MEASURED = (
    *("spec", "samples", "data", "baseline", "candidate", "backend", "outputs", "metrics", "int8_groups"),
    *("high_groups", "int8_macs", "precision", "warnings", "notes", "search", "engines", "findings"),
    *("diagnosis", "golden", "recorded", "phases", "stopped", "low", "blind", "blind_reason"),
)
#: By class, the key of each sentence and what makes it.
SENTENCES: Mapping[type, Mapping[str, Callable[[Any], str]]] = {
    PrecisionContract: {"text": precision_text},
    Cause: {"text": cause_text, "advice": advice},
    LineFit: {"note": fit_note},
    Repair: {"text": repair_text},
    StageLine: {"text": stage_text},
    Culprit: {"alone": alone_text},
    Stop: {"text": stop_text},
    SearchOutcome: {"reason": reason},
}


def report_of(
    cases: Iterable[Mapping[str, Any]], errors: Iterable[Mapping[str, str]] = (), **more: Any
) -> dict[str, Any]:
    """A report from its entries.

    Args:
        cases: Plain types, as from ``case_entry``.
        errors: Files that could not be read, each as ``nodeid`` and ``message``.
        more: Further keys: ``tool``, ``finished``, ``merged``.
    """
    return {"version": VERSION, **more, "cases": list(cases), "errors": list(errors)}


def write_json(folder: Path, report: Mapping[str, Any]) -> Path:
    """Write ``report.json`` into ``folder`` and return its path.

    Raises:
        OSError: The folder cannot be made or written.
    """
    text = json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False)
    return write_text(folder, NAME, text + "\n")


def write_text(folder: Path, name: str, text: str) -> Path:
    """Write a file into ``folder``, made where it is not there, at one stroke.

    Raises:
        OSError: The folder cannot be made or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # A name that is no Unicode (a path with undecodable bytes) must not cost the report.
    replace_file(folder / name, text.encode("utf-8", errors="backslashreplace"))
    return folder / name


def case_entry(
    nodeid: str,
    verdict: str,
    seconds: float,
    result: CaseResult | None,
    folder: Path | None = None,
    **more: Any,
) -> dict[str, Any]:
    """One case of the report.

    Args:
        nodeid: pytest's name of the item.
        verdict: passed, failed, error, skipped, xfailed or xpassed.
        seconds: The item's duration; of a case measured, its own seconds stand instead.
        result: What was measured; None where nothing was.
        folder: The report folder; files written into it are named from there.
        more: ``line`` in the spec, ``finished`` (ISO 8601), ``message``, ``settings``.
    """
    entry: dict[str, Any] = {"nodeid": nodeid, "verdict": verdict, "seconds": seconds, **more}
    if result is None:
        return entry
    details = plain_result(result)
    search = details["search"] or {}
    culprits = search.get("culprits", [])
    margins = (None if s.margin is None or not math.isfinite(s.margin) else s.margin for s in result.scores)
    scores = [score for output in details["outputs"] for score in output["scores"]] + details["metrics"]
    return {
        **entry,
        "seconds": result.seconds or seconds,
        "name": details["name"],
        "scores": [{**score, "margin": m} for score, m in zip(scores, margins, strict=True)],
        "culprits": culprits,
        "plan": {culprit["layer"]: search["precision"] for culprit in culprits},
        "trials": len(search.get("trials", [])),
        "builds": search.get("builds", 0),
        "written": [_from(folder, path) for path in details.get("written", [])],
        **{key: details[key] for key in _AS_MEASURED if key in details},
    }


def plain_result(result: CaseResult) -> dict[str, Any]:
    """``result`` as plain types, with the sentences."""
    plain: dict[str, Any] = to_plain(result, _sentences(result.low))
    if plain["diagnosis"] is not None:
        plain["diagnosis"]["summary"] = in_low(summary(result), result.low)
    if result.search is not None:
        repairs = result.diagnosis.repairs if result.diagnosis else ()
        plain["search"]["remarks"] = [in_low(text, result.low) for text in remarks(result.search, repairs)]
        plain["search"]["interrupted"] = result.search.ending.kind == "interrupted"
    return plain


def _sentences(low: str) -> Mapping[type, Mapping[str, Callable[[Any], str]]]:
    """``SENTENCES`` of a case in this format."""
    if not low:
        return SENTENCES

    def said(make: Callable[[Any], str], value: Any) -> str:
        return in_low(make(value), low)

    return {kind: {key: partial(said, make) for key, make in own.items()} for kind, own in SENTENCES.items()}


def one_per_case(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The entries, those of one item as one: a case that passes and then fails to clean up is an error."""
    found: dict[str, dict[str, Any]] = {}
    for entry in entries:
        other = found.get(entry["nodeid"])
        if other is None:
            found[entry["nodeid"]] = dict(entry)
            continue
        pair = sorted((other, dict(entry)), key=lambda e: RANK.index(e["verdict"]))
        found[entry["nodeid"]] = {**pair[0], **pair[1]}
    return list(found.values())


def _from(folder: Path | None, path: str) -> str:
    """``path`` from the report folder on, where it is in there."""
    if folder is None or folder not in PurePath(path).parents:
        return path
    return PurePath(path).relative_to(folder).as_posix()
