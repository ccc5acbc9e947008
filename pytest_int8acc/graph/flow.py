"""Finds properties of tensors in the graph: signs, effects of NaN, selecting operators, Concat outputs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import onnx

from pytest_int8acc.graph.index import Index, attribute, captured
from pytest_int8acc.graph.layout import ALIKE, MAX_STEPS, RESHAPING, ChannelTracer
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.types import FLOAT, FLOAT16, value_types
from pytest_int8acc.tensors import Dim

#: Operators whose outputs are not negative if their inputs are not negative.
_KEEP_SIGN = {
    *("AveragePool", "Concat", "Flatten", "GlobalAveragePool", "GlobalMaxPool", "Identity", "MaxPool"),
    *("Reshape", "Squeeze", "Transpose", "Unsqueeze"),
}
#: Operators whose output holds a NaN if any element of any input is NaN.
_KEEP_NAN = {
    *("Abs", "Add", "BatchNormalization", "Clip", "Concat", "Conv", "Div", "Erf", "Exp", "Flatten", "Gelu"),
    *("Gemm", "GlobalAveragePool", "Identity", "InstanceNormalization", "LayerNormalization", "LeakyRelu"),
    *("MatMul", "Mul", "Neg", "ReduceMean", "ReduceSum", "Relu", "Reshape", "Sigmoid", "Softmax", "Sqrt"),
    *("Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze"),
}


#: Operators that select among values. A small change of an input can change their output completely.
CHOOSING = frozenset(
    {"NonMaxSuppression", "TopK", "ArgMax", "ArgMin", "Hardmax", "NonZero", "Unique", "EfficientNMS_TRT"}
    | {"BatchedNMS_TRT", "EfficientNMS_ONNX_TRT"}
)
#: Operators whose output depends only on shapes.
_OF_SHAPES = frozenset({"Shape", "Size", "ConstantOfShape"})


def not_negative(model: Model) -> set[str]:
    """Names of tensors that have no negative values, because of a Relu or Clip before them."""
    constants, found = model.constants(), set[str]()

    def is_floored(node: onnx.NodeProto) -> bool:
        if node.op_type == "Clip":
            low = constants.get(node.input[1]) if len(node.input) > 1 else None
            return low is not None and low.size == 1 and float(low.item()) >= 0
        data = node.input if node.op_type in ("Add", "Concat") else node.input[:1]
        keeps = node.op_type in _KEEP_SIGN or node.op_type == "Add"
        return node.op_type == "Relu" or (keeps and all(name in found for name in data))

    for node in model.graph.node:
        if is_floored(node):
            found.update(node.output)
    return found


def shown_at(model: Model, outputs: Collection[str]) -> set[str]:
    """Names of ``outputs``, and of all tensors in which any NaN causes a NaN in one of ``outputs``."""
    found = set(outputs)
    for node in reversed(model.graph.node):
        if node.op_type in _KEEP_NAN and found.intersection(node.output) and _sees_all(node):
            found.update(node.input)
    return found


def _sees_all(node: onnx.NodeProto) -> bool:
    """Whether every input value affects the output; a convolution may skip values by strides or dilations."""
    if node.op_type != "Conv":
        return True
    strides, dilations = attribute(node, "strides", []), attribute(node, "dilations", [])
    if any(step > 1 for step in dilations) or attribute(node, "auto_pad", b"") == b"VALID":
        return all(step == 1 for step in (*strides, *dilations))
    kernel = attribute(node, "kernel_shape", [1] * len(strides))
    ends = attribute(node, "pads", [0] * 2 * len(strides))[len(strides) :]
    return all(s <= k and s - 1 <= end for s, k, end in zip(strides, kernel, ends, strict=False))


def choices(model: Model, outputs: Collection[str]) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """For each selecting node, such as TopK, the float tensors by which it selects, and dependent outputs.

    The key is the node's name. A dependent output is one of ``outputs`` that is computed from the node's
    result. A selecting node is left out if it depends on another selecting node, if it reads no computed
    float tensor, or if no output depends on it.
    """
    types, index = value_types(model), model.index
    behind: dict[str, frozenset[str]] = {}
    floats: dict[str, tuple[str, ...]] = {}
    for node in model.graph.node:
        after = frozenset[str]().union(*(behind.get(name, ()) for name in {*node.input, *captured(node)}))
        if node.op_type in CHOOSING and not after:
            by = tuple(dict.fromkeys(_floats_before(node, index, types)))
            floats.update({node.name: by} if by else {})
            after = frozenset([node.name] if by else ())
        behind.update({name: after for name in node.output if name and after})
    after_of = {node: tuple(o for o in outputs if node in behind.get(o, ())) for node in floats}
    return {node: (by, after_of[node]) for node, by in floats.items() if after_of[node]}


def _floats_before(node: onnx.NodeProto, index: Index, types: Mapping[str, int]) -> Iterator[str]:
    """The computed float tensors that a node reads, directly or through nodes whose outputs are not floats.

    Tensors that depend only on shapes are left out.
    """
    for name in node.input:
        before = index.producer.get(name)
        if before is None or before.op_type in _OF_SHAPES:
            continue
        if types.get(name) in (FLOAT, FLOAT16):
            yield name
        else:
            yield from _floats_before(before, index, types)


#: Matches a tensor's name that is a plain word, like ``boxes``. Names that exporters invent have digits or
#: slashes.
_WORD = re.compile(r"[A-Za-z]+(_[A-Za-z]+)*")
#: The kind of a part of an output whose values come from a Sigmoid or Softmax; see ``Segment.kind``.
SCORES = "scores"
#: Operators whose outputs are scores, that is numbers between 0 and 1.
_SCORING = frozenset({"Sigmoid", "Softmax", "HardSigmoid"})
#: Operators whose output holds only elements of their first input.
_PICKING = frozenset({"Transpose", "Slice", "Split", "Gather", "ReduceMax", "MaxPool", "Expand", "Tile"})
#: Maximum number of nodes that are visited to find the parts from which an output is concatenated. Beyond
#: this number, the parts stay unknown.
_MAX_NODES = 4096

#: Operators that map large differences of their input to small differences of their output. So the output
#: hides errors of the input. The sigmoid of -8 and that of -6 differ by 0.002.
_SQUASHING = frozenset({"Softmax", "LogSoftmax", "Sigmoid", "HardSigmoid"})
#: Operators that keep the value of each element, except for rounding.
_ROUNDING = frozenset({"Cast", "QuantizeLinear", "DequantizeLinear"})

_Shape = tuple[Dim, ...]


@dataclass(frozen=True)
class Segment:
    """A part of a concatenated output: a range of indices along an axis, with values from one tensor."""

    size: int
    """The number of indices in the range."""
    kind: str
    """``scores`` if the values come from a Sigmoid or Softmax; otherwise empty."""
    tensor: str
    """Name of the tensor that the values come from."""

    @property
    def label(self) -> str:
        """``scores`` for scores; for other values the tensor's name if it is a plain word, else empty."""
        return self.kind or (self.tensor if _WORD.fullmatch(self.tensor) else "")


