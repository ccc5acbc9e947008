"""Cases in FP8 by every option of a run: it works as for INT8, or is one error at its place."""

from __future__ import annotations

import html
import re
from pathlib import Path

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
            "Fix: use fixed.onnx, 100 % of the MACs stay in FP8: other scales for '*",
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


#: Keys that a spec may have, by case.
KEYS = {
    "entropy": "fp8: {calibrate: {method: entropy, samples: 8}}",
    "percentile": "fp8: {calibrate: {method: percentile, percentile: 99.9}}",
    "mse": "fp8: {calibrate: {method: mse}}",
    "data": "fp8: {calibrate: {data: other.npz}, exclude: [conv10]}",
    "search": "fp8: {calibrate: {}}, baseline: fp32, search: {when: always, keep: fp32}",
    "reference": "fp8: {calibrate: {}}, baseline: {model: model.onnx}, reference: reference.npz",
}


def test_keys_of_a_spec(project: pytest.Pytester) -> None:
    data = dict(np.load(project.path / "data.npz"))
    np.savez(project.path / "other.npz", **{name: array[::-1] for name, array in data.items()})
    np.savez(project.path / "reference.npz", gemm19_out=np.zeros((24, 10), np.float32))
    cases = "".join(f"  - {{name: {name}, {keys}}}\n" for name, keys in KEYS.items())
    (project.path / "c.int8acc.yaml").write_text(SPEC.partition("cases:")[0] + "cases:\n" + cases)
    run(project).assert_outcomes(passed=len(KEYS))
