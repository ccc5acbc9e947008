"""A case's criteria, ready to be applied to outputs, of all samples or of some."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.data import load_labels
from pytest_int8acc.data.scripts import load_function
from pytest_int8acc.errors import CriterionError
from pytest_int8acc.results import OutputResult, Score
from pytest_int8acc.results.scores import consistent
from pytest_int8acc.scores.compare import compare_outputs
from pytest_int8acc.scores.criteria import Criterion, MetricLimit, OutputLimits, check_patterns, kind_of
from pytest_int8acc.scores.metrics import F64
from pytest_int8acc.scores.parts import demands_on
from pytest_int8acc.scores.user_metric import UserMetric, evaluate_metric
from pytest_int8acc.search.types import Trial
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.criteria import MetricCriterion, OutputCriterion
from pytest_int8acc.spec.models import Case
from pytest_int8acc.tensors import Array, Outputs

#: Elements that are measured at a time, about.
_PIECE = 2**16
#: Outputs cut into samples: by name, one array per sample; a sample's arrays keep the axis that counted it.
SampleOutputs = Mapping[str, Sequence[Array]]


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
        given = bool(self.metrics)
        outputs = compare_outputs(baseline, candidate, self.limits, noise=again, metrics_given=given)
        return Verdict(outputs, tuple(self._own(baseline, candidate, again)))

    def _own(self, baseline: Outputs, candidate: Outputs, again: Outputs | None = None) -> Iterator[Score]:
        for limit, function in self.metrics:
            yield from evaluate_metric(limit, function, baseline, candidate, self.labels, noise=again)

    def score(
        self, baseline: Outputs, candidate: Outputs, *, metrics: bool
    ) -> tuple[tuple[OutputResult, ...], list[Score]]:
        """What has a limit: outputs compared, and where ``metrics``, scores of users' functions."""
        outputs = compare_outputs(
            baseline, candidate, self.limits, metrics_given=bool(self.metrics), judged_only=True
        )
        own = self._own(baseline, candidate) if metrics else ()
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

    Raises:
        CriterionError: A user's function cannot be loaded.
        DataError: The labels cannot be read, or are not as many as the ``samples``.
    """
    left_out = (OutputLimits(name, unjudged=True) for name in case.unjudged)
    limits = (*(_output_limits(c) for c in case.criteria if isinstance(c, OutputCriterion)), *left_out)
    metrics, labels = [], None
    for index, criterion in enumerate(case.criteria):
        if isinstance(criterion, MetricCriterion):
            with case.at(f"criteria.{index}.metric"):
                function = load_function(criterion.metric, case.path(""), CriterionError)
                metrics.append((_metric_limit(criterion), function))
    if case.labels is not None:
        with case.at("labels"):
            limited = settings.samples is not None
            labels = load_labels(case.labels, samples, case.path(""), limited=limited, most=case.most_bytes)
    return Judge(limits, metrics, labels)


def check_outputs(case: Case, names: Sequence[str]) -> None:
    """Raise CriterionError, at its place, for a criterion that speaks of no output of ``names``."""
    for index, criterion in enumerate(case.criteria):
        if isinstance(criterion, OutputCriterion):
            with case.at(f"criteria.{index}.output"):
                check_patterns([_output_limits(criterion)], names)
    for index, name in enumerate(case.unjudged):
        with case.at(f"unjudged.{index}"):
            check_patterns([OutputLimits(name, unjudged=True)], names)


def _output_limits(criterion: OutputCriterion) -> OutputLimits:
    given = {name: value for name in criterion.limits() if (value := getattr(criterion, name)) is not None}
    return OutputLimits(criterion.output, criterion.axis, given, criterion.rel_floor)


def _metric_limit(criterion: MetricCriterion) -> MetricLimit:
    limit = MetricLimit(
        criterion.metric, criterion.min, criterion.max, lower_is_better=criterion.lower_is_better
    )
    amount, relative = criterion.drop or (None, False)
    return replace(limit, max_drop_relative=amount) if relative else replace(limit, max_drop=amount)


class SampleJudge:
    """A case's judge, and the baseline of the samples that a search sees."""

    def __init__(self, baseline: SampleOutputs, judge: Judge) -> None:
        """Check that the criteria fit the baseline, by the case's judge with labels of these samples.

        Raises:
            CriterionError: One does not.
        """
        self.baseline = {name: list(arrays) for name, arrays in baseline.items()}
        self.samples = len(next(iter(self.baseline.values())))
        self._judge = judge
        self._joined = {name: join(arrays) for name, arrays in self.baseline.items()}
        _, own = judge.score(self._joined, self._joined, metrics=True)
        self.demands = demands_on(self._joined, self.samples, judge.limits, metrics_given=bool(judge.metrics))
        whole = (
            Criterion(s.subject, s.metric, s.limit, s.bound, "whole") for s in own if s.limit is not None
        )
        self.criteria = (*(d.criterion for d in self.demands), *whole)

    def trial(self, high: frozenset[int], gathered: Gathered) -> Trial:
        """The verdict on what was gathered, a pass only where all samples were.

        Raises CriterionError where a user's function fails.
        """
        seen = gathered.seen.nonzero()[0]
        whole = len(seen) == self.samples
        if whole:
            baseline, candidate = self._joined, {n: join(a) for n, a in gathered.outputs.items()}
        else:
            baseline, candidate = _joined(self.baseline, seen), _joined(gathered.outputs, seen)
        outputs, own = self._judge.score(baseline, candidate, metrics=whole)
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
            losses=(*losses, *(score.strain for score in own), *[0.0] * missing),
            scores=(*(s.value for _, s in judged), *(s.value for s in own), *[math.nan] * missing),
            parts=parts,
            cost=len(seen) / self.samples,
            confirmed=whole,
        )

    def _loss(self, index: int, score: Score, parts: F64) -> float:
        criterion = self.criteria[index]
        if criterion.pool != "rank":
            return score.strain
        ranked = np.sort(parts)[::-1]
        loss = float(ranked[criterion.allowed]) if criterion.allowed < len(ranked) else 0.0
        return consistent(loss, score.passed)


