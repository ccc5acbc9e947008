"""Scores of outputs, and the limits that they must meet."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Bound = Literal["min", "max"]
#: How a line fit differs from the baseline: one constant value, smaller or larger by a factor, or shifted.
Meaning = Literal["constant", "small", "large", "shifted"]
#: Useless outputs that criteria are tried on. shuffled: outputs of other samples. mean: their mean over
#: samples. shifted: classes shifted by one. replaced: one output set to zero. greatest: one output at its
#: maximum.
DeadKind = Literal["zeros", "shuffled", "mean", "shifted", "replaced", "greatest"]


#: The least share of bootstrap samples, with and without perturbed inputs, in which a verified fix meets its
#: limits.
LIKELY = 0.95
#: The limit on a floating output that no criterion names, in dB: its error is a tenth of its values.
DEFAULT_SQNR_DB = 20.0


@dataclass(frozen=True)
class Interval:
    """The interval of a score over bootstrap samples."""

    low: float
    high: float
    kept: float = 1.0
    """The share of the bootstrap samples that meet the limit."""


@dataclass(frozen=True)
class Score:
    """One number that the candidate reached, and its limit."""

    subject: str
    """The output's name, or the user's metric function as written in the spec."""
    metric: str
    value: float
    """The value. It is inf for the SQNR of identical outputs, nan if it cannot be computed."""
    limit: float | None = None
    """The limit; None if the score is only reported."""
    bound: Bound = "min"
    """Whether ``limit`` is the least or the greatest value accepted."""
    noise: float | None = None
    """The same metric between two runs of the baseline; for a user's metric, the absolute difference."""
    baseline: float | None = None
    """The baseline's own value, for a user's metric."""
    note: str = ""
    interval: Interval | None = None
    """The bootstrap interval; None if samples were not resampled, or the limit is far away."""

    @property
    def name(self) -> str:
        """Subject and metric, or the user's function alone."""
        return score_name(self.subject, self.metric)

    @property
    def passed(self) -> bool:
        """Whether the value meets the limit. Without a limit it does; nan meets none."""
        return self._keeps(self.value)

    def _keeps(self, value: float) -> bool:
        if self.limit is None:
            return True
        return value >= self.limit if self.bound == "min" else value <= self.limit

    @property
    def margin(self) -> float | None:
        """The distance to the limit, positive if the limit is met."""
        if self.limit is None:
            return None
        return self.value - self.limit if self.bound == "min" else self.limit - self.value

    @property
    def steady(self) -> bool:
        """Whether the limit is met, or missed, at both ends of the bootstrap interval."""
        ends = () if self.interval is None else (self.interval.low, self.interval.high)
        return all(self._keeps(end) == self.passed for end in ends)

    @property
    def likely(self) -> bool:
        """Whether the limit is met, and also by a share ``LIKELY`` of the bootstrap samples."""
        return self.passed and (self.interval is None or self.interval.kept >= LIKELY)

    @property
    def normalized_loss(self) -> float:
        """The fraction of the allowed loss that is used up: 0 is perfect, 1 is the limit, more is a miss.

        Makes scores of different metrics comparable: the ratio of noise powers for decibels, of values for a
        greatest value; otherwise what is lost over what may be lost, against the baseline's own value of a
        user's metric, or against 1. Inf where it cannot be computed, 0 without a limit.
        """
        if self.limit is None:
            return 0.0
        if math.isnan(self.value):
            return math.inf
        if self.metric.endswith("_db"):
            return consistent(10 ** min((self.limit - self.value) / 10, 300.0), self.passed)
        sign, perfect = (1.0 if self.bound == "min" else -1.0), self._perfect
        if perfect != self.baseline and perfect < self.limit * sign:  # a speedup, say: no value is the best
            perfect, used, allowed = 0.0, self.limit, self.value
        else:
            used, allowed = sign * (perfect - self.value), sign * (perfect - self.limit)
        if allowed > 0:
            return consistent(max(used, 0.0) / allowed, self.passed)
        return consistent(math.inf if used > 0 else 0.0, self.passed)

    def at_normalized_loss(self, normalized_loss: float) -> float:
        """Returns the value that has this normalized loss, which must be greater than 0."""
        limit = math.nan if self.limit is None else self.limit
        if self.metric.endswith("_db"):
            return limit - 10 * math.log10(normalized_loss)
        return self._perfect - normalized_loss * (self._perfect - limit)

    @property
    def _perfect(self) -> float:
        """The best value: the baseline's own for a user's metric; else 1 for a minimum, 0 for a maximum."""
        if self.baseline is not None and math.isfinite(self.baseline):
            return self.baseline
        return 1.0 if self.bound == "min" else 0.0

    @property
    def limit_in_noise(self) -> bool:
        """Whether the baseline, compared with its own second run, would miss the limit, too."""
        if self.limit is None or self.noise is None:
            return False
        if self.baseline is not None:  # a user's metric: noise is a difference of values
            return self.noise > abs(self.baseline - self.limit)
        return self.noise < self.limit if self.bound == "min" else self.noise > self.limit


