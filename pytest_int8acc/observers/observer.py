"""What the tensors of a float model hold on a dataset."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.clock import current
from pytest_int8acc.graph.formats import INT8, Format
from pytest_int8acc.graph.model import Model
from pytest_int8acc.observers.collect import Maxima, collect_histograms, collect_maxima
from pytest_int8acc.observers.histograms import Bins, can_count
from pytest_int8acc.observers.methods import folded, mse_amax
from pytest_int8acc.results.causes import Histogram
from pytest_int8acc.runtime.onnxruntime import Sessions

if TYPE_CHECKING:
    from pytest_int8acc.data import Dataset


#: Bins over [-amax, amax]: at the narrowest range tried, amax / 128, a bin is still no wider than a step.
BINS = 1 << 15


class Observed:
    """Maxima and histograms of a model's activations."""

    def __init__(self, model: Model, dataset: Dataset, sessions: Sessions) -> None:
        """Keep what is needed; nothing is run.

        Args:
            model: In float.
            dataset: Samples; must give the same ones each time.
            sessions: Where the model runs.
        """
        self.model, self.dataset = model, dataset
        self._sessions = sessions
        self._maxima: Maxima | None = None
        self._bins: dict[str, Bins] = {}

    def maxima(self, tensors: Iterable[str]) -> Maxima:
        """Greatest magnitudes of all tensors asked for so far; one pass for those that are new.

        Raises:
            EngineError: The model does not run.
            DataError: The samples cannot be read.
            OutOfTime: Before a pass begins.
        """
        known = {} if self._maxima is None else self._maxima.per_sample
        missing = [tensor for tensor in dict.fromkeys(tensors) if tensor not in known]
        if missing or self._maxima is None:
            current().check()
            found = collect_maxima(self.model, missing, self.dataset, self._sessions)
            self._maxima = found if self._maxima is None else self._maxima.plus(found)
        return self._maxima

    def bins(self, tensors: Iterable[str]) -> Mapping[str, Bins]:
        """Histograms of those tensors that have one: amax is neither 0 nor infinite; one pass more.

        Raises:
            EngineError: The model does not run.
            DataError: The samples cannot be read.
            OutOfTime: Before a pass begins.
        """
        requested = list(dict.fromkeys(tensors))
        maxima = self.maxima(requested)
        missing = [tensor for tensor in requested if tensor not in self._bins]
        if missing:
            current().check()
            self._bins |= collect_histograms(
                self.model, maxima.of(missing), self.dataset, BINS, sessions=self._sessions
            )
        return {tensor: self._bins[tensor] for tensor in requested if tensor in self._bins}


_REPORT_BINS = 64


@dataclass(frozen=True, eq=False)
class TensorValues:
    """What one activation holds over the samples."""

    tensor: str
    bins: Bins = field(default_factory=lambda: Bins(1.0, BINS))
    """Over [-amax, amax]; empty where ``amax`` is 0, infinite, or too near either."""
    maxima: NDArray[np.float32] = field(default_factory=lambda: np.zeros(1, np.float32))
    """Greatest magnitude of each sample, or of each batch where rows are no samples; inf for nan."""
    channel_amax: NDArray[np.float32] | None = None
    """Shape [channels], along the channel axis of the tensor's reader; None without such an axis."""
    low: Format = INT8
    """What it is quantized to: INT8 or FP8."""

    @property
    def amax(self) -> float:
        """Greatest magnitude; may be 0 or inf."""
        return float(self.maxima.max())

    @property
    def counts(self) -> NDArray[np.int64]:
        """Values other than 0 in bins over [-amax, amax]."""
        return self.bins.counts

    @property
    def zeros(self) -> int:
        """Of values that are 0, where others are counted."""
        return self.bins.zeros

    @property
    def is_counted(self) -> bool:
        """True where there is a histogram to choose a range from."""
        return can_count(self.amax)

    @property
    def magnitudes(self) -> NDArray[np.int64]:
        """Counts of |x| over [0, amax], shape [BINS / 2]; zeros left out."""
        return folded(self.counts)

    def quantile(self, share: float) -> float:
        """The magnitude that ``share`` of all values do not pass; zeros count."""
        magnitudes = self.magnitudes
        requested = share * (self.zeros + magnitudes.sum()) - self.zeros
        if requested <= 0 or not magnitudes.any():
            return 0.0
        index = int(np.searchsorted(np.cumsum(magnitudes), requested))
        return self.amax * min(index + 1, magnitudes.size) / magnitudes.size

    def best_reach(self) -> float:
        """The symmetric range whose error has the least mean square; amax where nothing was counted."""
        return mse_amax(self.counts, self.amax, self.low) if self.counts.any() else self.amax

    def sqnr_db(self, reach: float) -> float:
        """SQNR of ``low`` with this symmetric range, from the histogram; inf where all values are 0."""
        centres = (np.arange(BINS // 2) + 0.5) * (self.amax / (BINS // 2))
        step = reach / self.low.levels
        errors = self.low.fake_quantize(centres, step) - centres if step else -centres
        weights = self.magnitudes
        return decibels(float((weights * centres**2).sum()), float((weights * errors**2).sum()))

    def report(self) -> Histogram | None:
        """|x| in at most 64 bins that end at amax, zeros in the first."""
        magnitudes = self.magnitudes
        if not magnitudes.any():
            return None
        counts = magnitudes.reshape(_REPORT_BINS, -1).sum(axis=1)
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


def decibels(signal: float, noise: float) -> float:
    """10 log10(signal / noise); inf without noise, -inf without signal."""
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def tensor_values(tensor: str, maxima: Maxima, bins: Mapping[str, Bins], low: Format = INT8) -> TensorValues:
    """What was measured of one tensor that is quantized to ``low``."""
    counted = {"bins": bins[tensor]} if tensor in bins else {}
    channels = maxima.channels.get(tensor)
    return TensorValues(tensor, maxima=maxima.per_sample[tensor], channel_amax=channels, low=low, **counted)


class Values:
    """Tensors of one float model on one dataset, each measured when it is first asked for."""

    def __init__(self, observed: Observed, low: Format = INT8) -> None:
        """Keep what measures, and what tensors are quantized to; nothing is run."""
        self._observed, self._low = observed, low
        self._known: dict[str, TensorValues] = {}

    def of(self, tensors: Iterable[str]) -> Mapping[str, TensorValues]:
        """What each tensor holds; those not known yet are measured in two passes over the samples.

        Raises:
            EngineError: The model does not run.
            DataError: The samples cannot be read.
        """
        requested = list(dict.fromkeys(tensors))
        missing = [tensor for tensor in requested if tensor not in self._known]
        if missing:
            bins, maxima = self._observed.bins(missing), self._observed.maxima(missing)
            self._known |= {tensor: tensor_values(tensor, maxima, bins, self._low) for tensor in missing}
        return {tensor: self._known[tensor] for tensor in requested}

    def maxima(self, tensors: Iterable[str]) -> Mapping[str, float]:
        """The greatest magnitude of each tensor; those not known yet are measured in one pass.

        Raises:
            EngineError: The model does not run.
            DataError: The samples cannot be read.
        """
        requested = list(tensors)
        found = self._observed.maxima(requested)
        return {tensor: found.amax(tensor) for tensor in requested}
