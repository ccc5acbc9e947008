"""Builds or examines engines, one after the other; run as a child (see ``build.py``).

    python -m pytest_int8acc.runtime.trt.worker

Reads folders from standard input, one per line, in JSON. Of each it reads ``job.json``, and writes
``meta.json`` last, so that its absence tells of a crash; all that TensorRT and Polygraphy say goes to
``build.log``.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import getpass
import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock

from pytest_int8acc.files import replace_file


def lock_of(bus: str) -> Path | None:
    """The lock of the GPU at a PCI bus id, for this user's processes; None where the id is not known."""
    if not bus:
        return None
    with contextlib.suppress(OSError, KeyError):  # a user without a name
        place = re.sub(r"\W", "-", f"{getpass.getuser()}-{bus}")
        return Path(tempfile.gettempdir()) / f"int8acc-gpu-{place}.lock"
    return None


@contextlib.contextmanager
def alone(lock: Path | None) -> Iterator[float]:
    """Hold a lock; gives the seconds waited for it. Nobody is kept from work where it cannot be held."""
    started = time.monotonic()
    held = None if lock is None else FileLock(str(lock), thread_local=False)
    if held is not None:
        with contextlib.suppress(OSError):
            held.acquire()
    try:
        yield time.monotonic() - started
    finally:
        if held is not None:
            held.release()


MODEL, ENGINE, LAYERS, NETWORK = "model.onnx", "engine.plan", "layers.json", "network.json"
JOB, META, CACHE, TIMING = "job.json", "meta.json", "calibration.cache", "timing.cache"
BATCHES = "batches"
LOG = "build.log"
#: There as long as the build waits for the GPU.
WAITING = "waiting"

#: The legacy calibrator's parameters; Polygraphy's own quantile of 0.5 would cut half of the values off.
_QUANTILE, _CUTOFF = 0.9999, 1.0
_CALIBRATORS = {
    "entropy2": "IInt8EntropyCalibrator2",
    "entropy": "IInt8EntropyCalibrator",
    "minmax": "IInt8MinMaxCalibrator",
    "legacy": "IInt8LegacyCalibrator",
}
_FLOATS = frozenset({"FLOAT", "HALF"})
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_ORIGIN = re.compile(r"\[ONNX Layer: ([^\]]*)\]")


def main() -> int:
    """Do one job after the other; 1 at the first that fails, with the reason in its ``meta.json``."""
    _die_with_parent()
    for line in sys.stdin:
        folder = Path(json.loads(line))
        os.chdir(folder)
        _say_into(LOG)
        meta = _done()
        gc.collect()  # what an engine holds on the GPU is freed before the parent goes on
        sys.stdout.flush()
        os.chdir(tempfile.gettempdir())  # the parent may delete the folder
        replace_file(folder / META, json.dumps(meta).encode())
        if "error" in meta:
            return 1
    return 0


def _say_into(log: str) -> None:
    """Have all output of this process go to the end of a file."""
    with open(log, "ab") as stream:
        for standard in (1, 2):
            os.dup2(stream.fileno(), standard)


def _done() -> dict[str, Any]:
    """Do the job of the current folder, and tell what came of it."""
    from polygraphy.logger import G_LOGGER

    G_LOGGER.module_severity = G_LOGGER.VERBOSE
    G_LOGGER.colors = False
    try:
        job = json.loads(Path(JOB).read_text(encoding="utf-8"))
        _load_plugins(job["plugins"])
        meta = _build(job) if job["kind"] == "build" else {}
        if job["examine"]:
            meta["tensors"] = _examine(job["engine"], job["profiles"])
    except Exception as error:  # whatever it is, the parent says it to the user
        traceback.print_exc()
        meta = {"error": str(error).strip() or type(error).__name__}
    return meta


