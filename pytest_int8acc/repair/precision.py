"""Why a case failed: the groups that must leave INT8, searched in a simulation and proved by building.

    network ── switchboard ── simulator ──→ strategy ──→ plan ── applied, built, run, judged ──→ verified
                  (four fifths of the samples)                        (all samples)

Where the built model contradicts the simulation, that is said, and the search goes on with built models.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_int8acc.case.forms import Fix, Form
from pytest_int8acc.case.judge import Verdict
from pytest_int8acc.case.trial_judge import Criteria
from pytest_int8acc.engines.onnxruntime import OrtEngine
from pytest_int8acc.errors import EngineError
from pytest_int8acc.graph.fp16_network import emulate_network, network_to_fp16
from pytest_int8acc.graph.macs import macs
from pytest_int8acc.graph.network import Network, Plan
from pytest_int8acc.graph.switchboard import build_switchboard
from pytest_int8acc.lab.engine_evaluator import EngineEvaluator
from pytest_int8acc.lab.simulator import Simulator, split
from pytest_int8acc.measure.measured import Measured
from pytest_int8acc.results import Certificate, Culprit, Latency, LayerLine, Score, SearchOutcome, TrialLine
from pytest_int8acc.search import certify, search
from pytest_int8acc.search.types import Budget, GroupInfo, SearchResult, Trial
from pytest_int8acc.tensors import Outputs

logger = logging.getLogger("pytest_int8acc")


def investigate(measured: Measured) -> tuple[SearchOutcome, Fix | None]:
    """Search the cheapest groups to keep high, build the model, and judge it on all samples.

    Raises:
        Int8accError: A model of the search does not build or run.
    """
    started = time.perf_counter()
    logger.info("%s: searching the groups that must leave INT8", measured.case.name)
    bench = _Bench(measured)
    found = _find(bench)
    if measured.settings.certify and found.verified and found.result.high:
        found = _certified(bench, found)
    if found.verified and found.result.high and measured.candidate.implicit is not None:
        found = replace(found, notes=(*found.notes, bench.prove_implicit(found.result)))
    outcome = _outcome(bench, found, time.perf_counter() - started)
    if found.proof is None or not found.verified or not found.result.high:
        return outcome, None
    return outcome, Fix(bench.int8, found.proof.plan, found.proof.form)


def latency_of(measured: Measured) -> Callable[[Form], Latency | None]:
    """What a form costs as an engine, timed in turn with the INT8 engine.

    Times are set off against how fast that one ran in its first measurement, so that clocks which change
    between measurements do not count. None where the engine cannot be timed.
    """
    backend = measured.backend
    usual = next((info.latency for info in backend.engines if info.role == "INT8"), None)

    def price(form: Form) -> Latency | None:
        backend.open(form, "fixed", measured.inputs)
        backend.measure_latency(("INT8", "fixed"), measured.inputs)
        told = {info.role: info.latency for info in backend.engines}
        fixed, now = told["fixed"], told.get("INT8")
        if fixed is None or now is None or usual is None:
            return fixed
        drift = usual.median_ms / now.median_ms
        low, median, high = (ms * drift for ms in (fixed.low_ms, fixed.median_ms, fixed.high_ms))
        return Latency(median, low, high, fixed.runs)

    return price


@dataclass(frozen=True, eq=False)
class _Found:
    """What a search found, and what came of building it."""

    result: SearchResult
    simulator: Simulator
    proof: _Proof | None
    held_out: int
    notes: tuple[str, ...] = ()
    certificate: Certificate | None = None

    @property
    def verified(self) -> bool:
        return self.proof is not None and self.proof.verdict.passed


def _find(bench: _Bench) -> _Found:
    """Search on a part of the samples, prove on all; where that fails, on all samples, then by building."""
    seen, held = split(bench.measured.result.samples)
    found = bench.search(bench.simulator(seen), len(held))
    if found.verified and held:
        return _slimmer(bench, found)
    if found.proof is None or found.verified:
        return found
    notes: list[str] = []
    if held and not found.result.ending.early:
        notes.append(f"a plan that passed on {len(seen)} samples failed on all: searched again on all")
        found = bench.search(bench.simulator(None), 0)
    if found.proof is not None and not found.verified:
        notes.append(
            "the simulation and the built model disagree: the plan passes in the one, and "
            f"{found.proof.worst} in the other; searched on by building"
        )
        found = bench.search_by_building(found.simulator)
    return replace(found, notes=tuple(notes))


def _slimmer(bench: _Bench, found: _Found) -> _Found:
    """The plan without groups that only the part of the samples needs which was searched on."""
    high = bench.indices(found.result.high)
    budget = Budget(max_seconds=bench.measured.settings.max_seconds)
    result = certify(bench.simulator(None), high, budget=budget)
    if (
        not result.passed
        or len(result.high) >= len(high)
        or bench.builds >= bench.measured.settings.max_builds
    ):
        return found
    kept = replace(
        found.result, high=result.high, price=result.price, minimal=result.minimal, ending=result.ending
    )
    proof = bench.prove(kept)
    note = f"on all samples {len(result.high)} of the {len(high)} layers found suffice"
    return (
        replace(found, result=kept, proof=proof, notes=(*found.notes, note))
        if proof.verdict.passed
        else found
    )


def _certified(bench: _Bench, found: _Found) -> _Found:
    """Minimality shown on built models; where one of them shows a culprit to be none, without that one."""
    everything = bench.simulator(None)
    high = bench.indices(found.result.high)
    budget = Budget(max_trials=bench.builds_left, max_seconds=bench.measured.settings.max_seconds)
    result = certify(bench.by_building(everything), high, budget=budget)
    count = len(result.trials)
    if not result.passed or not result.minimal:
        return replace(found, certificate=Certificate(count, False, result.ending))
    proof = found.proof if result.high == found.result.high else bench.prove(result)
    kept = replace(found.result, high=result.high, minimal=True, price=result.price)
    return replace(found, result=kept, proof=proof, certificate=Certificate(count, True, result.ending))


def _outcome(bench: _Bench, found: _Found, seconds: float) -> SearchOutcome:
    result = found.result
    return SearchOutcome(
        strategy=result.strategy,
        precision=bench.measured.keep,
        culprits=_culprits(bench, found) if result.passed else (),
        found=result.passed,
        minimal=result.minimal,
        verified=found.verified,
        fixed=found.proof.verdict.scores if found.proof else (),
        ending=result.ending,
        trials=tuple(TrialLine(t.high, t.passed, t.loss, t.cost, t.why) for t in result.trials),
        probes=result.probes,
        cost=result.cost,
        builds=bench.builds,
        seconds=seconds,
        int8_share=1.0 - bench.share(result.high),
        held_out=found.held_out,
        notes=found.notes,
        table=tuple(
            LayerLine(r.index, r.layer, r.shape, r.similarity, r.chosen, r.line) for r in result.table
        ),
        price_ms=bench.price_ms() if found.verified and result.high else None,
        certificate=found.certificate,
        fixed_pairs=bench.int8.network.fixed_pairs,
    )


@dataclass(frozen=True, eq=False)
class _Proof:
    """A plan, built, run on all samples and judged."""

    plan: Plan
    form: Form
    verdict: Verdict

    @property
    def worst(self) -> str:
        """The first limit missed."""
        missed = next((s for s in self.verdict.scores if not s.passed), None)
        return "is not comparable" if missed is None else f"misses {missed.subject} {missed.metric}"


class _Bench:
    """Where plans of one case are simulated and built."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        self.builds = 0
        assert measured.int8 is not None  # check.py searches no engine
        self.int8 = measured.int8
        network = self.int8.network
        self.network = _as_run(network) if self.int8.rest == "fp16" else network
        judge = measured.judge
        self.criteria = Criteria(judge.limits, judge.metrics, judge.labels)
        feed = next(measured.inputs.batches()).feed
        work = macs(network, {name: array.shape for name, array in feed.items()})
        total = sum(work.values()) or 1.0
        self.work = {name: count / total for name, count in work.items()}
        prices = _latency_prices(measured, network, self.work)
        self.groups = [GroupInfo(g.name, prices[g.name], "") for g in network.groups]
        self._switchboard = build_switchboard(self.network)
        self._engine = OrtEngine(self._switchboard.model, "exact", measured.settings.provider)

    def simulator(self, samples: Sequence[int] | None) -> Simulator:
        """Plans judged by inference, on some of the samples."""
        m = self.measured
        return Simulator(
            self._engine, self._switchboard.switch, self.groups, m.inputs, m.baseline, self.criteria, samples
        )

    def indices(self, high: Sequence[str]) -> frozenset[int]:
        """These groups as the search counts them."""
        names = [group.name for group in self.groups]
        return frozenset(names.index(name) for name in high)

    def share(self, high: Sequence[str]) -> float:
        """The part of all groups' multiply-accumulates that these do."""
        return sum(self.work[name] for name in high)

    def price_ms(self) -> float | None:
        """How much longer the fixed engine takes than the INT8 one, both timed in turn."""
        backend = self.measured.backend
        backend.measure_latency(("baseline", "INT8", "fixed"), self.measured.inputs)
        times = {info.role: info.latency for info in backend.engines}
        fixed, int8 = times.get("fixed"), times.get("INT8")
        return None if fixed is None or int8 is None else fixed.median_ms - int8.median_ms

    def plan(self, high: Sequence[str]) -> Plan:
        """Those groups in the precision that the case wants for them."""
        return Plan(dict.fromkeys(high, self.measured.keep))

    def prove(self, result: SearchResult) -> _Proof:
        """The plan found, built, run and judged on all samples."""
        plan = self.plan(result.high)
        form, outputs = self._build(plan)
        return _Proof(plan, form, self.measured.judged(outputs))

    def prove_implicit(self, result: SearchResult) -> str:
        """What comes of holding the same layers in high precision under TensorRT's own quantization."""
        m = self.measured
        keep = m.keep
        held = {n: keep for g in self.int8.network.groups if g.name in result.high for n in g.nodes}
        wish = m.candidate.implicit
        assert wish is not None
        form = replace(
            m.candidate, implicit=replace(wish, cache=m.backend.calibration_cache, samples=None, high=held)
        )
        self.builds += 1
        try:
            passed = m.judged(m.run(form, "implicit")).passed
        except EngineError as error:  # the Q/DQ model stands
            return f"as layer precisions under implicit quantization the fix cannot be had: {error}"
        said = "meets the criteria, too" if passed else "does not meet the criteria: use the Q/DQ model"
        return f"built as layer precisions under implicit quantization, the fix {said}"

    @property
    def builds_left(self) -> int:
        """How many more models the settings allow, one at least."""
        return max(self.measured.settings.max_builds - self.builds, 1)

    def search(self, simulator: Simulator, held_out: int) -> _Found:
        """The cheapest plan by simulation, and its proof."""
        settings = self.measured.settings
        result = search(simulator, settings.strategy, budget=Budget(max_seconds=settings.max_seconds))
        return _Found(result, simulator, self.prove(result) if result.passed else None, held_out)

    def search_by_building(self, simulator: Simulator) -> _Found:
        """The search once more, with verdicts of built models and the simulation's ranking."""
        settings = self.measured.settings
        budget = Budget(max_trials=self.builds_left, max_seconds=settings.max_seconds)
        result = search(self.by_building(simulator), settings.strategy, budget=budget)
        return _Found(result, simulator, self.prove(result) if result.passed else None, 0)

    def by_building(self, simulator: Simulator) -> EngineEvaluator:
        """An evaluator that builds a model for each plan."""
        names = [group.name for group in self.groups]
        return EngineEvaluator(
            lambda high: self._build(self.plan([names[i] for i in sorted(high)]))[1], simulator
        )

    def _build(self, plan: Plan) -> tuple[Form, Outputs]:
        m = self.measured
        self.builds += 1
        logger.info("%s: building a model with %d groups high", m.case.name, len(plan.high))
        form = self.int8.under(plan)
        return form, m.run(form)


