"""What a rare sample with a far larger error would add to a loss that few samples show."""

from __future__ import annotations

import math

import numpy as np

from pytest_int8acc.scores.rows import F64

#: One more unit is assumed, as bad as the worst one of this many times as many units.
_RARER = 3.0
#: Maximum ratio between two of the largest losses.
_MAX_RATIO = 1e12


def with_rare_unit(loss: float, influence: F64) -> tuple[float, float]:
    """Returns the logarithm of a loss with one more unit, which is worse than all others; and its error.

    The unit's loss is that of the worst one of ``_RARER`` times as many units, if the largest losses have
    Pareto's tail (Weissman, 1978). The exponent is that of the losses at rank 1 and at the square root of
    their number.

    Args:
        loss: The logarithm of the loss of all units, whose losses are added.
        influence: By how much each unit moves the logarithm, times the number of units, [units]; at least two
            units.

    Returns:
        The logarithm, and its standard error, above 0. Its degrees of freedom are the number of units.
    """
    units = len(influence)
    shares = np.maximum((influence * (1 - 1 / units) + 1) / units, 0.0)
    ranked = np.sort(shares)[::-1]
    place = min(max(math.isqrt(units), 3), units - 1)
    ratio = ranked[0] / max(ranked[place], ranked[0] / _MAX_RATIO)
    rare = ranked[0] * math.exp(math.log(_RARER) * math.log(ratio) / math.log(place + 1))
    moved = (units + 1) * np.append(shares, rare) / (shares.sum() + rare)
    error = math.sqrt(float(np.var(moved)) / units)
    return loss + math.log((1 + rare) * units / (units + 1)), max(error, 1e-12)
