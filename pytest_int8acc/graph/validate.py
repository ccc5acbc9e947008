"""Validates an ONNX file with onnx.checker and reads its tensors, so that other modules can trust the model.

Files that onnx.checker accepts, but that crash ONNX's own tools or ONNX Runtime, are refused as well.
Operators that ONNX does not know, such as TensorRT's plugins, are not checked.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from pytest_int8acc.errors import ModelError, error_text, listed
from pytest_int8acc.graph.index import (
    all_graphs,
    all_nodes,
    captured,
    inner_names,
    refill,
    schema_of,
    subgraphs,
)
from pytest_int8acc.graph.model import (
    Model,
    dtype_of,
    is_external,
    is_large,
    is_mappable,
    make_model,
    put_constant,
)
from pytest_int8acc.graph.opsets import TRT_FP8
from pytest_int8acc.tensors import Array

#: An operator domain to which nodes are moved while onnx.checker runs, so that it skips them.
_UNCHECKED = "pytest_int8acc.unchecked"
#: A model with an input of this number of elements or more is refused, because TensorRT accepts only fewer.
_MAX_ELEMENTS = 1 << 31
#: The first IR version with local functions.
_IR_OF_FUNCTIONS = 8
#: Maximum number of nodes after local functions are inlined. A model with more nodes is refused, because it
#: would fill the memory.
_MAX_INLINED_NODES = 1_000_000
#: Operators that read a scale, in any operator domain. ONNX Runtime has some of them in a domain of its own.
_QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear", *TRT_FP8})
#: For each control-flow operator, the number of its first inputs that are a trip count or a condition.
_CONTROLS = {"If": 1, "Loop": 2}

_NodeHolder = onnx.GraphProto | onnx.FunctionProto
#: Domain, name and overload of a local function.
_FunctionKey = tuple[str, str, str]


def validated(proto: onnx.ModelProto, path: Path) -> Model:
    """The model ``proto``, which was read from the file ``path``, with its external data memory-mapped.

    Nodes that are not in topological order are sorted: runtimes accept such models, but onnx.checker does
    not.

    Raises:
        ModelError: The file is not a valid model. The message is one line that names the first fault.
    """
    try:
        _check_text(proto)
        _name_one_domain(proto)
        _check_versions(proto)
        _check_values(proto.graph)
        weights = _read_tensors(proto, path.parent.resolve())
        proto = copy.deepcopy(proto)  # a message keeps the memory of values that were removed from it
        for holder in _node_holders(proto):
            _check_unique("nodes", (node.name for node in holder.node))
            _sort_nodes(holder)
        _check_inlined_size(proto)
        _run_checker(proto)
        _check_constants(proto.graph)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error.__cause__
    return make_model(proto, weights, str(path))


def _node_holders(proto: onnx.ModelProto) -> Iterator[_NodeHolder]:
    """The main graph, local functions, and the graphs inside their nodes."""
    yield from all_graphs(proto.graph)
    for function in proto.functions:
        yield function
        for node in function.node:
            for graph in subgraphs(node):
                yield from all_graphs(graph)


def _check_text(message: Message) -> None:
    """Raise ModelError if a name is not UTF-8; protobuf reads such names as bytes."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            for text in [value] if isinstance(value, str | bytes) else value:
                if isinstance(text, bytes):
                    raise ModelError(f"a name is not UTF-8: {text[:80]!r}; export the model again")
        elif field.type == field.TYPE_MESSAGE:
            for inner in [value] if isinstance(value, Message) else value:
                _check_text(inner)


def _name_one_domain(proto: onnx.ModelProto) -> None:
    """Rename the domain of ONNX's operators from ``ai.onnx`` to the empty string, its other name."""
    nodes = [node for holder in _node_holders(proto) for node in holder.node]
    imports = [entry for holder in (proto, *proto.functions) for entry in holder.opset_import]
    for named in (*nodes, *imports, *proto.functions):
        if named.domain == "ai.onnx":
            named.ClearField("domain")


