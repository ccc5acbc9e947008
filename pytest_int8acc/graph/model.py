"""An ONNX model in memory: a small graph, and its large weights beside it as arrays.

Protobuf messages end at 2 GB, and copying weights for each edit is slow. So every large
initializer is kept as an array (mapped from its file where it is external data), and the
``ModelProto`` holds only a placeholder for it: edits copy kilobytes, whatever the model's size.
"""

from __future__ import annotations

import contextlib
import copy
import math
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
import onnx.shape_inference
from onnx import TensorProto, helper, numpy_helper

from pytest_int8acc.errors import ModelError
from pytest_int8acc.files import replacing_files
from pytest_int8acc.graph.index import (
    Index,
    all_graphs,
    all_initializers,
    all_nodes,
    refill,
    subgraphs,
    take_name,
)
from pytest_int8acc.tensors import Array, TensorInfo

#: Initializers of more bytes than this are kept as arrays beside the graph.
APART_BYTES = 1024
#: Integers up to this many bytes stay in the graph: they may be sizes, which shape inference must read.
SHAPE_BYTES = 1 << 20
#: A saved model of more bytes than this keeps its weights in a second file.
INLINE_BYTES = 1 << 30
_PLACEHOLDER = "weights-are-kept-apart"
#: The entry of a model's metadata that marks a fix written by this package.
_FIX_MARK = ("pytest-int8acc", "fix")
_PLAIN_TYPES = frozenset(
    onnx.helper.np_dtype_to_tensor_dtype(np.dtype(code))
    for code in ("f2", "f4", "f8", "?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "float8_e4m3fn")
)


@dataclass(frozen=True, eq=False)
class Model:
    """An ONNX model whose large initializers are placeholders in ``proto`` and arrays in ``weights``."""

    proto: onnx.ModelProto
    weights: Mapping[str, Array]
    name: str = "model"
    """The file that it came from, as messages name it."""
    extra_outputs: frozenset[str] = frozenset()
    """Outputs that were added for comparisons. They are no outputs of the user's model."""
    file: Model | None = None
    """The model as it stands in its file; None for a form that was made of other models."""

    @property
    def graph(self) -> onnx.GraphProto:
        """The main graph."""
        return self.proto.graph

    @cached_property
    def index(self) -> Index:
        """The index of the main graph, which must not change after the first use of the index."""
        return Index(self.graph)

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The graph's inputs, in order."""
        return tuple(_tensor_info(value) for value in self.graph.input)

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The graph's outputs, in order."""
        return tuple(_tensor_info(value) for value in self.graph.output)

    @property
    def own_outputs(self) -> tuple[TensorInfo, ...]:
        """The outputs of the user's model, in order."""
        return tuple(output for output in self.outputs if output.name not in self.extra_outputs)

    @property
    def opset(self) -> int:
        """Version of the default ONNX domain."""
        return next((int(o.version) for o in self.proto.opset_import if o.domain in ("", "ai.onnx")), 1)

    def values(self) -> dict[str, TensorInfo]:
        """Dtype and shape of every tensor of the main graph that ONNX's shape inference can tell.

        Raises ModelError where the model contradicts itself.
        """
        inferred = self.inferred
        tensors = (*inferred.value_info, *inferred.input, *inferred.output)
        return {v.name: _tensor_info(v) for v in tensors if v.type.HasField("tensor_type")}

    @cached_property
    def inferred(self) -> onnx.GraphProto:
        """The main graph as ONNX's shape inference fills it in; ModelError where it contradicts itself."""
        try:
            return onnx.shape_inference.infer_shapes(self.proto).graph
        except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
            line = str(error).strip().partition("\n")[0]
            raise ModelError(f"{self.name}: not a valid ONNX model: {line}") from error

    @property
    def nbytes(self) -> int:
        """Bytes of the graph and of all weights."""
        return int(self.proto.ByteSize()) + sum(array.nbytes for array in self.weights.values())

    def constants(self) -> dict[str, Array]:
        """All initializers of the main graph as arrays; the large ones are not copied."""
        return dict(self._constants)

    @cached_property
    def _constants(self) -> dict[str, Array]:
        return {t.name: self._array(t) for t in self.graph.initializer}

    def _array(self, tensor: TensorProto) -> Array:
        return self.weights[tensor.name] if is_external(tensor) else numpy_helper.to_array(tensor)

    def edit(self) -> Editor:
        """A copy of the graph to change; the weights are shared, not copied."""
        return Editor(copy.deepcopy(self.proto), dict(self.weights), self.name, self.extra_outputs)

    def serialize(self) -> bytes:
        """The whole model as bytes; raises ModelError above ``INLINE_BYTES`` (then use ``save_model``)."""
        if self.nbytes > INLINE_BYTES:
            raise ModelError(
                f"{self.name}: {self.nbytes} bytes are too many for one message; save it to a file"
            )
        proto = copy.deepcopy(self.proto)
        for tensor in all_initializers(proto.graph):
            if is_external(tensor):
                tensor.CopyFrom(numpy_helper.from_array(self.weights[tensor.name], tensor.name))
        return bytes(proto.SerializeToString())


class Editor:
    """A graph under change; ``done`` makes a Model of it."""

    def __init__(
        self, proto: onnx.ModelProto, weights: dict[str, Array], name: str, extra_outputs: frozenset[str]
    ) -> None:
        self.proto = proto
        self.graph = proto.graph
        self.weights = weights
        self.name = name
        self.extra_outputs = extra_outputs
        self._taken = set(_all_names(proto.graph))

    def unique(self, preferred: str) -> str:
        """A new name: ``preferred``, with ``_2`` and so on appended where that name is in use."""
        return take_name(preferred, self._taken)

    def add_constant(self, preferred: str, array: Array) -> str:
        """Add an initializer; returns the name it got."""
        name = self.unique(preferred)
        put_constant(self.graph.initializer.add(), name, array, self.weights)
        return name

    def set_nodes(self, nodes: list[onnx.NodeProto]) -> None:
        """Replace the graph's nodes; ``nodes`` must be in topological order."""
        refill(self.graph.node, nodes)

    def done(self) -> Model:
        """The changed model, without initializers that nothing reads and without stale value types."""
        used = {name for node in all_nodes(self.graph) for name in node.input}
        used.update(value.name for graph in all_graphs(self.graph) for value in graph.output)
        for graph in all_graphs(self.graph):
            left = [tensor for tensor in graph.initializer if tensor.name in used]
            if len(left) < len(graph.initializer):
                refill(graph.initializer, left)
        del self.graph.value_info[:]
        weights = {name: array for name, array in self.weights.items() if name in used}
        return Model(self.proto, weights, self.name, self.extra_outputs)


def is_mappable(data_type: int) -> bool:
    """Whether NumPy reads elements of ``data_type`` as they lie in a file."""
    return data_type in _PLAIN_TYPES


def dtype_of(data_type: int) -> np.dtype[np.generic]:
    """The NumPy dtype of an element type of ONNX."""
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(data_type))


