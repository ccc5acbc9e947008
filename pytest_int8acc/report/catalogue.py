"""All words about every kind that a result may hold: one row per kind, and nothing is computed here.

A template in a row may use the names in ``facts`` and no others. The format that a case is about is such a
fact: ``{format}`` is ``INT8``, ``FP8``, ``FP16`` or ``BF16``. ``report/causes.py`` makes the facts of a
cause; other facts are fields of the result. ``tests/report/test_catalogue.py`` compares the tables with the
enumerations in ``results/``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pytest_int8acc.results import Part, PhaseName
from pytest_int8acc.results.causes import CauseKind, Stage, Symptom, TakenKind
from pytest_int8acc.results.scores import DeadKind, Meaning
from pytest_int8acc.results.search import EndingKind


@dataclass(frozen=True, kw_only=True)
class Words:
    """All words about one symptom, cause, stage, ending, remedy or the like; one row of a table.

    Each text is a template of ``str.format``. A text that no renderer needs for this kind is empty.
    """

    facts: tuple[str, ...] = ()
    """The names that the templates may use."""
    family: CauseKind | None = None
    """The kind of cause that a symptom belongs to."""
    plural: str = ""
    """The kind's name in the plural."""
    clause: str = ""
    """A few words that name no tensor. Beside a layer's name they fit in a line."""
    sentence: str = ""
    """What was found, with names and numbers."""
    advice: str = ""
    """What to do."""


@dataclass(frozen=True)
class Label:
    """The name of a number, its unit, and an explanation, which may use ``{format}``."""

    text: str
    unit: str = ""
    explained: str = ""

    def of(self, low_format: str) -> Label:
        """Returns this label in a case of the format."""
        return replace(self, explained=self.explained.format(format=low_format))


#: What is said of a cause without evidence.
HINT = "a hint, not shown by a trial"

