"""Compares the outputs of a low-precision candidate with those of the float baseline, and judges them.

For each sample a row of numbers, such as its squared error, is kept. Scores are computed from these rows.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from pytest_int8acc.errors import BaselineNotFiniteError, CriterionError
from pytest_int8acc.results import LineFit, OutputResult, Score
from pytest_int8acc.results.scores import LIKELY, Meaning, SmallSamples
from pytest_int8acc.scores.criteria import (
    MetricLimit,
    OutputLimits,
    check_fits,
    check_patterns,
    default_limits,
    kind_of,
    limits_for,
    limits_of_part,
    limits_of_small_channels,
)
from pytest_int8acc.scores.metrics import METRICS, PER_SAMPLE, Metric
from pytest_int8acc.scores.rows import (
    AT,
    DIVERGENCE,
    ERRORS,
    F64,
    SQUARED,
    TOP1,
    TOP5,
    UNEQUAL,
    Key,
    Options,
    Sums,
    greatest_magnitude,
    samples_in,
)
from pytest_int8acc.scores.split import Splitter
from pytest_int8acc.scores.statistics import Groups, interval
from pytest_int8acc.scores.tasks import Labels
from pytest_int8acc.scores.user_metric import MetricRun, UserMetric, metric_scores, of_samples
from pytest_int8acc.tensors import Array, Feed, Outputs, Part

#: Maximum ratio of the elements of an output that may be NaN in both baseline and candidate. With more NaN
#: the output fails, because NaN cannot be judged.
_MAX_NAN_RATIO = 0.01
#: A line is fitted to the candidate's values as a function of the baseline's values. The report describes the
#: line in words only if the correlation of both models' values is above this number.
_MIN_CORRELATION = 0.8
#: The slope of the line candidate = slope * baseline + offset is reported if it differs from 1 by more than
#: this number. A shift of the mean is reported if it exceeds this ratio of the baseline's standard deviation.
#: A slope or a shift of this size alone limits the SQNR to 20 dB.
_MIN_MEANING = 0.1
#: An output is called constant if the ratio of the variance of its values to their mean square is at most
#: this, because so small a variance may be a rounding error of the sums.
_MAX_ROUNDING_RATIO = 1e-12
#: A sample counts as small if its root mean square is more than this many times below that of the largest
#: sample. Such a sample has less than a 900th of the energy, so the SQNR of all samples does not show its
#: error.
_MIN_SIZE_RATIO = 30.0
#: The report names the samples that together cause 90 % of the squared error (the first ratio), unless they
#: are more than 25 % of all samples (the second ratio).
_HEAVY_ERROR_RATIO, _MAX_HEAVY_RATIO = 0.9, 0.25


#: The measures of the metrics of agreement: the ratio of classes or elements that equal the baseline's.
_SHARES = (TOP1, TOP5, UNEQUAL)


def _is_open(score: Score) -> bool:
    """Returns whether there are too few samples to prove ``score``, as ``Interval.enough`` says."""
    return score.interval is not None and not score.interval.enough


class Verdict(NamedTuple):
    """The judged outputs of one candidate, and the scores of metrics of labels and users' metrics."""

    outputs: tuple[OutputResult, ...]
    metrics: tuple[Score, ...]

    @property
    def scores(self) -> tuple[Score, ...]:
        """All scores, those of outputs first."""
        return tuple(score for output in self.outputs for score in output.scores) + self.metrics

    @property
    def passed(self) -> bool:
        """Whether every output and every metric passes."""
        return all(output.passed for output in self.outputs) and all(score.passed for score in self.metrics)

    @property
    def holds(self) -> bool:
        """Whether the candidate passes, and would pass on nearly any other samples of the same kind."""
        return self.holds_at()

    def holds_at(self, level: float = LIKELY) -> bool:
        """Whether the candidate passes, and each score meets its limit on most bootstrap resamples.

        Args:
            level: The minimum ratio of resamples on which a score must meet its limit, 0 to 1.
        """
        return self.passed and all(score.holds_at(level) for score in self.scores)

    @property
    def unproved(self) -> tuple[Score, ...]:
        """The scores for which there are too few samples to prove that they meet their limit.

        Their ``Interval.enough`` is False. If an output has limits on its error, such as on the SQNR, its
        scores of agreement are left out.
        """
        few = [score for score in self.metrics if _is_open(score)]
        for output in self.outputs:
            limited = [score for score in output.scores if score.limit is not None]
            named = [(score, METRICS[score.metric.removeprefix(PER_SAMPLE)]) for score in limited]
            errors = [score for score, metric in named if metric.measure not in _SHARES]
            few += [score for score in errors or limited if _is_open(score)]
        return tuple(few)


