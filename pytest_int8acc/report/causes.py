"""Why a layer loses accuracy in INT8, as sentences, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_int8acc.report.words import NAME, count, few, middle, percent
from pytest_int8acc.results.causes import Ablation, Cause, CauseKind, Symptom, TakenKind

#: Every kind of cause, with what to do.
ADVICE: Mapping[CauseKind, str] = {
    "scale-too-wide": "calibrate this tensor anew: its range should end where its values do",
    "saturation": "give it a range that holds its values, from data like the real inputs",
    "zero-point": "quantize to int8 with zero point 0; TensorRT takes nothing else",
    "zero-scale": "give the tensor a scale above 0: its greatest magnitude divided by 127",
    "missing-scale": "calibrate the tensor, or add it to the scale file; until then the layer is not in INT8",
    "activation-outliers": "move the range of the large channels into the weights (as SmoothQuant does), "
    "or keep the layer in FP16",
    "weight-outliers": "give each output channel its own scale; where it has one, keep the layer in FP16",
    "weight-scale": "make the scale anew from the weights: max |w| of each channel divided by 127",
    "wrong-axis": "put the scales along the output channels: axis 0 of a Conv, axis 1 of a MatMul's right",
    "mismatched-scales": "scale the tensors alike before they meet, or keep what joins them in FP16",
    "sensitive-op": "keep it in FP16: TensorRT's guide advises against INT8 here",
    "accumulated-noise": "keep the layer in FP16, or train with quantization (QAT)",
    "fp16-around": "keep what surrounds it in FP32: 'baseline: fp32', or 'search: {keep: fp32}'",
    "engine-only": "try another TensorRT version or other tactics, and report it with the minimal reproducer",
    "non-determinism": "loosen the limit above the noise, or make the runs deterministic",
    "overflow": "keep it in FP32, or scale the values down in the model",
    "underflow": "keep it in FP32, or scale the values up in the model",
    "cancellation": "keep it in FP32, or have the model subtract before it squares or sums",
    "rounding": "keep it in FP32",
}
#: What to do where a symptom asks for something else than its kind.
_ADVICE: Mapping[Symptom, str] = {
    "stretched-range": "clip the few large values: calibrate this tensor by percentile or mse",
    "large-values": "keep the layer in FP16, or train with quantization (QAT)",
}
_COST = "keeps {sqnr_db:.3g} dB, the best scale {best_sqnr_db:.3g} dB"
_WEIGHT_COST = "it keeps {sqnr_db:.3g} dB, scales from its channels {best_sqnr_db:.3g}"
_WEIGHT_LEFT = "even scales from its channels keep {best_sqnr_db:.3g} dB only"
#: A sentence for every symptom: of the cause's fields, its numbers and the phrases below.
_SENTENCES: Mapping[Symptom, str] = {
    "range-too-wide": "scale {factor:.3g}x too wide: '{tensor}' reaches {amax:.3g}, its range {reach:.3g}, "
    "so {codes_unused:%} of the INT8 codes are unused; " + _COST,
    "cut-off": "'{tensor}' is cut off at {reach:.3g} while it reaches {amax:.3g}: {clipped:%} of the values, "
    "with {clipped_energy:%} of the energy lost; " + _COST,
    "one-sided": "'{tensor}' is {format} with zero point {zero_point:g}, which holds only {low:.3g} to "
    "{high:.3g}: {clipped:%} of the values are cut off on one side; " + _COST,
    "vanishing-scale": "'{tensor}' has the scale {scale:.3g}, below {least_scale:.3g}, the least that "
    "{precision} holds",
    "vanishing-weight-scale": "weight '{tensor}' has the scale {scale:.3g}",
    "no-scale": "no scale for {named_others}: the layer is not in INT8",
    "large-channels": "{named_channels} {channel_amax:.3g}, {channel_ratio:.3g}x the usual channel: the "
    "others share {codes_left:g} of 127 codes",
    "large-values": "a few values of '{tensor}' reach {amax:.3g}{times}, and the range with them",
    "stretched-range": "a few values of '{tensor}' reach {amax:.3g}{times}, and the range with them; "
    + _COST,
    "uneven-parts": "parts of unlike range, up to {channel_amax:.3g} and {other_amax:.3g}, share one scale "
    "in '{tensor}', where {op_type} '{node}' joins them",
    "range-of-partner": "'{tensor}' reaches {amax:.3g} but has the scale of {named_others}, which reaches "
    "{partner_amax:.3g} and meets it at {op_type} '{node}'; " + _COST,
    "few-codes": "weight '{tensor}' uses {codes_used:%} of its INT8 codes",
    "weight-scales-off": "{many_scales} {how_far}: " + _WEIGHT_COST,
    "scales-of-other-axis": "the scales of weight '{tensor}' are those of axis {axis_of_scales:g}, its "
    "channels lie along axis {axis:g}: " + _WEIGHT_COST,
    "one-scale-for-channels": "weight '{tensor}' has one scale for all channels, of which the greatest "
    "reaches {channel_ratio:.3g}x the usual one: " + _WEIGHT_COST,
    "large-weights": "a few values of weight '{tensor}' reach {amax:.3g}{times}: " + _WEIGHT_LEFT,
    "large-idle-weights": "weight '{tensor}' reaches {amax:.3g} where its inputs are next to 0, "
    "{amax_in_use:.3g} elsewhere: " + _WEIGHT_LEFT,
    "quantized-inputs": "{op_type} loses much by quantized inputs; {left}",
    "after-softmax": "{named_others} is made by {op_type} '{node}'; {left}",
    "after-gelu": "{named_others} comes from a GELU; {left}",
    "product-of-activations": "it is a product of two activations, as in attention; {left}",
    "decoding": "{op_type} decodes the outputs at the end: its values differ widely in size; {left}",
    "noise-adds-up": "nothing stands out: '{tensor}' keeps {sqnr_db:.3g} dB, {below_best:.2g} dB from the "
    "best that INT8 can do; the noise of several layers adds up",
    "fp16-around": "FP16 around it holds less than INT8 needs; '{tensor}' keeps {sqnr_db:.3g} dB",
    "engine-differs": "the same Q/DQ model meets the criteria in ONNX Runtime's exact INT8, the engine does "
    "not; its noisiest edge '{tensor}' keeps {sqnr_db:.3g} dB",
    "engine-rounds": "the same model in {precision} meets the criteria in ONNX Runtime, where each result is "
    "rounded and sums are FP32; the engine does not",
    "within-noise": "the limit lies within the noise between two runs of the baseline, and no scale is at "
    "fault",
    "beyond-range": "'{tensor}' reaches {amax:.4g}, {precision} ends at {reach:g}",
    "reads-beyond-range": "it reads '{tensor}', which reaches {amax:.4g}; {precision} ends at {reach:g}",
    "constant-beyond-range": "its constant '{tensor}' holds {amax:.4g}, {precision} ends at {reach:g}",
    "vanishing-values": "{lost:g} values of '{tensor}' become 0 in {precision}, which ends at {smallest:.2g}",
    "vanishing-constant": "its constant '{tensor}' is {amax:.3g}, which is 0 in {precision}",
    "cancelling": "'{tensor}' is a small difference of large values: rounding them to {precision} changes it "
    "by {share:%}",
    "needs-digits": "nothing of it overflows or vanishes; '{tensor}' loses digits in {precision} that what "
    "reads it needs",
}
#: What a kind of cause is called, in the plural.
KINDS: Mapping[CauseKind, str] = {
    "scale-too-wide": "scales too wide",
    "saturation": "scales that cut values off",
    "zero-point": "zero points",
    "zero-scale": "scales that are 0 or vanish",
    "missing-scale": "missing scales",
    "activation-outliers": "outliers in activations",
    "weight-outliers": "outliers in weights",
    "weight-scale": "scales that do not fit their weights",
    "wrong-axis": "weight scales along the wrong axis",
    "mismatched-scales": "one scale for tensors of different ranges",
    "sensitive-op": "operators that INT8 does not suit",
    "accumulated-noise": "rounding that adds up",
    "fp16-around": "FP16 around INT8",
    "engine-only": "an engine that differs from its model",
    "non-determinism": "noise from run to run",
    "overflow": "values beyond the format",
    "underflow": "values that vanish",
    "cancellation": "differences that cancel",
    "rounding": "digits that are needed",
}
_SHORT_COST = "SQNR {sqnr_db:.3g} dB where {best_sqnr_db:.3g} is possible"
#: A clause for every symptom, which names no tensor: beside the layer's name it fits in a line.
_CLAUSES: Mapping[Symptom, str] = {
    "range-too-wide": "scale {factor:.3g}x too wide, " + _SHORT_COST,
    "cut-off": "values up to {amax:.3g} are cut off at {reach:.3g}, {clipped:%} of them",
    "one-sided": "{format} with zero point {zero_point:g} cuts off {clipped:%} of the values",
    "vanishing-scale": "scale {scale:.3g} is below {least_scale:.3g}, the least that {precision} holds",
    "vanishing-weight-scale": "weights with the scale {scale:.3g}",
    "no-scale": "no scale, so it is not in INT8",
    "large-channels": "{many_channels} {channel_ratio:.3g}x the usual, 127 codes shrink to {codes_left:g}",
    "large-values": "a few values reach {amax:.3g}{times_usual}",
    "stretched-range": "a few values reach {amax:.3g}, " + _SHORT_COST,
    "uneven-parts": "parts of unlike range, up to {channel_amax:.3g} and {other_amax:.3g}, share one scale",
    "range-of-partner": "its values reach {amax:.3g}, its scale is for {partner_amax:.3g}",
    "few-codes": "weights use {codes_used:%} of their INT8 codes",
    "weight-scales-off": "weight scales {how_far}",
    "scales-of-other-axis": "weight scales along axis {axis_of_scales:g}, its channels lie along {axis:g}",
    "one-scale-for-channels": "one scale for weights, a channel of which is {channel_ratio:.3g}x the usual",
    "large-weights": "a few weights reach {amax:.3g}{times_usual}",
    "large-idle-weights": "weights reach {amax:.3g}, those in use {amax_in_use:.3g}",
    "quantized-inputs": "{short_op} loses much by quantized inputs: {short_left}",
    "after-softmax": "made by {short_op}: {short_left}",
    "after-gelu": "comes from a GELU: {short_left}",
    "product-of-activations": "product of two activations: {short_left}",
    "decoding": "decodes outputs of very different size: {short_left}",
    "noise-adds-up": "rounding adds up, {short_left}",
    "fp16-around": "FP16 around it holds less than INT8 needs",
    "engine-differs": "the engine is off, its model is not: {short_left}",
    "engine-rounds": "the engine is off, the same model in ONNX Runtime is not",
    "within-noise": "the limit lies within the noise from run to run",
    "beyond-range": "reaches {amax:.4g}, {precision} ends at {reach:g}",
    "reads-beyond-range": "reads {amax:.4g}, {precision} ends at {reach:g}",
    "constant-beyond-range": "a constant is {amax:.4g}, {precision} ends at {reach:g}",
    "vanishing-values": "{lost:g} values become 0 in {precision}",
    "vanishing-constant": "a constant of {amax:.3g} is 0 in {precision}",
    "cancelling": "a difference changes by {share:%} when rounded to {precision}",
    "needs-digits": "loses digits that what reads it needs",
}


class _Number(float):
    """A number whose format ``%`` is a share in words."""

    def __format__(self, spec: str) -> str:
        return percent(self) if spec == "%" else super().__format__(spec)


class _Facts(dict[str, str | _Number]):
    """Fields and numbers of a cause by name; phrases are made where a sentence asks for them."""

    def __init__(self, cause: Cause) -> None:
        texts = {"tensor": cause.tensor, "node": cause.node, "op_type": cause.op_type, "format": cause.format}
        ranges = {"amax": cause.amax, "reach": cause.reach}
        numbers = {k: _Number(v) for k, v in {**cause.numbers, **ranges}.items() if v is not None}
        super().__init__({**texts, **numbers})
        self.cause = cause

    def __missing__(self, name: str) -> str | _Number:
        return _PHRASES[name](self.cause)


def cause_text(cause: Cause) -> str:
    """What was measured, in a sentence with its numbers."""
    return "; ".join(filter(None, [_SENTENCES[cause.symptom].format_map(_Facts(cause)), taken_text(cause)]))


def cause_clause(cause: Cause) -> str:
    """The same in few words, without the names of tensors."""
    return _CLAUSES[cause.symptom].format_map(_Facts(cause))


def cause_brief(cause: Cause) -> str:
    """The same, and what shows the cause."""
    return "; ".join(filter(None, [cause_clause(cause), taken_text(cause, named=True)]))


def taken_text(cause: Cause, *, named: bool = False) -> str:
    """Like ``channel 7 explains 97 % of the loss on 32 samples``; empty where nothing was tried.

    Args:
        cause: Any.
        named: Whether the tensor is called by its name.
    """
    taken = cause.ablation
    if taken is None:
        return ""
    what = f"'{middle(taken.tensor, NAME)}'" if named else ""
    chance = ", so chance has a part in it" if taken.beyond else ""
    text = f"{_TAKEN[taken.kind](cause, what)} {share_text(taken)}{chance}"
    others = [t for t in cause.tried if t.kind == "range" and t.tensor == taken.tensor]
    others = [] if taken.kind == "range" else others
    return text + "".join(f", another range {percent(other.share)}" for other in others)


def share_text(taken: Ablation, whose: str = "the") -> str:
    """Like ``97 % of the loss on 32 samples``; ``loss alone`` where all else was high."""
    seen = f" on {taken.samples} samples" if taken.samples is not None else ""
    loss = f"{whose} loss{' alone' * taken.alone}{seen}"
    return f"{'more than' if taken.beyond else f'{percent(taken.share)} of'} {loss}"


def _freed(what: str) -> str:
    return f"{what or 'it'} unquantized gives back"


def _largest_channel(cause: Cause, what: str) -> str:
    named = _channels(cause) + (f" of {what}" if what else "")
    return f"{named} explain{'s' * (len(cause.channels) == 1)}"


def _each(cause: Cause, what: str) -> str:
    """Scales for the parts that a Concat joined, or for each channel."""
    scales = "a scale for each part" if cause.symptom == "uneven-parts" else "one scale per channel"
    return f"{scales}{' of ' * bool(what)}{what} gives back"


#: What was taken back, up to how much of the loss that gave back.
_TAKEN: Mapping[TakenKind, Callable[[Cause, str], str]] = {
    "activation": lambda cause, what: _freed(what),
    "constants": lambda cause, what: _freed(what),
    "range": lambda cause, what: f"a range that fits {what or 'it'} gives back",
    "channels": _largest_channel,
    "per-channel": _each,
    "fp32": lambda cause, what: "FP32 around it gives back",
}


def advice(cause: Cause) -> str:
    """What to do."""
    return _ADVICE.get(cause.symptom) or ADVICE[cause.kind]


def _channels(cause: Cause) -> str:
    large = list(cause.channels)
    return f"channel{'s' * (len(large) > 1)} {few([str(channel) for channel in large], 5)}"


def _named_channels(cause: Cause) -> str:
    return f"{_channels(cause)} of '{cause.tensor}' reach{'es' * (len(cause.channels) == 1)}"


def _times(cause: Cause) -> str:
    return f", {times}x the 99.9th percentile" if (times := _ratio_to_usual(cause)) else ""


def _ratio_to_usual(cause: Cause) -> str:
    usual = cause.numbers["p99.9"]
    return f"{(cause.amax or 0.0) / usual:.3g}" if usual else ""


def _left(cause: Cause) -> str:
    """What INT8 leaves of an edge's values; of those beside a mask, hardly anything."""
    if cause.masked:
        return (
            f"'{cause.tensor}' reaches {cause.amax:.3g}, as a mask does, and what is small beside that "
            "shares a few codes"
        )
    return f"'{cause.tensor}' keeps {cause.numbers['sqnr_db']:.3g} dB"


