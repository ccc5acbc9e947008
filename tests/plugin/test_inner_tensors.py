"""A detector from its first spec to its fix, as a user of pytest meets it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import onnx
import pytest
from detectors import TOP, detector
from plugin_support import LOAD

from pytest_int8acc.graph.model import save_model

pytest.importorskip("jinja2", reason="pip install jinja2")

pytestmark = pytest.mark.usefixtures("quick_processes")


def first_spec(pytester: pytest.Pytester, channel: float) -> Path:
    """The spec that is written for the detector, on data of its own."""
    save_model(detector(TOP, "float[N, K] placed", channel), pytester.path / "model.onnx")
    images = np.random.default_rng(1).normal(size=(64, 8, 16, 16)).astype(np.float32)
    np.savez(pytester.path / "images.npz", image=images)
    ran = pytester.runpytest(*LOAD, "--int8acc-init", "model.onnx", "--int8acc-data", "images.npz")
    ran.stdout.fnmatch_lines(["*the model chooses by TopK; model.int8acc.yaml judges what it chooses by"])
    return pytester.path / "model.int8acc.yaml"


def test_the_first_spec_of_a_healthy_detector_passes(pytester: pytest.Pytester) -> None:
    text = first_spec(pytester, 1.0).read_text()
    assert "  - tensor: scores\n    cosine: 0.99\n    sqnr_db: 20 " in text
    assert "\nunjudged: [placed]\n" in text
    assert "- output:" not in text
    ran = pytester.runpytest(*LOAD, "-v", "model.int8acc.yaml")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(["PASSED model.int8acc.yaml::model - 'scores' *"])


@pytest.mark.parametrize("workers", [("-n0",), ("-n2",)], ids=["n0", "n2"])
def test_a_fault_of_it_is_found_mended_and_guarded(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    spec = first_spec(pytester, 300.0)
    args = (*LOAD, *workers, "--int8acc")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "out.md"))
    ran = pytester.runpytest(*args, "--int8acc-report=out", "--junitxml=out.xml")
    ran.assert_outcomes(failed=1)
    first = ["INT8 accuracy: 'scores' sqnr_db 4.* < 20*", "Why: Conv 'Conv_2' is at fault:*"]
    ran.stdout.fnmatch_lines([*first, "Fix: *100 % of the MACs stay in INT8*"])
    report = json.loads((pytester.path / "out" / "report.json").read_text())
    (case,) = report["cases"]
    scores = [s for o in case["outputs"] for s in o["scores"] if s["limit"] is not None]
    missed = {(s["subject"], s["metric"]) for s in scores if s["value"] < s["limit"]}
    assert missed == {("scores", "sqnr_db"), ("scores", "cosine")}
    assert case["diagnosis"]["jumps"] == []
    assert "&#39;scores&#39; sqnr_db" in (pytester.path / "out" / "report.html").read_text()
    assert "scores" in (pytester.path / "out.md").read_text()
    (found,) = ElementTree.parse(pytester.path / "out.xml").getroot()[0]
    properties = {p.get("name"): p.get("value") for p in found.iter("property")}
    assert properties["int8acc.scores.sqnr_db"].startswith("4.")
    (fixed,) = (p for p in (pytester.path / "out").rglob("fixed.onnx") if p.parent.name != "high")
    assert [output.name for output in onnx.load(fixed).graph.output] == ["placed"]
    if "-n2" in workers:
        return
    plan = fixed.with_name("plan.yaml").relative_to(pytester.path)
    spec.write_text(f"{spec.read_text()}plan: {plan}\n")
    pytester.runpytest(*args).assert_outcomes(passed=1)
