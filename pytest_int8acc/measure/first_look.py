"""What the first samples say, before a case is run on all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest_int8acc.case.judge import Scoring
from pytest_int8acc.runtime.protocol import Engine


@dataclass(frozen=True, eq=False)
class Preflight:
    """What the first samples say, and the engines that they were run on."""

    baseline: Engine | None = None
    """None where the baseline was kept and is not run."""
    candidate: Engine | None = None
    """None where it is still to be calibrated."""
    fp32: Callable[[], Engine] | None = None
    """Opens the float model; None where the baseline is that, or where ONNX Runtime cannot run it."""
    steady: Scoring | None = None
    """Two runs of the baseline, where they gave the same numbers bit for bit; None where they did not."""
    doubtful: bool = False
    """Whether FP32 is wanted on all samples whatever INT8 gives."""
    settled: bool = False
    """Whether FP16 was found not to overflow on all samples."""
    notes: tuple[str, ...] = ()
