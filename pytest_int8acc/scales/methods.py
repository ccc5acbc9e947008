"""Calibration methods, each a range made of what a tensor was seen to hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.engines.calibrators import entropy_amax
from pytest_int8acc.scales.calibrate import mse_amax, percentile_amax

#: How many of the greatest maxima are averaged (NVIDIA's INT8 debugging guide).
_TOP = 5
#: Bins of the entropy search where a candidate is wanted; its time grows with their square.
FEW_BINS = 1 << 9


class Held(Protocol):
    """What one tensor was seen to hold."""

    counts: NDArray[np.int64]
    """Values other than 0 in bins over [-limit, limit], an even number of them."""
    limit: float
    zeros: int

    @property
    def amax(self) -> float:
        """Greatest magnitude, above 0."""

    @property
    def maxima(self) -> NDArray[np.float32]:
        """Greatest magnitude of each sample."""


@dataclass(frozen=True)
class Method:
    """One way to choose a range."""

    name: str
    """As in reports: the spec's word, with its number."""
    slow: bool
    """It takes far longer than the others, for each tensor."""
    amax: Callable[[Held, int], float]
    """The range of a tensor, with so many bins for the entropy search."""


def _percentile(held: Held, bins: int, percentile: float) -> float:
    counts = held.counts.copy()
    counts[counts.size // 2] += held.zeros
    return min(percentile_amax(counts, held.limit, percentile), held.amax)


def _entropy(held: Held, bins: int) -> float:
    """Over bins that end at amax, as in calibration: ONNX Runtime's threshold depends on their width."""
    size = held.counts.size
    centres = ((np.arange(size) + 0.5) * (2 / size) - 1) * (held.limit / held.amax)
    places = np.clip((centres + 1) * (bins // 2), 0, bins - 1).astype(np.int64)
    return entropy_amax(np.bincount(places, held.counts, bins).astype(np.int64), held.amax)


#: By name, those first that are best most often.
METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("mse", False, lambda held, bins: mse_amax(held.counts, held.amax, held.limit)),
        Method("minmax", False, lambda held, bins: held.amax),
        Method(f"topk {_TOP}", False, lambda held, bins: float(np.sort(held.maxima)[-_TOP:].mean())),
        *(
            Method(f"percentile {p:g}", False, partial(_percentile, percentile=p))
            for p in (99.999, 99.99, 99.9, 99.0)
        ),
        Method("entropy", True, _entropy),
    )
}
