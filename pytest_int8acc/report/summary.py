"""What was wrong with a case: what a line fit and a stage mean, and all of it in one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pytest_int8acc.report.causes import KINDS, cause_brief, cause_text
from pytest_int8acc.report.words import NAME, count, few, middle, pairs_text, relation, shorten, worst_first
from pytest_int8acc.results import CaseResult, Culprit, Diagnosis, Finding, LineFit, StageLine
from pytest_int8acc.results.causes import Cause, CauseKind, Jump, OddRanges, Stage

_OWN = "TensorRT's own doing"
#: What it means where a stage is the first that fails.
_MEANINGS: Mapping[Stage, str] = {
    "framework": "",
    "FP32 ONNX": "the export to ONNX changed the model, or inputs are prepared otherwise there",
    "FP16": "FP16 is off already: INT8 is not the problem",
    "Q/DQ in ONNX Runtime": "quantization loses it: scales, or layers that INT8 does not suit",
    "engine FP16": f"the FP16 engine differs from its model: {_OWN}",
    "engine FP32": f"the FP32 engine differs from its model: {_OWN}",
    "engine INT8": f"the Q/DQ model is fine, the engine made of it is not: {_OWN}",
    "implicit INT8": "quantization loses it: ranges of TensorRT's calibration, or layers that INT8 does not "
    "suit",
}
#: Where these fail first, quantization is not at fault, and nothing else is said.
_ELSEWHERE = ("FP32 ONNX", "FP16", "engine FP16", "engine INT8")
#: Where these do, what chooses among values in the model may be why.
_FLOAT = ("FP16", "engine FP16")


def stage_text(line: StageLine) -> str:
    """What it means where this is the first stage that fails; empty where it passes."""
    if line.passed and line.together is None:
        return ""
    if line.together is not None:
        return f"no step leaves its limit alone; together they do, against {line.together}"
    parts = [_MEANINGS[line.name], *(f"'{name}': {problem}" for name, problem in line.problems.items())]
    parts += [fit_phrase(name, fit, line.against) for name, fit in line.fits.items()]
    return "; ".join(filter(None, parts))


def stage_lines(diagnosis: Diagnosis) -> list[str]:
    """The way from the framework to the engine in one line, and what the first bad stage means."""
    if not diagnosis.stages:
        return []
    stages = []
    for stage in diagnosis.stages:
        missed = [score for score in worst_first(stage.scores) if not score.passed]
        why = f" ({shorten(relation(missed[0]), 60)})" if missed else ""
        stages.append(f"{stage.name} ok" if stage.passed else f"{stage.name} off{why}")
    lines = ["Stages: " + " > ".join(stages)]
    first = first_line(diagnosis)
    jumps = diagnosis.jumps if first is not None and first.name in _FLOAT else ()
    if first is not None and (text := jump_text(jumps) if jumps else stage_text(first)):
        lines.append(f"  {first.name}: {text}")
    return lines


def first_line(diagnosis: Diagnosis) -> StageLine | None:
    """The line of the first stage that leaves its limit."""
    return next((stage for stage in diagnosis.stages if stage.name == diagnosis.first_stage), None)


def fit_note(fit: LineFit) -> str:
    """What a slope far from 1, or a shift, suggests; empty where INT8 lies near the baseline."""
    if "constant" in fit.meanings:
        return (
            f"INT8 is {fit.offset:.4g} everywhere while the baseline varies: a tensor on the way to this "
            f"output is quantized to a single value, its scale is far too wide or it is cut off entirely"
        )
    parts = []
    if "small" in fit.meanings:
        parts.append(
            f"INT8 values are {fit.slope:.3g} of the baseline's throughout: a scale is wrong for all "
            f"samples, either a dynamic range too narrow, which cuts values off, or one far too wide, which "
            f"rounds small values to 0"
        )
    if "large" in fit.meanings:
        parts.append(
            f"INT8 values are {fit.slope:.3g} times the baseline's throughout: a scale is wrong for all "
            f"samples, look for a dynamic range far from what its tensor holds"
        )
    if "shifted" in fit.meanings:
        parts.append(
            f"INT8 values are shifted by {fit.shift:.3g} on average ({abs(fit.shift) / fit.deviation:.2g} of "
            f"the baseline's standard deviation): values cut off on one side only, or a wrong bias or zero "
            f"point"
        )
    return "; ".join(parts)


def fit_phrase(output: str, fit: LineFit | None, before: str) -> str:
    """Slope and shift of an output against ``before``; empty where it lies near that, or on no line."""
    if fit is None or not fit.meanings:
        return ""
    if "constant" in fit.meanings:
        return f"'{output}' comes out as one value throughout"
    scaled = "small" in fit.meanings or "large" in fit.meanings
    how = [f"{fit.slope:.3g} times what {before} gives"] if scaled else []
    how += [f"shifted by {fit.offset:.3g}"] if "shifted" in fit.meanings else []
    return f"'{output}' comes out {' and '.join(how)}"


def summary(result: CaseResult) -> str:
    """What was wrong: slips of the data, then the ranges or layers at fault; empty without a diagnosis."""
    return next(_summaries(result, (_of_culprits,)))


def why_texts(result: CaseResult) -> Iterator[str]:
    """The same for a failure's few lines, the fullest first: several layers by their kinds of cause."""
    yield from _summaries(result, (_of_kinds, partial(_of_kinds, say=cause_brief)))


