"""An entry of the corpus: a model and its INT8 form, what is true of them, and their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from benchmarks.regressions.networks import BATCH, VALIDATION
from pytest_int8acc.graph.model import Model, save_model, without_extra_outputs
from pytest_int8acc.tensors import Feed

#: Where a fault shows: in the criteria, where it moves one; in a finding, since TensorRT would reject the
#: model or get it wrong; in a warning of the result; in an error, since there is nothing to judge.
Shows = Literal["criteria", "lint", "warning", "refused", "healthy"]


@dataclass(frozen=True)
class Truth:
    """What is known because it was planted."""

    shows: Shows = "criteria"
    causes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Group that the fault touches to the kinds of cause that name it; empty where it touches all."""
    anywhere: frozenset[str] = frozenset()
    """Kinds of cause that name the fault on any group, where it touches all."""
    tensors: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Group to the tensors that a cause of it may name; any, where the group is missing."""
    rules: tuple[str, ...] = ()
    """Patterns (fnmatch) of the rules of findings that name it."""
    words: tuple[str, ...] = ()
    """Of an error or a warning, what it must say; any of them."""
    int8_fix: bool | None = True
    """Whether the criteria can be met with everything in INT8; None: not known."""


@dataclass(frozen=True, eq=False)
class Planted:
    """An entry made, ready to be written."""

    model: Model
    """What it gives ``beside`` its outputs is judged in their place."""
    inputs: Feed
    int8: Mapping[str, Any]
    """The section of the spec."""
    limits: Mapping[str, Mapping[str, float]]
    truth: Truth
    candidate: Model | bytes | None
    """The INT8 model in FP32, for the second opinion; None where there is none."""
    files: Mapping[str, Model | Feed | str | bytes] = field(default_factory=dict)
    """What the spec refers to besides model and inputs."""
    baseline: str = "fp16"
    low: str = "int8"
    """The section's name."""


@dataclass(frozen=True)
class Entry:
    """One line of the corpus."""

    name: str
    kind: str
    """The row of the table."""
    network: str
    plant: Callable[[], Planted]


def write(entry: Entry, planted: Planted, folder: Path) -> Path:
    """Make the spec folder of an entry as a user would have it; returns the spec."""
    save_model(without_extra_outputs(planted.model), folder / "model.onnx")
    np.savez(folder / "inputs.npz", **planted.inputs)
    for name, content in planted.files.items():
        if isinstance(content, Model):
            save_model(without_extra_outputs(content), folder / name)
        elif isinstance(content, str):
            (folder / name).write_text(content, encoding="utf-8")
        elif isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            np.savez(folder / name, **content)
    spec = folder / f"{entry.name}.int8acc.yaml"
    inside = planted.model.extra_outputs
    criteria = [
        {"tensor" if name in inside else "output": name, **limits} for name, limits in planted.limits.items()
    ]
    text = {
        "model": "model.onnx",
        "inputs": "inputs.npz",
        "batch": BATCH,
        "samples": VALIDATION,
        planted.low: dict(planted.int8),
        "baseline": planted.baseline,
        "criteria": criteria,
        "unjudged": ["*"] if inside else [],
        "accept_blind": "an untrained network",
    }
    spec.write_text(yaml.safe_dump(text, sort_keys=False), encoding="utf-8")
    return spec
