"""The example project on real engines, and criteria of engines: one session of pytest for all tests.

Run on a machine with an NVIDIA GPU and TensorRT:

    pip install -e '.[cpu,tensorrt,dev]' && pytest -m gpu -s
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_support import TIMED, WAIT, cases, copy_example, needs_gpu, outcome, pytest_run

pytestmark = needs_gpu


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, gpu_store: Path) -> tuple[str, dict[str, Any]]:
    """What ``pytest --int8acc`` prints and reports of the example project, and of criteria of engines."""
    project = copy_example(tmp_path_factory.mktemp("digits"))
    text = (project / "digits.int8acc.yaml").read_text(encoding="utf-8")
    for name, criterion in (("layers", "int8_layers: 0.5"), ("speed", "speedup: 1000")):
        spec = text.replace("criteria:", f"search: {{max_builds: 1}}\ncriteria:\n  - {{{criterion}}}", 1)
        (project / f"{name}.int8acc.yaml").write_text(spec, encoding="utf-8")
    for spec in (project / "digits.int8acc.yaml", project / "digits_by_hand.int8acc.yaml"):
        text = spec.read_text(encoding="utf-8")
        assert "criteria:" in text
        spec.write_text(text.replace("criteria:", f"criteria:\n  - {{{TIMED}}}", 1), encoding="utf-8")
    options = ("-vv", "--int8acc-report", "out", "--int8acc-layers", "--runxfail")
    return pytest_run(project, *options, *WAIT, store=gpu_store), cases(project)


def test_the_example_project_passes_and_fails_as_it_should(session: tuple[str, dict[str, Any]]) -> None:
    printed, found = session
    assert outcome(printed) == {"passed": 3, "failed": 2}
    failed = found["digits_by_hand"]
    assert "TensorRT" in str(failed["backend"])
    assert {c["layer"] for c in failed["culprits"]} >= {"/block2/conv1/Conv"}
    assert failed["search"]["verified"]
    # A plan without the reserve may follow the search's own, of the same kind.
    repairs = {repair["kind"]: repair for repair in reversed(failed["diagnosis"]["repairs"])}
    assert repairs.keys() == {"recalibrate", "high"}
    assert all(repair["verified"] and repair["latency"] for repair in repairs.values())
    engines = {e["role"]: e for e in found["digits"]["engines"]}
    builds = [engine["build_seconds"] for engine in engines.values()]
    print(f"digits: {found['digits']['seconds']:.1f} s, its builds {builds}")
    for role in ("baseline", "INT8"):
        assert engines[role]["latency"]["median_ms"] > 0
    weighted = [layer for layer in engines["INT8"]["layers"] if layer["kind"] == "weighted"]
    assert sum(layer["precision"] == "int8" for layer in weighted) >= 0.8 * len(weighted)
    assert not any(layer["precision"] == "int8" for layer in engines["baseline"]["layers"])


def test_layers_are_compared_between_engines(session: tuple[str, dict[str, Any]]) -> None:
    printed, found = session
    heads = printed.partition("Layers (error against the baseline")[2].split()[:40]
    assert {"between", "engines"} <= set(heads)
    layers = found["digits_by_hand"]["diagnosis"]["layers"]
    known = [line for line in layers if line["engine_sqnr_db"] is not None]
    assert len(known) >= 0.8 * len(layers)
    off = [abs(line["engine_sqnr_db"] - line["sqnr_db"]) for line in known]
    assert np.median(off) < 1


def test_engine_criteria_gate(session: tuple[str, dict[str, Any]]) -> None:
    printed, found = session
    assert (found["layers"]["verdict"], found["speed"]["verdict"]) == ("passed", "failed")
    assert "'engine' speedup" in printed
    assert "< 1000" in printed
