"""The cheapest way to meet the criteria: the first that is proved, and the search's own plan beside it."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from pytest_int8acc.answer.norms import fuse_norms
from pytest_int8acc.answer.precision import Found, keeps_low
from pytest_int8acc.answer.scales import units
from pytest_int8acc.answer.ways import WAYS, Candidate, Work, mix
from pytest_int8acc.graph.network import Network
from pytest_int8acc.graph.plan import activation_scales
from pytest_int8acc.lab.lab import Lab, Proof
from pytest_int8acc.results import Repair, SearchOutcome
from pytest_int8acc.results.causes import Rescale

logger = logging.getLogger("pytest_int8acc")
#: What one repair may cost: runs over all samples, all in all, and trials of scales, on a few samples each;
#: of these so many at most where runs take next to no time.
RUNS, TRIALS, MOST_TRIALS = 8.0, 60, 400
#: The part of both that is kept for plans that leave some groups high.
_FOR_MIXED = 0.4


@dataclass(frozen=True, eq=False)
class Repaired:
    """What meets the criteria, cheapest first, and what finding it cost."""

    repairs: tuple[Repair, ...]
    proofs: tuple[Proof, ...]
    """Of each repair."""
    trials: int
    builds: int
    notes: tuple[str, ...] = ()


def repair(lab: Lab, outcome: SearchOutcome, found: Found) -> Repaired:
    """Look for the cheapest way to meet a failing case's criteria.

    Dearer ways are not tried where a cheaper one is verified; a plan that keeps nothing in INT8 is none. Ends
    early, with what is verified by then, when the trials are spent, time is up, or on Ctrl-C.

    Args:
        lab: Of a failing case.
        outcome: What its search found; where it found no plan, all groups are looked at.
        found: The same, with its proof.

    Raises:
        Int8accError: A model does not build or run, or the data cannot be read.
    """
    built = lab.builds
    repairing = _Repairing(lab, outcome, found.room)
    ways: list[tuple[Repair, Proof]] = []
    scaled = not lab.is_narrow and outcome.ending.kind != "high-fails"
    if scaled and (not outcome.found or outcome.culprits):
        ways += lab.clock.attempt("repair", lambda: list(repairing.first_proved()), [])
    if lab.is_narrow and outcome.ending.kind != "high-fails":
        fused = partial(fuse_norms, lab, outcome, repairing.notes)
        late = not lab.clock.interrupted  # a search that took all the time need not be in vain
        for way, proof in lab.clock.attempt("repair", lambda: list(fused()), [], late=late):
            (ways if way.verified else repairing.unsteady).append((way, proof))
    if found.fix is not None and keeps_low(lab, outcome):
        ways.append((_high(outcome), found.fix))
    if found.reserved is not None and found.proof is not None:
        repairing.unsteady.append((_without_reserve(lab, outcome, found.proof), found.proof))
    if any(way.kind != "high" for way, _ in ways):  # the time of the search's own plan is told with it
        ways = _fastest_first([(replace(way, latency=lab.latency(p.form)), p) for way, p in ways])
    price = next((way.price for way, _ in ways if way.verified), math.inf)
    unsteady = [pair for pair in repairing.unsteady if pair[0].price < price]
    ways = [*ways, *unsteady] if price < math.inf else [*unsteady, *ways]
    budget, spent = repairing.work.budget, repairing.work.budget.trials
    enough = ", all that a repair may cost" if budget.empty and not lab.clock.over else ""
    trial_notes = [f"{spent} trials of other scales{enough}"] if spent else []
    notes = (*repairing.work.notes, *repairing.notes, *trial_notes)
    repairs, proofs = tuple(way for way, _ in ways), tuple(proof for _, proof in ways)
    return Repaired(repairs, proofs, spent, lab.builds - built, notes)


def _fastest_first(found: list[tuple[Repair, Proof]]) -> list[tuple[Repair, Proof]]:
    """Sorted by time, but first the cheapest by its MACs that no other is faster than beyond doubt.

    There is doubt where the middle 80 % of two times overlap. As it was where times are not known.
    """
    timed = [(way.latency, way) for way, _ in found if way.latency is not None]
    if len(timed) < len(found):
        return found
    clearly = min(latency.high_ms for latency, _ in timed)
    lead = next(way for latency, way in timed if latency.low_ms <= clearly)
    place = {id(way): (way is not lead, latency.median_ms) for latency, way in timed}
    return sorted(found, key=lambda pair: place[id(pair[0])])


class _Repairing:
    """Goes through the ways and proves what they propose."""

    def __init__(self, lab: Lab, outcome: SearchOutcome, room: float) -> None:
        self.lab, self.outcome = lab, outcome
        self.work = Work(lab, outcome.kept, lab.budget(RUNS, trials=(TRIALS, MOST_TRIALS)), room)
        self.notes: list[str] = []
        self.unsteady: list[tuple[Repair, Proof]] = []
        """The first that meets the criteria, but might not on other samples like these."""
        self._built = lab.builds

    def first_proved(self) -> Iterator[tuple[Repair, Proof]]:
        """The first candidate that meets the criteria when it is built; nothing where none does.

        Raises OutOfTime where there might have been one.
        """
        for way in WAYS:
            budget = self.work.budget
            budget.kept = 0.0 if way is mix or len(self.outcome.kept) < 2 else _FOR_MIXED
            for candidate in () if budget.empty else way(self.work):
                if not self.lab.is_proved(candidate.plan):
                    self.lab.clock.check()
                repair = self._confirmed(candidate)
                if repair is not None and repair[0].verified:
                    yield repair
                    return
                self.unsteady = self.unsteady or ([repair] if repair is not None else [])
            self.lab.clock.check()

    def _confirmed(self, candidate: Candidate) -> tuple[Repair, Proof] | None:
        """The candidate on all samples of the simulation, then built; None where either fails."""
        lab, simulator = self.lab, self.lab.simulator
        if not simulator.trial(candidate.plan).passed:
            return None
        if lab.builds - self._built >= lab.measured.settings.max_builds:
            spent = lab.measured.settings.max_builds
            self.notes.append(f"repair stopped early: the budget of {spent} builds is spent")
            return None
        base = candidate.base
        changed_units = units(base.network, candidate.choice.scales, base.ranges)
        choice = self.work.chooser(base).prune(changed_units, candidate.choice, candidate.high)
        pruned = replace(candidate, choice=choice)
        candidate = pruned if simulator.trial(pruned.plan).passed else candidate
        proof = lab.prove(candidate.plan)
        if not proof.verdict.passed:
            self.notes.append("other scales pass in the simulation and fail in the built model")
            return None
        return self._repair(candidate, proof), proof

    def _repair(self, candidate: Candidate, proof: Proof) -> Repair:
        layers = tuple(group.name for group in self.lab.groups if group.name in candidate.high)
        migrated, outputs = candidate.base.migration is not None, candidate.base.plan.outputs
        kind_of_layers: Literal["unfuse", "mixed"] = "unfuse" if outputs else "mixed"
        return Repair(
            kind=kind_of_layers if layers or outputs else "migrate" if migrated else "recalibrate",
            layers=layers,
            rescales=tuple(_rescales(self.lab.network, candidate)),
            scores=proof.verdict.scores,
            verified=proof.verdict.holds,
            price=self.lab.share(layers),
            precision=self.outcome.precision,
            culprits=len(self.outcome.kept),
            weights=candidate.base.weights,
            migration=candidate.base.migration,
            data=candidate.base.source.description,
            outputs=outputs,
        )


def _high(outcome: SearchOutcome) -> Repair:
    """The search's own plan."""
    share, kept = 1.0 - outcome.int8_share, outcome.kept
    return Repair("high", kept, (), outcome.fixed, outcome.verified, share, outcome.precision, len(kept))


def _without_reserve(lab: Lab, outcome: SearchOutcome, proof: Proof) -> Repair:
    """The culprits alone kept high, where the search's own plan keeps more for a reserve."""
    share, layers = lab.share(proof.plan.high), tuple(proof.plan.high)
    return Repair("high", layers, (), proof.verdict.scores, False, share, outcome.precision, len(layers))


def _rescales(original: Network, candidate: Candidate) -> Iterator[Rescale]:
    """What the choice changes, against the case as it was given."""
    old, base = activation_scales(original), candidate.base
    news = candidate.plan.scales
    for tensor, scale in candidate.choice.scales.items():
        if tensor in news and news[tensor] is not base.plan.scales.get(tensor):
            was = old.get(tensor, base.own[tensor])
            yield Rescale(tensor, candidate.choice.methods[tensor], was, scale)
