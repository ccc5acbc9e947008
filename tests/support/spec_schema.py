"""A judge of JSON by the part of draft 07 that the spec's schema uses."""

import json
import re
from typing import Any

from packages import PACKAGE

SCHEMA = json.loads((PACKAGE / "int8acc.schema.json").read_text(encoding="utf-8"))
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": int | float}
#: Says nothing about validity.
ANNOTATIONS = {"$schema", "title", "description", "default", "examples", "definitions"}
JUDGED = {
    *(
        "$ref",
        "type",
        "enum",
        "const",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "minItems",
        "maxItems",
        "minProperties",
    ),
    *("oneOf", "anyOf", "allOf", "minimum", "maximum", "exclusiveMinimum", "pattern", "minLength"),
}


def is_valid(value: Any, schema: dict[str, Any], root: dict[str, Any] | None = None) -> bool:
    """Whether ``schema`` accepts ``value``; ``root`` holds what its references name."""
    root = schema if root is None else root
    if "$ref" in schema:
        target: Any = root
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        return is_valid(value, target, root)
    return _right_type(value, schema) and _in_range(value, schema) and _combines(value, schema, root)


def _right_type(value: Any, schema: dict[str, Any]) -> bool:
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "type" not in schema:
        return True
    return isinstance(value, TYPES[schema["type"]]) and (
        schema["type"] == "boolean" or not isinstance(value, bool)
    )


def _in_range(value: Any, schema: dict[str, Any]) -> bool:
    if isinstance(value, str):
        return len(value) >= schema.get("minLength", 0) and bool(re.search(schema.get("pattern", ""), value))
    if isinstance(value, int | float):
        least, greatest = schema.get("minimum", value), schema.get("maximum", value)
        return least <= value <= greatest and not value <= schema.get("exclusiveMinimum", value - 1)
    return True


def _combines(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    if isinstance(value, dict) and not _has_properties(value, schema, root):
        return False
    if isinstance(value, list) and not _has_items(value, schema, root):
        return False
    hits = {
        key: [is_valid(value, option, root) for option in schema.get(key, ())]
        for key in ("oneOf", "anyOf", "allOf")
    }
    return all(hits["allOf"]) and any(hits["anyOf"] or [True]) and sum(hits["oneOf"] or [True]) == 1


def _has_properties(value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any]) -> bool:
    known = schema.get("properties", {})
    others = schema.get("additionalProperties")
    if others is False and not known.keys() >= value.keys():
        return False
    if isinstance(others, dict) and not all(is_valid(v, others, root) for v in value.values()):
        return False
    if len(value) < schema.get("minProperties", 0):
        return False
    if not value.keys() >= set(schema.get("required", ())):
        return False
    return all(is_valid(value[key], known[key], root) for key in value.keys() & known.keys())


def _has_items(value: list[Any], schema: dict[str, Any], root: dict[str, Any]) -> bool:
    items = schema.get("items", {})
    if len(value) > schema.get("maxItems", len(value)):
        return False
    if isinstance(items, list):  # one schema per position
        return len(items) >= len(value) and all(map(lambda v, s: is_valid(v, s, root), value, items))
    if len(value) < schema.get("minItems", 0):
        return False
    return all(is_valid(item, items, root) for item in value)
