"""Engines as built: their layers, and how fast they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Literal

#: What a layer of an engine computes in.
LayerKind = Literal["weighted", "qdq", "reformat", "other"]
Kind = Literal["int8", "fp8", "fp16", "bf16", "fp32", "other"]
#: Why a layer's precision proves nothing: its kernel may hold several operators in formats of their own, or
#: what it reads, its weights and its kernel's name contradict each other.
Doubt = Literal["", "region", "contradiction"]


class Role(str, Enum):
    """What a form of a case is run as."""

    BASELINE = "baseline"
    BASELINE_AGAIN = "baseline again"
    INT8 = "INT8"
    FIXED = "fixed"
    FP32 = "FP32"
    FP16 = "FP16"
    SIMULATED = "simulated"
    IMPLICIT = "implicit"
    FRAMEWORK = "framework"

    __str__ = str.__str__


@dataclass(frozen=True)
class EngineLayer:
    """One layer of a built engine, as its inspector tells."""

    name: str
    nodes: tuple[str, ...]
    """The ONNX nodes that were fused into it; empty for what TensorRT adds."""
    kind: LayerKind
    """qdq: a Quantize or Dequantize that stands alone."""
    precision: Kind
    doubt: Doubt = ""


@dataclass(frozen=True)
class Latency:
    """Time of one execution on the device, without copies."""

    median_ms: float
    low_ms: float
    """The 10th percentile."""
    high_ms: float
    """The 90th percentile."""
    runs: int


@dataclass(frozen=True)
class EngineInfo:
    """One engine of a case, as built."""

    role: Role
    description: str
    build_seconds: float
    """0 where it was not built in this run."""
    stored: bool
    """True where it came from the engine store."""
    nbytes: int
    layers: tuple[EngineLayer, ...] = ()
    """Empty where the engine does not tell."""
    latency: Latency | None = None
    untold: int = 0
    """Convolutions and matrix products in fused regions of which the engine tells nothing."""
    low: Kind = "int8"
    """What the case wants layers to run in; int8 stands for FP8, too."""

    @property
    def weighted(self) -> int:
        """Layers with weights, as far as the engine tells them."""
        return sum(layer.kind == "weighted" for layer in self.layers)

    @property
    def int8(self) -> int:
        """Layers with weights that run in INT8 or FP8; of a case in FP16 or BF16 in that."""
        low = ("int8", "fp8") if self.low == "int8" else (self.low,)
        return sum(layer.kind == "weighted" and layer.precision in low for layer in self.layers)

    @property
    def int8_share(self) -> tuple[float, float]:
        """At least and at most how much of the layers with weights runs in INT8; nan where none is known."""
        every = self.weighted + self.untold
        return (self.int8 / every, (self.int8 + self.untold) / every) if every else (math.nan, math.nan)

    def count(self, kind: str) -> int:
        """Layers of a kind."""
        return sum(layer.kind == kind for layer in self.layers)
