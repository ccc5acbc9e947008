"""``report.json``: all cases of a run, for machines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: Raised when a key changes its meaning or goes away; new keys may come at any time.
VERSION = 1


def write_json(folder: Path, cases: Sequence[Mapping[str, Any]]) -> Path:
    """Write ``report.json`` into ``folder``, by way of a temporary file, and return its path.

    Args:
        folder: Made where it is not there.
        cases: Plain types, as from ``case_entry``.

    Raises:
        OSError: The folder cannot be made or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.json"
    text = json.dumps(
        {"version": VERSION, "cases": list(cases)}, indent=1, ensure_ascii=False, allow_nan=False
    )
    part = folder / "report.json.part"
    part.write_text(text + "\n", encoding="utf-8")
    part.replace(path)
    return path


def case_entry(
    nodeid: str, verdict: str, seconds: float, details: Mapping[str, Any] | None
) -> dict[str, Any]:
    """One case of the report.

    Args:
        nodeid: pytest's name of the item.
        verdict: passed, failed, error, skipped, xfailed or xpassed.
        seconds: The item's duration.
        details: ``to_plain`` of the CaseResult; None where there is no result.
    """
    entry: dict[str, Any] = {"nodeid": nodeid, "verdict": verdict, "seconds": seconds}
    if details is None:
        return entry
    search = details["search"] or {}
    scores = [score for output in details["outputs"] for score in output["scores"]] + details["metrics"]
    return {
        **entry,
        "name": details["name"],
        "scores": [{**score, "margin": _margin(score)} for score in scores],
        "culprits": search.get("culprits", []),
        "plan": {culprit["layer"]: search["precision"] for culprit in search.get("culprits", [])},
        "trials": len(search.get("trials", [])),
        "builds": search.get("builds", 0),
        **{key: details[key] for key in ("spec", "samples", "data", "baseline", "candidate", "backend")},
        "notes": details["notes"],
        "search": details["search"],
    }


def _margin(score: Mapping[str, Any]) -> float | None:
    if score["limit"] is None or isinstance(score["value"], str):
        return None
    distance = float(score["value"]) - float(score["limit"])
    return distance if score["bound"] == "min" else -distance
