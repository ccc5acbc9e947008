"""What a case may cost: ``Clock`` bounds the time of a whole case, ``Budget`` what one purpose may run.

All that loops after the verdict asks one of the two whether a trial or a build may begin.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from pytest_int8acc.results.course import Doing, Part, Phase, PhaseName, Stop

_T = TypeVar("_T")
_U = TypeVar("_U")


class OutOfTime(Exception):  # noqa: N818 - not an error: it unwinds what time is up for
    """The bound is reached, or the user wants no more."""


class Clock:
    """Made with a case, asked by all that loops; other threads may read ``doing``."""

    def __init__(self) -> None:
        self.doing: Doing | None = None
        """None between the verdict and what follows it."""
        self.interrupted = False
        self.bound: float | None = None
        self._end = float("inf")
        self._spent: dict[PhaseName, float] = {}
        self._since = time.monotonic()
        self._left: dict[Part, None] = {}

    @contextmanager
    def running(self) -> Iterator[Clock]:
        """Within it, :func:`current` gives this clock."""
        token = _CURRENT.set(self)
        try:
            yield self
        finally:
            _CURRENT.reset(token)

    @contextmanager
    def phase(self, name: PhaseName) -> Iterator[None]:
        """Count what passes meanwhile to a phase; the one around it goes on afterwards."""
        before = self.doing
        self._switch(Doing(name))
        try:
            yield
        finally:
            self._switch(before)

    def _switch(self, doing: Doing | None) -> None:
        now = time.monotonic()
        if self.doing is not None:
            name = self.doing.phase
            self._spent[name] = self._spent.get(name, 0.0) + now - self._since
        self._since, self.doing = now, doing

    @property
    def phases(self) -> tuple[Phase, ...]:
        """All so far, in the order in which they began."""
        return tuple(Phase(name, seconds) for name, seconds in self._spent.items())

    def count(self, thing: str, done: int, total: int | None = None) -> None:
        """Say how far the phase is."""
        if self.doing is not None:
            self.doing = Doing(self.doing.phase, thing, done, total)

    def tick(self, thing: str) -> None:
        """One more is done in this phase."""
        doing = self.doing
        self.count(thing, 1 + (doing.done if doing is not None and doing.thing == thing else 0))

    def limit(self, seconds: float) -> None:
        """Bound all that follows."""
        self.bound = seconds
        self._end = time.monotonic() + seconds

    @property
    def over(self) -> bool:
        """True where nothing new may begin."""
        return self.interrupted or time.monotonic() >= self._end

    @property
    def late(self) -> bool:
        """True where no more than half of the bound is left."""
        return self.bound is not None and time.monotonic() >= self._end - self.bound / 2

    @property
    def stop(self) -> Stop | None:
        """What ended the case early; None where nothing was left out."""
        left, bound = tuple(self._left), self.bound or 0.0
        if self.interrupted:
            return Stop("interrupted", bound, left)
        return Stop("seconds-spent", bound, left) if left else None

    def interrupt(self) -> None:
        """Nothing new may begin from now on."""
        self.interrupted = True

    def leave(self, part: Part) -> None:
        """Remember what is left out."""
        self._left.setdefault(part)

    def check(self) -> None:
        """Raises OutOfTime where nothing new may begin."""
        if self.over:
            raise OutOfTime

    def attempt(self, part: Part, do: Callable[[], _T], otherwise: _U, *, late: bool = False) -> _T | _U:
        """What ``do`` gives, or ``otherwise`` where time is up or Ctrl-C ends it; then the part is left out.

        Args:
            part: Its name.
            do: Does it.
            otherwise: Stands for it.
            late: It may begin after time is up.
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
        """The batches of one pass; OutOfTime between two where the pass alone has outlasted the bound."""
        began = time.monotonic()
        for batch in batches:
            if self.bound is not None and time.monotonic() - began > self.bound:
                raise OutOfTime
            yield batch


@dataclass
class Meter:
    """Counts all that a lab runs."""

    runs: float = 0.0
    """Samples run, as a share of all samples."""


@dataclass
class Budget:
    """What one purpose may cost, as a search, the trials of causes or the remedies: time, trials and runs."""

    clock: Clock = field(default_factory=Clock)
    """Of the case; by default one that is never over."""
    max_trials: float = math.inf
    """Maximum number of trials. Probes of a search do not count: an engine is built for a trial only."""
    max_runs: float = math.inf
    """Maximum cost in runs over all samples. A search that has found no plan by then goes on; one that has a
    plan refines it no further, nor does it after half of the clock's bound, for the sake of what follows."""
    once: bool = False
    """A search tries no group again as others leave: fewer trials, and nothing is proven minimal."""
    meter: Meter = field(default_factory=Meter)
    """Counts all that is run meanwhile, trials or not."""
    kept: float = 0.0
    """The share of trials and runs that is kept for later."""
    trials: int = 0
    """Trials so far."""

    def __post_init__(self) -> None:
        self._began = self.meter.runs

    @property
    def left(self) -> float:
        """Runs over all samples that can be paid for now."""
        return self.max_runs * (1 - self.kept) - (self.meter.runs - self._began)

    @property
    def empty(self) -> bool:
        """True where nothing more may be tried."""
        return self.trials >= self.max_trials * (1 - self.kept) or self.left <= 0 or self.clock.over

    def pay(self) -> None:
        """Count one trial."""
        self.trials += 1
        self.clock.tick("trial")


_CURRENT: ContextVar[Clock] = ContextVar("int8acc_clock")


def current() -> Clock:
    """The clock of the case under way; one that nobody reads where there is none."""
    return _CURRENT.get(None) or Clock()
