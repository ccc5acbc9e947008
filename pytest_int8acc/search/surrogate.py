"""Errors add: the loss of any plan foretold from the error vectors of single groups (a Gram matrix each)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.search.types import Criterion, Probe, Target

Floats = NDArray[np.float64]
Vectors = NDArray[np.float32]
Bools = NDArray[np.bool_]


class Surrogate:
    """To first order the output error of a plan is ``c + sum(d_i)`` over its INT8 groups.

    The squared length of that sum is a quadratic form in the 0/1 vector of INT8 groups, with the Gram matrix
    ``G_ij = d_i . d_j``: its cross terms tell interacting and cancelling groups from innocent ones. There is
    one row (form) per target, and per sample where the worst sample counts. ``scale`` carries the ratio
    of truth to model per target, learnt from trials.
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
        self._vectors = [_flat(vectors[t][:, part]) for t, part in self._parts]
        self.gram = np.stack([(v @ v.T).astype(np.float64) for v in self._vectors])
        import os

        k = float(os.environ.get("SHR", "0"))
        self.factor = np.ones(len(self._parts))
        if k:
            for r, g in enumerate(self.gram):
                d = np.sqrt(np.maximum(np.diag(g), 0))
                cos = g / np.maximum(np.outer(d, d), 1e-300)
                iu = np.triu_indices(len(g), 1); ok = np.outer(d > 0, d > 0)[iu]
                if not ok.any(): continue
                c = cos[iu][ok]; med = np.median(c) if ok.sum() > 20 else 0.0
                sd = max(1.4826 * np.median(np.abs(c - med)) if ok.sum() > 20 else 0, 1 / np.sqrt(self._vectors[r].shape[1]))
                new = np.where(np.abs(cos - med) > k * sd, cos, med)
                np.fill_diagonal(new, 1.0)
                g[:] = new * np.outer(d, d)
        self._place(self._flats(base))

    def _flats(self, errors: Sequence[Vectors]) -> list[Vectors]:
        """Per row, the error vector that it is the square of."""
        return [_flat(errors[t][None, part])[0] for t, part in self._parts]

    def _place(self, constants: list[Vectors]) -> None:
        """Set the error that is there whatever the plan."""
        self.linear = np.stack(
            [(v @ c).astype(np.float64) for v, c in zip(self._vectors, constants, strict=True)]
        )
        self.constant = np.array([float(c @ c) for c in constants])

    @property
    def row_scale(self) -> Floats:
        """Ratio of truth to model, per row."""
        return np.asarray(self.scale[self.target_of_row] * self.factor)

    def rows(self, int8: NDArray[np.generic]) -> Floats:
        """Foretold loss per row, [plans, rows], of 0/1 vectors of INT8 groups [plans, groups]."""
        q = np.asarray(int8, dtype=np.float64)
        forms = [((q @ g) * q).sum(axis=1) + 2 * (q @ b) for g, b in zip(self.gram, self.linear, strict=True)]
        return np.asarray(np.maximum(np.stack(forms, axis=1) + self.constant, 0.0) * self.row_scale)

    def loss(self, high: frozenset[int]) -> float:
        """Foretold loss of one plan: its worst row."""
        return float(self.rows(self.mask(high)[None]).max())

    def mask(self, high: frozenset[int]) -> Bools:
        """The plan as a vector: True where a group is in INT8."""
        int8 = np.ones(self.gram.shape[1], dtype=np.bool_)
        int8[list(high)] = False
        return int8

    def anchor(self, high: frozenset[int], errors: Sequence[Vectors]) -> None:
        """Make the model exact at this plan: what was measured beyond the sum is there from now on."""
        import os
        if os.environ.get("ANCH") == "mul":
            self.factor[:] = 1.0
            model = self.rows(self.mask(high)[None])[0] / self.scale[self.target_of_row]
            meas = np.array([float(f @ f) for f in self._flats(errors)])
            self.factor = np.where((model > 0) & (meas > 0), np.clip(meas / np.maximum(model, 1e-300), .01, 100), 1.0)
            return
        int8 = self.mask(high).astype(np.float32)
        flats = self._flats(errors)
        self._place([flat - int8 @ v for flat, v in zip(flats, self._vectors, strict=True)])

    def calibrate(self, high: frozenset[int], losses: Floats) -> None:
        """Take the ratio of truth to model from the losses of a plan, per criterion; nan where not known."""
        rows = self.rows(self.mask(high)[None])[0]
        for t, target in enumerate(self.targets):
            model, loss = rows[self.target_of_row == t].max(), float(losses[target.criterion])
            loss = loss ** (2 / target.power)
            if model > 0 and np.isfinite(loss) and loss > 0:
                self.scale[t] *= loss / model

    def fit(self, probes: Sequence[Probe]) -> None:
        """Set the scale of each target to the median ratio of parts to squared lengths."""
        lengths = [np.array([float(f @ f) for f in self._flats(probe.vectors)]) for probe in probes]
        for t, target in enumerate(self.targets):
            rank = self.criteria[target.criterion].pool == "rank"
            ratios = []
            for length, probe in zip(lengths, probes, strict=True):
                parts = probe.parts[target.criterion]
                loss = float(parts.max() if rank else parts.mean()) ** (2 / target.power)
                model = float(length[self.target_of_row == t].max())
                if model > 0 and 0 < loss < np.inf:
                    ratios.append(loss / model)
            self.scale[t] = np.median(ratios) if ratios else 1.0


def _flat(vectors: Vectors) -> Vectors:
    """[groups, samples, elements] to [groups, features]; squared lengths become means over the samples."""
    return vectors.reshape(len(vectors), -1) / np.float32(np.sqrt(max(vectors.shape[1], 1)))
