"""What was wrong with a case, in one sentence, and what a line fit and a stage mean."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_int8acc.report.catalogue import FITS, STAGES
from pytest_int8acc.report.causes import cause_brief, cause_text, plural
from pytest_int8acc.report.words import NAME, count, middle, pairs_text
from pytest_int8acc.results import CaseResult, Culprit, Diagnosis, Finding, LineFit, StageLine
from pytest_int8acc.results.causes import Cause, Jump, OddRanges, Stage

#: If one of these stages fails first, quantization is not at fault, and the sentence names the stage alone.
_ELSEWHERE = ("FP32 ONNX", "FP16", "engine FP16", "engine INT8")
#: If one of these stages fails first, a node that chooses among values may be the reason.
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


def stage_meaning(diagnosis: Diagnosis, low_format: str) -> str:
    """Returns what the first stage that fails means, with its name; empty where none fails."""
    first = first_line(diagnosis)
    if first is None:
        return ""
    jumps = diagnosis.jumps if first.name in _FLOAT else ()
    text = jump_text(jumps) if jumps else stage_text(first, low_format)
    return f"{stage_title(first.name, low_format)}: {text}" if text else ""


def first_line(diagnosis: Diagnosis) -> StageLine | None:
    """Returns the first stage that misses a limit; None if all keep theirs."""
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
    """Returns what was wrong, in one sentence with whole names; empty without a diagnosis."""
    return next(why_texts(result))


def why_texts(result: CaseResult) -> Iterator[str]:
    """Yields what was wrong, the fullest sentence first; empty without a diagnosis."""
    diagnosis, low = result.diagnosis, result.low_format
    if diagnosis is None or diagnosis.met is None:
        yield ""
        return
    line = first_line(diagnosis)
    title = stage_title(diagnosis.first_stage, low) if diagnosis.first_stage is not None else ""
    meaning = stage_text(line, low) if line is not None else ""
    if diagnosis.met:
        yield f"{low} meets its criteria; {title} alone does not" if title else f"{low} meets its criteria"
    elif is_jumpy(result):
        yield from (jump_text(diagnosis.jumps, most) for most in (None, NAME))
    elif line is not None and line.name in _ELSEWHERE and not line.passed:
        yield f"{title}: {meaning}"
    else:
        yield from _faults(result, diagnosis, meaning)


def _faults(result: CaseResult, diagnosis: Diagnosis, meaning: str) -> Iterator[str]:
    """Yields the mismatch in preprocessing, and the ranges, layers or pairs at fault, the fullest first."""
    mismatches = [
        f.text for f in result.findings if f.source == "data" and f.rule == diagnosis.preprocessing_mismatch
    ]
    parts = mismatches[:1]
    culprits = result.search.culprits if result.search is not None else ()
    layers = [""]
    if diagnosis.ranges is not None:
        parts.append(_of_ranges(diagnosis.ranges))
    elif any(culprit.cause is not None or culprit.inside for culprit in culprits):
        layers = list(_of_culprits(culprits, result.low_format))
    elif diagnosis.fixed_pairs:
        parts.append(_of_pairs(result.findings, diagnosis.fixed_pairs))
    if meaning and not parts and not layers[0]:
        yield meaning
        return
    fits = [fit_phrase(output.name, output.fit, "the baseline") for output in result.outputs]
    fit = next(filter(None, fits), "")
    unknown = "" if result.stopped else "no single cause was found"
    for layer in layers:
        yield "; ".join(filter(None, [*parts, layer, fit])) or unknown
        yield "; ".join(filter(None, [*parts, layer])) or unknown


def is_jumpy(result: CaseResult) -> bool:
    """Returns whether a node that chooses among values makes outputs incomparable: no plan or FP16 passes."""
    diagnosis, search = result.diagnosis, result.search
    if diagnosis is None or not diagnosis.jumps:
        return False
    hopeless = search is not None and search.ending.kind in ("high-fails", "nothing-left")
    return hopeless or diagnosis.first_stage in _FLOAT


def jump_text(jumps: Sequence[Jump], most: int | None = None) -> str:
    """Returns which node turns small errors into jumps; names have at most ``most`` characters."""
    first = jumps[0]
    more = f" (and {count(len(jumps) - 1, 'more node')})" if len(jumps) > 1 else ""
    node = middle(first.node, most or len(first.node))
    return f"{first.op_type} '{node}'{more} chooses among values: small errors before it are jumps behind it"


def _of_pairs(findings: Sequence[Finding], fixed: Sequence[str]) -> str:
    """Returns the Q/DQ pairs that are part of every plan, and one whose Q and DQ disagree."""
    unequal = [f for f in findings if f.rule == "unequal-pair"]
    if not unequal:
        return f"{pairs_text(fixed)}: no plan takes them off"
    more = f" (and {len(unequal) - 1} more alike)" if len(unequal) > 1 else ""
    return f"Q and DQ disagree at '{unequal[0].subject}': {unequal[0].text}{more}; no plan takes that off"


def _of_ranges(ranges: OddRanges) -> str:
    """Returns how most ranges differ from the data. That says more than any single layer."""
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


def _of_culprits(culprits: Sequence[Culprit], low_format: str) -> Iterator[str]:
    """Yields one culprit with its cause, the fullest first; of several, how many each kind of cause has."""
    if len(culprits) == 1:
        yield from _of_culprit(culprits[0], low_format)
        return
    kinds = Counter(culprit.cause.kind for culprit in culprits if culprit.cause is not None)
    parts = [f"{plural(kind, low_format)} in {count(n, 'layer')}" for kind, n in kinds.most_common()]
    inside = [culprit for culprit in culprits if culprit.inside and culprit.cause is None]
    if inside:
        parts.append(f"{count(len(inside), 'layer')} {_inside(inside)}")
    yield "; ".join(parts)


def _of_culprit(culprit: Culprit, low_format: str) -> Iterator[str]:
    cause = culprit.cause
    full = f"{culprit.op_type} '{culprit.layer}' is at fault"
    brief = f"{middle(culprit.op_type, NAME)} '{middle(culprit.layer, NAME)}' is at fault"
    if cause is None:
        yield from (f"{name}, {_inside([culprit])}" for name in (full, brief))
        return
    yield f"{full}: {cause_text(cause, low_format)}"
    yield f"{brief}: {cause_text(_short(cause), low_format)}"
    yield f"{brief}: {cause_brief(_short(cause), low_format)}"


def _inside(culprits: Sequence[Culprit]) -> str:
    """Returns in whose bodies culprits lie. Causes are not looked for there."""
    where = " and ".join(sorted({culprit.inside for culprit in culprits}))
    return f"in the body of {where}, where causes are not looked for"


def _short(cause: Cause) -> Cause:
    """Returns ``cause`` with names of at most ``NAME`` characters."""
    return replace(
        cause,
        tensor=middle(cause.tensor, NAME),
        node=middle(cause.node, NAME),
        op_type=middle(cause.op_type, NAME),
        others=tuple(middle(name, NAME) for name in cause.others[:2]),
    )
