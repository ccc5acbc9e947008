"""What the outputs of a model seem to be, by its graph, its names and the shapes of one run; all guesses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import onnx

from pytest_int8acc.graph.flow import CHOOSING, SCORES, Segment, choices, joined
from pytest_int8acc.graph.index import all_nodes, attribute, captured, subgraphs
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.types import value_types
from pytest_int8acc.tensors import Dim, TensorInfo

#: An output [N, C] of a Gemm with so many columns or more may be scores of classes.
CLASSES = 10
#: Operators that pick, move or cut what their first input holds.
_PARTS = {"Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose"}
_PARTS |= {"Unsqueeze"}
_SAME = {"Identity", "Cast", "Flatten", "Reshape", "Squeeze"}
_CLASS_NAME = re.compile(r"logit|class|cls|categor|prob|softmax", re.IGNORECASE)
_OTHER_NAME = re.compile(
    r"landmark|lmk|keypoint|kpt|kps|point|box|coord|pose|offset|angle|gaze|embed|feat|hidden|latent|regress"
    r"|(?<![a-z])reg(?![a-z])",
    re.IGNORECASE,
)
STATE_NAME = re.compile(r"state|hidden|cache|past|present|^[hc]n?(_?\d+)?$", re.IGNORECASE)
#: Points of a face, a hand or a body, each of two or three coordinates.
_POINTS = (5, 17, 21, 33, 68, 98, 106, 468, 478)
_Shape = tuple[Dim, ...]
#: Rank of an output of boxes and scores, and the axis along which these are joined, to a layout of YOLO's.
_LAYOUTS = {(3, 1): "yolov8", (3, 2): "yolov5"}


@dataclass(frozen=True)
class Guess:
    """What an output seems to be."""

    text: str
    axis: int | None = None
    """The axis of classes, from the end where it is the last; None: no classes, or not for sure."""
    doubt: str = ""
    """Why it is not taken for classes, where it may be some."""


def guesses(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Guess]:
    """Output to what it seems to be.

    Args:
        model: In normal form.
        shapes: Of inputs and outputs in a run; what is not there is taken as the model declares it.
    """
    chosen = behind_selection(model)
    known: dict[str, _Shape | None] = {t.name: t.shape for t in (*model.inputs, *model.outputs)}
    known.update(shapes)
    found = {}
    for tensor in model.outputs:
        shape = known[tensor.name]
        if tensor.name in chosen:
            found[tensor.name] = Guess(f"what {' and '.join(selectors(model))} chose")
        elif tensor.dtype.kind != "f" or shape is None:
            found[tensor.name] = Guess("classes, counts or positions" if tensor.dtype.kind in "iu" else "")
        elif _is_state(tensor, shape, model, known):
            found[tensor.name] = Guess("the state that the next run takes")
        else:
            columns = tensor.shape[-1] if tensor.shape else None  # what is open there is time or places
            found[tensor.name] = _of_floats(model, tensor.name, shape, isinstance(columns, int))
    return found


@dataclass(frozen=True)
class Joined:
    """Parts of unlike kind that an output is joined of."""

    axis: int
    sizes: tuple[int, ...]
    names: tuple[str, ...]
    """What each holds; ``others`` where the graph does not say."""
    layout: str = ""
    """As ``decode`` of ``coco_map`` has it, where the output looks like one of YOLO's; else empty."""

    @property
    def text(self) -> str:
        """All parts with their sizes, in words."""
        return ", ".join(f"{name} ({size})" for name, size in zip(self.names, self.sizes, strict=True))


def joined_outputs(model: Model) -> dict[str, Joined]:
    """Float outputs in which the graph joins scores with what is none; those behind a choice left out."""
    late, found = behind_selection(model), dict[str, Joined]()
    for tensor in model.outputs:
        known = joined(model, tensor.name) if tensor.dtype.kind == "f" else None
        if known is None or tensor.name in late:
            continue
        axis, segments = known
        kinds = [(kind, list(same)) for kind, same in groupby(segments, lambda segment: segment.kind)]
        if len(kinds) > 1:
            sizes = tuple(sum(segment.size for segment in same) for _, same in kinds)
            names: tuple[str, ...] = tuple(_name_of(same) for _, same in kinds)
            is_yolo = sizes[0] == 4 and [kind for kind, _ in kinds] == ["", SCORES]
            layout = _LAYOUTS.get((len(tensor.shape or ()), axis), "") if is_yolo else ""
            names = ("boxes", "scores") if layout else names
            found[tensor.name] = Joined(axis, sizes, names, layout)
    return found


def _name_of(segments: Sequence[Segment]) -> str:
    """What segments of one kind hold, in a word."""
    names = {segment.label for segment in segments}
    return (names.pop() if len(names) == 1 else "") or "others"


def selectors(model: Model) -> list[str]:
    """The operators of the model, also inside its nodes, that choose among values that it computes."""
    return sorted(set[str]().union(*_choosing(model).values()))


def _choosing(model: Model) -> dict[str, set[str]]:
    """Nodes that choose in front of an output, or hold others that choose, to their operators."""
    nodes, outputs = model.index.nodes, [output.name for output in model.outputs]
    found = {name: {nodes[name].op_type} for name in choices(model, outputs)}
    for node in model.graph.node:
        if inner := CHOOSING.intersection(n.op_type for graph in subgraphs(node) for n in all_nodes(graph)):
            found[node.name] = {*inner}
    return found


