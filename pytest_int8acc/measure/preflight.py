"""What can be told of a case before it is calibrated: its first samples run in FP32 and by the baseline.

They say whether the baseline repeats itself, and whether FP16 may be at fault: a limit that it misses against
FP32, an output that is not finite or nothing but zeros, a tensor that comes near the end of FP16. Where they
leave no doubt, FP32 is not run on the other samples, unless INT8 fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper

from pytest_int8acc.backends.protocol import Backend
from pytest_int8acc.case.forms import Form
from pytest_int8acc.case.judge import Judge
from pytest_int8acc.data import Dataset
from pytest_int8acc.engines import Engine
from pytest_int8acc.engines.onnxruntime import Sessions
from pytest_int8acc.engines.run import cut, run_together
from pytest_int8acc.errors import EngineError
from pytest_int8acc.graph.formats import FP16
from pytest_int8acc.graph.groups import moves_values
from pytest_int8acc.graph.model import Model
from pytest_int8acc.measure.caveats import lost_by_baseline, made_floats, refuse_overflow
from pytest_int8acc.measure.runs import Sides, check_interface
from pytest_int8acc.results import Role, Score
from pytest_int8acc.tensors import Array, Outputs

#: The outputs that tell the ends of all values; what finds them in one tensor, and among tensors.
_PEAKS = {"int8acc/max": ("ReduceMax", "Max"), "int8acc/min": ("ReduceMin", "Min")}
#: Operators whose results exceed neither 1 nor their inputs, beside those that move values.
_WITHIN = frozenset({"Relu", "Clip", "Softmax", "Sigmoid", "Tanh", "Erf", "Concat", "GlobalAveragePool"})
#: Other samples are not expected to reach this many times what the first ones reach.
_HEADROOM = 64
#: The share of the samples that is looked at first.
_SHARE = 1 / 16
#: As many samples are supposed of data that must be read to be counted.
_SUPPOSED = 64


@dataclass(frozen=True, eq=False)
class Preflight:
    """What the first samples say, and the engines that they were run on."""

    baseline: Engine | None = None
    """None where the baseline was kept and is not run."""
    fp32: Callable[[], Engine] | None = None
    """Opens the float model; None where the baseline is that, or where ONNX Runtime cannot run it."""
    steady: bool = False
    """Whether two runs of the baseline give the same numbers, bit for bit."""
    doubtful: bool = False
    """Whether FP32 is wanted on all samples whatever INT8 gives."""
    reference: Outputs | None = None
    """FP32 on all samples, where it was run on them already."""
    lost: tuple[Score, ...] = ()
    """The limits that the baseline misses in ``reference``."""
    notes: tuple[str, ...] = ()


def preflight(
    backend: Backend, model: Model, form: Form, inputs: Dataset, judge: Judge, sessions: Sessions
) -> Preflight:
    """Open the baseline and FP32, and run the first samples.

    Args:
        backend: Where the baseline runs.
        model: The float model.
        form: The baseline's.
        inputs: All samples.
        judge: The case's criteria.
        sessions: Where FP32 runs.

    Raises:
        EngineError: The baseline does not build or run.
        ModelError: The baseline takes other inputs, or gives other outputs, than the model; or FP16 overflows
            in it, and a limit or an output is lost by that.
    """
    check_interface(form.model, model)
    backend.check(form)
    engine = backend.open(form, Role.BASELINE, inputs)
    few = inputs.first(max(1, int(_SHARE * (inputs.samples or _SUPPOSED))))
    found = run_together({Role.BASELINE: engine, Role.BASELINE_AGAIN: engine}, few)
    baseline, steady = found[Role.BASELINE], same(found[Role.BASELINE], found[Role.BASELINE_AGAIN])
    if form.model is model and not backend.needs_simulation:
        return Preflight(engine, steady=steady)
    try:
        reference, peak = _watched_run(model, few, sessions)
    except EngineError as error:
        if not backend.needs_simulation:
            raise
        return Preflight(engine, steady=steady, notes=(f"no FP32 reference and no simulation: {error}",))
    fp32, near = partial(sessions.exact, model), form.half and not peak < FP16.highest / _HEADROOM
    if not spoilt(baseline) and not lost_by_baseline(judge, Sides(reference, baseline)):
        return Preflight(engine, fp32, steady, doubtful=near)
    found = run_together({Role.FP32: fp32(), Role.BASELINE: engine}, inputs)
    sides = Sides(found[Role.FP32], found[Role.BASELINE])
    lost = lost_by_baseline(judge, sides)
    refuse_overflow(lost, sides, model, form, inputs, sessions)
    return Preflight(engine, fp32, steady, reference=sides.reference, lost=tuple(lost))


def beside_golden(backend: Backend, model: Model, sessions: Sessions) -> Preflight:
    """What there is to know where a golden stands in for the baseline: FP32 runs on all samples."""
    try:
        engine = sessions.exact(model)
    except EngineError as error:  # TensorRT runs plugins that ONNX Runtime does not know
        if not backend.needs_simulation:
            raise
        return Preflight(notes=(f"no FP32 reference and no simulation: {error}",))
    return Preflight(fp32=lambda: engine, doubtful=True)


def _watched_run(model: Model, few: Dataset, sessions: Sessions) -> tuple[Outputs, float]:
    """Outputs of FP32, and the greatest magnitude inside the model; nan where that is not known.

    Raises EngineError where ONNX Runtime cannot run the model.
    """
    found: dict[str, list[Array]] = {output.name: [] for output in model.outputs}
    peaks = [0.0]
    try:
        engine = sessions.exact(_watched(model), optimized=False)
        for batch in few.batches():
            outputs = engine(batch.feed)
            peaks += [abs(float(outputs[name].item())) for name in _PEAKS]
            for name, arrays in found.items():
                arrays.append(cut(outputs[name], batch, name))
    except EngineError:  # of a tensor without elements there is no greatest
        return run_together({Role.FP32: sessions.exact(model)}, few)[Role.FP32], math.nan
    return found, float(np.max(peaks))


def _watched(model: Model) -> Model:
    """The model with two outputs more: the greatest and the least of all float values that nodes compute."""
    editor, makers = model.edit(), model.index.producer
    made = [name for name in made_floats(model) if not _stays_within(makers[name])]
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


def spoilt(outputs: Outputs) -> bool:
    """Whether an output holds NaN or inf, or nothing but zeros."""
    return any(
        not all(a.dtype.kind != "f" or bool(np.isfinite(a).all()) for a in arrays)
        or not any(a.dtype.kind not in "fiub" or bool(a.any()) for a in arrays)
        for arrays in outputs.values()
    )


def same(one: Outputs, other: Outputs) -> bool:
    """Whether two runs gave the same numbers, bit for bit."""
    pairs = ((a, b) for name, arrays in one.items() for a, b in zip(arrays, other[name], strict=True))
    return all(a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs)
