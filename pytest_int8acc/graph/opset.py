"""A model in an older opset, for parsers that read no newer one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnx.defs
import onnx.version_converter

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.index import all_nodes, subgraphs
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.tensors import Array

#: Domain in which the converter passes nodes over.
_SHELTER = "pytest_int8acc.as_it_is"
#: IR version that ONNX of a low opset is written with; the converter stamps the newest.
_IR_VERSION = 8
#: Operators whose defaults, or the names of whose modes, mean something else in older opsets.
_CHANGED = frozenset({"DFT", "GridSample"})


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
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
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
    kept = [entry for entry in lowered.opset_import if entry.domain != _SHELTER]
    del lowered.opset_import[:]
    lowered.opset_import.extend(kept)
    lowered.ir_version = min(model.proto.ir_version, _IR_VERSION)
    return make_model(lowered, model.weights, model.name)


def _same_as_before(
    graph: onnx.GraphProto, constants: Mapping[str, Array], opset: int, older: int
) -> Iterator[onnx.NodeProto]:
    """Nodes of operators that are newer in ``opset``, and use nothing that ``older`` lacks.

    Attributes that only say the default of a newer option are taken off.

    Raises:
        ModelError: A reduction computes its axes, or reduces nothing.
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
        added = [a for a in node.attribute if a.name not in old.attributes]
        if all(_is_default(a, new) for a in added):
            for attribute in added:
                node.attribute.remove(attribute)
            yield node


def _axes_as_attribute(node: onnx.NodeProto, constants: Mapping[str, Array]) -> None:
    """Give a reduction its axes as versions up to 13 take them."""
    options = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    axes = np.zeros(0, np.int64)
    if len(node.input) > 1 and node.input[1]:
        if node.input[1] not in constants:
            raise ModelError(
                f"{node.op_type} '{node.name}' computes its axes, which older opsets do not take"
            )
        axes = constants[node.input[1]]
    if not axes.size and options.get("noop_with_empty_axes", 0):
        raise ModelError(f"{node.op_type} '{node.name}' reduces nothing (noop_with_empty_axes)")
    del node.input[1:]
    kept = [attribute for attribute in node.attribute if attribute.name != "noop_with_empty_axes"]
    del node.attribute[:]
    node.attribute.extend(kept)
    if axes.size:
        node.attribute.append(onnx.helper.make_attribute("axes", axes.tolist()))


def _is_default(attribute: onnx.AttributeProto, schema: onnx.defs.OpSchema) -> bool:
    """Whether an attribute says what holds without it."""
    known = schema.attributes.get(attribute.name)
    if known is None or not known.default_value.type:
        return False
    wanted, said = (onnx.helper.get_attribute_value(a) for a in (known.default_value, attribute))
    return bool(wanted == said)
