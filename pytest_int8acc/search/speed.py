"""Finds sets of layers that lose time in INT8, from the times of the layers of two engines.

The times only say for which sets an engine is worth building. They do not predict its latency, because
TensorRT fuses an engine without these layers in INT8 in another way.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pytest_int8acc.results.engines import LayerTime

#: Maximum number of plans that are built as engines in the search for a faster one.
MAX_PLANS = 12
#: A plan is built only if more than this share of the multiply-accumulates stays in INT8. With a smaller
#: share, INT8 saves less than a tenth of the time, even if it halves the time of the products that stay.
LEAST_SHARE = 0.2


@dataclass(frozen=True)
class GroupWork:
    """The work of one group of layers, and its neighbours in the network."""

    name: str
    nodes: frozenset[str]
    """The names of the ONNX nodes of the group."""
    macs: float = 0.0
    """The number of multiply-accumulates of the group."""
    elements: float = 0.0
    """The number of elements of the activations that are converted to INT8 for the group."""
    before: frozenset[str] = frozenset()
    """The names of the groups whose results the group reads."""
    around: frozenset[str] = frozenset()
    """Names of nodes in no group that convert inputs of this group (Q/DQ), or read its result (Softmax)."""


def losses(
    groups: Sequence[GroupWork], low: Sequence[LayerTime], high: Sequence[LayerTime]
) -> dict[str, float]:
    """How many ms longer each group takes in the INT8 engine than in the baseline's engine, by group name.

    One layer of an engine may compute several groups, in TensorRT 8.6 even a whole transformer. The time of
    such a layer is divided among its groups: in the baseline's engine by their multiply-accumulates, in the
    INT8 engine by the elements that are converted for them. INT8 saves time in proportion to the products,
    and costs time in proportion to the values that must be converted. So a product of two activations, like
    that of queries and keys, loses more time than one with weights. The losses of all groups add up to the
    difference of the times of the layers that compute groups.

    Args:
        groups: All groups of the network.
        low: The layers of the INT8 engine, in any order.
        high: The layers of the baseline's engine, in any order.

    Returns:
        A negative number for a group that is faster in INT8; 0 for a group whose time is not known in both
        engines.
    """
    fast = _times(groups, low, {group.name: group.elements for group in groups})
    slow = _times(groups, high, {group.name: group.macs for group in groups})
    return {g.name: fast[g.name] - slow[g.name] if g.name in {*fast} & {*slow} else 0.0 for g in groups}


def _times(
    groups: Sequence[GroupWork], layers: Sequence[LayerTime], weights: Mapping[str, float]
) -> dict[str, float]:
    """The time of each group in ms. Groups without a known time are left out.

    The time of a layer is divided among the groups that it computes, in the ratio of their ``weights``. If it
    computes no group, its time is divided among the groups that have its nodes in ``GroupWork.around``.
    Regions are layers of which the runtime does not name all nodes. Their total time is divided among the
    groups that no other layer computes.
    """
    own = {node: group.name for group in groups for node in group.nodes}
    around = {node: group.name for group in groups for node in group.around}
    named = [node for layer in layers if not layer.is_region for node in layer.nodes]
    untold = {group.name for group in groups} - {own[node] for node in named if node in own}
    parts: list[tuple[float, set[str]]] = []
    for layer in layers:
        computed = {own[node] for node in layer.nodes if node in own}
        computed = computed or {around[node] for node in layer.nodes if node in around}
        if not (layer.is_region and untold):
            parts.append((layer.milliseconds, computed))
    if untold:
        regions = [layer.milliseconds for layer in layers if layer.is_region]
        parts += [(math.fsum(regions), untold)] if regions else []
    terms: dict[str, list[float]] = {}
    for milliseconds, computed in parts:
        total = math.fsum(weights[name] for name in computed)
        for name in computed:
            share = weights[name] / total if total else 1 / len(computed)
            terms.setdefault(name, []).append(milliseconds * share)
    return {name: math.fsum(found) for name, found in terms.items()}  # the order of the layers has no effect


def sets_to_try(
    groups: Sequence[GroupWork], lost: Mapping[str, float], least: float = LEAST_SHARE, most: int = MAX_PLANS
) -> tuple[frozenset[str], ...]:
    """Sets of groups to take out of INT8 to save time, the most promising first, each once.

    Groups are sorted by the time that they lose in INT8, and each set has the first groups of this order: all
    that lose time, then half of them, then all that lose time and those that gain least, then smaller parts.
    The first sets have all or none of the groups that lose equal time; the last sets may have some. A set
    without its gaps (``closed``) comes before the set itself, because a single group in INT8 between groups
    in high precision seldom saves as much time as its conversions cost.

    Args:
        groups: All groups of the network, in topological order.
        lost: The time that each group loses in INT8, in ms; negative if it gains.
        least: A set is left out unless more than this share of the multiply-accumulates stays in INT8.
        most: Maximum number of sets.
    """
    order = sorted(groups, key=lambda group: -lost[group.name])
    losers = sum(lost[group.name] > 0 for group in groups)
    if not losers:
        return ()
    sizes = [losers, math.ceil(losers / 2)]
    sizes += [losers + _first(order[losers:], share) for share in (0.25, 0.5, 0.75)]
    sizes += [math.ceil(losers / 2**power) for power in range(2, losers.bit_length() + 1)]
    bounds = [lost[order[size - 1].name] for size in sizes]
    beginnings = [[group for group in order if lost[group.name] >= bound] for bound in bounds]
    beginnings += [order[:size] for size in sizes]
    found: dict[frozenset[str], None] = {}
    for beginning in beginnings:
        plain = frozenset(group.name for group in beginning)
        for names in (closed(groups, plain), plain):
            if _stays(groups, names) > least:
                found[names] = None
    return tuple(found)[:most]


def _first(groups: Sequence[GroupWork], share: float) -> int:
    """The number of groups, from the first on, that together have ``share`` of all multiply-accumulates."""
    total, done = math.fsum(group.macs for group in groups), 0.0
    for number, group in enumerate(groups):
        if done >= share * total:
            return number
        done += group.macs
    return len(groups)


def closed(groups: Sequence[GroupWork], names: Collection[str]) -> frozenset[str]:
    """The groups ``names``, and each group that lies between two of them.

    Such a group reads the result of one of the groups, and another one reads its result. The search is
    repeated with the added groups until no group is added.
    """
    after: dict[str, set[str]] = {group.name: set() for group in groups}
    for group in groups:
        for name in group.before:
            after[name].add(group.name)
    found = frozenset(names)
    while True:
        gaps = frozenset(g.name for g in groups if g.before & found and after[g.name] & found)
        if gaps <= found:
            return found
        found |= gaps


def _stays(groups: Sequence[GroupWork], high: Collection[str]) -> float:
    """The share of the multiply-accumulates that stays in INT8 if the groups ``high`` leave INT8.

    If no group has multiply-accumulates, it is the share of the groups that stay.
    """
    total = math.fsum(group.macs for group in groups)
    left = [group.macs if total else 1.0 for group in groups if group.name not in high]
    return math.fsum(left) / (total or len(groups))
