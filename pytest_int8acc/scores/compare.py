"""Outputs of the baseline and of INT8, compared and judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_int8acc.errors import CriterionError
from pytest_int8acc.results import LineFit, OutputResult, Score
from pytest_int8acc.results.scores import Meaning
from pytest_int8acc.scores.criteria import (
    OutputLimits,
    check_fits,
    check_patterns,
    default_limits,
    kind_of,
    limits_for,
)
from pytest_int8acc.scores.metrics import METRICS, Metric, Pair, dot, find_non_finite, samples_in
from pytest_int8acc.tensors import Array, Outputs

#: Below this correlation a line says nothing.
_MIN_CORRELATION = 0.8
#: A slope off by this much, or a shift of this share of the standard deviation, costs 20 dB SQNR on its own.
_FAR = 0.1
#: A variance of this share of the mean square is rounding: the values are all the same.
_ROUNDING = 1e-24
#: Baseline with candidate, and baseline with its second run; None where they cannot be compared.
_Pairs = tuple[Pair | None, Pair | None]
_REPORTED_FLOAT = ("cosine", "sqnr_db", "max_abs", "mean_abs")


@dataclass(frozen=True)
class Obstacle:
    """Whether the numbers of two runs can be compared, and what the reader must know."""

    comparable: bool = True
    problem: str = ""
    """Why the output fails, if it does."""
    note: str = ""


def look(name: str, baseline: Sequence[Array], candidate: Sequence[Array], *, judged: bool) -> Obstacle:
    """Look for whatever forbids comparing the candidate with the baseline, one array per batch each.

    ``judged``: whether a limit stands on this output. Without one, shapes that differ are a note and not a
    problem, since the number of detections may well differ; NaN in INT8 alone is a problem still. With one,
    raises CriterionError where the baseline is not finite or holds no element.
    """
    difference = differ(baseline, candidate, "INT8")
    if difference:
        return Obstacle(False, problem=difference) if judged else Obstacle(False, note=difference)
    if not any(array.size for array in baseline):
        text = f"output '{name}' holds no element in {len(baseline)} array(s): there is nothing to compare"
        if judged:
            raise CriterionError(f"{text}; give data for which it does, or put the limit on another output")
        return Obstacle(False, note=text)
    if kind_of(baseline[0]) != "floats":
        return Obstacle()
    return _look_for_non_finite(name, Pair(baseline, candidate), judged=judged)


def differ(baseline: Sequence[Array], other: Sequence[Array], who: str) -> str:
    """In words how ``who``'s batches, kinds or shapes differ from the baseline's; empty where they do not."""
    if len(baseline) != len(other):
        return f"the baseline gave {len(baseline)} arrays, {who} {len(other)}"
    for index, (b, o) in enumerate(zip(baseline, other, strict=True)):
        if kind_of(b) != kind_of(o):
            return f"the baseline holds {kind_of(b)} ({b.dtype}), {who} {kind_of(o)} ({o.dtype})"
        if b.shape != o.shape:
            return (
                f"shapes differ in batch {index}: the baseline has {b.shape}, {who} {o.shape}; "
                f"if a NonMaxSuppression decides the size, compare an output before it"
            )
    return ""


def _look_for_non_finite(name: str, pair: Pair, *, judged: bool) -> Obstacle:
    found = find_non_finite(pair)
    total = sum(array.size for array in pair.baseline)
    note = ""
    if found.baseline or found.both == total:
        sample = found.baseline_sample or 0
        note = (
            f"output '{name}': the baseline itself is not finite in {found.baseline or total} of {total} "
            f"elements, first in sample {sample}; INT8 cannot be judged against it"
        )
        if judged:
            raise CriterionError(
                f"{note}. If FP16 overflows, set `baseline: fp32`; otherwise look at the inputs"
            )
    elif found.both:
        note = f"{found.both} of {total} elements are the same NaN or inf in both and are left out"
    if found.candidate:
        problem = (
            f"INT8 is NaN or inf in {found.candidate} of {total} elements where the baseline is finite, "
            f"first in sample {found.candidate_sample}"
        )
        return Obstacle(False, problem=problem, note=note)
    return Obstacle(comparable=not found.baseline and found.both < total, note=note)


def fit_line(pair: Pair) -> LineFit | None:
    """Least squares of candidate = slope * baseline + offset over all elements; None for a constant baseline.

    Means and moments of the batches are merged as in Chan, Golub and LeVeque (1979), so that a large common
    value does not swallow the differences. The correlation is Pearson's, 0 for a constant candidate.
    """
    n, mean_b, mean_c, var_b, var_c, cov = 0, 0.0, 0.0, 0.0, 0.0, 0.0
    for b, c in pair.values():
        if not b.size:
            continue
        batch_b, batch_c = float(b.mean()), float(c.mean())
        d_b, d_c = batch_b - mean_b, batch_c - mean_c
        b, c = b - batch_b, c - batch_c
        weight = n * b.size / (n + b.size)
        var_b += dot(b, b) + d_b * d_b * weight
        var_c += dot(c, c) + d_c * d_c * weight
        cov += dot(b, c) + d_b * d_c * weight
        n += b.size
        mean_b += d_b * b.size / n
        mean_c += d_c * b.size / n
    if var_b <= _ROUNDING * pair.sums.bb:
        return None
    if var_c <= _ROUNDING * pair.sums.cc:
        return LineFit(0.0, mean_c, 0.0, ("constant",))
    slope = cov / var_b
    offset = mean_c - slope * mean_b
    correlation = float(np.clip(cov / math.sqrt(var_b) / math.sqrt(var_c), -1, 1))
    shift, deviation = mean_c - mean_b, math.sqrt(var_b / n)
    meanings = (
        _meanings(slope, offset / deviation, shift / deviation) if correlation > _MIN_CORRELATION else ()
    )
    return LineFit(slope, offset, correlation, meanings, shift, deviation)


def _meanings(slope: float, offset: float, shift: float) -> tuple[Meaning, ...]:
    """What a line means, with offset and shift in standard deviations of the baseline."""
    found: tuple[Meaning, ...] = ("small",) if slope < 1 - _FAR else ("large",) if slope > 1 + _FAR else ()
    # Far from 0, a slope of 0.99 alone moves the offset; only a shift of the mean as well is a shift.
    return (*found, "shifted") if min(abs(offset), abs(shift)) > _FAR else found


def worst_sample(pair: Pair) -> int | None:
    """Index of the sample with the lowest SQNR, counted over all batches; None where no sample differs."""
    worst: int | None = None
    lowest, seen = math.inf, 0
    for b, c in pair.samples():
        if b.size:
            signal, noise = (np.einsum("ij,ij->i", x, x) for x in (b, b - c))
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.where(noise == 0, math.inf, signal / noise)
            index = int(ratio.argmin())
            if ratio[index] < lowest:
                lowest, worst = float(ratio[index]), seen + index
        seen += len(b)
    return worst


def compare_outputs(
    baseline: Outputs,
    candidate: Outputs,
    criteria: Sequence[OutputLimits] = (),
    noise: Outputs | None = None,
    *,
    metrics_given: bool = False,
    judged_only: bool = False,
) -> tuple[OutputResult, ...]:
    """Every output of the baseline compared with the candidate's, in the baseline's order.

    Args:
        baseline: The high-precision outputs, per batch, samples along the first axis.
        candidate: The INT8 outputs of the same data in the same batches.
        criteria: Limits; an output that none of them names is reported only.
        noise: A second run of the baseline on the same data, for the noise floor; the baseline itself where
            it is known to repeat itself.
        metrics_given: Whether the case judges by a user's metric; without that and without ``criteria``,
            every output must keep the default limit (SQNR 20 dB, or agreement 0.99 where it holds no floats).
        judged_only: Leaves out what no limit needs: other scores, the line, the worst sample.

    Raises:
        CriterionError: A criterion matches no output or does not fit one, the candidate lacks an output, or
            the baseline is not finite where a limit needs it.
    """
    check_patterns(criteria, list(baseline))
    missing = [name for name in baseline if name not in candidate]
    if missing:
        raise CriterionError(
            f"the INT8 model has no output {', '.join(map(repr, missing))}; it gives: "
            f"{', '.join(candidate) or 'none'}; both models need the same output names"
        )
    use_defaults = not criteria and not metrics_given
    results = []
    for name, arrays in baseline.items():
        limits = default_limits(name, arrays) if use_defaults else limits_for(name, criteria)
        second_run = None if noise is None else noise.get(name)
        results.append(
            compare_output(name, arrays, candidate[name], limits, noise=second_run, judged_only=judged_only)
        )
    return tuple(results)


def compare_output(
    name: str,
    baseline: Sequence[Array],
    candidate: Sequence[Array],
    limits: Sequence[OutputLimits] = (),
    *,
    noise: Sequence[Array] | None = None,
    judged_only: bool = False,
) -> OutputResult:
    """One output compared: scores with a limit first, each limit judged on its own, then those only reported.

    Where the numbers cannot be compared, judged scores are nan, and ``problem`` or ``note`` says why.

    Args:
        name: The output's name.
        baseline: One array per batch, samples along the first axis.
        candidate: The same for INT8.
        limits: Those that speak of this output; their names are not looked at.
        noise: The baseline's second run.
        judged_only: As for ``compare_outputs``.

    Raises:
        CriterionError: A metric does not fit the output, or a limit stands on a baseline that is not finite.
    """
    judged = _check_limits(name, baseline, limits)
    obstacle = look(name, baseline, candidate, judged=bool(judged))
    unstable = noise is not None and bool(differ(baseline, noise, "the second run"))
    others = (candidate if obstacle.comparable else None, None if unstable else noise)
    scores = []
    for criterion in limits:
        both = _pairs(baseline, others, criterion)
        for metric, limit in criterion.limits.items():
            scores.append(replace(_score(name, METRICS[metric], both, criterion.note), limit=limit))
    pairs = (None, None) if judged_only else _pairs(baseline, others, OutputLimits(name))
    notes = [obstacle.note, "two runs of the baseline differ in shape: noise unknown" * unstable]
    pair = pairs[0] if kind_of(baseline[0]) == "floats" else None
    return OutputResult(
        name=name,
        dtype=str(baseline[0].dtype),
        shape=_shape_text(baseline),
        scores=(*scores, *_reported(name, baseline, judged, pairs)),
        fit=fit_line(pair) if pair else None,
        worst_sample=worst_sample(pair) if pair else None,
        problem=obstacle.problem,
        note="; ".join(filter(None, notes)),
    )


def _check_limits(name: str, baseline: Sequence[Array], limits: Sequence[OutputLimits]) -> list[str]:
    """The metrics that ``limits`` judge; CriterionError where one does not fit the output."""
    if not baseline:
        raise CriterionError(f"output '{name}' has no arrays: nothing was run; give at least one sample")
    for criterion in limits:
        for metric in criterion.limits:
            check_fits(METRICS[metric], name, baseline, criterion.axis)
    return [metric for criterion in limits for metric in criterion.limits]


def _pairs(
    baseline: Sequence[Array], others: Sequence[Sequence[Array] | None], criterion: OutputLimits
) -> _Pairs:
    """The pairs that the metrics of one criterion share, and with them their sums."""
    measured, noise = (
        None if other is None else Pair(baseline, other, criterion.axis, criterion.rel_floor)
        for other in others
    )
    return measured, noise


def _reported(name: str, baseline: Sequence[Array], judged: Sequence[str], pairs: _Pairs) -> list[Score]:
    """The standard metrics that no limit has judged; top-1 too where it looks like (samples, classes)."""
    if pairs[0] is None:
        return []
    standard: tuple[str, ...] = _REPORTED_FLOAT
    if kind_of(baseline[0]) != "floats":
        standard = ("agreement",)
    elif all(array.ndim == 2 and array.shape[1] >= 2 for array in baseline):
        standard = (*_REPORTED_FLOAT, "top1_agreement")
    return [_score(name, METRICS[key], pairs) for key in standard if key not in judged]


def _score(name: str, metric: Metric, pairs: _Pairs, note: str = "") -> Score:
    """One metric between baseline and candidate, and between two runs of the baseline."""
    measured, rerun = pairs
    value, noise, notes = math.nan, None, [note]
    if measured is not None:
        value = metric(measured)
        if math.isnan(value):
            notes.append("cannot be computed from these values")
        elif metric.name == "kl" and _are_probabilities(measured):
            notes.append("the output holds probabilities already; kl takes their softmax again: too small")
    if rerun is not None:
        noise = metric.perfect if rerun.candidate is rerun.baseline else metric(rerun)
        if math.isnan(noise):
            noise = None
            notes.append("two runs of the baseline cannot be compared: noise unknown")
    return Score(
        name, metric.name, value, bound=metric.bound, noise=noise, note="; ".join(filter(None, notes))
    )


def _are_probabilities(pair: Pair) -> bool:
    """Whether the baseline's first rows are nowhere negative and sum to 1, as after a softmax."""
    rows, _ = next(pair.rows())
    return bool(rows.size and (rows >= 0).all() and np.allclose(rows.sum(axis=-1), 1.0, rtol=0, atol=1e-2))


def _shape_text(arrays: Sequence[Array]) -> str:
    """The shape over all samples; the number of arrays where they do not join along the first axis."""
    if all(array.ndim and array.shape[1:] == arrays[0].shape[1:] for array in arrays):
        return str((sum(map(samples_in, arrays)), *arrays[0].shape[1:]))
    return f"{len(arrays)} arrays"
