"""Functions that propose fixes. Each yields plans for a failing case, the most promising first.

``answer/remedies.py`` simulates, builds and judges each plan before it asks for the next one. So a function
can read the verdict on its last plan from ``Known.proof``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from pytest_int8acc.answer.fusions import fewest_outputs
from pytest_int8acc.answer.migration import best_first, uneven_sites
from pytest_int8acc.answer.precision import SPARE, STRICTER, Found, keeps_low, room_of
from pytest_int8acc.answer.scales import (
    ENOUGH,
    NEAR,
    WITH_MARGIN,
    Choice,
    Chooser,
    Ranges,
    activations,
    units,
    unmasked_scales,
    weight_scales,
    with_tied,
)
from pytest_int8acc.clock import Budget
from pytest_int8acc.graph.layout import BIASES
from pytest_int8acc.graph.migrate import migrate
from pytest_int8acc.graph.network import Network, Plan, Precision, symmetric
from pytest_int8acc.graph.norms import find_norms
from pytest_int8acc.graph.plan import activation_scales
from pytest_int8acc.lab.biases import biases_of, corrections
from pytest_int8acc.lab.lab import Lab, Proof, Source
from pytest_int8acc.observers.methods import CANDIDATES
from pytest_int8acc.results import Migration, SearchOutcome
from pytest_int8acc.results.causes import Rescale
from pytest_int8acc.search.strategies import certify, fewest
from pytest_int8acc.tensors import Array

logger = logging.getLogger("pytest_int8acc")
#: Error budgets, as shares of the error that the limits allow. Plans that mix new scales with layers in high
#: precision are searched with one budget after the other. A smaller budget leaves a margin for engines that
#: lose more than the simulation.
_ERROR_BUDGETS = (1.0, 0.7, 0.4)


@dataclass(frozen=True, eq=False)
class Proposal:
    """A plan that may meet the criteria, with facts that a report needs about the plan."""

    plan: Plan
    rescales: tuple[Rescale, ...] = ()
    """Activations that have another scale than in the case."""
    weights: tuple[str, ...] = ()
    """Constants whose scales were computed again."""
    biases: tuple[str, ...] = ()
    """Biases that are not quantized, and have the values of the float model."""
    corrected: tuple[str, ...] = ()
    """Biases that make up for the mean error of their layers."""
    migration: Migration | None = None
    method: str = ""
    """The keys of the spec that calibrate every activation as the plan does; empty for other plans."""
    data: str = ""
    """A description of the calibration data that gave the ranges; empty if the inputs gave them."""
    chosen_on: Sequence[int] | None = None
    """The samples by which the plan was chosen, by index; None for all samples."""
    joined: tuple[str, ...] = ()
    """Groups in high precision only to save Casts. A report does not name them as layers of the fix."""


@dataclass(eq=False)
class Base:
    """A starting point for the choice of scales: a plan without groups in high precision, and its network."""

    plan: Plan
    """A plan that gives weights new scales, makes activations symmetric, and may move range."""
    network: Network
    """The case's network under this plan."""
    own: Mapping[str, float]
    """The scale of each activation in this network."""
    ranges: Ranges
    source: Source
    choice: Choice = field(default_factory=Choice)
    """The best scales so far with all groups in INT8. This is the only field that changes."""
    weights: tuple[str, ...] = ()
    """Constants whose scales were computed again."""
    touched: tuple[str, ...] = ()
    """Activations whose values changed because range was moved."""
    migration: Migration | None = None


