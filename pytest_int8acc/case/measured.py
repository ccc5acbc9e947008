"""Runs the baseline and the candidate of a case on the same inputs, batch by batch, and scores them.

    float model ── halve ──────────────→ baseline ──┐
         └── groups + scales ── Q/DQ ──→ candidate ─┴─ same inputs → outputs → scores

An FP32 run shows whether FP16 is already inaccurate, or only INT8. A second run of the baseline shows the
noise; a limit below the noise is useless. These two extra runs are made on a few samples first, and on all
samples only if the few samples leave a doubt.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import NamedTuple

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
from pytest_int8acc.case.default_session import FirstBatch, compare_default, refused_file, saturating_kernels
from pytest_int8acc.case.file_truth import FileTruth, candidate_truth
from pytest_int8acc.case.float_nan import find_float_nan
from pytest_int8acc.case.forms import (
    Int8Form,
    baseline_form,
    candidate_form,
    int8_form,
    load_float,
    with_named,
)
from pytest_int8acc.case.own_samples import OwnSamples, Proving, open_proving, run_baseline
from pytest_int8acc.case.perturbation import PerturbedOutputs, with_perturbed_inputs
from pytest_int8acc.case.preactivations import Preactivations
from pytest_int8acc.case.precision import engine_scores, precision_contract
from pytest_int8acc.case.preflight import missed, preflight, preflight_of_golden, refuse_overflow
from pytest_int8acc.case.records import Records, open_records
from pytest_int8acc.case.runs import Preflight, Runs, check_interface, read_reference, run_forms
from pytest_int8acc.clock import Clock, current
from pytest_int8acc.data import Dataset
from pytest_int8acc.errors import EngineError, blaming
from pytest_int8acc.goldens import Goldens
from pytest_int8acc.goldens.golden_store import Compared, GoldenStore, open_golden_store
from pytest_int8acc.graph.emulate import holds_fp8
from pytest_int8acc.graph.formats import INT8
from pytest_int8acc.graph.load import read_model
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Precision
from pytest_int8acc.graph.outputs import fitting_metric
from pytest_int8acc.results import CaseResult, DefaultSession, Finding, Role, Score
from pytest_int8acc.runtime.children import Workers
from pytest_int8acc.runtime.forms import Form, ImplicitForm, ModelForm
from pytest_int8acc.runtime.onnxruntime import CRASH, Sessions, sessions_of
from pytest_int8acc.runtime.open import open_backend
from pytest_int8acc.runtime.protocol import Backend, Engine
from pytest_int8acc.runtime.run import cut, lock_step
from pytest_int8acc.scores.blind import try_criteria
from pytest_int8acc.scores.judge import Judge, Verdict
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Feed, Outputs

logger = logging.getLogger("pytest_int8acc")
#: Maximum size, in bytes, of the candidate's outputs that are kept for the search. If they are larger, the
#: search runs the candidate again.
_CANDIDATE_BYTES = 2 << 20


class Verdicts(NamedTuple):
    """The verdicts on one candidate."""

    verdict: Verdict
    """The verdict on all inputs."""
    chosen: Verdict
    """The verdict on the inputs by which the search chooses candidates, without intervals.

    It is ``verdict`` itself, with intervals, if the search uses all inputs, or if the candidate passes on all
    inputs and on the held-out samples."""
    held_out: Verdict | None
    """The verdict on the held-out samples, which no choice was based on; None if there are none."""


#: Held-out samples, which no choice was based on: indices of inputs, or separate samples.
HeldOutSamples = Collection[int] | OwnSamples


@dataclass(frozen=True, eq=False, kw_only=True)
class _Prepared:
    """A case whose baseline and candidate are prepared, but not yet judged."""

    case: Case
    settings: Settings
    backend: Backend
    golden_store: GoldenStore
    model: Model
    """The float model. Tensors that criteria name are among its outputs."""
    inputs: Dataset
    proving: Proving | None
    """The samples of the key ``prove``, which no choice is based on; None if the spec has no such key."""
    int8: Int8Form | None
    """The quantized network.

    None if the candidate is an engine built beforehand, whose layers are unknown.
    """
    own_judge: Judge
    """Applies the criteria of the spec alone. ``judge`` also applies the limits that a golden file adds."""
    judge: Judge
    reference: Form
    """The float baseline, with its description."""
    candidate: Form
    sessions: Sessions
    """Opens models in ONNX Runtime, even if the case runs in TensorRT."""
    clock: Clock
    """Measures the time of the case, from its setup on."""
    truth: FileTruth
    """Checks that later candidates, without their rounding, compute the same as the user's model file."""
    findings: tuple[Finding, ...]
    """Findings of lint, and findings on how calibration samples and inputs differ."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Measured(_Prepared):
    """A case that was run and judged, with everything that a search needs."""

    result: CaseResult
    runs: Runs
    int8_passed: bool
    """Whether the INT8 candidate meets the limits on its accuracy.

    Limits on speed and limits against the golden (stored outputs) are ignored: layers in high precision do
    not make an engine faster, and a difference between baseline and golden is no fault of INT8.
    """
    perturbs: bool
    """Whether the baseline can run on perturbed inputs. It cannot if stored outputs (a golden) replace it."""
    _perturbed: PerturbedOutputs = field(default_factory=dict)
    """The baseline's outputs for perturbed inputs, with FP32 in place of FP16."""
    resumes: bool = False
    """Whether the results of trials and proofs are recorded, so that the next run can continue an interrupted
    search."""

    @property
    def half(self) -> bool:
        """Whether the baseline computes in FP16."""
        return self.reference.half

    @property
    def keep(self) -> Precision:
        """The precision of layers that leave INT8: FP32 if all layers that are not quantized run in FP32.

        Otherwise the spec names the precision.
        """
        return "fp32" if self.int8 is not None and self.int8.rest == "fp32" else self.case.search.keep

    @cached_property
    def records(self) -> Records:
        """The results of the case's trials and proofs, including those of an earlier, interrupted run."""
        if self.int8 is None or not self.resumes:
            return Records()
        return open_records(
            self.case,
            self.settings,
            self.result.backend,
            self.judge,
            self.inputs,
            self.baseline,
            self.int8,
        )

    @property
    def baseline(self) -> Outputs:
        """The baseline's outputs on all samples; empty if the settings turn the search off."""
        return self.runs.kept[Role.BASELINE]

    def run(self, form: Form, role: Role = Role.FIXED) -> Iterator[tuple[int, Feed]]:
        """Build another candidate with the case's backend; yield number of samples and outputs of each batch.

        Raises:
            EngineError: The candidate does not build or run.
        """
        return self.outputs_of(self.backend.open(form, role, self.inputs))

    def outputs_of(self, engine: Callable[[Feed], Feed]) -> Iterator[tuple[int, Feed]]:
        """Run an engine on all inputs, and yield the number of samples and the outputs of each batch."""
        return ((rows, outputs["it"]) for rows, outputs in lock_step({"it": engine}, self.inputs))

    def judged(self, outputs: Iterable[tuple[int, Feed]]) -> Verdict:
        """Judge another candidate from its outputs: for each batch the number of samples and the arrays."""
        return self.runs.judged(outputs)

    def proved(self, form: Form, held_out: HeldOutSamples = ()) -> Verdicts:
        """Build another candidate, run it on all samples and judge it.

        Args:
            form: The candidate.
            held_out: The samples that prove the candidate, because no choice was based on them: indices of
                inputs, or separate samples.

        Returns:
            The verdicts. The confidence intervals of the verdict on all inputs include scores for perturbed
            inputs.

        Raises:
            EngineError: The candidate does not build or run.
        """
        engines = {Role.INT8: self.backend.open(form, Role.FIXED, self.inputs)}
        verdicts = self._verdicts(engines[Role.INT8], held_out)
        return verdicts._replace(verdict=self._perturbed_too(form, engines, verdicts.verdict))

    def _verdicts(self, engine: Engine, held_out: HeldOutSamples) -> Verdicts:
        """The verdicts on an engine, from one pass over the inputs, and one over separate samples."""
        outputs = self.outputs_of(engine)
        if isinstance(held_out, OwnSamples):
            verdict = self.judged(outputs)
            return Verdicts(verdict, verdict, held_out.judged(engine))
        if not held_out:
            verdict = self.judged(outputs)
            return Verdicts(verdict, verdict, None)
        choosing = set(range(self.inputs.samples or 0)).difference(held_out)
        whole, chosen, proving = self.runs.compared_in_parts(outputs, (choosing, held_out))
        verdict = whole.verdict(self.runs.noise, intervals=True, rare=True)
        proved = proving.verdict(self.runs.noise, intervals=True)
        if verdict.passed and proved.passed:
            return Verdicts(verdict, verdict, proved)
        return Verdicts(verdict, chosen.verdict(self.runs.noise), proved)

    def _perturbed_too(self, form: Form, engines: dict[Role, Engine], verdict: Verdict) -> Verdict:
        """``verdict`` with intervals that include scores for perturbed inputs; unchanged with a golden.

        A golden (stored outputs) replaces the baseline, which then cannot run on perturbed inputs.

        Before FP32 models run, the engine of ``form`` is removed from ``engines`` to free its memory.
        """
        if not self.perturbs:
            return verdict
        if (models := self._in_fp32(form)) is not None:
            engines.clear()
            sessions = cache(lambda role: self.sessions.configured(models[role]))
            return with_perturbed_inputs(
                verdict, sessions, self.inputs, self.judge, self._perturbed, fix=True
            )

        @cache
        def opened(role: Role) -> Engine:
            return engines.get(role) or self.backend.open(self.reference, role, self.inputs)

        return with_perturbed_inputs(verdict, opened, self.inputs, self.judge, self.runs.perturbed, fix=True)

    def _in_fp32(self, form: Form) -> Mapping[Role, Model] | None:
        """The models of another candidate, ``form``, and of the baseline, with FP32 in place of FP16.

        ONNX Runtime emulates FP16 on a CPU, which takes ten times as long. FP32 is exact enough here, because
        the runs only show how much scores vary. The result is None for engines, for a baseline without FP16,
        and for a case whose low format is FP16 or BF16.
        """
        reference, quantizes = self.reference, self.int8 is not None and self.int8.low.takes_scales
        if self.backend.builds_engines or not quantizes or not reference.half:
            return None
        if not isinstance(form, ModelForm) or not isinstance(reference, ModelForm):
            return None
        return {Role.INT8: form.original, Role.BASELINE: reference.original}

    def default_session(self, form: Form) -> DefaultSession | None:
        """How another candidate's results differ in a default session of ONNX Runtime, on the first batch.

        None if they do not differ, or if the case runs in TensorRT, in mode *native*, or in FP16 or BF16. A
        case in FP8 is compared only if users deploy ONNX Runtime.

        Raises:
            EngineError: The model does not run in an exact session.
        """
        return _default_session(self, self.runs, form)

    def own_samples(self) -> OwnSamples | None:
        """Run the baseline on the samples of the key ``prove``; None without such a key.

        Raises:
            DataError: The samples cannot be read.
            EngineError: The baseline does not run on them.
        """
        if self.proving is None:
            return None
        engine = self.backend.open(self.reference, Role.BASELINE, self.inputs)
        return run_baseline(self.case, self.proving, self.inputs, engine, self.runs.noise)

    @property
    def deploys_default(self) -> bool:
        """Whether users deploy a default session of ONNX Runtime, while the case runs in an exact one."""
        is_target = self.settings.backend == "onnxruntime" and low_of(self.case).takes_scales
        return is_target and _runs_exact(self)

    def judged_by_default(self, form: ModelForm, held_out: HeldOutSamples = ()) -> Verdicts:
        """Judge another candidate in a default session, as ``proved`` does in the session of the case.

        INT8 kernels that saturate on this processor are left out.

        Raises:
            EngineError: The candidate does not load or run in a default session.
        """
        if self.sessions.crashes(form.model):
            raise EngineError(CRASH)
        kernels = saturating_kernels()
        if kernels:  # a session with all kernels must open the model, too
            self.sessions.default(form.model)
        engine = self.sessions.default(form.model, disabled=kernels)
        return self._verdicts(engine, held_out)

    def close(self) -> None:
        """Free the engines and the processes of the backend."""
        self.backend.close()


