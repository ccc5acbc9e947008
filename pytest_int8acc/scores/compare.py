"""Outputs of the baseline and of INT8, compared and judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_int8acc.errors import CriterionError
from pytest_int8acc.results import OutputResult, Score
from pytest_int8acc.scores.comparability import differ, look
from pytest_int8acc.scores.criteria import (
    OutputLimits,
    check_fits,
    check_patterns,
    default_limits,
    kind_of,
    limits_for,
)
from pytest_int8acc.scores.fit import fit_line, worst_sample
from pytest_int8acc.scores.metrics import METRICS, Metric
from pytest_int8acc.scores.pairs import Pair, samples_in
from pytest_int8acc.tensors import Array, Outputs

#: Baseline with candidate, and baseline with its second run; None where they cannot be compared.
_Pairs = tuple[Pair | None, Pair | None]
_REPORTED_FLOAT = ("cosine", "sqnr_db", "max_abs", "mean_abs")


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
        noise: A second run of the baseline on the same data, for the noise floor.
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
    runs = _Runs(baseline, candidate if obstacle.comparable else None, None if unstable else noise)
    pairs = (None, None) if judged_only else _pairs(runs, OutputLimits(name))
    pair = pairs[0] if kind_of(baseline[0]) == "floats" else None
    return OutputResult(
        name=name,
        dtype=str(baseline[0].dtype),
        shape=_shape_text(baseline),
        scores=(*_judged(name, runs, limits), *_reported(name, runs.baseline, judged, pairs)),
        fit=fit_line(pair) if pair else None,
        worst_sample=worst_sample(pair) if pair else None,
        problem=obstacle.problem,
        note=_joined([obstacle.note, "two runs of the baseline differ in shape: noise unknown" * unstable]),
    )


def _check_limits(name: str, baseline: Sequence[Array], limits: Sequence[OutputLimits]) -> list[str]:
    """The metrics that ``limits`` judge; CriterionError where one does not fit the output."""
    if not baseline:
        raise CriterionError(f"output '{name}' has no arrays: nothing was run; give at least one sample")
    for criterion in limits:
        for metric in criterion.limits:
            check_fits(METRICS[metric], name, baseline, criterion.axis)
    return [metric for criterion in limits for metric in criterion.limits]


@dataclass(frozen=True, eq=False)
class _Runs:
    """One output's arrays from the three runs."""

    baseline: Sequence[Array]
    candidate: Sequence[Array] | None
    """None where its numbers cannot be compared."""
    noise: Sequence[Array] | None
    """None where there is no second run of the baseline to compare."""


def _pairs(runs: _Runs, criterion: OutputLimits) -> _Pairs:
    """The pairs that the metrics of one criterion share, and with them their sums."""
    measured, noise = (
        None if other is None else Pair(runs.baseline, other, criterion.axis, criterion.rel_floor)
        for other in (runs.candidate, runs.noise)
    )
    return measured, noise


def _judged(name: str, runs: _Runs, limits: Sequence[OutputLimits]) -> list[Score]:
    scores = []
    for criterion in limits:
        pairs = _pairs(runs, criterion)
        for metric, limit in criterion.limits.items():
            score = _score(name, METRICS[metric], pairs, criterion.note)
            scores.append(replace(score, limit=limit))
    return scores


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
        noise = metric(rerun)
        if math.isnan(noise):
            noise = None
            notes.append("two runs of the baseline cannot be compared: noise unknown")
    return Score(name, metric.name, value, bound=metric.bound, noise=noise, note=_joined(notes))


def _joined(notes: Sequence[str]) -> str:
    return "; ".join(filter(None, notes))


def _are_probabilities(pair: Pair) -> bool:
    """Whether the baseline's first rows are nowhere negative and sum to 1, as after a softmax."""
    rows, _ = next(pair.rows())
    return bool(rows.size and (rows >= 0).all() and np.allclose(rows.sum(axis=-1), 1.0, rtol=0, atol=1e-2))


def _shape_text(arrays: Sequence[Array]) -> str:
    """The shape over all samples; the number of arrays where they do not join along the first axis."""
    if all(array.ndim and array.shape[1:] == arrays[0].shape[1:] for array in arrays):
        return str((sum(map(samples_in, arrays)), *arrays[0].shape[1:]))
    return f"{len(arrays)} arrays"
