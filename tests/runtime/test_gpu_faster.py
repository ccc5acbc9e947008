"""Networks whose INT8 is slow on a real engine: a faster plan is found, or the times say to ship FP16.

Run on a machine with an NVIDIA GPU and TensorRT:

    pip install -e '.[cpu,tensorrt,dev]' && pytest -m gpu -s
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_support import UNTRAINED, WAIT, cases, needs_gpu, pytest_run, tactics

from benchmarks.architectures import csp_tiny, vit
from pytest_int8acc.graph.model import Model, save_model

pytestmark = needs_gpu

#: A transformer, of which TensorRT 8.6 tells little, and a narrow network of many layers, which it tells.
NETWORKS: dict[str, Callable[[], Model]] = {
    "vit": lambda: vit("vit", blocks=1, width=64, heads=4, patch=16, seed=3, image=(3, 96, 96)),
    "narrow": lambda: csp_tiny(1),
}


def judged(project: Path, store: Path, name: str, limit: float) -> tuple[str, dict[str, Any]]:
    """What pytest prints and reports of a network with a limit on its speedup."""
    save_model(NETWORKS[name](), project / f"{name}.onnx")
    inputs = np.random.default_rng(0).standard_normal((16, 3, 96, 96)).astype(np.float32)
    np.savez(project / "x.npz", x=inputs)
    (project / f"{name}.int8acc.yaml").write_text(
        f"model: {name}.onnx\ninputs: x.npz\nbatch: 4\nrealized: off\n"
        f"int8: {{calibrate: {{method: minmax}}}}\n{UNTRAINED}{tactics(1)}"
        f"search: {{max_builds: 2}}\ncriteria: [{{sqnr_db: 8}}, {{speedup: {limit}}}]\n",
        encoding="utf-8",
    )
    printed = pytest_run(project, "-v", "--int8acc-report", "out", *WAIT, store=store)
    return printed, cases(project)[name]


def told(case: dict[str, Any]) -> str:
    """The case's verdict, scores, engines and trials, for the message of a failed assertion."""
    engines = [(e["role"], (e["latency"] or {}).get("median_ms"), e["untold"]) for e in case["engines"]]
    scores = [(s["subject"], s["metric"], s["value"], s["limit"]) for s in case["scores"]]
    diagnosis = case["diagnosis"] or {}
    facts = {
        "verdict": case["verdict"],
        "message": case["message"],
        "scores": scores,
        "engines": engines,
        "speed": diagnosis.get("speed"),
        "repairs": diagnosis.get("repairs"),
        "notes": [*case["notes"], *diagnosis.get("notes", ())],
        "warnings": case["warnings"],
        "stopped": case["stopped"],
    }
    return json.dumps(facts, indent=1, default=str)


@pytest.mark.parametrize(("name", "limit"), [("vit", 1.05), ("narrow", 50)])
def test_a_plan_is_faster_or_the_times_say_why_not(
    tmp_path: Path, gpu_store: Path, name: str, limit: float
) -> None:
    printed, case = judged(tmp_path, gpu_store, name, limit)
    facts = told(case)
    diagnosis = case["diagnosis"] or {}
    speed = diagnosis.get("speed")
    if case["verdict"] == "passed":
        found = next(score for score in case["scores"] if score["metric"] == "speedup")
        assert found["value"] >= limit, facts
        assert speed is None, facts
        return
    assert speed is not None, facts
    assert len(speed["trials"]) <= 2, facts
    assert all(trial["share"] > 0.2 for trial in speed["trials"]), facts
    assert all(trial["latency"] for trial in speed["trials"] if trial["passed"]), facts
    repairs = diagnosis["repairs"]
    if not repairs:
        text = " ".join(printed.split())
        assert "none found: " in text or "ship FP16" in text, f"{text}\n{facts}"
        return
    repair = repairs[0]
    assert repair["kind"] == "faster", facts
    assert 1 - repair["price"] > 0.2, facts
    scores = {score["metric"]: score for score in repair["scores"]}
    limits = [score for score in scores.values() if score["limit"] is not None]
    assert {score["metric"] for score in limits} >= {"sqnr_db", "speedup"}, facts
    assert all(float(score["value"]) >= score["limit"] for score in limits), facts
    assert repair["latency"]["median_ms"] < speed["candidate"]["median_ms"], facts
    assert any(engine["role"] == "fixed" and engine["latency"] for engine in case["engines"]), facts
    assert any(Path(file).name == "fixed.onnx" for file in case["written"]), facts
