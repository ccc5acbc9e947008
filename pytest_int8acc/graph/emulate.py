"""Emulates FP16, BF16 and FP8 arithmetic in FP32, for ONNX Runtime on a CPU.

ONNX Runtime computes FP16 operators on the CPU in FP32 and removes the Casts between them. So its results are
more accurate than those of a TensorRT engine, and do not overflow. In an emulated model, every operator
computes in FP32. A pair of Cast nodes then rounds the result to FP16, with overflow to inf and with subnormal
numbers. An engine that accumulates in FP32 gives the same results. Two kinds of results are not rounded:
those of operators that only move or select FP16 numbers, and those of DequantizeLinear. The latter do not
exist in an engine, because its INT8 kernels scale their integer sums directly.

FP8 is rounded by additions in FP32, which ONNX Runtime computes faster than its own FP8 kernels. Adding g to
x and subtracting g again rounds x to a multiple of the distance between floats near g. If g = 2^20 |x|, this
distance is the distance between E4M3 numbers near x. Halfway between two E4M3 numbers, g is an even multiple
of the distance, so ties go to even. For subnormal numbers g is 1.5 * 2^14 (T. J. Dekker, 'A floating-point
technique for extending the available precision', 1971).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from pytest_int8acc.graph.formats import FP8
from pytest_int8acc.graph.index import all_graphs, all_initializers, all_nodes, attribute, refill
from pytest_int8acc.graph.layout import moves_values
from pytest_int8acc.graph.model import Model, is_external, put_constant
from pytest_int8acc.graph.types import FLOAT, HALVES, signature, value_types
from pytest_int8acc.tensors import Array

#: Operators whose outputs hold only values of their inputs, perhaps negated, or zeros. Rounding their inputs
#: has the same effect as rounding their outputs.
_SELECTING = frozenset(
    {"Relu", "Clip", "Max", "Min", "Where", "Concat", "Pad", "Neg", "Abs", "GlobalMaxPool"}
)

#: Attributes that set the result type of an operator other than Cast.
_TYPE_ATTRIBUTES = frozenset({"dtype", "output_dtype"})


def emulate_half(model: Model, rounded_before: Collection[str] = ()) -> Model:
    """``model`` with all FP16 and BF16 tensors in FP32, but rounded to 16 bits.

    Node names, and the inputs and outputs of all graphs, stay the same. Nodes of other operator domains stay
    in FP16. A model that has no FP16 and BF16 tensors, or is emulated already, is returned unchanged.

    Args:
        model: A model in normal form; see ``graph.load``.
        rounded_before: Names of nodes whose inputs must be rounded to 16 bits, because these inputs may be
            quantized.
    """
    if _is_spelled_out(model):
        return model
    types = value_types(model)
    if HALVES.isdisjoint(types.values()):
        return model
    return _Emulation(model, types, rounded_before).done()


def _is_spelled_out(model: Model) -> bool:
    """Whether every 16-bit tensor lies between two Casts, as in an emulated model."""
    graphs = list(all_graphs(model.graph))
    nodes = [node for graph in graphs for node in graph.node]
    if any(t.data_type in HALVES for graph in graphs for t in graph.initializer):
        return False
    if any(v.type.tensor_type.elem_type in HALVES for graph in graphs for v in (*graph.input, *graph.output)):
        return False
    for a in (a for node in nodes if node.op_type != "Cast" for a in node.attribute):
        if a.t.data_type in HALVES or (a.name in _TYPE_ATTRIBUTES and a.i in HALVES):
            return False
    narrow = {n.output[0] for n in nodes if n.op_type == "Cast" and attribute(n, "to", 0) in HALVES}
    read = {name for node in nodes if node.op_type != "Cast" for name in node.input}
    return narrow.isdisjoint(read) and narrow.isdisjoint(v.name for graph in graphs for v in graph.output)


def casts_to_half(graph: onnx.GraphProto) -> bool:
    """Whether a graph, or a graph inside one of its nodes, has a Cast to FP16 or BF16."""
    return any(n.op_type == "Cast" and attribute(n, "to", 0) in HALVES for n in all_nodes(graph))


class _Emulation:
    """Rewrites a model so that its 16-bit tensors become rounded FP32 tensors."""

    def __init__(self, model: Model, types: dict[str, int], rounded_before: Collection[str]) -> None:
        self.rounded_before = frozenset(rounded_before)
        self.model, self.index = model, model.everywhere
        self.editor = model.edit()
        self.opset = model.opset
        self.half = {name: data_type for name, data_type in types.items() if data_type in HALVES}
        graphs = list(all_graphs(model.graph))
        self.public = {value.name for graph in graphs for value in graph.input} | self.index.public
        """Tensors that keep their name and 16-bit type. For each, an FP32 tensor with its values is added."""
        for node in self.index.nodes.values():
            if signature(node, self.opset) is None:
                self.public.update(node.input, node.output)
        self.wide: dict[str, str] = {}
        """For each 16-bit tensor, by name, the name of the FP32 tensor that replaces it."""
        self.unrounded: set[str] = set()
        """FP32 tensors that are not rounded. The output of the only node that reads them is rounded
        instead."""

    def done(self) -> Model:
        self._widen_constants()
        self.editor.rewrite(self._rewritten, self._first)
        return self.editor.done()

    def _first(self, graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
        """Casts to FP32 of a graph's inputs, and of the constants of a graph inside an If, Loop or Scan."""
        constants = graph.initializer if graph is not self.editor.graph else ()
        for value in (*graph.input, *constants):
            if value.name in self.half:
                yield self._widen(value.name)

    def _widen_constants(self) -> None:
        arrays = self.model.constants()
        for tensor in list(self.editor.graph.initializer):
            name = tensor.name
            if name not in self.half:
                continue
            values = np.asarray(arrays[name], np.float32)
            if name in self.public:
                self.wide[name] = self.editor.add_constant(f"{name}_wide", values)
            else:
                self.wide[name] = name
                self.editor.weights.pop(name, None)
                put_constant(tensor, name, values, self.editor.weights)

    def _rewritten(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Nodes that replace ``node``.

        If the node can compute in FP32, its outputs are rounded. Otherwise its 16-bit outputs are cast to
        FP32.
        """
        formals = signature(node, self.opset)
        halves = [name for name in node.output if name in self.half]
        if node.op_type == "Cast":
            yield from self._cast(node)
            return
        if formals is None:
            yield node
            yield from (self._widen(name) for name in halves)
            return
        bound = {f.variable for f, name in zip(formals.inputs, node.input, strict=True) if name in self.half}
        made = zip(formals.outputs, node.output, strict=True)
        follows = all(f.variable in bound for f, name in made if name in halves)
        if node.op_type == "DequantizeLinear":
            follows = node.input[1] in self.half
            refill(node.attribute, [a for a in node.attribute if a.name != "output_dtype"])
        node.input[:] = [self.wide.get(name, name) for name in node.input]
        if follows:
            yield from self._rounded(node, halves)
        else:  # An attribute sets the type of the outputs, so they are cast to FP32.
            yield node
            yield from (self._widen(name) for name in halves)

    def _rounded(self, node: onnx.NodeProto, halves: list[str]) -> Iterator[onnx.NodeProto]:
        """``node``, and a pair of Casts after each of its 16-bit outputs ``halves`` that must be rounded."""
        exact = node.op_type == "DequantizeLinear" or (
            keeps_values(node) and self.unrounded.isdisjoint(node.input)
        )
        after: list[onnx.NodeProto] = []
        for index, name in enumerate(node.output):
            if name not in halves:
                continue
            wide = self.wide[name] = self.editor.unique(f"{name}_wide") if name in self.public else name
            if exact:
                node.output[index] = wide
            elif self._left_to_reader(name):
                self.unrounded.add(name)
            else:
                raw = node.output[index] = self.editor.unique(f"{name}_unrounded")
                narrow = self.editor.unique(f"{name}_rounded")
                after += [self._cast_node(raw, narrow, self.half[name]), self._cast_node(narrow, wide, FLOAT)]
            if name in self.public:
                after.append(self._cast_node(wide, name, self.half[name]))
        yield node
        yield from after

    def _left_to_reader(self, name: str) -> bool:
        """Whether the output of the tensor's only reader can be rounded instead of the tensor.

        The reader must keep values, as a Relu does. Without Casts between them, ONNX Runtime can fuse the
        node that computes the tensor with the reader, such as a convolution with its Relu.
        """
        reader = None if name in self.public else self.index.only_reader(name)
        if reader is None or reader.name in self.rounded_before:
            return False
        computed = [n for n in reader.input if n in self.half and n not in self.index.constants]
        return keeps_values(reader) and computed == [name]

    def _cast(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Nodes that replace a Cast. A Cast to 16 bits is followed by a Cast back to FP32.

        A Cast from 16 bits reads the FP32 tensor that replaces its input.
        """
        source, result = node.input[0], node.output[0]
        node.input[0] = self.wide.get(source, source)
        if result in self.half:
            narrow = result if result in self.public else self.editor.unique(f"{result}_rounded")
            self.wide[result] = self.editor.unique(f"{result}_wide") if result in self.public else result
            node.output[0] = narrow
            yield node
            yield self._cast_node(narrow, self.wide[result], FLOAT)
        else:
            yield node

    def _widen(self, name: str) -> onnx.NodeProto:
        """A new Cast to FP32 of a tensor that stays in 16 bits."""
        self.wide[name] = self.editor.unique(f"{name}_wide")
        return self._cast_node(name, self.wide[name], FLOAT)

    def _cast_node(self, source: str, result: str, data_type: int) -> onnx.NodeProto:
        name = self.editor.unique(f"Cast_{result}")
        return helper.make_node("Cast", [source], [result], name, to=data_type)


def keeps_values(node: onnx.NodeProto) -> bool:
    """Whether the outputs of a node hold only values of its inputs, perhaps with another sign, or 0."""
    return node.op_type in _SELECTING or moves_values(node)


#: The ratio of g to |x|, where g is added to x and subtracted again to round x to E4M3. FP32 has 24 binary
#: digits and E4M3 has 4, so 20 digits are dropped.
_SPLIT = 2.0**20
#: Minimum of the number g that is added and subtracted to round to E4M3. With this g, results are multiples
#: of the smallest subnormal E4M3 number.
_LEAST = 1.5 * FP8.normal * _SPLIT


def spell_out_fp8(model: Model) -> Model:
    """``model`` with FP8 emulated in FP32. Results are equal, except for signs of zeros.

    Q/DQ pairs with a single FP32 scale, and FP8 constants, are emulated. Other FP8 nodes stay as they are. A
    model without FP8 is returned unchanged.
    """
    return _Speller(model).done() if holds_fp8(model) else model


def holds_fp8(model: Model) -> bool:
    """Whether a model has a constant in FP8. Each FP8 Q/DQ pair has one, its zero point."""
    return any(t.data_type == FP8.element_type for t in all_initializers(model.graph))


class _Speller:
    """Replaces FP8 nodes by FP32 nodes with equal results, also inside If, Loop and Scan."""

    def __init__(self, model: Model) -> None:
        self.editor = model.edit()
        self.constants = model.constants()
        self.inputs = {i.name for i in model.inputs if i.dtype == np.float32 and i.shape == ()}
        """Names of the FP32 scalars among the model's inputs, which can be the scale of a Q/DQ pair."""
        bounds = {"lowest": FP8.lowest, "highest": FP8.highest, "split": _SPLIT, "least": _LEAST}
        self.values = {
            name: self.editor.add_constant(f"fp8_{name}", np.array(value, np.float32))
            for name, value in bounds.items()
        }

    def done(self) -> Model:
        for graph in list(all_graphs(self.editor.graph)):
            refill(graph.node, list(self._nodes(graph)))
        return self.editor.done()

    def _nodes(self, graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
        """The nodes of one graph, with FP32 nodes in place of FP8 nodes."""
        small = {t.name: numpy_helper.to_array(t) for t in graph.initializer if not is_external(t)}
        known = {**self.constants, **small}
        read = Counter(name for node in all_nodes(graph) for name in node.input)
        read.update(value.name for value in graph.output)
        plain = {node.output[0] for node in graph.node if self._is_plain(node, known)}
        pairs = Counter(node.input[0] for node in graph.node if {*node.output} & plain)
        for node in list(graph.node):
            source, result = (*node.input, "")[0], (*node.output, "")[0]
            if node.op_type == "QuantizeLinear" and result in plain and pairs[result] == read[result]:
                yield from self._rounded(node)
            elif node.op_type != "DequantizeLinear":
                yield node
            elif result in plain and source in plain and pairs[source] == read[source]:
                yield helper.make_node("Mul", node.input[:2], [result], node.name)
            elif (values := _dequantized(node, known)) is not None:
                put_constant(graph.initializer.add(), result, values, self.editor.weights)
            else:
                yield node

    def _is_plain(self, node: onnx.NodeProto, known: Mapping[str, Array]) -> bool:
        """Whether a node is an FP8 QuantizeLinear or DequantizeLinear with a single FP32 scale.

        ``known`` has the constants that the node can read, by name.
        """
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or len(node.input) < 3:
            return False
        scale, zero = known.get(node.input[1]), known.get(node.input[2])
        one = node.input[1] in self.inputs
        if scale is not None:
            one = scale.dtype == np.float32 and scale.size == 1
        return one and zero is not None and zero.dtype == FP8.dtype and attribute(node, "saturate", 1) == 1

    def _rounded(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Nodes that replace a QuantizeLinear: they compute its FP8 codes as FP32 numbers."""
        nodes, value = list[onnx.NodeProto](), self.values

        def add(op_type: str, *read: str) -> str:
            result = self.editor.unique(f"{node.output[0]}_{op_type}")
            nodes.append(helper.make_node(op_type, read, [result], result))
            return result

        held = add("Clip", add("Div", *node.input[:2]), value["lowest"], value["highest"])
        guard = add("Max", add("Mul", add("Abs", held), value["split"]), value["least"])
        coarse = add("Add", held, guard)
        return [*nodes, helper.make_node("Sub", [coarse, guard], node.output[:1], node.name)]


def _dequantized(node: onnx.NodeProto, known: Mapping[str, Array]) -> Array | None:
    """The result of a DequantizeLinear of an FP8 constant in ``known``; None for other nodes."""
    codes, scale = (known.get(name) for name in node.input[:2])
    if codes is None or scale is None or codes.dtype != FP8.dtype or scale.ndim > 1:
        return None
    if scale.size == 1:
        scale = scale.reshape(())
    values = FP8.dequantize(codes, scale, axis=attribute(node, "axis", 1))
    return values.astype(scale.dtype, copy=False)
