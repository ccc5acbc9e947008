"""The register of the metrics that compare an output of two models: one record for each metric.

To add a metric, write a function that computes its value from a row, and a record in ``METRICS``. Add a field
of the same name to ``spec.criteria.OutputCriterion``. Then run ``python -m pytest_int8acc.spec.schema`` and
``python docs/make_reference.py``, and add a label to ``report.catalogue``. If no ``Measure`` in ``rows.py``
or no ``Share`` in ``shares.py`` fits, write one. Goldens, the reference and the tests read the register.

In the docstrings, b is an element of the float baseline, and c is the same element of the low-precision
candidate. Sums run over all elements of all samples. An element is left out if both models hold the same NaN
or infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from pytest_int8acc.results import Bound, Score
from pytest_int8acc.scores.rows import (
    AT,
    COUNTED,
    DIVERGENCE,
    ERRORS,
    F64,
    RELATIVE,
    TOP1,
    TOP5,
    UNEQUAL,
    Measure,
    Options,
)
from pytest_int8acc.scores.shares import (
    TINY,
    AbsoluteError,
    Angle,
    Decibels,
    Differing,
    Divergence,
    Flips,
    Flips5,
    GreatestAbsoluteError,
    GreatestRelativeError,
    MeanSquare,
    PeakDecibels,
    RelativeError,
    Share,
    Whole,
    flat,
)
from pytest_int8acc.scores.tolerance import TOLERANCE, Tolerated, is_of_worst, tolerance
from pytest_int8acc.tensors import Array


def cosine(row: F64) -> float:
    """Sum(b c) / (|b| |c|), in [-1, 1]: 1 is the same direction, whatever the length.

    All samples are taken as one vector, so large samples weigh more. The value is 1 if both vectors are zero,
    and 0 if only one is zero, as in Polygraphy's CosineSimilarityCompareFunc. A factor that all values have
    in common does not change the cosine, so use it together with ``sqnr_db``.
    """
    bb, cc, be, ee = (float(row[AT[field]]) for field in ("bb", "cc", "be", "ee"))
    if ee == 0:
        return 1.0
    if bb == 0 or cc == 0:
        return 0.0
    return min(max((bb + be) / (math.sqrt(bb) * math.sqrt(cc)), -1.0), 1.0)


def sqnr_db(row: F64) -> float:
    """10 log10(sum b^2 / sum (b - c)^2), in dB: signal to quantization noise ratio.

    The value is inf if nothing differs, and -inf if the baseline is all zero and the candidate is not. ONNX
    Runtime's qdq_loss_debug and Polygraphy's SnrCompareFunc use the same formula.
    """
    return _decibels(row[AT["bb"]], row[AT["ee"]])


def psnr_db(row: F64) -> float:
    """10 log10(peak^2 / mean (b - c)^2), in dB, with peak = max |b|: peak signal to noise ratio.

    The value is inf if nothing differs, and -inf if the baseline is all zero and the candidate is not.
    Polygraphy's PsnrCompareFunc uses max b as the peak, which fails if values are mostly negative.
    """
    return _decibels(row[AT["peak"]] ** 2 * row[AT["elements"]], row[AT["ee"]])


def max_abs(row: F64) -> float:
    """Max |b - c|, in the output's own unit; nan without elements."""
    return float(row[AT["max_error"]]) if row[AT["elements"]] else math.nan


def mean_abs(row: F64) -> float:
    """Mean |b - c|, in the output's own unit; nan without elements."""
    return float(row[AT["absolute"]] / row[AT["elements"]])


def mse(row: F64) -> float:
    """Mean (b - c)^2, in the square of the output's own unit: mean squared error; nan without elements."""
    return float(row[AT["ee"]] / row[AT["elements"]])


def max_rel(row: F64) -> float:
    """Max of |b - c| / max(|b|, floor), a ratio; the floor is ``rel_floor`` (1e-3) of max |b|.

    inf if the floor is 0 and an element is 0 in b, but not in c; nan without elements.
    """
    return float(row[0]) if row[RELATIVE.counted] else math.nan


def mean_rel(row: F64) -> float:
    """Mean of |b - c| / max(|b|, floor), a ratio; the floor is that of ``max_rel``; nan without elements."""
    return float(row[1] / row[RELATIVE.counted])


