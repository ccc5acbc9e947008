from __future__ import annotations

import math

import numpy as np
import pytest
from fake_evaluators import criterion
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_int8acc.search.ledger import Samples
from pytest_int8acc.search.types import Trial

MEAN, WORST = criterion("mean"), criterion("worst", "rank")


def trial(parts, *, passed=False):
    parts = np.atleast_2d(np.asarray(parts, float))
    seen = ~np.isnan(parts)
    losses = tuple(float(row[mask].mean()) for row, mask in zip(parts, seen, strict=True))
    return Trial(frozenset(), passed, losses, losses, parts, 1.0, bool(seen.all()))


def partly(parts, order, count):
    """The parts of the first samples in order; nan for the others."""
    parts = np.atleast_2d(np.asarray(parts, float))
    seen = np.full_like(parts, math.nan)
    seen[:, order[:count]] = parts[:, order[:count]]
    return seen


@given(
    count=st.integers(1, 70),
    seed=st.integers(0, 1000),
    criteria=st.lists(st.sampled_from([MEAN, WORST, criterion("user", "whole")]), min_size=1, max_size=3),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_order_is_all_samples(count, seed, criteria):
    samples = Samples(criteria, count)
    rng = np.random.default_rng(seed)
    for _ in range(3):
        assert sorted(samples.order()) == list(range(count))
        samples.learn(trial(rng.random((len(criteria), count))))


def test_hardest_run_first_where_the_worst_decides():
    samples = Samples([WORST], 6)
    samples.learn(trial([1, 5, 2, 4, 0, 3]))
    assert samples.order() == [1, 3, 5, 2, 0, 4]


def test_every_prefix_is_a_spread_where_a_mean_decides():
    samples = Samples([MEAN], 64)
    hardness = np.random.default_rng(0).permutation(64)
    samples.learn(trial(hardness))
    order = samples.order()
    for count in (8, 16, 32):
        assert np.sort(hardness[order[:count]]).tolist() == list(range(64 // count - 1, 64, 64 // count))


def test_hardness_fades():
    samples = Samples([WORST], 2)
    samples.learn(trial([1, 0]))
    samples.learn(trial([0, 1]))
    assert samples.ranked() == [1, 0]


def test_samples_not_seen_keep_their_rank():
    samples = Samples([WORST], 3)
    samples.learn(trial([3, 2, 1]))
    samples.learn(trial([math.nan, math.nan, 1]))
    assert samples.ranked()[0] == 2
    assert samples.ranked()[1:] == [0, 1]


@pytest.mark.parametrize(
    ("criterion", "parts", "rejected"),
    [
        (WORST, [0.9, 1.0, math.nan], False),
        (WORST, [0.9, 1.01, math.nan], True),
        (criterion("top-1", "rank", 1), [1.5, 0.2, math.nan], False),
        (criterion("top-1", "rank", 1), [1.5, 1.2, math.nan], True),
        (MEAN, [2.9, math.nan, math.nan], False),
        (MEAN, [3.1, math.nan, math.nan], True),
        (criterion("user", "whole"), [math.nan] * 3, False),
    ],
)
def test_proofs(criterion, parts, rejected):
    assert Samples([criterion], 3).rejects(np.array([parts]), None) is rejected


def test_any_criterion_rejects():
    parts = np.array([[0.1, 0.1, math.nan], [0.2, 1.2, math.nan]])
    assert Samples([MEAN, WORST], 3).rejects(parts, None)
    assert not Samples([MEAN, MEAN], 3).rejects(parts, None)


def draws(seed, count, loss, likeness):
    """A passing reference, and a plan of the given loss whose parts are more or less like the reference's."""
    rng = np.random.default_rng(seed)
    hardness = rng.lognormal(0, 0.7, count)
    reference = hardness * rng.lognormal(0, 0.2, count)
    added = hardness**likeness * rng.lognormal(0, 0.5, count)
    reference *= 0.9 / reference.mean()
    parts = reference + added * (loss - 0.9) / added.mean()
    return reference, parts * loss / parts.mean()


@pytest.mark.parametrize("likeness", [0.0, 2.0])
@pytest.mark.parametrize("count", [16, 128])
def test_plans_that_pass_are_hardly_ever_rejected(count, likeness):
    """The worst case: a plan that only just passes, looked at after every eighth of the samples."""
    wrong = 0
    for seed in range(100):
        reference, parts = draws(seed, count, 0.999, likeness)
        samples = Samples([MEAN], count)
        samples.learn(trial(reference))
        order = samples.order()
        wrong += any(
            samples.rejects(partly(parts, order, seen), trial(reference, passed=True))
            for seen in range(count // 8, count, count // 8)
        )
    assert wrong <= 1


@pytest.mark.parametrize(("loss", "share"), [(1.5, 0.5), (3.0, 0.2), (10.0, 0.15)])
def test_plans_that_fail_are_rejected_early(loss, share):
    seen = []
    for seed in range(50):
        reference, parts = draws(seed, 128, loss, 1.0)
        samples = Samples([MEAN], 128)
        samples.learn(trial(reference))
        order = samples.order()
        rejected = (
            n
            for n in range(4, 129, 4)
            if samples.rejects(partly(parts, order, n), trial(reference, passed=True))
        )
        seen.append(next(rejected, 128) / 128)
    assert np.mean(seen) < share


def test_estimate():
    reference, parts = draws(0, 128, 1.5, 1.0)
    samples = Samples([MEAN], 128)
    samples.learn(trial(reference))
    order = samples.order()
    passing = trial(reference, passed=True)
    assert samples.estimate(trial(partly(parts, order, 24)), passing)[0] == pytest.approx(1.5, rel=0.1)
    assert samples.estimate(trial(parts), passing)[0] == pytest.approx(1.5)
    assert math.isnan(samples.estimate(trial(partly(parts, order, 4)), passing)[0])


def test_estimate_of_a_rank_is_what_was_seen():
    samples = Samples([criterion("top-1", "rank", 1)], 4)
    assert samples.estimate(trial([3.0, 2.0, 1.5, math.nan]), None)[0] == 2.0
