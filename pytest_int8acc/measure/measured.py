"""A case measured: its forms built, run on the same inputs in lock-step, and scored.

    float model ── halve ──────────────→ baseline ──┐
         └── groups + scales ── Q/DQ ──→ candidate ─┴─ same inputs → outputs → scores

FP32 tells 'INT8 is off' from 'FP16 is off already', and the baseline's second run the noise below which no
limit means anything; a few samples of both come first, and all of them only where these leave doubt.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pytest_int8acc.backends.open import open_backend
from pytest_int8acc.backends.protocol import Backend
from pytest_int8acc.case.data import open_source
from pytest_int8acc.case.forms import (
    Form,
    ImplicitForm,
    Int8Form,
    ModelForm,
    candidate_form,
    int8_form,
    load_float,
)
from pytest_int8acc.case.judge import Judge, Verdict, load_judge
from pytest_int8acc.data import Dataset
from pytest_int8acc.engines.onnxruntime import Sessions, sessions_of
from pytest_int8acc.engines.run import run_together
from pytest_int8acc.errors import EngineError
from pytest_int8acc.goldens import Goldens
from pytest_int8acc.goldens.keeper import Compared, Keeper, NoGolden, open_keeper
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Precision
from pytest_int8acc.measure.caveats import (
    caveats,
    compare_data,
    engine_scores,
    lint_model,
    lint_network,
    lost_by_baseline,
    nothing_compared,
    refuse_overflow,
)
from pytest_int8acc.measure.preflight import Preflight, beside_golden, preflight, spoilt
from pytest_int8acc.measure.runs import (
    Reference,
    Runs,
    Sides,
    check_interface,
    read_reference,
    run_forms,
)
from pytest_int8acc.results import CaseResult, Finding, Role, Score
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Outputs

logger = logging.getLogger("pytest_int8acc")


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
    sessions: Sessions
    """Where ONNX Runtime runs what is not the backend's."""
    framework: Outputs
    """The training framework's outputs, in the batches of the others; none where the spec names none."""

    @cached_property
    def fp32(self) -> Outputs:
        """FP32 on all samples; the baseline's own outputs where ONNX Runtime cannot run it."""
        if self.runs.reference is not None:
            return self.runs.reference
        return run_together({Role.FP32: self.sessions.exact(self.model)}, self.inputs)[Role.FP32]

    @cached_property
    def simulated(self) -> Outputs | None:
        """The candidate in ONNX Runtime, exact; None where it is that already, or does not run there."""
        if not self.backend.needs_simulation or not isinstance(self.candidate, ModelForm):
            return None
        try:  # TensorRT runs plugins that ONNX Runtime does not know
            engine = self.sessions.exact(self.candidate.model)
        except EngineError as error:
            logger.info("%s: no simulation: %s", self.case.name, error)
            return None
        return run_together({Role.SIMULATED: engine}, self.inputs)[Role.SIMULATED]

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
        """The baseline's second run, or itself where it is steady; None where the baseline is a golden."""
        return self.runs.again

    def run(self, form: Form, role: Role = Role.FIXED) -> Outputs:
        """Another form, built by the case's own backend and run on all samples; else EngineError."""
        return run_together({role: self.backend.open(form, role, self.inputs)}, self.inputs)[role]

    def judged(self, outputs: Outputs) -> Verdict:
        """Outputs of another form, by the case's criteria."""
        return self.judge(self.baseline, outputs, self.again)

    def close(self) -> None:
        """Let go of the engines."""
        self.backend.close()


def measure(case: Case, settings: Settings, goldens: Goldens | None = None) -> Measured:
    """Run one case and score it.

    ``goldens`` says where the case's golden lies and whether it is written; None: beside the spec, read only.

    Raises:
        MissingBackendError: The backend that the settings want is not there.
        GoldenError: The case's golden is missing, stale or damaged, or cannot be written.
        Int8accError: There is no verdict: a model, the data, a scale file or a criterion is at fault.
    """
    backend = open_backend(case, settings)
    try:
        keeper = open_keeper(case, settings, goldens or Goldens(), backend.output_settings)
        return _measure(case, settings, backend, keeper)
    except BaseException:
        backend.close()
        raise


@dataclass(frozen=True, eq=False)
class _Setup:
    """A case with all that its spec names opened, before anything is built."""

    case: Case
    settings: Settings
    backend: Backend
    keeper: Keeper | NoGolden
    inputs: Dataset
    own: Judge
    """The case's own criteria, without the ratchet."""
    framework: Reference
    findings: tuple[Finding, ...]
    slips: tuple[Finding, ...]
    """How calibration data and inputs differ."""
    model: Model
    baseline: Form
    candidate: Form | None = None
    """None until it is calibrated, where the case wants that."""
    int8: Int8Form | None = None
    """None where the candidate was built already, or is quantized while it is built."""

    @property
    def tested(self) -> Form:
        """The candidate of a case that is calibrated."""
        assert self.candidate is not None
        return self.candidate

    def calibrated(self) -> _Setup:
        """The same with the candidate, which fits the model and can run."""
        if self.candidate is not None:
            return self
        implicit = self.backend.quantizes_implicitly
        candidate, int8 = candidate_form(self.case, self.model, self.settings, implicit=implicit)
        check_interface(candidate.model, self.model)
        self.backend.check(candidate)
        return replace(self, candidate=candidate, int8=int8).linted()

    def linted(self) -> _Setup:
        """The same with what lint says of the scales."""
        findings = lint_network(self.case, self.int8, self.settings.lint)
        return replace(self, findings=(*self.findings, *findings))


