"""Compares the computations of two models, and removes the rounding from INT8, FP8, FP16 and BF16 models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from pytest_int8acc.graph.formats import BF16, FP16
from pytest_int8acc.graph.half import combine_norms
from pytest_int8acc.graph.index import (
    all_graphs,
    all_nodes,
    attribute,
    captured,
    needed_nodes,
    refill,
)
from pytest_int8acc.graph.load import all_constants, constant_value
from pytest_int8acc.graph.model import Editor, Model, is_external, put_constant
from pytest_int8acc.graph.network import float_constant_name
from pytest_int8acc.graph.opsets import meaning_since
from pytest_int8acc.graph.types import FLOAT, HALVES
from pytest_int8acc.tensors import Array

_ROUNDING = frozenset({"Cast", "QuantizeLinear", "DequantizeLinear"})
_HALF_DTYPES = frozenset({FP16.dtype, BF16.dtype})
#: Attributes that choose the element type of an operator's output.
_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype"})
#: Attributes, by operator, that only repeat the shape of the operator's weights. They are ignored, because
#: loading a model adds them if they are absent.
_REDUNDANT = {"Conv": "kernel_shape", "ConvTranspose": "kernel_shape"}
#: Approximate number of elements of two constants that are compared first. All elements are compared only if
#: these are equal.
_PROBED = 64


class Computations:
    """Assigns numbers to tensors of models: equal numbers mean equal operators on equal inputs.

    Names of nodes and of tensors between them, and the order of nodes, have no effect. Identity nodes are
    skipped, and a Constant node is taken for its value. The statistics of a BatchNormalization are combined
    with its scale and bias first, as in models that were converted to FP16. An operator is equal in two
    opsets if its meaning did not change between them. Tensors with unequal numbers may still hold the same
    values.
    """

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._arrays: dict[int, tuple[Array, int]] = {}
        self._alike: dict[object, list[tuple[Array, int]]] = defaultdict(list)

    def of(self, model: Model, references: Sequence[Model] = ()) -> dict[str, int]:
        """The number of each tensor of the main graph, by tensor name.

        Numbers of two models can be compared if the same ``Computations`` assigned them.

        Args:
            model: A model in FP32. With ``references``, it is a model in INT8, FP8, FP16 or BF16, whose
                rounding is ignored.
            references: Float models from which ``model`` was made; see ``unrounded``.
        """
        model = combine_norms(model, ())
        rounding = _Rounding(model, references)
        found = {value.name: self._number(("input", value.name)) for value in model.graph.input}
        constants = model.constants()
        for node in model.graph.node:
            if rounding.takes(node) or (node.op_type == "Identity" and node.domain == ""):
                found[node.output[0]] = self._of(found, constants, node.input[0])
                continue
            value = constant_value(node)
            if value is not None:
                found[node.output[0]] = self._constant(numpy_helper.to_array(value))
                continue
            inputs = []
            for place, name in enumerate(node.input):
                exact = rounding.exact(node, place)
                inputs.append(self._of(found, constants, name) if exact is None else self._constant(exact[1]))
            while inputs and inputs[-1] == 0:
                inputs.pop()
            around = tuple((name, found[name]) for name in sorted(captured(node)) if name in found)
            operator = _operator(node, model.opset, widened=bool(references))
            key = *operator, tuple(inputs), around
            for place, name in enumerate(node.output):
                found[name] = self._number((key, place))
        return found

    def _of(self, found: dict[str, int], constants: Mapping[str, Array], name: str) -> int:
        """The number of the tensor ``name``; 0 for an optional input without a name.

        ``found`` has the numbers of tensors by name. A new number is added to ``found``.
        """
        if not name:
            return 0
        if name not in found:
            array = constants.get(name)
            found[name] = self._number(("unknown", name)) if array is None else self._constant(array)
        return found[name]

    def _constant(self, array: Array) -> int:
        if id(array) in self._arrays:
            return self._arrays[id(array)][1]
        flat = array.reshape(-1)
        probe = flat[:: flat.size // _PROBED + 1]
        alike = self._alike[array.dtype.str, array.shape, probe.tobytes()]
        equal = (number for other, number in alike if np.array_equal(array, other))
        number = next(equal, 0) or self._number(("constant", len(self._arrays)))
        alike.append((array, number))
        # This keeps the array alive, so that no other array gets the same id.
        self._arrays[id(array)] = array, number
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
    since = 0 if node.domain else meaning_since(node, opset)
    return node.domain, node.op_type, since, tuple(attributes), len(node.output)


def _is_half(array: Array) -> bool:
    return array.dtype in _HALF_DTYPES


class _Rounding:
    """Finds nodes that were added to a model to round values, and constants before they were rounded.

    ``takes`` must be called for all nodes in topological order.
    """

    def __init__(self, model: Model, references: Sequence[Model]) -> None:
        self._references = [
            (_nodes_by_name(reference), _widened(all_constants(reference))) for reference in references
        ]
        self._known = self._references[-1][0] if references else {}
        arrays = all_constants(model) if references else {}
        self._shapes = {name: array.shape for name, array in arrays.items()}
        """Name to shape of each constant, and of each tensor that rounding nodes compute from a constant."""
        self._rounded = {name for name, array in arrays.items() if _is_half(array)}

    def takes(self, node: onnx.NodeProto) -> bool:
        """Whether ``node`` was added to round values: a Cast to a float type, or a Q/DQ node."""
        if node.op_type not in _ROUNDING or not self._references or node.name in self._known:
            return False
        if node.op_type == "Cast" and attribute(node, "to", 0) not in (FLOAT, *HALVES):
            return False
        if node.input[0] in self._shapes:
            self._shapes[node.output[0]] = self._shapes[node.input[0]]
            self._rounded.add(node.output[0])
        return True

    def exact(self, node: onnx.NodeProto, place: int) -> tuple[str, Array] | None:
        """The name and the unrounded values of the rounded constant that ``node`` reads as input ``place``.

        None if the input is not a rounded constant, or if no reference model has its values in FP32.
        """
        if node.input[place] not in self._rounded:
            return None
        shape = self._shapes[node.input[place]]
        for nodes, constants in self._references:
            there = nodes.get(node.name)
            if (
                there is None
                or place >= len(there.input)
                or there.input[place] == float_constant_name(node.name, place)
            ):
                continue
            array = constants.get(there.input[place])
            if array is not None and array.shape == shape and array.dtype == np.float32:
                return there.input[place], array
        return None


def _nodes_by_name(model: Model) -> dict[str, onnx.NodeProto]:
    """Name to node for all nodes, also inside If, Loop and Scan; loading a model makes the names unique."""
    return {node.name: node for node in all_nodes(model.graph)}


def _widened(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The constants, with those in FP16 and BF16 converted to FP32."""
    return {name: array.astype(np.float32) if _is_half(array) else array for name, array in arrays.items()}


