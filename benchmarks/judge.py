"""A second opinion on a search's answer: the plan applied, the model rebuilt and run, without search code."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.case import BATCH, Case
from pytest_int8acc.engines.onnxruntime import OrtEngine
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.graph.plan import apply
from pytest_int8acc.scores.compare import compare_outputs
from pytest_int8acc.tensors import Outputs


class Judge:
    """Judges plans of one case on all samples, by an engine of its own for each."""

    def __init__(self, case: Case) -> None:
        """Run the float model once."""
        self.case = case
        self._baseline = self._run(case.network.model)
        self._known: dict[frozenset[str], bool] = {}

    def passes(self, high: Iterable[str]) -> bool:
        """Whether the criteria hold with these groups high and all others in INT8."""
        plan = frozenset(high)
        if plan not in self._known:
            model = apply(self.case.network, Plan(high=dict.fromkeys(plan, "fp32")))
            results = compare_outputs(self._baseline, self._run(model), self.case.limits)
            self._known[plan] = all(result.passed for result in results)
        return self._known[plan]

    def is_minimal(self, high: Iterable[str]) -> bool:
        """Whether the plan passes, and fails with any one group sent back to INT8."""
        plan = frozenset(high)
        return self.passes(plan) and not any(self.passes(plan - {group}) for group in sorted(plan))

    def _run(self, model: Model) -> Outputs:
        engine = OrtEngine(model)
        found: Outputs = {output.name: [] for output in engine.outputs}
        for start in range(0, self.case.samples, BATCH):
            feed = {name: array[start : start + BATCH] for name, array in self.case.data.items()}
            for name, array in engine(feed).items():
                found[name].append(array)
        return found