#: Words for the symptoms of a tensor, of its scale, or of the nodes around it.
SYMPTOMS: Mapping[Symptom, Words] = {
    "range-too-wide": Words(
        family="scale-too-wide",
        facts=("factor", "sqnr_db", "best_sqnr_db", "tensor", "amax", "reach", "codes_unused", "format"),
        clause="scale {factor:.3g}x too wide, SQNR {sqnr_db:.3g} dB where {best_sqnr_db:.3g} is possible",
        sentence=(
            "scale {factor:.3g}x too wide: '{tensor}' reaches {amax:.3g}, its range {reach:.3g}, so"
            " {codes_unused:%} of the {format} codes are unused; keeps {sqnr_db:.3g} dB, the best "
            "scale {best_sqnr_db:.3g} dB"
        ),
    ),
    "cut-off": Words(
        family="saturation",
        facts=("amax", "reach", "clipped", "tensor", "clipped_energy", "sqnr_db", "best_sqnr_db"),
        clause="values up to {amax:.3g} are cut off at {reach:.3g}, {clipped:%} of them",
        sentence=(
            "'{tensor}' is cut off at {reach:.3g} while it reaches {amax:.3g}: {clipped:%} of the "
            "values, with {clipped_energy:%} of the energy lost; keeps {sqnr_db:.3g} dB, the best "
            "scale {best_sqnr_db:.3g} dB"
        ),
    ),
    "one-sided": Words(
        family="zero-point",
        facts=(
            "zero_point_type",
            "zero_point",
            "clipped",
            "tensor",
            "low",
            "high",
            "sqnr_db",
            "best_sqnr_db",
        ),
        clause="{zero_point_type} with zero point {zero_point:g} cuts off {clipped:%} of the values",
        sentence=(
            "'{tensor}' is {zero_point_type} with zero point {zero_point:g}, which holds only "
            "{low:.3g} to {high:.3g}: {clipped:%} of the values are cut off on one side; keeps "
            "{sqnr_db:.3g} dB, the best scale {best_sqnr_db:.3g} dB"
        ),
    ),
    "vanishing-scale": Words(
        family="zero-scale",
        facts=("scale", "least_scale", "precision", "tensor"),
        clause="scale {scale:.3g} is below {least_scale:.3g}, the least that {precision} holds",
        sentence=(
            "'{tensor}' has the scale {scale:.3g}, below {least_scale:.3g}, the least that {precision} holds"
        ),
    ),
    "vanishing-weight-scale": Words(
        family="zero-scale",
        facts=("scale", "tensor"),
        clause="weights with the scale {scale:.3g}",
        sentence="weight '{tensor}' has the scale {scale:.3g}",
    ),
    "no-scale": Words(
        family="missing-scale",
        facts=("format", "named_others"),
        clause="no scale, so it is not in {format}",
        sentence="no scale for {named_others}: the layer is not in {format}",
    ),
    "large-channels": Words(
        family="activation-outliers",
        facts=("many_channels", "channel_ratio", "codes_left", "named_channels", "channel_amax"),
        clause="{many_channels} {channel_ratio:.3g}x the usual, 127 codes shrink to {codes_left:g}",
        sentence=(
            "{named_channels} {channel_amax:.3g}, {channel_ratio:.3g}x the usual channel: the "
            "others share {codes_left:g} of 127 codes"
        ),
    ),
    "large-values": Words(
        family="activation-outliers",
        facts=("amax", "times_usual", "tensor", "times"),
        clause="a few values reach {amax:.3g}{times_usual}",
        sentence="a few values of '{tensor}' reach {amax:.3g}{times}, and its range must hold them",
        advice="keep the layer in FP16, or train with quantization (QAT)",
    ),
    "stretched-range": Words(
        family="activation-outliers",
        facts=("amax", "sqnr_db", "best_sqnr_db", "tensor", "times"),
        clause=("a few values reach {amax:.3g}, SQNR {sqnr_db:.3g} dB where {best_sqnr_db:.3g} is possible"),
        sentence=(
            "a few values of '{tensor}' reach {amax:.3g}{times}, and its range must hold them; "
            "keeps {sqnr_db:.3g} dB, the best scale {best_sqnr_db:.3g} dB"
        ),
        advice="clip the few large values: calibrate this tensor by percentile or mse",
    ),
    "uneven-parts": Words(
        family="mismatched-scales",
        facts=("channel_amax", "other_amax", "tensor", "op_type", "node"),
        clause="parts with ranges up to {channel_amax:.3g} and {other_amax:.3g} share one scale",
        sentence=(
            "parts with ranges up to {channel_amax:.3g} and {other_amax:.3g} share one scale in "
            "'{tensor}', where {op_type} '{node}' joins them"
        ),
    ),
    "range-of-partner": Words(
        family="mismatched-scales",
        facts=(
            "amax",
            "partner_amax",
            "tensor",
            "named_others",
            "op_type",
            "node",
            "sqnr_db",
            "best_sqnr_db",
        ),
        clause="its values reach {amax:.3g}, its scale is for {partner_amax:.3g}",
        sentence=(
            "'{tensor}' reaches {amax:.3g} but has the scale of {named_others}, which reaches "
            "{partner_amax:.3g} and meets it at {op_type} '{node}'; keeps {sqnr_db:.3g} dB, the "
            "best scale {best_sqnr_db:.3g} dB"
        ),
    ),
    "few-codes": Words(
        family="weight-scale",
        facts=("codes_used", "format", "tensor"),
        clause="weights use {codes_used:%} of their {format} codes",
        sentence="weight '{tensor}' uses {codes_used:%} of its {format} codes",
    ),
    "weight-scales-off": Words(
        family="weight-scale",
        facts=("how_far", "many_scales", "sqnr_db", "best_sqnr_db"),
        clause="weight scales {how_far}",
        sentence=(
            "{many_scales} {how_far}: it keeps {sqnr_db:.3g} dB, scales from its channels {best_sqnr_db:.3g}"
        ),
    ),
    "scales-of-other-axis": Words(
        family="wrong-axis",
        facts=("axis_of_scales", "axis", "tensor", "sqnr_db", "best_sqnr_db"),
        clause="weight scales along axis {axis_of_scales:g}, its channels lie along {axis:g}",
        sentence=(
            "the scales of weight '{tensor}' are those of axis {axis_of_scales:g}, its channels lie"
            " along axis {axis:g}: it keeps {sqnr_db:.3g} dB, scales from its channels "
            "{best_sqnr_db:.3g}"
        ),
    ),
    "one-scale-for-channels": Words(
        family="weight-outliers",
        facts=("channel_ratio", "tensor", "sqnr_db", "best_sqnr_db"),
        clause="one scale for all weights, but the largest channel is {channel_ratio:.3g}x the usual",
        sentence=(
            "weight '{tensor}' has one scale for all channels, and its largest channel is "
            "{channel_ratio:.3g}x the usual one: it keeps {sqnr_db:.3g} dB, scales from its "
            "channels {best_sqnr_db:.3g}"
        ),
    ),
    "large-weights": Words(
        family="weight-outliers",
        facts=("amax", "times_usual", "tensor", "times", "best_sqnr_db"),
        clause="a few weights reach {amax:.3g}{times_usual}",
        sentence=(
            "a few values of weight '{tensor}' reach {amax:.3g}{times}: even scales from its "
            "channels keep {best_sqnr_db:.3g} dB only"
        ),
    ),
    "large-idle-weights": Words(
        family="weight-outliers",
        facts=("amax", "amax_in_use", "tensor", "best_sqnr_db"),
        clause="weights reach {amax:.3g}, those in use {amax_in_use:.3g}",
        sentence=(
            "weight '{tensor}' reaches {amax:.3g} where its inputs are next to 0, {amax_in_use:.3g}"
            " elsewhere: even scales from its channels keep {best_sqnr_db:.3g} dB only"
        ),
    ),
    "quantized-inputs": Words(
        family="sensitive-op",
        facts=("short_op", "short_left", "op_type", "left"),
        clause="{short_op} loses much by quantized inputs: {short_left}",
        sentence="{op_type} loses much by quantized inputs; {left}",
    ),
    "after-softmax": Words(
        family="sensitive-op",
        facts=("short_op", "short_left", "named_others", "op_type", "node", "left"),
        clause="made by {short_op}: {short_left}",
        sentence="{named_others} is made by {op_type} '{node}'; {left}",
    ),
    "after-gelu": Words(
        family="sensitive-op",
        facts=("short_left", "named_others", "left"),
        clause="comes from a GELU: {short_left}",
        sentence="{named_others} comes from a GELU; {left}",
    ),
    "product-of-activations": Words(
        family="sensitive-op",
        facts=("short_left", "left"),
        clause="product of two activations: {short_left}",
        sentence="it is a product of two activations, as in attention; {left}",
    ),
    "decoding": Words(
        family="sensitive-op",
        facts=("short_left", "op_type", "left"),
        clause="decodes outputs of very different size: {short_left}",
        sentence="{op_type} decodes the outputs at the end: its values differ widely in size; {left}",
    ),
    "noise-adds-up": Words(
        family="accumulated-noise",
        facts=("short_left", "tensor", "sqnr_db", "below_best", "format"),
        clause="rounding adds up, {short_left}",
        sentence=(
            "nothing stands out: '{tensor}' keeps {sqnr_db:.3g} dB, {below_best:.2g} dB from the "
            "best that {format} can do; the noise of several layers adds up"
        ),
    ),
    "engine-differs": Words(
        family="engine-only",
        facts=("short_left", "format", "tensor", "sqnr_db"),
        clause="the engine is off, its model is not: {short_left}",
        sentence=(
            "the same Q/DQ model meets the criteria in ONNX Runtime's exact {format}, the engine "
            "does not; its noisiest edge '{tensor}' keeps {sqnr_db:.3g} dB"
        ),
    ),
    "engine-rounds": Words(
        family="engine-only",
        facts=("precision",),
        clause="the engine is off, the same model in ONNX Runtime is not",
        sentence=(
            "the same model in {precision} meets the criteria in ONNX Runtime, where each result is"
            " rounded and sums are FP32; the engine does not"
        ),
    ),
    "within-noise": Words(
        family="non-determinism",
        clause="the limit lies within the noise from run to run",
        sentence=(
            "the limit lies within the noise between two runs of the baseline, and no scale is at fault"
        ),
    ),
    "fp16-around": Words(
        family="fp16-around",
        facts=("format", "tensor", "sqnr_db"),
        clause="FP16 around it holds less than {format} needs",
        sentence="FP16 around it holds less than {format} needs; '{tensor}' keeps {sqnr_db:.3g} dB",
    ),
    "beyond-range": Words(
        family="overflow",
        facts=("amax", "precision", "reach", "tensor"),
        clause="reaches {amax:.4g}, {precision} ends at {reach:g}",
        sentence="'{tensor}' reaches {amax:.4g}, {precision} ends at {reach:g}",
    ),
    "reads-beyond-range": Words(
        family="overflow",
        facts=("amax", "precision", "reach", "tensor"),
        clause="reads {amax:.4g}, {precision} ends at {reach:g}",
        sentence="it reads '{tensor}', which reaches {amax:.4g}; {precision} ends at {reach:g}",
    ),
    "constant-beyond-range": Words(
        family="overflow",
        facts=("amax", "precision", "reach", "tensor"),
        clause="a constant is {amax:.4g}, {precision} ends at {reach:g}",
        sentence="its constant '{tensor}' holds {amax:.4g}, {precision} ends at {reach:g}",
    ),
    "vanishing-values": Words(
        family="underflow",
        facts=("lost", "precision", "tensor", "smallest"),
        clause="{lost:g} values become 0 in {precision}",
        sentence="{lost:g} values of '{tensor}' become 0 in {precision}, which ends at {smallest:.2g}",
    ),
    "vanishing-constant": Words(
        family="underflow",
        facts=("amax", "precision", "tensor"),
        clause="a constant of {amax:.3g} is 0 in {precision}",
        sentence="its constant '{tensor}' is {amax:.3g}, which is 0 in {precision}",
    ),
    "cancelling": Words(
        family="cancellation",
        facts=("share", "precision", "tensor"),
        clause="a difference changes by {share:%} when rounded to {precision}",
        sentence=(
            "'{tensor}' is a small difference of large values: rounding them to {precision} changes"
            " it by {share:%}"
        ),
    ),
    "needs-digits": Words(
        family="rounding",
        facts=("tensor", "precision"),
        clause="loses digits that its readers need",
        sentence=(
            "nothing of it overflows or vanishes; '{tensor}' loses digits in {precision} that its "
            "readers need"
        ),
    ),
}

