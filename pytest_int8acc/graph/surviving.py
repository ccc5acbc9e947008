"""Other forms of a Q/DQ model, which compute the same and which optimizers of ONNX Runtime leave as they are.

Each function changes one pattern that an optimizer rewrites. Plan, scales and codes stay the same. An exact
session gives the same results, but for rounding in the last bit of FP32. Only the main graph is changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.formats import FP16, INT8, UINT8
from pytest_int8acc.graph.index import attribute, refill
from pytest_int8acc.graph.model import Editor, Model
from pytest_int8acc.graph.opsets import lower_opset
from pytest_int8acc.graph.types import FLOAT, FLOAT16, value_types
from pytest_int8acc.tensors import Array

#: Operators whose third input is a bias.
_BIASED = ("Conv", "ConvTranspose", "Gemm")
#: Type of a bias to the greatest code that it may have as INT32. Codes are computed in that type, and sums of
#: products are added to them.
_GREATEST_BIAS_CODE: Mapping[np.dtype[Any], float] = {
    np.dtype(np.float16): FP16.highest,
    np.dtype(np.float32): 2**30,
}
#: From the next opset on, QuantizeLinear has the attribute ``output_dtype``.
_LAST_OPSET_WITHOUT_OUTPUT_TYPE = 20


def without_quantizers_behind(model: Model) -> Model:
    """The model in which layers whose float constants would be lost do not feed a QuantizeLinear.

    ``WeightBiasQuantization`` quantizes the float bias of such a Conv, ConvTranspose or Gemm with the product
    of the scales of input and weight, and float weights with one scale. In FP16 the codes of a bias overflow
    if the bias over this product exceeds 65504. In FP32 the same happens in channels of tiny weights. It does
    so only if the result goes to a QuantizeLinear, directly or through Relu and Clip. Here each result goes
    through a Max with minus infinity first.
    """
    editor, constants, producer = model.edit(), model.constants(), model.index.producer
    types = value_types(model)
    nodes: list[onnx.NodeProto] = []
    for node in editor.graph.node:
        nodes.append(node)
        dtype = _FLOATS.get(types.get(node.output[0], 0)) if node.output else None
        if dtype is None or not _loses_constants(node, constants, producer):
            continue
        result = node.output[0]
        node.output[0] = editor.unique(f"{result}_unbounded")
        least = editor.add_constant(f"{result}_least", np.asarray(-np.inf, dtype))
        nodes.append(
            helper.make_node("Max", [node.output[0], least], [result], editor.unique(f"{node.name}_Max"))
        )
    editor.set_nodes(nodes)
    return editor.done()


def without_fused_products(model: Model) -> Model:
    """The model without products that ``QDQSelectorActionTransformer`` fuses with other results.

    It makes one node of a Gemm whose bias is dequantized, and ignores the scale of the bias. Here an Add
    behind the Gemm has the bias. It also makes one node of a MatMul whose weights are dequantized in blocks,
    which rounds the activations to INT8. Here an Einsum computes the same.
    """
    editor, producer = model.edit(), model.index.producer
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
    return editor.done()


def without_output_types(model: Model) -> Model:
    """The model in the last opset in which a QuantizeLinear has no attribute for the type of its codes.

    ``QDQS8ToU8Transformer`` makes UINT8 of INT8 and leaves that attribute, also where
    ``QDQPropagationTransformer`` has set it. ONNX Runtime then refuses the model. A model that needs the
    newer opset stays as it is.
    """
    try:
        return lower_opset(model, _LAST_OPSET_WITHOUT_OUTPUT_TYPE)
    except ModelError:
        return model


def without_pairs_in_series(model: Model) -> Model:
    """The model in which each pair that feeds another pair directly is written as float operators.

    ``DoubleQDQPairsRemover`` makes one pair of two, with a scale that is neither of theirs.
    """
    nodes = {name: node for node in model.graph.node for name in node.output}
    first = set()
    for node in model.graph.node:
        before = nodes.get(node.input[0]) if node.op_type == "QuantizeLinear" else None
        while before is not None and before.op_type == "Identity":  # ONNX Runtime removes it first
            before = nodes.get(before.input[0])
        if before is not None and before.op_type == "DequantizeLinear":
            first.add(before.output[0])
    return _spelled(model, lambda dequantize: dequantize.output[0] in first)


def with_clamps_renamed(model: Model) -> Model:
    """The model in which a Relu or Clip in front of a QuantizeLinear is a Max or Min.

    ``ReluQuantRewrite`` and ``ClipQuantRewrite`` drop a Relu or Clip there, also where the codes do not clip.
    """
    editor, constants = model.edit(), model.constants()
    quantized = {node.input[0] for node in editor.graph.node if node.op_type == "QuantizeLinear"}
    types = value_types(model)
    nodes: list[onnx.NodeProto] = []
    for node in editor.graph.node:
        bounds = _bounds(node, constants) if quantized.intersection(node.output) else []
        dtype = _FLOATS.get(types.get(node.input[0], 0)) if node.input else None
        if not bounds or dtype is None:
            nodes.append(node)
            continue
        tensor = node.input[0]
        for number, (op_type, bound) in enumerate(bounds, 1):
            last = number == len(bounds)
            result = node.output[0] if last else editor.unique(f"{node.output[0]}_bounded")
            limit = editor.add_constant(f"{node.output[0]}_bound", np.asarray(bound, dtype))
            name = node.name if last else editor.unique(f"{node.name}_{op_type}")
            nodes.append(helper.make_node(op_type, [tensor, limit], [result], name))
            tensor = result
    editor.set_nodes(nodes)
    return editor.done()


_FLOATS: Mapping[int, type[np.floating]] = {FLOAT: np.float32, FLOAT16: np.float16}


def _is_dequantized(name: str, producer: Mapping[str, onnx.NodeProto]) -> bool:
    return name in producer and producer[name].op_type == "DequantizeLinear"


def _is_dequantized_in_blocks(name: str, producer: Mapping[str, onnx.NodeProto]) -> bool:
    return _is_dequantized(name, producer) and bool(attribute(producer[name], "block_size", 0))


def _loses_constants(
    node: onnx.NodeProto, constants: Mapping[str, Array], producer: Mapping[str, onnx.NodeProto]
) -> bool:
    """Whether ``WeightBiasQuantization`` quantizes float weights of a layer, or a bias beyond its codes.

    Args:
        node: A layer with its bias; or an Add behind a MatMul, of which ``MatMulAddFusion`` makes a Gemm.
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


