"""The fixture ``int8acc``: cases and engines as Python objects, for users' own tests."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import pytest

from pytest_int8acc.api import (
    OpenEngine,
    Precision,
    Side,
    check_word,
    engine_of_case,
    engine_of_model,
    outputs_of_case,
)
from pytest_int8acc.errors import SpecError, own_faults
from pytest_int8acc.plugin.session import open_run, settings_of, skipping_unavailable, workers_of
from pytest_int8acc.results import CaseResult
from pytest_int8acc.runtime.protocol import Engine
from pytest_int8acc.settings import Backend, Settings
from pytest_int8acc.spec.load import load_spec
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Array, did_you_mean


@dataclass(repr=False)
class LoadedCase:
    """One case of a spec, for a user's own test."""

    case: Case
    settings: Settings
    _bench: Workbench
    _engines: dict[Side, Engine] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Returns the names of the case and of its spec. pytest shows this text in a failed assertion."""
        return f"<case {self.case.name} of {self.case.file.name}>"

    def check(self) -> CaseResult:
        """Run and judge the case as pytest does when it runs the spec, and return the result.

        If the case fails and the settings request it, causes and fixes are searched. Goldens, the recorded
        outputs and scores, are only read.

        Raises:
            Int8accError: The case cannot be judged.
        """
        return self._judged(answers=True)

    def measure(self) -> CaseResult:
        """Run and judge the case without a search for causes; raises Int8accError if it cannot be judged."""
        return self._judged(answers=False)

    def _judged(self, *, answers: bool) -> CaseResult:
        run = open_run(self._bench.config, self.case, records=False)
        with run, skipping_unavailable(run.settings):
            result = run.judge()
            if answers:
                result = run.answer()
        self._bench.on_result(result)
        return result

    @own_faults()
    def engine(self, role: Side) -> Engine:
        """Return an engine of the case, which is called with a dict of one array per input.

        The engine is built on the first call.

        Args:
            role: baseline, fp32, or the format of the case: int8, fp8, fp16 or bf16. If the baseline is a
                golden, that is a file of recorded outputs, the role baseline gives the engine of the FP16
                model.

        Raises:
            Int8accError: There is no such role, or there is an error in a model, the calibration data or a
                scale file.
        """
        if role not in self._engines:
            with skipping_unavailable(self.settings):
                engine = engine_of_case(self.case, self.settings, role, workers_of(self._bench.config))
            self._engines[role] = self._bench.kept(engine)
        return self._engines[role]

    @own_faults()
    def outputs(self, role: Side) -> dict[str, Array]:
        """Return all outputs of the engine with this role on the case's inputs, samples along axis 0.

        Raises:
            DataError: The shape of an output changes from batch to batch.
            Int8accError: As for ``engine``, or the inputs cannot be read.
        """
        return outputs_of_case(self.case, self.settings, self.engine(role))


class Workbench:
    """The value of the fixture ``int8acc``: it loads cases of specs and builds engines of models."""

    def __init__(self, config: pytest.Config, on_result: Callable[[CaseResult], None]) -> None:
        """Create a workbench without engines. It calls ``on_result`` with the result of each case."""
        self.config = config
        self.on_result = on_result
        self._engines: weakref.WeakSet[OpenEngine] = weakref.WeakSet()

    def __repr__(self) -> str:
        """Returns the name of the fixture. pytest shows this text in a failed assertion."""
        return "<fixture int8acc>"

    @own_faults()
    def load(self, spec: str | Path, case: str | None = None) -> LoadedCase:
        """Return a case of a spec.

        Args:
            spec: The path of the spec, relative to pytest's root folder.
            case: The name of the case; None if the spec has only one.

        Raises:
            SpecError: The spec has mistakes, or no such case.
        """
        path = self.config.rootpath / spec
        cases = {found.name: found for found in load_spec(path)}
        if case is None and len(cases) == 1:
            case = next(iter(cases))
        if case is None or case not in cases:
            hint = did_you_mean(case, cases) if case else ""
            said = f"no case '{case}'{hint}" if case else "several cases: name one"
            raise SpecError(f"{path}: {said}; it holds {', '.join(cases)}")
        return LoadedCase(cases[case], settings_of(self.config, cases[case].settings()), self)

    @own_faults()
    def engine(
        self,
        model: str | Path,
        precision: Precision = "fp16",
        *,
        backend: Backend | None = None,
        calibrate: str | Path | Mapping[str, Array] | None = None,
        method: str = "entropy",
        shapes: Mapping[str, Sequence[Sequence[int]]] | None = None,
    ) -> Engine:
        """Return an engine of a model in a precision, which is called with a dict of one array per input.

        Args:
            model: A float ONNX model, or a model with Q/DQ nodes. A model with Q/DQ nodes is INT8 or FP8
                already and is not changed.
            precision: fp32, fp16, bf16, int8 or fp8.
            backend: auto, onnxruntime or tensorrt, as in a spec; None means the backend that the command line
                or pytest's configuration names.
            calibrate: The calibration samples for int8 or fp8 of a float model. They are one array per input
                with samples along axis 0, or a file with such arrays, or a loader ``file.py:function``.
            method: The calibration method, as in a spec's ``int8.calibrate.method``.
            shapes: The smallest, usual and largest shape of each dynamic input, by the input's name. Only
                TensorRT needs them.

        Raises:
            DataError: Calibration samples are missing for int8 or fp8 of a float model.
            SpecError: The calibration method does not exist, or the shapes are not valid.
            Int8accError: The precision or the backend does not exist, or the model cannot be read or built.
        """
        if backend is not None:
            check_word("backend", backend, get_args(Backend))
        settings = settings_of(self.config, {"backend": backend})
        if isinstance(calibrate, str | Path):
            calibrate = str(self.config.rootpath / calibrate)
        with skipping_unavailable(settings):
            engine = engine_of_model(
                self.config.rootpath / model,
                precision,
                settings,
                samples=calibrate,
                method=method,
                shapes=shapes,
                workers=workers_of(self.config),
            )
        return self.kept(engine)

    def kept(self, engine: OpenEngine) -> OpenEngine:
        """Remember ``engine``, so that ``close`` frees it, and return it."""
        self._engines.add(engine)
        return engine

    def close(self) -> None:
        """Free the memory of all engines that users' tests still hold."""
        for engine in list(self._engines):
            engine.close()
