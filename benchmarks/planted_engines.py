"""Planted faults on real engines: whether an engine and its simulation agree, and whether full INT8 is found.

    python -m benchmarks.planted_engines --list
    python -m benchmarks.planted_engines --jobs 16 --kept FILE            # needs GPUs and TensorRT
    python -m benchmarks.planted_engines --backend onnxruntime --kept FILE
    python -m benchmarks.planted_engines --kept FILE... --table

Eight entries of the corpus of regressions in transformers and eight in convolutional networks, whose criteria
can be met with everything in INT8. Each runs through pytest twice: on TensorRT, and on ONNX Runtime, which is
the simulation. What is kept is not run again, on any host.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.regressions.corpus import corpus
from benchmarks.regressions.entry import Entry, write
from benchmarks.tables import table

#: The entries. They were drawn by a seed (0239b63b) before any of them ran on an engine. They stand here by
#: name, because the same seed draws others as the corpus grows.
ENTRIES = (
    "unused_decoder",
    "several_decoder_three",
    "unused_recognizer",
    "corrected_resnet",
    "several_cnn_pair",
    "bias_dead_resnet",
    "weight_swin_mislabelled",
    "data_black_cnn",
    "stale_mixed_tcn",
    "before_norm_vit",
    "wide_detector_x300",
    "narrow_mobilenet_by5",
    "weight_recognizer_mislabelled",
    "by_hand_mobilenet_200",
    "before_gelu_encoder",
    "several_vit_three",
)
#: Seconds for the answer of one case, its waiting for the GPU included.
MAX_SECONDS = 420
#: What an entry runs on; ONNX Runtime is the simulation.
BACKENDS = ("tensorrt", "onnxruntime")
#: Options of the builder in each spec.
BUILDER = {"tactic_sources": [], "optimization_level": 1}


@dataclass(frozen=True)
class Outcome:
    """What one run of an entry gave."""

    score_db: float | None
    """The score of the criterion that is missed by most, in decibels above its limit."""
    fix: str
    """full: a fix with everything in INT8 holds; part: one with less; none."""
    builds: int
    seconds: float
    notes: tuple[str, ...]
    """The notes of the answer."""
    text: str
    """All that pytest printed."""


#: Entry and backend, to what came out.
Kept = dict[tuple[str, str], Outcome]


def chosen() -> list[Entry]:
    """The entries."""
    return [corpus()[name] for name in ENTRIES]


def plugin_options() -> list[str]:
    """The options of pytest that load the plugin, also where it is not installed, and keep no cache."""
    installed = any(found.name == "int8acc" for found in entry_points(group="pytest11"))
    return ["-p", "no:cacheprovider", *(() if installed else ("-p", "pytest_int8acc.plugin"))]


def run(entry: Entry, backend: str, gpu: int) -> Outcome:
    """Run an entry on TensorRT, or on ONNX Runtime."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        spec = write(entry, entry.plant(), folder)
        text = yaml.safe_load(spec.read_text(encoding="utf-8"))
        spec.write_text(yaml.safe_dump({**text, "tensorrt": BUILDER}, sort_keys=False), encoding="utf-8")
        began = time.perf_counter()
        printed, case = _pytest(folder, backend, gpu)
        seconds = time.perf_counter() - began
    search = case.get("search") or {}
    notes = [*(search.get("notes") or ()), *((case.get("diagnosis") or {}).get("notes") or ())]
    return Outcome(
        *(_score(case), fix_of(case), int(case.get("builds") or 0)), seconds, tuple(map(str, notes)), printed
    )


