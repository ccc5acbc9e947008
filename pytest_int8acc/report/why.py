"""Makes sentences on why a case fails: faults of layers, of a form of the model, of outputs, of ranges."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_int8acc.report.catalogue import ABLATIONS, CAUSES, FITS, HINT, STAGES, SYMPTOMS, Why
from pytest_int8acc.report.words import (
    NAME,
    count,
    few,
    joined,
    middle,
    number,
    pairs_text,
    percent,
    quoted,
    worst_first,
)
from pytest_int8acc.results import CaseResult, Culprit, Diagnosis, Finding, LineFit, OutputResult, StageLine
from pytest_int8acc.results.causes import (
    Ablation,
    AddedNode,
    Cause,
    CauseKind,
    Jump,
    OddRanges,
    OtherModel,
    SpeedSearch,
    Stage,
    Symptom,
)
from pytest_int8acc.results.scores import FloatNan
from pytest_int8acc.results.search import Quantizer

#: Stages that add no quantization to the stage before. A stage is a form of the model between the framework
#: and the engine. If one of these stages is the first to miss a limit, the line *Why* of the report names the
#: stage, and no layers.
_NOT_BY_QUANTIZATION = ("FP32 ONNX", "FP16", "engine FP16", "engine INT8")
#: The stages in FP16. If one of them is the first to miss a limit, a node that chooses among values, such as
#: TopK, may be the reason.
_FLOAT_STAGES = ("FP16", "engine FP16")
#: The stages that add quantization to the stage before, either by Q/DQ nodes or by TensorRT itself.
_QUANTIZED_STAGES = ("Q/DQ in ONNX Runtime", "implicit INT8")
#: If other scales remove at least this share of a loss, the report names the scales as the cause of the loss.
_MOST_BY_SCALES = 0.5
#: An output is called unrelated to the baseline's if the correlation of both is below this number. Then more
#: than a third of its variance (1 - correlation squared) is error, even after the best linear correction.
_UNRELATED = 0.8
#: Kinds of causes that ranges from unsuitable calibration data can have. If the preprocessing of the
#: calibration data is wrong, the report does not name layers with such a cause as layers at fault.
_BY_RANGES: tuple[CauseKind, ...] = (
    "scale-too-wide",
    "saturation",
    "zero-scale",
    "activation-outliers",
    "mismatched-scales",
    "sensitive-op",
    "accumulated-noise",
    "rounding",
)
#: A symptom, to words for the scales that the trial of this symptom gave to a tensor. For all other symptoms
#: each channel got a scale.
_SCALES: Mapping[Symptom, str] = {
    "uneven-parts": "a scale for each part",
    "uneven-channels": "a scale for the channels of each size",
}
#: The calibration data and the inputs are said to have the same range if their greatest values differ by less
#: than this factor.
_SAME_REACH = 1.4


class _Number(float):
    """A number in a template of ``str.format``, which ``{name:%}`` shows in percent."""

    def __format__(self, spec: str) -> str:
        return percent(self) if spec == "%" else super().__format__(spec)


class _Facts(dict[str, str | _Number]):
    """The names in the templates of a symptom, with the numbers and texts that replace them.

    The numbers of the cause are stored. The texts of ``FACTS`` are made on access, because most of them need
    numbers that only some causes have.
    """

    def __init__(self, cause: Cause, low_format: str) -> None:
        numbers = {**cause.numbers, "amax": cause.amax, "reach": cause.reach}
        super().__init__({name: _Number(value) for name, value in numbers.items() if value is not None})
        self["format"] = low_format
        self.cause = cause

    def __missing__(self, name: str) -> str | _Number:
        return FACTS[name](self.cause)


def cause_text(cause: Cause, low_format: str) -> str:
    """Returns a sentence on the cause, with the share of the loss that a trial without the cause removed."""
    sentence = SYMPTOMS[cause.symptom].sentence.format_map(_Facts(cause, low_format))
    shown = HINT if cause.evidence is None else _ablation_text(cause)
    return joined(sentence, shown)


def cause_clause(cause: Cause, low_format: str) -> str:
    """Returns a few words on the cause, without the names of tensors."""
    return SYMPTOMS[cause.symptom].clause.format_map(_Facts(cause, low_format))


def cause_brief(cause: Cause, low_format: str) -> str:
    """Returns a few words on the cause, with the share of the loss that a trial without the cause removed."""
    return joined(cause_clause(cause, low_format), _ablation_text(cause, named=True))


def cause_advice(cause: Cause, low_format: str) -> str:
    """Returns the advice to the user on a cause. ``low_format`` is the case's format, like ``INT8``."""
    own = SYMPTOMS[cause.symptom].advice
    return (own or CAUSES[cause.kind].advice).format(format=low_format)


