"""Searches by simulation for the layers that must leave the low format, and proves the result by building.

    lab.simulated ──→ strategy ──→ plan ──→ lab.prove ──→ verified
    (samples that choose)                   (all samples, and those that choose nothing)

The low format is INT8, FP8, FP16 or BF16. A plan says which layers are in high precision. Some samples choose
the plan. The others choose nothing, so they can prove that the model of the plan meets the criteria. If the
built model contradicts the simulation, a note says so, and the search goes on with built models. If the model
fails on the samples that prove, plans with a smaller error budget are searched.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist

import numpy as np

from pytest_int8acc.clock import Budget
from pytest_int8acc.errors import EngineError
from pytest_int8acc.graph.half_network import fewer_casts
from pytest_int8acc.graph.index import all_nodes, holders
from pytest_int8acc.graph.inner import hidden_nodes
from pytest_int8acc.graph.layout import moves_values
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Group, Plan
from pytest_int8acc.lab.evaluators import Simulated
from pytest_int8acc.lab.lab import Judgement, Lab, Proof
from pytest_int8acc.results import (
    Certificate,
    Cost,
    Culprit,
    Evidence,
    Role,
    Score,
    SearchOutcome,
    Tradeoff,
    TradeoffPoint,
)
from pytest_int8acc.results.scores import LIKELY
from pytest_int8acc.results.search import Quantizer
from pytest_int8acc.runtime.forms import ImplicitForm
from pytest_int8acc.search.strategies import certify, fewest, search
from pytest_int8acc.search.types import SearchResult

logger = logging.getLogger("pytest_int8acc")
#: Maximum number of samples on which each layer at fault runs alone in FP16 or BF16. In INT8 the samples
#: ``Simulator.few`` are used instead.
_ALONE_NARROW = 8
#: Maximum cost of running each layer at fault alone in the low format, in runs over all samples.
_ALONE_RUNS = 2.0
#: Maximum cost of refining a plan that passes, in runs over all samples. The limit leaves time for the search
#: for causes and fixes.
REFINES = 14.0
#: Maximum number of further searches, each with a smaller error budget, for a plan that meets the limits with
#: a safety margin.
STRICTER = 3
#: Factor by which the error budget shrinks with each further search for a safety margin.
SPARE = 0.9
#: Additional factor, about -5 dB, by which the error budget shrinks if a fix meets the limits with a margin,
#: but is not verified. Then rare large errors may miss the limits on other samples.
_LESS = 0.3
#: Minimum error budget, as a share of the error that the limits allow.
_LEAST_ROOM = 0.05
#: Minimum share of the MACs that a plan leaves in INT8 or FP8. With less, the fix would be nearly the float
#: model.
_LEAST_SHARE = 0.005


@dataclass(frozen=True, eq=False)
class Found:
    """The result of a search, and the proof of its plan: the built model with its verdict."""

    result: SearchResult
    evaluator: Simulated
    """The evaluator that judged the plans of the search."""
    proof: Proof | None
    notes: tuple[str, ...] = ()
    certificate: Certificate | None = None
    joined: tuple[str, ...] = ()
    """Layers that are in high precision only because this saves Cast nodes."""
    reserved: Proof | None = None
    """A second plan, which meets the limits with a safety margin, with its built model and verdict.

    None if the plan of ``result`` has a margin already, or if no such plan was found.
    """
    room: float = 1.0
    """The error budget that leaves a safety margin, as a share of the error that the limits allow."""

    @property
    def passed(self) -> bool:
        """Whether the plan was built and met the criteria."""
        return self.proof is not None and self.proof.passed

    @property
    def fix(self) -> Proof | None:
        """The plan to recommend, with its built model and verdict.

        None if no plan is needed, or if no built plan met the criteria.
        """
        return self.reserved or (self.proof if self.passed and self.result.high else None)


def find_precision(lab: Lab) -> tuple[SearchOutcome, Found]:
    """Search for the cheapest plan, build its model, and judge it on all samples.

    Raises:
        Int8accError: A model of the search does not build or run.
    """
    started, clock = time.perf_counter(), lab.clock
    low = lab.int8.low.name.upper()
    logger.info("%s: searching the groups that must leave %s", lab.measured.case.name, low)
    found = _find(lab)
    if lab.measured.settings.certify and found.fix is not None:
        found = clock.attempt("certification", partial(_certified, lab, found), found)
    if found.proof is not None and found.result.high and found.proof.needs_margin:
        found = clock.attempt("reserve", partial(_with_reserve, lab, found), found)
    if lab.is_narrow and found.fix is not None and found.reserved is None:
        found = clock.attempt("fewer-layers", partial(_joined, lab, found), found)
    if found.fix is not None and isinstance(lab.measured.candidate, ImplicitForm):
        said = clock.attempt("layer-precisions", partial(_as_layer_precisions, lab, found.result), "")
        found = replace(found, notes=(*found.notes, *filter(None, [said])))
    return _outcome(lab, found, time.perf_counter() - started), found


def _find(lab: Lab) -> Found:
    """Search for a plan on the samples that choose plans, and judge its built model on all samples.

    If the simulation and the built model disagree, the search goes on with built models. They disagree if
    the built model fails on the samples on which the simulation passes.
    """
    room = _first_room(lab)
    found = _searched(lab, lab.simulated(room=room))
    if room < 1.0:
        found = replace(found, result=replace(found.result, minimal=False), room=room)
    if found.proof is None or found.passed or lab.clock.over:
        return found
    if found.proof.chosen.passed:
        note = "the plan passes on the samples that chose it, and fails on those that it has not seen"
        return replace(found, notes=(note,))
    note = (
        "the simulation and the built model disagree: the plan passes in the one, and "
        f"{first_missed(found.proof)} in the other; searched on by building"
    )
    return replace(_searched_by_building(lab, found.evaluator), notes=(note,))


def _first_room(lab: Lab) -> float:
    """The error budget of the first search, as a share of the error that the limits allow.

    The budget is below 1 if the case runs in ONNX Runtime, and the unchanged candidate passes on the samples
    that choose plans. The budget then follows from the candidate's scores on the other and on all samples.
    """
    passes = lab.split.choosing and lab.simulator.trial(Plan()).passed
    if not passes or lab.measured.backend.needs_simulation:
        return 1.0
    with lab.clock.phase("proof"):
        return SPARE * room_of(lab.prove(Plan()))


def _searched(lab: Lab, evaluator: Simulated) -> Found:
    """The cheapest plan according to the simulation, and its built model with the verdict."""
    result = _result(lab, evaluator, _budget(lab))
    if result.passed and not result.minimal and result.ending.kind != "cut-short":
        result = lab.clock.attempt("fewer-layers", partial(_slimmer, lab, evaluator, result), result)
    return Found(result, evaluator, _proof(lab, evaluator, result))


def _slimmer(lab: Lab, evaluator: Simulated, result: SearchResult) -> SearchResult:
    """The result without layers that need no high precision. Some strategies leave such layers in a plan."""
    slim = certify(evaluator, evaluator.indices(result.high), budget=Budget(clock=lab.clock))
    if lab.clock.over:
        lab.clock.leave("fewer-layers")
        return result
    if not slim.passed:
        return result
    return replace(result, high=slim.high, price=slim.price, minimal=slim.minimal, ending=slim.ending)


def _budget(lab: Lab, spent: float = 0.0, *, once: bool = False) -> Budget:
    """The budget of a search by simulation, less the runs that earlier searches have ``spent``.

    Runs are limited only for the strategy ``minimal`` in INT8 or FP8, and only if the plan is not to be
    certified. With ``once``, each layer is tried only once.
    """
    settings = lab.measured.settings
    whole = settings.certify or settings.strategy != "minimal" or lab.is_narrow
    max_runs = math.inf if whole else lab.simulator.allowance(REFINES) - spent
    return Budget(clock=lab.clock, max_runs=max_runs, once=once)


def _result(lab: Lab, evaluator: Simulated, budget: Budget) -> SearchResult:
    """The result of a search by the strategy of the settings.

    In FP16 and BF16, the strategy ``minimal`` runs the function ``fewest``.
    """
    strategy, suspects = lab.measured.settings.strategy, lab.suspects
    if suspects is not None and strategy == "minimal":
        result = fewest(evaluator, suspects, budget=budget)
    else:
        result = search(evaluator, strategy, budget=budget)
    if result.ending.kind in ("seconds-spent", "interrupted"):
        lab.clock.leave("search")
    return result


def _searched_by_building(lab: Lab, evaluator: Simulated) -> Found:
    """The result of a search that judges plans by built models, and ranks layers by simulation."""
    budget = Budget(lab.clock, max_trials=_builds_left(lab))
    result = _result(lab, lab.built(evaluator), budget)
    return Found(result, evaluator, _proof(lab, evaluator, result))


def _proof(lab: Lab, evaluator: Simulated, result: SearchResult) -> Proof | None:
    """The plan's built model with its verdict; None if the search found no plan.

    The model is built even after the time is up.
    """
    if not result.passed:
        return None
    plan = evaluator.plan(evaluator.indices(result.high))
    with lab.clock.phase("proof"):
        return lab.clock.attempt("proof", partial(_built, lab, plan), None, late=not lab.clock.interrupted)


def _built(lab: Lab, plan: Plan) -> Proof | None:
    """The plan's built model with its verdict; None if it does not build. ``lab.unbuilt`` gets the reason."""
    try:
        return lab.prove(plan)
    except EngineError as error:
        lab.unbuilt.append(f"a plan of the search does not build or run: {error}")
        return None


