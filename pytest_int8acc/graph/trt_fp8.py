"""TensorRT's own FP8 operators as the standard ones that they mean.

ModelOpt and Transformer Engine export them from PyTorch, in opsets that have no FP8 yet, their codes declared
UINT8.
"""

from __future__ import annotations

import numpy as np
from onnx import helper

from pytest_int8acc.graph.formats import FP8
from pytest_int8acc.graph.index import all_graphs, all_nodes, refill
from pytest_int8acc.graph.model import Model

#: Each takes a tensor and its scale.
STANDARD = {"TRT_FP8QuantizeLinear": "QuantizeLinear", "TRT_FP8DequantizeLinear": "DequantizeLinear"}
_DOMAIN = "trt"


def holds_trt_fp8(model: Model) -> bool:
    """Whether TensorRT's own FP8 operators are in the model, or in graphs inside its nodes."""
    return any(node.op_type in STANDARD for node in all_nodes(model.graph))


def standard_fp8(model: Model) -> Model:
    """``model``, of opset 19 or later, with QuantizeLinear and DequantizeLinear in their place."""
    editor, constants = model.edit(), model.constants()
    for node in all_nodes(editor.graph):
        if node.op_type in STANDARD:
            node.op_type, node.domain = STANDARD[node.op_type], ""
            if len(node.input) == 2:
                scale = constants.get(node.input[1], np.zeros(()))
                node.input.append(editor.add_constant(f"{node.name}_zero_point", FP8.zeros(scale)))
    for graph in all_graphs(editor.graph):  # inner value types, as the main graph's, tell of codes in UINT8
        del graph.value_info[:]
    if not any(node.domain == _DOMAIN for node in all_nodes(editor.graph)):
        imports = editor.proto.opset_import
        refill(imports, [helper.make_opsetid(o.domain, o.version) for o in imports if o.domain != _DOMAIN])
    return editor.done()
