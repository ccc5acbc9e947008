"""Tries plans of a case by inference, proves them by building their models, and remembers the results.

A plan says which layers of the low-precision model run in high precision, and which scales tensors have.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property, partial

import numpy as np
from pydantic import TypeAdapter

from pytest_int8acc.case.data import calibration_data
from pytest_int8acc.case.forms import Int8Form
from pytest_int8acc.case.measured import HeldOutSamples, Measured
from pytest_int8acc.case.own_samples import OwnSamples
from pytest_int8acc.case.runs import rows_of
from pytest_int8acc.case.shapes import group_shapes, tensor_shapes
from pytest_int8acc.clock import Budget
from pytest_int8acc.data import Dataset
from pytest_int8acc.errors import EngineError, Int8accError
from pytest_int8acc.graph.macs import inferred_shapes, leading_outputs, macs, sized_tensors
from pytest_int8acc.graph.network import Network, Plan, TensorScale
from pytest_int8acc.graph.plan import moved, plan_key
from pytest_int8acc.graph.surviving import surviving
from pytest_int8acc.lab.evaluators import Built, Simulated
from pytest_int8acc.lab.losses import TensorLoss, group_losses
from pytest_int8acc.lab.simulator import Simulator
from pytest_int8acc.lab.split import LEAST, LEAST_HELD_OUT, Split, chosen_rows, has_rows, margins, split
from pytest_int8acc.lab.times import engine_layers, group_works
from pytest_int8acc.observers.edges import EdgeMeter
from pytest_int8acc.observers.observer import Observer
from pytest_int8acc.results import Cost, DefaultSession, HeldOut, Latency, Place, Role, SampleSet, Score
from pytest_int8acc.results.engines import LayerTime
from pytest_int8acc.results.scores import LIKELY
from pytest_int8acc.runtime.forms import Form, ModelForm
from pytest_int8acc.scores.judge import Verdict, sample_ratios
from pytest_int8acc.scores.rows import F64
from pytest_int8acc.search.speed import GroupWork, losses
from pytest_int8acc.search.types import GroupInfo
from pytest_int8acc.tensors import Feed, Outputs

logger = logging.getLogger("pytest_int8acc")
#: Maximum ratio of the normalized loss of an engine to that of its ONNX model (1 dB). TensorRT rounds
#: differently, but a greater ratio is a fault of the engine.
ENGINE_ROUNDING = 1.25


@dataclass(frozen=True, eq=False, kw_only=True)
class Judgement:
    """The verdicts on a model that the case's own backend built and ran."""

    verdict: Verdict
    """The verdict on all samples."""
    chosen: Verdict
    """The verdict on the samples by which the search chose the model."""
    held_out: Verdict | None
    """The verdict on the held-out samples, which no choice was based on; None if there are none."""
    confidence: float = LIKELY
    """Minimum share of bootstrap resamples of the held-out samples that must meet the limits, 0 to 1."""
    survives: bool = True
    """Whether the model also meets the criteria in a default session of ONNX Runtime. True if users deploy no
    default session."""

    @property
    def passed(self) -> bool:
        """Whether the criteria are met on all samples and on the held-out samples."""
        return self.verdict.passed and (self.held_out is None or self.held_out.passed)

    @property
    def holds(self) -> bool:
        """Whether the criteria are met with a safety margin, and in a default session if users deploy one."""
        return self.has_reserve and self.survives

    @property
    def has_reserve(self) -> bool:
        """Whether the criteria are met with a safety margin; a default session of ONNX Runtime is ignored."""
        return self.verdict.holds and (self.held_out is None or self.held_out.holds_at(self.confidence))

    @property
    def is_verified(self) -> bool:
        """Whether the criteria are met with a safety margin, also on held-out samples, which chose no plan.

        The number of all samples must also be large enough to prove each score.
        """
        return self.holds and self.held_out is not None and not self.verdict.unproved

    @property
    def needs_margin(self) -> bool:
        """Whether a plan with less error might be verified, although this plan is not."""
        if not self.has_reserve or self.held_out is None:
            return not self.has_reserve
        return any(score.normalized_loss > 0 for score in self.verdict.unproved)


