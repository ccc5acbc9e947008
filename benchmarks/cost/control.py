"""NNCF's quantize_with_accuracy_control on one drawn task; run in an environment with nncf and onnxruntime.

    python -m benchmarks.cost.control FOLDER

reads ``model.onnx``, ``inputs.npz`` and ``task.json``, and writes ``nncf.onnx`` and ``nncf.json``. If NNCF
raises an exception, ``nncf.json`` has it as the refusal. Any other error ends the process.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


class Samples:
    """Indices of the samples, each with whether NNCF asks for the values of single samples, too.

    NNCF iterates over all samples where it also keeps the value of each. It indexes the samples where it
    ranks layers, and reads nothing but the score.
    """

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, bool]]:
        return ((index, True) for index in range(self._count))

    def __getitem__(self, index: int) -> tuple[int, bool]:
        return index, False


class Loader(list[Feed]):
    """Batches with the ``batch_size`` of a data loader. NNCF then takes ranges sample by sample."""

    batch_size = 1


def main() -> None:
    """Quantize with accuracy control, and write the model and the layers that are not in INT8."""
    if os.environ.get("OMP_NUM_THREADS") == "1":
        one_thread()
    folder = Path(sys.argv[1])
    task = json.loads((folder / "task.json").read_text())
    model = onnx.load(folder / "model.onnx")
    inputs, calibration = (_load(folder / name) for name in ("inputs.npz", task["calibration"]))
    expected = judge.run(model.SerializeToString(), inputs)
    candidates: list[onnx.ModelProto] = []

    def validate(
        candidate: onnx.ModelProto, items: Iterable[tuple[int, bool]]
    ) -> tuple[float, list[float] | None]:
        pairs = list(items)
        chosen, whole = [index for index, _ in pairs], pairs[0][1]
        if whole and len(candidates) < 2:  # the float model, then the model with all layers in INT8
            candidates.append(candidate)
        outputs = judge.run(candidate.SerializeToString(), _rows(inputs, chosen))
        return _judged(_rows(expected, chosen), outputs, task["limits"], whole)

    options = {"model_type": nncf.ModelType.TRANSFORMER} if task["attention"] else {}
    try:
        result = nncf.quantize_with_accuracy_control(
            model,
            nncf.Dataset(_batches(calibration, task["batch"], task["attention"])),
            nncf.Dataset(Samples(_count(inputs))),
            validate,
            max_drop=1.0,
            drop_type=nncf.DropType.ABSOLUTE,
            **options,
        )
    except Exception as error:
        _write(folder, {"refusal": f"{type(error).__name__}: {error}"})
        return
    onnx.save(result, folder / "nncf.onnx")
    quantized = in_int8(candidates[-1])
    _write(folder, {"layers": len(quantized), "reverted": sorted(quantized - in_int8(result))})


def _judged(
    expected: Feed, outputs: Feed, limits: judge.Limits, whole: bool
) -> tuple[float, list[float] | None]:
    """The score, and with ``whole`` the similarity of each sample.

    Raises:
        SystemExit: The outputs cannot be judged. NNCF catches other exceptions, and goes on in another way.
    """
    try:
        return score(expected, outputs, limits), similarity(expected, outputs) if whole else None
    except Exception:
        raise SystemExit(traceback.format_exc()) from None


def _batches(feed: Feed, size: int, attention: bool) -> list[Feed]:
    """The samples in batches.

    With attention NNCF advises against ranges sample by sample, since an inner axis may not be the batch.
    Such batches are a plain list.
    """
    starts = range(0, _count(feed), size)
    batches = Loader(_rows(feed, range(start, min(start + size, _count(feed)))) for start in starts)
    batches.batch_size = size
    return list(batches) if attention else batches


def _write(folder: Path, content: Mapping[str, Any]) -> None:
    (folder / "nncf.json").write_text(json.dumps(content, indent=1))


def score(expected: Feed, outputs: Feed, limits: judge.Limits) -> float:
    """1 for the float model, and 0 where the worst criterion's error is all that its limit allows."""
    margin = judge.margin(judge.scores(expected, outputs, limits), limits)
    return 1 - min(10 ** (-margin / 20), _MAX_EXCESS)


def similarity(expected: Feed, outputs: Feed) -> list[float]:
    """For each sample, the mean over the outputs of the cosine similarity to the float model's output."""
    each = []
    for name, array in expected.items():
        flat = [a.reshape(len(a), -1).astype(np.float64) for a in (array, outputs[name])]
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