def _ablation_text(cause: Cause, *, named: bool = False) -> str:
    """Returns text on the trial that confirmed a cause, like ``channel 7 explains 97 % of the loss``.

    The text is empty if no trial confirmed the cause.

    Args:
        cause: The cause that the trial showed.
        named: Whether the text contains the name of the tensor.
    """
    ablation = cause.ablation
    if ablation is None:
        return ""
    name = quoted(ablation.tensor) if named else ""
    facts = {
        "it": name or "it",
        "of_it": f" of {name}" if name else "",
        "channels": _channels(cause),
        "explain": "explains" if len(cause.channels) == 1 else "explain",
        "scales": _SCALES.get(cause.symptom, "a scale for each channel"),
    }
    chance = ", so chance has a part in it" if ablation.beyond else ""
    text = f"{ABLATIONS[ablation.kind].format_map(facts)} {share_text(ablation)}{chance}"
    if ablation.kind == "range":
        return text
    for other in cause.tried:
        if other.kind == "range" and other.tensor == ablation.tensor:
            text += f", another range {percent(other.share)}"
    return text


def share_text(ablation: Ablation, whose: str = "the") -> str:
    """Returns text like ``97 % of the loss on 32 samples``: how much loss the change in a trial removed.

    ``whose`` goes before the word loss. In the text, ``loss alone`` means that all other layers were in high
    precision during the trial.
    """
    samples = f" on {ablation.samples} samples" if ablation.samples is not None else ""
    loss = f"{whose} loss{' alone' * ablation.alone}{samples}"
    return f"all of {loss} and more" if ablation.beyond else f"{percent(ablation.share)} of {loss}"


def _channels(cause: Cause) -> str:
    large = [str(channel) for channel in cause.channels]
    return f"channel{'s' * (len(large) > 1)} {few(large, 5)}"


def _named_channels(cause: Cause) -> str:
    return f"{_channels(cause)} of '{cause.tensor}' reach{'es' * (len(cause.channels) == 1)}"


def _ratio_to_usual(cause: Cause, to_what: str) -> str:
    """Returns text like ``, 12x the 99.9th percentile``: the tensor's greatest value against that percentile.

    ``to_what`` names the percentile. The text is empty if the percentile is 0.
    """
    usual = cause.numbers["p99.9"]
    return f", {(cause.amax or 0.0) / usual:.3g}x {to_what}" if usual else ""


def _left(cause: Cause) -> str:
    """Returns text on the tensor's SQNR; if it has a mask, on the few codes left for other values."""
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
    scales, off = cause.numbers["scales"], cause.numbers["scales_off"]
    if scales == 1:
        return f"the scale of weight '{cause.tensor}' is"
    if not off:  # no scale is far off, but together they lose much
        return f"the {scales:g} scales of weight '{cause.tensor}' are"
    return f"{off:g} of {scales:g} scales of weight '{cause.tensor}' are"


def _how_far(cause: Cause) -> str:
    factor = cause.numbers["factor"]
    return f"up to {factor:.3g}x too wide" if factor > 1 else f"down to {factor:.3g} of what they must reach"


def _below_best(cause: Cause) -> _Number:
    return _Number(max(cause.numbers["best_sqnr_db"] - cause.numbers["sqnr_db"], 0.0))


