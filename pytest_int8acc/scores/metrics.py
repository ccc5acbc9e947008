"""The metrics that compare one output of two runs, and their registry: sums of samples in, one number out.

Below, b is an element of the baseline, c the same element of the candidate; sums run over all elements of all
samples unless a docstring says otherwise. Elements that are the same NaN or infinity in both are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from pytest_int8acc.results import Bound
from pytest_int8acc.scores.measures import (
    DIVERGENCE,
    ERRORS,
    RELATIVE,
    SQUARES,
    TOP1,
    TOP5,
    UNEQUAL,
    Measure,
)
from pytest_int8acc.scores.sums import F64, sums_of
from pytest_int8acc.scores.tolerance import TOLERANCE, tolerance


def cosine(rows: F64) -> float:
    """Sum(b c) / (|b| |c|), in [-1, 1]: 1 is the same direction, whatever the length.

    All samples are taken as one vector, so large samples weigh more. Two zero vectors give 1, one of them 0,
    as in Polygraphy's CosineSimilarityCompareFunc. Blind to a common factor: use it with ``sqnr_db``.
    """
    s = sums_of(rows)
    if s.ee == 0:
        return 1.0
    if s.bb == 0 or s.cc == 0:
        return 0.0
    return float(np.clip((s.bb + s.be) / (math.sqrt(s.bb) * math.sqrt(s.cc)), -1.0, 1.0))


def sqnr_db(rows: F64) -> float:
    """10 log10(sum b^2 / sum (b - c)^2), in dB: signal to quantization noise ratio.

    inf where nothing differs; -inf where the baseline is all zero and the candidate is not. The formula of
    ONNX Runtime's qdq_loss_debug and of Polygraphy's SnrCompareFunc.
    """
    s = sums_of(rows)
    return _decibels(s.bb, s.ee)


def psnr_db(rows: F64) -> float:
    """10 log10(peak^2 / mean (b - c)^2), in dB, with peak = max |b|: peak signal to noise ratio.

    inf where nothing differs; -inf where the baseline is all zero and the candidate is not. Polygraphy's
    PsnrCompareFunc takes max b for the peak, which fails where values are mostly negative.
    """
    s = sums_of(rows)
    return _decibels(s.peak**2 * s.elements, s.ee)


def max_abs(rows: F64) -> float:
    """Max |b - c|, in the output's own unit; nan without elements."""
    s = sums_of(rows)
    return s.max_error if s.elements else math.nan


def mean_abs(rows: F64) -> float:
    """Mean |b - c|, in the output's own unit; nan without elements."""
    s = sums_of(rows)
    return s.absolute / s.elements if s.elements else math.nan


def mse(rows: F64) -> float:
    """Mean (b - c)^2, in the square of the output's own unit: mean squared error; nan without elements."""
    s = sums_of(rows)
    return s.ee / s.elements if s.elements else math.nan


def max_rel(rows: F64) -> float:
    """Max of |b - c| / max(|b|, floor), a ratio; the floor is ``rel_floor`` (1e-3) of max |b|.

    inf where the floor and b are 0 and c is not; nan without elements.
    """
    greatest, _, count = RELATIVE.pool(rows)
    return float(greatest) if count else math.nan


def mean_rel(rows: F64) -> float:
    """Mean of |b - c| / max(|b|, floor), a ratio; the floor is that of ``max_rel``; nan without elements."""
    _, total, count = RELATIVE.pool(rows)
    return float(total / count) if count else math.nan


def kl(rows: F64) -> float:
    """Mean over rows of KL(softmax(b) || softmax(c)) along the class axis, in nats; 0 is the same.

    Made for logits: of probabilities it takes the softmax again and comes out too small. Kullback and Leibler
    (1951), as in ``torch.nn.KLDivLoss(reduction="batchmean")`` for 2-D outputs. nan where no row of the
    baseline has a finite maximum.
    """
    total, count, _ = DIVERGENCE.pool(rows)
    # A nan must stay one, so no plain max().
    return float(np.maximum(total / count, 0.0)) if count else math.nan


def top1_agreement(rows: F64) -> float:
    """Share of rows in which baseline and candidate have the same greatest class, 0 to 1.

    A tie that the candidate alone has is no agreement. A row with NaN or +inf in the candidate disagrees.
    """
    return _share(rows)


def top5_agreement(rows: F64) -> float:
    """Share of rows in which the baseline's greatest class is among the candidate's five greatest, 0 to 1.

    This is top-5 accuracy with the baseline's answer as the label. Classes that tie with it in the candidate
    alone come before it. A row with NaN or +inf in the candidate disagrees.
    """
    return _share(rows)


