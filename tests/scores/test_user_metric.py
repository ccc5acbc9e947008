"""A user's metric function: how it is called, judged and blamed."""

from __future__ import annotations

import functools
import math
import re
from fractions import Fraction

import numpy as np
import pytest
from judged import evaluate_metric

from pytest_int8acc import CriterionError
from pytest_int8acc.data.scripts import load_function
from pytest_int8acc.scores.criteria import MetricLimit

LABELS = np.array([0, 1, 2, 1])
GOOD = np.eye(3, dtype=np.float32)[LABELS]
WORSE = GOOD.copy()
WORSE[3] = [0, 0, 1]
BASELINE, CANDIDATE = {"logits": [GOOD[:3], GOOD[3:]]}, {"logits": [WORSE[:3], WORSE[3:]]}


def top1(outputs, labels):
    return np.mean(outputs["logits"].argmax(axis=1) == labels)


def evaluate(function, baseline=BASELINE, candidate=CANDIDATE, labels=LABELS, noise=None, **limits):
    limit = MetricLimit("metrics.py:top1", **limits)
    return evaluate_metric(limit, function, baseline, candidate, labels, noise)


def constant(of_baseline, of_candidate):
    """A metric that is a given number for the baseline's outputs and another for the candidate's."""
    return lambda outputs: of_baseline if (outputs["logits"] == GOOD).all() else of_candidate


def test_score_of_a_metric():
    (score,) = evaluate(top1, min=0.5)
    assert (score.subject, score.metric) == ("metrics.py:top1", "top1")
    assert (score.value, score.baseline, score.limit, score.bound) == (0.75, 1.0, 0.5, "min")
    assert (score.passed, score.noise) == (True, None)


@pytest.mark.parametrize(
    ("limits", "bar", "bound", "passed"),
    [
        ({"min": 0.8}, 0.8, "min", False),
        ({"max": 0.8}, 0.8, "max", True),
        ({"max_drop": 0.25}, 0.75, "min", True),
        ({"max_drop": 0.2}, 0.8, "min", False),
        ({"max_drop_relative": 0.1}, 0.9, "min", False),
        ({"max_drop_relative": 0.3}, 0.7, "min", True),
        ({"max_drop": 0.1, "lower_is_better": True}, 1.1, "max", True),
        ({"max_drop_relative": 0.1, "lower_is_better": True}, 1.1, "max", True),
    ],
)
def test_limits(limits, bar, bound, passed):
    (score,) = evaluate(top1, **limits)
    assert score.limit == pytest.approx(bar)
    assert (score.bound, score.passed) == (bound, passed)


def test_every_limit_is_a_score_of_its_own():
    scores = evaluate(top1, min=0.5, max=0.9, max_drop=0.2, max_drop_relative=0.3)
    assert [s.passed for s in scores] == [True, True, False, True]
    assert [s.note for s in scores][2:] == [
        "max_drop 0.2 from the baseline's 1",
        "max_drop 30% from the baseline's 1",
    ]


def test_without_limits_it_is_reported():
    (score,) = evaluate(top1)
    assert (score.limit, score.value, score.baseline) == (None, 0.75, 1.0)


def test_a_loss_where_lower_is_better_is_a_rise():
    (score,) = evaluate(constant(10.0, 12.0), max_drop=1.0, lower_is_better=True)
    assert (score.limit, score.passed) == (pytest.approx(11.0), False)
    (score,) = evaluate(constant(10.0, 8.0), max_drop=1.0, lower_is_better=True)
    assert score.passed


def test_a_relative_drop_of_a_negative_value_goes_down():
    (score,) = evaluate(constant(-10.0, -10.5), max_drop_relative=0.1)
    assert score.limit == pytest.approx(-11.0)
    assert score.passed


@pytest.mark.parametrize(
    ("baseline", "value", "drop"), [(0.8, 0.7, 0.1), (0.9, 0.8, 0.1), (0.97, 0.965, 0.005)]
)
def test_a_drop_of_exactly_the_limit_passes(baseline, value, drop):
    (score,) = evaluate(constant(baseline, value), max_drop=drop)
    assert score.passed
    (score,) = evaluate(constant(-baseline, -value), max_drop=drop, lower_is_better=True)
    assert score.passed
    (score,) = evaluate(constant(baseline, value - 1e-12), max_drop=drop)
    assert not score.passed


def test_noise_is_the_difference_of_two_baseline_runs():
    (score,) = evaluate(top1, noise=CANDIDATE, max_drop=0.1)
    assert score.noise == 0.25
    assert score.limit_in_noise
    (score,) = evaluate(top1, baseline=CANDIDATE, noise=BASELINE, max_drop=0.1)
    assert score.noise == 0.25
    (score,) = evaluate(top1, noise=BASELINE, max_drop=0.1)
    assert (score.noise, score.limit_in_noise) == (0.0, False)


