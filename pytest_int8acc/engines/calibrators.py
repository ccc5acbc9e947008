"""Ranges and histograms of activations, collected batch by batch, and ONNX Runtime's entropy threshold.

Two passes over the data, as in TensorRT's calibrators: the first finds each tensor's greatest magnitude
inside the graph, so that only one number per sample leaves it; the second counts histograms over ranges
that are final. ``HistogramCollector`` of ONNX Runtime, left to itself, takes the first batch's range and
widens it in steps of that batch's bins: results then depend on the order of the batches, and a first batch
near zero makes later ones allocate without bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from pytest_int8acc.data.dataset import real_rows
from pytest_int8acc.engines.onnxruntime import CPU, Sessions
from pytest_int8acc.engines.run import with_progress
from pytest_int8acc.graph.formats import FP32
from pytest_int8acc.graph.index import refill
from pytest_int8acc.graph.model import Editor, Model
from pytest_int8acc.tensors import Array

if TYPE_CHECKING:
    from pytest_int8acc.data import Batch, Dataset

#: Activations of one run that may leave the graph together, in bytes; more are collected in further passes.
CHUNK_BYTES = 1 << 30
#: Bins over [-amax, amax] for the entropy threshold; a multiple of the quantized bins, since ONNX Runtime
#: counts what is left over in its last candidate, the whole range, as lost.
ENTROPY_BINS = 2048
#: ONNX Runtime's own default.
_QUANTIZED_BINS = 128

#: Between these, float32 holds the width of [-amax, amax] and of its bins.
_TINY, _HUGE = FP32.normal, FP32.highest / 4
#: ReduceMax takes its axes as an input from this opset on.
_AXES_ARE_INPUT = 18


@dataclass(frozen=True, eq=False)
class Maxima:
    """Greatest magnitudes of tensors over a dataset."""

    per_sample: Mapping[str, NDArray[np.float32]]
    """Shape [samples] per tensor; one per run where the tensor's first dimension is not the batch. NaN in a
    tensor counts as inf."""
    run_bytes: Mapping[str, int]
    """Size of the tensor in the largest run, as float32."""
    samples: int

    def amax(self, tensor: str) -> float:
        """The greatest of all."""
        return float(self.per_sample[tensor].max())


def collect_maxima(
    model: Model, tensors: Sequence[str], dataset: Dataset, sessions: Sessions = CPU
) -> Maxima:
    """Greatest magnitude of each tensor in each sample, the model run in float.

    Args:
        model: A float model.
        tensors: Float tensors of its main graph, of rank 1 or more; at least one.
        dataset: Calibration samples; read once.
        sessions: Where it runs.

    Raises:
        EngineError: The model does not run.
        DataError: The samples cannot be read.
    """
    edit = model.edit()
    infinity = edit.add_constant("calibration/inf", np.array(np.inf, np.float32))
    axes = ""
    if model.opset >= _AXES_ARE_INPUT:
        axes = edit.add_constant("calibration/axes", np.array([1], np.int64))
    names = {tensor: _add_maximum(edit, tensor, infinity, axes) for tensor in tensors}
    maxima = {m: TensorProto.FLOAT for m, _ in names.values()}
    _set_outputs(edit, maxima | {n: TensorProto.INT64 for _, n in names.values()})
    engine = sessions.exact(edit.done())
    found: dict[str, list[Array]] = {tensor: [] for tensor in tensors}
    sizes = dict.fromkeys(tensors, 0)
    samples = 0
    for batch in with_progress(dataset, f"calibration: ranges of {len(tensors)} tensors"):
        outputs = engine(batch.feed)
        samples += batch.rows
        for tensor, (maximum, size) in names.items():
            found[tensor].append(_of_samples(outputs[maximum], batch))
            sizes[tensor] = max(sizes[tensor], 4 * int(outputs[size].item()))
    per_sample = {tensor: np.concatenate(parts).astype(np.float32) for tensor, parts in found.items()}
    return Maxima(per_sample, sizes, samples)


def collect_histograms(
    model: Model, maxima: Maxima, dataset: Dataset, bins: int, *, zeros: bool = True, sessions: Sessions = CPU
) -> dict[str, NDArray[np.int64]]:
    """How often values occur, counted by ONNX Runtime's ``HistogramCollector``.

    Args:
        model: A float model.
        maxima: Of the same model and data; tensors whose amax is 0, not finite, or too near either for bins
            in float32 are left out.
        dataset: Calibration samples; read once for each ``CHUNK_BYTES`` of activations that a run makes.
        bins: Number of bins, even, equally wide over [-amax, amax].
        zeros: False leaves values that are exactly 0 out.
        sessions: Where it runs.

    Returns:
        Counts of shape [bins] per tensor.

    Raises:
        EngineError: The model does not run.
        DataError: The samples cannot be read.
    """
    limits = {
        t: np.float32(amax) for t in maxima.per_sample if bins * _TINY < (amax := maxima.amax(t)) < _HUGE
    }
    collector = _collector(limits, bins)
    chunks = list(chunked({t: maxima.run_bytes[t] for t in limits}, CHUNK_BYTES))
    for n, chunk in enumerate(chunks, 1):
        edit = model.edit()
        names = {tensor: _add_cast(edit, tensor) for tensor in chunk}
        _set_outputs(edit, dict.fromkeys(names.values(), TensorProto.FLOAT))
        engine = sessions.exact(edit.done())
        what = f"calibration: histograms of {len(chunk)} tensors (pass {n} of {len(chunks)})"
        for batch in with_progress(dataset, what):
            outputs = engine(batch.feed)
            for tensor, name in names.items():
                _count(collector, tensor, real_rows(outputs[name], batch), limits[tensor], zeros)
    return {tensor: np.asarray(collector.histogram_dict[tensor][0], np.int64) for tensor in limits}


def runtime_version() -> str:
    """ONNX Runtime's version, whose search :func:`entropy_amax` runs."""
    import onnxruntime

    return str(onnxruntime.__version__)