@dataclass(frozen=True, eq=False)
class Judge:
    """The criteria of a case, ready to be applied to outputs."""

    limits: Sequence[OutputLimits] = ()
    """The limits on outputs. An output without any limit gets the default limit, unless ``metrics`` judge the
    case."""
    metrics: Sequence[tuple[MetricLimit, UserMetric]] = ()
    labels: Labels = None
    """The labels of all samples, which ``metrics`` read; None if the case has none."""
    splitter: Splitter = field(default_factory=Splitter)
    """Decides which outputs are judged by their parts. All comparisons of a case use the same splitter."""

    groups: Groups | None = None
    """The group of each sample, [samples]; None if no samples belong together."""

    def of_rows(self, rows: Sequence[int]) -> Judge:
        """Returns a copy of this judge that has the labels and the groups of some samples only.

        Args:
            rows: The indices of the samples.
        """
        groups = None if self.groups is None else self.groups[list(rows)]
        return replace(self, labels=of_samples(self.labels, rows), groups=groups)

    def on(self, outputs: Collection[str]) -> Judge:
        """Returns a copy of this judge that has only the limits on these outputs, and no metrics."""
        limits = tuple(limit for limit in self.limits if any(limits_for(name, [limit]) for name in outputs))
        return replace(self, limits=limits, metrics=())

    def compare(
        self,
        baseline: Outputs,
        candidate: Outputs,
        *,
        like: Comparison | None = None,
        judged_only: bool = False,
        metrics: bool = True,
        samples: int | None = None,
    ) -> Comparison:
        """Compares outputs of which all batches are in memory.

        Args:
            baseline: The baseline's outputs, one array per batch, samples along the first axis.
            candidate: The candidate's outputs of the same batches.
            like: A comparison of another candidate with the same baseline on the same samples. The values of
                users' metrics for the baseline are taken from it. With None, they are computed.
            judged_only: Whether to leave out everything that no limit needs.
            metrics: Whether users' metrics and metrics of labels are computed.
            samples: The number of samples in each batch; None: the size of the first axis.

        Raises:
            CriterionError: A criterion or the candidate does not fit, or a user's metric fails.
        """
        comparison = Comparison(self, like, judged_only=judged_only, metrics=metrics)
        comparison.open(list(baseline), list(candidate), {n: a[0] for n, a in baseline.items() if a})
        theirs = [candidate[name] for name in baseline]
        for ours, others in zip(zip(*baseline.values(), strict=True), zip(*theirs, strict=True), strict=True):
            comparison.add(
                dict(zip(baseline, ours, strict=True)), dict(zip(baseline, others, strict=True)), samples
            )
        return comparison