def measure(
    case: Case,
    settings: Settings,
    goldens: Goldens | None = None,
    clock: Clock | None = None,
    builders: Workers | None = None,
) -> Measured:
    """Run one case and score it.

    Args:
        case: The case.
        settings: The settings of the run.
        goldens: The folder of the case's golden, its stored outputs, and whether this run writes the golden.
            With None, the golden is next to the spec, and is only read.
        clock: Measures the time of the case, and shows the progress to other threads.
        builders: Child processes that build engines; None starts new ones.

    Raises:
        MissingBackendError: The backend that the settings require is not installed.
        GoldenError: The case's golden is missing, stale or damaged, or cannot be written.
        Int8accError: There is no verdict: a model, the data, a scale file or a criterion is faulty.
    """
    clock = clock or Clock()
    with clock.running(), clock.phase("setup"), case.at():
        check_files(case)
        backend = open_backend(case, settings, builders)
        try:
            golden_store = open_golden_store(case, settings, goldens or Goldens(), backend.output_settings)
            measured = _measure(case, settings, backend, golden_store)
            if not backend.builds_engines:  # frees sessions: they hold all weights, and reopen quickly
                measured.runs.engines = {}
        except BaseException:
            backend.close()
            raise
    return replace(measured, result=timed(measured.result, clock))


