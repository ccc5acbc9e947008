"""Searches a plan whose engine is faster: layers that lose time in INT8 leave INT8, and the others stay.

    times of both engines' layers → loss of each group → sets of groups → lab.prove → timed in turn → fastest

The times only say which sets are worth a build. What counts is the time of each built engine. It is measured
in turn with the baseline's engine, once to choose the fastest plan and once more to judge it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pytest_int8acc.answer.precision import first_missed
from pytest_int8acc.case.precision import engine_limits, node_formats, speedup_score
from pytest_int8acc.errors import EngineError
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.lab.lab import Lab, Proof
from pytest_int8acc.results import Cost, Evidence, Latency, Repair, Role
from pytest_int8acc.results.causes import SpeedSearch, SpeedTrial
from pytest_int8acc.results.engines import LayerTime
from pytest_int8acc.search.speed import LEAST_SHARE, MAX_PLANS, losses, sets_to_try


@dataclass(frozen=True, eq=False)
class Faster:
    """The result of the search for a faster plan."""

    search: SpeedSearch
    repair: Repair | None = None
    """The fastest plan that reaches the limit and keeps the other criteria; None if there is none."""
    proof: Proof | None = None
    """The built model of ``repair`` with its verdict."""
    notes: tuple[str, ...] = ()


def find_faster(lab: Lab) -> Faster | None:
    """Search a plan that reaches the limit on the speedup. None if the case's engines were not timed.

    If the candidate reaches the limit, or the spec has no limit, a plan must be faster than the candidate.

    Raises:
        EngineError: The float model does not run.
    """
    latencies = {info.role: info.latency for info in lab.measured.result.engines}
    baseline, candidate = latencies.get(Role.BASELINE), latencies.get(Role.INT8)
    if baseline is None or candidate is None:
        return None
    limits = engine_limits(lab.measured.case)
    usual = baseline.median_ms / candidate.median_ms
    low = lab.layer_times[Role.INT8] or _as_one(candidate)
    lost = losses(lab.group_works, low, lab.layer_times[Role.BASELINE] or _as_one(baseline))
    share = lab.measured.result.int8_macs or 1.0
    least = max(LEAST_SHARE, limits.get("int8_share", 0.0)) / share
    most = min(MAX_PLANS, lab.measured.settings.max_builds)
    search = SpeedSearch(
        limit=max(limits.get("speedup", 0.0), usual),
        baseline=baseline,
        candidate=candidate,
        losses={name: ms for name, ms in lost.items() if ms > 0},
    )
    return _Search(lab, search, limits).run(sets_to_try(lab.group_works, lost, least, most))


def _as_one(latency: Latency) -> Sequence[LayerTime]:
    """The whole engine as one layer, which computes all groups."""
    return (LayerTime((), latency.median_ms, is_region=True),)


@dataclass(eq=False)
class _Search:
    """Builds plans, judges them, and times the engines of plans that meet the criteria."""

    lab: Lab
    search: SpeedSearch
    limits: Mapping[str, float]
    """The limits of the case's engine criteria, by metric."""
    notes: list[str] = field(default_factory=list)

    def run(self, sets: Sequence[frozenset[str]]) -> Faster:
        """Build the plan of each set. Choose the fastest that is proved, and fast enough when timed twice."""
        lab, clock = self.lab, self.lab.clock
        began, built = time.monotonic(), lab.builds
        trials: list[SpeedTrial] = []
        timed: dict[int, tuple[Latency, Proof]] = {}
        for place, names in enumerate(sets):
            clock.count("plan", place, len(sets))
            tried = clock.attempt("speed", partial(self._tried, names), None)
            if tried is None:
                break
            trial, proof = tried
            trials.append(trial)
            if proof is not None and trial.latency is not None:
                timed[place] = trial.latency, proof
        builds = lab.builds - built  # each engine runs once on all samples
        cost = Cost(float(builds), time.monotonic() - began, builds)
        found = Faster(self.search)

        def rank(place: int) -> tuple[bool, float]:
            """A plan that is proved on held-out samples comes before a faster one that is not."""
            latency, proof = timed[place]
            return not proof.is_verified, latency.median_ms

        reached = (p for p, (latency, _) in timed.items() if self._reaches(latency, self.search.candidate))
        for place in sorted(reached, key=rank):
            proof = timed[place][1]
            try:
                again = clock.attempt("speed", partial(self._timed, proof), None, late=not clock.interrupted)
            except EngineError as error:  # another plan may run
                self.notes.append(f"a plan for speed does not run again: {error}")
                continue
            if again is None:
                break
            trials[place] = replace(trials[place], latency=again[0])
            if self._reaches(*again):
                repair = self._repair(trials[place], proof, again[0], cost)
                found = Faster(self.search, repair, proof)
                break
        return replace(found, search=replace(self.search, trials=tuple(trials)), notes=tuple(self.notes))

    def _tried(self, names: Collection[str]) -> tuple[SpeedTrial, Proof | None]:
        """Build a plan with the groups ``names`` in high precision. If it passes, its engine is timed."""
        lab = self.lab
        layers = tuple(group.name for group in lab.network.groups if group.name in names)
        stays = (1.0 - lab.share(layers)) * (lab.measured.result.int8_macs or 1.0)
        high = lab.measured.keep.upper()
        try:
            proof = lab.prove(Plan(high=dict.fromkeys(layers, lab.measured.keep)))
            if not proof.passed:
                self.notes.append(
                    f"{len(layers)} layers in {high} for speed: the built model {first_missed(proof)}"
                )
                return SpeedTrial(layers, stays, passed=False), proof
            latency, _ = self._timed(proof)
        except EngineError as error:  # another plan may build
            self.notes.append(f"{len(layers)} layers in {high} for speed: does not build or run: {error}")
            return SpeedTrial(layers, stays, passed=None), None
        if not self._keeps_layers():
            self.notes.append(f"{len(layers)} layers in {high} for speed: the engine misses int8_layers")
            return SpeedTrial(layers, stays, passed=False), proof
        if self._is_misbuilt(names):
            self.notes.append(f"{len(layers)} layers in {high} for speed: others ran in another format, too")
            return SpeedTrial(layers, stays, passed=False), proof
        return SpeedTrial(layers, stays, passed=True, latency=latency), proof

    def _keeps_layers(self) -> bool:
        """Whether enough layers of the engine that was timed last run in INT8."""
        (engine,) = (info for info in self.lab.measured.backend.engines if info.role == Role.FIXED)
        return "int8_layers" not in self.limits or engine.int8_share[0] >= self.limits["int8_layers"]

    def _is_misbuilt(self, high: Collection[str]) -> bool:
        """Whether the engine that was timed last would fail the case, because other formats ran in it.

        The case fails if much of the work that the plan leaves in the low format provably ran in another.

        Args:
            high: The groups that the plan keeps in high precision.
        """
        lab, contract = self.lab, self.lab.measured.result.precision
        if contract is None:
            return False
        (engine,) = (info for info in lab.measured.backend.engines if info.role == Role.FIXED)
        low = [group for group in lab.network.groups if group.name not in high]
        formats = node_formats(engine.layers, {node for group in low for node in group.nodes})
        asked = math.fsum(lab.work[group.name] for group in low)
        refuted = math.fsum(
            lab.work[group.name]
            for group in low
            if any(formats.get(node, contract.low) != contract.low for node in group.nodes)
        )
        return replace(contract, refuted=refuted / asked if asked else 0.0).is_broken

    def _timed(self, proof: Proof) -> tuple[Latency, Latency]:
        """The latencies of a plan's engine and of the candidate's, which run in turn with the baseline's.

        Both are scaled by the ratio of the baseline's first latency to its latency now. So changes of the
        GPU's clock between the measurements have no effect.

        Raises:
            EngineError: The engine does not run.
        """
        found = self.lab.timed(proof.form, (Role.BASELINE, Role.INT8, Role.FIXED))
        baseline, candidate, fixed = (found.get(role) for role in (Role.BASELINE, Role.INT8, Role.FIXED))
        assert baseline is not None  # the backend has timed this engine before
        assert candidate is not None
        assert fixed is not None
        drift = self.search.baseline.median_ms / baseline.median_ms
        return fixed.scaled(drift), candidate.scaled(drift)

    def _reaches(self, latency: Latency, candidate: Latency) -> bool:
        """Whether a plan whose engine has this ``latency`` is fast enough.

        If the candidate is fast enough as well, 90 % of the plan's runs must be faster than 90 % of the
        candidate's.
        """
        is_fast = self.search.baseline.median_ms / latency.median_ms >= self.search.limit
        usual = self.search.baseline.median_ms / self.search.candidate.median_ms
        return is_fast and (usual < self.search.limit or latency.high_ms < candidate.low_ms)

    def _repair(self, trial: SpeedTrial, proof: Proof, latency: Latency, cost: Cost) -> Repair:
        lab, result = self.lab, self.lab.measured.result
        speedup = speedup_score(self.search.baseline, latency, self.limits.get("speedup"))
        return Repair(
            kind="faster",
            layers=trial.layers,
            rescales=(),
            evidence=Evidence(
                "plan",
                result.place,
                result.evidence.proved_on,
                held_out=lab.held_out(proof),
                scores=(*proof.verdict.scores, speedup),
                cost=cost,
            ),
            verified=proof.is_verified,
            holds=proof.holds,
            price=lab.share(trial.layers),
            precision=lab.measured.keep,
            latency=latency,
        )
