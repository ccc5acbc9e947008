"""The JSON schema of a spec, for editors; ``python -m pytest_int8acc.spec.schema`` writes the shipped file.

Draft 07, since yaml-language-server knows that best. What a schema cannot say (names unique in a file, which
parameters a calibration method takes, which marks need arguments) only ``load_spec`` checks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pytest_int8acc.spec.criteria import EngineCriterion, MetricCriterion, OutputCriterion
from pytest_int8acc.spec.int8 import BaselineModel, Fp8, Int8
from pytest_int8acc.spec.models import FORMAT_KEYS, Case

FILE = Path(__file__).parents[1] / "int8acc.schema.json"


def json_schema() -> dict[str, Any]:
    """The schema of a file: one case, or ``defaults:`` and ``cases:``."""
    generated = Case.model_json_schema(ref_template="#/definitions/{model}")
    definitions: dict[str, Any] = {name: _tidy(schema) for name, schema in generated.pop("$defs").items()}
    for source in (Int8, Fp8):
        _need_one_of(definitions[source.__name__], "oneOf", source.sources)
    for criterion in (OutputCriterion, MetricCriterion, EngineCriterion):
        _need_one_of(definitions[criterion.__name__], "anyOf", criterion.limits())
    _need_one_of(definitions["Implicit"], "anyOf", ("calibrate", "cache"))
    _need_one_of(definitions["BaselineModel"], "oneOf", tuple(BaselineModel.model_fields))
    case = _tidy(generated)
    definitions["Case"] = case | {"required": [key for key in case["required"] if key != "name"]}
    _need_one_of(definitions["Case"], "oneOf", FORMAT_KEYS)
    shared = {key: {"$ref": f"#/definitions/Case/properties/{key}"} for key in case["properties"]}
    one_of_several = _mapping("A case of several; what it lacks comes from 'defaults'.", shared, ["name"])
    defaults = _mapping(
        "What the cases share; a key in a case replaces the whole value here.",
        {key: value for key, value in shared.items() if key != "name"},
    )
    cases = {
        "type": "array",
        "minItems": 1,
        "items": one_of_several,
        "description": "The cases of this file.",
    }
    several = _mapping("Several cases.", {"defaults": defaults, "cases": cases}, ["cases"])
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "pytest-int8acc spec",
        "oneOf": [{"$ref": "#/definitions/Case"}, several],
        "definitions": dict(sorted(definitions.items())),
    }


def text() -> str:
    """The shipped file's content."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _mapping(
    description: str, properties: dict[str, Any], required: list[str] | None = None
) -> dict[str, Any]:
    schema = {
        "type": "object",
        "description": description,
        "properties": properties,
        "additionalProperties": False,
    }
    return schema | ({"required": required} if required else {})


def _need_one_of(schema: dict[str, Any], keyword: str, keys: tuple[str, ...]) -> None:
    schema[keyword] = [{"required": [key]} for key in keys]


def _tidy(schema: Any) -> Any:
    """Pydantic's schema without titles and null, and with nothing beside $ref, where draft 07 ignores it."""
    if isinstance(schema, list):
        return [_tidy(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    tidy: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            tidy[key] = {name: _tidy(inner) for name, inner in value.items()}
        elif key == "default" and value is None:
            continue
        elif key == "prefixItems":  # draft 07 says 'items' of a list with one schema per position
            tidy["items"] = _tidy(value)
        elif key != "title":
            tidy[key] = value if key in ("default", "examples") else _tidy(value)
    options = [option for option in tidy.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) == 1:
        del tidy["anyOf"]
        tidy = {**options[0], **tidy}
    if "$ref" in tidy and len(tidy) > 1:
        tidy["allOf"] = [{"$ref": tidy.pop("$ref")}]
    return tidy


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8", newline="\n")
