"""The values of one tensor over a dataset: its greatest magnitudes and its histogram.

The histogram's bins are those of ``numpy.histogram``, which ONNX Runtime's calibrators use. A value x belongs
to bin n if edges[n] <= x < edges[n + 1] in float32. The last bin also has its upper edge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.graph.formats import INT8, Format
from pytest_int8acc.observers.ranges import folded, mse_amax
from pytest_int8acc.results.causes import Histogram

#: Number of bins of a histogram over [-amax, amax]. The narrowest range that calibration tries is amax / 128.
#: Even then, a bin is no wider than a step of INT8.
BINS = 1 << 15
#: Number of bins of a histogram in a report.
_REPORT_BINS = 64
#: A tensor gets a histogram only if its greatest magnitude lies between these bounds. Below the first bound,
#: float32 cannot distinguish the bins' edges. Above the second bound, squares of values overflow float32.
_MIN_AMAX, _MAX_AMAX = 1e-30, 1e30
#: Number of values that are counted at a time, so that intermediate arrays stay in the processor's cache.
_CHUNK = 1 << 16
#: A bin is found by multiplying a value with ``Bins.per_value``. If the product lies this near to an edge,
#: the value is compared with the edges, because float32 rounding may give the wrong bin. The distance is
#: given as a fraction of the number of bins.
_NEAR = 2.0**-20


class Bins:
    """A histogram with bins of equal width over [-amax, amax]; zeros are counted separately."""

    def __init__(self, amax: float, size: int = BINS) -> None:
        """Create an empty histogram.

        Args:
            amax: The greatest magnitude of all values; see :attr:`TensorValues.is_counted`.
            size: Number of bins, a power of two up to ``BINS``.
        """
        self.counts = np.zeros(size, np.int64)
        self.zeros = 0
        limit = np.float32(amax)
        self.edges: NDArray[np.float32] = np.linspace(-limit, limit, size + 1, dtype=np.float32)

    @property
    def per_value(self) -> np.float32:
        """The number of bins per unit of value: 1 divided by the width of a bin."""
        return np.float32(self.counts.size / 2 / float(self.edges[-1]))

    def add(self, values: NDArray[np.float32]) -> None:
        """Count the values of one array; values beyond [-amax, amax] are counted in the outermost bins."""
        flat, size = values.reshape(-1), self.counts.size
        for start in range(0, flat.size, _CHUNK):
            chunk = flat[start : start + _CHUNK]
            nonzero = chunk.take(np.flatnonzero(chunk))  # This is faster than a boolean mask.
            self.zeros += chunk.size - nonzero.size
            places = np.clip(nonzero * self.per_value, -size // 2, size // 2)
            below = np.floor(places)
            found = below.astype(np.intp)
            found += size // 2
            np.abs(places - below - np.float32(0.5), out=places)
            near = np.flatnonzero(places >= np.float32(0.5 - size * _NEAR))
            if near.size:
                found[near] = self._compared(nonzero[near], found[near])
            self.counts += np.bincount(found, minlength=size)

    @property
    def with_zeros(self) -> NDArray[np.int64]:
        """The counts with zeros included; zeros belong to the bin whose lower edge is 0."""
        counts = self.counts.copy()
        counts[counts.size // 2] += self.zeros
        return counts

    def merged(self, size: int) -> NDArray[np.int64]:
        """The counts in ``size`` wider bins over [-amax, amax]; zeros are not included.

        ``size`` must divide the number of bins.
        """
        return np.asarray(self.counts.reshape(size, -1).sum(axis=1))

    def _compared(self, values: NDArray[np.float32], found: NDArray[np.intp]) -> NDArray[np.intp]:
        """The bin of each value, by comparison with the edges.

        ``found`` holds estimates of the bins, which are wrong by at most one bin.
        """
        last = self.counts.size - 1
        found = np.clip(found, 0, last)
        up = (values >= self.edges[found + 1]) & (found < last)
        down = (values < self.edges[found]) & (found > 0)
        return found + up - down


@dataclass(frozen=True, eq=False)
class TensorValues:
    """The values of one activation over the samples of a dataset."""

    tensor: str
    bins: Bins = field(default_factory=lambda: Bins(1.0))
    """The histogram over [-amax, amax]; empty if it was not measured or ``is_counted`` is False."""
    maxima: NDArray[np.float32] = field(default_factory=lambda: np.zeros(1, np.float32))
    """The greatest magnitude in each sample; inf for a sample with NaN.

    If axis 0 of the tensor is not the batch axis, there is one number for each run instead.
    """
    channel_amax: NDArray[np.float32] | None = None
    """The greatest magnitude of each channel, shape [channels].

    None if the tensor has no channel axis, or if the number of channels differs between runs.
    """
    unmasked: float = 0.0
    """The greatest magnitude of the values above ``-amax / 2``; 0 if all values lie above this bound.

    The values of attention masks, such as -10000, lie far below all other values.
    """
    low: Format = INT8
    """The format that the tensor is quantized to."""
    run_bytes: int = 0
    """The size of the tensor as float32 in the run where it is largest, in bytes."""
    run_rows: int = 1
    """The number of rows in the largest batch, including rows that only fill the batch."""
    samples: int = 0
    """The number of samples of the dataset."""

    @property
    def amax(self) -> float:
        """The greatest magnitude of all samples; it may be 0 or inf."""
        return float(self.maxima.max())

    @property
    def counts(self) -> NDArray[np.int64]:
        """The histogram over [-amax, amax] of all values except 0."""
        return self.bins.counts

    @property
    def zeros(self) -> int:
        """The number of values that are 0."""
        return self.bins.zeros

    @property
    def is_counted(self) -> bool:
        """Whether the tensor can have a histogram: amax is neither too small nor too large for float32."""
        return bool(_MIN_AMAX < self.amax < _MAX_AMAX)

    @property
    def magnitudes(self) -> NDArray[np.int64]:
        """The histogram of |x| over [0, amax] without zeros, shape [bins / 2]."""
        return folded(self.counts)

    def quantile(self, share: float) -> float:
        """The magnitude that a fraction ``share`` of all values, zeros included, does not exceed."""
        magnitudes = self.magnitudes
        below = share * (self.zeros + magnitudes.sum()) - self.zeros
        if below <= 0 or not magnitudes.any():
            return 0.0
        index = int(np.searchsorted(np.cumsum(magnitudes), below))
        return self.amax * min(index + 1, magnitudes.size) / magnitudes.size

    def best_reach(self) -> float:
        """The symmetric clipping range with the least mean square error; amax without a histogram."""
        if not self.counts.any():
            return self.amax
        return mse_amax(self.counts, self.amax, self.low)

    def sqnr_db(self, reach: float) -> float:
        """The SQNR, in dB, of the values quantized to ``low`` with the symmetric clipping range ``reach``.

        The result is inf if all values are 0.
        """
        magnitudes = self.magnitudes
        centres = (np.arange(magnitudes.size) + 0.5) * (self.amax / magnitudes.size)
        step = reach / self.low.levels
        errors = self.low.fake_quantize(centres, step) - centres if step else -centres
        return decibels(float((magnitudes * centres**2).sum()), float((magnitudes * errors**2).sum()))

    def report(self) -> Histogram | None:
        """The histogram of |x| for a report, with 64 bins up to amax; None if it has no values but 0."""
        magnitudes = self.magnitudes
        if not magnitudes.any():
            return None
        counts = magnitudes.reshape(_REPORT_BINS, -1).sum(axis=1)
        counts[0] += self.zeros
        edges = np.linspace(0, self.amax, _REPORT_BINS + 1)
        return Histogram(tuple(edges.tolist()), tuple(counts.tolist()))

    @property
    def channel_gain_db(self) -> float:
        """The number of dB by which a scale per channel would lower the noise, compared with a single scale.

        This is 10 log10(amax^2 / mean of the channels' amax^2). The rounding error is uniform over a step,
        with the variance step^2 / 12, so noise grows with the square of the range. Channels that are always 0
        are ignored.
        """
        if self.channel_amax is None or not self.channel_amax.any():
            return 0.0
        squares = self.channel_amax[self.channel_amax > 0].astype(np.float64) ** 2
        return 10 * math.log10(float(squares.max() / squares.mean()))

    def channel_ratio(self) -> float:
        """The greatest amax of a channel, divided by the median amax of the channels; 1 without channels.

        Channels that are always 0 are ignored.
        """
        if self.channel_amax is None or not self.channel_amax.any():
            return 1.0
        return float(self.channel_amax.max() / np.median(self.channel_amax[self.channel_amax > 0]))


def decibels(signal: float, noise: float) -> float:
    """The ratio of two energies in dB: 10 log10(signal / noise).

    The result is inf if ``noise`` is 0, and -inf if only ``signal`` is 0.
    """
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf
