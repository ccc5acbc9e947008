"""The limits of a case as demands on samples, and scores as losses."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_int8acc.results import Score
from pytest_int8acc.scores.class_parts import Divergence, Flips
from pytest_int8acc.scores.criteria import OutputLimits, default_limits, limits_for
from pytest_int8acc.scores.parts import Cosine, Demand, Largest, Means, Squares, Unequal, Whole
from pytest_int8acc.tensors import Outputs

_KINDS: dict[str, type[Demand]] = {
    "cosine": Cosine,
    "sqnr_db": Squares,
    "psnr_db": Squares,
    "max_abs": Largest,
    "mean_abs": Means,
    "max_rel": Largest,
    "mean_rel": Means,
    "kl": Divergence,
    "top1_agreement": Flips,
    "top5_agreement": Flips,
    "agreement": Unequal,
}


def demands_on(
    baseline: Outputs, samples: int, criteria: Sequence[OutputLimits], *, metrics_given: bool
) -> list[Demand]:
    """One demand per limit, in the order in which ``compare_outputs`` gives the scores that have one.

    Args:
        baseline: All that a search sees of the outputs, one array or several each.
        samples: How many samples those hold.
        criteria: As for ``compare_outputs``.
        metrics_given: As for ``compare_outputs``.
    """
    default = not criteria and not metrics_given
    return [
        _KINDS[metric](name, metric, limit, Whole(arrays, samples, limits))
        for name, arrays in baseline.items()
        for limits in (default_limits(name, arrays) if default else limits_for(name, criteria))
        for metric, limit in limits.limits.items()
    ]


def loss_of(score: Score) -> float:
    """How a score lies to its limit: 0 is perfect, 1 exactly the limit, inf where it cannot be computed.

    For SQNR and PSNR the ratio of noise powers; for cosine, agreement and a user's metric what is lost over
    what may be lost; for errors and KL the value over the limit.
    """
    value, limit = score.value, score.limit
    if limit is None or math.isnan(value):
        return math.inf
    if score.metric in ("sqnr_db", "psnr_db"):
        return consistent(10 ** min((limit - value) / 10, 300.0), score.passed)
    sign = 1.0 if score.bound == "min" else -1.0
    perfect = score.baseline if score.baseline is not None else max(sign, 0.0)
    lost, allowed = max(0.0, sign * (perfect - value)), sign * (perfect - limit)
    if allowed > 0:
        return consistent(lost / allowed, score.passed)
    return consistent(math.inf if lost else 0.0, score.passed)


def consistent(loss: float, passed: bool) -> float:
    """``loss`` on the side of 1 that the verdict says, where rounding has put it on the other."""
    return min(loss, 1.0) if passed else max(loss, math.nextafter(1.0, 2.0))
