"""How INT8 lies against the baseline: the straight line between them, and the sample that is worst off."""

from __future__ import annotations

import math

import numpy as np

from pytest_int8acc.results import LineFit
from pytest_int8acc.scores.pairs import Pair, dot

#: Below this correlation a line says nothing, and no suggestion is drawn from it.
MIN_CORRELATION = 0.8
#: A slope off by this much, or a shift of this share of the standard deviation, costs 20 dB SQNR on its own.
FAR = 0.1
#: A variance of this share of the mean square is rounding: the values are all the same.
_ROUNDING = 1e-24


def fit_line(pair: Pair) -> LineFit | None:
    """Least squares of candidate = slope * baseline + offset over all elements; None for a constant baseline.

    Means and moments of the batches are merged as in Chan, Golub and LeVeque (1979), so that a large common
    value does not swallow the differences. The correlation is Pearson's, 0 for a constant candidate.
    """
    n, mean_b, mean_c, var_b, var_c, cov = 0, 0.0, 0.0, 0.0, 0.0, 0.0
    for b, c in pair.values():
        if not b.size:
            continue
        batch_b, batch_c = float(b.mean()), float(c.mean())
        d_b, d_c = batch_b - mean_b, batch_c - mean_c
        b, c = b - batch_b, c - batch_c
        weight = n * b.size / (n + b.size)
        var_b += dot(b, b) + d_b * d_b * weight
        var_c += dot(c, c) + d_c * d_c * weight
        cov += dot(b, c) + d_b * d_c * weight
        n += b.size
        mean_b += d_b * b.size / n
        mean_c += d_c * b.size / n
    if var_b <= _ROUNDING * pair.sums.bb:
        return None
    constant = var_c <= _ROUNDING * pair.sums.cc
    slope = cov / var_b
    offset = mean_c - slope * mean_b
    correlation = 0.0 if constant else float(np.clip(cov / math.sqrt(var_b) / math.sqrt(var_c), -1, 1))
    note = _suggestion(slope, offset, mean_c - mean_b, math.sqrt(var_b / n), correlation)
    if constant:
        note = (
            f"INT8 is {mean_c:.4g} everywhere while the baseline varies: a tensor on the way to this output "
            f"is quantized to a single value, its scale is far too wide or it is cut off entirely"
        )
    return LineFit(slope, offset, correlation, note)


def _suggestion(slope: float, offset: float, shift: float, deviation: float, correlation: float) -> str:
    if correlation <= MIN_CORRELATION:
        return ""
    parts = []
    if slope < 1 - FAR:
        parts.append(
            f"INT8 values are {slope:.3g} of the baseline's throughout: a scale is wrong for all samples, "
            f"either a dynamic range too narrow, which cuts values off, or one far too wide, which rounds "
            f"small values to 0"
        )
    elif slope > 1 + FAR:
        parts.append(
            f"INT8 values are {slope:.3g} times the baseline's throughout: a scale is wrong for all samples, "
            f"look for a dynamic range far from what its tensor holds"
        )
    # Far from 0, a slope of 0.99 alone moves the offset; only a shift of the mean as well is a shift.
    if abs(offset) > FAR * deviation and abs(shift) > FAR * deviation:
        parts.append(
            f"INT8 values are shifted by {shift:.3g} on average ({abs(shift) / deviation:.2g} of the "
            f"baseline's standard deviation): values cut off on one side only, or a wrong bias or zero point"
        )
    return "; ".join(parts)


def worst_sample(pair: Pair) -> int | None:
    """Index of the sample with the lowest SQNR, counted over all batches; None where no sample differs."""
    worst: int | None = None
    lowest, seen = math.inf, 0
    for b, c in pair.samples():
        if b.size:
            signal, noise = (np.einsum("ij,ij->i", x, x) for x in (b, b - c))
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.where(noise == 0, math.inf, signal / noise)
            index = int(ratio.argmin())
            if ratio[index] < lowest:
                lowest, worst = float(ratio[index]), seen + index
        seen += len(b)
    return worst