def _die_with_parent() -> None:
    """Have Linux kill this process when the one that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, int(signal.SIGKILL))


def _tensorrt() -> Any:
    """The module that Polygraphy uses."""
    from polygraphy.config import USE_TENSORRT_RTX

    if USE_TENSORRT_RTX:
        import tensorrt_rtx

        return tensorrt_rtx
    import tensorrt

    return tensorrt


def _load_plugins(plugins: list[str]) -> None:
    from polygraphy.backend.trt import load_plugins

    for plugin in plugins:
        try:
            load_plugins([plugin])
        except OSError as error:
            raise RuntimeError(f"plugin library does not load: {error}") from error


def _build(job: dict[str, Any]) -> dict[str, Any]:
    """Parse the model, build it, and write the engine.

    Where TensorRT quantizes by itself, it may have no kernel for an INT8 layer that gives a held layer's
    type; then it is built once more without asking for that.
    """
    from polygraphy.exception import PolygraphyException

    job["waited"] = 0.0
    held = job["algorithm"] is not None and bool(job["precisions"])
    try:
        return _built(job, fed=held)
    except PolygraphyException:
        if not held:
            raise
        return _built(job, fed=False) | {"unfed": True}


def _built(job: dict[str, Any], *, fed: bool) -> dict[str, Any]:
    from polygraphy.backend.trt import EngineBytesFromNetwork, NetworkFromOnnxPath

    builder, network, parser = NetworkFromOnnxPath(MODEL, **_network_options(job))()
    if isinstance(job["outputs"], list):
        _mark(network, set(job["outputs"]))
    absent = _hold_precisions(network, job["precisions"], fed=fed)
    Path(NETWORK).write_text(json.dumps(list(_layers(network))), encoding="utf-8")
    saved = TIMING if job["timing"] else None
    batches = _Batches(job["calibration_shapes"] or ())
    made = EngineBytesFromNetwork((builder, network, parser), _config(job, batches), save_timing_cache=saved)
    Path(WAITING).touch()
    with alone(job["lock"] and Path(job["lock"])) as waited:
        Path(WAITING).unlink()
        job["waited"] += waited
        engine = bytes(made())
    if batches.asked_for and not batches.names:
        raise RuntimeError("TensorRT does not take the calibration cache; it may be of another version")
    Path(ENGINE).write_bytes(engine)
    found = {"absent": absent, "nbytes": len(engine), "waited": job["waited"]}
    return found | {"tensorrt": str(_tensorrt().__version__)}


def _network_options(job: dict[str, Any]) -> dict[str, bool]:
    """What is settled when a network is made; said only where it is wanted, since 8.6 knows neither."""
    requested = {
        "strongly_typed": job["typing"] == "strong",
        "mark_unfused_tensors_as_debug_tensors": job["outputs"] == "debug",
    }
    return {name: True for name, is_so in requested.items() if is_so}


def _config(job: dict[str, Any], batches: _Batches) -> Any:
    """A Polygraphy loader of the builder's configuration, every layer's details kept in the engine."""
    from polygraphy.backend.trt import CreateConfig, PostprocessConfig

    trt = _tensorrt()
    options: dict[str, Any] = {"profiles": [_profile(job["profiles"])]}
    options.update(dict.fromkeys(job["flags"], True))
    if job["workspace"] is not None:
        options["memory_pool_limits"] = {trt.MemoryPoolType.WORKSPACE: job["workspace"]}
    if job["optimization_level"] is not None:
        options["builder_optimization_level"] = job["optimization_level"]
    if job["tactic_sources"] is not None:
        options["tactic_sources"] = [_tactic_source(trt, name) for name in job["tactic_sources"]]
    if job["precisions"]:
        options["precision_constraints"] = "obey"
    if job["timing"] and Path(TIMING).exists():
        options["load_timing_cache"] = TIMING
    if job["algorithm"] is None:
        return CreateConfig(**options)
    config = CreateConfig(calibrator=_calibrator(trt, job, batches), **options)
    if job["calibration_shapes"] is None:
        return config
    shapes = {name: [shape] * 3 for name, shape in job["calibration_shapes"].items()}

    def calibrate_in_batches(builder: Any, network: Any, config: Any) -> None:
        config.set_calibration_profile(_profile(shapes).to_trt(builder, network))

    return PostprocessConfig(config, calibrate_in_batches)


def _profile(profiles: dict[str, Any]) -> Any:
    from polygraphy.backend.trt import Profile

    profile = Profile()
    for name, (least, usual, most) in profiles.items():
        profile.add(name, tuple(least), tuple(usual), tuple(most))
    return profile


def _tactic_source(trt: Any, name: str) -> Any:
    known = trt.TacticSource.__members__
    if name.upper() not in known:
        raise ValueError(f"tactic_sources: this TensorRT has no '{name}'; it has {', '.join(known)}")
    return known[name.upper()]


class _Batches:
    """Calibration batches from their files, one at a time, as often as wanted."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self.asked_for = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import numpy as np

        self.asked_for = True  # at the first next, not where the calibrator only prepares
        for path in sorted(Path(BATCHES).glob("*.npz")):
            with np.load(path) as arrays:
                yield {n: np.ascontiguousarray(arrays[f"arr_{i}"]) for i, n in enumerate(self.names)}


def _calibrator(trt: Any, job: dict[str, Any], batches: _Batches) -> Any:
    """One that reads the job's cache, or runs its batches and writes one."""
    from polygraphy.backend.trt import Calibrator

    base = getattr(trt, _CALIBRATORS[job["algorithm"]])
    legacy = {"quantile": _QUANTILE, "regression_cutoff": _CUTOFF} if job["algorithm"] == "legacy" else {}
    return Calibrator(batches, cache=CACHE, BaseClass=base, **legacy)