def timed(result: CaseResult, clock: Clock) -> CaseResult:
    """``result`` with the costs of each phase so far, and the event that ended the case early."""
    phases = clock.phases(result.samples)
    return replace(result, seconds=sum(p.seconds for p in phases), phases=phases, stopped=clock.stop)


def _measure(case: Case, settings: Settings, backend: Backend, golden_store: GoldenStore) -> Measured:
    sessions, clock = sessions_of(settings), current()
    model = with_named(case, load_float(case))
    assert model.file is not None  # the model was loaded from a file
    check_outputs(case, model)
    inputs = open_source(case, case.inputs, model, "inputs", golden_store.limit)
    golden_key = "golden" if case.golden else "baseline"
    with case.at(golden_key):
        golden_store = golden_store.check(inputs)
    if case.labels is not None and inputs.samples is None:  # counts the samples, because each needs a label
        inputs.read_once()
    own_judge = load_judge(case, settings.but(samples=golden_store.limit), inputs.samples or 0, model)
    reference = read_reference(case, model)
    parses = settings.backend == "auto" and not backend.builds_engines  # a build parses the model anyway
    model_findings = lint_model(case, model, settings, parses)
    data_findings = compare_data(case, model, inputs)
    baseline = golden_store.form(model, partial(baseline_form, case, model))
    truth = FileTruth(model.file, inputs, sessions)
    like_implicit = case.int8.implicit is not None and not backend.quantizes_implicitly
    calibrates = case.source.calibrate is not None or like_implicit
    early_candidate: Form | None = None
    if backend.builds_engines or not calibrates:  # engines of baseline and candidate build in parallel
        early_candidate, int8, scale_findings = _candidate(case, settings, backend, model)
    judge = golden_store.tighten(own_judge, model)
    proving = open_proving(case, model, judge)
    has_golden = golden_store.replaces_baseline
    watch = Preactivations(model, own_judge, backend, sessions.mode, has_golden=has_golden)
    golden_outputs = golden_store.cutter() if golden_store.replaces_baseline else None
    logger.info("%s: building engines", case.name)
    with clock.phase("runs"):
        if golden_outputs is not None:
            early = preflight_of_golden(case, backend, model, sessions, truth, watch)
        else:
            early = preflight(
                case,
                backend,
                model,
                baseline,
                inputs,
                candidate=early_candidate,
                judge=judge,
                sessions=sessions,
                truth=truth,
                watch=watch,
            )
    candidate = early_candidate
    if candidate is None:
        candidate, int8, scale_findings = _candidate(case, settings, backend, model)
    keep = dict[Role, float]()
    if settings.search != "off" or golden_store.wants_baseline:
        keep = {Role.BASELINE: math.inf, Role.INT8: _CANDIDATE_BYTES}
    if golden_store.wants_candidate:
        keep[Role.INT8] = math.inf
    with clock.phase("runs"):
        with blaming(candidate.place):
            plan_truth = candidate_truth(case, truth, int8, candidate, sessions)
        runs = run_forms(
            backend,
            model,
            {Role.BASELINE: baseline, Role.INT8: candidate},
            inputs,
            sessions,
            judge,
            early,
            place=case.place("criteria"),
            keep=keep,
            golden=golden_outputs,
            reference=reference,
            watch=watch,
        )
    if isinstance(candidate, ImplicitForm):  # TensorRT has chosen the ranges in the build
        int8 = int8_form(case, model, settings, backend.calibration_cache)
        scale_findings = lint_network(case, int8, settings)
    prepared = _Prepared(
        case=case,
        settings=settings,
        backend=backend,
        golden_store=golden_store,
        model=model,
        inputs=inputs,
        proving=proving,
        int8=int8,
        own_judge=own_judge,
        judge=judge,
        reference=baseline,
        candidate=candidate,
        sessions=sessions,
        clock=clock,
        truth=plan_truth,
        findings=(*model_findings, *scale_findings, *data_findings),
    )
    with clock.phase("runs"):
        lost, verdict = _judged(prepared, runs, early)
        outputs = [runs.decisions.added_to(output, inputs.file_of) for output in verdict.outputs]
        verdict = verdict._replace(outputs=tuple(map(watch.added_to, outputs)))
        default_session = _default_session(prepared, runs, candidate)
    backend.measure_latency((Role.BASELINE, Role.INT8), inputs)
    result = replace(_result(prepared, runs, verdict, lost, truth.notes), default_session=default_session)
    if result.kept:
        with case.at("criteria"):
            blind = try_criteria(judge, runs.spread, verdict.outputs)
        if blind is not None:
            shapes = {name: array.shape for name, array in runs.first[Role.BASELINE].items()}
            blind = replace(blind, metric=fitting_metric(model, shapes))
        result = replace(result, blind=blind)
    run = Compared(runs.kept[Role.BASELINE], runs.kept[Role.INT8], runs.backend, own_judge, inputs)
    with case.at(golden_key):
        result = golden_store.finish(result, run)
    return Measured(
        **vars(prepared),
        result=result,
        runs=runs,
        int8_passed=verdict.passed,
        perturbs=early.baseline is not None,
    )


