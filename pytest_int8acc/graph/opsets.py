"""Models in other opsets: lifted to opset 13 and later, and lowered for older parsers.

Models of opsets 7 to 12 are lifted to opset 13, where per-channel Q/DQ begins. Each operator whose form or
meaning changed on the way becomes nodes of opset 13 that compute the same. ONNX's version converter does not
do that: linear Upsample loses its coordinates, Hardmax its flattened axes (`python -m benchmarks.lifts`). All
other operators of these opsets stay as they are: opset 13 gave them only more types, or attributes whose
defaults change nothing (ONNX operator changelog).

TensorRT's own FP8 operators, which ModelOpt and Transformer Engine export from PyTorch in opsets without FP8,
become the standard operators.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.version_converter
from onnx import TensorProto, helper

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.formats import FP8, INT8, UINT8
from pytest_int8acc.graph.index import all_graphs, all_nodes, attribute, refill, subgraphs
from pytest_int8acc.graph.model import Editor, Model, make_model
from pytest_int8acc.graph.network import Quantization
from pytest_int8acc.tensors import Array

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
        """Replace the nodes of one graph, without the graphs inside its nodes."""
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            until, replace = _LIFTS.get(node.op_type, (0, None))
            if node.domain in ("", "ai.onnx") and replace is not None and self.model.opset < until:
                nodes.extend(replace(self, node))
            else:
                nodes.append(node)
        refill(graph.node, nodes)

    def name(self, node: onnx.NodeProto) -> str:
        """The prefix of the names of nodes that replace ``node``."""
        return str(node.name or node.output[0])

    def constant(self, node: onnx.NodeProto, what: str, values: Any, dtype: Any = np.int64) -> str:
        """The name of a new constant that belongs to ``node``."""
        return self.editor.add_constant(f"{self.name(node)}_{what}", np.array(values, dtype))

    def tensor(self, node: onnx.NodeProto, what: str) -> str:
        """The name of a new tensor between the nodes that replace ``node``."""
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
    """A lift for an attribute of integers that is the input ``place`` in opset 13."""

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
    """A Dropout below opset 12 drops nothing, and ONNX Runtime gives 0 for its mask."""
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
    """With ``spatial: 0`` each element has its own scale and offset, which no operator of opset 13 has."""
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
    """Before opset 13, Softmax, LogSoftmax and Hardmax flattened all axes from ``axis`` on."""
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
    """In opset 10, nearest rounds down where an axis grows, and up where it shrinks."""
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


#: Operators that changed: the first opset of the new form, and the function that converts the old form.
_LIFTS: Mapping[str, tuple[int, Callable[[_Lift, onnx.NodeProto], list[onnx.NodeProto]]]] = {
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


#: The first opset with per-channel QuantizeLinear and DequantizeLinear.
LEAST_OPSET = 13


#: The first opset in which they take FP16 and FP8 (ONNX operator changelog).
QDQ_OPSET = 19


#: Operators of ``LEAST_OPSET`` that only took more types, and options that change nothing where they are
#: absent (ONNX operator changelog), up to the opset below.
_WIDENED = frozenset(
    {"Add", "AveragePool", "Cast", "Constant", "CumSum", "DequantizeLinear", "Div", "Equal", "GRU"}
    | {"GreaterOrEqual", "Identity", "If", "LSTM", "LeakyRelu", "LessOrEqual", "Loop", "Mul", "PRelu", "Pad"}
    | {"Pow", "QuantizeLinear", "RNN", "Relu", "Reshape", "Resize", "Scan", "ScatterElements", "ScatterND"}
    | {"Shape", "Size", "Sub", "Where"}
)


_WIDENED_TO = 19


def raise_opset(model: Model, least: int) -> Model:
    """``model`` in opset ``least`` or later, by ONNX's version converter and the lifts of this module.

    Raises:
        ModelError: A node has no equal in the newer opset, or ONNX's version converter fails.
    """
    if model.opset < OLDEST:
        model = _converted(model, OLDEST)
    if model.opset < LEAST_OPSET <= least:
        model = to_opset_13(model)
    return _converted(model, least)


def _converted(model: Model, least: int) -> Model:
    """``model`` in opset ``least`` or later, by ONNX's version converter."""
    if model.opset >= least:
        return model
    ir_version = model.proto.ir_version
    try:
        proto = onnx.version_converter.convert_version(model.proto, least)
    except Exception as error:  # the converter raises bare RuntimeErrors of many kinds
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"{model.name}: opset {model.opset} cannot be converted to {least}, which is needed here: "
            f"{line}. Export the model with opset {least} or later."
        ) from error
    # The converter stamps the newest IR version, which older runtimes refuse.
    proto.ir_version = max(ir_version, LEAST_IR.get(least, 10))
    return replace(make_model(proto, model.weights, model.name), extra_outputs=model.extra_outputs)


