"""Models in ONNX Runtime, and the backend that runs forms there.

Mode *exact* leaves Q/DQ unfused. Mode *native* runs a model as ONNX Runtime would deploy it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

from pytest_int8acc.data import Dataset
from pytest_int8acc.errors import EngineError, MissingBackendError
from pytest_int8acc.graph.emulate import casts_to_half, emulate_half, holds_fp8, spell_out_fp8
from pytest_int8acc.graph.formats import INT8
from pytest_int8acc.graph.index import all_graphs, refill
from pytest_int8acc.graph.model import Model, make_model, save_model
from pytest_int8acc.results import Role
from pytest_int8acc.runtime.forms import EngineForm, Form, ModelForm
from pytest_int8acc.runtime.protocol import Backend, Engine, check_names
from pytest_int8acc.settings import Mode, Provider, Settings
from pytest_int8acc.tensors import Array, Feed, TensorInfo

#: Maximum size in bytes of a model that ONNX Runtime gets as a message. It maps the weights of larger models
#: from a file. A message costs two copies of all weights, and a third copy of weights inside an If.
INLINE_BYTES = 16 << 20
#: Log level of ONNX Runtime. All errors but those that end the process are in the exception.
_SEVERITY_FATAL = 4
#: Optimizers that read any zero point as an 8-bit integer. They drop a Relu in front of FP8 or INT4 (ONNX
#: Runtime 1.20 to 1.31, checked in :func:`keeps_relu`), and refuse a model with a Clip there.
_WRONG = ("ReluQuantRewrite", "ClipQuantRewrite")
#: Fusions that fail on a norm in FP32 behind a Cast, since they read it as a norm in FP16 (ONNX Runtime
#: 1.31).
_UNTYPED = ("LayerNormFusionL1", "LayerNormFusionL2", "SimplifiedLayerNormFusion")
_NARROW = frozenset({TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1}) | {
    TensorProto.FLOAT8E4M3FN,
    TensorProto.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2,
    TensorProto.FLOAT8E5M2FNUZ,
}
_STATUS = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_SOURCE = re.compile(r"\S+\.(?:cc|cpp|cu|h):\d+ (?:[^()]*::[^()]*\(.*?\)(?: const)? )?")


class OrtEngine:
    """One model in ONNX Runtime.

    Mode *exact* leaves every QuantizeLinear and DequantizeLinear in place, so float arithmetic on exact
    integer values simulates INT8. FP8 is spelled out in float operators (see graph/spell_fp8.py), and every
    FP16 result is rounded (see graph/emulate.py). The results are the same on every CPU, and those of an
    engine with FP32 accumulators. Mode *native* lets ONNX Runtime fuse Q/DQ into its INT8 kernels, see
    :func:`saturation`, and choose how it computes FP16.

    Args:
        model: The model.
        mode: How Q/DQ runs.
        provider: Where the model runs. With CUDA, TF32 is off, and nodes without a CUDA kernel run on the
            CPU.
        threads: Threads inside an operator; None: this worker's share of the cores under pytest-xdist,
            otherwise the number that ONNX Runtime chooses.
        optimized: False for a session that opens faster, in linear time for any graph, and runs slower.

    Raises:
        EngineError: ONNX Runtime or the provider is missing, or it refuses the model or computes it wrong.
    """

    def __init__(
        self,
        model: Model,
        mode: Mode = "exact",
        provider: Provider = "cpu",
        *,
        threads: int | None = None,
        optimized: bool = True,
    ) -> None:
        runtime = _runtime()
        if mode == "exact":
            model = spell_out_fp8(emulate_half(model))
            if _holds_narrow(model) and not keeps_relu():
                raise EngineError(
                    f"{model.name}: holds FP8 or INT4, and ONNX Runtime {runtime.__version__} drops a Relu "
                    "in front of such a QuantizeLinear, whatever it is told: install another version"
                )
        elif holds_fp8(model):
            raise EngineError(
                f"{model.name}: holds FP8, in which ONNX Runtime computes nothing: leave out 'mode: native'"
            )
        self.name = model.name
        self.inputs: tuple[TensorInfo, ...] = model.inputs
        self.outputs: tuple[TensorInfo, ...] = model.outputs
        self.description = f"ONNX Runtime {runtime.__version__}, {provider.upper()}, {mode}"
        providers = _providers(runtime, provider)
        self._names = [output.name for output in self.outputs]
        self._session = _session(runtime, model, mode, _options(runtime, mode, threads, optimized), providers)
        self._passed_through = {i.name for i in self.inputs} & set(self._names)
        if self._session.get_providers()[0] != providers[0][0]:
            raise EngineError(
                f"{self.name}: {providers[0][0]} did not start, although this ONNX Runtime has it. "
                "Install the CUDA and cuDNN libraries that it was built for "
                "(pip install 'onnxruntime-gpu[cuda,cudnn]'), or set provider: cpu"
            )

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
        outputs = dict(zip(self._names, arrays, strict=True))
        for name in self._passed_through:  # may share memory with the feed (microsoft/onnxruntime#21922)
            outputs[name] = outputs[name].copy()
        return outputs


@dataclass(frozen=True)
class Sessions:
    """Opens models in ONNX Runtime with the provider and the mode of the settings."""

    provider: Provider = "cpu"
    mode: Mode = "exact"

    @property
    def on_device(self) -> bool:
        """Whether tensors lie on a device, where only the graph reads them fast."""
        return self.provider != "cpu"

    def exact(self, model: Model, *, optimized: bool = True) -> OrtEngine:
        """A session in mode exact; raises EngineError where the model does not load."""
        return OrtEngine(model, "exact", self.provider, optimized=optimized)

    def plain(self, model: Model | Path) -> Callable[[Feed], Feed]:
        """A function that runs a model or a file unchanged: not optimized, nothing emulated or spelled out.

        Raises:
            EngineError: ONNX Runtime does not load the model. The function raises it where the run fails.
        """
        runtime = _runtime()
        options, providers = _options(runtime, "exact", None, False), _providers(runtime, self.provider)
        session = _session(runtime, model, "exact", options, providers)
        names = [output.name for output in session.get_outputs()]

        def run(feed: Feed) -> Feed:
            try:
                return dict(zip(names, session.run(names, feed), strict=True))
            except Exception as error:  # ONNX Runtime's errors have no common base class
                raise EngineError(f"ONNX Runtime does not run it: {_brief(error)}") from error

        return run

    def configured(self, model: Model) -> OrtEngine:
        """A session in the mode of the settings; raises EngineError where the model does not load."""
        return OrtEngine(model, self.mode, self.provider)


#: Sessions with the default settings.
CPU = Sessions()


def sessions_of(settings: Settings) -> Sessions:
    """Sessions with the provider and the mode of the settings."""
    return Sessions(settings.provider, settings.mode)


@dataclass(frozen=True)
class Saturation:
    """A known sum, and the sum that ONNX Runtime's fused INT8 convolution gives."""

    expected: float
    measured: float

    @property
    def saturates(self) -> bool:
        """Whether native INT8 gives wrong sums on this CPU: without VNNI pairs of products end at 32767."""
        return abs(self.measured - self.expected) > 0.01 * self.expected


