"""Passes over a dataset that measure activations of a float model: greatest magnitudes, then histograms.

The first pass adds nodes to the model that compute each tensor's greatest magnitude, so that the model
returns few numbers. The second pass counts histograms over the final ranges, as TensorRT's calibrators do.
ONNX Runtime's ``HistogramCollector`` is not used: it starts with the range of the first batch, and later
widens the range in steps of the first batch's bins. So its results depend on the order of the batches. If the
first batch is near zero, it allocates memory without bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from pytest_int8acc.clock import current
from pytest_int8acc.data.dataset import Batch, real_rows
from pytest_int8acc.data.layout import Layout, read_layout
from pytest_int8acc.graph.flow import not_negative, shown_at
from pytest_int8acc.graph.formats import INT8, Format
from pytest_int8acc.graph.inner import with_inner_tensors
from pytest_int8acc.graph.layout import channel_axes
from pytest_int8acc.graph.model import Editor, Model, end_with
from pytest_int8acc.observers.values import BINS, Bins, TensorValues
from pytest_int8acc.runtime.onnxruntime import CPU, Sessions
from pytest_int8acc.runtime.run import with_progress
from pytest_int8acc.tensors import Array, Feed

if TYPE_CHECKING:
    from pytest_int8acc.data import Dataset

#: Maximum size, in bytes, of the activations that the model returns in one run. Larger batches are cut. If
#: the activations of one sample are larger, they are read in several passes.
CHUNK_BYTES = 1 << 28
#: Approximate maximum size, in bytes, of the activations whose maxima one run computes on a CPU. Larger
#: batches are cut, because larger activations do not stay in the processor's caches.
RUN_BYTES = 1 << 28
#: The first opset whose ScatterND has the reduction ``add``.
_SCATTER_ADDS = 16
#: For each reduction operator, the first opset in which its axes are an input instead of an attribute.
_AXES_ARE_INPUT = {"ReduceMax": 18, "ReduceMin": 18, "ReduceL1": 18}


def collect_maxima(
    model: Model, tensors: Sequence[str], dataset: Dataset, sessions: Sessions = CPU, low: Format = INT8
) -> dict[str, TensorValues]:
    """The greatest magnitude of each tensor in each sample and in each channel, without histograms.

    ONNX Runtime's maximum may ignore NaN. So the pass also looks for NaN in the outputs, and in tensors whose
    NaN would not make an output NaN. If the pass finds NaN, a second pass looks for NaN in every tensor.

    Args:
        model: A float model.
        tensors: Float tensors of the model, of rank 1 or more; at least one. They may lie inside an If, Loop
            or Scan.
        dataset: The samples. They are read once, or twice if a tensor holds NaN.
        sessions: Opens the model, on a CPU or a GPU.
        low: The format that the tensors are quantized to.

    Raises:
        EngineError: The model does not run.
        DataError: The samples cannot be read.
    """
    model = with_inner_tensors(model, tensors)
    outputs = {info.name for info in model.outputs if np.issubdtype(info.dtype, np.floating) and info.shape}
    # GPU kernels may not pass NaN on to their outputs. So on a GPU every tensor is checked for NaN.
    shown = set() if sessions.on_device else shown_at(model, outputs)
    found, holds_nan = _maxima(model, tensors, outputs.union(tensors) - (shown - outputs), dataset, sessions)
    if holds_nan:
        found, _ = _maxima(model, tensors, set(tensors), dataset, sessions)
    return {values.tensor: replace(values, low=low) for values in found}


def _maxima(
    model: Model, tensors: Sequence[str], summed: set[str], dataset: Dataset, sessions: Sessions
) -> tuple[list[TensorValues], bool]:
    """The maxima of ``tensors``, and whether a tensor of ``summed`` holds NaN."""
    reduced = _Reductions(model, tensors, summed)
    engine = sessions.exact(reduced.edit.done())
    rows: dict[str, list[Array]] = {tensor: [] for tensor in tensors}
    channels: dict[str, Array | None] = {}
    sizes, run_rows, samples, holds_nan = dict.fromkeys(tensors, 0), 1, 0, False
    what = f"calibration: ranges of {len(tensors)} tensors"
    most = CHUNK_BYTES if sessions.on_device else RUN_BYTES
    for batch in cut_batches(dataset, what, model, reduced.row_bytes, most):
        outputs = engine(batch.feed)
        samples, size = samples + batch.rows, batch.rows + batch.padding
        run_rows = max(run_rows, size)
        holds_nan |= any(bool(np.isnan(outputs[name]).any()) for name in reduced.sums.values())
        for tensor in tensors:
            found = reduced.magnitudes(tensor, outputs)
            rows[tensor].append(_of_samples(found.max(axis=1, initial=0.0), batch))
            sizes[tensor] = max(sizes[tensor], 4 * reduced.size(tensor, outputs))
            if tensor in reduced.axes:
                real = found[: batch.rows] if len(found) == size else found
                amax = real.max(axis=0, initial=0.0)
                channels[tensor] = _greatest(channels.get(tensor, amax), amax)
    measured = []
    for tensor in tensors:
        maxima = np.concatenate(rows[tensor]).astype(np.float32)
        values = TensorValues(tensor, maxima=maxima, channel_amax=channels.get(tensor), samples=samples)
        measured.append(replace(values, run_bytes=sizes[tensor], run_rows=run_rows))
    return measured, holds_nan


def _greatest(known: Array | None, found: Array) -> Array | None:
    """The elementwise maximum of two arrays with one magnitude per channel.

    None if ``known`` is None, or if the numbers of channels differ.
    """
    if known is None or known.shape != found.shape:
        return None
    return np.asarray(np.maximum(known, found))


class _Reductions:
    """A model with added outputs: the extremes of tensors by row and channel, sums of magnitudes, and sizes.

    A row is an index of axis 0. A sum of magnitudes is NaN if any value is NaN, while a maximum may ignore
    NaN.
    """

    def __init__(self, model: Model, tensors: Sequence[str], summed: set[str]) -> None:
        self.edit, self._opset = model.edit(), model.opset
        self.axes = channel_axes(model, tensors)
        floored = not_negative(model)
        self.highest, self.lowest = dict[str, str](), dict[str, str]()
        self.sums, self.sizes = dict[str, str](), dict[str, str]()
        self._rows, measured = row_sizes(model, [*tensors, *summed]), set(tensors)
        for tensor in dict.fromkeys([*tensors, *sorted(summed)]):
            value, axes = self._by_row(tensor)
            if tensor in summed:
                self.sums[tensor] = self._reduced("ReduceL1", tensor, value, axes)
            if tensor in measured:
                self._add_extremes(tensor, value, axes, tensor in floored)
        self.row_bytes = 4 * sum(self._rows.get(tensor, 0) for tensor in self.highest)
        last = self._run_early(model)
        floats = (*self.highest.values(), *self.lowest.values(), *self.sums.values(), last)
        integers = dict.fromkeys(self.sizes.values(), TensorProto.INT64)
        end_with(self.edit, dict.fromkeys(floats, TensorProto.FLOAT) | integers)

    def magnitudes(self, tensor: str, outputs: Feed) -> NDArray[np.float32]:
        """The greatest magnitudes in the run that gave ``outputs``, shape [rows, channels].

        The shape is [rows, 1] for a tensor without channels. A magnitude is inf if the values hold NaN.
        """
        highest = outputs[self.highest[tensor]]
        found = np.abs(highest.reshape(len(highest), -1))
        if tensor in self.lowest:
            found = np.maximum(found, np.abs(outputs[self.lowest[tensor]].reshape(found.shape)))
        if tensor in self.sums:
            found[np.isnan(outputs[self.sums[tensor]].reshape(found.shape))] = np.inf
        return np.asarray(np.nan_to_num(found, nan=np.inf, posinf=np.inf), np.float32)

    def size(self, tensor: str, outputs: Feed) -> int:
        """The number of elements of a tensor in the run that gave ``outputs``."""
        if tensor in self._rows:
            return self._rows[tensor] * len(outputs[self.highest[tensor]])
        return int(outputs[self.sizes[tensor]].item())

    def _run_early(self, model: Model) -> str:
        """Make ONNX Runtime reduce each tensor as soon as it is computed, so that the tensor can be freed.

        ONNX Runtime orders nodes by a search from the last node back. Without a change it runs the whole
        model before it reduces the tensors, and all tensors stay in memory. So each tensor's extremes are
        reduced to one number, and Max nodes chain these numbers in the order of the tensors.

        Returns:
            The output of the last node of the chain.
        """
        places = {name: n for n, node in enumerate(model.graph.node) for name in node.output}
        made = sorted(self.highest, key=lambda tensor: places.get(tensor, -1))
        extremes = (self.highest, self.lowest, self.sums)
        # ONNX Runtime's order depends on the order in which nodes are added, so these nodes are added
        # before the chain.
        tokens: list[list[str]] = []
        for tensor in made:
            ends = [found[tensor] for found in extremes if tensor in found]
            tokens.append(
                [add_node(self.edit, "ReduceMax", f"{name}/one", name, keepdims=0) for name in ends]
            )
        last: list[str] = []
        for names in tokens:
            last = [add_node(self.edit, "Max", "calibration/chain", *names, *last)]
        return last[0]

    def _by_row(self, tensor: str) -> tuple[str, list[int]]:
        """The name of the tensor as float32, and the axes to reduce.

        A tensor without a channel axis is flattened to the shape [rows, elements].
        """
        value = _add_cast(self.edit, tensor)
        if tensor not in self.axes:
            return add_node(self.edit, "Flatten", f"{tensor}/rows", value, axis=1), [1]
        axis, rank = self.axes[tensor]
        return value, [n for n in range(1, rank) if n != axis]

    def _add_extremes(self, tensor: str, value: str, axes: Sequence[int], is_floored: bool) -> None:
        """Add nodes that compute the tensor's greatest value and, unless ``is_floored``, its least value.

        ``value`` is the tensor as float32, and ``axes`` are the axes that are reduced. ``is_floored`` says
        whether the tensor has no negative values.
        """
        axis, rank = self.axes.get(tensor, (None, 0))
        # A Size node forces a change of the memory layout, so it is added only if the row size is unknown.
        if tensor not in self._rows:
            self.sizes[tensor] = add_node(self.edit, "Size", f"{tensor}/size", value)
        # GlobalMaxPool can read the blocked memory layout of convolutions, ReduceMax cannot.
        if is_floored and axis == 1 and rank > 2:
            pooled = add_node(self.edit, "GlobalMaxPool", f"{tensor}/pooled", value)
            self.highest[tensor] = add_node(self.edit, "Flatten", f"{tensor}/max", pooled, axis=1)
        else:
            self.highest[tensor] = self._reduced("ReduceMax", tensor, value, axes)
        if not is_floored:
            self.lowest[tensor] = self._reduced("ReduceMin", tensor, value, axes)

    def _reduced(self, op_type: str, tensor: str, value: str, axes: Sequence[int]) -> str:
        name = f"{tensor}/{op_type}"
        if not axes:  # The shape is [rows, channels], so no axis is reduced.
            return add_node(self.edit, "Identity", name, value)
        if self._opset < _AXES_ARE_INPUT[op_type]:
            return add_node(self.edit, op_type, name, value, axes=axes, keepdims=0)
        given = self.edit.add_constant("calibration/axes", np.array(axes, np.int64))
        return add_node(self.edit, op_type, name, value, given, keepdims=0)


def row_sizes(model: Model, tensors: Iterable[str]) -> dict[str, int]:
    """The number of elements of each tensor per index of axis 0; tensors of unknown size are left out."""
    values, found = model.values(), dict[str, int]()
    for tensor in tensors:
        shape = values[tensor].shape if tensor in values else None
        sizes = [size for size in shape[1:] if isinstance(size, int)] if shape else []
        if shape and len(sizes) == len(shape) - 1:
            found[tensor] = math.prod(sizes)
    return found


def collect_histograms(
    model: Model,
    held: Mapping[str, TensorValues],
    dataset: Dataset,
    sessions: Sessions = CPU,
    size: int = BINS,
) -> dict[str, TensorValues]:
    """Add a histogram to each tensor that can have one; see :attr:`TensorValues.is_counted`.

    Args:
        model: A float model.
        held: The maxima from :func:`collect_maxima`, of the same model and data.
        dataset: The samples. They are read once for each ``CHUNK_BYTES`` of activations of one sample.
        sessions: Opens the model, on a CPU or a GPU. On a GPU, nodes added to the model count the histograms.
        size: The number of bins, a power of two.

    Raises:
        EngineError: The model does not run.
        DataError: The samples cannot be read.
    """
    model = with_inner_tensors(model, held)
    bins = {tensor: Bins(values.amax, size) for tensor, values in held.items() if values.is_counted}
    counted = {tensor: held[tensor] for tensor in bins}
    what = f"calibration: histograms of {len(bins)} tensors"
    if bins and sessions.on_device and model.opset >= _SCATTER_ADDS:
        largest = max(_row_bytes(model, counted).values())
        _count_in_graph(model, bins, cut_batches(dataset, what, model, largest, CHUNK_BYTES), sessions)
    else:
        for tensor, array in tensor_batches(model, counted, dataset, what, sessions):
            bins[tensor].add(array)
    return dict(held) | {tensor: replace(values, bins=bins[tensor]) for tensor, values in counted.items()}


def tensor_batches(
    model: Model, held: Mapping[str, TensorValues], dataset: Dataset, what: str, sessions: Sessions
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """The values of tensors, batch by batch; the model returns at most ``CHUNK_BYTES`` in one run.

    Larger batches are cut if the model allows it. If batches cannot be cut, or if the tensors of one sample
    are larger, the tensors are divided into lists. Each list needs one more session and one more pass.

    Args:
        model: A float model.
        held: The maxima of the tensors to read, from :func:`collect_maxima`.
        dataset: The samples.
        what: The purpose of the pass, for the log.
        sessions: Opens the model.

    Yields:
        A tensor and its values, float32.

    Raises:
        EngineError: The model does not run.
        DataError: The samples cannot be read.
        OutOfTime: The time limit is reached before a pass begins.
    """
    model, sizes = with_inner_tensors(model, held), _row_bytes(model, held)
    for chunk in _chunks(sizes, CHUNK_BYTES):
        current().check()
        edit = model.edit()
        names = {tensor: _add_cast(edit, tensor) for tensor in chunk}
        end_with(edit, dict.fromkeys(names.values(), TensorProto.FLOAT))
        engine = sessions.exact(edit.done())
        row_bytes = sum(sizes[tensor] for tensor in chunk)
        for batch in cut_batches(dataset, what, model, row_bytes, CHUNK_BYTES):
            outputs = engine(batch.feed)
            for tensor, name in names.items():
                yield tensor, real_rows(outputs.pop(name), batch)


def _row_bytes(model: Model, held: Mapping[str, TensorValues]) -> dict[str, int]:
    """The bytes of each tensor as float32: per row if batches can be cut, else per run of the model."""
    can_cut = _can_cut(read_layout(model.inputs))
    return {
        tensor: values.run_bytes // (values.run_rows if can_cut else 1) for tensor, values in held.items()
    }


def cut_batches(dataset: Dataset, what: str, model: Model, row_bytes: int, most: int) -> Iterator[Batch]:
    """The batches of a dataset, cut if the model allows it, so that a run computes few activations at a time.

    Args:
        dataset: The samples.
        what: The purpose of the pass, for the log.
        model: The model that takes the batches.
        row_bytes: The size, in bytes, of all activations for one row of a batch.
        most: Maximum size, in bytes, of the activations of one batch. A batch has at least one row.
    """
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
    model: Model, bins: Mapping[str, Bins], batches: Iterable[Batch], sessions: Sessions
) -> None:
    """Let new nodes in the model count the values of all batches, and add the counts to ``bins``.

    So the GPU returns only counts, and not the values.
    """
    edit, values = model.edit(), model.values()
    size = read_layout(model.inputs).size
    last = edit.unique("calibration/last")
    names = {}
    for tensor, counted in bins.items():
        value, shape = _add_cast(edit, tensor), values[tensor].shape if tensor in values else None
        # Rows that only fill a batch of fixed size are sliced off before the values are counted.
        if size is not None and shape and shape[0] == size:
            first = edit.add_constant("calibration/first", np.zeros(1, np.int64))
            value = add_node(edit, "Slice", f"{tensor}/real", value, first, last)
        names[tensor] = _add_counts(edit, tensor, value, counted)
    if any(last in node.input for node in edit.graph.node):
        edit.graph.input.append(helper.make_tensor_value_info(last, TensorProto.INT64, [1]))
    end_with(edit, dict.fromkeys((n for pair in names.values() for n in pair), TensorProto.INT64))
    engine = sessions.exact(edit.done())
    takes_last = any(info.name == last for info in engine.inputs)
    for batch in batches:
        rows = {last: np.array([batch.rows], np.int64)} if takes_last else {}
        outputs = engine({**batch.feed, **rows})
        for tensor, (counts, zeros) in names.items():
            bins[tensor].counts += outputs[counts]
            bins[tensor].zeros += int(outputs[zeros].item())


def _add_counts(edit: Editor, tensor: str, value: str, bins: Bins) -> tuple[str, str]:
    """Add nodes that count the elements of the tensor ``value`` as ``Bins.add`` does.

    ``tensor`` is the start of the names of the new nodes, and ``bins`` has the edges of the bins.

    CUDA's ScatterND adds in float32, which cannot count beyond 2**24. Threads that add to the same number
    also wait for each other. So each index of the first axis gets its own counts, and these are summed as
    integers.

    Returns:
        The names of two int64 tensors: the counts, and the number of zeros.
    """
    size = bins.counts.size

    def node(op_type: str, *inputs: str, **attributes: Any) -> str:
        return add_node(edit, op_type, f"{tensor}/{op_type}", *inputs, **attributes)

    def constant(name: str, content: Any, dtype: Any = np.int64) -> str:
        return edit.add_constant(f"{tensor}/{name}", np.array(content, dtype))

    one, last = constant("one", 1), constant("last", size - 1)
    edges, lowest = constant("edges", bins.edges, np.float32), constant("lowest", 0)
    rows = node("Flatten", value, axis=1)
    guess = node("Floor", node("Mul", rows, constant("per_value", bins.per_value, np.float32)))
    guess = node("Add", node("Cast", guess, to=TensorProto.INT64), constant("half", size // 2))
    guess = node("Max", node("Min", guess, last), lowest)
    above = node("Not", node("Less", rows, node("Gather", edges, node("Add", guess, one))))
    below = node("Less", rows, node("Gather", edges, guess))
    up, down = (node("Cast", which, to=TensorProto.INT64) for which in (above, below))
    found = node("Max", node("Min", node("Sub", node("Add", guess, up), down), last), lowest)
    count = node("Gather", node("Shape", rows), lowest)
    starts = node("Mul", node("Range", lowest, count, one), constant("size", size))
    places = node("Add", found, node("Unsqueeze", starts, constant("axis", [1])))
    cells = node("Reshape", node("Mul", count, constant("bins", size)), constant("vector", [1]))
    empty = node("ConstantOfShape", cells, value=helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0]))
    present = node("Not", node("Equal", rows, constant("nought", 0, np.float32)))
    weights = node("Reshape", node("Cast", present, to=TensorProto.FLOAT), constant("flat", [-1]))
    indices = node("Reshape", places, constant("single", [-1, 1]))
    added = node("ScatterND", empty, indices, weights, reduction="add")
    table = node("Cast", node("Reshape", added, constant("table", [-1, size])), to=TensorProto.INT64)
    counts = node("ReduceSum", table, constant("rows", [0]), keepdims=0)
    zeros = node("Sub", node("Size", rows), node("ReduceSum", counts, keepdims=0))
    return counts, zeros


def _chunks(sizes: Mapping[str, int], most: int) -> Iterator[list[str]]:
    """The tensors, divided into lists of at most ``most`` bytes each; ``sizes`` has the bytes of each tensor.

    A tensor of more bytes is the only one in its list.
    """
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
    """The greatest value of each sample, computed from ``rows``, the greatest value of each row of a tensor.

    If the number of rows is not a multiple of the batch size, the result is the greatest value of all rows,
    shape [1].
    """
    size = batch.rows + batch.padding
    if rows.size % size:
        return np.asarray(rows.max(keepdims=True))
    return np.asarray(rows.reshape(size, -1).max(axis=1)[: batch.rows])


def _add_cast(edit: Editor, tensor: str) -> str:
    """Add a Cast of the tensor to float32, and return the name of the result.

    The Cast is added even to a float32 tensor, because a graph input or output needs a second name.
    """
    return add_node(edit, "Cast", f"{tensor}/float", tensor, to=TensorProto.FLOAT)


def add_node(edit: Editor, op_type: str, preferred: str, *inputs: str, **attributes: Any) -> str:
    """Add a node with one output and return the name of the output: ``preferred``, made unique."""
    output = edit.unique(preferred)
    edit.graph.node.append(helper.make_node(op_type, inputs, [output], output, **attributes))
    return output
