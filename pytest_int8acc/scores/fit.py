"""How INT8 lies against the baseline: the straight line between them, and the sample that is worst off."""

from __future__ import annotations

import math

import numpy as np

from pytest_int8acc.results.scores import LineFit, Meaning
from pytest_int8acc.scores.pairs import Pair, dot

#: Below this correlation a line says nothing.
_MIN_CORRELATION = 0.8
#: A slope off by this much, or a shift of this share of the standard deviation, costs 20 dB SQNR on its own.
_FAR = 0.1
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
    if var_c <= _ROUNDING * pair.sums.cc:
        return LineFit(0.0, mean_c, 0.0, ("constant",))
    slope = cov / var_b
    offset = mean_c - slope * mean_b
    correlation = float(np.clip(cov / math.sqrt(var_b) / math.sqrt(var_c), -1, 1))
    shift, deviation = mean_c - mean_b, math.sqrt(var_b / n)
    meanings = (
        _meanings(slope, offset / deviation, shift / deviation) if correlation > _MIN_CORRELATION else ()
    )
    return LineFit(slope, offset, correlation, meanings, shift, deviation)


def _meanings(slope: float, offset: float, shift: float) -> tuple[Meaning, ...]:
    """What a line means, with offset and shift in standard deviations of the baseline."""
    found: tuple[Meaning, ...] = ("small",) if slope < 1 - _FAR else ("large",) if slope > 1 + _FAR else ()
    # Far from 0, a slope of 0.99 alone moves the offset; only a shift of the mean as well is a shift.
    return (*found, "shifted") if min(abs(offset), abs(shift)) > _FAR else found


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
