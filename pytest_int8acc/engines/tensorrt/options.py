"""What a user may say of how TensorRT builds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

Shape = tuple[int, ...]
#: Smallest, usual and largest shape of one input.
Range = tuple[Shape, Shape, Shape]


@dataclass(frozen=True)
class BuildOptions:
    """Options of one build; all but ``timeout`` are part of what an engine depends on."""

    shapes: Mapping[str, Range] = field(default_factory=dict)
    """Input to its profile; inputs left out follow from the data."""
    plugins: tuple[Path, ...] = ()
    """Libraries loaded before the model is read."""
    workspace: int | None = None
    """Bytes that tactics may take; None leaves TensorRT all of the device's memory."""
    optimization_level: int | None = None
    tactic_sources: tuple[str, ...] | None = None
    """Names such as CUBLAS; empty means none, None means TensorRT's own choice."""
    timeout: float = 1800.0
    """Seconds that one build may take."""
