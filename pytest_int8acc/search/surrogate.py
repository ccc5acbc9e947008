"""Errors add: the loss of any plan foretold from the error vectors of single groups, on a few samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.scores.criteria import Criterion
from pytest_int8acc.search.ledger import Ledger
from pytest_int8acc.search.types import Probe, Target, Trial

Floats = NDArray[np.float64]
Vectors = NDArray[np.float32]
Bools = NDArray[np.bool_]
#: Maximum factor by which one measured plan may change the predictions for other plans.
_STRETCH = 100.0
#: Minimum number of pairs of groups that tell the usual angle between their errors.
_MANY_PAIRS = 20
#: Number of plans per call of the evaluator: enough to share a run, few enough to stop in time.
_AT_ONCE = 16
#: Maximum ratio between the loss on the probed samples and the loss on all samples.
_APART = 1e3
#: Maximum number of samples that are probed.
_MOST = 8
#: Maximum cost of probing group by group, in trials over all samples. Above it, blocks of groups are probed
#: first.
_CHEAP = 0.5
#: Blocks that together cause at most this share of the error allowed stay in INT8 and are not probed group by
#: group.
_NEGLIGIBLE = 0.1


class Surrogate:
    """To first order the output error of a plan is ``e + sum(d_i)`` over its INT8 groups.

    The squared length of that sum is a quadratic form in the 0/1 vector of INT8 groups, with the Gram matrix
    ``G_ij = d_i . d_j``: its cross terms tell interacting and cancelling groups from innocent ones. Few
    samples make many cross terms by chance, and small errors are drawn anew wherever something changes
    upstream: angles within three standard deviations of the usual one are taken for that.

    There is one row (form) per target, and per sample where the worst samples count. ``scale`` carries the
    ratio of truth to model per target, learnt from trials; ``anchor`` that of measured to foretold per row.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        criteria: Sequence[Criterion],
        vectors: Sequence[Vectors],
        base: Sequence[Vectors],
    ) -> None:
        """Build the forms from what INT8 in one group adds to the error, and the error that is always there.

        Args:
            targets: What the arrays mean.
            criteria: What the targets refer to.
            vectors: Per target [groups, samples, elements].
            base: Per target [samples, elements].
        """
        self.targets, self.criteria = tuple(targets), tuple(criteria)
        self.scale = np.ones(len(self.targets))
        self._parts: list[tuple[int, slice]] = []
        for t, target in enumerate(self.targets):
            count = base[t].shape[0]
            worst = self.criteria[target.criterion].pool == "rank"
            self._parts += [(t, slice(s, s + 1)) for s in range(count)] if worst else [(t, slice(count))]
        self.target_of_row = np.array([t for t, _ in self._parts], dtype=np.intp)
        self._anchor = np.ones(len(self._parts))
        rows = [_flat(vectors[t][:, part]) for t, part in self._parts]
        self.gram = np.stack([_trusted(row) for row in rows])
        there = self._flats(base)
        self.linear = np.stack([(v @ e).astype(np.float64) for v, e in zip(rows, there, strict=True)])
        self.constant = np.array([float(e @ e) for e in there])

    def _flats(self, errors: Sequence[Vectors]) -> list[Vectors]:
        """Per row, the error vector that it is the square of."""
        return [_flat(errors[t][None, part])[0] for t, part in self._parts]

    @property
    def row_scale(self) -> Floats:
        """Ratio of truth to model, per row."""
        return np.asarray(self.scale[self.target_of_row] * self._anchor)

    def rows(self, int8: NDArray[np.generic]) -> Floats:
        """Foretold loss per row, [plans, rows], of 0/1 vectors of INT8 groups [plans, groups]."""
        q = np.asarray(int8, dtype=np.float64)
        forms = [((q @ g) * q).sum(axis=1) + 2 * (q @ b) for g, b in zip(self.gram, self.linear, strict=True)]
        return np.asarray(np.maximum(np.stack(forms, axis=1) + self.constant, 0.0) * self.row_scale)

    def loss(self, high: frozenset[int]) -> float:
        """Foretold loss of one plan, squared where the loss grows with the error's length: its worst row."""
        return float(self.rows(self.mask(high)[None]).max())

    def alone(self) -> Floats:
        """Foretold loss of each group in INT8 by itself, as ``loss`` gives it."""
        forms = np.diagonal(self.gram, axis1=1, axis2=2) + 2 * self.linear + self.constant[:, None]
        return np.asarray((np.maximum(forms, 0.0) * self.row_scale[:, None]).max(axis=0))

    def losses(self, high: frozenset[int]) -> Floats:
        """Foretold loss of one plan, per target, as trials give it."""
        rows = self.rows(self.mask(high)[None])[0]
        worst = [rows[self.target_of_row == t].max() for t in range(len(self.targets))]
        return np.asarray(np.power(worst, [target.power / 2 for target in self.targets]))

    def mask(self, high: frozenset[int]) -> Bools:
        """The plan as a vector: True where a group is in INT8."""
        int8 = np.ones(self.gram.shape[1], dtype=np.bool_)
        int8[list(high)] = False
        return int8

    def anchor(self, high: frozenset[int], probe: Probe) -> None:
        """Make the model exact at this plan, by a factor per row; others are foretold in proportion."""
        self._anchor[:] = 1.0
        model = self.rows(self.mask(high)[None])[0]
        measured = self._lengths(probe) * self.row_scale
        usable = (model > 0) & (measured > 0)
        self._anchor[usable] = np.clip(measured[usable] / model[usable], 1 / _STRETCH, _STRETCH)

    def _lengths(self, probe: Probe) -> Floats:
        return np.array([float(f @ f) for f in self._flats(probe.vectors)])

    def calibrate(self, high: frozenset[int], losses: Floats) -> None:
        """Take the ratio of truth to model from the losses of a plan, per criterion; nan where not known."""
        foretold = self.losses(high)
        for t, target in enumerate(self.targets):
            loss = float(losses[target.criterion])
            if foretold[t] > 0 and 0 < loss < np.inf:
                self.scale[t] *= (loss / foretold[t]) ** (2 / target.power)

    def fit(self, probes: Sequence[Probe]) -> None:
        """Set the scale of each target to the median ratio of parts to squared lengths."""
        lengths = [self._lengths(probe) for probe in probes]
        for t, target in enumerate(self.targets):
            rank = self.criteria[target.criterion].pool == "rank"
            ratios = []
            for length, probe in zip(lengths, probes, strict=True):
                parts = probe.parts[target.criterion]
                loss = float(parts.max() if rank else parts.mean()) ** (2 / target.power)
                model = float(length[self.target_of_row == t].max())
                if model > 0 and loss > 0:
                    ratios.append(loss / model)
            self.scale[t] = np.median(ratios) if ratios else 1.0