def kl(row: F64) -> float:
    """Mean over class rows of KL(softmax(b) || softmax(c)) along the class axis, in nats; 0 is the same.

    A class row is one vector of class scores. The metric is made for logits. For probabilities its value is
    too small, because it takes their softmax again. The definition is that of Kullback and Leibler (1951), as
    in ``torch.nn.KLDivLoss(reduction="batchmean")`` for 2-D outputs. The value is nan if no class row of the
    baseline has a finite maximum.
    """
    # nan must stay nan, which Python's max() does not guarantee
    return float(np.maximum(row[0] / row[COUNTED], 0.0))


def top1_agreement(row: F64) -> float:
    """Share of class rows in which baseline and candidate have the same greatest class, 0 to 1.

    A class row is one vector of class scores. A class row disagrees if further classes tie with the greatest
    class in the candidate alone, or if the candidate's class row holds NaN or +inf.
    """
    return float(row[0] / row[COUNTED])


def top5_agreement(row: F64) -> float:
    """Share of class rows in which the baseline's greatest class is among the candidate's top five, 0 to 1.

    A class row is one vector of class scores. This is top-5 accuracy with the baseline's answer as the label.
    Classes that tie with the label in the candidate alone rank above the label. A class row with NaN or +inf
    in the candidate disagrees.
    """
    return float(row[0] / row[COUNTED])


