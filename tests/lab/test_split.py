"""The samples that choose and those that prove: both are like the whole, and nothing leaks between them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pytest_int8acc.lab.split import split

#: Fewer samples, or fewer groups of them, are not split.
LEAST = 24


@given(st.integers(0, 400), st.integers(0, 9), st.booleans())
def test_the_parts_are_disjoint_and_one_third_proves(samples: int, seed: int, classes: bool) -> None:
    rng = np.random.default_rng(samples)
    errors, margins = rng.random(samples), rng.random(samples) if classes else np.zeros(samples)
    parts = split(errors, margins, seed)
    if samples < LEAST:
        assert parts == ((), ())
        return
    assert sorted([*parts.choosing, *parts.held_out]) == list(range(samples))
    assert len(parts.held_out) == samples // 3
    assert split(errors, margins, seed) == parts


@given(st.integers(LEAST, 400), st.integers(0, 9))
def test_both_parts_have_samples_of_small_and_of_large_errors(samples: int, seed: int) -> None:
    errors = np.random.default_rng(seed).permutation(samples).astype(float)
    parts = split(errors, np.zeros(samples), seed)
    for part in parts:
        ranks = np.sort(errors[list(part)])
        assert ranks[0] < 3
        assert ranks[-1] >= samples - 5
        assert np.diff(ranks).max() <= 5


@given(st.integers(0, 60), st.integers(1, 9), st.integers(0, 9))
def test_samples_that_belong_together_choose_or_prove_together(groups: int, each: int, seed: int) -> None:
    rng = np.random.default_rng(groups)
    of = rng.permutation(np.arange(groups).repeat(each))
    parts = split(rng.random(len(of)), rng.random(len(of)), seed, of)
    choosing, held_out = ({int(of[sample]) for sample in part} for part in parts)
    assert not choosing & held_out
    assert len(held_out) == (groups // 3 if groups >= LEAST else 0)
    assert len(parts.held_out) == len(held_out) * each


def test_errors_that_are_not_finite_are_shared_out() -> None:
    errors = np.full(30, 0.1)
    errors[:9] = [np.inf, np.nan] * 4 + [np.inf]
    parts = split(errors, np.zeros(30))
    assert 2 <= len({sample for sample in parts.held_out if sample < 9}) <= 4
