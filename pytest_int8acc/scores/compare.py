"""Outputs of the baseline and of INT8, compared and judged."""

from __future__ import annotations

import glob
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pytest_int8acc.errors import CriterionError
from pytest_int8acc.results import LineFit, OutputResult, Score
from pytest_int8acc.results.scores import Meaning, SmallSamples
from pytest_int8acc.scores.criteria import (
    OutputLimits,
    check_patterns,
    limits_for,
    limits_of_part,
    limits_of_small_channels,
)
from pytest_int8acc.scores.measures import DIVERGENCE, ERRORS, SQUARES
from pytest_int8acc.scores.metrics import METRICS, Metric
from pytest_int8acc.scores.reserve import heavy, interval
from pytest_int8acc.scores.split import Splitter
from pytest_int8acc.scores.statistics import OutputStatistics
from pytest_int8acc.scores.sums import AT, F64, Sums
from pytest_int8acc.tensors import Array, Feed, Outputs, Part

#: Below this correlation a line says nothing.
_MIN_CORRELATION = 0.8
#: A slope off by this much, or a shift of this share of the standard deviation, costs 20 dB SQNR on its own.
_FAR = 0.1
#: Samples this many times smaller than the largest add less than a thousandth of its energy.
_SMALL = 30.0
#: A variance of this share of the mean square is rounding: the values are all the same.
_ROUNDING = 1e-24


class Comparison:
    """All outputs of two forms compared batch by batch; nothing of the arrays is kept but sums.

    See ``compare_outputs`` for what it gives; ``OutputStatistics`` for what it keeps.
    """

    def __init__(
        self,
        criteria: Sequence[OutputLimits] = (),
        *,
        metrics_given: bool = False,
        judged_only: bool = False,
        splitter: Splitter | None = None,
    ) -> None:
        """Nothing is compared yet; arguments as for ``compare_outputs``."""
        self._criteria, self._judged_only = criteria, judged_only
        self._splitter = Splitter() if splitter is None else splitter
        self._use_defaults = not metrics_given
        self.statistics: dict[str, OutputStatistics] = {}
        """By the name of an output, or of a part of one."""

    def open(self, baseline: Sequence[str], candidate: Sequence[str], first: Mapping[str, Array]) -> None:
        """Make statistics for each output, or for each of its parts.

        Args:
            baseline: Names of its outputs.
            candidate: Names of its outputs.
            first: The baseline's arrays of the first batch; an output without one is not split.

        Raises:
            CriterionError: A criterion or the candidate does not fit.
        """
        parts = {name: self._parts(name, first) for name in baseline}
        small = {name: part for name in baseline if (part := self._small_channels(name)) is not None}
        every = [*(part for found in parts.values() for part in found), *small.values()]
        named = [name for part in every for name in (part.name, part.place)]
        pending = tuple(f"{glob.escape(name)}[" for name in baseline if self._splitter.is_pending(name))
        known = [limits for limits in self._criteria if not limits.output.startswith(pending)]
        check_patterns(known, [*baseline, *named])
        missing = [name for name in baseline if name not in candidate]
        if missing:
            raise CriterionError(
                f"the candidate has no output {', '.join(map(repr, missing))}; it gives: "
                f"{', '.join(candidate) or 'none'}; both models need the same output names"
            )
        for name in baseline:
            if not parts[name]:
                self._open(name, limits_for(name, self._criteria), None)
                if name in small and name in first:
                    self._open_small(small[name], first[name].ndim)
                continue
            if accepted := [limits for limits in limits_for(name, self._criteria) if limits.accepted]:
                self._open(name, accepted, None)
            for part in parts[name]:
                self._open(part.name, limits_of_part(part, first[name], parts[name], self._criteria), part)

    def _parts(self, output: str, first: Mapping[str, Array]) -> Sequence[Part]:
        if output not in first or any(limits.unjudged for limits in limits_for(output, self._criteria)):
            return ()
        return self._splitter.parts(output, first[output])

    def _small_channels(self, output: str) -> Part | None:
        """Small channels of an output that is judged, by the default limit or by others."""
        limits = limits_for(output, self._criteria)
        judged = not any(criterion.unjudged for criterion in limits) and (limits or self._use_defaults)
        return self._splitter.small_channels(output) if judged else None

    def _open_small(self, part: Part, rank: int) -> None:
        """Judge small channels beside the whole."""
        limits = limits_of_small_channels(part, rank, self._criteria)
        if limits is not None:
            self._open(part.name, limits, part)

    def _open(self, name: str, limits: Sequence[OutputLimits], part: Part | None) -> None:
        known = None if not limits and self._use_defaults else limits
        self.statistics[name] = OutputStatistics(name, known, judged_only=self._judged_only, part=part)

    def add(self, baseline: Feed, candidate: Feed) -> None:
        """Compare the next batch; CriterionError where a criterion or the candidate does not fit."""
        if not self.statistics:
            self.open(list(baseline), list(candidate), baseline)
        for stats in self.statistics.values():
            stats.add(baseline[stats.output], candidate[stats.output])

    def results(
        self, noise: Comparison | None = None, *, intervals: bool = False
    ) -> tuple[OutputResult, ...]:
        """Every output's scores; ``noise``: the baseline compared with its second run, of any samples."""
        rerun = noise.statistics if noise is not None else {}
        return tuple(result(t, rerun.get(name), intervals=intervals) for name, t in self.statistics.items())


