"""Memory that a case takes for its outputs, each measured in a process of its own.

python -m benchmarks.memory    what a case grows by, in units of one form's outputs
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from benchmarks.builder import Builder
from pytest_int8acc.api import check
from pytest_int8acc.graph.model import Model, save_model
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec

ROOT = Path(__file__).parents[1]
#: Of a segmenting network: 64 samples of 21x256x256 are 352 MB.
CLASSES, SIZE, SAMPLES = 21, 256, 64
#: Samples of the case that memory is measured against: the process, the models and a batch are in both.
FEW = 16
#: Least SQNR in dB of a case that passes, and of one that fails and is searched, explained and mended.
LIMITS = {"passes": 5.0, "fails": 38.0}


def outputs_ratio(limit: float, samples: int = SAMPLES, size: int = SIZE) -> float:
    """What a case's peak memory grows by from ``FEW`` samples to ``samples``, over one form's outputs.

    Args:
        limit: The least SQNR in dB that the case demands.
        samples: How many it has.
        size: Height and width of its only output, [samples, CLASSES, size, size] in float32.
    """
    with tempfile.TemporaryDirectory() as folder:
        (many, few) = (int(_alone("case", folder, str(limit), str(n), str(size))) for n in (samples, FEW))
    return (many - few) / ((samples - FEW) * CLASSES * size * size * 4)


def _alone(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks.memory", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def peak() -> int:
    """The most bytes that this process ever had in memory (Linux)."""
    line = next(s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def _segmenting(size: int) -> Model:
    b = Builder("segmenting", (3, size // 8, size // 8))
    x = b.conv_relu(b.conv_relu("x", 3, 16, label="conv1"), 16, 8, label="conv2")
    scales = b.const(np.array([1, 1, 8, 8], np.float32))
    x = b.node("Resize", x, b.const(np.zeros(0, np.float32)), scales, mode="nearest", label="grow")
    y = b.conv(x, 8, CLASSES, 1, label="classes")
    editor = b.model(y).edit()
    shape = ["batch", CLASSES, size, size]
    editor.graph.output[0].CopyFrom(helper.make_tensor_value_info(y, TensorProto.FLOAT, shape))
    return editor.done()


def _case(folder: Path, limit: float, samples: int, size: int) -> None:
    """Run a case to its end."""
    save_model(_segmenting(size), folder / "model.onnx")
    np.savez(folder / "data.npz", x=np.random.default_rng(0).normal(size=(samples, 3, size // 8, size // 8)))
    spec = folder / "case.int8acc.yaml"
    spec.write_text(
        "model: model.onnx\ninputs: data.npz\nint8: {calibrate: {method: minmax}}\n"
        f"criteria: [{{sqnr_db: {limit}}}]\naccept_blind: an untrained network on random inputs\n"
    )
    (case,) = load_spec(spec)
    result = check(case, Settings())
    print(
        f"{case.name}: {result.scores[0].value:.1f} dB, search: {result.search is not None}", file=sys.stderr
    )


def main() -> None:
    """Print what is asked for."""
    if len(sys.argv) == 1:
        for name, limit in LIMITS.items():
            print(f"a case that {name}: {outputs_ratio(limit):.2f} times one form's outputs")
        return
    _case(Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
    print(peak())


if __name__ == "__main__":
    main()
