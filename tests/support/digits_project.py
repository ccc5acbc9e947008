"""The example project's digits, copied for a test."""

from __future__ import annotations

import json

import numpy as np
import pytest
from golden_support import weights, write_model

SPEC = """
defaults:
  model: model.onnx
  inputs: inputs.npz
  labels: labels.npy
  int8: {calibrate: {method: minmax}}
  criteria:
    - {output: logits, sqnr_db: 20}
    - {metric: metrics.py:top1, max_drop: 0.02}
cases:
  - name: calibrated
  - name: by-hand
    int8: {scales: ranges.json}
  - name: by-hand-known
    int8: {scales: ranges.json}
    xfail: ranges set by hand
  - name: no-model
    model: modle.onnx
    xfail: stays an error
  - name: skipped
    model: modle.onnx
    skip: not public
"""


@pytest.fixture
def digits(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with a model, data, a metric and the cases of SPEC."""
    write_model(pytester.path)
    inputs = np.random.default_rng(8).normal(size=(64, 8)).astype(np.float32)
    np.savez(pytester.path / "inputs.npz", x=inputs)
    made = weights()
    truth = np.maximum(inputs @ made["w1"], 0) @ made["w2"]
    np.save(pytester.path / "labels.npy", truth.argmax(axis=1))
    (pytester.path / "metrics.py").write_text(
        "def top1(outputs, labels):\n    return float((outputs['logits'].argmax(axis=1) == labels).mean())\n"
    )
    (pytester.path / "ranges.json").write_text(json.dumps({"x": [-50, 50], "b": [-50, 50]}))
    (pytester.path / "digits.int8acc.yaml").write_text(SPEC)
    return pytester
