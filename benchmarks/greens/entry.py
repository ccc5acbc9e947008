"""What an entry is: a function that writes a project, registered by a decorator, and what is true of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml

from benchmarks.greens.graph import Array
from benchmarks.greens.nets import Net

#: Class of lie to what it is.
CLASSES = {
    "a": "composite outputs",
    "b": "another precision than asked for",
    "c": "another model than the file",
    "d": "criteria that cannot fail",
    "e": "half of the samples small, flattened",
    "f": "Q/DQ inside Loop, If, Scan",
}
HEALTHY = "healthy"
#: What a spec says of INT8 that the plugin is to calibrate.
CALIBRATED = {"calibrate": {"data": "calibration.npz", "method": "minmax"}}
#: A case is healthy where its task's metric moves by less than this, in parts of the float model's value.
HEALTHY_MOVE = 0.005


@dataclass(frozen=True)
class Truth:
    """The task's own metric, computed apart from the plugin."""

    metric: str
    """Its name, for people."""
    honest: float
    """Its value for the float model, as the file says it."""
    low: float
    """Its value for the low-precision form that the spec names."""

    @property
    def moved(self) -> float:
        """How far the metric moves, in parts of the honest value."""
        if not np.isfinite(self.honest) or not np.isfinite(self.low):
            return 0.0 if self.honest == self.low else 1.0
        return abs(self.honest - self.low) / max(abs(self.honest), 1e-12)

    def __str__(self) -> str:
        """Like 'F1 of detections 0.98 -> 0.02'."""
        return f"{self.metric} {self.honest:.4g} -> {self.low:.4g}"


@dataclass
class Project:
    """The folder of one entry, to be filled as a user would fill it."""

    folder: Path
    arguments: list[str] = field(default_factory=list)
    """More of pytest's arguments."""

    def model(self, model: onnx.ModelProto, name: str = "model.onnx") -> onnx.ModelProto:
        """Save a model that onnx.checker takes; returns it."""
        onnx.checker.check_model(model)
        onnx.save(model, self.folder / name)
        return model

    def arrays(self, name: str, **arrays: Array) -> None:
        """Save arrays as .npz, or a single one as .npy."""
        if name.endswith(".npy"):
            (array,) = arrays.values()
            np.save(self.folder / name, array)
        else:
            np.savez(self.folder / name, **arrays)

    def case(self, net: Net, low: onnx.ModelProto, **spec: Any) -> Truth:
        """Save a network with its data, its low-precision model and a spec; the truth is the task's metric.

        ``int8.onnx`` is ``low`` and what the spec names, unless it says ``int8``, ``fp8`` or ``candidate``.
        """
        self.model(net.model)
        self.arrays("inputs.npz", **net.feed)
        self.arrays("calibration.npz", **net.calibration)
        if not {"int8", "fp8", "candidate"} & set(spec):
            self.model(low, "int8.onnx")
            spec["int8"] = {"model": "int8.onnx"}
        self.spec(**spec)
        return Truth(net.metric_name, net.metric(net.outputs()), net.metric(net.outputs(low)))

    def text(self, name: str, text: str) -> None:
        """Save a text file, like a metric of the user's own."""
        (self.folder / name).write_text(text, encoding="utf-8")

    def spec(self, **keys: Any) -> None:
        """Write ``case.int8acc.yaml``; ``model`` and ``inputs`` are model.onnx and inputs.npz by default."""
        content = {"model": "model.onnx", "inputs": "inputs.npz", **keys}
        self.text("case.int8acc.yaml", yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


Write = Callable[[Project], Truth]


@dataclass(frozen=True)
class Entry:
    """One line of the table."""

    name: str
    kind: str
    """A class of lie, or 'healthy'."""
    network: str
    write: Write
    gpu: bool = False
    """Whether it needs TensorRT and a GPU."""
    search: bool = False
    """Whether what follows the verdict runs too; else the run ends at the verdict."""
    record: bool = False
    """Whether goldens are recorded first, by a run of its own."""
    never: str = ""
    """A regular expression: a run that says this is misled, whatever its verdict."""


ENTRIES: dict[str, Entry] = {}


def planted(kind: str, network: str, **more: Any) -> Callable[[Write], Write]:
    """Register a lie of class ``kind`` in a ``network`` of some kind; ``more`` are fields of ``Entry``."""
    if kind not in CLASSES:
        raise ValueError(f"no class {kind!r}; there are {', '.join(CLASSES)}")
    return _registered(kind, network, **more)


def healthy(network: str, **more: Any) -> Callable[[Write], Write]:
    """Register a healthy case."""
    return _registered(HEALTHY, network, **more)


def add(entry: Entry) -> None:
    """Register an entry that a loop makes."""
    if entry.name in ENTRIES:
        raise ValueError(f"two entries are called {entry.name!r}")
    ENTRIES[entry.name] = entry


def _registered(kind: str, network: str, **more: Any) -> Callable[[Write], Write]:
    def register(write: Write) -> Write:
        module = write.__module__.rpartition(".")[2]
        prefix = "" if module == "ours" else f"{module}_"
        add(
            Entry(
                f"{kind}_{prefix}{write.__name__}".replace("healthy_healthy", "healthy"),
                kind,
                network,
                write,
                **more,
            )
        )
        return write

    return register
