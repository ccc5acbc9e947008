"""FP8 spelled out in operators of FP32, which ONNX Runtime computes faster than its kernels do.

Adding g to x and taking it away again leaves of x a multiple of the distance of floats around g. With
g = 2^20 |x| that is the distance of E4M3 numbers around x, and where x lies halfway between two of them, g is
an even multiple of it, so that ties go to even as they should; 1.5 * 2^14 serves for what has fewer digits
(after T. J. Dekker, 'A floating-point technique for extending the available precision', 1971).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from pytest_int8acc.graph.formats import FP8
from pytest_int8acc.graph.index import all_graphs, all_initializers, all_nodes, attribute, refill
from pytest_int8acc.graph.model import Model, is_external, put_constant
from pytest_int8acc.tensors import Array

#: FP32 has 24 digits, E4M3 4.
_SPLIT = 2.0**20
_LEAST = 1.5 * FP8.normal * _SPLIT


def spell_out_fp8(model: Model) -> Model:
    """``model`` computing what it does with ONNX's FP8 operators, the signs of zeros aside.

    Constants, and pairs with one scale in FP32, are spelled out; other nodes stay. A model without FP8 is
    returned as it is.
    """
    return _Speller(model).done() if holds_fp8(model) else model


def holds_fp8(model: Model) -> bool:
    """Whether a constant is of FP8, as zero points are."""
    return any(t.data_type == TensorProto.FLOAT8E4M3FN for t in all_initializers(model.graph))


class _Speller:
    """Rewrites the main graph and the graphs inside its nodes."""

    def __init__(self, model: Model) -> None:
        self.editor = model.edit()
        self.constants = model.constants()
        self.inputs = {i.name for i in model.inputs if i.dtype == np.float32 and i.shape == ()}
        """Scales that are inputs."""
        bounds = {"lowest": FP8.lowest, "highest": FP8.highest, "split": _SPLIT, "least": _LEAST}
        self.values = {
            name: self.editor.add_constant(f"fp8_{name}", np.array(value, np.float32))
            for name, value in bounds.items()
        }

    def done(self) -> Model:
        """The model with FP8 spelled out."""
        for graph in list(all_graphs(self.editor.graph)):
            refill(graph.node, list(self._nodes(graph)))
        return self.editor.done()

    def _nodes(self, graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
        """The nodes of one graph, those of FP8 spelled out."""
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
            elif (values := _values(node, known)) is not None:
                put_constant(graph.initializer.add(), result, values, self.editor.weights)
            else:
                yield node

    def _is_plain(self, node: onnx.NodeProto, known: Mapping[str, Array]) -> bool:
        """Whether a node quantizes to FP8, or back, by one scale in FP32."""
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or len(node.input) < 3:
            return False
        scale, zero = known.get(node.input[1]), known.get(node.input[2])
        one = node.input[1] in self.inputs
        if scale is not None:
            one = scale.dtype == np.float32 and scale.size == 1
        return one and zero is not None and zero.dtype == FP8.dtype and attribute(node, "saturate", 1) == 1

    def _rounded(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """What makes the codes of a QuantizeLinear, as numbers of FP32."""
        nodes, value = list[onnx.NodeProto](), self.values

        def add(op_type: str, *read: str) -> str:
            result = self.editor.unique(f"{node.output[0]}_{op_type}")
            nodes.append(helper.make_node(op_type, read, [result], result))
            return result

        held = add("Clip", add("Div", *node.input[:2]), value["lowest"], value["highest"])
        guard = add("Max", add("Mul", add("Abs", held), value["split"]), value["least"])
        coarse = add("Add", held, guard)
        return [*nodes, helper.make_node("Sub", [coarse, guard], node.output[:1], node.name)]


def _values(node: onnx.NodeProto, known: Mapping[str, Array]) -> Array | None:
    """What a DequantizeLinear of a constant in FP8 gives; None where it is none."""
    codes, scale = (known.get(name) for name in node.input[:2])
    if codes is None or scale is None or codes.dtype != FP8.dtype or scale.ndim > 1:
        return None
    if scale.size == 1:
        scale = scale.reshape(())
    values = FP8.dequantize(codes, scale, axis=attribute(node, "axis", 1))
    return values.astype(scale.dtype, copy=False)
