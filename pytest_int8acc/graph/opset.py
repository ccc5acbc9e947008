"""A model as older parsers read it: in an older opset, and without INT8 initializers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import onnx
import onnx.defs
import onnx.version_converter

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.formats import INT8, UINT8
from pytest_int8acc.graph.index import all_nodes, attribute, refill, subgraphs
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.graph.network import Quantization
from pytest_int8acc.tensors import Array

#: Domain in which the converter passes nodes over.
_SHELTER = "pytest_int8acc.as_it_is"
#: IR version that ONNX of a low opset is written with; the converter stamps the newest.
_IR_VERSION = 8
#: Operators whose defaults, or the names of whose modes, mean something else in older opsets.
_CHANGED = frozenset({"DFT", "GridSample"})
_BYTES = (INT8.dtype, UINT8.dtype)


def lower_opset(model: Model, opset: int) -> Model:
    """``model`` in ``opset``, or itself where it is of none newer.

    ONNX's own converter does it. It has no way back for many operators whose newer versions only add types
    or options (QuantizeLinear, Pad, Reshape); such nodes are passed over where they use nothing new. The axes
    of a reduction become an attribute here: the converter of ONNX 1.19 drops them without a word.

    Raises:
        ModelError: A node needs the newer opset; the message is the converter's reason alone.
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
    lowered.ir_version = min(model.proto.ir_version, _IR_VERSION)
    return replace(make_model(lowered, model.weights, model.name), extra_outputs=model.extra_outputs)


def _same_as_before(
    graph: onnx.GraphProto, constants: Mapping[str, Array], opset: int, older: int
) -> Iterator[onnx.NodeProto]:
    """Nodes of operators that are newer in ``opset``, and use nothing that ``older`` lacks.

    Attributes that only say the default of a newer option are taken off.
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
    """Give a reduction its axes as versions up to 13 take them."""
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
    """Whether an attribute says what holds without it."""
    known = schema.attributes.get(said.name)
    value = onnx.helper.get_attribute_value
    return known is not None and bool(known.default_value.type and value(known.default_value) == value(said))


def float_weights(model: Model) -> Model:
    """``model`` with every DequantizeLinear of a constant behind a QuantizeLinear of the same scale.

    QuantizeLinear gives the same integers again, so nothing is computed otherwise. Only INT8 and UINT8
    constants with FP32 scales are spelled out so.
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
    """What a DequantizeLinear makes a constant from; None where it is no such node."""
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
