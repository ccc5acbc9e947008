from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from fake_evaluators import indices
from fake_suite import accumulated, additive
from spec_texts import SCHEMA

from pytest_int8acc.clock import Budget, Clock
from pytest_int8acc.results import Ending
from pytest_int8acc.search.strategies import STRATEGIES, search


def problem():
    return accumulated(np.random.default_rng(5), 20, 32)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("trials", [1, 2, 3, 5, 8])
def test_trials(strategy, trials):
    evaluator = problem()
    result = search(evaluator, strategy, budget=Budget(max_trials=trials))
    check_stopped(evaluator, result, trials)
    if result.ending.early:
        assert result.ending == Ending("trials-spent", max_trials=trials)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("trials", [0, 1, 2, 3, 5, 8])
def test_ctrl_c(strategy, trials):
    evaluator = problem()
    evaluator.interrupt_at = trials
    result = search(evaluator, strategy)
    check_stopped(evaluator, result, trials)
    if result.ending.early:
        assert result.ending == Ending("interrupted")


def check_stopped(evaluator, result, trials):
    """The best of what was verified before the end."""
    assert len(evaluator.trials) == len(result.trials) <= trials
    assert result.cost == pytest.approx(evaluator.cost)
    if not result.ending.early:  # the strategy was done in time
        return
    assert len(result.trials) == trials
    verified = {plan: evaluator.passes(plan) for plan, _ in evaluator.trials}
    high = indices(evaluator, result.high)
    if any(verified.values()):
        assert result.passed
        assert verified[high]
        price = sum(evaluator.groups[i].price for i in high)
        assert price <= 1.01 * min(
            sum(evaluator.groups[i].price for i in plan) for plan, passed in verified.items() if passed
        )
        assert not result.minimal or all(verified.get(high - {i}) is False for i in high)
    else:
        assert not result.passed
        assert not result.minimal
        assert len(high) == len(evaluator.groups)


def test_more_trials_never_make_it_worse():
    prices = [search(problem(), budget=Budget(max_trials=n)).price for n in range(1, 30, 3)]
    assert all(later <= earlier + 0.01 for earlier, later in pairwise(prices))
    assert prices[-1] < prices[0]


def test_a_trial_that_costs_nothing_is_not_counted():
    evaluator = additive(np.random.default_rng(3), 20, 32, culprits=[(7, 3.0)])
    trial = evaluator.trial

    def free(high, order, enough):
        found = trial(high, order, enough)
        if len(high) in (0, 20):
            object.__setattr__(found, "cost", 0.0)
        return found

    evaluator.trial = free
    result = search(evaluator, budget=Budget(max_trials=1))
    assert result.high == ("g7",)
    assert result.minimal  # nothing kept was tried, and fails


def test_seconds():
    clock = Clock()
    clock.limit(0)
    result = search(problem(), budget=Budget(clock=clock))
    assert result.ending == Ending("seconds-spent")
    assert not result.passed


@pytest.mark.parametrize("late", [False, True])
def test_a_plan_that_passes_is_not_refined_at_any_cost(late: bool):
    whole, clock = search(problem()), Clock()
    clock.limit(1000)
    clock.bound = 1e9 if late else 1000  # more than half of it is over, or not
    refines = whole.cost if late else whole.cost / 2
    result = search(problem(), budget=Budget(clock=clock, max_runs=refines))
    assert result.passed
    assert not result.minimal
    assert result.cost < whole.cost
    assert len(whole.high) <= len(result.high) < len(problem().groups)
    assert result.ending == Ending("cut-short", len(result.high), len(problem().groups))
    assert search(problem(), budget=Budget(clock=clock)).high == whole.high  # nobody asked for less


def test_a_search_without_a_plan_goes_on_whatever_it_costs():
    result = search(
        additive(np.random.default_rng(3), 20, 32, culprits=[(7, 3.0)]), budget=Budget(max_runs=0)
    )
    assert result.high == ("g7",)


def test_a_pass_that_outlasts_the_bound_ends_between_batches():
    evaluator, clock = problem(), Clock()
    trial, clock.bound = evaluator.trial, 0.0

    def slow(high, order, enough):
        return trial(high, list(clock.bounded(order)), enough)

    evaluator.trial = slow
    result = search(evaluator, budget=Budget(clock=clock))
    assert result.ending == Ending("seconds-spent")
    assert not evaluator.trials


def test_every_strategy_that_a_spec_may_name_is_there():
    assert set(STRATEGIES) == set(SCHEMA["definitions"]["Search"]["properties"]["strategy"]["enum"])


def test_records_tell_the_story():
    result = search(additive(np.random.default_rng(3), 20, 32, culprits=[(7, 3.0), (12, 2.0)]))
    first, second, third, *proofs = result.trials
    assert (len(first.high), first.passed, first.cost, first.why) == (20, True, 1, "all groups high")
    assert (second.high, second.passed, second.why) == ((), False, "nothing kept high")
    assert third.high == result.high == ("g7", "g12")
    assert {record.high for record in proofs} == {("g7",), ("g12",)}
    assert all(not r.passed and r.loss > 1 and r.cost < 1 and r.why == "one group fewer" for r in proofs)
