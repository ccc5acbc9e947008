"""What a graph joins into one output: ranges along an axis, and whether each holds scores.

An output is followed backwards through what moves, casts or scales it until a Concat; that is followed again
into what it joins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise

import onnx

from pytest_int8acc.graph.index import attribute
from pytest_int8acc.graph.model import Model
from pytest_int8acc.tensors import Array, Dim

#: A tensor's name that says what it holds, like ``boxes``; exporters' names have digits and slashes.
_WORD = re.compile(r"[A-Za-z]+(_[A-Za-z]+)*")
#: Kind of what lies between 0 and 1 by its operator.
SCORES = "scores"
#: Operators whose results are scores.
_SCORING = frozenset({"Sigmoid", "Softmax", "HardSigmoid"})
#: Operators that keep the shape of their first input and treat all of its elements alike.
_ELEMENTWISE = frozenset(
    {"Identity", "Cast", "Dropout", "Relu", "Clip", "Neg", "QuantizeLinear", "DequantizeLinear"}
)
#: Operators that keep the order of elements and change the shape.
_RESHAPING = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
#: Operators that pick some of the elements of their first input.
_PICKING = frozenset({"Transpose", "Slice", "Split", "Gather", "ReduceMax", "MaxPool", "Expand", "Tile"})
#: Operators of two inputs that keep what an output is joined of where one input is a constant.
_AFFINE = frozenset({"Mul", "Add", "Sub", "Div"})
#: Operators that make channels of their own, and the axis along which these lie.
_MAKING_CHANNELS = {
    **dict.fromkeys(("Conv", "ConvTranspose", "BatchNormalization", "InstanceNormalization"), 1),
    **dict.fromkeys(("Gemm", "MatMul", "LayerNormalization", "RMSNormalization"), -1),
}
#: How far a graph is followed: nodes on one way back, and operators in all.
_MOST_STEPS, _MOST_NODES = 64, 4096

_Shape = tuple[Dim, ...]


@dataclass(frozen=True)
class Segment:
    """A range along an axis of a tensor that comes from one tensor."""

    size: int
    kind: str
    """``scores`` or empty."""
    tensor: str
    """What is joined."""

    @property
    def label(self) -> str:
        """What it is called: scores, or its tensor's name where that is a plain word."""
        return self.kind or (self.tensor if _WORD.fullmatch(self.tensor) else "")


def joined(model: Model, output: str) -> tuple[int, tuple[Segment, ...]] | None:
    """Returns along which axis an output is joined, and of what; None where it is of one piece.

    Axis 0, which counts the samples, is not looked at. Of several axes the first is taken along which scores
    meet what is none.
    """
    tracer = _Tracer(model)
    if not tracer.reaches_concat(output):
        return None
    shape = tracer.shape(output) or ()
    found = {axis: tracer.segments(output, axis, 0) for axis in range(1, len(shape))}
    known = {axis: segments for axis, segments in found.items() if segments and len(segments) > 1}
    mixed = [axis for axis, segments in known.items() if len({s.kind for s in segments}) > 1]
    for axis in [*mixed, *known]:
        return axis, tuple(known[axis])
    return None


def channel_axis(model: Model, output: str) -> int | None:
    """Returns the axis along which an output's channels lie; None where they are all scores, or not known.

    It is that of the last operator which makes channels (Concat, Conv, MatMul, a norm), followed through what
    moves, casts or scales them; where there is none, the last of two or three axes.
    """
    tracer = _Tracer(model)
    rank = len(tracer.shape(output) or ())
    if rank < 2 or tracer.kind(output) == SCORES:
        return None
    return tracer.channels(output) or (rank - 1 if rank <= 3 else None)


def made_channels(model: Model, tensors: Iterable[str]) -> dict[str, int]:
    """Returns the axis along which tensors' channels were made, as far as the graph tells."""
    tracer = _Tracer(model)
    found = {tensor: tracer.channels(tensor) for tensor in tensors}
    return {tensor: axis for tensor, axis in found.items() if axis is not None}


