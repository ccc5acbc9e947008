"""A project whose case keeps a golden: a model of two layers, data, a metric, ranges good and bad."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

#: Everything but what a test is about.
BASE = """
model: model.onnx
inputs: inputs.npz
labels: labels.npy
onnxruntime: {mode: exact}
backend: onnxruntime
accept_blind: an untrained network and made-up labels
"""
MINMAX = "int8: {calibrate: {method: minmax}}\n"
WIDE = "int8: {scales: ranges.json}\n"
SAMPLES = 64
METRICS = (
    "def top1(outputs, labels):\n    return float((outputs['logits'].argmax(axis=1) == labels).mean())\n"
    "def error(outputs, labels):\n    return 1 - top1(outputs, labels)\n"
)


def write_project(folder: Path) -> None:
    """Model, data, labels, metrics, ranges that are much too wide, and a loader."""
    write_model(folder)
    write_data(folder)
    (folder / "metrics.py").write_text(METRICS)
    (folder / "ranges.json").write_text(json.dumps({"x": [-9, 9], "b": [-9, 9]}))
    (folder / "loader.py").write_text(
        "import numpy as np\ndef load():\n    yield {'x': np.load('inputs.npz')['x']}\n".replace(
            "'inputs.npz'", repr(str(folder / "inputs.npz"))
        )
    )


def weights(seed: int = 7) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "w1": rng.normal(size=(8, 16)).astype(np.float32) / 3,
        "w2": rng.normal(size=(16, 4)).astype(np.float32) / 4,
    }


def write_model(folder: Path, seed: int = 7, name: str = "model.onnx", *, external: bool = False) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("MatMul", ["b", "w2"], ["logits"], "second"),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(w, key) for key, w in weights(seed).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    more = {"save_as_external_data": True, "location": f"{name}.data", "size_threshold": 0}
    (folder / f"{name}.data").unlink(missing_ok=True)
    onnx.save(model, folder / name, **(more if external else {}))


def write_data(folder: Path, seed: int = 7, samples: int = SAMPLES) -> None:
    inputs = np.random.default_rng(seed).normal(size=(samples, 8)).astype(np.float32)
    np.savez(folder / "inputs.npz", x=inputs)
    found = np.maximum(inputs @ weights()["w1"], 0) @ weights()["w2"]
    np.save(folder / "labels.npy", found.argmax(axis=1))


def scale_golden(folder: Path, case: str, factor: float) -> None:
    """As if the baseline had given other outputs when the golden was recorded."""
    record = json.loads((folder / f"{case}.json").read_text())
    with np.load(folder / record["kept"]["file"]) as stored:
        arrays = {name: array * array.dtype.type(factor) for name, array in stored.items()}
    (folder / record["kept"]["file"]).unlink()
    np.savez(folder / "scaled.npz", **arrays)
    sha256 = hashlib.sha256((folder / "scaled.npz").read_bytes()).hexdigest()
    record["kept"] |= {"sha256": sha256, "file": f"{case}.{sha256[:12]}.npz"}
    (folder / "scaled.npz").rename(folder / record["kept"]["file"])
    (folder / f"{case}.json").write_text(json.dumps(record))
