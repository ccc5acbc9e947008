"""Paired statistics: confidence intervals of scores, from the samples of a case.

Baseline and candidate run on the same samples, so each row compares both on one sample. The functions take
such rows and return an ``Interval``. It contains the score on all samples of the same kind, with the given
confidence. ``Score.steady`` says whether the interval contains the limit. If it does, ``Interval.needed`` is
the number of samples that would decide. The method depends on the kind of score:

- The ratio of right samples has an exact interval, by the binomial distribution (Clopper and Pearson, 1934).
  The drop of this ratio has one from the samples lost and gained (McNemar, 1947; Newcombe, 1998).
- Sums and means over samples use the jackknife (Tukey, 1958) with Student's t and Hall's correction for
  skewness (1992). A proof of a fix assumes one more sample, with a larger error (Weissman, 1978).
- The worst sample uses an estimate of the distribution's tail (Hill, 1975). Few samples leave the verdict
  undecided. If a ratio of the samples may miss the limit, the interval is exact, by order statistics.

Samples that belong together, like the frames of a video, are one unit: they count as one row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.results import Interval, Score
from pytest_int8acc.results.scores import CONFIDENCE, LIKELY
from pytest_int8acc.scores.metrics import Metric
from pytest_int8acc.scores.rows import COUNTED, F64, TOP1, TOP5, UNEQUAL

#: The number of the group of each sample, [samples]. Samples with equal numbers belong together, like the
#: frames of a video.
Groups = NDArray[np.integer[Any]]
#: A score gets an interval only if its normalized loss is at least this number, or if the interval is exact.
#: The normalized loss is the loss divided by the loss at the limit. A score with a lower loss would meet the
#: limit on other samples, too.
_MIN_LOSS = 0.1
#: Maximum factor by which the correction for skewness increases the distance of an interval's end from the
#: value. A greater factor would rest mostly on the single sample with the largest error.
_MAX_SKEWED = 2.0
#: Maximum number of units of a jackknife. A unit is a sample, or a group of samples that belong together. If
#: there are more units, several are joined at random into one.
_MAX_UNITS = 512
#: Maximum number of units of a jackknife for a metric of labels. If there are more samples, several are
#: joined into one unit. The metric is computed once for each unit, so more units would take too long.
_MAX_UNITS_OF_LABELS = 64
#: The number of bootstrap resamples, which show how likely a score meets its limit on other samples.
_RESAMPLES = 400
#: Minimum number of samples from which the tail of the distribution of losses is estimated.
MIN_TAIL = 20
#: The tail of the distribution of losses is fitted to the largest losses. Their number is this factor times
#: the square root of the number of samples.
_TAIL = 2.0
#: 64 equally likely values of the normal distribution. ``most_of_others`` averages its prediction over them.
_NORMAL = np.array([NormalDist().inv_cdf((i + 0.5) / 64) for i in range(64)])
#: For a proof, one more sample with a large error is assumed. Its loss is the greatest loss that is expected
#: in a set of samples that is this many times as large.
_RARER = 3.0
#: The tail of the distribution of losses is estimated from the ratio of the greatest loss to a smaller one.
#: This is the maximum of that ratio, which would be infinite if the smaller loss is 0.
_MAX_RARE_RATIO = 1e12
#: Maximum of the number of samples that would decide whether a limit is met. A greater number is not
#: reported.
_MOST_NEEDED = 10_000_000
#: The power of the test in ``least_detectable``: the probability that it detects a drop of the given size.
_POWER = 0.8


# --- Distributions


def beta_cdf(x: float, a: float, b: float) -> float:
    """Returns the cumulative distribution function of the beta distribution at ``x``, I_x(a, b), from 0 to 1.

    It is computed by a continued fraction, with Lentz's method (Press et al., Numerical Recipes, 6.4).

    Args:
        x: The point, from 0 to 1.
        a: The first shape parameter, above 0.
        b: The second shape parameter, above 0.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_cdf(1 - x, b, a)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    tiny, c = 1e-300, 1.0
    d = 1 / _nonzero(1 - (a + b) * x / (a + 1), tiny)
    fraction = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _nonzero(1 + term * d, tiny)
            c = _nonzero(1 + term / c, tiny)
            fraction *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return min(math.exp(front) * fraction / a, 1.0)


