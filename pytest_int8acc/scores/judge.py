"""The one judge: it compares a candidate with a baseline, keeps rows, and makes verdicts of them."""

from __future__ import annotations

import glob
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pytest_int8acc.errors import CriterionError
from pytest_int8acc.results import OutputResult, Score
from pytest_int8acc.scores.criteria import (
    MetricLimit,
    OutputLimits,
    check_patterns,
    limits_for,
    limits_of_part,
    limits_of_small_channels,
)
from pytest_int8acc.scores.output_rows import OutputRows
from pytest_int8acc.scores.split import Splitter
from pytest_int8acc.scores.tasks import Labels
from pytest_int8acc.scores.user_metric import MetricRun, UserMetric, metric_scores, of_samples
from pytest_int8acc.tensors import Array, Feed, Outputs, Part


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
    """The criteria of a case, ready to be applied to outputs."""

    limits: Sequence[OutputLimits] = ()
    """An output that none of them names must keep the default limit, unless there are ``metrics``: SQNR 20
    dB, or agreement 0.99 where it holds no floats."""
    metrics: Sequence[tuple[MetricLimit, UserMetric]] = ()
    labels: Labels = None
    """For the metrics."""
    splitter: Splitter = field(default_factory=Splitter)
    """Which outputs are judged by their parts; shared by all that one case compares."""

    def of_rows(self, rows: Sequence[int]) -> Judge:
        """The same with the labels of some samples, by index."""
        return replace(self, labels=of_samples(self.labels, rows))

    def on(self, outputs: Collection[str]) -> Judge:
        """The limits on these outputs alone, without users' metrics."""
        limits = tuple(limit for limit in self.limits if any(limits_for(name, [limit]) for name in outputs))
        return replace(self, limits=limits, metrics=())

    def compare(
        self, baseline: Outputs, candidate: Outputs, *, judged_only: bool = False, metrics: bool = True
    ) -> Comparison:
        """Compare outputs that are kept whole.

        Args:
            baseline: Its outputs, one array per batch, samples along the first axis.
            candidate: Its outputs of the same data in the same batches.
            judged_only: See ``Comparison``.
            metrics: See ``Comparison``.

        Raises:
            CriterionError: See ``Comparison.add``.
        """
        comparison = Comparison(self, judged_only=judged_only, metrics=metrics)
        comparison.open(list(baseline), list(candidate), {n: a[0] for n, a in baseline.items() if a})
        for arrays in zip(*baseline.values(), *(candidate[name] for name in baseline), strict=True):
            ours = dict(zip(baseline, arrays[: len(baseline)], strict=True))
            comparison.add(ours, dict(zip(baseline, arrays[len(baseline) :], strict=True)))
        return comparison


