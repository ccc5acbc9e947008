"""The JSON schema of a spec, for editors; ``python -m pytest_int8acc.spec.schema`` writes the shipped file.

The schema is of draft 07, which yaml-language-server supports best. Some rules cannot be expressed in a
schema, so only ``load_spec`` checks them: unique names in a file, the parameters of a calibration method,
marks that need arguments.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from pytest_int8acc.spec.criteria import EngineCriterion, MetricCriterion, OutputCriterion
from pytest_int8acc.spec.int8 import BaselineModel, Fp8, Int8
from pytest_int8acc.spec.models import FORMAT_KEYS, Case

#: The file with the JSON schema, which is shipped with the package.
FILE = Path(__file__).parents[1] / "int8acc.schema.json"


class _Generator(GenerateJsonSchema):
    """Makes a schema without titles of fields and without null, because a spec has no null."""

    def field_title_should_be_set(self, schema: object) -> bool:
        """Return False, because titles would only repeat the keys."""
        return False

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """Return the schema of a value that may be null, without null."""
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Return a schema with its default, but without a default that is null."""
        generated = super().default_schema(schema)
        return {key: value for key, value in generated.items() if key != "default" or value is not None}


def json_schema() -> dict[str, Any]:
    """Return the schema of a spec file, which has the keys of one case, or ``defaults:`` and ``cases:``."""
    case = Case.model_json_schema(ref_template="#/definitions/{model}", schema_generator=_Generator)
    definitions: dict[str, Any] = {**case.pop("$defs"), "Case": case}
    for schema in definitions.values():
        del schema["title"]
        for value in schema["properties"].values():
            if "$ref" in value and len(value) > 1:  # draft 07 ignores all keys beside $ref
                value["allOf"] = [{"$ref": value.pop("$ref")}]
    case["required"].remove("name")
    for source in (Int8, Fp8):
        definitions[source.__name__]["oneOf"] = _required(source.sources)
    for criterion in (OutputCriterion, MetricCriterion, EngineCriterion):
        definitions[criterion.__name__]["anyOf"] = _required(criterion.limits())
    definitions["Implicit"]["anyOf"] = _required(("calibrate", "cache"))
    definitions["BaselineModel"]["oneOf"] = _required(BaselineModel.model_fields)
    case["oneOf"] = _required(FORMAT_KEYS)
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
    """Return the JSON schema as text: the content of the shipped file."""
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


def _required(keys: Iterable[str]) -> list[dict[str, list[str]]]:
    """Return one schema per key, for ``oneOf`` or ``anyOf``. Each schema requires its key."""
    return [{"required": [key]} for key in keys]


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8", newline="\n")