#: The kind of cause that symptoms belong to. A symptom without an advice of its own has its kind's.
CAUSES: Mapping[CauseKind, Words] = {
    "scale-too-wide": Words(
        plural="scales too wide",
        advice="calibrate this tensor anew: its range should end where its values do",
    ),
    "saturation": Words(
        plural="scales that cut values off",
        advice="give it a range that holds its values, from data like the real inputs",
    ),
    "zero-point": Words(
        plural="zero points",
        advice="quantize to int8 with zero point 0; TensorRT takes nothing else",
    ),
    "zero-scale": Words(
        plural="scales that are 0 or vanish",
        advice="give the tensor a scale above 0: its greatest magnitude divided by 127",
    ),
    "missing-scale": Words(
        facts=("format",),
        plural="missing scales",
        advice=("calibrate the tensor, or add it to the scale file; until then the layer is not in {format}"),
    ),
    "activation-outliers": Words(
        plural="outliers in activations",
        advice=(
            "move the range of the large channels into the weights (as SmoothQuant does), or keep "
            "the layer in FP16"
        ),
    ),
    "weight-outliers": Words(
        plural="outliers in weights",
        advice="give each output channel its own scale; where it has one, keep the layer in FP16",
    ),
    "weight-scale": Words(
        plural="scales that do not fit their weights",
        advice="make the scale anew from the weights: max |w| of each channel divided by 127",
    ),
    "wrong-axis": Words(
        plural="weight scales along the wrong axis",
        advice="put the scales along the output channels: axis 0 of a Conv, axis 1 of a MatMul's right",
    ),
    "mismatched-scales": Words(
        plural="one scale for tensors of different ranges",
        advice="scale the tensors alike before they meet, or keep what joins them in FP16",
    ),
    "sensitive-op": Words(
        facts=("format",),
        plural="operators that {format} does not suit",
        advice="keep it in FP16: TensorRT's guide advises against {format} here",
    ),
    "accumulated-noise": Words(
        plural="rounding that adds up",
        advice="keep the layer in FP16, or train with quantization (QAT)",
    ),
    "fp16-around": Words(
        facts=("format",),
        plural="FP16 around {format}",
        advice="keep what surrounds it in FP32: 'baseline: fp32', or 'search: {{keep: fp32}}'",
    ),
    "engine-only": Words(
        plural="an engine that differs from its model",
        advice="try another TensorRT version or other tactics, and report it with the minimal reproducer",
    ),
    "non-determinism": Words(
        plural="noise from run to run",
        advice="loosen the limit above the noise, or make the runs deterministic",
    ),
    "overflow": Words(
        plural="values beyond the format",
        advice="keep it in FP32, or scale the values down in the model",
    ),
    "underflow": Words(
        plural="values that vanish",
        advice="keep it in FP32, or scale the values up in the model",
    ),
    "cancellation": Words(
        plural="differences that cancel",
        advice="keep it in FP32, or have the model subtract before it squares or sums",
    ),
    "rounding": Words(
        plural="digits that are needed",
        advice="keep it in FP32",
    ),
}