def _read_tensors(proto: onnx.ModelProto, folder: Path) -> dict[str, Array]:
    """Name to values of the main graph's large initializers. Files of external data lie below ``folder``.

    In ``proto``, placeholders replace the large initializers. All other external tensors are stored inline.

    Raises:
        ModelError: A tensor cannot be read, or an initializer is sparse.
    """
    weights: dict[str, Array] = {}
    for holder in _node_holders(proto):
        for tensor in getattr(holder, "initializer", ()):
            array = _read_tensor(tensor, folder, f"weight '{tensor.name}'")
            external = uses_external_data(tensor)
            if holder is proto.graph and (external or is_large(tensor.data_type, array.nbytes)):
                put_constant(tensor, tensor.name, array, weights)
            else:
                _make_inline(tensor, array)
        for sparse in getattr(holder, "sparse_initializer", ()):
            raise ModelError(
                f"weight '{sparse.values.name}' is sparse, which TensorRT cannot read: store it as a plain "
                "tensor"
            )
        for node in holder.node:
            for attribute in node.attribute:
                for tensor in [attribute.t] if attribute.HasField("t") else attribute.tensors:
                    where = f"'{attribute.name}' of {_described(node)}"
                    _make_inline(tensor, _read_tensor(tensor, folder, where))
    return weights


def _make_inline(tensor: TensorProto, array: Array) -> None:
    """Store ``array``, the values of ``tensor``, in ``tensor`` itself if they are external data."""
    if uses_external_data(tensor):
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    # Entries of external data have no meaning in a tensor that stores its values itself. They are removed,
    # because they could make the tensor look like a placeholder.
    del tensor.external_data[:]


def _read_tensor(tensor: TensorProto, folder: Path, where: str) -> Array:
    """The values of a tensor, which may be external data below ``folder``; errors begin with ``where``.

    Raises:
        ModelError: The values cannot be read, or do not fit the tensor's type and sizes.
    """
    _check_element_type(where, tensor.data_type)
    try:
        if uses_external_data(tensor):
            array = _map_external(tensor, folder)
        else:
            array = np.asarray(numpy_helper.to_array(tensor))
        if array.shape != tuple(tensor.dims):
            raise ValueError(f"its sizes are {list(tensor.dims)}, and its data have {list(array.shape)}")
        return array
    except Exception as error:  # NumPy, ONNX and the file system raise exceptions of many types.
        raise ModelError(f"{where} cannot be read: {error_text(error)}") from error


def _map_external(tensor: TensorProto, folder: Path) -> Array:
    """The array of a tensor that is stored in a file below ``folder``.

    Raises:
        ValueError: The tensor does not fit its file, the file is missing, or it lies outside of ``folder``.
        OSError: The file cannot be read.
    """
    info = ExternalDataInfo(tensor)
    file = (folder / info.location).resolve()
    if not file.is_relative_to(folder):
        raise ValueError(
            f"its external data lie outside the model's folder, in {file}: move them beside the model"
        )
    if not file.is_file():
        raise ValueError(
            f"its external data are in '{file.name}', which is no file: copy it beside the model"
        )
    if not is_mappable(tensor.data_type):
        return np.asarray(numpy_helper.to_array(tensor, str(folder)))
    dtype, shape, start = dtype_of(tensor.data_type), tuple(tensor.dims), info.offset or 0
    size = math.prod(shape) * dtype.itemsize
    if info.length not in (None, size):
        raise ValueError(f"of sizes {list(shape)} it has {size} bytes, and its 'length' is {info.length}")
    if start + size > (stored := file.stat().st_size):
        raise ValueError(
            f"its data are bytes {start} to {start + size} of '{file.name}', which has {stored}: the file is "
            "cut off or belongs to another export"
        )
    if size == 0:
        return np.zeros(shape, dtype)
    return np.memmap(file, dtype, mode="r", offset=start, shape=shape)


