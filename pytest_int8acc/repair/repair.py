"""The cheapest way to meet the criteria: other scales, migration, some culprits high, at last all of them.

    recalibrate ─fails→ migrate ─fails→ mixed: some culprits high ─fails→ high: the search's own plan

Each way is looked for in a simulation whose scales are inputs, and proved like any other plan: built by the
case's own backend, run and judged on all samples (NVIDIA's INT8 debugging guide tries them in this order).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from pytest_int8acc.case.forms import Fix, Form, Int8Form
from pytest_int8acc.case.judge import Verdict
from pytest_int8acc.graph.change import Change
from pytest_int8acc.graph.migrate import Migrated, migrate
from pytest_int8acc.graph.network import Network, Plan
from pytest_int8acc.lab.board import Board, Rescaled
from pytest_int8acc.measure.measured import Measured
from pytest_int8acc.repair.migrate import ALPHAS, migration, outlying_sites
from pytest_int8acc.repair.rescale import (
    ENOUGH,
    Choice,
    Purse,
    Ranges,
    Source,
    activations,
    prune,
    rescale,
    rescaled,
    sources,
    uniform,
    units,
    with_tied,
    worse_weights,
)
from pytest_int8acc.results import Latency, Repair, Rescale, SearchOutcome
from pytest_int8acc.scales import listed
from pytest_int8acc.search import certify
from pytest_int8acc.search.types import Budget

logger = logging.getLogger("pytest_int8acc")
#: Trials of scales, on a few samples each, that one repair may cost.
TRIALS = 400
#: What a form costs as an engine; None where that cannot be timed.
Price = Callable[[Form], Latency | None]
Kind = Literal["recalibrate", "migrate", "mixed", "high"]


@dataclass(frozen=True, eq=False)
class Repaired:
    """What meets the criteria, cheapest first, and what finding it cost."""

    repairs: tuple[Repair, ...]
    best: Fix | None
    """Of the first repair; None where that is the search's own plan, or there is none."""
    trials: int
    builds: int
    seconds: float
    notes: tuple[str, ...] = ()


def repair(
    measured: Measured, outcome: SearchOutcome, *, price: Price | None = None, trials: int = TRIALS
) -> Repaired:
    """Look for the cheapest way to meet a failing case's criteria.

    Dearer ways are not tried where a cheaper one is verified. Ends early, with what is verified by then, when
    the settings' ``max_seconds`` or the trials are spent, or on Ctrl-C.

    Args:
        measured: A failing case.
        outcome: What its search found; where it found no plan, all groups are looked at.
        price: Time of a form; without it the share of the multiply-accumulates that leaves INT8 counts.
        trials: How many trials it may cost, of ``board.FEW`` samples each.

    Raises:
        Int8accError: A model does not build or run, or the data cannot be read.
    """
    started = time.perf_counter()
    found: list[tuple[Repair, Fix | None]] = []
    mender = _Mender(measured, outcome, Purse(trials, measured.settings.max_seconds))
    try:
        if not outcome.found or outcome.culprits:
            found.extend(mender.ways())
    except KeyboardInterrupt:
        mender.notes.append("repair stopped early: interrupted (Ctrl-C)")
    high = _high(outcome)
    found += [(high, None)] if high is not None else []
    if price is not None and len(found) > 1 and mender.measured.int8 is not None:
        plan = Plan(dict.fromkeys((c.layer for c in outcome.culprits), measured.keep))
        own = mender.measured.int8.under(plan)
        found = _fastest_first(
            [(replace(way, latency=price(fix.form if fix else own)), fix) for way, fix in found]
        )
    seconds = time.perf_counter() - started
    spent = mender.purse.trials
    notes = (*mender.notes, *([f"{spent} trials of other scales"] if spent else []))
    best = found[0][1] if found else None
    return Repaired(tuple(r for r, _ in found), best, spent, mender.builds, seconds, notes)