def _joined(lab: Lab, found: Found) -> Found:
    """The result with further layers in high precision, if this saves Cast nodes and the plan passes.

    The further layers lie between the layers at fault.
    """
    joined = fewer_casts(lab.network, found.result.high)
    if not joined or len(joined) + len(found.result.high) == len(lab.network.groups):
        return found
    evaluator = lab.simulated()
    proof = _built(lab, evaluator.plan(evaluator.indices((*found.result.high, *joined))))
    good = (
        proof is not None
        and proof.passed
        and (proof.has_reserve or not (found.proof and found.proof.has_reserve))
    )
    return replace(found, proof=proof, joined=joined) if good else found


def _casts(lab: Lab, found: Found) -> int | None:
    """How many more Casts the fixed model has than the float model; None for INT8, FP8 or without a fix."""
    if found.fix is None or not lab.is_narrow:
        return None
    models = (found.fix.form.model, lab.network.model)
    fixed, plain = (len([n for n in all_nodes(model.graph) if n.op_type == "Cast"]) for model in models)
    return fixed - plain


def _with_reserve(lab: Lab, found: Found) -> Found:
    """The result with a plan that has a safety margin, so that it would also pass on other samples.

    If possible, the margin is so large that the samples of the case are enough to verify the plan.
    """
    proof, too_large, spent = found.proof, found.room, found.result.cost
    room, reserved = too_large if proof is None else too_large * _next_room(proof), None
    for _ in range(STRICTER):
        if proof is None or lab.builds >= lab.measured.settings.max_builds:
            break
        evaluator = lab.simulated(room=room)
        result = _result(lab, evaluator, _budget(lab, spent, once=True))
        spent += result.cost
        if len(result.high) == len(lab.groups):  # a plan that leaves no layer in the low format is no fix
            room = math.sqrt(room * too_large)
            continue
        proof = _proof(lab, evaluator, result)
        if proof is not None and not proof.needs_margin:
            return replace(found, reserved=proof, room=room_of(proof))
        if proof is not None:
            reserved = reserved or (proof if proof.has_reserve else None)
            too_large, room = room, room * _next_room(proof)
    if found.proof is not None and found.proof.has_reserve:
        return found
    if reserved is not None:
        return replace(found, reserved=reserved, room=room_of(reserved))
    return replace(found, room=room)


