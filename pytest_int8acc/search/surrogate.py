"""A surrogate model: predicts the loss of any plan from the error vectors of single groups of layers."""

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
#: Maximum factor, in either direction, by which the measurement of one plan may scale other predictions.
_STRETCH = 100.0
#: Minimum number of pairs of groups from which the typical angle between their error vectors is estimated.
#: With fewer pairs a right angle is assumed.
_MANY_PAIRS = 20
#: Maximum number of plans that the evaluator measures in one call. Plans of one call can share runs, but the
#: search can stop only between calls.
_AT_ONCE = 16
#: Maximum ratio, in either direction, between the loss on all samples and the loss on the few measured
#: samples. A greater ratio is set to this number.
_APART = 1e3
#: Maximum number of samples on which error vectors are measured.
_MOST = 8
#: Maximum cost of measuring each group of layers alone, as a number of trials over all samples. If it would
#: cost more, blocks of neighbouring groups are measured first.
_CHEAP = 0.5
#: Maximum share of the allowed error that may come from all blocks together whose groups are not measured one
#: by one. These groups stay in INT8.
_NEGLIGIBLE = 0.1


class Surrogate:
    """Models the loss of a plan as the squared length of ``e + sum(d_i)`` over its groups in INT8.

    ``d_i`` is the output error that group i adds in INT8, and ``e`` is the error without any group in INT8.
    The squared length is a quadratic form in the 0/1 vector of INT8 groups, with the Gram matrix ``G_ij = d_i
    . d_j``. Its cross terms show which groups interact or cancel. On few samples many cross terms arise by
    chance. So an angle within three standard deviations of the typical angle is set to the typical angle.

    A quadratic form is called a row. A target is an error that one criterion measures. A target has one row.
    If the criterion is on the worst samples, the target has one row for each sample instead. ``scale`` is the
    ratio of true to predicted loss for each target, learnt from trials. ``anchor`` sets the ratio of measured
    to predicted loss for each row.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        criteria: Sequence[Criterion],
        vectors: Sequence[Vectors],
        base: Sequence[Vectors],
    ) -> None:
        """Build the quadratic forms.

        Args:
            targets: The meaning of each array of ``vectors`` and ``base``: its criterion and the power of its
                loss.
            criteria: The criteria, which the targets refer to by index.
            vectors: For each target, the error that each group in INT8 adds: [groups, samples, elements].
            base: For each target, the error without any group in INT8: [samples, elements].
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
        """The errors as one vector for each predicted loss, which is the vector's squared length."""
        return [_flat(errors[t][None, part])[0] for t, part in self._parts]

    @property
    def row_scale(self) -> Floats:
        """The ratio of true to predicted loss, for each of the predicted losses (rows)."""
        return np.asarray(self.scale[self.target_of_row] * self._anchor)

    def rows(self, int8: NDArray[np.generic]) -> Floats:
        """The predicted losses of plans, [plans, losses]; ``int8``, [plans, groups], is 1 for groups in INT8.

        There is one predicted loss for each target. For a target whose criterion is on the worst samples,
        there is one for each sample instead.
        """
        q = np.asarray(int8, dtype=np.float64)
        forms = [((q @ g) * q).sum(axis=1) + 2 * (q @ b) for g, b in zip(self.gram, self.linear, strict=True)]
        return np.asarray(np.maximum(np.stack(forms, axis=1) + self.constant, 0.0) * self.row_scale)

    def loss(self, high: frozenset[int]) -> float:
        """The greatest predicted loss of the plan ``high``, as a squared error length; 1 is at the limit."""
        return float(self.rows(self.mask(high)[None]).max())

    def alone(self) -> Floats:
        """For each group, the predicted ``loss`` with only this group in INT8."""
        return np.asarray(self.rows(np.eye(self.gram.shape[1])).max(axis=1))

    def losses(self, high: frozenset[int]) -> Floats:
        """The predicted loss of the plan ``high`` for each target, in the unit of ``Trial.losses``."""
        rows = self.rows(self.mask(high)[None])[0]
        worst = [rows[self.target_of_row == t].max() for t in range(len(self.targets))]
        return np.asarray(np.power(worst, [target.power / 2 for target in self.targets]))

    def mask(self, high: frozenset[int]) -> Bools:
        """The plan ``high`` as a vector: True for groups in INT8, False for groups in high precision."""
        int8 = np.ones(self.gram.shape[1], dtype=np.bool_)
        int8[list(high)] = False
        return int8

    def anchor(self, high: frozenset[int], probe: Probe) -> None:
        """Scale all predictions so that they are exact for the plan ``high``, which ``probe`` measured."""
        self._anchor[:] = 1.0
        model = self.rows(self.mask(high)[None])[0]
        measured = self._lengths(probe) * self.row_scale
        usable = (model > 0) & (measured > 0)
        self._anchor[usable] = np.clip(measured[usable] / model[usable], 1 / _STRETCH, _STRETCH)

    def _lengths(self, probe: Probe) -> Floats:
        return np.array([float(f @ f) for f in self._flats(probe.vectors)])

    def calibrate(self, high: frozenset[int], losses: Floats) -> None:
        """Scale the predictions for each target so that they are exact for the plan ``high``.

        ``losses`` has the measured loss of this plan for each criterion; a criterion with nan is left out.
        """
        predicted = self.losses(high)
        for t, target in enumerate(self.targets):
            loss = float(losses[target.criterion])
            if predicted[t] > 0 and 0 < loss < np.inf:
                self.scale[t] *= (loss / predicted[t]) ** (2 / target.power)

    def fit(self, probes: Sequence[Probe]) -> None:
        """Scale the predictions for each target by the median of loss / squared error in ``probes``."""
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
    """Reshape [groups, samples, elements] to [groups, features].

    The result is scaled so that a squared length is a mean over the samples.
    """
    return vectors.reshape(len(vectors), -1) / np.float32(np.sqrt(max(vectors.shape[1], 1)))


