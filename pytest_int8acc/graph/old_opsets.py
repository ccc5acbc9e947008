"""Lifts models of opsets 7 to 12 to opset 13, where per-channel Q/DQ begins.

Each operator whose form or meaning changed on the way becomes nodes of opset 13 that compute the same. ONNX's
version converter does not do that: linear Upsample loses its coordinates, Hardmax its flattened axes
(`python -m benchmarks.lifts`). All other operators of these opsets stay as they are: opset 13 gave them only
more types, or attributes whose defaults change nothing (ONNX operator changelog).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.index import all_graphs, attribute, refill
from pytest_int8acc.graph.model import Editor, Model

#: The opsets that ``to_opset_13`` knows begin here.
OLDEST = 7
_LIFTED = 13
#: The newest IR version that ONNX had when opset 13 came: older runtimes refuse a newer one.
_IR_VERSION = 7


def to_opset_13(model: Model) -> Model:
    """``model``, of an opset from 7 to 12, as one of opset 13 that computes the same.

    Raises:
        ModelError: A node has no equal in opset 13.
    """
    lift = _Lift(model)
    for graph in all_graphs(lift.editor.graph):
        lift.graph(graph)
    proto = lift.editor.proto
    for entry in proto.opset_import:
        entry.version = _LIFTED if entry.domain in ("", "ai.onnx") else entry.version
    proto.ir_version = max(proto.ir_version, _IR_VERSION)
    return lift.editor.done()


class _Lift:
    """One model under change. Constants that replace attributes become initializers of the main graph."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.editor: Editor = model.edit()
        self.constants = model.constants()
        self._types: dict[str, onnx.TypeProto.Tensor] | None = None

    def graph(self, graph: onnx.GraphProto) -> None:
        """Replace the nodes of one graph; those inside its nodes are left alone."""
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            until, replace = _CHANGED.get(node.op_type, (0, None))
            if node.domain in ("", "ai.onnx") and replace is not None and self.model.opset < until:
                nodes.extend(replace(self, node))
            else:
                nodes.append(node)
        refill(graph.node, nodes)

    def name(self, node: onnx.NodeProto) -> str:
        """What names of nodes in place of ``node`` begin with."""
        return str(node.name or node.output[0])

    def constant(self, node: onnx.NodeProto, what: str, values: Any, dtype: Any = np.int64) -> str:
        """The name of a new constant that belongs to ``node``."""
        return self.editor.add_constant(f"{self.name(node)}_{what}", np.array(values, dtype))

    def tensor(self, node: onnx.NodeProto, what: str) -> str:
        """The name of a new tensor inside what replaces ``node``."""
        return self.editor.unique(f"{node.output[0]}_{what}")

    def dtype(self, tensor: str) -> np.dtype[Any]:
        """The dtype of a tensor; float32 where ONNX's type inference cannot tell."""
        kind = self._type(tensor).elem_type
        return np.dtype(helper.tensor_dtype_to_np_dtype(kind or TensorProto.FLOAT))

    def shape(self, tensor: str) -> list[int | None] | None:
        """The sizes of a tensor, None for each that is open; None where not even their number is known."""
        kind = self._type(tensor)
        if not kind.HasField("shape"):
            return None
        return [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]

    def _type(self, tensor: str) -> onnx.TypeProto.Tensor:
        if self._types is None:
            self._types = {}
            for graph in all_graphs(self.model.inferred):
                for value in (*graph.value_info, *graph.input, *graph.output):
                    self._types[value.name] = value.type.tensor_type
                for constant in graph.initializer:
                    known = helper.make_tensor_type_proto(constant.data_type, constant.dims)
                    self._types[constant.name] = known.tensor_type
        return self._types.get(tensor, onnx.TypeProto.Tensor())


def _like(
    node: onnx.NodeProto, inputs: Sequence[str], dropped: Sequence[str] = (), op_type: str = "", **added: Any
) -> onnx.NodeProto:
    """``node`` with other inputs, and with attributes that are dropped or added."""
    made = copy.deepcopy(node)
    made.op_type = op_type or node.op_type
    refill(made.input, inputs)
    refill(made.attribute, [said for said in made.attribute if said.name not in {*dropped, *added}])
    made.attribute.extend(helper.make_attribute(name, value) for name, value in added.items())
    return made