def marked_fix(model: Model) -> Model:
    """The model with an entry in its metadata that marks it as a fix written by this package."""
    if is_marked_fix(model):
        return model
    editor = model.edit()
    key, value = _FIX_MARK
    editor.proto.metadata_props.append(onnx.StringStringEntryProto(key=key, value=value))
    return editor.done()


def is_marked_fix(model: Model) -> bool:
    """Whether :func:`marked_fix` made the model."""
    return any((entry.key, entry.value) == _FIX_MARK for entry in model.proto.metadata_props)


def is_external(tensor: TensorProto) -> bool:
    """True where ``tensor`` is the placeholder of an array kept beside the graph."""
    return any(e.key == "location" and e.value == _PLACEHOLDER for e in tensor.external_data)


def make_model(
    proto: onnx.ModelProto, weights: Mapping[str, Array] | None = None, name: str = "model"
) -> Model:
    """A Model of ``proto`` whose large initializers become arrays in ``weights``."""
    external = dict(weights or {})
    for tensor in proto.graph.initializer:
        if is_external(tensor) or not is_mappable(tensor.data_type):
            continue
        if is_large(tensor.data_type, math.prod(tensor.dims) * dtype_of(tensor.data_type).itemsize):
            put_constant(tensor, tensor.name, numpy_helper.to_array(tensor), external)
    return Model(proto, external, name)


def save_model(model: Model, path: Path, *, external_weights: bool = False) -> None:
    """As :func:`write_model`; raises ModelError where the file system refuses it."""
    try:
        write_model(model, path, external_weights=external_weights)
    except OSError as error:
        raise ModelError(f"{path}: cannot be written: {error.strerror or error}") from error


def write_model(model: Model, path: Path, *, external_weights: bool = False) -> None:
    """Write ``model`` to ``path``; weights go to a second file if asked for, or above ``INLINE_BYTES``.

    The name of the second file is unique, so that models that replace one another never share it.

    Raises:
        OSError: The file system refuses it.
    """
    if model.nbytes <= INLINE_BYTES and not external_weights:
        path.write_bytes(model.serialize())
        return
    proto = copy.deepcopy(model.proto)
    data = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.data")
    with data.open("wb") as stream:
        for tensor in all_initializers(proto.graph):
            if is_external(tensor):
                array = np.ascontiguousarray(model.weights[tensor.name])
                stream.write(b"\0" * (-stream.tell() % 4096))  # lets readers map the file
                _point(tensor, location=data.name, offset=stream.tell(), length=array.nbytes)
                array.tofile(stream)
    path.write_bytes(proto.SerializeToString())


