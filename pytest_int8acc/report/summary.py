"""What was wrong with a case, in one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_int8acc.report.causes import cause_text
from pytest_int8acc.report.fits import fit_phrase
from pytest_int8acc.report.stages import first_line, stage_text
from pytest_int8acc.report.words import pairs_text
from pytest_int8acc.results import CaseResult, Culprit, Diagnosis, Finding
from pytest_int8acc.results.causes import OddRanges

#: Where these fail first, quantization is not at fault, and nothing else is said.
_ELSEWHERE = ("FP32 ONNX", "FP16", "engine FP16", "engine INT8")


def summary(result: CaseResult) -> str:
    """What was wrong: slips of the data, then the ranges or layers at fault; empty without a diagnosis."""
    diagnosis = result.diagnosis
    if diagnosis is None or diagnosis.met is None:
        return diagnosis.told if diagnosis is not None else ""
    first = diagnosis.first_stage
    if diagnosis.met:
        return f"INT8 meets its criteria; {first} alone does not" if first else "INT8 meets its criteria"
    line = first_line(diagnosis)
    meaning = stage_text(line) if line is not None else ""
    if first in _ELSEWHERE and line is not None and not line.passed:
        return f"{first}: {meaning}"
    parts = list(_parts(result, diagnosis))
    if not parts and meaning:
        return meaning
    fits = (fit_phrase(output.name, output.fit, "the baseline") for output in result.outputs)
    return "; ".join([*parts, *list(filter(None, fits))[:1]]) or "no single cause was found"


def _parts(result: CaseResult, diagnosis: Diagnosis) -> Iterator[str]:
    """The slip of the data, and the ranges, layers or pairs at fault."""
    slips = (f.text for f in result.findings if f.source == "data" and f.rule == diagnosis.slip)
    yield from list(slips)[:1]
    if diagnosis.ranges is not None:
        yield _of_ranges(diagnosis.ranges)
        return
    culprits = _of_culprits(result.search.culprits) if result.search is not None else ""
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
    return f"Q and DQ disagree at {unequal[0].subject}: {unequal[0].text}{more}; no plan takes that off"


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
        return f"{', '.join(parts)}: the dynamic ranges were set by hand ({named}) and are {fault}"
    return f"{', '.join(parts)}: the dynamic ranges are {fault}, as from other data or another model"


def _some(part: Sequence[float], count: int) -> str:
    return f"all {count}" if len(part) == count else f"{len(part)} of {count}"


def _span(factors: Sequence[float]) -> str:
    low, high = min(factors), max(factors)
    said = [f"{factor:,.0f}" if factor >= 100 else f"{factor:.2g}" for factor in (low, high)]
    return said[0] if high < 1.1 * low else " to ".join(said)


def _of_culprits(culprits: Sequence[Culprit]) -> str:
    """One culprit with its own sentence, several by kind."""
    told = [(c.layer, c.cause) for c in culprits if c.cause is not None]
    if not told:
        return ""
    kinds: dict[str, list[str]] = {}
    for layer, cause in told:
        kinds.setdefault(cause.kind, []).append(layer)
    if len(kinds) == 1:
        layer, cause = told[0]
        more = f" (and {len(told) - 1} more layer{'s' * (len(told) > 2)} alike)" if len(told) > 1 else ""
        return f"{layer}: {cause_text(cause)}{more}"
    parts = [
        f"{kind} in {', '.join(layers[:3])}" + (f" and {len(layers) - 3} more" if len(layers) > 3 else "")
        for kind, layers in kinds.items()
    ]
    return f"{len(told)} layers at fault: {'; '.join(parts)}"