def entropy_amax(counts: NDArray[np.int64], amax: float) -> float:
    """The range that loses the least information, by ONNX Runtime's ``get_entropy_threshold``.

    Compares the histogram, clipped at each candidate, with its 128-bin self by Kullback-Leibler divergence
    (S. Migacz, 8-bit Inference with TensorRT, GTC 2017). ONNX Runtime's default of 128 bins leaves a single
    candidate, the whole range; use ``ENTROPY_BINS``. Leave values that are exactly 0 out of the counts: they
    are exact at any scale, and after a ReLU their peak draws the threshold far into the distribution.

    Args:
        counts: Histogram over [-amax, amax], its number of bins a multiple of 128.
        amax: Greatest magnitude, above 0.

    Returns:
        A magnitude in (0, amax].
    """
    histogram = (counts, *_edges(np.float32(amax), counts.size))
    low, high = _collector({}, counts.size).get_entropy_threshold(histogram, _QUANTIZED_BINS)
    return float(min(max(abs(low), abs(high)), amax))


def _collector(limits: Mapping[str, np.float32], bins: int) -> Any:
    """ONNX Runtime's collector, its histograms empty and their ranges final."""
    from onnxruntime.quantization.calibrate import HistogramCollector

    collector = HistogramCollector(
        method="entropy",
        symmetric=True,
        num_bins=bins,
        num_quantized_bins=_QUANTIZED_BINS,
        percentile=100.0,
        scenario="same",
    )
    collector.histogram_dict.update(
        {tensor: (np.zeros(bins, np.int64), *_edges(amax, bins)) for tensor, amax in limits.items()}
    )
    return collector


def _edges(amax: np.float32, bins: int) -> tuple[NDArray[np.float32], np.float32, np.float32, np.float32]:
    """Edges, least and greatest value, and limit of a histogram over [-amax, amax], as ONNX Runtime does."""
    return np.linspace(-amax, amax, bins + 1, dtype=np.float32), -amax, amax, amax


def _count(collector: Any, tensor: str, array: Array, amax: np.float32, zeros: bool) -> None:
    """Add ``array`` to the tensor's histogram; rounding may put it just above ``amax`` in this pass."""
    values = np.clip(array, -amax, amax)
    collector.collect_value({tensor: values if zeros else values[values != 0]})


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
    output = edit.unique(f"{tensor}/float")
    edit.graph.node.append(helper.make_node("Cast", [tensor], [output], to=TensorProto.FLOAT))
    return output


def _add_maximum(edit: Editor, tensor: str, infinity: str, axes: str) -> tuple[str, str]:
    """Add max|x| over all but the first dimension, inf where there is NaN, and the number of elements.

    ``axes`` names the constant [1] where ReduceMax takes its axes as an input.
    """
    value = _add_cast(edit, tensor)
    nan, absolute, finite, rows, maximum, size = (
        edit.unique(f"{tensor}/{part}") for part in ("nan", "abs", "finite", "rows", "max", "size")
    )
    make = helper.make_node
    along: dict[str, Any] = {} if axes else {"axes": [1]}
    edit.graph.node.extend(
        [
            make("IsNaN", [value], [nan]),
            make("Abs", [value], [absolute]),
            make("Where", [nan, infinity, absolute], [finite]),
            make("Flatten", [finite], [rows], axis=1),
            make("ReduceMax", [rows, axes] if axes else [rows], [maximum], keepdims=0, **along),
            make("Size", [value], [size]),
        ]
    )
    return maximum, size


def _set_outputs(edit: Editor, types: Mapping[str, int]) -> None:
    """Make ``types``, name to ONNX element type, the only outputs; what they do not need is then not run."""
    refill(edit.graph.output, [helper.make_tensor_value_info(n, t, None) for n, t in types.items()])
