"""Networks whose output is joined of parts: boxes in pixels and scores from 0 to 1, in several layouts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from onnx import helper, numpy_helper, parser
from qdq_by_hand import quantized

_WRITTEN = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
#: Layout to its nodes, and the shape of its output of a sample.
LAYOUTS: Mapping[str, Mapping[str, str]] = _WRITTEN["layouts"]
#: Ranges of what the convolutions in it read.
RANGES = {"image": 4.5, "rows": 12.0}


def network(layout: str) -> onnx.ModelProto:
    """The float model of a layout."""
    said = LAYOUTS[layout]
    rows = "M" if layout == "samples" else "N"
    output = f"float[{rows}, {said['shape']}] output0"
    text = _WRITTEN["head"].replace("OUTPUT", output).replace("NODES", said["nodes"])
    proto = parser.parse_model(text)
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.normal(size=(8, 3, 1, 1)),
        "box_weight": rng.normal(size=(4, 8, 1)) * 0.3,
        "box_bias": np.full(4, 3.0),
        "class_weight": rng.normal(size=(3, 8, 1)) * 0.5,
        "class_bias": np.full(3, -2.0),
        "kept": np.eye(7)[..., None],
        "kept_rows": np.eye(7),
        "idle": np.diag([1, 1, 1, 1, 0, 0, 1e-9])[..., None],
    }
    for name, array in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    for place, node in enumerate(proto.graph.node):
        node.name = f"{node.op_type}_{place}"
    return proto


def with_one_scale(proto: onnx.ModelProto, amax: float, tensor: str = "output0") -> onnx.ModelProto:
    """The model with Q/DQ on one tensor, for all that reads it and as an output."""
    low = onnx.ModelProto()
    low.CopyFrom(proto)
    graph = low.graph
    maker = next(node for node in graph.node if tensor in node.output)
    maker.output[list(maker.output).index(tensor)] = f"{tensor}_float"
    for name, array in (("one_scale", np.float32(amax / 127)), ("no_zero", np.int8(0))):
        graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    place = list(graph.node).index(maker) + 1
    low_form, back = f"{tensor}_int8", tensor
    graph.node.insert(
        place,
        helper.make_node("QuantizeLinear", [f"{tensor}_float", "one_scale", "no_zero"], [low_form], "q"),
    )
    graph.node.insert(
        place + 1, helper.make_node("DequantizeLinear", [low_form, "one_scale", "no_zero"], [back], "dq")
    )
    return low


def images(samples: int = 24) -> np.ndarray:
    """Inputs of these networks."""
    return np.random.default_rng(1).normal(size=(samples, 3, 4, 4)).astype(np.float32)


def write(
    folder: Path,
    layout: str = "channels",
    *,
    broken: bool = False,
    weights: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Write model.onnx, data.npz and, where there is one, the quantized model int8.onnx.

    ``broken``: a model that quantizes the output, too, to one scale. ``weights``: a model with faults in
    weights, as ``qdq_by_hand.quantized`` has them.
    """
    proto = network(layout)
    onnx.save(proto, folder / "model.onnx")
    np.savez(folder / "data.npz", image=images())
    if broken:
        onnx.save(with_one_scale(quantized(proto, RANGES), 800.0), folder / "int8.onnx")
    if weights is not None:
        onnx.save(quantized(proto, RANGES, weights=weights), folder / "int8.onnx")


def is_quantized(said: Mapping[str, Any]) -> bool:
    """Whether ``write`` with these arguments writes a quantized model."""
    return bool(said.get("broken") or said.get("weights"))
