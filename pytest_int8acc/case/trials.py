"""Judges the plans of a search on the samples that the search uses, and finds the loss of each sample."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pytest_int8acc.results import Score
from pytest_int8acc.results.scores import consistent
from pytest_int8acc.scores.criteria import Criterion, kind_of
from pytest_int8acc.scores.judge import Comparison, Judge, OutputRows
from pytest_int8acc.scores.rows import AT, F64, PIECE, Key
from pytest_int8acc.scores.shares import Share, Whole
from pytest_int8acc.scores.user_metric import MetricRun, metric_scores
from pytest_int8acc.search.types import Trial
from pytest_int8acc.tensors import Array

#: Maps the name of an output to one array for each sample. Each array still has the batch axis, of length 1.
SampleOutputs = Mapping[str, Sequence[Array]]


@dataclass(frozen=True, eq=False)
class JudgedLimit:
    """One limit of a criterion, on one output of the model or on a part of it."""

    criterion: Criterion
    share: Share
    output: OutputRows
    """Statistics of the baseline's output, computed by comparing the baseline with itself."""
    key: Key
    """The key of the statistics from which ``share`` computes the loss of each sample."""


class SampleBaseline:
    """The baseline's outputs of the samples that a search uses, and the criteria of the case on them.

    Attributes:
        judge: Applies the criteria of the case with the labels of these samples.
        outputs: The baseline's arrays by output name, one for each sample.
        samples: The number of samples.
        limits: The limits on outputs.
        criteria: All criteria: first those on outputs, then those on users' metrics.
        itself: The comparison of the baseline with itself, which gives the statistics of the baseline's
            outputs.
    """

    def __init__(self, baseline: SampleOutputs, judge: Judge, rows: Sequence[int] | None = None) -> None:
        """Check that the criteria fit the baseline.

        Args:
            baseline: The baseline's outputs, cut into samples.
            judge: Applies the criteria of the case with the labels of these samples.
            rows: The number of labels of each sample; None if each sample has one label.

        Raises:
            CriterionError: A criterion does not fit the baseline's outputs.
        """
        self.judge = judge
        self.outputs = {name: list(arrays) for name, arrays in baseline.items()}
        self.samples = len(next(iter(self.outputs.values())))
        ends = np.cumsum([1] * self.samples if rows is None else rows).tolist()
        self._rows = [range(start, end) for start, end in pairwise([0, *ends])]
        self.itself = self._compared_with_itself()
        self.limits = [
            _judged_limit(output, metric_name, index)
            for output in self.itself.outputs.values()
            for index, limits in enumerate(output.limits)
            for metric_name in limits.limits
        ]
        own: list[Score] = []
        for run in self.itself.baseline_metrics:
            self.feed(run, range(self.samples), self.outputs)
            own += metric_scores(run, run)
        self.criteria = (
            *(limit.criterion for limit in self.limits),
            *(Criterion(s.subject, s.metric, s.limit, s.bound, "whole") for s in own if s.limit is not None),
        )

    def _compared_with_itself(self) -> Comparison:
        itself = Comparison(self.judge, judged_only=True)
        first = {name: arrays[0] for name, arrays in self.outputs.items() if arrays}
        itself.open(list(self.outputs), list(self.outputs), first)
        for output in itself.outputs.values():
            arrays = self.outputs[output.output]
            for b, _, samples in alike(arrays, arrays):
                output.add(b, b, len(samples))
        itself.results()
        return itself

    def feed(self, run: MetricRun, samples: Sequence[int], outputs: SampleOutputs) -> None:
        """Pass the outputs of some samples, and the baseline's, to a user's metric function, ``run``."""
        joined = {name: join(arrays) for name, arrays in outputs.items()} if run.joins else {}
        if joined and all(len(arrays) == 1 for arrays in joined.values()):
            rows = [row for sample in samples for row in self._rows[sample]]
            run.add({}, {name: arrays[0] for name, arrays in joined.items()}, rows)
            return
        for place, sample in enumerate(samples):
            ours = {name: _as_batch(arrays[sample]) for name, arrays in self.outputs.items()}
            theirs = {name: _as_batch(arrays[place]) for name, arrays in outputs.items()}
            run.add(ours, theirs, self._rows[sample])


def _judged_limit(output: OutputRows, name: str, index: int) -> JudgedLimit:
    """The limit on the metric ``name`` in ``output.limits[index]``."""
    limits = output.limits[index]
    metric, limit = limits.metric(name), limits.limits[name]
    key = metric.measure.key(limits.options)
    whole = Whole(output.samples, output.elements, output.sums, output.rows(key))
    share = metric.share_of(limit, limits.options, whole)
    criterion = Criterion(output.name, metric.name, limit, metric.bound, share.pool, share.allowed)
    own = share.measure
    return JudgedLimit(criterion, share, output, key if own is None else own.key(limits.options))


