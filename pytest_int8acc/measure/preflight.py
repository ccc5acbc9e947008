"""What can be told of a case before it is calibrated: its first samples run in FP32 and by the baseline.

They say whether the baseline repeats itself, and whether FP16 may be at fault: a limit that it misses against
FP32, an output that is not finite or nothing but zeros, a tensor that comes near the end of FP16. Where they
leave no doubt, FP32 is not run on the other samples, unless INT8 fails.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_int8acc.backends.protocol import Backend
from pytest_int8acc.case.forms import Form
from pytest_int8acc.case.judge import Judge
from pytest_int8acc.data import Dataset
from pytest_int8acc.engines import Engine
from pytest_int8acc.engines.onnxruntime import Sessions
from pytest_int8acc.engines.run import run_together
from pytest_int8acc.errors import EngineError
from pytest_int8acc.graph.model import Model
from pytest_int8acc.measure.caveats import lost_by_baseline, near_overflow, refuse_overflow
from pytest_int8acc.measure.runs import Sides, check_interface
from pytest_int8acc.results import Role, Score
from pytest_int8acc.tensors import Outputs

#: The share of the samples that is looked at first.
_SHARE = 1 / 16
#: As many samples are supposed of data that must be read to be counted.
_SUPPOSED = 64


@dataclass(frozen=True, eq=False)
class Preflight:
    """What the first samples say, and the engines that they were run on."""

    baseline: Engine | None = None
    """None where the baseline was kept and is not run."""
    fp32: Engine | None = None
    """The float model; None where the baseline is that, or where ONNX Runtime cannot run it."""
    steady: bool = False
    """Whether two runs of the baseline give the same numbers, bit for bit."""
    doubtful: bool = True
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
    fp32, notes = _open_fp32(backend, model, form, sessions)
    few = inputs.first(max(1, int(_SHARE * (inputs.samples or _SUPPOSED))))
    engines = {Role.BASELINE: engine, Role.BASELINE_AGAIN: engine} | ({Role.FP32: fp32} if fp32 else {})
    found = run_together(engines, few)
    steady = same(found[Role.BASELINE], found[Role.BASELINE_AGAIN])
    if fp32 is None:
        return Preflight(engine, None, steady, doubtful=False, notes=notes)
    sides = Sides(found[Role.FP32], found[Role.BASELINE])
    if not spoilt(sides.baseline) and not lost_by_baseline(judge, sides):
        doubtful = form.half and near_overflow(model, few, sessions)
        return Preflight(engine, fp32, steady, doubtful=doubtful, notes=notes)
    found = run_together({Role.FP32: fp32, Role.BASELINE: engine}, inputs)
    sides = Sides(found[Role.FP32], found[Role.BASELINE])
    lost = lost_by_baseline(judge, sides)
    refuse_overflow(lost, sides, model, form, inputs, sessions)
    return Preflight(
        engine, fp32, steady, doubtful=False, reference=sides.reference, lost=tuple(lost), notes=notes
    )


def beside_golden(backend: Backend, model: Model, sessions: Sessions) -> Preflight:
    """What there is to know where a golden stands in for the baseline: FP32 runs on all samples."""
    fp32, notes = _open_fp32(backend, model, None, sessions)
    return Preflight(fp32=fp32, notes=notes)


def _open_fp32(
    backend: Backend, model: Model, form: Form | None, sessions: Sessions
) -> tuple[Engine | None, tuple[str, ...]]:
    """The float model in ONNX Runtime; None where the baseline is that, or with a note where it cannot run.

    ``form`` is the baseline's, None where it is not run. Raises EngineError where the float model does not
    open, and nothing but ONNX Runtime runs the case.
    """
    if not backend.needs_simulation:
        return (None if form is not None and form.model is model else sessions.exact(model)), ()
    try:  # TensorRT runs plugins that ONNX Runtime does not know
        return sessions.exact(model), ()
    except EngineError as error:
        return None, (f"no FP32 reference and no simulation: {error}",)


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
