"""The JSON schema that editors use: shipped as generated, draft 07, and of one mind with the loader."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from malformed_specs import ALL
from packages import written_again
from spec_schema import ANNOTATIONS, JUDGED, SCHEMA, is_valid
from spec_texts import VALID

from pytest_int8acc import load_spec
from pytest_int8acc.spec.yaml import parse

#: Mistakes that a schema cannot see, by their names in malformed_keys.txt and malformed_files.txt.
_NAMES = (
    "a case lacks what defaults lack; a case twice by alias; a plan for TensorRT's own quantization; "
    "a plan for an engine; added: average of top1; added: boxes of wer; added: coco_map without "
    "decode; added: duplicate in depth; added: duplicate key; added: function with an output; added: "
    "labels without function; added: mark parametrize; added: mark skip; added: merge key; added: min "
    "above max; added: named metric that streams; added: output beside decode; added: prove with "
    "golden; added: prove with labels alone; added: prove without groups; added: prove without "
    "labels; added: quantile without its check; added: second document; added: shapes of two ranks; "
    "added: shapes that shrink; added: skip no; added: tag of the core schema; candidate against "
    "fp16; candidate that keeps fp16; candidate with int8 layers; exclude beside an engine; exclude "
    "beside implicit; exclude of the defaults beside an engine; fp8 percentile of minmax; fp8 with a "
    "share of int8; fp8 with int8 layers; implicit data without function; inputs in a folder like a "
    "script; inputs of no identifier; inputs without function; percentile without its method; "
    "realized of an engine; top_k without its method; two cases of a name"
)
UNSEEN = set(_NAMES.split("; "))


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


def test_only_keywords_of_draft_07_that_the_judge_knows() -> None:
    assert SCHEMA["$schema"] == "http://json-schema.org/draft-07/schema#"
    for schema in subschemas(SCHEMA):
        assert set(schema) <= ANNOTATIONS | JUDGED
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
    assert is_valid(root.plain(), SCHEMA)


def test_malformed_specs() -> None:
    roots = {name: parse(raw).root for name, (raw, _) in ALL.items()}
    read = {name: root for name, root in roots.items() if root is not None}
    assert len(read) > len(ALL) / 2
    assert {name for name, root in read.items() if is_valid(root.plain(), SCHEMA)} == UNSEEN & read.keys()


@pytest.mark.parametrize("value", [None, [], "a", 1, {}, {"cases": []}, {"defaults": {}}])
def test_no_spec_at_all(value: object) -> None:
    assert not is_valid(value, SCHEMA)
