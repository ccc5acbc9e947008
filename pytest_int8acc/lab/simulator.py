"""Plans judged by simulation: one model with a switch per group, run sample by sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pytest_int8acc.case.trial_judge import Criteria, Gathered, Judge, Labels, SampleOutputs
from pytest_int8acc.data import Batch, Dataset
from pytest_int8acc.engines import Engine
from pytest_int8acc.lab.inputs import Inputs, split
from pytest_int8acc.lab.vectors import Prober
from pytest_int8acc.scores.criteria import Criterion
from pytest_int8acc.search.evaluator import Enough
from pytest_int8acc.search.types import GroupInfo, Probe, Target, Trial
from pytest_int8acc.tensors import Array, Outputs

__all__ = ["Criteria", "Simulator", "split"]


class Simulator:
    """An Evaluator on an engine whose groups are switched at run time.

    Verdicts are drawn as for a case, by ``compare_outputs`` and ``evaluate_metric``, on the samples used.
    Trials that saw all of them are remembered.
    """

    def __init__(
        self,
        engine: Engine,
        switch: str,
        groups: Sequence[GroupInfo],
        dataset: Dataset,
        baseline: Outputs,
        wanted: Criteria,
        samples: Sequence[int] | None = None,
    ) -> None:
        """Read the inputs and check the criteria.

        Args:
            engine: A switchboard, ready to run.
            switch: Its input that takes bool [groups], True where the group runs in INT8.
            groups: In the order of the switch.
            dataset: All samples; must give the same ones each time.
            baseline: High-precision outputs of all samples, as ``run_together`` gives them.
            wanted: The case's criteria; labels of all samples.
            samples: Those that the search may see, by index; None: all. See ``split``.

        Raises:
            CriterionError: A criterion does not fit the outputs.
            DataError: The dataset cannot be read.
        """
        self.groups = tuple(groups)
        self.inputs = Inputs(dataset, [i for i in engine.inputs if i.name != switch], baseline, samples)
        labels = _rows_of(wanted.labels, self.inputs.rows)
        self.judge = Judge(self.inputs.cut(baseline), replace(wanted, labels=labels))
        self._engine, self._switch, self._prober = engine, switch, Prober(self.judge)
        self._known: dict[frozenset[int], Trial] = {}
        self._probed: tuple[list[int], list[tuple[list[int], Batch]]] = [], []

    @property
    def criteria(self) -> Sequence[Criterion]:
        """What is judged."""
        return self.judge.criteria

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.judge.samples

    @property
    def targets(self) -> Sequence[Target]:
        """What ``probe`` measures."""
        return self._prober.targets

    def trial(self, high: frozenset[int], order: Sequence[int], enough: Enough | None) -> Trial:
        """Judge a plan; see ``Evaluator``.

        Raises:
            EngineError: The engine fails.
            CriterionError: A user's function fails.
        """
        if high in self._known:
            return replace(self._known[high], cost=0.0)
        gathered = Gathered(self.judge)
        for samples, batch in self.inputs.runs(order):
            gathered.add(samples, self._run(high, samples, batch))
            if enough is not None and not gathered.seen.all() and enough(gathered.parts()):
                break
        trial = self.judge.trial(high, gathered)
        if trial.confirmed:
            self._known[high] = trial
        return trial

    def probe(self, plans: Sequence[frozenset[int]], samples: Sequence[int]) -> list[Probe]:
        """Measure the errors of plans on a few samples; see ``Evaluator``.

        Raises:
            EngineError: The engine fails.
        """
        if self._probed[0] != list(samples):
            self._probed = list(samples), list(self.inputs.runs(samples))
        return [self._probe(high, samples) for high in plans]

    def _probe(self, high: frozenset[int], samples: Sequence[int]) -> Probe:
        found: dict[str, dict[int, Array]] = {name: {} for name in self.judge.baseline}
        for run, batch in self._probed[1]:
            for name, arrays in self._run(high, run, batch).items():
                found[name].update(zip(run, arrays, strict=True))
        return self._prober.probe(samples, {n: [arrays[i] for i in samples] for n, arrays in found.items()})

    def _run(self, high: frozenset[int], samples: Sequence[int], batch: Batch) -> SampleOutputs:
        int8 = np.ones(len(self.groups), np.bool_)
        int8[list(high)] = False
        return self.inputs.outputs_of(samples, batch, self._engine({**batch.feed, self._switch: int8}))


def _rows_of(labels: Labels | None, rows: list[int]) -> Labels | None:
    if isinstance(labels, Mapping):
        return {name: array[rows] for name, array in labels.items()}
    return None if labels is None else labels[rows]
