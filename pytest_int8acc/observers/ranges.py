"""Chooses a range from a histogram: by percentile, by least squared error, or by least information lost."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from pytest_int8acc.graph.formats import INT8, Format

Histogram = NDArray[np.int64]

#: Number of histogram bins over [-amax, amax] for the entropy method. The number must be a multiple of
#: ``_QUANTIZED_BINS``. Otherwise ONNX Runtime's algorithm would count the remaining bins as lost information.
ENTROPY_BINS = 2048
#: Number of bins to which the entropy method reduces the histogram of a candidate range. The number is ONNX
#: Runtime's default.
_QUANTIZED_BINS = 128
#: The count that each empty bin gets. The sum of these counts is subtracted from the other bins, as in ONNX
#: Runtime's ``smooth_distribution``.
_SMOOTHING = 1e-4
#: The ranges that the mse method tries, as fractions of amax, from 1 down to 1/128 in steps of 4 %.
_FRACTIONS = 2.0 ** -np.arange(0, 7.01, 1 / 16)


def percentile_amax(counts: Histogram, amax: float, percentile: float) -> float:
    """The smallest bin edge that ``percentile`` % of the magnitudes do not exceed.

    The result is the upper edge of the bin in which the percentile lies. ONNX Runtime returns the lower edge.
    The lower edge is 0 if one outlier leaves all other values in the first bin (microsoft/onnxruntime#10571).

    Args:
        counts: Histogram over [-amax, amax], with an even number of bins.
        amax: Greatest magnitude, above 0.
        percentile: In (0, 100].
    """
    cumulated = np.cumsum(folded(counts))
    # A Fraction is exact: 99.9 % of 10000 are 9990, and not 9991.
    kept = math.ceil(Fraction(str(percentile)) * int(cumulated[-1]) / 100)
    index = int(np.searchsorted(cumulated, kept))
    return amax * (index + 1) / cumulated.size


def mse_amax(counts: Histogram, amax: float, low: Format = INT8) -> float:
    """The range with the least mean square error; 113 ranges from amax to amax / 128 are tried.

    All values of a bin are taken for the centre of the bin. The centre is rounded to the 127 steps of the
    range and clipped, as in ``HistogramCalibrator.compute_amax("mse")`` of NVIDIA's pytorch-quantization and
    ModelOpt. If k is the code of x and s the step, the error is sum (x - k s)^2 = sum x^2 - 2 s sum k x + s^2
    sum k^2. The sums over k come from cumulative sums: k is the number of thresholds 1/2, 3/2, ... that x / s
    reaches. For FP8, the centres are quantized instead.

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
    """The range that loses the least information, bit for bit as ONNX Runtime's ``get_entropy_threshold``.

    The histogram is clipped at each candidate range. The Kullback-Leibler divergence compares the clipped
    histogram with the same histogram reduced to 128 bins (S. Migacz, 8-bit Inference with TensorRT, GTC
    2017). With ONNX Runtime's default of 128 histogram bins, the whole range is the only candidate: use
    ``ENTROPY_BINS``. Leave zeros out of the counts. A zero is exact at any scale, and after a ReLU the many
    zeros would make the range much too narrow.

    Args:
        counts: Histogram over [-amax, amax]; the number of bins is a multiple of 128.
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
        # Each call handles the candidates whose 128 reduced bins are equally wide.
        for first in range(width, middle + 1, width)
    ]
    reach = width + int(np.argmin(np.concatenate(losses)))
    low, high = edges[middle - reach], edges[min(middle + reach + 1, counts.size)]
    return float(min(max(abs(low), abs(high)), amax))


def _information_lost(
    counts: Histogram, sums: Histogram, filled: Histogram, starts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The information that each candidate range loses when it is reduced to 128 bins, float64 [candidates].

    The loss is the Kullback-Leibler divergence of the range's histogram from the reduced histogram. A
    candidate range extends from a start, which is a bin, to the mirror image of the start. Counts outside the
    range are added to its outermost bins. All ``starts`` are consecutive, and lead to the same width of the
    128 bins. Counts are summed as integers. Everything else is computed in float32 and in ONNX Runtime's
    order. So the choice among nearly equal candidates is the same as in ONNX Runtime.

    Args:
        counts: The histogram.
        sums: Cumulative sums of the counts, with a 0 in front.
        filled: For each bin, how many bins before it are not empty.
        starts: The first bin of each candidate range.
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
    """Give ``_SMOOTHING`` to empty bins and divide each row by its sum; overwrites ``counts``.

    A row is the histogram of one candidate range. Only the first ``sizes`` bins of a row belong to the range.
    """
    empty = counts == 0
    filled = counts.shape[1] - np.count_nonzero(empty, axis=1)
    counts -= (_SMOOTHING * (sizes - filled) / np.maximum(filled, 1)).astype(np.float32)[:, None]
    counts[empty] = _SMOOTHING
    counts /= _row_sums(counts, sizes)[:, None]
    return counts


def _row_sums(rows: NDArray[np.float32], sizes: NDArray[np.int64]) -> NDArray[np.float32]:
    """The sum of the first ``sizes`` elements of each row.

    The zeros after these elements must not be added, because the rounding of a float32 sum depends on the
    number of addends.
    """
    return np.array([row[:size].sum() for row, size in zip(rows, sizes, strict=True)])


def _tails(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each index, the sum of the elements from the index to the end, shape [size + 1]."""
    return np.concatenate([np.cumsum(values[::-1])[::-1], [0.0]])


def folded(counts: Histogram) -> Histogram:
    """The histogram of |x| over [0, amax], from the histogram ``counts`` of x over [-amax, amax]."""
    half = counts.size // 2
    return np.asarray(counts[half:] + counts[:half][::-1])
