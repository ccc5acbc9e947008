"""The program of the child processes of ``children.py``. Its jobs are build, examine, probe, parse and load.

    python -m pytest_int8acc.runtime.worker

The program reads names of folders from standard input, one in each line, as JSON. It does the job in the
folder's ``job.json``, and writes ``meta.json`` last. So a missing ``meta.json`` means that the child crashed.
All output of runtimes and Polygraphy goes to ``build.log``.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import getpass
import importlib
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

from filelock import FileLock, Timeout

from pytest_int8acc.files import read_sealed, replace_file, seal
from pytest_int8acc.runtime.trt.options import BUILDER_OPTIONS

MODEL, ENGINE, LAYERS, NETWORK = "model.onnx", "engine.plan", "layers.json", "network.json"
JOB, META, CACHE, TIMING = "job.json", "meta.json", "calibration.cache", "timing.cache"
BATCHES = "batches"
LOG = "build.log"
#: Prefix of a line of the log that holds a fact as JSON.
FACT = "FACT "
#: Name of a file that exists while the job waits for the GPU.
WAITING = "waiting"
#: Number of slots of a GPU. Each build beside others holds one of them.
SLOTS = 4
#: Number of seconds after which a process that waits for a GPU checks its locks again.
_POLL_SECONDS = 0.05

#: Quantile and regression cutoff of the legacy calibrator. Polygraphy's quantile of 0.5 would clip half of
#: the values.
_QUANTILE, _CUTOFF = 0.9999, 1.0
_CALIBRATORS = {
    "entropy2": "IInt8EntropyCalibrator2",
    "entropy": "IInt8EntropyCalibrator",
    "minmax": "IInt8MinMaxCalibrator",
    "legacy": "IInt8LegacyCalibrator",
}
_FLOATS = frozenset({"FLOAT", "HALF"})
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
_ORIGIN = re.compile(r"\[ONNX Layer: ([^\]]*)\]")


def lock_of(bus: str) -> Path | None:
    """The file that this user's processes lock to use a GPU; None if ``bus`` or the user is unknown."""
    if not bus:
        return None
    with contextlib.suppress(OSError, KeyError):  # raised for a user without a name
        place = re.sub(r"\W", "-", f"{getpass.getuser()}-{bus}")
        return Path(tempfile.gettempdir()) / f"int8acc-gpu-{place}.lock"
    return None


@contextlib.contextmanager
def alone(lock: Path | None, *, timeout: float = -1) -> Iterator[float | None]:
    """Hold a GPU within the block. No other process of this user then builds or measures there.

    TensorRT times kernels, and two builders on one GPU slow each other by a factor of 3 to 4. If the file
    system has no locks, the block runs without a lock.

    Args:
        lock: The file from :func:`lock_of`; None holds nothing.
        timeout: Maximum number of seconds to wait for each lock; -1 waits without a limit.

    Yields:
        The number of seconds until the GPU was free; None if it was not free in time.
    """
    started = time.monotonic()
    with contextlib.ExitStack() as held:
        is_free = all(_hold(file, held, timeout) for file in (*_turn_of(lock), *_slots_of(lock, SLOTS)))
        yield time.monotonic() - started if is_free else None


@contextlib.contextmanager
def sharing(lock: Path | None, slots: int) -> Iterator[float]:
    """Hold one of the first ``slots`` slots of a GPU within the block. ``alone`` holds all slots.

    It yields the number of seconds until a slot was free. If the file system has no locks, the block runs
    without a lock.
    """
    started = time.monotonic()
    files = _slots_of(lock, min(slots, SLOTS))
    with contextlib.ExitStack() as held:
        with contextlib.ExitStack() as turn:
            for file in _turn_of(lock):
                _hold(file, turn, -1)
            while files and not any(_hold(file, held, 0) for file in files):
                time.sleep(_POLL_SECONDS)
        yield time.monotonic() - started


def _turn_of(lock: Path | None) -> list[Path]:
    """The file that a process holds while it waits for slots; no file if ``lock`` is None.

    While one process waits for all slots, no other takes a slot that becomes free.
    """
    return [] if lock is None else [lock.with_suffix(f".turn{lock.suffix}")]


def _slots_of(lock: Path | None, slots: int) -> list[Path]:
    """The files of a GPU's first slots. A process that holds all ``SLOTS`` of them has the GPU alone."""
    if lock is None:
        return []
    return [lock, *(lock.with_suffix(f".{slot}{lock.suffix}") for slot in range(1, slots))]