def joined(model: Model, output: str) -> tuple[int, tuple[Segment, ...]] | None:
    """The axis along which an output is concatenated, and its parts; None if it is not concatenated.

    Axis 0, which counts samples, is not considered. If several axes fit, the first one along which
    both scores and other values are concatenated is preferred.
    """
    joiner = _Joiner(model)
    if not joiner.reaches_concat(output):
        return None
    shape = ChannelTracer(model).shape(output) or ()
    found = {axis: joiner.segments(output, axis, 0) for axis in range(1, len(shape))}
    known = {axis: segments for axis, segments in found.items() if segments and len(segments) > 1}
    mixed = [axis for axis, segments in known.items() if len({s.kind for s in segments}) > 1]
    for axis in [*mixed, *known]:
        return axis, tuple(known[axis])
    return None


def holds_scores(model: Model, output: str) -> bool:
    """Whether all elements of an output come from a Sigmoid or Softmax."""
    return _Joiner(model).kind(output) == SCORES


def squashing_node(model: Model, output: str) -> onnx.NodeProto | None:
    """The Softmax, LogSoftmax or Sigmoid that computes all elements of an output; None if there is none.

    Operators between this node and the output only round, move or reshape values.
    """
    skipped = _ROUNDING | RESHAPING | {"Identity", "Transpose"}
    node = model.index.producer.get(_source(model, output, skipped))
    return node if node is not None and node.op_type in _SQUASHING else None


def unquantized(model: Model, tensor: str) -> str:
    """The tensor from which a Q/DQ pair makes ``tensor``; empty if there is no pair. Casts are skipped."""
    node = model.index.producer.get(_source(model, tensor, {"Cast"}))
    has_pair = node is not None and node.op_type == "DequantizeLinear"
    return _source(model, tensor, _ROUNDING) if has_pair else ""


def _source(model: Model, tensor: str, skipped: Collection[str]) -> str:
    """The tensor from which operators in ``skipped`` compute ``tensor``; only first inputs are followed."""
    made = model.index.producer
    while (node := made.get(tensor)) is not None and node.op_type in skipped:
        tensor = node.input[0]
    return tensor


