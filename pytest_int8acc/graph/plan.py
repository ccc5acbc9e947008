"""Applies plans to networks. A plan says which precision each layer has, and which scales tensors have.

Only this module changes the precisions, scales and ranges of a model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.half import scale_in
from pytest_int8acc.graph.half_network import fused
from pytest_int8acc.graph.layout import WEIGHTED, quantize_weight, scales_axis
from pytest_int8acc.graph.migrate import migrate
from pytest_int8acc.graph.model import Editor, Model, giving
from pytest_int8acc.graph.network import (
    Edge,
    LeftHigh,
    Network,
    Plan,
    Quantization,
    TensorScale,
    by_node,
    float_constant_name,
    in_floats,
    with_edges,
)
from pytest_int8acc.graph.types import FLOAT, FLOAT16, inner_types, value_types
from pytest_int8acc.tensors import Array, did_you_mean


def apply(network: Network, plan: Plan | None = None) -> Model:
    """The model of a network under a plan, with Q/DQ pairs in every group that stays in INT8 or FP8.

    Each quantized input gets a Q/DQ pair of its own. So a group of layers can be kept in high precision
    without an effect on other nodes that read the same tensors. If all groups are in high precision and the
    plan changes nothing else, the result is the float model itself.

    Raises:
        ModelError: The plan does not fit the network, see ``moved``.
    """
    plan = plan or Plan()
    network = moved(network, plan)
    low = [group for group in network.groups if group.name not in plan.high]
    edges = by_node(edge for group in low for edge in group.edges)
    writer = QdqWriter(network.model.edit())

    def quantized(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        for edge in edges[node.name]:
            yield from writer.write(node, edge)
        yield node

    writer.editor.rewrite(quantized)
    return writer.editor.done()


def moved(network: Network, plan: Plan) -> Network:
    """The network after all changes of a plan except those of precision: all groups stay in low precision.

    These changes are fusions of normalizations, scales, float constants and range migrations. A migration
    creates new tensors. A new tensor gets its scale from the plan if the plan has one.

    Args:
        network: Any network. If the plan has scales of constants, the network's model must be in FP32.
        plan: The plan. The groups in ``high`` must exist, but are not changed.

    Raises:
        ModelError: The plan names a group, normalization or tensor that does not exist, a scale does not fit
            its tensor, or the range of a tensor cannot be migrated.
    """
    network = _with_floats(fused(network, plan.fused), plan.floats)
    known = set(quantized_tensors(network))
    network = _with_scales(network, plan.scales)
    for tensor, factors in plan.moves.items():
        network = migrate(network, {tensor: factors}).network
        made = set(quantized_tensors(network)) - known
        network = _with_scales(network, {t: s for t, s in plan.scales.items() if t in made})
        known |= made
    _check_names(network, plan, known)
    return network


def merge(network: Network, first: Plan, second: Plan) -> Plan:
    """One plan that makes the changes of ``first`` and then those of ``second``.

    If both plans set the same scale or precision, that of ``second`` is used.

    Raises:
        ModelError: Both plans migrate the range of one tensor, or ``first`` does not fit the network.
    """
    for tensor in second.moves:
        if tensor in first.moves:
            raise ModelError(f"'{tensor}' is moved by the case's plan already; it cannot be moved again")
    scales = {**first.scales, **second.scales}
    if first.moves and second.scales:
        # After a range migration, a node reads a new tensor. The second plan has a scale for the old tensor
        # only. So the new tensor keeps the scale that it has after the first plan.
        after = moved(network, first)
        for old, new in zip(network.edges, after.edges, strict=True):
            if new.tensor != old.tensor and old.tensor in second.scales and new.tensor not in scales:
                own = new.quantization
                scales[new.tensor] = TensorScale(own.scale, own.axis, own.zero_point)
    joined = {
        part.name: _joined(getattr(first, part.name), getattr(second, part.name)) for part in fields(Plan)
    }
    return replace(Plan(**joined), scales=scales)


def _joined(first: Any, second: Any) -> Any:
    """The entries of both mappings or tuples; an entry of ``second`` replaces that of ``first``."""
    if isinstance(first, tuple):
        return tuple(dict.fromkeys((*first, *second)))
    return {**first, **second}


def plan_key(plan: Plan, ignored: Collection[str] = ()) -> object:
    """A hashable key that is equal for plans whose fields are equal, apart from the fields ``ignored``."""
    kept = (part for part in fields(plan) if part.name not in ignored)
    return tuple(_key(getattr(plan, part.name), any_order="any_order" in part.metadata) for part in kept)


def _key(value: object, *, any_order: bool = False) -> object:
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, TensorScale):
        return tuple(_key(getattr(value, part.name)) for part in fields(value))
    if isinstance(value, Mapping):
        entries = ((name, _key(entry)) for name, entry in value.items())
        return frozenset(entries) if any_order else tuple(entries)
    return value


def computed_floats(model: Model) -> dict[str, int]:
    """The element types of float tensors that nodes of the main graph compute, by name; without outputs."""
    return {name: kind for name, kind in inner_types(model).items() if kind in (FLOAT, FLOAT16)}


def with_outputs(model: Model, tensors: Iterable[str]) -> Model:
    """The model with ``tensors`` as additional outputs. Tensors that are outputs already are skipped.

    Raises:
        ModelError: No node of the main graph computes a tensor.
    """
    own = {output.name for output in model.outputs}
    inner = [tensor for tensor in tensors if tensor not in own]
    for tensor in inner:
        if tensor not in model.index.producer:
            raise ModelError(f"{model.name}: '{tensor}' cannot be an output: no node computes it")
    types = value_types(model) if inner else {}
    return giving(model, {tensor: types.get(tensor, FLOAT) for tensor in inner})


def guard(network: Network, plan: Plan) -> Network:
    """The network changed by a plan, without the groups that the plan keeps in high precision.

    Raises:
        ModelError: The plan does not fit the network, see ``moved``.
    """
    network = moved(network, plan)
    kept = tuple(group for group in network.groups if group.name not in plan.high)
    by_plan = {name: LeftHigh("planned", (precision.upper(),)) for name, precision in plan.high.items()}
    return replace(network, groups=kept, left_high={**network.left_high, **by_plan})


def fp32_nodes(network: Network, plan: Plan) -> set[str]:
    """Names of the nodes of groups that a plan keeps in FP32."""
    kept = [group for group in network.groups if plan.high.get(group.name) == "fp32"]
    return {node for group in kept for node in group.nodes}


class QdqWriter:
    """Adds Q/DQ pairs to a graph. The pairs share constants: scales, zero points and quantized weights."""

    def __init__(self, editor: Editor, add: Callable[[str, Array], str] | None = None) -> None:
        self.editor = editor
        self.add = add or editor.add_constant
        """Adds a constant, given a preferred name and an array, and returns the constant's name."""
        self.names: dict[int, str] = {}
        """The name of the constant for each array that was added, by the ``id`` of the array. The network
        keeps the arrays alive, so no two arrays have the same ``id``."""

    def write(self, node: onnx.NodeProto, edge: Edge, scale: str | None = None) -> Iterator[onnx.NodeProto]:
        """The Q/DQ pair for a quantized input of ``node``; ``node`` is changed to read the pair's output.

        Args:
            node: The node that reads the tensor. The pair must be put before it.
            edge: The input of the node that is quantized.
            scale: The name of a tensor that is the scale; None adds the scale of ``edge`` as a constant.
        """
        quantization = edge.quantization
        base = f"{edge.node}_input{edge.index}"
        if quantization.is_float and quantization.values is not None:
            # The Cast marks a constant that this package wrote. Code that reads the file can tell such a
            # constant from the constants of the float model.
            result, kind = (
                self.editor.unique(float_constant_name(edge.node, edge.index)),
                quantization.scale.dtype,
            )
            values, to = self._constant(result, quantization.values), helper.np_dtype_to_tensor_dtype(kind)
            yield helper.make_node("Cast", [values], [result], self.editor.unique(f"{base}_Cast"), to=to)
            node.input[edge.index] = result
            return
        scale = scale or self._constant(f"{edge.tensor}_scale", quantization.scale)
        parameters = scale, self._constant(f"{edge.tensor}_zero_point", quantization.zero_point)
        axis: dict[str, Any] = {} if quantization.axis is None else {"axis": quantization.axis}
        if quantization.values is not None:
            codes = self._constant(f"{edge.tensor}_{quantization.values.dtype}", quantization.values)
        else:
            codes = self.editor.unique(f"{base}_quantized")
            name = self.editor.unique(f"{base}_QuantizeLinear")
            yield helper.make_node("QuantizeLinear", [edge.tensor, *parameters], [codes], name, **axis)
        result = self.editor.unique(f"{base}_dequantized")
        name = self.editor.unique(f"{base}_DequantizeLinear")
        yield helper.make_node("DequantizeLinear", [codes, *parameters], [result], name, **axis)
        node.input[edge.index] = result

    def _constant(self, preferred: str, array: Array) -> str:
        if id(array) not in self.names:
            self.names[id(array)] = self.add(preferred, array)
        return self.names[id(array)]


