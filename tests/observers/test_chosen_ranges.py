"""Thresholds from cumulative sums are those of ONNX Runtime's loops, and of plain sums over every bin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnxruntime.quantization.calibrate import HistogramCollector

from pytest_int8acc.data import RandomSource, open_dataset
from pytest_int8acc.graph.formats import FORMATS
from pytest_int8acc.graph.layout import find_groups
from pytest_int8acc.graph.load import load_model, normalize
from pytest_int8acc.observers.observer import Observer
from pytest_int8acc.observers.ranges import ENTROPY_BINS, entropy_amax, mse_amax
from pytest_int8acc.observers.values import BINS

MODELS = Path(__file__).parents[2] / "benchmarks" / "models"
Counts = NDArray[np.int64]


def theirs(counts: Counts, amax: float) -> float:
    collector = HistogramCollector("entropy", True, counts.size, 128, 100.0, "same")
    top = np.float32(amax)
    edges = np.linspace(-top, top, counts.size + 1, dtype=np.float32)
    low, high = collector.get_entropy_threshold((counts, edges, -top, top), 128)
    return float(min(max(abs(low), abs(high)), amax))


def by_every_bin(counts: Counts, amax: float) -> dict[float, float]:
    """Squared error of each range that the mse method tries, summed bin by bin."""
    half = counts.size // 2
    weights, centres = counts[half:] + counts[:half][::-1], (np.arange(half) + 0.5) / half
    return {
        amax * share: float(
            (weights * (FORMATS["int8"].fake_quantize(centres, share / 127) - centres) ** 2).sum()
        )
        for share in 2.0 ** -np.arange(0, 7.01, 1 / 16)
    }


@st.composite
def histograms(draw: st.DrawFn) -> tuple[Counts, float]:
    """Of few and many values, of one sign or two, with outliers and gaps."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = draw(st.sampled_from([1, 2, 30, 1000, 100_000]))
    kind: Any = draw(
        st.sampled_from(["standard_normal", "standard_cauchy", "standard_exponential", "random"])
    )
    values = getattr(rng, kind)(size)
    if draw(st.booleans()):
        values = np.round(values, draw(st.integers(0, 2))) + 1e-3
    amax = float(np.float32(np.abs(values).max()))
    counts, _ = np.histogram(values, ENTROPY_BINS, range=(-amax, amax))
    return counts.astype(np.int64) * draw(st.sampled_from([1, 1, 977])), amax


@given(histograms())
@settings(deadline=None, max_examples=3)
def test_thresholds_of_any_histogram_are_onnx_runtimes(found: tuple[Counts, float]) -> None:
    assert entropy_amax(*found) == theirs(*found)


def test_thresholds_of_real_tensors_are_onnx_runtimes(tmp_path: Path) -> None:
    model = normalize(load_model(MODELS / "mobilenet.onnx"))
    tensors = find_groups(model).activations
    data = open_dataset(RandomSource(samples=32, seed=3), model.inputs, base=tmp_path)
    counted = Observer(model, data).of([tensors[0], tensors[-1]])
    assert len(counted) == 2
    for tensor, held in counted.items():
        amax, counts = held.amax, held.bins.merged(ENTROPY_BINS)
        assert entropy_amax(counts, amax) == theirs(counts, amax), tensor
        errors = by_every_bin(held.counts, amax)
        assert errors[mse_amax(held.counts, amax)] == pytest.approx(min(errors.values()), rel=1e-9), tensor


def test_fewer_bins_end_where_numpys_end() -> None:
    for amax in np.random.default_rng(1).uniform(1e-3, 1e3, 50).astype(np.float32):
        fine = np.linspace(-amax, amax, BINS + 1, dtype=np.float32)
        coarse = np.linspace(-amax, amax, ENTROPY_BINS + 1, dtype=np.float32)
        np.testing.assert_array_equal(fine[:: BINS // ENTROPY_BINS], coarse)
