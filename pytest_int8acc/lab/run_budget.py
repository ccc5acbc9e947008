"""What may still be run for one purpose, counted in runs over all samples, whatever it is that runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_int8acc.clock import Clock


@dataclass
class Meter:
    """Counts what a lab runs."""

    runs: float = 0.0
    """Samples run / all samples."""


class RunBudget:
    """Pays for inference; empty where so much was run since it was opened, or time is up."""

    def __init__(
        self, clock: Clock, meter: Meter | None = None, *, runs: float = math.inf, trials: float = math.inf
    ) -> None:
        """Open it.

        Args:
            clock: Of the case.
            meter: Counts all that is run meanwhile, trials or not; None: nothing is counted.
            runs: That it pays for, over all samples.
            trials: That it pays for.
        """
        self.clock, self.trials = clock, 0
        self.kept = 0.0
        """The part of its runs and trials that is kept for later."""
        self._meter, self._runs, self._most = meter or Meter(), runs, trials
        self._began = self._meter.runs

    @property
    def left(self) -> float:
        """Runs over all samples that it can pay for now."""
        return self._runs * (1 - self.kept) - (self._meter.runs - self._began)

    @property
    def empty(self) -> bool:
        """True where nothing more may be tried."""
        return self.trials >= self._most * (1 - self.kept) or self.left <= 0 or self.clock.over

    def pay(self) -> None:
        """Count one trial."""
        self.trials += 1
        self.clock.tick("trial")
