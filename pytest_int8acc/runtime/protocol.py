"""The protocols of the room: an engine runs a model, a backend makes engines and says what it can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pytest_int8acc.data import Dataset
from pytest_int8acc.errors import EngineError, listed
from pytest_int8acc.graph.model import Model
from pytest_int8acc.results import EngineInfo, Role
from pytest_int8acc.runtime.forms import Form
from pytest_int8acc.tensors import Feed, TensorInfo, did_you_mean


def check_names(model: str, feed: Feed, inputs: Sequence[TensorInfo]) -> None:
    """Raise EngineError where the names in ``feed`` are not the inputs of ``model``."""
    known = [tensor.name for tensor in inputs]
    strange = [name for name in feed if name not in known]
    missing = [name for name in known if name not in feed]
    if strange or missing:
        said = [f"no input is called '{name}'{did_you_mean(name, known)}" for name in strange[:1]]
        said += [f"no array for {listed(missing)}"] if missing else []
        raise EngineError(f"{model}: {'; '.join(said)}; its inputs are {listed(known)}")


class Engine(Protocol):
    """A model ready to run: call it with a feed dict, get its outputs by name."""

    @property
    def description(self) -> str:
        """The runtime, its version, the device and the mode, in words."""

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The inputs of the model."""

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The outputs of the model."""

    def __call__(self, feed: Feed) -> Feed:
        """The outputs of one run; raises EngineError where the runtime refuses the feed."""


#: The mode of a built engine in ``output_settings``.
ENGINE = "engine"


class Backend(Protocol):
    """Makes engines from forms, and keeps what it made. A backend leaves out what it cannot do."""

    builds_engines: bool = False
    """Whether it builds engines, whose layers tell the precision in which they run."""
    times_engines: bool = False
    """Whether ``measure_latency`` gives times of the deployed engine."""
    quantizes_implicitly: bool = False
    """Whether its builder quantizes models by itself where a case asks for that."""
    needs_simulation: bool = False
    """Whether the exact model must run as well, to tell the engine's own errors from the model's."""
    can_obey: bool = False
    """Whether ``tensorrt: {obey: true}`` would keep its builder from choosing other precisions than the
    model's."""
    other_levels: tuple[int, ...] = ()
    """Optimization levels below the level of the case, the nearest first. Each makes the builder take other
    kernels."""
    output_settings: Mapping[str, str]
    """Settings that the outputs of a model depend on; goldens record them."""
    notes: tuple[str, ...] = ()
    """Notes for the reader on how the backend was chosen and what it left out."""
    calibration_cache: Path | None = None
    """The cache that TensorRT's calibrator wrote or read; None where no calibrator ran."""

    @property
    def engines(self) -> tuple[EngineInfo, ...]:
        """Facts of the engines that were built, the latest engine of each role."""
        return ()

    def check(self, form: Form) -> None:
        """Raise where a form can be refused before anything is built.

        Raises:
            MissingBackendError: The backend cannot run such a form.
            EngineError: A file of the form does not exist.
        """

    def begin(self, form: Form, role: Role, inputs: Dataset) -> None:
        """Start a build in the background; ``open`` of the same form and role waits for it.

        ``open`` raises the errors of the build. Nothing happens where the host has no GPU or core to spare.
        """
        return

    def open(self, form: Form, role: Role, inputs: Dataset) -> Engine:
        """An engine of a form for inputs like these; raises EngineError where it does not build."""

    def deployed(self, form: Form) -> tuple[Model, bool]:
        """The model that an engine is built from, and whether builder flags choose its types."""

    def measure_latency(self, roles: Sequence[Role], inputs: Dataset) -> None:
        """Time the engines of these roles in turn on the first batch; ``engines`` has the result."""
        return

    def node_times(self, role: Role, inputs: Dataset) -> Mapping[str, float]:
        """ONNX node to its time in ms in the engine of a role; empty where times are not known."""
        return {}

    def shows_tensors(self, form: Form) -> bool:
        """Whether ``inner_tensors`` can show tensors of an engine of this form."""
        return False

    def inner_tensors(
        self, form: Form, role: Role, inputs: Dataset, feed: Feed, requested: Sequence[str]
    ) -> tuple[Feed, str]:
        """Tensors inside an engine that runs on ``feed``, and a note on how showing them changes the engine.

        Where showing tensors changes the engine, only ``requested`` tensors are shown.
        """
        return {}, ""

    def close(self) -> None:
        """Free all engines."""
        return
