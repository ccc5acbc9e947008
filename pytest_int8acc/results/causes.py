"""Where and why a case loses accuracy, and what mends it, as numbers and enumerations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pytest_int8acc.results.engines import Latency
from pytest_int8acc.results.evidence import Evidence
from pytest_int8acc.results.samples import WorstSample
from pytest_int8acc.results.scores import LineFit, Score

#: A step on the way from the framework to the engine.
Stage = Literal[
    "framework",
    "FP32 ONNX",
    "FP16",
    "Q/DQ in ONNX Runtime",
    "engine FP16",
    "engine FP32",
    "engine INT8",
    "implicit INT8",
]
#: Why a layer loses accuracy. The last four are causes in FP16 and BF16.
CauseKind = Literal[
    "scale-too-wide",
    "saturation",
    "zero-point",
    "zero-scale",
    "missing-scale",
    "activation-outliers",
    "weight-outliers",
    "weight-scale",
    "wrong-axis",
    "mismatched-scales",
    "sensitive-op",
    "accumulated-noise",
    "engine-only",
    "non-determinism",
    "fp16-around",
    "overflow",
    "underflow",
    "cancellation",
    "rounding",
]
#: What a tensor, its scale or the nodes around it show. Each symptom belongs to one kind of cause.
Symptom = Literal[
    "range-too-wide",
    "cut-off",
    "one-sided",
    "vanishing-scale",
    "vanishing-weight-scale",
    "no-scale",
    "large-channels",
    "large-values",
    "stretched-range",
    "uneven-parts",
    "range-of-partner",
    "few-codes",
    "weight-scales-off",
    "scales-of-other-axis",
    "one-scale-for-channels",
    "large-weights",
    "large-idle-weights",
    "quantized-inputs",
    "after-softmax",
    "after-gelu",
    "product-of-activations",
    "decoding",
    "noise-adds-up",
    "engine-differs",
    "engine-rounds",
    "within-noise",
    "fp16-around",
    "beyond-range",
    "reads-beyond-range",
    "constant-beyond-range",
    "vanishing-values",
    "vanishing-constant",
    "cancelling",
    "needs-digits",
]

#: A number that was measured of a cause. ``NUMBERS`` in ``report/catalogue.py`` has its label and its unit.
NumberName = Literal[
    "share",
    "lost",
    "sqnr_db",
    "best_sqnr_db",
    "lost_db",
    "clipped",
    "clipped_energy",
    "factor",
    "factor_least",
    "factor_most",
    "best_factor",
    "low",
    "high",
    "zero_point",
    "codes_used",
    "codes_left",
    "smallest",
    "scale",
    "least_scale",
    "scales",
    "scales_off",
    "channel_gain_db",
    "channel_ratio",
    "channel_amax",
    "usual_channel_db",
    "other_amax",
    "axis",
    "axis_of_scales",
    "p99",
    "p99.9",
    "p99.99",
    "partner_amax",
    "amax_in_use",
]


@dataclass(frozen=True)
class Histogram:
    """A histogram of the absolute values of one tensor."""

    edges: tuple[float, ...]
    """The edges of the bins, one more than ``counts``."""
    counts: tuple[int, ...]


#: What an ablation changes. activation, constants: they are not quantized. range: the tensor has one scale
#: that fits the data. channels: the large channels have scales of their own. per-channel: each channel has a
#: scale. fp32: FP32 replaces FP16 around the layer.
TakenKind = Literal["activation", "constants", "range", "channels", "per-channel", "fp32"]


@dataclass(frozen=True)
class Ablation:
    """A trial that changes one thing about a culprit, with the other culprits in high precision."""

    kind: TakenKind
    tensor: str
    """The activation, or the noisiest of several constants; empty if the trial changes no tensor."""
    share: float
    """The part of the culprit's squared error in the outputs that the change removes, from 0 to 1."""
    met: bool
    """Whether the outputs of the samples met the criteria."""
    samples: int | None = None
    """The number of samples, drawn at random; None if all were used."""
    beyond: bool = False
    """Whether far more error went than the culprit adds. Then other rounding plays a part, and ``share``
    means little."""
    alone: bool = False
    """Whether all other layers were in high precision, and not only the other culprits."""


