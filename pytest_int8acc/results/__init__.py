"""What was measured, as frozen dataclasses of plain numbers; verdicts can be drawn again from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from pytest_int8acc.results.causes import Cause, OddRanges, Stage

Bound = Literal["min", "max"]
#: What a layer of an engine computes in.
LayerKind = Literal["weighted", "qdq", "reformat", "other"]
Kind = Literal["int8", "fp8", "fp16", "bf16", "fp32", "other"]
Severity = Literal["error", "warning", "note"]
#: Why a search ended. proven: each group kept high, sent back to INT8 alone, fails. int8-passes: nothing has
#: to leave INT8. high-fails: INT8 is not the cause. plan-fails: the plan to certify does. first, last, worst,
#: visited: the strategy is through, with the first or last groups high, those that add most error, or some.
EndingKind = Literal[
    "proven",
    "int8-passes",
    "high-fails",
    "plan-fails",
    "first",
    "last",
    "worst",
    "visited",
    "trials-spent",
    "seconds-spent",
    "interrupted",
    "told",
]
#: Of a line: INT8 is one value, small or large by a factor, or shifted.
Meaning = Literal["constant", "small", "large", "shifted"]


class Role(str, Enum):
    """What a form of a case is run as."""

    BASELINE = "baseline"
    BASELINE_AGAIN = "baseline again"
    INT8 = "INT8"
    FIXED = "fixed"
    FP32 = "FP32"
    FP16 = "FP16"
    SIMULATED = "simulated"
    IMPLICIT = "implicit"

    __str__ = str.__str__


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

    @property
    def name(self) -> str:
        """Subject and metric; a user's function stands for itself."""
        return score_name(self.subject, self.metric)

    @property
    def passed(self) -> bool:
        """True where there is no limit, or the value keeps it; nan never passes a limit."""
        if self.limit is None:
            return True
        return self.value >= self.limit if self.bound == "min" else self.value <= self.limit

    @property
    def margin(self) -> float | None:
        """Distance to the limit, positive where it is kept."""
        if self.limit is None:
            return None
        return self.value - self.limit if self.bound == "min" else self.limit - self.value

    @property
    def strain(self) -> float:
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
        sign = 1.0 if self.bound == "min" else -1.0
        known = self.baseline is not None and math.isfinite(self.baseline)
        perfect = self.baseline if known and self.baseline is not None else max(sign, 0.0)
        if not known and perfect < self.limit * sign:  # a speedup, say: no value is the best
            perfect, used, allowed = 0.0, self.limit, self.value
        else:
            used, allowed = sign * (perfect - self.value), sign * (perfect - self.limit)
        if allowed > 0:
            return consistent(max(used, 0.0) / allowed, self.passed)
        return consistent(math.inf if used > 0 else 0.0, self.passed)

    @property
    def limit_in_noise(self) -> bool:
        """True where the baseline, compared with itself, would not keep the limit either."""
        if self.limit is None or self.noise is None:
            return False
        if self.baseline is not None:  # a user's metric: noise is a difference of values
            return self.noise > abs(self.baseline - self.limit)
        return self.noise < self.limit if self.bound == "min" else self.noise > self.limit


def score_name(subject: str, metric: str) -> str:
    """Like ``logits cosine``; a user's function ``metrics.py:top1`` stands for itself."""
    return subject if subject.endswith(f":{metric}") else f"{subject} {metric}"


def consistent(strain: float, passed: bool) -> float:
    """``strain`` on the side of 1 that the verdict says, where rounding has put it on the other."""
    return min(strain, 1.0) if passed else max(strain, math.nextafter(1.0, 2.0))


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
    told: str = ""
    """The sentence of a report of version 1; empty in others."""


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

    @property
    def passed(self) -> bool:
        """True where no problem stands and every limit is kept."""
        return not self.problem and all(score.passed for score in self.scores)


@dataclass(frozen=True)
class EngineLayer:
    """One layer of a built engine, as its inspector tells."""

    name: str
    nodes: tuple[str, ...]
    """The ONNX nodes that were fused into it; empty for what TensorRT adds."""
    kind: LayerKind
    """qdq: a Quantize or Dequantize that stands alone."""
    precision: Kind


@dataclass(frozen=True)
class Latency:
    """Time of one execution on the device, without copies."""

    median_ms: float
    low_ms: float
    """The 10th percentile."""
    high_ms: float
    """The 90th percentile."""
    runs: int