def _check_values(graph: onnx.GraphProto) -> None:
    """Raise ModelError for unknown element types, misplaced references to attributes, and too large inputs.

    A reference to an attribute is misplaced if its node is not in a local function.
    """
    for each in all_graphs(graph):
        for value in (*each.input, *each.output, *each.value_info):
            _check_element_type(f"'{value.name}'", value.type.tensor_type.elem_type)
        for node in each.node:
            for attribute in node.attribute:
                if attribute.ref_attr_name:
                    raise ModelError(
                        f"'{attribute.name}' of {_described(node)} refers to an attribute of a function, and "
                        "the node is in none"
                    )
    for value in graph.input:
        kind = value.type.tensor_type
        if value.type.HasField("tensor_type") and not kind.elem_type:
            raise ModelError(f"input '{value.name}' has no element type; export the model again")
        sizes = [dim.dim_value for dim in kind.shape.dim if dim.dim_value > 0]
        if math.prod(sizes) >= _MAX_ELEMENTS:
            raise ModelError(
                f"input '{value.name}' of sizes {sizes} has {math.prod(sizes)} elements: export it with "
                f"other sizes; TensorRT takes fewer than {_MAX_ELEMENTS} elements"
            )
    _check_unique("outputs", (value.name for value in graph.output))


def _check_element_type(what: str, kind: int) -> None:
    if kind not in TensorProto.DataType.values():
        raise ModelError(f"{what} has element type {kind}, which ONNX does not have")


def _check_unique(what: str, names: Iterable[str]) -> None:
    counts = Counter(filter(None, names))
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise ModelError(f"two {what} have the name {listed(repeated)}; give each its own")


def _sort_nodes(holder: _NodeHolder) -> None:
    """Sort the nodes of ``holder`` in place, unless they are in topological order already."""
    producers = dict[str, int]()
    for position, node in enumerate(holder.node):
        producers.update(dict.fromkeys(filter(None, node.output), position))
    needed = dict[int, set[int]]()
    for position, node in enumerate(holder.node):
        read = {*node.input, *(captured(node) - inner_names(node))}
        needed[position] = {producers[name] for name in read if name in producers}
    if all(max(earlier, default=-1) < position for position, earlier in needed.items()):
        return
    try:
        order = list(TopologicalSorter(needed).static_order())
    except CycleError as error:
        circle = [_described(holder.node[position]) for position in error.args[1][:5]]
        raise ModelError(f"nodes read one another in a circle: {', '.join(circle)}") from None
    refill(holder.node, [holder.node[position] for position in order])


def _check_inlined_size(proto: onnx.ModelProto) -> None:
    """Raise ModelError if local functions call themselves, or if inlining them makes too many nodes."""
    functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
    if len(functions) < len(proto.functions):
        raise ModelError("two local functions have one name; give each its own")
    sizes: dict[_FunctionKey, float] = {}

    def inlined_size(nodes: Iterable[onnx.NodeProto]) -> float:
        size = 0.0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            if key in functions and key not in sizes:
                # If the function calls itself, this value is read while its size is computed.
                sizes[key] = math.inf
                sizes[key] = inlined_size(functions[key].node)
            size += 1 + sizes.get(key, 0)
            size += sum(inlined_size(graph.node) for graph in subgraphs(node))
        return size

    if functions and inlined_size(proto.graph.node) > _MAX_INLINED_NODES:
        raise ModelError(
            "its local functions call themselves, or come to more than "
            f"{_MAX_INLINED_NODES} nodes when they are inlined"
        )


def _check_versions(proto: onnx.ModelProto) -> None:
    """Raise ModelError if the installed ONNX does not know the model's opset or IR version."""
    newest = onnx.defs.onnx_opset_version()
    version = _opsets(proto.opset_import).get("")
    if version is None:
        raise ModelError("imports no opset of ONNX; export the model again")
    for what, given, known in (("IR version", proto.ir_version, onnx.IR_VERSION), ("opset", version, newest)):
        if not 1 <= given <= known:
            raise ModelError(
                f"{what} {given}: the installed ONNX {onnx.__version__} knows 1 to {known}; install a newer "
                "one, or export the model for an older version"
            )


