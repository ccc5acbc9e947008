"""Single samples, made small enough to look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SampleRole = Literal["input", "baseline", "INT8"]


@dataclass(frozen=True)
class View:
    """One tensor of one sample: a picture or a curve."""

    tensor: str
    role: SampleRole
    shape: tuple[int, ...]
    """Of the sample, before it was made small."""
    low: float
    """The least value: black."""
    high: float
    """The greatest value: white."""
    channels: int = 0
    """Of a picture: 1 grey, 3 colours in the tensor's own order; 0 for a curve."""
    rows: tuple[str, ...] = ()
    """Of a picture, from the top: base64 of uint8 [width, channels]."""
    values: tuple[float, ...] = ()
    """Of a curve, flattened; of a longer one the least and the greatest of each stretch in turn."""


@dataclass(frozen=True)
class WorstSample:
    """The sample of which an output loses most in INT8."""

    output: str
    sample: int
    """Its index."""
    sqnr_db: float
    views: tuple[View, ...]
    """Inputs, then the output of the baseline and of INT8, on one scale."""
