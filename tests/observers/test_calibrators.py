from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser
from onnxruntime.quantization import CalibrationMethod, create_calibrator

from pytest_int8acc.data import Batch
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.observers.methods import Options, calibrate
from pytest_int8acc.observers.observer import Observer
from pytest_int8acc.observers.ranges import ENTROPY_BINS, entropy_amax
from pytest_int8acc.tensors import Array

TANH = "agraph (float[N, 16] x) => (float[N, 16] y) { t = Tanh(x)\n y = Mul(t, x) }"


class Samples:
    """A dataset in memory."""

    is_random = False
    description = "arrays"

    def __init__(self, x: Array, batch: int, padding: int = 0) -> None:
        self.x, self.batch, self.padding = x, batch, padding
        self.samples = len(x)
        self.passes = 0

    def batches(self) -> Iterator[Batch]:
        self.passes += 1
        for i in range(0, len(self.x), self.batch):
            part = self.x[i : i + self.batch]
            filling = np.full((self.padding, *part.shape[1:]), 1e6, np.float32)
            yield Batch({"x": np.concatenate([part, filling])}, len(part), self.padding)


def model_of(graph: str, opset: int = 17) -> Model:
    return make_model(parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]>\n{graph}'))


def normal(samples: int, seed: int = 0, width: int = 16) -> Any:
    return np.random.default_rng(seed).standard_normal((samples, width)).astype(np.float32)


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
def test_maxima_are_those_of_each_sample(opset: int) -> None:
    x = normal(50)
    maxima = Observer(model_of(TANH, opset), Samples(x, 7)).maxima(["x", "t", "y"])
    np.testing.assert_array_equal(maxima["x"].maxima, np.abs(x).max(axis=1))
    np.testing.assert_allclose(maxima["y"].maxima, np.abs(np.tanh(x) * x).max(axis=1), rtol=1e-5)
    assert maxima["x"].amax == np.abs(x).max()
    assert maxima["x"].samples == 50
    assert maxima["x"].run_bytes == 4 * 7 * 16


def test_maxima_leave_the_padding_out() -> None:
    x = normal(6)
    maxima = Observer(model_of(TANH), Samples(x, 3, padding=2)).maxima(["x"])
    np.testing.assert_array_equal(maxima["x"].maxima, np.abs(x).max(axis=1))


def test_a_tensor_without_the_batch_has_one_maximum_for_each_run() -> None:
    model = model_of("agraph (float[N, 16] x) => (float[16, N] y) { y = Transpose<perm = [1, 0]>(x) }")
    x = normal(9)
    maxima = Observer(model, Samples(x, 3)).maxima(["y"])
    np.testing.assert_array_equal(maxima["y"].maxima, [np.abs(p).max() for p in np.split(x, 3)])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows_as_inf(bad: float) -> None:
    x = normal(8)
    x[5, 3] = bad
    maxima = Observer(model_of(TANH), Samples(x, 4)).maxima(["x", "t"])
    assert np.isinf(maxima["x"].maxima).tolist() == [i == 5 for i in range(8)]


def test_nan_is_found_where_a_pooling_hides_it() -> None:
    """At whatever place: the greatest of NaN and numbers may be either."""
    model = model_of(
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
    model = model_of(
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
    onnx.save(model_of(graph).proto, tmp_path / "model.onnx")
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
    model = model_of("agraph (float[N, 16] x) => (float16[N, 16] y) { y = Cast<to = 10>(x) }")
    x = normal(4)
    maxima = Observer(model, Samples(x, 4)).maxima(["y"])
    np.testing.assert_array_equal(maxima["y"].maxima, np.abs(x.astype(np.float16)).max(axis=1))


def test_histograms_leave_constant_zero_and_broken_tensors_out() -> None:
    model = model_of(
        "agraph (float[N, 16] x) => (float[N, 16] z, float[N, 16] l) { z = Sub(x, x)\n l = Log(x) }"
    )
    found = Observer(model, Samples(normal(8), 8)).of(["x", "z", "l"])
    assert {tensor for tensor, values in found.items() if values.counts.any()} == {"x"}


@pytest.mark.parametrize(("batch", "passes"), [("N", 1), ("8", 2)])
def test_large_activations_are_cut_or_take_several_passes(
    monkeypatch: pytest.MonkeyPatch, batch: str, passes: int
) -> None:
    model, samples, tensors = model_of(TANH.replace("N", batch)), Samples(normal(16), 8), ["x", "t", "y"]
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
    observer = Observer(model_of(TANH), samples)
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
    model = model_of(graph)
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
