"""Ways of mending a case, in a sentence."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_int8acc.errors import listed
from pytest_int8acc.report.table import count as counted
from pytest_int8acc.results import Migration, Repair


def repair_text(repair: Repair) -> str:
    """What is done, in a sentence or two; what matters most comes first."""
    if repair.told:
        return repair.told
    count, precision = len(repair.layers), repair.precision.upper()
    if repair.kind == "high":
        return f"{counted(count, 'layer')} in {precision}"
    head = f"{count} of {counted(repair.culprits, 'layer')} in {precision}"
    done = "; ".join(_done(repair)) or "symmetric INT8 throughout"
    data = f"the calibration data, {repair.data}" if repair.data else "the compared inputs themselves"
    return f"{head if count else f'no layer needs {precision}'}: {done}; ranges from {data}"


def _done(repair: Repair) -> Iterator[str]:
    if repair.rescales:
        methods = ", ".join(dict.fromkeys(r.method for r in repair.rescales))
        yield f"other scales for {counted(len(repair.rescales), 'tensor')} ({methods})"
    if repair.weights:
        yield f"scales of {counted(len(repair.weights), 'weight')} taken anew from the values"
    if repair.migration is not None:
        yield _migration(repair.migration)


def _migration(migration: Migration) -> str:
    parts = [f"folded into {listed(migration.folded)}"] if migration.folded else []
    if migration.inserted:
        parts.append(f"{len(migration.inserted)} Mul inserted, one more elementwise pass over a tensor each")
    return f"channels evened out by migration to the weights (alpha {migration.alpha:g}; {'; '.join(parts)})"
