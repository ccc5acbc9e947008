"""Networks that are written: a text in ONNX's form, and weights of which seeded ones are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from numpy.typing import NDArray
from onnx import numpy_helper, parser

from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model, make_model

Array = NDArray[Any]
HEAD = '<ir_version: 8, opset_import: ["": 17]> '


def written(path: Path) -> dict[str, dict[str, Any]]:
    """The networks of a file by name, each with the ``text`` and the ``weights`` that ``network`` takes."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def network(text: str, weights: Mapping[str, Any], *, named: bool = True) -> onnx.ModelProto:
    """A model from ONNX's text form, without its header where that is ``HEAD``.

    ``weights``: by name a number, a list of them (constants), ``{shape: [...], times: 1.0, type: float32}``
    (seeded, so that what they make is of order one), ``{integers: [...], type: int64}`` or an array.
    ``named``: nodes bear the names of what they make.
    """
    proto = parser.parse_model(text if text.lstrip().startswith("<") else HEAD + text)
    rng = np.random.default_rng(0)
    for name, said in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(_weight(said, rng), name))
    for node in proto.graph.node if named else ():
        node.name = node.name or node.output[0]
    return proto


def model(text: str, weights: Mapping[str, Any] | None = None, *, named: bool = False) -> Model:
    """A ``network`` as the package has it once it is loaded."""
    return normalize(make_model(network(text, weights or {}, named=named)))


def _weight(said: Any, rng: np.random.Generator) -> Array:
    if isinstance(said, np.ndarray | np.generic):
        return np.asarray(said)
    if isinstance(said, Mapping) and "integers" in said:
        return np.array(said["integers"], said.get("type", "int64"))
    if not isinstance(said, Mapping):
        return np.array(said, np.float32)
    shape = said["shape"]
    # The first axis is taken for the output's, as Conv and Gemm with transB have it.
    array = rng.standard_normal(shape) * (2 / max(np.prod(shape[1:]), 1)) ** 0.5
    for axis, factors in said.get("slices", {}).items():
        for index, factor in factors.items():
            np.moveaxis(array, int(axis), 0)[index] *= factor
    return (array * said.get("times", 1.0)).astype(said.get("type", "float32"))