def _hold(file: Path, held: contextlib.ExitStack, timeout: float) -> bool:
    """Lock a file until ``held`` is closed; False if another process has it after ``timeout`` seconds."""
    lock = FileLock(str(file), thread_local=False)
    with contextlib.suppress(OSError):
        try:
            lock.acquire(timeout=timeout, poll_interval=_POLL_SECONDS)
        except Timeout:
            return False
    held.callback(lock.release)
    return True


def main() -> int:
    """Do one job after another; returns 1 once a job fails. The ``meta.json`` of this job has the reason."""
    _die_with_parent()
    for line in sys.stdin:
        folder = Path(json.loads(line))
        os.chdir(folder)
        _say_into(LOG)
        meta = _done()
        gc.collect()  # frees memory of engines on the GPU before the parent continues
        sys.stdout.flush()
        os.chdir(tempfile.gettempdir())  # the parent may delete the folder of the job
        replace_file(folder / META, json.dumps(meta).encode())
        if "error" in meta:
            return 1
    return 0


def _say_into(log: str) -> None:
    """Append all further output of this process to a file."""
    with open(log, "ab") as stream:
        for standard in (1, 2):
            os.dup2(stream.fileno(), standard)


def _done() -> dict[str, Any]:
    """Do the job of the current folder; returns the answer, which has an ``error`` if the job failed."""
    job: dict[str, Any] = {}
    try:
        job |= json.loads(Path(JOB).read_text(encoding="utf-8"))
        meta = _JOBS[job["kind"]](job)
    except Exception as error:  # of any type: the parent reports it to the user
        traceback.print_exc()
        meta = {"error": str(error).strip() or type(error).__name__, "waited": job.get("waited", 0.0)}
    return meta


def _build_engine(job: dict[str, Any]) -> dict[str, Any]:
    """Build an engine, and examine it if there is a GPU that can load it."""
    _prepare_polygraphy(job)
    meta = _build(job)
    if job["examine"]:
        meta["tensors"] = _examine(job["engine"], job["profiles"])
    return meta


def _examine_engine(job: dict[str, Any]) -> dict[str, Any]:
    """Examine an engine file that exists already."""
    _prepare_polygraphy(job)
    return {"tensors": _examine(job["engine"], {})}


def _prepare_polygraphy(job: dict[str, Any]) -> None:
    """Make Polygraphy log everything, and load the plugins."""
    from polygraphy.logger import G_LOGGER

    G_LOGGER.module_severity = G_LOGGER.VERBOSE
    G_LOGGER.colors = False
    _load_plugins(job["plugins"])


def _die_with_parent() -> None:
    """Make Linux kill this process when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, int(signal.SIGKILL))


def _tensorrt() -> Any:
    """The module that Polygraphy uses: ``tensorrt`` or ``tensorrt_rtx``."""
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
    """Parse the model, build the engine, and write it.

    In implicit quantization, a job may require FP16 or FP32 for some layers, the held layers. Then the layers
    before a held layer should give their results in that type. If TensorRT has no kernels for this, the
    engine is built once more, and the held layers may read INT8 results.
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
    batches = _Batches(job["calibration_shapes"] or ())
    shared = Path(job["timing"]) if job["timing"] else None
    lock = Path(job["lock"]) if job["lock"] else None
    Path(WAITING).touch()
    with sharing(lock, job["slots"]) if job["slots"] else alone(lock) as waited:
        Path(WAITING).unlink()
        job["waited"] += waited
        _take_timings(shared)
        config = _config(job, batches)(builder, network)
        engine = bytes(EngineBytesFromNetwork((builder, network, parser), config)())
        _give_timings(shared, config)
    if batches.asked_for and not batches.names:
        raise RuntimeError("TensorRT does not take the calibration cache; it may be of another version")
    Path(ENGINE).write_bytes(engine)
    found = {"absent": absent, "nbytes": len(engine), "waited": job["waited"]}
    return found | {"tensorrt": str(_tensorrt().__version__)}


def _take_timings(shared: Path | None) -> None:
    """Copy the shared timing cache for a build. If the cache cannot be read, the build takes longer."""
    if shared is not None:
        with contextlib.suppress(OSError):
            Path(TIMING).write_bytes(read_sealed(shared, "timing cache") or b"")


