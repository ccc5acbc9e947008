"""A case measured: its forms built, run on the same inputs in lock-step, and scored.

    float model ── halve ──────────────→ baseline ──┐
         └── groups + scales ── Q/DQ ──→ candidate ─┴─ same inputs → outputs → scores

FP32 tells 'INT8 is off' from 'FP16 is off already', and the baseline's second run the noise below which no
limit means anything; a few samples of both come first, and all of them only where these leave doubt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

from pytest_int8acc.case.caveats import (
    caveats,
    compare_data,
    lint_model,
    lint_network,
    not_judged,
    nothing_compared,
    shown_inside,
)
from pytest_int8acc.case.criteria import check_outputs, load_judge
from pytest_int8acc.case.data import check_files, low_of, open_source
from pytest_int8acc.case.file_truth import FileTruth, candidate_truth
from pytest_int8acc.case.forms import (
    Int8Form,
    baseline_form,
    candidate_form,
    int8_form,
    load_float,
    with_named,
)
from pytest_int8acc.case.overflow import lost_by_baseline, refuse_overflow
from pytest_int8acc.case.perturbation import PerturbedOutputs, with_perturbed_inputs
from pytest_int8acc.case.precision import engine_scores, precision_contract
from pytest_int8acc.case.preflight import preflight, preflight_of_golden
from pytest_int8acc.case.runs import (
    Forms,
    Preflight,
    Reference,
    RunPurpose,
    Runs,
    check_interface,
    read_reference,
    run_forms,
)
from pytest_int8acc.clock import Clock, current
from pytest_int8acc.data import Dataset
from pytest_int8acc.errors import blaming
from pytest_int8acc.goldens import Goldens
from pytest_int8acc.goldens.golden_store import Compared, GoldenStore, open_golden_store
from pytest_int8acc.graph.formats import INT8
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Precision
from pytest_int8acc.results import CaseResult, Finding, Role, Score
from pytest_int8acc.runtime.forms import Form, ImplicitForm, ModelForm
from pytest_int8acc.runtime.onnxruntime import Sessions, sessions_of
from pytest_int8acc.runtime.open import open_backend
from pytest_int8acc.runtime.protocol import Backend, Engine
from pytest_int8acc.runtime.run import lock_step
from pytest_int8acc.runtime.trt.children import Workers
from pytest_int8acc.scores.blind import try_criteria
from pytest_int8acc.scores.judge import Judge, Verdict
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Feed, Outputs

logger = logging.getLogger("pytest_int8acc")


@dataclass(frozen=True, eq=False)
class Measured:
    """A case that was run and judged, with everything that a search needs."""

    case: Case
    settings: Settings
    result: CaseResult
    model: Model
    inputs: Dataset
    int8: Int8Form | None
    """None where the candidate is an engine that was built beforehand: its layers are not known."""
    judge: Judge
    backend: Backend
    runs: Runs
    int8_passed: bool
    """Whether INT8 keeps its limits of accuracy. Other limits do not count: a baseline that has moved away
    from its golden is no fault of INT8, and an engine that is too slow is not mended by layers that leave
    INT8."""
    reference: Form
    """The baseline."""
    candidate: Form
    sessions: Sessions
    """Opens models in ONNX Runtime, whatever the backend is."""
    clock: Clock
    """The time of the case from its setup on."""
    truth: FileTruth
    """Compares other forms, without their rounding, with the user's own file."""
    perturbs: bool = True
    """Whether the baseline can be run on perturbed inputs; it cannot where a golden stands in for it."""
    _perturbed: PerturbedOutputs = field(default_factory=dict)
    """The baseline's outputs in FP32 for perturbed inputs."""

    @property
    def half(self) -> bool:
        """Whether the baseline computes in FP16."""
        return self.reference.half

    @property
    def keep(self) -> Precision:
        """The precision of groups that leave INT8: FP32 where all else is FP32, otherwise the spec's."""
        return "fp32" if self.int8 is not None and self.int8.rest == "fp32" else self.case.search.keep

    @property
    def baseline(self) -> Outputs:
        """The baseline's outputs; none where the settings turn the search off."""
        return self.runs.baseline

    def run(self, form: Form, role: Role = Role.FIXED) -> Iterator[tuple[int, Feed]]:
        """Build another form with the case's own backend, and yield rows and outputs of each batch.

        Raises:
            EngineError: It does not build or run.
        """
        return self.outputs_of(self.backend.open(form, role, self.inputs))

    def outputs_of(self, engine: Callable[[Feed], Feed]) -> Iterator[tuple[int, Feed]]:
        """Yield rows and outputs of each batch of the inputs."""
        return ((rows, outputs["it"]) for rows, outputs in lock_step({"it": engine}, self.inputs))

    def judged(self, outputs: Iterable[tuple[int, Feed]]) -> Verdict:
        """Judge the outputs of another form by the case's criteria."""
        return self.runs.judged(outputs)

    def proved(self, form: Form) -> Verdict:
        """Build another form, run it on all samples and judge it; intervals include perturbed inputs.

        Raises:
            EngineError: It does not build or run.
        """
        engine = self.backend.open(form, Role.FIXED, self.inputs)
        verdict = self.judged(self.outputs_of(engine))
        if not self.perturbs:
            return verdict
        if (models := self._in_fp32(form)) is not None:
            sessions = cache(lambda role: self.sessions.configured(models[role]))
            return with_perturbed_inputs(
                verdict, sessions, self.inputs, self.judge, self._perturbed, fix=True
            )

        @cache
        def opened(role: Role) -> Engine:
            return engine if role == Role.INT8 else self.backend.open(self.reference, role, self.inputs)

        return with_perturbed_inputs(verdict, opened, self.inputs, self.judge, self.runs.perturbed, fix=True)

    def _in_fp32(self, form: Form) -> Mapping[Role, Model] | None:
        """A fix and the baseline in FP32 where ONNX Runtime would emulate FP16; None where it would not.

        Perturbed inputs only need some other rounding, and FP32 takes a tenth of the time.
        """
        reference, quantizes = self.reference, self.int8 is not None and self.int8.low.takes_scales
        if self.backend.builds_engines or not quantizes or not reference.half:
            return None
        if not isinstance(form, ModelForm) or not isinstance(reference, ModelForm):
            return None
        return {Role.INT8: form.original, Role.BASELINE: reference.original}

    def close(self) -> None:
        """Let go of the engines."""
        self.backend.close()


