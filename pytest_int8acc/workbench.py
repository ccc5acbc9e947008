"""Cases and engines as Python objects, for users' own tests."""

from __future__ import annotations

import tempfile
import weakref
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from pydantic import ValidationError

from pytest_int8acc.answer import check
from pytest_int8acc.case.data import low_of, open_source
from pytest_int8acc.case.file_truth import compare_with_file
from pytest_int8acc.case.forms import (
    baseline_form,
    candidate_form,
    int8_form,
    load_float,
)
from pytest_int8acc.case.measured import measure
from pytest_int8acc.data import Dataset
from pytest_int8acc.errors import (
    DataError,
    Int8accError,
    MissingBackendError,
    ModelError,
    SpecError,
    own_faults,
)
from pytest_int8acc.files import real
from pytest_int8acc.goldens import Goldens
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
from pytest_int8acc.runtime.trt.children import Workers
from pytest_int8acc.settings import Backend as BackendName
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Array, Feed, TensorInfo, did_you_mean

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


@dataclass(frozen=True)
class Host:
    """What a workbench asks whoever runs it."""

    root: Path
    """What relative paths start from."""
    settings: Callable[[Mapping[str, object]], Settings]
    """A case's settings: what command line, its spec and the configuration say together."""
    goldens: Callable[[Case], Goldens]
    """Where a case's golden lies."""
    unavailable: Callable[[MissingBackendError, Settings], None]
    """What becomes of a test whose backend is not there; where this returns, the error is raised."""
    checked: Callable[[CaseResult], None]
    """Told each result: a test that fails shows it, and Ctrl-C may have ended what followed its verdict."""
    builders: Workers
    """What TensorRT builds in."""

    @contextmanager
    def where_it_can_run(self, settings: Settings) -> Iterator[None]:
        """Let ``unavailable`` have a say before a MissingBackendError is raised."""
        try:
            yield
        except MissingBackendError as error:
            self.unavailable(error, settings)
            raise


