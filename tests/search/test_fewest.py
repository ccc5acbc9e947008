"""The search where groups are suspected: overflows, which are gone only with all that they pass through."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from fake_evaluators import Fake, Limit, indices
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_int8acc.clock import Budget
from pytest_int8acc.search.strategies import fewest
from pytest_int8acc.search.types import GroupInfo


class Overflows(Fake):
    """Infinite until all groups of each of some sets are high; of any one set where they are ``either``."""

    def __init__(self, count: int, sets: list[frozenset[int]], *, either: bool = False) -> None:
        groups = [GroupInfo(f"g{i}", 1.0) for i in range(count)]
        super().__init__(groups, [np.ones((8, 4))], [Limit(0, "max_abs", 1.0)])
        self.sets, self.either = sets, either

    def error(self, high, samples):
        met = [needed <= high for needed in self.sets]
        fine = any(met) if self.either else all(met)
        return [np.full((len(samples), 4), 0.0 if fine else np.inf)]


def checked(evaluator: Overflows, order: list[int]) -> frozenset[int]:
    result = fewest(evaluator, order)
    high = indices(evaluator, result.high)
    assert result.passed
    assert result.minimal
    assert result.ending.kind == "proven"
    assert evaluator.passes(high)
    assert not [i for i in high if evaluator.passes(high - {i})]
    assert len({plan for plan, _ in evaluator.trials}) == len(evaluator.trials), "a plan was tried twice"
    return high


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 60), st.randoms())
def test_it_finds_exactly_what_must_be_high(count: int, chance: random.Random) -> None:
    guilty = frozenset(chance.sample(range(count), chance.randint(1, min(count, 6))))
    order = chance.sample(range(count), count)
    evaluator = Overflows(count, [guilty])
    assert checked(evaluator, order) == guilty
    allowed = 4 + 2 * math.log2(count + 1) + len(guilty) * (2 * math.log2(count + 1) + 3)
    assert len(evaluator.trials) <= allowed


def test_the_first_suspects_are_found_in_few_trials() -> None:
    evaluator = Overflows(200, [frozenset({3, 70, 71})])
    assert checked(evaluator, [70, 71, 3, *sorted(set(range(200)) - {3, 70, 71})]) == {3, 70, 71}
    assert len(evaluator.trials) <= 12


def test_of_two_ways_out_one_is_taken() -> None:
    evaluator = Overflows(20, [frozenset({1, 2}), frozenset({8, 9, 10})], either=True)
    assert checked(evaluator, list(range(20))) in ({1, 2}, {8, 9, 10})


def test_nothing_is_searched_where_nothing_is_wrong() -> None:
    evaluator = Overflows(5, [frozenset()])
    result = fewest(evaluator, range(5))
    assert result.ending.kind == "int8-passes"
    assert not result.high


def test_where_all_high_fails_no_group_is_at_fault() -> None:
    evaluator = Overflows(5, [frozenset({7})])
    assert fewest(evaluator, range(5)).ending.kind == "high-fails"


@pytest.mark.parametrize("most", [3, 5, 8])
def test_a_budget_ends_it_with_the_best_so_far(most: int) -> None:
    evaluator = Overflows(40, [frozenset({5, 17, 33})])
    result = fewest(evaluator, range(40), budget=Budget(max_trials=most))
    assert result.ending.kind == "trials-spent"
    assert len(result.trials) == most
    assert result.passed == evaluator.passes(indices(evaluator, result.high))