@dataclass(frozen=True)
class Cause:
    """Why a group loses accuracy in the low format, and what was measured."""

    kind: CauseKind
    symptom: Symptom
    tensor: str = ""
    """The tensor at fault, or the noisiest one if none is."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The numbers that were measured, like SQNR in dB, by their names in ``report/catalogue.py``."""
    histogram: Histogram | None = None
    amax: float | None = None
    """The greatest absolute value of the tensor on the samples."""
    reach: float | None = None
    """The greatest absolute value that the scale can express."""
    channels: Mapping[int, float] = field(default_factory=dict)
    """The channels at fault with their greatest absolute values, the largest first."""
    others: tuple[str, ...] = ()
    """Other tensors that explain the cause: one that shares the scale, or those that lack a scale."""
    node: str = ""
    """The node where tensors meet or values are made."""
    op_type: str = ""
    """The operator of ``node``, or of the group's first node."""
    format: str = ""
    """The number format that cannot hold a scale or a value, or the type of the zero point."""
    ablation: Ablation | None = None
    """The trial that shows the cause; None if none was made, or none showed anything."""
    tried: tuple[Ablation, ...] = ()
    """All trials about the layer, in order."""
    masked: bool = False
    """Whether the few greatest values are an attention mask, beside which other values lose their codes."""
    evidence: Evidence | None = None
    """The trial or the verdict that shows the cause; None if the cause is only a hint."""

    def showing(
        self,
        kind: CauseKind,
        symptom: Symptom,
        numbers: Mapping[NumberName, float] | None = None,
        **facts: Any,
    ) -> Cause:
        """Returns a cause of another kind about the same tensor, with further numbers and fields."""
        merged = dict(self.numbers)
        merged.update((numbers or {}).items())
        return replace(self, kind=kind, symptom=symptom, numbers=merged, **facts)


@dataclass(frozen=True)
class OddRanges:
    """The dynamic ranges of a network, if most of them do not fit the values of their tensors."""

    count: int
    """The number of all ranges."""
    wide: tuple[float, ...] = ()
    """For each range that is too wide, the range over the greatest value of its tensor."""
    narrow: tuple[float, ...] = ()
    """For each range that is too narrow, the greatest value of its tensor over the range."""
    by_hand: tuple[float, ...] = ()
    """The most frequent ranges, if many tensors share a few of them, as in ranges set by hand."""


@dataclass(frozen=True)
class StageLine:
    """One step on the way from the framework to the engine, compared with an earlier one."""

    name: Stage
    passed: bool
    evidence: Evidence
    """What ran for this stage, with its scores against the step before. The cost is that of the verdict, for
    which all stages ran side by side."""
    against: Stage
    """The earlier step that it was compared with."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Why outputs fail whatever their scores, by the name of the output."""
    fits: Mapping[str, LineFit] = field(default_factory=dict)
    """If the step fails, the line fits of the outputs that differ by a factor or an offset, by name."""
    together: Stage | None = None
    """The step against which it misses a limit, although no single step between the two does; else None."""

    @property
    def scores(self) -> tuple[Score, ...]:
        """The scores against the step before."""
        return self.evidence.scores


@dataclass(frozen=True)
class LayerError:
    """The error of one group's output against the baseline."""

    layer: str
    op_type: str
    sqnr_db: float
    """The SQNR with all groups in the low format."""
    cosine: float
    alone_sqnr_db: float
    """The SQNR with this group alone in the low format: its own error, without that of earlier groups."""
    alone_cosine: float
    engine_sqnr_db: float | None = None
    """The SQNR between TensorRT engines with all groups in the low format; None if they do not show it."""
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
    """How much of the spread between an activation's channels moves into the weights, from 0 to 1."""
    folded: tuple[str, ...] = ()
    """Earlier nodes whose weights were divided by the factors."""
    inserted: tuple[str, ...] = ()
    """Mul nodes that were inserted where no earlier node could take the factors."""


