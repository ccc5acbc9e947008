"""The default strategy: a surrogate made of error vectors proposes, hard samples screen, trials decide."""

from __future__ import annotations

import math, os
from collections.abc import Iterator

import numpy as np

from pytest_int8acc.search.evaluator import Evaluator
from pytest_int8acc.search.ledger import Ledger, run
from pytest_int8acc.search.probes import probe
from pytest_int8acc.search.solve import EXHAUSTIVE, Solver
from pytest_int8acc.search.types import Budget, SearchResult, Trial

NOT_THE_CAUSE = "with all groups in high precision the criteria fail too: INT8 is not the cause"
NOTHING_TO_DO = "all groups in INT8 meet the criteria: nothing has to leave"
#: A plan whose errors, measured on the hard samples, exceed the limit by this much is not worth a trial.

_SCREEN = float(os.environ.get("SCR", "1.05"))
#: Equivalents of a full trial that failing attempts to improve may cost in a row.
_PATIENCE = 1.0
#: The least saving worth an attempt, as a share of the price of all groups; with few groups any saving is.
_SAVING = 0.001


def minimal(evaluator: Evaluator, *, budget: Budget | None = None) -> SearchResult:
    """Find a cheapest passing plan that is proven 1-minimal."""
    return run("minimal", _minimal, evaluator, budget)


def _minimal(ledger: Ledger) -> str:
    if not ledger.trial(ledger.everything, "all groups high").passed:
        return NOT_THE_CAUSE
    candidate = ledger.trial(frozenset(), "nothing kept high", complete=True)
    if candidate.passed:
        return NOTHING_TO_DO
    search = _Search(ledger, candidate)
    search.descend()
    for _ in range(2):
        search.improve()
        if not search.shrink():
            break
    return f"minimal: each of the {len(search.best.high)} groups kept high was tried in INT8 and fails"


class _Search:
    """The surrogate, kept true by what is measured along the way."""

    def __init__(self, ledger: Ledger, candidate: Trial) -> None:
        self.ledger = ledger
        self.probes = probe(ledger, candidate)
        self.model = self.probes.surrogate
        self.solver = Solver(self.model, ledger.weights, self.probes.single)
        self.failed: set[frozenset[int]] = set()
        self.log = []

    @property
    def best(self) -> Trial:
        """The cheapest plan verified."""
        assert self.ledger.best is not None
        return self.ledger.best

    def descend(self) -> None:
        """Try the cheapest plan foretold to pass, correct the model by what happened, until one passes."""
        certain = frozenset(i for i in self.ledger.everything if self.model.loss(self.ledger.everything - {i}) > 1)
        first = self.solver.solve(1.0)
        if certain and certain != self.ledger.everything and (first is None or self.solver.weigh(certain) < self.solver.weigh(first)) and self._attempt(certain, "certain culprits", calibrate=True, screen=2.0):
            return
        limit = 1.0
        while limit > 0.01:
            plan = self.solver.solve(limit)
            if plan is None or plan == self.ledger.everything:
                return
            if plan in self.failed:
                limit *= 0.9
            elif self._attempt(plan, "cheapest plan foretold to pass", calibrate=True):
                return

    def improve(self) -> None:
        """Try cheaper plans, the most promising first, while failures stay within patience."""
        allowed = float(os.environ.get("ALL","3")) if len(self.ledger.groups) <= EXHAUSTIVE else max(3.0, 0.5 * math.log2(len(self.ledger.groups)))
        spent = total = 0.0

        patience = float(os.environ.get("PAT", "1")) if len(self.ledger.groups) <= EXHAUSTIVE else 1.0
        while spent < patience and total < allowed:
            plan = self._proposal()
            if plan is None:
                return
            before = self.ledger.cost
            passed = self._attempt(plan, "cheaper")
            total += self.ledger.cost - before
            spent = 0.0 if passed else spent + self.ledger.cost - before

    def shrink(self) -> bool:
        shrunk, stubborn, batch = False, set[int](), 1
        while True:
            high = self.best.high
            left = [i for i in high if self.ledger.known(high - {i}) is None]
            if not left:
                return shrunk
            foretold = {i: self.model.loss(high - {i}) for i in left}
            left.sort(key=lambda i: (i in stubborn, foretold[i] - self.ledger.weights[i]))
            drop = [i for i in left if i not in stubborn][:batch] or left[:1]
            trial = self.ledger.trial(high - set(drop), "fewer groups")
            self.log.append(("prove", len(high), len(drop), foretold[left[0]], trial.loss, trial.passed, trial.cost))
            if trial.passed:
                shrunk, batch = True, batch * 2
                self._learn(trial)
            else:
                stubborn.update(drop if len(drop) == 1 else ())
                batch = 1
                self.ledger.samples.learn(trial)

    def _proposal(self) -> frozenset[int] | None:
        high = self.best.high
        weigh = self.solver.weigh(high)
        hi = min([self.model.loss(plan) for plan in self.failed if self.ledger.known(plan)], default=math.inf)
        lo = max(min(self.model.loss(high), 1.0), 0.01)
        limit = min(1.0, max(math.sqrt(lo * hi), lo)) if hi < math.inf else 1.0

        small = len(self.ledger.groups) <= EXHAUSTIVE
        temp = 0.05
        if small:
            limit, temp = 1.0, float(os.environ.get("TEMP", ".1"))
        found = self.solver.cheaper(high, limit * (1 + 6 * temp if small else 1.1))
        plans, loss, weight = found.high, found.loss, found.weight
        if len(self.ledger.groups) > EXHAUSTIVE:
            p = self.solver.solve(limit)
            if p is not None:
                plans = [*plans, p]; loss = np.append(loss, self.model.loss(p)); weight = np.append(weight, self.solver.weigh(p))
        worth = (weigh - weight) / (1 + np.exp(np.minimum((loss - limit) / (temp * limit), 500)))
        least = 1e-9 if len(self.ledger.groups) <= EXHAUSTIVE else _SAVING
        for m in np.argsort(-worth, kind="stable"):
            if worth[m] < least:
                return None
            if plans[m] not in self.failed:
                self.log.append(("propose", lo, hi, limit, loss[m]))
                return plans[m]
        return None

    def _attempt(self, plan: frozenset[int], why: str, calibrate=False, screen=_SCREEN) -> bool:
        """Measure a plan's errors on the hard samples; where they keep the limit, try it."""
        self.model.anchor(plan, self.ledger.probe([plan], self.probes.samples)[0].vectors)
        measured = self.model.loss(plan)
        if measured > screen:
            self.failed.add(plan)
            return False
        trial = self.ledger.trial(plan, why)
        self.log.append((why[:8], len(plan), measured, trial.loss, trial.passed, trial.cost))
        if trial.passed or calibrate:
            self._learn(trial)
        else:
            self.ledger.samples.learn(trial)
        if not trial.passed:
            self.failed.add(plan)
        return trial.passed

    def _learn(self, trial: Trial) -> None:
        truth = self.ledger.samples.estimate(trial, self.best)
        if not trial.passed:
            truth = np.fmax(truth, 1.05)
        self.model.calibrate(trial.high, truth)
        self.ledger.samples.learn(trial)
