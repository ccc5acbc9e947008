"""The corpus of FP16 faults, run: ``python -m benchmarks.half [--only 'mlp/*']`` prints the table."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from benchmarks.half.measure import Record, measure
from benchmarks.half.networks import IN_BODIES, NETWORKS, Part
from benchmarks.half.parts import FAULTS, HEALTHY


def corpus() -> Mapping[tuple[str, str], Part]:
    """Each part in each network."""
    networks = (*NETWORKS, *IN_BODIES)
    return {(n, name): part for name, part in {**FAULTS, **HEALTHY}.items() for n in networks}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=["*"], help="patterns of network/part")
    patterns = parser.parse_args(arguments).only
    records = []
    for (network, name), part in corpus().items():
        if any(fnmatchcase(f"{network}/{name}", pattern) for pattern in patterns):
            with tempfile.TemporaryDirectory() as folder:
                records.append(measure(network, name, part, Path(folder)))
            print(f"{network}/{name}: {told(records[-1])}", file=sys.stderr, flush=True)
    print("\n".join(table(records)))


def told(record: Record) -> str:
    """What came of one."""
    right = record.found == record.truth
    found = (
        f"{sorted(record.found)}, truth {sorted(record.truth)}" if not right else f"{len(record.found)} nodes"
    )
    return f"{'right' if right else 'WRONG'}, {found}, {record.trials} trials, {record.seconds:.1f} s"


def table(records: Sequence[Record]) -> Iterator[str]:
    """Lines of Markdown: a row per part, and the whole."""
    heads = ("part", "networks", "FP16, dB", "must stay in FP32", "named", "innocent named", "verified")
    yield f"| {' | '.join([*heads, 'Casts', 'trials', 's'])} |"
    yield "|---" * (len(heads) + 3) + "|"
    rows: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        rows[record.part].append(record)
    for part, some in rows.items():
        yield _row(part, some)
    yield _row("all", records)


def _row(part: str, records: Sequence[Record]) -> str:
    guilty = sum(len(r.truth) for r in records)
    hit = sum(len(r.truth & r.found) for r in records)
    innocent = sum(len(r.found - r.truth) for r in records)
    failed = [r for r in records if not r.passed]
    mean = max(len(failed), 1)
    cells = (
        *(
            part,
            len(records),
            f"{min(r.fp16_db for r in records):.0f} to {max(r.fp16_db for r in records):.0f}",
        ),
        *(guilty, f"{hit} ({hit / guilty:.0%})" if guilty else "0", innocent),
        *(
            f"{sum(r.verified for r in failed)} of {len(failed)}",
            f"{sum(r.casts for r in failed) / mean:.1f}",
        ),
        *(
            f"{sum(r.trials for r in failed) / mean:.0f}",
            f"{sum(r.seconds for r in records) / len(records):.2f}",
        ),
    )
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
