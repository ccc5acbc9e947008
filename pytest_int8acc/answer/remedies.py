"""The table of remedies, which are ways to fix a failing case, and the loop that tries one after another.

    unfuse or fuse ─fails→ another method ─fails→ biases ─fails→ recalibrate ─fails→ migrate
    ─fails→ all scales ─passes without proof→ wider ranges ─fails→ mixed; the search's own plan

The loop takes the plans that a remedy proposes, simulates each, builds a promising one with the case's own
backend and judges it on all samples. It stops at the first plan that meets the criteria with a safety margin.
The order of the remedies follows NVIDIA's INT8 debugging guide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from pytest_int8acc.answer.precision import Found
from pytest_int8acc.answer.proposals import (
    Known,
    Proposal,
    calibrate_otherwise,
    fuse_norms,
    keep_high,
    mend_biases,
    migrate_ranges,
    mix,
    recalibrate,
    rescale_all,
    rescale_all_migrated,
    rescale_as_shown,
    unfuse,
    widen,
)
from pytest_int8acc.answer.scales import activations
from pytest_int8acc.errors import DataError, EngineError, Int8accError
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.lab.lab import Lab, Proof
from pytest_int8acc.results import Cost, Evidence, Repair, SearchOutcome
from pytest_int8acc.results.causes import RemedyKind, ScaleTrials

#: Maximum cost of the search for fixes, in runs over all samples.
RUNS = 8.0
#: Maximum number of trials of scales, on the samples ``Simulator.few``, in the whole search for fixes, and
#: the number to which this maximum may be raised if runs take very little time.
TRIALS, MAX_TRIALS = 60, 400


def _quantizes(known: Known) -> bool:
    """Whether the case is quantized to INT8 or FP8, so that its tensors have scales."""
    return not known.lab.is_narrow


def _fuses(known: Known) -> bool:
    """Whether the case's backend builds engines, which fuse layers."""
    return _quantizes(known) and known.lab.measured.backend.builds_engines


def _calibrates(known: Known) -> bool:
    """Whether the spec has the key ``calibrate``, so that the spec can name another method."""
    return _quantizes(known) and known.lab.measured.case.source.calibrate is not None


def _has_biases(known: Known) -> bool:
    """Whether a layer at fault loses accuracy by its bias, or by a shift that a bias can make up for."""
    causes = (culprit.cause for culprit in known.outcome.culprits)
    return any(cause is not None and cause.kind in ("int8-bias", "bias-shift") for cause in causes)


def _rescales_all(known: Known) -> bool:
    """Whether layers at fault are known, so that only scales of these layers were tried before."""
    return _quantizes(known) and bool(known.culprits)


def _lacks_proof(known: Known) -> bool:
    """Whether there is a plan that meets the criteria, but by too small a margin."""
    return _quantizes(known) and known.unproved is not None


def _mixes(known: Known) -> bool:
    """Whether there are several layers at fault, so that some can stay in the low format."""
    return _quantizes(known) and len(known.culprits) > 1


@dataclass(frozen=True)
class Remedy:
    """One row of the table ``REMEDIES``: a way to make a failing case meet its criteria."""

    kind: RemedyKind
    propose: Callable[[Known], Iterator[Proposal]]
    """Yields plans, the most promising first; see ``answer/proposals.py``."""
    applies: Callable[[Known], bool]
    """Whether the remedy can help the case at all."""
    reserve: float = 0.0
    """The share of the budget that is kept for this remedy while earlier remedies are tried."""
    is_late: bool = False
    """Whether the remedy's first plan may be tried after the time is up, by one trial and one build."""
    is_for_proof: bool = False
    """Whether the remedy is also tried after an earlier one has met the criteria with a safety margin, as
    long as no fix is verified on held-out samples."""
    is_searched: bool = False
    """Whether the remedy is the plan that the search found. This plan is built already and always shown."""


#: The table of remedies, in the order in which they are tried. After one has met the criteria with a safety
#: margin, later ones are skipped, except those that are marked as ``is_for_proof`` or ``is_searched``. So a
#: remedy must stand before remedies that cost more at run time.
#:
#: To add a remedy, write a function in ``answer/proposals.py`` that yields plans, add a row here, and add its
#: name to ``RemedyKind`` in ``results/causes.py``; mypy or ``tests/answer/test_registers.py`` fails if one is
#: missing. Reports describe a remedy by the changes that it makes. Only a new kind of change needs more: a
#: field of ``Proposal`` and of ``Repair``, its words in ``CHANGES`` of ``report/catalogue.py``, and a line in
#: ``_changes`` of ``report/fixes.py``.
REMEDIES: tuple[Remedy, ...] = (
    Remedy("unfuse", unfuse, _fuses),
    Remedy("fuse", fuse_norms, lambda known: known.lab.is_narrow, is_late=True),
    Remedy("method", calibrate_otherwise, _calibrates),
    Remedy("biases", mend_biases, _has_biases),
    Remedy("recalibrate", recalibrate, _quantizes),
    Remedy("recalibrate", rescale_as_shown, lambda known: bool(known.lab.mended)),
    Remedy("migrate", migrate_ranges, _quantizes),
    Remedy("recalibrate", rescale_all, _rescales_all),
    Remedy("migrate", rescale_all_migrated, _rescales_all),
    Remedy("recalibrate", widen, _lacks_proof, is_for_proof=True),
    Remedy("mixed", mix, _mixes, reserve=0.4),
    Remedy("high", keep_high, lambda known: True, is_searched=True),
)