#: A name in templates, to the function that makes the text or number for it from a cause.
FACTS: Mapping[str, Callable[[Cause], str | _Number]] = {
    "tensor": lambda cause: cause.tensor,
    "node": lambda cause: cause.node,
    "op_type": lambda cause: cause.op_type,
    "short_op": lambda cause: middle(cause.op_type, 20),
    "precision": lambda cause: cause.format.upper(),
    "zero_point_type": lambda cause: cause.format,
    "named_others": lambda cause: ", ".join(f"'{name}'" for name in cause.others),
    "named_channels": _named_channels,
    "many_channels": lambda cause: count(max(len(cause.channels), 1), "channel"),
    "times": lambda cause: _ratio_to_usual(cause, "the 99.9th percentile"),
    "times_usual": lambda cause: _ratio_to_usual(cause, "most others"),
    "codes_unused": lambda cause: _Number(1 - cause.numbers["codes_used"]),
    "below_best": _below_best,
    "left": _left,
    "short_left": _short_left,
    "many_scales": _many_scales,
    "how_far": _how_far,
}


def stage_title(stage: Stage, low_format: str) -> str:
    """Returns the name of a stage as reports show it, like ``engine FP8``."""
    return STAGES[stage].title.format(format=low_format)


def stage_text(line: StageLine, low_format: str, scales: str = "") -> str:
    """Returns text on what it means that a stage is the first one to fail; empty if the stage passes.

    Args:
        line: The stage.
        low_format: The format that the case is about, like ``INT8``.
        scales: Text that follows, on whether other scales reduce the loss; may be empty.
    """
    if line.together is not None:
        return Why.TOGETHER.format(stage=stage_title(line.together, low_format))
    if line.passed:
        return ""
    parts = [STAGES[line.name].meaning.format(format=low_format) + scales]
    parts += [f"'{name}': {problem}" for name, problem in line.problems.items()]
    before = stage_title(line.against, low_format)
    parts += [_fit_phrase(name, fit, before) for name, fit in line.fits.items()]
    return joined(*parts)


def stage_meaning(diagnosis: Diagnosis, low_format: str) -> str:
    """Returns a text with the name of the first stage that fails, and what this means; empty without one."""
    first = first_line(diagnosis)
    if first is None:
        return ""
    jumps = diagnosis.jumps if first.name in _FLOAT_STAGES else ()
    text = jump_text(jumps) if jumps else stage_text(first, low_format)
    return f"{stage_title(first.name, low_format)}: {text}" if text else ""


def first_line(diagnosis: Diagnosis) -> StageLine | None:
    """Returns the first stage that misses a limit; None if all stages meet their limits."""
    return next((stage for stage in diagnosis.stages if stage.name == diagnosis.first_stage), None)


def fit_note(fit: LineFit, low_format: str) -> str:
    """Returns text on the fault that the slope or offset of a fitted line suggests.

    The text is empty if the slope is near 1 and the offset near 0.
    """
    facts = _fit_facts(fit) | {"format": low_format}
    return "; ".join(FITS[meaning].sentence.format_map(facts) for meaning in fit.meanings)


def _fit_phrase(output: str, fit: LineFit | None, before: str) -> str:
    """Returns text on the factor and offset by which an output differs from ``before``, the earlier stage.

    The text is empty if the output does not differ, or if no line was fitted.
    """
    if fit is None or not fit.meanings:
        return ""
    return f"'{output}' comes out {_fit_clauses(fit, before)}"


def _fit_clauses(fit: LineFit, before: str) -> str:
    facts = _fit_facts(fit) | {"before": before}
    return " and ".join(FITS[meaning].clause.format_map(facts) for meaning in fit.meanings)


def _fit_facts(fit: LineFit) -> dict[str, float | str]:
    """Returns the numbers of a fitted line that templates use, by name.

    ``deviations`` is the shift divided by the standard deviation of the baseline.
    """
    deviations = abs(fit.shift) / fit.deviation if fit.deviation else math.inf
    return {"slope": fit.slope, "offset": fit.offset, "shift": fit.shift, "deviations": deviations}


