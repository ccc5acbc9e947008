"""A case's forms as sessions of ONNX Runtime."""

from __future__ import annotations

from pytest_int8acc.backends.protocol import Backend
from pytest_int8acc.case.forms import EngineForm, Form, ModelForm
from pytest_int8acc.data import Dataset
from pytest_int8acc.engines import Engine
from pytest_int8acc.engines.onnxruntime import sessions_of
from pytest_int8acc.errors import MissingBackendError
from pytest_int8acc.graph.model import Model
from pytest_int8acc.results import Role
from pytest_int8acc.settings import Settings


class OrtBackend(Backend):
    """ONNX Runtime: engines are sessions, made anew each time.

    The time of one says little of an engine's, and it computes what the simulation of its layers does.
    """

    def __init__(self, settings: Settings, why: str = "") -> None:
        """Keep the settings, and why this is not TensorRT; empty where nobody wanted that."""
        self._sessions = sessions_of(settings)
        self._why = why
        self.notes = (f"backend auto: ONNX Runtime, since {why}",) if why else ()
        self.output_settings = {"mode": settings.mode}

    def check(self, form: Form) -> None:
        """Refuse an engine of TensorRT.

        Raises:
            MissingBackendError: The form is one.
        """
        if isinstance(form, EngineForm):
            raise MissingBackendError(
                f"{form.path}: a TensorRT engine, and {self._why or 'backend: onnxruntime'}"
            )

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
