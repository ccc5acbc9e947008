"""What surrounds a build, without one: engine headers, a log's last words, feeds, layers and their nodes."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from told_engines import DUMPS
from zoo import ZOO

from pytest_int8acc import EngineError
from pytest_int8acc.graph.model import make_model
from pytest_int8acc.results import EngineLayer, Latency
from pytest_int8acc.results.engines import LayerTime
from pytest_int8acc.runtime import worker
from pytest_int8acc.runtime.children import Ended, Outcome
from pytest_int8acc.runtime.trt import engine
from pytest_int8acc.runtime.trt.build import explain
from pytest_int8acc.runtime.trt.engine import TrtEngine, open_engine, read_header, speaking_of
from pytest_int8acc.runtime.trt.inspector import read_layers
from pytest_int8acc.runtime.trt.latency import summarize, with_nodes
from pytest_int8acc.runtime.trt.platform import Platform
from pytest_int8acc.tensors import TensorInfo

PLAIN = make_model(ZOO["plain"](), name="plain.onnx")


@pytest.mark.parametrize(
    ("content", "guess"),
    [
        (b"", "the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "run 'git lfs pull'"),
        (ZOO["plain"]().SerializeToString(), "it looks like an ONNX model"),
        (b"PK\3\4" + bytes(100), r"it begins with b'PK\\x03\\x04'"),
    ],
)
def test_what_is_no_engine_is_said(tmp_path: Path, content: bytes, guess: str) -> None:
    (tmp_path / "a.engine").write_bytes(content)
    with pytest.raises(EngineError, match=f"not an engine of TensorRT 8.6 or later .*{guess}"):
        read_header(tmp_path / "a.engine")
    with pytest.raises(EngineError, match="cannot be read: No such file"):
        read_header(tmp_path / "b.engine")


def test_a_header_tells_its_version(tmp_path: Path) -> None:
    (tmp_path / "a.engine").write_bytes(b"ftrt" + bytes(20) + bytes([10, 3, 0, 26]) + bytes(100))
    header = read_header(tmp_path / "a.engine")
    assert (header.flavor, header.version, str(header)) == ("tensorrt", (10, 3, 0, 26), "TensorRT 10.3.0")
    (tmp_path / "a.engine").write_bytes(b"ftrt\1" + bytes(100))
    assert str(read_header(tmp_path / "a.engine")) == "another TensorRT"


LOG = """[V] Loaded
[W] Unable to determine GPU memory usage
[E] [TRT] cudaError 35: insufficient driver
[E] [checkSanity] conv1: kernel weights has count 3
    it should have 4
    [checkMacros.cpp] (cudaError 35: insufficient driver)
[!] Could not parse ONNX correctly
Traceback (most recent call last):
  File "worker.py", line 3, in main
    raise X
