"""Every quantization of a few tensors measured exactly, on a few samples of the float model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import onnx
from numpy.typing import NDArray

from pytest_int8acc.clock import current
from pytest_int8acc.data import Batch, Dataset
from pytest_int8acc.data.layout import read_layout
from pytest_int8acc.graph.flow import channel_axis, mixing
from pytest_int8acc.graph.formats import FP8, INT8, Format, along
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Edge, Network, Quantization
from pytest_int8acc.observers.collect import collect_maxima, tensor_batches
from pytest_int8acc.observers.histograms import Bins, can_count
from pytest_int8acc.observers.observer import BINS, TensorValues, decibels, tensor_values
from pytest_int8acc.runtime.onnxruntime import CPU, Sessions
from pytest_int8acc.tensors import Array

#: INT8 does no better than this on values that fill their range evenly; finer differences are luck. FP8,
#: whose errors go with the values, ends at 32.
CEILING_DB = 45.0
#: A scale is at fault from here: twice too wide loses 6 dB, while calibrated ones stay within 3 of the best.
LOST_DB = 4.0
#: A range counts as too wide from here: samples that were not calibrated on move amax by up to a third.
WIDE = 1.4
#: Formats of so many codes have errors that float32 cannot tell from its own.
_FINE = 1 << 12
#: What float32 rounds a half to.
_ROUNDED = 1 + 1e-6
#: Below this with the best scale, a few large values make the range; trained layers keep 33 dB and more in
#: INT8, and 31 in FP8, whatever their values, as long as they are no smaller than a 30,000th of the range.
_SOUND_DB = {INT8.name: 30.0, FP8.name: 25.0}


@dataclass(eq=False)
class EdgeStats:
    """What one quantization does to a tensor: exact sums over every value seen."""

    quantization: Quantization
    values: int = 0
    signal: float = 0.0
    """Sum of x^2."""
    noise: float = 0.0
    """Sum of the squared error."""
    clipped: int = 0
    """Values beyond the range by more than half a step."""
    clip_noise: float = 0.0
    """The part of ``noise`` that clipped values make."""
    top_code: float = 0
    """Greatest distance of a code from the zero point."""
    channels: NDArray[np.float64] | None = None
    """Shape [2, channels]: ``signal`` and ``noise`` per channel; None without a channel axis."""

    @property
    def sqnr_db(self) -> float:
        """10 log10(signal / noise)."""
        return decibels(self.signal, self.noise)

    @property
    def clips(self) -> bool:
        """Whether most of the noise is of values cut off."""
        return self.clip_noise > self.noise / 2

    @property
    def clips_wisely(self) -> bool:
        """Whether what is cut off costs little, as where a calibration (entropy, percentile) chose to cut."""
        return self.clips and self.sqnr_db >= sound_db(self.quantization.format)

    @property
    def codes_used(self) -> float:
        """Share of the codes on the fuller side, 127 or up to 448, up to the greatest that occurs."""
        return min(self.top_code / self.quantization.format.symmetric.levels, 1.0)

    @property
    def usual_db(self) -> float:
        """SQNR of the usual channel, the median one; of the tensor where it has no channels.

        A channel with large values makes most of the energy: it hides in the whole what the others lose.
        """
        if self.channels is None:
            return self.sqnr_db
        live = self.channels[:, self.channels[0] > 0]
        return decibels(1.0, float(np.median(live[1] / live[0]))) if live.size else self.sqnr_db

    def add(self, values: Array, axis: int | None = None) -> None:
        """Quantize one batch, exactly as QuantizeLinear does; ``axis`` holds channels.

        Errors are taken in steps, so that their squares suit float32 whatever the scale; sums are float64.
        """
        q = self.quantization
        wide = np.float32 if q.format.levels < _FINE else np.float64
        scale = along(q.scale, q.axis, values.ndim).astype(wide)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            codes, steps = q.quantize(values), values / scale
            error = codes.astype(wide) - along(q.zero_point, q.axis, values.ndim).astype(wide)
            self.top_code = max(self.top_code, float(max(error.max(initial=0), -error.min(initial=0))))
            error -= steps
            squared = error**2
            powers = steps**2
        beyond = self._beyond(codes, squared)
        unit = np.square(scale, dtype=np.float64)
        if unit.size > 1:
            powers, squared, unit = powers * unit, squared * unit, np.ones(())
        unit = unit.reshape(())
        self.clipped += int(beyond.sum())
        self.clip_noise += float(squared[beyond].sum(dtype=np.float64) * unit)
        channels = axis if values.ndim > 1 else None
        others = tuple(i for i in range(values.ndim) if channels is None or i != channels % values.ndim)
        found = np.stack([part.sum(axis=others, dtype=np.float64) for part in (powers, squared)]) * unit
        self.values += values.size
        self.signal += float(found[0].sum())
        self.noise += float(found[1].sum())
        if channels is not None and (self.channels is None or self.channels.shape == found.shape):
            self.channels = found if self.channels is None else self.channels + found

    def _beyond(self, codes: Array, squared: Array) -> NDArray[np.bool_]:
        """What lies beyond the outermost codes by more than half a step; errors squared, in steps."""
        held = self.quantization.format
        half = float(held.step(np.array(held.highest)) / 2)
        ends = (codes == held.round(held.highest)) | (codes == held.round(held.lowest))
        return np.asarray(ends & (squared > (half * _ROUNDED) ** 2))


def sound_db(codes: Format) -> float:
    """The SQNR that values keep with their best scale where no few of them make the range."""
    return _SOUND_DB[codes.symmetric.name]


def reach(quantization: Quantization) -> float:
    """Greatest magnitude that the codes express; of the widest channel. INT8's -128 counts as -127."""
    scale, zero = (a.astype(np.float64) for a in (quantization.scale, quantization.zero_point))
    low, high = max(quantization.format.lowest, -quantization.format.highest), quantization.format.highest
    return float((scale * np.maximum(high - zero, zero - low)).max())


