"""One output of two forms compared batch by batch: rows are kept, and scores are made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_int8acc.errors import BaselineNotFiniteError, CriterionError
from pytest_int8acc.results import LineFit, OutputResult, Score
from pytest_int8acc.results.scores import Meaning, SmallSamples
from pytest_int8acc.scores.bootstrap import heavy, interval
from pytest_int8acc.scores.criteria import OutputLimits, check_fits, default_limits, kind_of
from pytest_int8acc.scores.measures import DIVERGENCE, ERRORS, SQUARES, Measure, Options
from pytest_int8acc.scores.metrics import METRICS, Metric
from pytest_int8acc.scores.sums import AT, F64, SQUARED, Sums, greatest_magnitude, samples_in, sums_of
from pytest_int8acc.tensors import Array, Part

#: Rows of a measure are kept under the measure and the options that it reads.
Key = tuple[Measure, Options]
_REPORTED_FLOAT = ("cosine", "sqnr_db", "max_abs", "mean_abs")
#: An output fails that is NaN in both forms in more than this ratio of its elements: NaN cannot be judged.
_MAX_NAN_RATIO = 0.01
#: A line through INT8 and baseline says nothing below this correlation.
_MIN_CORRELATION = 0.8
#: A slope that is off by this much, or a shift by this ratio to the standard deviation, alone limits the SQNR
#: to 20 dB.
_MIN_MEANING = 0.1
#: Minimum ratio of root mean squares at which a sample counts as small beside the largest one. Its energy is
#: then less than a thousandth of the largest sample's, so a pooled SQNR does not see it.
_MIN_SIZE_RATIO = 30.0
#: Where the variance is below this ratio to the mean square, it is rounding: all values are the same.
_MAX_ROUNDING_RATIO = 1e-24


@dataclass(frozen=True)
class Obstacle:
    """Whether the numbers of two runs can be compared, and what the reader must know."""

    comparable: bool = True
    problem: str = ""
    """Why the output fails, if it does."""
    note: str = ""


class OutputRows:
    """The rows of one output, or of a part of one, and the scores that are made of them.

    Relative errors need the greatest magnitude of the whole baseline. Where a limit stands on one of them and
    this magnitude is not known beforehand, arrays are held until all batches have come.
    """

    def __init__(
        self,
        name: str,
        limits: Sequence[OutputLimits] | None,
        *,
        judged_only: bool = False,
        peak: float | None = None,
        part: Part | None = None,
        also: Sequence[Key] = (),
    ) -> None:
        """Nothing is compared yet.

        Args:
            name: The output's name, or the part's.
            limits: Those that speak of it; None: the default ones.
            judged_only: Leaves out scores without a limit, the line and the worst sample.
            peak: Greatest magnitude of the whole baseline, where it is known.
            part: What is compared of the output's arrays; None: all.
            also: Rows that are kept beside those that scores are made of.
        """
        self.name, self.judged_only, self.part = name, judged_only, part
        self.limits: Sequence[OutputLimits] = limits or ()
        self.dtype, self.kind, self.arrays, self.elements, self.samples = "", "", 0, 0, 0
        self.difference = ""
        """In words how batches, kinds or shapes of the two forms differ; empty where they do not."""
        self._default, self._peak, self._also = limits is None, peak, also
        self._greatest = [0.0, 0.0]
        """Greatest finite magnitudes of baseline and candidate, where they are doubles."""
        self._tails: set[tuple[int, ...] | None] = set()
        self._rows: dict[Key, list[F64]] = {}
        self._held: list[tuple[Array, Array, int]] = []

    @property
    def output(self) -> str:
        """The name of the whole output."""
        return self.name if self.part is None else self.part.output

    def cut(self, array: Array) -> Array:
        """What is compared of an array of the output."""
        return array if self.part is None else self.part.of(array)

    def add(self, b: Array, c: Array, samples: int | None = None) -> None:
        """Compare the next batch.

        Args:
            b: The baseline's array of the whole output.
            c: The candidate's.
            samples: How many samples the arrays hold; by default the size of their first axis.

        Raises:
            CriterionError: A metric does not fit the output.
        """
        b, c = self.cut(b), self.cut(c)
        tail = b.shape[1:] if b.ndim else None
        if tail not in self._tails:
            self._tails.add(tail)
            self._begin(b)
            self._check(b)
        count = samples_in(b) if samples is None else samples
        difference = differ(self.arrays, b, c)
        self.difference = self.difference or difference
        self.arrays, self.elements = self.arrays + 1, self.elements + b.size
        self.samples += count
        if difference or not count:
            return
        for place, array in enumerate((b, c)):
            if array.dtype == np.float64:
                self._greatest[place] = max(self._greatest[place], greatest_magnitude(array))
        with np.errstate(all="ignore"):  # inf and nan are answers here
            for (measure, options), rows in self._rows.items():
                if not measure.needs_peak or self._peak is not None:
                    rows.append(measure.rows(b, c, count, options, self._peak or 0.0))
        if self._peak is None and any(measure.needs_peak for measure, _ in self._rows):
            self._held.append((b, c, count))

    def _begin(self, b: Array) -> None:
        if self.arrays:
            return
        self.dtype, self.kind = str(b.dtype), kind_of(b)
        if self._default:
            self.limits = default_limits(self.name, [b])
        keys = [METRICS[m].measure.key(limits.options) for limits in self.limits for m in limits.limits]
        if not self.judged_only:
            keys += [METRICS[m].measure.key(Options()) for m in self._standard()]
        if self.kind == "floats":
            keys.append((SQUARES, Options()))
        if self._peak is None and any(measure.needs_peak for measure, _ in keys):
            keys.append((ERRORS, Options()))
        if (ERRORS, Options()) in keys:
            keys = [key for key in keys if key[0] is not SQUARES]
        self._rows = {key: [] for key in (*keys, *self._also)}

    def _check(self, b: Array) -> None:
        for limits in self.limits:
            for metric in limits.limits:
                check_fits(METRICS[metric], self.name, [b], limits.axis)

    def _standard(self) -> tuple[str, ...]:
        if self.kind != "floats":
            return ("agreement",)
        classes = all(tail is not None and len(tail) == 1 and tail[0] >= 2 for tail in self._tails)
        return (*_REPORTED_FLOAT, "top1_agreement") if classes else _REPORTED_FLOAT

    def _reported(self) -> tuple[str, ...]:
        """The standard metrics of such an output; top-1 where it looks like (samples, classes)."""
        names = () if self.judged_only else self._standard()
        return tuple(name for name in names if self._can_be_squared or not METRICS[name].squares)

    @property
    def _judged(self) -> list[str]:
        return [metric for limits in self.limits for metric in limits.limits]

    @property
    def shape(self) -> str:
        """The shape over all samples, in words; the number of arrays where they do not join."""
        tail = next(iter(self._tails)) if len(self._tails) == 1 else None
        return f"{self.arrays} arrays" if tail is None else str((self.samples, *tail))

    @property
    def sums(self) -> Sums:
        """Over all samples; only of floats, or of integers where a limit needs them."""
        return sums_of(self.errors)

    @property
    def peak(self) -> float | None:
        """Greatest magnitude of the baseline; None where nothing is known of it."""
        peak = self.sums.peak if len(self.errors) else math.nan
        return None if math.isnan(peak) else peak

    @property
    def errors(self) -> F64:
        """A row of ``Sums`` per sample; none where nothing was summed."""
        full = (ERRORS, Options())
        return self._joined(full if full in self._rows else (SQUARES, Options()))

    @property
    def latest_errors(self) -> F64:
        """The same of the batch that came last."""
        rows = self._rows.get((ERRORS, Options())) or self._rows.get((SQUARES, Options()))
        return rows[-1] if rows else np.zeros((0, len(AT)))

    def rows(self, key: Key) -> F64:
        """The rows of a measure, [samples, columns]."""
        if self._held:
            peak, held, self._held = self.peak or 0.0, self._held, []
            with np.errstate(all="ignore"):
                for (measure, options), rows in self._rows.items():
                    if measure.needs_peak:
                        rows.extend(measure.rows(b, c, count, options, peak) for b, c, count in held)
        return self.errors if key[0] in (ERRORS, SQUARES) else self._joined(key)

    def _joined(self, key: Key) -> F64:
        rows = self._rows.get(key, [])
        if len(rows) > 1:
            rows[:] = [np.concatenate(rows)]
        return rows[0] if rows else np.zeros((0, len(AT)))

    def value(self, metric: Metric, options: Options, samples: Sequence[int] | None = None) -> float:
        """The score of some samples, by index and as often as they are named; None: of all.

        It means something where nothing forbids to compare, and is nan where it cannot be computed.
        """
        rows = self.rows(metric.measure.key(options))
        return metric(rows if samples is None else rows[list(samples)]) if len(rows) else math.nan

    def result(self, noise: OutputRows | None = None, *, intervals: bool = False) -> OutputResult:
        """The output judged: scores with a limit first, each limit on its own, then those only reported.

        Where the numbers cannot be compared, judged scores are nan, and ``problem`` or ``note`` says why.

        Args:
            noise: The baseline and its second run, of these samples or of others.
            intervals: Whether samples are drawn again, to see where scores lie.

        Raises:
            CriterionError: Nothing was run, or a limit stands on a baseline that is not finite.
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
                    score = replace(score, interval=interval(score, rows, metric))
                scores.append(score)
        if obstacle.comparable:
            usual = OutputLimits(self.name)
            unjudged = [METRICS[name] for name in self._reported() if name not in self._judged]
            scores += [self._score(metric, usual, rerun, comparable=True) for metric in unjudged]
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
        if self.judged_only or not obstacle.comparable or self.kind != "floats" or not self._can_be_squared:
            return result
        return replace(
            result,
            fit=fit_line(self.sums),
            worst_sample=worst_sample(self.errors),
            heavy=heavy(self.errors),
            small=self._small_samples(scores),
        )

    def _score(
        self, metric: Metric, limits: OutputLimits, rerun: OutputRows | None, *, comparable: bool
    ) -> Score:
        """One metric between baseline and candidate, and between two runs of the baseline."""
        value, noise, notes = math.nan, None, [limits.note]
        if comparable:
            value = self.value(metric, limits.options)
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
        """Whether the baseline's class rows are nowhere negative and sum to 1, as after a softmax."""
        _, count, probabilities = DIVERGENCE.pool(self.rows(DIVERGENCE.key(limits.options)))
        return bool(count and probabilities == count)

    def _obstacle(self) -> Obstacle:
        """What forbids to compare the candidate with the baseline.

        Without a limit, shapes that differ are a note and not a problem, since the number of detections may
        well differ; NaN in the candidate alone is a problem still. With one, raises CriterionError where the
        baseline is not finite, holds no element, or has values whose squares leave float64 and a limit sums
        squares.
        """
        judged = bool(self._judged)
        if self.difference:
            if judged:
                return Obstacle(False, problem=self.difference)
            return Obstacle(False, note=self.difference)
        if not self.elements:
            where = f"output '{self.name}' holds no element in {self.arrays} array(s)"
            text = f"{where}: there is nothing to compare"
            if judged:
                raise CriterionError(
                    f"{text}; give data for which it does, or put the limit on another output"
                )
            return Obstacle(False, note=text)
        obstacle = self._non_finite() if self.kind == "floats" else Obstacle()
        return obstacle if not obstacle.comparable or self._can_be_squared else self._not_squared(obstacle)

    @property
    def _can_be_squared(self) -> bool:
        """Whether squares of the values can be summed; only doubles may be too small or too large."""
        return all(map(_can_be_squared, self._greatest))

    def _not_squared(self, obstacle: Obstacle) -> Obstacle:
        """Adds what becomes of metrics that sum squares, where values are too small or too large for that."""
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
        """The ratio of the elements that are NaN in both forms, 0 to 1."""
        if self.kind != "floats" or not self.elements or not len(self.errors):
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
        """Far smaller samples that miss a limit by themselves, where a limit on all together hides it.

        Energy is pooled over samples, so samples whose root mean square is ``_MIN_SIZE_RATIO`` times less
        than that of the largest add next to nothing to it. None where there are no such samples, or they keep
        the limit by themselves.
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
                if limits.spared is not None or metric.measure not in (SQUARES, ERRORS):
                    continue
                value = self.value(metric, limits.options, few.nonzero()[0].tolist())
                alone = Score(self.name, name, value, limit, metric.bound)
                together = next((s for s in scores if s.metric == name and s.limit == limit), None)
                if not alone.passed and together is not None and together.passed:
                    ratio = float(size.max() / size[few].max())
                    return SmallSamples(int(few.sum()), ratio, alone)
        return None


def _can_be_squared(greatest: float) -> bool:
    return greatest == 0 or SQUARED[0] <= greatest <= SQUARED[1]


def differ(index: int, b: Array, c: Array) -> str:
    """Returns how kind or shape of a candidate's batch differ from the baseline's; empty if alike."""
    if kind_of(b) != kind_of(c):
        return f"the baseline holds {kind_of(b)} ({b.dtype}), the candidate {kind_of(c)} ({c.dtype})"
    if b.shape == c.shape:
        return ""
    return (
        f"shapes differ in batch {index}: the baseline has {b.shape}, the candidate {c.shape}; "
        f"if a NonMaxSuppression decides the size, compare an output before it"
    )


def compare_output(
    name: str, baseline: Sequence[Array], candidate: Sequence[Array], limits: Sequence[OutputLimits] = ()
) -> OutputResult:
    """One output judged by these limits alone, see ``OutputRows.result``.

    Args:
        name: The output's name.
        baseline: One array per batch, samples along the first axis.
        candidate: The same of the candidate.
        limits: Those that speak of this output; their names are not looked at.

    Raises:
        CriterionError: A metric does not fit the output, or a limit stands on a baseline that is not finite.
    """
    rows = OutputRows(name, limits, judged_only=True)
    for b, c in zip(baseline, candidate, strict=True):
        rows.add(b, c)
    return rows.result()


def fit_line(s: Sums) -> LineFit | None:
    """Least squares of candidate = slope * baseline + offset over all elements; None for a constant baseline.

    The correlation is Pearson's, 0 for a constant candidate.
    """
    if not s.elements or s.var_b <= _MAX_ROUNDING_RATIO * s.bb:
        return None
    mean_b, mean_c = s.b / s.elements, s.c / s.elements
    if s.var_c <= _MAX_ROUNDING_RATIO * s.cc:
        return LineFit(0.0, mean_c, 0.0, ("constant",))
    slope = s.cov / s.var_b
    offset = mean_c - slope * mean_b
    correlation = float(np.clip(s.cov / math.sqrt(s.var_b) / math.sqrt(s.var_c), -1, 1))
    shift, deviation = mean_c - mean_b, math.sqrt(s.var_b / s.elements)
    meanings: tuple[Meaning, ...] = ()
    if correlation > _MIN_CORRELATION:
        meanings = _meanings(slope, offset / deviation, shift / deviation)
    return LineFit(slope, offset, correlation, meanings, shift, deviation)


def _meanings(slope: float, offset: float, shift: float) -> tuple[Meaning, ...]:
    """What a line means; offset and shift are in standard deviations of the baseline."""
    meanings: list[Meaning] = []
    if slope < 1 - _MIN_MEANING:
        meanings.append("small")
    elif slope > 1 + _MIN_MEANING:
        meanings.append("large")
    # Far from 0, a slope of 0.99 alone moves the offset; only a shift of the mean as well is a shift.
    if min(abs(offset), abs(shift)) > _MIN_MEANING:
        meanings.append("shifted")
    return tuple(meanings)


def sample_ratios(rows: F64) -> F64:
    """Signal over noise, as a ratio of powers, of each row of ``Sums``; inf where nothing differs."""
    signal, noise, count = (rows[:, AT[field]] for field in ("bb", "ee", "elements"))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((noise == 0) | (count == 0), math.inf, signal / noise)


def worst_sample(rows: F64) -> int | None:
    """Index of the row of ``Sums`` with the lowest SQNR; None where no sample differs."""
    ratio = sample_ratios(rows)
    return int(ratio.argmin()) if len(ratio) and ratio.min() < math.inf else None
