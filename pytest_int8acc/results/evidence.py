"""The evidence for a verdict, a cause or a remedy: what ran, where, on which samples, with which scores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pytest_int8acc.results.precision import PrecisionContract
from pytest_int8acc.results.scores import Score

#: The session or engine that a model ran in. ``exact``: ONNX Runtime with unfused Q/DQ, which computes the
#: same integers as INT8 kernels. ``native``: ONNX Runtime's default session with its own INT8 kernels.
#: ``engine``: a TensorRT engine.
Place = Literal["exact", "native", "engine"]
#: The model that ran. ``form``: the INT8 candidate of the case. ``plan``: the candidate with other layers in
#: high precision or other scales. ``ablation``: the candidate with one property of one layer undone.
#: ``alone``: the float model with one layer in the low format.
Subject = Literal["form", "plan", "ablation", "alone"]


@dataclass(frozen=True)
class SampleSet:
    """The number of samples that a result was measured on, and the digest of their data."""

    count: int
    digest: str = ""
    """The digest of the data that the samples are taken from; empty if it is not known."""


@dataclass(frozen=True)
class HeldOut:
    """The held-out samples. No layer, scale or plan was chosen on them, so they can prove a plan."""

    count: int = 0
    """The number of held-out samples. With 0, nothing is proved about samples other than those on which the
    plan was chosen."""
    missing: int = 0
    """The number of samples that the user must add before some can be held out; 0 if there are enough."""
    key: Literal["inputs", "prove"] = "inputs"
    """The key of the spec that gives the held-out samples: a part of ``inputs``, or all of ``prove``."""
    scores: tuple[Score, ...] = ()
    """The scores of the built model on the held-out samples; empty if no model was built."""


@dataclass(frozen=True)
class Cost:
    """The cost of a trial, a search or a verdict."""

    runs: float = 0.0
    """The number of inferences divided by the number of all samples, so 1 is one run over all samples."""
    seconds: float = field(default=0.0, compare=False)
    """The wall-clock time in seconds. It is ignored when two costs are compared."""
    builds: int = 0
    """The number of models or engines that were built."""

    def __sub__(self, other: Cost) -> Cost:
        runs = round(self.runs - other.runs, 9)  # the last digits depend on what was added before
        return Cost(runs, self.seconds - other.seconds, self.builds - other.builds)


@dataclass(frozen=True)
class Evidence:
    """Evidence for a verdict, a cause or a remedy: the model that ran, its samples, scores and cost."""

    subject: Subject
    place: Place
    proved_on: SampleSet
    """The samples on which the scores were measured."""
    chosen_on: SampleSet | None = None
    """The samples on which the search chose the plan. None if there was no search."""
    held_out: HeldOut | None = None
    """The samples among ``proved_on`` on which no choice was based; None if no proof is needed."""
    scores: tuple[Score, ...] = ()
    """The scores of the model; empty for a trial that only measures the normalized loss."""
    realized: PrecisionContract | None = None
    """The formats in which the layers ran; None if the runtime does not report them."""
    cost: Cost = Cost()
