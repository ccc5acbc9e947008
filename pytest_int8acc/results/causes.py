"""Where and why INT8 loses accuracy, and what mends it; ``report/`` says it in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pytest_int8acc.results.engines import Latency
from pytest_int8acc.results.evidence import Evidence
from pytest_int8acc.results.samples import WorstSample
from pytest_int8acc.results.scores import LineFit, Score

_ModelStage = Literal["framework", "FP32 ONNX", "FP16", "Q/DQ in ONNX Runtime"]
_EngineStage = Literal["engine FP16", "engine FP32", "engine INT8", "implicit INT8"]
#: A step of the way from the framework to the INT8 engine.
Stage = Literal[_ModelStage, _EngineStage]
_OfScale = Literal["scale-too-wide", "saturation", "zero-point", "zero-scale", "missing-scale"]
_OfTensor = Literal["activation-outliers", "weight-outliers", "weight-scale", "wrong-axis"]
_OfRest = Literal["mismatched-scales", "sensitive-op", "accumulated-noise", "engine-only", "non-determinism"]
_OfLow = Literal["overflow", "underflow", "cancellation", "rounding"]
_OfFloat = Literal["fp16-around"]
CauseKind = Literal[_OfScale, _OfTensor, _OfRest, _OfFloat, _OfLow]
_Range = Literal["range-too-wide", "cut-off", "one-sided"]
_Scale = Literal["vanishing-scale", "vanishing-weight-scale", "no-scale"]
_Values = Literal["large-channels", "large-values", "stretched-range", "uneven-parts", "range-of-partner"]
_Codes = Literal["few-codes", "weight-scales-off", "scales-of-other-axis", "one-scale-for-channels"]
_Weight = Literal["large-weights", "large-idle-weights"]
_Place = Literal["quantized-inputs", "after-softmax", "after-gelu", "product-of-activations", "decoding"]
_Whole = Literal["noise-adds-up", "engine-differs", "engine-rounds", "within-noise", "fp16-around"]
_Beyond = Literal["beyond-range", "reads-beyond-range", "constant-beyond-range"]
_Vanishing = Literal["vanishing-values", "vanishing-constant"]
_Digits = Literal["cancelling", "needs-digits"]
_Low = Literal[_Beyond, _Vanishing, _Digits]
#: What a tensor, its scale or its surroundings show.
Symptom = Literal[_Range, _Scale, _Values, _Codes, _Weight, _Place, _Whole, _Low]


@dataclass(frozen=True)
class Histogram:
    """Absolute values of one tensor."""

    edges: tuple[float, ...]
    """One more than ``counts``."""
    counts: tuple[int, ...]


#: What was taken back. activation, constants: not quantized; range: one scale that fits the data; channels:
#: scales of their own for the large ones; per-channel: one for each; fp32: FP32 in place of FP16 around it.
TakenKind = Literal["activation", "constants", "range", "channels", "per-channel", "fp32"]


@dataclass(frozen=True)
class Ablation:
    """One thing about a culprit taken back by itself, other culprits out of INT8, and what came of it."""

    kind: TakenKind
    tensor: str
    """The activation; of several constants the noisiest; empty for all that surrounds the culprit."""
    share: float
    """Of the squared error that the culprit adds to the outputs, the part that went; 0 to 1."""
    met: bool
    """The outputs of the samples looked at met the criteria."""
    samples: int | None = None
    """How many were looked at, drawn at random; None: all."""
    beyond: bool = False
    """Far more went than the culprit adds: what else rounds decides as well, so the part means little."""
    alone: bool = False
    """All else was out of INT8, not other culprits only."""


@dataclass(frozen=True)
class Cause:
    """Why a group loses accuracy in INT8: what the guilty tensor shows, and what was measured of it."""

    kind: CauseKind
    symptom: Symptom
    """What was seen."""
    tensor: str = ""
    """The guilty tensor; the noisiest one where none is guilty."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """SQNR in dB, shares and factors by name."""
    histogram: Histogram | None = None
    amax: float | None = None
    """Greatest absolute value seen."""
    reach: float | None = None
    """Greatest absolute value that the scale can express: 127 steps."""
    channels: Mapping[int, float] = field(default_factory=dict)
    """Channels at fault with their greatest absolute values, the largest first."""
    others: tuple[str, ...] = ()
    """Other tensors that explain it: the one whose scale is shared, those that lack a scale."""
    node: str = ""
    """The node where tensors meet or values are made."""
    op_type: str = ""
    """Of that node, or of the group's leader."""
    format: str = ""
    """The number format that does not hold the scale, or the type of the zero point."""
    ablation: Ablation | None = None
    """What shows the cause; None where nothing was tried, or told nothing."""
    tried: tuple[Ablation, ...] = ()
    """All that was taken back, in order."""
    masked: bool = False
    """The few greatest values are a mask, and all that INT8 keeps."""
    evidence: Evidence | None = None
    """The trial, or the verdict, that shows the cause; None: the cause is a hint."""

    def showing(
        self, kind: CauseKind, symptom: Symptom, numbers: Mapping[str, float] | None = None, **facts: Any
    ) -> Cause:
        """The same tensor as a cause of this kind, with further numbers and fields."""
        merged = {**self.numbers, **(numbers or {})}
        return replace(self, kind=kind, symptom=symptom, numbers=merged, **facts)


