"""What a strategy talks to: plans go in, verdicts and error vectors come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pytest_int8acc.scores.criteria import Criterion
from pytest_int8acc.search.types import GroupInfo, Probe, Target, Trial

#: Told the parts of the samples seen so far; True where the verdict needs no more of them.
Enough = Callable[[NDArray[np.float64]], bool]


class Evaluator(Protocol):
    """Judges plans; a plan is the set of groups kept high, by index, all others being INT8.

    Trials and error vectors may come from different places: engines to judge, a simulation to rank.
    """

    @property
    def groups(self) -> Sequence[GroupInfo]:
        """What can be switched, in topological order."""

    @property
    def criteria(self) -> Sequence[Criterion]:
        """What is judged; losses and scores follow this order."""

    @property
    def samples(self) -> int:
        """Number of samples, at least 1."""

    @property
    def targets(self) -> Sequence[Target]:
        """What :meth:`probe` measures; at least one."""

    def trial(self, high: frozenset[int], order: Sequence[int], enough: Enough | None) -> Trial:
        """Judge a plan on all samples.

        Args:
            high: Groups kept in high precision.
            order: All sample indices, in the order in which they should run.
            enough: Asked between batches with the parts so far, [criteria, samples], nan where not seen; True
                ends the trial at once, without the samples left. None: run all. An evaluator for which
                samples come together (an engine) may ignore both.
        """

    def probe(self, plans: Sequence[frozenset[int]], samples: Sequence[int]) -> list[Probe]:
        """Measure the errors of several plans on the given samples.

        Costs ``len(plans) * len(samples) / self.samples``.
        """
