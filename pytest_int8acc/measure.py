"""A case measured: its forms built, run on the same inputs in lock-step, and scored.

    float model ── halve ──────────────→ baseline ──┐
         └── groups + scales ── Q/DQ ──→ candidate ─┴─ same inputs → outputs → scores

FP32 runs beside them, to tell 'INT8 is off' from 'FP16 is off already', and the baseline runs twice,
to know the noise below which no limit means anything.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_int8acc.data import Dataset, load_labels
from pytest_int8acc.data.scripts import UserFunction, load_function
from pytest_int8acc.engines import Engine
from pytest_int8acc.engines.calibrators import collect_maxima
from pytest_int8acc.engines.onnxruntime import OrtEngine, saturation
from pytest_int8acc.engines.run import run_together
from pytest_int8acc.errors import CriterionError, ModelError
from pytest_int8acc.forms import Form, Int8Form, baseline_form, int8_form, load_float, open_source
from pytest_int8acc.graph.model import Model
from pytest_int8acc.results import CaseResult, OutputResult, Score
from pytest_int8acc.scores.compare import compare_outputs
from pytest_int8acc.scores.criteria import MetricLimit, OutputLimits
from pytest_int8acc.scores.user_metric import evaluate_metric
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.models import Case, MetricCriterion, OutputCriterion
from pytest_int8acc.tensors import Array, Outputs, describe

logger = logging.getLogger("pytest_int8acc")
#: The greatest finite FP16 number.
FP16_MAX = 65504.0


@dataclass(frozen=True, eq=False)
class Measured:
    """A case measured, with what a search needs to go on from there."""

    case: Case
    settings: Settings
    result: CaseResult
    model: Model
    inputs: Dataset
    int8: Int8Form
    judge: Judge
    baseline: Outputs
    again: Outputs
    """The baseline's second run."""


def measure(case: Case, settings: Settings) -> Measured:
    """Run one case and score it.

    Args:
        case: From ``load_spec``.
        settings: What command line, spec and configuration say together.

    Raises:
        Int8accError: There is no verdict: a model, the data, a scale file or a criterion is at fault.
    """
    started = time.perf_counter()
    model = load_float(case)
    inputs = open_source(case, case.inputs, model, "inputs", settings.samples)
    baseline = baseline_form(case, model)
    int8 = int8_form(case, model, settings.provider)
    candidate = int8.under()
    runs = _run(case, settings, inputs, model, baseline, candidate)
    judge = _judge(case, settings, inputs.samples or 0)
    lost = _lost_by_baseline(judge, runs)
    _refuse_overflow(lost, runs, baseline, model, inputs, settings)
    outputs, metrics = judge(runs.baseline, runs.candidate, runs.again)
    result = CaseResult(
        name=case.name,
        spec=str(case.file),
        samples=inputs.samples or 0,
        data=inputs.description,
        baseline=baseline.description,
        candidate=candidate.description,
        backend=runs.backend,
        outputs=outputs,
        metrics=metrics,
        int8_groups=len(int8.network.groups),
        high_groups=len(int8.network.left_high),
        warnings=(*_nothing_compared(runs), *_warnings(settings, int8, baseline, outputs, metrics, lost)),
        notes=tuple(dict.fromkeys((*candidate.notes, *baseline.notes, *inputs.notes))),
        seconds=time.perf_counter() - started,
    )
    return Measured(case, settings, result, model, inputs, int8, judge, runs.baseline, runs.again)


@dataclass(frozen=True, eq=False)
class _Runs:
    """Outputs of all forms on the same inputs."""

    reference: Outputs
    """FP32; the baseline's own where that is FP32."""
    baseline: Outputs
    again: Outputs
    """The baseline's second run."""
    candidate: Outputs
    backend: str


def _run(
    case: Case, settings: Settings, inputs: Dataset, model: Model, baseline: Form, candidate: Form
) -> _Runs:
    """Build an engine for each form and run all of them over the inputs, batch by batch."""
    logger.info("%s: building engines", case.name)
    engines: dict[str, Engine] = {}
    for name, form_model in (("baseline", baseline.model), ("INT8", candidate.model)):
        _check_interface(form_model, model)
        engines[name] = OrtEngine(form_model, settings.mode, settings.provider)
    engines["baseline again"] = engines["baseline"]
    if baseline.model is not model:
        engines["FP32"] = OrtEngine(model, settings.mode, settings.provider)
    found = run_together(engines, inputs)
    reference = found.get("FP32", found["baseline"])
    description = engines["INT8"].description
    return _Runs(reference, found["baseline"], found["baseline again"], found["INT8"], description)


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


def _lost_by_baseline(judge: Judge, runs: _Runs) -> list[Score]:
    """Limits of the case that the baseline itself misses against FP32."""
    given = bool(judge.metrics)
    outputs = compare_outputs(runs.reference, runs.baseline, judge.limits, metrics_given=given)
    return [score for output in outputs for score in output.scores if not score.passed]


def _refuse_overflow(
    lost: Sequence[Score], runs: _Runs, baseline: Form, model: Model, inputs: Dataset, settings: Settings
) -> None:
    """Raise ModelError, naming the tensors at fault, where FP16 gives inf inside the model and is lost by it.

    An inf need not reach an output: one that is divided by gives 0, in the baseline and in INT8 alike.
    """
    bad = [
        name
        for name, arrays in runs.baseline.items()
        if not _finite(arrays) and _finite(runs.reference[name])
    ]
    in_half = any(info.dtype == np.float16 for info in baseline.model.values().values())
    if not in_half or not (bad or lost):
        return
    where = [*baseline.overflows, *_overflowing(model, inputs, settings)]
    if bad or where:
        worst = f"output '{bad[0]}' is not finite" if bad else f"{lost[0].subject} {lost[0].metric} is lost"
        raise ModelError(
            f"{model.name}: in FP16 {worst}, by an overflow inside the model; INT8 is not the problem. "
            + "; ".join(where[:3])
            + ". Compare with 'baseline: fp32', or keep these values below 65504 in the model."
        )


