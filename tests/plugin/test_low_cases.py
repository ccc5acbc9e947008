"""Cases in FP16 and BF16 from the command line and in users' own tests: what is offered works, or says so."""

from __future__ import annotations

import json

import pytest
from low_cases import put
from plugin_support import LOAD

pytestmark = pytest.mark.usefixtures("quick_processes")

OWN_TESTS = """
import numpy as np

def test_a_case(int8acc):
    case = int8acc.load("case.int8acc.yaml")
    found = {role: case.outputs(role)["OUTPUT"] for role in ("fp32", "baseline", "LOW".lower())}
    np.testing.assert_array_equal(found["fp32"], found["baseline"])
    assert 0 < np.abs(found["LOW".lower()] - found["fp32"]).max() < 0.2 * np.abs(found["fp32"]).max()
    result = case.measure()
    assert result.passed
    assert result.candidate.startswith("LOW in ")

def test_an_engine(int8acc_engine):
    x = np.load("data.npz")["x"]
    wide = int8acc_engine("model.onnx", precision="fp32")({"x": x})["OUTPUT"]
    low = int8acc_engine("model.onnx", precision="LOW".lower())({"x": x})["OUTPUT"]
    assert 0 < np.abs(low - wide).max() < 0.05 * np.abs(wide).max()
"""


@pytest.mark.parametrize(("low", "workers"), [("fp16", "-n0"), ("bf16", "-n2")])
def test_fixtures(low: str, workers: str, pytester: pytest.Pytester) -> None:
    output = put(pytester.path, "plain", low, "")
    pytester.makepyfile(test_own=OWN_TESTS.replace("OUTPUT", output).replace("LOW", low.upper()))
    pytester.runpytest(*LOAD, workers, "test_own.py").assert_outcomes(passed=2)


@pytest.mark.parametrize("low", ["fp16", "bf16"])
def test_the_search_of_a_case_that_passes_and_its_page(low: str, pytester: pytest.Pytester) -> None:
    put(pytester.path, "plain", low, "", limit=20.0)
    result = pytester.runpytest(
        *LOAD, "--int8acc", "--int8acc-search=always", "--int8acc-report=report", "-vv"
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"*{low.upper()} in * groups*"])
    (entry,) = json.loads((pytester.path / "report/report.json").read_text())["cases"]
    assert entry["low"] == low
    page = (pytester.path / "report/report.html").read_text()
    assert low.upper() in page
    assert "INT8 in" not in page