class _Joiner:
    """Follows an output back through the graph, to the tensors from which a Concat joins the output."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._made = model.index.producer
        self._tracer = ChannelTracer(model)
        self._steps = 0

    def reaches_concat(self, tensor: str) -> bool:
        """Whether a tensor comes from a Concat; this check needs no shape inference."""
        for _ in range(MAX_STEPS):
            node = self._made.get(tensor)
            if node is None:
                return False
            if node.op_type == "Concat":
                return len(node.input) > 1
            before = self._tracer.source(node)
            if before is None:
                return False
            tensor = before
        return False

    def segments(self, tensor: str, axis: int, depth: int) -> list[Segment] | None:
        """The segments (parts) of a tensor along an axis; None if their sizes are not known.

        ``depth`` is the number of nodes between this tensor and the output; at ``MAX_STEPS`` the search ends.
        """
        self._steps += 1
        node = self._made.get(tensor)
        found = None
        if node is not None and depth < MAX_STEPS and self._steps < _MAX_NODES:
            found = self._joined(node, tensor, axis, depth + 1)
        # A single segment gets the kind (scores or not) of the whole tensor, because an operator after the
        # Concat, such as a Sigmoid, may have changed the kind.
        if found is not None and len(found) == 1:
            name = tensor if _WORD.fullmatch(tensor) else found[0].tensor
            return [replace(found[0], kind=self.kind(tensor), tensor=name)]
        if found is not None:
            return found
        size = self._tracer.size(tensor, axis)
        return None if size is None else [Segment(size, self.kind(tensor), tensor)]

    def _joined(self, node: onnx.NodeProto, tensor: str, axis: int, depth: int) -> list[Segment] | None:
        source = self._tracer.source(node)
        if node.op_type == "Concat":
            return self._of_concat(node, axis, depth)
        if source is None:
            return None
        if node.op_type in ("Slice", "Split"):
            return self._of_cut(node, tensor, axis, depth)
        before = self._tracer.axis_before(node, source, tensor, axis)
        return None if before is None else self.segments(source, before, depth)

    def _of_concat(self, node: onnx.NodeProto, axis: int, depth: int) -> list[Segment] | None:
        rank = len(self._tracer.shape(node.output[0]) or ())
        along = int(attribute(node, "axis", 0)) % max(rank, 1)
        inputs = [self.segments(name, axis, depth) for name in node.input]
        if along == axis:
            inputs = self._with_deduced(node, axis, inputs)
        known = [segments for segments in inputs if segments is not None]
        if len(known) < len(inputs):
            return None
        if along == axis:
            return [segment for segments in known for segment in segments]
        return _aligned(known)

    def _with_deduced(
        self, node: onnx.NodeProto, axis: int, inputs: Sequence[list[Segment] | None]
    ) -> list[list[Segment] | None]:
        """The segments (parts along ``axis``) of each input of the Concat ``node``.

        ``inputs`` has None for each input whose segments are not known. If there is only one such input, it
        becomes one segment. The size of this segment is the size of the Concat's output minus the sizes of
        all other segments.
        """
        total = self._tracer.size(node.output[0], axis)
        missing = [i for i, segments in enumerate(inputs) if segments is None]
        if total is None or len(missing) != 1:
            return list(inputs)
        rest = total - sum(segment.size for segments in inputs for segment in segments or ())
        name = node.input[missing[0]]
        found = list(inputs)
        found[missing[0]] = [Segment(rest, self.kind(name), name)]
        return found

    def _of_cut(self, node: onnx.NodeProto, tensor: str, axis: int, depth: int) -> list[Segment] | None:
        """The segments (parts along an axis) of the output of a Slice or Split; None if not known."""
        parts, inner = self._tracer.parts(node, tensor), self.segments(node.input[0], axis, depth)
        if inner is None or parts is None or axis not in parts:
            return None if parts is None else inner
        total = sum(segment.size for segment in inner)
        start, stop, step = parts[axis].indices(total)
        return _cut(inner, start, stop) if step == 1 else None

    def kind(self, tensor: str, depth: int = 0) -> str:
        """``scores`` if all elements of a tensor come from a Sigmoid or Softmax, else empty.

        ``depth`` is the number of nodes that were followed to this tensor; after ``MAX_STEPS`` nodes the
        result is empty.
        """
        node = self._made.get(tensor)
        self._steps += 1
        if node is None or depth > MAX_STEPS or self._steps > _MAX_NODES:
            return ""
        if node.op_type in _SCORING:
            return SCORES
        if node.op_type in ALIKE | RESHAPING | _PICKING:
            return self.kind(node.input[0], depth + 1)
        # Products of scores, such as of objectness and class scores, are scores.
        if node.op_type in ("Concat", "Mul"):
            return SCORES if all(self.kind(name, depth + 1) for name in node.input) else ""
        return ""


def _cut(segments: Iterable[Segment], start: int, stop: int) -> list[Segment]:
    """The parts of segments that lie between the indices ``start`` and ``stop`` of their axis."""
    found, place = list[Segment](), 0
    for segment in segments:
        low, high = max(start, place), min(stop, place + segment.size)
        if low < high:
            found.append(replace(segment, size=high - low))
        place += segment.size
    return found


def _aligned(rows: Sequence[list[Segment]]) -> list[Segment] | None:
    """The segments (parts along one axis) of tensors that a Concat joins along another axis.

    A segment ends at every index where a segment of one of the tensors ends. A segment has the kind
    ``scores`` if all tensors have scores in its range. The result is None if sizes of the tensors differ.
    """
    ends = [list(accumulate(segment.size for segment in row)) for row in rows]
    if not ends or len({row[-1] for row in ends if row}) != 1:
        return None
    places = sorted({0, *(end for row in ends for end in row)})
    found = []
    for start, stop in pairwise(places):
        cut = [_cut(row, start, stop)[0] for row in rows]
        kind = cut[0].kind if len({segment.kind for segment in cut}) == 1 else ""
        found.append(Segment(stop - start, kind, cut[0].tensor if len(cut) == 1 else ""))
    return found
