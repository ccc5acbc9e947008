"""Engines built in a child process: what they are given, and what becomes of builds that fail."""

from __future__ import annotations

import dataclasses
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from builder import Builder
from builds import PLAIN, request
from child import is_alive
from onnx import TensorProto
from zoo import ZOO

from pytest_int8acc import EngineError
from pytest_int8acc.errors import MissingBackendError
from pytest_int8acc.graph.half import to_fp16
from pytest_int8acc.graph.layout import find_groups, quantize
from pytest_int8acc.graph.load import normalize
from pytest_int8acc.graph.model import Model, make_model
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.runtime.children import Workers
from pytest_int8acc.runtime.store import Store
from pytest_int8acc.runtime.trt.build import BuildOptions, Built, build
from pytest_int8acc.runtime.trt.engine import open_built, open_engine, read_header
from pytest_int8acc.runtime.trt.platform import Platform, find_platform

#: Tensors between its nodes.
INNER = tuple(node.output[0] for node in PLAIN.graph.node[:-1])


@pytest.fixture(scope="module")
def rtx() -> Platform:
    """TensorRT-RTX on a machine without a GPU."""
    found, _ = find_platform("rtx")
    if found is None or not found.is_rtx:
        pytest.skip("needs TensorRT-RTX: pip install tensorrt-rtx")
    return found


def quantized(name: str) -> Model:
    """A model of the zoo in INT8 and FP16."""
    model = normalize(make_model(ZOO[name](), name=f"{name}.onnx"))
    layout = find_groups(model)
    return to_fp16(apply(quantize(model, layout, dict.fromkeys(layout.activations, 4 / 127)))).model