class Comparison:
    """Compares a candidate with the baseline batch by batch, and computes the verdict at the end.

    A row of numbers, such as the squared error, is kept for each sample, but no outputs.
    """

    def __init__(
        self,
        judge: Judge,
        like: Comparison | None = None,
        *,
        judged_only: bool = False,
        metrics: bool = True,
    ) -> None:
        """Starts a comparison without any samples.

        Args:
            judge: The criteria.
            like: A finished comparison of another candidate with the same baseline on the same samples. The
                values of users' metrics for the baseline are taken from it. With None, they are computed
                here.
            judged_only: Whether to leave out everything that no limit needs: other scores, the fitted line,
                the worst sample.
            metrics: Whether users' metrics and metrics of labels are computed.

        Raises:
            CriterionError: The parameters of a user's metric are not those that a metric may have.
        """
        self.judge, self.judged_only = judge, judged_only
        self.outputs: dict[str, OutputRows] = {}
        """Name of an output, or of a part of an output, to the rows of numbers of its samples."""
        self.metrics = self._metric_runs() if metrics else []
        self._own_metrics = self._metric_runs() if metrics and like is None else []
        self.baseline_metrics: list[MetricRun] = self._own_metrics if like is None else like.baseline_metrics
        """The same metrics as in ``metrics``, in the same order, but computed for the baseline's outputs."""
        self._samples = 0

    def _metric_runs(self) -> list[MetricRun]:
        return [MetricRun(limit, function, self.judge.labels) for limit, function in self.judge.metrics]

    def open(self, baseline: Sequence[str], candidate: Sequence[str], first: Mapping[str, Array]) -> None:
        """Prepares the comparison of each output, or of each part of an output, before the first batch.

        Args:
            baseline: The names of the baseline's outputs.
            candidate: The names of the candidate's outputs.
            first: The baseline's arrays of the first batch, by output.

        Raises:
            CriterionError: A criterion matches no output, or the candidate lacks an output of the baseline.
        """
        found = {name: self._parts(name, array) for name, array in first.items()}
        parts = [part for siblings, small in found.values() for part in (*siblings, small) if part]
        named = [name for part in parts for name in (part.name, part.place)]
        waiting = [name for name in baseline if self.judge.splitter.is_pending(name)]
        of_parts_to_come = tuple(f"{glob.escape(name)}[" for name in waiting)
        known = [limits for limits in self.judge.limits if not limits.output.startswith(of_parts_to_come)]
        check_patterns(known, [*baseline, *named])
        missing = [name for name in baseline if name not in candidate]
        if missing:
            raise CriterionError(
                f"the candidate has no output {', '.join(map(repr, missing))}; it gives: "
                f"{', '.join(candidate) or 'none'}; both models need the same output names"
            )
        for name in baseline:
            if name in first:
                self._open_with_parts(name, first[name], *found[name])
            else:
                self._open(name, limits_for(name, self.judge.limits))

    def _parts(self, output: str, array: Array) -> tuple[Sequence[Part], Part | None]:
        """Returns the parts by which an output is judged, and its small channels.

        Parts are ranges of the output along one axis. Small channels are channels whose values are far
        smaller than those of the largest channel. Most outputs have neither.
        """
        limits = limits_for(output, self.judge.limits)
        if any(limit.unjudged for limit in limits):
            return (), None
        small = self.judge.splitter.small_channels(output)
        return self.judge.splitter.parts(output, array), small if limits or not self.judge.metrics else None

    def _open_with_parts(
        self, output: str, array: Array, siblings: Sequence[Part], small: Part | None
    ) -> None:
        criteria = self.judge.limits
        limits = limits_for(output, criteria)
        accepted = [limit for limit in limits if limit.accepted]
        if accepted or not siblings:
            self._open(output, accepted if siblings else limits, array)
        for part in siblings:
            self._open(part.name, limits_of_part(part, array, siblings, criteria), array, part)
        if small is not None:
            of_small = limits_of_small_channels(small, array.ndim, criteria)
            if of_small is not None:
                self._open(small.name, of_small, array, small)

    def _open(
        self,
        name: str,
        limits: Sequence[OutputLimits],
        array: Array | None = None,
        part: Part | None = None,
    ) -> None:
        if not limits and not self.judge.metrics and array is not None:
            limits = default_limits(name, array)
        self.outputs[name] = OutputRows(name, limits, judged_only=self.judged_only, part=part)

    def add(self, baseline: Feed, candidate: Feed, rows: int | None = None) -> None:
        """Compares the next batch.

        Args:
            baseline: The baseline's outputs.
            candidate: The candidate's outputs.
            rows: The number of samples in the batch; None: the size of the first axis of an output.

        Raises:
            CriterionError: A criterion or the candidate does not fit, or a user's metric fails.
        """
        if not self.outputs:
            self.open(list(baseline), list(candidate), baseline)
        # A batch of one sample gives one row of numbers, even if the first axis of an output is not 1.
        single = 1 if rows == 1 else None
        for output in self.outputs.values():
            output.add(baseline[output.output], candidate[output.output], single)
        if rows is None:
            rows = next((len(array) for array in candidate.values() if array.ndim), 1)
        samples = range(self._samples, self._samples + rows)
        self._samples += rows
        for run in self.metrics:
            run.add(baseline, candidate, samples)
        for run in self._own_metrics:
            run.add(baseline, baseline, samples)

    def results(
        self, noise: Comparison | None = None, *, intervals: bool = False, rare: bool = False
    ) -> tuple[OutputResult, ...]:
        """Returns the results of all outputs, without metrics. The arguments are those of ``verdict``."""
        reruns = noise.outputs if noise is not None else {}
        return tuple(
            output.result(reruns.get(name), intervals=intervals, groups=self.judge.groups, rare=rare)
            for name, output in self.outputs.items()
        )

    def verdict(
        self, noise: Comparison | None = None, *, intervals: bool = False, rare: bool = False
    ) -> Verdict:
        """Returns the results of all outputs and the scores of all metrics.

        Args:
            noise: The comparison of the baseline with its second run, on these samples or on others. It lacks
                users' metrics only if both runs gave equal outputs. The noise of users' metrics is then 0.
            intervals: Whether confidence intervals are computed. They show whether the samples suffice to
                decide the verdict.
            rare: Whether intervals allow for rare large errors that the samples do not show, as for a proof.

        Raises:
            CriterionError: An output with a limit is not finite in the baseline, or a user's metric fails.
        """
        outputs = self.results(noise, intervals=intervals, rare=rare)
        reruns: Sequence[MetricRun | None] = [None] * len(self.metrics)
        steady = noise is not None and not noise.metrics
        if noise is not None and noise.metrics:
            reruns = noise.metrics
        scores: list[Score] = []
        for run, own, rerun in zip(self.metrics, self.baseline_metrics, reruns, strict=True):
            scores += metric_scores(
                run, own, rerun, steady=steady, intervals=intervals, groups=self.judge.groups
            )
        return Verdict(outputs, tuple(scores))