def why_texts(result: CaseResult) -> Iterator[str]:
    """Yields sentences of different lengths on why the case fails, the longest first.

    Without a diagnosis, one empty text is yielded.
    """
    diagnosis, low = result.diagnosis, result.low_format
    if diagnosis is not None and diagnosis.speed is not None and not result.passed:
        yield from _of_speed(result, diagnosis.speed)
        return
    if diagnosis is None or diagnosis.met is None:
        yield ""
        return
    line = first_line(diagnosis)
    title = stage_title(diagnosis.first_stage, low) if diagnosis.first_stage is not None else ""
    meaning = stage_text(line, low) if line is not None else ""
    if diagnosis.met:
        met = Why.MET_BUT_STAGE if title else Why.MET
        yield met.format(format=low, stage=title)
    elif result.float_nan is not None:
        yield from nan_texts(result.float_nan, low)
    elif (other := is_other_model(result)) is not None:
        yield from _of_other_model(other, low)
    elif is_jumpy(result):
        yield jump_text(diagnosis.jumps)
        yield jump_text(diagnosis.jumps, NAME)
    elif line is not None and line.name in _NOT_BY_QUANTIZATION and not line.passed:
        yield f"{title}: {meaning}"
    else:
        yield from _faults(result, diagnosis, meaning)


def _of_speed(result: CaseResult, speed: SpeedSearch) -> Iterator[str]:
    """Yields sentences on the layers that lose time, for a case whose engine is not fast enough."""
    facts = {
        "format": result.low_format,
        "ms": number(speed.candidate.median_ms, 3),
        "baseline": result.baseline,
        "baseline_ms": number(speed.baseline.median_ms, 3),
    }
    if not speed.losses:
        yield Why.SLOW_ALIKE.format(**facts)
        return
    layers = count(len(speed.losses), "layer")
    most = max(speed.losses, key=lambda name: speed.losses[name])
    for room in (None, NAME):
        yield Why.SLOW.format(**facts, layers=layers, most=quoted(most, room))


def at_fault(result: CaseResult) -> tuple[Culprit, ...]:
    """Returns the layers at fault: the culprits of the search whose loss nothing else explains.

    A loss may also be explained by a node like TopK, or by wrong preprocessing of the calibration data.
    """
    diagnosis, culprits = result.diagnosis, result.culprits
    if diagnosis is None:
        return culprits
    if is_jumpy(result):
        return ()
    if not diagnosis.preprocessing_mismatch:
        return culprits
    return tuple(c for c in culprits if c.cause is not None and c.cause.kind not in _BY_RANGES)


def _faults(result: CaseResult, diagnosis: Diagnosis, meaning: str) -> Iterator[str]:
    """Yields texts on what is at fault: preprocessing, dynamic ranges, layers or Q/DQ pairs.

    The longest text is the first. ``meaning`` is a text on the first stage that fails, which is used if none
    of these is at fault.
    """
    mismatches = [finding.text for finding in result.mismatches]
    parts, culprits = mismatches[:1], at_fault(result)
    layers = [""]
    if diagnosis.ranges is not None:
        parts.append(_of_ranges(diagnosis.ranges))
    elif not all(culprit.unexplained for culprit in culprits):
        layers = list(_of_culprits(culprits, result.low_format))
    elif diagnosis.fixed_pairs:
        parts.append(_of_pairs(result.findings, diagnosis.fixed_pairs))
    if meaning and not parts and not layers[0]:
        line = first_line(diagnosis)
        if line is not None and line.name in _QUANTIZED_STAGES:
            yield from _of_quantization(result, diagnosis, line)
        else:
            yield meaning
        return
    fits = [_fit_phrase(output.name, output.fit, "the baseline") for output in result.outputs]
    fit = next(filter(None, fits), "")
    unknown = "" if result.stopped else Why.UNKNOWN
    for layer in layers:
        yield joined(*parts, layer, fit) or unknown
        yield joined(*parts, layer) or unknown
    if mismatches:
        yield mismatches[0]


def _of_quantization(result: CaseResult, diagnosis: Diagnosis, line: StageLine) -> Iterator[str]:
    """Yields texts that say that quantization loses accuracy, and if other scales help, the longest first.

    ``line`` is the first stage that fails.
    """
    text = _of_scales(diagnosis, result.low_format)
    yield stage_text(line, result.low_format, text)
    yield stage_text(replace(line, fits={}), result.low_format, text)


