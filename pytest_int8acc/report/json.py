"""Writes ``report.json``, which has the results of all cases of a test run for other programs to read.

``schema.json`` describes its keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, Literal, get_args

from pytest_int8acc.files import replace_file
from pytest_int8acc.report.cautions import default_session_text, precision_text
from pytest_int8acc.report.fixes import cheaper_fix, repair_text
from pytest_int8acc.report.plain import to_plain
from pytest_int8acc.report.search import alone_text
from pytest_int8acc.report.view import CaseView
from pytest_int8acc.report.why import cause_advice, cause_text, fit_note, stage_text
from pytest_int8acc.report.words import proof_word
from pytest_int8acc.results import (
    CalibrationLine,
    CaseResult,
    Certificate,
    Culprit,
    DefaultSession,
    Diagnosis,
    LineFit,
    PrecisionContract,
    Repair,
    SearchOutcome,
    StageLine,
    Stop,
    Tradeoff,
)
from pytest_int8acc.results.causes import Cause

#: The version of the format of ``report.json``. It is raised if a key changes its meaning or is removed. New
#: keys may be added at any time.
VERSION = 2
NAME = "report.json"
#: The verdicts of pytest on a test. pytest gives a verdict for setup, call and teardown of a case. The report
#: has only one: the one that comes last in this list.
Verdict = Literal["skipped", "passed", "xpassed", "xfailed", "error", "failed"]
RANK = get_args(Verdict)
BAD = ("failed", "error")


@dataclass(frozen=True)
class Added:
    """A key that ``report.json`` has for an object of results in addition to the fields of the object."""

    about: str
    """The description of the key in ``schema.json``."""
    of: Callable[[Any, CaseView], Any]
    """Computes the value of the key from the object and from the view of its case."""
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})
    """The JSON Schema of the value."""


_OF_EVIDENCE = Added(
    "The scores of the evidence.",
    lambda proved, view: proved.scores,
    {"type": "array", "items": {"$ref": "#/definitions/Score"}},
)
#: The added keys of each class of results.
ADDED: Mapping[type, Mapping[str, Added]] = {
    PrecisionContract: {
        "text": Added(
            "Shares of the multiply-accumulates by format, as asked for and as run.",
            lambda contract, view: precision_text(contract),
        )
    },
    Cause: {
        "text": Added(
            "What was measured, in a sentence with its numbers.",
            lambda cause, view: cause_text(cause, view.low_format),
        ),
        "advice": Added("What to do.", lambda cause, view: cause_advice(cause, view.low_format)),
    },
    LineFit: {
        "note": Added(
            "What a slope far from 1, or a shift, suggests; empty near the baseline.",
            lambda fit, view: fit_note(fit, view.low_format),
        )
    },
    Repair: {
        "text": Added(
            "What the remedy does, what matters most first.",
            lambda repair, view: repair_text(repair, view.low_format),
        ),
        "scores": _OF_EVIDENCE,
    },
    StageLine: {
        "text": Added(
            "What it means where this is the first stage that fails; else empty.",
            lambda stage, view: stage_text(stage, view.low_format),
        ),
        "scores": _OF_EVIDENCE,
    },
    CalibrationLine: {"scores": _OF_EVIDENCE},
    Culprit: {
        "alone": Added(
            "The worst score with this group alone in the low format, like ``logits cosine 0.93``; may be "
            "empty.",
            lambda culprit, view: alone_text(culprit),
        )
    },
    DefaultSession: {
        "text": Added(
            "How the default session differs, and what to do, in one sentence.",
            lambda session, view: default_session_text(session),
        )
    },
    Stop: {
        "text": Added(
            "What ended the case after its verdict, and what was left out.", lambda stop, view: view.stopped
        )
    },
    SearchOutcome: {
        "reason": Added("Why the search ended.", lambda search, view: view.ending),
        "remarks": Added(
            "What came of certifying, and advice.",
            lambda search, view: view.search_notes,
            {"type": "array", "items": {"type": "string"}},
        ),
        "interrupted": Added(
            "Ctrl-C ended it; what stands here was known by then.",
            lambda search, view: search.ending.kind == "interrupted",
            {"type": "boolean"},
        ),
    },
    Certificate: {
        "builds": Added(
            "The number of models that were built.",
            lambda certificate, view: certificate.builds,
            {"type": "integer"},
        )
    },
    Tradeoff: {
        "samples": Added(
            "The number of samples on which each plan was tried.",
            lambda tradeoff, view: tradeoff.samples,
            {"type": "integer"},
        )
    },
    Diagnosis: {
        "summary": Added(
            "What was wrong, in one sentence; empty without a diagnosis.",
            lambda diagnosis, view: view.summary,
        )
    },
}


@dataclass(frozen=True)
class Report:
    """The report of all cases of a test run."""

    plain: dict[str, Any]
    """The content of ``report.json``: ``version``, ``tool``, ``finished``, ``merged`` for merged reports, and
    the lists ``cases``, ``errors`` and ``missing``."""
    views: Mapping[str, CaseView]
    """Node id to all sentences about the case, for each case that was measured. Paths of files in them are
    relative to the report folder."""
    texts: Mapping[str, bytes] = field(default_factory=dict)
    """Node id to the text of the case in ``report.json``, from :func:`entry_text`. For cases that are missing
    here, the text is made when the file is written."""

    @property
    def cases(self) -> list[dict[str, Any]]:
        """The cases, each as the mapping that ``report.json`` has for it."""
        cases: list[dict[str, Any]] = self.plain["cases"]
        return cases

    @property
    def errors(self) -> list[dict[str, str]]:
        """The specs and reports that could not be read, each as ``nodeid`` and ``message``."""
        errors: list[dict[str, str]] = self.plain["errors"]
        return errors

    @property
    def missing(self) -> list[str]:
        """The node ids of the cases that were selected to run, but had not ended when the run ended."""
        missing: list[str] = self.plain["missing"]
        return missing

    def view(self, entry: Mapping[str, Any]) -> CaseView | None:
        """Returns all sentences about the case ``entry``; None if the case was not measured."""
        return self.views.get(entry["nodeid"])

    @cached_property
    def formats(self) -> str:
        """The low formats of the measured cases, like ``INT8, FP16``; ``Model`` if no case was measured."""
        return ", ".join(dict.fromkeys(view.low_format for view in self.views.values())) or "Model"


def write_json(folder: Path, report: Report) -> Path:
    """Writes ``report.json`` into ``folder`` and returns its path.

    Raises:
        OSError: The folder cannot be made or written.
    """
    entries = [report.texts.get(entry["nodeid"]) or entry_text(entry) for entry in report.cases]
    # Quotes inside strings are escaped in JSON, so this text occurs only at the key ``cases``.
    head, key, tail = _dumped(report.plain | {"cases": []}).partition('"cases": []')
    parts = [_encoded(head + key.removesuffix("]")), _encoded(f"]{tail}\n")]
    for number, entry in enumerate(entries):
        parts[-1:-1] = [b",\n  " if number else b"\n  ", entry]
    if entries:
        parts.insert(-1, b"\n ")
    return _write(folder, NAME, b"".join(parts))


def entry_text(entry: Mapping[str, Any]) -> bytes:
    """Returns the text of a case in ``report.json``, without the indentation of its first line.

    Callers keep the text, because making it takes long, and the file is written again whenever a case ends.
    """
    return _encoded(_dumped(entry).replace("\n", "\n  "))


def _encoded(text: str) -> bytes:
    """Returns ``text`` in UTF-8. Characters that UTF-8 cannot encode, as in some paths, are escaped."""
    return text.encode("utf-8", errors="backslashreplace")


def _dumped(plain: Mapping[str, Any]) -> str:
    return json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False)


def write_text(folder: Path, name: str, text: str) -> Path:
    """Writes a file into ``folder`` atomically, and returns its path. The folder is created if it is missing.

    Raises:
        OSError: The folder cannot be made or written.
    """
    return _write(folder, name, _encoded(text))


def _write(folder: Path, name: str, data: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / name, data)
    return folder / name


def located(result: CaseResult, folder: Path | None) -> CaseResult:
    """Returns a copy of ``result`` in which paths of files in ``folder`` are relative to ``folder``."""
    return replace(result, written=tuple(_from(folder, path) for path in result.written))


def _from(folder: Path | None, path: str) -> str:
    if folder is None or folder not in PurePath(path).parents:
        return path
    return PurePath(path).relative_to(folder).as_posix()


def case_entry(
    nodeid: str, verdict: str, seconds: float, view: CaseView | None, **more: Any
) -> dict[str, Any]:
    """Returns one case as the mapping of JSON types that ``report.json`` has for it.

    Args:
        nodeid: The node id of the case.
        verdict: passed, failed, error, skipped, xfailed or xpassed.
        seconds: The duration of the test. If the case was measured, the time of its phases is used instead.
        view: All sentences about the case; None if it was not measured.
        more: Further keys: ``line`` in the spec, ``finished`` (ISO 8601), ``message``, ``settings``.
    """
    entry: dict[str, Any] = {"nodeid": nodeid, "verdict": verdict, "seconds": seconds, **more}
    if view is None:
        return entry
    details, result = plain_result(view), view.result
    search = details["search"] or {}
    culprits = search.get("culprits", [])
    margins = (None if s.margin is None or not math.isfinite(s.margin) else s.margin for s in result.scores)
    scores = [score for output in details["outputs"] for score in output["scores"]] + details["metrics"]
    first_keys = {
        **entry,
        "name": details["name"],
        "seconds": result.seconds or seconds,
        "scores": [{**score, "margin": m} for score, m in zip(scores, margins, strict=True)],
        "culprits": culprits,
        "plan": {culprit["layer"]: search["precision"] for culprit in culprits},
        "trials": len(search.get("trials", [])),
        "builds": search.get("builds", 0),
        "written": details["written"],
    }
    return first_keys | {key: value for key, value in details.items() if key not in first_keys}


def plain_result(view: CaseView) -> dict[str, Any]:
    """Returns the result of a case as JSON types, with the keys of ``ADDED``."""

    def added(value: object) -> dict[str, Any]:
        keys = ADDED.get(type(value), {})
        return {key: key_added.of(value, view) for key, key_added in keys.items()}

    plain: dict[str, Any] = to_plain(view.result, added)
    return plain


def answer_properties(view: CaseView) -> list[tuple[str, object]]:
    """Returns entries of ``user_properties`` on what was found after a verdict: layers at fault, fix, cause.

    Other tools can filter and plot these facts without parsing the entry ``int8acc.details``.
    """
    result, search = view.result, view.result.search
    facts: list[tuple[str, object]] = []
    if search is not None:
        facts += [
            ("int8acc.culprits", " ".join(view.layers)),
            ("int8acc.fix", proof_word(search) if search.found else "none"),
            ("int8acc.int8_share", round(search.int8_share, 6)),
        ]
    if result.diagnosis is not None:
        facts += [
            ("int8acc.why", view.summary),
            ("int8acc.stage", result.diagnosis.first_stage or ""),
        ]
    if cheaper_fix(result) is not None:
        facts.append(("int8acc.cheaper_fix", view.repairs[0]))
    return [(name, value) for name, value in facts if value != ""]


def later(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Returns one entry for two entries of the same case, with the worse of both verdicts.

    A case that passes and then has an error in teardown has two entries.
    """
    better, worse = sorted((before, now), key=lambda entry: RANK.index(entry["verdict"]))
    return better | worse
