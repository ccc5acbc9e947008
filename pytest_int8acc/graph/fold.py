"""Folds constants: weights that a Transpose or Cast changes, and numbers computed from fixed sizes.

Models exported from PyTorch compute shapes at run time, and compute other numbers from these shapes. A size
is called open if it depends on the inputs. If a Reshape has one open size in its target shape, the open size
is replaced by -1.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx
import onnx.version_converter
from onnx import TypeProto, helper, numpy_helper
from onnx.shape_inference import InferenceError, infer_node_outputs

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.index import GRAPHS, attribute, needed_nodes, schema_of
from pytest_int8acc.graph.layout import WEIGHTED
from pytest_int8acc.graph.model import Model, dtype_of, put_constant
from pytest_int8acc.tensors import Array

#: Numbers less than or equal to this one are placeholders for sizes that depend on the model's inputs. Each
#: such size has its own number.
_OPEN = -(1 << 40)
#: Maximum number of elements of an array whose values are followed through the graph. Shapes have few
#: elements.
_SMALL = 64
#: Stands for an array whose values are not known. No operator is computed with an array of its dtype.
_UNKNOWN = np.empty(0, object)


def _power(base: Array, exponent: Array) -> Array | None:
    """``base`` to the power of ``exponent``, one FP32 number each; None if runtimes may round differently."""
    if not base.dtype == exponent.dtype == np.float32 or base.size + exponent.size != 2 or base.item() <= 0:
        return None
    shape, exact = np.broadcast_shapes(base.shape, exponent.shape), base.item() ** exponent.item()
    low, high = (np.float32(exact * (1 + by)) for by in (-(2.0**-28), 2.0**-28))
    return np.full(shape, low) if low == high else None


#: Operators that only move or pick values. They are computed even if some values are placeholders for sizes.
_MOVES = frozenset({"Concat", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze", "Where"})
#: Arithmetic operators that are computed in advance. IEEE 754 defines their rounding, so all runtimes get the
#: same result. The exception is Pow, see ``_power``.
_ARITHMETIC = frozenset({"Add", "Div", "Equal", "Mod", "Mul", "Pow", "Sqrt", "Sub"})


def computed(node: onnx.NodeProto, arrays: Sequence[Array], opset: int) -> Array:
    """The first output of a node of opset ``opset`` for the inputs ``arrays``, by ONNX's reference evaluator.

    Inputs are not checked. Invalid inputs may raise any exception that NumPy raises.
    """
    from onnx.reference import ReferenceEvaluator  # Imported here, because it is slow and few models need it.

    evaluator = ReferenceEvaluator(node, opsets={"": opset})
    results = evaluator.run(None, dict(zip(node.input, map(np.asarray, arrays), strict=True)))
    return np.asarray(next(iter(results)))


def fold_sizes(model: Model) -> Model:
    """The model with constants in place of nodes that compute fixed sizes, or numbers from fixed sizes only.

    Constants of ``model`` must be initializers, not Constant nodes.
    """
    if not any(node.op_type in ("Shape", "Mod") for node in model.graph.node):
        return model
    editor, sizes, public = model.edit(), _Sizes(model), model.index.public
    kept: list[onnx.NodeProto] = []
    for node in editor.graph.node:
        target = sizes.see(node)
        if target is not None:
            node.input[1] = editor.add_constant(f"{node.output[0]}_shape", target)
        made = sizes.known.get(node.output[0])
        if made is None or _is_open(made) or node.output[0] in public:
            kept.append(node)
        else:
            put_constant(editor.graph.initializer.add(), node.output[0], made, editor.weights)
    editor.set_nodes(list(needed_nodes(kept, (value.name for value in editor.graph.output))))
    return editor.done()


def _is_open(array: Array) -> bool:
    """Whether an element is a placeholder for a size that depends on the model's inputs."""
    return bool(array.dtype == np.int64 and (array <= _OPEN).any())


