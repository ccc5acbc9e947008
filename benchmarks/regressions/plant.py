"""Ways to plant: wrong scales and weights, Q/DQ that TensorRT does not take, layers rescaled."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from benchmarks.faults import activation, in_axis, misscale, outlier_channel
from benchmarks.regressions import judge
from benchmarks.regressions.data import samples
from benchmarks.regressions.entry import Planted, Truth
from benchmarks.regressions.networks import VALIDATION, Net
from pytest_int8acc.graph.formats import INT8
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Edge, Network, Quantization
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.tensors import Array

WIDE, NARROW = frozenset({"scale-too-wide"}), frozenset({"saturation"})
Change = Callable[[Quantization], Quantization]
#: A scale this many times as wide makes the square of this many times the noise.
_OFF = 1.5


def planted(
    net: Net, int8: Mapping[str, Any], truth: Truth, candidate: Model | bytes | None, **more: Any
) -> Planted:
    """A Planted with what all entries of a network share."""
    values: dict[str, Any] = {"model": net.model, "limits": net.limits, "low": net.low.name, **more}
    return Planted(
        inputs=samples(net.name, "validation", VALIDATION),
        int8=int8,
        truth=truth,
        candidate=candidate,
        **values,
    )


def cache_text(scales: Mapping[str, float]) -> str:
    """A TensorRT calibration cache."""
    lines = [f"{name}: {struct.pack('!f', scale).hex()}" for name, scale in scales.items()]
    return "\n".join(["TRT-8601-EntropyCalibration2", *lines]) + "\n"


def from_scales(
    net: Net, scales: Mapping[str, float], truth: Truth, *, as_json: bool = False, **more: Any
) -> Planted:
    """Scales from a file: a calibration cache, or a JSON of dynamic ranges."""
    name = "ranges.json" if as_json else "calibration.cache"
    ranges = {tensor: net.low.levels * scale for tensor, scale in scales.items()}
    text = json.dumps(ranges) if as_json else cache_text(scales)
    candidate = apply(net.network(scales))
    return planted(net, {"scales": name}, truth, candidate, files={name: text}, **more)


def causes_of(
    net: Net, scales: Mapping[str, float], honest: Mapping[str, float] | None = None
) -> dict[str, frozenset[str]]:
    """Group to the causes that ``scales`` give it, by tensors whose scale is off.

    A scale is off if it differs by a factor above ``_OFF``, or cuts values off and so makes as much noise as
    a scale that many times as wide.
    """
    honest = net.scales if honest is None else honest
    ratios = {tensor: scale / honest[tensor] for tensor, scale in scales.items() if tensor in honest}
    cut_off = {tensor for tensor, ratio in ratios.items() if ratio < 1 / _OFF}
    near = [tensor for tensor, ratio in ratios.items() if 1 / _OFF <= ratio < 1]
    if near and net.low is INT8:
        values = judge.values(net.model, samples(net.name, "validation", VALIDATION))
        noises = {t: [_noise(values[t], s) for s in (scales[t], honest[t])] for t in near}
        cut_off |= {tensor for tensor, (given, right) in noises.items() if given >= _OFF**2 * right}
    found: dict[str, frozenset[str]] = {}
    for group, slots in net.layout.slots.items():
        read = [s.tensor for s in slots if not s.constant and s.tensor in ratios]
        wide = WIDE if any(ratios[tensor] > _OFF for tensor in read) else frozenset()
        narrow = NARROW if cut_off.intersection(read) else frozenset()
        if wide or narrow:
            found[group] = wide | narrow
    return found


def _noise(values: Array, scale: float) -> float:
    """The squared error of values in INT8 with this scale, summed."""
    values = values.astype(np.float64)
    return float(np.square(values - np.clip(np.rint(values / scale), -127, 127) * scale).sum())


def mistaken(net: Net, factors: Mapping[str, float]) -> Planted:
    """The scales of these tensors, wrong by these factors, for all that read them."""
    scales = {name: scale * factors.get(name, 1.0) for name, scale in net.scales.items()}
    return from_scales(net, scales, Truth(causes=causes_of(net, scales)))


def misscaled(net: Net, factors: Mapping[str, float], *, as_json: bool = False) -> Planted:
    """The scale of these groups' activations, wrong by these factors, for all that read them."""
    scales, _ = misscale(net.layout, net.scales, factors)
    return from_scales(net, scales, Truth(causes=causes_of(net, scales)), as_json=as_json)


def from_qdq(net: Net, network: Network | Model | bytes, truth: Truth, **more: Any) -> Planted:
    """A model that holds Q/DQ already."""
    candidate = apply(network) if isinstance(network, Network) else network
    return planted(net, {"model": "int8.onnx"}, truth, candidate, files={"int8.onnx": candidate}, **more)