def before_selection(model: Model) -> list[str]:
    """The float tensors of the main graph that are read where boxes are chosen, or behind that.

    They hold every box and score, and can be compared element by element; in place of many parts, the whole.
    """
    made = model.index.producer
    late, early = behind_selection(model), dict[str, set[str]]()
    types, fed = value_types(model), {t.name for t in model.inputs}
    floats = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16}
    for node in model.graph.node:
        if not late.isdisjoint(node.output):
            read = [name for name in (*node.input, *captured(node)) if name in fed - late]
            for name in (name for name in read if name in made and types.get(name) in floats):
                early.setdefault(_whole(name, made), set()).add(name)
        if not fed.isdisjoint((*node.input, *captured(node))):
            fed.update(filter(None, node.output))
    return [whole if len(parts) > 1 else parts.pop() for whole, parts in early.items()]


def _whole(name: str, made: Mapping[str, onnx.NodeProto]) -> str:
    """The tensor that ``name`` is a part of, or is made of by moving its elements."""
    while name in made and made[name].op_type in _PARTS and made[name].input[0] in made:
        name = made[name].input[0]
    return name


def behind_selection(model: Model) -> set[str]:
    """Tensors whose elements are chosen among values: their number, order or places hang on rounding."""
    late, first = set[str](), _choosing(model)
    for node in model.graph.node:
        if node.name in first or not late.isdisjoint((*node.input, *captured(node))):
            late.update(filter(None, node.output))
    return late


def _is_state(tensor: TensorInfo, shape: _Shape, model: Model, known: Mapping[str, _Shape | None]) -> bool:
    taken = [known[t.name] for t in model.inputs if STATE_NAME.search(t.name)]
    return shape in taken and STATE_NAME.search(tensor.name) is not None


def _of_floats(model: Model, name: str, shape: _Shape, fixed: bool) -> Guess:
    node, ops = _last(model, name)
    columns, rank = (shape[-1] if shape else None), len(shape)
    if node is None:
        return Guess("")
    if node.op_type in ("Softmax", "LogSoftmax") and rank >= 2:
        axis = int(attribute(node, "axis", -1))
        last = axis in (-1, rank - 1) or rank == 2
        count = shape[-1 if last else axis]
        each = "" if rank == 2 else " at each place"
        return Guess(f"probabilities of {_many(count)} classes{each} ({ops})", -1 if last else axis)
    if rank == 2 and _is_written_out(node, model.index.producer):
        return Guess(f"probabilities of {_many(columns)} classes (the last operators are a Softmax's)", -1)
    if node.op_type == "Sigmoid":
        return Guess(f"probabilities, each for itself ({ops})")
    if rank == 4:
        return Guess(f"a map ({ops})", doubt=_maybe(shape[1], "a depth map, an image or boxes"))
    if node.op_type in ("Gemm", "MatMul") and rank == 2 and isinstance(columns, int):
        doubt = _doubt(model, name, columns)
        if not doubt:
            return Guess(f"scores of {columns} classes ({ops})", -1)
        return Guess(f"{columns} numbers per sample ({ops})", doubt=doubt if columns > 1 else "")
    if rank >= 2 and fixed and isinstance(columns, int) and columns >= CLASSES:
        return Guess(f"features or scores ({ops})", doubt="may be an embedding, features or boxes as well")
    return Guess(f"numbers ({ops})")


def _many(count: Dim) -> str:
    return str(count) if isinstance(count, int) else "some"


def _maybe(count: Dim, other: str) -> str:
    return f"may be {other} as well" if not isinstance(count, int) or count > 1 else ""


def _last(model: Model, name: str) -> tuple[onnx.NodeProto | None, str]:
    """The node that computes an output, but for what moves or casts it or adds a bias; and that in words."""
    made, constants = model.index.producer, model.index.constants
    node = made.get(name)
    while node is not None and node.input:
        varying = [i for i in node.input if i and i not in constants]
        biased = node.op_type == "Add" and len(varying) == 1 and _is(made.get(varying[0]), "MatMul")
        if not biased and node.op_type not in _SAME:
            break
        if varying[:1] == [] or varying[0] not in made:
            break
        node = made[varying[0]]
    return node, "" if node is None else f"the last operator is {node.op_type}"


def _is(node: onnx.NodeProto | None, op_type: str) -> bool:
    return node is not None and node.op_type == op_type


def _is_written_out(node: onnx.NodeProto, made: Mapping[str, onnx.NodeProto]) -> bool:
    """Whether ``node`` ends a Softmax made of its parts: Exp divided by its own ReduceSum."""
    if node.op_type != "Div":
        return False
    exp, total = (made.get(name) for name in node.input)
    while total is not None and total.op_type in _PARTS:
        total = made.get(total.input[0])
    summed = _is(total, "ReduceSum") and total is not None and total.input[0] == node.input[0]
    return summed and _is(exp, "Exp")


def _doubt(model: Model, name: str, columns: int) -> str:
    """Why scores of classes may be something else; empty where nothing speaks against them."""
    said = next(filter(None, map(_OTHER_NAME.search, (name, Path(model.name).stem))), None)
    if said:
        return f"'{said[0].lower()}' in a name speaks against classes"
    if _CLASS_NAME.search(name):
        return ""
    if columns < CLASSES:
        return f"{columns} numbers may be coordinates or measures as well"
    if len(model.outputs) > 1:
        return "beside other outputs it may be a regression as well"
    if any(columns == axes * points for points in _POINTS for axes in (2, 3)):
        return f"{columns} numbers may be coordinates of points as well"
    if columns >= 64 and (columns & (columns - 1) == 0 or columns in (384, 768, 1536)):
        return f"{columns} numbers may be an embedding as well"
    return ""
