"""Number formats: the numbers that each one holds, and how other numbers are rounded to them.

Only this module knows the range of a format. A quantized layer holds codes: numbers of a narrow format that
become real numbers by a scale, as in ONNX QuantizeLinear and DequantizeLinear. A new format is one more
record in ``FORMATS``.
"""

from __future__ import annotations

import math
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
    """Whether numbers beyond the range become its end; otherwise they become inf."""
    is_target: bool = False
    """Whether TensorRT quantizes to it. Other formats of codes are only read from models of other tools."""
    opset: int = 0
    """The first opset in which the groups of a network can run in it."""
    max_filter: float = math.inf
    """Convolutions run in it whose filter has fewer weights per channel than this."""
    has_deconvolutions: bool = True
    """Whether ConvTranspose runs in it."""

    @property
    def levels(self) -> float:
        """The greatest code of a symmetric range, so that its scale is amax / levels: 127 of INT8."""
        return (self.highest - self.lowest) // 2

    @property
    def symmetric(self) -> Format:
        """The format that TensorRT takes in its place, with zero points of 0: itself, or INT8."""
        return self if self.is_target else INT8

    @property
    def codes(self) -> tuple[Format, ...]:
        """Formats of the codes that a model quantized to this format may hold."""
        return tuple(known for known in FORMATS.values() if known.takes_scales and known.symmetric is self)

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


def _integers(dtype: DTypeLike, *, is_target: bool = False) -> Format:
    limits = np.iinfo(np.dtype(dtype))
    return Format(
        name=limits.dtype.name,
        dtype=limits.dtype,
        lowest=limits.min,
        highest=limits.max,
        smallest=1,
        normal=1,
        saturates=True,
        is_target=is_target,
    )


def _floats(name: str, dtype: DTypeLike, fraction: int, exponent: int, *, opset: int = 0) -> Format:
    """A format of IEEE 754 by the bits of its fraction and its least exponent."""
    highest, normal = (2 - 2.0**-fraction) * 2.0 ** (1 - exponent), 2.0**exponent
    return Format(
        name=name,
        dtype=np.dtype(dtype),
        lowest=-highest,
        highest=highest,
        smallest=normal * 2.0**-fraction,
        normal=normal,
        saturates=False,
        opset=opset,
    )


INT8 = _integers("int8", is_target=True)
UINT8 = _integers("uint8")
#: Biases are quantized to it.
INT32 = _integers("int32")
INTEGERS = (INT8, UINT8, _integers("int16"), _integers("uint16"), INT32)

FP32 = _floats("fp32", "float32", 23, -126)
FP16 = _floats("fp16", "float16", 10, -14)
#: Convolutions, pools and most other operators take BF16 from opset 22 on.
BF16 = _floats("bf16", ml_dtypes.bfloat16, 7, -126, opset=22)

#: E4M3 of ONNX and TensorRT, without inf ('FP8 Formats for Deep Learning', arXiv:2209.05433). NVIDIA's
#: ModelOpt leaves ConvTranspose and large filters out of FP8.
FP8 = Format(
    name="fp8",
    dtype=np.dtype(ml_dtypes.float8_e4m3fn),
    lowest=-448.0,
    highest=448.0,
    smallest=2.0**-9,
    normal=2.0**-6,
    saturates=True,
    is_target=True,
    opset=19,
    max_filter=32,
    has_deconvolutions=False,
)

#: The register: every format by its name.
FORMATS = {known.name: known for known in (*INTEGERS, FP32, FP16, BF16, FP8)}
#: The formats that groups of a network are quantized to.
TARGETS = tuple(known for known in FORMATS.values() if known.is_target)
_BY_DTYPE = {known.dtype: known for known in FORMATS.values()}
