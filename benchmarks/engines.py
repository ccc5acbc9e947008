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
from pytest_int8acc.case.measured import Measured, measure
from pytest_int8acc.graph.model import Model, save_model
from pytest_int8acc.results import EngineInfo, Latency, Role
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.models import Case

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
            return rows(name, measured)
        finally:
            measured.close()


def rows(name: str, measured: Measured) -> list[dict[str, Any]]:
    """A row for the baseline's engine and one for the INT8 engine, by the names in ``_HEADER``."""
    engines = {info.role: info for info in measured.result.engines}
    found = []
    for role in (Role.BASELINE, Role.INT8):
        info, is_int8 = engines[role], role == Role.INT8
        untold = f", {info.untold} untold" if info.untold else ""
        simulated = is_int8 and Role.SIMULATED in measured.runs.roles
        values = (
            name,
            "INT8" if is_int8 else "FP16",
            f"{info.build_seconds:.0f}",
            "" if info.latency is None else _milliseconds(info.latency),
            f"{_speedup(engines):.2f}" if is_int8 else "",
            f"{info.int8} of {info.weighted}{untold}",
            info.count("qdq"),
            info.count("reformat"),
            f"{sqnr(measured, role):.2f}",
            f"{sqnr(measured, Role.SIMULATED):.2f}" if simulated else "",
        )
        found.append(dict(zip(_HEADER, values, strict=True)))
    return found


def sqnr(measured: Measured, role: Role) -> float:
    """The lowest SQNR of a form's outputs against FP32, over all samples, in dB."""
    verdict = measured.runs.comparison(Role.FP32, role).verdict()
    return min(score.value for score in verdict.scores if score.metric == "sqnr_db")


def _milliseconds(latency: Latency) -> str:
    return f"{latency.median_ms:.3f} ({latency.low_ms:.3f} to {latency.high_ms:.3f})"


def _speedup(engines: Mapping[Role, EngineInfo]) -> float:
    """The latency of the baseline's engine over that of the INT8 engine; nan if one was not timed."""
    slow, fast = engines[Role.BASELINE].latency, engines[Role.INT8].latency
    return slow.median_ms / fast.median_ms if slow and fast else math.nan


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