def _pytest(folder: Path, backend: str, gpu: int) -> tuple[str, dict[str, Any]]:
    """What pytest prints, and its case in report.json; an empty case if there is none."""
    out = folder / f"out-{backend}"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)}
    options = (
        f"--int8acc-backend {backend} --int8acc-max-seconds {MAX_SECONDS} --int8acc-report {out}".split()
    )
    command = [sys.executable, "-m", "pytest", "--int8acc", "-v", f"--rootdir={folder}"]
    command += [*plugin_options(), *options]
    command += [str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    report = out / "report.json"
    cases = json.loads(report.read_text(encoding="utf-8"))["cases"] if report.exists() else []
    return done.stdout + done.stderr, cases[0] if cases else {}


def _score(case: dict[str, Any]) -> float | None:
    """The score of the criterion that is missed by most, in decibels above its limit."""
    found = [
        _decibels(score["metric"], float(score["value"]), float(score["limit"])) for score in _scores(case)
    ]
    return min(found, default=None)


def _scores(case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for score in case.get("scores") or ():
        if score["limit"] is not None and not score["metric"].startswith("top"):
            yield score


def _decibels(metric: str, value: float, limit: float) -> float:
    """By how much a score is better than its limit, in decibels of the squared error."""
    if metric.endswith("_db"):
        return value - limit
    if metric == "cosine":
        return 10 * float(np.log10(max(1 - limit, 1e-12) / max(1 - value, 1e-12)))
    return 20 * float(np.log10(max(limit, 1e-12) / max(value, 1e-12)))


def fix_of(case: dict[str, Any]) -> str:
    """Which fix meets the criteria in the session of the case."""
    repairs = (case.get("diagnosis") or {}).get("repairs") or ()
    held = [repair for repair in repairs if all(_is_kept(score) for score in repair["scores"])]
    if any(not repair["layers"] for repair in held):
        return "full"
    search = case.get("search") or {}
    return "part" if held or search.get("verified") else "none"


def _is_kept(score: dict[str, Any]) -> bool:
    value, limit = score["value"], score["limit"]
    return limit is None or (value >= limit if score["bound"] == "min" else value <= limit)


def read(files: Sequence[Path]) -> Kept:
    """What was kept."""
    found = Kept()
    for path in files:
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            name, backend, values = json.loads(line)
            found[name, backend] = Outcome(**{**values, "notes": tuple(values["notes"])})
    return found


def rows(kept: Kept) -> Iterator[tuple[str, ...]]:
    """The rows of the table."""
    for entry in chosen():
        engine, simulated = (kept.get((entry.name, backend)) for backend in BACKENDS)
        scores = ["" if o is None or o.score_db is None else f"{o.score_db:.2f}" for o in (engine, simulated)]
        fixes = ["not run" if o is None else o.fix for o in (engine, simulated)]
        spent = ("", "") if engine is None else (str(engine.builds), f"{engine.seconds:.0f}")
        yield (entry.name, entry.network, *scores, *fixes, *spent)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is not kept, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kept", type=Path, nargs="+", default=[], metavar="FILE", help="JSON lines")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="entries at once (default: 1)")
    parser.add_argument("--backend", choices=BACKENDS, default="tensorrt", help="default: tensorrt")
    parser.add_argument("--list", action="store_true", help="print the entries and run nothing")
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(f"{entry.name}: {entry.kind}, {entry.network}" for entry in chosen()))
        return
    kept = read(options.kept)
    gpus = _gpus()
    if options.backend == "tensorrt" and not options.table and not gpus:
        sys.exit("no NVIDIA GPU is seen: nvidia-smi lists none")
    names = [] if options.table else [e for e in chosen() if (e.name, options.backend) not in kept]
    with ThreadPoolExecutor(options.jobs) as pool:
        every = [(entry, options.backend, number % max(gpus, 1)) for number, entry in enumerate(names)]
        for entry, outcome in zip(names, pool.map(lambda task: run(*task), every), strict=True):
            kept[entry.name, options.backend] = outcome
            with options.kept[0].open("a", encoding="utf-8") as file:
                file.write(json.dumps([entry.name, options.backend, asdict(outcome)]) + "\n")
            print(f"{entry.name}: {outcome.seconds:.0f} s", file=sys.stderr)
    header = ("entry", "network", "engine dB", "simulated dB", "engine's fix", "simulated", "builds", "s")
    print(table(header, list(rows(kept))))


def _gpus() -> int:
    """The number of GPUs of this machine."""
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    return sum(line.startswith("GPU ") for line in listed.splitlines())


if __name__ == "__main__":
    main()