def meaning_since(node: onnx.NodeProto, opset: int) -> int:
    """The first opset in which an operator has the meaning of ``opset``; -1 where ONNX does not know it."""
    since = _form_since(node.op_type, opset)
    if not LEAST_OPSET < since <= _WIDENED_TO:
        return since
    widened = node.op_type in _WIDENED
    if node.op_type == "BatchNormalization":  # its statistics of a batch became other outputs
        widened = len(node.output) == 1 and not attribute(node, "training_mode", 0)
    if node.op_type == "Split":  # the number of equal parts became an attribute
        widened = len(node.input) > 1
    return _form_since(node.op_type, LEAST_OPSET) if widened else since


@functools.cache
def _form_since(op_type: str, opset: int) -> int:
    try:
        return int(onnx.defs.get_schema(op_type, opset, "").since_version)
    except onnx.defs.SchemaError:
        return -1


LEAST_IR = {13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11}


#: Domain of nodes that the converter must not change.
_SHELTER = "pytest_int8acc.as_it_is"
#: IR version of lowered models. The converter itself writes the newest one.
_LOW_IR_VERSION = 8
#: Operators whose defaults, or names of modes, have another meaning in older opsets.
_CHANGED = frozenset({"DFT", "GridSample"})
_BYTES = (INT8.dtype, UINT8.dtype)


def lower_opset(model: Model, opset: int) -> Model:
    """``model`` in ``opset``, or itself where it is of none newer.

    ONNX's version converter does most of it. It cannot lower many operators whose newer versions only add
    types or options (QuantizeLinear, Pad, Reshape). Such nodes are hidden from it where they use nothing new.
    The axes of a reduction become an attribute here, because the converter of ONNX 1.19 drops them silently.

    Raises:
        ModelError: A node needs the newer opset. The message is the reason that the converter gives.
    """
    if model.opset <= opset:
        return model
    proto = copy.deepcopy(model.proto)
    for node in list(_same_as_before(proto.graph, model.constants(), model.opset, opset)):
        node.domain = _SHELTER
    proto.opset_import.append(onnx.helper.make_opsetid(_SHELTER, 1))
    try:
        lowered = onnx.version_converter.convert_version(proto, opset)
    except Exception as error:  # the converter raises bare RuntimeErrors of many kinds
        line = str(error).rpartition("failed: ")[2].strip().partition("\n")[0]
        raise ModelError(line or type(error).__name__) from error
    for node in all_nodes(lowered.graph):
        node.domain = "" if node.domain == _SHELTER else node.domain
    refill(lowered.opset_import, [entry for entry in lowered.opset_import if entry.domain != _SHELTER])
    lowered.ir_version = min(model.proto.ir_version, _LOW_IR_VERSION)
    return replace(make_model(lowered, model.weights, model.name), extra_outputs=model.extra_outputs)


def _same_as_before(
    graph: onnx.GraphProto, constants: Mapping[str, Array], opset: int, older: int
) -> Iterator[onnx.NodeProto]:
    """Nodes whose operators are newer in ``opset``, and that use nothing that ``older`` lacks.

    Attributes with the default value of a newer option are removed.
    """
    for node in all_nodes(graph):
        if node.domain not in ("", "ai.onnx") or node.op_type in _CHANGED or subgraphs(node):
            continue
        try:
            new, old = (onnx.defs.get_schema(node.op_type, version) for version in (opset, older))
        except onnx.defs.SchemaError:  # there was none yet, which the converter says
            continue
        if new.since_version == old.since_version:
            continue
        if "axes" in old.attributes and "axes" not in new.attributes:
            _axes_as_attribute(node, constants)
        if len(node.input) > old.max_input:
            continue
        if all(_is_default(a, new) for a in node.attribute if a.name not in old.attributes):
            refill(node.attribute, [a for a in node.attribute if a.name in old.attributes])
            yield node


