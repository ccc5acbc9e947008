"""All forms of a case run on the same inputs, in lock-step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from pytest_int8acc.backends.backend import Backend
from pytest_int8acc.case.forms import Form
from pytest_int8acc.data import Dataset
from pytest_int8acc.engines import Engine
from pytest_int8acc.engines.onnxruntime import OrtEngine
from pytest_int8acc.engines.run import run_together
from pytest_int8acc.errors import EngineError, ModelError
from pytest_int8acc.graph.model import Model
from pytest_int8acc.settings import Provider
from pytest_int8acc.tensors import Outputs, describe

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


def run_forms(
    name: str,
    backend: Backend,
    provider: Provider,
    inputs: Dataset,
    model: Model,
    baseline: Form,
    candidate: Form,
    kept: Callable[[Outputs], Outputs] | None = None,
) -> Runs:
    """Build an engine for each form and run all of them over the inputs, batch by batch.

    Args:
        name: The case's, for the log.
        backend: Where baseline and candidate run.
        provider: Where ONNX Runtime runs the FP32 reference, and the simulation beside TensorRT.
        inputs: Read once.
        model: The float model.
        baseline: What INT8 is compared with.
        candidate: The INT8 side.
        kept: Gives the baseline's outputs in the batches of the candidate's; then ``baseline`` is not run.

    Raises:
        EngineError: A form does not build or run.
        ModelError: A form takes other inputs, or gives other outputs, than the model.
    """
    logger.info("%s: building engines", name)
    engines: dict[str, Engine] = {}
    for role, form in (("baseline", baseline), ("INT8", candidate)):
        _check_interface(form.model, model)
        if role == "INT8" or kept is None:
            engines[role] = backend.open(form, role, inputs)
    if kept is None:
        engines["baseline again"] = engines["baseline"]
    notes = _beside(engines, backend, provider, model, baseline, candidate)
    found = run_together(engines, inputs)
    if kept is not None:
        found["baseline"] = kept(found["INT8"])
    return Runs(
        reference=found.get("FP32", found["baseline"]),
        baseline=found["baseline"],
        again=found.get("baseline again"),
        candidate=found["INT8"],
        simulated=found.get("simulated"),
        backend=engines["INT8"].description,
        notes=notes,
    )


def _beside(
    engines: dict[str, Engine],
    backend: Backend,
    provider: Provider,
    model: Model,
    baseline: Form,
    candidate: Form,
) -> tuple[str, ...]:
    """Add what ONNX Runtime runs beside baseline and candidate; a note where it cannot."""
    if not backend.is_tensorrt:
        if baseline.model is not model or "baseline" not in engines:
            engines["FP32"] = OrtEngine(model, "exact", provider)
        return ()
    try:  # TensorRT runs plugins that ONNX Runtime does not know
        engines["FP32"] = OrtEngine(model, "exact", provider)
        if candidate.engine is None and candidate.implicit is None:
            engines["simulated"] = OrtEngine(candidate.model, "exact", provider)
    except EngineError as error:
        engines.pop("FP32", None)
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