def _of_scales(diagnosis: Diagnosis, low_format: str) -> str:
    """Returns text on whether other scales reduce the loss of quantization; empty if none were tried."""
    found = diagnosis.scales
    if found is None:
        return ""
    template = Why.BY_SCALES if found.given_back >= _MOST_BY_SCALES else Why.BY_LAYERS
    return template.format(
        format=low_format,
        tensors=count(found.tensors, "tensor"),
        share=percent(found.given_back),
        trials=count(found.trials, "trial"),
    )


def is_other_model(result: CaseResult) -> OtherModel | None:
    """Returns how the user's quantized model differs from the float model, apart from Q/DQ.

    The result is None if such a difference is not the reason why the case fails.
    """
    diagnosis, search = result.diagnosis, result.search
    if diagnosis is None or search is None or search.ending.kind != "high-fails" or search.fixed_pairs:
        return None
    other = diagnosis.other_model
    if other is None or diagnosis.first_stage in _NOT_BY_QUANTIZATION:
        return None
    # A node that chooses among values, like TopK, can turn the rounding of stored weights into a large
    # difference. The models are then not called different.
    chosen = not (other.operators or other.differing) and any(
        other.op_type in ("", jump.op_type) for jump in diagnosis.jumps
    )
    return None if chosen else other


def nan_texts(found: FloatNan, low_format: str) -> Iterator[str]:
    """Yields texts on whether FP16 or the float model itself gives NaN, the longest text first."""
    if found.in_fp32 is None:
        yield Why.UNKNOWN_NAN.format(format=low_format)
        return
    if not found.in_fp32:
        yield Why.HALF_NAN.format(format=low_format)
        return
    text = Why.FLOAT_NAN_IN_BOTH if found.half else Why.FLOAT_NAN
    if found.node:
        first = Why.FIRST_NAN.format(op_type=middle(found.op_type), node=middle(found.node))
        yield text.format(format=low_format, where=first)
    yield text.format(format=low_format, where="")


def _of_other_model(other: OtherModel, low_format: str) -> Iterator[str]:
    """Yields texts on how a quantized model differs from the float model of its case, the longest first."""
    facts: dict[str, str] = {
        "format": low_format,
        "file": other.file,
        "model": other.model,
        "weights": count(other.weights, "weight"),
        "tensor": middle(other.tensor),
        "op_type": middle(other.op_type),
        "off": percent(other.off) if math.isfinite(other.off) else "more than all",
        "operators": ", ".join(_operators_of(other)),
    }
    tensor = Why.OTHER_TENSOR.format(**facts) if other.tensor else ""
    made_by = {"file": other.file, "op_type": middle(other.made_by)}
    if other.attributes:
        first = other.attributes[0]
        own, theirs = (middle(value) for value in (first.own, first.other))
        template = Why.OTHER_MAKER_WITH if other.made_by else Why.OTHER_ATTRIBUTE
        tensor += template.format(**made_by, name=first.name, own=own, theirs=theirs, model=other.model)
    elif other.made_by:
        tensor += Why.OTHER_MAKER.format(**made_by)
    operators = Why.OTHER_OPERATORS.format(**facts) if other.operators else ""
    placed = operators + _added_text(other.added)
    weights = Why.SAME_WEIGHTS.format(**facts) if other.weights else ""
    if other.differing:
        weights = Why.OTHER_WEIGHTS.format(
            **facts, differing=len(other.differing), first=middle(other.differing[0])
        )
    if not other.differs:
        yield (Why.NOT_LOW + Why.NOT_THE_CAUSE).format(**facts)
        return
    start = f"{Why.NOT_LOW}: {Why.OTHER_MODEL}".format(**facts)
    in_fp32 = tensor and Why.IN_FP32 + tensor
    yield joined(start, weights, placed, in_fp32)
    yield joined(start, placed, in_fp32)
    yield joined(start, weights, operators, in_fp32)
    yield joined(start, weights, in_fp32 or operators)
    for where in (in_fp32, tensor):
        yield joined(start, where or operators or weights)
        yield joined(Why.OTHER_MODEL.format(**facts), where or operators or weights)


