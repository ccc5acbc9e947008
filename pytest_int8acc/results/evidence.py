"""What a verdict, a cause or a remedy rests on: what ran, where, on which samples, and with which scores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pytest_int8acc.results.precision import PrecisionContract
from pytest_int8acc.results.scores import Score

#: Where a model ran. exact: ONNX Runtime with Q/DQ unfused, which computes integer for integer what INT8
#: kernels compute. native: ONNX Runtime's default session with its own INT8 kernels. engine: an engine of
#: TensorRT.
Place = Literal["exact", "native", "engine"]
#: What ran. form: the case's own INT8 form. plan: the form under another plan. ablation: the form with one
#: property of one layer undone. alone: the float model with one layer in the low format.
Subject = Literal["form", "plan", "ablation", "alone"]


@dataclass(frozen=True)
class SampleSet:
    """Samples of the case's data."""

    count: int
    digest: str = ""
    """Of the whole data that they are taken from; empty where it is not known."""


@dataclass(frozen=True)
class Cost:
    """What was spent."""

    runs: float = 0.0
    """Inference, in runs over all samples."""
    seconds: float = field(default=0.0, compare=False)
    """Wall clock; two costs that differ in nothing else are equal."""
    builds: int = 0
    """Models or engines that were built."""

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.runs - other.runs, self.seconds - other.seconds, self.builds - other.builds)


@dataclass(frozen=True)
class Evidence:
    """What a claim rests on. A claim without evidence is a hint."""

    subject: Subject
    place: Place
    proved_on: SampleSet
    """The samples that the scores are of."""
    chosen_on: SampleSet | None = None
    """The samples by which a plan was chosen; None where nothing was chosen."""
    scores: tuple[Score, ...] = ()
    """Empty for a trial that measures nothing but the loss."""
    realized: PrecisionContract | None = None
    """The formats in which the layers ran; None where the runtime does not tell."""
    cost: Cost = Cost()