def _nonzero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny


def binomial_cdf(hits: float, trials: float, chance: float) -> float:
    """Returns the probability of at most ``hits`` successes in ``trials`` independent trials.

    ``chance`` is the probability of success of one trial. ``hits`` and ``trials`` need not be whole numbers,
    because the beta distribution interpolates.
    """
    return 1.0 if hits >= trials else 1 - beta_cdf(chance, hits + 1, trials - hits)


@lru_cache(maxsize=1024)
def t_quantile(probability: float, freedom: float) -> float:
    """Returns the quantile of Student's t distribution (Student, 1908).

    Args:
        probability: The probability that a value is at most the quantile, above 0 and below 1.
        freedom: The degrees of freedom, at least 1; not necessarily a whole number.
    """
    if probability < 0.5:
        return -t_quantile(1 - probability, freedom)
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < probability:
        low, high = high, 2 * high
    return _bisected(lambda t: t_cdf(t, freedom) >= probability, low, high)


def t_cdf(t: float, freedom: float) -> float:
    """Returns the probability that Student's t with ``freedom`` degrees of freedom is at most ``t``."""
    tail = beta_cdf(freedom / (freedom + t * t), freedom / 2, 0.5) / 2
    return 1 - tail if t > 0 else tail


def _bisected(reached: Callable[[float], bool], low: float, high: float) -> float:
    """Returns the number between ``low`` and ``high`` at which ``reached`` turns from False to True."""
    for _ in range(60):
        middle = (low + high) / 2
        if not low < middle < high or high - low < 1e-12 * abs(high):
            break
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


# --- Exact intervals of ratios of right samples


