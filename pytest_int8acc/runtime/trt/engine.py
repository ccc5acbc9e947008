"""Runs a built engine on the GPU by Polygraphy, and reads the header of an engine file.

The layout of the header comes from trtexec (samples/common/sampleEngines.cpp, ``printPlanVersion``, since
8.6): a tag of four bytes, a header version (0), and TensorRT's version in bytes 24 to 27. A file of
TensorRT-RTX has another tag, and the size of the file in bytes 16 to 23.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import signal
import struct
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pytest_int8acc.errors import EngineError, listed
from pytest_int8acc.files import readable
from pytest_int8acc.runtime import worker
from pytest_int8acc.runtime.children import last_words, ran_out_of_memory, read_log
from pytest_int8acc.runtime.protocol import check_names
from pytest_int8acc.runtime.trt.build import BuildOptions, Built, Range, explain, run_worker, shown, within
from pytest_int8acc.runtime.trt.platform import Flavor, Platform, require
from pytest_int8acc.tensors import Array, Feed, TensorInfo, describe

_TAGS: dict[bytes, Flavor] = {b"ftrt": "tensorrt", b"vtrt": "rtx"}
_HEADER = 28


@dataclass(frozen=True)
class PlanHeader:
    """The header of an engine file."""

    flavor: Flavor
    version: tuple[int, ...] | None
    """Major, minor, patch and build number; None if the header has another layout."""

    def __str__(self) -> str:
        name = "TensorRT-RTX" if self.flavor == "rtx" else "TensorRT"
        return f"{name} {'.'.join(map(str, self.version[:3]))}" if self.version else f"another {name}"


def read_header(path: Path) -> PlanHeader:
    """The header of the engine file ``path``.

    Raises:
        EngineError: The file cannot be read, or is not an engine of TensorRT 8.6 or later.
    """
    try:
        with readable(path).open("rb") as stream:
            head = stream.read(_HEADER)
        size = path.stat().st_size
    except OSError as error:
        raise EngineError(f"{path}: the engine cannot be read: {error.strerror or error}") from error
    flavor = _TAGS.get(head[:4])
    if flavor is None or len(head) < _HEADER:
        raise EngineError(
            f"{path}: not an engine of TensorRT 8.6 or later ({_guess(head)}); build one with "
            "trtexec --saveEngine, or name the ONNX model under 'model'"
        )
    if struct.unpack_from("<I", head, 4)[0] != 0:
        return PlanHeader(flavor, None)
    if flavor == "rtx" and size < struct.unpack_from("<Q", head, 16)[0]:
        raise EngineError(f"{path}: the engine is cut off after {size} bytes; copy or build it again")
    return PlanHeader(flavor, tuple(head[24:28]))


def _guess(head: bytes) -> str:
    """A clause for error messages: what a file that is not an engine may be."""
    if not head:
        return "the file is empty"
    if head.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer: run 'git lfs pull'"
    if head[:1] == b"\x08":  # the first field of an ONNX model, ir_version
        return "it looks like an ONNX model"
    return f"it begins with {head[:4]!r}"


def backend(platform: Platform) -> Any:
    """The module ``polygraphy.backend.trt``, which uses the platform's TensorRT.

    Raises:
        EngineError: Polygraphy already uses the other flavor, TensorRT or TensorRT-RTX, in this process.
    """
    config: Any = importlib.import_module("polygraphy.config")
    if bool(config.USE_TENSORRT_RTX) != platform.is_rtx:
        if "polygraphy.backend.trt" in sys.modules:
            needed = "1" if platform.is_rtx else "0"
            raise EngineError(
                f"{platform.name} cannot run in this process, which uses the other TensorRT already: set "
                f"POLYGRAPHY_USE_TENSORRT_RTX={needed} before pytest starts"
            )
        config.USE_TENSORRT_RTX = platform.is_rtx  # Polygraphy reads this once, in the import below
    return importlib.import_module("polygraphy.backend.trt")


def tensorrt(platform: Platform) -> Any:
    """The module of the platform's flavor: ``tensorrt`` or ``tensorrt_rtx``."""
    return importlib.import_module("tensorrt_rtx" if platform.is_rtx else "tensorrt")


