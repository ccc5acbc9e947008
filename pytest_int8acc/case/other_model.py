"""Compares a quantized model, without its rounding, with the float model of the same case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import onnx

from pytest_int8acc.case.measured import Measured
from pytest_int8acc.graph.index import all_nodes, attribute
from pytest_int8acc.graph.layout import moves_values
from pytest_int8acc.graph.model import Model, giving
from pytest_int8acc.graph.same import unrounded
from pytest_int8acc.graph.types import value_types
from pytest_int8acc.results.causes import AddedNode, OtherAttribute, OtherModel
from pytest_int8acc.tensors import Array, Feed

#: Minimum error of a weight or a tensor, as a ratio of root mean squares, that counts as a difference.
#: Rounding of weights that are stored in INT8 causes errors of a few percent, in weights and in the tensors
#: that depend on them.
_MIN_RATIO = 0.1
#: Maximum relative difference of an element that counts as rounding.
_ROUNDING = 1e-3
#: Operators that return a constant or their input unchanged.
_IDLE = ("Constant", "Identity", "Dropout")


def other_model(measured: Measured) -> OtherModel | None:
    """The differences between the user's quantized model and the float model, apart from rounding.

    The models run in FP32 in ONNX Runtime on the first sample. The result is None if the float model was
    quantized by this plugin.

    Raises:
        EngineError: ONNX Runtime cannot run a model.
    """
    int8, case = measured.int8, measured.case
    if int8 is None or int8.file is None or case.source.model is None:
        return None
    own, other = unrounded(measured.model, ()), unrounded(int8.every.model, ())
    weights, differing = _weights(own, other)
    tensor, off, same = _first_difference(measured, own, other)
    tensor, theirs, off = _renamed_difference(measured, own, other, tensor, off, same)
    maker = _maker(tensor, [measured.model.file or own, own])
    other_maker = other.index.producer.get(theirs)
    more, less = _operators(other), _operators(own)
    more.subtract(less)
    return OtherModel(
        file=str(case.source.model),
        key=case.source.where,
        model=str(case.model),
        weights=weights,
        differing=differing,
        tensor=tensor,
        op_type="" if maker is None else maker.op_type,
        made_by=_replaced_by(maker, other_maker),
        off=off,
        attributes=_attributes(own.index.producer.get(tensor), other_maker),
        operators={op_type: n for op_type, n in sorted(more.items()) if n},
        added=_first_added(measured, own, other, more),
    )


def _maker(tensor: str, models: Sequence[Model]) -> onnx.NodeProto | None:
    """The node that outputs a tensor, in the first of ``models`` that has the tensor; None if none has it."""
    return next((m.index.producer[tensor] for m in models if tensor in m.index.producer), None)


def _attributes(own: onnx.NodeProto | None, other: onnx.NodeProto | None) -> tuple[OtherAttribute, ...]:
    """The attributes in which two nodes with the same operator differ; empty if the operators differ."""
    if own is None or other is None or not _is_alike(own, other):
        return ()
    ours, theirs = ({a.name: _text(a) for a in node.attribute} for node in (own, other))
    names = sorted(ours.keys() | theirs.keys())
    pairs = [OtherAttribute(name, ours.get(name, "unset"), theirs.get(name, "unset")) for name in names]
    return tuple(pair for pair in pairs if pair.own != pair.other)


def _replaced_by(own: onnx.NodeProto | None, other: onnx.NodeProto | None) -> str:
    """The operator of ``other`` if both nodes are known and their operators differ; otherwise empty."""
    return "" if own is None or other is None or _is_alike(own, other) else other.op_type


def _is_alike(own: onnx.NodeProto, other: onnx.NodeProto) -> bool:
    """Whether two nodes have the same operator."""
    return (own.domain, own.op_type) == (other.domain, other.op_type)


def _text(attribute: onnx.AttributeProto) -> str:
    value = onnx.helper.get_attribute_value(attribute)
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _first_added(measured: Measured, own: Model, other: Model, more: Mapping[str, int]) -> AddedNode | None:
    """The first node that ``other`` has in addition to the nodes of ``own``, and how it changes values.

    A node counts only if ``other`` has more nodes with its operator than ``own``.

    Args:
        measured: The case.
        own: The float model.
        other: The quantized model without rounding.
        more: For each operator, how many more nodes ``other`` has than ``own``.
    """
    known = {node.name for node in all_nodes(own.graph)}
    added = (node for node in other.graph.node if more.get(node.op_type, 0) > 0 and node.name not in known)
    node = next(added, None)
    if node is None:
        return None
    to = attribute(node, "to", 0) if node.op_type == "Cast" else 0
    return AddedNode(
        node=node.name,
        op_type=node.op_type,
        tensor=node.input[0] if node.input else "",
        to=onnx.TensorProto.DataType.Name(to) if to else "",
        changed=_changed(measured, other, node),
    )


def _changed(measured: Measured, model: Model, node: onnx.NodeProto) -> float | None:
    """The share of elements that a node changes, on the first sample; None if it is unknown.

    Changes by rounding do not count.
    """
    if not node.input:
        return None
    names, types = [node.input[0], node.output[0]], value_types(model)
    if any(name not in types for name in names):
        return None
    feed = next(measured.inputs.first(1).batches()).feed
    made = [name for name in names if name not in feed]
    values = {**feed, **_opened(measured, model, made)(feed)}
    before, after = (values[name] for name in names)
    if before.shape != after.shape or not before.size or {before.dtype.kind, after.dtype.kind} - set("fiub"):
        return None
    wide = before.astype(np.float64), after.astype(np.float64)
    return float(np.mean(~np.isclose(*wide, rtol=_ROUNDING, atol=0.0, equal_nan=True)))


def _operators(model: Model) -> Counter[str]:
    """The number of nodes of each operator, without operators that compute nothing."""
    return Counter(node.op_type for node in all_nodes(model.graph) if node.op_type not in _IDLE)


def _weights(own: Model, other: Model) -> tuple[int, tuple[str, ...]]:
    """The number of weights that both models have, and the names of those that differ.

    Weights are constants with at least two axes. They are matched by name, or by shape if no name matches.
    """
    theirs = _matrices(other)
    count, differing = 0, []
    for name, array in _matrices(own).items():
        alike = [theirs[name]] if name in theirs else [a for a in theirs.values() if a.shape == array.shape]
        if not alike:
            continue
        count += 1
        if all(_off(array, each) > _MIN_RATIO for each in alike):
            differing.append(name)
    return count, tuple(differing)


def _matrices(model: Model) -> dict[str, Array]:
    constants = model.constants().items()
    return {name: array for name, array in constants if array.ndim > 1 and array.dtype.kind == "f"}


def _first_difference(measured: Measured, own: Model, other: Model) -> tuple[str, float, set[str]]:
    """The first tensor of the float model that has other values in the other model, and its relative error.

    Only tensors with the same name in both models are compared. The name is empty if none of them differs.
    The third result has the names of the earlier tensors, which are equal in both models.
    """
    feed = next(measured.inputs.first(1).batches()).feed
    types, others = value_types(own), value_types(other)
    names = [name for node in own.graph.node for name in node.output if name in types and name in others]
    found = [_opened(measured, each, names)(feed) for each in (own, other)]
    same = set[str]()
    for name in names:
        off = _off(found[0][name], found[1][name])
        if off > _MIN_RATIO:
            return name, off, same
        same.add(name)
    return "", 0.0, same


def _renamed_difference(
    measured: Measured, own: Model, other: Model, tensor: str, off: float, same: Collection[str]
) -> tuple[str, str, float]:
    """The first tensor that differs, also among tensors whose names in the two models differ.

    A converter of opsets renames the outputs of the nodes that it replaces. So the nodes before ``tensor``
    are compared without names: the inputs of a node are compared by position with the inputs of the node in
    the other model. The search goes back to the first nodes whose inputs are equal, or whose operators
    differ. The operators may differ if both nodes only move values.

    Args:
        measured: The case.
        own: The float model.
        other: The quantized model without rounding.
        tensor: The first tensor that has the same name in both models and differs; empty if there is none.
        off: The relative error of ``tensor``.
        same: Tensors with the same name and values in both models.

    Returns:
        The tensor's name in the float model, its name in the other model, and its relative error.
    """
    ours, theirs = tensor, tensor
    feed = next(measured.inputs.first(1).batches()).feed
    types, others = value_types(own), value_types(other)
    made, made_there = own.index.producer, other.index.producer
    while ours in made and theirs in made_there and _may_go_on(made[ours], made_there[theirs]):
        pairs = [
            (a, b)
            for a, b in zip(made[ours].input, made_there[theirs].input, strict=False)
            if a != b and a in made and b in made_there and a in types and b in others and a not in same
        ]
        if not pairs:
            break
        expected = _opened(measured, own, [a for a, _ in pairs])(feed)
        found = _opened(measured, other, [b for _, b in pairs])(feed)
        errors = ((_off(expected[a], found[b]), a, b) for a, b in pairs)
        first = next((error for error in errors if error[0] > _MIN_RATIO), None)
        if first is None:
            break
        off, ours, theirs = first
    return ours, theirs, off


def _may_go_on(own: onnx.NodeProto, other: onnx.NodeProto) -> bool:
    return _is_alike(own, other) or (moves_values(own) and moves_values(other))


def _opened(measured: Measured, model: Model, names: list[str]) -> Callable[[Feed], Mapping[str, Array]]:
    """A function that runs a model, and returns these tensors and the model's outputs."""
    types = value_types(model)
    run = measured.sessions.plain(giving(model, {name: types[name] for name in names}))
    return lambda feed: run({i.name: feed[i.name].astype(i.dtype) for i in model.inputs})


def _off(expected: Array, found: Array) -> float:
    """The root mean square of the difference, divided by that of ``expected``.

    The result is inf if the shapes differ, or if NaN or infinities of the arrays differ. It is 0 for arrays
    that hold no numbers.
    """
    if expected.shape != found.shape:
        return float("inf")
    if expected.dtype.kind not in "fiub" or found.dtype.kind not in "fiub":
        return 0.0
    finite = np.isfinite(expected)
    if not np.array_equal(expected[~finite], found[~finite], equal_nan=True):
        return float("inf")
    one, other = expected[finite].astype(np.float64), found[finite].astype(np.float64)
    if np.array_equal(one, other):
        return 0.0
    error, size = float(np.sqrt(np.mean((one - other) ** 2))), float(np.sqrt(np.mean(one**2)))
    return error / size if size and np.isfinite(error) else float("inf")
