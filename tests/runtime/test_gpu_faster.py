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

#: A transformer, which TensorRT 8.6 tells as one region, and a narrow network of many layers, which it tells.
NETWORKS: dict[str, Callable[[], Model]] = {
    "vit": lambda: vit("vit", blocks=2, width=64, heads=4, patch=16, seed=3, image=(3, 96, 96)),
    "narrow": lambda: csp_tiny(2),
}
#: The criterion of each case. The limit of ``fast`` is out of reach.
LIMITS = {"gain": "{speedup: 1.05}", "fast": "{speedup: 50}", "fastest": "{cosine: 0.5}"}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, gpu_store: Path) -> tuple[str, dict[str, Any]]:
    """What one session of pytest prints and reports of all cases."""
    project = tmp_path_factory.mktemp("faster")
    for name, make in NETWORKS.items():
        save_model(make(), project / f"{name}.onnx")
        inputs = np.random.default_rng(0).standard_normal((16, 3, 96, 96)).astype(np.float32)
        np.savez(project / f"{name}.npz", x=inputs)
        for kind, limit in LIMITS.items():
            goal = "latency" if kind == "fastest" else "accuracy"
            (project / f"{name}_{kind}.int8acc.yaml").write_text(
                f"model: {name}.onnx\ninputs: {name}.npz\nbatch: 4\nrealized: off\n"
                f"int8: {{calibrate: {{method: minmax}}}}\n{UNTRAINED}{tactics(1)}"
                f"search: {{for: {goal}, max_builds: 3}}\ncriteria: [{{sqnr_db: 8}}, {limit}]\n",
                encoding="utf-8",
            )
    printed = pytest_run(project, "-v", "--int8acc-report", "out", *WAIT, store=gpu_store)
    return printed, cases(project)


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


def words(printed: str, name: str, kind: str) -> str:
    """What is printed of one case: its failure, or what -v shows of a case that passes, in one line."""
    if kind == "fastest":
        text = printed.rpartition(f"::{name} - ")[2].partition("\nPASSED")[0]
    else:
        text = printed.partition(f" int8acc: {name} _")[2].partition("\n____")[0]
    return " ".join(text.split())


def speedup(case: dict[str, Any]) -> float:
    """How many times as fast as FP16 the case's INT8 engine is."""
    return next(float(score["value"]) for score in case["scores"] if score["metric"] == "speedup")


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("kind", LIMITS)
def test_a_plan_is_faster_or_the_times_say_why_not(
    session: tuple[str, dict[str, Any]], name: str, kind: str
) -> None:
    printed, found = session
    case = found[f"{name}_{kind}"]
    facts = told(case)
    print(facts)
    diagnosis = case["diagnosis"] or {}
    speed = diagnosis.get("speed")
    if kind == "gain" and case["verdict"] == "passed":
        assert speedup(case) >= 1.05, facts
        assert speed is None, facts
        return
    assert speed is not None, facts
    assert case["verdict"] == ("passed" if kind == "fastest" else "failed"), facts
    assert len(speed["trials"]) <= 3, facts
    assert all(trial["share"] > 0.2 for trial in speed["trials"]), facts
    assert all(trial["latency"] for trial in speed["trials"] if trial["passed"]), facts
    repairs = diagnosis["repairs"]
    if kind == "fast":
        assert not repairs, facts
    if not repairs:
        text = words(printed, case["name"], kind)
        said = "no plan is faster" if kind == "fastest" else "none found: "
        assert said in text or "ship FP16" in text, f"{text}\n{facts}"
        return
    repair = repairs[0]
    assert repair["kind"] == "faster", facts
    assert 1 - repair["price"] > 0.2, facts
    scores = {score["metric"]: score for score in repair["scores"]}
    limits = [score for score in scores.values() if score["limit"] is not None]
    assert {score["metric"] for score in limits} >= {"sqnr_db"}, facts
    assert all(float(score["value"]) >= score["limit"] for score in limits), facts
    assert scores["speedup"]["value"] >= (1.05 if kind == "gain" else speedup(case)), facts
    assert repair["latency"]["median_ms"] < speed["candidate"]["median_ms"], facts
    assert any(engine["role"] == "fixed" and engine["latency"] for engine in case["engines"]), facts
    assert any(Path(file).name == "fixed.onnx" for file in case["written"]), facts