def quantized_tensors(network: Network) -> dict[str, Quantization]:
    """The quantization of each quantized tensor, at the first node that reads it in topological order."""
    found: dict[str, Quantization] = {}
    for edge in network.edges:
        found.setdefault(edge.tensor, edge.quantization)
    return found


def _with_floats(network: Network, floats: Mapping[str, Array]) -> Network:
    """The network in which constants have the values ``floats`` while their group is in low precision.

    A node that reads a constant may belong to no group, such as an Add of a bias after a MatMul. Its constant
    changes with the group that computes the node's other input.
    """
    if not floats:
        return network
    index, constants = network.model.everywhere, network.model.constants()
    owners = {name: group.name for group in network.groups for name in group.nodes}
    added: dict[str, list[Edge]] = defaultdict(list)
    for tensor, values in floats.items():
        if tensor not in constants or constants[tensor].shape != values.shape:
            raise ModelError(
                f"{network.model.name}: the plan names '{tensor}', which is no constant like that"
            )
        for node, place in index.readers(tensor) if not np.array_equal(values, constants[tensor]) else ():
            makers = (index.producer[name].name for name in node.input if name in index.producer)
            owner = next((owners[name] for name in (node.name, *makers) if name in owners), "")
            added[owner].append(Edge(node.name, place, tensor, in_floats(values)))
    groups = []
    for group in network.groups:
        edges = [edge for edge in group.edges if edge.tensor not in floats] + added[group.name]
        nodes = dict.fromkeys([*group.nodes, *(edge.node for edge in edges)])
        groups.append(replace(group, nodes=tuple(nodes), edges=tuple(edges)))
    return replace(network, groups=tuple(groups))


