"""``report.json``: all cases of a run, for machines. ``schema.json`` describes its keys."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path, PurePath
from typing import Any, Literal, get_args

from pytest_int8acc.files import replace_file
from pytest_int8acc.report.causes import advice, cause_text
from pytest_int8acc.report.course import stop_text
from pytest_int8acc.report.fixes import repair_text
from pytest_int8acc.report.plain import to_plain
from pytest_int8acc.report.precision import precision_text
from pytest_int8acc.report.search import alone_text, reason, remarks
from pytest_int8acc.report.summary import fit_note, stage_text, summary
from pytest_int8acc.report.view import CaseView
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

#: The version is raised when a key changes its meaning or is removed. New keys may be added at any time.
VERSION = 2
NAME = "report.json"
#: If a case has several verdicts, the one that comes last in this list counts.
Verdict = Literal["skipped", "passed", "xpassed", "xfailed", "error", "failed"]
RANK = get_args(Verdict)
BAD = ("failed", "error")


@dataclass(frozen=True)
class Sentence:
    """A sentence that ``report.json`` holds beside the numbers of a class of results."""

    about: str
    """What the sentence says, for the schema."""
    make: Callable[[Any, str], str]
    """Makes it of the object and of the case's format, like ``INT8``."""


#: By class, the key of each sentence.
SENTENCES: Mapping[type, Mapping[str, Sentence]] = {
    PrecisionContract: {
        "text": Sentence(
            "Shares of the multiply-accumulates by format, as asked for and as run.",
            lambda contract, _: precision_text(contract),
        )
    },
    Cause: {
        "text": Sentence("What was measured, in a sentence with its numbers.", cause_text),
        "advice": Sentence("What to do.", advice),
    },
    LineFit: {
        "note": Sentence("What a slope far from 1, or a shift, suggests; empty near the baseline.", fit_note)
    },
    Repair: {"text": Sentence("What the remedy does, what matters most first.", repair_text)},
    StageLine: {
        "text": Sentence("What it means where this is the first stage that fails; else empty.", stage_text)
    },
    Culprit: {
        "alone": Sentence(
            "The worst score with this group alone in the low format, like ``logits cosine 0.93``; may be "
            "empty.",
            lambda culprit, _: alone_text(culprit),
        )
    },
    Stop: {"text": Sentence("What ended the case after its verdict, and what was left out.", stop_text)},
    SearchOutcome: {"reason": Sentence("Why the search ended.", lambda outcome, _: reason(outcome))},
}


@dataclass(frozen=True)
class Report:
    """All cases of a run: what ``report.json`` holds, and what was measured."""

    plain: dict[str, Any]
    results: Mapping[str, CaseResult]
    """By the node id of each case that was measured; paths of files start at the report folder."""

    @property
    def cases(self) -> list[dict[str, Any]]:
        """The cases, as ``report.json`` holds them."""
        cases: list[dict[str, Any]] = self.plain["cases"]
        return cases

    @property
    def errors(self) -> list[dict[str, str]]:
        """The files that could not be read, each as ``nodeid`` and ``message``."""
        errors: list[dict[str, str]] = self.plain["errors"]
        return errors

    def view(self, entry: Mapping[str, Any]) -> CaseView | None:
        """What is said of a case; None where it was not measured."""
        return self._views.get(entry["nodeid"])

    @cached_property
    def _views(self) -> dict[str, CaseView]:
        return {nodeid: CaseView(result) for nodeid, result in self.results.items()}

    @cached_property
    def formats(self) -> str:
        """The formats of the cases that were measured, like ``INT8, FP16``; ``Model`` without any."""
        return ", ".join(dict.fromkeys(view.low_format for view in self._views.values())) or "Model"


def report_of(
    cases: Iterable[dict[str, Any]],
    errors: Iterable[dict[str, str]],
    results: Mapping[str, CaseResult],
    **more: Any,
) -> Report:
    """Returns a report of cases.

    Args:
        cases: Plain types, as from ``case_entry``.
        errors: Files that could not be read, each as ``nodeid`` and ``message``.
        results: What was measured, by node id.
        more: Further keys: ``tool``, ``finished``, ``merged``.
    """
    return Report({"version": VERSION, **more, "cases": list(cases), "errors": list(errors)}, results)


def write_json(folder: Path, report: Report) -> Path:
    """Write ``report.json`` into ``folder`` and return its path.

    Raises:
        OSError: The folder cannot be made or written.
    """
    text = json.dumps(report.plain, indent=1, ensure_ascii=False, allow_nan=False)
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


def located(result: CaseResult, folder: Path | None) -> CaseResult:
    """Returns ``result`` with paths in the report folder made relative to it."""
    return replace(result, written=tuple(_from(folder, path) for path in result.written))


def case_entry(
    nodeid: str, verdict: str, seconds: float, result: CaseResult | None, **more: Any
) -> dict[str, Any]:
    """Returns one case of the report as plain types.

    Args:
        nodeid: pytest's name of the item.
        verdict: passed, failed, error, skipped, xfailed or xpassed.
        seconds: The item's duration; of a case measured, its own seconds stand instead.
        result: What was measured; None where nothing was.
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


def plain_result(result: CaseResult) -> dict[str, Any]:
    """Returns ``result`` as plain types, with its sentences."""
    plain: dict[str, Any] = to_plain(result, _sentences(result.low_format))
    if plain["diagnosis"] is not None:
        plain["diagnosis"]["summary"] = summary(result)
        for repair in plain["diagnosis"]["repairs"]:
            repair["scores"] = repair["evidence"]["scores"]
    if result.search is not None:
        repairs = result.diagnosis.repairs if result.diagnosis else ()
        plain["search"]["remarks"] = remarks(result.search, repairs)
        plain["search"]["interrupted"] = result.search.ending.kind == "interrupted"
    return plain


def _sentences(low_format: str) -> Mapping[type, Mapping[str, Callable[[Any], str]]]:
    """Returns what makes the sentences of a case in this format."""
    return {
        kind: {key: partial(_say, sentence, low_format) for key, sentence in sentences.items()}
        for kind, sentences in SENTENCES.items()
    }


def _say(sentence: Sentence, low_format: str, value: Any) -> str:
    return sentence.make(value, low_format)


def one_per_case(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns one entry per item: a case that passes and then fails to clean up is an error."""
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
    """Returns ``path`` relative to the report folder, if it is inside."""
    if folder is None or folder not in PurePath(path).parents:
        return path
    return PurePath(path).relative_to(folder).as_posix()
