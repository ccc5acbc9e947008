"""Norms spelled out in parts, where FP16 or BF16 breaks them: made one node each, with the fewest in FP32.

    norms with culprits as one node each ─fails→ and the other culprits in FP32 ─fails→ searched anew

One node computes in FP32 inside (see ``graph.spelled_norms``). Where no plan is found so that keeps the
criteria with a reserve, the same with all norms.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator

from pytest_int8acc.answer.precision import SPARE, STRICTER, room_of
from pytest_int8acc.errors import Int8accError
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.graph.plan import moved
from pytest_int8acc.graph.spelled_norms import find_norms
from pytest_int8acc.lab.evaluators import Simulated
from pytest_int8acc.lab.lab import Lab, Proof
from pytest_int8acc.results import Repair, SearchOutcome
from pytest_int8acc.search import certify, fewest
from pytest_int8acc.search.types import Budget

logger = logging.getLogger("pytest_int8acc")


def fuse_norms(lab: Lab, outcome: SearchOutcome, notes: list[str]) -> Iterator[tuple[Repair, Proof]]:
    """Norms as one node each, and nodes in FP32 beside them: what meets the criteria as built.

    Args:
        lab: Of a failing case in FP16 or BF16.
        outcome: What its search found; where it found no plan, all norms are looked at.
        notes: Takes why a plan cannot be had.

    Raises:
        EngineError: A model does not run.
    """
    members = {node for group in lab.network.groups for node in group.nodes}
    norms = {n: m.nodes for n, m in find_norms(lab.network.model).items() if m.nodes <= members}
    groups = {group.name: group.nodes for group in lab.network.groups}
    kept = {node for name in outcome.kept for node in groups[name]}
    guilty = tuple(name for name, nodes in norms.items() if not nodes.isdisjoint(kept))
    sets = [names for names in (guilty, tuple(norms)) if names and (guilty or not outcome.found)]
    for names in dict.fromkeys(sets):
        logger.info("%s: fusing %d norms", lab.measured.case.name, len(names))
        try:
            for proof in _proofs(lab, names, outcome.kept):
                if proof.verdict.passed:
                    yield _repair(lab, outcome, proof), proof
                    if proof.verdict.holds:
                        return
                else:
                    notes.append(f"{len(names)} norms as one node each pass simulated, and fail as built")
        except Int8accError as error:  # a runtime may lack the operator, or the opset
            notes.append(f"norms cannot be one node each: {error}")


def _proofs(lab: Lab, norms: tuple[str, ...], kept: Collection[str]) -> Iterator[Proof]:
    """Plans with these norms fused, each within less room than the one before, as long as there are any."""
    room = 1.0
    for _ in range(STRICTER + 1):
        plan = _fewest(lab, norms, kept, room)
        if plan is None:
            return
        proof = lab.prove(plan)
        yield proof
        if not proof.verdict.passed:
            return
        room *= SPARE * room_of(proof.verdict)


def _fewest(lab: Lab, norms: tuple[str, ...], kept: Collection[str], room: float) -> Plan | None:
    """These norms fused, with the fewest groups in FP32; None where no such plan passes."""
    network = moved(lab.network, Plan(fused=norms))
    simulated = Simulated(lab.simulator.on(network), keep=lab.measured.keep, room=room)
    rest, budget = simulated.indices(kept), Budget(clock=lab.clock)
    result = certify(simulated, frozenset())  # one trial, which may come after time is up
    if not result.passed and rest:
        result = certify(simulated, rest, budget=budget)
    if not result.passed:
        place = {group.name: i for i, group in enumerate(simulated.groups)}
        suspects = [place[name] for name in lab.losses if name in place]
        result = fewest(simulated, suspects, budget=budget)
    if not result.passed or len(result.high) == len(simulated.groups):
        return None
    return Plan(simulated.plan(simulated.indices(result.high)).high, fused=norms)


def _repair(lab: Lab, outcome: SearchOutcome, proof: Proof) -> Repair:
    layers = tuple(proof.plan.high)
    return Repair(
        "fuse",
        layers,
        (),
        proof.verdict.scores,
        proof.verdict.holds,
        lab.share(layers),
        outcome.precision,
        len(outcome.kept),
        fused=proof.plan.fused,
    )
