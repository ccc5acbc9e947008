"""Chooses factors that even out the channels of activations: SmoothQuant and cross-layer equalization."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from pytest_int8acc.graph.index import attribute
from pytest_int8acc.graph.migrate import Site, sites, weight_maxima
from pytest_int8acc.graph.network import Network
from pytest_int8acc.observers.observer import Observer
from pytest_int8acc.tensors import Array

#: Migration strengths that are tried: the share of the differences between an activation's channels that is
#: moved into the weights. SmoothQuant uses 0.5.
ALPHAS = (0.5, 0.75, 0.25)
#: Range is moved only if the noise of the product is predicted to fall by at least this many dB.
GAIN_DB = 3.0
#: Maximum factor of a channel. FP16 can still hold weights that are multiplied by such a factor.
_GREATEST = 2.0**12


@dataclass(frozen=True, eq=False)
class Uneven:
    """An activation with uneven channels, whose range can be moved into the weights that read it."""

    site: Site
    activation: Array
    """The greatest magnitude of each channel of the activation, float32 [channels]."""
    other: Array
    """The greatest magnitude of the weights, or of the other activation, that multiply each channel."""
    free: bool = False
    """Whether the weights have a scale for each input channel, so that moving range into them is harmless."""

    def factors(self, alpha: float) -> Array:
        """The factors that divide the channels of the activation, with the migration strength ``alpha``."""
        return factors(self.activation, self.other, 1.0 if self.free else alpha)

    def gain_db(self, alpha: float) -> float:
        """The predicted reduction of the product's noise, in dB, with the migration strength ``alpha``."""
        by = self.factors(alpha)
        before, after = self._noise(1.0), self._noise(by)
        return float(10 * np.log10(before / after))

    def _noise(self, by: Array | float) -> float:
        """The noise of the product after the channels were divided by ``by``, up to a constant factor.

        Each operand adds the square of its quantization step times the squared length of the other operand.
        """
        x, w = self.activation.astype(np.float64) / by, self.other.astype(np.float64) * by
        moved = 0.0 if self.free else w.max() ** 2 * (x**2).sum()
        return float(x.max() ** 2 * (w**2).sum() + moved)


def uneven_sites(network: Network, movable: Collection[str], values: Observer) -> dict[str, Uneven]:
    """The activations, by name, for which moving range is predicted to gain at least ``GAIN_DB``.

    Args:
        network: The network.
        movable: Activations whose range may be moved. For a product of two activations, both must be named.
        values: Measures the values of the network's tensors.
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
    """Whether each channel of an activation has its own weights and scale, as in depthwise convolutions."""
    nodes = network.model.everywhere.nodes
    weights = [edge.quantization for edge in network.edges if edge.node in site.readers and edge.index == 1]
    one = all(attribute(nodes[reader], "group", 1) == site.channels for reader in site.readers)
    return one and site.axis == 1 and all(weight.axis is not None for weight in weights)


def factors(activation: Array, other: Array, alpha: float) -> Array:
    """The factors that divide channels: max|x|^alpha / max|w|^(1 - alpha) (arXiv:2211.10438, eq. 4).

    Their geometric mean is normalized to 1. A channel that is always zero, or is not read, has the factor 1.

    Args:
        activation: max|x| of each channel, float32 [channels].
        other: max|w| of each channel over all weights that it is multiplied with.
        alpha: The migration strength, 0 to 1; see ``ALPHAS``.
    """
    alive = (activation > 0) & (other > 0)
    if not alive.any():
        return np.ones_like(activation)
    logs = alpha * np.log(activation, where=alive, out=np.zeros_like(activation))
    logs -= (1 - alpha) * np.log(other, where=alive, out=np.zeros_like(activation))
    found = np.exp(np.where(alive, logs - logs[alive].mean(), 0.0))
    return np.clip(found, 1 / _GREATEST, _GREATEST).astype(np.float32)


def best_first(uneven: Mapping[str, Uneven]) -> list[float]:
    """``ALPHAS``, sorted by the predicted gain over all activations, the most promising first."""
    return sorted(ALPHAS, key=lambda alpha: -sum(site.gain_db(alpha) for site in uneven.values()))