def _candidate(
    case: Case, settings: Settings, backend: Backend, model: Model
) -> tuple[Form, Int8Form | None, tuple[Finding, ...]]:
    """The candidate, its network if the network is known before the build, and the findings on its scales.

    Raises Int8accError if the candidate does not fit the model or cannot run.
    """
    with current().phase("calibration"):
        candidate, int8 = candidate_form(case, model, settings, implicit=backend.quantizes_implicitly)
    with blaming(candidate.place):
        check_interface(candidate.model, model)
        backend.check(candidate)
    return candidate, int8, lint_network(case, int8, settings)


def _judged(prepared: _Prepared, runs: Runs, early: Preflight) -> tuple[Sequence[Score], Verdict]:
    """The scores of the baseline that miss their limits against FP32, and the verdict on the candidate.

    FP32 runs on all samples if INT8 fails, or if details of a passing case are requested. Raises ModelError
    if a limit is missed because FP16 overflows.
    """
    case, golden_store, judge = prepared.case, prepared.golden_store, prepared.judge
    comparison, verdict = runs.comparisons[Role.BASELINE, Role.INT8], None
    with case.at("criteria"), golden_store.judging():
        if early.settled or not runs.bad.spoil_baseline:
            verdict = comparison.verdict(runs.noise, intervals=True)
        passed = verdict is not None and verdict.passed
        if early.fp32 is not None and is_explained(case, prepared.settings, int8_passed=passed):
            runs.compare_fp32()
        against_fp32 = runs.comparisons.get((Role.FP32, Role.BASELINE))
        lost = [] if against_fp32 is None else missed(against_fp32)
    with case.at("baseline"):
        if not early.settled and not golden_store.replaces_baseline:
            refuse_overflow(
                lost, runs.bad, judge, prepared.model, prepared.reference, prepared.inputs, prepared.sessions
            )
    with case.at("criteria"), golden_store.judging():
        verdict = verdict or comparison.verdict(runs.noise, intervals=True)
        if early.baseline is not None:
            verdict = with_perturbed_inputs(
                verdict, runs.engines.__getitem__, prepared.inputs, judge, runs.perturbed
            )
    return lost, verdict._replace(metrics=golden_store.named(verdict.metrics, prepared.own_judge, judge))