@pytest.mark.parametrize("value", [np.float32(0.5), np.int64(1), 1, Fraction(1, 2), np.array(0.5)])
def test_numbers_of_any_kind(value):
    (score,) = evaluate(lambda outputs: value)
    assert score.value == float(value)
    assert type(score.value) is float


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "None (NoneType)"),
        ("0.9", "'0.9' (str)"),
        (True, "True (bool)"),
        (np.bool_(True), "(bool"),
        (1j, "1j (complex)"),
        (np.zeros(3), "an array of shape (3,) (ndarray)"),
        ([0.9], "[0.9] (list)"),
        ({"top1": 0.9}, "{'top1': 0.9} (dict)"),
    ],
)
def test_anything_else_is_refused(value, shown):
    with pytest.raises(CriterionError) as error:
        evaluate(lambda outputs: value)
    assert "metric metrics.py:top1 returned" in str(error.value)
    assert shown in str(error.value)
    assert "expected one number; return float(...)" in str(error.value)


# NaN


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_baseline_value_that_is_not_finite_cannot_judge(value):
    with pytest.raises(
        CriterionError, match=r"metrics\.py:top1 returned -?(nan|inf) on the baseline's outputs"
    ):
        evaluate(constant(value, 1.0), min=0)
    runs = iter([1.0, 1.0, value])
    with pytest.raises(CriterionError, match="on the baseline's second run, expected a finite number"):
        evaluate(lambda outputs: next(runs), noise=BASELINE)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("limits", [{"min": -1e9}, {"max": 1e9}, {"max_drop": 1e9}])
def test_an_int8_value_that_is_not_finite_never_passes(value, limits):
    (score,) = evaluate(constant(1.0, value), **limits)
    assert not score.passed
    assert f"returned {value} on the candidate's outputs" in score.note


def test_a_function_that_refuses_nan_fails_the_case_and_does_not_break_it():
    def strict(outputs):
        if np.isnan(outputs["logits"]).any():
            raise ValueError("Input contains NaN")
        return 1.0

    broken = {"logits": [GOOD[:3], np.float32([[0, np.nan, 0]])]}
    (score,) = evaluate(strict, candidate=broken, min=0.5)
    assert math.isnan(score.value)
    assert not score.passed
    assert "failed on outputs of the candidate with NaN or inf" in score.note
    assert "Input contains NaN" in score.note
    with pytest.raises(CriterionError, match="Input contains NaN"):
        evaluate(strict, baseline=broken, min=0.5)


# The call


def test_the_function_gets_all_samples_in_one_array_of_its_own():
    seen = []

    def spoil(outputs):
        seen.append(outputs["logits"].shape)
        outputs["logits"][:] = 7
        return 1.0

    evaluate(spoil)
    assert seen == [(4, 3), (4, 3)]
    assert (GOOD.max(), WORSE.max()) == (1, 1)


def test_arrays_that_do_not_join_come_as_a_list():
    ragged = [np.ones((1, n, 6), np.float32) for n in (2, 5)]

    def spoil(outputs):
        assert [a.shape for a in outputs["boxes"]] == [(1, 2, 6), (1, 5, 6)]
        outputs["boxes"][0][:] = 0
        return len(outputs["boxes"])

    (score,) = evaluate(spoil, {"boxes": ragged}, {"boxes": ragged})
    assert score.value == 2
    assert ragged[0].all()


def test_arrays_without_axes_are_joined():
    scalars = {"loss": [np.array(1.0), np.array(3.0)]}
    (score,) = evaluate(lambda outputs: outputs["loss"].mean(), scalars, scalars)
    assert score.value == 2.0


class Callable:
    def __call__(self, outputs, labels):
        return top1(outputs, labels)


@pytest.mark.parametrize(
    "function",
    [
        top1,
        Callable(),
        lambda outputs, truth: top1(outputs, truth),
        lambda outputs, labels=None: top1(outputs, labels),
        lambda outputs, /, labels, k=3: top1(outputs, labels),
        functools.partial(lambda outputs, labels, k: top1(outputs, labels), k=5),
    ],
)
def test_labels_go_to_functions_that_take_them(function):
    assert evaluate(function)[0].value == 0.75


@pytest.mark.parametrize(
    "function", [lambda o: o, lambda o, k=5: k, lambda o, **options: o, lambda o, *rest: o]
)
def test_labels_do_not_go_to_functions_that_take_none(function):
    def number(result):
        assert result in (5,) or set(result) == {"logits"}
        return 1.0

    wrapped = functools.wraps(function)(lambda *args: number(function(*args)))
    assert evaluate(wrapped)[0].value == 1.0


def test_optional_labels_may_be_absent():
    assert evaluate(lambda outputs, labels=None: 1.0 if labels is None else 0.0, labels=None)[0].value == 1.0


def test_labels_that_are_wanted_and_absent():
    with pytest.raises(CriterionError) as error:
        evaluate(top1, labels=None)
    for phrase in ["metrics.py:top1", "'labels' as its second argument", "no labels", "give `labels:`"]:
        assert phrase in str(error.value)


