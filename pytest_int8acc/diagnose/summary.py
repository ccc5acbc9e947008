"""What was wrong with a case, in one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_int8acc.diagnose.ranges import Range
from pytest_int8acc.diagnose.stages import ENGINE_FP16, ENGINE_INT8, FP16, FP32, fit_in_words
from pytest_int8acc.lab.statistics import LOST_DB
from pytest_int8acc.results import Culprit, Finding, OutputResult, StageLine

#: A range is at fault for being so many times, or less than this part of, what its tensor reaches.
_ODD = 2.0
#: Ranges set by hand take few values: at least so many tensors to a value.
_BY_HAND = 3
#: Slips that say little by themselves: where values are cut off, they are the reason.
_WEAK_SLIPS = frozenset({"data-few-samples", "data-same"})


def summarize(
    stages: Sequence[StageLine],
    first_stage: str,
    culprits: Sequence[Culprit],
    outputs: Sequence[OutputResult] = (),
    ranges: Sequence[Range] = (),
    findings: Sequence[Finding] = (),
    fixed: str = "",
) -> str:
    """What was wrong, in one sentence: slips of the data first, then the ranges or layers at fault.

    Args:
        stages: From ``place``; may be empty.
        first_stage: From ``place``.
        culprits: Of the search, with their causes.
        outputs: The case's outputs, for what a straight line through them says.
        ranges: From ``sweep.survey``.
        findings: Of the case, before anything ran in INT8.
        fixed: What the network says of Q/DQ pairs that no plan takes off.
    """
    line = next((line for line in stages if line.name == first_stage), None)
    if first_stage in (FP32, FP16, ENGINE_FP16, ENGINE_INT8) and line is not None and not line.passed:
        return f"{first_stage}: {line.text}"
    told = _of_ranges(ranges) or _of_culprits(culprits) or _of_pairs(findings, fixed)
    parts = [*_of_data(findings, culprits, told), *([told] if told else [])]
    fits = [said for output in outputs if (said := fit_in_words(output, "the baseline"))]
    if not parts and line is not None and line.text:
        return line.text
    return "; ".join([*parts, *fits[:1]]) or "no single cause was found"


def _of_data(findings: Sequence[Finding], culprits: Sequence[Culprit], told: str) -> Iterator[str]:
    """The weightiest slip between calibration samples and inputs; a weak one where values are cut off."""
    cut_off = "too narrow" in told or any(c.cause and c.cause.kind == "saturation" for c in culprits)
    slips = [f for f in findings if f.source == "data" and f.severity == "warning"]
    strong = [f for f in slips if f.rule not in _WEAK_SLIPS]
    yield from (f.text for f in (strong or (slips if cut_off else []))[:1])


def _of_pairs(findings: Sequence[Finding], fixed: str) -> str:
    """Q/DQ pairs that change more than rounding does, and stay in every plan; empty where there are none."""
    unequal = [f for f in findings if f.rule == "unequal-pair"]
    if fixed and unequal:
        more = f" (and {len(unequal) - 1} more alike)" if len(unequal) > 1 else ""
        return f"Q and DQ disagree at {unequal[0].subject}: {unequal[0].text}{more}; no plan takes that off"
    return f"{fixed}: no plan takes them off" if fixed else ""


def _of_ranges(ranges: Sequence[Range]) -> str:
    """Where most ranges are wrong, that says more than any layer; empty otherwise."""
    bad = [r for r in ranges if r.lost_db >= LOST_DB and r.amax > 0 and r.reach > 0]
    wide = [r.reach / r.amax for r in bad if r.reach >= _ODD * r.amax]
    narrow = [r.amax / r.reach for r in bad if r.amax >= r.reach]
    if len(bad) < 2 or len(wide) + len(narrow) < max(2, len(ranges) / 3):
        return ""
    parts = []
    if wide:
        parts.append(f"{_some(wide, ranges)} ranges are {_span(wide)} times what the data reaches")
    if narrow:
        parts.append(f"{_some(narrow, ranges)} ranges cut values off that reach {_span(narrow)} times as far")
    fault = " and ".join(filter(None, ("too wide" * bool(wide), "too narrow" * bool(narrow))))
    values = Counter(float(f"{r.reach:.4g}") for r in ranges)
    if len(ranges) >= _BY_HAND * len(values):
        named = ", ".join(f"{value:g}" for value, _ in values.most_common(3))
        return f"{', '.join(parts)}: the dynamic ranges were set by hand ({named}) and are {fault}"
    return f"{', '.join(parts)}: the dynamic ranges are {fault}, as from other data or another model"


def _some(part: Sequence[float], ranges: Sequence[Range]) -> str:
    return f"all {len(ranges)}" if len(part) == len(ranges) else f"{len(part)} of {len(ranges)}"


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
        return f"{layer}: {cause.text}{more}"
    parts = [
        f"{kind} in {', '.join(layers[:3])}" + (f" and {len(layers) - 3} more" if len(layers) > 3 else "")
        for kind, layers in kinds.items()
    ]
    return f"{len(told)} layers at fault: {'; '.join(parts)}"
