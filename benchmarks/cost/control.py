"""NNCF's quantize_with_accuracy_control on one drawn task; run in an environment with nncf and onnxruntime.

    python -m benchmarks.cost.control FOLDER

reads ``model.onnx``, ``inputs.npz`` and ``task.json``, and writes ``nncf.onnx`` and ``nncf.json``.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import nncf
import numpy as np
import onnx
from numpy.typing import NDArray

from benchmarks.regressions import judge
from benchmarks.rivals.bar import cosines
from benchmarks.rivals.nncf_control import in_int8, one_thread

Feed = dict[str, NDArray[Any]]
#: The most that the worst criterion's error counts, in units of the error that its limit allows.
_MAX_EXCESS = 1e6


def main() -> None:
    """Quantize with accuracy control, and write the model and the layers that are not in INT8."""
    if os.environ.get("OMP_NUM_THREADS") == "1":
        one_thread()
    folder = Path(sys.argv[1])
    task = json.loads((folder / "task.json").read_text())
    model = onnx.load(folder / "model.onnx")
    inputs, calibration = (_load(folder / name) for name in ("inputs.npz", task["calibration"]))
    expected = judge.run(model.SerializeToString(), inputs)
    quantized: set[str] = set()

    def validate(candidate: onnx.ModelProto, items: Iterable[int]) -> tuple[float, list[float]]:
        if not quantized:  # NNCF validates the float model first, then the model with all layers in INT8
            quantized.update(in_int8(candidate))
        chosen = list(items)
        found = judge.run(candidate.SerializeToString(), _rows(inputs, chosen))
        wanted = _rows(expected, chosen)
        return score(wanted, found, task["limits"]), similarity(wanted, found)

    result = nncf.quantize_with_accuracy_control(
        model,
        nncf.Dataset(range(_count(calibration)), lambda index: _rows(calibration, [index])),
        nncf.Dataset(range(_count(inputs))),
        validate,
        max_drop=1.0,
        drop_type=nncf.DropType.ABSOLUTE,
    )
    onnx.save(result, folder / "nncf.onnx")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("nncf", "onnxruntime", "onnx")]
    reverted = sorted(quantized - in_int8(result))
    told = {"tool": ", ".join(versions), "layers": len(quantized), "reverted": reverted}
    (folder / "nncf.json").write_text(json.dumps(told, indent=1))


def score(expected: Feed, found: Feed, limits: judge.Limits) -> float:
    """1 for the float model, and 0 where the worst criterion's error is all that its limit allows."""
    margin = judge.margin(judge.scores(expected, found, limits), limits)
    return 1 - min(10 ** (-margin / 20), _MAX_EXCESS)


def similarity(expected: Feed, found: Feed) -> list[float]:
    """For each sample, the mean over the outputs of the cosine similarity to the float model's output."""
    each = []
    for name, array in expected.items():
        flat = [a.reshape(len(a), -1).astype(np.float64) for a in (array, found[name])]
        each.append(cosines(*flat))
    return [float(value) for value in np.mean(each, axis=0)]


def _load(path: Path) -> Feed:
    with np.load(path) as arrays:
        return dict(arrays)


def _count(feed: Feed) -> int:
    return len(next(iter(feed.values())))


def _rows(feed: Feed, chosen: Sequence[int]) -> Feed:
    return {name: array[list(chosen)] for name, array in feed.items()}


if __name__ == "__main__":
    main()
