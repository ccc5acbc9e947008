"""The metrics that compare one output of two runs, and the registry that names them.

Below, b is an element of the baseline, c the same element of the candidate; sums run over all elements of all
samples unless a docstring says otherwise. Elements that are the same NaN or infinity in both are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pytest_int8acc.results import Bound
from pytest_int8acc.scores.pairs import F64, Pair


def cosine(pair: Pair) -> float:
    """Sum(b c) / (|b| |c|), in [-1, 1]: 1 is the same direction, whatever the length.

    All samples are taken as one vector, so large samples weigh more. Two zero vectors give 1, one of them 0,
    as in Polygraphy's CosineSimilarityCompareFunc. Blind to a common factor: use it with ``sqnr_db``.
    """
    s = pair.sums
    if s.squared == 0:
        return 1.0
    if s.bb == 0 or s.cc == 0:
        return 0.0
    return float(np.clip(s.bc / (math.sqrt(s.bb) * math.sqrt(s.cc)), -1.0, 1.0))


def sqnr_db(pair: Pair) -> float:
    """10 log10(sum b^2 / sum (b - c)^2), in dB: signal to quantization noise ratio.

    inf where nothing differs; -inf where the baseline is all zero and the candidate is not. The formula of
    ONNX Runtime's qdq_loss_debug and of Polygraphy's SnrCompareFunc.
    """
    return _decibels(pair.sums.bb, pair.sums.squared)


def psnr_db(pair: Pair) -> float:
    """10 log10(peak^2 / mean (b - c)^2), in dB, with peak = max |b|: peak signal to noise ratio.

    inf where nothing differs; -inf where the baseline is all zero and the candidate is not. Polygraphy's
    PsnrCompareFunc takes max b for the peak, which fails where values are mostly negative.
    """
    s = pair.sums
    return _decibels(s.peak**2 * s.count, s.squared)


def max_abs(pair: Pair) -> float:
    """Max |b - c|, in the output's own unit; nan without elements."""
    return pair.sums.max_error if pair.sums.count else math.nan


def mean_abs(pair: Pair) -> float:
    """Mean |b - c|, in the output's own unit; nan without elements."""
    return pair.sums.absolute / pair.sums.count if pair.sums.count else math.nan


def max_rel(pair: Pair) -> float:
    """Max of |b - c| / max(|b|, floor), a ratio; the floor is ``rel_floor`` (1e-3) of max |b|.

    inf where the floor and b are 0 and c is not; nan without elements.
    """
    greatest = 0.0 if pair.sums.count else math.nan
    floor = pair.rel_floor * pair.sums.peak
    for b, c in pair.values():
        if b.size:
            greatest = float(np.maximum(greatest, _relative(b, c, floor).max()))
    return greatest


def mean_rel(pair: Pair) -> float:
    """Mean of |b - c| / max(|b|, floor), a ratio; the floor is that of ``max_rel``; nan without elements."""
    if not pair.sums.count:
        return math.nan
    floor = pair.rel_floor * pair.sums.peak
    return sum(float(_relative(b, c, floor).sum()) for b, c in pair.values()) / pair.sums.count


def kl(pair: Pair) -> float:
    """Mean over rows of KL(softmax(b) || softmax(c)) along the class axis, in nats; 0 is the same.

    Made for logits: of probabilities it takes the softmax again and comes out too small. Kullback and Leibler
    (1951), as in ``torch.nn.KLDivLoss(reduction="batchmean")`` for 2-D outputs. nan where no row of the
    baseline has a finite maximum.
    """
    total, rows = 0.0, 0
    for b, c in pair.rows():
        log_b, log_c = log_softmax(b), log_softmax(c)
        terms = np.exp(log_b) * (log_b - log_c)
        total += float(np.where(np.isneginf(log_b), 0.0, terms).sum())
        rows += len(b)
    # A nan must stay one, so no plain max().
    return float(np.maximum(total / rows, 0.0)) if rows else math.nan