polygraphy.exception.exception.PolygraphyException: Could not parse ONNX correctly
"""


def test_last_words_are_those_that_matter() -> None:
    for log, words in (
        (
            LOG,
            "[checkSanity] conv1: kernel weights has count 3 it should have 4"
            " | Could not parse ONNX correctly",
        ),
        ("one\n\ntwo\n", "one | two"),
        ("", "nothing was logged"),
    ):
        assert explain(Outcome(Ended.CRASHED, 2.0, 1, log=log), 60).endswith(f"It said last: {words}")


@pytest.mark.parametrize(
    ("line", "is_so"),
    [
        (
            "[E] [virtualMemoryBuffer.cpp::resizePhysical] Error Code 2: OutOfMemory (no more)",
            True,
        ),
        ("[E] 1: [defaultAllocator.cpp::allocate::20] Error Code 1: Cuda Runtime (out of memory)", True),
        (
            "[W] Skipping tactic 3 due to insufficient memory on requested size of 9 detected",
            False,
        ),
        ("terminate called after throwing an instance of 'std::bad_alloc'", True),
        ("MemoryError: Unable to allocate 9 GiB", True),
        ("[V] out of memory handling on", False),
    ],
)
def test_out_of_memory_is_known(line: str, is_so: bool) -> None:
    said = explain(Outcome(Ended.FAILED, 2.0, log=f"[V] before\n{line}\n[V] after"), 60)
    assert said.startswith("out of memory; give a smaller batch") is is_so


@pytest.mark.parametrize(
    ("typing", "outputs", "options"),
    [
        ("weak", "own", {}),
        ("weak", "all", {}),
        ("strong", "own", {"strongly_typed": True}),
        ("strong", "debug", {"strongly_typed": True, "mark_unfused_tensors_as_debug_tensors": True}),
    ],
)
def test_a_network_is_made_as_it_is_typed(typing: str, outputs: str, options: dict[str, bool]) -> None:
    """TensorRT-RTX is strongly typed whatever it is told; TensorRT 10 is not."""
    assert worker._network_options({"typing": typing, "outputs": outputs}) == options


@pytest.mark.parametrize(
    ("layer", "node"),
    [
        ({"name": "conv", "nodes": []}, "conv"),
        ({"name": "gemm_1", "nodes": []}, "gemm"),
        ({"name": "(Unnamed Layer* 3) [Shuffle]", "nodes": ["gemm"]}, "gemm"),
        ({"name": "conv_7", "nodes": []}, "conv_7"),
        ({"name": "other", "nodes": ["another"]}, None),
    ],
)
def test_layers_are_traced_to_their_nodes(layer: dict[str, Any], node: str | None) -> None:
    assert worker._node_of(layer, {"conv": "fp32", "gemm": "fp32", "conv_7": "fp16"}) == node


def test_latencies_are_medians_with_their_spread() -> None:
    found = summarize([5.0, 1.0, 2.0, 3.0, 4.0, 100.0, 2.0, 3.0, 4.0, 2.0, 3.0])
    assert found == Latency(median_ms=3.0, low_ms=2.0, high_ms=5.0, runs=11)


def test_a_copy_counts_for_the_layer_that_reads_it() -> None:
    """An engine of TensorRT 8.6: a standalone quantizer, a reformat in front of each of two layers."""
    text = (DUMPS / "trt86_conv.json").read_text(encoding="utf-8")
    layers = read_layers(text)
    times = {layer.name: float(place) for place, layer in enumerate(layers)}
    found = {layer.name: time for layer, time in zip(layers, with_nodes(layers, times), strict=True)}
    assert [time.milliseconds for time in found.values()] == list(times.values())
    assert found["Reformatting CopyNode for Input Tensor 0 to conv4"].nodes == ("conv4",)
    assert found["x_conv1_QuantizeLinear"].nodes == ("x_conv1_QuantizeLinear",)


def test_a_copy_in_front_of_a_region_belongs_to_the_region() -> None:
    layers = (
        EngineLayer("Reformatting CopyNode for Input Tensor 0", (), "reformat", "fp16"),
        EngineLayer("{ForeignNode[norm...head]}", ("norm", "head"), "other", "other"),
        EngineLayer("(Unnamed Layer* 7) [Shuffle]", (), "reformat", "fp16"),
    )
    region = LayerTime(("norm", "head"), 1.0, is_region=True)
    assert with_nodes(layers, dict.fromkeys((layer.name for layer in layers), 1.0)) == (region,) * 3
    (copy,) = with_nodes(layers[:1], {})
    assert copy == LayerTime((), 0.0)


def test_a_child_that_did_its_job_needs_no_explanation() -> None:
    assert explain(Outcome(Ended.DONE, 1.0, 0, {"absent": []}, LOG), 60) == ""
    assert explain(Outcome(Ended.CRASHED, 1.0, 0), 60).startswith("the process ended with status 0")


def convert(engine_dtype: str, array: np.ndarray) -> np.ndarray:
    """What an engine whose input is of this dtype gets; no GPU is needed for that."""
    engine = TrtEngine.__new__(TrtEngine)
    engine.name, engine._profiles = "m.onnx", {"x": ((1, 2), (1, 2), (2, 2))}
    engine.inputs = (dataclasses.replace(PLAIN.inputs[0], name="x"),)
    engine._dtypes = {"x": np.dtype(engine_dtype)}
    return engine.adapted({"x": array})["x"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: convert("float16", np.ones((1, 2), np.float32)), "is float32 and the engine takes float16"),
        (lambda: convert("float32", np.ones((1, 2))), "is float64 and the engine takes float32"),
        (lambda: convert("int32", np.full((1, 2), 1 << 40)), "values that the engine's INT32 cannot hold"),
        (
            lambda: convert("float32", np.ones((3, 2), np.float32)),
            r"input 'x' has shape \[3, 2\], outside the engine's profile \[1, 2\] to \[2, 2\]; widen",
        ),
        (lambda: convert("float32", np.ones((1, 2, 1), np.float32)), r"has shape \[1, 2, 1\], outside"),
    ],
)
def test_a_feed_that_does_not_fit_is_said(call: Callable[[], np.ndarray], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        call()


def test_int64_is_narrowed_where_it_fits() -> None:
    found = convert("int32", np.array([[1, -(2**31)]]))
    assert found.dtype == np.int32
    assert found.tolist() == [[1, -(2**31)]]


def test_an_engine_without_a_tensor_that_criteria_name_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, here = tmp_path / "a.engine", Platform("tensorrt", (8, 6, 0), "NVIDIA H100", (9, 0))
    float32 = np.dtype(np.float32)
    given, inner, output = (TensorInfo(name, float32, ("n", 4)) for name in ("x", "inner", "y"))
    told = [
        {"name": t.name, "dtype": "FLOAT", "shape": [-1, 4], "input": t is given} for t in (given, output)
    ]
    path.write_bytes(b"ftrt" + bytes(20) + bytes([8, 6, 0, 0]) + bytes(100))
    monkeypatch.setattr(engine, "_examine", lambda *_: (told, ""))
    with pytest.raises(EngineError, match=r"it gives no 'inner', which criteria name .*: build it"):
        open_engine(path, here, [given], [output, inner], inner=["inner"])


def test_ctrl_c_that_a_callback_swallows_comes_at_the_end() -> None:
    """TensorRT's logger is such a callback: what it raises is printed and lost."""
    steps = []

    def call() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        steps.append("after")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
    try:
        with pytest.raises(KeyboardInterrupt), speaking_of("an engine"):
            call()
        assert steps == ["after"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
