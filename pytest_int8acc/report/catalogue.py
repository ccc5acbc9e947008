"""All texts about the kinds of causes, stages and other facts in a result: one table row for each kind.

A text is a template of ``str.format``. ``{format}`` is the low-precision format of the case: ``INT8``,
``FP8``, ``FP16`` or ``BF16``. The other names in a template are facts, which the caller fills in:
``report/why.py`` fills in the facts of symptoms and causes, ``report/cautions.py`` those of cautions, and
``report/fixes.py`` those of fixes.

A kind is a value of a literal type or enumeration in ``results/``, such as ``CauseKind``. A new kind needs a
row in each table of its type. A row needs every field of its class that has no default. mypy reports a
missing field. ``tests/report/test_catalogue.py`` reports a missing row, an empty text, and a fact that no
caller fills in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pytest_int8acc.results import Part, PhaseName
from pytest_int8acc.results.causes import CauseKind, Stage, Symptom, TakenKind
from pytest_int8acc.results.course import StopKind
from pytest_int8acc.results.scores import DeadKind, Meaning
from pytest_int8acc.results.search import EndingKind


@dataclass(frozen=True)
class SymptomWords:
    """The texts of reports about one symptom, a sign of lost accuracy in a tensor or in the graph."""

    clause: str
    """The symptom in a few words, without the name of a tensor. It follows the name of a layer in the same
    line."""
    sentence: str
    """A sentence about the symptom, with the names of tensors and with numbers."""
    advice: str = ""
    """The advice to the user. If empty, the advice on the kind of cause is shown."""


@dataclass(frozen=True)
class CauseWords:
    """The texts of reports about one kind of cause of lost accuracy."""

    plural: str
    """The name of the kind of cause in the plural, for reports on several layers with this kind of cause."""
    advice: str
    """The advice to the user on a layer with this kind of cause."""


@dataclass(frozen=True)
class StageWords:
    """The texts of reports about one stage: a form of a model between the framework and the engine."""

    title: str
    meaning: str
    """What it means for the model if this stage is the first one that misses a limit."""
    advice: str
    """The advice to the user if this stage is the first one that misses a limit; empty if the report names
    layers at fault instead."""


@dataclass(frozen=True)
class FitWords:
    """The texts of reports about one way in which an output differs from the baseline's, such as by a factor.

    A line is fitted to the output's values as a function of the baseline's values. The slope and the offset
    of the line decide which texts are used.
    """

    clause: str
    """The fault of the output, in a few words."""
    sentence: str
    """What the difference suggests about the quantization."""


@dataclass(frozen=True)
class ChangeWords:
    """The texts of reports about one change that a remedy makes to the model."""

    clause: str
    """The change in a few words, as a recommendation to the user."""
    sentence: str
    """The change in detail, with the names of the tensors or nodes."""


@dataclass(frozen=True)
class StopWords:
    """The texts of reports about one reason why the work after a verdict ended early."""

    sentence: str
    """The event that ended the work. ``{left}`` stands for the steps that were left out."""
    no_fix: str
    """A text that says why there is no fix, with advice."""


@dataclass(frozen=True)
class Label:
    """The name of a number in a report, its unit, and an explanation.

    In the explanation, ``{format}`` stands for the low-precision format of the case.
    """

    text: str
    unit: str = ""
    explained: str = ""

    def of(self, low_format: str) -> Label:
        """Returns a copy whose explanation has ``low_format``, like ``INT8``, in place of ``{format}``."""
        return replace(self, explained=self.explained.format(format=low_format))


#: The text that follows a cause that is only concluded from the values of tensors: no trial confirmed it.
HINT = "a hint, not shown by a trial"

#: Words for the symptoms of a tensor, of its scale, or of the nodes around it.
SYMPTOMS: Mapping[Symptom, SymptomWords] = {
    "range-too-wide": SymptomWords(
        clause=("scale {factor:.3g}x too wide, SQNR {sqnr_db:.3g} dB where {best_sqnr_db:.3g} is possible"),
        sentence=(
            "scale {factor:.3g}x too wide: '{tensor}' reaches {amax:.3g}, its range {reach:.3g}, so "
            "{codes_unused:%} of the {format} codes are unused; keeps {sqnr_db:.3g} dB, the best scale "
            "{best_sqnr_db:.3g} dB"
        ),
    ),
    "cut-off": SymptomWords(
        clause="values up to {amax:.3g} are cut off at {reach:.3g}, {clipped:%} of them",
        sentence=(
            "'{tensor}' is cut off at {reach:.3g} while it reaches {amax:.3g}: {clipped:%} of the "
            "values, with {clipped_energy:%} of the energy lost; keeps {sqnr_db:.3g} dB, the best scale "
            "{best_sqnr_db:.3g} dB"
        ),
    ),
    "one-sided": SymptomWords(
        clause="{zero_point_type} with zero point {zero_point:g} cuts off {clipped:%} of the values",
        sentence=(
            "'{tensor}' is {zero_point_type} with zero point {zero_point:g}, which holds only {low:.3g} "
            "to {high:.3g}: {clipped:%} of the values are cut off on one side; keeps {sqnr_db:.3g} dB, "
            "the best scale {best_sqnr_db:.3g} dB"
        ),
    ),
    "vanishing-scale": SymptomWords(
        clause="scale {scale:.3g} is below {least_scale:.3g}, the least that {precision} holds",
        sentence=(
            "'{tensor}' has the scale {scale:.3g}, below {least_scale:.3g}, the least that {precision} holds"
        ),
    ),
    "vanishing-weight-scale": SymptomWords(
        clause="weights with the scale {scale:.3g}",
        sentence="weight '{tensor}' has the scale {scale:.3g}",
    ),
    "no-scale": SymptomWords(
        clause="no scale, so it is not in {format}",
        sentence="no scale for {named_others}: the layer is not in {format}",
    ),
    "large-channels": SymptomWords(
        clause="{many_channels} {channel_ratio:.3g}x the usual, 127 codes shrink to {codes_left:g}",
        sentence=(
            "{named_channels} {channel_amax:.3g}, {channel_ratio:.3g}x the usual channel: the others "
            "share {codes_left:g} of 127 codes"
        ),
    ),
    "large-values": SymptomWords(
        clause="a few values reach {amax:.3g}{times_usual}",
        sentence="a few values of '{tensor}' reach {amax:.3g}{times}, and its range must hold them",
        advice="keep the layer in FP16, or train with quantization (QAT)",
    ),
    "needless-values": SymptomWords(
        clause="values up to {amax:.3g}, of which its readers need those up to {amax_in_use:.3g}",
        sentence=(
            "'{tensor}' reaches {amax:.3g}, and what reads it needs no value beyond {amax_in_use:.3g}, as a "
            "Tanh or a Clip does"
        ),
        advice="end its range where its readers need no more",
    ),
    "stretched-range": SymptomWords(
        clause=("a few values reach {amax:.3g}, SQNR {sqnr_db:.3g} dB where {best_sqnr_db:.3g} is possible"),
        sentence=(
            "a few values of '{tensor}' reach {amax:.3g}{times}, and its range must hold them; keeps "
            "{sqnr_db:.3g} dB, the best scale {best_sqnr_db:.3g} dB"
        ),
        advice="clip the few large values: calibrate this tensor by percentile or mse",
    ),
    "uneven-parts": SymptomWords(
        clause="parts with ranges up to {channel_amax:.3g} and {other_amax:.3g} share one scale",
        sentence=(
            "parts with ranges up to {channel_amax:.3g} and {other_amax:.3g} share one scale in "
            "'{tensor}', where {op_type} '{node}' joins them"
        ),
    ),
    "uneven-channels": SymptomWords(
        clause="channels with ranges up to {channel_amax:.3g} and {other_amax:.3g} share one scale",
        sentence=(
            "channels with ranges up to {channel_amax:.3g} and {other_amax:.3g} share one scale in '{tensor}'"
        ),
        advice="keep the layer in FP16, or scale the channels alike in the model",
    ),
    "range-of-partner": SymptomWords(
        clause="its values reach {amax:.3g}, its scale is for {partner_amax:.3g}",
        sentence=(
            "'{tensor}' reaches {amax:.3g} but has the scale of {named_others}, which reaches "
            "{partner_amax:.3g} and meets it at {op_type} '{node}'; keeps {sqnr_db:.3g} dB, the best "
            "scale {best_sqnr_db:.3g} dB"
        ),
    ),
    "few-codes": SymptomWords(
        clause="weights use {codes_used:%} of their {format} codes",
        sentence="weight '{tensor}' uses {codes_used:%} of its {format} codes",
    ),
    "weight-scales-off": SymptomWords(
        clause="weight scales {how_far}",
        sentence=(
            "{many_scales} {how_far}: it keeps {sqnr_db:.3g} dB, scales from its channels {best_sqnr_db:.3g}"
        ),
    ),
    "coarse-channels": SymptomWords(
        clause="the weight's small output channels keep {channel_db:.3g} dB, {scales_off:g} of {scales:g}",
        sentence=(
            "{scales_off:g} of {scales:g} output channels of weight '{tensor}' are too small for their "
            "scale: the worst keeps {channel_db:.3g} dB, with a scale of its own {best_channel_db:.3g}"
        ),
    ),
    "scales-of-other-axis": SymptomWords(
        clause="scales along axis {axis_of_scales:g}, but sizes differ along axis {axis:g}",
        sentence=(
            "'{tensor}' has its scales along axis {axis_of_scales:g}, and its sizes differ along axis "
            "{axis:g}, where the usual slice keeps {usual_channel_db:.3g} dB, with a scale of its own "
            "{best_channel_db:.3g}"
        ),
    ),
    "one-scale-for-channels": SymptomWords(
        clause="one scale for all weights, but the largest channel is {channel_ratio:.3g}x the usual",
        sentence=(
            "'{tensor}' has one scale, and its largest channel along axis {axis:g} is {channel_ratio:.3g}x "
            "the usual one, which keeps {usual_channel_db:.3g} dB, with a scale of its own "
            "{best_channel_db:.3g}"
        ),
    ),
    "large-weights": SymptomWords(
        clause="a few weights reach {amax:.3g}{times_usual}",
        sentence=(
            "a few values of weight '{tensor}' reach {amax:.3g}{times}: even scales from its channels "
            "keep {best_sqnr_db:.3g} dB only"
        ),
    ),
    "large-idle-weights": SymptomWords(
        clause="weights reach {amax:.3g}, but {amax_in_use:.3g} where outputs depend on them",
        sentence=(
            "'{tensor}' reaches {amax:.3g} in values without an effect on the outputs, {amax_in_use:.3g} "
            "elsewhere, and they share a scale"
        ),
    ),
    "coarse-bias": SymptomWords(
        clause="its bias is in {format}, which keeps {usual_channel_db:.3g} dB of the usual element",
        sentence=(
            "bias '{tensor}' is in {format}, which keeps {usual_channel_db:.3g} dB of its usual element: the "
            "rounding error is added to all results of a channel"
        ),
    ),
    "corrected-bias": SymptomWords(
        clause="the quantizer changed its bias by {share:%}",
        sentence="the quantizer changed bias '{tensor}' by {share:%} of its size, as a bias correction does",
        advice="take the bias of the float model, or correct it again with data like the real inputs",
    ),
    "shifted-bias": SymptomWords(
        clause="all values of its bias are shifted: {shift_share:%} of their error",
        sentence=(
            "the values of bias '{tensor}' are shifted to one side, which is {shift_share:%} of their error: "
            "it keeps {sqnr_db:.3g} dB"
        ),
        advice="quantize the bias again, to the nearest codes",
    ),
    "shifted-mean": SymptomWords(
        clause="its weights are rounded to one side, {shift_share:%} of their error is a shift",
        sentence=(
            "weight '{tensor}' is rounded to one side: {shift_share:%} of its error shifts whole channels of "
            "the results, and it keeps {sqnr_db:.3g} dB, rounded to the nearest code {best_sqnr_db:.3g}"
        ),
    ),
    "other-order": SymptomWords(
        clause="a constant has the float values in another order along axis {axis:g}",
        sentence=(
            "the values of '{tensor}' stand in another order along axis {axis:g} than in the float model: it "
            "keeps {sqnr_db:.3g} dB, in the float model's order {best_sqnr_db:.3g}"
        ),
        advice="quantize the constant again, in the float model's order; RGB and BGR are often confused",
    ),
    "other-codes": SymptomWords(
        clause="a constant holds other values than the float model: {sqnr_db:.3g} dB are kept",
        sentence=(
            "'{tensor}' holds other values than the float model: it keeps {sqnr_db:.3g} dB, rounded to the "
            "nearest codes {best_sqnr_db:.3g}"
        ),
    ),
    "ignored-channels": SymptomWords(
        clause="{many_channels} that nothing needs up to {channel_amax:.3g}, the others {amax_in_use:.3g}",
        sentence=(
            "{named_channels} {channel_amax:.3g}, and what reads it ignores all beyond {amax_in_use:.3g}"
        ),
    ),
    "masked-values": SymptomWords(
        clause="a mask reaches {amax:.3g} in its range, all other values {unmasked_amax:.3g}",
        sentence=(
            "the range of '{tensor}' holds a mask that reaches {amax:.3g}, all other values reach "
            "{unmasked_amax:.3g}: they share the codes next to 0"
        ),
    ),
    "quantized-inputs": SymptomWords(
        clause="{short_op} loses much by quantized inputs: {short_left}",
        sentence="{op_type} loses much by quantized inputs; {left}",
    ),
    "after-softmax": SymptomWords(
        clause="made by {short_op}: {short_left}",
        sentence="{named_others} is made by {op_type} '{node}'; {left}",
    ),
    "after-gelu": SymptomWords(
        clause="comes from a GELU: {short_left}",
        sentence="{named_others} comes from a GELU; {left}",
    ),
    "product-of-activations": SymptomWords(
        clause="product of two activations: {short_left}",
        sentence="it is a product of two activations, as in attention; {left}",
    ),
    "decoding": SymptomWords(
        clause="decodes outputs of very different size: {short_left}",
        sentence="{op_type} decodes the outputs at the end: its values differ widely in size; {left}",
    ),
    "noise-adds-up": SymptomWords(
        clause="rounding adds up, {short_left}",
        sentence=(
            "nothing stands out: '{tensor}' keeps {sqnr_db:.3g} dB, {below_best:.2g} dB from the best "
            "that {format} can do; the noise of several layers adds up"
        ),
    ),
    "too-coarse": SymptomWords(
        clause="what follows needs finer steps than {format} has, though {short_left}",
        sentence=(
            "no scale is off: '{tensor}' keeps {sqnr_db:.3g} dB, {below_best:.2g} dB from the best that "
            "{format} can do, and what follows it needs more"
        ),
        advice="keep the layer in FP16, or train with quantization (QAT)",
    ),
    "engine-differs": SymptomWords(
        clause="the engine is off, its model is not: {short_left}",
        sentence=(
            "the same Q/DQ model meets the criteria in ONNX Runtime, with Q/DQ unfused; the engine does "
            "not; its noisiest edge '{tensor}' keeps {sqnr_db:.3g} dB"
        ),
    ),
    "engine-rounds": SymptomWords(
        clause="the engine is off, the same model in ONNX Runtime is not",
        sentence=(
            "the same model in {precision} meets the criteria in ONNX Runtime, where each result is "
            "rounded and sums are FP32; the engine does not"
        ),
    ),
    "within-noise": SymptomWords(
        clause="the limit lies within the noise from run to run",
        sentence=(
            "the limit lies within the noise between two runs of the baseline, and no scale is at fault"
        ),
    ),
    "fp16-around": SymptomWords(
        clause="FP16 around it holds less than {format} needs",
        sentence="FP16 around it holds less than {format} needs; '{tensor}' keeps {sqnr_db:.3g} dB",
    ),
    "beyond-range": SymptomWords(
        clause="reaches {amax:.4g}, {precision} ends at {reach:g}",
        sentence="'{tensor}' reaches {amax:.4g}, {precision} ends at {reach:g}",
    ),
    "reads-beyond-range": SymptomWords(
        clause="reads {amax:.4g}, {precision} ends at {reach:g}",
        sentence="it reads '{tensor}', which reaches {amax:.4g}; {precision} ends at {reach:g}",
    ),
    "constant-beyond-range": SymptomWords(
        clause="a constant is {amax:.4g}, {precision} ends at {reach:g}",
        sentence="its constant '{tensor}' holds {amax:.4g}, {precision} ends at {reach:g}",
    ),
    "vanishing-values": SymptomWords(
        clause="{lost:g} values become 0 in {precision}",
        sentence="{lost:g} values of '{tensor}' become 0 in {precision}, which ends at {smallest:.2g}",
    ),
    "vanishing-constant": SymptomWords(
        clause="a constant of {amax:.3g} is 0 in {precision}",
        sentence="its constant '{tensor}' is {amax:.3g}, which is 0 in {precision}",
    ),
    "cancelling": SymptomWords(
        clause="a difference changes by {share:%} when rounded to {precision}",
        sentence=(
            "'{tensor}' is a small difference of large values: rounding them to {precision} changes it "
            "by {share:%}"
        ),
    ),
    "needs-digits": SymptomWords(
        clause="{precision} keeps too few digits of it",
        sentence="{precision} keeps too few digits of '{tensor}'; none of its values overflows or vanishes",
    ),
}


#: Words for the kinds of causes of accuracy loss in a layer.
CAUSES: Mapping[CauseKind, CauseWords] = {
    "scale-too-wide": CauseWords(
        plural="scales too wide",
        advice="calibrate this tensor anew: its range should end where its values do",
    ),
    "saturation": CauseWords(
        plural="scales that cut values off",
        advice="give it a range that holds its values, from data like the real inputs",
    ),
    "zero-point": CauseWords(
        plural="zero points",
        advice="quantize to int8 with zero point 0; TensorRT takes nothing else",
    ),
    "zero-scale": CauseWords(
        plural="scales that are 0 or vanish",
        advice="give the tensor a scale above 0: its greatest magnitude divided by 127",
    ),
    "missing-scale": CauseWords(
        plural="missing scales",
        advice=("calibrate the tensor, or add it to the scale file; until then the layer is not in {format}"),
    ),
    "activation-outliers": CauseWords(
        plural="outliers in activations",
        advice=(
            "move the range of the large channels into the weights (as SmoothQuant does), or keep the "
            "layer in FP16"
        ),
    ),
    "weight-outliers": CauseWords(
        plural="outliers in weights",
        advice="give each output channel its own scale; where it has one, keep the layer in FP16",
    ),
    "weight-scale": CauseWords(
        plural="scales that do not fit their weights",
        advice="make the scale anew from the weights: max |w| of each channel divided by 127",
    ),
    "wrong-axis": CauseWords(
        plural="weight scales along the wrong axis",
        advice="put the scales along the output channels: axis 0 of a Conv, axis 1 of a MatMul's right",
    ),
    "mismatched-scales": CauseWords(
        plural="one scale for tensors of different ranges",
        advice="scale the tensors alike before they meet, or keep what joins them in FP16",
    ),
    "sensitive-op": CauseWords(
        plural="operators that {format} does not suit",
        advice="keep it in FP16: TensorRT's guide advises against {format} here",
    ),
    "accumulated-noise": CauseWords(
        plural="rounding that adds up",
        advice="keep the layer in FP16, or train with quantization (QAT)",
    ),
    "fp16-around": CauseWords(
        plural="FP16 around {format}",
        advice="keep what surrounds it in FP32: 'baseline: fp32', or 'search: {{keep: fp32}}'",
    ),
    "engine-only": CauseWords(
        plural="an engine that differs from its model",
        advice=("try another TensorRT version or other tactics, and report it with the minimal reproducer"),
    ),
    "non-determinism": CauseWords(
        plural="noise from run to run",
        advice="loosen the limit above the noise, or make the runs deterministic",
    ),
    "int8-bias": CauseWords(
        plural="biases in {format}",
        advice="leave the bias unquantized: TensorRT adds it in FP32",
    ),
    "bias-shift": CauseWords(
        plural="shifted means",
        advice="round the weights to the nearest code, or correct the bias by the mean error",
    ),
    "other-values": CauseWords(
        plural="constants with other values than the float model's",
        advice="quantize the constant again from the float model, to the nearest codes",
    ),
    "ignored-channel": CauseWords(
        plural="channels that no weight reads",
        advice="end the range where the channels end that the weights use, or set the others to 0",
    ),
    "masked-range": CauseWords(
        plural="masks in a range",
        advice="keep the mask out of the range: end it a little beyond all other values",
    ),
    "overflow": CauseWords(
        plural="values beyond the format",
        advice="keep it in FP32, or scale the values down in the model",
    ),
    "underflow": CauseWords(
        plural="values that vanish",
        advice="keep it in FP32, or scale the values up in the model",
    ),
    "cancellation": CauseWords(
        plural="differences that cancel",
        advice="keep it in FP32, or have the model subtract before it squares or sums",
    ),
    "rounding": CauseWords(
        plural="steps of {format} that are too coarse",
        advice="keep it in FP32",
    ),
}


#: The beginning of a clause on a trial that changed one property of a layer at fault, by the kind of change.
#: The clause ends with the share of the loss that the change removed, like ``97 % of the loss``.
ABLATIONS: Mapping[TakenKind, str] = {
    "activation": "leaving {it} unquantized gives back",
    "constants": "leaving {it} unquantized gives back",
    "range": "a range that fits {it} gives back",
    "channels": "{channels}{of_it} {explain}",
    "per-channel": "{scales}{of_it} gives back",
    "in-use": "a range{of_it} for what outputs depend on gives back",
    "unmasked": "a range{of_it} without the mask gives back",
    "bias": "a bias corrected by the mean error gives back",
    "fp32": "FP32 around it gives back",
}

#: Words for the stages: the forms of a model from the training framework to the engine, in this order.
STAGES: Mapping[Stage, StageWords] = {
    "framework": StageWords(
        title="framework",
        meaning="",
        advice="",
    ),
    "FP32 ONNX": StageWords(
        title="FP32 ONNX",
        meaning="the export to ONNX changed the model, or inputs are prepared otherwise there",
        advice="mend the export, or the preparation of its inputs, then run again",
    ),
    "FP16": StageWords(
        title="FP16",
        meaning="FP16 is off already: {format} is not the problem",
        advice="compare with 'baseline: fp32', or keep what overflows below 65504 in the model",
    ),
    "Q/DQ in ONNX Runtime": StageWords(
        title="Q/DQ in ONNX Runtime",
        meaning="quantization loses it",
        advice="",
    ),
    "engine FP16": StageWords(
        title="engine FP16",
        meaning="the baseline itself, the FP16 engine, is off already",
        advice=(
            "compare with 'baseline: fp32' in the spec; a spec of its own with 'candidate: fp16' names the "
            "layers that FP16 breaks"
        ),
    ),
    "engine FP32": StageWords(
        title="engine FP32",
        meaning="the FP32 engine differs from its model: TensorRT's own doing",
        advice="try another TensorRT version, and report it",
    ),
    "engine INT8": StageWords(
        title="engine {format}",
        meaning="the Q/DQ model is fine, the engine made of it is not: TensorRT's own doing",
        advice="try another TensorRT version or a lower optimization_level, and report it",
    ),
    "implicit INT8": StageWords(
        title="implicit {format}",
        meaning="quantization loses it, with the ranges of TensorRT's calibration",
        advice="",
    ),
}


#: The text on why a search ended, by the kind of ending.
ENDINGS: Mapping[EndingKind, str] = {
    "proven": (
        "proven minimal: each of the {high} groups kept high was sent back to {format} alone, and fails"
    ),
    "int8-passes": "with all groups in {format} the criteria are met: nothing has to leave {format}",
    "high-fails": "with all groups in high precision the criteria fail too: {cause}",
    "nothing-left": "only with {layers} out of {format} are the criteria met",
    "plan-fails": "the plan to certify fails",
    "first": (
        "the first {high} of {groups} groups: no shorter list was found, and groups within it may be innocent"
    ),
    "last": (
        "the last {high} of {groups} groups: no shorter list was found, and groups within it may be innocent"
    ),
    "worst": "the {high} of {groups} groups that add most error: groups among them may be innocent",
    "visited": "all groups were visited, {high} chosen: some may be innocent once later ones were chosen",
    "trials-spent": "stopped early: the budget of {max_trials} trials is spent",
    "seconds-spent": "stopped early: the budget of {max_seconds:g} s is spent",
    "cut-short": (
        "stopped with {high} of {groups} groups high, as trials of shorter lists had cost enough: some "
        "may be innocent"
    ),
    "interrupted": "stopped early: interrupted (Ctrl-C or SIGTERM)",
}

#: Words for how an output differs from the baseline: by a factor, by an offset, or in another way.
FITS: Mapping[Meaning, FitWords] = {
    "constant": FitWords(
        clause="as {offset:.4g} in every element",
        sentence=(
            "{format} is {offset:.4g} everywhere while the baseline varies: a tensor on the way to this "
            "output is quantized to a single value, its scale is far too wide or it is cut off entirely"
        ),
    ),
    "small": FitWords(
        clause="{slope:.3g} times what {before} gives",
        sentence=(
            "{format} values are {slope:.3g} of the baseline's throughout: a scale is wrong for all "
            "samples, either a dynamic range too narrow, which cuts values off, or one far too wide, "
            "which rounds small values to 0"
        ),
    ),
    "large": FitWords(
        clause="{slope:.3g} times what {before} gives",
        sentence=(
            "{format} values are {slope:.3g} times the baseline's throughout: a scale is wrong for all "
            "samples, look for a dynamic range far from what its tensor holds"
        ),
    ),
    "shifted": FitWords(
        clause="shifted by {offset:.3g}",
        sentence=(
            "{format} values are shifted by {shift:.3g} on average ({deviations:.2g} of the baseline's "
            "standard deviation): values cut off on one side only, or a wrong bias or zero point"
        ),
    ),
}


#: The kinds of changes that a remedy makes. Each is the name of the field of ``Repair`` with the change.
ChangeKind = Literal["fused", "outputs", "method", "rescales", "biases", "corrected", "weights", "migration"]
#: Words for the changes that a remedy makes.
CHANGES: Mapping[ChangeKind, ChangeWords] = {
    "fused": ChangeWords(
        clause="make {norms} in parts one node each",
        sentence="{norms} in parts made one node each, which computes in FP32 inside ({names})",
    ),
    "outputs": ChangeWords(
        clause="{outputs}, to be left unread, against a wrong fusion",
        sentence="{outputs} of the engine, to be left unread ({names}), breaks a wrong fusion",
    ),
    "method": ChangeWords(
        clause="activations calibrated with '{method}'",
        sentence="all activations calibrated by '{method}', under 'calibrate:' of the spec",
    ),
    "rescales": ChangeWords(
        clause="other scales for {tensors}",
        sentence="other scales for {tensors} ({methods})",
    ),
    "biases": ChangeWords(
        clause="{biases} unquantized",
        sentence="{biases} without Q/DQ, with the float model's values ({names})",
    ),
    "corrected": ChangeWords(
        clause="{biases} corrected by the mean error of the layer",
        sentence="{biases} less the mean error that quantization gives each channel",
    ),
    "weights": ChangeWords(
        clause="new scales for {weights}",
        sentence="scales of {weights} taken anew",
    ),
    "migration": ChangeWords(
        clause="range moved into weights",
        sentence="channels evened out by migration to the weights (alpha {alpha:g}; {places})",
    ),
}


#: Words for the kinds of useless outputs on which the criteria of a case are tried. Criteria that accept such
#: outputs are too weak.
DEAD: Mapping[DeadKind, str] = {
    "zeros": "all-zero outputs",
    "shuffled": "outputs shuffled between samples",
    "mean": "the mean output for every sample",
    "shifted": "{output} shifted by one class",
    "replaced": "{output} set to zero",
    "greatest": "{output} at its greatest value everywhere",
}

#: Words for the steps that follow a failed verdict. The report lists the steps that a case has left out.
PARTS: Mapping[Part, str] = {
    "search": "the rest of the search",
    "proof": "the proof of its plan",
    "certification": "certification",
    "fewer-layers": "whether fewer layers do",
    "tradeoff": "what more layers out of {format} buy",
    "reserve": "a plan that keeps the limits with a safety margin",
    "alone": "what each culprit does alone",
    "layer-precisions": "the fix as layer precisions",
    "engine-layers": "errors between engines",
    "latency": "the time of the fix",
    "stages": "stages",
    "causes": "causes",
    "layers": "errors of the layers",
    "ranges": "a look at all ranges",
    "calibrations": "calibration methods",
    "repair": "cheaper fixes",
    "speed": "faster plans",
    "fix": "files of the fix",
    "reproducer": "reproducers",
    "worst-samples": "a look at the worst samples",
}

#: The text about a case that was selected to run, but has no result in the report.
MISSING = "the run ended before this case; run it again"
#: Words for the phases of a case, for the progress line that is shown while the case runs.
PHASES: Mapping[PhaseName, str] = {
    "setup": "reading model and data",
    "calibration": "calibrating",
    "runs": "running both forms",
    "search": "searching the layers at fault",
    "proof": "building and running the fix",
    "causes": "looking for causes",
    "repair": "looking for cheaper fixes",
    "speed": "looking for a faster plan",
    "files": "writing files",
    "waiting": "waiting for another process",
}

#: Words for the reasons why the work after a verdict ended early.
STOPS: Mapping[StopKind, StopWords] = {
    "interrupted": StopWords(
        sentence="interrupted (Ctrl-C or SIGTERM) after the verdict; left out, in whole or in part: {left}",
        no_fix="none found before Ctrl-C; run again",
    ),
    "seconds-spent": StopWords(
        sentence=(
            "the {seconds} s that max-seconds allows after a verdict are spent; left out, in whole or in "
            "part: {left}"
        ),
        no_fix="none found in the time; give it more: --int8acc-max-seconds N",
    ),
}


class Why:
    """Texts on why a case fails, apart from the causes of single layers."""

    MET = "{format} meets its criteria"
    MET_BUT_STAGE = "{format} meets its criteria; {stage} alone does not"
    UNKNOWN = "no single cause was found"
    LAYER = "{op_type} '{layer}' is at fault"
    PAIR = "the Q/DQ pair {at} is at fault"
    PAIR_OF_LAYER = "Q/DQ {at}"
    #: Texts on where a Q/DQ pair is, and on the node whose output the pair quantizes.
    AT_OUTPUT = "at output '{tensor}'"
    AT_TENSOR = "on '{tensor}'"
    BEHIND = " (after {op_type} '{node}')"
    #: Texts on how an output differs from the baseline's, by slope, offset and correlation of a fitted line.
    CONSTANT = "{format}'s {output} is {offset:.4g} in every element of all {samples}, {baseline}'s varies"
    UNRELATED = (
        "{format}'s {output} hardly follows that of {baseline}: correlation {correlation} over {samples}, 1 "
        "is the same pattern"
    )
    OFF = "{format}'s {output} comes out {clauses}; correlation {correlation} over {samples}"
    CLOSE = "{format}'s {output} follows that of {baseline} with correlation {correlation} over {samples}"
    PART = "it is judged apart, because values of another size in '{whole}' would hide its error"
    #: Texts on why no layer is at fault: the criteria also fail with all layers in high precision.
    NOT_LOW = "the criteria fail with every layer out of {format}, too"
    OTHER_MODEL = "{file} computes something else than {model}"
    NOT_THE_CAUSE = ": {format} is not the cause"
    OTHER_WEIGHTS = "{differing} of its {weights} differ, as '{first}'"
    SAME_WEIGHTS = "both have the same weights"
    OTHER_OPERATORS = "it has {operators}"
    ADDED = ", the first added is '{node}'"
    ADDED_CAST = ", the first, '{node}', casts '{tensor}' to {to}"
    CHANGES = ": {share} of the values change"
    IN_FP32 = "in FP32 on sample 0 "
    OTHER_TENSOR = "'{tensor}' ({op_type}) is the first to differ, by {off}"
    OTHER_ATTRIBUTE = ": its {name} is {theirs} in {file}, and {own} in {model}"
    OTHER_MAKER = ": {file} has {op_type} there"
    OTHER_MAKER_WITH = ": {file} has {op_type} there, with {name} {theirs} in place of {own}"
    #: Texts on why an engine is not fast enough.
    SLOW = "{format} takes {ms} ms, {baseline} {baseline_ms} ms; {layers} seem to lose time, {most} most"
    SLOW_ALIKE = "{format} takes {ms} ms, {baseline} {baseline_ms} ms; no layer seems to lose time"
    #: Texts on NaN in the baseline's outputs: whether FP16 or the float model itself gives it.
    FLOAT_NAN = "the float model itself gives NaN there{where}, so {format} can be compared with nothing"
    FLOAT_NAN_IN_BOTH = (
        "the float model gives NaN there in FP32, too{where}, so {format} can be compared with nothing"
    )
    HALF_NAN = "FP16 gives NaN there and FP32 does not, so {format} can be compared with nothing in FP16"
    UNKNOWN_NAN = "the baseline gives NaN there, so {format} can be compared with nothing; FP32 did not run"
    FIRST_NAN = ", from {op_type} '{node}' on"
    #: Texts on useless outputs that the criteria accept, and on their scores.
    ACCEPTED = "{dead} give {score}"
    TRIED = (
        "tried on {samples}, with useless outputs in place of {format}'s own: {accepted}. A broken "
        "model would pass"
    )
    LET_PASS = "{values}; the criteria let it pass: {scores}"
    AT_CHANCE = (
        "tried on {samples}: the baseline's own outputs have {metric} {baseline}, and {chance} when "
        "each is given to another sample, so this metric cannot tell a broken model from a good one"
    )
    REVERSED = (
        "tried on {samples}: the baseline's own outputs have {metric} {baseline}, and {chance} when each is "
        "given to another sample, which the criterion takes as better"
    )
    #: Texts on whether other scales reduce the loss of quantization.
    BY_SCALES = (
        ", mostly by its scales: other ones of {tensors} give back {share} of the loss, too little for the "
        "limits ({trials})"
    )
    BY_LAYERS = (
        ", in layers that {format} does not suit: other scales of {tensors} give back only {share} of the "
        "loss ({trials})"
    )
    NO_CAUSE = (
        "{layer}: no run shows its values in the body of {node}, so no cause is known, and no fix was tried "
        "that needs them"
    )
    NO_CAUSES = (
        "no run shows the values of {layers} in the body of {node}, so no cause is known, and no fix was "
        "tried that needs them"
    )
    UNSHOWN = "no trial shows the cause in {layers}"
    TOGETHER = "no step leaves its limit alone; together they do, against {stage}"
    CHOICE = "{op_type} '{node}'{more} chooses among values: small errors before it become jumps behind it"
    PAIRS = "{pairs}: no plan takes them off"
    UNEQUAL_PAIR = "Q and DQ disagree at '{node}': {finding}{more}; the search cannot change this pair"
    WIDE_RANGES = "{many} ranges are {span} times what the data reaches"
    NARROW_RANGES = "{many} ranges cut values off that reach {span} times as far"
    RANGES_BY_HAND = "{ranges}: the tensors share {few} ({values}), {fault}"
    RANGES_OF_OTHERS = (
        "{ranges}: the dynamic ranges are {fault}; which data and method made them is not known here"
    )
    CLIPPED_RANGES = (
        "{ranges}: method '{method}' clips them; the calibration data are not at fault, they reach as far as "
        "the inputs"
    )
    OTHER_DATA = "{ranges}: the calibration data reach {span} times as far as the inputs there"
    IDENTICAL = "the outputs are the baseline's bit for bit, so nothing was rounded to {format}"
    OTHER_FORMAT = "the scores say little about {format}: {layers}"
    FASTEST_FORMAT = "the scores say little about {format}: TensorRT takes what it times as fastest: {layers}"


class Decided:
    """Texts on how many samples the candidate puts into another class than the baseline."""

    CHANGED = "'{output}': {count} of {samples} change their class"
    LABELLED = "; of these the baseline is right in {broken}, and {format} in {mended}"
    NO_CLASS = "NaN or inf"
    NEITHER = "neither"
    BASELINE = "baseline"


class Caution:
    """Texts on reasons to doubt a verdict.

    Three of these reasons can also fail a case: criteria that accept useless outputs, layers that ran in
    another format, and too few samples to decide, if the spec demands a decision.
    """

    REFUSED = "TensorRT refuses this model: {rules}"
    UNDECIDED = (
        "undecided{unmended}: {score} is {value}, on other samples {interval} ({confidence}), limit "
        "{limit}{needed}"
    )
    UNDECIDED_SAMPLES = (
        "undecided{unmended}: {score} is {value}, on other samples {interval} ({confidence}), limit "
        "{limit}{needed}; look first at samples {worst}: {heavy} of {samples} carry 90 % of the error"
    )
    #: The text that is added to a caution on a score of the candidate, if the report recommends a fix.
    UNMENDED = " without the fix"
    NEEDED = "; give about {needed} samples (now {samples}): raise 'samples:' or extend 'inputs:'"
    NEEDED_TO_PROVE = "; give 'prove:' about {needed} samples (now {samples})"
    FIXED_PAIRS = "{pairs}; no plan takes them off, so their layers may be at fault, too"
    FIX_UNDECIDED = (
        "{score} of the fix is {value} on the {samples} held-out samples, but on others it may be {interval} "
        "({confidence}), limit {limit}{needed}"
    )
    FIX_FROM_INPUTS = "the fix has its scales from these very inputs: before you ship, run it on others"
    NAN_IN_BOTH = "{output} is NaN in both forms in {share:.2%} of its elements, which are left out"
    SMALL_SAMPLES = (
        "in {small} of {samples} samples the output is {ratio:.0f} times smaller than in others, and on "
        "these alone {score}; to judge each, limit it as {criterion}"
    )
    #: Texts on errors of a tensor that a Softmax or Sigmoid after it hides.
    SQUASHED = (
        "the {operator} that gives {output} may hide errors of its input: {score}; to judge that, add to "
        "'criteria:' "
        "{criterion}"
    )
    SQUASHED_UNNAMED = (
        "the {operator} that gives {output} may hide errors of its input: {score}; no criterion can "
        "name that, because the candidate has no tensor of this name"
    )
    SQUASHED_PAIR = (
        "the {operator} that gives {output} may hide errors of the Q/DQ pair at its input: {score} behind "
        "the pair, and within the limits before it; leave the input of node {node} unquantized"
    )

    SIMULATED = " in the engine's simulation"

    NO_LAYER = "You asked for {format} and 0 of {layers} in it"
    RAN_OTHERWISE = "{share} of the MACs asked for in {format} did not run in it"
    RAN_IN = "{share} of the MACs asked for in {format} ran in {others}"
    UNTOLD = "the engine does not tell the format of {share} of the MACs asked for in {format}"
    UNTOLD_CAN_OBEY = (
        "the engine does not tell the format of {share} of the MACs asked for in {format}; "
        "'tensorrt: {{obey: true}}' holds it"
    )
    IDENTICAL = (
        "the outputs are the baseline's bit for bit: no rounding to {format} reaches them; look at what "
        "follows the layers in {format}"
    )
    FEW_ASKED = "only {share} of the MACs are quantized to {format}; left out: {layers}"
    FEW_QUANTIZED = (
        "only {share} of the MACs are quantized to {format}: accept it with the criterion {{int8_share: "
        "{accepted:g}}}, or have your quantizer include what it left out: {layers}"
    )
    NONE_ASKED = "none of the MACs are quantized to {format}; left out: {layers}"
    NONE_QUANTIZED = (
        "none of the MACs are quantized to {format}; left out: {layers}; have your quantizer include them"
    )

    #: Texts on how results in a default session of ONNX Runtime differ from those in an exact session. In an
    #: exact session, the optimizers that change results are switched off.
    DEFAULT_FAILS = (
        "open ONNX Runtime with disabled_optimizers=[{optimizers}]: by default {score}, and {exact} as judged"
    )
    DEFAULT_FAILS_SOMEHOW = (
        "ONNX Runtime's default session misses limits: {score}, and {exact} as judged; {level}"
    )
    DEFAULT_REFUSES = "ONNX Runtime's default session refuses this model: {score}; {level}"
    DEFAULT_REFUSES_BY = (
        "open ONNX Runtime with disabled_optimizers=[{optimizers}]: by default it refuses this model"
    )
    DEFAULT_REFUSES_WHY = " ({score})"
    DEFAULT_PASSES = (
        "ONNX Runtime's default session keeps the limits: {score}, and {exact} as judged; {level}"
    )
    DEFAULT_DIFFERS = (
        "ONNX Runtime's default session differs from one with Q/DQ unfused: {score} between both; {level}"
    )
    DEFAULT_SATURATES = (
        "INT8 kernels of this CPU saturate: ONNX Runtime's default session gives {score}, and without these "
        "kernels it agrees"
    )
    #: Texts on the optimizers of ONNX Runtime that cause the difference.
    DEFAULT_BY = "not so with disabled_optimizers=[{optimizers}]"
    DEFAULT_FROM = "from optimization level '{level}' on, by no optimizer alone"
    DEFAULT_ALWAYS = "without optimizers, too"
    DEFAULT_WITHOUT_KERNELS = ", compared without the INT8 kernels of this CPU, which saturate"
    #: Texts on how the recommended fix fails in a default session of ONNX Runtime.
    FIX_FAILS_BY = "in a default session the fix fails without disabled_optimizers=[{optimizers}]"
    FIX_FAILS = "in a default session of ONNX Runtime the fix fails: {score}"
    FIX_REFUSED = "a default session of ONNX Runtime refuses the fix"
    #: The text before a caution on the unchanged model in a default session, if the fix passes there.
    FIX_RUNS = "the fix passes in ONNX Runtime's default session, too; to ship the model without the fix, "

    LOST = "{output} is lost in {format} (sqnr_db {sqnr_db}), and no criterion notices"
    TOO_WEAK = "the criteria are too weak: {outputs} would pass"
    UNNOTICED = "the criteria would also pass {outputs}"
    UNNOTICED_OUTPUT = "the criteria would also pass {outputs}; add one on it, like {criterion}"
    ACCEPTED = "accepted ({reason}): the criteria would also pass {outputs}"
    CHANCE_SAME = "{metric} is {baseline} for the baseline, and the same for shuffled outputs"
    CHANCE_NEAR = (
        "check the labels' order and numbers, too: {metric} of the baseline is {baseline}, by chance {chance}"
    )
    CHANCE_BETTER = (
        "{metric} is {baseline} for the baseline, {chance} for shuffled outputs: is {better} better?"
    )
    CHANCE_LABELS = (
        "{metric} of the baseline is {baseline}, of shuffled outputs {chance}: do the labels match?"
    )


class Advice:
    """Texts with advice to the user if layers in high precision do not mend the case."""

    RUN_AGAIN = "{advice}, and run again (not tried)"

    FLOAT_NAN = "{first}; or leave the output out: write 'unjudged: [{output}]' in the spec, beside 'model:'"
    FIND_NAN = "find what gives NaN in the float model, its inputs or a node"
    MEND_NODE = "mend {op_type} '{node}' of the float model"
    IN_FP32 = "compare with FP32: write 'baseline: fp32' in the spec, beside 'model:'"

    JUDGE_BEFORE = "write in the spec, beside 'model:', criteria: [{criteria}] and unjudged: [{outputs}]"
    JUDGE_BEFORE_BRIEFLY = (
        "judge {tensors} by {{tensor: NAME, sqnr_db: {limit:g}}} in 'criteria:', and name the outputs behind "
        "in 'unjudged: [NAME]', both in the spec, beside 'model:'"
    )
    UNJUDGED = "write 'unjudged: [{outputs}]' in the spec, beside 'model:'"
    UNJUDGED_BRIEFLY = "name the outputs behind in 'unjudged: [NAME]' in the spec, beside 'model:'"

    OBEY = (
        "judge FP16 itself with 'tensorrt: {{obey: true}}', or let TensorRT time FP16 with a higher "
        "'optimization_level'; or accept the engine as it is: 'realized: warn'"
    )
    REPORT_LAYERS = (
        "report these layers to NVIDIA, or judge them with 'backend: onnxruntime'; or accept the engine as "
        "it is: 'realized: warn'"
    )
    DECIDE = (
        "give {samples}: raise 'samples:' or extend 'inputs:'. Or write 'undecided: score' in the spec, "
        "beside 'model:', and the score on these samples decides"
    )
    LOOK_AT_PAIRS = (
        "look at the Q/DQ around these layers (both inputs, one scale per activation), raise "
        "'optimization_level', allow more 'tactic_sources'; or accept the engine as it is: 'realized: warn'"
    )
    SHARE_RAN_OTHERWISE = (
        "look at the Q/DQ around what the engine runs otherwise, {layers}; or lower int8_share"
    )
    SHARE_LEFT_OUT = "quantize both inputs of the layers left out, {layers}; or lower int8_share"

    ADD_LIMIT = (
        "add to 'criteria:' {criterion}; {format} keeps it with {sqnr_db} dB, and these outputs do not. To "
        "accept weak criteria, write 'accept_blind: REASON' in the spec, beside 'model:'"
    )
    ADD_LIMIT_OF_LOST = (
        "add to 'criteria:' {criterion} and run again: it will fail then, and name layers at fault"
    )
    ADD_METRIC = (
        "add to 'criteria:' a limit on the metric of your task, like {metrics}, with 'labels: FILE' "
        "(docs/specs.md, 'Metrics of labels'). To accept weak criteria, write 'accept_blind: REASON' in the "
        "spec, beside 'model:'"
    )
    OTHER_INPUTS = (
        "give inputs whose outputs differ more: to catch these with a margin 'sqnr_db' must be {limit:g}, "
        "and {format} has {sqnr_db}; or limit a metric of your task, like {metric}, with 'labels: FILE'; or "
        "accept it: write 'accept_blind: REASON' in the spec, beside 'model:'"
    )
    #: An example of a criterion in a spec on a metric that the user has written.
    OWN_METRIC = "{{metric: FILE.py:FUNCTION, max_drop: 1%}}"
    COMPARE_LABELS = (
        "print the labels of ten samples and what the float model gives for them. If nearly all labels are "
        "alike, use other samples, or check how their file is read; if nearly all outputs are, check the "
        "float model and its inputs; if both vary, check the order of the labels and the number of each "
        "class or token"
    )
    COMPARE_LABELS_OF_USER = (
        "print in {metric} the labels and the predictions of ten samples. If nearly all labels are alike, "
        "use samples of more classes, or check how their file is read; if nearly all predictions are, check "
        "the float model and its inputs; if both vary, the function ignores one of them or hides an exception"
    )
    CHECK_LABELS = (
        "check the labels: one label or text per input, in the order of the inputs, numbered as the classes "
        "of the output (from 0 or from 1? which is the blank?); if they fit, check the float model and its "
        "inputs"
    )
    LOWER_IS_BETTER = (
        "if a lower value is better, add 'lower_is_better: true' to the criterion; else check that {metric} "
        "compares each output with its own label: one label per input, in the order of the inputs, numbered "
        "as the classes of the output"
    )
    HIGHER_IS_BETTER = (
        "if a higher value is better, remove 'lower_is_better' from the criterion; else check that {metric} "
        "compares each output with its own label: one label per input, in the order of the inputs, numbered "
        "as the classes of the output"
    )


class NoFix:
    """Texts on why a failed case has no fix, and advice. ``STOPS`` has the texts on work that ended early."""

    ENDED = "none found: {ending}"
    FIXED_PAIRS = "none found: Q/DQ is left in the model that no plan takes off"
    NOTHING_LEFT = (
        "no {format} fix worth shipping, the criteria are met only with {layers} out of {format}: ship "
        "{high}, or try {others}"
    )
    HIGH_FAILS = "none found: with every layer out of {format} the criteria fail too"
    OTHER_MODEL = (
        "compare that place in both files, and mend the step that changed it (simplifier, converter or "
        "quantizer); or write '{key}: {{calibrate: {{}}}}' in place of that file, to have {model} quantized "
        "here"
    )
    OTHER_WEIGHTS = (
        "name under 'model:' the float model that {file} was made from; or quantize {model}: write '{key}: "
        "{{calibrate: {{}}}}' in the spec"
    )
    #: Texts on why no plan is fast enough. ``gain`` is ``GAINS_NOTHING`` or ``GAINS_LITTLE``.
    SHIP_BASELINE = "{format} gains {gain} here: ship {baseline} ({times})"
    GAINS_NOTHING = "nothing"
    GAINS_LITTLE = "less than {share}"
    TOO_SLOW = "none found: {fastest} is {speedup} times as fast as {baseline}, limit {limit} ({times})"
    #: The text for a case that passes, if no plan is clearly faster than the candidate.
    NONE_FASTER = "no plan is clearly faster ({times})"
    #: Texts on the latencies of the candidate, of the plans that were tried, and of the baseline.
    TIMES = "{format} {candidate} ms{plans}, {baseline} {ms} ms"
    BEST_OF = ", best of {count} {best} ms"
    NONE_TIMED = ", of {count} none builds and keeps the criteria"
    ENGINE = "an engine cannot be searched: name the model it was made from, 'int8: {{model: FILE}}'"
    #: The text that marks advice which no trial has shown to help.
    NOT_TRIED = "{advice} (not tried)"
    NOT_SEARCHED = (
        "layers were not searched; run again with --int8acc-search=auto: it names the layers at fault, and "
        "tries fixes"
    )


class Remedy:
    """Texts on what a remedy does, and on how it was proved.

    ``CHANGES`` has the words for changes other than layers in high precision.
    """

    HIGH = "{layers} in {precision}"
    FASTER = "{layers} in {precision}, so that the engine is faster"
    SOME_HIGH = "{layers} of {culprits} in {precision}"
    NONE_HIGH = "no layer needs {precision}"
    KEEP = "keep {layers} in {precision}"
    UNQUANTIZED = "leave {tensors} unquantized"
    SPARE = ", {spare} of them ({names}) as a safety margin: the limits are met without"
    SPARE_BRIEFLY = ", {spare} of them as a safety margin"
    SYMMETRIC = "symmetric {format} throughout"
    #: The beginning of the sentence that recommends a fix.
    STAYS = "{file}{share} of the MACs stay in {format}{time}: "
    NOT_WORTH_IT = (
        "no {format} fix worth shipping: ship {high} ({others} untried). {file} keeps only {share} of the "
        "MACs in {format}{time}"
    )
    #: Texts on the data that gave the ranges, if the fix has other scales.
    RANGES_FROM_DATA = "; ranges from the calibration data, {data}"
    RANGES_FROM_INPUTS = "; ranges from the compared inputs themselves"

    VERIFIED_SCORE = ", verified on {samples} samples that it has not seen: {score}"
    VERIFIED = ", verified on {samples} samples that it has not seen"
    VERIFIED_BRIEFLY = ", verified on {samples} held-out samples"
    #: The texts if a limit lies in the confidence interval of its score on these samples.
    PASSES = "; passes on {samples} samples that it has not seen, but others may have {score}"
    PASSES_BRIEFLY = "; also on {samples} held-out ones; others may have {score}"
    #: The texts after a score if the candidate misses other limits, too, the longest first.
    ALL_KEPT = (", and all other limits kept", ", all limits kept")
    #: The text after a score that was measured on all samples, with those on which the fix was chosen.
    ON_ALL = " on all {samples}"
    NOT_PROVED_MORE = "; passes on the samples compared, not proved: give {more} more"
    NOT_PROVED_MORE_OWN = "; passes on the samples compared, not proved: give 'prove' {more} more"
    NOT_PROVED_MORE_BRIEFLY = "; passes, not proved: give {more} more samples"
    NOT_PROVED_MORE_OWN_BRIEFLY = "; passes, not proved: give 'prove' {more} more"
    FAILS_PROOF_SCORE = "; fails on {samples} samples that it has not seen, {score}"
    FAILS_PROOF = "; fails on {samples} samples that it has not seen"
    NOT_PROVED = "; passes on the samples compared, not proved"
    UNSTEADY_SCORE = ", but {name} may be {interval} on other samples"
    UNSTEADY = "; undecided"
    NOT_VERIFIED = "; not verified"


#: The low format of a case, to what the user should try if a fix would leave too little work in this format.
#: QAT is quantization-aware training.
INSTEAD: Mapping[str, str] = {
    "INT8": "FP8 or QAT",
    "FP8": "QAT",
    "FP16": "BF16",
    "BF16": "FP16",
}
#: The label of each metric, by its name in a spec.
METRICS: Mapping[str, Label] = {
    "cosine": Label(
        "Cosine similarity", "", "of all elements of {format} and baseline; 1 is the same direction"
    ),
    "sqnr_db": Label(
        "SQNR", "dB", "power of the baseline over that of {format}'s error; 20 dB: an error of 10 %"
    ),
    "psnr_db": Label("PSNR", "dB", "greatest |baseline| squared over the mean square of {format}'s error"),
    "mse": Label("Mean squared error", "", "mean square of {format} less baseline; 0 is the same"),
    "max_abs": Label("Greatest error", "", "greatest |{format} - baseline|, in the output's own unit"),
    "mean_abs": Label("Mean error", "", "mean |{format} - baseline|, in the output's own unit"),
    "max_rel": Label(
        "Greatest relative error", "", "greatest |{format} - baseline| over |baseline|, with a floor"
    ),
    "mean_rel": Label("Mean relative error", "", "mean |{format} - baseline| over |baseline|, with a floor"),
    "kl": Label("KL divergence", "nats", "of {format}'s softmax from the baseline's, mean; 0 is the same"),
    "top1_agreement": Label("Same top class", "", "share of samples whose first class is the baseline's"),
    "top5_agreement": Label("Top class in top 5", "", "share of samples with the baseline's class among 5"),
    "agreement": Label("Equal elements", "", "share of elements that are the same"),
    "tolerance": Label("Tolerance used", "", "share of the tolerance that is used up; 1 is the limit"),
    "top1": Label("Top-1 accuracy", "", "share of samples whose first class is the label"),
    "top5": Label("Top-5 accuracy", "", "share of samples whose label is among the first five classes"),
    "f1": Label("F1 score", "", "harmonic mean of precision and recall"),
    "miou": Label("Mean IoU", "", "intersection over union of pixels, mean of classes"),
    "coco_map": Label("mAP (COCO)", "", "mean average precision of boxes, IoU 0.5 to 0.95"),
    "wer": Label("Word error rate", "", "words wrong, missing or too many, over words spoken; 0 is right"),
    "ssim": Label("SSIM", "", "structural similarity of images; 1 is the same"),
    "psnr": Label("PSNR", "dB", "greatest value squared over the mean square of the error"),
    "speedup": Label("Speed-up", "times", "the baseline's time over {format}'s"),
}
#: The label of each number that describes a cause, by its name in ``Cause.numbers``.
NUMBERS: Mapping[str, Label] = {
    "share": Label("Changed by rounding", "%", "error of the tensor over its values, by root mean square"),
    "lost": Label("Became 0", "", "values of the tensor that are 0 in the format and not in FP32"),
    "smallest": Label("Least number", "", "the smallest number above 0 that the format has"),
    "sqnr_db": Label("SQNR kept", "dB", "power of the tensor over that of its own rounding to {format}"),
    "best_sqnr_db": Label("SQNR possible", "dB", "what the best scale would keep"),
    "lost_db": Label("Lost by the scale", "dB", "SQNR possible less SQNR kept"),
    "codes_used": Label("Codes used", "%", "of the codes of the range, those that values take"),
    "codes_left": Label("Codes left", "of 127", "what the usual channel has of the range"),
    "clipped": Label("Cut off", "%", "of the values, those beyond the range"),
    "clipped_energy": Label("Energy cut off", "%", "of the tensor's power, what lies beyond the range"),
    "factor": Label("Range / values", "times", "reach of the scale over the greatest value"),
    "factor_least": Label("Least range / weights", "times", "of all channels, reach over greatest weight"),
    "factor_most": Label("Greatest range / weights", "times", "of all channels, reach over greatest weight"),
    "best_factor": Label("Range / best range", "times", "reach of the scale over that of the best scale"),
    "channel_db": Label("Worst channel", "dB", "SQNR of the output channel that loses most"),
    "best_channel_db": Label("The same, best scale", "dB", "its SQNR with a scale of its own"),
    "gain_db": Label("Gain of other scales", "dB", "what scales along the other axis add to the usual slice"),
    "channel_gain_db": Label("Gain by channel scales", "dB", "SQNR that a scale per channel would add"),
    "channel_ratio": Label(
        "Largest / usual channel", "times", "its greatest value over the median of all channels"
    ),
    "channel_amax": Label("Largest channel", "", "greatest value of the largest channel"),
    "usual_channel_db": Label(
        "SQNR of usual channel", "dB", "what {format} keeps of a channel, the median over channels"
    ),
    "p99": Label("99 % below", "", "99 % of the magnitudes lie below"),
    "p99.9": Label("99.9 % below", "", "99.9 % of the magnitudes lie below"),
    "p99.99": Label("99.99 % below", "", "99.99 % of the magnitudes lie below"),
    "scale": Label("Scale", "", "step between two codes"),
    "least_scale": Label("Least scale", "", "the smallest step that the format holds"),
    "scales": Label("Scales", "", "how many the weight has"),
    "scales_off": Label("Scales off", "", "those that do not fit their channel"),
    "zero_point": Label("Zero point", "", "the code that stands for 0"),
    "low": Label("Range from", "", "the least value that can be held"),
    "high": Label("Range to", "", "the greatest value that can be held"),
    "partner_amax": Label("Partner's values", "", "greatest value of the tensor that shares the scale"),
    "other_amax": Label("Other parts", "", "what channels far below the greatest reach"),
    "amax_in_use": Label("In use", "", "greatest weight or channel that products depend on"),
    "shift_share": Label("Shift", "%", "of the error of the products, what shifts whole channels"),
    "unmasked_amax": Label("Without the mask", "", "the greatest value that is no mask"),
    "axis": Label("Channel axis", "", "the axis along which the channels lie"),
    "axis_of_scales": Label("Axis of the scales", "", "the axis along which the scales were made"),
}
#: The name of a file of a fix, to a text on its use. The HTML page lists the files in this order.
FILES: Mapping[str, str] = {
    "fixed.onnx": "the fixed model: run it, or build the engine of it",
    "plan.yaml": "the fix as a plan; 'plan: plan.yaml' in the spec keeps it under test",
    "commands.txt": "how to build each of these",
    "exclude_nodes.txt": "nodes that stay out of {format}, a name a line",
    "modelopt.sh": "the same with NVIDIA Model Optimizer",
    "ort_quantize.py": "the same with ONNX Runtime's quantizer",
    "layer_precisions.txt": "the same for trtexec and Polygraphy, TensorRT below 11",
    "postprocess.py": "the same as Polygraphy's postprocessing, TensorRT below 11",
    "float.onnx": "the float model with the names that these files use",
}
