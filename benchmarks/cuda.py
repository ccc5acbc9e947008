"""Write a case of ResNet-50 at 224x224 that fails by the noise of all layers, for a host with CUDA.

    python -m benchmarks.cuda FOLDER
    pytest --int8acc --int8acc-provider cuda --int8acc-report report FOLDER

The report tells where the time went.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks import architectures
from pytest_int8acc.graph.model import save_model

IMAGE = (3, 224, 224)
SPEC = """model: model.onnx
inputs: data.npz
batch: 32
int8: {calibrate: {data: calibration.npz, method: minmax}}
criteria: [{sqnr_db: 37}]
accept_blind: an untrained network on random inputs
"""


def main() -> None:
    """Write model, noise as data, and spec."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=256)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    save_model(architectures.resnet50(IMAGE, (64, 128, 256, 512), 64), options.folder / "model.onnx")
    rng = np.random.default_rng(0)
    for file, count in (("data", options.samples), ("calibration", 32)):
        np.savez(options.folder / f"{file}.npz", x=rng.standard_normal((count, *IMAGE), dtype=np.float32))
    (options.folder / "resnet50.int8acc.yaml").write_text(SPEC, encoding="utf-8")


if __name__ == "__main__":
    main()
