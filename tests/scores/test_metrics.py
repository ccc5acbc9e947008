"""Each metric against a plain NumPy formula over all samples at once, and the rules at its edges."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from judged import score
from spec_texts import OUTPUT_METRICS

from pytest_int8acc.scores.metrics import METRICS
from pytest_int8acc.scores.rows import AT, errors

FLOATS = [m for m in METRICS if m != "agreement"]


def log_softmax(rows):
    return rows - np.logaddexp.reduce(rows, axis=-1, keepdims=True)


def reference(metric, b, c, axis):
    """The metric written down once more, all samples in one float64 array."""
    b, c = b.astype(np.float64), c.astype(np.float64)
    e = np.abs(b - c)
    rel = e / np.maximum(np.abs(b), 1e-3 * np.abs(b).max())
    rows_b, rows_c = (np.moveaxis(a, axis, -1).reshape(-1, a.shape[axis]) for a in (b, c))
    log_p, log_q = log_softmax(rows_b), log_softmax(rows_c)
    top = rows_b.argmax(axis=1)
    # What equals the baseline's top class in the candidate is sorted before it.
    lowered = rows_c.copy()
    lowered[np.arange(len(top)), top] = np.nextafter(lowered[np.arange(len(top)), top], -np.inf)
    order = np.argsort(-lowered, axis=1, kind="stable")
    formulas = {
        "cosine": lambda: np.vdot(b, c) / np.linalg.norm(b.ravel()) / np.linalg.norm(c.ravel()),
        "sqnr_db": lambda: 20 * np.log10(np.linalg.norm(b.ravel()) / np.linalg.norm(e.ravel())),
        "psnr_db": lambda: 20 * np.log10(np.abs(b).max() / np.sqrt(np.mean(e**2))),
        "max_abs": e.max,
        "mean_abs": e.mean,
        "mse": (e**2).mean,
        "tolerance": (e / np.maximum(1e-5, 1e-5 * np.abs(b))).max,
        "max_rel": rel.max,
        "mean_rel": rel.mean,
        "kl": lambda: np.mean(np.sum(np.exp(log_p) * (log_p - log_q), axis=1)),
        "top1_agreement": lambda: np.mean(top == order[:, 0]),
        "top5_agreement": lambda: np.mean([t in five for t, five in zip(top, order[:, :5], strict=True)]),
        "agreement": lambda: np.mean(b == c),
    }
    return formulas[metric]()


@st.composite
def outputs(draw):
    """Baseline and candidate of random rank and size, a class axis, and where to cut them into batches."""
    shape = draw(hnp.array_shapes(min_dims=2, max_dims=4, min_side=1, max_side=8))
    axis = draw(st.integers(1, len(shape) - 1))
    shape = tuple(max(n, 6) if i == axis else n for i, n in enumerate(shape))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = 10.0 ** draw(st.integers(-4, 4))
    noise = draw(st.sampled_from([1e-6, 1e-2, 1.0]))
    baseline = (rng.normal(draw(st.sampled_from([0, 3])), 1, shape) * scale).astype(np.float32)
    candidate = (baseline + rng.normal(0, noise, shape) * scale).astype(np.float32)
    candidate.flat[0] += np.float32(scale)  # never identical
    cuts = sorted(draw(st.sets(st.integers(1, shape[0]), max_size=4)) | {0, shape[0]})
    return baseline, candidate, axis - draw(st.sampled_from([0, len(shape)])), cuts


@pytest.mark.parametrize("metric", FLOATS)
@settings(max_examples=40, deadline=None)
@given(data=outputs())
def test_metric_equals_its_formula_however_the_samples_are_batched(metric, data):
    baseline, candidate, axis, cuts = data
    parts = [slice(a, b) for a, b in pairwise(cuts)]
    got = score(metric, [baseline[p] for p in parts], [candidate[p] for p in parts], axis=axis)
    assert got == pytest.approx(score(metric, baseline, candidate, axis=axis), rel=1e-9, abs=1e-12)
    assert got == pytest.approx(reference(metric, baseline, candidate, axis), rel=1e-7, abs=1e-12)


@pytest.mark.parametrize("metric", FLOATS)
def test_batches_too_large_for_one_piece(metric):
    rng = np.random.default_rng(1)
    baseline = rng.normal(0, 1, (37, 12, 700)).astype(np.float32)
    candidate = baseline + rng.normal(0, 0.1, baseline.shape).astype(np.float32)
    assert baseline.size > 2**18
    got = score(metric, baseline, candidate, axis=1)
    assert got == pytest.approx(reference(metric, baseline, candidate, 1), rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_agreement_equals_its_formula_for_every_exact_kind(data):
    kind = data.draw(st.sampled_from([np.int64, np.uint8, np.bool_, "U2"]))
    values = {"U2": ["a", "b"]}.get(kind, [0, 1])
    shape = data.draw(hnp.array_shapes(max_dims=3, max_side=6))
    baseline, candidate = (
        data.draw(hnp.arrays(kind, shape, elements=st.sampled_from(values))) for _ in range(2)
    )
    cut = data.draw(st.integers(0, shape[0]))
    got = score("agreement", [baseline[:cut], baseline[cut:]], [candidate[:cut], candidate[cut:]])
    assert got == pytest.approx(np.mean(baseline == candidate), rel=1e-12)


def test_agreement_takes_strings_as_onnxruntime_gives_them():
    baseline = np.array([["cat"], ["dog"], ["cat"]], dtype=object)
    candidate = np.array([["cat"], ["cat"], ["cat"]], dtype=object)
    assert score("agreement", baseline, candidate) == pytest.approx(2 / 3)


RNG = np.random.default_rng(7)
X = RNG.normal(0, 3, (64, 10)).astype(np.float32)


def perfect(metric):
    """The value of equal outputs."""
    if metric.endswith("_db"):
        return math.inf
    return 1.0 if METRICS[metric].bound == "min" else 0.0


@pytest.mark.parametrize("metric", FLOATS)
@pytest.mark.parametrize("array", [X, np.zeros((4, 10), np.float32)], ids=["values", "zeros"])
def test_identical_outputs_reach_the_perfect_value_exactly(metric, array):
    assert score(metric, array, array.copy()) == perfect(metric)


def test_cosine_is_blind_to_a_factor_and_sqnr_is_not():
    assert score("cosine", X, 2 * X) == pytest.approx(1.0, abs=1e-15)
    assert score("cosine", X, -X) == pytest.approx(-1.0, abs=1e-15)
    assert score("sqnr_db", X, 2 * X) == pytest.approx(0.0, abs=1e-6)
    assert score("sqnr_db", X, 1.1 * X) == pytest.approx(20.0, abs=1e-3)


@settings(max_examples=50, deadline=None)
@given(
    x=hnp.arrays(np.float32, (3, 8), elements=st.floats(-(2.0**99), 2.0**99, width=32)),
    factor=st.floats(-4, 4),
)
def test_cosine_stays_between_minus_one_and_one(x, factor):
    assert -1.0 <= score("cosine", x, x.astype(np.float64) * factor) <= 1.0


def test_baseline_of_zeros():
    zeros, ones = np.zeros((2, 6)), np.ones((2, 6))
    assert score("sqnr_db", zeros, ones) == -math.inf
    assert score("psnr_db", zeros, ones) == -math.inf
    assert score("cosine", zeros, ones) == 0.0
    assert score("cosine", ones, zeros) == 0.0
    assert score("max_rel", zeros, ones) == math.inf
    assert score("mean_rel", zeros, ones) == math.inf


def test_psnr_peak_is_the_greatest_magnitude_also_of_negative_values():
    baseline = np.array([[-10.0, -1.0]])
    assert score("psnr_db", baseline, baseline + 0.1) == pytest.approx(40.0)


def test_relative_errors_have_a_floor_that_can_be_set():
    baseline, candidate = np.array([[100.0, 0.0]]), np.array([[100.0, 0.1]])
    assert score("max_rel", baseline, candidate) == pytest.approx(0.1 / (1e-3 * 100))
    assert score("max_rel", baseline, candidate, rel_floor=0.01) == pytest.approx(0.1 / (0.01 * 100))
    assert score("mean_rel", baseline, candidate, rel_floor=0.01) == pytest.approx(0.05)


def test_float16_and_int8_extremes_do_not_overflow():
    half = np.full((2, 6), 60000, np.float16)
    assert score("mean_abs", half, -half) == 120000
    small = np.array([[-128, 127]], np.int8)
    assert score("max_abs", small, small[:, ::-1]) == 255


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e4])
def test_kl_is_stable_far_from_zero_and_known_for_two_classes(shift):
    p, q = 0.9, 0.6
    baseline = np.log([[p, 1 - p]]) + shift
    candidate = np.log([[q, 1 - q]]) - shift
    expected = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    assert score("kl", baseline, candidate) == pytest.approx(expected, rel=1e-6)
    assert math.isfinite(score("kl", np.array([[1e30, 0.0]]), np.array([[0.0, 1.0]])))


def test_kl_and_top1_take_masked_classes_of_minus_infinity():
    baseline = np.array([[1.0, 2.0, -np.inf], [0.0, 1.0, -np.inf]])
    candidate = np.array([[1.5, 2.0, -np.inf], [1.0, 0.0, -np.inf]])
    assert score("kl", baseline, candidate) == pytest.approx(score("kl", baseline[:, :2], candidate[:, :2]))
    assert score("top1_agreement", baseline, candidate) == 0.5


def test_a_tie_that_the_candidate_alone_has_is_no_agreement():
    baseline = np.array([[5, 5, 0, 0, 0, 0, 0.0]])  # classes 0 and 1 tie
    same_tie = np.array([[3, 3, 0, 0, 0, 0, 0.0]])
    other_tie = np.array([[2, 3, 3, 0, 0, 0, 0.0]])
    assert score("top1_agreement", baseline, same_tie) == 1.0
    assert score("top1_agreement", baseline, other_tie) == 0.0
    for top in range(7):
        one = np.eye(7)[[top]]
        assert score("top1_agreement", one, one) == 1.0
        assert score("top1_agreement", one, np.zeros((1, 7))) == 0.0
        assert score("top5_agreement", one, np.zeros((1, 7))) == 0.0


def test_top_5_means_the_greatest_class_is_among_five():
    baseline = np.eye(8)[[0, 0, 0]]
    ranks = np.array([[9, 8, 7, 6, 5, 4, 3, 2], [5, 9, 8, 7, 6, 4, 3, 2], [4, 9, 8, 7, 6, 5, 3, 2.0]])
    assert score("top5_agreement", baseline, ranks) == pytest.approx(2 / 3)
    assert score("top1_agreement", baseline, ranks) == pytest.approx(1 / 3)


def test_rows_run_over_every_position_outside_the_class_axis():
    baseline = np.zeros((2, 3, 4, 5), np.float32)
    baseline[:, 1] = 1
    candidate = baseline.copy()
    candidate[0, 2, 0, 0] = 2  # one pixel of 2 * 4 * 5 changes class
    assert score("top1_agreement", baseline, candidate, axis=1) == pytest.approx(39 / 40)


@pytest.mark.parametrize("metric", FLOATS)
@pytest.mark.parametrize("hole", [np.nan, np.inf, -np.inf])
def test_the_same_nan_or_infinity_in_both_is_left_out(metric, hole):
    candidate = X + RNG.normal(0, 0.1, X.shape).astype(np.float32)
    extra = np.full((1, 10), hole, np.float32)
    with_hole = score(metric, [X[:9], extra, X[9:]], [candidate[:9], extra, candidate[9:]])
    assert with_hole == pytest.approx(score(metric, X, candidate), rel=1e-9)


@pytest.mark.parametrize("metric", FLOATS)
@pytest.mark.parametrize("hole", [np.nan, np.inf])
@pytest.mark.parametrize("first", [True, False])
def test_non_finite_candidate_never_scores_as_perfect(metric, hole, first):
    bad = X.copy()
    bad[0 if first else -1, X[0 if first else -1].argmin()] = hole
    got = score(metric, [X[:3], X[3:]], [bad[:3], bad[3:]])
    limit = 1.0 if METRICS[metric].bound == "min" else 0.0
    assert not (got >= limit if METRICS[metric].bound == "min" else got <= limit)


@pytest.mark.parametrize("metric", ["max_abs", "mean_abs", "max_rel", "mean_rel", "kl", "top1_agreement"])
def test_nothing_to_compare_is_nan(metric):
    empty = np.zeros((0, 6), np.float32)
    assert math.isnan(score(metric, empty, empty))


def test_what_is_not_finite_is_counted_by_side():
    b = np.zeros((5, 3), np.float32)
    c = b.copy()
    b[0, 0] = c[0, 0] = np.nan
    b[1, 0] = c[1, 0] = -np.inf
    b[2, 0], c[2, 0] = np.inf, -np.inf  # not the same
    c[3, 1:] = np.nan
    b[4, 1] = np.nan
    rows = errors(b, c, 5)
    assert rows[:, AT["same"]].tolist() == [1, 1, 0, 0, 0]
    assert rows[:, AT["bad"]].tolist() == [0, 0, 1, 0, 1]
    assert rows[:, AT["lost"]].tolist() == [0, 0, 0, 2, 0]


def test_no_warning_escapes(recwarn):
    holes = np.array([[np.nan, np.inf, -np.inf, 0, 1e300, 1]])
    for metric in FLOATS:
        score(metric, holes, holes[:, ::-1])
        score(metric, np.zeros((1, 6)), holes)
    assert not recwarn.list


def test_the_spec_knows_exactly_these_metrics():
    assert set(METRICS) == OUTPUT_METRICS


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_a_record_agrees_with_its_function(metric):
    assert metric.name == metric.value.__name__
    assert metric.value.__doc__
    array = X if "floats" in metric.kinds else X.astype(np.int64)
    worse, best = score(metric.name, array, -array), score(metric.name, array, array)
    assert worse < best if metric.bound == "min" else worse > best
