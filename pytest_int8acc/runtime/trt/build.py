"""Builds engines in child processes, and stores them under a key, a digest of all that they depend on.

TensorRT's builder may crash, hang or take all memory. Then an EngineError with the last messages of the log
is raised for this one engine, and the session goes on. An incomplete result of a child is never used: an
engine is stored only after its process has answered.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pytest_int8acc.errors import EngineError, ModelError, assert_never
from pytest_int8acc.graph.model import Model, save_model
from pytest_int8acc.graph.opsets import float_weights, lower_opset
from pytest_int8acc.runtime import worker
from pytest_int8acc.runtime.children import (
    Ended,
    Outcome,
    Workers,
    last_words,
    may_lack_memory,
    ran_out_of_memory,
    read_log,
)
from pytest_int8acc.runtime.onnxruntime import usable_cores
from pytest_int8acc.runtime.store import Store, digest_file
from pytest_int8acc.runtime.trt.calibration import Implicit, check_header, digest, model_digest
from pytest_int8acc.runtime.trt.platform import Device, Platform, require
from pytest_int8acc.runtime.worker import lock_of
from pytest_int8acc.tensors import Feed, TensorInfo, did_you_mean

logger = logging.getLogger("pytest_int8acc")

Shape = tuple[int, ...]
#: The smallest, the usual and the largest shape of one input, which TensorRT calls an optimization profile.
Range = tuple[Shape, Shape, Shape]
Typing = Literal["strong", "weak"]
Flag = Literal["int8", "fp16"]
Held = Literal["fp16", "fp32"]
#: Outputs of an engine. ``own``: the model's outputs. ``debug``: also all unfused tensors, as TensorRT's
#: debug tensors. A tuple of names: also these inner tensors.
Outputs = Literal["own", "debug"] | tuple[str, ...]
#: Version of the engine store's key. A change of the code after which equal requests give other engines must
#: raise this number.
_FORMAT = 3
#: A note on an engine in which layers that are held in a higher precision read the results of INT8 layers.
UNFED = "held layers read INT8 results: TensorRT has no kernels that give the layers before them another type"
#: Names of the files of a build that are stored with the engine.
_KEPT = (worker.ENGINE, worker.LAYERS, worker.NETWORK, worker.CACHE, worker.META, worker.LOG)
#: Number of seconds between two messages that a build is still running.
_LOG_SECONDS = 30.0
#: Memory of a GPU, in bytes, for each of several builds beside each other.
_SLOT_BYTES = 4 << 30


@dataclass(frozen=True)
class BuildOptions:
    """Options of one build. The engine depends on all of them except ``timeout``."""

    shapes: Mapping[str, Range] = field(default_factory=dict)
    """Optimization profiles by input name. Profiles of other inputs follow from the data."""
    plugins: tuple[Path, ...] = ()
    """Plugin libraries, which are loaded before the model is read."""
    builder: Mapping[str, Any] = field(default_factory=dict)
    """Values of options of :data:`~.options.BUILDER_OPTIONS`, by name. TensorRT chooses the other values."""
    timeout: float = 1800.0
    """Maximum number of seconds of one build."""


@dataclass(frozen=True, eq=False)
class BuildRequest:
    """An engine to build.

    With *strong* typing (TensorRT 10 and later, TensorRT-RTX) the engine has the types of the model, which
    was lowered to FP16 before. With *weak* typing (TensorRT below 11) the model is in FP32, with or without
    Q/DQ, and ``flags`` allow the builder to choose lower precisions.
    """

    model: Model
    role: str
    """The role of the engine in the case, such as baseline or INT8, for messages."""
    profiles: Mapping[str, Range]
    """The smallest, usual and largest shape of each input, from :func:`make_profiles`."""
    typing: Typing
    flags: frozenset[Flag] = frozenset()
    """Precisions that the builder may choose under weak typing. A Q/DQ model needs ``int8``."""
    precisions: Mapping[str, Held] = field(default_factory=dict)
    """The precisions in which the layers of ONNX nodes must compute, by node, under weak typing."""
    implicit: Implicit | None = None
    outputs: Outputs = "own"
    options: BuildOptions = field(default_factory=BuildOptions)
    shares_gpu: bool = False
    """Whether other builds may use the GPU at the same time. They disturb the times by which TensorRT chooses
    kernels, so the engine may be slower."""

    def __str__(self) -> str:
        return f"{self.model.name} ({self.role})"

    def check(self, platform: Platform) -> None:
        """Refuse a request that ``platform`` cannot build.

        Raises:
            MissingBackendError: There is no GPU to build on.
            EngineError: A feature, a plugin file or a setting is wrong; the message says what would be right.
        """
        require(platform, "build")
        require(platform, "strong typing" if self.typing == "strong" else "weak typing")
        if self.implicit is not None:
            require(platform, "implicit quantization")
            if self.implicit.cache is not None:
                first = self.implicit.cache.partition(b"\n")[0].decode("utf-8", errors="replace")
                check_header(first, f"{self}: calibration cache", self.implicit.algorithm)
        if self.outputs == "debug":
            require(platform, "debug tensors")
        limit = platform.opset_limit
        if limit is not None and self.model.opset > limit:
            raise EngineError(
                f"{self}: {platform.name} reads opset {limit} at most, and the model has {self.model.opset}; "
                f"export it with opset {limit}"
            )
        for plugin in self.options.plugins:
            if not plugin.is_file():
                raise EngineError(
                    f"tensorrt plugins: {plugin}: no such file; name a library built for {platform.name}"
                )

    def key(self, platform: Platform) -> str:
        """The digest of all that the engine depends on, in hexadecimal digits.

        The digest depends on all fields except the role, the model's name and the time limit.

        Raises:
            EngineError: A plugin library cannot be read.
        """
        known = {part.name: getattr(self, part.name) for part in fields(self)}
        for name in ("role", "options", "implicit"):
            del known[name]
        known |= {
            "format": _FORMAT,
            "model": model_digest(self.model),
            "flavor": platform.flavor,
            "version": platform.version,
            "gpu": platform.gpu,
            "capability": platform.capability,
            "flags": sorted(self.flags),
            "builder": self.options.builder,
            "plugins": [_plugin_digest(plugin) for plugin in self.options.plugins],
            "calibration": None,
        }
        if self.implicit is not None:
            cache = "" if self.implicit.cache is None else digest(self.implicit.cache)
            known["calibration"] = self.implicit.algorithm, cache, "" if cache else self.implicit.data
        return digest(json.dumps(known, sort_keys=True).encode())


def fit_model(model: Model, platform: Platform) -> Model:
    """``model``, with its opset and its INT8 weights converted if the parser of ``platform`` needs it.

    Raises:
        EngineError: The model cannot be converted; the message says with which opset to export it.
    """
    limit = platform.opset_limit
    try:
        lowered = model if limit is None else lower_opset(model, limit)
    except ModelError as error:
        raise EngineError(
            f"{model.name}: {platform.name} reads opset {limit} at most, and opset {model.opset} cannot be "
            f"converted to it: {error}. Export the model with opset {limit}."
        ) from error
    return lowered if platform.integer_weights else float_weights(lowered)


def _plugin_digest(path: Path) -> str:
    try:
        return digest_file(path)
    except OSError as error:
        raise EngineError(f"tensorrt plugins: {path}: cannot be read: {error.strerror or error}") from error


def seen_shapes(feeds: Iterable[Feed]) -> dict[str, Counter[Shape]]:
    """For each input, how often each of its shapes occurs in ``feeds``."""
    seen: dict[str, Counter[Shape]] = {}
    for feed in feeds:
        for name, array in feed.items():
            seen.setdefault(name, Counter())[tuple(array.shape)] += 1
    return seen


def make_profiles(
    inputs: Sequence[TensorInfo], given: Mapping[str, Range], seen: Mapping[str, Counter[Shape]]
) -> dict[str, Range]:
    """The optimization profile of each input, by name: its smallest, usual and largest shape.

    The profile of an input that is not given follows from the shapes in the data. Its bounds are the smallest
    and the largest size of each dimension, and its usual shape is the most frequent one.

    Args:
        inputs: The model's inputs.
        given: Profiles from the spec.
        seen: Shapes of the data, from :func:`seen_shapes`. It may be empty.

    Raises:
        EngineError: A given profile does not fit its input or the data, or the sizes of a dynamic shape are
            not known.
    """
    names = [tensor.name for tensor in inputs]
    for name in given:
        if name not in names:
            raise EngineError(
                f"tensorrt shapes: the model has no input '{name}'{did_you_mean(name, names)}; "
                f"its inputs are {', '.join(names)}"
            )
    profiles = {}
    for tensor in inputs:
        shapes = seen.get(tensor.name, Counter())
        profile = given.get(tensor.name) or _from_data(tensor, shapes)
        _check(tensor, profile)
        for shape in shapes:
            if not within(shape, profile):
                raise EngineError(
                    f"input '{tensor.name}': the data has shape {list(shape)}, outside its profile "
                    f"{shown(profile)}; widen 'tensorrt: {{shapes: {{{tensor.name}: ...}}}}'"
                )
        profiles[tensor.name] = profile
    return profiles


def within(shape: Shape, profile: Range) -> bool:
    """Whether an engine with ``profile`` accepts inputs of ``shape``."""
    least, _, most = profile
    return len(shape) == len(least) and all(a <= n <= b for a, n, b in zip(least, shape, most, strict=True))


def shown(profile: Range) -> str:
    """A profile as messages show it, such as ``[1, 3] to [8, 3]``, or ``[8, 3]`` for a single shape."""
    least, _, most = profile
    return f"{list(least)}" if least == most else f"{list(least)} to {list(most)}"


def in_batches(feed: Feed, usual: Mapping[str, Shape]) -> Iterator[Feed]:
    """``feed`` cut into batches of given shapes, with repeated rows in the last batch.

    There are no batches if the feed cannot be cut into these shapes.

    Args:
        feed: One array per input.
        usual: The shape of a batch, by input name.
    """
    if all(feed[name].shape == shape for name, shape in usual.items()):
        yield feed
        return
    rows = {feed[name].shape[0] for name in usual if feed[name].ndim}
    size = {shape[0] for shape in usual.values() if shape}
    fits = all(feed[name].shape[1:] == shape[1:] for name, shape in usual.items())
    if len(rows) != 1 or len(size) != 1 or not fits or any(not shape for shape in usual.values()):
        return
    count, batch = rows.pop(), size.pop()
    for start in range(0, count, batch):
        chosen = np.arange(start, start + batch) % count
        yield {name: feed[name][chosen] for name in usual}


def _from_data(tensor: TensorInfo, shapes: Counter[Shape]) -> Range:
    if shapes:
        if len({len(shape) for shape in shapes}) > 1:
            ranks = " and ".join(str(list(shape)) for shape in list(shapes)[:2])
            raise EngineError(f"input '{tensor.name}': shapes of different ranks in the data: {ranks}")
        usual = max(shapes, key=lambda shape: (shapes[shape], shape))
        sizes = list(zip(*shapes, strict=True))
        return tuple(map(min, sizes)), usual, tuple(map(max, sizes))
    if tensor.shape is None or not all(isinstance(d, int) for d in tensor.shape):
        raise EngineError(
            f"input {tensor}: its shape is dynamic and no data tells it; give "
            f"'tensorrt: {{shapes: {{{tensor.name}: [smallest, usual, largest]}}}}'"
        )
    fixed = tuple(d for d in tensor.shape if isinstance(d, int))
    return fixed, fixed, fixed


def _check(tensor: TensorInfo, profile: Range) -> None:
    """Raise EngineError if a profile is not in ascending order, or does not fit its input."""
    least, usual, most = profile
    if not within(usual, profile):
        raise EngineError(
            f"tensorrt shapes: '{tensor.name}' must be [smallest, usual, largest] of one rank, each "
            f"dimension ascending; found {list(least)}, {list(usual)}, {list(most)}"
        )
    for shape in profile:
        dims = tensor.shape
        if dims is not None and (
            len(dims) != len(shape)
            or any(isinstance(d, int) and d != n for d, n in zip(dims, shape, strict=True))
        ):
            raise EngineError(f"tensorrt shapes: {list(shape)} is no shape of the model's input {tensor}")


@dataclass(frozen=True, eq=False)
class Built:
    """An engine file, and facts about its build."""

    role: str
    name: str
    """The model's name, for messages."""
    platform: Platform
    engine: Path
    log: Path
    """File with the whole log of the build."""
    seconds: float
    """Duration of the build in seconds; 0 if the engine was in the store."""
    waited: float
    """The seconds of waiting until another process no longer used the GPU, or had built this very engine."""
    stored: bool
    nbytes: int
    layers: str
    """The JSON of TensorRT's engine inspector; empty if there was no GPU to load the engine."""
    network: tuple[Mapping[str, Any], ...]
    """Layers of the parsed network: name, type, types of outputs, and ONNX nodes since TensorRT 10."""
    calibration: bytes | None
    """Content of the calibration cache that implicit quantization read or wrote."""
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    profiles: Mapping[str, Range]
    plugins: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
    keep: object = field(default=None, repr=False)
    """The store's entry, or a temporary folder. It keeps the engine's files as long as this object exists."""


