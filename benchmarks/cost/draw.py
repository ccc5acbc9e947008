"""Failing cases of the corpus of regressions, drawn by a seed: tasks for the plugin and for NNCF alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.regressions.corpus import corpus
from benchmarks.regressions.entry import Planted, write
from pytest_int8acc.case.measured import measure
from pytest_int8acc.errors import Int8accError, ModelError
from pytest_int8acc.graph.layout import find_groups
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec

#: Half of the tasks have fewer groups than this, half have as many or more.
BOUNDARY = 10


@dataclass(frozen=True)
class Task:
    """A failing case of the corpus, written as a user's folder."""

    entry: str
    network: str
    groups: int
    """Number of layers of the float model that the plugin quantizes by itself."""
    spec: Path

    @property
    def folder(self) -> Path:
        """Where everything lies: ``model.onnx``, ``inputs.npz``, and ``task.json`` for NNCF."""
        return self.spec.parent


def draw(seed: int, count: int, folder: Path) -> Iterator[Task]:
    """Write ``count`` tasks to ``folder``: entries of the corpus in an order that only the seed decides.

    Half of the tasks have fewer than ``BOUNDARY`` groups. An entry is left out if its form is not INT8, if
    its fault shows elsewhere than in the criteria, if it is judged by tensors inside the model, if its
    layers lie in bodies of If, Loop or Scan, where NNCF quantizes nothing, or if the case does not fail.
    """
    missing = {"few": (count + 1) // 2, "many": count // 2}
    names = list(corpus())
    for index in np.random.default_rng(seed).permutation(len(names)):
        if not any(missing.values()):
            return
        entry = corpus()[names[index]]
        planted = entry.plant()
        groups = _groups(planted)
        size = "few" if groups < BOUNDARY else "many"
        if not groups or not missing[size]:
            continue
        place = folder / entry.name
        place.mkdir(parents=True)
        spec = write(entry, planted, place)
        if _fails(spec):
            missing[size] -= 1
            _write_for_nncf(planted, place)
            yield Task(entry.name, entry.network, groups, spec)


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
    """Write ``task.json``: the arrays to calibrate on, and the limits, as in the spec."""
    calibration = planted.int8.get("calibrate", {}).get("data", "inputs.npz")
    task = {"calibration": calibration, "limits": planted.limits}
    (folder / "task.json").write_text(json.dumps(task, indent=1))
