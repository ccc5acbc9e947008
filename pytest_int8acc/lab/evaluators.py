"""Evaluators that judge the plans of a search: by simulation in ONNX Runtime, or by building models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from pytest_int8acc.case.trials import SampleComparison
from pytest_int8acc.graph.network import Plan, Precision
from pytest_int8acc.lab.simulator import Simulator
from pytest_int8acc.scores.criteria import Criterion
from pytest_int8acc.search.types import Enough, GroupInfo, Probe, Target, Trial
from pytest_int8acc.tensors import Feed


class Simulated:
    """An Evaluator that judges plans by simulation.

    A plan is a base plan with more groups in high precision.
    """

    def __init__(
        self,
        simulator: Simulator,
        base: Plan | None = None,
        samples: Iterable[int] | None = None,
        keep: Precision = "fp16",
        room: float = 1.0,
    ) -> None:
        """Check that the criteria fit the outputs.

        Args:
            simulator: Runs the plans.
            base: The plan whose changes every tried plan includes; None for an empty plan.
            samples: The samples that the search may use, by index; None for all samples.
            keep: The precision of groups that leave the low format.
            room: The error budget. A plan passes if its error is at most this fraction of the error that the
                limits allow.

        Raises:
            CriterionError: A criterion does not fit the outputs.
        """
        self.groups: Sequence[GroupInfo] = simulator.groups
        self.simulator, self.seen = simulator, simulator.seen(samples)
        self.keep: Precision = keep
        self._base, self._room = base or Plan(), room

    @property
    def criteria(self) -> Sequence[Criterion]:
        """The criteria that are judged."""
        return self.seen.judge.criteria

    @property
    def samples(self) -> int:
        """The number of samples that the search uses."""
        return self.seen.judge.samples

    @property
    def targets(self) -> Sequence[Target]:
        """The criterion to which each array of error vectors from ``probe`` belongs."""
        return self.seen.prober.targets

    def plan(self, high: Iterable[int]) -> Plan:
        """The base plan with the groups of these indices in high precision."""
        names = (self.groups[i].name for i in sorted(high))
        return replace(self._base, high=dict.fromkeys(names, self.keep))

    def indices(self, names: Iterable[str]) -> frozenset[int]:
        """The indices in ``groups`` of the groups with these names."""
        selected = set(names)
        return frozenset(i for i, group in enumerate(self.groups) if group.name in selected)

    def trial(self, high: frozenset[int], order: Sequence[int], enough: Enough | None) -> Trial:
        """Judge the plan with the groups ``high`` in high precision; see ``Evaluator.trial``.

        Raises:
            EngineError: The model fails.
            CriterionError: A user's function fails.
        """
        room = self._room
        if room == 1.0:
            return self.simulator.trial(self.plan(high), self.seen, order, enough)
        strict = None if enough is None else lambda parts: enough(parts / room)
        trial = self.simulator.trial(self.plan(high), self.seen, order, strict)
        losses = tuple(loss / room for loss in trial.losses)
        return replace(
            trial, passed=trial.passed and max(losses) <= 1, losses=losses, parts=trial.parts / room
        )

    def probe(self, plans: Sequence[frozenset[int]], samples: Sequence[int]) -> list[Probe]:
        """Measure the errors of plans on a few samples; see ``Evaluator.probe``.

        Raises:
            EngineError: The model fails.
        """
        found = [self.simulator.probe(self.plan(high), self.seen, samples) for high in plans]
        return found if self._room == 1.0 else [self._strict(probe) for probe in found]

    def _strict(self, probe: Probe) -> Probe:
        scales = [self._room ** (-1 / target.power) for target in self.targets]
        vectors = [np.float32(scale) * vector for scale, vector in zip(scales, probe.vectors, strict=True)]
        return replace(probe, vectors=vectors, parts=probe.parts / self._room)


class Built(Simulated):
    """An Evaluator that judges a plan by building its model, and measures error vectors by simulation."""

    def __init__(self, simulated: Simulated, build: Callable[[Plan], Iterable[Feed]]) -> None:
        """Create an evaluator with the criteria, the baseline and the samples of ``simulated``.

        Args:
            simulated: The evaluator that measures error vectors by simulation.
            build: Builds a plan and returns its outputs on the whole dataset, in the batches of the baseline.
        """
        super().__init__(simulated.simulator, simulated.plan(()), simulated.seen.samples, simulated.keep)
        self._build = build
        self._known: dict[frozenset[int], Trial] = {}

    def trial(self, high: frozenset[int], order: Sequence[int], enough: Enough | None) -> Trial:
        """Build, run and judge a plan on all samples; ``order`` and ``enough`` are ignored.

        Raises:
            Int8accError: ``build`` fails, or a user's function fails.
        """
        if high in self._known:
            return replace(self._known[high], cost=0.0)
        comparison = SampleComparison(self.seen.judge)
        places = {sample: place for place, sample in enumerate(self.seen.samples)}
        for batch, feed in enumerate(self._build(self.plan(high))):
            samples, outputs = self.simulator.inputs.samples_of(batch, feed)
            chosen = [place for place, sample in enumerate(samples) if sample in places]
            cut = {name: [arrays[place] for place in chosen] for name, arrays in outputs.items()}
            if chosen:
                comparison.add_samples([places[samples[place]] for place in chosen], cut)
        self._known[high] = comparison.trial(high)
        return self._known[high]
