"""The limits of a case as demands on samples."""

from __future__ import annotations

from collections.abc import Sequence

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
