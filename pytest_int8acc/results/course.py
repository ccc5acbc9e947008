"""The progress of a case: its phases, their times, and the event that ended the work early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: A phase of a case. ``setup`` reads model, data and golden. ``runs`` builds, runs and scores the baseline
#: and the candidate. ``proof`` builds and runs the model that the search recommends. ``causes`` looks for the
#: failing stage and the causes. ``repair`` tries remedies. ``speed`` tries plans that may run faster.
#: ``waiting`` is the time in which other processes used the GPU.
PhaseName = Literal[
    "setup", "calibration", "runs", "search", "proof", "causes", "repair", "speed", "files", "waiting"
]
#: A step after the verdict. It is left out if the time limit was reached before the step.
Part = Literal[
    "search",
    "proof",
    "certification",
    "fewer-layers",
    "reserve",
    "alone",
    "tradeoff",
    "layer-precisions",
    "engine-layers",
    "latency",
    "stages",
    "causes",
    "layers",
    "ranges",
    "calibrations",
    "repair",
    "speed",
    "fix",
    "reproducer",
    "worst-samples",
]
#: The event that ended the work after the verdict early: the time limit was reached, or Ctrl-C was pressed.
StopKind = Literal["seconds-spent", "interrupted"]


@dataclass(frozen=True)
class Phase:
    """One phase of a case, such as the search, and the time that it took."""

    name: PhaseName
    seconds: float
    """Wall-clock time of the phase in seconds, without the time of other phases that run inside it."""
    cpu_seconds: float = 0.0
    """CPU time of the phase in seconds, of all threads of this process, but not of other processes."""
    passes: float = 0.0
    """Samples that models ran in ONNX Runtime, divided by the samples of the case."""
    peak_bytes: int = 0
    """The most memory that this process has ever held by the end of the phase; 0 if it is not known."""


@dataclass(frozen=True)
class Stop:
    """The event that ended the work after the verdict early, and the steps that were left out."""

    kind: StopKind
    max_seconds: float
    """The limit, in seconds, on the time of all steps after the verdict."""
    left_out: tuple[Part, ...]
    """The steps after the verdict that were left out or cut short, in order."""


@dataclass(frozen=True)
class Doing:
    """The phase that a case is in, and the progress of this phase."""

    phase: PhaseName
    thing: str = ""
    """The unit of ``done`` and ``total`` in the singular, like ``trial``; empty if the phase has no count."""
    done: int = 0
    total: int | None = None
