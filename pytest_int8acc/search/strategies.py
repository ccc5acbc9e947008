"""The strategies of the search for layers to keep in high precision.

A plan says which groups of layers are kept in high precision. ``minimal`` is this plugin's own strategy: a
surrogate model proposes plans, runs on a few samples screen them, and trials on all samples decide. The other
strategies are Polygraphy's bisect, linear and worst-first, and ``forward`` of NVIDIA's layer analyzer. Unlike
the originals, they first try the model with nothing in high precision, and return only a plan that passed a
trial.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from pytest_int8acc.clock import Budget
from pytest_int8acc.results import Ending, LayerLine
from pytest_int8acc.results.search import EndingKind
from pytest_int8acc.search.ledger import Ledger, StopSearch, run
from pytest_int8acc.search.solve import EXHAUSTIVE, Solver
from pytest_int8acc.search.surrogate import probe
from pytest_int8acc.search.types import Evaluator, SearchResult, Trial
from pytest_int8acc.settings import Strategy

#: Groups of layers that together cause at most this share of the allowed error are left out of the ranking.
_NO_MATTER = 0.05


def search(
    evaluator: Evaluator, strategy: Strategy = "minimal", *, budget: Budget | None = None
) -> SearchResult:
    """Search by a strategy for the groups of layers to keep in high precision, so that all criteria are met.

    The search ends early if ``budget`` is spent; with None there is no limit.
    """
    return run(evaluator, STRATEGIES[strategy], budget)


def certify(evaluator: Evaluator, high: frozenset[int], *, budget: Budget | None = None) -> SearchResult:
    """Remove unneeded groups from the plan ``high``; prove that the rest passes and needs each group."""

    def body(ledger: Ledger) -> Ending:
        if not ledger.trial(high, "the plan to certify").passed:
            return ledger.ending("plan-fails", len(high))
        _shrink(ledger, high, lambda plan: 2.0, lambda trial: None)
        return _proven(ledger)

    return run(evaluator, body, budget)


def fewest(evaluator: Evaluator, order: Sequence[int], *, budget: Budget | None = None) -> SearchResult:
    """Find a plan that passes and needs each of its groups, for formats in which errors do not add up.

    In FP16 an overflow is cured only if all groups through which the large values pass are in high precision.
    So the number of groups in high precision is doubled until a plan passes. Then that plan is divided by
    QuickXplain (Junker, AAAI 2004), which finds k culprits among n groups in about k log(n / k) trials.

    Args:
        evaluator: Judges plans.
        order: All groups by index, the most suspicious first.
        budget: The budget of the search; None for no limit.
    """

    def body(ledger: Ledger) -> Ending:
        _check_extremes(ledger)
        size = 1
        while not ledger.trial(frozenset(order[:size]), f"the {size} most suspicious").passed:
            size *= 2
        high = _needed(ledger, frozenset(), order[:size], fresh=False)
        _shrink(ledger, high, lambda plan: 2.0, lambda trial: None)
        return _proven(ledger)

    return run(evaluator, body, budget)


def _needed(ledger: Ledger, kept: frozenset[int], among: Sequence[int], *, fresh: bool) -> frozenset[int]:
    """The groups of ``among`` that a plan needs in high precision to pass, in addition to ``kept``.

    Args:
        ledger: Judges plans.
        kept: Groups that are in high precision in any case.
        among: Groups with which the plan passes if they and ``kept`` are in high precision.
        fresh: Whether groups were added to ``kept`` since a trial of ``kept`` alone failed. If so, ``kept``
            is tried again.
    """
    if fresh and ledger.trial(kept, "without half of them").passed:
        return frozenset()
    if len(among) == 1:
        return frozenset(among)
    first, second = among[: len(among) // 2], among[len(among) // 2 :]
    of_second = _needed(ledger, kept | set(first), second, fresh=True)
    return of_second | _needed(ledger, kept | of_second, first, fresh=bool(of_second))


def _shrink(
    ledger: Ledger,
    high: frozenset[int],
    predict: Callable[[frozenset[int]], float],
    learn: Callable[[Trial], None],
) -> frozenset[int]:
    """Remove groups from a passing plan until it fails without any one of its groups.

    A group is removed early if its price is high, and the predicted loss without the group is low. After each
    success twice as many groups are removed at once, as long as the predicted loss is within the limit. If
    ``budget.once`` is set, a group is not tried again after the plan failed without it.

    Args:
        ledger: Judges plans.
        high: A plan that passes.
        predict: Returns the predicted loss of a plan; 1 is the limit.
        learn: Is called with each trial.

    Returns:
        A plan that passes.
    """
    stubborn: set[int] = set()
    once, batch = ledger.budget.once, 1
    while True:
        left = [i for i in high if ledger.known(high - {i}) is None and not (once and i in stubborn)]
        if not left:
            return high
        predicted = {i: predict(high - {i}) + 0.5 * (i in stubborn) - ledger.weights[i] for i in left}
        left.sort(key=lambda i: predicted[i])
        drop = {left[0]}
        for i in left[1:batch]:
            if i in stubborn or predict(high - drop - {i}) > 1:
                break
            drop.add(i)
        trial = ledger.trial(high - drop, "fewer groups" if len(drop) > 1 else "one group fewer")
        learn(trial)
        if trial.passed:
            high, batch = trial.high, 2 * batch
            continue
        batch = 1
        if len(drop) == 1:
            stubborn |= drop


def _minimal(ledger: Ledger) -> Ending:
    """Find a plan of low price that passes and is proven to need each of its groups.

    A surrogate model predicts the losses of plans. A group may be predicted to miss a criterion even if it is
    the only group in the low format. First, the plan with these groups in high precision is tried, if it is
    cheaper than all plans that are predicted to pass. Then the cheapest predicted plans are tried. Each
    measurement corrects the surrogate. Cheaper plans are tried as long as this costs little. In the end each
    group of the plan is returned to the low format in a trial of its own, which must fail.
    """
    if not ledger.trial(ledger.everything, "all groups high").passed:
        return ledger.ending("high-fails", len(ledger.everything))
    candidate = ledger.trial(frozenset(), "nothing kept high", least=max(8, ledger.samples.count // 4))
    if candidate.passed:
        return ledger.ending("int8-passes")
    found = _Minimal(ledger, candidate)
    found.descend()
    for _ in range(1 if ledger.budget.once else 2):
        found.improve()
        before = found.high
        found.high = _shrink(ledger, before, found.model.loss, found.learn)
        if found.high == before:
            break
    ledger.order = found.order()
    return _proven(ledger)


def _proven(ledger: Ledger) -> Ending:
    """The ending of a search that tried to return each group of its plan to the low format."""
    kind: EndingKind = "visited" if ledger.budget.once else "proven"
    return ledger.ending(kind, 0 if ledger.best is None else len(ledger.best.high))


class _Minimal:
    """The state of the strategy ``minimal``: a passing plan, and a surrogate model of the losses of plans."""

    def __init__(self, ledger: Ledger, candidate: Trial) -> None:
        self.ledger = ledger
        self.high = ledger.everything
        self._candidate = candidate
        self._failed: set[frozenset[int]] = set()
        self._few = len(ledger.groups) <= EXHAUSTIVE
        ledger.samples.learn(candidate)
        self._look(closely=False)

    def descend(self) -> None:
        """Try the cheapest plan that is predicted to pass, and correct the surrogate, until a plan passes."""
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
        """Try cheaper plans, the most promising first.

        The cost of failures in a row and the cost of all tries are limited, in runs over all samples.
        With few groups the limits are higher, because a run is quick and the prediction is good.
        """
        most_in_a_row, most, screen = 1.0, max(3.0, 0.5 * math.log2(len(self.ledger.groups))), 1.05
        if self._few:
            most_in_a_row, most, screen = 3.0, 8.0, 2.0
        budget = self.ledger.budget
        began = success = budget.spent
        while budget.spent - success < most_in_a_row and budget.spent - began < most:
            plan = self._proposal()
            if plan is None:
                return
            if self._attempt(plan, "cheaper", screen=screen):
                success = budget.spent

    def order(self) -> list[int]:
        """Rank groups by the error that high precision removes per price, until little error is left."""
        return list(self._solver.order(_NO_MATTER))

    def learn(self, trial: Trial) -> None:
        """Rank the samples anew by their losses in ``trial``; if it passed, also correct the predictions."""
        if trial.passed:
            self._calibrate(trial)
        self.ledger.samples.learn(trial)

    def _cancelling(self) -> bool:
        """Whether errors of groups cancel: with all groups in INT8, the loss is far below the prediction."""
        nothing, ledger = frozenset[int](), self.ledger
        losses = ledger.samples.estimate(self._candidate, ledger.best)
        truth = float(np.nanmax(losses, initial=0.0))
        cost = len(ledger.groups) * len(self._probed.samples) / ledger.samples.count
        return 3 * truth < self.model.losses(nothing).max() and truth < 20 and cost <= 1

    def _single(self, plan: frozenset[int]) -> bool:
        """Try each plan of a single group that weighs less than ``plan``, and return whether one passes.

        If the errors of groups cancel, the surrogate cannot predict which group to take.
        """
        lighter = [i for i in self.ledger.everything if self.ledger.weights[i] < self.ledger.weight(plan)]
        lighter.sort(key=lambda i: self.ledger.weights[i])
        return any(self._attempt(frozenset({i}), "one group alone", screen=1.05) for i in lighter)

    def _look(self, *, closely: bool) -> None:
        self._probed = probe(self.ledger, self._candidate, closely=closely)
        self.model = self._probed.surrogate
        self._solver = Solver(self.model, self.ledger.weights, self._probed.single)

    def _proposal(self) -> frozenset[int] | None:
        """The plan to try next; None if no plan promises to save anything.

        Among the plans cheaper than ``high``, the one with the greatest product of saved weight and estimated
        probability to pass is returned.
        """
        high, weigh, loss_of = self.high, self.ledger.weight, self.model.loss
        limit, doubt, least = 1.0, 0.2, 1e-9
        if not self._few:
            # The limit on the predicted loss lies between a plan that passes and the best plan that failed:
            # it is the geometric mean of their predicted losses.
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
        """Try a plan, and return whether it passed; ``why`` is the reason for the trial, for the report.

        The plan runs on a few samples, by which the predictions are corrected. It runs on all samples only if
        its predicted loss is then at most ``screen``.
        """
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


def _bisect(ledger: Ledger, *, reverse: bool = False) -> Ending:
    """Bisect the number of first (or last) groups in high precision, as Polygraphy's ``--mode bisect``."""
    _check_extremes(ledger)
    fails, passes = 0, len(ledger.groups)
    while passes - fails > 1:
        middle = (fails + passes) // 2
        if _passes(ledger, middle, reverse):
            passes = middle
        else:
            fails = middle
    return ledger.ending("last" if reverse else "first", passes)


