"""Each case file: its project is built, pytest runs on it, and report.json says what the file expects."""

from __future__ import annotations

import importlib
import json
import pkgutil

import pytest
from case_files import CaseFile, case_files, differences, facts, merged, spec_of, write
from plugin_support import LOAD

import pytest_int8acc

# What a run inside a test imports it forgets afterwards: imported here, it stays.
for module in pkgutil.walk_packages(pytest_int8acc.__path__, "pytest_int8acc."):
    if not module.name.endswith("__main__") and ".tensorrt" not in module.name:
        importlib.import_module(module.name)


@pytest.mark.parametrize("case", list(case_files()), ids=str)
def test_case(case: CaseFile, pytester: pytest.Pytester) -> None:
    write(pytester.path, case.said)
    steps = [case.said, *case.said.get("then", ())]
    for number, step in enumerate(steps):
        said = merged(case.said, step)
        (pytester.path / "case.int8acc.yaml").write_text(spec_of(said), encoding="utf-8")
        workers = [f"-n{said['workers']}"] if "workers" in said else []
        options = [*workers, *said.get("options", [])]
        pytester.runpytest(*LOAD, "--int8acc", f"--int8acc-report=report{number or ''}", *options)
        report = json.loads((pytester.path / f"report{number or ''}" / "report.json").read_text())
        (entry,) = report["cases"]
        wrong = differences(facts(entry), step["expect"])
        if wrong:
            pytest.fail("\n".join([case.said.get("about", ""), *wrong]), pytrace=False)
