"""What a tensor holds, counted batch by batch, is what one look at all of it would say."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labs import Counted
from zoo_networks import dataset_for, zoo_network

from pytest_int8acc.graph.formats import FORMATS
from pytest_int8acc.graph.layout import summed_axis
from pytest_int8acc.observers.methods import CANDIDATES, calibrate
from pytest_int8acc.observers.observer import Observer
from pytest_int8acc.observers.values import BINS, Bins, TensorValues
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.tensors import Array

HALF = BINS // 2
ANY = settings(deadline=None, max_examples=25)
Batches = list[Array]


@st.composite
def batches(draw: st.DrawFn) -> Batches:
    """Batches of [samples, 3, 4], of sizes far apart; with zeros, powers of two and single values."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    found = []
    for _ in range(draw(st.integers(1, 5))):
        size = 2.0 ** draw(st.sampled_from([-60, -20, -3, 0, 0, 1, 2, 7, 30]) | st.integers(-60, 70))
        values = rng.normal(size=(draw(st.integers(1, 4)), 3, 4)) * size
        values[rng.random(values.shape) < draw(st.sampled_from([0, 0.3, 1]))] = 0
        if draw(st.booleans()):
            values.flat[0] = draw(st.sampled_from([size, -size, size * 1e-6]))
        found.append(values.astype(np.float32))
    return found


def held(found: Batches) -> TensorValues:
    """As measured in two passes: maxima first, then bins up to the greatest."""
    with np.errstate(invalid="ignore"):
        maxima = np.nan_to_num(np.abs(np.concatenate(found)).max(axis=(1, 2)), nan=np.inf, posinf=np.inf)
    channels = np.max([np.abs(batch).max(axis=(0, 2)) for batch in found], axis=0)
    values = TensorValues("t", maxima=maxima, channel_amax=channels)
    if not values.is_counted:
        return values
    bins = Bins(values.amax)
    for batch in found:
        bins.add(batch)
    return replace(values, bins=bins)


def chosen_range(values: TensorValues, name: str) -> float:
    method, options = CANDIDATES[name]
    return method.amax(values, options)


def bin_width(values: TensorValues) -> float:
    return values.amax / HALF


@ANY
@given(batches(), st.randoms())
def test_any_order_of_batches_gives_the_histogram_of_all(found: Batches, random: object) -> None:
    whole = np.concatenate(found)
    order = list(found)
    random.shuffle(order)  # type: ignore[attr-defined]
    one, other = held(found), held(order)
    np.testing.assert_array_equal(one.counts, other.counts)
    assert one.amax == other.amax == np.abs(whole).max()
    if not whole.any():
        assert not one.is_counted
        return
    expected, _ = np.histogram(whole, BINS, range=(-np.abs(whole).max(), np.abs(whole).max()))
    np.testing.assert_array_equal(one.bins.with_zeros, expected)
    assert one.zeros == other.zeros == (whole == 0).sum()
    assert one.magnitudes.sum() == whole.size - one.zeros


def test_nothing_but_zeros() -> None:
    values = held([np.zeros((2, 3, 4), np.float32)] * 2)
    assert (values.amax, values.is_counted, values.counts.any()) == (0, False, False)
    assert (values.report(), values.quantile(1.0), values.best_reach()) == (None, 0, 0)
    assert (values.channel_gain_db, values.channel_ratio()) == (0, 1)
    assert TensorValues("t").amax == 0


@pytest.mark.parametrize("broken", [np.inf, -np.inf, np.nan, 1e35])
def test_what_is_not_finite_is_not_counted(broken: float) -> None:
    values = held([np.full((2, 3, 4), broken, np.float32)])
    assert (values.is_counted, values.counts.any(), values.report()) == (False, False, None)
    assert values.best_reach() == values.amax == (np.float32(1e35) if broken == 1e35 else np.inf)
    assert values.quantile(0.9) == 0


