"""Scores of outputs, and the limits that they must meet."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pytest_int8acc.results.samples import ChangedDecisions

Bound = Literal["min", "max"]
#: How an output of the candidate differs from the baseline's, by a line fitted to its values. ``constant``:
#: the output has one value everywhere. ``small``, ``large``: the output is too small or too large by a
#: factor. ``shifted``: an offset is added to the output.
Meaning = Literal["constant", "small", "large", "shifted"]
#: Useless outputs that must not meet the criteria. ``zeros``: all outputs set to zero. ``shuffled``: the
#: outputs of other samples. ``mean``: the mean over all samples. ``shifted``: class indices shifted by one.
#: ``replaced``: one output set to zero. ``greatest``: one output, or each output, set to its maximum.
DeadKind = Literal["zeros", "shuffled", "mean", "shifted", "replaced", "greatest"]


#: A fix is called verified only if at least this share of bootstrap resamples meets the limits. If inputs
#: were perturbed as well, the share must be as large for each perturbation.
LIKELY = 0.95
#: The confidence of the interval of a score, from 0 to 1, if the criterion does not set one.
CONFIDENCE = 0.95
#: Default limit, in dB of SQNR, for a floating-point output without a criterion: the error is a tenth of the
#: signal.
DEFAULT_SQNR_DB = 20.0


@dataclass(frozen=True)
class Interval:
    """The confidence interval of a score. It probably contains the score of all samples of the same kind."""

    low: float
    high: float
    kept: float = 1.0
    """The share of bootstrap resamples whose score meets the limit, from 0 to 1."""
    confidence: float = CONFIDENCE
    """The probability that such an interval contains the true score, above 0 and below 1."""
    needed: int | None = None
    """About how many samples would decide whether the limit is met; None if this number is not known."""
    enough: bool = True
    """Whether the samples are enough to prove a score that meets its limit.

    It is false if the exact test of a share leaves more than 5 % of doubt, or if one more sample with a rare,
    far larger error might miss the limit. Resamples consist of the given samples only, so they do not show
    such an error."""


@dataclass(frozen=True)
class Score:
    """One score of the candidate, with its limit."""

    subject: str
    """The name of the output. For a metric of labels, its name in the spec, like ``metrics.py:top1`` or
    ``top1``. For a criterion on the engine, ``engine`` or ``model``."""
    metric: str
    value: float
    """The score. It is inf for the SQNR of identical outputs, and nan if it cannot be computed."""
    limit: float | None = None
    """The limit on ``value``; None if the score is only reported."""
    bound: Bound = "min"
    """Whether ``limit`` is the minimum or the maximum that ``value`` may have."""
    noise: float | None = None
    """The metric between two runs of the baseline; None if the baseline did not run twice.

    If ``baseline`` is set, it is the absolute difference of the metric's values in both runs.
    """
    baseline: float | None = None
    """The value on the baseline's outputs of a user's metric or a metric of labels; None for metrics that
    compare the outputs of both models."""
    note: str = ""
    interval: Interval | None = None
    """The confidence interval of ``value``; None if none was computed, as for a limit that is met by far."""

    @property
    def name(self) -> str:
        """The name of the score, like ``logits cosine``, or only the metric, like ``metrics.py:top1``."""
        return score_name(self.subject, self.metric)

    @property
    def passed(self) -> bool:
        """Whether the value meets the limit. True without a limit; False if the value is nan."""
        return self._keeps(self.value)

    def _keeps(self, value: float) -> bool:
        if self.limit is None:
            return True
        return value >= self.limit if self.bound == "min" else value <= self.limit

    @property
    def margin(self) -> float | None:
        """The distance of the value from the limit, positive if the limit is met; None without a limit."""
        if self.limit is None:
            return None
        return self.value - self.limit if self.bound == "min" else self.limit - self.value

    @property
    def steady(self) -> bool:
        """Whether the samples decide if the limit is met: the interval does not contain the limit.

        If it does, other samples of the same kind may reverse the verdict. Without an interval the value
        decides.
        """
        ends = () if self.interval is None else (self.interval.low, self.interval.high)
        return all(self._keeps(end) == self.passed for end in ends)

    def holds_at(self, level: float = LIKELY) -> bool:
        """Whether the value meets the limit, and so does at least a share ``level`` of bootstrap resamples.

        ``level`` is from 0 to 1. Without an interval only the value is tested.
        """
        return self.passed and (self.interval is None or self.interval.kept >= level)

    @property
    def normalized_loss(self) -> float:
        """The loss as a fraction of the allowed loss: 0 is perfect, 1 is at the limit, more misses the limit.

        The normalized loss makes scores of different metrics comparable. For a metric in dB it is the noise
        power divided by the noise power at the limit. For a maximum it is the value divided by the limit. For
        a minimum up to 1 it is the distance of the value from 1, divided by the distance of the limit from 1.
        For a larger minimum, like a speedup, it is the limit divided by the value. If ``baseline`` is set,
        distances are from its value in place of 0 or 1. The loss is inf if it cannot be computed, and 0
        without a limit.
        """
        if self.limit is None:
            return 0.0
        if math.isnan(self.value):
            return math.inf
        if self.metric.endswith("_db"):
            return consistent(10 ** min((self.limit - self.value) / 10, 300.0), self.passed)
        sign, perfect = (1.0 if self.bound == "min" else -1.0), self._perfect
        # a minimum above 1, as of a speedup: the metric has no best value
        if perfect != self.baseline and perfect < self.limit * sign:
            perfect, used, allowed = 0.0, self.limit, self.value
        else:
            used, allowed = sign * (perfect - self.value), sign * (perfect - self.limit)
        if allowed > 0:
            return consistent(max(used, 0.0) / allowed, self.passed)
        return consistent(math.inf if used > 0 else 0.0, self.passed)

    def at_normalized_loss(self, normalized_loss: float) -> float:
        """Returns the value of the score that has this normalized loss. The loss must be greater than 0."""
        limit = math.nan if self.limit is None else self.limit
        if self.metric.endswith("_db"):
            return limit - 10 * math.log10(normalized_loss)
        return self._perfect - normalized_loss * (self._perfect - limit)

    @property
    def _perfect(self) -> float:
        """The value with a loss of 0: ``baseline`` if set; otherwise 1 for a minimum and 0 for a maximum."""
        if self.baseline is not None and math.isfinite(self.baseline):
            return self.baseline
        return 1.0 if self.bound == "min" else 0.0

    @property
    def limit_in_noise(self) -> bool:
        """Whether a second run of the baseline, compared with its first run, would also miss the limit."""
        if self.limit is None or self.noise is None:
            return False
        if self.baseline is not None:  # then ``noise`` is a difference of the metric's values
            return self.noise > abs(self.baseline - self.limit)
        return self.noise < self.limit if self.bound == "min" else self.noise > self.limit


def score_name(subject: str, metric: str) -> str:
    """Returns a name like ``logits cosine``; ``subject`` alone if it names the metric, as ``top1`` does."""
    return subject if subject == metric or subject.endswith(f":{metric}") else f"{subject} {metric}"


def consistent(normalized_loss: float, passed: bool) -> float:
    """Returns ``normalized_loss``, corrected to at most 1 if ``passed``, and to more than 1 if not."""
    return min(normalized_loss, 1.0) if passed else max(normalized_loss, math.nextafter(1.0, 2.0))


@dataclass(frozen=True)
class LineFit:
    """The least-squares line ``candidate = slope * baseline + offset`` through all elements of one output."""

    slope: float
    offset: float
    correlation: float
    meanings: tuple[Meaning, ...] = ()
    """How the line differs from ``candidate = baseline``; empty if it does not, or if no line fits well."""
    shift: float = 0.0
    """The mean of the candidate's output minus the mean of the baseline's output."""
    deviation: float = 0.0
    """The standard deviation of the baseline's output."""


