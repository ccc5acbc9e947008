"""Number formats: what each holds, and how numbers are rounded to it; nothing else in the package knows.

A layer that is quantized holds codes: numbers of a narrow format that stand for others by a scale, as ONNX
QuantizeLinear and DequantizeLinear have it. A format more is an instance more.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike
from onnx import helper

from pytest_int8acc.tensors import Array


@dataclass(frozen=True)
class Format:
    """A number format of weights and activations; rounding is to the nearest, half to even."""

    name: str
    """As in specs, plans and results: ``fp16``, ``int8``."""
    dtype: np.dtype[np.generic]
    """What NumPy and ONNX hold its numbers in."""
    lowest: float
    """The least finite number; an int where the format is of integers."""
    highest: float
    """The greatest finite number; an int where the format is of integers."""
    smallest: float
    """The smallest number above 0."""
    normal: float
    """From here on numbers have all their digits; smaller ones are multiples of ``smallest``."""
    saturates: bool
    """Whether what is beyond becomes the end of the range; inf otherwise."""

    @property
    def levels(self) -> float:
        """The greatest code of a symmetric range, so that its scale is amax / levels: 127 of INT8."""
        return (self.highest - self.lowest) // 2

    @property
    def symmetric(self) -> Format:
        """What TensorRT takes in its place, with zero points of 0: FP8 itself, for any other INT8."""
        return self if self is FP8 else INT8

    @property
    def takes_scales(self) -> bool:
        """Whether its numbers are codes, which a scale gives their worth."""
        return self.saturates

    @property
    def element_type(self) -> int:
        """ONNX's element type of its numbers, such as ``TensorProto.FLOAT16``."""
        return int(helper.np_dtype_to_tensor_dtype(self.dtype))

    def step(self, codes: Array) -> Array:
        """The distance from each code, float64 of any shape, to the next one away from 0."""
        relative = 0.0 if self._integer else self.smallest / self.normal
        exponents = np.floor(np.log2(np.maximum(np.abs(codes), self.normal)))
        return np.maximum(np.exp2(exponents) * relative, self.smallest)

    def zeros(self, scale: Array) -> Array:
        """The zero points of a symmetric quantization, shaped like its scales."""
        return np.zeros(scale.shape, self.dtype)

    def round(self, values: Array | float) -> Array:
        """``values``, of any shape, as numbers of this format, in its dtype."""
        wide = np.asarray(values)
        return self._held(np.rint(wide) if self._integer else wide)

    def quantize(
        self, values: Array, scale: Array | float, zero_point: Array | float = 0, axis: int | None = None
    ) -> Array:
        """ONNX QuantizeLinear: ``saturate(round(values / scale) + zero_point)``.

        Args:
            values: Any shape. Computed in float64 where they are that, otherwise in float32 as ONNX does.
            scale: Shape () or (channels,).
            zero_point: Shaped like ``scale``, or 0.
            axis: Where the channels lie; None for a single scale.

        Returns:
            Codes in the format's dtype.
        """
        wide = _wide(values)
        with np.errstate(over="ignore"):  # what is beyond FP32 saturates, too
            steps = np.asarray(values.astype(wide, copy=False) / along(scale, axis, values.ndim).astype(wide))
        if self._integer:
            np.rint(steps, out=steps)
            steps += along(zero_point, axis, values.ndim).astype(wide)
        return self._held(steps, out=steps)

    def dequantize(
        self,
        codes: Array,
        scale: Array | float,
        zero_point: Array | float = 0,
        axis: int | None = None,
        dtype: DTypeLike = np.float32,
    ) -> Array:
        """ONNX DequantizeLinear, computed in ``dtype`` and given in it: ``(codes - zero_point) * scale``."""
        steps = np.asarray(codes).astype(dtype)
        steps -= along(zero_point, axis, codes.ndim).astype(dtype)
        steps *= along(scale, axis, codes.ndim).astype(dtype)
        return steps

    def fake_quantize(
        self, values: Array, scale: Array | float, zero_point: Array | float = 0, axis: int | None = None
    ) -> Array:
        """``values`` as their codes give them back, in float64 where they are that, otherwise in float32."""
        codes = self.quantize(values, scale, zero_point, axis)
        return self.dequantize(codes, scale, zero_point, axis, _wide(values))

    @property
    def _integer(self) -> bool:
        return self.dtype.kind in "iu"

    def _held(self, values: Array, out: Array | None = None) -> Array:
        if self.saturates:
            if self.levels > 2**24:  # FP32 has no number 2**31 - 1
                values, out = values.astype(np.float64), None
            values = np.clip(values, self.lowest, self.highest, out=out)
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(values).astype(self.dtype)


def along(values: Array | float, axis: int | None, ndim: int) -> Array:
    """``values`` shaped to broadcast along ``axis`` of an array of ``ndim`` dimensions."""
    array = np.asarray(values)
    if axis is None or array.ndim == 0:
        return array.reshape(())
    return array.reshape([-1 if i == axis % ndim else 1 for i in range(ndim)])


def format_of(dtype: DTypeLike) -> Format:
    """The format whose numbers a dtype holds, such as that of a zero point.

    Raises:
        KeyError: No format is held in this dtype.
    """
    return _BY_DTYPE[np.dtype(dtype)]


def _wide(values: Array) -> type[np.float32] | type[np.float64]:
    return np.float64 if values.dtype == np.float64 else np.float32


def _integers(dtype: DTypeLike) -> Format:
    limits = np.iinfo(np.dtype(dtype))
    return Format(limits.dtype.name, limits.dtype, limits.min, limits.max, 1, 1, saturates=True)


def _floats(name: str, dtype: DTypeLike, fraction: int, exponent: int) -> Format:
    """A format of IEEE 754: bits of the fraction, and the least exponent."""
    highest, normal = (2 - 2.0**-fraction) * 2.0 ** (1 - exponent), 2.0**exponent
    return Format(name, np.dtype(dtype), -highest, highest, normal * 2.0**-fraction, normal, saturates=False)


#: What TensorRT quantizes to; the others are read from models that other tools made.
INT8 = _integers("int8")
UINT8 = _integers("uint8")
#: Of biases.
INT32 = _integers("int32")
INTEGERS = (INT8, UINT8, _integers("int16"), _integers("uint16"), INT32)

FP32 = _floats("fp32", "float32", 23, -126)
FP16 = _floats("fp16", "float16", 10, -14)
BF16 = _floats("bf16", ml_dtypes.bfloat16, 7, -126)

#: E4M3 of ONNX and TensorRT, without inf ('FP8 Formats for Deep Learning', arXiv:2209.05433).
FP8 = Format("fp8", np.dtype(ml_dtypes.float8_e4m3fn), -448.0, 448.0, 2.0**-9, 2.0**-6, saturates=True)

#: By name.
FORMATS = {known.name: known for known in (*INTEGERS, FP32, FP16, BF16, FP8)}
_BY_DTYPE = {known.dtype: known for known in FORMATS.values()}
