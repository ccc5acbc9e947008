"""Which samples run first, and when those seen so far are enough to reject a plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.search.types import Criterion, Trial

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
        self._divisible = bool((self._mean | self._rank).all())
        self._allowed = np.array([c.allowed for c in criteria if c.pool == "rank"], dtype=np.intp)
        self._hardness = np.zeros(count)
        self._lead = 0 if not self._rank.any() else count if not self._mean.any() else max(1, count // 8)

    def ranked(self) -> list[int]:
        """All samples, those that broke criteria most so far first."""
        return [int(i) for i in np.argsort(-self._hardness, kind="stable")]

    def order(self) -> list[int]:
        """All samples: the hardest as lead, then the rest so that every prefix is spread over all hardnesses."""
        ranked = self.ranked()
        rest = ranked[self._lead :]
        bits = max(1, (len(rest) - 1).bit_length())
        spread = [int(format(i, f"0{bits}b")[::-1], 2) for i in range(2**bits)]
        return ranked[: self._lead] + [rest[i] for i in spread if i < len(rest)]

    def shares(self, trial: Trial) -> Floats:
        """Per sample, its greatest share of a criterion's parts in this trial; nan where not seen."""
        parts = np.where(np.isinf(trial.parts), np.finfo(np.float32).max, trial.parts)
        total = np.nansum(parts, axis=1, keepdims=True)
        return np.asarray(np.fmax.reduce(parts / np.where(total > 0, total, 1.0), axis=0))

    def learn(self, trial: Trial) -> None:
        """Rank the samples by this trial and, fading, those before it."""
        shares = self.shares(trial)
        faded = _DECAY * self._hardness + np.nan_to_num(shares)
        self._hardness = np.where(np.isnan(shares), self._hardness, faded)

    def pooled(self, parts: Floats) -> Floats:
        """The loss per criterion if these were all samples, none allowed to fail; nan where not told by parts."""
        return np.where(self._rank, parts.max(axis=1), parts.mean(axis=1))

    def rejects(self, parts: Floats, reference: Trial | None) -> bool:
        """Whether the samples seen so far tell that a plan fails.

        More samples over the limit than allowed, or a sum over the limit with all samples not seen counted
        as perfect, prove it. For a mean the difference to a passing plan that saw all samples, taken in
        proportion to hardness (a ratio estimator), must exceed the room that it leaves beyond doubt.
        """
        seen = np.nan_to_num(parts, posinf=np.inf)
        if ((seen[self._rank] > 1).sum(axis=1) > self._allowed).any():
            return True
        if (seen[~self._rank].sum(axis=1) > self.count).any():
            return True
        mean, margin = self._extrapolate(parts, reference, _LEAST)
        return bool((mean - margin > 1).any())

    def promises(self, parts: Floats, reference: Trial | None) -> bool:
        """Whether the samples seen so far make it likely that a plan passes; only all samples can confirm it."""
        seen = ~np.isnan(parts).all(axis=0)
        if not self._divisible or seen.sum() < max(_LEAST, self.count // 4):
            return False
        mean, margin = self._extrapolate(parts, reference, _LEAST)
        sure = bool((mean[self._mean] + margin[self._mean] <= 1).all())
        return sure and not self.rejects(parts, reference)

    def estimate(self, trial: Trial, reference: Trial | None) -> Floats:
        """The losses that this trial would have had on all samples; nan where those seen cannot tell."""
        if trial.confirmed:
            return np.array(trial.losses)
        mean, _ = self._extrapolate(trial.parts, reference, _LEAST // 2)
        ranked = -np.sort(-np.nan_to_num(trial.parts[self._rank], posinf=np.inf), axis=1)
        mean[self._rank] = ranked[np.arange(len(ranked)), np.minimum(self._allowed, self.count - 1)]
        return mean

    def _extrapolate(self, parts: Floats, reference: Trial | None, least: int) -> tuple[Floats, Floats]:
        """Estimate and standard error of the mean over all samples per criterion; nan where too few were seen."""
        mean, error = np.full((2, len(parts)), np.nan)
        seen = ~np.isnan(parts[self._mean]).any(axis=0)
        seen[self.ranked()[: self._lead]] = False
        m = int(seen.sum())
        if not self._mean.any() or m < max(least, self.count // 8):
            return mean, error
        known = np.zeros_like(parts) if reference is None else reference.parts
        more = (parts - known)[self._mean][:, seen]
        size = self._hardness + 0.1 * self._hardness.mean() + 1e-12
        size = size / size.mean()
        ratio = more.sum(axis=1) / size[seen].sum()
        rest = more - ratio[:, None] * size[seen]
        mean[self._mean] = known[self._mean].mean(axis=1) + ratio
        variance = (rest**2).sum(axis=1) / (m - 1) * (1 - m / self.count) / m
        error[self._mean] = 3 * (1 + 4 / m) * np.sqrt(variance) / size[seen].mean()
        return mean, error
