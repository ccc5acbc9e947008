"""Guesses what the outputs of a model hold, from the model's graph, from names, and from shapes in a run."""

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
from pytest_int8acc.results.scores import FittingMetric
from pytest_int8acc.tensors import Dim, TensorInfo

#: An output of a Gemm, shape [N, C], is taken for scores of classes if C is at least this number. If the
#: output's name suggests classes, such as ``logits``, C may be smaller.
CLASSES = 10
#: Operators whose result holds only elements of their first input, perhaps in another order.
_PARTS = {"Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose"}
_PARTS |= {"Unsqueeze"}
#: Operators whose result holds all elements of their input in the same order.
_SAME = frozenset({"Identity", "Cast", "Flatten", "Reshape", "Squeeze"})
#: Matches names of outputs that suggest scores of classes.
_CLASS_NAME = re.compile(r"logit|class|cls|categor|prob|softmax", re.IGNORECASE)
#: Matches names of outputs and of model files that suggest something other than classes.
_OTHER_NAME = re.compile(
    r"landmark|lmk|keypoint|kpt|kps|point|box|coord|pose|offset|angle|gaze|embed|feat|hidden|latent|regress"
    r"|(?<![a-z])reg(?![a-z])",
    re.IGNORECASE,
)
#: Matches names of inputs and outputs that carry a state from one run to the next.
STATE_NAME = re.compile(r"state|hidden|cache|past|present|^[hc]n?(_?\d+)?$", re.IGNORECASE)
#: Usual numbers of points on a face, a hand or a body. Each point has two or three coordinates.
_POINTS = (5, 17, 21, 33, 68, 98, 106, 468, 478)
_Shape = tuple[Dim, ...]
#: The layout of a YOLO output in which a Concat joins boxes and scores, by rank of the output and axis of the
#: Concat.
_LAYOUTS = {(3, 1): "yolov8", (3, 2): "yolov5"}


@dataclass(frozen=True)
class Guess:
    """A guess of what an output holds."""

    text: str
    axis: int | None = None
    """The axis of classes if the output is taken for scores of classes; None if not. -1 is the last axis."""
    doubt: str = ""
    """Why an output that may hold scores of classes is not treated as scores of classes; empty for others."""


def guesses(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Guess]:
    """Return a guess of what each output holds, by output name.

    Args:
        model: A model in normal form; see ``graph.load``.
        shapes: Name to shape, of inputs and outputs in a run. For other names, the model's declared shapes
            are used.
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
            # An axis of classes has a fixed size in the model. A last axis without a fixed size counts time
            # steps or positions.
            columns = tensor.shape[-1] if tensor.shape else None
            found[tensor.name] = _of_floats(model, tensor.name, shape, isinstance(columns, int))
    return found


@dataclass(frozen=True)
class Joined:
    """An output that a Concat joins from parts of different kinds, such as boxes and scores."""

    axis: int
    sizes: tuple[int, ...]
    names: tuple[str, ...]
    """A word for each part, such as ``boxes``; ``others`` if the graph does not show what the part holds."""
    layout: str = ""
    """YOLO's layout, as the value of ``decode`` for the metric ``coco_map``; empty for another layout."""

    @property
    def text(self) -> str:
        """The parts with their sizes, as text for a comment in the spec."""
        return ", ".join(f"{name} ({size})" for name, size in zip(self.names, self.sizes, strict=True))


def joined_outputs(model: Model) -> dict[str, Joined]:
    """Return, by output name, the parts of each float output that a Concat joins from parts of several kinds.

    Outputs that depend on a selecting operator, such as TopK, are left out.
    """
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


