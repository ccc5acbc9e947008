"""What is known about built engines: their layers and their latency."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Literal

#: The kind of an engine's layer. ``weighted``: a convolution or a matrix product. ``qdq``: the layer only
#: quantizes or dequantizes. ``reformat``: the layer only moves or casts values.
LayerKind = Literal["weighted", "qdq", "reformat", "other"]
Kind = Literal["int8", "fp8", "fp16", "bf16", "fp32", "other"]
#: The reason why the reported precision of an engine's layer is not reliable. ``region``: its kernel may hold
#: several operators in different formats. ``contradiction``: its inputs, its weights and its kernel's name
#: contradict each other. Empty: the precision is reliable.
Doubt = Literal["", "region", "contradiction"]


class Role(str, Enum):
    """What a model or engine is used for in a case."""

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
    """One layer of a built engine, as TensorRT's engine inspector describes it."""

    name: str
    nodes: tuple[str, ...]
    """The ONNX nodes that TensorRT fused into the layer; empty for a layer that TensorRT added."""
    kind: LayerKind
    precision: Kind
    doubt: Doubt = ""


@dataclass(frozen=True)
class LayerTime:
    """The time that one layer of an engine takes."""

    nodes: tuple[str, ...]
    """The ONNX nodes that the layer computes. For a copy that the runtime added, they are the nodes of the
    layer for which it copies. Empty if they are not known."""
    milliseconds: float
    is_region: bool = False
    """Whether the layer also computes nodes that ``nodes`` lacks, because the runtime does not name them."""


@dataclass(frozen=True)
class Latency:
    """The time, in milliseconds, of one inference on the device, without copies from and to the host."""

    median_ms: float
    low_ms: float
    """The 10th percentile over all timed runs, in milliseconds."""
    high_ms: float
    """The 90th percentile over all timed runs, in milliseconds."""
    runs: int

    def scaled(self, factor: float) -> Latency:
        """Returns this latency with all times multiplied by ``factor``."""
        return Latency(self.median_ms * factor, self.low_ms * factor, self.high_ms * factor, self.runs)


@dataclass(frozen=True)
class EngineInfo:
    """One engine that was built for a case, or loaded from the engine store."""

    role: Role
    description: str
    build_seconds: float
    """The time of the build in seconds; 0 if the engine was not built in this run."""
    stored: bool
    """Whether the engine was loaded from the engine store in place of being built."""
    nbytes: int
    layers: tuple[EngineLayer, ...] = ()
    """The layers of the engine; empty if the engine does not describe its layers."""
    latency: Latency | None = None
    untold: int = 0
    """The number of convolutions and matrix products whose precision is not known, because the engine does
    not report it for the fused regions that contain them."""
    low: Kind = "int8"
    """The low format of the case, which ``int8`` and ``int8_share`` count. ``int8`` means INT8 or FP8."""

    @property
    def weighted(self) -> int:
        """The number of layers with weights, as far as the engine describes them."""
        return sum(layer.kind == "weighted" for layer in self.layers)

    @property
    def int8(self) -> int:
        """The number of layers with weights that run in the low format of the case."""
        low = ("int8", "fp8") if self.low == "int8" else (self.low,)
        return sum(layer.kind == "weighted" and layer.precision in low for layer in self.layers)

    @property
    def int8_share(self) -> tuple[float, float]:
        """The least and the greatest possible share of layers with weights in the low format.

        Both are nan if no layer with weights is known.
        """
        every = self.weighted + self.untold
        return (self.int8 / every, (self.int8 + self.untold) / every) if every else (math.nan, math.nan)

    def count(self, kind: str) -> int:
        """Returns the number of layers of the kind ``kind``, one of ``LayerKind``."""
        return sum(layer.kind == kind for layer in self.layers)
