"""Runs FP32 and the baseline on the first samples of a case, before its calibration.

These runs show whether two runs of the baseline are equal, and whether FP16 may be at fault. FP16 may be at
fault if the baseline misses a limit against FP32, if an output is not finite or only zeros, or if a tensor
comes near the greatest FP16 number. FP32 then runs on all samples. Otherwise FP32 runs on all samples only if
INT8 fails, or if details of a passing case are requested.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper

from pytest_int8acc.case.file_truth import FileTruth, check_baseline
from pytest_int8acc.case.preactivations import Preactivations
from pytest_int8acc.case.runs import BadOutputs, Preflight, check_interface
from pytest_int8acc.data import Dataset
from pytest_int8acc.data.layout import read_layout
from pytest_int8acc.errors import EngineError, ModelError, blaming
from pytest_int8acc.graph.formats import FP16
from pytest_int8acc.graph.index import all_nodes, subgraphs
from pytest_int8acc.graph.inner import with_inner_tensors
from pytest_int8acc.graph.layout import moves_values
from pytest_int8acc.graph.model import Model
from pytest_int8acc.observers.observer import Observer
from pytest_int8acc.results import (
    Role,
    Score,
)
from pytest_int8acc.runtime.forms import Form, ModelForm
from pytest_int8acc.runtime.onnxruntime import Sessions
from pytest_int8acc.runtime.protocol import Backend, Engine
from pytest_int8acc.runtime.run import cut, lock_step
from pytest_int8acc.scores.judge import Comparison, Judge
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Feed

#: Names of outputs that are added to the FP32 model: the greatest and the least value of all its tensors.
#: Each is computed by two operators: the first reduces a tensor to one value, the second joins these values.
_PEAKS = {"int8acc/max": ("ReduceMax", "Max"), "int8acc/min": ("ReduceMin", "Min")}
#: Operators whose results have at most the magnitude of their inputs, or at most 1. Operators that only move
#: values have this property, too, but are not listed.
_WITHIN = frozenset({"Relu", "Clip", "Softmax", "Sigmoid", "Tanh", "Erf", "Concat", "GlobalAveragePool"})
#: Minimum ratio of the greatest FP16 number to the greatest magnitude in the first samples. With a smaller
#: ratio another sample may overflow, so FP32 runs on all samples.
_HEADROOM = 64
#: The share of all samples that runs before the calibration.
_SHARE = 1 / 16
#: The number of samples that is assumed if it is unknown, because counting would read all data.
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
    watch: Preactivations,
) -> Preflight:
    """Open the baseline, FP32 and a candidate that needs no calibration, and run the first samples.

    Args:
        case: The case. Errors name places of keys in its spec.
        backend: Runs the baseline and the candidate.
        model: The float model.
        form: The baseline.
        inputs: All samples.
        candidate: The candidate; None if it is not calibrated yet.
        judge: Applies the criteria of the case.
        sessions: Opens the FP32 model.
        truth: Compares the float model and the baseline with the user's model file.
        watch: Opens models so that they also output the tensors that a final Softmax or Sigmoid reads.

    Raises:
        EngineError: The baseline does not build or run.
        ModelError: The float model or the baseline computes something else than its file, the baseline has
            other inputs or outputs than the model, or a limit is missed because FP16 overflows.
    """
    engine, tested = _opened(backend, model, form, candidate, inputs, watch)
    few = _first(inputs, whole=backend.builds_engines or read_layout(model.inputs).size is not None)
    twice = [found for _, found in lock_step({Role.BASELINE: engine, Role.BASELINE_AGAIN: engine}, few)]
    with case.at("criteria"):
        steady = _steady(judge, twice)
    if form.model is model and not backend.needs_simulation:
        with case.at("model"):
            truth.check(model)
        return Preflight(engine, tested, steady=steady)
    try:
        reference, peak = _fp32_run(model, few, sessions)
    except EngineError as error:
        if not backend.needs_simulation:
            raise
        notes = (f"no FP32 reference and no simulation: {error}",)
        return Preflight(engine, tested, steady=steady, notes=notes)
    with case.at("model"):
        truth.check(model)
    with case.at("baseline"):
        check_baseline(truth, model, form, inputs, sessions)
    for exact, rounded in zip(reference, twice, strict=True):
        judge.splitter.add_rounding(exact, rounded[Role.BASELINE] if form.half else {})
    fp32 = partial(watch.open, Role.FP32, model, sessions.exact)
    near = form.half and not peak < FP16.highest / _HEADROOM
    place = case.place("criteria")
    both = ({**a, Role.FP32: b} for a, b in zip(twice, reference, strict=True))
    comparison, bad = compared(judge, place, both)
    if not bad.spoil_baseline and not missed(comparison):
        return Preflight(engine, tested, fp32, steady, doubtful=near)
    every = lock_step({Role.FP32: fp32(), Role.BASELINE: engine}, inputs)
    comparison, bad = compared(judge, place, (found for _, found in every))
    lost = missed(comparison)
    with case.at("baseline"):
        refuse_overflow(lost, bad, judge, model, form, inputs, sessions)
    return Preflight(engine, tested, fp32, steady, doubtful=True, settled=True)


def _first(inputs: Dataset, *, whole: bool) -> Dataset:
    """The first samples; with ``whole`` a full batch, because the engine or model takes no other size."""
    if whole:
        return inputs.first(next(inputs.batches()).rows)
    return inputs.first(max(1, int(_SHARE * (inputs.samples or _SUPPOSED))))


def _opened(
    backend: Backend,
    model: Model,
    form: Form,
    candidate: Form | None,
    inputs: Dataset,
    watch: Preactivations,
) -> tuple[Engine, Engine | None]:
    """The engines of the baseline and of the candidate, built in parallel if possible."""
    with blaming(form.place):
        check_interface(form.model, model)
        backend.check(form)
    if candidate is not None:
        with blaming(candidate.place):
            backend.begin(candidate, Role.INT8, inputs)
    with blaming(form.place):
        engine = watch.open_form(backend, form, Role.BASELINE, inputs)
    if candidate is None:
        return engine, None
    with blaming(candidate.place):
        return engine, watch.open_form(backend, candidate, Role.INT8, inputs)


def preflight_of_golden(
    case: Case,
    backend: Backend,
    model: Model,
    sessions: Sessions,
    truth: FileTruth,
    watch: Preactivations,
) -> Preflight:
    """Prepare a case whose baseline is a golden, a file of stored outputs.

    Only FP32 is opened. It runs on all samples later.

    Raises:
        ModelError: The float model computes something else than the user's model file.
    """
    try:
        engine = watch.open(Role.FP32, model, sessions.exact)
    except EngineError as error:  # TensorRT runs plugins that ONNX Runtime does not know
        if not backend.needs_simulation:
            raise
        return Preflight(notes=(f"no FP32 reference and no simulation: {error}",))
    with case.at("model"):
        truth.check(model)
    return Preflight(fp32=lambda: engine, doubtful=True)


def _steady(judge: Judge, twice: Sequence[Mapping[Role, Feed]]) -> Comparison | None:
    """Compares two runs of the baseline, whose outputs ``twice`` has; None if they differ in any bit.

    Metrics of labels are not computed.
    """
    comparison = Comparison(judge, metrics=False)
    for found in twice:
        one, again = found[Role.BASELINE], found[Role.BASELINE_AGAIN]
        if any(a.shape != again[n].shape or a.tobytes() != again[n].tobytes() for n, a in one.items()):
            return None
        comparison.add(one, again, 0)
    return comparison


def _fp32_run(model: Model, few: Dataset, sessions: Sessions) -> tuple[list[Feed], float]:
    """The outputs of FP32 on the samples ``few``, and the greatest magnitude of its tensors, nan if unknown.

    Raises EngineError if ONNX Runtime cannot run the model.
    """
    outputs, peaks, makers = list[Feed](), [0.0], model.everywhere.producer
    made = [name for name in made_floats(model) if not _stays_within(makers[name])]
    if not made:  # for example a model that computes in FP16
        return _plain_run(model, few, sessions)
    try:
        engine = sessions.exact(_watched(with_inner_tensors(model, made), made), optimized=False)
        for batch in few.batches():
            found = engine(batch.feed)
            peaks += [abs(float(found.pop(name).item())) for name in _PEAKS]
            outputs.append({name: cut(array, batch, name) for name, array in found.items()})
    except EngineError:  # a tensor without elements has no greatest value
        return _plain_run(model, few, sessions)
    return outputs, float(np.max(peaks))


def _plain_run(model: Model, few: Dataset, sessions: Sessions) -> tuple[list[Feed], float]:
    """The outputs of FP32 on the samples ``few``, and nan: the greatest magnitude of tensors is unknown."""
    plain = lock_step({Role.FP32: sessions.exact(model)}, few)
    return [feeds[Role.FP32] for _, feeds in plain], math.nan


def _watched(model: Model, made: Sequence[str]) -> Model:
    """The model with two more outputs: the greatest and the least value of all tensors in ``made``."""
    editor = model.edit()
    for name, (reduce, join) in _PEAKS.items():
        each = [editor.unique(f"{tensor}/{name}") for tensor in made]
        for tensor, peak in zip(made, each, strict=True):
            editor.graph.node.append(helper.make_node(reduce, [tensor], [peak], keepdims=0))
        editor.graph.node.append(helper.make_node(join, each, [name]))
        editor.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, []))
    return editor.done()


def _stays_within(node: onnx.NodeProto) -> bool:
    """Whether the results of ``node`` are at most as great in magnitude as its inputs, or as 1."""
    return moves_values(node) or node.op_type in _WITHIN


#: Maximum number of overflowing tensors that an error message names.
_MAX_NAMED = 3
#: Maximum number of tensors that are rounded to FP16 one by one, to find those whose overflow makes the case
#: miss a limit.
_TRIED = 16


def compared(
    judge: Judge, place: str, batches: Iterable[Mapping[Role, Feed]]
) -> tuple[Comparison, BadOutputs]:
    """Compare the baseline with FP32 by the limits on outputs, without metrics of labels.

    Args:
        judge: Applies the criteria.
        place: The place of the criteria in the spec, as ``file:line:col``.
        batches: The outputs of FP32 and of the baseline, batch by batch.

    Returns:
        The comparison, and the outputs that are not finite or nothing but zeros. Reading the scores of an
        output that is not finite may raise an error.
    """
    comparison, bad = Comparison(judge, judged_only=True, metrics=False), BadOutputs()
    for found in batches:
        with blaming(place):
            comparison.add(found[Role.FP32], found[Role.BASELINE], 0)
        for role in (Role.FP32, Role.BASELINE):
            bad.look(role, found[role])
    return comparison, bad


def missed(comparison: Comparison) -> list[Score]:
    """The scores of a comparison that miss their limits.

    Raises:
        BaselineNotFiniteError: Too many values of the first model in the comparison are not finite.
    """
    return [score for output in comparison.results() for score in output.scores if not score.passed]


def refuse_overflow(
    lost: Sequence[Score],
    bad: BadOutputs,
    judge: Judge,
    model: Model,
    baseline: Form,
    inputs: Dataset,
    sessions: Sessions,
) -> None:
    """Raise ModelError if FP16 overflows or underflows in the baseline. The message names the tensors.

    An inf inside the model need not show in the outputs. A division by inf, for example, gives 0, in the
    baseline and in INT8 alike.

    Args:
        lost: The scores that miss their limits when the baseline is compared with FP32.
        bad: The outputs of FP32 and of the baseline that are not finite or nothing but zeros.
        judge: Applies the criteria.
        model: The float model.
        baseline: The baseline, with its description.
        inputs: All samples.
        sessions: Opens models in ONNX Runtime.
    """
    broken, gone = list[str](), list[str]()
    if bad.has_run(Role.FP32):
        broken = sorted(bad.broken[Role.BASELINE] - bad.broken[Role.FP32])
        gone = sorted(bad.zero(Role.BASELINE) - bad.zero(Role.FP32))
    if not baseline.half or not (broken or lost or gone):
        return
    known = baseline.overflows if isinstance(baseline, ModelForm) else ()
    beyond = _overflowing(model, inputs, sessions)
    harmful = _harmful(model, list(beyond), judge, inputs, sessions)
    where = [*known, *(beyond[tensor] for tensor in harmful or beyond)]
    if broken or where or gone:
        if broken:
            worst = f"output '{broken[0]}' is not finite"
        elif gone:
            worst = f"output '{gone[0]}' is 0 in all samples, and not in FP32"
        else:
            score = f"{lost[0].metric} {lost[0].value:.4g}, limit {lost[0].limit:g}"
            count = "" if inputs.samples is None else f" on {inputs.samples} samples"
            worst = f"'{lost[0].subject}' misses its limit against FP32{count} ({score})"
        how, remedy = "an overflow", f"so that its numbers stay below {FP16.highest:g}"
        if not where:
            where = [*_vanishing(model), *_broken(baseline.model, inputs, sessions)]
            how, remedy = "numbers too small for FP16", "so that its constants stay above 6e-8"
        raise ModelError(
            f"{model.name}: in FP16 {worst}, by {how} inside the model; quantization is not the problem.\n"
            + "".join(f"  {sentence}\n" for sentence in where[:_MAX_NAMED])
            + "Not tried yet: write 'candidate: fp16' in place of 'int8:'. The next run finds the layers "
            "that must stay in FP32, at the price of FP32 there, and tries that fix.\n"
            f"Two other ways, not tried either: change the model {remedy}; or write 'baseline: fp32' to "
            "compare quantization alone, though an FP16 engine would still fail."
        )


def _overflowing(model: Model, inputs: Dataset, sessions: Sessions) -> dict[str, str]:
    """Maps each tensor with FP32 values beyond the FP16 range to a description, in topological order."""
    tensors, makers, found = made_floats(model), model.everywhere.producer, dict[str, str]()
    maxima = Observer(model, inputs, sessions).maxima(tensors)
    for tensor in tensors:
        if FP16.highest < maxima[tensor].amax < np.inf:
            node = makers[tensor]
            reached = f"reaches {maxima[tensor].amax:.4g}, FP16 ends at {FP16.highest:g}"
            found[tensor] = f"'{tensor}' of {node.op_type} '{node.name}' {reached}"
    return found


def _harmful(
    model: Model, tensors: Sequence[str], judge: Judge, inputs: Dataset, sessions: Sessions
) -> list[str]:
    """The ``tensors`` whose rounding to FP16 alone makes the case miss a limit.

    Other overflows do no harm, for example before a Tanh or a Clip. At most ``_TRIED`` tensors are tried, and
    at most ``_MAX_NAMED`` are returned.
    """
    plain, found = sessions.exact(model), list[str]()
    for tensor in tensors[:_TRIED]:
        engines = {Role.FP32: plain, Role.BASELINE: sessions.exact(_halved(model, tensor), optimized=False)}
        comparison, bad = compared(judge, "", (outputs for _, outputs in lock_step(engines, inputs)))
        if bad.spoil_baseline or missed(comparison):
            found.append(tensor)
        if len(found) == _MAX_NAMED:
            break
    return found


def _halved(model: Model, tensor: str) -> Model:
    """The model with one tensor rounded to FP16, for all nodes that read it and for the model's output."""
    editor = model.edit()
    wide, half, back = (editor.unique(f"{tensor}/{name}") for name in ("wide", "half", "back"))

    def rounded(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        yield node
        if tensor in node.output:
            node.output[list(node.output).index(tensor)] = wide
            yield onnx.helper.make_node("Cast", [wide], [half], half, to=onnx.TensorProto.FLOAT16)
            yield onnx.helper.make_node("Cast", [half], [tensor], back, to=onnx.TensorProto.FLOAT)

    editor.rewrite(rounded)
    return editor.done()


def made_floats(model: Model) -> list[str]:
    """The names of the FP32 tensors that nodes compute, in topological order, without scalars."""
    floats = {name for name, info in model.values().items() if info.dtype == np.float32 and info.shape}
    return [name for name in model.everywhere.producer if name in floats]


def _vanishing(model: Model) -> Iterator[str]:
    """Yields a description of each constant that becomes 0 in FP16, such as an epsilon."""
    for name, array in model.constants().items():
        readers = model.everywhere.readers(name)
        if array.dtype == np.float32 and readers and array.any() and not FP16.round(array).any():
            node, _ = readers[-1]
            amax = float(np.abs(array).max())
            yield f"'{name}' of {node.op_type} '{node.name}' is {amax:.4g}, which is 0 in FP16"


def _broken(half: Model, inputs: Dataset, sessions: Sessions) -> Iterator[str]:
    """Yields a description of each node that computes inf or NaN from finite numbers, for a model in FP16."""
    floats = {n for n, info in half.values().items() if info.dtype in (np.float16, np.float32) and info.shape}
    nodes = half.everywhere.nodes.values()
    made = [name for node in nodes for name in node.output if name in floats]
    if not made:
        return
    maxima = Observer(half, inputs, sessions).maxima(made)
    lost = {name for name in made if not np.isfinite(maxima[name].amax)}
    for node in nodes:
        bad = lost.intersection(node.output)
        inside = (name for body in subgraphs(node) for inner in all_nodes(body) for name in inner.output)
        if not lost.isdisjoint(inside):
            continue  # the node in the body is named in place of this node
        if bad and not lost.intersection(node.input):
            yield f"{node.op_type} '{node.name}' makes inf or NaN of finite numbers in FP16"
