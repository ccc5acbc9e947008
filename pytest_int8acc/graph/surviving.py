"""Rewrites Q/DQ models so that optimizers of ONNX Runtime do not change their results.

An optimizer would rewrite certain patterns of nodes. Each function breaks one pattern, mostly by a Max with
minus infinity, which changes no value and which no optimizer matches. Precisions, scales and quantized values
stay the same. In a session that does not fuse Q/DQ, results change only by rounding in the last bit of FP32.
Only the main graph is changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.formats import FP16
from pytest_int8acc.graph.index import attribute
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.opsets import lower_opset
from pytest_int8acc.graph.types import FLOAT, FLOAT16, value_types
from pytest_int8acc.tensors import Array

#: Operators whose third input is a bias.
_BIASED = ("Conv", "ConvTranspose", "Gemm")
#: The greatest INT32 code that a bias may have, by the float type of the bias. The optimizer
#: ``WeightBiasQuantization`` computes codes in this float type. Sums of products are added to a code, so a
#: code must be well below the greatest INT32 number.
_GREATEST_BIAS_CODE: Mapping[np.dtype[Any], float] = {
    np.dtype(np.float16): FP16.highest,
    np.dtype(np.float32): 2**30,
}
#: The last opset in which QuantizeLinear has no attribute ``output_dtype``.
_LAST_OPSET_WITHOUT_OUTPUT_TYPE = 20


def without_quantizers_behind(model: Model) -> Model:
    """Adds a Max after each layer whose constants the optimizer ``WeightBiasQuantization`` would harm.

    This optimizer works on a Conv, ConvTranspose or Gemm whose result goes to a QuantizeLinear, directly or
    through Relu and Clip. It quantizes float weights with one scale, and a float bias with the product of the
    scales of input and weight. The code of an FP16 bias overflows if bias / product exceeds 65504. The code
    of an FP32 bias overflows in channels of tiny weights.
    """
    constants, producer = model.constants(), model.index.producer
    return _with_max_behind(model, lambda node: _loses_constants(node, constants, producer))


def without_wrong_fusions(model: Model) -> Model:
    """Rewrites nodes that the optimizer ``QDQSelectorActionTransformer`` fuses with Q/DQ wrongly.

    - A Gemm is fused with the DequantizeLinear of its bias, whose scale is ignored. So the bias moves to an
      Add after the Gemm.
    - A MatMul is fused with weights that are dequantized in blocks, and the activations are rounded to INT8.
      So an Einsum replaces the MatMul.
    - A Concat in FP16 between Q/DQ pairs is fused to a QLinearConcat, which refuses scales in FP16. So a Max
      with minus infinity follows the Concat.
    """
    editor, producer = model.edit(), model.index.producer
    quantized = {node.input[0] for node in editor.graph.node if node.op_type == "QuantizeLinear"}
    types = value_types(model)
    halves = {name for name in quantized if types.get(name) == FLOAT16}
    nodes: list[onnx.NodeProto] = []
    for node in editor.graph.node:
        nodes.append(node)
        if node.op_type == "Gemm" and len(node.input) > 2 and _is_dequantized(node.input[2], producer):
            if attribute(node, "beta", 1.0) != 1.0:
                continue
            result, bias = node.output[0], node.input[2]
            node.output[0] = editor.unique(f"{result}_without_bias")
            del node.input[2:]
            name = editor.unique(f"{node.name}_Add")
            nodes.append(helper.make_node("Add", [node.output[0], bias], [result], name))
        elif node.op_type == "MatMul" and _is_dequantized_in_blocks(node.input[1], producer):
            node.op_type = "Einsum"
            node.attribute.append(helper.make_attribute("equation", "...i,ij->...j"))
    editor.set_nodes(nodes)
    return _with_max_behind(editor.done(), lambda node: node.op_type == "Concat" and node.output[0] in halves)


def _with_max_behind(model: Model, chosen: Callable[[onnx.NodeProto], bool]) -> Model:
    """Adds a Max with minus infinity after each chosen node with an FP32 or FP16 result.

    The Max changes no value. No optimizer matches a Max, so the node is not fused with a QuantizeLinear
    after it. The Max gets the name of the node's output, and this output gets a new name.
    """
    editor, types = model.edit(), value_types(model)
    nodes: list[onnx.NodeProto] = []
    for node in editor.graph.node:
        nodes.append(node)
        dtype = _FLOATS.get(types.get(node.output[0], 0)) if node.output else None
        if dtype is not None and chosen(node):
            result = node.output[0]
            node.output[0] = editor.unique(f"{result}_unbounded")
            least = editor.add_constant(f"{result}_least", np.asarray(-np.inf, dtype))
            name = editor.unique(f"{node.name}_Max")
            nodes.append(helper.make_node("Max", [node.output[0], least], [result], name))
    editor.set_nodes(nodes)
    return editor.done()


def without_output_types(model: Model) -> Model:
    """Lowers the model to opset 20, the last one in which QuantizeLinear has no attribute ``output_dtype``.

    The optimizer ``QDQPropagationTransformer`` may set this attribute. ``QDQS8ToU8Transformer`` then changes
    INT8 to UINT8, but does not change the attribute, so that ONNX Runtime refuses the model. A model that
    needs the newer opset is returned unchanged.
    """
    try:
        return lower_opset(model, _LAST_OPSET_WITHOUT_OUTPUT_TYPE)
    except ModelError:
        return model


def without_pairs_in_series(model: Model) -> Model:
    """Adds a Max between two Q/DQ pairs in series.

    The optimizer ``DoubleQDQPairsRemover`` merges two such pairs into one pair with another scale.
    """
    producer = model.index.producer
    first = set()
    for node in model.graph.node:
        before = producer.get(node.input[0]) if node.op_type == "QuantizeLinear" else None
        while before is not None and before.op_type == "Identity":  # ONNX Runtime removes an Identity first
            before = producer.get(before.input[0])
        if before is not None and before.op_type == "DequantizeLinear" and before.input[0] in producer:
            first.add(before.output[0])
    return _with_max_behind(model, lambda node: node.output[0] in first)


def without_clamps_before_quantizers(model: Model) -> Model:
    """Adds a Max between a Relu or Clip and a QuantizeLinear.

    The optimizers ``ReluQuantRewrite`` and ``ClipQuantRewrite`` drop such a Relu or Clip, even if the
    quantization does not clip at the same bounds.
    """
    quantized = {node.input[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    return _with_max_behind(
        model, lambda node: node.op_type in ("Relu", "Clip") and node.output[0] in quantized
    )


_FLOATS: Mapping[int, type[np.floating]] = {FLOAT: np.float32, FLOAT16: np.float16}


def _is_dequantized(name: str, producer: Mapping[str, onnx.NodeProto]) -> bool:
    return name in producer and producer[name].op_type == "DequantizeLinear"


def _is_dequantized_in_blocks(name: str, producer: Mapping[str, onnx.NodeProto]) -> bool:
    return _is_dequantized(name, producer) and bool(attribute(producer[name], "block_size", 0))


def _loses_constants(
    node: onnx.NodeProto, constants: Mapping[str, Array], producer: Mapping[str, onnx.NodeProto]
) -> bool:
    """Whether ``WeightBiasQuantization`` would quantize a layer's float weights, or make its bias overflow.

    Args:
        node: A layer with its bias, or an Add after a MatMul, because the optimizer ``MatMulAddFusion``
            turns a MatMul and such an Add into a Gemm.
        constants: The constants of the model.
        producer: Tensor to the node that computes it.
    """
    if node.op_type == "Add":
        makers = [producer[name] for name in node.input if name in producer]
        layer = next((maker for maker in makers if maker.op_type == "MatMul"), None)
        biases = [constants[name] for name in node.input if name in constants]
    else:
        layer = node if node.op_type in _BIASED else None
        biases = [constants[name] for name in node.input[2:] if name in constants]
    if layer is None or not _is_dequantized(layer.input[0], producer):
        return False
    if not _is_dequantized(layer.input[1], producer):
        return layer.input[1] in constants
    scales = [constants.get(producer[name].input[1]) for name in layer.input[:2]]
    if not biases or scales[0] is None or scales[1] is None:
        return False
    with np.errstate(all="ignore"):
        codes = np.abs(biases[0] / (scales[0] * scales[1]))
    return not bool((codes <= _GREATEST_BIAS_CODE.get(biases[0].dtype, math.inf)).all())


#: For each optimizer of ONNX Runtime, the function that rewrites a model so that the optimizer does not
#: change the model's results.
_SURVIVORS: Mapping[str, Callable[[Model], Model]] = {
    "WeightBiasQuantization": without_quantizers_behind,
    "MatMulAddFusion": without_quantizers_behind,
    "DoubleQDQPairsRemover": without_pairs_in_series,
    "ReluQuantRewrite": without_clamps_before_quantizers,
    "ClipQuantRewrite": without_clamps_before_quantizers,
    "QDQSelectorActionTransformer": without_wrong_fusions,
    "QDQS8ToU8Transformer": without_output_types,
}


def surviving(model: Model, optimizers: Collection[str]) -> Model:
    """An equivalent model whose results the named optimizers of ONNX Runtime do not change.

    Optimizers for which no such rewrite is known are ignored.
    """
    changes = dict.fromkeys(_SURVIVORS[name] for name in optimizers if name in _SURVIVORS)
    for change in changes:
        model = change(model)
    return model
