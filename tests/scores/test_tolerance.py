"""Polygraphy's tolerance: its verdicts, from sums of samples, for every statistic."""

from __future__ import annotations

import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from judged import score
from polygraphy.comparator import CompareFunc, IterationResult

from pytest_int8acc.scores.rows import Tolerance
from pytest_int8acc.scores.tolerance import CHECKS


def used(tolerance, baseline, candidate, cuts=(), samples=None):
    cut = [slice(start, end) for start, end in pairwise([0, *cuts, len(baseline)])]
    batches = ([array[place] for place in cut] for array in (baseline, candidate))
    return score("tolerance", *batches, samples=samples, tolerance=tolerance)


def polygraphy_passes(tolerance, baseline, candidate):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of 0.53, in favour of a class that 0.49 lacks
        compare = CompareFunc.simple(
            atol=tolerance.abs,
            rtol=tolerance.rel,
            check_error_stat=tolerance.check,
            error_quantile=tolerance.quantile,
        )
    results = (IterationResult({"y": array}, runner_name="r") for array in (candidate, baseline))
    return bool(compare(*results)["y"])


def shares(tolerance, baseline, candidate):
    """What Polygraphy compares, as shares of what it allows: absolute and relative errors."""
    up = np.promote_types(baseline.dtype, np.float32) if baseline.dtype.kind == "f" else np.float64
    b, c = baseline.astype(up), candidate.astype(up)
    e = np.abs(c - b)
    statistic = {
        "max": np.max,
        "mean": np.mean,
        "median": np.median,
        "quantile": lambda a: np.quantile(a, tolerance.quantile),
    }.get(tolerance.check)
    if statistic is None:
        allowed = np.maximum(tolerance.abs, tolerance.rel * np.abs(b.astype(np.float64)))
        return [float(np.max(e / np.maximum(allowed, 1e-300)))]
    relative = e / np.where(b == 0, np.finfo(np.float64).eps, np.abs(b))
    return [
        float(statistic(kind)) / max(limit, 1e-300)
        for kind, limit in ((e.astype(np.float64), tolerance.abs), (relative, tolerance.rel))
    ]


@st.composite
def compared(draw):
    """A tolerance, two outputs about as far apart as it allows, and where to cut them into batches."""
    shape = draw(st.sampled_from([(1,), (2,), (3, 1), (4, 7), (9, 3, 2), (2, 300)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64, np.int32]))
    size = 100.0 if dtype is np.int32 else draw(st.sampled_from([1.0, 30.0]))
    limits = [0.0, 1.0, 2.0] if dtype is np.int32 else [0.0, 1e-3, 0.01, 0.1]
    tolerance = Tolerance(
        draw(st.sampled_from(limits)),
        draw(st.sampled_from([0.0, 1e-3, 0.01, 0.1])),
        draw(st.sampled_from(CHECKS)),
        draw(st.sampled_from([0.0, 0.2, 0.5, 0.9, 0.99, 1.0])),
    )
    baseline = (rng.normal(0, size, shape)).astype(dtype)
    baseline[rng.random(shape) < 0.05] = 1 if dtype is np.int32 else 0
    noise = rng.normal(0, 1, shape) * draw(st.sampled_from([0, 0.3, 1, 2])) * max(tolerance.abs, 1e-3)
    wide = baseline + noise * np.where(rng.random(shape) < 0.3, np.abs(baseline) + 1, 1)
    cuts = sorted(draw(st.sets(st.integers(1, max(shape[0] - 1, 1)), max_size=2)) - {shape[0]})
    return tolerance, baseline, (np.rint(wide) if dtype is np.int32 else wide).astype(dtype), cuts


@settings(max_examples=150, deadline=None)
@given(data=compared())
def test_the_verdict_is_polygraphys_however_the_samples_are_batched(data):
    tolerance, baseline, candidate, cuts = data
    assume(baseline.dtype.kind == "f" or (baseline != 0).all())  # it divides integers by 0
    found = used(tolerance, baseline, candidate, cuts)
    parts = shares(tolerance, baseline, candidate)
    if tolerance.check in ("mean", "median", "quantile"):  # where Polygraphy rounds to float32
        assume(all(abs(part - 1) > 1e-5 for part in parts))
    assert (found <= 1) == polygraphy_passes(tolerance, baseline, candidate)


@pytest.mark.parametrize("check", CHECKS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_value_is_the_share_of_the_tolerance_that_is_used(check, seed):
    rng = np.random.default_rng(seed)
    tolerance = Tolerance(0.05, 0.02, check, 0.9)
    baseline = rng.normal(0, 1, (40, 50)).astype(np.float32)
    candidate = baseline + rng.normal(0, 10 ** rng.uniform(-4, 1), baseline.shape).astype(np.float32)
    found = used(tolerance, baseline, candidate, [7, 8])
    close = 0.05 if check in ("median", "quantile") else 1e-6
    assert found == pytest.approx(min(shares(tolerance, baseline, candidate)), rel=close)


@pytest.mark.parametrize("check", CHECKS)
def test_some_of_the_samples_are_as_if_they_were_all(check):
    rng = np.random.default_rng(2)
    tolerance = Tolerance(0.05, 0.02, check, 0.7)
    baseline = rng.normal(0, 1, (8, 5)).astype(np.float32)
    candidate = baseline + rng.normal(0, 0.05, baseline.shape).astype(np.float32)
    some = [3, 3, 0, 6]
    alone = used(tolerance, baseline[some], candidate[some])
    assert used(tolerance, baseline, candidate, samples=some) == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("check", CHECKS)
def test_edges(check):
    y = np.float32([[1.0, 2.0], [0.0, -3.0]])
    assert used(Tolerance(0.0, 0.0, check), y, y.copy()) == 0
    assert used(Tolerance(0.0, 0.0, check, 1.0), y, y + np.float32(1)) == np.inf
    assert np.isnan(used(Tolerance(check=check), y[:, :0], y[:, :0]))
    exact = used(Tolerance(0.5, 0.0, check), y, y + np.float32(0.5))
    assert exact == (pytest.approx(1, rel=0.05) if check in ("median", "quantile") else 1)
    assert exact <= 1
    same = np.float32([[np.inf, 1.0], [0.0, np.nan]])
    assert used(Tolerance(1.0, 0.0, check), same, same.copy()) == 0


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("limit", [1e-3, float(np.float32(1e-3))])
def test_an_error_at_the_limit_is_where_polygraphy_puts_it(check, limit):
    """float32(1e-3) is above 1e-3."""
    y, z = np.zeros((1, 1), np.float32), np.full((1, 1), 1e-3, np.float32)
    tolerance = Tolerance(limit, 0.0, check)
    assert (used(tolerance, y, z) <= 1) == (limit != 1e-3)
    if check != "elemwise":  # which older ones compare in float32
        assert polygraphy_passes(tolerance, y, z) == (limit != 1e-3)
