"""The best set of groups known for a case: by brute force where that is feasible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from pytest_int8acc.search.types import Evaluator, GroupInfo

#: Up to this many groups every set is tried.
FEASIBLE = 12
#: What a group more is worth, as a share of the mean price: else groups that cost nothing would be free.
_PER_GROUP = 0.01


def prices(groups: Sequence[GroupInfo]) -> dict[str, float]:
    """Group to its share of all MACs."""
    total = sum(group.price for group in groups) or 1.0
    return {group.name: group.price / total for group in groups}


def weight(high: Iterable[str], price: Mapping[str, float]) -> float:
    """What is minimized: the share of MACs, and a little for each group."""
    return sum(price[name] + _PER_GROUP / len(price) for name in high)


def optimum(evaluator: Evaluator, price: Mapping[str, float]) -> frozenset[str] | None:
    """The lightest passing set of all 2^n, tried from the lightest on; None where too many groups."""
    names = [group.name for group in evaluator.groups]
    if len(names) > FEASIBLE:
        return None
    sets = [set_ for size in range(len(names) + 1) for set_ in combinations(range(len(names)), size)]
    sets.sort(key=lambda chosen: weight((names[i] for i in chosen), price))
    order = range(evaluator.samples)
    for chosen in sets:
        if evaluator.trial(frozenset(chosen), order, None).passed:
            return frozenset(names[i] for i in chosen)
    return None