@dataclass(frozen=True)
class Obstacle:
    """Whether baseline and candidate can be compared, and the texts that a report shows if they cannot."""

    comparable: bool = True
    problem: str = ""
    """Why the output fails; empty if it does not fail."""
    note: str = ""


class OutputRows:
    """Compares one output, or one part of an output, batch by batch, and computes its scores.

    A row of numbers is kept for each sample. Relative errors need the greatest magnitude of the baseline over
    all batches. If a limit is on a relative error and this magnitude is not known beforehand, the arrays are
    kept until the first score is requested.
    """

    def __init__(
        self,
        name: str,
        limits: Sequence[OutputLimits],
        *,
        judged_only: bool = False,
        peak: float | None = None,
        part: Part | None = None,
        also: Sequence[Key] = (),
    ) -> None:
        """Starts without any samples.

        Args:
            name: The name of the output, or of the part.
            limits: The limits on the output, or on the part.
            judged_only: Whether to leave out scores without a limit, the fitted line and the worst sample.
            peak: The greatest magnitude of the baseline over all batches; None: it is not known yet.
            part: The part of the output's arrays that is compared; None: the whole arrays are compared.
            also: Measures, with options, whose rows are kept although no score is computed from them.
        """
        self.name, self.limits, self.part = name, limits, part
        self.dtype, self.kind, self.arrays, self.elements, self.samples = "", "", 0, 0, 0
        self.difference = ""
        """A text on how baseline and candidate differ in the kind of their elements or in their shape; empty
        if they do not."""
        self._judged_only, self._peak, self._also = judged_only, peak, also
        self._length = 0
        """The sum of the sizes of axis 0 over the arrays of all batches."""
        self._judged = [metric for limits in self.limits for metric in limits.limits]
        self._greatest = [0.0, 0.0]
        """The greatest finite magnitude of the baseline and that of the candidate; 0 unless the arrays are
        float64."""
        self._tails: set[tuple[int, ...] | None] = set()
        """The different shapes of the arrays so far, without the first axis, which counts the samples."""
        self._rows: dict[Key, list[F64]] = {}
        self._held: list[tuple[Array, Array, int]] = []

    @property
    def output(self) -> str:
        """The name of the whole output."""
        return self.name if self.part is None else self.part.output

    def cut(self, array: Array) -> Array:
        """Returns the part of an array that is compared; the array itself if the whole output is compared."""
        return array if self.part is None else self.part.of(array)

    def add(self, b: Array, c: Array, samples: int | None = None) -> None:
        """Compares the arrays of the next batch.

        Args:
            b: The baseline's array of the whole output.
            c: The candidate's array of the whole output.
            samples: The number of samples in the arrays; None: the size of their first axis.

        Raises:
            CriterionError: A metric does not fit the output.
        """
        b, c = self.cut(b), self.cut(c)
        tail = b.shape[1:] if b.ndim else None
        if tail not in self._tails:
            self._tails.add(tail)
            if not self.arrays:
                self._begin(b)
            for limits in self.limits:
                for metric in limits.limits:
                    check_fits(METRICS[metric], self.name, b, limits.options.axis)
        count = samples_in(b) if samples is None else samples
        difference = _difference(self.arrays, b, c)
        self.difference = self.difference or difference
        self.arrays, self.elements = self.arrays + 1, self.elements + b.size
        self.samples, self._length = self.samples + count, self._length + samples_in(b)
        if difference or not count or not samples_in(b):
            return
        for place, array in enumerate((b, c)):
            if array.dtype == np.float64:
                self._greatest[place] = max(self._greatest[place], greatest_magnitude(array))
        waiting = [key for key in self._rows if key[0].needs_peak and self._peak is None]
        self._make_rows([key for key in self._rows if key not in waiting], b, c, count, self._peak or 0.0)
        if waiting:
            self._held.append((b, c, count))

    def _begin(self, b: Array) -> None:
        """Chooses the measures whose rows are kept, by the limits and by ``b``, the first baseline array."""
        self.dtype, self.kind = str(b.dtype), kind_of(b)
        keys = [METRICS[m].measure.key(limits.options) for limits in self.limits for m in limits.limits]
        keys += [metric.measure.key(Options()) for metric in self._shown()]
        if self.kind == "floats" or any(measure.needs_peak for measure, _ in keys):
            keys.append(ERRORS.key(Options()))
        self._rows = {key: [] for key in (*keys, *self._also)}

    def _make_rows(self, keys: Sequence[Key], b: Array, c: Array, count: int, peak: float) -> None:
        with np.errstate(all="ignore"):  # inf and nan are valid results here
            for measure, options in keys:
                self._rows[measure, options].append(measure.rows(b, c, count, options, peak))

    def _shown(self) -> list[Metric]:
        """Returns the metrics whose values a report shows even without a limit.

        They include metrics of classes if all arrays look like [samples, classes].
        """
        if self._judged_only:
            return []
        found = [metric for metric in METRICS.values() if self.kind in metric.shown_for]
        if all(tail is not None and len(tail) == 1 and tail[0] >= 2 for tail in self._tails):
            return found
        return [metric for metric in found if not metric.min_classes]

    @property
    def shape(self) -> str:
        """The shape of the output over all samples, as text.

        If the shapes of the batches differ, the text is the number of arrays.
        """
        tail = next(iter(self._tails)) if len(self._tails) == 1 else None
        return f"{self.arrays} arrays" if tail is None else str((self._length, *tail))

    @property
    def errors(self) -> F64:
        """The sums over the elements of each sample, with the columns of ``Sums``, [samples, fields].

        There are no rows if no metric needs the sums.
        """
        return self.rows(ERRORS.key(Options()))

    @property
    def sums(self) -> Sums:
        """The sums over the elements of all samples. For integers they are 0 unless a limit needs them."""
        return Sums(*ERRORS.pool(self.errors).tolist())

    @property
    def latest_errors(self) -> F64:
        """The rows of ``errors`` for the samples of the latest batch alone, [samples, fields]."""
        rows = self._rows.get(ERRORS.key(Options()))
        return rows[-1] if rows else np.zeros((0, len(AT)))

    @property
    def peak(self) -> float | None:
        """The greatest magnitude of the baseline in the batches so far; None if no metric needs it."""
        peak = self.sums.peak
        return None if not len(self.errors) or math.isnan(peak) else peak

    def rows(self, key: Key) -> F64:
        """Returns the rows of a measure, [samples, columns]. ``key`` is the measure and its options."""
        if self._held and key[0].needs_peak:
            peak, held, self._held = self.peak or 0.0, self._held, []
            for b, c, count in held:
                self._make_rows([k for k in self._rows if k[0].needs_peak], b, c, count, peak)
        rows = self._rows.get(key, [])
        if len(rows) > 1:
            rows[:] = [np.concatenate(rows)]
        return rows[0] if rows else np.zeros((0, len(AT)))

    def value(self, metric: Metric, options: Options, samples: Sequence[int] | None = None) -> float:
        """Returns the metric's value over some samples; nan if it cannot be computed.

        The value has a meaning only if baseline and candidate can be compared.

        Args:
            metric: The metric.
            options: The options of the criterion.
            samples: Indices of the samples. A sample whose index occurs twice is used twice. None: all
                samples.
        """
        rows = self.rows(metric.measure.key(options))
        return metric(rows if samples is None else rows[list(samples)]) if len(rows) else math.nan

    def result(
        self,
        noise: OutputRows | None = None,
        *,
        intervals: bool = False,
        groups: Groups | None = None,
        rare: bool = False,
    ) -> OutputResult:
        """Returns the result of the output: first a score for each limit, then scores without a limit.

        If baseline and candidate cannot be compared, scores with a limit are nan, and ``problem`` or ``note``
        says why.

        Args:
            noise: The baseline compared with its second run, on these samples or on others.
            intervals: Whether the interval of each score is computed.
            groups: The group of each sample, [samples]; None if no samples belong together.
            rare: Whether intervals allow for rare large errors that the samples do not show, as for a proof.

        Raises:
            CriterionError: Nothing was run, or the output has a limit and is not finite in the baseline.
        """
        if not self.arrays:
            raise CriterionError(
                f"output '{self.name}' has no arrays: nothing was run; give at least one sample"
            )
        obstacle = self._obstacle()
        unstable = noise is not None and bool(noise.difference)
        rerun = None if unstable else noise
        scores = []
        for limits in self.limits:
            for name, limit in limits.limits.items():
                metric = limits.metric(name)
                score = self._score(metric, limits, rerun, comparable=obstacle.comparable)
                score = replace(score, limit=limit)
                if intervals:
                    rows = self.rows(metric.measure.key(limits.options))
                    # An output without an axis of samples has one row for each batch. Such a row belongs to
                    # no group.
                    of_rows = groups if groups is not None and len(groups) == len(rows) else None
                    score = replace(score, interval=interval(score, rows, metric, groups=of_rows, rare=rare))
                scores.append(score)
        if obstacle.comparable:
            usual = OutputLimits(self.name)
            others = [metric for metric in self._shown() if metric.name not in self._judged]
            if not self._can_be_squared:
                others = [metric for metric in others if not metric.squares]
            scores += [self._score(metric, usual, rerun, comparable=True) for metric in others]
        notes = [obstacle.note, "two runs of the baseline differ in shape: noise unknown" * unstable]
        result = OutputResult(
            name=self.name,
            part_of="" if self.part is None else self.output,
            dtype=self.dtype,
            shape=self.shape,
            scores=tuple(scores),
            problem=obstacle.problem,
            note="; ".join(filter(None, notes)),
            samples=self.samples,
            nan_share=self._nan_ratio,
        )
        computable = obstacle.comparable and self.kind == "floats" and self._can_be_squared
        if self._judged_only or not computable:
            return result
        return replace(
            result,
            fit=_fit_line(self.sums),
            worst_sample=_worst_sample(self.errors),
            heavy=_heavy(self.errors),
            small=self._small_samples(scores),
        )

    def _score(
        self, metric: Metric, limits: OutputLimits, rerun: OutputRows | None, *, comparable: bool
    ) -> Score:
        """Returns the score of one metric, without a limit.

        Args:
            metric: The metric.
            limits: They give the options of the metric, and a note.
            rerun: The comparison of the baseline with its second run, which gives the noise of the score.
            comparable: Whether baseline and candidate can be compared. If not, the value is nan.
        """
        value, noise, notes = math.nan, None, [limits.note]
        if comparable:
            value = self.value(metric, limits.options)
            compared = metric.measure.compared(self.rows(metric.measure.key(limits.options)))
            if metric.spared is not None and not compared.all():
                empty = f"{len(compared) - int(compared.sum())} of {len(compared)} samples"
                notes.append(f"{empty} have nothing to compare and are left out")
            if math.isnan(value):
                notes.append("cannot be computed from these values")
            elif metric.measure is DIVERGENCE and self._are_probabilities(limits):
                notes.append(
                    "the output holds probabilities already; kl takes their softmax again: too small"
                )
        if rerun is not None:
            noise = rerun.value(metric, limits.options)
            if math.isnan(noise):
                noise = None
                notes.append("two runs of the baseline cannot be compared: noise unknown")
        note = "; ".join(filter(None, notes))
        return Score(self.name, metric.name, value, bound=metric.bound, noise=noise, note=note)

    def _are_probabilities(self, limits: OutputLimits) -> bool:
        """Whether all of the baseline's vectors of class scores are probabilities: not negative, with sum 1.

        ``limits`` give the class axis.
        """
        _, count, probabilities = DIVERGENCE.pool(self.rows(DIVERGENCE.key(limits.options)))
        return bool(count and probabilities == count)

    def _obstacle(self) -> Obstacle:
        """Returns whether the candidate can be compared with the baseline, and what prevents it.

        Shapes that differ are a problem only if there is a limit: the number of detections of a model may
        vary. NaN in the candidate alone is always a problem.

        Raises:
            CriterionError: There is a limit, and the baseline is not finite or holds no element. Or a limit
                needs squares of the baseline's values, and these squares do not fit float64.
        """
        judged = bool(self._judged)
        if self.difference:
            text = self.difference
            return Obstacle(False, problem=text) if judged else Obstacle(False, note=text)
        if not self.elements:
            where = f"output '{self.name}' holds no element in {self.arrays} array(s)"
            text = f"{where}: there is nothing to compare"
            if judged:
                raise CriterionError(
                    f"{text}; give data for which it does, or put the limit on another output"
                )
            return Obstacle(False, note=text)
        obstacle = self._non_finite() if self.kind == "floats" else Obstacle()
        return self._not_squared(obstacle) if obstacle.comparable and not self._can_be_squared else obstacle

    @property
    def _can_be_squared(self) -> bool:
        """Whether the squares of both models' values can be summed in float64.

        They cannot if the greatest value is too small or too large, which only a float64 output can have.
        """
        return all(map(_can_be_squared, self._greatest))

    def _not_squared(self, obstacle: Obstacle) -> Obstacle:
        """Returns ``obstacle`` with a text: values are too small or too large for metrics that square them.

        Raises:
            CriterionError: A limit is on such a metric, and the values of the baseline are at fault.
        """
        squared = [metric for metric in self._judged if METRICS[metric].squares]
        baseline, candidate = self._greatest
        text = (
            f"output '{self.name}': the greatest magnitude is {baseline:.3g} in the baseline and "
            f"{candidate:.3g} in the candidate; squares are summed of magnitudes from {SQUARED[0]:g} to "
            f"{SQUARED[1]:g}"
        )
        if not squared:
            return replace(obstacle, note="; ".join(filter(None, [obstacle.note, text])))
        text += f", so {', '.join(squared)} cannot be computed"
        if not _can_be_squared(baseline):
            raise CriterionError(f"{text}; scale the output in the model, or judge it by max_abs or mean_abs")
        return Obstacle(False, problem=text, note=obstacle.note)

    @property
    def _nan_ratio(self) -> float:
        """The ratio of the elements that are NaN in both baseline and candidate, 0 to 1."""
        if self.kind != "floats" or not self.elements:
            return 0.0
        return float(self.errors[:, AT["nan"]].sum() / self.elements)

    def _non_finite(self) -> Obstacle:
        rows, total, note, problem = self.errors, self.elements, "", ""
        same, lost, bad = (rows[:, AT[field]] for field in ("same", "lost", "bad"))
        if bad.any() or same.sum() == total:
            note = (
                f"output '{self.name}': the baseline itself is not finite in {int(bad.sum()) or total} of "
                f"{total} elements, first in sample {int(bad.astype(bool).argmax())}; "
                "the candidate cannot be judged against it"
            )
            if self._judged:
                raise BaselineNotFiniteError(note)
        elif same.any():
            note = f"{int(same.sum())} of {total} elements are the same NaN or inf in both and are left out"
        if lost.any():
            problem = (
                f"NaN or inf in {int(lost.sum())} of {total} elements that are finite in the baseline, "
                f"first in sample {int(lost.astype(bool).argmax())}"
            )
            return Obstacle(False, problem=problem, note=note)
        unjudged = any(limits.unjudged for limits in self.limits)
        if self._nan_ratio > _MAX_NAN_RATIO and not unjudged:
            share = f"NaN in {self._nan_ratio:.2%} of the elements"
            problem = f"{share}, in the baseline as well: nothing to judge"
        return Obstacle(comparable=not bad.any() and same.sum() < total, problem=problem, note=note)

    def _small_samples(self, scores: Sequence[Score]) -> SmallSamples | None:
        """Returns the small samples if they miss a limit that all samples together meet; otherwise None.

        A sample is small if its root mean square is more than 30 times below that of the largest sample
        (``_MIN_SIZE_RATIO``). ``scores`` are the scores of all samples together.
        """
        rows = self.errors
        with np.errstate(all="ignore"):
            size = np.sqrt(rows[:, AT["bb"]] / rows[:, AT["elements"]])
        size = np.nan_to_num(size, nan=0.0, posinf=0.0)
        few = (size > 0) & (size * _MIN_SIZE_RATIO < size.max(initial=0.0))
        if not few.any():
            return None
        for limits in self.limits:
            for name, limit in limits.limits.items():
                metric = METRICS[name]
                if limits.spared is not None or metric.measure is not ERRORS:
                    continue
                alone = Score(self.name, name, metric(rows[few]), limit, metric.bound)
                together = next((s for s in scores if s.metric == name and s.limit == limit), None)
                if not alone.passed and together is not None and together.passed:
                    ratio = float(size.max() / size[few].max())
                    return SmallSamples(int(few.sum()), ratio, alone)
        return None


