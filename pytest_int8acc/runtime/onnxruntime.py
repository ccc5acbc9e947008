"""Runs models in ONNX Runtime, and defines the backend of cases that ONNX Runtime runs.

Mode *exact* leaves QuantizeLinear and DequantizeLinear unfused. Mode *native* runs a model as ONNX Runtime
would deploy it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

from pytest_int8acc.clock import current
from pytest_int8acc.data import Dataset
from pytest_int8acc.data.layout import read_layout
from pytest_int8acc.errors import EngineError, MissingBackendError, assert_never
from pytest_int8acc.graph.emulate import casts_to_half, emulate_half, holds_fp8, spell_out_fp8
from pytest_int8acc.graph.formats import INT8
from pytest_int8acc.graph.index import all_graphs, refill
from pytest_int8acc.graph.model import Model, make_model, save_model
from pytest_int8acc.graph.types import FLOAT16, value_types
from pytest_int8acc.results import Level, Role
from pytest_int8acc.runtime import worker
from pytest_int8acc.runtime.children import Ended, Outcome, shared_workers
from pytest_int8acc.runtime.forms import EngineForm, Form, ModelForm
from pytest_int8acc.runtime.protocol import Backend, Engine, check_names
from pytest_int8acc.settings import Mode, Provider, Settings
from pytest_int8acc.tensors import Array, Feed, TensorInfo

#: Maximum size in bytes of a model that is passed to ONNX Runtime in memory. ONNX Runtime then holds two
#: copies of all weights, and a third copy of weights inside an If. Larger models are passed as files and
#: memory-mapped.
INLINE_BYTES = 16 << 20
#: Log level at which ONNX Runtime logs only errors that end the process. All other errors raise exceptions.
_SEVERITY_FATAL = 4
#: ONNX Runtime's rewrite rules for a Relu or a Clip in front of a QuantizeLinear. If the QuantizeLinear gives
#: FP8 or INT4, the first rule wrongly removes the Relu (checked by :func:`keeps_relu`), and the second rule
#: makes ONNX Runtime refuse a model with the Clip (1.20 to 1.31).
QUANTIZER_RULES = ("ReluQuantRewrite", "ClipQuantRewrite")
#: Optimizers that give wrong results even in mode *exact*, where Q/DQ is not fused. The last one merges two
#: Q/DQ pairs in series into one pair with a scale that neither of the two pairs has.
_WRONG_OPTIMIZERS = (*QUANTIZER_RULES, "DoubleQDQPairsRemover")
#: Fusions that fail on an FP32 normalization after a Cast, because they treat the normalization as FP16
#: (ONNX Runtime 1.31).
_UNTYPED_FUSIONS = ("LayerNormFusionL1", "LayerNormFusionL2", "SimplifiedLayerNormFusion")
#: The optimizer of convolutions that crashes on some models with Transpose, Cast from FP16 and MatMul
#: (microsoft/onnxruntime#28392, seen in 1.32).
CRASHING = "NchwcTransformer"
#: The error text for a model on which the optimizer ``CRASHING`` crashes.
CRASH = f"loading it crashes the process in {CRASHING} (microsoft/onnxruntime#28392)"
#: Maximum time in seconds for a child process to load a model.
_MAX_LOAD_SECONDS = 120.0
#: Matches the log's line before the optimizers of a level; level 1 is *basic*, 2 is *extended*.
_LEVEL_BEGINS = re.compile(r"Applying \d+ graph transformer\(s\) for level (\d)")
_LEVELS: Mapping[str, Level] = {"1": "basic", "2": "extended"}
#: Matches the log's line on an optimizer that has changed the graph.
_CHANGED = re.compile(r"GraphTransformer (\S+) modified: 1 ")
#: Element types of 8 or 4 bits other than INT8 and UINT8.
_NARROW = frozenset({TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1}) | {
    TensorProto.FLOAT8E4M3FN,
    TensorProto.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2,
    TensorProto.FLOAT8E5M2FNUZ,
}
#: Matches the status code at the beginning of an error message of ONNX Runtime.
_STATUS = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
#: Matches a position in ONNX Runtime's C++ source in an error message.
_SOURCE = re.compile(r"\S+\.(?:cc|cpp|cu|h):\d+ (?:[^()]*::[^()]*\(.*?\)(?: const)? )?")


class OrtEngine:
    """A model in a session of ONNX Runtime.

    In mode *exact* every QuantizeLinear and DequantizeLinear stays in place, so that float arithmetic on
    exact integer values simulates INT8. FP8 is written as float operators, and each FP16 result is rounded
    (see graph/emulate.py). The results are equal on every CPU, and equal to those of an engine with FP32
    accumulators. In mode *native* ONNX Runtime fuses Q/DQ into its INT8 kernels, which may saturate (see
    :func:`saturation`), and chooses how it computes FP16.

    Args:
        model: The model, or a function that makes it. A made model is freed before ONNX Runtime, which has
            its own copy of the weights, loads it.
        mode: *exact* or *native*.
        provider: The device. With CUDA, TF32 is off, and nodes without a CUDA kernel run on the CPU.
        threads: Number of threads inside an operator. None means this worker's share of the cores under
            pytest-xdist, and otherwise the number that ONNX Runtime chooses.
        level: The level of the optimizers. With *none*, a session opens faster, in linear time for any graph,
            and runs slower.
        disabled: Names of further optimizers that are switched off.
        takes_fp8: Whether mode *native* also opens models in FP8, although ONNX Runtime computes FP8 in FP32.

    Raises:
        EngineError: ONNX Runtime or the provider is missing, or ONNX Runtime refuses the model or computes it
            wrong.
    """

    def __init__(
        self,
        model: Model | Callable[[], Model],
        mode: Mode = "exact",
        provider: Provider = "cpu",
        *,
        threads: int | None = None,
        level: Level = "all",
        disabled: Collection[str] = (),
        takes_fp8: bool = False,
    ) -> None:
        runtime = _runtime()
        model = model if isinstance(model, Model) else model()
        if mode == "exact":
            model = spell_out_fp8(emulate_half(model))
            if _holds_narrow(model) and not keeps_relu():
                raise EngineError(
                    f"{model.name}: holds FP8 or INT4, and ONNX Runtime {runtime.__version__} drops a Relu "
                    "in front of such a QuantizeLinear, whatever it is told: install another version"
                )
        elif holds_fp8(model) and not takes_fp8:
            raise EngineError(
                f"{model.name}: holds FP8, in which ONNX Runtime computes nothing: leave out 'mode: native'"
            )
        self.name = model.name
        self.inputs: tuple[TensorInfo, ...] = model.inputs
        self.outputs: tuple[TensorInfo, ...] = model.outputs
        version = f"ONNX Runtime {runtime.__version__}, {provider.upper()}"
        self.description = f"simulated by {version}" if mode == "exact" else f"{version}, {mode}"
        self._names = [output.name for output in self.outputs]
        self._layout = read_layout(self.inputs)
        if mode == "native" and _may_crash(model):
            disabled = (*disabled, CRASHING)
        disabled = _disabled(model, mode, disabled)
        with contextlib.ExitStack() as files:
            source = _source(model, files)
            del model  # frees emulated and made weights
            self._session = _loaded(source, self.name, mode, provider, level, disabled, threads)
        self._passed_through = {i.name for i in self.inputs} & set(self._names)

    def __call__(self, feed: Feed) -> Feed:
        """Run once.

        Args:
            feed: One array per input, of the input's dtype.

        Returns:
            One array per output.

        Raises:
            EngineError: ONNX Runtime refuses the feed, or fails.
        """
        try:
            arrays: list[Array] = self._session.run(self._names, feed)
        except Exception as error:  # ONNX Runtime's errors have no common base class
            check_names(self.name, feed, self.inputs)
            raise EngineError(f"{self.name}: does not run in ONNX Runtime: {_brief(error)}") from error
        current().ran(self._layout.rows(feed))
        outputs = dict(zip(self._names, arrays, strict=True))
        for name in self._passed_through:  # these may share the feed's memory (microsoft/onnxruntime#21922)
            outputs[name] = outputs[name].copy()
        return outputs


@dataclass(frozen=True)
class Sessions:
    """Opens models in ONNX Runtime with the provider and the mode of the settings."""

    provider: Provider = "cpu"
    mode: Mode = "exact"

    @property
    def on_device(self) -> bool:
        """Whether tensors are in the memory of a GPU, so that copying them to the CPU takes long."""
        return self.provider != "cpu"

    def exact(self, model: Model | Callable[[], Model], *, optimized: bool = True) -> OrtEngine:
        """A session in mode *exact* for a model, or for the model that a function makes, see ``OrtEngine``.

        Raises:
            EngineError: The model does not load.
        """
        return OrtEngine(model, "exact", self.provider, level="all" if optimized else "none")

    def plain(self, model: Model | Path) -> Callable[[Feed], Feed]:
        """A function that runs a model or a file unchanged, without optimization and without emulation.

        Raises:
            EngineError: ONNX Runtime does not load the model, or a run of the returned function fails.
        """
        session = _session(model, "exact", self.provider, "none")
        names = [output.name for output in session.get_outputs()]

        def run(feed: Feed) -> Feed:
            try:
                return dict(zip(names, session.run(names, feed), strict=True))
            except Exception as error:  # ONNX Runtime's errors have no common base class
                raise EngineError(f"ONNX Runtime does not run it: {_brief(error)}") from error

        return run

    def default(self, model: Model, *, level: Level = "all", disabled: Collection[str] = ()) -> OrtEngine:
        """A session with ONNX Runtime's default optimizations and fusions, except for ``disabled`` ones.

        Raises:
            EngineError: The model does not load.
        """
        return OrtEngine(model, "native", self.provider, level=level, disabled=disabled, takes_fp8=True)

    def optimizers(self, model: Model) -> tuple[tuple[Level, str], ...]:
        """Level and name of the optimizers that change the graph in a default session, in order of execution.

        ONNX Runtime names the optimizers only in its log, which goes to stderr. So another process loads the
        model. The result is empty if the process fails, or if the log has another form.
        """
        found: dict[tuple[Level, str], None] = {}
        level: Level = "basic"
        outcome = self._loaded(model)
        for line in outcome.log.splitlines() if outcome.ended is Ended.DONE else ():
            if (said := _LEVEL_BEGINS.search(line)) is not None:
                level = _LEVELS.get(said[1], "all")
            elif (said := _CHANGED.search(line)) is not None:
                found.setdefault((level, said[1]))
        return tuple(found)

    def crashes(self, model: Model) -> bool:
        """Whether a default session of a model crashes. Another process loads models that may crash."""
        return _may_crash(model) and self._loaded(model).ended_by_signal

    def _loaded(self, model: Model) -> Outcome:
        """The outcome of a child process that loads a model in a default session, with a detailed log.

        If the child cannot be started, the outcome is ``Ended.FAILED``.
        """
        with tempfile.TemporaryDirectory(prefix="int8acc-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            save_model(model, folder / worker.MODEL, external_weights=model.nbytes > INLINE_BYTES)
            providers = [provider for provider, _ in _providers(_runtime(), self.provider)]
            job = {"kind": "load", "providers": providers}
            try:
                return shared_workers(os.getpid()).run(job, folder, _MAX_LOAD_SECONDS, kind="load")
            except OSError:
                return Outcome(Ended.FAILED, 0.0)

    def configured(self, model: Model) -> OrtEngine:
        """A session in the mode of the settings; raises EngineError if the model does not load."""
        return OrtEngine(model, self.mode, self.provider)


def _may_crash(model: Model) -> bool:
    """Whether a model has a Transpose and tensors in FP16, so that ``CRASHING`` may crash on it."""
    has_transpose = any(node.op_type == "Transpose" for node in model.graph.node)
    return has_transpose and FLOAT16 in value_types(model).values()


#: Sessions with the default settings.
CPU = Sessions()


def sessions_of(settings: Settings) -> Sessions:
    """Sessions with the provider and the mode of the settings."""
    return Sessions(settings.provider, settings.mode)


@dataclass(frozen=True)
class Saturation:
    """The expected and the measured result of a fused INT8 convolution, which show whether sums saturate."""

    expected: float
    measured: float

    @property
    def saturates(self) -> bool:
        """Whether native INT8 gives wrong sums on this CPU: without VNNI, sums of two products saturate."""
        return abs(self.measured - self.expected) > 0.01 * self.expected


@functools.lru_cache(maxsize=1)
def saturation() -> Saturation:
    """The exact sum of 256 products 1 * 1 (INT8 codes 127 * 127), and this CPU's sum in mode *native*.

    CPUs without VNNI add pairs of 8-bit products in 16 bits with saturation. They give 2.016 in place of 256
    (microsoft/onnxruntime#5849, #6004, #14642).

    Raises:
        EngineError: ONNX Runtime is missing.
    """
    output = OrtEngine(_worst_case(), "native")({"x": np.ones((1, 256, 1, 1), np.float32)})
    return Saturation(expected=256.0, measured=float(output["y"].item()))


@functools.lru_cache(maxsize=1)
def keeps_relu() -> bool:
    """Whether ONNX Runtime keeps a Relu in front of a QuantizeLinear to FP8 in mode *exact*.

    Raises:
        EngineError: ONNX Runtime is missing, or cannot run FP8.
    """
    text = """
        <ir_version: 9, opset_import: ["": 19]>
        relu_before_fp8 (float[1] x) => (float[1] y) <float one = {1}>
        {
            r = Relu(x)
            q = QuantizeLinear(r, one, zero)
            y = DequantizeLinear(q, one, zero)
        }
    """
    proto = parser.parse_model(text)
    proto.graph.initializer.append(helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, [], [0.0]))
    session = _session(make_model(proto, name="Relu check"), "exact", "cpu")
    return float(session.run(None, {"x": np.array([-1], np.float32)})[0].item()) == 0.0


def element_types(model: Model, tensors: Iterable[str]) -> dict[str, int]:
    """The element types that ONNX Runtime infers for tensors of the main graph, by tensor name.

    Args:
        model: Any model.
        tensors: Names. Values that are not tensors, such as sequences, are left out of the result.

    Raises:
        EngineError: ONNX Runtime cannot load the model.
    """
    editor = model.edit()
    refill(editor.graph.output, [onnx.ValueInfoProto(name=name) for name in tensors])
    session = _session(editor.done(), "exact", "cpu", "none")
    said = {output.name: re.fullmatch(r"tensor\((\w+)\)", output.type) for output in session.get_outputs()}
    return {name: TensorProto.DataType.Value(found[1].upper()) for name, found in said.items() if found}


def _holds_narrow(model: Model) -> bool:
    """Whether an initializer, such as a zero point, has a type of FP8 or of 4 bits."""
    return any(t.data_type in _NARROW for graph in all_graphs(model.graph) for t in graph.initializer)


def _worst_case() -> Model:
    """A Q/DQ convolution of 256 channels whose inputs and weights are all 1."""
    text = """
        <ir_version: 8, opset_import: ["": 13]>
        worst_case (float[1, 256, 1, 1] x) => (float[1, 1, 1, 1] y)
        <float one = {0.007874016}, float all = {2.015748}, int8 zero = {0}>
        {
            xq = QuantizeLinear(x, one, zero)
            xd = DequantizeLinear(xq, one, zero)
            wd = DequantizeLinear(w, one, zero)
            c = Conv(xd, wd)
            cq = QuantizeLinear(c, all, zero)
            y = DequantizeLinear(cq, all, zero)
        }
    """
    proto = parser.parse_model(text)
    weight = np.full((1, 256, 1, 1), INT8.highest, INT8.dtype)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return make_model(proto, name="saturation check")


def _runtime() -> Any:
    """The onnxruntime package; raises EngineError if it is missing or broken."""
    install_hint = "pip install onnxruntime (or onnxruntime-gpu for an NVIDIA GPU)"
    try:
        runtime = importlib.import_module("onnxruntime")
    except ModuleNotFoundError as error:
        raise EngineError(f"ONNX Runtime is not installed: {install_hint}") from error
    except ImportError as error:
        raise EngineError(f"ONNX Runtime is installed but does not load ({error}): {install_hint}") from error
    if not hasattr(runtime, "InferenceSession"):  # left after one of two variants was uninstalled
        raise EngineError(
            "ONNX Runtime is installed only in part: pip uninstall -y onnxruntime onnxruntime-gpu, "
            f"then {install_hint}"
        )
    return runtime


def _providers(runtime: Any, provider: Provider) -> list[tuple[str, dict[str, str]]]:
    """The providers of a session with their options: ``provider`` first, and the CPU for other nodes.

    Raises:
        EngineError: The installed ONNX Runtime lacks the provider.
    """
    cpu: tuple[str, dict[str, str]] = ("CPUExecutionProvider", {})
    if provider == "cpu":
        return [cpu]
    available = runtime.get_available_providers()
    if "CUDAExecutionProvider" not in available:
        raise EngineError(
            "provider cuda: this ONNX Runtime has no CUDAExecutionProvider (it has "
            f"{', '.join(available)}): pip uninstall -y onnxruntime, then pip install onnxruntime-gpu"
        )
    runtime.preload_dlls()  # finds CUDA libraries that pip installed
    return [("CUDAExecutionProvider", {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}), cpu]


def _options(runtime: Any, mode: Mode, level: Level, threads: int | None) -> Any:
    options = runtime.SessionOptions()
    options.log_severity_level = _SEVERITY_FATAL
    options.graph_optimization_level = _level(runtime, level)
    options.use_deterministic_compute = True
    if level == "none":  # nodes run in the order of the file, so that fewer tensors are in memory at once
        options.execution_order = runtime.ExecutionOrder.PRIORITY_BASED
    # Threads that spin while they wait take cores from other sessions and workers. Spinning costs a sixth to
    # a half of the CPU time of a run, and makes no run shorter.
    for pool in ("intra", "inter"):
        options.add_session_config_entry(f"session.{pool}_op.allow_spinning", "0")
    if mode == "exact":
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.intra_op_num_threads = threads or share_of_cores() or 0
    return options


def _level(runtime: Any, level: Level) -> Any:
    levels = runtime.GraphOptimizationLevel
    match level:
        case "none":
            return levels.ORT_DISABLE_ALL
        case "basic":
            return levels.ORT_ENABLE_BASIC
        case "extended":
            return levels.ORT_ENABLE_EXTENDED
        case "all":
            return levels.ORT_ENABLE_ALL
    assert_never(level)


def _session(model: Model | Path, mode: Mode, provider: Provider, level: Level = "all") -> Any:
    """A session for a model or a file."""
    name = model.name if isinstance(model, Model) else str(model)
    with contextlib.ExitStack() as files:
        source = _source(model, files)
        return _loaded(source, name, mode, provider, level, _disabled(model, mode, ()), None)


def _source(model: Model | Path, files: contextlib.ExitStack) -> str | bytes:
    """What ONNX Runtime loads: the model's bytes, or the path of its file.

    A model of more than ``INLINE_BYTES`` is written to a file, which ``files`` deletes when it is closed.
    """
    if isinstance(model, Path):
        return str(model)
    if model.nbytes <= INLINE_BYTES:
        return model.serialize()
    folder = tempfile.TemporaryDirectory(prefix="int8acc-", ignore_cleanup_errors=True)
    path = Path(files.enter_context(folder)) / "model.onnx"
    save_model(model, path, external_weights=True)
    return str(path)


def _disabled(model: Model | Path, mode: Mode, others: Collection[str]) -> list[str]:
    """The optimizers to switch off: ``others``, and in mode *exact* those that give wrong results."""
    if mode != "exact":
        return list(others)
    is_typed = isinstance(model, Model) and casts_to_half(model.graph)
    return [*_WRONG_OPTIMIZERS, *others, *(_UNTYPED_FUSIONS if is_typed else ())]


def _loaded(
    source: str | bytes,
    name: str,
    mode: Mode,
    provider: Provider,
    level: Level,
    disabled: Collection[str],
    threads: int | None,
) -> Any:
    """A session for the bytes or the file of a model. ``name`` is used in messages."""
    runtime = _runtime()
    providers, options = _providers(runtime, provider), _options(runtime, mode, level, threads)
    try:
        session = runtime.InferenceSession(
            source, options, providers, enable_fallback=0, disabled_optimizers=list(disabled)
        )
    except Exception as error:  # ONNX Runtime's errors have no common base class
        raise EngineError(f"{name}: ONNX Runtime cannot load it: {_brief(error)}") from error
    if session.get_providers()[0] != providers[0][0]:
        raise EngineError(
            f"{name}: {providers[0][0]} did not start, although this ONNX Runtime has it. "
            "Install the CUDA and cuDNN libraries that it was built for "
            "(pip install 'onnxruntime-gpu[cuda,cudnn]'), or set provider: cpu"
        )
    return session


def _brief(error: Exception) -> str:
    """The text of an error without status codes and positions in ONNX Runtime's source."""
    text = _SOURCE.sub("", _STATUS.sub("", " ".join(str(error).split())))
    return text if len(text) <= 500 else text[:500] + " ..."


def share_of_cores(environment: Mapping[str, str] = os.environ) -> int | None:
    """The number of cores for this worker of pytest-xdist, at least 1; None outside of pytest-xdist."""
    workers = environment.get("PYTEST_XDIST_WORKER_COUNT", "")
    if not workers.isdecimal() or workers == "0":
        return None
    return max(1, usable_cores() // int(workers))


def usable_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class OrtBackend(Backend):
    """The backend ONNX Runtime. Its engines are sessions, and each ``open`` makes a new one.

    The backend measures no latencies, since these would say little about the latencies of a TensorRT engine.
    """

    def __init__(self, settings: Settings, why: str = "") -> None:
        """Set up the backend.

        Args:
            settings: The provider and the mode.
            why: Why the backend is not TensorRT; empty if the settings name ONNX Runtime.
        """
        self._sessions = sessions_of(settings)
        self._why = why
        self.notes = (f"backend auto: ONNX Runtime, since {why}",) if why else ()
        self.output_settings = {"mode": settings.mode}

    def check(self, form: Form) -> None:
        """Raise MissingBackendError if ``form`` is a TensorRT engine, which ONNX Runtime cannot run."""
        if isinstance(form, EngineForm):
            raise MissingBackendError(
                f"{form.path}: a TensorRT engine, and {self._why or 'backend: onnxruntime'}"
            )

    def open(self, form: Form, role: Role, inputs: Dataset) -> Engine:
        """A session for a model, in the mode of the settings.

        Raises:
            MissingBackendError: ``form`` is a TensorRT engine.
            EngineError: ONNX Runtime refuses the model.
        """
        self.check(form)
        return self._sessions.configured(form.model)

    def deployed(self, form: Form) -> tuple[Model, bool]:
        """The model itself, and False, because ONNX Runtime has no builder flags that choose types."""
        return form.showing(form.model) if isinstance(form, ModelForm) else form.model, False
