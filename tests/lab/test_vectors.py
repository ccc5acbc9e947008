"""Error vectors of a few samples: as long as their parts of the loss, and linear in the error."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from sample_outputs import Samples, one

from pytest_int8acc.case.trials import SampleBaseline
from pytest_int8acc.lab.vectors import Prober, sampled
from pytest_int8acc.scores.criteria import OutputLimits
from pytest_int8acc.scores.judge import Judge
from pytest_int8acc.scores.metrics import METRICS

FLOATS = [name for name, metric in METRICS.items() if "floats" in metric.kinds]


def probed(judge: SampleBaseline, samples: list[int], outputs: Samples) -> Any:
    return Prober(judge).probe(samples, [(samples, outputs)])


@pytest.mark.parametrize("metric", [name for name in FLOATS if not name.startswith("top")])
def test_lengths_of_vectors_are_the_parts(metric: str) -> None:
    """Exactly for sums and maxima of errors, to second order in the error for cosine and KL."""
    b, c = one(8, 20, noise=1e-3)
    best_is_0 = METRICS[metric].bound == "max"
    limit = 20.0 if metric.endswith("_db") else 0.01 if best_is_0 else 0.99
    judge = SampleBaseline({"y": b}, Judge([OutputLimits("y", limits={metric: limit})]))
    some = [5, 1, 2]
    probe = probed(judge, some, {"y": [c[i] for i in some]})
    sizes = np.abs(probe.vectors[0]).astype(np.float64) ** Prober(judge).targets[0].power
    lengths = sizes.max(axis=1) if judge.criteria[0].pool == "rank" else sizes.sum(axis=1)
    np.testing.assert_allclose(lengths, probe.parts[0], rtol=0.02 if metric in ("cosine", "kl") else 1e-4)


@pytest.mark.parametrize("metric", [name for name in FLOATS if name != "kl"])
def test_vectors_are_linear_in_the_error(metric: str) -> None:
    b, c = one(4, 7)
    judge = SampleBaseline({"y": b}, Judge([OutputLimits("y", limits={metric: 0.5})]))
    twice = [y + 2 * (z - y) for y, z in zip(b, c, strict=True)]
    once, double = (probed(judge, [0, 3], {"y": [a[0], a[3]]}).vectors[0] for a in (c, twice))
    if metric.startswith("top"):  # only what moves towards another class counts
        once, double = np.maximum(once, 0), np.maximum(double, 0)
    np.testing.assert_allclose(double, 2 * once, rtol=1e-4, atol=1e-5)


def test_long_vectors_are_sampled_evenly_and_keep_their_length() -> None:
    rows = np.random.default_rng(0).normal(size=(3, 50_000)).astype(np.float32)
    short = sampled(rows, 50_000)
    assert short.shape == (3, 4096)
    np.testing.assert_array_equal(short, sampled(rows, 50_000))
    np.testing.assert_allclose(np.linalg.norm(short, axis=1), np.linalg.norm(rows, axis=1), rtol=0.05)
    ragged = sampled([rows[0, :10], rows[1, :30]], 30)
    assert ragged.shape == (2, 30)
    np.testing.assert_array_equal(ragged[1], rows[1, :30])


@pytest.mark.parametrize("metric", [name for name in FLOATS if not name.startswith("top")])
def test_vectors_of_long_outputs_are_those_of_all_elements_sampled(metric: str) -> None:
    b, c = one(2, 50_000)
    judge = SampleBaseline({"y": b}, Judge([OutputLimits("y", limits={metric: 0.5})]))
    every = judge.limits[0].share.vectors(np.concatenate(b), np.concatenate(c), 2)
    (found,) = Prober(judge).vectors([0, 1], [([0, 1], {"y": c})])
    np.testing.assert_array_equal(found, sampled(every, 50_000))


def test_vectors_of_dense_outputs_take_no_copy_of_an_output() -> None:
    """An output of 8 MB. Its error in float64, of all elements, would take 16 MB."""
    b, c = one(1, 1 << 21)
    judge = SampleBaseline({"y": b}, Judge([OutputLimits("y", limits={"sqnr_db": 20})]))
    prober = Prober(judge)
    tracemalloc.start()
    try:
        prober.vectors([0], [([0], {"y": c})])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_broken_candidates_make_long_vectors_and_no_nan() -> None:
    b, c = one(4, 7, noise=0.01)
    for metric in FLOATS:
        judge = SampleBaseline({"y": b}, Judge([OutputLimits("y", limits={metric: 0.5})]))
        broken = [np.full_like(c[0], np.nan), c[1][:, :5], np.where(c[2] > 0, np.inf, c[2])]
        probe = probed(judge, [0, 1, 2], {"y": broken})
        assert np.isfinite(probe.vectors[0]).all(), metric
        good = probed(judge, [0, 1, 2], {"y": c[:3]})
        lengths = np.linalg.norm(probe.vectors[0], axis=1)
        assert (lengths > np.linalg.norm(good.vectors[0], axis=1)).all(), metric
        assert lengths[0] > 2 * lengths[1] or not metric.endswith(("_db", "_abs")), (
            "NaN is worse than nothing"
        )
        assert np.isposinf(probe.parts).all(), metric
