"""Memory that a case takes for its outputs and its weights, each measured in a process of its own.

python -m benchmarks.memory    what a case grows by, in units of one form's outputs and of its model
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
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
#: Width of the layers of a network whose weights are 315 MB, and of the one that it is measured against.
WIDTH, NARROW = 5120, 64
#: Number of its layers.
LAYERS = 3


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


def weights_ratio(width: int = WIDTH) -> float:
    """What a failing case's peak memory grows by with the weights of its model, over their size.

    glibc returns arrays of 1 MB or more at once, as it always does with arrays of 32 MB or more.

    Args:
        width: Number of rows and columns of each of ``LAYERS`` float32 matrices.
    """
    peaks = []
    for size in (width, NARROW):
        with tempfile.TemporaryDirectory() as folder:
            _alone("network", folder, str(size))
            peaks.append(int(_alone("weights", folder, str(size), threshold=1 << 20)))
    return (peaks[0] - peaks[1]) / (4 * LAYERS * (width**2 - NARROW**2))


def _alone(*arguments: str, threshold: int | None = None) -> str:
    command = [sys.executable, "-m", "benchmarks.memory", *arguments]
    env = dict(os.environ)
    if threshold is not None:
        env["MALLOC_MMAP_THRESHOLD_"] = str(threshold)
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout


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


def _wide(width: int) -> Model:
    b, x = Builder("wide", (width,)), "x"
    for i in range(LAYERS):
        x = b.relu(b.linear(x, width, width, label=f"fc{i}"))
    return b.model(x)


def _weights_case(folder: Path, width: int) -> None:
    """Run a case that fails by one channel of the input, so that ranges are moved into weights as well."""
    inputs = np.random.default_rng(0).normal(size=(32, width)).astype(np.float32)
    inputs[:, 3] *= 40
    _run(folder, inputs, 30.0)


def _run(folder: Path, inputs: NDArray[np.floating], limit: float) -> None:
    """Run a case of the model in ``folder`` to its end. Nothing but the case holds the model's weights."""
    np.savez(folder / "data.npz", x=inputs)
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
        print(f"a case that fails: {weights_ratio():.2f} times its model")
        return
    what, folder, *numbers = sys.argv[1:]
    if what == "network":  # made in a process of its own: making it takes more memory than the case
        save_model(_wide(int(numbers[0])), Path(folder) / "model.onnx", external_weights=True)
    elif what == "weights":
        _weights_case(Path(folder), int(numbers[0]))
    else:
        limit, samples, size = float(numbers[0]), int(numbers[1]), int(numbers[2])
        shape = samples, 3, size // 8, size // 8
        save_model(_segmenting(size), Path(folder) / "model.onnx", external_weights=True)
        _run(Path(folder), np.random.default_rng(0).normal(size=shape), limit)
    print(peak())


if __name__ == "__main__":
    main()