@dataclass(eq=False)
class Known:
    """The state that all functions of this module share: the search's result, the budget, scales so far."""

    lab: Lab
    outcome: SearchOutcome
    found: Found
    budget: Budget
    bases: list[Base] = field(default_factory=list)
    """The starting points for the choice of scales so far."""
    notes: list[str] = field(default_factory=list)
    unproved: Proposal | None = None
    """A plan that meets the criteria with all groups in the low format, but by too small a margin.

    None if there is none.
    """

    @property
    def culprits(self) -> tuple[str, ...]:
        """The groups that the plan of the search keeps in high precision; empty if it found no plan."""
        return self.outcome.kept

    @property
    def groups(self) -> tuple[str, ...] | None:
        """The layers whose tensors get other scales first; None for all layers."""
        return self.culprits or None

    @property
    def best(self) -> Base | None:
        """The starting point for the choice of scales with the least loss; None if there is none yet."""
        return min(self.bases, key=lambda base: base.choice.normalized_loss, default=None)

    @cached_property
    def unmasked(self) -> Mapping[str, float]:
        """Maps each activation that seems to hold an attention mask to its scale without the mask."""
        return unmasked_scales(self.lab.network, self.lab.meter.measured)

    def chooser(self, base: Base) -> Chooser:
        """An object that chooses scales which improve on the starting point ``base``."""
        return Chooser(self.lab.simulator, base.plan, base.own, self.budget)

    def proof(self, plan: Plan) -> Proof | None:
        """The built model of a plan with its verdict; None if the model was not built."""
        return self.lab.prove(plan) if self.lab.is_proved(plan) else None

    def log(self, text: str, *numbers: object) -> None:
        """Log a message after the name of the case."""
        logger.info("%s: " + text, self.lab.measured.case.name, *numbers)


def unfuse(known: Known) -> Iterator[Proposal]:
    """Plans with more outputs, so that the engine does not fuse layers that it computes wrong when fused."""
    lab = known.lab
    max_builds = lab.builds + lab.measured.settings.max_builds - 1  # one build is left for other fixes

    def spent() -> bool:
        return lab.builds >= max_builds or known.budget.empty

    for plan in lab.refuted:
        known.log("looking for the fusion that computes wrong")
        outputs, note = fewest_outputs(lab, plan, known.culprits, spent)
        known.notes.append(note)
        if outputs:
            yield Proposal(replace(plan, outputs=outputs))


def fuse_norms(known: Known) -> Iterator[Proposal]:
    """Plans that fuse normalizations that consist of several nodes, with the fewest groups in FP32.

    A normalization, such as a LayerNorm, computes in FP32 inside if it is one node. First the normalizations
    that contain a layer at fault are fused. If the search found no plan, all normalizations are fused next.
    If a plan passes without a safety margin, plans with smaller error budgets follow.
    """
    network, outcome = known.lab.network, known.outcome
    members = {node for group in network.groups for node in group.nodes}
    norms = {name: norm.nodes for name, norm in find_norms(network.model).items() if norm.nodes <= members}
    kept = {node for group in network.groups if group.name in known.culprits for node in group.nodes}
    guilty = tuple(name for name, nodes in norms.items() if not nodes.isdisjoint(kept))
    for names in dict.fromkeys((guilty, tuple(norms))):
        if not names or (outcome.found and not guilty):
            continue
        known.log("fusing %d norms", len(names))
        error_budget = 1.0
        for _ in range(STRICTER + 1):
            plan = _fewest_high_with_norms(known, names, error_budget)
            if plan is None:
                break
            yield Proposal(plan)
            proof = known.proof(plan)
            if proof is None or not proof.passed:
                break
            error_budget *= SPARE * room_of(proof)


def _fewest_high_with_norms(known: Known, norms: tuple[str, ...], error_budget: float) -> Plan | None:
    """A plan with these normalizations fused and the fewest groups in FP32; None if no such plan passes.

    ``error_budget`` is a share of the error that the limits allow.
    """
    lab = known.lab
    simulated = lab.simulated(base=Plan(fused=norms), room=error_budget)
    kept = simulated.indices(known.culprits)
    result = certify(simulated, frozenset())  # one trial, which may begin after the time is up
    if not result.passed and kept:
        result = certify(simulated, kept, budget=Budget(lab.clock))
    if not result.passed:
        place = {group.name: i for i, group in enumerate(simulated.groups)}
        suspects = [place[name] for name in lab.losses if name in place]
        result = fewest(simulated, suspects, budget=Budget(lab.clock))
    if not result.passed or len(result.high) == len(simulated.groups):
        return None
    return simulated.plan(simulated.indices(result.high))