def top1_agreement(pair: Pair) -> float:
    """Share of rows in which baseline and candidate have the same greatest class, 0 to 1.

    Of equal values the lower index comes first, as in ONNX ArgMax. A row with NaN or +inf in the candidate
    disagrees.
    """
    return _topk(pair, 1)


def top5_agreement(pair: Pair) -> float:
    """Share of rows in which the baseline's greatest class is among the candidate's five greatest, 0 to 1.

    This is top-5 accuracy with the baseline's answer as the label. Of equal values the lower index comes
    first, as in ONNX TopK. A row with NaN or +inf in the candidate disagrees.
    """
    return _topk(pair, 5)


def agreement(pair: Pair) -> float:
    """Share of elements with exactly the same value, 0 to 1; nan without elements."""
    equal = count = 0
    for b, c in zip(pair.baseline, pair.candidate, strict=True):
        equal += int(np.count_nonzero(b == c))
        count += b.size
    return equal / count if count else math.nan


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    if signal == 0:
        return -math.inf
    return 10.0 * (math.log10(signal) - math.log10(noise))


def _relative(b: F64, c: F64, floor: float) -> F64:
    error = np.abs(b - c)
    return np.where(error == 0, 0.0, error / np.maximum(np.abs(b), floor))


def log_softmax(rows: F64) -> F64:
    """The logarithms of the probabilities that each row of logits stands for."""
    shifted = rows - rows.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _topk(pair: Pair, k: int) -> float:
    agreeing = rows = 0
    for b, c in pair.rows():
        top = b.argmax(axis=-1)[:, None]
        own = np.take_along_axis(c, top, axis=-1)
        before = (c > own) | ((c == own) & (np.arange(c.shape[-1]) < top))
        ranked = np.count_nonzero(before, axis=-1) < k
        agreeing += int(np.count_nonzero(ranked & np.isfinite(c.max(axis=-1))))
        rows += len(b)
    return agreeing / rows if rows else math.nan


@dataclass(frozen=True)
class Metric:
    """A metric by name, and what it needs to know of an output."""

    name: str
    function: Callable[[Pair], float]
    bound: Bound
    """Whether a limit on it is the least or the greatest value accepted."""
    doc: str
    """One line for users, with the unit."""
    kinds: tuple[str, ...]
    """What the output may hold: floats, integers, booleans, strings."""
    min_classes: int = 0
    """Least size of the class axis with which it can be anything but perfect; 0: needs no class axis."""

    def __call__(self, pair: Pair) -> float:
        """The metric of ``pair``; nan where it cannot be computed."""
        with np.errstate(all="ignore"):  # inf and nan are answers here
            return float(self.function(pair))


_FLOATS = ("floats",)
_NUMBERS = ("floats", "integers")
_EXACT = ("integers", "booleans", "strings")

#: Every metric that a criterion may name.
METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("cosine", cosine, "min", "cosine similarity over all elements, -1 to 1", _NUMBERS),
        Metric("sqnr_db", sqnr_db, "min", "signal to quantization noise ratio, dB", _NUMBERS),
        Metric("psnr_db", psnr_db, "min", "peak signal to noise ratio, peak = max |baseline|, dB", _NUMBERS),
        Metric("max_abs", max_abs, "max", "greatest absolute error", _NUMBERS),
        Metric("mean_abs", mean_abs, "max", "mean absolute error", _NUMBERS),
        Metric("max_rel", max_rel, "max", "greatest relative error, with a floor", _NUMBERS),
        Metric("mean_rel", mean_rel, "max", "mean relative error, with a floor", _NUMBERS),
        Metric("kl", kl, "max", "mean KL divergence of the softmax along the class axis, nats", _FLOATS, 2),
        Metric("top1_agreement", top1_agreement, "min", "share of rows with the same top class", _FLOATS, 2),
        Metric(
            "top5_agreement",
            top5_agreement,
            "min",
            "share of rows with the baseline's top class in the candidate's top 5",
            _FLOATS,
            6,
        ),
        Metric("agreement", agreement, "min", "share of elements that are equal", _EXACT),
    )
}