def score_name(subject: str, metric: str) -> str:
    """Returns a name like ``logits cosine``, or a user's function alone, like ``metrics.py:top1``."""
    return subject if subject == metric or subject.endswith(f":{metric}") else f"{subject} {metric}"


def consistent(normalized_loss: float, passed: bool) -> float:
    """Returns ``normalized_loss``, corrected to at most 1 if the limit is met, and above 1 if not."""
    return min(normalized_loss, 1.0) if passed else max(normalized_loss, math.nextafter(1.0, 2.0))


@dataclass(frozen=True)
class LineFit:
    """The least-squares line ``candidate = slope * baseline + offset`` over all elements of one output."""

    slope: float
    offset: float
    correlation: float
    meanings: tuple[Meaning, ...] = ()
    """How the line differs from the baseline; empty if it does not, or if no line fits."""
    shift: float = 0.0
    """The candidate's mean minus the baseline's."""
    deviation: float = 0.0
    """The baseline's standard deviation."""


@dataclass(frozen=True)
class SmallSamples:
    """Samples with far smaller values than others. A limit on all samples does not see their error."""

    count: int
    ratio: float
    """The root mean square of the largest sample divided by that of the largest of these samples."""
    alone: Score
    """The score of these samples alone."""


@dataclass(frozen=True)
class OutputResult:
    """One output, compared. Scores with a limit come first."""

    name: str
    dtype: str
    shape: str
    """Text like ``(397, 10)``, or ``397 arrays`` if the shape varies."""
    scores: tuple[Score, ...]
    fit: LineFit | None = None
    worst_sample: int | None = None
    """The index of the sample with the lowest SQNR; None if not known."""
    problem: str = ""
    """Why the output fails whatever its scores, like NaN in the candidate only; empty if nothing is wrong."""
    note: str = ""
    """A fact about this output, like elements that were left out."""
    heavy: tuple[int, ...] = ()
    """If few samples carry 90 % of the squared error: their indices, the worst first."""
    samples: int = 0
    """The number of samples; 0 if not known."""
    nan_share: float = 0.0
    """The share of elements that are NaN in baseline and candidate. They are left out of the scores."""
    small: SmallSamples | None = None
    """Samples with far smaller values that miss a limit if judged alone; None if there are none."""
    part_of: str = ""
    """The output of which this is a part; empty if this is a whole output."""

    @property
    def output(self) -> str:
        """The name of the model's output."""
        return self.part_of or self.name

    @property
    def passed(self) -> bool:
        """Whether there is no problem and every limit is met."""
        return not self.problem and all(score.passed for score in self.scores)


@dataclass(frozen=True)
class Acceptance:
    """A score that a golden accepts from now on, and the one that it accepted before."""

    subject: str
    metric: str
    before: float | None
    """The score accepted before; None if there was none."""
    now: float | None
    """The score accepted from now on; None if it was removed."""


@dataclass(frozen=True)
class DeadCandidate:
    """Outputs that no working model gives, but that meet all criteria of a case."""

    kind: DeadKind
    output: str = ""
    """The output that was changed; empty if all were."""

    @property
    def is_fatal(self) -> bool:
        """Whether criteria that accept these outputs say nothing: all zeros, or outputs of other samples."""
        return self.kind in ("zeros", "shuffled")


@dataclass(frozen=True)
class ChanceMetric:
    """A metric of labels whose baseline is no better than chance."""

    metric: str
    """The subject of its score."""
    baseline: float
    """The baseline's value on the samples that were tried."""
    chance: float
    """The mean value with the baseline's outputs shuffled between samples."""
    as_well: bool
    """Whether useless outputs score as well as the baseline's."""

    @property
    def is_constant(self) -> bool:
        """Whether shuffled outputs have the same value, other than 0."""
        return self.baseline == self.chance != 0


@dataclass(frozen=True)
class BlindSpots:
    """Errors that the criteria of a case do not notice, tried on changed outputs of the baseline."""

    undetected: tuple[DeadCandidate, ...] = ()
    at_chance: tuple[ChanceMetric, ...] = ()
    remedy: Score | None = None
    """A limit that catches these outputs in a trial and that the candidate meets; None if none is known."""
    too_near: Score | None = None
    """If the candidate is hardly better than these outputs: its SQNR in dB, and a limit that they miss."""

    @property
    def fatal(self) -> bool:
        """Whether a pass says nothing: all-zero or shuffled outputs pass, too, or score as well."""
        dead = any(candidate.is_fatal for candidate in self.undetected)
        return dead or any(metric.as_well for metric in self.at_chance)