@pytest.mark.parametrize("function", [lambda: 1, lambda a, b, c: 1, lambda a, *, k: 1, lambda **all_of_it: 1])
def test_functions_with_other_parameters(function):
    with pytest.raises(CriterionError, match=r"metrics\.py:top1 takes \(.*expected `def f\(outputs\)` or"):
        evaluate(function)


def test_a_function_without_a_signature():
    class Opaque:
        __signature__ = 5

        def __call__(self, outputs):
            return 1.0

    with pytest.raises(CriterionError, match=r"metrics\.py:top1: .*wrap it in a function"):
        evaluate(Opaque())


def test_the_users_own_exception_is_an_error_that_names_the_function(tmp_path):
    (tmp_path / "metrics.py").write_text(
        "def top1(outputs, labels):\n    return outputs['logit'].mean()\n"
        "def fine(outputs, labels):\n    return 1\n"
    )
    function = load_function("metrics.py:top1", tmp_path, CriterionError)
    with pytest.raises(CriterionError, match=r"metrics\.py:2: KeyError: 'logit' \(in metrics\.py:top1\)"):
        evaluate(function)
    assert evaluate(load_function("metrics.py:fine", tmp_path))[0].value == 1.0
    with pytest.raises(CriterionError, match="give `labels:`"):
        evaluate(load_function("metrics.py:fine", tmp_path), labels=None)


class MuteError(Exception):
    def __str__(self):
        raise ValueError("no text")


class Shy:
    def __repr__(self):
        raise ValueError("no picture")


def raises(error):
    raise error


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        (lambda outputs: 10**400, "returned a number beyond 1e308 on the baseline's outputs"),
        (lambda outputs: Fraction(10**400), "returned a number beyond 1e308"),
        (lambda outputs: raises(MuteError()), "MuteError, whose text cannot be made"),
        (lambda outputs: raises(BaseException("boom")), "BaseException: boom"),
        (lambda outputs: Shy(), "ValueError: no picture"),
    ],
)
def test_what_fails_in_a_metric_is_told_as_the_users(metric, text):
    with pytest.raises(CriterionError, match=re.escape(text)):
        evaluate(metric)


def test_ctrl_c_in_a_metric_passes():
    with pytest.raises(KeyboardInterrupt):
        evaluate(lambda outputs: raises(KeyboardInterrupt()))


# Fed batch by batch


class Top1:
    """As a user writes it: a class that is fed."""

    def __init__(self):
        self.right = self.seen = 0

    def update(self, outputs, labels):
        self.right += int((outputs["logits"].argmax(1) == labels).sum())
        self.seen += len(labels)
        outputs["logits"][:] = 7  # its own copy

    def compute(self):
        return self.right / self.seen


class Distance:
    def __init__(self):
        self.total = 0.0

    def update(self, baseline, candidate):
        self.total += float(np.abs(baseline["logits"] - candidate["logits"]).sum())

    def compute(self):
        return self.total


def one_by_one(outputs):
    return {name: [row[None] for array in arrays for row in array] for name, arrays in outputs.items()}


def test_a_class_is_fed_batch_by_batch_and_scores_as_a_function_does():
    assert evaluate(Top1, one_by_one(BASELINE), one_by_one(CANDIDATE), max_drop=0.1) == evaluate(
        top1, max_drop=0.1
    )


def test_a_streaming_function_gives_the_mean_over_samples():
    batches = []

    def share(outputs, labels):
        batches.append(len(labels))
        return float((outputs["logits"].argmax(1) == labels).mean())

    assert evaluate(share, streaming=True) == evaluate(top1)
    assert sorted(batches) == [1, 1, 3, 3]


def test_what_is_fed_may_compare_with_the_baseline():
    (score,) = evaluate(Distance, one_by_one(BASELINE), one_by_one(CANDIDATE), labels=None, max=1e9)
    expected = sum(np.abs(b - c).sum() for b, c in zip(BASELINE["logits"], CANDIDATE["logits"], strict=True))
    assert (score.baseline, score.value) == (0.0, pytest.approx(float(expected)))


def test_a_class_that_fails_on_nan_of_int8_fails_the_score_and_on_finite_outputs_the_case():
    class Strict(Top1):
        def update(self, outputs, labels):
            if not np.isfinite(outputs["logits"]).all():
                raise ValueError("Input contains NaN")
            super().update(outputs, labels)

    broken = {"logits": [np.full_like(array, np.nan) for array in CANDIDATE["logits"]]}
    (score,) = evaluate(Strict, candidate=broken, min=0.1)
    assert math.isnan(score.value)
    assert "Input contains NaN" in score.note
    with pytest.raises(CriterionError, match="Input contains NaN"):
        evaluate(Strict, baseline=broken, min=0.1)


def test_labels_that_update_wants_and_the_case_lacks():
    with pytest.raises(CriterionError, match=r"takes 'labels' as its second argument.*no labels"):
        evaluate(Top1, labels=None)
