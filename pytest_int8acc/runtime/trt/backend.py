"""The backend TensorRT: builds engines from models, runs and times the engines, and reads their layers."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

from pytest_int8acc.clock import current
from pytest_int8acc.data import Dataset
from pytest_int8acc.errors import MissingBackendError
from pytest_int8acc.graph.emulate import holds_fp8
from pytest_int8acc.graph.half import half_nodes
from pytest_int8acc.graph.layout import WEIGHTED
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Precision
from pytest_int8acc.graph.qdq import is_qdq
from pytest_int8acc.results import EngineInfo, Role
from pytest_int8acc.results.engines import Kind, LayerTime
from pytest_int8acc.runtime.children import Workers
from pytest_int8acc.runtime.forms import EngineForm, Form, ImplicitForm, ModelForm
from pytest_int8acc.runtime.onnxruntime import share_of_cores
from pytest_int8acc.runtime.protocol import ENGINE, Engine
from pytest_int8acc.runtime.store import Store, open_store
from pytest_int8acc.runtime.trt.build import (
    BuildOptions,
    BuildRequest,
    Built,
    Flag,
    Outputs,
    Shape,
    build,
    fit_model,
    make_profiles,
    seen_shapes,
)
from pytest_int8acc.runtime.trt.calibration import (
    Implicit,
    Provenance,
    algorithm_of,
    calibrate_on,
    read_cache,
    read_content,
    tensor_names,
    write_cache,
)
from pytest_int8acc.runtime.trt.engine import TrtEngine, open_built, open_engine, read_header
from pytest_int8acc.runtime.trt.inspector import read_layers, untold_nodes
from pytest_int8acc.runtime.trt.latency import layer_times, measure_latency, with_nodes
from pytest_int8acc.runtime.trt.options import BUILDER_OPTIONS
from pytest_int8acc.runtime.trt.platform import Device, Platform, require
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.criteria import EngineCriterion
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Feed

logger = logging.getLogger("pytest_int8acc")
#: Optimization levels at which TensorRT's builder tries fewer kernels than by default, in descending order.
_LEVELS = (1, 0)
#: TensorRT's default optimization level.
_DEFAULT_LEVEL = 3
#: Notes for the report on whether an engine changes if it shows inner tensors, as outputs or as debug
#: tensors.
_AS_OUTPUTS = "the tensors are outputs, so less is fused: these are not the engines of the verdict"
_AS_DEBUG = "tensors that TensorRT leaves unfused, as debug tensors: the engines are those of the verdict"
#: A note for the report.
_UNTIMED = (
    "engines not timed: the GPU was in use, and at 'optimization_level' 0 and 1 a case without a 'speedup' "
    "does not wait for it"
)


class TrtBackend:
    """The backend TensorRT. It builds engines in child processes, and keeps them in the store.

    Args:
        platform: The installed TensorRT. If it can build engines but not run them, an error is raised after
            the build.
        case: The case, whose ``tensorrt`` section has the options of the build.
        settings: The place and the size of the engine store.
        builders: Child processes that the caller closes; None starts new ones.
    """

    builds_engines = True
    times_engines = True
    quantizes_implicitly = True  # on a platform that cannot, the build raises an error
    needs_simulation = True

    def __init__(
        self, platform: Platform, case: Case, settings: Settings, builders: Workers | None = None
    ) -> None:
        obey = case.tensorrt.obey
        for name, option in BUILDER_OPTIONS.items():
            if option.feature is not None and getattr(case.tensorrt, name):
                with case.at(f"tensorrt.{name}"):
                    require(platform, option.feature)
        self.platform = platform
        self.notes: tuple[str, ...] = ()
        self.output_settings: Mapping[str, str] = {"mode": ENGINE}
        self.calibration_cache: Path | None = None
        self._options = _options(case)
        self._low: Kind = case.candidate or "int8"
        self._obey = obey
        self.can_obey = platform.has("layer precisions") and not obey
        own = self._options.builder.get("optimization_level", _DEFAULT_LEVEL)
        self.other_levels = tuple(level for level in _LEVELS if level < own)
        self._shares_gpu = own in _LEVELS and not _judges_time(case)
        self._is_untimed = False
        self._running: dict[Role, TrtEngine] = {}
        self._infos: dict[Role, EngineInfo] = {}
        self._built: dict[Role, Built] = {}
        self._seen: Mapping[str, Counter[Shape]] | None = None
        self._begun: dict[Role, tuple[BuildRequest, Future[Built]]] = {}
        self._closing = Event()
        self._second_builder = ThreadPoolExecutor(1)
        self._owns_builders = builders is None
        self._builders = builders or Workers()
        self._folder = tempfile.TemporaryDirectory(prefix="int8acc-", ignore_cleanup_errors=True)
        # Without a store, engines are kept until the case ends. They are needed again: a corrected model is
        # built first and timed later.
        temporary = Path(self._folder.name) / "engines"
        kept = not settings.no_cache
        self._store = open_store(settings.cache_dir, settings.cache_size) if kept else Store(temporary)

    @property
    def engines(self) -> tuple[EngineInfo, ...]:
        """Facts about the latest engine of each role."""
        return tuple(self._infos.values())

    def check(self, form: Form) -> None:
        """Refuse a model or an engine that cannot run here, before anything is built.

        Raises:
            EngineError: An engine file or a calibration cache does not exist or is damaged, or the model is
                in FP8 or BF16, which this TensorRT or its GPU does not have.
        """
        if isinstance(form, ModelForm) and self._low == "bf16":
            require(self.platform, "BF16")
        if isinstance(form, ModelForm) and holds_fp8(form.model):
            require(self.platform, "FP8")
        if isinstance(form, EngineForm):
            read_header(form.path)
        elif isinstance(form, ImplicitForm) and form.cache is not None and form.samples is None:
            read_content(form.cache)

    def begin(self, form: Form, role: Role, inputs: Dataset) -> None:
        """Start a build in the background, on the second GPU if there is one.

        Nothing happens if there is a single GPU or a single core. On a single GPU, one builder does all
        builds in turn, so that TensorRT starts only once.
        """
        alone = len(self.platform.devices) == 1 or (share_of_cores() or os.cpu_count()) == 1
        if alone or isinstance(form, EngineForm):
            return
        request = self._request(form, role, inputs)
        device = next(iter(self.platform.devices[1:]), None)
        self._begun[role] = request, self._second_builder.submit(self._make, request, device)

    def open(self, form: Form, role: Role, inputs: Dataset) -> Engine:
        """Build an engine of a model on the GPU, or load it from the engine store or a file.

        Raises:
            MissingBackendError: There is no GPU. The engine was built if this platform builds without a GPU.
            EngineError: The engine cannot be built or loaded.
        """
        if role in self._running:
            self._running.pop(role).close()
        if isinstance(form, EngineForm):
            shape = form.model
            tensors = shape.inputs, shape.outputs
            engine = open_engine(form.path, self.platform, *tensors, self._options, shape.extra_outputs)
            size = form.path.stat().st_size
            info = EngineInfo(role, form.description, 0.0, False, size, low=self._low)
            info = _tells(info, engine.layers, form.model)
        else:
            built = self._build(form, role, inputs)
            if not self.platform.can_run:
                return self._unrun(built)
            engine = open_built(built)
            self._built[role] = built  # keeps the engine file, which is loaded again to time the layers
            info = EngineInfo(
                role, form.description, built.seconds, built.stored, built.nbytes, low=self._low
            )
            info = _tells(info, built.layers, form.model)
        self._infos[role] = info
        self._running[role] = engine
        return engine

    def deployed(self, form: Form) -> tuple[Model, bool]:
        """The model from which an engine is built, and whether builder flags choose its types.

        Raises:
            EngineError: This TensorRT cannot read the model.
        """
        if not isinstance(form, ModelForm):
            by_flags = isinstance(form, ImplicitForm) or not self.platform.strongly_typed
            return fit_model(form.model, self.platform) if by_flags else form.model, by_flags
        if self.platform.strongly_typed:
            return form.showing(form.model), False
        return form.showing(fit_model(form.original, self.platform)), True

    def measure_latency(self, roles: Sequence[Role], inputs: Dataset) -> None:
        """Measure the engines of these roles in turn on the first batch. ``engines`` then has the times.

        Where builds share the GPU, the case does not wait for it the first time. If another process uses it
        then, no engine of the case is measured, so that all times of a report are comparable.
        """
        if self._is_untimed:
            return
        engines = {role: self._running[role] for role in roles if role in self._running}
        waits = not self._shares_gpu or any(info.latency is not None for info in self.engines)
        times = measure_latency(engines, next(inputs.batches()).feed, waits=waits)
        for role, latency in times.items():
            self._infos[role] = replace(self._infos[role], latency=latency)
        if engines and not times:
            self._is_untimed = True
            self.notes = (*self.notes, _UNTIMED)

    def layer_times(self, role: Role, inputs: Dataset) -> tuple[LayerTime, ...]:
        """The time of each layer in ms; empty if no engine is open for ``role``, or its layers are not known.

        Raises:
            EngineError: TensorRT fails.
        """
        if role not in self._running:  # the baseline has no engine if stored outputs replace it
            return ()
        times = layer_times(self._running[role], next(inputs.batches()).feed)
        return with_nodes(self._infos[role].layers, times)

    def shows_tensors(self, form: Form) -> bool:
        """Whether the engine is built here. An engine from a file cannot return its inner tensors."""
        return not isinstance(form, EngineForm)

    def inner_tensors(
        self, form: Form, role: Role, inputs: Dataset, feed: Feed, requested: Sequence[str]
    ) -> tuple[Feed, str]:
        """Inner tensors of an engine that is built to show them, and a note on how that changes the engine.

        Raises:
            EngineError: The engine cannot be built or loaded, or does not run.
        """
        if isinstance(form, EngineForm):
            return {}, ""
        debug = self.platform.has("debug tensors")
        with open_built(self._build(form, role, inputs, "debug" if debug else tuple(requested))) as engine:
            return engine.run_all(feed), _AS_DEBUG if debug else _AS_OUTPUTS

    def close(self) -> None:
        """Free all engines of the case, and end its builds in the background."""
        self._closing.set()
        self._second_builder.shutdown(wait=False)
        if self._owns_builders:
            self._builders.close()
        for engine in self._running.values():
            engine.close()
        self._running.clear()
        self._built.clear()
        self._folder.cleanup()

    def _build(
        self, form: ModelForm | ImplicitForm, role: Role, inputs: Dataset, outputs: Outputs = "own"
    ) -> Built:
        started = time.monotonic()
        if role in self._begun:
            request, future = self._begun.pop(role)
            built = future.result()
        else:
            request = self._request(form, role, inputs, outputs)
            built = self._make(request)
        current().waited(min(built.waited, time.monotonic() - started))
        if isinstance(form, ImplicitForm) and request.implicit is not None:
            self._keep_cache(form, request.implicit, request.model, built)
        self.notes = tuple(dict.fromkeys((*self.notes, *built.notes)))
        own = {output.name for output in form.model.outputs}
        return replace(built, outputs=tuple(output for output in built.outputs if output.name in own))

    def _make(self, request: BuildRequest, device: Device | None = None) -> Built:
        return build(
            request,
            self.platform,
            self._store,
            device=device,
            stopped=self._closing.is_set,
            workers=self._builders,
        )

    def _request(
        self, form: ModelForm | ImplicitForm, role: Role, inputs: Dataset, outputs: Outputs = "own"
    ) -> BuildRequest:
        model, by_flags = self.deployed(form)
        implicit = self._implicit(form, model) if isinstance(form, ImplicitForm) else None
        level = form.level if isinstance(form, ModelForm) else None
        options = self._options
        if level is not None:
            options = replace(options, builder={**options.builder, "optimization_level": level})
        return BuildRequest(
            model,
            role,
            make_profiles(model.inputs, self._options.shapes, self._shapes(inputs)),
            typing="weak" if by_flags else "strong",
            flags=_flags(form) if by_flags else frozenset(),
            precisions=self._precisions(form, model) if by_flags else {},
            implicit=implicit,
            outputs=outputs,
            options=options,
            # With a calibrator, the worker takes other settings if a build fails, also for lack of memory.
            shares_gpu=self._shares_gpu and implicit is None,
        )

    def _precisions(self, form: ModelForm | ImplicitForm, model: Model) -> dict[str, Precision]:
        """The precision that each node must have, for a TensorRT whose builder chooses precisions."""
        if isinstance(form, ImplicitForm):
            return dict(form.held)
        held: dict[str, Precision] = dict.fromkeys(form.in_fp32, "fp32")
        if not (self._obey and form.half):
            return held
        return {**dict.fromkeys(half_nodes(model), "fp16"), **held}

    def _shapes(self, inputs: Dataset) -> Mapping[str, Counter[Shape]]:
        if self._seen is None:
            self._seen = seen_shapes(batch.feed for batch in inputs.batches())
        return self._seen

    def _implicit(self, form: ImplicitForm, model: Model) -> Implicit:
        """The source of the calibrator's ranges: a cache that belongs to the model, or calibration data."""
        wish = None if form.samples is None else calibrate_on(form.samples, form.algorithm)
        if form.cache is None or (wish is not None and not form.cache.exists()):
            assert wish is not None  # the spec has a cache, or data to calibrate on
            return wish
        wish = wish or Implicit(algorithm_of(form.cache))
        content, note = read_cache(form.cache, Provenance.of(model, wish, self.platform), tensor_names(model))
        if note and form.cache != self.calibration_cache:
            self.notes = (*self.notes, note)
        return Implicit(wish.algorithm, content)

    def _keep_cache(self, form: ImplicitForm, implicit: Implicit, model: Model, built: Built) -> None:
        """Write the calibrator's cache to the file that the spec names, otherwise to a temporary file."""
        content = implicit.cache or built.calibration
        if content is None:
            return
        if form.cache is not None and implicit.cache is None:
            write_cache(form.cache, content, Provenance.of(model, implicit, self.platform))
        if form.cache is not None:
            self.calibration_cache = form.cache
            return
        self.calibration_cache = Path(self._folder.name) / "calibration.cache"
        self.calibration_cache.write_bytes(content)

    def _unrun(self, built: Built) -> Engine:
        """A stand-in for the baseline's engine, which cannot run here.

        Raises:
            MissingBackendError: The engine is not the baseline's, so baseline and candidate are both built.
        """
        layers = len(built.network)
        logger.info("%s: %s builds it, %d layers", built.name, self.platform.name, layers)
        if built.role == Role.BASELINE:
            return _Unrun(built)
        raise MissingBackendError(
            f"{self.platform.name} parses and builds baseline and candidate ({layers} layers); they were not "
            f"compared: {self.platform.problem}"
        )


