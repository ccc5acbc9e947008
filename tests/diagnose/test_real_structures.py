"""What reports say of models like those that users had trouble with, against INT8 made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import yaml
from by_hand import by_hand, run, sqnr_db
from onnx import numpy_helper, parser

from pytest_int8acc.check import check
from pytest_int8acc.results import CaseResult
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec
from pytest_int8acc.tensors import Array, Feed

#: As openWakeWord's hey_jarvis: a long vector, norms in parts, and an If at the end.
WAKE_WORD = """<ir_version: 8, opset_import: ["": 17]> wake (float[n, 16, 40] x) => (float[n, 1] p) {
    flat = Flatten(x)
    wide = Gemm<transB = 1>(flat, w1, b1)
    mean = ReduceMean<axes = [-1]>(wide)
    centred = Sub(wide, mean)
    squares = Mul(centred, centred)
    variance = ReduceMean<axes = [-1]>(squares)
    more = Add(variance, epsilon)
    root = Sqrt(more)
    normed = Div(centred, root)
    hidden = Relu(normed)
    narrow = Gemm<transB = 1>(hidden, w2, b2)
    p = Sigmoid(narrow)
}"""
#: Convolutions over time, rows and columns.
VIDEO = """<ir_version: 8, opset_import: ["": 17]> video (float[n, 2, 4, 8, 8] x) => (float[n, 6] y) {
    first = Conv<pads = [1, 1, 1, 1, 1, 1]>(x, w1, b1)
    one = Relu(first)
    second = Conv<pads = [1, 1, 1, 1, 1, 1], strides = [1, 2, 2]>(one, w2, b2)
    two = Relu(second)
    pooled = GlobalAveragePool(two)
    flat = Flatten(pooled)
    y = Gemm<transB = 1>(flat, w3, b3)
}"""

#: Two probabilities, nearly always 0 and 1.
TWO_CLASSES = """<ir_version: 8, opset_import: ["": 17]> cls (float[n, 16] x) => (float[n, 2] p)
<float sharp = {12}> {
    wide = Gemm<transB = 1>(x, w1, b1)
    hidden = Relu(wide)
    narrow = Gemm<transB = 1>(hidden, w2, b2)
    sure = Mul(narrow, sharp)
    p = Softmax(sure)
}"""


def model(text: str, **shapes: tuple[int, ...]) -> onnx.ModelProto:
    """With seeded weights; nodes bear the names of what they make."""
    proto, rng = parser.parse_model(text), np.random.default_rng(0)
    for name, shape in shapes.items():
        weight = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        proto.graph.initializer.append(numpy_helper.from_array(weight.astype(np.float32), name))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(1e-5, np.float32), "epsilon"))
    for node in proto.graph.node:
        node.name = node.output[0]
    return proto


def amax(proto: onnx.ModelProto, feed: Feed) -> dict[str, float]:
    """Greatest magnitude of what each weighted node reads."""
    read = [n.input[0] for n in proto.graph.node if n.op_type in ("Conv", "Gemm", "MatMul")]
    held = {**feed, **run(proto, feed, [name for name in read if name not in feed])}
    return {name: float(np.abs(held[name]).max()) for name in read}


def checked(
    folder: Path, proto: onnx.ModelProto, feed: Feed, reach: dict[str, float], limit: float
) -> CaseResult:
    """A case with these dynamic ranges and a limit on the SQNR in dB."""
    onnx.save(proto, folder / "model.onnx")
    np.savez(folder / "data.npz", **feed)
    (folder / "ranges.json").write_text(json.dumps(reach))
    spec = {"model": "model.onnx", "inputs": "data.npz", "int8": {"scales": "ranges.json"}}
    text = yaml.safe_dump({**spec, "criteria": [{"sqnr_db": limit}]})
    (folder / "case.int8acc.yaml").write_text(text)
    return check(load_spec(folder / "case.int8acc.yaml")[0], Settings(backend="onnxruntime"))


def steps(reach: dict[str, float]) -> dict[str, Array]:
    """Scales of dynamic ranges."""
    return {name: np.array(most / 127, np.float32) for name, most in reach.items()}


def test_a_classifier_whose_few_doubtful_samples_make_all_of_the_error_as_rapidocrs_cls(
    tmp_path: Path,
) -> None:
    proto = model(TWO_CLASSES, w1=(32, 16), b1=(32,), w2=(2, 32), b2=(2,))
    feed = {"x": np.random.default_rng(1).standard_normal((48, 16)).astype(np.float32)}
    reach = amax(proto, feed)
    (expected,) = run(proto, feed).values()
    (found,) = run(by_hand(proto, steps(reach)), feed).values()
    limit = sqnr_db(expected, found) - 0.5
    result = checked(tmp_path, proto, feed, reach, limit)
    errors = np.sort(((expected - found) ** 2).sum(1))[::-1]
    assert errors[:8].sum() > 0.9 * errors.sum()
    draws = np.random.default_rng(2).integers(0, 48, (400, 48))
    kept = np.mean([sqnr_db(expected[rows], found[rows]) >= limit for rows in draws])
    assert 0.1 < kept < 0.9
    assert result.unsteady
    interval = result.scores[0].interval
    assert interval is not None
    assert interval.low < limit < interval.high
