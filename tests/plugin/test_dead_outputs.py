"""Criteria that dead outputs keep: a case that passes by them is red, and says what to add."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from plugin_support import LOAD
from written_networks import network

pytestmark = pytest.mark.usefixtures("quick_processes")

CLASSES, SAMPLES = 6, 96
CALIBRATED = "model: net.onnx\ninputs: data.npz\nint8: {calibrate: {method: minmax}}\n"


@pytest.fixture
def project(pytester: pytest.Pytester) -> Path:
    """A classifier that is right about its data, with labels, the labels numbered from 1, and metrics."""
    rng = np.random.default_rng(0)
    centers = np.eye(CLASSES, 12, dtype=np.float32) * 4
    labels = np.arange(SAMPLES) % CLASSES
    data = centers[labels] + rng.normal(0, 0.3, (SAMPLES, 12)).astype(np.float32)
    text = f"""
        net (float[N, 12] x) => (float[N, {CLASSES}] logits, float[N, 4] features) {{
          hidden = MatMul(x, w)
          features = Tanh(hidden)
          scores = MatMul(x, v)
          logits = Add(scores, offset)
        }}"""
    weights = {"w": rng.normal(0, 0.2, (12, 4)).astype(np.float32), "v": centers.T}
    folder = pytester.path
    onnx.save(network(text, {**weights, "offset": [0.0] * CLASSES}), folder / "net.onnx")
    onnx.save(network(text, {**weights, "offset": [3000.0] * CLASSES}), folder / "offset.onnx")
    np.savez(folder / "data.npz", x=data.astype(np.float32))
    np.save(folder / "labels.npy", labels)
    np.save(folder / "from_one.npy", (labels + 1) % CLASSES)
    (folder / "m.py").write_text(
        "def one(outputs, labels):\n    return 1.0\n\n\n"
        "def top1(outputs, labels):\n    return float((outputs['logits'].argmax(1) == labels).mean())\n"
    )
    return folder


def judged(pytester: pytest.Pytester, spec: str, *args: str) -> tuple[str, dict[str, object], str]:
    """Verdict, entry of report.json, and all that was written."""
    (pytester.path / "net.int8acc.yaml").write_text(CALIBRATED + spec)
    result = pytester.runpytest(*LOAD, "--int8acc", "--int8acc-report", "report", *args)
    report = json.loads((pytester.path / "report/report.json").read_text())
    return report["cases"][0]["verdict"], report["cases"][0], result.stdout.str()


BLIND = """
defaults: {model: net.onnx, inputs: data.npz, int8: {calibrate: {method: minmax}}}
cases:
  - {name: cosine, criteria: [{cosine: -1}]}
  - {name: constant-metric, labels: labels.npy, criteria: [{metric: m.py:one, min: 0.9}]}
  - {name: any-drop, labels: labels.npy, criteria: [{metric: top1, output: logits, max_drop: 100%}]}
  - name: an-offset
    model: offset.onnx
    criteria: [{output: logits, sqnr_db: 30}, {output: features, cosine: -1}]