class Gathered:
    """One plan's outputs, sample by sample in any order, and what they add to the losses."""

    def __init__(self, judge: SampleJudge) -> None:
        self.outputs: dict[str, list[Array]] = {
            name: [np.empty(0)] * judge.samples for name in judge.baseline
        }
        self.seen = np.zeros(judge.samples, np.bool_)
        self._new: list[int] = []
        self._judge = judge
        self._broken = np.zeros((len(judge.demands), judge.samples), np.bool_)
        self._measured: list[F64] = [np.empty((judge.samples, 0))] * len(judge.demands)
        self._of: dict[str, list[int]] = defaultdict(list)
        for index, demand in enumerate(judge.demands):
            self._of[demand.output].append(index)

    def add(self, samples: Sequence[int], outputs: SampleOutputs) -> None:
        """Take the outputs of ``samples``, in that order."""
        self.seen[list(samples)] = True
        self._new.extend(samples)
        for name, kept in self.outputs.items():
            for sample, array in zip(samples, outputs[name], strict=True):
                kept[sample] = array

    def parts(self) -> F64:
        """[criteria, samples], nan where not seen and for users' metrics."""
        for name in self.outputs:
            self._measure_new(name)
        self._new.clear()
        parts = np.full((len(self._judge.criteria), self._judge.samples), np.nan)
        for index, demand in enumerate(self._judge.demands):
            good = self.seen & ~self._broken[index]
            parts[index, self.seen] = np.inf
            if good.any():
                parts[index, good] = demand.parts(self._measured[index][good])
        return parts

    def _measure_new(self, name: str) -> None:
        """Measure one output of the samples that came since the last time, those of one shape together."""
        alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for sample in self._new:
            alike[self.outputs[name][sample].shape].append(sample)
        for shape, samples in alike.items():
            fitting = [sample for sample in samples if self._judge.baseline[name][sample].shape == shape]
            if fitting:
                self._measure(name, fitting)
            for index in self._of[name]:
                self._broken[index, list(set(samples).difference(fitting))] = True

    def _measure(self, name: str, samples: list[int]) -> None:
        """Measure samples of one shape, a few at a time, which stay in a cache."""
        step = max(1, _PIECE // max(self.outputs[name][samples[0]].size, 1))
        for start in range(0, len(samples), step):
            self._measure_piece(name, samples[start : start + step])

    def _measure_piece(self, name: str, samples: list[int]) -> None:
        b = concatenated([self._judge.baseline[name][i] for i in samples])
        c = concatenated([self.outputs[name][i] for i in samples])
        if kind_of(b) != kind_of(c):
            self._broken[self._of[name]] = True
            return
        if kind_of(b) == "floats" and not np.isfinite(c).all():
            bad = (np.isfinite(b) & ~np.isfinite(c)).reshape(len(samples), -1).any(axis=1)
            judged = self._of[name] or range(len(self._broken))  # NaN spoils a case even where no limit looks
            for index in judged:
                self._broken[index, np.array(samples)[bad]] = True
        for index in self._of[name]:
            rows = self._judge.demands[index].measure(b, c, len(samples))
            if not self._measured[index].size:
                self._measured[index] = np.full((self._judge.samples, rows.shape[1]), np.nan)
            self._measured[index][samples] = rows


def concatenated(arrays: Sequence[Array]) -> Array:
    """Samples of one shape as one array, samples first."""
    return np.concatenate(arrays) if arrays[0].ndim else np.stack(arrays)


def join(arrays: Sequence[Array]) -> list[Array]:
    """Samples as one array where their shapes allow, as outputs of one batch; otherwise one by one."""
    if all(a.ndim and a.shape[1:] == arrays[0].shape[1:] and a.dtype == arrays[0].dtype for a in arrays):
        return [np.concatenate(arrays)]
    return list(arrays)


def _joined(outputs: SampleOutputs, samples: NDArray[np.intp]) -> Outputs:
    return {name: join([arrays[i] for i in samples]) for name, arrays in outputs.items()}
