"""What a score makes of a limit: 1 where it is met exactly."""

from __future__ import annotations

import math

import pytest

from pytest_int8acc.results import Score


@pytest.mark.parametrize(
    ("score", "normalized_loss"),
    [
        (Score("y", "cosine", 0.5), 0.0),
        (Score("engine", "speedup", 3.0, 1.5), 0.5),
        (Score("engine", "speedup", 0.0, 1.5), math.inf),
        (Score("y", "sqnr_db", 17.0, 20.0), 10**0.3),
        (Score("y", "sqnr_db", math.inf, 20.0), 0.0),
        (Score("y", "sqnr_db", -math.inf, 20.0), 1e300),
        (Score("y", "psnr_db", 30.0, 20.0), 0.1),
        (Score("y", "cosine", 0.98, 0.99), 2.0),
        (Score("y", "cosine", 1.0, 1.0), 0.0),
        (Score("y", "cosine", 0.9999, 1.0), math.inf),
        (Score("y", "cosine", math.nan, 0.9), math.inf),
        (Score("y", "max_abs", 3.0, 2.0, bound="max"), 1.5),
        (Score("y", "max_abs", 0.0, 0.0, bound="max"), 0.0),
        (Score("y", "max_abs", 0.1, 0.0, bound="max"), math.inf),
        (Score("y", "agreement", 0.97, 0.99), 3.0),
        (Score("y", "agreement", math.nextafter(0.001, 0), 0.001), 1.0),
        (Score("m", "top1", 0.79, 0.8 - 0.02, baseline=0.8), 0.5),
        (Score("m", "top1", 0.9, 0.78, baseline=0.8), 0.0),
        (Score("m", "top1", 0.7, 0.9, baseline=0.8), math.inf),
        (Score("m", "loss", 1.3, 1.2, bound="max", baseline=1.0), 1.5),
        (Score("m", "loss", 0.9, 1.2, bound="max", baseline=1.0), 0.0),
    ],
)
def test_strain_is_what_is_lost_over_what_may_be(score: Score, normalized_loss: float) -> None:
    assert score.normalized_loss == pytest.approx(normalized_loss)
    assert (score.normalized_loss <= 1) == score.passed
