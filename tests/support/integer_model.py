"""INT8 convolution and matrix product in integers, the yardstick for exact simulation.

Accumulators are int64; only the last step leaves the integers: the exact sum times the product of
the scales (float64), rounded once to float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Int8 = NDArray[np.int8]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Pair = tuple[int, int]


def quantize(x: Float32, scale: float | Float32, axis: int | None = None) -> Int8:
    """QuantizeLinear, zero point 0: ``x / scale`` in float32, half to even, into [-128, 127].

    ``scale`` is one number, or one per channel of ``axis``.
    """
    steps = np.rint(x / _along(np.asarray(scale, np.float32), axis, x.ndim))
    return np.clip(steps, -128, 127).astype(np.int8)


def conv2d_int(
    x: Int8,
    w: Int8,
    stride: Pair = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> Int64:
    """ONNX Conv of [N, C, H, W] with [M, C / groups, kH, kW]; ``pads`` are top, left, bottom, right."""
    top, left, bottom, right = pads
    padded = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    n, channels, height, width = padded.shape
    m, _, kh, kw = w.shape
    out_h = (height - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    out_w = (width - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    grouped = padded.reshape(n, groups, channels // groups, height, width)
    kernel = w.astype(np.int64).reshape(groups, m // groups, channels // groups, kh, kw)
    y = np.zeros((n, groups, m // groups, out_h, out_w), np.int64)
    for i in range(kh):
        for j in range(kw):
            rows = _steps(i * dilation[0], out_h, stride[0])
            columns = _steps(j * dilation[1], out_w, stride[1])
            y += np.einsum("ngchw,gmc->ngmhw", grouped[..., rows, columns], kernel[..., i, j])
    return y.reshape(n, m, out_h, out_w)


def conv_transpose2d_int(
    x: Int8,
    w: Int8,
    stride: Pair = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> Int64:
    """ONNX ConvTranspose of [N, C, H, W] with [C, M / groups, kH, kW]; no output padding."""
    n, channels, height, width = x.shape
    _, m, kh, kw = w.shape
    full_h = (height - 1) * stride[0] + dilation[0] * (kh - 1) + 1
    full_w = (width - 1) * stride[1] + dilation[1] * (kw - 1) + 1
    grouped = x.astype(np.int64).reshape(n, groups, channels // groups, height, width)
    kernel = w.astype(np.int64).reshape(groups, channels // groups, m, kh, kw)
    y = np.zeros((n, groups, m, full_h, full_w), np.int64)
    for i in range(kh):
        for j in range(kw):
            rows = _steps(i * dilation[0], height, stride[0])
            columns = _steps(j * dilation[1], width, stride[1])
            y[..., rows, columns] += np.einsum("ngchw,gcm->ngmhw", grouped, kernel[..., i, j])
    top, left, bottom, right = pads
    return y.reshape(n, groups * m, full_h, full_w)[:, :, top : full_h - bottom, left : full_w - right]


def matmul_int(a: Int8, b: Int8) -> Int64:
    """ONNX MatMul (and Gemm without alpha, beta and bias): [..., K] with [K, N] or [..., K, N]."""
    return np.matmul(a.astype(np.int64), b.astype(np.int64))


def rescale(
    accumulator: Int64,
    scale_a: float | Float32,
    scale_b: float | Float32,
    axis: int | None = None,
    bias: Float32 | None = None,
) -> Float32:
    """``accumulator * scale_a * scale_b + bias`` in float64, rounded once to float32.

    A scale or bias of one number per output channel lies along ``axis``.
    """
    ndim = accumulator.ndim
    y = accumulator.astype(np.float64)
    for scale in (scale_a, scale_b):
        y = y * _along(np.asarray(scale, np.float64), axis, ndim)
    if bias is not None:
        y = y + _along(np.asarray(bias, np.float64), axis, ndim)
    return y.astype(np.float32)


def _steps(start: int, count: int, step: int) -> slice:
    return slice(start, start + (count - 1) * step + 1, step)


def _along(values: NDArray[np.floating], axis: int | None, ndim: int) -> NDArray[np.floating]:
    """``values`` shaped to multiply along ``axis`` of an array of ``ndim`` dimensions."""
    if values.ndim == 0:
        return values
    assert axis is not None
    shape = [1] * ndim
    shape[axis] = -1
    return values.reshape(shape)