@functools.lru_cache(maxsize=1)
def saturation() -> Saturation:
    """Whether INT8 saturates on this CPU: the worst case, 256 products of 127 by 127, in native mode.

    CPUs without VNNI add pairs of 8-bit products in 16 bits with saturation and give 2.016 instead of 256
    (microsoft/onnxruntime#5849, #6004, #14642).

    Raises:
        EngineError: ONNX Runtime is missing.
    """
    output = OrtEngine(_worst_case(), "native")({"x": np.ones((1, 256, 1, 1), np.float32)})
    return Saturation(expected=256.0, measured=float(output["y"].item()))


@functools.lru_cache(maxsize=1)
def keeps_relu() -> bool:
    """Whether ONNX Runtime keeps a Relu in front of a QuantizeLinear to FP8, in mode exact.

    Raises:
        EngineError: ONNX Runtime is missing, or cannot run FP8.
    """
    runtime, shape = _runtime(), [1]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "one", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "one", "zero"], ["y"]),
    ]
    constants = [
        helper.make_tensor("one", TensorProto.FLOAT, [], [1.0]),
        helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, [], [0.0]),
    ]
    graph = helper.make_graph(nodes, "relu", ends[:1], ends[1:], constants)
    proto = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 19)])
    options = _options(runtime, "exact", 1, optimized=True)
    session = _session(
        runtime, make_model(proto, name="Relu check"), "exact", options, _providers(runtime, "cpu")
    )
    return float(session.run(None, {"x": np.array([-1], np.float32)})[0].item()) == 0.0


def element_types(model: Model, tensors: Iterable[str]) -> dict[str, int]:
    """Tensor of the main graph to its element type, as ONNX Runtime infers it.

    Values that are not tensors, as sequences, are absent.

    Raises:
        EngineError: ONNX Runtime cannot load the model.
    """
    runtime, editor = _runtime(), model.edit()
    refill(editor.graph.output, [onnx.ValueInfoProto(name=name) for name in tensors])
    options = _options(runtime, "exact", 1, optimized=False)
    session = _session(runtime, editor.done(), "exact", options, _providers(runtime, "cpu"))
    said = {output.name: re.fullmatch(r"tensor\((\w+)\)", output.type) for output in session.get_outputs()}
    return {name: TensorProto.DataType.Value(found[1].upper()) for name, found in said.items() if found}


def _holds_narrow(model: Model) -> bool:
    """Whether an initializer, as a zero point, has a type of FP8 or of 4 bits."""
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
    """The onnxruntime package; EngineError where it is missing or broken."""
    install_hint = "pip install onnxruntime (or onnxruntime-gpu for an NVIDIA GPU)"
    try:
        runtime = importlib.import_module("onnxruntime")
    except ModuleNotFoundError as error:
        raise EngineError(f"ONNX Runtime is not installed: {install_hint}") from error
    except ImportError as error:
        raise EngineError(f"ONNX Runtime is installed but does not load ({error}): {install_hint}") from error
    if not hasattr(runtime, "InferenceSession"):  # what is left after removing one of two installed variants
        raise EngineError(
            "ONNX Runtime is installed only in part: pip uninstall -y onnxruntime onnxruntime-gpu, "
            f"then {install_hint}"
        )
    return runtime


