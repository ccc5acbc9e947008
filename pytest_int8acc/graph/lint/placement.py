"""Rules on where Q/DQ stands: what TensorRT takes without a word, and computes slowly or wrongly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx

from pytest_int8acc.graph.formats import INT8, along
from pytest_int8acc.graph.groups import WEIGHTED, moves_values, unfit_groups
from pytest_int8acc.graph.index import attribute
from pytest_int8acc.graph.lint.rules import find
from pytest_int8acc.graph.lint.view import BYTES, QUANTIZE, Half, View, moved_axis
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.restore import folded
from pytest_int8acc.results import Finding
from pytest_int8acc.tensors import Array

#: What follows a convolution and is fused with it, its result still quantized.
_POINTWISE = frozenset({"Relu", "Clip", "LeakyRelu"})
#: Activations that fuse with the layer before them where that layer gives floating point.
_ACTIVATIONS = frozenset({"Sigmoid", "HardSwish", "Gelu", "Mish", "Swish"})
#: Scales that differ by less are equal: one FP32 rounding.
_EQUAL = 1e-6
#: Median over channels of the cosine between float and dequantized weights; 8 bits alone leave 0.999.
_RELATED = 0.5


def check_weighted(view: View) -> Iterator[Finding]:
    """Convolutions and products: both inputs, the channel axis, the bias, the channels of a group."""
    for node in view.model.graph.node:
        if node.op_type not in WEIGHTED or node.domain not in ("", "ai.onnx"):
            continue
        inputs = [view.behind(name) for name in node.input[:2]]
        halves = [half for half, _ in inputs]
        yield from _one_sided(node, halves)
        for index, (half, moves) in enumerate(inputs):
            if half is not None and half.axis is not None and half.rooted:
                yield from _wrong_axis(view, node, index, half, moves)
        bias = view.dequantizer(node.input[2]) if len(node.input) > 2 else None
        if bias is not None and bias.kind in BYTES:
            yield find("int8-bias", bias.node.name, f"the bias of '{node.name}' is quantized to {bias.kind}")
        if all(half is not None and half.kind in BYTES for half in halves):
            yield from _grouped(view, node)


def check_activations(view: View) -> Iterator[Finding]:
    """Pairs on what is computed at run time: per channel, or read by nobody."""
    for half in view.halves.values():
        if not view.index.readers(half.result) and half.result not in view.index.public:
            yield find("unread-pair", half.node.name, f"nothing reads '{half.result}'")
        if half.node.op_type == QUANTIZE and half.axis is not None and not half.rooted:
            assert half.scale is not None
            text = f"activation '{half.source}' has {half.scale.size} scales along axis {half.axis}"
            yield find("per-channel-activation", half.node.name, text)


def check_adds(view: View) -> Iterator[Finding]:
    """Adds that join a convolution with a residual."""
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
    """Concats whose result is quantized, and whose inputs are, with other scales."""
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
    """Pairs between a weighted layer and its activation, or between the two factors of SiLU."""
    for node in view.model.graph.node:
        if node.op_type not in _ACTIVATIONS or not node.input:
            continue
        half = view.dequantizer(node.input[0])
        if half is not None and _layer_before(view, view.quantized(node.input[0])) is not None:
            text = f"it stands between a layer and its {node.op_type} '{node.name}'"
            yield find("breaks-silu", half.node.name, text)
        elif node.op_type == "Sigmoid":
            yield from _between_factors(view, node)


#: What is asked of a Q/DQ model by itself.
CHECKS = (check_weighted, check_activations, check_adds, check_concats, check_silu)


def check_weights(view: View, original: Model) -> Iterator[Finding]:
    """Quantized weights against those of the float model's nodes of the same name."""
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
    """Activations of the float model that a quantizer left out, since a range cuts off where they do."""
    for node, activation in folded(view.model.graph, original):
        text = (
            f"{activation.op_type} '{activation.name}' of the float model is gone: the range of "
            f"'{node.output[0]}' stands in for it"
        )
        yield find("folded-activation", node.name, text)


