"""Where and why INT8 loses accuracy, as kinds, names and numbers; ``report/`` says it in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

#: A step of the way from the framework to the INT8 engine.
Stage = Literal[
    "framework",
    "FP32 ONNX",
    "FP16",
    "Q/DQ in ONNX Runtime",
    "engine FP16",
    "engine FP32",
    "engine INT8",
    "implicit INT8",
]
CauseKind = Literal[
    "scale-too-wide",
    "saturation",
    "zero-point",
    "zero-scale",
    "missing-scale",
    "activation-outliers",
    "weight-outliers",
    "weight-scale",
    "wrong-axis",
    "mismatched-scales",
    "sensitive-op",
    "accumulated-noise",
    "engine-only",
    "non-determinism",
]
#: What a tensor, its scale or its surroundings show.
Symptom = Literal[
    "range-too-wide",
    "cut-off",
    "one-sided",
    "vanishing-scale",
    "vanishing-weight-scale",
    "no-scale",
    "large-channels",
    "large-values",
    "stretched-range",
    "uneven-parts",
    "range-of-partner",
    "few-codes",
    "weight-scales-off",
    "scales-of-other-axis",
    "one-scale-for-channels",
    "large-weights",
    "large-idle-weights",
    "quantized-inputs",
    "after-softmax",
    "after-gelu",
    "product-of-activations",
    "decoding",
    "noise-adds-up",
    "engine-differs",
    "within-noise",
]


@dataclass(frozen=True)
class Histogram:
    """Absolute values of one tensor."""

    edges: tuple[float, ...]
    """One more than ``counts``."""
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Cause:
    """Why a group loses accuracy in INT8: what the guilty tensor shows, and what was measured of it."""

    kind: CauseKind
    symptom: Symptom | None = None
    """What was seen; None in a report of version 1."""
    tensor: str = ""
    """The guilty tensor; the noisiest one where none is guilty."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """SQNR in dB, shares and factors by name."""
    histogram: Histogram | None = None
    amax: float | None = None
    """Greatest absolute value seen."""
    reach: float | None = None
    """Greatest absolute value that the scale can express: 127 steps."""
    channels: Mapping[int, float] = field(default_factory=dict)
    """Channels at fault with their greatest absolute values, the largest first."""
    others: tuple[str, ...] = ()
    """Other tensors that explain it: the one whose scale is shared, those that lack a scale."""
    node: str = ""
    """The node where tensors meet or values are made."""
    op_type: str = ""
    """Of that node, or of the group's leader."""
    format: str = ""
    """The number format that does not hold the scale, or the type of the zero point."""
    masked: bool = False
    """The few greatest values are a mask, and all that INT8 keeps."""
    told: str = ""
    """The sentence of a report of version 1; empty in others."""

    def showing(
        self, kind: CauseKind, symptom: Symptom, numbers: Mapping[str, float] | None = None, **facts: Any
    ) -> Cause:
        """The same tensor as a cause of this kind, with further numbers and fields."""
        merged = {**self.numbers, **(numbers or {})}
        return replace(self, kind=kind, symptom=symptom, numbers=merged, **facts)


@dataclass(frozen=True)
class OddRanges:
    """Dynamic ranges of a network, most of which do not fit what their tensors hold."""

    count: int
    """Of all ranges."""
    wide: tuple[float, ...] = ()
    """Of those too wide, what they express over what their tensors reach."""
    narrow: tuple[float, ...] = ()
    """Of those too narrow, what their tensors reach over what they express."""
    by_hand: tuple[float, ...] = ()
    """The values they take most often, where these are so few that somebody set them."""
