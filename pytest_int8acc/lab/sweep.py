"""The float model run over a few samples, and every quantization of its tensors measured.

It runs twice: the first sweep finds each tensor's greatest magnitude, the second counts a fine histogram, the
maxima of the channels, and the exact error of each quantization.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from pytest_int8acc.data import Batch, Dataset
from pytest_int8acc.data.chunks import real_rows
from pytest_int8acc.data.layout import read_layout
from pytest_int8acc.engines.calibrators import chunked, collect_maxima
from pytest_int8acc.engines.onnxruntime import OrtEngine, Provider
from pytest_int8acc.engines.run import with_progress
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Edge, Network
from pytest_int8acc.lab.statistics import EdgeStats, TensorStats, channel_axis, lost_db, reach

#: Samples that are looked at: shares and ranges of activations are steady long before.
SAMPLES = 64
#: Activations of one run that leave the graph together, in bytes.
CHUNK_BYTES = 1 << 28
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
Measured = tuple[TensorStats, dict[int, EdgeStats]]


def measure_edges(
    model: Model,
    edges: Sequence[Edge],
    readers: Mapping[str, onnx.NodeProto],
    few: Dataset,
    provider: Provider,
) -> dict[str, Measured]:
    """Measure every activation edge, the model run in float.

    Args:
        model: A float model that has the edges' tensors.
        edges: Activation edges; constants are left out.
        readers: Nodes by name, to know which axis of a tensor holds channels.
        few: Samples; read twice or more.
        provider: Where the model runs.

    Returns:
        By tensor.

    Raises:
        EngineError: The model does not run.
    """
    wanted = [edge for edge in edges if edge.quantization.values is None]
    if not wanted:
        return {}
    maxima = collect_maxima(model, list(dict.fromkeys(e.tensor for e in wanted)), few, provider)
    found: dict[str, Measured] = {}
    first: dict[str, Edge] = {}
    for edge in wanted:
        first.setdefault(edge.tensor, edge)
        stats = found.setdefault(edge.tensor, (TensorStats(edge.tensor, maxima.amax(edge.tensor)), {}))
        stats[1].setdefault(id(edge.quantization), EdgeStats(edge.quantization))

    def visit(tensor: str, values: NDArray[np.float32]) -> None:
        edge = first[tensor]
        _count(found[tensor], values, channel_axis(readers[edge.node].op_type, edge.index, values.ndim))

    for chunk in chunked(maxima.run_bytes, CHUNK_BYTES):
        _sweep(model, chunk, few, provider, visit)
    return found


def _count(measured: Measured, values: NDArray[np.float32], axis: int | None) -> None:
    """Add one batch to a tensor's statistics, a few samples at a time."""
    stats, quantizations = measured
    step = max(1, _PIECE * len(values) // max(values.size, 1))
    for piece in (values[i : i + step] for i in range(0, len(values), step)):
        stats.add(piece, axis)
        for quantization in quantizations.values():
            quantization.add(piece, axis)


def measure_network(
    network: Network, edges: Sequence[Edge], model: Model, inputs: Dataset, provider: Provider, samples: int
) -> dict[str, Measured]:
    """Measure activation edges on the case's float model, by tensor of the network.

    A network that was read from a Q/DQ model may have dequantized weights, and lack a Relu that a quantizer
    folded into a range. Tensors that the float model does not have are measured on the network itself.

    Raises:
        EngineError: A model does not run.
        DataError: The inputs cannot be read.
    """
    nodes = {node.name: node for node in network.model.graph.node}
    few = FirstSamples(inputs, model, samples)
    theirs = _tensors_of(model, network.model)
    known = [replace(edge, tensor=theirs[edge.tensor]) for edge in edges if edge.tensor in theirs]
    found = measure_edges(model, known, nodes, few, provider)
    ours = [edge for edge in edges if edge.tensor not in theirs]
    alone = measure_edges(network.model, ours, nodes, few, provider)
    return {
        e.tensor: found[theirs[e.tensor]] if e.tensor in theirs else alone[e.tensor]
        for e in edges
        if e.quantization.values is None
    }


def _tensors_of(model: Model, network: Model) -> dict[str, str]:
    """Tensors of a network by name, and what the float model calls each: the same, or its node's output."""
    known = {name for node in model.graph.node for name in node.output} | {i.name for i in model.inputs}
    nodes = {node.name: node for node in model.graph.node}
    found = {name: name for name in known}
    for node in network.graph.node:
        twin = nodes.get(node.name)
        if twin is not None and twin.op_type == node.op_type:
            found.update((a, b) for a, b in zip(node.output, twin.output, strict=False) if a not in known)
    return found


@dataclass(frozen=True)
class Range:
    """One activation's range against what the tensor holds."""

    tensor: str
    reach: float
    """Greatest magnitude that the scale expresses."""
    amax: float
    """Greatest magnitude seen."""
    lost_db: float
    """SQNR lost against the best scale."""
    clipped: float
    """Share of the values beyond the range."""


def survey(
    network: Network, inputs: Dataset, model: Model, provider: Provider = "cpu", *, samples: int = 16
) -> tuple[Range, ...]:
    """Every activation range of a network against what its tensor holds, in the order of the groups.

    Raises:
        EngineError: The float model does not run.
        DataError: The inputs cannot be read.
    """
    edges = [edge for group in network.groups for edge in group.edges]
    measured = measure_network(network, edges, model, inputs, provider, samples)
    ranges = []
    for tensor, (stats, quantizations) in measured.items():
        for edge in quantizations.values():
            lost = lost_db(stats, edge)
            share = edge.clipped / max(edge.values, 1)
            ranges.append(Range(tensor, reach(edge.quantization), stats.amax, lost, share))
    return tuple(ranges)


def _sweep(
    model: Model,
    tensors: Sequence[str],
    few: Dataset,
    provider: Provider,
    visit: Callable[[str, NDArray[np.float32]], None],
) -> None:
    """Run the model once over the samples and show each tensor's values, batch by batch."""
    edit = model.edit()
    names = {tensor: edit.unique(f"{tensor}/float") for tensor in tensors}
    for tensor, name in names.items():
        edit.graph.node.append(helper.make_node("Cast", [tensor], [name], to=TensorProto.FLOAT))
    del edit.graph.output[:]
    edit.graph.output.extend(
        helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in names.values()
    )
    engine = OrtEngine(edit.done(), provider=provider)
    for batch in with_progress(few, f"diagnosis: values of {len(tensors)} tensors"):
        outputs = engine(batch.feed)
        for tensor, name in names.items():
            visit(tensor, np.asarray(real_rows(outputs[name], batch), np.float32))
