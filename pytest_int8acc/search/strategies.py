"""The strategies: minimal, where a surrogate of error vectors proposes, a few samples screen, trials decide.

And those of others: Polygraphy's bisect, linear and worst-first, the layer analyzer's forward. Unlike the
originals they try 'nothing kept' first, and return only what was evaluated and passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from pytest_int8acc.clock import Budget
from pytest_int8acc.results import Ending, LayerLine
from pytest_int8acc.results.search import EndingKind
from pytest_int8acc.search.ledger import Ledger, run
from pytest_int8acc.search.solve import EXHAUSTIVE, Solver
from pytest_int8acc.search.surrogate import probe
from pytest_int8acc.search.types import Evaluator, SearchResult, Trial

#: An error of at most this share of the error that the limit allows (13 dB below) does not matter.
_NO_MATTER = 0.05


def shrink(
    ledger: Ledger,
    high: frozenset[int],
    foretell: Callable[[frozenset[int]], float],
    learn: Callable[[Trial], None],
) -> frozenset[int]:
    """Drop groups from a passing plan until each plan with one group fewer was tried and fails.

    Groups that cost much and whose loss is foretold low go first. After a success twice as many are dropped
    at once, as long as that is foretold to pass. Nothing is taken for granted from another plan's trial.
    With a budget of ``once`` no group is tried again after a trial without it alone failed.
    ``foretell`` gives the expected loss of a plan (1 is the limit), ``learn`` is told every trial. The plan
    that is returned passed, as ``high`` did.
    """
    stubborn: set[int] = set()
    batch = 1
    while True:
        left = [i for i in high if ledger.known(high - {i}) is None and not (ledger.once and i in stubborn)]
        if not left:
            return high
        foretold = {i: foretell(high - {i}) + 0.5 * (i in stubborn) - ledger.weights[i] for i in left}
        left.sort(key=lambda i: foretold[i])
        drop = {left[0]}
        for i in left[1:batch]:
            if i in stubborn or foretell(high - drop - {i}) > 1:
                break
            drop.add(i)
        trial = ledger.trial(high - drop, "fewer groups" if len(drop) > 1 else "one group fewer")
        learn(trial)
        if trial.passed:
            high, batch = trial.high, 2 * batch
        else:
            stubborn |= drop if len(drop) == 1 else set()
            batch = 1


def minimal(evaluator: Evaluator, *, budget: Budget | None = None) -> SearchResult:
    """Find a plan of low price that passes and is proven 1-minimal.

    Groups that break a criterion alone are tried first where nothing cheaper is foretold to pass, then the
    cheapest plan that the surrogate allows; what is measured on the way corrects it. Cheaper plans (with few
    groups any, with many those a swap away) are tried while that costs little. At last every group kept is
    sent back to INT8 alone, in a trial.
    """
    return run("minimal", _minimal, evaluator, budget)


def certify(evaluator: Evaluator, high: frozenset[int], *, budget: Budget | None = None) -> SearchResult:
    """Prove by trials alone that a plan passes and is 1-minimal; where it is not, drop what can go."""

    def body(ledger: Ledger) -> Ending:
        if not ledger.trial(high, "the plan to certify").passed:
            return ledger.ending("plan-fails", len(high))
        shrink(ledger, high, lambda plan: 2.0, lambda trial: None)
        return _proven(ledger)

    return run("certify", body, evaluator, budget)


def fewest(evaluator: Evaluator, order: Sequence[int], *, budget: Budget | None = None) -> SearchResult:
    """Find a plan that passes and is proven 1-minimal, where some groups are suspected and sums tell nothing.

    An overflow is all or nothing, and is gone only with all groups high that it passes through. Doubling the
    number of suspects finds a plan that passes; dividing that (QuickXplain: Junker, AAAI 2004) finds k
    culprits among n in about k log(n / k) trials.

    Args:
        evaluator: Judges plans.
        order: All groups by index, the most suspicious first.
        budget: When to stop early.
    """

    def body(ledger: Ledger) -> Ending:
        size = 1
        while not ledger.trial(frozenset(order[:size]), f"the {size} most suspicious").passed:
            size *= 2
        high = _needed(ledger, frozenset(), order[:size], fresh=False)
        shrink(ledger, high, lambda plan: 2.0, lambda trial: None)
        return _proven(ledger)

    return _run("minimal", body, evaluator, budget)


def _needed(ledger: Ledger, kept: frozenset[int], among: Sequence[int], *, fresh: bool) -> frozenset[int]:
    """The groups of ``among`` without which ``kept`` does not pass; ``fresh``: whether that was added to."""
    if fresh and ledger.trial(kept, "without half of them").passed:
        return frozenset()
    if len(among) == 1:
        return frozenset(among)
    first, second = among[: len(among) // 2], among[len(among) // 2 :]
    of_second = _needed(ledger, kept | set(first), second, fresh=True)
    return of_second | _needed(ledger, kept | of_second, first, fresh=bool(of_second))


def _minimal(ledger: Ledger) -> Ending:
    if not ledger.trial(ledger.everything, "all groups high").passed:
        return ledger.ending("high-fails", len(ledger.everything))
    candidate = ledger.trial(frozenset(), "nothing kept high", least=max(8, ledger.samples.count // 4))
    if candidate.passed:
        return ledger.ending("int8-passes")
    search = _Search(ledger, candidate)
    search.descend()
    for _ in range(1 if ledger.once else 2):
        search.improve()
        before = search.high
        search.high = shrink(ledger, before, search.model.loss, search.learn)
        if search.high == before:
            break
    ledger.order = search.order()
    return _proven(ledger)


def _proven(ledger: Ledger) -> Ending:
    kind: EndingKind = "visited" if ledger.once else "proven"
    return ledger.ending(kind, 0 if ledger.best is None else len(ledger.best.high))


class _Search:
    """A passing plan, and the surrogate that is kept true by what is measured along the way."""

    def __init__(self, ledger: Ledger, candidate: Trial) -> None:
        self.ledger = ledger
        self.high = ledger.everything
        self._candidate = candidate
        self._failed: set[frozenset[int]] = set()
        self._few = len(ledger.groups) <= EXHAUSTIVE
        ledger.samples.learn(candidate)
        self._look(closely=False)

    def descend(self) -> None:
        """Try the cheapest plan foretold to pass, correct the model by what happened, until one passes."""
        everything, weigh = self.ledger.everything, self.ledger.weight
        plan = self._solver.solve(1.0)
        if self._cancelling() and self._single(everything if plan is None else plan):
            return
        certain = frozenset(np.flatnonzero(self.model.alone() > 1).tolist())
        promising = 0 < len(certain) < len(everything) and (plan is None or weigh(certain) < weigh(plan))
        if promising and self._attempt(certain, "groups that fail alone", screen=2.0):
            return
        limit = 1.0
        while limit > 0.01:
            plan = self._solver.solve(limit)
            if plan is None and not self._probed.single.all():
                self._look(closely=True)
            elif plan is None or plan == everything:
                return
            elif plan in self._failed:
                limit *= 0.9
            elif self._attempt(plan, "cheapest plan foretold to pass", screen=1.05):
                return

    def improve(self) -> None:
        """Try cheaper plans, the most promising first, while failures in a row and all in all cost little."""
        in_a_row, in_all = (
            (3.0, 8.0) if self._few else (1.0, max(3.0, 0.5 * math.log2(len(self.ledger.groups))))
        )
        began = since = self.ledger.cost
        while self.ledger.cost - since < in_a_row and self.ledger.cost - began < in_all:
            plan = self._proposal()
            if plan is None:
                return
            if self._attempt(plan, "cheaper", screen=2.0 if self._few else 1.05):
                since = self.ledger.cost

    def order(self) -> list[int]:
        """Groups by what they gain per price, as far as the error is foretold to matter."""
        return list(self._solver.order(_NO_MATTER))

    def learn(self, trial: Trial) -> None:
        """Correct the model by a pass, and the order of the samples by any trial."""
        if trial.passed:
            self._calibrate(trial)
        self.ledger.samples.learn(trial)

    def _cancelling(self) -> bool:
        """Whether all groups in INT8 do little harm, and much less than their sum foretells."""
        nothing, ledger = frozenset[int](), self.ledger
        losses = ledger.samples.estimate(self._candidate, ledger.best)
        truth = float(np.nanmax(losses, initial=0.0))
        cost = len(ledger.groups) * len(self._probed.samples) / ledger.samples.count
        return 3 * truth < self.model.losses(nothing).max() and truth < 20 and cost <= 1

    def _single(self, plan: frozenset[int]) -> bool:
        """Try to keep one group high, each that is lighter than a plan: where errors cancel no sum tells."""
        lighter = [i for i in self.ledger.everything if self.ledger.weights[i] < self.ledger.weight(plan)]
        lighter.sort(key=lambda i: self.ledger.weights[i])
        return any(self._attempt(frozenset({i}), "one group alone", screen=1.05) for i in lighter)

    def _look(self, *, closely: bool) -> None:
        self._probed = probe(self.ledger, self._candidate, closely=closely)
        self.model = self._probed.surrogate
        self._solver = Solver(self.model, self.ledger.weights, self._probed.single)

    def _proposal(self) -> frozenset[int] | None:
        """The plan, lighter than the one in hand, with the greatest saving times chance to pass."""
        high, weigh, loss_of = self.high, self.ledger.weight, self.model.loss
        limit, doubt, least = 1.0, 0.2, 1e-9
        if not self._few:
            # Halfway, by ratio, between what is foretold of the plan in hand and of the best that failed.
            failed = min((loss_of(p) for p in self._failed if self.ledger.known(p)), default=math.inf)
            passed = max(min(loss_of(high), 1.0), 0.01)
            limit, doubt, least = min(1.0, max(math.sqrt(passed * failed), passed)), 0.05, 0.001
        found = self._solver.cheaper(high, limit * (1 + 6 * doubt))
        jump = None if self._few else self._solver.solve(limit)
        if jump is not None and weigh(jump) < weigh(high):
            found = found.plus(jump, loss_of(jump), weigh(jump))
        doubts = np.clip((found.loss - limit) / (doubt * limit), -50, 50)
        worth = (weigh(high) - found.weight) / (1 + np.exp(doubts))
        for m in np.argsort(-worth, kind="stable"):
            if worth[m] < least:
                return None
            proposed: frozenset[int] = found.high[m]
            if proposed not in self._failed:
                return proposed
        return None

    def _attempt(self, plan: frozenset[int], why: str, screen: float) -> bool:
        """Measure a plan on the probed samples; where its loss there is at most ``screen``, try it."""
        measured = self.ledger.probe([plan], self._probed.samples)[0]
        self.model.anchor(plan, measured)
        passed = False
        if self.model.loss(plan) <= screen:
            trial = self.ledger.trial(plan, why)
            passed = trial.passed
            if not passed and self.high == self.ledger.everything:
                self._calibrate(trial)
            self.learn(trial)
        if passed:
            self.high = plan
        else:
            self._failed.add(plan)
        return passed

    def _calibrate(self, trial: Trial) -> None:
        losses = self.ledger.samples.estimate(trial, self.ledger.best)
        self.model.calibrate(trial.high, losses if trial.passed else np.fmax(losses, 1.05))


def bisect(evaluator: Evaluator, *, budget: Budget | None = None, reverse: bool = False) -> SearchResult:
    """Halve the number of first (or last) groups kept high: ``polygraphy debug precision --mode bisect``."""

    def body(ledger: Ledger) -> Ending:
        fails, passes = 0, len(ledger.groups)
        while passes - fails > 1:
            middle = (fails + passes) // 2
            if _passes(ledger, middle, reverse):
                passes = middle
            else:
                fails = middle
        return ledger.ending("last" if reverse else "first", passes)

    return _run("bisect-reverse" if reverse else "bisect", body, evaluator, budget)


def linear(evaluator: Evaluator, *, budget: Budget | None = None, reverse: bool = False) -> SearchResult:
    """Keep one more of the first (or last) groups high until it passes: ``--mode linear``."""

    def body(ledger: Ledger) -> Ending:
        kept = next(k for k in range(1, len(ledger.groups) + 1) if _passes(ledger, k, reverse))
        return ledger.ending("last" if reverse else "first", kept)

    return _run("linear-reverse" if reverse else "linear", body, evaluator, budget)


def worst_first(evaluator: Evaluator, *, budget: Budget | None = None) -> SearchResult:
    """Keep one more of the groups with the greatest increase of error high until it passes.

    The increase is that over the group before, as in Polygraphy's former ``precision worst-first``: of the
    error at the model's outputs with all groups up to this one in INT8.
    """

    def body(ledger: Ledger) -> Ending:
        increase = np.diff(_prefix_errors(ledger), prepend=0.0)
        worst = [int(i) for i in np.argsort(-increase, kind="stable")]
        for kept in range(1, len(worst) + 1):
            if ledger.trial(frozenset(worst[:kept]), f"the {kept} groups that add most error").passed:
                break
        return ledger.ending("worst", kept)

    return _run("worst-first", body, evaluator, budget)


def forward(evaluator: Evaluator, *, budget: Budget | None = None) -> SearchResult:
    """Let one more group into INT8 at a time, from the inputs on; keep it high where that fails.

    The algorithm of NVIDIA's ``layer_analyzer.py`` (eLinux wiki, TensorRT/INT8 Accuracy), with its table.
    """

    def body(ledger: Ledger) -> Ending:
        high = ledger.everything
        for index, group in enumerate(ledger.groups):
            why = f"'{group.name}' in low precision, too"
            trial = ledger.trial(high - {index}, why, least=ledger.samples.count)
            similarity = trial.scores[0]
            line = ""
            if not trial.passed:
                worst = int(np.argmax(trial.losses))
                criterion = ledger.evaluator.criteria[worst].text
                line = (
                    f"Choose layer [{index}] running higher precision mode because it leads the similarity "
                    f"of network output beyond the limit [{trial.scores[worst]:.6g}, {criterion}]!"
                )
            else:
                high -= {index}
            ledger.table.append(
                LayerLine(index, group.name, group.shape, similarity, chosen=not trial.passed, line=line)
            )
        return ledger.ending("visited", len(high))

    return _run("forward", body, evaluator, budget)


def _run(
    strategy: str, body: Callable[[Ledger], Ending], evaluator: Evaluator, budget: Budget | None
) -> SearchResult:
    """Run the body, after 'nothing kept' and 'all high' have been tried and neither settles the matter."""

    def opened(ledger: Ledger) -> Ending:
        if ledger.trial(frozenset(), "nothing kept high").passed:
            return ledger.ending("int8-passes")
        if not ledger.trial(ledger.everything, "all groups high").passed:
            return ledger.ending("high-fails", len(ledger.everything))
        return body(ledger)

    return run(strategy, opened, evaluator, budget)


def _passes(ledger: Ledger, kept: int, reverse: bool) -> bool:
    count = len(ledger.groups)
    high = range(count - kept, count) if reverse else range(kept)
    return ledger.trial(frozenset(high), f"the {'last' if reverse else 'first'} {kept}").passed


def _prefix_errors(ledger: Ledger) -> list[float]:
    """The greatest loss, on the samples that run first, with all groups up to each in INT8."""
    samples = ledger.samples.order()[:2]
    errors = []
    for i in range(len(ledger.groups)):
        parts = ledger.probe([frozenset(range(i + 1, len(ledger.groups)))], samples)[0].parts
        errors.append(float(np.nanmax(ledger.samples.pooled(parts), initial=0.0)))
    return errors
