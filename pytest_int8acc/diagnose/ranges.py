"""Every activation range of a network against what its tensor holds."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_int8acc.lab.statistics import lost_db, reach
from pytest_int8acc.lab.sweep import EdgeMeter


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
    clipped: float
    """Share of the values beyond the range."""


def survey(meter: EdgeMeter, *, samples: int = 16) -> tuple[Range, ...]:
    """Every activation range of a network against what its tensor holds, in the order of the groups.

    Raises:
        EngineError: The float model does not run.
        DataError: The inputs cannot be read.
    """
    measured = meter.measure((edge for group in meter.network.groups for edge in group.edges), samples)
    ranges = []
    for tensor, (stats, quantizations) in measured.items():
        for edge in quantizations.values():
            lost = lost_db(stats, edge)
            share = edge.clipped / max(edge.values, 1)
            ranges.append(Range(tensor, reach(edge.quantization), stats.amax, lost, share))
    return tuple(ranges)
