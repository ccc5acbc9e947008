"""report.json: what its published schema says of it, and what becomes of a result on the way."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from kills import at_once
from report_cases import case, entry, full_report, report
from report_results import RESULTS

from pytest_int8acc.report.json import case_entry, one_per_case, write_json
from pytest_int8acc.report.plain import restore_entry
from pytest_int8acc.report.read import read_json
from pytest_int8acc.report.schema import FILE, json_schema, text

jsonschema = pytest.importorskip("jsonschema", reason="pip install jsonschema")
SCHEMA = json_schema()
JUDGE = jsonschema.Draft7Validator(SCHEMA)


def closed(schema: Any) -> Any:
    """``schema`` without room for keys that it does not name."""
    if isinstance(schema, list):
        return [closed(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    tight = {key: closed(value) for key, value in schema.items()}
    if "properties" in tight and "allOf" not in tight and "additionalProperties" not in tight:
        tight["additionalProperties"] = False
    return tight


def without_margin(plain: dict[str, Any]) -> dict[str, Any]:
    """A report whose scores hold no more than Score does: allOf and closed schemas do not go together."""
    cases = [dict(case) for case in plain["cases"]]
    for one in cases:
        one["scores"] = [{k: v for k, v in s.items() if k != "margin"} for s in one.get("scores", [])]
    return {**plain, "cases": cases}


def test_the_shipped_schema_is_the_one_of_the_results():
    assert FILE.read_text(encoding="utf-8") == text(), "run python -m pytest_int8acc.report.schema"
    jsonschema.Draft7Validator.check_schema(SCHEMA)


def test_a_report_of_everything_is_valid_and_holds_no_key_that_the_schema_does_not_name():
    plain = json.loads(json.dumps(full_report(), allow_nan=False))
    JUDGE.validate(plain)
    jsonschema.Draft7Validator(closed(SCHEMA)).validate(without_margin(plain))


@settings(deadline=None, max_examples=20)
@given(RESULTS)
def test_every_result_gives_a_valid_entry_and_comes_back_from_it(result):
    plain = json.loads(json.dumps(report(entry(result)), allow_nan=False))
    JUDGE.validate(plain)
    back = restore_entry(plain["cases"][0])
    assert repr(back) == repr(result).replace("seconds=0.0", "seconds=12.5")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda one: one.pop("verdict"),
        lambda one: one.update(verdict="good"),
        lambda one: one["scores"][0].update(value="much"),
        lambda one: one["engines"][0]["layers"][0].update(precision="int4"),
        lambda one: one["culprits"][0].pop("layer"),
    ],
)
def test_the_schema_refuses_what_is_wrong(spoil):
    plain = json.loads(json.dumps(full_report()))
    spoil(plain["cases"][0])
    with pytest.raises(jsonschema.ValidationError):
        JUDGE.validate(plain)


def test_files_are_named_from_the_report_folder_on():
    folder = Path("/reports")
    result = case(written=("/reports/models/a/fixed.onnx", "/elsewhere/plan.yaml"))
    found = case_entry("a.int8acc.yaml::a", "failed", 1.0, result, folder)
    assert found["written"] == ["models/a/fixed.onnx", "/elsewhere/plan.yaml"]


def test_a_case_that_fails_to_clean_up_is_one_entry_and_an_error():
    passed = entry(case("a", 0.9999), "a")
    (one,) = one_per_case([passed, entry(None, "a", "error", message="OSError: too late")])
    assert (one["verdict"], one["message"]) == ("error", "OSError: too late")
    assert one["scores"] == passed["scores"]
    (one,) = one_per_case([entry(None, "a", "error", message="too late"), entry(case("a"), "a")])
    assert one["verdict"] == "failed"


def test_what_was_written_is_read(tmp_path):
    write_json(tmp_path / "new", full_report())
    assert read_json(tmp_path / "new") == json.loads(json.dumps(full_report()))
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["report.json"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_two_runs_into_one_folder_both_write_their_report(tmp_path: Path) -> None:
    def write(count: int) -> None:
        for _ in range(30):
            write_json(tmp_path, report(*[entry(None, verdict="skipped")] * count))
            assert len(read_json(tmp_path)["cases"]) in (1, 30)

    at_once(lambda: write(1), lambda: write(30))
    assert os.listdir(tmp_path) == ["report.json"]
