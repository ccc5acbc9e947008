"""Whether a green can be wrong: planted lies by class, and healthy cases, each run through pytest.

    python -m benchmarks.greens                            # everything, as a table in Markdown
    python -m benchmarks.greens --only d healthy --jobs 2  # a class, a name or a pattern
    python -m benchmarks.greens --resume greens.jsonl      # outcomes so far are kept and not repeated
    python -m benchmarks.greens --only a_boxes --show      # with all that pytest printed
    python -m benchmarks.greens --full --show --draw 20 --seed 20261201  # reds for a reader, drawn by chance

Exits with 1 where an entry is broken: no lie, not healthy, or without a verdict.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path

from benchmarks.greens.entry import CLASSES, HEALTHY, Entry
from benchmarks.greens.measure import Outcome, entries, measure


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what was asked for and print it."""
    options = _parser().parse_args(arguments)
    chosen = [entry for entry in entries().values() if _wanted(entry, options.only)]
    if not chosen:
        sys.exit(f"--only {' '.join(options.only)}: no entry is called so; --list shows all")
    if options.draw:
        planted = [entry for entry in chosen if entry.kind != HEALTHY and not entry.gpu]
        chosen = random.Random(options.seed).sample(planted, options.draw)
    if options.list:
        print("\n".join(f"{entry.name}: {entry.kind}, {entry.network}" for entry in chosen))
        return
    began = time.perf_counter()
    done = _kept(options.resume)
    for outcome in _measured([e.name for e in chosen if e.name not in done], options):
        done[outcome.name] = outcome
        if options.resume:
            with options.resume.open("a", encoding="utf-8") as file:
                file.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
        head = f"{outcome.outcome:8}{outcome.name} ({outcome.truth}; {outcome.seconds:.1f} s)"
        print(f"{head}: {outcome.line[:160]}", file=sys.stderr, flush=True)
        if options.show:
            print(outcome.text)
    outcomes = [done[entry.name] for entry in chosen]
    if options.entries:
        print(_by_entry(outcomes), end="\n\n")
    cpu = sum(outcome.cpu for outcome in outcomes)
    print(table(outcomes), f"{cpu:.0f} s of CPU time, {time.perf_counter() - began:.0f} s", sep="\n\n")
    broken = [outcome for outcome in outcomes if outcome.outcome == "broken"]
    for outcome in broken:
        print(f"BROKEN {outcome.name}: {outcome.line}")
    if broken:
        sys.exit(1)


def table(outcomes: Sequence[Outcome]) -> str:
    """Outcomes by class, in Markdown."""
    heads = ("class", "variants", "red", "caution", "silent green", "misled", "skipped", "broken")
    rows = [heads, ("---",) * len(heads)]
    for kind, meaning in CLASSES.items():
        rows.append(_row(f"{kind}. {meaning}", [o for o in outcomes if o.kind == kind]))
    rows.append(_row("all planted", [o for o in outcomes if o.kind != HEALTHY]))
    rows.append(_row("healthy (green is right)", [o for o in outcomes if o.kind == HEALTHY]))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(title: str, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    count = Counter(outcome.outcome for outcome in outcomes)
    places = ("red", "caution", "green", "misled", "skipped", "broken")
    return (title, str(len(outcomes)), *(str(count[place]) for place in places))


def _by_entry(outcomes: Sequence[Outcome]) -> str:
    heads = ("entry", "network", "truth", "outcome", "what pytest says")
    rows = [heads, ("---",) * len(heads), *map(_entry_row, outcomes)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _entry_row(outcome: Outcome) -> tuple[str, ...]:
    said = outcome.line.partition(" - ")[2] or outcome.line
    return (outcome.name, outcome.network, outcome.truth, outcome.outcome, said.replace("|", r"\|"))


def _wanted(entry: Entry, only: Sequence[str]) -> bool:
    return not only or any(entry.kind == p or fnmatchcase(entry.name, p) for p in only)


def _kept(file: Path | None) -> dict[str, Outcome]:
    if file is None or not file.exists():
        return {}
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return {line["name"]: Outcome(**line) for line in lines}


def _measured(names: Sequence[str], options: argparse.Namespace) -> Iterator[Outcome]:
    with ThreadPoolExecutor(options.jobs) as pool:
        yield from pool.map(lambda name: measure(name, options.gpu, options.full), names)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.greens",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="CLASS", help="a to f, healthy, names, patterns"
    )
    parser.add_argument("--list", action="store_true", help="print the entries and run nothing")
    parser.add_argument("--entries", action="store_true", help="a line per entry besides the table by class")
    parser.add_argument("--show", action="store_true", help="all that pytest printed")
    parser.add_argument("--full", action="store_true", help="search and repair after each red verdict")
    parser.add_argument(
        "--draw", type=int, metavar="N", help="N planted lies by chance, none that needs a GPU"
    )
    parser.add_argument("--seed", type=int, default=0, help="of --draw (default: 0)")
    parser.add_argument("--gpu", action="store_true", help="run the entries that need TensorRT and a GPU")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at once (default: 1)")
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="JSON lines of outcomes, read and added to"
    )
    return parser


if __name__ == "__main__":
    main()