@lru_cache(maxsize=4096)
def share_interval(hits: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Returns both ends, from 0 to 1, of the exact confidence interval of the ratio ``hits`` / ``trials``.

    The method is that of Clopper and Pearson (1934). With 0 hits, the upper end is about 3.7 / ``trials`` at
    a confidence of 0.95, as by the rule of three with half of the error probability at each end.

    Args:
        hits: The number of samples that have the property in question, such as being wrong.
        trials: The number of samples, at least 1.
        confidence: The minimum probability that the interval contains the true ratio.
    """
    error = (1 - confidence) / 2
    low = high = hits / trials
    if hits:
        low = _bisected(lambda p: 1 - binomial_cdf(hits - 1, trials, p) >= error, 0.0, low)
    if hits < trials:
        high = _bisected(lambda p: binomial_cdf(hits, trials, p) <= error, high, 1.0)
    return low, high


def share_below(hits: float, trials: int, allowed: float) -> float:
    """Returns the one-sided confidence, 0 to 1, that the true ratio of hits is at most ``allowed``.

    ``hits`` of ``trials`` samples were observed. The confidence is 1 minus the mid-p-value of the binomial
    test, which includes half of the probability of the observed outcome (Lancaster, 1961). It is 0 if the
    observed ratio is above ``allowed``.
    """
    if allowed >= 1 or hits / trials > allowed:
        return float(allowed >= 1)
    fewer = binomial_cdf(hits - 1, trials, allowed) if hits else 0.0
    return 1 - (fewer + binomial_cdf(hits, trials, allowed)) / 2


def mcnemar(lost: int, gained: int) -> float:
    """Returns the two-sided p-value of McNemar's exact test (1947) that both models are right equally often.

    Args:
        lost: The number of samples on which only the baseline is right.
        gained: The number of samples on which only the candidate is right.
    """
    return min(1.0, 2 * binomial_cdf(min(lost, gained), lost + gained, 0.5)) if lost + gained else 1.0


def drop_interval(lost: int, gained: int, samples: int, confidence: float) -> tuple[float, float]:
    """Returns both ends of the confidence interval of the drop (lost - gained) / samples, from -1 to 1.

    The exact intervals of lost / samples and of gained / samples are joined by method 10 of Newcombe (1998),
    who joins Wilson's intervals instead. The covariance of both ratios is that of a multinomial distribution.

    Args:
        lost: The number of samples on which only the baseline is right.
        gained: The number of samples on which only the candidate is right.
        samples: The number of samples, at least 1.
        confidence: The confidence, above 0 and below 1.
    """
    a, b = lost / samples, gained / samples
    (a_low, a_high), (b_low, b_high) = (share_interval(n, samples, confidence) for n in (lost, gained))
    correlation = math.sqrt(a * b / ((1 - a) * (1 - b))) if a < 1 and b < 1 else 1.0

    def reach(one: float, other: float) -> float:
        return math.sqrt(one * one + other * other + 2 * correlation * one * other)

    return a - b - reach(a - a_low, b_high - b), a - b + reach(a_high - a, b - b_low)


def of_wrong(score: Score, wrong: int, samples: int, confidence: float = CONFIDENCE) -> Interval | None:
    """Returns the exact interval of a score that is the ratio of right samples; None without a limit.

    Args:
        score: The score: 1 - ``wrong`` / ``samples``. Its limit is a minimum.
        wrong: The number of wrong samples.
        samples: The number of samples.
        confidence: The confidence of the interval.
    """
    if score.limit is None or not samples:
        return None
    low, high = share_interval(wrong, samples, confidence)
    allowed = 1 - score.limit
    most = math.floor(allowed * samples + 1e-9)
    needed = needed_for_share(wrong, samples, allowed, confidence)
    kept = binomial_cdf(most, samples, wrong / samples)
    found = _around(score, 1 - high, 1 - low, kept, confidence, needed)
    return replace(found, enough=share_below(wrong, samples, allowed) >= LIKELY)


def needed_for_share(wrong: int, samples: int, allowed: float, confidence: float) -> int | None:
    """Returns how many samples would decide whether the ratio of wrong samples is at most ``allowed``.

    It is assumed that the ratio stays ``wrong`` / ``samples``. The result is None if no number of samples up
    to ``_MOST_NEEDED`` would decide at this confidence.
    """
    share, error = wrong / samples, (1 - confidence) / 2
    if allowed <= 0 or allowed >= 1:
        return None

    def decided(number: float) -> bool:
        if share <= allowed:
            return binomial_cdf(share * number, number, allowed) <= error
        return 1 - binomial_cdf(share * number - 1, number, allowed) <= error

    most = float(samples)
    while not decided(most):
        most *= 2
        if most > _MOST_NEEDED:
            return None
    return math.ceil(_bisected(decided, 1.0, most) - 1e-6)


def of_drop(
    score: Score, lost: int, gained: int, samples: int, confidence: float = CONFIDENCE
) -> Interval | None:
    """Returns the interval of a score that is the ratio of right samples, with a limit on its drop.

    The drop is against the baseline's ratio. The result is None without a limit.

    Args:
        score: The score. Its ``baseline`` is the baseline's ratio, and its limit is a minimum.
        lost: The number of samples on which only the baseline is right.
        gained: The number of samples on which only the candidate is right.
        samples: The number of samples.
        confidence: The confidence of the interval.
    """
    if score.limit is None or score.baseline is None or not samples:
        return None
    low, high = drop_interval(lost, gained, samples, confidence)
    drop, allowed = (lost - gained) / samples, score.baseline - score.limit
    spread = math.sqrt(max(lost + gained - samples * drop * drop, 0.0)) / samples
    kept = NormalDist(drop, spread).cdf(allowed + 0.5 / samples) if spread else float(drop <= allowed)
    needed = _needed(samples, drop, (low, high), allowed)
    # Without lost and gained samples, the interval shrinks as 1 / samples, not as 1 / sqrt(samples).
    if not lost and not gained and allowed > 0:
        decides = partial(_shows_no_drop, allowed=allowed, confidence=confidence)
        needed = math.ceil(_bisected(decides, 1.0, float(_MOST_NEEDED)))
    worst, best = max(score.baseline - high, 0.0), min(score.baseline - low, 1.0)
    found = _around(score, worst, best, kept, confidence, needed)
    return replace(found, enough=drop_interval(lost, gained, samples, 2 * LIKELY - 1)[1] <= allowed)


def _shows_no_drop(samples: float, *, allowed: float, confidence: float) -> bool:
    """Whether ``samples`` samples show that the drop is at most ``allowed``, if both models always agree."""
    return drop_interval(0, 0, math.ceil(samples), confidence)[1] <= allowed


def least_detectable(samples: int, confidence: float = CONFIDENCE) -> float:
    """Returns the smallest drop of accuracy, 0 to 1, that McNemar's exact test can show on ``samples``.

    Each sample is right or wrong. The test shows a drop of this size with a probability of 0.8 (``_POWER``),
    if there is no sample on which only the candidate is right. The result is 1 if there are too few samples
    to show any drop.
    """
    fewest = next((n for n in range(1, 200) if mcnemar(n, 0) <= 1 - confidence), 200)
    if fewest > samples:
        return 1.0
    return _bisected(lambda p: 1 - binomial_cdf(fewest - 1, samples, p) >= _POWER, 0.0, 1.0)


def samples_to_detect(drop: float, confidence: float = CONFIDENCE) -> int:
    """Returns the minimum number of samples for which ``least_detectable`` is at most ``drop``.

    Args:
        drop: The drop of accuracy, above 0 and at most 1.
        confidence: The confidence of the test.
    """
    many = 1
    while least_detectable(many, confidence) > drop:
        many *= 2
    few = many // 2
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if least_detectable(middle, confidence) > drop else (few, middle)
    return many


# --- Intervals of sums and means


def mean_interval(
    value: float, influence: F64, confidence: float
) -> tuple[float, float, Callable[[float], float]]:
    """Returns both ends of the interval of a value, and its distribution over resamples.

    Two intervals are computed: Student's t, and the one with Hall's correction for skewness (1992). On each
    side, the end that is farther from the value is returned. Its distance is at most ``_MAX_SKEWED`` times
    that of Student's t.

    Args:
        value: The value over all units. A unit is a sample, or a group of samples that belong together.
        influence: By how much each unit changes the value, times the number of units, [units]; at least two
            units. If the value is a mean, this is the unit's distance from the mean. For other values, the
            jackknife (Tukey, 1958) computes it.
        confidence: The confidence of the interval.

    Returns:
        The lower end, the upper end, and a function. From a limit, the function computes the share of
        bootstrap resamples, 0 to 1, whose value is at most this limit. No resamples are drawn: their values
        are taken to be normally distributed.
    """
    units = len(influence)
    deviations = influence - influence.mean()
    variance = float(np.mean(deviations**2))
    if variance <= 0:
        return value, value, lambda limit: float(value <= limit)
    error = math.sqrt(variance / (units - 1))
    skewness = float(np.mean(deviations**3)) / variance**1.5 / math.sqrt(units)
    t = t_quantile((1 + confidence) / 2, units - 1)
    low = value - error * min(max(t, _unskewed(t, skewness)), _MAX_SKEWED * t)
    high = value + error * min(max(t, -_unskewed(-t, skewness)), _MAX_SKEWED * t)
    return low, high, NormalDist(value, math.sqrt(variance / units)).cdf


def _unskewed(t: float, skewness: float) -> float:
    """Returns the inverse of Hall's cubic transformation at ``t``.

    ``skewness`` is the skewness divided by the square root of the number of units.
    """
    if abs(skewness) < 1e-6:
        return t
    return float(3 / skewness * (np.cbrt(1 + skewness * (t - skewness / 6)) - 1))


def interval(
    score: Score,
    rows: F64,
    metric: Metric,
    confidence: float = CONFIDENCE,
    groups: Groups | None = None,
    *,
    rare: bool = False,
) -> Interval | None:
    """Returns the confidence interval of an output's score; None if there is no limit, or it is met by far.

    The result is also None for a single sample, or if a value is not finite.

    Args:
        score: The score of all samples, with its limit.
        rows: The rows of the metric's measure, one for each sample, [samples, columns].
        metric: The metric of the score.
        confidence: The confidence of the interval.
        groups: The group of each sample; None: no samples belong together.
        rare: Whether to allow for rare large errors that these samples do not show. Sums and means far from
            their limit then also have intervals. Their limit is called met only if it is still met with one
            more sample that is worse than all others. Proofs of a fix set this argument.
    """
    if score.limit is None or not math.isfinite(score.value):
        return None
    is_compared = metric.measure.compared(rows)
    if groups is None:
        groups = np.arange(len(rows))
    is_open = not score.passed or score.normalized_loss >= _MIN_LOSS
    if metric.spared is not None or metric.takes_worst(rows):
        if not is_open:
            return None
        losses = metric.losses(metric.each(rows))
        if metric.spared:
            units = len(np.unique(groups[is_compared]))
            return _of_quantile(score, metric, losses, units, confidence)
        order, starts = _sorted(groups[is_compared])
        return _of_worst(score, metric, np.maximum.reduceat(losses[order], starts), confidence)
    pooled = metric.measure.pool_each(rows, *_sorted(groups))
    found = _of_sum(score, pooled, metric, confidence, is_open=is_open or rare, rare=rare)
    return in_samples(found, len(rows) / max(len(pooled), 1))


def _of_sum(
    score: Score, rows: F64, metric: Metric, confidence: float, *, is_open: bool, rare: bool
) -> Interval | None:
    """Returns the interval of a score over all samples together.

    Args:
        score: The score, with its limit.
        rows: One row of the metric's measure for each sample or group of samples, [units, columns].
        metric: The metric of the score.
        confidence: The confidence of the interval.
        is_open: Whether sums and means have an interval. Ratios of right samples always have one.
        rare: Whether the limit must still be met with one more sample that is worse than all others.
    """
    compared = rows[metric.measure.compared(rows)]
    if metric.measure in (TOP1, TOP5, UNEQUAL):
        right = compared[:, 0] if metric.measure is not UNEQUAL else compared[:, COUNTED] - compared[:, 0]
        wrong = int((right < compared[:, COUNTED]).sum())
        if (compared[:, COUNTED] == 1).all() or not wrong:
            return of_wrong(score, wrong, len(compared), confidence)
    if len(rows) < 2 or not is_open:
        return None
    return _of_pooled(score, rows, metric, confidence, rare=rare)


def _sorted(groups: Groups) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Returns the samples' indices sorted by group, and the position among them where each group starts."""
    order = np.argsort(groups, kind="stable")
    return order, np.unique(groups[order], return_index=True)[1]


def _lots(rows: F64, metric: Metric, rng: np.random.Generator) -> F64:
    """Returns ``rows``; if there are more than ``_MAX_UNITS``, several are joined at random into one row."""
    order = rng.permutation(len(rows))
    starts = np.arange(min(len(rows), _MAX_UNITS)) * len(rows) // min(len(rows), _MAX_UNITS)
    return metric.measure.pool_each(rows, order, starts)


def resampled(rows: F64, metric: Metric, rng: np.random.Generator) -> F64:
    """Returns the values of a metric over ``_RESAMPLES`` bootstrap resamples of the rows (Efron, 1979).

    Args:
        rows: The rows of the metric's measure, one for each sample or group of samples, [units, columns].
        metric: The metric. Its value is computed from sums and maxima over the rows.
        rng: The generator that draws the rows.
    """
    units = len(rows)
    choices = rng.integers(0, units, (_RESAMPLES, units))
    places = choices + units * np.arange(_RESAMPLES)[:, None]
    times = np.bincount(places.ravel(), minlength=units * _RESAMPLES).reshape(_RESAMPLES, units)
    with np.errstate(all="ignore"):  # inf and nan are valid results here
        pooled = times @ rows
    for column in metric.measure.greatest:
        pooled[:, column] = rows[:, column][choices].max(axis=1)
    return metric.of_rows(pooled)


def _of_pooled(score: Score, rows: F64, metric: Metric, confidence: float, *, rare: bool) -> Interval | None:
    """Returns the interval of a metric over all rows together, by the jackknife of the loss.

    ``rows`` has one row for each sample or group of samples, [units, columns]. ``rare`` says whether the
    limit must still be met with one more sample that is worse than all others.
    """
    samples, rng = len(rows), np.random.default_rng(0)
    rows = _lots(rows, metric, rng)
    before, after = metric.measure.pool_up_to(rows), metric.measure.pool_up_to(rows[::-1])[::-1]
    without = np.concatenate([after[1:2], before[:-2] + after[2:], before[-2:-1]])
    for column in metric.measure.greatest:
        without[1:-1, column] = np.maximum(before[:-2, column], after[2:, column])
    losses = metric.losses(metric.of_rows(without))
    loss, limit = metric.losses(np.array([score.value, score.limit])).tolist()
    if not np.isfinite(losses).all() or not math.isfinite(loss) or loss <= 0 or limit <= 0:
        return None
    # The scale is logarithmic: a relative change of the loss is a difference of logarithms.
    influence = len(rows) * (1 - losses / loss)
    loss, limit = math.log(loss), math.log(limit)
    low, high, _ = mean_interval(loss, influence, confidence)
    # Another set of samples may lack any one of these units. The interval is therefore widened, so that it
    # contains each score without one unit.
    with np.errstate(divide="ignore"):
        low, high = min(low, float(np.log(losses.min()))), max(high, float(np.log(losses.max())))
    ends = [metric.at_loss(math.exp(min(end, 700.0))) for end in (low, high)]
    needed = _needed(samples, loss, (low, high), limit)
    values = np.append(resampled(rows, metric, rng), score.value)
    kept = float(np.mean(values >= score.limit if score.bound == "min" else values <= score.limit))
    found = _around(score, min(ends), max(ends), kept, confidence, needed)
    expected, error = _with_rare_unit(loss, influence)
    return replace(found, enough=not rare or t_cdf((limit - expected) / error, len(rows)) >= LIKELY)


def _with_rare_unit(loss: float, influence: F64) -> tuple[float, float]:
    """Returns the logarithm of a loss after one more, worse unit is added, and the standard error of it.

    A unit is a sample, or a group of samples that belong together. The loss of the added unit is the greatest
    loss that is expected among ``_RARER`` times as many units. This assumes that the largest losses have
    Pareto's tail (Weissman, 1978). The exponent of the tail is estimated from two losses: the greatest one,
    and the one whose rank is about the square root of the number of units.

    Args:
        loss: The logarithm of the loss of all units together, which is the sum of their losses.
        influence: By how much each unit changes the logarithm, times the number of units, [units]; at least
            two units.

    Returns:
        The logarithm, and its standard error, above 0. Its degrees of freedom are the number of units.
    """
    units = len(influence)
    shares = np.maximum((influence * (1 - 1 / units) + 1) / units, 0.0)
    ranked = np.sort(shares)[::-1]
    place = min(max(math.isqrt(units), 3), units - 1)
    ratio = ranked[0] / max(ranked[place], ranked[0] / _MAX_RARE_RATIO)
    rare = ranked[0] * math.exp(math.log(_RARER) * math.log(ratio) / math.log(place + 1))
    moved = (units + 1) * np.append(shares, rare) / (shares.sum() + rare)
    error = math.sqrt(float(np.var(moved)) / units)
    return loss + math.log((1 + rare) * units / (units + 1)), max(error, 1e-12)


def of_labels(
    score: Score,
    samples: int,
    value: Callable[[Sequence[int]], float],
    confidence: float = CONFIDENCE,
    groups: Groups | None = None,
) -> Interval | None:
    """Returns the interval of any metric of labels by the jackknife; None if a fixed limit is met by far.

    A fixed limit is not relative to the baseline. The result is also None for a single sample, without a
    limit, or if a value is not finite.

    Args:
        score: The score of all samples, with its limit.
        samples: The number of samples.
        value: Computes the score of some samples, by index. For a limit relative to the baseline, it is the
            baseline's score of all samples minus the drop on these samples.
        confidence: The confidence of the interval.
        groups: The group of each sample; None: no samples belong together.
    """
    # A drop against the baseline may be 0 by chance, so it needs an interval. For a fixed limit, a small loss
    # is far from the limit.
    is_open = not score.passed or score.baseline is not None or score.normalized_loss >= _MIN_LOSS
    if score.limit is None or not is_open or not math.isfinite(score.value):
        return None
    numbers = np.arange(samples) if groups is None else np.unique(groups, return_inverse=True)[1]
    order = np.random.default_rng(0).permutation(int(numbers.max(initial=0)) + 1)
    if len(order) < 2:
        return None
    lots = np.array_split(order, min(len(order), _MAX_UNITS_OF_LABELS))
    units = [np.flatnonzero(np.isin(numbers, lot)) for lot in lots]
    everything = np.arange(samples)
    without = np.array([value(np.delete(everything, unit).tolist()) for unit in units])
    if not np.isfinite(without).all():
        return None
    influence = (len(units) - 1) * (score.value - without)
    low, high, below = mean_interval(score.value, influence, confidence)
    kept = below(score.limit) if score.bound == "max" else 1 - below(score.limit)
    needed = _needed(samples, score.value, (low, high), score.limit)
    return _around(score, low, high, kept, confidence, needed)


# --- Intervals of the worst sample


def _of_quantile(score: Score, metric: Metric, losses: F64, units: int, confidence: float) -> Interval | None:
    """Returns the exact interval of the worst loss after leaving out the samples that may miss the limit.

    This loss is a quantile of ``losses``, which has the loss of each sample. By order statistics, the number
    of samples worse than the true quantile is binomial (Thompson, 1936). Samples that belong together count
    as one of ``units`` samples, as if they were equal. The interval is therefore too wide rather than too
    narrow.
    """
    samples, spared, error = len(losses), metric.spared or 0.0, (1 - confidence) / 2
    if not samples or np.isnan(losses).any():
        return None
    ranked = np.sort(losses)[::-1]
    ranks = range(units + 1)
    fewest = next(k for k in ranks if binomial_cdf(k, units, spared) > error)
    most = next(k for k in ranks if binomial_cdf(k, units, spared) >= 1 - error)
    worst = ranked[fewest * samples // units - 1] if fewest else math.inf
    best = ranked[-(-most * samples // units)] if most < units else 0.0
    missing = sum(not replace(score, value=metric.at_loss(loss)).passed for loss in ranked.tolist())
    kept = binomial_cdf(int(spared * samples), samples, missing / samples)
    needed = needed_for_share(missing, samples, spared, confidence)
    ends = [metric.at_loss(float(loss)) for loss in (best, worst)]
    found = _around(score, min(ends), max(ends), kept, confidence, needed)
    return replace(found, enough=share_below(missing * units / samples, units, spared) >= LIKELY)


def _of_worst(score: Score, metric: Metric, losses: F64, confidence: float) -> Interval | None:
    """Returns the interval of the worst score that an equal number of other samples would have.

    The better end is valid for any distribution of losses. The worse end is estimated from the tail of the
    distribution. It is infinitely bad if there is no tail, or if there are fewer than ``MIN_TAIL`` samples.
    Samples that belong together count as one. The result is None if a loss is NaN, or without samples.

    Args:
        score: The score of all samples, with its limit.
        metric: The metric.
        losses: The loss of each sample, or the worst loss of each group of samples.
        confidence: The confidence of the interval.
    """
    units = len(losses)
    if not units or np.isnan(losses).any():
        return None
    limit = float(metric.losses(np.array([score.limit]))[0])
    kept = float((1 - np.mean(losses > limit)) ** units)
    others = least_of_others(losses, confidence), most_of_others(losses, confidence)
    ends = [metric.at_loss(loss) for loss in others]
    return _around(score, min(ends), max(ends), kept, confidence, MIN_TAIL if units < MIN_TAIL else None)


def least_of_others(losses: F64, confidence: float = CONFIDENCE) -> float:
    """Returns the lower end of the interval of the greatest loss in an equal number of other samples.

    The end is valid for any distribution of losses. It is the k-th greatest loss, or 0 if there is no such k.
    k is the least number for which it is improbable that the k greatest losses of both sets of samples
    together are all in the given set.

    Args:
        losses: The loss of each sample, [samples], at least 0.
        confidence: The probability that the interval contains the greatest loss.
    """
    samples, chance = len(losses), 1.0
    for rank in range(samples):
        chance *= (samples - rank) / (2 * samples - rank)
        if chance <= (1 - confidence) / 2:
            return float(np.sort(losses)[samples - rank - 1])
    return 0.0


def most_of_others(losses: F64, confidence: float = CONFIDENCE) -> float:
    """Returns the upper end of the interval of the greatest loss in an equal number of other samples.

    The losses beyond a threshold are assumed to follow a Pareto distribution, whose exponent is estimated as
    by Hill (1975). If the true tail is less heavy, the end is too large. The prediction is averaged over the
    exponents that are compatible with the losses. Their distribution is approximated by that of Wilson and
    Hilferty (1931) for a gamma distribution.

    Args:
        losses: The loss of each sample, [samples], at least 0.
        confidence: The probability that the interval contains the greatest loss.

    Returns:
        The upper end; inf if no tail can be fitted, or with fewer than ``MIN_TAIL`` samples.
    """
    many = round(_TAIL * math.sqrt(len(losses)))
    if len(losses) < MIN_TAIL:
        return math.inf
    ranked = np.sort(losses)[::-1]
    threshold = float(ranked[many])
    if threshold <= 0 or not math.isfinite(float(ranked[0])):
        return math.inf
    hill = float(np.mean(np.log(ranked[:many] / threshold)))
    if hill <= 0:
        return threshold
    exponents = np.maximum(1 - 1 / (9 * many) + _NORMAL / (3 * math.sqrt(many)), 1e-3) ** 3 / hill

    def is_beyond(distance: float) -> bool:
        below = np.mean((1 + np.exp(-distance * exponents)) ** -(many + 1.0))
        return bool(below >= (1 + confidence) / 2)

    farthest = 1e4 * hill
    return threshold * math.exp(min(_bisected(is_beyond, -farthest, farthest), 700.0))


# --- Parts of all intervals


def in_samples(found: Interval | None, each: float) -> Interval | None:
    """Returns a copy of an interval whose ``needed`` is a number of samples instead of a number of groups.

    ``each`` is the mean number of samples in a group.
    """
    if found is None or found.needed is None:
        return found
    return replace(found, needed=math.ceil(found.needed * each))


def _needed(samples: int, value: float, interval: tuple[float, float], limit: float) -> int | None:
    """Returns the number of samples with which the interval would just not contain the limit.

    It is assumed that the width of the interval shrinks with the square root of the number of samples. The
    result is None if the value is at the limit, or if the number would exceed ``_MOST_NEEDED``.

    Args:
        samples: The number of samples now.
        value: The value of all samples.
        interval: Both ends of the interval.
        limit: The limit, in the unit of the value.
    """
    low, high = interval
    distance, reach = limit - value, high - value if value < limit else value - low
    if not distance or not math.isfinite(reach):
        return None
    needed = samples * (reach / distance) ** 2
    return math.ceil(needed) if needed <= _MOST_NEEDED else None


def _around(
    score: Score, low: float, high: float, kept: float, confidence: float, needed: int | None
) -> Interval:
    """Returns the interval from ``low`` to ``high``, widened so that it contains the score's value.

    ``kept``, ``confidence`` and ``needed`` become fields of the interval.
    """
    return Interval(min(low, score.value), max(high, score.value), kept, confidence, needed)
