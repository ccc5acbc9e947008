"""Scales of activations, and their computation from ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pytest_int8acc.errors import ScalesError, listed
from pytest_int8acc.files import readable
from pytest_int8acc.graph.formats import FP32, INT8, Format

if TYPE_CHECKING:
    from pytest_int8acc.observers.observer import Observer


EXPECTED = (
    "expected a TensorRT calibration cache (first line TRT-<version>-<algorithm>), "
    'or a JSON object of dynamic ranges like {"tensor": 6.0}'
)


@dataclass(frozen=True)
class Scales:
    """A scale for each activation tensor: the real number that the quantized value 1 stands for."""

    values: Mapping[str, float]
    """Tensor to scale, which is above 0 and exact in float32. Tensors without a scale are absent."""
    source: str
    """A text that says where the scales come from."""
    notes: tuple[str, ...] = ()
    """Cautions for the reader of a report, such as random data or tensors without a scale."""
    observed: Observer | None = field(default=None, compare=False, repr=False)
    """The observer that measured the tensors for calibration; None if the scales come from a file."""

    def of(self, low: Format) -> Scales:
        """These scales, which are for INT8, converted to scales of another format with the same ranges."""
        values = {t: to_float32(scale * INT8.levels / low.levels) for t, scale in self.values.items()}
        return self if low is INT8 else replace(self, values=values)


def amax_to_scale(amax: Mapping[str, float], low: Format = INT8) -> tuple[dict[str, float], tuple[str, ...]]:
    """The scales whose ranges end at the tensors' greatest magnitudes (amax), and notes for the report.

    Args:
        amax: Tensor to its greatest magnitude, 0 or above. A tensor that is always zero gets the scale for a
            greatest magnitude of 1.
        low: The format that the tensors are quantized to.

    Returns:
        Tensor to scale, and a note that names the tensors that are always zero.

    Raises:
        ScalesError: A magnitude is nan, inf or negative; the message names the tensors.
    """
    broken = [tensor for tensor, value in amax.items() if not 0 <= value <= FP32.highest]
    if broken:
        raise ScalesError(
            f"calibration met inf or nan in {listed(broken)}: an overflow, or broken samples. Check the "
            "calibration data, and that the float model itself gives finite outputs on it"
        )
    zero = [tensor for tensor, value in amax.items() if value / low.levels < FP32.normal]
    scales = {t: to_float32((1.0 if t in set(zero) else value) / low.levels) for t, value in amax.items()}
    note = f"always zero in calibration, so given the scale 1/{low.levels:g}: {listed(zero)}"
    return scales, (note,) if zero else ()


def to_float32(value: float) -> float:
    """``value`` rounded to float32."""
    return float(np.float32(value))


def problem(scale: float) -> str:
    """Why a number cannot be a scale, as text such as ``is 0, not above 0``; empty if it can."""
    if not math.isfinite(scale):
        return f"is {scale}"
    if scale <= 0:
        return f"is {scale:g}, not above 0"
    if scale < FP32.normal:
        return f"is {scale:g}, too small for a float32 at full precision"
    if scale > FP32.highest:
        return f"is {scale:g}, too large for float32"
    return ""


def read_text(path: Path) -> str:
    """The text of a file without its byte order mark.

    Raises:
        ScalesError: The file cannot be read, is empty or binary, or is not UTF-8.
    """
    try:
        data = readable(path).read_bytes()
    except OSError as error:
        raise ScalesError(f"{path}: cannot be read: {error.strerror or error}; {EXPECTED}") from error
    except ValueError as error:  # The name of the file has a null character.
        raise ScalesError(f"{str(path)!r}: is no file name; {EXPECTED}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScalesError(f"{path}: holds bytes that are no text (at {error.start}); {EXPECTED}") from error
    if "\0" in text:
        raise ScalesError(f"{path}: is a binary file; {EXPECTED}")
    if not text.strip():
        raise ScalesError(f"{path}: is empty; {EXPECTED}")
    return text
