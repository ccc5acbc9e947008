"""Which groups must leave INT8: strategies ask an evaluator, and know no ONNX and no pytest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from pytest_int8acc.clock import Budget
from pytest_int8acc.errors import SpecError
from pytest_int8acc.scores.criteria import Criterion
from pytest_int8acc.search.strategies import bisect, certify, fewest, forward, linear, minimal, worst_first
from pytest_int8acc.search.types import Evaluator, GroupInfo, Probe, SearchResult, Target, Trial
from pytest_int8acc.tensors import did_you_mean

__all__ = [
    "STRATEGIES",
    "Budget",
    "Criterion",
    "GroupInfo",
    "Probe",
    "SearchResult",
    "Target",
    "Trial",
    "certify",
    "fewest",
    "search",
]

#: Strategy name to function; each takes an evaluator and a ``budget``.
STRATEGIES: Mapping[str, Callable[..., SearchResult]] = {
    "minimal": minimal,
    "bisect": bisect,
    "bisect-reverse": partial(bisect, reverse=True),
    "linear": linear,
    "linear-reverse": partial(linear, reverse=True),
    "worst-first": worst_first,
    "forward": forward,
}


def search(evaluator: Evaluator, strategy: str = "minimal", *, budget: Budget | None = None) -> SearchResult:
    """Search for groups to keep in high precision such that all criteria are met.

    Raises SpecError where there is no such strategy.
    """
    if strategy not in STRATEGIES:
        known = ", ".join(STRATEGIES)
        raise SpecError(
            f"unknown search strategy '{strategy}'{did_you_mean(strategy, STRATEGIES)}; there are: {known}"
        )
    return STRATEGIES[strategy](evaluator, budget=budget)
