"""The corpus of regressions, run: what is detected, named and mended.

    python -m benchmarks.regressions                      # everything, as tables in Markdown
    python -m benchmarks.regressions --only 'wide_*' several_cnn_pair --entries
    python -m benchmarks.regressions --jobs 2 --json results.json

Run from the repository's root, with the plugin installed as for its tests.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path

from benchmarks.regressions.corpus import corpus
from benchmarks.regressions.record import Record, measure
from benchmarks.regressions.tables import by_entry, by_kind, summary
from pytest_int8acc.report.plain import to_plain


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what was asked for and print it."""
    options = _parser().parse_args(arguments)
    patterns = options.only or ["*"]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in corpus()):
            sys.exit(f"--only {pattern}: no entry is called so; --list shows all")
    names = [name for name in corpus() if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if options.list:
        print("\n".join(f"{name}: {corpus()[name].kind}" for name in names))
        return
    began, records = time.perf_counter(), []
    for record in _measured(names, options.jobs):
        records.append(record)
        mark = "crashed: " + record.message if record.verdict == "crashed" else record.verdict
        print(f"[{len(records)}/{len(names)}] {record.name}: {mark}, {record.seconds:.1f} s", file=sys.stderr)
    if options.entries:
        print(by_entry(records), end="\n\n")
    print(by_kind(records), summary(records), sep="\n\n")
    print(f"- {time.perf_counter() - began:.0f} s in all, {options.jobs} jobs")
    if options.json:
        plain = [to_plain(dataclasses.asdict(record)) for record in records]
        options.json.write_text(json.dumps(plain, indent=1), encoding="utf-8")


def _measured(names: Sequence[str], jobs: int) -> Iterator[Record]:
    if jobs == 1:
        yield from map(measure, names)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(measure, names)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.regressions", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="entries, by name or pattern (default: all)"
    )
    parser.add_argument("--list", action="store_true", help="print the entries and run nothing")
    parser.add_argument("--entries", action="store_true", help="a line per entry besides the table by kind")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers here")
    return parser


if __name__ == "__main__":
    main()
