"""Runs the trials of a search within its budget, and ranks samples by the loss that they cause in trials."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.clock import Budget, Clock, OutOfTime
from pytest_int8acc.results import Ending, LayerLine, TrialLine
from pytest_int8acc.results.search import EndingKind
from pytest_int8acc.scores.criteria import Criterion
from pytest_int8acc.search.types import Evaluator, Probe, SearchResult, Trial

Floats = NDArray[np.float64]
#: Minimum number of samples that must have run before a plan may be rejected by its estimated mean loss.
_LEAST = 8
#: The hardness of a sample is the share of the loss that it causes in trials. When a trial updates the
#: hardness, the old value is multiplied by this factor.
_DECAY = 0.6
#: A surcharge on the price of each group of layers in high precision, as a share of the mean price. Without
#: it, groups without multiply-accumulates, like an Add, would be put into high precision for free.
_PER_GROUP = 0.01
#: Maximum loss of one sample. Greater losses are replaced by this number, so that sums stay finite.
_HUGE = 1e30
#: Maximum magnitude of an element of an error vector. A vector of length 1 is at the limit of its criterion,
#: so larger elements say nothing more, and would make sums inexact.
_LONG = 1e3
_LOG = logging.getLogger("pytest_int8acc")


class Samples:
    """Ranks samples by hardness, and judges a plan by the samples that have run so far.

    The hardness of a sample is its share of the loss in earlier trials. The hardest samples run first,
    because they decide about limits on the worst samples. A mean is estimated best from samples of all
    hardnesses. So the other samples run in an order in which every prefix is spread over all hardnesses.
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
        """The indices of all samples, sorted by the loss that they caused in earlier trials, most first."""
        return [int(i) for i in np.argsort(-self._hardness, kind="stable")]

    def order(self) -> list[int]:
        """All samples in the order in which they should run.

        Samples with the greatest losses in earlier trials come first. The others follow in bit-reversed order
        of their rank by loss, so that the first of them, however many, represent all of them.
        """
        ranked = self.ranked()
        rest = ranked[self._lead :]
        bits = max(1, (len(rest) - 1).bit_length())
        spread = [int(format(i, f"0{bits}b")[::-1], 2) for i in range(2**bits)]
        return ranked[: self._lead] + [rest[i] for i in spread if i < len(rest)]

    @staticmethod
    def ran(parts: Floats) -> int:
        """The number of samples that have run; ``parts``, [criteria, samples], is nan for other samples."""
        return int((~np.isnan(parts)).any(axis=0).sum())

    def shares(self, trial: Trial) -> Floats:
        """For each sample, the greatest share that it has in the loss of a criterion.

        Nan for a sample that did not run in ``trial``.
        """
        total = np.nansum(trial.parts, axis=1, keepdims=True)
        return np.asarray(np.fmax.reduce(trial.parts / np.where(total > 0, total, 1.0), axis=0))

    def learn(self, trial: Trial) -> None:
        """Update the ranking of the samples by their losses in ``trial``. Older trials have less weight."""
        shares = self.shares(trial)
        faded = _DECAY * self._hardness + np.nan_to_num(shares)
        self._hardness = np.where(np.isnan(shares), self._hardness, faded)

    def pooled(self, parts: Floats) -> Floats:
        """The loss of each criterion over the samples of ``parts``, [criteria, samples].

        It is the maximum for a limit on the worst samples, and the mean otherwise.
        """
        return np.asarray(np.where(self._rank, parts.max(axis=1), parts.mean(axis=1)))

    def rejects(self, parts: Floats, reference: Trial | None) -> bool:
        """Whether the samples that have run show that a plan fails.

        A plan certainly fails if too many samples exceed their limit, or if the sum of the losses exceeds the
        limit even with a loss of 0 for all samples that have not run. For a criterion on the mean loss, a
        plan is also rejected if the estimated mean exceeds the limit by more than three standard errors.

        Args:
            parts: The loss of each sample, [criteria, samples]; nan for samples that did not run.
            reference: A passing trial on all samples, from which the estimate starts.
        """
        seen = np.nan_to_num(parts)
        if ((seen[self._rank] > 1).sum(axis=1) > self._allowed).any():
            return True
        if (seen[~self._rank].sum(axis=1) > self.count).any():
            return True
        mean, margin = self._extrapolate(parts, reference, _LEAST)
        return bool((mean - margin > 1).any())

    def estimate(self, trial: Trial, reference: Trial | None) -> Floats:
        """The estimated losses of a trial over all samples; nan if too few samples have run.

        ``reference`` is a passing trial on all samples, from which the estimate starts, or None.
        """
        if trial.confirmed:
            return np.array(trial.losses)
        mean, _ = self._extrapolate(trial.parts, reference, _LEAST // 2)
        ranked = -np.sort(-np.nan_to_num(trial.parts[self._rank]), axis=1)
        mean[self._rank] = ranked[np.arange(len(ranked)), np.minimum(self._allowed, self.count - 1)]
        return mean

    def _extrapolate(self, parts: Floats, reference: Trial | None, least: int) -> tuple[Floats, Floats]:
        """The estimated mean loss over all samples, and its margin of error, for each criterion.

        Both are nan for criteria that are not on means, and for all criteria if too few samples ran, for
        instance fewer than ``least``. The measured losses of the hardest samples, which run first, are used.
        For the other samples a ratio estimator (Cochran, Sampling Techniques, ch. 6) assumes that the loss
        exceeds the loss in ``reference`` in proportion to hardness. The margin is three standard errors, and
        more if few samples ran.
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


class StopSearch(Exception):  # noqa: N818 - not an error
    """Raised in a strategy to end the search, because the budget is spent or the outcome is already known."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending)
        self.ending = ending


class Ledger:
    """Runs the trials of a search, remembers their results, and ends the search if the budget is spent."""

    def __init__(self, evaluator: Evaluator, budget: Budget) -> None:
        self.evaluator, self.budget = evaluator, budget
        self.groups = tuple(evaluator.groups)
        self.everything = frozenset(range(len(self.groups)))
        self.samples = Samples(evaluator.criteria, evaluator.samples)
        self.weights = _weights([group.price for group in self.groups])
        self.best: Trial | None = None
        """The passing trial whose groups in high precision have the least weight."""
        self.table: list[LayerLine] = []
        self.order: list[int] = []
        self._probes = 0
        self._trials: dict[frozenset[int], Trial] = {}
        self._lines: list[TrialLine] = []

    def weight(self, high: Iterable[int]) -> float:
        """The total weight of the groups ``high``: their prices, and a small surcharge for each group.

        All groups together weigh 1.
        """
        return float(sum(self.weights[i] for i in high))

    def known(self, high: frozenset[int]) -> Trial | None:
        """The trial of the plan ``high``; None if this plan was not tried before."""
        return self._trials.get(high)

    def trial(self, high: frozenset[int], why: str, *, least: int = 1) -> Trial:
        """Judge the plan ``high``. A plan that was judged before costs nothing.

        A plan that passes was run on all samples. A plan that fails was run on at least ``least`` samples.
        ``why`` is the reason for the trial, for the report.

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
        self._pay(trial, why)
        if trial.passed and (best is None or self.weight(high) < self.weight(best.high)):
            self.best = trial
        return trial

    def probe(self, plans: Sequence[frozenset[int]], samples: Sequence[int]) -> list[Probe]:
        """Measure the error vectors of several plans on the given samples.

        Raises:
            StopSearch: The budget is spent.
        """
        self._check()
        found = self.evaluator.probe(plans, samples)
        self._probes += len(plans)
        measured = sum(not probe.known for probe in found)
        self.budget.meter.runs += measured * len(samples) / self.samples.count
        return [_bounded(probe) for probe in found]

    def names(self, high: Iterable[int]) -> tuple[str, ...]:
        """The names, in topological order, of the groups of layers with the indices ``high``."""
        return tuple(self.groups[i].name for i in sorted(high))

    def ending(self, kind: EndingKind, high: int = 0) -> Ending:
        """The ending, for the reason ``kind``, of a search that keeps ``high`` groups in high precision."""
        return Ending(kind, high, len(self.groups))

    def result(self, ending: Ending) -> SearchResult:
        """The passing plan of least weight, the cost of the search, and ``ending``, the reason why it ended.

        If no plan passes, the result has the plan with all groups in high precision.
        """
        best = self.best or self._trials.get(self.everything)
        high = self.everything if best is None else best.high
        fewer = [self._trials.get(high - {i}) for i in high]
        passed = best is not None and best.passed
        minimal = passed and all(trial and not trial.passed for trial in fewer)
        if minimal and ending.kind == "cut-short":  # every group was tried in the low format
            ending = self.ending("proven", len(high))
        prices = [group.price for group in self.groups]
        return SearchResult(
            high=self.names(high),
            passed=passed,
            minimal=minimal,
            ending=ending,
            trials=tuple(self._lines),
            loss=math.nan if best is None else best.loss,
            probes=self._probes,
            cost=self.budget.spent,
            price=sum(prices[i] for i in high) / (sum(prices) or 1.0),
            table=tuple(self.table),
            order=tuple(self.groups[i].name for i in self.order),
        )

    def _pay(self, trial: Trial, why: str) -> None:
        """Charge a trial's cost to the budget, and add the trial and its reason ``why`` to the report."""
        self.budget.meter.runs += trial.cost
        self.budget.trials += trial.cost > 0
        self.budget.clock.tick("trial")
        line = TrialLine(self.names(trial.high), trial.passed, trial.loss, trial.cost, why)
        self._lines.append(line)
        _LOG.info(
            "search, trial %d: %d of %d groups high (%s) %s with %.3g times the error allowed",
            len(self._lines),
            len(line.high),
            len(self.groups),
            why,
            "passes" if trial.passed else "fails",
            trial.loss,
        )

    def _check(self, *, trial: bool = False) -> None:
        """Raise StopSearch if the budget is spent; with ``trial``, also if no further trial is allowed.

        A limit on runs ends the search only after a passing plan was found: then this plan is not refined
        further. Refinement also ends after half of the time limit, because the diagnosis still follows.
        """
        budget, best = self.budget, self.best
        if trial and budget.trials >= budget.max_trials:
            raise StopSearch(Ending("trials-spent", max_trials=int(budget.max_trials)))
        if budget.clock.over:
            raise StopSearch(_over(budget.clock))
        if best is None or best.high == self.everything or budget.max_runs == math.inf:
            return
        if budget.clock.late or budget.spent >= budget.max_runs:
            raise StopSearch(self.ending("cut-short", len(best.high)))


def run(evaluator: Evaluator, body: Callable[[Ledger], Ending], budget: Budget | None) -> SearchResult:
    """Run the strategy ``body`` until it ends, its budget is spent, or the user presses Ctrl-C."""
    budget = budget or Budget()
    ledger, clock = Ledger(evaluator, budget), budget.clock
    try:
        ending = body(ledger)
    except StopSearch as stop:
        ending = stop.ending
    except KeyboardInterrupt:
        clock.interrupt()
        ending = _over(clock)
    except OutOfTime:
        ending = _over(clock)
    return ledger.result(ending)


def _over(clock: Clock) -> Ending:
    """The ending of a search that was interrupted or whose time is up."""
    if clock.interrupted:
        return Ending("interrupted")
    return Ending("seconds-spent", max_seconds=clock.bound or 0.0)


def _bounded(probe: Probe) -> Probe:
    """The measured errors with nan and large numbers replaced, so that sums are finite and exact enough."""
    vectors = [np.nan_to_num(vector, nan=_LONG).clip(-_LONG, _LONG) for vector in probe.vectors]
    return Probe(vectors, probe.parts.clip(max=_HUGE))


def _weights(prices: Sequence[float]) -> NDArray[np.float64]:
    """The weight of each group: price plus ``_PER_GROUP`` times the mean price, scaled to a sum of 1."""
    price = np.asarray(prices, dtype=np.float64)
    if price.sum() <= 0:
        return np.full(price.size, 1 / max(price.size, 1))
    weights = price + _PER_GROUP * price.mean()
    return np.asarray(weights / weights.sum())