def _can_be_squared(greatest: float) -> bool:
    return greatest == 0 or SQUARED[0] <= greatest <= SQUARED[1]


def _difference(index: int, b: Array, c: Array) -> str:
    """Returns a text on how the candidate's array ``c`` differs from ``b`` in kind or shape; empty if equal.

    ``index`` is the number of the batch.
    """
    if kind_of(b) != kind_of(c):
        return f"the baseline holds {kind_of(b)} ({b.dtype}), the candidate {kind_of(c)} ({c.dtype})"
    if b.shape == c.shape:
        return ""
    return (
        f"shapes differ in batch {index}: the baseline has {b.shape}, the candidate {c.shape}; "
        f"if a NonMaxSuppression decides the size, compare an output before it"
    )


def _fit_line(s: Sums) -> LineFit | None:
    """Returns the least-squares line candidate = slope * baseline + offset; None for a constant baseline.

    ``s`` are the sums over all elements of an output. The correlation in the result is Pearson's. It is 0 for
    a constant candidate.
    """
    if not s.elements:
        return None
    mean_b, mean_c = s.b / s.elements, s.c / s.elements
    variance_b = s.bb / s.elements - mean_b**2
    variance_c = s.cc / s.elements - mean_c**2
    if variance_b <= _MAX_ROUNDING_RATIO * s.bb / s.elements:
        return None
    if variance_c <= _MAX_ROUNDING_RATIO * s.cc / s.elements:
        return LineFit(0.0, mean_c, 0.0, ("constant",))
    covariance = (s.bb + s.be) / s.elements - mean_b * mean_c
    slope = covariance / variance_b
    offset = mean_c - slope * mean_b
    correlation = float(np.clip(covariance / math.sqrt(variance_b) / math.sqrt(variance_c), -1, 1))
    shift, deviation = mean_c - mean_b, math.sqrt(variance_b)
    meanings: list[Meaning] = []
    if correlation > _MIN_CORRELATION:
        if slope < 1 - _MIN_MEANING:
            meanings.append("small")
        elif slope > 1 + _MIN_MEANING:
            meanings.append("large")
        # If the mean is far from 0, a slope of 0.99 alone makes a large offset. A shift is therefore reported
        # only if the mean of the candidate has moved as well.
        if min(abs(offset), abs(shift)) > _MIN_MEANING * deviation:
            meanings.append("shifted")
    return LineFit(slope, offset, correlation, tuple(meanings), shift, deviation)