class _Unrun:
    """Stands in for an engine that was built here, but cannot run here."""

    def __init__(self, built: Built) -> None:
        self.description = built.platform.description
        self.inputs = built.inputs
        self.outputs = built.outputs

    def __call__(self, feed: Feed) -> Feed:
        raise MissingBackendError(f"{self.description}: engines cannot run here")


def _options(case: Case) -> BuildOptions:
    said = case.tensorrt
    given = {
        name: getattr(said, name) for name, option in BUILDER_OPTIONS.items() if option.arguments is not None
    }
    return BuildOptions(
        shapes={name: (least, usual, most) for name, (least, usual, most) in said.shapes.items()},
        plugins=tuple(case.path(plugin) for plugin in said.plugins),
        builder={name: value for name, value in given.items() if value is not None},
        timeout=float(said.timeout),
    )


def _judges_time(case: Case) -> bool:
    """Whether the time of an engine decides about a verdict or a plan."""
    engine = [criterion for criterion in case.criteria if isinstance(criterion, EngineCriterion)]
    return case.search.goal == "latency" or any(criterion.speedup is not None for criterion in engine)


def _flags(form: Form) -> frozenset[Flag]:
    """The precisions that TensorRT's builder may choose; only versions below 11 choose precisions."""
    flags: list[Flag] = ["fp16"] if form.half else []
    return frozenset([*flags, "int8"] if isinstance(form, ImplicitForm) or is_qdq(form.model) else flags)


def _tells(info: EngineInfo, text: str, model: Model) -> EngineInfo:
    """``info`` with the layers from the inspector's ``text``; unchanged if the text is empty."""
    if not text:
        return info
    layers = read_layers(text, [node.name for node in model.graph.node])
    weighted = [node.name for node in model.graph.node if node.op_type in WEIGHTED]
    return replace(info, layers=layers, untold=len(untold_nodes(layers, weighted)))
