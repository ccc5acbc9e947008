"""Widens the confidence intervals of scores by the effect of small perturbations of the inputs.

With few samples the bootstrap alone underestimates how much a score varies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from pytest_int8acc.data import Batch, Dataset
from pytest_int8acc.results import Interval, Role, Score
from pytest_int8acc.runtime.protocol import Engine
from pytest_int8acc.runtime.run import cut
from pytest_int8acc.scores.judge import Comparison, Judge, Verdict
from pytest_int8acc.tensors import Array, Feed

#: Maximum number of samples with which inputs are perturbed. With more samples the bootstrap is sufficient.
#: For scores that few samples decide, the maximum is four times as large.
_MAX_SAMPLES = 32
#: Few samples decide a score if the normalized loss at one end of its confidence interval is more than this
#: many times the normalized loss at the other end.
_MIN_SCATTER = 3.0
#: Maximum number of perturbations.
PERTURBATIONS = 5
#: Size of a perturbation, divided by the range of the input: a quarter of one of 256 grey levels.
STEP = 2.0**-10
#: A normalized loss is a score's loss divided by the loss that its limit allows. A score is near its limit if
#: its normalized loss lies between this number and its inverse. Inputs are perturbed only if a score is near
#: its limit, because no perturbation moves a score across its limit from farther away.
_NEAR = 0.1
#: No more perturbations are tried if the distance from the score to its limit exceeds this factor times the
#: scatter. The scatter is the greatest distance from the mean among the score and its values for perturbed
#: inputs. Distances are differences of logarithms of normalized losses. The first factor is for one
#: perturbation, the second for two or more.
_FAR_LIMIT = (300.0, 20.0)
#: No more perturbations are tried if the scores for perturbed inputs lie within the interval of the
#: bootstrap, even after their range was widened by this many times the factor in ``_FARTHER``.
_MAX_SPREAD = 2.0
#: After one to five perturbations, the interval is widened beyond the farthest score by this many times the
#: distance of that score from the mean of the scores. The two to six scores are assumed to be normally
#: distributed. On average the farthest score lies 0.56, 0.85, 1.03, 1.16 and 1.27 standard deviations from
#: the mean. The widened interval ends 3.3 standard deviations from the mean.
_FARTHER = (4.9, 2.9, 2.2, 1.8, 1.6)
#: Maximum size, in bytes, of the baseline's outputs for perturbed inputs that are kept for later candidates.
_KEPT_BYTES = 32 << 20
#: Maps the index of a perturbation to the baseline's outputs for the perturbed inputs, batch by batch.
PerturbedOutputs = dict[int, list[Feed]]


def with_perturbed_inputs(
    verdict: Verdict,
    open_form: Callable[[Role], Engine],
    inputs: Dataset,
    judge: Judge,
    known: PerturbedOutputs,
    *,
    fix: bool = False,
) -> Verdict:
    """Return ``verdict`` with confidence intervals that include the scores for perturbed inputs.

    Inputs are perturbed only if there are few samples, a score is near its limit, and each score is clear:
    its interval lies on one side of its limit, or enough resamples meet the limit.

    Args:
        verdict: The verdict on the inputs without perturbation, with intervals.
        open_form: Returns the engine of the baseline for ``Role.BASELINE``, of the candidate for
            ``Role.INT8``.
        inputs: All samples.
        judge: Applies the criteria of the case.
        known: The baseline's outputs for perturbations that ran before. New outputs are added.
        fix: Whether the candidate is a fix. The scores of a fix whose outputs equal the baseline's count as
            near their limits. The outputs may be equal only because they saturate, for example if a Sigmoid
            gives 0 for nearly all samples.

    Raises:
        EngineError: The baseline or the candidate does not build or run.
        DataError: The inputs cannot be read.
    """
    judged = [score for score in verdict.scores if score.limit is not None]
    same = fix and any(math.isinf(score.value) and score.passed for score in judged)
    near = same or any(_NEAR < score.normalized_loss < 1 / _NEAR for score in judged)
    samples, scattered = inputs.samples or 0, same or any(map(_is_scattered, judged))
    trusted = all(score.steady or score.holds_at() for score in judged)
    if not near or not trusted or not 0 < samples <= _MAX_SAMPLES * (4 if scattered else 1):
        return verdict
    first = next(inputs.batches())
    if all(array.dtype.kind != "f" for array in first.feed.values()):
        return verdict
    others: list[dict[object, Score]] = []
    for number in range(PERTURBATIONS):
        perturbed = _perturbed_verdict(open_form, inputs, judge, number, known)
        others.append({_key(score): score for score in perturbed.scores})
        if all(_is_settled(score, _values(score, others)) for score in judged):
            break

    def wider(score: Score) -> Score:
        if score.limit is None:
            return score
        found = repeated(score, _values(score, others), _FARTHER[len(others) - 1])
        both = _both(score.interval, found)
        drawn = [other[_key(score)].interval for other in others if _key(score) in other]
        kept = min((interval.kept for interval in (both, *drawn) if interval is not None), default=1.0)
        return replace(score, interval=both and replace(both, kept=kept))

    outputs = (replace(output, scores=tuple(map(wider, output.scores))) for output in verdict.outputs)
    return Verdict(tuple(outputs), tuple(map(wider, verdict.metrics)))


def repeated(score: Score, others: Sequence[float], farther: float = 0.2) -> Interval | None:
    """Returns the interval of ``score``, measured again with the values ``others``; None if one is nan.

    The interval is wider than the range of the values. On a logarithmic scale of the normalized loss, the
    distance of each end from the mean is multiplied by ``1 + farther``.
    """
    values = np.array([score.value, *others])
    if np.isnan(values).any():
        return None
    scores = [replace(score, value=value) for value in values.tolist()]
    normalized_losses = np.array([other.normalized_loss for other in scores])
    kept = float(np.mean([other.passed for other in scores]))
    ends = [float(values.min()), float(values.max())]
    if np.isfinite(values).all() and (normalized_losses > 0).all() and np.isfinite(normalized_losses).all():
        logs = np.log(normalized_losses)
        met = [end for end in (logs.min(), logs.max()) if end != logs[0]]
        ends += [score.at_normalized_loss(math.exp(end + farther * (end - logs.mean()))) for end in met]
    return Interval(min(ends), max(ends), kept)


def _is_scattered(score: Score) -> bool:
    """Whether the normalized losses at the ends of the interval differ by the factor ``_MIN_SCATTER``."""
    if score.interval is None or not score.normalized_loss:
        return False  # without any loss, no sample decides the score
    ends = (replace(score, value=end).normalized_loss for end in (score.interval.low, score.interval.high))
    least, most = sorted(ends)
    return most > _MIN_SCATTER * least


def _key(score: Score) -> object:
    return score.subject, score.metric, score.limit


def _values(score: Score, others: Sequence[Mapping[object, Score]]) -> list[float]:
    return [other[_key(score)].value if _key(score) in other else np.nan for other in others]


def _is_settled(score: Score, values: Sequence[float]) -> bool:
    """Whether more perturbations than those that gave ``values`` would change nothing about a score.

    Either the limit is so far that no perturbation moves the score across the limit, or the scores for
    perturbed inputs do not widen the interval of the bootstrap.
    """
    logs = _logs(score, (score.value, *values))
    if not np.isfinite(logs).all():
        return False
    away = np.abs(logs - logs.mean()).max()
    if abs(logs[0]) > _FAR_LIMIT[min(len(values), len(_FAR_LIMIT)) - 1] * away:
        return True
    if len(values) < len(_FAR_LIMIT) or not away or score.interval is None:
        return False
    drawn = _logs(score, (score.interval.low, score.interval.high))
    worst, end = (logs.max(), drawn.max()) if score.passed else (logs.min(), drawn.min())
    reached = worst + _MAX_SPREAD * _FARTHER[len(values) - 1] * (worst - logs.mean())
    return bool(reached <= end if score.passed else reached >= end)


def _logs(score: Score, values: Sequence[float]) -> Array:
    """Logarithms of the normalized losses of ``score`` at each of the ``values``; -inf for a loss of 0.

    A normalized loss of 1 just meets the limit.
    """
    normalized_losses = np.array([replace(score, value=value).normalized_loss for value in values])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(normalized_losses))


def _perturbed_verdict(
    open_form: Callable[[Role], Engine], inputs: Dataset, judge: Judge, number: int, known: PerturbedOutputs
) -> Verdict:
    comparison, before = Comparison(judge), known.get(number)
    int8, made = open_form(Role.INT8), list[Feed]()
    for place, batch in enumerate(perturbed_batches(inputs, number)):
        made.append(_outputs(open_form(Role.BASELINE), batch) if before is None else before[place])
        comparison.add(made[-1], _outputs(int8, batch), batch.rows)
    if PERTURBATIONS * sum(array.nbytes for feed in made for array in feed.values()) <= _KEPT_BYTES:
        known[number] = made
    # Metrics of labels get no intervals for perturbed inputs, because resampling a metric takes 400 times as
    # long as computing it once.
    return comparison.verdict()._replace(outputs=comparison.results(None, intervals=True))


def _outputs(engine: Engine, batch: Batch) -> Feed:
    return {name: cut(array, batch, name) for name, array in engine(batch.feed).items()}


def perturbed_batches(inputs: Dataset, seed: int) -> Iterator[Batch]:
    """Yield the batches; float inputs are perturbed by at most half of ``STEP`` of their range."""
    rng = np.random.default_rng(seed)
    for batch in inputs.batches():
        feed = {name: _perturbed(array, batch.rows, rng) for name, array in batch.feed.items()}
        yield replace(batch, feed=feed)


def _perturbed(array: Array, rows: int, rng: np.random.Generator) -> Array:
    if array.dtype.kind != "f" or not array.size or not np.isfinite(array).all():
        return array
    low, high = float(array.min()), float(array.max())
    steps = rng.uniform(-0.5, 0.5, array.shape) * STEP * (high - low)
    perturbed = np.clip(array + steps, low, high).astype(array.dtype)
    if array.ndim and len(array) > rows:  # padding repeats the last sample of the batch
        perturbed[rows:] = perturbed[rows - 1]
    return perturbed


def _both(one: Interval | None, other: Interval | None) -> Interval | None:
    if one is None or other is None:
        return one or other
    low, high = min(one.low, other.low), max(one.high, other.high)
    return Interval(low, high, min(one.kept, other.kept), enough=one.enough and other.enough)