@contextlib.contextmanager
def speaking_of(what: str) -> Iterator[None]:
    """Keep messages of Polygraphy and TensorRT off the terminal, and turn their exceptions into EngineErrors.

    Raises:
        EngineError: The block failed. The message names ``what``, and has TensorRT's message.
        KeyboardInterrupt: The user pressed Ctrl-C within the block. It is raised at the end of the block.
    """
    from polygraphy.exception import PolygraphyException
    from polygraphy.logger import G_LOGGER

    said = io.StringIO()
    try:
        with (
            _interrupts_held(),
            G_LOGGER.verbosity(G_LOGGER.ERROR),
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
        ):
            yield
    except (PolygraphyException, RuntimeError, TypeError, OSError, MemoryError) as error:
        text = said.getvalue()
        words = last_words(text or str(error))
        memory = "out of memory on the GPU, give a smaller batch: " if ran_out_of_memory(text) else ""
        raise EngineError(f"{what}: {memory}{words}") from error


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block, since TensorRT suppresses exceptions of its callbacks."""
    other = threading.current_thread() is not threading.main_thread()  # Ctrl-C only reaches the main thread
    if other or signal.getsignal(signal.SIGINT) is None:  # the handler is not Python's
        yield
        return
    held: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            signal.raise_signal(signal.SIGINT)


#: NumPy's name of an element type, by TensorRT's name.
_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "UINT8": "uint8",
    "BOOL": "bool",
}


class TrtEngine:
    """An engine in the memory of the GPU until :meth:`close`.

    TensorRT below 10 uses INT32 in place of the model's INT64. Inputs and outputs of such an engine are
    converted, and a value that INT32 cannot hold is an error. No other type is converted.

    Args:
        path: The engine file.
        platform: The TensorRT that built the engine, with a GPU.
        name: The model's name, for messages.
        inputs: The inputs of the model.
        outputs: The outputs of the model.
        profiles: The smallest, usual and largest shape of each input, by name.
        plugins: Plugin libraries that the engine needs.
        layers: The JSON of TensorRT's engine inspector; empty if it is not known.

    Raises:
        MissingBackendError: There is no GPU.
        EngineError: TensorRT cannot load the engine, or the engine has other inputs or outputs.
    """

    def __init__(
        self,
        path: Path,
        platform: Platform,
        *,
        name: str,
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
        profiles: Mapping[str, Range],
        plugins: Sequence[Path] = (),
        layers: str = "",
    ) -> None:
        require(platform, "run")
        self.name = name
        self.path = path
        self.platform = platform
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.layers = layers
        self.description = platform.description
        self._profiles = profiles
        trt = backend(platform)
        with speaking_of(f"{name}: {platform.name} cannot load its engine"):
            trt.load_plugins([str(plugin.resolve()) for plugin in plugins])
            self.engine: Any = trt.EngineFromBytes(path.read_bytes())()
            self.runner: Any = trt.TrtRunner(self.engine)
            self.runner.activate()
        self._dtypes = {n: _dtype(self.engine.get_tensor_dtype(n).name) for n in self._names()}

    def __call__(self, feed: Feed) -> Feed:
        """The outputs of one run.

        Args:
            feed: Maps the name of each input to an array of the model's dtype, with a shape within the
                engine's profile.

        Returns:
            For each output, by name, an array of the model's dtype. Later runs do not write to these arrays.

        Raises:
            EngineError: The feed does not fit, or TensorRT fails.
        """
        found = self.run_all(feed)
        return {o.name: _to_model(self.name, o, found[o.name]) for o in self.outputs}

    def run_all(self, feed: Feed) -> Feed:
        """All outputs and debug tensors of one run in the engine's dtypes."""
        arrays = self.adapted(feed)
        with speaking_of(f"{self.name}: {self.platform.name} cannot run it"):
            found = self.runner.infer(arrays, check_inputs=False)
            return {name: np.array(array) for name, array in found.items()}

    def close(self) -> None:
        """Free the engine's memory on the GPU. The engine cannot be used again."""
        if self.runner is not None:
            with speaking_of(f"{self.name}: cannot be closed"):
                self.runner.deactivate()
            self.runner = self.engine = None

    def __enter__(self) -> TrtEngine:
        """Return the engine."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the engine."""
        self.close()

    def _names(self) -> list[str]:
        return [self.engine.get_tensor_name(i) for i in range(self.engine.num_io_tensors)]

    def adapted(self, feed: Feed) -> Feed:
        """The feed in the engine's dtypes; raises EngineError if it does not fit the engine."""
        if any(tensor.name not in feed for tensor in self.inputs):
            check_names(self.name, feed, self.inputs)
        arrays = {}
        for tensor in self.inputs:
            array = np.asarray(feed[tensor.name])
            profile = self._profiles.get(tensor.name)
            if profile is not None and not within(array.shape, profile):
                raise EngineError(
                    f"{self.name}: input '{tensor.name}' has shape {list(array.shape)}, outside the engine's "
                    f"profile {shown(profile)}; widen 'tensorrt: {{shapes: {{{tensor.name}: ...}}}}'"
                )
            arrays[tensor.name] = _to_engine(self.name, tensor.name, array, self._dtypes[tensor.name])
        return arrays