def is_jumpy(result: CaseResult) -> bool:
    """Whether outputs cannot be compared: something chooses on the way, and no plan passes, or FP16 fails."""
    diagnosis, search = result.diagnosis, result.search
    if diagnosis is None or not diagnosis.jumps:
        return False
    hopeless = search is not None and search.ending.kind in ("high-fails", "nothing-left")
    return hopeless or diagnosis.first_stage in _FLOAT


def jump_text(jumps: Sequence[Jump], most: int | None = None) -> str:
    """What turns errors into jumps; names of at most ``most`` characters."""
    first = jumps[0]
    more = f" (and {count(len(jumps) - 1, 'more node')})" if len(jumps) > 1 else ""
    node = middle(first.node, most or len(first.node))
    return f"{first.op_type} '{node}'{more} chooses among values: small errors before it are jumps behind it"


def _summaries(result: CaseResult, sayings: Sequence[Callable[[Sequence[Culprit]], str]]) -> Iterator[str]:
    diagnosis = result.diagnosis
    if diagnosis is None or diagnosis.met is None:
        yield ""
        return
    first = diagnosis.first_stage
    if diagnosis.met:
        yield f"INT8 meets its criteria; {first} alone does not" if first else "INT8 meets its criteria"
        return
    line = first_line(diagnosis)
    meaning = stage_text(line) if line is not None else ""
    if is_jumpy(result):
        yield from (jump_text(diagnosis.jumps, most) for most in (None, NAME))
        return
    if first in _ELSEWHERE and line is not None and not line.passed:
        yield f"{first}: {meaning}"
        return
    fits = (fit_phrase(output.name, output.fit, "the baseline") for output in result.outputs)
    fit = list(filter(None, fits))[:1]
    for say in sayings:
        parts = list(_parts(result, diagnosis, say))
        if not parts and meaning:
            yield meaning
            return
        yield "; ".join([*parts, *fit]) or ("" if result.stopped else "no single cause was found")
        yield "; ".join(parts)


def _parts(
    result: CaseResult, diagnosis: Diagnosis, say: Callable[[Sequence[Culprit]], str]
) -> Iterator[str]:
    """The mismatch in preprocessing, and the ranges, layers or pairs at fault."""
    mismatches = (
        f.text for f in result.findings if f.source == "data" and f.rule == diagnosis.preprocessing_mismatch
    )
    yield from list(mismatches)[:1]
    if diagnosis.ranges is not None:
        yield _of_ranges(diagnosis.ranges)
        return
    culprits = say(result.search.culprits) if result.search is not None else ""
    if culprits:
        yield culprits
    elif diagnosis.fixed_pairs:
        yield _of_pairs(result.findings, diagnosis.fixed_pairs)


def _of_pairs(findings: Sequence[Finding], fixed: Sequence[str]) -> str:
    """Q/DQ pairs that change more than rounding does, and stay in every plan."""
    unequal = [f for f in findings if f.rule == "unequal-pair"]
    if not unequal:
        return f"{pairs_text(fixed)}: no plan takes them off"
    more = f" (and {len(unequal) - 1} more alike)" if len(unequal) > 1 else ""
    return f"Q and DQ disagree at '{unequal[0].subject}': {unequal[0].text}{more}; no plan takes that off"


