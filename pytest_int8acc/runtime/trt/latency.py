"""Measures engines by CUDA events around each execution. Copies to and from the GPU are not measured."""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from pytest_int8acc.clock import current
from pytest_int8acc.errors import EngineError
from pytest_int8acc.results import EngineLayer, Latency
from pytest_int8acc.results.engines import LayerTime
from pytest_int8acc.runtime.trt.engine import TrtEngine, backend, speaking_of, tensorrt
from pytest_int8acc.runtime.trt.inspector import is_region
from pytest_int8acc.runtime.worker import alone, lock_of
from pytest_int8acc.tensors import Feed

logger = logging.getLogger("pytest_int8acc")

#: Minimum number of rounds and of seconds before timing begins, because a GPU raises its clock slowly.
WARM_UP_ROUNDS, WARM_UP_SECONDS = 10, 0.5
#: Minimum number of timed executions of each engine.
LEAST_RUNS = 20
_Name = TypeVar("_Name", bound=str)


def measure_latency(
    engines: Mapping[_Name, TrtEngine],
    feed: Feed,
    *,
    seconds: float = 1.0,
    runs: int | None = None,
    waits: bool = True,
) -> dict[_Name, Latency]:
    """The latency of each engine.

    The engines run in turn, so that the GPU has the same clock and temperature for all. No other process of
    this plugin builds or measures engines on the GPU at the same time.

    Args:
        engines: Engines by role. All run on ``feed``.
        feed: The inputs, which are copied to the GPU once.
        seconds: Minimum duration of the measurements of all engines together. Each engine runs at least
            ``LEAST_RUNS`` times.
        runs: The number of executions of each engine, in place of ``seconds``.
        waits: Whether to wait until no other process of this plugin uses the GPU.

    Returns:
        The median, 10th and 90th percentile in milliseconds, by role. It is empty if another process uses the
        GPU and ``waits`` is False.

    Raises:
        EngineError: An engine refuses the feed, or CUDA fails.
    """
    logger.info("measuring latency of %s", ", ".join(engines))
    for engine in engines.values():
        engine.run_all(feed)  # sets shapes and addresses for the later executions
    timers = {role: _Timer(engine) for role, engine in engines.items()}
    devices = [device for engine in engines.values() for device in engine.platform.devices]
    try:
        lock = lock_of(devices[0].bus) if devices else None
        with alone(lock, timeout=-1 if waits else 0) as waited:
            if waited is None:
                return {}
            current().waited(waited)
            times = _in_turn(timers, seconds, runs)
    finally:
        for timer in timers.values():
            timer.free()
    return {role: summarize(found) for role, found in times.items()}


def _in_turn(timers: Mapping[_Name, _Timer], seconds: float, runs: int | None) -> dict[_Name, list[float]]:
    """The times of all executions after the warm-up, in milliseconds, by the engine's role."""
    times: dict[_Name, list[float]] = {role: [] for role in timers}
    _warm_up(timers.values())
    started = time.monotonic()
    while times:
        for role, timer in timers.items():
            times[role].append(timer.run())
        done = min(map(len, times.values()))
        over = time.monotonic() - started >= seconds and done >= LEAST_RUNS
        if done >= runs if runs is not None else over:
            break
    return times


def layer_times(engine: TrtEngine, feed: Feed) -> dict[str, float]:
    """The median time of each layer in milliseconds, by TensorRT's profiler.

    The sum over all layers exceeds the time of the engine, because the profiler takes time itself.

    Args:
        engine: The engine. Its file is loaded once more, because a profiler cannot be removed from a context,
            and each context needs an optimization profile of its own.
        feed: The inputs.

    Raises:
        EngineError: TensorRT fails.
    """
    trt = tensorrt(engine.platform)

    base: Any = trt.IProfiler

    class Profiler(base):  # type: ignore[misc]
        """Collects the times of each layer."""

        def __init__(self) -> None:
            base.__init__(self)
            self.times: dict[str, list[float]] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.times.setdefault(layer_name, []).append(ms)

    profiler = Profiler()
    polygraphy = backend(engine.platform)
    arrays = engine.adapted(feed)
    with speaking_of(f"{engine.name}: cannot be loaded once more"):
        runner = polygraphy.TrtRunner(polygraphy.EngineFromBytes(engine.path.read_bytes()))
    with speaking_of(f"{engine.name}: its layers cannot be timed"), runner:
        runner.infer(arrays, check_inputs=False)
        runner.context.profiler = profiler
        for _ in range(LEAST_RUNS):
            runner.infer(arrays, check_inputs=False)
    return {name: float(np.median(times)) for name, times in profiler.times.items()}


def with_nodes(layers: Sequence[EngineLayer], times: Mapping[str, float]) -> tuple[LayerTime, ...]:
    """The time of each layer, with the nodes that it computes.

    A copy that TensorRT added, such as a reformat, gets the nodes of the next layer that names nodes,
    because TensorRT copies a tensor right before the layer that reads it. A copy after the last such layer
    gets the nodes of that layer.

    Args:
        layers: The layers of an engine, in the order in which they run.
        times: Maps the name of a layer to its time in ms.
    """
    reader = next((layer for layer in reversed(layers) if layer.nodes), None)
    found: list[LayerTime] = []
    for layer in reversed(layers):
        reader = layer if layer.nodes or is_region(layer) else reader
        is_copy = layer.kind in ("reformat", "qdq")
        computed = reader if is_copy and reader is not None else layer
        milliseconds = times.get(layer.name, 0.0)
        found.append(LayerTime(computed.nodes, milliseconds, is_region(computed)))
    return tuple(reversed(found))


def summarize(times: list[float]) -> Latency:
    """The median, 10th and 90th percentile of times in milliseconds."""
    low, median, high = np.percentile(np.asarray(times), [10, 50, 90])
    return Latency(float(median), float(low), float(high), len(times))


class _Timer:
    """Measures executions of an engine by two CUDA events on its stream."""

    def __init__(self, engine: TrtEngine) -> None:
        from polygraphy.cuda import wrapper

        self._cuda: Any = wrapper().handle
        self._runner = engine.runner
        self._name = engine.name
        self._stream = ctypes.c_void_p(engine.runner.stream.ptr)
        self._start, self._stop = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self._cuda.cudaEventCreate(ctypes.byref(self._start)))
        self._check(self._cuda.cudaEventCreate(ctypes.byref(self._stop)))

    def run(self) -> float:
        """The time of one execution in milliseconds."""
        self._check(self._cuda.cudaEventRecord(self._start, self._stream))
        if not self._runner.context.execute_async_v3(self._stream.value):
            raise EngineError(f"{self._name}: an execution failed while its time was taken")
        self._check(self._cuda.cudaEventRecord(self._stop, self._stream))
        self._check(self._cuda.cudaEventSynchronize(self._stop))
        milliseconds = ctypes.c_float()
        self._check(self._cuda.cudaEventElapsedTime(ctypes.byref(milliseconds), self._start, self._stop))
        return milliseconds.value

    def free(self) -> None:
        """Free the two CUDA events."""
        for event in (self._start, self._stop):
            self._cuda.cudaEventDestroy(event)

    def _check(self, code: int) -> None:
        if code:
            raise EngineError(f"{self._name}: CUDA error {code} while its time was taken")


def _warm_up(timers: Collection[_Timer]) -> None:
    started, rounds = time.monotonic(), 0
    while timers and (rounds < WARM_UP_ROUNDS or time.monotonic() - started < WARM_UP_SECONDS):
        for timer in timers:
            timer.run()
        rounds += 1
