"""The ways of mending a case, cheapest first: each proposes plans, best first, until one is proved.

    unfuse ─fails→ recalibrate ─fails→ migrate ─fails→ all scales ─fails→ mixed: some culprits high

A way is a function of a ``Work``; what it learns it leaves there for the ways after it (NVIDIA's INT8
debugging guide tries them in this order).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pytest_int8acc.answer.fresh_weights import weight_scales
from pytest_int8acc.answer.fusions import fewest_outputs
from pytest_int8acc.answer.migration import best_first, uneven_sites
from pytest_int8acc.answer.scales import (
    ENOUGH,
    NEAR,
    Choice,
    Chooser,
    Ranges,
    activations,
    plan_with,
    units,
    with_tied,
)
from pytest_int8acc.graph.migrate import migrate
from pytest_int8acc.graph.network import Network, Plan, Precision, symmetric
from pytest_int8acc.graph.plan import activation_scales
from pytest_int8acc.lab.lab import Lab, Source
from pytest_int8acc.lab.run_budget import RunBudget
from pytest_int8acc.results import Migration
from pytest_int8acc.search import certify
from pytest_int8acc.search.types import Budget
from pytest_int8acc.tensors import Array

logger = logging.getLogger("pytest_int8acc")


@dataclass(frozen=True, eq=False)
class Base:
    """Where other scales are looked for: a plan, and ranges for the tensors that it leads to."""

    plan: Plan
    """Weights taken anew, activations made symmetric, range moved; no group is high."""
    network: Network
    """The case's under this plan."""
    own: Mapping[str, float]
    """Scale of each activation under this plan."""
    ranges: Ranges
    source: Source
    choice: Choice = field(default_factory=Choice)
    """The best scales so far, with everything in INT8."""
    weights: tuple[str, ...] = ()
    """Constants with scales taken anew."""
    touched: tuple[str, ...] = ()
    """Activations whose values changed by moving range."""
    migration: Migration | None = None


@dataclass(frozen=True, eq=False)
class Candidate:
    """A plan that should meet the criteria."""

    base: Base
    choice: Choice
    high: Mapping[str, Precision] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        """Base, choice and groups in one."""
        return plan_with(self.base.plan, self.base.own, self.choice, self.high)


class Work:
    """One repair under way: the lab, the culprits, what may still be spent, and the bases tried so far."""

    def __init__(self, lab: Lab, culprits: tuple[str, ...], budget: RunBudget, room: float = 1.0) -> None:
        """Keep what is needed.

        Args:
            lab: Of a failing case.
            culprits: None: all groups are looked at.
            budget: Pays for trials.
            room: The share of what the limits allow that leaves a reserve.
        """
        self.lab, self.culprits, self.budget, self.room = lab, culprits, budget, room
        self.bases: list[Base] = []
        self.notes: list[str] = []

    @property
    def groups(self) -> tuple[str, ...] | None:
        """Groups whose tensors are looked at first; None: all."""
        return self.culprits or None

    @property
    def best(self) -> Base:
        """The base whose outputs err least."""
        return min(self.bases, key=lambda base: base.choice.normalized_loss)

    def chooser(self, base: Base) -> Chooser:
        """Looks for scales over a base."""
        return Chooser(self.lab.simulator, base.plan, base.own, self.budget)

    def log(self, text: str, *numbers: object) -> None:
        """Say what is looked for."""
        logger.info("%s: " + text, self.lab.measured.case.name, *numbers)


Way = Callable[[Work], Iterator[Candidate]]
#: Shares of what the limits allow that mixed plans may use up, one after the other.
_ROOMS = (1.0, 0.7, 0.4)


