"""Copies tensors from inside If, Loop and Scan to the main graph, so that their values can be read."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper

from pytest_int8acc.graph.index import Index, all_nodes, attribute, bodies, refill, rename_inside, subgraphs
from pytest_int8acc.graph.layout import by_input, channel_axes
from pytest_int8acc.graph.model import Model
from pytest_int8acc.tensors import Array


def with_inner_tensors(model: Model, tensors: Iterable[str]) -> Model:
    """The model with copies of tensors inside If, Loop and Scan in its main graph, under the same names.

    The tensors inside get other names. A copy has the values of all steps of a Loop or Scan, in float32. Its
    shape is [rows, channels] if the channel axis of the tensor is known, otherwise [values].
    A copy may also have rows of zeros: one where a Loop begins, and one if an If runs a branch without the
    tensor. The copy is one row of zeros if the values cannot be copied; see ``hidden_nodes``.

    Args:
        model: A model in normal form, so that no two tensors have the same name.
        tensors: Names of tensors of any graph. Tensors of the main graph stay as they are.
    """
    if model.everywhere is model.index:
        return model
    inside = {value.name for body in bodies(model.graph) for value in body.graph.input}
    inside.update(name for body in bodies(model.graph) for node in body.graph.node for name in node.output)
    chosen = [tensor for tensor in dict.fromkeys(tensors) if tensor in inside]
    return _Shower(model, chosen).shown() if chosen else model


def hidden_nodes(graph: onnx.GraphProto) -> set[str]:
    """Names of the nodes inside If, Loop and Scan whose tensors cannot be copied.

    These are the nodes of graphs inside the graph of a Scan, whose outputs have the same shape in all steps,
    and the nodes inside a SequenceMap.
    """
    found: set[str] = set()
    for holder in all_nodes(graph):
        graphs = subgraphs(holder)
        if holder.op_type == "Scan":
            graphs = [deep for inner in graphs for node in inner.node for deep in subgraphs(node)]
        elif holder.op_type != "SequenceMap":
            continue
        found.update(node.name for inner in graphs for node in all_nodes(inner))
    return found


class _Shower:
    """Copies tensors from inside If, Loop and Scan to the main graph of a model."""

    def __init__(self, model: Model, tensors: Iterable[str]) -> None:
        self.editor = model.edit()
        self.inner = {tensor: self.editor.unique(f"{tensor}/inside") for tensor in tensors}
        """For each tensor to copy, the new name that the tensor inside gets."""
        self.shapes, self.zeros = dict[str, str](), dict[str, str]()
        """For each tensor, the names of two constants: the shape of its copy, and one row of zeros."""
        self.channels = _channels(model, self.inner)
        for tensor in self.inner:
            width = self.channels[tensor].number if tensor in self.channels else 0
            shape, zeros = [-1, width] if width else [-1], np.zeros([1, width] if width else [1], np.float32)
            self.shapes[tensor] = self.editor.add_constant(f"{tensor}/shape", np.array(shape, np.int64))
            self.zeros[tensor] = self.editor.add_constant(f"{tensor}/zeros", zeros)

    def shown(self) -> Model:
        """The model with the copies."""
        found = self._show(self.editor.graph)
        for tensor in self.inner:
            result = found.get(tensor, self.zeros[tensor])
            self.editor.graph.node.append(self._node("Identity", [result], tensor))
        return self.editor.done()

    def _show(self, graph: onnx.GraphProto) -> dict[str, str]:
        """Copy the tensors inside the If, Loop and Scan nodes of a graph to this graph.

        Returns:
            For each tensor, the name of its copy.
        """
        nodes: list[onnx.NodeProto] = []
        found: dict[str, str] = {}
        for node in list(graph.node):
            node = copy.deepcopy(node)
            before, after, shown = self._around(node) if subgraphs(node) else ([], [], {})
            nodes += [*before, node, *after]
            found |= shown
        refill(graph.node, nodes)
        return found

    def _around(
        self, node: onnx.NodeProto
    ) -> tuple[list[onnx.NodeProto], list[onnx.NodeProto], dict[str, str]]:
        """Copy the tensors inside an If, Loop or Scan to the graph that contains this node.

        Returns:
            The nodes to put before the If, Loop or Scan, the nodes to put after it, and the name of the copy
            of each tensor.
        """
        graphs = subgraphs(node)
        own = {tensor for graph in graphs for tensor in self._own(graph)}
        given = [self._show_own(graph) for graph in graphs]
        if node.op_type not in ("If", "Loop"):
            known = own if node.op_type == "Scan" else set[str]()
            given = [{t: name for t, name in found.items() if t in known} for found in given]
        shown = {tensor: self.editor.unique(f"{tensor}/shown") for found in given for tensor in found}
        before: list[onnx.NodeProto] = []
        after: list[onnx.NodeProto] = []
        for tensor, result in shown.items():
            rows = [found.get(tensor, "") for found in given]
            if node.op_type == "If":
                node.output.append(result)
                for graph, name in zip(graphs, rows, strict=True):
                    self._give(graph, name or self._zeros(graph, tensor))
            elif node.op_type == "Scan":
                after.append(self._reshaped(self._of_steps(node, rows[0]), tensor, result))
            else:
                start = self.editor.unique(f"{tensor}/start")
                before.append(self._node("SequenceConstruct", [self.zeros[tensor]], start))
                steps = self._collected(node, rows[0], start)
                after.append(self._node("ConcatFromSequence", [steps], result, axis=0))
        return before, after, shown

    def _own(self, graph: onnx.GraphProto) -> list[str]:
        """The tensors to copy that belong to a graph itself, not to graphs inside it."""
        names = {value.name for value in graph.input}.union(name for n in graph.node for name in n.output)
        return [tensor for tensor in self.inner if tensor in names]

    def _show_own(self, graph: onnx.GraphProto) -> dict[str, str]:
        """Add copies of a graph's own tensors to it; the graph lies inside an If, Loop or Scan.

        The copies are float32 and have the shape of the copies in the main graph. Tensors of the graphs
        inside this graph are also copied to this graph.

        Returns:
            For each tensor, the name of its copy.
        """
        own, found = self._own(graph), self._show(graph)
        for tensor in own:
            cast, found[tensor] = (self.editor.unique(f"{tensor}/{what}") for what in ("float", "rows"))
            graph.node.append(self._node("Cast", [tensor], cast, to=TensorProto.FLOAT))
            order = self.channels[tensor].last if tensor in self.channels else []
            if order:
                turned = self.editor.unique(f"{tensor}/turned")
                graph.node.append(self._node("Transpose", [cast], turned, perm=order))
                cast = turned
            graph.node.append(self._reshaped(cast, tensor, found[tensor]))
        rename_inside(graph, {tensor: self.inner[tensor] for tensor in own})
        return found

    def _of_steps(self, scan: onnx.NodeProto, rows: str) -> str:
        """Add an output to a Scan, which stacks the tensor ``rows`` of all steps, and return its name."""
        self._give(subgraphs(scan)[0], rows)
        for said in scan.attribute:
            if said.name in ("scan_output_axes", "scan_output_directions"):
                said.ints.append(0)
        scan.output.append(self.editor.unique(f"{rows}/steps"))
        return str(scan.output[-1])

    def _collected(self, loop: onnx.NodeProto, rows: str, start: str) -> str:
        """Add an output to a Loop, which collects the tensor ``rows`` of all steps, and return its name.

        The output is a sequence that begins with the elements of the sequence ``start``. A scan output would
        not allow that the size of ``rows`` differs between steps.
        """
        (body,) = subgraphs(loop)
        carried = len(body.input) - 2
        before, after, last = (self.editor.unique(f"{rows}/{what}") for what in ("before", "after", "all"))
        loop.input.append(start)
        loop.output.insert(carried, last)
        body.node.append(self._node("SequenceInsert", [before, rows], after))
        body.input.append(helper.make_tensor_sequence_value_info(before, TensorProto.FLOAT, None))
        given = helper.make_tensor_sequence_value_info(after, TensorProto.FLOAT, None)
        refill(body.output, [*body.output[: 1 + carried], given, *body.output[1 + carried :]])
        return last

    def _give(self, graph: onnx.GraphProto, name: str) -> None:
        graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))

    def _zeros(self, graph: onnx.GraphProto, tensor: str) -> str:
        """Add a row of zeros to a branch of an If that lacks ``tensor``, and return the name of the row."""
        name = self.editor.unique(f"{tensor}/none")
        graph.node.append(self._node("Identity", [self.zeros[tensor]], name))
        return name

    def _reshaped(self, values: str, tensor: str, result: str) -> onnx.NodeProto:
        return self._node("Reshape", [values, self.shapes[tensor]], result)

    def _node(self, op_type: str, inputs: list[str], result: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(op_type, inputs, [result], self.editor.unique(f"{result}/node"), **attributes)


class _Channels(NamedTuple):
    """The channels of a tensor."""

    number: int
    last: list[int]
    """The order of axes that moves the channels to the last axis; empty if the channels are on it already."""


def _channels(model: Model, tensors: Iterable[str]) -> dict[str, _Channels]:
    """The channels of each tensor that a layer with constant weights reads or computes.

    For other tensors the shape must be known. Tensors whose channels are not known are left out.
    """
    index, found = model.everywhere, dict[str, _Channels]()
    known, shapes = channel_axes(model, tensors), model.values()
    constants = model.constants()
    for tensor in tensors:
        layers = [(node, False) for node, position in index.readers(tensor) if not position]
        if tensor in index.producer:
            layers.append((index.producer[tensor], True))
        by_layers = (_of_layer(node, _weight(node, index, constants), made=made) for node, made in layers)
        channels = next(filter(None, by_layers), None)
        if channels is None and tensor in known:
            (axis, rank), shape = known[tensor], shapes[tensor].shape or ()
            size = shape[axis] if axis < len(shape) else None
            channels = _Channels(size, _last(axis, rank)) if isinstance(size, int) else None
        if channels is not None:
            found[tensor] = channels
    return found


def _weight(node: onnx.NodeProto, index: Index, constants: Mapping[str, Array]) -> Array | None:
    """The constant weight of a layer, or its codes; None for other nodes."""
    if node.op_type not in ("Conv", "Gemm", "MatMul"):
        return None
    maker = index.producer.get(node.input[1])
    is_dequantized = maker is not None and maker.op_type == "DequantizeLinear"
    return constants.get(maker.input[0] if maker is not None and is_dequantized else node.input[1])


def _of_layer(node: onnx.NodeProto, weight: Array | None, *, made: bool) -> _Channels | None:
    """The channels that a layer reads or, with ``made``, computes; None for a node without a weight."""
    is_image = node.op_type == "Conv"
    if weight is None or attribute(node, "transA", 0) or not (is_image or weight.ndim == 2):
        return None
    groups, outputs, inputs = by_input(weight, node).shape[:3]
    return _Channels(groups * (outputs if made else inputs), _last(1, weight.ndim) if is_image else [])


def _last(axis: int, rank: int) -> list[int]:
    """The order of axes that moves ``axis`` to the end; empty if ``axis`` is the last axis."""
    return [*range(axis), *range(axis + 1, rank), axis] if axis < rank - 1 else []
