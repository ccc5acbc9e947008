"""Networks whose output is joined of parts: boxes in pixels and scores from 0 to 1, in several layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from onnx import helper, numpy_helper, parser
from qdq_by_hand import quantized

#: Of three channels, in 4 x 4 places: a convolution, and heads that read what it gives, [N, 8, 16].
HEAD = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 3, 4, 4] image) => ({outputs})
<int64[3] flat = {{0, 8, 16}}, int64[4] square = {{0, 7, 4, 4}},
 int64[3] joined_flat = {{0, 7, 16}}, int64[3] sizes = {{2, 2, 3}}, int64[1] two = {{2}},
 int64[1] nine = {{9}}, int64[1] one = {{1}}, float hundred = {{100.0}}, float thousand = {{10000.0}},
 float ten = {{10.0}}, int64[2] one_axis = {{0, 112}}>
{{
    mixed = Conv<kernel_shape = [1, 1]>(image, w)
    active = Relu(mixed)
    rows = Reshape(active, flat)
    box_head = Conv(rows, box_weight, box_bias)
    boxes = Mul(box_head, hundred)
    class_head = Conv(rows, class_weight, class_bias)
    scores = Sigmoid(class_head)
    {body}
}}
"""
#: Ranges of what the convolutions in it read.
RANGES = {"image": 4.5, "rows": 12.0}
#: Layout to how it joins, and the output's shape of a sample.
LAYOUTS = {
    "channels": ("output0 = Concat<axis = 1>(boxes, scores)", "7, 16"),
    "anchors": (
        "joined = Concat<axis = 1>(boxes, scores)\n output0 = Transpose<perm = [0, 2, 1]>(joined)",
        "16, 7",
    ),
    "levels": (
        """all = Concat<axis = 1>(box_head, class_head)
        turned = Transpose<perm = [0, 2, 1]>(all)
        probable = Sigmoid(turned)
        xy, wh, confidence = Split<axis = 2>(probable, sizes)
        centre = Mul(xy, hundred)
        size = Mul(wh, hundred)
        near = Concat<axis = 2>(centre, size, confidence)
        far = Concat<axis = 2>(size, centre, confidence)
        output0 = Concat<axis = 1>(near, far)""",
        "32, 7",
    ),
    "reshaped": (
        "joined = Concat<axis = 1>(boxes, scores)\n maps = Reshape(joined, square)\n"
        "output0 = Reshape(maps, joined_flat)",
        "7, 16",
    ),
    "sliced": (
        "joined = Concat<axis = 1>(boxes, scores)\n output0 = Slice(joined, two, nine, one)",
        "5, 16",
    ),
    "scaled": (
        "joined = Concat<axis = 1>(boxes, scores)\n output0 = Mul(joined, ten)",
        "7, 16",
    ),
    "masks": (
        "masks = Tanh(box_head)\n output0 = Concat<axis = 1>(boxes, scores, masks)",
        "11, 16",
    ),
    "depth": (
        "depth = Mul(box_head, thousand)\n normals = Tanh(box_head)\n"
        "output0 = Concat<axis = 1>(depth, normals)",
        "8, 16",
    ),
    "alike": ("other = Mul(box_head, ten)\n output0 = Concat<axis = 1>(boxes, other)", "8, 16"),
    "all_scores": (
        "joined = Concat<axis = 1>(box_head, class_head)\n output0 = Sigmoid(joined)",
        "7, 16",
    ),
    "behind_conv": ("joined = Concat<axis = 1>(boxes, scores)\n output0 = Conv(joined, kept)", "7, 16"),
    "behind_matmul": (
        """joined = Concat<axis = 1>(boxes, scores)
        turned = Transpose<perm = [0, 2, 1]>(joined)
        output0 = MatMul(turned, kept_rows)""",
        "16, 7",
    ),
    "flat": (
        "rows_first = Transpose<perm = [0, 2, 1]>(boxes)\n joined = Concat<axis = 1>(boxes, scores)\n"
        "output0 = Reshape(joined, one_axis)",
        "112",
    ),
    "idle": ("joined = Concat<axis = 1>(boxes, scores)\n output0 = Conv(joined, idle)", "7, 16"),
    "samples": ("output0 = Concat<axis = 0>(scores, scores)", "3, 16"),
}


def network(layout: str) -> onnx.ModelProto:
    """The float model of a layout."""
    body, shape = LAYOUTS[layout]
    rows = "M" if layout == "samples" else "N"
    proto = parser.parse_model(HEAD.format(body=body, outputs=f"float[{rows}, {shape}] output0"))
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


def write_project(
    folder: Path,
    layout: str = "channels",
    *,
    broken: bool = False,
    weights: Mapping[str, Mapping[str, Any]] | None = None,
    **said: object,
) -> Path:
    """A spec of one of the layouts.

    ``broken``: of a model that quantizes the output, too, to one scale. ``weights``: of a model with faults
    in weights, as ``qdq_by_hand.quantized`` has them.
    """
    proto = network(layout)
    onnx.save(proto, folder / f"{layout}.onnx")
    np.savez(folder / "images.npz", image=images())
    spec: dict[str, object] = {"model": f"{layout}.onnx", "inputs": "images.npz", "baseline": "fp32"}
    spec["int8"] = {"calibrate": {"method": "minmax"}}
    if broken:
        onnx.save(with_one_scale(quantized(proto, RANGES), 800.0), folder / f"{layout}_int8.onnx")
        spec["int8"] = {"model": f"{layout}_int8.onnx"}
    if weights is not None:
        onnx.save(quantized(proto, RANGES, weights=weights), folder / f"{layout}_int8.onnx")
        spec["int8"] = {"model": f"{layout}_int8.onnx"}
    path = folder / f"{layout}.int8acc.yaml"
    path.write_text(yaml.safe_dump({**spec, **said}, sort_keys=False))
    return path


def names(entry: dict[str, object]) -> Sequence[str]:
    """What a case of a report.json judged."""
    outputs = entry["outputs"]
    assert isinstance(outputs, list)
    return [output["name"] for output in outputs]