def _of_ranges(ranges: OddRanges) -> str:
    """Where most ranges are wrong, that says more than any layer."""
    wide, narrow = ranges.wide, ranges.narrow
    parts = []
    if wide:
        parts.append(f"{_some(wide, ranges.count)} ranges are {_span(wide)} times what the data reaches")
    if narrow:
        many = _some(narrow, ranges.count)
        parts.append(f"{many} ranges cut values off that reach {_span(narrow)} times as far")
    fault = " and ".join(filter(None, ("too wide" * bool(wide), "too narrow" * bool(narrow))))
    if ranges.by_hand:
        named = ", ".join(f"{value:g}" for value in ranges.by_hand)
        few = "a few dynamic ranges" if len(ranges.by_hand) > 1 else "one dynamic range"
        return f"{', '.join(parts)}: the tensors share {few} ({named}), {fault}"
    return f"{', '.join(parts)}: the dynamic ranges are {fault}, as from other data or another model"


def _some(part: Sequence[float], count: int) -> str:
    return f"all {count}" if len(part) == count else f"{len(part)} of {count}"


def _span(factors: Sequence[float]) -> str:
    low, high = min(factors), max(factors)
    said = [f"{factor:,.0f}" if factor >= 100 else f"{factor:.2g}" for factor in (low, high)]
    return said[0] if high < 1.1 * low else " to ".join(said)


def _of_culprits(culprits: Sequence[Culprit]) -> str:
    """One culprit with its own sentence, several by kind."""
    explained = [(c.layer, c.cause) for c in culprits if c.cause is not None]
    inside = [c for c in culprits if c.inside and c.cause is None]
    if not explained and not inside:
        return ""
    if not explained:
        return f"{few([culprit.layer for culprit in inside], 3)} at fault, {_inside(inside)}"
    kinds: dict[CauseKind, list[str]] = {}
    for layer, cause in explained:
        kinds.setdefault(cause.kind, []).append(layer)
    if len(kinds) == 1 and not inside:
        layer, cause = explained[0]
        more = f" (and {count(len(explained) - 1, 'more layer')} alike)" if len(explained) > 1 else ""
        return f"{layer}: {cause_text(cause)}{more}"
    parts = [f"{KINDS[kind]} in {few(layers, 3)}" for kind, layers in kinds.items()]
    if inside:
        parts.append(f"{few([culprit.layer for culprit in inside], 3)} {_inside(inside)}")
    return f"{len(explained) + len(inside)} layers at fault: {'; '.join(parts)}"


def _inside(culprits: Sequence[Culprit]) -> str:
    """Where layers at fault lie that have no cause, since they are in bodies."""
    where = " and ".join(sorted({culprit.inside for culprit in culprits}))
    return f"in the body of {where}, where causes are not looked for"


def _of_kinds(culprits: Sequence[Culprit], say: Callable[[Cause], str] = cause_text) -> str:
    """The one culprit and what ``say`` makes of its cause; of several, how many each kind of cause has."""
    explained = [(culprit, culprit.cause) for culprit in culprits if culprit.cause is not None]
    if len(culprits) == 1 and explained:
        culprit, cause = explained[0]
        layer, kind = middle(culprit.layer, NAME), middle(culprit.op_type, NAME)
        return f"{kind} '{layer}' is at fault: {say(_short(cause))}"
    inside = [culprit for culprit in culprits if culprit.inside and culprit.cause is None]
    if len(culprits) == 1 and inside:
        layer, kind = middle(inside[0].layer, NAME), middle(inside[0].op_type, NAME)
        return f"{kind} '{layer}' is at fault, {_inside(inside)}"
    kinds = Counter(cause.kind for _, cause in explained)
    parts = [f"{KINDS[kind]} in {count(n, 'layer')}" for kind, n in kinds.most_common()]
    parts += [f"{count(len(inside), 'layer')} {_inside(inside)}"] if inside else []
    return "; ".join(parts)


def _short(cause: Cause) -> Cause:
    """``cause`` with names that fit in a line."""
    return replace(
        cause,
        tensor=middle(cause.tensor, NAME),
        node=middle(cause.node, NAME),
        op_type=middle(cause.op_type, NAME),
        others=tuple(middle(name, NAME) for name in cause.others[:2]),
    )
