"""The formats that a case asked for, and those in which its engine ran, by share of multiply-accumulates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pytest_int8acc.results.engines import Kind

#: What asks for a format: a file with Q/DQ or scales, our own calibration, the spec's 'candidate', TensorRT's
#: implicit quantization, or an engine that is built already, of which nobody knows what was asked for.
AskedBy = Literal["file", "calibration", "candidate", "implicit", "engine"]

#: What becomes of an engine that ran in another format than the one asked for.
Realized = Literal["require", "warn", "off"]

#: Of the multiply-accumulates asked for in a format, so many may provably run in another one.
MAX_REFUTED = 0.10
#: Tactics are timed, so two builds of one model may differ by a layer: up to this much above ``MAX_REFUTED``
#: nothing is decided, and the case warns.
UNDECIDED = 0.05


@dataclass(frozen=True)
class LayerShare:
    """One layer, and its share of the model's multiply-accumulates."""

    name: str
    share: float
    ran: Kind | None = None
    """The format in which an engine provably ran it."""


@dataclass(frozen=True)
class PrecisionContract:
    """What was asked for and what ran; shares are of all multiply-accumulates of the float model."""

    low: str
    """The format that the case is about: ``int8``, ``fp8``, ``fp16`` or ``bf16``."""
    source: AskedBy
    policy: Realized
    asked: Mapping[str, float] = field(default_factory=dict)
    """Format to the share that is to run in it; empty for an engine that was built already."""
    realized: Mapping[str, float] | None = None
    """Format to the share that provably ran in it; None where no engine is built, as on ONNX Runtime."""
    proven: float = 0.0
    """Of what was asked for in ``low``: the share that provably ran in it."""
    refuted: float = 0.0
    """The share that provably ran in another format."""
    untold: float = 0.0
    """The share of which the engine tells nothing, as inside fused regions."""
    identical: bool = False
    """Whether all floating outputs are the baseline's, bit for bit. Any rounding that reaches them would have
    changed them. On an engine this refutes the share whose format the engine does not tell."""
    misplaced: tuple[LayerShare, ...] = ()
    """The largest layers among the refuted ones."""
    misplaced_count: int = 0
    left_out: tuple[LayerShare, ...] = ()
    """The largest layers that are not asked for in ``low``."""
    left_out_count: int = 0
    least_share: float = 0.0
    """A smaller share asked for in ``low`` is worth a warning; 0 where the spec says a limit, or a plan."""
    can_obey: bool = False
    """Whether ``tensorrt: {obey: true}`` would hold layers in the format, and the spec does not say it."""
    obeyed: bool = False
    """Whether the engine was built with layer precisions that must be obeyed."""

    @property
    def is_exceeded(self) -> bool:
        """Whether more runs in another format than is tolerated, builds that differ by a layer included."""
        return self.refuted > MAX_REFUTED + UNDECIDED

    @property
    def is_broken(self) -> bool:
        """Whether the case fails by it."""
        return self.policy == "require" and self.is_exceeded