def _flat(vectors: Vectors) -> Vectors:
    """[groups, samples, elements] to [groups, features]; squared lengths become means over the samples."""
    return vectors.reshape(len(vectors), -1) / np.float32(np.sqrt(max(vectors.shape[1], 1)))


def _trusted(vectors: Vectors) -> Floats:
    """Gram matrix of [groups, features] in which angles that may be chance are the usual angle."""
    gram = (vectors @ vectors.T).astype(np.float64)
    length = np.sqrt(np.diag(gram))
    lengths = np.outer(length, length)
    cosine = np.divide(gram, lengths, out=np.zeros_like(gram), where=lengths > 0)
    pairs = cosine[np.triu_indices(len(gram), 1)]
    pairs = pairs[pairs != 0]
    usual, spread = 0.0, 1 / np.sqrt(vectors.shape[1])
    if pairs.size >= _MANY_PAIRS:
        usual = float(np.median(pairs))
        spread = max(spread, 1.4826 * float(np.median(np.abs(pairs - usual))))  # of a normal distribution
    trusted = np.where(np.abs(cosine - usual) > 3 * spread, cosine, usual)
    np.fill_diagonal(trusted, 1.0)
    return np.asarray(trusted * lengths)


@dataclass(frozen=True, eq=False)
class Probed:
    """The surrogate, which groups it knows one by one, and the samples that it was measured on."""

    surrogate: Surrogate
    single: Bools
    samples: list[int]


def probe(ledger: Ledger, trial: Trial, *, closely: bool = False) -> Probed:
    """Measure what each group alone in INT8 adds to the error, on a few samples.

    Where that would cost much, blocks of neighbours come first, and only those that matter are taken apart,
    unless ``closely``; the others count as an error that is always there. ``trial`` tells which samples to
    take, and how much of its loss they stand for.
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
    blocks = min(max(count // max(len(ledger.groups), 1), 1), _MOST, max(1, count // 4), ranked.size)
    if any(criterion.pool == "rank" for criterion in criteria):
        places = [(i * ranked.size) // (2 * blocks) for i in range(blocks)]
    else:
        places = [int((i + 0.5) * ranked.size / blocks) for i in range(blocks)]
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
