"""A case's forms as sessions of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_int8acc.case.forms import EngineForm, Form, ModelForm
from pytest_int8acc.data import Dataset
from pytest_int8acc.engines import Engine
from pytest_int8acc.engines.onnxruntime import sessions_of
from pytest_int8acc.errors import MissingBackendError
from pytest_int8acc.graph.model import Model
from pytest_int8acc.results import EngineInfo, Role
from pytest_int8acc.settings import Settings
from pytest_int8acc.tensors import Feed


class OrtBackend:
    """ONNX Runtime: engines are sessions, made anew each time."""

    builds_engines = False
    times_engines = False
    quantizes_implicitly = False
    needs_simulation = False
    other_levels: tuple[int, ...] = ()
    engines: tuple[EngineInfo, ...] = ()
    calibration_cache: Path | None = None

    def __init__(self, settings: Settings, why: str = "") -> None:
        """Keep the settings, and why this is not TensorRT; empty where nobody wanted that."""
        self._sessions = sessions_of(settings)
        self._why = why
        self.notes = (f"backend auto: ONNX Runtime, since {why}",) if why else ()
        self.output_settings: Mapping[str, str] = {"mode": settings.mode}

    def check(self, form: Form) -> None:
        """Refuse an engine of TensorRT.

        Raises:
            MissingBackendError: The form is one.
        """
        if isinstance(form, EngineForm):
            raise MissingBackendError(
                f"{form.path}: a TensorRT engine, and {self._why or 'backend: onnxruntime'}"
            )

    def begin(self, form: Form, role: Role, inputs: Dataset) -> None:
        """Nothing: a session is made at once."""

    def open(self, form: Form, role: Role, inputs: Dataset) -> Engine:
        """Make a form run.

        Raises:
            MissingBackendError: The form is an engine of TensorRT.
            EngineError: ONNX Runtime refuses the model.
        """
        self.check(form)
        return self._sessions.configured(form.model)

    def deployed(self, form: Form) -> tuple[Model, bool]:
        """The form's own model."""
        return form.showing(form.model) if isinstance(form, ModelForm) else form.model, False

    def measure_latency(self, roles: Sequence[Role], inputs: Dataset) -> None:
        """Nothing: the time of a session says little of an engine's."""

    def node_times(self, role: Role, inputs: Dataset) -> Mapping[str, float]:
        """Nothing, either."""
        return {}

    def shows_tensors(self, form: Form) -> bool:
        """No: a session computes what the simulation of its layers does."""
        return False

    def inner_tensors(
        self, form: Form, role: Role, inputs: Dataset, feed: Feed, wanted: Sequence[str]
    ) -> tuple[Feed, str]:
        """Nothing."""
        return {}, ""

    def close(self) -> None:
        """Nothing is held."""
