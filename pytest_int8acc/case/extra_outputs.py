"""Tensors inside the float model that criteria name: every form gives them beside its outputs."""

from __future__ import annotations

from pytest_int8acc.errors import CriterionError, EngineError, ModelError, listed
from pytest_int8acc.graph.extra_outputs import with_extra_outputs
from pytest_int8acc.graph.index import inner_names
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.types import value_types
from pytest_int8acc.runtime.onnxruntime import element_types
from pytest_int8acc.spec.criteria import OutputCriterion
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import did_you_mean


def with_named(case: Case, model: Model) -> Model:
    """The float model with the tensors that the case's criteria name as further outputs.

    Raises:
        CriterionError: At its place, a name is none of a tensor that a node of the main graph computes.
    """
    named = {
        criterion.tensor: f"criteria.{index}.tensor"
        for index, criterion in enumerate(case.criteria)
        if isinstance(criterion, OutputCriterion) and criterion.tensor is not None
    }
    types = value_types(model) if named else {}
    for tensor, key in named.items():
        with case.at(key):
            _check(model, tensor)
            if tensor not in types:
                types[tensor] = _type(model, tensor)
    return with_extra_outputs(model, {tensor: types[tensor] for tensor in named})


def like(model: Model, model_of_case: Model) -> Model:
    """Another form of the model, read from a file, with the same tensors beside its outputs.

    Raises:
        ModelError: It has none of such a name.
    """
    if not model_of_case.extra_outputs:
        return model
    known = {*model.index.producer, *(output.name for output in model.outputs)}
    if missing := sorted(model_of_case.extra_outputs - known):
        raise ModelError(
            f"{model.name}: it computes no tensor {listed(missing)}, which criteria name: make it of "
            f"{model_of_case.name} with a tool that keeps names, or name a tensor that both have"
        )
    types = value_types(model_of_case) | value_types(model)
    return with_extra_outputs(
        model, {tensor: types[tensor] for tensor in sorted(model_of_case.extra_outputs)}
    )


def _check(model: Model, tensor: str) -> None:
    made = model.index.producer
    if tensor in made:
        return
    said = f"the model has no such tensor{did_you_mean(tensor, made)}"
    if tensor in {value.name for value in model.inputs}:
        said = "it is an input, the same for all: name a tensor that a node computes"
    elif tensor in model.index.constants:
        said = "it is a constant of the model: name a tensor that a node computes"
    for node in model.graph.node:
        if tensor in inner_names(node):
            what = f"inside {node.op_type} '{node.name}', where nothing can be compared"
            said = f"it lies {what}: name what that node gives, like '{node.output[0]}'"
    raise CriterionError(f"criterion for tensor '{tensor}': {said}")


def _type(model: Model, tensor: str) -> int:
    """The element type of what ONNX's own inference does not know."""
    try:
        return element_types(model, [tensor])[tensor]
    except (EngineError, KeyError) as error:
        raise CriterionError(
            f"criterion for tensor '{tensor}': its type is not known, so it cannot be compared: name another "
            "one near it"
        ) from error