def _next_room(proof: Judgement) -> float:
    """The factor by which the error budget shrinks after a plan has turned out to have too small a margin."""
    return SPARE * room_of(proof) * (_LESS if proof.has_reserve else 1.0)


def room_of(proof: Judgement) -> float:
    """The error budget with which enough bootstrap resamples would meet the limits, as a share of the limits.

    The share is the least of one ratio for each score: the ratio of the score's error to its error in an
    unfavourable resample. If the score misses its limit, the limit replaces the score's error in the ratio.

    The error in the resample is computed from the end of the score's confidence interval. On a logarithmic
    scale a normal distribution is assumed. At a confidence of 0.95, the end lies 1.96 standard deviations
    from the score, and the resample 1.64.
    """
    least, normal = 1.0, NormalDist()
    parts = [(proof.verdict, LIKELY)]
    if proof.held_out is not None:
        parts.append((proof.held_out, proof.confidence))
    for score, share in ((score, share) for verdict, share in parts for score in verdict.scores):
        loss = score.normalized_loss
        if score.interval is None or not 0 < loss < math.inf:
            continue
        ends = (score.interval.low, score.interval.high)
        most = max(replace(score, value=end).normalized_loss for end in ends)
        if math.isinf(most):  # the confidence interval of a worst sample may be unbounded
            continue
        part = normal.inv_cdf(share) / normal.inv_cdf((1 + score.interval.confidence) / 2)
        least = min(least, math.pow(min(loss / most, 1.0), part) / max(loss, 1.0))
    return max(least, _LEAST_ROOM)


