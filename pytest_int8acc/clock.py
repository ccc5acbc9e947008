"""Limits the cost of a case. ``Clock`` limits its time. ``Budget`` limits the trials and runs of one task.

A trial runs the model with some changes and judges the outputs. After the verdict, every loop checks its
clock or its budget before it begins a trial or a build.
"""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from pytest_int8acc.results.course import Doing, Part, Phase, PhaseName, Stop

_T = TypeVar("_T")
_U = TypeVar("_U")


class OutOfTime(Exception):  # noqa: N818 - not an error: it ends work for which no time is left
    """The case has reached its time limit, or the user has pressed Ctrl-C."""


@dataclass
class _Spent:
    """What a phase has cost so far; see ``Phase``."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    samples: int = 0
    peak_bytes: int = 0


def peak_memory() -> int:
    """The most bytes that this process has ever held in memory; 0 if the system does not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class Clock:
    """Measures and limits the time of one case. Other threads may read the progress in ``doing``."""

    def __init__(self) -> None:
        self.doing: Doing | None = None
        """The current phase and its progress; None between the verdict and the search."""
        self.interrupted = False
        self.bound: float | None = None
        self._end = float("inf")
        self._spent: dict[PhaseName, _Spent] = defaultdict(_Spent)
        self._since, self._cpu_since = time.monotonic(), time.process_time()
        self._left: dict[Part, None] = {}

    @contextmanager
    def running(self) -> Iterator[Clock]:
        """Make :func:`current` return this clock inside the block."""
        token = _CURRENT.set(self)
        try:
            yield self
        finally:
            _CURRENT.reset(token)

    @contextmanager
    def phase(self, name: PhaseName) -> Iterator[None]:
        """Add the time of the block to a phase. An outer phase continues after the block."""
        before = self.doing
        self._switch(Doing(name))
        try:
            yield
        finally:
            self._switch(before)

    def _switch(self, doing: Doing | None) -> None:
        now, cpu_now = time.monotonic(), time.process_time()
        if self.doing is not None:
            spent = self._spent[self.doing.phase]
            spent.seconds += now - self._since
            spent.cpu_seconds += cpu_now - self._cpu_since
            spent.peak_bytes = peak_memory()
        self._since, self._cpu_since, self.doing = now, cpu_now, doing

    def ran(self, samples: int) -> None:
        """Count samples that a model has run in ONNX Runtime in the current phase."""
        if self.doing is not None:
            self._spent[self.doing.phase].samples += samples

    def waited(self, seconds: float) -> None:
        """Move the last ``seconds`` to the phase ``waiting``, and extend the time limit by them.

        In these seconds the case waited until another process had freed the GPU, or built the same engine.
        """
        self._end += seconds
        if self.doing is not None:
            self._switch(self.doing)
            self._spent[self.doing.phase].seconds -= seconds
            self._spent["waiting"].seconds += seconds

    def phases(self, samples: int) -> tuple[Phase, ...]:
        """All phases so far with their costs, in the order in which they began.

        ``samples`` is the number of samples of the case.
        """
        return tuple(
            Phase(name, spent.seconds, spent.cpu_seconds, spent.samples / max(samples, 1), spent.peak_bytes)
            for name, spent in self._spent.items()
        )

    def count(self, thing: str, done: int, total: int | None = None) -> None:
        """Set the progress of the current phase: ``done`` of ``total`` things, which are named ``thing``."""
        if self.doing is not None:
            self.doing = Doing(self.doing.phase, thing, done, total)

    def tick(self, thing: str) -> None:
        """Count one more ``thing`` as done in the current phase."""
        doing = self.doing
        self.count(thing, 1 + (doing.done if doing is not None and doing.thing == thing else 0))

    def limit(self, seconds: float) -> None:
        """Set the time limit for the rest of the case."""
        self.bound = seconds
        self._end = time.monotonic() + seconds

    @property
    def over(self) -> bool:
        """Whether time is up or the user has pressed Ctrl-C, so that nothing new may begin."""
        return self.interrupted or time.monotonic() >= self._end

    @property
    def late(self) -> bool:
        """Whether half of the time limit has passed."""
        return self.bound is not None and time.monotonic() >= self._end - self.bound / 2

    @property
    def stop(self) -> Stop | None:
        """The reason why the case ended early, and the steps left out; None if the case did not end early."""
        left, bound = tuple(self._left), self.bound or 0.0
        if self.interrupted:
            return Stop("interrupted", bound, left)
        return Stop("seconds-spent", bound, left) if left else None

    def interrupt(self) -> None:
        """Note that the user has pressed Ctrl-C."""
        self.interrupted = True

    def leave(self, part: Part) -> None:
        """Note that ``part``, a step of the case, is left out."""
        self._left.setdefault(part)

    def check(self) -> None:
        """Raise OutOfTime if the time is up or the user has pressed Ctrl-C."""
        if self.over:
            raise OutOfTime

    def attempt(self, part: Part, do: Callable[[], _T], otherwise: _U, *, late: bool = False) -> _T | _U:
        """Return ``do()``. If the time is up or Ctrl-C is pressed, return ``otherwise``.

        If ``otherwise`` is returned, the step ``part`` is noted as left out.

        Args:
            part: The name of the step.
            do: Does the step and returns its result.
            otherwise: The value that takes the place of the result.
            late: Whether the step may begin after the time is up.
        """
        try:
            if late or not self.over:
                return do()
        except KeyboardInterrupt:
            self.interrupt()
        except OutOfTime:
            pass
        self.leave(part)
        return otherwise

    def bounded(self, batches: Iterable[_T]) -> Iterator[_T]:
        """Yield batches; raise OutOfTime if this pass alone takes longer than the time limit."""
        began = time.monotonic()
        for batch in batches:
            if self.bound is not None and time.monotonic() - began > self.bound:
                raise OutOfTime
            yield batch


