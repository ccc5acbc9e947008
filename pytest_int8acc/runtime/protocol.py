"""The protocols of engines, which run models, and of backends, which make engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pytest_int8acc.data import Dataset
from pytest_int8acc.errors import EngineError, listed
from pytest_int8acc.graph.model import Model
from pytest_int8acc.results import EngineInfo, Role
from pytest_int8acc.results.engines import LayerTime
from pytest_int8acc.runtime.forms import Form
from pytest_int8acc.tensors import Feed, TensorInfo, did_you_mean


def check_names(model: str, feed: Feed, inputs: Sequence[TensorInfo]) -> None:
    """Raise EngineError if ``feed`` and ``inputs`` have different names; the message names ``model``."""
    known = [tensor.name for tensor in inputs]
    strange = [name for name in feed if name not in known]
    missing = [name for name in known if name not in feed]
    if strange or missing:
        said = [f"no input is called '{name}'{did_you_mean(name, known)}" for name in strange[:1]]
        said += [f"no array for {listed(missing)}"] if missing else []
        raise EngineError(f"{model}: {'; '.join(said)}; its inputs are {listed(known)}")


class Engine(Protocol):
    """A model that is ready to run. It is called with an array for each input name."""

    @property
    def description(self) -> str:
        """The runtime, its version and the device, for reports; *simulated by* ONNX Runtime in mode exact."""

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The model's inputs in order."""

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The model's outputs in order."""

    def __call__(self, feed: Feed) -> Feed:
        """The outputs of one run: output name to array.

        Raises EngineError if the runtime refuses the feed.
        """


#: The value of ``mode`` in the ``output_settings`` of a backend that runs built engines.
ENGINE = "engine"


class Backend(Protocol):
    """Makes engines from models, and keeps the engines until ``close``.

    The defaults of this class suit a backend that runs models without building engines, like ONNX Runtime.
    """

    builds_engines: bool = False
    """Whether the backend builds engines, which have layers of known precision."""
    times_engines: bool = False
    """Whether ``measure_latency`` measures the deployed engine."""
    quantizes_implicitly: bool = False
    """Whether the builder can quantize a float model itself (TensorRT's implicit quantization)."""
    needs_simulation: bool = False
    """Whether the model must run in ONNX Runtime as well, to separate errors of the engine from errors of
    quantization."""
    can_obey: bool = False
    """Whether the spec's ``tensorrt: {obey: true}`` makes the builder keep the precisions of the model."""
    other_levels: tuple[int, ...] = ()
    """Optimization levels below the level of the case, in descending order. At each of them the builder may
    choose other kernels."""
    output_settings: Mapping[str, str]
    """Names and values of settings on which the outputs of a model depend. Goldens, the kept outputs, record
    these settings."""
    notes: tuple[str, ...] = ()
    """Notes for the report: how the backend was chosen, and which steps the backend left out."""
    calibration_cache: Path | None = None
    """The cache that TensorRT's calibrator wrote or read; None if no calibrator ran."""

    @property
    def engines(self) -> tuple[EngineInfo, ...]:
        """Facts about the latest engine of each role, such as baseline or candidate."""
        return ()

    def check(self, form: Form) -> None:
        """Refuse a model or engine file that the backend cannot run, before anything is built.

        Raises:
            MissingBackendError: The backend cannot run this kind of model or engine.
            EngineError: A file does not exist.
        """

    def begin(self, form: Form, role: Role, inputs: Dataset) -> None:
        """Start a build in the background; ``open`` for the same role waits for it.

        ``open`` raises the errors of the build. Nothing happens if the host has no free GPU or core.
        """
        return

    def open(self, form: Form, role: Role, inputs: Dataset) -> Engine:
        """Return an engine of ``form`` for the shapes of ``inputs``; EngineError if it cannot be built."""

    def deployed(self, form: Form) -> tuple[Model, bool]:
        """The model from which an engine is built, and whether builder flags choose its types."""

    def measure_latency(self, roles: Sequence[Role], inputs: Dataset) -> None:
        """Measure the engines of these roles in turn on the first batch. ``engines`` then has the times."""
        return

    def layer_times(self, role: Role, inputs: Dataset) -> tuple[LayerTime, ...]:
        """The time of each layer in the engine of a role; empty if times are not known.

        Raises:
            EngineError: The runtime fails.
        """
        return ()

    def shows_tensors(self, form: Form) -> bool:
        """Whether ``inner_tensors`` can return tensors inside an engine of this kind."""
        return False

    def inner_tensors(
        self, form: Form, role: Role, inputs: Dataset, feed: Feed, requested: Sequence[str]
    ) -> tuple[Feed, str]:
        """The values of inner tensors of an engine on ``feed``, and a note on how the engine was changed.

        If the engine must be changed to show inner tensors, only the ``requested`` tensors are returned.
        """
        return {}, ""

    def close(self) -> None:
        """Free all engines of the backend."""
        return
