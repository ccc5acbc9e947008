"""Whether fixes called verified hold on samples that nothing saw, on the corpus of regressions.

    python -m benchmarks.unseen                        # every entry whose criteria a fault misses
    python -m benchmarks.unseen --only 'wide_*' --draws 1
    python -m benchmarks.unseen --kept FILE            # goes on where a run ended

A case gets some samples of an entry, drawn by chance. All others judge its fix: by ONNX Runtime in an exact
session (without fused kernels), and in a default session. Draws and seeds were committed before anything was
tuned to them.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import yaml

from benchmarks.held_out import outcome
from benchmarks.regressions.corpus import corpus
from benchmarks.regressions.data import pixels, samples
from benchmarks.regressions.entry import Entry, Planted, write
from benchmarks.regressions.networks import VALIDATION
from benchmarks.tables import table
from pytest_int8acc.tensors import Feed

#: Samples that a case gets, one number for each kind of case.
SIZES = (24, 48, 96)
#: Draws of the samples of each entry and size.
DRAWS = 2
#: The seed of the first draw.
SEED = 20261129


@dataclass(frozen=True)
class Judged:
    """One fix, what was said of it, and what the other samples say."""

    entry: str
    size: int
    draw: int
    word: str
    """``verified``; ``not proved``: there is a reserve, but no sample that chose nothing; ``not verified``;
    ``none``: no fix."""
    exact: bool | None = None
    """Whether the fix meets the criteria on all other samples in an exact session; None without a fix."""
    default: bool | None = None
    """The same in a default session."""


def judged(name: str, size: int, draw: int) -> Judged | None:
    """One draw of an entry; None where the case passes or has no verdict."""
    entry = corpus()[name]
    planted = entry.plant()
    pool = _pool(entry, planted)
    count = len(next(iter(pool.values())))
    order = np.random.default_rng([SEED, draw, size]).permutation(count)
    given, other = ({n: a[rows] for n, a in pool.items()} for rows in (order[:size], order[size:]))
    with tempfile.TemporaryDirectory() as folder:
        spec = write(entry, replace(planted, inputs=given), Path(folder))
        text = yaml.safe_load(spec.read_text())
        spec.write_text(yaml.safe_dump({**text, "samples": size}, sort_keys=False))
        found = outcome(spec, other)
    if found.verdict != "failed":
        return None
    return Judged(name, size, draw, found.word, found.exact, found.default)


def _pool(entry: Entry, planted: Planted) -> Feed:
    """All samples that there are for an entry: more than its own, unless its fault is in the inputs."""
    own = samples(entry.network, "validation", VALIDATION)
    if any(not np.array_equal(array, planted.inputs.get(name)) for name, array in own.items()):
        return planted.inputs
    return samples(entry.network, "validation", len(pixels("validation")))


def main(arguments: Sequence[str] | None = None) -> None:
    """Judge what was asked for, and print the table. The order is random: a run cut short is a fair share."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=["*"], help="names of entries, or patterns")
    parser.add_argument("--draws", type=int, default=DRAWS, help="draws of each entry and size")
    parser.add_argument("--kept", type=Path, metavar="FILE", help="results, a JSON line for each draw")
    options = parser.parse_args(arguments)
    kept: Path | None = options.kept
    done: dict[tuple[str, int, int], Judged | None] = {}
    if kept and kept.exists():
        for key, line in map(json.loads, kept.read_text().splitlines()):
            done[tuple(key)] = Judged(**line) if line else None
    entries = [name for name in corpus() if any(fnmatchcase(name, pattern) for pattern in options.only)]
    wanted = [(name, size, draw) for name in entries for size in SIZES for draw in range(options.draws)]
    random.Random(0).shuffle(wanted)
    for key in wanted:
        if key in done:
            continue
        done[key] = judged(*key)
        print(f"{key}: {len(done)} of {len(wanted)}", file=sys.stderr)
        if kept:
            with kept.open("a") as file:
                file.write(json.dumps([key, done[key] and asdict(done[key])]) + "\n")  # type: ignore[arg-type]
    print(_table([found for found in done.values() if found is not None]))


def _table(found: Sequence[Judged]) -> str:
    rows = []
    for word in ("verified", "not proved", "not verified", "none"):
        for size in SIZES:
            own = [one for one in found if (one.word, one.size) == (word, size)]
            exact, both = (
                sum(bool(one.exact) for one in own),
                sum(bool(one.exact and one.default) for one in own),
            )
            rows.append([word, str(size), str(len(own)), str(exact), str(both)])
    holds = [one for one in found if one.exact]
    given = sum(one.word == "verified" for one in holds)
    head = ["word", "samples", "fixes", "hold, exact", "hold in both sessions"]
    said = f"Of {len(holds)} plans that hold on the other samples, {given} were called verified."
    return f"{table(head, rows)}\n\n{said}"


if __name__ == "__main__":
    main()