def _axes_as_attribute(node: onnx.NodeProto, constants: Mapping[str, Array]) -> None:
    """Make the axes of a reduction an attribute, as in older opsets."""
    axes = np.zeros(0, np.int64)
    if len(node.input) > 1 and node.input[1]:
        if node.input[1] not in constants:
            raise ModelError(
                f"{node.op_type} '{node.name}' computes its axes, which older opsets do not take"
            )
        axes = constants[node.input[1]]
    if not axes.size and attribute(node, "noop_with_empty_axes", 0):
        raise ModelError(f"{node.op_type} '{node.name}' reduces nothing (noop_with_empty_axes)")
    del node.input[1:]
    refill(node.attribute, [a for a in node.attribute if a.name != "noop_with_empty_axes"])
    if axes.size:
        node.attribute.append(onnx.helper.make_attribute("axes", axes.tolist()))


def _is_default(said: onnx.AttributeProto, schema: onnx.defs.OpSchema) -> bool:
    """Whether an attribute has its default value."""
    known = schema.attributes.get(said.name)
    value = onnx.helper.get_attribute_value
    return known is not None and bool(known.default_value.type and value(known.default_value) == value(said))


def float_weights(model: Model) -> Model:
    """``model`` with every DequantizeLinear of a constant behind a QuantizeLinear of the same scale.

    QuantizeLinear gives the same integers again, so results stay the same. Only INT8 and UINT8 constants with
    FP32 scales are changed.
    """
    constants, editor = model.constants(), model.edit()
    made: dict[tuple[str, ...], str] = {}
    nodes: list[onnx.NodeProto] = []
    for node in editor.graph.node:
        found = _quantization(node, constants)
        if found is not None:
            key = (*node.input, str(found.axis))
            if key not in made:
                wide = editor.add_constant(f"{node.input[0]}_float", found.dequantize())
                made[key] = editor.unique(f"{node.input[0]}_quantized")
                name = editor.unique(f"{node.name}_QuantizeLinear")
                quantize = onnx.helper.make_node("QuantizeLinear", [wide, *node.input[1:]], [made[key]], name)
                quantize.attribute.extend(node.attribute)
                nodes.append(quantize)
            node.input[0] = made[key]
        nodes.append(node)
    editor.set_nodes(nodes)
    return editor.done() if made else model


def _quantization(node: onnx.NodeProto, constants: Mapping[str, Array]) -> Quantization | None:
    """The quantization of a constant that a DequantizeLinear reads; None for other nodes."""
    if node.op_type != "DequantizeLinear" or len(node.input) < 3 or not constants.keys() >= set(node.input):
        return None
    codes, scale, zero_point = (constants[name] for name in node.input)
    if (
        codes.dtype not in _BYTES
        or scale.dtype != np.float32
        or any(a.name != "axis" for a in node.attribute)
    ):
        return None
    return Quantization(scale, zero_point, attribute(node, "axis", 1) if scale.ndim else None, codes)


#: TensorRT's FP8 operators, each with its standard operator. Their inputs are a tensor and its scale.
TRT_FP8 = {"TRT_FP8QuantizeLinear": "QuantizeLinear", "TRT_FP8DequantizeLinear": "DequantizeLinear"}
_TRT_DOMAIN = "trt"


def holds_trt_fp8(model: Model) -> bool:
    """Whether TensorRT's own FP8 operators are in the model, or in graphs inside its nodes."""
    return any(node.op_type in TRT_FP8 for node in all_nodes(model.graph))


def standard_fp8(model: Model) -> Model:
    """``model``, of opset 19 or later, with standard operators in place of TensorRT's for FP8."""
    editor, constants = model.edit(), model.constants()
    for node in all_nodes(editor.graph):
        if node.op_type in TRT_FP8:
            node.op_type, node.domain = TRT_FP8[node.op_type], ""
            if len(node.input) == 2:
                scale = constants.get(node.input[1], np.zeros(()))
                node.input.append(editor.add_constant(f"{node.name}_zero_point", FP8.zeros(scale)))
    for graph in all_graphs(editor.graph):  # inner value types, as the main graph's, tell of codes in UINT8
        del graph.value_info[:]
    if not any(node.domain == _TRT_DOMAIN for node in all_nodes(editor.graph)):
        imports = editor.proto.opset_import
        refill(
            imports, [helper.make_opsetid(o.domain, o.version) for o in imports if o.domain != _TRT_DOMAIN]
        )
    return editor.done()
