"""What makes a verdict worth less than it looks, and what only a real engine can be judged by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from pytest_int8acc.backends.protocol import Backend
from pytest_int8acc.case.forms import Form, Int8Form
from pytest_int8acc.engines.onnxruntime import saturation
from pytest_int8acc.measure.runs import Runs
from pytest_int8acc.results import EngineInfo, OutputResult, Role, Score
from pytest_int8acc.settings import Settings
from pytest_int8acc.spec.criteria import EngineCriterion
from pytest_int8acc.spec.models import Case


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
    if settings.mode == "native" and saturation().saturates:
        check = saturation()
        yield (
            f"this CPU saturates ONNX Runtime's INT8 kernels: {check.measured:.4g} instead of "
            f"{check.expected:g}; use mode exact"
        )


def engine_scores(case: Case, backend: Backend) -> tuple[tuple[Score, ...], tuple[str, ...]]:
    """Scores of the case's engine criteria, and warnings of those that cannot be judged.

    Without a criterion, the share of INT8 and the speedup are reported all the same where they are known.
    """
    wanted = [c for c in case.criteria if isinstance(c, EngineCriterion)]
    if not backend.builds_engines:
        names = [key for c in wanted for key in EngineCriterion.limits() if getattr(c, key) is not None]
        said = f"{', '.join(names)} not judged: ONNX Runtime builds no engine (backend: tensorrt does)"
        return (), (said,) if names else ()
    return _scores({info.role: info for info in backend.engines}, wanted), ()


def _scores(engines: dict[Role, EngineInfo], wanted: Iterable[EngineCriterion]) -> tuple[Score, ...]:
    limits: dict[str, float] = {}
    for criterion in wanted:
        for key in EngineCriterion.limits():
            if (limit := getattr(criterion, key)) is not None:
                limits[key] = limit
    int8, baseline = engines.get(Role.INT8), engines.get(Role.BASELINE)
    scores = []
    if int8 is not None and (int8.weighted or "int8_layers" in limits):
        scores.append(_share(int8, limits.get("int8_layers")))
    if int8 is not None and baseline is not None and int8.latency and baseline.latency:
        fast, slow = int8.latency, baseline.latency
        spread = slow.high_ms / max(fast.low_ms, 1e-9) - slow.low_ms / max(fast.high_ms, 1e-9)
        speedup = slow.median_ms / max(fast.median_ms, 1e-9)
        note = f"{slow.median_ms:.3g} ms to {fast.median_ms:.3g} ms; spread {spread / 2:.2g}"
        scores.append(Score("engine", "speedup", speedup, limits.get("speedup"), note=note))
    elif "speedup" in limits:
        scores.append(Score("engine", "speedup", float("nan"), limits["speedup"], note="no latency known"))
    return tuple(scores)


def _share(engine: EngineInfo, limit: float | None) -> Score:
    """What runs in INT8, as far as that is known: a limit between the least and the most is not judged."""
    least, most = engine.int8_share
    if not engine.untold:
        note = "" if engine.weighted else "the engine does not tell its layers"
        return Score("engine", "int8_layers", least, limit, note=note)
    every = engine.weighted + engine.untold
    note = f"of {engine.untold} of {every} layers, in fused regions, TensorRT does not tell the precision"
    if limit is None or limit <= least:
        return Score("engine", "int8_layers", least, limit, note=f"at least; {note}")
    if most < limit:
        return Score("engine", "int8_layers", most, limit, note=f"at most; {note}")
    return Score(
        "engine", "int8_layers", float("nan"), limit, note=f"{note}: between {least:.2g} and {most:.2g}"
    )