@dataclass
class Meter:
    """Counts the runs of a simulator. All budgets for this simulator share the meter."""

    runs: float = 0.0
    """Number of samples run, divided by the number of all samples."""


@dataclass
class Budget:
    """Limits the time, trials and runs of one task: the search for layers, for causes or for fixes."""

    clock: Clock = field(default_factory=Clock)
    """The clock of the case; by default a clock without a time limit."""
    max_trials: float = math.inf
    """Maximum number of trials. Probes, which only measure errors and build no engine, do not count."""
    max_runs: float = math.inf
    """Maximum cost, in runs over all samples. A search that has found no plan yet continues beyond this cost.
    A search that has found a plan ends at this cost, or after half of the case's time, so that time is left
    for the steps after the search."""
    once: bool = False
    """Whether a search tries each group of layers only once. This takes fewer trials, but does not prove that
    a plan is minimal."""
    meter: Meter = field(default_factory=Meter)
    """Counts the runs, including runs that belong to no trial."""
    kept: float = 0.0
    """The share of the allowed trials and runs that is kept for later steps, 0 to 1."""
    trials: int = 0
    """The number of trials so far."""

    def __post_init__(self) -> None:
        self._began = self.meter.runs

    @property
    def spent(self) -> float:
        """The cost, in runs over all samples, that the meter has counted since the budget was created."""
        return self.meter.runs - self._began

    @property
    def left(self) -> float:
        """The remaining number of runs over all samples, without those that are kept for later steps."""
        return self.max_runs * (1 - self.kept) - self.spent

    @property
    def empty(self) -> bool:
        """Whether no further trial may begin."""
        return self.trials >= self.max_trials * (1 - self.kept) or self.left <= 0 or self.clock.over

    def pay(self) -> None:
        """Count one trial."""
        self.trials += 1
        self.clock.tick("trial")


_CURRENT: ContextVar[Clock] = ContextVar("int8acc_clock")


def current() -> Clock:
    """Returns the clock of the running case; outside of a case, a new clock without a time limit."""
    return _CURRENT.get(None) or Clock()
