"""Scores and outputs: what INT8 reached, and the limits it must keep."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Bound = Literal["min", "max"]
#: Of a line: INT8 is one value, small or large by a factor, or shifted.
Meaning = Literal["constant", "small", "large", "shifted"]
#: What outputs of no use are made of: zeros, the outputs of other samples, their mean over samples, classes
#: shifted by one, or zeros in one output alone.
DeadKind = Literal["zeros", "shuffled", "mean", "shifted", "replaced", "greatest"]


#: A fix is verified whose limits are kept in this share of the draws of each run, with moved inputs, too.
LIKELY = 0.95
#: The limit on a floating output that no criterion names, in dB: its error is a tenth of its values.
DEFAULT_SQNR_DB = 20.0


@dataclass(frozen=True)
class Interval:
    """Where a score lies when its samples are drawn again."""

    low: float
    high: float
    kept: float = 1.0
    """The share of the draws that keep the limit."""


@dataclass(frozen=True)
class Score:
    """One number that INT8 reached, and the limit it must keep."""

    subject: str
    """The output's name, or the user's metric function as written in the spec."""
    metric: str
    value: float
    """May be inf (SQNR of identical outputs) or nan (cannot be computed, never passes)."""
    limit: float | None = None
    """None: reported only."""
    bound: Bound = "min"
    """Whether ``limit`` is the least or the greatest value accepted."""
    noise: float | None = None
    """The same metric between two runs of the baseline; for a user's metric, the absolute difference."""
    baseline: float | None = None
    """The baseline's own value, for a user's metric."""
    note: str = ""
    interval: Interval | None = None
    """None where samples were not drawn again, or the limit is far."""

    @property
    def name(self) -> str:
        """Subject and metric; a user's function stands for itself."""
        return score_name(self.subject, self.metric)

    @property
    def passed(self) -> bool:
        """True where there is no limit, or the value keeps it; nan never passes a limit."""
        return self._keeps(self.value)

    def _keeps(self, value: float) -> bool:
        if self.limit is None:
            return True
        return value >= self.limit if self.bound == "min" else value <= self.limit

    @property
    def margin(self) -> float | None:
        """Distance to the limit, positive where it is kept."""
        if self.limit is None:
            return None
        return self.value - self.limit if self.bound == "min" else self.limit - self.value

    @property
    def steady(self) -> bool:
        """Whether the limit is kept, or missed, throughout the interval."""
        ends = () if self.interval is None else (self.interval.low, self.interval.high)
        return all(self._keeps(end) == self.passed for end in ends)

    @property
    def likely(self) -> bool:
        """Whether the limit is kept in nearly all of the draws."""
        return self.passed and (self.interval is None or self.interval.kept >= LIKELY)

    @property
    def normalized_loss(self) -> float:
        """How much of what the limit allows is used up: 0 is perfect, 1 exactly the limit, more is missed.

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
        """The value that uses up so much of the limit; normalized loss is greater than 0."""
        limit = math.nan if self.limit is None else self.limit
        if self.metric.endswith("_db"):
            return limit - 10 * math.log10(normalized_loss)
        return self._perfect - normalized_loss * (self._perfect - limit)

    @property
    def _perfect(self) -> float:
        """The best value: the baseline's own of a user's metric, otherwise 1 of a least value and 0."""
        if self.baseline is not None and math.isfinite(self.baseline):
            return self.baseline
        return 1.0 if self.bound == "min" else 0.0

    @property
    def limit_in_noise(self) -> bool:
        """True where the baseline, compared with itself, would not keep the limit either."""
        if self.limit is None or self.noise is None:
            return False
        if self.baseline is not None:  # a user's metric: noise is a difference of values
            return self.noise > abs(self.baseline - self.limit)
        return self.noise < self.limit if self.bound == "min" else self.noise > self.limit


def score_name(subject: str, metric: str) -> str:
    """Like ``logits cosine``; ``metrics.py:top1`` and ``top1`` stand for themselves."""
    return subject if subject == metric or subject.endswith(f":{metric}") else f"{subject} {metric}"


def consistent(normalized_loss: float, passed: bool) -> float:
    """``normalized_loss`` on the side of 1 that the verdict says, where rounding has put it on the other."""
    return min(normalized_loss, 1.0) if passed else max(normalized_loss, math.nextafter(1.0, 2.0))


@dataclass(frozen=True)
class LineFit:
    """Least squares ``INT8 = slope * baseline + offset`` over all elements of one output."""

    slope: float
    offset: float
    correlation: float
    meanings: tuple[Meaning, ...] = ()
    """Empty where INT8 lies near the baseline, or on no line."""
    shift: float = 0.0
    """INT8's mean less the baseline's."""
    deviation: float = 0.0
    """The baseline's standard deviation."""