def measure(
    case: Case,
    settings: Settings,
    goldens: Goldens | None = None,
    clock: Clock | None = None,
    builders: Workers | None = None,
) -> Measured:
    """Run one case and score it.

    ``goldens`` says where the case's golden lies and whether it is written; None: beside the spec, read only.
    ``clock`` lets others see how far it is. ``builders`` is as for ``open_backend``.

    Raises:
        MissingBackendError: The backend that the settings want is not there.
        GoldenError: The case's golden is missing, stale or damaged, or cannot be written.
        Int8accError: There is no verdict: a model, the data, a scale file or a criterion is at fault.
    """
    clock = clock or Clock()
    with clock.running(), clock.phase("setup"), case.at():
        check_files(case)
        backend = open_backend(case, settings, builders)
        try:
            golden_store = open_golden_store(case, settings, goldens or Goldens(), backend.output_settings)
            measured = _measure(case, settings, backend, golden_store)
        except BaseException:
            backend.close()
            raise
    return replace(measured, result=timed(measured.result, clock))


def timed(result: CaseResult, clock: Clock) -> CaseResult:
    """``result`` with the time of each phase so far, and what ended the case early."""
    phases = clock.phases
    return replace(result, seconds=sum(p.seconds for p in phases), phases=phases, stopped=clock.stop)