def lost_db(stats: TensorValues, edge: EdgeStats) -> float:
    """SQNR lost against the best symmetric scale, in dB; 0 where nothing is lost, or nothing was counted."""
    if not stats.counts.any():
        return 0.0
    return max(min(stats.sqnr_db(stats.best_reach()), CEILING_DB) - edge.sqnr_db, 0.0)


#: Samples that are looked at: shares and ranges of activations are steady long before.
_SAMPLES = 64
#: The least of them whose values are counted, and what these may hold, in bytes, before they are that few.
_LEAST, _BYTES = 8, 1 << 25
#: Values that are looked at together: their copies in float64 stay small.
_PIECE = 1 << 20


class FirstSamples(Dataset):
    """The first samples of a dataset, held in memory."""

    def __init__(self, dataset: Dataset, model: Model, samples: int) -> None:
        """Read as many batches as ``samples`` need; the last is cut where the model's batch allows it."""
        layout = read_layout(model.inputs)
        self._batches: list[Batch] = []
        count = 0
        for batch in dataset.batches():
            rows = min(batch.rows, samples - count)
            if rows < batch.rows and layout.size is None and layout.batched:
                batch = Batch(layout.cut(batch.feed, 0, rows), rows)
            self._batches.append(batch)
            count += batch.rows
            if count >= samples:
                break
        self.description = dataset.description
        self.is_random = dataset.is_random
        self.samples = count
        self.digest = dataset.digest
        self._notes = {}

    def batches(self) -> Iterator[Batch]:
        """One pass."""
        yield from self._batches


#: Statistics of one tensor, and of each quantization of it by the id of the quantization.
Measurement = tuple[TensorValues, dict[int, EdgeStats]]