"""


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["plain", "n2"])
def test_criteria_that_dead_outputs_keep_are_red(pytester, project, workers):
    (project / "blind.int8acc.yaml").write_text(BLIND)
    result = pytester.runpytest(*LOAD, *workers, "--int8acc", "--int8acc-report", "report")
    entries = json.loads((project / "report/report.json").read_text())["cases"]
    assert len(entries) == 4
    for entry in entries:
        assert entry["verdict"] == "failed"
        kinds = {dead["kind"] for dead in entry["blind"]["undetected"]}
        assert kinds & {"zeros", "shuffled"}
        assert entry["search"] is None, "no layer is searched where no limit was missed"
    text = result.stdout.str()
    for said in ("the criteria are too weak", "the same for shuffled outputs"):
        assert said in text


def test_the_criterion_that_is_proposed_or_a_reason_lets_the_case_pass(pytester, project):
    _, entry, text = judged(pytester, "criteria: [{cosine: -1}]\n")
    remedy = entry["blind"]["remedy"]
    wish = f"{{output: {remedy['subject']}, sqnr_db: {remedy['limit']:g}}}"
    assert wish in " ".join(text.split())
    verdict, entry, _ = judged(pytester, f"criteria: [{{cosine: -1}}, {wish}]\n")
    assert verdict == "passed"
    accepted = "criteria: [{cosine: -1}]\naccept_blind: to see the report\n"
    verdict, _, text = judged(pytester, accepted, "-v")
    assert verdict == "passed"
    start = "accepted (to see the report): the criteria would also pass all-zero outputs, outputs shuffled"
    assert f"{start} between samples and 3 more" in " ".join(text.split())


@pytest.mark.parametrize("metric", ["{metric: top1, output: logits, ", "{metric: m.py:top1, "])
def test_labels_in_another_order_are_red(pytester, project, metric):
    spec = f"labels: from_one.npy\ncriteria: [{metric}max_drop: 0.05}}, {{sqnr_db: 20}}]\n"
    verdict, _, text = judged(pytester, spec)
    assert verdict == "failed"
    assert "do the labels match?" in " ".join(text.split())
    assert "one label or text per input, in the order of the inputs" in " ".join(text.split())


def test_healthy_criteria_pass_without_a_word(pytester, project):
    spec = "labels: labels.npy\ncriteria: [{metric: top1, output: logits, max_drop: 0.05}, {sqnr_db: 20}]\n"
    verdict, entry, text = judged(pytester, spec)
    assert verdict == "passed"
    assert entry["blind"] is None
    assert "warning" not in text
    verdict, entry, _ = judged(pytester, "samples: 7\ncriteria: [{cosine: -1}]\n")
    assert (verdict, entry["blind"]) == ("passed", None), "few samples are not tried"


def test_an_output_that_no_criterion_sees_is_told(pytester, project):
    spec = "criteria: [{output: logits, sqnr_db: 20}, {output: features, cosine: -1}]\n"
    verdict, _, text = judged(pytester, spec)
    assert verdict == "passed"
    assert "also pass 'features' set to zero; add one on it, like {output: features, sqnr_db: 20}" in text


def test_a_metric_that_counts_one_side_only_is_told(pytester, project):
    (project / "m.py").write_text(
        "import numpy as np\n\n\n"
        "def recall(outputs, labels):\n"
        "    rows = np.arange(len(labels))\n"
        "    return float((outputs['logits'][rows, labels] > 8).mean())\n"
    )
    verdict, _, text = judged(
        pytester, "labels: labels.npy\ncriteria: [{metric: m.py:recall, max_drop: 0.05}]\n", "-v"
    )
    assert verdict == "passed"
    assert "every output at its greatest value everywhere" in " ".join(text.split())


def test_a_function_that_fails_on_dead_outputs_has_caught_them(pytester, project):
    (project / "m.py").write_text(
        "def strict(outputs):\n    assert outputs['logits'].std(0).min() > 1\n    return 1.0\n"
    )
    verdict, entry, _ = judged(pytester, "criteria: [{metric: m.py:strict, min: 0.9}]\n")
    kinds = {dead["kind"] for dead in (entry["blind"] or {"undetected": []})["undetected"]}
    assert "zeros" not in kinds
    assert "mean" not in kinds
    assert verdict == "failed", "another sample's outputs pass"


def planted(folder: Path, body: str, **arrays: np.ndarray) -> None:
    """A network of one line per node over ``x``, with constants by name."""
    onnx.save(network(f"net (float[N, 12] x) => (float[N, 6] y) {{ {body} }}", arrays), folder / "net.onnx")


@pytest.mark.parametrize(("spoilt", "verdict"), [(60, "failed"), (1, "passed")])
def test_nan_in_both_forms_is_red_above_a_hundredth_and_told_below(pytester, project, spoilt, verdict):
    """The logarithm of a negative feature is NaN in the float model, too."""
    rng = np.random.default_rng(0)
    planted(
        project,
        "s = MatMul(x, v) last = Gather <axis = 1>(x, five) safe = Sub(last, limit) "
        "log = Log(safe) zero = Mul(log, none) y = Add(s, zero)",
        v=rng.normal(size=(12, 6)).astype(np.float32),
        five=np.array([11], np.int64),
        limit=np.array(0, np.float32),
        none=np.array(0, np.float32),
    )
    data = rng.normal(size=(200, 12)).astype(np.float32)
    data[:, 11] = 1
    data[:spoilt, 11] = -1
    np.savez(project / "data.npz", x=data)
    found, _, text = judged(pytester, "criteria: [{sqnr_db: 20}]\n")
    assert found == verdict
    share = f"{spoilt / 200:.2%}"
    assert f"in {share} of" in text


def small_half(folder: Path) -> None:
    """Half of the samples are a hundredth of the others, which INT8 scales for these round to nothing."""
    rng = np.random.default_rng(0)
    planted(folder, "y = MatMul(x, v)", v=rng.normal(size=(12, 6)).astype(np.float32))
    data = rng.normal(size=(64, 12)).astype(np.float32)
    data[::2] /= 400
    np.savez(folder / "data.npz", x=data)


def test_samples_far_smaller_than_others_are_told(pytester, project):
    small_half(project)
    verdict, entry, text = judged(pytester, "criteria: [{sqnr_db: 25}]\n")
    assert verdict == "passed"
    assert "in 32 of 64 samples the output is" in text
    assert entry["outputs"][0]["small"]["count"] == 32


def test_each_sample_is_judged_by_itself(pytester, project):
    small_half(project)
    verdicts = {0: "failed", 0.4: "failed", 0.6: "passed"}
    for quantile, verdict in verdicts.items():
        spec = (
            f"{CALIBRATED}criteria: [{{sqnr_db: 20, per: sample, quantile: {quantile}}}]\nname: {verdict}\n"
        )
        (project / f"of-{quantile}.int8acc.yaml").write_text(spec)
    pytester.runpytest(*LOAD, "--int8acc", "--int8acc-report", "report")
    cases = json.loads((project / "report/report.json").read_text())["cases"]
    assert len(cases) == len(verdicts)
    for entry in cases:
        assert entry["verdict"] == entry["name"]
        assert entry["outputs"][0]["scores"][0]["metric"] == "per_sample_sqnr_db"
        assert (entry["search"] is not None) == (entry["verdict"] == "failed")