def fresh_weights(network: Network, names: Iterable[str]) -> dict[str, TensorScale]:
    """New symmetric scales for the constants ``names``, from their greatest magnitudes, by name.

    Scales are per channel if all nodes that read the constant need the same channel axis. Otherwise there is
    one scale for the tensor.

    Raises:
        ModelError: No quantized constant has one of the names.
    """
    constants = network.model.constants()
    nodes = network.model.everywhere.nodes
    axes: dict[str, set[int | None]] = defaultdict(set)
    for edge in network.edges:
        if edge.quantization.values is not None:
            axes[edge.tensor].add(weight_axis(nodes[edge.node], edge, constants[edge.tensor].ndim))
    found: dict[str, TensorScale] = {}
    for name in names:
        if name not in axes:
            raise ModelError(f"{network.model.name}: '{name}' is no quantized constant")
        axis = axes[name].pop() if len(axes[name]) == 1 else None
        found[name] = TensorScale(quantize_weight(constants[name], axis, network.low).scale, axis)
    return found


def weight_axis(node: onnx.NodeProto, edge: Edge, rank: int) -> int | None:
    """The channel axis for scales of the constant, of rank ``rank``, that ``node`` reads at ``edge``.

    A convolution or matrix product determines the axis. For other nodes, the axis in ``edge`` is returned.
    """
    if node.op_type in WEIGHTED and edge.index < 2:
        return scales_axis(node, edge.index, rank)
    return edge.quantization.axis


def _with_scales(network: Network, scales: Mapping[str, TensorScale]) -> Network:
    """The network with the new ``scales``; tensors that the network does not have are skipped.

    Quantized inputs that read the same tensor share the arrays of its scale and its codes.
    """
    constants = network.model.constants() if scales else {}
    made: dict[tuple[str, bool, str], Quantization] = {}

    def scaled(edge: Edge) -> Edge:
        if edge.tensor not in scales:
            return edge
        old = edge.quantization
        key = (edge.tensor, old.values is None, str(old.scale.dtype))
        if key not in made:
            array = None if old.values is None else constants[edge.tensor]
            wrong = misfit(scales[edge.tensor], None if array is None else array.shape)
            if wrong:
                raise ModelError(f"{network.model.name}: the plan's scale of '{edge.tensor}': {wrong}")
            chosen = scales[edge.tensor]
            scale = scale_in(np.asarray(chosen.scale, np.float32), old.scale.dtype)
            zero_point = network.low.zeros(scale) if chosen.zero_point is None else chosen.zero_point
            fresh = Quantization(scale, zero_point, chosen.axis)
            made[key] = fresh if array is None else replace(fresh, values=fresh.quantize(array))
        return replace(edge, quantization=made[key])

    return with_edges(network, scaled) if scales else network


def misfit(chosen: TensorScale, shape: tuple[int, ...] | None = None) -> str:
    """Text for messages that says what is wrong with a scale; empty if nothing is wrong.

    Args:
        chosen: The scale.
        shape: The shape of the constant that the scale is for; None if the scale is for an activation.
    """
    scale = chosen.scale
    if not (np.isfinite(scale) & (scale > 0)).all():
        return "it must be greater than 0"
    if scale.ndim != (chosen.axis is not None) or not scale.size:
        return "one per tensor, or a list and an axis"
    if chosen.zero_point is not None and chosen.zero_point.shape != scale.shape:
        return f"{chosen.zero_point.size} zero points for {scale.size} scales"
    if shape is None or chosen.axis is None:
        return ""
    if not -len(shape) <= chosen.axis < len(shape):
        return f"axis {chosen.axis} of a tensor with {len(shape)} dimensions"
    if shape[chosen.axis] != scale.size:
        return f"{scale.size} numbers along axis {chosen.axis}, which has {shape[chosen.axis]}"
    return ""


def _check_names(network: Network, plan: Plan, tensors: Collection[str]) -> None:
    groups = {group.name for group in network.groups}
    for what, names, known in (("group", plan.high, groups), ("quantized tensor", plan.scales, tensors)):
        for name in names:
            if name not in known:
                hint = did_you_mean(name, sorted(known))
                raise ModelError(f"{network.model.name}: the plan names '{name}', which is no {what}{hint}")


def activation_scales(network: Network) -> dict[str, float]:
    """The scale of each activation that is quantized per tensor."""
    return {
        edge.tensor: float(edge.quantization.scale)
        for edge in network.edges
        if edge.quantization.values is None and edge.quantization.axis is None
    }