@dataclass(frozen=True)
class OddRanges:
    """Dynamic ranges of a network, most of which do not fit what their tensors hold."""

    count: int
    """Of all ranges."""
    wide: tuple[float, ...] = ()
    """Of those too wide, what they express over what their tensors reach."""
    narrow: tuple[float, ...] = ()
    """Of those too narrow, what their tensors reach over what they express."""
    by_hand: tuple[float, ...] = ()
    """The values they take most often, where these are few for so many tensors, as if set by hand."""


@dataclass(frozen=True)
class StageLine:
    """One step of the way from the framework to the INT8 engine, compared with a step before."""

    name: Stage
    passed: bool
    scores: tuple[Score, ...]
    against: Stage
    """The step before that it was compared with."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Why outputs fail whatever their scores, by name."""
    fits: Mapping[str, LineFit] = field(default_factory=dict)
    """Where it fails: the outputs that lie on another line than the step before, by name."""
    together: Stage | None = None
    """The step that it leaves by more than the limit though no step between them does; None elsewhere."""


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


#: How a remedy changes the model. unfuse: more outputs break up fusions of the engine. fuse: norms that are
#: spelled out in parts become one node each. recalibrate: other scales. migrate: range moved into weights,
#: and other scales. mixed: other scales for some culprits, high precision for others. high: high precision
#: for all culprits.
RemedyKind = Literal["unfuse", "fuse", "recalibrate", "migrate", "mixed", "high"]


@dataclass(frozen=True)
class Repair:
    """A remedy that was built and meets the criteria."""

    kind: RemedyKind
    layers: tuple[str, ...]
    """Layers that leave INT8; empty where none has to."""
    rescales: tuple[Rescale, ...]
    evidence: Evidence
    """The build that met the criteria, with its scores."""
    verified: bool
    """It met them with a reserve: it would on other samples like these."""
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
    outputs: tuple[str, ...] = ()
    """Tensors that the engine gives beside the model's outputs, so that nothing is fused across them."""
    fused: tuple[str, ...] = ()
    """Last nodes of norms in parts that become one node each."""

    @property
    def scores(self) -> tuple[Score, ...]:
        """The scores of the model that was built."""
        return self.evidence.scores


@dataclass(frozen=True)
class CalibrationLine:
    """One calibration method for the whole case."""

    method: str
    scores: tuple[Score, ...]
    passed: bool


@dataclass(frozen=True)
class Jump:
    """A node that turns small errors into jumps: what it chooses by can be compared, what it gives cannot."""

    node: str
    op_type: str
    tensors: tuple[str, ...]
    """What it chooses by."""
    outputs: tuple[str, ...] = ()
    """What is judged behind it."""


@dataclass(frozen=True)
class Diagnosis:
    """Why a case fails, and what mends it."""

    met: bool | None = None
    """INT8 meets its criteria of accuracy; None where a case was mended without a diagnosis."""
    stages: tuple[StageLine, ...] = ()
    first_stage: Stage | None = None
    """The first stage that leaves its limit; None where none does."""
    ranges: OddRanges | None = None
    preprocessing_mismatch: str = ""
    """Rule of the finding that tells what is wrong with the calibration data; empty where none counts."""
    fixed_pairs: tuple[str, ...] = ()
    """Q/DQ nodes that no plan takes off."""
    repairs: tuple[Repair, ...] = ()
    """Those that meet the criteria, cheapest first."""
    layers: tuple[LayerError, ...] = ()
    calibrations: tuple[CalibrationLine, ...] = ()
    notes: tuple[str, ...] = ()
    jumps: tuple[Jump, ...] = ()
    """Where the float model chooses among values, on the way to its outputs."""
    worst: tuple[WorstSample, ...] = ()
    """The worst sample of each of a few outputs that fail; none where no report is written."""
