"""The strategies of others: Polygraphy's bisect, linear and worst-first, the layer analyzer's forward.

Unlike the originals they try 'nothing kept' first, and return only what was evaluated and passes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pytest_int8acc.results import Ending, LayerLine
from pytest_int8acc.search.ledger import Ledger, run
from pytest_int8acc.search.types import Budget, Evaluator, SearchResult


def bisect(evaluator: Evaluator, *, budget: Budget | None = None, reverse: bool = False) -> SearchResult:
    """Halve the number of first (or last) groups kept high: ``polygraphy debug precision --mode bisect``."""

    def body(ledger: Ledger) -> Ending:
        fails, passes = 0, len(ledger.groups)
        while passes - fails > 1:
            middle = (fails + passes) // 2
            if _passes(ledger, middle, reverse):
                passes = middle
            else:
                fails = middle
        return ledger.ending("last" if reverse else "first", passes)

    return _run("bisect-reverse" if reverse else "bisect", body, evaluator, budget)


def linear(evaluator: Evaluator, *, budget: Budget | None = None, reverse: bool = False) -> SearchResult:
    """Keep one more of the first (or last) groups high until it passes: ``--mode linear``."""

    def body(ledger: Ledger) -> Ending:
        kept = next(k for k in range(1, len(ledger.groups) + 1) if _passes(ledger, k, reverse))
        return ledger.ending("last" if reverse else "first", kept)

    return _run("linear-reverse" if reverse else "linear", body, evaluator, budget)


def worst_first(evaluator: Evaluator, *, budget: Budget | None = None) -> SearchResult:
    """Keep one more of the groups with the greatest increase of error high until it passes.

    The increase is that over the group before, as in Polygraphy's former ``precision worst-first``: of the
    error at the model's outputs with all groups up to this one in INT8.
    """

    def body(ledger: Ledger) -> Ending:
        increase = np.diff(_prefix_errors(ledger), prepend=0.0)
        worst = [int(i) for i in np.argsort(-increase, kind="stable")]
        for kept in range(1, len(worst) + 1):
            if ledger.trial(frozenset(worst[:kept]), f"the {kept} groups that add most error").passed:
                break
        return ledger.ending("worst", kept)

    return _run("worst-first", body, evaluator, budget)


def forward(evaluator: Evaluator, *, budget: Budget | None = None) -> SearchResult:
    """Let one more group into INT8 at a time, from the inputs on; keep it high where that fails.

    The algorithm of NVIDIA's ``layer_analyzer.py`` (eLinux wiki, TensorRT/INT8 Accuracy), with its table.
    """

    def body(ledger: Ledger) -> Ending:
        high = ledger.everything
        for index, group in enumerate(ledger.groups):
            trial = ledger.trial(high - {index}, f"'{group.name}' too in INT8", least=ledger.samples.count)
            similarity = trial.scores[0]
            line = ""
            if not trial.passed:
                worst = int(np.argmax(trial.losses))
                criterion = ledger.evaluator.criteria[worst].text
                line = (
                    f"Choose layer [{index}] running higher precision mode because it leads the similarity "
                    f"of network output beyond the limit [{trial.scores[worst]:.6g}, {criterion}]!"
                )
            else:
                high -= {index}
            ledger.table.append(
                LayerLine(index, group.name, group.shape, similarity, chosen=not trial.passed, line=line)
            )
        return ledger.ending("visited", len(high))

    return _run("forward", body, evaluator, budget)


def _run(
    strategy: str, body: Callable[[Ledger], Ending], evaluator: Evaluator, budget: Budget | None
) -> SearchResult:
    """Run the body, after 'nothing kept' and 'all high' have been tried and neither settles the matter."""

    def opened(ledger: Ledger) -> Ending:
        if ledger.trial(frozenset(), "nothing kept high").passed:
            return ledger.ending("int8-passes")
        if not ledger.trial(ledger.everything, "all groups high").passed:
            return ledger.ending("high-fails", len(ledger.everything))
        return body(ledger)

    return run(strategy, opened, evaluator, budget)


def _passes(ledger: Ledger, kept: int, reverse: bool) -> bool:
    count = len(ledger.groups)
    high = range(count - kept, count) if reverse else range(kept)
    return ledger.trial(frozenset(high), f"the {'last' if reverse else 'first'} {kept}").passed


def _prefix_errors(ledger: Ledger) -> list[float]:
    """The greatest loss, on the samples that run first, with all groups up to each in INT8."""
    samples = ledger.samples.order()[:2]
    errors = []
    for i in range(len(ledger.groups)):
        parts = ledger.probe([frozenset(range(i + 1, len(ledger.groups)))], samples)[0].parts
        errors.append(float(np.nanmax(ledger.samples.pooled(parts), initial=0.0)))
    return errors
