"""An ONNX model in memory: its graph as protobuf, and its large weights as arrays.

A protobuf message holds at most 2 GB, and copying weights for each edit is slow. So every large initializer
is an array. If its values are external data, the array is memory-mapped from the file. The ``ModelProto``
holds only a placeholder for the array. So an edit copies only kilobytes, even if the model is large.
"""

from __future__ import annotations

import contextlib
import copy
import math
import mmap
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
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

#: Initializers of more bytes than this are kept as arrays in ``Model.weights``, not in the protobuf message.
APART_BYTES = 1024
#: INT64 initializers of up to this number of bytes stay in the protobuf message, because they may be sizes,
#: which ONNX's shape inference must read.
SHAPE_BYTES = 1 << 20
#: A model of more bytes than this is saved with its weights in a second file.
INLINE_BYTES = 1 << 30
#: A made-up file name of external data. It marks an initializer as a placeholder of an array in
#: ``Model.weights``.
_PLACEHOLDER = "weights-are-kept-apart"
#: The metadata entry (key, value) that marks a model as a fix: a corrected model that this package wrote.
_FIX_MARK = ("pytest-int8acc", "fix")
#: ONNX element types whose values NumPy reads from a file without conversion.
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
    """The path of the model's file, or another name for messages."""
    extra_outputs: frozenset[str] = frozenset()
    """The names of outputs that were added for comparisons, and that the user's model does not have."""
    file: Model | None = None
    """The model as read from its file, not yet in normal form; None for a model made from other models."""

    @property
    def graph(self) -> onnx.GraphProto:
        """The main graph, with the nodes and with placeholders for large weights."""
        return self.proto.graph

    @cached_property
    def index(self) -> Index:
        """Look-ups in the main graph. The graph must not change after the first use of the index."""
        return Index(self.graph)

    @cached_property
    def everywhere(self) -> Index:
        """Look-ups in the main graph and in the graphs inside its nodes (If, Loop, Scan), at any depth."""
        return Index(self.graph, inner=True) if any(map(subgraphs, self.graph.node)) else self.index

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
        """The version of ONNX's default operator domain."""
        return next((int(o.version) for o in self.proto.opset_import if not o.domain), 1)

    def values(self) -> dict[str, TensorInfo]:
        """Name to dtype and shape of each tensor that ONNX's shape inference knows.

        Tensors inside If, Loop and Scan are included. Their names are unique in a model in normal form.

        Raises:
            ModelError: Types or shapes of the model contradict each other.
        """
        found: dict[str, TensorInfo] = {}
        for graph in all_graphs(self.inferred):
            tensors = (*graph.value_info, *graph.input, *graph.output)
            found |= {v.name: _tensor_info(v) for v in tensors if v.type.HasField("tensor_type")}
        return found

    @cached_property
    def inferred(self) -> onnx.GraphProto:
        """The main graph with the types and shapes that ONNX's shape inference finds.

        Raises:
            ModelError: Types or shapes of the model contradict each other.
        """
        try:
            return onnx.shape_inference.infer_shapes(self.proto).graph
        except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
            line = str(error).strip().partition("\n")[0]
            raise ModelError(f"{self.name}: not a valid ONNX model: {line}") from error

    @property
    def nbytes(self) -> int:
        """The number of bytes of the graph and of all weights."""
        return int(self.proto.ByteSize()) + sum(array.nbytes for array in self.weights.values())

    def constants(self) -> dict[str, Array]:
        """Name to values of each initializer of the main graph. Arrays of large weights are not copied."""
        return dict(self._constants)

    @cached_property
    def _constants(self) -> dict[str, Array]:
        return {t.name: self._array(t) for t in self.graph.initializer}

    def _array(self, tensor: TensorProto) -> Array:
        return self.weights[tensor.name] if is_external(tensor) else numpy_helper.to_array(tensor)

    def edit(self) -> Editor:
        """A copy of the model that may be changed. It shares the arrays of the weights."""
        return Editor(self)

    def serialize(self) -> bytes:
        """The model with its weights as one protobuf message.

        Raises:
            ModelError: The model has more than ``INLINE_BYTES``. ``save_model`` writes it to a file.
        """
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
    """A copy of a model that may be changed; ``done`` returns the changed model."""

    def __init__(self, model: Model) -> None:
        self.proto = copy.deepcopy(model.proto)
        self.graph = self.proto.graph
        self.weights = dict(model.weights)
        self._model = model

    @cached_property
    def _taken(self) -> set[str]:
        """The names of all nodes and tensors of the model, and names that ``unique`` has reserved since."""
        return set(_all_names(self._model.graph))

    def unique(self, preferred: str) -> str:
        """Reserve a name that no node or tensor has: ``preferred``, or ``preferred_2`` and so on."""
        return take_name(preferred, self._taken)

    def add_constant(self, preferred: str, array: Array) -> str:
        """Add an initializer, and return its name, which is ``preferred`` if no other tensor has it."""
        name = self.unique(preferred)
        put_constant(self.graph.initializer.add(), name, array, self.weights)
        return name

    def set_nodes(self, nodes: list[onnx.NodeProto]) -> None:
        """Replace the graph's nodes; ``nodes`` must be in topological order."""
        refill(self.graph.node, nodes)

    def rewrite(
        self,
        change: Callable[[onnx.NodeProto], Iterable[onnx.NodeProto]],
        begin: Callable[[onnx.GraphProto], Iterable[onnx.NodeProto]] = lambda graph: (),
    ) -> None:
        """Replace each node by the nodes that ``change`` returns for it, also inside If, Loop and Scan.

        Nodes are visited in the order in which they run. The nodes inside an If, Loop or Scan come before
        this node. ``begin`` is called first, and returns the nodes with which a graph begins.
        """
        self._rewrite(self.graph, change, begin)

    def _rewrite(
        self,
        graph: onnx.GraphProto,
        change: Callable[[onnx.NodeProto], Iterable[onnx.NodeProto]],
        begin: Callable[[onnx.GraphProto], Iterable[onnx.NodeProto]],
    ) -> None:
        nodes = list(begin(graph))
        for node in graph.node:
            for inner in subgraphs(node):
                self._rewrite(inner, change, begin)
            nodes += change(node)
        refill(graph.node, nodes)

    def done(self) -> Model:
        """The changed model without initializers that nothing reads.

        Stored types of tensors between nodes (``value_info``) are removed, because they may have changed.
        """
        used = {name for node in all_nodes(self.graph) for name in node.input}
        used.update(value.name for graph in all_graphs(self.graph) for value in graph.output)
        for graph in all_graphs(self.graph):
            left = [tensor for tensor in graph.initializer if tensor.name in used]
            if len(left) < len(graph.initializer):
                refill(graph.initializer, left)
            del graph.value_info[:]
        weights = {name: array for name, array in self.weights.items() if name in used}
        return Model(self.proto, weights, self._model.name, self._model.extra_outputs)