@dataclass(frozen=True)
class EngineInfo:
    """One engine of a case, as built."""

    role: Role
    description: str
    build_seconds: float
    """0 where it was not built in this run."""
    stored: bool
    """True where it came from the engine store."""
    nbytes: int
    layers: tuple[EngineLayer, ...] = ()
    """Empty where the engine does not tell."""
    latency: Latency | None = None
    untold: int = 0
    """Convolutions and matrix products in fused regions of which the engine tells nothing."""

    @property
    def weighted(self) -> int:
        """Layers with weights, as far as the engine tells them."""
        return sum(layer.kind == "weighted" for layer in self.layers)

    @property
    def int8(self) -> int:
        """Layers with weights that run in INT8."""
        return sum(layer.kind == "weighted" and layer.precision == "int8" for layer in self.layers)

    @property
    def int8_share(self) -> tuple[float, float]:
        """At least and at most how much of the layers with weights runs in INT8; nan where none is known."""
        every = self.weighted + self.untold
        return (self.int8 / every, (self.int8 + self.untold) / every) if every else (math.nan, math.nan)

    def count(self, kind: str) -> int:
        """Layers of a kind."""
        return sum(layer.kind == kind for layer in self.layers)


@dataclass(frozen=True)
class Finding:
    """Something wrong, or suspicious, that was seen without running INT8."""

    rule: str
    """Short name, like ``nonzero-zero-point``."""
    subject: str
    """The node, tensor or input."""
    text: str
    """What is so, and its consequence."""
    remedy: str
    severity: Severity
    source: Literal["lint", "data"] = "lint"


@dataclass(frozen=True)
class Culprit:
    """A group of the plan found: it must leave INT8."""

    layer: str
    """The ONNX node that leads the group."""
    op_type: str
    nodes: tuple[str, ...]
    worst_alone: Score | None
    """The judged score nearest to its limit, or farthest beyond it, when this group alone runs in INT8."""
    price: float
    """Its multiply-accumulates, as a share of those of all groups."""
    cause: Cause | None = None
    told: str = ""
    """What a report of version 1 says of it alone in INT8; empty in others."""


@dataclass(frozen=True)
class TrialLine:
    """One plan that a search tried."""

    high: tuple[str, ...]
    passed: bool
    loss: float
    """The worst criterion's, 1 at the limit."""
    cost: float
    """In runs over all samples."""
    why: str


@dataclass(frozen=True)
class LayerLine:
    """A line of the layer analyzer's table (strategy ``forward``)."""

    index: int
    layer: str
    shape: str
    similarity: float
    chosen: bool
    line: str


@dataclass(frozen=True)
class Ending:
    """Why a search ended, and the numbers that go with it."""

    kind: EndingKind
    high: int = 0
    """Groups kept high."""
    groups: int = 0
    """Of so many."""
    max_trials: int = 0
    """The budget of trials, where that was spent."""
    max_seconds: float = 0.0
    """The budget of time, where that was spent."""
    told: str = ""
    """The sentence of a report of version 1; empty in others."""

    @property
    def early(self) -> bool:
        """True where a budget or Ctrl-C ended the search before the strategy did."""
        return self.kind in ("trials-spent", "seconds-spent", "interrupted")


@dataclass(frozen=True)
class Certificate:
    """What came of proving a plan by built models alone."""

    builds: int
    passed: bool
    """Each culprit, sent back to INT8 in a built model, breaks the criteria."""
    ending: Ending


@dataclass(frozen=True)
class SearchOutcome:
    """What a precision search found, and what came of building it."""

    strategy: str
    precision: str
    """What the culprits run in instead of INT8."""
    culprits: tuple[Culprit, ...]
    found: bool
    """The plan met the criteria in the search."""
    minimal: bool
    """Each culprit, sent back to INT8, breaks the criteria."""
    verified: bool
    """The fixed model was built and run by the case's own backend, on all samples, and met the criteria."""
    fixed: tuple[Score, ...]
    """The fixed model's scores; empty where none was built."""
    ending: Ending
    trials: tuple[TrialLine, ...]
    probes: int
    cost: float
    """Trials and probes together, in runs over all samples."""
    builds: int
    seconds: float
    int8_share: float
    """Share of the multiply-accumulates of all groups that stays in INT8."""
    held_out: int
    """Samples that the search did not see and the proof did."""
    notes: tuple[str, ...] = ()
    table: tuple[LayerLine, ...] = ()
    price_ms: float | None = None
    """The fixed engine's median latency less the INT8 engine's; None where no engine was timed."""
    certificate: Certificate | None = None
    """None where none was wanted, or there was nothing to certify."""
    fixed_pairs: tuple[str, ...] = ()
    """DequantizeLinear nodes that are part of every plan: blocked, FP8, INT4, or no pair."""


@dataclass(frozen=True)
class StageLine:
    """One step of the way from the framework to the INT8 engine, compared with a step before."""

    name: Stage
    passed: bool
    scores: tuple[Score, ...]
    against: Stage | None = None
    """The step before that it was compared with; None in a report of version 1."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Why outputs fail whatever their scores, by name."""
    fits: Mapping[str, LineFit] = field(default_factory=dict)
    """Where it fails: the outputs that lie on another line than the step before, by name."""
    together: Stage | None = None
    """The step that it leaves by more than the limit though no step between them does; None elsewhere."""
    told: str = ""
    """The sentence of a report of version 1; empty in others."""


