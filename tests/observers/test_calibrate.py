"""What is measured of activations, and the ranges that calibration makes of it."""

from __future__ import annotations

import math
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from array_samples import Samples
from onnx import parser
from onnxruntime.quantization import CalibrationMethod, create_calibrator
from spec_texts import METHODS

from pytest_int8acc import ScalesError
from pytest_int8acc.data import RandomSource, open_dataset
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.observers.methods import Options, calibrate
from pytest_int8acc.observers.observer import Observer
from pytest_int8acc.observers.ranges import ENTROPY_BINS, entropy_amax

TANH = "agraph (float[N, 16] x) => (float[N, 16] y) { t = Tanh(x)\n y = Mul(t, x) }"


def parsed(graph: str, opset: int = 17) -> Model:
    return make_model(parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]>\n{graph}'))


def normal(samples: int, seed: int = 0, width: int = 16) -> Any:
    return np.random.default_rng(seed).standard_normal((samples, width)).astype(np.float32)


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
def test_maxima_are_those_of_each_sample(opset: int) -> None:
    x = normal(50)
    maxima = Observer(parsed(TANH, opset), Samples(x, 7)).maxima(["x", "t", "y"])
    np.testing.assert_array_equal(maxima["x"].maxima, np.abs(x).max(axis=1))
    np.testing.assert_allclose(maxima["y"].maxima, np.abs(np.tanh(x) * x).max(axis=1), rtol=1e-5)
    assert maxima["x"].amax == np.abs(x).max()
    assert maxima["x"].samples == 50
    assert maxima["x"].run_bytes == 4 * 7 * 16


def test_maxima_leave_the_padding_out() -> None:
    x = normal(6)
    maxima = Observer(parsed(TANH), Samples(x, 3, padding=2)).maxima(["x"])
    np.testing.assert_array_equal(maxima["x"].maxima, np.abs(x).max(axis=1))


def test_a_tensor_without_the_batch_has_one_maximum_for_each_run() -> None:
    model = parsed("agraph (float[N, 16] x) => (float[16, N] y) { y = Transpose<perm = [1, 0]>(x) }")
    x = normal(9)
    maxima = Observer(model, Samples(x, 3)).maxima(["y"])
    np.testing.assert_array_equal(maxima["y"].maxima, [np.abs(p).max() for p in np.split(x, 3)])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows_as_inf(bad: float) -> None:
    x = normal(8)
    x[5, 3] = bad
    maxima = Observer(parsed(TANH), Samples(x, 4)).maxima(["x", "t"])
    assert np.isinf(maxima["x"].maxima).tolist() == [i == 5 for i in range(8)]


def test_nan_is_found_where_a_pooling_hides_it() -> None:
    """At whatever place: the greatest of NaN and numbers may be either."""
    model = parsed(
        "agraph (float[N, 2, 4, 4] x) => (float[N, 2, 2, 2] y) "
        "{ r = Relu(x)\n y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r) }"
    )
    for place in range(32):
        x = np.abs(normal(6, place, 32)).reshape(6, 2, 4, 4)
        x[4].flat[place] = np.nan
        maxima = Observer(model, Samples(x, 3)).maxima(["x", "r"])
        for tensor in ("x", "r"):
            assert np.isinf(maxima[tensor].maxima).tolist() == [i == 4 for i in range(6)]


def test_channels_are_those_of_numpy() -> None:
    model = parsed(
        "agraph (float[N, 3, 4, 5] x) => (float[N, 3, 4, 5] y) <float[3, 3, 1, 1] w = {1,0,0,0,1,0,0,0,1}> "
        "{ r = Relu(x)\n c = Conv(r, w)\n y = Conv(c, w) }"
    )
    x = normal(6, width=60).reshape(6, 3, 4, 5)
    maxima = Observer(model, Samples(x, 4, padding=1)).maxima(["x", "r", "c"])
    np.testing.assert_array_equal(maxima["r"].channel_amax, np.maximum(x, 0).max(axis=(0, 2, 3)))
    np.testing.assert_array_equal(maxima["x"].channel_amax, np.abs(x).max(axis=(0, 2, 3)))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux, to read resident memory")
