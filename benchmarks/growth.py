"""How the search's cost grows with the number of groups: one family of networks, the same trouble in each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.architectures import vit_tiny
from benchmarks.case import Case
from benchmarks.nets import large
from benchmarks.simulate import simulator
from pytest_int8acc.search import STRATEGIES

#: Transformer blocks, for 18, 50, 98 and 298 groups.
BLOCKS = (2, 6, 12, 37)


@dataclass(frozen=True)
class Growth:
    """One strategy on one size."""

    strategy: str
    groups: int
    kept: int
    trials: int
    cost: float
    """Trials and probes, in equivalents of a trial on all samples."""
    seconds: float
    sets: float
    """log2 of the number of sets of that many groups: the yes-or-no answers that tell one from all others."""


def network(blocks: int) -> Case:
    """Three wrong scales, early, in the middle and late."""
    first, middle, last = 0, blocks // 2, blocks - 1
    factors = {f"block{first}/fc2": 60, f"block{middle}/out": 100, f"block{last}/fc1": 250}
    return large(vit_tiny(blocks), {"cosine": 0.999}, factors=factors)


def grow(strategies: Sequence[str], blocks: Sequence[int] = BLOCKS) -> list[Growth]:
    """Measure each of ``strategies`` on each size."""
    rows = []
    for size in blocks:
        case = network(size)
        for strategy in strategies:
            found = STRATEGIES[strategy](simulator(case))
            n, k = len(case.network.groups), len(found.high)
            sets = math.log2(math.comb(n, k))
            rows.append(Growth(strategy, n, k, len(found.trials), found.cost, found.seconds, sets))
    return rows
