"""The sample of each output that INT8 misses most, kept while the batches pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_int8acc.scores.compare import Comparison, sample_ratios
from pytest_int8acc.tensors import Array, Feed


@dataclass(frozen=True, eq=False)
class Worst:
    """One sample of one output."""

    sample: int
    ratio: float
    """Its signal over its noise, as powers."""
    baseline: Array
    """Its output, of the shape of one sample."""
    int8: Array


def keep_worst(kept: dict[str, Worst], comparison: Comparison, baseline: Feed, int8: Feed) -> None:
    """Take over what of the batch just compared is worse than what is ``kept``, by output."""
    for name, stats in comparison.statistics.items():
        rows = stats.latest
        ours, theirs = stats.cut(baseline[stats.output]), stats.cut(int8[stats.output])
        if stats.difference or not len(rows) or not ours.ndim:
            continue
        ratios = sample_ratios(rows)
        at = int(ratios.argmin())
        if ratios[at] < (kept[name].ratio if name in kept else float("inf")):
            sample = stats.samples - len(rows) + at
            kept[name] = Worst(sample, float(ratios[at]), ours[at].copy(), theirs[at].copy())


def worst_of(kept: Mapping[str, Worst], output: str, sample: int | None) -> Worst | None:
    """What was kept of an output, where its scores name that sample, too."""
    worst = kept.get(output)
    return worst if worst is not None and worst.sample == sample else None