def _give_timings(shared: Path | None, config: Any) -> None:
    """Add what a build has timed to the shared timing cache, beside what other builds have added meanwhile.

    If the cache cannot be written, later builds take longer.
    """
    if shared is None:
        return
    timings = config.get_timing_cache()
    with contextlib.suppress(OSError), FileLock(str(shared.with_suffix(".lock"))):
        if timings is None:  # TensorRT refuses the shared timings, for example after a change of the driver
            shared.unlink(missing_ok=True)
            return
        others = config.create_timing_cache(read_sealed(shared, "timing cache") or b"")
        if others is not None:
            timings.combine(others, ignore_mismatch=True)
        replace_file(shared, seal(bytes(timings.serialize())))


def _network_options(job: dict[str, Any]) -> dict[str, bool]:
    """The options of the network that are True.

    Options that are False are left out, because TensorRT 8.6 knows none of them.
    """
    requested = {
        "strongly_typed": job["typing"] == "strong",
        "mark_unfused_tensors_as_debug_tensors": job["outputs"] == "debug",
    }
    return {name: True for name, is_so in requested.items() if is_so}


def _config(job: dict[str, Any], batches: _Batches) -> Any:
    """A Polygraphy loader of the builder's configuration."""
    from polygraphy.backend.trt import CreateConfig, PostprocessConfig

    trt = _tensorrt()
    options: dict[str, Any] = {"profiles": [_profile(job["profiles"])]}
    options.update(dict.fromkeys(job["flags"], True))
    for name, value in job["builder"].items():
        arguments = BUILDER_OPTIONS[name].arguments
        assert arguments is not None  # a job has only options of the builder
        options.update(arguments(trt, value))
    if job["precisions"]:
        options["precision_constraints"] = "obey"
    if job["timing"]:
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


