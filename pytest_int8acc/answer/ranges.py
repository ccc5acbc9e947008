"""What is wrong with a case as a whole: its dynamic ranges, and the data they were made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_int8acc.observers.edges import LOST_DB, EdgeMeter, lost_db, reach
from pytest_int8acc.results import Culprit, Finding
from pytest_int8acc.results.causes import OddRanges

#: A range is at fault for being so many times, or less than this part of, what its tensor reaches.
_ODD = 2.0
#: Ranges set by hand take few values: at least so many tensors to a value.
_BY_HAND = 3
#: Slips that say little by themselves: where values are cut off, they are the reason.
_WEAK_MISMATCHES = frozenset({"data-few-samples", "data-same"})


@dataclass(frozen=True)
class Range:
    """One activation's range against what the tensor holds."""

    tensor: str
    reach: float
    """Greatest magnitude that the scale expresses."""
    amax: float
    """Greatest magnitude seen."""
    lost_db: float
    """SQNR lost against the best scale."""


def survey(meter: EdgeMeter) -> tuple[Range, ...]:
    """Every activation range of a network against what its tensor holds, in the order of the groups.

    Raises:
        EngineError: The float model does not run.
        DataError: The inputs cannot be read.
    """
    return tuple(
        Range(tensor, reach(edge.quantization), stats.amax, lost_db(stats, edge))
        for tensor, (stats, quantizations) in meter.measured.items()
        for edge in quantizations.values()
    )


def odd_ranges(ranges: Sequence[Range]) -> OddRanges | None:
    """Where most ranges are wrong, which says more than any layer; None otherwise."""
    bad = [r for r in ranges if r.lost_db >= LOST_DB and r.amax > 0 and r.reach > 0]
    wide = tuple(r.reach / r.amax for r in bad if r.reach >= _ODD * r.amax)
    narrow = tuple(r.amax / r.reach for r in bad if r.amax >= r.reach)
    if len(bad) < 2 or len(wide) + len(narrow) < max(2, len(ranges) / 3):
        return None
    values = Counter(float(f"{r.reach:.4g}") for r in ranges)
    by_hand = len(ranges) >= _BY_HAND * len(values)
    common = tuple(value for value, _ in values.most_common(3)) if by_hand else ()
    return OddRanges(len(ranges), wide, narrow, common)


def decisive_mismatch(
    findings: Sequence[Finding], culprits: Sequence[Culprit], ranges: OddRanges | None
) -> str:
    """Rule of the weightiest slip of the calibration samples; of a weak one where values are cut off."""
    narrow = ranges is not None and bool(ranges.narrow)
    cut_off = narrow or any(c.cause is not None and c.cause.kind == "saturation" for c in culprits)
    mismatches = [f.rule for f in findings if f.source == "data" and f.severity == "warning"]
    strong = [rule for rule in mismatches if rule not in _WEAK_MISMATCHES]
    return next(iter(strong or (mismatches if cut_off else [])), "")
