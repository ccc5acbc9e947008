"""Results of a diagnosis, as numbers and enumerations: stages, causes of accuracy loss, and remedies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pytest_int8acc.results.engines import Latency
from pytest_int8acc.results.evidence import Evidence
from pytest_int8acc.results.samples import WorstSample
from pytest_int8acc.results.scores import LineFit, Score

#: A stage: one form of the model, from the training framework's model to the TensorRT engine. Accuracy can be
#: lost between two stages.
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
#: The reason why a layer loses accuracy. ``overflow``, ``underflow`` and ``cancellation`` are causes in FP16
#: and BF16 only. ``rounding`` is a cause in all low formats.
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
    "int8-bias",
    "bias-shift",
    "other-values",
    "ignored-channel",
    "masked-range",
    "overflow",
    "underflow",
    "cancellation",
    "rounding",
]
#: A symptom that a tensor, its scale or the nodes around the tensor show. Each symptom belongs to one
#: ``CauseKind``.
Symptom = Literal[
    "range-too-wide",
    "cut-off",
    "one-sided",
    "vanishing-scale",
    "vanishing-weight-scale",
    "no-scale",
    "large-channels",
    "large-values",
    "needless-values",
    "stretched-range",
    "uneven-parts",
    "uneven-channels",
    "range-of-partner",
    "few-codes",
    "weight-scales-off",
    "coarse-channels",
    "scales-of-other-axis",
    "one-scale-for-channels",
    "large-weights",
    "large-idle-weights",
    "coarse-bias",
    "corrected-bias",
    "shifted-bias",
    "shifted-mean",
    "other-order",
    "other-codes",
    "ignored-channels",
    "masked-values",
    "quantized-inputs",
    "after-softmax",
    "after-gelu",
    "product-of-activations",
    "decoding",
    "noise-adds-up",
    "too-coarse",
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

#: Name of a number that describes a cause. ``NUMBERS`` in ``report/catalogue.py`` has its label and unit.
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
    "channel_db",
    "best_channel_db",
    "channel_gain_db",
    "gain_db",
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
    "shift_share",
    "unmasked_amax",
]


@dataclass(frozen=True)
class Histogram:
    """A histogram of the absolute values of one tensor."""

    edges: tuple[float, ...]
    """The edges of the bins in ascending order, one edge more than there are bins."""
    counts: tuple[int, ...]


#: The change that an ablation makes to a layer. ``activation``: one activation is not quantized.
#: ``constants``: the constants are not quantized. ``range``: the tensor has one scale that fits the data.
#: ``channels``: large channels have scales of their own. ``per-channel``: each channel has a scale.
#: ``in-use``: the scale fits only channels or weights that affect the outputs. ``unmasked``: the scale fits
#: the values without an attention mask. ``bias``: the bias makes up for the layer's mean error. ``fp32``:
#: FP32 replaces FP16 around the layer.
TakenKind = Literal[
    "activation", "constants", "range", "channels", "per-channel", "in-use", "unmasked", "bias", "fp32"
]


@dataclass(frozen=True)
class Ablation:
    """A trial that changes one property of a culprit. A culprit is a layer that must leave the low format.

    All other culprits are in high precision during the trial.
    """

    kind: TakenKind
    tensor: str
    """The activation that the ablation changes, or the noisiest of the constants that it changes; empty if it
    changes neither."""
    share: float
    """The culprit causes a squared error in the model's outputs. The change removes this share of that error,
    from 0 to 1."""
    met: bool
    """Whether the model met the criteria with this change, on the samples of the trial."""
    samples: int | None = None
    """The number of samples, if the trial ran on only some of them; None if it ran on all samples."""
    beyond: bool = False
    """Whether the change removes far more error than the culprit adds.

    Then the change also affects rounding in other layers, and ``share`` is not reliable.
    """
    alone: bool = False
    """Whether all other layers were in high precision during the trial. If False, the other culprits were in
    high precision, and the other layers in the low format."""


@dataclass(frozen=True)
class Cause:
    """The cause of a layer's accuracy loss in the low format, and the numbers that were measured."""

    kind: CauseKind
    symptom: Symptom
    tensor: str = ""
    """The tensor at fault; if no tensor is at fault, the noisiest tensor."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The measured numbers, like SQNR in dB. The keys are the names in ``NumberName``."""
    histogram: Histogram | None = None
    amax: float | None = None
    """The greatest absolute value of the tensor on the samples."""
    reach: float | None = None
    """The clipping range: the greatest absolute value that the scale of the tensor can express."""
    channels: Mapping[int, float] = field(default_factory=dict)
    """The channels at fault: index to greatest absolute value, the largest value first."""
    others: tuple[str, ...] = ()
    """Other tensors that explain the cause, for example a tensor that shares the scale, or tensors without a
    scale."""
    node: str = ""
    """The node where the loss arises, for example where two tensors meet; empty if it is no single node."""
    op_type: str = ""
    """The operator of ``node``; if ``node`` is empty, the operator of the layer's first node."""
    format: str = ""
    """The number format that cannot hold a scale or a value, or the type of the zero point."""
    ablation: Ablation | None = None
    """The ablation that confirms the cause; None if no ablation was tried, or if none confirmed the cause."""
    tried: tuple[Ablation, ...] = ()
    """All ablations of the layer, in the order in which they were tried."""
    masked: bool = False
    """Whether the greatest values are an attention mask. They make the scale too coarse for other values."""
    evidence: Evidence | None = None
    """The evidence for the cause, from an ablation or from the verdict; None if the cause is only a hint."""

    def showing(
        self,
        kind: CauseKind,
        symptom: Symptom,
        numbers: Mapping[NumberName, float] | None = None,
        **facts: Any,
    ) -> Cause:
        """Returns a copy of this cause with another kind and symptom.

        ``numbers`` are added to the cause's numbers, and ``facts`` replace fields of the cause.
        """
        merged = dict(self.numbers)
        merged.update((numbers or {}).items())
        return replace(self, kind=kind, symptom=symptom, numbers=merged, **facts)