def _with_input(name: str, place: int) -> Callable[[_Lift, onnx.NodeProto], list[onnx.NodeProto]]:
    """A lift for integers that were the attribute ``name``, and are the input ``place`` in opset 13."""

    def replace(lift: _Lift, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        values = attribute(node, name, None)
        if values is None:
            return [node]
        inputs = [*node.input, *[""] * (place - len(node.input))]
        values = values if isinstance(values, Sequence) else [values]
        return [_like(node, [*inputs, lift.constant(node, name, values)], [name])]

    return replace


def _clip(lift: _Lift, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    dtype, ends = lift.dtype(node.input[0]), []
    for name in ("min", "max"):
        value = attribute(node, name, None)
        ends.append("" if value is None else lift.constant(node, name, value, dtype))
    return [_like(node, [node.input[0], *ends], ["min", "max"])]


def _pad(lift: _Lift, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    value = attribute(node, "value", 0.0)
    inputs = [node.input[0], lift.constant(node, "pads", attribute(node, "pads", []))]
    if value:
        inputs.append(lift.constant(node, "value", value, lift.dtype(node.input[0])))
    return [_like(node, inputs, ["pads", "value"])]


def _slice(lift: _Lift, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    inputs = [node.input[0]]
    for name in ("starts", "ends", "axes"):
        values = attribute(node, name, None)
        if values is not None:
            inputs.append(lift.constant(node, name, values))
    return [_like(node, inputs, ["starts", "ends", "axes"])]


def _dropout(lift: _Lift, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Below opset 12 no Dropout drops anything, and its mask is 0 in ONNX Runtime."""
    nodes = [_like(node, node.input[:1], ["ratio"])]
    if len(node.output) > 1 and node.output[1]:
        mask, shape = node.output[1], lift.tensor(node, "shape")
        refill(nodes[0].output, node.output[:1])
        dtype = np.dtype(bool) if lift.model.opset > 9 else lift.dtype(node.input[0])
        zero = onnx.numpy_helper.from_array(np.zeros(1, dtype))
        nodes.append(helper.make_node("Shape", node.input[:1], [shape], f"{lift.name(node)}/shape"))
        nodes.append(
            helper.make_node("ConstantOfShape", [shape], [mask], f"{lift.name(node)}/mask", value=zero)
        )
    return nodes


def _batch_normalization(lift: _Lift, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """``spatial: 0`` is a scale and an offset for each element: no operator of opset 13 has that."""
    if attribute(node, "spatial", 1):
        return [_like(node, node.input, ["spatial"])]
    x, scale, offset, mean, variance = node.input
    epsilon = lift.constant(node, "epsilon", attribute(node, "epsilon", 1e-5), lift.dtype(x))
    made = [lift.tensor(node, what) for what in ("centered", "variance", "deviation", "unit", "scaled")]
    steps = (
        ("Sub", [x, mean], made[0]),
        ("Add", [variance, epsilon], made[1]),
        ("Sqrt", [made[1]], made[2]),
        ("Div", [made[0], made[2]], made[3]),
        ("Mul", [made[3], scale], made[4]),
        ("Add", [made[4], offset], node.output[0]),
    )
    name = lift.name(node)
    return [helper.make_node(op, inputs, [output], f"{name}/{output}") for op, inputs, output in steps]


def _softmax(lift: _Lift, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Softmax, LogSoftmax and Hardmax were over all axes from ``axis`` on, flattened."""
    axis, shape = attribute(node, "axis", 1), lift.shape(node.input[0])
    if shape is not None:
        axis += len(shape) if axis < 0 else 0
        if all(size == 1 for size in shape[axis + 1 :]):
            return [_like(node, node.input, axis=axis)]
    elif axis == -1:
        return [_like(node, node.input, axis=axis)]
    shape_of, flat, done = (lift.tensor(node, what) for what in ("shape", "flat", "flat_result"))
    inner = _like(node, [flat], axis=-1)
    refill(inner.output, [done])
    name = lift.name(node)
    return [
        helper.make_node("Shape", node.input, [shape_of], f"{name}/shape"),
        helper.make_node("Flatten", node.input, [flat], f"{name}/flat", axis=axis),
        inner,
        helper.make_node("Reshape", [done, shape_of], node.output, f"{name}/result"),
    ]


def _upsample(lift: _Lift, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    scales = attribute(node, "scales", None)
    name = node.input[1] if scales is None else lift.constant(node, "scales", scales, np.float32)
    old = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return [_like(node, [node.input[0], "", name], ["scales"], "Resize", **old)]


def _resize(lift: _Lift, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    if lift.model.opset == 10:
        return _resize_of_opset_10(lift, node)
    inputs = [*node.input, ""][:4]
    added = {}
    nearest = attribute(node, "mode", b"nearest"), attribute(node, "nearest_mode", b"")
    coordinates = attribute(node, "coordinate_transformation_mode", b"half_pixel")
    if coordinates == b"tf_half_pixel_for_nn" and nearest == (b"nearest", b"floor"):  # opset 13 lacks it
        added = {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"}
    if coordinates != b"tf_crop_and_resize":
        inputs[1] = ""
    if inputs[3]:  # opset 11 wants scales that are empty beside sizes, and opset 13 none
        inputs[2] = ""
    return [_like(node, inputs if inputs[3] else inputs[:3], **added)]


def _resize_of_opset_10(lift: _Lift, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Nearest takes the element below where an axis grows, and the one above where it shrinks."""
    x, scales = node.input
    old = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    known = lift.constants.get(scales)
    if attribute(node, "mode", b"nearest") != b"nearest" or (known is not None and (known >= 1).all()):
        return [_like(node, [x, "", scales], **old)]
    if known is not None and (known <= 1).all():
        return [_like(node, [x, "", scales], **old | {"nearest_mode": "ceil"})]
    one = lift.constant(node, "one", 1, np.float32)
    shrinking, growing, small = (lift.tensor(node, what) for what in ("shrinking", "growing", "small"))
    name = lift.name(node)
    first = _like(node, [x, "", shrinking], **old | {"nearest_mode": "ceil"})
    first.name = f"{name}/shrink"
    refill(first.output, [small])
    return [
        helper.make_node("Min", [scales, one], [shrinking], f"{name}/shrinking"),
        helper.make_node("Max", [scales, one], [growing], f"{name}/growing"),
        first,
        _like(node, [small, "", growing], **old),
    ]


def _scatter(lift: _Lift, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    return [_like(node, node.input, op_type="ScatterElements")]


def _scan(lift: _Lift, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    raise ModelError(
        f"{lift.model.name}: node '{lift.name(node)}' is a Scan of opset 8, over batches; opset 13 "
        "has none. Export the model with opset 9 or later."
    )


#: Operators that changed: the first opset of the new form, and what makes it of the old one.
_CHANGED: Mapping[str, tuple[int, Callable[[_Lift, onnx.NodeProto], list[onnx.NodeProto]]]] = {
    "BatchNormalization": (9, _batch_normalization),
    "Clip": (11, _clip),
    "Dropout": (12, _dropout),
    "Hardmax": (13, _softmax),
    "LogSoftmax": (13, _softmax),
    "Pad": (11, _pad),
    "ReduceSum": (13, _with_input("axes", 1)),
    "Resize": (13, _resize),
    "Scan": (9, _scan),
    "Scatter": (11, _scatter),
    "Slice": (10, _slice),
    "Softmax": (13, _softmax),
    "Split": (13, _with_input("split", 1)),
    "Squeeze": (13, _with_input("axes", 1)),
    "TopK": (10, _with_input("k", 1)),
    "Unsqueeze": (13, _with_input("axes", 1)),
    "Upsample": (10, _upsample),
}