def open_built(built: Built) -> TrtEngine:
    """A built engine, loaded onto the GPU; raises the errors of :class:`TrtEngine`."""
    return TrtEngine(
        built.engine,
        built.platform,
        name=f"{built.name} ({built.role})",
        inputs=built.inputs,
        outputs=built.outputs,
        profiles=built.profiles,
        plugins=built.plugins,
        layers=built.layers,
    )


def open_engine(
    path: Path,
    platform: Platform,
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
    options: BuildOptions | None = None,
    inner: Collection[str] = (),
) -> TrtEngine:
    """An engine from a file that the user built.

    Its header is read first. Then a child process loads the engine, because a damaged engine may crash the
    process.

    Args:
        path: The engine file.
        platform: A platform from ``find_platform``.
        inputs: The inputs of the case's model, which the engine must have.
        outputs: The outputs that the engine must have.
        options: The plugins and the time limit.
        inner: Outputs that are inner tensors of the model, and that criteria name.

    Raises:
        MissingBackendError: There is no GPU.
        EngineError: The file is no engine, or an engine of another TensorRT or GPU, or the engine has other
            inputs or outputs.
    """
    options, header = options or BuildOptions(), read_header(path)
    if header.flavor != platform.flavor:
        raise EngineError(f"{path}: built by {header}, and {platform.name} runs here; build it again")
    require(platform, "run")
    tensors, layers = _examine(path, platform, header, options)
    _check_tensors(path, tensors, True, inputs)
    lacking = sorted(set(inner).difference(t["name"] for t in tensors))
    if lacking:
        raise EngineError(
            f"{path}: it gives no {listed(lacking)}, which criteria name inside the model: build it from an "
            "ONNX model that has this among its outputs, or take the criteria on it out of the spec"
        )
    _check_tensors(path, tensors, False, outputs)
    return TrtEngine(
        path,
        platform,
        name=str(path),
        inputs=inputs,
        outputs=outputs,
        profiles=_profiles(tensors),
        plugins=options.plugins,
        layers=layers,
    )


