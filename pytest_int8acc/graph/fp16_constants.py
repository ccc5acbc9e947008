"""Constants in FP16: what overflows, what vanishes, and scales that must stay above zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytest_int8acc.graph.formats import FP16
from pytest_int8acc.tensors import Array

#: A scale that FP16 rounding changes by more than this share is said; normal numbers change by 2**-11.
COARSE = 0.01


@dataclass(frozen=True, eq=False)
class HalfConstant:
    """A constant in FP16, and what became of its numbers."""

    values: Array
    overflow: str = ""
    """A sentence naming the constant and its readers where finite numbers became inf, else empty."""
    note: str = ""
    """A sentence where a scale was raised above zero or rounded coarsely, or all numbers vanished."""


def to_half(name: str, values: Array, readers: Sequence[str], *, is_scale: bool) -> HalfConstant:
    """``values`` (float32, any shape) rounded to float16, to nearest even; beyond 65504 they become inf.

    A Q/DQ scale that would become zero is raised to 2**-24 instead: TensorRT takes positive scales only.
    """
    wide = np.asarray(values)  # a mapped file is read here, one weight at a time
    half = FP16.round(wide)
    if not wide.size:
        return HalfConstant(half)
    who = f"'{name}' (read by {', '.join(readers)})"
    extent = max(
        -wide.min(), wide.max()
    )  # without a copy of the weight, as abs() makes; nan where it holds one
    note = ""
    if is_scale:
        half, note = _positive_scale(who, wide, half)
    elif 0 < extent < FP16.smallest and not half.any():
        note = f"{who}: all numbers vanish in FP16 (largest {extent:g}, FP16 ends at 2**-24)"
    return HalfConstant(half, "" if extent <= FP16.highest else _overflow(who, wide, half), note)


def _positive_scale(who: str, wide: Array, half: Array) -> tuple[Array, str]:
    vanished = (half == 0) & (wide > 0)
    if vanished.any():
        note = f"scale {who}: {_count(vanished)} below what FP16 holds, raised to 2**-24"
        return np.where(vanished, np.float16(FP16.smallest), half), note
    normal = np.isfinite(half) & (wide > 0)
    change = np.abs(half[normal] / wide[normal] - 1).max(initial=0)
    if change > COARSE:
        return half, f"scale {who}: changes by up to {change:.1%} in FP16, which has few digits below 2**-14"
    return half, ""


def _overflow(who: str, wide: Array, half: Array) -> str:
    lost = np.isinf(half) & np.isfinite(wide)
    if not lost.any():
        return ""
    largest = np.abs(wide[lost]).max()
    return f"{who}: {_count(lost)} beyond {FP16.highest:g} become inf in FP16 (largest {largest:g})"


def _count(mask: Array) -> str:
    return f"{np.count_nonzero(mask)} of {mask.size} numbers"
