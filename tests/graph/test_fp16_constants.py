from __future__ import annotations

import numpy as np
import pytest
from builder import Builder

from pytest_int8acc.graph.half import to_fp16, to_half
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import make_model


def test_scale_below_fp16_is_raised_and_said() -> None:
    half = to_half("s", np.array([1e-9, 0.5], np.float32), ["q"], is_scale=True)
    assert half.values.dtype == np.float16
    np.testing.assert_array_equal(half.values, np.array([2.0**-24, 0.5], np.float16))
    assert half.note == "scale 's' (read by q): 1 of 2 numbers below what FP16 holds, raised to 2**-24"
    assert to_half("s", np.array(np.inf, np.float32), ["q"], is_scale=True).note == ""


def test_scale_that_fp16_rounds_coarsely_is_said() -> None:
    coarse = to_half("s", np.float32([1.49e-7]), ["q"], is_scale=True)
    assert "changes by up to 20.0% in FP16" in coarse.note
    assert to_half("s", np.float32([0.0123]), ["q"], is_scale=True).note == ""


def test_constant_that_vanishes_is_said() -> None:
    gone = to_half("epsilon", np.array(1e-12, np.float32), ["add"], is_scale=False)
    assert gone.note.startswith("'epsilon' (read by add): all numbers vanish in FP16 (largest 1e-12")
    assert to_half("w", np.float32([1e-12, 1]), ["add"], is_scale=False).note == ""


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3)])
@pytest.mark.parametrize("is_scale", [True, False])
def test_shape_stays_and_plain_numbers_go_unremarked(shape: tuple[int, ...], is_scale: bool) -> None:
    half = to_half("w", np.full(shape, 0.25, np.float32), ["conv"], is_scale=is_scale)
    assert (half.values.shape, half.values.dtype) == (shape, np.float16)
    assert (half.overflow, half.note) == ("", "")
    np.testing.assert_array_equal(half.values, 0.25)


def test_nan_hides_no_overflow() -> None:
    half = to_half("w", np.float32([np.nan, -1e6, np.inf, 65519, 65520]), ["conv"], is_scale=False)
    assert (
        half.overflow == "'w' (read by conv): 2 of 5 numbers beyond 65504 become inf in FP16 (largest 1e+06)"
    )
    np.testing.assert_array_equal(half.values, np.float16([np.nan, -np.inf, np.inf, 65504, np.inf]))


def test_overflow_names_the_constant_and_its_readers() -> None:
    b = Builder()
    bias = b.const([1.0, -7e4, 65504.0, 1e9], name="mask")
    b.node("Add", b.input("x", [2, 4]), bias, outputs=["y"])
    result = to_fp16(normalize(make_model(b.model({"y": [2, 4]}))))
    assert result.overflows == (
        "'mask' (read by add0): 2 of 4 numbers beyond 65504 become inf in FP16 (largest 1e+09)",
    )
    assert to_fp16(normalize(make_model(b.model({"y": [2, 4]}))), ["add0"]).overflows == ()
