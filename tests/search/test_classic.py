from __future__ import annotations

import numpy as np
import pytest
from fake_evaluators import indices
from fake_suite import additive, cancelling

from pytest_int8acc.results import Ending
from pytest_int8acc.search.strategies import search


def problem(*culprits, groups=20):
    return additive(np.random.default_rng(3), groups, 32, culprits=[(i, 3.0) for i in culprits])


@pytest.mark.parametrize(
    ("strategy", "kept", "end"),
    [
        ("bisect", range(0, 13), "first"),
        ("linear", range(0, 13), "first"),
        ("bisect-reverse", range(7, 20), "last"),
        ("linear-reverse", range(7, 20), "last"),
    ],
)
def test_prefix_or_suffix(strategy, kept, end):
    result = search(problem(7, 12), strategy)
    assert result.high == tuple(f"g{i}" for i in kept)
    assert result.passed
    assert not result.minimal
    assert result.ending == Ending(end, 13, 20)


@pytest.mark.parametrize("strategy", ["bisect", "linear", "worst-first", "forward"])
def test_nothing_kept_comes_first(strategy):
    first, second, *_ = search(problem(7, 12), strategy).trials
    assert first.high == ()
    assert len(second.high) == 20


def test_trials_of_bisect_and_linear():
    assert [len(r.high) for r in search(problem(7, 12), "bisect").trials] == [0, 20, 10, 15, 12, 13]
    assert [len(r.high) for r in search(problem(2), "linear").trials] == [0, 20, 1, 2, 3]


def test_bisect_returns_what_passes_where_accuracy_is_not_monotone():
    for seed in range(6):
        evaluator = cancelling(np.random.default_rng(seed), 20, 16)
        for strategy in ("bisect", "bisect-reverse", "linear", "linear-reverse", "worst-first", "forward"):
            result = search(evaluator, strategy)
            assert result.passed
            assert evaluator.passes(indices(evaluator, result.high))


def test_worst_first_by_errors_at_the_outputs():
    evaluator = problem(7, 12)
    result = search(evaluator, "worst-first")
    assert result.high == ("g7", "g12")
    assert evaluator.probes == 20
    assert result.ending == Ending("worst", 2, 20)


def test_forward_and_its_table():
    result = search(problem(3, 7), "forward")
    assert result.high == ("g3", "g7")
    assert result.ending == Ending("visited", 2, 20)
    assert [row.index for row in result.table] == list(range(20))
    assert [row.layer for row in result.table if row.chosen] == ["g3", "g7"]
    assert [row.shape for row in result.table][:2] == ["[0]", "[1]"]
    assert all(bool(row.line) == row.chosen for row in result.table)
    assert result.table[3].line.startswith(
        "Choose layer [3] running higher precision mode because it leads the similarity of network output "
    )
    assert result.table[3].similarity > 1 > result.table[2].similarity  # the fake's score is its loss
    assert all(record.cost == 1 for record in result.trials[2:])


def test_forward_visits_every_layer_after_those_chosen():
    result = search(problem(3, 7), "forward")
    tried = [len(record.high) for record in result.trials[2:]]
    assert tried == [19, 18, 17, 16, 16, 15, 14, 13, 13, *range(12, 1, -1)]