def _mark(network: Any, names: set[str]) -> None:
    """Mark float tensors as outputs; TensorRT allows none inside a loop or a branch."""
    inside = 0
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        inside += layer.type.name in ("TRIP_LIMIT", "CONDITION")
        inside -= layer.type.name in ("LOOP_OUTPUT", "CONDITIONAL_OUTPUT") and inside > 0
        if inside:
            continue
        for tensor in filter(None, (layer.get_output(i) for i in range(layer.num_outputs))):
            if tensor.name in names and tensor.dtype.name in _FLOATS and not tensor.is_network_output:
                network.mark_output(tensor)


def _layers(network: Any) -> Iterator[dict[str, Any]]:
    """Name, type, ONNX nodes and output types of each layer, as parsed."""
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        outputs = [layer.get_output(i) for i in range(layer.num_outputs)]
        yield {
            "name": layer.name,
            "type": layer.type.name,
            "nodes": _ORIGIN.findall(getattr(layer, "metadata", "") or ""),
            "outputs": {tensor.name: tensor.dtype.name for tensor in outputs if tensor is not None},
        }


def _hold_precisions(network: Any, precisions: dict[str, str], *, fed: bool) -> list[str]:
    """Set the precision of the layers of each node; returns the nodes that have no layer."""
    if not precisions:
        return []
    from polygraphy.backend.trt import set_layer_precisions

    trt = _tensorrt()
    types = {"fp16": trt.float16, "fp32": trt.float32}
    requested, found = {}, set()
    for layer in _layers(network):
        node = _node_of(layer, precisions)
        if node is None:
            continue
        found.add(node)
        if set(layer["outputs"].values()) <= _FLOATS and layer["type"] not in ("SHAPE", "CONSTANT"):
            requested[layer["name"]] = types[precisions[node]]
    set_layer_precisions((None, network), requested)
    if fed:
        _feed_in_type(network, requested)
    return sorted(set(precisions) - found)


def _feed_in_type(network: Any, requested: dict[str, Any]) -> None:
    """Have held layers fed in their own type: TensorRT would still give an INT8 layer's result in INT8."""
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    makers = {layer.get_output(i).name: (layer, i) for layer in layers for i in range(layer.num_outputs)}
    for layer in layers:
        for tensor in (layer.get_input(i) for i in range(layer.num_inputs) if layer.name in requested):
            maker, index = makers.get(tensor.name, (None, 0)) if tensor is not None else (None, 0)
            if maker is None or maker.name in requested or maker.type.name in ("SHAPE", "CONSTANT"):
                continue
            if tensor.dtype.name in _FLOATS:
                maker.set_output_type(index, requested[layer.name])


def _node_of(layer: dict[str, Any], nodes: dict[str, str]) -> str | None:
    """Which of ``nodes`` a parsed layer belongs to; a node's further layers bear its name and a number."""
    for origin in (*layer["nodes"], layer["name"]):
        if origin in nodes:
            return str(origin)
    base = re.sub(r"_\d+$", "", layer["name"])
    return base if base in nodes else None


def _examine(engine: str, profiles: dict[str, Any]) -> list[dict[str, Any]]:
    """Load the engine; write what its inspector tells, and return its inputs and outputs."""
    from polygraphy.backend.trt import EngineFromBytes

    trt = _tensorrt()
    loaded = EngineFromBytes(Path(engine).read_bytes())()
    context = loaded.create_execution_context()
    inspector = loaded.create_engine_inspector()
    names = [loaded.get_tensor_name(i) for i in range(loaded.num_io_tensors)]
    for name in names:
        is_input = loaded.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        if is_input and not loaded.is_shape_inference_io(name) and -1 in tuple(loaded.get_tensor_shape(name)):
            usual = profiles[name][1] if name in profiles else loaded.get_tensor_profile_shape(name, 0)[1]
            context.set_input_shape(name, tuple(usual))
    inspector.execution_context = context  # without one, tensors of dynamic shape have no format
    text = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    Path(LAYERS).write_bytes(text.encode("utf-8", errors="replace"))
    return [_tensor(trt, loaded, name) for name in names]


def _tensor(trt: Any, engine: Any, name: str) -> dict[str, Any]:
    """Mode, dtype, shape and profile of one input or output."""
    is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
    profile = None
    if is_input and not engine.is_shape_inference_io(name):
        profile = [list(shape) for shape in engine.get_tensor_profile_shape(name, 0)]
    return {
        "name": name,
        "input": is_input,
        "dtype": engine.get_tensor_dtype(name).name,
        "shape": list(engine.get_tensor_shape(name)),
        "profile": profile,
    }


if __name__ == "__main__":
    sys.exit(main())