def _opsets(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """The version of each operator domain; the domain of ONNX is the empty string."""
    versions = dict[str, int]()
    for entry in imports:
        known = versions.setdefault(entry.domain, entry.version)
        if known != entry.version:
            raise ModelError(f"imports two opsets of domain '{entry.domain}': {known} and {entry.version}")
    return versions


def _run_checker(proto: onnx.ModelProto) -> None:
    """Raise ModelError if onnx.checker refuses the model.

    The checker does not get the data of large weights, nor operators that ONNX does not know.
    """
    checked = onnx.ModelProto()
    checked.CopyFrom(proto)
    # For old IR versions, the checker skips local functions. It also demands that initializers are listed as
    # inputs, although no runtime demands this.
    checked.ir_version = max(proto.ir_version, _IR_OF_FUNCTIONS)
    for tensor in checked.graph.initializer:
        if is_external(tensor):
            tensor.CopyFrom(TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0]))
    for value in (*checked.graph.input, *checked.graph.output):
        # The checker demands a shape, but runtimes accept tensors of unknown rank.
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()
    functions = {(function.domain, function.name) for function in proto.functions}
    for holder in (checked, *checked.functions):
        nodes = holder.graph.node if isinstance(holder, onnx.ModelProto) else holder.node
        _hide_unknown(nodes, _opsets(holder.opset_import), functions)
        holder.opset_import.add(domain=_UNCHECKED, version=1)
    try:
        onnx.checker.check_model(checked)
    except (onnx.checker.ValidationError, ValueError) as error:
        line = " ".join(str(error).split())
        raise ModelError(
            f"not a valid ONNX model; export it again, or mend what onnx.checker names: {line}"
        ) from None


def _hide_unknown(
    nodes: Iterable[onnx.NodeProto], opsets: Mapping[str, int], functions: Container[tuple[str, str]]
) -> None:
    """Move nodes to a domain that onnx.checker skips, if their operators are unknown.

    An operator is known if it is one of the local ``functions`` (domain, name), or if ONNX has it in the
    version that ``opsets`` has for its domain.
    """
    for node in nodes:
        for graph in subgraphs(node):
            _hide_unknown(graph.node, opsets, functions)
        schema = schema_of(node.op_type, opsets.get(node.domain, 0), node.domain)
        known = (node.domain, node.op_type) in functions or (schema is not None and not schema.deprecated)
        if not known:
            node.domain = _UNCHECKED


def _check_constants(graph: onnx.GraphProto) -> None:
    """Raise ModelError for scales that are not floats, and for trip counts or conditions of several elements.

    Neither onnx.checker nor shape inference finds such constants. Some of them make ONNX Runtime end the
    process.
    """
    constants = dict[str, TensorProto]()
    for each in all_graphs(graph):
        constants.update((tensor.name, tensor) for tensor in each.initializer)
    for node in all_nodes(graph):
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                constants.update(dict.fromkeys(node.output, attribute.t))
    for node in all_nodes(graph):
        if node.op_type in _QUANTIZERS:
            _check_quantizer(node, constants)
        for name in node.input[: _CONTROLS.get(node.op_type, 0)]:
            if name in constants and math.prod(constants[name].dims) != 1:
                sizes = list(constants[name].dims)
                raise ModelError(f"{_described(node)} reads '{name}' of sizes {sizes}; expected one element")


def _check_quantizer(node: onnx.NodeProto, constants: Mapping[str, TensorProto]) -> None:
    if len(node.input) < 2 or not all((*node.input[:2], *node.output[:1])):
        raise ModelError(f"{_described(node)} needs a tensor and a scale as inputs, and one output")
    if node.input[1] in constants:
        kind = TensorProto.DataType.Name(constants[node.input[1]].data_type)
        if kind != "DOUBLE" and "FLOAT" not in kind:
            raise ModelError(f"{_described(node)} has a scale of type {kind}; expected floats")


def _described(node: onnx.NodeProto) -> str:
    return f"node '{node.name or next(iter(node.output), '')}' ({node.op_type})"
