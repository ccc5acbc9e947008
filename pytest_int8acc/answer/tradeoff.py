"""What keeping more layers out of INT8 buys where the noise of many adds up: a few nested plans, tried."""

from __future__ import annotations

import math

import numpy as np

from pytest_int8acc.answer.precision import Found
from pytest_int8acc.lab.lab import Lab
from pytest_int8acc.results import SearchOutcome, Tradeoff, TradeoffPoint

#: Shares of the multiply-accumulates at which plans are tried, on ``Simulator.few`` samples each.
_SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7)
#: Or on fewer, where all plans together would cost more runs over all samples.
_RUNS = 2.0


def adds_up(outcome: SearchOutcome) -> bool:
    """Whether a culprit is at fault by nothing but noise that adds up."""
    causes = (culprit.cause for culprit in outcome.culprits)
    return any(cause is not None and cause.kind == "accumulated-noise" for cause in causes)


def tradeoff(lab: Lab, found: Found) -> Tradeoff | None:
    """Plans that keep ever more of the search's order of layers high, each tried on a few samples.

    None where the search foretells nothing, or fewer than three plans.

    Raises:
        Int8accError: A model does not run.
        OutOfTime: The time is up.
    """
    order = found.result.order
    shares = np.cumsum([0.0, *(lab.work[name] for name in order)])
    counts = {int(np.searchsorted(shares, share - 1e-9)) for share in _SHARES} | {len(order)}
    sizes = sorted(count for count in counts if count <= len(order))
    if len(sizes) < 3:
        return None
    few = lab.simulator.few
    most = math.ceil(lab.simulator.allowance(_RUNS) * len(lab.simulator.inputs) / len(sizes))
    evaluator = lab.simulated(few[:: -(-len(few) // most)])
    trials = []
    for count in sizes:
        lab.clock.check()
        high = evaluator.indices(order[:count])
        trials.append(evaluator.trial(high, range(evaluator.samples), None))
    worst = int(np.argmax(trials[0].losses))
    criterion = evaluator.criteria[worst]
    points = (
        TradeoffPoint(count, float(shares[count]), criterion.score(trial.scores[worst]))
        for count, trial in zip(sizes, trials, strict=True)
    )
    return Tradeoff(order[: sizes[-1]], tuple(points), evaluator.samples)
