"""docs/reference.md is what the code says: nothing missing, nothing that does not exist."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from plugin_support import LOAD
from report_cases import SCHEMA as REPORT
from spec_texts import METHODS, TASKS

from pytest_int8acc import Case
from pytest_int8acc.graph.lint.rules import RULES
from pytest_int8acc.scores.metrics import METRICS

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference.md").read_text(encoding="utf-8")


@cache
def script() -> ModuleType:
    """docs/make_reference.py as a module."""
    found = importlib.util.spec_from_file_location("make_reference", DOCS / "make_reference.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def words(pattern: str, text: str) -> set[str]:
    return set(re.findall(pattern, text, re.MULTILINE))


def section(title: str) -> str:
    return REFERENCE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def column(title: str, number: int) -> set[str]:
    """What stands in one column of a section's table, without values that an option takes."""
    rows = [line[2:-2].split(" | ") for line in section(title).splitlines() if line.startswith("| ")][1:]
    cells = [row[number].strip("` ") for row in rows]
    return {re.split(r"[ \[=]", cell)[0] for cell in cells if cell}


def test_the_reference_is_the_generated_one() -> None:
    assert script().text() == REFERENCE, "run: python docs/make_reference.py"


def test_every_option_ini_key_and_fixture_is_in_it_and_prose_names_no_other(
    pytester: pytest.Pytester,
) -> None:
    help_text = pytester.runpytest(*LOAD, "--help").stdout.str()
    options = words(r"^ +(--int8acc[a-z0-9-]*)", help_text)
    assert len(options) > 20
    assert column("Options of a run", 0) | column("Settings", 0) == options
    keys = words(r"^ +(int8acc[a-z0-9_]*) \(", help_text)
    assert len(keys) > 15
    assert column("Options of a run", 1) | column("Settings", 1) == keys
    fixtures = script().fixtures()
    for name, said in fixtures.items():
        assert f"### `{name}`\n" in REFERENCE
        assert said, "a fixture is documented by its docstring"
    for path in (DOCS.parent / "README.md", *DOCS.glob("*.md"), *DOCS.parent.glob("example_project/*.md")):
        text = path.read_text(encoding="utf-8")
        assert words(r"(--int8acc[a-z0-9-]*)", text) <= options, path.name
        assert words(r"`(int8acc_[a-z0-9_]+)", text) <= keys | set(fixtures), path.name


def test_the_spec_keys_of_settings_exist() -> None:
    keys = column("Settings", 2)
    assert {"backend", "search.strategy", "onnxruntime.mode"} <= keys
    case = Case.model_validate({"name": "a", "model": "a", "inputs": "a", "int8": {"scales": "s"}})
    tops = {key.partition(".")[0] for key in keys}
    assert tops <= set(Case.model_fields)
    assert keys <= column("Keys of a spec", 0)
    # What a case may set is what the code reads from a case.
    assert len(keys) == len(case.settings())


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("Metrics", set(METRICS)),
        ("Metrics of labels", TASKS),
        ("Calibration methods", set(METHODS)),
        ("Lint rules", set(RULES)),
        ("Causes", set(REPORT["definitions"]["Cause"]["properties"]["kind"]["enum"])),
    ],
)
def test_every_metric_method_rule_and_cause_is_in_it(title: str, names: set[str]) -> None:
    assert column(title, 0) == names
