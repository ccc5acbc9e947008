"""Number formats such as INT8 and FP16: their range and precision, and rounding to them.

Only this module knows the range of a format. A quantized tensor holds codes: numbers of a narrow format that
a scale turns into real numbers, as in ONNX QuantizeLinear and DequantizeLinear. To add a format, add a record
to ``FORMATS``.
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
    """A number format of weights and activations. Values are rounded to the nearest number, ties to even."""

    name: str
    """The name in specs, plans and results, such as ``fp16`` or ``int8``."""
    dtype: np.dtype[np.generic]
    """The NumPy dtype of the numbers."""
    lowest: float
    """The least finite number. It is an int for formats of integers."""
    highest: float
    """The greatest finite number. It is an int for formats of integers."""
    smallest: float
    """The smallest number above 0."""
    normal: float
    """The smallest normal number. Smaller (subnormal) numbers are multiples of ``smallest``."""
    saturates: bool
    """Whether numbers beyond the range become the end of the range. If not, they become inf."""
    is_integer: bool = False
    """Whether all numbers are integers."""
    is_target: bool = False
    """Whether TensorRT quantizes to this format: true for INT8 and FP8."""
    opset: int = 0
    """The first opset in which models can run in this format; 0 if every supported opset allows this."""
    max_filter: float = math.inf
    """A convolution runs in this format only if its filter has fewer elements than this number. A 3x3 filter
    has 9."""
    has_deconvolutions: bool = True
    """Whether ConvTranspose runs in this format."""
    sound_db: float = 0.0
    """For formats that TensorRT quantizes to: the minimum SQNR with the best scale, in dB, of a tensor that
    suits the format. If the SQNR is lower, a few large values of the tensor determine the range."""

    @property
    def levels(self) -> float:
        """The greatest code of a symmetric range, such as 127 for INT8: scale = amax / levels."""
        return (self.highest - self.lowest) // 2

    @property
    def symmetric(self) -> Format:
        """The format that TensorRT uses for this one: the same if ``is_target``, otherwise INT8."""
        return self if self.is_target else INT8

    @property
    def codes(self) -> tuple[Format, ...]:
        """The formats that Q/DQ pairs may have in a model that TensorRT would run in this format."""
        return tuple(known for known in FORMATS.values() if known.takes_scales and known.symmetric is self)

    @property
    def takes_scales(self) -> bool:
        """Whether numbers of this format are codes, which a scale turns into real numbers."""
        return self.saturates

    @property
    def is_narrow(self) -> bool:
        """Whether numbers of this format are codes of one byte or less."""
        return self.takes_scales and self.dtype.itemsize == 1

    @property
    def element_type(self) -> int:
        """ONNX's element type, such as ``TensorProto.FLOAT16``."""
        return int(helper.np_dtype_to_tensor_dtype(self.dtype))

    def step(self, codes: Array) -> Array:
        """The distance from each code to the next code away from 0, for float64 codes of any shape."""
        relative = 0.0 if self.is_integer else self.smallest / self.normal
        exponents = np.floor(np.log2(np.maximum(np.abs(codes), self.normal)))
        return np.maximum(np.exp2(exponents) * relative, self.smallest)

    def zeros(self, scale: Array) -> Array:
        """Zero points of 0, in this format's dtype and the shape of ``scale``."""
        return np.zeros(scale.shape, self.dtype)

    def round(self, values: Array | float) -> Array:
        """``values``, of any shape, rounded to this format, in its dtype."""
        wide = np.asarray(values)
        return self._held(np.rint(wide) if self.is_integer else wide)

    def quantize(
        self, values: Array, scale: Array | float, zero_point: Array | float = 0, axis: int | None = None
    ) -> Array:
        """ONNX QuantizeLinear: ``saturate(round(values / scale) + zero_point)``.

        Args:
            values: Numbers of any shape. The computation is in float64 for float64, otherwise in float32 as
                in ONNX.
            scale: The scale, shape () or (channels,).
            zero_point: The zero point, with the shape of ``scale``, or 0.
            axis: The channel axis; None means a single scale.

        Returns:
            Codes in the format's dtype.
        """
        wide = _wide(values)
        with np.errstate(over="ignore"):  # A quotient that overflows to inf also saturates.
            steps = np.asarray(values.astype(wide, copy=False) / along(scale, axis, values.ndim).astype(wide))
        if self.is_integer:
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
        """ONNX DequantizeLinear, ``(codes - zero_point) * scale``, computed and returned in ``dtype``."""
        steps = np.asarray(codes).astype(dtype)
        steps -= along(zero_point, axis, codes.ndim).astype(dtype)
        steps *= along(scale, axis, codes.ndim).astype(dtype)
        return steps

    def fake_quantize(
        self, values: Array, scale: Array | float, zero_point: Array | float = 0, axis: int | None = None
    ) -> Array:
        """``values`` quantized and dequantized. float64 stays float64, all else becomes float32."""
        codes = self.quantize(values, scale, zero_point, axis)
        return self.dequantize(codes, scale, zero_point, axis, _wide(values))

    def _held(self, values: Array, out: Array | None = None) -> Array:
        if self.saturates:
            if self.levels > 2**24:  # FP32 cannot represent the end of the INT32 range, 2**31 - 1.
                values, out = values.astype(np.float64), None
            values = np.clip(values, self.lowest, self.highest, out=out)
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(values).astype(self.dtype)