class _Sizes:
    """The types of tensors and the values of small tensors, found node by node in topological order."""

    def __init__(self, model: Model) -> None:
        self.known = dict[str, Array]()
        self._opset, self._opsets = model.opset, list(model.proto.opset_import)
        self._types = dict[str, TypeProto]()
        self._named = dict[str, int]()
        self._numbers = itertools.count(_OPEN, -1)
        for name, array in model.constants().items():
            self._keep(name, array)
        for value in model.graph.input:
            self._tell(value.name, value.type)

    def see(self, node: onnx.NodeProto) -> Array | None:
        """Find the types or values of a node's outputs, and store them.

        Returns:
            A constant shape for a Reshape whose computed shape has one size that depends on the inputs: this
            size is replaced by -1. None for any other node.
        """
        value, name = self._value(node), node.output[0]
        if value is not None:
            self._keep(name, value)
        elif node.op_type == "Reshape" and node.input[1] in self.known and node.input[0] in self._types:
            shape = self._reshaped(node)
            kind = self._types[node.input[0]].tensor_type.elem_type
            dims = [size if size > _OPEN else str(size) for size in shape]
            self._types[name] = helper.make_tensor_type_proto(kind, dims)
            closed = [-1 if size <= _OPEN else size for size in shape]
            if _is_open(self.known[node.input[1]]) and closed.count(-1) <= 1 and 0 not in closed:
                return np.array(closed, np.int64)
        else:
            for output, inferred in self._inferred(node).items():
                self._tell(output, inferred)
        return None

    def _keep(self, name: str, array: Array) -> None:
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        self._types[name] = helper.make_tensor_type_proto(kind, array.shape)
        if array.size <= _SMALL:
            self.known[name] = array

    def _tell(self, name: str, kind: TypeProto) -> None:
        """Store the type of a tensor, in which a placeholder number replaces the name of each size not fixed.

        Sizes with the same name get the same number.
        """
        self._types[name] = kind
        for dim in kind.tensor_type.shape.dim:
            if not dim.HasField("dim_value") and not dim.dim_param.startswith("-"):
                number = next(self._numbers)
                dim.dim_param = str(self._named.setdefault(dim.dim_param or str(number), number))

    def _shape(self, name: str) -> list[int] | None:
        """The sizes of a tensor, with placeholders for sizes that are not fixed; None for unknown rank."""
        kind = self._types.get(name, TypeProto()).tensor_type
        if not kind.HasField("shape"):
            return None
        return [d.dim_value if d.HasField("dim_value") else int(d.dim_param) for d in kind.shape.dim]

    def _inferred(self, node: onnx.NodeProto) -> Mapping[str, TypeProto]:
        """Name to type of each output of a node, as far as ONNX's shape inference finds types."""
        names = [name for name in node.input if name]
        if any(name not in self._types for name in names) or any(a.type in GRAPHS for a in node.attribute):
            return {}
        types = {name: self._types[name] for name in names}
        closed = {n: self.known[n] for n in names if n in self.known and not _is_open(self.known[n])}
        data = {name: numpy_helper.from_array(np.asarray(array), name) for name, array in closed.items()}
        version = next((o.version for o in self._opsets if o.domain == node.domain), 0)
        schema = schema_of(node.op_type, version, node.domain)
        if schema is None:
            return {}
        try:
            return infer_node_outputs(schema, node, types, data, opset_imports=self._opsets)
        except InferenceError:
            return {}

    def _reshaped(self, node: onnx.NodeProto) -> list[int]:
        """The shape of a Reshape's output, with a new placeholder for each size that is not known."""
        before, target = self._shape(node.input[0]), self.known[node.input[1]].tolist()
        if not attribute(node, "allowzero", 0):
            whole = [*(before or []), *[next(self._numbers)] * len(target)]
            target = [size or whole[place] for place, size in enumerate(target)]
        rest = [size for size in target if size != -1]
        return [self._left(before, rest) if size == -1 else size for size in target]

    def _left(self, whole: Sequence[int] | None, rest: Sequence[int]) -> int:
        """The size that -1 stands for in a Reshape.

        Args:
            whole: The sizes of the Reshape's input; None if they are not known.
            rest: The sizes of the Reshape's output, without the -1.
        """
        if whole is not None:
            up, down = (Counter(size for size in sizes if size <= _OPEN) for sizes in (whole, rest))
            over, under = (math.prod(size for size in sizes if size > _OPEN) for sizes in (whole, rest))
            if up == down and under and over % under == 0:
                return over // under
            if up > down and (up - down).total() == 1 and over == under:
                return next(iter(up - down))
        return next(self._numbers)

    def _value(self, node: onnx.NodeProto) -> Array | None:
        """The value of a node's output if it can be computed from known values; otherwise None."""
        if node.domain:
            return None
        if node.op_type == "Shape":
            shape = self._shape(node.input[0])
            part = slice(attribute(node, "start", 0), attribute(node, "end", None))
            return None if shape is None else np.array(shape, np.int64)[part]
        data = [self.known.get(name, _UNKNOWN) for name in node.input]
        if not data or any(d.dtype.kind not in "ifb" or (d.dtype.kind == "f" and d.size > 1) for d in data):
            return None
        try:
            with np.errstate(all="ignore"):
                return self._computed(node, data)
        except Exception:  # The node is invalid. The runtime will report the error.
            return None

    def _computed(self, node: onnx.NodeProto, data: Sequence[Array]) -> Array | None:
        some_open = any(map(_is_open, data))
        if node.op_type in _MOVES:
            picked = node.op_type in ("Concat", "Where") or not any(map(_is_open, data[1:]))
            return computed(node, data, self._opset) if picked else None
        if node.op_type == "Cast":
            dtype = dtype_of(attribute(node, "to", 0))
            fits = dtype == np.int64 or (dtype.kind in "ifb" and not some_open)
            return data[0].astype(dtype) if fits else None
        if node.op_type not in _ARITHMETIC or attribute(node, "fmod", 0):
            return None
        if some_open:
            shape = np.broadcast_shapes(*(d.shape for d in data))
            return np.array([next(self._numbers) for _ in range(math.prod(shape))], np.int64).reshape(shape)
        if node.op_type == "Pow":
            return _power(*data)
        return computed(node, data, self._opset)