_Proved = tuple[Repair, Proof]


@dataclass(frozen=True, eq=False)
class Remedied:
    """The fixes that were built and meet the criteria, the recommended one first."""

    repairs: tuple[Repair, ...]
    proofs: tuple[Proof, ...]
    """For each repair, in the same order, its built model with the verdict."""
    notes: tuple[str, ...] = ()
    scales: ScaleTrials | None = None
    """How much of the loss other scales remove; None if no other scales were tried."""


def find_remedies(lab: Lab, outcome: SearchOutcome, found: Found) -> Remedied:
    """Look for the cheapest fix of a failing case.

    The search for fixes ends when a fix is good enough, when the budget or the time is spent, or on Ctrl-C.

    Args:
        lab: Runs and builds the models of a failing case.
        outcome: The result of the search for layers at fault. If it found no plan, all groups are changed.
        found: The same result with the built model of its plan.

    Raises:
        DataError: The data cannot be read.
    """
    loop = _Loop(Known(lab, outcome, found, lab.budget(RUNS, trials=(TRIALS, MAX_TRIALS))))
    nothing_to_mend = outcome.found and not outcome.culprits
    if outcome.ending.kind != "high-fails" and not nothing_to_mend:
        for place in range(len(REMEDIES)):
            loop.attempt(place)
    return loop.finished()