def _certified(lab: Lab, found: Found) -> Found:
    """The result with a certificate: whether built models prove that each layer of the plan is needed.

    Layers that built models do not need in high precision are removed from the plan.
    """
    everything = lab.simulated()
    high = everything.indices(found.result.high)
    started = time.perf_counter()
    with lab.clock.phase("proof"):
        result = certify(lab.built(everything), high, budget=Budget(lab.clock, max_trials=_builds_left(lab)))
    cost = Cost(result.cost, time.perf_counter() - started, len(result.trials))
    evidence = Evidence("plan", lab.measured.result.place, lab.sample_set(), cost=cost)
    if result.ending.kind in ("seconds-spent", "interrupted"):
        lab.clock.leave("certification")
    if not result.passed or not result.minimal:
        return replace(found, certificate=Certificate(evidence, False, result.ending))
    proof = found.proof if result.high == found.result.high else _proof(lab, everything, result)
    if proof is None:
        return found
    kept = replace(found.result, high=result.high, minimal=True, price=result.price)
    return replace(found, result=kept, proof=proof, certificate=Certificate(evidence, True, result.ending))


def _as_layer_precisions(lab: Lab, result: SearchResult) -> str:
    """A sentence that says whether the plan also passes under TensorRT's implicit quantization.

    Under implicit quantization, the plan sets the precisions of the engine's layers.
    """
    m = lab.measured
    held = {n: m.keep for g in lab.network.groups if g.name in result.high for n in g.nodes}
    assert isinstance(m.candidate, ImplicitForm)
    form = m.candidate.holding(held, m.backend.calibration_cache)
    lab.builds += 1
    try:
        passed = m.judged(m.run(form, Role.IMPLICIT)).passed
    except EngineError as error:  # the fix as a Q/DQ model is still valid
        return f"as layer precisions under implicit quantization the fix cannot be had: {error}"
    said = "meets the criteria, too" if passed else "does not meet the criteria: use the Q/DQ model"
    return f"built as layer precisions under implicit quantization, the fix {said}"


