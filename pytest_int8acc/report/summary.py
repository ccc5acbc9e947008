"""What was wrong with a case: what a line fit and a stage mean, and all of it in one sentence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from pytest_int8acc.report.catalogue import FITS, STAGES
from pytest_int8acc.report.causes import cause_brief, cause_text, plural
from pytest_int8acc.report.words import NAME, count, few, middle, pairs_text, relation, shorten, worst_first
from pytest_int8acc.results import CaseResult, Culprit, Diagnosis, Finding, LineFit, StageLine
from pytest_int8acc.results.causes import Cause, CauseKind, Jump, OddRanges, Stage

#: Where these fail first, quantization is not at fault, and nothing else is said.
_ELSEWHERE = ("FP32 ONNX", "FP16", "engine FP16", "engine INT8")
#: Where these do, what chooses among values in the model may be why.
_FLOAT = ("FP16", "engine FP16")


def stage_text(line: StageLine, low_format: str) -> str:
    """Returns what it means where this is the first stage that fails; empty where it passes."""
    if line.passed and line.together is None:
        return ""
    if line.together is not None:
        before = stage_title(line.together, low_format)
        return f"no step leaves its limit alone; together they do, against {before}"
    parts = [STAGES[line.name].sentence.format(format=low_format)]
    parts += [f"'{name}': {problem}" for name, problem in line.problems.items()]
    before = stage_title(line.against, low_format)
    parts += [fit_phrase(name, fit, before) for name, fit in line.fits.items()]
    return "; ".join(filter(None, parts))


def stage_title(stage: Stage, low_format: str) -> str:
    """Returns the name of a stage, like ``engine FP8``."""
    return STAGES[stage].clause.format(format=low_format)


def stage_lines(diagnosis: Diagnosis, low_format: str) -> list[str]:
    """Returns the stages from the framework to the engine in one line, and what the first bad one means."""
    if not diagnosis.stages:
        return []
    stages = []
    for stage in diagnosis.stages:
        missed = [score for score in worst_first(stage.scores) if not score.passed]
        why = f" ({shorten(relation(missed[0]), 60)})" if missed else ""
        title = stage_title(stage.name, low_format)
        stages.append(f"{title} ok" if stage.passed else f"{title} off{why}")
    lines = ["Stages: " + " > ".join(stages)]
    first = first_line(diagnosis)
    jumps = diagnosis.jumps if first is not None and first.name in _FLOAT else ()
    if first is not None and (text := jump_text(jumps) if jumps else stage_text(first, low_format)):
        lines.append(f"  {stage_title(first.name, low_format)}: {text}")
    return lines


def first_line(diagnosis: Diagnosis) -> StageLine | None:
    """The line of the first stage that leaves its limit."""
    return next((stage for stage in diagnosis.stages if stage.name == diagnosis.first_stage), None)


def fit_note(fit: LineFit, low_format: str) -> str:
    """Returns what a slope far from 1, or a shift, suggests; empty near the baseline."""
    facts = _fit_facts(fit) | {"format": low_format}
    return "; ".join(FITS[meaning].sentence.format_map(facts) for meaning in fit.meanings)


def fit_phrase(output: str, fit: LineFit | None, before: str) -> str:
    """Returns slope and shift of an output against ``before``; empty near it, or where no line fits."""
    if fit is None or not fit.meanings:
        return ""
    facts = _fit_facts(fit) | {"before": before}
    clauses = [FITS[meaning].clause.format_map(facts) for meaning in fit.meanings]
    return f"'{output}' comes out {' and '.join(clauses)}"


def _fit_facts(fit: LineFit) -> dict[str, float | str]:
    """Returns slope, offset, and the shift as a number of the baseline's standard deviations."""
    deviations = abs(fit.shift) / fit.deviation if fit.deviation else math.inf
    return {"slope": fit.slope, "offset": fit.offset, "shift": fit.shift, "deviations": deviations}


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


def _summaries(
    result: CaseResult, sayings: Sequence[Callable[[Sequence[Culprit], str], str]]
) -> Iterator[str]:
    diagnosis = result.diagnosis
    if diagnosis is None or diagnosis.met is None:
        yield ""
        return
    low, first = result.low_format, diagnosis.first_stage
    title = stage_title(first, low) if first else ""
    if diagnosis.met:
        yield f"{low} meets its criteria; {title} alone does not" if first else f"{low} meets its criteria"
        return
    line = first_line(diagnosis)
    meaning = stage_text(line, low) if line is not None else ""
    if is_jumpy(result):
        yield from (jump_text(diagnosis.jumps, most) for most in (None, NAME))
        return
    if first in _ELSEWHERE and line is not None and not line.passed:
        yield f"{title}: {meaning}"
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
    result: CaseResult, diagnosis: Diagnosis, say: Callable[[Sequence[Culprit], str], str]
) -> Iterator[str]:
    """The mismatch in preprocessing, and the ranges, layers or pairs at fault."""
    mismatches = (
        f.text for f in result.findings if f.source == "data" and f.rule == diagnosis.preprocessing_mismatch
    )
    yield from list(mismatches)[:1]
    if diagnosis.ranges is not None:
        yield _of_ranges(diagnosis.ranges)
        return
    culprits = say(result.search.culprits, result.low_format) if result.search is not None else ""
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


def _of_culprits(culprits: Sequence[Culprit], low_format: str) -> str:
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
        return f"{layer}: {cause_text(cause, low_format)}{more}"
    parts = [f"{plural(kind, low_format)} in {few(layers, 3)}" for kind, layers in kinds.items()]
    if inside:
        parts.append(f"{few([culprit.layer for culprit in inside], 3)} {_inside(inside)}")
    return f"{len(explained) + len(inside)} layers at fault: {'; '.join(parts)}"


def _inside(culprits: Sequence[Culprit]) -> str:
    """Where layers at fault lie that have no cause, since they are in bodies."""
    where = " and ".join(sorted({culprit.inside for culprit in culprits}))
    return f"in the body of {where}, where causes are not looked for"


def _of_kinds(
    culprits: Sequence[Culprit], low_format: str, say: Callable[[Cause, str], str] = cause_text
) -> str:
    """The one culprit and what ``say`` makes of its cause; of several, how many each kind of cause has."""
    explained = [(culprit, culprit.cause) for culprit in culprits if culprit.cause is not None]
    if len(culprits) == 1 and explained:
        culprit, cause = explained[0]
        layer, kind = middle(culprit.layer, NAME), middle(culprit.op_type, NAME)
        return f"{kind} '{layer}' is at fault: {say(_short(cause), low_format)}"
    inside = [culprit for culprit in culprits if culprit.inside and culprit.cause is None]
    if len(culprits) == 1 and inside:
        layer, kind = middle(inside[0].layer, NAME), middle(inside[0].op_type, NAME)
        return f"{kind} '{layer}' is at fault, {_inside(inside)}"
    kinds = Counter(cause.kind for _, cause in explained)
    parts = [f"{plural(kind, low_format)} in {count(n, 'layer')}" for kind, n in kinds.most_common()]
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
