"""Errors add: the loss of any plan foretold from the error vectors of single groups (a Gram matrix each)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.scores.criteria import Criterion
from pytest_int8acc.search.types import Probe, Target

Floats = NDArray[np.float64]
Vectors = NDArray[np.float32]
Bools = NDArray[np.bool_]
#: The furthest that one measured plan may pull what is foretold of others.
_STRETCH = 100.0
#: So many pairs of groups tell what angle between their errors is usual.
_MANY_PAIRS = 20


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
        """Build the forms.

        Args:
            targets: What the arrays mean.
            criteria: What the targets refer to.
            vectors: Per target [groups, samples, elements]: what INT8 in one group adds to the error.
            base: Per target [samples, elements]: the error that is there whatever the plan.
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
        """Squared length of a probe's error vectors, per row."""
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