@dataclass(repr=False)
class LoadedCase:
    """One case of a spec."""

    case: Case
    settings: Settings
    _bench: Workbench
    _engines: dict[Side, Engine] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Its name and its spec: pytest shows this in a failed assertion."""
        return f"<case {self.case.name} of {self.case.file.name}>"

    @own_faults()
    def check(self) -> CaseResult:
        """Run, judge and, where it fails and the settings want it, search; as the case's own test does.

        A golden is compared with and never recorded.

        Raises:
            Int8accError: There is no verdict.
        """
        with self._bench.host.where_it_can_run(self.settings):
            host = self._bench.host
            result = check(self.case, self.settings, host.goldens(self.case), builders=host.builders)
        host.checked(result)
        return result

    @own_faults()
    def measure(self) -> CaseResult:
        """Run and judge, without a search; raises Int8accError where there is no verdict."""
        with self._bench.host.where_it_can_run(self.settings):
            host = self._bench.host
            measured = measure(self.case, self.settings, host.goldens(self.case), builders=host.builders)
        measured.close()
        host.checked(measured.result)
        return measured.result

    @own_faults()
    def engine(self, role: Side) -> Engine:
        """The case's engine of that role, ready to be called with a feed dict; built on the first call.

        Args:
            role: baseline, fp32, or what the case is of: int8, fp8, fp16 or bf16. A baseline that is a golden
                is the live FP16 model here.

        Raises:
            Int8accError: There is no such role, or a model, the calibration data or a scale file is at fault.
        """
        _check_word("role", role, ["baseline", "fp32", low_of(self.case).name])
        if role not in self._engines:
            with self._bench.host.where_it_can_run(self.settings):
                self._engines[role] = self._open(role)
        return self._engines[role]

    def _open(self, role: Side) -> Engine:
        backend = open_backend(self.case, self.settings, self._bench.host.builders)
        form = self._form(role, backend)
        inputs = open_source(self.case, self.case.inputs, form.model, "inputs", self.settings.samples)
        return self._bench._open(backend, form, _ROLES[role], inputs)

    def _form(self, role: Side, backend: Backend) -> Form:
        model = load_float(self.case)
        if role == "fp32":
            return ModelForm.in_full(model)
        if role == "baseline":
            return baseline_form(self.case, model)
        return candidate_form(self.case, model, self.settings, implicit=backend.quantizes_implicitly)[0]

    @own_faults()
    def outputs(self, role: Side) -> dict[str, Array]:
        """All outputs of that role on the case's inputs, samples first.

        Raises:
            DataError: An output's shape changes from batch to batch.
            Int8accError: As for ``engine``, or the inputs cannot be read.
        """
        inputs = open_source(
            self.case, self.case.inputs, load_float(self.case), "inputs", self.settings.samples
        )
        found = run_together({role: self.engine(role)}, inputs)[role]
        return {name: _joined(name, arrays) for name, arrays in found.items()}


class OpenEngine:
    """An engine in a user's hands, with the backend that holds it; freed with the last reference to it."""

    def __init__(self, backend: Backend, engine: Engine) -> None:
        self._engine = engine
        self.close = weakref.finalize(self, backend.close)
        """Frees the engine; a second call does nothing."""

    @property
    def description(self) -> str:
        """Runtime, version, device and mode, in words."""
        return self._engine.description

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What it takes."""
        return self._engine.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """What it gives."""
        return self._engine.outputs

    def __call__(self, feed: Feed) -> Feed:
        """Run once; raises EngineError where the runtime refuses."""
        return self._engine(feed)


class Workbench:
    """What the fixture ``int8acc`` gives: cases of specs, and engines of models."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._engines: weakref.WeakSet[OpenEngine] = weakref.WeakSet()
        self._folder = tempfile.TemporaryDirectory(prefix="int8acc-", ignore_cleanup_errors=True)
        self._files = 0

    def __repr__(self) -> str:
        """The fixture's name: pytest shows this in a failed assertion."""
        return "<fixture int8acc>"

    @own_faults()
    def load(self, spec: str | Path, case: str | None = None) -> LoadedCase:
        """A case of a spec, by name where the spec has several.

        Raises:
            SpecError: The spec has mistakes, or no such case.
        """
        path = self.host.root / spec
        cases = {found.name: found for found in load_spec(path)}
        if case is None and len(cases) == 1:
            case = next(iter(cases))
        if case is None or case not in cases:
            hint = did_you_mean(case, cases) if case else ""
            said = f"no case '{case}'{hint}" if case else "several cases: name one"
            raise SpecError(f"{path}: {said}; it holds {', '.join(cases)}")
        settings = self.host.settings(cases[case].settings())
        return LoadedCase(cases[case], settings, self)

    @own_faults()
    def engine(
        self,
        model: str | Path,
        precision: Precision = "fp16",
        *,
        backend: BackendName | None = None,
        calibrate: str | Path | Mapping[str, Array] | None = None,
        method: str = "entropy",
        shapes: Mapping[str, Sequence[Sequence[int]]] | None = None,
    ) -> Engine:
        """A model in a precision, ready to be called with a feed dict.

        Args:
            model: A float ONNX model; or one with Q/DQ, which is INT8 or FP8 already and runs as it is.
            precision: fp32, fp16, bf16, int8 or fp8.
            backend: As in a spec; None takes the command line's or the configuration's.
            calibrate: For int8 or fp8 of a float model: calibration samples, one array per input, samples
                first, or their file, or a loader ``file.py:function``.
            method: How to calibrate: a spec's ``int8.calibrate.method``.
            shapes: For TensorRT and dynamic inputs: input to smallest, usual and largest shape.

        Raises:
            DataError: int8 or fp8 of a float model wants calibration samples.
            SpecError: A word is none of those known, or the shapes are no profile.
            Int8accError: The model cannot be read, or does not build.
        """
        _check_word("precision", precision, get_args(Precision))
        path = real(self.host.root / model)
        loaded = load_model(path)
        quantized = is_qdq(loaded)
        low = precision if precision in ("int8", "fp8") else ""
        if quantized and not low:
            raise ModelError(f"{path.name}: holds Q/DQ already: pass precision='int8' or 'fp8', as it is")
        if quantized:
            check_formats(loaded, FORMATS[low])
        elif low and calibrate is None:
            raise DataError(
                f"{path.name}: {low.upper()} of a float model wants calibration: calibrate='x.npz', or a dict"
            )
        source = {"model": path.name} if quantized else {"calibrate": {"method": method}}
        case = _case(path, {low or "int8": source}, shapes, backend)
        samples = _usual(loaded, case.tensorrt.shapes) if calibrate is None else calibrate
        case = case.model_copy(update={"inputs": self._data(samples)})
        settings = self.host.settings(case.settings())
        exact = loaded
        if quantized:
            form: Form = ModelForm.as_it_is(loaded, f"{path.name} as it is")
        elif low:
            int8 = int8_form(case, loaded, settings)
            form, exact = int8.under(), int8.unrounded()
        elif precision == "fp32":
            form = ModelForm.in_full(loaded)
        else:
            form = ModelForm.halved(loaded, precision.upper(), low=FORMATS[precision])
        inputs = open_source(case, case.inputs, loaded, "calibrate", None)
        compare_with_file(loaded, form, exact, inputs, sessions_of(settings))
        with self.host.where_it_can_run(settings):
            opened = open_backend(case, settings, self.host.builders)
            return self._open(opened, form, _ROLES[precision], inputs)

    def _open(self, backend: Backend, form: Form, role: Role, inputs: Dataset) -> OpenEngine:
        """An engine of its own backend, since a backend holds one engine per role."""
        try:
            engine = OpenEngine(backend, backend.open(form, role, inputs))
        except BaseException:
            backend.close()
            raise
        self._engines.add(engine)
        return engine

    def _data(self, given: str | Path | Mapping[str, Array]) -> str:
        """``given`` as a path or loader that a spec may name."""
        if not isinstance(given, Mapping):
            return str(self.host.root / given)
        self._files += 1
        path = Path(self._folder.name) / f"{self._files}.npz"
        with zipfile.ZipFile(path, "w") as archive:  # np.savez has names of its own, which no input may have
            for name, array in given.items():
                if np.asarray(array).dtype.kind == "O":
                    raise DataError(f"int8acc_engine: input '{name}' holds text; only numbers can be given")
                with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                    np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)
        return str(path)

    def close(self) -> None:
        """Let go of all engines, and of data on disk."""
        for engine in list(self._engines):
            engine.close()
        self._folder.cleanup()


