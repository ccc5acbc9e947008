"""Tells whether two models compute the same by the same operators, and takes a form's rounding away again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from pytest_int8acc.graph.index import attribute, captured, refill
from pytest_int8acc.graph.load import meaning_since
from pytest_int8acc.graph.model import Editor, Model
from pytest_int8acc.graph.types import BFLOAT16, FLOAT, FLOAT16
from pytest_int8acc.tensors import Array

_HALVES = frozenset({FLOAT16, BFLOAT16})
_ROUNDING = frozenset({"Cast", "QuantizeLinear", "DequantizeLinear"})
#: Numbers of so many bytes are codes, or floats of less than full precision.
_NARROW_BYTES = 2
#: Attributes that choose the element type of what an operator makes.
_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype"})
#: An attribute that repeats the shape of the weights: loading writes it out.
_REDUNDANT = {"Conv": "kernel_shape", "ConvTranspose": "kernel_shape"}
#: How many numbers of a large constant are looked at before all are compared.
_PROBED = 64


class Computations:
    """Numbers for what tensors of models hold: equal numbers mean equal operators on equal inputs.

    Names of nodes and of tensors inside a model do not count, nor does the order of nodes. Identity nodes
    are transparent, a Constant node is its value, and a BatchNormalization with constant parameters is its
    scale and offset. An operator counts as equal in two opsets if its meaning did not change between them.
    Unequal numbers say nothing.
    """

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._arrays: dict[int, tuple[Array, int]] = {}
        self._values: dict[int, Array] = {}
        self._alike: dict[object, list[tuple[Array, int]]] = defaultdict(list)

    def of(self, model: Model, references: Sequence[Model] = ()) -> dict[str, int]:
        """Tensor of the main graph to its number; one object must number all models that are compared.

        Args:
            model: With ``references``, a form in INT8, FP8, FP16 or BF16, whose rounding does not count.
            references: As for ``unrounded``.
        """
        rounding = _Rounding(model, references)
        found = {value.name: self._number(("input", value.name)) for value in model.graph.input}
        constants = model.constants()
        for node in model.graph.node:
            if rounding.takes(node) or (node.op_type == "Identity" and node.domain == ""):
                found[node.output[0]] = self._of(found, constants, node.input[0])
                continue
            value = _constant_value(node)
            if value is not None:
                found[node.output[0]] = self._constant(value)
                continue
            inputs = []
            for place, name in enumerate(node.input):
                exact = rounding.exact(node, place)
                inputs.append(self._of(found, constants, name) if exact is None else self._constant(exact))
            while inputs and inputs[-1] == 0:
                inputs.pop()
            around = tuple((name, found[name]) for name in sorted(captured(node)) if name in found)
            operator = _operator(node, model.opset, widened=bool(references))
            key = self._scale_and_offset(node, inputs) or (*operator, tuple(inputs), around)
            for place, name in enumerate(node.output):
                found[name] = self._number((key, place))
        return found

    def _of(self, found: dict[str, int], constants: Mapping[str, Array], name: str) -> int:
        """The number of an input; 0 where it is left out."""
        if not name:
            return 0
        if name not in found:
            array = constants.get(name)
            found[name] = self._number(("unknown", name)) if array is None else self._constant(array)
        return found[name]

    def _scale_and_offset(self, node: onnx.NodeProto, inputs: Sequence[int]) -> object:
        """A key of a BatchNormalization that does nothing else; None for any other node."""
        if node.op_type != "BatchNormalization" or attribute(node, "training_mode", 0) or node.domain:
            return None
        arrays = [self._values[n].astype(np.float64) for n in inputs[1:] if n in self._values]
        if len(arrays) < 4:
            return None
        scale, offset, mean, variance = arrays
        factor = scale / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
        pair = factor.astype(np.float32), (offset - mean * factor).astype(np.float32)
        return ("scale and offset", inputs[0], *(self._constant(array) for array in pair))

    def _constant(self, array: Array) -> int:
        if id(array) in self._arrays:
            return self._arrays[id(array)][1]
        flat = array.reshape(-1)
        probe = flat[:: flat.size // _PROBED + 1]
        alike = self._alike[array.dtype.str, array.shape, probe.tobytes()]
        equal = (number for other, number in alike if np.array_equal(array, other))
        number = next(equal, 0) or self._number(("constant", len(self._arrays)))
        alike.append((array, number))
        self._values[number] = array
        self._arrays[id(array)] = array, number  # the array is kept, so that no other gets its id
        return number

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers) + 1)


def _operator(node: onnx.NodeProto, opset: int, *, widened: bool) -> tuple[object, ...]:
    attributes = []
    for said in sorted(node.attribute, key=lambda a: str(a.name)):
        if said.name == _REDUNDANT.get(node.op_type):
            continue
        if widened:
            said = _wide(said)
        attributes.append((said.name, said.SerializeToString(deterministic=True)))
    domain = "" if node.domain == "ai.onnx" else node.domain
    since = meaning_since(node, opset) if domain == "" else 0
    return domain, node.op_type, since, tuple(attributes), len(node.output)


def _constant_value(node: onnx.NodeProto) -> Array | None:
    tensor = attribute(node, "value", None) if node.op_type == "Constant" else None
    return None if tensor is None else np.asarray(numpy_helper.to_array(tensor))


class _Rounding:
    """What rounds in a form, met node by node in topological order, and constants in full precision."""

    def __init__(self, model: Model, references: Sequence[Model]) -> None:
        self._references = [(reference.index.nodes, reference.constants()) for reference in references]
        self._known = references[-1].index.nodes if references else {}
        arrays = model.constants() if references else {}
        self._narrow = {n: a.shape for n, a in arrays.items() if a.dtype.itemsize <= _NARROW_BYTES}

    def takes(self, node: onnx.NodeProto) -> bool:
        """Whether ``node`` was added to round: a Cast to floats, or one of a pair."""
        if node.op_type not in _ROUNDING or not self._references or node.name in self._known:
            return False
        if node.op_type == "Cast" and attribute(node, "to", 0) not in (FLOAT, *_HALVES):
            return False
        if node.input[0] in self._narrow:
            self._narrow[node.output[0]] = self._narrow[node.input[0]]
        return True

    def exact(self, node: onnx.NodeProto, place: int) -> Array | None:
        """The constant in full precision that an input stands for; None where it is not narrow."""
        shape = self._narrow.get(node.input[place])
        if shape is None:
            return None
        for nodes, constants in self._references:
            there = nodes.get(node.name)
            if there is None or place >= len(there.input):
                continue
            array = constants.get(there.input[place])
            if array is not None and array.shape == shape and array.dtype == np.float32:
                return array
        return None


def unrounded(model: Model, references: Sequence[Model]) -> Model:
    """``model`` in FP32: no Q/DQ pairs, no Casts that were added, constants in full precision.

    Args:
        model: A form in INT8, FP8, FP16 or BF16. Its nodes bear the names of those of ``references``, but for
            those that round.
        references: Models before they were rounded; the last of them has no node that was added to round. A
            constant of fewer bits has its full precision in the first of these whose node of the same name
            reads a constant at the same input.
    """
    editor, rounding = model.edit(), _Rounding(model, references)
    sources: dict[str, str] = {}
    added: dict[int, str] = {}
    nodes: list[onnx.NodeProto] = []
    for node in editor.graph.node:
        if rounding.takes(node):
            sources[node.output[0]] = sources.get(node.input[0], node.input[0])
            if node.output[0] in model.index.public:
                nodes.append(helper.make_node("Identity", [sources[node.output[0]]], node.output, node.name))
            continue
        for place, name in enumerate(node.input):
            array = rounding.exact(node, place)
            if array is None:
                node.input[place] = sources.get(name, name)
                continue
            if id(array) not in added:
                added[id(array)] = editor.add_constant(name, array)
            node.input[place] = added[id(array)]
        refill(node.attribute, [_wide(said) for said in node.attribute])
        nodes.append(node)
    editor.set_nodes(list(_needed(nodes, model.index.public)))
    _widen_constants(editor, model.constants())
    return editor.done()


def _widen_constants(editor: Editor, constants: Mapping[str, Array]) -> None:
    for tensor in editor.graph.initializer:
        if tensor.data_type in _HALVES:
            editor.weights.pop(tensor.name, None)
            wide = constants[tensor.name].astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))


def _wide(said: onnx.AttributeProto) -> onnx.AttributeProto:
    """An attribute that chooses or holds FP16 or BF16 as one of FP32; any other as it is."""
    if said.name in _TYPE_ATTRIBUTES and said.i in _HALVES:
        return helper.make_attribute(said.name, FLOAT)
    if said.type == onnx.AttributeProto.TENSOR and said.t.data_type in _HALVES:
        array = numpy_helper.to_array(said.t).astype(np.float32)
        return helper.make_attribute(said.name, numpy_helper.from_array(array))
    return said


def _needed(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> Iterator[onnx.NodeProto]:
    """Those of ``nodes`` that lead to ``outputs``, in order."""
    read = set(outputs)
    kept = []
    for node in reversed(nodes):
        if not read.isdisjoint(node.output):
            read.update(node.input, captured(node))
            kept.append(node)
    return reversed(kept)


def part_between(model: Model, target: str, given: Mapping[str, Array]) -> Model | None:
    """The part of ``model`` that makes ``target`` of tensors that are ``given``, which become its inputs.

    None where it would take a graph input that is not given.
    """
    wanted, inputs = {target}, dict[str, None]()
    nodes: list[onnx.NodeProto] = []
    for node in reversed(model.graph.node):
        if wanted.isdisjoint(node.output):
            continue
        nodes.append(node)
        wanted.difference_update(node.output)
        for name in {*node.input, *captured(node)} - {""}:
            if name in given:
                inputs[name] = None
            elif name not in model.index.constants:
                wanted.add(name)
    known = {value.name for value in model.graph.input} | set(model.index.producer)
    if wanted & known:
        return None
    editor = model.edit()
    refill(editor.graph.input, [_value_info(name, given[name]) for name in inputs])
    refill(editor.graph.output, [helper.make_empty_tensor_value_info(target)])
    editor.set_nodes(list(reversed(nodes)))
    return editor.done()


def _value_info(name: str, array: Array) -> onnx.ValueInfoProto:
    kind = TensorProto.STRING if array.dtype == object else helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, array.shape)