@dataclass(frozen=True, eq=False)
class _Setup:
    """A case with everything opened that its spec names, before anything is built."""

    case: Case
    settings: Settings
    backend: Backend
    golden_store: GoldenStore
    inputs: Dataset
    own: Judge
    """The case's own criteria, without the ratchet."""
    framework: Reference | None
    findings: tuple[Finding, ...]
    data_findings: tuple[Finding, ...]
    """How calibration data and inputs differ."""
    model: Model
    truth: FileTruth
    """Compares forms with the file of the float model."""
    baseline: Form
    candidate: Form | None = None
    """None while it is still to be calibrated."""
    int8: Int8Form | None = None
    """None where the candidate was built beforehand, or is quantized while it is built."""

    @property
    def forms(self) -> Forms:
        """All forms of a calibrated case."""
        assert self.candidate is not None
        return Forms(self.model, self.baseline, self.candidate)

    def calibrated(self) -> _Setup:
        """The same with the candidate, after checking that it fits the model and can run."""
        if self.candidate is not None:
            return self
        implicit = self.backend.quantizes_implicitly
        with current().phase("calibration"):
            candidate, int8 = candidate_form(self.case, self.model, self.settings, implicit=implicit)
        with blaming(candidate.place):
            check_interface(candidate.model, self.model)
            self.backend.check(candidate)
        return replace(self, candidate=candidate, int8=int8).linted()

    def linted(self) -> _Setup:
        """The same with the lint findings on the scales."""
        findings = lint_network(self.case, self.int8, self.settings)
        return replace(self, findings=(*self.findings, *findings))


def _set_up(case: Case, settings: Settings, backend: Backend, golden_store: GoldenStore) -> _Setup:
    model = with_named(case, load_float(case))
    check_outputs(case, model)
    inputs = open_source(case, case.inputs, model, "inputs", golden_store.limit)
    with case.at("golden" if case.golden else "baseline"):
        golden_store = golden_store.check(inputs)
    if case.labels is not None and inputs.samples is None:  # they must be as many
        inputs.read_once()
    own = load_judge(case, settings.but(samples=golden_store.limit), inputs.samples or 0, model)
    framework = read_reference(case, model)
    parses = settings.backend == "auto" and not backend.builds_engines  # which would parse it anyway
    findings, data_findings = lint_model(case, model, settings, parses), compare_data(case, model, inputs)
    assert model.file is not None  # it was loaded
    baseline = golden_store.form(model, partial(baseline_form, case, model))
    truth = FileTruth(model.file, inputs, sessions_of(settings))
    setup = _Setup(
        case=case,
        settings=settings,
        backend=backend,
        golden_store=golden_store,
        inputs=inputs,
        own=own,
        framework=framework,
        findings=findings,
        data_findings=data_findings,
        model=model,
        truth=truth,
        baseline=baseline,
    )
    like_implicit = case.int8.implicit is not None and not backend.quantizes_implicitly
    waits = case.source.calibrate is not None or like_implicit
    # Engines take longer to build than scales to find, and two of them are built side by side.
    return setup if waits and not backend.builds_engines else setup.calibrated()


def _measure(case: Case, settings: Settings, backend: Backend, golden_store: GoldenStore) -> Measured:
    sessions, clock = sessions_of(settings), current()
    setup = _set_up(case, settings, backend, golden_store)
    golden_store, inputs = setup.golden_store, setup.inputs
    judge = golden_store.tighten(setup.own, setup.model)
    purpose = RunPurpose(
        judge,
        place=case.place("criteria"),
        baseline=settings.search != "off" or golden_store.wants_baseline,
        candidate=golden_store.wants_candidate,
        golden=golden_store.cutter() if golden_store.replaces_baseline else None,
        reference=setup.framework,
    )
    logger.info("%s: building engines", case.name)
    with clock.phase("runs"):
        early = _first_look(setup, judge, sessions)
    setup = setup.calibrated()
    forms = setup.forms
    with clock.phase("runs"):
        with blaming(forms.candidate.place):
            truth = candidate_truth(case, setup.truth, setup.int8, forms.candidate, sessions)
        runs = run_forms(backend, forms, inputs, sessions, purpose, early)
    if isinstance(forms.candidate, ImplicitForm):  # its ranges are known since it was built
        int8 = int8_form(case, forms.model, settings, backend.calibration_cache)
        setup = replace(setup, int8=int8).linted()
    with clock.phase("runs"):
        lost, verdict = _judged(setup, runs, early, sessions)
    verdict = verdict._replace(metrics=golden_store.named(verdict.metrics, setup.own, judge))
    backend.measure_latency((Role.BASELINE, Role.INT8), inputs)
    result = _result(setup, runs, verdict, lost, sessions)
    if result.kept:
        with case.at("criteria"):
            result = replace(result, blind=try_criteria(judge, runs.spread, verdict.outputs))
    run = Compared(runs.baseline, runs.candidate, runs.backend, setup.own, inputs, forms.model)
    with case.at("golden" if case.golden else "baseline"):
        result = golden_store.finish(result, run)
    return Measured(
        case=case,
        settings=settings,
        result=result,
        model=forms.model,
        inputs=inputs,
        int8=setup.int8,
        judge=judge,
        backend=backend,
        runs=runs,
        int8_passed=verdict.passed,
        reference=forms.baseline,
        candidate=forms.candidate,
        sessions=sessions,
        clock=clock,
        truth=truth,
        perturbs=early.baseline is not None,
    )


