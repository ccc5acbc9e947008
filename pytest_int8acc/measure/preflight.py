"""What is at fault before INT8 is: the Q/DQ, the scales, the data, a model that FP16 cannot compute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pytest_int8acc.case.data import calibration_data
from pytest_int8acc.case.forms import Int8Form, ModelForm
from pytest_int8acc.case.judge import Judge
from pytest_int8acc.data import Dataset
from pytest_int8acc.data.slips import compare_inputs, sample_arrays
from pytest_int8acc.engines.calibrators import collect_maxima
from pytest_int8acc.engines.onnxruntime import Sessions
from pytest_int8acc.errors import ModelError
from pytest_int8acc.graph.formats import FP16
from pytest_int8acc.graph.lint import lint, lint_scales
from pytest_int8acc.graph.load import read_model
from pytest_int8acc.graph.model import Model
from pytest_int8acc.measure.runs import Forms, Runs
from pytest_int8acc.results import Finding, Score
from pytest_int8acc.scores.compare import compare_outputs
from pytest_int8acc.settings import Lint
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Array


def lint_model(case: Case, model: Model, wanted: Lint) -> tuple[Finding, ...]:
    """What lint says of the case's own Q/DQ model, read as it is in the file; nothing where it has none.

    Raises ModelError where ``wanted`` is error, and TensorRT rejects it; or the file cannot be read.
    """
    if wanted == "off" or case.int8.model is None:
        return ()
    found = lint(read_model(case.path(case.int8.model)), float_model=model)
    return _judged(case.int8.model, found, wanted)


def lint_network(case: Case, int8: Int8Form | None, wanted: Lint) -> tuple[Finding, ...]:
    """What lint says of scales from a file; a network read from a Q/DQ model has been linted as that.

    Raises ModelError where ``wanted`` is error, and there is an error among them.
    """
    if wanted == "off" or int8 is None or case.int8.model is not None:
        return ()
    return _judged(case.model, lint_scales(int8.network), wanted)


def compare_data(case: Case, model: Model, inputs: Dataset) -> tuple[Finding, ...]:
    """How the calibration samples differ from the inputs that are compared; nothing where they are one."""
    samples = calibration_data(case, model)
    if samples is None:
        return ()
    return compare_inputs(sample_arrays(samples, model.inputs), sample_arrays(inputs, model.inputs))


def _judged(name: str, found: tuple[Finding, ...], wanted: Lint) -> tuple[Finding, ...]:
    errors = list(_lines(found))
    if wanted == "error" and errors:
        raise ModelError(
            f"{name}: TensorRT rejects this Q/DQ, and lint is set to error:\n" + "\n".join(errors)
        )
    return found


def _lines(found: tuple[Finding, ...]) -> Iterator[str]:
    for finding in found:
        if finding.severity == "error":
            yield f"  {finding.rule}: {finding.subject}: {finding.text}; {finding.remedy}"


def lost_by_baseline(judge: Judge, runs: Runs) -> list[Score]:
    """Limits of the case that the baseline itself misses against FP32."""
    given = bool(judge.metrics)
    outputs = compare_outputs(runs.reference, runs.baseline, judge.limits, metrics_given=given)
    return [score for output in outputs for score in output.scores if not score.passed]


def refuse_overflow(
    lost: Sequence[Score], runs: Runs, forms: Forms, inputs: Dataset, sessions: Sessions
) -> None:
    """Raise ModelError, naming the tensors at fault, where FP16 gives inf inside the model and is lost by it.

    An inf need not reach an output: one that is divided by gives 0, in the baseline and in INT8 alike.
    """
    bad = [
        name
        for name, arrays in runs.baseline.items()
        if not _finite(arrays) and _finite(runs.reference[name])
    ]
    model, baseline = forms.model, forms.baseline
    if not baseline.half or not (bad or lost):
        return
    known = baseline.overflows if isinstance(baseline, ModelForm) else ()
    where = [*known, *_overflowing(model, inputs, sessions)]
    if bad or where:
        worst = f"output '{bad[0]}' is not finite" if bad else f"{lost[0].subject} {lost[0].metric} is lost"
        how, remedy = "an overflow", f"keep these values below {FP16.highest:g} in the model"
        if not where:
            where = [*_vanishing(model), *_broken(baseline.model, inputs, sessions)]
            how, remedy = "numbers too small for FP16", "keep them above 6e-8 in the model"
        raise ModelError(
            f"{model.name}: in FP16 {worst}, by {how} inside the model; INT8 is not the problem. "
            + "".join(f"{sentence}. " for sentence in ["; ".join(where[:3])] if sentence)
            + f"Compare with 'baseline: fp32', or {remedy}."
        )


def _finite(arrays: Sequence[Array]) -> bool:
    return all(a.dtype.kind != "f" or bool(np.isfinite(a).all()) for a in arrays)


def _overflowing(model: Model, inputs: Dataset, sessions: Sessions) -> Iterator[str]:
    """Tensors whose FP32 values exceed what FP16 holds, in topological order."""
    floats = [name for name, info in model.values().items() if info.dtype == np.float32 and info.shape]
    makers = model.index.producer
    tensors = [name for name in makers if name in set(floats)]
    maxima = collect_maxima(model, tensors, inputs, sessions)
    for tensor in tensors:
        if FP16.highest < maxima.amax(tensor) < np.inf:
            node = makers[tensor]
            reached = f"reaches {maxima.amax(tensor):.4g}, FP16 ends at {FP16.highest:g}"
            yield f"'{tensor}' of {node.op_type} '{node.name}' {reached}"


def _vanishing(model: Model) -> Iterator[str]:
    """Constants that are 0 in FP16, such as an epsilon."""
    for name, array in model.constants().items():
        readers = model.index.readers(name)
        if array.dtype == np.float32 and readers and array.any() and not FP16.round(array).any():
            node, _ = readers[-1]
            amax = float(np.abs(array).max())
            yield f"'{name}' of {node.op_type} '{node.name}' is {amax:.4g}, which is 0 in FP16"


def _broken(half: Model, inputs: Dataset, sessions: Sessions) -> Iterator[str]:
    """Nodes of a model in FP16 that make inf or NaN of finite numbers, in topological order."""
    floats = {n for n, info in half.values().items() if info.dtype in (np.float16, np.float32) and info.shape}
    made = [name for node in half.graph.node for name in node.output if name in floats]
    if not made:
        return
    maxima = collect_maxima(half, made, inputs, sessions)
    lost = {name for name in made if not np.isfinite(maxima.amax(name))}
    for node in half.graph.node:
        bad = lost.intersection(node.output)
        if bad and not lost.intersection(node.input):
            yield f"{node.op_type} '{node.name}' makes inf or NaN of finite numbers in FP16"