def unfuse(work: Work) -> Iterator[Candidate]:
    """Outputs that break up what an engine fuses wrong, where its model is right; see ``fusions``."""
    lab = work.lab
    most = lab.builds + lab.measured.settings.max_builds - 1  # the ways after it have one

    def spent() -> bool:
        return lab.builds >= most or work.budget.empty

    for plan in lab.refuted if lab.measured.backend.builds_engines else ():
        work.log("looking for the fusion that computes wrong")
        outputs, note = fewest_outputs(lab, plan, work.culprits, spent)
        work.notes.append(note)
        if outputs:
            base = Plan(plan.high, plan.scales, plan.moves, outputs)
            source = Source(lab.measured.inputs, "")
            yield Candidate(Base(base, lab.network, {}, Ranges({}), source), Choice(), plan.high)


def recalibrate(work: Work) -> Iterator[Candidate]:
    """Other scales for what the culprits read, from calibration data and from the inputs."""
    for source in work.lab.sources:
        work.log("looking for other scales, ranges from %s", source.description or "the inputs")
        odd_ones = _not_symmetric(work.lab.network)
        looked_at = with_tied(work.lab.network, [*activations(work.lab.network, work.groups), *odd_ones])
        if work.bases and work.best.choice.normalized_loss > NEAR and _are_like(work, looked_at):
            return  # what these ranges lead to is known
        ranges = Ranges(work.lab.values(source.data).of(looked_at))
        work.bases.append(_base(work, source, ranges, odd_ones))
        yield from _rescaled(work, len(work.bases) - 1, work.groups)


def migrate_ranges(work: Work) -> Iterator[Candidate]:
    """Channels evened out, with the first alpha that does, else the best one, with plain ranges.

    Not what the case's own plan moves already.
    """
    base, lab = work.best, work.lab
    chosen_units = [t for t in activations(base.network, work.groups) if t not in lab.int8.given.moves]
    uneven = uneven_sites(base.network, chosen_units, lab.values(base.source.data, base.plan))
    best = base
    for alpha in best_first(uneven) if uneven else ():
        if work.budget.empty or (best is not base and best.choice.normalized_loss <= ENOUGH):
            break
        work.log("migrating %d activations, alpha %g", len(uneven), alpha)
        moves = {tensor: site.factors(alpha) for tensor, site in uneven.items()}
        best = min(best, _migrated(work, base, moves, alpha), key=lambda base: base.choice.normalized_loss)
    if best is not base:
        work.bases.append(best)
        yield from _rescaled(work, len(work.bases) - 1, work.groups)


def rescale_all(work: Work) -> Iterator[Candidate]:
    """Other scales for every tensor.

    Chosen aside: scales that make up for a fault elsewhere do harm once that is mended.
    """
    plain = min((b for b in work.bases if b.migration is None), key=lambda base: base.choice.normalized_loss)
    moved = [b for b in work.bases if b.migration is not None]
    for base in (plain, *moved) if work.culprits else ():
        every = activations(base.network)
        work.log("looking for other scales of all %d tensors", len(every))
        aside = Work(work.lab, work.culprits, work.budget)
        aside.bases.append(replace(base, ranges=_ranges(work, base, every)))
        yield from _rescaled(aside, 0, None)


def mix(work: Work) -> Iterator[Candidate]:
    """Scales for each culprit while the others are high; then those that can return to INT8 do."""
    if len(work.culprits) < 2 or work.budget.empty:
        return
    base, keep = work.best, work.lab.measured.keep
    chooser = work.chooser(base)
    choice = base.choice.only(base.touched)
    least = chooser.weighed(choice, dict.fromkeys(work.culprits, keep)).normalized_loss
    every = units(base.network, activations(base.network, work.culprits), base.ranges)
    unit_of = {tensor: unit for unit in every for tensor in unit.tensors}
    for name in work.culprits:
        tensors = activations(base.network, [name])
        chosen_units = list(dict.fromkeys(unit_of[tensor] for tensor in tensors if tensor in unit_of))
        others = dict.fromkeys((c for c in work.culprits if c != name), keep)
        choice = chooser.rescale(chosen_units, start=choice, high=others, least=least)
    everything, proposed = work.lab.simulated().indices(work.culprits), None
    for room in _ROOMS:  # the next where an engine computes worse than the simulation, or without a reserve
        evaluator = work.lab.simulated(base=chooser.plan(choice), room=room * work.room)
        result = certify(evaluator, everything, budget=Budget(clock=work.lab.clock, refines=work.budget.left))
        if not result.passed or len(result.high) == len(work.culprits):
            return
        if result.high != proposed:
            proposed = result.high
            yield Candidate(base, choice, dict.fromkeys(result.high, keep))