def fit_line(s: Sums) -> LineFit | None:
    """Least squares of candidate = slope * baseline + offset over all elements; None for a constant baseline.

    The correlation is Pearson's, 0 for a constant candidate.
    """
    if not s.elements or s.var_b <= _ROUNDING * s.bb:
        return None
    mean_b, mean_c = s.b / s.elements, s.c / s.elements
    if s.var_c <= _ROUNDING * s.cc:
        return LineFit(0.0, mean_c, 0.0, ("constant",))
    slope = s.cov / s.var_b
    offset = mean_c - slope * mean_b
    correlation = float(np.clip(s.cov / math.sqrt(s.var_b) / math.sqrt(s.var_c), -1, 1))
    shift, deviation = mean_c - mean_b, math.sqrt(s.var_b / s.elements)
    meanings = (
        _meanings(slope, offset / deviation, shift / deviation) if correlation > _MIN_CORRELATION else ()
    )
    return LineFit(slope, offset, correlation, meanings, shift, deviation)


def _meanings(slope: float, offset: float, shift: float) -> tuple[Meaning, ...]:
    """What a line means, with offset and shift in standard deviations of the baseline."""
    found: tuple[Meaning, ...] = ("small",) if slope < 1 - _FAR else ("large",) if slope > 1 + _FAR else ()
    # Far from 0, a slope of 0.99 alone moves the offset; only a shift of the mean as well is a shift.
    return (*found, "shifted") if min(abs(offset), abs(shift)) > _FAR else found


def sample_ratios(rows: F64) -> F64:
    """Signal over noise, as powers, of each row of ``Sums``; inf where nothing differs."""
    signal, noise, count = (rows[:, AT[field]] for field in ("bb", "ee", "elements"))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((noise == 0) | (count == 0), math.inf, signal / noise)


def worst_sample(rows: F64) -> int | None:
    """Index of the row of ``Sums`` with the lowest SQNR; None where no sample differs."""
    ratio = sample_ratios(rows)
    return int(ratio.argmin()) if len(ratio) and ratio.min() < math.inf else None


def compare_outputs(
    baseline: Outputs,
    candidate: Outputs,
    criteria: Sequence[OutputLimits] = (),
    *,
    metrics_given: bool = False,
    judged_only: bool = False,
    splitter: Splitter | None = None,
) -> tuple[OutputResult, ...]:
    """Every output of the baseline compared with the candidate's, in the baseline's order.

    Args:
        baseline: The high-precision outputs, per batch, samples along the first axis.
        candidate: The candidate's outputs of the same data in the same batches.
        criteria: Limits; an output that none of them names must keep the default one (SQNR 20 dB, or
            agreement 0.99 where it holds no floats).
        metrics_given: Whether the case judges by a user's metric; then there is no default limit.
        judged_only: Leaves out what no limit needs: other scores, the line, the worst sample.
        splitter: Which outputs are judged by their parts; None: none is.

    Raises:
        CriterionError: A criterion matches no output or does not fit one, the candidate lacks an output, or
            the baseline is not finite where a limit needs it.
    """
    found = Comparison(criteria, metrics_given=metrics_given, judged_only=judged_only, splitter=splitter)
    found.open(list(baseline), list(candidate), {n: arrays[0] for n, arrays in baseline.items() if arrays})
    for stats in found.statistics.values():
        _add_all(stats, baseline[stats.output], candidate[stats.output])
    return found.results()


def compare_output(
    name: str,
    baseline: Sequence[Array],
    candidate: Sequence[Array],
    limits: Sequence[OutputLimits] = (),
    *,
    judged_only: bool = False,
) -> OutputResult:
    """One output compared: scores with a limit first, each limit judged on its own, then those only reported.

    Where the numbers cannot be compared, judged scores are nan, and ``problem`` or ``note`` says why.

    Args:
        name: The output's name.
        baseline: One array per batch, samples along the first axis.
        candidate: The same of the candidate.
        limits: Those that speak of this output; their names are not looked at.
        judged_only: As for ``compare_outputs``.

    Raises:
        CriterionError: A metric does not fit the output, or a limit stands on a baseline that is not finite.
    """
    found = OutputStatistics(name, limits, judged_only=judged_only)
    _add_all(found, baseline, candidate)
    return result(found)


def _add_all(stats: OutputStatistics, baseline: Sequence[Array], other: Sequence[Array]) -> None:
    """All batches of one output."""
    if len(baseline) != len(other):
        stats.difference = f"the baseline gave {len(baseline)} arrays, the candidate {len(other)}"
    for index, array in enumerate(baseline):
        stats.add(array, other[index] if index < len(other) else array)