@dataclass(frozen=True)
class OddRanges:
    """The dynamic ranges of a network, if most of them do not fit the values of their tensors."""

    count: int
    """The number of all dynamic ranges in the network."""
    wide: tuple[float, ...] = ()
    """For each range that is too wide, the ratio of the range to its tensor's greatest absolute value."""
    narrow: tuple[float, ...] = ()
    """For each range that is too narrow, the ratio of its tensor's greatest absolute value to the range."""
    by_hand: tuple[float, ...] = ()
    """The most frequent ranges, if many tensors share them, so that a user has probably set them by hand;
    otherwise empty."""
    method: str = ""
    """The calibration method; empty if the ranges were not calibrated in this run."""
    calibrated: tuple[float, ...] = ()
    """For each tensor in ``wide`` and ``narrow``, in this order, the ratio of the greatest value in the
    calibration data to the greatest value in the inputs; empty without a calibration."""


@dataclass(frozen=True)
class StageLine:
    """One stage, a form of the model between framework and engine, compared with an earlier stage."""

    name: Stage
    passed: bool
    evidence: Evidence
    """The model that ran for this stage, and its scores against the stage in ``against``.

    The cost is the cost of the whole verdict, because the models of all stages run together.
    """
    against: Stage
    """The earlier stage that this stage is compared with."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Output name to the reason, such as NaN, why the output fails whatever its scores are. Other outputs
    have no entry."""
    fits: Mapping[str, LineFit] = field(default_factory=dict)
    """Output name to the line fitted to the output. Only outputs that differ from the earlier stage by a
    factor or an offset have one. Empty if the stage passes."""
    together: Stage | None = None
    """An earlier stage against which this stage misses a limit, although each step from one stage to the next
    meets the limits. None if there is no such stage."""

    @property
    def scores(self) -> tuple[Score, ...]:
        """The scores of this stage against the stage in ``against``."""
        return self.evidence.scores


@dataclass(frozen=True)
class LayerError:
    """The error of one layer's output in the low format, against the baseline."""

    layer: str
    op_type: str
    sqnr_db: float
    """The SQNR of the layer's output, in dB, with all layers in the low format."""
    cosine: float
    alone_sqnr_db: float
    """The SQNR of the layer's output, in dB, with only this layer in the low format. It is free of the errors
    of earlier layers."""
    alone_cosine: float
    engine_sqnr_db: float | None = None
    """The SQNR of the layer's output in the candidate's TensorRT engine against the baseline's engine, in dB.

    None if it was not measured.
    """
    engine_cosine: float | None = None


@dataclass(frozen=True)
class Rescale:
    """A new scale for one tensor in place of its old scale."""

    tensor: str
    method: str
    old: float
    new: float