def changed(network: Network, group: str, change: Change, *, weight: bool = False) -> Network:
    """The network with the activations or the weight of one group quantized otherwise."""

    def edit(edge: Edge) -> Edge:
        if (edge.quantization.values is not None) != weight:
            return edge
        return replace(edge, quantization=change(edge.quantization))

    groups = [replace(g, edges=tuple(map(edit, g.edges))) if g.name == group else g for g in network.groups]
    return replace(network, groups=tuple(groups))


def without_edges(network: Network, group: str, *, weight: bool) -> Network:
    """The network with only the activations, or only the weight, of one group quantized."""
    groups = [
        replace(g, edges=tuple(e for e in g.edges if (e.quantization.values is not None) != weight))
        if g.name == group
        else g
        for g in network.groups
    ]
    return replace(network, groups=tuple(groups))


def coarser(factor: float) -> Change:
    """A weight rounded anew to scales ``factor`` times as wide."""

    def change(old: Quantization) -> Quantization:
        scale = (old.scale * np.float32(factor)).astype(np.float32)
        coarse = replace(old, scale=scale)
        return replace(coarse, values=coarse.quantize(old.dequantize()))

    return change


def mislabelled(factor: float) -> Change:
    """The integers as they were, and another scale: the weight comes out ``factor`` times as large."""
    return lambda old: replace(old, scale=(old.scale * np.float32(factor)).astype(np.float32))


def turned(old: Quantization) -> Quantization:
    """The scales of a weight's output channels put along its input channels."""
    assert old.axis is not None
    return replace(old, axis=1 - old.axis)


def emptied(channels: Collection[int], scale: float) -> Change:
    """Weights whose scale is ``scale`` (0, or next to it) in some channels."""

    def change(old: Quantization) -> Quantization:
        scales = old.scale.copy()
        scales[list(channels)] = scale
        return replace(old, scale=scales)

    return change


def scaled(factor: float) -> Change:
    """An activation's scale times ``factor``, for one reader."""
    return lambda old: replace(old, scale=np.array(old.scale * factor, np.float32))


def constant_scale(scale: float) -> Change:
    """An activation's scale, given."""
    return lambda old: replace(old, scale=np.array(scale, np.float32))


def shifted(zero_point: int) -> Change:
    """A zero point other than 0."""
    return lambda old: replace(old, zero_point=np.array(zero_point, np.int8))


def unsigned(scale_factor: float, zero_point: int) -> Change:
    """Quantized as uint8."""
    return lambda old: Quantization(
        np.array(old.scale * scale_factor, np.float32), np.array(zero_point, np.uint8), None, None
    )


def by_channel(channels: int) -> Change:
    """One scale per channel of an activation, all equal."""
    return lambda old: Quantization(
        np.full(channels, old.scale, np.float32), np.zeros(channels, np.int8), 1, None
    )


def input_channels(net: Net, group: str) -> int:
    """Channels that a convolution reads."""
    weight = next(s for s in net.layout.slots[group] if s.constant)
    return int(net.model.constants()[weight.tensor].shape[1])


def unequal_pair(network: Network, group: str, factor: float) -> Model:
    """A DequantizeLinear that multiplies by another scale than its QuantizeLinear divided by."""
    model = apply(network)
    editor = model.edit()
    node = next(n for n in editor.graph.node if n.name == group)
    dequantize = next(n for n in editor.graph.node if node.input[0] in n.output)
    scale = model.constants()[dequantize.input[1]]
    dequantize.input[1] = editor.add_constant("other_scale", (scale * factor).astype(np.float32))
    return editor.done()


def rescaled(model: Model, producer: str, consumers: Collection[str], factor: float) -> Model:
    """The tensor between these layers times ``factor``, the function preserved: a model trained anew."""
    source = next(n for n in model.graph.node if n.name == producer)
    axis = 1 if source.op_type == "MatMul" else 0
    for channel in range(model.constants()[source.input[1]].shape[axis]):
        model = outlier_channel(model, producer, consumers, channel, factor)
    return model


def wild_dead_input(model: Model, group: str, channels: Collection[int], factor: float) -> Model:
    """Weights of inputs that are always 0, set to ``factor`` times the greatest weight."""
    editor = model.edit()
    node = next(n for n in editor.graph.node if n.name == group)
    tensor = next(t for t in editor.graph.initializer if t.name == node.input[1])
    weight = model.constants()[tensor.name].copy()
    np.moveaxis(weight, in_axis(node), 0)[list(channels)] = factor * np.abs(weight).max()
    tensor.CopyFrom(onnx.numpy_helper.from_array(weight, tensor.name))
    return editor.done()


def tensor_of(net: Net, group: str) -> str:
    """The activation that a group reads."""
    return activation(net.layout, group)