def result(
    stats: OutputStatistics, noise: OutputStatistics | None = None, *, intervals: bool = False
) -> OutputResult:
    """One output compared: as ``compare_output``, from what was summed up.

    Args:
        stats: Baseline and candidate.
        noise: The baseline and its second run, of these samples or of others.
        intervals: Whether samples are drawn again, to see where scores lie.

    Raises:
        CriterionError: Nothing was run, or a limit stands on a baseline that is not finite.
    """
    if not stats.arrays:
        raise CriterionError(
            f"output '{stats.name}' has no arrays: nothing was run; give at least one sample"
        )
    obstacle = stats.obstacle()
    unstable = noise is not None and bool(noise.difference)
    rerun = None if unstable else noise
    scores = []
    for limits in stats.limits:
        for name, limit in limits.limits.items():
            metric = limits.metric(name)
            score = _score(metric, stats, obstacle.comparable, rerun, limits)
            score = replace(score, limit=limit)
            scores.append(_within(score, metric, stats, limits) if intervals else score)
    if obstacle.comparable:
        usual = OutputLimits(stats.name)
        unjudged = [name for name in stats.reported if name not in stats.judged]
        scores += [_score(METRICS[name], stats, True, rerun, usual) for name in unjudged]
    notes = [obstacle.note, "two runs of the baseline differ in shape: noise unknown" * unstable]
    shown = obstacle.comparable and stats.kind == "floats" and not stats.judged_only and stats.can_be_squared
    return OutputResult(
        name=stats.name,
        part_of="" if stats.part is None else stats.output,
        dtype=stats.dtype,
        shape=stats.shape,
        scores=tuple(scores),
        fit=fit_line(stats.sums) if shown else None,
        worst_sample=worst_sample(stats.errors) if shown else None,
        problem=obstacle.problem,
        note="; ".join(filter(None, notes)),
        heavy=heavy(stats.errors) if shown else (),
        samples=stats.samples,
        nan_share=stats.nan_share,
        small=small_samples(stats, scores) if shown else None,
    )


def small_samples(stats: OutputStatistics, scores: Sequence[Score]) -> SmallSamples | None:
    """Returns what becomes of samples far smaller than others, where a limit on all together hides it.

    Energy is pooled over samples: those whose root mean square is ``_SMALL`` times less than that of the
    largest add next to nothing to it. None where there are none, or where they keep the limit by themselves.

    Args:
        stats: Baseline and candidate.
        scores: The output's, in the order of the counts's limits, those without a limit last.
    """
    rows = stats.errors
    with np.errstate(all="ignore"):
        size = np.sqrt(rows[:, AT["bb"]] / rows[:, AT["elements"]])
    size = np.nan_to_num(size, nan=0.0, posinf=0.0)
    few = (size > 0) & (size * _SMALL < size.max(initial=0.0))
    if not few.any():
        return None
    for limits in stats.limits:
        for name, limit in limits.limits.items():
            if limits.spared is not None or METRICS[name].measure not in (SQUARES, ERRORS):
                continue
            value = stats.value(METRICS[name], limits, few.nonzero()[0].tolist())
            alone = Score(stats.name, name, value, limit, METRICS[name].bound)
            together = next((s for s in scores if s.metric == name and s.limit == limit), None)
            if not alone.passed and together is not None and together.passed:
                ratio = float(size.max() / size[few].max())
                return SmallSamples(int(few.sum()), ratio, alone)
    return None


def _score(
    metric: Metric,
    stats: OutputStatistics,
    comparable: bool,
    rerun: OutputStatistics | None,
    limits: OutputLimits,
) -> Score:
    """One metric between baseline and candidate, and between two runs of the baseline."""
    value, noise, notes = math.nan, None, [limits.note]
    if comparable:
        value = stats.value(metric, limits)
        if math.isnan(value):
            notes.append("cannot be computed from these values")
        elif metric.measure is DIVERGENCE and _are_probabilities(stats.rows(metric, limits)):
            notes.append("the output holds probabilities already; kl takes their softmax again: too small")
    if rerun is not None:
        noise = rerun.value(metric, limits)
        if math.isnan(noise):
            noise = None
            notes.append("two runs of the baseline cannot be compared: noise unknown")
    note = "; ".join(filter(None, notes))
    return Score(stats.name, metric.name, value, bound=metric.bound, noise=noise, note=note)


def _within(score: Score, metric: Metric, stats: OutputStatistics, limits: OutputLimits) -> Score:
    """A judged score with the interval in which it lies."""
    return replace(score, interval=interval(score, stats.rows(metric, limits), metric))


def _are_probabilities(rows: F64) -> bool:
    """Whether the baseline's rows are nowhere negative and sum to 1, as after a softmax."""
    _, count, sure = DIVERGENCE.pool(rows)
    return bool(count and sure == count)