@dataclass(frozen=True)
class Migration:
    """A migration of range from activations into weights, as in SmoothQuant.

    Each channel of the activation is divided by a factor, and the weights that multiply the channel are
    multiplied by the factor.
    """

    alpha: float
    """The migration strength, from 0 to 1. 0 moves no range into the weights, 1 moves all of it."""
    folded: tuple[str, ...] = ()
    """Names of earlier nodes whose weights were divided by the migration factors."""
    inserted: tuple[str, ...] = ()
    """Names of Mul nodes that were inserted where no earlier node has weights to divide."""


#: The change that a remedy makes. ``unfuse``: extra outputs prevent fusions in the engine. ``fuse``: each
#: normalization that consists of several nodes becomes one node. ``method``: another calibration method for
#: all activations. ``biases``: biases without Q/DQ, or corrected by the mean error. ``recalibrate``: new
#: scales. ``migrate``: range is moved from activations into weights, with new scales. ``mixed``: new scales
#: for some culprits, high precision for other culprits. ``high``: high precision for all culprits.
#: ``faster``: high precision for layers that are slower in the low format.
RemedyKind = Literal[
    "unfuse", "fuse", "method", "biases", "recalibrate", "migrate", "mixed", "high", "faster"
]


@dataclass(frozen=True)
class Repair:
    """A remedy whose model was built and meets the criteria."""

    kind: RemedyKind
    layers: tuple[str, ...]
    """The layers that leave the low format; empty if no layer has to leave it."""
    rescales: tuple[Rescale, ...]
    evidence: Evidence
    """The model that was built for the remedy, and its scores."""
    verified: bool
    """Whether the model meets the criteria with a safety margin, also on held-out samples, on which no choice
    was based, and the samples are enough to prove each score."""
    price: float
    """The share of the model's multiply-accumulates that leaves the low format, from 0 to 1."""
    precision: str = "fp16"
    """The format of the layers that leave the low format."""
    culprits: int = 0
    """The number of layers that the plan of the search keeps in high precision."""
    weights: tuple[str, ...] = ()
    """The constants that get new scales, which are computed from the values of the constants."""
    biases: tuple[str, ...] = ()
    """The biases that are not quantized, and have the values of the float model."""
    corrected: tuple[str, ...] = ()
    """The biases that were changed so that they make up for the mean error of their layers."""
    migration: Migration | None = None
    method: str = ""
    """YAML for the spec's section ``calibrate`` that chooses another calibration method; empty if the remedy
    does not change the method."""
    data: str = ""
    """A description of the data from which the new scales were computed; empty if the scales were computed
    from the compared inputs."""
    latency: Latency | None = None
    """The latency of the remedy's engine; None if it was not timed."""
    outputs: tuple[str, ...] = ()
    """Tensors that the engine returns in addition to the model's outputs.

    TensorRT then does not fuse layers across these tensors.
    """
    fused: tuple[str, ...] = ()
    """For each normalization whose several nodes the remedy replaces by one node: the last of these nodes."""
    holds: bool = False
    """Whether the model met the criteria with a safety margin, so that it probably also meets them on other
    samples."""

    @property
    def scores(self) -> tuple[Score, ...]:
        """The scores of the model that was built for the remedy."""
        return self.evidence.scores


@dataclass(frozen=True)
class CalibrationLine:
    """A run of the case with all scales computed by one calibration method, and whether it passes."""

    method: str
    evidence: Evidence
    """The run of the case with the scales of this method, and its scores."""
    passed: bool

    @property
    def scores(self) -> tuple[Score, ...]:
        """The scores of the case with the scales of this method."""
        return self.evidence.scores


@dataclass(frozen=True)
class Jump:
    """A node that chooses among values, like TopK: a small error can change the choice completely."""

    node: str
    op_type: str
    tensors: tuple[str, ...]
    """The inputs of the node that decide the choice. They can be compared, but the node's outputs cannot."""
    outputs: tuple[str, ...] = ()
    """The judged outputs of the model that depend on the choice."""


@dataclass(frozen=True)
class AddedNode:
    """A node that a quantized model has, but the float model of its case does not have."""

    node: str
    op_type: str
    tensor: str = ""
    """The name of the node's first input."""
    to: str = ""
    """The data type to which a Cast node casts; empty for other operators."""
    changed: float | None = None
    """The share of elements that differ between the node's first input and its output, on the first sample.

    None if the shapes differ, or if the values are not known.
    """


@dataclass(frozen=True)
class OtherAttribute:
    """An attribute of a node with different values in two models; ``unset`` if a model does not set it."""

    name: str
    own: str
    """The value of the attribute in the float model, as text."""
    other: str
    """The value of the attribute in the quantized model, as text."""


