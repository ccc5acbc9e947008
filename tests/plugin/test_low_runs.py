"""Fixtures and reports of cases in FP8, FP16 and BF16; more is in tests/cases/fp8 and tests/cases/half."""

from __future__ import annotations

import html
import re

import pytest
from case_files import spec_of, write
from plugin_support import LOAD

pytest.importorskip("jinja2", reason="pip install jinja2")

pytestmark = pytest.mark.usefixtures("quick_processes")

FP8 = """
defaults: {model: model.onnx, inputs: data.npz, criteria: [{sqnr_db: 15}], accept_blind: untrained}
cases:
  - {name: good, fp8: {calibrate: {}}}
  - {name: bad, fp8: {scales: ranges.json}}
"""
OF_FP8 = """
import numpy as np

def test_a_case(int8acc, int8acc_engine):
    case = int8acc.load("c.int8acc.yaml", "good")
    assert case.check().passed
    (fp8,) = case.outputs("fp8").values()
    (fp32,) = case.outputs("fp32").values()
    assert 0 < np.abs(fp8 - fp32).max() < 1
    feed = {name: array[:2] for name, array in np.load("data.npz").items()}
    (alone,) = int8acc_engine("model.onnx", "fp8", calibrate="data.npz", method="minmax")(feed).values()
    np.testing.assert_allclose(alone, fp8[:2], rtol=0.01, atol=0.01)
"""
OF_HALF = """
import numpy as np

def test_a_case(int8acc):
    case = int8acc.load("c.int8acc.yaml")
    (fp32,), (baseline,), (low,) = (case.outputs(r).values() for r in ("fp32", "baseline", "LOW"))
    np.testing.assert_array_equal(fp32, baseline)
    assert 0 < np.abs(low - fp32).max() < 0.2 * np.abs(fp32).max()
    result = case.measure()
    assert result.passed
    assert result.candidate.startswith(f"{'LOW'.upper()} in ")

def test_an_engine(int8acc_engine):
    feed = dict(np.load("data.npz"))
    (wide,), (low,) = (int8acc_engine("model.onnx", precision=p)(feed).values() for p in ("fp32", "LOW"))
    assert 0 < np.abs(low - wide).max() < 0.05 * np.abs(wide).max()
"""


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["plain", "n2"])
def test_reports_and_fixtures_speak_of_fp8(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    write(pytester.path, {"network": "convs()", "ranges": {"relu1": 0.02}})
    (pytester.path / "c.int8acc.yaml").write_text(FP8)
    pytester.makepyfile(OF_FP8)
    reports = ("--int8acc-report=report", "--junitxml=j.xml")
    result = pytester.runpytest(*LOAD, "--int8acc", "-v", *reports, *workers)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines_random(
        [
            "FP8 accuracy: * sqnr_db * < 15",
            "Fix: use fixed.onnx, 100 % of the MACs stay in FP8: other scales for '*",
        ]
    )
    page = (pytester.path / "report/report.html").read_text()
    page = re.sub(r"<[^>]*>", " ", re.sub(r"<(style|script).*?</\1>", "", page, flags=re.S))
    junit = html.unescape((pytester.path / "j.xml").read_text()).replace('"role": "INT8"', "")
    for text in (result.stdout.str(), page, junit):
        assert "FP8" in text
        assert not re.findall(r".{0,40}\bINT8\b(?! layers).{0,20}", text)


@pytest.mark.parametrize(("low", "workers"), [("fp16", "-n0"), ("bf16", "-n2")])
def test_fixtures(low: str, workers: str, pytester: pytest.Pytester) -> None:
    said = {"network": 'half("plain")', "spec": {"candidate": low, "criteria": [{"sqnr_db": 30}]}}
    write(pytester.path, said)
    (pytester.path / "c.int8acc.yaml").write_text(spec_of(said))
    pytester.makepyfile(OF_HALF.replace("LOW", low))
    pytester.runpytest(*LOAD, workers).assert_outcomes(passed=2)
