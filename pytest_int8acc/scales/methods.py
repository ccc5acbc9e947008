"""Calibration methods, each a range made of what a tensor was seen to hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.engines.bins import Bins
from pytest_int8acc.graph.formats import Format
from pytest_int8acc.scales.ranges import entropy_amax, mse_amax, percentile_amax

#: How many of the greatest maxima are averaged (NVIDIA's INT8 debugging guide).
_TOP = 5
#: Bins of the entropy search where a candidate is wanted; its time grows with them.
FEW_BINS = 1 << 9


class Held(Protocol):
    """What one tensor was seen to hold."""

    @property
    def bins(self) -> Bins:
        """Over [-amax, amax]."""

    @property
    def amax(self) -> float:
        """Greatest magnitude, above 0."""

    @property
    def low(self) -> Format:
        """What it is quantized to."""

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
    return percentile_amax(held.bins.with_zeros, held.amax, percentile)


#: By name, those first that are best most often.
METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("mse", False, lambda held, bins: mse_amax(held.bins.counts, held.amax, held.low)),
        Method("minmax", False, lambda held, bins: held.amax),
        Method(f"topk {_TOP}", False, lambda held, bins: float(np.sort(held.maxima)[-_TOP:].mean())),
        *(
            Method(f"percentile {p:g}", False, partial(_percentile, percentile=p))
            for p in (99.999, 99.99, 99.9, 99.0)
        ),
        Method("entropy", True, lambda held, bins: entropy_amax(held.bins.merged(bins), held.amax)),
    )
}
