"""The course of a case: the time of its phases, and what ended it early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: A phase of a case. setup: model, data and golden are read. runs: both forms are built, run and scored.
#: proof: the plan of the search is built and run. causes: stages and causes are looked for. repair: remedies
#: are tried.
PhaseName = Literal["setup", "calibration", "runs", "search", "proof", "causes", "repair", "files"]
#: A step after the verdict, which can be left out if the time is spent.
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
    "fix",
    "reproducer",
    "worst-samples",
]
#: What ended the work after a verdict early: the time that it may take, or Ctrl-C.
StopKind = Literal["seconds-spent", "interrupted"]


@dataclass(frozen=True)
class Phase:
    """One phase of a case."""

    name: PhaseName
    seconds: float
    """Wall-clock time, without the time of phases inside this one."""


@dataclass(frozen=True)
class Stop:
    """Why the work after the verdict ended early."""

    kind: StopKind
    max_seconds: float
    """The limit on the time of all steps after the verdict, in seconds."""
    left_out: tuple[Part, ...]
    """The steps that were left out or cut short, in order."""


@dataclass(frozen=True)
class Doing:
    """The phase that a case is in, and its progress."""

    phase: PhaseName
    thing: str = ""
    """The unit that is counted, in the singular, like ``trial``; empty if nothing is counted."""
    done: int = 0
    total: int | None = None
