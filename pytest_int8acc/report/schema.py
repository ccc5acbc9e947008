"""The JSON Schema of ``report.json``; ``python -m pytest_int8acc.report.schema`` writes the shipped file.

Draft 07. New keys may come at any time, so unknown ones are valid; a key that goes away or changes its
meaning raises ``version``.
"""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path
from typing import Any

from pytest_int8acc import results
from pytest_int8acc.report.json import RANK, VERSION
from pytest_int8acc.results import CaseResult

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
#: What report.json tells of a result in sentences beside its fields, by class.
_SAID: dict[str, dict[str, Any]] = {
    "Culprit": {"alone": {**_TEXT, "description": "``worst_alone`` in words; may be empty."}},
    "SearchOutcome": {
        "reason": {**_TEXT, "description": "Why the search stopped."},
        "interrupted": {"type": "boolean", "description": "Ctrl-C ended the search."},
        "remarks": {"type": "array", "items": _TEXT, "description": "What came of certifying, and advice."},
    },
}


def json_schema() -> dict[str, Any]:
    """The schema of the whole file."""
    from pydantic import TypeAdapter

    generated = TypeAdapter(CaseResult).json_schema(ref_template="#/definitions/{model}")
    told = _docstrings()
    definitions = {name: _tidy(schema, told.get(name, {})) for name, schema in generated.pop("$defs").items()}
    for name, said in _SAID.items():
        definitions[name]["properties"] |= said
    definitions["number"] = {
        "oneOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}],
        "description": "A number; what JSON cannot say stands as text.",
    }
    case = _tidy(generated, told["CaseResult"])
    case["properties"] = {**case["properties"], **_CASE}
    case["required"] = ["nodeid", "verdict", "seconds"]
    case["description"] = "One case; what is not required is there where the case was measured."
    definitions["Case"] = case
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
        "definitions": dict(sorted(definitions.items())),
    }


def text() -> str:
    """The shipped file's content."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def _tidy(schema: dict[str, Any], told: dict[str, str]) -> dict[str, Any]:
    """One definition: descriptions from the source, numbers that may be infinite, no titles or defaults."""
    tidy: dict[str, Any] = _plain(schema)
    for name, description in told.items():
        if name in tidy.get("properties", {}):
            tidy["properties"][name] = {**tidy["properties"][name], "description": description}
    return tidy


def _plain(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_plain(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "number":
        return _NUMBER
    if schema.get("type") == "array":  # a tuple's lengths say nothing here
        return {"type": "array", "items": _plain(schema["items"])}
    if "properties" in schema:
        inner = {name: _plain(value) for name, value in schema["properties"].items()}
        return {"type": "object", "properties": inner, "required": schema.get("required", [])}
    return {key: _plain(value) for key, value in schema.items() if key not in ("title", "default")}


def _docstrings() -> dict[str, dict[str, str]]:
    """The docstring of each field, by class and name."""
    found = {}
    for node in ast.parse(inspect.getsource(results)).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = {
                field.target.id: " ".join(said.value.value.split())
                for field, said in zip(node.body, node.body[1:], strict=False)
                if isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(said, ast.Expr)
                and isinstance(said.value, ast.Constant)
                and isinstance(said.value.value, str)
            }
    return found


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
