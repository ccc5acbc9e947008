"""Intervals of scores by the bootstrap: they show whether other, similar samples would change the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from pytest_int8acc.results import Interval, Score
from pytest_int8acc.scores.metrics import Metric
from pytest_int8acc.scores.rows import F64

#: The number of bootstrap resamples.
RESAMPLES = 400
#: Maximum number of lots, that is of groups of samples that are resampled together. With more samples than
#: this, each lot holds several samples.
_MAX_LOTS = 512
#: By this ratio the ends of an interval are moved outwards from the range of the resampled values. 400
#: resamples reach 3 standard deviations from the mean, but a verdict that is called steady must change less
#: than once in 1000 times.
_FARTHER = 0.2
#: Minimum normalized loss of a score that is resampled. Resamples cannot miss the limit with a lower loss:
#: hardly any sample is drawn ten times.
_MIN_LOSS = 0.1
#: Maximum number of samples in a resample for a metric of labels. More samples would take too much time.
_MAX_DRAWN = 2000


def interval(score: Score, rows: F64, metric: Metric) -> Interval | None:
    """Returns the interval of a score over resamples; None if there is no limit or the limit is met by far.

    It is also None for a single sample, or if a value is not finite. The method is the bootstrap of Efron
    (1979). The interval spans the ``RESAMPLES`` values and is somewhat wider (see ``around``).

    Args:
        score: The score of all samples, with its limit.
        rows: The rows of the metric, [samples, columns].
        metric: The metric.
    """
    each = metric.each(rows) if metric.spared is not None else None
    samples = len(rows) if each is None else len(each)
    if not _is_open(score, samples):
        return None
    rng = np.random.default_rng(0)
    lots = np.array_split(rng.permutation(samples), min(samples, _MAX_LOTS))
    choices = rng.integers(0, len(lots), (RESAMPLES, len(lots)))
    if each is not None:
        drawn_samples = (np.concatenate([lots[i] for i in choice]) for choice in choices)
        return around(score, [metric.worst_but_spared(each[drawn]) for drawn in drawn_samples])
    pooled = np.stack([metric.measure.pool(rows[lot]) for lot in lots])
    return around(score, [metric(pooled[choice]) for choice in choices])


def _is_open(score: Score, samples: int) -> bool:
    """Whether a resample might have another verdict than the score, and there are at least 2 samples."""
    kept_by_far = score.passed and score.normalized_loss < _MIN_LOSS
    return score.limit is not None and not kept_by_far and samples > 1 and math.isfinite(score.value)


def interval_of_labels(
    score: Score, samples: int, value: Callable[[Sequence[int]], float]
) -> Interval | None:
    """Returns the interval of a score of a metric of labels over resamples; None if the limit is met by far.

    It is also None for a single sample, or if there is no limit. If there are many samples, a resample holds
    only some of them. The value of a smaller resample scatters more, so its distance from the score is scaled
    down (m out of n bootstrap; Bickel, Götze and van Zwet, 1997).

    Args:
        score: The score of all samples, with its limit.
        samples: The number of samples.
        value: Computes the score of some samples, by index.
    """
    if not _is_open(score, samples):
        return None
    size = min(samples, _MAX_DRAWN)
    choices = np.random.default_rng(0).integers(0, samples, (RESAMPLES, size))
    less = math.sqrt(size / samples)
    return around(score, [score.value + less * (value(c.tolist()) - score.value) for c in choices])


def around(score: Score, others: Sequence[float], farther: float = _FARTHER) -> Interval | None:
    """Returns the interval of a score that was measured several times; None if a value is nan.

    The interval is wider than the range of the values. On a logarithmic scale of the normalized loss, the
    distance of each end from the mean grows by the ratio ``farther``.
    """
    values = np.array([score.value, *others])
    if np.isnan(values).any():
        return None
    scores = [replace(score, value=value) for value in values.tolist()]
    normalized_losses = np.array([other.normalized_loss for other in scores])
    kept = float(np.mean([other.passed for other in scores]))
    ends = [float(values.min()), float(values.max())]
    if np.isfinite(values).all() and (normalized_losses > 0).all() and np.isfinite(normalized_losses).all():
        logs = np.log(normalized_losses)
        met = [end for end in (logs.min(), logs.max()) if end != logs[0]]
        ends += [score.at_normalized_loss(math.exp(end + farther * (end - logs.mean()))) for end in met]
    return Interval(min(ends), max(ends), kept)