@dataclass(frozen=True)
class LayerError:
    """The error of one group's output against the baseline."""

    layer: str
    op_type: str
    sqnr_db: float
    """With everything in INT8."""
    cosine: float
    alone_sqnr_db: float
    """With this group alone in INT8: the error made here, without the error passed on."""
    alone_cosine: float
    engine_sqnr_db: float | None = None
    """With everything in INT8, between engines of TensorRT; None where they do not show it."""
    engine_cosine: float | None = None


@dataclass(frozen=True)
class Rescale:
    """Another scale for one tensor."""

    tensor: str
    method: str
    old: float
    new: float


@dataclass(frozen=True)
class Migration:
    """Range moved from the channels of activations into the weights that read them."""

    alpha: float
    """How much of an activation's spread goes to the weights."""
    folded: tuple[str, ...] = ()
    """Nodes that took factors."""
    inserted: tuple[str, ...] = ()
    """Mul nodes that had to be inserted."""


@dataclass(frozen=True)
class Repair:
    """A way to meet the criteria, dearest last."""

    kind: Literal["recalibrate", "migrate", "mixed", "high"]
    """mixed: some layers recalibrated, some high."""
    layers: tuple[str, ...]
    """Layers that leave INT8; empty where none has to."""
    rescales: tuple[Rescale, ...]
    scores: tuple[Score, ...]
    verified: bool
    price: float
    """Share of the multiply-accumulates that leaves INT8."""
    precision: str = "fp16"
    """What layers run in that leave INT8."""
    culprits: int = 0
    """Layers that the search found."""
    weights: tuple[str, ...] = ()
    """Constants whose scales are taken from their values anew."""
    migration: Migration | None = None
    data: str = ""
    """The calibration data that ranges come from; empty: the compared inputs themselves."""
    latency: Latency | None = None
    """Of its engine; None where it was not timed."""
    told: str = ""
    """The sentence of a report of version 1; empty in others."""


@dataclass(frozen=True)
class CalibrationLine:
    """One calibration method for the whole case."""

    method: str
    scores: tuple[Score, ...]
    passed: bool


@dataclass(frozen=True)
class Diagnosis:
    """Why a case fails, and what mends it."""

    met: bool | None = None
    """INT8 meets its criteria of accuracy; None where a case was mended without a diagnosis."""
    stages: tuple[StageLine, ...] = ()
    first_stage: Stage | None = None
    """The first stage that leaves its limit; None where none does."""
    ranges: OddRanges | None = None
    slip: str = ""
    """Rule of the finding that tells what is wrong with the calibration data; empty where none counts."""
    fixed_pairs: tuple[str, ...] = ()
    """DequantizeLinear nodes that no plan takes off."""
    repairs: tuple[Repair, ...] = ()
    """Those that meet the criteria, cheapest first."""
    layers: tuple[LayerError, ...] = ()
    calibrations: tuple[CalibrationLine, ...] = ()
    notes: tuple[str, ...] = ()
    told: str = ""
    """The summary of a report of version 1; empty in others."""


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
class CaseResult:
    """One case, measured."""

    name: str
    spec: str
    samples: int
    data: str
    """Where the inputs come from, in words."""
    baseline: str
    candidate: str
    backend: str
    """Runtime, version, device and mode."""
    outputs: tuple[OutputResult, ...]
    metrics: tuple[Score, ...] = ()
    int8_groups: int = 0
    high_groups: int = 0
    warnings: tuple[str, ...] = ()
    """What makes the verdict worth less than it looks; shown even where the case passes."""
    notes: tuple[str, ...] = ()
    """What the reader must know to trust the verdict: random data, coverage, noise, FP16 against FP32."""
    seconds: float = 0.0
    search: SearchOutcome | None = None
    """What a search found, where one was run."""
    written: tuple[str, ...] = ()
    """Files of the report folder."""
    engines: tuple[EngineInfo, ...] = ()
    """Engines of TensorRT; empty on ONNX Runtime."""
    findings: tuple[Finding, ...] = ()
    """What lint and a look at the data found."""
    diagnosis: Diagnosis | None = None
    golden: str = ""
    """How the case stands to its golden, in words; empty where it has none."""
    recorded: tuple[Acceptance, ...] | None = None
    """What the golden that this run wrote accepts; None where it wrote none."""

    @property
    def answer(self) -> Repair | None:
        """The way to meet the criteria that is recommended; its files lead the report folder."""
        return self.diagnosis.repairs[0] if self.diagnosis and self.diagnosis.repairs else None

    @property
    def fixed(self) -> tuple[Score, ...]:
        """Scores of the answer; of the search's own plan where there is none."""
        if self.answer is not None:
            return self.answer.scores
        return self.search.fixed if self.search else ()

    @property
    def scores(self) -> tuple[Score, ...]:
        """All scores, outputs first."""
        return tuple(s for output in self.outputs for s in output.scores) + self.metrics

    @property
    def passed(self) -> bool:
        """True where every output and every metric passes."""
        return all(output.passed for output in self.outputs) and all(score.passed for score in self.metrics)
