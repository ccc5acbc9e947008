"""A second opinion on a search's answer: the plan applied, the model rebuilt and run, without search code."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.case import BATCH, Case
from benchmarks.simulate import baseline_model
from pytest_int8acc.case.forms import Int8Form
from pytest_int8acc.graph.model import Model
from pytest_int8acc.graph.network import Plan
from pytest_int8acc.runtime.onnxruntime import OrtEngine
from pytest_int8acc.scores.judge import Judge as CaseJudge
from pytest_int8acc.tensors import Outputs


class Judge:
    """Judges plans of one case on all samples, by an engine of its own for each."""

    def __init__(self, case: Case) -> None:
        """Run the baseline once."""
        self.case = case
        self._baseline = self._run(baseline_model(case.network))
        self._known: dict[frozenset[str], bool] = {}

    def passes(self, high: Iterable[str]) -> bool:
        """Whether the criteria hold with these groups high and all others in INT8."""
        plan = frozenset(high)
        if plan not in self._known:
            form = Int8Form(self.case.network, "", "fp16").under(Plan(dict.fromkeys(plan, "fp16")))
            self._known[plan] = self._meets(self._run(form.model))
        return self._known[plan]

    def is_minimal(self, high: Iterable[str]) -> bool:
        """Whether the plan passes, and fails with any one group sent back to INT8."""
        plan = frozenset(high)
        return self.passes(plan) and not any(self.passes(plan - {group}) for group in sorted(plan))

    def _meets(self, outputs: Outputs) -> bool:
        case = self.case
        judge = CaseJudge(case.limits, case.metrics, case.labels)
        return judge.compare(self._baseline, outputs).verdict().passed

    def _run(self, model: Model) -> Outputs:
        engine = OrtEngine(model)
        found: Outputs = {output.name: [] for output in engine.outputs}
        for start in range(0, self.case.samples, BATCH):
            feed = {name: array[start : start + BATCH] for name, array in self.case.data.items()}
            for name, array in engine(feed).items():
                found[name].append(array)
        return found
