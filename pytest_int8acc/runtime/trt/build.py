"""An engine built in a child process with a time limit, its log kept, and found again in the store.

A builder may crash, hang or take all memory: that is an EngineError of this one engine, with the log's last
words, and the session goes on. What a child leaves half-done is never used: an engine counts once its
process has ended well.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pytest_int8acc.errors import EngineError, ModelError
from pytest_int8acc.graph.model import Model, save_model
from pytest_int8acc.graph.opsets import float_weights, lower_opset
from pytest_int8acc.runtime.store import Store, digest_file
from pytest_int8acc.runtime.trt import worker
from pytest_int8acc.runtime.trt.calibration import Implicit, check_header, digest, model_digest
from pytest_int8acc.runtime.trt.children import (
    Outcome,
    Workers,
    last_words,
    make_workers,
    ran_out_of_memory,
    read_log,
)
from pytest_int8acc.runtime.trt.platform import Device, Platform, require
from pytest_int8acc.runtime.trt.worker import lock_of
from pytest_int8acc.tensors import Feed, TensorInfo, did_you_mean

Shape = tuple[int, ...]
#: Smallest, usual and largest shape of one input.
Range = tuple[Shape, Shape, Shape]


@dataclass(frozen=True)
class BuildOptions:
    """Options of one build; all but ``timeout`` are part of what an engine depends on."""

    shapes: Mapping[str, Range] = field(default_factory=dict)
    """Input to its profile; inputs left out follow from the data."""
    plugins: tuple[Path, ...] = ()
    """Libraries loaded before the model is read."""
    workspace: int | None = None
    """Bytes that tactics may take; None leaves TensorRT all of the device's memory."""
    optimization_level: int | None = None
    tactic_sources: tuple[str, ...] | None = None
    """Names such as CUBLAS; empty means none, None means TensorRT's own choice."""
    timeout: float = 1800.0
    """Seconds that one build may take."""


def seen_shapes(feeds: Iterable[Feed]) -> dict[str, Counter[Shape]]:
    """How often each shape of each input occurs in ``feeds``."""
    seen: dict[str, Counter[Shape]] = {}
    for feed in feeds:
        for name, array in feed.items():
            seen.setdefault(name, Counter())[tuple(array.shape)] += 1
    return seen


def make_profiles(
    inputs: Sequence[TensorInfo], given: Mapping[str, Range], seen: Mapping[str, Counter[Shape]]
) -> dict[str, Range]:
    """Smallest, usual and largest shape of every input.

    An input that is not given takes the shapes seen: as they are where there is one, else from the smallest
    to the largest size of each dimension, the most frequent shape as the usual one.

    Args:
        inputs: The model's inputs.
        given: Profiles of the spec.
        seen: Shapes of the data, from :func:`seen_shapes`; may be empty.

    Raises:
        EngineError: A given profile does not fit its input or the data, or a dynamic input has neither.
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
    """True where an engine of ``profile`` takes ``shape``."""
    least, _, most = profile
    return len(shape) == len(least) and all(a <= n <= b for a, n, b in zip(least, shape, most, strict=True))


def shown(profile: Range) -> str:
    """Like ``[1, 3] to [8, 3]``, or ``[8, 3]`` where it is one shape."""
    least, _, most = profile
    return f"{list(least)}" if least == most else f"{list(least)} to {list(most)}"


def in_batches(feed: Feed, usual: Mapping[str, Shape]) -> Iterator[Feed]:
    """``feed`` in batches of these shapes, rows repeated to fill the last; none where it cannot be cut so.

    Args:
        feed: One array per input.
        usual: Input to the shape of a batch.
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
    """Raise EngineError where the profile is in disorder, or is not the input's."""
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


Typing = Literal["strong", "weak"]
Flag = Literal["int8", "fp16"]
Held = Literal["fp16", "fp32"]
#: The model's own, unfused tensors as debug tensors beside them, or these inner tensors beside them.
Outputs = Literal["own", "debug"] | tuple[str, ...]

#: Raised where the worker makes another engine of the same request.
_FORMAT = 2


