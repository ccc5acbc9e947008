"""Other forms of a Q/DQ model, which compute the same and which optimizers of ONNX Runtime leave as they are.

Each function changes one pattern that an optimizer rewrites. Plan, scales and codes stay the same. An exact
session gives the same results, but for rounding in the last bit of FP32. Only the main graph is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np
import onnx
from onnx import helper

from pytest_int8acc.graph.formats import INT8, UINT8
from pytest_int8acc.graph.index import attribute, refill
from pytest_int8acc.graph.model import Editor, Model
from pytest_int8acc.graph.types import FLOAT, FLOAT16, value_types
from pytest_int8acc.tensors import Array

#: Operators whose third input is a bias.
_BIASED = ("Conv", "ConvTranspose", "Gemm")
#: Float type to the bits of its significand, and the exponent of the least power of two that is a scale.
_SIGNIFICANDS = {np.dtype(np.float16): (11, -24), np.dtype(np.float32): (24, -126)}
#: The lowest opset in which DequantizeLinear takes scales in FP16.
_LOWEST_OPSET_OF_FP16 = 19


def with_biases_as_codes(model: Model) -> Model:
    """The model whose float biases next to quantized inputs are INT32 codes with exact scales.

    ``WeightBiasQuantization`` quantizes float biases with the product of the scales of input and weight. In
    FP16 the codes overflow if the bias over this product exceeds 65504. In FP32 the same happens in channels
    of tiny weights. A bias that is dequantized already is left alone. Each scale here is a power of two, so
    that codes times scale are the bias bit for bit.

    A Gemm in FP32 gets an Add in place of its bias, because ONNX Runtime fuses a Gemm with codes as bias, and
    ignores their scale.
    """
    model = _with_biases_added(model)
    editor, constants, producer = model.edit(), model.constants(), model.index.producer
    made: dict[str, str] = {}
    nodes: list[onnx.NodeProto] = []
    for node in editor.graph.node:
        for index in _bias_inputs(node, producer):
            name = node.input[index]
            bias = constants.get(name)
            if bias is None or bias.ndim != 1 or bias.dtype not in _SIGNIFICANDS:
                continue
            if bias.dtype == np.float16 and model.opset < _LOWEST_OPSET_OF_FP16:
                continue
            if name not in made:
                codes, scale = _exact_codes(bias)
                inputs = [editor.add_constant(f"{name}_codes", codes)]
                inputs.append(editor.add_constant(f"{name}_code_scale", scale))
                made[name] = editor.unique(f"{name}_dequantized")
                nodes.append(
                    helper.make_node(
                        "DequantizeLinear", inputs, [made[name]], editor.unique(f"{name}_Dequantize"), axis=0
                    )
                )
            node.input[index] = made[name]
        nodes.append(node)
    editor.set_nodes(nodes)
    return editor.done()


def _with_biases_added(model: Model) -> Model:
    """The model in which each Gemm in FP32 with quantized inputs and a constant bias has an Add behind it."""
    editor, constants, producer = model.edit(), model.constants(), model.index.producer
    nodes: list[onnx.NodeProto] = []
    for node in editor.graph.node:
        nodes.append(node)
        bias = constants.get(node.input[2]) if 2 in _bias_inputs(node, producer) else None
        if node.op_type != "Gemm" or bias is None or bias.dtype != np.float32:
            continue
        result = node.output[0]
        node.output[0] = editor.unique(f"{result}_without_bias")
        term = editor.add_constant(f"{result}_bias", bias * np.float32(attribute(node, "beta", 1.0)))
        del node.input[2:]
        name = editor.unique(f"{node.name}_Add")
        nodes.append(helper.make_node("Add", [node.output[0], term], [result], name))
    editor.set_nodes(nodes)
    return editor.done()


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


def _bias_inputs(node: onnx.NodeProto, producer: Mapping[str, onnx.NodeProto]) -> Iterator[int]:
    """The positions of the node's inputs that ``WeightBiasQuantization`` takes for a bias."""

    def from_qdq(name: str) -> bool:
        return name in producer and producer[name].op_type == "DequantizeLinear"

    if node.op_type in _BIASED and len(node.input) > 2 and from_qdq(node.input[0]):
        yield 2
    elif node.op_type == "Add":  # MatMulAddFusion makes a Gemm of MatMul and Add
        for place, other in ((0, 1), (1, 0)):
            matmul = producer.get(node.input[other])
            if matmul is not None and matmul.op_type == "MatMul" and from_qdq(matmul.input[0]):
                yield place


def _exact_codes(bias: Array) -> tuple[Array, Array]:
    """INT32 codes and a power of two for each element, [channels], whose products are ``bias``."""
    bits, least = _SIGNIFICANDS[bias.dtype]
    _, exponents = np.frexp(bias.astype(np.float64))
    exponents = np.where(bias == 0, 0, np.maximum(exponents - bits, least))
    scale = np.ldexp(1.0, exponents)
    return np.rint(bias.astype(np.float64) / scale).astype(np.int32), scale.astype(bias.dtype)


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
    "WeightBiasQuantization": with_biases_as_codes,
    "MatMulAddFusion": with_biases_as_codes,
    "DoubleQDQPairsRemover": without_pairs_in_series,
    "ReluQuantRewrite": with_clamps_renamed,
    "ClipQuantRewrite": with_clamps_renamed,
}


def surviving(model: Model, optimizers: Collection[str]) -> Model:
    """The model in a form that the named optimizers of ONNX Runtime leave as it is.

    Optimizers for which no such form is known are ignored.
    """
    changes = dict.fromkeys(_SURVIVORS[name] for name in optimizers if name in _SURVIVORS)
    for change in changes:
        model = change(model)
    return model
