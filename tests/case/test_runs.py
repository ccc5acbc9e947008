"""Forms compared batch by batch: what is kept, what runs again, and scores as of whole outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judged import Outputs, judged
from projects import CALIBRATED, Project

from pytest_int8acc import CaseResult, Score, Settings
from pytest_int8acc.answer import conclude
from pytest_int8acc.case.measured import measure
from pytest_int8acc.results import Role
from pytest_int8acc.runtime.run import run_together

METRICS = """
import numpy as np

def top1(outputs, labels):
    (name,) = outputs
    return float((outputs[name].reshape(len(labels), -1).argmax(1) == labels).mean())

class Top1:
    def __init__(self):
        self.right = self.seen = 0

    def update(self, outputs, labels):
        self.right += top1(outputs, labels) * len(labels)
        self.seen += len(labels)

    def compute(self):
        return self.right / self.seen
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.data(made.model("plain"))
    (tmp_path / "metrics.py").write_text(METRICS)
    np.save(tmp_path / "labels.npy", np.zeros(12, np.int64))
    return made


def measured(project: Project, spec: str, settings: Settings | None = None) -> Any:
    return measure(project.case(CALIBRATED + spec), settings or Settings())


def outputs_of(case: Any) -> Iterator[Outputs]:
    """Of baseline and INT8, run anew and kept."""
    for form, role in ((case.reference, Role.BASELINE), (case.candidate, Role.INT8)):
        engine = case.backend.open(form, role, case.inputs)
        yield run_together({"it": engine}, case.inputs)["it"]


def test_scores_are_those_of_whole_outputs(project: Project) -> None:
    criteria = "[{max_rel: 9, kl: 1}, {metric: 'metrics.py:top1', min: 0}]"
    case = measured(project, f"labels: labels.npy\ncriteria: {criteria}\n")
    baseline, candidate = outputs_of(case)
    whole = judged(case.judge, baseline, candidate, baseline)
    outputs = [replace(o, scores=tuple(map(undrawn, o.scores))) for o in case.result.outputs]
    assert (*whole.outputs, *whole.metrics) == (*outputs, *map(undrawn, case.result.metrics))


def undrawn(score: Score) -> Score:
    """As it is where samples are not drawn again."""
    return replace(score, interval=None)


@pytest.mark.parametrize(
    ("search", "most", "kept"), [("auto", 1e6, (6, 6)), ("auto", 9, (6, 0)), ("off", 9, (0, 0))]
)
def test_outputs_are_kept_where_a_search_may_want_them_and_those_of_int8_only_if_they_are_small(
    project: Project, monkeypatch: pytest.MonkeyPatch, search: str, most: float, kept: tuple[int, int]
) -> None:
    monkeypatch.setattr("pytest_int8acc.case.measured._CANDIDATE_BYTES", most)
    case = measured(project, "criteria: [{sqnr_db: 5}]\n", Settings(search=search))  # type: ignore[arg-type]
    for role, batches in zip((Role.BASELINE, Role.INT8), kept, strict=True):
        assert [len(arrays) for arrays in case.runs.kept[role].values()] == [batches] * bool(batches)


def test_what_was_compared_in_part_runs_again_where_all_is_asked_for(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first samples leave a doubt of FP16.
    monkeypatch.setattr("pytest_int8acc.case.preflight._HEADROOM", 1e9)
    case = measured(project, "criteria: [{sqnr_db: 5}]\n")
    known = case.runs.comparisons[Role.FP32, Role.BASELINE]
    assert known.judged_only
    (lean,) = known.verdict().outputs
    (full,) = case.runs.comparison(Role.FP32, Role.BASELINE).verdict().outputs
    assert (lean.fit, full.fit is None) == (None, False)
    assert full.scores[0] == lean.scores[0]
    reference = run_together({"it": case.sessions.exact(case.model)}, case.inputs)["it"]
    assert full == judged(case.judge, reference, case.baseline).outputs[0]
    int8 = case.runs.comparison(Role.FP32, Role.INT8).verdict()
    assert int8 == judged(case.judge, reference, next(iter([*outputs_of(case)][1:])))


def told(result: CaseResult) -> tuple[object, ...]:
    """What two runs of a case have in common whose metric differs in name only."""
    assert result.search is not None
    scores = [replace(s, subject="", metric="") for s in (*result.scores, *result.search.fixed)]
    return scores, [culprit.layer for culprit in result.search.culprits], result.search.verified


def test_a_class_finds_what_a_function_does(project: Project) -> None:
    spec = "labels: labels.npy\ncriteria: [{sqnr_db: 60}, {metric: 'metrics.py:%s', max_drop: 0.5}]\n"
    whole, fed = (conclude(measured(project, spec % name)) for name in ("top1", "Top1"))
    assert told(whole) == told(fed)
    streaming = conclude(measured(project, (spec % "top1").replace("max_drop", "streaming: true, max_drop")))
    assert told(streaming) == told(fed)