def _case(
    path: Path,
    low: Mapping[str, object],
    shapes: Mapping[str, Sequence[Sequence[int]]] | None,
    backend: str | None,
) -> Case:
    """A case for one engine, without its inputs; raises SpecError where a word in it is not known."""
    said: dict[str, Any] = {
        "name": "engine",
        "model": path.name,
        "inputs": {"random": {"samples": 1}},
        "backend": backend,
        **low,
    }
    if shapes:
        said["tensorrt"] = {"shapes": {k: [list(s) for s in v] for k, v in shapes.items()}}
    try:
        return Case.model_validate(said).placed(path.parent / "engine.int8acc.yaml", 0)
    except ValidationError as error:
        texts = [f"{'.'.join(map(str, e['loc'][-1:]))}: {e['msg']}" for e in error.errors(include_url=False)]
        raise SpecError(f"int8acc_engine: {'; '.join(texts)}") from None


def _usual(model: Model, shapes: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, Array]:
    """Zeros of the usual shapes, sizes that nobody gives being 1: a builder asks for shapes alone."""
    open_sizes = {t.name: [s if isinstance(s, int) else 1 for s in t.shape or ()] for t in model.inputs}
    usual = open_sizes | {name: list(profile[1]) for name, profile in shapes.items()}
    return {tensor.name: np.zeros(usual[tensor.name], tensor.dtype) for tensor in model.inputs}


def _check_word(what: str, word: str, known: Sequence[str]) -> None:
    if word not in known:
        raise Int8accError(f"{what} {word!r}: expected one of {', '.join(known)}{did_you_mean(word, known)}")


def _joined(name: str, arrays: Sequence[Array]) -> Array:
    try:
        return np.concatenate(arrays) if arrays[0].ndim else np.stack(arrays)
    except ValueError as error:
        raise DataError(f"output '{name}' has another shape in each batch: {error}") from None
