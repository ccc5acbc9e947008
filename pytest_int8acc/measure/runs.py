"""All forms of a case run on the same inputs, in lock-step; and the training framework's outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from pytest_int8acc.backends.protocol import Backend
from pytest_int8acc.case.forms import Form
from pytest_int8acc.data import Dataset
from pytest_int8acc.data.files import find, read_arrays
from pytest_int8acc.engines import Engine
from pytest_int8acc.engines.run import run_together
from pytest_int8acc.errors import DataError, ModelError
from pytest_int8acc.graph.model import Model
from pytest_int8acc.results import Role
from pytest_int8acc.scores.metrics import samples_in
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Array, Outputs, describe, did_you_mean

if TYPE_CHECKING:
    from pytest_int8acc.measure.preflight import Preflight


@dataclass(frozen=True, eq=False)
class Sides:
    """What FP16 is judged by: outputs of FP32 and of the baseline on the same inputs."""

    reference: Outputs
    """FP32."""
    baseline: Outputs


@dataclass(frozen=True, eq=False)
class Runs:
    """Outputs of all forms on the same inputs."""

    reference: Outputs | None
    """FP32; the baseline's own where that is FP32, or where ONNX Runtime cannot run the model; None where
    nothing has asked for it on all samples."""
    baseline: Outputs
    again: Outputs | None
    """The baseline's second run: ``baseline`` itself where it repeats itself bit for bit; None where the
    baseline was kept and not run."""
    candidate: Outputs
    backend: str


def run_forms(
    backend: Backend,
    candidate: Form,
    inputs: Dataset,
    early: Preflight,
    kept: Callable[[Outputs], Outputs] | None = None,
) -> Runs:
    """Build the candidate, and run it over the inputs, batch by batch with the engines that ``early`` opened.

    The baseline runs a second time where it was seen not to repeat itself, FP32 where there was doubt.
    ``kept`` gives the baseline's outputs in the candidate's batches; then it is not run.

    Raises:
        EngineError: A form does not build or run.
    """
    engines: dict[Role, Engine] = {}
    if early.baseline is not None:
        engines[Role.BASELINE] = early.baseline
    engines[Role.INT8] = backend.open(candidate, Role.INT8, inputs)
    if early.baseline is not None and not early.steady:
        engines[Role.BASELINE_AGAIN] = early.baseline
    if early.fp32 is not None and early.doubtful:
        engines[Role.FP32] = early.fp32()
    found = run_together(engines, inputs)
    baseline = found[Role.BASELINE] if kept is None else kept(found[Role.INT8])
    return Runs(
        reference=baseline if early.fp32 is None else found.get(Role.FP32, early.reference),
        baseline=baseline,
        again=baseline if early.steady else found.get(Role.BASELINE_AGAIN),
        candidate=found[Role.INT8],
        backend=engines[Role.INT8].description,
    )


def check_interface(form: Model, model: Model) -> None:
    """Raise ModelError where a form takes other inputs or gives other outputs than the case's model."""
    for what, theirs, ours in (
        ("inputs", form.inputs, model.inputs),
        ("outputs", form.outputs, model.outputs),
    ):
        if {t.name: t.dtype for t in theirs} != {t.name: t.dtype for t in ours}:
            raise ModelError(
                f"{form.name}: its {what} ({describe(theirs)}) are not those of {model.name} "
                f"({describe(ours)}); export both from one model, with the same names and types"
            )
    wanted = {tensor.name: tensor for tensor in model.inputs}
    for tensor in form.inputs:
        sizes = zip(tensor.shape or (), wanted[tensor.name].shape or (), strict=False)
        if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes):
            raise ModelError(
                f"{form.name}: it takes {tensor}, but {model.name} takes {wanted[tensor.name]}; "
                "export both alike"
            )


@dataclass(frozen=True, eq=False)
class Reference:
    """What a spec's ``reference`` holds."""

    where: str = ""
    """The file, for messages."""
    arrays: Mapping[str, Array] = field(default_factory=dict)
    """By output, samples first; none where the spec names no file."""

    def in_batches(self, like: Outputs) -> Outputs:
        """The arrays in the batches and dtypes of another form's outputs; DataError for another shape."""
        return {name: self._cut(name, arrays) for name, arrays in like.items() if name in self.arrays}

    def _cut(self, name: str, like: Sequence[Array]) -> list[Array]:
        array, expected = self.arrays[name], (sum(map(samples_in, like)), *like[0].shape[1:])
        if array.ndim == 0 or array.shape != expected:
            raise DataError(
                f"{self.where}: '{name}' has shape {array.shape}, the model gives {expected}: save the "
                "framework's outputs for the same samples, in the same order, samples first"
            )
        ends = np.cumsum([samples_in(a) for a in like])
        return [np.asarray(part, like[0].dtype) for part in np.split(array, ends[:-1])]


def read_reference(case: Case, model: Model) -> Reference:
    """The case's reference: a .npz of one array per output, or of some; or a .npy for one output.

    Raises DataError where the file is not there or cannot be read, or an array is no output's.
    """
    if case.reference is None:
        return Reference()
    where = f"reference: {case.reference}"
    try:
        path = find(case.reference, case.path(""), where)
    except DataError as error:
        raise DataError(
            f"{error}; save the framework's outputs there (np.savez), or take 'reference' out of the spec"
        ) from error
    arrays, names = read_arrays(path, where), [output.name for output in model.outputs]
    if len(names) == 1 and len(arrays) == 1:
        return Reference(where, {names[0]: next(iter(arrays.values()))})
    for name in arrays:
        if name not in names:
            raise DataError(
                f"{where}: '{name}' is no output of the model{did_you_mean(name, names)}: {', '.join(names)}"
            )
    return Reference(where, arrays)
