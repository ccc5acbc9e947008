"""All forms of a case run on the same inputs, in lock-step; and the training framework's outputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pytest_int8acc.backends.protocol import Backend
from pytest_int8acc.case.forms import Form, ModelForm
from pytest_int8acc.data import Dataset
from pytest_int8acc.data.files import find, read_arrays
from pytest_int8acc.engines import Engine
from pytest_int8acc.engines.onnxruntime import Sessions
from pytest_int8acc.engines.run import run_together
from pytest_int8acc.errors import DataError, EngineError, ModelError
from pytest_int8acc.graph.model import Model
from pytest_int8acc.results import Role
from pytest_int8acc.scores.metrics import samples_in
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Array, Outputs, describe, did_you_mean

logger = logging.getLogger("pytest_int8acc")


@dataclass(frozen=True, eq=False)
class Runs:
    """Outputs of all forms on the same inputs."""

    reference: Outputs
    """FP32; the baseline's own where that is FP32, or where ONNX Runtime cannot run the model."""
    baseline: Outputs
    again: Outputs | None
    """The baseline's second run; None where the baseline was kept and not run."""
    candidate: Outputs
    simulated: Outputs | None
    """The candidate in ONNX Runtime, exact; None where the candidate itself is that, or has no model."""
    backend: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Forms:
    """The forms of one case."""

    model: Model
    """The float model, run in FP32."""
    baseline: Form
    """What INT8 is compared with."""
    candidate: Form
    """The INT8 side."""


def run_forms(
    name: str,
    backend: Backend,
    forms: Forms,
    inputs: Dataset,
    sessions: Sessions,
    kept: Callable[[Outputs], Outputs] | None = None,
) -> Runs:
    """Build an engine for each form and run all of them over the inputs, batch by batch.

    Baseline and candidate run on ``backend``, the FP32 reference and the simulation beside engines in
    ``sessions``. ``kept`` gives the baseline's outputs in the candidate's batches; then it is not run.

    Raises:
        EngineError: A form does not build or run.
        ModelError: A form takes other inputs, or gives other outputs, than the model.
    """
    logger.info("%s: building engines", name)
    engines = _open(backend, forms, inputs, with_baseline=kept is None)
    notes = _beside(engines, backend, forms, sessions)
    found = run_together(engines, inputs)
    if kept is not None:
        found[Role.BASELINE] = kept(found[Role.INT8])
    return Runs(
        reference=found.get(Role.FP32, found[Role.BASELINE]),
        baseline=found[Role.BASELINE],
        again=found.get(Role.BASELINE_AGAIN),
        candidate=found[Role.INT8],
        simulated=found.get(Role.SIMULATED),
        backend=engines[Role.INT8].description,
        notes=notes,
    )


def _open(backend: Backend, forms: Forms, inputs: Dataset, *, with_baseline: bool) -> dict[Role, Engine]:
    """The engines of the forms, both checked before one is built; the baseline's under two roles."""
    for form in (forms.baseline, forms.candidate):
        _check_interface(form.model, forms.model)
        backend.check(form)
    engines: dict[Role, Engine] = {}
    if with_baseline:
        backend.begin(forms.candidate, Role.INT8, inputs)
        engines[Role.BASELINE] = backend.open(forms.baseline, Role.BASELINE, inputs)
    engines[Role.INT8] = backend.open(forms.candidate, Role.INT8, inputs)
    if with_baseline:
        engines[Role.BASELINE_AGAIN] = engines[Role.BASELINE]
    return engines


def _beside(
    engines: dict[Role, Engine], backend: Backend, forms: Forms, sessions: Sessions
) -> tuple[str, ...]:
    """Add what ONNX Runtime runs beside baseline and candidate; a note where it cannot."""
    if not backend.needs_simulation:
        if forms.baseline.model is not forms.model or Role.BASELINE not in engines:
            engines[Role.FP32] = sessions.exact(forms.model)
        return ()
    try:  # TensorRT runs plugins that ONNX Runtime does not know
        engines[Role.FP32] = sessions.exact(forms.model)
        if isinstance(forms.candidate, ModelForm):
            engines[Role.SIMULATED] = sessions.exact(forms.candidate.model)
    except EngineError as error:
        engines.pop(Role.FP32, None)
        return (f"no FP32 reference and no simulation: {error}",)
    return ()


def _check_interface(form: Model, model: Model) -> None:
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