def is_mappable(data_type: int) -> bool:
    """Whether NumPy can read elements of ``data_type`` directly from a file of external data."""
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
    """Whether ``tensor`` is a placeholder, whose values are an array in ``Model.weights``."""
    return any(e.key == "location" and e.value == _PLACEHOLDER for e in tensor.external_data)


def make_model(
    proto: onnx.ModelProto, weights: Mapping[str, Array] | None = None, name: str = "model"
) -> Model:
    """A Model of ``proto`` whose large initializers become arrays in ``Model.weights``.

    ``weights`` has the arrays of initializers that are placeholders already. ``name`` is used in messages.
    """
    external = dict(weights or {})
    for tensor in proto.graph.initializer:
        if is_external(tensor) or not is_mappable(tensor.data_type):
            continue
        if is_large(tensor.data_type, math.prod(tensor.dims) * dtype_of(tensor.data_type).itemsize):
            put_constant(tensor, tensor.name, numpy_helper.to_array(tensor), external)
    return Model(proto, external, name)


def save_model(model: Model, path: Path, *, external_weights: bool = False) -> None:
    """Write a model as :func:`write_model` does.

    Raises:
        ModelError: The file cannot be written.
    """
    try:
        write_model(model, path, external_weights=external_weights)
    except OSError as error:
        raise ModelError(f"{path}: cannot be written: {error.strerror or error}") from error


