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
    """One case of a spec."""

    case: Case
    settings: Settings
    _bench: Workbench
    _engines: dict[Side, Engine] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Its name and its spec: pytest shows this in a failed assertion."""
        return f"<case {self.case.name} of {self.case.file.name}>"

    def check(self) -> CaseResult:
        """Run, judge and, where it fails and the settings want it, search; as the case's own test does.

        A golden is compared with and never recorded.

        Raises:
            Int8accError: There is no verdict.
        """
        return self._judged(answers=True)

    def measure(self) -> CaseResult:
        """Run and judge, without a search; raises Int8accError where there is no verdict."""
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
        """The case's engine of that role, ready to be called with a feed dict; built on the first call.

        Args:
            role: baseline, fp32, or what the case is of: int8, fp8, fp16 or bf16. A baseline that is a golden
                is the live FP16 model here.

        Raises:
            Int8accError: There is no such role, or a model, the calibration data or a scale file is at fault.
        """
        if role not in self._engines:
            with skipping_unavailable(self.settings):
                engine = engine_of_case(self.case, self.settings, role, workers_of(self._bench.config))
            self._engines[role] = self._bench.kept(engine)
        return self._engines[role]

    @own_faults()
    def outputs(self, role: Side) -> dict[str, Array]:
        """All outputs of that role on the case's inputs, samples first.

        Raises:
            DataError: An output's shape changes from batch to batch.
            Int8accError: As for ``engine``, or the inputs cannot be read.
        """
        return outputs_of_case(self.case, self.settings, self.engine(role))


class Workbench:
    """What the fixture ``int8acc`` gives: cases of specs, and engines of models."""

    def __init__(self, config: pytest.Config, on_result: Callable[[CaseResult], None]) -> None:
        """Open no engine yet; ``on_result`` is called with each result."""
        self.config = config
        self.on_result = on_result
        self._engines: weakref.WeakSet[OpenEngine] = weakref.WeakSet()

    def __repr__(self) -> str:
        """The fixture's name: pytest shows this in a failed assertion."""
        return "<fixture int8acc>"

    @own_faults()
    def load(self, spec: str | Path, case: str | None = None) -> LoadedCase:
        """A case of a spec, by name where the spec has several.

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
        """Return ``engine``, which is closed with the fixture."""
        self._engines.add(engine)
        return engine

    def close(self) -> None:
        """Free all engines."""
        for engine in list(self._engines):
            engine.close()
