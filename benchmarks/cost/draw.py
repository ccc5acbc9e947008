"""Failing cases of the corpus of regressions, drawn by a seed: tasks for the plugin and for NNCF alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.regressions.corpus import corpus
from benchmarks.regressions.entry import Entry, Planted, write
from benchmarks.regressions.networks import BATCH
from pytest_int8acc.case.measured import measure
from pytest_int8acc.errors import Int8accError, ModelError
from pytest_int8acc.graph.layout import find_groups, mixing
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec

#: Half of the tasks have fewer groups than this, half have as many or more.
BOUNDARY = 10
#: The two sizes of tasks, in words.
FEW, MANY = f"fewer than {BOUNDARY} groups", f"{BOUNDARY} groups or more"


@dataclass(frozen=True)
class Task:
    """A failing case of the corpus, written as a user's folder."""

    entry: str
    network: str
    groups: int
    """Number of layers of the float model that the plugin quantizes by itself."""
    spec: Path
    faulty_data: bool = False
    """Whether the fault lies in the calibration data. NNCF has to calibrate on them; the plugin need not."""

    @property
    def size(self) -> str:
        """``FEW`` or ``MANY``."""
        return _size(self.groups)

    @property
    def folder(self) -> Path:
        """Where everything lies: ``model.onnx``, ``inputs.npz``, and ``task.json`` for NNCF."""
        return self.spec.parent


def draw(seed: int, count: int, folder: Path) -> Iterator[Task]:
    """Write ``count`` tasks to ``folder``: entries of the corpus in an order that only the seed decides.

    Half of the tasks have fewer than ``BOUNDARY`` groups. If the corpus has too few of a size, a line is
    printed at the end. Each spec has ``baseline: fp32``, since NNCF and the judge compare with the float
    model. An entry is left out if its form is not INT8, if its fault shows elsewhere than in the criteria, if
    it is judged by tensors inside the model, if its layers lie in bodies of If, Loop or Scan, where NNCF
    quantizes nothing, or if the case does not fail.
    """
    missing = {FEW: (count + 1) // 2, MANY: count // 2}
    names = list(corpus())
    for index in np.random.default_rng(seed).permutation(len(names)):
        if not any(missing.values()):
            return
        entry = corpus()[names[index]]
        planted = replace(entry.plant(), baseline="fp32")
        groups = _groups(planted)
        if not groups or not missing[_size(groups)]:
            continue
        task_folder = folder / entry.name
        task_folder.mkdir(parents=True)
        spec = write(entry, planted, task_folder)
        if _fails(spec):
            missing[_size(groups)] -= 1
            _write_for_nncf(planted, task_folder)
            yield Task(entry.name, entry.network, groups, spec, _faulty_data(entry))
    for size, number in missing.items():
        if number:
            print(f"missing in the corpus: {number} of the tasks with {size}", flush=True)


def _size(groups: int) -> str:
    return FEW if groups < BOUNDARY else MANY


def _faulty_data(entry: Entry) -> bool:
    return entry.kind == "calibration data"


def _groups(planted: Planted) -> int:
    """Number of groups of an entry that may be drawn; 0 for all others."""
    by_outputs = planted.truth.shows == "criteria" and not planted.model.extra_outputs
    if planted.low != "int8" or not by_outputs:
        return 0
    try:
        return len(find_groups(planted.model).slots)
    except ModelError:  # nothing to quantize outside of bodies
        return 0


def _fails(spec: Path) -> bool:
    """Whether the plugin's verdict is that the case fails; nothing that follows the verdict is run."""
    (case,) = load_spec(spec)
    try:
        measured = measure(case, Settings(backend="onnxruntime"))
    except Int8accError:
        return False
    measured.close()
    return not measured.result.passed


def _write_for_nncf(planted: Planted, folder: Path) -> None:
    """Write ``task.json``: calibration data and their batch, whether there is attention, and the limits."""
    task = {
        "calibration": planted.int8.get("calibrate", {}).get("data", "inputs.npz"),
        "batch": _batch(planted),
        "attention": bool(mixing(planted.model)),
        "limits": planted.limits,
    }
    (folder / "task.json").write_text(json.dumps(task, indent=1))


def _batch(planted: Planted) -> int:
    """The spec's batch, or less where the model's first axis is fixed at less."""
    first_axes = [tensor.shape[0] for tensor in planted.model.inputs if tensor.shape]
    return min([BATCH, *(axis for axis in first_axes if isinstance(axis, int))])
