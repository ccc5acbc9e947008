"""What a quantization does to the values of a tensor: sums, histograms, and how good the best scale is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.graph.network import Quantization
from pytest_int8acc.graph.quantize import along, quantize_array
from pytest_int8acc.results.causes import Histogram
from pytest_int8acc.scales import LEVELS
from pytest_int8acc.scales.calibrate import mse_amax
from pytest_int8acc.tensors import Array

#: Bins over [-amax, amax]: at the narrowest range tried, amax / 128, a bin is still no wider than a step.
BINS = 1 << 15
#: INT8 does no better than this on values that fill their range evenly; finer differences are luck.
CEILING_DB = 45.0
#: A scale is at fault from here: twice too wide loses 6 dB, while calibrated ones stay within 3 of the best.
LOST_DB = 4.0
#: A range counts as too wide from here: samples that were not calibrated on move amax by up to a third.
WIDE = 1.4
#: Below this with the best scale, a few large values make the range; trained layers keep 33 dB and more.
SOUND_DB = 30.0
_REPORT_BINS = 64


@dataclass(eq=False)
class TensorStats:
    """What one activation holds over the samples."""

    tensor: str
    amax: float
    """Greatest magnitude; may be 0 or inf."""
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    """Values other than 0 in bins over [-amax, amax]; all 0 where amax is 0 or not finite."""
    zeros: int = 0
    channel_amax: NDArray[np.float32] | None = None
    """Shape [channels], along the channel axis of the tensor's first reader; None without such an axis."""

    @property
    def magnitudes(self) -> NDArray[np.int64]:
        """Counts of |x| over [0, amax], shape [BINS / 2]; zeros left out."""
        half = self.counts.size // 2
        return np.asarray(self.counts[half:] + self.counts[:half][::-1])

    def add(self, values: NDArray[np.float32], axis: int | None) -> None:
        """Count one batch."""
        if axis is not None and values.ndim > 1:
            found = np.abs(values).max(axis=tuple(i for i in range(values.ndim) if i != axis % values.ndim))
            known = self.channel_amax
            if known is None or known.shape == found.shape:
                self.channel_amax = found if known is None else np.maximum(known, found)
        if not 0 < self.amax < math.inf:
            self.zeros += values.size
            return
        present = values[values != 0].astype(np.float64)
        self.zeros += values.size - present.size
        bins = ((present / self.amax + 1) * (BINS // 2)).astype(np.int64)
        self.counts += np.bincount(np.clip(bins, 0, BINS - 1), minlength=BINS)

    def quantile(self, share: float) -> float:
        """The magnitude that ``share`` of all values do not pass; zeros count."""
        magnitudes = self.magnitudes
        wanted = share * (self.zeros + magnitudes.sum()) - self.zeros
        if wanted <= 0 or not magnitudes.any():
            return 0.0
        index = int(np.searchsorted(np.cumsum(magnitudes), wanted))
        return self.amax * min(index + 1, magnitudes.size) / magnitudes.size

    def best_reach(self) -> float:
        """The symmetric range whose INT8 error has the least mean square; amax where nothing was counted."""
        return mse_amax(self.counts, self.amax) if self.counts.any() else self.amax

    def sqnr_db(self, reach: float) -> float:
        """SQNR of symmetric INT8 with this range, from the histogram; inf where all values are 0."""
        centres = (np.arange(BINS // 2) + 0.5) * (self.amax / (BINS // 2))
        step = reach / LEVELS
        errors = np.minimum(np.rint(centres / step), LEVELS) * step - centres if step else -centres
        weights = self.magnitudes
        return decibels(float((weights * centres**2).sum()), float((weights * errors**2).sum()))

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

    def report(self) -> Histogram | None:
        """|x| in at most 64 bins, zeros in the first."""
        magnitudes = self.magnitudes
        if not magnitudes.any():
            return None
        counts = magnitudes.reshape(_REPORT_BINS, -1).sum(axis=1)
        counts[0] += self.zeros
        edges = np.linspace(0, self.amax, _REPORT_BINS + 1)
        return Histogram(tuple(map(float, edges)), tuple(map(int, counts)))


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
    top_code: int = 0
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
        return self.clips and self.sqnr_db >= SOUND_DB

    @property
    def codes_used(self) -> float:
        """Share of the 127 codes on the fuller side up to the greatest that occurs."""
        return min(self.top_code / LEVELS, 1.0)

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
        """Quantize one batch, exactly as QuantizeLinear and DequantizeLinear do; ``axis`` holds channels."""
        q = self.quantization
        limits = np.iinfo(q.zero_point.dtype)
        scale = along(q.scale, q.axis, values.ndim).astype(np.float32)
        zero = along(q.zero_point, q.axis, values.ndim).astype(np.int64)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            codes = quantize_array(values, q.scale, q.zero_point, q.axis).astype(np.int64) - zero
            error = (codes * scale - values).astype(np.float64)
            steps = values / scale + zero
        beyond = (steps > limits.max + 0.5) | (steps < limits.min - 0.5)
        squared = error**2
        self.values += values.size
        self.signal += float((values.astype(np.float64) ** 2).sum())
        self.noise += float(squared.sum())
        self.clipped += int(beyond.sum())
        self.clip_noise += float(squared[beyond].sum())
        self._add_channels(values, squared, axis)
        self.top_code = max(self.top_code, int(np.abs(codes).max(initial=0)))

    def _add_channels(self, values: Array, squared: NDArray[np.float64], axis: int | None) -> None:
        if axis is None or values.ndim < 2:
            return
        others = tuple(i for i in range(values.ndim) if i != axis % values.ndim)
        energy = (values.astype(np.float64) ** 2).sum(axis=others)
        found = np.stack([energy, squared.sum(axis=others)])
        if self.channels is None or self.channels.shape == found.shape:
            self.channels = found if self.channels is None else self.channels + found


def decibels(signal: float, noise: float) -> float:
    """10 log10(signal / noise); inf without noise, -inf without signal."""
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def reach(quantization: Quantization) -> float:
    """Greatest magnitude that the codes express; of the widest channel. Codes -128 count as -127."""
    scale, zero = (a.astype(np.float64) for a in (quantization.scale, quantization.zero_point))
    limits = np.iinfo(quantization.zero_point.dtype)
    low = limits.min + (1 if limits.min == -LEVELS - 1 else 0)
    return float((scale * np.maximum(limits.max - zero, zero - low)).max())


def channel_axis(op_type: str, index: int, rank: int) -> int | None:
    """The axis of an activation that holds its channels, which its reader sums over; None: no such axis."""
    if rank < 2:
        return None
    if op_type in ("MatMul", "Gemm"):
        return rank - 1 if index == 0 else rank - 2
    return 1 if rank != 3 or op_type.startswith("Conv") else 2


def lost_db(stats: TensorStats, edge: EdgeStats) -> float:
    """SQNR lost against the best symmetric scale, in dB; 0 where nothing is lost, or nothing was counted."""
    if not stats.counts.any():
        return 0.0
    return max(min(stats.sqnr_db(stats.best_reach()), CEILING_DB) - edge.sqnr_db, 0.0)
