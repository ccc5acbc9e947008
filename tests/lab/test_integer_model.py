from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_model import conv2d_int, conv_transpose2d_int, matmul_int, quantize, rescale

SMALL = st.integers(1, 2)
PAIR = st.tuples(SMALL, SMALL)


@st.composite
def layers(draw: st.DrawFn) -> dict[str, Any]:
    groups, per_group, out_per_group = draw(SMALL), draw(st.integers(1, 3)), draw(SMALL)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    size = draw(st.tuples(st.integers(5, 7), st.integers(5, 7)))
    shape = (groups * out_per_group, per_group, *kernel)
    return {
        "x": rng.integers(-128, 128, (draw(SMALL), groups * per_group, *size), np.int8),
        "w": rng.integers(-128, 128, shape, np.int8),
        "stride": draw(PAIR),
        "pads": draw(st.tuples(*[st.integers(0, 2)] * 4)),
        "dilation": draw(PAIR),
        "groups": groups,
    }


def naive_conv(x, w, stride, pads, dilation, groups):  # type: ignore[no-untyped-def]
    """Seven nested loops over Python integers."""
    n, _, height, width = x.shape
    m, per_group, kh, kw = w.shape
    out_h = (height + pads[0] + pads[2] - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    out_w = (width + pads[1] + pads[3] - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    y = np.zeros((n, m, out_h, out_w), np.int64)
    for b, o, i, j in itertools.product(range(n), range(m), range(out_h), range(out_w)):
        first = o // (m // groups) * per_group
        for k, p, q in itertools.product(range(per_group), range(kh), range(kw)):
            row = i * stride[0] - pads[0] + p * dilation[0]
            column = j * stride[1] - pads[1] + q * dilation[1]
            if 0 <= row < height and 0 <= column < width:
                y[b, o, i, j] += int(x[b, first + k, row, column]) * int(w[o, k, p, q])
    return y


@settings(max_examples=25, deadline=None)
@given(layers())
def test_conv_equals_nested_loops(layer: dict[str, Any]) -> None:
    np.testing.assert_array_equal(conv2d_int(**layer), naive_conv(**layer))


def naive_conv_transpose(x, w, stride, pads, dilation, groups):  # type: ignore[no-untyped-def]
    """Each input element adds its products to the outputs it reaches."""
    n, c, height, width = x.shape
    _, m, kh, kw = w.shape
    out_h = (height - 1) * stride[0] + dilation[0] * (kh - 1) + 1 - pads[0] - pads[2]
    out_w = (width - 1) * stride[1] + dilation[1] * (kw - 1) + 1 - pads[1] - pads[3]
    y = np.zeros((n, groups * m, out_h, out_w), np.int64)
    for b, k, i, j in itertools.product(range(n), range(c), range(height), range(width)):
        first = k // (c // groups) * m
        for o, p, q in itertools.product(range(m), range(kh), range(kw)):
            row = i * stride[0] - pads[0] + p * dilation[0]
            column = j * stride[1] - pads[1] + q * dilation[1]
            if 0 <= row < out_h and 0 <= column < out_w:
                y[b, first + o, row, column] += int(x[b, k, i, j]) * int(w[k, o, p, q])
    return y


@settings(max_examples=25, deadline=None)
@given(layers(), st.integers(1, 3))
def test_conv_transpose_equals_nested_loops(layer: dict[str, Any], out_per_group: int) -> None:
    kernel = layer["w"].shape[2:]
    shape = (layer["x"].shape[1], out_per_group, *kernel)
    layer["w"] = np.random.default_rng(0).integers(-128, 128, shape, np.int8)
    np.testing.assert_array_equal(conv_transpose2d_int(**layer), naive_conv_transpose(**layer))


def test_conv_counts_where_int16_saturates() -> None:
    x, w = np.full((1, 256, 1, 1), 127, np.int8), np.full((1, 256, 1, 1), 127, np.int8)
    assert conv2d_int(x, w).item() == 256 * 127 * 127


@settings(max_examples=25, deadline=None)
@given(st.lists(SMALL, max_size=2), SMALL, st.integers(1, 5), SMALL, st.booleans())
def test_matmul_equals_nested_loops(batch: list[int], m: int, k: int, n: int, shared: bool) -> None:
    rng = np.random.default_rng(m * k * n)
    a = rng.integers(-128, 128, (*batch, m, k), np.int8)
    b = rng.integers(-128, 128, (k, n) if shared else (*batch, k, n), np.int8)
    y = matmul_int(a, b)
    assert y.dtype == np.int64
    for at in itertools.product(*map(range, batch)):
        right = b if shared else b[at]
        for i, j in itertools.product(range(m), range(n)):
            assert y[at][i, j] == sum(int(a[at][i, p]) * int(right[p, j]) for p in range(k))


@pytest.mark.parametrize(
    ("x", "expected"), [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (200.0, 127), (-200.0, -128)]
)
def test_quantize_rounds_half_to_even_and_saturates(x: float, expected: int) -> None:
    assert quantize(np.float32([x]), 1.0).item() == expected


def test_scales_and_bias_lie_along_their_axis() -> None:
    accumulator = np.ones((1, 2, 3, 3), np.int64)
    y = rescale(accumulator, 0.5, np.float32([1, 2]), axis=1, bias=np.float32([10, 20]))
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y[0, :, 0, 0], [10.5, 21.0])
    np.testing.assert_array_equal(
        quantize(np.ones((2, 3), np.float32), np.float32([1, 0.5]), axis=0)[:, 0], [1, 2]
    )
