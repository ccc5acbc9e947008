"""Outputs cut into samples, trials of them, and where a search may end a trial."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pytest_int8acc.case.trials import SampleBaseline, SampleComparison
from pytest_int8acc.tensors import Array

Samples = dict[str, list[Array]]


def one(count: int = 6, *shape: int, noise: float = 0.1, seed: int = 0) -> tuple[list[Array], list[Array]]:
    """Baseline and candidate of one output."""
    rng = np.random.default_rng(seed)
    baseline = rng.normal(size=(count, 1, *shape)).astype(np.float32)
    return list(baseline), list(baseline + noise * rng.normal(size=baseline.shape).astype(np.float32))


def trial_of(judge: SampleBaseline, candidate: Samples, samples: list[int] | None = None) -> Any:
    gathered = SampleComparison(judge)
    some = list(range(judge.samples)) if samples is None else samples
    gathered.add_samples(some, {name: [arrays[i] for i in some] for name, arrays in candidate.items()})
    return gathered.trial(frozenset())


def reject(judge: SampleBaseline) -> Callable[[Array], bool]:
    """What the parts prove, and nothing beyond."""

    def proven(parts: Array) -> bool:
        for criterion, row in zip(judge.criteria, parts, strict=True):
            seen = np.nan_to_num(row, nan=0.0, posinf=np.inf)
            if criterion.pool == "rank" and (seen > 1).sum() > criterion.allowed:
                return True
            if criterion.pool == "mean" and seen.sum() > judge.samples:
                return True
        return False

    return proven
