"""The formats that a case asked for and those in which its engine ran, as shares of multiply-accumulates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pytest_int8acc.results.engines import Kind

#: Who asks for the low format. ``file``: a file with Q/DQ or scales. ``calibration``: the calibration of this
#: plugin. ``candidate``: the key ``candidate`` of the spec. ``implicit``: TensorRT's implicit quantization.
#: ``engine``: an engine that was built beforehand, so that the requested formats are unknown.
AskedBy = Literal["file", "calibration", "candidate", "implicit", "engine"]

#: The consequence if the engine ran in another format than requested. ``require``: the case fails. ``warn``:
#: a warning is shown. ``off``: there is no consequence.
Realized = Literal["require", "warn", "off"]

#: Maximum tolerated share of the multiply-accumulates requested in the low format that provably ran in
#: another format.
MAX_REFUTED = 0.10
#: A case fails only if this share exceeds ``MAX_REFUTED`` by more than ``UNDECIDED``. A smaller excess causes
#: a warning, because TensorRT chooses tactics by timing, so two builds of one model may differ by a layer.
UNDECIDED = 0.05


@dataclass(frozen=True)
class LayerShare:
    """One layer, and its share of the model's multiply-accumulates, from 0 to 1."""

    name: str
    share: float
    ran: Kind | None = None
    """The format in which the engine provably ran the layer; None if the format is not known."""


@dataclass(frozen=True)
class PrecisionContract:
    """The requested formats and the formats that ran, as shares of the float model's multiply-accumulates."""

    low: str
    """The low format of the case: ``int8``, ``fp8``, ``fp16`` or ``bf16``."""
    source: AskedBy
    policy: Realized
    asked: Mapping[str, float] = field(default_factory=dict)
    """The share of MACs requested in each format; empty for an engine that was built beforehand."""
    realized: Mapping[str, float] | None = None
    """The share of MACs that provably ran in each format; None if no engine is built, as on ONNX Runtime."""
    proven: float = 0.0
    """The fraction of the MACs requested in ``low`` that provably ran in ``low``, from 0 to 1."""
    refuted: float = 0.0
    """The fraction of the MACs requested in ``low`` that provably ran in another format, from 0 to 1."""
    untold: float = 0.0
    """The fraction of the MACs requested in ``low`` whose format the engine does not report, from 0 to 1."""
    identical: bool = False
    """Whether all floating-point outputs equal the baseline's bit for bit.

    Rounding to ``low`` would have changed the outputs. So ``refuted`` then includes all MACs whose format the
    engine does not report.
    """
    misplaced: tuple[LayerShare, ...] = ()
    """The largest layers, by their share of the MACs, that were requested in ``low`` and provably ran in
    another format."""
    misplaced_count: int = 0
    left_out: tuple[LayerShare, ...] = ()
    """The largest layers, by their share of the MACs, that are not requested in ``low``."""
    left_out_count: int = 0
    least_share: float = 0.0
    """A warning is shown if a smaller share of MACs is requested in ``low``. 0: there is no such minimum."""
    can_obey: bool = False
    """Whether the spec lacks ``tensorrt: {obey: true}``, although this key would make the engine run layers
    in the requested format."""
    obeyed: bool = False
    """Whether the engine was built with layer precisions that must be obeyed."""

    @property
    def is_exceeded(self) -> bool:
        """Whether ``refuted`` exceeds ``MAX_REFUTED`` by more than the tolerance ``UNDECIDED``."""
        return self.refuted > MAX_REFUTED + UNDECIDED

    @property
    def is_broken(self) -> bool:
        """Whether the case fails because the engine ran in another format than requested."""
        return self.policy == "require" and self.is_exceeded
