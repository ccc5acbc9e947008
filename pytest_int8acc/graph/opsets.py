"""Converts models to other opsets: to opset 13 and later, and to older opsets for older parsers.

Models of opsets 7 to 12 are converted to opset 13 by the functions of ``_LIFTS``, because per-channel Q/DQ
needs opset 13. Operators whose inputs, attributes or meaning changed are replaced by nodes of opset 13 that
compute the same. ONNX's version converter is not used here: it loses the coordinates of an Upsample and of a
Resize of opset 10, the flattened axes of a Hardmax and the mask of a Dropout, and refuses a
BatchNormalization with ``spatial: 0`` (ONNX 1.23; `python -m benchmarks.lifts` checks such models). All other
operators of these opsets do not change, because opset 13 only gave them more types, or attributes whose
defaults change nothing (ONNX operator changelog).

TensorRT's own FP8 operators become the standard operators. ModelOpt and Transformer Engine export them from
PyTorch in opsets without FP8.
"""

from __future__ import annotations

import copy
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
from pytest_int8acc.graph.index import all_graphs, all_nodes, attribute, refill, schema_of, subgraphs
from pytest_int8acc.graph.model import Editor, Model, dtype_of, make_model
from pytest_int8acc.graph.network import Quantization
from pytest_int8acc.tensors import Array

#: The oldest opset that ``_LIFTS`` converts. ONNX's version converter raises older models to this opset.
OLDEST = 7
#: The first opset with per-channel QuantizeLinear and DequantizeLinear.
LEAST_OPSET = 13
#: The first opset that allows FP16 and FP8 in QuantizeLinear and DequantizeLinear (ONNX operator changelog).
QDQ_OPSET = 19


def set_opset(proto: onnx.ModelProto, opset: int) -> None:
    """Set the opset number of ``proto``, and raise its IR version if the opset needs a newer one.

    The IR version is not raised further, because old runtimes refuse newer ones.
    """
    for entry in proto.opset_import:
        if not entry.domain:
            entry.version = opset
    least = helper.find_min_ir_version_for([helper.make_opsetid("", opset)])
    proto.ir_version = max(proto.ir_version, least)


def _to_opset_13(model: Model) -> Model:
    """Convert a model of opset 7 to 12 to opset 13.

    Raises:
        ModelError: A node cannot be expressed in opset 13.
    """
    lift = _Lift(model)
    for graph in all_graphs(lift.editor.graph):
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            changed, convert = _LIFTS.get(node.op_type, (0, None))
            if not node.domain and convert is not None and model.opset < changed:
                nodes.extend(convert(lift, node))
            else:
                nodes.append(node)
        refill(graph.node, nodes)
    set_opset(lift.editor.proto, LEAST_OPSET)
    return lift.editor.done()


class _Lift:
    """A model that is being converted to opset 13.

    Constants that replace attributes go into the main graph.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.editor: Editor = model.edit()
        self.constants = model.constants()
        self._types: dict[str, onnx.TypeProto.Tensor] | None = None

    def name(self, node: onnx.NodeProto) -> str:
        """The prefix of the names of nodes that replace ``node``."""
        return str(node.name or node.output[0])

    def constant(self, node: onnx.NodeProto, what: str, values: Any, dtype: Any = np.int64) -> str:
        """Add a constant for nodes that replace ``node``; return its name, which contains ``what``."""
        return self.editor.add_constant(f"{self.name(node)}_{what}", np.array(values, dtype))

    def tensor(self, node: onnx.NodeProto, what: str) -> str:
        """A new name, which contains ``what``, for a tensor between the nodes that replace ``node``."""
        return self.editor.unique(f"{node.output[0]}_{what}")

    def step(
        self, node: onnx.NodeProto, op_type: str, inputs: Sequence[str], output: str, **attributes: Any
    ) -> onnx.NodeProto:
        """One of the nodes that replace ``node``: a new node with the output ``output``."""
        return helper.make_node(op_type, inputs, [output], f"{self.name(node)}/{output}", **attributes)

    def dtype(self, tensor: str) -> np.dtype[Any]:
        """The dtype of a tensor; float32 if ONNX's type inference does not find it."""
        kind = self._type(tensor).elem_type
        return dtype_of(kind or TensorProto.FLOAT)

    def shape(self, tensor: str) -> list[int | None] | None:
        """The sizes of a tensor, with None for sizes that are not fixed; None if the rank is unknown."""
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
    """A copy of ``node`` with the inputs ``inputs`` and, if it is not empty, the operator ``op_type``.

    The attributes named in ``dropped`` are removed, and the attributes ``added`` are set.
    """
    made = copy.deepcopy(node)
    made.op_type = op_type or node.op_type
    refill(made.input, inputs)
    refill(made.attribute, [said for said in made.attribute if said.name not in {*dropped, *added}])
    made.attribute.extend(helper.make_attribute(name, value) for name, value in added.items())
    return made