def _added_text(added: AddedNode | None) -> str:
    """Returns text on the first node that only the quantized model has, and on the values that it changes.

    The text is empty if there is no such node.
    """
    if added is None:
        return ""
    template = Why.ADDED_CAST if added.to else Why.ADDED
    text = template.format(
        op_type=middle(added.op_type),
        node=middle(added.node),
        tensor=middle(added.tensor),
        to=added.to,
    )
    return text + (Why.CHANGES.format(share=percent(added.changed)) if added.changed else "")


def _operators_of(other: OtherModel) -> Iterator[str]:
    """Yields texts like ``2 Cast more`` for the three operators whose numbers of nodes differ most."""
    for name, n in sorted(other.operators.items(), key=lambda item: -abs(item[1]))[:3]:
        yield f"{abs(n)} {name} {'more' if n > 0 else 'less'}"


def values_texts(result: CaseResult) -> Iterator[str]:
    """Yields texts on how the values of the worst output differ from the baseline's, the longest first.

    One empty text is yielded if no line was fitted to an output.
    """
    output = worst_output(result)
    if output is None or output.fit is None:
        yield ""
        return
    for most in (None, NAME):
        text = _values_text(result, output, output.fit, most)
        if output.part_of:
            yield f"{text}; {Why.PART.format(whole=middle(output.part_of, most))}"
        yield text


def _values_text(result: CaseResult, output: OutputResult, fit: LineFit, most: int | None) -> str:
    facts = {
        "format": result.low_format,
        "baseline": "the baseline",
        "output": quoted(output.name, most),
        "correlation": number(fit.correlation, 3),
        "samples": count(output.samples or result.samples, "sample"),
    }
    if "constant" in fit.meanings:
        return Why.CONSTANT.format(**facts, offset=fit.offset)
    if fit.meanings:
        return Why.OFF.format(**facts, clauses=_fit_clauses(fit, "the baseline"))
    return (Why.UNRELATED if fit.correlation < _UNRELATED else Why.CLOSE).format(**facts)


def worst_output(result: CaseResult) -> OutputResult | None:
    """Returns the output with the worst score, if a line was fitted to it.

    Otherwise the result is the output whose fitted line has the lowest correlation. It is None if no line was
    fitted to any output.
    """
    fitted = [output for output in result.outputs if output.fit is not None]
    for score in worst_first(result.scores)[:1]:
        for output in fitted:
            if output.name == score.subject:
                return output
    return min(fitted, key=lambda o: o.fit.correlation if o.fit is not None else 1.0, default=None)


def is_jumpy(result: CaseResult) -> bool:
    """Returns whether outputs cannot be compared because of a node that chooses among values, such as TopK.

    This is assumed if there is such a node, and either no plan with layers in the low format passes, or FP16
    misses a limit as well.
    """
    diagnosis, search = result.diagnosis, result.search
    if diagnosis is None or not diagnosis.jumps or is_other_model(result) is not None:
        return False
    hopeless = search is not None and search.ending.kind in ("high-fails", "nothing-left")
    return hopeless or diagnosis.first_stage in _FLOAT_STAGES


def jump_text(jumps: Sequence[Jump], most: int | None = None) -> str:
    """Returns a text that names the node, such as TopK, that turns small errors into large ones.

    The name has at most ``most`` characters.
    """
    first = jumps[0]
    more = f" (and {count(len(jumps) - 1, 'more node')})" if len(jumps) > 1 else ""
    return Why.CHOICE.format(op_type=first.op_type, node=middle(first.node, most), more=more)


def _of_pairs(findings: Sequence[Finding], fixed: Sequence[str]) -> str:
    """Returns a text on the Q/DQ nodes ``fixed``, which no plan removes.

    If the lint found a pair whose Q and DQ disagree, the text is on this pair instead.
    """
    unequal = [f for f in findings if f.rule == "unequal-pair"]
    if not unequal:
        return Why.PAIRS.format(pairs=pairs_text(fixed))
    more = f" (and {len(unequal) - 1} more alike)" if len(unequal) > 1 else ""
    return Why.UNEQUAL_PAIR.format(node=unequal[0].subject, finding=unequal[0].text, more=more)


