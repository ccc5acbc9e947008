"""Checks QuantizeLinear and DequantizeLinear nodes, and the places of Q/DQ pairs in the graph."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto

from pytest_int8acc.graph.formats import FP16, INT8, UINT8, along
from pytest_int8acc.graph.half import COARSE
from pytest_int8acc.graph.index import all_nodes, attribute
from pytest_int8acc.graph.layout import (
    WEIGHTED,
    fusable_convolution,
    moved_axis,
    moves_values,
    output_axis,
    unfit_groups,
)
from pytest_int8acc.graph.lint.rules import find
from pytest_int8acc.graph.lint.view import DEQUANTIZE, QUANTIZE, Half, View
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.qdq import folded
from pytest_int8acc.graph.types import Signature, signature
from pytest_int8acc.results import Finding
from pytest_int8acc.tensors import Array

#: Prefixes of the types of operators that compute on quantized values, in ONNX and in ONNX Runtime's domain.
_OPERATORS = ("QLinear", "QGemm", "QAttention", "ConvInteger", "MatMulInteger")
#: Prefix of the types of operators that compute their scale at run time.
_DYNAMIC = "DynamicQuantize"
#: The names of floating-point element types in findings.
_FLOATS: dict[int, str] = {
    TensorProto.FLOAT: "FP32",
    TensorProto.FLOAT16: "FP16",
    TensorProto.BFLOAT16: "BF16",
    TensorProto.DOUBLE: "FP64",
}
#: Rounding to FP16 can change a number below this magnitude by a relative error of more than ``COARSE``.
_COARSE_BELOW = FP16.smallest / 2 / COARSE


def check_operators(view: View) -> Iterator[Finding]:
    """Findings about quantized operators and dynamic quantization, also inside If, Loop and Scan."""
    for node in all_nodes(view.model.graph):
        name = node.name or f"node_of_{node.output[0]}"
        if node.op_type.startswith(_DYNAMIC):
            yield find("dynamic-quantization", name, f"{node.op_type} measures its scale while running")
        elif node.op_type.startswith(_OPERATORS):
            yield find("operator-format", name, f"{node.op_type} is a quantized operator")


def check_half(view: View, half: Half) -> Iterator[Finding]:
    """Findings about one QuantizeLinear or DequantizeLinear node.

    If a DequantizeLinear has the same parameters as the QuantizeLinear before it, only the QuantizeLinear is
    reported.
    """
    before = view.quantizer(half) if half.node.op_type == DEQUANTIZE else None
    if before is None or not _same(before, half):
        yield from _check_type(half)
        yield from _check_scale(half)
        yield from _check_opset(view, half)
        if view.shapes.get(half.source) == ():
            yield find("scalar-qdq", half.node.name, f"'{half.source}' is a scalar")
        for index, what in ((1, "scale"), (2, "zero point")):
            name = half.node.input[index] if len(half.node.input) > index else ""
            maker = view.index.producer.get(name)
            if name and name not in view.rooted and (maker is None or not maker.op_type.startswith(_DYNAMIC)):
                yield find("runtime-scale", half.node.name, f"its {what} '{name}' is computed at run time")
    if before is not None and not _same(before, half):
        yield from _unequal(before, half)


def check_numbers(
    subject: str, scale: Array, reader: str = "", *, is_bias: bool = False
) -> Iterator[Finding]:
    """Findings about the numbers of a scale, in a Q/DQ model or from calibration.

    Args:
        subject: The node or the tensor that has the scale.
        scale: The scale, of any shape and float dtype.
        reader: The end of the text about numbers that cannot be a scale, such as ``, read by 'conv1'``.
        is_bias: Whether ``scale`` is the scale of an INT32 bias. Small scales are usual for biases.
    """
    values = np.asarray(scale, np.float64).ravel()
    is_usable = np.isfinite(values) & (values > 0)
    if not is_usable.all():
        first, count = float(values[~is_usable][0]), np.count_nonzero(~is_usable)
        text = f"scale is {first:g}" if values.size == 1 else f"{count} of {values.size} scales are {first:g}"
        yield find("nonpositive-scale", subject, text + reader)
    if not is_bias:
        yield from _fp16_findings(subject, scale, values[is_usable])


def _fp16_findings(subject: str, scale: Array, values: Array) -> Iterator[Finding]:
    """Findings about the rounding to FP16 of ``values``, the finite and positive numbers of a scale."""
    stored = scale.dtype == FP16.dtype
    half = FP16.round(values).astype(np.float64)
    beyond = (values > FP16.highest) | (half == 0)
    coarse = values < _COARSE_BELOW if stored else ~beyond & (np.abs(half / values - 1) > COARSE)
    if coarse.any():
        worst = float(values[coarse].min())
        how = "stored in FP16, off" if stored else "changed by FP16"
        yield find(
            "coarse-fp16-scale", subject, f"{_count(coarse)} {worst:g}, {how} by up to {_change(worst):.0%}"
        )
    if beyond.any():
        yield find("fp16-scale-range", subject, f"{_count(beyond)} {float(values[beyond][0]):g}")


def _count(which: Array) -> str:
    """Text on how many scales the mask ``which`` selects, such as ``2 of 8 scales, like``.

    The caller appends one of these scales as an example.
    """
    return "the scale" if which.size == 1 else f"{which.sum()} of {which.size} scales, like"


def _change(value: float) -> float:
    """The relative change of a number by rounding to FP16.

    If FP16 holds the number exactly, the result is half an FP16 step relative to the number.
    """
    moved = abs(float(FP16.round(value)) / value - 1)
    return moved or min(FP16.smallest / 2 / value, 1.0)


def _check_type(half: Half) -> Iterator[Finding]:
    name, zero_point = half.node.name, half.zero_point
    if half.kind == "int32":
        yield find("int32-bias", name, f"'{half.source}' is INT32, as ONNX Runtime writes biases")
    elif half.kind in ("int16", "uint16"):
        yield find("unsupported-integer", name, f"it quantizes to {half.kind}")
    elif half.kind.startswith("float8") and not half.is_byte:
        yield find("unsupported-fp8", name, f"it quantizes to {half.kind}")
    elif half.is_byte and zero_point is not None and zero_point.any():
        shifted = zero_point[zero_point != 0]
        count = "zero point"
        if zero_point.size > 1:
            count = f"{shifted.size} of {zero_point.size} zero points, the first"
        yield find("nonzero-zero-point", name, f"{half.kind} with {count} {int(shifted.flat[0])}")
    elif half.kind == UINT8.name:
        absent = "no zero point, so uint8 by the standard"
        yield find("uint8-as-int8", name, absent if zero_point is None else "uint8 with zero point 0")


def _check_scale(half: Half) -> Iterator[Finding]:
    scale = half.scale
    if scale is None:
        return
    # INT32 is used for biases. Small scales are usual for biases, and are not reported.
    yield from check_numbers(half.node.name, scale, is_bias=half.kind == "int32")
    if half.axis is not None and half.constant is not None:
        shape = half.constant.shape
        length = shape[half.axis] if -len(shape) <= half.axis < len(shape) else None
        if length != scale.size:
            there = f"{length} channels" if length is not None else f"a tensor of rank {len(shape)}"
            text = f"{scale.size} scales for {there} along axis {half.axis}"
            yield find("scale-length", half.node.name, text)


def _check_opset(view: View, half: Half) -> Iterator[Finding]:
    if half.axis is not None and view.opset < 13:
        yield find("opset-per-channel", half.node.name, f"per-channel scales in opset {view.opset}")
    if half.scale is not None and half.scale.dtype == np.float16 and view.opset < 19:
        yield find("opset-fp16", half.node.name, f"an FP16 scale in opset {view.opset}")


def _same(first: Half, second: Half) -> bool:
    """Whether two nodes have equal parameters. Scales of different dtypes may differ by rounding to FP16."""
    if first.kind != second.kind or first.axis != second.axis or first.scale is None or second.scale is None:
        return first.kind == second.kind and list(first.node.input[1:]) == list(second.node.input[1:])
    scales, others = (np.asarray(h.scale, np.float32).ravel() for h in (first, second))
    mixed = first.scale.dtype != second.scale.dtype
    if scales.shape != others.shape or not np.allclose(scales, others, rtol=2**-10 if mixed else 0, atol=0):
        return np.array_equal(scales, others, equal_nan=True)
    points, more = (0 if h.zero_point is None else h.zero_point for h in (first, second))
    return bool(np.all(np.asarray(points) == np.asarray(more)))


def _unequal(before: Half, half: Half) -> Iterator[Finding]:
    if before.scale is None or half.scale is None:
        return
    a, b = (np.asarray(h.scale, np.float64).ravel()[0] for h in (before, half))
    kinds, zeros = ([h.kind for h in (before, half)], [h.zero_point for h in (before, half)])
    points = [0 if zero is None or not zero.size else int(zero.flat[0]) for zero in zeros]
    ours, theirs = (f"{kind} zero point {point}" for kind, point in zip(kinds, points, strict=True))
    if a != b and ours == theirs:
        said = f"quantized with scale {a:g} and dequantized with {b:g}, {b / a:.3g} times it"
    else:
        said = f"quantized with scale {a:g}, {ours} and dequantized with scale {b:g}, {theirs}"
    yield find("unequal-pair", half.node.name, said)


def check_types(view: View) -> Iterator[Finding]:
    """Findings about operators whose inputs have different float types, although ONNX requires one type.

    The output of a DequantizeLinear is taken to have the type of its scale, as in TensorRT.
    """
    graph = view.model.graph
    types = {t.name: int(t.data_type) for t in graph.initializer}
    types |= {v.name: int(v.type.tensor_type.elem_type) for v in (*graph.value_info, *graph.input)}
    for node in graph.node:
        formals = signature(node, view.model.opset)
        if node.op_type not in (QUANTIZE, DEQUANTIZE) and formals is not None:
            yield from _mixed(node, formals, types)
        _put_types(node, formals, types)


def _mixed(node: onnx.NodeProto, formals: Signature, types: dict[str, int]) -> Iterator[Finding]:
    seen: dict[str, dict[str, str]] = {}
    for name, formal in zip(node.input, formals.inputs, strict=True):
        kind = _FLOATS.get(types.get(name, 0))
        if kind is not None:
            seen.setdefault(formal.variable, {}).setdefault(kind, name)
    for kinds in seen.values():
        if len(kinds) > 1:
            text = " and ".join(f"{kind} ('{name}')" for kind, name in kinds.items())
            yield find("mixed-types", node.name, f"{node.op_type} reads {text}")


def _put_types(node: onnx.NodeProto, formals: Signature | None, types: dict[str, int]) -> None:
    """Add the types of the outputs of ``node`` to ``types``."""
    if node.op_type == DEQUANTIZE:
        types[node.output[0]] = attribute(node, "output_dtype", 0) or types.get(node.input[1], 0)
    elif node.op_type == "Cast":
        types[node.output[0]] = attribute(node, "to", 0)
    elif formals is not None:
        bound: dict[str, int] = {}
        for name, formal in zip(node.input, formals.inputs, strict=True):
            bound.setdefault(formal.variable, types.get(name, 0))  # the first input determines the type
        for name, formal in zip(node.output, formals.outputs, strict=True):
            kind = bound.get(formal.variable, 0)
            if kind:
                types[name] = kind


#: Operators that TensorRT can fuse with the convolution before them and with the QuantizeLinear after them.
_POINTWISE = frozenset({"Relu", "Clip", "LeakyRelu"})
#: Activation functions that TensorRT fuses with the layer before them only if no Q/DQ pair lies between.
_ACTIVATIONS = frozenset({"Sigmoid", "HardSwish", "Gelu", "Mish", "Swish"})
#: Maximum relative difference of two scales that are taken for equal. Rounding to FP32 changes a scale by
#: less.
_EQUAL = 1e-6
#: Minimum cosine similarity, as the median over channels, of a quantized weight and the float model's weight.
#: Below this number, they are reported as different weights. Rounding to 8 bits gives 0.999.
_RELATED = 0.5


def check_weighted(view: View) -> Iterator[Finding]:
    """Findings about convolutions and matrix products: inputs, channel axis, bias, and channels per group."""
    for node in view.model.graph.node:
        if node.op_type not in WEIGHTED or node.domain:
            continue
        inputs = [view.behind(name) for name in node.input[:2]]
        halves = [half for half, _ in inputs]
        yield from _one_sided(node, halves)
        for index, (half, moves) in enumerate(inputs):
            if half is not None and half.axis is not None and half.rooted:
                yield from _wrong_axis(view, node, index, half, moves)
        bias = view.dequantizer(node.input[2]) if len(node.input) > 2 else None
        if bias is not None and bias.is_byte:
            yield find("int8-bias", bias.node.name, f"the bias of '{node.name}' is quantized to {bias.kind}")
        if all(half is not None and half.is_byte for half in halves):
            yield from _grouped(view, node)


def check_activations(view: View) -> Iterator[Finding]:
    """Findings about Q/DQ nodes whose output nothing reads, and about per-channel scales of activations."""
    for half in view.halves.values():
        if not view.index.readers(half.result) and half.result not in view.index.public:
            yield find("unread-pair", half.node.name, f"nothing reads '{half.result}'")
        if half.node.op_type == QUANTIZE and half.axis is not None and not half.rooted:
            assert half.scale is not None
            text = f"activation '{half.source}' has {half.scale.size} scales along axis {half.axis}"
            yield find("per-channel-activation", half.node.name, text)


def check_adds(view: View) -> Iterator[Finding]:
    """Findings about Add nodes that join a convolution with a residual."""
    order = view.index.order
    for node in view.model.graph.node:
        if node.op_type != "Add" or any(name in view.rooted for name in node.input):
            continue
        fused = {i: conv for i, name in enumerate(node.input) if (conv := _convolution(view, name))}
        pairs = {i: view.behind(name)[0] for i, name in enumerate(node.input)}
        bare = [i for i in pairs if pairs[i] is None]
        alike = len({view.shapes.get(name) for name in node.input} - {None}) < 2
        if len(bare) == 2 and fused and alike and any(view.quantizers(node.output[0], _POINTWISE)):
            index = max(fused, key=lambda i: order[fused[i].name])
            residual = node.input[1 - index]
            what = f"it adds '{residual}', which is not quantized, to the quantized convolution"
            yield find("residual-not-quantized", node.name, f"{what} '{fused[index].name}'")
        if not bare:
            yield from _needless(view, node, order)


def check_concats(view: View) -> Iterator[Finding]:
    """Findings about Concat nodes whose quantized inputs and output have different scales."""
    for node in view.model.graph.node:
        if node.op_type != "Concat":
            continue
        after = {h.result: h for h in view.quantizers(node.output[0])}
        before = {h.result: h for name in node.input for h in _scales_behind(view, name)}
        together = [h.scale for h in (*after.values(), *before.values())]
        scales = sorted({float(s.reshape(())) for s in together if s is not None and s.size == 1})
        if after and len(scales) > 1 and scales[-1] > scales[0] * (1 + _EQUAL):
            text = f"scales from {scales[0]:g} to {scales[-1]:g} meet in it"
            yield find("unequal-concat-scales", node.name, text)


def check_silu(view: View) -> Iterator[Finding]:
    """Findings about Q/DQ pairs between a layer and its activation function, or inside a SiLU.

    A SiLU is a Mul of a tensor with the Sigmoid of the same tensor.
    """
    for node in view.model.graph.node:
        if node.op_type not in _ACTIVATIONS or not node.input:
            continue
        half = view.dequantizer(node.input[0])
        if half is not None and _layer_before(view, view.quantized(node.input[0])) is not None:
            text = f"it stands between a layer and its {node.op_type} '{node.name}'"
            yield find("breaks-silu", half.node.name, text)
        elif node.op_type == "Sigmoid":
            yield from _between_factors(view, node)


#: The checks that read the whole graph and need no float model.
CHECKS = (check_weighted, check_activations, check_adds, check_concats, check_silu)


def check_weights(view: View, original: Model) -> Iterator[Finding]:
    """Findings about quantized weights that differ from the weights of the same node in the float model."""
    theirs = original.index.nodes
    constants = original.constants()
    for node in view.model.graph.node:
        other = theirs.get(node.name)
        if node.op_type not in WEIGHTED or other is None or other.op_type != node.op_type:
            continue
        for index in (0, 1):
            half, moves = view.behind(node.input[index])
            weight = constants.get(other.input[index])
            codes = half.constant if half is not None and not moves else None
            if half is None or codes is None or weight is None or weight.shape != codes.shape:
                continue
            related = _related(half, codes, weight)
            if related < _RELATED:
                text = f"its weight has a cosine of {related:.2f} to that of the float model's '{node.name}'"
                yield find("other-weights", node.name, text)


def check_folded(view: View, original: Model) -> Iterator[Finding]:
    """Findings about activation functions of the float model that a quantizer removed.

    Quantizers remove a Relu or Clip if the QuantizeLinear after it clips at the same bounds.
    """
    for node, activation in folded(view.model.graph, original):
        text = (
            f"{activation.op_type} '{activation.name}' of the float model is gone: the range of "
            f"'{node.output[0]}' stands in for it"
        )
        yield find("folded-activation", node.name, text)


def _one_sided(node: onnx.NodeProto, halves: list[Half | None]) -> Iterator[Finding]:
    for index, other in enumerate(reversed(halves)):
        if halves[index] is None and other is not None and other.is_byte:
            text = f"input '{node.input[index]}' of this {node.op_type} is not quantized, the other is"
            yield find("one-sided", node.name, text)


def _wrong_axis(
    view: View, node: onnx.NodeProto, index: int, half: Half, moves: list[onnx.NodeProto]
) -> Iterator[Finding]:
    shape = view.shapes.get(half.source)
    assert half.axis is not None
    if not shape or not -len(shape) <= half.axis < len(shape):
        return
    axis, expected = moved_axis(half.axis, len(shape), moves), output_axis(node, index, len(shape))
    if axis is not None and expected is not None and axis != expected:
        text = f"the weight of {node.op_type} '{node.name}' has scales along axis {axis}, not {expected}"
        yield find("wrong-channel-axis", half.node.name, text)


def _grouped(view: View, node: onnx.NodeProto) -> Iterator[Finding]:
    shape = view.shapes.get(node.input[1])
    if not node.op_type.startswith("Conv") or not shape or not all(isinstance(d, int) for d in shape):
        return
    reason = unfit_groups(node, np.broadcast_to(INT8.dtype.type(0), shape))  # type: ignore[arg-type]
    if reason is not None:
        yield find("grouped-channels", node.name, f"quantized {node.op_type} with {reason.text}")


def _convolution(view: View, tensor: str) -> onnx.NodeProto | None:
    """The quantized convolution that computes ``tensor``; None if there is none, or several nodes read it.

    A BatchNormalization may lie between the convolution and ``tensor``.
    """

    def is_quantized(node: onnx.NodeProto) -> bool:
        halves = [view.behind(name)[0] for name in node.input[:2]]
        return all(half is not None and half.is_byte for half in halves)

    return fusable_convolution(view.index, tensor, is_quantized)


def _needless(view: View, node: onnx.NodeProto, order: dict[str, int]) -> Iterator[Finding]:
    """A finding about a Q/DQ pair between a convolution and an Add whose two inputs are both quantized.

    ``order`` has the position of each node in the graph. The convolution with the last position is reported.
    """
    found: list[tuple[int, Half, str]] = []
    for name in node.input:
        half = view.dequantizer(name)
        if half is None or not half.is_byte or view.index.only_reader(name) is None:
            continue
        before = view.quantizer(half)
        alone = len(view.index.readers(half.source)) == 1
        conv = _convolution(view, before.source) if before and alone else None
        if before is not None and conv is not None:
            found.append((order[conv.name], before, conv.name))
    if found:
        _, half, conv_name = max(found, key=lambda entry: entry[0])
        text = f"it quantizes what '{conv_name}' hands to '{node.name}', whose other input is quantized"
        yield find("needless-add-input", half.node.name, text)


def _scales_behind(view: View, tensor: str) -> Iterator[Half]:
    """The Q/DQ nodes that give the input ``tensor`` of a Concat its scale.

    This is the DequantizeLinear before the tensor. If there is none, these are the QuantizeLinear nodes that
    read the tensor, or that read a tensor from which nodes that only move values compute it.
    """
    half, _ = view.behind(tensor)
    if half is not None:
        yield half
        return
    node = view.index.producer.get(tensor)
    readers = view.index.readers(tensor)
    yield from (view.halves[reader.output[0]] for reader, _ in readers if reader.op_type == QUANTIZE)
    if node is not None and moves_values(node):
        yield from _scales_behind(view, node.input[0])


def _layer_before(view: View, tensor: str) -> onnx.NodeProto | None:
    """The convolution or matrix product that computes ``tensor``; None if another node does.

    The Add of a bias and a BatchNormalization may lie between the layer and ``tensor``.
    """
    node = view.index.producer.get(tensor)
    if node is None or node.op_type in WEIGHTED:
        return node
    is_bias = node.op_type == "Add" and any(name in view.rooted for name in node.input)
    if node.op_type == "BatchNormalization" or is_bias:
        return next((n for name in node.input if (n := _layer_before(view, name)) is not None), None)
    return None


def _between_factors(view: View, sigmoid: onnx.NodeProto) -> Iterator[Finding]:
    """Findings about Q/DQ pairs between ``sigmoid`` and a Mul of the Sigmoid's output with its input."""
    for half in view.dequantized.get(sigmoid.output[0], ()):
        for node, _ in view.index.readers(half.result):
            factors = {view.quantized(name) for name in node.input}
            if node.op_type == "Mul" and view.quantized(sigmoid.input[0]) in factors:
                text = f"it stands between Sigmoid '{sigmoid.name}' and Mul '{node.name}', one SiLU"
                yield find("breaks-silu", half.node.name, text)


def _related(half: Half, codes: Array, weight: Array) -> float:
    """The cosine similarity of a float weight and the quantized codes, as the median over channels.

    The scales of the channels have no influence on the result. The result is 1.0 if the channel axis does not
    exist, if there are too many or too few zero points, or if no channel can be compared.
    """
    axis = half.axis if half.axis is not None else 0
    if not -codes.ndim <= axis < codes.ndim:
        return 1.0
    channels = 1 if half.axis is None else codes.shape[axis]
    if half.zero_point is not None and half.zero_point.size not in (1, channels):
        return 1.0
    zero_point = 0 if half.zero_point is None else half.zero_point
    shifts = np.asarray(zero_point, np.float32)
    ours = codes.astype(np.float32) - along(shifts, half.axis, codes.ndim)
    a, b = (np.moveaxis(x.astype(np.float32), axis, 0).reshape(x.shape[axis], -1) for x in (ours, weight))
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    alive = norms > 0
    return float(np.median(np.sum(a * b, axis=1)[alive] / norms[alive])) if alive.any() else 1.0