def _fastest_first(found: list[tuple[Repair, Fix | None]]) -> list[tuple[Repair, Fix | None]]:
    """Sorted by time, but first the cheapest by its MACs that no other is faster than beyond doubt.

    There is doubt where the middle 80 % of two times overlap.
    """
    timed = [(way.latency, way) for way, _ in found if way.latency is not None]
    if len(timed) < len(found):
        return found
    clearly = min(latency.high_ms for latency, _ in timed)
    lead = next(way for latency, way in timed if latency.low_ms <= clearly)
    place = {id(way): (way is not lead, latency.median_ms) for latency, way in timed}
    return sorted(found, key=lambda pair: place[id(pair[0])])


@dataclass(frozen=True, eq=False)
class _Base:
    """A network that can be tried under other scales."""

    int8: Int8Form
    board: Board
    ranges: Ranges
    choice: Choice
    """The best scales so far, with everything in INT8."""
    source: Source
    """Where ``ranges`` come from."""
    weights: tuple[str, ...]
    """Constants with scales taken anew."""
    migrated: Migrated | None = None
    alpha: float = 0.0
    """Of the migration."""


class _Mender:
    """Tries the ways, cheapest first."""

    def __init__(self, measured: Measured, outcome: SearchOutcome, purse: Purse) -> None:
        self.measured, self.outcome, self.purse = measured, outcome, purse
        self.notes: list[str] = []
        self.builds = 0
        self.culprits = tuple(culprit.layer for culprit in outcome.culprits)

    def ways(self) -> Iterator[tuple[Repair, Fix]]:
        """The first way that is verified, if any."""
        if self.measured.int8 is not None and self.outcome.ending.kind != "high-fails":
            yield from islice(filter(None, self._attempts(self.measured.int8)), 1)

    def _attempts(self, int8: Int8Form) -> Iterator[tuple[Repair, Fix] | None]:
        """All ways, cheapest first; None where one does not lead there.

        Scales of all activations are chosen aside: those that make up for a fault elsewhere do harm once that
        is mended.
        """
        bases, culprits = [], self.culprits or None
        for source in sources(self.measured):
            logger.info("%s: looking for other scales, ranges from %s", self.measured.case.name, source.words)
            base, found = self._recalibrate(self._base(int8, source), culprits)
            yield found
            bases.append(base)
        plain = min(bases, key=lambda base: base.choice.badness)
        moved, found = self._migrate(plain)
        yield found
        for base in ([plain] if moved is plain else [plain, moved]) if culprits else []:
            yield self._recalibrate(self._widened(base), None)[1]
        yield self._mix(min(plain, moved, key=lambda base: base.choice.badness))

    def _base(self, int8: Int8Form, source: Source) -> _Base:
        """The case's network, every activation in symmetric INT8 per tensor, the worst weights mended."""
        network = int8.network
        odd_ones = _not_plain(network)
        looked_at = with_tied(network, [*activations(network, self.culprits or None), *odd_ones])
        ranges = Ranges(network, looked_at, source.data, self.measured.settings.provider)
        odd = {t: ranges.scale(t, "minmax") for t in odd_ones if t in ranges}
        weights = worse_weights(network, self.culprits or None)
        if odd or weights:
            int8 = rescaled(int8, Change(odd, weights))
        return _Base(int8, Board(self.measured, int8.network), ranges, Choice(), source, weights)

    def _widened(self, base: _Base) -> _Base:
        """With ranges of all activations."""
        network = base.int8.network
        every = activations(network)
        missing = [tensor for tensor in every if tensor not in base.ranges]
        logger.info("%s: looking for other scales of all %d tensors", self.measured.case.name, len(every))
        ranges = Ranges(network, missing, base.source.data, self.measured.settings.provider)
        ranges.adopt(base.ranges, every)
        return replace(base, ranges=ranges)

    def _recalibrate(
        self, base: _Base, groups: tuple[str, ...] | None
    ) -> tuple[_Base, tuple[Repair, Fix] | None]:
        """Other scales for what some groups read (None: all do), all of them in INT8."""
        wanted = units(base.int8.network, activations(base.int8.network, groups), base.ranges)
        for enough in (ENOUGH, 0.0):
            choice = rescale(base.board, wanted, base.ranges, self.purse, start=base.choice, enough=enough)
            base = replace(base, choice=choice)
            found = self._confirmed(base, frozenset())
            if found is not None or choice.badness > ENOUGH:
                return base, found
        return base, None

    def _migrate(self, base: _Base) -> tuple[_Base, tuple[Repair, Fix] | None]:
        """Channels evened out; the alpha that is best with plain ranges is looked at closely.

        Not where the case has a plan of its own, whose groups the migrated model would have to know.
        """
        if base.int8.whole is not None:
            return base, None
        network, groups = base.int8.network, self.culprits or None
        provider, name = self.measured.settings.provider, self.measured.case.name
        outlying = outlying_sites(network, activations(network, groups), base.source.data, provider)
        best = base
        for alpha in ALPHAS if outlying else ():
            if self.purse.empty:
                break
            logger.info("%s: migrating %d activations, alpha %g", name, len(outlying), alpha)
            moved = migrate(network, migration(network, outlying, alpha))
            tried = self._migrated(replace(base, alpha=alpha), moved)
            best = min(best, tried, key=lambda base: base.choice.badness)
        return (base, None) if best is base else self._recalibrate(best, groups)

    def _migrated(self, base: _Base, moved: Migrated) -> _Base:
        """A migrated network, new ranges for what it touched, the best scales so far elsewhere."""
        kept = set(activations(moved.network)).difference(moved.touched)
        ranges = Ranges(moved.network, moved.touched, base.source.data, self.measured.settings.provider)
        ranges.adopt(base.ranges, kept)
        start = base.choice.only(kept)
        board = Board(self.measured, moved.network)
        choice = uniform(board, units(moved.network, moved.touched, ranges), self.purse, start)
        int8 = replace(base.int8, network=moved.network)
        return replace(base, int8=int8, board=board, ranges=ranges, choice=choice, migrated=moved)

    def _mix(self, base: _Base) -> tuple[Repair, Fix] | None:
        """Scales for each culprit while the others are high; then those that can return to INT8 do."""
        if not self.outcome.found or len(self.culprits) < 2 or self.purse.empty:
            return None
        board, network = base.board, base.int8.network
        everything = board.indices(self.culprits)
        choice = base.choice.only(base.migrated.touched if base.migrated else ())
        for name in self.culprits:
            wanted = units(network, activations(network, [name]), base.ranges)
            others = everything - board.indices([name])
            choice = rescale(board, wanted, base.ranges, self.purse, start=choice, high=others)
        budget = Budget(max_seconds=self.purse.seconds_left)
        result = certify(Rescaled(board, choice.scales), everything, budget=budget)
        if not result.passed or len(result.high) == len(self.culprits):
            return None
        return self._confirmed(replace(base, choice=choice), board.indices(result.high))

    def _confirmed(self, base: _Base, high: frozenset[int]) -> tuple[Repair, Fix] | None:
        """The choice on all samples of the simulation, then built; None where either fails."""
        if not base.board.trial(base.choice.scales, high).passed:
            return None
        if self.builds >= self.measured.settings.max_builds:
            self.notes.append(f"repair stopped early: the budget of {self.builds} builds is spent")
            return None
        wanted = units(base.int8.network, base.choice.scales, base.ranges)
        pruned = replace(base, choice=prune(base.board, wanted, self.purse, base.choice, high))
        base = pruned if base.board.trial(pruned.choice.scales, high).passed else base
        names = tuple(base.board.groups[i].name for i in sorted(high))
        plan = Plan(dict.fromkeys(names, self.measured.keep), _news(base))
        form = base.int8.under(plan)
        verdict = self._proved(form, len(names))
        if not verdict.passed:
            self.notes.append("other scales pass in the simulation and fail in the built model")
            return None
        assert self.measured.int8 is not None
        total = sum(group.price for group in base.board.groups) or 1.0
        share = sum(base.board.groups[i].price for i in high) / total
        kind: Kind = "mixed" if names else "migrate" if base.migrated else "recalibrate"
        rescales = tuple(_rescales(self.measured.int8.network, base))
        text = _text(self.outcome, base, names, rescales)
        return Repair(kind, text, names, rescales, verdict.scores, True, share), Fix(base.int8, plan, form)

    def _proved(self, form: Form, high: int) -> Verdict:
        """A form built by the case's backend, run and judged on all samples."""
        self.builds += 1
        logger.info("%s: building a repaired model, %d groups high", self.measured.case.name, high)
        return self.measured.judged(self.measured.run(form))


