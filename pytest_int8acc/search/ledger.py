"""The account of a search: every run is checked against the budget, paid for and remembered."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.clock import Budget, Clock, OutOfTime
from pytest_int8acc.results import Ending, LayerLine
from pytest_int8acc.results.search import EndingKind
from pytest_int8acc.scores.criteria import Criterion
from pytest_int8acc.search.types import Evaluator, Probe, SearchResult, Trial, TrialRecord

Floats = NDArray[np.float64]
#: Minimum number of samples for a mean to be rejected before all samples are seen.
_LEAST = 8
#: The weight of the trials before, each time that samples are ranked by hardness.
_DECAY = 0.6
#: The price of one more group, as a share of the mean price. Groups that cost nothing (an Add has no MACs)
#: are not worth a longer list.
_PER_GROUP = 0.01
#: Replaces an infinite part, so that sums stay finite.
_HUGE = 1e30
#: Maximum magnitude in an error vector, a thousand times the length allowed, so that sums stay exact enough.
_LONG = 1e3
_LOG = logging.getLogger("pytest_int8acc")


class Samples:
    """Remembers which samples break criteria, orders them, and judges a plan on those seen so far.

    The worst samples and counts of flips are decided by few samples: the hardest run first. A mean is
    estimated best by samples spread evenly over all hardnesses: after the lead, every prefix of the order is
    such a spread.
    """

    def __init__(self, criteria: Sequence[Criterion], count: int) -> None:
        self.count = count
        pools = [criterion.pool for criterion in criteria]
        self._mean = np.array([pool == "mean" for pool in pools], dtype=np.bool_)
        self._rank = np.array([pool == "rank" for pool in pools], dtype=np.bool_)
        self._allowed = np.array([c.allowed for c in criteria if c.pool == "rank"], dtype=np.intp)
        self._hardness = np.zeros(count)
        self._lead = 0 if not self._rank.any() else count if not self._mean.any() else max(1, count // 8)

    def ranked(self) -> list[int]:
        """All samples, those that broke criteria most so far first."""
        return [int(i) for i in np.argsort(-self._hardness, kind="stable")]

    def order(self) -> list[int]:
        """All samples: the hardest as lead, then the rest, every prefix spread over all hardnesses."""
        ranked = self.ranked()
        rest = ranked[self._lead :]
        bits = max(1, (len(rest) - 1).bit_length())
        spread = [int(format(i, f"0{bits}b")[::-1], 2) for i in range(2**bits)]
        return ranked[: self._lead] + [rest[i] for i in spread if i < len(rest)]

    @staticmethod
    def ran(parts: Floats) -> int:
        """How many samples were seen, as far as parts tell."""
        return int((~np.isnan(parts)).any(axis=0).sum())

    def shares(self, trial: Trial) -> Floats:
        """Per sample, its greatest share of a criterion's parts in this trial; nan where not seen."""
        total = np.nansum(trial.parts, axis=1, keepdims=True)
        return np.asarray(np.fmax.reduce(trial.parts / np.where(total > 0, total, 1.0), axis=0))

    def learn(self, trial: Trial) -> None:
        """Rank the samples by this trial and, fading, those before it."""
        shares = self.shares(trial)
        faded = _DECAY * self._hardness + np.nan_to_num(shares)
        self._hardness = np.where(np.isnan(shares), self._hardness, faded)

    def pooled(self, parts: Floats) -> Floats:
        """The loss per criterion if these were all samples and none may fail; nan where parts do not tell."""
        return np.asarray(np.where(self._rank, parts.max(axis=1), parts.mean(axis=1)))

    def rejects(self, parts: Floats, reference: Trial | None) -> bool:
        """Whether the samples seen so far tell that a plan fails.

        More samples over the limit than allowed, or a sum over the limit with all samples not seen counted
        as perfect, prove it. For a mean the difference to a passing plan that saw all samples, taken in
        proportion to hardness (a ratio estimator), must exceed the room that it leaves beyond doubt.
        """
        seen = np.nan_to_num(parts)
        if ((seen[self._rank] > 1).sum(axis=1) > self._allowed).any():
            return True
        if (seen[~self._rank].sum(axis=1) > self.count).any():
            return True
        mean, margin = self._extrapolate(parts, reference, _LEAST)
        return bool((mean - margin > 1).any())

    def estimate(self, trial: Trial, reference: Trial | None) -> Floats:
        """The losses that this trial would have had on all samples; nan where those seen cannot tell."""
        if trial.confirmed:
            return np.array(trial.losses)
        mean, _ = self._extrapolate(trial.parts, reference, _LEAST // 2)
        ranked = -np.sort(-np.nan_to_num(trial.parts[self._rank]), axis=1)
        mean[self._rank] = ranked[np.arange(len(ranked)), np.minimum(self._allowed, self.count - 1)]
        return mean

    def _extrapolate(self, parts: Floats, reference: Trial | None, least: int) -> tuple[Floats, Floats]:
        """Estimate of the mean over all samples and a margin for doubt; nan where too few were seen.

        The lead is counted as it is, the rest by a ratio estimator (Cochran, Sampling Techniques, ch. 6):
        what a part exceeds that of the reference by, in proportion to hardness. The margin is three
        standard errors, more where few samples were seen.
        """
        mean, margin = np.full((2, len(parts)), np.nan)
        rest = np.ones(self.count, dtype=np.bool_)
        rest[self.ranked()[: self._lead]] = False
        seen = rest & ~np.isnan(parts[self._mean]).any(axis=0)
        m, total = int(seen.sum()), int(rest.sum())
        lead = parts[self._mean][:, ~rest]
        if not self._mean.any() or m < max(least, self.count // 8) or np.isnan(lead).any():
            return mean, margin
        known = np.zeros_like(parts) if reference is None else np.nan_to_num(reference.parts)
        more = (parts - known)[self._mean]
        size = self._hardness + 0.1 * self._hardness.mean() + np.finfo(np.float64).tiny
        size = size / size[rest].mean()
        ratio = more[:, seen].sum(axis=1) / size[seen].sum()
        scatter = more[:, seen] - ratio[:, None] * size[seen]
        variance = (scatter**2).sum(axis=1) / (m - 1) * (1 - m / total) / m
        added = (more[:, ~rest].sum(axis=1) + total * ratio) / self.count
        mean[self._mean] = known[self._mean].mean(axis=1) + added
        doubt = 3 * (1 + 4 / m) * np.sqrt(variance) / size[seen].mean()
        margin[self._mean] = doubt * total / self.count
        return mean, margin


class StopSearch(Exception):  # noqa: N818 - not an error: it unwinds a strategy
    """The budget is spent."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending)
        self.ending = ending


class Ledger:
    """An evaluator that caches by plan, counts cost, keeps the best verified plan and stops in time."""

    def __init__(self, evaluator: Evaluator, budget: Budget) -> None:
        self.evaluator = evaluator
        self.groups = tuple(evaluator.groups)
        self.everything = frozenset(range(len(self.groups)))
        self.once = budget.once
        self.samples = Samples(evaluator.criteria, evaluator.samples)
        self.weights = _weights([group.price for group in self.groups])
        self.best: Trial | None = None
        self.cost = 0.0
        self.table: list[LayerLine] = []
        self.order: list[int] = []
        self._probes = 0
        self._budget = budget
        self._began = time.monotonic()
        self._trials: dict[frozenset[int], Trial] = {}
        self._records: list[TrialRecord] = []

    @property
    def seconds(self) -> float:
        """Since the search began."""
        return time.monotonic() - self._began

    def weight(self, high: Iterable[int]) -> float:
        """Price of keeping these groups high, as a share of all, with a little for each group."""
        return float(sum(self.weights[i] for i in high))

    def known(self, high: frozenset[int]) -> Trial | None:
        """The trial of this plan, where there was one."""
        return self._trials.get(high)

    def trial(self, high: frozenset[int], why: str, *, least: int = 1) -> Trial:
        """Judge a plan; a pass has seen all samples, a rejection ``least`` of them. Free where known.

        Raises StopSearch where the budget is spent, as ``probe`` does.
        """
        known = self._trials.get(high)
        if known is not None and (known.confirmed or self.samples.ran(known.parts) >= least):
            return known
        self._check(trial=True)
        best, samples = self.best, self.samples

        def enough(parts: NDArray[np.float64]) -> bool:
            return samples.ran(parts) >= least and samples.rejects(np.minimum(parts, _HUGE), best)

        found = self.evaluator.trial(high, samples.order(), enough)
        trial = replace(found, parts=np.minimum(found.parts, _HUGE))
        self._trials[high] = trial
        self.cost += trial.cost
        self._record(trial, why)
        if trial.passed and (best is None or self.weight(high) < self.weight(best.high)):
            self.best = trial
        return trial

    def probe(self, plans: Sequence[frozenset[int]], samples: Sequence[int]) -> list[Probe]:
        """Measure the errors of several plans on a few samples."""
        self._check()
        found = self.evaluator.probe(plans, samples)
        self._probes += len(plans)
        self.cost += sum(not probe.known for probe in found) * len(samples) / self.samples.count
        return [
            Probe(
                [np.nan_to_num(v, nan=_LONG).clip(-_LONG, _LONG) for v in p.vectors], p.parts.clip(max=_HUGE)
            )
            for p in found
        ]

    def names(self, high: Iterable[int]) -> tuple[str, ...]:
        """Names of the groups, in topological order."""
        return tuple(self.groups[i].name for i in sorted(high))

    def ending(self, kind: EndingKind, high: int = 0) -> Ending:
        """An ending with so many groups kept high."""
        return Ending(kind, high, len(self.groups))

    def result(self, strategy: str, ending: Ending) -> SearchResult:
        """The best verified plan, or all groups high where none passes."""
        best = self.best or self._trials.get(self.everything)
        high = self.everything if best is None else best.high
        drops = [self._trials.get(high - {i}) for i in high]
        passed = best is not None and best.passed
        minimal = passed and all(drop and not drop.passed for drop in drops)
        if minimal and ending.kind == "cut-short":  # there was nothing left to refine
            ending = self.ending("proven", len(high))
        prices = [group.price for group in self.groups]
        return SearchResult(
            strategy=strategy,
            high=self.names(high),
            passed=passed,
            minimal=minimal,
            ending=ending,
            trials=tuple(self._records),
            loss=math.nan if best is None else best.loss,
            scores=() if best is None else best.scores,
            probes=self._probes,
            cost=self.cost,
            seconds=self.seconds,
            price=sum(prices[i] for i in high) / (sum(prices) or 1.0),
            table=tuple(self.table),
            order=tuple(self.groups[i].name for i in self.order),
        )

    def _record(self, trial: Trial, why: str) -> None:
        names, verdict = self.names(trial.high), "passes" if trial.passed else "fails"
        record = TrialRecord(
            names, trial.passed, trial.confirmed, trial.loss, trial.scores, trial.cost, self.seconds, why
        )
        self._records.append(record)
        self._budget.clock.tick("trial")
        _LOG.info(
            "search, trial %d: %d of %d groups high (%s) %s with %.3g times the error allowed",
            *(len(self._records), len(names), len(self.groups), why, verdict, trial.loss),
        )

    def _check(self, *, trial: bool = False) -> None:
        """Raises StopSearch where the budget is spent."""
        budget, paid = self._budget, sum(record.cost > 0 for record in self._records)
        if trial and paid >= budget.max_trials:
            raise StopSearch(Ending("trials-spent", max_trials=int(budget.max_trials)))
        if budget.clock.over:
            raise StopSearch(_over(budget.clock))
        has_plan = self.best is not None and self.best.high != self.everything
        is_bounded = budget.max_runs < math.inf
        if has_plan and is_bounded and (budget.clock.late or self.cost >= budget.max_runs):
            assert self.best is not None
            raise StopSearch(self.ending("cut-short", len(self.best.high)))


def run(
    strategy: str, body: Callable[[Ledger], Ending], evaluator: Evaluator, budget: Budget | None
) -> SearchResult:
    """Run a strategy's body to its end, its budget or Ctrl-C, whichever comes first."""
    budget = budget or Budget()
    ledger = Ledger(evaluator, budget)
    clock = budget.clock
    try:
        ending = body(ledger)
    except StopSearch as stop:
        ending = stop.ending
    except KeyboardInterrupt:
        clock.interrupt()
        ending = _over(clock)
    except OutOfTime:
        ending = _over(clock)
    return ledger.result(strategy, ending)


def _over(clock: Clock) -> Ending:
    if clock.interrupted:
        return Ending("interrupted")
    return Ending("seconds-spent", max_seconds=clock.bound or 0.0)


def _weights(prices: Sequence[float]) -> NDArray[np.float64]:
    """Shares of the sum, each with a little added for being a group at all."""
    price = np.asarray(prices, dtype=np.float64)
    if price.sum() <= 0:
        return np.full(price.size, 1 / max(price.size, 1))
    weights = price + _PER_GROUP * price.mean()
    return np.asarray(weights / weights.sum())
