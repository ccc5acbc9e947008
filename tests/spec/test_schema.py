"""The JSON schema that editors use: shipped as generated, draft 07, and of one mind with the loader."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from malformed_specs import ALL
from packages import written_again
from spec_texts import SCHEMA, VALID, is_valid

from pytest_int8acc import load_spec
from pytest_int8acc.spec.yaml import parse

#: Mistakes that a schema cannot see.
UNSEEN = set(
    (Path(__file__).parent / "unseen_by_the_schema.txt").read_text(encoding="utf-8").splitlines()[2:]
)


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """``schema`` and all schemas in it."""
    yield schema
    for key in ("properties", "definitions"):
        for inner in schema.get(key, {}).values():
            yield from subschemas(inner)
    for key in ("oneOf", "anyOf", "allOf"):
        for inner in schema.get(key, ()):
            yield from subschemas(inner)
    if isinstance(schema.get("items"), dict):
        yield from subschemas(schema["items"])


def test_the_shipped_schema_is_the_generated_one(tmp_path: Path) -> None:
    shipped, made = written_again("pytest_int8acc.spec.schema", "int8acc.schema.json", tmp_path)
    assert shipped == made, "run: python -m pytest_int8acc.spec.schema"


def test_only_keywords_of_draft_07() -> None:
    """An editor passes over keywords that it does not know, and over those beside a reference."""
    assert SCHEMA["$schema"] == "http://json-schema.org/draft-07/schema#"
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    known = jsonschema.Draft7Validator.META_SCHEMA["properties"]
    for schema in subschemas(SCHEMA):
        assert set(schema) <= set(known)
        assert "$ref" not in schema or len(schema) == 1


def test_every_mapping_is_closed_and_every_key_described() -> None:
    for schema in subschemas(SCHEMA):
        if schema.get("type") == "object" and "properties" not in schema:
            assert isinstance(schema["additionalProperties"], dict)  # names that only the user knows
        elif schema.get("type") == "object":
            assert schema["additionalProperties"] is False
            for key, inner in schema["properties"].items():
                assert "$ref" in inner or inner["description"].endswith("."), key


@pytest.mark.parametrize("name", VALID)
def test_valid_specs(name: str, tmp_path: Path) -> None:
    spec = VALID[name]
    file = tmp_path / "net.int8acc.yaml"
    file.write_text(spec, encoding="utf-8")
    assert load_spec(file)
    root = parse(spec.encode()).root
    assert root is not None
    assert is_valid(root.plain())


def test_malformed_specs() -> None:
    roots = {name: parse(raw).root for name, (raw, _) in ALL.items()}
    read = {name: root for name, root in roots.items() if root is not None}
    assert len(read) > len(ALL) / 2
    assert {name for name, root in read.items() if is_valid(root.plain())} == UNSEEN & read.keys()


@pytest.mark.parametrize("value", [None, [], "a", 1, {}, {"cases": []}, {"defaults": {}}])
def test_no_spec_at_all(value: object) -> None:
    assert not is_valid(value)