@ANY
@given(batches(), st.floats(1e-3, 1))
def test_quantiles_are_those_of_the_values_to_a_bin(found: Batches, share: float) -> None:
    values, magnitudes = held(found), np.sort(np.abs(np.concatenate(found)), axis=None)
    exact = magnitudes[max(math.ceil(share * magnitudes.size) - 1, 0)]
    assert exact <= values.quantile(share) <= (exact + bin_width(values)) * (1 + 1e-5)  # float32


@ANY
@given(batches())
def test_percentiles_are_those_of_the_values_to_a_bin(found: Batches) -> None:
    values, magnitudes = held(found), np.sort(np.abs(np.concatenate(found)), axis=None)
    for name in CANDIDATES if values.is_counted else ():
        if name.startswith("percentile"):
            share = float(name.split()[1]) / 100
            exact = magnitudes[max(math.ceil(share * magnitudes.size) - 1, 0)]
            chosen = chosen_range(values, name)
            assert exact <= chosen <= exact + bin_width(values)


def rms_error(whole: Array, reach: float) -> float:
    """Of symmetric INT8 with this range, computed on the values themselves."""
    levels = FORMATS["int8"].levels
    step = reach / levels
    x = np.abs(whole.astype(np.float64))
    return float(np.sqrt(((np.minimum(np.rint(x / step), levels) * step - x) ** 2).mean()))


@ANY
@given(batches())
def test_the_range_of_least_error_is_that_of_the_values_to_a_bin(found: Batches) -> None:
    """A value's error changes by no more than the value moves: half a bin, from its place to the centre."""
    values, whole = held(found), np.concatenate(found)
    if not values.is_counted:
        return
    reaches = [values.amax * 2.0 ** -(i / 16) for i in range(113)]
    best = min(rms_error(whole, reach) for reach in reaches)
    for chosen in (values.best_reach(), chosen_range(values, "mse")):
        assert any(chosen == pytest.approx(reach, rel=1e-12) for reach in reaches)
        assert rms_error(whole, chosen) <= best + bin_width(values)


@ANY
@given(batches(), st.floats(0.01, 2))
def test_noise_is_that_of_the_values_to_a_bin(found: Batches, share: float) -> None:
    values, whole = held(found), np.concatenate(found)
    if not values.is_counted:
        return
    signal = float(np.sqrt((whole.astype(np.float64) ** 2).mean()))
    noise = rms_error(whole, share * values.amax)
    low, high = (noise + k * bin_width(values) for k in (-1, 1))
    least, most = (20 * math.log10(signal / n) if n > 0 else math.inf for n in (high, low))
    assert least - 0.1 <= values.sqnr_db(share * values.amax) <= most + 0.1


@ANY
@given(batches())
def test_the_greatest_maxima_are_averaged(found: Batches) -> None:
    maxima = np.sort(np.abs(np.concatenate(found)).max(axis=(1, 2)))
    values = held(found)
    assert chosen_range(values, "topk 5") == pytest.approx(maxima[-5:].mean())
    assert chosen_range(values, "minmax") == maxima[-1]


@ANY
@given(batches())
def test_the_report_counts_every_value(found: Batches) -> None:
    values = held(found)
    histogram = values.report()
    if not values.is_counted:
        assert histogram is None
        return
    assert histogram is not None
    assert (len(histogram.counts), len(histogram.edges)) == (64, 65)
    assert sum(histogram.counts) == sum(batch.size for batch in found)
    assert histogram.edges[-1] == values.amax
    exact, _ = np.histogram(np.abs(np.concatenate(found)), np.asarray(histogram.edges))
    drift = np.abs(np.cumsum(exact) - np.cumsum(histogram.counts))
    near = [
        (np.abs(np.abs(np.concatenate(found)) - edge) <= bin_width(values)).sum()
        for edge in histogram.edges[1:]
    ]
    assert (drift <= near).all()


def test_channels_that_stick_out() -> None:
    values = TensorValues("t", channel_amax=np.array([2, 8], np.float32))
    assert values.channel_ratio() == pytest.approx(8 / 5)
    assert values.channel_gain_db == pytest.approx(10 * math.log10(64 / 34))


