"""One laboratory per network of a case: any plan tried, priced, built and proved; what was made is kept."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pytest_int8acc.case.data import calibration_data
from pytest_int8acc.case.forms import Int8Form
from pytest_int8acc.case.measured import Measured
from pytest_int8acc.case.shapes import group_shapes, tensor_shapes
from pytest_int8acc.clock import Budget
from pytest_int8acc.data import Dataset
from pytest_int8acc.graph.macs import inferred_shapes, macs, sized_tensors
from pytest_int8acc.graph.network import Network, Plan
from pytest_int8acc.graph.plan import moved, plan_key
from pytest_int8acc.lab.evaluators import Built, Simulated
from pytest_int8acc.lab.losses import Loss, group_losses
from pytest_int8acc.lab.simulator import Simulator
from pytest_int8acc.observers.edges import EdgeMeter
from pytest_int8acc.observers.observer import Observer
from pytest_int8acc.results import Cost, Latency, Role, SampleSet
from pytest_int8acc.runtime.forms import Form
from pytest_int8acc.scores.judge import Verdict
from pytest_int8acc.search.types import GroupInfo
from pytest_int8acc.tensors import Feed

logger = logging.getLogger("pytest_int8acc")
#: An engine may have up to this many times the loss of its ONNX model (1 dB), because TensorRT rounds
#: differently. More is a fault of the engine.
_FAR = 1.25


@dataclass(frozen=True, eq=False)
class Proof:
    """A plan that was built by the case's own backend, run on all samples and judged."""

    plan: Plan
    form: Form
    verdict: Verdict


@dataclass(frozen=True, eq=False)
class Source:
    """Samples that ranges may come from."""

    data: Dataset
    description: str
    """Of the calibration data; empty for the compared inputs."""


