"""The default strategy: a surrogate made of error vectors proposes, hard samples screen, trials decide."""

from __future__ import annotations

import math, os

import numpy as np

from pytest_int8acc.search.evaluator import Evaluator
from pytest_int8acc.search.ledger import Ledger, run
from pytest_int8acc.search.probes import probe
from pytest_int8acc.search.solve import EXHAUSTIVE, Solver
from pytest_int8acc.search.types import Budget, SearchResult, Trial

NOT_THE_CAUSE = "with all groups in high precision the criteria fail too: INT8 is not the cause"
NOTHING_TO_DO = "all groups in INT8 meet the criteria: nothing has to leave"
E = lambda n, d: float(os.environ.get(n, d))

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
    return f"minimal: each of the {len(ledger.best.high)} groups kept high was tried in INT8 and fails"


class _Search:
    """The surrogate, kept true by what is measured along the way."""

    def __init__(self, ledger: Ledger, candidate: Trial) -> None:
        self.ledger = ledger
        ledger.samples.learn(candidate)
        self.failed: set[frozenset[int]] = set()
        self.refreshed = 0
        self.glancing = bool(E("GL", 1))
        self.log = []
        self.few = len(ledger.groups) <= EXHAUSTIVE
        self.high = ledger.everything
        self._look(candidate)

    def _look(self, trial, closely=False):
        self.probes = probe(self.ledger, trial, closely=closely)
        self.model = self.probes.surrogate
        self.solver = Solver(self.model, self.ledger.weights, self.probes.single)

    def descend(self) -> None:
        """Try the cheapest plan foretold to pass, correct the model by what happened, until one passes."""
        everything = self.ledger.everything
        first = self.solver.solve(1.0)
        certain = frozenset(i for i in everything if self.model.loss(everything - {i}) > 1)
        if certain and (first is None or self.solver.weigh(certain) < self.solver.weigh(first)):
            if self._attempt(certain, "certain culprits", 2.0):
                return
        limit = 1.0
        while limit > 0.01:
            plan = self.solver.solve(limit)
            if plan is None and not self.probes.single.all():
                self.log.append(("closely",))
                self._look(self.ledger.known(frozenset()), True)
                continue
            if plan is None or plan == everything:
                return
            if plan in self.failed:
                limit *= 0.9
            elif self._attempt(plan, "cheapest plan foretold to pass"):
                return

    def improve(self) -> None:
        """Try cheaper plans, the most promising first, while failures stay within patience."""
        patience, most = (E("PAT", 2), E("ALL", 6)) if self.few else (1.0, max(3.0, 0.5 * math.log2(len(self.ledger.groups))))
        began = since = self.ledger.cost
        while self.ledger.cost - since < patience and self.ledger.cost - began < most:
            plan = self._proposal()
            if plan is None:
                return
            if self._attempt(plan, "cheaper", 2.0 if self.few else 1.05, glance=self.glancing):
                since = self.ledger.cost

    def shrink(self) -> bool:
        shrunk, stubborn, batch, fails = False, set[int](), 1, 0
        while True:
            high = self.high
            left = [i for i in high if self.ledger.known(high - {i}) is None]
            if high != self.ledger.best.high and (fails >= 2 or not left):
                self.glancing = False
                ok = self.ledger.trial(high, "confirm").passed
                self.log.append(("confirm", ok))
                if not ok:
                    self.failed.add(high)
                    self.high = self.ledger.best.high
                    stubborn = set()
                else: self._learn(self.ledger.best)
                continue
            if not left:
                return shrunk
            foretold = {i: self.model.loss(high - {i}) for i in left}
            left.sort(key=lambda i: (i in stubborn, foretold[i] - self.ledger.weights[i]))
            drop = [i for i in left if i not in stubborn][:batch] or left[:1]
            plan = high - set(drop)
            if plan in self.failed: batch=1; plan=high-set(drop[:1]); drop=drop[:1]
            if self.glancing:
                trial, ok = self.ledger.glance(plan, "fewer groups")
            else:
                trial = self.ledger.trial(plan, "fewer groups"); ok = trial.passed
            self.log.append(("prove", len(high), len(drop), foretold[left[0]], trial.loss, ok, trial.cost))
            if ok:
                shrunk, batch, fails = True, batch * 2, 0
                self.high = plan
                self._learn(trial)
            else:
                self.failed.add(plan)
                stubborn.update(drop if len(drop) == 1 else ())
                batch = 1
                fails += 1
                self.ledger.samples.learn(trial)

    def _proposal(self) -> frozenset[int] | None:
        high = self.high
        weigh = self.solver.weigh(high)
        hi = min([self.model.loss(plan) for plan in self.failed if self.ledger.known(plan)], default=math.inf)
        lo = max(min(self.model.loss(high), 1.0), 0.01)
        limit = min(1.0, max(math.sqrt(lo * hi), lo)) if hi < math.inf else 1.0
        temp = 0.05
        if self.few:
            limit, temp = 1.0, E("TEMP", 0.2)
        found = self.solver.cheaper(high, limit * (1 + 6 * temp if self.few else 1.1))
        plans, loss, weight = found.high, found.loss, found.weight
        if not self.few:
            p = self.solver.solve(limit)
            if p is not None:
                plans = [*plans, p]; loss = np.append(loss, self.model.loss(p)); weight = np.append(weight, self.solver.weigh(p))
        worth = (weigh - weight) / (1 + np.exp(np.minimum((loss - limit) / (temp * limit), 500)))
        least = 1e-9 if self.few else 0.001
        for m in np.argsort(-worth, kind="stable"):
            if worth[m] < least:
                return None
            if plans[m] not in self.failed:
                self.log.append(("propose", lo, hi, limit, loss[m]))
                return plans[m]
        return None

    def _attempt(self, plan: frozenset[int], why: str, screen=1.05, glance=False) -> bool:
        """Measure a plan's errors on the hard samples; where they keep the limit, try it."""
        self._anchor(plan)
        measured = self.model.loss(plan)
        if measured > screen:
            self.failed.add(plan)
            return False
        if glance:
            trial, ok = self.ledger.glance(plan, why)
        else:
            trial = self.ledger.trial(plan, why)
            ok = trial.passed
        self.log.append((why[:8], len(plan), measured, trial.loss, ok, trial.cost))
        if not ok:
            self.failed.add(plan)
            if self.refreshed < 1 and self._surprising(trial):
                self.refreshed += 1
                self.ledger.samples.learn(trial)
                self._look(trial)
                self._anchor(plan)
                self.log.append(("refresh",))
        else:
            self.high = plan
        if ok or why != "cheaper":
            self._learn(trial)
        else:
            self.ledger.samples.learn(trial)
        return ok

    def _surprising(self, trial):
        truth = self.ledger.samples.estimate(trial, self.ledger.best)
        rows = self.model.rows(self.model.mask(trial.high)[None])[0]
        for t, target in enumerate(self.model.targets):
            if self.model.criteria[target.criterion].pool == "rank":
                if truth[target.criterion] ** (2 / target.power) > E("MIS", 2) * rows[self.model.target_of_row == t].max():
                    return True
        return False

    def _anchor(self, plan):
        self.model.anchor(plan, self.ledger.probe([plan], self.probes.samples)[0].vectors)

    def _learn(self, trial: Trial) -> None:
        truth = self.ledger.samples.estimate(trial, self.ledger.best)
        if trial.high in self.failed:
            truth = np.fmax(truth, 1.05)
        self.model.calibrate(trial.high, truth)
        self.ledger.samples.learn(trial)
