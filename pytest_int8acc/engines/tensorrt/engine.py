"""A built engine ready to run, on Polygraphy's runner."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pytest_int8acc.engines import check_names
from pytest_int8acc.engines.tensorrt import worker
from pytest_int8acc.engines.tensorrt.build import Built, explain, run_worker
from pytest_int8acc.engines.tensorrt.log import read_log
from pytest_int8acc.engines.tensorrt.options import BuildOptions, Range
from pytest_int8acc.engines.tensorrt.plan_file import PlanHeader, read_header
from pytest_int8acc.engines.tensorrt.platform import Platform, require
from pytest_int8acc.engines.tensorrt.profiles import shown, within
from pytest_int8acc.engines.tensorrt.runtime import backend, speaking_of
from pytest_int8acc.errors import EngineError, listed
from pytest_int8acc.tensors import Array, Feed, TensorInfo, describe

#: TensorRT's names of element types, and NumPy's.
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
    """One engine on the GPU, kept there until :meth:`close`.

    Where the model says INT64 and the engine INT32, as TensorRT below 10 makes it, values are converted both
    ways, and one that INT32 cannot hold is an error; no other type is converted.

    Args:
        path: The engine file.
        platform: The TensorRT it was built by, here with a GPU.
        name: For messages.
        inputs: What it takes, as the model says.
        outputs: What it gives, as the model says.
        profiles: Input to smallest, usual and largest shape.
        plugins: Libraries that it needs.
        layers: The inspector's JSON, if known.

    Raises:
        MissingBackendError: There is no GPU.
        EngineError: TensorRT cannot load it, or it takes or gives other tensors.
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
        """Run once.

        Args:
            feed: One array per input, of the model's dtype, within the engine's profile.

        Returns:
            One array per output of the model, of the model's dtype, free to keep.

        Raises:
            EngineError: The feed does not fit, or TensorRT fails.
        """
        found = self.run_all(feed)
        return {o.name: _to_model(self.name, o, found[o.name]) for o in self.outputs}

    def run_all(self, feed: Feed) -> Feed:
        """As a call, with every tensor marked as an output or a debug tensor, of the engine's dtype."""
        arrays = self.adapted(feed)
        with speaking_of(f"{self.name}: {self.platform.name} cannot run it"):
            found = self.runner.infer(arrays, check_inputs=False)
            return {name: np.array(array) for name, array in found.items()}

    def close(self) -> None:
        """Free its memory on the GPU; the engine cannot be used again."""
        if self.runner is not None:
            with speaking_of(f"{self.name}: cannot be closed"):
                self.runner.deactivate()
            self.runner = self.engine = None

    def __enter__(self) -> TrtEngine:
        """The engine itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Free its memory."""
        self.close()

    def _names(self) -> list[str]:
        return [self.engine.get_tensor_name(i) for i in range(self.engine.num_io_tensors)]

    def adapted(self, feed: Feed) -> Feed:
        """The feed in the engine's dtypes; raises EngineError where it does not fit."""
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
    """The engine that a build made, on the GPU; raises as :class:`TrtEngine`."""
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
    """An engine that somebody else built.

    Its header is read first; a child process then loads it, since a damaged engine may end the process.

    Args:
        path: Its file.
        platform: From ``find_platform``.
        inputs: What it must take: the case's model's inputs.
        outputs: What it must give.
        options: Plugins and the time limit.
        inner: Those of the outputs that are none of the model's, but named by criteria.

    Raises:
        MissingBackendError: There is no GPU.
        EngineError: It is no engine, one of another TensorRT or GPU, or takes or gives other tensors.
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
    """Inputs and outputs of the engine at ``path``, and the inspector's JSON, found by a child."""
    with tempfile.TemporaryDirectory(prefix="int8acc-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        plugins = [str(plugin.resolve()) for plugin in options.plugins]
        job = {
            "kind": "examine",
            "examine": True,
            "engine": str(path.resolve()),
            "profiles": {},
            "plugins": plugins,
        }
        outcome, meta = run_worker(job, folder, platform, options.timeout, f"loading {path}")
        log = read_log(folder / worker.LOG)
        problem = explain(outcome, meta, log, options.timeout)
        if problem or meta is None:
            raise EngineError(
                f"{path}: {platform.name} cannot load this engine: {_why(header, platform, log, problem)}"
            )
        return meta["tensors"], read_log(folder / worker.LAYERS)


def _why(header: PlanHeader, platform: Platform, log: str, problem: str) -> str:
    """Version first, then the GPU: TensorRT's own words on both are long and vary."""
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
    """Raise EngineError where an engine takes or gives other tensors than ``of_model``."""
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
    """True for INT32 in an engine where its model says INT64: TensorRT below 10 has no INT64."""
    return engine == np.dtype(np.int32) and model == np.dtype(np.int64)


def _dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of a TensorRT one; EngineError for those that NumPy lacks."""
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