#: Operators that are computed in advance if they read constants only. They move weights or change their
#: dtype.
_FOLDED_MOVES = frozenset({"Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast"})


#: Operators that are computed in advance if they read constants only, and if their output is no larger than
#: an input. Models use them to scale and shift weights that are stored as integers.
_FOLDED_ARITHMETIC = frozenset({"Mul", "Div", "Add", "Sub"})


def fold_constants(model: Model) -> Model:
    """The model with initializers in place of nodes that move, cast or scale constants."""
    constants = model.constants()
    editor = model.edit()
    kept = []
    weighted = [node for node in editor.graph.node if node.op_type in WEIGHTED and len(node.input) > 1]
    weights = {node.input[1] for node in weighted}
    for node in editor.graph.node:
        if _folds(node, constants, weights):
            try:
                array = computed(node, [constants[name] for name in node.input], model.opset)
            except Exception as error:  # NumPy raises exceptions of many types for invalid inputs.
                said = f"'{node.name}' ({node.op_type}) cannot be computed from its constants"
                raise ModelError(f"{model.name}: {said}: {error}") from error
            constants[node.output[0]] = array
            put_constant(editor.graph.initializer.add(), node.output[0], array, editor.weights)
        else:
            kept.append(node)
    if len(kept) == len(editor.graph.node):
        return model
    editor.set_nodes(kept)
    return editor.done()


def _folds(node: onnx.NodeProto, constants: Mapping[str, Array], weights: Collection[str]) -> bool:
    if node.domain or any(name not in constants for name in node.input):
        return False
    # A ConstantOfShape is folded only if its output is a weight, because an initializer needs more memory.
    if node.op_type == "ConstantOfShape":
        return node.output[0] in weights
    if node.op_type in _FOLDED_ARITHMETIC:
        one, other = (constants[name] for name in node.input)
        shapes = one.shape, other.shape
        # If the shapes do not broadcast, the node is folded, and its computation raises the error.
        with contextlib.suppress(ValueError):
            return one.dtype == other.dtype and np.broadcast_shapes(*shapes) in shapes
        return True
    return node.op_type in _FOLDED_MOVES