def test_maxima_take_no_more_memory_than_the_model(tmp_path: Path) -> None:
    """Thirty tensors of 8 MB each, of which the model alone holds two at a time."""
    body = "\n".join(f"t{n + 1} = Tanh(t{n})" for n in range(30))
    graph = f"agraph (float[N, 8, 512, 512] t0) => (float[N, 8, 512, 512] t30) {{ {body} }}"
    onnx.save(parsed(graph).proto, tmp_path / "model.onnx")
    script = (
        "import resource, sys, numpy as np; from pathlib import Path\n"
        "from pytest_int8acc.data import open_dataset\n"
        "from pytest_int8acc.observers.observer import Observer\n"
        "from pytest_int8acc.graph.load import load_model\n"
        "model = load_model(Path(sys.argv[1]))\n"
        "feeds = open_dataset('x.npy', model.inputs, base=Path(sys.argv[1]).parent, batch=1)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "Observer(model, feeds).maxima([f't{n}' for n in range(31)])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    np.save(tmp_path / "x.npy", np.ones((3, 8, 512, 512), np.float32))
    command = [sys.executable, "-c", script, str(tmp_path / "model.onnx")]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(found.stdout) < 100_000, "KiB; all of them are 248,000"


def test_half_precision_activations_are_measured_in_float32() -> None:
    model = parsed("agraph (float[N, 16] x) => (float16[N, 16] y) { y = Cast<to = 10>(x) }")
    x = normal(4)
    maxima = Observer(model, Samples(x, 4)).maxima(["y"])
    np.testing.assert_array_equal(maxima["y"].maxima, np.abs(x.astype(np.float16)).max(axis=1))


def test_histograms_leave_constant_zero_and_broken_tensors_out() -> None:
    model = parsed(
        "agraph (float[N, 16] x) => (float[N, 16] z, float[N, 16] l) { z = Sub(x, x)\n l = Log(x) }"
    )
    found = Observer(model, Samples(normal(8), 8)).of(["x", "z", "l"])
    assert {tensor for tensor, values in found.items() if values.counts.any()} == {"x"}


@pytest.mark.parametrize(("batch", "passes"), [("N", 1), ("8", 2)])
def test_large_activations_are_cut_or_take_several_passes(
    monkeypatch: pytest.MonkeyPatch, batch: str, passes: int
) -> None:
    model, samples, tensors = parsed(TANH.replace("N", batch)), Samples(normal(16), 8), ["x", "t", "y"]
    whole = Observer(model, samples).of(tensors)
    assert samples.passes == 2
    two_tensors = 2 * 4 * 8 * 16
    monkeypatch.setattr("pytest_int8acc.observers.collect.CHUNK_BYTES", two_tensors)
    parts = Observer(model, samples).of(tensors)
    assert samples.passes == 2 + 1 + passes
    for tensor in whole:
        np.testing.assert_array_equal(parts[tensor].counts, whole[tensor].counts)


def test_the_next_pass_measures_what_may_be_asked_for_later() -> None:
    samples = Samples(normal(16), 8)
    observer = Observer(parsed(TANH), samples)
    observer.want(["t", "y"])
    assert samples.passes == 0
    observer.maxima(["x"])
    observer.maxima(["t", "y"])
    assert samples.passes == 1


@pytest.mark.parametrize("values", [[5.0], [-5.0], [1.0, 0.5], [5.0] * 1000])
def test_entropy_keeps_the_range_of_few_values(values: list[float]) -> None:
    array = np.array(values, np.float32)
    amax = float(np.abs(array).max())
    counts, _ = np.histogram(array, ENTROPY_BINS, range=(-amax, amax))
    assert entropy_amax(counts, amax) == amax


def test_ranges_are_those_of_onnx_runtimes_calibrators(tmp_path: Path) -> None:
    """All samples in one batch, and no exact zeros: the one case where theirs need no correction."""
    graph = "agraph (float[N, 500] x) => (float[N, 500] y) { t = Tanh(x)\n y = Mul(t, x) }"
    x = normal(100, width=500)
    model = parsed(graph)
    path = tmp_path / "model.onnx"
    onnx.save(model.proto, path)

    def theirs(method: CalibrationMethod, **options: Any) -> Any:
        feeds = iter([{"x": x}])
        calibrator = create_calibrator(
            path,
            ["Mul"],
            str(tmp_path / "augmented.onnx"),
            method,
            extra_options={"symmetric": True, **options},
        )
        calibrator.collect_data(type("Reader", (), {"get_next": lambda self: next(feeds, None)})())
        data = calibrator.compute_data().data
        return {t: float(np.abs(np.ravel(data[t].range_value)).max()) for t in ("t", "y")}

    def ours(method: Any) -> Any:
        scales = calibrate(
            model, ["t", "y"], Samples(x, 100), method=method, options=Options(percentile=99)
        ).values  # type: ignore[arg-type]
        return {tensor: scale * 127 for tensor, scale in scales.items()}

    assert ours("minmax") == pytest.approx(theirs(CalibrationMethod.MinMax), rel=1e-6)
    assert ours("entropy") == pytest.approx(
        theirs(CalibrationMethod.Entropy, num_bins=ENTROPY_BINS), rel=1e-6
    )
    expected = theirs(CalibrationMethod.Percentile, num_bins=1 << 14, percentile=99)
    assert ours("percentile") == pytest.approx(expected, rel=1e-2)


# --- ranges

RNG = np.random.default_rng(7)
GAUSS = RNG.standard_normal((200, 50)).astype(np.float32)
HEAVY = RNG.standard_t(3, (200, 50)).astype(np.float32)


def model_of(body: str = "y = Relu(x)", width: int = 50) -> Model:
    return parsed(f"agraph (float[N, {width}] x) => (float[N, {width}] y) {{ {body} }}")


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
