"""The first look at a case, before it is calibrated: its first samples run in FP32 and by the baseline.

They say whether the baseline repeats itself, and whether FP16 may be at fault: a limit that it misses against
FP32, an output that is not finite or nothing but zeros, a tensor that comes near the end of FP16. Where they
leave no doubt, FP32 is not run on the other samples, unless INT8 fails.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper

from pytest_int8acc.case.file_truth import FileTruth, check_baseline
from pytest_int8acc.case.overflow import (
    compared,
    lost_by_baseline,
    made_floats,
    refuse_overflow,
)
from pytest_int8acc.case.runs import Preflight, check_interface
from pytest_int8acc.data import Dataset
from pytest_int8acc.data.layout import read_layout
from pytest_int8acc.errors import EngineError, blaming
from pytest_int8acc.graph.formats import FP16
from pytest_int8acc.graph.layout import moves_values
from pytest_int8acc.graph.model import Model
from pytest_int8acc.results import Role
from pytest_int8acc.runtime.forms import Form
from pytest_int8acc.runtime.onnxruntime import Sessions
from pytest_int8acc.runtime.protocol import Backend, Engine
from pytest_int8acc.runtime.run import cut, lock_step
from pytest_int8acc.scores.judge import Comparison, Judge
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Feed

#: Outputs with the greatest and the least of all values; the operators that find them in a tensor, and among
#: tensors.
_PEAKS = {"int8acc/max": ("ReduceMax", "Max"), "int8acc/min": ("ReduceMin", "Min")}
#: Operators whose results exceed neither 1 nor their inputs; those that only move values are known elsewhere.
_WITHIN = frozenset({"Relu", "Clip", "Softmax", "Sigmoid", "Tanh", "Erf", "Concat", "GlobalAveragePool"})
#: Other samples are not expected to reach this many times the greatest magnitude of the first samples.
_HEADROOM = 64
#: The ratio of the first samples to all samples.
_SHARE = 1 / 16
#: The number of samples that is assumed where data must be read to be counted.
_SUPPOSED = 64


def preflight(
    case: Case,
    backend: Backend,
    model: Model,
    form: Form,
    inputs: Dataset,
    *,
    candidate: Form | None,
    judge: Judge,
    sessions: Sessions,
    truth: FileTruth,
) -> Preflight:
    """Open the baseline and FP32, the candidate too where it is known, and run the first samples.

    Args:
        case: Whose keys are named where one is at fault.
        backend: Where the baseline runs.
        model: The float model.
        form: The baseline's.
        inputs: All samples.
        candidate: The candidate's form; None where it is still to be calibrated.
        judge: The case's criteria.
        sessions: Where FP32 runs.
        truth: Compares the float model and the baseline with the float model's file.

    Raises:
        EngineError: The baseline does not build or run.
        ModelError: The float model or the baseline computes something else than the file does.
        ModelError: The baseline takes other inputs, or gives other outputs, than the model; or FP16 overflows
            in it, and a limit or an output is lost by that.
    """
    engine, tested = _opened(backend, model, form, candidate, inputs)
    few = _first(inputs, whole=backend.builds_engines or read_layout(model.inputs).size is not None)
    twice = [found for _, found in lock_step({Role.BASELINE: engine, Role.BASELINE_AGAIN: engine}, few)]
    with case.at("criteria"):
        steady = _steady(judge, twice)
    if form.model is model and not backend.needs_simulation:
        with case.at("model"):
            truth.check(model, engine)
        return Preflight(engine, tested, steady=steady)
    try:
        watched, reference, peak = _watched_run(model, few, sessions)
    except EngineError as error:
        if not backend.needs_simulation:
            raise
        notes = (f"no FP32 reference and no simulation: {error}",)
        return Preflight(engine, tested, steady=steady, notes=notes)
    with case.at("model"):
        truth.check(model, watched)
    with case.at("baseline"):
        check_baseline(truth, model, form, inputs, sessions)
    for exact, rounded in zip(reference, twice, strict=True):
        judge.splitter.add_rounding(exact, rounded[Role.BASELINE] if form.half else {})
    fp32, near = partial(sessions.exact, model), form.half and not peak < FP16.highest / _HEADROOM
    place = case.place("criteria")
    sides = compared(judge, place, ({**a, Role.FP32: b} for a, b in zip(twice, reference, strict=True)))
    if not sides.spoilt and not lost_by_baseline(sides):
        return Preflight(engine, tested, fp32, steady, doubtful=near)
    both = lock_step({Role.FP32: fp32(), Role.BASELINE: engine}, inputs)
    sides = compared(judge, place, (found for _, found in both))
    lost = lost_by_baseline(sides)
    with case.at("baseline"):
        refuse_overflow(lost, sides, model, form, inputs, sessions)
    return Preflight(engine, tested, fp32, steady, doubtful=True, settled=True)


def _first(inputs: Dataset, *, whole: bool) -> Dataset:
    """The first samples; a whole batch where engine or model take no other number of samples."""
    if whole:
        return inputs.first(next(inputs.batches()).rows)
    return inputs.first(max(1, int(_SHARE * (inputs.samples or _SUPPOSED))))


def _opened(
    backend: Backend, model: Model, form: Form, candidate: Form | None, inputs: Dataset
) -> tuple[Engine, Engine | None]:
    """The engines of the baseline and of the candidate, built in parallel where that is possible."""
    with blaming(form.place):
        check_interface(form.model, model)
        backend.check(form)
    if candidate is not None:
        with blaming(candidate.place):
            backend.begin(candidate, Role.INT8, inputs)
    with blaming(form.place):
        engine = backend.open(form, Role.BASELINE, inputs)
    if candidate is None:
        return engine, None
    with blaming(candidate.place):
        return engine, backend.open(candidate, Role.INT8, inputs)


def preflight_of_golden(
    case: Case, backend: Backend, model: Model, sessions: Sessions, truth: FileTruth
) -> Preflight:
    """The first look where a golden stands in for the baseline: FP32 will run on all samples.

    Raises:
        ModelError: The float model computes something else than its file does.
    """
    try:
        engine = sessions.exact(model)
    except EngineError as error:  # TensorRT runs plugins that ONNX Runtime does not know
        if not backend.needs_simulation:
            raise
        return Preflight(notes=(f"no FP32 reference and no simulation: {error}",))
    with case.at("model"):
        truth.check(model, engine)
    return Preflight(fp32=lambda: engine, doubtful=True)


def _steady(judge: Judge, twice: Sequence[Mapping[Role, Feed]]) -> Comparison | None:
    """Two runs of the baseline compared, without metrics of labels; None where they differ."""
    comparison = Comparison(judge, metrics=False)
    for found in twice:
        one, again = found[Role.BASELINE], found[Role.BASELINE_AGAIN]
        if any(a.shape != again[n].shape or a.tobytes() != again[n].tobytes() for n, a in one.items()):
            return None
        comparison.add(one, again, 0)
    return comparison


def _watched_run(model: Model, few: Dataset, sessions: Sessions) -> tuple[Engine, list[Feed], float]:
    """The engine of FP32, its outputs, and the greatest magnitude inside the model, nan where not known.

    Raises EngineError where ONNX Runtime cannot run the model.
    """
    outputs, peaks = list[Feed](), [0.0]
    made = _may_be_large(model)
    if not made:  # as where all is in FP16
        return _plain_run(model, few, sessions)
    try:
        engine = sessions.exact(_watched(model, made), optimized=False)
        for batch in few.batches():
            found = engine(batch.feed)
            peaks += [abs(float(found.pop(name).item())) for name in _PEAKS]
            outputs.append({name: cut(array, batch, name) for name, array in found.items()})
    except EngineError:  # of a tensor without elements there is no greatest
        return _plain_run(model, few, sessions)
    return engine, outputs, float(np.max(peaks))


def _plain_run(model: Model, few: Dataset, sessions: Sessions) -> tuple[Engine, list[Feed], float]:
    """The engine of FP32, its outputs, and nan for the greatest magnitude inside the model."""
    engine = sessions.exact(model)
    plain = lock_step({Role.FP32: engine}, few)
    return engine, [feeds[Role.FP32] for _, feeds in plain], math.nan


def _may_be_large(model: Model) -> list[str]:
    """FP32 tensors that nodes compute and that may exceed 1 and the inputs of their nodes."""
    makers = model.index.producer
    return [name for name in made_floats(model) if not _stays_within(makers[name])]


def _watched(model: Model, made: Sequence[str]) -> Model:
    """The model with two more outputs: the greatest and the least of all values of the tensors ``made``."""
    editor = model.edit()
    for name, (reduce, join) in _PEAKS.items():
        each = [editor.unique(f"{tensor}/{name}") for tensor in made]
        for tensor, peak in zip(made, each, strict=True):
            editor.graph.node.append(helper.make_node(reduce, [tensor], [peak], keepdims=0))
        editor.graph.node.append(helper.make_node(join, each, [name]))
        editor.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, []))
    return editor.done()


def _stays_within(node: onnx.NodeProto) -> bool:
    """Whether the results of ``node`` exceed neither 1 nor its inputs."""
    return moves_values(node) or node.op_type in _WITHIN