@pytest.mark.parametrize(
    ("op_type", "index", "rank", "axis"),
    [
        ("MatMul", 0, 3, 2),
        ("Gemm", 1, 2, 0),
        ("Conv", 0, 4, 1),
        ("Conv", 0, 3, 1),
        ("Add", 0, 3, 2),
        ("Add", 0, 4, 1),
        ("Conv", 0, 1, None),
    ],
)
def test_where_channels_lie(op_type: str, index: int, rank: int, axis: int | None) -> None:
    assert summed_axis(op_type, index, rank) == axis


@pytest.mark.parametrize("name", ["residual", "mlp", "vit_gelu", "dynamic"])
def test_tensors_are_measured_once_in_two_passes(name: str, tmp_path: Path) -> None:
    data = Counted(dataset_for(name, tmp_path))
    tensors = [e.tensor for g in zoo_network(name).groups for e in g.edges if e.quantization.values is None]
    values = Observer(zoo_network(name).model, data)
    assert data.passes == 0
    first = values.of(tensors[:2])
    assert (set(first), data.passes) == (set(tensors[:2]), 2)
    every = values.of([*tensors, *tensors])
    passes = 4 if len(set(tensors)) > 2 else 2
    assert (set(every), data.passes) == (set(tensors), passes)
    assert all(every[tensor] is found for tensor, found in first.items())
    values.of(tensors)
    values.of([])
    assert data.passes == passes


@pytest.mark.parametrize(("method", "passes"), [("minmax", 1), ("topk", 1), ("entropy", 0), ("mse", 0)])
def test_what_calibration_measured_is_not_measured_again(method: Any, passes: int, tmp_path: Path) -> None:
    data, network = Counted(dataset_for("residual", tmp_path)), zoo_network("residual")
    tensors = [e.tensor for g in network.groups for e in g.edges if e.quantization.values is None]
    observed = calibrate(network.model, list(dict.fromkeys(tensors)), data, method=method).observed
    assert observed is not None
    before = data.passes
    found = observed.of(tensors)
    assert data.passes - before == passes
    alone = Observer(network.model, data).of(tensors)
    for tensor in tensors:
        np.testing.assert_array_equal(found[tensor].counts, alone[tensor].counts)
        np.testing.assert_array_equal(found[tensor].maxima, alone[tensor].maxima)


@pytest.mark.parametrize("name", ["residual", "mobilenet", "vit_gelu"])
def test_values_are_those_that_the_model_computes(name: str, tmp_path: Path) -> None:
    network, data = zoo_network(name), dataset_for(name, tmp_path)
    inputs = {info.name for info in network.model.inputs}
    edges = [e for g in network.groups for e in g.edges if e.quantization.values is None]
    op_types = {node.name: node.op_type for node in network.model.graph.node}
    readers = {e.tensor: (op_types[e.node], e.index) for e in reversed(edges)}
    edit = network.model.edit()
    outputs = {v.name for v in edit.graph.output}
    shown = [t for t in readers if t not in inputs | outputs]
    infos = {v.name: v for v in edit.graph.value_info}
    edit.graph.output.extend(infos[t] for t in shown if t in infos)
    run = OrtEngine(edit.done())
    found = Observer(network.model, data).of(readers)
    seen: dict[str, list[Array]] = {}
    for batch in data.batches():
        for tensor, array in {**batch.feed, **run(batch.feed)}.items():
            seen.setdefault(tensor, []).append(array[: batch.rows])
    for tensor in readers.keys() & seen.keys():
        whole = np.concatenate(seen[tensor])
        assert found[tensor].amax == pytest.approx(float(np.abs(whole).max()), rel=1e-5)
        assert found[tensor].counts.sum() + found[tensor].zeros == whole.size
        axis = summed_axis(*readers[tensor], whole.ndim)
        if axis:
            others = tuple(i for i in range(whole.ndim) if i != axis)
            np.testing.assert_allclose(found[tensor].channel_amax, np.abs(whole).max(axis=others), rtol=1e-5)