@dataclass(frozen=True)
class SmallSamples:
    """Samples with far smaller values than other samples. A score over all samples hides their error."""

    count: int
    ratio: float
    """The largest root mean square of all samples, divided by the largest root mean square of the small
    samples."""
    alone: Score
    """The score of the small samples alone."""


@dataclass(frozen=True)
class Preactivation:
    """The input of the Softmax or Sigmoid that computes an output. The output hides errors of this tensor.

    If the case runs in engines, the tensor is compared in the simulation of the engine in ONNX Runtime.
    """

    tensor: str
    """The name of the tensor in the float model."""
    operator: str
    """The type of the operator, for example ``Sigmoid``."""
    node: str
    """The name of the operator's node in the float model."""
    scores: tuple[Score, ...]
    """The scores of the tensor, judged by the limits on the output. The verdict ignores these scores."""
    fails: Literal["", "tensor", "pair"] = ""
    """Where a limit is missed; empty if none is. ``tensor``: the tensor misses a limit. ``pair``: the tensor
    meets the limits, but misses one after the Q/DQ pair between the tensor and the operator."""
    is_known: bool = True
    """Whether the candidate has a tensor of this name, so that a criterion can name it."""


@dataclass(frozen=True)
class OutputResult:
    """The scores of one output of the model or of a part of it; scores with a limit come first."""

    name: str
    dtype: str
    shape: str
    """Text like ``(397, 10)``, or ``397 arrays`` if the shape varies."""
    scores: tuple[Score, ...]
    fit: LineFit | None = None
    worst_sample: int | None = None
    """The index of the sample with the lowest SQNR; None if it is not known."""
    problem: str = ""
    """The reason, like NaN in the candidate only, why the output fails whatever its scores are.

    Empty if there is no such reason.
    """
    note: str = ""
    """A fact about the output, for example that some elements were left out of the scores."""
    heavy: tuple[int, ...] = ()
    """The indices of the samples that cause 90 % of the squared error, the worst first; empty if more than a
    quarter of all samples would be needed."""
    samples: int = 0
    """The number of samples of the output; 0 if it is not known."""
    nan_share: float = 0.0
    """The share of elements, 0 to 1, that are NaN in both baseline and candidate. Scores leave them out."""
    small: SmallSamples | None = None
    """The samples with far smaller values than other samples, if they miss a limit when judged alone.

    None if there are no such samples.
    """
    part_of: str = ""
    """The name of the output that this part belongs to, for example the boxes of a detector.

    Empty for a whole output.
    """
    preactivation: Preactivation | None = None
    """The input of the Softmax or Sigmoid that computes the output.

    None if no such operator computes it, if the tensor has a criterion of its own, or if it was not compared.
    """
    decisions: ChangedDecisions | None = None
    """The samples whose class in the candidate differs from that in the baseline; None if neither a criterion
    nor a metric of labels reads classes from this output."""

    @property
    def output(self) -> str:
        """The name of the model's whole output, even if this is the result of a part of it."""
        return self.part_of or self.name

    @property
    def passed(self) -> bool:
        """Whether the output has no problem and every score meets its limit."""
        return not self.problem and all(score.passed for score in self.scores)


