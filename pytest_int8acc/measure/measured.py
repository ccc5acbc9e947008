"""A case measured: its forms built, run on the same inputs in lock-step, and scored.

    float model ── halve ──────────────→ baseline ──┐
         └── groups + scales ── Q/DQ ──→ candidate ─┴─ same inputs → outputs → scores

FP32 runs beside them, to tell 'INT8 is off' from 'FP16 is off already', and the baseline runs twice,
to know the noise below which no limit means anything.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from pytest_int8acc.backends.backend import Backend, open_backend
from pytest_int8acc.case.forms import (
    Form,
    Int8Form,
    baseline_form,
    engine_form,
    implicit_form,
    int8_form,
    load_float,
    open_source,
)
from pytest_int8acc.case.judge import Judge, Verdict, load_judge
from pytest_int8acc.data import Dataset
from pytest_int8acc.engines.run import run_together
from pytest_int8acc.goldens.keeper import Compared, Keeper, finish, open_keeper
from pytest_int8acc.goldens.request import Goldens
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Precision
from pytest_int8acc.measure.caveats import caveats, nothing_compared
from pytest_int8acc.measure.engine_criteria import engine_scores
from pytest_int8acc.measure.overflow import lost_by_baseline, refuse_overflow
from pytest_int8acc.measure.preflight import compare_data, lint_model, lint_network
from pytest_int8acc.measure.runs import Runs, run_forms
from pytest_int8acc.results import CaseResult
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Outputs


@dataclass(frozen=True, eq=False)
class Measured:
    """A case measured, with what a search needs to go on from there."""

    case: Case
    settings: Settings
    result: CaseResult
    model: Model
    inputs: Dataset
    int8: Int8Form | None
    """None where the candidate is an engine that was built already: nothing is known of its layers."""
    judge: Judge
    backend: Backend
    runs: Runs
    int8_passed: bool
    """Whether INT8 keeps its limits of accuracy: a baseline that has left its golden is no fault of INT8, and
    an engine that is too slow is not mended by layers that leave INT8."""
    reference: Form
    """What INT8 is compared with."""
    candidate: Form

    @property
    def half(self) -> bool:
        """Whether the baseline computes in FP16."""
        return self.reference.half

    @property
    def keep(self) -> Precision:
        """What groups that leave INT8 run in: FP32 where all beside INT8 does, else as the spec says."""
        return "fp32" if self.int8 is not None and self.int8.rest == "fp32" else self.case.search.keep

    @property
    def baseline(self) -> Outputs:
        """The baseline's outputs."""
        return self.runs.baseline

    @property
    def again(self) -> Outputs | None:
        """The baseline's second run; None where the baseline is a golden."""
        return self.runs.again

    def run(self, form: Form, role: str = "fixed") -> Outputs:
        """Another form of the case, built by its own backend and run on all samples.

        Raises:
            EngineError: It does not build or run.
        """
        return run_together({role: self.backend.open(form, role, self.inputs)}, self.inputs)[role]

    def judged(self, outputs: Outputs) -> Verdict:
        """Outputs of another form, by the case's criteria."""
        return self.judge(self.baseline, outputs, self.again)

    def close(self) -> None:
        """Let go of the engines."""
        self.backend.close()


def measure(case: Case, settings: Settings, goldens: Goldens | None = None) -> Measured:
    """Run one case and score it.

    Args:
        case: From ``load_spec``.
        settings: What command line, spec and configuration say together.
        goldens: Where the case's golden lies and whether it is written; None: beside the spec, read only.

    Raises:
        MissingBackendError: The backend that the settings want is not there.
        GoldenError: The case's golden is missing, stale or damaged, or cannot be written.
        Int8accError: There is no verdict: a model, the data, a scale file or a criterion is at fault.
    """
    backend = open_backend(case, settings)
    try:
        keeper = open_keeper(case, settings, goldens or Goldens(), is_tensorrt=backend.is_tensorrt)
        return _measure(case, settings, backend, keeper)
    except BaseException:
        backend.close()
        raise


def _measure(case: Case, settings: Settings, backend: Backend, keeper: Keeper | None) -> Measured:
    started, model = time.perf_counter(), load_float(case)
    limit = settings.samples if keeper is None else keeper.limit
    inputs = open_source(case, case.inputs, model, "inputs", limit)
    keeper = keeper and keeper.check(inputs)
    findings = lint_model(case, model, settings.lint)
    baseline = baseline_form(case, model) if keeper is None else keeper.form(model)
    int8, candidate = _candidate(case, model, settings, backend)
    kept = keeper.outputs if keeper and keeper.replaces_baseline else None
    runs = run_forms(case.name, backend, settings.provider, inputs, model, baseline, candidate, kept)
    if candidate.implicit is not None:
        int8 = int8_form(case, model, settings, backend.calibration_cache)
    findings += lint_network(case, int8.network if int8 else None, settings.lint)
    own = load_judge(case, settings.but(samples=limit), inputs.samples or 0)
    judge = own if keeper is None else keeper.tighten(own)
    lost = lost_by_baseline(judge, runs)
    refuse_overflow(lost, runs, baseline, model, inputs, settings.provider)
    verdict = judge(runs.baseline, runs.candidate, runs.again)
    if keeper is not None:
        verdict = verdict._replace(metrics=keeper.named(verdict.metrics, own, judge))
    backend.measure_latency(("baseline", "INT8"), inputs)
    result = _result(case, inputs, backend, runs, (baseline, candidate), int8, verdict)
    warned = caveats(settings, int8, baseline, result.outputs, verdict.metrics, lost)
    result = replace(
        result,
        warnings=(*nothing_compared(runs), *warned, *result.warnings),
        findings=(*findings, *compare_data(case, model, inputs)),
    )
    if keeper is not None:
        run = Compared(runs.baseline, runs.candidate, runs.backend, own, inputs, model)
        result = finish(keeper, result, run)
    result = replace(result, seconds=time.perf_counter() - started)
    return Measured(
        *(case, settings, result, model, inputs, int8, judge, backend, runs),
        int8_passed=verdict.passed,
        reference=baseline,
        candidate=candidate,
    )


def _result(
    case: Case,
    inputs: Dataset,
    backend: Backend,
    runs: Runs,
    forms: tuple[Form, Form],
    int8: Int8Form | None,
    verdict: Verdict,
) -> CaseResult:
    """What was compared, and how it was judged; ``forms`` are baseline and candidate."""
    baseline, candidate = forms
    gained, unjudged = engine_scores(case, backend)
    notes = (*candidate.notes, *baseline.notes, *inputs.notes, *backend.notes, *runs.notes)
    return CaseResult(
        name=case.name,
        spec=str(case.file),
        samples=inputs.samples or 0,
        data=inputs.description,
        baseline=baseline.description,
        candidate=candidate.description,
        backend=runs.backend,
        outputs=verdict.outputs,
        metrics=(*verdict.metrics, *gained),
        int8_groups=len(int8.network.groups) if int8 else 0,
        high_groups=len(int8.network.left_high) if int8 else 0,
        warnings=unjudged,
        notes=tuple(dict.fromkeys(notes)),
        engines=backend.engines,
    )


def _candidate(
    case: Case, model: Model, settings: Settings, backend: Backend
) -> tuple[Int8Form | None, Form]:
    """The INT8 side: its network where that is known before it is built, and what is built."""
    if case.int8.engine is not None:
        return None, engine_form(case, model)
    if case.int8.implicit is not None and backend.is_tensorrt:
        return None, implicit_form(case, model)
    int8 = int8_form(case, model, settings)
    return int8, int8.under()
