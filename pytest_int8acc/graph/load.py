"""Reads an ONNX file into a Model in normal form, which the rest of graph/ relies on.

Normal form: no local functions, no FP8 operators of TensorRT's own, no Constant nodes in the main graph,
every node with a name of its own, initializers not listed as inputs, opset 13 or later (per-channel Q/DQ
begins there), open sizes without a number, and weights that reach their reader through Transpose, Reshape,
Identity, Cast or arithmetic with other constants folded into one initializer.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.version_converter
from google.protobuf.message import DecodeError
from onnx import TensorProto, numpy_helper
from onnx.inliner import inline_local_functions

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.fold import fold_constants, fold_sizes
from pytest_int8acc.graph.index import all_graphs, all_nodes, attribute, refill, take_name
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.graph.opsets import (
    LEAST_OPSET,
    QDQ_OPSET,
    holds_trt_fp8,
    meaning_since,
    raise_opset,
    set_opset,
    standard_fp8,
)
from pytest_int8acc.graph.validate import validated
from pytest_int8acc.tensors import Array

_PROTOBUF_BYTES = 1 << 31
#: Initializers need not be among the graph's inputs from this IR version on.
_IR_OF_UNLISTED_INITIALIZERS = 4


def load_model(path: Path) -> Model:
    """Read an ONNX model, external data mapped rather than read.

    Raises:
        ModelError: The file is missing, no ONNX model, incomplete, or cannot be brought into normal form.
    """
    file = read_model(path)
    model = normalize(Model(copy.deepcopy(file.proto), file.weights, file.name))
    _check_outputs(model)
    return replace(model, file=file)


def read_model(path: Path) -> Model:
    """Read an ONNX model without bringing it into normal form, for lint.

    Raises:
        ModelError: The file is missing, no ONNX model, or incomplete.
    """
    return validated(_read(path), path)


def normalize(model: Model) -> Model:
    """``model`` in the normal form of this module; see its docstring."""
    name = model.name
    extra_outputs, model = model.extra_outputs, make_model(_inlined(model), model.weights, name)
    _drop_initializers_from_inputs(model.proto)
    _open_negative_sizes(model.graph)
    _hoist_constants(model)
    least = QDQ_OPSET if holds_trt_fp8(model) else LEAST_OPSET
    model = raise_opset(make_model(model.proto, model.weights, name), least)
    _hoist_constants(model)  # the converter writes axes as Constant nodes
    model = make_model(model.proto, model.weights, name)
    _name_nodes(model.graph)
    model = fold_sizes(fold_constants(model))
    return replace(
        _tell_kernels(standard_fp8(model) if holds_trt_fp8(model) else model), extra_outputs=extra_outputs
    )


def _inlined(model: Model) -> onnx.ModelProto:
    """The model's protobuf without local functions."""
    if not model.proto.functions:
        return model.proto
    try:
        return inline_local_functions(model.proto)
    except RuntimeError as error:
        line = " ".join(str(error).split())
        raise ModelError(f"{model.name}: its local functions cannot be inlined: {line}") from error


def lift(model: Model, least: int) -> Model:
    """``model`` in opset ``least`` at least, in normal form before and after; see ``raise_opset``.

    Where no node changes its meaning on the way, nothing is converted.
    """
    if model.opset >= least:
        return model
    if not all(_means_the_same(node, model.opset, least) for node in all_nodes(model.graph)):
        return normalize(raise_opset(model, least))
    proto = copy.deepcopy(model.proto)
    set_opset(proto, least)
    return Model(proto, model.weights, model.name)


def _means_the_same(node: onnx.NodeProto, opset: int, newer: int) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return True
    return meaning_since(node, opset) == meaning_since(node, newer)


def _read(path: Path) -> onnx.ModelProto:
    try:
        if path.exists() and not path.is_file():
            raise ModelError(f"{path}: cannot be read: not a regular file")
        if path.stat().st_size >= _PROTOBUF_BYTES:
            raise ModelError(f"{path}: larger than 2 GiB, where protobuf ends: save weights as external data")
        data = path.read_bytes()
        if data.startswith(b"version https://git-lfs"):
            raise ModelError(f"{path}: a Git LFS pointer, not the model itself: run 'git lfs pull'")
        proto: onnx.ModelProto = onnx.ModelProto.FromString(data)
    except FileNotFoundError:
        raise ModelError(f"{path}: no such model file") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    except DecodeError:
        raise ModelError(f"{path}: not an ONNX model (expected a file as torch.onnx.export writes)") from None
    if not proto.graph.node:
        raise ModelError(f"{path}: not an ONNX model, or one without a single node")
    return proto


