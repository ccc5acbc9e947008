"""Finds the cheapest plan that a surrogate model predicts to pass, by enumeration or by a greedy search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.search.surrogate import Bools, Floats, Surrogate

#: Maximum number of groups of layers for which all plans are enumerated.
EXHAUSTIVE = 12
#: Maximum number of groups that are considered for each side of a swap that exchanges two groups of layers
#: for one.
_POOL = 32


@dataclass(frozen=True, eq=False)
class Proposals:
    """Plans to try, with the predicted loss and the weight of each plan."""

    high: list[frozenset[int]]
    loss: Floats
    weight: Floats

    def plus(self, high: frozenset[int], loss: float, weight: float) -> Proposals:
        """Return these proposals and one more, the plan ``high``."""
        return Proposals([*self.high, high], np.append(self.loss, loss), np.append(self.weight, weight))


class Solver:
    """Finds the plan of least weight whose predicted losses are all within a limit.

    A plan is the set of layer groups in high precision. A surrogate model predicts several losses for each
    plan; see ``Surrogate.rows``.
    """

    def __init__(self, surrogate: Surrogate, weights: Floats, free: Bools) -> None:
        """Create a solver.

        Args:
            surrogate: Predicts the loss of a plan.
            weights: The weight of each group of layers: the cost of high precision for the group.
            free: True for groups that may be put into high precision; other groups stay in the low format.
        """
        self.surrogate, self.weights, self.free = surrogate, weights, free

    def solve(self, limit: float) -> frozenset[int] | None:
        """The plan of least weight whose predicted loss is at most ``limit``; None if no plan was found."""
        if int(self.free.sum()) <= EXHAUSTIVE:
            found = self._enumerate(limit)
            return found.high[int(np.argmin(found.weight))] if found.high else None
        plans = [self._improve(plan, limit) for power in (1.0, 0.5) for plan in self._greedy(limit, power)]
        return min((_high(plan) for plan in plans), key=self.weigh, default=None)

    def cheaper(self, high: frozenset[int], limit: float) -> Proposals:
        """Plans of less weight than ``high`` whose predicted loss is at most ``limit``.

        With up to ``EXHAUSTIVE`` free groups these are all such plans, otherwise the plans one swap away from
        ``high``.
        """
        bound = self.weigh(high) * (1 - 1e-9)
        if int(self.free.sum()) <= EXHAUSTIVE:
            return self._enumerate(limit, bound)
        plan, weight = self.surrogate.mask(high), self.weigh(high)
        keep: list[tuple[frozenset[int], float, float]] = []
        for toggles in self._swaps(plan):
            loss, change = self._toggled(plan, toggles)
            keep += [
                (high ^ frozenset(toggles[m].tolist()), loss[m], weight + change[m])
                for m in np.flatnonzero((loss <= limit) & (change < 0))
            ]
        return Proposals([k[0] for k in keep], np.array([k[1] for k in keep]), np.array([k[2] for k in keep]))

    def weigh(self, high: frozenset[int]) -> float:
        """The total weight of the groups in high precision."""
        return float(self.weights[list(high)].sum())

    def _enumerate(self, limit: float, bound: float = np.inf) -> Proposals:
        free = np.flatnonzero(self.free)
        bits = ((np.arange(2**free.size)[:, None] >> np.arange(free.size)) & 1).astype(np.bool_)
        weight = bits @ self.weights[free]
        bits, weight = bits[weight < bound], weight[weight < bound]
        int8 = np.ones((len(bits), self.free.size), dtype=np.bool_)
        int8[:, free] = ~bits
        loss = self.surrogate.rows(int8).max(axis=1)
        good = np.flatnonzero(loss <= limit)
        return Proposals([_high(int8[m]) for m in good], loss[good], weight[good])

    def order(self, limit: float, power: float = 1.0) -> Iterator[int]:
        """Yield groups to put into high precision one by one, until no predicted loss exceeds ``limit``.

        The next group is always the one that lowers the predicted losses most per ``weight ** power``.
        """
        plan = np.ones(self.free.size, dtype=np.bool_)
        price = np.maximum(self.weights, 1e-12) ** power
        while True:
            now, choice = self.surrogate.rows(plan[None])[0], np.flatnonzero(plan & self.free)
            if now.max() <= limit or not choice.size:
                return
            after = self._rows_toggled(plan, choice[:, None], now)
            gain = (np.maximum(now, limit)[:, None] - np.maximum(after, limit)).sum(axis=0)
            worth = np.where(gain > 0, gain / price[choice], gain * price[choice])
            best = int(choice[int(np.argmax(worth))])
            plan[best] = False
            yield best

    def _greedy(self, limit: float, power: float) -> Iterator[Bools]:
        """Yield the plan with all groups of ``order(limit, power)`` in high precision.

        Nothing is yielded if the predicted loss of this plan exceeds the limit.
        """
        plan = np.ones(self.free.size, dtype=np.bool_)
        plan[list(self.order(limit, power))] = False
        if self.surrogate.rows(plan[None]).max() <= limit:
            yield plan

    def _improve(self, plan: Bools, limit: float) -> Bools:
        """The plan after swaps that save weight, until no further swap saves weight.

        Each step takes the swap that saves most weight without a predicted loss beyond the limit.
        """
        while True:
            best, toggle = -1e-12, None
            for toggles in self._swaps(plan):
                loss, change = self._toggled(plan, toggles)
                change = np.where(loss <= limit, change, np.inf)
                if change.size and change.min() < best:
                    best, toggle = float(change.min()), toggles[int(np.argmin(change))]
            if toggle is None:
                return plan
            plan = plan.copy()
            plan[toggle] ^= True

    def _swaps(self, plan: Bools) -> Iterator[NDArray[np.intp]]:
        """Yield arrays of swaps in ``plan``, [swaps, 1 to 3]: the groups to toggle between both precisions.

        The swaps remove one or two groups from high precision, or exchange one for one, two for one, or one
        for two.
        """
        high = np.flatnonzero(~plan)
        low = np.flatnonzero(plan & self.free)
        yield high[:, None]
        yield _pairs(high)
        yield _product(high[:, None], low)
        now = self.surrogate.rows(plan[None])[0]
        high, low = self._pool(plan, high, now), self._pool(plan, low, now)
        yield _product(_pairs(high), low)
        yield _product(_pairs(low), high)

    def _pool(self, plan: Bools, groups: NDArray[np.intp], now: Floats) -> NDArray[np.intp]:
        """At most ``_POOL`` of ``groups``: those whose toggling lowers the predicted losses most per weight.

        ``now`` has the predicted losses of ``plan``, before a group is toggled.
        """
        if groups.size <= _POOL:
            return groups
        after = self._rows_toggled(plan, groups[:, None], now).sum(axis=0)
        worth = (now.sum() - after) / np.maximum(self.weights[groups], 1e-12)
        return groups[np.argsort(-worth, kind="stable")[:_POOL]]

    def _toggled(self, plan: Bools, toggles: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """For each swap in ``toggles``: the greatest predicted loss after it, and the weight that it adds."""
        now = self.surrogate.rows(plan[None])[0]
        change = np.where(plan[toggles], self.weights[toggles], -self.weights[toggles]).sum(axis=1)
        return self._rows_toggled(plan, toggles, now).max(axis=0, initial=0.0), change

    def _rows_toggled(self, plan: Bools, toggles: NDArray[np.intp], now: Floats) -> Floats:
        """The predicted losses of ``plan`` after each swap in ``toggles``, [losses, swaps].

        ``now`` has the losses of the plan before the swap. Each of them is the squared length of an error
        vector ``x``. After the swap the loss is ``|x + u|^2``, where ``u`` is the signed sum of the error
        vectors of the toggled groups.
        """
        model = self.surrogate
        sign = np.where(plan, -1.0, 1.0)
        toward = model.gram @ plan.astype(np.float64) + model.linear
        change = np.zeros((len(now), len(toggles)))
        for column in toggles.T:
            change += 2 * sign[column] * toward[:, column] + model.gram[:, column, column]
        for a, b in combinations(toggles.T, 2):
            change += 2 * sign[a] * sign[b] * model.gram[:, a, b]
        return np.asarray(np.maximum(now[:, None] + change * model.row_scale[:, None], 0.0))


def _high(int8: Bools) -> frozenset[int]:
    return frozenset(np.flatnonzero(~int8).tolist())


def _pairs(groups: NDArray[np.intp]) -> NDArray[np.intp]:
    a, b = np.triu_indices(groups.size, k=1)
    return np.stack([groups[a], groups[b]], axis=1)


def _product(sets: NDArray[np.intp], groups: NDArray[np.intp]) -> NDArray[np.intp]:
    left = np.repeat(np.arange(len(sets)), groups.size)
    return np.concatenate([sets[left], np.tile(groups, len(sets))[:, None]], axis=1)
