"""A case's criteria in a search: verdicts on some of the samples, and what each sample adds to them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from pytest_int8acc.results import OutputResult, Score
from pytest_int8acc.results.scores import consistent
from pytest_int8acc.scores.compare import Comparison, result
from pytest_int8acc.scores.criteria import Criterion, kind_of
from pytest_int8acc.scores.judge import (
    Judge,
)
from pytest_int8acc.scores.parts import demands_on
from pytest_int8acc.scores.statistics import OutputStatistics
from pytest_int8acc.scores.sums import AT, F64, PIECE
from pytest_int8acc.scores.user_metric import MetricRun, metric_scores
from pytest_int8acc.search.types import Trial
from pytest_int8acc.tensors import Array

#: Outputs cut into samples: by name, one array per sample; a sample's arrays keep the axis that counted it.
SampleOutputs = Mapping[str, Sequence[Array]]


class SampleJudge:
    """A case's judge, and the baseline of the samples that a search sees."""

    def __init__(self, baseline: SampleOutputs, judge: Judge, rows: Sequence[int] | None = None) -> None:
        """Check that the criteria fit the baseline.

        Args:
            baseline: Its outputs, cut into samples.
            judge: The case's judge with labels of these samples.
            rows: How many labels belong to each sample; None: one.

        Raises:
            CriterionError: A criterion does not fit.
        """
        self.baseline = {name: list(arrays) for name, arrays in baseline.items()}
        self.samples = len(next(iter(self.baseline.values())))
        ends = np.cumsum([1] * self.samples if rows is None else rows).tolist()
        self._rows = [range(start, end) for start, end in pairwise([0, *ends])]
        self._judge = judge
        self.whole = self._compared_with_itself()
        self.peaks = {name: stats.peak for name, stats in self.whole.items()}
        self.demands = demands_on(self.whole)
        own: list[Score] = []
        self.references: list[float] = []
        """What users' metrics give for the baseline."""
        for run in self.metric_runs():
            self.feed(run, range(self.samples), self.baseline)
            self.references.append(run.reference("the baseline's outputs"))
            own += metric_scores(run.limit, self.references[-1], run)
        self.criteria = (
            *(d.criterion for d in self.demands),
            *(Criterion(s.subject, s.metric, s.limit, s.bound, "whole") for s in own if s.limit is not None),
        )

    def _compared_with_itself(self) -> Mapping[str, OutputStatistics]:
        found = Comparison(
            self._judge.limits,
            metrics_given=bool(self._judge.metrics),
            judged_only=True,
            splitter=self._judge.splitter,
        )
        first = {name: arrays[0] for name, arrays in self.baseline.items() if arrays}
        found.open(list(self.baseline), list(self.baseline), first)
        for stats in found.statistics.values():
            arrays = self.baseline[stats.output]
            for b, _, samples in alike(arrays, arrays):
                stats.add(b, b, len(samples))
        found.results()
        return found.statistics

    def metric_runs(self) -> list[MetricRun]:
        """Users' metrics, fed with nothing yet."""
        return [MetricRun(limit, function, self._judge.labels) for limit, function in self._judge.metrics]

    def feed(self, run: MetricRun, samples: Sequence[int], outputs: SampleOutputs) -> None:
        """Give outputs of some samples to a user's metric; of all of them, where it does not stream."""
        if not run.streams:
            run.add_all({}, {name: join(arrays) for name, arrays in outputs.items()})
            return
        joined = {name: join(arrays) for name, arrays in outputs.items()} if run.joins else {}
        if joined and all(len(arrays) == 1 for arrays in joined.values()):
            rows = [row for sample in samples for row in self._rows[sample]]
            run.add({}, {name: arrays[0] for name, arrays in joined.items()}, rows)
            return
        for place, sample in enumerate(samples):
            ours = {name: _alone(arrays[sample]) for name, arrays in self.baseline.items()}
            theirs = {name: _alone(arrays[place]) for name, arrays in outputs.items()}
            run.add(ours, theirs, self._rows[sample])

    def trial(self, high: frozenset[int], gathered: Gathered) -> Trial:
        """The verdict on what was gathered, a pass only where all samples were.

        Raises CriterionError where a user's function fails.
        """
        seen = gathered.seen.nonzero()[0]
        whole = len(seen) == self.samples
        outputs, own = gathered.results(), gathered.metric_scores() if whole else []
        parts = gathered.parts()
        judged = [(o, s) for o in outputs for s in o.scores if s.limit is not None]
        unjudged = [o for o in outputs if all(s.limit is None for s in o.scores)]
        spoilt = not all(output.passed for output in unjudged)
        losses = [
            math.inf if spoilt or output.problem else self._loss(i, score, parts[i, seen])
            for i, (output, score) in enumerate(judged)
        ]
        missing = len(self.criteria) - len(judged) - len(own)
        return Trial(
            high=high,
            passed=whole and all(o.passed for o in outputs) and all(s.passed for s in own),
            losses=(*losses, *(score.normalized_loss for score in own), *[0.0] * missing),
            scores=(*(s.value for _, s in judged), *(s.value for s in own), *[math.nan] * missing),
            parts=parts,
            cost=len(seen) / self.samples,
            confirmed=whole,
        )

    def _loss(self, index: int, score: Score, parts: F64) -> float:
        criterion = self.criteria[index]
        if criterion.pool != "rank":
            return score.normalized_loss
        ranked = np.sort(parts)[::-1]
        loss = float(ranked[criterion.allowed]) if criterion.allowed < len(ranked) else 0.0
        return consistent(loss, score.passed)