def agreement(row: F64) -> float:
    """Share of elements with exactly the same value, 0 to 1; nan without elements."""
    return float((row[COUNTED] - row[0]) / row[COUNTED])


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    if signal == 0:
        return -math.inf
    return 10.0 * (math.log10(signal) - math.log10(noise))


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric that compares outputs of baseline and candidate: its name, properties and functions."""

    name: str
    """The metric's name in a spec. It ends with ``_db`` if the value is a ratio of powers in decibels."""
    bound: Bound
    """Whether a limit is the minimum of the accepted values (``min``) or their maximum (``max``).

    For ``min`` a greater value is better. Equal outputs have the best value: inf for decibels, otherwise 1
    for ``min`` and 0 for ``max``.
    """
    kinds: tuple[str, ...]
    """The kinds of elements that an output may hold: floats, integers, booleans, strings."""
    shown_for: tuple[str, ...]
    """The kinds of elements for which a report shows the value even without a limit."""
    min_classes: int
    """The minimum number of classes. With fewer classes the value would always be perfect. 0 if the metric
    does not compare classes."""
    squares: bool
    """Whether the value is computed from squares of the elements. Then it cannot be computed if the values of
    an output are too small or too large to be squared (``rows.SQUARED``)."""
    fits_channels: bool
    """Whether a limit on a whole output also applies to its small channels alone. These have far smaller
    values and may have another unit, so the metric must be a ratio to the energy of the baseline."""
    measure: Measure
    """Computes a row of numbers for each sample, from which ``value`` computes the metric, and says what the
    columns mean."""
    value: Callable[[F64], float]
    """Computes the metric's value from one row of numbers, which stands for one sample or for several; nan if
    the value cannot be computed."""
    share: Callable[[float, Options, Whole], Share]
    """Creates an object that computes which share of a limit each sample uses up. The search for a fix needs
    these shares. The arguments are the limit, the criterion's options, and sums of the baseline."""
    spared: float | None = None
    """If each sample is judged by itself: the ratio of samples that may miss a limit, 0 to 1. None if all
    samples are judged together."""

    def __call__(self, rows: F64) -> float:
        """Returns the value over several samples; nan if it cannot be computed.

        Args:
            rows: The rows of the metric's measure, one for each sample, [samples, columns].
        """
        if self.spared is not None:
            return self.worst_but_spared(self.each(rows))
        return self.of_row(self.measure.pool(rows))

    def takes_worst(self, rows: F64) -> bool:
        """Whether the value over several samples equals that of the worst sample, as for a greatest error.

        Args:
            rows: The rows of the metric's measure, [samples, columns]; at least one row. For the metric
                ``tolerance``, the first row holds the check, which decides.
        """
        if self.measure is TOLERANCE:
            return is_of_worst(rows[0])
        return self.name in ("max_abs", "max_rel")

    def of_row(self, row: F64) -> float:
        """Returns the metric's value for the one or several samples that ``row`` stands for.

        ``row`` is a row of the metric's measure, [columns]. The result is nan if it cannot be computed.
        """
        with np.errstate(all="ignore"):  # inf and nan are valid results here
            return self.value(row)

    def each(self, rows: F64) -> F64:
        """Returns the value of each sample by itself. Samples that have nothing to compare are left out.

        ``rows`` are the rows of the metric's measure, [samples, columns].
        """
        return self.of_rows(rows[self.measure.compared(rows)])

    def of_rows(self, rows: F64) -> F64:
        """Returns the metric's value for each row by itself, [rows]; nan where it cannot be computed."""
        with np.errstate(all="ignore"):  # inf and nan are valid results here
            return np.array([self.value(row) for row in rows], np.float64)

    def losses(self, values: F64) -> F64:
        """Returns the loss of each value of the metric: its distance from the best value, at least 0.

        For a value in decibels, the loss is the ratio of noise power to signal power.
        """
        if self.name.endswith("_db"):
            return np.asarray(10 ** (-np.clip(values, -3000, 3000) / 10))
        return np.maximum(1 - values, 0.0) if self.bound == "min" else np.maximum(values, 0.0)

    def at_loss(self, loss: float) -> float:
        """Returns the value of the metric that has this loss, the inverse of ``losses``.

        ``loss`` is from 0 to inf.
        """
        if self.name.endswith("_db"):
            return -10 * math.log10(loss) if loss > 0 else math.inf
        return 1 - loss if self.bound == "min" else loss

    def worst_but_spared(self, values: F64) -> float:
        """Returns the value of the worst sample after leaving out those that may miss the limit.

        The ratio ``spared`` of the samples is left out, the worst first. The result is nan without samples.

        Args:
            values: The value of each sample by itself, [samples]. nan is worse than any number.
        """
        if not len(values):
            return math.nan
        sign = 1.0 if self.bound == "min" else -1.0
        ranked = np.sort(np.where(np.isnan(values), -np.inf, sign * values))
        value = float(ranked[int((self.spared or 0.0) * len(ranked))])
        return math.nan if value == -math.inf and np.isnan(values).any() else sign * value

    def share_of(self, limit: float, options: Options, whole: Whole) -> Share:
        """Returns an object that computes which share of a limit on this metric each sample uses up.

        Args:
            limit: The limit on the metric.
            options: The options of the criterion, such as the class axis.
            whole: Sums of the baseline over all samples, which decide how much error the limit allows.
        """
        share = self.share(limit, options, whole)
        return share if self.spared is None else _EachSample(self, share)


class _EachSample(Share):
    """Computes which share of a limit each sample uses up, for a criterion that judges each sample by itself.

    The criterion may allow a ratio of the samples to miss the limit.
    """

    pool = "rank"

    def __init__(self, metric: Metric, together: Share) -> None:
        self._metric, self._together, self.power = metric, together, together.power
        compared = metric.measure.compared(together.whole.rows)
        self.allowed = int((metric.spared or 0.0) * int(compared.sum()))
        super().__init__(together.limit, together.options, together.whole)

    def _budget(self) -> float:
        return 1.0

    def _used(self, rows: F64) -> F64:
        name, bound = self._metric.name, self._metric.bound
        values = self._metric.each(rows).tolist()
        used = np.zeros(len(rows))
        used[self._metric.measure.compared(rows)] = [
            Score("", name, value, self.limit, bound).normalized_loss for value in values
        ]
        return used

    def _vectors(self, b: Array, c: Array, samples: int) -> F64:
        vectors = self._together._vectors(b, c, samples)
        if not self._together.by_energy:
            return vectors
        energies = np.square(flat(b, samples)).sum(axis=1, keepdims=True)
        mean = self.whole.sums.bb / self.whole.samples
        return np.asarray(vectors * np.sqrt(mean / np.maximum(energies, TINY)))


_FLOATS = ("floats",)
_NUMBERS = ("floats", "integers")
_EXACT = ("integers", "booleans", "strings")

