"""A detector that chooses among its boxes, its spec, and a fault in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml
from onnx import numpy_helper, parser

from pytest_int8acc import Case, load_spec
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model, make_model, save_model

HEAD = """
<ir_version: 8, opset_import: ["" : 13]>
detector (float[N, 8, 16, 16] image) => ({outputs}) <int64[1] k = {{40}}, int64[3] flat = {{0, 4, 256}}> {{
    mixed = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(image, first)
    relu = Relu(mixed)
    heads = Conv<kernel_shape = [1, 1]>(relu, second)
    boxes = Reshape(heads, flat)
    {body}
}}
"""
TOP = """scores = ReduceMean<axes = [1], keepdims = 0>(boxes)
    best, place = TopK<axis = 1>(scores, k)
    placed = Cast<to = 1>(place)"""


def detector(body: str, outputs: str, channel: float = 1.0) -> Model:
    """Boxes of two convolutions, and what ``body`` makes of them; one channel between is ``channel`` times as
    large, its weights after it as many times smaller."""
    proto = parser.parse_model(HEAD.format(body=body, outputs=outputs))
    rng = np.random.default_rng(0)
    weights = {"first": rng.normal(size=(16, 8, 3, 3)), "second": rng.normal(size=(4, 16, 1, 1))}
    weights["first"][5] *= channel
    weights["second"][:, 5] /= channel
    for name, weight in weights.items():
        weight = weight.astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(weight, name))
    for place, node in enumerate(proto.graph.node):
        node.name = f"{node.op_type}_{place}"
    return normalize(make_model(proto))


def project(
    folder: Path, channel: float = 1.0, model: Model | None = None, samples: int = 64, **said: object
) -> Case:
    """A case of the detector, by default judged by the scores that it chooses by; None takes a key out."""
    save_model(model or detector(TOP, "float[N, K] placed", channel), folder / "model.onnx")
    images = np.random.default_rng(1).normal(size=(samples, 8, 16, 16)).astype(np.float32)
    np.savez(folder / "images.npz", image=images)
    spec = {
        "model": "model.onnx",
        "inputs": "images.npz",
        "int8": {"calibrate": {"data": "images.npz"}},
        "criteria": [{"tensor": "scores", "sqnr_db": 25}],
        "unjudged": ["placed"],
        "accept_blind": "an untrained network and random images",
        **said,
    }
    kept = {key: value for key, value in spec.items() if value is not None}
    (folder / "case.int8acc.yaml").write_text(yaml.safe_dump(kept, sort_keys=False))
    (case,) = load_spec(folder / "case.int8acc.yaml")
    return case
