from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import onnxruntime
import pytest
from onnx import parser
from written_networks import network

from pytest_int8acc import EngineError
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.runtime import onnxruntime as engines
from pytest_int8acc.runtime.onnxruntime import OrtEngine, saturation

RELU = "agraph (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }"


def model_of(graph: str, *, opset: int = 17, name: str = "tiny.onnx") -> Model:
    return make_model(parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]>\n{graph}'), name=name)


def qdq_conv() -> Model:
    """The convolution of 256 ones whose INT8 sum overflows 16 bits."""
    return engines._worst_case()


def test_runs_a_model_and_describes_itself() -> None:
    engine = OrtEngine(model_of(RELU), threads=1)
    output = engine({"x": np.array([[-1, 0, 2, 3]], np.float32)})
    assert output.keys() == {"y"}
    np.testing.assert_array_equal(output["y"], [[0, 0, 2, 3]])
    assert engine.description == f"simulated by ONNX Runtime {onnxruntime.__version__}, CPU"
    assert [i.name for i in engine.inputs] == ["x"]
    assert [o.name for o in engine.outputs] == ["y"]


def test_exact_mode_sums_int8_products_without_saturation() -> None:
    output = OrtEngine(qdq_conv(), "exact")({"x": np.ones((1, 256, 1, 1), np.float32)})
    assert output["y"].item() == 256.0


def test_exact_mode_keeps_quantization_unfused_and_native_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    original = onnxruntime.InferenceSession

    def spy(source: bytes, options: onnxruntime.SessionOptions, *rest: object, **named: object) -> object:
        try:
            seen.append(options.get_session_config_entry("session.disable_quant_qdq"))
        except Exception:
            seen.append("unset")
        return original(source, options, *rest, **named)

    monkeypatch.setattr(onnxruntime, "InferenceSession", spy)
    OrtEngine(qdq_conv(), "exact")
    OrtEngine(qdq_conv(), "native")
    assert seen == ["1", "unset"]