def _default_session(prepared: _Prepared, runs: Runs, form: Form) -> DefaultSession | None:
    """How the results of a model differ in a default session of ONNX Runtime, on the first batch.

    None if they do not differ, or if the case runs in TensorRT, in mode *native*, or in FP16 or BF16. A case
    in FP8 is compared only if users deploy ONNX Runtime.
    """
    settings, sessions = prepared.settings, prepared.sessions
    if not isinstance(form, ModelForm) or not _compares_sessions(prepared, form):
        return None
    batch = next(prepared.inputs.batches())

    def cut_all(outputs: Feed) -> Feed:
        return {name: cut(array, batch, name) for name, array in outputs.items()}

    exact = runs.first[Role.INT8]
    if form is not prepared.candidate:
        exact = cut_all(sessions.exact(form.model)(batch.feed))
    first = FirstBatch(
        feed=batch.feed,
        samples=batch.rows,
        baseline=runs.first[Role.BASELINE],
        exact=exact,
        cut=cut_all,
    )
    is_target, file = settings.backend == "onnxruntime", prepared.case.source.model
    found = compare_default(form.model, first, prepared.judge, sessions, is_target=is_target)
    if found is None and is_target and file is not None and form is prepared.candidate:
        return refused_file(read_model(prepared.case.path(file)), batch.rows, sessions)
    return found


