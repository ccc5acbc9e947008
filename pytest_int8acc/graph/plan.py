"""A plan applied to a network gives a model: the one edit by which precision changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.model import Editor, Model
from pytest_int8acc.graph.network import Edge, Network, Plan
from pytest_int8acc.tensors import Array, did_you_mean


def apply(network: Network, plan: Plan | None = None) -> Model:
    """The network's model with Q/DQ on every edge of every group that ``plan`` leaves in INT8.

    Each edge gets a pair of its own, so a group leaves INT8 without touching any other reader of its
    tensors; with all groups high, the result is the float model itself.

    Raises:
        ModelError: The plan names a group or a tensor that the network does not have.
    """
    plan = plan or Plan()
    _check_names(network, plan)
    edges: dict[str, list[Edge]] = defaultdict(list)
    for group in network.groups:
        if group.name not in plan.high:
            for edge in group.edges:
                edges[edge.node].append(edge)
    writer = QdqWriter(network.model.edit(), plan)
    nodes: list[onnx.NodeProto] = []
    for node in writer.editor.graph.node:
        for edge in edges[node.name]:
            nodes.extend(writer.write(node, edge))
        nodes.append(node)
    writer.editor.set_nodes(nodes)
    return writer.editor.done()


def fp32_nodes(network: Network, plan: Plan) -> set[str]:
    """Nodes of the groups that ``plan`` keeps in FP32, for ``to_fp16``."""
    return {n for group in network.groups if plan.high.get(group.name) == "fp32" for n in group.nodes}


class QdqWriter:
    """Adds Q/DQ before one reader at a time; scales, zero points and integer weights are shared."""

    def __init__(self, editor: Editor, plan: Plan) -> None:
        self.editor = editor
        self.plan = plan
        self.scales: dict[str, Array] = {}
        self.names: dict[int, str] = {}
        """Name of each array written so far, by id; network and ``scales`` keep them alive."""

    def write(self, node: onnx.NodeProto, edge: Edge) -> Iterator[onnx.NodeProto]:
        """Nodes to put before ``node``, whose input ``edge.index`` is made to read the last one."""
        quantization = edge.quantization
        base = f"{edge.node}_input{edge.index}"
        parameters = [
            self._constant(f"{edge.tensor}_scale", self._scale(edge)),
            self._constant(f"{edge.tensor}_zero_point", quantization.zero_point),
        ]
        attributes: dict[str, Any] = {} if quantization.axis is None else {"axis": quantization.axis}
        if quantization.values is not None:
            codes = self._constant(f"{edge.tensor}_{quantization.values.dtype}", quantization.values)
        else:
            codes = self.editor.unique(f"{base}_quantized")
            name = self.editor.unique(f"{base}_QuantizeLinear")
            yield helper.make_node(
                "QuantizeLinear", [edge.tensor, *parameters], [codes], name=name, **attributes
            )
        result = self.editor.unique(f"{base}_dequantized")
        name = self.editor.unique(f"{base}_DequantizeLinear")
        yield helper.make_node("DequantizeLinear", [codes, *parameters], [result], name=name, **attributes)
        node.input[edge.index] = result

    def _scale(self, edge: Edge) -> Array:
        if edge.tensor not in self.plan.scales or not _is_plain_activation(edge):
            return edge.quantization.scale
        if edge.tensor not in self.scales:
            self.scales[edge.tensor] = np.array(self.plan.scales[edge.tensor], edge.quantization.scale.dtype)
        return self.scales[edge.tensor]

    def _constant(self, wanted: str, array: Array) -> str:
        if id(array) not in self.names:
            self.names[id(array)] = self.editor.add_constant(wanted, array)
        return self.names[id(array)]


def _check_names(network: Network, plan: Plan) -> None:
    groups = {group.name for group in network.groups}
    tensors = set(activation_scales(network))
    for what, names, known in (("group", plan.high, groups), ("quantized tensor", plan.scales, tensors)):
        for name in names:
            if name not in known:
                hint = did_you_mean(name, sorted(known))
                raise ModelError(f"{network.model.name}: the plan names '{name}', which is no {what}{hint}")


def activation_scales(network: Network) -> dict[str, float]:
    """Scale of every activation that is quantized per tensor."""
    return {
        edge.tensor: float(edge.quantization.scale)
        for group in network.groups
        for edge in group.edges
        if _is_plain_activation(edge)
    }


def _is_plain_activation(edge: Edge) -> bool:
    return edge.quantization.values is None and edge.quantization.axis is None
