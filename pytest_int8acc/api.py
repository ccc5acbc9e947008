"""Runs a case, or opens an engine of a model, for pytest's items, the fixtures and users' scripts."""

from __future__ import annotations

import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from pydantic import ValidationError

from pytest_int8acc.answer import conclude
from pytest_int8acc.case.data import low_of, open_source
from pytest_int8acc.case.file_truth import FileTruth
from pytest_int8acc.case.forms import baseline_form, candidate_form, int8_form, load_float
from pytest_int8acc.case.measured import measure
from pytest_int8acc.clock import Clock
from pytest_int8acc.data import Dataset
from pytest_int8acc.errors import DataError, Int8accError, ModelError, SpecError, own_faults
from pytest_int8acc.files import real
from pytest_int8acc.goldens.location import write_npz
from pytest_int8acc.graph.formats import FORMATS
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.qdq import check_formats, is_qdq
from pytest_int8acc.results import CaseResult, Role
from pytest_int8acc.runtime.forms import Form, ModelForm
from pytest_int8acc.runtime.onnxruntime import sessions_of
from pytest_int8acc.runtime.open import open_backend
from pytest_int8acc.runtime.protocol import Backend, Engine
from pytest_int8acc.runtime.run import run_together
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Array, Feed, TensorInfo, did_you_mean

if TYPE_CHECKING:
    from pytest_int8acc.case.measured import Measured
    from pytest_int8acc.goldens import Goldens
    from pytest_int8acc.results.course import Doing
    from pytest_int8acc.runtime.children import Workers
    from pytest_int8acc.settings import Settings

Precision = Literal["fp32", "fp16", "bf16", "int8", "fp8"]
Side = Literal["baseline", "fp32", "int8", "fp8", "fp16", "bf16"]
_ROLES: Mapping[str, Role] = {
    "baseline": Role.BASELINE,
    "fp32": Role.FP32,
    "fp16": Role.FP16,
    "bf16": Role.FP16,
    "int8": Role.INT8,
    "fp8": Role.INT8,
}


class Run(AbstractContextManager["Run"]):
    """A run of one case: call :meth:`judge`, then :meth:`answer`, then :meth:`close`.

    Another thread may read the attributes during the run, to show its progress.

    Args:
        case: A case from ``load_spec``.
        settings: The settings from command line, spec and configuration.
        goldens: The folder of the case's golden (the stored outputs), and whether the golden is written. With
            None, the golden lies beside the spec and is only read.
        workers: The worker processes in which TensorRT builds engines. With None, processes are started and
            ended with the case.
    """

    def __init__(
        self,
        case: Case,
        settings: Settings,
        goldens: Goldens | None = None,
        workers: Workers | None = None,
    ) -> None:
        self.case = case
        self.settings = settings
        self.began = time.monotonic()
        self.result: CaseResult | None = None
        """The result so far; None before the verdict."""
        self._goldens = goldens
        self._workers = workers
        self._clock = Clock()
        self._measured: Measured | None = None

    @property
    def doing(self) -> Doing | None:
        """The current phase of the run, and its progress; None between the verdict and the search."""
        return self._clock.doing

    @property
    def interrupted(self) -> bool:
        """Whether the user has pressed Ctrl-C during the search for causes and fixes."""
        return self._clock.interrupted

    @own_faults()
    def judge(self) -> CaseResult:
        """Run the models and score them; return the result with the verdict.

        Raises:
            MissingBackendError: The backend that the settings require is not installed.
            Int8accError: There is no verdict: a model, the data, a golden or a criterion is at fault.
        """
        self._measured = measure(self.case, self.settings, self._goldens, self._clock, self._workers)
        self.result = self._measured.result
        return self.result

    @own_faults()
    def answer(self, folder: Path | None = None, root: Path | None = None) -> CaseResult:
        """Return the result with causes and fixes, if the case failed or the settings request them.

        Args:
            folder: The folder for the files of the fix; None writes none.
            root: The report folder above ``folder``. No symbolic link may lead out of it. With None, links
                are followed.

        Raises:
            DataError: The inputs differ between two passes over the data.
        """
        assert self._measured is not None, "judge() comes first"
        self.result = conclude(self._measured, folder, root)
        return self.result

    def close(self) -> None:
        """Free the engines, the models and the data; the result can still be read."""
        measured, self._measured = self._measured, None
        if measured is not None:
            measured.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check(
    case: Case, settings: Settings, goldens: Goldens | None = None, workers: Workers | None = None
) -> CaseResult:
    """Judge one case and return its result with causes and fixes; see :class:`Run` for the parameters."""
    with Run(case, settings, goldens, workers) as run:
        run.judge()
        return run.answer()


