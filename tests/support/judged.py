"""Outputs that are kept whole, judged: what tests of metrics and criteria talk to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_int8acc import OutputResult, Score
from pytest_int8acc.scores.criteria import MetricLimit, OutputLimits
from pytest_int8acc.scores.judge import Judge, OutputRows
from pytest_int8acc.scores.metrics import METRICS
from pytest_int8acc.scores.rows import Options
from pytest_int8acc.tensors import Array

#: Batches of each output.
Outputs = dict[str, list[Array]]


def judged(
    judge: Judge,
    baseline: Outputs,
    candidate: Outputs,
    again: Outputs | None = None,
    *,
    judged_only: bool = False,
    intervals: bool = False,
) -> Any:
    """All outputs and all metrics; ``again``, the baseline's second run, gives the noise."""
    noise = None if again is None else judge.compare(baseline, again)
    comparison = judge.compare(baseline, candidate, judged_only=judged_only)
    return comparison.verdict(noise, intervals=intervals)


def compare_outputs(
    baseline: Outputs, candidate: Outputs, criteria: Sequence[OutputLimits] = (), **given: Any
) -> tuple[OutputResult, ...]:
    return judged(Judge(criteria), baseline, candidate, **given).outputs


def rows_of(
    baseline: Sequence[Array], candidate: Sequence[Array], *criteria: OutputLimits, name: str = "y"
) -> OutputRows:
    """One output compared by these criteria alone, without the default one."""
    rows = OutputRows(name, criteria)
    for b, c in zip(baseline, candidate, strict=True):
        rows.add(b, c)
    return rows


def compare_output(
    name: str, baseline: Sequence[Array], candidate: Sequence[Array], criteria: Sequence[OutputLimits] = ()
) -> OutputResult:
    return rows_of(baseline, candidate, *criteria, name=name).result()


def score(
    metric: str,
    baseline: Sequence[Array] | Array,
    candidate: Sequence[Array] | Array,
    *,
    samples: Sequence[int] | None = None,
    **options: Any,
) -> float:
    """A metric of batches, or of one array: of all samples, or some; ``options`` as of ``Options``."""
    limits = OutputLimits("y", limits={metric: 0.0}, options=Options(**options))
    batches = (each if isinstance(each, list) else [each] for each in (baseline, candidate))
    return rows_of(*batches, limits).value(METRICS[metric], limits.options, samples)


def evaluate_metric(
    limit: MetricLimit,
    function: Any,
    baseline: Outputs,
    candidate: Outputs,
    labels: Any = None,
    again: Outputs | None = None,
) -> tuple[Score, ...]:
    """The scores of a metric of labels; ``again``: the baseline's second run."""
    judge = Judge((), [(limit, function)], labels)
    return judged(judge, baseline, candidate, again).metrics
