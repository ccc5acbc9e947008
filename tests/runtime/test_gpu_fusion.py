"""An engine that computes wrong what its Q/DQ model computes right.

Run on a machine with an NVIDIA GPU and TensorRT:

    pip install -e '.[cpu,tensorrt,dev]' && pytest -m gpu -s
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gpu_support import TIMED, UNTRAINED, amax_scales, batched, needs_gpu_below_11

from pytest_int8acc.answer import conclude
from pytest_int8acc.case.measured import measure
from pytest_int8acc.graph.layout import find_groups
from pytest_int8acc.graph.model import save_model
from pytest_int8acc.graph.opsets import lower_opset
from pytest_int8acc.report.fixes import repair_text
from pytest_int8acc.results import Role
from pytest_int8acc.runtime.trt import backend as backends
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec

pytestmark = needs_gpu_below_11

#: Of the mobilenet of the zoo: what TensorRT 8.6.0 gets wrong, 1.2 dB, where the same Q/DQ model has 23 dB.
WIDE, HIGH = ("clip3_out", "clip5_out"), ("add7", "conv10", "conv2", "conv4")


def test_a_fusion_that_is_computed_wrong_is_broken_up(
    tmp_path: Path, gpu_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With INT8 initializers, as it was found; at level 0 it is as wrong as at the default one."""
    model, feed = batched("mobilenet")
    scales = amax_scales(model, find_groups(model).activations, feed)
    ranges = {name: scale * 127 * (30 if name in WIDE else 1) for name, scale in scales.items()}
    save_model(model, tmp_path / "model.onnx")
    np.savez(tmp_path / "inputs.npz", **feed)
    (tmp_path / "ranges.json").write_text(json.dumps(ranges))
    (tmp_path / "plan.yaml").write_text(f"version: 4\nhigh: {{{', '.join(f'{g}: fp16' for g in HIGH)}}}\n")
    spec = tmp_path / "case.int8acc.yaml"
    spec.write_text(
        "model: model.onnx\ninputs: inputs.npz\nint8: {scales: ranges.json}\nplan: plan.yaml\n"
        f"criteria: [{{sqnr_db: 15}}, {{{TIMED}}}]\n"
        "tensorrt: {tactic_sources: [], optimization_level: 0}\n" + UNTRAINED
    )
    monkeypatch.setattr(backends, "fit_model", lambda model, platform: lower_opset(model, 17))
    (case,) = load_spec(spec)
    measured = measure(
        case, Settings(backend="tensorrt", max_builds=6, max_seconds=3600, cache_dir=str(gpu_store))
    )
    try:
        print([f"{score.name} {score.value:.2f}" for score in measured.result.scores])
        assert measured.runs.comparison(Role.BASELINE, Role.SIMULATED).verdict().passed
        if measured.result.passed:
            pytest.skip("this TensorRT computes it right")
        result = conclude(measured, tmp_path / "fix")
    finally:
        measured.close()
    assert result.diagnosis is not None
    for repair in result.diagnosis.repairs:
        print(repair_text(repair, "INT8"), repair.latency)
        print([(score.metric, score.value, score.interval) for score in repair.scores])
    print("\n".join(result.diagnosis.notes))
    assert result.diagnosis.first_stage == "engine INT8"
    found = [repair for repair in result.diagnosis.repairs if repair.kind == "unfuse"]
    assert all(repair.verified and repair.latency for repair in found)
    assert bool(found) != any("do not mend it" in note for note in result.diagnosis.notes)
