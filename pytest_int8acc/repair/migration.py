"""Factors that even out the channels of activations against the weights that read them (SmoothQuant)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pytest_int8acc.graph.migrate import Site, sites, weight_maxima
from pytest_int8acc.graph.network import Network
from pytest_int8acc.lab.values import TensorValues
from pytest_int8acc.tensors import Array

#: How much of an activation's spread goes to the weights (0.5 is the paper's choice).
ALPHAS = (0.5, 0.75, 0.25)
#: An activation whose greatest channel does not exceed the median channel by this has nothing to migrate.
OUTLYING = 3.0
#: Factors end here, so that FP16 holds what they are folded into.
_GREATEST = 2.0**12


def outlying_sites(network: Network, held: Mapping[str, TensorValues]) -> dict[str, tuple[Site, Array]]:
    """Sites whose channels need to be evened out, with max|x| per channel, float32 [channels].

    Args:
        network: Any.
        held: What those of its activations hold that may be migrated.
    """
    found: dict[str, tuple[Site, Array]] = {}
    for tensor, site in sites(network).items():
        maxima = held[tensor].channel_amax if tensor in held else None
        if maxima is not None and len(maxima) == site.channels and _sticks_out(maxima):
            found[tensor] = site, maxima
    return found


def _sticks_out(maxima: Array) -> bool:
    alive = maxima[maxima > 0]
    return bool(np.isfinite(maxima).all() and alive.size and alive.max() > OUTLYING * np.median(alive))


def factors(activation: Array, weight: Array, alpha: float) -> Array:
    """What to divide channels by: max|x|^alpha / max|w|^(1 - alpha) (arXiv:2211.10438, eq. 4).

    Normalized to a geometric mean of 1; a channel that is always zero, or is not read, keeps a factor of 1.

    Args:
        activation: max|x| per channel, float32 [channels].
        weight: max|w| per channel, of all weights that read it.
        alpha: 0 to 1.
    """
    alive = (activation > 0) & (weight > 0)
    if not alive.any():
        return np.ones_like(activation)
    logs = alpha * np.log(activation, where=alive, out=np.zeros_like(activation))
    logs -= (1 - alpha) * np.log(weight, where=alive, out=np.zeros_like(activation))
    found = np.exp(np.where(alive, logs - logs[alive].mean(), 0.0))
    return np.clip(found, 1 / _GREATEST, _GREATEST).astype(np.float32)


def migration(network: Network, outlying: Mapping[str, tuple[Site, Array]], alpha: float) -> dict[str, Array]:
    """Factors of each outlying activation, as a plan takes them."""
    return {
        tensor: factors(maxima, weight_maxima(network, site), alpha)
        for tensor, (site, maxima) in outlying.items()
    }
