"""Calibration methods, each a range made of what a tensor was seen to hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from pytest_int8acc.graph.formats import INT8, Format
from pytest_int8acc.observers.histograms import Bins

Histogram = NDArray[np.int64]

#: Bins over [-amax, amax] for the entropy threshold; a multiple of the quantized bins, since ONNX Runtime
#: counts what is left over in its last candidate, the whole range, as lost.
ENTROPY_BINS = 2048
#: ONNX Runtime's own default.
_QUANTIZED_BINS = 128
#: What ONNX Runtime gives to bins that hold nothing, taken from those that do (its ``smooth_distribution``).
_SMOOTHING = 1e-4
#: Ranges that the mse method tries, as fractions of amax: 1 down to 1/128 in steps of 4 %.
_FRACTIONS = 2.0 ** -np.arange(0, 7.01, 1 / 16)


def percentile_amax(counts: Histogram, amax: float, percentile: float) -> float:
    """The least bin edge that ``percentile`` % of the magnitudes do not pass.

    ONNX Runtime takes the lower edge of that bin, which is 0 where one outlier leaves all other values in the
    first bin (microsoft/onnxruntime#10571).

    Args:
        counts: Histogram over [-amax, amax], with an even number of bins.
        amax: Greatest magnitude, above 0.
        percentile: In (0, 100].
    """
    cumulated = np.cumsum(folded(counts))
    kept = math.ceil(Fraction(str(percentile)) * int(cumulated[-1]) / 100)  # 99.9 % of 10000 are 9990
    index = int(np.searchsorted(cumulated, kept))
    return amax * (index + 1) / cumulated.size


def mse_amax(counts: Histogram, amax: float, low: Format = INT8) -> float:
    """The range, of 113 down to amax / 128, whose error has the least mean square over the histogram.

    Each bin counts as its centre, rounded to the range's grid of 127 steps and clipped there (as
    ``HistogramCalibrator.compute_amax("mse")`` of NVIDIA's pytorch-quantization and ModelOpt). With k the
    code of x, the error sum (x - k s)^2 = sum x^2 - 2 s sum k x + s^2 sum k^2, and sums over k are sums of
    what lies beyond each k - 1/2, which cumulative sums give; in FP8 each range is rounded to.

    Args:
        counts: Histogram over [-amax, amax], with an even number of bins.
        amax: Greatest magnitude, above 0.
        low: INT8 or FP8.
    """
    weights = folded(counts).astype(np.float64)
    centres = (np.arange(weights.size) + 0.5) / weights.size
    if low is not INT8:
        errors = (low.fake_quantize(centres, step) - centres for step in _FRACTIONS / low.levels)
        return float(amax * _FRACTIONS[int(np.argmin([(weights * error**2).sum() for error in errors]))])
    codes = np.arange(1, INT8.levels + 1)
    steps = _FRACTIONS[:, None] / INT8.levels
    beyond = np.searchsorted(centres, (codes - 0.5) * steps)
    count, total = (_tails(values)[beyond] for values in (weights, weights * centres))
    squares = (steps[:, 0] ** 2) * ((2 * codes - 1) * count).sum(axis=1)
    return float(amax * _FRACTIONS[int(np.argmin(squares - 2 * steps[:, 0] * total.sum(axis=1)))])


def entropy_amax(counts: Histogram, amax: float) -> float:
    """The range that loses the least information, ONNX Runtime's ``get_entropy_threshold`` to the bit.

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
    limit, middle = np.float32(amax), counts.size // 2
    edges = np.linspace(-limit, limit, counts.size + 1, dtype=np.float32)
    sums = np.concatenate([[0], np.cumsum(counts)])
    filled = np.concatenate([[0], np.cumsum(counts != 0)])
    width = _QUANTIZED_BINS // 2
    losses = [
        _information_lost(counts, sums, filled, middle - np.arange(first, min(first + width, middle + 1)))
        for first in range(width, middle + 1, width)  # as many bins for each of the 128
    ]
    reach = width + int(np.argmin(np.concatenate(losses)))
    low, high = edges[middle - reach], edges[min(middle + reach + 1, counts.size)]
    return float(min(max(abs(low), abs(high)), amax))


def _information_lost(
    counts: Histogram, sums: Histogram, filled: Histogram, starts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Divergence of the bins from each start to its mirror image, all else added to the outermost, from 128.

    Starts are consecutive ones from which each of the 128 takes as many bins. Sums of counts come from
    cumulative sums, exact in integers; the rest keeps ONNX Runtime's float32 and its order, so that of nearly
    equal candidates the same one wins.
    """
    ends = np.minimum(counts.size - starts + 1, counts.size)
    sizes, rows = ends - starts, np.arange(starts.size)
    least, most, width = int(sizes[0]), int(sizes.max()), int(sizes[0]) // _QUANTIZED_BINS
    padded = np.concatenate([counts, np.zeros(most, np.int64)]).astype(np.float32)
    p = sliding_window_view(padded, most)[starts]
    p[:, least:][np.arange(least, most) >= sizes[:, None]] = 0
    p[:, 0] = counts[starts] + sums[starts]
    p[rows, sizes - 1] = counts[ends - 1] + sums[-1] - sums[ends]
    bounds = starts[:, None] + width * np.arange(_QUANTIZED_BINS + 1)
    held, present = np.diff(sums[bounds]), np.diff(filled[bounds])
    held[:, -1] += sums[ends] - sums[bounds[:, -1]]
    present[:, 0] += (p[:, 0] != 0).astype(np.int64) - (counts[starts] != 0)
    means = np.where(present > 0, held / np.maximum(present, 1), 0).astype(np.int64).astype(np.float32)
    q = np.zeros_like(p)
    q[:, : width * _QUANTIZED_BINS] = np.repeat(means, width, axis=1)
    any_left = p.any(axis=1) & means.any(axis=1)
    p, q = _smoothed(p, sizes), _smoothed(q, sizes)
    return np.where(any_left, _row_sums(p * np.log(p / q), sizes).astype(np.float64), np.inf)


def _smoothed(counts: NDArray[np.float32], sizes: NDArray[np.int64]) -> NDArray[np.float32]:
    """Shares, none of them 0, of rows that end at ``sizes`` and hold 0 beyond; in the place of the counts."""
    empty = counts == 0
    filled = counts.shape[1] - np.count_nonzero(empty, axis=1)
    counts -= (_SMOOTHING * (sizes - filled) / np.maximum(filled, 1)).astype(np.float32)[:, None]
    counts[empty] = _SMOOTHING
    counts /= _row_sums(counts, sizes)[:, None]
    return counts


def _row_sums(rows: NDArray[np.float32], sizes: NDArray[np.int64]) -> NDArray[np.float32]:
    """Of each row up to its size: what is added to what in float32 depends on how many there are."""
    return np.array([row[:size].sum() for row, size in zip(rows, sizes, strict=True)])


def _tails(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums from each index to the end, shape [size + 1]."""
    return np.concatenate([np.cumsum(values[::-1])[::-1], [0.0]])


def folded(counts: Histogram) -> Histogram:
    """The histogram of |x| over [0, amax]."""
    half = counts.size // 2
    return np.asarray(counts[half:] + counts[:half][::-1])


#: How many of the greatest maxima are averaged (NVIDIA's INT8 debugging guide).
_TOP = 5
#: Bins of the entropy search where a candidate is wanted; its time grows with them.
FEW_BINS = 1 << 9


class Held(Protocol):
    """What one tensor was seen to hold."""

    @property
    def bins(self) -> Bins:
        """Over [-amax, amax]."""

    @property
    def amax(self) -> float:
        """Greatest magnitude, above 0."""

    @property
    def low(self) -> Format:
        """What it is quantized to."""

    @property
    def maxima(self) -> NDArray[np.float32]:
        """Greatest magnitude of each sample."""


@dataclass(frozen=True)
class Method:
    """One way to choose a range."""

    name: str
    """As in reports: the spec's word, with its number."""
    slow: bool
    """It takes far longer than the others, for each tensor."""
    amax: Callable[[Held, int], float]
    """The range of a tensor, with so many bins for the entropy search."""


def _percentile(held: Held, bins: int, percentile: float) -> float:
    return percentile_amax(held.bins.with_zeros, held.amax, percentile)


#: By name, those first that are best most often.
METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("mse", False, lambda held, bins: mse_amax(held.bins.counts, held.amax, held.low)),
        Method("minmax", False, lambda held, bins: held.amax),
        Method(f"topk {_TOP}", False, lambda held, bins: float(np.sort(held.maxima)[-_TOP:].mean())),
        *(
            Method(f"percentile {p:g}", False, partial(_percentile, percentile=p))
            for p in (99.999, 99.99, 99.9, 99.0)
        ),
        Method("entropy", True, lambda held, bins: entropy_amax(held.bins.merged(bins), held.amax)),
    )
}
