"""Values of single samples, reduced to a size that a report can show."""

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
    """The least value of the tensor. A picture shows it in black."""
    high: float
    """The greatest value of the tensor. A picture shows it in white."""
    channels: int = 0
    """The number of colour channels of a picture: 1 for grey, 3 for colours; 0 for a curve."""
    rows: tuple[str, ...] = ()
    """The rows of a picture from the top, each as base64 of uint8 of shape [width, channels].

    Empty for a curve.
    """
    values: tuple[float, ...] = ()
    """The values of a curve. Of a long curve, the minimum and the maximum of each section are kept."""


@dataclass(frozen=True)
class WorstSample:
    """The sample of one output with the lowest SQNR, and pictures or curves of its tensors."""

    output: str
    sample: int
    """The index of the sample in the dataset."""
    sqnr_db: float
    views: tuple[View, ...]
    """Views of the inputs, then of the output in the baseline and in the candidate, with a common scale."""