#: What a trial took back, as the beginning of a sentence that goes on with a share of the loss.
ABLATIONS: Mapping[TakenKind, Words] = {
    "activation": Words(facts=("it",), clause="{it} unquantized gives back"),
    "constants": Words(facts=("it",), clause="{it} unquantized gives back"),
    "range": Words(facts=("it",), clause="a range that fits {it} gives back"),
    "channels": Words(facts=("channels", "of_it", "explain"), clause="{channels}{of_it} {explain}"),
    "per-channel": Words(facts=("scales", "of_it"), clause="{scales}{of_it} gives back"),
    "fp32": Words(clause="FP32 around it gives back"),
}

#: A step from the framework to the engine: its name, and what it means where it is the first to fail.
STAGES: Mapping[Stage, Words] = {
    "framework": Words(clause="framework"),
    "FP32 ONNX": Words(
        clause="FP32 ONNX",
        sentence="the export to ONNX changed the model, or inputs are prepared otherwise there",
        advice="mend the export, or the preparation of its inputs, then run again",
    ),
    "FP16": Words(
        facts=("format",),
        clause="FP16",
        sentence="FP16 is off already: {format} is not the problem",
        advice="compare with 'baseline: fp32', or keep what overflows below 65504 in the model",
    ),
    "Q/DQ in ONNX Runtime": Words(
        facts=("format",),
        clause="Q/DQ in ONNX Runtime",
        sentence="quantization loses it: scales, or layers that {format} does not suit",
    ),
    "engine FP16": Words(
        clause="engine FP16",
        sentence="the FP16 engine differs from its model: TensorRT's own doing",
        advice="try another TensorRT version, and report it",
    ),
    "engine FP32": Words(
        clause="engine FP32",
        sentence="the FP32 engine differs from its model: TensorRT's own doing",
        advice="try another TensorRT version, and report it",
    ),
    "engine INT8": Words(
        facts=("format",),
        clause="engine {format}",
        sentence="the Q/DQ model is fine, the engine made of it is not: TensorRT's own doing",
        advice="try another TensorRT version or a lower optimization_level, and report it",
    ),
    "implicit INT8": Words(
        facts=("format",),
        clause="implicit {format}",
        sentence=(
            "quantization loses it: ranges of TensorRT's calibration, or layers that {format} does not suit"
        ),
    ),
}

