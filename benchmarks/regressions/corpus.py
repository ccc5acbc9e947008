"""All entries, faults first."""

from __future__ import annotations

from functools import cache

from benchmarks.regressions import (
    attention_faults,
    body_faults,
    chosen,
    data_faults,
    format_faults,
    fp8_faults,
    healthy,
    reader_faults,
    scale_faults,
    strangers_one,
    strangers_three,
    strangers_two,
    weight_faults,
)
from benchmarks.regressions.entry import Entry


@cache
def corpus() -> dict[str, Entry]:
    """Name to entry; every process builds the same."""
    found: dict[str, Entry] = {}
    faults = (
        scale_faults,
        weight_faults,
        attention_faults,
        format_faults,
        data_faults,
        fp8_faults,
        reader_faults,
        strangers_one,
        strangers_two,
        strangers_three,
    )
    for module in (*faults, chosen, healthy):
        for entry in module.entries():
            if entry.name in found:
                raise ValueError(f"two entries are called {entry.name}")
            found[entry.name] = entry
    found.update((entry.name, entry) for entry in body_faults.entries(found))
    return found