class _Batches:
    """Calibration batches, which may be iterated several times. They are read from files, one at a time."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self.asked_for = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import numpy as np

        self.asked_for = True  # set only when the first batch is requested
        for path in sorted(Path(BATCHES).glob("*.npz")):
            with np.load(path) as arrays:
                yield {n: np.ascontiguousarray(arrays[f"arr_{i}"]) for i, n in enumerate(self.names)}


def _calibrator(trt: Any, job: dict[str, Any], batches: _Batches) -> Any:
    """A calibrator that reads the job's cache, or runs the job's batches and writes a cache of ranges."""
    from polygraphy.backend.trt import Calibrator

    base = getattr(trt, _CALIBRATORS[job["algorithm"]])
    legacy = {"quantile": _QUANTILE, "regression_cutoff": _CUTOFF} if job["algorithm"] == "legacy" else {}
    return Calibrator(batches, cache=CACHE, BaseClass=base, **legacy)


def _mark(network: Any, names: set[str]) -> None:
    """Mark float tensors as outputs, except inside loops and branches, where TensorRT forbids it."""
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
    """Name, type, ONNX nodes and output types of each layer of a parsed network."""
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
    """Set the precisions of the layers of nodes; returns the nodes that have no layer.

    With ``fed``, the layers that feed these layers must give their results in the same precision.
    """
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
    """Set the types of the inputs of the layers in ``requested`` to the layers' precisions.

    Otherwise the layers that produce these inputs could give INT8 results.
    """
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
    """The node of a parsed layer. Further layers of one node have its name and a number."""
    for origin in (*layer["nodes"], layer["name"]):
        if origin in nodes:
            return str(origin)
    base = re.sub(r"_\d+$", "", layer["name"])
    return base if base in nodes else None


def _examine(engine: str, profiles: dict[str, Any]) -> list[dict[str, Any]]:
    """Load an engine, and write the text of its inspector; returns its inputs and outputs."""
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
    inspector.execution_context = context  # without a context, tensors of dynamic shape have no format
    text = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    Path(LAYERS).write_bytes(text.encode("utf-8", errors="replace"))
    return [_tensor(trt, loaded, name) for name in names]


def _tensor(trt: Any, engine: Any, name: str) -> dict[str, Any]:
    """Mode, dtype, shape and profile of an input or output of an engine."""
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


def _probe(job: dict[str, Any]) -> dict[str, Any]:
    """Write facts about TensorRT and the GPU into the log. Steps that may end the process come last."""
    _tell({"gpu": _gpu()})
    _tell({"cudart": _cudart()})
    for module in ("tensorrt_rtx", "tensorrt"):
        _tell({module: _module(module)})
    return {}


def _tell(fact: Any) -> None:
    """Write a fact as one line into the log."""
    print(f"\n{FACT}{json.dumps(fact)}", flush=True)


def _gpu() -> dict[str, Any]:
    """Facts about device 0, and the devices of its kind, from the driver library."""
    library = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return {"error": f"the driver's {library} is missing"}
    count = ctypes.c_int()
    code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    if code or not count.value:
        return {"error": f"the driver gives error {code}" if code else "the driver has no device"}
    found = [_device(cuda, index) for index in range(count.value)]
    first = found[0][0]
    if "error" in first:
        return first
    kind = first["name"], first["capability"]
    alike = {
        index: (bus, facts["nbytes"])
        for index, (facts, bus) in enumerate(found)
        if (facts.get("name"), facts.get("capability")) == kind
    }
    return {**first, "alike": alike}


def _device(cuda: Any, index: int) -> tuple[dict[str, Any], str]:
    """The name, compute capability and memory of a GPU, and its PCI bus id."""
    device, value, nbytes = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name, bus = ctypes.create_string_buffer(256), ctypes.create_string_buffer(32)
    code = cuda.cuDeviceGet(ctypes.byref(device), index) or cuda.cuDeviceGetName(name, len(name), device)
    if code:
        return {"error": f"the driver gives error {code}"}, ""
    capability = []
    for attribute in (_MAJOR, _MINOR):
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability.append(value.value)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(nbytes), device)  # stays 0 if it fails
    place = "" if cuda.cuDeviceGetPCIBusId(bus, len(bus), device) else bus.value.decode(errors="replace")
    facts = {"name": name.value.decode(errors="replace"), "capability": capability, "nbytes": nbytes.value}
    return facts, place


def _cudart() -> dict[str, Any]:
    """Whether Polygraphy finds the CUDA runtime, which it needs to run engines."""
    try:
        from polygraphy.cuda import wrapper

        wrapper()
    except Exception as error:  # raised by Polygraphy or by the dynamic linker
        return {"error": str(error).strip().splitlines()[0] if str(error).strip() else "not found"}
    return {}


def _module(name: str) -> dict[str, Any]:
    """The version of a module, and for TensorRT-RTX the compute capabilities for which it builds."""
    try:
        module = importlib.import_module(name)
        version = str(module.__version__)
    except Exception as error:  # a missing library, an unfit NumPy, a folder of the same name
        return {"error": str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}
    capabilities = getattr(module, "ComputeCapability", None)
    members = getattr(capabilities, "__members__", {})
    known = [m[2:] for m in members if m.startswith("SM") and m[2:].isdecimal()]
    return {"version": version, "capabilities": [[int(sm[:-1]), int(sm[-1])] for sm in known]}


def _parse(job: dict[str, Any]) -> dict[str, Any]:
    """Parse a model by TensorRT-RTX. The answer's ``refusal`` is the parser's reason to refuse the model.

    A fact in the log shows that TensorRT-RTX loads.
    """
    runtime: Any = importlib.import_module("tensorrt_rtx")
    _tell("loaded")
    logger = runtime.Logger(runtime.Logger.ERROR)
    flag = 1 << int(runtime.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    builder = runtime.Builder(logger)
    network = builder.create_network(flag)  # builder and network must exist as long as the parser
    parser = runtime.OnnxParser(network, logger)
    if parser.parse_from_file(job["model"]):
        return {"refusal": None}
    if not parser.num_errors:
        return {"refusal": ["", ""]}
    error = parser.get_error(0)
    return {"refusal": [error.node_name(), error.desc()]}


def _load(job: dict[str, Any]) -> dict[str, Any]:
    """Open a model in a default session of ONNX Runtime, which logs what each optimizer does."""
    runtime: Any = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 0
    with contextlib.suppress(Exception):  # the log is read even if the model is refused
        runtime.InferenceSession(MODEL, options, job["providers"])
    return {}


#: The function that does each kind of job.
_JOBS = {
    "build": _build_engine,
    "examine": _examine_engine,
    "probe": _probe,
    "parse": _parse,
    "load": _load,
}


if __name__ == "__main__":
    sys.exit(main())
