"""Reads an ONNX file into a Model in normal form, which the rest of graph/ relies on.

A model in normal form has no local functions, none of TensorRT's own FP8 operators, and no Constant nodes in
the main graph. Float constants of graphs inside If, Loop and Scan lie in the main graph. Names of nodes are
unique, and so are names of tensors. Initializers are not listed as inputs. The opset is 13 or later, because
per-channel Q/DQ needs it. Sizes that are not fixed have no number. If a weight was computed by Transpose,
Reshape, Identity, Cast or arithmetic with other constants, the result is stored as an initializer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
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
from pytest_int8acc.graph.index import (
    all_graphs,
    all_nodes,
    attribute,
    bodies,
    refill,
    rename_inside,
    take_name,
)
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
from pytest_int8acc.graph.types import FLOATS
from pytest_int8acc.graph.validate import validated
from pytest_int8acc.tensors import Array

#: A model file of this number of bytes or more is refused, because a protobuf message cannot be larger.
_PROTOBUF_BYTES = 1 << 31
#: The first IR version in which initializers need not be listed as inputs of the graph.
_IR_OF_UNLISTED_INITIALIZERS = 4


def load_model(path: Path) -> Model:
    """Read an ONNX model and bring it into normal form. External data are memory-mapped.

    Raises:
        ModelError: The file is missing, not an ONNX model, incomplete, or cannot be brought into normal form.
    """
    file = read_model(path)
    return replace(normalize(Model(copy.deepcopy(file.proto), file.weights, file.name)), file=file)


def read_model(path: Path) -> Model:
    """Read an ONNX model without bringing it into normal form. Lint checks such a model.

    Raises:
        ModelError: The file is missing, not an ONNX model, or incomplete.
    """
    return validated(_read(path), path)


def normalize(model: Model) -> Model:
    """``model`` in the normal form that the docstring of this module describes."""
    name, extra_outputs = model.name, model.extra_outputs
    model = make_model(_inlined(model), model.weights, name)
    _drop_initializers_from_inputs(model.proto)
    _open_negative_sizes(model.graph)
    _hoist_constants(model)
    least = QDQ_OPSET if holds_trt_fp8(model) else LEAST_OPSET
    model = raise_opset(make_model(model.proto, model.weights, name), least)
    _hoist_constants(model)  # ONNX's version converter writes axes as Constant nodes
    model = make_model(model.proto, model.weights, name)
    _name_nodes(model.graph)
    _name_inner_tensors(model.graph)
    _hoist_inner_floats(model)
    model = make_model(model.proto, model.weights, name)
    model = fold_sizes(fold_constants(model))
    if holds_trt_fp8(model):
        model = standard_fp8(model)
    _add_kernel_shapes(model)
    return replace(model, extra_outputs=extra_outputs)


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
    """Convert a model in normal form to opset ``least`` or later. The result is also in normal form.

    If no operator changes its meaning between the opsets, only the number of the opset changes.

    Raises:
        ModelError: A node cannot be expressed in the newer opset.
    """
    if model.opset >= least:
        return model
    if not all(_means_the_same(node, model.opset, least) for node in all_nodes(model.graph)):
        return normalize(raise_opset(model, least))
    proto = copy.deepcopy(model.proto)
    set_opset(proto, least)
    return Model(proto, model.weights, model.name)


def _means_the_same(node: onnx.NodeProto, opset: int, newer: int) -> bool:
    return bool(node.domain) or meaning_since(node, opset) == meaning_since(node, newer)


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


def _drop_initializers_from_inputs(proto: onnx.ModelProto) -> None:
    """Remove initializers from the inputs of the graph, in place; models of IR version 3 list them as inputs.

    The IR version becomes at least 4, because ONNX's version converter refuses version 3 without such inputs.
    """
    graph = proto.graph
    constant = {tensor.name for tensor in graph.initializer}
    refill(graph.input, [value for value in graph.input if value.name not in constant])
    proto.ir_version = max(proto.ir_version, _IR_OF_UNLISTED_INITIALIZERS)


def _open_negative_sizes(graph: onnx.GraphProto) -> None:
    """Clear sizes that are stored as -1 or '?', in place.

    Exporters such as Paddle's store sizes that are not fixed in this way, which ONNX's tools refuse.
    """
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value < 0 or dim.dim_param == "?":
                dim.Clear()


def _hoist_constants(model: Model) -> None:
    """Replace the main graph's Constant nodes by initializers, in place."""
    model.graph.initializer.extend(_taken_from_nodes(model.graph, lambda tensor: True))