class Gathered:
    """What one plan's outputs add to the losses, sample by sample in any order.

    The outputs themselves are kept only for users' metrics that want all of them at once.
    """

    def __init__(self, judge: SampleJudge) -> None:
        self.seen = np.zeros(judge.samples, np.bool_)
        self._judge = judge
        self._statistics = {
            name: OutputStatistics(
                name, stats.limits, judged_only=True, peak=judge.peaks[name], part=stats.part
            )
            for name, stats in judge.whole.items()
        }
        self._order: dict[str, list[int]] = {name: [] for name in self._statistics}
        self._unlike: dict[str, list[int]] = {name: [] for name in self._statistics}
        self._separate: list[list[F64]] = [[] for _ in judge.demands]
        self._metrics = judge.metric_runs()
        keeps = any(not run.streams for run in self._metrics)
        self._kept = {name: [np.empty(0)] * judge.samples for name in judge.baseline if keeps}

    def add(self, samples: Sequence[int], outputs: SampleOutputs) -> None:
        """Take the outputs of ``samples``, in that order."""
        self.seen[list(samples)] = True
        for name, stats in self._statistics.items():
            self._compare(name, samples, outputs[stats.output])
        for name, kept in self._kept.items():
            for sample, array in zip(samples, outputs[name], strict=True):
                kept[sample] = array
        for run in self._metrics:
            if run.streams:
                self._judge.feed(run, samples, outputs)

    def _compare(self, name: str, samples: Sequence[int], arrays: Sequence[Array]) -> None:
        stats = self._statistics[name]
        for b, c, places in alike([self._judge.baseline[stats.output][i] for i in samples], arrays):
            some = [samples[place] for place in places]
            stats.add(b, c, len(some))
            if b.shape != c.shape or kind_of(b) != kind_of(c):
                self._unlike[name] += some
                continue
            self._order[name] += some
            for demand, rows in zip(self._judge.demands, self._separate, strict=True):
                if demand.separate and demand.output == name:
                    rows.append(demand.measure(stats.cut(b), stats.cut(c), len(some)))

    def results(self) -> tuple[OutputResult, ...]:
        """What has a limit, of the samples that were added."""
        return tuple(map(result, self._statistics.values()))

    def metric_scores(self) -> list[Score]:
        """Those of users' metrics that have a limit, once all samples were added."""
        found: list[Score] = []
        for run, reference in zip(self._metrics, self._judge.references, strict=True):
            if not run.streams:
                self._judge.feed(run, range(self._judge.samples), self._kept)
            found += metric_scores(run.limit, reference, run)
        return [score for score in found if score.limit is not None]

    def parts(self) -> F64:
        """[criteria, samples], nan where not seen and for users' metrics."""
        judge = self._judge
        parts = np.full((len(judge.criteria), judge.samples), np.nan)
        spoilt = {name: self._spoilt(name) for name in self._statistics}
        judged = {demand.output for demand in judge.demands}
        for index, demand in enumerate(judge.demands):
            stats, order = self._statistics[demand.output], np.array(self._order[demand.output], np.intp)
            rows = (
                np.concatenate([np.empty((0, 1)), *self._separate[index]])
                if demand.separate
                else stats.rows(demand.metric, demand.limits)
            )
            good = ~np.isin(order, spoilt[demand.output])
            parts[index, self.seen] = np.inf
            if good.any():
                parts[index, order[good]] = demand.parts(rows[good])
        for name in spoilt.keys() - judged:  # NaN spoils a case even where no limit looks
            parts[: len(judge.demands), spoilt[name]] = np.inf
        for name in judged:
            own = [i for i, demand in enumerate(judge.demands) if demand.output == name]
            parts[np.ix_(own, self._unlike[name])] = np.inf
        return parts

    def _spoilt(self, name: str) -> list[int]:
        """Samples that are not finite where the baseline is."""
        lost = self._statistics[name].errors[:, AT["lost"]] > 0
        return [sample for sample, bad in zip(self._order[name], lost, strict=False) if bad]


def alike(
    baseline: Sequence[Array], candidate: Sequence[Array]
) -> Iterator[tuple[Array, Array, Sequence[int]]]:
    """Samples of the same shapes, a few at a time joined along the first axis, with their places."""
    groups: dict[object, list[int]] = defaultdict(list)
    for place, (b, c) in enumerate(zip(baseline, candidate, strict=True)):
        groups[b.shape, c.shape].append(place)
    for places in groups.values():
        step = max(1, PIECE // max(baseline[places[0]].size, 1))
        for start in range(0, len(places), step):
            some = places[start : start + step]
            yield concatenated([baseline[i] for i in some]), concatenated([candidate[i] for i in some]), some


def _alone(array: Array) -> Array:
    """One sample as a batch."""
    return array if array.ndim else array[None]


def concatenated(arrays: Sequence[Array]) -> Array:
    """Samples of one shape as one array, samples first."""
    if len(arrays) == 1 and arrays[0].ndim:
        return arrays[0]
    return np.concatenate(arrays) if arrays[0].ndim else np.stack(arrays)


def join(arrays: Sequence[Array]) -> list[Array]:
    """Samples as one array where their shapes allow, as outputs of one batch; otherwise one by one."""
    if all(a.ndim and a.shape[1:] == arrays[0].shape[1:] and a.dtype == arrays[0].dtype for a in arrays):
        return [np.concatenate(arrays)]
    return list(arrays)
