"""What the engines of a case are made of, and how fast they are, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_int8acc.report.words import count, number
from pytest_int8acc.results import CaseResult, EngineInfo, Latency, Role


@dataclass(frozen=True)
class EngineView:
    """One engine, as text."""

    engine: EngineInfo
    role: str
    """What the engine is for. The candidate's engine is named by the format of the case."""
    in_format: str
    """Like ``45 of 54``: the layers with weights that run in the format."""
    time: str
    """The median of one execution, and its 10th to 90th percentile; empty where not timed."""
    size: str
    built: str
    """How long the build took, or that the engine came from the store."""
    line: str
    """All of it in a line."""

    @property
    def is_baseline(self) -> bool:
        """Whether it is the baseline's engine."""
        return self.engine.role == Role.BASELINE


def engine_views(engines: Sequence[EngineInfo], low_format: str) -> list[EngineView]:
    """Returns the engines of a case as text."""
    baseline = _latency(engines, Role.BASELINE)
    views = []
    for engine in engines:
        role = low_format if engine.role == Role.INT8 else str(engine.role)
        in_format = f"{engine.int8} of {engine.weighted}" if engine.layers else "not told"
        size = f"{engine.nbytes / 2**10:.0f} KiB"
        if engine.nbytes >= 2**20:
            size = f"{engine.nbytes / 2**20:.1f} MiB"
        built = "stored" if engine.stored else f"{number(engine.build_seconds, 3)} s"
        line = f"{role} engine: {_engine_text(engine, low_format)}{_speed(engine.latency, baseline)}"
        views.append(EngineView(engine, role, in_format, time_text(engine.latency), size, built, line))
    return views


def no_int8(result: CaseResult) -> list[str]:
    """Returns a warning if no layer with weights of the case's own engine runs in the low format.

    None is needed if the precision contract tells the shares by format.
    """
    contract = result.precision
    if contract is not None and contract.asked:
        return []
    return [
        f"You asked for {result.low_format} and 0 of "
        + ("1 layer runs in it" if engine.weighted == 1 else f"{engine.weighted} layers run in it")
        for engine in result.engines
        if engine.role == Role.INT8 and engine.weighted and not engine.int8 and not engine.untold
    ]


def speedup(engines: Sequence[EngineInfo]) -> float | None:
    """Returns the baseline's median latency over that of the case's engine; None if either was not timed."""
    baseline, int8 = _latency(engines, Role.BASELINE), _latency(engines, Role.INT8)
    if baseline is None or int8 is None or int8.median_ms <= 0:
        return None
    return baseline.median_ms / int8.median_ms


def int8_layers(engines: Sequence[EngineInfo]) -> str:
    """Returns text like ``45 of 54``: layers with weights in the low format; empty if not known."""
    inspected = [engine for engine in engines if engine.role == Role.INT8 and engine.weighted]
    if not inspected:
        return ""
    untold = f", {inspected[0].untold} untold" if inspected[0].untold else ""
    return f"{inspected[0].int8} of {inspected[0].weighted}{untold}"


def _engine_text(engine: EngineInfo, low_format: str) -> str:
    if not engine.layers:
        return "does not tell its layers"
    layers = count(engine.weighted, "weighted layer")
    said = f"{engine.int8} of {layers} in {low_format}" if engine.role != Role.BASELINE else layers
    extra = [f"{engine.untold} more in fused regions that tell nothing"] if engine.untold else []
    if engine.count("qdq"):
        extra.append(f"{engine.count('qdq')} standalone Q/DQ")
    if reformats := engine.count("reformat"):
        extra.append(count(reformats, "reformat"))
    return ", ".join([said, *extra])


def _speed(latency: Latency | None, baseline: Latency | None) -> str:
    if latency is None:
        return ""
    said = f"; {number(latency.median_ms, 3)} ms"
    if baseline is None or baseline is latency or latency.median_ms <= 0:
        return said
    times = number(baseline.median_ms / latency.median_ms, 3)
    return f"{said} against {number(baseline.median_ms, 3)} ms: {times}x"


def _latency(engines: Sequence[EngineInfo], role: Role) -> Latency | None:
    return next((engine.latency for engine in engines if engine.role == role), None)


def time_text(latency: Latency | None) -> str:
    """Returns text like ``1.2 ms (1.1 to 1.4)``; empty where nothing was timed."""
    if latency is None:
        return ""
    low, high = number(latency.low_ms, 3), number(latency.high_ms, 3)
    return f"{number(latency.median_ms, 3)} ms ({low} to {high})"