def sample_ratios(rows: F64) -> F64:
    """Returns the ratio of signal power to noise power for each sample, [samples]; inf if nothing differs.

    ``rows`` has a row for each sample with the columns of ``Sums``, [samples, fields].
    """
    signal, noise, count = (rows[:, AT[field]] for field in ("bb", "ee", "elements"))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((noise == 0) | (count == 0), math.inf, signal / noise)


def _worst_sample(rows: F64) -> int | None:
    """Returns the index of the sample with the lowest SQNR; None if no sample differs from the baseline.

    ``rows`` has a row for each sample with the columns of ``Sums``, [samples, fields].
    """
    ratio = sample_ratios(rows)
    return int(ratio.argmin()) if len(ratio) and ratio.min() < math.inf else None


def _heavy(rows: F64) -> tuple[int, ...]:
    """Returns the indices of the samples that cause 90 % of the squared error, the worst first.

    The result is empty if these samples are more than a quarter of all samples.

    Args:
        rows: A row for each sample with the columns of ``Sums``, [samples, fields].
    """
    errors = np.nan_to_num(rows[:, AT["ee"]], posinf=0.0)
    if not errors.any():
        return ()
    order = np.argsort(-errors, kind="stable")
    many = int(np.searchsorted(np.cumsum(errors[order]), _HEAVY_ERROR_RATIO * errors.sum())) + 1
    return tuple(order[:many].tolist()) if many <= _MAX_HEAVY_RATIO * len(rows) else ()