@dataclass(frozen=True, eq=False)
class BuildRequest:
    """One engine to build.

    Typing *strong*: the model's own types are the engine's (TensorRT 10 and later, TensorRT-RTX); hand over
    the halved model. Typing *weak*: the model is in FP32, with or without Q/DQ, and ``flags`` allow lower
    precisions (TensorRT below 11); hand over the model with its plan applied and not halved.
    """

    model: Model
    role: str
    """What it is in the case, for messages: baseline, INT8, fixed."""
    profiles: Mapping[str, Range]
    """Input to smallest, usual and largest shape, from :func:`~.profiles.make_profiles`."""
    typing: Typing
    flags: frozenset[Flag] = frozenset()
    """Under weak typing; a Q/DQ model needs int8."""
    precisions: Mapping[str, Held] = field(default_factory=dict)
    """ONNX node to the precision that its layers must compute in, obeyed; under weak typing."""
    implicit: Implicit | None = None
    outputs: Outputs = "own"
    """own: the model's; debug: unfused tensors as debug tensors, too; names: these, too, breaking fusions."""
    options: BuildOptions = field(default_factory=BuildOptions)

    def __str__(self) -> str:
        return f"{self.model.name} ({self.role})"

    def check(self, platform: Platform) -> None:
        """Do nothing where ``platform`` can build it.

        Raises:
            MissingBackendError: There is no GPU to build on.
            EngineError: A feature, a plugin file or a setting is wrong; says what would do.
        """
        require(platform, "build")
        require(platform, "strong typing" if self.typing == "strong" else "weak typing")
        if self.implicit is not None:
            require(platform, "implicit quantization")
            if "int8" not in self.flags:
                raise EngineError(f"{self}: implicit quantization wants the flag int8")
            if self.implicit.cache is not None:
                first = self.implicit.cache.partition(b"\n")[0].decode("utf-8", errors="replace")
                check_header(first, f"{self}: calibration cache", self.implicit.algorithm)
        if self.outputs == "debug":
            require(platform, "debug tensors")
        if self.typing == "strong" and (self.flags or self.precisions or self.implicit):
            raise EngineError(
                f"{self}: flags, layer precisions and implicit quantization want typing weak; under strong "
                "typing the model's own types say all"
            )
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

    def fingerprint(self, platform: Platform) -> str:
        """BLAKE2b in hex of everything that the engine depends on; role, name and time limit are not part.

        Raises:
            EngineError: A plugin library cannot be read.
        """
        facts = {
            "format": _FORMAT,
            "model": model_digest(self.model),
            "platform": [platform.flavor, platform.version, platform.gpu, platform.capability],
            "profiles": {name: list(map(list, profile)) for name, profile in self.profiles.items()},
            "typing": [self.typing, sorted(self.flags), dict(self.precisions), self.outputs],
            "options": [self.options.workspace, self.options.optimization_level, self.options.tactic_sources],
            "plugins": [_plugin_digest(plugin) for plugin in self.options.plugins],
        }
        if self.implicit is not None:
            cache = self.implicit.cache
            known = self.implicit.data if cache is None else digest(cache)
            facts["implicit"] = [self.implicit.algorithm, cache is None, known]
        return digest(json.dumps(facts, sort_keys=True).encode())


def fit_model(model: Model, platform: Platform) -> Model:
    """``model`` as ``platform`` reads it: in an opset it knows, INT8 weights in the form it takes.

    Raises:
        EngineError: It cannot be converted; says with which opset to export.
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


logger = logging.getLogger("pytest_int8acc")

#: What is given up where TensorRT has no kernel for it.
UNFED = "held layers read INT8 results: TensorRT has no kernels that give the layers before them another type"
_KEPT = (worker.ENGINE, worker.LAYERS, worker.NETWORK, worker.CACHE, worker.META)
_LOG_SECONDS = 30.0


@dataclass(frozen=True, eq=False)
class Built:
    """An engine file and what is known of it."""

    role: str
    name: str
    """The model's name, for messages."""
    platform: Platform
    engine: Path
    log: Path
    """All that the builder said."""
    seconds: float
    """Of the build; 0 where the engine was in the store."""
    stored: bool
    nbytes: int
    layers: str
    """The engine inspector's JSON; empty where no GPU was there to load the engine."""
    network: tuple[Mapping[str, Any], ...]
    """The parsed network's layers: name, type, ONNX nodes (TensorRT 10 and later), types of the outputs."""
    calibration: bytes | None
    """The calibration cache that implicit quantization used or made."""
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    profiles: Mapping[str, Range]
    plugins: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
    keep: object = field(default=None, repr=False)
    """Keeps the engine's folder as long as it lives: the store's entry, or a temporary folder."""