def _trusted(vectors: Vectors) -> Floats:
    """The Gram matrix of [groups, features]. Angles that may arise by chance are set to the typical angle."""
    gram = (vectors @ vectors.T).astype(np.float64)
    length = np.sqrt(np.diag(gram))
    lengths = np.outer(length, length)
    cosine = np.divide(gram, lengths, out=np.zeros_like(gram), where=lengths > 0)
    pairs = cosine[np.triu_indices(len(gram), 1)]
    pairs = pairs[pairs != 0]
    usual, spread = 0.0, 1 / np.sqrt(vectors.shape[1])
    if pairs.size >= _MANY_PAIRS:
        usual = float(np.median(pairs))
        spread = max(spread, 1.4826 * float(np.median(np.abs(pairs - usual))))  # standard deviation if normal
    trusted = np.where(np.abs(cosine - usual) > 3 * spread, cosine, usual)
    np.fill_diagonal(trusted, 1.0)
    return np.asarray(trusted * lengths)


@dataclass(frozen=True, eq=False)
class Probed:
    """A surrogate model of the losses of plans, and the groups and samples on which it was measured."""

    surrogate: Surrogate
    single: Bools
    """True for groups that were measured one by one, False for groups that were measured only in a block."""
    samples: list[int]


def probe(ledger: Ledger, trial: Trial, *, closely: bool = False) -> Probed:
    """Measure the error that each group alone in INT8 adds, on a few samples.

    If that would cost too much, blocks of neighbouring groups are measured first. Only groups of blocks with
    a considerable error are measured one by one. Every prediction includes the error of the other blocks.

    Args:
        ledger: Measures the plans.
        trial: A trial with all groups in INT8. The losses of its samples decide which samples are measured.
            Its loss shows how well these samples represent all samples.
        closely: Whether each group is measured alone, even if this costs much.
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
    """The samples on which error vectors are measured; only few, because measurements cost runs.

    The samples that ran in ``trial`` are sorted by loss, without the worst ones, which all criteria allow to
    fail. If all criteria are on means, the result is spread evenly over the sorted samples. If a criterion is
    on the worst samples, the result is spread evenly over the half with the greater losses.
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
    """The measurements of the blocks, and for each target the error that each block alone in INT8 adds.

    The measured errors include ``base``, the error without any group in INT8, which is subtracted. Each error
    array has the shape [blocks, samples, elements].
    """
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
    """A surrogate model that is scaled so that its prediction for ``trial`` is the loss on all samples.

    ``vectors`` and ``base`` are the errors for :class:`Surrogate`. They and the ``probes`` were measured on
    ``samples`` only.
    """
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
    """True for blocks whose groups are to be measured one by one; ``surrogate`` predicts losses of blocks.

    The other blocks together cause at most ``_NEGLIGIBLE`` of the allowed error.
    """
    size = surrogate.gram.diagonal(axis1=1, axis2=2) * surrogate.row_scale[:, None]
    size = size.max(axis=0)
    order = np.argsort(size)
    matters = np.ones(len(size), dtype=np.bool_)
    matters[order[np.cumsum(size[order]) <= _NEGLIGIBLE]] = False
    return matters if matters.any() else ~matters