class OpenEngine:
    """An engine and its backend; both are freed with the last reference to this object."""

    def __init__(self, backend: Backend, engine: Engine) -> None:
        self._engine = engine
        self.close = weakref.finalize(self, backend.close)
        """Frees the engine; a second call does nothing."""

    @property
    def description(self) -> str:
        """The runtime, its version and the device, for reports; *simulated by* ONNX Runtime in mode exact."""
        return self._engine.description

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The inputs of the model."""
        return self._engine.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The outputs of the model."""
        return self._engine.outputs

    def __call__(self, feed: Feed) -> Feed:
        """Run the engine once; raises EngineError if the runtime fails."""
        return self._engine(feed)


def engine_of_case(case: Case, settings: Settings, side: Side, workers: Workers | None = None) -> OpenEngine:
    """Return an engine of a case.

    Args:
        case: From ``load_spec``.
        settings: The settings from command line, spec and configuration.
        side: baseline, fp32, or the case's format: int8, fp8, fp16 or bf16. If the baseline is a golden
            (stored outputs), the engine is that of the FP16 model.
        workers: The worker processes in which TensorRT builds engines.

    Raises:
        Int8accError: The case has no engine ``side``, or a model, calibration data or a scale file is at
            fault.
    """
    check_word("role", side, ["baseline", "fp32", low_of(case).name])
    backend = open_backend(case, settings, workers)
    model = load_float(case)
    if side == "fp32":
        form: Form = ModelForm.in_full(model)
    elif side == "baseline":
        form = baseline_form(case, model)
    else:
        form = candidate_form(case, model, settings, implicit=backend.quantizes_implicitly)[0]
    inputs = open_source(case, case.inputs, form.model, "inputs", settings.samples)
    return _opened(backend, form, _ROLES[side], inputs)


def outputs_of_case(case: Case, settings: Settings, engine: Engine) -> dict[str, Array]:
    """Return all outputs of an engine on the case's inputs, samples first.

    Raises:
        DataError: An output's shape changes from batch to batch, or the inputs cannot be read.
    """
    inputs = open_source(case, case.inputs, load_float(case), "inputs", settings.samples)
    outputs = run_together({"engine": engine}, inputs)["engine"]
    return {name: _joined(name, arrays) for name, arrays in outputs.items()}


def engine_of_model(
    model: Path,
    precision: Precision,
    settings: Settings,
    *,
    samples: str | Mapping[str, Array] | None = None,
    method: str = "entropy",
    shapes: Mapping[str, Sequence[Sequence[int]]] | None = None,
    workers: Workers | None = None,
) -> OpenEngine:
    """Return an engine of a model.

    Args:
        model: A float ONNX model, or a model with Q/DQ, which already is INT8 or FP8 and is run unchanged.
        precision: fp32, fp16, bf16, int8 or fp8.
        settings: Only backend, mode, provider and the engine store are read.
        samples: Calibration samples for int8 or fp8 of a float model: one array per input with samples
            first, a file, or a loader ``file.py:function``.
        method: The calibration method, as ``int8.calibrate.method`` of a spec.
        shapes: For TensorRT, the smallest, usual and largest shape of each dynamic input, by its name.
        workers: The worker processes in which TensorRT builds engines.

    Raises:
        DataError: Calibration samples are missing for int8 or fp8 of a float model.
        SpecError: ``method`` is no calibration method, or the shapes are no optimization profile.
        Int8accError: The precision is unknown, or the model cannot be read or built.
    """
    check_word("precision", precision, get_args(Precision))
    path = real(model)
    loaded = load_model(path)
    quantized = is_qdq(loaded)
    codes = precision in ("int8", "fp8")
    if quantized and not codes:
        raise ModelError(f"{path.name}: holds Q/DQ already: pass precision='int8' or 'fp8', as it is")
    if quantized:
        check_formats(loaded, FORMATS[precision])
    elif codes and samples is None:
        raise DataError(
            f"{path.name}: {precision.upper()} of a float model wants calibration: "
            "calibrate='x.npz', or a dict"
        )
    with tempfile.TemporaryDirectory(prefix="int8acc-") as folder:
        source = {"model": path.name} if quantized else {"calibrate": {"method": method}}
        case = _case_of_model(path, {"fp8" if precision == "fp8" else "int8": source}, shapes)
        if samples is None:
            samples = _zeros(loaded, case.tensorrt.shapes)
        if isinstance(samples, Mapping):
            samples = _write_arrays(Path(folder) / "samples.npz", samples)
        case = case.model_copy(update={"inputs": samples})
        inputs = open_source(case, case.inputs, loaded, "calibrate", None)
        exact = loaded
        if quantized:
            form: Form = ModelForm.as_it_is(loaded, f"{path.name} as it is")
        elif codes:
            int8 = int8_form(case, loaded, settings)
            form, exact = int8.under(), int8.unrounded()
        elif precision == "fp32":
            form = ModelForm.in_full(loaded)
        else:
            form = ModelForm.halved(loaded, precision.upper(), low=FORMATS[precision])
        assert loaded.file is not None  # the model was loaded from a file
        truth = FileTruth(loaded.file, inputs, sessions_of(settings))
        truth.check(loaded)
        truth.check_form(form, exact)
        return _opened(open_backend(case, settings, workers), form, _ROLES[precision], inputs)