def _examine(
    path: Path, platform: Platform, header: PlanHeader, options: BuildOptions
) -> tuple[list[dict[str, Any]], str]:
    """Inputs and outputs of an engine file, and the JSON of its inspector. A child process loads the file."""
    with tempfile.TemporaryDirectory(prefix="int8acc-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        plugins = [str(plugin.resolve()) for plugin in options.plugins]
        job = {"kind": "examine", "engine": str(path.resolve()), "plugins": plugins}
        outcome = run_worker(job, folder, platform, options.timeout, f"loading {path}")
        problem = explain(outcome, options.timeout)
        if problem:
            why = _why(header, platform, outcome.log, problem)
            raise EngineError(f"{path}: {platform.name} cannot load this engine: {why}")
        return outcome.answer["tensors"], read_log(folder / worker.LAYERS)


def _why(header: PlanHeader, platform: Platform, log: str, problem: str) -> str:
    """Why an engine does not load: another TensorRT version, another GPU, damage, or a missing plugin.

    Another version is recognized by the engine's header, because TensorRT's messages may not name it.
    """
    if header.version is not None and header.version[:3] != platform.version[:3]:
        return f"it was built by {header}; engines run on the version that built them, so build it again"
    if "compute" in log and ("incompatible" in log or "expecting" in log):
        return f"it was built for another GPU than {platform.gpu}; build it again here. {problem}"
    return f"it is damaged, or needs a plugin ('tensorrt: {{plugins: [...]}}'). {problem}"


def _profiles(tensors: Sequence[Mapping[str, Any]]) -> dict[str, Range]:
    found: dict[str, Range] = {}
    for tensor in tensors:
        if tensor["profile"]:
            least, usual, most = (tuple(shape) for shape in tensor["profile"])
            found[tensor["name"]] = (least, usual, most)
    return found


def _check_tensors(
    path: Path, tensors: Sequence[Mapping[str, Any]], is_input: bool, of_model: Sequence[TensorInfo]
) -> None:
    """Raise EngineError if an engine has other inputs or outputs than the model."""
    what = "inputs" if is_input else "outputs"
    found = {
        t["name"]: TensorInfo(t["name"], _dtype(t["dtype"]), tuple(None if d < 0 else d for d in t["shape"]))
        for t in tensors
        if t["input"] == is_input
    }
    said = (
        f"{path}: its {what} ({describe(found.values())}) are not those of the model ({describe(of_model)})"
    )
    extra = set(found) - {tensor.name for tensor in of_model} if is_input else set()
    for tensor in of_model:
        own = found.get(tensor.name)
        if own is None or extra:
            raise EngineError(f"{said}; build it from the same ONNX export")
        if own.dtype != tensor.dtype and not _is_narrowed(own.dtype, tensor.dtype):
            raise EngineError(
                f"{said}: '{tensor.name}' is {own.dtype} in the engine; build it with the model's types at "
                "its inputs and outputs (trtexec: without --inputIOFormats and --outputIOFormats)"
            )
        sizes = list(zip(own.shape or (), tensor.shape or (), strict=False))
        if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes):
            raise EngineError(f"{said}; build it from the same ONNX export")


def _is_narrowed(engine: np.dtype[Any], model: np.dtype[Any]) -> bool:
    """Whether the engine has INT32 and the model INT64, because TensorRT below 10 has no INT64."""
    return engine == np.dtype(np.int32) and model == np.dtype(np.int64)


def _dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype for TensorRT's name of a type; raises EngineError if NumPy has no such type."""
    if name not in _DTYPES:
        raise EngineError(f"inputs and outputs of type {name} are not supported; keep them in FP32 or FP16")
    return np.dtype(_DTYPES[name])


def _to_engine(name: str, tensor: str, array: Array, dtype: np.dtype[Any]) -> Array:
    if array.dtype == dtype:
        return np.ascontiguousarray(array)
    if not _is_narrowed(dtype, array.dtype):
        raise EngineError(
            f"{name}: input '{tensor}' is {array.dtype} and the engine takes {dtype}; nothing is converted "
            f"silently: give the data as {dtype}, or build the engine with {array.dtype} inputs"
        )
    limits = np.iinfo(np.int32)
    if array.size and (array.min() < limits.min or array.max() > limits.max):
        raise EngineError(f"{name}: input '{tensor}' has values that the engine's INT32 cannot hold")
    return np.ascontiguousarray(array, np.int32)


def _to_model(name: str, tensor: TensorInfo, array: Array) -> Array:
    if array.dtype == tensor.dtype:
        return array
    if _is_narrowed(array.dtype, tensor.dtype):
        return array.astype(np.int64)
    raise EngineError(
        f"{name}: output '{tensor.name}' is {array.dtype} in the engine, {tensor.dtype} in the model"
    )