def along(values: Array | float, axis: int | None, ndim: int) -> Array:
    """``values``, a scalar or a vector, shaped to broadcast along ``axis`` of ``ndim`` dimensions."""
    array = np.asarray(values)
    if axis is None or array.ndim == 0:
        return array.reshape(())
    return array.reshape([-1 if i == axis % ndim else 1 for i in range(ndim)])


def format_of(dtype: DTypeLike) -> Format:
    """The format with this dtype.

    Raises:
        KeyError: No format has this dtype.
    """
    return _BY_DTYPE[np.dtype(dtype)]


def _wide(values: Array) -> type[np.float32] | type[np.float64]:
    return np.float64 if values.dtype == np.float64 else np.float32


def _integers(dtype: DTypeLike, *, sound_db: float = 0.0) -> Format:
    """A format of integers. If ``sound_db`` is above 0, TensorRT quantizes to this format."""
    limits = ml_dtypes.iinfo(np.dtype(dtype))  # type: ignore[no-untyped-call]
    return Format(
        name=limits.dtype.name,
        dtype=limits.dtype,
        lowest=limits.min,
        highest=limits.max,
        smallest=1,
        normal=1,
        saturates=True,
        is_integer=True,
        is_target=sound_db > 0,
        sound_db=sound_db,
    )


def _floats(name: str, dtype: DTypeLike, fraction: int, exponent: int, *, opset: int = 0) -> Format:
    """A float format as in IEEE 754, with ``fraction`` bits of fraction and least exponent ``exponent``."""
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


#: In INT8, tensors of trained layers have an SQNR of at least 33 dB. In FP8, it is at least 31 dB.
#: ``sound_db`` is set below these values.
INT8 = _integers("int8", sound_db=30.0)
UINT8 = _integers("uint8")
#: The format of quantized biases.
INT32 = _integers("int32")
INTEGERS = (INT8, UINT8, _integers("int16"), _integers("uint16"), INT32)

FP32 = _floats("fp32", "float32", 23, -126)
FP16 = _floats("fp16", "float16", 10, -14)
#: BF16 needs opset 22, the first that allows BF16 in convolutions and pools.
BF16 = _floats("bf16", ml_dtypes.bfloat16, 7, -126, opset=22)

#: FP8 is E4M3 without inf, as in ONNX and TensorRT ('FP8 Formats for Deep Learning', arXiv:2209.05433).
#: ConvTranspose, and convolutions whose filter has 32 elements or more, do not run in FP8, as in NVIDIA's
#: ModelOpt.
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
    sound_db=25.0,
)

#: Formats with 4 bits. Q/DQ nodes with these formats stay in the model as they are.
INT4, UINT4 = _integers(ml_dtypes.int4), _integers(ml_dtypes.uint4)

#: All formats that a test case or a Q/DQ pair may have, by name.
FORMATS = {known.name: known for known in (*INTEGERS, FP32, FP16, BF16, FP8)}
#: The formats that TensorRT quantizes to.
TARGETS = tuple(known for known in FORMATS.values() if known.is_target)
_BY_DTYPE = {known.dtype: known for known in (*FORMATS.values(), INT4, UINT4)}
