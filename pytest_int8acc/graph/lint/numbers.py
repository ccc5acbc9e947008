"""Rules on what one Q or DQ says: scales, zero points, integer types, element types, opsets."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto

from pytest_int8acc.graph.formats import FP16, UINT8
from pytest_int8acc.graph.index import all_nodes, attribute
from pytest_int8acc.graph.lint.rules import find
from pytest_int8acc.graph.lint.view import BYTES, DEQUANTIZE, QUANTIZE, Half, View
from pytest_int8acc.graph.to_fp16 import COARSE
from pytest_int8acc.graph.types import Signature, signature
from pytest_int8acc.results import Finding
from pytest_int8acc.tensors import Array

_OPERATORS = frozenset(
    {"QLinearConv", "QLinearMatMul", "QGemm", "ConvInteger", "MatMulInteger", "QLinearAdd", "QLinearMul"}
    | {"QLinearConcat", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearAveragePool", "QLinearSoftmax"}
    | {"QLinearGlobalAveragePool", "QLinearWhere", "QLinearReduceMean", "QAttention", "MatMulIntegerToFloat"}
)
_DYNAMIC = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"})
_WIDE = frozenset({"int16", "uint16"})
_FLOATS: dict[int, str] = {
    TensorProto.FLOAT: "FP32",
    TensorProto.FLOAT16: "FP16",
    TensorProto.BFLOAT16: "BF16",
    TensorProto.DOUBLE: "FP64",
}
#: An FP16 number below this has neighbours farther than twice ``COARSE`` away: rounding moved it up to that.
_COARSE_BELOW = FP16.smallest / 2 / COARSE


def check_operators(view: View) -> Iterator[Finding]:
    """Quantized operators and dynamic quantization, also inside If, Loop and Scan."""
    for node in all_nodes(view.model.graph):
        name = node.name or f"node_of_{node.output[0]}"
        if node.op_type in _DYNAMIC:
            yield find("dynamic-quantization", name, f"{node.op_type} measures its scale while running")
        elif node.op_type in _OPERATORS:
            yield find("operator-format", name, f"{node.op_type} is a quantized operator")


def check_half(view: View, half: Half) -> Iterator[Finding]:
    """One Q or DQ by itself; what a DQ repeats of its Q is said of the Q only."""
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
            if name and name not in view.rooted and (maker is None or maker.op_type not in _DYNAMIC):
                yield find("runtime-scale", half.node.name, f"its {what} '{name}' is computed at run time")
    if before is not None and not _same(before, half):
        yield from _unequal(before, half)


def bad_numbers(scale: Array) -> str:
    """What is wrong with a scale, in words; empty where it is finite and positive throughout."""
    values = np.asarray(scale, np.float64).ravel()
    bad = ~(np.isfinite(values) & (values > 0))
    if not bad.any():
        return ""
    first = float(values[bad][0])
    return f"scale is {first:g}" if values.size == 1 else f"{bad.sum()} of {values.size} scales are {first:g}"


def fp16_findings(subject: str, scale: Array) -> Iterator[Finding]:
    """What FP16 does, or did, to a scale; both rules leave out what is not finite and positive."""
    values = np.asarray(scale, np.float64).ravel()
    values = values[np.isfinite(values) & (values > 0)]
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
    """How many of the scales, in words that a number follows."""
    return "the scale" if which.size == 1 else f"{which.sum()} of {which.size} scales, like"


def _change(value: float) -> float:
    """By what share FP16 moves a number so small: what it does move, or half a step where that is done."""
    moved = abs(float(FP16.round(value)) / value - 1)
    return moved or min(FP16.smallest / 2 / value, 1.0)


def _check_type(half: Half) -> Iterator[Finding]:
    name = half.node.name
    zero_point = half.zero_point
    shifted = 0 if zero_point is None or half.kind not in BYTES else np.count_nonzero(zero_point)
    if half.kind == "int32":
        yield find("int32-bias", name, f"'{half.source}' is INT32, as ONNX Runtime writes biases")
    elif half.kind in _WIDE:
        yield find("unsupported-integer", name, f"it quantizes to {half.kind}")
    elif half.kind.startswith("float8") and half.kind not in BYTES:
        yield find("unsupported-fp8", name, f"it quantizes to {half.kind}")
    elif shifted and zero_point is not None:
        first = zero_point.ravel()[np.flatnonzero(zero_point)[0]]
        many = f"{shifted} of {zero_point.size} zero points, the first"
        count = "zero point" if zero_point.size == 1 else many
        yield find("nonzero-zero-point", name, f"{half.kind} with {count} {int(first)}")
    elif half.kind == UINT8.name:
        absent = "no zero point, so uint8 by the standard"
        yield find("uint8-as-int8", name, absent if zero_point is None else "uint8 with zero point 0")


def _check_scale(half: Half) -> Iterator[Finding]:
    scale = half.scale
    if scale is None:
        return
    wrong = bad_numbers(scale)
    if wrong:
        yield find("nonpositive-scale", half.node.name, wrong)
    if half.axis is not None and half.constant is not None:
        shape = half.constant.shape
        length = shape[half.axis] if -len(shape) <= half.axis < len(shape) else None
        if length != scale.size:
            there = f"{length} channels" if length is not None else f"a tensor of rank {len(shape)}"
            text = f"{scale.size} scales for {there} along axis {half.axis}"
            yield find("scale-length", half.node.name, text)
    if half.kind != "int32":  # a bias, refused anyway; its scale is a product of two
        yield from fp16_findings(half.node.name, scale)


def _check_opset(view: View, half: Half) -> Iterator[Finding]:
    if half.axis is not None and view.opset < 13:
        yield find("opset-per-channel", half.node.name, f"per-channel scales in opset {view.opset}")
    if half.scale is not None and half.scale.dtype == np.float16 and view.opset < 19:
        yield find("opset-fp16", half.node.name, f"an FP16 scale in opset {view.opset}")


def _same(first: Half, second: Half) -> bool:
    """True where both say the same; scales of different float types are the same where FP16 makes them so."""
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
    """Operators whose inputs must be of one type, and are not.

    A DequantizeLinear gives the type of its scale, as TensorRT has it, not FP32 as in old opsets.
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
    """Note in ``types`` what ``node`` makes."""
    if node.op_type == DEQUANTIZE:
        types[node.output[0]] = attribute(node, "output_dtype", 0) or types.get(node.input[1], 0)
    elif node.op_type in ("Cast", "ConstantOfShape") or formals is None:
        if node.op_type == "Cast":
            types[node.output[0]] = attribute(node, "to", 0)
    else:
        bound: dict[str, int] = {}
        for name, formal in zip(node.input, formals.inputs, strict=True):
            bound.setdefault(formal.variable, types.get(name, 0))
        for name, formal in zip(node.output, formals.outputs, strict=True):
            kind = bound.get(formal.variable, 0)
            if kind:
                types[name] = kind