@dataclass(eq=False)
class _Loop:
    """Tries one remedy after another until a plan meets the criteria with a safety margin."""

    known: Known
    shown: list[_Proved] = field(default_factory=list)
    """Plans that meet the criteria with a safety margin, and the plan that the search found."""
    unsteady: list[_Proved] = field(default_factory=list)
    """Plans that meet the criteria on the samples of the case, but perhaps not on other samples."""

    def __post_init__(self) -> None:
        lab = self.known.lab
        self.max_builds = lab.builds + lab.measured.settings.max_builds
        self.began = lab.cost

    def attempt(self, place: int) -> None:
        """Try the remedy in row ``place`` of ``REMEDIES``, if it applies and is still needed."""
        remedy, known = REMEDIES[place], self.known
        self.began = known.lab.cost
        verified = any(proof.is_verified for _, proof in self.shown)
        answered = verified if remedy.is_for_proof else any(proof.holds for _, proof in self.shown)
        if not remedy.applies(known) or (answered and not remedy.is_searched):
            return
        later = [other.reserve for other in REMEDIES[place + 1 :] if other.applies(known)]
        known.budget.kept = sum(later)
        clock = known.lab.clock
        late = remedy.is_searched or (remedy.is_late and not clock.interrupted)
        try:
            clock.attempt("repair", lambda: self._try(remedy), None, late=late)
        except DataError:
            raise
        except Int8accError as error:
            known.notes.append(f"the remedy '{remedy.kind}' ended with an error: {error}")

    def _try(self, remedy: Remedy) -> None:
        """Build and judge the plans of one remedy until one meets the criteria with a safety margin.

        Raises:
            OutOfTime: The time is up, and no plan has met the criteria with a safety margin.
        """
        known, clock = self.known, self.known.lab.clock
        spent = (known.budget.empty and not remedy.is_late) or self._is_built_out()
        for proposal in remedy.propose(known) if remedy.is_searched or not spent else ():
            if self._is_proved(remedy, proposal) and not remedy.is_searched:
                return
            if not remedy.is_searched and self._is_built_out():
                break
        if not (remedy.is_late or remedy.is_searched):
            clock.check()

    def _is_proved(self, remedy: Remedy, proposal: Proposal) -> bool:
        """Simulate, build and judge a promising plan, and keep it if it passes.

        Returns whether it passes with a safety margin.
        """
        lab, plan = self.known.lab, proposal.plan
        if not lab.is_proved(plan):
            if not lab.is_promising(plan):
                return False
            if not remedy.is_late:
                lab.clock.check()
        try:
            proof = lab.prove(plan)
        except EngineError as error:  # another plan may build
            self.known.notes.append(f"a plan of the remedy '{remedy.kind}' does not build or run: {error}")
            return False
        if proof.passed:
            return self._keep(remedy, proposal, proof)
        if lab.builds_are_simulated and not proof.chosen.passed:
            return False  # the run was merely the simulation on all samples
        where = "as built" if not proof.chosen.passed else "on samples that it has not seen"
        self.known.notes.append(
            f"a plan of the remedy '{remedy.kind}' passes in the simulation and fails {where}"
        )
        return False

    def _is_built_out(self) -> bool:
        """Whether the budget of builds is spent. If so, a note is added."""
        max_builds = self.known.lab.measured.settings.max_builds
        spent = self.known.lab.builds >= self.max_builds
        if spent:
            self.known.notes.append(f"repair stopped early: the budget of {max_builds} builds is spent")
        return spent

    def _keep(self, remedy: Remedy, proposal: Proposal, proof: Proof) -> bool:
        """Keep a plan that meets the criteria, and return whether it does so with a safety margin."""
        known, repair = self.known, self._repair_of(remedy, proposal, proof)
        if not repair.layers and proof.needs_margin and (proof.holds or known.unproved is None):
            known.unproved = proposal
        if remedy.is_for_proof and proof.is_verified:
            self.shown.clear()  # this plan is verified, and the earlier plans are not
        if proof.holds or proof is self.known.found.fix:
            self.shown.append((repair, proof))
        elif remedy.is_searched or not self.unsteady:
            self.unsteady.append((repair, proof))
        return proof.holds

    def _repair_of(self, remedy: Remedy, proposal: Proposal, proof: Proof) -> Repair:
        lab, outcome = self.known.lab, self.known.outcome
        high = set(proposal.plan.high).difference(proposal.joined)
        layers = tuple(group.name for group in lab.groups if group.name in high)
        cost = lab.cost - self.began
        if remedy.is_searched:
            cost = Cost(outcome.cost, outcome.seconds, outcome.builds)
        return Repair(
            kind=remedy.kind,
            layers=layers,
            rescales=proposal.rescales,
            evidence=Evidence(
                "plan",
                lab.measured.result.place,
                lab.measured.result.evidence.proved_on,
                chosen_on=lab.sample_set(proposal.chosen_on),
                held_out=lab.held_out(proof),
                scores=proof.verdict.scores,
                cost=cost,
            ),
            verified=proof.is_verified,
            holds=proof.holds,
            price=lab.share(layers),
            precision=outcome.precision,
            culprits=len(outcome.kept),
            weights=proposal.weights,
            biases=proposal.biases,
            corrected=proposal.corrected,
            migration=proposal.migration,
            method=proposal.method,
            data=proposal.data,
            outputs=proposal.plan.outputs,
            fused=proposal.plan.fused,
        )

    def finished(self) -> Remedied:
        """The fixes in the order in which they are recommended, with notes on what was tried."""
        lab, shown, budget = self.known.lab, self.shown, self.known.budget
        if any(repair.kind != "high" for repair, _ in shown):  # the search's own plan is timed for comparison
            shown = [(replace(repair, latency=lab.latency(proof.form)), proof) for repair, proof in shown]
            shown = _fastest_first(shown)
            shown.sort(key=lambda pair: not pair[0].verified)  # verified fixes come first
        price = next((repair.price for repair, proof in shown if proof.holds), math.inf)
        cheaper = [pair for pair in self.unsteady if pair[0].price < price]
        ordered = [*shown, *cheaper] if price < math.inf else [*cheaper, *shown]
        notes = list(self.known.notes)
        if budget.trials:
            enough = ", all that a repair may cost" if budget.empty and not lab.clock.over else ""
            notes.append(f"{budget.trials} trials of other scales{enough}")
        repairs = tuple(repair for repair, _ in ordered)
        return Remedied(repairs, tuple(proof for _, proof in ordered), tuple(notes), self._scales())

    def _scales(self) -> ScaleTrials | None:
        """How much of the loss other scales remove; None if no other scales were tried, or the time is up.

        The result is also None if the cause of a layer at fault is known, because the cause explains more.
        """
        known, lab = self.known, self.known.lab
        if any(culprit.cause is not None or culprit.hidden for culprit in known.outcome.culprits):
            return None
        base = known.best
        if base is None or not known.budget.trials or lab.clock.over:
            return None
        tensors = activations(lab.network, known.groups)
        before, best = lab.simulator.normalized_loss(Plan()), base.choice
        if not tensors or not 0 < before < math.inf or best.normalized_loss == math.inf:
            return None
        return ScaleTrials(
            trials=known.budget.trials,
            tensors=len(tensors),
            given_back=max(1 - best.normalized_loss / before, 0.0),
            samples=len(lab.simulator.few),
        )


def _fastest_first(found: list[_Proved]) -> list[_Proved]:
    """The fixes sorted by latency, but the first one stays first unless another is faster beyond doubt.

    There is doubt if the ranges of the middle 80 % of both latencies overlap. If a latency is unknown, the
    order stays.
    """
    timed = [(repair.latency, repair) for repair, _ in found if repair.latency is not None]
    if len(timed) < len(found):
        return found
    clearly = min(latency.high_ms for latency, _ in timed)
    lead = next(repair for latency, repair in timed if latency.low_ms <= clearly)
    place = {id(repair): (repair is not lead, latency.median_ms) for latency, repair in timed}
    return sorted(found, key=lambda pair: place[id(pair[0])])
