"""One output of two forms compared batch by batch: of the arrays only sums stay, a row per sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_int8acc.errors import BaselineNotFiniteError, CriterionError
from pytest_int8acc.scores.criteria import OutputLimits, check_fits, default_limits, kind_of
from pytest_int8acc.scores.measures import ERRORS, SQUARES, How, Measure
from pytest_int8acc.scores.metrics import METRICS, Metric
from pytest_int8acc.scores.sums import AT, F64, SQUARED, Sums, greatest_magnitude, samples_in, sums_of
from pytest_int8acc.tensors import Array, Part

_REPORTED_FLOAT = ("cosine", "sqnr_db", "max_abs", "mean_abs")
_Key = tuple[Measure, How]
#: An output with a greater share of NaN in both forms fails: what is NaN cannot be judged.
_MOST_NAN = 0.01


@dataclass(frozen=True)
class Obstacle:
    """Whether the numbers of two runs can be compared, and what the reader must know."""

    comparable: bool = True
    problem: str = ""
    """Why the output fails, if it does."""
    note: str = ""


class OutputStatistics:
    """What one output's scores are made of, kept sample by sample.

    Relative errors need the greatest magnitude of the whole baseline: where a limit stands on one and that is
    not known beforehand, arrays are held until all have come.
    """

    def __init__(
        self,
        name: str,
        limits: Sequence[OutputLimits] | None,
        *,
        judged_only: bool = False,
        peak: float | None = None,
        part: Part | None = None,
    ) -> None:
        """Nothing is compared yet.

        Args:
            name: The output's.
            limits: Those that speak of it; None: the default ones.
            judged_only: Leaves out what no limit needs.
            peak: Greatest magnitude of the whole baseline, where it is known.
            part: What is compared of the output's arrays; None: all.
        """
        self.name, self.judged_only, self.part = name, judged_only, part
        self.limits: Sequence[OutputLimits] = limits or ()
        self.dtype, self.kind, self.arrays, self.elements, self.samples = "", "", 0, 0, 0
        self.difference = ""
        """In words how batches, kinds or shapes of the two differ; empty where they do not."""
        self._default = limits is None
        self._peak = peak
        self._greatest = [0.0, 0.0]
        """Greatest finite magnitudes of baseline and candidate, where they are doubles."""
        self._tails: set[tuple[int, ...] | None] = set()
        self._rows: dict[_Key, list[F64]] = {}
        self._held: list[tuple[Array, Array, int]] = []

    def add(self, b: Array, c: Array, samples: int | None = None) -> None:
        """Compare the next batch.

        Args:
            b: The baseline's array, of the whole output.
            c: The candidate's.
            samples: How many the arrays hold; by default as many as the first axis counts.

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
        found = differ(self.arrays, b, c)
        self.difference = self.difference or found
        self.arrays, self.elements = self.arrays + 1, self.elements + b.size
        self.samples += count
        if found or not count:
            return
        for place, array in enumerate((b, c)):
            if array.dtype == np.float64:
                self._greatest[place] = max(self._greatest[place], greatest_magnitude(array))
        with np.errstate(all="ignore"):  # inf and nan are answers here
            for (measure, how), rows in self._rows.items():
                if not measure.needs_peak or self._peak is not None:
                    rows.append(measure.rows(b, c, count, how, self._peak or 0.0))
        if self._peak is None and any(measure.needs_peak for measure, _ in self._rows):
            self._held.append((b, c, count))

    @property
    def output(self) -> str:
        """The output that is compared, or a part of it."""
        return self.name if self.part is None else self.part.output

    def cut(self, array: Array) -> Array:
        """What is compared of an array of the output."""
        return array if self.part is None else self.part.of(array)

    def _begin(self, b: Array) -> None:
        if self.arrays:
            return
        self.dtype, self.kind = str(b.dtype), kind_of(b)
        if self._default:
            self.limits = default_limits(self.name, [b])
        keys = [key_of(METRICS[m], limits) for limits in self.limits for m in limits.limits]
        if not self.judged_only:
            keys += [key_of(METRICS[m], OutputLimits(self.name)) for m in self._standard()]
        if self.kind == "floats":
            keys.append((SQUARES, How()))
        if self._peak is None and any(measure.needs_peak for measure, _ in keys):
            keys.append((ERRORS, How()))
        if (ERRORS, How()) in keys:
            keys = [key for key in keys if key[0] is not SQUARES]
        self._rows = {key: [] for key in keys}

    def _check(self, b: Array) -> None:
        for limits in self.limits:
            for metric in limits.limits:
                check_fits(METRICS[metric], self.name, [b], limits.axis)

    def _standard(self) -> tuple[str, ...]:
        if self.kind != "floats":
            return ("agreement",)
        classes = all(tail is not None and len(tail) == 1 and tail[0] >= 2 for tail in self._tails)
        return (*_REPORTED_FLOAT, "top1_agreement") if classes else _REPORTED_FLOAT

    @property
    def reported(self) -> tuple[str, ...]:
        """The standard metrics of such an output; top-1 where it looks like (samples, classes)."""
        names = () if self.judged_only else self._standard()
        return tuple(name for name in names if self.can_be_squared or not METRICS[name].squares)

    @property
    def judged(self) -> list[str]:
        """The metrics that have a limit."""
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
        return self._joined((ERRORS, How()) if (ERRORS, How()) in self._rows else (SQUARES, How()))

    @property
    def latest(self) -> F64:
        """The same of the batch that came last, before all are joined."""
        rows = self._rows.get((ERRORS, How())) or self._rows.get((SQUARES, How()))
        return rows[-1] if rows else np.zeros((0, len(AT)))

    def rows(self, metric: Metric, limits: OutputLimits) -> F64:
        """What ``metric`` is made of, a row per sample."""
        key = key_of(metric, limits)
        if self._held:
            peak, held, self._held = self.peak or 0.0, self._held, []
            with np.errstate(all="ignore"):
                for (measure, how), rows in self._rows.items():
                    if measure.needs_peak:
                        rows.extend(measure.rows(b, c, count, how, peak) for b, c, count in held)
        return self.errors if key[0] in (ERRORS, SQUARES) else self._joined(key)

    def _joined(self, key: _Key) -> F64:
        """The rows of one measure, [samples, n]."""
        rows = self._rows.get(key, [])
        if len(rows) > 1:
            rows[:] = [np.concatenate(rows)]
        return rows[0] if rows else np.zeros((0, len(AT)))

    def value(self, metric: Metric, limits: OutputLimits, samples: Sequence[int] | None = None) -> float:
        """The score of some samples, by index and as often as they are named; None: of all.

        Valid where nothing forbids to compare; nan where it cannot be computed.
        """
        rows = self.rows(metric, limits)
        return metric(rows if samples is None else rows[list(samples)]) if len(rows) else math.nan

    def obstacle(self) -> Obstacle:
        """Whatever forbids comparing the candidate with the baseline.

        Without a limit, shapes that differ are a note and not a problem, since the number of detections may
        well differ; NaN in the candidate alone is a problem still. With one, raises CriterionError where the
        baseline is not finite, holds no element, or has values whose squares leave float64 and a limit sums
        squares.
        """
        judged = bool(self.judged)
        if self.difference:
            said = self.difference
            return Obstacle(False, problem=said) if judged else Obstacle(False, note=said)
        if not self.elements:
            where = f"output '{self.name}' holds no element in {self.arrays} array(s)"
            text = f"{where}: there is nothing to compare"
            remedy = "give data for which it does, or put the limit on another output"
            if judged:
                raise CriterionError(f"{text}; {remedy}")
            return Obstacle(False, note=text)
        found = self._non_finite() if self.kind == "floats" else Obstacle()
        return found if not found.comparable or self.can_be_squared else self._not_squared(found)

    @property
    def can_be_squared(self) -> bool:
        """Whether squares of the values can be summed; only doubles may be too small or too large."""
        return all(_fits(greatest) for greatest in self._greatest)

    def _not_squared(self, found: Obstacle) -> Obstacle:
        """What becomes of metrics that sum squares, where values are too small or too large for that."""
        squared = [metric for metric in self.judged if METRICS[metric].squares]
        baseline, candidate = self._greatest
        text = (
            f"output '{self.name}': the greatest magnitude is {baseline:.3g} in the baseline and "
            f"{candidate:.3g} in the candidate; squares are summed of magnitudes from {SQUARED[0]:g} to "
            f"{SQUARED[1]:g}"
        )
        if squared:
            text += f", so {', '.join(squared)} cannot be computed"
        if squared and not _fits(baseline):
            raise CriterionError(f"{text}; scale the output in the model, or judge it by max_abs or mean_abs")
        if squared:
            return Obstacle(False, problem=text, note=found.note)
        return replace(found, note="; ".join(filter(None, [found.note, text])))

    @property
    def nan_share(self) -> float:
        """The share of the elements that are NaN in both, 0 to 1."""
        if self.kind != "floats" or not self.elements or not len(self.errors):
            return 0.0
        return float(self.errors[:, AT["nan"]].sum() / self.elements)

    @property
    def is_unjudged(self) -> bool:
        """Whether the spec takes the output out of all limits."""
        return any(limits.unjudged for limits in self.limits)

    def _non_finite(self) -> Obstacle:
        rows, total, note = self.errors, self.elements, ""
        same, lost, bad = (rows[:, AT[field]] for field in ("same", "lost", "bad"))
        if bad.any() or same.sum() == total:
            note = (
                f"output '{self.name}': the baseline itself is not finite in {int(bad.sum()) or total} of "
                f"{total} elements, first in sample {int(bad.astype(bool).argmax())}; "
                "the candidate cannot be judged against it"
            )
            if self.judged:
                raise BaselineNotFiniteError(note)
        elif same.any():
            note = f"{int(same.sum())} of {total} elements are the same NaN or inf in both and are left out"
        if lost.any():
            problem = (
                f"NaN or inf in {int(lost.sum())} of {total} elements that are finite in the baseline, "
                f"first in sample {int(lost.astype(bool).argmax())}"
            )
            return Obstacle(False, problem=problem, note=note)
        problem = ""
        if self.nan_share > _MOST_NAN and not self.is_unjudged:
            problem = (
                f"NaN in {self.nan_share:.2%} of the elements, in the baseline as well: nothing to judge"
            )
        return Obstacle(comparable=not bad.any() and same.sum() < total, problem=problem, note=note)


def _fits(greatest: float) -> bool:
    return greatest == 0 or SQUARED[0] <= greatest <= SQUARED[1]


def key_of(metric: Metric, limits: OutputLimits) -> _Key:
    """A measure, and of how it looks at an output only what it needs."""
    measure, usual = metric.measure, How()
    axis = limits.axis if measure.by_axis else usual.axis
    floor = limits.rel_floor if measure.needs_peak else usual.rel_floor
    tolerance = limits.tolerance if measure.by_tolerance else None
    return measure, How(axis, floor, tolerance or usual.tolerance)


def differ(index: int, b: Array, c: Array) -> str:
    """In words how kinds or shapes of the candidate's batch and the baseline's differ; empty where alike."""
    if kind_of(b) != kind_of(c):
        return f"the baseline holds {kind_of(b)} ({b.dtype}), the candidate {kind_of(c)} ({c.dtype})"
    if b.shape == c.shape:
        return ""
    return (
        f"shapes differ in batch {index}: the baseline has {b.shape}, the candidate {c.shape}; "
        f"if a NonMaxSuppression decides the size, compare an output before it"
    )
