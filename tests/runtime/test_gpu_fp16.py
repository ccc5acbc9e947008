"""FP16 in place of INT8 on a real engine.

Run on a machine with an NVIDIA GPU and TensorRT:

    pip install -e '.[cpu,tensorrt,dev]' && pytest -m gpu -s
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gpu_support import UNTRAINED, cases, needs_gpu, outcome, pytest_run, tactics, wide

from pytest_int8acc.graph.model import save_model

pytestmark = needs_gpu


def test_fp16_in_place_of_int8(tmp_path: Path) -> None:
    """At level 1: at level 0 TensorRT takes the first tactics, which are FP32's."""
    save_model(wide(3), tmp_path / "wide.onnx")
    samples = np.random.default_rng(0).standard_normal((32, 3, 32, 32), dtype=np.float32)
    np.savez(tmp_path / "inputs.npz", x=samples)
    (tmp_path / "wide.int8acc.yaml").write_text(
        "model: wide.onnx\ninputs: inputs.npz\nbatch: 32\ncandidate: fp16\ncriteria: [{sqnr_db: 15}]\n"
        + UNTRAINED
        + tactics(1),
        encoding="utf-8",
    )
    printed = pytest_run(tmp_path, "-vv", "--int8acc-report", "out", store=tmp_path / "s")
    assert outcome(printed) == {"passed": 1}
    case = cases(tmp_path)["wide"]
    (engine,) = (engine for engine in case["engines"] if engine["role"] == "INT8")
    weighted = [layer["precision"] for layer in engine["layers"] if layer["kind"] == "weighted"]
    assert "fp16" in weighted
    assert f"FP16 engine: {weighted.count('fp16')} of {len(weighted)} weighted layers in FP16" in printed
    assert "You asked for FP16 and 0 of" not in printed
    assert case["scores"][0]["value"] != "inf"  # the baseline is FP32's engine
