"""Implicit quantization from YAML to verdict, and the explicit fix of a case that fails.

Run on a machine with an NVIDIA GPU and TensorRT:

    pip install -e '.[cpu,tensorrt,dev]' && pytest -m gpu -s
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gpu_support import UNTRAINED, cases, copy_example, needs_gpu_below_11, outcome, pytest_run, tactics, wide

from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import save_model
from pytest_int8acc.runtime.trt.calibration import sidecar_path

pytestmark = needs_gpu_below_11

IMPLICIT = """
model: digits.onnx
inputs: data/validation.npz
labels: data/validation_labels.npy
int8: {implicit: {calibrate: {data: data/calibration.npz, algorithm: ALGORITHM}, cache: CACHE}}
criteria:
  - {output: logits, cosine: 0.998, sqnr_db: 20, top1_agreement: 0.98}
  - {metric: metrics.py:top1, max_drop: 0.02}
"""

#: Layers whose ranges are made 60 times too wide.
WIDE = {"conv2", "conv3"}


def test_implicit_quantization_writes_reads_and_refuses_caches(tmp_path: Path, gpu_store: Path) -> None:
    project = copy_example(tmp_path)
    text = IMPLICIT.replace("ALGORITHM", "minmax").replace("CACHE", "digits.cache") + tactics(1)
    specs = [project / f"{name}.int8acc.yaml" for name in ("calibrates", "reads")]
    for spec in specs:
        spec.write_text(text, encoding="utf-8")
    names = [spec.name for spec in specs]
    printed = pytest_run(project, *names, "-vv", "--int8acc-report", "out", store=gpu_store)
    assert outcome(printed) == {"passed": 2}
    for case in cases(project).values():  # the second is built from the cache, which makes it another engine
        assert not next(engine["stored"] for engine in case["engines"] if engine["role"] == "INT8")
    cache = project / "digits.cache"
    written = cache.read_bytes()
    assert written.startswith(b"TRT-")
    data = dict(np.load(project / "data" / "calibration.npz"))
    np.savez(project / "data" / "calibration.npz", **{k: v[::2] * 0.5 for k, v in data.items()})
    printed = pytest_run(project, names[1], store=gpu_store)
    assert outcome(printed) == {"error": 1}
    assert "it is of other calibration data" in printed
    assert cache.read_bytes() == written


def test_implicit_quantization_that_fails_gets_an_explicit_fix(tmp_path: Path, gpu_store: Path) -> None:
    save_model(wide(5), tmp_path / "wide.onnx")
    rng = np.random.default_rng(0)
    for part in ("calibration", "validation"):
        coarse = rng.standard_normal((64, 3, 8, 8)).astype(np.float32)
        np.savez(tmp_path / f"{part}.npz", x=np.kron(coarse, np.ones((1, 1, 4, 4), np.float32)))
    spec, cache = tmp_path / "implicit.int8acc.yaml", tmp_path / "wide.cache"
    text = "model: wide.onnx\ninputs: validation.npz\nbatch: 32\ncriteria: [{sqnr_db: 20}]\n"
    text += UNTRAINED + tactics(1)
    first = "int8: {implicit: {calibrate: {data: calibration.npz, algorithm: minmax}, cache: wide.cache}}\n"
    spec.write_text(text + first, encoding="utf-8")
    passed = pytest_run(tmp_path, spec.name, "-vv", "--int8acc-report", "out", store=gpu_store)
    assert outcome(passed) == {"passed": 1}
    assert "0 of 6 layers" not in passed
    widened = {node.input[0] for node in load_model(tmp_path / "wide.onnx").graph.node if node.name in WIDE}
    header, *lines = cache.read_text().splitlines()
    entries = [line.rpartition(": ") for line in lines]
    factors = [np.float32(60 if name in widened else 1) for name, _, _ in entries]
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