def _one_sided(node: onnx.NodeProto, halves: list[Half | None]) -> Iterator[Finding]:
    kinds = ["" if half is None else half.kind for half in halves]
    for index in (0, 1):
        if kinds[1 - index] in BYTES and halves[index] is None:
            text = f"input '{node.input[index]}' of this {node.op_type} is not quantized, the other is"
            yield find("one-sided", node.name, text)


def _wrong_axis(
    view: View, node: onnx.NodeProto, index: int, half: Half, moves: list[onnx.NodeProto]
) -> Iterator[Finding]:
    shape = view.shapes.get(half.source)
    assert half.axis is not None
    if not shape or not -len(shape) <= half.axis < len(shape):
        return
    axis, expected = moved_axis(half.axis, len(shape), moves), _output_axis(node, index, len(shape))
    if axis is not None and expected is not None and axis != expected:
        text = f"the weight of {node.op_type} '{node.name}' has scales along axis {axis}, not {expected}"
        yield find("wrong-channel-axis", half.node.name, text)


def _output_axis(node: onnx.NodeProto, index: int, rank: int) -> int | None:
    """The axis of output channels; None for an input that has none."""
    if node.op_type.startswith("Conv"):
        return (1 if node.op_type == "ConvTranspose" else 0) if index == 1 else None
    transposed = node.op_type == "Gemm" and bool(attribute(node, "transB" if index else "transA", 0))
    return rank - 1 if transposed != (index == 1) else rank - 2


def _grouped(view: View, node: onnx.NodeProto) -> Iterator[Finding]:
    shape = view.shapes.get(node.input[1])
    if not node.op_type.startswith("Conv") or not shape or not all(isinstance(d, int) for d in shape):
        return
    reason = unfit_groups(node, np.broadcast_to(INT8.dtype.type(0), shape))  # type: ignore[arg-type]
    if reason is not None:
        yield find("grouped-channels", node.name, f"quantized {node.op_type} with {reason.text}")


def _convolution(view: View, tensor: str) -> onnx.NodeProto | None:
    """The INT8 convolution, BatchNormalization allowed for, whose one reader reads ``tensor``."""
    node = view.index.producer.get(tensor)
    if node is None or view.index.only_reader(tensor) is None:
        return None
    if node.op_type == "BatchNormalization":
        return _convolution(view, node.input[0])
    if node.op_type not in ("Conv", "ConvTranspose"):
        return None
    halves = [view.behind(name)[0] for name in node.input[:2]]
    return node if all(half is not None and half.kind in BYTES for half in halves) else None


def _needless(view: View, node: onnx.NodeProto, order: dict[str, int]) -> Iterator[Finding]:
    """The pair on an Add's convolution, where its other input has a pair too."""
    found: list[tuple[int, Half, str]] = []
    for name in node.input:
        half = view.dequantizer(name)
        if half is None or half.kind not in BYTES or view.index.only_reader(name) is None:
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
    """The pairs that a Concat's input comes from; otherwise those on it and on what it is moved from."""
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
    """The weighted layer, bias and BatchNormalization allowed for, that makes ``tensor``."""
    node = view.index.producer.get(tensor)
    if node is None or node.op_type in WEIGHTED:
        return node
    is_bias = node.op_type == "Add" and any(name in view.rooted for name in node.input)
    if node.op_type == "BatchNormalization" or is_bias:
        return next((n for name in node.input if (n := _layer_before(view, name)) is not None), None)
    return None


def _between_factors(view: View, sigmoid: onnx.NodeProto) -> Iterator[Finding]:
    """A pair on the result of a Sigmoid that a Mul multiplies with the Sigmoid's own input."""
    for half in view.dequantized.get(sigmoid.output[0], ()):
        for node, _ in view.index.readers(half.result):
            factors = {view.quantized(name) for name in node.input}
            if node.op_type == "Mul" and view.quantized(sigmoid.input[0]) in factors:
                text = f"it stands between Sigmoid '{sigmoid.name}' and Mul '{node.name}', one SiLU"
                yield find("breaks-silu", half.node.name, text)


def _related(half: Half, codes: Array, weight: Array) -> float:
    """Median over channels of the cosine of a weight and its codes, blind to a factor for each channel.

    1.0 where scales and channels do not fit, which other rules tell.
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
