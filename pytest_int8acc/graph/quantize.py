"""A float model and scales become a Network: groups whose edges know how they are quantized."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.groups import Layout, Slot
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Edge, Group, LeftHigh, Network, Quantization
from pytest_int8acc.tensors import Array

#: Weights use the symmetric codes -127 to 127, as TensorRT's own quantizers do.
INT8_MAX = 127
#: Stands in for the scale of a channel that is all zeros: any positive scale gives zeros.
ZERO_SCALE = np.float32(1 / INT8_MAX)
#: Below the first, FP16's numbers are multiples of the second (IEEE 754 binary16, subnormal).
_FEW_DIGITS, _FP16_STEP = np.float32(2**-14), np.float32(2**-24)


def quantize(model: Model, layout: Layout, scales: Mapping[str, float]) -> Network:
    """The Network of ``model`` with symmetric INT8 on every slot of ``layout``.

    A group that lacks a scale stays high; ``left_high`` says so.

    Args:
        model: The float model that ``layout`` was made for.
        layout: From ``find_groups``.
        scales: Activation tensor to scale (amax / 127); may miss some.

    Raises:
        ModelError: No group is left to quantize, or a weight holds nan or inf.
    """
    known = _joined(layout, scales)
    quantizer = _Quantizer(model, known)
    groups, left_high = [], dict(layout.left_high)
    op_types = {node.name: node.op_type for node in model.graph.node}
    for name, slots in layout.slots.items():
        missing = tuple(s.tensor for s in slots if not s.constant and s.tensor not in known)
        if missing:
            left_high[name] = LeftHigh("no-scale", missing)
            continue
        groups.append(Group(name, op_types[name], (name,), tuple(quantizer.edge(s) for s in slots)))
    if not groups:
        raise ModelError(f"{model.name}: nothing to quantize: the scales cover none of the tensors needed")
    return Network(model, tuple(groups), left_high)


def quantize_weight(weight: Array, axis: int | None) -> Quantization:
    """Symmetric INT8 of a constant: scale = max|w| / 127, per slice of ``axis`` or for the whole tensor.

    A scale below 2**-14, where FP16 has few digits, is raised to the next number that FP16 holds: in FP16 the
    integers would stand for other values otherwise.

    Args:
        weight: Any shape, finite.
        axis: The channel axis, or None for one scale.
    """
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)
    # Two passes instead of abs(): a mapped weight is never copied whole.
    amax = np.maximum(weight.max(axis=others), -weight.min(axis=others)).astype(np.float32)
    scale = amax / np.float32(INT8_MAX)
    scale = np.where(scale < _FEW_DIGITS, np.ceil(scale / _FP16_STEP) * _FP16_STEP, scale)
    scale = np.where(amax > 0, scale, ZERO_SCALE).astype(np.float32)
    codes = quantize_array(weight, scale, np.zeros(scale.shape, np.int8), axis)
    return Quantization(scale, np.zeros(scale.shape, np.int8), axis, codes)


def quantize_array(array: Array, scale: Array, zero_point: Array, axis: int | None) -> Array:
    """ONNX QuantizeLinear, computed in float32: ``saturate(round_half_even(x / scale) + zero_point)``."""
    limits = np.iinfo(zero_point.dtype)
    with np.errstate(over="ignore"):  # what is beyond FP32 saturates, too
        scaled = array.astype(np.float32, copy=False) / along(scale, axis, array.ndim).astype(np.float32)
    steps = np.asarray(np.rint(scaled))  # of a scalar, NumPy makes no array
    steps += along(zero_point, axis, array.ndim)
    return np.clip(steps, limits.min, limits.max, out=steps).astype(zero_point.dtype)


def dequantize_array(quantization: Quantization) -> Array:
    """ONNX DequantizeLinear of a constant, computed in float32: ``(values - zero_point) * scale``.

    Returns:
        An array of the constant's shape and the scale's dtype.
    """
    codes, scale, axis = quantization.values, quantization.scale, quantization.axis
    assert codes is not None
    zero_point = along(quantization.zero_point, axis, codes.ndim)
    steps = (codes.astype(np.int32) - zero_point.astype(np.int32)).astype(np.float32)
    steps *= along(scale, axis, codes.ndim).astype(np.float32)
    return steps.astype(scale.dtype, copy=False)


def along(values: Array, axis: int | None, ndim: int) -> Array:
    """``values`` shaped to broadcast along ``axis`` of an array of ``ndim`` dimensions."""
    if axis is None or values.ndim == 0:
        return values.reshape(())
    return values.reshape([-1 if i == axis % ndim else 1 for i in range(ndim)])


class _Quantizer:
    def __init__(self, model: Model, scales: Mapping[str, float]) -> None:
        self.name = model.name
        self.scales = scales
        self.constants = model.constants()
        self.activations: dict[str, Quantization] = {}
        self.weights: dict[tuple[str, int | None], Quantization] = {}

    def edge(self, slot: Slot) -> Edge:
        if not slot.constant:
            if slot.tensor not in self.activations:
                scale = np.array(self.scales[slot.tensor], np.float32)
                self.activations[slot.tensor] = Quantization(scale, np.zeros((), np.int8))
            return Edge(slot.node, slot.index, slot.tensor, self.activations[slot.tensor])
        key = (slot.tensor, slot.axis)
        if key not in self.weights:  # nodes that share a weight share its codes
            weight = self.constants[slot.tensor]
            if not np.isfinite(weight).all():
                raise ModelError(f"{self.name}: weight '{slot.tensor}' of '{slot.node}' holds nan or inf")
            self.weights[key] = quantize_weight(weight, slot.axis)
        return Edge(slot.node, slot.index, slot.tensor, self.weights[key])


def _joined(layout: Layout, scales: Mapping[str, float]) -> dict[str, float]:
    """``scales`` with one scale, the greatest, for each set of tensors that must agree."""
    joined = dict(scales)
    for tensors in layout.shared:
        present = [t for t in tensors if t in scales]
        joined.update(dict.fromkeys(present, max((scales[t] for t in present), default=0.0)))
    return joined