def _high(outcome: SearchOutcome) -> Repair | None:
    """The search's own plan; None where it found none that holds when built."""
    if not outcome.verified or not outcome.culprits:
        return None
    layers = tuple(culprit.layer for culprit in outcome.culprits)
    text = f"{_count(len(layers), 'layer')} in {outcome.precision.upper()}"
    share = 1.0 - outcome.int8_share
    return Repair("high", text, layers, (), outcome.fixed, outcome.verified, share)


def _not_plain(network: Network) -> list[str]:
    """Activations that are not quantized to symmetric INT8, per tensor."""
    found: dict[str, None] = {}
    for group in network.groups:
        for edge in group.edges:
            q = edge.quantization
            plain = q.axis is None and str(q.zero_point.dtype) == "int8" and not q.zero_point.any()
            if q.values is None and not plain:
                found[edge.tensor] = None
    return list(found)


def _news(base: _Base) -> dict[str, float]:
    """Scales of the choice that differ from the network's own."""
    own = base.board.own
    return {t: s for t, s in base.choice.scales.items() if t in own and abs(s - own[t]) > 1e-6 * own[t]}


def _rescales(original: Network, base: _Base) -> Iterator[Rescale]:
    """What changed, against the case as it was given."""
    old = {}
    for group in original.groups:
        for edge in group.edges:
            if edge.quantization.values is None and edge.quantization.scale.size == 1:
                old[edge.tensor] = float(edge.quantization.scale.reshape(()))
    for tensor, scale in _news(base).items():
        yield Rescale(tensor, base.choice.methods[tensor], old.get(tensor, base.board.own[tensor]), scale)


