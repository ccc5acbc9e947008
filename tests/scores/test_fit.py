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


NOISE = RNG.normal(0, 1, X.shape)


@pytest.mark.parametrize(
    ("baseline", "candidate", "meanings"),
    [
        (X, 0.52 * X, ("small",)),
        (X, 3.4 * X, ("large",)),
        (X, X + 0.5, ("shifted",)),
        (X, 0.5 * X - 1.0, ("small", "shifted")),
        # Near the diagonal.
        (X, X, ()),
        (X, 0.95 * X + 0.05, ()),
        (X, 1.05 * X - 0.05, ()),
        # Hardly correlated.
        (X, 0.5 * X + NOISE, ()),
        # Far from zero a slope near one and a pure factor are no shift.
        (100 + X, 100 + 0.97 * X, ()),
        (10 + X, 2 * (10 + X), ("large",)),
        # A shift is measured in the baseline's standard deviation.
        (1e-3 * X, 1e-3 * (X + 0.5), ("shifted",)),
        (1e3 * X, 1e3 * (X + 0.5), ("shifted",)),
        (1e-3 * X, 1e-3 * (X + 0.05), ()),
        (1e3 * X, 1e3 * (X + 0.05), ()),
        # A narrow range clips.
        (X, np.clip(X, -0.8, 0.8), ("small",)),
    ],
)
def test_what_a_line_means(baseline, candidate, meanings):
    assert fit(baseline, candidate + 0.01 * baseline.std() * NOISE).meanings == meanings


def test_a_line_has_its_numbers():
    got = fit(X, 0.5 * X - 1.0)
    assert (got.slope, got.offset) == (pytest.approx(0.5), pytest.approx(-1))
    assert got.shift == pytest.approx(-1 - 0.5 * X.mean(), abs=1e-3)
    assert got.deviation == pytest.approx(X.std())


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


def test_worst_sample_is_the_one_with_the_lowest_sqnr_however_the_samples_are_batched():
    candidate = X * 1.01
    candidate[7] = X[7] * 1.5
    candidate[150] = X[150] * 1.2
    assert worst_of([X], [candidate]) == 7
    assert worst_of([X[:3], X[3:8], X[8:]], [candidate[:3], candidate[3:8], candidate[8:]]) == 7
    assert worst_of([*X[:3, 0]], [*candidate[:3, 0] + [0, 0, 1]]) == 2, "arrays without axes"
    wide = RNG.normal(0, 1, (40, 8000)).astype(np.float32)  # too large for one piece
    worse = wide * np.where(np.arange(40) == 39, 2, 1.01)[:, None]
    assert worst_of([wide[:1], wide[1:]], [worse[:1], worse[1:]]) == 39
    assert worst_of([X], [X.copy()]) is None


def test_worst_sample_leaves_equal_holes_out_and_takes_samples_of_zeros():
    b, c = X[:4].copy(), X[:4] * 1.1
    b[1] = c[1] = np.nan
    b[2] = 0.0
    assert worst_of([b], [c]) == 2  # all of it is error: -inf dB
    assert math.isfinite(fit_of([b], [c]).slope)