class SampleComparison(Comparison):
    """The outputs of one plan compared with the baseline. Samples may be added in any order.

    Outputs are kept only for users' metrics that take all samples at once.
    """

    def __init__(self, baseline: SampleBaseline) -> None:
        super().__init__(baseline.judge, baseline.itself, judged_only=True)
        self.seen = np.zeros(baseline.samples, np.bool_)
        self._baseline = baseline
        self.outputs = {
            name: OutputRows(
                name,
                output.limits,
                judged_only=True,
                peak=output.peak,
                part=output.part,
                also=[
                    limit.key for limit in baseline.limits if limit.output is output and limit.share.measure
                ],
            )
            for name, output in baseline.itself.outputs.items()
        }
        self._order: dict[str, list[int]] = {name: [] for name in self.outputs}
        self._unlike: dict[str, list[int]] = {name: [] for name in self.outputs}

    def add_samples(self, samples: Sequence[int], outputs: SampleOutputs) -> None:
        """Compare the outputs of more samples with the baseline.

        ``samples`` has the index of the sample of each array in ``outputs``.
        """
        self.seen[list(samples)] = True
        for name, rows in self.outputs.items():
            baseline = [self._baseline.outputs[rows.output][i] for i in samples]
            for b, c, places in alike(baseline, outputs[rows.output]):
                some = [samples[place] for place in places]
                rows.add(b, c, len(some))
                same = b.shape == c.shape and kind_of(b) == kind_of(c)
                (self._order if same else self._unlike)[name].extend(some)
        for run in self.metrics:
            self._baseline.feed(run, samples, outputs)

    def trial(self, high: frozenset[int]) -> Trial:
        """The verdict on the samples that were added, for a plan with the groups ``high`` in high precision.

        A plan passes only if all samples were added.

        Raises CriterionError if a user's function fails.
        """
        seen = self.seen.nonzero()[0]
        whole = bool(self.seen.all())
        outputs, own = self.verdict() if whole else (self.results(), ())
        own = tuple(score for score in own if score.limit is not None)
        parts = self.parts()
        judged = [(o, s) for o in outputs for s in o.scores if s.limit is not None]
        unjudged = [o for o in outputs if all(s.limit is None for s in o.scores)]
        spoilt = not all(output.passed for output in unjudged)
        losses = [
            math.inf if spoilt or output.problem else self._loss(i, score, parts[i, seen])
            for i, (output, score) in enumerate(judged)
        ]
        missing = len(self._baseline.criteria) - len(judged) - len(own)
        return Trial(
            high=high,
            passed=whole and all(o.passed for o in outputs) and all(s.passed for s in own),
            losses=(*losses, *(score.normalized_loss for score in own), *[0.0] * missing),
            scores=(*(s.value for _, s in judged), *(s.value for s in own), *[math.nan] * missing),
            parts=parts,
            cost=len(seen) / self._baseline.samples,
            confirmed=whole,
        )

    def _loss(self, index: int, score: Score, parts: F64) -> float:
        criterion = self._baseline.criteria[index]
        if criterion.pool != "rank":
            return score.normalized_loss
        ranked = np.sort(parts)[::-1]
        loss = float(ranked[criterion.allowed]) if criterion.allowed < len(ranked) else 0.0
        return consistent(loss, score.passed)

    def parts(self) -> F64:
        """The part of each criterion's loss that each sample causes, as an array [criteria, samples].

        The part is nan for samples that were not added, and for users' metrics.
        """
        limits = self._baseline.limits
        parts = np.full((len(self._baseline.criteria), self._baseline.samples), np.nan)
        spoilt = {name: self._spoilt(name) for name in self.outputs}
        judged = {limit.output.name for limit in limits}
        for index, limit in enumerate(limits):
            name = limit.output.name
            order = np.array(self._order[name], np.intp)
            good = ~np.isin(order, spoilt[name])
            parts[index, self.seen] = np.inf
            if good.any():
                parts[index, order[good]] = limit.share.of(self.outputs[name].rows(limit.key)[good])
            parts[index, self._unlike[name]] = np.inf
        for name in spoilt.keys() - judged:  # NaN in an output without a limit fails the case, too
            parts[: len(limits), spoilt[name]] = np.inf
        return parts

    def _spoilt(self, name: str) -> list[int]:
        """The samples in which output ``name`` is not finite in a place where the baseline is finite."""
        lost = self.outputs[name].errors[:, AT["lost"]] > 0
        return [sample for sample, bad in zip(self._order[name], lost, strict=False) if bad]


def alike(
    baseline: Sequence[Array], candidate: Sequence[Array]
) -> Iterator[tuple[Array, Array, Sequence[int]]]:
    """Join samples of equal shapes along the first axis, a few at a time.

    Yields the arrays of the baseline, those of the candidate, and the indices of their samples.
    """
    groups: dict[object, list[int]] = defaultdict(list)
    for place, (b, c) in enumerate(zip(baseline, candidate, strict=True)):
        groups[b.shape, c.shape].append(place)
    for places in groups.values():
        step = max(1, PIECE // max(baseline[places[0]].size, 1))
        for start in range(0, len(places), step):
            some = places[start : start + step]
            yield concatenated([baseline[i] for i in some]), concatenated([candidate[i] for i in some]), some


def _as_batch(sample: Array) -> Array:
    return sample if sample.ndim else sample[None]


def concatenated(arrays: Sequence[Array]) -> Array:
    """Samples of equal shape as one array, with the samples along the first axis."""
    if len(arrays) == 1 and arrays[0].ndim:
        return arrays[0]
    return np.concatenate(arrays) if arrays[0].ndim else np.stack(arrays)


def join(arrays: Sequence[Array]) -> list[Array]:
    """The samples joined to one array, in a list; a list of single samples if their shapes do not join."""
    if all(a.ndim and a.shape[1:] == arrays[0].shape[1:] and a.dtype == arrays[0].dtype for a in arrays):
        return [np.concatenate(arrays)]
    return list(arrays)