def _set_up(case: Case, settings: Settings, backend: Backend, keeper: Keeper | NoGolden) -> _Setup:
    model = load_float(case)
    inputs = open_source(case, case.inputs, model, "inputs", keeper.limit)
    keeper = keeper.check(inputs)
    if case.labels is not None and inputs.samples is None:  # they must be as many
        inputs.read_once()
    own = load_judge(case, settings.but(samples=keeper.limit), inputs.samples or 0)
    framework = read_reference(case, model)
    findings, slips = lint_model(case, model, settings.lint), compare_data(case, model, inputs)
    baseline = keeper.form(model)
    setup = _Setup(case, settings, backend, keeper, inputs, own, framework, findings, slips, model, baseline)
    like_implicit = case.int8.implicit is not None and not backend.quantizes_implicitly
    return setup if case.int8.calibrate is not None or like_implicit else setup.calibrated()


def _measure(case: Case, settings: Settings, backend: Backend, keeper: Keeper | NoGolden) -> Measured:
    started, sessions = time.perf_counter(), sessions_of(settings)
    setup = _set_up(case, settings, backend, keeper)
    keeper, inputs, model = setup.keeper, setup.inputs, setup.model
    judge = keeper.tighten(setup.own)
    logger.info("%s: building engines", case.name)
    if keeper.replaces_baseline:
        early, kept = beside_golden(backend, model, sessions), keeper.outputs
    else:
        early, kept = preflight(backend, model, setup.baseline, inputs, judge, sessions), None
    setup = setup.calibrated()
    runs = run_forms(backend, setup.tested, inputs, early, kept)
    framework = setup.framework.in_batches(runs.baseline)
    if isinstance(setup.candidate, ImplicitForm):  # its ranges are known since it was built
        setup = replace(setup, int8=int8_form(case, model, settings, backend.calibration_cache)).linted()
    runs, lost, verdict = _judged(setup, runs, early, judge, sessions)
    verdict = verdict._replace(metrics=keeper.named(verdict.metrics, setup.own, judge))
    backend.measure_latency((Role.BASELINE, Role.INT8), inputs)
    result = _result(setup, runs, verdict, lost, early.notes)
    run = Compared(runs.baseline, runs.candidate, runs.backend, setup.own, inputs, model)
    result = replace(keeper.finish(result, run), seconds=time.perf_counter() - started)
    return Measured(
        *(case, settings, result, model, inputs, setup.int8, judge, backend, runs),
        int8_passed=verdict.passed,
        reference=setup.baseline,
        candidate=setup.tested,
        sessions=sessions,
        framework=framework,
    )


def _judged(
    setup: _Setup, runs: Runs, early: Preflight, judge: Judge, sessions: Sessions
) -> tuple[Runs, Sequence[Score], Verdict]:
    """The verdict, and the limits that the baseline itself misses; FP32 runs on all samples where INT8 fails.

    Raises ModelError where FP16 overflows, and is lost by that.
    """
    lost, seen = early.lost, early.reference is not None
    verdict = None if spoilt(runs.baseline) and not seen else judge(runs.baseline, runs.candidate, runs.again)
    if runs.reference is None and early.fp32 is not None and (verdict is None or not verdict.passed):
        found = run_together({Role.FP32: early.fp32()}, setup.inputs)
        runs = replace(runs, reference=found[Role.FP32])
    if runs.reference is not None and runs.reference is not runs.baseline and not seen:
        sides = Sides(runs.reference, runs.baseline)
        lost = tuple(lost_by_baseline(judge, sides))
        refuse_overflow(lost, sides, setup.model, setup.baseline, setup.inputs, sessions)
    return runs, lost, verdict or judge(runs.baseline, runs.candidate, runs.again)


def _result(
    setup: _Setup, runs: Runs, verdict: Verdict, lost: Sequence[Score], told: Sequence[str]
) -> CaseResult:
    case, inputs, backend, int8 = setup.case, setup.inputs, setup.backend, setup.int8
    baseline, candidate = setup.baseline, setup.tested
    gained, unjudged = engine_scores(case, backend)
    warned = caveats(setup.settings, int8, baseline, verdict.outputs, verdict.metrics, lost)
    notes = (*candidate.notes, *baseline.notes, *inputs.notes, *backend.notes, *told)
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
        warnings=(*nothing_compared(runs), *warned, *unjudged),
        notes=tuple(dict.fromkeys(notes)),
        engines=backend.engines,
        findings=(*setup.findings, *setup.slips),
    )
