"""Finds sets of layers that lose time in INT8, from the times of the layers of two engines.

The times only say which sets are worth a build: an engine without these layers in INT8 is fused otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pytest_int8acc.results.engines import LayerTime

#: Maximum number of plans that are built.
MAX_PLANS = 12
#: More than this share of the MACs must stay in INT8. With less, even products that take half the time save
#: less than a tenth of it.
LEAST_SHARE = 0.2


@dataclass(frozen=True)
class GroupWork:
    """What one group of layers computes, and where it stands in the network."""

    name: str
    nodes: frozenset[str]
    """Its ONNX nodes."""
    macs: float = 0.0
    """Its multiply-accumulates."""
    elements: float = 0.0
    """The number of elements of the activations that it reads in INT8, and of its result."""
    before: frozenset[str] = frozenset()
    """The groups whose results it reads."""
    pairs: frozenset[str] = frozenset()
    """The Q/DQ nodes that convert its inputs."""


def losses(
    groups: Sequence[GroupWork], low: Sequence[LayerTime], high: Sequence[LayerTime]
) -> dict[str, float]:
    """By how many ms each group takes longer in the INT8 engine than in the baseline's, by group name.

    One layer of an engine may compute several groups, in TensorRT 8.6 even a whole transformer. The time of
    such a layer is divided among its groups: in the baseline's engine by their multiply-accumulates, in the
    INT8 engine by the elements that they read and write. INT8 makes products cheap, so that moving and
    converting values is what remains. Of two groups with the same products, the one that moves more values
    therefore loses more time. The losses of all groups add up to the difference of the layers' times.

    Args:
        groups: All groups of the network.
        low: The layers of the INT8 engine, in any order.
        high: The layers of the baseline's engine, in any order.

    Returns:
        0 for a group that only one of the engines tells.
    """
    fast = _times(groups, low, {group.name: group.elements for group in groups})
    slow = _times(groups, high, {group.name: group.macs for group in groups})
    return {g.name: fast[g.name] - slow[g.name] if g.name in {*fast} & {*slow} else 0.0 for g in groups}


def _times(
    groups: Sequence[GroupWork], layers: Sequence[LayerTime], weights: Mapping[str, float]
) -> dict[str, float]:
    """The time of each group in ms. Layers that compute no group are left out, and groups without a layer.

    Regions of which the runtime does not name all nodes are taken together. They compute the groups that no
    other layer computes.
    """
    own = {node: group.name for group in groups for node in group.nodes}
    pairs = {node: group.name for group in groups for node in group.pairs}
    parts: list[tuple[float, set[str]]] = []
    named: set[str] = set()
    regions = [layer for layer in layers if layer.is_region]
    for layer in layers:
        if not layer.is_region:
            computed = {own[node] for node in layer.nodes if node in own}
            computed = computed or {pairs[node] for node in layer.nodes if node in pairs}
            parts.append((layer.milliseconds, computed))
            named |= computed
    if regions:
        unnamed = {group.name for group in groups} - named
        parts.append((math.fsum(layer.milliseconds for layer in regions), unnamed))
    terms: dict[str, list[float]] = {}
    for milliseconds, computed in parts:
        total = math.fsum(weights[name] for name in computed)
        for name in computed:
            share = weights[name] / total if total else 1 / len(computed)
            terms.setdefault(name, []).append(milliseconds * share)
    return {name: math.fsum(found) for name, found in terms.items()}  # exact in any order of the layers


def sets_to_try(
    groups: Sequence[GroupWork], lost: Mapping[str, float], least: float = LEAST_SHARE, most: int = MAX_PLANS
) -> tuple[frozenset[str], ...]:
    """Sets of groups that should leave INT8 to save time, the most promising first, each once.

    All groups that lose time come first, then the half of them that loses most, then all that lose together
    with those that gain least, then smaller parts. Groups of equal loss stay together. Each set is also tried
    with its gaps closed, see ``closed``: a short stretch in INT8 does not earn its conversions.

    Args:
        groups: All groups of the network, in topological order.
        lost: The time that each group loses in INT8, in ms; negative if it gains.
        least: More than this share of the multiply-accumulates stays in INT8.
        most: Maximum number of sets.
    """
    order = sorted(groups, key=lambda group: -lost[group.name])
    losers = sum(lost[group.name] > 0 for group in groups)
    if not losers:
        return ()
    rest = len(order) - losers
    sizes = [losers, math.ceil(losers / 2), *(losers + math.ceil(rest * part / 4) for part in (1, 2, 3))]
    sizes += [math.ceil(losers / 2**power) for power in range(2, losers.bit_length() + 1)]
    found: dict[frozenset[str], None] = {}
    for size in sizes:
        bound = lost[order[size - 1].name]
        plain = frozenset(group.name for group in order if lost[group.name] >= bound)
        for names in (closed(groups, plain), plain):
            if _stays(groups, names) > least:
                found[names] = None
    return tuple(found)[:most]


def closed(groups: Sequence[GroupWork], names: Collection[str]) -> frozenset[str]:
    """The groups ``names`` and each single group that lies between two of them."""
    after: dict[str, set[str]] = {group.name: set() for group in groups}
    for group in groups:
        for name in group.before:
            after[name].add(group.name)
    found, gaps = frozenset(names), frozenset[str]()
    while True:
        gaps = frozenset(g.name for g in groups if g.before & found and after[g.name] & found)
        if gaps <= found:
            return found
        found |= gaps


def _stays(groups: Sequence[GroupWork], high: Collection[str]) -> float:
    """The share of the multiply-accumulates that stays in INT8; 0 if no group stays there."""
    total = math.fsum(group.macs for group in groups)
    left = [group.macs if total else 1.0 for group in groups if group.name not in high]
    return math.fsum(left) / (total or len(groups))
