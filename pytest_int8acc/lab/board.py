"""A network whose groups and scales are inputs of its model, so that any plan of them is one inference."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from pytest_int8acc.graph.formats import FP16, INT8, Format
from pytest_int8acc.graph.fp16_network import emulate_network, network_to_fp16
from pytest_int8acc.graph.index import subgraphs
from pytest_int8acc.graph.low_switchboard import build_low_switchboard
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Edge, Network, Precision, TensorScale
from pytest_int8acc.graph.switchboard import build_switchboard
from pytest_int8acc.runtime.onnxruntime import Sessions
from pytest_int8acc.tensors import Array, Feed


@dataclass(frozen=True)
class _Slot:
    """One scale of the switchboard."""

    name: str
    """The input that takes it."""
    tensor: str
    """The network's activation."""
    own: Array
    half: bool
    """It is an FP16 number above 0 in the model that is built."""

    def value(self, scales: Mapping[str, TensorScale]) -> Array:
        """The scale that a plan gives the tensor, else its own; float32, of the same shape."""
        scale = scales[self.tensor].scale if self.tensor in scales else self.own
        if self.half:
            scale = np.maximum(FP16.round(scale), FP16.smallest)
        return np.asarray(scale, np.float32)


def as_it_runs(network: Network, rest: Precision) -> tuple[Network, Network]:
    """The network with what is not INT8 in the precision of the rest; and the same with FP16 spelled out."""
    if rest == "fp32":
        return network, network
    halved = network_to_fp16(network)
    return halved, emulate_network(halved)


class Board:
    """One network in ONNX Runtime, exact, with a switch for each group and a scale for each activation."""

    def __init__(self, network: Network, rest: Precision, sessions: Sessions, low: Format = INT8) -> None:
        """Halve, emulate and switch the network.

        Args:
            network: What plans are tried on.
            rest: What runs beside INT8.
            sessions: Where ONNX Runtime runs.
            low: What groups run in that are not high.

        Raises:
            EngineError: ONNX Runtime refuses the model.
        """
        self.network = network
        halved, self.as_run = as_it_runs(network, rest)
        quantized = low.takes_scales
        switched = build_switchboard(self.as_run) if quantized else build_low_switchboard(network, low)
        places = list(_places(network, halved, self.as_run))
        model, self._slots = _open_scales(switched.model, places)
        self._engine = sessions.exact(model)
        self._own = {slot.name: slot.value({}) for slot in self._slots}
        self._scales: Mapping[str, TensorScale] = {}
        self._given = self._own
        self._switch = switched.switch
        self._index = {name: i for i, name in enumerate(switched.groups)}

    @property
    def own(self) -> dict[str, float]:
        """The network's own scale of each activation that can be changed, and has one."""
        return {slot.tensor: float(slot.own) for slot in self._slots if not slot.own.ndim}

    def run(self, feed: Feed, high: Collection[str], scales: Mapping[str, TensorScale]) -> Feed:
        """The outputs with these groups high and these scales of activations, all else as it is.

        Raises:
            EngineError: The model fails.
        """
        low = np.ones(len(self._index), np.bool_)
        low[[self._index[name] for name in high]] = False
        if scales is not self._scales:  # batch after batch it is the same
            changed = {slot.name: slot.value(scales) for slot in self._slots if slot.tensor in scales}
            self._scales, self._given = scales, {**self._own, **changed}
        return self._engine({**feed, **self._given, self._switch: low})


def _places(network: Network, halved: Network, run: Network) -> Iterator[tuple[Edge, Edge, Edge]]:
    """Each activation that is quantized: as given, in FP16, and as it runs."""
    for groups in zip(network.groups, halved.groups, run.groups, strict=True):
        for edges in zip(*(group.edges for group in groups), strict=True):
            if edges[0].quantization.values is None:
                yield edges


def _open_scales(model: Model, places: Sequence[tuple[Edge, Edge, Edge]]) -> tuple[Model, list[_Slot]]:
    """The switchboard with an input for each activation's scale, and those inputs."""
    editor = model.edit()
    slots: dict[tuple[str, bytes], _Slot] = {}
    for edge, half, run in places:
        key = run.tensor, _bits(run.quantization.scale)
        if key not in slots:
            name = editor.unique(f"{run.tensor}_scale_input")
            in_half = half.quantization.scale.dtype == np.float16
            slots[key] = _Slot(name, edge.tensor, edge.quantization.scale, in_half)
    used: dict[str, _Slot] = {}
    constants = {**model.constants(), **model.weights}
    for node in editor.graph.node:
        for slot in _replace(node, slots, constants):
            used[slot.name] = slot
    for name, slot in used.items():
        editor.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, slot.own.shape))
    return editor.done(), list(used.values())


def _replace(
    node: onnx.NodeProto, slots: Mapping[tuple[str, bytes], _Slot], around: Mapping[str, Array]
) -> Iterator[_Slot]:
    """Let the Q/DQ pairs inside a node's branches read their scales from inputs."""
    for graph in subgraphs(node):
        small = {t.name: numpy_helper.to_array(t) for t in graph.initializer if not t.external_data}
        local = {**around, **small}
        chosen: dict[str, _Slot] = {}
        for inner in graph.node:
            if inner.op_type == "QuantizeLinear":
                scale = local.get(inner.input[1])
                slot = None if scale is None else slots.get((inner.input[0], _bits(scale)))
                if slot is not None:
                    chosen[inner.output[0]] = slot
                    inner.input[1] = slot.name
                    yield slot
            elif inner.op_type == "DequantizeLinear" and inner.input[0] in chosen:
                inner.input[1] = chosen[inner.input[0]].name


def _bits(scale: Array) -> bytes:
    return np.asarray(scale, np.float32).tobytes()
