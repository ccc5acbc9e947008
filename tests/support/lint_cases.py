"""Q/DQ models of tests/graph/lint_cases.yaml, each with what lint says of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import yaml
from builder import IR_VERSION
from onnx import numpy_helper, parser

RNG = np.random.default_rng(0)
X, Y = "float[2,8,8,8] x", "float[n,c,h,w] y"
#: What graphs may read; a model changes some by name.
CONSTANTS: dict[str, Any] = {
    "s": np.float32(0.03),
    "s2": np.float32(0.05),
    "s3": np.float32(0.04),
    "z": np.int8(0),
    "w": RNG.integers(-127, 128, (8, 8, 3, 3)).astype(np.int8),
    "ws": np.linspace(0.001, 0.002, 8, dtype=np.float32),
    "wz": np.zeros(8, np.int8),
    "wf": (RNG.standard_normal((8, 8, 3, 3)) * 0.1).astype(np.float32),
    "b": np.linspace(-0.1, 0.1, 8, dtype=np.float32),
    "b1": np.ones(8, np.float32),
    "b8": np.arange(8, dtype=np.int8),
    "b32": np.arange(8, dtype=np.int32),
    "m": RNG.integers(-127, 128, (8, 8)).astype(np.int8),
    "one": np.float32(1),
    "many": np.linspace(0.03, 0.05, 8, dtype=np.float32),
}
CONSTANTS["w8"] = CONSTANTS["w"].astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
#: Parts of many graphs; a convolution whose result ``c`` goes on is ``first``.
PARTS = {
    "{pair}": "xq = QuantizeLinear(x, s, z)\nxd = DequantizeLinear(xq, s, z)\n",
    "{weight}": "wd = DequantizeLinear <axis: int = 0> (w, ws, wz)\n",
    "{conv}": "y = Conv <pads = [1, 1, 1, 1]> (xd, wd, b)\n",
    "{first}": "c = Conv <pads = [1, 1, 1, 1]> (xd, wd, b)\n",
    "{next}": "rq = QuantizeLinear(r, s2, z)\nrd = DequantizeLinear(rq, s2, z)\n"
    "y = Conv <pads = [1, 1, 1, 1]> (rd, wd, b)\n",
}


def make(
    graph: str = "{pair} {weight} {conv}",
    opset: int = 17,
    inputs: str = X,
    outputs: str = Y,
    **changes: object,
) -> onnx.ModelProto:
    """A model of ``graph``, with those constants that it reads."""
    for name, part in PARTS.items():
        graph = graph.replace(name, part)
    head = f'<ir_version: {IR_VERSION[opset]}, opset_import: ["": {opset}]> m ({inputs}) => ({outputs})'
    proto = parser.parse_model(head + "{" + graph + "}")
    values = CONSTANTS | {name: np.asarray(value) for name, value in changes.items()}
    read = {name for node in proto.graph.node for name in node.input}
    read -= {name for node in proto.graph.node for name in node.output} | {i.name for i in proto.graph.input}
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in values.items() if n in read]
    proto.graph.initializer.extend(tensors)
    return proto


def _grouped(channels: int, groups: int) -> onnx.ModelProto:
    weight = RNG.integers(-127, 128, (channels, channels // groups, 3, 3)).astype(np.int8)
    graph = f"{{pair}} wd = DequantizeLinear(w, s, z) y = Conv <group: int = {groups}> (xd, wd)"
    return make(graph, inputs=f"float[2,{channels},8,8] x", w=weight)


def _constant(said: Mapping[str, Any]) -> np.ndarray:
    """A constant of a case: its dtype and values; with ``shape``, one value for all elements."""
    (name, values), *shape = said.items()
    dtype = getattr(ml_dtypes, name, None) or np.dtype(name)
    array = np.array(values, dtype)
    return np.full(shape[0][1], array) if shape else array


def _model(said: Mapping[str, Any]) -> onnx.ModelProto:
    more = dict(said)
    if "grouped" in more:
        return _grouped(*more["grouped"])
    constants = {name: _constant(value) for name, value in more.pop("constants", {}).items()}
    if more.pop("half", False):
        halves = {n: v.astype(np.float16) for n, v in CONSTANTS.items() if v.dtype == np.float32}
        ends = {"inputs": X.replace("float", "float16"), "outputs": Y.replace("float", "float16")}
        return make(**{"opset": 19, **ends, **more}, **{**halves, **constants})
    return make(**more, **constants)


_SAID = yaml.safe_load((Path(__file__).parents[1] / "graph" / "lint_cases.yaml").read_text(encoding="utf-8"))
#: Rule (and variant) to a model that breaks it and nothing else, and one that keeps every rule.
CASES = {name: (_model(said["broken"]), _model(said.get("healthy", {}))) for name, said in _SAID.items()}
