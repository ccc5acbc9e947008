"""Values of single samples, reduced to a size that a report can show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SampleRole = Literal["input", "baseline", "INT8"]


@dataclass(frozen=True)
class View:
    """One tensor of one sample, reduced to a picture or a curve that a report can show."""

    tensor: str
    role: SampleRole
    shape: tuple[int, ...]
    """The shape of the tensor, for one sample, before it was reduced."""
    low: float
    """The least value of the tensor; for pictures of an output, of baseline and candidate together. A picture
    shows it in black."""
    high: float
    """The greatest value of the tensor; for pictures of an output, of baseline and candidate together. A
    picture shows it in white."""
    channels: int = 0
    """The number of colour channels of a picture: 1 for grey, 3 for colours; 0 for a curve."""
    rows: tuple[str, ...] = ()
    """The rows of a picture from the top, each as base64 of uint8 of shape [width, channels].

    Empty for a curve.
    """
    values: tuple[float, ...] = ()
    """The values of a curve; empty for a picture. A long curve is cut into sections, and only the minimum and
    the maximum of each section are kept."""


@dataclass(frozen=True)
class Decision:
    """One sample whose class in the candidate differs from that in the baseline."""

    sample: int
    """The index of the sample in the dataset."""
    baseline: int
    """The class that the baseline gives to the sample."""
    candidate: int | None
    """The class that the candidate gives to the sample; None if its output holds NaN or infinity."""
    margin: float | None
    """In the baseline's output: the score of the baseline's class minus the score of the candidate's class.

    None if an output holds class ids in place of scores, or if the candidate has no class.
    """
    label: int | None = None
    """The right class according to the labels; None if it is not known."""
    file: str = ""
    """The name of the sample's file; empty if the samples are not files."""


@dataclass(frozen=True)
class ChangedDecisions:
    """The samples whose class in the candidate differs from that in the baseline, for one output."""

    count: int
    """The number of samples whose class differs between baseline and candidate."""
    samples: int
    """The number of all samples that were compared."""
    largest: tuple[Decision, ...]
    """Of the samples whose class differs, at most 100 with the largest margins, the largest first."""
    broken: int | None = None
    """The number of samples that only the baseline puts into the labelled class; None without labels."""
    mended: int | None = None
    """The number of samples that only the candidate puts into the labelled class; None without labels."""


@dataclass(frozen=True)
class WorstSample:
    """The sample of one output with the lowest SQNR, and pictures or curves of its tensors."""

    output: str
    sample: int
    """The index of the sample in the dataset."""
    sqnr_db: float
    views: tuple[View, ...]
    """Views of the inputs, then of the output in the baseline and in the candidate. The two pictures of an
    output have the same range of grey levels."""
