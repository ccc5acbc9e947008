"""Ranks behind a computed Reshape: arithmetic on constants is carried out, which ONNX's inference leaves.

PyTorch's exports of unflatten, chunk and scaled_dot_product_attention compute shapes by Mod and Reshape.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import numpy_helper

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.index import refill
from pytest_int8acc.graph.model import Model, is_apart
from pytest_int8acc.tensors import Array

#: What is carried out, on int64 alone; ONNX's Div rounds toward 0.
_ARITHMETIC: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": lambda a, b: np.trunc(a / b).astype(np.int64),
    "Mod": np.mod,
    "Reshape": np.reshape,
}
#: Shapes have few elements.
_SMALL = 64


def deduced_ranks(model: Model) -> dict[str, int]:
    """Tensor of the main graph to its rank, as far as that can be told."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    known = {
        t.name: numpy_helper.to_array(t)
        for t in proto.graph.initializer
        if t.data_type == onnx.TensorProto.INT64 and not is_apart(t)
    }
    left = []
    for node in proto.graph.node:
        found = _result(node, known)
        if found is None:
            left.append(node)
        else:
            known[node.output[0]] = found
            proto.graph.initializer.append(numpy_helper.from_array(found, node.output[0]))
    refill(proto.graph.node, left)
    try:
        graph = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        raise ModelError(f"{model.name}: not a valid ONNX model: {error}") from error
    values = (*graph.value_info, *graph.input, *graph.output)
    return {v.name: len(v.type.tensor_type.shape.dim) for v in values if v.type.tensor_type.HasField("shape")}


def _result(node: onnx.NodeProto, known: dict[str, Array]) -> Array | None:
    """What a node makes of small constants; None where it does not."""
    carried = _ARITHMETIC.get(node.op_type)
    if carried is None or node.attribute or not all(name in known for name in node.input):
        return None
    first, second = (known[name] for name in node.input)
    if max(first.size, second.size) > _SMALL or (node.op_type in ("Div", "Mod") and not second.all()):
        return None
    return np.asarray(carried(first, second), np.int64)
