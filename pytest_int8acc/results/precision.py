"""The formats that a case asked for and those in which its engine ran, as shares of multiply-accumulates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pytest_int8acc.results.engines import Kind

#: Where a format is asked for: in a file with Q/DQ or scales, by our own calibration, by the spec's
#: ``candidate``, or by TensorRT's implicit quantization. engine: it was built before, so this is unknown.
AskedBy = Literal["file", "calibration", "candidate", "implicit", "engine"]

#: What happens to a case whose engine ran in another format: it fails, it has a caution, or nothing.
Realized = Literal["require", "warn", "off"]

#: The largest tolerated share of the multiply-accumulates of a format that provably ran in another one.
MAX_REFUTED = 0.10
#: TensorRT chooses tactics by timing, so two builds of one model may differ by a layer. Up to this share
#: above ``MAX_REFUTED`` the case does not fail but has a caution.
UNDECIDED = 0.05


@dataclass(frozen=True)
class LayerShare:
    """One layer and its share of the model's multiply-accumulates."""

    name: str
    share: float
    ran: Kind | None = None
    """The format in which the engine provably ran the layer; None if not known."""


@dataclass(frozen=True)
class PrecisionContract:
    """The formats asked for and those that ran, as shares of the float model's multiply-accumulates."""

    low: str
    """The format that the case is about: ``int8``, ``fp8``, ``fp16`` or ``bf16``."""
    source: AskedBy
    policy: Realized
    asked: Mapping[str, float] = field(default_factory=dict)
    """The share asked for in each format; empty for an engine that was built before."""
    realized: Mapping[str, float] | None = None
    """The share that provably ran in each format; None if no engine is built, as on ONNX Runtime."""
    proven: float = 0.0
    """The fraction of the multiply-accumulates asked for in ``low`` that provably ran in it."""
    refuted: float = 0.0
    """The fraction that provably ran in another format."""
    untold: float = 0.0
    """The fraction whose format the engine does not tell, as inside fused regions."""
    identical: bool = False
    """Whether all floating outputs equal the baseline's bit for bit. Any rounding would have changed them, so
    on an engine this refutes the fraction whose format the engine does not tell."""
    misplaced: tuple[LayerShare, ...] = ()
    """The largest layers among the refuted ones."""
    misplaced_count: int = 0
    left_out: tuple[LayerShare, ...] = ()
    """The largest layers that are not asked for in ``low``."""
    left_out_count: int = 0
    least_share: float = 0.0
    """A caution is shown if a smaller share is asked for in ``low``; 0 if the spec has a limit or a plan."""
    can_obey: bool = False
    """Whether ``tensorrt: {obey: true}`` would keep layers in the format, and the spec does not have it."""
    obeyed: bool = False
    """Whether the engine was built with layer precisions that must be obeyed."""

    @property
    def is_exceeded(self) -> bool:
        """Whether more ran in another format than is tolerated, even if builds differ by a layer."""
        return self.refuted > MAX_REFUTED + UNDECIDED

    @property
    def is_broken(self) -> bool:
        """Whether the case fails because of the formats that ran."""
        return self.policy == "require" and self.is_exceeded