def calibrate_otherwise(known: Known) -> Iterator[Proposal]:
    """Plans that give every activation the range of one other calibration method, best first.

    The ranges come from the case's own calibration data, so that the spec's key ``method`` gives the same
    ranges. Slow methods are left out, because the search for fixes runs them with fewer bins than a
    calibration.
    """
    source = known.lab.sources[0]
    if not source.description:
        return  # no calibration data, or they may contain held-out samples
    network, tensors = known.lab.network, activations(known.lab.network)
    ranges = Ranges(known.lab.values(source.data).of(tensors), unmasked=known.unmasked)
    chosen_units = units(network, tensors, ranges)
    chooser = Chooser(known.lab.simulator, Plan(), activation_scales(network), known.budget)
    tried: list[tuple[str, Choice]] = []
    for name, (method, options) in CANDIDATES.items():
        if known.budget.empty or method.is_slow:
            continue
        choice = Choice()
        for unit in chosen_units:
            choice = choice.plus(unit.choice(name))
        if not chooser.plan(choice).scales:
            continue  # the case is calibrated by this method already
        tried.append((method.in_spec(options), chooser.weighed(choice, {})))
        if tried[-1][1].normalized_loss <= ENOUGH:
            break
    for keys, choice in sorted(tried, key=lambda each: each[1].normalized_loss):
        if choice.normalized_loss > NEAR:
            return
        plan = chooser.plan(choice)
        yield Proposal(plan, method=keys, data=source.description, chosen_on=known.lab.simulator.few)


def mend_biases(known: Known) -> Iterator[Proposal]:
    """First a plan without quantized biases in layers at fault, then a plan with corrected biases.

    In the first plan, biases that the quantizer changed get their float values back. In the second, biases
    make up for the mean errors of their layers.
    """
    lab, groups = known.lab, known.groups
    chosen = None if groups is None else set(groups)
    constants = lab.network.model.constants()
    members = [group for group in lab.network.groups if chosen is None or group.name in chosen]
    edges = [edge for group in members for edge in group.edges if edge.quantization.values is not None]
    nodes = lab.network.model.everywhere.nodes
    names = {
        edge.tensor
        for edge in edges
        if edge.quantization.is_float or edge.index in BIASES.get(nodes[edge.node].op_type, ())
    }
    names |= set(biases_of(lab.network, groups).values()) & {edge.tensor for edge in edges}
    own = {name: constants[name] for name in sorted(names)}
    if own:
        known.log("leaving %d biases unquantized", len(own))
        yield Proposal(Plan(floats=own), biases=tuple(own))
    known.log("correcting biases")
    source = lab.sources[0]
    floats = corrections(lab.network, groups or lab.work, source.data, lab.sessions)
    known.budget.pay()
    if floats and lab.simulator.normalized_loss(Plan(floats=floats)) <= NEAR:
        plan, few = Plan(floats=floats), lab.simulator.few
        yield Proposal(plan, corrected=tuple(floats), data=source.description, chosen_on=few)


def rescale_as_shown(known: Known) -> Iterator[Proposal]:
    """The plan with all scales that ablations have shown to remove the loss of layers at fault."""
    lab, constants = known.lab, known.lab.network.model.constants()
    given = activation_scales(lab.network)
    rescales = tuple(
        Rescale(tensor, "by trial", given[tensor], float(scale.scale))
        for tensor, scale in lab.mended.items()
        if tensor in given
    )
    weights = tuple(tensor for tensor in lab.mended if tensor in constants)
    plan = Plan(scales=dict(lab.mended))
    yield Proposal(plan, rescales=rescales, weights=weights, chosen_on=lab.simulator.few)