@dataclass(frozen=True)
class OtherModel:
    """How a quantized model differs from the float model of its case, apart from rounding."""

    file: str
    """The path of the quantized model, as the spec has it."""
    key: str
    """The key of the spec that names the quantized model: ``int8`` or ``fp8``."""
    model: str
    """The path of the float model, as the spec has it."""
    weights: int
    """The number of weights that both models have."""
    differing: tuple[str, ...] = ()
    """The names of the weights whose values differ."""
    tensor: str = ""
    """The first tensor whose values differ between the two models if both run in FP32 on the first sample;
    empty if none differs."""
    op_type: str = ""
    """The operator that computes ``tensor`` in the float model."""
    made_by: str = ""
    """The operator that computes ``tensor`` in the quantized model; empty if it is the one in ``op_type``."""
    off: float = 0.0
    """The root mean square of the difference of ``tensor`` between the two models, divided by the root mean
    square of its values in the float model."""
    attributes: tuple[OtherAttribute, ...] = ()
    """The attributes of the node that computes ``tensor``, if they differ between the models."""
    operators: Mapping[str, int] = field(default_factory=dict)
    """Operator to the number of its nodes in the quantized model minus the number in the float model.
    Operators without a difference are left out."""
    added: AddedNode | None = None
    """The first node of the quantized model that the float model lacks; None if there is none."""

    @property
    def differs(self) -> bool:
        """Whether the two models differ in a weight, in the number of an operator's nodes, or in a tensor."""
        return bool(self.differing or self.operators or self.tensor)


@dataclass(frozen=True)
class ScaleTrials:
    """Trials with other scales, all layers staying in the low format, and how much loss they remove."""

    trials: int
    tensors: int
    """The number of activations that got other scales in the trials."""
    given_back: float
    """The part of the normalized loss that the best trial removed, from 0 to 1. The normalized loss is the
    loss divided by the loss that the limit allows."""
    samples: int
    """The number of samples on which the trials ran."""


@dataclass(frozen=True)
class SpeedTrial:
    """One plan that was built to get a faster engine."""

    layers: tuple[str, ...]
    """The layers that leave the low format."""
    share: float
    """The share of the model's multiply-accumulates that stays in the low format, from 0 to 1."""
    passed: bool | None
    """Whether the engine meets the criteria apart from its speed; None if it does not build or run."""
    latency: Latency | None = None
    """The latency of the engine, whose runs alternated with those of the baseline; None if not timed."""


@dataclass(frozen=True)
class SpeedSearch:
    """The search for a plan whose engine is faster than the candidate's."""

    limit: float
    """The minimum speedup against the baseline that a plan must reach."""
    baseline: Latency
    candidate: Latency
    losses: Mapping[str, float]
    """Layer to the time in ms that it takes longer in the candidate's engine than in the baseline's. Faster
    layers are left out. If a layer of an engine computes several layers, its time is divided among them."""
    trials: tuple[SpeedTrial, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """The result of a diagnosis: why the case fails, and which remedies meet its criteria."""

    met: bool | None = None
    """Whether the candidate meets its accuracy criteria.

    None if only remedies were tried, without a diagnosis.
    """
    stages: tuple[StageLine, ...] = ()
    first_stage: Stage | None = None
    """The first stage that misses a limit; None if no stage does."""
    ranges: OddRanges | None = None
    preprocessing_mismatch: str = ""
    """The rule whose finding shows a preprocessing mismatch that explains the failure; empty if there is no
    such finding."""
    fixed_pairs: tuple[str, ...] = ()
    """Names of Q/DQ nodes that stay in the model under every plan, so that no remedy removes them."""
    repairs: tuple[Repair, ...] = ()
    """The remedies that meet the criteria, the cheapest first."""
    layers: tuple[LayerError, ...] = ()
    calibrations: tuple[CalibrationLine, ...] = ()
    notes: tuple[str, ...] = ()
    jumps: tuple[Jump, ...] = ()
    """The nodes of the float model, such as TopK, that choose among values and that outputs depend on."""
    other_model: OtherModel | None = None
    """How the user's quantized model differs from the float model.

    None if it was not compared. It is compared if the criteria fail with all layers in high precision.
    """
    scales: ScaleTrials | None = None
    """Trials with other scales; None if no other scales were tried, or if the cause of a culprit is known."""
    speed: SpeedSearch | None = None
    """The search for a faster engine; None if the case is fast enough, or if nothing was searched."""
    worst: tuple[WorstSample, ...] = ()
    """The worst sample of each of a few failing outputs; empty if no report is written."""