def unrounded(model: Model, references: Sequence[Model]) -> Model:
    """``model`` in FP32, without Q/DQ pairs and added Cast nodes, and with constants before rounding.

    Args:
        model: A model in INT8, FP8, FP16 or BF16. Apart from nodes that were added to round, its nodes have
            the same names as in ``references``.
        references: The models from which ``model`` was made. The last of them has no node that was added to
            round. The values of a constant come from the first model in which the node of the same name reads
            an FP32 constant of the same shape at the same input.
    """
    writer = _Unrounded(model.edit(), _Rounding(model, references))
    for node in all_nodes(writer.editor.graph):
        writer.rounding.takes(node)  # Finds constants that are cast outside of the graph that reads them.
    # Graphs inside If, Loop and Scan are rewritten before the graphs that contain them, because replacing the
    # nodes of a graph copies the graphs inside these nodes.
    for graph in reversed(list(all_graphs(writer.editor.graph))):
        writer.rewrite(graph)
    return writer.editor.done()


class _Unrounded:
    """Removes Q/DQ pairs and added Casts from the graphs of a model, and restores constants."""

    def __init__(self, editor: Editor, rounding: _Rounding) -> None:
        self.editor, self.rounding = editor, rounding
        self._sources: dict[str, str] = {}
        """For each rounded tensor, by name, the name of the tensor before rounding."""
        self._added: dict[int, str] = {}

    def rewrite(self, graph: onnx.GraphProto) -> None:
        """Remove the rounding from one graph; the graphs inside its nodes must have been rewritten before."""
        nodes: list[onnx.NodeProto] = []
        public = {value.name for value in graph.output}.union(*map(captured, graph.node))
        for node in graph.node:
            if self.rounding.takes(node):
                source = self._sources.get(node.input[0], node.input[0])
                self._sources[node.output[0]] = source
                if node.output[0] in public:
                    nodes.append(helper.make_node("Identity", [source], node.output, node.name))
                continue
            for place, name in enumerate(node.input):
                exact = self.rounding.exact(node, place)
                node.input[place] = self._sources.get(name, name) if exact is None else self._constant(*exact)
            refill(node.attribute, [_wide(said) for said in node.attribute])
            nodes.append(node)
        refill(graph.node, needed_nodes(nodes, public))
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type in HALVES:
                value.type.tensor_type.elem_type = FLOAT
        weights = self.editor.weights
        for tensor in graph.initializer:
            if tensor.data_type in HALVES:
                half = weights.pop(tensor.name) if is_external(tensor) else numpy_helper.to_array(tensor)
                put_constant(tensor, tensor.name, half.astype(np.float32), weights)

    def _constant(self, name: str, array: Array) -> str:
        if id(array) not in self._added:
            self._added[id(array)] = self.editor.add_constant(name, array)
        return self._added[id(array)]


def _wide(said: onnx.AttributeProto) -> onnx.AttributeProto:
    """The attribute with FP32 in place of FP16 or BF16, if it is an element type or a tensor."""
    if said.name in _TYPE_ATTRIBUTES and said.i in HALVES:
        return helper.make_attribute(said.name, FLOAT)
    if said.type == onnx.AttributeProto.TENSOR and said.t.data_type in HALVES:
        array = numpy_helper.to_array(said.t).astype(np.float32)
        return helper.make_attribute(said.name, numpy_helper.from_array(array))
    return said
