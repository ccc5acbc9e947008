"""From a passing plan to a 1-minimal one: every group sent back to INT8 alone, in real trials."""

from __future__ import annotations

from collections.abc import Callable

from pytest_int8acc.search.ledger import Ledger
from pytest_int8acc.search.types import Trial


def shrink(
    ledger: Ledger,
    high: frozenset[int],
    foretell: Callable[[frozenset[int]], float],
    learn: Callable[[Trial], None],
) -> frozenset[int]:
    """Drop groups from a passing plan until each plan with one group fewer was tried and fails.

    Groups that cost much and whose loss is foretold low go first. After a success twice as many are dropped
    at once, as long as that is foretold to pass. Nothing is taken for granted from another plan's trial.

    Args:
        ledger: Runs and remembers the trials.
        high: A plan that passed.
        foretell: The expected loss of a plan; 1 is the limit.
        learn: Told every trial.

    Returns:
        The plan that was reached; it passed.
    """
    stubborn: set[int] = set()
    batch = 1
    while True:
        left = [i for i in high if ledger.known(high - {i}) is None]
        if not left:
            return high
        foretold = {i: foretell(high - {i}) + 0.5 * (i in stubborn) - ledger.weights[i] for i in left}
        left.sort(key=lambda i: foretold[i])
        drop = {left[0]}
        for i in left[1:batch]:
            if i in stubborn or foretell(high - drop - {i}) > 1:
                break
            drop.add(i)
        trial = ledger.trial(high - drop, "fewer groups" if len(drop) > 1 else "one group fewer")
        learn(trial)
        if trial.passed:
            high, batch = trial.high, 2 * batch
        else:
            stubborn |= drop if len(drop) == 1 else set()
            batch = 1
