"""What the tensors of a float model hold on a dataset: each measured once, in one pass over the samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from pytest_int8acc.clock import current
from pytest_int8acc.data import Dataset
from pytest_int8acc.data.dataset import real_rows
from pytest_int8acc.engines.calibrators import chunked
from pytest_int8acc.engines.onnxruntime import OrtEngine, Sessions
from pytest_int8acc.engines.run import with_progress
from pytest_int8acc.graph.formats import INT8
from pytest_int8acc.graph.model import Model
from pytest_int8acc.results.causes import Histogram
from pytest_int8acc.scales.calibrate import mse_amax

#: Bins over [-limit, limit]: at the narrowest range tried, amax / 128, a bin is still no wider than a step.
BINS = 1 << 16
#: Activations of one run that leave the graph together, in bytes.
CHUNK_BYTES = 1 << 28
#: Values that are looked at together: their copies in float64 stay small.
_PIECE = 1 << 20
#: Ranges whose bins float32 cannot tell apart, or whose squares it cannot hold.
_LEAST_AMAX, _MOST_AMAX = 1e-30, 1e30
_REPORT_BINS = 64


@dataclass(eq=False)
class TensorValues:
    """What one activation holds over the samples."""

    tensor: str
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    """Values other than 0 in bins over [-limit, limit]; all 0 where the tensor holds inf, nan or more than
    ``_MOST_AMAX``."""
    limit: float = 0.0
    """The least power of two above ``amax``; 0 where nothing is counted."""
    zeros: int = 0
    """Of values that are 0, or less than float32 tells from it beside others; 0 where ``counts`` must be."""
    amax: float = 0.0
    """Greatest magnitude; may be 0 or inf."""
    channel_amax: NDArray[np.float32] | None = None
    """Shape [channels], along the channel axis of the tensor's first reader; None without such an axis."""
    _maxima: list[NDArray[np.float32]] = field(default_factory=list)

    @property
    def maxima(self) -> NDArray[np.float32]:
        """Greatest magnitude of each sample, or of each batch where rows are no samples; inf for nan."""
        return np.concatenate(self._maxima) if self._maxima else np.zeros(1, np.float32)

    @property
    def is_counted(self) -> bool:
        """True where there is a histogram to choose a range from."""
        return bool(_LEAST_AMAX < self.amax < _MOST_AMAX)

    @property
    def magnitudes(self) -> NDArray[np.int64]:
        """Counts of |x| over [0, limit], shape [BINS / 2]; zeros left out."""
        half = self.counts.size // 2
        return np.asarray(self.counts[half:] + self.counts[:half][::-1])

    def add(self, values: NDArray[np.float32], axis: int | None, rows: int) -> None:
        """Count one batch of ``rows`` samples, whose channels lie on ``axis``."""
        magnitudes = np.nan_to_num(np.abs(values), nan=np.inf, posinf=np.inf)
        by_row = values.ndim > 0 and rows > 0 and len(values) % rows == 0
        found = magnitudes.reshape(rows if by_row else 1, -1).max(axis=1, initial=0.0).astype(np.float32)
        self._maxima.append(found)
        self._add_channels(magnitudes, axis)
        self.amax = max(self.amax, float(found.max()))
        if self.amax >= _MOST_AMAX:
            self.counts, self.limit, self.zeros = np.zeros(BINS, np.int64), 0.0, 0
            return
        self._widen()
        flat = values.reshape(-1)
        for piece in (flat[i : i + _PIECE] for i in range(0, flat.size, _PIECE)):
            present = piece[np.abs(piece) > _LEAST_AMAX].astype(np.float64)
            self.zeros += piece.size - present.size
            if present.size:
                bins = np.floor(present * (BINS // 2 / self.limit)).astype(np.int64) + BINS // 2
                self.counts += np.bincount(bins, minlength=BINS)

    def quantile(self, share: float) -> float:
        """The magnitude that ``share`` of all values do not pass; zeros count."""
        magnitudes = self.magnitudes
        wanted = share * (self.zeros + magnitudes.sum()) - self.zeros
        if wanted <= 0 or not magnitudes.any():
            return 0.0
        index = int(np.searchsorted(np.cumsum(magnitudes), wanted))
        return min(self.limit * min(index + 1, magnitudes.size) / magnitudes.size, self.amax)

    def best_reach(self) -> float:
        """The symmetric range whose INT8 error has the least mean square; amax where nothing was counted."""
        return mse_amax(self.counts, self.amax, self.limit) if self.counts.any() else self.amax

    def sqnr_db(self, reach: float) -> float:
        """SQNR of symmetric INT8 with this range, from the histogram; inf where all values are 0."""
        centres = (np.arange(BINS // 2) + 0.5) * (self.limit / (BINS // 2))
        step = reach / INT8.levels
        errors = INT8.fake_quantize(centres, step) - centres if step else -centres
        weights = self.magnitudes
        return decibels(float((weights * centres**2).sum()), float((weights * errors**2).sum()))

    def report(self) -> Histogram | None:
        """|x| in at most 64 bins that end at amax, zeros in the first."""
        magnitudes = self.magnitudes
        if not magnitudes.any():
            return None
        shares = np.arange(magnitudes.size) * (self.limit / self.amax) * (_REPORT_BINS / magnitudes.size)
        places = np.minimum(shares.astype(np.int64), _REPORT_BINS - 1)
        counts = np.bincount(places, magnitudes, _REPORT_BINS).astype(np.int64)
        counts[0] += self.zeros
        edges = np.linspace(0, self.amax, _REPORT_BINS + 1)
        return Histogram(tuple(map(float, edges)), tuple(map(int, counts)))

    @property
    def channel_gain_db(self) -> float:
        """What a scale per channel would gain over amax for all: 10 log10(amax^2 / mean of channels' amax^2).

        The noise of a range is uniform over a step (step^2 / 12), so it goes with the square of the range.
        Channels that are always 0 do not count.
        """
        if self.channel_amax is None or not self.channel_amax.any():
            return 0.0
        squares = self.channel_amax[self.channel_amax > 0].astype(np.float64) ** 2
        return 10 * math.log10(float(squares.max() / squares.mean()))

    def channel_ratio(self, share: float = 0.5) -> float:
        """The greatest channel's amax over that of the channel which ``share`` of all do not pass.

        Channels that are always 0 do not count; 1 without channels.
        """
        if self.channel_amax is None or not self.channel_amax.any():
            return 1.0
        return float(self.channel_amax.max() / np.quantile(self.channel_amax[self.channel_amax > 0], share))

    def _add_channels(self, magnitudes: NDArray[np.float32], axis: int | None) -> None:
        if axis is None or magnitudes.ndim < 2:
            return
        found = magnitudes.max(axis=tuple(i for i in range(magnitudes.ndim) if i != axis % magnitudes.ndim))
        known = self.channel_amax
        if known is None or known.shape == found.shape:
            self.channel_amax = found if known is None else np.maximum(known, found)

    def _widen(self) -> None:
        """Double the limit until it exceeds ``amax``; bins join, so that none is ever split."""
        if self.amax < self.limit or self.amax <= _LEAST_AMAX:
            return
        wider = math.ldexp(1.0, math.frexp(self.amax)[1])
        if self.counts.any():
            joined = int(min(wider / self.limit, BINS // 2))
            inner = self.counts.reshape(-1, joined).sum(axis=1)
            self.counts = np.zeros(BINS, np.int64)
            first = (BINS - inner.size) // 2
            self.counts[first : first + inner.size] = inner
        self.limit = wider


def decibels(signal: float, noise: float) -> float:
    """10 log10(signal / noise); inf without noise, -inf without signal."""
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


#: What is told of each batch of a tensor: the tensor, its values, and how many samples they are of.
Visit = Callable[[str, NDArray[np.float32], int], None]


class Values:
    """Tensors of one float model on one dataset, each measured when it is first asked for."""

    def __init__(
        self,
        model: Model,
        dataset: Dataset,
        sessions: Sessions,
        *,
        readers: Mapping[str, tuple[str, int]],
        nbytes: Mapping[str, int],
    ) -> None:
        """Keep what is needed; nothing is run.

        Args:
            model: In float.
            dataset: Samples; must give the same ones each time.
            sessions: Where the model runs.
            readers: Tensor to its first reader's operator and the input there, which tell the channels' axis.
            nbytes: Tensor to its size in a run, about, as float32.
        """
        self.dataset = dataset
        self._nbytes = nbytes
        self._model, self._sessions, self._readers = model, sessions, readers
        self._known: dict[str, TensorValues] = {}

    def of(self, tensors: Iterable[str]) -> Mapping[str, TensorValues]:
        """What each tensor holds; those not known yet are measured in one pass over the samples.

        Raises:
            EngineError: The model does not run.
            DataError: The samples cannot be read.
        """
        wanted = list(dict.fromkeys(tensors))
        missing = [tensor for tensor in wanted if tensor not in self._known]
        found = {tensor: TensorValues(tensor) for tensor in missing}

        def visit(tensor: str, values: NDArray[np.float32], rows: int) -> None:
            reader = self._readers.get(tensor)
            axis = None if reader is None else channel_axis(*reader, values.ndim)
            found[tensor].add(values, axis, rows)

        sizes = {tensor: self._nbytes.get(tensor, 0) for tensor in missing}
        sweep(self._model, sizes, self.dataset, self._sessions, visit)
        self._known |= found
        return {tensor: self._known[tensor] for tensor in wanted}


def channel_axis(op_type: str, index: int, rank: int) -> int | None:
    """The axis of an activation that holds its channels, which its reader sums over; None: no such axis."""
    if rank < 2:
        return None
    if op_type in ("MatMul", "Gemm"):
        return rank - 1 if index == 0 else rank - 2
    return 1 if rank != 3 or op_type.startswith("Conv") else 2


def sweep(model: Model, sizes: Mapping[str, int], dataset: Dataset, sessions: Sessions, visit: Visit) -> None:
    """Run a model over the samples and show tensors' values, batch by batch.

    Args:
        model: In float.
        sizes: Tensors, and their size in a run, in bytes; more than ``CHUNK_BYTES`` take several passes.
        dataset: Samples.
        sessions: Where it runs.
        visit: Told the tensor, its values and how many samples they are of.

    Raises:
        EngineError: The model does not run.
        DataError: The samples cannot be read.
        OutOfTime: Before a pass begins.
    """
    for chunk in chunked(sizes, CHUNK_BYTES):
        current().check()
        engine, names = _showing(model, chunk, sessions)
        for batch in with_progress(dataset, f"measuring {len(chunk)} tensors"):
            outputs = engine(batch.feed)
            for tensor, name in names.items():
                visit(tensor, np.asarray(real_rows(outputs[name], batch), np.float32), batch.rows)


def _showing(model: Model, tensors: Sequence[str], sessions: Sessions) -> tuple[OrtEngine, dict[str, str]]:
    """An engine whose outputs are these tensors in FP32, and each one's name there."""
    edit = model.edit()
    names = {tensor: edit.unique(f"{tensor}/float") for tensor in tensors}
    for tensor, name in names.items():
        edit.graph.node.append(helper.make_node("Cast", [tensor], [name], to=TensorProto.FLOAT))
    del edit.graph.output[:]
    edit.graph.output.extend(
        helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in names.values()
    )
    return sessions.exact(edit.done()), names