@dataclass(frozen=True, eq=False, kw_only=True)
class Proof(Judgement):
    """A plan that the case's own backend built, with the verdicts on its model."""

    plan: Plan
    form: Form
    by_default: DefaultSession | None = None
    """How the model's results differ in the default session that users deploy. None if the results agree, or
    if users deploy no default session."""
    rewritten_for: tuple[str, ...] = ()
    """The optimizers of ONNX Runtime for which ``form`` was rewritten, because they changed its results."""


@dataclass(frozen=True)
class _ProofRecord:
    """The fields of a ``Proof`` that are written to a file. The search makes the plan and the model anew."""

    verdict: Verdict
    chosen: Verdict
    held_out: Verdict | None
    confidence: float
    survives: bool
    by_default: DefaultSession | None
    rewritten_for: tuple[str, ...]


@cache
def _proof_adapter() -> TypeAdapter[_ProofRecord]:
    """Converts the fields of a proof to JSON types and back. It is made once, because making it is slow."""
    return TypeAdapter(_ProofRecord)


@dataclass(frozen=True, eq=False)
class Source:
    """A dataset from which the ranges of activations may be taken."""

    data: Dataset
    description: str
    """A description of the calibration data; empty if ``data`` is the inputs of the case."""


class Lab:
    """Tries plans of one case by inference, and proves plans by building their models.

    Each property is computed when it is first needed, and is then kept.
    """

    def __init__(
        self,
        measured: Measured,
        int8: Int8Form,
        split: Split | None = None,
        own: OwnSamples | None = None,
    ) -> None:
        """Create a lab. Nothing is run yet.

        Args:
            measured: The measured case.
            int8: The network of its INT8 candidate.
            split: The indices of the samples by which plans are chosen, and of those on which plans are
                proved. None if plans are chosen by all samples.
            own: Separate samples of the user on which plans are proved; plans are then chosen by all inputs.
                None if the user gives none.
        """
        self.measured, self.int8, self.split = measured, int8, split or Split((), ())
        self.own = own
        self.network: Network = int8.network
        self.sessions = measured.sessions
        self.clock = measured.clock
        self.builds = 0
        self.unbuilt: list[str] = []
        """The reasons why models of plans that a search chose did not build or run."""
        self.failed_proofs = 0
        """The number of models that met the criteria with a safety margin on all samples, but not on the
        held-out samples."""
        self.mended: dict[str, TensorScale] = {}
        """Maps a tensor to the scale with which an ablation confirmed why a layer loses accuracy."""
        self._proofs: dict[object, Proof] = {}
        self._fused: dict[tuple[str, ...], Simulator] = {}
        self._values: dict[tuple[int, object], Observer] = {}

    @cached_property
    def inputs(self) -> Dataset:
        """The samples on which layers, scales and plans are chosen."""
        whole, choosing = self.measured.inputs, self.split.choosing
        return whole.of_rows(choosing) if choosing else whole

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape in the first batch of each tensor that is quantized or needed to count MACs, by name."""
        return self._first[0]

    @cached_property
    def _first(self) -> tuple[Mapping[str, tuple[int, ...]], int]:
        """The ``shapes`` of tensors in the first batch, and the number of rows of that batch with padding."""
        batch = next(self.measured.inputs.batches())
        model, groups = self.network.model, self.network.groups
        edges = (edge for group in groups if not group.is_inner for edge in group.edges)
        outputs = leading_outputs(self.network).values()
        needed = dict.fromkeys([*sized_tensors(model), *outputs, *(edge.tensor for edge in edges)])
        shapes = tensor_shapes(model, batch.feed, needed, self.sessions)
        if any(group.is_inner for group in groups):
            given = {name: array.shape for name, array in batch.feed.items()}
            shapes = {**inferred_shapes(model, given), **shapes}
        return shapes, batch.rows + batch.padding

    @cached_property
    def _macs(self) -> Mapping[str, float]:
        """The multiply-accumulates of each group of layers in the first batch."""
        shapes, rows = self._first
        return macs(self.network, shapes, rows)

    @cached_property
    def work(self) -> Mapping[str, float]:
        """The multiply-accumulates of each group of layers, as a share of the total of all groups.

        Raises:
            EngineError: The float model does not run.
        """
        total = sum(self._macs.values()) or 1.0
        return {name: count / total for name, count in self._macs.items()}

    @cached_property
    def groups(self) -> tuple[GroupInfo, ...]:
        """The groups of layers with the price of high precision: time if engines report it, else MACs."""
        prices = self._prices
        shapes = group_shapes(self.network, self.shapes)
        return tuple(GroupInfo(g.name, prices[g.name], shapes[g.name]) for g in self.network.groups)

    @cached_property
    def layer_times(self) -> Mapping[Role, Sequence[LayerTime]]:
        """The layers of the baseline's engine and of the candidate's with their times, by role.

        The layers of a role are empty if the engine does not report them.
        """
        return {role: engine_layers(self.measured, role) for role in (Role.BASELINE, Role.INT8)}

    @cached_property
    def group_works(self) -> tuple[GroupWork, ...]:
        """What each group of layers computes, in topological order."""
        return group_works(self.network, self.measured.candidate.model, self.work, self.shapes)

    @property
    def _prices(self) -> Mapping[str, float]:
        """For each group, its time in ms in the baseline's engine minus its time in the INT8 engine.

        If an engine does not report all layers, ``work`` is returned. Layers are timed one by one, which is
        exact enough to rank groups. The price of a fix is measured on the whole engine.
        """
        low, high = self.layer_times[Role.INT8], self.layer_times[Role.BASELINE]
        if not low or not high or any(layer.is_region for layer in (*low, *high)):
            return self.work
        lost = losses(self.group_works, low, high)
        least = 1e-3 * sum(layer.milliseconds for layer in high) / max(len(lost), 1)
        return {name: max(-ms, least * self.work[name]) for name, ms in lost.items()}

    def share(self, high: Iterable[str]) -> float:
        """The multiply-accumulates of the groups named in ``high``, as a share of the total of all groups."""
        return sum(self.work[name] for name in high)

    def latency(self, form: Form) -> Latency | None:
        """The latency of the engine of a model; None if it cannot be timed.

        The engine is timed in turn with the INT8 engine. The result is scaled by the ratio of the INT8
        engine's first latency to its latency now. So changes of the GPU's clock between the measurements have
        no effect.
        """
        if not self.measured.backend.times_engines:
            return None
        return self.clock.attempt("latency", lambda: self._latency(form), None)

    def _latency(self, form: Form) -> Latency | None:
        engines = self.measured.backend.engines
        usual = next((info.latency for info in engines if info.role == Role.INT8), None)
        latencies = self.timed(form, (Role.INT8, Role.FIXED))
        fixed, now = latencies.get(Role.FIXED), latencies.get(Role.INT8)
        if fixed is None or now is None or usual is None:
            return fixed
        return fixed.scaled(usual.median_ms / now.median_ms)

    def timed(self, form: Form, roles: Sequence[Role]) -> Mapping[Role, Latency | None]:
        """The latencies of engines that run in turn, by role. ``form`` is the model of ``Role.FIXED``.

        Raises:
            EngineError: The engine of ``form`` does not build or run.
        """
        backend, inputs = self.measured.backend, self.measured.inputs
        backend.open(form, Role.FIXED, inputs)
        backend.measure_latency(roles, inputs)
        return {info.role: info.latency for info in backend.engines}

    @cached_property
    def simulator(self) -> Simulator:
        """The simulator of the network as the case quantizes it.

        Raises:
            DataError: The inputs cannot be read.
        """
        measured, choosing = self.measured, self.split.choosing
        exact, judge = self.simulates_exactly, measured.judge
        if choosing:
            judge = judge.of_rows(choosing)
        return Simulator(
            self.network,
            self.inputs,
            self._chosen(measured.baseline),
            judge,
            groups=self.groups,
            rest=self.int8.rest,
            sessions=self.sessions,
            scores=measured.result.scores if exact and not choosing else (),
            candidate=self._chosen(measured.runs.kept[Role.INT8]) if self.builds_are_simulated else None,
            macs=sum(self._macs.values()) / self._first[1],
            errors=_errors(measured, measured.inputs.samples or 0)[list(choosing) or slice(None)],
            records=measured.records.of(choosing),
        )

    def _chosen(self, outputs: Outputs) -> Outputs:
        """The rows of a model's ``outputs`` that belong to the samples on which plans are chosen."""
        choosing, samples = self.split.choosing, self.measured.inputs.samples or 0
        if not choosing:
            return outputs
        return {name: chosen_rows(arrays, choosing, samples) for name, arrays in outputs.items()}

    @property
    def simulates_exactly(self) -> bool:
        """Whether the case's backend computes a model as the simulator does."""
        return self.sessions.mode == "exact" and not self.measured.backend.needs_simulation

    @property
    def builds_are_simulated(self) -> bool:
        """Whether a run of a plan's model has the same results as its simulation.

        In FP16 and BF16 the results may differ, because the model and its simulation add in another order.
        """
        return self.simulates_exactly and not self.is_narrow

    def budget(
        self, runs: float, *, most: float = math.inf, trials: tuple[float, float] = (math.inf, math.inf)
    ) -> Budget:
        """A budget for runs of the simulator. With the setting ``certify``, runs and trials are not limited.

        Args:
            runs: Maximum number of runs over all samples. It is raised if runs take very little time.
            most: Maximum to which ``runs`` may be raised.
            trials: Maximum number of trials on the samples ``Simulator.few``, and the number to which this
                maximum may be raised if runs take very little time.
        """
        simulator, (usual, at_most) = self.simulator, trials
        each = len(simulator.few) / len(simulator.inputs)
        allowed = (lambda runs: math.inf) if self.measured.settings.certify else simulator.allowance
        tried = min(allowed(usual * each) / each, at_most)
        return Budget(self.clock, max_trials=tried, max_runs=min(allowed(runs), most), meter=simulator.meter)

    def simulated(
        self, samples: Sequence[int] | None = None, base: Plan | None = None, room: float = 1.0
    ) -> Simulated:
        """An evaluator that simulates plans; see ``Simulated`` for the arguments."""
        return Simulated(self.simulator_of(base or Plan()), base, samples, self.measured.keep, room)

    def simulator_of(self, plan: Plan) -> Simulator:
        """The simulator for a plan; for a plan that fuses norms, it runs the network with fused norms.

        Raises:
            ModelError: The plan names a norm that the network does not have.
        """
        if not plan.fused:
            return self.simulator
        if plan.fused not in self._fused:
            self._fused[plan.fused] = self.simulator.on(moved(self.network, Plan(fused=plan.fused)))
        return self._fused[plan.fused]

    @cached_property
    def losses(self) -> Mapping[str, tuple[TensorLoss, ...]]:
        """The losses of each group of layers if only this group runs in FP16 or BF16; see ``group_losses``.

        Raises:
            EngineError: The float model does not run.
        """
        return group_losses(self.network, self.int8.low, self.inputs, self.sessions)

    @property
    def cost(self) -> Cost:
        """The cost of all runs and builds so far.

        Seconds count from an arbitrary time. Subtract two results to get a duration.
        """
        return Cost(self.simulator.meter.runs, time.monotonic(), self.builds)

    def sample_set(self, samples: Sequence[int] | None = None) -> SampleSet:
        """The number and origin of samples, given by index among those that choose plans; None means all."""
        inputs = self.simulator.inputs
        rows = inputs.rows(range(len(inputs)) if samples is None else samples)
        return SampleSet(len(rows), self.measured.result.digest)

    def held_out(self, judged: Judgement | None) -> HeldOut:
        """Return how many samples are held out, how many are missing, and a model's scores on them.

        ``judged`` is None if no model was judged.
        """
        verdict = None if judged is None else judged.held_out
        scores = verdict.scores if verdict is not None else ()
        samples, more = self.measured.inputs.samples or 0, 0
        few = judged.verdict.unproved if judged is not None and judged.holds else ()
        if few:
            more = max(_needed(score) for score in few) - samples
        if self.own is None:
            missing = max(LEAST - samples, more, 0)
            return HeldOut(0 if few else len(self.split.held_out), missing, scores=scores)
        missing = max(LEAST_HELD_OUT - self.own.units, 0)
        return HeldOut(0 if missing or few else self.own.count, max(missing, more), "prove", scores)

    @property
    def _proving(self) -> HeldOutSamples:
        """The samples that prove plans; empty if there are too few."""
        if self.own is None:
            return self.split.held_out
        return self.own if self.own.units >= LEAST_HELD_OUT else ()

    @property
    def place_here(self) -> Place:
        """The kind of ONNX Runtime session in which ``judged_here`` runs a plan."""
        return "exact" if self.measured.backend.needs_simulation else self.sessions.mode

    @property
    def is_narrow(self) -> bool:
        """Whether the low format is FP16 or BF16, so that nothing is quantized."""
        return not self.int8.low.takes_scales

    @property
    def suspects(self) -> tuple[int, ...] | None:
        """The indices of all groups, the group with the greatest loss first.

        None for INT8 and FP8, because there a search ranks the groups itself.
        """
        if not self.is_narrow:
            return None
        place = {group.name: i for i, group in enumerate(self.network.groups)}
        return tuple(place[name] for name in self.losses)

    def built(self, simulated: Simulated) -> Built:
        """An evaluator that builds a plan's model to judge it, and simulates it to measure error vectors."""

        def outputs(plan: Plan) -> Iterator[Feed]:
            self.builds += 1
            start, choosing = 0, self.split.choosing
            for rows, feed in self.measured.run(self._form(plan)):
                chosen = [row for row in range(rows) if start + row in choosing]
                start += rows
                if not choosing:
                    yield feed
                elif chosen:
                    yield rows_of(feed, chosen, rows)

        return Built(simulated, outputs)

    def _form(self, plan: Plan) -> Form:
        logger.info("%s: building a model with %d groups high", self.measured.case.name, len(plan.high))
        return self.int8.under(plan)

    def judged(self, form: Form) -> Judgement:
        """Build a model, run it on all samples and return the verdicts on it.

        The more models failed only on the held-out samples, the higher is the required confidence
        (Bonferroni, 1936). Otherwise one of many models would meet the limits by chance. A proof that
        succeeds does not raise the confidence (fixed-sequence testing; Maurer, Hothorn and Lehmacher, 1995).

        Raises:
            EngineError: The model does not build or run.
        """
        verdicts = self.measured.proved(form, self._proving)
        confidence = 1.0 - (1.0 - LIKELY) / (1 + self.failed_proofs)
        found = Judgement(confidence=confidence, **verdicts._asdict())
        self._count(found)
        return found

    def _count(self, found: Judgement) -> None:
        """Count a model as a build, or as a simulated run if it fails on the samples that choose plans.

        The latter holds only if ``builds_are_simulated``. A model that fails only on the held-out samples
        also counts in ``failed_proofs``, and so raises the required confidence.
        """
        if self.builds_are_simulated and not found.chosen.passed:
            self.simulator.meter.runs += 1.0
        else:
            self.builds += 1
        if found.verdict.holds and not found.has_reserve:
            self.failed_proofs += 1

    def prove(self, plan: Plan) -> Proof:
        """Build the model of a plan, run it on all samples and judge it. Each plan is proved once.

        Raises:
            EngineError: The model does not build or run, or differs from the user's model file by more than
                rounding.
        """
        key = plan_key(plan)
        if key not in self._proofs:
            form = self._form(plan)
            self._proofs[key] = self._recorded(plan, form) or self._proved(plan, form)
        return self._proofs[key]

    def _proved(self, plan: Plan, form: Form) -> Proof:
        """The proof of a plan, of which ``form`` is the model.

        The proof is recorded unless the model is an engine, because engines are in the engine store anyway.
        """
        name = self._record_name(plan)
        self.measured.truth.check_form(form, self.int8.unrounded(plan))
        proof = Proof(plan=plan, form=form, **vars(self.judged(form)))
        if proof.has_reserve and isinstance(form, ModelForm) and self.measured.deploys_default:
            proof = self._deployed(proof, form)
        if not self.measured.backend.builds_engines:
            record = _ProofRecord(**{part.name: getattr(proof, part.name) for part in fields(_ProofRecord)})
            plain = _proof_adapter().dump_python(record, mode="json")
            self.measured.records.keep(*name, proof=plain)
        return proof

    def _recorded(self, plan: Plan, form: Form) -> Proof | None:
        """The recorded proof of a plan; None if there is none. Like a new proof, it counts as a build."""
        found = self.measured.records.find(*self._record_name(plan))
        if found is None:
            return None
        record = _proof_adapter().validate_python(found["proof"])
        if record.rewritten_for and isinstance(form, ModelForm):
            form = surviving_form(form, record.rewritten_for) or form
        proof = Proof(plan=plan, form=form, **vars(record))
        self._count(proof)
        return proof

    def _record_name(self, plan: Plan) -> tuple[object, ...]:
        own = None if self.own is None else (self.own.digest, self.own.judge.labels, self.own.judge.groups)
        return "proof", plan_key(plan), self.split.held_out, own, self.failed_proofs

    def _deployed(self, proof: Proof, form: ModelForm) -> Proof:
        """Return ``proof`` after a trial in a default session of ONNX Runtime.

        If the model fails in that session, an equivalent, rewritten model is tried in it, and replaces the
        model if the rewritten one passes.

        Args:
            proof: A proof in an exact session, in which the criteria are met with a safety margin.
            form: The model of the plan.
        """
        measured = self.measured
        missed = self._missed_by_default(proof, form)
        if missed is None:
            return proof
        found = measured.default_session(form) or missed
        other = surviving_form(form, found.optimizers)
        if other is not None:
            verdicts = measured.proved(other, self._proving)
            again = replace(proof, form=other, rewritten_for=found.optimizers, **verdicts._asdict())
            if again.has_reserve and self._missed_by_default(again, other) is None:
                return again
        return replace(proof, survives=False, by_default=found)

    def _missed_by_default(self, proof: Proof, form: ModelForm) -> DefaultSession | None:
        """How a proved model misses the criteria in a default session.

        The result is None if the model meets the criteria with a safety margin in a default session.
        """
        samples = self.measured.inputs.samples or 0
        try:
            verdicts = self.measured.judged_by_default(form, self._proving)
        except EngineError as error:
            return DefaultSession("refused", is_target=True, samples=samples, problem=str(error))
        if replace(proof, **verdicts._asdict()).has_reserve:
            return None
        worst = max(verdicts.verdict.scores, key=lambda score: score.normalized_loss, default=None)
        return DefaultSession("fails", is_target=True, samples=samples, default=worst)

    def is_proved(self, plan: Plan) -> bool:
        """Whether the plan was proved before, so that ``prove`` returns at once."""
        return plan_key(plan) in self._proofs

    def is_promising(self, plan: Plan) -> bool:
        """Whether a plan is worth a proof, because it passes in the simulation.

        If builds are simulated, it is enough that the plan passes on the screening subset, because a
        simulation on all samples would repeat the run that proves the plan.
        """
        simulator = self.simulator_of(plan)
        screened = self.builds_are_simulated and simulator.normalized_loss(plan) <= 1
        return screened or simulator.trial(plan).passed

    @property
    def refuted(self) -> tuple[Plan, ...]:
        """Plans that pass in the simulation, while their engines fail by more than rounding explains."""
        return tuple(proof.plan for proof in self._proofs.values() if self._is_refuted(proof))

    def _is_refuted(self, proof: Proof) -> bool:
        if proof.verdict.passed:
            return False
        trial, scores = self.simulator.trial(proof.plan), proof.chosen.scores
        normalized_loss = max((score.normalized_loss for score in scores), default=math.inf)
        return trial.passed and normalized_loss > ENGINE_ROUNDING * trial.loss

    def judged_here(self, plan: Plan, int8: Int8Form | None = None) -> Verdict:
        """The verdict on a plan that runs in ONNX Runtime, even if the case's own backend is TensorRT.

        Args:
            plan: The plan.
            int8: The candidate to which the plan is applied; None for the case's own candidate.

        Raises:
            EngineError: The model does not run.
        """
        measured, form = self.measured, (int8 or self.int8).under(plan)
        opened = self.sessions.exact if measured.backend.needs_simulation else self.sessions.configured
        return measured.judged(measured.outputs_of(opened(form.model)))

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The data from which ranges may be taken: the calibration data if the case has any, then the inputs.

        Raises:
            DataError: The calibration data cannot be read.
        """
        inputs = Source(self.inputs, "")
        data = calibration_data(self.measured.case, self.measured.model)
        if data is not None and self.int8.observed is not None:  # the calibration has read the same data
            data = self.int8.observed.dataset
        proving = self.measured.inputs.digest if self.split.held_out else None
        if self.own is not None:
            proving = self.own.digest
        if data is None or (proving is not None and data.read_once() == proving):
            return (inputs,)  # the calibration data may contain samples that prove plans
        return Source(data, data.description), inputs

    def values(self, dataset: Dataset, plan: Plan | None = None) -> Observer:
        """The observer of the network's tensors on a dataset; with a plan, after its ``moves`` of range.

        The first pass measures all activations that the network quantizes, so that later calls need no pass.
        """
        plan = Plan(moves=plan.moves) if plan else Plan()
        key = (id(dataset), plan_key(plan))
        if key not in self._values:
            network = self.simulator.moved(plan.moves) if plan.moves else self.network
            model, known = network.model, self.int8.observed
            if known is None or known.model is not model or not _is_same(known.dataset, dataset):
                known = Observer(model, dataset, self.sessions, self.network.low)
                if not plan.moves:
                    edges = (edge for edge in self.network.edges if edge.quantization.values is None)
                    known.want(edge.tensor for edge in edges)
            self._values[key] = known
        return self._values[key]

    def forget(self, plan: Plan) -> None:
        """Free the network and the values after the moves of range of ``plan``, which no later plan has."""
        gone = plan_key(Plan(moves=plan.moves))
        self._values = {key: values for key, values in self._values.items() if key[1] != gone}
        self.simulator.forget(plan.moves)

    def close(self) -> None:
        """Free all sessions, and what trials have measured. Proofs stay, and a later trial measures again."""
        if "simulator" in vars(self):  # it was needed
            self.simulator.close()
        for simulator in self._fused.values():
            simulator.close()
        self._values.clear()

    @cached_property
    def meter(self) -> EdgeMeter:
        """Measures the quantization error of each quantized tensor, on the values of the tensor."""
        measured = self.measured
        return EdgeMeter(self.network, measured.model, self.inputs, self.sessions)


def _needed(score: Score) -> int:
    """The number of samples that would prove a score; 0 if there are enough, or if no number is known."""
    interval = score.interval
    return 0 if interval is None or interval.enough else interval.needed or 0


def open_lab(measured: Measured, int8: Int8Form, *, passes: bool = False) -> Lab:
    """A lab in which, if possible, some samples choose plans and the others prove them.

    If the spec names samples under ``prove``, these prove, and all inputs choose. Otherwise the inputs are
    split. In four cases all inputs choose, and none prove: there are few inputs, outputs cannot be cut into
    samples, the candidate does not run, or an engine meets the criteria on the choosing part. In the last
    case a search for accuracy would find nothing.

    Args:
        measured: The measured case.
        int8: The network of its INT8 candidate.
        passes: Whether the candidate meets the criteria, and the plans are for something else, like speed.

    Raises:
        DataError: The samples under ``prove`` cannot be read.
        EngineError: The baseline does not run on them.
    """
    whole = Lab(measured, int8)
    if measured.proving is not None:
        own = measured.clock.attempt("search", measured.own_samples, None)
        return Lab(measured, int8, own=own)
    try:
        opened = partial(_split_lab, measured, int8, passes=passes)
        return measured.clock.attempt("speed" if passes else "search", opened, None) or whole
    except Int8accError:  # the search meets the same error and reports it
        return whole


def _split_lab(measured: Measured, int8: Int8Form, *, passes: bool) -> Lab | None:
    """A lab with split samples; None if they must not be split, for one of the reasons in ``open_lab``."""
    samples = measured.inputs.samples or 0
    if not has_rows(measured.baseline, samples):
        return None
    groups = measured.judge.groups
    parts = split(_errors(measured, samples), margins(measured.baseline, samples), groups=groups)
    if not parts.held_out:
        return None
    lab = Lab(measured, int8, parts)
    if passes or not measured.backend.needs_simulation or not lab.simulator.trial(Plan()).passed:
        return lab
    outputs = measured.outputs_of(measured.runs.engines[Role.INT8])
    _, chosen = measured.runs.compared_in_parts(outputs, (parts.choosing,))
    return None if chosen.verdict(measured.runs.noise).passed else lab


def _errors(measured: Measured, samples: int) -> F64:
    """For each sample, the candidate's ratio of error power to signal power, [samples].

    If there are several outputs, the greatest of their ratios is used.
    """
    errors = np.zeros(samples)
    for output in measured.runs.comparisons[Role.BASELINE, Role.INT8].outputs.values():
        if len(output.errors) == samples:
            with np.errstate(divide="ignore"):
                errors = np.fmax(errors, 1.0 / sample_ratios(output.errors))
    return errors


def _is_same(one: Dataset, other: Dataset) -> bool:
    """Whether two datasets are known to hold the same samples in the same order."""
    return one is other or (one.digest is not None and one.digest == other.digest)


def surviving_form(form: ModelForm, optimizers: Collection[str]) -> ModelForm | None:
    """An equivalent model, written so that the optimizers do not change its results.

    It has the same layers in low precision, scales and quantized values. In an exact session its results
    differ only by rounding in the last bit of FP32. Whether a default session agrees must be proved, see
    ``Measured.default_session``.

    Args:
        form: A candidate or a fix, as it runs. Only ``model`` changes in the result.
        optimizers: The optimizers that change the results of the form in a default session.

    Returns:
        The rewritten model; None if no rewrite is known for these optimizers, or if it changes nothing.
    """
    model = surviving(form.model, optimizers)
    if list(model.graph.node) == list(form.model.graph.node):
        return None
    return replace(form, model=model)