#: Cheapest first; what keeps all culprits high is the search's own plan.
WAYS: tuple[Way, ...] = (unfuse, recalibrate, migrate_ranges, rescale_all, mix)


def _are_like(work: Work, tensors: Sequence[str]) -> bool:
    """Whether the best base's ranges are about those of the inputs: of a few, and the greatest of all."""
    lab, known = work.lab, work.best.ranges
    few = {tensor: lab.meter.measured[tensor][0] for tensor in tensors}
    return Ranges(few).like(known) and known.reaches(lab.values(lab.measured.inputs).maxima(tensors))


def _base(work: Work, source: Source, ranges: Ranges, odd_ones: Sequence[str]) -> Base:
    """The case's network, every activation in symmetric INT8 per tensor, the worst weights mended."""
    network = work.lab.network
    odd = {t: symmetric(ranges.scale(t, "minmax")) for t in odd_ones if t in ranges}
    weights = weight_scales(network, work.groups, ranges.held)
    plan = Plan(scales={**odd, **weights})
    return _on(work, Base(plan, network, {}, ranges, source, weights=tuple(weights)))


def _on(work: Work, base: Base) -> Base:
    """The base with the network that its plan leads to, and the scales there."""
    simulator = work.lab.simulator
    network = simulator.board(base.plan).network
    own, scales = activation_scales(network), simulator.scales_of(base.plan)
    given = {t: float(s.scale) for t, s in scales.items() if t in own and s.axis is None}
    return replace(base, network=network, own={**own, **given})


def _migrated(work: Work, base: Base, moves: Mapping[str, Array], alpha: float) -> Base:
    """A migrated base: new ranges for what it touched, the best scales so far elsewhere."""
    done = migrate(base.network, moves)
    facts = Migration(alpha, done.folded, done.inserted)
    plan = replace(base.plan, moves=moves)
    kept = set(activations(done.network)).difference(done.touched)
    moved = replace(base, plan=plan, migration=facts, touched=done.touched)
    ranges = _ranges(work, moved, [*kept.intersection(base.ranges.held), *done.touched])
    moved = _on(work, replace(moved, ranges=ranges))
    chosen_units = units(moved.network, done.touched, ranges)
    return replace(moved, choice=work.chooser(moved).uniform(chosen_units, base.choice.only(kept), most=0))


def _ranges(work: Work, base: Base, tensors: Sequence[str]) -> Ranges:
    """Ranges of a base's tensors; what a migration did not touch holds what it held before."""
    touched = set(base.touched)
    before, after = ([t for t in tensors if (t in touched) == moved] for moved in (False, True))
    data = base.source.data
    return Ranges({**work.lab.values(data).of(before), **work.lab.values(data, base.plan).of(after)})


def _rescaled(work: Work, place: int, groups: tuple[str, ...] | None) -> Iterator[Candidate]:
    """Other scales for what some groups read (None: all do), all of them in INT8, at a place in the bases."""
    base = work.bases[place]
    chosen_units = units(base.network, activations(base.network, groups), base.ranges)
    proposed = None
    for enough in (1.0, ENOUGH):
        choice = work.chooser(base).rescale(chosen_units, start=base.choice, enough=enough)
        base = work.bases[place] = replace(base, choice=choice)
        if NEAR < choice.normalized_loss < np.inf or choice == proposed:
            return
        yield Candidate(base, choice)
        proposed = choice


def _not_symmetric(network: Network) -> list[str]:
    """Activations that are not quantized to symmetric INT8, per tensor."""
    edges = (edge for group in network.groups for edge in group.edges)
    odd = (e.tensor for e in edges if e.quantization.values is None and not e.quantization.is_plain)
    return list(dict.fromkeys(odd))