def _builds_left(lab: Lab) -> int:
    """The number of models that may still be built, at least 1."""
    return max(lab.measured.settings.max_builds - lab.builds, 1)


def _outcome(lab: Lab, found: Found, seconds: float) -> SearchOutcome:
    result, proof = found.result, found.reserved or found.proof
    return SearchOutcome(
        strategy=lab.measured.settings.strategy,
        precision=lab.measured.keep,
        culprits=_culprits(lab, found) if result.passed else (),
        found=result.passed,
        minimal=result.minimal,
        verified=proof is not None and proof.is_verified,
        holds=proof is not None and proof.holds,
        fixed=proof.verdict.scores if proof else (),
        ending=result.ending,
        trials=result.trials,
        probes=result.probes,
        cost=result.cost,
        builds=lab.builds,
        seconds=seconds,
        int8_share=1.0 - lab.share(found.reserved.plan.high if found.reserved else result.high),
        held_out=lab.held_out(proof),
        notes=(*found.notes, *lab.unbuilt),
        table=result.table,
        price_ms=_price_ms(lab) if found.fix is not None else None,
        certificate=found.certificate,
        fixed_pairs=lab.network.fixed_pairs,
        low=lab.int8.other,
        joined=found.joined,
        casts=_casts(lab, found),
        with_reserve=tuple(found.reserved.plan.high) if found.reserved else (),
    )


def keeps_low(lab: Lab, outcome: SearchOutcome) -> bool:
    """Whether a plan is worth having: it leaves at least ``_LEAST_SHARE`` of the MACs in the low format.

    In FP16 and BF16 it suffices that one group stays in the low format.
    """
    some = len(outcome.kept) < len(lab.network.groups)
    return some and (lab.is_narrow or outcome.int8_share >= _LEAST_SHARE)


def _price_ms(lab: Lab) -> float | None:
    """How many ms longer the fixed engine takes than the INT8 engine; None if the engines are not timed."""
    backend = lab.measured.backend
    if not backend.times_engines:
        return None
    roles = (Role.BASELINE, Role.INT8, Role.FIXED)
    lab.clock.attempt("latency", lambda: backend.measure_latency(roles, lab.measured.inputs), None)
    times = {info.role: info.latency for info in backend.engines}
    fixed, int8 = times.get(Role.FIXED), times.get(Role.INT8)
    return None if fixed is None or int8 is None else fixed.median_ms - int8.median_ms


