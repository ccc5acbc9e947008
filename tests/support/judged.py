"""Outputs that are kept whole, judged by a case's criteria."""

from __future__ import annotations

from pytest_int8acc.scores.judge import (
    Judge,
    Scoring,
    Verdict,
)
from pytest_int8acc.tensors import Outputs


def judged(judge: Judge, baseline: Outputs, candidate: Outputs, again: Outputs | None = None) -> Verdict:
    """All outputs and all metrics; ``again``, the baseline's second run, gives the noise."""
    scoring, noise = Scoring(judge), Scoring(judge)
    for index, array in enumerate(next(iter(baseline.values()))):
        first, second, third = (
            {name: arrays[index] for name, arrays in outputs.items()}
            for outputs in (baseline, candidate, again or baseline)
        )
        scoring.add(first, second, len(array))
        noise.add(first, third, len(array))
    return scoring.verdict(noise if again else None)