def _bounds(node: onnx.NodeProto, constants: Mapping[str, Array]) -> list[tuple[str, Array]]:
    """Max and Min with their bounds, which compute the same as a Relu or Clip; none for other nodes."""
    if node.op_type == "Relu":
        return [("Max", np.zeros(()))]
    if node.op_type != "Clip":
        return []
    found = []
    for op_type, name in zip(("Max", "Min"), node.input[1:], strict=False):
        if name and name not in constants:
            return []
        if name:
            found.append((op_type, constants[name]))
    return found


def _spelled(model: Model, chosen: Callable[[onnx.NodeProto], bool]) -> Model:
    """The model in which chosen pairs on activations are Div, Round, Clip and Mul in FP32.

    A pair is a QuantizeLinear and a DequantizeLinear with constant scale and zero point, per tensor, in 4 or
    8 bits. ``chosen`` gets the DequantizeLinear.
    """
    editor, constants, types = model.edit(), model.constants(), value_types(model)
    quantizers = {n.output[0]: n for n in editor.graph.node if n.op_type == "QuantizeLinear"}
    nodes: list[onnx.NodeProto] = []
    for node in editor.graph.node:
        quantizer = quantizers.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if quantizer is None or not chosen(node) or not _is_plain(quantizer, node, constants):
            nodes.append(node)
            continue
        scale, zero = constants[node.input[1]], constants[node.input[2]]
        source = types.get(quantizer.input[0], FLOAT)
        nodes += _float_pair(editor, quantizer.input[0], node.output[0], scale, zero, source)
    read = {name for node in nodes for name in node.input} | {o.name for o in editor.graph.output}
    refill(
        editor.graph.node,
        [n for n in nodes if n.op_type != "QuantizeLinear" or not read.isdisjoint(n.output)],
    )
    return editor.done()


def _is_plain(quantizer: onnx.NodeProto, dequantizer: onnx.NodeProto, constants: Mapping[str, Array]) -> bool:
    if len(quantizer.input) < 3 or list(quantizer.input[1:]) != list(dequantizer.input[1:]):
        return False
    scale, zero = (constants.get(name) for name in dequantizer.input[1:])
    if scale is None or zero is None:
        return False
    return scale.size == 1 and str(zero.dtype) in _CODES


#: Type of a zero point, as NumPy or ml_dtypes names it, to its least and its greatest code.
_CODES: Mapping[str, tuple[float, float]] = {
    **{str(known.dtype): (known.lowest, known.highest) for known in (INT8, UINT8)},
    "int4": (-8, 7),
    "uint4": (0, 15),
}


def _float_pair(
    editor: Editor, tensor: str, result: str, scale: Array, zero: Array, source: int
) -> Iterator[onnx.NodeProto]:
    low, high = _CODES[str(zero.dtype)]
    offset = float(zero.astype(np.float32).reshape(()))
    step = editor.add_constant(f"{result}_step", scale.astype(np.float32).reshape(()))
    bounds = [
        editor.add_constant(f"{result}_bound", np.array(bound - offset, np.float32)) for bound in (low, high)
    ]

    def node(op_type: str, *inputs: str, to: str = "") -> onnx.NodeProto:
        output = to or editor.unique(f"{result}_{op_type}")
        return helper.make_node(op_type, inputs, [output], editor.unique(f"{output}_node"))

    if source != FLOAT:
        cast = node("Cast", tensor, to=editor.unique(f"{result}_wide"))
        cast.attribute.append(helper.make_attribute("to", FLOAT))
        yield cast
        tensor = cast.output[0]
    divided = node("Div", tensor, step)
    rounded = node("Round", divided.output[0])
    clipped = node("Clip", rounded.output[0], *bounds)
    half = scale.dtype == np.float16
    scaled = node("Mul", clipped.output[0], step, to="" if half else result)
    yield from (divided, rounded, clipped, scaled)
    if half:
        cast = node("Cast", scaled.output[0], to=result)
        cast.attribute.append(helper.make_attribute("to", FLOAT16))
        yield cast


#: Optimizer to the change that makes a model survive it.
_SURVIVORS: Mapping[str, Callable[[Model], Model]] = {
    "WeightBiasQuantization": without_quantizers_behind,
    "MatMulAddFusion": without_quantizers_behind,
    "DoubleQDQPairsRemover": without_pairs_in_series,
    "ReluQuantRewrite": with_clamps_renamed,
    "ClipQuantRewrite": with_clamps_renamed,
    "QDQSelectorActionTransformer": without_fused_products,
    "QDQS8ToU8Transformer": without_output_types,
}


def surviving(model: Model, optimizers: Collection[str]) -> Model:
    """The model in a form that the named optimizers of ONNX Runtime leave as it is.

    Optimizers for which no such form is known are ignored.
    """
    changes = dict.fromkeys(_SURVIVORS[name] for name in optimizers if name in _SURVIVORS)
    for change in changes:
        model = change(model)
    return model
