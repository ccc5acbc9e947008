"""``report.json``: all cases of a run, for machines; ``schema.json`` says what is in it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any, TypeGuard

from pytest_int8acc.errors import Int8accError
from pytest_int8acc.files import replace_file
from pytest_int8acc.report.causes import advice, cause_text
from pytest_int8acc.report.course import stop_text
from pytest_int8acc.report.diagnosis import repair_text
from pytest_int8acc.report.plain import to_plain
from pytest_int8acc.report.search import alone_text, reason, remarks
from pytest_int8acc.report.summary import fit_note, stage_text, summary
from pytest_int8acc.report.words import in_low
from pytest_int8acc.results import CaseResult, Culprit, LineFit, Repair, SearchOutcome, StageLine, Stop
from pytest_int8acc.results.causes import Cause

#: Raised when a key changes its meaning or goes away; new keys may come at any time.
VERSION = 2
NAME = "report.json"
#: Of the verdicts on one case, the one that counts.
RANK = ("skipped", "passed", "xpassed", "xfailed", "error", "failed")
BAD = ("failed", "error")
#: What an entry holds of the result as it is, beside what scripts ask for most.
_AS_MEASURED = (
    *("spec", "samples", "data", "baseline", "candidate", "backend", "outputs", "metrics", "int8_groups"),
    *("high_groups", "int8_macs", "warnings", "notes", "search", "engines", "findings", "diagnosis"),
    *("golden", "recorded", "phases", "stopped", "low"),
)
#: By class, the key of each sentence and what makes it.
SENTENCES: Mapping[type, Mapping[str, Callable[[Any], str]]] = {
    Cause: {"text": cause_text, "advice": advice},
    LineFit: {"note": fit_note},
    Repair: {"text": repair_text},
    StageLine: {"text": stage_text},
    Culprit: {"alone": alone_text},
    Stop: {"text": stop_text},
    SearchOutcome: {"reason": reason},
}
#: In reports of version 1, keys by which an object is known, and the one of its sentence: all of a reason.
_OLDER = (
    ({"slope", "note"}, "note"),
    ({"advice", "text"}, "text"),
    ({"scores", "passed", "text"}, "text"),
    ({"rescales", "text"}, "text"),
    ({"stages", "summary"}, "summary"),
)


def report_of(
    cases: Iterable[Mapping[str, Any]], errors: Iterable[Mapping[str, str]] = (), **more: Any
) -> dict[str, Any]:
    """A report from its entries.

    Args:
        cases: Plain types, as from ``case_entry``.
        errors: Spec files that could not be read, each as ``nodeid`` and ``message``.
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


def read_json(folder: Path) -> dict[str, Any]:
    """The report in ``folder``; one of an older version as the newest would hold it.

    Raises:
        Int8accError: There is none, or it is none of ours.
    """
    path = folder / NAME
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Int8accError(
            f"{path}: {error.strerror or error}; expected the folder of a run with --int8acc-report"
        ) from None
    except (ValueError, RecursionError) as error:
        raise Int8accError(f"{path}: not JSON ({error}); run those cases again") from None
    if not _is_report(report):
        raise Int8accError(f"{path}: not a report of pytest-int8acc; run those cases again")
    if report.get("version") not in (1, VERSION):
        raise Int8accError(
            f"{path}: version {report.get('version')} of a report, expected {VERSION}; run all shards with "
            "the same pytest-int8acc"
        )
    return newest(report) if report["version"] < VERSION else report


def _is_report(report: Any) -> TypeGuard[dict[str, Any]]:
    """Whether what every report has is there, so that nothing below trips over it."""
    if not isinstance(report, dict) or not isinstance(report.get("cases"), list):
        return False
    errors = report.get("errors", [])
    return (
        all(map(_is_entry, report["cases"]))
        and isinstance(errors, list)
        and all(isinstance(e, dict) and {"nodeid", "message"} <= e.keys() for e in errors)
    )


def _is_entry(case: Any) -> bool:
    return (
        isinstance(case, dict)
        and isinstance(case.get("nodeid"), str)
        and case.get("verdict") in RANK
        and isinstance(case.get("seconds"), int | float)
        and isinstance(case.get("line", 1), int)
    )


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
    details = told(result)
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


def told(result: CaseResult) -> dict[str, Any]:
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


def newest(value: Any) -> Any:
    """A report of version 1, or a part of it, with its sentences under ``told`` as well."""
    if isinstance(value, list):
        return [newest(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    raised = {key: newest(inner) for key, inner in value.items()}
    if {"alone", "price"} <= value.keys():
        raised |= {"worst_alone": None, "told": value["alone"]}
    if {"reason", "culprits"} <= value.keys():
        kind = "interrupted" if value.get("interrupted") else "told"
        raised["ending"] = {"kind": kind, "told": value["reason"]}
    for keys, key in _OLDER:
        if keys <= value.keys():
            raised["told"] = value[key]
    return raised | ({"first_stage": None} if value.get("first_stage") == "" else {})
