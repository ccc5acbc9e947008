"""What a case costs: CPU seconds of whole processes, one thread each, beside its goals.

    python -m benchmarks.cost --install                # makes what other tools' environments are missing
    python -m benchmarks.cost --only a --seed 20261128 --tasks 12 --kept cost.jsonl
    python -m benchmarks.cost --only c d --json cost.json

Topics: a: failing cases, drawn by the seed, against NNCF; b: failing cases in plain passes (u: CPU seconds of
one FP32 pass of ONNX Runtime over all samples); c: networks of rapidocr; d: passing cases and calibration; e:
memory; f: growth with the number of groups; g: a suite without specs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnxruntime

from benchmarks.cost.lines import TOPICS, Line, Setup
from benchmarks.cost.process import ONE_THREAD
from benchmarks.search import commit, machine
from benchmarks.tables import table

#: Environment to what is installed there, dependencies aside where it begins with --no-deps. NNCF gets the
#: same ONNX Runtime as the plugin.
PACKAGES = {
    "nncf": ["nncf==3.4.0", "onnx==1.23.2", f"onnxruntime=={onnxruntime.__version__}"],
    "ocr": ["--no-deps", "rapidocr-onnxruntime==1.4.4", "pillow", "numpy"],
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what was asked for and print it."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if "a" in options.only and options.seed is None:
        parser.error("topic a draws its tasks: give --seed")
    if options.kept and (commit() == "unknown" or commit().endswith("-dirty")):
        parser.error(f"--kept needs a commit without changes to it; this tree is {commit()}")
    os.environ.update(ONE_THREAD)
    if options.install:
        install(options.environments, PACKAGES)
    about = dict(machine("benchmarks.cost"))
    lines: dict[str, list[Line]] = {}
    for topic in options.only:
        with tempfile.TemporaryDirectory() as folder:
            lines[topic] = []
            setup = Setup(
                Path(folder),
                options.environments,
                options.limit,
                options.rounds,
                seed=options.seed,
                tasks=options.tasks,
                kept=options.kept,
            )
            for line in TOPICS[topic](setup):
                lines[topic].append(line)
                print(table(_HEADER, [_cells(line)]).splitlines()[-1], flush=True)
                if options.json:
                    figures = {name: [dataclasses.asdict(line) for line in lines[name]] for name in lines}
                    options.json.write_text(json.dumps({"machine": about, **figures}, indent=1))
    print(f"\n{table(_HEADER, [_cells(line) for name in lines for line in lines[name]])}\n")
    print("\n".join(f"{name}: {value}" for name, value in about.items()))


_HEADER = ("", "figure", "goal", "unit", "met")


def _cells(line: Line) -> tuple[object, ...]:
    goal = "" if line.goal is None else f"{line.goal:g}"
    met = {None: "", True: "yes", False: "no"}[line.met]
    return line.what, f"{'> ' if line.least else ''}{line.figure:.3g}", goal, line.unit, met


def install(folder: Path, environments: Mapping[str, Sequence[str]]) -> None:
    """Make the environments that are not there, each with its packages."""
    for name, packages in environments.items():
        if not (folder / name).exists():
            subprocess.run([sys.executable, "-m", "venv", folder / name], check=True)
            subprocess.run([folder / name / "bin" / "pip", "install", "-q", *packages], check=True)


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks.cost", description=__doc__, formatter_class=formatter
    )
    parser.add_argument("--only", nargs="+", choices=TOPICS, default=list(TOPICS), help="default: all")
    default = Path.home() / ".cache" / "int8acc-benchmarks"
    parser.add_argument("--environments", type=Path, default=default, help=f"default: {default}")
    parser.add_argument(
        "--install", action="store_true", help="make the environments that are missing, by pip"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is taken (default: 3)")
    parser.add_argument("--limit", type=int, default=900, help="CPU s one process may take (default: 900)")
    parser.add_argument("--seed", type=int, help="of the tasks of topic a, which has no other")
    parser.add_argument("--tasks", type=int, default=12, help="how many topic a draws (default: 12)")
    parser.add_argument(
        "--kept",
        type=Path,
        metavar="FILE",
        help="rounds of topic a, so that a run goes on where one ended",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers here")
    return parser


if __name__ == "__main__":
    main()
