"""Which samples run first, and when those seen so far are enough to reject a plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.scores.criteria import Criterion
from pytest_int8acc.search.types import Trial

Floats = NDArray[np.float64]
#: A mean is rejected on a part of the samples with at least this many of them.
_LEAST = 8
#: How fast older trials are forgotten when samples are ranked by hardness.
_DECAY = 0.6


class Samples:
    """Remembers which samples break criteria, orders them, and judges a plan on those seen so far.

    The worst samples and counts of flips are decided by few samples: the hardest run first. A mean is
    estimated best by samples spread evenly over all hardnesses: after the lead, every prefix of the order is
    such a spread.
    """

    def __init__(self, criteria: Sequence[Criterion], count: int) -> None:
        self.count = count
        pools = [criterion.pool for criterion in criteria]
        self._mean = np.array([pool == "mean" for pool in pools], dtype=np.bool_)
        self._rank = np.array([pool == "rank" for pool in pools], dtype=np.bool_)
        self._allowed = np.array([c.allowed for c in criteria if c.pool == "rank"], dtype=np.intp)
        self._hardness = np.zeros(count)
        self._lead = 0 if not self._rank.any() else count if not self._mean.any() else max(1, count // 8)

    def ranked(self) -> list[int]:
        """All samples, those that broke criteria most so far first."""
        return [int(i) for i in np.argsort(-self._hardness, kind="stable")]

    def order(self) -> list[int]:
        """All samples: the hardest as lead, then the rest, every prefix spread over all hardnesses."""
        ranked = self.ranked()
        rest = ranked[self._lead :]
        bits = max(1, (len(rest) - 1).bit_length())
        spread = [int(format(i, f"0{bits}b")[::-1], 2) for i in range(2**bits)]
        return ranked[: self._lead] + [rest[i] for i in spread if i < len(rest)]

    @staticmethod
    def ran(parts: Floats) -> int:
        """How many samples were seen, as far as parts tell."""
        return int((~np.isnan(parts)).any(axis=0).sum())

    def shares(self, trial: Trial) -> Floats:
        """Per sample, its greatest share of a criterion's parts in this trial; nan where not seen."""
        total = np.nansum(trial.parts, axis=1, keepdims=True)
        return np.asarray(np.fmax.reduce(trial.parts / np.where(total > 0, total, 1.0), axis=0))

    def learn(self, trial: Trial) -> None:
        """Rank the samples by this trial and, fading, those before it."""
        shares = self.shares(trial)
        faded = _DECAY * self._hardness + np.nan_to_num(shares)
        self._hardness = np.where(np.isnan(shares), self._hardness, faded)

    def pooled(self, parts: Floats) -> Floats:
        """The loss per criterion if these were all samples and none may fail; nan where parts do not tell."""
        return np.asarray(np.where(self._rank, parts.max(axis=1), parts.mean(axis=1)))

    def rejects(self, parts: Floats, reference: Trial | None) -> bool:
        """Whether the samples seen so far tell that a plan fails.

        More samples over the limit than allowed, or a sum over the limit with all samples not seen counted
        as perfect, prove it. For a mean the difference to a passing plan that saw all samples, taken in
        proportion to hardness (a ratio estimator), must exceed the room that it leaves beyond doubt.
        """
        seen = np.nan_to_num(parts)
        if ((seen[self._rank] > 1).sum(axis=1) > self._allowed).any():
            return True
        if (seen[~self._rank].sum(axis=1) > self.count).any():
            return True
        mean, margin = self._extrapolate(parts, reference, _LEAST)
        return bool((mean - margin > 1).any())

    def estimate(self, trial: Trial, reference: Trial | None) -> Floats:
        """The losses that this trial would have had on all samples; nan where those seen cannot tell."""
        if trial.confirmed:
            return np.array(trial.losses)
        mean, _ = self._extrapolate(trial.parts, reference, _LEAST // 2)
        ranked = -np.sort(-np.nan_to_num(trial.parts[self._rank]), axis=1)
        mean[self._rank] = ranked[np.arange(len(ranked)), np.minimum(self._allowed, self.count - 1)]
        return mean

    def _extrapolate(self, parts: Floats, reference: Trial | None, least: int) -> tuple[Floats, Floats]:
        """Estimate of the mean over all samples and a margin for doubt; nan where too few were seen.

        The lead is counted as it is, the rest by a ratio estimator (Cochran, Sampling Techniques, ch. 6):
        what a part exceeds that of the reference by, in proportion to hardness. The margin is three
        standard errors, more where few samples were seen.
        """
        mean, margin = np.full((2, len(parts)), np.nan)
        rest = np.ones(self.count, dtype=np.bool_)
        rest[self.ranked()[: self._lead]] = False
        seen = rest & ~np.isnan(parts[self._mean]).any(axis=0)
        m, total = int(seen.sum()), int(rest.sum())
        lead = parts[self._mean][:, ~rest]
        if not self._mean.any() or m < max(least, self.count // 8) or np.isnan(lead).any():
            return mean, margin
        known = np.zeros_like(parts) if reference is None else np.nan_to_num(reference.parts)
        more = (parts - known)[self._mean]
        size = self._hardness + 0.1 * self._hardness.mean() + np.finfo(np.float64).tiny
        size = size / size[rest].mean()
        ratio = more[:, seen].sum(axis=1) / size[seen].sum()
        scatter = more[:, seen] - ratio[:, None] * size[seen]
        variance = (scatter**2).sum(axis=1) / (m - 1) * (1 - m / total) / m
        added = (more[:, ~rest].sum(axis=1) + total * ratio) / self.count
        mean[self._mean] = known[self._mean].mean(axis=1) + added
        doubt = 3 * (1 + 4 / m) * np.sqrt(variance) / size[seen].mean()
        margin[self._mean] = doubt * total / self.count
        return mean, margin
