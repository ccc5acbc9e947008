"""A case measured: its forms built, run on the same inputs in lock-step, and scored.

    float model ── halve ──────────────→ baseline ──┐
         └── groups + scales ── Q/DQ ──→ candidate ─┴─ same inputs → outputs → scores

FP32 runs beside them, to tell 'INT8 is off' from 'FP16 is off already', and the baseline runs twice,
to know the noise below which no limit means anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_int8acc.backends.open import open_backend
from pytest_int8acc.backends.protocol import Backend
from pytest_int8acc.case.data import check_files, open_source
from pytest_int8acc.case.forms import (
    Form,
    ImplicitForm,
    Int8Form,
    candidate_form,
    int8_form,
    load_float,
)
from pytest_int8acc.case.judge import Judge, Verdict, check_outputs, load_judge
from pytest_int8acc.clock import Clock, current
from pytest_int8acc.data import Dataset
from pytest_int8acc.engines.onnxruntime import Sessions, sessions_of
from pytest_int8acc.engines.run import run_together
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
    not_judged,
    nothing_compared,
    refuse_overflow,
)
from pytest_int8acc.measure.runs import Forms, Reference, Runs, read_reference, run_forms
from pytest_int8acc.results import CaseResult, Finding, Role, Score
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
    sessions: Sessions
    """Where ONNX Runtime runs what is not the backend's."""
    framework: Outputs
    """The training framework's outputs, in the batches of the others; none where the spec names none."""
    clock: Clock
    """Of all that the case does, from its setup on."""

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

    def run(self, form: Form, role: Role = Role.FIXED) -> Outputs:
        """Another form, built by the case's own backend and run on all samples; else EngineError."""
        return run_together({role: self.backend.open(form, role, self.inputs)}, self.inputs)[role]

    def judged(self, outputs: Outputs) -> Verdict:
        """Outputs of another form, by the case's criteria."""
        return self.judge(self.baseline, outputs, self.again)

    def close(self) -> None:
        """Let go of the engines."""
        self.backend.close()


def measure(
    case: Case, settings: Settings, goldens: Goldens | None = None, clock: Clock | None = None
) -> Measured:
    """Run one case and score it.

    ``goldens`` says where the case's golden lies and whether it is written; None: beside the spec, read only.
    ``clock`` lets others see how far it is.

    Raises:
        MissingBackendError: The backend that the settings want is not there.
        GoldenError: The case's golden is missing, stale or damaged, or cannot be written.
        Int8accError: There is no verdict: a model, the data, a scale file or a criterion is at fault.
    """
    clock = clock or Clock()
    with clock.running(), clock.phase("setup"), case.at():
        check_files(case)
        backend = open_backend(case, settings)
        try:
            keeper = open_keeper(case, settings, goldens or Goldens(), backend.output_settings)
            measured = _measure(case, settings, backend, keeper)
        except BaseException:
            backend.close()
            raise
    return replace(measured, result=timed(measured.result, clock))


def timed(result: CaseResult, clock: Clock) -> CaseResult:
    """``result`` with where its time went so far, and what ended it early."""
    phases = clock.phases
    return replace(result, seconds=sum(p.seconds for p in phases), phases=phases, stopped=clock.stop)


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
    forms: Forms
    int8: Int8Form | None
    """None where the candidate was built already, or is quantized while it is built."""


def _set_up(case: Case, settings: Settings, backend: Backend, keeper: Keeper | NoGolden) -> _Setup:
    model = load_float(case)
    check_outputs(case, [output.name for output in model.outputs])
    inputs = open_source(case, case.inputs, model, "inputs", keeper.limit)
    with case.at("golden" if case.golden else "baseline"):
        keeper = keeper.check(inputs)
    if case.labels is not None and inputs.samples is None:  # they must be as many
        inputs.read_once()
    own = load_judge(case, settings.but(samples=keeper.limit), inputs.samples or 0)
    framework = read_reference(case, model)
    parses = settings.backend == "auto" and not backend.builds_engines  # which would parse it anyway
    findings = lint_model(case, model, settings, parses)
    baseline = keeper.form(model)
    with current().phase("calibration"):
        candidate, int8 = candidate_form(case, model, settings, implicit=backend.quantizes_implicitly)
    findings += lint_network(case, int8, settings)
    forms = Forms(model, baseline, candidate)
    return _Setup(case, settings, backend, keeper, inputs, own, framework, findings, forms, int8)


def _measure(case: Case, settings: Settings, backend: Backend, keeper: Keeper | NoGolden) -> Measured:
    sessions, clock = sessions_of(settings), current()
    setup = _set_up(case, settings, backend, keeper)
    keeper, inputs, forms = setup.keeper, setup.inputs, setup.forms
    kept = keeper.outputs if keeper.replaces_baseline else None
    with clock.phase("runs"):
        runs = run_forms(case.name, backend, forms, inputs, sessions, kept)
    framework = setup.framework.in_batches(runs.reference)
    if isinstance(forms.candidate, ImplicitForm):  # its ranges are known since it was built
        int8 = int8_form(case, forms.model, settings, backend.calibration_cache)
        findings = (*setup.findings, *lint_network(case, int8, settings))
        setup = replace(setup, int8=int8, findings=findings)
    judge = keeper.tighten(setup.own)
    with case.at("criteria"):
        lost = lost_by_baseline(judge, runs)
    with case.at("baseline"):
        refuse_overflow(lost, runs, forms, inputs, sessions)
    with case.at("criteria"), clock.phase("runs"):
        verdict = judge(runs.baseline, runs.candidate, runs.again)
    verdict = verdict._replace(metrics=keeper.named(verdict.metrics, setup.own, judge))
    backend.measure_latency((Role.BASELINE, Role.INT8), inputs)
    result = _result(setup, runs, verdict, lost)
    run = Compared(runs.baseline, runs.candidate, runs.backend, setup.own, inputs, forms.model)
    with case.at("golden" if case.golden else "baseline"):
        result = keeper.finish(result, run)
    return Measured(
        *(case, settings, result, forms.model, inputs, setup.int8, judge, backend, runs),
        int8_passed=verdict.passed,
        reference=forms.baseline,
        candidate=forms.candidate,
        sessions=sessions,
        framework=framework,
        clock=clock,
    )


def _result(setup: _Setup, runs: Runs, verdict: Verdict, lost: Sequence[Score]) -> CaseResult:
    case, inputs, backend, int8 = setup.case, setup.inputs, setup.backend, setup.int8
    baseline, candidate = setup.forms.baseline, setup.forms.candidate
    gained, untold = engine_scores(case, backend)
    free = not_judged(case, verdict.outputs, bool(setup.keeper.recording))
    warned = caveats(setup.settings, int8, baseline, verdict.outputs, verdict.metrics, lost)
    random = inputs.notes if inputs.is_random else ()
    drawn = () if random else inputs.notes
    notes = (*candidate.notes, *baseline.notes, *drawn, *backend.notes, *runs.notes)
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
        warnings=(*nothing_compared(runs), *warned, *random, *untold, *free),
        notes=tuple(dict.fromkeys(notes)),
        engines=backend.engines,
        findings=(*setup.findings, *compare_data(case, setup.forms.model, inputs)),
    )
