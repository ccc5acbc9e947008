"""Error vectors of single groups on a few samples, and the surrogate that they make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.search.ledger import Ledger
from pytest_int8acc.search.surrogate import Bools, Surrogate, Vectors
from pytest_int8acc.search.types import Probe, Trial

#: Plans per call of the evaluator: enough to share a run, few enough to stop in time.
_AT_ONCE = 16
#: The furthest that the probed samples may be from all samples, as a ratio of losses.
_APART = 1e3
#: Samples probed at most.
_MOST = 8
#: Equivalents of a full trial that probing group by group may cost; beyond, blocks of groups come first.
_CHEAP = 0.5
#: Blocks that together cause at most this share of the error allowed stay in INT8 without a closer look.
_NEGLIGIBLE = 0.1


@dataclass(frozen=True, eq=False)
class Probed:
    """The surrogate, which groups it knows one by one, and the samples that it was measured on."""

    surrogate: Surrogate
    single: Bools
    samples: list[int]


def probe(ledger: Ledger, trial: Trial, *, closely: bool = False) -> Probed:
    """Measure what each group alone in INT8 adds to the error, on a few samples.

    Where that would cost much, blocks of neighbours come first, and only those that matter are taken apart;
    the others count as an error that is always there.

    Args:
        ledger: Pays for the runs.
        trial: Tells which samples to take, and how much of its loss they stand for.
        closely: True probes every group alone, whatever it costs.
    """
    n = len(ledger.groups)
    samples = _choose(ledger, trial)
    untouched = ledger.probe([ledger.everything], samples)[0]
    base = untouched.vectors
    cheap = closely or n * len(samples) <= _CHEAP * ledger.samples.count
    size = 1 if cheap else max(2, round(math.sqrt(n / 3)))
    blocks = [frozenset(range(i, min(i + size, n))) for i in range(0, n, size)]
    found, added = _added(ledger, blocks, samples, base)
    surrogate = _surrogate(ledger, trial, samples, added, base, found)
    if size > 1:
        matters = _matters(surrogate)
        rest = [a[~matters].sum(axis=0) for a in added]
        blocks = [
            frozenset({i}) for block, close in zip(blocks, matters, strict=True) if close for i in block
        ]
        found, added = _added(ledger, blocks, samples, base)
        base = [b + r for b, r in zip(base, rest, strict=True)]
    index = [i for block in blocks for i in block]
    vectors = [np.zeros((n, *b.shape), dtype=np.float32) for b in base]
    for whole, part in zip(vectors, added, strict=True):
        whole[index] = part
    single = np.zeros(n, dtype=np.bool_)
    single[index] = True
    surrogate = _surrogate(ledger, trial, samples, vectors, base, found)
    return Probed(surrogate, single, samples)


def _choose(ledger: Ledger, trial: Trial) -> list[int]:
    """Samples to probe, of those seen in a trial, as many as cost little.

    Where a mean decides, they are spread evenly over all hardnesses; where the worst samples decide, over
    the harder half of those that must pass.
    """
    criteria, shares = ledger.evaluator.criteria, ledger.samples.shares(trial)
    seen = np.flatnonzero(~np.isnan(shares))
    if not seen.size:
        seen = np.arange(shares.size)
    allowed = min((criterion.allowed for criterion in criteria), default=0)
    ranked = seen[np.argsort(-shares[seen], kind="stable")][min(allowed, seen.size - 1) :]
    count = ledger.samples.count
    wanted = min(max(count // max(len(ledger.groups), 1), 1), _MOST, max(1, count // 4), ranked.size)
    if any(criterion.pool == "rank" for criterion in criteria):
        places = [(i * ranked.size) // (2 * wanted) for i in range(wanted)]
    else:
        places = [int((i + 0.5) * ranked.size / wanted) for i in range(wanted)]
    return [int(ranked[place]) for place in places]


def _added(
    ledger: Ledger, blocks: Sequence[frozenset[int]], samples: Sequence[int], base: Sequence[Vectors]
) -> tuple[list[Probe], list[Vectors]]:
    """Per target [blocks, samples, elements]: the error with one block in INT8, less that with none."""
    found: list[Probe] = []
    for start in range(0, len(blocks), _AT_ONCE):
        plans = [ledger.everything - block for block in blocks[start : start + _AT_ONCE]]
        found += ledger.probe(plans, samples)
    return found, [np.stack([probe.vectors[t] for probe in found]) - b for t, b in enumerate(base)]


def _surrogate(
    ledger: Ledger,
    trial: Trial,
    samples: Sequence[int],
    vectors: Sequence[Vectors],
    base: Sequence[Vectors],
    probes: Sequence[Probe],
) -> Surrogate:
    """A surrogate with the scales that the candidate's own trial suggests."""
    targets, criteria = ledger.evaluator.targets, ledger.evaluator.criteria
    surrogate = Surrogate(targets, criteria, vectors, base)
    surrogate.fit(probes)
    whole = ledger.samples.estimate(trial, ledger.best)
    some = ledger.samples.pooled(trial.parts[:, samples])
    for t, target in enumerate(targets):
        there, here = whole[target.criterion], some[target.criterion]
        if np.isfinite(there) and here > 0:
            surrogate.scale[t] *= np.clip(there / here, 1 / _APART, _APART) ** (2 / target.power)
    return surrogate


def _matters(surrogate: Surrogate) -> NDArray[np.bool_]:
    """Which blocks are worth a closer look: all but the least, as long as those together are negligible."""
    size = surrogate.gram.diagonal(axis1=1, axis2=2) * surrogate.row_scale[:, None]
    size = size.max(axis=0)
    order = np.argsort(size)
    matters = np.ones(len(size), dtype=np.bool_)
    matters[order[np.cumsum(size[order]) <= _NEGLIGIBLE]] = False
    return matters if matters.any() else ~matters
