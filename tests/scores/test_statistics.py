"""Intervals of scores, what they say of a verdict, and the samples that carry the error."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judged import compare_output, rows_of

from pytest_int8acc import CaseResult, OutputResult, Score
from pytest_int8acc.case.perturbation import repeated
from pytest_int8acc.results import Interval
from pytest_int8acc.scores.criteria import OutputLimits
from pytest_int8acc.scores.metrics import METRICS
from pytest_int8acc.scores.rows import Options, Tolerance
from pytest_int8acc.scores.statistics import (
    binomial_cdf,
    drop_interval,
    interval,
    least_detectable,
    mcnemar,
    samples_to_detect,
    share_interval,
    t_quantile,
)
from pytest_int8acc.tensors import Array


def outputs(samples: int, noise: float, seed: int = 0) -> tuple[Array, Array]:
    """Of baseline and INT8, [samples, 50]."""
    rng = np.random.default_rng(seed)
    b = rng.normal(size=(samples, 50)).astype(np.float32)
    scale = noise * rng.lognormal(0, 0.5, (samples, 1))
    return b, (b + scale * rng.normal(size=b.shape)).astype(np.float32)


def compared(b: Array, c: Array, metric: str, limit: float) -> OutputResult:
    return rows_of([b], [c], OutputLimits("y", {metric: limit})).result(intervals=True)


def score(b: Array, c: Array, metric: str = "sqnr_db", limit: float = 20.0) -> Score:
    return compared(b, c, metric, limit).scores[0]


@pytest.mark.parametrize("metric", [m for m in METRICS.values() if "floats" in m.kinds], ids=lambda m: m.name)
@pytest.mark.parametrize("samples", [64, 700])
def test_other_samples_of_a_kind_give_scores_within_the_interval(metric: Any, samples: int) -> None:
    b, c = outputs(samples, 0.5)
    value = score(b, c, metric.name, 0.5).value
    near = 1 - 1.1 * (1 - value) if metric.bound == "min" else 1.1 * value
    if metric.name.endswith("_db"):
        near = value - 1
    interval = score(b, c, metric.name, near).interval
    assert interval is not None
    rng, within = np.random.default_rng(1), 0
    for _ in range(100):
        rows = rng.integers(0, samples, samples)
        rows[0] = np.abs(b).max(axis=1).argmax()  # the floor of relative errors is that of all samples
        again = compare_output("y", [b[rows]], [c[rows]], [OutputLimits("y", {metric.name: near})])
        within += interval.low <= again.scores[0].value <= interval.high
    assert within >= (100 if interval.confidence > 0.99 else 80)


def test_a_tolerance_without_a_relative_part_has_an_interval() -> None:
    b, c = outputs(32, 0.5)
    tolerance = Tolerance(abs=0.5, rel=0.0, check="mean")
    limits = OutputLimits("y", limits={"tolerance": 1.0}, options=Options(tolerance=tolerance))
    interval = rows_of([b], [c], limits).result(intervals=True).scores[0].interval
    assert interval is not None
    assert math.isfinite(interval.high)


def test_more_samples_leave_less_doubt() -> None:
    widths = [
        interval.high - interval.low
        for samples in (16, 256, 4096)
        if (interval := score(*outputs(samples, 0.1)).interval) is not None
    ]
    assert len(widths) == 3
    assert widths[0] > 2 * widths[1] > 4 * widths[2] > 0


def test_a_score_that_keeps_its_limit_by_far_is_not_drawn_again() -> None:
    assert score(*outputs(64, 0.001)).interval is None


def test_one_sample_that_carries_the_error_makes_a_miss_unsteady() -> None:
    b, c = outputs(48, 0.001)
    c[17] += 3
    found = compared(b, c, "sqnr_db", 20.0)
    missed = found.scores[0]
    assert found.heavy == (17,)
    assert found.samples == 48
    assert not missed.passed
    assert not missed.steady
    assert missed.interval is not None
    assert missed.interval.high > 20


def test_errors_spread_over_all_samples_are_no_sample_s() -> None:
    b, c = outputs(48, 0.1)
    assert compared(b, c, "sqnr_db", 20.0).heavy == ()


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
def test_heavy_samples_carry_nine_tenths_and_none_less(errors: list[float]) -> None:
    b = np.ones((len(errors), 1))
    found = compared(b, b + np.sqrt(np.array(errors))[:, None], "sqnr_db", 20.0).heavy
    held = np.square(np.sqrt(np.array(errors)))
    if found:
        assert len(found) <= len(errors) / 4
        assert held[list(found)].sum() >= 0.9 * held.sum() * (1 - 1e-9)
        assert held[list(found[:-1])].sum() < 0.9 * held.sum() * (1 + 1e-9)


NEAR = Score("y", "sqnr_db", 20.5, 20.0)


@given(st.lists(st.floats(-300, 300), max_size=9))
def test_an_interval_holds_all_that_was_measured(values: list[float]) -> None:
    found = repeated(NEAR, values)
    assert found is not None
    assert found.low <= min([20.5, *values])
    assert found.high >= max([20.5, *values])


def test_what_is_no_number_gives_no_interval() -> None:
    assert repeated(NEAR, [math.nan, 20.0]) is None
    assert repeated(NEAR, [math.inf]) == Interval(20.5, math.inf)


@given(
    st.sampled_from([m for m in METRICS.values() if m.name != "agreement"]),
    st.floats(0.01, 100),
    st.floats(0.01, 0.999),
)
def test_the_value_at_a_normalized_loss_has_that_loss(metric, normalized_loss, limit) -> None:
    plain = Score("y", metric.name, 0.0, limit, metric.bound)
    assert replace(plain, value=plain.at_normalized_loss(normalized_loss)).normalized_loss == pytest.approx(
        normalized_loss, rel=1e-6
    )


@given(st.integers(0, 60), st.integers(1, 60), st.sampled_from([0.9, 0.95, 0.99]))
@settings(deadline=None)
def test_the_ends_of_an_exact_interval_leave_the_error_s_half_to_each_tail(
    hits: int, trials: int, confidence: float
) -> None:
    hits = min(hits, trials)
    low, high = share_interval(hits, trials, confidence)

    def at_most(number: int, chance: float) -> float:
        terms = (math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(number + 1))
        return sum(terms)

    half = (1 - confidence) / 2
    assert low == 0 if not hits else 1 - at_most(hits - 1, low) == pytest.approx(half, rel=1e-6)
    assert high == 1 if hits == trials else at_most(hits, high) == pytest.approx(half, rel=1e-6)


@given(st.integers(0, 40), st.integers(1, 60), st.floats(0.001, 0.999))
def test_the_binomial_distribution_is_the_sum_of_its_terms(hits: int, more: int, chance: float) -> None:
    trials = hits + more
    terms = [math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(hits + 1)]
    assert binomial_cdf(hits, trials, chance) == pytest.approx(min(sum(terms), 1.0), abs=1e-10)


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [(0.975, 1, 12.7062), (0.975, 10, 2.22814), (0.9995, 15, 4.07277), (0.025, 30, -2.04227)],
)
def test_quantiles_of_student_s_t(probability: float, freedom: float, expected: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("lost", "gained", "p"), [(6, 0, 0.03125), (10, 2, 0.0385742), (5, 5, 1.0), (0, 0, 1.0)]
)
def test_mcnemar_s_exact_test(lost: int, gained: int, p: float) -> None:
    assert mcnemar(lost, gained) == pytest.approx(p, rel=1e-5)
    assert mcnemar(gained, lost) == mcnemar(lost, gained)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(60, 400), st.floats(0.5, 0.99))
@settings(deadline=None, max_examples=30)
def test_the_interval_of_a_drop_turns_with_its_sign_and_grows_with_confidence(
    lost: int, gained: int, samples: int, confidence: float
) -> None:
    low, high = drop_interval(lost, gained, samples, confidence)
    assert low <= (lost - gained) / samples <= high
    assert drop_interval(gained, lost, samples, confidence) == pytest.approx((-high, -low), abs=1e-9)
    wider = drop_interval(lost, gained, samples, confidence + 0.005)
    assert wider[0] <= low <= high <= wider[1]


def test_without_a_disagreement_the_rule_of_three_bounds_the_share() -> None:
    b = np.eye(4, dtype=np.float32)[np.arange(100) % 4]
    found = score(b, b, "top1_agreement", 0.99)
    assert found.interval is not None
    assert found.interval.low == pytest.approx(0.025 ** (1 / 100))
    assert not found.steady
    needed = found.interval.needed
    assert needed == math.ceil(math.log(0.025) / math.log(0.99))
    enough = np.eye(4, dtype=np.float32)[np.arange(needed) % 4]
    sure = score(enough, enough, "top1_agreement", 0.99)
    assert (sure.steady, sure.passed) == (True, True)


def test_so_many_samples_as_needed_decide() -> None:
    first = score(*outputs(64, 0.1), limit=20.0)
    assert first.interval is not None
    near = score(*outputs(64, 0.1), limit=first.value - 0.3)
    assert not near.steady
    assert near.interval is not None
    assert near.interval.needed is not None
    assert near.interval.needed > 64
    many = score(*outputs(4 * near.interval.needed, 0.1))
    assert replace(many, limit=many.value - 0.3).steady


@pytest.mark.parametrize("metric", ["sqnr_db", "cosine", "mean_abs", "top1_agreement", "max_abs"])
def test_samples_that_belong_together_count_once(metric: str) -> None:
    """Each sample occurs four times. As groups they have the interval of the samples."""
    b, c = outputs(64, 0.5)
    limit = {"sqnr_db": 8.0, "cosine": 0.9, "mean_abs": 0.5, "top1_agreement": 0.8, "max_abs": 3.0}[metric]
    record = METRICS[metric]
    single, repeated_rows = (
        record.measure.rows(x, y, len(x), Options(), 0.0)
        for x, y in ((b, c), (b.repeat(4, axis=0), c.repeat(4, axis=0)))
    )
    plain = Score("y", metric, record(single), limit, record.bound)
    alone = interval(plain, single, record)
    together = interval(plain, repeated_rows, record, groups=np.arange(256) // 4)
    apart = interval(plain, repeated_rows, record)
    assert alone is not None
    assert together is not None
    assert apart is not None
    if metric == "top1_agreement":  # elements of a group count as those of one sample with several
        assert together.high - together.low > 1.5 * (apart.high - apart.low)
        return
    assert (together.low, together.high) == pytest.approx((alone.low, alone.high), rel=1e-6)
    if metric != "max_abs":
        assert together.high - together.low > 1.5 * (apart.high - apart.low)


def test_few_samples_say_nothing_of_the_worst_of_others() -> None:
    found = score(*outputs(10, 0.5), metric="max_abs", limit=4.0)
    assert found.interval is not None
    assert (found.steady, found.interval.high, found.interval.needed) == (False, math.inf, 20)
    missed = score(*outputs(10, 0.5), metric="max_abs", limit=0.1)
    assert (missed.steady, missed.passed) == (True, False)


@pytest.mark.parametrize("drop", [0.005, 0.02, 0.2])
def test_so_many_samples_detect_a_drop(drop: float) -> None:
    many = samples_to_detect(drop)
    assert least_detectable(many) <= drop < least_detectable(many - 1)
    assert 6 / many < drop


def case(*scores: Score, problem: str = "") -> CaseResult:
    output = OutputResult("y", "float32", "(4, 2)", scores, problem=problem)
    return CaseResult("digits", "digits.int8acc.yaml", 4, "x.npz", "FP16", "INT8", "ONNX Runtime", (output,))


def test_a_verdict_is_unsteady_where_a_score_that_decides_it_is() -> None:
    sure = Score("y", "cosine", 0.9, 0.99, interval=Interval(0.8, 0.95))
    doubtful = Score("y", "sqnr_db", 19.0, 20.0, interval=Interval(18.0, 21.0))
    kept = Score("y", "sqnr_db", 20.5, 20.0, interval=Interval(18.0, 21.0))
    assert case(doubtful).unsteady == (doubtful,)
    assert case(kept).unsteady == (kept,)
    assert case(doubtful, sure).unsteady == ()  # it fails all the same
    assert case(sure, kept).unsteady == ()
    assert case(doubtful, problem="NaN").unsteady == ()
    assert case(kept, doubtful).unsteady == (doubtful,)


@pytest.mark.parametrize(
    ("score", "normalized_loss"),
    [
        (Score("y", "cosine", 0.5), 0.0),
        (Score("engine", "speedup", 3.0, 1.5), 0.5),
        (Score("engine", "speedup", 0.0, 1.5), math.inf),
        (Score("y", "sqnr_db", 17.0, 20.0), 10**0.3),
        (Score("y", "sqnr_db", math.inf, 20.0), 0.0),
        (Score("y", "sqnr_db", -math.inf, 20.0), 1e300),
        (Score("y", "psnr_db", 30.0, 20.0), 0.1),
        (Score("y", "cosine", 0.98, 0.99), 2.0),
        (Score("y", "cosine", 1.0, 1.0), 0.0),
        (Score("y", "cosine", 0.9999, 1.0), math.inf),
        (Score("y", "cosine", math.nan, 0.9), math.inf),
        (Score("y", "max_abs", 3.0, 2.0, bound="max"), 1.5),
        (Score("y", "max_abs", 0.0, 0.0, bound="max"), 0.0),
        (Score("y", "max_abs", 0.1, 0.0, bound="max"), math.inf),
        (Score("y", "agreement", 0.97, 0.99), 3.0),
        (Score("y", "agreement", math.nextafter(0.001, 0), 0.001), 1.0),
        (Score("m", "top1", 0.79, 0.8 - 0.02, baseline=0.8), 0.5),
        (Score("m", "top1", 0.9, 0.78, baseline=0.8), 0.0),
        (Score("m", "top1", 0.7, 0.9, baseline=0.8), math.inf),
        (Score("m", "loss", 1.3, 1.2, bound="max", baseline=1.0), 1.5),
        (Score("m", "loss", 0.9, 1.2, bound="max", baseline=1.0), 0.0),
    ],
)
def test_normalized_loss_is_what_is_lost_over_what_may_be(score: Score, normalized_loss: float) -> None:
    assert score.normalized_loss == pytest.approx(normalized_loss)
    assert (score.normalized_loss <= 1) == score.passed