def _culprits(lab: Lab, found: Found) -> tuple[Culprit, ...]:
    """The layers at fault: the groups of the plan.

    Each layer has its share of the MACs, and the worst score of the model with only this layer in the low
    format.
    """
    result, seen = found.result, found.evaluator.seen.samples
    most = _ALONE_NARROW if lab.is_narrow else len(lab.simulator.few)
    evaluator, budget = lab.simulated(seen[:: -(-len(seen) // most)]), lab.budget(_ALONE_RUNS)
    groups = {group.name: group for group in lab.network.groups}
    graph = lab.network.model.graph
    around, hidden = holders(graph), hidden_nodes(graph)
    order = {group.name: i for i, group in enumerate(evaluator.groups)}
    everything = frozenset(order.values())
    culprits = []
    for name in result.high:
        plan = everything - {order[name]}
        tried = partial(_worst_alone, evaluator, plan)
        worst = lab.clock.attempt("alone", tried, None) if budget.left > 0 else None
        group, price = groups[name], lab.work[name]
        culprits.append(
            Culprit(
                name,
                group.op_type,
                group.nodes,
                worst,
                price,
                inside=around[group.nodes[0]].op_type if group.is_inner else "",
                hidden=group.nodes[0] in hidden,
                quantizer=_quantizer(lab.network.model, group),
            )
        )
    return tuple(culprits)


def _quantizer(model: Model, group: Group) -> Quantizer | None:
    """The Q/DQ pair of a group, if the pair only feeds nodes that move values, like Reshape; else None."""
    nodes, producer = model.everywhere.nodes, model.everywhere.producer
    readers = [nodes[edge.node] for edge in group.edges]
    if not readers or not all(map(moves_values, readers)):
        return None
    outputs = {value.name for value in model.graph.output}
    copies = [node.output[0] for node in readers if node.op_type == "Identity"]
    given = [name for name in copies if name in outputs]
    tensor = group.edges[0].tensor
    node = producer.get(tensor)
    while node is not None and moves_values(node):
        node = producer.get(node.input[0])
    return Quantizer(
        tensor=tensor,
        output=given[0] if given else "",
        node="" if node is None else node.name,
        op_type="" if node is None else node.op_type,
    )


def _worst_alone(evaluator: Simulated, high: frozenset[int]) -> Score | None:
    """The score with the greatest loss if only the groups ``high`` are in high precision.

    None if all scores are perfect.
    """
    trial = evaluator.trial(high, range(evaluator.samples), None)
    worst = max(range(len(trial.losses)), key=trial.losses.__getitem__)
    if not trial.losses[worst] > 0:
        return None
    return evaluator.criteria[worst].score(trial.scores[worst])


def first_missed(proof: Proof) -> str:
    """A few words for a note on the first limit that the built model of a plan misses, with the score.

    Limits on all samples come before limits on the held-out samples.
    """
    verdicts = (proof.verdict, proof.held_out or proof.verdict)
    missed = next((score for verdict in verdicts for score in verdict.scores if not score.passed), None)
    if missed is None:
        return "is not comparable"
    return f"misses {missed.subject} {missed.metric}: {missed.value:.4g}, limit {missed.limit:g}"


#: Shares of the multiply-accumulates in high precision at which scores are measured, to show how scores
#: improve with more layers in high precision.
_SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7)
#: Maximum cost of measuring the scores at all ``_SHARES``, in runs over all samples. If the samples
#: ``Simulator.few`` cost more, only a part of them runs.
_RUNS = 2.0


def adds_up(outcome: SearchOutcome) -> bool:
    """Whether a layer at fault loses accuracy by rounding alone, either its own or that of many layers."""
    causes = (culprit.cause for culprit in outcome.culprits)
    return any(cause is not None and cause.symptom in ("noise-adds-up", "too-coarse") for cause in causes)


def tradeoff(lab: Lab, found: Found) -> Tradeoff | None:
    """How scores improve with more layers in high precision. Layers are added in the order of the search.

    None if the search gives no order of layers, or if fewer than three plans would be compared.

    Raises:
        Int8accError: A model does not run.
        OutOfTime: The time is up.
    """
    order = found.result.order
    shares = np.cumsum([0.0, *(lab.work[name] for name in order)])
    counts = {int(np.searchsorted(shares, share - 1e-9)) for share in _SHARES} | {len(order)}
    sizes = sorted(count for count in counts if count <= len(order))
    if len(sizes) < 3:
        return None
    few = lab.simulator.few
    most = math.ceil(lab.simulator.allowance(_RUNS) * len(lab.simulator.inputs) / len(sizes))
    samples = few[:: -(-len(few) // most)]
    evaluator = lab.simulated(samples)
    trials, before = [], lab.cost
    for count in sizes:
        lab.clock.check()
        high = evaluator.indices(order[:count])
        trials.append(evaluator.trial(high, range(evaluator.samples), None))
    worst = int(np.argmax(trials[0].losses))
    criterion = evaluator.criteria[worst]
    points = [
        TradeoffPoint(count, float(shares[count]), criterion.score(trial.scores[worst]))
        for count, trial in zip(sizes, trials, strict=True)
    ]
    evidence = Evidence("plan", "exact", lab.sample_set(samples), cost=lab.cost - before)
    return Tradeoff(order[: sizes[-1]], tuple(points), evidence)
