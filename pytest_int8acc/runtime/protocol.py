"""What a backend is asked for: engines of forms, what they tell of themselves, and what it can do."""

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
    """Raise EngineError where ``feed`` does not name the inputs of ``model``; says which it does not."""
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
        """Runtime, version, device and mode, in words."""

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What it takes."""

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """What it gives."""

    def __call__(self, feed: Feed) -> Feed:
        """Run once; raises EngineError where the runtime refuses."""


#: What ``output_settings`` call the mode of an engine that was built.
ENGINE = "engine"


class Backend(Protocol):
    """Makes engines of forms, and knows what it made; what a backend does not define it has not."""

    builds_engines: bool = False
    """Whether ``engines`` tell what runs in INT8."""
    times_engines: bool = False
    """Whether ``measure_latency`` gives a time that is worth a price."""
    quantizes_implicitly: bool = False
    """Whether a case that wants it quantized by its builder gets a form that is."""
    needs_simulation: bool = False
    """Whether engines need their model run exactly beside them, to tell what is their own doing."""
    can_obey: bool = False
    """Whether its builder may choose another precision than the model's, and would not under
    ``tensorrt: {obey: true}``."""
    other_levels: tuple[int, ...] = ()
    """Optimization levels below the case's, at which a builder takes other kernels, the nearest first."""
    output_settings: Mapping[str, str]
    """Settings that outputs of one model depend on, for goldens to note."""
    notes: tuple[str, ...] = ()
    """What the reader must know of the choice."""
    calibration_cache: Path | None = None
    """The cache that TensorRT's calibrator left, or read; None where none ran."""

    @property
    def engines(self) -> tuple[EngineInfo, ...]:
        """The engines made so far that can tell of themselves, the latest of each role."""
        return ()

    def check(self, form: Form) -> None:
        """Refuse what can be seen to be wrong before anything is built.

        Raises:
            MissingBackendError: It cannot run such a form.
            EngineError: A file of the form is not there.
        """

    def begin(self, form: Form, role: Role, inputs: Dataset) -> None:
        """Begin what ``open`` of the same form and role will wait for, beside whatever is opened first.

        What goes wrong is raised there. Nothing happens where the host has neither GPU nor core to spare.
        """
        return

    def open(self, form: Form, role: Role, inputs: Dataset) -> Engine:
        """Make a form run on inputs like these; raises EngineError where it does not build."""

    def deployed(self, form: Form) -> tuple[Model, bool]:
        """The model that the engine of a form is made from; True where flags choose its types, not itself."""

    def measure_latency(self, roles: Sequence[Role], inputs: Dataset) -> None:
        """Time the engines of these roles in turn on the first batch, for ``engines`` to tell."""
        return

    def node_times(self, role: Role, inputs: Dataset) -> Mapping[str, float]:
        """ONNX node to its time in the engine of that role, in ms; empty where that is not known."""
        return {}

    def shows_tensors(self, form: Form) -> bool:
        """Whether ``inner_tensors`` has any of an engine of that form."""
        return False

    def inner_tensors(
        self, form: Form, role: Role, inputs: Dataset, feed: Feed, requested: Sequence[str]
    ) -> tuple[Feed, str]:
        """Tensors inside an engine of a form, run on ``feed``, and in words what having them does to it.

        An engine that shows tensors only at a cost shows those of ``requested`` at most.
        """
        return {}, ""

    def close(self) -> None:
        """Let go of all engines."""
        return
