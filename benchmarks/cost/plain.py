"""What a user would run by hand, in a process of its own: NumPy and ONNX Runtime, one thread, no plugin.

    python -m benchmarks.cost.plain pass MODEL.onnx DATA.npz BATCH
    python -m benchmarks.cost.plain compare BASELINE.onnx INT8.onnx DATA.npz BATCH
    python -m benchmarks.cost.plain memory MODEL.onnx FEED.npz

prints CPU seconds: of one pass of the model as ONNX Runtime optimizes it by default; of loading both forms,
running them on all samples and taking the SQNR of each output. Or bytes: what a session and its first run,
Q/DQ as they stand, add to the resident memory (Linux).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

Feed = Mapping[str, NDArray[np.generic]]


def session(path: str, *, fused: bool) -> onnxruntime.InferenceSession:
    """One thread; Q/DQ as they stand where not ``fused``."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if not fused:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    return onnxruntime.InferenceSession(path, options)


def batches(path: str, batch: int) -> Iterator[Feed]:
    """The arrays of an npz in runs of ``batch`` samples."""
    with np.load(path) as data:
        arrays = dict(data)
    for start in range(0, len(next(iter(arrays.values()))), batch):
        yield {name: array[start : start + batch] for name, array in arrays.items()}


def one_pass(model: str, data: str, batch: str) -> float:
    """CPU seconds of one run over all samples; the first batch runs once before, since it allocates."""
    running, feeds = session(model, fused=True), list(batches(data, int(batch)))
    running.run(None, feeds[0])
    began = time.process_time()
    for feed in feeds:
        running.run(None, feed)
    return time.process_time() - began


def compare(baseline: str, candidate: str, data: str, batch: str) -> float:
    """CPU seconds of two forms loaded, run and compared."""
    began = time.process_time()
    forms = [session(path, fused=False) for path in (baseline, candidate)]
    names = [output.name for output in forms[0].get_outputs()]
    signal, noise = np.zeros(len(names)), np.zeros(len(names))
    for feed in batches(data, int(batch)):
        for i, (a, b) in enumerate(zip(*(form.run(names, feed) for form in forms), strict=True)):
            error = (a - b).ravel()
            signal[i] += a.ravel() @ a.ravel()
            noise[i] += error @ error
    _ = 10 * np.log10(signal / noise)
    return time.process_time() - began


def memory(model: str, feed: str) -> int:
    """Bytes that a session and its first run add."""
    with np.load(feed) as data:
        arrays = dict(data)
    before = _resident()
    running = session(model, fused=False)
    running.run(None, arrays)
    return _resident() - before


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    print({"pass": one_pass, "compare": compare, "memory": memory}[what](*arguments))
