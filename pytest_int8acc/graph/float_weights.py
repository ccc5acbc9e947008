"""Quantized constants as float ones behind a QuantizeLinear, for engines that take no INT8 initializer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper

from pytest_int8acc.graph.formats import INT8, UINT8
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Quantization
from pytest_int8acc.tensors import Array

_BYTES = (INT8.dtype, UINT8.dtype)


def float_weights(model: Model) -> Model:
    """``model`` with every DequantizeLinear of a constant behind a QuantizeLinear of the same scale.

    QuantizeLinear gives the same integers again, so nothing is computed otherwise. Only INT8 and UINT8
    constants with FP32 scales are spelled out so.
    """
    constants, editor = model.constants(), model.edit()
    made: dict[tuple[str, ...], str] = {}
    nodes: list[onnx.NodeProto] = []
    for node in editor.graph.node:
        found = _quantization(node, constants)
        if found is not None:
            key = (*node.input, str(found.axis))
            if key not in made:
                wide = editor.add_constant(f"{node.input[0]}_float", found.dequantize())
                made[key] = editor.unique(f"{node.input[0]}_quantized")
                name = editor.unique(f"{node.name}_QuantizeLinear")
                quantize = helper.make_node("QuantizeLinear", [wide, *node.input[1:]], [made[key]], name)
                quantize.attribute.extend(node.attribute)
                nodes.append(quantize)
            node.input[0] = made[key]
        nodes.append(node)
    editor.set_nodes(nodes)
    return editor.done() if made else model


def _quantization(node: onnx.NodeProto, constants: Mapping[str, Array]) -> Quantization | None:
    """What a DequantizeLinear makes a constant from; None where it is no such node."""
    if node.op_type != "DequantizeLinear" or len(node.input) < 3 or not constants.keys() >= set(node.input):
        return None
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    codes, scale, zero_point = (constants[name] for name in node.input)
    if codes.dtype not in _BYTES or scale.dtype != np.float32 or set(attributes) - {"axis"}:
        return None
    return Quantization(scale, zero_point, attributes.get("axis", 1) if scale.ndim else None, codes)
