"""What makes a verdict worth less than it looks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_int8acc.case.forms import Form, Int8Form
from pytest_int8acc.engines.onnxruntime import saturation
from pytest_int8acc.measure.runs import Runs
from pytest_int8acc.results import OutputResult, Score
from pytest_int8acc.settings import Settings


def nothing_compared(runs: Runs) -> Iterator[str]:
    """Outputs that are zero throughout: any model that gives zeros passes."""
    for name, arrays in runs.baseline.items():
        if not any(array.any() for array in arrays if array.dtype.kind in "fiub"):
            yield f"output '{name}' is 0 in all samples: nothing is compared"


def caveats(
    settings: Settings,
    int8: Int8Form | None,
    baseline: Form,
    outputs: Sequence[OutputResult],
    metrics: Sequence[Score],
    lost: Sequence[Score],
) -> Iterator[str]:
    """What makes the verdict worth less than it looks, weightiest first."""
    scores = {(s.subject, s.metric): s for output in outputs for s in output.scores}
    for score in lost:
        int8_score = scores[score.subject, score.metric]
        worse = score.value < int8_score.value if score.bound == "min" else score.value > int8_score.value
        yield (
            f"{baseline.description} is off already: {score.subject} {score.metric} {score.value:.6g} "
            f"against FP32, limit {score.limit:g}" + (": INT8 is not the problem" if worse else "")
        )
    for score in metrics:
        own = replace(score, value=math.nan if score.baseline is None else score.baseline)
        if score.baseline is not None and not own.passed:
            yield f"the baseline itself misses {score.subject}: {own.value:.6g}, limit {score.limit:g}"
    for score in (*scores.values(), *metrics):
        if score.limit_in_noise:
            yield (
                f"{score.subject} {score.metric}: the limit {score.limit:g} lies inside the noise "
                f"({score.noise:g} between two runs of the baseline): its verdict means little"
            )
    left_high = int8.network.left_high if int8 else {}
    without = [name for name, why in left_high.items() if why.kind == "no-scale"]
    if int8 and without:
        every = len(int8.network.groups) + len(left_high)
        yield f"{len(without)} of {every} groups have no scale and are not in INT8"
    yield from _saturation(settings)


def _saturation(settings: Settings) -> Iterator[str]:
    if settings.mode == "native" and saturation().saturates:
        check = saturation()
        yield (
            f"this CPU saturates ONNX Runtime's INT8 kernels: {check.measured:.4g} instead of "
            f"{check.expected:g}; use mode exact"
        )
