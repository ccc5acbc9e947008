"""Outputs judged by limits, by default limits, and what forbids judging them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from judged import compare_output, compare_outputs, judged, rows_of

from pytest_int8acc import CriterionError
from pytest_int8acc.scores.criteria import MetricLimit, OutputLimits
from pytest_int8acc.scores.judge import Judge
from pytest_int8acc.scores.rows import Options

RNG = np.random.default_rng(5)
LOGITS = RNG.normal(0, 3, (30, 10)).astype(np.float32)
NEAR = LOGITS + RNG.normal(0, 0.01, LOGITS.shape).astype(np.float32)
FAR = LOGITS + RNG.normal(0, 3, LOGITS.shape).astype(np.float32)
IDS = np.arange(30, dtype=np.int64)


def batches(array):
    return [array[:8], array[8:16], array[16:]]


def limits(output="*", axis=-1, **values):
    return OutputLimits(output, values, Options(axis))


def one(baseline, candidate, *criteria, noise=None):
    if noise is None:
        return compare_output("logits", batches(baseline), batches(candidate), criteria)
    first, second, third = map(batches, (baseline, candidate, noise))
    again = rows_of(first, third, *criteria, name="logits")
    return rows_of(first, second, *criteria, name="logits").result(again)


def metrics(result):
    return [score.metric for score in result.scores]


def test_judged_scores_come_first_in_their_order_then_the_standard_ones():
    result = one(LOGITS, NEAR, limits(kl=0.1, cosine=0.99))
    assert metrics(result) == ["kl", "cosine", "sqnr_db", "max_abs", "mean_abs", "top1_agreement"]
    assert [score.limit for score in result.scores] == [0.1, 0.99, None, None, None, None]
    assert [score.bound for score in result.scores] == ["max", "min", "min", "max", "max", "min"]
    assert {score.subject for score in result.scores} == {"logits"}
    assert result.passed
    assert (result.name, result.dtype, result.shape) == ("logits", "float32", "(30, 10)")
    assert result.fit.slope == pytest.approx(1, abs=0.01)
    assert result.worst_sample in range(30)


def test_same_metric_limited_twice_is_judged_twice():
    result = one(LOGITS, NEAR, limits(cosine=0.9), limits("logits", cosine=1.0))
    assert [(s.limit, s.passed) for s in result.scores[:2]] == [(0.9, True), (1.0, False)]
    assert not result.passed
    assert metrics(result).count("cosine") == 2


@pytest.mark.parametrize(
    ("metric", "loose", "strict"),
    [
        ("cosine", 0.5, 0.99999),
        ("sqnr_db", -20, 60),
        ("psnr_db", -20, 90),
        ("max_abs", 100, 0.001),
        ("mean_abs", 100, 0.001),
        ("max_rel", 1e6, 1e-6),
        ("mean_rel", 1e6, 1e-6),
        ("kl", 100, 1e-6),
        ("top1_agreement", 0.1, 1.0),
        ("top5_agreement", 0.1, 1.0),
    ],
)
def test_every_limit_can_pass_and_fail(metric, loose, strict):
    assert one(LOGITS, FAR, limits(**{metric: loose})).passed
    assert not one(LOGITS, FAR, limits(**{metric: strict})).passed


def test_axis_and_floor_of_a_criterion_reach_its_metrics():
    image = RNG.normal(0, 1, (4, 3, 5, 5)).astype(np.float32)
    other = image[:, ::-1].copy()
    by_channel = compare_output("seg", [image], [other], [limits(axis=1, top1_agreement=0.5)])
    expected = np.mean(image.argmax(1) == other.argmax(1))
    assert by_channel.scores[0].value == pytest.approx(expected)
    loose, strict = (
        compare_output(
            "seg",
            [image],
            [other],
            [OutputLimits("*", limits={"max_rel": 1}, options=Options(rel_floor=floor))],
        )
        for floor in (1.0, 1e-6)
    )
    assert loose.scores[0].value < strict.scores[0].value


def test_top1_is_reported_only_for_samples_by_classes():
    assert "top1_agreement" in metrics(one(LOGITS, NEAR))
    assert "top1_agreement" in metrics(one(LOGITS[:, :2], NEAR[:, :2]))
    for array in (LOGITS[:, :1], LOGITS[:, :, None], LOGITS[:, 0]):
        assert metrics(one(array, array)) == ["cosine", "sqnr_db", "max_abs", "mean_abs"]


@pytest.mark.parametrize("array", [IDS, IDS > 3, IDS.astype("U3"), IDS.astype(str).astype(object)])
def test_exact_outputs_report_agreement_and_no_line(array):
    result = one(array, array, limits(agreement=1.0))
    assert metrics(result) == ["agreement"]
    assert result.passed
    assert (result.fit, result.worst_sample) == (None, None)


def test_float_and_integer_widths_may_differ():
    assert one(LOGITS, NEAR.astype(np.float16), limits(cosine=0.99)).passed
    assert one(IDS, IDS.astype(np.int32), limits(agreement=1.0)).passed


# Noise


def test_noise_is_the_metric_between_two_runs_of_the_baseline():
    result = one(LOGITS, NEAR, limits(sqnr_db=20, max_abs=1e-9), noise=LOGITS + np.float32(1e-3))
    sqnr, worst = result.scores[:2]
    assert sqnr.noise == pytest.approx(10 * math.log10(np.mean(LOGITS.astype(float) ** 2) / 1e-6), abs=0.1)
    assert worst.noise == pytest.approx(1e-3, rel=1e-2)
    assert (sqnr.limit_in_noise, worst.limit_in_noise) == (False, True)


def test_noise_of_a_deterministic_baseline_is_the_perfect_value():
    result = one(LOGITS, NEAR, limits(cosine=1.0), noise=LOGITS.copy())
    assert [s.noise for s in result.scores] == [1.0, math.inf, 0.0, 0.0, 1.0]
    assert not result.scores[0].limit_in_noise


def test_noise_unknown_where_the_second_run_has_another_shape_or_is_not_finite():
    result = one(LOGITS, NEAR, limits(cosine=0.9), noise=LOGITS[:, :9])
    assert result.scores[0].noise is None
    assert result.note == "two runs of the baseline differ in shape: noise unknown"
    broken = LOGITS.copy()
    broken[3, 3] = np.nan
    result = one(LOGITS, NEAR, limits(cosine=0.9), noise=broken)
    assert result.scores[0].noise is None
    assert "two runs of the baseline cannot be compared: noise unknown" in result.scores[0].note
    assert result.passed


# NaN, inf, shapes


@pytest.mark.parametrize("hole", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("criteria", [[limits(cosine=-1.0, max_abs=1e30)], []])
def test_int8_alone_not_finite_never_passes(hole, criteria):
    bad = NEAR.copy()
    bad[11, 2:4] = hole
    result = one(LOGITS, bad, *criteria)
    assert not result.passed
    assert "NaN or inf in 2 of 300 elements that are finite in the baseline" in result.problem
    assert "first in sample 11" in result.problem
    assert all(math.isnan(score.value) and not score.passed for score in result.scores)
    assert (result.fit, result.worst_sample) == (None, None)


@pytest.mark.parametrize("hole", [np.nan, np.inf, -np.inf])
def test_the_same_hole_in_both_is_left_out_and_said(hole):
    baseline, candidate = LOGITS.copy(), NEAR.copy()
    baseline[4] = candidate[4] = hole
    result = one(baseline, candidate, limits(sqnr_db=20, kl=0.1), noise=baseline.copy())
    many = "NaN in 3.33% of the elements" if np.isnan(hole) else ""
    assert result.problem.startswith(many)
    assert result.passed == (not many)
    assert result.note == "10 of 300 elements are the same NaN or inf in both and are left out"
    whole = one(np.delete(LOGITS, 4, 0), np.delete(NEAR, 4, 0), limits(sqnr_db=20, kl=0.1))
    assert [s.value for s in result.scores] == pytest.approx([s.value for s in whole.scores])


@pytest.mark.parametrize(
    ("hole", "candidate"), [(np.nan, 1.0), (np.inf, 1.0), (np.inf, -np.inf), (np.inf, np.nan)]
)
def test_a_baseline_that_is_not_finite_cannot_judge(hole, candidate):
    baseline, other = LOGITS.copy(), NEAR.copy()
    baseline[9, 1], other[9, 1] = hole, candidate
    with pytest.raises(CriterionError) as error:
        one(baseline, other, limits(cosine=0.9))
    for phrase in [
        "'logits'",
        "the baseline itself is not finite in 1 of 300",
        "sample 9",
        "`baseline: fp32`",
    ]:
        assert phrase in str(error.value)
    reported = one(baseline, other)
    assert "the baseline itself is not finite" in reported.note
    assert (reported.scores, reported.fit, reported.passed) == ((), None, True)


def test_nothing_finite_anywhere_cannot_judge():
    holes = np.full((30, 10), np.nan, np.float32)
    with pytest.raises(CriterionError, match="not finite in 300 of 300 elements, first in sample 0"):
        one(holes, holes, limits(cosine=0.9))
    assert one(holes, holes).scores == ()


def test_different_shapes_fail_where_a_limit_stands_and_are_noted_elsewhere():
    result = compare_output("boxes", [np.zeros((1, 7, 6))], [np.zeros((1, 5, 6))], [limits(max_abs=1)])
    assert not result.passed
    for phrase in ["batch 0", "(1, 7, 6)", "(1, 5, 6)", "NonMaxSuppression", "compare an output before it"]:
        assert phrase in result.problem
    assert [math.isnan(score.value) for score in result.scores] == [True]
    unjudged = compare_output("boxes", [np.zeros((1, 7, 6))], [np.zeros((1, 5, 6))])
    assert unjudged.passed
    assert "shapes differ in batch 0" in unjudged.note


def test_another_kind_fails():
    kind = one(LOGITS, NEAR.astype(np.int32), limits(cosine=0))
    assert kind.problem == "the baseline holds floats (float32), the candidate integers (int32)"
    assert not kind.passed


def test_shape_text_where_shapes_vary():
    arrays = [np.ones((1, n, 6), np.float32) for n in (3, 5)]
    assert compare_output("boxes", arrays, arrays).shape == "2 arrays"
    scalars = [np.float32(1).reshape(()), np.float32(2).reshape(())]
    assert compare_output("loss", scalars, scalars).shape == "2 arrays"


def test_an_output_without_elements_is_noted_where_no_limit_stands():
    assert "holds no element" in compare_output("boxes", [LOGITS[:0]], [LOGITS[:0]]).note


def test_no_arrays_at_all():
    with pytest.raises(CriterionError, match="'logits' has no arrays: nothing was run"):
        compare_outputs({"logits": []}, {"logits": []})


def test_kl_of_probabilities_is_said():
    p = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
    assert "holds probabilities already" in one(p, p, limits(kl=0.1)).scores[0].note
    certain = np.eye(10, dtype=np.float32)
    assert (
        "holds probabilities already"
        in compare_output("p", [certain], [certain], [limits(kl=1)]).scores[0].note
    )
    signed = np.float32([[2, -1, 0], [-3, 4, 0]])  # sums to 1, yet no probabilities
    for logits in (LOGITS, signed):
        assert compare_output("l", [logits], [logits], [limits(kl=0.1)]).scores[0].note == ""


def test_a_score_that_cannot_be_computed_fails_and_says_so():
    baseline, candidate = LOGITS.copy(), NEAR.copy()
    baseline[:, 0] = candidate[:, 0] = np.nan  # elements to compare remain, rows do not
    score = one(baseline, candidate, limits(top1_agreement=0.0)).scores[0]
    assert math.isnan(score.value)
    assert not score.passed
    assert score.note == "cannot be computed from these values"


# Patterns and defaults

BOTH = {"logits": batches(LOGITS), "aux/ids": batches(IDS)}
CANDIDATE = {"logits": batches(NEAR), "aux/ids": batches(IDS)}


def test_limits_go_by_name_and_pattern_and_the_rest_keeps_the_default():
    logits, ids = compare_outputs(BOTH, CANDIDATE, [limits("log*", cosine=0.9)])
    assert [s.limit for s in logits.scores][:2] == [0.9, None]
    assert [s.limit for s in ids.scores] == [0.99]
    logits, ids = compare_outputs(
        BOTH, CANDIDATE, [limits("aux/ids", agreement=0.9), limits("*s", sqnr_db=0)]
    )
    assert (metrics(logits)[0], metrics(ids)) == ("sqnr_db", ["agreement", "sqnr_db"])


def test_a_name_with_brackets_is_a_name_first():
    (result,) = compare_outputs({"out[0]": [LOGITS]}, {"out[0]": [NEAR]}, [limits("out[0]", cosine=0.9)])
    assert result.scores[0].limit == 0.9


def test_defaults_where_nothing_is_demanded():
    logits, ids = compare_outputs(BOTH, CANDIDATE)
    assert [(s.metric, s.limit, s.note) for s in logits.scores[:1]] == [("sqnr_db", 20.0, "default limit")]
    assert [(s.metric, s.limit, s.note) for s in ids.scores] == [("agreement", 0.99, "default limit")]
    assert all(s.note == "" for s in logits.scores[1:])
    bad = compare_outputs(BOTH, {"logits": batches(FAR), "aux/ids": batches(IDS + 1)})
    assert [r.passed for r in bad] == [False, False]


def test_no_defaults_beside_a_metric_of_the_user():
    judge = Judge((), [(MetricLimit("m.py:one"), lambda outputs: 1.0)])
    results = judged(judge, BOTH, {**CANDIDATE, "logits": batches(FAR)}).outputs
    assert all(score.limit is None for result in results for score in result.scores)


def test_noise_goes_to_its_output():
    logits, ids = judged(Judge(), BOTH, CANDIDATE, BOTH).outputs
    assert logits.scores[0].noise == math.inf
    assert ids.scores[0].noise == 1.0


@pytest.mark.parametrize(
    ("criterion", "phrases"),
    [
        (
            limits("logit", cosine=1),
            ["output 'logit' matches no output", "did you mean 'logits'?", "logits, aux/ids"],
        ),
        (limits("head*", cosine=1), ["'head*' matches no output", "outputs: logits, aux/ids"]),
        (limits("aux/ids", kl=1), ["'aux/ids'", "kl needs floats", "holds integers (int64)", "agreement"]),
        (limits("*", top1_agreement=1), ["'aux/ids'", "top1_agreement needs floats"]),
        (
            limits("logits", agreement=1),
            ["agreement needs integers or booleans or strings", "use one of: cosine"],
        ),
        (limits("logits", kl=1, axis=2), ["'logits'", "kl along axis 2", "has shape (8, 10)", "`axis:`"]),
        (limits("logits", kl=1, axis=-3), ["kl along axis -3"]),
        (limits("logits", top1_agreement=1, axis=0), ["axis 0", "counts the samples", "`axis:`"]),
        (limits("logits", top1_agreement=1, axis=-2), ["axis -2", "counts the samples"]),
    ],
)
def test_criteria_that_do_not_fit(criterion, phrases):
    with pytest.raises(CriterionError) as error:
        compare_outputs(BOTH, CANDIDATE, [criterion])
    for phrase in phrases:
        assert phrase in str(error.value)


@pytest.mark.parametrize(
    ("array", "criterion", "said"),
    [
        (LOGITS[:, :1], limits(kl=0.5), "kl needs at least 2 classes.* has 1"),
        (LOGITS[:, :1], limits(top1_agreement=0.5), "top1_agreement needs at least 2 classes.* has 1"),
        (LOGITS[:, :5], limits(top5_agreement=0.5), "top5_agreement needs at least 6 classes.* has 5"),
        (LOGITS[:0], limits(cosine=0.9), "'out' holds no element in 1 array"),
        (IDS[:0], limits(agreement=0.9), "'out' holds no element in 1 array"),
        (np.array([{}, {}], object), limits(agreement=1), "agreement needs integers or .*holds objects"),
        (IDS > 3, limits(sqnr_db=20), "sqnr_db needs floats or integers, but the output holds booleans"),
        (IDS.astype("U3"), limits(sqnr_db=20), "sqnr_db needs floats or integers, .* holds strings"),
        (np.zeros(3, np.complex64), limits(cosine=1), "cosine needs floats .*no metric can judge it"),
        (np.zeros(3, "datetime64[s]"), limits(cosine=1), "cosine needs floats .*no metric can judge it"),
    ],
)
def test_outputs_that_a_criterion_cannot_judge(array, criterion, said):
    with pytest.raises(CriterionError, match=said):
        compare_output("out", [array], [array], [criterion])


@pytest.mark.parametrize(("metric", "classes"), [("kl", 2), ("top1_agreement", 2), ("top5_agreement", 6)])
def test_just_enough_classes_to_disagree(metric, classes):
    (score, *_) = compare_output(
        "l", [LOGITS[:, :classes]], [FAR[:, :classes]], [limits(**{metric: 0.5})]
    ).scores
    assert score.value not in (0.0, 1.0)


def test_an_output_that_int8_does_not_have():
    with pytest.raises(CriterionError) as error:
        compare_outputs(BOTH, {"logits": batches(NEAR)})
    assert "the candidate has no output 'aux/ids'; it gives: logits" in str(error.value)


#: Limits that some noise meets and the opposite sign misses.
MET = {
    "cosine": 0.9,
    "sqnr_db": 20,
    "psnr_db": 20,
    "max_abs": 0.1,
    "mean_abs": 0.1,
    "mse": 0.01,
    "max_rel": 1,
    "mean_rel": 1,
    "kl": 0.01,
    "top1_agreement": 1,
    "top5_agreement": 1,
    "tolerance": 1e5,
}


def boxes(*counts):
    """Baseline and candidate with so many boxes in each sample."""
    rng = np.random.default_rng(3)
    baseline = [rng.normal(0, 3, (1, count, 10)).astype(np.float32) for count in counts]
    return baseline, [array + np.float32(1e-3) for array in baseline]


def per_sample(baseline, candidate, metric, limit, quantile=0.0):
    criterion = OutputLimits("*", limits={metric: limit}, spared=quantile)
    return rows_of(baseline, candidate, criterion).result(intervals=True)


@pytest.mark.parametrize("metric", MET)
def test_a_sample_that_is_empty_in_both_forms_is_left_out_and_noted(metric):
    baseline, candidate = boxes(3, 0, 2, 0, 4)
    result = per_sample(baseline, candidate, metric, MET[metric])
    full = [index for index, array in enumerate(baseline) if array.size]
    alone = per_sample([baseline[i] for i in full], [candidate[i] for i in full], metric, MET[metric])
    assert result.passed
    assert (result.scores[0].value, result.scores[0].interval) == (
        alone.scores[0].value,
        alone.scores[0].interval,
    )
    assert result.scores[0].note == "2 of 5 samples have nothing to compare and are left out"
    assert not alone.scores[0].note


@pytest.mark.parametrize("metric", MET)
def test_empty_samples_do_not_let_more_of_the_others_miss(metric):
    baseline, candidate = boxes(3, 0, 0, 2, 0, 0, 4)
    candidate[3] = -candidate[3]
    assert not per_sample(baseline, candidate, metric, MET[metric], 0.3).passed
    assert per_sample(baseline, candidate, metric, MET[metric], 0.4).passed


@pytest.mark.parametrize("metric", MET)
@pytest.mark.parametrize("lost", [0, 1])
def test_a_sample_that_is_empty_in_one_form_is_a_miss(metric, lost):
    forms = boxes(3, 2, 4)
    forms[lost][1] = forms[lost][1][:, :0]
    result = per_sample(*forms, metric, MET[metric], 0.9)
    assert not result.passed
    assert "shapes differ in batch 1" in result.problem


@pytest.mark.parametrize("metric", MET)
def test_a_sample_that_is_the_same_infinity_in_both_forms_is_left_out_and_noted(metric):
    baseline, candidate = boxes(3, 1, 2)
    baseline[1][:] = candidate[1][:] = -np.inf
    result = per_sample(baseline, candidate, metric, MET[metric])
    assert result.passed
    assert result.scores[0].note == "1 of 3 samples have nothing to compare and are left out"