#: Why a search ended.
ENDINGS: Mapping[EndingKind, Words] = {
    "proven": Words(
        facts=("high", "format"),
        sentence=(
            "proven minimal: each of the {high} groups kept high was sent back to {format} alone, and fails"
        ),
    ),
    "int8-passes": Words(
        facts=("format",),
        sentence="with all groups in {format} the criteria are met: nothing has to leave {format}",
    ),
    "high-fails": Words(
        facts=("cause",), sentence="with all groups in high precision the criteria fail too: {cause}"
    ),
    "nothing-left": Words(
        facts=("format",), sentence="only with every layer out of {format} are the criteria met"
    ),
    "plan-fails": Words(sentence="the plan to certify fails"),
    "first": Words(
        facts=("high", "groups"),
        sentence=(
            "the first {high} of {groups} groups: no shorter list was found, and groups within it may be "
            "innocent"
        ),
    ),
    "last": Words(
        facts=("high", "groups"),
        sentence=(
            "the last {high} of {groups} groups: no shorter list was found, and groups within it may be "
            "innocent"
        ),
    ),
    "worst": Words(
        facts=("high", "groups"),
        sentence="the {high} of {groups} groups that add most error: groups among them may be innocent",
    ),
    "visited": Words(
        facts=("high",),
        sentence=("all groups were visited, {high} chosen: some may be innocent once later ones were chosen"),
    ),
    "trials-spent": Words(
        facts=("max_trials",), sentence="stopped early: the budget of {max_trials} trials is spent"
    ),
    "seconds-spent": Words(
        facts=("max_seconds",), sentence="stopped early: the budget of {max_seconds:g} s is spent"
    ),
    "cut-short": Words(
        facts=("high", "groups"),
        sentence=(
            "stopped with {high} of {groups} groups high, as trials of shorter lists had cost enough: some "
            "may be innocent"
        ),
    ),
    "interrupted": Words(sentence="stopped early: interrupted (Ctrl-C)"),
}

