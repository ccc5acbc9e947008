from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from fake_evaluators import criterion

from pytest_int8acc.search.solve import Solver
from pytest_int8acc.search.surrogate import Surrogate
from pytest_int8acc.search.types import Probe, Target

ONE = [Target(0)], [criterion("sqnr")]


def surrogate(vectors, base=None):
    """Of one mean criterion and [groups, samples, elements]."""
    vectors = np.asarray(vectors, np.float32)
    return Surrogate(*ONE, [vectors], [np.zeros(vectors.shape[1:], np.float32) if base is None else base])


def plans(groups):
    return [frozenset(c) for size in range(groups + 1) for c in combinations(range(groups), size)]


def test_errors_that_stand_at_right_angles_or_in_line_add_exactly():
    vectors = np.zeros((5, 2, 6), np.float32)
    for group, (element, size) in enumerate([(0, 0.7), (1, 0.5), (2, 0.9), (2, -0.8), (2, 0.4)]):
        vectors[group, :, element] = size
    base = np.full((2, 6), 0.05, np.float32)
    model = surrogate(vectors, base)
    for high in plans(5):
        error = base + vectors[[i for i in range(5) if i not in high]].sum(axis=0)
        assert model.loss(high) == pytest.approx(float((error**2).sum(axis=1).mean()), abs=1e-5)


def test_worst_sample_has_a_row_of_its_own():
    vectors = np.zeros((2, 2, 3), np.float32)
    vectors[0, 0, 0], vectors[1, 1, 1] = 3.0, 2.0
    model = Surrogate([Target(0)], [criterion("max", "rank")], [vectors], [np.zeros((2, 3), np.float32)])
    assert model.rows(np.array([[1, 1]])).tolist() == [[9.0, 4.0]]
    assert model.loss(frozenset({0})) == 4.0
    mean = surrogate(vectors)
    assert mean.loss(frozenset()) == pytest.approx((9 + 4) / 2)


def test_angles_by_chance_do_not_count():
    """Forty random errors on few elements: some sums of them cancel, which tells nothing of other samples."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((40, 2, 20)).astype(np.float32)
    vectors[1] = -vectors[0]
    model = surrogate(vectors)
    off = model.gram[0] - np.diag(np.diag(model.gram[0]))
    assert off[0, 1] == pytest.approx(-model.gram[0, 0, 0])
    assert (np.abs(off) > 6).sum() <= 6  # of 1560


def test_anchor_and_calibrate():
    model = surrogate(np.eye(3)[:, None, :])
    nothing = frozenset()
    model.anchor(nothing, Probe([np.full((1, 3), 2.0, np.float32)], np.zeros((1, 1))))
    assert model.loss(nothing) == pytest.approx(12)  # measured, not 3
    assert model.loss(frozenset({0})) == pytest.approx(8)
    model.calibrate(nothing, np.array([6.0]))
    assert model.loss(nothing) == pytest.approx(6)
    model.calibrate(nothing, np.array([np.nan]))
    assert model.loss(nothing) == pytest.approx(6)


def test_power_of_one():
    target = Target(0, power=1)
    model = Surrogate(
        [target],
        [criterion("max_abs", "rank")],
        [np.eye(2, dtype=np.float32)[:, None]],
        [np.zeros((1, 2), np.float32)],
    )
    probes = [Probe([np.eye(2, dtype=np.float32)[[i]]], np.array([[3.0]])) for i in range(2)]
    model.fit(probes)
    assert model.losses(frozenset({0})).tolist() == pytest.approx([3.0])
    assert model.loss(frozenset({0})) == pytest.approx(9.0)


@pytest.mark.parametrize("groups", [6, 12])
def test_few_groups_are_solved_exactly(groups):
    rng = np.random.default_rng(groups)
    for _ in range(4):
        model, solver = random_problem(rng, groups)
        assert solver.solve(1.0) == lightest(model, solver, groups)


def random_problem(rng, groups):
    model = surrogate(rng.standard_normal((groups, 2, 9)) / 4)
    return model, Solver(model, rng.random(groups), np.ones(groups, bool))


def lightest(model, solver, groups):
    """Of the plans within the limit, by trying all."""
    return next(p for p in sorted(plans(groups), key=solver.weigh) if model.loss(p) <= 1)


def test_many_groups_are_solved_nearly():
    """13 groups are more than are searched exhaustively."""
    rng = np.random.default_rng(1)
    excess = []
    for _ in range(4):
        model, solver = random_problem(rng, 13)
        found = solver.solve(1.0)
        assert model.loss(found) <= 1
        excess.append(solver.weigh(found) / solver.weigh(lightest(model, solver, 13)) - 1)
    assert np.mean(excess) < 0.02


@pytest.mark.parametrize("groups", [8, 20])
def test_cheaper_plans_are_cheaper_and_foretold_right(groups):
    rng = np.random.default_rng(2)
    model, solver = random_problem(rng, groups)
    high = solver.solve(0.7)
    found = solver.cheaper(high, 1.0)
    assert found.high
    assert len(found.high) == len(found.loss) == len(found.weight)
    for plan, loss, weight in zip(found.high, found.loss, found.weight, strict=True):
        assert weight == pytest.approx(solver.weigh(plan))
        assert weight < solver.weigh(high)
        assert loss == pytest.approx(model.loss(plan), rel=1e-4)
        assert loss <= 1.0


def test_groups_not_free_stay_in_int8():
    model = surrogate(np.eye(3)[:, None, :] * [[[0.9]], [[0.9]], [[0.3]]])
    solver = Solver(model, np.array([1.0, 2.0, 0.1]), np.array([False, True, True]))
    assert solver.solve(1.0) == {1}
    assert solver.solve(0.5) is None


@pytest.mark.parametrize("pool", ["mean", "rank"])
def test_each_group_alone_is_foretold_as_its_plan_is(pool):
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((9, 4, 5)).astype(np.float32)
    base = 0.1 * rng.standard_normal((4, 5)).astype(np.float32)
    model = Surrogate([Target(0)], [criterion("sqnr", pool)], [vectors], [base])
    everything = frozenset(range(9))
    expected = [model.loss(everything - {group}) for group in range(9)]
    np.testing.assert_allclose(model.alone(), expected, rtol=1e-9)
