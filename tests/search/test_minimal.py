from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from fake_evaluators import Additive, Fake, Limit, criterion, indices
from fake_suite import accumulated, additive, cancelling, interacting, masked, mismatched, planted, suite
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_int8acc.clock import Budget
from pytest_int8acc.results import Ending
from pytest_int8acc.search.strategies import STRATEGIES, certify, search
from pytest_int8acc.search.types import GroupInfo

SUITE = dict(suite())


def check(evaluator, result):
    """What every finished search owes, by an independent judge that runs all samples."""
    high = indices(evaluator, result.high)
    assert result.passed
    assert evaluator.passes(high)
    assert not result.ending.early
    assert result.minimal
    assert not [i for i in high if evaluator.passes(high - {i})]
    assert result.cost == pytest.approx(evaluator.cost)
    assert result.probes == evaluator.probes
    assert len(result.trials) == len(evaluator.trials)
    assert len({plan for plan, _ in evaluator.trials}) == len(evaluator.trials), "a plan was tried twice"
    assert result.loss == pytest.approx(max(evaluator.losses(high)))
    return high


@pytest.mark.parametrize("name", SUITE)
def test_answer_passes_and_is_minimal(name):
    check(SUITE[name], search(SUITE[name]))


def test_costs_less_than_twice_a_bisect():
    rows = []
    for strategy in ("minimal", "bisect"):
        problems = list(suite(1, ((54, 32),)))
        results = [search(evaluator, strategy) for _, evaluator in problems]
        assert all(result.passed for result in results)
        figures = [(len(r.trials), r.cost, len(r.high), r.price) for r in results]
        rows.append([sum(column) for column in zip(*figures, strict=True)])
    minimal, bisect = rows
    # A bisect that rejects early, too; one whose trials always see all samples costs its number of trials.
    assert minimal[1] <= 2 * bisect[1]
    assert minimal[1] <= bisect[0]
    assert minimal[2] < bisect[2] / 5
    assert minimal[3] < bisect[3] / 4


def test_growth_is_slow():
    costs = [
        search(planted(np.random.default_rng(groups), groups, 32, "sqnr")).cost for groups in (20, 100, 300)
    ]
    assert costs[-1] < 10
    assert costs[-1] < 3 * costs[0]


