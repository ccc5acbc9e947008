"""INT8 convolution and matrix product in int64, the yardstick for exact simulation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Int8 = NDArray[np.int8]
Int64 = NDArray[np.int64]
Pair = tuple[int, int]


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


def matmul_int(a: Int8, b: Int8) -> Int64:
    """ONNX MatMul (and Gemm without alpha, beta and bias): [..., K] with [K, N] or [..., K, N]."""
    return np.matmul(a.astype(np.int64), b.astype(np.int64))


def _steps(start: int, count: int, step: int) -> slice:
    return slice(start, start + (count - 1) * step + 1, step)