def _first_look(setup: _Setup, judge: Judge, sessions: Sessions) -> Preflight:
    """The first look at the case: its first samples, or only FP32 where a golden is the baseline."""
    if setup.golden_store.replaces_baseline:
        return preflight_of_golden(setup.case, setup.backend, setup.model, sessions, setup.truth)
    return preflight(
        setup.case,
        setup.backend,
        setup.model,
        setup.baseline,
        setup.inputs,
        candidate=setup.candidate,
        judge=judge,
        sessions=sessions,
        truth=setup.truth,
    )


def _judged(
    setup: _Setup, runs: Runs, early: Preflight, sessions: Sessions
) -> tuple[Sequence[Score], Verdict]:
    """The limits that the baseline itself misses against FP32, and the verdict.

    FP32 runs on all samples where INT8 fails.

    Raises ModelError where FP16 overflows, and is lost by that.
    """
    case, comparison, verdict = setup.case, runs.comparisons[Role.BASELINE, Role.INT8], None
    with case.at("criteria"), setup.golden_store.judging():
        if early.settled or not runs.spoilt:
            verdict = comparison.verdict(runs.noise, intervals=True)
        passed = verdict is not None and verdict.passed
        if early.fp32 is not None and is_explained(case, setup.settings, int8_passed=passed):
            runs.compare_fp32()
        lost = lost_by_baseline(runs)
    with case.at("baseline"):
        if not early.settled and not setup.golden_store.replaces_baseline:
            refuse_overflow(lost, runs, setup.model, setup.baseline, setup.inputs, sessions)
    with case.at("criteria"), setup.golden_store.judging():
        verdict = verdict or comparison.verdict(runs.noise, intervals=True)
        if early.baseline is not None:
            verdict = with_perturbed_inputs(
                verdict, runs.engines.__getitem__, setup.inputs, runs.judge, runs.perturbed
            )
    return lost, verdict


def is_explained(case: Case, settings: Settings, *, int8_passed: bool) -> bool:
    """Whether a case is diagnosed: it failed, or the settings ask for a view of a passing case."""
    return not int8_passed or settings.layers or settings.calibrations or bool(case.reference)


def _result(
    setup: _Setup, runs: Runs, verdict: Verdict, lost: Sequence[Score], sessions: Sessions
) -> CaseResult:
    case, inputs, backend, int8 = setup.case, setup.inputs, setup.backend, setup.int8
    baseline, candidate = setup.baseline, setup.forms.candidate
    zero = runs.zero[Role.BASELINE]
    contract = precision_contract(case, backend, int8, candidate, inputs, sessions, verdict.outputs, zero)
    gained, untold = engine_scores(case, backend, contract)
    free = not_judged(case, setup.own, verdict.outputs, bool(setup.golden_store.recording))
    warned = caveats(setup.settings, int8, baseline, verdict.outputs, verdict.metrics, lost)
    random = inputs.notes if inputs.is_random else ()
    drawn = () if random else inputs.notes
    inside, low = shown_inside(setup.model, backend), low_of(case)
    notes = (*candidate.notes, *baseline.notes, *drawn, *backend.notes, *inside, *runs.notes)
    notes += tuple(setup.truth.notes)
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
        low="" if low is INT8 else low.name,
        int8_macs=None if contract is None or int8 is None else contract.asked.get(low.name),
        precision=contract,
        warnings=(*nothing_compared(runs), *warned, *random, *untold, *free),
        notes=tuple(dict.fromkeys(notes)),
        engines=backend.engines,
        findings=(*setup.findings, *setup.data_findings),
        blind_reason=case.accept_blind or ("the inputs are random" if inputs.is_random else ""),
        place="engine" if backend.builds_engines else sessions.mode,
        digest=inputs.digest or "",
    )