@given(
    groups=st.integers(3, 40),
    samples=st.integers(1, 40),
    seed=st.integers(0, 10**6),
    kind=st.sampled_from([planted, mismatched, accumulated, interacting, cancelling, masked]),
    metric=st.sampled_from(["sqnr", "cosine", "max_abs", "top1"]),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_any_problem(groups, samples, seed, kind, metric):
    rng = np.random.default_rng(seed)
    takes_metric = kind in (planted, mismatched, accumulated)
    evaluator = kind(rng, groups, samples, metric) if takes_metric else kind(rng, groups, samples)
    check(evaluator, search(evaluator))


@pytest.mark.parametrize("kind", [planted, accumulated, interacting, cancelling, masked])
def test_optimum_where_few_groups(kind):
    """By brute force over all sets, weighing a group more as a hundredth of the mean price."""
    best = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        evaluator = kind(rng, 8, 32, "sqnr") if kind in (planted, accumulated) else kind(rng, 8, 32)
        high = check(evaluator, search(evaluator))
        price = np.array([group.price for group in evaluator.groups])
        weight = price + 0.01 * price.mean()
        mine = weight[list(high)].sum()
        lighter = (
            set_
            for size in range(9)
            for set_ in combinations(range(8), size)
            if weight[list(set_)].sum() < mine - 1e-9
        )
        best += not any(evaluator.passes(set_) for set_ in lighter)
    assert best >= (7 if kind is accumulated else 8)


def test_finds_the_culprits():
    evaluator = additive(np.random.default_rng(3), 60, 64, culprits=[(7, 3.0), (21, 2.0), (50, 4.0)])
    result = search(evaluator)
    assert result.high == ("g7", "g21", "g50")
    assert len(result.trials) == 6
    assert result.ending == Ending("proven", 3, 60)
    assert result.price == pytest.approx(
        sum(evaluator.groups[i].price for i in (7, 21, 50)) / sum(g.price for g in evaluator.groups)
    )


def test_cheapest_by_price_not_by_number():
    """One dear group or two cheap ones would do."""
    error = np.zeros((3, 16, 8))
    error[0, :, 0], error[1, :, 0], error[2, :, 0] = 1.0, 0.5, 0.5
    baseline = np.ones((16, 8)) * np.sqrt(1.1**2 * 100 / 8)
    for price, expected in (((1, 1, 1), ("g0",)), ((5, 1, 1), ("g1", "g2"))):
        evaluator = Additive([error], price, [Limit(0, "sqnr", 20.0)], [baseline])
        assert search(evaluator).high == expected


def test_free_groups_do_not_pile_up():
    """A group that costs nothing is still not worth keeping for nothing."""
    evaluator = additive(np.random.default_rng(0), 30, 32, culprits=[(4, 3.0)])
    evaluator.groups = tuple(GroupInfo(g.name, 0.0 if i else 1.0) for i, g in enumerate(evaluator.groups))
    assert search(evaluator).high == ("g4",)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_to_do(strategy):
    evaluator = additive(np.random.default_rng(0), 8, 16)
    result = search(evaluator, strategy)
    assert (result.high, result.passed, result.minimal, result.price) == ((), True, True, 0)
    assert result.ending.kind == "int8-passes"
    assert len(result.trials) <= 2


class Broken(Additive):
    """Fails whatever is kept high."""

    def error(self, high, samples):
        return [error + self.baseline[0][samples] for error in super().error(high, samples)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_int8_is_not_the_cause(strategy):
    whole = additive(np.random.default_rng(0), 8, 16, culprits=[(1, 3.0)])
    evaluator = Broken(whole.vectors, [1] * 8, whole.limits, whole.baseline)
    result = search(evaluator, strategy)
    assert not result.passed
    assert not result.minimal
    assert result.ending.kind == "high-fails"
    assert len(result.trials) == (1 if strategy == "minimal" else 2)


class Overflowing(Additive):
    """One group alone makes NaN of everything."""

    def error(self, high, samples):
        factor = 1.0 if 2 in high else math.nan
        return [error * factor for error in super().error(high, samples)]

    def _parts(self, limit, e, samples):
        return np.nan_to_num(super()._parts(limit, e, samples), nan=math.inf)

    def _loss(self, limit, e, samples):
        return float(np.nan_to_num(super()._loss(limit, e, samples), nan=math.inf))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("metric", ["sqnr", "max_abs"])
def test_nan_in_int8(metric):
    whole = additive(np.random.default_rng(0), 14, 32, culprits=[(5, 3.0)], metric=metric)
    evaluator = Overflowing(whole.vectors, [1] * 14, whole.limits, whole.baseline)
    result = search(evaluator)
    assert result.high == ("g2", "g5")
    assert result.minimal


class Whole(Additive):
    """A user's metric: one number from all samples."""

    def _criterion(self, limit):
        return criterion("metric.py:top1 max_drop 0.01", "whole")

    def _parts(self, limit, e, samples):
        return np.full(len(samples), math.nan)

    def _loss(self, limit, e, samples):
        return float(super()._parts(limit, e, samples).mean())


@pytest.mark.filterwarnings("error")
def test_metric_that_only_all_samples_give():
    whole = additive(np.random.default_rng(0), 20, 32, culprits=[(5, 3.0), (11, 2.0)])
    evaluator = Whole(whole.vectors, [1] * 20, whole.limits, whole.baseline)
    result = search(evaluator)
    assert result.high == ("g5", "g11")
    assert result.minimal
    assert all(record.cost == 1 for record in result.trials)


class Engines(Fake):
    """Verdicts from elsewhere: all samples at once, no parts, and a little worse than the probes say."""

    def trial(self, high, order, enough):
        trial = super().trial(high, order, None)
        object.__setattr__(trial, "parts", np.full_like(trial.parts, np.nan))
        return trial


def test_verdicts_of_engines_probes_of_a_simulation():
    class Both(Engines, Additive):
        pass

    whole = additive(np.random.default_rng(0), 20, 32, culprits=[(5, 3.0), (11, 2.0)])
    evaluator = Both(whole.vectors, [1] * 20, whole.limits, whole.baseline)
    result = search(evaluator)
    assert result.high == ("g5", "g11")
    assert len(result.trials) == 5


@pytest.mark.parametrize("groups", [0, 1, 2])
def test_hardly_any_groups(groups):
    evaluator = additive(np.random.default_rng(0), 2, 5, culprits=[(1, 3.0)])
    evaluator = Additive(
        [evaluator.vectors[0][2 - groups :]], [1] * groups, evaluator.limits, evaluator.baseline
    )
    result = search(evaluator)
    assert result.passed
    assert result.minimal
    assert result.high == (() if groups == 0 else (f"g{groups - 1}",))


def test_a_search_that_tries_groups_once_proves_nothing_and_takes_fewer_trials():
    counts = {True: 0, False: 0}
    for once in counts:
        for name, evaluator in suite(2, ((26, 32),)):
            result = search(evaluator, budget=Budget(once=once))
            assert evaluator.passes(indices(evaluator, result.high)), name
            assert result.ending.kind == ("visited" if once else "proven")
            counts[once] += len(result.trials)
            plan, needed = set(), []
            for record in result.trials:
                if record.why == "one group fewer" and not record.passed:
                    needed += plan - set(record.high)
                plan = set(record.high) if record.passed else plan
            assert not once or len(needed) == len(set(needed)), name
    assert counts[True] < counts[False]


def test_certify_proves():
    evaluator = additive(np.random.default_rng(3), 20, 32, culprits=[(7, 3.0), (12, 2.0)])
    result = certify(evaluator, frozenset({7, 12}))
    assert result.minimal
    dearer = evaluator.groups[7].price > evaluator.groups[12].price
    without = [("g12",), ("g7",)]
    assert [record.high for record in result.trials] == [("g7", "g12"), *without[:: 1 if dearer else -1]]
    assert evaluator.probes == 0
    more = certify(evaluator, frozenset({1, 7, 9, 12}))
    assert more.high == ("g7", "g12")
    assert more.minimal
    less = certify(evaluator, frozenset({7}))
    assert not less.passed
    assert less.ending.kind == "plan-fails"


def test_the_order_begins_with_what_takes_most_error_per_price():
    rng = np.random.default_rng(0)
    lengths, prices = np.array([1.0, 9.0, 3.0, 0.001, 6.0]), np.array([1.0, 1.0, 1.0, 1.0, 30.0])
    vectors = rng.standard_normal((5, 64, 40)) * lengths[:, None, None]
    evaluator = Additive([vectors], prices, [Limit(0, "sqnr", 20)], [30 * rng.standard_normal((64, 40))])
    result = search(evaluator)
    assert result.order[:2] == ("g1", "g2")
    assert "g3" not in result.order, "it does not matter"
    assert search(evaluator, "bisect").order == ()