def _short_left(cause: Cause) -> str:
    if cause.masked:
        return f"values of {cause.amax:.3g}, as of a mask, take the codes"
    whose = "weight" if "factor_least" in cause.numbers else "input"
    return f"its {whose} keeps {cause.numbers['sqnr_db']:.3g} dB"


def _many_scales(cause: Cause) -> str:
    count = round(cause.numbers["scales"])
    many = f"{cause.numbers['scales_off']:g} of {count} scales" if count > 1 else "the scale"
    return f"{many} of weight '{cause.tensor}' {'are' if count > 1 else 'is'}"


def _how_far(cause: Cause) -> str:
    factor = cause.numbers["factor"]
    return f"up to {factor:.3g}x too wide" if factor > 1 else f"down to {factor:.3g} of what they must reach"


_PHRASES: Mapping[str, Callable[[Cause], str | _Number]] = {
    "codes_unused": lambda cause: _Number(1 - cause.numbers["codes_used"]),
    "below_best": lambda c: _Number(max(c.numbers["best_sqnr_db"] - c.numbers["sqnr_db"], 0.0)),
    "named_others": lambda cause: ", ".join(f"'{name}'" for name in cause.others),
    "precision": lambda cause: cause.format.upper(),
    "named_channels": _named_channels,
    "times": _times,
    "times_usual": lambda cause: f", {times}x most others" if (times := _ratio_to_usual(cause)) else "",
    "many_channels": lambda cause: count(max(len(cause.channels), 1), "channel"),
    "short_op": lambda cause: middle(cause.op_type, 20),
    "short_left": _short_left,
    "left": _left,
    "many_scales": _many_scales,
    "how_far": _how_far,
}
