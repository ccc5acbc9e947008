"""Compares a quantized model, without its rounding, with the float model of the same case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from pytest_int8acc.case.measured import Measured
from pytest_int8acc.graph.index import all_nodes
from pytest_int8acc.graph.model import Model, giving
from pytest_int8acc.graph.same import unrounded
from pytest_int8acc.graph.types import value_types
from pytest_int8acc.results.causes import OtherModel
from pytest_int8acc.tensors import Array, Feed

#: Minimum error of a weight or a tensor, as a ratio of root mean squares, that counts as a difference.
#: Weights that are stored in INT8 are off by up to a few percent, and the values behind them by as much.
_MIN_RATIO = 0.1
#: Operators that give a constant or their input.
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
    tensor, off = _first_difference(measured, own, other)
    makers = {name: node.op_type for node in own.graph.node for name in node.output}
    more, less = _operators(other), _operators(own)
    more.subtract(less)
    return OtherModel(
        file=str(case.source.model),
        key=case.source.where,
        model=str(case.model),
        weights=weights,
        differing=differing,
        tensor=tensor,
        op_type=makers.get(tensor, ""),
        off=off,
        operators={op_type: n for op_type, n in sorted(more.items()) if n},
    )


def _operators(model: Model) -> Counter[str]:
    """The number of nodes of each operator, without those that compute nothing."""
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


def _first_difference(measured: Measured, own: Model, other: Model) -> tuple[str, float]:
    """The first tensor of the float model that has other values in the other model, and its relative error.

    The name is empty if no tensor differs.
    """
    feed = next(measured.inputs.first(1).batches()).feed
    types, others = value_types(own), value_types(other)
    names = [name for node in own.graph.node for name in node.output if name in types and name in others]
    found = [_opened(measured, each, names)(feed) for each in (own, other)]
    for name in names:
        off = _off(found[0][name], found[1][name])
        if off > _MIN_RATIO:
            return name, off
    return "", 0.0


def _opened(measured: Measured, model: Model, names: list[str]) -> Callable[[Feed], Mapping[str, Array]]:
    """A function that runs a model, and returns these tensors and the model's outputs."""
    types, outputs = value_types(model), {value.name for value in model.graph.output}
    run = measured.sessions.plain(giving(model, {name: types[name] for name in names if name not in outputs}))
    return lambda feed: run({i.name: feed[i.name].astype(i.dtype) for i in model.inputs})


def _off(expected: Array, found: Array) -> float:
    """The root mean square of the difference over that of ``expected``.

    The result is inf for another shape, or if other values are not finite. Tensors without numbers give 0.
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
