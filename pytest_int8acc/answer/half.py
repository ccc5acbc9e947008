"""Why a group cannot run in FP16 or BF16: what is beyond the format, vanishes or cancels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from pytest_int8acc.graph.formats import Format
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.lab.losses import TensorLoss
from pytest_int8acc.results import Culprit
from pytest_int8acc.results.causes import Cause, Symptom
from pytest_int8acc.tensors import Array

#: A difference is a cancellation from this many times the rounding of its operands on.
_CANCELS = 16.0


def low_cause(lab: Lab, culprit: Culprit, engine_only: bool) -> Cause:
    """What a group of a case in FP16 or BF16 shows; ``Lab.losses`` has measured it.

    Args:
        lab: Of the case.
        culprit: The group.
        engine_only: The same model meets the criteria in ONNX Runtime, so no value of its can be the cause.

    Raises:
        EngineError: The float model does not run.
    """
    low = lab.int8.low
    if engine_only:
        return Cause("engine-only", "engine-rounds", node=culprit.nodes[0], format=low.name)
    found = next(_beyond(lab, culprit, low), None) or next(_vanishing(lab, culprit, low), None)
    return found or _cancelling(lab, culprit, low) or _rounded(lab, culprit)


def _cancelling(lab: Lab, culprit: Culprit, low: Format) -> Cause | None:
    """A difference that is small beside what it is the difference of."""
    worst, step = lab.losses[culprit.layer].worst, low.smallest / low.normal
    node = lab.network.model.index.nodes.get(worst.node)
    if node is None or node.op_type not in ("Sub", "Add", "Sum") or worst.share <= _CANCELS * step:
        return None
    numbers = {"share": min(worst.share, 1.0)}
    return Cause("cancellation", "cancelling", worst.tensor, numbers, node=worst.node, format=low.name)


def _rounded(lab: Lab, culprit: Culprit) -> Cause:
    """What rounding changes most, where nothing else is seen."""
    worst = lab.losses[culprit.layer].worst
    numbers, low = {"share": min(worst.share, 1.0)}, lab.int8.low
    return Cause("rounding", "needs-digits", worst.tensor, numbers, node=worst.node, format=low.name)


def _beyond(lab: Lab, culprit: Culprit, low: Format) -> Iterator[Cause]:
    """What the format does not hold: constants, what the group makes, what it reads."""
    for name, array in _constants(lab, culprit):
        amax = float(np.abs(array).max(initial=0))
        if low.highest < amax < np.inf:
            yield _cause("overflow", "constant-beyond-range", name, low, amax)
    made = {loss.tensor for loss in lab.losses[culprit.layer].tensors}
    known = {loss.tensor: loss for group in lab.losses.values() for loss in group.tensors}
    nodes = lab.network.model.index.nodes
    read = [name for node in culprit.nodes for name in nodes[node].input if name in known]
    sides: tuple[tuple[set[str], Symptom], ...] = (
        (made, "beyond-range"),
        (set(read) - made, "reads-beyond-range"),
    )
    for tensors, symptom in sides:
        beyond = [known[t] for t in tensors if low.highest < known[t].peak < np.inf]
        if beyond:
            worst = max(beyond, key=lambda loss: loss.peak)
            yield _cause("overflow", symptom, worst.tensor, low, worst.peak, worst)


def _vanishing(lab: Lab, culprit: Culprit, low: Format) -> Iterator[Cause]:
    """What becomes 0 in the format: constants, then values."""
    for name, array in _constants(lab, culprit):
        if array.any() and not low.round(array).any():
            yield _cause("underflow", "vanishing-constant", name, low, float(np.abs(array).max()))
    lost = [loss for loss in lab.losses[culprit.layer].tensors if loss.lost]
    if lost:
        worst = max(lost, key=lambda loss: loss.lost)
        if worst.share > _CANCELS * low.smallest / low.normal:
            yield _cause("underflow", "vanishing-values", worst.tensor, low, worst.peak, worst)


def _constants(lab: Lab, culprit: Culprit) -> Iterator[tuple[str, Array]]:
    """Float constants that the group reads."""
    constants, nodes = lab.network.model.constants(), lab.network.model.index.nodes
    for name in dict.fromkeys(name for node in culprit.nodes for name in nodes[node].input):
        if name in constants and constants[name].dtype == np.float32:
            yield name, constants[name]


def _cause(
    kind: Literal["overflow", "underflow"],
    symptom: Symptom,
    tensor: str,
    low: Format,
    amax: float,
    loss: TensorLoss | None = None,
) -> Cause:
    numbers = {"smallest": low.smallest, "lost": loss.lost if loss is not None else 0.0}
    node = loss.node if loss is not None else ""
    return Cause(
        kind, symptom, tensor, numbers, amax=amax, reach=float(low.highest), node=node, format=low.name
    )