class Lab:
    """Where plans of one case are tried by inference, and proved by building."""

    def __init__(self, measured: Measured, int8: Int8Form) -> None:
        """Keep the case. All else is made when it is asked for.

        Args:
            measured: The case.
            int8: Its INT8 side.
        """
        self.measured, self.int8 = measured, int8
        self.network: Network = int8.network
        self.sessions = measured.sessions
        self.clock = measured.clock
        self.builds = 0
        self._proofs: dict[object, Proof] = {}
        self._fused: dict[tuple[str, ...], Simulator] = {}
        self._values: dict[object, Observer] = {}

    # What groups cost

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes in the first batch: tensors that groups quantize, and tensors that tell their work."""
        return self._first[0]

    @cached_property
    def _first(self) -> tuple[Mapping[str, tuple[int, ...]], int]:
        """Shapes in the first batch, and its rows."""
        batch = next(self.measured.inputs.batches())
        needed = dict.fromkeys([*sized_tensors(self.network), *(edge.tensor for edge in self.network.edges)])
        model = self.network.model
        shapes = tensor_shapes(model, batch.feed, needed, self.sessions)
        if any(group.body_edges for group in self.network.groups):
            given = {name: array.shape for name, array in batch.feed.items()}
            shapes = {**inferred_shapes(model, given), **shapes}
        return shapes, batch.rows + batch.padding

    @cached_property
    def _macs(self) -> Mapping[str, float]:
        """Group to its multiply-accumulates in the first batch."""
        shapes, rows = self._first
        return macs(self.network, shapes, rows)

    @cached_property
    def work(self) -> Mapping[str, float]:
        """Group to its multiply-accumulates, as a share of those of all groups.

        Raises:
            EngineError: The float model does not run.
        """
        total = sum(self._macs.values()) or 1.0
        return {name: count / total for name, count in self._macs.items()}

    @cached_property
    def groups(self) -> tuple[GroupInfo, ...]:
        """The network's groups with their prices: measured time where engines tell it, else their work."""
        prices = _latency_prices(self.measured, self.network, self.work)
        shapes = group_shapes(self.network, self.shapes)
        return tuple(GroupInfo(g.name, prices[g.name], shapes[g.name]) for g in self.network.groups)

    def share(self, high: Iterable[str]) -> float:
        """The share of these groups in the multiply-accumulates of all groups."""
        return sum(self.work[name] for name in high)

    def latency(self, form: Form) -> Latency | None:
        """The latency of a form's engine, timed in turn with the INT8 engine; None where it cannot be timed.

        It is scaled by the ratio of the INT8 engine's first latency to its latency now, so that a device
        clock that changes between measurements does not count.
        """
        if not self.measured.backend.times_engines:
            return None
        return self.clock.attempt("latency", lambda: self._latency(form), None)

    def _latency(self, form: Form) -> Latency | None:
        backend, inputs = self.measured.backend, self.measured.inputs
        usual = next((info.latency for info in backend.engines if info.role == Role.INT8), None)
        backend.open(form, Role.FIXED, inputs)
        backend.measure_latency((Role.INT8, Role.FIXED), inputs)
        latencies = {info.role: info.latency for info in backend.engines}
        fixed, now = latencies.get(Role.FIXED), latencies.get(Role.INT8)
        if fixed is None or now is None or usual is None:
            return fixed
        drift = usual.median_ms / now.median_ms
        low, median, high = (ms * drift for ms in (fixed.low_ms, fixed.median_ms, fixed.high_ms))
        return Latency(median, low, high, fixed.runs)

    # Plans by inference

    @cached_property
    def simulator(self) -> Simulator:
        """Judges every plan of the case by one inference.

        Raises:
            DataError: The inputs cannot be read.
        """
        measured, own = self.measured, self.measured.result.scores
        return Simulator(
            self.network,
            measured.inputs,
            measured.baseline,
            measured.judge,
            groups=self.groups,
            rest=self.int8.rest,
            sessions=self.sessions,
            scores=() if measured.backend.needs_simulation or self.sessions.mode != "exact" else own,
            macs=sum(self._macs.values()) / self._first[1],
        )

    def budget(
        self, runs: float, *, most: float = math.inf, trials: tuple[float, float] = (math.inf, math.inf)
    ) -> Budget:
        """A budget for runs of the simulator.

        Args:
            runs: Maximum number of runs over all samples. It is raised where runs take next to no time, and
                has no bound with ``certify``.
            most: Maximum number of runs even then.
            trials: Maximum number of trials on few samples, and the bound to which it is raised.
        """
        simulator, (usual, at_most) = self.simulator, trials
        each = len(simulator.few) / len(simulator.inputs)
        allowed = (lambda runs: math.inf) if self.measured.settings.certify else simulator.allowance
        tried = min(allowed(usual * each) / each, at_most)
        return Budget(self.clock, max_trials=tried, max_runs=min(allowed(runs), most), meter=simulator.meter)

    def simulated(
        self, samples: Sequence[int] | None = None, base: Plan | None = None, room: float = 1.0
    ) -> Simulated:
        """Groups kept high over a plan, judged by inference on some samples; None: all.

        ``room`` is the error budget: the share of the error that the limits allow with which a plan passes.
        """
        return Simulated(self.simulator_of(base or Plan()), base, samples, self.measured.keep, room)

    def simulator_of(self, plan: Plan) -> Simulator:
        """The simulator for a plan: the case's own, or one of the network with the plan's norms fused.

        Raises:
            ModelError: The plan names a norm that is not there.
        """
        if not plan.fused:
            return self.simulator
        if plan.fused not in self._fused:
            self._fused[plan.fused] = self.simulator.on(moved(self.network, Plan(fused=plan.fused)))
        return self._fused[plan.fused]

    @cached_property
    def losses(self) -> Mapping[str, Loss]:
        """The loss of each group that runs alone in FP16 or BF16, the greatest first.

        Raises:
            EngineError: The float model does not run.
        """
        return group_losses(self.network, self.int8.low, self.measured.inputs, self.sessions)

    # What a claim rests on

    @property
    def cost(self) -> Cost:
        """All that the lab has spent. Its seconds count from any moment, so only differences matter."""
        return Cost(self.simulator.meter.runs, time.monotonic(), self.builds)

    def sample_set(self, samples: Sequence[int] | None = None) -> SampleSet:
        """Some samples of the inputs, by index; None: all samples."""
        inputs = self.simulator.inputs
        rows = inputs.rows(range(len(inputs)) if samples is None else samples)
        return SampleSet(len(rows), self.measured.result.digest)

    @property
    def is_narrow(self) -> bool:
        """Whether groups run in FP16 or BF16: nothing is quantized."""
        return not self.int8.low.takes_scales

    @property
    def suspects(self) -> tuple[int, ...] | None:
        """All groups by index, the most suspicious first; None in INT8 and FP8, where errors add up."""
        if not self.is_narrow:
            return None
        place = {group.name: i for i, group in enumerate(self.network.groups)}
        return tuple(place[name] for name in self.losses)

    # Plans by building

    def built(self, simulated: Simulated) -> Built:
        """The same evaluator, which judges each plan by building its model."""
        return Built(simulated, lambda plan: (feed for _, feed in self.build(plan)[1]))

    def build(self, plan: Plan) -> tuple[Form, Iterator[tuple[int, Feed]]]:
        """A plan's form, built by the case's backend, and an iterator over rows and outputs of each batch.

        Raises:
            EngineError: It does not build or run.
        """
        self.builds, form = self.builds + 1, self._form(plan)
        return form, self.measured.run(form)

    def _form(self, plan: Plan) -> Form:
        logger.info("%s: building a model with %d groups high", self.measured.case.name, len(plan.high))
        return self.int8.under(plan)

    def judged(self, form: Form) -> Verdict:
        """The verdict on a form that is built and run on all samples, judged as fixes are.

        Raises:
            EngineError: It does not build or run.
        """
        self.builds += 1
        return self.measured.proved(form)

    def prove(self, plan: Plan) -> Proof:
        """The proof of a plan: built, run on all samples and judged, once.

        Raises:
            EngineError: It does not build or run, or computes, but for rounding, something else than the
                user's file.
        """
        key = plan_key(plan)
        if key not in self._proofs:
            form = self._form(plan)
            self.measured.truth.check_form(form, self.int8.unrounded(plan))
            self._proofs[key] = Proof(plan, form, self.judged(form))
        return self._proofs[key]

    def is_proved(self, plan: Plan) -> bool:
        """Whether ``prove`` has its answer already."""
        return plan_key(plan) in self._proofs

    @property
    def refuted(self) -> tuple[Plan, ...]:
        """Plans that pass in the simulation and fail by far as built: the builder is at fault."""
        return tuple(proof.plan for proof in self._proofs.values() if self._is_refuted(proof))

    def _is_refuted(self, proof: Proof) -> bool:
        if proof.verdict.passed:
            return False
        trial = self.simulator.trial(proof.plan)
        normalized_loss = max((score.normalized_loss for score in proof.verdict.scores), default=math.inf)
        return trial.passed and normalized_loss > _FAR * trial.loss

    def judged_here(self, plan: Plan) -> Verdict:
        """The verdict on a plan run by ONNX Runtime; exact where the backend is TensorRT.

        Raises:
            EngineError: It does not run.
        """
        measured, form = self.measured, self.int8.under(plan)
        opened = self.sessions.exact if measured.backend.needs_simulation else self.sessions.configured
        return measured.judged(measured.outputs_of(opened(form.model)))

    # What the float model holds

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The data that ranges may come from: the case's calibration data where it has some, and the inputs.

        Raises:
            DataError: The calibration data cannot be read.
        """
        inputs = Source(self.measured.inputs, "")
        data = calibration_data(self.measured.case, self.measured.model)
        if data is not None and self.int8.observed is not None:  # the same, read already
            data = self.int8.observed.dataset
        own = () if data is None else (Source(data, data.description),)
        return (*own, inputs)

    def values(self, dataset: Dataset, plan: Plan | None = None) -> Observer:
        """The observer of the network's tensors on a dataset, with range moved as a plan says."""
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

    @cached_property
    def meter(self) -> EdgeMeter:
        """What each quantization does to the values of its tensor."""
        measured = self.measured
        return EdgeMeter(self.network, measured.model, measured.inputs, self.sessions)


def _is_same(one: Dataset, other: Dataset) -> bool:
    """Whether both are known to hold the same samples in the same order."""
    return one is other or (one.digest is not None and one.digest == other.digest)


def _latency_prices(measured: Measured, network: Network, work: Mapping[str, float]) -> Mapping[str, float]:
    """What each group costs more in the baseline's engine than in INT8, in ms; its work where none tells.

    Layers are timed one by one, which is good enough to order groups; the price of a fix is measured whole.
    """
    slow = measured.backend.node_times(Role.BASELINE, measured.inputs)
    fast = measured.backend.node_times(Role.INT8, measured.inputs)
    if not slow or not fast:
        return work
    least = 1e-3 * sum(slow.values()) / max(len(network.groups), 1)
    return {
        group.name: max(
            sum(slow.get(n, 0.0) - fast.get(n, 0.0) for n in group.nodes), least * work[group.name]
        )
        for group in network.groups
    }