def recalibrate(known: Known) -> Iterator[Proposal]:
    """Plans with other scales for the activations that layers at fault read.

    If no layer at fault is known, all activations get other scales.

    Ranges are taken from the calibration data first, then from the inputs.
    """
    for source in known.lab.sources:
        known.log("looking for other scales, ranges from %s", source.description or "the inputs")
        odd_ones = _not_symmetric(known.lab.network)
        looked_at = with_tied(known.lab.network, [*activations(known.lab.network, known.groups), *odd_ones])
        best = known.best
        if best is not None and best.choice.normalized_loss > NEAR and _are_like(known, best, looked_at):
            return  # the inputs have about the ranges of the calibration data, which did not help
        ranges = Ranges(known.lab.values(source.data).of(looked_at), unmasked=known.unmasked)
        base = _base(known, source, ranges, odd_ones)
        known.bases.append(base)
        yield from _rescaled(known, base, known.groups)


def migrate_ranges(known: Known) -> Iterator[Proposal]:
    """Plans that move range from uneven channels of activations into the weights that read them.

    Several migration strengths (alpha) are tried until one is good enough. If none is, the best one is used.
    Activations whose range the case's own plan moves already are left as they are.
    """
    base, lab = known.best, known.lab
    if base is None:
        return
    movable = [t for t in activations(base.network, known.groups) if t not in lab.int8.given.moves]
    uneven = uneven_sites(base.network, movable, lab.values(base.source.data, base.plan))
    best = base
    for alpha in best_first(uneven) if uneven else ():
        if known.budget.empty or (best is not base and best.choice.normalized_loss <= ENOUGH):
            break
        known.log("migrating %d activations, alpha %g", len(uneven), alpha)
        moves = {tensor: site.factors(alpha) for tensor, site in uneven.items()}
        best = _better(known, base, best, _migrated(known, base, moves, alpha))
    if best is not base:
        known.bases.append(best)
        yield from _rescaled(known, best, known.groups)


def rescale_all(known: Known) -> Iterator[Proposal]:
    """Plans with other scales for every activation. No range is moved into weights."""
    unmoved = [base for base in known.bases if base.migration is None]
    if unmoved:
        yield from _all_rescaled(known, min(unmoved, key=lambda base: base.choice.normalized_loss))


def rescale_all_migrated(known: Known) -> Iterator[Proposal]:
    """Plans with other scales for every activation, after range was moved into weights."""
    for base in known.bases:
        if base.migration is not None:
            yield from _all_rescaled(known, base)


def widen(known: Known) -> Iterator[Proposal]:
    """The plan that passes by too small a margin, with ranges so wide that other samples hardly exceed them.

    A value beyond its range is clipped, and the error grows with the distance. So a single sample with such a
    value may miss the limits. Samples without such a value cannot prove that no other sample has one.
    """
    lab, proposal = known.lab, known.unproved
    if proposal is None:
        return
    base = _opened(known, Base(proposal.plan, lab.network, {}, Ranges({}), lab.sources[-1]))
    odd_ones = _not_symmetric(base.network)
    tensors = [t for t in activations(base.network) if t in base.own and t not in odd_ones]
    ranges = Ranges(lab.values(lab.inputs, base.plan).maxima(tensors), unmasked=known.unmasked)
    wider = dict[str, float]()
    for unit in units(base.network, tensors, ranges):
        own = [base.own[tensor] for tensor in unit.tensors if tensor in base.own]
        if min(own) < unit.scale_with_margin:
            wider |= dict.fromkeys(unit.tensors, max(*own, unit.scale_with_margin))
    if not wider:
        return
    known.log("widening the ranges of %d tensors", len(wider))
    given = activation_scales(lab.network)
    rescales = {rescale.tensor: rescale for rescale in proposal.rescales}
    for tensor, scale in wider.items():
        rescales[tensor] = Rescale(tensor, WITH_MARGIN, given.get(tensor, base.own[tensor]), scale)
    scales = {**base.plan.scales, **{tensor: symmetric(scale) for tensor, scale in wider.items()}}
    plan = replace(base.plan, scales=scales)
    yield replace(proposal, plan=plan, rescales=tuple(rescales.values()), method="", data="")


