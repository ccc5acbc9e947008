"""Where a case's engines come from: TensorRT where it can run, else ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pytest_int8acc.case.forms import Form
from pytest_int8acc.data import Dataset
from pytest_int8acc.engines import Engine
from pytest_int8acc.engines.onnxruntime import OrtEngine
from pytest_int8acc.engines.tensorrt.platform import find_platform, may_have_gpu
from pytest_int8acc.errors import MissingBackendError
from pytest_int8acc.graph.model import Model
from pytest_int8acc.results import EngineInfo
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Feed


class Backend(Protocol):
    """Makes engines of forms, and knows what it made."""

    @property
    def is_tensorrt(self) -> bool:
        """Whether engines are real ones."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader must know of the choice."""

    @property
    def engines(self) -> tuple[EngineInfo, ...]:
        """The engines made so far that can tell of themselves, the latest of each role."""

    def open(self, form: Form, role: str, inputs: Dataset) -> Engine:
        """Make a form run on inputs like these; raises EngineError where it does not build."""

    @property
    def calibration_cache(self) -> Path | None:
        """The cache that TensorRT's calibrator left, or read; None where none ran."""

    def deployed(self, form: Form) -> tuple[Model, bool]:
        """The model that the engine of a form is made from; True where flags choose its types, not itself."""

    def measure_latency(self, roles: Sequence[str], inputs: Dataset) -> None:
        """Time the engines of these roles in turn on the first batch, for ``engines`` to tell."""

    def node_times(self, role: str, inputs: Dataset) -> Mapping[str, float]:
        """ONNX node to its time in the engine of that role, in ms; empty where that is not known."""

    def inner_tensors(
        self, form: Form, role: str, inputs: Dataset, feed: Feed, wanted: Sequence[str]
    ) -> tuple[Feed, str]:
        """Tensors inside an engine of a form, run on ``feed``, and in words what having them does to it.

        An engine that shows tensors only at a cost shows those of ``wanted`` at most.
        """

    def close(self) -> None:
        """Let go of all engines."""


class OrtBackend:
    """ONNX Runtime: engines are sessions, made anew each time."""

    is_tensorrt = False
    engines: tuple[EngineInfo, ...] = ()
    calibration_cache: Path | None = None

    def __init__(self, settings: Settings, why: str = "") -> None:
        """Keep the settings, and why this is not TensorRT; empty where nobody wanted that."""
        self._settings = settings
        self._why = why
        self.notes = (f"backend auto: ONNX Runtime, since {why}",) if why else ()

    def open(self, form: Form, role: str, inputs: Dataset) -> Engine:
        """Make a form run.

        Raises:
            MissingBackendError: The form is an engine of TensorRT.
            EngineError: ONNX Runtime refuses the model.
        """
        if form.engine is not None:
            raise MissingBackendError(
                f"{form.engine}: a TensorRT engine, and {self._why or 'backend: onnxruntime'}"
            )
        return OrtEngine(form.model, self._settings.mode, self._settings.provider)

    def deployed(self, form: Form) -> tuple[Model, bool]:
        """The form's own model."""
        return form.model, False

    def measure_latency(self, roles: Sequence[str], inputs: Dataset) -> None:
        """Nothing: the time of a session says little of an engine's."""

    def node_times(self, role: str, inputs: Dataset) -> Mapping[str, float]:
        """Nothing, either."""
        return {}

    def inner_tensors(
        self, form: Form, role: str, inputs: Dataset, feed: Feed, wanted: Sequence[str]
    ) -> tuple[Feed, str]:
        """Nothing: a session computes what the simulation of its layers does."""
        return {}, ""

    def close(self) -> None:
        """Nothing is held."""


def open_backend(case: Case, settings: Settings) -> Backend:
    """The backend that the settings want; ``auto`` is TensorRT where it can run.

    Raises:
        MissingBackendError: TensorRT is wanted, and neither runs nor builds here.
        EngineError: The engine store cannot be used.
    """
    if settings.backend == "onnxruntime":
        return OrtBackend(settings)
    if settings.backend == "auto" and not may_have_gpu():
        return OrtBackend(settings, "no NVIDIA GPU is seen")
    platform, why = find_platform()
    if platform is not None and (platform.can_run or (settings.backend == "tensorrt" and platform.can_build)):
        from pytest_int8acc.backends.tensorrt import TrtBackend

        return TrtBackend(platform, case, settings)
    if settings.backend == "auto":
        return OrtBackend(settings, why)
    raise MissingBackendError(f"backend tensorrt: {why}")