@dataclass(frozen=True)
class SmallSamples:
    """Samples far smaller than others, so that limits on all together do not see them."""

    count: int
    ratio: float
    """How many times as large the largest sample is as the largest of these, by root mean square."""
    alone: Score
    """What these samples reach by themselves."""


@dataclass(frozen=True)
class OutputResult:
    """One output compared: its judged scores first, then those only reported."""

    name: str
    dtype: str
    shape: str
    """Like ``(397, 10)``; ``397 arrays`` where the shape varies."""
    scores: tuple[Score, ...]
    fit: LineFit | None = None
    worst_sample: int | None = None
    """Index of the sample with the lowest SQNR."""
    problem: str = ""
    """Why the output fails whatever its scores: NaN in INT8 only, shapes that differ."""
    note: str = ""
    """What the reader must know of this output: elements left out, noise unknown."""
    heavy: tuple[int, ...] = ()
    """Samples that carry 90 % of the squared error, the worst first, where few do."""
    samples: int = 0
    """How many there are; 0 where that was not kept."""
    nan_share: float = 0.0
    """The share of the elements that are NaN in both forms, and left out."""
    small: SmallSamples | None = None
    """Samples far smaller than others that miss a limit by themselves; None where there are none."""
    part_of: str = ""
    """The output that this is a part of; empty where it is an output."""

    @property
    def output(self) -> str:
        """The model's output, of which this may be a part."""
        return self.part_of or self.name

    @property
    def passed(self) -> bool:
        """True where no problem stands and every limit is kept."""
        return not self.problem and all(score.passed for score in self.scores)


@dataclass(frozen=True)
class Acceptance:
    """A score that a golden accepts from now on, beside the one that it accepted before."""

    subject: str
    metric: str
    before: float | None
    """None where there was none."""
    now: float | None
    """None where there is none any more."""


@dataclass(frozen=True)
class DeadCandidate:
    """Outputs that no working model gives, and that keep all criteria of a case."""

    kind: DeadKind
    output: str = ""
    """The output that was changed; empty where all were."""

    @property
    def is_fatal(self) -> bool:
        """Whether criteria that accept these outputs say nothing: all zeros, or outputs of other samples."""
        return self.kind in ("zeros", "shuffled")


@dataclass(frozen=True)
class ChanceMetric:
    """A metric of labels whose baseline is no better than chance."""

    metric: str
    """As the score's subject."""
    baseline: float
    """What the baseline reaches on the samples that were tried."""
    chance: float
    """What it reaches in the mean with its outputs dealt to other samples."""
    as_well: bool
    """Whether outputs of no use score as well as the baseline's."""

    @property
    def is_constant(self) -> bool:
        """Whether it gives the same for shuffled outputs, and not because all are wrong."""
        return self.baseline == self.chance != 0


@dataclass(frozen=True)
class BlindSpots:
    """What a case's criteria do not see, by trial on outputs made of the baseline's own."""

    undetected: tuple[DeadCandidate, ...] = ()
    at_chance: tuple[ChanceMetric, ...] = ()
    remedy: Score | None = None
    """A limit that catches them by trial, and that the case's candidate keeps; None where none is known."""
    too_near: Score | None = None
    """The candidate's SQNR in dB where dead outputs come too near to it, and a limit that they miss."""

    @property
    def fatal(self) -> bool:
        """Whether a pass says nothing: zeros or other samples' outputs pass, or score as well in a metric."""
        dead = any(candidate.is_fatal for candidate in self.undetected)
        return dead or any(metric.as_well for metric in self.at_chance)
