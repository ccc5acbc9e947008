"""The account of a search: every run goes through it, is paid for, remembered and checked against the budget."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.search.evaluator import Evaluator
from pytest_int8acc.search.samples import Samples
from pytest_int8acc.search.types import Budget, Probe, SearchResult, TableRow, Trial, TrialRecord

_LOG = logging.getLogger("pytest_int8acc")
#: What one group more is worth, as a share of the mean price: groups that cost nothing (an Add has no MACs)
#: are not worth a longer list.
_PER_GROUP = 0.01


class StopSearch(Exception):  # noqa: N818 - not an error: it unwinds a strategy
    """The budget is spent; the message says which."""


class Ledger:
    """An evaluator that caches by plan, counts cost, keeps the best verified plan and stops in time."""

    def __init__(self, evaluator: Evaluator, budget: Budget) -> None:
        self.evaluator = evaluator
        self.groups = tuple(evaluator.groups)
        self.samples = Samples(evaluator.criteria, evaluator.samples)
        self.everything = frozenset(range(len(self.groups)))
        self.weights = _weights([group.price for group in self.groups])
        self.best: Trial | None = None
        self.cost = 0.0
        self.probes = 0
        self.alone: dict[str, float] = {}
        self.table: list[TableRow] = []
        self._budget = budget
        self._began = time.monotonic()
        self._trials: dict[frozenset[int], Trial] = {}
        self._records: list[TrialRecord] = []

    @property
    def seconds(self) -> float:
        """Since the search began."""
        return time.monotonic() - self._began

    def weight(self, high: Iterable[int]) -> float:
        """What keeping these groups high costs, as a share of all groups, a little for each group included."""
        return float(sum(self.weights[i] for i in high))

    def known(self, high: frozenset[int]) -> Trial | None:
        """The trial of this plan, where there was one."""
        return self._trials.get(high)

    def trial(self, high: frozenset[int], why: str, *, complete: bool = False) -> Trial:
        """Judge a plan; a pass has seen all samples, a rejection too if ``complete``. Free where known.

        Raises:
            StopSearch: The budget is spent.
        """
        known = self._trials.get(high)
        if known is not None and (known.confirmed or not complete):
            return known
        best = self.best
        trial = self._run(high, None if complete else lambda parts: self.samples.rejects(parts, best))
        self._record(trial, trial.passed, why)
        self._trials[high] = trial
        if trial.passed and (best is None or self.weight(high) < self.weight(best.high)):
            self.best = trial
        return trial

    def glance(self, high: frozenset[int], why: str) -> tuple[Trial, bool]:
        """Judge a plan on as few samples as its verdict seems to need; True where it promises to pass.

        Raises:
            StopSearch: The budget is spent.
        """
        if high in self._trials:
            return self._trials[high], self._trials[high].passed
        best, samples = self.best, self.samples
        trial = self._run(high, lambda parts: samples.rejects(parts, best) or samples.promises(parts, best))
        if trial.confirmed or samples.rejects(trial.parts, best):
            self._record(trial, trial.passed, why)
            self._trials[high] = trial
            if trial.passed and (best is None or self.weight(high) < self.weight(best.high)):
                self.best = trial
            return trial, trial.passed
        self._record(trial, True, why)
        return trial, True

    def _run(self, high, enough):
        self._check(trials=1)
        trial = self.evaluator.trial(high, self.samples.order(), enough)
        self.cost += trial.cost
        return trial

    def probe(self, plans: Sequence[frozenset[int]], samples: Sequence[int]) -> list[Probe]:
        """Measure the errors of several plans on a few samples.

        Raises:
            StopSearch: The budget is spent.
        """
        self._check()
        self.probes += len(plans)
        self.cost += len(plans) * len(samples) / self.samples.count
        return self.evaluator.probe(plans, samples)

    def names(self, high: Iterable[int]) -> tuple[str, ...]:
        """Names of the groups, in topological order."""
        return tuple(self.groups[i].name for i in sorted(high))

    def proven_minimal(self, high: frozenset[int]) -> bool:
        """True where every plan with one group fewer was tried and fails."""
        drops = (self._trials.get(high - {i}) for i in high)
        return all(drop is not None and not drop.passed for drop in drops)

    def result(self, strategy: str, reason: str, *, stopped: bool) -> SearchResult:
        """The best verified plan, or all groups high where none passes."""
        best = self.best or self._trials.get(self.everything)
        high = self.everything if best is None else best.high
        prices = [group.price for group in self.groups]
        return SearchResult(
            strategy=strategy,
            high=self.names(high),
            passed=best is not None and best.passed,
            minimal=best is not None and best.passed and self.proven_minimal(high),
            reason=reason,
            stopped=stopped,
            trials=tuple(self._records),
            loss=math.nan if best is None else best.loss,
            scores=() if best is None else best.scores,
            probes=self.probes,
            cost=self.cost,
            seconds=self.seconds,
            price=sum(prices[i] for i in high) / (sum(prices) or 1.0),
            alone=dict(self.alone),
            table=tuple(self.table),
        )

    def _record(self, trial: Trial, passed: bool, why: str) -> None:
        self._records.append(
            TrialRecord(self.names(trial.high), passed, trial.confirmed, trial.loss, trial.scores, trial.cost, self.seconds, why)
        )

    def _check(self, trials: int = 0) -> None:
        budget = self._budget
        if budget.max_trials is not None and len(self._records) + trials > budget.max_trials:
            raise StopSearch(f"the budget of {budget.max_trials} trials is spent")
        if budget.max_seconds is not None and self.seconds >= budget.max_seconds:
            raise StopSearch(f"the budget of {budget.max_seconds:g} s is spent")
        if budget.stop is not None and budget.stop():
            raise StopSearch("it was told to stop")


def run(
    strategy: str, body: Callable[[Ledger], str], evaluator: Evaluator, budget: Budget | None
) -> SearchResult:
    """Run a strategy's body to its end, its budget or Ctrl-C, whichever comes first."""
    ledger = Ledger(evaluator, budget or Budget())
    try:
        reason, stopped = body(ledger), False
    except StopSearch as stop:
        reason, stopped = f"stopped early: {stop}", True
    except KeyboardInterrupt:
        reason, stopped = "stopped early: interrupted (Ctrl-C)", True
    return ledger.result(strategy, reason, stopped=stopped)


def _weights(prices: Sequence[float]) -> NDArray[np.float64]:
    price = np.asarray(prices, dtype=np.float64)
    if price.sum() <= 0:
        price = np.ones_like(price)
    weights = price + _PER_GROUP * price.mean() if price.size else price
    return np.asarray(weights / max(weights.sum(), np.finfo(np.float64).tiny))