def _compares_sessions(prepared: _Prepared, form: ModelForm) -> bool:
    """Whether a quantized model ran in an exact session, so that a default session may give other results.

    A model in FP8 is compared only if users deploy ONNX Runtime, because ONNX Runtime computes FP8 in FP32.
    """
    low, is_target = low_of(prepared.case), prepared.settings.backend == "onnxruntime"
    is_compared = low.takes_scales if is_target else low is INT8 and not holds_fp8(form.model)
    return _runs_exact(prepared) and is_compared


def _runs_exact(prepared: _Prepared) -> bool:
    """Whether the case runs in exact sessions of ONNX Runtime."""
    return prepared.settings.mode == "exact" and not prepared.backend.builds_engines


def is_explained(case: Case, settings: Settings, *, int8_passed: bool) -> bool:
    """Whether a case is diagnosed: it failed, or the settings or the spec ask for details in any case."""
    return not int8_passed or settings.layers or settings.calibrations or bool(case.reference)


def _result(
    prepared: _Prepared, runs: Runs, verdict: Verdict, lost: Sequence[Score], file_notes: Sequence[str]
) -> CaseResult:
    case, inputs, backend, int8 = prepared.case, prepared.inputs, prepared.backend, prepared.int8
    baseline, candidate, sessions = prepared.reference, prepared.candidate, prepared.sessions
    zero, low = runs.bad.zero(Role.BASELINE), low_of(case)
    contract = precision_contract(case, backend, int8, candidate, inputs, sessions, verdict.outputs, zero)
    gained, untold = engine_scores(case, backend, contract)
    warnings = [
        *nothing_compared(zero),
        *caveats(prepared.settings, int8, baseline, verdict.outputs, verdict.metrics, lost),
        *(inputs.notes if inputs.is_random else ()),
        *untold,
        *not_judged(case, prepared.own_judge, verdict.outputs, bool(prepared.golden_store.recording)),
    ]
    notes = [
        *candidate.notes,
        *baseline.notes,
        *(() if inputs.is_random else inputs.notes),
        *backend.notes,
        *shown_inside(prepared.model, backend),
        *runs.notes,
        *file_notes,
    ]
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
        warnings=tuple(warnings),
        notes=tuple(dict.fromkeys(notes)),
        engines=backend.engines,
        findings=prepared.findings,
        blind_reason=case.accept_blind or ("the inputs are random" if inputs.is_random else ""),
        fails_undecided=case.undecided == "fail",
        random_inputs=inputs.is_random,
        place="engine" if backend.builds_engines else sessions.mode,
        digest=inputs.digest or "",
        float_nan=find_float_nan(prepared.model, verdict.outputs, runs, inputs, sessions, half=baseline.half),
    )