def measure_edges(
    model: Model,
    edges: Sequence[Edge],
    readers: Mapping[str, onnx.NodeProto],
    few: Dataset,
    sessions: Sessions,
) -> dict[str, Measurement]:
    """Measure every activation edge, the model run in float.

    Args:
        model: A float model that has the edges' tensors.
        edges: Activation edges.
        readers: Nodes by name, to know which axis of a tensor holds channels.
        few: Samples; of large tensors the first ones alone are counted.
        sessions: Where the model runs.

    Returns:
        By tensor.

    Raises:
        EngineError: The model does not run.
        DataError: The samples cannot be read.
        OutOfTime: Before a pass begins.
    """
    if not edges:
        return {}
    current().check()
    first, mixes = {edge.tensor: edge for edge in reversed(edges)}, mixing(model)
    maxima = collect_maxima(model, list(first), few, sessions)
    bins = {t: Bins(maxima.amax(t), BINS) for t in first if can_count(maxima.amax(t))}
    stats: dict[str, dict[int, EdgeStats]] = {tensor: {} for tensor in first}
    for edge in edges:
        stats[edge.tensor].setdefault(id(edge.quantization), EdgeStats(edge.quantization))
    row = sum(maxima.run_bytes.values()) // maxima.run_rows
    counted = FirstSamples(few, model, max(_LEAST, min(_SAMPLES, _BYTES // max(row, 1))))
    what = f"measuring {len(first)} tensors"
    for tensor, values in tensor_batches(model, maxima, counted, what, sessions):
        edge = first[tensor]
        axis = channel_axis(readers[edge.node].op_type, edge.index, values.ndim, edge.node in mixes)
        if tensor in bins:
            bins[tensor].add(values)
        for quantization in stats[tensor].values():
            for piece in pieces(values):
                quantization.add(piece, axis)
    lows = {tensor: edge.quantization.format.symmetric for tensor, edge in first.items()}
    return {tensor: (tensor_values(tensor, maxima, bins, low), stats[tensor]) for tensor, low in lows.items()}


def pieces(values: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    """A few samples at a time."""
    step = max(1, _PIECE * len(values) // max(values.size, 1))
    yield from (values[i : i + step] for i in range(0, len(values), step))


class EdgeMeter:
    """Quantizations of a network measured on the first inputs of a case, all at once."""

    def __init__(self, network: Network, model: Model, inputs: Dataset, sessions: Sessions = CPU) -> None:
        """Keep what is needed; nothing is run.

        Args:
            network: The INT8 side of a case, no plan applied.
            model: The case's float model.
            inputs: What the case is judged on.
            sessions: Opens the models.
        """
        self.network, self.model = network, model
        self._inputs, self._sessions = inputs, sessions

    @cached_property
    def measured(self) -> Mapping[str, Measurement]:
        """Every activation edge measured on the case's float model, by tensor of the network.

        A network that was read from a Q/DQ model may have dequantized weights, and lack a Relu that a
        quantizer folded into a range. Tensors that the float model does not have are measured on the network.

        Raises:
            EngineError: A model does not run.
            DataError: The inputs cannot be read.
            OutOfTime: Before a pass begins.
        """
        own, few = self.network.model, FirstSamples(self._inputs, self.model, _SAMPLES)
        nodes, theirs = own.index.nodes, _tensors_of(self.model, own)
        edges = [edge for edge in self.network.edges if edge.quantization.values is None]
        known = [replace(edge, tensor=theirs[edge.tensor]) for edge in edges if edge.tensor in theirs]
        found = measure_edges(self.model, known, nodes, few, self._sessions)
        ours = [edge for edge in edges if edge.tensor not in theirs]
        alone = measure_edges(own, ours, nodes, few, self._sessions)
        return {e.tensor: found[theirs[e.tensor]] if e.tensor in theirs else alone[e.tensor] for e in edges}


def _tensors_of(model: Model, network: Model) -> dict[str, str]:
    """Tensors of a network by name, and what the float model calls each: the same, or its node's output."""
    known = model.index.producer.keys() | {info.name for info in model.inputs}
    nodes = model.index.nodes
    found = {name: name for name in known}
    for node in network.graph.node:
        twin = nodes.get(node.name)
        if twin is not None and twin.op_type == node.op_type:
            found.update((a, b) for a, b in zip(node.output, twin.output, strict=False) if a not in known)
    return found
