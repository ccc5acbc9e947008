"""How steady a verdict is where inputs move by steps of rounding: few samples drawn again cannot show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from pytest_int8acc.case.judge import Judge, Scoring, Verdict
from pytest_int8acc.data import Batch, Dataset
from pytest_int8acc.engines import Engine
from pytest_int8acc.engines.run import cut
from pytest_int8acc.results import Interval, Role, Score
from pytest_int8acc.scores.reserve import around
from pytest_int8acc.tensors import Array

#: Of more samples than these the bootstrap tells enough: rounding moves each of them another way.
_MOST = 32
#: Times that inputs are moved; by how much, as a share of their range: a quarter of one of 256 grey levels.
MOVES, STEP = 5, 2.0**-10
#: Rounding does not move a score that uses up less of its limit, or this many times all of it, across.
_NEAR = 0.1
#: Six normal values, of ``MOVES`` and none, reach 1.27 standard deviations from their mean: 3.3 are wanted.
_FARTHER = 1.6


def with_rounding(
    verdict: Verdict, engines: Callable[[], Mapping[Role, Engine]], inputs: Dataset, judge: Judge
) -> Verdict:
    """``verdict`` with intervals that hold what scores become where inputs move by steps of rounding.

    Looked at where there are few samples, a score is near its limit, and the verdict seems steady.

    Args:
        verdict: On the inputs as they are, with intervals.
        engines: Gives what is compared: ``Role.BASELINE`` and ``Role.INT8``.
        inputs: All samples.
        judge: The case's criteria.

    Raises:
        EngineError: A form does not build or run.
        DataError: The inputs cannot be read.
    """
    judged = [score for score in verdict.scores if score.limit is not None]
    near = any(_NEAR < score.strain < 1 / _NEAR for score in judged)
    if not near or not all(score.steady for score in judged) or not 0 < (inputs.samples or 0) <= _MOST:
        return verdict
    first = next(inputs.batches())
    if all(array.dtype.kind != "f" for array in first.feed.values()):
        return verdict
    opened = engines()
    both = {role: opened[role] for role in (Role.BASELINE, Role.INT8)}
    moved = [_moved_verdict(both, inputs, judge, seed) for seed in range(MOVES)]
    others = [{(s.subject, s.metric, s.limit): s.value for s in other.scores} for other in moved]

    def wider(score: Score) -> Score:
        values = [other.get((score.subject, score.metric, score.limit), np.nan) for other in others]
        found = around(score, values, _FARTHER) if score.limit is not None else None
        return replace(score, interval=_both(score.interval, found))

    outputs = (replace(output, scores=tuple(map(wider, output.scores))) for output in verdict.outputs)
    return Verdict(tuple(outputs), tuple(map(wider, verdict.metrics)))


def _moved_verdict(engines: Mapping[Role, Engine], inputs: Dataset, judge: Judge, seed: int) -> Verdict:
    scoring = Scoring(judge)
    for batch in moved_batches(inputs, seed):
        feeds = {
            role: {name: cut(array, batch, name) for name, array in engine(batch.feed).items()}
            for role, engine in engines.items()
        }
        scoring.add(feeds[Role.BASELINE], feeds[Role.INT8], batch.rows)
    return scoring.verdict()


def moved_batches(inputs: Dataset, seed: int) -> Iterator[Batch]:
    """The batches with each float input moved by less than half a step, within the range that it has."""
    rng = np.random.default_rng(seed)
    for batch in inputs.batches():
        feed = {name: _moved(array, batch.rows, rng) for name, array in batch.feed.items()}
        yield replace(batch, feed=feed)


def _moved(array: Array, rows: int, rng: np.random.Generator) -> Array:
    if array.dtype.kind != "f" or not array.size or not np.isfinite(array).all():
        return array
    low, high = float(array.min()), float(array.max())
    steps = rng.uniform(-0.5, 0.5, array.shape) * STEP * (high - low)
    moved = np.clip(array + steps, low, high).astype(array.dtype)
    if array.ndim and len(array) > rows:  # what fills a batch is the last sample again
        moved[rows:] = moved[rows - 1]
    return moved


def _both(one: Interval | None, other: Interval | None) -> Interval | None:
    if one is None or other is None:
        return one or other
    low, high = min(one.low, other.low), max(one.high, other.high)
    return Interval(low, high, min(one.kept, other.kept))