def _check_outputs(model: Model) -> None:
    """Raise ModelError where an output is declared with another element type than ONNX infers."""
    editor = model.edit()
    for value in editor.graph.output:
        value.ClearField("type")
    made = Model(editor.proto, model.weights, model.name).inferred.output
    for declared, value in zip(model.graph.output, made, strict=True):
        said, found = (v.type.tensor_type.elem_type for v in (declared, value))
        if said != found and said and found:
            kinds = [TensorProto.DataType.Name(kind) for kind in (said, found)]
            raise ModelError(
                f"{model.name}: output '{value.name}' is declared {kinds[0]}, and the model makes {kinds[1]}"
            )


def _drop_initializers_from_inputs(proto: onnx.ModelProto) -> None:
    """Remove initializers from the inputs, where IR version 3 lists them.

    The IR version becomes 4 at least, because the version converter refuses version 3 without them.
    """
    graph = proto.graph
    constant = {tensor.name for tensor in graph.initializer}
    refill(graph.input, [value for value in graph.input if value.name not in constant])
    proto.ir_version = max(proto.ir_version, _IR_OF_UNLISTED_INITIALIZERS)


def _open_negative_sizes(graph: onnx.GraphProto) -> None:
    """Clear open sizes that exporters such as Paddle's write as -1 or '?', which ONNX's tools refuse."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value < 0 or dim.dim_param == "?":
                dim.Clear()


def _hoist_constants(model: Model) -> None:
    """Turn the main graph's Constant nodes into initializers, in place."""
    graph = model.graph
    kept = []
    for node in graph.node:
        tensor = constant_value(node)
        if tensor is None:
            kept.append(node)
        else:
            tensor.name = node.output[0]
            graph.initializer.append(tensor)
    if len(kept) < len(graph.node):
        refill(graph.node, kept)


def body_constants(graph: onnx.GraphProto) -> dict[str, Array]:
    """Values of the initializers and Constant nodes of a graph inside a node, by name."""
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        value = constant_value(node)
        if value is not None:
            found[node.output[0]] = numpy_helper.to_array(value)
    return found


def constant_value(node: onnx.NodeProto) -> TensorProto | None:
    """The tensor that a Constant node makes; None for other nodes, strings and sparse tensors."""
    if node.op_type != "Constant" or node.domain:
        return None
    for said in node.attribute:
        value = onnx.helper.get_attribute_value(said)
        if said.name == "value":
            tensor: TensorProto = copy.deepcopy(value)
            return tensor
        if said.name in ("value_float", "value_floats"):
            return numpy_helper.from_array(np.array(value, np.float32))
        if said.name in ("value_int", "value_ints"):
            return numpy_helper.from_array(np.array(value, np.int64))
    return None


def _name_nodes(graph: onnx.GraphProto) -> None:
    """Give unnamed nodes TensorRT's name for them (``node_of_<output>``), and repeated names a number.

    A name is unique in the whole model: nodes of the main graph are named first, then those in bodies of If,
    Loop and Scan.
    """
    taken: set[str] = set()
    for each in all_graphs(graph):
        for node in each.node:
            preferred = node.name or f"node_of_{next(filter(None, node.output), node.op_type)}"
            node.name = take_name(preferred, taken)


def _tell_kernels(model: Model) -> Model:
    """Write out each convolution's ``kernel_shape``, in place: TensorRT 8.6 sees none behind Q/DQ."""
    silent = [
        node
        for node in model.graph.node
        if node.op_type in ("Conv", "ConvTranspose")
        and node.domain == ""
        and attribute(node, "kernel_shape", None) is None
    ]
    shapes = {name: array.shape for name, array in model.constants().items()}
    if any(node.input[1] not in shapes for node in silent):
        shapes |= {name: info.shape for name, info in model.values().items() if info.shape}
    for node in silent:
        kernel = shapes.get(node.input[1], ())[2:]
        if kernel and all(isinstance(size, int) for size in kernel):
            node.attribute.append(onnx.helper.make_attribute("kernel_shape", list(kernel)))
    return model