def _write_arrays(path: Path, arrays: Mapping[str, Array]) -> str:
    """Write an .npz of arrays and return its path. Unlike ``np.savez``, it accepts any name of an array.

    Raises:
        DataError: An array holds text.
    """
    for name, array in arrays.items():
        if np.asarray(array).dtype.kind == "O":
            raise DataError(f"int8acc_engine: input '{name}' holds text; only numbers can be given")
    write_npz(path, arrays.items())
    return str(path)


def _case_of_model(
    path: Path, source: Mapping[str, Any], shapes: Mapping[str, Sequence[Sequence[int]]] | None
) -> Case:
    """Return a case for one engine. The inputs of the case are replaced later.

    Args:
        path: The model.
        source: ``int8`` or ``fp8``, mapped to the keys of this section of a spec.
        shapes: The shapes of dynamic inputs, as ``tensorrt.shapes`` of a spec.

    Raises:
        SpecError: The calibration method does not exist, or the shapes are no optimization profile.
    """
    profiles = {name: [list(shape) for shape in profile] for name, profile in (shapes or {}).items()}
    try:
        case = Case.model_validate(
            {
                "name": "engine",
                "model": path.name,
                "inputs": path.name,
                "tensorrt": {"shapes": profiles},
                **source,
            }
        )
    except ValidationError as error:
        texts = [f"{'.'.join(map(str, e['loc'][-1:]))}: {e['msg']}" for e in error.errors(include_url=False)]
        raise SpecError(f"int8acc_engine: {'; '.join(texts)}") from None
    return case.placed(path.parent / "engine.int8acc.yaml", 0)


def _zeros(model: Model, shapes: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, Array]:
    """Return inputs of zeros, for a build that needs only their shapes.

    A dimension of unknown size becomes 1.
    """
    usual = {t.name: [s if isinstance(s, int) else 1 for s in t.shape or ()] for t in model.inputs}
    usual |= {name: list(profile[1]) for name, profile in shapes.items()}
    return {tensor.name: np.zeros(usual[tensor.name], tensor.dtype) for tensor in model.inputs}


def _opened(backend: Backend, form: Form, role: Role, inputs: Dataset) -> OpenEngine:
    """Return an engine of ``form`` in ``backend``, which is closed together with the engine."""
    try:
        return OpenEngine(backend, backend.open(form, role, inputs))
    except BaseException:
        backend.close()
        raise


def check_word(what: str, word: str, known: Sequence[str]) -> None:
    """Raise Int8accError, with the hint 'did you mean', for a ``word`` that is not in ``known``."""
    if word not in known:
        raise Int8accError(f"{what} {word!r}: expected one of {', '.join(known)}{did_you_mean(word, known)}")


def _joined(name: str, arrays: Sequence[Array]) -> Array:
    """Return the batches of one output as one array; raises DataError if their shapes differ."""
    try:
        return np.concatenate(arrays) if arrays[0].ndim else np.stack(arrays)
    except ValueError as error:
        raise DataError(f"output '{name}' has another shape in each batch: {error}") from None