def _linear(ledger: Ledger, *, reverse: bool = False) -> Ending:
    """Put the first (or last) groups into high precision, one more each time, until the plan passes.

    This is ``--mode linear`` of Polygraphy.
    """
    _check_extremes(ledger)
    kept = 1
    while not _passes(ledger, kept, reverse):
        kept += 1
    return ledger.ending("last" if reverse else "first", kept)


def _worst_first(ledger: Ledger) -> Ending:
    """Put groups into high precision one by one, those with most error first, until the plan passes.

    The error that a group adds is measured as in Polygraphy's former ``precision worst-first``. It is the
    error with all groups up to this group in the low format, minus the error with all groups before it.
    """
    _check_extremes(ledger)
    increase = np.diff(_prefix_errors(ledger), prepend=0.0)
    worst = [int(i) for i in np.argsort(-increase, kind="stable")]
    kept = 1
    while not ledger.trial(frozenset(worst[:kept]), f"the {kept} groups that add most error").passed:
        kept += 1
    return ledger.ending("worst", kept)


def _forward(ledger: Ledger) -> Ending:
    """Put groups into the low format one by one, from the inputs on.

    A group with which the plan fails is put back.

    This is the algorithm of NVIDIA's ``layer_analyzer.py`` (eLinux wiki, TensorRT/INT8 Accuracy). Like the
    original, it fills a table with a row for each group.
    """
    _check_extremes(ledger)
    high = ledger.everything
    for index, group in enumerate(ledger.groups):
        why = f"'{group.name}' in low precision, too"
        trial = ledger.trial(high - {index}, why, least=ledger.samples.count)
        line = ""
        if trial.passed:
            high -= {index}
        else:
            worst = int(np.argmax(trial.losses))
            criterion = ledger.evaluator.criteria[worst].text
            line = (
                f"Choose layer [{index}] running higher precision mode because it leads the similarity "
                f"of network output beyond the limit [{trial.scores[worst]:.6g}, {criterion}]!"
            )
        ledger.table.append(
            LayerLine(index, group.name, group.shape, trial.scores[0], chosen=not trial.passed, line=line)
        )
    return ledger.ending("visited", len(high))