def _text(outcome: SearchOutcome, base: _Base, high: tuple[str, ...], rescales: tuple[Rescale, ...]) -> str:
    """What is done, in a sentence or two; what matters most comes first."""
    precision = outcome.precision.upper()
    every = len(outcome.culprits)
    head = (
        f"{len(high)} of {_count(every, 'layer')} in {precision}" if high else f"no layer needs {precision}"
    )
    parts = []
    if rescales:
        methods = ", ".join(dict.fromkeys(r.method for r in rescales))
        parts.append(f"other scales for {_count(len(rescales), 'tensor')} ({methods})")
    if base.weights:
        parts.append(f"scales of {_count(len(base.weights), 'weight')} taken anew from the values")
    if base.migrated is not None:
        parts.append(_migration_text(base.migrated, base.alpha))
    done = "; ".join(parts) or "symmetric INT8 throughout"
    return f"{head}: {done}; ranges from {base.source.words}"


def _migration_text(migrated: Migrated, alpha: float) -> str:
    parts = []
    if migrated.folded:
        parts.append(f"folded into {listed(migrated.folded)}")
    if migrated.inserted:
        parts.append(f"{len(migrated.inserted)} Mul inserted, one more elementwise pass over a tensor each")
    return f"channels evened out by migration to the weights (alpha {alpha:g}; {'; '.join(parts)})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