def _of_ranges(ranges: OddRanges) -> str:
    """Returns a text on how many dynamic ranges do not fit the data, by which factors, and why."""
    parts, faults = [], []
    for factors, template, fault in (
        (ranges.wide, Why.WIDE_RANGES, "too wide"),
        (ranges.narrow, Why.NARROW_RANGES, "too narrow"),
    ):
        if factors:
            parts.append(template.format(many=_some(factors, ranges.count), span=_span(factors)))
            faults.append(fault)
    said = ", ".join(parts)
    if ranges.calibrated:
        if not ranges.wide and min(ranges.calibrated) > 1 / _SAME_REACH:
            return Why.CLIPPED_RANGES.format(ranges=said, method=ranges.method)
        return Why.OTHER_DATA.format(ranges=said, span=_span(ranges.calibrated))
    if not ranges.by_hand:
        return Why.RANGES_OF_OTHERS.format(ranges=said, fault=" and ".join(faults))
    values = ", ".join(f"{value:g}" for value in ranges.by_hand)
    shared = "a few dynamic ranges" if len(ranges.by_hand) > 1 else "one dynamic range"
    return Why.RANGES_BY_HAND.format(ranges=said, few=shared, values=values, fault=" and ".join(faults))


def _some(part: Sequence[float], count: int) -> str:
    return f"all {count}" if len(part) == count else f"{len(part)} of {count}"


def _span(factors: Sequence[float]) -> str:
    """Returns text like ``2 to 30``: the least and the greatest factor; one of them if nearly equal."""
    low, high = min(factors), max(factors)
    said = [f"{factor:,.0f}" if factor >= 100 else f"{factor:.2g}" for factor in (low, high)]
    return said[0] if high < 1.1 * low else " to ".join(said)


def _of_culprits(culprits: Sequence[Culprit], low_format: str) -> Iterator[str]:
    """Yields texts on the layers at fault, the longest first.

    A single layer is named with its cause. For several layers, the text says how many have each kind of
    cause.
    """
    if len(culprits) == 1:
        yield from _of_culprit(culprits[0], low_format)
        return
    kinds = Counter(culprit.cause.kind for culprit in culprits if culprit.cause is not None)
    parts = []
    for kind, n in kinds.most_common():
        parts.append(f"{CAUSES[kind].plural.format(format=low_format)} in {count(n, 'layer')}")
    inside = Counter(culprit.inside for culprit in culprits if culprit.hidden and culprit.cause is None)
    parts += [Why.NO_CAUSES.format(layers=count(n, "layer"), node=node) for node, n in inside.items()]
    unshown = sum(culprit.unexplained for culprit in culprits)
    parts += [Why.UNSHOWN.format(layers=count(unshown, "layer"))] if unshown else []
    yield "; ".join(parts)


def pair_text(quantizer: Quantizer, most: int | None = None) -> str:
    """Returns text on where a Q/DQ pair is, like ``at output 'boxes'``.

    The name in it has at most ``most`` characters.
    """
    template = Why.AT_OUTPUT if quantizer.output else Why.AT_TENSOR
    return template.format(tensor=middle(quantizer.output or quantizer.tensor, most))


def _of_culprit(culprit: Culprit, low_format: str) -> Iterator[str]:
    cause, pair = culprit.cause, culprit.quantizer
    full = Why.LAYER.format(op_type=culprit.op_type, layer=culprit.layer)
    brief = Why.LAYER.format(op_type=middle(culprit.op_type), layer=middle(culprit.layer))
    if pair is not None:
        behind = Why.BEHIND.format(op_type=pair.op_type, node=pair.node) if pair.node else ""
        full = Why.PAIR.format(at=pair_text(pair) + behind)
        brief = Why.PAIR.format(at=pair_text(pair, NAME))
    if cause is None:
        yield from (Why.NO_CAUSE.format(layer=name, node=culprit.inside) for name in (full, brief))
        return
    yield f"{full}: {cause_text(cause, low_format)}"
    short = replace(
        cause,
        tensor=middle(cause.tensor),
        node=middle(cause.node),
        op_type=middle(cause.op_type),
        others=tuple(middle(name) for name in cause.others[:2]),
    )
    yield f"{brief}: {cause_text(short, low_format)}"
    yield f"{brief}: {cause_brief(short, low_format)}"
