"""A float model and scales become a Network: groups whose edges know how they are quantized."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.formats import FP16, INT8, Format
from pytest_int8acc.graph.groups import Layout, Slot
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Edge, Group, LeftHigh, Network, Quantization
from pytest_int8acc.tensors import Array


def quantize(model: Model, layout: Layout, scales: Mapping[str, float], low: Format = INT8) -> Network:
    """The Network of ``model`` with every slot of ``layout`` quantized symmetrically.

    A group that lacks a scale stays high; ``left_high`` says so.

    Args:
        model: The float model that ``layout`` was made for; for FP8 of opset 19 or later.
        layout: From ``find_groups``.
        scales: Activation tensor to scale (amax / ``low.levels``); may miss some.
        low: INT8 or FP8.

    Raises:
        ModelError: No group is left to quantize, or a weight holds nan or inf.
    """
    known = _joined(layout, scales)
    constants = model.constants()
    made: dict[tuple[str, int | None], Quantization] = {}

    def edge(slot: Slot) -> Edge:
        key = slot.tensor, slot.axis
        if key not in made:  # readers of one tensor share its scale, and its codes
            if slot.constant:
                made[key] = _of_weight(slot, constants[slot.tensor], model.name, low)
            else:
                scale = np.array(known[slot.tensor], np.float32)
                made[key] = Quantization(scale, low.zeros(scale))
        return Edge(slot.node, slot.index, slot.tensor, made[key])

    groups, left_high = [], dict(layout.left_high)
    for name, slots in layout.slots.items():
        missing = tuple(s.tensor for s in slots if not s.constant and s.tensor not in known)
        if missing:
            left_high[name] = LeftHigh("no-scale", missing)
            continue
        groups.append(Group(name, model.index.nodes[name].op_type, (name,), tuple(map(edge, slots))))
    if not groups:
        raise ModelError(f"{model.name}: nothing to quantize: the scales cover none of the tensors needed")
    return Network(model, tuple(groups), left_high, low=low)


def quantize_weight(weight: Array, axis: int | None, low: Format = INT8) -> Quantization:
    """A constant quantized symmetrically: scale = max|w| / levels, per slice of ``axis`` or for the whole.

    The codes of INT8 are -127 to 127, as those of TensorRT's own quantizers. A scale below 2**-14, where FP16
    has few digits, is raised to the next number that FP16 holds: in FP16 the codes would stand for other
    values.

    Args:
        weight: Any shape, finite.
        axis: The channel axis, or None for one scale.
        low: INT8 or FP8.
    """
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)
    # Two passes instead of abs(): a mapped weight is never copied whole.
    amax = np.maximum(weight.max(axis=others), -weight.min(axis=others)).astype(np.float32)
    scale, step = amax / np.float32(low.levels), np.float32(FP16.smallest)
    scale = np.where(scale < np.float32(FP16.normal), np.ceil(scale / step) * step, scale)
    # A channel that is all zeros is zeros at any scale above 0.
    scale = np.where(amax > 0, scale, 1 / low.levels).astype(np.float32)
    codes = low.quantize(weight, scale, axis=axis)
    return Quantization(scale, low.zeros(scale), axis, codes)


def _of_weight(slot: Slot, weight: Array, model: str, low: Format) -> Quantization:
    if not np.isfinite(weight).all():
        raise ModelError(f"{model}: weight '{slot.tensor}' of '{slot.node}' holds nan or inf")
    return quantize_weight(weight, slot.axis, low)


def _joined(layout: Layout, scales: Mapping[str, float]) -> dict[str, float]:
    """``scales`` with one scale, the greatest, for each set of tensors that must agree."""
    joined = dict(scales)
    for tensors in layout.shared:
        present = [t for t in tensors if t in scales]
        joined.update(dict.fromkeys(present, max((scales[t] for t in present), default=0.0)))
    return joined
