"""Cases in FP8 by every option of a run: it works as for INT8, or is one error at its place."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from narrow import planted
from plugin_support import LOAD

pytest.importorskip("jinja2", reason="pip install jinja2")

pytestmark = pytest.mark.usefixtures("quick_processes")

WORKERS = pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["plain", "n2"])
SPEC = """
defaults: {model: model.onnx, inputs: data.npz, criteria: [{sqnr_db: 15}], accept_blind: untrained}
cases:
  - {name: good, fp8: {calibrate: {}}}
  - {name: bad, fp8: {scales: ranges.json}}
"""
ONE = "model: model.onnx\ninputs: data.npz\ncriteria: [{sqnr_db: 15}]\n"
ACCEPT = "accept_blind: untrained\n"


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A case that passes, and one with a range that is thirty times too narrow."""
    planted(pytester.path, {3: 1 / 30})
    (pytester.path / "c.int8acc.yaml").write_text(SPEC)
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest(*LOAD, "--int8acc", *arguments)


def reported(project: pytest.Pytester, *arguments: str) -> dict[str, Any]:
    """Cases of report.json by name; a case that failed may have done so."""
    run(project, "--int8acc-report=report", *arguments)
    told = json.loads((project.path / "report" / "report.json").read_text())
    return {case["nodeid"].rpartition("::")[2]: case for case in told["cases"]}


@WORKERS
def test_reports_and_fixtures_speak_of_fp8(project: pytest.Pytester, workers: tuple[str, ...]) -> None:
    data = str(Path(project.path) / "data.npz")
    project.makepyfile(
        f"""
        import numpy as np

        def test_a_case(int8acc, int8acc_engine):
            case = int8acc.load("c.int8acc.yaml", "good")
            assert case.check().passed
            (fp8,) = case.outputs("fp8").values()
            (fp32,) = case.outputs("fp32").values()
            assert 0 < np.abs(fp8 - fp32).max() < 1
            feed = {{name: array[:2] for name, array in np.load({data!r}).items()}}
            (alone,) = int8acc_engine("model.onnx", "fp8", calibrate={data!r}, method="minmax")(feed).values()
            np.testing.assert_allclose(alone, fp8[:2], rtol=0.01, atol=0.01)
        """
    )
    result = run(project, "--int8acc-report=report", "--junitxml=j.xml", "-v", *workers)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines_random(
        [
            "FP8 accuracy: * sqnr_db * < 15",
            "Fix: 100 % of the MACs stay in FP8 with fixed.onnx: other scales for 1 tensor; *",
        ]
    )
    page = re.sub(
        r"<(style|script).*?</\1>", "", (project.path / "report/report.html").read_text(), flags=re.S
    )
    junit = html.unescape((project.path / "j.xml").read_text()).replace('"role": "INT8"', "")
    for text in (result.stdout.str(), re.sub(r"<[^>]*>", " ", page), junit):
        assert "FP8" in text
        assert not re.findall(r".{0,40}\bINT8\b(?! layers).{0,20}", text)
    written = {path.name for path in (project.path / "report/c/bad").iterdir()}
    assert {"fixed.onnx", "plan.yaml", "modelopt.sh"} <= written
    guard = ONE + "fp8: {scales: ranges.json}\nplan: report/c/bad/plan.yaml\n" + ACCEPT
    (project.path / "guarded.int8acc.yaml").write_text(guard)
    run(project, "guarded.int8acc.yaml").assert_outcomes(passed=1)


def test_goldens_and_accepted_scores(project: pytest.Pytester) -> None:
    (project.path / "c.int8acc.yaml").unlink()
    spec = project.path / "kept.int8acc.yaml"
    criteria = "criteria: [{sqnr_db: 15}, {regression: {sqnr_db: 3}}]\n"
    spec.write_text(
        f"model: model.onnx\ninputs: data.npz\n{criteria}fp8: {{calibrate: {{}}}}\ngolden: true\n{ACCEPT}"
    )
    assert run(project).ret == pytest.ExitCode.TESTS_FAILED
    recorded = run(project, "--int8acc-update=all")
    recorded.stdout.fnmatch_lines(["*recorded * scores and FP16 outputs of 24 samples in *kept.json"])
    run(project).assert_outcomes(passed=1)
    planted(project.path, {3: 1 / 5})
    spec.write_text(spec.read_text().replace("{calibrate: {}}", "{scales: ranges.json}"))
    worse = run(project, "--int8acc-search=off")
    worse.assert_outcomes(failed=1)
    worse.stdout.fnmatch_lines(["FP8 accuracy: *accepted*"])