class _Tracer:
    """Follows tensors backwards."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._made = model.index.producer
        self._constants = model.index.constants
        self._steps = 0

    def reaches_concat(self, tensor: str) -> bool:
        """Whether a Concat is met on the way back, before shapes are asked for, which takes longer."""
        for _ in range(_MOST_STEPS):
            node = self._made.get(tensor)
            if node is None:
                return False
            if node.op_type == "Concat":
                return len(node.input) > 1
            before = self._source(node)
            if before is None:
                return False
            tensor = before
        return False

    def channels(self, tensor: str, steps: int = 0) -> int | None:
        """The axis of a tensor's channels; None where the graph does not tell, or it counts the samples."""
        node, shape = self._made.get(tensor), self.shape(tensor)
        if node is None or not shape or steps > _MOST_STEPS:
            return None
        rank = len(shape)
        if node.op_type == "Concat":
            return int(attribute(node, "axis", 0)) % rank or None
        if node.op_type in _MAKING_CHANNELS:
            return _MAKING_CHANNELS[node.op_type] % rank or None
        before = self._source(node)
        if before is None and node.op_type in _AFFINE:
            before = str(node.input[0])
        axis = None if before is None else self.channels(before, steps + 1)
        if before is None or axis is None:
            return None
        if node.op_type == "Transpose":
            perm = attribute(node, "perm", list(reversed(range(rank))))
            return list(perm).index(axis) or None
        if node.op_type not in _RESHAPING:
            return axis if len(self.shape(before) or ()) == rank else None
        kept = [place for place in range(1, rank) if _axis_before(self.shape(before), shape, place) == axis]
        return kept[0] if kept else None

    def _source(self, node: onnx.NodeProto) -> str | None:
        """The input whose elements a node gives, moved, picked or scaled; None where it computes others."""
        if node.op_type in _ELEMENTWISE | _RESHAPING or node.op_type in ("Transpose", "Slice", "Split"):
            return str(node.input[0])
        if node.op_type in _AFFINE:
            varying = [name for name in node.input if name not in self._constants]
            return varying[0] if len(varying) == 1 else None
        return None

    @cached_property
    def _shapes(self) -> dict[str, _Shape | None]:
        return {name: info.shape for name, info in self._model.values().items()}

    def shape(self, tensor: str) -> _Shape | None:
        """The shape of a tensor as far as it is known."""
        return self._shapes.get(tensor)

    def size(self, tensor: str, axis: int) -> int | None:
        """The size of a tensor along an axis, where it is known."""
        shape = self.shape(tensor) or ()
        size = shape[axis] if axis < len(shape) else None
        return size if isinstance(size, int) else None

    def segments(self, tensor: str, axis: int, depth: int) -> list[Segment] | None:
        """What a tensor is joined of along an axis; None where sizes are not known."""
        self._steps += 1
        node = self._made.get(tensor)
        found = None
        if node is not None and depth < _MOST_STEPS and self._steps < _MOST_NODES:
            found = self._joined(node, tensor, axis, depth + 1)
        if found is not None and len(found) == 1:  # a factor may have changed the unit
            name = tensor if _WORD.fullmatch(tensor) else found[0].tensor
            return [replace(found[0], kind=self.kind(tensor), tensor=name)]
        if found is not None:
            return found
        size = self.size(tensor, axis)
        return None if size is None else [Segment(size, self.kind(tensor), tensor)]

    def _joined(self, node: onnx.NodeProto, tensor: str, axis: int, depth: int) -> list[Segment] | None:
        source = self._source(node)
        if node.op_type == "Concat":
            return self._of_concat(node, axis, depth)
        if source is None:
            return None
        if node.op_type == "Transpose":
            rank = len(self.shape(tensor) or ())
            perm = attribute(node, "perm", list(reversed(range(rank))))
            return self.segments(source, int(perm[axis]), depth)
        if node.op_type in _RESHAPING:
            before = _axis_before(self.shape(source), self.shape(tensor), axis)
            return None if before is None else self.segments(source, before, depth)
        if node.op_type in ("Slice", "Split"):
            return self._of_cut(node, tensor, axis, depth)
        if node.op_type in _AFFINE and len(self.shape(source) or ()) != len(self.shape(tensor) or ()):
            return None
        return self.segments(source, axis, depth)

    def _of_concat(self, node: onnx.NodeProto, axis: int, depth: int) -> list[Segment] | None:
        rank = len(self.shape(node.output[0]) or ())
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
        """The inputs with the size of one that is not known, where the whole tells it."""
        total, missing = self.size(node.output[0], axis), [i for i, s in enumerate(inputs) if s is None]
        if total is None or len(missing) != 1:
            return list(inputs)
        rest = total - sum(segment.size for segments in inputs for segment in segments or ())
        name = node.input[missing[0]]
        found = list(inputs)
        found[missing[0]] = [Segment(rest, self.kind(name), name)]
        return found

    def _of_cut(self, node: onnx.NodeProto, tensor: str, axis: int, depth: int) -> list[Segment] | None:
        """Of a Slice or Split: those segments that are left."""
        rank = len(self.shape(node.input[0]) or ())
        inner = self.segments(node.input[0], axis, depth)
        if inner is None or not rank:
            return None
        if node.op_type == "Split":
            if int(attribute(node, "axis", 0)) % rank != axis:
                return inner
            sizes = [self.size(name, axis) for name in node.output]
            place = list(node.output).index(tensor)
            before = [size for size in sizes[:place] if size is not None]
            size = sizes[place]
            if len(before) < place or size is None:
                return None
            return _cut(inner, sum(before), sum(before) + size)
        starts, ends, axes, steps = (self._integers(node, i) for i in (1, 2, 3, 4))
        if starts is None or ends is None:
            return None
        axes = list(range(len(starts))) if axes is None else [place % rank for place in axes]
        if axis not in axes:
            return inner
        place = axes.index(axis)
        if steps is not None and steps[place] != 1:
            return None
        total = sum(segment.size for segment in inner)
        start, stop, _ = slice(starts[place], ends[place]).indices(total)
        return _cut(inner, start, stop)

    def _integers(self, node: onnx.NodeProto, place: int) -> list[int] | None:
        """A constant input as integers; None where there is none."""
        if place >= len(node.input) or not node.input[place]:
            return None
        array: Array | None = self._model.constants().get(node.input[place])
        return None if array is None else [int(value) for value in array.ravel()]

    def kind(self, tensor: str, depth: int = 0) -> str:
        """``scores`` where all elements of a tensor come from a Sigmoid or Softmax; else empty."""
        node = self._made.get(tensor)
        self._steps += 1
        if node is None or depth > _MOST_STEPS or self._steps > _MOST_NODES:
            return ""
        if node.op_type in _SCORING:
            return SCORES
        if node.op_type in _ELEMENTWISE | _RESHAPING | _PICKING:
            return self.kind(node.input[0], depth + 1)
        if node.op_type == "Concat":  # of scores
            return SCORES if all(self.kind(name, depth + 1) for name in node.input) else ""
        if node.op_type == "Mul":  # of an objectness and classes; a factor that is constant has another unit
            return SCORES if all(self.kind(name, depth + 1) for name in node.input) else ""
        return ""


def _axis_before(before: _Shape | None, after: _Shape | None, axis: int) -> int | None:
    """The axis of a tensor that a reshape keeps as ``axis``; None where it splits or merges it."""
    if before is None or after is None or axis >= len(after):
        return None
    for place, size in enumerate(before):
        alike = isinstance(size, int) and size == after[axis]
        if not alike:
            continue
        if _product(before[place + 1 :]) == _product(after[axis + 1 :]) is not None:
            return place
        first = before[:place] == after[:axis] or place == axis == 1  # the axis of samples alone
        if first and axis:
            return place
    return None


def _product(dims: _Shape) -> int | None:
    total = 1
    for dim in dims:
        if not isinstance(dim, int):
            return None
        total *= dim
    return total


def _cut(segments: Iterable[Segment], start: int, stop: int) -> list[Segment]:
    """What lies from ``start`` to ``stop``."""
    found, place = list[Segment](), 0
    for segment in segments:
        low, high = max(start, place), min(stop, place + segment.size)
        if low < high:
            found.append(replace(segment, size=high - low))
        place += segment.size
    return found


def _aligned(rows: Sequence[list[Segment]]) -> list[Segment] | None:
    """One list of several along the same axis: cut wherever one of them is; scores where all are."""
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