def mix(known: Known) -> Iterator[Proposal]:
    """Plans with other scales for some layers at fault, and high precision for the others.

    The scales of each layer at fault are chosen while the other layers at fault are in high precision. Then
    as many of these layers as possible return to INT8.
    """
    base, high_format = known.best, known.lab.measured.keep
    if base is None:
        return
    chooser = known.chooser(base)
    choice = base.choice.only(base.touched)
    all_high = dict.fromkeys(known.culprits, high_format)
    least = chooser.weighed(choice, all_high).normalized_loss
    every = units(base.network, activations(base.network, known.culprits), base.ranges)
    unit_of = {tensor: unit for unit in every for tensor in unit.tensors}
    for name in known.culprits:
        tensors = activations(base.network, [name])
        chosen_units = list(dict.fromkeys(unit_of[tensor] for tensor in tensors if tensor in unit_of))
        others = {culprit: high_format for culprit in known.culprits if culprit != name}
        choice = chooser.rescale(chosen_units, start=choice, high=others, least=least)
    everything, proposed = known.lab.simulated().indices(known.culprits), None
    for share in _ERROR_BUDGETS:
        evaluator = known.lab.simulated(base=chooser.plan(choice), room=share * known.found.room)
        budget = Budget(clock=known.lab.clock, max_runs=known.budget.left)
        result = certify(evaluator, everything, budget=budget)
        if not result.passed or len(result.high) == len(known.culprits):
            return
        if result.high != proposed:
            proposed = result.high
            yield from _confirmed(known, base, choice, dict.fromkeys(result.high, high_format))


def keep_high(known: Known) -> Iterator[Proposal]:
    """The plan that the search found, built and judged. It keeps the layers at fault in high precision.

    If this plan has additional groups in high precision for a safety margin, the plan without them follows.
    """
    found = known.found
    if found.fix is not None and keeps_low(known.lab, known.outcome):
        yield Proposal(found.fix.plan, chosen_on=found.evaluator.seen.samples, joined=found.joined)
    if found.reserved is not None and found.passed and found.proof is not None:
        yield Proposal(found.proof.plan, chosen_on=found.evaluator.seen.samples)


def _rescaled(known: Known, base: Base, groups: tuple[str, ...] | None) -> Iterator[Proposal]:
    """Plans with all groups in INT8, and other scales for activations of ``groups``; None for all."""
    chosen_units = units(base.network, activations(base.network, groups), base.ranges)
    proposed = None
    for enough in (1.0, ENOUGH):
        base.choice = known.chooser(base).rescale(chosen_units, start=base.choice, enough=enough)
        if NEAR < base.choice.normalized_loss < np.inf or base.choice == proposed:
            return
        proposed = base.choice
        yield from _confirmed(known, base, base.choice, {})


def _all_rescaled(known: Known, base: Base) -> Iterator[Proposal]:
    """Plans with other scales for every activation, which are chosen from a copy of ``base``.

    The base is copied, because later fixes must not start from these scales: a scale that compensates for an
    error of another tensor does harm after this error is fixed.
    """
    every = activations(base.network)
    known.log("looking for other scales of all %d tensors", len(every))
    yield from _rescaled(known, replace(base, ranges=_ranges(known, base, every)), None)


def _confirmed(known: Known, base: Base, choice: Choice, high: Mapping[str, Precision]) -> Iterator[Proposal]:
    """The plan with groups ``high`` in high precision and the needed scales of ``choice``, if promising.

    If the plan with only the needed scales fails in the simulation, the plan with all scales follows.
    """
    lab, chooser = known.lab, known.chooser(base)
    if not lab.is_promising(chooser.plan(choice, high)):
        return
    pruned = chooser.prune(units(base.network, choice.scales, base.ranges), choice, high)
    given = activation_scales(lab.network)
    for chosen in (pruned, choice):
        plan = chooser.plan(chosen, high)
        if not lab.is_promising(plan):
            continue
        rescales = [
            Rescale(tensor, chosen.methods[tensor], given.get(tensor, base.own[tensor]), scale)
            for tensor, scale in chosen.scales.items()
            if tensor in plan.scales and plan.scales[tensor] is not base.plan.scales.get(tensor)
        ]
        yield Proposal(
            plan,
            rescales=tuple(rescales),
            weights=base.weights,
            migration=base.migration,
            data=base.source.description,
            chosen_on=lab.simulator.few,
        )
        proof = known.proof(plan)
        if not lab.builds_are_simulated or proof is None or proof.chosen.passed:
            return


