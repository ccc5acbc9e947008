"""Cases from YAML to verdict on real engines.

Run on a machine with an NVIDIA GPU and TensorRT:

    pip install 'pytest-int8acc[cpu,tensorrt,dev]' && pytest -m gpu -s
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_support import copy_example, gpus, needs_gpu, outcome, pytest_run, small_project, tactics
from repair_support import KINDS, write_case

from benchmarks.builder import Builder
from pytest_int8acc.engines.tensorrt.calibration import sidecar_path
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import Model, save_model

pytestmark = needs_gpu

IMPLICIT = """
model: digits.onnx
inputs: data/validation.npz
labels: data/validation_labels.npy
int8: {implicit: {calibrate: {data: data/calibration.npz, algorithm: ALGORITHM}, cache: CACHE}}
criteria:
  - {output: logits, cosine: 0.998, sqnr_db: 20, top1_agreement: 0.98}
  - {metric: metrics.py:top1, max_drop: 0.02}
"""


#: Others build on this GPU, too, and a case waits for them.
WAIT = ("--int8acc-max-seconds", "3600")
#: Layers whose ranges are made 60 times too wide.
WIDE = {"conv2", "conv3"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return copy_example(tmp_path)


#: Tests of what one session of pytest prints run in one worker of pytest-xdist.
of_one_session = pytest.mark.xdist_group("digits")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, gpu_store: Path) -> tuple[str, dict[str, Any]]:
    """What ``pytest --int8acc`` prints and reports of the example project, and of criteria of engines."""
    project = copy_example(tmp_path_factory.mktemp("digits"))
    text = (project / "digits.int8acc.yaml").read_text(encoding="utf-8")
    for name, criterion in (("layers", "int8_layers: 0.5"), ("speed", "speedup: 1000")):
        spec = text.replace("criteria:", f"criteria:\n  - {{{criterion}}}", 1)
        (project / f"{name}.int8acc.yaml").write_text(spec, encoding="utf-8")
    options = ("-vv", "--int8acc-report", "out", "--int8acc-layers", "--runxfail")
    return pytest_run(project, *options, *WAIT, store=gpu_store), cases(project)


def cases(project: Path) -> dict[str, dict[str, Any]]:
    report = json.loads((project / "out" / "report.json").read_text(encoding="utf-8"))
    return {case["name"]: case for case in report["cases"] if "name" in case}


@of_one_session
def test_the_example_project_passes_and_fails_as_it_should(session: tuple[str, dict[str, Any]]) -> None:
    printed, found = session
    assert outcome(printed) == {"passed": 3, "failed": 2}
    failed = found["digits_by_hand"]
    assert "TensorRT" in str(failed["backend"])
    assert {c["layer"] for c in failed["culprits"]} >= {"/block2/conv1/Conv"}
    assert failed["search"]["verified"]
    repairs = {repair["kind"]: repair for repair in failed["diagnosis"]["repairs"]}
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


@pytest.mark.xdist_group("kinds")
@pytest.mark.parametrize(
    ("network", "kind"),
    [("migrate", "migrate"), ("mixed, with room", "mixed")],  # the example project has the others
)
def test_each_kind_of_fix_is_verified_with_its_price(
    tmp_path: Path, gpu_store: Path, network: str, kind: str
) -> None:
    make, limits = KINDS[network]
    made = {"tactic_sources": [], "optimization_level": 1}
    write_case(tmp_path, make(), limits, tensorrt=made)
    options = ("--int8acc-report", "out", *WAIT)
    printed = pytest_run(tmp_path, "case.int8acc.yaml", *options, store=gpu_store)
    assert outcome(printed) == {"failed": 1}
    found = cases(tmp_path)["case"]
    repairs = {repair["kind"]: repair for repair in found["diagnosis"]["repairs"]}
    for engine in found["engines"]:
        print(engine["role"], engine["latency"])
    for repair in repairs.values():
        print(repair["kind"], repair["verified"], repair["price"], repair["text"], repair["scores"])
    assert repairs[kind]["verified"]


@of_one_session
def test_layers_are_compared_between_engines(session: tuple[str, dict[str, Any]]) -> None:
    printed, found = session
    assert "between engines: SQNR dB" in printed
    layers = found["digits_by_hand"]["diagnosis"]["layers"]
    known = [line for line in layers if line["engine_sqnr_db"] is not None]
    assert len(known) >= 0.8 * len(layers)
    off = [abs(line["engine_sqnr_db"] - line["sqnr_db"]) for line in known]
    assert np.median(off) < 1


@of_one_session
def test_engine_criteria_gate(session: tuple[str, dict[str, Any]]) -> None:
    printed, found = session
    assert (found["layers"]["verdict"], found["speed"]["verdict"]) == ("passed", "failed")
    assert "'engine' speedup" in printed
    assert "< 1000" in printed


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


def test_implicit_quantization_writes_reads_and_refuses_caches(project: Path, gpu_store: Path) -> None:
    spec = project / "implicit.int8acc.yaml"
    text = IMPLICIT.replace("ALGORITHM", "minmax").replace("CACHE", "digits.cache") + tactics()
    spec.write_text(text, encoding="utf-8")
    printed = pytest_run(project, spec.name, "-vv", store=gpu_store)
    assert outcome(printed) == {"passed": 1}
    cache = project / "digits.cache"
    written = cache.read_bytes()
    assert written.startswith(b"TRT-")
    assert outcome(pytest_run(project, spec.name, store=gpu_store)) == {"passed": 1}
    assert cache.read_bytes() == written
    data = dict(np.load(project / "data" / "calibration.npz"))
    np.savez(project / "data" / "calibration.npz", **{k: v[::2] * 0.5 for k, v in data.items()})
    printed = pytest_run(project, spec.name, store=gpu_store)
    assert outcome(printed) == {"error": 1}
    assert "it is of other calibration data" in printed


def wide_network() -> Model:
    """Convolutions so large that INT8 is faster than FP16, which is what TensorRT goes by."""
    b = Builder("wide", (3, 32, 32), seed=5)
    x, cin = "x", 3
    for number in range(5):
        x, cin = b.conv_relu(x, cin, 256, label=f"conv{number}"), 256
    return b.model(b.head(x, cin))


def test_implicit_quantization_that_fails_gets_an_explicit_fix(tmp_path: Path, gpu_store: Path) -> None:
    save_model(wide_network(), tmp_path / "wide.onnx")
    rng = np.random.default_rng(0)
    for part in ("calibration", "validation"):
        coarse = rng.standard_normal((64, 3, 8, 8)).astype(np.float32)
        np.savez(tmp_path / f"{part}.npz", x=np.kron(coarse, np.ones((1, 1, 4, 4), np.float32)))
    spec, cache = tmp_path / "implicit.int8acc.yaml", tmp_path / "wide.cache"
    text = "model: wide.onnx\ninputs: validation.npz\nbatch: 32\ncriteria: [{sqnr_db: 20}]\n" + tactics()
    first = "int8: {implicit: {calibrate: {data: calibration.npz, algorithm: minmax}, cache: wide.cache}}\n"
    spec.write_text(text + first, encoding="utf-8")
    passed = pytest_run(tmp_path, spec.name, "-vv", "--int8acc-report", "out", store=gpu_store)
    assert outcome(passed) == {"passed": 1}
    assert "0 of 6 layers" not in passed
    wide = {node.input[0] for node in load_model(tmp_path / "wide.onnx").graph.node if node.name in WIDE}
    header, *lines = cache.read_text().splitlines()
    entries = [line.rpartition(": ") for line in lines]
    factors = [np.float32(60 if name in wide else 1) for name, _, _ in entries]
    scales = [np.frombuffer(bytes.fromhex(code), ">f4")[0] for _, _, code in entries]
    again = [np.array(s * f, ">f4").tobytes().hex() for s, f in zip(scales, factors, strict=True)]
    lines = [f"{name}: {code}" for (name, _, _), code in zip(entries, again, strict=True)]
    cache.write_text("\n".join([header, *lines]) + "\n")
    sidecar_path(cache).unlink()
    spec.write_text(text + "int8: {implicit: {cache: wide.cache}}\n", encoding="utf-8")
    printed = pytest_run(tmp_path, spec.name, "-vv", "--int8acc-report", "out", store=gpu_store)
    assert outcome(printed) == {"failed": 1}
    case = cases(tmp_path)["implicit"]
    assert {culprit["layer"] for culprit in case["culprits"]} & WIDE
    assert case["search"]["verified"]


def test_prebuilt_engines_as_baseline_and_candidate(tmp_path: Path) -> None:
    project, kept = small_project(tmp_path), tmp_path / "s"
    pytest_run(project, "--int8acc-report", "out", store=kept)
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


def test_dynamic_shapes(tmp_path: Path, gpu_store: Path) -> None:
    project = small_project(tmp_path, samples=110)  # 2 * 50 + 10
    spec = project / "small.int8acc.yaml"
    text = spec.read_text(encoding="utf-8").replace(tactics(), "")
    shapes = tactics().replace("}", ", shapes: {x: [[1, 3, 8, 8], [50, 3, 8, 8], [64, 3, 8, 8]]}}")
    spec.write_text(f"{text}batch: 50\n{shapes}", encoding="utf-8")
    assert outcome(pytest_run(project, spec.name, store=gpu_store)) == {"passed": 1}
    spec.write_text(f"{text}batch: 100\n{shapes}", encoding="utf-8")
    printed = pytest_run(project, spec.name, store=gpu_store)
    assert outcome(printed) == {"error": 1}
    assert "outside its profile [1, 3, 8, 8] to [64, 3, 8, 8]" in printed


@pytest.mark.skipif(gpus() < 2, reason="needs two NVIDIA GPUs: run pytest -m gpu -s on such a host")
def test_two_gpus_share_the_work(project: Path, tmp_path: Path) -> None:
    (project / "metrics.py").write_text(
        (project / "metrics.py").read_text(encoding="utf-8")
        + "\n\ndef device(outputs, labels):\n    import os\n"
        "    return float(os.environ['CUDA_VISIBLE_DEVICES'])\n",
        encoding="utf-8",
    )
    names = []
    for n in range(2):
        text = (project / "digits.int8acc.yaml").read_text(encoding="utf-8")
        text = text.replace("criteria:", "criteria:\n  - {metric: metrics.py:device, min: 0, max: 1}", 1)
        names.append(f"copy{n}.int8acc.yaml")
        exclude = "  exclude: ['/block1/conv1/Conv']\n" if n else ""
        (project / names[-1]).write_text(text.replace("int8:\n", f"int8:\n{exclude}", 1), encoding="utf-8")
    seconds = {}
    for workers in ("0", "2"):
        started = time.monotonic()
        extra = {"CUDA_VISIBLE_DEVICES": "0,1" if workers == "2" else "0"}
        arguments = ("-n", workers, *names, "--dist", "loadfile", "--int8acc-report", "out")
        printed = pytest_run(project, *arguments, store=None, **extra)
        seconds[workers] = time.monotonic() - started
        assert outcome(printed) == {"passed": 2}
    devices = {
        score["value"]
        for case in cases(project).values()
        for score in case["scores"]
        if score["metric"] == "device"
    }
    print(f"{os.cpu_count()} CPU cores: one worker {seconds['0']:.1f} s, two workers {seconds['2']:.1f} s")
    assert devices == {0.0, 1.0}
    assert seconds["2"] < seconds["0"]
