"""The statistics of BatchNormalization worked into its scale and bias, as TensorRT's parser has them."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx
from onnx import helper

from pytest_int8acc.graph.index import attribute, refill
from pytest_int8acc.graph.model import Editor, Model
from pytest_int8acc.tensors import Array


def combine_norms(model: Model, keep: Collection[str]) -> Model:
    """``model`` with the statistics of each BatchNormalization worked into its scale and bias.

    Mean and variance become 0 and 1, epsilon 0. TensorRT's parser (onnx-tensorrt) combines them in FP32,
    too, so a variance that FP16 cannot hold does no harm. Left as they are: nodes named in ``keep``, in
    training mode, or with parameters that are no FP32 constants.
    """
    constants, editor, found = model.constants(), model.edit(), False
    for node in editor.graph.node:
        arrays = [constants.get(name) for name in node.input[1:]]
        plain = node.op_type == "BatchNormalization" and node.domain == "" and node.name not in keep
        if plain and all(array is not None and array.dtype == np.float32 for array in arrays):
            found |= _combine(node, [array for array in arrays if array is not None], editor)
    return editor.done() if found else model


def _combine(node: onnx.NodeProto, arrays: list[Array], editor: Editor) -> bool:
    if attribute(node, "training_mode", 0):
        return False
    scale, bias, mean, variance = (array.astype(np.float64) for array in arrays)
    factor = scale / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
    combined = {"scale": factor, "bias": bias - mean * factor, "mean": 0 * mean, "variance": 0 * mean + 1}
    for i, (part, array) in enumerate(combined.items(), 1):
        node.input[i] = editor.add_constant(f"{node.name}/{part}", array.astype(np.float32))
    kept = [a for a in node.attribute if a.name != "epsilon"]
    refill(node.attribute, [*kept, helper.make_attribute("epsilon", 0.0)])
    return True
