"""Applies the criteria of a case to outputs: one judge, whatever is compared."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pytest_int8acc.results import OutputResult, Score
from pytest_int8acc.scores.compare import Comparison
from pytest_int8acc.scores.criteria import (
    MetricLimit,
    OutputLimits,
    limits_for,
)
from pytest_int8acc.scores.split import Splitter
from pytest_int8acc.scores.tasks import Labels
from pytest_int8acc.scores.user_metric import (
    MetricRun,
    UserMetric,
    metric_scores,
    of_samples,
)
from pytest_int8acc.tensors import Feed


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

    @property
    def holds(self) -> bool:
        """True where it passes, and would on nearly all other samples like these."""
        return self.passed and all(score.likely for score in self.scores)


@dataclass(frozen=True, eq=False)
class Judge:
    """A case's criteria, ready to be applied to outputs."""

    limits: Sequence[OutputLimits] = ()
    metrics: Sequence[tuple[MetricLimit, UserMetric]] = ()
    labels: Labels = None
    """For the metrics."""
    splitter: Splitter = field(default_factory=Splitter)
    """Which outputs are judged by their parts; shared by all that one case compares."""

    def of_rows(self, rows: Sequence[int]) -> Judge:
        """The same with the labels of some samples, by index."""
        return replace(self, labels=of_samples(self.labels, rows))

    def on(self, outputs: Collection[str]) -> Judge:
        """What speaks of these outputs alone, without users' metrics."""
        limits = tuple(limit for limit in self.limits if any(limits_for(name, [limit]) for name in outputs))
        return replace(self, limits=limits, metrics=())


class Scoring:
    """One form compared with another batch by batch, by a case's criteria."""

    def __init__(self, judge: Judge, like: Scoring | None = None, *, judged_only: bool = False) -> None:
        """Nothing is compared yet.

        Args:
            judge: The criteria.
            judged_only: Leaves out what no limit on an output needs, users' metrics too.
            like: Another form against the same baseline on the same samples, fed before: tells users' metrics
                of the baseline. None: they are fed with it.

        Raises:
            CriterionError: A user's metric takes other arguments.
        """
        self.judged_only, self._like = judged_only, like
        self.outputs = Comparison(
            judge.limits,
            metrics_given=bool(judge.metrics),
            judged_only=judged_only,
            splitter=judge.splitter,
        )
        metrics = () if judged_only else judge.metrics
        self._metrics = [MetricRun(limit, function, judge.labels) for limit, function in metrics]
        self._baseline = [MetricRun(*metric, judge.labels) for metric in metrics if like is None]
        self._references: list[float] = []
        self._samples = 0

    def add(self, baseline: Feed, candidate: Feed, rows: int) -> None:
        """Compare the next batch, of so many samples; CriterionError where a criterion does not fit."""
        self.outputs.add(baseline, candidate)
        samples = range(self._samples, self._samples + rows)
        self._samples += rows
        for run in self._metrics:
            run.add(baseline, candidate, samples)
        for run in self._baseline:
            run.add(baseline, baseline, samples)

    def reference(self, index: int) -> float:
        """What a user's metric gives for the baseline, by its place; CriterionError unless it is finite."""
        if self._like is not None:
            return self._like.reference(index)
        for run in self._baseline[len(self._references) : index + 1]:
            self._references.append(run.reference("the baseline's outputs"))
        return self._references[index]

    def _of_baseline(self, index: int) -> MetricRun:
        """A metric as it was fed with the baseline, by its place."""
        return self._baseline[index] if self._like is None else self._like._of_baseline(index)

    def verdict(self, noise: Scoring | None = None, *, intervals: bool = False) -> Verdict:
        """All outputs and all metrics, judged before anything fails.

        Args:
            noise: The baseline and its second run, of these samples or of others; where users' metrics were
                left out of it, the two are the same.
            intervals: Whether samples are drawn again, to see how steady the verdict is.

        Raises:
            CriterionError: A limit stands on a baseline that is not finite, or a user's metric fails.
        """
        outputs = self.outputs.results(noise.outputs if noise else None, intervals=intervals)
        reruns = noise._metrics if noise is not None else []
        scores = (
            score
            for index, run in enumerate(self._metrics)
            for score in metric_scores(
                *(run.limit, self.reference(index), run, reruns[index] if reruns else None),
                steady=noise is not None and not reruns,
                paired=self._of_baseline(index) if intervals else None,
            )
        )
        return Verdict(outputs, tuple(scores))