@contextlib.contextmanager
def replacing_models(folder: Path, root: Path | None = None) -> Iterator[Path]:
    """As :func:`replacing_files`; weight files of the models that are replaced are deleted."""
    before = list(folder.glob("*.onnx.*data"))
    with replacing_files(folder, root) as drafts:
        yield drafts
        models = tuple(f"{path.name}." for path in drafts.glob("*.onnx"))
    for path in before:
        if path.name.startswith(models):
            path.unlink(missing_ok=True)


def put_constant(tensor: TensorProto, name: str, array: Array, weights: dict[str, Array]) -> None:
    """Make ``tensor`` the initializer ``name`` with the values of ``array``; large ones go to ``weights``."""
    data_type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor.Clear()
    tensor.name, tensor.data_type = name, data_type
    tensor.dims.extend(array.shape)
    if is_large(data_type, array.nbytes):
        _point(tensor, location=_PLACEHOLDER)
        weights[name] = array
    else:
        tensor.CopyFrom(numpy_helper.from_array(array, name))


def is_large(data_type: int, nbytes: int) -> bool:
    """Whether an initializer is kept as an array beside the graph."""
    limit = SHAPE_BYTES if data_type == TensorProto.INT64 else APART_BYTES
    return data_type in _PLAIN_TYPES and nbytes > limit


def _point(tensor: TensorProto, **entries: object) -> None:
    tensor.data_location = TensorProto.EXTERNAL
    entry = onnx.StringStringEntryProto
    refill(tensor.external_data, [entry(key=key, value=str(value)) for key, value in entries.items()])


def _all_names(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (value.name for value in (*graph.input, *graph.output, *graph.initializer))
    for node in graph.node:
        yield from (node.name, *node.input, *node.output)
        for inner in subgraphs(node):
            yield from _all_names(inner)


def _tensor_info(value: onnx.ValueInfoProto) -> TensorInfo:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        raise ModelError(
            f"'{value.name}' is a {value.type.WhichOneof('value')}; only tensors can be compared"
        )
    dims = [d.dim_value if d.HasField("dim_value") else (d.dim_param or None) for d in kind.shape.dim]
    dtype = dtype_of(kind.elem_type or TensorProto.FLOAT)
    return TensorInfo(value.name, dtype, tuple(dims) if kind.HasField("shape") else None)


def giving(model: Model, tensors: Mapping[str, int]) -> Model:
    """The model with further outputs that its nodes make.

    ``tensors`` maps names to element types, which are used where type inference finds none.
    """
    shaped = {v.name: v for v in model.inferred.value_info if v.type.tensor_type.elem_type}
    editor = model.edit()
    for name, kind in tensors.items():
        editor.graph.output.append(shaped.get(name) or helper.make_tensor_value_info(name, kind, None))
    return editor.done()


def end_with(editor: Editor, types: Mapping[str, int]) -> None:
    """Make the tensors of ``types``, name to ONNX element type, the only outputs.

    Runtimes do not run nodes that no output needs.
    """
    refill(editor.graph.output, [helper.make_tensor_value_info(n, t, None) for n, t in types.items()])


def with_extra_outputs(model: Model, tensors: Mapping[str, int]) -> Model:
    """As ``giving``, with the new outputs marked as extra; tensors that are outputs already do not change."""
    own = {output.name for output in model.outputs}
    added = {name: kind for name, kind in tensors.items() if name not in own}
    if not added:
        return model
    return replace(giving(model, added), extra_outputs=model.extra_outputs.union(added), file=model.file)


def without_extra_outputs(model: Model) -> Model:
    """The model without its extra outputs, and without Casts that only these needed."""
    if not model.extra_outputs:
        return model
    index, editor = model.index, model.edit()
    unread = {name for name in model.extra_outputs if not index.readers(name) and name not in index.captured}
    casts = (n.op_type == "Cast" and n.output[0] in unread for n in editor.graph.node)
    editor.set_nodes([n for n, dead in zip(editor.graph.node, list(casts), strict=True) if not dead])
    refill(editor.graph.output, [v for v in editor.graph.output if v.name not in model.extra_outputs])
    return replace(editor.done(), extra_outputs=frozenset())