def build(
    request: BuildRequest,
    platform: Platform,
    store: Store | None = None,
    *,
    device: Device | None = None,
    stopped: Callable[[], bool] = lambda: False,
    workers: Workers | None = None,
) -> Built:
    """Build an engine, or take it from ``store``.

    Args:
        request: The engine.
        platform: From ``find_platform``.
        store: Where engines are kept; None builds into a temporary folder that lives as long as the result.
        device: The GPU to build on, like the platform's first, which is taken where none is given.
        stopped: Asked again and again; True ends the build with an EngineError.
        workers: From ``make_workers``, for builders that stay for further builds; None: one for this build.

    Raises:
        MissingBackendError: Nothing can be built here.
        EngineError: The request does not suit the platform, or the build failed, crashed, ran out of memory
            or out of time; says what happened and where the whole log is.
    """
    request.check(platform)
    where = _Where(platform, device or next(iter(platform.devices), None), stopped, workers)
    key = request.fingerprint(platform)
    keep: object
    if store is None:
        keep = temporary = tempfile.TemporaryDirectory(prefix="int8acc-engine-", ignore_cleanup_errors=True)
        folder, made = Path(temporary.name), True
        _make(request, where, folder, None)
    else:
        entry = store.fetch(key, lambda folder: _make(request, where, folder, store))
        folder, made, keep = entry.folder, entry.made, entry
    built = _read(request, platform, folder, made, keep)
    if not made:
        logger.info("%s: engine taken from the store, %s", request, built.engine.parent)
    return built


def timing_provenance(platform: Platform) -> str:
    """What a timing cache depends on: TensorRT's version and the GPU."""
    return f"{platform.name} ({'.'.join(map(str, platform.version))}) on {platform.gpu}"


@dataclass(frozen=True)
class _Where:
    """What builds, and on which GPU."""

    platform: Platform
    device: Device | None
    stopped: Callable[[], bool]
    workers: Workers | None


def run_worker(
    job: Mapping[str, Any],
    folder: Path,
    platform: Platform,
    timeout: float,
    what: str,
    *,
    device: Device | None = None,
    stopped: Callable[[], bool] = lambda: False,
    workers: Workers | None = None,
) -> tuple[Outcome, dict[str, Any] | None]:
    """Have a child do ``job`` in ``folder``; how it ended, and its ``meta.json`` where it wrote one."""
    (folder / worker.JOB).write_text(json.dumps(job), encoding="utf-8")
    last = 0.0

    def waiting(seconds: float) -> None:
        nonlocal last
        if stopped():
            raise EngineError(f"{what}: stopped")
        if seconds - last >= _LOG_SECONDS:
            last = seconds
            logger.info("%s: %.0f s so far", what, seconds)

    environment = {  # where all kernels are loaded at once, TensorRT 8.6 takes seconds longer to start
        "CUDA_MODULE_LOADING": os.environ.get("CUDA_MODULE_LOADING", "LAZY"),
        "POLYGRAPHY_USE_TENSORRT_RTX": "1" if platform.is_rtx else "0",
        **({"CUDA_VISIBLE_DEVICES": device.visible} if device in platform.devices[1:] else {}),
    }
    own = contextlib.closing(make_workers()) if workers is None else contextlib.nullcontext(workers)
    with own as crew:
        outcome = crew.run(
            folder,
            folder / worker.LOG,
            timeout,
            lambda: None if (meta := _meta(folder)) is None else "error" not in meta,
            environment=environment,
            kind=job["plugins"],
            waiting=waiting,
            idle=(folder / worker.WAITING).exists,
        )
    return outcome, _meta(folder)


def _meta(folder: Path) -> dict[str, Any] | None:
    """What a worker told of its job; None where it did not come to that."""
    try:
        meta: dict[str, Any] = json.loads((folder / worker.META).read_bytes())
    except (OSError, ValueError):
        return None
    return meta