def _are_like(known: Known, base: Base, tensors: Sequence[str]) -> bool:
    """Whether the ranges of tensors on the inputs are about the same as the ranges in ``base``.

    Greatest magnitudes are compared on all samples, lower percentiles on the first samples.
    """
    lab, ranges = known.lab, base.ranges
    few = {tensor: lab.meter.measured[tensor][0] for tensor in tensors}
    return Ranges(few).like(ranges) and ranges.reaches(lab.values(lab.inputs).maxima(tensors))


def _base(known: Known, source: Source, ranges: Ranges, odd_ones: Sequence[str]) -> Base:
    """A starting point for scales: each activation has one symmetric scale, weights have better scales.

    ``odd_ones`` are the activations that are not quantized in this way yet.
    """
    network = known.lab.network
    odd = {t: symmetric(ranges.scale(t, "minmax")) for t in odd_ones if t in ranges}
    weights = weight_scales(network, known.groups, ranges.held, known.lab.meter.lookups)
    plan = Plan(scales={**odd, **weights})
    return _opened(known, Base(plan, network, {}, ranges, source, weights=tuple(weights)))


def _opened(known: Known, base: Base) -> Base:
    """``base`` with the network that its plan makes, and with the scales of that network's activations."""
    simulator = known.lab.simulator
    network = simulator.board(base.plan).network
    own, scales = activation_scales(network), simulator.scales_of(base.plan)
    given = {t: float(s.scale) for t, s in scales.items() if t in own and s.axis is None}
    return replace(base, network=network, own={**own, **given})


def _better(known: Known, base: Base, best: Base, migrated: Base) -> Base:
    """The starting point with the lesser loss. What moves of range made for the other one is freed.

    Args:
        known: The state of the search for fixes.
        base: The starting point without moves of range, which is never freed.
        best: The best starting point so far, which may be ``base``.
        migrated: A new starting point.
    """
    better, worse = sorted((best, migrated), key=lambda each: each.choice.normalized_loss)
    if worse is not base:
        known.lab.forget(worse.plan)
    return better


def _migrated(known: Known, base: Base, moves: Mapping[str, Array], alpha: float) -> Base:
    """The starting point after the channels of activations were divided by the factors in ``moves``.

    Tensors whose values have changed get new ranges; other tensors keep the best scales so far.
    """
    known.lab.simulator.make_room()  # for the session of the new network
    done = migrate(base.network, moves)
    facts, touched = Migration(alpha, done.folded, done.inserted), done.touched
    plan = replace(base.plan, moves=moves)
    kept = set(activations(done.network)).difference(touched)
    del done  # frees its weights: the simulator makes the network anew
    migrated = replace(base, plan=plan, migration=facts, touched=touched)
    ranges = _ranges(known, migrated, [*kept.intersection(base.ranges.held), *touched])
    migrated = _opened(known, replace(migrated, ranges=ranges))
    chosen_units = units(migrated.network, touched, ranges)
    start = base.choice.only(kept)
    return replace(migrated, choice=known.chooser(migrated).uniform(chosen_units, start, most=0))


def _ranges(known: Known, base: Base, tensors: Sequence[str]) -> Ranges:
    """The ranges of tensors on the data of ``base``.

    Tensors that a migration changed are measured after the migration, all others before it.
    """
    data, values = base.source.data, known.lab.values
    unmoved = values(data).of(t for t in tensors if t not in base.touched)
    touched = values(data, base.plan).of(t for t in tensors if t in base.touched)
    return Ranges({**unmoved, **touched}, unmasked=known.unmasked)


def _not_symmetric(network: Network) -> list[str]:
    """The activations that some node does not quantize symmetrically with one scale."""
    edges = (edge for group in network.groups for edge in group.edges)
    odd = (e.tensor for e in edges if e.quantization.values is None and not e.quantization.is_plain)
    return list(dict.fromkeys(odd))