class Comparison:
    """One form compared with another batch by batch; rows are kept, arrays are not."""

    def __init__(
        self,
        judge: Judge,
        like: Comparison | None = None,
        *,
        judged_only: bool = False,
        metrics: bool = True,
        of_itself: bool = False,
    ) -> None:
        """Nothing is compared yet.

        Args:
            judge: The criteria.
            like: Another form against the same baseline on the same samples, fed before: it knows the
                baseline's values of users' metrics. None: the baseline is fed to users' metrics here.
            judged_only: Leaves out what no limit on an output needs: other scores, the line, the worst
                sample.
            metrics: Whether users' metrics are fed.
            of_itself: Whether the candidate is the baseline.

        Raises:
            CriterionError: A user's metric takes other arguments.
        """
        self.judge, self.judged_only, self._like = judge, judged_only, like
        self.outputs: dict[str, OutputRows] = {}
        """By the name of an output, or of a part of one."""
        fed = judge.metrics if metrics else ()
        self.metrics = [MetricRun(limit, function, judge.labels) for limit, function in fed]
        self._of_baseline = self.metrics
        if not of_itself:
            self._of_baseline = [MetricRun(*metric, judge.labels) for metric in fed if like is None]
        self._references: list[float] = []
        self._samples = 0

    def open(self, baseline: Sequence[str], candidate: Sequence[str], first: Mapping[str, Array]) -> None:
        """Begin rows of each output, or of each of its parts.

        Args:
            baseline: Names of its outputs.
            candidate: Names of its outputs.
            first: The baseline's arrays of the first batch; an output without one is not split.

        Raises:
            CriterionError: A criterion or the candidate does not fit.
        """
        criteria, splitter = self.judge.limits, self.judge.splitter
        parts = {name: self._parts(name, first) for name in baseline}
        small = {name: part for name in baseline if (part := self._small_channels(name)) is not None}
        every = [*(part for found in parts.values() for part in found), *small.values()]
        named = [name for part in every for name in (part.name, part.place)]
        pending = tuple(f"{glob.escape(name)}[" for name in baseline if splitter.is_pending(name))
        known = [limits for limits in criteria if not limits.output.startswith(pending)]
        check_patterns(known, [*baseline, *named])
        missing = [name for name in baseline if name not in candidate]
        if missing:
            raise CriterionError(
                f"the candidate has no output {', '.join(map(repr, missing))}; it gives: "
                f"{', '.join(candidate) or 'none'}; both models need the same output names"
            )
        for name in baseline:
            limits = limits_for(name, criteria)
            if not parts[name]:
                self._open(name, limits, None)
                if name in small and name in first:
                    of_small = limits_of_small_channels(small[name], first[name].ndim, criteria)
                    if of_small is not None:
                        self._open(small[name].name, of_small, small[name])
                continue
            if accepted := [limit for limit in limits if limit.accepted]:
                self._open(name, accepted, None)
            for part in parts[name]:
                self._open(part.name, limits_of_part(part, first[name], parts[name], criteria), part)

    def _parts(self, output: str, first: Mapping[str, Array]) -> Sequence[Part]:
        if output not in first or any(limits.unjudged for limits in limits_for(output, self.judge.limits)):
            return ()
        return self.judge.splitter.parts(output, first[output])

    def _small_channels(self, output: str) -> Part | None:
        """Small channels of an output that is judged, by the default limit or by others."""
        limits = limits_for(output, self.judge.limits)
        judged = not any(limit.unjudged for limit in limits) and (limits or not self.judge.metrics)
        return self.judge.splitter.small_channels(output) if judged else None

    def _open(self, name: str, limits: Sequence[OutputLimits], part: Part | None) -> None:
        known = None if not limits and not self.judge.metrics else limits
        self.outputs[name] = OutputRows(name, known, judged_only=self.judged_only, part=part)

    def add(self, baseline: Feed, candidate: Feed, rows: int | None = None) -> None:
        """Compare the next batch.

        Args:
            baseline: Its outputs.
            candidate: Its outputs.
            rows: How many samples the batch holds; None: as many as the first axis of an output counts.

        Raises:
            CriterionError: A criterion or the candidate does not fit, or a user's metric fails.
        """
        if not self.outputs:
            self.open(list(baseline), list(candidate), baseline)
        for output in self.outputs.values():
            output.add(baseline[output.output], candidate[output.output])
        if rows is None:
            rows = next((len(array) for array in candidate.values() if array.ndim), 1)
        samples = range(self._samples, self._samples + rows)
        self._samples += rows
        for run in self.metrics:
            run.add(baseline, candidate, samples)
        for run in self._of_baseline if self._of_baseline is not self.metrics else ():
            run.add(baseline, baseline, samples)

    def reference(self, index: int) -> float:
        """What a user's metric gives for the baseline, by its place; CriterionError unless it is finite."""
        if self._like is not None:
            return self._like.reference(index)
        for run in self._of_baseline[len(self._references) : index + 1]:
            self._references.append(run.reference("the baseline's outputs"))
        return self._references[index]

    def _baseline_run(self, index: int) -> MetricRun:
        """A user's metric as it was fed with the baseline, by its place."""
        return self._of_baseline[index] if self._like is None else self._like._baseline_run(index)

    def results(
        self, noise: Comparison | None = None, *, intervals: bool = False
    ) -> tuple[OutputResult, ...]:
        """All outputs judged; see ``verdict``."""
        reruns = noise.outputs if noise is not None else {}
        return tuple(
            output.result(reruns.get(name), intervals=intervals) for name, output in self.outputs.items()
        )

    def verdict(self, noise: Comparison | None = None, *, intervals: bool = False) -> Verdict:
        """All outputs and all metrics, judged before anything fails.

        Args:
            noise: The baseline and its second run, of these samples or of others; where users' metrics were
                left out of it, the two are the same.
            intervals: Whether samples are drawn again, to see how steady the verdict is.

        Raises:
            CriterionError: A limit stands on a baseline that is not finite, or a user's metric fails.
        """
        outputs = self.results(noise, intervals=intervals)
        reruns = noise.metrics if noise is not None else []
        scores: list[Score] = []
        for index, run in enumerate(self.metrics):
            scores += metric_scores(
                run.limit,
                self.reference(index),
                run,
                reruns[index] if reruns else None,
                steady=noise is not None and not reruns,
                paired=self._baseline_run(index) if intervals else None,
            )
        return Verdict(outputs, tuple(scores))
