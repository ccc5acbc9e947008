"""A dataset of arrays in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pytest_int8acc.data import Batch


class Samples:
    """Arrays by input, or that of the input ``x``; ``passes`` tells how often they were asked for.

    Behind each batch stand ``padding`` rows of 1e6, which are no samples.
    """

    is_random = False
    description = "arrays"

    def __init__(self, arrays: Any, batch: int = 64, padding: int = 0) -> None:
        self.arrays = arrays if isinstance(arrays, Mapping) else {"x": arrays}
        self.batch, self.padding, self.passes = batch, padding, 0
        self.samples = max(len(array) for array in self.arrays.values())

    def batches(self) -> Iterator[Batch]:
        self.passes += 1
        for start in range(0, self.samples, self.batch):
            parts = {name: array[start : start + self.batch] for name, array in self.arrays.items()}
            rows = min(self.batch, self.samples - start)
            feed = {name: self._filled(part) if self.padding else part for name, part in parts.items()}
            yield Batch(feed, rows, self.padding)

    def _filled(self, part: Any) -> Any:
        return np.concatenate([part, np.full((self.padding, *part.shape[1:]), 1e6, np.float32)])
