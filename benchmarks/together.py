"""Twenty small cases with planted faults on one GPU, by eight workers: how long the whole run takes.

    python -m benchmarks.together --list
    python -m benchmarks.together --out FILE          # needs a GPU and TensorRT

The cases are entries of the corpus of regressions, whose fault can be mended in INT8, and none of them is in
``benchmarks.planted_engines``. All of them run in one pytest session under pytest-xdist, with an empty engine
store and the builder's optimization level 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks import planted_engines
from benchmarks.regressions.corpus import corpus
from benchmarks.regressions.entry import Entry, write
from benchmarks.tables import table

WORKERS = 8
#: Seconds for the whole run.
GOAL = 300
#: The entries. They were drawn by a seed (1725df55) before any of them ran on an engine. They stand here by
#: name, because the same seed draws others as the corpus grows.
ENTRIES = (
    "misread_mobilenet",
    "corrected_resnet",
    "wide_resnet_x10",
    "data_times16_swin",
    "idle_recurrent_1",
    "wide_decoder_x1000",
    "by_hand_mobilenet_50",
    "data_times16_vit",
    "misread_one_decoder",
    "weight_dead_mlp_x100",
    "strange2_silu",
    "value_decoder0",
    "product_recognizer1_weights",
    "narrow_convnext_by8",
    "miscorrected_tcn",
    "masked_5",
    "body_if_recurrent_0_lstm",
    "body_loop_idle_table_0",
    "weight_detector_mislabelled",
    "wide_encoder_x100",
)
_HEADER = ("entry", "network", "verdict", "fix", "builds", "s")


def prepare(entries: Sequence[Entry], folder: Path) -> None:
    """Write the model, the data and the spec of each entry into a folder of its own."""
    for entry in entries:
        own = folder / entry.name
        own.mkdir()
        spec = write(entry, entry.plant(), own)
        text = {**yaml.safe_load(spec.read_text(encoding="utf-8")), "tensorrt": planted_engines.BUILDER}
        spec.rename(own / f"{entry.name}.int8acc.yaml").write_text(yaml.safe_dump(text, sort_keys=False))


def run(folder: Path, workers: int, backend: str, limit: float) -> tuple[float, dict[str, Any]]:
    """Run all cases of a folder, ``limit`` seconds at most; returns the seconds and the report."""
    options = ["--int8acc-backend", backend, "--int8acc-report", str(folder / "out")]
    options += ["--int8acc-cache-dir", str(folder / "store"), "-n", str(workers)]
    command = [sys.executable, "-m", "pytest", "--int8acc", f"--rootdir={folder}"]
    command += [*planted_engines.plugin_options(), *options, str(folder)]
    began = time.perf_counter()
    log = folder / "log.txt"
    with log.open("w") as stream:
        child = subprocess.Popen(
            command,
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
    parser.add_argument("--cases", type=int, default=len(ENTRIES), help="only the first of them")
    parser.add_argument("--workers", type=int, default=WORKERS, help=f"default: {WORKERS}")
    parser.add_argument("--backend", choices=planted_engines.BACKENDS, default="tensorrt")
    parser.add_argument("--seconds", type=float, default=600.0, help="of the run, at most (default: 600)")
    parser.add_argument("--list", action="store_true", help="print the entries and run nothing")
    options = parser.parse_args(arguments)
    entries = [corpus()[name] for name in ENTRIES[: options.cases]]
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
    print(f"{len(entries)} cases, {options.workers} workers: {seconds:.0f} s (goal: {GOAL} s)")


if __name__ == "__main__":
    main()
