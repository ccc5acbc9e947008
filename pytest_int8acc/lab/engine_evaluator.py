"""Plans judged by building them: exact, and dear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pytest_int8acc.case.trial_judge import Gathered
from pytest_int8acc.lab.simulator import Simulator
from pytest_int8acc.scores.criteria import Criterion
from pytest_int8acc.search.evaluator import Enough
from pytest_int8acc.search.types import GroupInfo, Probe, Target, Trial
from pytest_int8acc.tensors import Outputs


class EngineEvaluator:
    """An Evaluator whose verdicts come from models built for each plan, and whose probes from a simulation.

    Judges the same samples as the simulation. Trials are remembered.
    """

    def __init__(self, build: Callable[[frozenset[int]], Outputs], simulator: Simulator) -> None:
        """Keep what is needed.

        Args:
            build: Builds a plan, given by the indices of the groups kept high, and runs it on the whole
                dataset in its batches, as the baseline was run.
            simulator: Knows the criteria, the baseline and the samples.
        """
        self._build, self._simulator = build, simulator
        self._known: dict[frozenset[int], Trial] = {}

    @property
    def groups(self) -> Sequence[GroupInfo]:
        """What can be switched."""
        return self._simulator.groups

    @property
    def criteria(self) -> Sequence[Criterion]:
        """What is judged."""
        return self._simulator.criteria

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self._simulator.samples

    @property
    def targets(self) -> Sequence[Target]:
        """What ``probe`` measures."""
        return self._simulator.targets

    def trial(self, high: frozenset[int], order: Sequence[int], enough: Enough | None) -> Trial:
        """Build, run and judge a plan on all samples, whatever their order.

        Raises:
            Int8accError: Whatever ``build`` raises, or a user's function fails.
        """
        if high in self._known:
            return replace(self._known[high], cost=0.0)
        gathered = Gathered(self._simulator.judge)
        gathered.add(range(self.samples), self._simulator.inputs.cut(self._build(high)))
        self._known[high] = self._simulator.judge.trial(high, gathered)
        return self._known[high]

    def probe(self, plans: Sequence[frozenset[int]], samples: Sequence[int]) -> list[Probe]:
        """What the simulation measures."""
        return self._simulator.probe(plans, samples)
