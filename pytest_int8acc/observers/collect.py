"""What activations hold, collected batch by batch: greatest magnitudes, and histograms up to them.

Two passes over the data, as in TensorRT's calibrators: the first finds each tensor's greatest magnitude
inside the graph, so that few numbers leave it; the second counts histograms over ranges that are final.
``HistogramCollector`` of ONNX Runtime, left to itself, takes the first batch's range and widens it in steps
of that batch's bins: results then depend on the order of the batches, and a first batch near zero makes later
ones allocate without bound.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from pytest_int8acc.clock import current
from pytest_int8acc.data.dataset import Batch, real_rows
from pytest_int8acc.data.layout import Layout, read_layout
from pytest_int8acc.graph.extra_outputs import end_with
from pytest_int8acc.graph.flow import channel_axes, not_negative, shown_at
from pytest_int8acc.graph.model import Editor, Model
from pytest_int8acc.observers.histograms import SCATTER_ADDS, Bins, add_counts, add_node, can_count
from pytest_int8acc.runtime.onnxruntime import CPU, Sessions
from pytest_int8acc.runtime.run import with_progress
from pytest_int8acc.tensors import Array, Feed

if TYPE_CHECKING:
    from pytest_int8acc.data import Dataset


#: Activations of one run that leave the graph together, in bytes; batches are cut, then tensors divided.
CHUNK_BYTES = 1 << 28
#: Activations that a run makes where maxima are taken, in bytes, about: larger ones leave the caches.
RUN_BYTES = 1 << 28
#: Reductions take their axes as an input from these opsets on.
_AXES_ARE_INPUT = {"ReduceMax": 18, "ReduceMin": 18, "ReduceL1": 18}
_FIRST = np.zeros(1, np.int64)


@dataclass(frozen=True, eq=False)
class Maxima:
    """Greatest magnitudes of tensors over a dataset."""

    per_sample: Mapping[str, NDArray[np.float32]]
    """Shape [samples] per tensor; one per run where the tensor's first dimension is not the batch. NaN in a
    tensor counts as inf."""
    channels: Mapping[str, NDArray[np.float32]]
    """Shape [channels] per tensor; tensors without channels, or with other ones in each run, are missing."""
    run_bytes: Mapping[str, int]
    """Size of the tensor in the largest run, as float32."""
    run_rows: int
    """Samples of the largest run, those that fill it included."""
    samples: int

    def amax(self, tensor: str) -> float:
        """The greatest of all."""
        return float(self.per_sample[tensor].max())

    def of(self, tensors: Collection[str]) -> Maxima:
        """Of some of the tensors."""
        rows = {tensor: self.per_sample[tensor] for tensor in tensors}
        channels = {tensor: self.channels[tensor] for tensor in tensors if tensor in self.channels}
        sizes = {tensor: self.run_bytes[tensor] for tensor in tensors}
        return Maxima(rows, channels, sizes, self.run_rows, self.samples)

    def plus(self, other: Maxima) -> Maxima:
        """Of the tensors of both, which were measured over the same dataset."""
        rows, channels = {**self.per_sample, **other.per_sample}, {**self.channels, **other.channels}
        return Maxima(rows, channels, {**self.run_bytes, **other.run_bytes}, self.run_rows, self.samples)


def collect_maxima(
    model: Model, tensors: Sequence[str], dataset: Dataset, sessions: Sessions = CPU
) -> Maxima:
    """Greatest magnitude of each tensor in each sample and of each channel, the model run in float.

    NaN, which maxima may miss, is looked for where it would not reach an output, and at the outputs; only
    where there is one does a second pass look at every tensor.

    Args:
        model: A float model.
        tensors: Float tensors of its main graph, of rank 1 or more; at least one.
        dataset: Calibration samples; read once, or twice where a tensor holds NaN.
        sessions: Where it runs.

    Raises:
        EngineError: The model does not run.
        DataError: The samples cannot be read.
    """
    outputs = {info.name for info in model.outputs if np.issubdtype(info.dtype, np.floating) and info.shape}
    shown = set() if sessions.on_device else shown_at(model, outputs)  # what kernels there keep is not known
    found, is_broken = _maxima(model, tensors, outputs.union(tensors) - (shown - outputs), dataset, sessions)
    return _maxima(model, tensors, set(tensors), dataset, sessions)[0] if is_broken else found


def _maxima(
    model: Model, tensors: Sequence[str], summed: set[str], dataset: Dataset, sessions: Sessions
) -> tuple[Maxima, bool]:
    """Maxima, and whether one of ``summed``, which may hold other tensors too, holds NaN."""
    reduced = _Reduced(model, tensors, summed)
    engine = sessions.exact(reduced.edit.done())
    rows: dict[str, list[Array]] = {tensor: [] for tensor in tensors}
    channels: dict[str, NDArray[np.float32] | None] = {}
    sizes, run_rows, samples, is_broken = dict.fromkeys(tensors, 0), 1, 0, False
    what = f"calibration: ranges of {len(tensors)} tensors"
    most = CHUNK_BYTES if sessions.on_device else RUN_BYTES
    for batch in cut_batches(dataset, what, model, reduced.row_bytes, most):
        outputs = engine(batch.feed)
        samples, size = samples + batch.rows, batch.rows + batch.padding
        run_rows = max(run_rows, size)
        is_broken |= any(bool(np.isnan(outputs[name]).any()) for name in reduced.sums.values())
        for tensor in tensors:
            found = reduced.magnitudes(tensor, outputs)
            rows[tensor].append(_of_samples(found.max(axis=1, initial=0.0), batch))
            if tensor in reduced.axes:
                real = found[: batch.rows if len(found) == size else None].max(axis=0, initial=0.0)
                channels[tensor] = _joined(channels.get(tensor, real), real)
            sizes[tensor] = max(sizes[tensor], 4 * reduced.size(tensor, outputs))
    known = {tensor: array for tensor, array in channels.items() if array is not None}
    per_sample = {tensor: np.concatenate(parts).astype(np.float32) for tensor, parts in rows.items()}
    return Maxima(per_sample, known, sizes, run_rows, samples), is_broken


class _Reduced:
    """A model that gives its tensors' extremes per row and channel, sums of magnitudes, and sizes."""

    def __init__(self, model: Model, tensors: Sequence[str], summed: set[str]) -> None:
        self.edit, self._opset = model.edit(), model.opset
        self.axes = channel_axes(model, tensors)
        floored = not_negative(model)
        self.highest, self.sizes = dict[str, str](), dict[str, str]()
        self.lowest, self.sums = dict[str, str](), dict[str, str]()
        self._rows, ranged = row_sizes(model, [*tensors, *summed]), set(tensors)
        for tensor in dict.fromkeys([*tensors, *sorted(summed)]):
            self._add(tensor, tensor in ranged, tensor in floored, tensor in summed)
        self.row_bytes = 4 * sum(self._rows.get(tensor, 0) for tensor in self.highest)
        self._run_early(model)
        floats = (*self.highest.values(), *self.lowest.values(), *self.sums.values(), self.chain)
        types = dict.fromkeys(floats, TensorProto.FLOAT) | dict.fromkeys(
            self.sizes.values(), TensorProto.INT64
        )
        end_with(self.edit, types)

    def magnitudes(self, tensor: str, outputs: Feed) -> NDArray[np.float32]:
        """Shape [rows, channels] of one run, [rows, 1] without channels; inf where the sum is NaN."""
        highest = outputs[self.highest[tensor]]
        found = np.abs(highest.reshape(len(highest), -1))
        if tensor in self.lowest:
            found = np.maximum(found, np.abs(outputs[self.lowest[tensor]].reshape(found.shape)))
        if tensor in self.sums:
            found[np.isnan(outputs[self.sums[tensor]].reshape(found.shape))] = np.inf
        return np.asarray(np.nan_to_num(found, nan=np.inf, posinf=np.inf), np.float32)

    def size(self, tensor: str, outputs: Feed) -> int:
        """Elements in one run."""
        if tensor in self._rows:
            return self._rows[tensor] * len(outputs[self.highest[tensor]])
        return int(outputs[self.sizes[tensor]].item())

    def _run_early(self, model: Model) -> None:
        """Chain small numbers made of each tensor's extremes, in the order in which tensors are made.

        ONNX Runtime orders nodes by a search from the last one back. Without the chain it runs the whole
        model first, and all tensors stay in memory until their turn.
        """
        places = {name: n for n, node in enumerate(model.graph.node) for name in node.output}
        made = sorted(self.highest, key=lambda tensor: places.get(tensor, -1))
        ends = [[e[tensor] for e in (self.highest, self.lowest, self.sums) if tensor in e] for tensor in made]
        tokens = [
            [add_node(self.edit, "ReduceMax", f"{name}/one", name, keepdims=0) for name in names]
            for names in ends
        ]
        last = ""
        for names in tokens:
            last = add_node(self.edit, "Max", "calibration/chain", *names, *([last] if last else []))
        self.chain = last

    def _add(self, tensor: str, is_ranged: bool, is_floored: bool, is_summed: bool) -> None:
        value = _add_cast(self.edit, tensor)
        axis, rank = self.axes.get(tensor, (None, 0))
        axes = [n for n in range(1, rank) if n != axis]
        if axis is None:
            value, axes = add_node(self.edit, "Flatten", f"{tensor}/rows", value, axis=1), [1]
        if is_summed:
            self.sums[tensor] = self._reduced("ReduceL1", tensor, value, axes)
        if not is_ranged:
            return
        if tensor not in self._rows:  # an operator that asked for it would undo layouts
            self.sizes[tensor] = add_node(self.edit, "Size", f"{tensor}/size", value)
        if is_floored and axis == 1 and rank > 2:  # convolutions need not leave their blocked layout for it
            pooled = add_node(self.edit, "GlobalMaxPool", f"{tensor}/pooled", value)
            self.highest[tensor] = add_node(self.edit, "Flatten", f"{tensor}/max", pooled, axis=1)
        else:
            self.highest[tensor] = self._reduced("ReduceMax", tensor, value, axes)
        if not is_floored:
            self.lowest[tensor] = self._reduced("ReduceMin", tensor, value, axes)

    def _reduced(self, op_type: str, tensor: str, value: str, axes: Sequence[int]) -> str:
        name = f"{tensor}/{op_type}"
        if not axes:  # rows and channels alone
            return add_node(self.edit, "Identity", name, value)
        if self._opset < _AXES_ARE_INPUT[op_type]:
            return add_node(self.edit, op_type, name, value, axes=axes, keepdims=0)
        given = self.edit.add_constant("calibration/axes", np.array(axes, np.int64))
        return add_node(self.edit, op_type, name, value, given, keepdims=0)


