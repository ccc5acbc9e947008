"""A report of version 1 is read with its sentences, and merged with today's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_cases import case, entry, full_report, report

from pytest_int8acc.report.folder import merge_folders
from pytest_int8acc.report.html import page
from pytest_int8acc.report.json import NAME, read_json
from pytest_int8acc.report.markdown import summary as markdown
from pytest_int8acc.report.plain import restore_entry
from pytest_int8acc.report.schema import json_schema

#: Fields of version 2 alone.
NEW = {
    *("symptom", "channels", "others", "node", "format", "masked", "told", "meanings", "shift"),
    *("deviation", "against", "problems", "fits", "together", "met", "ranges", "slip"),
    *("worst_alone", "ending", "certificate", "fixed_pairs", "remarks", "recorded"),
}


def older(value: Any) -> Any:
    """A report as version 1 had it: sentences, and nothing of what they are made of."""
    if isinstance(value, list):
        return [older(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    gone = NEW | ({"op_type"} if "advice" in value else set())
    return {key: older(inner) for key, inner in value.items() if key not in gone}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run that wrote version 1; each sentence says so."""
    plain = older(json.loads(json.dumps(full_report()))) | {"version": 1}
    found = plain["cases"][0]
    found["diagnosis"] |= {"summary": "why, told before", "first_stage": "Q/DQ in ONNX Runtime"}
    found["diagnosis"]["stages"][2]["text"] = "stage, told before"
    found["outputs"][0]["fit"]["note"] = "line, told before"
    for culprit in (*found["culprits"], *found["search"]["culprits"]):
        culprit["cause"]["text"] = "cause, told before"
        culprit["alone"] = "alone, told before"
    found["search"]["reason"] = "ending, told before"
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / NAME).write_text(json.dumps(plain), encoding="utf-8")
    return tmp_path / "old"


def test_its_sentences_are_told_again(folder: Path) -> None:
    pytest.importorskip("jinja2")
    found = read_json(folder)
    result = restore_entry(found["cases"][0])
    assert result is not None
    assert result.diagnosis is not None
    assert result.diagnosis.first_stage == "Q/DQ in ONNX Runtime"
    html, text = page(found, {}), markdown(found)
    for said in ("why", "stage", "line", "cause", "alone", "ending"):
        assert f"{said}, told before" in html, said
    assert "why, told before" in text
    assert "cause, told before" in text


def test_it_is_merged_with_a_newer_one_into_a_valid_report(folder: Path, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    (tmp_path / "new").mkdir()
    newer = report(entry(case("other"), "other"))
    (tmp_path / "new" / NAME).write_text(json.dumps(newer), encoding="utf-8")
    merged = merge_folders([folder, tmp_path / "new"], tmp_path / "out", tool={})
    jsonschema.Draft7Validator(json_schema()).validate(merged)
    assert [restore_entry(one) is None for one in merged["cases"]].count(False) == 5


def test_an_older_passing_case_has_no_first_stage(folder: Path) -> None:
    plain = json.loads((folder / NAME).read_text(encoding="utf-8"))
    plain["cases"][0]["diagnosis"]["first_stage"] = ""
    (folder / NAME).write_text(json.dumps(plain), encoding="utf-8")
    result = restore_entry(read_json(folder)["cases"][0])
    assert result is not None
    assert result.diagnosis is not None
    assert result.diagnosis.first_stage is None
