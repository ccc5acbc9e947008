"""Cases and engines as Python objects, for users' own tests."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np

from pytest_int8acc.backends import Backend, open_backend
from pytest_int8acc.check import check
from pytest_int8acc.engines import Engine
from pytest_int8acc.engines.run import run_together
from pytest_int8acc.errors import DataError, SpecError
from pytest_int8acc.forms import Form, baseline_form, int8_form, load_float, open_source
from pytest_int8acc.graph.load import load_model
from pytest_int8acc.graph.qdq import is_qdq
from pytest_int8acc.measure import measure
from pytest_int8acc.results import CaseResult
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.load import load_spec
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Array, did_you_mean

Precision = Literal["fp32", "fp16", "int8"]
Role = Literal["baseline", "int8", "fp32"]


@dataclass
class LoadedCase:
    """One case of a spec."""

    case: Case
    settings: Settings
    _bench: _Bench = field(repr=False)

    def check(self) -> CaseResult:
        """Run, judge and, where it fails and the settings want it, search; as the case's own test does.

        Raises:
            Int8accError: There is no verdict.
        """
        return check(self.case, self.settings)

    def measure(self) -> CaseResult:
        """Run and judge, without a search; raises Int8accError where there is no verdict."""
        measured = measure(self.case, self.settings)
        measured.close()
        return measured.result

    def engine(self, role: Role) -> Engine:
        """The case's engine of that role, ready to be called with a feed dict.

        Raises:
            Int8accError: A model, the calibration data or a scale file is at fault.
        """
        model = load_float(self.case)
        if role == "fp32":
            form = Form(model, "FP32")
        elif role == "baseline":
            form = baseline_form(self.case, model)
        else:
            form = int8_form(self.case, model, self.settings.provider).under()
        return self._bench.open(self.case, self.settings, form, role)

    def outputs(self, role: Role) -> dict[str, Array]:
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


class Workbench:
    """What the fixture ``int8acc`` gives: cases of specs, and engines of models.

    Args:
        settings: A case's settings, as command line, spec and configuration say together.
        root: What relative paths start from.
    """

    def __init__(self, settings: Callable[[Mapping[str, object]], Settings], root: Path) -> None:
        self._settings = settings
        self._root = root
        self._bench = _Bench()

    def load(self, spec: str | Path, case: str | None = None) -> LoadedCase:
        """A case of a spec, by name where the spec has several.

        Raises:
            SpecError: The spec has mistakes, or no such case.
        """
        path = self._root / spec
        cases = {found.name: found for found in load_spec(path)}
        if case is None and len(cases) == 1:
            case = next(iter(cases))
        if case is None or case not in cases:
            hint = did_you_mean(case, cases) if case else ""
            said = f"no case '{case}'{hint}" if case else "several cases: name one"
            raise SpecError(f"{path}: {said}; it holds {', '.join(cases)}")
        return LoadedCase(cases[case], self._settings(cases[case].settings()), self._bench)

    def engine(
        self,
        model: str | Path,
        precision: Precision = "fp16",
        *,
        backend: Literal["auto", "onnxruntime", "tensorrt"] | None = None,
        calibrate: str | Path | Mapping[str, Array] | None = None,
        method: str = "entropy",
        shapes: Mapping[str, Sequence[Sequence[int]]] | None = None,
    ) -> Engine:
        """A model in a precision, ready to be called with a feed dict.

        Args:
            model: A float ONNX model, or one with Q/DQ, which runs as it is in INT8.
            precision: fp32, fp16 or int8.
            backend: As in a spec; None takes the command line's or the configuration's.
            calibrate: For int8 of a float model: calibration samples, one array per input, samples first, or
                their file, or a loader ``file.py:function``.
            method: How to calibrate.
            shapes: For TensorRT and dynamic inputs: input to smallest, usual and largest shape.

        Raises:
            DataError: int8 of a float model wants calibration samples.
            Int8accError: The model cannot be read, or does not build.
        """
        path = (self._root / model).resolve()
        quantized = is_qdq(load_model(path))
        if precision == "int8" and not quantized and calibrate is None:
            raise DataError(
                f"{path.name}: INT8 of a float model wants calibration samples: calibrate='calib.npz', or "
                "a dict of one array per input"
            )
        data = self._bench.data(calibrate, self._root)
        case = _case(path, data, method, shapes, quantized)
        settings = self._settings({"backend": backend})
        if quantized:
            form = Form(load_model(path), f"{path.name} as it is")
        else:
            float_model = load_float(case)
            form = {
                "fp32": lambda: Form(float_model, "FP32"),
                "fp16": lambda: baseline_form(case, float_model),
                "int8": lambda: int8_form(case, float_model, settings.provider).under(),
            }[precision]()
        return self._bench.open(case, settings, form, precision)

    def close(self) -> None:
        """Let go of all engines."""
        self._bench.close()

    def __enter__(self) -> Workbench:
        """The workbench itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of all engines."""
        self.close()


class _Bench:
    """Backends that stay open, and data on disk for as long as they do."""

    def __init__(self) -> None:
        self._backends: list[Backend] = []
        self._folder = tempfile.TemporaryDirectory(prefix="int8acc-", ignore_cleanup_errors=True)
        self._files = 0

    def open(self, case: Case, settings: Settings, form: Form, role: str) -> Engine:
        backend = open_backend(case, settings)
        self._backends.append(backend)  # one each: a backend holds one engine per role
        inputs = open_source(case, case.inputs, form.model, "inputs", settings.samples)
        return backend.open(form, role, inputs)

    def data(self, given: str | Path | Mapping[str, Array] | None, root: Path) -> str | None:
        """``given`` as a path or loader that a spec may name."""
        if given is None:
            return None
        if isinstance(given, Mapping):
            self._files += 1
            path = Path(self._folder.name) / f"{self._files}.npz"
            np.savez(path, **given)  # type: ignore[arg-type]  # numpy's stubs take the names for options
            return str(path)
        return str(root / given)

    def close(self) -> None:
        for backend in self._backends:
            backend.close()
        self._backends.clear()
        self._folder.cleanup()


def _case(
    path: Path,
    data: str | None,
    method: str,
    shapes: Mapping[str, Sequence[Sequence[int]]] | None,
    quantized: bool,
) -> Case:
    said: dict[str, Any] = {
        "name": "engine",
        "model": path.name,
        "inputs": data or {"random": {"samples": 1}},
        "int8": {"model": path.name} if quantized else {"calibrate": {"method": method}},
    }
    if shapes:
        said["tensorrt"] = {"shapes": {k: [list(s) for s in v] for k, v in shapes.items()}}
    return Case.model_validate(said).placed(path.parent / "engine.int8acc.yaml", 0)


def _joined(name: str, arrays: Sequence[Array]) -> Array:
    try:
        return np.concatenate(arrays) if arrays[0].ndim else np.stack(arrays)
    except ValueError as error:
        raise DataError(f"output '{name}' has another shape in each batch: {error}") from None
