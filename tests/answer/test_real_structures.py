"""What reports say of models like those that users had trouble with, against INT8 made by hand."""

from __future__ import annotations

import json
from typing import Any

import case_files
import numpy as np
import onnx
import pytest
from by_hand import by_hand, run, sqnr_db
from onnx import numpy_helper, parser

from pytest_int8acc.tensors import Array, Feed

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
    pytester: pytest.Pytester, proto: onnx.ModelProto, feed: Feed, reach: dict[str, float], limit: float
) -> dict[str, Any]:
    """The entry of report.json of a case with these dynamic ranges and a limit on the SQNR in dB."""
    onnx.save(proto, pytester.path / "model.onnx")
    np.savez(pytester.path / "data.npz", **feed)
    (pytester.path / "ranges.json").write_text(json.dumps(reach))
    spec = {"int8": {"scales": "ranges.json"}, "criteria": [{"sqnr_db": limit}], "accept_blind": None}
    return case_files.run(pytester, {"spec": {**spec, "backend": "onnxruntime"}})


def steps(reach: dict[str, float]) -> dict[str, Array]:
    """Scales of dynamic ranges."""
    return {name: np.array(most / 127, np.float32) for name, most in reach.items()}


def test_a_classifier_whose_few_doubtful_samples_make_all_of_the_error_as_rapidocrs_cls(
    pytester: pytest.Pytester,
) -> None:
    proto = model(TWO_CLASSES, w1=(32, 16), b1=(32,), w2=(2, 32), b2=(2,))
    feed = {"x": np.random.default_rng(1).standard_normal((48, 16)).astype(np.float32)}
    reach = amax(proto, feed)
    (expected,) = run(proto, feed).values()
    (found,) = run(by_hand(proto, steps(reach)), feed).values()
    limit = sqnr_db(expected, found) - 0.5
    result = checked(pytester, proto, feed, reach, limit)
    errors = np.sort(((expected - found) ** 2).sum(1))[::-1]
    assert errors[:8].sum() > 0.9 * errors.sum()
    draws = np.random.default_rng(2).integers(0, 48, (400, 48))
    kept = np.mean([sqnr_db(expected[rows], found[rows]) >= limit for rows in draws])
    assert 0.1 < kept < 0.9
    interval = result["scores"][0]["interval"]
    assert interval["low"] < limit < interval["high"]
