"""Criteria that only a real engine can be judged by: what runs in INT8, and what that gains."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_int8acc.backends.protocol import Backend
from pytest_int8acc.results import EngineInfo, Role, Score
from pytest_int8acc.spec.criteria import EngineCriterion
from pytest_int8acc.spec.models import Case


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
