"""The account of a search: every run is checked against the budget, paid for and remembered."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.results.search import Ending, EndingKind
from pytest_int8acc.search.evaluator import Evaluator
from pytest_int8acc.search.samples import Samples
from pytest_int8acc.search.types import Budget, Probe, SearchResult, TableRow, Trial, TrialRecord

#: What one group more is worth, as a share of the mean price: groups that cost nothing (an Add has no MACs)
#: are not worth a longer list.
_PER_GROUP = 0.01
#: Stands for an infinite part, so that sums stay numbers.
_HUGE = 1e30
#: Error vectors are cut here, a thousand times the length allowed, for sums to stay exact enough.
_LONG = 1e3
_LOG = logging.getLogger("pytest_int8acc")


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
        self.samples = Samples(evaluator.criteria, evaluator.samples)
        self.weights = _weights([group.price for group in self.groups])
        self.best: Trial | None = None
        self.cost = 0.0
        self.table: list[TableRow] = []
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

        Raises:
            StopSearch: The budget is spent.
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
        """Measure the errors of several plans on a few samples.

        Raises:
            StopSearch: The budget is spent.
        """
        self._check()
        found = self.evaluator.probe(plans, samples)
        self._probes += len(plans)
        self.cost += len(plans) * len(samples) / self.samples.count
        return [Probe([_finite(v) for v in p.vectors], np.minimum(p.parts, _HUGE)) for p in found]

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
        prices = [group.price for group in self.groups]
        return SearchResult(
            strategy=strategy,
            high=self.names(high),
            passed=best is not None and best.passed,
            minimal=best is not None and best.passed and self._proven_minimal(high),
            ending=ending,
            trials=tuple(self._records),
            loss=math.nan if best is None else best.loss,
            scores=() if best is None else best.scores,
            probes=self._probes,
            cost=self.cost,
            seconds=self.seconds,
            price=sum(prices[i] for i in high) / (sum(prices) or 1.0),
            table=tuple(self.table),
        )

    def _proven_minimal(self, high: frozenset[int]) -> bool:
        drops = (self._trials.get(high - {i}) for i in high)
        return all(drop is not None and not drop.passed for drop in drops)

    def _record(self, trial: Trial, why: str) -> None:
        names, verdict = self.names(trial.high), "passes" if trial.passed else "fails"
        record = TrialRecord(
            names, trial.passed, trial.confirmed, trial.loss, trial.scores, trial.cost, self.seconds, why
        )
        self._records.append(record)
        _LOG.info(
            "search, trial %d: %d of %d groups high (%s) %s with %.3g times the error allowed",
            *(len(self._records), len(names), len(self.groups), why, verdict, trial.loss),
        )

    def _check(self, *, trial: bool = False) -> None:
        budget, paid = self._budget, sum(record.cost > 0 for record in self._records)
        if trial and budget.max_trials is not None and paid >= budget.max_trials:
            raise StopSearch(Ending("trials-spent", max_trials=budget.max_trials))
        if budget.max_seconds is not None and self.seconds >= budget.max_seconds:
            raise StopSearch(Ending("seconds-spent", max_seconds=budget.max_seconds))


def run(
    strategy: str, body: Callable[[Ledger], Ending], evaluator: Evaluator, budget: Budget | None
) -> SearchResult:
    """Run a strategy's body to its end, its budget or Ctrl-C, whichever comes first."""
    ledger = Ledger(evaluator, budget or Budget())
    try:
        ending = body(ledger)
    except StopSearch as stop:
        ending = stop.ending
    except KeyboardInterrupt:
        ending = Ending("interrupted")
    return ledger.result(strategy, ending)


def _finite(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Error vectors in which what is no number is a very long error."""
    return np.clip(np.nan_to_num(vectors, nan=_LONG), -_LONG, _LONG)


def _weights(prices: Sequence[float]) -> NDArray[np.float64]:
    """Shares of the sum, each with a little added for being a group at all."""
    price = np.asarray(prices, dtype=np.float64)
    if price.sum() <= 0:
        return np.full(price.size, 1 / max(price.size, 1))
    weights = price + _PER_GROUP * price.mean()
    return np.asarray(weights / weights.sum())