def explain(outcome: Outcome, meta: Mapping[str, Any] | None, log: str, timeout: float) -> str:
    """Why a child failed, and what to do; empty where it did not."""
    if outcome.code == 0 and meta is not None and "error" not in meta:
        return ""
    words = last_words(log)
    if outcome.code is None:
        return (
            f"not done after {timeout:.0f} s and stopped; raise 'tensorrt: {{timeout: ...}}', or lower "
            f"'optimization_level'. It said last: {words}"
        )
    if ran_out_of_memory(log):
        return (
            "out of memory; give a smaller batch, limit 'tensorrt: {workspace: 1G}', or run fewer workers. "
            f"TensorRT says: {words}"
        )
    if meta is None:
        guess = "; the system ends processes so where its memory runs out" if outcome.code == -9 else ""
        return f"the process {outcome.ending}{guess}. It said last: {words}"
    return f"TensorRT says: {words}"


def _make(request: BuildRequest, where: _Where, folder: Path, store: Store | None) -> None:
    """Fill ``folder`` with an engine and all that belongs to it."""
    platform, device = where.platform, where.device
    job_folder = folder / "job"
    job_folder.mkdir()
    logger.info("%s: building an engine with %s", request, platform.description)
    provenance = timing_provenance(platform)
    job = {**_prepare(request, platform, job_folder), "lock": None}
    if device is not None and (lock := lock_of(device.bus)) is not None:
        job["lock"] = str(lock)
    cached = store.timing_cache(provenance) if store is not None and job["timing"] else None
    if cached is not None:
        shutil.copyfile(cached, job_folder / worker.TIMING)
    limit = request.options.timeout
    outcome, meta = run_worker(
        job,
        job_folder,
        platform,
        limit,
        f"building {request}",
        device=device,
        stopped=where.stopped,
        workers=where.workers,
    )
    problem = explain(outcome, meta, read_log(job_folder / worker.LOG), limit)
    if problem or meta is None:
        kept = _keep_log(job_folder / worker.LOG)
        raise EngineError(f"{request}: {platform.name} built no engine: {problem}. The whole log: {kept}")
    seconds = outcome.seconds - meta["waited"]
    (job_folder / worker.META).write_text(json.dumps({**meta, "seconds": seconds}), encoding="utf-8")
    if store is not None and (job_folder / worker.TIMING).exists():
        store.publish_timing_cache(provenance, job_folder / worker.TIMING)
    for name in (*_KEPT, worker.LOG):
        if (job_folder / name).exists():
            (job_folder / name).replace(folder / name)
    shutil.rmtree(job_folder)
    size, waited = meta["nbytes"] / 1e6, meta["waited"]
    after = f", after {waited:.1f} s for the GPU" if waited >= 1 else ""
    logger.info("%s: engine of %.1f MB built in %.1f s%s", request, size, seconds, after)


def _prepare(request: BuildRequest, platform: Platform, folder: Path) -> dict[str, Any]:
    """Write the model and the calibration data; the job in plain types."""
    save_model(request.model, folder / worker.MODEL)
    options, implicit = request.options, request.implicit
    return {
        "kind": "build",
        "engine": worker.ENGINE,
        "examine": platform.can_run,
        "typing": request.typing,
        "flags": sorted(request.flags),
        "precisions": dict(request.precisions),
        "outputs": request.outputs,
        "profiles": {name: list(profile) for name, profile in request.profiles.items()},
        "plugins": [str(plugin.resolve()) for plugin in options.plugins],
        "workspace": options.workspace,
        "optimization_level": options.optimization_level,
        "tactic_sources": None if options.tactic_sources is None else list(options.tactic_sources),
        "timing": not platform.is_rtx,
        "algorithm": None if implicit is None else implicit.algorithm,
        "calibration_shapes": None if implicit is None else _prepare_calibration(request, implicit, folder),
    }


def _prepare_calibration(request: BuildRequest, implicit: Implicit, folder: Path) -> dict[str, Shape] | None:
    """Write the cache, or the batches and their shape, which is the profile's usual one.

    TensorRT reads as many rows as that, whatever a calibrator gives: of a shorter batch, what lies behind it.
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
    """Copy a failed build's log to where it outlives the build."""
    kept = Path(tempfile.mkdtemp(prefix="int8acc-log-")) / worker.LOG
    shutil.copyfile(log, kept)
    return kept


def _read(request: BuildRequest, platform: Platform, folder: Path, made: bool, keep: object) -> Built:
    """What ``folder`` holds."""
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
