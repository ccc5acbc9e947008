"""Memory that ONNX Runtime takes for a model and one batch, in a process of its own.

python -m benchmarks.memory MODEL.onnx FEED.npz
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

from pytest_int8acc.graph.model import Model, save_model
from pytest_int8acc.tensors import Feed

ROOT = Path(__file__).parents[1]


def session_bytes(model: Model, feed: Feed) -> int:
    """Growth of a fresh process's resident memory from before the session to after its first run."""
    with tempfile.TemporaryDirectory() as folder:
        path, data = Path(folder) / "model.onnx", Path(folder) / "feed.npz"
        save_model(model, path, weights_apart=True)  # as OrtEngine hands over what is not small
        np.savez(data, **feed)
        command = [sys.executable, "-m", "benchmarks.memory", str(path), str(data)]
        return int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def resident() -> int:
    """Bytes of this process in memory (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def main() -> None:
    """Print the bytes that a session and one run add."""
    with np.load(sys.argv[2]) as data:
        feed = dict(data)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    before = resident()
    session = onnxruntime.InferenceSession(sys.argv[1], options)
    session.run(None, feed)
    print(resident() - before)


if __name__ == "__main__":
    main()