@dataclass(frozen=True)
class FloatNan:
    """NaN in an output of the float baseline. No candidate can be compared with such an output."""

    output: str
    half: bool
    """Whether the baseline computes in FP16."""
    in_fp32: bool | None
    """Whether the output also holds NaN if the float model runs in FP32; None if that is not known."""
    node: str = ""
    """The first node of the float model whose output is NaN although no earlier node gave it NaN.

    The node is searched in FP32 on the first sample. Empty if the first sample gives no NaN.
    """
    op_type: str = ""
    """The operator of ``node``."""


@dataclass(frozen=True)
class Acceptance:
    """A score before and after this run wrote it into the golden file as accepted."""

    subject: str
    metric: str
    before: float | None
    """The accepted score before this run; None if there was none."""
    now: float | None
    """The accepted score after this run; None if it was removed."""


@dataclass(frozen=True)
class DeadCandidate:
    """Useless outputs, which no working model gives, but which meet all criteria of a case."""

    kind: DeadKind
    output: str = ""
    """The name of the output that was changed; empty if all outputs were changed."""
    scores: tuple[Score, ...] = ()
    """A few scores of the useless outputs that have a limit, the score nearest to its limit first."""

    @property
    def is_fatal(self) -> bool:
        """Whether the outputs are all zeros, or are the outputs of other samples.

        Criteria that accept such outputs prove nothing.
        """
        return self.kind in ("zeros", "shuffled")