def write_model(model: Model, path: Path, *, external_weights: bool = False) -> None:
    """Write ``model`` to ``path``.

    With ``external_weights``, or if the model has more than ``INLINE_BYTES``, the weights are in a second
    file. The name of this file is unique, so that a model and its replacement never share a file of weights.

    Raises:
        OSError: A file cannot be written.
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
                # Each array starts at a multiple of 4096 bytes, so that it can be memory-mapped.
                stream.write(b"\0" * (-stream.tell() % 4096))
                _point(tensor, location=data.name, offset=stream.tell(), length=array.nbytes)
                array.tofile(stream)
                unload(array)
    path.write_bytes(proto.SerializeToString())


@contextlib.contextmanager
def replacing_models(folder: Path, root: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder. Files written to it move into ``folder`` if the block ends without an error.

    If a new model replaces an old one of the same name, the old model's file of weights is deleted. For
    ``root`` and for errors, see :func:`replacing_files`.
    """
    before = list(folder.glob("*.onnx.*data"))
    with replacing_files(folder, root) as drafts:
        yield drafts
        models = tuple(f"{path.name}." for path in drafts.glob("*.onnx"))
    for path in before:
        if path.name.startswith(models):
            path.unlink(missing_ok=True)


def unload(array: Array) -> None:
    """Take an array that is mapped from a file out of memory. Who reads it again loads it from the file."""
    mapped = array.base
    while isinstance(mapped, np.ndarray):
        mapped = mapped.base
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
        mapped.madvise(mmap.MADV_DONTNEED)


def put_constant(tensor: TensorProto, name: str, array: Array, weights: dict[str, Array]) -> None:
    """Make ``tensor`` the initializer ``name`` with the values of ``array``.

    A large array is put into ``weights``, and ``tensor`` becomes its placeholder.
    """
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
    """Whether an initializer of ``nbytes`` is kept as an array in ``Model.weights``."""
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
    """The model with tensors between its nodes as additional outputs. Present outputs are skipped.

    Args:
        model: Any model.
        tensors: Name of each new output to its ONNX element type, used if type inference finds none.
    """
    own = {value.name for value in model.graph.output}
    added = {name: kind for name, kind in tensors.items() if name not in own}
    if not added:
        return model
    shaped = {v.name: v for v in model.inferred.value_info if v.type.tensor_type.elem_type}
    editor = model.edit()
    for name, kind in added.items():
        editor.graph.output.append(shaped.get(name) or helper.make_tensor_value_info(name, kind, None))
    return editor.done()


def end_with(editor: Editor, types: Mapping[str, int]) -> None:
    """Make the tensors of ``types`` the only outputs. Runtimes then skip nodes that no output needs.

    Args:
        editor: The model, which is changed in place.
        types: Name of each output to its ONNX element type.
    """
    refill(editor.graph.output, [helper.make_tensor_value_info(n, t, None) for n, t in types.items()])


def with_extra_outputs(model: Model, tensors: Mapping[str, int]) -> Model:
    """The model with additional outputs for comparisons, which ``Model.extra_outputs`` lists.

    Args:
        model: Any model.
        tensors: Name of each additional output to its ONNX element type, used if type inference finds none.
    """
    own = {value.name for value in model.graph.output}
    extra = model.extra_outputs.union(tensors.keys() - own)
    if extra == model.extra_outputs:
        return model
    return replace(giving(model, tensors), extra_outputs=extra, file=model.file)


def without_extra_outputs(model: Model) -> Model:
    """The model without its extra outputs, and without Cast nodes that only extra outputs need."""
    if not model.extra_outputs:
        return model
    index, editor = model.index, model.edit()
    unread = {name for name in model.extra_outputs if not index.readers(name) and name not in index.captured}
    nodes = editor.graph.node
    editor.set_nodes([n for n in nodes if n.op_type != "Cast" or n.output[0] not in unread])
    refill(editor.graph.output, [v for v in editor.graph.output if v.name not in model.extra_outputs])
    return replace(editor.done(), extra_outputs=frozenset())