#: How an output's values lie to those of the baseline: a clause on one stage, a sentence on the case.
FITS: Mapping[Meaning, Words] = {
    "constant": Words(
        facts=("format", "offset"),
        clause="as one value throughout",
        sentence=(
            "{format} is {offset:.4g} everywhere while the baseline varies: a tensor on the way to this "
            "output is quantized to a single value, its scale is far too wide or it is cut off entirely"
        ),
    ),
    "small": Words(
        facts=("format", "slope", "before"),
        clause="{slope:.3g} times what {before} gives",
        sentence=(
            "{format} values are {slope:.3g} of the baseline's throughout: a scale is wrong for all samples, "
            "either a dynamic range too narrow, which cuts values off, or one far too wide, which rounds "
            "small values to 0"
        ),
    ),
    "large": Words(
        facts=("format", "slope", "before"),
        clause="{slope:.3g} times what {before} gives",
        sentence=(
            "{format} values are {slope:.3g} times the baseline's throughout: a scale is wrong for all "
            "samples, look for a dynamic range far from what its tensor holds"
        ),
    ),
    "shifted": Words(
        facts=("format", "offset", "shift", "deviations"),
        clause="shifted by {offset:.3g}",
        sentence=(
            "{format} values are shifted by {shift:.3g} on average ({deviations:.2g} of the baseline's "
            "standard deviation): values cut off on one side only, or a wrong bias or zero point"
        ),
    ),
}

