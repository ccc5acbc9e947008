"""Every quantization of a few tensors measured exactly, on a few samples of the float model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import onnx
from numpy.typing import NDArray

from pytest_int8acc.clock import current
from pytest_int8acc.data import Batch, Dataset
from pytest_int8acc.data.layout import read_layout
from pytest_int8acc.engines.bins import Bins, can_count
from pytest_int8acc.engines.calibrators import collect_maxima, tensor_batches
from pytest_int8acc.engines.onnxruntime import CPU, Sessions
from pytest_int8acc.graph.flow import channel_axis, mixing
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Edge, Network
from pytest_int8acc.lab.statistics import EdgeStats
from pytest_int8acc.lab.values import TensorValues, tensor_values
from pytest_int8acc.scales.observed import BINS

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
