from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser
from spec_texts import METHODS

from pytest_int8acc import ScalesError
from pytest_int8acc.data import Batch, RandomSource, open_dataset
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.observers.methods import Options, calibrate
from pytest_int8acc.observers.ranges import ENTROPY_BINS, entropy_amax

RNG = np.random.default_rng(7)
GAUSS = RNG.standard_normal((200, 50)).astype(np.float32)
HEAVY = RNG.standard_t(3, (200, 50)).astype(np.float32)


class Samples:
    """A dataset in memory."""

    is_random = False
    description = "arrays"

    def __init__(self, x: Any, batch: int = 64) -> None:
        self.x, self.batch, self.samples = x, batch, len(x)

    def batches(self) -> Iterator[Batch]:
        for i in range(0, len(self.x), self.batch):
            part = self.x[i : i + self.batch]
            yield Batch({"x": part}, len(part))


def model_of(body: str = "y = Relu(x)", width: int = 50) -> Model:
    graph = f"agraph (float[N, {width}] x) => (float[N, {width}] y) {{ {body} }}"
    return make_model(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{graph}'))


def amax_of(x: Any, method: Any, batch: int = 64, **options: Any) -> float:
    scales = calibrate(model_of(), ["x"], Samples(x, batch), method=method, options=Options(**options))  # type: ignore[arg-type]
    return scales.values["x"] * 127


@pytest.mark.parametrize("x", [GAUSS, HEAVY, GAUSS + 3, -np.abs(GAUSS)])
def test_minmax_is_the_greatest_magnitude(x: Any) -> None:
    scales = calibrate(model_of(), ["x", "y"], Samples(x), method="minmax")  # type: ignore[arg-type]
    assert scales.values["x"] == np.float32(float(np.abs(x).max()) / 127)
    assert scales.source == "minmax over 200 samples, arrays"


@pytest.mark.parametrize("percentile", [50.0, 90.0, 99.0, 99.9, 100.0])
@pytest.mark.parametrize("x", [GAUSS, HEAVY, GAUSS + 3])
def test_percentile_is_that_of_numpy(x: Any, percentile: float) -> None:
    magnitudes = np.sort(np.abs(x), axis=None)  # NumPy may round 99.9 % of 10000 up
    expected = magnitudes[math.ceil(Fraction(str(percentile)) / 100 * magnitudes.size) - 1]
    amax = amax_of(x, "percentile", percentile=percentile)
    width = float(np.abs(x).max()) / (1 << 14)
    assert expected - 1e-5 <= amax <= expected + 2 * width


def test_percentile_of_values_far_below_an_outlier_is_not_zero() -> None:
    x = GAUSS.copy()
    x[0, 0] = 1e9
    assert 1 < amax_of(x, "percentile", percentile=99) <= 1e9 / (1 << 14) * 1.001


def test_entropy_clips_a_heavy_outlier_and_keeps_the_rest() -> None:
    x = GAUSS.copy()
    x[0, 0] = 100
    assert 3 < amax_of(x, "entropy") < 30


def test_entropy_is_not_drawn_in_by_the_zeros_of_a_relu() -> None:
    x = RNG.standard_normal((200, 500)).astype(np.float32)
    model = model_of(width=500)
    scales = calibrate(model, ["y"], Samples(x), method="entropy")  # type: ignore[arg-type]
    y = np.maximum(x, 0)
    assert np.mean(y > scales.values["y"] * 127) < 1e-3
    counts, _ = np.histogram(y, ENTROPY_BINS, range=(-y.max(), y.max()))
    assert np.mean(y > entropy_amax(counts, float(y.max()))) > 1e-3  # as ONNX Runtime counts


@pytest.mark.parametrize("method", METHODS)
def test_the_batch_size_makes_no_difference(method: Any) -> None:
    assert amax_of(HEAVY, method, batch=200) == pytest.approx(amax_of(HEAVY, method, batch=7), rel=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_no_method_widens_the_range_or_gives_zero(method: Any) -> None:
    for x in (GAUSS * 1e-20, GAUSS * 1e20, np.full((3, 50), 5, np.float32), GAUSS[:1]):
        amax = amax_of(x.astype(np.float32), method)
        assert 0 < amax <= float(np.abs(x).max()) * 1.000001


@pytest.mark.parametrize("method", ["minmax", "entropy", "topk"])
def test_a_tensor_that_is_always_zero_gets_a_harmless_scale_and_a_note(method: Any) -> None:
    model = model_of("y = Sub(x, x)")
    scales = calibrate(model, ["x", "y"], Samples(GAUSS[:8]), method=method)  # type: ignore[arg-type]
    assert scales.values["y"] == np.float32(1 / 127)
    assert scales.notes == ("always zero in calibration, so given the scale 1/127: 'y'",)


@pytest.mark.parametrize("method", ["minmax", "entropy", "mse"])
def test_an_overflow_in_calibration_names_the_tensor(method: Any) -> None:
    with pytest.raises(ScalesError, match=r"inf or nan in 'y'.*calibration data"):
        calibrate(model_of("y = Log(x)"), ["x", "y"], Samples(GAUSS[:8]), method=method)  # type: ignore[arg-type]


def test_random_data_is_said(tmp_path: Path) -> None:
    model = model_of()
    dataset = open_dataset(RandomSource(samples=9, seed=3), model.inputs, base=tmp_path)
    scales = calibrate(model, ["x"], dataset, method="percentile", options=Options(percentile=99.9))
    assert "percentile 99.9 over 9 samples, random data" in scales.source
    assert any("random data" in note for note in scales.notes)


def test_many_tensors_are_listed_shortly() -> None:
    model = model_of(" ".join(f"t{i} = Sub(x, x)" for i in range(9)) + " y = Relu(x)")
    found = calibrate(model, [f"t{i}" for i in range(9)], Samples(GAUSS[:8]), method="minmax")  # type: ignore[arg-type]
    assert found.notes[0].endswith("'t0', 't1', 't2', 't3', 't4' and 4 more")
