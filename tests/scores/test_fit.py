"""The straight line between INT8 and the baseline, what it means, and the worst sample."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judged import compare_output

RNG = np.random.default_rng(3)
X = RNG.normal(0, 1, (200, 10)).astype(np.float32)


def fit_of(baseline, candidate):
    return compare_output("y", baseline, candidate).fit


def worst_of(baseline, candidate):
    return compare_output("y", baseline, candidate).worst_sample


def fit(baseline, candidate):
    return fit_of([np.asarray(baseline)], [np.asarray(candidate)])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    mean=st.sampled_from([0.0, 5.0, 1e4]),
    cuts=st.sets(st.integers(0, 40), max_size=5),
)
def test_fit_equals_lstsq_however_the_samples_are_batched(seed, mean, cuts):
    rng = np.random.default_rng(seed)
    b = rng.normal(mean, 1, (40, 3))
    c = rng.uniform(-2, 2) * b + rng.uniform(-5, 5) + rng.normal(0, 0.3, b.shape)
    got = fit_of(np.split(b, sorted(cuts)), np.split(c, sorted(cuts)))
    # With a mean of 1e4 standard deviations, the sums of squares keep 8 digits of the variance.
    slope = np.linalg.lstsq((b - b.mean()).reshape(-1, 1), (c - c.mean()).ravel(), rcond=None)[0][0]
    assert got.slope == pytest.approx(slope, rel=1e-6, abs=1e-6)
    # The offset lies a mean away from the data: the slope's rounding is multiplied by it.
    assert got.offset == pytest.approx(c.mean() - slope * b.mean(), abs=1e-6 * (1 + mean))
    assert got.correlation == pytest.approx(np.corrcoef(b.ravel(), c.ravel())[0, 1], abs=1e-6)


@pytest.mark.parametrize(
    ("slope", "offset", "meanings"),
    [
        (0.52, 0.0, ("small",)),
        (3.4, 0.0, ("large",)),
        (1.0, 0.5, ("shifted",)),
        (0.5, -1.0, ("small", "shifted")),
    ],
)
def test_a_line_far_from_the_diagonal_has_a_meaning(slope, offset, meanings):
    got = fit(X, slope * X + offset + RNG.normal(0, 0.01, X.shape))
    assert got.slope == pytest.approx(slope, abs=1e-2)
    assert got.offset == pytest.approx(offset, abs=1e-2)
    assert got.meanings == meanings
    assert got.shift == pytest.approx(offset + (slope - 1) * X.mean(), abs=0.01)
    assert got.deviation == pytest.approx(X.std())


@pytest.mark.parametrize(("slope", "offset"), [(1.0, 0.0), (0.95, 0.05), (1.05, -0.05)])
def test_a_line_near_the_diagonal_means_nothing(slope, offset):
    assert fit(X, slope * X + offset).meanings == ()


def test_low_correlation_means_nothing():
    got = fit(X, 0.5 * X + RNG.normal(0, 1, X.shape))
    assert got.correlation < 0.9
    assert got.meanings == ()


def test_far_from_zero_a_slope_near_one_is_no_shift():
    far = 100 + X
    got = fit(far, 100 + 0.97 * X)
    assert got.offset == pytest.approx(3, abs=0.1)
    assert got.meanings == ()


@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_a_shift_is_measured_in_the_baselines_standard_deviation(unit):
    assert fit(unit * X, unit * (X + 0.5)).meanings == ("shifted",)
    assert fit(unit * X, unit * (X + 0.05)).meanings == ()


def test_a_pure_factor_of_values_far_from_zero_is_no_shift():
    got = fit(10 + X, 2 * (10 + X))
    assert got.meanings == ("large",)


def test_numbers_like_those_of_the_forum_post():
    # An FP16 sequence and its INT8 counterpart: the pattern is the same, the values are stretched.
    got = fit([[-1.5, 0.34, 3.4, -1.7]], [[-5.2, 0.56, 4.53, -5.1]])
    assert got.correlation > 0.9
    assert got.slope == pytest.approx(1.9, abs=0.1)
    assert "large" in got.meanings


def test_clipping_by_a_narrow_range_shows_as_a_slope_below_one():
    got = fit(X, np.clip(X, -0.8, 0.8))
    assert got.slope < 0.9
    assert got.meanings == ("small",)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6])
def test_constant_baseline_has_no_line(value):
    assert fit(np.full((3, 7), value), X[:3, :7]) is None


@pytest.mark.parametrize("value", [0.0, 0.1])
def test_constant_int8_is_known(value):
    got = fit(X, np.full_like(X, value))
    assert (got.slope, got.correlation, got.meanings) == (0.0, 0.0, ("constant",))
    assert got.offset == pytest.approx(value)


def test_equal_holes_and_empty_batches_do_not_touch_the_line():
    hole = np.full((1, 10), np.nan, np.float32)
    empty = np.zeros((0, 10), np.float32)
    got = fit_of([X, hole, empty], [2 * X, hole, empty])
    assert (got.slope, got.correlation) == (pytest.approx(2.0), pytest.approx(1.0))


def test_worst_sample_is_the_one_with_the_lowest_sqnr():
    candidate = X * 1.01
    candidate[7] = X[7] * 1.5
    candidate[150] = X[150] * 1.2
    assert worst_of([X], [candidate]) == 7
    assert worst_of([X[:3], X[3:8], X[8:]], [candidate[:3], candidate[3:8], candidate[8:]]) == 7


def test_worst_sample_in_a_batch_too_large_for_one_piece():
    baseline = RNG.normal(0, 1, (40, 8000)).astype(np.float32)
    candidate = baseline * 1.01
    candidate[39] *= 2
    assert worst_of([baseline[:1], baseline[1:]], [candidate[:1], candidate[1:]]) == 39


def test_worst_sample_of_identical_outputs_is_none():
    assert worst_of([X], [X.copy()]) is None


def test_worst_sample_leaves_equal_holes_out_and_takes_samples_of_zeros():
    b, c = X[:4].copy(), X[:4] * 1.1
    b[1] = c[1] = np.nan
    b[2] = 0.0
    assert worst_of([b], [c]) == 2  # all of it is error: -inf dB
    assert math.isfinite(fit_of([b], [c]).slope)


def test_one_sample_per_array_without_axes():
    b, c = np.float32([1, 2, 3]), np.float32([1, 2, 4])
    assert worst_of([*map(np.asarray, b)], [*map(np.asarray, c)]) == 2
