"""report.json: what its published schema says of it, and two runs that write it at once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kills import at_once
from packages import written_again
from plugin_support import LOAD, spec
from report_cases import SCHEMA, Plain, copied, entry, report
from rich_project import RICH

from pytest_int8acc.report.folder import write_folder
from pytest_int8acc.report.json import Report

jsonschema = pytest.importorskip("jsonschema", reason="pip install jsonschema")
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


def without_margin(plain: Plain) -> Plain:
    """A report whose scores hold no more than Score does: allOf and closed schemas do not go together."""
    cases = [dict(case) for case in plain["cases"]]
    for one in cases:
        one["scores"] = [{k: v for k, v in s.items() if k != "margin"} for s in one.get("scores", [])]
    return {**plain, "cases": cases}


def test_the_shipped_schema_is_the_one_of_the_results(tmp_path: Path) -> None:
    shipped, made = written_again("pytest_int8acc.report.schema", "report/schema.json", tmp_path)
    assert shipped == made, "run python -m pytest_int8acc.report.schema"
    jsonschema.Draft7Validator.check_schema(SCHEMA)


def test_a_report_of_everything_is_valid_and_holds_no_key_that_the_schema_does_not_name(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(RICH)
    (pytester.path / "a.int8acc.yaml").write_text(spec("rich-bad", "rich-good", "broken"))
    pytester.runpytest(*LOAD, "--int8acc", "--int8acc-report=out")
    plain = json.loads((pytester.path / "out" / "report.json").read_text(encoding="utf-8"))
    JUDGE.validate(plain)
    jsonschema.Draft7Validator(closed(SCHEMA)).validate(without_margin(plain))
    spoilt: list[Callable[[Plain], object]] = [
        lambda one: one.pop("verdict"),
        lambda one: one.update(verdict="good"),
        lambda one: one["scores"][0].update(value="much"),
        lambda one: one["engines"][0]["layers"][0].update(precision="int4"),
        lambda one: one["culprits"][0].pop("layer"),
    ]
    for spoil in spoilt:
        wrong = copied(plain)
        spoil(wrong["cases"][0])
        with pytest.raises(jsonschema.ValidationError):
            JUDGE.validate(wrong)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_two_runs_into_one_folder_both_write_their_report(tmp_path: Path) -> None:
    def write(count: int) -> None:
        for _ in range(30):
            write_folder(tmp_path, Report(report(*[entry(None, verdict="skipped")] * count), {}))
            found = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
            assert len(found["cases"]) in (1, 3)

    at_once(lambda: write(1), lambda: write(3))
    assert sorted(os.listdir(tmp_path)) == ["report.html", "report.json"]
