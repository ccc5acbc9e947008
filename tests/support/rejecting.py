"""A search's early stop, for tests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pytest_int8acc.case.trials import SampleBaseline
from pytest_int8acc.tensors import Array


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