#: The prefix of the metric's name in the scores of a criterion that judges each sample by itself.
PER_SAMPLE = "per_sample_"

#: Every metric that a criterion on an output may name.
METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            name="cosine",
            bound="min",
            kinds=_NUMBERS,
            shown_for=_FLOATS,
            min_classes=0,
            squares=True,
            fits_channels=True,
            measure=ERRORS,
            value=cosine,
            share=Angle,
        ),
        Metric(
            name="sqnr_db",
            bound="min",
            kinds=_NUMBERS,
            shown_for=_FLOATS,
            min_classes=0,
            squares=True,
            fits_channels=True,
            measure=ERRORS,
            value=sqnr_db,
            share=Decibels,
        ),
        Metric(
            name="psnr_db",
            bound="min",
            kinds=_NUMBERS,
            shown_for=(),
            min_classes=0,
            squares=True,
            fits_channels=True,
            measure=ERRORS,
            value=psnr_db,
            share=PeakDecibels,
        ),
        Metric(
            name="max_abs",
            bound="max",
            kinds=_NUMBERS,
            shown_for=_FLOATS,
            min_classes=0,
            squares=False,
            fits_channels=False,
            measure=ERRORS,
            value=max_abs,
            share=GreatestAbsoluteError,
        ),
        Metric(
            name="mean_abs",
            bound="max",
            kinds=_NUMBERS,
            shown_for=_FLOATS,
            min_classes=0,
            squares=False,
            fits_channels=False,
            measure=ERRORS,
            value=mean_abs,
            share=AbsoluteError,
        ),
        Metric(
            name="mse",
            bound="max",
            kinds=_NUMBERS,
            shown_for=(),
            min_classes=0,
            squares=True,
            fits_channels=False,
            measure=ERRORS,
            value=mse,
            share=MeanSquare,
        ),
        Metric(
            name="max_rel",
            bound="max",
            kinds=_NUMBERS,
            shown_for=(),
            min_classes=0,
            squares=False,
            fits_channels=False,
            measure=RELATIVE,
            value=max_rel,
            share=GreatestRelativeError,
        ),
        Metric(
            name="mean_rel",
            bound="max",
            kinds=_NUMBERS,
            shown_for=(),
            min_classes=0,
            squares=False,
            fits_channels=False,
            measure=RELATIVE,
            value=mean_rel,
            share=RelativeError,
        ),
        Metric(
            name="kl",
            bound="max",
            kinds=_FLOATS,
            shown_for=(),
            min_classes=2,
            squares=False,
            fits_channels=False,
            measure=DIVERGENCE,
            value=kl,
            share=Divergence,
        ),
        Metric(
            name="top1_agreement",
            bound="min",
            kinds=_FLOATS,
            shown_for=_FLOATS,
            min_classes=2,
            squares=False,
            fits_channels=False,
            measure=TOP1,
            value=top1_agreement,
            share=Flips,
        ),
        Metric(
            name="top5_agreement",
            bound="min",
            kinds=_FLOATS,
            shown_for=(),
            min_classes=6,
            squares=False,
            fits_channels=False,
            measure=TOP5,
            value=top5_agreement,
            share=Flips5,
        ),
        Metric(
            name="tolerance",
            bound="max",
            kinds=_NUMBERS,
            shown_for=(),
            min_classes=0,
            squares=False,
            fits_channels=False,
            measure=TOLERANCE,
            value=tolerance,
            share=Tolerated,
        ),
        Metric(
            name="agreement",
            bound="min",
            kinds=_EXACT,
            shown_for=_EXACT,
            min_classes=0,
            squares=False,
            fits_channels=False,
            measure=UNEQUAL,
            value=agreement,
            share=Differing,
        ),
    )
}


def per_sample(metric: Metric, spared: float) -> Metric:
    """Returns a metric that judges each sample by itself, in place of all samples together.

    Its value is that of the worst sample, after leaving out the samples that may miss a limit.

    Args:
        metric: The metric over all samples together.
        spared: The ratio of samples that may miss a limit, 0 to 1. The worst samples are left out first.
    """
    return replace(metric, name=PER_SAMPLE + metric.name, spared=spared)
