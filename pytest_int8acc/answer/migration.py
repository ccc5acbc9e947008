"""Factors that even out the channels of activations against what reads them: SmoothQuant, equalization."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from pytest_int8acc.graph.index import attribute
from pytest_int8acc.graph.migrate import Site, sites, weight_maxima
from pytest_int8acc.graph.network import Network
from pytest_int8acc.observers.observer import Observer
from pytest_int8acc.tensors import Array

#: The shares of an activation's spread that are tried to go into its weights (SmoothQuant's choice is 0.5).
ALPHAS = (0.5, 0.75, 0.25)
#: Minimum predicted reduction of a product's noise, in dB, for range to be moved.
GAIN_DB = 3.0
#: Maximum factor, so that FP16 holds the weights that it is folded into.
_GREATEST = 2.0**12


@dataclass(frozen=True, eq=False)
class Uneven:
    """A site whose channels need to be evened out."""

    site: Site
    activation: Array
    """max|x| per channel, float32 [channels]."""
    other: Array
    """The same of what reads it: weights, or another activation."""
    free: bool = False
    """Each channel's weights have a scale of their own, so they take all of the spread at no cost."""

    def factors(self, alpha: float) -> Array:
        """The factors that divide the channels of the activation; see ``factors``."""
        return factors(self.activation, self.other, 1.0 if self.free else alpha)

    def gain_db(self, alpha: float) -> float:
        """The predicted reduction of the product's noise by a migration, in dB."""
        by = self.factors(alpha)
        before, after = self._noise(1.0), self._noise(by)
        return float(10 * np.log10(before / after))

    def _noise(self, by: Array | float) -> float:
        """Of the product after a move, but for a factor: each one's step times the other's length."""
        x, w = self.activation.astype(np.float64) / by, self.other.astype(np.float64) * by
        moved = 0.0 if self.free else w.max() ** 2 * (x**2).sum()
        return float(x.max() ** 2 * (w**2).sum() + moved)


def uneven_sites(network: Network, movable: Collection[str], values: Observer) -> dict[str, Uneven]:
    """Sites where a migration is predicted to gain at least ``GAIN_DB``.

    Args:
        network: Any.
        movable: Activations that may be moved; those of a product only together.
        values: Of the network.
    """
    every = {t: s for t, s in sites(network).items() if t in movable and s.partner in (*movable, "")}
    held = values.of(tensor for site in every.values() for tensor in site.seen)
    found: dict[str, Uneven] = {}
    for tensor, site in every.items():
        maxima, *partner = (held[seen].channel_amax for seen in site.seen)
        other = partner[0] if partner else weight_maxima(network, site)
        if maxima is None or other is None or not maxima.shape == other.shape == (site.channels,):
            continue
        uneven = Uneven(site, maxima, other, _is_depthwise(network, site))
        finite = np.isfinite(maxima).all() and np.isfinite(other).all()
        if finite and maxima.any() and other.any() and max(map(uneven.gain_db, ALPHAS)) >= GAIN_DB:
            found[tensor] = uneven
    return found


def _is_depthwise(network: Network, site: Site) -> bool:
    """Whether each weight is read by one channel, and quantized with a scale for each."""
    nodes = network.model.index.nodes
    weights = [edge.quantization for edge in network.edges if edge.node in site.readers and edge.index == 1]
    one = all(attribute(nodes[reader], "group", 1) == site.channels for reader in site.readers)
    return one and site.axis == 1 and all(weight.axis is not None for weight in weights)


def factors(activation: Array, other: Array, alpha: float) -> Array:
    """The factors that divide channels: max|x|^alpha / max|w|^(1 - alpha) (arXiv:2211.10438, eq. 4).

    Normalized to a geometric mean of 1; a channel that is always zero, or is not read, keeps a factor of 1.

    Args:
        activation: max|x| per channel, float32 [channels].
        other: max|w| per channel, of all that reads it.
        alpha: 0 to 1.
    """
    alive = (activation > 0) & (other > 0)
    if not alive.any():
        return np.ones_like(activation)
    logs = alpha * np.log(activation, where=alive, out=np.zeros_like(activation))
    logs -= (1 - alpha) * np.log(other, where=alive, out=np.zeros_like(activation))
    found = np.exp(np.where(alive, logs - logs[alive].mean(), 0.0))
    return np.clip(found, 1 / _GREATEST, _GREATEST).astype(np.float32)


def best_first(uneven: Mapping[str, Uneven]) -> list[float]:
    """``ALPHAS`` by their predicted gain over all sites, the greatest first."""
    return sorted(ALPHAS, key=lambda alpha: -sum(site.gain_db(alpha) for site in uneven.values()))