def _latency_prices(measured: Measured, network: Network, work: Mapping[str, float]) -> Mapping[str, float]:
    """What each group costs more in the baseline's engine than in INT8, in ms; its work where none tells.

    Layers are timed one by one, which is good enough to order groups; the price of a fix is measured whole.
    """
    slow = measured.backend.node_times("baseline", measured.inputs)
    fast = measured.backend.node_times("INT8", measured.inputs)
    if not slow or not fast:
        return work
    least = 1e-3 * sum(slow.values()) / max(len(network.groups), 1)
    return {
        group.name: max(
            sum(slow.get(n, 0.0) - fast.get(n, 0.0) for n in group.nodes), least * work[group.name]
        )
        for group in network.groups
    }


def _as_run(network: Network) -> Network:
    """The network in FP16, spelled out as an exact run computes it."""
    return emulate_network(network_to_fp16(network))


def _culprits(bench: _Bench, found: _Found) -> tuple[Culprit, ...]:
    """The groups of the plan, each with what it does alone in INT8 and with its price."""
    simulator, result = found.simulator, found.result
    groups = {group.name: group for group in bench.int8.network.groups}
    order = {group.name: i for i, group in enumerate(simulator.groups)}
    everything = frozenset(order.values())
    culprits = []
    for name in result.high:
        index = order[name]
        trial = simulator.trial(everything - {index}, range(simulator.samples), None)
        group = groups[name]
        worst = _worst(simulator, trial)
        culprits.append(Culprit(name, group.op_type, group.nodes, worst, bench.work[name]))
    return tuple(culprits)


def _worst(simulator: Simulator, trial: Trial) -> Score:
    """The score that is worst in a trial."""
    worst = max(range(len(trial.losses)), key=trial.losses.__getitem__)
    return simulator.criteria[worst].score(trial.scores[worst])