def _check_extremes(ledger: Ledger) -> None:
    """Try the plans with nothing and with all groups in high precision.

    Raises:
        StopSearch: The first plan passes or the second fails, so that nothing is left to search.
    """
    if ledger.trial(frozenset(), "nothing kept high").passed:
        raise StopSearch(ledger.ending("int8-passes"))
    if not ledger.trial(ledger.everything, "all groups high").passed:
        raise StopSearch(ledger.ending("high-fails", len(ledger.everything)))


def _passes(ledger: Ledger, kept: int, reverse: bool) -> bool:
    """Whether the plan with the first (or last) ``kept`` groups in high precision passes."""
    count = len(ledger.groups)
    high = range(count - kept, count) if reverse else range(kept)
    return ledger.trial(frozenset(high), f"the {'last' if reverse else 'first'} {kept}").passed


def _prefix_errors(ledger: Ledger) -> list[float]:
    """For each group, the greatest loss with this group and all earlier groups in the low format.

    The losses are measured on the two samples that run first.
    """
    samples = ledger.samples.order()[:2]
    errors = []
    for i in range(len(ledger.groups)):
        parts = ledger.probe([frozenset(range(i + 1, len(ledger.groups)))], samples)[0].parts
        errors.append(float(np.nanmax(ledger.samples.pooled(parts), initial=0.0)))
    return errors


#: The function that runs each strategy. To add a strategy, write a function that tries plans by
#: ``Ledger.trial`` and returns why it ended, add it here, and add its name to ``Strategy`` in
#: ``settings.py``.
STRATEGIES: Mapping[Strategy, Callable[[Ledger], Ending]] = {
    "minimal": _minimal,
    "bisect": _bisect,
    "bisect-reverse": partial(_bisect, reverse=True),
    "linear": _linear,
    "linear-reverse": partial(_linear, reverse=True),
    "worst-first": _worst_first,
    "forward": _forward,
}