def build(
    request: BuildRequest,
    platform: Platform,
    store: Store | None = None,
    *,
    device: Device | None = None,
    stopped: Callable[[], bool] = lambda: False,
    workers: Workers | None = None,
) -> Built:
    """An engine from ``store``, or a new build if the store does not have it.

    Args:
        request: The engine.
        platform: A platform from ``find_platform``.
        store: The store; None builds into a temporary folder, which exists as long as the result.
        device: A GPU of the same kind as the platform's first GPU; None means the first GPU.
        stopped: Called repeatedly during the build, which ends with an EngineError once it returns True.
        workers: Child processes that remain for further builds; None starts one for this build alone.

    Raises:
        MissingBackendError: Nothing can be built here.
        EngineError: The request does not suit the platform, or the build failed, crashed, ran out of memory
            or out of time. The message says what happened and where the whole log is.
    """
    request.check(platform)
    on = device or next(iter(platform.devices), None)

    def make(folder: Path) -> None:
        _make(request, platform, folder, store, device=on, stopped=stopped, workers=workers)

    if store is None:
        temporary = tempfile.TemporaryDirectory(prefix="int8acc-engine-", ignore_cleanup_errors=True)
        make(Path(temporary.name))
        return _read(request, platform, Path(temporary.name), made=True, keep=temporary)
    entry = store.fetch(request.key(platform), make)
    built = _read(request, platform, entry.folder, made=entry.made, keep=entry)
    if not entry.made:
        logger.info("%s: engine taken from the store, %s", request, built.engine.parent)
    return replace(built, waited=built.waited + entry.waited)


