"""Measures the quantization error of each activation tensor on the first samples of a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import onnx
from numpy.typing import NDArray

from pytest_int8acc.data import Batch, Dataset
from pytest_int8acc.data.layout import read_layout
from pytest_int8acc.graph.formats import along
from pytest_int8acc.graph.index import all_graphs, attribute
from pytest_int8acc.graph.inner import with_inner_tensors
from pytest_int8acc.graph.layout import mixing, summed_axis
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Edge, Network, Quantization
from pytest_int8acc.graph.plan import with_outputs
from pytest_int8acc.observers.collect import tensor_batches
from pytest_int8acc.observers.observer import Observer
from pytest_int8acc.observers.values import Bins, TensorValues, decibels
from pytest_int8acc.runtime.onnxruntime import CPU, Sessions
from pytest_int8acc.tensors import Array

#: When a scale is compared with the best scale, the SQNR of the best scale is limited to this value in dB.
#: INT8 reaches 45 dB on values that fill their range evenly. Above 45 dB, differences are chance. FP8 stays
#: below 32 dB, because its errors grow with the values.
CEILING_DB = 45.0
#: A scale is reported as faulty if its SQNR is at least this many dB below that of the best scale. A range
#: that is twice too wide loses 6 dB. Calibrated ranges lose less than 3 dB.
LOST_DB = 4.0
#: A clipping range is reported as too wide if it is at least this many times the tensor's greatest magnitude.
#: A smaller ratio may be chance: between two sets of samples, the greatest magnitude differs by up to a
#: third.
WIDE = 1.4
#: Quantization errors are computed in float64 if the format has at least this many levels, because the
#: rounding errors of float32 would be about as large as the quantization errors.
_FINE = 1 << 12
#: A value counts as clipped only if its error exceeds half a step by more than this factor, because float32
#: may round an error of half a step up.
_ROUNDED = 1 + 1e-6


@dataclass(eq=False)
class EdgeStats:
    """The signal and noise of one quantization of one tensor, as sums over all values."""

    quantization: Quantization
    values: int = 0
    signal: float = 0.0
    """The sum of the squared values."""
    noise: float = 0.0
    """The sum of the squared errors."""
    clipped: int = 0
    """The number of values that lie beyond the range by more than half a step."""
    clip_noise: float = 0.0
    """The sum of the squared errors of clipped values, which is a part of ``noise``."""
    top_code: float = 0
    """The greatest distance from the zero point among the codes that occur."""
    channels: NDArray[np.float64] | None = None
    """``signal``, ``noise`` and the sum of the values of each channel, shape [3, channels]; None without a
    channel axis."""

    @property
    def sqnr_db(self) -> float:
        """The SQNR in dB: 10 log10(signal / noise)."""
        return decibels(self.signal, self.noise)

    @property
    def clips(self) -> bool:
        """Whether clipped values cause more than half of the noise."""
        return self.clip_noise > self.noise / 2

    @property
    def clips_wisely(self) -> bool:
        """Whether clipped values cause most of the noise, but the SQNR is at least ``Format.sound_db``.

        Entropy and percentile calibration clip on purpose.
        """
        return self.clips and self.sqnr_db >= self.quantization.format.symmetric.sound_db

    @property
    def codes_used(self) -> float:
        """The greatest code that occurs, divided by the format's greatest code; at most 1."""
        return min(self.top_code / self.quantization.format.symmetric.levels, 1.0)

    @property
    def usual_db(self) -> float:
        """The SQNR in dB of the median channel; the SQNR of the whole tensor if it has no channels.

        A channel with large values holds most of the energy. So the SQNR of the whole tensor does not show
        the errors in the other channels.
        """
        if self.channels is None:
            return self.sqnr_db
        live = self.channels[:, self.channels[0] > 0]
        return decibels(1.0, float(np.median(live[1] / live[0]))) if live.size else self.sqnr_db

    def add(self, values: Array, axis: int | None = None) -> None:
        """Quantize one batch exactly as QuantizeLinear does, and add its signal and noise.

        Errors are computed in quantization steps, so that their squares fit float32 at any scale. Sums are in
        float64.

        Args:
            values: The batch.
            axis: The axis of channels; None if there is none.
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
        found = np.stack([*found, values.sum(axis=others, dtype=np.float64)])
        self.values += values.size
        self.signal += float(found[0].sum())
        self.noise += float(found[1].sum())
        if channels is not None and (self.channels is None or self.channels.shape == found.shape):
            self.channels = found if self.channels is None else self.channels + found

    def _beyond(self, codes: Array, squared: Array) -> NDArray[np.bool_]:
        """True for values that lie beyond the outermost codes by more than half a step.

        ``squared`` holds the squares of the errors; the errors are measured in steps.
        """
        held = self.quantization.format
        half = float(held.step(np.array(held.highest)) / 2)
        ends = (codes == held.round(held.highest)) | (codes == held.round(held.lowest))
        return np.asarray(ends & (squared > (half * _ROUNDED) ** 2))


def reach(quantization: Quantization) -> float:
    """The clipping range: the greatest magnitude that is not clipped, in the channel with the widest range.

    The lowest code of INT8 is taken as -127 instead of -128, so that a symmetric range ends at 127 steps.
    """
    scale, zero = (a.astype(np.float64) for a in (quantization.scale, quantization.zero_point))
    low, high = max(quantization.format.lowest, -quantization.format.highest), quantization.format.highest
    return float((scale * np.maximum(high - zero, zero - low)).max())


def lost_db(stats: TensorValues, edge: EdgeStats) -> float:
    """How many dB the SQNR of ``edge`` is below that of the best symmetric scale; 0 without a histogram.

    The best scale is computed from the histogram in ``stats``, and its SQNR is limited to ``CEILING_DB``. The
    result is never negative.
    """
    if not stats.counts.any():
        return 0.0
    return max(min(stats.sqnr_db(stats.best_reach()), CEILING_DB) - edge.sqnr_db, 0.0)


#: If the relative difference between a constant in the network and in the float model exceeds this number,
#: the quantizer has rewritten the constant, to move range from one layer to another.
_REWRITTEN = 0.5
#: Maximum number of samples on which activations are measured. More samples hardly change their ranges.
_SAMPLES = 64
#: Maximum size, in bytes, of the activations that are read on all samples for histograms and errors. The
#: smallest activations are chosen first. All others are read on fewer samples, so that together they have at
#: most this size.
_COUNTED_BYTES = 1 << 25
#: Minimum number of samples that are read for histograms and errors, even if the activations then exceed
#: ``_COUNTED_BYTES``.
_MIN_COUNTED = 8
#: Maximum number of values that are quantized at a time, so that copies in float64 stay small.
_CHUNK = 1 << 20


class FirstSamples(Dataset):
    """The first samples of a dataset, held in memory."""

    def __init__(self, dataset: Dataset, model: Model, samples: int) -> None:
        """Read the batches that hold the first ``samples``.

        If the model does not allow the last batch to be cut, more samples are held.
        """
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
        """Yields the batches that are held in memory."""
        yield from self._batches


#: The values of one tensor, and its statistics under each quantization, by ``id(quantization)``.
Measurement = tuple[TensorValues, dict[int, EdgeStats]]


def measure_edges(
    model: Model,
    edges: Sequence[Edge],
    readers: Mapping[str, onnx.NodeProto],
    few: Dataset,
    sessions: Sessions,
) -> dict[str, Measurement]:
    """The values and quantization errors of activations, by tensor name; the model runs in float.

    Args:
        model: A float model that has the edges' tensors.
        edges: Quantized inputs of nodes; all of them are activations.
        readers: Name to node. The node that reads a tensor decides which axis holds channels.
        few: The samples. Maxima are measured on all samples. Errors and histograms are measured on the first
            samples only, for activations that are large.
        sessions: Opens the model.

    Raises:
        EngineError: The model does not run.
        DataError: The samples cannot be read.
        OutOfTime: The time limit is reached before a pass begins.
    """
    if not edges:
        return {}
    first, mixes = {edge.tensor: edge for edge in reversed(edges)}, mixing(model)
    held = Observer(model, few, sessions).maxima(first)
    bins = {tensor: Bins(values.amax) for tensor, values in held.items() if values.is_counted}
    stats: dict[str, dict[int, EdgeStats]] = {tensor: {} for tensor in first}
    unmasked = dict.fromkeys(first, 0.0)
    for edge in edges:
        stats[edge.tensor].setdefault(id(edge.quantization), EdgeStats(edge.quantization))
    for tensor, values in _counted_values(model, held, few, sessions):
        edge = first[tensor]
        axis = summed_axis(readers[edge.node].op_type, edge.index, values.ndim, edge.node in mixes)
        if tensor in bins:
            bins[tensor].add(values)
        least = -held[tensor].amax / 2
        if values.min(initial=0) <= least:
            unmasked[tensor] = max(unmasked[tensor], float(np.abs(values[values > least]).max(initial=0)))
        for quantization in stats[tensor].values():
            for chunk in _chunks(values):
                quantization.add(chunk, axis)
    found = {}
    for tensor, edge in first.items():
        own = replace(held[tensor], low=edge.quantization.format.symmetric, unmasked=unmasked[tensor])
        if tensor in bins:
            own = replace(own, bins=bins[tensor])
        found[tensor] = own, stats[tensor]
    return found


def _counted_values(
    model: Model, held: Mapping[str, TensorValues], few: Dataset, sessions: Sessions
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yields the values of each tensor in batches: small tensors on all samples of ``few``, others on some.

    The small tensors are the smallest that together take at most ``_COUNTED_BYTES`` on all samples. They are
    read on all samples, because a single sample may have all the large values.
    """
    rows, large, total = few.samples or _SAMPLES, dict(held), 0
    sizes = {tensor: values.run_bytes / values.run_rows for tensor, values in held.items()}
    for tensor in sorted(sizes, key=lambda tensor: sizes[tensor]):
        total += int(sizes[tensor] * rows)
        if total <= _COUNTED_BYTES:
            del large[tensor]
    small = {tensor: values for tensor, values in held.items() if tensor not in large}
    row_bytes = max(int(sum(sizes[tensor] for tensor in large)), 1)
    some = FirstSamples(few, model, max(_MIN_COUNTED, min(_SAMPLES, _COUNTED_BYTES // row_bytes)))
    for part, samples in ((small, few), (large, some)):
        if part:
            yield from tensor_batches(model, part, samples, f"measuring {len(part)} tensors", sessions)


def _chunks(values: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    """``values``, cut along axis 0 into arrays of at most ``_CHUNK`` values, or of one row."""
    step = max(1, _CHUNK * len(values) // max(values.size, 1))
    yield from (values[i : i + step] for i in range(0, len(values), step))


class EdgeMeter:
    """Measures all quantizations of a network's activations on the first inputs of a case."""

    def __init__(self, network: Network, model: Model, inputs: Dataset, sessions: Sessions = CPU) -> None:
        """Create the object; no model is run yet.

        Args:
            network: The low-precision candidate of a case, to which no mixed-precision plan is applied.
            model: The case's float model.
            inputs: The samples that the case is judged on.
            sessions: Opens the models.
        """
        self.network, self.model = network, model
        self._inputs, self._sessions = inputs, sessions

    @cached_property
    def measured(self) -> Mapping[str, Measurement]:
        """The values and quantization errors of each activation, by its name in the network.

        Activations are measured on the case's float model, because a network that was read from a Q/DQ model
        may have dequantized weights. There are two exceptions, which are measured on the network's own model:
        activations that the float model does not have, and activations whose magnitude differs in the float
        model, because the quantizer moved range between layers.

        Raises:
            EngineError: A model does not run.
            DataError: The inputs cannot be read.
            OutOfTime: The time limit is reached before a pass begins.
        """
        own, few = self.network.model, FirstSamples(self._inputs, self.model, _SAMPLES)
        nodes, same = own.everywhere.nodes, _tensors_of(self.model, own)
        edges = [edge for edge in self.network.edges if edge.quantization.values is None]
        theirs = {edge.tensor: same[edge.tensor] for edge in edges if edge.tensor in same}
        if _are_rewritten(self.model, own):
            sizes = [
                Observer(m, few, self._sessions).maxima(t)
                for m, t in ((own, theirs), (self.model, theirs.values()))
            ]
            theirs = {t: name for t, name in theirs.items() if _are_alike(sizes[0][t], sizes[1][name])}
        known = [replace(edge, tensor=theirs[edge.tensor]) for edge in edges if edge.tensor in theirs]
        found = measure_edges(self.model, known, nodes, few, self._sessions)
        rest = [edge for edge in edges if edge.tensor not in theirs]
        alone = measure_edges(own, rest, nodes, few, self._sessions)
        return {e.tensor: found[theirs[e.tensor]] if e.tensor in theirs else alone[e.tensor] for e in edges}

    @cached_property
    def lookups(self) -> Mapping[str, Array]:
        """For each Gather whose table is quantized, by name: how often each row of the table is read, [rows].

        For a Gather inside an If, Loop or Scan, row 0 may count once more in each run.

        Raises:
            EngineError: The model does not run.
            DataError: The inputs cannot be read.
        """
        model, constants = self.network.model, self.network.model.constants()
        nodes = model.everywhere.nodes
        given = constants.keys() | {info.name for info in model.inputs}
        # Indices that are constants inside an If, Loop or Scan cannot be read. Their Gathers are left out.
        seen = given | model.everywhere.producer.keys()
        tables, indices = dict[str, int](), dict[str, str]()
        for edge in self.network.edges:
            node = nodes[edge.node]
            if edge.quantization.values is None or node.op_type != "Gather" or node.input[1] not in seen:
                continue
            tables[edge.node] = constants[edge.tensor].shape[attribute(node, "axis", 0)]
            indices[edge.node] = str(node.input[1])
        if not tables:
            return {}
        computed = [tensor for tensor in indices.values() if tensor not in given]
        shown = with_outputs(with_inner_tensors(model, computed), computed)
        engine = self._sessions.exact(shown) if computed else None
        counts = {name: np.zeros(rows, np.int64) for name, rows in tables.items()}
        for batch in self._inputs.batches():
            known = {**constants, **batch.feed, **({} if engine is None else engine(batch.feed))}
            for name, rows in tables.items():
                read = np.asarray(known[indices[name]]).astype(np.int64).reshape(-1) % rows
                counts[name] += np.bincount(read, minlength=rows)
        return counts


def _are_rewritten(model: Model, network: Model) -> bool:
    """Whether a constant differs between model and network by more than quantization can explain."""
    if network is model:
        return False
    ours, known = network.constants(), model.constants()
    shared = ((ours[name], known[name]) for name in ours.keys() & known.keys())
    return any(
        a.dtype == b.dtype == np.float32
        and a.shape == b.shape
        and np.isfinite(a).all()
        and np.isfinite(b).all()
        and np.linalg.norm(a - b) > _REWRITTEN * np.linalg.norm(b)
        for a, b in shared
    )


def _are_alike(held: TensorValues, other: TensorValues) -> bool:
    return held.amax <= WIDE * other.amax and other.amax <= WIDE * held.amax


def _tensors_of(model: Model, network: Model) -> dict[str, str]:
    """The tensor of ``model`` that matches each tensor of ``network``.

    Two tensors match if they have the same name, or are the same output of nodes with the same name and type.
    """
    inputs = (value.name for graph in all_graphs(model.graph) for value in graph.input)
    known = model.everywhere.producer.keys() | set(inputs)
    nodes = model.everywhere.nodes
    found = {name: name for name in known}
    for node in network.everywhere.nodes.values():
        twin = nodes.get(node.name)
        if twin is not None and twin.op_type == node.op_type:
            found.update((a, b) for a, b in zip(node.output, twin.output, strict=False) if a not in known)
    return found
