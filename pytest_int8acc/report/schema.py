"""Makes the JSON Schema (draft 07) of ``report.json``.

``python -m pytest_int8acc.report.schema`` writes the file ``schema.json`` that is shipped. Unknown keys are
valid, because new keys may be added at any time. If a key is removed or changes its meaning, the version of
the format is raised.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pytest_int8acc.report.json import ADDED, RANK, VERSION
from pytest_int8acc.results import CaseResult

FILE = Path(__file__).parent / "schema.json"
_NUMBER = {"$ref": "#/definitions/number"}
_TEXT = {"type": "string"}


def _kind(kind: str | list[str], said: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, **more, "description": said}


_MARGIN = {"margin": _kind(["number", "null"], "Distance to the limit, positive where it is kept.")}
#: The schemas of the keys of a case in ``report.json`` that ``CaseResult`` lacks or holds in another form.
#: Only the first three are in every case; all others may be missing if the case was not measured.
_CASE: dict[str, Any] = {
    "nodeid": _kind("string", "pytest's name of the item."),
    "verdict": {"enum": sorted(RANK)},
    "seconds": _kind("number", "What the case took, setup included."),
    "line": _kind("integer", "Where the case stands in its spec.", minimum=1),
    "finished": _kind("string", "ISO 8601, UTC."),
    "message": _kind("string", "Why the case did not pass; empty where it did."),
    "settings": _kind("string", "Each setting, with its source."),
    "scores": _kind("array", "All scores, outputs first.")
    | {"items": {"allOf": [{"$ref": "#/definitions/Score"}], "properties": _MARGIN}},
    "culprits": {"type": "array", "items": {"$ref": "#/definitions/Culprit"}},
    "plan": _kind("object", "The precision of each layer that leaves INT8.", additionalProperties=_TEXT),
    "trials": _kind("integer", "How many plans the search tried."),
    "builds": _kind("integer", "How many models the search built."),
    "written": _kind("array", "Files of the case, from the report folder on.", items=_TEXT),
}


def json_schema() -> dict[str, Any]:
    """Returns the schema of the whole ``report.json``."""
    error = {"nodeid": _TEXT, "message": _TEXT}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "pytest-int8acc report",
        "type": "object",
        "required": ["version", "cases"],
        "properties": {
            "version": {"const": VERSION},
            "tool": {"type": "object", "properties": {"name": _TEXT, "version": _TEXT}},
            "finished": _kind("string", "When the run ended; ISO 8601, UTC."),
            "merged": _kind("array", "The shards' folders.", items=_TEXT),
            "cases": {"type": "array", "items": {"$ref": "#/definitions/Case"}},
            "missing": _kind(
                "array",
                "Node ids of the cases that were to run, and did not end before the run did.",
                items=_TEXT,
            ),
            "errors": _kind("array", "Spec files, and reports to be merged, that could not be read.")
            | {"items": {"type": "object", "required": list(error), "properties": error}},
        },
        "definitions": dict(sorted(_definitions().items())),
    }


def _definitions() -> dict[str, Any]:
    """Returns the name of each class of results, with its schema. The schema of a case is named ``Case``."""
    from pydantic import BaseModel, ConfigDict

    class Measured(BaseModel):
        # pydantic applies the configuration of this class to the dataclasses within it.
        model_config = ConfigDict(use_attribute_docstrings=True)
        case: CaseResult

    definitions: dict[str, Any] = _plain(
        Measured.model_json_schema(ref_template="#/definitions/{model}")["$defs"]
    )
    for result, keys in ADDED.items():
        properties = {key: {**added.schema, "description": added.about} for key, added in keys.items()}
        definitions[result.__name__]["properties"] |= properties
        definitions[result.__name__]["required"] += properties
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
    """Returns the content of the shipped file ``schema.json``."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def _plain(schema: Any) -> Any:
    """Returns a copy of a schema without titles and defaults.

    In the copy, a number may also be one of the texts ``"inf"``, ``"-inf"`` and ``"nan"``, because JSON has
    no such numbers.
    """
    if isinstance(schema, list):
        return [_plain(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    said = {"description": " ".join(schema["description"].split())} if "description" in schema else {}
    if schema.get("type") == "number":
        return _NUMBER | said
    # the schema omits the length of tuples: programs that read the report do not need it
    if schema.get("type") == "array":
        return {"type": "array", "items": _plain(schema["items"])} | said
    if "properties" in schema:
        inner = {name: _plain(value) for name, value in schema["properties"].items()}
        return {"type": "object", "properties": inner, "required": schema.get("required", [])}
    return {k: _plain(value) for k, value in schema.items() if k not in ("title", "default")} | said


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
