"""Twenty small failing cases on one GPU, by eight workers: how long the whole run takes.

    python -m benchmarks.together --list
    python -m benchmarks.together --out FILE          # needs a GPU and TensorRT

The cases are entries of the corpus of regressions, drawn by a seed from those that fail in INT8 and can be
mended there, without the entries of ``benchmarks.planted_engines``. All of them run in one pytest session
under pytest-xdist, with an empty engine store and the builder's optimization level 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import yaml

from benchmarks import planted_engines
from benchmarks.regressions.corpus import corpus
from benchmarks.regressions.entry import Entry, write
from benchmarks.tables import table

CASES, WORKERS = 20, 8
#: Seconds for the whole run.
GOAL = 300
#: The seed that draws the entries. It was committed before any of them ran on an engine.
SEED = 20261128
_BUILDER = {"tactic_sources": [], "optimization_level": 1}
_HEADER = ("entry", "network", "verdict", "fix", "builds", "s")


def chosen(cases: int = CASES) -> list[Entry]:
    """The entries, in random order."""
    others = {entry.name for entry in planted_engines.chosen()}
    names = sorted(set(corpus()) - others)
    random.Random(SEED).shuffle(names)
    fits = (entry for entry in map(corpus().__getitem__, names) if planted_engines.can_be_mended(entry))
    return [next(fits) for _ in range(cases)]


def prepare(entries: Sequence[Entry], folder: Path) -> None:
    """Write the model, the data and the spec of each entry into a folder of its own."""
    for entry in entries:
        own = folder / entry.name
        own.mkdir()
        spec = write(entry, entry.plant(), own)
        text = {**yaml.safe_load(spec.read_text(encoding="utf-8")), "tensorrt": _BUILDER}
        spec.rename(own / f"{entry.name}.int8acc.yaml").write_text(yaml.safe_dump(text, sort_keys=False))


def run(folder: Path, workers: int, backend: str, limit: float) -> tuple[float, dict[str, Any]]:
    """Run all cases of a folder, ``limit`` seconds at most; returns the seconds and the report."""
    installed = any(found.name == "int8acc" for found in entry_points(group="pytest11"))
    plugins = ["-p", "no:cacheprovider", *(() if installed else ("-p", "pytest_int8acc.plugin"))]
    options = ["--int8acc-backend", backend, "--int8acc-report", str(folder / "out")]
    options += ["--int8acc-cache-dir", str(folder / "store"), "-n", str(workers)]
    command = [sys.executable, "-m", "pytest", "--int8acc", f"--rootdir={folder}", *plugins, *options]
    began = time.perf_counter()
    log = folder / "log.txt"
    with log.open("w") as stream:
        child = subprocess.Popen(
            [*command, str(folder)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"},
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
        try:
            child.wait(limit)
        except subprocess.TimeoutExpired:
            child.terminate()  # the report has the cases that have ended
            child.wait()
    seconds = time.perf_counter() - began
    report = folder / "out" / "report.json"
    if not report.exists():
        sys.exit(log.read_text()[-4000:])
    return seconds, json.loads(report.read_text(encoding="utf-8"))


def rows(entries: Sequence[Entry], cases: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The rows of the table."""
    found = []
    for entry in entries:
        case = next((case for case in cases if f"{entry.name}.int8acc" in case["nodeid"]), None)
        if case is None:
            found.append((entry.name, entry.network, "not ended", "", "", ""))
            continue
        fix, builds = planted_engines.fix_of(case), str(case.get("builds") or 0)
        found.append((entry.name, entry.network, case["verdict"], fix, builds, f"{case['seconds']:.0f}"))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cases, and print the time of all and a table of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, metavar="FILE", help="also keep the report here")
    parser.add_argument("--cases", type=int, default=CASES, help=f"default: {CASES}")
    parser.add_argument("--workers", type=int, default=WORKERS, help=f"default: {WORKERS}")
    parser.add_argument("--backend", choices=planted_engines.BACKENDS, default="tensorrt")
    parser.add_argument("--seconds", type=float, default=600.0, help="of the run, at most (default: 600)")
    parser.add_argument("--list", action="store_true", help="print the entries and run nothing")
    options = parser.parse_args(arguments)
    entries = chosen(options.cases)
    if options.list:
        print("\n".join(f"{entry.name}: {entry.kind}, {entry.network}" for entry in entries))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(entries, folder)
        seconds, report = run(folder, options.workers, options.backend, options.seconds)
    if options.out:
        options.out.write_text(json.dumps(report), encoding="utf-8")
    print(table(_HEADER, rows(entries, report["cases"])))
    print(f"{options.cases} cases, {options.workers} workers: {seconds:.0f} s (goal: {GOAL} s)")


if __name__ == "__main__":
    main()