@dataclass(frozen=True)
class ChanceMetric:
    """A metric of labels on which the baseline itself is no better than chance."""

    metric: str
    """The name of the metric as the spec writes it, like ``metrics.py:top1`` or ``top1``."""
    baseline: float
    """The metric's value on the baseline's outputs."""
    chance: float
    """The metric's value on the baseline's outputs shuffled between samples, the mean of a few shuffles."""
    as_well: bool
    """Whether the metric's value on useless outputs, like zeros, is as good as on the baseline's outputs."""

    @property
    def is_constant(self) -> bool:
        """Whether shuffling the outputs does not change the metric, and its value is not 0."""
        return self.baseline == self.chance != 0

    @property
    def is_users(self) -> bool:
        """Whether the metric is a function or class of the user, named ``file.py:name``."""
        return ":" in self.metric

    @property
    def is_reversed(self) -> bool:
        """Whether a user's metric is better for shuffled outputs than for the baseline's outputs.

        The criterion may then be wrong about whether greater or smaller values are better.
        """
        return self.is_users and self.as_well and self.baseline != self.chance


@dataclass(frozen=True)
class FittingMetric:
    """The built-in metric of labels that probably fits an output, guessed from the graph and the shapes."""

    metric: str
    """The name of the metric, as the spec writes it."""
    output: str = ""
    """The output that the metric judges; empty if the model has no other output."""
    axis: int | None = None
    """The axis of classes; None for the metric's own default."""
    decode: str = ""
    """The layout of the boxes, like ``yolov8``; empty if the output holds no boxes, or if a user's function
    must decode them."""


@dataclass(frozen=True)
class BlindSpots:
    """The result of trying the criteria of a case on useless outputs, made from the baseline's outputs."""

    undetected: tuple[DeadCandidate, ...] = ()
    at_chance: tuple[ChanceMetric, ...] = ()
    remedy: Score | None = None
    """A limit that rejects the useless outputs and that the candidate meets; None if none is known."""
    too_near: Score | None = None
    """The candidate's SQNR in dB with a limit that rejects the useless outputs, but also the candidate.

    None if the candidate meets such a limit, or if no limit was needed or found.
    """
    samples: int = 0
    """The number of samples on which the criteria were tried; 0 if it is not known."""
    metric: FittingMetric | None = None
    """The metric of labels that fits an output; None if the content of the outputs is not known."""

    @property
    def fatal_outputs(self) -> tuple[DeadCandidate, ...]:
        """The zeros and shuffled outputs that meet all criteria, so that a passing case proves nothing."""
        return tuple(dead for dead in self.undetected if dead.is_fatal)

    @property
    def beaten(self) -> tuple[ChanceMetric, ...]:
        """The metrics that are as good for zeros or shuffled outputs as for the baseline's outputs.

        A case that passes by such a metric proves nothing.
        """
        return tuple(metric for metric in self.at_chance if metric.as_well)

    @property
    def lost(self) -> Score | None:
        """The SQNR of an output of the candidate that even the default limit would reject; None if none."""
        near = self.too_near
        return near if near is not None and near.limit is not None and near.limit <= DEFAULT_SQNR_DB else None
