"""Sums against exact ones, at the ends of every type, of any subset of samples; no array is held."""

from __future__ import annotations

import math
import weakref
from fractions import Fraction

import numpy as np
import pytest
from judged import compare_output, rows_of, score

from pytest_int8acc import CriterionError
from pytest_int8acc.scores.criteria import OutputLimits
from pytest_int8acc.scores.metrics import METRICS
from pytest_int8acc.scores.rows import AT, ERRORS, errors
from pytest_int8acc.tensors import Array

RNG = np.random.default_rng(11)


#: Every double is a whole number of these.
UNIT = 2**1074


def exact(b: Array, c: Array) -> dict[str, float]:
    """The sums in whole numbers."""
    x, y = ([n * (UNIT // d) for n, d in map(float.as_integer_ratio, a.ravel().tolist())] for a in (b, c))
    e = [q - p for p, q in zip(x, y, strict=True)]
    squares = [sum(v * v for v in values) for values in (x, y, e)]
    bb, cc, ee = (Fraction(square, UNIT**2) for square in squares)
    return {
        "bb": float(bb),
        "cc": float(cc),
        "ee": float(ee),
        "absolute": float(Fraction(sum(map(abs, e)), UNIT)),
        "max_error": float(Fraction(max(map(abs, e)), UNIT)),
        "peak": float(Fraction(max(map(abs, x)), UNIT)),
    }


@pytest.mark.parametrize("shape", [(3, 5), (2, 700), (1, 2**15 + 9), (1, 2**16)])
@pytest.mark.parametrize("mean", [0.0, 1e4])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_sums_are_those_of_exact_arithmetic(shape: tuple[int, ...], mean: float, dtype: type) -> None:
    b = RNG.normal(mean, 1, shape).astype(dtype)
    c = (b + RNG.normal(0, 1e-2, shape)).astype(dtype)
    found = ERRORS.pool(errors(b, c, len(b)))
    for field, value in exact(b, c).items():
        assert found[AT[field]] == pytest.approx(value, rel=1e-11), field


def scores(b: Array, c: Array) -> dict[str, float]:
    names = ("sqnr_db", "psnr_db", "cosine", "max_abs", "mean_abs", "max_rel", "mean_rel")
    result = compare_output("y", [b], [c], [OutputLimits("y", limits=dict.fromkeys(names, 0.0))])
    return {score.metric: score.value for score in result.scores}


@pytest.mark.parametrize("unit", [1e-60, 1e60])
def test_doubles_whose_squares_stay_in_float64_score_as_others_do(unit: float) -> None:
    b = np.round(RNG.normal(0, 40, (6, 50))) + 0.0
    c = b + np.round(RNG.normal(0, 4, b.shape))
    far, near = scores(b * unit, c * unit), scores(b, c)
    for metric, value in near.items():
        expected = value * unit if metric.endswith("_abs") else value
        assert far[metric] == pytest.approx(expected, rel=1e-9), metric
    assert scores(b * unit, -b * unit)["sqnr_db"] == pytest.approx(-20 * math.log10(2))


@pytest.mark.parametrize("metric", [name for name, metric in METRICS.items() if metric.squares])
@pytest.mark.parametrize("unit", [1e-320, 1e-165, 1e-100, 1e100, 1e160, 1e300])
def test_of_doubles_beyond_squares_are_not_judged(unit: float, metric: str) -> None:
    b = np.array([[1.0, 2.0], [3.0, -4.0]])
    limits = [OutputLimits("y", limits={metric: 1.0})]
    with pytest.raises(CriterionError, match=rf"'y': the greatest magnitude is .* so {metric} cannot"):
        compare_output("y", [b * unit], [b * unit * 1.5], limits)
    found = compare_output("y", [b], [b * unit], limits)
    assert not found.passed
    assert f"so {metric} cannot be computed" in found.problem


@pytest.mark.parametrize("unit", [1e-300, 1e-100, 1e100, 1e300])
def test_of_doubles_beyond_squares_other_metrics_are_right(unit: float) -> None:
    b = np.array([[1.0, 2.0], [3.0, -4.0]])
    limits = [OutputLimits("y", limits={"max_abs": unit, "mean_rel": 0.3, "top1_agreement": 1.0})]
    found = compare_output("y", [b * unit], [b * unit * 1.125], limits)
    values = {score.metric: score.value for score in found.scores}
    assert found.passed
    assert values["max_abs"] == pytest.approx(unit / 2)
    assert values["mean_rel"] == pytest.approx(0.125)
    assert values.keys() == {"max_abs", "mean_abs", "mean_rel", "top1_agreement"}
    assert "squares are summed of magnitudes from 1e-70 to 1e+70" in found.note
    assert (found.fit, found.worst_sample, found.heavy) == (None, None, ())


def test_a_sample_too_small_to_be_squared_counts_as_zero_among_others() -> None:
    b = np.array([[1e-165, 2e-165], [0.0, 0.0], [3.0, 4.0], [1.0, 2.0]])
    assert scores(b, b * 1.1)["sqnr_db"] == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("ours", "theirs"), [(np.int64, np.int64), (np.uint64, np.uint64), (np.uint64, np.int64)]
)
def test_integers_beyond_two_to_the_53rd_differ(ours: type, theirs: type) -> None:
    b = np.array([[2**53, 2**62 - 1, 2**60]], ours)
    c = (b.astype(object) + 1).astype(theirs)
    found = scores(b, c)
    assert (found["max_abs"], found["mean_abs"]) == (1.0, 1.0)
    assert found["sqnr_db"] < math.inf
    wide = scores(np.array([[-(2**63)]]), np.array([[2**63 - 1]]))
    assert wide["max_abs"] == 2.0**64


@pytest.mark.parametrize("metric", [name for name, metric in METRICS.items() if "floats" in metric.kinds])
def test_any_samples_score_as_if_they_had_been_run_alone(metric: str) -> None:
    b = RNG.normal(0, 3, (9, 7)).astype(np.float32)
    b[0, 0] = 40  # the floor of relative errors is that of all samples
    c = b + RNG.normal(0, 0.3, b.shape).astype(np.float32)
    for some in ([0, 3], [8, 0, 5, 5, 5], list(range(9))):
        value = score(metric, [b[:4], b[4:]], [c[:4], c[4:]], samples=some)
        assert value == pytest.approx(score(metric, b[some], c[some]), rel=1e-12)


@pytest.mark.parametrize(
    ("metric", "held"), [("sqnr_db", 0), ("kl", 0), ("top1_agreement", 0), ("max_rel", 2)]
)
def test_arrays_are_let_go(metric: str, held: int) -> None:
    rows, alive = rows_of([], [], OutputLimits("y", limits={metric: 1.0})), []
    for _ in range(2):
        b = RNG.normal(size=(4, 6))
        c = b + 1
        alive.append(weakref.ref(c))
        rows.add(b, c)
    del b, c  # no cycle refers to an array, so it goes at once
    assert sum(ref() is not None for ref in alive) == held
    rows.result()
    assert not any(ref() is not None for ref in alive)
