"""Float models whose file is in FP16 already: told clearly what cannot be done with them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from plugin_support import LOAD


@pytest.mark.parametrize("baseline", ["fp16", "fp32"])
def test_calibration_of_a_file_in_fp16_says_that_it_is_no_float32(
    pytester: pytest.Pytester, baseline: str
) -> None:
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        net (float16[n, 8] x) => (float16[n, 4] y) {
          h = MatMul(x, first)
          bent = Relu(h)
          y = MatMul(bent, second)
        }"""
    )
    rng = np.random.default_rng(0)
    for name, shape in (("first", (8, 16)), ("second", (16, 4))):
        weight = rng.normal(size=shape).astype(np.float16)
        proto.graph.initializer.append(numpy_helper.from_array(weight, name))
    onnx.save(proto, pytester.path / "net.onnx")
    np.save(pytester.path / "x.npy", rng.normal(size=(32, 8)).astype(np.float16))
    spec = f"model: net.onnx\ninputs: x.npy\nbaseline: {baseline}\nint8: {{calibrate: {{}}}}\n"
    (pytester.path / "net.int8acc.yaml").write_text(spec)
    result = pytester.runpytest(*LOAD, "--int8acc", "--int8acc-backend=onnxruntime")
    result.assert_outcomes(errors=1)
    text = " ".join(result.stdout.str().split())
    assert "nothing to quantize" in text
    assert "input 'x' is float16, not float32" in text
