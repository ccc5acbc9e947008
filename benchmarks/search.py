"""The precision search, measured: all strategies on all cases, its growth, and its rivals.

    python -m benchmarks.search                                  # the suite and the growth table
    python -m benchmarks.search --cases cnn_misscaled unet_interacting --strategies minimal bisect
    python -m benchmarks.search --rivals ENVIRONMENTS --json results.json

Run from the repository's root, with the plugin installed as for its tests. See benchmarks/rivals/run.py for
the rivals' environments.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import growth, tables
from benchmarks.measure import CaseReport, measure
from benchmarks.nets import CASES
from benchmarks.rivals.run import compare, run
from pytest_int8acc.search.strategies import STRATEGIES


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what was asked for and print it."""
    options = _parser().parse_args(arguments)
    about = dict(machine("benchmarks.search"))
    print("\n".join(f"{name}: {value}" for name, value in about.items()), flush=True)
    results: dict[str, Any] = {"machine": about}
    reports: list[CaseReport] = []
    for name in options.cases:
        reports.append(measure(CASES[name](), options.strategies))
        print(f"\n{tables.by_case(reports[-1:])}", flush=True)
    if reports:
        results["cases"] = [dataclasses.asdict(report) for report in reports]
        print(f"\n{tables.by_network(reports)}\n\n{tables.by_strategy(reports)}", flush=True)
    if options.growth:
        rows = growth.grow([s for s in options.strategies if s in ("minimal", "bisect")], options.growth)
        results["growth"] = [dataclasses.asdict(row) for row in rows]
        print(f"\n{tables.by_size(rows)}", flush=True)
    if options.rivals:
        results["rivals"] = run(options.rivals)
        print(f"\n{compare(results['rivals'])}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search",
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--cases", nargs="*", choices=CASES, default=list(CASES), metavar="CASE", help="which"
    )
    parser.add_argument(
        "--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES), metavar="NAME", help="which"
    )
    parser.add_argument(
        "--growth",
        nargs="*",
        type=int,
        default=list(growth.BLOCKS),
        metavar="BLOCKS",
        help="sizes; none: skip",
    )
    parser.add_argument("--rivals", type=Path, metavar="DIR", help="run the rivals of these environments")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers here")
    return parser


def machine(module: str) -> Iterator[tuple[str, str]]:
    """What the figures of a module depend on."""
    yield "command", shlex.join([Path(sys.executable).name, "-m", module, *sys.argv[1:]])
    yield (
        "machine",
        f"{processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {platform.system()}",
    )
    names = ("onnxruntime", "onnx", "numpy")
    yield "commit", commit()
    versions = [f"{name} {importlib.metadata.version(name)}" for name in names]
    yield "versions", ", ".join([f"Python {platform.python_version()}", *versions])


def commit() -> str:
    """The commit that is checked out, with ``-dirty`` where files differ from it; ``unknown`` without git."""
    command, folder = ["git", "describe", "--always", "--dirty", "--exclude=*"], Path(__file__).parent
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def processor() -> str:
    """The processor's name, family and wide instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    wide = [name for name in ("avx2", "avx512f", "avx512_vnni") if name in told.get("flags", "").split()]
    family = f"family {told.get('cpu family', '?')}"
    return ", ".join([told.get("model name", platform.processor()), family, *wide])


if __name__ == "__main__":
    main()
