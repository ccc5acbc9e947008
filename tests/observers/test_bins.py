"""Bins are numpy.histogram's to the last count, whoever counts: values on an edge move no threshold."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from zoo import ZOO
from zoo_networks import zoo_model

from pytest_int8acc.data import Dataset, RandomSource, open_dataset
from pytest_int8acc.graph.layout import find_groups
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.opsets import raise_opset
from pytest_int8acc.observers.collect import collect_histograms, collect_maxima
from pytest_int8acc.observers.values import Bins, TensorValues
from pytest_int8acc.runtime.onnxruntime import CPU, Sessions

needs_cuda = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        shutil.which("nvidia-smi") is None
        or "CUDAExecutionProvider" not in onnxruntime.get_available_providers(),
        reason="needs an NVIDIA GPU and CUDA: pip install -e '.[gpu,dev]', then pytest -m gpu -s",
    ),
]


@dataclass(frozen=True)
class InGraph(Sessions):
    """The CPU, treated as a device that only the graph can read fast."""

    @property
    def on_device(self) -> bool:
        return True


@st.composite
def arrays(draw: st.DrawFn) -> NDArray[np.float32]:
    """Values of any size, on edges of the bins, next to them, and zeros."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    amax = np.float32(10.0 ** draw(st.floats(-25, 25)))
    size = draw(st.sampled_from([1, 7, 300, 70_000]))
    values = (rng.uniform(-1, 1, size) * amax).astype(np.float32)
    bins = draw(st.sampled_from([2048, 1 << 15]))
    edges = np.linspace(-amax, amax, bins + 1, dtype=np.float32)
    on = edges[rng.integers(bins + 1, size=size)]
    near = np.nextafter(on, np.float32(draw(st.sampled_from([-np.inf, np.inf]))))
    values = np.concatenate([values, on, np.clip(near, -amax, amax), [amax, -amax, 0]])
    return values.astype(np.float32)


@given(arrays(), st.sampled_from([128, 2048, 1 << 15]))
@settings(deadline=None, max_examples=30)
def test_counts_are_those_of_numpy(values: NDArray[np.float32], size: int) -> None:
    amax = np.abs(values).max()
    bins = Bins(float(amax), size)
    for part in np.array_split(values, 3):
        bins.add(part)
    expected, _ = np.histogram(values, size, range=(-amax, amax))
    np.testing.assert_array_equal(bins.with_zeros, expected)
    assert bins.zeros == (values == 0).sum()
    np.testing.assert_array_equal(bins.merged(64), bins.counts.reshape(64, -1).sum(axis=1))


def test_what_is_beyond_the_ends_belongs_to_the_last_bins() -> None:
    bins = Bins(1.0, 128)
    bins.add(np.array([-1.1, -1, 1, np.nextafter(np.float32(1), np.float32(2)), 3], np.float32))
    assert (bins.counts[0], bins.counts[-1], bins.counts.sum()) == (2, 3, 5)


@pytest.mark.parametrize(
    ("amax", "counted"), [(0.0, False), (1e-35, False), (1e35, False), (np.inf, False), (2.0, True)]
)
def test_ranges_that_float32_cannot_divide_are_not_counted(amax: float, counted: bool) -> None:
    assert TensorValues("t", maxima=np.array([amax], np.float32)).is_counted is counted


def case(name: str, folder: Path, samples: int = 11) -> tuple[Model, list[str], Dataset]:
    model = raise_opset(zoo_model(name), 17)
    data = open_dataset(RandomSource(samples=samples, seed=2), model.inputs, base=folder)
    return model, list(find_groups(model).activations), data


@pytest.mark.parametrize("name", sorted({"mobilenet", "residual", "vit_gelu", "mlp"} & set(ZOO)))
def test_the_graph_counts_and_reduces_as_numpy_does(name: str, tmp_path: Path) -> None:
    model, tensors, data = case(name, tmp_path)
    here, there = (collect_maxima(model, tensors, data, sessions) for sessions in (CPU, InGraph()))
    for tensor in tensors:
        np.testing.assert_array_equal(here[tensor].maxima, there[tensor].maxima)
        np.testing.assert_array_equal(here[tensor].channel_amax, there[tensor].channel_amax)
    assert any(values.channel_amax is not None for values in here.values())
    ours, theirs = (collect_histograms(model, here, data, sessions) for sessions in (CPU, InGraph()))
    for tensor in tensors:
        np.testing.assert_array_equal(ours[tensor].counts, theirs[tensor].counts)
        assert ours[tensor].zeros == theirs[tensor].zeros


@pytest.mark.parametrize("name", ["mobilenet", "vit_gelu"])
@pytest.mark.parametrize("provider", [pytest.param("cuda", marks=needs_cuda)])
def test_cuda_counts_what_the_cpu_counts(name: str, provider: str, tmp_path: Path) -> None:
    """Inputs to the bit; what layers make to where kernels round otherwise."""
    model, tensors, data = case(name, tmp_path, samples=40)
    inputs = [info.name for info in model.inputs]
    sessions = Sessions("cuda")
    found = {s: collect_maxima(model, [*inputs, *tensors], data, s) for s in (CPU, sessions)}
    counts = {s: collect_histograms(model, found[CPU], data, s, 2048) for s in (CPU, sessions)}
    for tensor in inputs:
        np.testing.assert_array_equal(found[CPU][tensor].maxima, found[sessions][tensor].maxima)
        np.testing.assert_array_equal(counts[CPU][tensor].counts, counts[sessions][tensor].counts)
    for tensor in tensors:
        ours, theirs = counts[CPU][tensor].bins, counts[sessions][tensor].bins
        np.testing.assert_allclose(found[CPU][tensor].amax, found[sessions][tensor].amax, rtol=1e-3)
        assert ours.counts.sum() + ours.zeros == theirs.counts.sum() + theirs.zeros
        drift = np.abs(np.cumsum(ours.with_zeros) - np.cumsum(theirs.with_zeros)).max()
        assert drift <= 0.01 * (ours.counts.sum() + ours.zeros)