def fitting_metric(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> FittingMetric | None:
    """Return a built-in metric that can compare an output with labels; None if no metric is known to fit.

    Args:
        model: A model in normal form; see ``graph.load``.
        shapes: Name to shape of the outputs in a run.
    """
    own = [tensor.name for tensor in model.own_outputs]
    several = len(own) > 1
    for name, parts in joined_outputs(model).items():
        if name not in own:
            continue
        if parts.layout:
            return FittingMetric("coco_map", name if several else "", decode=parts.layout)
        if "boxes" in parts.names:
            return FittingMetric("coco_map")
    for name, guess in guesses(model, shapes).items():
        if guess.axis is not None and name in own:
            is_map = len(shapes.get(name, ())) == 4
            axis = None if guess.axis == -1 else guess.axis
            return FittingMetric("miou" if is_map else "top1", name if several else "", axis)
    return None


def _name_of(segments: Sequence[Segment]) -> str:
    """Return a word for what a part of an output holds; ``others`` if its segments differ or are unknown."""
    names = {segment.label for segment in segments}
    return (names.pop() if len(names) == 1 else "") or "others"


def selectors(model: Model) -> list[str]:
    """Return the types of the model's selecting operators, which choose among computed values, such as TopK.

    Operators in the subgraphs of nodes are included.
    """
    return sorted(set[str]().union(*_choosing(model).values()))


def _choosing(model: Model) -> dict[str, set[str]]:
    """Return the nodes that are or contain selecting operators, such as TopK: name to operator types."""
    nodes, outputs = model.index.nodes, [output.name for output in model.outputs]
    found = {name: {nodes[name].op_type} for name in choices(model, outputs)}
    for node in model.graph.node:
        if inner := CHOOSING.intersection(n.op_type for graph in subgraphs(node) for n in all_nodes(graph)):
            found[node.name] = {*inner}
    return found


def before_selection(model: Model) -> list[str]:
    """Return the float tensors that hold boxes or scores before a selecting node, such as TopK.

    Selecting nodes, or nodes after them, read these tensors. The tensors depend on no selecting node, so they
    can be compared element by element. If several slices of one tensor are read, the whole tensor is returned
    instead of the slices.
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
    """Return the tensor from which operators that only pick or move elements compute the tensor ``name``.

    ``made`` has the node that computes each tensor, by tensor name.
    """
    while name in made and made[name].op_type in _PARTS and made[name].input[0] in made:
        name = made[name].input[0]
    return name


def behind_selection(model: Model) -> set[str]:
    """Return the tensors that depend on a selecting node, such as TopK.

    Small rounding errors may change the number and the order of their elements.
    """
    late, first = set[str](), _choosing(model)
    for node in model.graph.node:
        if node.name in first or not late.isdisjoint((*node.input, *captured(node))):
            late.update(filter(None, node.output))
    return late


def _is_state(tensor: TensorInfo, shape: _Shape, model: Model, known: Mapping[str, _Shape | None]) -> bool:
    taken = [known[t.name] for t in model.inputs if STATE_NAME.search(t.name)]
    return shape in taken and STATE_NAME.search(tensor.name) is not None


def _of_floats(model: Model, name: str, shape: _Shape, fixed: bool) -> Guess:
    """Return a guess of what a float output holds.

    Args:
        model: A model in normal form; see ``graph.load``.
        name: The name of the output.
        shape: The shape of the output in a run.
        fixed: Whether the model fixes the size of the last axis.
    """
    node = _last(model, name)
    if node is None:
        return Guess("")
    ops, rank = f"the last operator is {node.op_type}", len(shape)
    columns = shape[-1] if shape else None
    if node.op_type in ("Softmax", "LogSoftmax") and rank >= 2:
        axis = int(attribute(node, "axis", -1))
        if rank == 2:
            return Guess(f"probabilities of {_many(columns)} classes ({ops})", -1)
        axis = -1 if axis == rank - 1 else axis
        return Guess(f"probabilities of {_many(shape[axis])} classes at each place ({ops})", axis)
    if rank == 2 and _ends_softmax(node, model.index.producer):
        return Guess(f"probabilities of {_many(columns)} classes (the last operators are a Softmax's)", -1)
    if node.op_type == "Sigmoid":
        return Guess(f"probabilities, each for itself ({ops})")
    if rank == 4:
        doubt = "" if shape[1] == 1 else "may be a depth map, an image or boxes as well"
        return Guess(f"a map ({ops})", doubt=doubt)
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


def _last(model: Model, name: str) -> onnx.NodeProto | None:
    """Return the node that computes the output ``name``; None if no node does.

    Nodes at the end that only reshape, cast, or add a bias to a MatMul are skipped.
    """
    made, constants = model.index.producer, model.index.constants
    node = made.get(name)
    while node is not None and node.input:
        varying = [i for i in node.input if i and i not in constants]
        before = made.get(varying[0]) if varying else None
        if before is None:
            break
        adds_bias = node.op_type == "Add" and len(varying) == 1 and before.op_type == "MatMul"
        if not adds_bias and node.op_type not in _SAME:
            break
        node = before
    return node


def _ends_softmax(node: onnx.NodeProto, made: Mapping[str, onnx.NodeProto]) -> bool:
    """Return whether ``node`` divides an Exp by the ReduceSum of that Exp."""
    if node.op_type != "Div" or not all(name in made for name in node.input):
        return False
    exp, total = (made[name] for name in node.input)
    while total.op_type in _PARTS and total.input[0] in made:
        total = made[total.input[0]]
    return exp.op_type == "Exp" and total.op_type == "ReduceSum" and total.input[0] == node.input[0]


def _doubt(model: Model, name: str, columns: int) -> str:
    """Return why an output, which may hold scores of ``columns`` classes, may hold something else.

    The result is empty if nothing speaks against scores of classes.
    """
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