def _finite(arrays: Sequence[Array]) -> bool:
    return all(a.dtype.kind != "f" or bool(np.isfinite(a).all()) for a in arrays)


def _overflowing(model: Model, inputs: Dataset, settings: Settings) -> Iterator[str]:
    """Tensors whose FP32 values exceed what FP16 holds, in topological order."""
    floats = [name for name, info in model.values().items() if info.dtype == np.float32 and info.shape]
    makers = {output: node for node in model.graph.node for output in node.output}
    tensors = [name for name in makers if name in set(floats)]
    maxima = collect_maxima(model, tensors, inputs, settings.provider)
    for tensor in tensors:
        if FP16_MAX < maxima.amax(tensor) < np.inf:
            node = makers[tensor]
            amax = maxima.amax(tensor)
            yield f"'{tensor}' of {node.op_type} '{node.name}' reaches {amax:.4g}, FP16 ends at 65504"


@dataclass(frozen=True, eq=False)
class Judge:
    """A case's criteria, ready to be applied to outputs."""

    limits: tuple[OutputLimits, ...]
    metrics: tuple[tuple[MetricLimit, UserFunction], ...]
    labels: Array | dict[str, Array] | None

    def __call__(
        self, baseline: Outputs, candidate: Outputs, again: Outputs | None = None
    ) -> tuple[tuple[OutputResult, ...], tuple[Score, ...]]:
        """All outputs and all metrics, judged before anything fails; ``again`` gives the noise."""
        outputs = compare_outputs(
            baseline, candidate, self.limits, noise=again, metrics_given=bool(self.metrics)
        )
        metrics: list[Score] = []
        for limit, function in self.metrics:
            metrics += evaluate_metric(limit, function, baseline, candidate, self.labels, noise=again)
        return outputs, tuple(metrics)


def _judge(case: Case, settings: Settings, samples: int) -> Judge:
    """The case's criteria with users' functions and labels loaded."""
    limits = tuple(_output_limits(c) for c in case.criteria if isinstance(c, OutputCriterion))
    wanted = [_metric_limit(c) for c in case.criteria if isinstance(c, MetricCriterion)]
    metrics = tuple((limit, load_function(limit.ref, case.path(""), CriterionError)) for limit in wanted)
    labels = None
    if case.labels is not None:
        limited = settings.samples is not None
        labels = load_labels(case.labels, samples, case.path(""), limited=limited)
    return Judge(limits, metrics, labels)


def _output_limits(criterion: OutputCriterion) -> OutputLimits:
    given = {name: value for name in criterion.limits() if (value := getattr(criterion, name)) is not None}
    return OutputLimits(criterion.output, criterion.axis, given, criterion.rel_floor)


def _metric_limit(criterion: MetricCriterion) -> MetricLimit:
    drop = criterion.drop
    return MetricLimit(
        criterion.metric,
        min=criterion.min,
        max=criterion.max,
        max_drop=drop.amount if drop and not drop.relative else None,
        max_drop_relative=drop.amount if drop and drop.relative else None,
        lower_is_better=criterion.lower_is_better,
    )


def _nothing_compared(runs: _Runs) -> Iterator[str]:
    """Outputs that are zero throughout: any model that gives zeros passes."""
    for name, arrays in runs.baseline.items():
        if not any(array.any() for array in arrays if array.dtype.kind in "fiub"):
            yield f"output '{name}' is 0 in all samples: nothing is compared"


def _warnings(
    settings: Settings,
    int8: Int8Form,
    baseline: Form,
    outputs: Sequence[OutputResult],
    metrics: Sequence[Score],
    lost: Sequence[Score],
) -> Iterator[str]:
    """What makes the verdict worth less than it looks, weightiest first."""
    scores = {(s.subject, s.metric): s for output in outputs for s in output.scores}
    for score in lost:
        int8_score = scores[score.subject, score.metric]
        worse = score.value < int8_score.value if score.bound == "min" else score.value > int8_score.value
        yield (
            f"{baseline.description} is off already: {score.subject} {score.metric} {score.value:.6g} "
            f"against FP32, limit {score.limit:g}" + (": INT8 is not the problem" if worse else "")
        )
    for score in metrics:
        own = replace(score, value=math.nan if score.baseline is None else score.baseline)
        if score.baseline is not None and not own.passed:
            yield f"the baseline itself misses {score.subject}: {own.value:.6g}, limit {score.limit:g}"
    for score in (*scores.values(), *metrics):
        if score.limit_in_noise:
            yield (
                f"{score.subject} {score.metric}: the limit {score.limit:g} lies inside the noise "
                f"({score.noise:g} between two runs of the baseline): its verdict means little"
            )
    without = [name for name, why in int8.network.left_high.items() if why.startswith("no scale")]
    if without:
        every = len(int8.network.groups) + len(int8.network.left_high)
        yield f"{len(without)} of {every} groups have no scale and are not in INT8"
    yield from _saturation(settings)


def _saturation(settings: Settings) -> Iterator[str]:
    if settings.mode == "native" and saturation().saturates:
        check = saturation()
        yield (
            f"this CPU saturates ONNX Runtime's INT8 kernels: {check.measured:.4g} instead of "
            f"{check.expected:g}; use mode exact"
        )