def _providers(runtime: Any, provider: Provider) -> list[tuple[str, dict[str, str]]]:
    """The provider and then the CPU, with options; raises EngineError where this build lacks it."""
    cpu: tuple[str, dict[str, str]] = ("CPUExecutionProvider", {})
    if provider == "cpu":
        return [cpu]
    available = runtime.get_available_providers()
    if "CUDAExecutionProvider" not in available:
        raise EngineError(
            "provider cuda: this ONNX Runtime has no CUDAExecutionProvider (it has "
            f"{', '.join(available)}): pip uninstall -y onnxruntime, then pip install onnxruntime-gpu"
        )
    if hasattr(runtime, "preload_dlls"):  # finds CUDA libraries that pip installed; since 1.21
        runtime.preload_dlls()
    return [("CUDAExecutionProvider", {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}), cpu]


def _options(runtime: Any, mode: Mode, threads: int | None, optimized: bool) -> Any:
    options = runtime.SessionOptions()
    options.log_severity_level = _SEVERITY_FATAL
    levels = runtime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    options.use_deterministic_compute = True
    if not optimized:  # nodes run in the order of the file; by default more tensors are alive at once
        options.execution_order = runtime.ExecutionOrder.PRIORITY_BASED
    # Waiting threads would spin on the cores of other sessions and workers. That costs a sixth to a half of
    # the CPU time of a run, and makes no run shorter.
    for pool in ("intra", "inter"):
        options.add_session_config_entry(f"session.{pool}_op.allow_spinning", "0")
    if mode == "exact":
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.intra_op_num_threads = threads or share_of_cores() or 0
    return options


def _session(
    runtime: Any, model: Model | Path, mode: Mode, options: Any, providers: list[tuple[str, dict[str, str]]]
) -> Any:
    """A session; a large model is written to a file first."""
    wrong = list(_WRONG) if mode == "exact" else []
    if mode == "exact" and isinstance(model, Model) and casts_to_half(model.graph):
        wrong += _UNTYPED
    with contextlib.ExitStack() as stack:
        if isinstance(model, Path):
            source: str | bytes = str(model)
        elif model.nbytes <= INLINE_BYTES:
            source = model.serialize()
        else:
            folder = tempfile.TemporaryDirectory(prefix="int8acc-", ignore_cleanup_errors=True)
            source = str(Path(stack.enter_context(folder)) / "model.onnx")
            save_model(model, Path(source), external_weights=True)
        try:
            return runtime.InferenceSession(
                source, options, providers, enable_fallback=0, disabled_optimizers=wrong
            )
        except Exception as error:  # ONNX Runtime's errors have no common base class
            name = model.name if isinstance(model, Model) else str(model)
            raise EngineError(f"{name}: ONNX Runtime cannot load it: {_brief(error)}") from error


def _brief(error: Exception) -> str:
    """ONNX Runtime's message without status codes and positions in ONNX Runtime's source."""
    text = _SOURCE.sub("", _STATUS.sub("", " ".join(str(error).split())))
    return text if len(text) <= 500 else text[:500] + " ..."


def share_of_cores(environment: Mapping[str, str] = os.environ) -> int | None:
    """The number of threads for this worker of pytest-xdist, at least 1; None outside of xdist."""
    workers = environment.get("PYTEST_XDIST_WORKER_COUNT", "")
    if not workers.isdecimal() or workers == "0":
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(workers))


class OrtBackend(Backend):
    """ONNX Runtime: engines are sessions, and each ``open`` makes a new one.

    Its times say little of the times of a TensorRT engine, so it gives none.
    """

    def __init__(self, settings: Settings, why: str = "") -> None:
        """Keep the settings; ``why`` says why the backend is not TensorRT where ``auto`` chose."""
        self._sessions = sessions_of(settings)
        self._why = why
        self.notes = (f"backend auto: ONNX Runtime, since {why}",) if why else ()
        self.output_settings = {"mode": settings.mode}

    def check(self, form: Form) -> None:
        """Raise MissingBackendError where the form is an engine of TensorRT."""
        if isinstance(form, EngineForm):
            raise MissingBackendError(
                f"{form.path}: a TensorRT engine, and {self._why or 'backend: onnxruntime'}"
            )

    def open(self, form: Form, role: Role, inputs: Dataset) -> Engine:
        """A session of a form in the mode of the settings.

        Raises:
            MissingBackendError: The form is an engine of TensorRT.
            EngineError: ONNX Runtime refuses the model.
        """
        self.check(form)
        return self._sessions.configured(form.model)

    def deployed(self, form: Form) -> tuple[Model, bool]:
        """The form's own model; no builder flags choose its types."""
        return form.showing(form.model) if isinstance(form, ModelForm) else form.model, False