def sabotage(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Run ``code`` at the start of every worker, and of no other Python."""
    guard = "import sys\nif any('runtime.worker' in word for word in sys.orig_argv):\n"
    indented = "".join(f"    {line}\n" for line in code.splitlines())
    (folder / "sitecustomize.py").write_text(guard + indented)
    monkeypatch.syspath_prepend(folder)


@pytest.fixture(scope="module")
def built(rtx: Platform) -> Built:
    """An INT8 engine of a residual network."""
    return build(request(quantized("residual")), rtx)


@pytest.mark.rtx
def test_an_engine_is_whole_and_says_what_it_is(built: Built, rtx: Platform) -> None:
    assert built.engine.stat().st_size == built.nbytes > 10_000
    assert (built.stored, built.role, built.name) == (False, "INT8", "residual.onnx")
    assert built.seconds > 0
    assert read_header(built.engine).flavor == "rtx"
    assert read_header(built.engine).version == rtx.version
    assert built.layers == ""  # only a GPU can load it
    assert not list(built.engine.parent.glob("job*"))


@pytest.mark.rtx
def test_the_parsed_network_names_its_nodes_and_types(built: Built) -> None:
    nodes = {node.name: node.op_type for node in quantized("residual").graph.node}
    layers = {layer["name"]: layer for layer in built.network}
    convolutions = [name for name, op in nodes.items() if op == "Conv"]
    for name in convolutions:
        assert layers[name]["type"] == "CONVOLUTION"
        assert layers[name]["nodes"] == [name]
        assert set(layers[name]["outputs"].values()) == {"HALF"}
    quantizers = [layer for layer in built.network if layer["type"] == "QUANTIZE"]
    assert len(quantizers) == sum(op == "QuantizeLinear" for op in nodes.values())
    assert all(set(layer["outputs"].values()) == {"INT8"} for layer in quantizers)


@pytest.mark.rtx
def test_the_network_is_strongly_typed_and_its_log_kept(built: Built) -> None:
    log = built.log.read_text()
    assert "STRONGLY_TYPED" in log
    assert "Profiling Verbosity    | ProfilingVerbosity.DETAILED" in log
    assert "Finished engine building" in log


@pytest.mark.rtx
def test_options_and_profiles_reach_the_builder(rtx: Platform) -> None:
    options = BuildOptions(
        builder={"workspace": "64M", "optimization_level": 1, "tactic_sources": ()}, timeout=120
    )
    model = normalize(make_model(ZOO["dynamic"](), name="dynamic.onnx"))
    (x,) = model.inputs
    given = {x.name: tuple(tuple(d if isinstance(d, int) else n for d in x.shape or ()) for n in (8, 16, 64))}
    made = build(request(model, profiles=given, options=options), rtx)
    log = made.log.read_text()
    least, usual, most = given[x.name]
    assert f"{{{x.name} [min={least}, opt={usual}, max={most}]}}" in log
    assert "WORKSPACE: 64.00 MiB" in log
    assert "Tactic Sources         | []" in log


@pytest.mark.rtx
@pytest.mark.parametrize(("outputs", "count"), [("own", 1), ("debug", 1), (INNER, 1 + len(INNER))])
def test_inner_tensors_can_be_had(rtx: Platform, outputs: Any, count: int) -> None:
    made = build(request(outputs=outputs), rtx)
    assert f"Detected 1 inputs and {count} output network tensors" in made.log.read_text()


@pytest.mark.rtx
def test_weights_may_lie_beside_the_model(rtx: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_int8acc.graph.model.INLINE_BYTES", 1000)
    assert build(request(), rtx).nbytes > PLAIN.nbytes


@pytest.mark.rtx
def test_a_model_that_cannot_be_parsed_is_said(rtx: Platform, tmp_path: Path) -> None:
    b = Builder(19)
    x = b.input("x", [2, 3])
    y = b.node("Add", x, b.node("Cast", x, to=TensorProto.FLOAT16))
    proto = onnx.ModelProto()
    proto.CopyFrom(b.model({y: [2, 3]}))
    with pytest.raises(EngineError) as error:
        build(request(make_model(proto, name="mixed.onnx")), rtx)
    message = str(error.value)
    assert message.startswith(f"mixed.onnx (INT8): {rtx.name} built no engine: TensorRT says: ")
    assert "must have same input types" in message
    assert "\n" not in message
    assert "cudaError" not in message
    assert "[V]" in Path(message.rpartition("The whole log: ")[2]).read_text()


@pytest.mark.rtx
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (BuildOptions(builder={"tactic_sources": ("cublass",)}), "this TensorRT has no 'cublass'; it has "),
        (BuildOptions(plugins=(Path(__file__),)), "plugin library does not load: .*test_tensorrt_build.py"),
        (BuildOptions(plugins=(Path("none.so"),)), "tensorrt plugins: none.so: no such file"),
    ],
)
def test_a_wrong_option_is_said(rtx: Platform, tmp_path: Path, options: BuildOptions, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        build(request(options=options), rtx)


@pytest.mark.rtx
def test_a_plugin_library_is_loaded(rtx: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any shared library loads; its path may be relative to the folder that pytest runs in."""
    import tensorrt_rtx_libs

    folder = Path(tensorrt_rtx_libs.__file__).parent
    monkeypatch.chdir(folder)
    library = next(folder.glob("libtensorrt_onnxparser*"))
    made = build(request(options=BuildOptions(plugins=(Path(library.name),))), rtx)
    assert f"Loading plugin library: {library}" in made.log.read_text()


@pytest.mark.rtx
def test_a_crash_is_an_error_with_the_last_words(
    rtx: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(tmp_path, monkeypatch, "import ctypes; print('about to', flush=True); ctypes.string_at(0)")
    with pytest.raises(
        EngineError, match=r"the process ended by SIGSEGV. It said last: .*Segmentation fault"
    ):
        build(request(), rtx)


@pytest.mark.rtx
def test_a_builder_killed_half_way_leaves_nothing(
    rtx: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine file is there, and its process died before it said so: the store stays empty."""
    kill = (
        "import os, signal\nreal = os.replace\n"
        "die = lambda: os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.replace = lambda a, b: die() if str(b).endswith('meta.json') else real(a, b)"
    )
    store = Store(tmp_path / "store")
    with monkeypatch.context() as patch:
        sabotage(tmp_path, patch, kill)
        with pytest.raises(
            EngineError, match="ended by SIGKILL; the system ends processes so where its memory"
        ):
            build(request(), rtx, store)
    assert not list((tmp_path / "store").rglob("engine.plan"))
    sys.path_importer_cache.clear()
    assert not build(request(), rtx, store).stored
    assert build(request(role="fixed"), rtx, store).stored


@pytest.mark.rtx
def test_a_hang_is_stopped(rtx: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(tmp_path, monkeypatch, "import time; print('[E] no way', flush=True); time.sleep(600)")
    started = time.monotonic()
    with pytest.raises(EngineError, match=r"not done after 1 s and stopped; raise .*said last: no way"):
        build(request(options=BuildOptions(timeout=1)), rtx)
    assert time.monotonic() - started < 20


@pytest.mark.rtx
@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone ends a child with its parent")
def test_a_builder_does_not_outlive_a_killed_session(
    rtx: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = tmp_path / "pid"
    hang = (
        "import os, pathlib, time\nreal = os.replace\n"
        "def wait(a, b):\n"
        "    if str(b).endswith('meta.json'):\n"
        f"        pathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\n"
        "        time.sleep(600)\n"
        "    real(a, b)\n"
        "os.replace = wait"
    )
    sabotage(tmp_path, monkeypatch, hang)
    code = (
        "from builds import request\n"
        "from pytest_int8acc.runtime.trt.build import build\n"
        "from pytest_int8acc.runtime.trt.platform import find_platform\n"
        "build(request(), find_platform('rtx')[0])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    session = subprocess.Popen([sys.executable, "-c", code], env=environment)
    assert within_seconds(60, lambda: pid.exists() and pid.read_text() != "")
    session.kill()
    session.wait()
    assert within_seconds(10, lambda: not is_alive(int(pid.read_text())))


def within_seconds(seconds: float, holds: Callable[[], bool]) -> bool:
    """True as soon as ``holds`` does."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if holds():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.rtx
def test_a_builder_stays_for_the_next_build_until_one_fails(
    rtx: Platform, built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine of a builder that has built before is the one of a builder that starts."""
    started = tmp_path / "started"
    sabotage(tmp_path, monkeypatch, f"open({str(started)!r}, 'a').write('x')")
    with Workers() as workers:
        build(request(), rtx, workers=workers)
        again = build(request(quantized("residual")), rtx, workers=workers)
        assert (again.layers, again.network) == (built.layers, built.network)
        assert "residual" not in build(request(), rtx, workers=workers).log.read_text()
        assert started.read_text() == "x"
        (bad := tmp_path / "bad.so").write_bytes(b"no library")
        with pytest.raises(EngineError, match="plugin library does not load"):
            build(request(options=BuildOptions(plugins=(bad,))), rtx, workers=workers)
        build(request(), rtx, workers=workers)
    assert started.read_text() == "xx"


@pytest.mark.rtx
def test_parallel_builds_make_each_engine_once(
    rtx: Platform, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pytest_int8acc")
    models = [PLAIN, PLAIN, to_fp16(PLAIN).model]
    found: list[Built] = []
    threads = [
        threading.Thread(target=lambda m=m: found.append(build(request(m), rtx, Store(tmp_path))))
        for m in models
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.stored for one in found) == [False, False, True]
    assert len({one.engine for one in found}) == 2
    stored = next(one for one in found if one.stored)
    assert stored.seconds == 0
    assert stored.waited > 0.2
    assert stored.network
    lines = [record.getMessage() for record in caplog.records]
    assert sum("MB built in" in line for line in lines) == 2
    assert sum("engine taken from the store" in line for line in lines) == 1


@pytest.mark.rtx
def test_an_engine_cannot_run_without_a_gpu(built: Built, rtx: Platform) -> None:
    if rtx.can_run:
        pytest.skip("there is a GPU")
    with pytest.raises(MissingBackendError, match="cannot run engines here: "):
        open_built(built)
    with pytest.raises(MissingBackendError):
        open_engine(built.engine, rtx, built.inputs, built.outputs)


@pytest.mark.rtx
def test_an_engine_that_does_not_load_is_an_error_not_a_crash(built: Built, rtx: Platform) -> None:
    """TensorRT-RTX without a GPU refuses every engine: here it is told that there is one."""
    if rtx.can_run:
        pytest.skip("there is a GPU")
    armed = dataclasses.replace(rtx, gpu="NVIDIA L4", problem="")
    with pytest.raises(EngineError, match=f"{built.engine}: {rtx.name} cannot load this engine: "):
        open_engine(built.engine, armed, built.inputs, built.outputs)


@pytest.mark.rtx
def test_an_engine_of_another_tensorrt_is_refused(built: Built) -> None:
    here = Platform("tensorrt", (8, 6, 0), "NVIDIA H100", (9, 0))
    with pytest.raises(EngineError, match=r"built by TensorRT-RTX 1\..*, and TensorRT 8.6.0 runs here"):
        open_engine(built.engine, here, built.inputs, built.outputs)


@pytest.mark.rtx
def test_a_truncated_engine_is_refused(built: Built, tmp_path: Path) -> None:
    content = built.engine.read_bytes()
    for size in (0, 3, 27, 28, len(content) // 2, len(content) - 1):
        (tmp_path / "cut.plan").write_bytes(content[:size])
        with pytest.raises(EngineError, match=r"not an engine of TensorRT|is cut off after"):
            read_header(tmp_path / "cut.plan")