def timing_provenance(platform: Platform, *, shares_gpu: bool = False) -> str:
    """A text with all that a timing cache depends on: TensorRT's version, the GPU, and other builds there.

    Args:
        platform: The platform.
        shares_gpu: Whether other builds may have used the GPU while TensorRT timed kernels.
    """
    others = ", beside other builds" if shares_gpu else ""
    return f"{platform.name} ({'.'.join(map(str, platform.version))}) on {platform.gpu}{others}"


def _slots(device: Device | None) -> int:
    """The number of a GPU's slots that a build may choose from; 0 if it must be alone.

    Each slot takes two cores and about ``_SLOT_BYTES`` of the GPU's memory.
    """
    memory = 0 if device is None else device.nbytes
    slots = min(worker.SLOTS, usable_cores() // 2, round(memory / _SLOT_BYTES))
    return slots if slots > 1 else 0


def run_worker(
    job: Mapping[str, Any],
    folder: Path,
    platform: Platform,
    timeout: float,
    name: str,
    *,
    device: Device | None = None,
    stopped: Callable[[], bool] = lambda: False,
    workers: Workers | None = None,
) -> Outcome:
    """Have a child process do a job in ``folder``; ``name`` describes the job in messages.

    Raises:
        EngineError: ``stopped`` returned True.
    """
    last = 0.0

    def waiting(seconds: float) -> None:
        nonlocal last
        if stopped():
            raise EngineError(f"{name}: stopped")
        if seconds - last >= _LOG_SECONDS:
            last = seconds
            logger.info("%s: %.0f s so far", name, seconds)

    environment = {  # kernels are loaded when needed; TensorRT 8.6 takes seconds to load them all
        "CUDA_MODULE_LOADING": os.environ.get("CUDA_MODULE_LOADING", "LAZY"),
        "POLYGRAPHY_USE_TENSORRT_RTX": "1" if platform.is_rtx else "0",
    }
    if device is not None and device in platform.devices[1:]:
        environment["CUDA_VISIBLE_DEVICES"] = device.visible
    with Workers() if workers is None else nullcontext(workers) as crew:
        return crew.run(job, folder, timeout, environment=environment, kind=job["plugins"], waiting=waiting)


def explain(outcome: Outcome, timeout: float) -> str:
    """Why a job was not done, and advice; empty if it was done."""
    words = last_words(outcome.log)
    if outcome.ended in (Ended.FAILED, Ended.CRASHED) and ran_out_of_memory(outcome.log):
        return (
            "out of memory; give a smaller batch, limit 'tensorrt: {workspace: 1G}', or run fewer workers. "
            f"TensorRT says: {words}"
        )
    if outcome.ended is Ended.DONE:
        return ""
    if outcome.ended is Ended.FAILED:
        return f"TensorRT says: {words}"
    if outcome.ended is Ended.CRASHED:
        guess = "; the system ends processes so where its memory runs out" if outcome.code == -9 else ""
        return f"the process {outcome.ending}{guess}. It said last: {words}"
    if outcome.ended is Ended.TIMED_OUT:
        return (
            f"not done after {timeout:.0f} s and stopped; raise 'tensorrt: {{timeout: ...}}', or lower "
            f"'optimization_level'. It said last: {words}"
        )
    assert_never(outcome.ended)


def _make(
    request: BuildRequest,
    platform: Platform,
    folder: Path,
    store: Store | None,
    *,
    device: Device | None,
    stopped: Callable[[], bool],
    workers: Workers | None,
) -> None:
    """Build an engine, and fill ``folder`` with the engine and its other files."""
    job_folder = folder / "job"
    job_folder.mkdir()
    logger.info("%s: building an engine with %s", request, platform.description)
    lock = None if device is None else lock_of(device.bus)
    provenance = timing_provenance(platform, shares_gpu=request.shares_gpu)
    timing = None if store is None or platform.is_rtx else store.timing_cache(provenance)
    job = {
        **_prepare(request, platform, job_folder),
        "lock": None if lock is None else str(lock),
        "timing": None if timing is None else str(timing.resolve()),
    }
    limit, name = request.options.timeout, f"building {request}"
    shared = _slots(device) if request.shares_gpu else 0
    seconds = waited = 0.0
    for slots in [shared, 0] if shared else [0]:  # a build that fails beside others has more memory alone
        for old in (worker.META, worker.LOG, worker.WAITING):
            (job_folder / old).unlink(missing_ok=True)
        outcome = run_worker(
            {**job, "slots": slots},
            job_folder,
            platform,
            limit,
            name,
            device=device,
            stopped=stopped,
            workers=workers,
        )
        waited += outcome.answer.get("waited", 0.0)
        seconds += outcome.seconds
        if not may_lack_memory(outcome):
            break
    problem = explain(outcome, limit)
    if problem:
        kept = _keep_log(job_folder / worker.LOG)
        raise EngineError(f"{request}: {platform.name} built no engine: {problem}. The whole log: {kept}")
    meta = {**outcome.answer, "waited": waited, "seconds": seconds - waited}
    (job_folder / worker.META).write_text(json.dumps(meta), encoding="utf-8")
    for kept_name in _KEPT:
        if (job_folder / kept_name).exists():
            (job_folder / kept_name).replace(folder / kept_name)
    shutil.rmtree(job_folder)
    after = f", after {waited:.1f} s for the GPU" if waited >= 1 else ""
    size = meta["nbytes"] / 1e6
    logger.info("%s: engine of %.1f MB built in %.1f s%s", request, size, meta["seconds"], after)


def _prepare(request: BuildRequest, platform: Platform, folder: Path) -> dict[str, Any]:
    """Write the model and the calibration data to ``folder``; returns the job as JSON values."""
    save_model(request.model, folder / worker.MODEL)
    implicit = request.implicit
    return {
        "kind": "build",
        "engine": worker.ENGINE,
        "examine": platform.can_run,
        "typing": request.typing,
        "flags": sorted(request.flags),
        "precisions": dict(request.precisions),
        "outputs": request.outputs,
        "profiles": {name: list(profile) for name, profile in request.profiles.items()},
        "plugins": [str(plugin.resolve()) for plugin in request.options.plugins],
        "builder": dict(request.options.builder),
        "algorithm": None if implicit is None else implicit.algorithm,
        "calibration_shapes": None if implicit is None else _prepare_calibration(request, implicit, folder),
    }


def _prepare_calibration(request: BuildRequest, implicit: Implicit, folder: Path) -> dict[str, Shape] | None:
    """Write the calibration cache or the calibration batches to ``folder``.

    TensorRT reads as many rows as the profile's usual shape has. From a shorter batch it would read beyond
    the end of the memory. So all batches have the usual shape.

    Returns:
        The shape of the batches, by input name; None if a cache was written.
    """
    if implicit.cache is not None:
        (folder / worker.CACHE).write_bytes(implicit.cache)
        return None
    batches = folder / worker.BATCHES
    batches.mkdir()
    usual = {name: profile[1] for name, profile in request.profiles.items()}
    given = left_out = count = 0
    for feed in implicit.feeds:
        given += 1
        whole = list(in_batches(feed, usual))
        left_out += not whole
        for arrays in whole:
            np.savez(batches / f"{count:06}.npz", *(arrays[name] for name in usual))
            count += 1
    if not given:
        raise EngineError(f"{request}: implicit quantization has neither calibration data nor a cache")
    if not count:
        needed_shapes = ", ".join(f"{name}: {list(shape)}" for name, shape in usual.items())
        raise EngineError(
            f"{request}: no calibration batch has the shape that the engine is built for ({needed_shapes}); "
            "give samples of that shape, or 'tensorrt: {shapes: ...}' with another usual one"
        )
    if left_out:
        logger.info("%s: calibrates on %d batches, %d of other shapes left out", request, count, left_out)
    return usual


def _keep_log(log: Path) -> Path:
    """Copy the log of a failed build to a folder that is not deleted."""
    kept = Path(tempfile.mkdtemp(prefix="int8acc-log-")) / worker.LOG
    shutil.copyfile(log, kept)
    return kept


def _read(request: BuildRequest, platform: Platform, folder: Path, *, made: bool, keep: object) -> Built:
    """The engine and the facts of its build from the files in ``folder``."""
    try:
        meta = json.loads((folder / worker.META).read_bytes())
        network = json.loads((folder / worker.NETWORK).read_bytes())
    except (OSError, ValueError) as error:
        raise EngineError(f"{folder}: a damaged entry of the engine store ({error}); delete it") from error
    cache = folder / worker.CACHE
    absent = meta["absent"]
    notes = [UNFED] if meta.get("unfed") else []
    if absent:
        notes.append(f"nodes without a layer of their own, so no precision was set: {', '.join(absent)}")
    return Built(
        role=request.role,
        name=request.model.name,
        platform=platform,
        engine=folder / worker.ENGINE,
        log=folder / worker.LOG,
        seconds=meta["seconds"] if made else 0.0,
        waited=meta["waited"] if made else 0.0,
        stored=not made,
        nbytes=meta["nbytes"],
        layers=read_log(folder / worker.LAYERS),
        network=tuple(network),
        calibration=cache.read_bytes() if cache.exists() else None,
        inputs=request.model.inputs,
        outputs=request.model.outputs,
        profiles=request.profiles,
        plugins=request.options.plugins,
        notes=tuple(notes),
        keep=keep,
    )
