"""The JSON Schema of ``report.json``; ``python -m pytest_int8acc.report.schema`` writes the shipped file.

Draft 07. New keys may come at any time, so unknown ones are valid; a key that goes away or changes its
meaning raises ``version``.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_int8acc.report.json import RANK, SENTENCES, VERSION
from pytest_int8acc.report.summary import summary
from pytest_int8acc.results import CaseResult, Diagnosis

FILE = Path(__file__).parent / "schema.json"
_NUMBER = {"$ref": "#/definitions/number"}
_TEXT = {"type": "string"}
#: What a case holds beside its result, or in another shape; only the first three are there without a result.
_CASE: dict[str, Any] = {
    "nodeid": {"type": "string", "description": "pytest's name of the item."},
    "verdict": {"enum": sorted(RANK)},
    "seconds": {"type": "number", "description": "The item's duration."},
    "line": {"type": "integer", "minimum": 1, "description": "Where the case stands in its spec."},
    "finished": {"type": "string", "description": "ISO 8601, UTC."},
    "message": {"type": "string", "description": "Why the case did not pass; empty where it did."},
    "settings": {"type": "string", "description": "Each setting, with its source."},
    "scores": {
        "type": "array",
        "description": "All scores, outputs first.",
        "items": {
            "allOf": [{"$ref": "#/definitions/Score"}],
            "properties": {
                "margin": {
                    "type": ["number", "null"],
                    "description": "Distance to the limit, positive where it is kept.",
                }
            },
        },
    },
    "culprits": {"type": "array", "items": {"$ref": "#/definitions/Culprit"}},
    "plan": {
        "type": "object",
        "additionalProperties": _TEXT,
        "description": "The precision of each layer that leaves INT8.",
    },
    "trials": {"type": "integer", "description": "How many plans the search tried."},
    "builds": {"type": "integer", "description": "How many models the search built."},
    "written": {
        "type": "array",
        "items": _TEXT,
        "description": "Files of the case, from the report folder on.",
    },
}
#: What a search holds beside its fields and sentences.
_SEARCH: dict[str, Any] = {
    "interrupted": {"type": "boolean", "description": "Ctrl-C ended it; what stands here was known by then."},
    "remarks": {"type": "array", "items": _TEXT, "description": "What came of certifying, and advice."},
}


def json_schema() -> dict[str, Any]:
    """The schema of the whole file."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "pytest-int8acc report",
        "type": "object",
        "required": ["version", "cases"],
        "properties": {
            "version": {"const": VERSION},
            "tool": {"type": "object", "properties": {"name": _TEXT, "version": _TEXT}},
            "finished": {"type": "string", "description": "When the run ended; ISO 8601, UTC."},
            "merged": {"type": "array", "items": _TEXT, "description": "The shards' folders."},
            "cases": {"type": "array", "items": {"$ref": "#/definitions/Case"}},
            "errors": {
                "type": "array",
                "description": "Spec files that could not be read.",
                "items": {
                    "type": "object",
                    "required": ["nodeid", "message"],
                    "properties": {"nodeid": _TEXT, "message": _TEXT},
                },
            },
        },
        "definitions": dict(sorted(_definitions().items())),
    }


def _definitions() -> dict[str, Any]:
    """Each class of a result, with its sentences, and what else a case holds."""
    from pydantic import BaseModel, ConfigDict

    class Measured(BaseModel):
        """Its configuration is that of the dataclasses in it."""

        model_config = ConfigDict(use_attribute_docstrings=True)
        case: CaseResult

    definitions: dict[str, Any] = _plain(
        Measured.model_json_schema(ref_template="#/definitions/{model}")["$defs"]
    )
    for made, sentences in (*SENTENCES.items(), (Diagnosis, {"summary": summary})):
        told = {key: {**_TEXT, "description": _first_line(make)} for key, make in sentences.items()}
        definitions[made.__name__]["properties"] |= told
        definitions[made.__name__]["required"] += told
    definitions["SearchOutcome"]["properties"] |= _SEARCH
    definitions["number"] = {
        "oneOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}],
        "description": "A number; what JSON cannot say stands as text.",
    }
    case = definitions.pop("CaseResult")
    case["properties"] = {**case["properties"], **_CASE}
    case["required"] = ["nodeid", "verdict", "seconds"]
    case["description"] = "One case; what is not required is there where the case was measured."
    definitions["Case"] = case
    return definitions


def text() -> str:
    """The shipped file's content."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def _first_line(function: Callable[..., str]) -> str:
    return (inspect.getdoc(function) or "").partition("\n")[0]


def _plain(schema: Any) -> Any:
    """Descriptions in one line, numbers that may be infinite, no titles or defaults."""
    if isinstance(schema, list):
        return [_plain(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    said = {"description": " ".join(schema["description"].split())} if "description" in schema else {}
    if schema.get("type") == "number":
        return _NUMBER | said
    if schema.get("type") == "array":  # a tuple's lengths say nothing here
        return {"type": "array", "items": _plain(schema["items"])} | said
    if "properties" in schema:
        inner = {name: _plain(value) for name, value in schema["properties"].items()}
        return {"type": "object", "properties": inner, "required": schema.get("required", [])}
    return {k: _plain(value) for k, value in schema.items() if k not in ("title", "default")} | said


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