def _hoist_inner_floats(model: Model) -> None:
    """Move the float constants of graphs inside If, Loop and Scan to the main graph, in place.

    A plan can then change these constants. Names of tensors must be unique. A constant that is an output of
    the inner graph stays, because ONNX Runtime allows no output that lies outside of its graph.
    """
    outputs = {value.name for body in bodies(model.graph) for value in body.graph.output}

    def is_moved(tensor: TensorProto) -> bool:
        return tensor.data_type in FLOATS and tensor.name not in outputs

    for body in bodies(model.graph):
        graph = body.graph
        moved = _taken_from_nodes(graph, is_moved) + [t for t in graph.initializer if is_moved(t)]
        refill(graph.initializer, [tensor for tensor in graph.initializer if not is_moved(tensor)])
        model.graph.initializer.extend(moved)


def _taken_from_nodes(graph: onnx.GraphProto, chosen: Callable[[TensorProto], bool]) -> list[TensorProto]:
    """Remove the Constant nodes of chosen tensors from a graph, in place; returns these tensors."""
    taken: list[TensorProto] = []
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        tensor = constant_value(node)
        if tensor is None or not chosen(tensor):
            nodes.append(node)
        else:
            taken.append(tensor)
    if taken:
        refill(graph.node, nodes)
    return taken


def all_constants(model: Model) -> dict[str, Array]:
    """Name to values of each constant, including Constant nodes inside If, Loop and Scan."""
    found = model.constants()
    for body in bodies(model.graph):
        found.update((tensor.name, numpy_helper.to_array(tensor)) for tensor in body.graph.initializer)
        for node in body.graph.node:
            value = constant_value(node)
            if value is not None:
                found[node.output[0]] = numpy_helper.to_array(value)
    return found


def constant_value(node: onnx.NodeProto) -> TensorProto | None:
    """The tensor of a Constant node, with its name; None for other nodes, strings and sparse tensors."""
    if node.op_type != "Constant" or node.domain:
        return None
    for said in node.attribute:
        value = onnx.helper.get_attribute_value(said)
        tensor: TensorProto | None = None
        if said.name == "value":
            tensor = copy.deepcopy(value)
        elif said.name in ("value_float", "value_floats"):
            tensor = numpy_helper.from_array(np.array(value, np.float32))
        elif said.name in ("value_int", "value_ints"):
            tensor = numpy_helper.from_array(np.array(value, np.int64))
        if tensor is not None:
            tensor.name = node.output[0]
            return tensor
    return None


def _name_nodes(graph: onnx.GraphProto) -> None:
    """Make names of nodes unique in the whole model, in place.

    A node without a name gets the name that TensorRT gives it, ``node_of_<output>``. A number is appended to
    a repeated name. If a node of the main graph and one inside an If, Loop or Scan have the same name, the
    node of the main graph keeps it.
    """
    taken: set[str] = set()
    for each in all_graphs(graph):
        for node in each.node:
            preferred = node.name or f"node_of_{next(filter(None, node.output), node.op_type)}"
            node.name = take_name(preferred, taken)


def _name_inner_tensors(graph: onnx.GraphProto) -> None:
    """Make names of tensors unique in the whole model, in place.

    ONNX lets graphs that do not contain each other, such as both branches of an If, define the same names. A
    number is appended to a repeated name. Tensors of the main graph keep their names.
    """
    taken = {value.name for value in (*graph.input, *graph.initializer)}
    taken.update(name for node in graph.node for name in node.output)
    for body in bodies(graph):
        inner = body.graph
        own = [value.name for value in (*inner.input, *inner.initializer)]
        own += [name for node in inner.node for name in node.output if name]
        names = {name: take_name(name, taken) for name in dict.fromkeys(own)}
        rename_inside(inner, {old: new for old, new in names.items() if old != new})


def _add_kernel_shapes(model: Model) -> None:
    """Add a missing ``kernel_shape`` to each convolution, in place.

    TensorRT 8.6 needs the attribute if a DequantizeLinear computes the weights.
    """
    convolutions = [
        node
        for node in model.graph.node
        if node.op_type in ("Conv", "ConvTranspose")
        and not node.domain
        and attribute(node, "kernel_shape", None) is None
    ]
    shapes = {name: array.shape for name, array in model.constants().items()}
    if any(node.input[1] not in shapes for node in convolutions):
        shapes |= {name: info.shape for name, info in model.values().items() if info.shape}
    for node in convolutions:
        kernel = shapes.get(node.input[1], ())[2:]
        if kernel and all(isinstance(size, int) for size in kernel):
            node.attribute.append(onnx.helper.make_attribute("kernel_shape", list(kernel)))
