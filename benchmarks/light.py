"""The nine light models of onnx's wheel (IR 3, opset 9, weights among the inputs), each as a user's case.

``python -m benchmarks.light`` writes a spec for each, calibrated on its 4 random inputs, lets pytest judge it
against FP32, and prints a row each. Their weights are constants, with which FP16 overflows in six of nine, so
that FP16 is no baseline, and outputs of other samples are much alike.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import yaml

from benchmarks.first_specs import PYTEST
from benchmarks.tables import table

FOLDER = Path(onnx.backend.test.__file__).parent / "data" / "light"
SAMPLES = 4


def main() -> None:
    """Write the specs, run them, print the table; exit with 1 where one has no verdict."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for file in sorted(FOLDER.glob("light_*.onnx")):
            write_case(file, folder)
        command = [*PYTEST, "--int8acc", "--int8acc-search=off", "--int8acc-report=out", "."]
        subprocess.run(command, cwd=folder, check=False)
        cases = json.loads((folder / "out" / "report.json").read_text())["cases"]
    rows = [[case["name"], case["verdict"], *_score(case)] for case in cases]
    print(table(["model", "verdict", "output", "score"], rows))
    sys.exit(any(case["verdict"] not in ("passed", "failed") for case in cases))


def write_case(file: Path, folder: Path) -> None:
    """Write a spec and random inputs for a model whose weights are inputs, too."""
    graph = onnx.load(file).graph
    weights = {tensor.name for tensor in graph.initializer}
    (data,) = [value for value in graph.input if value.name not in weights]
    _, *sizes = [dim.dim_value for dim in data.type.tensor_type.shape.dim]
    inputs = np.random.default_rng(0).uniform(0, 1, (SAMPLES, *sizes))
    np.save(folder / f"{file.stem}.npy", inputs.astype(np.float32))
    spec = {
        "model": str(file),
        "inputs": f"{file.stem}.npy",
        "baseline": "fp32",
        "backend": "onnxruntime",
        "int8": {"calibrate": {}},
    }
    (folder / f"{file.stem}.int8acc.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")


def _score(case: dict[str, object]) -> list[str]:
    scores = [s for s in case["scores"] if s["metric"] == "sqnr_db"]  # type: ignore[attr-defined,union-attr,index]
    return [scores[0]["subject"], f"{float(scores[0]['value']):.4g} dB"] if scores else ["", ""]


if __name__ == "__main__":
    main()
