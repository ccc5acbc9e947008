"""Single samples, reduced to a size that can be shown."""

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
    """The shape of the sample before it was reduced."""
    low: float
    """The least value, which a picture shows in black."""
    high: float
    """The greatest value, which a picture shows in white."""
    channels: int = 0
    """Channels of a picture: 1 for grey, 3 for colours in the order of the tensor; 0 for a curve."""
    rows: tuple[str, ...] = ()
    """Rows of a picture from the top, each as base64 of uint8 with shape [width, channels]."""
    values: tuple[float, ...] = ()
    """Values of a curve. A long one is divided into stretches; the minimum and maximum of each are kept."""


@dataclass(frozen=True)
class WorstSample:
    """The sample with the lowest SQNR in one output."""

    output: str
    sample: int
    """Its index."""
    sqnr_db: float
    views: tuple[View, ...]
    """The inputs, then the output of the baseline and of the candidate on one scale."""