@pytest.mark.parametrize(
    ("workers", "threads"), [("1", 6), ("2", 3), ("4", 1), ("64", 1), ("0", 0), ("x", 0), (None, 0)]
)
def test_workers_share_the_cores_and_no_thread_spins(
    workers: str | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without workers the runtime decides, which 0 says."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)), raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)
    if workers is not None:
        monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", workers)
    seen: list[tuple[object, ...]] = []
    original = onnxruntime.InferenceSession

    def spy(source: bytes, options: onnxruntime.SessionOptions, *rest: object, **named: object) -> object:
        keys = (f"session.{pool}_op.allow_spinning" for pool in ("intra", "inter"))
        seen.append((options.intra_op_num_threads, *map(options.get_session_config_entry, keys)))
        return original(source, options, *rest, **named)

    monkeypatch.setattr(onnxruntime, "InferenceSession", spy)
    OrtEngine(qdq_conv())
    assert seen == [(threads, "0", "0")]


def test_saturation_agrees_with_the_cpu() -> None:
    measured = saturation()
    assert measured.expected == 256.0
    cpu = Path("/proc/cpuinfo")
    flags = set(cpu.read_text().split()) if cpu.is_file() else set()
    if flags & {"avx512_vnni", "avx_vnni"}:
        assert measured.measured == 256.0
        assert not measured.saturates
    elif "avx2" in flags:
        assert measured.saturates
        assert measured.measured == pytest.approx(2.016, abs=0.01)


def test_saturation_is_judged_by_the_figure() -> None:
    assert dataclasses.replace(saturation(), measured=2.016).saturates
    assert not dataclasses.replace(saturation(), measured=255.9).saturates


def test_a_model_over_the_inline_limit_is_loaded_from_files(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    graph = "agraph (float[N, 64] x) => (float[N, 64] y) { y = MatMul(x, w) }"
    model = make_model(network(graph, {"w": weight}))
    feed = {"x": np.ones((3, 64), np.float32)}
    inline = OrtEngine(model)(feed)
    for module in (engines, sys.modules["pytest_int8acc.graph.model"]):
        monkeypatch.setattr(module, "INLINE_BYTES", 1000)
    apart = OrtEngine(model)(feed)
    np.testing.assert_array_equal(apart["y"], inline["y"])
    np.testing.assert_allclose(apart["y"], feed["x"] @ weight, rtol=1e-4, atol=1e-5)


def test_an_output_that_is_an_input_is_a_copy() -> None:
    engine = OrtEngine(model_of("agraph (float[N] x) => (float[N] x, float[N] y) { y = Neg(x) }"))
    array = np.ones(1000, np.float32)
    output = engine({"x": array})
    assert not np.shares_memory(output["x"], array)
    np.testing.assert_array_equal(output["x"], array)


@pytest.mark.parametrize(
    ("graph", "opset", "expected"),
    [
        ("agraph (float[N] x) => (float[N] y) { y = Foo(x) }", 17, "No Op registered for Foo"),
        ("agraph (float[N] x) => (float[N] y) { y = Add(x, z) }", 17, "Node input 'z' is not a graph input"),
        (RELU, 99, "Opset 99 is under development"),
    ],
)
def test_a_model_that_does_not_load_names_itself_and_the_reason(
    graph: str, opset: int, expected: str
) -> None:
    with pytest.raises(EngineError) as caught:
        OrtEngine(model_of(graph, opset=opset))
    message = str(caught.value)
    assert message.startswith("tiny.onnx: ONNX Runtime cannot load it: ")
    assert expected in message
    for noise in ("ONNXRuntimeError", "/onnxruntime_src", "model_load_utils.h", "std::", "\n"):
        assert noise not in message


@pytest.mark.parametrize(
    ("graph", "feed", "expected"),
    [
        (RELU, {}, "no array for 'x'; its inputs are 'x'"),
        (RELU, {"x": np.zeros((2, 4))}, "Unexpected input data type"),
        (RELU, {"x": np.zeros((2, 5), np.float32)}, "Got: 5 Expected: 4"),
        (
            "agraph (float[A, B] x) => (float[E, F] y) <int64[2] s = {3, 7}> { y = Reshape(x, s) }",
            {"x": np.zeros((2, 5), np.float32)},
            "Input shape:{2,5}, requested shape:{3,7}",
        ),
    ],
)
def test_a_run_that_fails_names_the_model_and_the_reason(
    graph: str, feed: dict[str, np.ndarray], expected: str
) -> None:
    engine = OrtEngine(model_of(graph))
    with pytest.raises(EngineError) as caught:
        engine(feed)
    message = str(caught.value)
    assert message.startswith("tiny.onnx: does not run in ONNX Runtime: " if feed else "tiny.onnx: ")
    assert expected in message
    for noise in ("ONNXRuntimeError", "/onnxruntime_src", "ReshapeHelper::", "\n"):
        assert noise not in message


def test_long_messages_are_cut() -> None:
    assert len(engines._brief(RuntimeError("x" * 5000))) < 600


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (ModuleNotFoundError("onnxruntime"), r"pip install onnxruntime "),
        (ImportError("libcudart.so.13: cannot open shared object file"), r"does not load \(libcudart.so.13"),
        (ModuleType("onnxruntime"), "pip uninstall -y onnxruntime onnxruntime-gpu"),
    ],
    ids=["missing", "broken", "remains of one that was removed"],
)
def test_without_an_onnxruntime_that_works_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, found: ModuleType | Exception, said: str
) -> None:
    def imported(name: str) -> ModuleType:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(engines.importlib, "import_module", imported)
    with pytest.raises(EngineError, match=said):
        OrtEngine(model_of(RELU))


def test_cuda_without_a_cuda_build_says_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(EngineError, match=r"it has CPUExecutionProvider.*pip install onnxruntime-gpu"):
        OrtEngine(model_of(RELU), provider="cuda")


def test_cuda_that_does_not_start_is_an_error_and_no_silent_cpu_run(monkeypatch: pytest.MonkeyPatch) -> None:
    fallen_back = SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: providers)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None, raising=False)
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_, **__: fallen_back)
    with pytest.raises(EngineError, match="CUDAExecutionProvider did not start"):
        OrtEngine(model_of(RELU), provider="cuda")