#: How a remedy changes the model. unfuse: more outputs break up fusions of the engine. fuse: norms that
#: consist of several nodes become one node each. recalibrate: other scales. migrate: range moved into
#: weights, and other scales. mixed: other scales for some culprits, high precision for others. high: high
#: precision for all culprits.
RemedyKind = Literal["unfuse", "fuse", "recalibrate", "migrate", "mixed", "high"]


@dataclass(frozen=True)
class Repair:
    """A remedy that was built and meets the criteria."""

    kind: RemedyKind
    layers: tuple[str, ...]
    """The layers that leave the low format; empty if none has to."""
    rescales: tuple[Rescale, ...]
    evidence: Evidence
    """The build that met the criteria, with its scores."""
    verified: bool
    """Whether it met the criteria with a reserve, so that it would also meet them on other samples."""
    price: float
    """The share of the multiply-accumulates that leaves the low format."""
    precision: str = "fp16"
    """The format of the layers that leave the low format."""
    culprits: int = 0
    """The number of layers that the search found."""
    weights: tuple[str, ...] = ()
    """The constants that get new scales from their values."""
    migration: Migration | None = None
    data: str = ""
    """The calibration data of the new scales; empty if they come from the compared inputs."""
    latency: Latency | None = None
    """The latency of its engine; None if it was not timed."""
    outputs: tuple[str, ...] = ()
    """Tensors that the engine returns in addition to the model's outputs, so that it does not fuse across
    them."""
    fused: tuple[str, ...] = ()
    """The last node of each norm that consists of several nodes and becomes one node."""

    @property
    def scores(self) -> tuple[Score, ...]:
        """The scores of the model that was built."""
        return self.evidence.scores


@dataclass(frozen=True)
class CalibrationLine:
    """The whole case, calibrated by one method."""

    method: str
    evidence: Evidence
    """The run of the case with the scales of this method, with its scores."""
    passed: bool

    @property
    def scores(self) -> tuple[Score, ...]:
        """The scores of the case with the scales of this method."""
        return self.evidence.scores


@dataclass(frozen=True)
class Jump:
    """A node that chooses among values, like TopK, and so turns small errors into jumps."""

    node: str
    op_type: str
    tensors: tuple[str, ...]
    """The inputs that decide the choice. They can be compared, while the outputs of the node cannot."""
    outputs: tuple[str, ...] = ()
    """The judged outputs of the model that depend on the choice."""


@dataclass(frozen=True)
class Diagnosis:
    """Why a case fails, and what mends it."""

    met: bool | None = None
    """Whether the candidate meets its criteria of accuracy; None if a case was mended without a diagnosis."""
    stages: tuple[StageLine, ...] = ()
    first_stage: Stage | None = None
    """The first stage that misses a limit; None if none does."""
    ranges: OddRanges | None = None
    preprocessing_mismatch: str = ""
    """The rule of the finding that explains the failure by the preparation of the data; else empty."""
    fixed_pairs: tuple[str, ...] = ()
    """Q/DQ nodes that no plan removes."""
    repairs: tuple[Repair, ...] = ()
    """The remedies that meet the criteria, the cheapest first."""
    layers: tuple[LayerError, ...] = ()
    calibrations: tuple[CalibrationLine, ...] = ()
    notes: tuple[str, ...] = ()
    jumps: tuple[Jump, ...] = ()
    """The nodes of the float model that choose among values on the way to its outputs."""
    worst: tuple[WorstSample, ...] = ()
    """The worst sample of each of a few outputs that fail; empty if no report is written."""
