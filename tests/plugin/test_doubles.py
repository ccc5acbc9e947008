"""Outputs in float64 whose squares leave float64: an error or a failure that says so, never a pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from plugin_support import LOAD

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 8] x) => (double[N, 4] y) {
  part = MatMul(x, w)
  wide = Cast <to = 11> (part)
  y = Mul(wide, unit)
}
"""


def project(folder: Path, unit: float, criteria: str) -> None:
    """A product in INT8, then in float64 times ``unit``."""
    proto = onnx.parser.parse_model(MODEL)
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(8, 4)).astype(np.float32), "unit": np.array(unit)}
    proto.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in weights.items())
    onnx.save(proto, folder / "model.onnx")
    np.savez(folder / "data.npz", x=rng.normal(size=(64, 8)).astype(np.float32))
    (folder / "case.int8acc.yaml").write_text(
        "model: model.onnx\ninputs: data.npz\nbaseline: fp32\n"
        f"int8: {{calibrate: {{data: data.npz}}}}\ncriteria: [{criteria}]\n"
    )


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_a_limit_on_squares_is_an_error(pytester: pytest.Pytester, unit: float) -> None:
    project(pytester.path, unit, "{sqnr_db: 20}")
    result = pytester.runpytest(*LOAD, "--int8acc")
    result.assert_outcomes(errors=1)
    text = " ".join(result.stdout.str().split())
    assert "output 'y': the greatest magnitude is" in text
    assert "so sqnr_db cannot be computed; scale the output in the model" in text


@pytest.mark.parametrize(("limit", "outcome"), [("1e200", "passed"), ("1e197", "failed")])
def test_a_limit_on_max_abs_is_judged(pytester: pytest.Pytester, limit: str, outcome: str) -> None:
    project(pytester.path, 1e200, f"{{max_abs: {limit}}}")
    result = pytester.runpytest(*LOAD, "--int8acc")
    result.assert_outcomes(**{outcome: 1})
    if outcome == "failed":
        result.stdout.fnmatch_lines(["*max_abs*"])
