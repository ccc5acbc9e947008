"""The metrics that compare an output of two runs: one record each, in one register.

Below, b is an element of the baseline, c the same element of the candidate; sums run over all elements of all
samples unless a docstring says otherwise. Elements that are the same NaN or infinity in both are left out.

To add a metric, write a function that makes its value of rows, add a record to ``METRICS``, and its name to
``spec.criteria.OutputCriterion``. Where no measure of ``measures`` or no share of ``shares`` fits, write one.
The reference and the JSON Schema are made from the code. Reports show a friendlier name where
``report.catalogue`` has one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from pytest_int8acc.results import Bound, Score
from pytest_int8acc.scores.measures import (
    DIVERGENCE,
    ERRORS,
    RELATIVE,
    SQUARES,
    TOP1,
    TOP5,
    UNEQUAL,
    Measure,
    Options,
)
from pytest_int8acc.scores.shares import (
    AbsoluteGreatest,
    AbsoluteMean,
    Angle,
    Decibels,
    Differing,
    Divergence,
    Flips,
    Flips5,
    MeanSquare,
    PeakDecibels,
    RelativeGreatest,
    RelativeMean,
    Share,
    Tolerated,
    Whole,
)
from pytest_int8acc.scores.sums import F64, sums_of
from pytest_int8acc.scores.tolerance import TOLERANCE, tolerance
from pytest_int8acc.tensors import Array


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


@dataclass(frozen=True, kw_only=True)
class Metric:
    """All that is known of one metric."""

    name: str
    """As in a spec."""
    bound: Bound
    """Whether a limit is the least (``min``) or the greatest (``max``) value accepted."""
    kinds: tuple[str, ...]
    """What outputs may hold: floats, integers, booleans, strings."""
    measure: Measure
    """Makes the rows, one for each sample."""
    value: Callable[[F64], float]
    """Makes the metric's value of the rows of any samples, [samples, columns]."""
    share: type[Share]
    """What each sample uses up of a limit, for a search."""
    min_classes: int = 0
    """Least size of the class axis with which the metric can be anything but perfect; 0: needs no class
    axis."""
    squares: bool = False
    """Whether it is made of squares of the values (see ``sums.SQUARED``)."""
    spared: float | None = None
    """The ratio of samples that may miss a limit, each judged by itself; None: all are judged together."""

    def __call__(self, rows: F64) -> float:
        """The value of samples, from a row for each; nan where it cannot be computed."""
        if self.spared is not None:
            return self.worst_but_spared(self.each(rows))
        with np.errstate(all="ignore"):  # inf and nan are answers here
            return float(self.value(rows))

    def each(self, rows: F64) -> F64:
        """The value of each sample by itself, [samples]."""
        with np.errstate(all="ignore"):
            return np.array([self.value(row[None]) for row in rows], np.float64)

    def worst_but_spared(self, values: F64) -> float:
        """The value of the worst sample after those that are spared; nan counts as the worst of all.

        Args:
            values: Of each sample by itself, [samples].
        """
        sign = 1.0 if self.bound == "min" else -1.0
        ranked = np.sort(np.where(np.isnan(values), -np.inf, sign * values))
        value = float(ranked[int((self.spared or 0.0) * len(ranked))])
        return math.nan if value == -math.inf and np.isnan(values).any() else sign * value

    def share_of(self, limit: float, options: Options, whole: Whole) -> Share:
        """What samples use up of a limit on this metric.

        Args:
            limit: The limit.
            options: Those of the criterion.
            whole: The baseline in all samples, with rows of ``measure``.
        """
        share = self.share(limit, options, whole)
        return share if self.spared is None else _EachSample(self, share, limit, options, whole)


class _EachSample(Share):
    """What a sample uses up of a limit that each must keep by itself, but for those that are spared."""

    pool = "rank"

    def __init__(self, metric: Metric, together: Share, limit: float, options: Options, whole: Whole) -> None:
        self._metric, self._together, self.power = metric, together, together.power
        super().__init__(limit, options, whole)

    def _budget(self, whole: Whole) -> float:
        return 1.0

    def _allowed(self, whole: Whole) -> int:
        return int((self._metric.spared or 0.0) * whole.samples)

    def _used(self, rows: F64) -> F64:
        name, bound = self._metric.name, self._metric.bound
        values = self._metric.each(rows).tolist()
        return np.array([Score("", name, v, self.limit, bound).normalized_loss for v in values], np.float64)

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        return self._together._vectors(b, c, samples)


_FLOATS = ("floats",)
_NUMBERS = ("floats", "integers")
_EXACT = ("integers", "booleans", "strings")

#: What the name of a metric begins with where each sample is judged by itself.
PER_SAMPLE = "per_sample_"

#: Every metric that a criterion on an output may name.
METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            name="cosine",
            bound="min",
            kinds=_NUMBERS,
            measure=SQUARES,
            value=cosine,
            share=Angle,
            squares=True,
        ),
        Metric(
            name="sqnr_db",
            bound="min",
            kinds=_NUMBERS,
            measure=SQUARES,
            value=sqnr_db,
            share=Decibels,
            squares=True,
        ),
        Metric(
            name="psnr_db",
            bound="min",
            kinds=_NUMBERS,
            measure=ERRORS,
            value=psnr_db,
            share=PeakDecibels,
            squares=True,
        ),
        Metric(
            name="max_abs",
            bound="max",
            kinds=_NUMBERS,
            measure=ERRORS,
            value=max_abs,
            share=AbsoluteGreatest,
        ),
        Metric(
            name="mean_abs",
            bound="max",
            kinds=_NUMBERS,
            measure=ERRORS,
            value=mean_abs,
            share=AbsoluteMean,
        ),
        Metric(
            name="mse",
            bound="max",
            kinds=_NUMBERS,
            measure=SQUARES,
            value=mse,
            share=MeanSquare,
            squares=True,
        ),
        Metric(
            name="max_rel",
            bound="max",
            kinds=_NUMBERS,
            measure=RELATIVE,
            value=max_rel,
            share=RelativeGreatest,
        ),
        Metric(
            name="mean_rel",
            bound="max",
            kinds=_NUMBERS,
            measure=RELATIVE,
            value=mean_rel,
            share=RelativeMean,
        ),
        Metric(
            name="kl",
            bound="max",
            kinds=_FLOATS,
            measure=DIVERGENCE,
            value=kl,
            share=Divergence,
            min_classes=2,
        ),
        Metric(
            name="top1_agreement",
            bound="min",
            kinds=_FLOATS,
            measure=TOP1,
            value=top1_agreement,
            share=Flips,
            min_classes=2,
        ),
        Metric(
            name="top5_agreement",
            bound="min",
            kinds=_FLOATS,
            measure=TOP5,
            value=top5_agreement,
            share=Flips5,
            min_classes=6,
        ),
        Metric(
            name="tolerance",
            bound="max",
            kinds=_NUMBERS,
            measure=TOLERANCE,
            value=tolerance,
            share=Tolerated,
        ),
        Metric(
            name="agreement",
            bound="min",
            kinds=_EXACT,
            measure=UNEQUAL,
            value=agreement,
            share=Differing,
        ),
    )
}


def per_sample(metric: Metric, spared: float) -> Metric:
    """Returns the same metric of each sample by itself: the value of the worst one that is not spared."""
    return replace(metric, name=PER_SAMPLE + metric.name, spared=spared)
