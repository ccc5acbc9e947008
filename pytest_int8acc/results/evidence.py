"""The evidence for a verdict, a cause or a remedy: what ran, where, on which samples, with which scores."""

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
    """The digest of the data that they are taken from; empty if it is not known."""


@dataclass(frozen=True)
class Cost:
    """The cost of a trial, a search or a verdict."""

    runs: float = 0.0
    """The inference, in runs over all samples."""
    seconds: float = field(default=0.0, compare=False)
    """The wall-clock time. It is ignored when two costs are compared."""
    builds: int = 0
    """The number of models or engines that were built."""

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.runs - other.runs, self.seconds - other.seconds, self.builds - other.builds)


@dataclass(frozen=True)
class Evidence:
    """What shows that a verdict, a cause or a remedy is right."""

    subject: Subject
    place: Place
    proved_on: SampleSet
    """The samples on which the scores were measured."""
    chosen_on: SampleSet | None = None
    """The samples on which a plan was chosen; None if nothing was chosen."""
    scores: tuple[Score, ...] = ()
    """The scores; empty for a trial that only measures the normalized loss."""
    realized: PrecisionContract | None = None
    """The formats in which the layers ran; None if the runtime does not tell."""
    cost: Cost = Cost()