def test_more_is_told_of_layers_methods_and_pieces(project: pytest.Pytester) -> None:
    cases = reported(
        project, "--int8acc-layers", "--int8acc-calibrations", "--int8acc-reduce", "--int8acc-certify"
    )
    assert [case["verdict"] for case in cases.values()] == ["passed", "failed"]
    for case in cases.values():
        assert case["low"] == "fp8"
        assert len(case["diagnosis"]["layers"]) > 3
    methods = cases["good"]["diagnosis"]["calibrations"]
    assert methods
    for piece in (project.path / "report/c/bad/reduced").iterdir():
        assert {"float.onnx", "fp8.onnx", "fp8.npz"} <= {path.name for path in piece.iterdir()}
        assert "INT8" not in (piece / "README.md").read_text()


@pytest.mark.parametrize("strategy", ["minimal", "bisect", "linear", "worst-first", "forward"])
def test_every_strategy_finds_the_readers_of_the_range(project: pytest.Pytester, strategy: str) -> None:
    case = reported(project, f"--int8acc-strategy={strategy}", "-k", "bad", "--int8acc-samples=24")["bad"]
    assert case["samples"] == 24
    assert {culprit["layer"] for culprit in case["search"]["culprits"]} <= {"conv10", "add15"}
    assert case["search"]["verified"]


@pytest.mark.parametrize(
    ("spec", "arguments", "told"),
    [
        ("fp8: {calibrate: {}}\n", ["--int8acc-mode=native"], "4:6: fp8: ONNX Runtime has no FP8 kernels"),
        ("fp8: {calibrate: {}, exclude: [nope]}\n", [], "4:31: *'exclude' pattern 'nope' matches no node"),
        ("fp8: {model: model.onnx}\n", [], "4:14: *model.onnx: no QuantizeLinear or DequantizeLinear"),
        ("fp8: {scales: none.json}\n", [], "4:15: *none.json: *"),
        ("fp8: {implicit: {calibrate: {}}}\n", [], "4:7: *unknown key 'implicit'*"),
        ("fp8: {engine: a.engine}\n", [], "4:7: *unknown key 'engine'*"),
        ("fp8: {}\n", [], "4:6: *must say how FP8 comes about"),
        ("fp8: {calibrate: {}}\nint8: {calibrate: {}}\n", [], "5:1: *'int8' and 'fp8'*"),
        ("fp8: {calibrate: {}}\nplan: none.yaml\n", [], "5:7: *none.yaml*"),
        ("fp8: {calibrate: {}}\nbaseline: golden\n", [], "5:11: *no golden yet*"),
    ],
)
def test_what_cannot_be_is_one_error_at_its_place(
    project: pytest.Pytester, spec: str, arguments: list[str], told: str
) -> None:
    (project.path / "c.int8acc.yaml").write_text(ONE + spec)
    result = run(project, *arguments)
    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines([f"*c.int8acc.yaml:{told}*"])
    assert "Traceback" not in result.stdout.str()


@pytest.mark.parametrize(
    "spec",
    [
        "fp8: {calibrate: {method: entropy, samples: 8}}\n",
        "fp8: {calibrate: {method: percentile, percentile: 99.9}}\n",
        "fp8: {calibrate: {method: mse}}\n",
        "fp8: {calibrate: {data: other.npz}, exclude: [conv10]}\n",
        "fp8: {calibrate: {}}\nbaseline: fp32\nsearch: {when: always, keep: fp32}\n",
        "fp8: {calibrate: {}}\nbaseline: {model: model.onnx}\nreference: reference.npz\n",
    ],
)
def test_keys_of_a_spec(project: pytest.Pytester, spec: str) -> None:
    data = dict(np.load(project.path / "data.npz"))
    np.savez(project.path / "other.npz", **{name: array[::-1] for name, array in data.items()})
    outputs = {"gemm19_out": np.zeros((24, 10), np.float32)}
    np.savez(project.path / "reference.npz", **outputs)
    (project.path / "c.int8acc.yaml").write_text(ONE + spec + ACCEPT)
    run(project).assert_outcomes(passed=1)


def test_reports_are_merged_and_scales_kept(project: pytest.Pytester) -> None:
    for name in ("good", "bad"):
        report = f"--int8acc-report={name}"
        run(project, f"c.int8acc.yaml::{name}", report, "--int8acc-cache-dir=cache")
    merged = run(project, "--int8acc-merge", "good", "bad", "--int8acc-report=merged")
    assert merged.ret == pytest.ExitCode.TESTS_FAILED
    told = json.loads((project.path / "merged/report.json").read_text())
    assert {case["low"] for case in told["cases"]} == {"fp8"}
    assert "FP8 accuracy: 1 failed, 1 passed" in (project.path / "merged/report.html").read_text()
    again = run(project, "c.int8acc.yaml::good", "--int8acc-cache-dir=cache", "-vv")
    again.assert_outcomes(passed=1)
    assert "INT8" not in re.sub(r"int8acc\S*|INT8 layers", "", again.stdout.str())
