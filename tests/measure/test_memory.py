"""What a case's memory grows by with its outputs, measured from outside, process against process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.memory import LIMITS, outputs_ratio


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("case", "size"), [("passes", 256), ("fails", 128)])
def test_a_case_holds_little_more_than_the_outputs_of_one_form(case: str, size: int) -> None:
    assert 0.3 < outputs_ratio(LIMITS[case], size=size) < 1.3


_CHAIN = """
import resource
import numpy as np
from onnx import parser
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import make_model
from pytest_int8acc.measure.shapes import tensor_shapes

body = " ".join(f"t{i + 1} = Tanh(t{i})" for i in range(48))
head = '<ir_version: 8, opset_import: ["": 17]> g (float[n, 65536] t0) => (float[n, 65536] t48)'
model = normalize(make_model(parser.parse_model(f"{head} {{ {body} }}")))
feed = {"t0": np.ones((32, 65536), np.float32)}  # 8 MiB, and so is each of the 48
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before = peak()
tensor_shapes(model, feed, [f"t{i}" for i in range(48)])
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB there")
def test_tensors_of_which_only_a_shape_is_told_are_not_all_held() -> None:
    done = subprocess.run([sys.executable, "-c", _CHAIN], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 200
