"""A case's criteria, ready to be applied to outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pytest_int8acc.data import load_labels
from pytest_int8acc.data.scripts import load_function
from pytest_int8acc.errors import CriterionError
from pytest_int8acc.results import OutputResult, Score
from pytest_int8acc.scores.compare import compare_outputs
from pytest_int8acc.scores.criteria import MetricLimit, OutputLimits
from pytest_int8acc.scores.user_metric import UserMetric, evaluate_metric
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.criteria import MetricCriterion, OutputCriterion
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Array, Outputs


class Verdict(NamedTuple):
    """Outputs and metrics of one candidate, judged."""

    outputs: tuple[OutputResult, ...]
    metrics: tuple[Score, ...]

    @property
    def scores(self) -> tuple[Score, ...]:
        """All scores, outputs first."""
        return tuple(score for output in self.outputs for score in output.scores) + self.metrics

    @property
    def passed(self) -> bool:
        """True where every output and every metric passes."""
        return all(output.passed for output in self.outputs) and all(score.passed for score in self.metrics)


@dataclass(frozen=True, eq=False)
class Judge:
    """A case's criteria, ready to be applied to outputs."""

    limits: Sequence[OutputLimits] = ()
    metrics: Sequence[tuple[MetricLimit, UserMetric]] = ()
    labels: Array | Mapping[str, Array] | None = None
    """For the metrics: one entry per sample on axis 0; one array, or several by name."""

    def __call__(self, baseline: Outputs, candidate: Outputs, again: Outputs | None = None) -> Verdict:
        """All outputs and all metrics, judged before anything fails; ``again`` gives the noise."""
        outputs = compare_outputs(
            baseline, candidate, self.limits, noise=again, metrics_given=bool(self.metrics)
        )
        metrics: list[Score] = []
        for limit, function in self.metrics:
            metrics += evaluate_metric(limit, function, baseline, candidate, self.labels, noise=again)
        return Verdict(outputs, tuple(metrics))

    def score(
        self, baseline: Outputs, candidate: Outputs, *, metrics: bool
    ) -> tuple[tuple[OutputResult, ...], list[Score]]:
        """What has a limit: outputs compared, and where ``metrics``, scores of users' functions."""
        outputs = compare_outputs(
            baseline, candidate, self.limits, metrics_given=bool(self.metrics), judged_only=True
        )
        own: list[Score] = []
        for limit, function in self.metrics if metrics else ():
            own += evaluate_metric(limit, function, baseline, candidate, self.labels)
        return outputs, [score for score in own if score.limit is not None]

    def of_rows(self, rows: Sequence[int]) -> Judge:
        """The same with the labels of some samples, by index."""
        if self.labels is None:
            return self
        if isinstance(self.labels, Mapping):
            return replace(self, labels={name: array[list(rows)] for name, array in self.labels.items()})
        return replace(self, labels=self.labels[list(rows)])


def load_judge(case: Case, settings: Settings, samples: int) -> Judge:
    """The case's criteria with users' functions and labels loaded.

    Args:
        case: From ``load_spec``.
        settings: Whether only some of the samples are used.
        samples: Number of samples.

    Raises:
        CriterionError: A user's function cannot be loaded.
        DataError: The labels cannot be read, or are not as many as the samples.
    """
    limits = tuple(_output_limits(c) for c in case.criteria if isinstance(c, OutputCriterion))
    wanted = [_metric_limit(c) for c in case.criteria if isinstance(c, MetricCriterion)]
    metrics = tuple((limit, load_function(limit.ref, case.path(""), CriterionError)) for limit in wanted)
    labels = None
    if case.labels is not None:
        limited = settings.samples is not None
        labels = load_labels(case.labels, samples, case.path(""), limited=limited)
    return Judge(limits, metrics, labels)


def _output_limits(criterion: OutputCriterion) -> OutputLimits:
    given = {name: value for name in criterion.limits() if (value := getattr(criterion, name)) is not None}
    return OutputLimits(criterion.output, criterion.axis, given, criterion.rel_floor)


def _metric_limit(criterion: MetricCriterion) -> MetricLimit:
    drop = criterion.drop
    return MetricLimit(
        criterion.metric,
        min=criterion.min,
        max=criterion.max,
        max_drop=drop.amount if drop and not drop.relative else None,
        max_drop_relative=drop.amount if drop and drop.relative else None,
        lower_is_better=criterion.lower_is_better,
    )
