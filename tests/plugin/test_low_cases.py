"""Cases in FP16 and BF16 from the command line and in users' own tests: what is offered works, or says so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from low_cases import put
from onnx import parser
from plugin_support import LOAD

from pytest_int8acc.graph.formats import FP16
from pytest_int8acc.graph.half_network import low_network
from pytest_int8acc.graph.load import load_model

pytestmark = pytest.mark.usefixtures("quick_processes")

LOWS = pytest.mark.parametrize("low", ["fp16", "bf16"])
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
    pytest.importorskip("xdist")
    output = put(pytester.path, "plain", low, "")
    pytester.makepyfile(test_own=OWN_TESTS.replace("OUTPUT", output).replace("LOW", low.upper()))
    pytester.runpytest(*LOAD, workers, "test_own.py").assert_outcomes(passed=2)


@LOWS
def test_the_ratchet(low: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    kept = "  - {regression: {sqnr_db: 0.5}}\n"
    put(pytester.path, "plain", low, kept + "plan: own.yaml\n")
    high = ", ".join(f"{g.name}: fp32" for g in low_network(load_model(Path("model.onnx")), FP16).groups[:-1])
    (pytester.path / "own.yaml").write_text(f"version: 4\nhigh: {{{high}}}\n")
    pytester.runpytest(*LOAD, "--int8acc", "--int8acc-update=all").assert_outcomes(passed=1)
    pytester.runpytest(*LOAD, "--int8acc").assert_outcomes(passed=1)
    put(pytester.path, "plain", low, kept)
    result = pytester.runpytest(*LOAD, "--int8acc", "--int8acc-search=off")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"{low.upper()} accuracy: * sqnr_db * (accepted *, may lose 0.5*"])


@LOWS
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


@pytest.mark.parametrize("verbosity", ["-q", "-vv"])
def test_an_overflow_in_fp16_is_told_of_fp16(verbosity: str, pytester: pytest.Pytester) -> None:
    weights = ", ".join(["1.0"] * 32)
    head = '<ir_version: 8, opset_import: ["": 17]> net (float[n, 8] x) => (float[n, 4] y)'
    nodes = "[product] a = MatMul(x, w) [exponential] b = Exp(a) [copy] y = Identity(b)"
    model = parser.parse_model(f"{head} <float[8, 4] w = {{{weights}}}> {{ {nodes} }}")
    onnx.save(model, pytester.path / "model.onnx")
    inputs = np.zeros((16, 8), np.float32)
    inputs[3] = 2  # e to the 16 is more than FP16 holds
    np.savez(pytester.path / "data.npz", x=inputs)
    spec = "model: model.onnx\ninputs: data.npz\nbaseline: fp32\ncandidate: fp16\ncriteria: [{sqnr_db: 30}]\n"
    (pytester.path / "case.int8acc.yaml").write_text(spec)
    result = pytester.runpytest(*LOAD, "--int8acc", "--int8acc-report=report", verbosity)
    result.assert_outcomes(failed=1)
    told = "'y': NaN or inf in 4 of 64 elements that are finite in the baseline*"
    result.stdout.fnmatch_lines([f"FP16 accuracy: {told}"])
    assert "INT8" not in result.stdout.str()
    assert "INT8" not in (pytester.path / "report/report.json").read_text()


@LOWS
@pytest.mark.parametrize("flag", ["layers", "calibrations"])
def test_what_is_for_int8_only_is_refused(low: str, flag: str, pytester: pytest.Pytester) -> None:
    put(pytester.path, "plain", low, "")
    result = pytester.runpytest(*LOAD, "--int8acc", f"--int8acc-{flag}")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*candidate: {low}: --int8acc-{flag} is for INT8 and FP8*"])