#: What a remedy changes, by the field of ``Repair`` that holds it: a clause to recommend it, and in detail.
CHANGES: Mapping[str, Words] = {
    "fused": Words(
        facts=("norms", "names"),
        clause="make {norms} in parts one node each",
        sentence="{norms} in parts made one node each, which computes in FP32 inside ({names})",
    ),
    "outputs": Words(
        facts=("outputs", "names"),
        clause="{outputs}, to be left unread, against a wrong fusion",
        sentence="{outputs} of the engine, to be left unread ({names}), breaks a wrong fusion",
    ),
    "rescales": Words(
        facts=("tensors", "methods"),
        clause="other scales for {tensors}",
        sentence="other scales for {tensors} ({methods})",
    ),
    "weights": Words(
        facts=("weights",),
        clause="new scales for {weights}",
        sentence="scales of {weights} taken anew",
    ),
    "migration": Words(
        facts=("alpha", "places"),
        clause="range moved into weights",
        sentence="channels evened out by migration to the weights (alpha {alpha:g}; {places})",
    ),
}

#: Outputs that no working model gives.
DEAD: Mapping[DeadKind, Words] = {
    "zeros": Words(clause="all-zero outputs"),
    "shuffled": Words(clause="outputs shuffled between samples"),
    "mean": Words(clause="the mean output for every sample"),
    "shifted": Words(facts=("output",), clause="{output} with its classes shifted by one"),
    "replaced": Words(facts=("output",), clause="{output} set to zero"),
    "greatest": Words(facts=("output",), clause="{output} at its greatest value everywhere"),
}

#: Parts of the work after a verdict, as a stopped case names what it left out.
PARTS: Mapping[Part, Words] = {
    "search": Words(clause="the rest of the search"),
    "proof": Words(clause="the proof of its plan"),
    "certification": Words(clause="certification"),
    "fewer-layers": Words(clause="whether fewer layers do"),
    "tradeoff": Words(facts=("format",), clause="what more layers out of {format} buy"),
    "reserve": Words(clause="a plan that keeps the limits with a reserve"),
    "alone": Words(clause="what each culprit does alone"),
    "layer-precisions": Words(clause="the fix as layer precisions"),
    "engine-layers": Words(clause="errors between engines"),
    "latency": Words(clause="the time of the fix"),
    "stages": Words(clause="stages"),
    "causes": Words(clause="causes"),
    "layers": Words(clause="errors of the layers"),
    "ranges": Words(clause="a look at all ranges"),
    "calibrations": Words(clause="calibration methods"),
    "repair": Words(clause="cheaper fixes"),
    "fix": Words(clause="files of the fix"),
    "reproducer": Words(clause="reproducers"),
    "worst-samples": Words(clause="a look at the worst samples"),
}

#: What a case is doing in a phase.
PHASES: Mapping[PhaseName, Words] = {
    "setup": Words(clause="reading model and data"),
    "calibration": Words(clause="calibrating"),
    "runs": Words(clause="running both forms"),
    "search": Words(clause="searching the layers at fault"),
    "proof": Words(clause="building and running the fix"),
    "causes": Words(clause="looking for causes"),
    "repair": Words(clause="looking for cheaper fixes"),
    "files": Words(clause="writing files"),
}

#: Each enumeration of ``results/`` and the table that has a row for each of its values.
TABLES: tuple[tuple[Any, Mapping[Any, Words]], ...] = (
    (Symptom, SYMPTOMS),
    (CauseKind, CAUSES),
    (TakenKind, ABLATIONS),
    (Stage, STAGES),
    (EndingKind, ENDINGS),
    (Meaning, FITS),
    (DeadKind, DEAD),
    (Part, PARTS),
    (PhaseName, PHASES),
)

#: Metrics, by their name in a spec.
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
#: Numbers of a cause, by their name in ``Cause.numbers``.
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
    "amax_in_use": Label("Weights in use", "", "greatest weight whose inputs are not next to 0"),
    "axis": Label("Channel axis", "", "the axis along which the channels lie"),
    "axis_of_scales": Label("Axis of the scales", "", "the axis along which the scales were made"),
}
#: Files of a fix, in the order in which a page lists them; the texts may use ``{format}``.
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
