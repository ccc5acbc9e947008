"""Cases from YAML to verdict on real engines.

Run on a machine with an NVIDIA GPU and TensorRT:

    pip install -e '.[cpu,tensorrt,dev]' && pytest -m gpu -s
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from gpu_support import cases, copy_example, gpus, needs_gpu, outcome, pytest_run, small_project, tactics

pytestmark = needs_gpu


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return copy_example(tmp_path)


def test_workers_build_each_engine_once_and_a_second_run_none(tmp_path: Path) -> None:
    project = small_project(tmp_path)
    text = (project / "small.int8acc.yaml").read_text(encoding="utf-8")
    (project / "copy.int8acc.yaml").write_text(text, encoding="utf-8")
    arguments = ("--int8acc-report", "out", "--log-cli-level=INFO")
    printed = pytest_run(project, "-n", "2", *arguments, store=tmp_path / "s")
    assert outcome(printed) == {"passed": 2}
    engines = [e for case in cases(project).values() for e in case["engines"]]
    assert len(engines) == 4
    assert sum(not e["stored"] for e in engines) == 2
    again = pytest_run(project, "small.int8acc.yaml", *arguments, store=tmp_path / "s")
    assert again.count("built in") == 0
    assert again.count("engine taken from the store") == 2


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A project whose cases ran in one session, and what that printed; batches within a profile, and not."""
    project = small_project(tmp_path_factory.mktemp("small"), samples=110)  # 2 * 50 + 10
    text = (project / "small.int8acc.yaml").read_text(encoding="utf-8").replace(tactics(), "")
    shapes = tactics().replace("}", ", shapes: {x: [[1, 3, 8, 8], [50, 3, 8, 8], [64, 3, 8, 8]]}}")
    for batch in (50, 100):
        spec = project / f"batch{batch}.int8acc.yaml"
        spec.write_text(f"{text}batch: {batch}\n{shapes}", encoding="utf-8")
    return project, pytest_run(project, "--int8acc-report", "out", store=project / "store")


def test_dynamic_shapes(session: tuple[Path, str]) -> None:
    _, printed = session
    assert outcome(printed) == {"passed": 2, "error": 1}
    assert "outside its profile [1, 3, 8, 8] to [64, 3, 8, 8]" in " ".join(printed.split())


def test_prebuilt_engines_as_baseline_and_candidate(session: tuple[Path, str]) -> None:
    project, _ = session
    kept = project / "store"
    engines = {e["role"]: e for e in cases(project)["small"]["engines"]}
    files = {path.stat().st_size: path for path in kept.rglob("engine.plan")}
    for role in ("baseline", "INT8"):
        (project / f"{role}.engine").write_bytes(files[engines[role]["nbytes"]].read_bytes())
    spec = project / "prebuilt.int8acc.yaml"
    text = (project / "small.int8acc.yaml").read_text(encoding="utf-8")
    engine = "int8: {engine: INT8.engine}\nbaseline: {engine: baseline.engine}"
    spec.write_text(text.replace("int8: {calibrate: {method: minmax}}", engine), encoding="utf-8")
    assert outcome(pytest_run(project, spec.name, "-vv", store=kept)) == {"passed": 1}
    (project / "INT8.engine").write_bytes(b"no engine")
    assert outcome(pytest_run(project, spec.name, store=kept)) == {"error": 1}


@pytest.mark.skipif(gpus() < 2, reason="needs two NVIDIA GPUs: run pytest -m gpu -s on such a host")
def test_two_gpus_share_the_work(project: Path, tmp_path: Path) -> None:
    (project / "metrics.py").write_text(
        (project / "metrics.py").read_text(encoding="utf-8")
        + "\n\ndef on_device(outputs, labels):\n    import os, pathlib\n"
        "    pathlib.Path('device-' + os.environ['CUDA_VISIBLE_DEVICES']).touch()\n"
        "    return top1(outputs, labels)\n",
        encoding="utf-8",
    )
    names = []
    for n in range(2):
        text = (project / "digits.int8acc.yaml").read_text(encoding="utf-8")
        text = text.replace("criteria:", "criteria:\n  - {metric: metrics.py:on_device, min: 0.5}", 1)
        names.append(f"copy{n}.int8acc.yaml")
        exclude = "  exclude: ['/block1/conv1/Conv']\n" if n else ""
        (project / names[-1]).write_text(text.replace("int8:\n", f"int8:\n{exclude}", 1), encoding="utf-8")
    seconds = {}
    for workers in ("0", "2"):
        for seen in project.rglob("device-*"):
            seen.unlink()
        started = time.monotonic()
        extra = {"CUDA_VISIBLE_DEVICES": "0,1" if workers == "2" else "0"}
        arguments = ("-n", workers, *names, "--dist", "loadfile", "--int8acc-report", "out")
        printed = pytest_run(project, *arguments, store=None, **extra)
        seconds[workers] = time.monotonic() - started
        assert outcome(printed) == {"passed": 2}
    devices = {path.name for path in project.rglob("device-*")}
    print(f"{os.cpu_count()} CPU cores: one worker {seconds['0']:.1f} s, two workers {seconds['2']:.1f} s")
    assert devices == {"device-0", "device-1"}
    if "PYTEST_XDIST_WORKER" not in os.environ:  # Beside other tests of a GPU suite the times say nothing.
        assert seconds["2"] < seconds["0"]
