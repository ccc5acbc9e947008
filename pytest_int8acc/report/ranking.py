"""Which of several scores matters most."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pytest_int8acc.results import Score


def strain(score: Score) -> float:
    """Share of what the limit allows that is used up: 0 for a perfect score, 1 at the limit, more beyond it.

    Makes scores of different metrics comparable: for a user's metric the drop from the baseline over the drop
    allowed, for decibels the ratio of amplitudes, for a greatest value the ratio to it, and for a least value
    up to 1 (cosine, agreement) the distances to 1. Inf for nan, 0 without a limit.
    """
    value, limit = score.value, score.limit
    if limit is None:
        return 0.0
    if math.isnan(value):
        return math.inf
    if value == limit:
        return 1.0
    if score.baseline is not None and math.isfinite(score.baseline):
        allowed = score.baseline - limit if score.bound == "min" else limit - score.baseline
        used = score.baseline - value if score.bound == "min" else value - score.baseline
        if allowed > 0:
            return max(used / allowed, 0.0)
    if score.bound == "max":
        return _ratio(value, limit)
    if score.metric.endswith("_db"):
        return float(10 ** min((limit - value) / 20, 300))
    if limit <= 1 and value <= 1:
        return _ratio(1 - value, 1 - limit)
    return _ratio(limit, value)


def _ratio(used: float, allowed: float) -> float:
    """``used / allowed``; where nothing is allowed, 1 if nothing is used and inf otherwise."""
    if allowed > 0:
        return max(used / allowed, 0.0)
    return 1.0 if used <= allowed else math.inf


def worst_first(scores: Iterable[Score]) -> list[Score]:
    """The judged ones among ``scores``: missed limits first, each part by falling strain."""
    judged = (score for score in scores if score.limit is not None)
    return sorted(judged, key=lambda score: (score.passed, -strain(score)))
