"""What keeps the numbers of one output from being compared: shapes, kinds, NaN and infinities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_int8acc.errors import CriterionError
from pytest_int8acc.scores.criteria import kind_of
from pytest_int8acc.scores.pairs import Pair, find_non_finite
from pytest_int8acc.tensors import Array


@dataclass(frozen=True)
class Obstacle:
    """Whether the numbers of two runs can be compared, and what the reader must know."""

    comparable: bool = True
    problem: str = ""
    """Why the output fails, if it does."""
    note: str = ""


def look(name: str, baseline: Sequence[Array], candidate: Sequence[Array], *, judged: bool) -> Obstacle:
    """Look for whatever forbids comparing the candidate with the baseline.

    Args:
        name: The output's name.
        baseline: One array per batch, samples along the first axis.
        candidate: The same for INT8.
        judged: Whether a limit stands on this output. Without one, shapes that differ are a note and not a
            problem, since the number of detections may well differ; NaN in INT8 alone is a problem still.

    Raises:
        CriterionError: There is a limit, but the baseline is not finite or holds no element.
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