def _as_inputs(*names: str) -> Callable[[_Lift, onnx.NodeProto], list[onnx.NodeProto]]:
    """A function that converts an operator whose attributes ``names`` became inputs 1, 2, ... in opset 13."""

    def convert(lift: _Lift, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        inputs = [node.input[0]]
        for name in names:
            value = attribute(node, name, None)
            if value is None:
                inputs.append("")
            elif isinstance(value, float):
                inputs.append(lift.constant(node, name, value, lift.dtype(node.input[0])))
            else:
                inputs.append(lift.constant(node, name, np.ravel(value)))
        while not inputs[-1]:
            inputs.pop()
        return [_like(node, inputs, names)]

    return convert


def _dropout(lift: _Lift, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Convert a Dropout, which drops nothing below opset 12.

    The second output, the mask, becomes zeros, which ONNX Runtime computes below opset 12.
    """
    nodes = [_like(node, node.input[:1], ["ratio"])]
    if len(node.output) > 1 and node.output[1]:
        shape = lift.tensor(node, "shape")
        refill(nodes[0].output, node.output[:1])
        dtype = np.dtype(bool) if lift.model.opset > 9 else lift.dtype(node.input[0])
        zero = onnx.numpy_helper.from_array(np.zeros(1, dtype))
        nodes.append(lift.step(node, "Shape", node.input[:1], shape))
        nodes.append(lift.step(node, "ConstantOfShape", [shape], node.output[1], value=zero))
    return nodes


def _batch_normalization(lift: _Lift, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Convert a BatchNormalization.

    With ``spatial: 0``, each element has its own scale and offset. No operator of opset 13 can do that, so
    several nodes replace such a BatchNormalization.
    """
    if attribute(node, "spatial", 1):
        return [_like(node, node.input, ["spatial"])]
    x, scale, offset, mean, variance = node.input
    epsilon = lift.constant(node, "epsilon", attribute(node, "epsilon", 1e-5), lift.dtype(x))
    parts = ("centered", "sum", "deviation", "unit", "scaled")
    centered, total, deviation, unit, scaled = (lift.tensor(node, part) for part in parts)
    return [
        lift.step(node, "Sub", [x, mean], centered),
        lift.step(node, "Add", [variance, epsilon], total),
        lift.step(node, "Sqrt", [total], deviation),
        lift.step(node, "Div", [centered, deviation], unit),
        lift.step(node, "Mul", [unit, scale], scaled),
        lift.step(node, "Add", [scaled, offset], node.output[0]),
    ]


def _softmax(lift: _Lift, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Convert a Softmax, LogSoftmax or Hardmax. Before opset 13, these flatten all axes from ``axis`` on."""
    axis, shape = attribute(node, "axis", 1), lift.shape(node.input[0])
    if shape is not None:
        axis += len(shape) if axis < 0 else 0
        if all(size == 1 for size in shape[axis + 1 :]):
            return [_like(node, node.input, axis=axis)]
    elif axis == -1:
        return [_like(node, node.input, axis=axis)]
    sizes, flat, flat_result = (lift.tensor(node, what) for what in ("shape", "flat", "flat_result"))
    inner = _like(node, [flat], axis=-1)
    refill(inner.output, [flat_result])
    return [
        lift.step(node, "Shape", node.input, sizes),
        lift.step(node, "Flatten", node.input, flat, axis=axis),
        inner,
        lift.step(node, "Reshape", [flat_result, sizes], node.output[0]),
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
    # Opset 13 lacks the mode tf_half_pixel_for_nn. The modes in ``added`` compute the same.
    if coordinates == b"tf_half_pixel_for_nn" and nearest == (b"nearest", b"floor"):
        added = {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"}
    if coordinates != b"tf_crop_and_resize":
        inputs[1] = ""
    if inputs[3]:  # With sizes, opset 11 needs an empty tensor of scales, and opset 13 needs no scales.
        inputs[2] = ""
    return [_like(node, inputs if inputs[3] else inputs[:3], **added)]


def _resize_of_opset_10(lift: _Lift, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Convert a Resize of opset 10.

    In opset 10, the mode *nearest* rounds positions down on an axis that grows, and up on an axis that
    shrinks.
    """
    x, scales = node.input
    old = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    known = lift.constants.get(scales)
    if attribute(node, "mode", b"nearest") != b"nearest" or (known is not None and (known >= 1).all()):
        return [_like(node, [x, "", scales], **old)]
    if known is not None and (known <= 1).all():
        return [_like(node, [x, "", scales], **old | {"nearest_mode": "ceil"})]
    one = lift.constant(node, "one", 1, np.float32)
    shrinking, growing, small = (lift.tensor(node, what) for what in ("shrinking", "growing", "small"))
    first = _like(node, [x, "", shrinking], **old | {"nearest_mode": "ceil"})
    first.name = f"{lift.name(node)}/{small}"
    refill(first.output, [small])
    return [
        lift.step(node, "Min", [scales, one], shrinking),
        lift.step(node, "Max", [scales, one], growing),
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


#: Key: an operator. Value: the first opset whose version of the operator needs no conversion to opset 13, and
#: the function that converts older versions.
_LIFTS: Mapping[str, tuple[int, Callable[[_Lift, onnx.NodeProto], list[onnx.NodeProto]]]] = {
    "BatchNormalization": (9, _batch_normalization),
    "Clip": (11, _as_inputs("min", "max")),
    "Dropout": (12, _dropout),
    "Hardmax": (13, _softmax),
    "LogSoftmax": (13, _softmax),
    "Pad": (11, _as_inputs("pads", "value")),
    "ReduceSum": (13, _as_inputs("axes")),
    "Resize": (13, _resize),
    "Scan": (9, _scan),
    "Scatter": (11, _scatter),
    "Slice": (10, _as_inputs("starts", "ends", "axes")),
    "Softmax": (13, _softmax),
    "Split": (13, _as_inputs("split")),
    "Squeeze": (13, _as_inputs("axes")),
    "TopK": (10, _as_inputs("k")),
    "Unsqueeze": (13, _as_inputs("axes")),
    "Upsample": (10, _upsample),
}


#: Operators whose versions from opset 13 to opset ``_WIDENED_TO`` mean the same. The newer versions only
#: allow more types, or have options that change nothing if they are absent (ONNX operator changelog).
_WIDENED = frozenset(
    {"Add", "AveragePool", "Cast", "Constant", "CumSum", "DequantizeLinear", "Div", "Equal", "GRU"}
    | {"GreaterOrEqual", "Identity", "If", "LSTM", "LeakyRelu", "LessOrEqual", "Loop", "Mul", "PRelu", "Pad"}
    | {"Pow", "QuantizeLinear", "RNN", "Relu", "Reshape", "Resize", "Scan", "ScatterElements", "ScatterND"}
    | {"Shape", "Size", "Sub", "Where"}
)
_WIDENED_TO = 19


def raise_opset(model: Model, least: int) -> Model:
    """Convert ``model`` to opset ``least``, unless its opset is newer.

    ONNX's version converter and ``_LIFTS`` are used.

    Raises:
        ModelError: A node cannot be expressed in the newer opset, or ONNX's version converter fails.
    """
    if model.opset < OLDEST:
        model = _converted(model, OLDEST)
    if model.opset < LEAST_OPSET <= least:
        model = _to_opset_13(model)
    return _converted(model, least)


def _converted(model: Model, least: int) -> Model:
    """Convert ``model`` to opset ``least`` with ONNX's version converter, unless its opset is newer."""
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
    proto.ir_version = ir_version  # The converter sets the newest IR version, which old runtimes refuse.
    set_opset(proto, least)
    return replace(make_model(proto, model.weights, model.name), extra_outputs=model.extra_outputs)


def meaning_since(node: onnx.NodeProto, opset: int) -> int:
    """The first opset in which the operator of ``node`` has the same meaning as in ``opset``.

    The result is -1 for operators that ONNX does not know.
    """
    since = _form_since(node.op_type, opset)
    if not LEAST_OPSET < since <= _WIDENED_TO:
        return since
    widened = node.op_type in _WIDENED
    if node.op_type == "BatchNormalization":  # In newer versions only the first output is the same.
        widened = len(node.output) == 1 and not attribute(node, "training_mode", 0)
    if node.op_type == "Split":  # Newer versions can take the number of equal parts from an attribute.
        widened = len(node.input) > 1
    return _form_since(node.op_type, LEAST_OPSET) if widened else since


def _form_since(op_type: str, opset: int) -> int:
    """The first opset that has the same version of an operator as ``opset``; -1 for an unknown operator."""
    schema = schema_of(op_type, opset)
    return -1 if schema is None else int(schema.since_version)


#: An operator domain to which nodes are moved while ONNX's version converter runs, so that it skips them.
_SHELTER = "pytest_int8acc.as_it_is"
#: Maximum IR version of models in a lowered opset. The converter sets the newest version, which old parsers
#: refuse.
_LOW_IR_VERSION = 8
#: Operators whose default values or names of modes changed between opsets. Only ONNX's version converter may
#: convert them to an older opset.
_CHANGED = frozenset({"DFT", "GridSample"})
#: Element types of the constants that ``float_weights`` replaces.
_BYTES = (INT8.dtype, UINT8.dtype)


def lower_opset(model: Model, opset: int) -> Model:
    """``model`` in ``opset``, or the model itself if its opset is not newer.

    ONNX's version converter converts most nodes. It refuses many operators whose newer versions only add
    types or options (QuantizeLinear, Pad, Reshape). A node of these operators that uses no newer options is
    hidden from the converter. The axes of a reduction become an attribute before the conversion, because the
    converter of ONNX 1.19 drops them silently.

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
    """Nodes whose operators changed between opset ``older`` and ``opset``, but that mean the same in both.

    Attributes that opset ``older`` lacks are removed from the nodes. They have their default values, so the
    nodes compute the same without them. ``constants`` are the constants of the model, by name.
    """
    for node in all_nodes(graph):
        if node.domain or node.op_type in _CHANGED or subgraphs(node):
            continue
        new, old = (schema_of(node.op_type, version) for version in (opset, older))
        # This node is left to ONNX's version converter. Its operator is the same in both opsets, or one opset
        # lacks the operator. In the latter case the converter raises the error that the caller expects.
        if new is None or old is None or new.since_version == old.since_version:
            continue
        if "axes" in old.attributes and "axes" not in new.attributes:
            _axes_as_attribute(node, constants)
        if len(node.input) > old.max_input:
            continue
        if all(_is_default(a, new) for a in node.attribute if a.name not in old.attributes):
            refill(node.attribute, [a for a in node.attribute if a.name in old.attributes])
            yield node


def _axes_as_attribute(node: onnx.NodeProto, constants: Mapping[str, Array]) -> None:
    """Turn the axes of a reduction from an input into an attribute, as in older opsets.

    Raises:
        ModelError: The axes are not constant, or the node reduces nothing.
    """
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
    """Whether an attribute has the default value of the schema."""
    known = schema.attributes.get(said.name)
    value = onnx.helper.get_attribute_value
    return known is not None and bool(known.default_value.type and value(known.default_value) == value(said))


def float_weights(model: Model) -> Model:
    """``model`` with a float constant and a QuantizeLinear in place of each INT8 or UINT8 constant.

    The QuantizeLinear has the scale of the DequantizeLinear after it, and computes the same integers. Only
    constants with FP32 scales are replaced.
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
    """The quantization of the INT8 or UINT8 constant that ``node`` dequantizes to FP32; else None."""
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


#: TensorRT's own FP8 operators, whose inputs are a tensor and a scale, and the ONNX operators that replace
#: them.
TRT_FP8 = {"TRT_FP8QuantizeLinear": "QuantizeLinear", "TRT_FP8DequantizeLinear": "DequantizeLinear"}
_TRT_DOMAIN = "trt"


def is_trt_fp8(node: onnx.NodeProto) -> bool:
    """Whether ``node`` is one of TensorRT's own FP8 operators, which quantize to FP8 or dequantize from FP8.

    ModelOpt 0.47 exports QuantizeLinear and DequantizeLinear of the domain ``trt``. Older versions and
    Transformer Engine export the operators that are the keys of ``TRT_FP8``.
    """
    return node.op_type in TRT_FP8 or (node.domain == _TRT_DOMAIN and node.op_type in TRT_FP8.values())


def holds_trt_fp8(model: Model) -> bool:
    """Whether the model has TensorRT's own FP8 operators, also inside If, Loop and Scan."""
    return any(is_trt_fp8(node) for node in all_nodes(model.graph))


def standard_fp8(model: Model) -> Model:
    """``model``, of opset 19 or later, with ONNX operators in place of TensorRT's own FP8 operators."""
    editor, constants = model.edit(), model.constants()
    for node in all_nodes(editor.graph):
        if is_trt_fp8(node):
            node.op_type, node.domain = TRT_FP8.get(node.op_type, node.op_type), ""
            scale = constants.get(node.input[1], np.zeros(()))
            zero_point = editor.add_constant(f"{node.name}_zero_point", FP8.zeros(scale))
            refill(node.input, [*node.input[:2], zero_point])
    # The stored types of tensors between nodes are removed, because they still say UINT8 for FP8 codes.
    for graph in all_graphs(editor.graph):
        del graph.value_info[:]
    if not any(node.domain == _TRT_DOMAIN for node in all_nodes(editor.graph)):
        imports = editor.proto.opset_import
        refill(
            imports, [helper.make_opsetid(o.domain, o.version) for o in imports if o.domain != _TRT_DOMAIN]
        )
    return editor.done()