def row_sizes(model: Model, tensors: Iterable[str]) -> dict[str, int]:
    """Elements of a row of each tensor; those whose size the model does not tell are left out."""
    values, found = model.values(), dict[str, int]()
    for tensor in tensors:
        shape = values[tensor].shape if tensor in values else None
        sizes = [size for size in shape[1:] if isinstance(size, int)] if shape else []
        if shape and len(sizes) == len(shape) - 1:
            found[tensor] = math.prod(sizes)
    return found


def _joined(known: NDArray[np.float32] | None, found: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """The greatest of each channel; None as soon as one run has another number of them."""
    return None if known is None or known.shape != found.shape else np.maximum(known, found)


def collect_histograms(
    model: Model, maxima: Maxima, dataset: Dataset, bins: int, *, sessions: Sessions = CPU
) -> dict[str, Bins]:
    """How often values occur.

    Args:
        model: A float model.
        maxima: Of the same model and data; tensors whose amax is 0, not finite, or too near either for bins
            in float32 are left out.
        dataset: Calibration samples; read once for each ``CHUNK_BYTES`` of activations that a sample makes.
        bins: Number of bins, a power of two, equally wide over [-amax, amax].
        sessions: Where it runs; what is counted stays on its device where it has one.

    Raises:
        EngineError: The model does not run.
        DataError: The samples cannot be read.
    """
    found = {t: Bins(maxima.amax(t), bins) for t in maxima.per_sample if can_count(maxima.amax(t))}
    what = f"calibration: histograms of {len(found)} tensors"
    if found and sessions.on_device and model.opset >= SCATTER_ADDS:
        largest = max(_row_bytes(model, maxima, found).values())
        _count_in_graph(model, found, cut_batches(dataset, what, model, largest, CHUNK_BYTES), sessions)
        return found
    for tensor, values in tensor_batches(model, maxima.of(found), dataset, what, sessions):
        found[tensor].add(values)
    return found


def tensor_batches(
    model: Model, maxima: Maxima, dataset: Dataset, what: str, sessions: Sessions
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """The values of tensors, batch by batch; ``CHUNK_BYTES`` leave the graph together.

    Batches are cut to that where the model allows it; tensors are divided, each part with a session and a
    pass of its own, where a batch that cannot be cut holds more, or one sample does.

    Args:
        model: A float model.
        maxima: Of the same model, of the tensors that are wanted.
        dataset: Samples.
        what: What is being done, for a log.
        sessions: Where it runs.

    Yields:
        A tensor and its values, float32.

    Raises:
        EngineError: The model does not run.
        DataError: The samples cannot be read.
        OutOfTime: Before a pass begins.
    """
    sizes = _row_bytes(model, maxima, maxima.per_sample)
    for chunk in chunked(sizes, CHUNK_BYTES):
        current().check()
        edit = model.edit()
        names = {tensor: _add_cast(edit, tensor) for tensor in chunk}
        end_with(edit, dict.fromkeys(names.values(), TensorProto.FLOAT))
        engine = sessions.exact(edit.done())
        for batch in cut_batches(dataset, what, model, sum(map(sizes.__getitem__, chunk)), CHUNK_BYTES):
            outputs = engine(batch.feed)
            for tensor, name in names.items():
                yield tensor, real_rows(outputs.pop(name), batch)


def _row_bytes(model: Model, maxima: Maxima, tensors: Iterable[str]) -> dict[str, int]:
    """Size of each tensor as float32: of a row where runs can be cut to one, else of a run."""
    rows = maxima.run_rows if _can_cut(read_layout(model.inputs)) else 1
    return {tensor: maxima.run_bytes[tensor] // rows for tensor in tensors}


def cut_batches(dataset: Dataset, what: str, model: Model, row_bytes: int, most: int) -> Iterator[Batch]:
    """Batches cut, where the model allows it, to as many rows as ``most`` bytes hold, or one."""
    layout = read_layout(model.inputs)
    rows = max(1, most // max(row_bytes, 1))
    for batch in with_progress(dataset, what):
        if batch.rows <= rows or not _can_cut(layout):
            yield batch
            continue
        for start in range(0, batch.rows, rows):
            stop = min(start + rows, batch.rows)
            yield Batch(layout.cut(batch.feed, start, stop), stop - start)


def _can_cut(layout: Layout) -> bool:
    return bool(layout.batched) and layout.size is None


def _count_in_graph(
    model: Model, found: Mapping[str, Bins], batches: Iterable[Batch], sessions: Sessions
) -> None:
    """Count where the tensors are; what leaves the graph are counts."""
    edit, values = model.edit(), model.values()
    size = read_layout(model.inputs).size
    last = edit.unique("calibration/last")
    names = {}
    for tensor, bins in found.items():
        value, shape = _add_cast(edit, tensor), values[tensor].shape if tensor in values else None
        if size is not None and shape and shape[0] == size:
            first = edit.add_constant("calibration/first", _FIRST)
            value = add_node(edit, "Slice", f"{tensor}/real", value, first, last)
        names[tensor] = add_counts(edit, tensor, value, bins)
    if any(last in node.input for node in edit.graph.node):
        edit.graph.input.append(helper.make_tensor_value_info(last, TensorProto.INT64, [1]))
    end_with(edit, dict.fromkeys((n for pair in names.values() for n in pair), TensorProto.INT64))
    engine = sessions.exact(edit.done())
    takes_last = any(info.name == last for info in engine.inputs)
    for batch in batches:
        rows = {last: np.array([batch.rows], np.int64)} if takes_last else {}
        outputs = engine({**batch.feed, **rows})
        for tensor, (counts, zeros) in names.items():
            found[tensor].counts += outputs[counts]
            found[tensor].zeros += int(outputs[zeros].item())


def chunked(sizes: Mapping[str, int], most: int) -> Iterator[list[str]]:
    """Tensors in lists of at most ``most`` bytes each, or of one tensor."""
    chunk: list[str] = []
    total = 0
    for tensor, size in sizes.items():
        if chunk and total + size > most:
            yield chunk
            chunk, total = [], 0
        chunk.append(tensor)
        total += size
    if chunk:
        yield chunk


def _of_samples(rows: Array, batch: Batch) -> Array:
    """Maxima per row of a tensor as maxima per sample, where all samples have equally many rows; else one."""
    size = batch.rows + batch.padding
    if rows.size % size:
        return np.asarray(rows.max(keepdims=True))
    return np.asarray(rows.reshape(size, -1).max(axis=1)[: batch.rows])


def _add_cast(edit: Editor, tensor: str) -> str:
    """Add ``tensor`` as float32 under a name of its own, which also holds for graph inputs and outputs."""
    return add_node(edit, "Cast", f"{tensor}/float", tensor, to=TensorProto.FLOAT)