def agreement(rows: F64) -> float:
    """Share of elements with exactly the same value, 0 to 1; nan without elements."""
    differ, count = UNEQUAL.pool(rows)
    return float((count - differ) / count) if count else math.nan


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    if signal == 0:
        return -math.inf
    return 10.0 * (math.log10(signal) - math.log10(noise))


def _share(rows: F64) -> float:
    found, count = TOP1.pool(rows)[:2]
    return float(found / count) if count else math.nan


@dataclass(frozen=True)
class Metric:
    """A metric by name, and what it needs to know of an output."""

    name: str
    function: Callable[[F64], float]
    """Of the rows that ``measure`` makes, of any samples."""
    measure: Measure
    bound: Bound
    """Whether a limit on it is the least or the greatest value accepted."""
    doc: str
    """One line for users, with the unit."""
    kinds: tuple[str, ...]
    """What the output may hold: floats, integers, booleans, strings."""
    min_classes: int = 0
    """Least size of the class axis with which it can be anything but perfect; 0: needs no class axis."""
    squares: bool = False
    """Whether it is made of squares of the values (see ``SQUARED``)."""

    spared: float | None = None
    """The share of samples that may miss a limit, each judged by itself; None: all are judged together."""

    def __call__(self, rows: F64) -> float:
        """The metric of samples, from a row of ``measure`` for each; nan where it cannot be computed."""
        if self.spared is not None:
            return self.worst_but_spared(self.each(rows))
        with np.errstate(all="ignore"):  # inf and nan are answers here
            return float(self.function(rows))

    def each(self, rows: F64) -> F64:
        """The metric of each sample by itself, [samples]."""
        with np.errstate(all="ignore"):
            return np.array([self.function(row[None]) for row in rows], np.float64)

    def worst_but_spared(self, values: F64) -> float:
        """The value of the worst sample that is not spared; nan, which is worst of all, where that is one.

        Args:
            values: Of each sample by itself, [samples].
        """
        sign = 1.0 if self.bound == "min" else -1.0
        ranked = np.sort(np.where(np.isnan(values), -np.inf, sign * values))
        value = float(ranked[int((self.spared or 0.0) * len(ranked))])
        return math.nan if value == -math.inf and np.isnan(values).any() else sign * value


_FLOATS = ("floats",)
_NUMBERS = ("floats", "integers")
_EXACT = ("integers", "booleans", "strings")

#: What the name of a metric begins with where each sample is judged by itself.
PER_SAMPLE = "per_sample_"


#: Every metric that a criterion may name.
METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "cosine",
            cosine,
            SQUARES,
            "min",
            "cosine similarity over all elements, -1 to 1",
            _NUMBERS,
            squares=True,
        ),
        Metric(
            "sqnr_db",
            sqnr_db,
            SQUARES,
            "min",
            "signal to quantization noise ratio, dB",
            _NUMBERS,
            squares=True,
        ),
        Metric(
            "psnr_db",
            psnr_db,
            ERRORS,
            "min",
            "peak signal to noise ratio, peak = max |baseline|, dB",
            _NUMBERS,
            squares=True,
        ),
        Metric("max_abs", max_abs, ERRORS, "max", "greatest absolute error", _NUMBERS),
        Metric("mean_abs", mean_abs, ERRORS, "max", "mean absolute error", _NUMBERS),
        Metric("mse", mse, SQUARES, "max", "mean squared error", _NUMBERS, squares=True),
        Metric("max_rel", max_rel, RELATIVE, "max", "greatest relative error, with a floor", _NUMBERS),
        Metric("mean_rel", mean_rel, RELATIVE, "max", "mean relative error, with a floor", _NUMBERS),
        Metric(
            "kl",
            kl,
            DIVERGENCE,
            "max",
            "mean KL divergence of the softmax along the class axis, nats",
            _FLOATS,
            2,
        ),
        Metric(
            "top1_agreement", top1_agreement, TOP1, "min", "share of rows with the same top class", _FLOATS, 2
        ),
        Metric(
            "top5_agreement",
            top5_agreement,
            TOP5,
            "min",
            "share of rows with the baseline's top class in the candidate's top 5",
            _FLOATS,
            6,
        ),
        Metric("tolerance", tolerance, TOLERANCE, "max", "share of Polygraphy's tolerance used", _NUMBERS),
        Metric("agreement", agreement, UNEQUAL, "min", "share of elements that are equal", _EXACT),
    )
}


def per_sample(metric: Metric, spared: float) -> Metric:
    """The same metric of each sample by itself: the value of the worst one that is not spared."""
    return replace(metric, name=PER_SAMPLE + metric.name, spared=spared)
