"""Real engines of full-sized networks against the simulation; needs a GPU and TensorRT.

    python -m benchmarks.engines --json engines.json

Three networks at 224x224 (a ResNet-50, a MobileNetV2-like one, a ViT-S; seeded random weights), batch 8. Per
network: FP16 and INT8 engines, their build time, latency, layers in INT8, and the SQNR of the INT8 engine
against FP32 beside that of the same Q/DQ model in ONNX Runtime, exact.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.architectures import mobilenetv2, resnet50, vit
from benchmarks.tables import table
from pytest_int8acc.case.measured import measure
from pytest_int8acc.graph.model import Model, save_model
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Outputs

IMAGE = (3, 224, 224)
BATCH, SAMPLES = 8, 48
NETWORKS: Mapping[str, Callable[[], Model]] = {
    "resnet50": lambda: resnet50(IMAGE, (64, 128, 256, 512), stem=64, stem_stride=4),
    "mobilenetv2": lambda: mobilenetv2(IMAGE),
    "vit_s16": lambda: vit("vit_s16", blocks=12, width=384, heads=6, patch=16, seed=3, image=IMAGE),
}
_HEADER = (
    *("network", "engine", "build s", "latency ms (10 to 90 %)", "speedup", "layers in INT8"),
    *("standalone Q/DQ", "reformats", "SQNR dB", "simulated"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--tactic-sources", nargs="*", help="default: TensorRT's own")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows = [row for name in options.networks for row in run(name, options.tactic_sources)]
    cells = [tuple(str(row[key]) for key in _HEADER) for row in rows]
    print(table(_HEADER, cells))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def run(name: str, tactic_sources: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The rows of one network: its FP16 engine and its INT8 engine."""
    with tempfile.TemporaryDirectory() as folder:
        case = _case(name, Path(folder), tactic_sources)
        measured = measure(case, Settings(backend="tensorrt", no_cache=True))
    try:
        runs = measured.runs
        engines = {info.role: info for info in measured.result.engines}
        slow, fast = engines["baseline"].latency, engines["INT8"].latency
        speedup = slow.median_ms / fast.median_ms if slow and fast else math.nan
        rows = []
        for role, outputs, simulated in (
            ("baseline", runs.baseline, None),
            ("INT8", runs.candidate, runs.simulated),
        ):
            info = engines[role]
            latency = info.latency
            said = (
                ""
                if latency is None
                else f"{latency.median_ms:.3f} ({latency.low_ms:.3f} to {latency.high_ms:.3f})"
            )
            values = (
                *(name, "FP16" if role == "baseline" else "INT8", f"{info.build_seconds:.0f}", said),
                *(
                    "" if role == "baseline" else f"{speedup:.2f}",
                    f"{info.int8} of {info.weighted}" + f", {info.untold} untold" * (info.untold > 0),
                ),
                *(info.count("qdq"), info.count("reformat"), f"{sqnr(runs.reference, outputs):.2f}"),
                "" if simulated is None else f"{sqnr(runs.reference, simulated):.2f}",
            )
            rows.append(dict(zip(_HEADER, values, strict=True)))
        return rows
    finally:
        measured.close()


def sqnr(reference: Outputs, found: Outputs) -> float:
    """Signal to noise over all outputs and samples, in dB."""
    pairs = [
        (a.astype(np.float64), b.astype(np.float64))
        for name in reference
        for a, b in zip(reference[name], found[name], strict=True)
    ]
    noise = sum(float(((a - b) ** 2).sum()) for a, b in pairs)
    return 10 * math.log10(sum(float((a**2).sum()) for a, _ in pairs) / noise) if noise else math.inf


def _case(name: str, folder: Path, tactic_sources: Sequence[str] | None) -> Case:
    """The network as a case, with smooth random images."""
    save_model(NETWORKS[name](), folder / f"{name}.onnx")
    rng = np.random.default_rng(0)
    for part, count in (("calibration", 32), ("validation", SAMPLES)):
        coarse = rng.standard_normal((count, 3, 28, 28)).astype(np.float32)
        fine = rng.standard_normal((count, *IMAGE)).astype(np.float32)
        images = np.kron(coarse, np.ones((1, 1, 8, 8), np.float32)) + 0.3 * fine
        np.savez(folder / f"{part}.npz", x=images)
    tensorrt = {} if tactic_sources is None else {"tactic_sources": list(tactic_sources)}
    case = Case.model_validate(
        {
            "name": name,
            "model": f"{name}.onnx",
            "inputs": "validation.npz",
            "batch": BATCH,
            "int8": {"calibrate": {"data": "calibration.npz", "method": "percentile"}},
            "tensorrt": tensorrt,
            "accept_blind": "an untrained network on random inputs",
        }
    )
    return case.placed(folder / f"{name}.int8acc.yaml", 0)


if __name__ == "__main__":
    main()
