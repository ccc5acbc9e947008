"""Reports of real models against plain ONNX Runtime, in which every claimed change is made by hand.

    python -m benchmarks.real --wheels DIR                   # what is missing there is downloaded by pip

INT8 is made by ONNX Runtime's own quantizer, so that plain ONNX Runtime can run just what is judged.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml

from benchmarks.first_specs import PYTEST, models
from benchmarks.real.claims import Claim, Opinion, claims
from benchmarks.real.quantizers import by_onnxruntime
from benchmarks.real.samples import COUNT, SAMPLES
from benchmarks.real.second import runner
from pytest_int8acc.tensors import Feed


@dataclass(frozen=True)
class Entry:
    """One case of one model."""

    name: str
    package: str
    """Requirement of the wheel."""
    file: str
    limit: Mapping[str, float]
    """Criteria of each output."""
    rows: int = 32
    """Samples at a time."""
    baseline: str = "fp16"
    candidate: str = "int8"


ENTRIES = (
    Entry("cls", "rapidocr_onnxruntime==1.4.4", "ch_ppocr_mobile_v2.0_cls_infer.onnx", {"sqnr_db": 20}),
    Entry(
        "hey_jarvis", "openwakeword==0.5.1", "hey_jarvis_v0.1.onnx", {"sqnr_db": 36}, rows=1, baseline="fp32"
    ),
    Entry(
        "hey_mycroft",
        "openwakeword==0.5.1",
        "hey_mycroft_v0.1.onnx",
        {"sqnr_db": 20},
        rows=1,
        baseline="fp32",
    ),
    Entry(
        "hey_mycroft_fp16",
        "openwakeword==0.5.1",
        "hey_mycroft_v0.1.onnx",
        {"sqnr_db": 20},
        rows=1,
        candidate="fp16",
    ),
    Entry("magika", "magika==1.0.3", "model.onnx", {"cosine": 0.999}, baseline="fp32"),
    Entry("magika_fp16", "magika==1.0.3", "model.onnx", {"cosine": 0.999}, candidate="fp16"),
)


def fetched(entries: Sequence[Entry], wheels: Path) -> None:
    """Let pip download the wheels that are not there."""
    for package in sorted({entry.package for entry in entries}):
        if not list(wheels.glob(f"{package.replace('==', '-')}-*.whl")):
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(wheels)]
            subprocess.run([*command, package], check=True)


def named(path: Path) -> onnx.ModelProto:
    """A model whose nodes all have names."""
    proto = onnx.load(path)
    for number, node in enumerate(proto.graph.node):
        node.name = node.name or f"{node.op_type}_{number}"
    return proto


def written(entry: Entry, source: Path, folder: Path) -> tuple[Path, Feed]:
    """A spec with its files as a user would have them; and what it judges on."""
    proto = named(source)
    onnx.save(proto, folder / "model.onnx")
    held = {tensor.name for tensor in proto.graph.initializer}
    (name,) = (given.name for given in proto.graph.input if given.name not in held)
    every = SAMPLES[entry.file](source)
    inputs, calibration = {name: every[:COUNT]}, {name: every[COUNT:]}
    np.savez(folder / "inputs.npz", **inputs)
    spec: dict[str, Any] = {"model": "model.onnx", "inputs": "inputs.npz", "batch": entry.rows}
    if entry.candidate == "int8":
        by_onnxruntime(folder / "model.onnx", folder / "int8.onnx", calibration)
        spec |= {"int8": {"model": "int8.onnx"}, "baseline": entry.baseline}
    else:
        spec["candidate"] = entry.candidate
    path = folder / f"{entry.name}.int8acc.yaml"
    path.write_text(yaml.safe_dump(spec | {"criteria": [dict(entry.limit)]}, sort_keys=False))
    return path, inputs


def reported(spec: Path, *options: str) -> dict[str, Any]:
    """The case's part of report.json; ``options`` are further options of pytest."""
    command = [*PYTEST, spec.name, "--int8acc-report", "report", "--int8acc-backend", "onnxruntime", *options]
    done = subprocess.run(command, cwd=spec.parent, capture_output=True, text=True, check=False)
    try:
        (case,) = json.loads((spec.parent / "report" / "report.json").read_text())["cases"]
    except OSError:
        raise SystemExit(f"{spec.name}: no report\n{done.stdout[-2000:]}") from None
    found: dict[str, Any] = case
    return found


def judged(entry: Entry, source: Path, keep: Path | None) -> tuple[str, list[Claim]]:
    """The verdict, and what came of each claim."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = (keep or Path(temporary)) / entry.name
        folder.mkdir(parents=True, exist_ok=True)
        spec, inputs = written(entry, source, folder)
        case = reported(spec)
        plain = onnx.load(folder / "model.onnx")
        expected = runner(inputs, entry.rows)(plain)
        limits = dict.fromkeys(expected, entry.limit)
        int8 = onnx.load(folder / "int8.onnx") if entry.candidate == "int8" else None
        fixed = folder / "report" / entry.name / "fixed.onnx"
        opinion = Opinion(plain, int8, inputs, entry.rows, limits, fixed if fixed.exists() else None)
        return case["verdict"], list(claims(case, opinion))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wheels", type=Path, required=True, metavar="DIR", help="downloads, kept")
    parser.add_argument("--only", nargs="+", choices=[e.name for e in ENTRIES], metavar="NAME")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave specs and reports here")
    options = parser.parse_args()
    wanted = [entry for entry in ENTRIES if not options.only or entry.name in options.only]
    fetched(wanted, options.wheels)
    print("| model | verdict | claim | seen in plain ONNX Runtime | it is |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        found = list(models([options.wheels], Path(temporary)))
        for entry in wanted:
            package = entry.package.replace("==", " ")
            source = next(path for where, path in found if where == package and path.name == entry.file)
            verdict, judgements = judged(entry, source, options.keep)
            for claim in judgements:
                cells = (entry.name, verdict, claim.said, claim.seen, "right" if claim.right else "WRONG")
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
