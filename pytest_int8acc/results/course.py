"""How a case went: where its time was spent, and what ended it before all was done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: setup: model, data and golden read. runs: the forms built, run and scored. proof: the plan found, built and
#: run. causes: the diagnosis.
PhaseName = Literal["setup", "calibration", "runs", "search", "proof", "causes", "repair", "files"]
_OfSearch = Literal["search", "proof", "certification", "fewer-layers", "reserve", "alone", "tradeoff"]
_OfEngines = Literal["layer-precisions", "engine-layers", "latency"]
_OfDiagnosis = Literal["stages", "causes", "layers", "ranges", "calibrations"]
#: What may follow a verdict.
Part = Literal[_OfSearch, _OfEngines, _OfDiagnosis, "repair", "fix", "reproducer", "worst-samples"]


@dataclass(frozen=True)
class Phase:
    """One phase of a case."""

    name: PhaseName
    seconds: float
    """Of wall clock, without those of other phases within it."""


@dataclass(frozen=True)
class Stop:
    """What ended a case after its verdict, before all that was wanted was done."""

    kind: Literal["seconds-spent", "interrupted"]
    max_seconds: float
    """The bound on all that follows the verdict."""
    left_out: tuple[Part, ...]
    """In whole or in part, in the order in which it was met."""


@dataclass(frozen=True)
class Doing:
    """What a case is doing, and how far it is."""

    phase: PhaseName
    thing: str = ""
    """What is counted, in the singular; empty where nothing is."""
    done: int = 0
    total: int | None = None
